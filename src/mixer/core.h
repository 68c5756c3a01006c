/* core.h - the one state space core of all families, and its three algorithms.
 *
 *   H_t    = exp(da_t) H_{t-1} + w_t sum_m V_t[m] (outer) B_t[m]
 *   y_t[m] = H_t C_t[m]                                                               (gamma NULL: inclusive)
 *   y_t[m] = exp(da_t) H_{t-1} C_t[m] + gamma_t sum_m' <C_t[m], B_t[m']> V_t[m']      (gamma given: strict)
 *   y_t[m] += D V_t[m]
 *
 *   | family        | V              | w     | gamma (diag_weight) |
 *   | Mamba-2       | x              | dt    | -                   |
 *   | Mamba-3 double| gamma V, ...   | -     | -                   |
 *   | Mamba-3 single| V              | scale | gamma               |
 */
#ifndef KR_MIXER_CORE_H
#define KR_MIXER_CORE_H

#include "ops/ops_impl.h"
#include "ops/sequences.h"
#include "mixer/into.h"

#include <krait/ssd.h>

/* Operands of the core, whole sequences, all of one float type. */
typedef struct kr_ssd_core {
    kr_tensor *v_bsmhp, *b_bsmgr, *c_bsmgr, *da_bsh;
    kr_tensor *w_bsh, *diag_weight_bsh, *d_h; /* NULL: 1, inclusive, none */
    kr_tensor *initial_qhpr;                  /* NULL: 0 */
    /* The fused core only: boundary sum_m boundary_v[m] (outer) boundary_b[m] is added to the initial state; NULL:
     * none. */
    kr_tensor *boundary_qh, *boundary_v_qmhp, *boundary_b_qmhr;
    kr_ssd_rotary_args rotary; /* the fused core only, on devices for which kr_ssd_autocasts holds */
    kr_tensor *final_qhpr;     /* the fused core only: memory for the final states (mixer/into.h); NULL: a new tensor */
    bool casts_y;              /* the fused core only, if it casts v, b and c to bf16: y is bf16 too (is_autocast) */
    kr_sequences sequences;
    int64_t nb, ns, nm, nh, np, ng, nr, nl;
} kr_ssd_core;

/* A family's request: its operands under the core's names, not yet of one type, v and the others either whole or in
 * chunks [b n l ...], and the members common to all families. */
typedef struct kr_ssd_request {
    const char *op;
    const char *whole, *chunked; /* shape contracts of v b c da w diag_weight d init_state, by the family's names */
    const char
        *names; /* of v b c da w diag_weight d initial_state init_state carry0 v_before k_before angle bias_b bias_c */
    kr_tensor *v, *b, *c, *da, *w, *diag_weight, *d;
    kr_tensor *initial_state, *init_state, *seq_start, *cu_seqlens;
    kr_tensor *carry0, *v_before, *k_before; /* all three or none */
    kr_ssd_rotary_args rotary;               /* mixer/into.h */
    kr_tensor *final;                        /* likewise */
    bool casts_y;                            /* the same */
    bool has_rank;                           /* v, b, c have an axis for the mimo rank */
} kr_ssd_request;

/* Checks the request, runs it by the path, and returns y in the layout of v. */
kr_ssd_out kr_ssd_run(kr_tape *tape, const kr_ssd_request *request, kr_ssd_path path);

/* y [b s m h p] and the final states [q h p r]. */
kr_ssd_out kr_ssd_fused(kr_tape *tape, const kr_ssd_core *core);

/* The chunked formulas composed of ops, for rows of one sequence each. */
kr_ssd_out kr_ssd_chunked(kr_tape *tape, const kr_ssd_core *core, bool serial);

#endif
