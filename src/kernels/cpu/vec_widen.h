/* vec_widen.h - loads of operands that may be 16-bit floats, widened, a vector at a time: whole, or the first n lanes. */
#ifndef KR_KERNELS_CPU_VEC_WIDEN_H
#define KR_KERNELS_CPU_VEC_WIDEN_H

#include "kernels/cpu/rows.h"
#include "kernels/args/matmul_args.h"

/* Elements at .. at + n - 1 of p, n <= VF, widened; 0 in the lanes beyond. */
KR_INLINE vf load_widened(const void *p, int64_t at, int64_t n, kr_dtype dtype)
{
    if (dtype == KR_DTYPE_F32) return row_load((const float *)p + at, n);
    const uint16_t *h = (const uint16_t *)p + at;
    if (dtype == KR_DTYPE_BF16) return n >= VF ? vf_load_bf16(h) : vf_load_bf16_n(h, n);
    return n >= VF ? vf_load_f16(h) : vf_load_f16_n(h, n);
}

#endif
