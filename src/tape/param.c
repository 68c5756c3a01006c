/* param.c - parameters: leaves that belong to the caller and outlive every tape. */
#include "device/device.h"
#include "device/walk.h"
#include "tape/tape_impl.h"
#include "tape/weights.h"

#include <string.h>

static size_t data_bytes(const kr_tensor *x)
{
    return kr_dtype_span(x->dtype, kr_count_of(x));
}

kr_tensor *kr_param_head(kr_ctx *ctx, kr_dtype dtype, kr_shape shape)
{
    if (kr_ctx_failed(ctx)) return NULL;
    if (!kr_require(ctx, kr_dtype_is_float(dtype), KR_ERR_DTYPE,
                    "param: type %s, but a parameter is f32, f64, bf16 or f16", kr_dtype_name(dtype)) ||
        !kr_require(ctx, kr_shape_count(&shape) >= 0, KR_ERR_SHAPE,
                    "param: invalid shape: rank %d must be from 0 to %d, and sizes not negative and addressable",
                    shape.rank, KR_MAX_RANK))
        return NULL;
    kr_header *header = kr_memory_alloc_zeroed(&ctx->memory, sizeof *header);
    if (!header) {
        kr_fail(ctx, KR_ERR_NOMEM, "param: no memory for %s %s", kr_dtype_name(dtype), KR_TEXT_OF_SHAPE(&shape));
        return NULL;
    }
    kr_tensor *x = kr_header_init(header);
    x->ctx = ctx;
    kr_tensor_layout(x, dtype, &shape);
    x->flags.requires_grad = true;
    return x;
}

kr_tensor *kr_param_create(kr_ctx *ctx, kr_dtype dtype, kr_shape shape)
{
    kr_tensor *x = kr_param_head(ctx, dtype, shape);
    if (!x) return NULL;
    x->data = kr_memory_alloc_zeroed(kr_float_memory(ctx), data_bytes(x));
    if (x->data) return x;
    kr_fail(ctx, KR_ERR_NOMEM, "param: no memory for %s %s", kr_dtype_name(dtype), KR_TEXT_OF_SHAPE(&shape));
    kr_memory_free(&ctx->memory, x, sizeof(kr_header));
    return NULL;
}

void kr_param_drop_grad(kr_tensor *param)
{
    if (!param->grad) return;
    if (!param->grad->flags.is_part) kr_memory_free(kr_float_memory(param->ctx), param->grad->data, data_bytes(param));
    kr_memory_free(&param->ctx->memory, param->grad, sizeof(kr_header));
    param->grad = NULL;
}

bool kr_param_place_grad(kr_tensor *param, void *data)
{
    if (!param->grad || !param->grad->flags.is_part) {
        kr_header *header = kr_memory_alloc_zeroed(&param->ctx->memory, sizeof *header);
        if (!header) return false;
        kr_param_drop_grad(param);
        param->grad = kr_header_init(header);
        const kr_shape shape = kr_tensor_shape(param);
        kr_tensor_layout(param->grad, param->dtype, &shape);
        param->grad->ctx = param->ctx;
        param->grad->flags.is_part = true;
    }
    param->grad->data = data;
    return true;
}

static void free_header(kr_tensor *param)
{
    kr_memory *memory = &param->ctx->memory;
    const char *name = param->storage->name;
    if (name) kr_memory_free(memory, (char *)(uintptr_t)name, strlen(name) + 1);
    kr_memory_free(memory, param, sizeof(kr_header));
}

void kr_free_destroyed(kr_ctx *ctx)
{
    while (ctx->nrecorded == 0 && ctx->destroyed) {
        kr_tensor *param = ctx->destroyed;
        ctx->destroyed = param->storage->next;
        free_header(param);
    }
}

/* Recorded ops may refer to it: a backward pass finds there that the parameter is gone. Its table's name goes with the
 * table; a copy for which there is no memory is left out. */
static void keep_header(kr_tensor *param)
{
    kr_ctx *ctx = param->ctx;
    kr_storage *storage = param->storage;
    const char *name = storage->name;
    char *copy = name ? kr_memory_alloc(&ctx->memory, strlen(name) + 1) : NULL;
    if (copy) memcpy(copy, name, strlen(name) + 1);
    storage->name = copy;
    storage->written = ++ctx->nwrites;
    storage->next = ctx->destroyed;
    param->data = NULL;
    storage->weights = NULL;
    param->flags.is_destroyed = true;
    param->flags.requires_grad = false;
    ctx->destroyed = param;
}

void kr_param_destroy(kr_tensor *param)
{
    if (!param) return;
    if (param->tape) {
        kr_fail(param->ctx, KR_ERR_ARG, "param_destroy: the tensor %s is on a tape, which frees it by itself",
                KR_TEXT_OF(param));
        return;
    }
    kr_param_drop_grad(param);
    kr_param_unpack(param);
    if (!param->storage->weights) kr_memory_free(kr_float_memory(param->ctx), param->data, data_bytes(param));
    if (param->ctx->nrecorded) keep_header(param);
    else kr_memory_free(&param->ctx->memory, param, sizeof(kr_header));
}

/* A parameter that may be written; then kr_weights_end_write follows. */
static bool begin_write(kr_tensor *param, const char *op)
{
    if (!param || kr_ctx_failed(param->ctx) ||
        !kr_require(param->ctx, param->tape == NULL, KR_ERR_ARG,
                    "%s: the tensor %s is on a tape; only parameters are written", op, KR_TEXT_OF(param)) ||
        !kr_require(param->ctx, param->data || kr_count_of(param) == 0, KR_ERR_STATE,
                    "%s: the parameter %s has no values yet: its network is being created", op, KR_TEXT_OF(param)) ||
        !kr_weights_begin_write(param, op))
        return false;
    kr_wrote(param);
    return true;
}

static kr_status status_of(const kr_tensor *param)
{
    return param ? param->ctx->status : KR_ERR_ARG;
}

static void write_elements(kr_tensor *x, kr_dtype dtype, const void *data)
{
    kr_tensor from = *x;
    from.dtype = dtype;
    memcpy(&from.data, &data, sizeof data); /* read only: kr_tensor_take takes it as const */
    kr_tensor_take(x, &from);
}

kr_status kr_param_write(kr_tensor *param, kr_dtype dtype, const void *data, int64_t count)
{
    if (!begin_write(param, "param_write")) return status_of(param);
    kr_ctx *ctx = param->ctx;
    if (kr_require(ctx, kr_dtype_is_valid(dtype), KR_ERR_DTYPE, "param_write: %d is not a kr_dtype", (int)dtype) &&
        kr_require(ctx, count == kr_count_of(param), KR_ERR_SHAPE,
                   "param_write: %lld elements for a parameter %s of %lld", (long long)count, KR_TEXT_OF(param),
                   (long long)kr_count_of(param)) &&
        kr_require(ctx, data != NULL || count == 0, KR_ERR_ARG, "param_write: data is NULL"))
        write_elements(param, dtype, data);
    kr_weights_end_write(param);
    return ctx->status;
}

kr_status kr_tensor_write(kr_tensor *x, kr_dtype dtype, const void *data, int64_t count)
{
    if (!x || !x->tape) return kr_param_write(x, dtype, data, count);
    kr_ctx *ctx = x->ctx;
    const bool ok =
        kr_tape_ready(x->tape, "tensor_write") &&
        kr_require(ctx, kr_dtype_is_valid(dtype), KR_ERR_DTYPE, "tensor_write: %d is not a kr_dtype", (int)dtype) &&
        kr_require(ctx, count == kr_count_of(x), KR_ERR_SHAPE, "tensor_write: %lld elements for x %s of %lld",
                   (long long)count, KR_TEXT_OF(x), (long long)kr_count_of(x)) &&
        kr_require(ctx, data != NULL || count == 0, KR_ERR_ARG, "tensor_write: data is NULL") &&
        kr_require(ctx, kr_tensor_is_row_major(x), KR_ERR_ARG, "tensor_write: x %s is not contiguous", KR_TEXT_OF(x));
    if (!ok) return ctx->status;
    kr_wrote(x);
    write_elements(x, dtype, data);
    return ctx->status;
}

kr_status kr_param_fill(kr_tensor *param, double value)
{
    if (!begin_write(param, "param_fill")) return status_of(param);
    kr_assign_value(param->ctx, param, value);
    kr_weights_end_write(param);
    return status_of(param);
}

static void fill_random(kr_tensor *param, kr_random_kind kind, double a, double b)
{
    kr_ctx *ctx = param->ctx;
    kr_random_args args = { .n = kr_count_of(param),
                            .dtype = param->dtype,
                            .y = param->data,
                            .seed = ctx->seed,
                            .stream = ctx->stream++,
                            .normal = kind == KR_RANDOM_NORMAL,
                            .alpha = a,
                            .beta = b };
    KR_RUN(ctx, random, &args);
}

kr_status kr_param_random(kr_tensor *param, kr_random_kind kind, double a, double b)
{
    static const char *const ops[] = { "param_normal", "param_uniform" };
    const bool is_known = kind == KR_RANDOM_NORMAL || kind == KR_RANDOM_UNIFORM;
    if (!begin_write(param, is_known ? ops[kind] : "param_random")) return status_of(param);
    kr_ctx *ctx = param->ctx;
    if (kr_require(ctx, is_known, KR_ERR_ARG, "param_random: %d is not a kr_random_kind", (int)kind))
        fill_random(param, kind, a, b);
    kr_weights_end_write(param);
    return ctx->status;
}

/* In a checkpoint that is recomputed, fn writes to its tensors as it did at first. */
void kr_wrote(kr_tensor *x)
{
    if (!x->tape) kr_param_unpack(x);
    if (!x->tape || !x->tape->replayed) x->storage->written = ++x->ctx->nwrites;
}

/* ---- packed weights ---- */

static size_t packed_bytes(const kr_tensor *weight)
{
    return kr_dtype_span(weight->dtype, kr_panels_of(weight->dims[0]) * KR_PANEL * weight->dims[1]);
}

/* The panels of a weight [no ni] of 4 or 2 bytes an element; the last one was filled with zeros. */
static void fill_panels(const kr_tensor *weight)
{
    const int64_t no = weight->dims[0], ni = weight->dims[1];
    for (int64_t panel = 0; panel < kr_panels_of(no); panel++) {
        const int64_t first = panel * KR_PANEL, count = no - first < KR_PANEL ? no - first : KR_PANEL;
        for (int64_t i = 0; i < ni; i++) {
            const int64_t to = first * ni + i * KR_PANEL, from = first * ni + i;
            if (weight->dtype == KR_DTYPE_F32) {
                const float *w = (const float *)(const void *)weight->data;
                for (int64_t o = 0; o < count; o++) ((float *)weight->storage->packed)[to + o] = w[from + o * ni];
            } else {
                const uint16_t *w = (const uint16_t *)(const void *)weight->data;
                for (int64_t o = 0; o < count; o++) ((uint16_t *)weight->storage->packed)[to + o] = w[from + o * ni];
            }
        }
    }
}

static kr_memory *panel_memory(const kr_tensor *weight)
{
    return weight->storage->weights ? &weight->storage->weights->host : &weight->ctx->memory;
}

bool kr_param_pack(kr_tensor *weight)
{
    kr_storage *storage = weight->storage;
    if (weight->dtype == KR_DTYPE_F64 || storage->packed || kr_ctx_on_device(weight->ctx)) return true;
    storage->packed = kr_memory_alloc_zeroed(panel_memory(weight), packed_bytes(weight));
    if (!storage->packed)
        return kr_fail(weight->ctx, KR_ERR_NOMEM, "pack: no memory for a copy of a weight %s", KR_TEXT_OF(weight));
    fill_panels(weight);
    return true;
}

void kr_param_unpack(kr_tensor *weight)
{
    kr_storage *storage = weight->storage;
    if (storage->packed) kr_memory_free(panel_memory(weight), storage->packed, packed_bytes(weight));
    storage->packed = NULL;
}

void kr_zero_grad(kr_tensor *param)
{
    if (!param || param->tape || !param->grad) return;
    kr_zero_floats(param->ctx, param->grad->data, data_bytes(param));
    param->flags.grad_is_zero = true;
}

void kr_param_grad_is_zero(kr_tensor *param)
{
    param->flags.grad_is_zero = true;
}

void kr_param_freeze(kr_tensor *param, bool frozen)
{
    if (!param || param->tape) return;
    const bool thaws = !frozen && !param->flags.requires_grad;
    if (thaws && !kr_weights_begin_write(param, "param_freeze")) return;
    param->flags.requires_grad = !frozen;
    if (thaws) kr_weights_end_write(param);
}
