/* ssd_rotary.cuh - the SSD core with rotary embedding: gradients by kernels that rotate B and C themselves, and for sizes
 * without those, a rotation of B and C before the core. */
#ifndef KR_KERNELS_CUDA_SSD_ROTARY_SSD_ROTARY_CUH
#define KR_KERNELS_CUDA_SSD_ROTARY_SSD_ROTARY_CUH

#include "kernels/cuda/ssd/ssd_plan.cuh"

/* Gradients with bf16 operands, for sizes of kr_ssd_rotate_fits. Allocates scratch and, unless only counting, launches.
 * Tokens outside all sequences are not written. */
void kr_ssd_rotary_bwd(const kr_ssd_bwd_args *a, kr_cuda_scratch *m);

/* Any sizes, f32 or f64. */
template <typename F> size_t kr_ssd_rotate_separate_scratch(const kr_ssd_args *a);
template <typename F> void kr_ssd_rotate_separate(const kr_ssd_args *a);
template <typename F> size_t kr_ssd_rotate_separate_bwd_scratch(const kr_ssd_bwd_args *a);
template <typename F> void kr_ssd_rotate_separate_bwd(const kr_ssd_bwd_args *a);

#endif
