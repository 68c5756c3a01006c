/* ref_half.h - loads one element of an operand that may be stored as a 16-bit float. */
#ifndef KR_KERNELS_REF_REF_HALF_H
#define KR_KERNELS_REF_REF_HALF_H

#include "base/half.h"
#include "kernels/args/matmul_args.h"

static inline double kr_ref_widened(const void *x, int64_t at, kr_storage_dtype dtype)
{
    uint16_t bits = ((const uint16_t *)x)[at];
    return (double)(dtype == KR_STORAGE_BF16 ? kr_float_from_bf16(bits) : kr_float_from_f16(bits));
}

#endif
