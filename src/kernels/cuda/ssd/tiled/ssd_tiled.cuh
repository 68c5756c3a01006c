/* ssd_tiled.cuh - the tiled SSD core in f32 or f64 arithmetic: chunk by chunk (ssd_plan.cuh), 64 by 64 tiles in shared
 * memory, sums in registers. Any p and r, up to 64 ranks; all architectures. */
#ifndef KR_KERNELS_CUDA_SSD_TILED_SSD_TILED_CUH
#define KR_KERNELS_CUDA_SSD_TILED_SSD_TILED_CUH

#include "kernels/cuda/ssd/ssd_plan.cuh"

static inline bool kr_ssd_tiled_fits(int64_t nm, int64_t np, int64_t nr)
{
    return nm >= 1 && nm <= 64 && np >= 1 && nr >= 1;
}

template <typename F> size_t kr_ssd_tiled_scratch(const kr_ssd_args *a);
template <typename F> void kr_ssd_tiled(const kr_ssd_args *a);
template <typename F> size_t kr_ssd_tiled_bwd_scratch(const kr_ssd_bwd_args *a);
template <typename F> void kr_ssd_tiled_bwd(const kr_ssd_bwd_args *a);

#endif
