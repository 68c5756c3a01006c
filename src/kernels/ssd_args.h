/* ssd_args.h - the argument structs of the state space kernels: the core of Mamba-2 and Mamba-3, and Mamba-1's scan. */
#ifndef KR_KERNELS_SSD_ARGS_H
#define KR_KERNELS_SSD_ARGS_H

#include "kernels/exec.h"
#include "kernels/matmul_args.h"
#include "kernels/places.h"
#include "kernels/sequence.h"

/* The state space core of all families (docs/ssd.md). For each sequence q and head h, with group e = h / (nh/ng):
 *
 *   H_t    = exp(da_t) H_{t-1} + w_t sum_m V_t[m] (outer) B_t[m]          H_{start-1} = initial[q, h],  H is [p r]
 *   y_t[m] = H_t C_t[m]                                                   inclusive (same NULL)
 *   y_t[m] = exp(da_t) H_{t-1} C_t[m] + same_t sum_m' <C_t[m], B_t[m']> V_t[m']    strict (same given)
 *   y_t[m] += D_h V_t[m] if d is given;   final[q, h] = H_{end-1}
 *   with seed: H_{start-1} = initial[q, h] + seed[q, h] sum_m seed_v[q, m, h] (outer) seed_b[q, m, h]
 *
 * v, y [b s m h p], b, c [b s m g r], da, w, same [b s h], d [h], initial, final [q h p r], seed [q h], seed_v [q m h p],
 * seed_b [q m h r]. w NULL is 1; initial NULL is 0; seed NULL is none, and then the other two are not read. A token of
 * v, b, c is contiguous; tokens, row after row, begin v_stride, b_stride, c_stride elements apart.
 * Tokens of no sequence are not read and their y is not written. nl is the chunk length of the parallel form: it may
 * change rounding, not meaning. final may be initial itself: the same bits, in place.
 *
 * With angle [b s h a], which the reference and CUDA alone take, every head has B and C of its own: those of its group,
 * plus bias_b and bias_c [h m r] (NULL: 0), turned as kr_rotate_args says, with pairs of halves if `half`; angles are
 * wrapped, as kr_angles_args has them. Then b and c are contiguous. seed_b is turned already. */
typedef struct kr_ssd_args {
    kr_exec exec;
    int64_t nb, ns, nm, nh, np, ng, nr, nl, nq, v_stride, b_stride, c_stride;
    const kr_sequence *sequences; /* [q] */
    const void *v, *b, *c, *da, *w, *same, *d, *initial, *seed, *seed_v, *seed_b;
    void *y, *final;
    kr_half v_half, b_half, c_half,
        y_half;                          /* of v, b, c, y: bf16 for the f32 slot of CUDA alone, elsewhere KR_NO_HALF */
    const void *angle, *bias_b, *bias_c; /* NULL: B and C are as they come */
    int64_t na;
    bool half;
} kr_ssd_args;

/* Gradients of the above without seed; states are recomputed. g_final NULL is 0. g_v, g_b, g_c, g_da, g_w, g_same, g_d, g_initial
 * may be NULL when not wanted; tokens of no sequence get 0. All are written. Sums over heads (g_b, g_c) and over tokens
 * (g_d) have a fixed order. g_y and all results are contiguous, but for g_v of the f32 slot of CUDA, where g_v_place has a
 * gap between tokens: with nm = 1, and 0 is not written into the gaps.
 * With angle: g_b and g_c are of the groups' B and C and not halves, g_angle [b s h a], g_bias_b, g_bias_c [h m r] (may be
 * NULL likewise). */
typedef struct kr_ssd_bwd_args {
    kr_exec exec;
    int64_t nb, ns, nm, nh, np, ng, nr, nl, nq, v_stride, b_stride, c_stride;
    const kr_sequence *sequences;
    const void *v, *b, *c, *da, *w, *same, *d, *initial, *g_y, *g_final;
    void *g_v, *g_b, *g_c, *g_da, *g_w, *g_same, *g_d, *g_initial;
    kr_half v_half, b_half, c_half, g_y_half; /* as above */
    kr_half g_maps_half;                      /* of g_b and of g_c, likewise */
    kr_place g_v_place;
    const void *angle, *bias_b, *bias_c;
    void *g_angle, *g_bias_b, *g_bias_c;
    int64_t na;
    bool half;
} kr_ssd_bwd_args;

/* The selective scan of Mamba-1. For each sequence q and channel i, with group e = i / (ni/ng), state H [r]:
 *
 *   H_t[r] = exp(dt_t A[i, r]) H_{t-1}[r] + dt_t B_t[e, r] x_t;   y_t = sum_r C_t[e, r] H_t[r] + D_i x_t
 *   with gate: y_t *= silu(z_t)
 *
 * x, dt, z, y [b s i], a [i r] (< 0), b, c [b s g r], d [i] or NULL, z NULL: no gate, initial, final [q i r]. initial
 * NULL is 0, final NULL is not wanted. A token of x, dt, z, b, c is contiguous; tokens, row after row, begin as many
 * elements apart as the strides say. Tokens of no sequence are not read and their y is not written. final may be
 * initial itself: the same bits, in place. */
typedef struct kr_scan_args {
    kr_exec exec;
    int64_t nb, ns, ni, ng, nr, nq, x_stride, dt_stride, z_stride, b_stride, c_stride;
    const kr_sequence *sequences;
    const void *x, *dt, *a, *b, *c, *d, *z, *initial;
    void *y, *final;
} kr_scan_args;

/* Gradients of the above; states are recomputed. g_final NULL is 0. Any of the results may be NULL when not wanted;
 * tokens of no sequence get 0. All are written. Sums over channels (g_b, g_c) and over tokens (g_a, g_d) have a fixed
 * order. g_y and all results are contiguous. */
typedef struct kr_scan_bwd_args {
    kr_exec exec;
    int64_t nb, ns, ni, ng, nr, nq, x_stride, dt_stride, z_stride, b_stride, c_stride;
    const kr_sequence *sequences;
    const void *x, *dt, *a, *b, *c, *d, *z, *initial, *g_y, *g_final;
    void *g_x, *g_dt, *g_a, *g_b, *g_c, *g_d, *g_z, *g_initial;
} kr_scan_bwd_args;

#endif
