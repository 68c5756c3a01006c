/* rotary.h - rotary embedding of rows, repeated from groups to heads: Mamba-3's B and C after their norm. */
#ifndef KR_MIXER_ROTARY_H
#define KR_MIXER_ROTARY_H

#include <krait/ssd.h>

/* kr_rotate of x + bias, x repeated for the heads of each group: x [b s m g r], bias [h m r] or NULL, angle [b s h a]
 * -> [b s m h r]. Head h uses group h / (h's count / g). The sum and the sums of its gradients are fused into the
 * kernels: no intermediate of the size of the result is stored. */
kr_tensor *kr_rotate_groups(kr_tape *tape, kr_tensor *x_bsmgr, kr_tensor *bias_hmr, kr_tensor *angle_bsha,
                            kr_pairing pairing);

#endif
