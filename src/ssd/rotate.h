/* rotate.h - rows turned on their way from groups to heads: what Mamba-3 makes of its B and C after their norm. */
#ifndef KR_SSD_ROTATE_H
#define KR_SSD_ROTATE_H

#include <krait/ops_mamba3.h>

/* kr_rotate of x + bias, x repeated for the heads of each group: x [b s m g r], bias [h m r] or NULL, angle [b s h a] ->
 * [b s m h r]. Head h uses group h / (h's count / g). The sum is formed in passing, and its gradients are summed in
 * passing: nothing of the size of the result is kept beside it. */
kr_tensor *kr_rotate_groups(kr_tape *tape, kr_tensor *x_bsmgr, kr_tensor *bias_hmr, kr_tensor *angle_bsha,
                            kr_pairing pairing);

#endif
