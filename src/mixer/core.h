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

#include <krait/ssd.h>

/* Bias and rotary embedding that the core applies to B and C, from groups to heads (mixer/rotary.h). */
typedef struct kr_ssd_rotary_args {
    kr_tensor *angle_bsha; /* NULL: no rotary */
    kr_tensor *bias_b_hmr, *bias_c_hmr;
    kr_pairing pairing;
} kr_ssd_rotary_args;

/* Operands of the core, whole sequences, all of one float type. */
typedef struct kr_ssd_core {
    kr_tensor *v_bsmhp, *b_bsmgr, *c_bsmgr, *da_bsh;
    kr_tensor *w_bsh, *diag_weight_bsh, *d_h; /* NULL: 1, inclusive, none */
    kr_tensor *carry_bsh;                     /* the fused core only, without a gradient: see kr_ssd_args */
    kr_tensor *initial_qhpr;                  /* NULL: 0 */
    /* The fused core only: boundary sum_m boundary_v[m] (outer) boundary_b[m] is added to the initial state; NULL:
     * none. */
    kr_tensor *boundary_qh, *boundary_v_qmhp, *boundary_b_qmhr;
    kr_ssd_rotary_args rotary; /* the fused core only, where kr_ssd_autocasts holds */
    kr_tensor *final_qhpr;     /* the fused core only: memory for the final states (below); NULL: a new tensor */
    bool rounds_y;             /* the fused core only, if it rounds v, b and c to bf16: y is bf16 too */
    kr_sequences sequences;
    int64_t nb, ns, nm, nh, np, ng, nr, nl;
} kr_ssd_core;

/* A family's request: its operands under the core's names, not yet of one type, v and the others either whole or in
 * chunks [b n l ...], and the members common to all families. */
typedef struct kr_ssd_request {
    const char *op;
    const char *whole, *chunked; /* shape contracts of v b c da w diag_weight d learned_init, by the family's names */
    /* of v b c da w diag_weight d initial_state learned_init carry0 v_before k_before angle bias_b bias_c carry */
    const char *names;
    kr_tensor *v, *b, *c, *da, *w, *diag_weight, *d;
    kr_tensor *carry; /* NULL, or w = diag_weight + the next token's carry */
    kr_tensor *initial_state, *learned_init, *seq_start, *cu_seqlens;
    kr_tensor *carry0, *v_before, *k_before; /* all three or none */
    kr_ssd_rotary_args rotary;
    kr_tensor *final; /* memory for the final states */
    bool rounds_y;
    bool has_rank; /* v, b, c have an axis for the mimo rank */
} kr_ssd_request;

/* Checks the request, runs it by the path, and returns y in the layout of v. */
kr_ssd_out kr_ssd_run(kr_tape *tape, const kr_ssd_request *request, kr_ssd_path path);

/* The sum of two runs that differ in v and b alone; `then` has no initial state. On the CPU the fused core adds their states
 * at the end of each chunk, as they are added at the end of a call. */
kr_ssd_out kr_ssd_run_pair(kr_tape *tape, const kr_ssd_request *now, const kr_ssd_request *then, kr_ssd_path path);

/* y [b s m h p] and the final states [q h p r]. */
kr_ssd_out kr_ssd_fused(kr_tape *tape, const kr_ssd_core *core);
kr_ssd_out kr_ssd_fused_pair(kr_tape *tape, const kr_ssd_core *now, const kr_ssd_core *then);

/* The chunked formulas composed of ops, for rows of one sequence each. */
kr_ssd_out kr_ssd_chunked(kr_tape *tape, const kr_ssd_core *core, bool serial);

/* Runs that write final states into existing memory: decoding updates its states in place.
 *
 * `final` may be the initial states themselves. It is used only by SerialRecalculated, if the run is not recorded and
 * the memory fits: row-major, of the result's shape and of the compute type. Otherwise, and if it is NULL, the final
 * states are new tensors. The caller sees which by comparing the result's data with final's. */
kr_scan_out kr_selective_scan_into(kr_tape *tape, const kr_selective_scan_input *input, kr_tensor *final);
/* rounds_y: if kr_ssd_autocasts holds, y is bf16 and may have its gradient in bf16; for norms and gates. */
kr_ssd_out kr_mamba2_ssd_run_into(kr_tape *tape, const kr_mamba2_ssd_input *input, kr_ssd_path path, kr_tensor *final,
                                  bool rounds_y);
kr_ssd_out kr_mamba3_single_ssd_run_into(kr_tape *tape, const kr_mamba3_single_ssd_input *input, kr_ssd_path path,
                                         kr_tensor *final, bool rounds_y);

/* The same, if kr_ssd_autocasts holds, with B and C of groups. */
kr_ssd_out kr_mamba3_single_ssd_run_rotary(kr_tape *tape, const kr_mamba3_single_ssd_input *input,
                                           const kr_ssd_rotary_args *rotary, kr_ssd_path path, kr_tensor *final,
                                           bool rounds_y);

/* Both runs of the double pathway, y and the final state of which are added: kr_ssd_run_pair. */
kr_ssd_out kr_mamba3_double_ssd_run_pair(kr_tape *tape, const kr_mamba3_double_ssd_input *now,
                                         const kr_mamba3_double_ssd_input *then, kr_ssd_path path);

/* kr_autocasts_core, for the algorithm of that path. */
static inline bool kr_ssd_autocasts(const kr_ctx *ctx, kr_ssd_path path, int64_t ns, int64_t nm, int64_t nr)
{
    return path.algorithm == KR_SSD_SERIAL_RECALCULATED && kr_autocasts_core(ctx, ns, nm, nr);
}

/* The tensor to write final states of that shape and type into; NULL after an error. */
kr_tensor *kr_final_states(kr_tape *tape, kr_dtype dtype, kr_shape shape, const kr_tensor *final);

#endif
