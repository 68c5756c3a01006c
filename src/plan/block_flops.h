/* block_flops.h - the useful floating-point operations of a block's forward pass, a multiply-add as two.
 *
 * Matrix products, the convolution and the state space count; norms, gates, rotations and exponentials do not, although
 * they take time. A gradient costs each product twice, so a training step is worth three forward passes.
 */
#ifndef KR_PLAN_BLOCK_FLOPS_H
#define KR_PLAN_BLOCK_FLOPS_H

#include <krait/block.h>

/* For b rows of s tokens; configs as the block has them, every 0 of a size resolved as its constructor does. */
double kr_mamba1_flops(const kr_mamba1_config *config, int64_t nb, int64_t ns);
double kr_mamba2_flops(const kr_mamba2_config *config, int64_t nb, int64_t ns);
double kr_mamba3_flops(const kr_mamba3_config *config, int64_t nb, int64_t ns);

#endif
