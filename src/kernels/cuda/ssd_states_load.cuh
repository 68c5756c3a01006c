/* ssd_states_load.cuh - the warps of the walk over states that bring chunks to shared memory.
 *
 * A thread turns and scales what it loaded itself, so that nobody waits for others before a stage is handed over.
 */
#ifndef KR_KERNELS_CUDA_SSD_STATES_LOAD_CUH
#define KR_KERNELS_CUDA_SSD_STATES_LOAD_CUH

#include "kernels/cuda/ssd_chunk.cuh"
#include "kernels/cuda/ssd_states_parts.cuh"
#include "kernels/cuda/wgmma.cuh"

static __device__ __forceinline__ int loader_of(void)
{
    return (int)threadIdx.x & (LOADERS - 1);
}

/* Rows of x, and of the maps, of step i. */
static __device__ __forceinline__ kr_rows x_rows(const kr_ssd_walk &w, const task &t, int i, int nm)
{
    const int64_t at = t.at + (int64_t)chunk_at(w, t, i) * w.map.nt;
    const kr_rows x = {
        w.x + at * w.x_stride + t.h * w.np + t.p0, w.x_stride, w.nh * w.np, nm, w.np - t.p0, w.x_aligned
    };
    return x;
}

static __device__ __forceinline__ kr_rows map_rows(const kr_ssd_walk &w, const task &t, int i, int nm)
{
    const int64_t at = t.at + (int64_t)chunk_at(w, t, i) * w.map.nt;
    const kr_rows x = {
        w.maps + at * w.maps_stride + t.e * w.nr + t.r0, w.maps_stride, w.ng * w.nr, nm, w.nr - t.r0, w.maps_aligned
    };
    return x;
}

/* A thread's 16-byte units of rows of W elements. */
template <int W> struct part {
    static const int units = W / 8, step = LOADERS / units, count = 64 / step;

    static __device__ __forceinline__ int row(void) { return loader_of() / units; }
    static __device__ __forceinline__ int unit(void) { return loader_of() % units; }
};

/* Bytes that are kept rather than made again in each step. */
static __device__ __forceinline__ int kept(int64_t bytes)
{
    int x = (int)bytes;
    asm volatile("" : "+r"(x));
    return x;
}

static __device__ __forceinline__ bool is_near(int64_t bytes)
{
    return bytes == (int)bytes;
}

/* Where a thread's units of whole chunks come from, and the bytes from row to row of the thread's, of which `turn` are
 * from step to step. */
typedef struct lines {
    const char *at;
    int row, turn;
} lines;

/* steps: from a step of the thread's to its next one. false: they cannot be walked so. */
template <int W>
static __device__ __forceinline__ bool lines_of(const kr_ssd_walk &w, const kr_rows &s, int steps, lines *l)
{
    const int64_t next = (s.nm == 1 ? s.token : s.rank) * 2, row = part<W>::step * next;
    l->at = (const char *)s.x + part<W>::row() * next + part<W>::unit() * 16;
    l->row = kept(row), l->turn = (w.back ? -steps : steps) * part<W>::count;
    return s.aligned && s.width >= W && (s.nm == 1 || s.token == s.nm * s.rank) && w.map.nt * s.nm == 64 &&
           is_near(row);
}

template <int W> static __device__ __forceinline__ void copy_lines(uint32_t tile, const lines &l)
{
    const uint32_t to = tile + kr_tile_at<W>(part<W>::row(), part<W>::unit());
    const char *from = l.at;
#pragma unroll
    for (int k = 0; k < part<W>::count; k++, from += l.row) kr_copy_async16(to + k * (part<W>::step * W * 2), from, 16);
}

static __device__ __forceinline__ void next_lines(lines *l)
{
    l->at += (int64_t)l->row * l->turn;
}

static __device__ __forceinline__ void copy_async4(uint32_t to, const void *from)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}

typedef struct source {
    lines x, maps;
    bool plain; /* both can be walked */
    const char *factor;
    int factor_step;
} source;

template <int COLUMNS, int KIND, int WAY>
static __device__ __forceinline__ source source_of(const kr_ssd_walk &w, const task &t, int i)
{
    typedef layout<COLUMNS, KIND> at;
    const int nm = WAY == MANY ? w.nm : 1;
    const int64_t factors = w.nh * KR_SSD_FACTORS * 256, step = w.back ? -at::groups : at::groups;
    source s;
    s.plain = lines_of<64>(w, x_rows(w, t, i, nm), at::groups, &s.x);
    s.plain = lines_of<COLUMNS>(w, map_rows(w, t, i, nm), at::groups, &s.maps) && s.plain && is_near(step * factors);
    s.factor = (const char *)w.factors + (t.first + chunk_at(w, t, i)) * factors + t.h * KR_SSD_FACTORS * 256;
    s.factor += (w.back ? KR_SSD_ENTER : KR_SSD_STAY) * 256;
    s.factor_step = kept(step * factors);
    return s;
}

/* The factors of a step, and e^a_end's exponent after them; those that scale by them have them from their own warp. */
template <int COLUMNS, int KIND>
static __device__ __forceinline__ void copy_factors(const kr_ssd_walk &w, const char *from, uint32_t to)
{
    typedef part<64> mine;
    if (layout<COLUMNS, KIND>::scaled && mine::unit() == 0) {
#pragma unroll
        for (int k = 0; k < mine::count; k++)
            copy_async4(to + (mine::row() + k * mine::step) * 4, from + (mine::row() + k * mine::step) * 4);
    }
    if (!layout<COLUMNS, KIND>::scaled && loader_of() < 16)
        kr_copy_async16(to + loader_of() * 16, from + loader_of() * 16, 16);
    if (loader_of() == 33)
        copy_async4(to + 256, from + (KR_SSD_A2 - (w.back ? KR_SSD_ENTER : KR_SSD_STAY)) * 256 + 252);
}

template <int COLUMNS, int KIND, int WAY>
static __device__ __forceinline__ void load_step(const kr_ssd_walk &w, const task &t, source *s, int i, int to,
                                                 uint32_t base)
{
    typedef layout<COLUMNS, KIND> at;
    const uint32_t stage = base + (uint32_t)to * at::stage, factors = base + at::factors + (uint32_t)to * FACTOR_BYTES;
    if (__builtin_expect(s->plain && i != t.part, 1)) {
        copy_lines<64>(stage, s->x);
        copy_lines<COLUMNS>(stage + at::maps, s->maps);
        copy_factors<COLUMNS, KIND>(w, s->factor, factors);
    } else {
        const int nm = WAY == MANY ? w.nm : 1, nf = tokens_at(w, t, i) * nm;
        const int64_t chunk = (t.first + chunk_at(w, t, i)) * w.nh + t.h;
        kr_load_rows<64, LOADERS>(stage, x_rows(w, t, i, nm), nf, loader_of());
        kr_load_rows<COLUMNS, LOADERS>(stage + at::maps, map_rows(w, t, i, nm), nf, loader_of());
        copy_factors<COLUMNS, KIND>(
            w, (const char *)(w.factors + chunk * KR_SSD_FACTORS * 64 + (w.back ? KR_SSD_ENTER : KR_SSD_STAY) * 64),
            factors);
    }
    next_lines(&s->x), next_lines(&s->maps);
    s->factor += s->factor_step;
}

/* x times its factors, where it lies; in two terms with EXACT. */
template <int COLUMNS, int KIND> static __device__ __forceinline__ void scale_step(uint32_t stage, uint32_t factors)
{
    typedef layout<COLUMNS, KIND> at;
    typedef part<64> mine;
    const uint32_t place = stage + kr_tile_at<64>(mine::row(), mine::unit()), line = mine::step * 128;
#pragma unroll
    for (int k = 0; k < mine::count; k += 2) {
        float factor[2];
        uint4 raw[2];
#pragma unroll
        for (int n = 0; n < 2; n++) {
            factor[n] = __uint_as_float(kr_load_shared4(factors + (uint32_t)(mine::row() + (k + n) * mine::step) * 4));
            raw[n] = kr_load_shared16(place + (k + n) * line);
        }
#pragma unroll
        for (int n = 0; n < 2; n++) {
            uint32_t word[4] = { raw[n].x, raw[n].y, raw[n].z, raw[n].w }, low[4];
            const float2 by = make_float2(factor[n], factor[n]);
#pragma unroll
            for (int i = 0; i < 4; i++) kr_ssd_scale<KIND == EXACT>(&word[i], &low[i], by);
            kr_store_shared16(place + (k + n) * line, word);
            if (KIND == EXACT) kr_store_shared16(place + at::low + (k + n) * line, low);
        }
    }
}

/* A thread's angles: of the step that is made ready next, and where those of the step after it are. */
template <int COLUMNS> struct turns {
    float4 of[part<COLUMNS>::count];
    lines from;
    bool some;  /* the thread's columns have angles */
    bool still; /* no column of the block has: their bias is added and no more */
};

template <int COLUMNS>
static __device__ __forceinline__ turns<COLUMNS> turns_of(const kr_ssd_walk &w, const task &t, int i, int steps)
{
    typedef part<COLUMNS> mine;
    const int64_t token = w.nh * w.turn.na, first = t.at + (int64_t)chunk_at(w, t, i) * w.map.nt;
    const int col = t.r0 / 2 + mine::unit() * 4;
    turns<COLUMNS> by;
    by.from.at = (const char *)(w.turn.angle + (first + mine::row()) * token + t.h * w.turn.na + col);
    by.from.row = kept(mine::step * token * 4), by.from.turn = (w.back ? -steps : steps) * mine::count;
    by.some = col < w.turn.na, by.still = t.r0 / 2 >= w.turn.na;
    return by;
}

/* The angles of step i; those of the thread's step after it are asked for. */
template <int COLUMNS>
static __device__ __forceinline__ void load_turns(const kr_ssd_walk &w, const task &t, int i, int steps,
                                                  turns<COLUMNS> *by)
{
    typedef part<COLUMNS> mine;
    if (by->still || i >= t.count) return;
    const int nf = by->some ? tokens_at(w, t, i) : 0;
    const char *from = by->from.at;
#pragma unroll
    for (int k = 0; k < mine::count; k++, from += by->from.row)
        by->of[k] =
            mine::row() + k * mine::step < nf ? __ldcs((const float4 *)from) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    next_lines(&by->from);
    if (mine::unit() > 0 || i + steps >= t.count || i + steps == t.part) return;
    from = by->from.at;
#pragma unroll
    for (int k = 0; k < mine::count; k++, from += by->from.row) asm volatile("prefetch.global.L2 [%0];" ::"l"(from));
}

/* The maps of step i, as they came, become the head's own. */
template <int COLUMNS, bool STILL>
static __device__ __forceinline__ void turn_rows(uint32_t place, int nf, const kr_turn_row &bias,
                                                 const turns<COLUMNS> &by)
{
    typedef part<COLUMNS> mine;
    const uint32_t line = mine::step * COLUMNS * 2;
#pragma unroll
    for (int k = 0; k < mine::count; k++) {
        const float4 angle = by.of[k];
        const float2 still = make_float2(1.0f, 0.0f);
        const float2 turn[4] = { STILL ? still : kr_turn_by(angle.x), STILL ? still : kr_turn_by(angle.y),
                                 STILL ? still : kr_turn_by(angle.z), STILL ? still : kr_turn_by(angle.w) };
        uint32_t y[4];
        kr_turn_words(y, kr_load_shared16(place + k * line), bias, turn);
        if (mine::row() + k * mine::step < nf) kr_store_shared16(place + k * line, y);
    }
}

template <int COLUMNS>
static __device__ __forceinline__ void turn_step(int nf, uint32_t maps, uint32_t bias, const turns<COLUMNS> &by)
{
    const uint32_t place = maps + kr_tile_at<COLUMNS>(part<COLUMNS>::row(), part<COLUMNS>::unit());
    const kr_turn_row add = kr_turn_bias_of<COLUMNS>(bias + (uint32_t)part<COLUMNS>::unit() * 16);
    if (by.still) turn_rows<COLUMNS, true>(place, nf, add, by);
    else turn_rows<COLUMNS, false>(place, nf, add, by);
}

/* The group's steps, from step `first` on. */
template <int COLUMNS, int KIND, int WAY>
static __device__ __forceinline__ void load_all(const kr_ssd_walk &w, const task &t, uint32_t base, int first)
{
    typedef layout<COLUMNS, KIND> at;
    source from = source_of<COLUMNS, KIND, WAY>(w, t, first);
    kr_stage load = { first, 0 }, give = { first, 0 };
    turns<COLUMNS> by;
    if (WAY == TURN) {
        by = turns_of<COLUMNS>(w, t, first, at::groups);
        load_turns<COLUMNS>(w, t, first, at::groups, &by);
    }
#pragma unroll 1
    for (int i = first - at::ahead * at::groups; i < t.count; i += at::groups) {
        const uint32_t stage = base + (uint32_t)give.at * at::stage;
        if (i + at::ahead * at::groups < t.count) {
            kr_latch_wait(base + at::free + (uint32_t)load.at * KR_LATCH_BYTES, load.round);
            load_step<COLUMNS, KIND, WAY>(w, t, &from, i + at::ahead * at::groups, load.at, base);
        }
        kr_copy_commit();
        kr_stage_next<at::stages, at::groups>(&load);
        if (i < 0) continue;
        kr_copy_wait<at::ahead>();
        if (WAY == TURN) {
            turn_step<COLUMNS>(tokens_at(w, t, i), stage + at::maps, base + at::bias, by);
            load_turns<COLUMNS>(w, t, i + at::groups, at::groups, &by);
        }
        if (at::scaled) {
            __syncwarp();
            scale_step<COLUMNS, KIND>(stage, base + at::factors + (uint32_t)give.at * FACTOR_BYTES);
        }
#ifdef HAS_WARPGROUPS
        if (COLUMNS == 64) kr_wg_publish();
#endif
        kr_latch_come(base + at::filled + (uint32_t)give.at * KR_LATCH_BYTES);
        kr_stage_next<at::stages, at::groups>(&give);
    }
}

#endif
