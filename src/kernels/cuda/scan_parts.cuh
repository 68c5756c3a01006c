/* scan_parts.cuh - what both directions of Mamba-1's selective scan share: how it is cut, and tiles in shared memory.
 *
 * A channel's states lie in L neighbouring lanes, four in each; a block has CHANNELS channels of one group. More than
 * 4 L states are worked on in slabs, one launch after another, whose results add up: 4 L is at most 128.
 * A block goes through a segment of a sequence in tiles of TOKENS tokens, whose x, dt, z, B and C are copied to shared
 * memory ahead of their use. What lies beyond the last token, channel or state is 0 there: dt = 0 leaves a state as it is.
 * A sequence is one segment unless it is long, or its channels are too few to fill the device. Segments follow from a
 * sequence's own length and the number of its channels: it has the same bits in any batch.
 */
#ifndef KR_KERNELS_CUDA_SCAN_PARTS_CUH
#define KR_KERNELS_CUDA_SCAN_PARTS_CUH

#include "kernels/cuda/chunks.cuh"
#include "kernels/cuda/copies.cuh"
#include "kernels/ssd_args.h"

template <typename T, int L> struct scan_shape {
    enum {
        LANES = L,
        CHANNELS = L <= 4 ? 32 : 128 / L,
        THREADS = CHANNELS * L,
        WARPS = THREADS / 32,
        STATES = 4 * L,
        TOKENS = sizeof(T) == 4 ? 16 : 8,
        ROW = CHANNELS + 8 /* so that the lanes of a channel, a token each, fall on different banks */
    };
};

/* e^x for x <= 0 of which `scale` is a part: scan_scale x is what scan_exp takes. In f32 2^x is one instruction, good to
 * 2 ULP; results below 2^-126 are 0. */
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

/* ---- the cut ---- */

enum { SEGMENT_MOST = 4096, SEGMENT_LEAST = 256, WARPS_WANTED = 128 };

typedef struct scan_plan {
    int64_t nb, ns, ni, ng, nr, nq, width;      /* width = ni / ng */
    int64_t wanted;                             /* segments that give a sequence WARPS_WANTED warps */
    int64_t segments;                           /* the most that a sequence can have */
    int64_t blocks;                             /* of channels in a group */
    int64_t slots, round;                       /* blocks round slots .. of each group are worked on */
    int64_t r0, states;                         /* the slab: its first state and how many */
    const kr_sequence *sequences;               /* NULL: every row is one */
    kr_divisor per_unit, per_slot, per_segment; /* ng slots, slots, segments */
} scan_plan;

/* Tokens of a segment of a sequence. */
static __host__ __device__ inline int64_t scan_segment(int64_t wanted, int64_t tokens)
{
    int64_t n = (tokens + SEGMENT_MOST - 1) / SEGMENT_MOST;
    const int64_t some = tokens / SEGMENT_LEAST < wanted ? tokens / SEGMENT_LEAST : wanted;
    if (n < some) n = some;
    if (n < 1) n = 1;
    return ((tokens + n - 1) / n + 15) / 16 * 16;
}

/* Lanes of a channel: the fewest that hold its states. */
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

/* args: kr_scan_args or kr_scan_bwd_args. */
template <typename A> static scan_plan scan_plan_of(const A *a)
{
    scan_plan p = {};
    p.nb = a->nb, p.ns = a->ns, p.ni = a->ni, p.ng = a->ng, p.nr = a->nr, p.nq = a->nq, p.width = a->ni / a->ng;
    const int lanes = scan_lanes(a->nr);
    p.wanted = kr_ceil_div(WARPS_WANTED, kr_ceil_div(a->ni * lanes, 32));
    const int64_t segment = scan_segment(p.wanted, a->ns);
    p.segments = segment > 0 ? kr_most(1, kr_ceil_div(a->ns, segment)) : 1;
    for (int64_t q = 0; q < a->nq; q++) { /* rounding a segment's length up may leave a shorter sequence more of them */
        const int64_t tokens = a->sequences[q].end - a->sequences[q].start, own = scan_segment(p.wanted, tokens);
        if (tokens > 0) p.segments = kr_most(p.segments, kr_ceil_div(tokens, own));
    }
    p.blocks = kr_ceil_div(p.width, scan_channels(lanes));
    scan_plan_slots(&p, p.blocks);
    p.states = kr_least(a->nr, 4 * lanes);
    if (!kr_rows_are_sequences(a->sequences, a->nq, a->nb, a->ns)) p.sequences = a->sequences;
    return p;
}

/* Is every token of some sequence? */
template <typename A> static bool scan_is_covered(const A *a)
{
    int64_t tokens = 0;
    for (int64_t q = 0; q < a->nq; q++) tokens += a->sequences[q].end - a->sequences[q].start;
    return tokens == a->nb * a->ns;
}

/* A block's part: tokens token .. token+count-1 of sequence q, channels first .. first+channels-1. */
typedef struct scan_place {
    int64_t unit, q, token, count;
    int64_t segment, segments; /* segment >= segments: there is none */
    int64_t group, first, slot;
    int channels;
} scan_place;

template <int CHANNELS> KR_DEVICE scan_place scan_place_of(const scan_plan &p)
{
    scan_place k;
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

/* Copies SIZE bytes (of which `some` are there, the rest becomes 0) to shared memory, behind the thread's back. */
template <int SIZE> KR_DEVICE void copy_ahead(uint32_t to, const void *from, int some)
{
    if (SIZE == 16) asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(some));
    else asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(SIZE), "r"(some));
}

KR_DEVICE void copies_end()
{
    asm volatile("cp.async.commit_group;");
}
template <int LEFT> KR_DEVICE void copies_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT));
}

/* Rows of one operand that tokens have: element 0 of token 0, and how far tokens are apart. is_wide: 16 bytes can be
 * moved at a time. */
template <typename T> struct scan_rows {
    const T *data;
    int64_t stride;
    bool is_wide;
};

/* The same element by element; apart, so that it does not stand in the way of the other. */
template <int TOKENS, int COLUMNS, int ROW, int THREADS, typename T>
static __device__ __noinline__ void fetch_narrow(uint32_t to, const T *from, int64_t stride, int rows, int columns)
{
#pragma unroll 1
    for (int i = threadIdx.x; i < TOKENS * COLUMNS; i += THREADS) {
        const int t = i / COLUMNS, j = i % COLUMNS;
        const bool some = t < rows && j < columns;
        copy_ahead<(int)sizeof(T)>(to + (t * ROW + j) * (int)sizeof(T), some ? from + t * stride + j : from,
                                   some ? (int)sizeof(T) : 0);
    }
}

/* A thread's part of the copies of one operand: COLUMNS elements of every token from element `first` of it on, of which
 * `columns` are there, to tiles of TOKENS tokens whose rows are ROW apart. WIDE: 16 bytes can be moved at a time. */
template <typename T, int L, int COLUMNS, int ROW, bool WIDE> struct scan_feed {
    typedef scan_shape<T, L> S;
    enum {
        N = 16 / (int)sizeof(T),
        PIECES = COLUMNS / N,            /* 16-byte pieces of a token */
        STEP = (int)S::THREADS / PIECES, /* tokens that the block copies at once */
        TOKENS = S::TOKENS
    };
    const T *from; /* the thread's first piece of the next tile; not WIDE: element `first` of token 0 */
    int some;      /* bytes of the thread's pieces; not WIDE: columns */

    /* From token `token` on. */
    KR_MEMBER void start(const scan_rows<T> &of, int64_t token, int64_t first, int columns)
    {
        const int t = (int)threadIdx.x / PIECES, j = (int)threadIdx.x % PIECES * N, left = columns - j;
        some = !WIDE ? columns : (left < 0 ? 0 : left < N ? left : N) * (int)sizeof(T);
        from = of.data + first + (WIDE ? (token + t) * of.stride + j : 0);
    }

    /* `rows` tokens from `token` on, to the tile at address `to`; the next tile will be `way` (1, -1) tiles further. */
    KR_MEMBER void fetch(const scan_rows<T> &of, int64_t token, int rows, uint32_t to, int way)
    {
        if (!WIDE) {
            fetch_narrow<TOKENS, COLUMNS, ROW, S::THREADS>(to, from + token * of.stride, of.stride, rows, some);
        } else {
            const int t = (int)threadIdx.x / PIECES, j = (int)threadIdx.x % PIECES * N;
#pragma unroll
            for (int p = 0; p < TOKENS; p += STEP)
                if (STEP <= TOKENS || t < TOKENS)
                    copy_ahead<16>(to + (uint32_t)(((t + p) * ROW + j) * (int)sizeof(T)), from + p * of.stride,
                                   t + p < rows ? some : 0);
            from += way * TOKENS * of.stride;
        }
    }
};

/* Can 16 bytes be moved at a time, if pieces of a token begin at multiples of `step`? */
template <typename T> static scan_rows<T> scan_rows_of(const void *data, int64_t stride, int64_t step)
{
    const int64_t n = 16 / (int64_t)sizeof(T);
    scan_rows<T> r = { (const T *)data, stride, kr_is_aligned(data, 16) && stride % n == 0 && step % n == 0 };
    return r;
}

/* ---- sums over lanes ---- */

/* v[t] summed over the L lanes of a channel, for N tokens: lane l of them ends up with the sums of tokens j M + l in
 * v[j M], M = min(L, N); lanes beyond M have what lane l % M has. Half of the values change hands at each step. */
template <int L, int N, typename T> KR_DEVICE void sum_lanes(T *v)
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

/* Four states of channel i from `r` on, of an array [.. i r] whose channel 0 is at `from`; those that are not there: 0. */
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
