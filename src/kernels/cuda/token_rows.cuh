/* token_rows.cuh - y = base + norm(x) W^T + bias of some rows on the matrix units, in one kernel. */
#ifndef KR_KERNELS_CUDA_TOKEN_ROWS_CUH
#define KR_KERNELS_CUDA_TOKEN_ROWS_CUH

#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/token_linear.cuh"

/* By sizes, types and how they lie: more than KR_FEW_ROWS rows, operands that are rounded to bf16, no gate. */
bool kr_token_rows_can(const kr_token_linear_args *a);
void kr_token_rows(const kr_token_linear_args *a, const kr_linear_job<float> &k);

/* Products of 32 neighbours of k with eight outputs: a lane has 8 neighbours of rows lane / 4 + 8 i of x and of output
 * lane / 4, as they lie. Products may have their k in any order as long as both operands have it: 8 neighbours of each of
 * four lanes are two products of 16. sum: `apart` groups of eight outputs apart. */
template <int TILES>
static __device__ __forceinline__ void kr_multiply_eight(const uint4 x[2 * TILES], const uint4 &w, float sum[TILES][4],
                                                         int apart)
{
#pragma unroll
    for (int t = 0; t < TILES; t++) {
        const uint4 &x0 = x[2 * t], &x1 = x[2 * t + 1];
        const uint32_t low[4] = { x0.x, x1.x, x0.y, x1.y }, high[4] = { x0.z, x1.z, x0.w, x1.w };
        kr_mma(sum[t * apart], low, w.x, w.y);
        kr_mma(sum[t * apart], high, w.z, w.w);
    }
}

#endif
