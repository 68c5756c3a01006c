/* ssd_any.cuh - the state space core for any sizes and f32, f64 or bf16 operands, in plain arithmetic of F.
 *
 * T is the type of v, b, c, y and their gradients, F that of everything else and of all sums: (float, float),
 * (double, double), (bf16, float). One thread makes one element, in a fixed order; the cut into chunks is
 * ssd_plan.cuh's.
 */
#ifndef KR_KERNELS_CUDA_SSD_ANY_CUH
#define KR_KERNELS_CUDA_SSD_ANY_CUH

#include "kernels/cuda/ssd_plan.cuh"

template <typename T, typename F> size_t kr_ssd_any_scratch(const kr_ssd_args *a);
template <typename T, typename F> void kr_ssd_any(const kr_ssd_args *a);
template <typename T, typename F> size_t kr_ssd_any_bwd_scratch(const kr_ssd_bwd_args *a);
template <typename T, typename F> void kr_ssd_any_bwd(const kr_ssd_bwd_args *a);

#endif
