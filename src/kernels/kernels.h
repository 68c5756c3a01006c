/* kernels.h - the argument structs of all kernels and the table that holds them.
 *
 * A kernel is a pure function of one struct: raw pointers, sizes, strides in elements. It knows no tensor, no tape and no
 * context, allocates nothing and cannot fail: the op has checked everything before. Pointers are void because one struct
 * serves f32 and f64; a slot's index says which. A kr_operand says itself what it holds (args/operand.h). Unless a field
 * says otherwise operands are contiguous, outputs are written and do not overlap inputs.
 *
 * Work is partitioned by shape, never by thread count, and sums have one fixed order, so that results do not depend on the
 * number of threads, nor a row's result on the other rows.
 */
#ifndef KR_KERNELS_KERNELS_H
#define KR_KERNELS_KERNELS_H

#include "kernels/exec.h"
#include "kernels/args/matmul_args.h"
#include "kernels/args/mamba3_args.h"
#include "kernels/args/optimizer_args.h"
#include "kernels/args/operand.h"
#include "kernels/sequence.h"
#include "kernels/args/ssd_args.h"
#include "kernels/args/decode_args.h"

/* The index space that the operands of an elementwise kernel share, with as few axes as their strides allow. strides[o] are
 * those of operand o; 0 repeats it (broadcast), negative runs backwards. The innermost axis is the last. An empty space has
 * some dims[i] = 0; a single element has rank 0. Operand 0 is the output. */
#define KR_WALK_OPERANDS 4
typedef struct kr_walk {
    int rank;
    int64_t dims[KR_MAX_RANK];
    int64_t strides[KR_WALK_OPERANDS][KR_MAX_RANK];
} kr_walk;

/* y = f(x). walk: y, x. y may be x itself when their strides agree. */
typedef struct kr_unary_args {
    kr_exec exec;
    kr_walk walk;
    const void *x;
    void *y;
    double alpha, beta;
} kr_unary_args;

/* g_x = g_y f'(x), y = f(x) given. walk: g_x, x, y, g_y. */
typedef struct kr_unary_bwd_args {
    kr_exec exec;
    kr_walk walk;
    const void *x, *y, *g_y;
    void *g_x;
    double alpha, beta;
} kr_unary_bwd_args;

/* y = f(a, b). walk: y, a, b. y may be a or b when their strides agree. */
typedef struct kr_binary_args {
    kr_exec exec;
    kr_walk walk;
    const void *a, *b;
    void *y;
} kr_binary_args;

/* y = g df/da (of_b: g df/db), f(a, b) the kernel's function. walk: y, a, b, g.
 *   maximum, minimum: df/da is 1 where a is the larger or smaller, 1/2 where equal, else 0
 *   pow: df/da = b a^(b-1), 0 where b is 0;  df/db = a^b ln a, 0 where a is 0 and b not negative, NaN where a is negative */
typedef struct kr_binary_bwd_args {
    kr_exec exec;
    kr_walk walk;
    const void *a, *b, *g;
    void *y;
    bool of_b;
} kr_binary_bwd_args;

/* y = 1 where the outcome of a against b is one of `wanted`, else 0. walk: y, a, b. a and b are of `dtype`: f32, f64, i32 or
 * i64. Two operands of which one is NaN are unordered. */
typedef enum kr_outcome {
    KR_OUTCOME_LESS = 1,
    KR_OUTCOME_EQUAL = 2,
    KR_OUTCOME_GREATER = 4,
    KR_OUTCOME_UNORDERED = 8
} kr_outcome;
typedef struct kr_compare_args {
    kr_exec exec;
    kr_walk walk;
    kr_dtype dtype;
    int wanted; /* a set of kr_outcome */
    const void *a, *b;
    int32_t *y;
} kr_compare_args;

/* y = mask ? a : b. walk: y, mask, a, b. mask is i32, true when not 0; a or b NULL stand for the scalar. */
typedef struct kr_where_args {
    kr_exec exec;
    kr_walk walk;
    const int32_t *mask;
    const void *a, *b;
    void *y;
    double scalar;
} kr_where_args;

/* y[o, i] = alpha * reduce over r of x[o, r, i]. x [no nr ni], y [no ni]. max ignores alpha, propagates NaN, and needs
 * nr >= 1. */
typedef struct kr_reduce_args {
    kr_exec exec;
    int64_t no, nr, ni;
    const void *x;
    void *y;
    double alpha;
} kr_reduce_args;

/* g_x[o, r, i] = g_y[o, i] where r is the first index of the maximum (or of the first NaN), else 0. */
typedef struct kr_max_bwd_args {
    kr_exec exec;
    int64_t no, nr, ni;
    const void *x, *g_y;
    void *g_x;
} kr_max_bwd_args;

/* y[o, i] = the first r where x[o, r, i] is largest, or of the first NaN. x [no nr ni], y [no ni]; nr >= 1. */
typedef struct kr_argmax_args {
    kr_exec exec;
    int64_t no, nr, ni;
    const void *x;
    int64_t *y;
} kr_argmax_args;

/* y[o, r, i] = sum of x[o, q, i] over q <= r (reverse: q >= r), added in that order. x, y [no nr ni]. */
typedef struct kr_cumsum_args {
    kr_exec exec;
    int64_t no, nr, ni;
    const void *x;
    void *y;
    bool reverse;
} kr_cumsum_args;

/* segsum:     y[o, t, u] = sum of x[o, q] over u < q <= t for t >= u (0 on the diagonal), -inf for t < u.
 * segsum_bwd: y[o, q] = sum of x[o, t, u] over u < q <= t; elements of x above the diagonal are not read.
 * x [no nl], y [no nl nl]; the other way round in segsum_bwd. */
typedef struct kr_segsum_args {
    kr_exec exec;
    int64_t no, nl;
    const void *x;
    void *y;
} kr_segsum_args;

/* y = softmax(x) over the last axis, or its logarithm. x, y [no nr]. A row of -inf gives NaN. */
typedef struct kr_softmax_args {
    kr_exec exec;
    int64_t no, nr;
    const void *x;
    void *y;
    bool logarithm;
} kr_softmax_args;

/* softmax: g_x = y (g_y - <y, g_y>);   logarithm: g_x = g_y - e^y sum(g_y). */
typedef struct kr_softmax_bwd_args {
    kr_exec exec;
    int64_t no, nr;
    const void *y, *g_y;
    void *g_x;
    bool logarithm;
} kr_softmax_bwd_args;

/* Statistics of a row that cross_entropy stores. */
enum {
    KR_ROW_MAX,     /* m */
    KR_ROW_INVERSE, /* 1 / S */
    KR_ROW_MISS,    /* 1 - p[label] */
    KR_ROW_RIGHT,   /* 1 if label is the first of the largest, else 0 */
    KR_ROW_STATS
};

/* Cross-entropy of each row of x [no nr] with its label. The first nv columns are classes, nv >= 1; the others are not
 * read. Over the classes, with q = smoothing:
 *   m = max(x);  S = sum e^(x - m);  p = e^(x - m) / S
 *   loss = ln S + (1 - q) (m - x[label]) + q mean(m - x)
 *   g_x = alpha (p - q / nv - (1 - q) [at the label]),  0 beyond the classes
 * ln S and 1 - p[label] are computed from the sum without the largest term, so that they keep their precision where
 * p[label] is close to 1; so does the label's g_x. label < 0: the row is ignored. It is not read; its loss, stats and g_x
 * are 0. loss [no], stats [no KR_ROW_STATS]; g_x [no nr], contiguous, or absent; it may be x, if it has its type. */
typedef struct kr_cross_entropy_args {
    kr_exec exec;
    int64_t no, nr, nv;
    const void *x;
    const int64_t *label; /* [no] */
    double smoothing, alpha;
    void *loss, *stats;
    kr_operand g_x;
} kr_cross_entropy_args;

/* The same g_x times *g_y, from x and the stats. */
typedef struct kr_cross_entropy_bwd_args {
    kr_exec exec;
    int64_t no, nr, nv;
    const void *x, *stats, *g_y;
    const int64_t *label;
    double smoothing, alpha;
    void *g_x;
} kr_cross_entropy_bwd_args;

/* RMS norm over groups of the last axis, with an optional gate z.
 *   gate first (or no gate): u = x silu(z);  q = (mean_group(u^2) + eps)^-1/2;  y = u q gain
 *   norm first:              u = x;          q as above;                        y = u q gain silu(z)
 * x, z, y [no ni], y contiguous, gain [ni] or NULL (1), q [no ng]; z absent: no gate. Group e holds channels e*ni/ng ... */
typedef struct kr_norm_args {
    kr_exec exec;
    int64_t no, ni, ng;
    kr_operand x, z, y;
    const void *gain;
    void *q;
    double eps;
    bool norm_first;
} kr_norm_args;

/* With w = gain g_y (norm first: gain g_y silu(z)), per group:
 *   g_u = q w - q^3 u mean_group(w u);   gate first: g_x = g_u silu(z), g_z = g_u x silu'(z);
 *   norm first: g_x = g_u, g_z = u q gain g_y silu'(z);   g_gain[i] = sum over rows of g_y u q (silu(z) if norm first).
 * In a group of one channel the two terms of g_u cancel but for g_u = eps q^3 w, which is how it is computed there.
 * g_x, g_z, g_gain may be absent when not wanted. g_y is contiguous. accumulate: g_x is added to what is there; it is of
 * the slot's type and contiguous then, and there is no gate. */
typedef struct kr_norm_bwd_args {
    kr_exec exec;
    int64_t no, ni, ng;
    kr_operand x, z, g_y;
    const void *gain, *q;
    kr_operand g_x, g_z;
    void *g_gain;
    double eps;
    bool norm_first, accumulate;
} kr_norm_bwd_args;

/* Layer norm over groups of the last axis:
 *   mean = mean_group(x);  q = (mean_group((x - mean)^2) + eps)^-1/2;  y = (x - mean) q gain + bias
 * x, y [no ni], gain [ni] or NULL (1), bias [ni] or NULL (0), mean and q [no ng]. Group e holds channels e*ni/ng ... */
typedef struct kr_layer_norm_args {
    kr_exec exec;
    int64_t no, ni, ng;
    kr_operand x;
    const void *gain, *bias;
    void *y, *mean, *q;
    double eps;
} kr_layer_norm_args;

/* With u = (x - mean) q and w = gain g_y, per group:
 *   g_x = q (w - mean_group(w) - u mean_group(w u));   over all rows: g_gain = sum of g_y u,  g_bias = sum of g_y.
 * g_x is contiguous. g_x, g_gain, g_bias may be NULL when not wanted. */
typedef struct kr_layer_norm_bwd_args {
    kr_exec exec;
    int64_t no, ni, ng;
    kr_operand x;
    const void *gain, *mean, *q, *g_y;
    void *g_x, *g_gain, *g_bias;
} kr_layer_norm_bwd_args;

/* y = x silu(z). x, z, y [no ni], y contiguous. */
typedef struct kr_gate_args {
    kr_exec exec;
    int64_t no, ni;
    kr_operand x, z, y;
} kr_gate_args;

/* g_x = g_y silu(z), g_z = g_y x silu'(z). g_x, g_z may be absent when not wanted. */
typedef struct kr_gate_bwd_args {
    kr_exec exec;
    int64_t no, ni;
    kr_operand x, z, g_y, g_x, g_z;
} kr_gate_bwd_args;

/* Causal depthwise convolution with a carried window. For each sequence q, its tokens numbered s = 0 .. length-1:
 *   u[s, v] = bias[v] + sum over j < nk of weight[v, j] * past(s - (nk-1) + j, v);   y = u, or silu(u)
 * past(t, v) is x at token t of the sequence, and for t < 0 window[q, v, nk + t] (0 if there is no window).
 * x [b s v], its rows being tokens, x_batch elements from a sequence of tokens to the next; y [b s v], contiguous, weight
 * [v k], bias [v] or NULL; window, window_out [q v k] or NULL: the last nk inputs, newest last; window's column 0 is never
 * read by the sum. window_out[q, v, j] = past(length - nk + j, v). Tokens of no sequence are not read and their y is not
 * written. */
typedef struct kr_conv_args {
    kr_exec exec;
    int64_t nb, ns, nv, nk, nq, x_batch;
    const kr_sequence *sequences; /* [q] */
    kr_operand x, y;
    const void *weight, *bias, *window;
    void *window_out;
    bool silu;
} kr_conv_args;

/* Gradients of the above; u is recomputed. g_y [b s v] is given in ng_y parts along the channels, all of one type: part i is
 * g_y[i] [b s from[i+1]-from[i]], contiguous, and has the channels from[i] .. from[i+1]-1. One part, or if the kernel takes a
 * g_y of bf16 up to KR_CONV_PARTS of a multiple of four channels each. g_x [b s v], its rows being tokens. g_window_out
 * NULL means 0. g_x absent, g_weight, g_bias, g_window NULL: not wanted. All are written; tokens of no sequence get 0. Sums
 * over all tokens for g_weight and g_bias have a fixed order. */
enum { KR_CONV_PARTS = 3 };
typedef struct kr_conv_bwd_args {
    kr_exec exec;
    int64_t nb, ns, nv, nk, nq, x_batch;
    const kr_sequence *sequences;
    kr_operand x;
    const void *weight, *bias, *window, *g_window_out;
    int ng_y;
    kr_operand g_y[KR_CONV_PARTS];
    int64_t from[KR_CONV_PARTS + 1];
    kr_operand g_x;
    void *g_weight, *g_bias, *g_window;
    bool silu;
} kr_conv_bwd_args;

/* gather:     y[o, j, i] = x[o, id[o, j, i], i];   x [no nr ni], id and y [no nj ni]
 * gather_bwd: y[o, id[o, j, i], i] += x[o, j, i], over j in order; y [no nr ni] accumulates. ids are in range. */
typedef struct kr_gather_args {
    kr_exec exec;
    int64_t no, nr, ni, nj;
    const void *x;
    const void *id;
    kr_dtype id_dtype; /* KR_DTYPE_I32 or KR_DTYPE_I64 */
    void *y;
} kr_gather_args;

/* embedding:     y[o, i] = x[id[o], i];    x [nr ni], id [no], y [no ni]; y has x's type, or the slot's
 * embedding_bwd: y[id[o], i] += x[o, i], over o in order; y [nr ni] accumulates. ids are in range. Both are of the slot's type.
 * All are contiguous. */
typedef struct kr_embedding_args {
    kr_exec exec;
    int64_t no, nr, ni;
    kr_operand x;
    const void *id;
    kr_dtype id_dtype;
    kr_operand y;
} kr_embedding_args;

/* y = x, converted from x_dtype to y_dtype, between any strides. walk: y, x.
 * Float to narrower float rounds to nearest even; float to integer truncates, saturates, NaN gives 0. */
typedef struct kr_copy_args {
    kr_exec exec;
    kr_walk walk;
    kr_dtype x_dtype, y_dtype;
    const void *x;
    void *y;
} kr_copy_args;

/* y = value for all elements. walk: y. */
typedef struct kr_fill_args {
    kr_exec exec;
    kr_walk walk;
    kr_dtype dtype;
    void *y;
    double value;
} kr_fill_args;

/* y[i] = sample number offset + i of the stream `seed`; contiguous, n elements of a float type.
 *   uniform: alpha + (beta - alpha) u, u in [0, 1);   normal: alpha + beta z, z ~ N(0, 1) */
typedef struct kr_random_args {
    kr_exec exec;
    int64_t n;
    kr_dtype dtype;
    void *y;
    uint64_t seed, stream, offset;
    bool normal;
    double alpha, beta;
} kr_random_args;

/* y[i] = x[i] scale where word number first + i of the stream (base/dropout_words.h) is at least `threshold`, else 0; n
 * elements. scale is a number of the element type, so that there is one rounding. y may be x. */
typedef struct kr_dropout_args {
    kr_exec exec;
    int64_t n;
    const void *x;
    void *y;
    uint64_t seed, stream, first;
    uint32_t threshold;
    double scale;
} kr_dropout_args;

/* *first = index of the first NaN or infinity of the contiguous x, or -1. */
typedef struct kr_finite_args {
    kr_exec exec;
    int64_t n;
    kr_dtype dtype;
    const void *x;
    int64_t *first;
} kr_finite_args;

enum { KR_REAL_F32 = 0, KR_REAL_F64 = 1, KR_NREALS = 2 };

/* Types besides the slot's own that f32 kernels take, by operand: sets of KR_DTYPE_BIT (accepts.def). */
typedef struct kr_accepts {
#define KR_ACCEPTS(kernel, operand, cpu, cuda) uint32_t kernel##_##operand;
#include "kernels/accepts.def"
#undef KR_ACCEPTS
} kr_accepts;

/* A set of kernels: run pointers NULL where the set has none. `scratch` (NULL: 0 bytes) says how much exec.scratch a
 * call needs; it reads sizes, sequences and the pool's width only. */
typedef struct kr_kernels {
    const char *name; /* "ref", "avx2", "avx512" */
    uint64_t needs;   /* kr_cpu_feature bits that its code uses */
    kr_accepts accepts;
#define KR_SLOT(args)                                                                                                  \
    struct {                                                                                                           \
        void (*run)(const args *);                                                                                     \
        size_t (*scratch)(const args *);                                                                               \
    }
#define KR_KERNEL(name, args) KR_SLOT(args) name[KR_NREALS];
#define KR_KERNEL_ANY(name, args) KR_SLOT(args) name;
#include "kernels/kernels.def"
#undef KR_KERNEL
#undef KR_KERNEL_ANY
} kr_kernels;

#endif
