/* sum_slots.h - ordered sums over ranks on CUDA: the tree of kr_sum_order (krait/comm.h). */
#ifndef KR_KERNELS_CUDA_COMM_SUM_SLOTS_H
#define KR_KERNELS_CUDA_COMM_SUM_SLOTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { KR_CUDA_SLOTS_MOST = 1 << 13 };

/* y [n] = the sum of nslots arrays [n], `stride` elements apart, queued on `stream` (a cudaStream_t). f32 or f64. The
 * result is a cudaError_t. */
int kr_cuda_sum_slots(bool is_double, const void *slots, size_t stride, int nslots, int64_t n, void *y, void *stream);

#ifdef __cplusplus
}
#endif

#endif
