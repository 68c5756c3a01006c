/* ssd_any.cuh - the state space core for any sizes, in plain arithmetic of F, f32 or f64.
 *
 * One thread makes one element, in a fixed order; the cut into chunks is ssd_plan.cuh's.
 */
#ifndef KR_KERNELS_CUDA_SSD_ANY_CUH
#define KR_KERNELS_CUDA_SSD_ANY_CUH

#include "kernels/cuda/ssd_plan.cuh"

template <typename F> size_t kr_ssd_any_scratch(const kr_ssd_args *a);
template <typename F> void kr_ssd_any(const kr_ssd_args *a);
template <typename F> size_t kr_ssd_any_bwd_scratch(const kr_ssd_bwd_args *a);
template <typename F> void kr_ssd_any_bwd(const kr_ssd_bwd_args *a);

#endif
