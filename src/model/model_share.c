/* model_share.c - a model of another context over the same weights. */
#include "model/model_impl.h"

#include <string.h>

#define OP "model.share"

static bool share(kr_model *model, const kr_model *from)
{
    const size_t bytes = (size_t)from->count * sizeof *from->stored;
    if (!(model->net = kr_network_share(model->ctx, from->net)) ||
        !(model->box = kr_config_box_clone(model->ctx, &from->box->values)))
        return false;
    model->stored = kr_memory_alloc(&model->ctx->memory, bytes);
    if (!model->stored) return kr_fail(model->ctx, KR_ERR_NOMEM, OP ": no memory for a model");
    memcpy(model->stored, from->stored, bytes);
    model->count = from->count;
    return true;
}

kr_model *kr_model_share(kr_ctx *ctx, const kr_model *from)
{
    if (kr_ctx_failed(ctx) || !kr_require(ctx, from != NULL, KR_ERR_ARG, OP ": model is NULL")) return NULL;
    kr_model *model = kr_memory_alloc_zeroed(&ctx->memory, sizeof *model);
    if (!kr_require(ctx, model != NULL, KR_ERR_NOMEM, OP ": no memory for a model")) return NULL;
    model->ctx = ctx;
    if (share(model, from)) return model;
    kr_model_destroy(model);
    return NULL;
}
