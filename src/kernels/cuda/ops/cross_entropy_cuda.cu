/* cross_entropy_cuda.cu - cross-entropy of rows with one label each, and its gradient (kernels/kernels.h); all
 * architectures, f32 and f64.
 *
 *   x [no nr], of which the first nv columns are classes;  loss [no];  stats [no KR_ROW_STATS];  g_x [no nr], may be x
 *
 * One warp or one CTA per row. One pass finds the largest class and the sums over the others (online softmax): a thread
 * keeps them relative to the largest it has seen, and rescales them when a larger one appears; a second pass writes g_x. A
 * long row whose g_x is wanted is kept in shared memory, if it fits. Labels are in pinned host memory: their loads are
 * issued at the start and used after the first pass.
 */
#include "kernels/cuda/prim/block_reduce.cuh"

template <typename T> struct loss_job {
    int64_t no, nr, nv;
    const T *x, *stats_in, *g_y; /* the last two: backward only */
    const int64_t *label;
    T smoothing, even, alpha; /* even: smoothing / nv */
    T *loss, *stats;
    void *g_x;
    kr_dtype g_dtype; /* of g_x */
    bool aligned;
};

/* Sums over classes, relative to the largest of them. */
template <typename T> struct row_sums {
    T m;
    T rest, equal; /* sum of e^(x - m) over x that are not m; how many are m */
    T away, count; /* with smoothing: sum of m - x; their number */
    int64_t at;    /* the first that is m */
};

template <typename T> struct row_result {
    T m, inverse, miss; /* 1 / S; 1 - p[label] */
};

/* Loss and stats of a row from its sums. */
template <typename T>
static __device__ __forceinline__ row_result<T> score(const loss_job<T> &k, int64_t o, int64_t label, T of_label,
                                                      const row_sums<T> &s, bool writes)
{
    const T rest_sum = s.equal - 1 + s.rest, sum = 1 + rest_sum, q = k.smoothing;
    const T others = of_label == s.m ? rest_sum : sum - kr_exp(of_label - s.m);
    const row_result<T> r = { s.m, 1 / sum, others / sum };
    if (!writes) return r;
    T loss = (T)log1p(rest_sum) + (1 - q) * (s.m - of_label);
    if (q > 0) loss += k.even * s.away;
    T *stats = k.stats + o * KR_ROW_STATS;
    const bool counts = label >= 0;
    k.loss[o] = counts ? loss : (T)0;
    stats[KR_ROW_MAX] = counts ? r.m : (T)0;
    stats[KR_ROW_INVERSE] = counts ? r.inverse : (T)0;
    stats[KR_ROW_MISS] = counts ? r.miss : (T)0;
    stats[KR_ROW_RIGHT] = counts && of_label == s.m && sum == sum && s.at == label ? (T)1 : (T)0;
    return r;
}

/* A vector of e^(x - m) of classes v and on becomes their g_x; scale: alpha, times the incoming gradient. */
template <typename T, typename I>
static __device__ __forceinline__ void gradient_of(const loss_job<T> &k, I v, I nv, I label, const row_result<T> &r,
                                                   T scale, kr_vec16<T> *p)
{
    enum { N = kr_vec16<T>::N };
    const T of_p = scale * r.inverse, less = scale * k.even;
    const I classes = label < 0 ? 0 : nv - v;
#pragma unroll
    for (int e = 0; e < N; e++) p->v[e] = p->v[e] * of_p - less;
    if (classes >= N && (label < v || label >= v + N)) return;
#pragma unroll
    for (int e = 0; e < N; e++) {
        if (v + e == label) p->v[e] = scale * (k.smoothing - k.even - r.miss);
        if (e >= classes) p->v[e] = 0;
    }
}

/* ---- long rows in shared memory ----
 *
 * A CTA processes row after row. It finds the largest class m, then replaces x by e^(x - m) and sums these, then writes
 * g_x. As soon as a vector has been read to registers or written to memory, the same vector of the next row is loaded in
 * its place. A thread copies and reads only its own vectors, except the label's.
 */

/* HELD: vectors per thread that stay in registers after they have been summed. */
enum { SMEM_THREADS = 1024, SMEM_WARPS = SMEM_THREADS / 32, HELD = 6 };

/* Loads elements v .. of a row. WHOLE: 16-byte vectors are allowed. */
template <typename T, bool WHOLE>
static __device__ __forceinline__ void smem_load(const loss_job<T> &k, const T *x, int v, T *kept)
{
    enum { N = kr_vec16<T>::N };
    if (WHOLE) {
        kr_copy<16>(kr_shared_address(kept + v), x + v);
    } else {
#pragma unroll
        for (int e = 0; e < N; e++)
            if (v + e < k.nr) kr_copy<(int)sizeof(T)>(kr_shared_address(kept + v + e), x + v + e);
    }
}

/* Reductions of a CTA. */
template <typename T> struct smem_shared {
    T top[SMEM_WARPS], rest[SMEM_WARPS], equal[SMEM_WARPS], away[SMEM_WARPS];
    int at[SMEM_WARPS];
};

template <typename T> static __device__ __forceinline__ T smem_max(T x)
{
#pragma unroll
    for (int away = 16; away > 0; away /= 2) {
        const T other = __shfl_xor_sync(0xffffffffu, x, away);
        x = other > x ? other : x;
    }
    return x;
}

/* The largest class, ignoring NaN, and the label's logit. */
template <typename T>
static __device__ __forceinline__ T smem_top(const loss_job<T> &k, const T *kept, int64_t label, T *of_label,
                                             smem_shared<T> *shared)
{
    enum { N = kr_vec16<T>::N, STEP = SMEM_THREADS * N };
    T top = -(T)INFINITY;
    const int nv = (int)k.nv;
    int v = (int)threadIdx.x * N;
#pragma unroll 4
    for (; v + N <= nv; v += STEP) {
        const kr_vec16<T> p = kr_load_vec16(kept + v, N, true);
#pragma unroll
        for (int e = 0; e < N; e++) top = p.v[e] > top ? p.v[e] : top;
    }
    for (int e = 0; v + e < nv; e++) top = kept[v + e] > top ? kept[v + e] : top;
    top = smem_max(top);
    if (threadIdx.x % 32 == 0) shared->top[threadIdx.x / 32] = top;
    __syncthreads();
    *of_label = label < 0 ? (T)0 : kept[label];
    top = smem_max(shared->top[threadIdx.x % 32]);
    __syncthreads(); /* all have read the label's */
    return top;
}

/* Adds classes v .. v+some-1 of a vector (or all of it, if some is more), and replaces them by e^(x - m). */
template <typename T, bool SMOOTH>
static __device__ __forceinline__ void smem_add(row_sums<T> *s, kr_vec16<T> *p, int v, int some)
{
    enum { N = kr_vec16<T>::N };
    bool any = some < N;
#pragma unroll
    for (int e = 0; e < N; e++) any = any || p->v[e] == s->m;
    kr_vec16<T> power;
#pragma unroll
    for (int e = 0; e < N; e++) power.v[e] = kr_exp(p->v[e] - s->m);
    if (!any) {
#pragma unroll
        for (int e = 0; e < N; e++) s->rest += power.v[e];
    } else {
#pragma unroll
        for (int e = 0; e < N; e++) {
            if (e >= some) continue;
            if (p->v[e] != s->m) s->rest += power.v[e];
            else if (s->equal == 0) s->at = v + e;
            if (p->v[e] == s->m) s->equal += 1;
        }
    }
#pragma unroll
    for (int e = 0; SMOOTH && e < N; e++)
        if (e < some) s->away += s->m - p->v[e];
    *p = power;
}

/* The row's sums, for all threads; s: the thread's own. */
template <typename T, bool SMOOTH>
static __device__ __forceinline__ void smem_reduce(row_sums<T> *s, smem_shared<T> *shared)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const T rest = kr_warp_sum(s->rest), equal = kr_warp_sum(s->equal), away = SMOOTH ? kr_warp_sum(s->away) : (T)0;
    const int at = __reduce_min_sync(0xffffffffu, (int)s->at);
    if (lane == 0)
        shared->rest[warp] = rest, shared->equal[warp] = equal, shared->away[warp] = away, shared->at[warp] = at;
    __syncthreads();
    s->rest = kr_warp_sum(shared->rest[lane]), s->equal = kr_warp_sum(shared->equal[lane]);
    if (SMOOTH) s->away = kr_warp_sum(shared->away[lane]);
    s->at = __reduce_min_sync(0xffffffffu, shared->at[lane]);
}

template <typename T, bool SMOOTH, bool WHOLE>
static __global__ void __launch_bounds__(SMEM_THREADS) cross_entropy_smem_kernel(const loss_job<T> k)
{
    enum { N = kr_vec16<T>::N, STEP = SMEM_THREADS * N };
    extern __shared__ __align__(16) char row[];
    __shared__ smem_shared<T> shared;
    T *kept = (T *)(void *)row;
    const int first = (int)threadIdx.x * N, nr = (int)k.nr, nv = (int)k.nv;
    const int64_t next = gridDim.x;
    int64_t label = k.label[blockIdx.x];
    for (int v = first; v < nr; v += STEP) smem_load<T, WHOLE>(k, k.x + blockIdx.x * k.nr, v, kept);
    for (int64_t o = blockIdx.x; o < k.no; o += next) {
        const bool has_next = o + next < k.no;
        const int64_t next_label = has_next ? k.label[o + next] : -1;
        const T *ahead = k.x + (o + next) * k.nr;
        char *g_x = (char *)k.g_x + o * k.nr * kr_element_bytes<T>(k.g_dtype);
        asm volatile("cp.async.wait_all;" ::: "memory");
        T of_label;
        row_sums<T> s = { smem_top(k, kept, label, &of_label, &shared), 0, 0, 0, 0, INT32_MAX };
        kr_vec16<T> held[HELD];
#pragma unroll
        for (int h = 0; h < HELD; h++) {
            const int v = first + h * STEP;
            if (v < nv) {
                held[h] = kr_load_vec16(kept + v, N, true);
                smem_add<T, SMOOTH>(&s, &held[h], v, nv - v);
            }
            if (has_next && v < nr) smem_load<T, WHOLE>(k, ahead, v, kept);
        }
        for (int v = first + HELD * STEP; v < nv; v += STEP) {
            kr_vec16<T> p = kr_load_vec16(kept + v, N, true);
            smem_add<T, SMOOTH>(&s, &p, v, nv - v);
            kr_store_vec16(kept + v, p, N, true);
        }
        smem_reduce<T, SMOOTH>(&s, &shared);
        const row_result<T> r = score(k, o, label, of_label, s, threadIdx.x == 0);
#pragma unroll
        for (int h = 0; h < HELD; h++) {
            const int v = first + h * STEP;
            gradient_of(k, v, nv, (int)label, r, k.alpha, &held[h]);
            kr_store_raw16<T, WHOLE>(g_x + v * kr_element_bytes<T>(k.g_dtype), held[h], k.g_dtype, nr - v);
        }
        for (int v = first + HELD * STEP; v < nr; v += STEP) {
            kr_vec16<T> p = kr_load_vec16(kept + v, N, true);
            gradient_of(k, v, nv, (int)label, r, k.alpha, &p);
            kr_store_raw16<T, WHOLE>(g_x + v * kr_element_bytes<T>(k.g_dtype), p, k.g_dtype, nr - v);
            if (has_next) smem_load<T, WHOLE>(k, ahead, v, kept);
        }
        label = next_label;
    }
}

template <typename T, bool SMOOTH, bool WHOLE>
static void smem_launch(const loss_job<T> &k, size_t bytes, const kr_exec *exec)
{
    const unsigned blocks = (unsigned)kr_least(k.no, kr_multiprocessors(exec));
    cudaFuncSetAttribute(cross_entropy_smem_kernel<T, SMOOTH, WHOLE>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                         (int)bytes);
    cross_entropy_smem_kernel<T, SMOOTH, WHOLE><<<blocks, SMEM_THREADS, bytes, kr_stream_of(exec)>>>(k);
}

/* False: a row does not fit. */
template <typename T, bool SMOOTH> static bool smem_run(const loss_job<T> &k, const kr_exec *exec)
{
    const size_t bytes = (size_t)kr_ceil_div(k.nr, kr_vec16<T>::N) * 16;
    if (bytes + sizeof(smem_shared<T>) + 1024 > ((const kr_cuda *)exec->own)->shared_bytes) return false;
    if (k.aligned) smem_launch<T, SMOOTH, true>(k, bytes, exec);
    else smem_launch<T, SMOOTH, false>(k, bytes, exec);
    return true;
}

enum { WARP_MAX = 512, SMALL_MAX = 8192, SMALL = 128, LARGE = 1024 }; /* columns of a row for a warp, for a small CTA */

template <typename T, bool SMOOTH> static __device__ __forceinline__ void lift(row_sums<T> &s, T m)
{
    s.rest = (s.rest + s.equal) * kr_exp(s.m - m);
    s.equal = 0;
    if (SMOOTH && s.count > 0) s.away += s.count * (m - s.m);
    s.m = m;
}

/* Adds classes v .. of a vector, the first `left` of them. */
template <typename T, bool SMOOTH>
static __device__ __forceinline__ void add_vec(row_sums<T> &s, const kr_vec16<T> &p, int64_t v, int left)
{
    enum { N = kr_vec16<T>::N };
    T top = -(T)INFINITY; /* ignores NaN */
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
    enum { N = kr_vec16<T>::N, AHEAD = 4 };
    row_sums<T> s = { -(T)INFINITY, 0, 0, 0, 0, 0 };
    for (int64_t v0 = first; v0 < k.nv; v0 += AHEAD * THREADS * N) {
        kr_vec16<T> p[AHEAD];
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            const int64_t v = v0 + i * THREADS * N;
            if (v < k.nv) p[i] = kr_load_vec16(x + v, k.nr - v, k.aligned);
        }
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            const int64_t v = v0 + i * THREADS * N;
            if (v < k.nv) add_vec<T, SMOOTH>(s, p[i], v, (int)kr_least(k.nv - v, N));
        }
    }
    return s;
}

/* The sums of the row, for all its threads. */
template <typename T, int THREADS, bool SMOOTH>
static __device__ __forceinline__ row_sums<T> sum_row(const loss_job<T> &k, const T *x, int64_t first,
                                                      row_sums<T> *shared)
{
    row_sums<T> s = sum_once<T, THREADS, SMOOTH>(k, x, first);
    merge_lanes<T, SMOOTH, 32>(s);
    if (THREADS == 32) return s;
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = s;
    __syncthreads();
    s = shared[threadIdx.x % (THREADS / 32)];
    merge_lanes<T, SMOOTH, THREADS / 32>(s);
    return s;
}

/* Writes g_x of the vectors from `first` on; scale: alpha, times the incoming gradient. */
template <typename T, int THREADS>
static __device__ __forceinline__ void write_gradient(const loss_job<T> &k, int64_t o, int64_t first, int64_t label,
                                                      const row_result<T> &r, T scale)
{
    enum { N = kr_vec16<T>::N, AHEAD = 4 };
    const T *x = k.x + o * k.nr;
    for (int64_t v0 = first; v0 < k.nr; v0 += AHEAD * THREADS * N) {
        kr_vec16<T> p[AHEAD];
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            const int64_t v = v0 + i * THREADS * N;
            if (label >= 0 && v < k.nv) p[i] = kr_load_vec16(x + v, k.nr - v, k.aligned);
        }
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            const int64_t v = v0 + i * THREADS * N;
            if (v >= k.nr) break;
#pragma unroll
            for (int e = 0; e < N; e++) p[i].v[e] = kr_exp(p[i].v[e] - r.m);
            gradient_of(k, v, k.nv, label, r, scale, &p[i]);
            kr_store_vec16_as(k.g_x, o * k.nr + v, p[i], k.g_dtype, k.nr - v, k.aligned);
        }
    }
}

template <typename T, int THREADS, bool SMOOTH>
static __global__ void __launch_bounds__(THREADS == 32 ? 128 : THREADS) cross_entropy_kernel(const loss_job<T> k)
{
    __shared__ row_sums<T> shared[THREADS / 32];
    const int64_t o = THREADS == 32 ? (int64_t)blockIdx.x * 4 + threadIdx.x / 32 : (int64_t)blockIdx.x;
    if (o >= k.no) return;
    const int lane = threadIdx.x % THREADS;
    const int64_t first = lane * kr_vec16<T>::N, label = k.label[o];
    const T *x = k.x + o * k.nr;
    const row_sums<T> s = sum_row<T, THREADS, SMOOTH>(k, x, first, shared);
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
    write_gradient<T, THREADS>(k, o, threadIdx.x % THREADS * kr_vec16<T>::N, k.label[o], r, k.alpha * *k.g_y);
}

template <typename T, bool SMOOTH> static void launch(const loss_job<T> &k, const kr_exec *exec)
{
    const cudaStream_t stream = kr_stream_of(exec);
    const unsigned rows = (unsigned)k.no;
    if (k.nr <= WARP_MAX) cross_entropy_kernel<T, 32, SMOOTH><<<(unsigned)kr_ceil_div(k.no, 4), 128, 0, stream>>>(k);
    else if (k.nr <= SMALL_MAX) cross_entropy_kernel<T, SMALL, SMOOTH><<<rows, SMALL, 0, stream>>>(k);
    else if (!k.g_x || !smem_run<T, SMOOTH>(k, exec))
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
                      a->g_x.data,
                      a->g_x.dtype,
                      false };
    k.aligned = kr_is_aligned16(k.x) && kr_is_aligned16(k.g_x) && k.nr % kr_vec16<T>::N == 0;
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
                      kr_dtype_of<T>(),
                      false };
    k.aligned = kr_is_aligned16(k.x) && kr_is_aligned16(k.g_x) && k.nr % kr_vec16<T>::N == 0;
    cudaStream_t stream = kr_stream_of(&a->exec);
    const unsigned rows = (unsigned)k.no;
    if (k.nr <= WARP_MAX) cross_entropy_bwd_kernel<T, 32><<<(unsigned)kr_ceil_div(k.no, 4), 128, 0, stream>>>(k);
    else if (k.nr <= SMALL_MAX) cross_entropy_bwd_kernel<T, SMALL><<<rows, SMALL, 0, stream>>>(k);
    else cross_entropy_bwd_kernel<T, LARGE><<<rows, LARGE, 0, stream>>>(k);
}

KR_CUDA_ENTRY(cross_entropy, kr_cross_entropy_args)
KR_CUDA_ENTRY(cross_entropy_bwd, kr_cross_entropy_bwd_args)
