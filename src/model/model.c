/* model.c - models: creation from a config, measuring, destruction. */
#include "model/model_impl.h"

#include "base/device_memory.h"
#include "base/half.h"
#include "base/sized.h"
#include "nn/block_config.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

const char kr_embedding_name[] = "backbone.embedding.weight", kr_head_name[] = "lm_head.weight";

const char *kr_layout_parameter(kr_layout layout, const char *name)
{
    return layout == KR_LAYOUT_HF && strcmp(name, kr_embedding_name) == 0 ? "backbone.embeddings.weight" : name;
}

/* ---- numbers out of range ---- */

typedef struct counting {
    kr_dtype dtype;
    int64_t n;
} counting;

static bool count_infinities(void *user, const void *data, size_t bytes)
{
    counting *c = user;
    const kr_dtype dtype = c->dtype;
    const int64_t count = (int64_t)(bytes / kr_dtype_bytes(dtype));
    for (int64_t i = 0; i < count; i++) {
        const double x = dtype == KR_DTYPE_F64    ? ((const double *)data)[i]
                         : dtype == KR_DTYPE_F32  ? (double)((const float *)data)[i]
                         : dtype == KR_DTYPE_BF16 ? (double)kr_float_from_bf16(((const uint16_t *)data)[i])
                                                  : (double)kr_float_from_f16(((const uint16_t *)data)[i]);
        c->n += isinf(x) != 0;
    }
    return true;
}

int64_t kr_infinities(kr_ctx *ctx, kr_dtype dtype, const void *data, int64_t count)
{
    counting c = { dtype, 0 };
    kr_each_block(ctx, data, kr_dtype_span(dtype, count), count_infinities, &c);
    return c.n;
}

bool kr_refuse_large(kr_ctx *ctx, const char *verb, const char *name, kr_dtype to, kr_dtype from, int64_t n,
                     const double *values, int64_t count)
{
    double largest = 0;
    char text[48] = "";
    for (int64_t i = 0; values && i < count; i++)
        if (fabs(values[i]) > fabs(largest)) largest = values[i];
    if (values) snprintf(text, sizeof text, "; the largest is %g", largest);
    return kr_fail(ctx, KR_ERR_NUMERIC, "tensor '%s' holds %lld number%s too large for %s%s; %s it as %s", name,
                   (long long)n, n == 1 ? "" : "s", kr_dtype_name(to), text, verb, kr_dtype_name(from));
}

bool kr_dtype_is_shorter(kr_dtype to, kr_dtype from)
{
    /* order of their largest numbers */
    static const int reach[] = { [KR_DTYPE_F16] = 0, [KR_DTYPE_BF16] = 1, [KR_DTYPE_F32] = 2, [KR_DTYPE_F64] = 3 };
    return reach[to] < reach[from];
}

/* ---- creation ---- */

kr_network *kr_model_declare(kr_ctx *ctx, const kr_model_values *config, kr_dtype dtype)
{
    kr_model_values values = *config;
    kr_config_set_dtype(&values, dtype);
    values.layers.block = (kr_block_config){ values.family, kr_model_values_block(&values) };
    values.network.layers = &values.layers;
    return kr_network_declare(ctx, &values.network);
}

static bool note_types(kr_model *model)
{
    const kr_params *params = kr_network_params(model->net);
    model->count = kr_params_count(params);
    model->stored = kr_memory_alloc(&model->ctx->memory, (size_t)model->count * sizeof *model->stored);
    if (!model->stored) return kr_fail(model->ctx, KR_ERR_NOMEM, "no memory for a model");
    for (int64_t i = 0; i < model->count; i++) model->stored[i] = kr_tensor_dtype(kr_params_at(params, i)->tensor);
    return true;
}

kr_model *kr_model_of(kr_ctx *ctx, const kr_model_values *config, kr_network *net)
{
    kr_model *model = kr_memory_alloc_zeroed(&ctx->memory, sizeof *model);
    if (!model) {
        kr_fail(ctx, KR_ERR_NOMEM, "no memory for a model");
        kr_network_destroy(net);
        return NULL;
    }
    model->ctx = ctx;
    model->net = net;
    if (note_types(model) && kr_params_allocate(net->params) && (model->box = kr_config_box_clone(ctx, config)))
        return model;
    kr_model_destroy(model);
    return NULL;
}

void kr_model_destroy(kr_model *model)
{
    if (!model) return;
    kr_memory *memory = &model->ctx->memory;
    kr_network_destroy(model->net);
    kr_config_box_destroy(model->box);
    if (model->stored) kr_memory_free(memory, model->stored, (size_t)model->count * sizeof *model->stored);
    kr_memory_free(memory, model, sizeof *model);
}

bool kr_model_take_config(kr_ctx *ctx, const char *op, kr_model_values *values, const kr_model_config *config)
{
    return kr_model_values_take(ctx, op, values, config) &&
           kr_require(ctx, values->layout == KR_LAYOUT_OFFICIAL || values->layout == KR_LAYOUT_HF, KR_ERR_ARG,
                      "%s: layout = %d is neither official nor hf", op, (int)values->layout) &&
           kr_require(ctx, kr_block_kind_of(values->family) != NULL, KR_ERR_ARG,
                      "%s: family = %d is not one of mamba1, mamba2, mamba3, or registered", op, (int)values->family) &&
           kr_require(ctx, values->n_eos >= 0 && values->n_eos <= KR_MAX_EOS, KR_ERR_ARG,
                      "%s: n_eos = %d, but must be from 0 to %d", op, values->n_eos, KR_MAX_EOS);
}

kr_model *kr_model_create(kr_ctx *ctx, const kr_model_config *config)
{
    kr_model_values values;
    if (kr_ctx_failed(ctx) || !kr_model_take_config(ctx, "model.create", &values, config)) return NULL;
    kr_network *net = kr_model_declare(ctx, &values, kr_config_dtype_of(&values));
    kr_model *model = net ? kr_model_of(ctx, &values, net) : NULL;
    if (model && kr_params_reset(kr_network_params(model->net)) == KR_OK) return model;
    kr_blame(ctx, "model.create");
    kr_model_destroy(model);
    return NULL;
}

kr_model_info kr_model_info_of(const kr_model *model)
{
    if (!model) return (kr_model_info){ .network = NULL };
    return (kr_model_info){ .network = model->net, .config = &model->box->config };
}

KR_DEFAULTS(kr_load_options) = { .size = sizeof(kr_load_options),
                                 .dtype = KR_DTYPE_AS_STORED,
                                 .grad_horizon = KR_NO_HORIZON };

KR_DEFAULTS(kr_save_options) = { .size = sizeof(kr_save_options),
                                 .layout = KR_LAYOUT_AS_LOADED,
                                 .dtype = KR_DTYPE_AS_STORED,
                                 .container = KR_CONTAINER_SAFETENSORS };
