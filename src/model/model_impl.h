/* model_impl.h - internals of a model: a network, its config, and the storage types of its weights. */
#ifndef KR_MODEL_MODEL_IMPL_H
#define KR_MODEL_MODEL_IMPL_H

#include "base/sized.h"
#include "model/model_config_impl.h"
#include "nn/network_impl.h"

struct kr_model {
    kr_ctx *ctx;
    kr_config_box *box;
    kr_network *net;
    kr_dtype *stored; /* of each parameter, in order of the table: the type for saving as stored */
    int64_t count;    /* of parameters */
};

/* Copies the caller's config; its layout, family and number of token ids must be in range. The network checks the other
 * fields. */
bool kr_model_take_config(kr_ctx *ctx, const char *op, kr_model_values *values, const kr_model_config *config);

/* A network of this config and matrices of this type, whose parameters have no memory; NULL after an error. */
kr_network *kr_model_declare(kr_ctx *ctx, const kr_model_values *config, kr_dtype dtype);

/* The model of a declared network whose parameters are zero, and a copy of the config; takes the network, also after an
 * error, which gives NULL. */
kr_model *kr_model_of(kr_ctx *ctx, const kr_model_values *config, kr_network *net);

/* A layout's name of a parameter. */
const char *kr_layout_parameter(kr_layout layout, const char *name);

/* These two names differ between layouts. */
extern const char kr_embedding_name[], kr_head_name[];

/* The number of infinite elements among floats. */
int64_t kr_infinities(kr_ctx *ctx, kr_dtype dtype, const void *data, int64_t count);

/* Error for a tensor with n elements too large for `to`: "...; VERB it as FROM". If its values are in memory, the
 * message has the largest. Always false. */
bool kr_refuse_large(kr_ctx *ctx, const char *verb, const char *name, kr_dtype to, kr_dtype from, int64_t n,
                     const double *values, int64_t count);

/* Are there values of `from` that become infinite in `to`? */
bool kr_dtype_is_shorter(kr_dtype to, kr_dtype from);

KR_DECLARE_DEFAULTS(kr_load_options);
KR_DECLARE_DEFAULTS(kr_save_options);

#endif
