/* dropout.c - elements set to 0 at random.
 *
 *   x [..]    y = x m / (1 - p), m = 0 with probability p, else 1    g_x = g_y m / (1 - p)
 *
 * m is a function of seed, stream and element number; it is not saved: backward computes it again.
 */
#include "ops/ops_impl.h"

KR_DEFAULTS(kr_dropout_options) = { .size = sizeof(kr_dropout_options), .stream = KR_NEXT_STREAM };

/* The inputs of m. */
typedef struct dropout_mask {
    uint64_t seed, stream, first;
    double p;
} dropout_mask;

static bool drop(kr_tape *tape, const dropout_mask *d, const kr_tensor *x, kr_tensor *y)
{
    const double scale = 1 / (1 - d->p);
    kr_dropout_args args = { .n = kr_count_of(x),
                             .x = x->data,
                             .y = y->data,
                             .seed = d->seed,
                             .stream = d->stream,
                             .first = d->first,
                             .threshold = (uint32_t)(d->p * 0x1p32),
                             .scale = x->dtype == KR_DTYPE_F64 ? scale : (double)(float)scale };
    return KR_RUN(tape->ctx, dropout[kr_real_of(x->dtype)], &args);
}

static void dropout_backward(kr_back *back)
{
    kr_tape *tape = kr_back_tape(back);
    kr_tensor *g_y = kr_contiguous(tape, kr_back_grad(back, 0));
    kr_tensor *g_x = g_y ? kr_new(tape, g_y->dtype, kr_tensor_shape(g_y)) : NULL;
    if (g_x && drop(tape, kr_back_attrs(back), g_y, g_x)) kr_back_accumulate(back, 0, g_x);
}

static const kr_rule dropout_rule = { .name = "dropout", .backward = dropout_backward };

kr_tensor *kr_dropout(kr_tape *tape, kr_tensor *x, double p, const kr_dropout_options *options)
{
    const char *op = dropout_rule.name;
    kr_dropout_options o;
    kr_dtype result;
    if (!kr_bind_any(tape, op, x) || !KR_TAKE(tape->ctx, op, kr_dropout_options, options, &o) ||
        !kr_require(tape->ctx, p >= 0 && p < 1, KR_ERR_ARG, "%s: p = %g, but must be from 0 to below 1", op, p) ||
        !kr_require(tape->ctx, o.first >= 0, KR_ERR_ARG, "%s: first = %lld, but must not be negative", op,
                    (long long)o.first) ||
        !kr_require(tape->ctx, kr_dtype_is_float(x->dtype), KR_ERR_DTYPE, "%s: x %s is %s, but must be a float type",
                    op, KR_TEXT_OF(x), kr_dtype_name(x->dtype)))
        return NULL;
    if (p == 0) return x;
    if (!KR_REALS(tape, op, "x", &result, &x) || !(x = kr_contiguous(tape, x))) return NULL;
    kr_ctx *ctx = tape->ctx;
    const dropout_mask d = { .seed = ctx->seed,
                             .stream = o.stream == KR_NEXT_STREAM ? ctx->stream++ : o.stream,
                             .first = (uint64_t)o.first,
                             .p = p };
    kr_tensor *y = kr_new(tape, x->dtype, kr_tensor_shape(x));
    if (!y || !drop(tape, &d, x, y)) return NULL;
    return kr_store_as(tape, kr_recorded(tape, &dropout_rule, y, &d, sizeof d, KR_LIST(x)), result);
}
