/* ssd_states.cu - the walk over the chunks of a sequence that makes the states between them; see ssd_states.cuh.
 *
 * Some of a block's warps load chunks ahead and make them ready (ssd_states_load.cuh); the first four sum. All that a
 * step's sums have to wait for is the step before it. Blocks of 32 columns are for few sequences, where all of the time
 * is steps one after the other: there the loaders scale x too, and operands come to registers during the products of
 * the step before.
 */
#include "kernels/cuda/ssd_states_load.cuh"

/* ---- states on their way out ---- */

/* Two sums, rounded; LOW: what rounding takes from them, rounded. */
template <bool LOW> static __device__ __forceinline__ uint32_t rounded(float x, float y)
{
    const uint32_t high = kr_pair_of(x, y);
    if (!LOW) return high;
    const float2 h = kr_unpack(high);
    return kr_pair_of(x - h.x, y - h.y);
}

/* The warp's 16 rows, rounded, to shared memory. */
template <int COLUMNS, bool LOW>
static __device__ __forceinline__ void stage_state(const float acc[COLUMNS / 8][4], uint32_t staging)
{
    const int row = warp_of() * 16;
#ifdef HAS_WARPGROUPS
    const uint32_t mine = staging + kr_tile_at<COLUMNS>(row + (lane_of() & 15), lane_of() / 16);
#pragma unroll
    for (int c = 0; c < COLUMNS / 8; c += 2)
        asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(mine ^ (uint32_t)(c * 16)),
                     "r"(rounded<LOW>(acc[c][0], acc[c][1])), "r"(rounded<LOW>(acc[c][2], acc[c][3])),
                     "r"(rounded<LOW>(acc[c + 1][0], acc[c + 1][1])), "r"(rounded<LOW>(acc[c + 1][2], acc[c + 1][3]))
                     : "memory");
#else
    const uint32_t to = staging + (lane_of() & 3) * 4;
#pragma unroll
    for (int c = 0; c < COLUMNS / 8; c++) {
        kr_store_shared4(to + kr_tile_at<COLUMNS>(row + lane_of() / 4, c), rounded<LOW>(acc[c][0], acc[c][1]));
        kr_store_shared4(to + kr_tile_at<COLUMNS>(row + lane_of() / 4 + 8, c), rounded<LOW>(acc[c][2], acc[c][3]));
    }
#endif
}

/* From there to the block's states or low. */
template <int COLUMNS> static __device__ __forceinline__ void send_state(kr_bf16 *to, int r_line, uint32_t staging)
{
    const int units = COLUMNS / 8, step = 32 / units, row = warp_of() * 16 + lane_of() / units,
              unit = lane_of() % units;
    to += row * r_line + unit * 8;
    __syncwarp();
#pragma unroll
    for (int k = 0; k < 16 / step; k++)
        kr_store_global16(to + k * step * r_line,
                          kr_load_shared16(staging + kr_tile_at<COLUMNS>(row + k * step, unit)));
    __syncwarp();
}

/* The block's state in f32, where a segment begins. */
template <int COLUMNS>
static __device__ __forceinline__ void store_between(const kr_ssd_walk &w, const task &t, int64_t segment,
                                                     const float acc[COLUMNS / 8][4])
{
    const int row = warp_of() * 16 + lane_of() / 4;
    float *to = w.between + ((t.q * w.segments + segment) * (w.nh * w.slices) + t.head) * 64 * w.r_line;
#pragma unroll
    for (int c = 0; c < COLUMNS / 8; c++)
#pragma unroll
        for (int k = 0; k < 2; k++)
            *(float2 *)(to + (int64_t)(row + 8 * k) * w.r_line + t.r0 + c * 8 + (lane_of() & 3) * 2) =
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
            const int p = t.p0 + warp_of() * 16 + lane_of() / 4 + (k / 2) * 8,
                      r = t.r0 + c * 8 + (lane_of() & 3) * 2 + (k & 1);
            if (p < w.np && r < w.nr) end[(int64_t)p * w.nr + r] = acc[c][k];
        }
}

/* Where the states of the step's chunk go, and the sums that a segment begins with. */
typedef struct outputs {
    int64_t at, step; /* elements of states and low, of this step and to the next one */
    int until, segment;
} outputs;

static __device__ __forceinline__ outputs outputs_of(const kr_ssd_walk &w, const task &t)
{
    const int64_t chunk = w.nh * w.slices * 64 * w.r_line;
    outputs o = { 0, w.back ? -chunk : chunk, 0, 0 };
    o.at = (t.first + (w.back ? t.count - 1 : 0)) * chunk + t.head * 64 * w.r_line + t.r0;
    return o;
}

/* The state before a step; what is staged is sent later, when the products of the step are on their way. */
template <int COLUMNS, int KIND>
static __device__ __forceinline__ void put_state(const kr_ssd_walk &w, const task &t, outputs *o,
                                                 const float acc[COLUMNS / 8][4], uint32_t staging)
{
    if (KIND == EXACT && w.low) {
        stage_state<COLUMNS, true>(acc, staging);
        send_state<COLUMNS>(w.low + o->at, w.r_line, staging);
    }
    if (KIND != BETWEEN) stage_state<COLUMNS, false>(acc, staging);
    else if (o->until-- == 0) store_between<COLUMNS>(w, t, o->segment++, acc), o->until = w.every - 1;
}

template <int COLUMNS, int KIND>
static __device__ __forceinline__ void send_states(const kr_ssd_walk &w, outputs *o, uint32_t staging)
{
    if (KIND != BETWEEN) send_state<COLUMNS>(w.states + o->at, w.r_line, staging);
    o->at += o->step;
}

/* ---- the warps that sum ---- */

/* What a step multiplies (ssd_chunk.cuh, kr_ssd_pass). */
template <int COLUMNS, int KIND> struct operands {
    uint32_t a[4][4], low[KIND == EXACT ? 4 : 1][4], b[4][COLUMNS / 16][4];
    float whole;
};

/* A lane's places in the tiles of a stage. */
template <int COLUMNS> struct places {
    uint32_t a, b[COLUMNS / 16];
};

template <int COLUMNS> static __device__ __forceinline__ places<COLUMNS> places_of(int maps)
{
    const int lane = lane_of();
    places<COLUMNS> p;
    p.a = kr_tile_at<64>((lane & 7) + ((lane >> 4) & 1) * 8, (lane >> 3) & 1) ^ (uint32_t)(warp_of() * 32);
#pragma unroll
    for (int c = 0; c < COLUMNS / 16; c++)
        p.b[c] = (uint32_t)maps + (kr_tile_at<COLUMNS>(lane & 15, lane >> 4) ^ (uint32_t)(c * 32));
    return p;
}

template <int COLUMNS, int KIND>
static __device__ __forceinline__ void take_operands(operands<COLUMNS, KIND> *o, const places<COLUMNS> &p,
                                                     uint32_t stage, uint32_t factors)
{
    typedef layout<COLUMNS, KIND> at;
    o->whole = kr_exp2(__uint_as_float(kr_load_shared4(factors + 256)));
#pragma unroll
    for (int k = 0; k < 4; k++) {
        kr_ldmatrix_trans(o->a[k], stage + p.a + k * (16 * 128));
        if (KIND == EXACT) kr_ldmatrix_trans(o->low[k], stage + at::low + p.a + k * (16 * 128));
#pragma unroll
        for (int c = 0; c < COLUMNS / 16; c++) kr_ldmatrix_trans(o->b[k][c], stage + p.b[c] + k * (16 * COLUMNS * 2));
    }
}

template <int COLUMNS, int KIND>
static __device__ __forceinline__ void multiply(float acc[COLUMNS / 8][4], const operands<COLUMNS, KIND> &o)
{
#pragma unroll
    for (int c = 0; c < COLUMNS / 8; c++)
#pragma unroll
        for (int k = 0; k < 4; k++) acc[c][k] *= o.whole;
#pragma unroll
    for (int k = 0; k < 4; k++)
#pragma unroll
        for (int c = 0; c < COLUMNS / 16; c++) {
            kr_mma_pair(acc[2 * c], acc[2 * c + 1], o.a[k], o.b[k][c]);
            if (KIND == EXACT) kr_mma_pair(acc[2 * c], acc[2 * c + 1], o.low[k], o.b[k][c]);
        }
}

/* Operands that were scaled before they came. The last step takes its own once more. */
template <int COLUMNS, int KIND>
static __device__ __forceinline__ void sum_ahead(const kr_ssd_walk &w, const task &t, float acc[COLUMNS / 8][4],
                                                 uint32_t base)
{
    typedef layout<COLUMNS, KIND> at;
    const places<COLUMNS> p = places_of<COLUMNS>(at::maps);
    outputs out = outputs_of(w, t);
    kr_stage s = { 0, 0 };
    operands<COLUMNS, KIND> now, next;
    if (t.count == 0) return;
    kr_latch_wait(base + at::filled, 0);
    take_operands<COLUMNS, KIND>(&now, p, base, base + at::factors);
    kr_latch_come(base + at::free);
#pragma unroll 2
    for (int i = 1; i <= t.count; i++) {
        put_state<COLUMNS, KIND>(w, t, &out, acc, base + at::staging);
        if (i < t.count) kr_stage_next<at::stages, 1>(&s);
        kr_latch_wait(base + at::filled + (uint32_t)s.at * KR_LATCH_BYTES, s.round);
        take_operands<COLUMNS, KIND>(&next, p, base + (uint32_t)s.at * at::stage,
                                     base + at::factors + (uint32_t)s.at * FACTOR_BYTES);
        multiply<COLUMNS, KIND>(acc, now);
        kr_latch_come(base + at::free + (uint32_t)s.at * KR_LATCH_BYTES);
        send_states<COLUMNS, KIND>(w, &out, base + at::staging);
        now = next;
    }
}

#ifdef HAS_WARPGROUPS

static __device__ __forceinline__ float2 load_pair(uint32_t from)
{
    float2 x;
    asm volatile("ld.shared.v2.f32 {%0,%1}, [%2];" : "=f"(x.x), "=f"(x.y) : "r"(from) : "memory");
    return x;
}

/* The warp's columns of x times the factors: operands of a step. */
template <int KIND>
static __device__ __forceinline__ void scale_operands(uint32_t a[4][4], uint32_t low[4][4], uint32_t x,
                                                      uint32_t factors)
{
#pragma unroll
    for (int k = 0; k < 4; k++) {
        const uint32_t at = factors + (uint32_t)(k * 16 + (lane_of() & 3) * 2) * 4;
        kr_ldmatrix_trans(a[k], x + k * (16 * 128));
        const float2 near = load_pair(at), far = load_pair(at + 32);
#pragma unroll
        for (int i = 0; i < 4; i++) kr_ssd_scale<KIND == EXACT>(&a[k][i], &low[k][i], i < 2 ? near : far);
    }
}

/* kr_ssd_pass by products of the warpgroup, which are left on their way. */
template <int KIND>
static __device__ __forceinline__ void begin_pass(float acc[8][4], const uint32_t a[4][4], const uint32_t low[4][4],
                                                  float whole, uint32_t maps)
{
#pragma unroll
    for (int c = 0; c < 8; c++)
#pragma unroll
        for (int k = 0; k < 4; k++) acc[c][k] *= whole;
    kr_wg_hold<8>(acc);
    kr_wg_begin();
#pragma unroll
    for (int k = 0; k < 4; k++) {
        kr_wg_64_rs(acc, a[k], kr_wg_n_last(maps, k * 16));
        if (KIND == EXACT) kr_wg_64_rs(acc, low[k], kr_wg_n_last(maps, k * 16));
    }
    kr_wg_commit();
}

#endif

template <int KIND>
static __device__ __forceinline__ void sum_wide(const kr_ssd_walk &w, const task &t, float acc[8][4], char *shared)
{
    typedef layout<64, KIND> at;
    const uint32_t base = kr_shared_address(shared);
    outputs out = outputs_of(w, t);
    kr_stage s = { 0, 0 };
#pragma unroll 1
    for (int i = 0; i < t.count; i++) {
        const uint32_t x = base + (uint32_t)s.at * at::stage;
        uint32_t staging = base + at::staging;
        asm volatile("" : "+r"(staging)); /* addresses made of it are not worth a register each */
        kr_latch_wait(base + at::filled + (uint32_t)s.at * KR_LATCH_BYTES, s.round);
#ifdef HAS_WARPGROUPS
        const uint32_t factors = base + at::factors + (uint32_t)s.at * FACTOR_BYTES;
        const float whole = kr_exp2(__uint_as_float(kr_load_shared4(factors + 256)));
        uint32_t a[4][4], low[4][4];
        scale_operands<KIND>(a, low, x + places_of<64>(0).a, factors);
        put_state<64, KIND>(w, t, &out, acc, staging);
        begin_pass<KIND>(acc, a, low, whole, x + at::maps);
        send_states<64, KIND>(w, &out, staging);
        kr_wg_wait<0>();
        kr_wg_hold<8>(acc);
#else
        const float *factor = (const float *)(shared + at::factors + s.at * FACTOR_BYTES);
        put_state<64, KIND>(w, t, &out, acc, staging);
        send_states<64, KIND>(w, &out, staging);
        kr_ssd_pass<64, 64, 64, KIND == EXACT>(acc, x, x + at::maps, factor, factor[64], warp_of(), lane_of());
#endif
        kr_latch_come(base + at::free + (uint32_t)s.at * KR_LATCH_BYTES);
        kr_stage_next<at::stages, 1>(&s);
    }
}

/* ---- the block ---- */

/* Zeros, or what the sequence begins with, through a stage; then all stages are free. */
template <int COLUMNS, int KIND>
static __device__ __forceinline__ void start_sums(const kr_ssd_walk &w, const task &t, float acc[COLUMNS / 8][4],
                                                  char *shared)
{
    typedef layout<COLUMNS, KIND> at;
    float *tile = (float *)shared;
#pragma unroll
    for (int c = 0; c < COLUMNS / 8; c++)
#pragma unroll
        for (int k = 0; k < 4; k++) acc[c][k] = 0;
    if (w.start || w.seed) {
#pragma unroll 4
        for (int i = (int)threadIdx.x; i < 64 * COLUMNS; i += SUMMERS)
            tile[i] = kr_ssd_start_value(w, t.q, t.h, t.p0 + i / COLUMNS, t.r0 + i % COLUMNS);
        asm volatile("bar.sync 1, 128;" ::: "memory");
        kr_ssd_take_tile<COLUMNS>(acc, tile, warp_of() * 16 + lane_of() / 4, lane_of());
    }
    for (int i = 0; i < at::stages; i++) kr_latch_come(kr_shared_address(shared) + at::free + i * KR_LATCH_BYTES);
}

/* Of a block's registers, 80 for a thread, some go from those that load to those that sum. */
template <int COLUMNS, bool SUMS> static __device__ __forceinline__ void share_registers(void)
{
#ifdef HAS_WARPGROUPS
    if (!SUMS) asm volatile("setmaxnreg.dec.sync.aligned.u32 64;");
    else if (COLUMNS == 64) asm volatile("setmaxnreg.inc.sync.aligned.u32 96;");
    else asm volatile("setmaxnreg.inc.sync.aligned.u32 112;");
#endif
}

/* One walk, or both directions side by side. */
typedef struct walks {
    kr_ssd_walk of[2];
} walks;

#ifdef HAS_WARPGROUPS
#define BLOCKS(columns) layout<columns, STATES>::blocks
#else
#define BLOCKS(columns) (columns == 64 ? 2 : 1) /* registers are shared evenly */
#endif

template <int COLUMNS, int KIND, int WAY>
static __global__ void __launch_bounds__((layout<COLUMNS, KIND>::threads), BLOCKS(COLUMNS))
    walk(const __grid_constant__ walks all)
{
    extern __shared__ __align__(1024) char shared[];
    typedef layout<COLUMNS, KIND> at;
    static_assert(at::bytes <= KR_CUDA_LEAST_SHARED, "too much for sm_86");
    static_assert(at::ahead * at::groups + 2 <= at::stages, "copies of a step wait for sums that wait for them");
    static_assert(SUMMERS == LOADERS, "both sides of a latch count alike");
    const kr_ssd_walk &w = all.of[blockIdx.y];
    const task t = task_of<COLUMNS, WAY>(w);
    const uint32_t base = kr_shared_address(shared);
    if (threadIdx.x < 2 * at::stages) kr_latch_init(base + at::filled + threadIdx.x * KR_LATCH_BYTES, LOADERS);
    if (WAY == TURN)
        kr_turn_load_bias<COLUMNS, at::threads>((float *)(shared + at::bias), w.turn.bias_b, t.h, t.r0, w.nr,
                                                (int)threadIdx.x);
    __syncthreads();
    if (threadIdx.x >= SUMMERS) {
        share_registers<COLUMNS, false>();
        load_all<COLUMNS, KIND, WAY>(w, t, base, (int)threadIdx.x / LOADERS - 1);
    } else {
        share_registers<COLUMNS, true>();
        float acc[COLUMNS / 8][4];
        start_sums<COLUMNS, KIND>(w, t, acc, shared);
        if (COLUMNS == 32) sum_ahead<COLUMNS, KIND>(w, t, acc, base);
        else sum_wide<KIND>(w, t, acc, shared);
        if (KIND == BETWEEN && t.count == 0) store_between<COLUMNS>(w, t, 0, acc);
        if (KIND != BETWEEN && w.end) store_end<COLUMNS>(w, t, acc);
    }
}

template <int COLUMNS, int KIND, int WAY>
static void launch(const walks *all, int count, const kr_ssd_dims *d, cudaStream_t stream)
{
    typedef layout<COLUMNS, KIND> at;
    const dim3 blocks((unsigned)(d->r_line / COLUMNS * d->heads * d->nq), (unsigned)count);
    cudaFuncSetAttribute(walk<COLUMNS, KIND, WAY>, cudaFuncAttributeMaxDynamicSharedMemorySize, at::bytes);
    walk<COLUMNS, KIND, WAY><<<blocks, at::threads, at::bytes, stream>>>(*all);
}

template <int COLUMNS, int KIND>
static void run_kind(const walks *all, int count, const kr_ssd_dims *d, cudaStream_t stream)
{
    if (all->of[0].turn.angle) launch<COLUMNS, KIND, TURN>(all, count, d, stream);
    else if (d->nm == 1) launch<COLUMNS, KIND, ONE>(all, count, d, stream);
    else launch<COLUMNS, KIND, MANY>(all, count, d, stream);
}

template <int COLUMNS> static void run(const walks *all, int count, const kr_ssd_dims *d, cudaStream_t stream)
{
    if (all->of[0].between) run_kind<COLUMNS, BETWEEN>(all, count, d, stream);
    else if (all->of[0].exact || all->of[0].low) run_kind<COLUMNS, EXACT>(all, count, d, stream);
    else run_kind<COLUMNS, STATES>(all, count, d, stream);
}

/* Blocks of few columns where all of them run at the same time. */
static void run_walks(const walks *all, int count, const kr_ssd_dims *d, cudaStream_t stream)
{
    const int64_t narrow = count * d->nq * d->heads * (d->r_line / 32);
    const int64_t at_once = (d->limits.warpgroups ? layout<32, STATES>::blocks : 1) * d->limits.processors;
    if (d->nq == 0 || d->heads == 0) return;
    if (narrow <= at_once) run<32>(all, count, d, stream);
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
