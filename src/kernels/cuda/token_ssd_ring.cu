/* token_ssd_ring.cu - one token of Mamba-2's state space core for many states on sm_90; formulas: token_ssd_cuda.cu.
 *
 * A unit is the tiles of 8 rows p of one head, or of so many heads that each warp has one. A block has neighbouring units;
 * the next ones are on their way to the stages of its ring by bulk copies (ring.cuh), with the records of what they owe.
 * All else that they need lies on the block's desk in shared memory: B of tokens owed, D and gain, laid there before the
 * kernel that makes x, B and C has ended, and the rest, after it. So a tile is a chain of shared memory, products and a
 * few shuffles; H goes back from registers when it is due.
 */
#include "kernels/cuda/ring.cuh"
#include "kernels/cuda/token_ssd.cuh"

enum { WARPS = 16, THREADS = 32 * WARPS, STAGES = 2, TILE = KR_TOKEN_TILE };

/* Of a launch: sizes in 32 bits, and how much a block may have. */
typedef struct plan {
    uint32_t nh, nr, units, tiles; /* tiles: of a unit */
    uint32_t per_head, per_group;  /* tiles of a head, heads of a group */
    uint32_t tile, records, stage; /* floats of a tile, of a unit's records, of a stage */
    uint32_t most, rows;           /* units of a block; rows that they may be of */
    uint32_t heads;                /* of a unit */
} plan;

/* Places on the desk, behind the ring: extras [tiles 8], B and C now [rows g r], B owed [rows g KR_OWED_TOKENS r], paces
 * [heads]. */
typedef struct desk {
    float *owed_b, *b, *c;
    kr_ssd_pace<float> *pace;
    kr_ssd_extras<float> *extras;
} desk;

static __host__ __device__ inline size_t desk_floats(const plan &p, uint32_t of_row, bool owes)
{
    return (size_t)p.most * p.tiles * TILE * 4 + (size_t)p.rows * of_row * (owes ? KR_OWED_TOKENS + 2 : 2) +
           (size_t)p.most * p.heads * 2;
}

static __device__ __forceinline__ desk desk_of(const kr_ssd_job<float> &k, const plan &p, float *at)
{
    const uint32_t of_rows = p.rows * (uint32_t)k.ng * p.nr;
    desk d;
    d.extras = (kr_ssd_extras<float> *)(void *)at;
    d.b = (float *)(d.extras + p.most * p.tiles * TILE);
    d.c = d.b + of_rows;
    d.owed_b = d.c + of_rows;
    d.pace = (kr_ssd_pace<float> *)(d.owed_b + (k.owed ? KR_OWED_TOKENS * of_rows : 0));
    return d;
}

/* The block's units: the first, how many, and where they begin. */
typedef struct share {
    uint32_t first, count, row, head; /* head: of all, row nh + h */
} share;

static __device__ __forceinline__ share share_of(const plan &p)
{
    share s;
    s.first = p.units / gridDim.x * blockIdx.x + min(p.units % gridDim.x, blockIdx.x);
    s.count = p.units / gridDim.x + (blockIdx.x < p.units % gridDim.x);
    s.head = s.first * p.heads, s.row = s.head / p.nh;
    return s;
}

/* ---- the desk ---- */

/* What no kernel before this one makes. */
static __device__ __forceinline__ void lay_out_weights(const kr_ssd_job<float> &k, const plan &p, const desk &d,
                                                       const share &own)
{
    const uint32_t of_row = (uint32_t)k.ng * p.nr * KR_OWED_TOKENS, channels = p.nh * p.per_head * TILE;
    const uint32_t first = own.first * p.tiles * TILE;
    for (uint32_t i = threadIdx.x; k.owed && i < p.rows * of_row; i += THREADS) {
        const int64_t row = kr_least(own.row + i / of_row, k.nb - 1);
        d.owed_b[i] = k.owed[row * k.parts.row + k.parts.b + i % of_row];
    }
    for (uint32_t i = threadIdx.x; i < own.count * p.tiles * TILE; i += THREADS) {
        const uint32_t channel = (first + i) % channels;
        d.extras[i].d = !k.d ? 0.0f : k.d_per_dim ? k.d[channel] : k.d[channel / (p.per_head * TILE)];
        d.extras[i].gain = k.gain ? k.gain[channel] : 1.0f;
    }
}

static __device__ __forceinline__ void lay_out(const kr_ssd_job<float> &k, const plan &p, const desk &d,
                                               const share &own)
{
    const uint32_t of_row = (uint32_t)k.ng * p.nr, channels = p.nh * p.per_head * TILE;
    const uint32_t first = own.first * p.tiles * TILE;
    const uint32_t last = THREADS - 1 - threadIdx.x; /* the last warps have less of the rest */
#pragma unroll 1
    for (uint32_t i = last; i < own.count * p.heads; i += THREADS) {
        const uint32_t row = (own.head + i) / p.nh, h = own.head + i - row * p.nh;
        d.pace[i] = kr_ssd_pace_of(k, row * k.stride, h, k.dt_bias[h], kr_exp(k.a_log[h]));
    }
#pragma unroll 2
    for (uint32_t i = threadIdx.x; i < p.rows * of_row; i += THREADS) {
        const int64_t at = kr_least(own.row + i / of_row, k.nb - 1) * k.stride + i % of_row;
        d.b[i] = k.b[at];
        d.c[i] = k.c[at];
    }
#pragma unroll 4
    for (uint32_t i = threadIdx.x; i < own.count * p.tiles * TILE; i += THREADS) {
        const uint32_t row = (first + i) / channels;
        const int64_t at = row * k.stride + (first + i - row * channels);
        d.extras[i].x = k.x[at];
        d.extras[i].gate = k.z ? kr_silu(k.z[at]) : 0.0f;
    }
}

/* ---- a tile ---- */

/* Where a warp is: tile `part` of head h of row `row`; head, group and first row of p counted from the block's own on. */
typedef struct place {
    uint32_t row, h, part, head, group, at;
} place;

static __device__ __forceinline__ kr_quad<float> quad_at(const float *from)
{
    kr_quad<float> q;
    *(float4 *)q.v = *(const float4 *)(const void *)from;
    return q;
}

/* s <- decay s + weight[i] b, for the eight rows of a tile. */
static __device__ __forceinline__ void move_tile(kr_quad<float> s[TILE], float decay, const float weight[TILE],
                                                 const kr_quad<float> &b)
{
#pragma unroll
    for (int i = 0; i < TILE; i++)
#pragma unroll
        for (int e = 0; e < KR_QUAD; e++) s[i].v[e] = kr_ssd_moved(decay, s[i].v[e], weight[i], b.v[e]);
}

/* A tile that has come to shared memory gets what it was owed. r: the lane's elements. */
static __device__ __forceinline__ void settle(const plan &p, const desk &d, uint32_t group, uint32_t r,
                                              const float *held, const float *record, const kr_ssd_debt &owes,
                                              kr_quad<float> s[TILE])
{
#pragma unroll
    for (int i = 0; i < TILE; i++) s[i] = quad_at(held + i * p.nr + r);
    const float *b = d.owed_b + group * KR_OWED_TOKENS * p.nr + r;
#pragma unroll 1
    for (uint32_t i = owes.t - owes.count; i < owes.t; i++) {
        const uint32_t from = i % KR_OWED_TOKENS;
        float weight[TILE];
        *(float4 *)weight = *(const float4 *)(const void *)(record + from * TILE);
        *(float4 *)(weight + 4) = *(const float4 *)(const void *)(record + from * TILE + 4);
        move_tile(s, record[KR_OWED_DECAY + from], weight, quad_at(b + from * p.nr));
    }
}

/* The token that came; the sum of the row that is the lane's. */
static __device__ __forceinline__ float advance(const plan &p, const desk &d, const place &at, uint32_t r,
                                                const kr_ssd_pace<float> &now, kr_quad<float> s[TILE])
{
    float weight[TILE], sums[TILE];
#pragma unroll
    for (int i = 0; i < TILE; i++) weight[i] = now.step * d.extras[at.at + i].x;
    move_tile(s, now.decay, weight, quad_at(d.b + at.group * p.nr + r));
    const kr_quad<float> c = quad_at(d.c + at.group * p.nr + r);
#pragma unroll
    for (int i = 0; i < TILE; i++) {
        sums[i] = 0;
#pragma unroll
        for (int e = 0; e < KR_QUAD; e++) sums[i] = kr_ssd_fused(s[i].v[e], c.v[e], sums[i]);
    }
    if (p.nr < KR_SSD_SPAN && threadIdx.x % 32 * KR_QUAD >= p.nr)
#pragma unroll
        for (int i = 0; i < TILE; i++) sums[i] = 0; /* the last's, once more */
    return kr_sum_lanes<TILE, 16>(sums, threadIdx.x % 32);
}

/* The token that came is kept, B by the first tile of a group. record: in memory. */
static __device__ __forceinline__ void keep(const kr_ssd_job<float> &k, const plan &p, const desk &d, const place &at,
                                            float *record, uint32_t t, const kr_ssd_pace<float> &now)
{
    const uint32_t lane = threadIdx.x % 32, to = t % KR_OWED_TOKENS;
    uint32_t place = to * TILE + lane;
    float value = lane < TILE ? now.step * d.extras[at.at + lane].x : now.decay;
    if (lane == TILE) place = KR_OWED_DECAY + to;
    if (lane > TILE) place = KR_OWED_COUNT, value = (float)kr_ssd_counted(t);
    if (lane <= TILE + 1) record[place] = value;
    if (at.part != 0) return;
    const uint32_t group = at.h / p.per_group;
    if (group * p.per_group != at.h) return;
    float *b = k.owed + at.row * k.parts.row + k.parts.b + (group * KR_OWED_TOKENS + to) * p.nr;
    for (uint32_t r = lane; r < p.nr; r += 32) b[r] = d.b[at.group * p.nr + r];
}

/* The rows' ends. number: of the tile among all. */
static __device__ __forceinline__ void end_tile(const kr_ssd_job<float> &k, const desk &d, const place &at,
                                                uint32_t number, float whole)
{
    const int lane = threadIdx.x % 32, i = lane / (32 / TILE);
    float square = 0;
    if (lane % (32 / TILE) == 0) square = kr_ssd_put(k, at.row, at.h, at.part * TILE + i, whole, d.extras[at.at + i]);
    if (!k.squares) return;
#pragma unroll
    for (int away = 16; away >= 32 / TILE; away /= 2) square += __shfl_xor_sync(0xffffffffu, square, away);
    if (lane == 0) k.squares[number] = square;
}

/* ---- the ring ---- */

/* A stage's latches: a unit has come; all warps have read it. */
typedef struct stage {
    uint64_t full, empty;
} stage;

static __device__ __forceinline__ void ask_for(const kr_ssd_job<float> &k, const plan &p, const share &own, uint32_t i,
                                               float *to, uint64_t *full)
{
    const uint32_t unit = own.first + i, of_unit = p.tiles * p.tile, head = unit * p.heads, row = head / p.nh;
    const uint32_t latch = kr_shared_address(full);
    kr_bulk_expect(latch, (of_unit + p.records) * (uint32_t)sizeof(float));
    kr_bulk_read(to, k.state + (int64_t)unit * of_unit, of_unit * (uint32_t)sizeof(float), latch);
    if (p.records)
        kr_bulk_read(to + of_unit, k.owed + row * k.parts.row + (head - row * p.nh) * p.per_head * KR_OWED_RECORD,
                     p.records * (uint32_t)sizeof(float), latch);
}

/* Where a unit is: its row, its first head there, and its number in the block. */
typedef struct unit {
    uint32_t row, h, i;
} unit;

static __device__ __forceinline__ place place_of(const plan &p, const share &own, const unit &u, uint32_t tile)
{
    place at;
    uint32_t head = 0;
    for (at.part = tile; at.part >= p.per_head; at.part -= p.per_head) head++;
    at.row = u.row, at.h = u.h + head, at.head = u.i * p.heads + head;
    at.group = u.row - own.row;
    if (p.per_group != p.nh) at.group = at.group * (p.nh / p.per_group) + at.h / p.per_group;
    at.at = (u.i * p.tiles + tile) * TILE;
    return at;
}

/* Tile `tile` of a unit, which has come to `held`, its records behind it. empty: the stage is let go; NULL: not yet. */
static __device__ __forceinline__ void turn_tile(const kr_ssd_job<float> &k, const plan &p, const desk &d,
                                                 const share &own, const unit &u, uint32_t tile, const float *held,
                                                 uint64_t *empty)
{
    const place at = place_of(p, own, u, tile);
    const uint32_t r = min(threadIdx.x % 32 * KR_QUAD, p.nr - KR_QUAD); /* past the last it is the last */
    const float *record = k.owed ? held + p.tiles * p.tile + tile * KR_OWED_RECORD : NULL;
    const kr_ssd_pace<float> now = d.pace[at.head];
    const kr_ssd_debt owes = kr_ssd_debt_of(record, at.h);
    kr_quad<float> s[TILE];
    settle(p, d, at.group, r, held + tile * p.tile, record, owes, s);
    __syncwarp();
    if (empty && threadIdx.x % 32 == 0) kr_latch_come(kr_shared_address(empty));
    const float whole = advance(p, d, at, r, now, s);
    const uint32_t number = (own.first + u.i) * p.tiles + tile;
    float *state = k.state + (int64_t)number * p.tile + r;
    if (owes.is_due)
#pragma unroll
        for (int n = 0; n < TILE; n++) __stcs((float4 *)(void *)(state + n * p.nr), *(const float4 *)s[n].v);
    if (k.owed)
        keep(k, p, d, at, k.owed + at.row * k.parts.row + (at.h * p.per_head + at.part) * KR_OWED_RECORD, owes.t, now);
    end_tile(k, d, at, number, whole);
}

/* All units of the block; the first STAGES - 1 have been asked for. */
static __device__ __forceinline__ void walk(const kr_ssd_job<float> &k, const plan &p, const desk &d, const share &own,
                                            float *ring, stage *stages)
{
    const uint32_t warp = threadIdx.x / 32;
    uint32_t at = 0, phase = 0, before = STAGES - 1, before_phase = 1; /* a phase 1 before the first has passed */
    unit u = { own.row, own.head - own.row * p.nh, 0 };
    for (; u.i < own.count; u.i++) {
        if (threadIdx.x == 0 && u.i + STAGES - 1 < own.count) {
            kr_latch_wait(kr_shared_address(&stages[before].empty), before_phase);
            ask_for(k, p, own, u.i + STAGES - 1, ring + before * p.stage, &stages[before].full);
        }
        __syncwarp();
        kr_latch_wait(kr_shared_address(&stages[at].full), phase);
        for (uint32_t tile = warp; tile < p.tiles; tile += WARPS)
            turn_tile(k, p, d, own, u, tile, ring + at * p.stage, tile + WARPS >= p.tiles ? &stages[at].empty : NULL);
        if (warp >= p.tiles && threadIdx.x % 32 == 0) kr_latch_come(kr_shared_address(&stages[at].empty));
        before = at, before_phase = phase;
        if (++at == STAGES) at = 0, phase ^= 1;
        if ((u.h += p.heads) >= p.nh) u.h -= p.nh, u.row++;
    }
}

/* Block i of n has the units from i units / n on. */
static __global__ void __launch_bounds__(THREADS, 1)
    ring_kernel(const __grid_constant__ kr_ssd_job<float> k, const __grid_constant__ plan p)
{
    extern __shared__ uint4 shared[];
    __shared__ stage stages[STAGES];
    float *ring = (float *)(void *)shared;
    const desk d = desk_of(k, p, ring + STAGES * p.stage);
    const share own = share_of(p);
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; s++) {
            kr_latch_init(kr_shared_address(&stages[s].full), 1);
            kr_latch_init(kr_shared_address(&stages[s].empty), WARPS);
        }
        kr_latches_ready();
        for (uint32_t s = 0; s < STAGES - 1 && s < own.count; s++)
            ask_for(k, p, own, s, ring + s * p.stage, &stages[s].full);
    }
    lay_out_weights(k, p, d, own);
    kr_token_wait();
    lay_out(k, p, d, own);
    __syncthreads();
    walk(k, p, d, own, ring, stages);
}

/* ---- choosing ---- */

bool kr_token_ssd_ring(const kr_token_ssd_args *a, const kr_ssd_job<float> &k)
{
    const kr_cuda *own = (const kr_cuda *)a->exec.own;
    const int64_t blocks = own->multiprocessors, heads = k.nb * k.nh, per_head = k.np / TILE;
    if (own->arch != 90 || k.np % TILE != 0 || k.np == 0 || k.nr > KR_SSD_SPAN || k.nr < KR_QUAD ||
        heads * per_head > INT32_MAX / TILE)
        return false;
    plan p;
    p.nh = (uint32_t)k.nh, p.nr = (uint32_t)k.nr;
    p.per_head = (uint32_t)per_head, p.per_group = (uint32_t)(k.nh / k.ng);
    p.heads = per_head < WARPS ? (uint32_t)(WARPS / per_head) : 1;
    if (k.nh % p.heads != 0) return false; /* a unit's records lie in one row */
    p.tiles = p.heads * p.per_head, p.units = (uint32_t)(heads / p.heads);
    p.tile = TILE * p.nr, p.records = k.owed ? p.tiles * KR_OWED_RECORD : 0, p.stage = p.tiles * p.tile + p.records;
    p.most = (uint32_t)kr_ceil_div(p.units, blocks);
    p.rows = (uint32_t)kr_least((p.most * p.heads + k.nh - 2) / k.nh + 1, k.nb);
    const size_t shared =
        (STAGES * (size_t)p.stage + desk_floats(p, (uint32_t)(k.ng * k.nr), k.owed != NULL)) * sizeof(float);
    if (p.units < blocks || shared + 1024 > own->shared_bytes) return false;
    kr_token_launch(&a->exec, ring_kernel, dim3((unsigned)blocks), THREADS, shared, k, p);
    return true;
}
