/* ops_mamba3.h - the parts of a Mamba-3 block around its state space core: coefficients, norms, rotations.
 *
 *   kr_tensor *raw_bsh = kr_randn(tape, KR_DTYPE_F32, KR_SHAPE(2, 64, 4));
 *   kr_tensor *theta_bsa = kr_randn(tape, KR_DTYPE_F32, KR_SHAPE(2, 64, 8));
 *   kr_tensor *b_bsmgr = kr_randn(tape, KR_DTYPE_F32, KR_SHAPE(2, 64, 1, 1, 32));
 *   kr_trapezoid_out step = kr_trapezoid(tape, raw_bsh, NULL, raw_bsh, raw_bsh, NULL);
 *   kr_rotation_out turn = kr_rotation_angles(tape, theta_bsa, step.dt_bsh, NULL, 1, NULL);
 *   kr_tensor *b_bsmhr = kr_qk_norm(tape, b_bsmgr, NULL, NULL, 4, 1e-5);
 *   b_bsmhr = kr_rotate(tape, b_bsmhr, turn.angle_bsha, KR_PAIRING_ADJACENT);
 *
 * Every float operand has a gradient. Where operands are bf16 or f16, coefficients, angles and quaternions come out in
 * f32: sums along a sequence do not survive eight bits.
 *
 * Sequences: seq_start_bs (i32 or i64, or NULL) is not 0 where a new sequence begins inside a row; the first token of a
 * row always begins one. What is carried in and out is then one for each sequence, [q ..] in place of [b ..], rows one
 * after another.
 */
#ifndef KRAIT_OPS_MAMBA3_H
#define KRAIT_OPS_MAMBA3_H

#include <krait/ops_nn.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- the trapezoidal rule ---- */

/* What makes the decay rate of a_raw: heavy tail is 1 + x for x >= 0 and 1 / (1 - x) below. */
typedef enum kr_a_activation { KR_A_ACTIVATION_HEAVY_TAIL = 0, KR_A_ACTIVATION_SOFTPLUS = 1 } kr_a_activation;

typedef struct kr_trapezoid_options {
    size_t size; /* set by kr_trapezoid_options_init */
    kr_a_activation a_activation;
    double a_floor;        /* 1e-4, > 0: the least decay rate */
    double dt_min, dt_max; /* 0, infinity: limits of the step */
} kr_trapezoid_options;
#define kr_trapezoid_options_init(options) KR_STRUCT_INIT(TRAPEZOID_OPTIONS, kr_trapezoid_options, options)

typedef struct kr_trapezoid_out {
    kr_tensor *dt_bsh;    /* the step: softplus(dt_raw + dt_bias), within its limits */
    kr_tensor *da_bsh;    /* log-decay dt A, A = -max(activation(a_raw), a_floor) */
    kr_tensor *gamma_bsh; /* lambda dt, lambda = sigmoid(lambda_raw): weight of the token itself */
    kr_tensor *carry_bsh; /* (1 - lambda) dt: weight of the token before, not yet decayed */
    kr_tensor *beta_bsh;  /* carry exp(da) */
    void *reserved[4];    /* NULL; for later versions */
} kr_trapezoid_out;

/* All operands [b s h] but dt_bias [h] or NULL. NULL options are the defaults. */
KR_API kr_trapezoid_out kr_trapezoid(kr_tape *tape, kr_tensor *dt_raw_bsh, kr_tensor *dt_bias_h, kr_tensor *a_raw_bsh,
                                     kr_tensor *lambda_raw_bsh, const kr_trapezoid_options *options);

/* scale_t = gamma_t + carry_{t+1}; after the last token of a sequence there is no carry. */
KR_API kr_tensor *kr_trapezoid_scale(kr_tape *tape, kr_tensor *gamma_bsh, kr_tensor *carry_bsh,
                                     kr_tensor *seq_start_bs);

/* The state before the first token with the previous token's share in it: state + carry0 sum_m v[m] (outer) k[m].
 * state [b h p r] or NULL (0), carry0 [b h]: the carry of the first token, v [b m h p] and k [b m h r]: the previous
 * token's values and rotated keys. */
KR_API kr_tensor *kr_boundary_state(kr_tape *tape, kr_tensor *state_bhpr, kr_tensor *carry0_bh, kr_tensor *v_bmhp,
                                    kr_tensor *k_bmhr);

/* RMS norm over r, then gain, then each group's rows given to its heads, then the head's bias:
 * x [b s m g r], gain [r] or NULL, bias [h m r] or NULL -> [b s m h r]. Head h uses group h / (nheads / g). */
KR_API kr_tensor *kr_qk_norm(kr_tape *tape, kr_tensor *x_bsmgr, kr_tensor *gain_r, kr_tensor *bias_hmr, int64_t nheads,
                             double eps);

/* ---- rotation by angles ---- */

typedef struct kr_rotation_out {
    kr_tensor *angle_bsha; /* of each token, in [-pi, pi] */
    kr_tensor *final_bha;  /* of the last token: what the next call continues from */
    void *reserved[4];     /* NULL; for later versions */
} kr_rotation_out;

/* phi_t = phi_{t-1} + dt range pi tanh(theta), kept in [-pi, pi] by whole turns, which are constants for gradients.
 * theta [b s a], dt [b s h], initial_angle [b h a] or NULL (0). range > 0 is in half-turns for each unit of dt. */
KR_API kr_rotation_out kr_rotation_angles(kr_tape *tape, kr_tensor *theta_bsa, kr_tensor *dt_bsh,
                                          kr_tensor *initial_angle_bha, double range, kr_tensor *seq_start_bs);

/* Which two entries of a row make pair i: 2i and 2i + 1, or i and i + r/2. */
typedef enum kr_pairing { KR_PAIRING_ADJACENT = 0, KR_PAIRING_SPLIT = 1 } kr_pairing;

/* Turns the first a pairs of each row, (x0 cos - x1 sin, x0 sin + x1 cos); the other entries pass. x [b s m h r],
 * angle [b s h a]: the same for all ranks. */
KR_API kr_tensor *kr_rotate(kr_tape *tape, kr_tensor *x_bsmhr, kr_tensor *angle_bsha, kr_pairing pairing);

/* ---- rotation by quaternions (w, x, y, z) ---- */

/* exp of half a bounded generator: (cos f, n sin f), f = dt range pi/2 tanh(|raw|), n = raw / |raw|.
 * raw [b s h j 3], dt [b s h] -> [b s h j 4], of length 1. */
KR_API kr_tensor *kr_quaternion_increments(kr_tape *tape, kr_tensor *raw_bshj3, kr_tensor *dt_bsh, double range);

typedef struct kr_quaternion_out {
    kr_tensor *cum_bshj4;
    kr_tensor *final_bhj4; /* of the last token: what the next call continues from */
    void *reserved[4];     /* NULL; for later versions */
} kr_quaternion_out;

/* Q_t = q_t (x) Q_{t-1}, brought to length 1. q [b s h j 4], initial [b h j 4] or NULL (1). */
KR_API kr_quaternion_out kr_quaternion_cumprod(kr_tape *tape, kr_tensor *q_bshj4, kr_tensor *initial_bhj4,
                                               kr_tensor *seq_start_bs);

/* conj(Q) (x) x for the first j blocks of four entries of each row; the other entries pass. x [b s m h r],
 * cum [b s h j 4]: the same for all ranks. */
KR_API kr_tensor *kr_quaternion_rotate(kr_tape *tape, kr_tensor *x_bsmhr, kr_tensor *cum_bshj4);

#ifdef __cplusplus
}
#endif
#endif
