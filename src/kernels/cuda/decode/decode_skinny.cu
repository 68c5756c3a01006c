/* decode_skinny.cu - skinny GEMM with fused norm, y = base + norm(x) W^T + bias, on tensor cores; sm_80 (mma.sync) and
 * sm_90.
 *
 *   x [m k] f32, or bf16 with the sums of squares of its rows; w [n k] bf16; y [m n]; formulas: kernels/args/decode_args.h
 *
 * A CTA computes 16 M_TILES rows and 8 N_TILES outputs. Its warps split k: step s of warp w is the 32 elements from 32 (8 s
 * + w) on; a lane loads 8 adjacent elements of its rows and outputs as they are. The order of k is free as long as both
 * operands share it, so 8 adjacent elements of four lanes feed two k16 products. Weights and other operands that the
 * preceding kernel does not write are loaded before it ends: all weights of the CTA to shared memory if they fit (sm_90),
 * else DEPTH steps to registers. 1/RMS is constant per row and scales the sums. Sums of the warps are added in order: the
 * order of all sums depends on k alone.
 */
#include "kernels/cuda/prim/tma.cuh"
#include "kernels/cuda/decode/decode_skinny.cuh"

enum { WARPS = 8, THREADS = 32 * WARPS, STEP = 32 * WARPS, MAX_ROWS = 256 };

/* Row stride of the CTA's sums in shared memory: eight rows start in different banks. */
template <int N_TILES> struct sum_stride {
    enum { FLOATS = 8 * N_TILES + 8 };
};

/* Addresses of a lane's operands from its first k on: rows lane / 4 + 8 i of x, output n0 + lane / 4 of w, the next one 8
 * further. Past the last row or output the last is repeated. */
template <int M_TILES> struct lane_operands {
    const char *x[2 * M_TILES];
    const uint16_t *w;
    int64_t n, last; /* its output, and the last one */
    int64_t nk;
    int left; /* elements of k from the lane's first on */
};

template <int M_TILES, bool X_BF16>
static __device__ __forceinline__ lane_operands<M_TILES> lane_operands_of(const kr_linear_job<float> &k, int64_t m0,
                                                                          int64_t n0)
{
    lane_operands<M_TILES> p;
    const int lane = threadIdx.x % 32, at = (threadIdx.x / 32 * 4 + lane % 4) * 8;
#pragma unroll
    for (int i = 0; i < 2 * M_TILES; i++) {
        const int64_t m = kr_least(m0 + lane / 4 + 8 * i, k.nm - 1);
        p.x[i] = (const char *)k.x + (m * k.x_m + at) * (X_BF16 ? 2 : 4);
    }
    p.w = (const uint16_t *)k.w + at;
    p.n = n0 + lane / 4, p.last = k.nn - 1, p.nk = k.nk;
    p.left = (int)k.nk - at;
    return p;
}

/* Weights of DEPTH steps from `first` on. WHOLE: k has no tail. */
template <int M_TILES, int N_TILES, int DEPTH, bool WHOLE>
static __device__ __forceinline__ void read_weights(const lane_operands<M_TILES> &p, int first, uint4 w[DEPTH][N_TILES])
{
#pragma unroll
    for (int e = 0; e < N_TILES; e++) {
        const uint16_t *from = p.w + kr_least(p.n + 8 * e, p.last) * p.nk + first * STEP;
#pragma unroll
        for (int d = 0; d < DEPTH; d++)
            w[d][e] =
                WHOLE || (first + d) * STEP < p.left ? kr_load_no_allocate(from + d * STEP) : make_uint4(0, 0, 0, 0);
    }
}

/* Eight adjacent elements of a row, unconverted. */
template <bool X_BF16> struct eight {
    float4 v[X_BF16 ? 1 : 2];
};

template <bool X_BF16> static __device__ __forceinline__ eight<X_BF16> read_eight(const char *from, bool in_range)
{
    eight<X_BF16> x = {};
    if (!in_range) return x;
    x.v[0] = *(const float4 *)(const void *)from;
    if (!X_BF16) x.v[X_BF16 ? 0 : 1] = *(const float4 *)(const void *)(from + 16);
    return x;
}

/* x gain in bf16; *squares += x^2. */
template <bool X_BF16>
static __device__ __forceinline__ uint4 operand_of(const eight<X_BF16> &x, const eight<false> &gain, float *squares)
{
    if (X_BF16) {
        uint4 bits;
        memcpy(&bits, &x.v[0], sizeof bits);
        return bits;
    }
    float v[8], g[8];
    memcpy(v, x.v, sizeof(float4) * (X_BF16 ? 1 : 2));
    memcpy(g, gain.v, sizeof g);
#pragma unroll
    for (int i = 0; i < 8; i++) *squares += v[i] * v[i];
    return make_uint4(kr_pair_of(v[0] * g[0], v[1] * g[1]), kr_pair_of(v[2] * g[2], v[3] * g[3]),
                      kr_pair_of(v[4] * g[4], v[5] * g[5]), kr_pair_of(v[6] * g[6], v[7] * g[7]));
}

/* Operands of AHEAD steps from `first` on, all loads in flight together: rows lane / 4 and lane / 4 + 8 of each tile. */
template <int M_TILES, int AHEAD, bool X_BF16, bool WHOLE>
static __device__ __forceinline__ void read_rows(const lane_operands<M_TILES> &p, const char *gains, int first,
                                                 uint4 x[AHEAD][2 * M_TILES], float squares[M_TILES][2])
{
    enum { BYTES = STEP * (X_BF16 ? 2 : 4) };
    eight<X_BF16> raw[AHEAD][2 * M_TILES];
#pragma unroll
    for (int d = 0; d < AHEAD; d++)
#pragma unroll
        for (int i = 0; i < 2 * M_TILES; i++)
            raw[d][i] = read_eight<X_BF16>(p.x[i] + (first + d) * BYTES, WHOLE || (first + d) * STEP < p.left);
#pragma unroll
    for (int d = 0; d < AHEAD; d++) {
        eight<false> gain = {};
        if (!X_BF16) gain = read_eight<false>(gains + (first + d) * BYTES, WHOLE || (first + d) * STEP < p.left);
#pragma unroll
        for (int i = 0; i < 2 * M_TILES; i++) x[d][i] = operand_of<X_BF16>(raw[d][i], gain, &squares[i / 2][i % 2]);
    }
}

/* Products of AHEAD steps from `first` on. */
template <int M_TILES, int N_TILES, int AHEAD, bool X_BF16, bool WHOLE>
static __device__ __forceinline__ void multiply(const lane_operands<M_TILES> &p, const char *gains, int first,
                                                const uint4 w[AHEAD][N_TILES], float sum[M_TILES][N_TILES][4],
                                                float squares[M_TILES][2])
{
    uint4 x[AHEAD][2 * M_TILES];
    read_rows<M_TILES, AHEAD, X_BF16, WHOLE>(p, gains, first, x, squares);
#pragma unroll
    for (int d = 0; d < AHEAD; d++)
#pragma unroll
        for (int e = 0; e < N_TILES; e++) kr_multiply_eight<M_TILES>(x[d], w[d][e], &sum[0][e], N_TILES);
}

/* ---- 1/RMS ---- */

/* Sums of the given squares of the CTA's rows: eight lanes per row, then pairwise. */
template <int M_TILES>
static __device__ __forceinline__ void reduce_squares(const kr_linear_job<float> &k, int64_t m0, float *to)
{
    enum { LANES = 8 };
    for (int row = threadIdx.x / LANES; row < 16 * M_TILES; row += THREADS / LANES) {
        const float *from = k.squares + kr_least(m0 + row, k.nm - 1) * k.nsquares;
        float sum = 0;
#pragma unroll 8
        for (int i = threadIdx.x % LANES; i < (int)k.nsquares; i += LANES) sum += from[i];
#pragma unroll
        for (int offset = LANES / 2; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
        if (threadIdx.x % LANES == 0) to[row] = sum;
    }
}

/* q = 1/RMS of the CTA's rows, from the warps' squares [WARPS][16 M_TILES] or from the given ones, already in q. */
template <int M_TILES>
static __device__ __forceinline__ void scale_rows(const kr_linear_job<float> &k, const float *parts, float *q)
{
    const int row = threadIdx.x;
    if (row >= 16 * M_TILES) return;
    float squares = 0;
    if (k.squares) squares = q[row];
    else
#pragma unroll
        for (int w = 0; w < WARPS; w++) squares += parts[w * 16 * M_TILES + row];
    q[row] = k.has_norm ? 1 / kr_sqrt(squares / (float)k.nk + k.eps) : 1.0f;
}

/* The warp's partial sums to shared memory: buffer [16 M_TILES][stride], parts [WARPS][16 M_TILES]. */
template <int M_TILES, int N_TILES>
static __device__ __forceinline__ void store_partials(const float sum[M_TILES][N_TILES][4], float squares[M_TILES][2],
                                                      float *buffer, float *parts)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int t = 0; t < M_TILES; t++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int row = 16 * t + 8 * i + lane / 4;
            float s = squares[t][i];
            s += __shfl_xor_sync(0xffffffffu, s, 1);
            s += __shfl_xor_sync(0xffffffffu, s, 2);
            if (lane % 4 == 0) parts[warp * 16 * M_TILES + row] = s;
            float *to = buffer + row * sum_stride<N_TILES>::FLOATS + lane % 4 * 2;
#pragma unroll
            for (int e = 0; e < N_TILES; e++)
                *(float2 *)(void *)(to + 8 * e) = make_float2(sum[t][e][2 * i], sum[t][e][2 * i + 1]);
        }
}

/* ---- epilogue ----
 *
 * A thread has PER_THREAD outputs of one column n, ROW_STEP rows apart, all of one kind: plain, a convolution of four taps
 * with 16-byte aligned windows (CONV4), or any other convolution.
 */
enum kind { PLAIN, CONV4, CONV_ANY };

template <int PER_THREAD> struct column {
    float add, base[PER_THREAD];
    uint4 taps;   /* raw bits */
    float4 *past; /* windows in shared memory, THREADS apart, private to the thread */
};

static __device__ __forceinline__ float4 *window_of(const kr_linear_job<float> &k, int64_t m, int64_t n)
{
    return (float4 *)(void *)(k.window + (m * k.nc + n - k.conv_from) * KR_MOST_TAPS);
}

/* Taps of channel c; converted when used, so that nothing waits for the load. */
static __device__ __forceinline__ uint4 read_taps(const kr_linear_job<float> &k, int64_t c)
{
    if (k.taps_dtype == KR_DTYPE_F32) return ((const uint4 *)k.taps)[c];
    const uint2 raw = ((const uint2 *)k.taps)[c];
    return make_uint4(raw.x, raw.y, 0, 0);
}

/* Loaded before the sums are known; rows past the end repeat the last. buffer: for windows. */
template <int PER_THREAD, int ROW_STEP>
static __device__ __forceinline__ column<PER_THREAD> fetch_column(const kr_linear_job<float> &k, int64_t m, int64_t n,
                                                                  kind is, float4 *buffer)
{
    column<PER_THREAD> own = {};
    own.past = buffer + threadIdx.x;
    own.add = k.bias ? k.bias[n] : 0.0f;
    if (is == CONV4) {
        own.taps = read_taps(k, n - k.conv_from);
#pragma unroll
        for (int i = 0; i < PER_THREAD; i++)
            kr_copy<16>(kr_shared_address(own.past + i * THREADS),
                        window_of(k, kr_least(m + i * ROW_STEP, k.nm - 1), n));
        kr_copy_commit();
    } else if (k.base) {
#pragma unroll
        for (int i = 0; i < PER_THREAD; i++) own.base[i] = k.base[kr_least(m + i * ROW_STEP, k.nm - 1) * k.base_m + n];
    }
    return own;
}

/* Any convolution; same summation order as CONV4. */
static __device__ __noinline__ float convolve(const kr_linear_job<float> &k, int64_t m, int64_t n, float v)
{
    const int64_t c = n - k.conv_from;
    return kr_convolve_long(k, (m * k.nc + c) * k.nt, c, k.conv_bias ? k.conv_bias[c] : 0.0f, v);
}

template <int PER_THREAD, int ROW_STEP>
static __device__ __forceinline__ void store_column(const kr_linear_job<float> &k, int64_t m, int64_t n,
                                                    float v[PER_THREAD], const column<PER_THREAD> &own, kind is)
{
    const int left = (int)kr_least(k.nm - m, PER_THREAD * ROW_STEP); /* remaining rows */
    if (is == CONV4) {
        const float conv_bias = k.conv_bias ? k.conv_bias[n - k.conv_from] : 0.0f;
        float tap[KR_MOST_TAPS];
#pragma unroll
        for (int t = 0; t < KR_MOST_TAPS; t++) tap[t] = kr_element<float>(&own.taps, t, k.taps_dtype);
        kr_copy_wait<0>();
#pragma unroll
        for (int i = 0; i < PER_THREAD; i++) {
            const float4 past = own.past[i * THREADS];
            const float4 now = make_float4(past.y, past.z, past.w, v[i] + own.add);
            if (i * ROW_STEP < left) *window_of(k, m + i * ROW_STEP, n) = now;
            v[i] = conv_bias + now.x * tap[0];
            v[i] += now.y * tap[1];
            v[i] += now.z * tap[2];
            v[i] = kr_silu(v[i] + now.w * tap[3]);
        }
    } else {
#pragma unroll
        for (int i = 0; i < PER_THREAD; i++) v[i] += own.add + own.base[i];
    }
#pragma unroll 1
    for (int i = 0; is == CONV_ANY && i * ROW_STEP < left; i++) {
        const int64_t at = (m + i * ROW_STEP) * k.y_m + n;
        float y = v[0]; /* v is shifted, so that its indices are compile-time constants */
#pragma unroll
        for (int e = 0; e + 1 < PER_THREAD; e++) v[e] = v[e + 1];
        k.y[at] = kr_silu(convolve(k, m + i * ROW_STEP, n, y));
    }
#pragma unroll
    for (int i = 0; i < PER_THREAD; i++)
        if (is != CONV_ANY && i * ROW_STEP < left) k.y[(m + i * ROW_STEP) * k.y_m + n] = v[i];
}

/* All steps of the CTA's products; the first DEPTH steps of weights are loaded. */
template <int M_TILES, int N_TILES, int DEPTH, int AHEAD, bool X_BF16, bool WHOLE>
static __device__ __forceinline__ void multiply_all(const kr_linear_job<float> &k, const lane_operands<M_TILES> &p,
                                                    uint4 w[DEPTH][N_TILES], float sum[M_TILES][N_TILES][4],
                                                    float squares[M_TILES][2])
{
    const char *gains = (const char *)k.gain + (threadIdx.x / 32 * 4 + threadIdx.x % 4) * 8 * sizeof(float);
    const int steps = (int)kr_ceil_div(k.nk, STEP);
    int first = 0;
    for (; first + DEPTH <= steps; first += DEPTH) {
        if (first > 0) read_weights<M_TILES, N_TILES, DEPTH, WHOLE>(p, first, w);
#pragma unroll
        for (int d = 0; d < DEPTH; d += AHEAD)
            multiply<M_TILES, N_TILES, AHEAD, X_BF16, WHOLE>(p, gains, first + d, w + d, sum, squares);
    }
    for (; DEPTH > 1 && first < steps; first++) {
        read_weights<M_TILES, N_TILES, 1, WHOLE>(p, first, w);
        multiply<M_TILES, N_TILES, 1, X_BF16, WHOLE>(p, gains, first, w, sum, squares);
    }
}

/* A thread's outputs and their operands, loaded before the preceding kernel ends: windows of earlier tokens, and the
 * residual, which that kernel does not write. */
template <int M_TILES, int N_TILES> struct thread_outputs {
    enum { COLUMNS = 8 * N_TILES, PER_THREAD = 16 * M_TILES * COLUMNS / THREADS, ROW_STEP = 16 * M_TILES / PER_THREAD };
    kind is;
    ::column<PER_THREAD> column;
};

template <int M_TILES, int N_TILES>
static __device__ __forceinline__ thread_outputs<M_TILES, N_TILES> fetch_outputs(const kr_linear_job<float> &k,
                                                                                 int64_t m0, int64_t n0, bool conv4,
                                                                                 float4 *buffer)
{
    typedef thread_outputs<M_TILES, N_TILES> of;
    const int64_t n = n0 + threadIdx.x % of::COLUMNS, m = m0 + threadIdx.x / of::COLUMNS;
    of own;
    own.is = !kr_is_convolved(k, n) ? PLAIN : conv4 ? CONV4 : CONV_ANY;
    own.column = fetch_column<of::PER_THREAD, of::ROW_STEP>(k, m, kr_least(n, k.nn - 1), own.is, buffer);
    return own;
}

/* Shared memory of the windows, and of the sums of all warps. */
template <int M_TILES, int N_TILES> static __host__ __device__ constexpr size_t windows_bytes(void)
{
    return sizeof(float4) * THREADS * thread_outputs<M_TILES, N_TILES>::PER_THREAD;
}
template <int M_TILES, int N_TILES> static __host__ __device__ constexpr size_t sums_bytes(void)
{
    return sizeof(float) * WARPS * 16 * M_TILES * sum_stride<N_TILES>::FLOATS;
}

/* Reduces, scales and stores the CTA's sums. buffer: [WARPS][16 M_TILES][stride]. */
template <int M_TILES, int N_TILES>
static __device__ __forceinline__ void finish(const kr_linear_job<float> &k, int64_t m0, int64_t n0,
                                              const float sum[M_TILES][N_TILES][4], float squares[M_TILES][2],
                                              const thread_outputs<M_TILES, N_TILES> &own, float *buffer, float *q)
{
    enum {
        COLUMNS = thread_outputs<M_TILES, N_TILES>::COLUMNS,
        ROWS = 16 * M_TILES,
        PER_THREAD = thread_outputs<M_TILES, N_TILES>::PER_THREAD,
        ROW_STEP = thread_outputs<M_TILES, N_TILES>::ROW_STEP,
        OF_WARP = ROWS * sum_stride<N_TILES>::FLOATS
    };
    __shared__ float parts[WARPS * ROWS];
    const int row = threadIdx.x / COLUMNS;
    const int64_t n = n0 + threadIdx.x % COLUMNS;
    store_partials<M_TILES, N_TILES>(sum, squares, buffer + threadIdx.x / 32 * OF_WARP, parts);
    __syncthreads();
    scale_rows<M_TILES>(k, parts, q);
    __syncthreads();
    float total[PER_THREAD];
#pragma unroll
    for (int i = 0; i < PER_THREAD; i++) {
        const float *from = buffer + (row + i * ROW_STEP) * sum_stride<N_TILES>::FLOATS + threadIdx.x % COLUMNS;
        float v = 0;
#pragma unroll
        for (int warp = 0; warp < WARPS; warp++) v += from[warp * OF_WARP];
        total[i] = v * q[row + i * ROW_STEP];
    }
    if (n < k.nn) store_column<PER_THREAD, ROW_STEP>(k, m0 + row, n, total, own.column, own.is);
}

/* Weights in registers. Grid: groups of outputs, groups of rows. conv4: convolutions are of kind CONV4. */
template <int M_TILES, int N_TILES, int DEPTH, int AHEAD, bool X_BF16, bool WHOLE>
static __global__ void __launch_bounds__(THREADS, 1)
    register_kernel(const __grid_constant__ kr_linear_job<float> k, bool conv4)
{
    extern __shared__ uint4 shared[];
    __shared__ float q[16 * M_TILES];
    const int64_t n0 = (int64_t)blockIdx.x * 8 * N_TILES, m0 = (int64_t)blockIdx.y * 16 * M_TILES;
    const lane_operands<M_TILES> p = lane_operands_of<M_TILES, X_BF16>(k, m0, n0);
    uint4 w[DEPTH][N_TILES];
    if (DEPTH == 1 || DEPTH * STEP <= k.nk) read_weights<M_TILES, N_TILES, DEPTH, WHOLE>(p, 0, w);
    const thread_outputs<M_TILES, N_TILES> own =
        fetch_outputs<M_TILES, N_TILES>(k, m0, n0, conv4, (float4 *)((char *)shared + sums_bytes<M_TILES, N_TILES>()));
    kr_pdl_wait();
    if (k.squares) reduce_squares<M_TILES>(k, m0, q);
    float sum[M_TILES][N_TILES][4] = {}, squares[M_TILES][2] = {};
    multiply_all<M_TILES, N_TILES, DEPTH, AHEAD, X_BF16, WHOLE>(k, p, w, sum, squares);
    finish<M_TILES, N_TILES>(k, m0, n0, sum, squares, own, (float *)(void *)shared, q);
}

/* ---- weights in shared memory, sm_90 ----
 *
 * Rows of w, padded so that adjacent outputs start in different banks. The sums reuse the space once all warps have read
 * them.
 */
enum { PAD_BYTES = 64 };

template <int M_TILES, int N_TILES> static __host__ __device__ inline size_t weights_bytes(int64_t nk)
{
    const size_t weights = (size_t)(8 * N_TILES) * (size_t)(2 * nk + PAD_BYTES), sums = sums_bytes<M_TILES, N_TILES>();
    return weights > sums ? weights : sums;
}

/* Called by one warp, once the mbarrier is initialised. */
template <int N_TILES>
static __device__ __forceinline__ void copy_weights(const kr_linear_job<float> &k, int64_t n0, char *buffer,
                                                    uint32_t mbarrier)
{
    const uint32_t bytes = 2 * (uint32_t)k.nk;
    if (threadIdx.x == 0) kr_bulk_expect(mbarrier, 8 * N_TILES * bytes);
    __syncwarp();
    for (int i = threadIdx.x; i < 8 * N_TILES; i += 32)
        kr_bulk_copy(buffer + i * (bytes + PAD_BYTES), (const char *)k.w + kr_least(n0 + i, k.nn - 1) * bytes, bytes,
                     mbarrier);
}

/* nk is a multiple of STEP * AHEAD. */
template <int M_TILES, int N_TILES, int AHEAD, bool X_BF16>
static __global__ void __launch_bounds__(THREADS, 1)
    shared_kernel(const __grid_constant__ kr_linear_job<float> k, bool conv4)
{
    extern __shared__ uint4 shared[];
    __shared__ float q[16 * M_TILES];
    __shared__ uint64_t weights_arrived;
    const int64_t n0 = (int64_t)blockIdx.x * 8 * N_TILES, m0 = (int64_t)blockIdx.y * 16 * M_TILES;
    const uint32_t mbarrier = kr_shared_address(&weights_arrived), line = 2 * (uint32_t)k.nk + PAD_BYTES;
    const int steps = (int)k.nk / STEP, lane = threadIdx.x % 32, at = (threadIdx.x / 32 * 4 + lane % 4) * 8;
    if (threadIdx.x == 0) {
        kr_mbarrier_init(mbarrier, 1);
        kr_mbarrier_init_fence();
    }
    __syncthreads();
    if (threadIdx.x < 32) copy_weights<N_TILES>(k, n0, (char *)shared, mbarrier);
    const thread_outputs<M_TILES, N_TILES> own = fetch_outputs<M_TILES, N_TILES>(
        k, m0, n0, conv4, (float4 *)((char *)shared + weights_bytes<M_TILES, N_TILES>(k.nk)));
    const lane_operands<M_TILES> p = lane_operands_of<M_TILES, X_BF16>(k, m0, n0);
    const char *gains = (const char *)k.gain + at * sizeof(float);
    const char *weights = (const char *)shared + lane / 4 * line + at * 2;
    kr_pdl_wait();
    if (k.squares) reduce_squares<M_TILES>(k, m0, q);
    float sum[M_TILES][N_TILES][4] = {}, squares[M_TILES][2] = {};
    for (int first = 0; first < steps; first += AHEAD) {
        uint4 x[AHEAD][2 * M_TILES];
        read_rows<M_TILES, AHEAD, X_BF16, true>(p, gains, first, x, squares);
        kr_mbarrier_wait(mbarrier, 0);
#pragma unroll
        for (int d = 0; d < AHEAD; d++)
#pragma unroll
            for (int e = 0; e < N_TILES; e++) {
                const uint4 w = *(const uint4 *)(const void *)(weights + 8 * e * line + (first + d) * STEP * 2);
                kr_multiply_eight<M_TILES>(x[d], w, &sum[0][e], N_TILES);
            }
    }
    __syncthreads(); /* sums reuse the space of the weights */
    finish<M_TILES, N_TILES>(k, m0, n0, sum, squares, own, (float *)(void *)shared, q);
}

/* ---- dispatch ---- */

static bool is_conv4(const kr_linear_job<float> &k)
{
    return k.nt == KR_MOST_TAPS && kr_is_aligned16(k.window) && kr_is_aligned16(k.taps) && !k.base;
}

template <int M_TILES, int N_TILES> static dim3 grid_of(const kr_linear_job<float> &k)
{
    return dim3((unsigned)kr_ceil_div(k.nn, 8 * N_TILES), (unsigned)kr_ceil_div(k.nm, 16 * M_TILES));
}

template <int M_TILES, int N_TILES, int DEPTH, int AHEAD, bool X_BF16, bool WHOLE>
static void launch(const kr_decode_linear_args *a, const kr_linear_job<float> &k)
{
    const size_t shared = sums_bytes<M_TILES, N_TILES>() + windows_bytes<M_TILES, N_TILES>();
    kr_pdl_launch(&a->exec, register_kernel<M_TILES, N_TILES, DEPTH, AHEAD, X_BF16, WHOLE>,
                  grid_of<M_TILES, N_TILES>(k), THREADS, shared, k, is_conv4(k));
}

/* False: the weights do not fit in shared memory, or k is not a multiple of AHEAD steps. */
template <int M_TILES, int N_TILES, int AHEAD, bool X_BF16>
static bool launch_shared(const kr_decode_linear_args *a, const kr_linear_job<float> &k)
{
    const kr_cuda *own = (const kr_cuda *)a->exec.own;
    const size_t shared = weights_bytes<M_TILES, N_TILES>(k.nk) + windows_bytes<M_TILES, N_TILES>();
    if (own->arch != 90 || k.nk % (STEP * AHEAD) != 0 || shared + 4096 > own->shared_bytes) return false;
    kr_pdl_launch(&a->exec, shared_kernel<M_TILES, N_TILES, AHEAD, X_BF16>, grid_of<M_TILES, N_TILES>(k), THREADS,
                  shared, k, is_conv4(k));
    return true;
}

/* Would CTAs of 16 M_TILES rows and 8 N_TILES outputs exceed the number of multiprocessors? */
template <int M_TILES, int N_TILES>
static bool exceeds_sms(const kr_decode_linear_args *a, const kr_linear_job<float> &k)
{
    const dim3 grid = grid_of<M_TILES, N_TILES>(k);
    return (int64_t)grid.x * grid.y > ((const kr_cuda *)a->exec.own)->multiprocessors;
}

/* Tile shapes give about as many CTAs as multiprocessors, or fewer, for the sizes of decoding. */
template <bool X_BF16> static void launch_wide(const kr_decode_linear_args *a, const kr_linear_job<float> &k)
{
    if (k.nm <= 16) launch<1, 4, 3, 3, X_BF16, true>(a, k);
    else if (exceeds_sms<2, 4>(a, k) && (launch_shared<2, 8, 3, X_BF16>(a, k) || launch_shared<2, 4, 2, X_BF16>(a, k)))
        return;
    else launch<2, 4, 3, X_BF16 ? 3 : 1, X_BF16, true>(a, k);
}

template <bool X_BF16> static void launch_narrow(const kr_decode_linear_args *a, const kr_linear_job<float> &k)
{
    enum { AHEAD = X_BF16 ? 6 : 3 };
    if (exceeds_sms<1, 2>(a, k) && (launch_shared<1, 4, AHEAD, X_BF16>(a, k) || launch_shared<1, 4, 2, X_BF16>(a, k)))
        return;
    if (k.nm <= 32) launch<1, 2, 6, AHEAD, X_BF16, true>(a, k);
    else launch<2, 2, 6, X_BF16 ? 6 : 2, X_BF16, true>(a, k);
}

template <bool X_BF16> static void launch_sized(const kr_decode_linear_args *a, const kr_linear_job<float> &k)
{
    if (k.nk % STEP != 0) launch<1, 2, 1, 1, X_BF16, false>(a, k);
    else if (k.nn >= 32 * 80) launch_wide<X_BF16>(a, k);
    else launch_narrow<X_BF16>(a, k);
}

bool kr_decode_skinny_can(const kr_decode_linear_args *a)
{
    const bool is_16bit = kr_is_16bit(a->x.dtype);
    const int64_t vec = is_16bit ? 8 : 4;
    return a->nm > KR_GEMV_ROWS && a->nm <= MAX_ROWS && kr_decode_autocasts(a) && !a->z.data && a->ng == 1 &&
           a->nk % KR_CHUNK == 0 && a->nk < INT32_MAX / 4 && kr_is_aligned16(a->w.data) && kr_is_aligned16(a->x.data) &&
           a->x.row % vec == 0 && kr_is_aligned16(a->gain) &&
           (is_16bit ? a->x.dtype == KR_DTYPE_BF16 && !a->gain && (a->squares || !a->has_norm) : a->gain != NULL);
}

void kr_decode_skinny(const kr_decode_linear_args *a, const kr_linear_job<float> &k)
{
    if (k.x_dtype == KR_DTYPE_BF16) launch_sized<true>(a, k);
    else launch_sized<false>(a, k);
}
