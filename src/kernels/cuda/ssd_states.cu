/* ssd_states.cu - the walk over the chunks of a sequence that makes the states between them; see ssd_states.cuh. */
#include "kernels/cuda/ssd_chunk.cuh"
#include "kernels/cuda/ssd_states.cuh"

enum { TILE = 64 * 64 * 2 };

/* Shared memory in bytes: stages of (x, maps, factors, a), and states on their way out. */
template <int COLUMNS> struct layout {
    static const int threads = COLUMNS == 64 ? 128 : 256; /* of which the last 128 load */
    static const int stages = 4, maps = TILE, factors = TILE + 64 * COLUMNS * 2, stage = factors + 512;
    static const int staging = stages * stage, bytes = staging + 64 * COLUMNS * 2;
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

/* Chunk n's rows of x and of the maps, its factors, and e^a_end's exponent in the last place. */
template <int COLUMNS>
static __device__ __forceinline__ void load_stage(const kr_ssd_walk &w, const task &t, int i, uint32_t stage)
{
    typedef layout<COLUMNS> at;
    const int thread = (int)threadIdx.x & 127;
    const int chunk = w.back ? t.count - 1 - i : i, nt = (int)w.map.nt, nf = min(nt, t.tokens - chunk * nt) * w.nm;
    const int64_t first = t.at + (int64_t)chunk * nt;
    kr_rows x = {
        w.x + first * w.x_stride + t.h * w.np + t.p0, w.x_stride, w.nh * w.np, w.nm, w.np - t.p0, w.x_aligned
    };
    kr_rows maps = { w.maps + first * w.maps_stride + t.e * w.nr + t.r0,
                     w.maps_stride,
                     w.ng * w.nr,
                     w.nm,
                     w.nr - t.r0,
                     w.maps_aligned };
    kr_load_rows<64, 128>(stage, x, nf, thread);
    kr_load_rows<COLUMNS, 128>(stage + at::maps, maps, nf, thread);
    const float *f = w.factors + ((t.first + chunk) * w.nh + t.h) * KR_SSD_FACTORS * 64;
    const int k = thread;
    if (k < 16)
        kr_copy_async16(stage + at::factors + k * 16, f + (w.back ? KR_SSD_ENTER : KR_SSD_STAY) * 64 + k * 4, 16);
    if (k >= 32 && k < 48)
        kr_copy_async16(stage + at::factors + 256 + (k - 32) * 16, f + KR_SSD_A2 * 64 + (k - 32) * 4, 16);
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

template <int COLUMNS, bool LOW>
static __global__ void __launch_bounds__(layout<COLUMNS>::threads, COLUMNS == 64 ? 3 : 2)
    walk(const __grid_constant__ kr_ssd_walk w)
{
    extern __shared__ __align__(1024) char shared[];
    typedef layout<COLUMNS> at;
    const int ahead = at::stages - 1;
    const task t = task_of<COLUMNS>(w);
    const bool loads = at::threads == 128 || threadIdx.x >= 128, sums = at::threads == 128 || threadIdx.x < 128;
    const uint32_t base = kr_shared_address(shared);
    for (int i = 0; i < ahead; i++) {
        if (loads && i < t.count) load_stage<COLUMNS>(w, t, i, base + i * at::stage);
        kr_copy_commit();
    }
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
        kr_copy_wait<at::stages - 2>();
        __syncthreads();
        if (loads && i + ahead < t.count)
            load_stage<COLUMNS>(w, t, i + ahead, base + (uint32_t)((i + ahead) % at::stages) * at::stage);
        kr_copy_commit();
        if (!sums) continue;
        const uint32_t slot = (uint32_t)(i % at::stages) * at::stage;
        const float *factor = (const float *)(shared + slot + at::factors);
        const int64_t n = t.first + (w.back ? t.count - 1 - i : i);
        if (w.states) store_state<COLUMNS, false>(w, t, n, acc, base + at::staging);
        if (LOW) store_state<COLUMNS, true>(w, t, n, acc, base + at::staging);
        if (w.between && i % w.every == 0) store_between<COLUMNS>(w, t, i / w.every, acc);
        kr_ssd_pass<COLUMNS, 64, COLUMNS, LOW>(acc, base + slot, base + slot + at::maps, factor, factor[127], t.warp,
                                               t.lane);
    }
    if (!sums) return;
    if (w.between && t.count == 0) store_between<COLUMNS>(w, t, 0, acc);
    if (w.end) store_end<COLUMNS>(w, t, acc);
}

template <int COLUMNS, bool LOW> static void launch(const kr_ssd_walk *w, const kr_ssd_dims *d, cudaStream_t stream)
{
    const int bytes = layout<COLUMNS>::bytes;
    const unsigned blocks = (unsigned)(d->r_line / COLUMNS * d->heads * d->nq);
    cudaFuncSetAttribute(walk<COLUMNS, LOW>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    walk<COLUMNS, LOW><<<blocks, layout<COLUMNS>::threads, bytes, stream>>>(*w);
}

void kr_ssd_walk_run(const kr_ssd_walk *w, const kr_ssd_dims *d, cudaStream_t stream)
{
    if (d->nq == 0 || d->heads == 0) return;
    const bool few = d->nq * d->heads < 128;
    if (few && w->low) launch<32, true>(w, d, stream);
    else if (few) launch<32, false>(w, d, stream);
    else if (w->low) launch<64, true>(w, d, stream);
    else launch<64, false>(w, d, stream);
}
