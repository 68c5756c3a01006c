/* decode_ssd.cu - one token of the Mamba-2 SSD core, in place, at memory bandwidth; all architectures, f32 and f64.
 *
 *   s = clamp(softplus(dt + dt_bias));   H <- exp(-s exp(a_log)) H + s x (outer) B;   y = H C + D x, gated if z is given
 *   x [h p], b, c [g r], dt [h] in rows; H [b h p r]; y [b h p]
 *
 * A warp has ROWS rows p of one head; lane l has elements 4 l .. 4 l + 3 of r, and every 128 further. The first elements
 * are loaded before the kernel that makes x, B and C ends. A lane sums along r, then lanes are added pairwise: the order
 * depends on r alone. Many states on sm_90: decode_ssd_tma.cu, with the same sums.
 */
#include "kernels/cuda/decode/decode_ssd.cuh"

enum { WARPS = 4, MANY_ROWS = 8192 };

/* Records of a tile's pending tokens, and pending B of its group; record NULL: updates are not deferred. */
template <typename T> struct record_ref {
    T *record, *b;
};

template <typename T>
static __device__ __forceinline__ record_ref<T> record_ref_of(const kr_ssd_job<T> &k, uint32_t row, uint32_t h,
                                                              int64_t p0)
{
    record_ref<T> at = { NULL, NULL };
    if (!k.deferred) return at;
    T *of_row = k.deferred + row * k.parts.row;
    at.record = of_row + (h * k.parts.tiles + p0 / KR_DECODE_TILE) * KR_DEFERRED_RECORD;
    at.b = of_row + k.parts.b + h / (uint32_t)(k.nh / k.ng) * (KR_DEFERRED_TOKENS * k.nr);
    return at;
}

/* Appends the current token, number t, to the record; weight: of row `lane`, for the first `rows` lanes. All lanes have
 * read the record. */
template <typename T>
static __device__ __forceinline__ void store_record(const kr_ssd_job<T> &k, const record_ref<T> &at, uint32_t t,
                                                    uint32_t h, int64_t p0, int rows, T weight, T decay, const T *b)
{
    if (!at.record) return;
    const int lane = threadIdx.x % 32;
    const uint32_t pair_pos = t % KR_DEFERRED_TOKENS;
    if (lane < rows) at.record[pair_pos * KR_DECODE_TILE + lane] = weight;
    if (lane == KR_DECODE_TILE) at.record[KR_DEFERRED_DECAY + pair_pos] = decay;
    if (lane == KR_DECODE_TILE + 1) at.record[KR_DEFERRED_COUNT] = (T)kr_ssd_next_count(t);
    if (h % (uint32_t)(k.nh / k.ng) == 0 && p0 == 0)
        for (int64_t r = lane; r < k.nr; r += 32) at.b[pair_pos * k.nr + r] = b[r];
}

/* Applies the pending tokens to elements r .. r + 3 of ROWS rows of H. */
template <typename T, int ROWS, bool ALIGNED>
static __device__ __forceinline__ void flush_pending(const kr_ssd_job<T> &k, const record_ref<T> &at,
                                                     const kr_ssd_pending &pending, int64_t r, kr_vec4<T> *held)
{
    for (uint32_t i = pending.t - pending.count; i < pending.t; i++) {
        const uint32_t pair_pos = i % KR_DEFERRED_TOKENS;
        const kr_vec4<T> b_r = kr_load_vec4(at.b + pair_pos * k.nr, r, k.nr, ALIGNED);
        const T decay = at.record[KR_DEFERRED_DECAY + pair_pos];
#pragma unroll
        for (int n = 0; n < ROWS; n++)
#pragma unroll
            for (int e = 0; e < KR_VEC4; e++)
                held[n].v[e] = kr_ssd_update(decay, held[n].v[e], at.record[pair_pos * KR_DECODE_TILE + n], b_r.v[e]);
    }
}

/* Applies the current token to elements r .. r + 3 of `rows` rows of H, and adds their products with C to sum. */
template <typename T, int ROWS, bool ALIGNED>
static __device__ __forceinline__ void update_state(const kr_ssd_job<T> &k, T *state, int64_t r, const kr_vec4<T> *held,
                                                    int rows, const T *b, const T *c, T decay, const T *weight, T *sum,
                                                    bool stores)
{
    const kr_vec4<T> b_r = kr_load_vec4(b, r, k.nr, ALIGNED), c_r = kr_load_vec4(c, r, k.nr, ALIGNED);
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        if (i >= rows) break;
        kr_vec4<T> s = held[i];
#pragma unroll
        for (int e = 0; e < KR_VEC4; e++) {
            s.v[e] = kr_ssd_update(decay, s.v[e], weight[i], b_r.v[e]);
            if (r + e < k.nr)
                sum[i] = kr_fma(s.v[e], c_r.v[e], sum[i]); /* past the end, 0 times an infinite x would be NaN */
        }
        if (stores) kr_store_vec4(state + i * k.nr, r, k.nr, s, ALIGNED);
    }
}

template <typename T, int ROWS, bool ALIGNED>
static __device__ __forceinline__ void load_rows(const T *state, int64_t r, int64_t nr, int rows, kr_vec4<T> *held)
{
#pragma unroll
    for (int i = 0; i < ROWS; i++)
        if (i < rows) held[i] = kr_load_vec4(state + i * nr, r, nr, ALIGNED);
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

/* Sum of squares of a tile; the terms are in every (32 / KR_DECODE_TILE)th lane. */
template <typename T>
static __device__ __forceinline__ void store_squares(const kr_ssd_job<T> &k, int64_t row, uint32_t h, int64_t p0,
                                                     T square)
{
    if (!k.squares) return;
    square = kr_warp_sum(square);
    const int64_t tiles = kr_ceil_div(k.np, KR_DECODE_TILE);
    if (threadIdx.x % 32 == 0) k.squares[(row * k.nh + h) * tiles + p0 / KR_DECODE_TILE] = square;
}

/* Grid: for each batch row, the rows p of all its heads by WARPS * ROWS. SHORT: nr <= KR_SSD_SPAN. */
template <typename T, int ROWS, bool ALIGNED, bool SHORT>
static __global__ void __launch_bounds__(32 * WARPS, sizeof(T) == 4 ? 6 : 2)
    decode_ssd_kernel(const __grid_constant__ kr_ssd_job<T> k)
{
    const int lane = threadIdx.x % 32;
    const uint32_t per_head = ((uint32_t)k.np + ROWS - 1) / ROWS, row = blockIdx.x / k.blocks;
    const uint32_t unit = blockIdx.x % k.blocks * WARPS + threadIdx.x / 32, h = unit / per_head;
    const int64_t p0 = unit % per_head * ROWS;
    if (h >= k.nh) {
        kr_pdl_wait();
        return;
    }
    T *state = k.state + (((int64_t)row * k.nh + h) * k.np + p0) * k.nr;
    const int rows = (int)kr_least(ROWS, k.np - p0);
    kr_vec4<T> held[ROWS];
    load_rows<T, ROWS, ALIGNED>(state, lane * KR_VEC4, k.nr, rows, held);
    const T bias = k.dt_bias[h], rate = kr_exp(k.a_log[h]);
    kr_pdl_wait();
    const int64_t from = row * k.stride, group = h / (uint32_t)(k.nh / k.ng);
    const T *b = k.b + from + group * k.nr, *c = k.c + from + group * k.nr, *x = k.x + from + h * k.np + p0;
    const kr_ssd_token_scale<T> now = kr_ssd_token_scale_of(k, from, h, bias, rate);
    const record_ref<T> at = record_ref_of(k, row, h, p0);
    const kr_ssd_pending pending = kr_ssd_pending_of(at.record, (row * (uint32_t)k.nh + h) * (uint32_t)k.parts.tiles +
                                                                    (uint32_t)p0 / KR_DECODE_TILE);
    T weight[ROWS], sum[ROWS];
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        weight[i] = i < rows ? now.step * x[i] : (T)0;
        sum[i] = 0;
    }
    for (int64_t r = lane * KR_VEC4; r - lane * KR_VEC4 < k.nr; r += KR_SSD_SPAN) {
        if (r >= KR_SSD_SPAN) load_rows<T, ROWS, ALIGNED>(state, r, k.nr, rows, held);
        flush_pending<T, ROWS, ALIGNED>(k, at, pending, r, held);
        update_state<T, ROWS, ALIGNED>(k, state, r, held, rows, b, c, now.decay, weight, sum, pending.is_flushed);
        if (SHORT) break;
    }
    __syncwarp();
    store_record(k, at, pending.t, h, p0, rows, lane < rows ? now.step * x[lane] : (T)0, now.decay, b);
    const T total = kr_lanes_sum<ROWS, 16>(sum, lane);
    const int i = lane / (32 / ROWS);
    T square = 0;
    if (lane % (32 / ROWS) == 0 && i < rows)
        square = kr_ssd_store(k, row, h, p0 + i, total, fetch_extras(k, row, h, p0 + i));
    if (ROWS == KR_DECODE_TILE) store_squares(k, row, h, p0, square);
}

/* Flushes every tile: applies its pending tokens and clears its record. Grid: as decode_ssd_kernel. */
template <typename T, bool ALIGNED> static __global__ void flush_kernel(const __grid_constant__ kr_ssd_job<T> k)
{
    const int lane = threadIdx.x % 32;
    const uint32_t per_head = (uint32_t)k.parts.tiles, row = blockIdx.x / k.blocks;
    const uint32_t unit = blockIdx.x % k.blocks * WARPS + threadIdx.x / 32, h = unit / per_head;
    const int64_t p0 = unit % per_head * KR_DECODE_TILE;
    if (h >= k.nh) return;
    T *state = k.state + (((int64_t)row * k.nh + h) * k.np + p0) * k.nr;
    const int rows = (int)kr_least(KR_DECODE_TILE, k.np - p0);
    const record_ref<T> at = record_ref_of(k, row, h, p0);
    const kr_ssd_pending pending = kr_ssd_pending_of(at.record, (row * (uint32_t)k.nh + h) * (uint32_t)k.parts.tiles +
                                                                    (uint32_t)p0 / KR_DECODE_TILE);
    for (int64_t r = lane * KR_VEC4; r - lane * KR_VEC4 < k.nr; r += KR_SSD_SPAN) {
        kr_vec4<T> held[KR_DECODE_TILE] = {};
        load_rows<T, KR_DECODE_TILE, ALIGNED>(state, r, k.nr, rows, held);
        flush_pending<T, KR_DECODE_TILE, ALIGNED>(k, at, pending, r, held);
#pragma unroll
        for (int i = 0; i < KR_DECODE_TILE; i++)
            if (i < rows) kr_store_vec4(state + i * k.nr, r, k.nr, held[i], ALIGNED);
    }
    __syncwarp();
    if (lane == 0) at.record[KR_DEFERRED_COUNT] = 0;
}

/* ---- dispatch ---- */

static bool run_tma(const kr_decode_ssd_args *a, const kr_ssd_job<float> &k)
{
    return kr_decode_ssd_tma(a, k);
}
static bool run_tma(const kr_decode_ssd_args *, const kr_ssd_job<double> &)
{
    return false;
}

template <typename T, int ROWS, bool ALIGNED> static void launch(const kr_decode_ssd_args *a, kr_ssd_job<T> k)
{
    k.blocks = (uint32_t)kr_ceil_div(k.nh * kr_ceil_div(k.np, ROWS), WARPS);
    const dim3 grid(k.blocks * (unsigned)k.nb);
    if (k.nr <= KR_SSD_SPAN) kr_pdl_launch(&a->exec, decode_ssd_kernel<T, ROWS, ALIGNED, true>, grid, 32 * WARPS, 0, k);
    else kr_pdl_launch(&a->exec, decode_ssd_kernel<T, ROWS, ALIGNED, false>, grid, 32 * WARPS, 0, k);
}

template <typename T, bool ALIGNED> static void launch_sized(const kr_decode_ssd_args *a, const kr_ssd_job<T> &k)
{
    if (k.squares || k.deferred || k.nb * k.nh * k.np >= MANY_ROWS) launch<T, 8, ALIGNED>(a, k);
    else launch<T, 2, ALIGNED>(a, k);
}

template <typename T> static void flush_all(const kr_decode_ssd_args *a, kr_ssd_job<T> k, bool aligned)
{
    k.blocks = (uint32_t)kr_ceil_div(k.nh * k.parts.tiles, WARPS);
    const unsigned grid = k.blocks * (unsigned)k.nb;
    if (aligned) flush_kernel<T, true><<<grid, 32 * WARPS, 0, kr_stream_of(&a->exec)>>>(k);
    else flush_kernel<T, false><<<grid, 32 * WARPS, 0, kr_stream_of(&a->exec)>>>(k);
}

template <typename T> static void decode_ssd_run(const kr_decode_ssd_args *a)
{
    const kr_ssd_job<T> k = kr_ssd_job_of<T>(a);
    if (k.nb * k.nh * k.np == 0) return;
    const bool aligned = kr_ssd_is_aligned(k);
    if (!k.x) {
        flush_all<T>(a, k, aligned);
        return;
    }
    if (aligned && run_tma(a, k)) return;
    if (aligned) launch_sized<T, true>(a, k);
    else launch_sized<T, false>(a, k);
}

KR_CUDA_ENTRY(decode_ssd, kr_decode_ssd_args)
