/* token_ssd_ring.cu - one token of Mamba-2's state space core for many states on sm_90; formulas: token_ssd_cuda.cu.
 *
 * A piece is 16 rows p of a head, two tiles. A block has neighbouring pieces, its warps one after another of them in
 * turn. A warp takes a piece to its registers, and while it works there the next is on its way to the warp's own place in
 * shared memory by bulk copies (ring.cuh), with the records of what it owes: no warp waits for another. All else that
 * pieces need lies on the block's desk in shared memory: B of tokens owed, D and gain, laid there before the kernel that
 * makes x, B and C has ended, and the rest, after it. So a piece is a chain of shared memory, products and a few shuffles;
 * H goes back from registers when it is due.
 */
#include "kernels/cuda/ring.cuh"
#include "kernels/cuda/token_ssd.cuh"

enum { WARPS = 16, THREADS = 32 * WARPS, PAIR = 2, ROWS = PAIR * KR_TOKEN_TILE, RECORDS = PAIR * KR_OWED_RECORD };

/* Of a launch: sizes in 32 bits, and how much a block may have. */
typedef struct plan {
    uint32_t nh, nr, pieces;              /* pieces: all */
    uint32_t per_head, per_group;         /* pieces of a head, heads of a group */
    uint32_t next_heads, next_parts;      /* from a warp's piece to its next: heads, and pieces of a head */
    uint32_t piece, place;                /* floats of a piece, and of a warp's place for it and its records */
    uint32_t most, most_heads, most_rows; /* pieces of a block; heads and rows that they may be of */
} plan;

/* Places on the desk, behind those of the warps: extras [pieces ROWS], B and C now [rows g r], B owed [rows g
 * KR_OWED_TOKENS r], paces [heads]. */
typedef struct desk {
    float *owed_b, *b, *c;
    kr_ssd_pace<float> *pace;
    kr_ssd_extras<float> *extras;
} desk;

static __host__ __device__ inline size_t desk_floats(const plan &p, uint32_t of_row, bool owes)
{
    return (size_t)p.most * ROWS * 4 + (size_t)p.most_rows * of_row * (owes ? KR_OWED_TOKENS + 2 : 2) +
           (size_t)p.most_heads * 2;
}

static __device__ __forceinline__ desk desk_of(const kr_ssd_job<float> &k, const plan &p, float *at)
{
    const uint32_t of_rows = p.most_rows * (uint32_t)k.ng * p.nr;
    desk d;
    d.extras = (kr_ssd_extras<float> *)(void *)at;
    d.b = (float *)(d.extras + p.most * ROWS);
    d.c = d.b + of_rows;
    d.owed_b = d.c + of_rows;
    d.pace = (kr_ssd_pace<float> *)(d.owed_b + (k.owed ? KR_OWED_TOKENS * of_rows : 0));
    return d;
}

/* The block's pieces: the first, how many, and where they begin. */
typedef struct share {
    uint32_t first, count, head, row; /* head: of all, row nh + h */
} share;

static __device__ __forceinline__ share share_of(const plan &p)
{
    share s;
    s.first = p.pieces / gridDim.x * blockIdx.x + min(p.pieces % gridDim.x, blockIdx.x);
    s.count = p.pieces / gridDim.x + (blockIdx.x < p.pieces % gridDim.x);
    s.head = s.first / p.per_head, s.row = s.head / p.nh;
    return s;
}

/* ---- the desk ---- */

/* What no kernel before this one makes. */
static __device__ __forceinline__ void lay_out_weights(const kr_ssd_job<float> &k, const plan &p, const desk &d,
                                                       const share &own)
{
    const uint32_t of_row = (uint32_t)k.ng * p.nr * KR_OWED_TOKENS, channels = p.nh * p.per_head * ROWS;
    const uint32_t first = own.first * ROWS;
    for (uint32_t i = threadIdx.x; k.owed && i < p.most_rows * of_row; i += THREADS) {
        const int64_t row = kr_least(own.row + i / of_row, k.nb - 1);
        d.owed_b[i] = k.owed[row * k.parts.row + k.parts.b + i % of_row];
    }
    for (uint32_t i = threadIdx.x; i < own.count * ROWS; i += THREADS) {
        const uint32_t channel = (first + i) % channels;
        d.extras[i].d = !k.d ? 0.0f : k.d_per_dim ? k.d[channel] : k.d[channel / (p.per_head * ROWS)];
        d.extras[i].gain = k.gain ? k.gain[channel] : 1.0f;
    }
}

static __device__ __forceinline__ void lay_out(const kr_ssd_job<float> &k, const plan &p, const desk &d,
                                               const share &own)
{
    const uint32_t of_row = (uint32_t)k.ng * p.nr, channels = p.nh * p.per_head * ROWS;
    const uint32_t first = own.first * ROWS;
    const uint32_t heads = (own.first + own.count - 1) / p.per_head + 1 - own.head;
    const uint32_t last = THREADS - 1 - threadIdx.x; /* the last warps have less of the rest */
#pragma unroll 1
    for (uint32_t i = last; i < heads; i += THREADS) {
        const uint32_t row = (own.head + i) / p.nh, h = own.head + i - row * p.nh;
        d.pace[i] = kr_ssd_pace_of(k, row * k.stride, h, k.dt_bias[h], kr_exp(k.a_log[h]));
    }
#pragma unroll 2
    for (uint32_t i = threadIdx.x; i < p.most_rows * of_row; i += THREADS) {
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

/* ---- a piece ---- */

/* Where a warp is: at the block's piece i, `part` of head h of row `row`. On the desk: head and group. */
typedef struct place {
    uint32_t i, part, h, row;
    uint32_t head, group;
} place;

/* With what follows from h and row. */
static __device__ __forceinline__ place placed(const plan &p, const share &own, place at)
{
    at.head = at.row * p.nh + at.h - own.head;
    at.group = at.row - own.row;
    if (p.per_group != p.nh) at.group = at.group * (p.nh / p.per_group) + at.h / p.per_group;
    return at;
}

static __device__ __forceinline__ place first_place(const plan &p, const share &own)
{
    place at;
    at.i = threadIdx.x / 32;
    const uint32_t piece = own.first + at.i, head = piece / p.per_head;
    at.part = piece - head * p.per_head;
    at.row = head / p.nh, at.h = head - at.row * p.nh;
    return placed(p, own, at);
}

static __device__ __forceinline__ place next_place(const plan &p, const share &own, place at)
{
    at.i += WARPS, at.h += p.next_heads, at.part += p.next_parts;
    if (at.part >= p.per_head) at.part -= p.per_head, at.h++;
    while (at.h >= p.nh) at.h -= p.nh, at.row++;
    return placed(p, own, at);
}

/* Its records in memory. */
static __device__ __forceinline__ float *records_at(const kr_ssd_job<float> &k, const plan &p, const place &at)
{
    return k.owed + at.row * k.parts.row + (at.h * p.per_head + at.part) * RECORDS;
}

/* The piece gets what it was owed. r: the lane's elements. */
static __device__ __forceinline__ void settle(const plan &p, const desk &d, uint32_t group, uint32_t r,
                                              const float *records, const kr_ssd_debt &owes, kr_quad<float> s[ROWS])
{
    const float *owed_b = d.owed_b + group * KR_OWED_TOKENS * p.nr + r;
#pragma unroll 1
    for (uint32_t i = owes.t - owes.count; i < owes.t; i++) {
        const uint32_t from = i % KR_OWED_TOKENS;
        const float decay = records[KR_OWED_DECAY + from];
        const kr_quad<float> b = kr_quad_at(owed_b + from * p.nr);
#pragma unroll
        for (int four = 0; four < ROWS / 4; four++) {
            const float *at = records + four / 2 * KR_OWED_RECORD + from * KR_TOKEN_TILE + four % 2 * 4;
            const kr_quad<float> weight = kr_quad_at(at);
#pragma unroll
            for (int n = 0; n < 4; n++) kr_ssd_move_row(&s[4 * four + n], decay, weight.v[n], b);
        }
    }
}

/* The token that came; the sum of the row that is the lane's. */
static __device__ __forceinline__ float advance(const plan &p, const desk &d, const place &at, uint32_t r,
                                                const kr_ssd_pace<float> &now, kr_quad<float> s[ROWS])
{
    const kr_quad<float> b = kr_quad_at(d.b + at.group * p.nr + r), c = kr_quad_at(d.c + at.group * p.nr + r);
    float sums[ROWS];
#pragma unroll
    for (int n = 0; n < ROWS; n++) {
        kr_ssd_move_row(&s[n], now.decay, now.step * d.extras[at.i * ROWS + n].x, b);
        sums[n] = 0;
#pragma unroll
        for (int e = 0; e < KR_QUAD; e++) sums[n] = kr_fma(s[n].v[e], c.v[e], sums[n]);
    }
    if (p.nr < KR_SSD_SPAN && threadIdx.x % 32 * KR_QUAD >= p.nr)
#pragma unroll
        for (int n = 0; n < ROWS; n++) sums[n] = 0; /* the last's, once more */
    return kr_sum_lanes<ROWS, 16>(sums, threadIdx.x % 32);
}

/* The token that came is kept, B by the first piece of a group. */
static __device__ __forceinline__ void keep(const kr_ssd_job<float> &k, const plan &p, const desk &d, const place &at,
                                            uint32_t t, const kr_ssd_pace<float> &now)
{
    const uint32_t lane = threadIdx.x % 32, to = t % KR_OWED_TOKENS;
    float *records = records_at(k, p, at);
    if (lane < ROWS) {
        const uint32_t tile = lane / KR_TOKEN_TILE, row = lane % KR_TOKEN_TILE;
        records[tile * KR_OWED_RECORD + to * KR_TOKEN_TILE + row] = now.step * d.extras[at.i * ROWS + lane].x;
    } else if (lane < ROWS + 2 * PAIR) {
        const bool counts = lane >= ROWS + PAIR;
        const uint32_t place = counts ? (uint32_t)KR_OWED_COUNT : KR_OWED_DECAY + to;
        records[lane % PAIR * KR_OWED_RECORD + place] = counts ? (float)kr_ssd_counted(t) : now.decay;
    }
    if (at.part != 0) return;
    const uint32_t group = at.h / p.per_group;
    if (group * p.per_group != at.h) return;
    float *b = k.owed + at.row * k.parts.row + k.parts.b + (group * KR_OWED_TOKENS + to) * p.nr;
    for (uint32_t r = lane; r < p.nr; r += 32) b[r] = d.b[at.group * p.nr + r];
}

/* The rows' ends. number: of the piece among all. */
static __device__ __forceinline__ void put_rows(const kr_ssd_job<float> &k, const desk &d, const place &at,
                                                uint32_t number, float whole)
{
    enum { LANES = 32 / ROWS }; /* of a row */
    const int lane = threadIdx.x % 32, n = lane / LANES;
    float square = 0;
    if (lane % LANES == 0) square = kr_ssd_put(k, at.row, at.h, at.part * ROWS + n, whole, d.extras[at.i * ROWS + n]);
    if (!k.squares) return;
#pragma unroll
    for (int away = 16 / PAIR; away >= LANES; away /= 2) square += __shfl_xor_sync(0xffffffffu, square, away);
    if (lane % (32 / PAIR) == 0) k.squares[number * PAIR + lane / (32 / PAIR)] = square;
}

/* ---- the ring ---- */

/* Of a warp: a piece's rows, then records of two pieces in turn. Its latch opens when a piece has come. */
typedef struct ring {
    float *rows;
    uint32_t latch;
} ring;

static __device__ __forceinline__ float *records_of(const plan &p, const ring &its, uint32_t turn)
{
    return its.rows + p.piece + turn % 2 * RECORDS;
}

/* One lane calls this. */
static __device__ __forceinline__ void ask_for(const kr_ssd_job<float> &k, const plan &p, const share &own,
                                               const ring &its, const place &at, uint32_t turn)
{
    const uint32_t bytes = p.piece * (uint32_t)sizeof(float), more = k.owed ? RECORDS * (uint32_t)sizeof(float) : 0;
    kr_bulk_expect(its.latch, bytes + more);
    kr_bulk_read_once(its.rows, k.state + (int64_t)(own.first + at.i) * p.piece, bytes, its.latch);
    if (k.owed) kr_bulk_read_once(records_of(p, its, turn), records_at(k, p, at), more, its.latch);
}

/* A piece that has got what it was owed: its token, and its end. */
static __device__ __forceinline__ void end_piece(const kr_ssd_job<float> &k, const plan &p, const desk &d,
                                                 const share &own, const place &at, uint32_t r, const kr_ssd_debt &owes,
                                                 kr_quad<float> s[ROWS])
{
    const kr_ssd_pace<float> now = d.pace[at.head];
    const uint32_t number = own.first + at.i;
    const float whole = advance(p, d, at, r, now, s);
    float *state = k.state + (int64_t)number * p.piece + r;
    if (owes.is_due)
#pragma unroll
        for (int n = 0; n < ROWS; n++) __stcs((float4 *)(void *)(state + n * p.nr), *(const float4 *)s[n].v);
    if (k.owed) keep(k, p, d, at, owes.t, now);
    put_rows(k, d, at, number, whole);
}

/* All pieces of the warp, from `at` on, which has been asked for. */
static __device__ __forceinline__ void walk(const kr_ssd_job<float> &k, const plan &p, const desk &d, const share &own,
                                            const ring &its, place at)
{
    const uint32_t r = min(threadIdx.x % 32 * KR_QUAD, p.nr - KR_QUAD); /* past the last it is the last */
    for (uint32_t turn = 0; at.i < own.count; turn++) {
        const place next = next_place(p, own, at);
        const float *records = k.owed ? records_of(p, its, turn) : NULL;
        kr_latch_wait(its.latch, turn);
        kr_quad<float> s[ROWS];
#pragma unroll
        for (int n = 0; n < ROWS; n++) s[n] = kr_quad_at(its.rows + n * p.nr + r);
        __syncwarp();
        if (threadIdx.x % 32 == 0 && next.i < own.count) ask_for(k, p, own, its, next, turn + 1);
        const kr_ssd_debt owes = kr_ssd_debt_of(records, (own.first + at.i) * PAIR);
        settle(p, d, at.group, r, records, owes, s);
        end_piece(k, p, d, own, at, r, owes, s);
        at = next;
    }
}

/* Block i of n has the pieces from i pieces / n on. */
static __global__ void __launch_bounds__(THREADS, 1)
    ring_kernel(const __grid_constant__ kr_ssd_job<float> k, const __grid_constant__ plan p)
{
    extern __shared__ uint4 shared[];
    __shared__ uint64_t latches[WARPS];
    float *places = (float *)(void *)shared;
    const uint32_t warp = threadIdx.x / 32;
    const desk d = desk_of(k, p, places + WARPS * p.place);
    const share own = share_of(p);
    const ring its = { places + warp * p.place, kr_shared_address(&latches[warp]) };
    const place first = first_place(p, own);
    if (threadIdx.x % 32 == 0) {
        kr_latch_init(its.latch, 1);
        kr_latches_ready();
        if (first.i < own.count) ask_for(k, p, own, its, first, 0);
    }
    lay_out_weights(k, p, d, own);
    kr_token_wait();
    lay_out(k, p, d, own);
    __syncthreads();
    walk(k, p, d, own, its, first);
}

/* ---- choosing ---- */

bool kr_token_ssd_ring(const kr_token_ssd_args *a, const kr_ssd_job<float> &k)
{
    const kr_cuda *own = (const kr_cuda *)a->exec.own;
    const int64_t blocks = own->multiprocessors, per_head = k.np / ROWS, pieces = k.nb * k.nh * per_head;
    if (own->arch != 90 || k.np % ROWS != 0 || k.nr > KR_SSD_SPAN || k.nr < KR_QUAD || pieces < WARPS / 2 * blocks ||
        pieces > INT32_MAX / ROWS)
        return false;
    plan p;
    p.nh = (uint32_t)k.nh, p.nr = (uint32_t)k.nr, p.pieces = (uint32_t)pieces;
    p.per_head = (uint32_t)per_head, p.per_group = (uint32_t)(k.nh / k.ng);
    p.next_heads = WARPS / p.per_head, p.next_parts = WARPS % p.per_head;
    p.piece = ROWS * p.nr, p.place = p.piece + (k.owed ? 2 * RECORDS : 0);
    p.most = (uint32_t)kr_ceil_div(pieces, blocks);
    p.most_heads = (uint32_t)kr_least((p.most + per_head - 2) / per_head + 1, k.nb * k.nh);
    p.most_rows = (uint32_t)kr_least((p.most_heads + k.nh - 2) / k.nh + 1, k.nb);
    const size_t desk = desk_floats(p, (uint32_t)(k.ng * k.nr), k.owed != NULL);
    const size_t shared = (WARPS * (size_t)p.place + desk) * sizeof(float);
    if (shared + 1024 > own->shared_bytes) return false;
    kr_token_launch(&a->exec, ring_kernel, dim3((unsigned)blocks), THREADS, shared, k, p);
    return true;
}
