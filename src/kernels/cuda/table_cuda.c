/* table_cuda.c - the table of the CUDA kernels: a row for each that there is. */
#include "kernels/cuda/cuda.h"

/* f32 and f64; with scratch, and without. */
#define REALS(kernel) .kernel = { { kr_cuda_f32_##kernel, NULL }, { kr_cuda_f64_##kernel, NULL } }
#define REALS_WITH_SCRATCH(kernel)                                                                                     \
    .kernel = { { kr_cuda_f32_##kernel, kr_cuda_f32_##kernel##_scratch },                                              \
                { kr_cuda_f64_##kernel, kr_cuda_f64_##kernel##_scratch } }
#define ANY(kernel) .kernel = { kr_cuda_##kernel, NULL }
#define ANY_WITH_SCRATCH(kernel) .kernel = { kr_cuda_##kernel, kr_cuda_##kernel##_scratch }

const kr_kernels kr_cuda_kernels = {
    .name = "cuda",
#define KR_UNARY(kernel) REALS(kernel), REALS(kernel##_bwd),
#include "kernels/unary.def"
#undef KR_UNARY
#define KR_BINARY(kernel) REALS(kernel),
#include "kernels/binary.def"
#undef KR_BINARY
    REALS(maximum_bwd),
    REALS(where),
    REALS_WITH_SCRATCH(sum),
    REALS(max),
    REALS(max_bwd),
    REALS(cumsum),
    REALS(segsum),
    REALS_WITH_SCRATCH(segsum_bwd),
    REALS(softmax),
    REALS(softmax_bwd),
    REALS(cross_entropy),
    REALS(cross_entropy_bwd),
    REALS_WITH_SCRATCH(matmul),
    REALS(norm),
    REALS_WITH_SCRATCH(norm_bwd),
    REALS(gate),
    REALS(gate_bwd),
    REALS_WITH_SCRATCH(conv),
    REALS_WITH_SCRATCH(conv_bwd),
    REALS(gather),
    REALS(gather_bwd),
    REALS(embedding),
    REALS_WITH_SCRATCH(embedding_bwd),
    REALS(trapezoid),
    REALS(trapezoid_bwd),
    REALS_WITH_SCRATCH(angles),
    REALS_WITH_SCRATCH(angles_bwd),
    REALS(rotate),
    REALS_WITH_SCRATCH(rotate_bwd),
    REALS(quaternion_exp),
    REALS(quaternion_exp_bwd),
    REALS_WITH_SCRATCH(quaternion_scan),
    REALS_WITH_SCRATCH(quaternion_scan_bwd),
    REALS(quaternion_rotate),
    REALS(quaternion_rotate_bwd),
    REALS_WITH_SCRATCH(ssd),
    REALS_WITH_SCRATCH(ssd_bwd),
    REALS_WITH_SCRATCH(scan),
    REALS_WITH_SCRATCH(scan_bwd),
    REALS_WITH_SCRATCH(token_linear),
    REALS(token_ssd),
    REALS(token_scan),
    REALS(token_mamba3),
    REALS_WITH_SCRATCH(sample),
    REALS(adamw),
    REALS(sgd),
    REALS(lerp),
    ANY(copy),
    ANY(fill),
    ANY(random),
    ANY_WITH_SCRATCH(finite),
    ANY_WITH_SCRATCH(squares),
};
