/* create.c - tensors out of nothing, out of the caller's memory, out of the random stream. */
#include "ops/ops_impl.h"

#include <string.h>

kr_tensor *kr_full(kr_tape *tape, kr_dtype dtype, kr_shape shape, double value)
{
    kr_tensor *y = kr_new(tape, dtype, shape);
    return y && kr_assign_value(tape->ctx, y, value) ? y : NULL;
}

/* A header for the caller's memory, to read from. */
static bool borrow(kr_tape *tape, const char *op, kr_dtype dtype, const kr_shape *shape, const void *data, kr_tensor *x)
{
    if (!kr_tape_ready(tape, op)) return false;
    const int64_t count = kr_shape_count(shape);
    if (!kr_require(tape->ctx, kr_dtype_is_valid(dtype), KR_ERR_DTYPE, "%s: %d is not a kr_dtype", op, (int)dtype) ||
        !kr_require(tape->ctx, count >= 0, KR_ERR_SHAPE,
                    "%s: invalid shape: rank %d must be from 0 to %d, and sizes not negative and addressable", op,
                    shape->rank, KR_MAX_RANK) ||
        !kr_require(tape->ctx, data != NULL || count == 0, KR_ERR_ARG, "%s: data is NULL, but the shape is %s", op,
                    KR_TEXT_OF_SHAPE(shape)))
        return false;
    *x = (kr_tensor){ .ctx = tape->ctx, .tape = tape };
    kr_tensor_layout(x, dtype, shape);
    memcpy(&x->data, &data, sizeof data); /* tensors on a tape are never written, so const holds */
    return true;
}

kr_tensor *kr_from_data(kr_tape *tape, kr_dtype dtype, kr_shape shape, const void *data)
{
    kr_tensor borrowed;
    if (!borrow(tape, "from_data", dtype, &shape, data, &borrowed)) return NULL;
    kr_tensor *y = kr_new(tape, dtype, shape);
    return y && kr_tensor_take(y, &borrowed) ? y : NULL;
}

kr_tensor *kr_view_data(kr_tape *tape, kr_dtype dtype, kr_shape shape, const int64_t *strides, const void *data)
{
    kr_tensor borrowed;
    if (!borrow(tape, "view_data", dtype, &shape, data, &borrowed)) return NULL;
    if (kr_ctx_on_device(tape->ctx)) {
        kr_tensor *y = kr_new(tape, dtype, shape); /* the device does not see the caller's memory */
        if (strides) memcpy(borrowed.strides, strides, (size_t)shape.rank * sizeof *strides);
        return y && kr_tensor_take(y, &borrowed) ? y : NULL;
    }
    return kr_view_of(tape, &borrowed, &shape, strides, 0);
}

kr_tensor *kr_random(kr_tape *tape, kr_dtype dtype, kr_shape shape, kr_random_kind kind, double a, double b)
{
    const bool is_known = kind == KR_RANDOM_NORMAL || kind == KR_RANDOM_UNIFORM;
    const char *op = !is_known ? "random" : kind == KR_RANDOM_NORMAL ? "randn" : "rand";
    if (!kr_tape_ready(tape, op)) return NULL;
    if (!kr_require(tape->ctx, is_known, KR_ERR_ARG, "random: %d is not a kr_random_kind", (int)kind) ||
        !kr_require(tape->ctx, kr_dtype_is_float(dtype), KR_ERR_DTYPE,
                    "%s: type %s, but samples are f32, f64, bf16 or f16", op, kr_dtype_name(dtype)))
        return NULL;
    kr_tensor *y = kr_new(tape, dtype, shape);
    if (!y) return NULL;
    kr_ctx *ctx = tape->ctx;
    kr_random_args args = { .n = kr_count_of(y),
                            .dtype = dtype,
                            .y = y->data,
                            .seed = ctx->seed,
                            .stream = ctx->stream++,
                            .normal = kind == KR_RANDOM_NORMAL,
                            .alpha = a,
                            .beta = b };
    return KR_RUN(ctx, random, &args) ? y : NULL;
}
