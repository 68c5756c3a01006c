/* ref.h - the names of the reference kernels, and the element type that a file is compiled for.
 *
 * Plain C, one rounding per stored element: sums run in double, functions are libm's in double. Files whose kernels
 * are KR_KERNEL in kernels.def are compiled twice, with -DKR_REF_F32 (`real` is float, KR_REF(sum) is kr_ref_f32_sum)
 * and with -DKR_REF_F64 (double, kr_ref_f64_sum). The others (compare, copy, random, finite, squares and the table) are
 * compiled once.
 */
#ifndef KR_KERNELS_REF_REF_H
#define KR_KERNELS_REF_REF_H

#include "kernels/kernels.h"

#define KR_KERNEL(name, args)                                                                                          \
    void kr_ref_f32_##name(const args *);                                                                              \
    void kr_ref_f64_##name(const args *);
#define KR_KERNEL_ANY(name, args) void kr_ref_##name(const args *);
#include "kernels/kernels.def"
#undef KR_KERNEL
#undef KR_KERNEL_ANY

extern const kr_kernels kr_ref_kernels;

#if defined(KR_REF_F64)
typedef double real;
#define KR_REF(name) kr_ref_f64_##name
#elif defined(KR_REF_F32)
typedef float real;
#define KR_REF(name) kr_ref_f32_##name
#endif

static inline int64_t kr_ref_min(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

#endif
