/* param.c - parameters: leaves that belong to the caller and outlive every tape. */
#include "device/device.h"
#include "device/walk.h"
#include "tape/tape.h"

#include <string.h>

static size_t data_bytes(const kr_tensor *x)
{
    return (size_t)kr_tensor_count(x) * kr_dtype_bytes(x->dtype);
}

kr_tensor *kr_param_head(kr_ctx *ctx, kr_dtype dtype, kr_shape shape)
{
    if (kr_ctx_failed(ctx)) return NULL;
    if (!kr_require(ctx, kr_dtype_is_float(dtype), KR_ERR_DTYPE,
                    "param: type %s, but a parameter is f32, f64, bf16 or f16", kr_dtype_name(dtype)) ||
        !kr_require(ctx, kr_shape_count(&shape) >= 0, KR_ERR_SHAPE,
                    "param: no shape: rank %d must be from 0 to %d, and sizes not negative and addressable", shape.rank,
                    KR_MAX_RANK))
        return NULL;
    kr_tensor *x = kr_memory_alloc_zeroed(&ctx->memory, sizeof *x);
    if (!x) {
        kr_fail(ctx, KR_ERR_NOMEM, "param: no memory for %s %s", kr_dtype_name(dtype), KR_TEXT_OF_SHAPE(&shape));
        return NULL;
    }
    x->ctx = ctx;
    kr_tensor_layout(x, dtype, &shape);
    x->requires_grad = true;
    x->in_slab = true;
    return x;
}

kr_tensor *kr_param_create(kr_ctx *ctx, kr_dtype dtype, kr_shape shape)
{
    kr_tensor *x = kr_param_head(ctx, dtype, shape);
    if (!x) return NULL;
    x->in_slab = false;
    x->data = kr_memory_alloc_zeroed(&ctx->memory, data_bytes(x));
    if (x->data) return x;
    kr_fail(ctx, KR_ERR_NOMEM, "param: no memory for %s %s", kr_dtype_name(dtype), KR_TEXT_OF_SHAPE(&shape));
    kr_memory_free(&ctx->memory, x, sizeof *x);
    return NULL;
}

void kr_param_drop_grad(kr_tensor *param)
{
    if (!param->grad) return;
    kr_memory_free(&param->ctx->memory, param->grad->data, data_bytes(param));
    kr_memory_free(&param->ctx->memory, param->grad, sizeof *param->grad);
    param->grad = NULL;
}

void kr_param_destroy(kr_tensor *param)
{
    if (!param) return;
    if (param->tape) {
        kr_fail(param->ctx, KR_ERR_ARG, "param_destroy: the tensor %s is on a tape, which frees it by itself",
                KR_TEXT_OF(param));
        return;
    }
    kr_memory *memory = &param->ctx->memory;
    kr_param_drop_grad(param);
    if (!param->in_slab) kr_memory_free(memory, param->data, data_bytes(param));
    kr_memory_free(memory, param, sizeof *param);
}

static bool writable(kr_tensor *param, const char *op)
{
    if (!param || kr_ctx_failed(param->ctx)) return false;
    return kr_require(param->ctx, param->tape == NULL, KR_ERR_ARG,
                      "%s: the tensor %s is on a tape; only parameters are written", op, KR_TEXT_OF(param));
}

static kr_status status_of(const kr_tensor *param)
{
    return param ? param->ctx->status : KR_ERR_ARG;
}

kr_status kr_param_write(kr_tensor *param, kr_dtype dtype, const void *data, int64_t count)
{
    if (!writable(param, "param_write")) return status_of(param);
    kr_ctx *ctx = param->ctx;
    if (!kr_require(ctx, kr_dtype_is_valid(dtype), KR_ERR_DTYPE, "param_write: %d is no kr_dtype", (int)dtype) ||
        !kr_require(ctx, count == kr_tensor_count(param), KR_ERR_SHAPE,
                    "param_write: %lld elements for a parameter %s of %lld", (long long)count, KR_TEXT_OF(param),
                    (long long)kr_tensor_count(param)) ||
        !kr_require(ctx, data != NULL || count == 0, KR_ERR_ARG, "param_write: data is NULL"))
        return ctx->status;
    kr_tensor from = *param;
    from.dtype = dtype;
    memcpy(&from.data, &data, sizeof data); /* read only: kr_assign takes it as const */
    kr_assign(ctx, param, &from);
    return ctx->status;
}

kr_status kr_param_fill(kr_tensor *param, double value)
{
    if (writable(param, "param_fill")) kr_assign_value(param->ctx, param, value);
    return status_of(param);
}

static kr_status draw(kr_tensor *param, const char *op, bool normal, double alpha, double beta)
{
    if (!writable(param, op)) return status_of(param);
    kr_ctx *ctx = param->ctx;
    kr_random_args args = { .n = kr_tensor_count(param),
                            .dtype = param->dtype,
                            .y = param->data,
                            .seed = ctx->seed,
                            .stream = ctx->stream++,
                            .normal = normal,
                            .alpha = alpha,
                            .beta = beta };
    KR_RUN(ctx, random, &args);
    return ctx->status;
}

kr_status kr_param_normal(kr_tensor *param, double mean, double std)
{
    return draw(param, "param_normal", true, mean, std);
}

kr_status kr_param_uniform(kr_tensor *param, double low, double high)
{
    return draw(param, "param_uniform", false, low, high);
}

void kr_zero_grad(kr_tensor *param)
{
    if (!param || param->tape || !param->grad) return;
    memset(param->grad->data, 0, data_bytes(param));
    param->grad_is_zero = true;
}

void kr_param_freeze(kr_tensor *param, bool frozen)
{
    if (param && !param->tape) param->requires_grad = !frozen;
}
