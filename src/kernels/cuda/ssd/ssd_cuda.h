/* ssd_cuda.h - which code path the SSD core takes on CUDA. */
#ifndef KR_KERNELS_CUDA_SSD_SSD_CUDA_H
#define KR_KERNELS_CUDA_SSD_SSD_CUDA_H

#include "kernels/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The code path of such arguments in f32, for benchmarks: "tensor cores", "tiled", "the recurrence", or "naive", which is
 * slow. */
const char *kr_cuda_ssd_path(const kr_ssd_args *a);

#ifdef __cplusplus
}
#endif

#endif
