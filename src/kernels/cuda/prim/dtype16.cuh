/* dtype16.cuh - elements of operands of a kernel that computes in T: of bf16 or f16, or any other dtype for T itself. */
#ifndef KR_KERNELS_CUDA_PRIM_DTYPE16_CUH
#define KR_KERNELS_CUDA_PRIM_DTYPE16_CUH

#include "kernels/args/operand.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

static __device__ __forceinline__ float kr_from_16bit(uint16_t bits, kr_dtype dtype)
{
    return dtype == KR_DTYPE_BF16 ? __uint_as_float((uint32_t)bits << 16) : __half2float(__ushort_as_half(bits));
}

static __device__ __forceinline__ uint16_t kr_to_16bit(float x, kr_dtype dtype)
{
    return dtype == KR_DTYPE_BF16 ? __bfloat16_as_ushort(__float2bfloat16_rn(x)) : __half_as_ushort(__float2half_rn(x));
}

/* T as a dtype. */
template <typename T> static __host__ __device__ constexpr kr_dtype kr_dtype_of(void)
{
    return sizeof(T) == sizeof(double) ? KR_DTYPE_F64 : KR_DTYPE_F32;
}

/* Of kernels whose type of operand is a template argument: KR_DTYPE_BF16, KR_DTYPE_F16, or this one for T. */
enum { KR_KIND_OWN = 0 };

template <typename T> static __device__ __forceinline__ void kr_store_as(void *y, int64_t at, T x, kr_dtype dtype)
{
    if (kr_is_16bit(dtype)) ((uint16_t *)y)[at] = kr_to_16bit((float)x, dtype);
    else ((T *)y)[at] = x;
}

/* Element `at` of an operand of T, or of a 16-bit type. */
template <typename T> static __device__ __forceinline__ T kr_element(const void *x, int64_t at, kr_dtype dtype)
{
    return kr_is_16bit(dtype) ? (T)kr_from_16bit(((const uint16_t *)x)[at], dtype) : ((const T *)x)[at];
}

#endif
