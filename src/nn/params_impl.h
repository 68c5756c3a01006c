/* params_impl.h - building a parameter table: modules declare their rows under a prefix, then all memory is allocated
 * at once.
 *
 *   kr_params *params = kr_params_create(ctx);
 *   size_t outer = kr_params_enter(params, "layers.%d.", 0);
 *   weight = kr_params_add(params, &(kr_param_spec){ .name = "norm.weight", ... });
 *   kr_params_leave(params, outer);
 *   kr_params_seal(params);             // slabs, then the initial values
 */
#ifndef KR_NN_PARAMS_IMPL_H
#define KR_NN_PARAMS_IMPL_H

#include "base/arena.h"
#include "base/ctx_impl.h"
#include "tape/tape_impl.h"
#include "tape/weights.h"

#include <krait/params.h>

typedef struct kr_param_spec {
    const char *name; /* without the prefix */
    const char *axes;
    kr_dtype dtype;
    kr_shape shape;
    kr_init init;
    bool has_decay;
    bool is_linear;       /* a weight [o i] that rows of inputs are multiplied with: kr_params_pack */
    bool is_residual_out; /* ends a branch that is added to the residual stream: kr_params_rescale_residual */
    bool is_proj_bias;    /* of a projection: kr_params_zero_biases */
    int n_segments;       /* rows of segments add up to the first axis */
    const kr_segment *segments;
} kr_param_spec;

/* Appends to the prefix of later names; returns the previous length, for leave. */
size_t kr_params_enter(kr_params *params, const char *format, ...) KR_PRINTF(2, 3);
void kr_params_leave(kr_params *params, size_t outer);

/* Tensors are made by add, but have no memory until seal. NULL params or an earlier error: NULL. */
kr_tensor *kr_params_add(kr_params *params, const kr_param_spec *spec);

/* The same for a linear weight [o i]: it decays, and its initial values are kr_init_linear's if init is 0. */
kr_tensor *kr_params_add_linear(kr_params *params, const kr_param_spec *spec);

/* The same for a vector without weight decay: a bias, a gain, a rate. */
kr_tensor *kr_params_add_vector(kr_params *params, const char *name, const char *axes, kr_dtype dtype, int64_t count,
                                kr_init init);

/* The bias of a projection with `fan_in` inputs and a weight of `dtype`: a small parameter, in f32 for a 16-bit weight;
 * kr_params_zero_biases finds these. */
kr_tensor *kr_params_add_bias(kr_params *params, const char *name, const char *axes, kr_dtype dtype, int64_t count,
                              int64_t fan_in);

/* Projection biases begin at 0. Before seal. */
void kr_params_zero_biases(kr_params *params);

/* Multiplies the initial values of residual outputs by `scale`. Before seal. */
void kr_params_rescale_residual(kr_params *params, double scale);

/* While a block of a registered family is created: kr_params_make declares, as add does, under the prefix. */
void kr_params_set_declaring(kr_params *params, bool is_declaring);
bool kr_params_is_declaring(const kr_params *params);

/* Is there a row of that name under the prefix? */
bool kr_params_has(const kr_params *params, const char *name);

/* Lets row i have its elements at `data`, in a mapped file. Before allocate; after it the map goes into the list of
 * kr_params_add_maps, zeroed, for `count` of them: NULL after an error. */
void kr_params_place(kr_params *params, int64_t i, void *data);
kr_weights_map *kr_params_add_maps(kr_params *params, int count);

/* Allocates the memory of all other tensors, one slab for each type, all zero. */
bool kr_params_allocate(kr_params *params);

/* The same, and the initial values. */
bool kr_params_seal(kr_params *params);

/* A row for an existing tensor of the spec's shape; a shared tensor still belongs to its owner. */
bool kr_params_put(kr_params *params, const kr_param_spec *spec, double init_scale, kr_tensor *tensor, bool is_shared);

/* Before and after all rows are written: false, with an error, if other tables use the weights of one. */
bool kr_params_begin_write(const kr_params *params, const char *op);
void kr_params_end_write(const kr_params *params);

/* Lets the rows of a declared table have the memory of another one, of the same declaration and maybe of another context;
 * they are frozen. False after an error. `op` is for messages. */
bool kr_params_share_weights(kr_params *params, const kr_params *from, const char *op);

/* Drops the rows from `count` on; their tensors are not destroyed. */
void kr_params_shorten(kr_params *params, int64_t count);

/* The declaration of a row, without dtype and shape, which its tensor has. */
kr_param_spec kr_params_spec_at(const kr_params *params, int64_t i);

kr_ctx *kr_params_ctx(const kr_params *params);

/* Common specs: a linear weight [out in] and its bias, sampled from +-1/sqrt(in); a norm's gain of ones. */
kr_init kr_init_linear(int64_t fan_in);
kr_init kr_init_fill(double value);

/* A 64-bit fingerprint of names, types and shapes; and of the values too. */
uint64_t kr_params_structure_hash(const kr_params *params);
uint64_t kr_params_values_hash(const kr_params *params);

#endif
