/* ssd_states.cu - the states between chunks, or their gradients, on tensor cores: one pass over the chunks of a sequence
 * per CTA; formulas: ssd_states.cuh. sm_80 and later, with wgmma on sm_90a.
 *
 * A producer/consumer pipeline: producer warps load chunks ahead and prepare them; the first four warps, the consumers,
 * multiply and sum. The sums of a step wait only for the step before. CTAs of 32 columns are for few sequences, where the
 * time is the latency of consecutive steps: there the producers also scale x, and operands are loaded to registers during
 * the products of the step before.
 */
#include "kernels/cuda/prim/mbarrier.cuh"
#include "kernels/cuda/prim/wgmma.cuh"
#include "kernels/cuda/ssd/rotary/ssd_rotate.cuh"
#include "kernels/cuda/ssd/ssd_chunk.cuh"
#include "kernels/cuda/ssd/tensor_core/ssd_states.cuh"

/* ---- tasks and shared memory ---- */

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define HAS_WARPGROUPS 1
#endif

/* Result of a pass: states before segments, states of chunks, or states with x as the sum of two bf16, and their rounding
 * errors. */
enum { SEGMENTS, STATES, EXACT };
enum { MANY, ONE, ROTATE }; /* several ranks, one, one with rotary B or C */
enum { TILE = 64 * 64 * 2, CONSUMERS = 128, PRODUCERS = 128, FACTOR_BYTES = 512 };

/* Shared memory in bytes: stages of (x, bc, low terms of x), their factors and exponents of e^a_end, a staging buffer for
 * states, mbarriers, and a bias. Groups of producers take steps in turn; each issues the copies of a step `ahead` of its
 * steps before it prepares that step. */
template <int COLUMNS, int KIND> struct layout {
    static const bool scaled = COLUMNS == 32; /* by the producers */
    static const int groups = scaled ? 2 : 1, threads = CONSUMERS + groups * PRODUCERS, blocks = scaled ? 2 : 3;
    static const int stages = !scaled || KIND == EXACT ? 4 : 7, ahead = scaled && KIND == EXACT ? 1 : 2;
    static const int bc = TILE, low = bc + 64 * COLUMNS * 2, stage = low + (scaled && KIND == EXACT ? TILE : 0);
    static const int factors = stages * stage, staging = factors + stages * FACTOR_BYTES;
    static const int full = staging + (KIND == SEGMENTS ? 0 : 64 * COLUMNS * 2);
    static const int free = full + stages * KR_MBARRIER_BYTES,
                     bias = (free + stages * KR_MBARRIER_BYTES + 15) / 16 * 16;
    static const int bytes = bias + kr_rotate_bias<COLUMNS>::bytes;
};

/* A CTA's task: 64 rows of p from p0 on, COLUMNS of r from r0 on, of sequence q and head h. */
typedef struct task {
    int64_t q, h, head, e, first, at; /* the sequence's first chunk and token */
    int count;                        /* its chunks */
    int part, rest;                   /* the step with a partial chunk, -1: none; and its tokens */
    int p0, r0;
} task;

/* CTAs of one state are adjacent and share x; but with rotary the first columns take longer than the last, and every
 * multiprocessor should have some of both. */
template <int COLUMNS, int RANKS> static __device__ __forceinline__ task task_of(const kr_ssd_walk &w)
{
    task t;
    const unsigned across = (unsigned)w.r_line / COLUMNS, heads = (unsigned)(w.nh * w.slices),
                   units = gridDim.x / across, unit = RANKS == ROTATE ? blockIdx.x % units : blockIdx.x / across,
                   column = RANKS == ROTATE ? blockIdx.x / units : blockIdx.x % across;
    t.head = unit % heads, t.q = unit / heads;
    t.h = t.head / w.slices, t.e = t.h / (w.nh / w.ng);
    t.p0 = (int)(t.head % w.slices) * 64, t.r0 = (int)column * COLUMNS;
    const kr_ssd_span span = kr_ssd_span_of(w.map, t.q);
    t.first = span.first, t.count = (int)span.count, t.at = 0, t.part = -1, t.rest = 0;
    if (w.segment_states && t.count > (w.segments - 1) * w.every) t.count = (w.segments - 1) * w.every + 1;
    if (t.count > 0) {
        const kr_ssd_chunk last = kr_ssd_chunk_of(w.map, t.first + t.count - 1);
        t.at = kr_ssd_chunk_of(w.map, t.first).at, t.rest = last.nt;
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

/* ---- producers ----
 *
 * A thread rotates and scales what it loaded itself, so that it waits for no other thread before it completes a stage.
 */

static __device__ __forceinline__ int producer_of(void)
{
    return (int)threadIdx.x & (PRODUCERS - 1);
}

/* Rows of x, and of B or C, of step i. */
static __device__ __forceinline__ kr_rows x_rows(const kr_ssd_walk &w, const task &t, int i, int nm)
{
    const int64_t at = t.at + (int64_t)chunk_at(w, t, i) * w.map.nt;
    const kr_rows x = {
        w.x + at * w.x_stride + t.h * w.np + t.p0, w.x_stride, w.nh * w.np, nm, w.np - t.p0, w.x_aligned
    };
    return x;
}

static __device__ __forceinline__ kr_rows bc_rows(const kr_ssd_walk &w, const task &t, int i, int nm)
{
    const int64_t at = t.at + (int64_t)chunk_at(w, t, i) * w.map.nt;
    const kr_rows x = {
        w.bc + at * w.bc_stride + t.e * w.nr + t.r0, w.bc_stride, w.ng * w.nr, nm, w.nr - t.r0, w.bc_aligned
    };
    return x;
}

/* A thread's 16-byte units of rows of W elements. */
template <int W> struct part {
    static const int units = W / 8, step = PRODUCERS / units, count = 64 / step;

    static __device__ __forceinline__ int row(void) { return producer_of() / units; }
    static __device__ __forceinline__ int unit(void) { return producer_of() % units; }
};

/* Hides the value from the compiler, so that it stays in a register instead of being recomputed at each step. */
static __device__ __forceinline__ int in_register(int64_t bytes)
{
    int x = (int)bytes;
    asm volatile("" : "+r"(x));
    return x;
}

static __device__ __forceinline__ bool fits_int(int64_t bytes)
{
    return bytes == (int)bytes;
}

/* Source of a thread's units of full chunks: address, bytes between its rows, and rows between its steps. */
typedef struct row_cursor {
    const char *at;
    int row, rotate;
} row_cursor;

/* steps: between two steps of the thread. False: the rows are not regularly strided. */
template <int W>
static __device__ __forceinline__ bool row_cursor_of(const kr_ssd_walk &w, const kr_rows &s, int steps, row_cursor *l)
{
    const int64_t next = (s.nm == 1 ? s.token : s.rank) * 2, row = part<W>::step * next;
    l->at = (const char *)s.x + part<W>::row() * next + part<W>::unit() * 16;
    l->row = in_register(row), l->rotate = (w.back ? -steps : steps) * part<W>::count;
    return s.aligned && s.width >= W && (s.nm == 1 || s.token == s.nm * s.rank) && w.map.nt * s.nm == 64 &&
           fits_int(row);
}

template <int W> static __device__ __forceinline__ void copy_rows(uint32_t tile, const row_cursor &l)
{
    const uint32_t to = tile + kr_tile_at<W>(part<W>::row(), part<W>::unit());
    const char *from = l.at;
#pragma unroll
    for (int k = 0; k < part<W>::count; k++, from += l.row) kr_copy_async16(to + k * (part<W>::step * W * 2), from, 16);
}

static __device__ __forceinline__ void advance_rows(row_cursor *l)
{
    l->at += (int64_t)l->row * l->rotate;
}

static __device__ __forceinline__ void copy_async4(uint32_t to, const void *from)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}

typedef struct source {
    row_cursor x, bc;
    bool is_regular; /* both are regularly strided */
    const char *factor;
    int factor_step;
} source;

template <int COLUMNS, int KIND, int RANKS>
static __device__ __forceinline__ source source_of(const kr_ssd_walk &w, const task &t, int i)
{
    typedef layout<COLUMNS, KIND> at;
    const int nm = RANKS == MANY ? w.nm : 1;
    const int64_t factors = w.nh * KR_SSD_FACTORS * 256, step = w.back ? -at::groups : at::groups;
    source s;
    s.is_regular = row_cursor_of<64>(w, x_rows(w, t, i, nm), at::groups, &s.x);
    s.is_regular =
        row_cursor_of<COLUMNS>(w, bc_rows(w, t, i, nm), at::groups, &s.bc) && s.is_regular && fits_int(step * factors);
    s.factor = (const char *)w.factors + (t.first + chunk_at(w, t, i)) * factors + t.h * KR_SSD_FACTORS * 256;
    s.factor += (w.back ? KR_SSD_DECAY_IN : KR_SSD_DECAY_OUT_W) * 256;
    s.factor_step = in_register(step * factors);
    return s;
}

/* Copies the factors of a step, and after them the exponent of e^a_end; warps that scale by them copy their own. */
template <int COLUMNS, int KIND>
static __device__ __forceinline__ void copy_factors(const kr_ssd_walk &w, const char *from, uint32_t to)
{
    typedef part<64> mine;
    if (layout<COLUMNS, KIND>::scaled && mine::unit() == 0) {
#pragma unroll
        for (int k = 0; k < mine::count; k++)
            copy_async4(to + (mine::row() + k * mine::step) * 4, from + (mine::row() + k * mine::step) * 4);
    }
    if (!layout<COLUMNS, KIND>::scaled && producer_of() < 16)
        kr_copy_async16(to + producer_of() * 16, from + producer_of() * 16, 16);
    if (producer_of() == 33)
        copy_async4(to + 256, from + (KR_SSD_A2 - (w.back ? KR_SSD_DECAY_IN : KR_SSD_DECAY_OUT_W)) * 256 + 252);
}

template <int COLUMNS, int KIND, int RANKS>
static __device__ __forceinline__ void load_step(const kr_ssd_walk &w, const task &t, source *s, int i, int to,
                                                 uint32_t base)
{
    typedef layout<COLUMNS, KIND> at;
    const uint32_t stage = base + (uint32_t)to * at::stage, factors = base + at::factors + (uint32_t)to * FACTOR_BYTES;
    if (__builtin_expect(s->is_regular && i != t.part, 1)) {
        copy_rows<64>(stage, s->x);
        copy_rows<COLUMNS>(stage + at::bc, s->bc);
        copy_factors<COLUMNS, KIND>(w, s->factor, factors);
    } else {
        const int nm = RANKS == MANY ? w.nm : 1, nf = tokens_at(w, t, i) * nm;
        const int64_t chunk = (t.first + chunk_at(w, t, i)) * w.nh + t.h;
        kr_load_rows<64, PRODUCERS>(stage, x_rows(w, t, i, nm), nf, producer_of());
        kr_load_rows<COLUMNS, PRODUCERS>(stage + at::bc, bc_rows(w, t, i, nm), nf, producer_of());
        copy_factors<COLUMNS, KIND>(w,
                                    (const char *)(w.factors + chunk * KR_SSD_FACTORS * 64 +
                                                   (w.back ? KR_SSD_DECAY_IN : KR_SSD_DECAY_OUT_W) * 64),
                                    factors);
    }
    advance_rows(&s->x), advance_rows(&s->bc);
    s->factor += s->factor_step;
}

/* Scales x by its factors in place; as the sum of two bf16 with EXACT. */
template <int COLUMNS, int KIND> static __device__ __forceinline__ void scale_step(uint32_t stage, uint32_t factors)
{
    typedef layout<COLUMNS, KIND> at;
    typedef part<64> mine;
    const uint32_t address = stage + kr_tile_at<64>(mine::row(), mine::unit()), line = mine::step * 128;
#pragma unroll
    for (int k = 0; k < mine::count; k += 2) {
        float factor[2];
        uint4 raw[2];
#pragma unroll
        for (int n = 0; n < 2; n++) {
            factor[n] = __uint_as_float(kr_load_shared4(factors + (uint32_t)(mine::row() + (k + n) * mine::step) * 4));
            raw[n] = kr_load_shared16(address + (k + n) * line);
        }
#pragma unroll
        for (int n = 0; n < 2; n++) {
            uint32_t word[4] = { raw[n].x, raw[n].y, raw[n].z, raw[n].w }, low[4];
            const float2 by = make_float2(factor[n], factor[n]);
#pragma unroll
            for (int i = 0; i < 4; i++) kr_ssd_scale<KIND == EXACT>(&word[i], &low[i], by);
            kr_store_shared16(address + (k + n) * line, word);
            if (KIND == EXACT) kr_store_shared16(address + at::low + (k + n) * line, low);
        }
    }
}

/* A thread's angles: of the next step to prepare, and the address of those after it. */
template <int COLUMNS> struct angle_regs {
    float4 of[part<COLUMNS>::count];
    row_cursor from;
    bool some;      /* the thread's columns have angles */
    bool unrotated; /* no column of the CTA has: only the bias is added */
};

template <int COLUMNS>
static __device__ __forceinline__ angle_regs<COLUMNS> angle_regs_of(const kr_ssd_walk &w, const task &t, int i,
                                                                    int steps)
{
    typedef part<COLUMNS> mine;
    const int64_t token = w.nh * w.rotate.na, first = t.at + (int64_t)chunk_at(w, t, i) * w.map.nt;
    const int col = t.r0 / 2 + mine::unit() * 4;
    angle_regs<COLUMNS> by;
    by.from.at = (const char *)(w.rotate.angle + (first + mine::row()) * token + t.h * w.rotate.na + col);
    by.from.row = in_register(mine::step * token * 4), by.from.rotate = (w.back ? -steps : steps) * mine::count;
    by.some = col < w.rotate.na, by.unrotated = t.r0 / 2 >= w.rotate.na;
    return by;
}

/* Loads the angles of step i and prefetches those of the thread's next step. */
template <int COLUMNS>
static __device__ __forceinline__ void load_angles(const kr_ssd_walk &w, const task &t, int i, int steps,
                                                   angle_regs<COLUMNS> *by)
{
    typedef part<COLUMNS> mine;
    if (by->unrotated || i >= t.count) return;
    const int nf = by->some ? tokens_at(w, t, i) : 0;
    const char *from = by->from.at;
#pragma unroll
    for (int k = 0; k < mine::count; k++, from += by->from.row)
        by->of[k] =
            mine::row() + k * mine::step < nf ? __ldcs((const float4 *)from) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    advance_rows(&by->from);
    if (mine::unit() > 0 || i + steps >= t.count || i + steps == t.part) return;
    from = by->from.at;
#pragma unroll
    for (int k = 0; k < mine::count; k++, from += by->from.row) asm volatile("prefetch.global.L2 [%0];" ::"l"(from));
}

/* Rotates B or C of step i from the group's to the head's. */
template <int COLUMNS, bool UNROTATED>
static __device__ __forceinline__ void rotate_rows_of_tile(uint32_t address, int nf, const kr_rotate_row &bias,
                                                           const angle_regs<COLUMNS> &by)
{
    typedef part<COLUMNS> mine;
    const uint32_t line = mine::step * COLUMNS * 2;
#pragma unroll
    for (int k = 0; k < mine::count; k++) {
        const float4 angle = by.of[k];
        const float2 unrotated = make_float2(1.0f, 0.0f);
        const float2 rotate[4] = { UNROTATED ? unrotated : kr_rotate_by(angle.x),
                                   UNROTATED ? unrotated : kr_rotate_by(angle.y),
                                   UNROTATED ? unrotated : kr_rotate_by(angle.z),
                                   UNROTATED ? unrotated : kr_rotate_by(angle.w) };
        uint32_t y[4];
        kr_rotate_words(y, kr_load_shared16(address + k * line), bias, rotate);
        if (mine::row() + k * mine::step < nf) kr_store_shared16(address + k * line, y);
    }
}

template <int COLUMNS>
static __device__ __forceinline__ void rotate_step(int nf, uint32_t bc, uint32_t bias, const angle_regs<COLUMNS> &by)
{
    const uint32_t address = bc + kr_tile_at<COLUMNS>(part<COLUMNS>::row(), part<COLUMNS>::unit());
    const kr_rotate_row add = kr_rotate_bias_of<COLUMNS>(bias + (uint32_t)part<COLUMNS>::unit() * 16);
    if (by.unrotated) rotate_rows_of_tile<COLUMNS, true>(address, nf, add, by);
    else rotate_rows_of_tile<COLUMNS, false>(address, nf, add, by);
}

/* The steps of a producer group, from step `first` on. */
template <int COLUMNS, int KIND, int RANKS>
static __device__ __forceinline__ void produce(const kr_ssd_walk &w, const task &t, uint32_t base, int first)
{
    typedef layout<COLUMNS, KIND> at;
    source from = source_of<COLUMNS, KIND, RANKS>(w, t, first);
    kr_stage load = { first, 0 }, ready = { first, 0 };
    angle_regs<COLUMNS> by;
    if (RANKS == ROTATE) {
        by = angle_regs_of<COLUMNS>(w, t, first, at::groups);
        load_angles<COLUMNS>(w, t, first, at::groups, &by);
    }
#pragma unroll 1
    for (int i = first - at::ahead * at::groups; i < t.count; i += at::groups) {
        const uint32_t stage = base + (uint32_t)ready.at * at::stage;
        if (i + at::ahead * at::groups < t.count) {
            kr_mbarrier_wait(base + at::free + (uint32_t)load.at * KR_MBARRIER_BYTES, load.round);
            load_step<COLUMNS, KIND, RANKS>(w, t, &from, i + at::ahead * at::groups, load.at, base);
        }
        kr_copy_commit();
        kr_stage_next<at::stages, at::groups>(&load);
        if (i < 0) continue;
        kr_copy_wait<at::ahead>();
        if (RANKS == ROTATE) {
            rotate_step<COLUMNS>(tokens_at(w, t, i), stage + at::bc, base + at::bias, by);
            load_angles<COLUMNS>(w, t, i + at::groups, at::groups, &by);
        }
        if (at::scaled) {
            __syncwarp();
            scale_step<COLUMNS, KIND>(stage, base + at::factors + (uint32_t)ready.at * FACTOR_BYTES);
        }
#ifdef HAS_WARPGROUPS
        if (COLUMNS == 64) kr_wg_proxy_fence();
#endif
        kr_mbarrier_arrive(base + at::full + (uint32_t)ready.at * KR_MBARRIER_BYTES);
        kr_stage_next<at::stages, at::groups>(&ready);
    }
}

/* ---- storing states ---- */

/* Two sums in bf16; LOW: their rounding errors, in bf16. */
template <bool LOW> static __device__ __forceinline__ uint32_t rounded(float x, float y)
{
    const uint32_t high = kr_pair_of(x, y);
    if (!LOW) return high;
    const float2 h = kr_unpack(high);
    return kr_pair_of(x - h.x, y - h.y);
}

/* Stages the warp's 16 rows in shared memory, in bf16. */
template <int COLUMNS, bool LOW>
static __device__ __forceinline__ void stage_state(const float acc[COLUMNS / 8][4], uint32_t staging)
{
    const int row = warp_of() * 16;
#ifdef HAS_WARPGROUPS
    const uint32_t mine = staging + kr_tile_at<COLUMNS>(row + (lane_of() & 15), lane_of() / 16);
#pragma unroll
    for (int c = 0; c < COLUMNS / 8; c += 2)
        asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(mine ^ (uint32_t)(c * 16)),
                     "r"(rounded<LOW>(acc[c][0], acc[c][1])), "r"(rounded<LOW>(acc[c][2], acc[c][3])),
                     "r"(rounded<LOW>(acc[c + 1][0], acc[c + 1][1])), "r"(rounded<LOW>(acc[c + 1][2], acc[c + 1][3]))
                     : "memory");
#else
    const uint32_t to = staging + (lane_of() & 3) * 4;
#pragma unroll
    for (int c = 0; c < COLUMNS / 8; c++) {
        kr_store_shared4(to + kr_tile_at<COLUMNS>(row + lane_of() / 4, c), rounded<LOW>(acc[c][0], acc[c][1]));
        kr_store_shared4(to + kr_tile_at<COLUMNS>(row + lane_of() / 4 + 8, c), rounded<LOW>(acc[c][2], acc[c][3]));
    }
#endif
}

/* Stores the staged rows to the CTA's states or low. */
template <int COLUMNS> static __device__ __forceinline__ void store_staged(kr_bf16 *to, int r_line, uint32_t staging)
{
    const int units = COLUMNS / 8, step = 32 / units, row = warp_of() * 16 + lane_of() / units,
              unit = lane_of() % units;
    to += row * r_line + unit * 8;
    __syncwarp();
#pragma unroll
    for (int k = 0; k < 16 / step; k++)
        kr_store_global16(to + k * step * r_line,
                          kr_load_shared16(staging + kr_tile_at<COLUMNS>(row + k * step, unit)));
    __syncwarp();
}

/* Stores the CTA's state in f32, at the start of a segment. */
template <int COLUMNS>
static __device__ __forceinline__ void store_segment_state(const kr_ssd_walk &w, const task &t, int64_t segment,
                                                           const float acc[COLUMNS / 8][4])
{
    const int row = warp_of() * 16 + lane_of() / 4;
    float *to = w.segment_states + ((t.q * w.segments + segment) * (w.nh * w.slices) + t.head) * 64 * w.r_line;
#pragma unroll
    for (int c = 0; c < COLUMNS / 8; c++)
#pragma unroll
        for (int k = 0; k < 2; k++)
            *(float2 *)(to + (int64_t)(row + 8 * k) * w.r_line + t.r0 + c * 8 + (lane_of() & 3) * 2) =
                make_float2(acc[c][2 * k], acc[c][2 * k + 1]);
}

template <int COLUMNS>
static __device__ __forceinline__ void store_end(const kr_ssd_walk &w, const task &t, const float acc[COLUMNS / 8][4])
{
    float *end = w.end + (t.q * w.nh + t.h) * w.np * w.nr;
#pragma unroll
    for (int c = 0; c < COLUMNS / 8; c++)
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const int p = t.p0 + warp_of() * 16 + lane_of() / 4 + (k / 2) * 8,
                      r = t.r0 + c * 8 + (lane_of() & 3) * 2 + (k & 1);
            if (p < w.np && r < w.nr) end[(int64_t)p * w.nr + r] = acc[c][k];
        }
}

/* Destinations of the states of a step's chunk, and of a segment's initial state. */
typedef struct outputs {
    int64_t at, step; /* offset in states and low, of this step and to the next one */
    int until, segment;
} outputs;

static __device__ __forceinline__ outputs outputs_of(const kr_ssd_walk &w, const task &t)
{
    const int64_t chunk = w.nh * w.slices * 64 * w.r_line;
    outputs o = { 0, w.back ? -chunk : chunk, 0, 0 };
    o.at = (t.first + (w.back ? t.count - 1 : 0)) * chunk + t.head * 64 * w.r_line + t.r0;
    return o;
}

/* Stages the state before a step; it is stored later, while the products of the step run. */
template <int COLUMNS, int KIND>
static __device__ __forceinline__ void store_state(const kr_ssd_walk &w, const task &t, outputs *o,
                                                   const float acc[COLUMNS / 8][4], uint32_t staging)
{
    if (KIND == EXACT && w.low) {
        stage_state<COLUMNS, true>(acc, staging);
        store_staged<COLUMNS>(w.low + o->at, w.r_line, staging);
    }
    if (KIND != SEGMENTS) stage_state<COLUMNS, false>(acc, staging);
    else if (o->until-- == 0) store_segment_state<COLUMNS>(w, t, o->segment++, acc), o->until = w.every - 1;
}

template <int COLUMNS, int KIND>
static __device__ __forceinline__ void store_staged_states(const kr_ssd_walk &w, outputs *o, uint32_t staging)
{
    if (KIND != SEGMENTS) store_staged<COLUMNS>(w.states + o->at, w.r_line, staging);
    o->at += o->step;
}

/* ---- consumers ---- */

/* Operands of a step (ssd_chunk.cuh, kr_ssd_pass). */
template <int COLUMNS, int KIND> struct operands {
    uint32_t a[4][4], low[KIND == EXACT ? 4 : 1][4], b[4][COLUMNS / 16][4];
    float chunk_decay;
};

/* A lane's offsets in the tiles of a stage. */
template <int COLUMNS> struct lane_tiles {
    uint32_t a, b[COLUMNS / 16];
};

template <int COLUMNS> static __device__ __forceinline__ lane_tiles<COLUMNS> lane_tiles_of(int bc)
{
    const int lane = lane_of();
    lane_tiles<COLUMNS> p;
    p.a = kr_tile_at<64>((lane & 7) + ((lane >> 4) & 1) * 8, (lane >> 3) & 1) ^ (uint32_t)(warp_of() * 32);
#pragma unroll
    for (int c = 0; c < COLUMNS / 16; c++)
        p.b[c] = (uint32_t)bc + (kr_tile_at<COLUMNS>(lane & 15, lane >> 4) ^ (uint32_t)(c * 32));
    return p;
}

template <int COLUMNS, int KIND>
static __device__ __forceinline__ void load_operands(operands<COLUMNS, KIND> *o, const lane_tiles<COLUMNS> &p,
                                                     uint32_t stage, uint32_t factors)
{
    typedef layout<COLUMNS, KIND> at;
    o->chunk_decay = kr_exp2(__uint_as_float(kr_load_shared4(factors + 256)));
#pragma unroll
    for (int k = 0; k < 4; k++) {
        kr_ldmatrix_trans(o->a[k], stage + p.a + k * (16 * 128));
        if (KIND == EXACT) kr_ldmatrix_trans(o->low[k], stage + at::low + p.a + k * (16 * 128));
#pragma unroll
        for (int c = 0; c < COLUMNS / 16; c++) kr_ldmatrix_trans(o->b[k][c], stage + p.b[c] + k * (16 * COLUMNS * 2));
    }
}

template <int COLUMNS, int KIND>
static __device__ __forceinline__ void multiply(float acc[COLUMNS / 8][4], const operands<COLUMNS, KIND> &o)
{
#pragma unroll
    for (int c = 0; c < COLUMNS / 8; c++)
#pragma unroll
        for (int k = 0; k < 4; k++) acc[c][k] *= o.chunk_decay;
#pragma unroll
    for (int k = 0; k < 4; k++)
#pragma unroll
        for (int c = 0; c < COLUMNS / 16; c++) {
            kr_mma_pair(acc[2 * c], acc[2 * c + 1], o.a[k], o.b[k][c]);
            if (KIND == EXACT) kr_mma_pair(acc[2 * c], acc[2 * c + 1], o.low[k], o.b[k][c]);
        }
}

/* Operands already scaled by the producers, loaded one step ahead. The last step loads its own again. */
template <int COLUMNS, int KIND>
static __device__ __forceinline__ void consume_narrow(const kr_ssd_walk &w, const task &t, float acc[COLUMNS / 8][4],
                                                      uint32_t base)
{
    typedef layout<COLUMNS, KIND> at;
    const lane_tiles<COLUMNS> p = lane_tiles_of<COLUMNS>(at::bc);
    outputs out = outputs_of(w, t);
    kr_stage s = { 0, 0 };
    operands<COLUMNS, KIND> now, next;
    if (t.count == 0) return;
    kr_mbarrier_wait(base + at::full, 0);
    load_operands<COLUMNS, KIND>(&now, p, base, base + at::factors);
    kr_mbarrier_arrive(base + at::free);
#pragma unroll 2
    for (int i = 1; i <= t.count; i++) {
        store_state<COLUMNS, KIND>(w, t, &out, acc, base + at::staging);
        if (i < t.count) kr_stage_next<at::stages, 1>(&s);
        kr_mbarrier_wait(base + at::full + (uint32_t)s.at * KR_MBARRIER_BYTES, s.round);
        load_operands<COLUMNS, KIND>(&next, p, base + (uint32_t)s.at * at::stage,
                                     base + at::factors + (uint32_t)s.at * FACTOR_BYTES);
        multiply<COLUMNS, KIND>(acc, now);
        kr_mbarrier_arrive(base + at::free + (uint32_t)s.at * KR_MBARRIER_BYTES);
        store_staged_states<COLUMNS, KIND>(w, &out, base + at::staging);
        now = next;
    }
}

#ifdef HAS_WARPGROUPS

static __device__ __forceinline__ float2 load_pair(uint32_t from)
{
    float2 x;
    asm volatile("ld.shared.v2.f32 {%0,%1}, [%2];" : "=f"(x.x), "=f"(x.y) : "r"(from) : "memory");
    return x;
}

/* The warp's columns of x times the factors: operands of a step. */
template <int KIND>
static __device__ __forceinline__ void scale_operands(uint32_t a[4][4], uint32_t low[4][4], uint32_t x,
                                                      uint32_t factors)
{
#pragma unroll
    for (int k = 0; k < 4; k++) {
        const uint32_t at = factors + (uint32_t)(k * 16 + (lane_of() & 3) * 2) * 4;
        kr_ldmatrix_trans(a[k], x + k * (16 * 128));
        const float2 scale0 = load_pair(at), scale8 = load_pair(at + 32);
#pragma unroll
        for (int i = 0; i < 4; i++) kr_ssd_scale<KIND == EXACT>(&a[k][i], &low[k][i], i < 2 ? scale0 : scale8);
    }
}

/* kr_ssd_pass by wgmma, left in flight. */
template <int KIND>
static __device__ __forceinline__ void begin_pass(float acc[8][4], const uint32_t a[4][4], const uint32_t low[4][4],
                                                  float chunk_decay, uint32_t bc)
{
#pragma unroll
    for (int c = 0; c < 8; c++)
#pragma unroll
        for (int k = 0; k < 4; k++) acc[c][k] *= chunk_decay;
    kr_wg_hold<8>(acc);
    kr_wg_begin();
#pragma unroll
    for (int k = 0; k < 4; k++) {
        kr_wg_64_rs(acc, a[k], kr_wg_n_last(bc, k * 16));
        if (KIND == EXACT) kr_wg_64_rs(acc, low[k], kr_wg_n_last(bc, k * 16));
    }
    kr_wg_commit();
}

#endif

template <int KIND>
static __device__ __forceinline__ void consume_wide(const kr_ssd_walk &w, const task &t, float acc[8][4], char *shared)
{
    typedef layout<64, KIND> at;
    const uint32_t base = kr_shared_address(shared);
    outputs out = outputs_of(w, t);
    kr_stage s = { 0, 0 };
#pragma unroll 1
    for (int i = 0; i < t.count; i++) {
        const uint32_t x = base + (uint32_t)s.at * at::stage;
        uint32_t staging = base + at::staging;
        asm volatile("" : "+r"(staging)); /* so that addresses derived from it do not take a register each */
        kr_mbarrier_wait(base + at::full + (uint32_t)s.at * KR_MBARRIER_BYTES, s.round);
#ifdef HAS_WARPGROUPS
        const uint32_t factors = base + at::factors + (uint32_t)s.at * FACTOR_BYTES;
        const float chunk_decay = kr_exp2(__uint_as_float(kr_load_shared4(factors + 256)));
        uint32_t a[4][4], low[4][4];
        scale_operands<KIND>(a, low, x + lane_tiles_of<64>(0).a, factors);
        store_state<64, KIND>(w, t, &out, acc, staging);
        begin_pass<KIND>(acc, a, low, chunk_decay, x + at::bc);
        store_staged_states<64, KIND>(w, &out, staging);
        kr_wg_wait<0>();
        kr_wg_hold<8>(acc);
#else
        const float *factor = (const float *)(shared + at::factors + s.at * FACTOR_BYTES);
        store_state<64, KIND>(w, t, &out, acc, staging);
        store_staged_states<64, KIND>(w, &out, staging);
        kr_ssd_pass<64, 64, 64, KIND == EXACT>(acc, x, x + at::bc, factor, factor[64], warp_of(), lane_of());
#endif
        kr_mbarrier_arrive(base + at::free + (uint32_t)s.at * KR_MBARRIER_BYTES);
        kr_stage_next<at::stages, 1>(&s);
    }
}

/* ---- CTA ---- */

/* Clears the accumulators, or loads the initial state through a stage; then all stages are free. */
template <int COLUMNS, int KIND>
static __device__ __forceinline__ void start_sums(const kr_ssd_walk &w, const task &t, float acc[COLUMNS / 8][4],
                                                  char *shared)
{
    typedef layout<COLUMNS, KIND> at;
    float *tile = (float *)shared;
#pragma unroll
    for (int c = 0; c < COLUMNS / 8; c++)
#pragma unroll
        for (int k = 0; k < 4; k++) acc[c][k] = 0;
    if (w.start || w.boundary) {
#pragma unroll 4
        for (int i = (int)threadIdx.x; i < 64 * COLUMNS; i += CONSUMERS)
            tile[i] = kr_ssd_start_value(w, t.q, t.h, t.p0 + i / COLUMNS, t.r0 + i % COLUMNS);
        asm volatile("bar.sync 1, 128;" ::: "memory");
        kr_ssd_load_tile<COLUMNS>(acc, tile, warp_of() * 16 + lane_of() / 4, lane_of());
    }
    for (int i = 0; i < at::stages; i++)
        kr_mbarrier_arrive(kr_shared_address(shared) + at::free + i * KR_MBARRIER_BYTES);
}

/* Moves registers, 80 per thread at start, from producers to consumers. */
template <int COLUMNS, bool SUMS> static __device__ __forceinline__ void set_registers(void)
{
#ifdef HAS_WARPGROUPS
    if (!SUMS) asm volatile("setmaxnreg.dec.sync.aligned.u32 64;");
    else if (COLUMNS == 64) asm volatile("setmaxnreg.inc.sync.aligned.u32 96;");
    else asm volatile("setmaxnreg.inc.sync.aligned.u32 112;");
#endif
}

/* One pass, or both directions side by side. */
typedef struct walks {
    kr_ssd_walk of[2];
} walks;

#ifdef HAS_WARPGROUPS
#define BLOCKS(columns) layout<columns, STATES>::blocks
#else
#define BLOCKS(columns) (columns == 64 ? 2 : 1) /* registers are distributed evenly */
#endif

template <int COLUMNS, int KIND, int RANKS>
static __global__ void __launch_bounds__((layout<COLUMNS, KIND>::threads), BLOCKS(COLUMNS))
    walk(const __grid_constant__ walks all)
{
    extern __shared__ __align__(1024) char shared[];
    typedef layout<COLUMNS, KIND> at;
    static_assert(at::bytes <= KR_CUDA_LEAST_SHARED, "too much for sm_86");
    static_assert(at::ahead * at::groups + 2 <= at::stages, "copies of a step wait for sums that wait for them");
    static_assert(CONSUMERS == PRODUCERS, "both sides of an mbarrier have the same count");
    const kr_ssd_walk &w = all.of[blockIdx.y];
    const task t = task_of<COLUMNS, RANKS>(w);
    const uint32_t base = kr_shared_address(shared);
    if (threadIdx.x < 2 * at::stages) kr_mbarrier_init(base + at::full + threadIdx.x * KR_MBARRIER_BYTES, PRODUCERS);
    if (RANKS == ROTATE)
        kr_rotate_load_bias<COLUMNS, at::threads>((float *)(shared + at::bias), w.rotate.bias_b, t.h, t.r0, w.nr,
                                                  (int)threadIdx.x);
    __syncthreads();
    if (threadIdx.x >= CONSUMERS) {
        set_registers<COLUMNS, false>();
        produce<COLUMNS, KIND, RANKS>(w, t, base, (int)threadIdx.x / PRODUCERS - 1);
    } else {
        set_registers<COLUMNS, true>();
        float acc[COLUMNS / 8][4];
        start_sums<COLUMNS, KIND>(w, t, acc, shared);
        if (COLUMNS == 32) consume_narrow<COLUMNS, KIND>(w, t, acc, base);
        else consume_wide<KIND>(w, t, acc, shared);
        if (KIND == SEGMENTS && t.count == 0) store_segment_state<COLUMNS>(w, t, 0, acc);
        if (KIND != SEGMENTS && w.end) store_end<COLUMNS>(w, t, acc);
    }
}

template <int COLUMNS, int KIND, int RANKS>
static void launch(const walks *all, int count, const kr_ssd_dims *d, cudaStream_t stream)
{
    typedef layout<COLUMNS, KIND> at;
    const dim3 blocks((unsigned)(d->r_line / COLUMNS * d->heads * d->nq), (unsigned)count);
    cudaFuncSetAttribute(walk<COLUMNS, KIND, RANKS>, cudaFuncAttributeMaxDynamicSharedMemorySize, at::bytes);
    walk<COLUMNS, KIND, RANKS><<<blocks, at::threads, at::bytes, stream>>>(*all);
}

template <int COLUMNS, int KIND>
static void run_kind(const walks *all, int count, const kr_ssd_dims *d, cudaStream_t stream)
{
    if (all->of[0].rotate.angle) launch<COLUMNS, KIND, ROTATE>(all, count, d, stream);
    else if (d->nm == 1) launch<COLUMNS, KIND, ONE>(all, count, d, stream);
    else launch<COLUMNS, KIND, MANY>(all, count, d, stream);
}

template <int COLUMNS> static void run(const walks *all, int count, const kr_ssd_dims *d, cudaStream_t stream)
{
    if (all->of[0].segment_states) run_kind<COLUMNS, SEGMENTS>(all, count, d, stream);
    else if (all->of[0].exact || all->of[0].low) run_kind<COLUMNS, EXACT>(all, count, d, stream);
    else run_kind<COLUMNS, STATES>(all, count, d, stream);
}

/* Narrow CTAs if all of them run at the same time. */
static void run_walks(const walks *all, int count, const kr_ssd_dims *d, cudaStream_t stream)
{
    const int64_t narrow = count * d->nq * d->heads * (d->r_line / 32);
    const int64_t at_once = (d->limits.warpgroups ? layout<32, STATES>::blocks : 1) * d->limits.processors;
    if (d->nq == 0 || d->heads == 0) return;
    if (narrow <= at_once) run<32>(all, count, d, stream);
    else run<64>(all, count, d, stream);
}

void kr_ssd_walk_run(const kr_ssd_walk *w, const kr_ssd_dims *d, cudaStream_t stream)
{
    const walks all = { { *w, {} } };
    run_walks(&all, 1, d, stream);
}

void kr_ssd_walk_both(const kr_ssd_walk *there, const kr_ssd_walk *back, const kr_ssd_dims *d, cudaStream_t stream)
{
    const walks all = { { *there, *back } };
    run_walks(&all, 2, d, stream);
}
