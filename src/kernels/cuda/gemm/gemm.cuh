/* gemm.cuh - the matrix product kernels other than cuBLASLt: gemv, skinny and tiled, for all strides and batches. */
#ifndef KR_KERNELS_CUDA_GEMM_GEMM_CUH
#define KR_KERNELS_CUDA_GEMM_GEMM_CUH

#include "kernels/cuda/prim/block_reduce.cuh"

enum { KR_WIDENING_ROWS = 32 }; /* rows up to which 16-bit B is widened on the fly rather than before */

/* Offsets of the matrices of item `index` of the batch space, in elements. */
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

/* Stores one element of C from its sum. */
template <typename T>
static __device__ __forceinline__ void kr_gemm_store(const kr_matmul_args &p, int64_t c, int64_t m, int64_t n, T sum)
{
    const int64_t at = c + m * p.c.row + n;
    if (p.bias) sum += ((const T *)p.bias)[n];
    if (p.accumulate) sum += kr_element<T>(p.c.data, at, p.c.dtype);
    if (p.c.dtype == KR_DTYPE_BF16) ((__nv_bfloat16 *)p.c.data)[at] = __float2bfloat16((float)sum);
    else if (p.c.dtype == KR_DTYPE_F16) ((__half *)p.c.data)[at] = __float2half((float)sum);
    else ((T *)p.c.data)[at] = sum;
}

/* Tiled: any product. */
template <typename T> void kr_tiled_gemm(const kr_matmul_args *p);

/* Gemv, few rows: a warp computes some columns of C and reads their part of B once, along k. */
bool kr_gemv_can(const kr_matmul_args *p);
template <typename T> void kr_gemv(const kr_matmul_args *p);

/* Skinny GEMM: few rows, many columns, B of bf16, A rounded to bf16; B is read once, at memory bandwidth. sm_90a. gain [k],
 * unless NULL: A, of f32, is normalised: a gain / (mean of the row's a^2 + eps)^1/2. */
bool kr_skinny_gemm_can(const kr_matmul_args *p);
void kr_skinny_gemm(const kr_matmul_args *p, const float *gain, float eps);

/* y [batch rows stride] of Out = x, of T or 16-bit, with strides x_row and x_column; columns of y from `columns` up to the
 * stride are not written. */
typedef struct kr_gemm_copy {
    int64_t nbatch, rows, columns;
    const void *x;
    int64_t x_batch, x_row, x_column;
    kr_dtype x_dtype;
    void *y;
    int64_t y_batch, y_row;
} kr_gemm_copy;
template <typename T, typename Out> void kr_gemm_copy_run(const kr_gemm_copy &copy, cudaStream_t stream);

/* Sets every row of C to the bias, or adds it. */
template <typename T> void kr_gemm_add_bias(const kr_matmul_args *p);

#endif
