/* ops_math.h - arithmetic on tensors: elementwise, reductions, scans, products.
 *
 *   kr_tensor *p_bw = kr_softmax(tape, logits_bw, -1);
 *   kr_tensor *y_bo = kr_matmul(tape, x_bi, kr_transpose(tape, w_oi));
 *
 * Every op returns a new tensor on the tape, has a gradient for each float operand, and takes views of any strides.
 * Operand types must agree; bf16 and f16 are computed in f32 and rounded once, and next to an f32 operand they are
 * widened. Axes < 0 count from the end. NULL operands after an error give NULL.
 */
#ifndef KRAIT_OPS_MATH_H
#define KRAIT_OPS_MATH_H

#include <krait/tape.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- two operands, broadcast: axes aligned at the end, size 1 repeats ---- */

/* Which function of two operands. Values are fixed; new ones are appended. */
typedef enum kr_binary_kind {
    KR_BINARY_ADD = 0,
    KR_BINARY_SUB = 1,
    KR_BINARY_MUL = 2,
    KR_BINARY_DIV = 3,
    KR_BINARY_MAXIMUM = 4, /* equal elements share the gradient; a NaN operand gives NaN */
    KR_BINARY_MINIMUM = 5, /* the same */
    KR_BINARY_POW = 6      /* see kr_pow */
} kr_binary_kind;

/* a and b under the function. kr_add(tape, a, b) is kr_binary(tape, KR_BINARY_ADD, a, b), and so on. */
KR_API kr_tensor *kr_binary(kr_tape *tape, kr_binary_kind kind, kr_tensor *a, kr_tensor *b);
KR_API_INLINE kr_tensor *kr_add(kr_tape *tape, kr_tensor *a, kr_tensor *b)
{
    return kr_binary(tape, KR_BINARY_ADD, a, b);
}
KR_API_INLINE kr_tensor *kr_sub(kr_tape *tape, kr_tensor *a, kr_tensor *b)
{
    return kr_binary(tape, KR_BINARY_SUB, a, b);
}
KR_API_INLINE kr_tensor *kr_mul(kr_tape *tape, kr_tensor *a, kr_tensor *b)
{
    return kr_binary(tape, KR_BINARY_MUL, a, b);
}
KR_API_INLINE kr_tensor *kr_div(kr_tape *tape, kr_tensor *a, kr_tensor *b)
{
    return kr_binary(tape, KR_BINARY_DIV, a, b);
}
KR_API_INLINE kr_tensor *kr_maximum(kr_tape *tape, kr_tensor *a, kr_tensor *b)
{
    return kr_binary(tape, KR_BINARY_MAXIMUM, a, b);
}
KR_API_INLINE kr_tensor *kr_minimum(kr_tape *tape, kr_tensor *a, kr_tensor *b)
{
    return kr_binary(tape, KR_BINARY_MINIMUM, a, b);
}

/* a^b, with the special values of C's pow: a^0 and 1^b are 1, a negative a with a b that is no integer gives NaN.
 * Gradients: b a^(b-1), which is 0 where b is 0; a^b ln a, which is 0 where a is 0 and b is not negative, and NaN where a is
 * negative. For one exponent kr_pow_scalar is faster, and leaves negative elements a gradient. */
KR_API_INLINE kr_tensor *kr_pow(kr_tape *tape, kr_tensor *a, kr_tensor *b)
{
    return kr_binary(tape, KR_BINARY_POW, a, b);
}

/* Which comparison. Values are fixed. */
typedef enum kr_comparison {
    KR_COMPARE_EQ = 0,
    KR_COMPARE_NE = 1,
    KR_COMPARE_LT = 2,
    KR_COMPARE_LE = 3,
    KR_COMPARE_GT = 4,
    KR_COMPARE_GE = 5
} kr_comparison;

/* Comparisons, broadcast: an i32 mask, 1 where true and 0 elsewhere, for kr_where, kr_mask_fill and the masks of losses.
 * Both operands are floats, or both integers. With NaN kr_ne is true and the others are false. They have no gradient. */
KR_API kr_tensor *kr_compare(kr_tape *tape, kr_comparison comparison, kr_tensor *a, kr_tensor *b);
KR_API_INLINE kr_tensor *kr_eq(kr_tape *tape, kr_tensor *a, kr_tensor *b)
{
    return kr_compare(tape, KR_COMPARE_EQ, a, b);
}
KR_API_INLINE kr_tensor *kr_ne(kr_tape *tape, kr_tensor *a, kr_tensor *b)
{
    return kr_compare(tape, KR_COMPARE_NE, a, b);
}
KR_API_INLINE kr_tensor *kr_lt(kr_tape *tape, kr_tensor *a, kr_tensor *b)
{
    return kr_compare(tape, KR_COMPARE_LT, a, b);
}
KR_API_INLINE kr_tensor *kr_le(kr_tape *tape, kr_tensor *a, kr_tensor *b)
{
    return kr_compare(tape, KR_COMPARE_LE, a, b);
}
KR_API_INLINE kr_tensor *kr_gt(kr_tape *tape, kr_tensor *a, kr_tensor *b)
{
    return kr_compare(tape, KR_COMPARE_GT, a, b);
}
KR_API_INLINE kr_tensor *kr_ge(kr_tape *tape, kr_tensor *a, kr_tensor *b)
{
    return kr_compare(tape, KR_COMPARE_GE, a, b);
}

/* mask ? a : b, all broadcast; mask is i32 or i64, true when not 0. */
KR_API kr_tensor *kr_where(kr_tape *tape, kr_tensor *mask, kr_tensor *a, kr_tensor *b);

/* value where mask is true, x elsewhere. */
KR_API kr_tensor *kr_mask_fill(kr_tape *tape, kr_tensor *x, kr_tensor *mask, double value);

/* ---- one operand ---- */

/* Which function of one operand. Values are fixed; new ones are appended. */
typedef enum kr_unary_kind {
    KR_UNARY_NEG = 0,          /* -x */
    KR_UNARY_EXP = 1,          /* e^x */
    KR_UNARY_LOG = 2,          /* ln x */
    KR_UNARY_SQRT = 3,         /* x^1/2 */
    KR_UNARY_RSQRT = 4,        /* x^-1/2 */
    KR_UNARY_SIN = 5,          /* sin x */
    KR_UNARY_COS = 6,          /* cos x */
    KR_UNARY_TANH = 7,         /* tanh x */
    KR_UNARY_SIGMOID = 8,      /* 1 / (1 + e^-x) */
    KR_UNARY_SILU = 9,         /* x sigmoid(x) */
    KR_UNARY_SOFTPLUS = 10,    /* x above 20, else log(1 + e^x) */
    KR_UNARY_LOG_SIGMOID = 11, /* -softplus(-x) */
    KR_UNARY_ABS = 12,         /* |x|; the gradient is 0 at 0 */
    KR_UNARY_RELU = 13,        /* max(x, 0); the gradient is 0 at 0 */
    KR_UNARY_ERF = 14,         /* 2 pi^-1/2 times the integral of e^-t^2 from 0 to x */
    KR_UNARY_GELU = 15,        /* x/2 (1 + erf(x / sqrt 2)) */
    KR_UNARY_GELU_TANH = 16,   /* x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), as GPT-2 has it */
    KR_UNARY_SCALE = 17,       /* alpha x */
    KR_UNARY_AFFINE = 18,      /* alpha x + beta */
    KR_UNARY_CLAMP = 19,       /* min(max(x, alpha), beta) */
    KR_UNARY_POW_SCALAR = 20   /* x^alpha */
} kr_unary_kind;

/* The function of each element. alpha and beta are parameters of the last four; the others ignore them. kr_exp(tape, x) is
 * kr_unary(tape, KR_UNARY_EXP, x, 0, 0), and so on. */
KR_API kr_tensor *kr_unary(kr_tape *tape, kr_unary_kind kind, kr_tensor *x, double alpha, double beta);
KR_API_INLINE kr_tensor *kr_scale(kr_tape *tape, kr_tensor *x, double alpha)
{
    return kr_unary(tape, KR_UNARY_SCALE, x, alpha, 0);
}
KR_API_INLINE kr_tensor *kr_affine(kr_tape *tape, kr_tensor *x, double alpha, double beta)
{
    return kr_unary(tape, KR_UNARY_AFFINE, x, alpha, beta);
}
KR_API_INLINE kr_tensor *kr_neg(kr_tape *tape, kr_tensor *x)
{
    return kr_unary(tape, KR_UNARY_NEG, x, 0, 0);
}
KR_API_INLINE kr_tensor *kr_exp(kr_tape *tape, kr_tensor *x)
{
    return kr_unary(tape, KR_UNARY_EXP, x, 0, 0);
}
KR_API_INLINE kr_tensor *kr_log(kr_tape *tape, kr_tensor *x)
{
    return kr_unary(tape, KR_UNARY_LOG, x, 0, 0);
}
KR_API_INLINE kr_tensor *kr_sqrt(kr_tape *tape, kr_tensor *x)
{
    return kr_unary(tape, KR_UNARY_SQRT, x, 0, 0);
}
KR_API_INLINE kr_tensor *kr_rsqrt(kr_tape *tape, kr_tensor *x)
{
    return kr_unary(tape, KR_UNARY_RSQRT, x, 0, 0);
}
KR_API_INLINE kr_tensor *kr_sin(kr_tape *tape, kr_tensor *x)
{
    return kr_unary(tape, KR_UNARY_SIN, x, 0, 0);
}
KR_API_INLINE kr_tensor *kr_cos(kr_tape *tape, kr_tensor *x)
{
    return kr_unary(tape, KR_UNARY_COS, x, 0, 0);
}
KR_API_INLINE kr_tensor *kr_tanh(kr_tape *tape, kr_tensor *x)
{
    return kr_unary(tape, KR_UNARY_TANH, x, 0, 0);
}
KR_API_INLINE kr_tensor *kr_sigmoid(kr_tape *tape, kr_tensor *x)
{
    return kr_unary(tape, KR_UNARY_SIGMOID, x, 0, 0);
}
KR_API_INLINE kr_tensor *kr_silu(kr_tape *tape, kr_tensor *x)
{
    return kr_unary(tape, KR_UNARY_SILU, x, 0, 0);
}
KR_API_INLINE kr_tensor *kr_softplus(kr_tape *tape, kr_tensor *x)
{
    return kr_unary(tape, KR_UNARY_SOFTPLUS, x, 0, 0);
}
KR_API_INLINE kr_tensor *kr_log_sigmoid(kr_tape *tape, kr_tensor *x)
{
    return kr_unary(tape, KR_UNARY_LOG_SIGMOID, x, 0, 0);
}
KR_API_INLINE kr_tensor *kr_abs(kr_tape *tape, kr_tensor *x)
{
    return kr_unary(tape, KR_UNARY_ABS, x, 0, 0);
}
KR_API_INLINE kr_tensor *kr_relu(kr_tape *tape, kr_tensor *x)
{
    return kr_unary(tape, KR_UNARY_RELU, x, 0, 0);
}
KR_API_INLINE kr_tensor *kr_erf(kr_tape *tape, kr_tensor *x)
{
    return kr_unary(tape, KR_UNARY_ERF, x, 0, 0);
}

/* GELU: exact, and by tanh. */
KR_API_INLINE kr_tensor *kr_gelu(kr_tape *tape, kr_tensor *x)
{
    return kr_unary(tape, KR_UNARY_GELU, x, 0, 0);
}
KR_API_INLINE kr_tensor *kr_gelu_tanh(kr_tape *tape, kr_tensor *x)
{
    return kr_unary(tape, KR_UNARY_GELU_TANH, x, 0, 0);
}

/* x^exponent, as kr_pow; the exponent is rounded to the type that x is computed in. */
KR_API_INLINE kr_tensor *kr_pow_scalar(kr_tape *tape, kr_tensor *x, double exponent)
{
    return kr_unary(tape, KR_UNARY_POW_SCALAR, x, exponent, 0);
}

/* min(max(x, low), high); the gradient is 1 on the limits and between them, 0 outside. */
KR_API_INLINE kr_tensor *kr_clamp(kr_tape *tape, kr_tensor *x, double low, double high)
{
    return kr_unary(tape, KR_UNARY_CLAMP, x, low, high);
}

/* ---- reductions ---- */

/* Which axes: KR_AXES(0, -1), or KR_ALL_AXES. */
typedef struct kr_axes {
    int count; /* < 0: all */
    int axis[KR_MAX_RANK];
} kr_axes;
#ifdef __cplusplus
} /* extern "C" */
template <typename... A> inline kr_axes kr_axes_of(A... a)
{
    static_assert(sizeof...(A) <= KR_MAX_RANK, "a tensor has at most KR_MAX_RANK axes");
    return kr_axes{ (int)sizeof...(A), { (int)a... } };
}
inline kr_axes kr_axes_all()
{
    return kr_axes{ -1, { 0 } };
}
extern "C" {
#define KR_AXES(...) kr_axes_of(__VA_ARGS__)
#define KR_ALL_AXES kr_axes_all()
#else
#define KR_AXES(...) ((kr_axes){ (int)(sizeof((int[]){ __VA_ARGS__ }) / sizeof(int)), { __VA_ARGS__ } })
#define KR_ALL_AXES ((kr_axes){ -1, { 0 } })
#endif

/* Which reduction. Values are fixed; new ones are appended. */
typedef enum kr_reduce_kind { KR_REDUCE_SUM = 0, KR_REDUCE_MEAN = 1, KR_REDUCE_MAX = 2 } kr_reduce_kind;

/* Over the axes, which are dropped, or kept with size 1. A maximum's gradient goes to the first of equal elements. */
KR_API kr_tensor *kr_reduce(kr_tape *tape, kr_reduce_kind kind, kr_tensor *x, kr_axes axes, bool keep);
KR_API_INLINE kr_tensor *kr_sum(kr_tape *tape, kr_tensor *x, kr_axes axes, bool keep)
{
    return kr_reduce(tape, KR_REDUCE_SUM, x, axes, keep);
}
KR_API_INLINE kr_tensor *kr_mean(kr_tape *tape, kr_tensor *x, kr_axes axes, bool keep)
{
    return kr_reduce(tape, KR_REDUCE_MEAN, x, axes, keep);
}
KR_API_INLINE kr_tensor *kr_max(kr_tape *tape, kr_tensor *x, kr_axes axes, bool keep)
{
    return kr_reduce(tape, KR_REDUCE_MAX, x, axes, keep);
}

/* ---- along one axis ---- */

/* The place of the largest along the axis, which is dropped, or kept with size 1: i64, the first of equals, or of the
 * first NaN. It has no gradient. */
KR_API kr_tensor *kr_argmax(kr_tape *tape, kr_tensor *x, int axis, bool keep);

/* y_t = x_0 + ... + x_t; reverse: y_t = x_t + ... + x_last. */
KR_API kr_tensor *kr_cumulative_sum(kr_tape *tape, kr_tensor *x, int axis, bool reverse);
KR_API_INLINE kr_tensor *kr_cumsum(kr_tape *tape, kr_tensor *x, int axis)
{
    return kr_cumulative_sum(tape, x, axis, false);
}
KR_API_INLINE kr_tensor *kr_cumsum_reverse(kr_tape *tape, kr_tensor *x, int axis)
{
    return kr_cumulative_sum(tape, x, axis, true);
}

/* x [.. l] -> y [.. l l]: y[t, u] = x_{u+1} + ... + x_t for t >= u (so 0 on the diagonal), -inf above it. */
KR_API kr_tensor *kr_segsum(kr_tape *tape, kr_tensor *x);

/* e^x / sum(e^x) along an axis, and its logarithm; both subtract the largest element first. */
KR_API kr_tensor *kr_softmax_along(kr_tape *tape, kr_tensor *x, int axis, bool logarithm);
KR_API_INLINE kr_tensor *kr_softmax(kr_tape *tape, kr_tensor *x, int axis)
{
    return kr_softmax_along(tape, x, axis, false);
}
KR_API_INLINE kr_tensor *kr_log_softmax(kr_tape *tape, kr_tensor *x, int axis)
{
    return kr_softmax_along(tape, x, axis, true);
}

/* ---- products ---- */

/* a [.. m k], b [.. k n] -> [.. m n]; the leading axes broadcast. Transposed operands are views and cost nothing. */
KR_API kr_tensor *kr_matmul(kr_tape *tape, kr_tensor *a, kr_tensor *b);

/* a b + bias + c in one pass; bias [n] may be NULL, and c, which broadcasts to [.. m n], too. */
KR_API kr_tensor *kr_matmul_add(kr_tape *tape, kr_tensor *a, kr_tensor *b, kr_tensor *bias, kr_tensor *c);

/* a [.. m], b [.. n] -> [.. m n]. */
KR_API kr_tensor *kr_outer(kr_tape *tape, kr_tensor *a, kr_tensor *b);

#ifdef __cplusplus
}
#endif
#endif
