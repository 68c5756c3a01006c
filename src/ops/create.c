/* create.c - tensors out of nothing, out of the caller's memory, out of the random stream. */
#include "ops/ops_impl.h"

kr_tensor *kr_full(kr_tape *tape, kr_dtype dtype, kr_shape shape, double value)
{
    kr_tensor *y = kr_new(tape, dtype, shape);
    return y && kr_assign_value(tape->ctx, y, value) ? y : NULL;
}

kr_tensor *kr_from_data(kr_tape *tape, kr_dtype dtype, kr_shape shape, const void *data)
{
    kr_tensor borrowed;
    if (!kr_describe_memory(tape, "from_data", dtype, &shape, data, &borrowed)) return NULL;
    kr_tensor *y = kr_new(tape, dtype, shape);
    return y && kr_tensor_take(y, &borrowed) ? y : NULL;
}

kr_tensor *kr_view_data(kr_tape *tape, kr_dtype dtype, kr_shape shape, const int64_t *strides, const void *data)
{
    return kr_borrow(tape, "view_data", dtype, &shape, strides, data);
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
