/* decode_linear.cu - y = base + norm(x, z) W^T + bias for one token of each row, some outputs through a convolution; all
 * architectures, f32 and f64.
 *
 *   x, z [m k], w [n k], base, y [m n]; formulas: kernels/args/decode_args.h
 *
 *   gemv     few rows: one kernel. A warp computes COLUMNS outputs at a time and reads their weights once, DEPTH chunks per
 *            lane ahead; the first loads are issued before the preceding kernel ends. norm(x, z) is in shared memory.
 *   skinny   more rows, bf16: decode_skinny.cu, or for a vocabulary head gemm/skinny_gemm.cu with a fused norm
 *   gemm     else: a norm kernel, matmul, a convolution kernel
 *
 * gemv adds squares in 256 lanes, those pairwise within 32 and then in order; products along k in each lane, then lanes
 * pairwise. The order depends on k alone.
 */
#include "kernels/cuda/prim/gemv_parts.cuh"
#include "kernels/cuda/gemm/gemm.cuh"
#include "kernels/cuda/decode/decode_linear.cuh"
#include "kernels/cuda/decode/decode_skinny.cuh"

enum { WARPS = 8, THREADS = 32 * WARPS, NARROW_OUTPUTS = 2200 };

/* ---- norm ---- */

/* One virtual lane of row m: elements i, i + THREADS, ... up to `to`, BATCH loads in flight. Writes q u gain (times silu(z)
 * with norm_first) to out, unless NULL; returns the sum of u^2. */
template <typename T, typename Out>
static __device__ __forceinline__ T norm_lane(const kr_linear_job<T> &k, int64_t m, int64_t i, int64_t to, T q,
                                              Out *out)
{
    enum { BATCH = 6 };
    const T *z = k.z ? k.z + m * k.z_m : NULL;
    T squares = 0;
    for (; i < to; i += BATCH * THREADS) {
        T u[BATCH], gate[BATCH], gain[BATCH];
#pragma unroll
        for (int e = 0; e < BATCH; e++) {
            const int64_t at = i + e * THREADS;
            u[e] = at < to ? kr_element<T>(k.x, m * k.x_m + at, k.x_dtype) : (T)0;
            gate[e] = z && at < to ? z[at] : (T)0;
            gain[e] = k.gain && at < to ? k.gain[at] : (T)1;
        }
#pragma unroll
        for (int e = 0; e < BATCH; e++) {
            const int64_t at = i + e * THREADS;
            const T gated = z ? kr_silu(gate[e]) : (T)1;
            if (!k.norm_first) u[e] *= gated;
            squares += u[e] * u[e];
            if (out && at < to) out[at] = (Out)(u[e] * gain[e] * (k.norm_first ? gated : (T)1) * q);
        }
    }
    return squares;
}

/* 1 / sqrt(mean square + eps) of a row: from the warps' partial sums `parts`, or from the squares in the job. */
template <typename T> static __device__ __forceinline__ T scale_of(const kr_linear_job<T> &k, int64_t m, const T *parts)
{
    if (!k.has_norm) return (T)1;
    T squares = 0;
    if (k.squares) squares = kr_row_squares(k, m);
    else
#pragma unroll
        for (int w = 0; w < WARPS; w++) squares += parts[w];
    return 1 / kr_sqrt(squares / (T)k.width + k.eps);
}

/* norm(x, z) of rows m0 .. m0 + ROWS - 1 into out [ROWS padded], zeros past nk; WARPS / ROWS warps per row. parts: [ROWS
 * WARPS]. */
template <typename T, int ROWS>
static __device__ void norm_rows(const kr_linear_job<T> &k, int64_t m0, T *out, T *parts)
{
    enum { WARPS_PER_ROW = WARPS / ROWS };
    const int lane = threadIdx.x % 32, row = threadIdx.x / 32 / WARPS_PER_ROW, first = threadIdx.x / 32 % WARPS_PER_ROW;
    const int64_t m = kr_least(m0 + row, k.nm - 1); /* rows past the end repeat the last */
    T *u = out + row * k.padded;
    if (first == 0 && k.nk + lane < k.padded) u[k.nk + lane] = 0;
    for (int64_t group = 0; group < k.ng; group++) {
        const int64_t from = group * k.width, to = from + k.width;
#pragma unroll
        for (int w = 0; w < ROWS;
             w++) { /* the virtual lanes of warp `as` of eight, so that the order of sums does not depend on ROWS */
            const int as = first + w * WARPS_PER_ROW;
            const T squares = kr_warp_sum(norm_lane(k, m, from + as * 32 + lane, to, (T)1, u));
            if (lane == 0) parts[row * WARPS + as] = squares;
        }
        __syncthreads();
        const T q = scale_of(k, m, parts + row * WARPS);
        for (int64_t i = from + first * 32 + lane; i < to; i += WARPS_PER_ROW * 32) u[i] *= q;
        __syncthreads(); /* parts may be reused; u is complete */
    }
}

/* ---- gemv ---- */

template <typename T, int KIND, int COLUMNS, int DEPTH> struct raw_step {
    kr_raw_chunk<T, KIND> chunk[DEPTH][COLUMNS];
};

/* A chunk that crosses the end of the row or is not 16-byte aligned. */
template <typename T, int KIND>
static __device__ __noinline__ kr_raw_chunk<T, KIND> read_tail(const void *w, int64_t at, int64_t left)
{
    typedef typename kr_raw_element<T, KIND>::type element;
    kr_raw_chunk<T, KIND> raw;
    element e[KR_CHUNK];
    for (int i = 0; i < KR_CHUNK; i++) e[i] = i < left ? ((const element *)w)[at + i] : (element)0;
    memcpy(&raw, e, sizeof e);
    return raw;
}

/* Loads step `step` of output group `g`, COLUMNS outputs. */
template <typename T, int KIND, int COLUMNS, int DEPTH>
static __device__ __forceinline__ void read_step(const kr_linear_job<T> &k, int64_t g, int64_t step, bool in_range,
                                                 raw_step<T, KIND, COLUMNS, DEPTH> &raw)
{
    const int64_t k0 = step * (DEPTH * 32 * KR_CHUNK) + threadIdx.x % 32 * KR_CHUNK;
#pragma unroll
    for (int i = 0; i < DEPTH; i++)
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) {
            const int64_t n = kr_least(g * COLUMNS + c, k.nn - 1), at = k0 + i * 32 * KR_CHUNK;
            raw.chunk[i][c] = k.aligned ? kr_read_chunk<T, KIND>(k.w, n * k.nk + at, in_range && at < k.nk)
                                        : read_tail<T, KIND>(k.w, n * k.nk + at, in_range ? k.nk - at : 0);
        }
}

template <typename T, int KIND, int ROWS, int COLUMNS, int DEPTH>
static __device__ __forceinline__ void multiply(const kr_linear_job<T> &k, const T *u, int64_t step,
                                                const raw_step<T, KIND, COLUMNS, DEPTH> &raw, T *sum)
{
    const int64_t k0 = step * (DEPTH * 32 * KR_CHUNK) + threadIdx.x % 32 * KR_CHUNK;
#pragma unroll
    for (int i = 0; i < DEPTH; i++) {
        if (k0 + i * 32 * KR_CHUNK >= k.nk) break;
        T w[COLUMNS][KR_CHUNK];
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) kr_widen(raw.chunk[i][c], w[c]);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            T x[KR_CHUNK];
            kr_read_a(u + r * k.padded + k0 + i * 32 * KR_CHUNK, x);
#pragma unroll
            for (int e = 0; e < KR_CHUNK; e++)
#pragma unroll
                for (int c = 0; c < COLUMNS; c++) sum[r * COLUMNS + c] += x[e] * w[c][e];
        }
    }
}

/* Grid: groups of outputs by WARPS, grid-strided; groups of ROWS rows. */
template <typename T, int KIND, int ROWS, int COLUMNS, int DEPTH>
static __global__ void __launch_bounds__(THREADS, 2) gemv_kernel(const __grid_constant__ kr_linear_job<T> k)
{
    enum { VALUES = ROWS * COLUMNS, LANES = 32 / VALUES };
    extern __shared__ uint4 shared[];
    __shared__ T parts[ROWS * WARPS];
    T *u = (T *)(void *)shared;
    const int lane = threadIdx.x % 32;
    const int64_t groups = kr_ceil_div(k.nn, COLUMNS), steps = kr_ceil_div(k.nk, DEPTH * 32 * KR_CHUNK);
    const int64_t stride = (int64_t)gridDim.x * WARPS, m0 = (int64_t)blockIdx.y * ROWS;
    int64_t g = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    raw_step<T, KIND, COLUMNS, DEPTH> raw, next;
    const int value = lane / LANES;
    const int64_t m = m0 + value / COLUMNS;
    read_step(k, g, 0, g < groups, raw);
    kr_pdl_wait();
    const bool stores = lane % LANES == 0 && m < k.nm;
    kr_extras<T> own =
        kr_fetch_extras(k, m, g * COLUMNS + value % COLUMNS, stores && g * COLUMNS + value % COLUMNS < k.nn);
    norm_rows<T, ROWS>(k, m0, u, parts);
    for (; g < groups; g += stride) {
        const int64_t n = g * COLUMNS + value % COLUMNS;
        T sum[VALUES] = {};
        for (int64_t step = 0; step < steps; step++) {
            const bool has_next = step + 1 < steps;
            read_step(k, has_next ? g : g + stride, has_next ? step + 1 : 0, has_next || g + stride < groups, next);
            multiply<T, KIND, ROWS, COLUMNS, DEPTH>(k, u, step, raw, sum);
            raw = next;
        }
        const T total = kr_lanes_sum<VALUES, 16>(sum, lane);
        if (stores && n < k.nn) kr_store_output(k, m, n, total, own);
        own = kr_fetch_extras(k, m, n + stride * COLUMNS, stores && n + stride * COLUMNS < k.nn);
    }
}

template <typename T, int KIND, int ROWS, int COLUMNS, int DEPTH>
static void launch_gemv(const kr_decode_linear_args *a, const kr_linear_job<T> &k)
{
    const int64_t max_blocks = 2 * ((const kr_cuda *)a->exec.own)->multiprocessors;
    const int64_t blocks = kr_ceil_div(kr_ceil_div(k.nn, COLUMNS), WARPS);
    const dim3 grid((unsigned)kr_least(blocks, max_blocks), (unsigned)kr_ceil_div(k.nm, ROWS));
    kr_pdl_launch(&a->exec, gemv_kernel<T, KIND, ROWS, COLUMNS, DEPTH>, grid, THREADS,
                  (size_t)(ROWS * k.padded) * sizeof(T), k);
}

template <typename T, int KIND, int ROWS>
static void launch_rows(const kr_decode_linear_args *a, const kr_linear_job<T> &k)
{
    enum { UNITS = kr_raw_chunk<T, KIND>::UNITS, DEPTH = UNITS == 1 ? 6 : UNITS == 2 ? 4 : 2 };
    if (k.nn < NARROW_OUTPUTS) launch_gemv<T, KIND, ROWS, 1, DEPTH>(a, k);
    else launch_gemv<T, KIND, ROWS, 2, DEPTH / 2>(a, k);
}

template <typename T, int KIND> static void launch_kind(const kr_decode_linear_args *a, const kr_linear_job<T> &k)
{
    if (k.nm == 1) launch_rows<T, KIND, 1>(a, k);
    else if (k.nm == 2) launch_rows<T, KIND, 2>(a, k);
    else if (k.nm <= 4) launch_rows<T, KIND, 4>(a, k);
    else launch_rows<T, KIND, 8>(a, k);
}

/* ---- gemm ---- */

/* One CTA per row: u [m nk] of T or bf16 to scratch, and y = base. The row is computed twice instead of kept, so that its
 * length is not limited. */
template <typename T, typename Out>
static __global__ void __launch_bounds__(THREADS)
    norm_kernel(const __grid_constant__ kr_linear_job<T> k, Out *u, bool copies)
{
    __shared__ T parts[WARPS];
    const int64_t m = blockIdx.x;
    kr_pdl_wait();
    for (int64_t group = 0; group < k.ng; group++) {
        const int64_t from = group * k.width, to = from + k.width;
        if (k.has_norm && !k.squares) {
            const T squares = kr_warp_sum(norm_lane(k, m, from + threadIdx.x, to, (T)1, (T *)NULL));
            if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = squares;
        }
        __syncthreads();
        const T q = scale_of(k, m, parts);
        norm_lane(k, m, from + threadIdx.x, to, q, u + m * k.nk);
        __syncthreads(); /* parts may be reused */
    }
    if (copies)
        for (int64_t n = threadIdx.x; n < k.nn; n += THREADS) k.y[m * k.y_m + n] = k.base[m * k.base_m + n];
}

template <typename T> static __global__ void conv_kernel(const __grid_constant__ kr_linear_job<T> k)
{
    const int64_t m = blockIdx.y, n = k.conv_from + (int64_t)blockIdx.x * THREADS + threadIdx.x;
    kr_linear_job<T> without = k; /* already added by the product */
    without.bias = without.base = NULL;
    kr_pdl_wait();
    if (kr_is_convolved(k, n)) kr_store_output(without, m, n, k.y[m * k.y_m + n], kr_fetch_extras(without, m, n, true));
}

template <typename T> static kr_matmul_args product_of(const kr_decode_linear_args *a)
{
    kr_matmul_args p = {};
    p.exec = a->exec;
    p.nm = a->nm, p.nn = a->nn, p.nk = a->nk;
    const bool casts = sizeof(T) == 4 && kr_decode_autocasts(a);
    p.a = { a->exec.scratch, casts ? KR_DTYPE_BF16 : kr_dtype_of<T>(), a->nk, 1 };
    p.b = { a->w.data, a->w.dtype, 1, a->w.row };
    p.c = a->y;
    p.bias = a->bias;
    p.accumulate = a->base.data != NULL;
    return p;
}

template <typename T> static size_t rows_bytes(const kr_decode_linear_args *a)
{
    return kr_padded_bytes(a->nm * a->nk * (int64_t)sizeof(T));
}

static void matmul(float, const kr_matmul_args *p)
{
    kr_cuda_f32_matmul(p);
}
static void matmul(double, const kr_matmul_args *p)
{
    kr_cuda_f64_matmul(p);
}
static size_t matmul_bytes(float, const kr_matmul_args *p)
{
    return kr_cuda_f32_matmul_scratch(p);
}
static size_t matmul_bytes(double, const kr_matmul_args *p)
{
    return kr_cuda_f64_matmul_scratch(p);
}

template <typename T> static void run_gemm(const kr_decode_linear_args *a, const kr_linear_job<T> &k)
{
    kr_matmul_args p = product_of<T>(a);
    const bool copies = k.base && k.base != k.y;
    if (kr_is_16bit(p.a.dtype))
        kr_pdl_launch(&a->exec, norm_kernel<T, __nv_bfloat16>, dim3((unsigned)k.nm), THREADS, 0, k,
                      (__nv_bfloat16 *)a->exec.scratch, copies);
    else kr_pdl_launch(&a->exec, norm_kernel<T, T>, dim3((unsigned)k.nm), THREADS, 0, k, (T *)a->exec.scratch, copies);
    p.exec.scratch = (char *)a->exec.scratch + rows_bytes<T>(a);
    matmul((T)0, &p);
    if (k.nc)
        kr_pdl_launch(&a->exec, conv_kernel<T>, dim3((unsigned)kr_ceil_div(k.nc, THREADS), (unsigned)k.nm), THREADS, 0,
                      k);
}

/* ---- dispatch ---- */

template <typename T> static bool is_gemv(const kr_decode_linear_args *a)
{
    const size_t shared = (size_t)(KR_GEMV_ROWS * kr_ceil_div(a->nk, KR_CHUNK) * KR_CHUNK) * sizeof(T);
    return a->nm <= KR_GEMV_ROWS && shared + 4096 <= ((const kr_cuda *)a->exec.own)->shared_bytes;
}

/* A norm and a product with a vocabulary-sized weight, which the GEMM kernels read best. */
static bool is_head(const kr_decode_linear_args *a)
{
    const int64_t least = 128 * (int64_t)((const kr_cuda *)a->exec.own)->multiprocessors;
    return a->nn >= least && a->gain && a->has_norm && !a->squares && !a->z.data && a->ng == 1 && !a->base.data &&
           a->nc == 0;
}

/* The same, supported by the skinny GEMM that norms its rows. */
static bool is_skinny_head(const kr_decode_linear_args *a, kr_matmul_args *p)
{
    *p = product_of<float>(a);
    p->a = { a->x.data, a->x.dtype, a->x.row, 1 };
    return is_head(a) && kr_decode_autocasts(a) && a->x.dtype == KR_DTYPE_F32 && kr_is_aligned16(a->gain) &&
           kr_skinny_gemm_can(p);
}

static bool is_skinny(const kr_decode_linear_args *a)
{
    return kr_decode_skinny_can(a) && !is_head(a);
}

template <typename T> static size_t decode_linear_scratch(const kr_decode_linear_args *a)
{
    kr_matmul_args head;
    if (is_gemv<T>(a) || (sizeof(T) == 4 && (is_skinny_head(a, &head) || is_skinny(a)))) return 0;
    const kr_matmul_args p = product_of<T>(a);
    return rows_bytes<T>(a) + matmul_bytes((T)0, &p);
}

static bool run_skinny(const kr_decode_linear_args *a, const kr_linear_job<float> &k)
{
    kr_matmul_args head;
    if (is_skinny_head(a, &head)) kr_skinny_gemm(&head, k.gain, k.eps);
    else if (is_skinny(a)) kr_decode_skinny(a, k);
    else return false;
    return true;
}
static bool run_skinny(const kr_decode_linear_args *, const kr_linear_job<double> &)
{
    return false;
}

template <typename T> static void decode_linear_run(const kr_decode_linear_args *a)
{
    if (a->nm * a->nn == 0) return;
    const kr_linear_job<T> k = kr_linear_job_of<T>(a);
    if (!is_gemv<T>(a)) {
        if (!run_skinny(a, k)) run_gemm<T>(a, k);
        return;
    }
    if (a->w.dtype == KR_DTYPE_BF16) launch_kind<T, KR_DTYPE_BF16>(a, k);
    else if (a->w.dtype == KR_DTYPE_F16) launch_kind<T, KR_DTYPE_F16>(a, k);
    else launch_kind<T, KR_KIND_OWN>(a, k);
}

KR_CUDA_ENTRY_SCRATCH(decode_linear, kr_decode_linear_args)
