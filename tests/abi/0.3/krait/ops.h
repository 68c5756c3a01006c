/* ops.h - ops on tensors: arithmetic, shapes, parts of a block, losses, gradient checks.
 *
 *   kr_tensor *p_bw = kr_softmax(tape, logits_bw, -1);
 *   kr_tensor *y_bo = kr_matmul(tape, x_bi, kr_transpose(tape, w_oi));
 *
 * Every op returns a new tensor on the tape, has a gradient for each float operand, and takes views of any strides.
 * bf16 and f16 are computed in f32 and rounded once; together with an f32 operand the result is f32. f64 mixes with no
 * other type. Axes < 0 count from the end. NULL operands after an error give NULL.
 *
 * Sections: Arithmetic, shapes, parts of a block, losses, checking gradients. */
#ifndef KRAIT_OPS_H
#define KRAIT_OPS_H

#include <krait/tape.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ==== Arithmetic ==== */

/* ---- binary ops, broadcast: axes are aligned at the end, size 1 repeats ---- */

/* Binary functions. Values are fixed; new ones are appended. */
typedef enum kr_binary_kind {
    KR_BINARY_ADD = 0,
    KR_BINARY_SUB = 1,
    KR_BINARY_MUL = 2,
    KR_BINARY_DIV = 3,
    KR_BINARY_MAXIMUM = 4, /* equal elements share the gradient; NaN operands give NaN */
    KR_BINARY_MINIMUM = 5, /* the same */
    KR_BINARY_POW = 6      /* see kr_pow */
} kr_binary_kind;

/* Applies a binary function. kr_add(tape, a, b) is kr_binary(tape, KR_BINARY_ADD, a, b), and so on. */
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

/* a^b, with the special values of C's pow: a^0 and 1^b are 1; a negative a with a non-integer b gives NaN. Gradients: b
 * a^(b-1), which is 0 where b is 0; a^b ln a, which is 0 where a is 0 and b >= 0, and NaN where a is negative. For a
 * constant exponent kr_pow_scalar is faster, and negative elements have a gradient. */
KR_API_INLINE kr_tensor *kr_pow(kr_tape *tape, kr_tensor *a, kr_tensor *b)
{
    return kr_binary(tape, KR_BINARY_POW, a, b);
}

/* Comparisons. Values are fixed. */
typedef enum kr_compare_kind {
    KR_COMPARE_EQ = 0,
    KR_COMPARE_NE = 1,
    KR_COMPARE_LT = 2,
    KR_COMPARE_LE = 3,
    KR_COMPARE_GT = 4,
    KR_COMPARE_GE = 5
} kr_compare_kind;

/* Compares with broadcast: an i32 mask, 1 where true and 0 elsewhere, for kr_where, kr_mask_fill and the masks of
 * losses. Both operands are floats, or both integers. With NaN kr_ne is true and the others are false. No gradient. */
KR_API kr_tensor *kr_compare(kr_tape *tape, kr_compare_kind kind, kr_tensor *a, kr_tensor *b);
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

/* mask ? a : b, all broadcast; mask is i32 or i64, true if nonzero. */
KR_API kr_tensor *kr_where(kr_tape *tape, kr_tensor *mask, kr_tensor *a, kr_tensor *b);

/* value where mask is true, x elsewhere. */
KR_API kr_tensor *kr_mask_fill(kr_tape *tape, kr_tensor *x, kr_tensor *mask, double value);

/* ---- unary ops ---- */

/* Unary functions. Values are fixed; new ones are appended. */
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
    KR_UNARY_SOFTPLUS = 10,    /* x for x > 20, otherwise log(1 + e^x) */
    KR_UNARY_LOG_SIGMOID = 11, /* -softplus(-x) */
    KR_UNARY_ABS = 12,         /* |x|; the gradient is 0 at 0 */
    KR_UNARY_RELU = 13,        /* max(x, 0); the gradient is 0 at 0 */
    KR_UNARY_ERF = 14,         /* 2 pi^-1/2 times the integral of e^-t^2 from 0 to x */
    KR_UNARY_GELU = 15,        /* x/2 (1 + erf(x / sqrt 2)) */
    KR_UNARY_GELU_TANH = 16,   /* x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), as in GPT-2 */
    KR_UNARY_SCALE = 17,       /* alpha x */
    KR_UNARY_AFFINE = 18,      /* alpha x + beta */
    KR_UNARY_CLAMP = 19,       /* min(max(x, alpha), beta) */
    KR_UNARY_POW_SCALAR = 20   /* x^alpha */
} kr_unary_kind;

/* Applies a unary function to each element. alpha and beta are parameters of the last four; the others ignore them.
 * kr_exp(tape, x) is kr_unary(tape, KR_UNARY_EXP, x, 0, 0), and so on. */
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

/* GELU: exact, and the tanh approximation. */
KR_API_INLINE kr_tensor *kr_gelu(kr_tape *tape, kr_tensor *x)
{
    return kr_unary(tape, KR_UNARY_GELU, x, 0, 0);
}
KR_API_INLINE kr_tensor *kr_gelu_tanh(kr_tape *tape, kr_tensor *x)
{
    return kr_unary(tape, KR_UNARY_GELU_TANH, x, 0, 0);
}

/* x^exponent, as kr_pow; the exponent is rounded to the compute type of x. */
KR_API_INLINE kr_tensor *kr_pow_scalar(kr_tape *tape, kr_tensor *x, double exponent)
{
    return kr_unary(tape, KR_UNARY_POW_SCALAR, x, exponent, 0);
}

/* min(max(x, low), high); the gradient is 1 within the limits, including them, and 0 outside. */
KR_API_INLINE kr_tensor *kr_clamp(kr_tape *tape, kr_tensor *x, double low, double high)
{
    return kr_unary(tape, KR_UNARY_CLAMP, x, low, high);
}

/* ---- reductions ---- */

/* A list of axes: KR_AXES(0, -1), or KR_ALL_AXES. */
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

/* Reductions. Values are fixed; new ones are appended. */
typedef enum kr_reduce_kind { KR_REDUCE_SUM = 0, KR_REDUCE_MEAN = 1, KR_REDUCE_MAX = 2 } kr_reduce_kind;

/* Reduces over the axes, which are dropped, or kept with size 1. The gradient of a maximum goes to the first of equal
 * elements. */
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

/* Index of the maximum along an axis, which is dropped, or kept with size 1: i64, the first of equal elements; the
 * first NaN if there is one. No gradient. */
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

/* x [.. l] -> y [.. l l]: y[t, u] = x_{u+1} + ... + x_t for t >= u (0 on the diagonal), -inf above the diagonal. */
KR_API kr_tensor *kr_segsum(kr_tape *tape, kr_tensor *x);

/* Softmax e^x / sum(e^x) along an axis, and its logarithm. Both subtract the maximum first. */
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

/* a [.. m k], b [.. k n] -> a b + bias + c [.. m n] in one pass; the leading axes of a and b broadcast. bias [n] and c,
 * which broadcasts to [.. m n], may be NULL. Transposed operands are views without a copy. */
KR_API kr_tensor *kr_matmul_add(kr_tape *tape, kr_tensor *a, kr_tensor *b, kr_tensor *bias, kr_tensor *c);
KR_API_INLINE kr_tensor *kr_matmul(kr_tape *tape, kr_tensor *a, kr_tensor *b)
{
    return kr_matmul_add(tape, a, b, 0, 0);
}

/* a [.. m], b [.. n] -> [.. m n]. */
KR_API kr_tensor *kr_outer(kr_tape *tape, kr_tensor *a, kr_tensor *b);

/* ==== Shapes ====
 *
 * The same elements in another shape, order or type.
 *
 *   kr_tensor *x_bshp = kr_reshape(tape, x_bsi, KR_SHAPE(2, 64, 8, -1));
 *   kr_tensor *x_bhsp = kr_permute(tape, x_bshp, KR_AXES(0, 2, 1, 3));
 *
 * Views (no copy): permute, transpose, slice, split, expand, flip, and reshape where strides allow. All element types
 * are supported (gather and embedding: floats by integer ids); float operands have gradients. */

/* One size may be -1 and is inferred. */
KR_API kr_tensor *kr_reshape(kr_tape *tape, kr_tensor *x, kr_shape shape);

/* Axis i of the result is axis order[i] of x. */
KR_API kr_tensor *kr_permute(kr_tape *tape, kr_tensor *x, kr_axes order);

/* Swaps the last two axes. */
KR_API kr_tensor *kr_transpose(kr_tape *tape, kr_tensor *x);

/* Elements from .. to - 1 of an axis; negative positions count from the end. */
KR_API kr_tensor *kr_slice(kr_tape *tape, kr_tensor *x, int axis, int64_t from, int64_t to);

/* Splits an axis into `count` parts of the given sizes, which must add up to it. After an error parts[0..count) are
 * NULL. */
KR_API kr_status kr_split(kr_tape *tape, kr_tensor *x, int axis, int count, const int64_t *sizes, kr_tensor **parts);

/* Concatenates along an axis; all other sizes must agree. */
KR_API kr_tensor *kr_concat(kr_tape *tape, int axis, int count, kr_tensor *const *x);

/* Adds `before` and `after` elements with `value` to an axis. */
KR_API kr_tensor *kr_pad(kr_tape *tape, kr_tensor *x, int axis, int64_t before, int64_t after, double value);

/* Repeats axes of size 1 and adds leading axes to reach the shape. */
KR_API kr_tensor *kr_expand(kr_tape *tape, kr_tensor *x, kr_shape shape);

/* Reverses an axis. */
KR_API kr_tensor *kr_flip(kr_tape *tape, kr_tensor *x, int axis);

/* x itself if it is contiguous (row-major), otherwise a contiguous copy. */
KR_API kr_tensor *kr_contiguous(kr_tape *tape, kr_tensor *x);

/* Converts to another element type. A narrower float rounds to nearest even; float to integer truncates, saturates, and
 * converts NaN to 0. The gradient is cast back; integers have none. */
KR_API kr_tensor *kr_cast(kr_tape *tape, kr_tensor *x, kr_dtype dtype);

/* y[.., j, ..] = x[.., id[.., j, ..], ..] along the axis; id is i32 or i64, of x's rank, and agrees with x on the other
 * axes. */
KR_API kr_tensor *kr_gather(kr_tape *tape, kr_tensor *x, int axis, kr_tensor *id);

/* Rows of a table: table [w d], id [..] (i32 or i64) -> [.. d]. */
KR_API kr_tensor *kr_embedding(kr_tape *tape, kr_tensor *table, kr_tensor *id);

/* ==== Parts of a block ====
 *
 * The fused ops of a Mamba block: projection, norms, gate, short convolution.
 *
 *   kr_norm_options norm;
 *   kr_norm_options_init(&norm);
 *   kr_tensor *y_bsi = kr_gated_norm(tape, x_bsi, z_bsi, gain_i, &norm);
 *   kr_conv_out conv = kr_causal_conv(tape, x_bsv, weight_vk, bias_v, NULL, NULL, true);
 */

/* x [.. i], weight [o i], bias [o] or NULL -> x weight^T + bias [.. o]. */
KR_API kr_tensor *kr_linear(kr_tape *tape, kr_tensor *x, kr_tensor *weight, kr_tensor *bias);

typedef struct kr_norm_options {
    size_t size;           /* set by kr_norm_options_init */
    double eps;            /* 1e-5; added to the mean square */
    int64_t groups;        /* 1; the last axis is normalised in that many equal groups */
    bool norm_before_gate; /* false: the gate is applied first */
} kr_norm_options;
#define kr_norm_options_init(options) KR_STRUCT_INIT(NORM_OPTIONS, kr_norm_options, options)

/* x [.. i], gain [i] or NULL: y = x / sqrt(mean_group(x^2) + eps) gain. NULL options: all defaults. */
KR_API kr_tensor *kr_rms_norm(kr_tape *tape, kr_tensor *x, kr_tensor *gain, const kr_norm_options *options);

/* x [.. i], gain and bias [i] or NULL: y = (x - mean) / sqrt(variance + eps) gain + bias, with mean and variance
 * (divided by the number of channels) of each group of the last axis. NULL options: all defaults; norm_before_gate must
 * be false. */
KR_API kr_tensor *kr_layer_norm(kr_tape *tape, kr_tensor *x, kr_tensor *gain, kr_tensor *bias,
                                const kr_norm_options *options);

/* x, z [.. i]: rms_norm(x silu(z)), or rms_norm(x) silu(z) with norm_before_gate. */
KR_API kr_tensor *kr_gated_norm(kr_tape *tape, kr_tensor *x, kr_tensor *z, kr_tensor *gain,
                                const kr_norm_options *options);

/* x, z [..]: x silu(z). */
KR_API kr_tensor *kr_gate(kr_tape *tape, kr_tensor *x, kr_tensor *z);

#define KR_NEXT_STREAM UINT64_MAX

typedef struct kr_dropout_options {
    size_t size; /* set by kr_dropout_options_init */
    /* KR_NEXT_STREAM: the context's next random stream. Any other value selects that stream and does not advance the
     * context. */
    uint64_t stream;
    int64_t first; /* 0: row-major index of the first element, if x is a part of a larger tensor */
} kr_dropout_options;
#define kr_dropout_options_init(options) KR_STRUCT_INIT(DROPOUT_OPTIONS, kr_dropout_options, options)

/* x [..]: each element is set to 0 with probability p, in [0, 1), and divided by 1 - p otherwise; p = 0 gives x. The
 * mask is a function of the context's seed, the stream and the row-major index of the element, the same on every device
 * and for any number of threads. Parts of a tensor with the same stream, each with its `first`, have the mask of the
 * whole. The backward pass and kr_checkpoint recompute the mask. NULL options: all defaults. */
KR_API kr_tensor *kr_dropout(kr_tape *tape, kr_tensor *x, double p, const kr_dropout_options *options);

/* Sequence starts of packed rows, i32 [batch length], from cumulative sequence lengths (i32 or i64 [q+1]), as in
 * variable-length attention and mamba_ssm: 0, then the end of each sequence, counted in tokens over all rows. They
 * increase to batch length, and no sequence crosses from one row to the next. The result can be used wherever a
 * seq_start_bs is expected. */
KR_API kr_tensor *kr_seq_start_from_cu_seqlens(kr_tape *tape, kr_tensor *cu_seqlens, int64_t batch, int64_t length);

typedef struct kr_conv_out {
    kr_tensor *y_bsv;
    kr_tensor *window_bvk; /* the last k inputs, newest last: the window of the next call */
    void *reserved[4];     /* NULL; for later versions */
} kr_conv_out;

/* Causal depthwise convolution: y[b,s,v] = bias[v] + sum over j < k of weight[v,j] x[b, s-(k-1)+j, v], then optionally
 * SiLU. Inputs before the first token come from window_bvk, or are 0 if it is NULL. weight [v k], bias [v] or NULL.
 * seq_start_bs (i32 or i64 [b s], or NULL) is nonzero where a sequence starts within a row; the first token of a row
 * always starts one. The convolution does not cross sequences; input and output windows then have one row per sequence,
 * [q v k], row after row. */
KR_API kr_conv_out kr_causal_conv(kr_tape *tape, kr_tensor *x_bsv, kr_tensor *weight_vk, kr_tensor *bias_v,
                                  kr_tensor *window_bvk, kr_tensor *seq_start_bs, bool silu);

/* ==== Losses ====
 *
 * Loss functions: cross-entropy, standalone or fused with the LM head; soft cross-entropy, BCE, MSE, L1, Huber,
 * quantile.
 *
 * A loss is one number, f32, or f64 for f64 operands; bf16 and f16 are computed in f32. It is the mean over scored
 * positions: labels that are neither ignored nor masked. Without scored positions the loss and its gradients are 0.
 * Values at positions that are not scored do not matter; they may be NaN. */

typedef enum kr_reduction {
    KR_REDUCTION_MEAN = 0, /* over scored positions */
    KR_REDUCTION_SUM = 1
} kr_reduction;

/* The number of scored labels, and the number of those with the largest logit (the first of equal ones). */
typedef struct kr_scores {
    int64_t scored, right;
    uint64_t reserved[4]; /* 0; for later versions */
} kr_scores;

/* ---- losses with labels: one class per row of logits ---- */

typedef struct kr_cross_entropy_options {
    size_t size;            /* set by kr_cross_entropy_options_init */
    kr_tensor *mask;        /* i32 or i64, the shape of the labels: 0 where a label is not scored; NULL: all */
    int64_t ignore_index;   /* -100: labels with this value are not scored */
    double label_smoothing; /* 0; in [0, 1]: this fraction of the target is spread evenly over the classes */
    kr_reduction reduction;
    int64_t n_classes;    /* 0: w; labels are below it. Further columns are vocabulary padding ... */
    bool exclude_padding; /* ... and take part in the softmax, as in the official code, unless this is set */
    kr_scores *scores;    /* NULL, or receives the counts */
} kr_cross_entropy_options;
#define kr_cross_entropy_options_init(options) KR_STRUCT_INIT(CROSS_ENTROPY_OPTIONS, kr_cross_entropy_options, options)

/* logits [.. w], labels [..] (i32 or i64): -log softmax(logits)[label]. With smoothing q: (1 - q) (-log p[label]) + q
 * mean(-log p). NULL options: all defaults. A label out of range is an error. */
KR_API kr_tensor *kr_cross_entropy(kr_tape *tape, kr_tensor *logits, kr_tensor *labels,
                                   const kr_cross_entropy_options *options);

/* Cross-entropy fused with the LM head: logits = hidden weight^T + bias, with hidden [.. d], weight [w d], bias [w] or
 * NULL. Logits are computed for a chunk of rows at a time and never stored as a whole. If the tape records, the
 * gradients of hidden, weight and bias are computed in the same pass and stored until the backward pass. Rows that are
 * not scored are skipped. A bf16 or f16 weight is read without conversion. */
KR_API kr_tensor *kr_head_cross_entropy(kr_tape *tape, kr_tensor *hidden, kr_tensor *weight, kr_tensor *bias,
                                        kr_tensor *labels, const kr_cross_entropy_options *options);

/* Counts only; nothing is recorded. Uses the options mask, ignore_index, n_classes and exclude_padding. Zeros after an
 * error. */
KR_API kr_scores kr_accuracy(kr_tape *tape, kr_tensor *logits, kr_tensor *labels,
                             const kr_cross_entropy_options *options);

/* ---- losses with targets: one number per output ---- */

typedef struct kr_loss_options {
    size_t size; /* set by kr_loss_options_init */
    /* i32 or i64: 0 where an output is not scored; NULL: all. Broadcasts to the shape of the outputs; for
     * kr_soft_cross_entropy it has one value per row, [..]. */
    kr_tensor *mask;
    kr_reduction reduction;
    bool has_probabilities; /* bce, soft_cross_entropy: outputs are probabilities; false: logits */
    bool has_target_logits; /* soft_cross_entropy: targets are logits too and pass through softmax */
    double eps;             /* added to probabilities before the logarithm; 0: 2^-23, in f64 2^-52 */
    int64_t *n_scored;      /* NULL, or receives the number of scored outputs or rows */
    double huber_delta;     /* 1; huber_loss: threshold above which the loss is linear; > 0 */
    double quantile;        /* 0.5; quantile_loss: in (0, 1) */
} kr_loss_options;
#define kr_loss_options_init(options) KR_STRUCT_INIT(LOSS_OPTIONS, kr_loss_options, options)

typedef enum kr_loss_kind {
    KR_LOSS_CROSS_ENTROPY = 0,
    KR_LOSS_SOFT_CROSS_ENTROPY = 1,
    KR_LOSS_BCE = 2,
    KR_LOSS_MSE = 3,
    KR_LOSS_L1 = 4,
    KR_LOSS_HUBER = 5,
    KR_LOSS_QUANTILE = 6
} kr_loss_kind;
/* Outputs and targets have the same shape and both have gradients. NULL options: all defaults.
 *   soft_cross_entropy  [.. w]: mean over rows of -sum over w of t log p;  p = softmax(y), or y + eps
 *   bce                 mean of -t log p - (1 - t) log(1 - p);  p = sigmoid(y), or y with eps added to p and to 1 - p
 *   mse                 mean of (y - t)^2
 *   l1_loss             mean of |y - t|
 *   huber_loss          mean of (y - t)^2 / 2 where |y - t| <= delta, else delta (|y - t| - delta / 2)
 *   quantile_loss       mean of q (t - y) where y < t, else (1 - q) (y - t): the pinball loss
 * The gradient of l1_loss is 0 where y = t, that of quantile_loss 1/2 - q. KR_LOSS_CROSS_ENTROPY is an error, since it
 * needs labels. */
KR_API kr_tensor *kr_target_loss(kr_tape *tape, kr_loss_kind kind, kr_tensor *outputs, kr_tensor *targets,
                                 const kr_loss_options *options);
KR_API_INLINE kr_tensor *kr_soft_cross_entropy(kr_tape *tape, kr_tensor *outputs, kr_tensor *targets,
                                               const kr_loss_options *options)
{
    return kr_target_loss(tape, KR_LOSS_SOFT_CROSS_ENTROPY, outputs, targets, options);
}
KR_API_INLINE kr_tensor *kr_bce(kr_tape *tape, kr_tensor *outputs, kr_tensor *targets, const kr_loss_options *options)
{
    return kr_target_loss(tape, KR_LOSS_BCE, outputs, targets, options);
}
KR_API_INLINE kr_tensor *kr_mse(kr_tape *tape, kr_tensor *outputs, kr_tensor *targets, const kr_loss_options *options)
{
    return kr_target_loss(tape, KR_LOSS_MSE, outputs, targets, options);
}
KR_API_INLINE kr_tensor *kr_l1_loss(kr_tape *tape, kr_tensor *outputs, kr_tensor *targets,
                                    const kr_loss_options *options)
{
    return kr_target_loss(tape, KR_LOSS_L1, outputs, targets, options);
}
KR_API_INLINE kr_tensor *kr_huber_loss(kr_tape *tape, kr_tensor *outputs, kr_tensor *targets,
                                       const kr_loss_options *options)
{
    return kr_target_loss(tape, KR_LOSS_HUBER, outputs, targets, options);
}
KR_API_INLINE kr_tensor *kr_quantile_loss(kr_tape *tape, kr_tensor *outputs, kr_tensor *targets,
                                          const kr_loss_options *options)
{
    return kr_target_loss(tape, KR_LOSS_QUANTILE, outputs, targets, options);
}

/* ==== Checking gradients ====
 *
 * Compares the gradients of the backward pass with finite differences in f64.
 *
 * To check a custom op, write a function that applies it to the inputs; docs/add-an-op.md has a complete program. */

typedef struct kr_gradcheck_options {
    size_t size;       /* set by kr_gradcheck_options_init */
    double eps;        /* 1e-5: element x is perturbed by +-eps (1 + |x|) */
    double atol, rtol; /* 1e-7, 1e-6: tolerance atol + rtol |finite difference| */
    /* 256, at least 1: elements of an input that are perturbed one by one. For a larger input they are evenly spaced,
     * and a random direction through all its elements is checked as well. */
    int64_t max_elements;
    uint64_t seed; /* 0; for random directions and for the weights of the outputs */
} kr_gradcheck_options;
#define kr_gradcheck_options_init(options) KR_STRUCT_INIT(GRADCHECK_OPTIONS, kr_gradcheck_options, options)

typedef struct kr_gradcheck_result {
    /* The largest |gradient - quotient| / (atol + rtol |quotient|); above 1, or NaN, is a failure. */
    double error;
    int input;            /* its input; -1 if nothing was compared */
    int64_t element;      /* its row-major index; -1: the random direction */
    double gradient;      /* from the backward pass */
    double quotient;      /* from finite differences */
    int64_t n_compared;   /* elements and directions compared */
    uint64_t reserved[4]; /* 0; for later versions */
} kr_gradcheck_result;

/* Checks the gradients of fn, which computes out[0..n_out) from in[0..n_in) as for kr_checkpoint, on its own tapes.
 * Float inputs are passed to fn as leaves in f64, whatever their type; integers unchanged. The differentiated value is
 * the sum of all finite elements of the float outputs with random weights from 1/2 to 3/2. Random numbers that fn takes
 * from the context are the same in each run, and the context's stream is restored. fn must be smooth around the inputs,
 * without a kink within eps. result may be NULL.
 *
 * Errors: KR_ERR_NUMERIC with input, element and both values if a gradient differs, or if fn computes different values
 * when nothing is recorded; and the errors of fn. */
KR_API kr_status kr_gradcheck(kr_ctx *ctx, kr_checkpoint_fn *fn, void *user, int n_in, kr_tensor *const *in, int n_out,
                              const kr_gradcheck_options *options, kr_gradcheck_result *result);

#ifdef __cplusplus
}
#endif
#endif
