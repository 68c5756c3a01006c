/* token_layers_tile.cuh - a tile of a product of token_layers_cuda.cu, by eight warps: its weights through shared memory, its
 * operands, which are words that other blocks hand it, from memory, and the sums. */
#ifndef KR_KERNELS_CUDA_TOKEN_LAYERS_TILE_CUH
#define KR_KERNELS_CUDA_TOKEN_LAYERS_TILE_CUH

#include "kernels/cuda/token_layers_parts.cuh"

/* ---- tiles ---- */

/* Rows of sums begin in different banks. (Rows of weights do not, which one copy of them all is worth.) */
template <int TILES_, int EIGHTS_, int STEPS_> struct shape {
    enum {
        TILES = TILES_, /* of 16 rows */
        EIGHTS = EIGHTS_,
        STEPS = STEPS_, /* of a stage of weights */
        ROWS = 16 * TILES,
        COLUMNS = 8 * EIGHTS,
        LINE = STEPS * STEP * 2,
        STAGE = COLUMNS * LINE,
        SUM_LINE = COLUMNS + 8,
        WARP_SUMS = ROWS * SUM_LINE,
        SUMS = WARPS * WARP_SUMS * 4,    /* bytes */
        EACH = ROWS * COLUMNS / THREADS, /* outputs of a thread: of one column, */
        APART = ROWS / EACH              /* so many rows apart */
    };
};
template <int STEPS> struct shapes {
    typedef shape<2, 4, STEPS> entering;
    typedef shape<1, 2, 2 * STEPS> leaving;
    enum {
        STAGES = (int)entering::STAGE > (int)leaving::STAGE ? (int)entering::STAGE : (int)leaving::STAGE,
        SUMS = (int)entering::SUMS > (int)leaving::SUMS ? (int)entering::SUMS : (int)leaving::SUMS,
        STAGE = STAGES > SUMS ? STAGES : SUMS /* sums take the place of weights */
    };
};

/* ---- a product ---- */

/* A tile of a half's rows, from `first` up to `end`: blocks with the same outputs are neighbours. */
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

/* Asks for the weights of the stage from step `first` on: rows lie together if the stage has all of them, and are copied one by
 * one, by all warps, if not. What was read and written where they go has been handed over. */
template <typename S> static __device__ __forceinline__ void ask_for_stage(const linear &k, int n0, int first)
{
    const uint32_t latch = kr_shared_address(&ctl().staged);
    const uint16_t *from = (const uint16_t *)k.w + (int64_t)n0 * (int)k.nk;
    const int lane = (int)threadIdx.x % 32, row = (int)threadIdx.x / 32 + lane * WARPS;
    if (k.nk == S::STEPS * STEP) {
        const uint32_t bytes = (uint32_t)min((int)S::COLUMNS, (int)k.nn - n0) * S::LINE;
        if (threadIdx.x == 0) kr_bulk_expect(latch, bytes), kr_bulk_read(stage(), from, bytes, latch);
    } else {
        if (threadIdx.x == 0) kr_bulk_expect(latch, S::STAGE);
        if (row < S::COLUMNS)
            kr_bulk_read(stage() + row * S::LINE, from + min(row, (int)k.nn - 1 - n0) * (int)k.nk + first * STEP,
                         S::LINE, latch);
    }
}

/* Where the lane's eight neighbours of its rows lie; past the last row it is the last. */
template <typename S> struct operands {
    const char *x;
    int at[2 * S::TILES];
};
template <typename S> static __device__ __forceinline__ operands<S> operands_of(const linear &k, const tile &t)
{
    operands<S> o;
    const int lane = threadIdx.x % 32, nk = (int)k.nk;
    o.x = (const char *)k.x + ((int)threadIdx.x / 32 * 4 + lane % 4) * 16;
#pragma unroll
    for (int i = 0; i < 2 * S::TILES; i++) o.at[i] = min(t.m0 + lane / 4 + 8 * i, t.end - 1) * (2 * nk);
    return o;
}

/* Squares of the tile's rows: THREADS / ROWS lanes have those of a row, two words at a time, of which the first few are on
 * their way early. */
template <typename S> struct squares {
    enum { LANES = THREADS / S::ROWS, EARLY = 6 / S::TILES };
    const float *from; /* the lane's */
    int count;         /* of the row, from there on */
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
        s.early[i] = i * 2 * LANES < s.count ? kr_read_two_words(s.from + i * 2 * LANES) : make_uint2(0, 0);
    return s;
}

/* 1/RMS of the rows, to q. */
template <typename S> static __device__ __forceinline__ void scale_rows(const linear &k, squares<S> s)
{
    enum { LANES = squares<S>::LANES, EARLY = squares<S>::EARLY };
    float sum = 0;
#pragma unroll
    for (int i = 0; i < EARLY; i++) {
        while (max(s.early[i].x, s.early[i].y) == KR_ABSENT) s.early[i] = kr_read_two_words(s.from + i * 2 * LANES);
        sum += __uint_as_float(s.early[i].x) + __uint_as_float(s.early[i].y);
    }
#pragma unroll 1
    for (int i = EARLY * 2 * LANES; i < s.count; i += 2 * LANES) {
        uint2 two = kr_read_two_words(s.from + i);
        while (max(two.x, two.y) == KR_ABSENT) two = kr_read_two_words(s.from + i);
        sum += __uint_as_float(two.x) + __uint_as_float(two.y);
    }
#pragma unroll
    for (int away = LANES / 2; away > 0; away /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, away);
    if (threadIdx.x % LANES == 0)
        ctl().q[threadIdx.x / LANES] = k.has_norm ? kr_inverse_root(sum * __frcp_rn((float)(int)k.nk) + k.eps) : 1.0f;
}

/* The operands of a stage from step `first` on, when all are there. */
template <typename S> struct stage_of_x {
    uint4 x[S::STEPS][2 * S::TILES];
};
template <typename S> static __device__ __forceinline__ void read_x(const operands<S> &o, int first, stage_of_x<S> *to)
{
#pragma unroll
    for (int d = 0; d < S::STEPS; d++)
#pragma unroll
        for (int i = 0; i < 2 * S::TILES; i++)
            to->x[d][i] = kr_read_four_words(o.x + o.at[i] + (first + d) * (STEP * 2));
}
template <typename S> static __device__ __forceinline__ bool is_absent(const stage_of_x<S> &s)
{
    uint32_t most = 0;
#pragma unroll
    for (int d = 0; d < S::STEPS; d++)
#pragma unroll
        for (int i = 0; i < 2 * S::TILES; i++) most = kr_absent_of(s.x[d][i], most);
    return __any_sync(0xffffffffu, most == KR_ABSENT);
}

/* All products of the tile, whose first stage has been asked for. turn: of the stage. */
template <typename S>
static __device__ __forceinline__ void multiply(const linear &k, const tile &t, const operands<S> &o, uint32_t *turn,
                                                float sum[S::TILES][S::EIGHTS][4])
{
    const int lane = threadIdx.x % 32, steps = (int)k.nk / STEP;
    const char *weights = stage() + lane / 4 * S::LINE + ((int)threadIdx.x / 32 * 4 + lane % 4) * 16;
    const squares<S> of_rows = squares_of<S>(k, t);
#pragma unroll 1
    for (int first = 0;;) {
        stage_of_x<S> own;
        read_x<S>(o, first, &own);
        while (is_absent<S>(own)) read_x<S>(o, first, &own);
        kr_latch_wait(kr_shared_address(&ctl().staged), (*turn)++);
#pragma unroll
        for (int d = 0; d < S::STEPS; d++)
#pragma unroll
            for (int e = 0; e < S::EIGHTS; e++) {
                const uint4 w = *(const uint4 *)(const void *)(weights + 8 * e * S::LINE + d * STEP * 2);
                kr_multiply_eight<S::TILES>(own.x[d], w, &sum[0][e], S::EIGHTS);
            }
        if (first == 0) scale_rows<S>(k, of_rows);
        kr_copy_wait<0>();
        sync_products(); /* the stage has been read, and columns are there */
        if ((first += S::STEPS) >= steps) return;
        ask_for_stage<S>(k, t.n0, first);
    }
}

/* The thread's outputs: sums of the warps, in order, scaled. */
template <typename S>
static __device__ __forceinline__ void add_up(const float sum[S::TILES][S::EIGHTS][4], float whole[S::EACH])
{
    const int lane = threadIdx.x % 32, row = (int)threadIdx.x / S::COLUMNS;
    float *sums = (float *)(void *)stage();
    float *to = sums + (int)threadIdx.x / 32 * S::WARP_SUMS + lane / 4 * S::SUM_LINE + lane % 4 * 2;
    const float *from = sums + row * S::SUM_LINE + threadIdx.x % S::COLUMNS;
#pragma unroll
    for (int t = 0; t < S::TILES; t++)
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int e = 0; e < S::EIGHTS; e++)
                *(float2 *)(void *)(to + (16 * t + 8 * i) * S::SUM_LINE + 8 * e) =
                    make_float2(sum[t][e][2 * i], sum[t][e][2 * i + 1]);
    sync_products();
#pragma unroll
    for (int i = 0; i < S::EACH; i++) {
        whole[i] = 0;
#pragma unroll
        for (int w = 0; w < WARPS; w++) whole[i] += from[w * S::WARP_SUMS + i * S::APART * S::SUM_LINE];
        whole[i] *= ctl().q[row + i * S::APART];
    }
}

#endif
