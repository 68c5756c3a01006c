/* token_rows_cuda.cu - y = base + norm(x) W^T + bias of some rows on the matrix units, in one kernel.
 *
 *   x [m k] of f32, or of bf16 with the squares of its rows given; w [n k] of bf16; formulas: kernels/token_args.h
 *
 * A block has up to 16 TILES rows and 8 EIGHTS outputs. Its warps share k: step s of warp w is the 32 elements from
 * 32 (8 s + w) on, of which a lane has 8 neighbours of some rows and of some outputs, read as they lie. Products may have
 * their k in any order as long as both operands have it: 8 neighbours of each of four lanes are two products of 16.
 * Weights, and what came of earlier tokens, are on their way before the kernel that makes x has ended: all of a block's
 * weights to shared memory, if they are not too many, or DEPTH steps of them to registers. 1/RMS scales the sums, since it
 * is one for a row. Warps' sums are added in order: the order of all sums depends on k alone.
 */
#include "kernels/cuda/ring.cuh"
#include "kernels/cuda/token_rows.cuh"

enum { WARPS = 8, THREADS = 32 * WARPS, STEP = 32 * WARPS, MOST_ROWS = 256 };

/* Rows of a block's sums in shared memory lie so far apart that eight of them begin in different banks. */
template <int EIGHTS> struct line_of {
    enum { FLOATS = 8 * EIGHTS + 8 };
};

/* Where a lane's operands lie, from its first k on: rows lane / 4 + 8 i of x, and output n0 + lane / 4 of w, the next of
 * which is 8 on. Past the last row or output it is the last. */
template <int TILES> struct places {
    const char *x[2 * TILES];
    const uint16_t *w;
    int64_t n, last; /* its output, and the last one */
    int64_t nk;
    int left; /* elements of k that there are from the lane's first on */
};

template <int TILES, bool HALVES>
static __device__ __forceinline__ places<TILES> places_of(const kr_linear_job<float> &k, int64_t m0, int64_t n0)
{
    places<TILES> p;
    const int lane = threadIdx.x % 32, at = (threadIdx.x / 32 * 4 + lane % 4) * 8;
#pragma unroll
    for (int i = 0; i < 2 * TILES; i++) {
        const int64_t m = kr_least(m0 + lane / 4 + 8 * i, k.nm - 1);
        p.x[i] = (const char *)k.x + (m * k.x_m + at) * (HALVES ? 2 : 4);
    }
    p.w = (const uint16_t *)k.w + at;
    p.n = n0 + lane / 4, p.last = k.nn - 1, p.nk = k.nk;
    p.left = (int)k.nk - at;
    return p;
}

/* Weights of DEPTH steps from `first` on. WHOLE: all elements of all steps are there. */
template <int TILES, int EIGHTS, int DEPTH, bool WHOLE>
static __device__ __forceinline__ void read_weights(const places<TILES> &p, int first, uint4 w[DEPTH][EIGHTS])
{
#pragma unroll
    for (int e = 0; e < EIGHTS; e++) {
        const uint16_t *from = p.w + kr_least(p.n + 8 * e, p.last) * p.nk + first * STEP;
#pragma unroll
        for (int d = 0; d < DEPTH; d++)
            w[d][e] = WHOLE || (first + d) * STEP < p.left ? kr_read_once(from + d * STEP) : make_uint4(0, 0, 0, 0);
    }
}

/* Eight neighbours of a row, as they lie. */
template <bool HALVES> struct eight {
    float4 v[HALVES ? 1 : 2];
};

template <bool HALVES> static __device__ __forceinline__ eight<HALVES> read_eight(const char *from, bool is_there)
{
    eight<HALVES> x = {};
    if (!is_there) return x;
    x.v[0] = *(const float4 *)(const void *)from;
    if (!HALVES) x.v[HALVES ? 0 : 1] = *(const float4 *)(const void *)(from + 16);
    return x;
}

/* Times gain, in bf16; *squares += those of x. */
template <bool HALVES>
static __device__ __forceinline__ uint4 operand_of(const eight<HALVES> &x, const eight<false> &gain, float *squares)
{
    if (HALVES) {
        uint4 bits;
        memcpy(&bits, &x.v[0], sizeof bits);
        return bits;
    }
    float v[8], g[8];
    memcpy(v, x.v, sizeof(float4) * (HALVES ? 1 : 2));
    memcpy(g, gain.v, sizeof g);
#pragma unroll
    for (int i = 0; i < 8; i++) *squares += v[i] * v[i];
    return make_uint4(kr_pair_of(v[0] * g[0], v[1] * g[1]), kr_pair_of(v[2] * g[2], v[3] * g[3]),
                      kr_pair_of(v[4] * g[4], v[5] * g[5]), kr_pair_of(v[6] * g[6], v[7] * g[7]));
}

/* Operands of AHEAD steps from `first` on, whose rows are on their way together: rows lane / 4 and 8 on of each tile. */
template <int TILES, int AHEAD, bool HALVES, bool WHOLE>
static __device__ __forceinline__ void read_rows(const places<TILES> &p, const char *gains, int first,
                                                 uint4 x[AHEAD][2 * TILES], float squares[TILES][2])
{
    enum { BYTES = STEP * (HALVES ? 2 : 4) };
    eight<HALVES> raw[AHEAD][2 * TILES];
#pragma unroll
    for (int d = 0; d < AHEAD; d++)
#pragma unroll
        for (int i = 0; i < 2 * TILES; i++)
            raw[d][i] = read_eight<HALVES>(p.x[i] + (first + d) * BYTES, WHOLE || (first + d) * STEP < p.left);
#pragma unroll
    for (int d = 0; d < AHEAD; d++) {
        eight<false> gain = {};
        if (!HALVES) gain = read_eight<false>(gains + (first + d) * BYTES, WHOLE || (first + d) * STEP < p.left);
#pragma unroll
        for (int i = 0; i < 2 * TILES; i++) x[d][i] = operand_of<HALVES>(raw[d][i], gain, &squares[i / 2][i % 2]);
    }
}

/* Products of AHEAD steps from `first` on. */
template <int TILES, int EIGHTS, int AHEAD, bool HALVES, bool WHOLE>
static __device__ __forceinline__ void multiply(const places<TILES> &p, const char *gains, int first,
                                                const uint4 w[AHEAD][EIGHTS], float sum[TILES][EIGHTS][4],
                                                float squares[TILES][2])
{
    uint4 x[AHEAD][2 * TILES];
    read_rows<TILES, AHEAD, HALVES, WHOLE>(p, gains, first, x, squares);
#pragma unroll
    for (int d = 0; d < AHEAD; d++)
#pragma unroll
        for (int e = 0; e < EIGHTS; e++) kr_multiply_eight<TILES>(x[d], w[d][e], &sum[0][e], EIGHTS);
}

/* ---- 1/RMS ---- */

/* The squares of the block's rows that the job has: eight lanes add up a row, then by halves. */
template <int TILES>
static __device__ __forceinline__ void add_squares(const kr_linear_job<float> &k, int64_t m0, float *to)
{
    enum { LANES = 8 };
    for (int row = threadIdx.x / LANES; row < 16 * TILES; row += THREADS / LANES) {
        const float *from = k.squares + kr_least(m0 + row, k.nm - 1) * k.nsquares;
        float sum = 0;
#pragma unroll 8
        for (int i = threadIdx.x % LANES; i < (int)k.nsquares; i += LANES) sum += from[i];
#pragma unroll
        for (int away = LANES / 2; away > 0; away /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, away);
        if (threadIdx.x % LANES == 0) to[row] = sum;
    }
}

/* q of the block's rows, out of the warps' squares [WARPS][16 TILES] or of those that the job had, which are in q. */
template <int TILES>
static __device__ __forceinline__ void scale_rows(const kr_linear_job<float> &k, const float *parts, float *q)
{
    const int row = threadIdx.x;
    if (row >= 16 * TILES) return;
    float squares = 0;
    if (k.squares) squares = q[row];
    else
#pragma unroll
        for (int w = 0; w < WARPS; w++) squares += parts[w * 16 * TILES + row];
    q[row] = k.has_norm ? 1 / kr_root(squares / (float)k.nk + k.eps) : 1.0f;
}

/* The warp's sums to shared memory: room [16 TILES][line], parts [WARPS][16 TILES]. */
template <int TILES, int EIGHTS>
static __device__ __forceinline__ void lay_down(const float sum[TILES][EIGHTS][4], float squares[TILES][2], float *room,
                                                float *parts)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int t = 0; t < TILES; t++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int row = 16 * t + 8 * i + lane / 4;
            float s = squares[t][i];
            s += __shfl_xor_sync(0xffffffffu, s, 1);
            s += __shfl_xor_sync(0xffffffffu, s, 2);
            if (lane % 4 == 0) parts[warp * 16 * TILES + row] = s;
            float *to = room + row * line_of<EIGHTS>::FLOATS + lane % 4 * 2;
#pragma unroll
            for (int e = 0; e < EIGHTS; e++)
                *(float2 *)(void *)(to + 8 * e) = make_float2(sum[t][e][2 * i], sum[t][e][2 * i + 1]);
        }
}

/* ---- what follows a sum ----
 *
 * A thread has EACH outputs of one column n, APART rows apart, all of one kind: plain, convolved in the usual way (four taps,
 * windows that allow steps of 16 bytes), or convolved in any other.
 */
enum kind { PLAIN, QUICK, OTHER };

template <int EACH> struct column {
    float add, base[EACH];
    uint4 taps;   /* as they lie */
    float4 *past; /* windows, in shared memory, THREADS apart: no other thread's */
};

static __device__ __forceinline__ float4 *window_of(const kr_linear_job<float> &k, int64_t m, int64_t n)
{
    return (float4 *)(void *)(k.window + (m * k.nc + n - k.conv_from) * KR_MOST_TAPS);
}

/* The taps of channel c. They are made numbers when they are used: nothing waits for them before. */
static __device__ __forceinline__ uint4 read_taps(const kr_linear_job<float> &k, int64_t c)
{
    if (!k.taps_half) return ((const uint4 *)k.taps)[c];
    const uint2 halves = ((const uint2 *)k.taps)[c];
    return make_uint4(halves.x, halves.y, 0, 0);
}

/* Fetched before the sums are known; past the last row it is the last's. room: for windows. */
template <int EACH, int APART>
static __device__ __forceinline__ column<EACH> fetch_column(const kr_linear_job<float> &k, int64_t m, int64_t n,
                                                            kind is, float4 *room)
{
    column<EACH> own = {};
    own.past = room + threadIdx.x;
    own.add = k.bias ? k.bias[n] : 0.0f;
    if (is == QUICK) {
        own.taps = read_taps(k, n - k.conv_from);
#pragma unroll
        for (int i = 0; i < EACH; i++)
            kr_copy<16>(kr_shared_address(own.past + i * THREADS), window_of(k, kr_least(m + i * APART, k.nm - 1), n));
        kr_copy_commit();
    } else if (k.base) {
#pragma unroll
        for (int i = 0; i < EACH; i++) own.base[i] = k.base[kr_least(m + i * APART, k.nm - 1) * k.base_m + n];
    }
    return own;
}

/* Any convolution; the sum has the order of the quick one. */
static __device__ __noinline__ float convolve(const kr_linear_job<float> &k, int64_t m, int64_t n, float v)
{
    const int64_t c = n - k.conv_from;
    return kr_convolve_long(k, (m * k.nc + c) * k.nt, c, k.conv_bias ? k.conv_bias[c] : 0.0f, v);
}

template <int EACH, int APART>
static __device__ __forceinline__ void put_column(const kr_linear_job<float> &k, int64_t m, int64_t n, float v[EACH],
                                                  const column<EACH> &own, kind is)
{
    const int left = (int)kr_least(k.nm - m, EACH * APART); /* rows that there are */
    if (is == QUICK) {
        const float conv_bias = k.conv_bias ? k.conv_bias[n - k.conv_from] : 0.0f;
        float tap[KR_MOST_TAPS];
#pragma unroll
        for (int t = 0; t < KR_MOST_TAPS; t++) tap[t] = kr_element<float>(&own.taps, t, k.taps_half);
        kr_copy_wait<0>();
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const float4 past = own.past[i * THREADS];
            const float4 now = make_float4(past.y, past.z, past.w, v[i] + own.add);
            if (i * APART < left) *window_of(k, m + i * APART, n) = now;
            v[i] = conv_bias + now.x * tap[0];
            v[i] += now.y * tap[1];
            v[i] += now.z * tap[2];
            v[i] = kr_silu(v[i] + now.w * tap[3]);
        }
    } else {
#pragma unroll
        for (int i = 0; i < EACH; i++) v[i] += own.add + own.base[i];
    }
#pragma unroll 1
    for (int i = 0; is == OTHER && i * APART < left; i++) {
        const int64_t at = (m + i * APART) * k.y_m + n;
        float y = v[0]; /* v moves on, so that its places are known */
#pragma unroll
        for (int e = 0; e + 1 < EACH; e++) v[e] = v[e + 1];
        k.y[at] = kr_silu(convolve(k, m + i * APART, n, y));
    }
#pragma unroll
    for (int i = 0; i < EACH; i++)
        if (is != OTHER && i * APART < left) k.y[(m + i * APART) * k.y_m + n] = v[i];
}

/* All steps of the block's products; the first DEPTH steps of the weights are there. */
template <int TILES, int EIGHTS, int DEPTH, int AHEAD, bool HALVES, bool WHOLE>
static __device__ __forceinline__ void multiply_all(const kr_linear_job<float> &k, const places<TILES> &p,
                                                    uint4 w[DEPTH][EIGHTS], float sum[TILES][EIGHTS][4],
                                                    float squares[TILES][2])
{
    const char *gains = (const char *)k.gain + (threadIdx.x / 32 * 4 + threadIdx.x % 4) * 8 * sizeof(float);
    const int steps = (int)kr_ceil_div(k.nk, STEP);
    int first = 0;
    for (; first + DEPTH <= steps; first += DEPTH) {
        if (first > 0) read_weights<TILES, EIGHTS, DEPTH, WHOLE>(p, first, w);
#pragma unroll
        for (int d = 0; d < DEPTH; d += AHEAD)
            multiply<TILES, EIGHTS, AHEAD, HALVES, WHOLE>(p, gains, first + d, w + d, sum, squares);
    }
    for (; DEPTH > 1 && first < steps; first++) {
        read_weights<TILES, EIGHTS, 1, WHOLE>(p, first, w);
        multiply<TILES, EIGHTS, 1, HALVES, WHOLE>(p, gains, first, w, sum, squares);
    }
}

/* What a thread has of a block's outputs, fetched before the kernel that makes x has ended: what came of earlier tokens, and
 * the residual, which that kernel does not write. */
template <int TILES, int EIGHTS> struct share {
    enum { COLUMNS = 8 * EIGHTS, EACH = 16 * TILES * COLUMNS / THREADS, APART = 16 * TILES / EACH };
    kind is;
    ::column<EACH> column;
};

template <int TILES, int EIGHTS>
static __device__ __forceinline__ share<TILES, EIGHTS> fetch_share(const kr_linear_job<float> &k, int64_t m0,
                                                                   int64_t n0, bool quick, float4 *room)
{
    typedef share<TILES, EIGHTS> of;
    const int64_t n = n0 + threadIdx.x % of::COLUMNS, m = m0 + threadIdx.x / of::COLUMNS;
    of own;
    own.is = !kr_is_convolved(k, n) ? PLAIN : quick ? QUICK : OTHER;
    own.column = fetch_column<of::EACH, of::APART>(k, m, kr_least(n, k.nn - 1), own.is, room);
    return own;
}

/* In shared memory: windows, and the sums of all warps. */
template <int TILES, int EIGHTS> static __host__ __device__ constexpr size_t windows_bytes(void)
{
    return sizeof(float4) * THREADS * share<TILES, EIGHTS>::EACH;
}
template <int TILES, int EIGHTS> static __host__ __device__ constexpr size_t sums_bytes(void)
{
    return sizeof(float) * WARPS * 16 * TILES * line_of<EIGHTS>::FLOATS;
}

/* The block's sums, scaled and put where they belong. room: [warps][16 TILES][line]. */
template <int TILES, int EIGHTS>
static __device__ __forceinline__ void finish(const kr_linear_job<float> &k, int64_t m0, int64_t n0,
                                              const float sum[TILES][EIGHTS][4], float squares[TILES][2],
                                              const share<TILES, EIGHTS> &own, float *room, float *q)
{
    enum {
        COLUMNS = share<TILES, EIGHTS>::COLUMNS,
        ROWS = 16 * TILES,
        EACH = share<TILES, EIGHTS>::EACH,
        APART = share<TILES, EIGHTS>::APART,
        OF_WARP = ROWS * line_of<EIGHTS>::FLOATS
    };
    __shared__ float parts[WARPS * ROWS];
    const int row = threadIdx.x / COLUMNS;
    const int64_t n = n0 + threadIdx.x % COLUMNS;
    lay_down<TILES, EIGHTS>(sum, squares, room + threadIdx.x / 32 * OF_WARP, parts);
    __syncthreads();
    scale_rows<TILES>(k, parts, q);
    __syncthreads();
    float whole[EACH];
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const float *from = room + (row + i * APART) * line_of<EIGHTS>::FLOATS + threadIdx.x % COLUMNS;
        float v = 0;
#pragma unroll
        for (int warp = 0; warp < WARPS; warp++) v += from[warp * OF_WARP];
        whole[i] = v * q[row + i * APART];
    }
    if (n < k.nn) put_column<EACH, APART>(k, m0 + row, n, whole, own.column, own.is);
}

/* Grid: groups of outputs, groups of rows. quick: convolutions are. */
template <int TILES, int EIGHTS, int DEPTH, int AHEAD, bool HALVES, bool WHOLE>
static __global__ void __launch_bounds__(THREADS, 1)
    rows_kernel(const __grid_constant__ kr_linear_job<float> k, bool quick)
{
    extern __shared__ uint4 shared[];
    __shared__ float q[16 * TILES];
    const int64_t n0 = (int64_t)blockIdx.x * 8 * EIGHTS, m0 = (int64_t)blockIdx.y * 16 * TILES;
    const places<TILES> p = places_of<TILES, HALVES>(k, m0, n0);
    uint4 w[DEPTH][EIGHTS];
    if (DEPTH == 1 || DEPTH * STEP <= k.nk) read_weights<TILES, EIGHTS, DEPTH, WHOLE>(p, 0, w);
    const share<TILES, EIGHTS> own =
        fetch_share<TILES, EIGHTS>(k, m0, n0, quick, (float4 *)((char *)shared + sums_bytes<TILES, EIGHTS>()));
    kr_token_wait();
    if (k.squares) add_squares<TILES>(k, m0, q);
    float sum[TILES][EIGHTS][4] = {}, squares[TILES][2] = {};
    multiply_all<TILES, EIGHTS, DEPTH, AHEAD, HALVES, WHOLE>(k, p, w, sum, squares);
    finish<TILES, EIGHTS>(k, m0, n0, sum, squares, own, (float *)(void *)shared, q);
}

/* ---- weights in shared memory ----
 *
 * Rows of w, one behind another, so far apart that those of neighbouring outputs begin in different banks. Warps lay
 * their sums down in the same place when all have read them. Needs sm_90.
 */
enum { APART_BYTES = 64 };

template <int TILES, int EIGHTS> static __host__ __device__ inline size_t weights_bytes(int64_t nk)
{
    const size_t weights = (size_t)(8 * EIGHTS) * (size_t)(2 * nk + APART_BYTES), sums = sums_bytes<TILES, EIGHTS>();
    return weights > sums ? weights : sums;
}

/* A warp calls this when the latch is there. */
template <int EIGHTS>
static __device__ __forceinline__ void ask_for_weights(const kr_linear_job<float> &k, int64_t n0, char *room,
                                                       uint32_t latch)
{
    const uint32_t bytes = 2 * (uint32_t)k.nk;
    if (threadIdx.x == 0) kr_bulk_expect(latch, 8 * EIGHTS * bytes);
    __syncwarp();
    for (int i = threadIdx.x; i < 8 * EIGHTS; i += 32)
        kr_bulk_read(room + i * (bytes + APART_BYTES), (const char *)k.w + kr_least(n0 + i, k.nn - 1) * bytes, bytes,
                     latch);
}

/* All rows are whole steps long. */
template <int TILES, int EIGHTS, int AHEAD, bool HALVES>
static __global__ void __launch_bounds__(THREADS, 1)
    shared_kernel(const __grid_constant__ kr_linear_job<float> k, bool quick)
{
    extern __shared__ uint4 shared[];
    __shared__ float q[16 * TILES];
    __shared__ uint64_t come;
    const int64_t n0 = (int64_t)blockIdx.x * 8 * EIGHTS, m0 = (int64_t)blockIdx.y * 16 * TILES;
    const uint32_t latch = kr_shared_address(&come), line = 2 * (uint32_t)k.nk + APART_BYTES;
    const int steps = (int)k.nk / STEP, lane = threadIdx.x % 32, at = (threadIdx.x / 32 * 4 + lane % 4) * 8;
    if (threadIdx.x == 0) {
        kr_latch_init(latch, 1);
        kr_latches_ready();
    }
    __syncthreads();
    if (threadIdx.x < 32) ask_for_weights<EIGHTS>(k, n0, (char *)shared, latch);
    const share<TILES, EIGHTS> own =
        fetch_share<TILES, EIGHTS>(k, m0, n0, quick, (float4 *)((char *)shared + weights_bytes<TILES, EIGHTS>(k.nk)));
    const places<TILES> p = places_of<TILES, HALVES>(k, m0, n0);
    const char *gains = (const char *)k.gain + at * sizeof(float);
    const char *weights = (const char *)shared + lane / 4 * line + at * 2;
    kr_token_wait();
    if (k.squares) add_squares<TILES>(k, m0, q);
    float sum[TILES][EIGHTS][4] = {}, squares[TILES][2] = {};
    for (int first = 0; first < steps; first += AHEAD) {
        uint4 x[AHEAD][2 * TILES];
        read_rows<TILES, AHEAD, HALVES, true>(p, gains, first, x, squares);
        kr_latch_wait(latch, 0);
#pragma unroll
        for (int d = 0; d < AHEAD; d++)
#pragma unroll
            for (int e = 0; e < EIGHTS; e++) {
                const uint4 w = *(const uint4 *)(const void *)(weights + 8 * e * line + (first + d) * STEP * 2);
                kr_multiply_eight<TILES>(x[d], w, &sum[0][e], EIGHTS);
            }
    }
    __syncthreads(); /* sums take the place of weights */
    finish<TILES, EIGHTS>(k, m0, n0, sum, squares, own, (float *)(void *)shared, q);
}

/* ---- choosing ---- */

static bool is_quick(const kr_linear_job<float> &k)
{
    return k.nt == KR_MOST_TAPS && kr_allows16(k.window) && kr_allows16(k.taps) && !k.base;
}

template <int TILES, int EIGHTS> static dim3 grid_of(const kr_linear_job<float> &k)
{
    return dim3((unsigned)kr_ceil_div(k.nn, 8 * EIGHTS), (unsigned)kr_ceil_div(k.nm, 16 * TILES));
}

template <int TILES, int EIGHTS, int DEPTH, int AHEAD, bool HALVES, bool WHOLE>
static void launch(const kr_token_linear_args *a, const kr_linear_job<float> &k)
{
    const size_t shared = sums_bytes<TILES, EIGHTS>() + windows_bytes<TILES, EIGHTS>();
    kr_token_launch(&a->exec, rows_kernel<TILES, EIGHTS, DEPTH, AHEAD, HALVES, WHOLE>, grid_of<TILES, EIGHTS>(k),
                    THREADS, shared, k, is_quick(k));
}

/* False: there is no room for so many weights, or a block does not take so many steps at a time. */
template <int TILES, int EIGHTS, int AHEAD, bool HALVES>
static bool launch_shared(const kr_token_linear_args *a, const kr_linear_job<float> &k)
{
    const kr_cuda *own = (const kr_cuda *)a->exec.own;
    const size_t shared = weights_bytes<TILES, EIGHTS>(k.nk) + windows_bytes<TILES, EIGHTS>();
    if (own->arch != 90 || k.nk % (STEP * AHEAD) != 0 || shared + 4096 > own->shared_bytes) return false;
    kr_token_launch(&a->exec, shared_kernel<TILES, EIGHTS, AHEAD, HALVES>, grid_of<TILES, EIGHTS>(k), THREADS, shared,
                    k, is_quick(k));
    return true;
}

/* Would blocks of 16 TILES rows and 8 EIGHTS outputs be more than there are multiprocessors? */
template <int TILES, int EIGHTS> static bool are_many(const kr_token_linear_args *a, const kr_linear_job<float> &k)
{
    const dim3 grid = grid_of<TILES, EIGHTS>(k);
    return (int64_t)grid.x * grid.y > ((const kr_cuda *)a->exec.own)->multiprocessors;
}

/* About as many blocks as there are multiprocessors, or fewer, for the sizes that decoding has. */
template <bool HALVES> static void launch_wide(const kr_token_linear_args *a, const kr_linear_job<float> &k)
{
    if (k.nm <= 16) launch<1, 4, 3, 3, HALVES, true>(a, k);
    else if (are_many<2, 4>(a, k) && (launch_shared<2, 8, 3, HALVES>(a, k) || launch_shared<2, 4, 2, HALVES>(a, k)))
        return;
    else launch<2, 4, 3, HALVES ? 3 : 1, HALVES, true>(a, k);
}

template <bool HALVES> static void launch_narrow(const kr_token_linear_args *a, const kr_linear_job<float> &k)
{
    enum { AHEAD = HALVES ? 6 : 3 };
    if (are_many<1, 2>(a, k) && (launch_shared<1, 4, AHEAD, HALVES>(a, k) || launch_shared<1, 4, 2, HALVES>(a, k)))
        return;
    if (k.nm <= 32) launch<1, 2, 6, AHEAD, HALVES, true>(a, k);
    else launch<2, 2, 6, HALVES ? 6 : 2, HALVES, true>(a, k);
}

template <bool HALVES> static void launch_some(const kr_token_linear_args *a, const kr_linear_job<float> &k)
{
    if (k.nk % STEP != 0) launch<1, 2, 1, 1, HALVES, false>(a, k);
    else if (k.nn >= 32 * 80) launch_wide<HALVES>(a, k);
    else launch_narrow<HALVES>(a, k);
}

bool kr_token_rows_can(const kr_token_linear_args *a)
{
    const int64_t pack = a->x_half ? 8 : 4;
    return a->nm > KR_FEW_ROWS && a->nm <= MOST_ROWS && kr_token_rounds(a) && !a->z && a->ng == 1 &&
           a->nk % KR_CHUNK == 0 && a->nk < INT32_MAX / 4 && kr_allows16(a->w) && kr_allows16(a->x) &&
           a->x_m % pack == 0 && kr_allows16(a->gain) &&
           (a->x_half ? a->x_half == KR_HALF_BF16 && !a->gain && (a->squares || !a->has_norm) : a->gain != NULL);
}

void kr_token_rows(const kr_token_linear_args *a, const kr_linear_job<float> &k)
{
    if (k.x_half) launch_some<true>(a, k);
    else launch_some<false>(a, k);
}
