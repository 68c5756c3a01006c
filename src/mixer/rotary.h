/* rotary.h - Mamba-3's rotations over chunks, and rotary embedding of rows, repeated from groups to heads. */
#ifndef KR_MIXER_ROTARY_H
#define KR_MIXER_ROTARY_H

#include <krait/ssd.h>

/* kr_rotation_angles and kr_quaternion_cumprod that are rounded every chunk_len tokens of a sequence as between calls (on the
 * CPU): a sequence then has the same bits in calls that are cut there. */
kr_rotation_out kr_rotation_angles_chunked(kr_tape *tape, kr_tensor *theta_bsa, kr_tensor *dt_bsh,
                                           kr_tensor *initial_angle_qha, double range, kr_tensor *seq_start_bs,
                                           int64_t chunk_len);
kr_quaternion_out kr_quaternion_cumprod_chunked(kr_tape *tape, kr_tensor *q_bshj4, kr_tensor *initial_qhj4,
                                                kr_tensor *seq_start_bs, int64_t chunk_len);

/* kr_rotate of x + bias, x repeated for the heads of each group: x [b s m g r], bias [h m r] or NULL, angle [b s h a]
 * -> [b s m h r]. Head h uses group h / (h's count / g). The sum and the sums of its gradients are fused into the
 * kernels: no intermediate of the size of the result is stored. */
kr_tensor *kr_rotate_groups(kr_tape *tape, kr_tensor *x_bsmgr, kr_tensor *bias_hmr, kr_tensor *angle_bsha,
                            kr_pairing pairing);

#endif
