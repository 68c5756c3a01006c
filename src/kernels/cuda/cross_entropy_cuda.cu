/* cross_entropy_cuda.cu - cross-entropy of rows with one label each, and its gradient (kernels/loss_args.h).
 *
 *   x [no nr], of which the first nv columns are classes;  loss [no];  stats [no KR_ROW_STATS];  g_x [no nr], may be x
 *
 * A row is a warp's or a block's. One pass finds the largest class and the sums over the others at once: a thread keeps
 * them relative to the largest it has seen, and scales them when a larger one comes; a second pass writes g_x. A long row
 * of which g_x is wanted is kept in shared memory, if it fits (cross_entropy_kept.cuh).
 * Labels lie in the host's memory: they are asked for at the start and used after the first pass.
 */
#include "kernels/cuda/cross_entropy.cuh"
#include "kernels/cuda/cross_entropy_kept.cuh"

enum { WARP_MOST = 512, SMALL_MOST = 8192, SMALL = 128, LARGE = 1024 }; /* columns that a warp, a small block takes */

template <typename T, bool SMOOTH> static __device__ __forceinline__ void lift(row_sums<T> &s, T m)
{
    s.rest = (s.rest + s.equal) * kr_exp(s.m - m);
    s.equal = 0;
    if (SMOOTH && s.count > 0) s.away += s.count * (m - s.m);
    s.m = m;
}

/* Classes v .. of a pack, the first `left` of them. */
template <typename T, bool SMOOTH>
static __device__ __forceinline__ void add_pack(row_sums<T> &s, const kr_pack<T> &p, int64_t v, int left)
{
    enum { N = kr_pack<T>::N };
    T top = -(T)INFINITY; /* a NaN does not count */
#pragma unroll
    for (int e = 0; e < N; e++) top = e < left && p.v[e] > top ? p.v[e] : top;
    if (top > s.m) lift<T, SMOOTH>(s, top);
    if (top == s.m || left < N) {
#pragma unroll 1
        for (int e = 0; e < N && e < left; e++) {
            T x = p.v[0];
#pragma unroll
            for (int i = 1; i < N; i++) x = i == e ? p.v[i] : x;
            if (x == s.m && s.equal == 0) s.at = v + e;
            if (x == s.m) s.equal += 1;
            else s.rest += kr_exp(x - s.m);
        }
    } else {
#pragma unroll
        for (int e = 0; e < N; e++) s.rest += kr_exp(p.v[e] - s.m);
    }
#pragma unroll
    for (int e = 0; SMOOTH && e < N; e++)
        if (e < left) s.away += s.m - p.v[e], s.count += 1;
}

template <typename T, bool SMOOTH> static __device__ __forceinline__ void merge(row_sums<T> &a, row_sums<T> b)
{
    if (b.m > a.m) lift<T, SMOOTH>(a, b.m);
    else if (a.m > b.m) lift<T, SMOOTH>(b, a.m);
    if (b.equal > 0 && (a.equal == 0 || b.at < a.at)) a.at = b.at;
    a.rest += b.rest;
    a.equal += b.equal;
    if (SMOOTH) a.away += b.away, a.count += b.count;
}

template <typename T, bool SMOOTH, int LANES> static __device__ __forceinline__ void merge_lanes(row_sums<T> &s)
{
#pragma unroll
    for (int away = LANES / 2; away > 0; away /= 2) {
        row_sums<T> b = s;
        b.m = __shfl_xor_sync(0xffffffffu, s.m, away);
        b.rest = __shfl_xor_sync(0xffffffffu, s.rest, away);
        b.equal = __shfl_xor_sync(0xffffffffu, s.equal, away);
        b.at = __shfl_xor_sync(0xffffffffu, s.at, away);
        if (SMOOTH) {
            b.away = __shfl_xor_sync(0xffffffffu, s.away, away);
            b.count = __shfl_xor_sync(0xffffffffu, s.count, away);
        }
        merge<T, SMOOTH>(s, b);
    }
}

/* A thread's sums in one pass. */
template <typename T, int THREADS, bool SMOOTH>
static __device__ __forceinline__ row_sums<T> sum_once(const loss_job<T> &k, const T *x, int64_t first)
{
    enum { N = kr_pack<T>::N, AHEAD = 4 };
    row_sums<T> s = { -(T)INFINITY, 0, 0, 0, 0, 0 };
    for (int64_t v0 = first; v0 < k.nv; v0 += AHEAD * THREADS * N) {
        kr_pack<T> p[AHEAD];
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            const int64_t v = v0 + i * THREADS * N;
            if (v < k.nv) p[i] = kr_load_pack(x + v, k.nr - v, k.aligned);
        }
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            const int64_t v = v0 + i * THREADS * N;
            if (v < k.nv) add_pack<T, SMOOTH>(s, p[i], v, (int)kr_least(k.nv - v, N));
        }
    }
    return s;
}

/* The sums of the whole row, for all its threads. */
template <typename T, int THREADS, bool SMOOTH>
static __device__ __forceinline__ row_sums<T> sum_row(const loss_job<T> &k, const T *x, int64_t first,
                                                      row_sums<T> *room)
{
    row_sums<T> s = sum_once<T, THREADS, SMOOTH>(k, x, first);
    merge_lanes<T, SMOOTH, 32>(s);
    if (THREADS == 32) return s;
    if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = s;
    __syncthreads();
    s = room[threadIdx.x % (THREADS / 32)];
    merge_lanes<T, SMOOTH, THREADS / 32>(s);
    return s;
}

/* g_x of the packs from `first` on; scale: alpha, times the incoming gradient. */
template <typename T, int THREADS>
static __device__ __forceinline__ void write_gradient(const loss_job<T> &k, int64_t o, int64_t first, int64_t label,
                                                      const row_result<T> &r, T scale)
{
    enum { N = kr_pack<T>::N, AHEAD = 4 };
    const T *x = k.x + o * k.nr;
    for (int64_t v0 = first; v0 < k.nr; v0 += AHEAD * THREADS * N) {
        kr_pack<T> p[AHEAD];
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            const int64_t v = v0 + i * THREADS * N;
            if (label >= 0 && v < k.nv) p[i] = kr_load_pack(x + v, k.nr - v, k.aligned);
        }
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            const int64_t v = v0 + i * THREADS * N;
            if (v >= k.nr) break;
#pragma unroll
            for (int e = 0; e < N; e++) p[i].v[e] = kr_exp(p[i].v[e] - r.m);
            gradient_of(k, v, k.nv, label, r, scale, &p[i]);
            kr_store_pack_as(k.g_x, o * k.nr + v, p[i], k.g_half, k.nr - v, k.aligned);
        }
    }
}

template <typename T, int THREADS, bool SMOOTH>
static __global__ void __launch_bounds__(THREADS == 32 ? 128 : THREADS) cross_entropy_kernel(const loss_job<T> k)
{
    __shared__ row_sums<T> room[THREADS / 32];
    const int64_t o = THREADS == 32 ? (int64_t)blockIdx.x * 4 + threadIdx.x / 32 : (int64_t)blockIdx.x;
    if (o >= k.no) return;
    const int lane = threadIdx.x % THREADS;
    const int64_t first = lane * kr_pack<T>::N, label = k.label[o];
    const T *x = k.x + o * k.nr;
    const row_sums<T> s = sum_row<T, THREADS, SMOOTH>(k, x, first, room);
    const T of_label = label < 0 ? (T)0 : x[label];
    const row_result<T> r = score(k, o, label, of_label, s, lane == 0);
    if (!k.g_x) return;
    if (THREADS == 32) __syncwarp();
    else __syncthreads(); /* g_x may be x: all have read the label's */
    write_gradient<T, THREADS>(k, o, first, label, r, k.alpha);
}

template <typename T, int THREADS>
static __global__ void __launch_bounds__(THREADS == 32 ? 128 : THREADS) cross_entropy_bwd_kernel(const loss_job<T> k)
{
    const int64_t o = THREADS == 32 ? (int64_t)blockIdx.x * 4 + threadIdx.x / 32 : (int64_t)blockIdx.x;
    if (o >= k.no) return;
    const T *stats = k.stats_in + o * KR_ROW_STATS;
    const row_result<T> r = { stats[KR_ROW_MAX], stats[KR_ROW_INVERSE], stats[KR_ROW_MISS] };
    write_gradient<T, THREADS>(k, o, threadIdx.x % THREADS * kr_pack<T>::N, k.label[o], r, k.alpha * *k.g_y);
}

template <typename T, bool SMOOTH> static void launch(const loss_job<T> &k, const kr_exec *exec)
{
    const cudaStream_t stream = kr_stream_of(exec);
    const unsigned rows = (unsigned)k.no;
    if (k.nr <= WARP_MOST) cross_entropy_kernel<T, 32, SMOOTH><<<(unsigned)kr_ceil_div(k.no, 4), 128, 0, stream>>>(k);
    else if (k.nr <= SMALL_MOST) cross_entropy_kernel<T, SMALL, SMOOTH><<<rows, SMALL, 0, stream>>>(k);
    else if (!k.g_x || !kept_run<T, SMOOTH>(k, exec))
        cross_entropy_kernel<T, LARGE, SMOOTH><<<rows, LARGE, 0, stream>>>(k);
}

template <typename T> static void cross_entropy_run(const kr_cross_entropy_args *a)
{
    if (a->no == 0) return;
    loss_job<T> k = { a->no,
                      a->nr,
                      a->nv,
                      (const T *)a->x,
                      NULL,
                      NULL,
                      a->label,
                      (T)a->smoothing,
                      (T)(a->smoothing / (double)a->nv),
                      (T)a->alpha,
                      (T *)a->loss,
                      (T *)a->stats,
                      a->g_x,
                      a->g_half,
                      false };
    k.aligned = kr_allows16(k.x) && kr_allows16(k.g_x) && k.nr % kr_pack<T>::N == 0;
    if (a->smoothing > 0) launch<T, true>(k, &a->exec);
    else launch<T, false>(k, &a->exec);
}

template <typename T> static void cross_entropy_bwd_run(const kr_cross_entropy_bwd_args *a)
{
    if (a->no * a->nr == 0) return;
    loss_job<T> k = { a->no,
                      a->nr,
                      a->nv,
                      (const T *)a->x,
                      (const T *)a->stats,
                      (const T *)a->g_y,
                      a->label,
                      (T)a->smoothing,
                      (T)(a->smoothing / (double)a->nv),
                      (T)a->alpha,
                      NULL,
                      NULL,
                      a->g_x,
                      KR_NO_HALF,
                      false };
    k.aligned = kr_allows16(k.x) && kr_allows16(k.g_x) && k.nr % kr_pack<T>::N == 0;
    cudaStream_t stream = kr_stream_of(&a->exec);
    const unsigned rows = (unsigned)k.no;
    if (k.nr <= WARP_MOST) cross_entropy_bwd_kernel<T, 32><<<(unsigned)kr_ceil_div(k.no, 4), 128, 0, stream>>>(k);
    else if (k.nr <= SMALL_MOST) cross_entropy_bwd_kernel<T, SMALL><<<rows, SMALL, 0, stream>>>(k);
    else cross_entropy_bwd_kernel<T, LARGE><<<rows, LARGE, 0, stream>>>(k);
}

KR_CUDA_ENTRY(cross_entropy, kr_cross_entropy_args)
KR_CUDA_ENTRY(cross_entropy_bwd, kr_cross_entropy_bwd_args)
