/* token_linear_cuda.cu - y = base + norm(x, z) W^T + bias for one token of each row, some outputs through a
 * convolution.
 *
 *   x, z [m k], w [n k], base, y [m n]; formulas: kernels/token_args.h
 *
 * Few rows: one kernel. A warp has COLUMNS outputs at a time and reads their weights once, one step of
 * DEPTH chunks for each lane ahead; the first step is on its way before the kernel that makes x has ended. Then the
 * block forms norm(x, z) in shared memory, and its warps multiply. Squares are added in 256 lanes, those by halves of
 * 32 and in order; products along k in each lane, then lanes by halves: the order depends on k alone.
 * More rows, in bf16: token_rows_cuda.cu. Else: a kernel for the norm, the product of matmul, a kernel for the
 * convolution.
 */
#include "kernels/cuda/few.cuh"
#include "kernels/cuda/gemm.cuh"
#include "kernels/cuda/token_linear.cuh"
#include "kernels/cuda/token_rows.cuh"

enum { WARPS = 8, THREADS = 32 * WARPS, FEW_OUTPUTS = 2200 };

/* ---- the norm ---- */

/* Elements of one virtual lane of row m: i, i + THREADS, ... up to `to`, BATCH of them on their way at a time. q u gain
 * (silu(z) with norm_first) goes to room, unless that is NULL; the squares of u are the result. */
template <typename T, typename Out>
static __device__ __forceinline__ T form_lane(const kr_linear_job<T> &k, int64_t m, int64_t i, int64_t to, T q,
                                              Out *room)
{
    enum { BATCH = 6 };
    const T *z = k.z ? k.z + m * k.z_m : NULL;
    T squares = 0;
    for (; i < to; i += BATCH * THREADS) {
        T u[BATCH], gate[BATCH], gain[BATCH];
#pragma unroll
        for (int e = 0; e < BATCH; e++) {
            const int64_t at = i + e * THREADS;
            u[e] = at < to ? kr_element<T>(k.x, m * k.x_m + at, k.x_half) : (T)0;
            gate[e] = z && at < to ? z[at] : (T)0;
            gain[e] = k.gain && at < to ? k.gain[at] : (T)1;
        }
#pragma unroll
        for (int e = 0; e < BATCH; e++) {
            const int64_t at = i + e * THREADS;
            const T gated = z ? kr_silu(gate[e]) : (T)1;
            if (!k.norm_first) u[e] *= gated;
            squares += u[e] * u[e];
            if (room && at < to) room[at] = (Out)(u[e] * gain[e] * (k.norm_first ? gated : (T)1) * q);
        }
    }
    return squares;
}

/* 1 / the root of what the squares of a row are on average: those of `parts`, which its warps have left there, or those
 * that the job has. */
template <typename T> static __device__ __forceinline__ T scale_of(const kr_linear_job<T> &k, int64_t m, const T *parts)
{
    if (!k.has_norm) return (T)1;
    T squares = 0;
    if (k.squares) squares = kr_row_squares(k, m);
    else
#pragma unroll
        for (int w = 0; w < WARPS; w++) squares += parts[w];
    return 1 / kr_root(squares / (T)k.width + k.eps);
}

/* norm(x, z) of rows m0 .. m0 + ROWS - 1 to room [ROWS padded], zeros behind nk; WARPS / ROWS warps have a row. parts:
 * [ROWS WARPS]. */
template <typename T, int ROWS>
static __device__ void form_rows(const kr_linear_job<T> &k, int64_t m0, T *room, T *parts)
{
    enum { SHARE = WARPS / ROWS };
    const int lane = threadIdx.x % 32, row = threadIdx.x / 32 / SHARE, first = threadIdx.x / 32 % SHARE;
    const int64_t m = kr_least(m0 + row, k.nm - 1); /* what is past the last repeats the last */
    T *u = room + row * k.padded;
    if (first == 0 && k.nk + lane < k.padded) u[k.nk + lane] = 0;
    for (int64_t group = 0; group < k.ng; group++) {
        const int64_t from = group * k.width, to = from + k.width;
#pragma unroll
        for (int w = 0; w < ROWS; w++) { /* the lanes that one warp would have if eight had the row */
            const int as = first + w * SHARE;
            const T squares = kr_warp_sum(form_lane(k, m, from + as * 32 + lane, to, (T)1, u));
            if (lane == 0) parts[row * WARPS + as] = squares;
        }
        __syncthreads();
        const T q = scale_of(k, m, parts + row * WARPS);
        for (int64_t i = from + first * 32 + lane; i < to; i += SHARE * 32) u[i] *= q;
        __syncthreads(); /* parts are free again; u is whole */
    }
}

/* ---- few rows ---- */

template <typename T, int KIND, int COLUMNS, int DEPTH> struct raw_step {
    kr_raw_chunk<T, KIND> chunk[DEPTH][COLUMNS];
};

/* A chunk of which some elements are behind the end, or that does not allow a step of 16 bytes. */
template <typename T, int KIND>
static __device__ __noinline__ kr_raw_chunk<T, KIND> read_apart(const void *w, int64_t at, int64_t left)
{
    typedef typename kr_raw_element<T, KIND>::type element;
    kr_raw_chunk<T, KIND> raw;
    element e[KR_CHUNK];
    for (int i = 0; i < KR_CHUNK; i++) e[i] = i < left ? ((const element *)w)[at + i] : (element)0;
    memcpy(&raw, e, sizeof e);
    return raw;
}

/* Step `step` of the outputs of group `g`, COLUMNS of them. */
template <typename T, int KIND, int COLUMNS, int DEPTH>
static __device__ __forceinline__ void read_step(const kr_linear_job<T> &k, int64_t g, int64_t step, bool is_there,
                                                 raw_step<T, KIND, COLUMNS, DEPTH> &raw)
{
    const int64_t k0 = step * (DEPTH * 32 * KR_CHUNK) + threadIdx.x % 32 * KR_CHUNK;
#pragma unroll
    for (int i = 0; i < DEPTH; i++)
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) {
            const int64_t n = kr_least(g * COLUMNS + c, k.nn - 1), at = k0 + i * 32 * KR_CHUNK;
            raw.chunk[i][c] = k.aligned ? kr_read_chunk<T, KIND>(k.w, n * k.nk + at, is_there && at < k.nk)
                                        : read_apart<T, KIND>(k.w, n * k.nk + at, is_there ? k.nk - at : 0);
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

/* Grid: groups of outputs by WARPS, going round; groups of ROWS rows. */
template <typename T, int KIND, int ROWS, int COLUMNS, int DEPTH>
static __global__ void __launch_bounds__(THREADS, 2) few_kernel(const __grid_constant__ kr_linear_job<T> k)
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
    kr_token_wait();
    const bool puts = lane % LANES == 0 && m < k.nm;
    kr_extras<T> own =
        kr_fetch_extras(k, m, g * COLUMNS + value % COLUMNS, puts && g * COLUMNS + value % COLUMNS < k.nn);
    form_rows<T, ROWS>(k, m0, u, parts);
    for (; g < groups; g += stride) {
        const int64_t n = g * COLUMNS + value % COLUMNS;
        T sum[VALUES] = {};
        for (int64_t step = 0; step < steps; step++) {
            const bool goes_on = step + 1 < steps;
            read_step(k, goes_on ? g : g + stride, goes_on ? step + 1 : 0, goes_on || g + stride < groups, next);
            multiply<T, KIND, ROWS, COLUMNS, DEPTH>(k, u, step, raw, sum);
            raw = next;
        }
        const T whole = kr_sum_lanes<VALUES, 16>(sum, lane);
        if (puts && n < k.nn) kr_put_output(k, m, n, whole, own);
        own = kr_fetch_extras(k, m, n + stride * COLUMNS, puts && n + stride * COLUMNS < k.nn);
    }
}

template <typename T, int KIND, int ROWS, int COLUMNS, int DEPTH>
static void launch_few(const kr_token_linear_args *a, const kr_linear_job<T> &k)
{
    const int64_t most = 2 * ((const kr_cuda *)a->exec.own)->multiprocessors;
    const int64_t blocks = kr_ceil_div(kr_ceil_div(k.nn, COLUMNS), WARPS);
    const dim3 grid((unsigned)kr_least(blocks, most), (unsigned)kr_ceil_div(k.nm, ROWS));
    kr_token_launch(&a->exec, few_kernel<T, KIND, ROWS, COLUMNS, DEPTH>, grid, THREADS,
                    (size_t)(ROWS * k.padded) * sizeof(T), k);
}

template <typename T, int KIND, int ROWS>
static void launch_rows(const kr_token_linear_args *a, const kr_linear_job<T> &k)
{
    enum { UNITS = kr_raw_chunk<T, KIND>::UNITS, DEPTH = UNITS == 1 ? 6 : UNITS == 2 ? 4 : 2 };
    if (k.nn < FEW_OUTPUTS) launch_few<T, KIND, ROWS, 1, DEPTH>(a, k);
    else launch_few<T, KIND, ROWS, 2, DEPTH / 2>(a, k);
}

template <typename T, int KIND> static void launch_kind(const kr_token_linear_args *a, const kr_linear_job<T> &k)
{
    if (k.nm == 1) launch_rows<T, KIND, 1>(a, k);
    else if (k.nm == 2) launch_rows<T, KIND, 2>(a, k);
    else if (k.nm <= 4) launch_rows<T, KIND, 4>(a, k);
    else launch_rows<T, KIND, 8>(a, k);
}

/* ---- many rows ---- */

/* A block has a row: u [m nk] of T or of bf16 to scratch, and y = base. The row is formed twice rather than kept, so that
 * it may be of any length. */
template <typename T, typename Out>
static __global__ void __launch_bounds__(THREADS)
    norm_kernel(const __grid_constant__ kr_linear_job<T> k, Out *u, bool copies)
{
    __shared__ T parts[WARPS];
    const int64_t m = blockIdx.x;
    kr_token_wait();
    for (int64_t group = 0; group < k.ng; group++) {
        const int64_t from = group * k.width, to = from + k.width;
        if (k.has_norm && !k.squares) {
            const T squares = kr_warp_sum(form_lane(k, m, from + threadIdx.x, to, (T)1, (T *)NULL));
            if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = squares;
        }
        __syncthreads();
        const T q = scale_of(k, m, parts);
        form_lane(k, m, from + threadIdx.x, to, q, u + m * k.nk);
        __syncthreads(); /* parts are free again */
    }
    if (copies)
        for (int64_t n = threadIdx.x; n < k.nn; n += THREADS) k.y[m * k.y_m + n] = k.base[m * k.base_m + n];
}

template <typename T> static __global__ void conv_kernel(const __grid_constant__ kr_linear_job<T> k)
{
    const int64_t m = blockIdx.y, n = k.conv_from + (int64_t)blockIdx.x * THREADS + threadIdx.x;
    kr_linear_job<T> without = k; /* the product has these in it */
    without.bias = without.base = NULL;
    kr_token_wait();
    if (kr_is_convolved(k, n)) kr_put_output(without, m, n, k.y[m * k.y_m + n], kr_fetch_extras(without, m, n, true));
}

template <typename T> static kr_matmul_args product_of(const kr_token_linear_args *a)
{
    kr_matmul_args p = {};
    p.exec = a->exec;
    p.nm = a->nm, p.nn = a->nn, p.nk = a->nk;
    p.a_m = a->nk, p.a_k = 1;
    p.a_half = sizeof(T) == 4 && kr_token_rounds(a) ? KR_HALF_BF16 : KR_NO_HALF;
    p.a = a->exec.scratch;
    p.b = a->w, p.b_k = 1, p.b_n = a->nk, p.b_half = a->w_half;
    p.c = a->y, p.c_m = a->y_m;
    p.bias = a->bias;
    p.accumulate = a->base != NULL;
    return p;
}

template <typename T> static size_t rows_bytes(const kr_token_linear_args *a)
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

template <typename T> static void run_many(const kr_token_linear_args *a, const kr_linear_job<T> &k)
{
    kr_matmul_args p = product_of<T>(a);
    const bool copies = k.base && k.base != k.y;
    if (p.a_half)
        kr_token_launch(&a->exec, norm_kernel<T, __nv_bfloat16>, dim3((unsigned)k.nm), THREADS, 0, k,
                        (__nv_bfloat16 *)a->exec.scratch, copies);
    else
        kr_token_launch(&a->exec, norm_kernel<T, T>, dim3((unsigned)k.nm), THREADS, 0, k, (T *)a->exec.scratch, copies);
    p.exec.scratch = (char *)a->exec.scratch + rows_bytes<T>(a);
    matmul((T)0, &p);
    if (k.nc)
        kr_token_launch(&a->exec, conv_kernel<T>, dim3((unsigned)kr_ceil_div(k.nc, THREADS), (unsigned)k.nm), THREADS,
                        0, k);
}

/* ---- choosing ---- */

template <typename T> static bool is_few(const kr_token_linear_args *a)
{
    const size_t shared = (size_t)(KR_FEW_ROWS * kr_ceil_div(a->nk, KR_CHUNK) * KR_CHUNK) * sizeof(T);
    return a->nm <= KR_FEW_ROWS && shared + 4096 <= ((const kr_cuda *)a->exec.own)->shared_bytes;
}

/* A norm and a product with a vocabulary, whose weight is best read by the kernels of products. */
static bool is_head(const kr_token_linear_args *a)
{
    const int64_t least = 128 * (int64_t)((const kr_cuda *)a->exec.own)->multiprocessors;
    return a->nn >= least && a->gain && a->has_norm && !a->squares && !a->z && a->ng == 1 && !a->base && a->nc == 0;
}

/* ... by one of them that norms its rows. */
static bool is_head_of_rows(const kr_token_linear_args *a, kr_matmul_args *p)
{
    *p = product_of<float>(a);
    p->a = a->x, p->a_m = a->x_m, p->a_half = KR_NO_HALF;
    return is_head(a) && kr_token_rounds(a) && !a->x_half && kr_allows16(a->gain) && kr_gemm_rows_can(p);
}

static bool is_of_rows(const kr_token_linear_args *a)
{
    return kr_token_rows_can(a) && !is_head(a);
}

template <typename T> static size_t token_linear_scratch(const kr_token_linear_args *a)
{
    kr_matmul_args head;
    if (is_few<T>(a) || (sizeof(T) == 4 && (is_head_of_rows(a, &head) || is_of_rows(a)))) return 0;
    const kr_matmul_args p = product_of<T>(a);
    return rows_bytes<T>(a) + matmul_bytes((T)0, &p);
}

static bool run_rows(const kr_token_linear_args *a, const kr_linear_job<float> &k)
{
    kr_matmul_args head;
    if (is_head_of_rows(a, &head)) kr_gemm_rows(&head, k.gain, k.eps);
    else if (is_of_rows(a)) kr_token_rows(a, k);
    else return false;
    return true;
}
static bool run_rows(const kr_token_linear_args *, const kr_linear_job<double> &)
{
    return false;
}

template <typename T> static void token_linear_run(const kr_token_linear_args *a)
{
    if (a->nm * a->nn == 0) return;
    const kr_linear_job<T> k = kr_linear_job_of<T>(a);
    if (!is_few<T>(a)) {
        if (!run_rows(a, k)) run_many<T>(a, k);
        return;
    }
    if (a->w_half == KR_HALF_BF16) launch_kind<T, KR_HALF_BF16>(a, k);
    else if (a->w_half == KR_HALF_F16) launch_kind<T, KR_HALF_F16>(a, k);
    else launch_kind<T, KR_NO_HALF>(a, k);
}

KR_CUDA_ENTRY_SCRATCH(token_linear, kr_token_linear_args)
