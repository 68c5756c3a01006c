/* ssd_naive.cuh - the naive SSD core: any sizes, scalar arithmetic of F, f32 or f64; all architectures.
 *
 * One thread computes one element, in a fixed order; chunks are those of ssd_plan.cuh.
 */
#ifndef KR_KERNELS_CUDA_SSD_NAIVE_SSD_NAIVE_CUH
#define KR_KERNELS_CUDA_SSD_NAIVE_SSD_NAIVE_CUH

#include "kernels/cuda/ssd/ssd_plan.cuh"

template <typename F> size_t kr_ssd_naive_scratch(const kr_ssd_args *a);
template <typename F> void kr_ssd_naive(const kr_ssd_args *a);
template <typename F> size_t kr_ssd_naive_bwd_scratch(const kr_ssd_bwd_args *a);
template <typename F> void kr_ssd_naive_bwd(const kr_ssd_bwd_args *a);

#endif
