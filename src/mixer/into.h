/* into.h - runs that write final states into existing memory: decoding updates its states in place.
 *
 * `final` may be the initial states themselves. It is used only by SerialRecalculated, if the run is not recorded and
 * the memory fits: row-major, of the result's shape and of the compute type. Otherwise, and if it is NULL, the final
 * states are new tensors. The caller sees which by comparing the result's data with final's.
 */
#ifndef KR_MIXER_INTO_H
#define KR_MIXER_INTO_H

#include "ops/ops_impl.h"

#include <krait/ssd.h>

kr_scan_out kr_selective_scan_into(kr_tape *tape, const kr_selective_scan_input *input, kr_tensor *final);
/* casts_y: if kr_ssd_autocasts holds, y is bf16 (is_autocast) and may have its gradient in bf16; for norms and gates. */
kr_ssd_out kr_mamba2_ssd_run_into(kr_tape *tape, const kr_mamba2_ssd_input *input, kr_ssd_path path, kr_tensor *final,
                                  bool casts_y);
kr_ssd_out kr_mamba3_single_ssd_run_into(kr_tape *tape, const kr_mamba3_single_ssd_input *input, kr_ssd_path path,
                                         kr_tensor *final, bool casts_y);

/* Bias and rotary embedding that the core applies to B and C, from groups to heads (mixer/rotary.h). */
typedef struct kr_ssd_rotary_args {
    kr_tensor *angle_bsha; /* NULL: no rotary */
    kr_tensor *bias_b_hmr, *bias_c_hmr;
    kr_pairing pairing;
} kr_ssd_rotary_args;

/* The same, if kr_ssd_autocasts holds, with B and C of groups. */
kr_ssd_out kr_mamba3_single_ssd_run_rotary(kr_tape *tape, const kr_mamba3_single_ssd_input *input,
                                           const kr_ssd_rotary_args *rotary, kr_ssd_path path, kr_tensor *final,
                                           bool casts_y);

/* Does the core cast v, b and c to bf16? Then they may be passed in bf16 (is_autocast), and it applies the rotary
 * embedding to b and c itself. Depends on the sizes of a row alone. */
bool kr_ssd_autocasts(const kr_ctx *ctx, kr_ssd_path path, int64_t ns, int64_t nm, int64_t nr);

/* The tensor to write final states of that shape and type into; NULL after an error. */
kr_tensor *kr_final_states(kr_tape *tape, kr_dtype dtype, kr_shape shape, const kr_tensor *final);

#endif
