/* ssd_turned.cuh - the core with angles: its gradients out of kernels that turn B and C themselves, and for sizes that these do
 * not have, B and C of each head made first by the kernel of rotations. */
#ifndef KR_KERNELS_CUDA_SSD_TURNED_CUH
#define KR_KERNELS_CUDA_SSD_TURNED_CUH

#include "kernels/cuda/ssd_plan.cuh"

/* Gradients of operands in bf16, for sizes of kr_ssd_turn_fits. Takes scratch and, with base, launches. Tokens of no sequence
 * are not written. */
void kr_ssd_turned_bwd(const kr_ssd_bwd_args *a, kr_cuda_scratch *m);

/* Any sizes, in the f32 or f64 slot. */
template <typename F> size_t kr_ssd_turn_apart_scratch(const kr_ssd_args *a);
template <typename F> void kr_ssd_turn_apart(const kr_ssd_args *a);
template <typename F> size_t kr_ssd_turn_apart_bwd_scratch(const kr_ssd_bwd_args *a);
template <typename F> void kr_ssd_turn_apart_bwd(const kr_ssd_bwd_args *a);

#endif
