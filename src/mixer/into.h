/* into.h - runs whose final states go into memory that is there: decoding moves its states on in place.
 *
 * `final` may be the initial states themselves. It is used if the run is not recorded and the memory fits: row-major,
 * of the result's shape, and of the type that is computed in; and by SerialRecalculated alone. Otherwise, and if it is
 * NULL, the final states are new tensors. The result says which: its data are final's, or not.
 */
#ifndef KR_MIXER_INTO_H
#define KR_MIXER_INTO_H

#include "ops/ops.h"

#include <krait/ops_mamba3.h>
#include <krait/selective_scan.h>
#include <krait/ssd.h>

kr_scan_out kr_selective_scan_into(kr_tape *tape, const kr_selective_scan_input *input, kr_tensor *final);
/* casts_y: where kr_ssd_autocasts holds, y is bf16 (is_autocast) and may have its gradient in bf16; for norms and gates to read. */
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

/* The same, where kr_ssd_autocasts holds, of B and C of groups. */
kr_ssd_out kr_mamba3_single_ssd_run_rotary(kr_tape *tape, const kr_mamba3_single_ssd_input *input,
                                           const kr_ssd_rotary_args *rotary, kr_ssd_path path, kr_tensor *final,
                                           bool casts_y);

/* Does the core round v, b and c to bf16? Then they may be handed to it in bf16 (is_autocast), and it turns b and c itself. By
 * sizes of a row alone. */
bool kr_ssd_autocasts(const kr_ctx *ctx, kr_ssd_path path, int64_t ns, int64_t nm, int64_t nr);

/* The tensor to write final states of that shape and type into; NULL after an error. */
kr_tensor *kr_final_states(kr_tape *tape, kr_dtype dtype, kr_shape shape, const kr_tensor *final);

#endif
