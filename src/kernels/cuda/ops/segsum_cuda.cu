/* segsum_cuda.cu - sums over all segments of a row: the logarithm of the decay matrix of one chunk; all architectures, f32
 * and f64.
 *
 *   x [no nl]    y [no nl nl]
 *   y[t, u] = sum of x[q] over u < q <= t for t >= u (0 on the diagonal), -inf for t < u
 *   backward: g_x[q] = sum of g_y[t, u] over u < q <= t
 *
 * Forward, a lane has one column u and proceeds along t: y[t, u] = y[t-1, u] + x[t]. Sums of segments that cancel keep
 * their precision that way, which differences of cumulative sums would not. Backward, a warp has 32 columns and proceeds
 * backwards: with s[u] the sum of g_y[t, u] over t >= q, g_x[q] is the sum of s[u] over u < q. The warps' partial sums go
 * to scratch and are added in order.
 */
#include "kernels/cuda/prim/block_reduce.cuh"

enum { THREADS = 128 };

/* A CTA has THREADS of all columns (o, u); a warp reads x along t, a tile at a time, and broadcasts it. */
template <typename T>
static __global__ void __launch_bounds__(THREADS) segsum_kernel(int64_t no, int64_t nl, const T *x, T *y)
{
    const int64_t blocks = kr_ceil_div(nl, 32), unit = (int64_t)blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
    const int64_t o = unit / blocks, lane = threadIdx.x % 32, u = unit % blocks * 32 + lane;
    if (o >= no) return;
    x += o * nl;
    y += o * nl * nl + u;
    T sum = 0;
    for (int64_t t0 = 0; t0 < nl; t0 += 32) {
        const T own = t0 + lane < nl ? x[t0 + lane] : (T)0;
        const int n = (int)kr_least(32, nl - t0);
#pragma unroll 8
        for (int i = 0; i < n; i++, y += nl) {
            const T next = __shfl_sync(0xffffffffu, own, i);
            if (t0 + i > u) sum += next;
            if (u < nl) *y = t0 + i < u ? -(T)INFINITY : sum;
        }
    }
}

/* parts [no, blocks of 32 columns, nl] */
template <typename T>
static __global__ void __launch_bounds__(THREADS) segsum_bwd_kernel(int64_t no, int64_t nl, const T *g_y, T *parts)
{
    const int64_t blocks = kr_ceil_div(nl, 32), unit = (int64_t)blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
    const int64_t o = unit / blocks, u0 = unit % blocks * 32, u = u0 + threadIdx.x % 32;
    if (o >= no) return;
    g_y += o * nl * nl + u;
    T s = 0;
#pragma unroll 4
    for (int64_t q = nl - 1; q >= 0; q--) {
        if (u <= q && q >= u0) s += g_y[q * nl];
        const T sum = kr_warp_sum(u < q ? s : (T)0);
        if (threadIdx.x % 32 == 0) parts[unit * nl + q] = sum;
    }
}

template <typename T>
static __global__ void __launch_bounds__(THREADS) segsum_reduce_kernel(int64_t no, int64_t nl, const T *parts, T *g_x)
{
    const int64_t at = (int64_t)blockIdx.x * THREADS + threadIdx.x, o = at / nl, q = at % nl,
                  blocks = kr_ceil_div(nl, 32);
    if (o >= no) return;
    T sum = 0;
    for (int64_t b = 0; b * 32 < q; b++) sum += parts[(o * blocks + b) * nl + q];
    g_x[at] = sum;
}

template <typename T> static void segsum_run(const kr_segsum_args *a)
{
    if (a->no * a->nl > 0)
        segsum_kernel<T><<<(unsigned)kr_ceil_div(a->no * kr_ceil_div(a->nl, 32), THREADS / 32), THREADS, 0,
                           kr_stream_of(&a->exec)>>>(a->no, a->nl, (const T *)a->x, (T *)a->y);
}

template <typename T> static size_t segsum_bwd_scratch(const kr_segsum_args *a)
{
    return kr_padded_bytes(a->no * kr_ceil_div(a->nl, 32) * a->nl * (int64_t)sizeof(T));
}

template <typename T> static void segsum_bwd_run(const kr_segsum_args *a)
{
    cudaStream_t stream = kr_stream_of(&a->exec);
    T *parts = (T *)a->exec.scratch;
    const int64_t units = a->no * kr_ceil_div(a->nl, 32);
    if (a->no * a->nl == 0) return;
    segsum_bwd_kernel<T>
        <<<(unsigned)kr_ceil_div(units, THREADS / 32), THREADS, 0, stream>>>(a->no, a->nl, (const T *)a->x, parts);
    segsum_reduce_kernel<T>
        <<<(unsigned)kr_ceil_div(a->no * a->nl, THREADS), THREADS, 0, stream>>>(a->no, a->nl, parts, (T *)a->y);
}

KR_CUDA_ENTRY(segsum, kr_segsum_args)
KR_CUDA_ENTRY_SCRATCH(segsum_bwd, kr_segsum_args)
