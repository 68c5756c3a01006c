/* decode_skinny.cuh - skinny GEMM with fused norm on tensor cores, in one kernel: y = base + norm(x) W^T + bias. */
#ifndef KR_KERNELS_CUDA_DECODE_DECODE_SKINNY_CUH
#define KR_KERNELS_CUDA_DECODE_DECODE_SKINNY_CUH

#include "kernels/cuda/prim/mma.cuh"
#include "kernels/cuda/decode/decode_linear.cuh"

/* Conditions on sizes, dtypes and strides: more than KR_GEMV_ROWS rows, operands rounded to bf16, no gate. */
bool kr_decode_skinny_can(const kr_decode_linear_args *a);
void kr_decode_skinny(const kr_decode_linear_args *a, const kr_linear_job<float> &k);

/* Products of 32 adjacent k with eight outputs: a lane has 8 adjacent elements of rows lane / 4 + 8 i of x and of output
 * lane / 4. The order of k is free as long as both operands share it: 8 adjacent elements of four lanes are two k16
 * products. n_stride: stride between row tiles in sum, in groups of eight outputs. */
template <int M_TILES>
static __device__ __forceinline__ void kr_multiply_eight(const uint4 x[2 * M_TILES], const uint4 &w,
                                                         float sum[M_TILES][4], int n_stride)
{
#pragma unroll
    for (int t = 0; t < M_TILES; t++) {
        const uint4 &x0 = x[2 * t], &x1 = x[2 * t + 1];
        const uint32_t low[4] = { x0.x, x1.x, x0.y, x1.y }, high[4] = { x0.z, x1.z, x0.w, x1.w };
        kr_mma(sum[t * n_stride], low, w.x, w.y);
        kr_mma(sum[t * n_stride], high, w.z, w.w);
    }
}

#endif
