/* embedding_cuda.cu - embedding lookup, and its gradient; all architectures.
 *
 *   embedding:     y[o, i] = x[id[o], i]                      x [nr ni], id [no], y [no ni]; both may be 16-bit, or x alone
 *   embedding_bwd: y[id[o], i] += x[o, i], over o in order    y [nr ni], id [no], x [no ni]
 *
 * Forward, a warp copies a row, or SPAN units of a long one. Ids are in pinned host memory; many warps hide their latency.
 * Backward, the rows o of each id are listed in order: ids are counted (integers, so that the order of threads does not
 * matter), each id that occurs gets a range of a list, its rows are written there in any order, and each finds its rank by
 * counting the smaller ones. A CTA then adds the rows of one id in order. An id of more than SEGMENT rows has one CTA per
 * SEGMENT rows; their sums go to scratch and are added in order.
 */
#include "kernels/cuda/prim/vec16.cuh"
#include "kernels/cuda/prim/block_reduce.cuh"

enum { WARPS = 8, THREADS = 32 * WARPS, SUM_THREADS = 128, SEGMENT = 64, SPAN = 1024 };

static __device__ __forceinline__ int64_t id_at(const void *id, bool wide, int64_t at)
{
    return wide ? ((const int64_t *)id)[at] : (int64_t)((const int32_t *)id)[at];
}

/* U: uint4 or one element, copied as bits; `units` of them per row, which has `parts` warps. */
template <typename U>
static __global__ void __launch_bounds__(THREADS)
    rows_kernel(int64_t no, int64_t units, int64_t parts, const U *x, const void *id, bool wide, U *y)
{
    const int64_t warp = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32, o = warp / parts;
    if (o >= no) return;
    const U *from = x + id_at(id, wide, o) * units;
    U *to = y + o * units;
    const int64_t first = (warp - o * parts) * SPAN, last = kr_least(first + SPAN, units);
#pragma unroll 8
    for (int64_t i = first + threadIdx.x % 32; i < last; i += 32) to[i] = from[i];
}

template <typename U> static void copy_rows(const kr_embedding_args *a, int64_t units)
{
    const int64_t parts = kr_ceil_div(units, SPAN);
    rows_kernel<U><<<(unsigned)kr_ceil_div(a->no * parts, WARPS), THREADS, 0, kr_stream_of(&a->exec)>>>(
        a->no, units, parts, (const U *)a->x.data, a->id, a->id_dtype == KR_DTYPE_I64, (U *)a->y.data);
}

/* 16-bit to f32, four at a time. */
static __global__ void __launch_bounds__(THREADS)
    widen_kernel(int64_t no, int64_t ni, int64_t parts, const void *x, kr_dtype dtype, const void *id, bool wide,
                 float *y, bool aligned)
{
    enum { N = kr_vec16<float>::N, VECS = SPAN / (32 * N) };
    const int64_t warp = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32, o = warp / parts;
    if (o >= no) return;
    const int64_t from = id_at(id, wide, o) * ni, first = (warp - o * parts) * SPAN + threadIdx.x % 32 * N;
    kr_vec16<float> row[VECS];
#pragma unroll
    for (int p = 0; p < VECS; p++) {
        const int64_t i = first + p * 32 * N;
        row[p] = kr_load_vec16_as<float>(x, from + i, dtype, ni - i, aligned);
    }
#pragma unroll
    for (int p = 0; p < VECS; p++) {
        const int64_t i = first + p * 32 * N;
        kr_store_vec16(y + o * ni + i, row[p], ni - i, aligned);
    }
}

static void widen_rows(const kr_embedding_args *a)
{
    const int64_t parts = kr_ceil_div(a->ni, SPAN);
    widen_kernel<<<(unsigned)kr_ceil_div(a->no * parts, WARPS), THREADS, 0, kr_stream_of(&a->exec)>>>(
        a->no, a->ni, parts, a->x.data, a->x.dtype, a->id, a->id_dtype == KR_DTYPE_I64, (float *)a->y.data,
        a->ni % kr_vec16<float>::N == 0 && kr_is_aligned16(a->x.data) && kr_is_aligned16(a->y.data));
}

template <typename T> static void embedding_run(const kr_embedding_args *a)
{
    const bool is_16bit = kr_is_16bit(a->x.dtype);
    const int64_t bytes = a->ni * (int64_t)(is_16bit ? sizeof(uint16_t) : sizeof(T));
    if (a->no * a->ni == 0) return;
    if (a->x.dtype != a->y.dtype) widen_rows(a);
    else if (bytes % 16 == 0 && kr_is_aligned16(a->x.data) && kr_is_aligned16(a->y.data))
        copy_rows<uint4>(a, bytes / 16);
    else if (is_16bit) copy_rows<uint16_t>(a, a->ni);
    else copy_rows<T>(a, a->ni);
}

KR_CUDA_ENTRY(embedding, kr_embedding_args)

/* ---- backward ---- */

/* Offsets in scratch. */
typedef struct lists {
    unsigned *count;     /* [nr + 1] occurrences of an id; the last: allocated length of the list */
    unsigned *first;     /* [nr] start of its range */
    unsigned *slot;      /* [no] some index of o in its range */
    unsigned *unordered; /* [no] the ranges in any order ... */
    unsigned *list;      /* [no] ... and in order */
    int64_t *id;         /* [no] */
    void *parts;         /* [2 (no / SEGMENT + 1), ni] sums of segments */
} lists;

static size_t layout_lists(const kr_embedding_args *a, int64_t element, char *scratch, lists *l)
{
    const size_t ids = kr_padded_bytes((a->nr + 1) * 4), rows = kr_padded_bytes(a->no * 4);
    char *at = scratch;
    if (l) {
        l->count = (unsigned *)(void *)at;
        l->first = (unsigned *)(void *)(at + ids);
        l->slot = (unsigned *)(void *)(at + 2 * ids);
        l->unordered = (unsigned *)(void *)(at + 2 * ids + rows);
        l->list = (unsigned *)(void *)(at + 2 * ids + 2 * rows);
        l->id = (int64_t *)(void *)(at + 2 * ids + 3 * rows);
        l->parts = at + 2 * ids + 3 * rows + kr_padded_bytes(a->no * 8);
    }
    const int64_t parts = a->no > SEGMENT ? 2 * (a->no / SEGMENT + 1) : 0;
    return 2 * ids + 3 * rows + kr_padded_bytes(a->no * 8) + kr_padded_bytes(parts * a->ni * element);
}

#define EACH_ROW(o)                                                                                                    \
    const int64_t o = (int64_t)blockIdx.x * THREADS + threadIdx.x;                                                     \
    if (o >= no) return

static __global__ void __launch_bounds__(THREADS) count_kernel(int64_t no, const void *id, bool wide, lists l)
{
    EACH_ROW(o);
    l.id[o] = id_at(id, wide, o);
    l.slot[o] = atomicAdd(&l.count[l.id[o]], 1u);
}

static __global__ void __launch_bounds__(THREADS) range_kernel(int64_t no, int64_t nr, lists l)
{
    EACH_ROW(o);
    if (l.slot[o] == 0) l.first[l.id[o]] = atomicAdd(&l.count[nr], l.count[l.id[o]]);
}

static __global__ void __launch_bounds__(THREADS) list_kernel(int64_t no, lists l)
{
    EACH_ROW(o);
    l.unordered[l.first[l.id[o]] + l.slot[o]] = (unsigned)o;
}

static __global__ void __launch_bounds__(THREADS) sort_kernel(int64_t no, lists l)
{
    EACH_ROW(o);
    const unsigned first = l.first[l.id[o]], n = l.count[l.id[o]];
    unsigned smaller = 0;
#pragma unroll 8
    for (unsigned i = 0; i < n; i++) smaller += l.unordered[first + i] < (unsigned)o;
    l.list[first + smaller] = (unsigned)o;
}

template <typename T> struct sum_job {
    int64_t no, ni;
    const T *x;
    T *y;
    bool aligned;
};

/* A segment of an id's rows, by its start in the list. */
typedef struct segment {
    int64_t id;
    unsigned rank, n; /* rank of its first row among the id's n rows */
} segment;

static __device__ __forceinline__ segment segment_at(const lists &l, unsigned at)
{
    const int64_t id = l.id[l.list[at]];
    const segment s = { id, at - l.first[id], l.count[id] };
    return s;
}

/* Index of a segment's partial sum. Among SEGMENT consecutive list positions, at most one starts the first segment of a
 * long id and one another segment. */
static __device__ __forceinline__ int64_t part_at(unsigned at, unsigned rank)
{
    return 2 * (int64_t)(at / SEGMENT) + (rank > 0);
}

template <typename T> static __global__ void __launch_bounds__(SUM_THREADS) sum_kernel(const sum_job<T> k, lists l)
{
    enum { N = kr_vec16<T>::N, AHEAD = 8 };
    const unsigned at = blockIdx.x;
    const segment s = segment_at(l, at);
    if (s.rank % SEGMENT != 0) return;
    const unsigned *list = l.list + at, n = s.n - s.rank < SEGMENT ? s.n - s.rank : SEGMENT;
    T *y = s.n <= SEGMENT ? k.y + s.id * k.ni : (T *)l.parts + part_at(at, s.rank) * k.ni;
    for (int64_t i = threadIdx.x * N; i < k.ni; i += SUM_THREADS * N) {
        kr_vec16<T> sum = kr_load_vec16(y + i, s.n <= SEGMENT ? k.ni - i : 0, k.aligned);
        for (unsigned r = 0; r < n; r += AHEAD) {
            kr_vec16<T> x[AHEAD];
#pragma unroll
            for (unsigned a = 0; a < AHEAD; a++)
                if (r + a < n) x[a] = kr_load_vec16(k.x + list[r + a] * k.ni + i, k.ni - i, k.aligned);
#pragma unroll
            for (unsigned a = 0; a < AHEAD; a++)
#pragma unroll
                for (int e = 0; e < N; e++)
                    if (r + a < n) sum.v[e] += x[a].v[e];
        }
        kr_store_vec16(y + i, sum, k.ni - i, k.aligned);
    }
}

/* Adds the partial sums of a long id's segments, in order. */
template <typename T> static __global__ void __launch_bounds__(SUM_THREADS) join_kernel(const sum_job<T> k, lists l)
{
    enum { N = kr_vec16<T>::N };
    const unsigned at =
        blockIdx.x * SEGMENT; /* a long id covers some position like this, and its first is found from there */
    const segment s = segment_at(l, at);
    const unsigned first = at - s.rank;
    if (s.n <= SEGMENT || s.rank >= SEGMENT) return;
    T *y = k.y + s.id * k.ni;
    const int64_t i = ((int64_t)blockIdx.y * SUM_THREADS + threadIdx.x) * N;
    if (i >= k.ni) return;
    kr_vec16<T> sum = kr_load_vec16(y + i, k.ni - i, k.aligned);
#pragma unroll 8
    for (unsigned rank = 0; rank < s.n; rank += SEGMENT) {
        const T *part = (const T *)l.parts + part_at(first + rank, rank) * k.ni;
        const kr_vec16<T> x = kr_load_vec16(part + i, k.ni - i, k.aligned);
#pragma unroll
        for (int e = 0; e < N; e++) sum.v[e] += x.v[e];
    }
    kr_store_vec16(y + i, sum, k.ni - i, k.aligned);
}

template <typename T> static size_t embedding_bwd_scratch(const kr_embedding_args *a)
{
    return layout_lists(a, sizeof(T), NULL, NULL);
}

template <typename T> static void embedding_bwd_run(const kr_embedding_args *a)
{
    cudaStream_t stream = kr_stream_of(&a->exec);
    if (a->no * a->ni == 0) return;
    lists l;
    layout_lists(a, sizeof(T), (char *)a->exec.scratch, &l);
    sum_job<T> k = { a->no, a->ni, (const T *)a->x.data, (T *)a->y.data, false };
    k.aligned = kr_is_aligned16(k.x) && kr_is_aligned16(k.y) && k.ni % kr_vec16<T>::N == 0;
    const unsigned blocks = (unsigned)kr_ceil_div(a->no, THREADS);
    cudaMemsetAsync(l.count, 0, (size_t)(a->nr + 1) * sizeof *l.count, stream);
    count_kernel<<<blocks, THREADS, 0, stream>>>(a->no, a->id, a->id_dtype == KR_DTYPE_I64, l);
    range_kernel<<<blocks, THREADS, 0, stream>>>(a->no, a->nr, l);
    list_kernel<<<blocks, THREADS, 0, stream>>>(a->no, l);
    sort_kernel<<<blocks, THREADS, 0, stream>>>(a->no, l);
    sum_kernel<T><<<(unsigned)a->no, SUM_THREADS, 0, stream>>>(k, l);
    const dim3 grid((unsigned)kr_ceil_div(a->no, SEGMENT), (unsigned)kr_ceil_div(a->ni, SUM_THREADS * kr_vec16<T>::N));
    if (a->no > SEGMENT) join_kernel<T><<<grid, SUM_THREADS, 0, stream>>>(k, l);
}

KR_CUDA_ENTRY_SCRATCH(embedding_bwd, kr_embedding_args)
