/* ssd_states_parts.cuh - a block of the walk over states: what it has to do, and where its stages lie. */
#ifndef KR_KERNELS_CUDA_SSD_STATES_PARTS_CUH
#define KR_KERNELS_CUDA_SSD_STATES_PARTS_CUH

#include "kernels/cuda/handover.cuh"
#include "kernels/cuda/ssd_states.cuh"
#include "kernels/cuda/ssd_turn.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define HAS_WARPGROUPS 1
#endif

/* What a walk is for: states before segments, states, or states of x in two terms, and what rounding took from them. */
enum { BETWEEN, STATES, EXACT };
enum { MANY, ONE, TURN }; /* several ranks, one, one with maps that turn */
enum { TILE = 64 * 64 * 2, SUMMERS = 128, LOADERS = 128, FACTOR_BYTES = 512 };

/* Shared memory in bytes: stages of (x, maps, x's second terms), their factors and exponents of e^a_end, states on
 * their way out, latches, and a bias. Steps go to groups of loaders in turn, each of which asks for copies `ahead` of
 * its steps before it makes them ready. */
template <int COLUMNS, int KIND> struct layout {
    static const bool scaled = COLUMNS == 32; /* by those that load */
    static const int groups = scaled ? 2 : 1, threads = SUMMERS + groups * LOADERS, blocks = scaled ? 2 : 3;
    static const int stages = !scaled || KIND == EXACT ? 4 : 7, ahead = scaled && KIND == EXACT ? 1 : 2;
    static const int maps = TILE, low = maps + 64 * COLUMNS * 2, stage = low + (scaled && KIND == EXACT ? TILE : 0);
    static const int factors = stages * stage, staging = factors + stages * FACTOR_BYTES;
    static const int filled = staging + (KIND == BETWEEN ? 0 : 64 * COLUMNS * 2);
    static const int free = filled + stages * KR_LATCH_BYTES, bias = (free + stages * KR_LATCH_BYTES + 15) / 16 * 16;
    static const int bytes = bias + kr_turn_bias<COLUMNS>::bytes;
};

/* Of a block: 64 rows of p from p0 on, COLUMNS of r from r0 on, of sequence q and head h. */
typedef struct task {
    int64_t q, h, head, e, first, at; /* the sequence's first chunk and token */
    int count;                        /* its chunks */
    int part, rest;                   /* the step whose chunk is cut short, -1: none; and its tokens */
    int p0, r0;
} task;

/* Blocks of one state follow each other and share x; but where maps turn, the first columns have more to do than the
 * last, and every processor is to have some of both. */
template <int COLUMNS, int WAY> static __device__ __forceinline__ task task_of(const kr_ssd_walk &w)
{
    task t;
    const unsigned across = (unsigned)w.r_line / COLUMNS, heads = (unsigned)(w.nh * w.slices),
                   units = gridDim.x / across, unit = WAY == TURN ? blockIdx.x % units : blockIdx.x / across,
                   column = WAY == TURN ? blockIdx.x / units : blockIdx.x % across;
    t.head = unit % heads, t.q = unit / heads;
    t.h = t.head / w.slices, t.e = t.h / (w.nh / w.ng);
    t.p0 = (int)(t.head % w.slices) * 64, t.r0 = (int)column * COLUMNS;
    const kr_ssd_span span = kr_ssd_span_of(w.map, t.q);
    t.first = span.first, t.count = (int)span.count, t.at = 0, t.part = -1, t.rest = 0;
    if (w.between && t.count > (w.segments - 1) * w.every) t.count = (w.segments - 1) * w.every + 1;
    if (t.count > 0) {
        const kr_ssd_place last = kr_ssd_place_of(w.map, t.first + t.count - 1);
        t.at = kr_ssd_place_of(w.map, t.first).at, t.rest = last.nt;
        if (last.nt < w.map.nt) t.part = w.back ? 0 : t.count - 1;
    }
    return t;
}

static __device__ __forceinline__ int lane_of(void)
{
    return (int)threadIdx.x & 31;
}

static __device__ __forceinline__ int warp_of(void)
{
    return (int)threadIdx.x / 32;
}

static __device__ __forceinline__ int chunk_at(const kr_ssd_walk &w, const task &t, int i)
{
    return w.back ? t.count - 1 - i : i;
}

static __device__ __forceinline__ int tokens_at(const kr_ssd_walk &w, const task &t, int i)
{
    return i == t.part ? t.rest : (int)w.map.nt;
}

#endif
