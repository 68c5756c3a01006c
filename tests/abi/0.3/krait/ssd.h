/* ssd.h - sequence mixers: the SSD core of Mamba-2 and Mamba-3, the selective scan of Mamba-1, the parts of Mamba-3.
 *
 *   kr_mamba2_ssd_input in = { .x_bshp = x_bshp, .dt_bsh = dt_bsh, .a_decay_h = a_h };
 *   in.b_bsgr = b_bsgr;
 *   in.c_bsgr = c_bsgr;
 *   kr_ssd_out out = kr_mamba2_ssd_run(tape, &in, kr_ssd_path_default());
 *
 * Three algorithms give the same values and gradients. Minimal and Serial are the chunked formulas composed of ops.
 * SerialRecalculated, the default, is one fused node that stores only its inputs and processes chunk after chunk.
 *
 * Sequences may be pre-chunked, [b n l ...] (then l is the chunk length), or whole, [b s ...], of any length. Results
 * have the layout of the inputs. docs/ssd.md derives the formulas.
 *
 * Sections: SSD, selective scan, parts of Mamba-3. */
#ifndef KRAIT_SSD_H
#define KRAIT_SSD_H

#include <krait/ops.h>
#include <krait/tape.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ==== SSD ==== */

typedef enum kr_ssd_algorithm {
    KR_SSD_MINIMAL = 0,            /* batched products; the states of all chunks by one triangular product */
    KR_SSD_SERIAL = 1,             /* the same within chunks; states by a loop over chunks */
    KR_SSD_SERIAL_RECALCULATED = 2 /* fused; recomputes in the backward pass */
} kr_ssd_algorithm;

typedef struct kr_ssd_path {
    kr_ssd_algorithm algorithm;
    int64_t chunk_len; /* 0: optimal */
} kr_ssd_path;

/* min(512, sqrt(state_rank per_head_dim) rounded up to a multiple of 32). */
KR_API int64_t kr_ssd_optimal_chunk_len(int64_t state_rank, int64_t per_head_dim);

/* SerialRecalculated with the optimal chunk length. */
KR_API_INLINE kr_ssd_path kr_ssd_path_default(void)
{
    const kr_ssd_path path = { KR_SSD_SERIAL_RECALCULATED, 0 };
    return path;
}

/* The chunk length of a path, 0 if it is not set; or the optimal length instead of 0. */
KR_API_INLINE int64_t kr_ssd_chunk_len(kr_ssd_path path)
{
    return path.chunk_len;
}
KR_API_INLINE int64_t kr_ssd_chunk_len_or_optimal(kr_ssd_path path, int64_t state_rank, int64_t per_head_dim)
{
    return path.chunk_len != 0 ? path.chunk_len : kr_ssd_optimal_chunk_len(state_rank, per_head_dim);
}

/* Each algorithm with the optimal chunk length: Minimal, Serial, SerialRecalculated. */
KR_API_INLINE kr_ssd_path kr_ssd_core_optimal(int64_t state_rank, int64_t per_head_dim)
{
    const kr_ssd_path path = { KR_SSD_MINIMAL, kr_ssd_optimal_chunk_len(state_rank, per_head_dim) };
    return path;
}
KR_API_INLINE kr_ssd_path kr_ssd_chunked_optimal(int64_t state_rank, int64_t per_head_dim)
{
    const kr_ssd_path path = { KR_SSD_SERIAL, kr_ssd_optimal_chunk_len(state_rank, per_head_dim) };
    return path;
}
KR_API_INLINE kr_ssd_path kr_ssd_chunked_recalculated_optimal(int64_t state_rank, int64_t per_head_dim)
{
    const kr_ssd_path path = { KR_SSD_SERIAL_RECALCULATED, kr_ssd_optimal_chunk_len(state_rank, per_head_dim) };
    return path;
}

typedef struct kr_ssd_out {
    kr_tensor *y;           /* the shape of x or v */
    kr_tensor *final_state; /* [b h p r]; with seq_start [q h p r], one per sequence, row after row */
    void *reserved[4];      /* NULL; for later versions */
} kr_ssd_out;

/* Fields common to all inputs:
 *   initial_state_bhpr  [b h p r], or [q h p r] with seq_start: the state before the first token of each sequence;
 *                       NULL: 0
 *   learned_init_hpr    learned initial state, added to that of every sequence; NULL: none
 *   seq_start_bs        i32 or i64: nonzero where a sequence starts and the state is reset; NULL: one sequence per row.
 *                       The first token of a row always starts a sequence.
 *   cu_seqlens          instead of seq_start_bs: i32 or i64 [q+1]; see kr_seq_start_from_cu_seqlens
 * Names give the axes of whole sequences; pre-chunked operands have n l instead of s, all of them. B and C are given
 * for g groups; head h uses group h / (h_total / g). All float operands have gradients, through y and through the final
 * state. A positive log-decay is computed as given. */

/* Mamba-2: H_t = exp(dt_t A) H_{t-1} + dt_t x_t (outer) B_t;  y_t = H_t C_t + D x_t. */
typedef struct kr_mamba2_ssd_input {
    kr_tensor *x_bshp;    /* or [b n l h p] */
    kr_tensor *dt_bsh;    /* after softplus */
    kr_tensor *a_decay_h; /* < 0 */
    kr_tensor *b_bsgr, *c_bsgr;
    kr_tensor *d_h; /* NULL: no skip connection */
    kr_tensor *initial_state_bhpr, *learned_init_hpr, *seq_start_bs;
    kr_tensor *cu_seqlens;
    void *reserved[3]; /* must be NULL; for later versions */
} kr_mamba2_ssd_input;

/* Mamba-3, double: H_t = exp(da_t) H_{t-1} + sum_m v_t[m] (outer) B_t[m];  y_t[m] = H_t C_t[m]. The block is the sum of
 * two passes, one on gamma V and one on beta V_prev. */
typedef struct kr_mamba3_double_ssd_input {
    kr_tensor *v_bsmhp; /* or [b n l m h p] */
    kr_tensor *da_bsh;
    kr_tensor *b_bsmhr, *c_bsmhr; /* for g groups: [b s m g r] */
    kr_tensor *initial_state_bhpr, *learned_init_hpr, *seq_start_bs;
    kr_tensor *d_h; /* y_t[m] += D v_t[m]; NULL: no skip connection */
    kr_tensor *cu_seqlens;
    void *reserved[3]; /* must be NULL; for later versions */
} kr_mamba3_double_ssd_input;

/* Mamba-3, single: H_t = exp(da_t) H_{t-1} + scale_t sum_m v_t[m] (outer) B_t[m];
 *   y_t[m] = exp(da_t) H_{t-1} C_t[m] + gamma_t sum_m' <C_t[m], B_t[m']> v_t[m'].
 * The contribution of the token before the first one, carry0 sum_m v_before[m] (outer) k_before[m], is added to the
 * initial state: kr_boundary_state without a separate pass over the state. Set all three fields or none; with seq_start
 * they have one row per sequence.
 *
 * carry is the operand of kr_trapezoid_scale that gave scale, or NULL. With it, SerialRecalculated on the CPU computes the
 * end of a chunk like the end of a call: one call and several calls that are cut at multiples of the chunk length have the
 * same bits. It affects rounding only and adds no gradient. */
typedef struct kr_mamba3_single_ssd_input {
    kr_tensor *v_bsmhp; /* or [b n l m h p] */
    kr_tensor *b_bsmhr, *c_bsmhr;
    kr_tensor *da_bsh, *gamma_bsh, *scale_bsh;
    kr_tensor *initial_state_bhpr, *learned_init_hpr, *seq_start_bs;
    kr_tensor *d_h; /* y_t[m] += D v_t[m]; NULL: no skip connection */
    kr_tensor *carry0_bh, *v_before_bmhp, *k_before_bmhr;
    kr_tensor *cu_seqlens;
    kr_tensor *carry_bsh; /* NULL: not given */
    void *reserved[2];    /* must be NULL; for later versions */
} kr_mamba3_single_ssd_input;

/* Kind of input. Values are fixed; new ones are appended. */
typedef enum kr_ssd_kind {
    KR_SSD_MAMBA2 = 0,        /* kr_mamba2_ssd_input */
    KR_SSD_MAMBA3_DOUBLE = 1, /* kr_mamba3_double_ssd_input */
    KR_SSD_MAMBA3_SINGLE = 2  /* kr_mamba3_single_ssd_input */
} kr_ssd_kind;

/* Runs the SSD core on a path; `in` is the input struct of the kind. The results are on the tape; both are NULL after
 * an error that names the operand and its sizes. */
KR_API kr_ssd_out kr_ssd_core_run(kr_tape *tape, kr_ssd_kind kind, const void *in, kr_ssd_path path);
KR_API_INLINE kr_ssd_out kr_mamba2_ssd_run(kr_tape *tape, const kr_mamba2_ssd_input *in, kr_ssd_path path)
{
    return kr_ssd_core_run(tape, KR_SSD_MAMBA2, in, path);
}
KR_API_INLINE kr_ssd_out kr_mamba3_double_ssd_run(kr_tape *tape, const kr_mamba3_double_ssd_input *in, kr_ssd_path path)
{
    return kr_ssd_core_run(tape, KR_SSD_MAMBA3_DOUBLE, in, path);
}
KR_API_INLINE kr_ssd_out kr_mamba3_single_ssd_run(kr_tape *tape, const kr_mamba3_single_ssd_input *in, kr_ssd_path path)
{
    return kr_ssd_core_run(tape, KR_SSD_MAMBA3_SINGLE, in, path);
}

/* Checks all operands for NaN and infinity, and for a positive log-decay: KR_ERR_NUMERIC with operand and index. */
KR_API kr_status kr_ssd_core_sanity(kr_tape *tape, kr_ssd_kind kind, const void *in);
KR_API_INLINE kr_status kr_mamba2_ssd_sanity(kr_tape *tape, const kr_mamba2_ssd_input *in)
{
    return kr_ssd_core_sanity(tape, KR_SSD_MAMBA2, in);
}
KR_API_INLINE kr_status kr_mamba3_double_ssd_sanity(kr_tape *tape, const kr_mamba3_double_ssd_input *in)
{
    return kr_ssd_core_sanity(tape, KR_SSD_MAMBA3_DOUBLE, in);
}
KR_API_INLINE kr_status kr_mamba3_single_ssd_sanity(kr_tape *tape, const kr_mamba3_single_ssd_input *in)
{
    return kr_ssd_core_sanity(tape, KR_SSD_MAMBA3_SINGLE, in);
}

/* ==== Selective scan ====
 *
 * The selective scan of Mamba-1: a diagonal SSM with input-dependent dt, B and C.
 *
 *   kr_selective_scan_input in = { .x_bsi = x_bsi, .dt_bsi = dt_bsi, .a_ir = a_ir, .b_bsgr = b_bsgr,
 *                                  .c_bsgr = c_bsgr };
 *   kr_scan_out part = kr_selective_scan(tape, &in);
 *   in.initial_state_bir = part.final_state;             // continues with the next tokens
 */

typedef struct kr_selective_scan_input {
    kr_tensor *x_bsi;
    kr_tensor *dt_bsi;            /* step size dt, after softplus */
    kr_tensor *a_ir;              /* decay rates, < 0 */
    kr_tensor *b_bsgr, *c_bsgr;   /* for g groups; channel i uses group i / (i_total / g) */
    kr_tensor *d_i;               /* NULL: no skip connection */
    kr_tensor *z_bsi;             /* NULL: no gate */
    kr_tensor *initial_state_bir; /* NULL: 0; with seq_start_bs one state per sequence, [q i r] */
    /* i32 or i64: nonzero where a sequence starts and the state is reset; NULL: one sequence per row. The first token
     * of a row always starts a sequence. */
    kr_tensor *seq_start_bs;
    kr_tensor *cu_seqlens; /* instead of seq_start_bs: i32 or i64 [q+1]; see kr_seq_start_from_cu_seqlens */
    void *reserved[3];     /* must be NULL; for later versions */
} kr_selective_scan_input;

typedef struct kr_scan_out {
    kr_tensor *y_bsi;
    kr_tensor *final_state; /* [b i r]; with seq_start_bs [q i r], one per sequence, row after row */
    void *reserved[4];      /* NULL; for later versions */
} kr_scan_out;

/* For each channel, with its state H [r]:
 *   H_t = exp(dt_t A) H_{t-1} + dt_t B_t x_t;   y_t = <C_t, H_t> + D x_t, times silu(z_t) with a gate
 * One node that stores only its inputs; the backward pass recomputes the states. All float operands have gradients,
 * through y and through the final state. A positive rate is computed as given. */
KR_API kr_scan_out kr_selective_scan(kr_tape *tape, const kr_selective_scan_input *in);

/* ==== Parts of Mamba-3 ====
 *
 * The parts of a Mamba-3 block around its SSD core: coefficients, norms, rotations.
 *
 *   kr_tensor *raw_bsh = kr_randn(tape, KR_DTYPE_F32, KR_SHAPE(2, 64, 4));
 *   kr_tensor *theta_bsa = kr_randn(tape, KR_DTYPE_F32, KR_SHAPE(2, 64, 8));
 *   kr_tensor *b_bsmgr = kr_randn(tape, KR_DTYPE_F32, KR_SHAPE(2, 64, 1, 1, 32));
 *   kr_trapezoid_out step = kr_trapezoid(tape, raw_bsh, NULL, raw_bsh, raw_bsh, NULL);
 *   kr_rotation_out rotary = kr_rotation_angles(tape, theta_bsa, step.dt_bsh, NULL, 1, NULL);
 *   kr_tensor *b_bsmhr = kr_qk_norm(tape, b_bsmgr, NULL, NULL, 4, 1e-5);
 *   b_bsmhr = kr_rotate(tape, b_bsmhr, rotary.angle_bsha, KR_PAIRING_ADJACENT);
 *
 * Every float operand has a gradient. For bf16 and f16 operands, coefficients, angles and quaternions are f32:
 * cumulative sums along a sequence need that precision.
 *
 * Packed rows: seq_start_bs (i32 or i64, or NULL) is nonzero where a sequence starts within a row; the first token of a
 * row always starts one. Initial and final values then have one row per sequence, [q ..] instead of [b ..], row after
 * row. */

/* ---- the trapezoidal rule ---- */

/* Activation of the decay rate: heavy tail is 1 + x for x >= 0 and 1 / (1 - x) for x < 0. */
typedef enum kr_a_activation { KR_A_ACTIVATION_HEAVY_TAIL = 0, KR_A_ACTIVATION_SOFTPLUS = 1 } kr_a_activation;

typedef struct kr_trapezoid_options {
    size_t size; /* set by kr_trapezoid_options_init */
    kr_a_activation a_activation;
    double a_floor;        /* 1e-4, > 0: minimum decay rate */
    double dt_min, dt_max; /* 0, infinity: limits of dt */
} kr_trapezoid_options;
#define kr_trapezoid_options_init(options) KR_STRUCT_INIT(TRAPEZOID_OPTIONS, kr_trapezoid_options, options)

typedef struct kr_trapezoid_out {
    kr_tensor *dt_bsh;    /* step size: softplus(dt_raw + dt_bias), clamped to its limits */
    kr_tensor *da_bsh;    /* log-decay dt A, A = -max(activation(a_raw), a_floor) */
    kr_tensor *gamma_bsh; /* lambda dt, lambda = sigmoid(lambda_raw): weight of the current token */
    kr_tensor *carry_bsh; /* (1 - lambda) dt: weight of the previous token, before decay */
    kr_tensor *beta_bsh;  /* carry exp(da) */
    void *reserved[4];    /* NULL; for later versions */
} kr_trapezoid_out;

/* All operands are [b s h], except dt_bias, [h] or NULL. NULL options: all defaults. */
KR_API kr_trapezoid_out kr_trapezoid(kr_tape *tape, kr_tensor *dt_raw_bsh, kr_tensor *dt_bias_h, kr_tensor *a_raw_bsh,
                                     kr_tensor *lambda_raw_bsh, const kr_trapezoid_options *options);

/* scale_t = gamma_t + carry_{t+1}; the carry after the last token of a sequence is 0. */
KR_API kr_tensor *kr_trapezoid_scale(kr_tape *tape, kr_tensor *gamma_bsh, kr_tensor *carry_bsh,
                                     kr_tensor *seq_start_bs);

/* The state before the first token, including the contribution of the previous token: state + carry0 sum_m v[m] (outer)
 * k[m]. state [b h p r] or NULL (0); carry0 [b h]: the carry of the first token; v [b m h p] and k [b m h r]: values
 * and rotated keys of the previous token. */
KR_API kr_tensor *kr_boundary_state(kr_tape *tape, kr_tensor *state_bhpr, kr_tensor *carry0_bh, kr_tensor *v_bmhp,
                                    kr_tensor *k_bmhr);

/* RMS norm over r, then gain, then broadcast of groups to heads, then bias per head: x [b s m g r], gain [r] or NULL,
 * bias [h m r] or NULL -> [b s m h r]. Head h uses group h / (n_heads / g). */
KR_API kr_tensor *kr_qk_norm(kr_tape *tape, kr_tensor *x_bsmgr, kr_tensor *gain_r, kr_tensor *bias_hmr, int64_t n_heads,
                             double eps);

/* ---- rotary embedding by angles ---- */

typedef struct kr_rotation_out {
    kr_tensor *angle_bsha; /* angle of each token, in [-pi, pi] */
    kr_tensor *final_bha;  /* angle after the last token, the initial_angle of the next call */
    void *reserved[4];     /* NULL; for later versions */
} kr_rotation_out;

/* phi_t = phi_{t-1} + dt range pi tanh(theta), wrapped to [-pi, pi]; the wrap is constant in gradients. theta [b s a],
 * dt [b s h], initial_angle [b h a] or NULL (0). range > 0: multiples of pi per unit of dt. */
KR_API kr_rotation_out kr_rotation_angles(kr_tape *tape, kr_tensor *theta_bsa, kr_tensor *dt_bsh,
                                          kr_tensor *initial_angle_bha, double range, kr_tensor *seq_start_bs);

/* The two entries of pair i of a row: 2i and 2i + 1, or i and i + r/2. */
typedef enum kr_pairing { KR_PAIRING_ADJACENT = 0, KR_PAIRING_SPLIT = 1 } kr_pairing;

/* Rotates the first a pairs of each row, (x0 cos - x1 sin, x0 sin + x1 cos); other entries are unchanged. x [b s m h
 * r], angle [b s h a], the same for all ranks. */
KR_API kr_tensor *kr_rotate(kr_tape *tape, kr_tensor *x_bsmhr, kr_tensor *angle_bsha, kr_pairing pairing);

/* ---- rotary embedding by quaternions (w, x, y, z) ---- */

/* exp of half a bounded generator: (cos f, n sin f), f = dt range pi/2 tanh(|raw|), n = raw / |raw|. raw [b s h j 3],
 * dt [b s h] -> [b s h j 4], unit quaternions. */
KR_API kr_tensor *kr_quaternion_increments(kr_tape *tape, kr_tensor *raw_bshj3, kr_tensor *dt_bsh, double range);

typedef struct kr_quaternion_out {
    kr_tensor *cum_bshj4;
    kr_tensor *final_bhj4; /* after the last token, the initial value of the next call */
    void *reserved[4];     /* NULL; for later versions */
} kr_quaternion_out;

/* Cumulative product Q_t = q_t (x) Q_{t-1}, normalised. q [b s h j 4], initial [b h j 4] or NULL (1). */
KR_API kr_quaternion_out kr_quaternion_cumprod(kr_tape *tape, kr_tensor *q_bshj4, kr_tensor *initial_bhj4,
                                               kr_tensor *seq_start_bs);

/* conj(Q) (x) x for the first j blocks of four entries of each row; other entries are unchanged. x [b s m h r], cum [b
 * s h j 4], the same for all ranks. */
KR_API kr_tensor *kr_quaternion_rotate(kr_tape *tape, kr_tensor *x_bsmhr, kr_tensor *cum_bshj4);

#ifdef __cplusplus
}
#endif
#endif
