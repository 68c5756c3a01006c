/* tiled_gemm.cu - tiled C = A B (+ bias) (+ C), for any strides, batches and storage types; all architectures, f32 and f64.
 *
 *   A [m k], B [k n], C [m n]; an element of C is one chain of multiply-adds in the order of k
 *
 * A CTA computes a tile of TILE x TILE, a thread 4 x 4 of it. Tiles of A and B of DEPTH along k go through shared memory,
 * the next one being loaded into registers while one is used. Threads read along the contiguous axis. Also the copies that
 * cuBLASLt products need: operands converted, and C filled with the bias.
 */
#include "kernels/cuda/gemm/gemm.cuh"

enum { TILE = 64, DEPTH = 16, THREADS = 256, PER_THREAD = TILE * DEPTH / THREADS, SIDE = 4, MAX_ITEMS = 65535 };

/* Position (row, k) of element e that a thread moves in an operand's tile [TILE, DEPTH]. along_k: k is fastest. */
static __device__ __forceinline__ int2 tile_at(bool along_k, int e)
{
    const int t = (int)threadIdx.x;
    return along_k ? make_int2(t / DEPTH + e * (THREADS / DEPTH), t % DEPTH)
                   : make_int2(t % TILE, t / TILE + e * (THREADS / TILE));
}

typedef struct operand {
    const void *x;
    kr_dtype kind;
    int64_t first, row, k; /* offset of the tile; strides */
    int64_t rows;          /* rows of the operand from there on */
    bool along_k;
} operand;

template <typename T>
static __device__ __forceinline__ void load_tile(const operand &o, int64_t k0, int64_t nk, T ahead[PER_THREAD])
{
#pragma unroll
    for (int e = 0; e < PER_THREAD; e++) {
        const int2 at = tile_at(o.along_k, e);
        const int64_t k = k0 + at.y;
        ahead[e] = at.x < o.rows && k < nk ? kr_element<T>(o.x, o.first + at.x * o.row + k * o.k, o.kind) : (T)0;
    }
}

template <typename T>
static __device__ __forceinline__ void store_tile(T (*tile)[TILE + SIDE], bool along_k, const T ahead[PER_THREAD])
{
#pragma unroll
    for (int e = 0; e < PER_THREAD; e++) {
        const int2 at = tile_at(along_k, e);
        tile[at.y][at.x] = ahead[e];
    }
}

template <typename T>
static __global__ void __launch_bounds__(THREADS) tiled_kernel(const kr_matmul_args p, int64_t items)
{
    __shared__ __align__(16) T a[DEPTH][TILE + SIDE], b[DEPTH][TILE + SIDE];
    const int64_t across = kr_ceil_div(p.nn, TILE), m0 = blockIdx.x / across * TILE, n0 = blockIdx.x % across * TILE;
    const int row = (int)threadIdx.x / (TILE / SIDE) * SIDE, column = (int)threadIdx.x % (TILE / SIDE) * SIDE;
    for (int64_t index = blockIdx.y; index < items; index += gridDim.y) {
        const kr_gemm_item item = kr_gemm_item_at(p, index);
        const operand of_a = { p.a.data,   p.a.dtype, item.a + m0 * p.a.row, p.a.row,
                               p.a.column, p.nm - m0, p.a.column == 1 };
        const operand of_b = { p.b.data,  p.b.dtype,   item.b + n0 * p.b.column, p.b.column, p.b.row,
                               p.nn - n0, p.b.row == 1 };
        T sum[SIDE][SIDE] = {}, a_ahead[PER_THREAD], b_ahead[PER_THREAD];
        load_tile(of_a, 0, p.nk, a_ahead);
        load_tile(of_b, 0, p.nk, b_ahead);
        for (int64_t k0 = 0; k0 < p.nk; k0 += DEPTH) {
            store_tile(a, of_a.along_k, a_ahead);
            store_tile(b, of_b.along_k, b_ahead);
            __syncthreads();
            load_tile(of_a, k0 + DEPTH, p.nk, a_ahead);
            load_tile(of_b, k0 + DEPTH, p.nk, b_ahead);
#pragma unroll
            for (int k = 0; k < DEPTH; k++) {
                T x[SIDE], y[SIDE];
#pragma unroll
                for (int i = 0; i < SIDE; i++) x[i] = a[k][row + i], y[i] = b[k][column + i];
#pragma unroll
                for (int i = 0; i < SIDE; i++)
#pragma unroll
                    for (int j = 0; j < SIDE; j++) sum[i][j] += x[i] * y[j];
            }
            __syncthreads();
        }
#pragma unroll
        for (int i = 0; i < SIDE; i++)
#pragma unroll
            for (int j = 0; j < SIDE; j++)
                if (m0 + row + i < p.nm && n0 + column + j < p.nn)
                    kr_gemm_store(p, item.c, m0 + row + i, n0 + column + j, sum[i][j]);
    }
}

template <typename T> void kr_tiled_gemm(const kr_matmul_args *p)
{
    const int64_t items = kr_gemm_items(p), tiles = kr_ceil_div(p->nm, TILE) * kr_ceil_div(p->nn, TILE);
    if (items * tiles == 0) return;
    tiled_kernel<T>
        <<<dim3((unsigned)tiles, (unsigned)kr_least(items, MAX_ITEMS)), THREADS, 0, kr_stream_of(&p->exec)>>>(*p,
                                                                                                              items);
}

/* ---- copies ---- */

enum { VEC = 8 }; /* columns per thread */

static __device__ __forceinline__ void store_as(float *y, float x)
{
    *y = x;
}
static __device__ __forceinline__ void store_as(double *y, double x)
{
    *y = x;
}
static __device__ __forceinline__ void store_as(__nv_bfloat16 *y, float x)
{
    *y = __float2bfloat16(x);
}

/* VEC elements of x from `at` on; whole: contiguous, 16-byte aligned and all within the row. */
template <typename T>
static __device__ __forceinline__ void load_vec(const kr_gemm_copy &c, int64_t at, int64_t left, bool whole, T vec[VEC])
{
    if (whole && kr_is_16bit(c.x_dtype)) {
        const uint4 bits = *(const uint4 *)((const uint16_t *)c.x + at);
        const uint32_t words[4] = { bits.x, bits.y, bits.z, bits.w };
#pragma unroll
        for (int i = 0; i < VEC; i++) vec[i] = (T)kr_from_16bit((uint16_t)(words[i / 2] >> (16 * (i % 2))), c.x_dtype);
    } else if (whole) {
#pragma unroll
        for (int i = 0; i < VEC; i += kr_vec16<T>::N) {
            const kr_vec16<T> p = kr_load_vec16((const T *)c.x + at + i, VEC, true);
#pragma unroll
            for (int e = 0; e < kr_vec16<T>::N; e++) vec[i + e] = p.v[e];
        }
    } else {
#pragma unroll
        for (int i = 0; i < VEC; i++) vec[i] = i < left ? kr_element<T>(c.x, at + i * c.x_column, c.x_dtype) : (T)0;
    }
}

/* Rows and batches of y are multiples of VEC. */
template <typename T, typename Out>
static __global__ void __launch_bounds__(THREADS) copy_kernel(const kr_gemm_copy c, bool aligned)
{
    const int64_t vecs = kr_ceil_div(c.columns, VEC), n = c.nbatch * c.rows * vecs;
    for (int64_t at = (int64_t)blockIdx.x * THREADS + threadIdx.x; at < n; at += (int64_t)gridDim.x * THREADS) {
        const int64_t column = at % vecs * VEC, row = at / vecs % c.rows, batch = at / (vecs * c.rows);
        const int64_t left = c.columns - column;
        T x[VEC];
        load_vec(c, batch * c.x_batch + row * c.x_row + column * c.x_column, left, aligned && left >= VEC, x);
        Out *y = (Out *)c.y + batch * c.y_batch + row * c.y_row + column;
        __align__(16) Out vec[VEC];
#pragma unroll
        for (int i = 0; i < VEC; i++) store_as(&vec[i], x[i]);
#pragma unroll
        for (int i = 0; i < (int)(VEC * sizeof(Out) / 16); i++) ((uint4 *)y)[i] = ((const uint4 *)vec)[i];
    }
}

template <typename T, typename Out> void kr_gemm_copy_run(const kr_gemm_copy &c, cudaStream_t stream)
{
    const int64_t n = c.nbatch * c.rows * kr_ceil_div(c.columns, VEC),
                  step = kr_is_16bit(c.x_dtype) ? 8 : kr_vec16<T>::N;
    const bool aligned = c.x_column == 1 && kr_is_aligned16(c.x) && c.x_row % step == 0 && c.x_batch % step == 0;
    if (n > 0)
        copy_kernel<T, Out><<<(unsigned)kr_least(kr_ceil_div(n, THREADS), 1 << 20), THREADS, 0, stream>>>(c, aligned);
}

template <typename T>
static __global__ void __launch_bounds__(THREADS) bias_kernel(const kr_matmul_args p, int64_t items)
{
    const int64_t n = items * p.nm * p.nn;
    for (int64_t at = (int64_t)blockIdx.x * THREADS + threadIdx.x; at < n; at += (int64_t)gridDim.x * THREADS)
        kr_gemm_store(p, kr_gemm_item_at(p, at / (p.nm * p.nn)).c, at / p.nn % p.nm, at % p.nn, (T)0);
}

template <typename T> void kr_gemm_add_bias(const kr_matmul_args *p)
{
    const int64_t items = kr_gemm_items(p), n = items * p->nm * p->nn;
    if (n > 0)
        bias_kernel<T>
            <<<(unsigned)kr_least(kr_ceil_div(n, THREADS), 1 << 20), THREADS, 0, kr_stream_of(&p->exec)>>>(*p, items);
}

template void kr_tiled_gemm<float>(const kr_matmul_args *);
template void kr_tiled_gemm<double>(const kr_matmul_args *);
template void kr_gemm_add_bias<float>(const kr_matmul_args *);
template void kr_gemm_add_bias<double>(const kr_matmul_args *);
template void kr_gemm_copy_run<float, float>(const kr_gemm_copy &, cudaStream_t);
template void kr_gemm_copy_run<float, __nv_bfloat16>(const kr_gemm_copy &, cudaStream_t);
template void kr_gemm_copy_run<double, double>(const kr_gemm_copy &, cudaStream_t);
