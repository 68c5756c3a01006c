/* vec_double.h - sums of floats in double: vd holds VD = VF / 2 doubles, the lower or the upper lanes of a vf.
 *
 *   vd_add_squares(sum, x)   sum[0] += x^2 of the lower lanes, sum[1] += x^2 of the upper ones
 * The square of a float is exact in double: one rounding for each element, whether it is fused with the addition or not.
 */
#ifndef KR_KERNELS_CPU_VEC_DOUBLE_H
#define KR_KERNELS_CPU_VEC_DOUBLE_H

#include "kernels/cpu/vec.h"

/* Without optimisation gcc's intrinsics are macros, whose own conversions would be reported here. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wsign-conversion"

enum { VD = VF / 2 };

#if defined(__AVX512F__)

typedef __m512d vd;

KR_INLINE vd vd_zero(void)
{
    return _mm512_setzero_pd();
}

KR_INLINE void vd_store(double *p, vd a)
{
    _mm512_storeu_pd(p, a);
}

KR_INLINE void vd_add_squares(vd sum[2], vf x)
{
    const vd low = _mm512_cvtps_pd(_mm512_castps512_ps256(x)), high = _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1));
    sum[0] = _mm512_fmadd_pd(low, low, sum[0]);
    sum[1] = _mm512_fmadd_pd(high, high, sum[1]);
}

#else

typedef __m256d vd;

KR_INLINE vd vd_zero(void)
{
    return _mm256_setzero_pd();
}

KR_INLINE void vd_store(double *p, vd a)
{
    _mm256_storeu_pd(p, a);
}

KR_INLINE void vd_add_squares(vd sum[2], vf x)
{
    const vd low = _mm256_cvtps_pd(_mm256_castps256_ps128(x)), high = _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1));
    sum[0] = _mm256_fmadd_pd(low, low, sum[0]);
    sum[1] = _mm256_fmadd_pd(high, high, sum[1]);
}

#endif

#pragma GCC diagnostic pop

#endif
