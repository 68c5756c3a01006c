/* token_ssd_cuda.cu - one token of Mamba-2's state space core, in place, at the speed of memory.
 *
 *   s = clamp(softplus(dt + dt_bias));   H <- exp(-s exp(a_log)) H + s x (outer) B;   y = H C + D x, gated if asked
 *   x [h p], b, c [g r], dt [h] in rows; H [b h p r]; y [b h p]
 *
 * A warp has ROWS rows p of one head; lane l has elements 4 l .. 4 l + 3 of r, and 128 on from there. The rows' first
 * elements are on their way before the kernel that makes x, B and C has ended. A lane's sum runs along r, then lanes
 * are added by halves: the order depends on r alone.
 * Many states on sm_90: a warp has a ring of tiles of 8 rows (ring.cuh), and takes every so many'th of all tiles. It does
 * the same sums.
 */
#include "kernels/cuda/few.cuh"
#include "kernels/cuda/quad.cuh"
#include "kernels/cuda/ring.cuh"
#include "kernels/cuda/token.cuh"

enum { WARPS = 4, SPAN = 32 * KR_QUAD, MANY_ROWS = 8192, TILE = KR_TOKEN_TILE, RING_WARPS = 8, STAGES = 4 };

template <typename T> struct ssd_job {
    int64_t nb, nh, np, ng, nr, stride, y_stride;
    const T *x, *b, *c, *dt, *dt_bias, *a_log, *d, *z, *gain;
    T dt_min, dt_max;
    T *state, *squares;
    void *y;
    kr_half y_half;
    bool d_per_dim;
    uint32_t blocks; /* of a row */
};

template <typename T> static __device__ __forceinline__ T softplus(T x)
{
    return x > (T)20 ? x : log1p(kr_exp(x));
}

/* What a head does with a token: its step and decay. */
template <typename T> struct pace {
    T step, decay;
};

template <typename T>
static __device__ __forceinline__ pace<T> pace_of(const ssd_job<T> &k, int64_t from, uint32_t h, T bias, T rate)
{
    T step = softplus(k.dt[from + h] + bias);
    step = step < k.dt_min ? k.dt_min : step;
    step = step > k.dt_max ? k.dt_max : step;
    return { step, kr_exp(step * -rate) };
}

/* What row p of head h needs besides its sum; fetched before that is known. */
template <typename T> struct extras {
    T x, d, gate, gain;
};

template <typename T>
static __device__ __forceinline__ extras<T> fetch(const ssd_job<T> &k, int64_t row, uint32_t h, int64_t p)
{
    const int64_t channel = h * k.np + p;
    extras<T> own;
    own.x = k.x[row * k.stride + channel];
    own.d = !k.d ? (T)0 : k.d_per_dim ? k.d[channel] : k.d[h];
    own.gate = k.z ? k.z[row * k.stride + channel] : (T)0;
    own.gain = k.gain ? k.gain[channel] : (T)1;
    return own;
}

/* y from its sum: D x added, gated. The square of what was gated. */
template <typename T>
static __device__ __forceinline__ T put(const ssd_job<T> &k, int64_t row, uint32_t h, int64_t p, T sum,
                                        const extras<T> &own)
{
    T y = sum + own.d * own.x, square = 0;
    if (k.z) {
        y *= kr_silu(own.gate);
        square = y * y;
        y *= own.gain;
    }
    kr_put_as(k.y, row * k.y_stride + h * k.np + p, y, k.y_half);
    return square;
}

/* The squares of a tile, which are in every (32 / TILE)th lane. */
template <typename T>
static __device__ __forceinline__ void put_squares(const ssd_job<T> &k, int64_t row, uint32_t h, int64_t p0, T square)
{
    if (!k.squares) return;
    square = kr_warp_sum(square);
    const int64_t tiles = kr_ceil_div(k.np, TILE);
    if (threadIdx.x % 32 == 0) k.squares[(row * k.nh + h) * tiles + p0 / TILE] = square;
}

/* H of `rows` rows from r on, moved on by one token; their products with C are added to sum. */
template <typename T, int ROWS, bool ALIGNED>
static __device__ __forceinline__ void advance(const ssd_job<T> &k, T *state, int64_t r, const kr_quad<T> *held,
                                               int rows, const T *b, const T *c, T decay, const T *weight, T *sum)
{
    const kr_quad<T> b_r = kr_load_quad(b, r, k.nr, ALIGNED), c_r = kr_load_quad(c, r, k.nr, ALIGNED);
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        if (i >= rows) break;
        kr_quad<T> s = held[i];
#pragma unroll
        for (int e = 0; e < KR_QUAD; e++) {
            s.v[e] = decay * s.v[e] + weight[i] * b_r.v[e];
            if (r + e < k.nr) sum[i] += s.v[e] * c_r.v[e]; /* past them 0 times an infinite x is no number */
        }
        kr_store_quad(state + i * k.nr, r, k.nr, s, ALIGNED);
    }
}

template <typename T, int ROWS, bool ALIGNED>
static __device__ __forceinline__ void load_rows(const T *state, int64_t r, int64_t nr, int rows, kr_quad<T> *held)
{
#pragma unroll
    for (int i = 0; i < ROWS; i++)
        if (i < rows) held[i] = kr_load_quad(state + i * nr, r, nr, ALIGNED);
}

/* Grid: for each row b, the rows p of all its heads by WARPS ROWS. SHORT: nr <= SPAN. */
template <typename T, int ROWS, bool ALIGNED, bool SHORT>
static __global__ void __launch_bounds__(32 * WARPS, sizeof(T) == 4 ? 6 : 2)
    token_ssd_kernel(const __grid_constant__ ssd_job<T> k)
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
    const pace<T> now = pace_of(k, from, h, bias, rate);
    T weight[ROWS], sum[ROWS];
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        weight[i] = i < rows ? now.step * x[i] : (T)0;
        sum[i] = 0;
    }
    advance<T, ROWS, ALIGNED>(k, state, lane * KR_QUAD, held, rows, b, c, now.decay, weight, sum);
    for (int64_t r = lane * KR_QUAD + SPAN; !SHORT && r - lane * KR_QUAD < k.nr; r += SPAN) {
        load_rows<T, ROWS, ALIGNED>(state, r, k.nr, rows, held);
        advance<T, ROWS, ALIGNED>(k, state, r, held, rows, b, c, now.decay, weight, sum);
    }
    const T whole = kr_sum_lanes<ROWS, 16>(sum, lane);
    const int i = lane / (32 / ROWS);
    T square = 0;
    if (lane % (32 / ROWS) == 0 && i < rows) square = put(k, row, h, p0 + i, whole, fetch(k, row, h, p0 + i));
    if (ROWS == TILE) put_squares(k, row, h, p0, square);
}

/* ---- rings ---- */

/* One tile, which has come to shared memory, moved on by one token there; the rest of the row is read now. */
static __device__ __forceinline__ void turn_tile(const ssd_job<float> &k, uint32_t tile, float *held, uint64_t *barrier,
                                                 uint32_t phase, float *sums, extras<float> *own)
{
    const int lane = threadIdx.x % 32;
    const uint32_t per_head = (uint32_t)k.np / TILE, head = tile / per_head, row = head / (uint32_t)k.nh;
    const uint32_t h = head - row * (uint32_t)k.nh, group = h / (uint32_t)(k.nh / k.ng);
    const int64_t from = row * k.stride, p0 = (int64_t)(tile - head * per_head) * TILE, r = lane * KR_QUAD;
    const kr_quad<float> b = kr_load_quad(k.b + from + group * k.nr, r, k.nr, true);
    const kr_quad<float> c = kr_load_quad(k.c + from + group * k.nr, r, k.nr, true);
    *own = fetch(k, row, h, p0 + lane / (32 / TILE));
    const pace<float> now = pace_of(k, from, h, k.dt_bias[h], kr_exp(k.a_log[h]));
    kr_barrier_wait(barrier, phase);
#pragma unroll
    for (int i = 0; i < TILE; i++) {
        const float weight = now.step * __shfl_sync(0xffffffffu, own->x, i * (32 / TILE));
        kr_quad<float> s = kr_load_quad(held + i * k.nr, r, k.nr, true);
        sums[i] = 0;
#pragma unroll
        for (int e = 0; e < KR_QUAD; e++) {
            s.v[e] = now.decay * s.v[e] + weight * b.v[e];
            if (r + e < k.nr) sums[i] += s.v[e] * c.v[e];
        }
        kr_store_quad(held + i * k.nr, r, k.nr, s, true);
    }
}

/* Each warp of the grid has the tiles of its number, and of all warps' count more, and so on. tile: its elements. */
static __global__ void __launch_bounds__(32 * RING_WARPS)
    ring_kernel(const __grid_constant__ ssd_job<float> k, uint32_t tiles, uint32_t tile_size)
{
    extern __shared__ uint4 shared[];
    __shared__ uint64_t barriers[RING_WARPS][STAGES];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float *ring = (float *)(void *)shared + (size_t)warp * STAGES * tile_size;
    const uint32_t all = gridDim.x * RING_WARPS, first = warp * gridDim.x + blockIdx.x, bytes = tile_size * 4;
    if (lane == 0) {
        for (int s = 0; s < STAGES; s++) kr_barrier_init(&barriers[warp][s]);
        for (uint32_t s = 0, tile = first; s < STAGES - 1 && tile < tiles; s++, tile += all)
            kr_bulk_read(ring + s * tile_size, k.state + (int64_t)tile * tile_size, bytes, &barriers[warp][s]);
    }
    __syncwarp();
    kr_token_wait_alone();
    uint32_t stage = 0, phase = 0;
    for (uint32_t tile = first; tile < tiles; tile += all) {
        float sums[TILE], *held = ring + stage * tile_size;
        extras<float> own;
        turn_tile(k, tile, held, &barriers[warp][stage], phase, sums, &own);
        kr_bulk_fence();
        __syncwarp();
        const uint32_t before = stage ? stage - 1 : STAGES - 1, ahead = tile + all * (STAGES - 1);
        if (lane == 0) {
            kr_bulk_write(k.state + (int64_t)tile * tile_size, held, bytes);
            if (ahead < tiles) {
                kr_bulk_written<1>();
                kr_bulk_read(ring + before * tile_size, k.state + (int64_t)ahead * tile_size, bytes,
                             &barriers[warp][before]);
            }
        }
        const float whole = kr_sum_lanes<TILE, 16>(sums, lane);
        const uint32_t per_head = (uint32_t)k.np / TILE, head = tile / per_head, row = head / (uint32_t)k.nh;
        const int64_t p0 = (int64_t)(tile - head * per_head) * TILE;
        float square = 0;
        if (lane % (32 / TILE) == 0)
            square = put(k, row, head - row * (uint32_t)k.nh, p0 + lane / (32 / TILE), whole, own);
        put_squares(k, row, head - row * (uint32_t)k.nh, p0, square);
        if (++stage == STAGES) stage = 0, phase ^= 1;
    }
    kr_token_let_next();
    if (lane == 0) kr_bulk_written<0>();
}

/* ---- choosing ---- */

static bool launch_ring(const kr_token_ssd_args *a, const ssd_job<float> &k)
{
    const kr_cuda *own = (const kr_cuda *)a->exec.own;
    const size_t shared = (size_t)(RING_WARPS * STAGES * TILE * k.nr) * sizeof(float);
    const int64_t tiles = k.nb * k.nh * (k.np / TILE);
    if (own->arch != 90 || k.np % TILE != 0 || k.nr > SPAN || shared + 1024 > own->shared_bytes ||
        tiles < RING_WARPS * (int64_t)own->multiprocessors || tiles > INT32_MAX)
        return false;
    kr_token_launch(&a->exec, ring_kernel, dim3((unsigned)own->multiprocessors), 32 * RING_WARPS, shared, k,
                    (uint32_t)tiles, (uint32_t)(TILE * k.nr));
    return true;
}
static bool launch_ring(const kr_token_ssd_args *, const ssd_job<double> &)
{
    return false;
}

template <typename T, int ROWS, bool ALIGNED> static void launch(const kr_token_ssd_args *a, ssd_job<T> k)
{
    k.blocks = (uint32_t)kr_ceil_div(k.nh * kr_ceil_div(k.np, ROWS), WARPS);
    const dim3 grid(k.blocks * (unsigned)k.nb);
    if (k.nr <= SPAN) kr_token_launch(&a->exec, token_ssd_kernel<T, ROWS, ALIGNED, true>, grid, 32 * WARPS, 0, k);
    else kr_token_launch(&a->exec, token_ssd_kernel<T, ROWS, ALIGNED, false>, grid, 32 * WARPS, 0, k);
}

template <typename T, bool ALIGNED> static void launch_some(const kr_token_ssd_args *a, const ssd_job<T> &k)
{
    if (k.squares || k.nb * k.nh * k.np >= MANY_ROWS) launch<T, 8, ALIGNED>(a, k);
    else launch<T, 2, ALIGNED>(a, k);
}

template <typename T> static void token_ssd_run(const kr_token_ssd_args *a)
{
    const ssd_job<T> k = { a->nb,
                           a->nh,
                           a->np,
                           a->ng,
                           a->nr,
                           a->stride,
                           a->y_stride,
                           (const T *)a->x,
                           (const T *)a->b,
                           (const T *)a->c,
                           (const T *)a->dt,
                           (const T *)a->dt_bias,
                           (const T *)a->a_log,
                           (const T *)a->d,
                           (const T *)a->z,
                           (const T *)a->gain,
                           (T)a->dt_min,
                           (T)a->dt_max,
                           (T *)a->state,
                           (T *)a->squares,
                           a->y,
                           a->y_half,
                           a->d_per_dim,
                           0 };
    if (k.nb * k.nh * k.np == 0) return;
    const bool aligned = sizeof(T) == 4 && k.nr % KR_QUAD == 0 && k.stride % KR_QUAD == 0 && kr_allows16(k.b) &&
                         kr_allows16(k.c) && kr_allows16(k.state);
    if (aligned && launch_ring(a, k)) return;
    if (aligned) launch_some<T, true>(a, k);
    else launch_some<T, false>(a, k);
}

KR_CUDA_ENTRY(token_ssd, kr_token_ssd_args)
