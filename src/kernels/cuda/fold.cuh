/* fold.cuh - sums of the parts of a gradient that blocks left in scratch, in a fixed order. */
#ifndef KR_KERNELS_CUDA_FOLD_CUH
#define KR_KERNELS_CUDA_FOLD_CUH

#include "kernels/cuda/parts.cuh"

/* Where sums of columns go: column (j, v) of [nk + 1, nv] is y[v, j], for j = nk last[v]. y, last may be NULL. */
template <typename T> struct kr_fold_to {
    T *y, *last;
    int64_t nv, nk;
};

/* Sums of the columns of parts [n columns]. A block has 1024 / LANES columns; lane l adds rows l, l + LANES, .. in
 * order, then lanes are added in order, by eights. How many lanes there are follows from n. */
enum { KR_FOLD_THREADS = 1024, KR_FOLD_FEW = 256 };
template <typename T, int LANES>
static __global__ void __launch_bounds__(KR_FOLD_THREADS)
    kr_fold(const T *parts, int64_t n, int64_t columns, kr_fold_to<T> to)
{
    enum { COLUMNS = KR_FOLD_THREADS / LANES };
    __shared__ T room[LANES][COLUMNS + 1];
    const int lane = threadIdx.x / COLUMNS, column = threadIdx.x % COLUMNS;
    const int64_t c = (int64_t)blockIdx.x * COLUMNS + column;
    T sum = 0;
    if (c < columns)
#pragma unroll 8
        for (int64_t row = lane; row < n; row += LANES) sum += parts[row * columns + c];
    room[lane][column] = sum;
#pragma unroll
    for (int apart = 1; apart < LANES; apart *= 8) { /* sums of eights lie that far apart */
        __syncthreads();
        if (lane * 8 * apart >= LANES) continue;
        sum = room[lane * 8 * apart][column];
#pragma unroll
        for (int l = 1; l < 8; l++)
            if ((lane * 8 + l) * apart < LANES) sum += room[(lane * 8 + l) * apart][column];
        room[lane * 8 * apart][column] = sum;
    }
    if (lane > 0 || c >= columns) return;
    const int64_t j = c / to.nv, v = c % to.nv;
    if (j < to.nk && to.y) to.y[v * to.nk + j] = sum;
    if (j == to.nk && to.last) to.last[v] = sum;
}

template <typename T, int LANES>
static inline void kr_fold_launch(cudaStream_t stream, const T *parts, int64_t n, int64_t columns, kr_fold_to<T> to)
{
    const int64_t blocks = kr_ceil_div(columns, KR_FOLD_THREADS / LANES);
    kr_fold<T, LANES><<<(unsigned)blocks, KR_FOLD_THREADS, 0, stream>>>(parts, n, columns, to);
}

template <typename T>
static inline void kr_fold_run(cudaStream_t stream, const T *parts, int64_t n, int64_t columns, kr_fold_to<T> to)
{
    if (columns == 0) return;
    if (n < KR_FOLD_FEW) kr_fold_launch<T, 32>(stream, parts, n, columns, to);
    else kr_fold_launch<T, 128>(stream, parts, n, columns, to);
}

#endif
