/* mamba3_args.h - the argument structs of Mamba-3's own kernels: coefficients, angles, rotations, quaternions.
 *
 * Angles and quaternions accumulate over sequences (kernels/sequence.h), which together hold every token.
 */
#ifndef KR_KERNELS_ARGS_MAMBA3_ARGS_H
#define KR_KERNELS_ARGS_MAMBA3_ARGS_H

#include "kernels/exec.h"
#include "kernels/args/operand.h"
#include "kernels/sequence.h"

/* The coefficients of the trapezoidal discretisation, for each token o and head h:
 *
 *   dt = min(max(softplus(dt_raw + dt_bias), dt_min), dt_max)       a = -max(f(a_raw), a_floor)
 *   f(x) = 1 + x for x >= 0, 1 / (1 - x) below; or softplus(x)      l = sigmoid(lambda_raw)
 *   da = dt a    gamma = l dt    carry = (1 - l) dt    beta = carry exp(da)
 *
 * All [no nh], dt_bias [nh] or NULL; dt_raw, a_raw and lambda_raw have one row stride. NaN propagates. */
typedef struct kr_trapezoid_args {
    kr_exec exec;
    int64_t no, nh;
    kr_operand dt_raw, a_raw, lambda_raw;
    const void *dt_bias;
    void *dt, *da, *gamma, *carry, *beta;
    double a_floor, dt_min, dt_max;
    bool softplus; /* f; otherwise the rational one */
} kr_trapezoid_args;

/* With e = exp(da), c = g_carry + e g_beta, d = g_da + carry e g_beta:
 *   g_dt_raw = (g_dt + a d + l g_gamma + (1 - l) c) softplus'(dt_raw + dt_bias), 0 where dt is clamped
 *   g_a_raw = -dt d f'(a_raw), 0 where the floor applies;   g_lambda_raw = dt (g_gamma - c) l (1 - l)
 * Incoming gradients may be NULL (0), outgoing ones absent when not wanted; the three operands among them have one row stride
 * and type. Summed over tokens, g_dt_raw is the gradient of dt_bias; where it is rounded or strided, g_dt_summed, unless NULL,
 * gets it once more, contiguous and of the slot's type. At a limit the gradient passes. */
typedef struct kr_trapezoid_bwd_args {
    kr_exec exec;
    int64_t no, nh;
    kr_operand dt_raw, a_raw, lambda_raw;
    const void *dt_bias;
    const void *g_dt, *g_da, *g_gamma, *g_carry, *g_beta;
    kr_operand g_dt_raw, g_a_raw, g_lambda_raw;
    void *g_dt_summed;
    double a_floor, dt_min, dt_max;
    bool softplus;
} kr_trapezoid_bwd_args;

/* Angles that accumulate along each sequence q:
 *
 *   phi_t[h, a] = wrap(phi_{t-1}[h, a] + dt_t[h] range pi tanh(theta_t[a]));   wrap(x) = x - 2 pi round(x / 2 pi)
 *
 * theta [b s a], dt [b s h], angle [b s h a]; initial [q h a] or NULL (0), final [q h a]. A row of theta is a token.
 * The running angle and its increments are in double for f32 too, so that it does not
 * drift over long sequences. The reference and the CPU kernels round it every nl tokens of a sequence to what a call would
 * return there and the next one begin with; nl 0: not inside a call. */
typedef struct kr_angles_args {
    kr_exec exec;
    int64_t nb, ns, nh, na, nq, nl;
    const kr_sequence *sequences; /* [q] */
    kr_operand theta;
    const void *dt, *initial;
    void *angle, *final;
    double range;
} kr_angles_args;

/* With G_t[h, a] = g_final + sum of g_angle_k over k >= t of the sequence (multiples of 2 pi removed by wrap are
 * constants):
 *   g_initial = G_start;   g_dt_t[h] = range pi sum_a G_t[h, a] tanh(theta_t[a])
 *   g_theta_t[a] = range pi (1 - tanh^2(theta_t[a])) sum_h dt_t[h] G_t[h, a]
 * g_final NULL is 0; g_theta absent, g_dt, g_initial NULL: not wanted. */
typedef struct kr_angles_bwd_args {
    kr_exec exec;
    int64_t nb, ns, nh, na, nq;
    const kr_sequence *sequences;
    kr_operand theta;
    const void *dt, *g_angle, *g_final;
    kr_operand g_theta;
    void *g_dt, *g_initial;
    double range;
} kr_angles_bwd_args;

/* Rotary embedding of rows u = x + bias, x repeated for the heads of its group: the first na pairs of each are rotated by
 * their angle, the rest of the row is copied:
 *
 *   (y0, y1) = (u0 cos - u1 sin, u0 sin + u1 cos);   pair i is (2i, 2i + 1), or with split_pairs (i, i + nr/2)
 *
 * x [no nm ng nr], bias [nh nm nr] or NULL, y [no nm nh nr], angle [no nh na], the same for all ranks m. Head h is in group
 * h / (nh / ng). y is contiguous. 2 na <= nr; with split_pairs nr is even. */
typedef struct kr_rotate_args {
    kr_exec exec;
    int64_t no, nm, nh, ng, nr, na;
    const void *x, *bias, *angle;
    kr_operand y;
    bool split_pairs;
} kr_rotate_args;

/* g_u is g_y rotated back; g_x = sum of g_u over the heads of a group; g_bias = sum of g_u over o; g_angle = sum over m of
 * u0 g_u1 - u1 g_u0, added to what is there with `accumulate`. Each may be NULL when not wanted. */
typedef struct kr_rotate_bwd_args {
    kr_exec exec;
    int64_t no, nm, nh, ng, nr, na;
    const void *x, *bias, *angle, *g_y;
    void *g_x, *g_bias, *g_angle;
    bool split_pairs, accumulate;
} kr_rotate_bwd_args;

/* Unit quaternions (w, x, y, z) from generators of bounded length. With rho = |raw|, n = raw / rho (0 where rho is 0):
 *
 *   q = (cos f, n sin f),   f = dt range pi/2 tanh(rho)
 *
 * raw [no nj 3], dt [no], q [no nj 4]. */
typedef struct kr_quaternion_exp_args {
    kr_exec exec;
    int64_t no, nj;
    const void *raw, *dt;
    void *q;
    double range;
} kr_quaternion_exp_args;

/* With g_q = (g_w, g_v), k = range pi/2, g_f = cos f <n, g_v> - sin f g_w, s = sin f / rho (dt k where rho is 0):
 *   g_raw = n g_f dt k (1 - tanh^2(rho)) + s (g_v - n <n, g_v>);   g_dt = sum_j g_f k tanh(rho)
 * Either may be NULL when not wanted. */
typedef struct kr_quaternion_exp_bwd_args {
    kr_exec exec;
    int64_t no, nj;
    const void *raw, *dt, *g_q;
    void *g_raw, *g_dt;
    double range;
} kr_quaternion_exp_bwd_args;

/* Cumulative products along each sequence q, the newest factor on the left:
 *
 *   cum_t = p_t / |p_t|,   p_t = q_t (x) cum_{t-1},   cum_{start-1} = initial[q] (NULL: 1)
 *
 * q, cum [b s h j 4], initial, final [q h j 4]; (x) is the Hamilton product. The running product is in double for f32 too, and
 * rounded every nl tokens as the running angle is. */
typedef struct kr_quaternion_scan_args {
    kr_exec exec;
    int64_t nb, ns, nh, nj, nq, nl;
    const kr_sequence *sequences;
    const void *q, *initial;
    void *cum, *final;
} kr_quaternion_scan_args;

/* From the last token to the first, with G_end = g_final:
 *   G_t = g_cum_t + conj(q_{t+1}) (x) P_{t+1};   P_t = (G_t - c <c, G_t>) / |p_t|, c = p_t / |p_t|
 *   g_q_t = P_t (x) conj(cum_{t-1});   g_initial = conj(q_start) (x) P_start
 * cum is the result of the forward pass; g_final NULL is 0; g_q, g_initial NULL: not wanted. */
typedef struct kr_quaternion_scan_bwd_args {
    kr_exec exec;
    int64_t nb, ns, nh, nj, nq;
    const kr_sequence *sequences;
    const void *q, *initial, *cum, *g_cum, *g_final;
    void *g_q, *g_initial;
} kr_quaternion_scan_bwd_args;

/* The first nj blocks of four of each row rotated, the rest copied:   y = conj(cum) (x) x x, y [no nm nh nr], cum [no nh nj
 * 4], the same for all ranks m. 4 nj <= nr. */
typedef struct kr_quaternion_rotate_args {
    kr_exec exec;
    int64_t no, nm, nh, nr, nj;
    const void *x, *cum;
    void *y;
} kr_quaternion_rotate_args;

/* g_x = cum (x) g_y;   g_cum = sum over m of x (x) conj(g_y). Either may be NULL when not wanted. */
typedef struct kr_quaternion_rotate_bwd_args {
    kr_exec exec;
    int64_t no, nm, nh, nr, nj;
    const void *x, *cum, *g_y;
    void *g_x, *g_cum;
} kr_quaternion_rotate_bwd_args;

#endif
