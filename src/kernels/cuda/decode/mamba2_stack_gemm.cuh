/* mamba2_stack_gemm.cuh - the GEMM side of mamba2_stack.cu: the layer stack, the shared memory of a CTA, synchronisation
 * between CTAs, and the tiles of norm(u) W_in (in_proj, with the convolution) and norm(y) W_out (out_proj). sm_90, bf16
 * operands, f32 sums.
 *
 *   x [m k] bf16 mailbox words   w [n k] bf16   squares [m nsquares]   y [m n]
 *
 * Eight warps compute a tile: weights go through shared memory by bulk copies, x is polled from the mailboxes of other
 * CTAs. Part i belongs to batch half i % 2: it runs out_proj of layer i / 2 - 1 and in_proj of layer i / 2, writes the
 * mailboxes of that layer's parity, and clears those of the other.
 */
#ifndef KR_KERNELS_CUDA_DECODE_MAMBA2_STACK_GEMM_CUH
#define KR_KERNELS_CUDA_DECODE_MAMBA2_STACK_GEMM_CUH

#include "kernels/cuda/decode/decode_skinny.cuh"
#include "kernels/cuda/decode/mamba2_stack_state.cuh"

/* ---- layer stack ---- */

/* The GEMM warps split k: step s of warp w is the 32 elements from 32 (8 s + w) on. SPAN: adjacent elements whose squares
 * are one partial sum. */
enum { WARPS = 8, THREADS = 32 * WARPS, STEP = 32 * WARPS, ALL_THREADS = THREADS + KR_CORE_THREADS + 32 };
enum { MAX_LAYERS = 32, MAX_ROWS = 255, SPAN = 16, BATCH_HALVES = 2, MAX_SLOTS = 28, IN_FLIGHT = 3 };
enum { MIN_SLOTS = KR_CORE_WARPS + 3 + IN_FLIGHT }; /* see run_partition */

typedef kr_linear_job<float> linear;

typedef struct layer {
    linear in_proj, out_proj;
    kr_ssd_job<float> core;
} layer;

/* Mailboxes between the parts of a layer (mamba2_stack_state.cuh). */
enum { PARITIES = 2 };
typedef struct mailboxes {
    uint16_t *stream;      /* [m d]: input of in_proj */
    float *stream_squares; /* [m d / SPAN] */
    float *projected;      /* [m n]: z, x B C, dt */
    uint16_t *y;           /* [m di] */
    float *y_squares;      /* [m di / KR_DECODE_TILE] */
} mailboxes;

typedef struct stack {
    int count, nm, half;                    /* layers; rows in all and in the first half */
    int indices_at, workspace_at, stage_at; /* byte offsets from the first slot */
    kr_core_plan plan;
    uint64_t *arrivals;
    float *x; /* [m d], row stride x_m: input of the first layer ... */
    int x_m;
    const void *table; /* ... if not NULL, looked up first: row ids[m] of this table [w d] */
    kr_dtype table_dtype;
    const void *ids;
    bool wide_ids;            /* 64-bit ids */
    mailboxes to[PARITIES];   /* alternating by layer */
    uint4 *mailbox_units;     /* all mailboxes but the first layer's input */
    uint32_t n_mailbox_units; /* number of 16-byte units */
    layer layers[MAX_LAYERS];
} stack;

/* ---- shared memory: control, state slots, pair indices, core workspace, columns, windows, weight stage ---- */
enum {
    IN_PROJ_DONE,
    CORE_DONE = IN_PROJ_DONE + BATCH_HALVES,
    OUT_PROJ_DONE = CORE_DONE + BATCH_HALVES,
    COUNTERS = OUT_PROJ_DONE + BATCH_HALVES,
    COUNTER_STRIDE = 16
};
static_assert(COUNTERS * COUNTER_STRIDE <= KR_CUDA_ARRIVALS, "the device has as many counters");
enum { WINDOWS_BYTES = 32 * 32 * (int)sizeof(float4), COLUMNS_BYTES = 1024 };

typedef struct tile {
    int at, count, of_rows; /* index of this tile; number of tiles; tiles with the same outputs */
    int m0, n0, end;        /* first row and output; end of the half's rows */
} tile;

typedef struct __align__(128) control
{
    uint64_t full[MAX_SLOTS], free[MAX_SLOTS], staged;
    uint64_t ready, jobs_ready[BATCH_HALVES]; /* mailboxes are cleared; jobs of out_proj, of the next layer */
    uint64_t targets[COUNTERS];               /* counter value of the next wait */
    float q[32];
    kr_core_partition partitions[BATCH_HALVES];
    int nm, half, stage_at;
    mailboxes to[PARITIES];
    tile in_proj_tile[BATCH_HALVES], out_proj_tile[BATCH_HALVES]; /* the CTA's first tiles */
    uint64_t *arrivals;
    int count;                                    /* layers */
    linear in_proj[PARITIES], out_proj[PARITIES]; /* jobs, alternating by layer */
    kr_ssd_job<float> cores[PARITIES];
}
control;

extern __shared__ uint4 shared_memory[];

static __device__ __forceinline__ control &ctl(void)
{
    return *(control *)(void *)shared_memory;
}
static __device__ __forceinline__ float *slots(void)
{
    return (float *)(void *)((char *)shared_memory + sizeof(control));
}
static __device__ __forceinline__ char *stage(void)
{
    return (char *)slots() + ctl().stage_at;
}

static __device__ __forceinline__ kr_pair_index *pair_indices(const stack &s, int half)
{
    return (kr_pair_index *)(void *)((char *)slots() + s.indices_at) + half * s.plan.max_pairs;
}

/* Copies a job from the kernel parameters to shared memory: one word per thread of a role. */
template <typename Job> static __device__ __forceinline__ void load_job(Job *to, const Job &from, uint32_t thread)
{
    if (thread < sizeof(Job) / 4) ((uint32_t *)(void *)to)[thread] = ((const uint32_t *)(const void *)&from)[thread];
}

/* Named barriers of the GEMM threads and of the core threads. */
static __device__ __forceinline__ void sync_gemm(void)
{
    asm volatile("bar.sync 1, %0;" ::"n"((int)THREADS) : "memory");
}
static __device__ __forceinline__ void sync_core(void)
{
    asm volatile("bar.sync 2, %0;" ::"n"((int)KR_CORE_THREADS) : "memory");
}

/* ---- synchronisation between CTAs ----
 *
 * A counter only says that polling is worthwhile; the mailbox words themselves say that data has arrived.
 */

static __device__ __forceinline__ uint64_t load_counter(const uint64_t *counter)
{
    uint64_t now;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(now) : "l"(counter) : "memory");
    return now;
}

static __device__ __forceinline__ void arrive(int counter)
{
    uint64_t *to = ctl().arrivals + counter * COUNTER_STRIDE;
    asm volatile("red.relaxed.gpu.global.add.u64 [%0], 1;" ::"l"(to) : "memory"); /* integers */
}

/* A counter grows by the number of CTAs each time all have arrived: it is a multiple of that number when the kernel starts
 * and ends. Some CTAs may arrive before this is called, but not all. */
static __device__ __forceinline__ void init_counters(uint64_t *arrivals)
{
    for (int i = threadIdx.x; i < COUNTERS; i += ALL_THREADS)
        ctl().targets[i] = load_counter(arrivals + i * COUNTER_STRIDE) / gridDim.x * gridDim.x + gridDim.x;
}

/* seen: counter value read earlier, or 0. */
template <typename Sync>
static __device__ __forceinline__ void wait_for_ctas(int counter, uint64_t seen, bool is_first, Sync sync)
{
    if (is_first) {
        const uint64_t *from = ctl().arrivals + counter * COUNTER_STRIDE, target = ctl().targets[counter];
        while (seen < target) seen = load_counter(from);
        ctl().targets[counter] = target + gridDim.x;
    }
    sync();
}

/* Loads the counter early, ahead of later loads. */
static __device__ __forceinline__ uint64_t peek_counter(int counter, bool is_first)
{
    return is_first ? load_counter(ctl().arrivals + counter * COUNTER_STRIDE) : 0;
}

/* ---- residual stream in bf16 ---- */

/* Adjacent elements n .. n + SPAN - 1 of a row are in as many lanes; at: m d + n. */
static __device__ __forceinline__ void store_stream(const mailboxes &to, int at, bool in_range, float v, float gain)
{
    float square = v * v;
    const float own = v * gain, next = __shfl_xor_sync(0xffffffffu, own, 1);
#pragma unroll
    for (int offset = SPAN / 2; offset > 0; offset /= 2) square += __shfl_xor_sync(0xffffffffu, square, offset);
    if (in_range && at % 2 == 0) kr_mailbox_put(to.stream + at, kr_mailbox_word_bf16x2(own, next));
    if (in_range && at % SPAN == 0) kr_mailbox_put(to.stream_squares + at / SPAN, kr_mailbox_word(square));
}

static __device__ __forceinline__ void clear_stream(const mailboxes &clear, int at, bool in_range)
{
    if (in_range && at % 2 == 0) kr_mailbox_clear(clear.stream + at);
    if (in_range && at % SPAN == 0) kr_mailbox_clear(clear.stream_squares + at / SPAN);
}

/* Ids of the embedding lookup, stored where the first weight stage will be. */
static __device__ __forceinline__ int32_t *ids(const stack &s)
{
    return (int32_t *)(void *)((char *)slots() + s.stage_at);
}

/* An element of the first layer's input. */
static __device__ __forceinline__ float initial_stream(const stack &s, int m, int n, int nk)
{
    float *x = s.x + (int64_t)m * s.x_m + n;
    if (s.table) *x = kr_element<float>(s.table, (int64_t)ids(s)[m] * nk + n, s.table_dtype);
    return *x;
}

/* Fills all mailboxes but the first layer's input with the sentinel. */
static __device__ __forceinline__ void clear_mailboxes(const stack &s)
{
    for (uint32_t i = blockIdx.x * ALL_THREADS + threadIdx.x; i < s.n_mailbox_units; i += gridDim.x * ALL_THREADS)
        s.mailbox_units[i] = make_uint4(KR_SENTINEL, KR_SENTINEL, KR_SENTINEL, KR_SENTINEL);
}

/* ---- tile shapes ---- */

/* SUM_STRIDE puts rows of sums in different banks. Rows of weights are not padded, so that one bulk copy moves them all. */
template <int M_TILES_, int N_TILES_, int STEPS_> struct shape {
    enum {
        M_TILES = M_TILES_, /* of 16 rows */
        N_TILES = N_TILES_,
        STEPS = STEPS_, /* per stage of weights */
        ROWS = 16 * M_TILES,
        COLUMNS = 8 * N_TILES,
        ROW_BYTES = STEPS * STEP * 2,
        STAGE = COLUMNS * ROW_BYTES,
        SUM_STRIDE = COLUMNS + 8,
        WARP_SUMS = ROWS * SUM_STRIDE,
        SUMS = WARPS * WARP_SUMS * 4,          /* bytes */
        PER_THREAD = ROWS * COLUMNS / THREADS, /* outputs per thread, all of one column */
        ROW_STEP = ROWS / PER_THREAD           /* rows between them */
    };
};
template <int STEPS> struct shapes {
    typedef shape<2, 4, STEPS> in_proj_tile;
    typedef shape<1, 2, 2 * STEPS> out_proj_tile;
    enum {
        STAGES =
            (int)in_proj_tile::STAGE > (int)out_proj_tile::STAGE ? (int)in_proj_tile::STAGE : (int)out_proj_tile::STAGE,
        SUMS = (int)in_proj_tile::SUMS > (int)out_proj_tile::SUMS ? (int)in_proj_tile::SUMS : (int)out_proj_tile::SUMS,
        STAGE = STAGES > SUMS ? STAGES : SUMS /* sums reuse the space of the weights */
    };
};

/* ---- tile product ---- */

/* Tile `at` of the rows from `first` to `end`: CTAs with the same outputs are adjacent. */
template <typename S> static __device__ __forceinline__ tile tile_among(const linear &k, int first, int end, int at)
{
    tile t;
    t.end = end;
    t.at = at;
    t.of_rows = (t.end - first + S::ROWS - 1) / S::ROWS;
    t.count = t.of_rows * (((int)k.nn + S::COLUMNS - 1) / S::COLUMNS);
    t.n0 = at / t.of_rows;
    t.m0 = first + (at - t.n0 * t.of_rows) * S::ROWS;
    t.n0 *= S::COLUMNS;
    return t;
}
template <typename S> static __device__ __forceinline__ tile tile_of(const linear &k, int half, int at)
{
    return tile_among<S>(k, half ? ctl().half : 0, half ? ctl().nm : ctl().half, at);
}

/* Starts the bulk copy of the weights of a stage, from step `first` on: one copy if the stage spans all of k, otherwise one
 * per row, issued by all warps. Earlier accesses to the stage must be behind an async proxy fence. */
template <typename S> static __device__ __forceinline__ void load_stage(const linear &k, int n0, int first)
{
    const uint32_t mbarrier = kr_shared_address(&ctl().staged);
    const uint16_t *from = (const uint16_t *)k.w + (int64_t)n0 * (int)k.nk;
    const int lane = (int)threadIdx.x % 32, row = (int)threadIdx.x / 32 + lane * WARPS;
    if (k.nk == S::STEPS * STEP) {
        const uint32_t bytes = (uint32_t)min((int)S::COLUMNS, (int)k.nn - n0) * S::ROW_BYTES;
        if (threadIdx.x == 0) kr_bulk_expect(mbarrier, bytes), kr_bulk_copy(stage(), from, bytes, mbarrier);
    } else {
        if (threadIdx.x == 0) kr_bulk_expect(mbarrier, S::STAGE);
        if (row < S::COLUMNS)
            kr_bulk_copy(stage() + row * S::ROW_BYTES, from + min(row, (int)k.nn - 1 - n0) * (int)k.nk + first * STEP,
                         S::ROW_BYTES, mbarrier);
    }
}

/* Addresses of the lane's 8 adjacent elements of its rows; rows past the end repeat the last. */
template <typename S> struct operands {
    const char *x;
    int at[2 * S::M_TILES];
};
template <typename S> static __device__ __forceinline__ operands<S> operands_of(const linear &k, const tile &t)
{
    operands<S> o;
    const int lane = threadIdx.x % 32, nk = (int)k.nk;
    o.x = (const char *)k.x + ((int)threadIdx.x / 32 * 4 + lane % 4) * 16;
#pragma unroll
    for (int i = 0; i < 2 * S::M_TILES; i++) o.at[i] = min(t.m0 + lane / 4 + 8 * i, t.end - 1) * (2 * nk);
    return o;
}

/* Sums of squares of the tile's rows: THREADS / ROWS lanes per row, two words at a time; the first few are loaded early. */
template <typename S> struct squares {
    enum { LANES = THREADS / S::ROWS, EARLY = 6 / S::M_TILES };
    const float *from; /* of the lane */
    int count;         /* remaining in the row */
    uint2 early[EARLY];
};
template <typename S> static __device__ __forceinline__ squares<S> squares_of(const linear &k, const tile &t)
{
    enum { LANES = squares<S>::LANES };
    const int row = (int)threadIdx.x / LANES, lane = (int)threadIdx.x % LANES;
    squares<S> s;
    s.from = k.squares + min(t.m0 + row, t.end - 1) * (int)k.nsquares + 2 * lane, s.count = (int)k.nsquares - 2 * lane;
#pragma unroll
    for (int i = 0; i < squares<S>::EARLY; i++)
        s.early[i] = i * 2 * LANES < s.count ? kr_mailbox_read2(s.from + i * 2 * LANES) : make_uint2(0, 0);
    return s;
}

/* q = 1/RMS of the rows. */
template <typename S> static __device__ __forceinline__ void scale_rows(const linear &k, squares<S> s)
{
    enum { LANES = squares<S>::LANES, EARLY = squares<S>::EARLY };
    float sum = 0;
#pragma unroll
    for (int i = 0; i < EARLY; i++) {
        while (max(s.early[i].x, s.early[i].y) == KR_SENTINEL) s.early[i] = kr_mailbox_read2(s.from + i * 2 * LANES);
        sum += __uint_as_float(s.early[i].x) + __uint_as_float(s.early[i].y);
    }
#pragma unroll 1
    for (int i = EARLY * 2 * LANES; i < s.count; i += 2 * LANES) {
        uint2 two = kr_mailbox_read2(s.from + i);
        while (max(two.x, two.y) == KR_SENTINEL) two = kr_mailbox_read2(s.from + i);
        sum += __uint_as_float(two.x) + __uint_as_float(two.y);
    }
#pragma unroll
    for (int offset = LANES / 2; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    if (threadIdx.x % LANES == 0)
        ctl().q[threadIdx.x / LANES] = k.has_norm ? kr_rsqrt_newton(sum * __frcp_rn((float)(int)k.nk) + k.eps) : 1.0f;
}

/* Operands x of a stage from step `first` on; polled until none is the sentinel. */
template <typename S> struct x_stage {
    uint4 x[S::STEPS][2 * S::M_TILES];
};
template <typename S> static __device__ __forceinline__ void load_x(const operands<S> &o, int first, x_stage<S> *to)
{
#pragma unroll
    for (int d = 0; d < S::STEPS; d++)
#pragma unroll
        for (int i = 0; i < 2 * S::M_TILES; i++)
            to->x[d][i] = kr_mailbox_read4(o.x + o.at[i] + (first + d) * (STEP * 2));
}
template <typename S> static __device__ __forceinline__ bool is_sentinel(const x_stage<S> &s)
{
    uint32_t seen = 0;
#pragma unroll
    for (int d = 0; d < S::STEPS; d++)
#pragma unroll
        for (int i = 0; i < 2 * S::M_TILES; i++) seen = kr_sentinel_max(s.x[d][i], seen);
    return __any_sync(0xffffffffu, seen == KR_SENTINEL);
}

/* All products of the tile; its first stage has been requested. phase: of the stage's mbarrier. */
template <typename S>
static __device__ __forceinline__ void multiply(const linear &k, const tile &t, const operands<S> &o, uint32_t *phase,
                                                float sum[S::M_TILES][S::N_TILES][4])
{
    const int lane = threadIdx.x % 32, steps = (int)k.nk / STEP;
    const char *weights = stage() + lane / 4 * S::ROW_BYTES + ((int)threadIdx.x / 32 * 4 + lane % 4) * 16;
    const squares<S> of_rows = squares_of<S>(k, t);
#pragma unroll 1
    for (int first = 0;;) {
        x_stage<S> own;
        load_x<S>(o, first, &own);
        while (is_sentinel<S>(own)) load_x<S>(o, first, &own);
        kr_mbarrier_wait(kr_shared_address(&ctl().staged), (*phase)++);
#pragma unroll
        for (int d = 0; d < S::STEPS; d++)
#pragma unroll
            for (int e = 0; e < S::N_TILES; e++) {
                const uint4 w = *(const uint4 *)(const void *)(weights + 8 * e * S::ROW_BYTES + d * STEP * 2);
                kr_multiply_eight<S::M_TILES>(own.x[d], w, &sum[0][e], S::N_TILES);
            }
        if (first == 0) scale_rows<S>(k, of_rows);
        kr_copy_wait<0>();
        sync_gemm(); /* the stage has been consumed, and columns have arrived */
        if ((first += S::STEPS) >= steps) return;
        load_stage<S>(k, t.n0, first);
    }
}

/* The thread's outputs: sums of the warps, in order, times 1/RMS. */
template <typename S>
static __device__ __forceinline__ void reduce_warps(const float sum[S::M_TILES][S::N_TILES][4],
                                                    float total[S::PER_THREAD])
{
    const int lane = threadIdx.x % 32, row = (int)threadIdx.x / S::COLUMNS;
    float *sums = (float *)(void *)stage();
    float *to = sums + (int)threadIdx.x / 32 * S::WARP_SUMS + lane / 4 * S::SUM_STRIDE + lane % 4 * 2;
    const float *from = sums + row * S::SUM_STRIDE + threadIdx.x % S::COLUMNS;
#pragma unroll
    for (int t = 0; t < S::M_TILES; t++)
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int e = 0; e < S::N_TILES; e++)
                *(float2 *)(void *)(to + (16 * t + 8 * i) * S::SUM_STRIDE + 8 * e) =
                    make_float2(sum[t][e][2 * i], sum[t][e][2 * i + 1]);
    sync_gemm();
#pragma unroll
    for (int i = 0; i < S::PER_THREAD; i++) {
        total[i] = 0;
#pragma unroll
        for (int w = 0; w < WARPS; w++) total[i] += from[w * S::WARP_SUMS + i * S::ROW_STEP * S::SUM_STRIDE];
        total[i] *= ctl().q[row + i * S::ROW_STEP];
    }
}

/* Prefetches the weights of the CTA's tile to L2, while it would otherwise be waiting. */
template <typename S> static __device__ __forceinline__ void prefetch_weights(const linear &k, const tile &t)
{
    if (t.at >= t.count || t.at % t.of_rows != 0) return;
    kr_bulk_prefetch_l2((const uint16_t *)k.w + (int64_t)t.n0 * (int)k.nk,
                        (uint32_t)(kr_least(S::COLUMNS, k.nn - t.n0) * k.nk * 2));
}

/* ---- in_proj ---- */

/* Per-column parameters, in shared memory. */
typedef struct __align__(16) column
{
    uint4 taps; /* raw bits */
    float add, conv_bias, unused[2];
}
column;
static_assert(sizeof(column) * 32 <= COLUMNS_BYTES, "the columns fit");

static __device__ __forceinline__ column *columns(void)
{
    return (column *)(void *)(stage() - WINDOWS_BYTES - COLUMNS_BYTES);
}

/* [rows columns], one per thread. */
static __device__ __forceinline__ float4 *windows(void)
{
    return (float4 *)(void *)(stage() - WINDOWS_BYTES) + threadIdx.x;
}

static __device__ __forceinline__ float4 *window_of(const linear &k, int m, int c)
{
    return (float4 *)(void *)k.window + ((int64_t)m * (int)k.nc + c);
}

static __device__ __forceinline__ bool is_convolved(const linear &k, int n)
{
    return n >= (int)k.conv_from && n < (int)(k.conv_from + k.nc);
}

static __device__ __forceinline__ void copy_or_zero(float *to, const float *from, int at)
{
    if (from) kr_copy<4>(kr_shared_address(to), from + at);
    else *to = 0;
}

/* Starts cp.async of columns and conv windows of the tile. */
template <typename S> static __device__ __forceinline__ void load_columns(const linear &k, const tile &t)
{
    const int n = t.n0 + (int)threadIdx.x % S::COLUMNS, m = t.m0 + (int)threadIdx.x / S::COLUMNS;
    const int c = n - (int)k.conv_from;
    if (threadIdx.x < S::COLUMNS && n < (int)k.nn) {
        column *to = columns() + threadIdx.x;
        copy_or_zero(&to->add, k.bias, n);
        if (is_convolved(k, n)) {
            copy_or_zero(&to->conv_bias, k.conv_bias, c);
            if (k.taps_dtype != KR_DTYPE_F32) kr_copy<8>(kr_shared_address(&to->taps), (const uint2 *)k.taps + c);
            else kr_copy<16>(kr_shared_address(&to->taps), (const uint4 *)k.taps + c);
        }
    }
    if (is_convolved(k, n))
#pragma unroll
        for (int i = 0; i < S::PER_THREAD; i++)
            kr_copy<16>(kr_shared_address(windows() + i * THREADS),
                        window_of(k, min(m + i * S::ROW_STEP, t.end - 1), c));
    kr_copy_commit();
}

/* Stores y, and the windows with the token appended. */
template <typename S>
static __device__ __forceinline__ void store_column(const linear &k, int parity, const tile &t, float v[S::PER_THREAD])
{
    const int n = t.n0 + (int)threadIdx.x % S::COLUMNS, m = t.m0 + (int)threadIdx.x / S::COLUMNS;
    if (n >= (int)k.nn) return;
    const column own = columns()[threadIdx.x % S::COLUMNS];
    const int at = m * (int)k.y_m + n;
#pragma unroll
    for (int i = 0; i < S::PER_THREAD; i++) v[i] += own.add;
    if (is_convolved(k, n)) {
        float4 *window = window_of(k, m, n - (int)k.conv_from);
        float tap[KR_MOST_TAPS];
#pragma unroll
        for (int i = 0; i < KR_MOST_TAPS; i++) tap[i] = kr_element<float>(&own.taps, i, k.taps_dtype);
#pragma unroll
        for (int i = 0; i < S::PER_THREAD; i++) {
            const float4 past = windows()[i * THREADS];
            const float4 now = make_float4(past.y, past.z, past.w, v[i]);
            if (m + i * S::ROW_STEP < t.end) window[i * S::ROW_STEP * (int)k.nc] = now;
            v[i] = own.conv_bias + now.x * tap[0];
            v[i] += now.y * tap[1];
            v[i] += now.z * tap[2];
            v[i] = kr_silu(v[i] + now.w * tap[3]);
        }
    }
#pragma unroll
    for (int i = 0; i < S::PER_THREAD; i++)
        if (m + i * S::ROW_STEP < t.end) {
            kr_mailbox_put(ctl().to[parity].projected + at + i * S::ROW_STEP * (int)k.y_m, kr_mailbox_word(v[i]));
            kr_mailbox_clear(ctl().to[1 - parity].projected + at + i * S::ROW_STEP * (int)k.y_m);
        }
}

/* in_proj and out_proj are not inlined, so that registers of one are not live across the other. Their jobs are in shared
 * memory. Each returns the phase of the next stage. */
template <typename S> static __device__ __noinline__ uint32_t in_proj(int part, uint32_t phase)
{
    const int l = part / BATCH_HALVES, half = part % BATCH_HALVES;
    const linear &k = ctl().in_proj[l % PARITIES];
    if (half == 0 && l > 0) kr_mbarrier_wait(kr_shared_address(&ctl().jobs_ready[1]), (uint32_t)l - 1);
    const uint64_t seen = peek_counter(OUT_PROJ_DONE + half, threadIdx.x == 0);
    tile t = ctl().in_proj_tile[half];
    bool waits = true;
#pragma unroll 1
    for (; t.at < t.count; t = tile_of<S>(k, half, t.at + gridDim.x)) {
        load_stage<S>(k, t.n0, 0);
        load_columns<S>(k, t);
        const operands<S> o = operands_of<S>(k, t);
        if (waits) wait_for_ctas(OUT_PROJ_DONE + half, seen, threadIdx.x == 0, sync_gemm);
        waits = false;
        float sum[S::M_TILES][S::N_TILES][4] = {}, total[S::PER_THREAD];
        multiply<S>(k, t, o, &phase, sum);
        if (threadIdx.x == 0 && t.at + (int)gridDim.x >= t.count) arrive(IN_PROJ_DONE + half);
        reduce_warps<S>(sum, total);
        store_column<S>(k, l % PARITIES, t, total);
        kr_async_proxy_fence();
        sync_gemm(); /* sums have been read */
    }
    if (waits) {
        wait_for_ctas(OUT_PROJ_DONE + half, seen, threadIdx.x == 0, sync_gemm);
        if (threadIdx.x == 0) arrive(IN_PROJ_DONE + half);
    }
    return phase;
}

/* ---- out_proj ---- */

/* Input of the first layer, by the threads that will add to it. */
template <typename S> static __device__ __forceinline__ void init_stream(const stack &s, int half)
{
    const linear &first = s.layers[0].in_proj, &k = s.layers[0].out_proj;
    const int nk = (int)first.nk;
#pragma unroll 1
    for (tile t = ctl().out_proj_tile[half]; t.at < t.count; t = tile_of<S>(k, half, t.at + gridDim.x)) {
        const int m = t.m0 + (int)threadIdx.x / S::COLUMNS, n = t.n0 + (int)threadIdx.x % S::COLUMNS;
        const bool in_range = m < t.end;
        store_stream(s.to[0], m * nk + n, in_range, in_range ? initial_stream(s, m, n, nk) : 0.0f, first.gain[n]);
    }
}

template <typename S> static __device__ __noinline__ uint32_t out_proj(int part, uint32_t phase)
{
    const int l = part / BATCH_HALVES, half = part % BATCH_HALVES; /* l: the layer after this one */
    const linear &k = ctl().out_proj[(l - 1) % PARITIES];
    const bool is_last = l == ctl().count;
    if (half == 0) kr_mbarrier_wait(kr_shared_address(&ctl().jobs_ready[0]), (uint32_t)l - 1);
    const uint64_t seen = peek_counter(CORE_DONE + half, threadIdx.x == 0);
    tile t = ctl().out_proj_tile[half];
    bool waits = true;
#pragma unroll 1
    for (; t.at < t.count; t = tile_of<S>(k, half, t.at + gridDim.x)) {
        const int m = t.m0 + (int)threadIdx.x / S::COLUMNS, n = t.n0 + (int)threadIdx.x % S::COLUMNS;
        load_stage<S>(k, t.n0, 0);
        float base = k.base[(int64_t)min(m, t.end - 1) * (int)k.base_m + n];
        if (k.bias) base += k.bias[n];
        const float gain = is_last ? 0.0f : k.gain[n];
        const operands<S> o = operands_of<S>(k, t);
        if (waits) wait_for_ctas(CORE_DONE + half, seen, threadIdx.x == 0, sync_gemm);
        waits = false;
        float sum[S::M_TILES][S::N_TILES][4] = {}, total[S::PER_THREAD];
        multiply<S>(k, t, o, &phase, sum);
        if (threadIdx.x == 0 && !is_last && t.at + (int)gridDim.x >= t.count) arrive(OUT_PROJ_DONE + half);
        reduce_warps<S>(sum, total);
        const float y = total[0] + base;
        if (m < t.end) k.y[(int64_t)m * (int)k.y_m + n] = y;
        if (!is_last) {
            const int parity = l % PARITIES;
            store_stream(ctl().to[parity], m * (int)k.nn + n, m < t.end, y, gain);
            clear_stream(ctl().to[1 - parity], m * (int)k.nn + n, m < t.end);
        }
        kr_async_proxy_fence();
        sync_gemm(); /* sums have been read */
    }
    if (waits) {
        wait_for_ctas(CORE_DONE + half, seen, threadIdx.x == 0, sync_gemm);
        if (threadIdx.x == 0 && !is_last) arrive(OUT_PROJ_DONE + half);
    }
    return phase;
}

#endif
