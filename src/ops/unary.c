/* unary.c - the elementwise functions of kernels/unary.def.
 *
 *   y = f(x);   backward: g_x = g_y f'(x), from x and y
 */
#include "ops/ops.h"

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

kr_tensor *kr_affine(kr_tape *tape, kr_tensor *x, double alpha, double beta)
{
    return unary(tape, &affine_op, x, alpha, beta);
}

kr_tensor *kr_scale(kr_tape *tape, kr_tensor *x, double alpha)
{
    return unary(tape, &scale_op, x, alpha, 0);
}

kr_tensor *kr_neg(kr_tape *tape, kr_tensor *x)
{
    return unary(tape, &neg_op, x, -1, 0);
}

kr_tensor *kr_clamp(kr_tape *tape, kr_tensor *x, double low, double high)
{
    if (tape && !kr_require(tape->ctx, low <= high, KR_ERR_ARG, "clamp: low = %g is above high = %g", low, high))
        return NULL;
    return unary(tape, &clamp_op, x, low, high);
}

kr_tensor *kr_pow_scalar(kr_tape *tape, kr_tensor *x, double exponent)
{
    return unary(tape, &pow_scalar_op, x, exponent, 0);
}

#define KR_PLAIN_UNARY(fn)                                                                                             \
    kr_tensor *kr_##fn(kr_tape *tape, kr_tensor *x)                                                                    \
    {                                                                                                                  \
        return unary(tape, &fn##_op, x, 0, 0);                                                                         \
    }
KR_PLAIN_UNARY(exp)
KR_PLAIN_UNARY(log)
KR_PLAIN_UNARY(sqrt)
KR_PLAIN_UNARY(rsqrt)
KR_PLAIN_UNARY(sin)
KR_PLAIN_UNARY(cos)
KR_PLAIN_UNARY(tanh)
KR_PLAIN_UNARY(sigmoid)
KR_PLAIN_UNARY(silu)
KR_PLAIN_UNARY(softplus)
KR_PLAIN_UNARY(log_sigmoid)
KR_PLAIN_UNARY(abs)
KR_PLAIN_UNARY(relu)
KR_PLAIN_UNARY(erf)
KR_PLAIN_UNARY(gelu)
KR_PLAIN_UNARY(gelu_tanh)
