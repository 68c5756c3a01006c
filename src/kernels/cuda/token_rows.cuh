/* token_rows.cuh - y = base + norm(x) W^T + bias of some rows on the matrix units, in one kernel. */
#ifndef KR_KERNELS_CUDA_TOKEN_ROWS_CUH
#define KR_KERNELS_CUDA_TOKEN_ROWS_CUH

#include "kernels/cuda/token_linear.cuh"

/* By sizes, types and how they lie: more than KR_FEW_ROWS rows, operands that are rounded to bf16, no gate. */
bool kr_token_rows_can(const kr_token_linear_args *a);
void kr_token_rows(const kr_token_linear_args *a, const kr_linear_job<float> &k);

#endif
