/* decode_ssd_tma.cu - one token of the Mamba-2 SSD core for many states, with bulk copies; sm_90, f32. Formulas:
 * decode_ssd.cu.
 *
 * A tile pair is 16 rows p of one head, two tiles. A CTA owns consecutive tile pairs; its warps take them round-robin.
 * While a warp works on a tile pair in registers, the next one and its records of pending tokens are on the way to the
 * warp's own buffer in shared memory by bulk copies (tma.cuh): no warp waits for another. Everything else is in the CTA's
 * workspace in shared memory: pending B, D and gain, loaded before the kernel that makes x, B and C ends, and the rest
 * after it. So a tile pair takes only shared memory, arithmetic and a few shuffles; H is written from registers when it is
 * flushed.
 */
#include "kernels/cuda/prim/tma.cuh"
#include "kernels/cuda/decode/decode_ssd.cuh"

enum { WARPS = 16, THREADS = 32 * WARPS, PAIR = 2, ROWS = PAIR * KR_DECODE_TILE, RECORDS = PAIR * KR_DEFERRED_RECORD };

/* Constants of a launch, in 32 bits, and upper bounds for a CTA. */
typedef struct plan {
    uint32_t nh, nr, pairs;          /* pairs: total */
    uint32_t per_head, per_group;    /* tile pairs per head, heads per group */
    uint32_t next_heads, next_parts; /* from a warp's tile pair to its next: heads, and tile pairs within a head */
    uint32_t pair, slot;             /* floats of a tile pair, and of a warp's buffer for it and its records */
    uint32_t max_pairs, max_heads, max_rows; /* tile pairs of a CTA; heads and rows they may span */
} plan;

/* Workspace behind the warps' buffers: extras [pairs ROWS], current B and C [rows g r], pending B [rows g
 * KR_DEFERRED_TOKENS r], tokens [heads]. */
typedef struct workspace {
    float *deferred_b, *b, *c;
    kr_ssd_token_scale<float> *tokens;
    kr_ssd_extras<float> *extras;
} workspace;

static __host__ __device__ inline size_t workspace_floats(const plan &p, uint32_t of_row, bool pending)
{
    return (size_t)p.max_pairs * ROWS * 4 + (size_t)p.max_rows * of_row * (pending ? KR_DEFERRED_TOKENS + 2 : 2) +
           (size_t)p.max_heads * 2;
}

static __device__ __forceinline__ workspace workspace_of(const kr_ssd_job<float> &k, const plan &p, float *at)
{
    const uint32_t of_rows = p.max_rows * (uint32_t)k.ng * p.nr;
    workspace d;
    d.extras = (kr_ssd_extras<float> *)(void *)at;
    d.b = (float *)(d.extras + p.max_pairs * ROWS);
    d.c = d.b + of_rows;
    d.deferred_b = d.c + of_rows;
    d.tokens = (kr_ssd_token_scale<float> *)(d.deferred_b + (k.deferred ? KR_DEFERRED_TOKENS * of_rows : 0));
    return d;
}

/* The CTA's partition: first tile pair, count, and head and row of the first. */
typedef struct partition {
    uint32_t first, count, head, row; /* head: row * nh + h */
} partition;

static __device__ __forceinline__ partition partition_of(const plan &p)
{
    partition s;
    s.first = p.pairs / gridDim.x * blockIdx.x + min(p.pairs % gridDim.x, blockIdx.x);
    s.count = p.pairs / gridDim.x + (blockIdx.x < p.pairs % gridDim.x);
    s.head = s.first / p.per_head, s.row = s.head / p.nh;
    return s;
}

/* ---- workspace ---- */

/* Operands that the preceding kernel does not write. */
static __device__ __forceinline__ void load_params(const kr_ssd_job<float> &k, const plan &p, const workspace &d,
                                                   const partition &own)
{
    const uint32_t of_row = (uint32_t)k.ng * p.nr * KR_DEFERRED_TOKENS, channels = p.nh * p.per_head * ROWS;
    const uint32_t first = own.first * ROWS;
    for (uint32_t i = threadIdx.x; k.deferred && i < p.max_rows * of_row; i += THREADS) {
        const int64_t row = kr_least(own.row + i / of_row, k.nb - 1);
        d.deferred_b[i] = k.deferred[row * k.parts.row + k.parts.b + i % of_row];
    }
    for (uint32_t i = threadIdx.x; i < own.count * ROWS; i += THREADS) {
        const uint32_t channel = (first + i) % channels;
        d.extras[i].d = !k.d ? 0.0f : k.d_per_dim ? k.d[channel] : k.d[channel / (p.per_head * ROWS)];
        d.extras[i].gain = k.gain ? k.gain[channel] : 1.0f;
    }
}

static __device__ __forceinline__ void load_token(const kr_ssd_job<float> &k, const plan &p, const workspace &d,
                                                  const partition &own)
{
    const uint32_t of_row = (uint32_t)k.ng * p.nr, channels = p.nh * p.per_head * ROWS;
    const uint32_t first = own.first * ROWS;
    const uint32_t heads = (own.first + own.count - 1) / p.per_head + 1 - own.head;
    const uint32_t last = THREADS - 1 - threadIdx.x; /* the last warps have less of the other work */
#pragma unroll 1
    for (uint32_t i = last; i < heads; i += THREADS) {
        const uint32_t row = (own.head + i) / p.nh, h = own.head + i - row * p.nh;
        d.tokens[i] = kr_ssd_token_scale_of(k, row * k.stride, h, k.dt_bias[h], kr_exp(k.a_log[h]));
    }
#pragma unroll 2
    for (uint32_t i = threadIdx.x; i < p.max_rows * of_row; i += THREADS) {
        const int64_t at = kr_least(own.row + i / of_row, k.nb - 1) * k.stride + i % of_row;
        d.b[i] = k.b[at];
        d.c[i] = k.c[at];
    }
#pragma unroll 4
    for (uint32_t i = threadIdx.x; i < own.count * ROWS; i += THREADS) {
        const uint32_t row = (first + i) / channels;
        const int64_t at = row * k.stride + (first + i - row * channels);
        d.extras[i].x = k.x[at];
        d.extras[i].gate = k.z ? kr_silu(k.z[at]) : 0.0f;
    }
}

/* ---- tile pairs ---- */

/* Position of a warp: tile pair i of the CTA, `part` of head h of row `row`; head and group in the workspace. */
typedef struct pair_pos {
    uint32_t i, part, h, row;
    uint32_t head, group;
} pair_pos;

/* Fills in head and group from h and row. */
static __device__ __forceinline__ pair_pos with_groups(const plan &p, const partition &own, pair_pos at)
{
    at.head = at.row * p.nh + at.h - own.head;
    at.group = at.row - own.row;
    if (p.per_group != p.nh) at.group = at.group * (p.nh / p.per_group) + at.h / p.per_group;
    return at;
}

static __device__ __forceinline__ pair_pos first_pair(const plan &p, const partition &own)
{
    pair_pos at;
    at.i = threadIdx.x / 32;
    const uint32_t pair = own.first + at.i, head = pair / p.per_head;
    at.part = pair - head * p.per_head;
    at.row = head / p.nh, at.h = head - at.row * p.nh;
    return with_groups(p, own, at);
}

static __device__ __forceinline__ pair_pos next_pair(const plan &p, const partition &own, pair_pos at)
{
    at.i += WARPS, at.h += p.next_heads, at.part += p.next_parts;
    if (at.part >= p.per_head) at.part -= p.per_head, at.h++;
    while (at.h >= p.nh) at.h -= p.nh, at.row++;
    return with_groups(p, own, at);
}

/* Its records in global memory. */
static __device__ __forceinline__ float *records_at(const kr_ssd_job<float> &k, const plan &p, const pair_pos &at)
{
    return k.deferred + at.row * k.parts.row + (at.h * p.per_head + at.part) * RECORDS;
}

/* Applies the pending tokens. r: the lane's elements. */
static __device__ __forceinline__ void flush_pending(const plan &p, const workspace &d, uint32_t group, uint32_t r,
                                                     const float *records, const kr_ssd_pending &pending,
                                                     kr_vec4<float> s[ROWS])
{
    const float *deferred_b = d.deferred_b + group * KR_DEFERRED_TOKENS * p.nr + r;
#pragma unroll 1
    for (uint32_t i = pending.t - pending.count; i < pending.t; i++) {
        const uint32_t from = i % KR_DEFERRED_TOKENS;
        const float decay = records[KR_DEFERRED_DECAY + from];
        const kr_vec4<float> b = kr_load_float4(deferred_b + from * p.nr);
#pragma unroll
        for (int four = 0; four < ROWS / 4; four++) {
            const float *at = records + four / 2 * KR_DEFERRED_RECORD + from * KR_DECODE_TILE + four % 2 * 4;
            const kr_vec4<float> weight = kr_load_float4(at);
#pragma unroll
            for (int n = 0; n < 4; n++) kr_ssd_update_row(&s[4 * four + n], decay, weight.v[n], b);
        }
    }
}

/* Applies the current token; returns H C of the lane's row. */
static __device__ __forceinline__ float update_state(const plan &p, const workspace &d, const pair_pos &at, uint32_t r,
                                                     const kr_ssd_token_scale<float> &now, kr_vec4<float> s[ROWS])
{
    const kr_vec4<float> b = kr_load_float4(d.b + at.group * p.nr + r), c = kr_load_float4(d.c + at.group * p.nr + r);
    float sums[ROWS];
#pragma unroll
    for (int n = 0; n < ROWS; n++) {
        kr_ssd_update_row(&s[n], now.decay, now.step * d.extras[at.i * ROWS + n].x, b);
        sums[n] = 0;
#pragma unroll
        for (int e = 0; e < KR_VEC4; e++) sums[n] = kr_fma(s[n].v[e], c.v[e], sums[n]);
    }
    if (p.nr < KR_SSD_SPAN && threadIdx.x % 32 * KR_VEC4 >= p.nr)
#pragma unroll
        for (int n = 0; n < ROWS; n++) sums[n] = 0; /* lanes past nr repeat the last elements */
    return kr_lanes_sum<ROWS, 16>(sums, threadIdx.x % 32);
}

/* Appends the current token to the records; B by the first tile pair of a group. */
static __device__ __forceinline__ void store_record(const kr_ssd_job<float> &k, const plan &p, const workspace &d,
                                                    const pair_pos &at, uint32_t t,
                                                    const kr_ssd_token_scale<float> &now)
{
    const uint32_t lane = threadIdx.x % 32, to = t % KR_DEFERRED_TOKENS;
    float *records = records_at(k, p, at);
    if (lane < ROWS) {
        const uint32_t tile = lane / KR_DECODE_TILE, row = lane % KR_DECODE_TILE;
        records[tile * KR_DEFERRED_RECORD + to * KR_DECODE_TILE + row] = now.step * d.extras[at.i * ROWS + lane].x;
    } else if (lane < ROWS + 2 * PAIR) {
        const bool counts = lane >= ROWS + PAIR;
        const uint32_t pair_pos = counts ? (uint32_t)KR_DEFERRED_COUNT : KR_DEFERRED_DECAY + to;
        records[lane % PAIR * KR_DEFERRED_RECORD + pair_pos] = counts ? (float)kr_ssd_next_count(t) : now.decay;
    }
    if (at.part != 0) return;
    const uint32_t group = at.h / p.per_group;
    if (group * p.per_group != at.h) return;
    float *b = k.deferred + at.row * k.parts.row + k.parts.b + (group * KR_DEFERRED_TOKENS + to) * p.nr;
    for (uint32_t r = lane; r < p.nr; r += 32) b[r] = d.b[at.group * p.nr + r];
}

/* Epilogue of the rows. number: index of the tile pair among all. */
static __device__ __forceinline__ void store_rows(const kr_ssd_job<float> &k, const workspace &d, const pair_pos &at,
                                                  uint32_t number, float total)
{
    enum { LANES = 32 / ROWS }; /* per row */
    const int lane = threadIdx.x % 32, n = lane / LANES;
    float square = 0;
    if (lane % LANES == 0) square = kr_ssd_store(k, at.row, at.h, at.part * ROWS + n, total, d.extras[at.i * ROWS + n]);
    if (!k.squares) return;
#pragma unroll
    for (int offset = 16 / PAIR; offset >= LANES; offset /= 2) square += __shfl_xor_sync(0xffffffffu, square, offset);
    if (lane % (32 / PAIR) == 0) k.squares[number * PAIR + lane / (32 / PAIR)] = square;
}

/* ---- bulk-copy buffers ---- */

/* A warp's buffer: the rows of a tile pair, then records of two tile pairs, alternating. Its mbarrier completes when a tile
 * pair has arrived. */
typedef struct warp_buffer {
    float *rows;
    uint32_t mbarrier;
} warp_buffer;

static __device__ __forceinline__ float *records_of(const plan &p, const warp_buffer &buffer, uint32_t phase)
{
    return buffer.rows + p.pair + phase % 2 * RECORDS;
}

/* Called by one lane. */
static __device__ __forceinline__ void load_pair(const kr_ssd_job<float> &k, const plan &p, const partition &own,
                                                 const warp_buffer &buffer, const pair_pos &at, uint32_t phase)
{
    const uint32_t bytes = p.pair * (uint32_t)sizeof(float), more = k.deferred ? RECORDS * (uint32_t)sizeof(float) : 0;
    kr_bulk_expect(buffer.mbarrier, bytes + more);
    kr_bulk_copy_evict_first(buffer.rows, k.state + (int64_t)(own.first + at.i) * p.pair, bytes, buffer.mbarrier);
    if (k.deferred) kr_bulk_copy_evict_first(records_of(p, buffer, phase), records_at(k, p, at), more, buffer.mbarrier);
}

/* A tile pair without pending tokens: current token, write-back and epilogue. */
static __device__ __forceinline__ void finish_pair(const kr_ssd_job<float> &k, const plan &p, const workspace &d,
                                                   const partition &own, const pair_pos &at, uint32_t r,
                                                   const kr_ssd_pending &pending, kr_vec4<float> s[ROWS])
{
    const kr_ssd_token_scale<float> now = d.tokens[at.head];
    const uint32_t number = own.first + at.i;
    const float total = update_state(p, d, at, r, now, s);
    float *state = k.state + (int64_t)number * p.pair + r;
    if (pending.is_flushed)
#pragma unroll
        for (int n = 0; n < ROWS; n++) __stcs((float4 *)(void *)(state + n * p.nr), *(const float4 *)s[n].v);
    if (k.deferred) store_record(k, p, d, at, pending.t, now);
    store_rows(k, d, at, number, total);
}

/* All tile pairs of the warp, from `at` on, which has been requested. */
static __device__ __forceinline__ void run_pairs(const kr_ssd_job<float> &k, const plan &p, const workspace &d,
                                                 const partition &own, const warp_buffer &buffer, pair_pos at)
{
    const uint32_t r = min(threadIdx.x % 32 * KR_VEC4, p.nr - KR_VEC4); /* lanes past nr repeat the last elements */
    for (uint32_t phase = 0; at.i < own.count; phase++) {
        const pair_pos next = next_pair(p, own, at);
        const float *records = k.deferred ? records_of(p, buffer, phase) : NULL;
        kr_mbarrier_wait(buffer.mbarrier, phase);
        kr_vec4<float> s[ROWS];
#pragma unroll
        for (int n = 0; n < ROWS; n++) s[n] = kr_load_float4(buffer.rows + n * p.nr + r);
        __syncwarp();
        if (threadIdx.x % 32 == 0 && next.i < own.count) load_pair(k, p, own, buffer, next, phase + 1);
        const kr_ssd_pending pending = kr_ssd_pending_of(records, (own.first + at.i) * PAIR);
        flush_pending(p, d, at.group, r, records, pending, s);
        finish_pair(k, p, d, own, at, r, pending, s);
        at = next;
    }
}

/* CTA i of n owns the tile pairs from i * pairs / n on. */
static __global__ void __launch_bounds__(THREADS, 1)
    tma_kernel(const __grid_constant__ kr_ssd_job<float> k, const __grid_constant__ plan p)
{
    extern __shared__ uint4 shared[];
    __shared__ uint64_t mbarriers[WARPS];
    float *slots = (float *)(void *)shared;
    const uint32_t warp = threadIdx.x / 32;
    const workspace d = workspace_of(k, p, slots + WARPS * p.slot);
    const partition own = partition_of(p);
    const warp_buffer buffer = { slots + warp * p.slot, kr_shared_address(&mbarriers[warp]) };
    const pair_pos first = first_pair(p, own);
    if (threadIdx.x % 32 == 0) {
        kr_mbarrier_init(buffer.mbarrier, 1);
        kr_mbarrier_init_fence();
        if (first.i < own.count) load_pair(k, p, own, buffer, first, 0);
    }
    load_params(k, p, d, own);
    kr_pdl_wait();
    load_token(k, p, d, own);
    __syncthreads();
    run_pairs(k, p, d, own, buffer, first);
}

/* ---- dispatch ---- */

bool kr_decode_ssd_tma(const kr_decode_ssd_args *a, const kr_ssd_job<float> &k)
{
    const kr_cuda *own = (const kr_cuda *)a->exec.own;
    const int64_t blocks = own->multiprocessors, per_head = k.np / ROWS, pairs = k.nb * k.nh * per_head;
    if (own->arch != 90 || k.np % ROWS != 0 || k.nr > KR_SSD_SPAN || k.nr < KR_VEC4 || pairs < WARPS / 2 * blocks ||
        pairs > INT32_MAX / ROWS)
        return false;
    plan p;
    p.nh = (uint32_t)k.nh, p.nr = (uint32_t)k.nr, p.pairs = (uint32_t)pairs;
    p.per_head = (uint32_t)per_head, p.per_group = (uint32_t)(k.nh / k.ng);
    p.next_heads = WARPS / p.per_head, p.next_parts = WARPS % p.per_head;
    p.pair = ROWS * p.nr, p.slot = p.pair + (k.deferred ? 2 * RECORDS : 0);
    p.max_pairs = (uint32_t)kr_ceil_div(pairs, blocks);
    p.max_heads = (uint32_t)kr_least((p.max_pairs + per_head - 2) / per_head + 1, k.nb * k.nh);
    p.max_rows = (uint32_t)kr_least((p.max_heads + k.nh - 2) / k.nh + 1, k.nb);
    const size_t workspace = workspace_floats(p, (uint32_t)(k.ng * k.nr), k.deferred != NULL);
    const size_t shared = (WARPS * (size_t)p.slot + workspace) * sizeof(float);
    if (shared + 1024 > own->shared_bytes) return false;
    kr_pdl_launch(&a->exec, tma_kernel, dim3((unsigned)blocks), THREADS, shared, k, p);
    return true;
}
