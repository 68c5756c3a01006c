/* reduce_partials.cuh - sums partial gradients that CTAs wrote to scratch, in a fixed order.
 *
 *   parts [n columns] -> y [nv nk], last [nv]
 */
#ifndef KR_KERNELS_CUDA_PRIM_REDUCE_PARTIALS_CUH
#define KR_KERNELS_CUDA_PRIM_REDUCE_PARTIALS_CUH

#include "kernels/cuda/prim/block_reduce.cuh"

/* Destination of the column sums: column (j, v) of [nk + 1, nv] is y[v, j], for j = nk last[v]. y, last may be NULL. */
template <typename T> struct kr_reduce_target {
    T *y, *last;
    int64_t nv, nk;
};

/* Sums of the columns of parts [n columns]. A CTA has 1024 / LANES columns; lane l adds rows l, l + LANES, .. in order,
 * then lanes are added in order, by eights. The number of lanes depends on n alone. */
enum { KR_REDUCE_THREADS = 1024, KR_REDUCE_FEW = 256 };
template <typename T, int LANES>
static __global__ void __launch_bounds__(KR_REDUCE_THREADS)
    kr_reduce_partials_kernel(const T *parts, int64_t n, int64_t columns, kr_reduce_target<T> to)
{
    enum { COLUMNS = KR_REDUCE_THREADS / LANES };
    __shared__ T shared[LANES][COLUMNS + 1];
    const int lane = threadIdx.x / COLUMNS, column = threadIdx.x % COLUMNS;
    const int64_t c = (int64_t)blockIdx.x * COLUMNS + column;
    T sum = 0;
    if (c < columns)
#pragma unroll 8
        for (int64_t row = lane; row < n; row += LANES) sum += parts[row * columns + c];
    shared[lane][column] = sum;
#pragma unroll
    for (int stride = 1; stride < LANES; stride *= 8) { /* stride between sums of eight */
        __syncthreads();
        if (lane * 8 * stride >= LANES) continue;
        sum = shared[lane * 8 * stride][column];
#pragma unroll
        for (int l = 1; l < 8; l++)
            if ((lane * 8 + l) * stride < LANES) sum += shared[(lane * 8 + l) * stride][column];
        shared[lane * 8 * stride][column] = sum;
    }
    if (lane > 0 || c >= columns) return;
    const int64_t j = c / to.nv, v = c % to.nv;
    if (j < to.nk && to.y) to.y[v * to.nk + j] = sum;
    if (j == to.nk && to.last) to.last[v] = sum;
}

template <typename T, int LANES>
static inline void kr_reduce_partials_launch(cudaStream_t stream, const T *parts, int64_t n, int64_t columns,
                                             kr_reduce_target<T> to)
{
    const int64_t blocks = kr_ceil_div(columns, KR_REDUCE_THREADS / LANES);
    kr_reduce_partials_kernel<T, LANES><<<(unsigned)blocks, KR_REDUCE_THREADS, 0, stream>>>(parts, n, columns, to);
}

template <typename T>
static inline void kr_reduce_partials_run(cudaStream_t stream, const T *parts, int64_t n, int64_t columns,
                                          kr_reduce_target<T> to)
{
    if (columns == 0) return;
    if (n < KR_REDUCE_FEW) kr_reduce_partials_launch<T, 32>(stream, parts, n, columns, to);
    else kr_reduce_partials_launch<T, 128>(stream, parts, n, columns, to);
}

#endif
