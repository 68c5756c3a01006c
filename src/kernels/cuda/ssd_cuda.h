/* ssd_cuda.h - which of its ways the state space core takes on CUDA. */
#ifndef KR_KERNELS_CUDA_SSD_CUDA_H
#define KR_KERNELS_CUDA_SSD_CUDA_H

#include "kernels/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What runs such arguments in f32, for people who measure: "matrix units", "tiles", "the recurrence", or "plain arithmetic",
 * which is slow. */
const char *kr_cuda_ssd_way(const kr_ssd_args *a);

#ifdef __cplusplus
}
#endif

#endif
