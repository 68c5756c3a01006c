/* halves.cuh - elements of operands and results that are of T or of halves. */
#ifndef KR_KERNELS_CUDA_HALVES_CUH
#define KR_KERNELS_CUDA_HALVES_CUH

#include "kernels/places.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

static __device__ __forceinline__ float kr_widened(uint16_t bits, kr_half kind)
{
    return kind == KR_HALF_BF16 ? __uint_as_float((uint32_t)bits << 16) : __half2float(__ushort_as_half(bits));
}

static __device__ __forceinline__ uint16_t kr_narrowed(float x, kr_half kind)
{
    return kind == KR_HALF_BF16 ? __bfloat16_as_ushort(__float2bfloat16_rn(x)) : __half_as_ushort(__float2half_rn(x));
}

template <typename T> static __device__ __forceinline__ void kr_put_as(void *y, int64_t at, T x, kr_half kind)
{
    if (kind) ((uint16_t *)y)[at] = kr_narrowed((float)x, kind);
    else ((T *)y)[at] = x;
}

/* Element `at` of an operand of T, or of halves. */
template <typename T> static __device__ __forceinline__ T kr_element(const void *x, int64_t at, kr_half kind)
{
    return kind ? (T)kr_widened(((const uint16_t *)x)[at], kind) : ((const T *)x)[at];
}

#endif
