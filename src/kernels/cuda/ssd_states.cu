/* ssd_states.cu - the walk over the chunks of a sequence that makes the states between them; see ssd_states.cuh. */
#include "kernels/cuda/ssd_chunk.cuh"
#include "kernels/cuda/ssd_states.cuh"
#include "kernels/cuda/ssd_turn.cuh"
#include "kernels/cuda/wgmma.cuh"

enum { TILE = 64 * 64 * 2 };

/* Shared memory in bytes: stages of (x, maps), their factors and a, states on their way out, and a bias. */
template <int COLUMNS> struct layout {
    static const int threads = COLUMNS == 64 ? 128 : 256; /* of which the last 128 load */
    static const int stages = 4, maps = TILE, stage = TILE + 64 * COLUMNS * 2, factors = stages * stage;
    static const int staging = factors + stages * 512, bytes = staging + 64 * COLUMNS * 2;
    static const int with_bias = bytes + kr_turn_bias<COLUMNS>::bytes;
};

/* Of a block: 64 rows of p from p0 on, COLUMNS of r from r0 on, of sequence q and head h. */
typedef struct task {
    int64_t q, h, head, e, first, at; /* the sequence's first chunk and token */
    int count, tokens;                /* its chunks and tokens */
    int p0, r0, warp, lane, row;      /* row: the lane's first row of the warp's 16 */
} task;

template <int COLUMNS> static __device__ __forceinline__ task task_of(const kr_ssd_walk &w)
{
    task t;
    const unsigned across = (unsigned)w.r_line / COLUMNS, heads = (unsigned)(w.nh * w.slices),
                   unit = blockIdx.x / across;
    t.head = unit % heads, t.q = unit / heads;
    t.h = t.head / w.slices, t.e = t.h / (w.nh / w.ng);
    t.p0 = (int)(t.head % w.slices) * 64, t.r0 = (int)(blockIdx.x % across) * COLUMNS;
    t.warp = (int)(threadIdx.x / 32) & 3, t.lane = (int)threadIdx.x & 31, t.row = t.warp * 16 + t.lane / 4;
    const kr_ssd_span span = kr_ssd_span_of(w.map, t.q);
    t.first = span.first, t.count = (int)span.count, t.at = 0, t.tokens = 0;
    if (w.between && t.count > (w.segments - 1) * w.every) t.count = (w.segments - 1) * w.every + 1;
    if (t.count > 0) {
        const kr_ssd_place last = kr_ssd_place_of(w.map, t.first + t.count - 1);
        t.at = kr_ssd_place_of(w.map, t.first).at;
        t.tokens = (int)(last.at - t.at) + last.nt;
    }
    return t;
}

/* Rows of x and of the maps of step i, its factors, and e^a_end's exponent in the last place. */
template <int COLUMNS, bool ONE>
static __device__ __forceinline__ void load_stage(const kr_ssd_walk &w, const task &t, int i, uint32_t base)
{
    typedef layout<COLUMNS> at;
    const int thread = (int)threadIdx.x & 127, nm = ONE ? 1 : w.nm;
    const uint32_t slot = (uint32_t)i % at::stages, stage = base + slot * at::stage;
    const uint32_t factors = base + at::factors + slot * 512;
    const int chunk = w.back ? t.count - 1 - i : i, nt = (int)w.map.nt, nf = min(nt, t.tokens - chunk * nt) * nm;
    const int64_t first = t.at + (int64_t)chunk * nt;
    kr_rows x = { w.x + first * w.x_stride + t.h * w.np + t.p0, w.x_stride, w.nh * w.np, nm, w.np - t.p0, w.x_aligned };
    kr_rows maps = {
        w.maps + first * w.maps_stride + t.e * w.nr + t.r0, w.maps_stride, w.ng * w.nr, nm, w.nr - t.r0, w.maps_aligned
    };
    kr_load_rows<64, 128>(stage, x, nf, thread);
    kr_load_rows<COLUMNS, 128>(stage + at::maps, maps, nf, thread);
    const float *f = w.factors + ((t.first + chunk) * w.nh + t.h) * KR_SSD_FACTORS * 64;
    const int k = thread;
    if (k < 16) kr_copy_async16(factors + k * 16, f + (w.back ? KR_SSD_ENTER : KR_SSD_STAY) * 64 + k * 4, 16);
    if (k >= 32 && k < 48) kr_copy_async16(factors + 256 + (k - 32) * 16, f + KR_SSD_A2 * 64 + (k - 32) * 4, 16);
}

/* The thread's angles of step i. */
template <int COLUMNS> struct turns {
    float4 of[kr_turn_place<COLUMNS, 128>::rows];
};

static __device__ __forceinline__ int rows_of(const kr_ssd_walk &w, const task &t, int chunk)
{
    return min((int)w.map.nt, t.tokens - chunk * (int)w.map.nt);
}

static __device__ __forceinline__ int chunk_at(const kr_ssd_walk &w, const task &t, int i)
{
    return w.back ? t.count - 1 - i : i;
}

static __device__ __forceinline__ const float *angles_at(const kr_ssd_walk &w, const task &t, int i)
{
    return w.turn.angle + ((t.at + chunk_at(w, t, i) * w.map.nt) * w.nh + t.h) * w.turn.na + t.r0 / 2;
}

/* The next step's are asked for too. */
template <int COLUMNS>
static __device__ __forceinline__ void load_turns(const kr_ssd_walk &w, const task &t, int i, turns<COLUMNS> *to)
{
    const int64_t token = w.nh * w.turn.na;
    const int left = w.turn.na - t.r0 / 2;
    kr_turn_load<COLUMNS, 128>(to->of, angles_at(w, t, i), token, left, rows_of(w, t, chunk_at(w, t, i)),
                               (int)threadIdx.x);
    if (i + 1 < t.count && threadIdx.x < 64)
        kr_turn_ask(angles_at(w, t, i + 1), token, left, rows_of(w, t, chunk_at(w, t, i + 1)), (int)threadIdx.x * 2);
}

/* The maps of step i, as they came, become the head's own; by the threads that sum. */
template <int COLUMNS>
static __device__ __forceinline__ void turn_stage(const kr_ssd_walk &w, const task &t, int i, uint32_t maps,
                                                  uint32_t bias, const turns<COLUMNS> *by)
{
    kr_turn_tiles<COLUMNS, 128, false, 1>(maps, 0, by->of, bias, rows_of(w, t, chunk_at(w, t, i)), (int)threadIdx.x);
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    kr_wg_publish();
#endif
    asm volatile("bar.sync 1, 128;" ::: "memory");
}

/* kr_ssd_pass by a product of the warpgroup, for 64 columns of turned maps: sm_90a. */
template <bool EXACT>
static __device__ __forceinline__ void pass_turned(float acc[8][4], uint32_t x, uint32_t maps, const float *factor,
                                                   float end2, const task &t)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    const float whole = kr_exp2(end2);
    uint32_t a[4][4], low[4][4];
#pragma unroll
    for (int k = 0; k < 4; k++) kr_ssd_scaled_columns<64, EXACT>(a[k], low[k], x, factor, t.warp, k * 16, t.lane);
#pragma unroll
    for (int c = 0; c < 8; c++)
#pragma unroll
        for (int k = 0; k < 4; k++) acc[c][k] *= whole;
    kr_wg_hold<8>(acc);
    kr_wg_begin();
#pragma unroll
    for (int k = 0; k < 4; k++) {
        kr_wg_64_rs(acc, a[k], kr_wg_n_last(maps, k * 16));
        if (EXACT) kr_wg_64_rs(acc, low[k], kr_wg_n_last(maps, k * 16));
    }
    kr_wg_commit();
    kr_wg_wait<0>();
    kr_wg_hold<8>(acc);
#endif
}

/* Two sums, rounded; LOW: what rounding takes from them, rounded. */
template <bool LOW> static __device__ __forceinline__ uint32_t rounded(float x, float y)
{
    const uint32_t high = kr_pack(x, y);
    if (!LOW) return high;
    const float2 h = kr_unpack(high);
    return kr_pack(x - h.x, y - h.y);
}

/* The warp's 16 rows, rounded, through shared memory to states or low. */
template <int COLUMNS, bool LOW>
static __device__ __forceinline__ void store_state(const kr_ssd_walk &w, const task &t, int64_t n,
                                                   const float acc[COLUMNS / 8][4], uint32_t staging)
{
    const int units = COLUMNS / 8;
    __syncwarp();
#pragma unroll
    for (int c = 0; c < units; c++) {
        const uint32_t to = staging + (t.lane & 3) * 4;
        kr_store_shared4(to + kr_tile_at<COLUMNS>(t.row, c), rounded<LOW>(acc[c][0], acc[c][1]));
        kr_store_shared4(to + kr_tile_at<COLUMNS>(t.row + 8, c), rounded<LOW>(acc[c][2], acc[c][3]));
    }
    __syncwarp();
    __nv_bfloat16 *to = (LOW ? w.low : w.states) + (n * (w.nh * w.slices) + t.head) * 64 * w.r_line + t.r0;
#pragma unroll
    for (int k = 0; k < units / 2; k++) {
        int at = k * 32 + t.lane, row = t.warp * 16 + at / units, unit = at % units;
        kr_store_global16(to + row * w.r_line + unit * 8, kr_load_shared16(staging + kr_tile_at<COLUMNS>(row, unit)));
    }
}

/* The block's state in f32, where a segment begins. */
template <int COLUMNS>
static __device__ __forceinline__ void store_between(const kr_ssd_walk &w, const task &t, int64_t segment,
                                                     const float acc[COLUMNS / 8][4])
{
    float *to = w.between + ((t.q * w.segments + segment) * (w.nh * w.slices) + t.head) * 64 * w.r_line;
#pragma unroll
    for (int c = 0; c < COLUMNS / 8; c++)
#pragma unroll
        for (int k = 0; k < 2; k++)
            *(float2 *)(to + (int64_t)(t.row + 8 * k) * w.r_line + t.r0 + c * 8 + (t.lane & 3) * 2) =
                make_float2(acc[c][2 * k], acc[c][2 * k + 1]);
}

template <int COLUMNS>
static __device__ __forceinline__ void store_end(const kr_ssd_walk &w, const task &t, const float acc[COLUMNS / 8][4])
{
    float *end = w.end + (t.q * w.nh + t.h) * w.np * w.nr;
#pragma unroll
    for (int c = 0; c < COLUMNS / 8; c++)
#pragma unroll
        for (int k = 0; k < 4; k++) {
            int p = t.p0 + t.row + (k / 2) * 8, r = t.r0 + c * 8 + (t.lane & 3) * 2 + (k & 1);
            if (p < w.np && r < w.nr) end[(int64_t)p * w.nr + r] = acc[c][k];
        }
}

template <int COLUMNS, bool EXACT, bool TURN>
static __device__ __forceinline__ void walk_one(const kr_ssd_walk &w, char *shared)
{
    typedef layout<COLUMNS> at;
    const int ahead = at::stages - 1;
    const task t = task_of<COLUMNS>(w);
    const bool loads = at::threads == 128 || threadIdx.x >= 128, sums = at::threads == 128 || threadIdx.x < 128;
    const uint32_t base = kr_shared_address(shared);
    for (int i = 0; i < ahead; i++) {
        if (loads && i < t.count) load_stage<COLUMNS, TURN>(w, t, i, base);
        kr_copy_commit();
    }
    turns<COLUMNS> by;
    if (TURN)
        kr_turn_load_bias<COLUMNS, at::threads>((float *)(shared + at::bytes), w.turn.bias_b, t.h, t.r0, w.nr,
                                                (int)threadIdx.x);
    float acc[COLUMNS / 8][4];
#pragma unroll
    for (int c = 0; c < COLUMNS / 8; c++)
#pragma unroll
        for (int k = 0; k < 4; k++) acc[c][k] = 0;
    if (w.start || w.seed) {
        float *tile = (float *)(shared + ahead * at::stage); /* nothing is loaded there before the walk begins */
#pragma unroll 4
        for (int i = (int)threadIdx.x; i < 64 * COLUMNS; i += at::threads)
            tile[i] = kr_ssd_start_value(w, t.q, t.h, t.p0 + i / COLUMNS, t.r0 + i % COLUMNS);
        __syncthreads();
        kr_ssd_take_tile<COLUMNS>(acc, tile, t.row, t.lane);
    }

    for (int i = 0; i < t.count; i++) {
        if (TURN && sums) load_turns<COLUMNS>(w, t, i, &by);
        kr_copy_wait<at::stages - 2>();
        __syncthreads();
        if (loads && i + ahead < t.count) load_stage<COLUMNS, TURN>(w, t, i + ahead, base);
        kr_copy_commit();
        if (!sums) continue;
        const uint32_t slot = (uint32_t)(i % at::stages) * at::stage;
        const float *factor = (const float *)(shared + at::factors + i % at::stages * 512);
        const int64_t n = t.first + (w.back ? t.count - 1 - i : i);
        if (w.states) store_state<COLUMNS, false>(w, t, n, acc, base + at::staging);
        if (EXACT && w.low) store_state<COLUMNS, true>(w, t, n, acc, base + at::staging);
        if (w.between && i % w.every == 0) store_between<COLUMNS>(w, t, i / w.every, acc);
        if (TURN) turn_stage<COLUMNS>(w, t, i, base + slot + at::maps, base + at::bytes, &by);
        if (TURN && COLUMNS == 64) pass_turned<EXACT>(acc, base + slot, base + slot + at::maps, factor, factor[127], t);
        else
            kr_ssd_pass<COLUMNS, 64, COLUMNS, EXACT>(acc, base + slot, base + slot + at::maps, factor, factor[127],
                                                     t.warp, t.lane);
    }
    if (!sums) return;
    if (w.between && t.count == 0) store_between<COLUMNS>(w, t, 0, acc);
    if (w.end) store_end<COLUMNS>(w, t, acc);
}

/* One walk, or both directions side by side. */
typedef struct walks {
    kr_ssd_walk of[2];
} walks;

template <int COLUMNS, bool EXACT, bool TURN>
static __global__ void __launch_bounds__(layout<COLUMNS>::threads, COLUMNS == 64 ? 3 : 2)
    walk(const __grid_constant__ walks all)
{
    extern __shared__ __align__(1024) char shared[];
    if (!TURN || blockIdx.y == 0) walk_one<COLUMNS, EXACT, TURN>(all.of[0], shared);
    else walk_one<COLUMNS, EXACT, TURN>(all.of[1], shared);
}

template <int COLUMNS, bool EXACT, bool TURN>
static void launch(const walks *all, int count, const kr_ssd_dims *d, cudaStream_t stream)
{
    const int bytes = TURN ? layout<COLUMNS>::with_bias : layout<COLUMNS>::bytes;
    const dim3 blocks((unsigned)(d->r_line / COLUMNS * d->heads * d->nq), (unsigned)count);
    cudaFuncSetAttribute(walk<COLUMNS, EXACT, TURN>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    walk<COLUMNS, EXACT, TURN><<<blocks, layout<COLUMNS>::threads, bytes, stream>>>(*all);
}

template <int COLUMNS> static void run(const walks *all, int count, const kr_ssd_dims *d, cudaStream_t stream)
{
    const bool exact = all->of[0].exact || all->of[0].low;
    if (all->of[0].turn.angle && exact) launch<COLUMNS, true, true>(all, count, d, stream);
    else if (all->of[0].turn.angle) launch<COLUMNS, false, true>(all, count, d, stream);
    else if (exact) launch<COLUMNS, true, false>(all, count, d, stream);
    else launch<COLUMNS, false, false>(all, count, d, stream);
}

static void run_walks(const walks *all, int count, const kr_ssd_dims *d, cudaStream_t stream)
{
    if (d->nq == 0 || d->heads == 0) return;
    if (count * d->nq * d->heads < 128) run<32>(all, count, d, stream);
    else run<64>(all, count, d, stream);
}

void kr_ssd_walk_run(const kr_ssd_walk *w, const kr_ssd_dims *d, cudaStream_t stream)
{
    const walks all = { { *w, {} } };
    run_walks(&all, 1, d, stream);
}

void kr_ssd_walk_both(const kr_ssd_walk *there, const kr_ssd_walk *back, const kr_ssd_dims *d, cudaStream_t stream)
{
    const walks all = { { *there, *back } };
    run_walks(&all, 2, d, stream);
}
