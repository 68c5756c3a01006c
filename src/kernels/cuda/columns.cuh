/* columns.cuh - the sums of the columns of a matrix: where blocks left their parts of a result, one row each.
 *
 *   y[j] = sum over k of x[k, j];   x [nk n], y [n]
 *
 * A block has 32 columns and 32 rows of threads; a thread adds every 32nd row in double, then the 32 sums are added in
 * order. The order follows from nk alone.
 */
#ifndef KR_KERNELS_CUDA_COLUMNS_CUH
#define KR_KERNELS_CUDA_COLUMNS_CUH

#include "kernels/cuda/numbers.cuh"

template <typename T>
static __global__ void __launch_bounds__(1024) kr_sum_columns(const T *x, int64_t nk, int64_t n, T *y)
{
    __shared__ double sums[32][33];
    const int64_t j = (int64_t)blockIdx.x * 32 + threadIdx.x;
    double sum = 0;
    if (j < n) {
#pragma unroll 4
        for (int64_t k = threadIdx.y; k < nk; k += 32) sum += (double)x[k * n + j];
    }
    sums[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y != 0 || j >= n) return;
    for (int k = 1; k < 32; k++) sum += sums[k][threadIdx.x];
    y[j] = (T)sum;
}

template <typename T> static void kr_columns_run(const T *x, int64_t nk, int64_t n, T *y, cudaStream_t stream)
{
    if (n > 0) kr_sum_columns<T><<<(unsigned)kr_ceil_div(n, 32), dim3(32, 32), 0, stream>>>(x, nk, n, y);
}

#endif
