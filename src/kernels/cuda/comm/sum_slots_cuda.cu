/* sum_slots_cuda.cu - ordered sums over ranks; all architectures, f32 and f64.
 *
 *   slots [nslots] of [n]    y[i] = the tree sum of slots[0][i] ... slots[nslots - 1][i]
 *
 * A thread adds one element of all slots as a binary counter does: level k has the sum of 2^k slots, and two of them are one
 * of the next level. What is left at the end is added from the highest level down. These are the additions of
 * comm/sum_order.c, so that the bits are the same.
 */
#include "kernels/cuda/comm/sum_slots.h"

#include <cuda_runtime_api.h>

enum { THREADS = 256, CTAS_MOST = 1 << 14 };

template <typename T, int LEVELS>
static __global__ void __launch_bounds__(THREADS)
    sum_slots_kernel(const T *slots, int64_t stride, int nslots, int64_t n, T *y)
{
    const int64_t step = (int64_t)gridDim.x * THREADS;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < n; i += step) {
        T level[LEVELS];
        for (int slot = 0; slot < nslots; slot++) {
            T sum = slots[slot * stride + i];
#pragma unroll
            for (int k = 0; k < LEVELS; k++) {
                if (!(slot >> k & 1)) {
                    level[k] = sum;
                    break;
                }
                sum = level[k] + sum;
            }
        }
        T sum = 0;
        bool is_first = true;
#pragma unroll
        for (int k = LEVELS - 1; k >= 0; k--) {
            if (!(nslots >> k & 1)) continue;
            sum = is_first ? level[k] : sum + level[k];
            is_first = false;
        }
        y[i] = sum;
    }
}

template <typename T>
static cudaError_t sum_slots(const void *slots, size_t stride, int nslots, int64_t n, void *y, cudaStream_t stream)
{
    const int64_t ctas = (n + THREADS - 1) / THREADS;
    const unsigned grid = (unsigned)(ctas < CTAS_MOST ? ctas : (int64_t)CTAS_MOST);
    const T *x = (const T *)slots;
    if (nslots < 16) sum_slots_kernel<T, 4><<<grid, THREADS, 0, stream>>>(x, (int64_t)stride, nslots, n, (T *)y);
    else sum_slots_kernel<T, 14><<<grid, THREADS, 0, stream>>>(x, (int64_t)stride, nslots, n, (T *)y);
    return cudaGetLastError();
}

extern "C" int kr_cuda_sum_slots(bool is_double, const void *slots, size_t stride, int nslots, int64_t n, void *y,
                                 void *stream)
{
    if (n == 0) return cudaSuccess;
    if (nslots < 1 || nslots > KR_CUDA_SLOTS_MOST) return cudaErrorInvalidValue;
    return is_double ? sum_slots<double>(slots, stride, nslots, n, y, (cudaStream_t)stream)
                     : sum_slots<float>(slots, stride, nslots, n, y, (cudaStream_t)stream);
}
