/* softmax_cuda.cu - softmax and log-softmax over the last axis; all architectures, f32 and f64.
 *
 *   x, y [no nr]    m = max(x);  softmax: y = e^(x-m) / sum e^(x-m);  log-softmax: y = x - m - ln sum e^(x-m)
 *   backward, softmax: g_x = y (g_y - <y, g_y>);   log-softmax: g_x = g_y - e^y sum(g_y)
 *
 * One warp or one CTA per row. It is read once per pass; after the first it comes from a cache.
 */
#include "kernels/cuda/prim/block_reduce.cuh"

enum { WARP_MAX = 512, SMALL_MAX = 8192 }; /* columns of a row for a warp, and for a small CTA */

template <typename T> struct rows_job {
    int64_t no, nr;
    const T *x, *g; /* backward: y and g_y */
    T *y;
    bool logarithm, aligned;
};

/* The larger; NaN is ignored. */
template <typename T> static __device__ __forceinline__ T larger(T a, T b)
{
    return b > a ? b : a;
}

template <int THREADS, typename T> static __device__ __forceinline__ T block_max(T m, T *shared)
{
#pragma unroll
    for (int away = 16; away > 0; away /= 2) m = larger(m, __shfl_xor_sync(0xffffffffu, m, away));
    if (THREADS == 32) return m;
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = m;
    __syncthreads();
    m = shared[0];
    for (int w = 1; w < THREADS / 32; w++) m = larger(m, shared[w]);
    return m;
}

#define ROW_OF_BLOCK()                                                                                                 \
    enum { N = kr_vec16<T>::N };                                                                                       \
    __shared__ T shared[32];                                                                                           \
    const int64_t o = THREADS == 32 ? (int64_t)blockIdx.x * 4 + threadIdx.x / 32 : (int64_t)blockIdx.x;                \
    if (o >= k.no) return;                                                                                             \
    const int64_t first = threadIdx.x % THREADS * N;                                                                   \
    const T *x = k.x + o * k.nr;                                                                                       \
    T *y = k.y + o * k.nr

#define EACH_VEC(r) for (int64_t r = first; r < k.nr; r += THREADS * N)

template <typename T, int THREADS>
static __global__ void __launch_bounds__(THREADS == 32 ? 128 : THREADS) softmax_kernel(const rows_job<T> k)
{
    ROW_OF_BLOCK();
    T m = -(T)INFINITY, sum = 0;
    EACH_VEC(r)
    {
        const kr_vec16<T> p = kr_load_vec16(x + r, k.nr - r, k.aligned);
#pragma unroll
        for (int e = 0; e < N; e++)
            if (r + e < k.nr) m = larger(m, p.v[e]);
    }
    m = block_max<THREADS>(m, shared);
    EACH_VEC(r)
    {
        const kr_vec16<T> p = kr_load_vec16(x + r, k.nr - r, k.aligned);
#pragma unroll
        for (int e = 0; e < N; e++)
            if (r + e < k.nr) sum += kr_exp(p.v[e] - m);
    }
    sum = kr_block_sum<THREADS>(sum, shared);
    const T logarithm = kr_log(sum);
    EACH_VEC(r)
    {
        kr_vec16<T> p = kr_load_vec16(x + r, k.nr - r, k.aligned);
#pragma unroll
        for (int e = 0; e < N; e++) {
            const T shifted = p.v[e] - m;
            p.v[e] = k.logarithm ? shifted - logarithm : kr_exp(shifted) / sum;
        }
        kr_store_vec16(y + r, p, k.nr - r, k.aligned);
    }
}

template <typename T, int THREADS>
static __global__ void __launch_bounds__(THREADS == 32 ? 128 : THREADS) softmax_bwd_kernel(const rows_job<T> k)
{
    ROW_OF_BLOCK();
    const T *g = k.g + o * k.nr;
    T sum = 0;
    EACH_VEC(r)
    {
        const kr_vec16<T> p = kr_load_vec16(x + r, k.nr - r, k.aligned),
                          g_y = kr_load_vec16(g + r, k.nr - r, k.aligned);
#pragma unroll
        for (int e = 0; e < N; e++) sum += k.logarithm ? g_y.v[e] : p.v[e] * g_y.v[e];
    }
    sum = kr_block_sum<THREADS>(sum, shared);
    EACH_VEC(r)
    {
        kr_vec16<T> p = kr_load_vec16(x + r, k.nr - r, k.aligned), g_y = kr_load_vec16(g + r, k.nr - r, k.aligned);
#pragma unroll
        for (int e = 0; e < N; e++) p.v[e] = k.logarithm ? g_y.v[e] - kr_exp(p.v[e]) * sum : p.v[e] * (g_y.v[e] - sum);
        kr_store_vec16(y + r, p, k.nr - r, k.aligned);
    }
}

/* kernel: one of the above. */
#define LAUNCH(kernel, k, stream)                                                                                      \
    do {                                                                                                               \
        if ((k).nr <= WARP_MAX) kernel<T, 32><<<(unsigned)kr_ceil_div((k).no, 4), 128, 0, stream>>>(k);                \
        else if ((k).nr <= SMALL_MAX) kernel<T, 256><<<(unsigned)(k).no, 256, 0, stream>>>(k);                         \
        else kernel<T, 1024><<<(unsigned)(k).no, 1024, 0, stream>>>(k);                                                \
    } while (0)

template <typename T> static rows_job<T> job_of(int64_t no, int64_t nr, const void *x, const void *g, void *y)
{
    rows_job<T> k = { no, nr, (const T *)x, (const T *)g, (T *)y, false, false };
    k.aligned = kr_is_aligned16(x) && kr_is_aligned16(g) && kr_is_aligned16(y) && nr % kr_vec16<T>::N == 0;
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
