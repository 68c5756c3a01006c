/* unary.c - the elementwise functions of kernels/unary.def.
 *
 *   y = f(x);   backward: g_x = g_y f'(x), from x and y
 */
#include "ops/ops_impl.h"

typedef struct unary_op {
    kr_rule rule;
    bool (*forward)(kr_ctx *ctx, int real, kr_unary_args *args);
    bool (*backward)(kr_ctx *ctx, int real, kr_unary_bwd_args *args);
} unary_op;

typedef struct unary_attrs {
    const unary_op *op;
    double alpha, beta;
} unary_attrs;

static void unary_backward(kr_back *back)
{
    kr_tape *tape = kr_back_tape(back);
    const unary_attrs *attrs = kr_back_attrs(back);
    const kr_tensor *x = kr_back_in(back, 0), *y = kr_back_out(back, 0), *g_y = kr_back_grad(back, 0);
    const kr_shape shape = kr_tensor_shape(x);
    kr_tensor *g_x = kr_new(tape, x->dtype, shape);
    if (!g_x) return;
    kr_unary_bwd_args args = { .walk = kr_walk_over(&shape, 4, (const kr_tensor *[]){ g_x, x, y, g_y }),
                               .x = x->data,
                               .y = y->data,
                               .g_y = g_y->data,
                               .g_x = g_x->data,
                               .alpha = attrs->alpha,
                               .beta = attrs->beta };
    if (attrs->op->backward(tape->ctx, kr_real_of(x->dtype), &args)) kr_back_accumulate(back, 0, g_x);
}

#define KR_UNARY(fn)                                                                                                   \
    static bool fn##_forward(kr_ctx *ctx, int real, kr_unary_args *args)                                               \
    {                                                                                                                  \
        return KR_RUN(ctx, fn[real], args);                                                                            \
    }                                                                                                                  \
    static bool fn##_backward(kr_ctx *ctx, int real, kr_unary_bwd_args *args)                                          \
    {                                                                                                                  \
        return KR_RUN(ctx, fn##_bwd[real], args);                                                                      \
    }                                                                                                                  \
    static const unary_op fn##_op = { { .name = #fn, .backward = unary_backward }, fn##_forward, fn##_backward };
#include "kernels/unary.def"
#undef KR_UNARY

/* scale by other names */
static const unary_op affine_op = { { .name = "affine", .backward = unary_backward }, scale_forward, scale_backward };
static const unary_op neg_op = { { .name = "neg", .backward = unary_backward }, scale_forward, scale_backward };

static kr_tensor *unary(kr_tape *tape, const unary_op *op, kr_tensor *x, double alpha, double beta)
{
    kr_dtype result;
    if (!kr_bind_any(tape, op->rule.name, x) || !KR_REALS(tape, op->rule.name, "x", &result, &x)) return NULL;
    const kr_shape shape = kr_tensor_shape(x);
    kr_tensor *y = kr_new(tape, x->dtype, shape);
    if (!y) return NULL;
    kr_unary_args args = { .walk = kr_walk_over(&shape, 2, (const kr_tensor *[]){ y, x }),
                           .x = x->data,
                           .y = y->data,
                           .alpha = alpha,
                           .beta = beta };
    if (!op->forward(tape->ctx, kr_real_of(x->dtype), &args)) return NULL;
    const unary_attrs attrs = { op, alpha, beta };
    return kr_store_as(tape, kr_recorded(tape, &op->rule, y, &attrs, sizeof attrs, KR_LIST(x)), result);
}

/* In order of kr_unary_kind. */
static const unary_op *const ops[] = {
    [KR_UNARY_NEG] = &neg_op,
    [KR_UNARY_EXP] = &exp_op,
    [KR_UNARY_LOG] = &log_op,
    [KR_UNARY_SQRT] = &sqrt_op,
    [KR_UNARY_RSQRT] = &rsqrt_op,
    [KR_UNARY_SIN] = &sin_op,
    [KR_UNARY_COS] = &cos_op,
    [KR_UNARY_TANH] = &tanh_op,
    [KR_UNARY_SIGMOID] = &sigmoid_op,
    [KR_UNARY_SILU] = &silu_op,
    [KR_UNARY_SOFTPLUS] = &softplus_op,
    [KR_UNARY_LOG_SIGMOID] = &log_sigmoid_op,
    [KR_UNARY_ABS] = &abs_op,
    [KR_UNARY_RELU] = &relu_op,
    [KR_UNARY_ERF] = &erf_op,
    [KR_UNARY_GELU] = &gelu_op,
    [KR_UNARY_GELU_TANH] = &gelu_tanh_op,
    [KR_UNARY_SCALE] = &scale_op,
    [KR_UNARY_AFFINE] = &affine_op,
    [KR_UNARY_CLAMP] = &clamp_op,
    [KR_UNARY_POW_SCALAR] = &pow_scalar_op,
};

/* The parameters that the kernels see: those that a function does not have are 0. */
kr_tensor *kr_unary(kr_tape *tape, kr_unary_kind kind, kr_tensor *x, double alpha, double beta)
{
    if ((size_t)kind >= sizeof ops / sizeof *ops) {
        if (tape) kr_fail(tape->ctx, KR_ERR_ARG, "unary: %d is not a kr_unary_kind", (int)kind);
        return NULL;
    }
    const bool has_two = kind == KR_UNARY_AFFINE || kind == KR_UNARY_CLAMP;
    const bool has_one = has_two || kind == KR_UNARY_SCALE || kind == KR_UNARY_POW_SCALAR;
    if (kind == KR_UNARY_CLAMP && tape &&
        !kr_require(tape->ctx, alpha <= beta, KR_ERR_ARG, "clamp: low = %g is above high = %g", alpha, beta))
        return NULL;
    return unary(tape, ops[kind], x, kind == KR_UNARY_NEG ? -1 : has_one ? alpha : 0, has_two ? beta : 0);
}
