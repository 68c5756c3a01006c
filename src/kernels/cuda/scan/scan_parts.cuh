/* scan_parts.cuh - shared by both directions of the selective scan: the partition, and tiles in shared memory.
 *
 * The states of a channel are in L adjacent lanes, four in each; a CTA has CHANNELS channels of one group. More than 4 L
 * states are processed in slabs, one launch after another, whose results are added: 4 L is at most 128. A CTA processes a
 * segment of a sequence in tiles of TOKENS tokens, whose x, dt, z, B and C are copied to shared memory ahead of their use.
 * Past the last token, channel or state they are 0: dt = 0 leaves a state unchanged. A sequence is one segment unless it is
 * long, or has too few channels to fill the device. Segments depend on a sequence's own length and number of channels
 * alone: it gives the same bits in any batch.
 */
#ifndef KR_KERNELS_CUDA_SCAN_SCAN_PARTS_CUH
#define KR_KERNELS_CUDA_SCAN_SCAN_PARTS_CUH

#include "kernels/cuda/prim/seq_chunks.cuh"
#include "kernels/cuda/prim/cp_async.cuh"
#include "kernels/args/ssd_args.h"

template <typename T, int L> struct scan_shape {
    enum {
        LANES = L,
        CHANNELS = L <= 4 ? 32 : 128 / L,
        THREADS = CHANNELS * L,
        WARPS = THREADS / 32,
        STATES = 4 * L,
        TOKENS = sizeof(T) == 4 ? 16 : 8,
        ROW = CHANNELS + 8 /* so that the lanes of a channel, one token each, hit different banks */
    };
};

/* e^x for x <= 0, with `scale` factored out: scan_exp takes scan_scale x. In f32 ex2.approx, good to 2 ULP; results below
 * 2^-126 are 0. */
template <typename T> KR_DEVICE T scan_scale();
template <> __device__ __forceinline__ float scan_scale<float>()
{
    return 1.4426950408889634f;
}
template <> __device__ __forceinline__ double scan_scale<double>()
{
    return 1;
}

KR_DEVICE float scan_exp(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

KR_DEVICE double scan_exp(double x)
{
    return exp(x);
}

KR_DEVICE float scan_sigmoid(float z)
{
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(1.0f + expf(-z)));
    return y;
}
KR_DEVICE double scan_sigmoid(double z)
{
    return 1 / (1 + exp(-z));
}

/* ---- partition ---- */

enum { MAX_SEGMENT = 4096, MIN_SEGMENT = 256, WARPS_WANTED = 128 };

typedef struct scan_plan {
    int64_t nb, ns, ni, ng, nr, nq, width;      /* width = ni / ng */
    int64_t wanted;                             /* segments that give a sequence WARPS_WANTED warps */
    int64_t segments;                           /* upper bound for a sequence */
    int64_t blocks;                             /* CTAs of channels in a group */
    int64_t slots, round;                       /* CTAs round * slots .. of each group are processed in this launch */
    int64_t r0, states;                         /* the slab: its first state and their number */
    const kr_sequence *sequences;               /* NULL: every row is one */
    kr_divisor per_unit, per_slot, per_segment; /* ng slots, slots, segments */
} scan_plan;

/* Tokens per segment of a sequence. */
static __host__ __device__ inline int64_t scan_segment(int64_t wanted, int64_t tokens)
{
    int64_t n = (tokens + MAX_SEGMENT - 1) / MAX_SEGMENT;
    const int64_t valid = tokens / MIN_SEGMENT < wanted ? tokens / MIN_SEGMENT : wanted;
    if (n < valid) n = valid;
    if (n < 1) n = 1;
    return ((tokens + n - 1) / n + 15) / 16 * 16;
}

/* Lanes per channel: the fewest that hold its states. */
static inline int scan_lanes(int64_t nr)
{
    return nr <= 4 ? 1 : nr <= 16 ? 4 : nr <= 64 ? 16 : 32;
}

static inline int scan_channels(int lanes)
{
    return lanes <= 4 ? 32 : 128 / lanes;
}

static inline void scan_plan_slots(scan_plan *p, int64_t slots)
{
    p->slots = slots;
    p->per_slot = kr_divisor_of(slots);
    p->per_unit = kr_divisor_of(p->ng * slots);
    p->per_segment = kr_divisor_of(p->segments);
}

/* a: kr_scan_args or kr_scan_bwd_args. */
template <typename A> static scan_plan scan_plan_of(const A *a)
{
    scan_plan p = {};
    p.nb = a->nb, p.ns = a->ns, p.ni = a->ni, p.ng = a->ng, p.nr = a->nr, p.nq = a->nq, p.width = a->ni / a->ng;
    const int lanes = scan_lanes(a->nr);
    p.wanted = kr_ceil_div(WARPS_WANTED, kr_ceil_div(a->ni * lanes, 32));
    const int64_t segment = scan_segment(p.wanted, a->ns);
    p.segments = segment > 0 ? kr_most(1, kr_ceil_div(a->ns, segment)) : 1;
    for (int64_t q = 0; q < a->nq;
         q++) { /* since segment lengths are rounded up, a shorter sequence may have more segments */
        const int64_t tokens = a->sequences[q].end - a->sequences[q].start, own = scan_segment(p.wanted, tokens);
        if (tokens > 0) p.segments = kr_most(p.segments, kr_ceil_div(tokens, own));
    }
    p.blocks = kr_ceil_div(p.width, scan_channels(lanes));
    scan_plan_slots(&p, p.blocks);
    p.states = kr_least(a->nr, 4 * lanes);
    if (!kr_rows_are_sequences(a->sequences, a->nq, a->nb, a->ns)) p.sequences = a->sequences;
    return p;
}

/* Does every token belong to a sequence? */
template <typename A> static bool scan_is_covered(const A *a)
{
    int64_t tokens = 0;
    for (int64_t q = 0; q < a->nq; q++) tokens += a->sequences[q].end - a->sequences[q].start;
    return tokens == a->nb * a->ns;
}

/* A CTA's task: tokens token .. token+count-1 of sequence q, channels first .. first+channels-1. */
typedef struct scan_task {
    int64_t unit, q, token, count;
    int64_t segment, segments; /* segment >= segments: none */
    int64_t group, first, slot;
    int channels;
} scan_task;

template <int CHANNELS> KR_DEVICE scan_task scan_task_of(const scan_plan &p)
{
    scan_task k;
    const uint32_t unit = kr_quotient(blockIdx.x, p.per_unit), of_unit = blockIdx.x - unit * p.per_unit.d;
    k.unit = unit;
    k.q = kr_quotient(unit, p.per_segment);
    k.segment = k.unit - k.q * p.segments;
    kr_sequence s = { k.q, 0, p.ns };
    if (p.sequences) s = p.sequences[k.q];
    const int64_t tokens = s.end - s.start, length = p.segments > 1 ? scan_segment(p.wanted, tokens) : tokens;
    k.segments = tokens > length ? (tokens + length - 1) / length : 1;
    k.token = s.row * p.ns + s.start + k.segment * length;
    const int64_t left = tokens - k.segment * length;
    k.count = left < 0 ? 0 : left < length ? left : length;
    k.group = kr_quotient(of_unit, p.per_slot);
    k.slot = of_unit - k.group * p.slots;
    const int64_t block = p.round * p.slots + k.slot, rest = p.width - block * CHANNELS;
    k.first = k.group * p.width + block * CHANNELS;
    k.channels = rest < 0 ? 0 : rest < CHANNELS ? (int)rest : CHANNELS;
    return k;
}

/* ---- tiles ---- */

#define KR_MEMBER __device__ __forceinline__

/* cp.async of SIZE bytes, of which `valid` are read; the rest becomes 0. */
template <int SIZE> KR_DEVICE void copy_async(uint32_t to, const void *from, int valid)
{
    if (SIZE == 16) asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid));
    else asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(SIZE), "r"(valid));
}

KR_DEVICE void copies_commit()
{
    asm volatile("cp.async.commit_group;");
}
template <int LEFT> KR_DEVICE void copies_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT));
}

/* Rows of an operand with one row per token: address of token 0, and token stride. is_wide: 16-byte copies are allowed. */
template <typename T> struct scan_rows {
    const T *data;
    int64_t stride;
    bool is_wide;
};

/* Element by element; not inlined, to keep it out of the fast path. */
template <int TOKENS, int COLUMNS, int ROW, int THREADS, typename T>
static __device__ __noinline__ void fetch_narrow(uint32_t to, const T *from, int64_t stride, int rows, int columns)
{
#pragma unroll 1
    for (int i = threadIdx.x; i < TOKENS * COLUMNS; i += THREADS) {
        const int t = i / COLUMNS, j = i % COLUMNS;
        const bool valid = t < rows && j < columns;
        copy_async<(int)sizeof(T)>(to + (t * ROW + j) * (int)sizeof(T), valid ? from + t * stride + j : from,
                                   valid ? (int)sizeof(T) : 0);
    }
}

/* A thread's share of the copies of one operand: COLUMNS elements of every token from element `first` on, of which
 * `columns` are valid, to tiles of TOKENS tokens with row stride ROW. WIDE: 16-byte copies are allowed. */
template <typename T, int L, int COLUMNS, int ROW, bool WIDE> struct scan_feed {
    typedef scan_shape<T, L> S;
    enum {
        N = 16 / (int)sizeof(T),
        UNITS = COLUMNS / N,            /* 16-byte units per token */
        STEP = (int)S::THREADS / UNITS, /* tokens that the CTA copies at once */
        TOKENS = S::TOKENS
    };
    const T *from; /* the thread's first unit of the next tile; not WIDE: element `first` of token 0 */
    int valid;     /* bytes of the thread's units; not WIDE: columns */

    /* From token `token` on. */
    KR_MEMBER void start(const scan_rows<T> &of, int64_t token, int64_t first, int columns)
    {
        const int t = (int)threadIdx.x / UNITS, j = (int)threadIdx.x % UNITS * N, left = columns - j;
        valid = !WIDE ? columns : (left < 0 ? 0 : left < N ? left : N) * (int)sizeof(T);
        from = of.data + first + (WIDE ? (token + t) * of.stride + j : 0);
    }

    /* `rows` tokens from `token` on, to the tile at address `to`; direction: 1, or -1 if the next tile precedes. */
    KR_MEMBER void fetch(const scan_rows<T> &of, int64_t token, int rows, uint32_t to, int direction)
    {
        if (!WIDE) {
            fetch_narrow<TOKENS, COLUMNS, ROW, S::THREADS>(to, from + token * of.stride, of.stride, rows, valid);
        } else {
            const int t = (int)threadIdx.x / UNITS, j = (int)threadIdx.x % UNITS * N;
#pragma unroll
            for (int p = 0; p < TOKENS; p += STEP)
                if (STEP <= TOKENS || t < TOKENS)
                    copy_async<16>(to + (uint32_t)(((t + p) * ROW + j) * (int)sizeof(T)), from + p * of.stride,
                                   t + p < rows ? valid : 0);
            from += direction * TOKENS * of.stride;
        }
    }
};

/* Are 16-byte copies allowed, if parts of a token begin at multiples of `step`? */
template <typename T> static scan_rows<T> scan_rows_of(const void *data, int64_t stride, int64_t step)
{
    const int64_t n = 16 / (int64_t)sizeof(T);
    scan_rows<T> r = { (const T *)data, stride, kr_is_aligned(data, 16) && stride % n == 0 && step % n == 0 };
    return r;
}

/* ---- sums over lanes ---- */

/* v[t] summed over the L lanes of a channel, for N tokens: lane l gets the sums of tokens j M + l in v[j M], M = min(L, N);
 * lanes beyond M have those of lane l % M. Half of the values are exchanged at each step. */
template <int L, int N, typename T> KR_DEVICE void lanes_sum(T *v)
{
    enum { M = L < N ? L : N };
    const int lane = threadIdx.x & 31;
#pragma unroll
    for (int mask = M / 2; mask >= 1; mask /= 2) {
        const bool upper = lane & mask;
#pragma unroll
        for (int t = 0; t < N; t++) {
            if (t % M >= mask) continue;
            const T send = upper ? v[t] : v[t + mask], keep = upper ? v[t + mask] : v[t];
            v[t] = keep + __shfl_xor_sync(~0u, send, mask);
        }
    }
#pragma unroll
    for (int mask = M; mask < L; mask *= 2)
#pragma unroll
        for (int t = 0; t < N; t += M) v[t] += __shfl_xor_sync(~0u, v[t], mask);
}

/* ---- states ---- */

/* Four states of channel i from `r` on, of an array [.. i r] whose channel 0 is at `from`; 0 past the end. */
template <typename T> KR_DEVICE void load_states(const T *from, int64_t i, int64_t nr, int64_t r, int64_t end, T *h)
{
#pragma unroll
    for (int k = 0; k < 4; k++) h[k] = from && r + k < end ? from[i * nr + r + k] : (T)0;
}

template <typename T> KR_DEVICE void store_states(T *to, int64_t i, int64_t nr, int64_t r, int64_t end, const T *h)
{
#pragma unroll
    for (int k = 0; k < 4; k++)
        if (r + k < end) to[i * nr + r + k] = h[k];
}

#endif
