/* ssd_recurrence.cuh - rows of a few tokens by the recurrence itself: each state is read and written once. */
#ifndef KR_KERNELS_CUDA_SSD_SSD_RECURRENCE_CUH
#define KR_KERNELS_CUDA_SSD_SSD_RECURRENCE_CUH

#include "kernels/cuda/ssd/ssd_plan.cuh"

/* Depends only on sizes that a row has in any batch, so that its bits are the same. Warps are counted in 32 bits. */
static inline bool kr_ssd_recurrence_fits(const kr_ssd_args *a)
{
    return a->ns <= 4 && a->nm >= 1 && a->np >= 1 && a->nr >= 1 && a->nr <= 256 &&
           a->nq * a->nh * ((a->np + 7) / 8) < INT32_MAX;
}

size_t kr_ssd_recurrence_scratch(const kr_ssd_args *a);
template <typename F> void kr_ssd_recurrence(const kr_ssd_args *a);

#endif
