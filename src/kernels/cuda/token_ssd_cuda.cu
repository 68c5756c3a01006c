/* token_ssd_cuda.cu - one token of Mamba-2's state space core, in place, at the speed of memory.
 *
 *   s = clamp(softplus(dt + dt_bias));   H <- exp(-s exp(a_log)) H + s x (outer) B;   y = H C + D x, gated if asked
 *   x [h p], b, c [g r], dt [h] in rows; H [b h p r]; y [b h p]
 *
 * A warp has ROWS rows p of one head; lane l has elements 4 l .. 4 l + 3 of r, and 128 on from there. The rows' first
 * elements are on their way before the kernel that makes x, B and C has ended. A lane's sum runs along r, then lanes
 * are added by halves: the order depends on r alone. Many states on sm_90: token_ssd_ring.cu, with the same sums.
 */
#include "kernels/cuda/token_ssd.cuh"

enum { WARPS = 4, MANY_ROWS = 8192 };

/* Where a tile's tokens are kept: its record, and B of its group; record NULL: nowhere. */
template <typename T> struct books {
    T *record, *b;
};

template <typename T>
static __device__ __forceinline__ books<T> books_of(const kr_ssd_job<T> &k, uint32_t row, uint32_t h, int64_t p0)
{
    books<T> at = { NULL, NULL };
    if (!k.owed) return at;
    T *of_row = k.owed + row * k.parts.row;
    at.record = of_row + (h * k.parts.tiles + p0 / KR_TOKEN_TILE) * KR_OWED_RECORD;
    at.b = of_row + k.parts.b + h / (uint32_t)(k.nh / k.ng) * (KR_OWED_TOKENS * k.nr);
    return at;
}

/* The token that came, after t others, is kept; weight: of row lane, of the first `rows`. All lanes have read the
 * record. */
template <typename T>
static __device__ __forceinline__ void keep(const kr_ssd_job<T> &k, const books<T> &at, uint32_t t, uint32_t h,
                                            int64_t p0, int rows, T weight, T decay, const T *b)
{
    if (!at.record) return;
    const int lane = threadIdx.x % 32;
    const uint32_t place = t % KR_OWED_TOKENS;
    if (lane < rows) at.record[place * KR_TOKEN_TILE + lane] = weight;
    if (lane == KR_TOKEN_TILE) at.record[KR_OWED_DECAY + place] = decay;
    if (lane == KR_TOKEN_TILE + 1) at.record[KR_OWED_COUNT] = (T)kr_ssd_counted(t);
    if (h % (uint32_t)(k.nh / k.ng) == 0 && p0 == 0)
        for (int64_t r = lane; r < k.nr; r += 32) at.b[place * k.nr + r] = b[r];
}

/* held: elements r .. r + 3 of rows of H, which get the tokens that they were owed. */
template <typename T, int ROWS, bool ALIGNED>
static __device__ __forceinline__ void settle(const kr_ssd_job<T> &k, const books<T> &at, const kr_ssd_debt &owes,
                                              int64_t r, kr_quad<T> *held)
{
    for (uint32_t i = owes.t - owes.count; i < owes.t; i++) {
        const uint32_t place = i % KR_OWED_TOKENS;
        const kr_quad<T> b_r = kr_load_quad(at.b + place * k.nr, r, k.nr, ALIGNED);
        const T decay = at.record[KR_OWED_DECAY + place];
#pragma unroll
        for (int n = 0; n < ROWS; n++)
#pragma unroll
            for (int e = 0; e < KR_QUAD; e++)
                held[n].v[e] = kr_ssd_moved(decay, held[n].v[e], at.record[place * KR_TOKEN_TILE + n], b_r.v[e]);
    }
}

/* H of `rows` rows from r on, moved on by one token; their products with C are added to sum. */
template <typename T, int ROWS, bool ALIGNED>
static __device__ __forceinline__ void advance(const kr_ssd_job<T> &k, T *state, int64_t r, const kr_quad<T> *held,
                                               int rows, const T *b, const T *c, T decay, const T *weight, T *sum,
                                               bool writes)
{
    const kr_quad<T> b_r = kr_load_quad(b, r, k.nr, ALIGNED), c_r = kr_load_quad(c, r, k.nr, ALIGNED);
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        if (i >= rows) break;
        kr_quad<T> s = held[i];
#pragma unroll
        for (int e = 0; e < KR_QUAD; e++) {
            s.v[e] = kr_ssd_moved(decay, s.v[e], weight[i], b_r.v[e]);
            if (r + e < k.nr)
                sum[i] = kr_fma(s.v[e], c_r.v[e], sum[i]); /* past them 0 times an infinite x is no number */
        }
        if (writes) kr_store_quad(state + i * k.nr, r, k.nr, s, ALIGNED);
    }
}

template <typename T, int ROWS, bool ALIGNED>
static __device__ __forceinline__ void load_rows(const T *state, int64_t r, int64_t nr, int rows, kr_quad<T> *held)
{
#pragma unroll
    for (int i = 0; i < ROWS; i++)
        if (i < rows) held[i] = kr_load_quad(state + i * nr, r, nr, ALIGNED);
}

/* Of row p of head h. */
template <typename T>
static __device__ __forceinline__ kr_ssd_extras<T> fetch_extras(const kr_ssd_job<T> &k, int64_t row, uint32_t h,
                                                                int64_t p)
{
    const int64_t channel = h * k.np + p;
    kr_ssd_extras<T> own;
    own.x = k.x[row * k.stride + channel];
    own.d = !k.d ? (T)0 : k.d_per_dim ? k.d[channel] : k.d[h];
    own.gate = k.z ? kr_silu(k.z[row * k.stride + channel]) : (T)0;
    own.gain = k.gain ? k.gain[channel] : (T)1;
    return own;
}

/* The squares of a tile, which are in every (32 / KR_TOKEN_TILE)th lane. */
template <typename T>
static __device__ __forceinline__ void put_squares(const kr_ssd_job<T> &k, int64_t row, uint32_t h, int64_t p0,
                                                   T square)
{
    if (!k.squares) return;
    square = kr_warp_sum(square);
    const int64_t tiles = kr_ceil_div(k.np, KR_TOKEN_TILE);
    if (threadIdx.x % 32 == 0) k.squares[(row * k.nh + h) * tiles + p0 / KR_TOKEN_TILE] = square;
}

/* Grid: for each row b, the rows p of all its heads by WARPS ROWS. SHORT: nr <= KR_SSD_SPAN. */
template <typename T, int ROWS, bool ALIGNED, bool SHORT>
static __global__ void __launch_bounds__(32 * WARPS, sizeof(T) == 4 ? 6 : 2)
    token_ssd_kernel(const __grid_constant__ kr_ssd_job<T> k)
{
    const int lane = threadIdx.x % 32;
    const uint32_t per_head = ((uint32_t)k.np + ROWS - 1) / ROWS, row = blockIdx.x / k.blocks;
    const uint32_t unit = blockIdx.x % k.blocks * WARPS + threadIdx.x / 32, h = unit / per_head;
    const int64_t p0 = unit % per_head * ROWS;
    if (h >= k.nh) {
        kr_token_wait();
        return;
    }
    T *state = k.state + (((int64_t)row * k.nh + h) * k.np + p0) * k.nr;
    const int rows = (int)kr_least(ROWS, k.np - p0);
    kr_quad<T> held[ROWS];
    load_rows<T, ROWS, ALIGNED>(state, lane * KR_QUAD, k.nr, rows, held);
    const T bias = k.dt_bias[h], rate = kr_exp(k.a_log[h]);
    kr_token_wait();
    const int64_t from = row * k.stride, group = h / (uint32_t)(k.nh / k.ng);
    const T *b = k.b + from + group * k.nr, *c = k.c + from + group * k.nr, *x = k.x + from + h * k.np + p0;
    const kr_ssd_pace<T> now = kr_ssd_pace_of(k, from, h, bias, rate);
    const books<T> at = books_of(k, row, h, p0);
    const kr_ssd_debt owes =
        kr_ssd_debt_of(at.record, (row * (uint32_t)k.nh + h) * (uint32_t)k.parts.tiles + (uint32_t)p0 / KR_TOKEN_TILE);
    T weight[ROWS], sum[ROWS];
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        weight[i] = i < rows ? now.step * x[i] : (T)0;
        sum[i] = 0;
    }
    for (int64_t r = lane * KR_QUAD; r - lane * KR_QUAD < k.nr; r += KR_SSD_SPAN) {
        if (r >= KR_SSD_SPAN) load_rows<T, ROWS, ALIGNED>(state, r, k.nr, rows, held);
        settle<T, ROWS, ALIGNED>(k, at, owes, r, held);
        advance<T, ROWS, ALIGNED>(k, state, r, held, rows, b, c, now.decay, weight, sum, owes.is_due);
        if (SHORT) break;
    }
    __syncwarp();
    keep(k, at, owes.t, h, p0, rows, lane < rows ? now.step * x[lane] : (T)0, now.decay, b);
    const T whole = kr_sum_lanes<ROWS, 16>(sum, lane);
    const int i = lane / (32 / ROWS);
    T square = 0;
    if (lane % (32 / ROWS) == 0 && i < rows)
        square = kr_ssd_put(k, row, h, p0 + i, whole, fetch_extras(k, row, h, p0 + i));
    if (ROWS == KR_TOKEN_TILE) put_squares(k, row, h, p0, square);
}

/* Every tile gets what it owes, and owes nothing. Grid: as token_ssd_kernel's. */
template <typename T, bool ALIGNED> static __global__ void settle_kernel(const __grid_constant__ kr_ssd_job<T> k)
{
    const int lane = threadIdx.x % 32;
    const uint32_t per_head = (uint32_t)k.parts.tiles, row = blockIdx.x / k.blocks;
    const uint32_t unit = blockIdx.x % k.blocks * WARPS + threadIdx.x / 32, h = unit / per_head;
    const int64_t p0 = unit % per_head * KR_TOKEN_TILE;
    if (h >= k.nh) return;
    T *state = k.state + (((int64_t)row * k.nh + h) * k.np + p0) * k.nr;
    const int rows = (int)kr_least(KR_TOKEN_TILE, k.np - p0);
    const books<T> at = books_of(k, row, h, p0);
    const kr_ssd_debt owes =
        kr_ssd_debt_of(at.record, (row * (uint32_t)k.nh + h) * (uint32_t)k.parts.tiles + (uint32_t)p0 / KR_TOKEN_TILE);
    for (int64_t r = lane * KR_QUAD; r - lane * KR_QUAD < k.nr; r += KR_SSD_SPAN) {
        kr_quad<T> held[KR_TOKEN_TILE] = {};
        load_rows<T, KR_TOKEN_TILE, ALIGNED>(state, r, k.nr, rows, held);
        settle<T, KR_TOKEN_TILE, ALIGNED>(k, at, owes, r, held);
#pragma unroll
        for (int i = 0; i < KR_TOKEN_TILE; i++)
            if (i < rows) kr_store_quad(state + i * k.nr, r, k.nr, held[i], ALIGNED);
    }
    __syncwarp();
    if (lane == 0) at.record[KR_OWED_COUNT] = 0;
}

/* ---- choosing ---- */

static bool run_ring(const kr_token_ssd_args *a, const kr_ssd_job<float> &k)
{
    return kr_token_ssd_ring(a, k);
}
static bool run_ring(const kr_token_ssd_args *, const kr_ssd_job<double> &)
{
    return false;
}

template <typename T, int ROWS, bool ALIGNED> static void launch(const kr_token_ssd_args *a, kr_ssd_job<T> k)
{
    k.blocks = (uint32_t)kr_ceil_div(k.nh * kr_ceil_div(k.np, ROWS), WARPS);
    const dim3 grid(k.blocks * (unsigned)k.nb);
    if (k.nr <= KR_SSD_SPAN)
        kr_token_launch(&a->exec, token_ssd_kernel<T, ROWS, ALIGNED, true>, grid, 32 * WARPS, 0, k);
    else kr_token_launch(&a->exec, token_ssd_kernel<T, ROWS, ALIGNED, false>, grid, 32 * WARPS, 0, k);
}

template <typename T, bool ALIGNED> static void launch_some(const kr_token_ssd_args *a, const kr_ssd_job<T> &k)
{
    if (k.squares || k.owed || k.nb * k.nh * k.np >= MANY_ROWS) launch<T, 8, ALIGNED>(a, k);
    else launch<T, 2, ALIGNED>(a, k);
}

template <typename T> static void settle_all(const kr_token_ssd_args *a, kr_ssd_job<T> k, bool aligned)
{
    k.blocks = (uint32_t)kr_ceil_div(k.nh * k.parts.tiles, WARPS);
    const unsigned grid = k.blocks * (unsigned)k.nb;
    if (aligned) settle_kernel<T, true><<<grid, 32 * WARPS, 0, kr_stream_of(&a->exec)>>>(k);
    else settle_kernel<T, false><<<grid, 32 * WARPS, 0, kr_stream_of(&a->exec)>>>(k);
}

template <typename T> static void token_ssd_run(const kr_token_ssd_args *a)
{
    const kr_ssd_job<T> k = kr_ssd_job_of<T>(a);
    if (k.nb * k.nh * k.np == 0) return;
    const bool aligned = kr_ssd_is_aligned(k);
    if (!k.x) {
        settle_all<T>(a, k, aligned);
        return;
    }
    if (aligned && run_ring(a, k)) return;
    if (aligned) launch_some<T, true>(a, k);
    else launch_some<T, false>(a, k);
}

KR_CUDA_ENTRY(token_ssd, kr_token_ssd_args)
