/* column_sum.cuh - column sums of a matrix, to reduce partial results of which each CTA wrote one row.
 *
 *   y[j] = sum over k of x[k, j];   x [nk n], y [n]
 *
 * A CTA has 32 columns and 32 rows of threads; a thread adds every 32nd row in double, then the 32 sums are added in order.
 * The order depends on nk alone.
 */
#ifndef KR_KERNELS_CUDA_PRIM_COLUMN_SUM_CUH
#define KR_KERNELS_CUDA_PRIM_COLUMN_SUM_CUH

#include "kernels/cuda/prim/math.cuh"

template <typename T> struct kr_column_sums {
    const T *x;
    T *y;
};

/* One matrix, or two of the same size. */
template <typename T>
static __global__ void __launch_bounds__(1024)
    kr_column_sum_kernel(const kr_column_sums<T> first, const kr_column_sums<T> second, int64_t nk, int64_t n)
{
    __shared__ double sums[32][33];
    const kr_column_sums<T> c = blockIdx.y == 0 ? first : second;
    const int64_t j = (int64_t)blockIdx.x * 32 + threadIdx.x;
    double sum = 0;
    if (j < n) {
#pragma unroll 4
        for (int64_t k = threadIdx.y; k < nk; k += 32) sum += (double)c.x[k * n + j];
    }
    sums[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y != 0 || j >= n) return;
    for (int k = 1; k < 32; k++) sum += sums[k][threadIdx.x];
    c.y[j] = (T)sum;
}

template <typename T> static void kr_column_sum_run(const T *x, int64_t nk, int64_t n, T *y, cudaStream_t stream)
{
    const kr_column_sums<T> c = { x, y };
    if (n > 0) kr_column_sum_kernel<T><<<(unsigned)kr_ceil_div(n, 32), dim3(32, 32), 0, stream>>>(c, c, nk, n);
}

/* Of those whose y is not NULL. */
template <typename T>
static void kr_column_sum_pair(const T *const x[2], int64_t nk, int64_t n, T *const y[2], cudaStream_t stream)
{
    const kr_column_sums<T> c[2] = { { x[0], y[0] }, { x[1], y[1] } };
    if (n > 0 && y[0] && y[1])
        kr_column_sum_kernel<T><<<dim3((unsigned)kr_ceil_div(n, 32), 2), dim3(32, 32), 0, stream>>>(c[0], c[1], nk, n);
    else if (y[0]) kr_column_sum_run<T>(x[0], nk, n, y[0], stream);
    else if (y[1]) kr_column_sum_run<T>(x[1], nk, n, y[1], stream);
}

#endif
