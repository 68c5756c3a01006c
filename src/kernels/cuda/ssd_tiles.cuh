/* ssd_tiles.cuh - the state space core in plain arithmetic of F, f32 or f64: chunk by chunk (ssd_plan.cuh), tiles of 64
 * by 64 in shared memory, sums in registers. Any p and r, up to 64 ranks. */
#ifndef KR_KERNELS_CUDA_SSD_TILES_CUH
#define KR_KERNELS_CUDA_SSD_TILES_CUH

#include "kernels/cuda/ssd_plan.cuh"

static inline bool kr_ssd_tiles_fit(int64_t nm, int64_t np, int64_t nr)
{
    return nm >= 1 && nm <= 64 && np >= 1 && nr >= 1;
}

template <typename F> size_t kr_ssd_tiles_scratch(const kr_ssd_args *a);
template <typename F> void kr_ssd_tiles(const kr_ssd_args *a);
template <typename F> size_t kr_ssd_tiles_bwd_scratch(const kr_ssd_bwd_args *a);
template <typename F> void kr_ssd_tiles_bwd(const kr_ssd_bwd_args *a);

#endif
