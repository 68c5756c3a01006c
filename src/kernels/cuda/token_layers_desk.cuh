/* token_layers_desk.cuh - what all pieces of a block's share of states need, in shared memory: B, C, what heads do with their
 * token (token_layers_core.cuh). */
#ifndef KR_KERNELS_CUDA_TOKEN_LAYERS_DESK_CUH
#define KR_KERNELS_CUDA_TOKEN_LAYERS_DESK_CUH

#include "kernels/cuda/copies.cuh"
#include "kernels/cuda/few.cuh"
#include "kernels/cuda/token_layers_share.cuh"
#include "kernels/cuda/words.cuh"

/* A head's token. decays, t: as its record has them, of the last tokens, and how many came. Weights in place i are times
 * owed[i] in y, and what H was before the last c tokens is times left[c]. */
typedef struct kr_core_head {
    float decays[KR_OWED_TOKENS], t, unused[3];
    float owed[KR_OWED_TOKENS], left[KR_OWED_TOKENS];
    float step, decay, cb, unused2;
} kr_core_head;
static_assert((int)KR_OWED_COUNT == (int)KR_OWED_DECAY + (int)KR_OWED_TOKENS, "a record has t behind its decays");

/* A row p of a piece: its token's weight s x, and what y needs besides its sum; gate: silu(z). */
typedef struct __align__(16) kr_core_row
{
    float weight, dx, gate, gain;
}
kr_core_row;

/* In shared memory, for all pieces of a share: B and C now [rows g r], B owed [rows g KR_OWED_TOKENS r], heads, rows p of
 * all pieces, and their sums H C; products of C with B owed and with B [rows g KR_OWED_TOKENS + 1]. */
typedef struct kr_core_desk {
    float *b, *c, *owed_b, *cb, *sums;
    kr_core_head *heads;
    kr_core_row *rows;
} kr_core_desk;

static __host__ __device__ inline uint32_t kr_core_desk_floats(const kr_core_plan &p)
{
    const uint32_t groups = p.most_rows * p.ng, rows = p.most * KR_PIECE_ROWS;
    return groups * KR_CORE_RANK * (KR_OWED_TOKENS + 2) +
           p.most_heads * (uint32_t)(sizeof(kr_core_head) / sizeof(float)) +
           rows * (uint32_t)(1 + sizeof(kr_core_row) / sizeof(float)) + groups * (KR_OWED_TOKENS + 1);
}

static __device__ __forceinline__ kr_core_desk kr_core_desk_of(const kr_core_plan &p, float *at)
{
    const uint32_t of_rows = p.most_rows * p.ng * KR_CORE_RANK;
    kr_core_desk d;
    d.b = at, d.c = d.b + of_rows, d.owed_b = d.c + of_rows;
    d.heads = (kr_core_head *)(void *)(d.owed_b + KR_OWED_TOKENS * of_rows);
    d.rows = (kr_core_row *)(void *)(d.heads + p.most_heads);
    d.sums = (float *)(void *)(d.rows + p.most * KR_PIECE_ROWS);
    d.cb = d.sums + p.most * KR_PIECE_ROWS;
    return d;
}

/* Floats that lie together, a multiple of 4: copies that the thread waits for later. thread: of the core's. */
static __device__ __forceinline__ void kr_lay_down(uint32_t thread, float *to, const float *from, uint32_t count)
{
#pragma unroll 1
    for (uint32_t i = 4 * thread; i < count; i += 4 * KR_CORE_THREADS) kr_copy<16>(kr_shared_address(to + i), from + i);
}

/* Looks at the thread's copies of words, which it has waited for: those that were absent are copied again. */
static __device__ __forceinline__ void lay_down_absent(uint32_t thread, float *to, const float *from, uint32_t count)
{
#pragma unroll 1
    for (uint32_t i = 4 * thread; i < count; i += 4 * KR_CORE_THREADS)
        while (kr_absent_of(*(const uint4 *)(const void *)(to + i), 0) == KR_ABSENT) {
            kr_copy<16>(kr_shared_address(to + i), from + i);
            kr_copy_commit();
            kr_copy_wait<0>();
        }
}

/* ---- heads ---- */

/* A head of the share, which a thread has: one of the last. */
typedef struct kr_head_input {
    kr_core_head *to; /* NULL: none */
    uint32_t row, h;
    float dt_bias, a_log;
} kr_head_input;

/* All that is older than the token. */
static __device__ __forceinline__ kr_head_input kr_lay_out_old(const kr_ssd_job<float> &k, const kr_core_plan &p,
                                                               const kr_core_desk &d, const kr_core_share &own,
                                                               uint32_t thread)
{
    const uint32_t of_row = p.ng * KR_CORE_RANK * KR_OWED_TOKENS, i = KR_CORE_THREADS - 1 - thread;
    kr_head_input in = {};
    if (i < own.heads) {
        in.row = own.row, in.h = own.head - own.row * p.nh + i;
        while (in.h >= p.nh) in.h -= p.nh, in.row++;
        in.to = d.heads + i;
        const uint32_t part =
            i == 0 ? own.first - (own.head << p.head_bits) : 0; /* others may have been at those before */
        const float *record = k.owed + in.row * k.parts.row + ((in.h << p.head_bits) + part) * KR_PIECE_RECORDS;
#pragma unroll
        for (int four = 0; four < 3; four++)
            kr_copy<16>(kr_shared_address(in.to->decays + 4 * four), record + KR_OWED_DECAY + 4 * four);
        in.dt_bias = k.dt_bias[in.h], in.a_log = k.a_log[in.h];
    }
    for (uint32_t r = 0; r < own.rows; r++)
        kr_lay_down(thread, d.owed_b + r * of_row, k.owed + (own.row + r) * k.parts.row + k.parts.b, of_row);
    return in;
}

/* C with each B of its group. */
static __device__ __forceinline__ void lay_out_products(const kr_core_plan &p, const kr_core_desk &d,
                                                        const kr_core_share &own, uint32_t thread)
{
    const uint32_t lane = thread % 32, count = own.rows * p.ng * (KR_OWED_TOKENS + 1);
#pragma unroll 3
    for (uint32_t i = thread / 32; i < count; i += KR_CORE_WARPS) {
        const uint32_t group = i / (KR_OWED_TOKENS + 1), token = i - group * (KR_OWED_TOKENS + 1);
        const float *of_token = token < KR_OWED_TOKENS ? d.owed_b + (group * KR_OWED_TOKENS + token) * KR_CORE_RANK
                                                       : d.b + group * KR_CORE_RANK;
        const float4 b = *(const float4 *)(const void *)(of_token + KR_QUAD * lane);
        const float4 c = *(const float4 *)(const void *)(d.c + group * KR_CORE_RANK + KR_QUAD * lane);
        const float sum = kr_warp_sum(kr_fma(b.x, c.x, kr_fma(b.y, c.y, kr_fma(b.z, c.z, b.w * c.w))));
        if (lane == 0) d.cb[i] = sum;
    }
}

static __device__ __forceinline__ void lay_out_head(const kr_core_plan &p, const kr_core_desk &d,
                                                    const kr_core_share &own, const kr_head_input &in)
{
    kr_core_head *head = in.to;
    const uint32_t group = (in.row - own.row) * p.ng + (p.ng > 1 ? in.h / p.per_group : 0), t = (uint32_t)head->t;
    const float *cb = d.cb + group * (KR_OWED_TOKENS + 1);
    float left = head->decay;
    head->cb = cb[KR_OWED_TOKENS];
#pragma unroll
    for (uint32_t a = 0; a < KR_OWED_TOKENS; a++) {
        const uint32_t place = (t - 1 - a) % KR_OWED_TOKENS;
        head->left[a] = left;
        head->owed[place] = left * cb[place];
        left *= head->decays[place];
    }
}

/* ---- rows p ----
 *
 * By two neighbours: two i of the share are rows 2 i and 2 i + 1 of its pieces. */

/* The channel of the first of two, and their row b. */
static __device__ __forceinline__ uint32_t kr_channel_of(const kr_core_plan &p, const kr_core_share &own, uint32_t i,
                                                         uint32_t *row)
{
    const uint32_t channels = p.nh << p.dim_bits;
    uint32_t at = own.first * KR_PIECE_ROWS - own.row * channels + 2 * i;
    for (*row = own.row; at >= channels; at -= channels) ++*row;
    return at;
}

/* Their head on the desk. */
static __device__ __forceinline__ kr_core_head *kr_head_of_two(const kr_core_plan &p, const kr_core_desk &d,
                                                               const kr_core_share &own, uint32_t i)
{
    return d.heads + (((own.first * KR_PIECE_ROWS + 2 * i) >> p.dim_bits) - own.head);
}

/* D and gains, which are older than the token. */
typedef struct kr_two_input {
    float2 skip, gain;
} kr_two_input;

static __device__ __forceinline__ kr_two_input kr_fetch_two(const kr_ssd_job<float> &k, const kr_core_plan &p,
                                                            const kr_core_share &own, uint32_t i)
{
    kr_two_input in = { { 0, 0 }, { 1, 1 } };
    if (2 * i >= own.count * KR_PIECE_ROWS) return in;
    uint32_t row;
    const uint32_t channel = kr_channel_of(p, own, i, &row);
    if (k.d && k.d_per_dim) in.skip = make_float2(k.d[channel], k.d[channel + 1]);
    else if (k.d) in.skip.x = in.skip.y = k.d[channel >> p.dim_bits];
    if (k.gain) in.gain = make_float2(k.gain[channel], k.gain[channel + 1]);
    return in;
}

/* x and z, when they are there. */
typedef struct kr_two_new {
    uint2 x, z;
} kr_two_new;

static __device__ __forceinline__ kr_two_new kr_read_two(const kr_ssd_job<float> &k, const kr_core_plan &p,
                                                         const kr_core_share &own, uint32_t i)
{
    kr_two_new two = {};
    if (2 * i >= own.count * KR_PIECE_ROWS) return two;
    uint32_t row;
    const uint32_t channel = kr_channel_of(p, own, i, &row), at = row * (uint32_t)k.stride + channel;
    do {
        two.x = kr_read_two_words(k.x + at);
        two.z = kr_read_two_words(k.z + at);
    } while (max(max(two.x.x, two.x.y), max(two.z.x, two.z.y)) == KR_ABSENT);
    return two;
}

static __device__ __forceinline__ void lay_out_two(const kr_core_plan &p, const kr_core_desk &d,
                                                   const kr_core_share &own, uint32_t i, const kr_two_input &in,
                                                   const kr_two_new &two)
{
    if (2 * i >= own.count * KR_PIECE_ROWS) return;
    const float step = kr_head_of_two(p, d, own, i)->step;
    const float x0 = __uint_as_float(two.x.x), x1 = __uint_as_float(two.x.y);
    d.rows[2 * i] = { step * x0, in.skip.x * x0, kr_silu(__uint_as_float(two.z.x)), in.gain.x };
    d.rows[2 * i + 1] = { step * x1, in.skip.y * x1, kr_silu(__uint_as_float(two.z.y)), in.gain.y };
}

/* The rest, when the token is there. sync: of the core's threads. */
template <typename Sync>
static __device__ __forceinline__ void kr_lay_out_new(const kr_ssd_job<float> &k, const kr_core_plan &p,
                                                      const kr_core_desk &d, const kr_core_share &own,
                                                      const kr_head_input &in, const kr_two_input &old, uint32_t thread,
                                                      Sync sync)
{
    const uint32_t of_row = p.ng * KR_CORE_RANK;
    const float *dt_at = k.dt + (in.row * (uint32_t)k.stride + in.h);
    uint32_t dt = 0;
    if (in.to) dt = kr_read_word(dt_at);
    for (uint32_t r = 0; r < own.rows; r++) {
        kr_lay_down(thread, d.b + r * of_row, k.b + (own.row + r) * k.stride, of_row);
        kr_lay_down(thread, d.c + r * of_row, k.c + (own.row + r) * k.stride, of_row);
    }
    kr_copy_commit();
    const kr_two_new two = kr_read_two(k, p, own, thread);
    if (in.to) {
        while (dt == KR_ABSENT) dt = kr_read_word(dt_at);
        in.to->step = kr_ssd_step_of(k, __uint_as_float(dt) + in.dt_bias);
        in.to->decay = kr_exp(in.to->step * -kr_exp(in.a_log));
    }
    kr_copy_wait<0>();
    for (uint32_t r = 0; r < own.rows; r++) {
        lay_down_absent(thread, d.b + r * of_row, k.b + (own.row + r) * k.stride, of_row);
        lay_down_absent(thread, d.c + r * of_row, k.c + (own.row + r) * k.stride, of_row);
    }
    sync();
    lay_out_products(p, d, own, thread);
    lay_out_two(p, d, own, thread, old, two);
#pragma unroll 1
    for (uint32_t i = thread + KR_CORE_THREADS; 2 * i < own.count * KR_PIECE_ROWS; i += KR_CORE_THREADS)
        lay_out_two(p, d, own, i, kr_fetch_two(k, p, own, i), kr_read_two(k, p, own, i));
    sync();
    if (in.to) lay_out_head(p, d, own, in);
    sync();
}

#endif
