/* cumsum_cuda.cu - cumulative sums along one axis, from the front or from the back; all architectures, f32 and f64.
 *
 *   x, y [no nr ni]    y[o, r, i] = sum of x[o, q, i] over q <= r  (reverse: q >= r)
 *
 * ni = 1: one CTA per row, one 16-byte vector per thread at a time: sums within vectors, over the lanes of a warp, over
 * warps, and the carry. Otherwise a CTA has 32 columns and proceeds down them: each of its lanes has STEPS consecutive
 * rows. Sums are never subtracted, so that infinities stay infinite.
 */
#include "kernels/cuda/prim/block_reduce.cuh"

enum { THREADS = 256, COLUMNS = 32, LANES = THREADS / COLUMNS, STEPS = 8 };

template <typename T> struct cumsum_job {
    int64_t no, nr, ni;
    const T *x;
    T *y;
    bool reverse;
};

/* Exclusive prefix sum over the lanes. */
template <typename T> static __device__ __forceinline__ T before_lane(T x, int lane)
{
#pragma unroll
    for (int away = 1; away < 32; away *= 2) {
        const T other = __shfl_up_sync(0xffffffffu, x, away);
        if (lane >= away) x = other + x;
    }
    x = __shfl_up_sync(0xffffffffu, x, 1);
    return lane == 0 ? (T)0 : x;
}

template <typename T> static __global__ void __launch_bounds__(THREADS) cumsum_row_kernel(const cumsum_job<T> k)
{
    enum { N = kr_vec16<T>::N };
    __shared__ T shared[THREADS / 32];
    const T *x = k.x + blockIdx.x * k.nr;
    T *y = k.y + blockIdx.x * k.nr;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    T carry = 0;
    for (int64_t step = 0; step < k.nr; step += THREADS * N) {
        const int64_t at = step + threadIdx.x * N, left = k.nr - at; /* counted from where the sum begins */
        kr_vec16<T> p;
#pragma unroll
        for (int e = 0; e < N; e++) p.v[e] = e < left ? x[k.reverse ? k.nr - 1 - at - e : at + e] : (T)0;
#pragma unroll
        for (int e = 1; e < N; e++) p.v[e] += p.v[e - 1];
        const T before = before_lane(p.v[N - 1], lane);
        __syncthreads();
        if (lane == 31) shared[warp] = before + p.v[N - 1];
        __syncthreads();
        T first = carry;
        for (int w = 0; w < THREADS / 32; w++) {
            if (w < warp) first += shared[w];
            carry += shared[w];
        }
        first += before;
#pragma unroll
        for (int e = 0; e < N; e++)
            if (e < left) y[k.reverse ? k.nr - 1 - at - e : at + e] = first + p.v[e];
    }
}

template <typename T> static __global__ void __launch_bounds__(THREADS) cumsum_columns_kernel(const cumsum_job<T> k)
{
    __shared__ T shared[LANES][COLUMNS];
    const int64_t blocks = kr_ceil_div(k.ni, COLUMNS), o = blockIdx.x / blocks;
    const int column = threadIdx.x % COLUMNS, lane = threadIdx.x / COLUMNS;
    const int64_t i = blockIdx.x % blocks * COLUMNS + column, base = o * k.nr * k.ni + i;
    T carry = 0;
    for (int64_t step = 0; step < k.nr; step += LANES * STEPS) {
        T sum[STEPS];
        const int64_t at = step + lane * STEPS;
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
            const int64_t r = k.reverse ? k.nr - 1 - at - s : at + s;
            sum[s] = at + s < k.nr && i < k.ni ? k.x[base + r * k.ni] : (T)0;
        }
#pragma unroll
        for (int s = 1; s < STEPS; s++) sum[s] += sum[s - 1];
        __syncthreads();
        shared[lane][column] = sum[STEPS - 1];
        __syncthreads();
        T first = carry;
#pragma unroll
        for (int l = 0; l < LANES; l++) {
            if (l < lane) first += shared[l][column];
            carry += shared[l][column];
        }
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
            const int64_t r = k.reverse ? k.nr - 1 - at - s : at + s;
            if (at + s < k.nr && i < k.ni) k.y[base + r * k.ni] = first + sum[s];
        }
    }
}

template <typename T> static void cumsum_run(const kr_cumsum_args *a)
{
    const cumsum_job<T> k = { a->no, a->nr, a->ni, (const T *)a->x, (T *)a->y, a->reverse };
    cudaStream_t stream = kr_stream_of(&a->exec);
    if (a->no * a->nr * a->ni == 0) return;
    if (a->ni == 1) cumsum_row_kernel<T><<<(unsigned)a->no, THREADS, 0, stream>>>(k);
    else cumsum_columns_kernel<T><<<(unsigned)(a->no * kr_ceil_div(a->ni, COLUMNS)), THREADS, 0, stream>>>(k);
}

KR_CUDA_ENTRY(cumsum, kr_cumsum_args)
