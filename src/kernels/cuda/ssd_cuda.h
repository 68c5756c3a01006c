/* ssd_cuda.h - the state space core on CUDA: the arguments of ssd_args.h with device pointers (sequences stay in host
 * memory), queued on exec.stream.
 *
 * f32 and f64 are slots of the table (cuda.h). The functions here are on no table, and the f32 ones call their kernels: v,
 * b, c, y, seed_v, seed_b, g_y, g_v, g_b, g_c are bf16; da, w, same, d, states, seed and their gradients f32; sums f32. */
#ifndef KR_KERNELS_CUDA_SSD_CUDA_H
#define KR_KERNELS_CUDA_SSD_CUDA_H

#include "kernels/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

size_t kr_cuda_bf16_ssd_scratch(const kr_ssd_args *a);
void kr_cuda_bf16_ssd(const kr_ssd_args *a);

/* What runs such arguments, for people who measure: "matrix units", "tiles", "the recurrence", or "plain arithmetic", which
 * is slow. halves: of the bf16 function, else of the f32 one. */
const char *kr_cuda_ssd_way(const kr_ssd_args *a, bool halves);

size_t kr_cuda_bf16_ssd_bwd_scratch(const kr_ssd_bwd_args *a);
void kr_cuda_bf16_ssd_bwd(const kr_ssd_bwd_args *a);

#ifdef __cplusplus
}
#endif

#endif
