/* vec.h - vectors of floats of the instruction set's length.
 *
 *   vf  VF floats            vi  VF int32            vm  one truth value per lane
 *
 * Code that includes this header is written once, for any VF; one header per instruction set defines the types and the
 * functions named here. All are static inline functions with IEEE semantics (round to nearest even, denormals kept).
 *
 *   vf_load_n(p, n) reads the first n of VF lanes, 0 in the others, and touches no memory beyond; vf_store_n likewise.
 *     n outside 0..VF is clipped.
 *   vf_min(a, b) is a < b ? a : b and vf_max(a, b) is a > b ? a : b, so both give b where either is NaN.
 *   vf_fma(a, b, c) = a b + c and vf_fnma(a, b, c) = c - a b, rounded once.
 *   vf_select(m, a, b) is a where m, else b. vf_keep(m, a) is a where m, else +0.
 *   Comparisons are false where either operand is NaN, except vf_is_nan.
 *   vf_sum adds lanes by halves: lane i and lane i + VF/2, then i + VF/4, and so on.
 *   vf_scale2(x, n) = x 2^n, rounded once, for integers n in [-180, 160] and |x| in [2^-30, 2^30]; any x where n = 0.
 *   vf_mantissa(x, &e) splits a positive normal x into m 2^e, m in [0.75, 1.5); for others it is unspecified.
 *   bf16 and f16 are held in uint16_t; widening is exact, narrowing rounds to nearest even and keeps NaN.
 */
#ifndef KR_KERNELS_CPU_VEC_H
#define KR_KERNELS_CPU_VEC_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define KR_INLINE static inline __attribute__((always_inline))

#if defined(__AVX512F__)
#include "kernels/cpu/vec_avx512.h"
#include "kernels/cpu/vec_half_avx512.h"
#elif defined(__AVX2__)
#include "kernels/cpu/vec_avx2.h"
#include "kernels/cpu/vec_half_avx2.h"
#else
#error "no vector header for this instruction set"
#endif

KR_INLINE vf vf_neg(vf a)
{
    return vf_of_bits(vi_xor(vf_bits(a), vi_set1(INT32_MIN)));
}

KR_INLINE vf vf_abs(vf a)
{
    return vf_of_bits(vi_and(vf_bits(a), vi_set1(INT32_MAX)));
}

KR_INLINE vf vf_neg_abs(vf a)
{
    return vf_of_bits(vi_or(vf_bits(a), vi_set1(INT32_MIN)));
}

/* |a| with the sign of s, for a >= 0. */
KR_INLINE vf vf_with_sign(vf a, vf s)
{
    return vf_of_bits(vi_or(vf_bits(a), vi_and(vf_bits(s), vi_set1(INT32_MIN))));
}

#endif
