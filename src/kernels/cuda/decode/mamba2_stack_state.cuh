/* mamba2_stack_state.cuh - the state side of mamba2_stack.cu: one token of the Mamba-2 SSD core for the states of a CTA,
 * which arrive through a bulk-copy ring of slots in shared memory. sm_90.
 *
 * Partition: a tile pair is 16 rows p of one head with all r, two tiles of KR_DECODE_TILE. A CTA owns consecutive tile
 * pairs of the batch rows; its KR_CORE_WARPS warps take them round-robin. State updates are deferred: the last
 * KR_DEFERRED_TOKENS rank-1 updates are kept in records, and one tile pair in KR_DEFERRED_TOKENS is flushed per token. A
 * tile pair that is not flushed is only read:
 *
 *   y = left (H C) + sum over pending tokens i of left_i w_i (B_i C) + w (B C)
 *
 * where left is the product of the decays since, the current one included, B_i C is one number per group, and its product
 * with the decays one per head. A flushed tile pair gets its pending tokens one by one, with the rounding of the other
 * kernels, and is written back; each of its tiles is done by a warp of its own.
 *
 *   state H [b h p r]; records [b h p/8 KR_DEFERRED_RECORD]; pending B [b g KR_DEFERRED_TOKENS r]
 *   x, z [h p], B, C [g r] in rows; y [b h p]
 */
#ifndef KR_KERNELS_CUDA_DECODE_MAMBA2_STACK_STATE_CUH
#define KR_KERNELS_CUDA_DECODE_MAMBA2_STACK_STATE_CUH

#include "kernels/cuda/decode/decode_ssd.cuh"
#include "kernels/cuda/prim/cp_async.cuh"
#include "kernels/cuda/prim/float4.cuh"
#include "kernels/cuda/prim/gemv_parts.cuh"
#include "kernels/cuda/prim/tma.cuh"

#include <cuda_bf16.h>

/* ---- mailboxes: words that CTAs of one launch exchange without a fence ----
 *
 * A word that has not arrived is the sentinel, all bits set.
 *
 *   kr_mailbox_put(&to[i], kr_mailbox_word(v));   ..   do w = kr_mailbox_read(&from[i]); while (w == KR_SENTINEL);
 *
 * A fence waits for all outstanding accesses of a multiprocessor, microseconds under load. Words arrive individually and in
 * any order, so the reader checks each one. The writer clears a word (kr_mailbox_clear) for its next use, once all have
 * read it.
 */
static const uint32_t KR_SENTINEL = 0xffffffffu;

/* A float, or two bf16, as a mailbox word: bits equal to the sentinel, a NaN, are replaced by another NaN. */
static __device__ __forceinline__ uint32_t kr_mailbox_escape(uint32_t bits)
{
    return bits == KR_SENTINEL ? 0x7fff7fffu : bits;
}
static __device__ __forceinline__ uint32_t kr_mailbox_word(float v)
{
    return kr_mailbox_escape(__float_as_uint(v));
}
static __device__ __forceinline__ uint32_t kr_mailbox_word_bf16x2(float low, float high)
{
    const uint32_t low_bits = __bfloat16_as_ushort(__float2bfloat16_rn(low));
    return kr_mailbox_escape(low_bits | (uint32_t)__bfloat16_as_ushort(__float2bfloat16_rn(high)) << 16);
}

static __device__ __forceinline__ void kr_mailbox_put(void *to, uint32_t word)
{
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(to), "r"(word) : "memory");
}
static __device__ __forceinline__ void kr_mailbox_clear(void *to)
{
    kr_mailbox_put(to, KR_SENTINEL);
}

static __device__ __forceinline__ uint32_t kr_mailbox_read(const void *from)
{
    uint32_t word;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(word) : "l"(from) : "memory");
    return word;
}
static __device__ __forceinline__ uint2 kr_mailbox_read2(const void *from)
{
    uint2 x;
    asm volatile("ld.relaxed.gpu.global.v2.u32 {%0,%1}, [%2];" : "=r"(x.x), "=r"(x.y) : "l"(from) : "memory");
    return x;
}
static __device__ __forceinline__ uint4 kr_mailbox_read4(const void *from)
{
    uint4 x;
    asm volatile("ld.relaxed.gpu.global.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "l"(from)
                 : "memory");
    return x;
}

/* KR_SENTINEL if one of x, or `other`, is. */
static __device__ __forceinline__ uint32_t kr_sentinel_max(const uint4 &x, uint32_t other)
{
    return max(max(max(x.x, x.y), max(x.z, x.w)), other);
}

/* ---- partition: which tile pairs a CTA owns, and in which order ---- */

/* A slot of the ring holds a tile pair and its records. */
enum {
    KR_CORE_WARPS = 7,
    KR_CORE_THREADS = 32 * KR_CORE_WARPS,
    KR_CORE_RANK = 32 * KR_VEC4,
    KR_PAIR_TILES = 2,
    KR_PAIR_ROWS = KR_PAIR_TILES * KR_DECODE_TILE,
    KR_PAIR_FLOATS = KR_PAIR_ROWS * KR_CORE_RANK,
    KR_PAIR_RECORDS = KR_PAIR_TILES * KR_DEFERRED_RECORD,
    KR_SLOT_FLOATS = KR_PAIR_FLOATS + KR_PAIR_RECORDS
};

/* Constants of a launch, in 32 bits. */
typedef struct kr_core_plan {
    uint32_t nh, ng, per_group;              /* heads per row, groups, heads per group */
    uint32_t head_bits, dim_bits;            /* 2^head_bits tile pairs and 2^dim_bits rows p per head */
    uint32_t max_pairs, max_heads, max_rows; /* upper bounds for a CTA */
    uint32_t slots;
} kr_core_plan;

/* A CTA's tile pairs among those of rows row0 .. row0 + rows - 1: the index of the first (counted from row 0), their
 * number, and head and row of the first. If all rows have seen as many tokens as the first, every KR_DEFERRED_TOKENS-th
 * tile pair from first_flushed on is flushed at this token, which takes longer. The schedule is therefore: `lead` tile
 * pairs that are not flushed, one per warp; the flushed ones; the rest, whose loads overlap with the flushes. */
typedef struct kr_core_partition {
    uint32_t first, count, head, row, heads, rows; /* head: row * nh + h; heads, rows: number spanned */
    uint32_t first_flushed, n_flushed, lead;
} kr_core_partition;

static __device__ __forceinline__ kr_core_partition kr_core_partition_of(const kr_core_plan &p, uint32_t row0,
                                                                         uint32_t rows)
{
    const uint32_t of_row = p.nh << p.head_bits, pairs = rows * of_row;
    const uint32_t each = pairs / gridDim.x, more = pairs - each * gridDim.x;
    kr_core_partition s;
    s.first = row0 * of_row + each * blockIdx.x + min(more, blockIdx.x);
    s.count = each + (blockIdx.x < more);
    s.head = s.first >> p.head_bits, s.row = s.head / p.nh;
    s.heads = s.count ? ((s.first + s.count - 1) >> p.head_bits) + 1 - s.head : 0;
    s.rows = s.count ? (s.head + s.heads - 1) / p.nh + 1 - s.row : 0;
    return s;
}

/* t: tokens that the first row has seen. */
static __device__ __forceinline__ void kr_core_schedule(kr_core_partition *s, uint32_t t)
{
    s->first_flushed =
        (KR_DEFERRED_TOKENS - 1 - (t + KR_DEFERRED_PHASE(s->first * KR_PAIR_TILES)) % KR_DEFERRED_TOKENS) %
        KR_DEFERRED_TOKENS;
    s->n_flushed = (s->count + KR_DEFERRED_TOKENS - 1 - s->first_flushed) / KR_DEFERRED_TOKENS;
    s->lead = min(s->count - s->n_flushed, (uint32_t)KR_CORE_WARPS);
}

/* A tile pair of the partition, in schedule order: its index in the state, offset of its records in `deferred` in floats;
 * its first row p, its head and its group in the workspace. */
typedef struct __align__(16) kr_pair_index
{
    uint32_t pair, records, row;
    uint16_t head, group;
}
kr_pair_index;

static __device__ __forceinline__ kr_pair_index kr_pair_index_of(const kr_core_plan &p, const kr_core_partition &own,
                                                                 uint32_t row_floats, uint32_t n)
{
    const uint32_t of_row = p.nh << p.head_bits;
    uint32_t i = n < own.lead ? n : n - own.n_flushed, row = 0; /* index among those not flushed */
    if (n >= own.lead && n < own.lead + own.n_flushed) i = own.first_flushed + (n - own.lead) * KR_DEFERRED_TOKENS;
    else if (i >= own.first_flushed) i += 1 + (i - own.first_flushed) / (KR_DEFERRED_TOKENS - 1);
    uint32_t at = own.first - own.row * of_row + i; /* within its row */
    for (; at >= of_row; at -= of_row) row++;
    kr_pair_index to = { own.first + i, (own.row + row) * row_floats + at * KR_PAIR_RECORDS, i * KR_PAIR_ROWS, 0, 0 };
    to.head = (uint16_t)(((own.first + i) >> p.head_bits) - own.head);
    to.group = (uint16_t)(p.ng > 1 ? row * p.ng + (at >> p.head_bits) / p.per_group : row);
    return to;
}

/* ---- workspace: what all tile pairs of the CTA share, in shared memory ---- */

/* A head's token. decays and t as in its record: decays of the last tokens, and their count. In y, the weight at ring index
 * i is multiplied by deferred[i], and H as of c tokens ago by left[c]. */
typedef struct kr_core_head {
    float decays[KR_DEFERRED_TOKENS], t, unused[3];
    float deferred[KR_DEFERRED_TOKENS], left[KR_DEFERRED_TOKENS];
    float step, decay, cb, unused2;
} kr_core_head;
static_assert((int)KR_DEFERRED_COUNT == (int)KR_DEFERRED_DECAY + (int)KR_DEFERRED_TOKENS,
              "a record has t behind its decays");

/* A row p: weight s x of its token, D x, gate silu(z), gain. */
typedef struct __align__(16) kr_core_row
{
    float weight, dx, gate, gain;
}
kr_core_row;

/* Shared memory for all tile pairs of a CTA: current B and C [rows g r], pending B [rows g KR_DEFERRED_TOKENS r], heads,
 * rows p and their sums H C; cb: C times each pending B and the current one [rows g KR_DEFERRED_TOKENS + 1]. */
typedef struct kr_core_workspace {
    float *b, *c, *deferred_b, *cb, *sums;
    kr_core_head *heads;
    kr_core_row *rows;
} kr_core_workspace;

static __host__ __device__ inline uint32_t kr_core_workspace_floats(const kr_core_plan &p)
{
    const uint32_t groups = p.max_rows * p.ng, rows = p.max_pairs * KR_PAIR_ROWS;
    return groups * KR_CORE_RANK * (KR_DEFERRED_TOKENS + 2) +
           p.max_heads * (uint32_t)(sizeof(kr_core_head) / sizeof(float)) +
           rows * (uint32_t)(1 + sizeof(kr_core_row) / sizeof(float)) + groups * (KR_DEFERRED_TOKENS + 1);
}

static __device__ __forceinline__ kr_core_workspace kr_core_workspace_of(const kr_core_plan &p, float *at)
{
    const uint32_t of_rows = p.max_rows * p.ng * KR_CORE_RANK;
    kr_core_workspace d;
    d.b = at, d.c = d.b + of_rows, d.deferred_b = d.c + of_rows;
    d.heads = (kr_core_head *)(void *)(d.deferred_b + KR_DEFERRED_TOKENS * of_rows);
    d.rows = (kr_core_row *)(void *)(d.heads + p.max_heads);
    d.sums = (float *)(void *)(d.rows + p.max_pairs * KR_PAIR_ROWS);
    d.cb = d.sums + p.max_pairs * KR_PAIR_ROWS;
    return d;
}

/* cp.async of `count` consecutive floats, a multiple of 4. thread: index among the core threads. */
static __device__ __forceinline__ void kr_copy_floats(uint32_t thread, float *to, const float *from, uint32_t count)
{
#pragma unroll 1
    for (uint32_t i = 4 * thread; i < count; i += 4 * KR_CORE_THREADS) kr_copy<16>(kr_shared_address(to + i), from + i);
}

/* Checks the thread's completed copies of mailbox words: those that still held the sentinel are copied again. */
static __device__ __forceinline__ void recopy_sentinels(uint32_t thread, float *to, const float *from, uint32_t count)
{
#pragma unroll 1
    for (uint32_t i = 4 * thread; i < count; i += 4 * KR_CORE_THREADS)
        while (kr_sentinel_max(*(const uint4 *)(const void *)(to + i), 0) == KR_SENTINEL) {
            kr_copy<16>(kr_shared_address(to + i), from + i);
            kr_copy_commit();
            kr_copy_wait<0>();
        }
}

/* ---- heads ---- */

/* The head of the partition that a thread prepares: threads are assigned from the last one down. */
typedef struct kr_head_input {
    kr_core_head *to; /* NULL: none */
    uint32_t row, h;
    float dt_bias, a_log;
} kr_head_input;

/* Loads everything older than the current token. */
static __device__ __forceinline__ kr_head_input kr_load_history(const kr_ssd_job<float> &k, const kr_core_plan &p,
                                                                const kr_core_workspace &d,
                                                                const kr_core_partition &own, uint32_t thread)
{
    const uint32_t of_row = p.ng * KR_CORE_RANK * KR_DEFERRED_TOKENS, i = KR_CORE_THREADS - 1 - thread;
    kr_head_input in = {};
    if (i < own.heads) {
        in.row = own.row, in.h = own.head - own.row * p.nh + i;
        while (in.h >= p.nh) in.h -= p.nh, in.row++;
        in.to = d.heads + i;
        const uint32_t part =
            i == 0 ? own.first - (own.head << p.head_bits)
                   : 0; /* earlier pairs of this head belong to another CTA, which may already have rewritten them */
        const float *record = k.deferred + in.row * k.parts.row + ((in.h << p.head_bits) + part) * KR_PAIR_RECORDS;
#pragma unroll
        for (int four = 0; four < 3; four++)
            kr_copy<16>(kr_shared_address(in.to->decays + 4 * four), record + KR_DEFERRED_DECAY + 4 * four);
        in.dt_bias = k.dt_bias[in.h], in.a_log = k.a_log[in.h];
    }
    for (uint32_t r = 0; r < own.rows; r++)
        kr_copy_floats(thread, d.deferred_b + r * of_row, k.deferred + (own.row + r) * k.parts.row + k.parts.b, of_row);
    return in;
}

/* cb[group, token] = C B of each pending token and the current one. */
static __device__ __forceinline__ void init_cb(const kr_core_plan &p, const kr_core_workspace &d,
                                               const kr_core_partition &own, uint32_t thread)
{
    const uint32_t lane = thread % 32, count = own.rows * p.ng * (KR_DEFERRED_TOKENS + 1);
#pragma unroll 3
    for (uint32_t i = thread / 32; i < count; i += KR_CORE_WARPS) {
        const uint32_t group = i / (KR_DEFERRED_TOKENS + 1), token = i - group * (KR_DEFERRED_TOKENS + 1);
        const float *of_token = token < KR_DEFERRED_TOKENS
                                    ? d.deferred_b + (group * KR_DEFERRED_TOKENS + token) * KR_CORE_RANK
                                    : d.b + group * KR_CORE_RANK;
        const float4 b = *(const float4 *)(const void *)(of_token + KR_VEC4 * lane);
        const float4 c = *(const float4 *)(const void *)(d.c + group * KR_CORE_RANK + KR_VEC4 * lane);
        const float sum = kr_warp_sum(kr_fma(b.x, c.x, kr_fma(b.y, c.y, kr_fma(b.z, c.z, b.w * c.w))));
        if (lane == 0) d.cb[i] = sum;
    }
}

static __device__ __forceinline__ void init_head(const kr_core_plan &p, const kr_core_workspace &d,
                                                 const kr_core_partition &own, const kr_head_input &in)
{
    kr_core_head *head = in.to;
    const uint32_t group = (in.row - own.row) * p.ng + (p.ng > 1 ? in.h / p.per_group : 0), t = (uint32_t)head->t;
    const float *cb = d.cb + group * (KR_DEFERRED_TOKENS + 1);
    float left = head->decay;
    head->cb = cb[KR_DEFERRED_TOKENS];
#pragma unroll
    for (uint32_t a = 0; a < KR_DEFERRED_TOKENS; a++) {
        const uint32_t index = (t - 1 - a) % KR_DEFERRED_TOKENS;
        head->left[a] = left;
        head->deferred[index] = left * cb[index];
        left *= head->decays[index];
    }
}

/* ---- rows p, two at a time: index i stands for rows 2 i and 2 i + 1 of the partition ---- */

/* Channel of the first of the two, and their batch row. */
static __device__ __forceinline__ uint32_t kr_channel_of(const kr_core_plan &p, const kr_core_partition &own,
                                                         uint32_t i, uint32_t *row)
{
    const uint32_t channels = p.nh << p.dim_bits;
    uint32_t at = own.first * KR_PAIR_ROWS - own.row * channels + 2 * i;
    for (*row = own.row; at >= channels; at -= channels) ++*row;
    return at;
}

/* Their head in the workspace. */
static __device__ __forceinline__ kr_core_head *kr_head_of_two(const kr_core_plan &p, const kr_core_workspace &d,
                                                               const kr_core_partition &own, uint32_t i)
{
    return d.heads + (((own.first * KR_PAIR_ROWS + 2 * i) >> p.dim_bits) - own.head);
}

/* D and gain, which do not depend on the token. */
typedef struct kr_two_params {
    float2 skip, gain;
} kr_two_params;

static __device__ __forceinline__ kr_two_params kr_load_two_params(const kr_ssd_job<float> &k, const kr_core_plan &p,
                                                                   const kr_core_partition &own, uint32_t i)
{
    kr_two_params in = { { 0, 0 }, { 1, 1 } };
    if (2 * i >= own.count * KR_PAIR_ROWS) return in;
    uint32_t row;
    const uint32_t channel = kr_channel_of(p, own, i, &row);
    if (k.d && k.d_per_dim) in.skip = make_float2(k.d[channel], k.d[channel + 1]);
    else if (k.d) in.skip.x = in.skip.y = k.d[channel >> p.dim_bits];
    if (k.gain) in.gain = make_float2(k.gain[channel], k.gain[channel + 1]);
    return in;
}

/* x and z, polled until they have arrived. */
typedef struct kr_two_xz {
    uint2 x, z;
} kr_two_xz;

static __device__ __forceinline__ kr_two_xz kr_read_two_xz(const kr_ssd_job<float> &k, const kr_core_plan &p,
                                                           const kr_core_partition &own, uint32_t i)
{
    kr_two_xz two = {};
    if (2 * i >= own.count * KR_PAIR_ROWS) return two;
    uint32_t row;
    const uint32_t channel = kr_channel_of(p, own, i, &row), at = row * (uint32_t)k.stride + channel;
    do {
        two.x = kr_mailbox_read2(k.x + at);
        two.z = kr_mailbox_read2(k.z + at);
    } while (max(max(two.x.x, two.x.y), max(two.z.x, two.z.y)) == KR_SENTINEL);
    return two;
}

static __device__ __forceinline__ void init_two_rows(const kr_core_plan &p, const kr_core_workspace &d,
                                                     const kr_core_partition &own, uint32_t i, const kr_two_params &in,
                                                     const kr_two_xz &two)
{
    if (2 * i >= own.count * KR_PAIR_ROWS) return;
    const float step = kr_head_of_two(p, d, own, i)->step;
    const float x0 = __uint_as_float(two.x.x), x1 = __uint_as_float(two.x.y);
    d.rows[2 * i] = { step * x0, in.skip.x * x0, kr_silu(__uint_as_float(two.z.x)), in.gain.x };
    d.rows[2 * i + 1] = { step * x1, in.skip.y * x1, kr_silu(__uint_as_float(two.z.y)), in.gain.y };
}

/* Loads the current token. sync: barrier of the core threads. */
template <typename Sync>
static __device__ __forceinline__ void kr_load_token(const kr_ssd_job<float> &k, const kr_core_plan &p,
                                                     const kr_core_workspace &d, const kr_core_partition &own,
                                                     const kr_head_input &in, const kr_two_params &old, uint32_t thread,
                                                     Sync sync)
{
    const uint32_t of_row = p.ng * KR_CORE_RANK;
    const float *dt_at = k.dt + (in.row * (uint32_t)k.stride + in.h);
    uint32_t dt = 0;
    if (in.to) dt = kr_mailbox_read(dt_at);
    for (uint32_t r = 0; r < own.rows; r++) {
        kr_copy_floats(thread, d.b + r * of_row, k.b + (own.row + r) * k.stride, of_row);
        kr_copy_floats(thread, d.c + r * of_row, k.c + (own.row + r) * k.stride, of_row);
    }
    kr_copy_commit();
    const kr_two_xz two = kr_read_two_xz(k, p, own, thread);
    if (in.to) {
        while (dt == KR_SENTINEL) dt = kr_mailbox_read(dt_at);
        in.to->step = kr_ssd_step_size(k, __uint_as_float(dt) + in.dt_bias);
        in.to->decay = kr_exp(in.to->step * -kr_exp(in.a_log));
    }
    kr_copy_wait<0>();
    for (uint32_t r = 0; r < own.rows; r++) {
        recopy_sentinels(thread, d.b + r * of_row, k.b + (own.row + r) * k.stride, of_row);
        recopy_sentinels(thread, d.c + r * of_row, k.c + (own.row + r) * k.stride, of_row);
    }
    sync();
    init_cb(p, d, own, thread);
    init_two_rows(p, d, own, thread, old, two);
#pragma unroll 1
    for (uint32_t i = thread + KR_CORE_THREADS; 2 * i < own.count * KR_PAIR_ROWS; i += KR_CORE_THREADS)
        init_two_rows(p, d, own, i, kr_load_two_params(k, p, own, i), kr_read_two_xz(k, p, own, i));
    sync();
    if (in.to) init_head(p, d, own, in);
    sync();
}

/* ---- core ---- */

/* Applies the last `count` pending tokens to a tile. deferred_b: the lane's elements. */
static __device__ __forceinline__ void flush_pending(const kr_core_head *head, const float *deferred_b,
                                                     const float *record, uint32_t count,
                                                     kr_vec4<float> s[KR_DECODE_TILE])
{
    const uint32_t t = (uint32_t)head->t;
#pragma unroll 1
    for (uint32_t i = t - count; i < t; i++) {
        const uint32_t index = i % KR_DEFERRED_TOKENS;
        const float decay = head->decays[index];
        const kr_vec4<float> b = kr_load_float4(deferred_b + index * KR_CORE_RANK);
#pragma unroll
        for (int four = 0; four < KR_DECODE_TILE / 4; four++) {
            const kr_vec4<float> weight = kr_load_float4(record + index * KR_DECODE_TILE + four * 4);
#pragma unroll
            for (int n = 0; n < 4; n++) kr_ssd_update_row(&s[4 * four + n], decay, weight.v[n], b);
        }
    }
}

/* H C of ROWS rows: each sum ends in 32 / ROWS adjacent lanes. */
template <int ROWS> static __device__ __forceinline__ float dot_c(const kr_vec4<float> &c, const kr_vec4<float> s[ROWS])
{
    float sums[ROWS];
#pragma unroll
    for (int n = 0; n < ROWS; n++) {
        sums[n] = s[n].v[0] * c.v[0];
#pragma unroll
        for (int e = 1; e < KR_VEC4; e++) sums[n] = kr_fma(s[n].v[e], c.v[e], sums[n]);
    }
    return kr_lanes_sum<ROWS, 16>(sums, threadIdx.x % 32);
}

/* Contribution of the last `count` tokens, pending in H, and of the current one to a row of H C. weights: of the row. */
static __device__ __forceinline__ float pending_part(const kr_core_head *head, const float *weights, uint32_t count,
                                                     float weight)
{
    const uint32_t t = (uint32_t)head->t;
    float sum = weight * head->cb;
#pragma unroll
    for (uint32_t index = 0; index < KR_DEFERRED_TOKENS; index++) {
        const float weight = weights[index * KR_DECODE_TILE];
        sum = kr_fma((t - 1 - index) % KR_DEFERRED_TOKENS < count ? weight : 0.0f, head->deferred[index], sum);
    }
    return sum;
}

/* A tile pair in a ring slot. */
typedef struct kr_tile_pair {
    const float *slot;
    uint32_t row, group, count; /* in the workspace: first row p, group; number of pending tokens */
    const kr_core_head *head;
    bool is_flushed;
} kr_tile_pair;

static __device__ __forceinline__ kr_tile_pair kr_tile_pair_of(const kr_core_workspace &d, const kr_pair_index &index,
                                                               const float *slot)
{
    kr_tile_pair at = { slot, index.row, index.group, 0, d.heads + index.head, false };
    const uint32_t t = (uint32_t)at.head->t,
                   phase = (t + KR_DEFERRED_PHASE(index.pair * KR_PAIR_TILES)) % KR_DEFERRED_TOKENS;
    at.count = min(t, phase), at.is_flushed = phase == KR_DEFERRED_TOKENS - 1;
    return at;
}

/* H C for ROWS rows from row n0 of the pair on, which are not flushed. */
template <int ROWS>
static __device__ __forceinline__ void kr_dot_rows(const kr_core_workspace &d, const kr_tile_pair &at, int n0)
{
    const uint32_t r = threadIdx.x % 32 * KR_VEC4, n = n0 + threadIdx.x % 32 / (32 / ROWS);
    const float *weights = at.slot + KR_PAIR_FLOATS + n / KR_DECODE_TILE * KR_DEFERRED_RECORD + n % KR_DECODE_TILE;
    kr_vec4<float> s[ROWS];
#pragma unroll
    for (int m = 0; m < ROWS; m++) s[m] = kr_load_float4(at.slot + (n0 + m) * KR_CORE_RANK + r);
    const float more = pending_part(at.head, weights, at.count, d.rows[at.row + n].weight);
    const float sum = dot_c<ROWS>(kr_load_float4(d.c + at.group * KR_CORE_RANK + r), s);
    if (threadIdx.x % (32 / ROWS) == 0) d.sums[at.row + n] = kr_fma(at.head->left[at.count], sum, more);
}

/* Flushes one tile: applies pending and current token, writes the state back, stores H C. to: the pair in global memory. */
static __device__ __forceinline__ void kr_flush_tile(const kr_core_workspace &d, const kr_tile_pair &at, int tile,
                                                     float *to)
{
    enum { ROWS = KR_DECODE_TILE };
    const uint32_t r = threadIdx.x % 32 * KR_VEC4, n0 = tile * ROWS, row0 = at.row + n0;
    kr_vec4<float> s[ROWS];
#pragma unroll
    for (int n = 0; n < ROWS; n++) s[n] = kr_load_float4(at.slot + (n0 + n) * KR_CORE_RANK + r);
    flush_pending(at.head, d.deferred_b + at.group * (KR_DEFERRED_TOKENS * KR_CORE_RANK) + r,
                  at.slot + KR_PAIR_FLOATS + tile * KR_DEFERRED_RECORD, at.count, s);
    const kr_vec4<float> b = kr_load_float4(d.b + at.group * KR_CORE_RANK + r);
#pragma unroll
    for (int n = 0; n < ROWS; n++) {
        kr_ssd_update_row(&s[n], at.head->decay, d.rows[row0 + n].weight, b);
        __stcs((float4 *)(void *)(to + (n0 + n) * KR_CORE_RANK + r), *(const float4 *)s[n].v);
    }
    const float sum = dot_c<ROWS>(kr_load_float4(d.c + at.group * KR_CORE_RANK + r), s);
    if (threadIdx.x % (32 / ROWS) == 0) d.sums[row0 + threadIdx.x % 32 / (32 / ROWS)] = sum;
}

/* ---- results ---- */

/* Mailboxes of the other layer parity, which are cleared. */
typedef struct kr_core_clear {
    uint16_t *y;
    float *squares;
} kr_core_clear;

/* y of all rows from their sums, and the sums of squares of tiles: two rows per lane, four lanes per tile. */
static __device__ __forceinline__ void kr_store_y(const kr_ssd_job<float> &k, const kr_core_plan &p,
                                                  const kr_core_workspace &d, const kr_core_partition &own,
                                                  const kr_core_clear &clear, uint32_t thread)
{
    const uint32_t count = own.count * KR_PAIR_ROWS / 2;
#pragma unroll 1
    for (uint32_t first = 0; first < count; first += KR_CORE_THREADS) {
        const uint32_t i = min(first + thread, count - 1);
        uint32_t row;
        const uint32_t channel = kr_channel_of(p, own, i, &row), at = (row * p.nh << p.dim_bits) + channel;
        const kr_core_row one = d.rows[2 * i], other = d.rows[2 * i + 1];
        const float2 sums = *(const float2 *)(const void *)(d.sums + 2 * i);
        const float y0 = (sums.x + one.dx) * one.gate, y1 = (sums.y + other.dx) * other.gate;
        float square = y0 * y0 + y1 * y1;
#pragma unroll
        for (int offset = KR_DECODE_TILE / 4; offset > 0; offset /= 2)
            square += __shfl_xor_sync(0xffffffffu, square, offset);
        if (first + thread >= count) break;
        kr_mailbox_put((uint16_t *)k.y + at, kr_mailbox_word_bf16x2(y0 * one.gain, y1 * other.gain));
        kr_mailbox_clear(clear.y + at);
        if (channel % KR_DECODE_TILE == 0) {
            kr_mailbox_put(k.squares + at / KR_DECODE_TILE, kr_mailbox_word(square));
            kr_mailbox_clear(clear.squares + at / KR_DECODE_TILE);
        }
    }
}

/* Weights of two rows; the tile's first lane also stores its decay, the second its count. */
static __device__ __forceinline__ void store_two_weights(const kr_ssd_job<float> &k, const kr_core_plan &p,
                                                         const kr_core_workspace &d, const kr_core_partition &own,
                                                         uint32_t i)
{
    uint32_t row;
    const uint32_t channel = kr_channel_of(p, own, i, &row), in_tile = channel % KR_DECODE_TILE;
    const kr_core_head *head = kr_head_of_two(p, d, own, i);
    const uint32_t t = (uint32_t)head->t, index = t % KR_DEFERRED_TOKENS;
    float *record = k.deferred + row * k.parts.row + channel / KR_DECODE_TILE * KR_DEFERRED_RECORD;
    *(float2 *)(void *)(record + index * KR_DECODE_TILE + in_tile) =
        make_float2(d.rows[2 * i].weight, d.rows[2 * i + 1].weight);
    if (in_tile == 0) record[KR_DEFERRED_DECAY + index] = head->decay;
    if (in_tile == 2) record[KR_DEFERRED_COUNT] = (float)kr_ssd_next_count(t);
}

/* B of the groups whose first head starts in this partition. */
static __device__ __forceinline__ void store_b(const kr_ssd_job<float> &k, const kr_core_plan &p,
                                               const kr_core_workspace &d, const kr_core_partition &own,
                                               uint32_t thread)
{
    const uint32_t r = thread % 32 * KR_VEC4;
#pragma unroll 1
    for (uint32_t g = thread / 32; g < own.rows * p.ng; g += KR_CORE_WARPS) {
        const uint32_t row = g / p.ng, group = g - row * p.ng, head = (own.row + row) * p.nh + group * p.per_group;
        const uint32_t pair = head << p.head_bits;
        if (pair < own.first || pair >= own.first + own.count) continue;
        const uint32_t index = (uint32_t)d.heads[head - own.head].t % KR_DEFERRED_TOKENS;
        float *b = k.deferred + (own.row + row) * k.parts.row + k.parts.b +
                   (group * KR_DEFERRED_TOKENS + index) * KR_CORE_RANK;
        *(float4 *)(void *)(b + r) = *(const float4 *)(const void *)(d.b + g * KR_CORE_RANK + r);
    }
}

/* Appends the current token to the records, for later tokens; off the critical path. */
static __device__ __forceinline__ void kr_store_records(const kr_ssd_job<float> &k, const kr_core_plan &p,
                                                        const kr_core_workspace &d, const kr_core_partition &own,
                                                        uint32_t thread)
{
#pragma unroll 1
    for (uint32_t i = thread; 2 * i < own.count * KR_PAIR_ROWS; i += KR_CORE_THREADS)
        store_two_weights(k, p, d, own, i);
    store_b(k, p, d, own, thread);
}

#endif
