/* ssd_step.cuh - rows of a few tokens by the recurrence itself: a state is read and written once. */
#ifndef KR_KERNELS_CUDA_SSD_STEP_CUH
#define KR_KERNELS_CUDA_SSD_STEP_CUH

#include "kernels/cuda/ssd_plan.cuh"

/* By sizes that a row has alone and among others: it has the same bits in any batch. Warps are counted in 32 bits. */
static inline bool kr_ssd_step_fits(const kr_ssd_args *a)
{
    return a->ns <= 4 && a->nm >= 1 && a->np >= 1 && a->nr >= 1 && a->nr <= 256 &&
           a->nq * a->nh * ((a->np + 7) / 8) < INT32_MAX;
}

size_t kr_ssd_step_scratch(const kr_ssd_args *a);
template <typename F> void kr_ssd_step(const kr_ssd_args *a);

#endif
