/* table_cuda.c - the table of the CUDA kernels: the slots of cuda_kernels.def, NULL in all others. */
#include "kernels/cuda/cuda.h"

#define KR_CUDA_KERNEL(kernel) .kernel = { { kr_cuda_f32_##kernel, NULL }, { kr_cuda_f64_##kernel, NULL } },
#define KR_CUDA_KERNEL_SCRATCH(kernel)                                                                                 \
    .kernel = { { kr_cuda_f32_##kernel, kr_cuda_f32_##kernel##_scratch },                                              \
                { kr_cuda_f64_##kernel, kr_cuda_f64_##kernel##_scratch } },
#define KR_CUDA_KERNEL_ANY(kernel) .kernel = { kr_cuda_##kernel, NULL },
#define KR_CUDA_KERNEL_ANY_SCRATCH(kernel) .kernel = { kr_cuda_##kernel, kr_cuda_##kernel##_scratch },

const kr_kernels kr_cuda_kernels = {
    .name = "cuda",
#define KR_ACCEPTS(kernel, operand, cpu, cuda) .accepts.kernel##_##operand = (cuda),
#include "kernels/accepts.def"
#undef KR_ACCEPTS
#include "kernels/cuda/cuda_kernels.def"
};
