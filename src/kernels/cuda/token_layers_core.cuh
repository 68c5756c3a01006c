/* token_layers_core.cuh - the core's part of token_layers_cuda.cu: one token of Mamba-2's state space core for the states of
 * some rows, which come through a ring of slots in shared memory.
 *
 * A block has neighbouring pieces of the rows, its warps one after another of them in turn; of those that are due, which come
 * second (token_layers_share.cuh), a warp has a tile. A piece that is not due stays as it is:
 *
 *   y = (H C) left + sum over tokens owed of (B_i C) w_i left_i + (B C) w      left: decays of all tokens since, now's too
 *
 * where B_i C is one number for a group, and its products with decays are one for a head. A piece that is due gets its tokens
 * one by one, as in the other kernels, and goes back to memory.
 */
#ifndef KR_KERNELS_CUDA_TOKEN_LAYERS_CORE_CUH
#define KR_KERNELS_CUDA_TOKEN_LAYERS_CORE_CUH

#include "kernels/cuda/ring.cuh"
#include "kernels/cuda/token_layers_desk.cuh"

/* ---- a piece ---- */

/* A tile gets what it was owed: the last `count` tokens. owed_b: the lane's elements. */
static __device__ __forceinline__ void settle(const kr_core_head *head, const float *owed_b, const float *record,
                                              uint32_t count, kr_quad<float> s[KR_TOKEN_TILE])
{
    const uint32_t t = (uint32_t)head->t;
#pragma unroll 1
    for (uint32_t i = t - count; i < t; i++) {
        const uint32_t place = i % KR_OWED_TOKENS;
        const float decay = head->decays[place];
        const kr_quad<float> b = kr_quad_at(owed_b + place * KR_CORE_RANK);
#pragma unroll
        for (int four = 0; four < KR_TOKEN_TILE / 4; four++) {
            const kr_quad<float> weight = kr_quad_at(record + place * KR_TOKEN_TILE + four * 4);
#pragma unroll
            for (int n = 0; n < 4; n++) kr_ssd_move_row(&s[4 * four + n], decay, weight.v[n], b);
        }
    }
}

/* H C of ROWS rows: each ends in 32 / ROWS neighbouring lanes. */
template <int ROWS>
static __device__ __forceinline__ float times_c(const kr_quad<float> &c, const kr_quad<float> s[ROWS])
{
    float sums[ROWS];
#pragma unroll
    for (int n = 0; n < ROWS; n++) {
        sums[n] = s[n].v[0] * c.v[0];
#pragma unroll
        for (int e = 1; e < KR_QUAD; e++) sums[n] = kr_fma(s[n].v[e], c.v[e], sums[n]);
    }
    return kr_sum_lanes<ROWS, 16>(sums, threadIdx.x % 32);
}

/* What the last `count` tokens, which H owes, and the one that came add to a row of H C. weights: of the row. */
static __device__ __forceinline__ float owed_part(const kr_core_head *head, const float *weights, uint32_t count,
                                                  float weight)
{
    const uint32_t t = (uint32_t)head->t;
    float sum = weight * head->cb;
#pragma unroll
    for (uint32_t place = 0; place < KR_OWED_TOKENS; place++) {
        const float of_place = weights[place * KR_TOKEN_TILE];
        sum = kr_fma((t - 1 - place) % KR_OWED_TOKENS < count ? of_place : 0.0f, head->owed[place], sum);
    }
    return sum;
}

/* What a warp knows of a piece, which is in `slot`. */
typedef struct kr_piece {
    const float *slot;
    uint32_t row, group, count; /* on the desk: its first row p, its group; tokens owed */
    const kr_core_head *head;
    bool is_due;
} kr_piece;

static __device__ __forceinline__ kr_piece kr_piece_of(const kr_core_desk &d, const kr_core_place &place,
                                                       const float *slot)
{
    kr_piece at = { slot, place.row, place.group, 0, d.heads + place.head, false };
    const uint32_t t = (uint32_t)at.head->t, turn = (t + KR_OWED_TURN(place.piece * KR_PAIR)) % KR_OWED_TOKENS;
    at.count = min(t, turn), at.is_due = turn == KR_OWED_TOKENS - 1;
    return at;
}

/* Sums of rows that stay as they are, from row n0 of the piece on. */
template <int ROWS>
static __device__ __forceinline__ void kr_read_rows(const kr_core_desk &d, const kr_piece &at, int n0)
{
    const uint32_t r = threadIdx.x % 32 * KR_QUAD, n = n0 + threadIdx.x % 32 / (32 / ROWS);
    const float *weights = at.slot + KR_PIECE + n / KR_TOKEN_TILE * KR_OWED_RECORD + n % KR_TOKEN_TILE;
    kr_quad<float> s[ROWS];
#pragma unroll
    for (int m = 0; m < ROWS; m++) s[m] = kr_quad_at(at.slot + (n0 + m) * KR_CORE_RANK + r);
    const float more = owed_part(at.head, weights, at.count, d.rows[at.row + n].weight);
    const float sum = times_c<ROWS>(kr_quad_at(d.c + at.group * KR_CORE_RANK + r), s);
    if (threadIdx.x % (32 / ROWS) == 0) d.sums[at.row + n] = kr_fma(at.head->left[at.count], sum, more);
}

/* A tile of a piece that is due, moved; its sums. to: the piece in memory. */
static __device__ __forceinline__ void kr_move_tile(const kr_core_desk &d, const kr_piece &at, int tile, float *to)
{
    enum { ROWS = KR_TOKEN_TILE };
    const uint32_t r = threadIdx.x % 32 * KR_QUAD, n0 = tile * ROWS, row0 = at.row + n0;
    kr_quad<float> s[ROWS];
#pragma unroll
    for (int n = 0; n < ROWS; n++) s[n] = kr_quad_at(at.slot + (n0 + n) * KR_CORE_RANK + r);
    settle(at.head, d.owed_b + at.group * (KR_OWED_TOKENS * KR_CORE_RANK) + r,
           at.slot + KR_PIECE + tile * KR_OWED_RECORD, at.count, s);
    const kr_quad<float> b = kr_quad_at(d.b + at.group * KR_CORE_RANK + r);
#pragma unroll
    for (int n = 0; n < ROWS; n++) {
        kr_ssd_move_row(&s[n], at.head->decay, d.rows[row0 + n].weight, b);
        __stcs((float4 *)(void *)(to + (n0 + n) * KR_CORE_RANK + r), *(const float4 *)s[n].v);
    }
    const float sum = times_c<ROWS>(kr_quad_at(d.c + at.group * KR_CORE_RANK + r), s);
    if (threadIdx.x % (32 / ROWS) == 0) d.sums[row0 + threadIdx.x % 32 / (32 / ROWS)] = sum;
}

/* ---- the end of a share ---- */

/* Words of the other layers, every second one's: where they are taken back. */
typedef struct kr_core_back {
    uint16_t *y;
    float *squares;
} kr_core_back;

/* y of all rows, whose sums are there; squares of tiles, of which two rows each are in four lanes. */
static __device__ __forceinline__ void kr_end_share(const kr_ssd_job<float> &k, const kr_core_plan &p,
                                                    const kr_core_desk &d, const kr_core_share &own,
                                                    const kr_core_back &back, uint32_t thread)
{
    const uint32_t count = own.count * KR_PIECE_ROWS / 2;
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
        for (int away = KR_TOKEN_TILE / 4; away > 0; away /= 2) square += __shfl_xor_sync(0xffffffffu, square, away);
        if (first + thread >= count) break;
        kr_put_word((uint16_t *)k.y + at, kr_word_of_two(y0 * one.gain, y1 * other.gain));
        kr_take_back(back.y + at);
        if (channel % KR_TOKEN_TILE == 0) {
            kr_put_word(k.squares + at / KR_TOKEN_TILE, kr_word_of(square));
            kr_take_back(back.squares + at / KR_TOKEN_TILE);
        }
    }
}

/* Weights of two rows, with a tile's first two its decay, with the next the count. */
static __device__ __forceinline__ void keep_two(const kr_ssd_job<float> &k, const kr_core_plan &p,
                                                const kr_core_desk &d, const kr_core_share &own, uint32_t i)
{
    uint32_t row;
    const uint32_t channel = kr_channel_of(p, own, i, &row), in_tile = channel % KR_TOKEN_TILE;
    const kr_core_head *head = kr_head_of_two(p, d, own, i);
    const uint32_t t = (uint32_t)head->t, place = t % KR_OWED_TOKENS;
    float *record = k.owed + row * k.parts.row + channel / KR_TOKEN_TILE * KR_OWED_RECORD;
    *(float2 *)(void *)(record + place * KR_TOKEN_TILE + in_tile) =
        make_float2(d.rows[2 * i].weight, d.rows[2 * i + 1].weight);
    if (in_tile == 0) record[KR_OWED_DECAY + place] = head->decay;
    if (in_tile == 2) record[KR_OWED_COUNT] = (float)kr_ssd_counted(t);
}

/* B of the groups whose first head begins in this share. */
static __device__ __forceinline__ void keep_b(const kr_ssd_job<float> &k, const kr_core_plan &p, const kr_core_desk &d,
                                              const kr_core_share &own, uint32_t thread)
{
    const uint32_t r = thread % 32 * KR_QUAD;
#pragma unroll 1
    for (uint32_t g = thread / 32; g < own.rows * p.ng; g += KR_CORE_WARPS) {
        const uint32_t row = g / p.ng, group = g - row * p.ng, head = (own.row + row) * p.nh + group * p.per_group;
        const uint32_t piece = head << p.head_bits;
        if (piece < own.first || piece >= own.first + own.count) continue;
        const uint32_t place = (uint32_t)d.heads[head - own.head].t % KR_OWED_TOKENS;
        float *b = k.owed + (own.row + row) * k.parts.row + k.parts.b + (group * KR_OWED_TOKENS + place) * KR_CORE_RANK;
        *(float4 *)(void *)(b + r) = *(const float4 *)(const void *)(d.b + g * KR_CORE_RANK + r);
    }
}

/* The token that came, for those after it: nobody waits for it. */
static __device__ __forceinline__ void kr_keep_share(const kr_ssd_job<float> &k, const kr_core_plan &p,
                                                     const kr_core_desk &d, const kr_core_share &own, uint32_t thread)
{
#pragma unroll 1
    for (uint32_t i = thread; 2 * i < own.count * KR_PIECE_ROWS; i += KR_CORE_THREADS) keep_two(k, p, d, own, i);
    keep_b(k, p, d, own, thread);
}

#endif
