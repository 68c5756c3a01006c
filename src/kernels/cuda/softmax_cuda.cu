/* softmax_cuda.cu - softmax and its logarithm over the last axis.
 *
 *   x, y [no nr]    m = max(x);  softmax: y = e^(x-m) / sum e^(x-m);  logarithm: y = x - m - ln sum e^(x-m)
 *   backward, softmax: g_x = y (g_y - <y, g_y>);   logarithm: g_x = g_y - e^y sum(g_y)
 *
 * A row is a warp's or a block's. It is read once for each of its passes; after the first it comes from a cache.
 */
#include "kernels/cuda/parts.cuh"

enum { WARP_MOST = 512, SMALL_MOST = 8192 }; /* columns of a row that a warp, and that a small block takes */

template <typename T> struct rows_job {
    int64_t no, nr;
    const T *x, *g; /* backward: y and g_y */
    T *y;
    bool logarithm, aligned;
};

/* The larger; a NaN does not count. */
template <typename T> static __device__ __forceinline__ T larger(T a, T b)
{
    return b > a ? b : a;
}

template <int THREADS, typename T> static __device__ __forceinline__ T block_max(T m, T *room)
{
#pragma unroll
    for (int away = 16; away > 0; away /= 2) m = larger(m, __shfl_xor_sync(0xffffffffu, m, away));
    if (THREADS == 32) return m;
    if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = m;
    __syncthreads();
    m = room[0];
    for (int w = 1; w < THREADS / 32; w++) m = larger(m, room[w]);
    return m;
}

#define ROW_OF_BLOCK()                                                                                                 \
    enum { N = kr_pack<T>::N };                                                                                        \
    __shared__ T room[32];                                                                                             \
    const int64_t o = THREADS == 32 ? (int64_t)blockIdx.x * 4 + threadIdx.x / 32 : (int64_t)blockIdx.x;                \
    if (o >= k.no) return;                                                                                             \
    const int64_t first = threadIdx.x % THREADS * N;                                                                   \
    const T *x = k.x + o * k.nr;                                                                                       \
    T *y = k.y + o * k.nr

#define EACH_PACK(r) for (int64_t r = first; r < k.nr; r += THREADS * N)

template <typename T, int THREADS>
static __global__ void __launch_bounds__(THREADS == 32 ? 128 : THREADS) softmax_kernel(const rows_job<T> k)
{
    ROW_OF_BLOCK();
    T m = -(T)INFINITY, sum = 0;
    EACH_PACK(r)
    {
        const kr_pack<T> p = kr_load_pack(x + r, k.nr - r, k.aligned);
#pragma unroll
        for (int e = 0; e < N; e++)
            if (r + e < k.nr) m = larger(m, p.v[e]);
    }
    m = block_max<THREADS>(m, room);
    EACH_PACK(r)
    {
        const kr_pack<T> p = kr_load_pack(x + r, k.nr - r, k.aligned);
#pragma unroll
        for (int e = 0; e < N; e++)
            if (r + e < k.nr) sum += kr_exp(p.v[e] - m);
    }
    sum = kr_block_sum<THREADS>(sum, room);
    const T logarithm = kr_log(sum);
    EACH_PACK(r)
    {
        kr_pack<T> p = kr_load_pack(x + r, k.nr - r, k.aligned);
#pragma unroll
        for (int e = 0; e < N; e++) {
            const T shifted = p.v[e] - m;
            p.v[e] = k.logarithm ? shifted - logarithm : kr_exp(shifted) / sum;
        }
        kr_store_pack(y + r, p, k.nr - r, k.aligned);
    }
}

template <typename T, int THREADS>
static __global__ void __launch_bounds__(THREADS == 32 ? 128 : THREADS) softmax_bwd_kernel(const rows_job<T> k)
{
    ROW_OF_BLOCK();
    const T *g = k.g + o * k.nr;
    T sum = 0;
    EACH_PACK(r)
    {
        const kr_pack<T> p = kr_load_pack(x + r, k.nr - r, k.aligned), g_y = kr_load_pack(g + r, k.nr - r, k.aligned);
#pragma unroll
        for (int e = 0; e < N; e++) sum += k.logarithm ? g_y.v[e] : p.v[e] * g_y.v[e];
    }
    sum = kr_block_sum<THREADS>(sum, room);
    EACH_PACK(r)
    {
        kr_pack<T> p = kr_load_pack(x + r, k.nr - r, k.aligned), g_y = kr_load_pack(g + r, k.nr - r, k.aligned);
#pragma unroll
        for (int e = 0; e < N; e++) p.v[e] = k.logarithm ? g_y.v[e] - kr_exp(p.v[e]) * sum : p.v[e] * (g_y.v[e] - sum);
        kr_store_pack(y + r, p, k.nr - r, k.aligned);
    }
}

/* kernel: one of the above. */
#define LAUNCH(kernel, k, stream)                                                                                      \
    do {                                                                                                               \
        if ((k).nr <= WARP_MOST) kernel<T, 32><<<(unsigned)kr_ceil_div((k).no, 4), 128, 0, stream>>>(k);               \
        else if ((k).nr <= SMALL_MOST) kernel<T, 256><<<(unsigned)(k).no, 256, 0, stream>>>(k);                        \
        else kernel<T, 1024><<<(unsigned)(k).no, 1024, 0, stream>>>(k);                                                \
    } while (0)

template <typename T> static rows_job<T> job_of(int64_t no, int64_t nr, const void *x, const void *g, void *y)
{
    rows_job<T> k = { no, nr, (const T *)x, (const T *)g, (T *)y, false, false };
    k.aligned = kr_allows16(x) && kr_allows16(g) && kr_allows16(y) && nr % kr_pack<T>::N == 0;
    return k;
}

template <typename T> static void softmax_run(const kr_softmax_args *a)
{
    rows_job<T> k = job_of<T>(a->no, a->nr, a->x, NULL, a->y);
    k.logarithm = a->logarithm;
    if (a->no * a->nr > 0) LAUNCH(softmax_kernel, k, kr_stream_of(&a->exec));
}

template <typename T> static void softmax_bwd_run(const kr_softmax_bwd_args *a)
{
    rows_job<T> k = job_of<T>(a->no, a->nr, a->y, a->g_y, a->g_x);
    k.logarithm = a->logarithm;
    if (a->no * a->nr > 0) LAUNCH(softmax_bwd_kernel, k, kr_stream_of(&a->exec));
}

KR_CUDA_ENTRY(softmax, kr_softmax_args)
KR_CUDA_ENTRY(softmax_bwd, kr_softmax_bwd_args)
