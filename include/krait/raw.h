/* raw.h - the kernels on the caller's memory: no tape, no copies, no gradients but those asked for.
 *
 *   float x[32], z[32], y[32];                                                          // [4 8] each
 *   const kr_shape shape = KR_SHAPE(4, 8);
 *   kr_view views[] = { kr_view_contiguous(KR_DTYPE_F32, shape, x), kr_view_contiguous(KR_DTYPE_F32, shape, z),
 *                       kr_view_contiguous(KR_DTYPE_F32, shape, y) };
 *   kr_raw_run(ctx, KR_RAW_GATE, 3, views, NULL);                                       // y = x silu(z)
 *
 * For bindings to other tensor libraries, custom training loops and real-time programs. A call takes a view for each
 * operand and each result, in the order of the op's signature, and computes into the results. The kernels are those of
 * the ops of ops.h and ssd.h, with the same bits; every op has a backward op, which recomputes what it needs from the
 * operands of the forward op. docs/raw.md has the rules in full.
 *
 * Memory is the caller's. Work memory is the caller's, too, if it is given: a run then allocates nothing. All views of a
 * call are f32 or f64, but for those that the kernels of the device take in bf16 or f16 (kr_kernels_text). Operands that
 * are usually parts of a wider row (x, z, b, c, ...) are read where they are, all else is row-major. What a kernel cannot
 * read is an error that names its strides: nothing is copied.
 *
 * Results overlap no other view, but that a state may be updated in place: `final` may be `initial` in SSD, SCAN, ANGLES
 * and QUATERNION_SCAN, `window_out` may be `window` in CONV. A decode step is a call like that with s = 1.
 *
 * On a GPU calls are queued on the context's stream, like ops: a call returns before its kernels have run, and its memory
 * must stay valid until then. Calls can be captured in a CUDA graph. */
#ifndef KRAIT_RAW_H
#define KRAIT_RAW_H

#include <krait/ctx.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The ops, each with the views that it takes: operands, then results. A letter is the same size wherever it occurs, a
 * digit that very size, ".." the same leading axes; "?" marks what may be absent, as a view with data NULL. An absent
 * operand is none (or 0, or 1, as said below), an absent result is not wanted. The letters are those of
 * docs/notation.md; q is the number of sequences, b if none are given.
 *
 * In a backward op g_y and the like are gradients of the forward results, 0 if absent, and its results are gradients of
 * the forward operands, which it overwrites. Tokens outside all sequences get the gradient 0. Values are fixed; new ones
 * are appended. */
typedef enum kr_raw_op {
    /* The SSD core of Mamba-2 and Mamba-3 (docs/ssd.md), for each head h with group e = h / (h_total / g):
     *   H_t = exp(da_t) H_{t-1} + w_t sum_m v_t[m] (outer) b_t[m];   y_t[m] = H_t c_t[m] + d v_t[m]
     *   with diag_weight: y_t[m] = exp(da_t) H_{t-1} c_t[m] + diag_weight_t sum_m' <c_t[m], b_t[m']> v_t[m'] + d v_t[m]
     *   H before the first token: initial + boundary sum_m boundary_v[m] (outer) boundary_b[m]
     * Absent w is 1, d none, initial 0. Mamba-2 has w = dt, da = dt A, m = 1. carry (with diag_weight and w) says that
     * w_t = diag_weight_t + carry_{t+1}; it affects rounding only (kr_mamba3_single_ssd_input). The three of the boundary
     * are all given or none. v, b, c: tokens (docs/raw.md). Options: chunk_len, sequences.
     *
     *   ssd v:bsmhp b:bsmgr c:bsmgr da:bsh w:bsh? diag_weight:bsh? d:h? initial:qhpr? carry:bsh? boundary:qh?
     *       boundary_v:qmhp? boundary_b:qmhr? -> y:bsmhp final:qhpr?
     *   ssd_backward v:bsmhp b:bsmgr c:bsmgr da:bsh w:bsh? diag_weight:bsh? d:h? initial:qhpr? boundary:qh?
     *       boundary_v:qmhp? boundary_b:qmhr? g_y:bsmhp? g_final:qhpr? -> g_v:bsmhp? g_b:bsmgr? g_c:bsmgr? g_da:bsh?
     *       g_w:bsh? g_diag_weight:bsh? g_d:h? g_initial:qhpr? g_boundary:qh? g_boundary_v:qmhp? g_boundary_b:qmhr? */
    KR_RAW_SSD = 0,
    KR_RAW_SSD_BACKWARD = 1,

    /* The selective scan of Mamba-1: H_t = exp(dt_t a) H_{t-1} + dt_t b_t x_t;   y_t = <c_t, H_t> + d x_t, times silu(z_t)
     * if z is given. x, dt, b, c, z: tokens. Options: sequences.
     *
     *   scan x:bsi dt:bsi a:ir b:bsgr c:bsgr d:i? z:bsi? initial:qir? -> y:bsi final:qir?
     *   scan_backward x:bsi dt:bsi a:ir b:bsgr c:bsgr d:i? z:bsi? initial:qir? g_y:bsi? g_final:qir? -> g_x:bsi? g_dt:bsi?
     *       g_a:ir? g_b:bsgr? g_c:bsgr? g_d:i? g_z:bsi? g_initial:qir? */
    KR_RAW_SCAN = 2,
    KR_RAW_SCAN_BACKWARD = 3,

    /* Causal depthwise convolution: y_t[v] = bias[v] + sum_j weight[v, j] past(t - (k-1) + j, v), past being x, and window
     * before the first token (0 if absent); silu(y) with the option. window, window_out: the last k inputs, newest last.
     * x: adjacent channels, any distance between tokens and rows. g_x: rows. Options: silu, sequences.
     *
     *   conv x:bsv weight:vk bias:v? window:qvk? -> y:bsv window_out:qvk?
     *   conv_backward x:bsv weight:vk bias:v? window:qvk? g_y:bsv? g_window_out:qvk? -> g_x:bsv? g_weight:vk? g_bias:v?
     *       g_window:qvk? */
    KR_RAW_CONV = 4,
    KR_RAW_CONV_BACKWARD = 5,

    /* RMS norm over n_groups groups of the last axis, with an optional gate z:
     *   u = x silu(z);  q = (mean_group(u^2) + eps)^-1/2;  y = u q gain        norm_first: u = x, and y times silu(z)
     * q has a number for each group, e of them; backward takes it. x, z and their gradients: rows (docs/raw.md).
     * accumulate, without a gate: g_x, then row-major, is added to. Options: eps, n_groups, norm_first, accumulate.
     *
     *   norm x:..i z:..i? gain:i? -> y:..i q:..e?
     *   norm_backward x:..i z:..i? gain:i? q:..e g_y:..i -> g_x:..i? g_z:..i? g_gain:i? */
    KR_RAW_NORM = 6,
    KR_RAW_NORM_BACKWARD = 7,

    /* Layer norm over n_groups groups of the last axis: y = (x - mean) q gain + bias, q = (mean((x - mean)^2) + eps)^-1/2.
     * x: rows. Options: eps, n_groups.
     *
     *   layer_norm x:..i gain:i? bias:i? -> y:..i mean:..e? q:..e?
     *   layer_norm_backward x:..i gain:i? mean:..e q:..e g_y:..i -> g_x:..i? g_gain:i? g_bias:i? */
    KR_RAW_LAYER_NORM = 8,
    KR_RAW_LAYER_NORM_BACKWARD = 9,

    /* y = x silu(z). x, z and all gradients: rows. No options.
     *
     *   gate x:.. z:.. -> y:..
     *   gate_backward x:.. z:.. g_y:.. -> g_x:..? g_z:..? */
    KR_RAW_GATE = 10,
    KR_RAW_GATE_BACKWARD = 11,

    /* The coefficients of Mamba-3's trapezoidal rule, as kr_trapezoid: dt = clamp(softplus(dt_raw + dt_bias), dt_min,
     * dt_max), a = -max(f(a_raw), a_floor), da = dt a, gamma = l dt, carry = (1 - l) dt, beta = carry exp(da),
     * l = sigmoid(lambda_raw). f is softplus with the option, else the heavy tail. The three raw operands: rows of one
     * stride. Options: a_floor, dt_min, dt_max, softplus.
     *
     *   trapezoid dt_raw:..h dt_bias:h? a_raw:..h lambda_raw:..h -> dt:..h? da:..h? gamma:..h? carry:..h? beta:..h?
     *   trapezoid_backward dt_raw:..h dt_bias:h? a_raw:..h lambda_raw:..h g_dt:..h? g_da:..h? g_gamma:..h? g_carry:..h?
     *       g_beta:..h? -> g_dt_raw:..h? g_dt_bias:h? g_a_raw:..h? g_lambda_raw:..h? */
    KR_RAW_TRAPEZOID = 12,
    KR_RAW_TRAPEZOID_BACKWARD = 13,

    /* Angles that accumulate: phi_t = wrap(phi_{t-1} + dt_t range pi tanh(theta_t)). theta: rows. The sequences hold all
     * tokens. Options: range, chunk_len, sequences.
     *
     *   angles theta:bsa dt:bsh initial:qha? -> angle:bsha final:qha?
     *   angles_backward theta:bsa dt:bsh g_angle:bsha? g_final:qha? -> g_theta:bsa? g_dt:bsh? g_initial:qha? */
    KR_RAW_ANGLES = 14,
    KR_RAW_ANGLES_BACKWARD = 15,

    /* Rotary embedding of the rows x + bias, each repeated for the heads of its group. The first a pairs of a row are
     * rotated, (x0 cos - x1 sin, x0 sin + x1 cos); pair i is (2i, 2i + 1), or with split_pairs (i, i + r/2). accumulate:
     * g_angle is added to. Options: split_pairs, accumulate.
     *
     *   rotate x:bsmgr bias:hmr? angle:bsha -> y:bsmhr
     *   rotate_backward x:bsmgr bias:hmr? angle:bsha g_y:bsmhr -> g_x:bsmgr? g_bias:hmr? g_angle:bsha? */
    KR_RAW_ROTATE = 16,
    KR_RAW_ROTATE_BACKWARD = 17,

    /* Quaternions of bounded generators: q = (cos f, n sin f), f = dt range pi/2 tanh(|raw|), n = raw / |raw|. Options:
     * range.
     *
     *   quaternion_exp raw:..j3 dt:.. -> q:..j4
     *   quaternion_exp_backward raw:..j3 dt:.. g_q:..j4 -> g_raw:..j3? g_dt:..? */
    KR_RAW_QUATERNION_EXP = 18,
    KR_RAW_QUATERNION_EXP_BACKWARD = 19,

    /* Cumulative products cum_t = q_t (x) cum_{t-1}, normalised; initial absent is 1. The sequences hold all tokens.
     * Options: chunk_len, sequences.
     *
     *   quaternion_scan q:bshj4 initial:qhj4? -> cum:bshj4 final:qhj4?
     *   quaternion_scan_backward q:bshj4 initial:qhj4? cum:bshj4 g_cum:bshj4? g_final:qhj4? -> g_q:bshj4? g_initial:qhj4? */
    KR_RAW_QUATERNION_SCAN = 20,
    KR_RAW_QUATERNION_SCAN_BACKWARD = 21,

    /* y = conj(cum) (x) x for the first j blocks of four entries of each row; other entries are copied. No options.
     *
     *   quaternion_rotate x:bsmhr cum:bshj4 -> y:bsmhr
     *   quaternion_rotate_backward x:bsmhr cum:bshj4 g_y:bsmhr -> g_x:bsmhr? g_cum:bshj4? */
    KR_RAW_QUATERNION_ROTATE = 22,
    KR_RAW_QUATERNION_ROTATE_BACKWARD = 23,

    /* y = a b + bias; accumulate, without a bias: y is added to. a, b: any strides, so that a transposed operand is a view.
     * y: rows. There is no backward op: gradients are products, too. Options: accumulate.
     *
     *   matmul a:jk b:ki bias:i? -> y:ji */
    KR_RAW_MATMUL = 24,

    /* SSD for Mamba-3, whose kernel adds biases to b and c of each head and rotates them: as ROTATE of both with one angle, and
     * then SSD, but without rows for each head in memory. A GPU has it, and the reference kernels (isa "ref"); on other CPUs
     * it is KR_ERR_UNSUPPORTED. boundary_b is rotated already. Options: chunk_len, sequences, split_pairs.
     *
     *   ssd_rotary v:bsmhp b:bsmgr c:bsmgr da:bsh w:bsh? diag_weight:bsh? d:h? initial:qhpr? carry:bsh? boundary:qh?
     *       boundary_v:qmhp? boundary_b:qmhr? angle:bsha bias_b:hmr? bias_c:hmr? -> y:bsmhp final:qhpr?
     *   ssd_rotary_backward v:bsmhp b:bsmgr c:bsmgr da:bsh w:bsh? diag_weight:bsh? d:h? initial:qhpr? boundary:qh?
     *       boundary_v:qmhp? boundary_b:qmhr? angle:bsha bias_b:hmr? bias_c:hmr? g_y:bsmhp? g_final:qhpr? -> g_v:bsmhp?
     *       g_b:bsmgr? g_c:bsmgr? g_da:bsh? g_w:bsh? g_diag_weight:bsh? g_d:h? g_initial:qhpr? g_boundary:qh?
     *       g_boundary_v:qmhp? g_boundary_b:qmhr? g_angle:bsha? g_bias_b:hmr? g_bias_c:hmr? */
    KR_RAW_SSD_ROTARY = 25,
    KR_RAW_SSD_ROTARY_BACKWARD = 26
} kr_raw_op;

/* All ops have work and precision. Of the others an op has those that its comment names; the rest must keep their
 * defaults. */
typedef struct kr_raw_options {
    size_t size; /* set by kr_raw_options_init */

    /* 0. SSD: the chunk length, 0 for the optimal one. ANGLES, QUATERNION_SCAN: the running value is rounded after as many
     * tokens, as at the end of a call; 0: not inside a call. */
    int64_t chunk_len;

    /* NULL: each row is one sequence. Otherwise [q 3], q = n_sequences: row, first token and the token after the last one of
     * each, in order of row and token, none empty. Checked in every call. On a GPU host and kernels read the list: it is
     * in pinned memory and stays unchanged until the kernels have run. */
    int64_t n_sequences;
    const int64_t *sequences;

    int64_t n_groups;      /* 1: of a norm */
    double eps;            /* 1e-5: of a norm */
    double range;          /* 1: multiples of pi per unit of dt */
    double a_floor;        /* 1e-4: minimum decay rate */
    double dt_min, dt_max; /* 0, infinity: limits of dt */
    bool silu, norm_first, split_pairs, softplus, accumulate;

    /* Memory of at least kr_raw_work bytes, aligned to 64, on a GPU in device memory; its contents are undefined after
     * the call. NULL: the context's, which grows as needed. */
    void *work;
    size_t work_bytes;

    kr_precision precision; /* as in kr_call; KR_PRECISION_UNSET: the context's */
} kr_raw_options;
#define kr_raw_options_init(options) KR_STRUCT_INIT(RAW_OPTIONS, kr_raw_options, options)

/* The signature of an op as above, on one line: its name, the operands, "->", the results. NULL for an invalid value. Any
 * thread may call it. */
KR_API const char *kr_raw_signature(kr_raw_op op);

/* The view of row-major memory without gaps. On a GPU the address is one of device memory. */
KR_API_INLINE kr_view kr_view_contiguous(kr_dtype dtype, kr_shape shape, void *data)
{
    kr_view view;
    int64_t stride = 1;
    view.data = data;
    view.dtype = dtype;
    view.rank = shape.rank;
    for (int i = KR_MAX_RANK - 1; i >= 0; i--) {
        view.dims[i] = i < shape.rank ? shape.dims[i] : 0;
        view.strides[i] = i < shape.rank ? stride : 0;
        if (view.dims[i] > 0) stride *= view.dims[i];
    }
    return view;
}

/* The bytes of work memory that kr_raw_run needs for these views and options. Addresses matter only in whether they are
 * NULL, so results may still be without memory: any other pointer stands for it. 0 also after an error, which the context
 * keeps. A run after it with options.work allocates nothing. NULL options: all defaults. */
KR_API size_t kr_raw_work(kr_ctx *ctx, kr_raw_op op, int n_views, const kr_view *views, const kr_raw_options *options);

/* Runs an op: checks all views and options, then computes the results that are not absent, with the bits of the op on a
 * tape. n_views is the number of views in the signature. Nothing is written after an error of the checks, which names op,
 * view, sizes and rule. The caller owns all memory. NULL options: all defaults. check_finite of the context does not apply.
 * The context is used by one thread at a time, the views' memory by any number of contexts that only read it. */
KR_API kr_status kr_raw_run(kr_ctx *ctx, kr_raw_op op, int n_views, const kr_view *views,
                            const kr_raw_options *options);

#ifdef __cplusplus
}
#endif
#endif
