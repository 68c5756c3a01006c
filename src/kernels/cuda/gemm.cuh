/* gemm.cuh - the ways to do a matrix product with kernels of our own, for all strides and batches. */
#ifndef KR_KERNELS_CUDA_GEMM_CUH
#define KR_KERNELS_CUDA_GEMM_CUH

#include "kernels/cuda/parts.cuh"

enum { KR_SOME_ROWS = 32 }; /* up to which halves are widened on the way rather than before */

/* Where the matrices of item `index` of the batch space begin, in elements. */
typedef struct kr_gemm_item {
    int64_t a, b, c;
} kr_gemm_item;

static __host__ __device__ inline kr_gemm_item kr_gemm_item_at(const kr_matmul_args &p, int64_t index)
{
    kr_gemm_item item = { 0, 0, 0 };
    for (int axis = p.batch_rank - 1; axis >= 0; axis--) {
        const int64_t at = index % p.batch_dims[axis];
        index /= p.batch_dims[axis];
        item.a += at * p.batch_a[axis];
        item.b += at * p.batch_b[axis];
        item.c += at * p.batch_c[axis];
    }
    return item;
}

static inline int64_t kr_gemm_items(const kr_matmul_args *p)
{
    int64_t n = 1;
    for (int axis = 0; axis < p->batch_rank; axis++) n *= p->batch_dims[axis];
    return n;
}

/* One element of C from its sum. */
template <typename T>
static __device__ __forceinline__ void kr_gemm_store(const kr_matmul_args &p, int64_t c, int64_t m, int64_t n, T sum)
{
    const int64_t at = c + m * p.c_m + n;
    if (p.bias) sum += ((const T *)p.bias)[n];
    if (p.accumulate) sum += kr_element<T>(p.c, at, p.c_half);
    if (p.c_half == KR_HALF_BF16) ((__nv_bfloat16 *)p.c)[at] = __float2bfloat16((float)sum);
    else if (p.c_half == KR_HALF_F16) ((__half *)p.c)[at] = __float2half((float)sum);
    else ((T *)p.c)[at] = sum;
}

/* Tiles of C, any product. */
template <typename T> void kr_gemm_tiles(const kr_matmul_args *p);

/* Few rows: a warp has some columns of C and reads its part of B once for them, along k. */
bool kr_gemm_few_can(const kr_matmul_args *p);
template <typename T> void kr_gemm_few(const kr_matmul_args *p);

/* Some rows, many columns, B of bf16, A rounded to it: B is read once, at the speed of memory. sm_90a.
 * gain [k], unless NULL: A, of f32, is normed: a gain / (mean of the row's a^2 + eps)^1/2. */
bool kr_gemm_rows_can(const kr_matmul_args *p);
void kr_gemm_rows(const kr_matmul_args *p, const float *gain, float eps);

/* y [batch rows stride] of Out = x, whose elements (T or halves) lie x_row and x_column apart; columns of y from `columns`
 * up to the stride are not written. */
typedef struct kr_gemm_copy {
    int64_t nbatch, rows, columns;
    const void *x;
    int64_t x_batch, x_row, x_column;
    kr_half x_half;
    void *y;
    int64_t y_batch, y_row;
} kr_gemm_copy;
template <typename T, typename Out> void kr_gemm_copy_run(const kr_gemm_copy &copy, cudaStream_t stream);

/* Every row of C becomes the bias, or gets it added. */
template <typename T> void kr_gemm_add_bias(const kr_matmul_args *p);

#endif
