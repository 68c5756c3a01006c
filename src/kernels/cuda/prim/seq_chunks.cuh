/* seq_chunks.cuh - splits sequences into chunks that CTAs process in parallel.
 *
 * A chunk is up to `length` tokens of one sequence. Chunks of all sequences are numbered consecutively; an empty sequence
 * has one empty chunk. The length depends on the row's length alone, so that a sequence is split the same way in any batch.
 * If every row is one sequence no list is needed; otherwise a small kernel writes it.
 */
#ifndef KR_KERNELS_CUDA_PRIM_SEQ_CHUNKS_CUH
#define KR_KERNELS_CUDA_PRIM_SEQ_CHUNKS_CUH

#include "kernels/cuda/prim/math.cuh"
#include "kernels/sequence.h"

enum { KR_CHUNK_LEAST = 64, KR_CHUNKS_MOST = 64 }; /* tokens of a chunk; chunks of a sequence */

typedef struct kr_chunk {
    int64_t token; /* the first, in [b s] */
    int64_t q;
    int32_t count;     /* tokens */
    int32_t index, of; /* its index among the chunks of its sequence, and their number */
} kr_chunk;

typedef struct kr_chunks {
    int64_t ns, length, per_row, count;
    const kr_chunk *list; /* NULL: every row is one sequence */
} kr_chunks;

KR_DEVICE kr_chunk kr_chunk_of(const kr_chunks &m, int64_t n)
{
    if (m.list) return m.list[n];
    const int64_t q = n / m.per_row, i = n - q * m.per_row, left = m.ns - i * m.length;
    kr_chunk c = { q * m.ns + i * m.length, q, (int32_t)(left < m.length ? left : m.length), (int32_t)i,
                   (int32_t)m.per_row };
    return c;
}

static inline int64_t kr_chunk_length(int64_t ns)
{
    return kr_most(KR_CHUNK_LEAST, kr_ceil_div(kr_ceil_div(ns, KR_CHUNKS_MOST), 8) * 8);
}

/* Is every row one sequence, from its first token to its last? */
static inline bool kr_rows_are_sequences(const kr_sequence *sequences, int64_t nq, int64_t nb, int64_t ns)
{
    if (nq != nb) return false;
    for (int64_t q = 0; q < nq; q++)
        if (sequences[q].row != q || sequences[q].start != 0 || sequences[q].end != ns) return false;
    return true;
}

/* One CTA, one thread per sequence. */
static __global__ void __launch_bounds__(1024)
    kr_list_chunks(const kr_sequence *sequences, int64_t nq, int64_t ns, int64_t length, kr_chunk *list)
{
    __shared__ int64_t ends[1024];
    int64_t before = 0;
    for (int64_t q0 = 0; q0 < nq; q0 += 1024) {
        const int64_t q = q0 + threadIdx.x;
        kr_sequence s = { 0, 0, 0 };
        if (q < nq) s = sequences[q];
        const int64_t tokens = s.end - s.start;
        const int64_t n = q >= nq ? 0 : tokens > length ? (tokens + length - 1) / length : 1;
        ends[threadIdx.x] = n;
        __syncthreads();
        for (int step = 1; step < 1024; step *= 2) {
            const int64_t other = (int)threadIdx.x >= step ? ends[threadIdx.x - step] : 0;
            __syncthreads();
            ends[threadIdx.x] += other;
            __syncthreads();
        }
        kr_chunk *mine = list + before + ends[threadIdx.x] - n;
        for (int64_t i = 0; i < n; i++) {
            const int64_t left = tokens - i * length;
            kr_chunk c = { s.row * ns + s.start + i * length, q, (int32_t)(left < length ? left : length), (int32_t)i,
                           (int32_t)n };
            mine[i] = c;
        }
        before += ends[1023];
        __syncthreads();
    }
}

/* Allocates the list if one is needed, and unless only counting launches the kernel that writes it. */
static inline kr_chunks kr_chunks_make(const kr_sequence *sequences, int64_t nq, int64_t nb, int64_t ns,
                                       kr_cuda_scratch *m, cudaStream_t stream)
{
    kr_chunks r = { ns, kr_chunk_length(ns), 0, 0, NULL };
    r.per_row = kr_most(1, kr_ceil_div(ns, r.length));
    r.count = nq * r.per_row;
    if (kr_rows_are_sequences(sequences, nq, nb, ns)) return r;
    r.count = 0;
    for (int64_t q = 0; q < nq; q++)
        r.count += kr_most(1, kr_ceil_div(sequences[q].end - sequences[q].start, r.length));
    kr_chunk *list = (kr_chunk *)kr_scratch_take(m, r.count * (int64_t)sizeof(kr_chunk));
    if (m->base && nq > 0) kr_list_chunks<<<1, 1024, 0, stream>>>(sequences, nq, ns, r.length, list);
    r.list = list;
    return r;
}

#endif
