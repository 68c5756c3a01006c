/* dtype16.cuh - elements of operands that are of T, bf16 or f16, by kr_storage_dtype. */
#ifndef KR_KERNELS_CUDA_PRIM_DTYPE16_CUH
#define KR_KERNELS_CUDA_PRIM_DTYPE16_CUH

#include "kernels/args/operand.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

static __device__ __forceinline__ float kr_from_16bit(uint16_t bits, kr_storage_dtype kind)
{
    return kind == KR_STORAGE_BF16 ? __uint_as_float((uint32_t)bits << 16) : __half2float(__ushort_as_half(bits));
}

static __device__ __forceinline__ uint16_t kr_to_16bit(float x, kr_storage_dtype kind)
{
    return kind == KR_STORAGE_BF16 ? __bfloat16_as_ushort(__float2bfloat16_rn(x))
                                   : __half_as_ushort(__float2half_rn(x));
}

template <typename T>
static __device__ __forceinline__ void kr_store_as(void *y, int64_t at, T x, kr_storage_dtype kind)
{
    if (kind) ((uint16_t *)y)[at] = kr_to_16bit((float)x, kind);
    else ((T *)y)[at] = x;
}

/* Element `at` of an operand of T, or of a 16-bit type. */
template <typename T> static __device__ __forceinline__ T kr_element(const void *x, int64_t at, kr_storage_dtype kind)
{
    return kind ? (T)kr_from_16bit(((const uint16_t *)x)[at], kind) : ((const T *)x)[at];
}

#endif
