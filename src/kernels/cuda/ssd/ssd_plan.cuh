/* ssd_plan.cuh - partition of the SSD core on CUDA: chunks of all sequences, their decay factors, and scratch.
 *
 * A chunk is up to nt = max(1, 64 / nm) tokens of one sequence, rows f = token nm + rank. Chunks of all sequences are
 * numbered consecutively, n = 0 .. chunks-1. The partition depends on nm and the length of each sequence alone: a sequence
 * gives the same bits in any batch.
 */
#ifndef KR_KERNELS_CUDA_SSD_SSD_PLAN_CUH
#define KR_KERNELS_CUDA_SSD_SSD_PLAN_CUH

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/prim/math.cuh"
#include "kernels/args/ssd_args.h"

#include <cuda_runtime.h>
#include <stddef.h>
#include <stdint.h>

/* A chunk: its first token in [b s], its sequence and its number of tokens. */
typedef struct kr_ssd_chunk {
    int64_t at;
    int32_t q, nt;
} kr_ssd_chunk;

/* The chunks of a sequence. */
typedef struct kr_ssd_span {
    int64_t first, count;
} kr_ssd_span;

/* Chunk and sequence tables of the kernels. If every row is one sequence no table is needed. */
typedef struct kr_ssd_map {
    int64_t ns, nt, per_row, chunks;
    const kr_ssd_chunk *chunk_table; /* [chunks], NULL: rows are sequences */
    const kr_ssd_span *spans;        /* [q] */
} kr_ssd_map;

static __device__ __forceinline__ kr_ssd_chunk kr_ssd_chunk_of(const kr_ssd_map &m, int64_t n)
{
    if (__builtin_expect(m.chunk_table != NULL, 0)) return m.chunk_table[n];
    int32_t q = (int32_t)((uint32_t)n / (uint32_t)m.per_row),
            i = (int32_t)((uint32_t)n - (uint32_t)q * (uint32_t)m.per_row);
    int64_t left = m.ns - i * m.nt;
    kr_ssd_chunk p = { q * m.ns + i * m.nt, q, (int32_t)(left < m.nt ? left : m.nt) };
    return p;
}

static __device__ __forceinline__ kr_ssd_span kr_ssd_span_of(const kr_ssd_map &m, int64_t q)
{
    if (m.spans) return m.spans[q];
    kr_ssd_span s = { q * m.per_row, m.per_row };
    return s;
}

/* Device limits that select kernels. */
typedef struct kr_ssd_limits {
    int64_t shared; /* bytes of shared memory per CTA */
    int64_t processors;
    bool warpgroups; /* has wgmma (sm_90a) */
} kr_ssd_limits;

/* Sizes that both directions share, and the device's. */
typedef struct kr_ssd_dims {
    kr_ssd_limits limits;
    int64_t nb, ns, nm, nh, np, ng, nr, nq;
    int64_t row0;   /* row of the batch that is the first of these */
    int64_t nt;     /* tokens per chunk */
    int64_t chunks; /* of all sequences */
    bool rows;      /* every row is one sequence */
    bool covered;   /* every token belongs to a sequence */
    int64_t slices; /* of p, 64 wide */
    int64_t heads;  /* nh slices */
    int64_t r_line; /* row stride of a state on the tensor-core path: 64, 128 or 256 */
} kr_ssd_dims;

/* a: kr_ssd_args or kr_ssd_bwd_args, for the rows of a batch from row0 on. */
template <typename A> static kr_ssd_dims kr_ssd_dims_of(const A *a, int64_t row0 = 0)
{
    kr_ssd_dims d = {};
    const kr_cuda *own = (const kr_cuda *)a->exec.own;
    d.limits = { (int64_t)own->shared_bytes, own->multiprocessors, own->arch == 90 };
    d.nb = a->nb, d.ns = a->ns, d.nm = a->nm, d.nh = a->nh, d.np = a->np, d.ng = a->ng, d.nr = a->nr, d.nq = a->nq;
    d.row0 = row0;
    d.nt = d.nm < 64 ? 64 / d.nm : 1;
    d.rows = d.nq == d.nb;
    int64_t tokens = 0;
    for (int64_t q = 0; q < d.nq; q++) {
        const kr_sequence *s = &a->sequences[q];
        if (s->row - row0 != q || s->start != 0 || s->end != d.ns) d.rows = false;
        d.chunks += (s->end - s->start + d.nt - 1) / d.nt;
        tokens += s->end - s->start;
    }
    d.covered = tokens == d.nb * d.ns;
    d.slices = (d.np + 63) / 64;
    d.heads = d.nh * d.slices;
    d.r_line = d.nr <= 64 ? 64 : d.nr <= 128 ? 128 : 256;
    return d;
}

/* How each head's B and C are derived from those of its group: bias and rotary (ssd_rotate.cuh). */
typedef struct kr_ssd_rotate {
    const float *angle;           /* [b s h a], NULL: no rotary */
    const float *bias_b, *bias_c; /* [h r], NULL: 0 */
    int na;
} kr_ssd_rotate;

/* Do the wgmma kernels with rotary support these sizes? a: kr_ssd_args or kr_ssd_bwd_args. */
template <typename A> static bool kr_ssd_rotate_fits(const A *a, const kr_ssd_dims *d)
{
    return d->limits.warpgroups && a->nm == 1 && !a->split_pairs && a->np <= 64 && a->nr <= 128 && a->nr % 8 == 0 &&
           a->na % 4 == 0 && a->nh * a->na < 1 << 24 && (uintptr_t)a->angle % 16 == 0 &&
           (uintptr_t)a->bias_b % 16 == 0 && (uintptr_t)a->bias_c % 16 == 0;
}

template <typename A> static kr_ssd_rotate kr_ssd_rotate_of(const A *a)
{
    const kr_ssd_rotate t = { (const float *)a->angle, (const float *)a->bias_b, (const float *)a->bias_c, (int)a->na };
    return t;
}

/* Allocates the tables and, unless only counting, launches the kernel that writes them. */
kr_ssd_map kr_ssd_map_make(const kr_ssd_dims *d, const kr_sequence *sequences, kr_cuda_scratch *m, cudaStream_t stream);

enum {
    KR_SSD_HEADS = 24
}; /* heads per CTA at most; the sums of g_b and g_c over a group's heads are split by this alone */

/* Factors for each chunk and head, [chunks][nh][KR_SSD_FACTORS][64] f32, row f of the chunk in column f; a is the sum of da
 * from the chunk's first token on, a_end its last value. Columns past the chunk repeat a_end and have weight 0. */
enum {
    KR_SSD_A2,          /* a log2(e) */
    KR_SSD_DECAY_IN,    /* e^a */
    KR_SSD_DECAY_OUT_W, /* e^(a_end - a) w */
    KR_SSD_DECAY_OUT,   /* e^(a_end - a) */
    KR_SSD_W,           /* w */
    KR_SSD_DIAG_WEIGHT, /* weight of the token's own term: diag_weight, or w without it */
    KR_SSD_FACTORS
};

void kr_ssd_factors_make(const kr_ssd_dims *d, const kr_ssd_map *map, const float *da, const float *w,
                         const float *diag_weight, float *factors, cudaStream_t stream);

static inline int64_t kr_ssd_factors_bytes(const kr_ssd_dims *d)
{
    return d->chunks * d->nh * KR_SSD_FACTORS * 64 * (int64_t)sizeof(float);
}

/* Zeroes all gradients of tokens; element: size of those that are not 16-bit. */
void kr_ssd_clear(const kr_ssd_bwd_args *a, size_t element, cudaStream_t stream);

/* Are 16-byte accesses allowed for x of bf16, with token stride `stride` and rows of `width`? */
static inline bool kr_ssd_aligned(const void *x, int64_t stride, int64_t width)
{
    return (uintptr_t)x % 16 == 0 && stride % 8 == 0 && width % 8 == 0;
}

/* Are 8-byte accesses (two f32) allowed for x, with rows of `width`? */
static inline bool kr_ssd_paired(const void *x, int64_t width)
{
    return (uintptr_t)x % 8 == 0 && width % 2 == 0;
}

#endif
