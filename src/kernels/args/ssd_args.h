/* ssd_args.h - the argument structs of the state space kernels: the SSD core of Mamba-2 and Mamba-3, and the selective scan
 * of Mamba-1. */
#ifndef KR_KERNELS_ARGS_SSD_ARGS_H
#define KR_KERNELS_ARGS_SSD_ARGS_H

#include "kernels/exec.h"
#include "kernels/args/operand.h"
#include "kernels/sequence.h"

/* The SSD core of all families (docs/ssd.md). For each sequence q and head h, with group e = h / (nh/ng):
 *
 *   H_t    = exp(da_t) H_{t-1} + w_t sum_m V_t[m] (outer) B_t[m]          H_{start-1} = initial[q, h],  H is [p r]
 *   y_t[m] = H_t C_t[m]                                                   inclusive (diag_weight NULL)
 *   y_t[m] = exp(da_t) H_{t-1} C_t[m] + diag_weight_t sum_m' <C_t[m], B_t[m']> V_t[m']    strict (diag_weight given)
 *   y_t[m] += D_h V_t[m] if d is given;   final[q, h] = H_{end-1}
 *   with boundary: H_{start-1} = initial[q, h] + boundary[q, h] sum_m boundary_v[q, m, h] (outer) boundary_b[q, m, h]
 *
 * v, y [b s m h p], b, c [b s m g r], da, w, diag_weight, carry [b s h], d [h], initial, final [q h p r], boundary [q h],
 * boundary_v [q m h p], boundary_b [q m h r]. w NULL is 1; initial NULL is 0; boundary NULL is none, and then the other two
 * are not read. A row of v, b, c, y is a token, which is contiguous; y's rows are, too.
 * Tokens outside all sequences are not read and their y is not written. nl is the chunk length of the parallel form,
 * counted from the start of each sequence: it may change rounding, not meaning. final may be initial itself: the same bits,
 * in place.
 *
 * The reference and the kernels of the CPU treat the end of a chunk as the end of a call, so that a sequence has the same bits in one
 * call and in several that are cut at multiples of nl:
 *   - the state is rounded to the type of `final`;
 *   - carry (strict, w given) says that w_t = diag_weight_t + carry_{t+1}, and diag_weight_t at the end of a sequence. The last
 *     token of a chunk then enters the state with diag_weight_t, and the rest, carry_{t+1} sum_m V_t[m] (outer) B_t[m], is
 *     added at the start of the next chunk, as `boundary` is at the start of a call. NULL: w_t as given;
 *   - pair is a second core with the same sizes, strides, sequences, da and c, without w, diag_weight, carry, initial, boundary,
 *     angle and pair. Its state starts each chunk from 0. At the end of each chunk but the last it is added to the state of
 *     the first core. The sums of both y and of both final are those of two separate runs. NULL: none.
 * What replaces them on the CPU is given both and has to do the same. Kernels of a device may ignore carry, and are not given
 * pair.
 *
 * With angle [b s h a], which only sets that take bf16 for v, b and c are given, B and C of each head are those of its group, plus bias_b
 * and bias_c [h m r] (NULL: 0), rotated as in kr_rotate_args, with `split_pairs` as there; angles are wrapped, as in
 * kr_angles_args. Then b and c are contiguous. boundary_b is rotated already. */
typedef struct kr_ssd_args {
    kr_exec exec;
    int64_t nb, ns, nm, nh, np, ng, nr, nl, nq;
    const kr_sequence *sequences; /* [q] */
    kr_operand v, b, c;
    const void *da, *w, *diag_weight, *d, *initial, *boundary, *boundary_v, *boundary_b, *carry;
    const struct kr_ssd_args *pair;
    kr_operand y;
    void *final;
    const void *angle, *bias_b, *bias_c; /* NULL: B and C are used as given */
    int64_t na;
    bool split_pairs;
} kr_ssd_args;

/* Gradients of the above without boundary; states are recomputed. g_final NULL is 0. g_v, g_b, g_c, g_da, g_w,
 * g_diag_weight, g_d, g_initial may be absent when not wanted; tokens outside all sequences get 0. All are written. Sums over
 * heads (g_b, g_c) and over tokens (g_d) have a fixed order. g_y and all results are contiguous, except that with nm = 1 g_v
 * may have strided rows, its tokens. g_b and g_c are of one type. With angle: g_b and g_c are of the groups' B and C
 * and of the slot's type, g_angle [b s h a], g_bias_b, g_bias_c [h m r] (may be NULL likewise). */
typedef struct kr_ssd_bwd_args {
    kr_exec exec;
    int64_t nb, ns, nm, nh, np, ng, nr, nl, nq;
    const kr_sequence *sequences;
    kr_operand v, b, c, g_y;
    const void *da, *w, *diag_weight, *d, *initial, *g_final;
    kr_operand g_v, g_b, g_c;
    void *g_da, *g_w, *g_diag_weight, *g_d, *g_initial;
    const void *angle, *bias_b, *bias_c;
    void *g_angle, *g_bias_b, *g_bias_c;
    int64_t na;
    bool split_pairs;
} kr_ssd_bwd_args;

/* The selective scan of Mamba-1. For each sequence q and channel i, with group e = i / (ni/ng), state H [r]:
 *
 *   H_t[r] = exp(dt_t A[i, r]) H_{t-1}[r] + dt_t B_t[e, r] x_t;   y_t = sum_r C_t[e, r] H_t[r] + D_i x_t
 *   with gate: y_t *= silu(z_t)
 *
 * x, dt, z, y [b s i], a [i r] (< 0), b, c [b s g r], d [i] or NULL, z NULL: no gate, initial, final [q i r]. initial NULL
 * is 0, final NULL is not wanted. A row of x, dt, z, b, c is a token, which is contiguous. Tokens outside all sequences are
 * not read and their y is not written. final may be initial itself: the same bits, in place. */
typedef struct kr_scan_args {
    kr_exec exec;
    int64_t nb, ns, ni, ng, nr, nq;
    const kr_sequence *sequences;
    kr_operand x, dt, z, b, c;
    const void *a, *d, *initial;
    void *y, *final;
} kr_scan_args;

/* Gradients of the above; states are recomputed. g_final NULL is 0. Any of the results may be NULL when not wanted; tokens
 * outside all sequences get 0. All are written. Sums over channels (g_b, g_c) and over tokens (g_a, g_d) have a fixed
 * order. g_y and all results are contiguous. */
typedef struct kr_scan_bwd_args {
    kr_exec exec;
    int64_t nb, ns, ni, ng, nr, nq;
    const kr_sequence *sequences;
    kr_operand x, dt, z, b, c;
    const void *a, *d, *initial, *g_y, *g_final;
    void *g_x, *g_dt, *g_a, *g_b, *g_c, *g_d, *g_z, *g_initial;
} kr_scan_bwd_args;

#endif
