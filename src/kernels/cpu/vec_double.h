/* vec_double.h - vectors of doubles: vd holds VD = VF / 2 of them, the lower or the upper lanes of a vf.
 *
 *   vd_add_squares(sum, x)   sum[0] += x^2 of the lower lanes, sum[1] += x^2 of the upper ones
 *   vd_lower(x), vd_upper(x) lanes of a vf, widened;   vf_of_doubles(lower, upper) narrows them, rounded to nearest even
 *   vd_min, vd_max, vd_select, vd_fma, comparisons: as those of vf in vec.h; vdm is one truth value a lane
 *   vd_scale2(x, n)          x 2^n for x in [0.7, 1.5) and integers n in [-1021, 1022]
 *   vd_mantissa(x, &e)       splits a positive normal x into m 2^e, m in [2^-1/2, 2^1/2); for others it is unspecified
 * The square of a float is exact in double: one rounding for each element, whether it is fused with the addition or not.
 */
#ifndef KR_KERNELS_CPU_VEC_DOUBLE_H
#define KR_KERNELS_CPU_VEC_DOUBLE_H

#include "kernels/cpu/vec.h"

/* Without optimisation gcc's intrinsics are macros, whose conversions would be reported here. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wsign-conversion"

enum { VD = VF / 2 };

#if defined(__AVX512F__)

typedef __m512d vd;
typedef __m512i vd_bits; /* 64 bits per lane */
typedef __mmask8 vdm;
#define KR_OF_WIDTH(name) _mm512_##name
#define KR_COMPARED(a, b, how) _mm512_cmp_pd_mask(a, b, how)

KR_INLINE vd vd_lower(vf x)
{
    return _mm512_cvtps_pd(_mm512_castps512_ps256(x));
}

KR_INLINE vd vd_upper(vf x)
{
    return _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1));
}

KR_INLINE vf vf_of_doubles(vd lower, vd upper)
{
    return _mm512_insertf32x8(_mm512_castps256_ps512(_mm512_cvtpd_ps(lower)), _mm512_cvtpd_ps(upper), 1);
}

KR_INLINE vd vd_floor(vd a)
{
    return _mm512_roundscale_pd(a, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
}

KR_INLINE vd vd_select(vdm m, vd a, vd b)
{
    return _mm512_mask_blend_pd(m, b, a);
}

KR_INLINE vdm vdm_and(vdm a, vdm b)
{
    return (vdm)(a & b);
}

KR_INLINE bool vdm_all(vdm a)
{
    return a == 0xff;
}

KR_INLINE vd_bits vd_bits_or(vd_bits a, vd_bits b)
{
    return _mm512_or_si512(a, b);
}

KR_INLINE vd_bits vd_bits_and(vd_bits a, vd_bits b)
{
    return _mm512_and_si512(a, b);
}

KR_INLINE vd vd_of_bits(vd_bits a)
{
    return _mm512_castsi512_pd(a);
}

KR_INLINE vd_bits vd_bits_of(vd a)
{
    return _mm512_castpd_si512(a);
}

KR_INLINE vd_bits vd_bits_set1(int64_t a)
{
    return _mm512_set1_epi64(a);
}

#else

typedef __m256d vd;
typedef __m256i vd_bits; /* 64 bits per lane */
typedef __m256d vdm;
#define KR_OF_WIDTH(name) _mm256_##name
#define KR_COMPARED(a, b, how) _mm256_cmp_pd(a, b, how)

KR_INLINE vd vd_lower(vf x)
{
    return _mm256_cvtps_pd(_mm256_castps256_ps128(x));
}

KR_INLINE vd vd_upper(vf x)
{
    return _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1));
}

KR_INLINE vf vf_of_doubles(vd lower, vd upper)
{
    return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm256_cvtpd_ps(lower)), _mm256_cvtpd_ps(upper), 1);
}

KR_INLINE vd vd_floor(vd a)
{
    return _mm256_round_pd(a, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
}

KR_INLINE vd vd_select(vdm m, vd a, vd b)
{
    return _mm256_blendv_pd(b, a, m);
}

KR_INLINE vdm vdm_and(vdm a, vdm b)
{
    return _mm256_and_pd(a, b);
}

KR_INLINE bool vdm_all(vdm a)
{
    return _mm256_movemask_pd(a) == 0xf;
}

KR_INLINE vd_bits vd_bits_or(vd_bits a, vd_bits b)
{
    return _mm256_or_si256(a, b);
}

KR_INLINE vd_bits vd_bits_and(vd_bits a, vd_bits b)
{
    return _mm256_and_si256(a, b);
}

KR_INLINE vd vd_of_bits(vd_bits a)
{
    return _mm256_castsi256_pd(a);
}

KR_INLINE vd_bits vd_bits_of(vd a)
{
    return _mm256_castpd_si256(a);
}

KR_INLINE vd_bits vd_bits_set1(int64_t a)
{
    return _mm256_set1_epi64x(a);
}

#endif

/* ---- common to both widths ---- */

KR_INLINE vd vd_zero(void)
{
    return KR_OF_WIDTH(setzero_pd)();
}

KR_INLINE vd vd_set1(double a)
{
    return KR_OF_WIDTH(set1_pd)(a);
}

KR_INLINE void vd_store(double *p, vd a)
{
    KR_OF_WIDTH(storeu_pd)(p, a);
}

#define KR_OF_TWO(name, instruction)                                                                                   \
    KR_INLINE vd name(vd a, vd b)                                                                                      \
    {                                                                                                                  \
        return KR_OF_WIDTH(instruction)(a, b);                                                                         \
    }
KR_OF_TWO(vd_add, add_pd)
KR_OF_TWO(vd_sub, sub_pd)
KR_OF_TWO(vd_mul, mul_pd)
KR_OF_TWO(vd_div, div_pd)
KR_OF_TWO(vd_min, min_pd)
KR_OF_TWO(vd_max, max_pd)
#undef KR_OF_TWO

KR_INLINE vd vd_fma(vd a, vd b, vd c)
{
    return KR_OF_WIDTH(fmadd_pd)(a, b, c);
}

#define KR_COMPARISON(name, how)                                                                                       \
    KR_INLINE vdm name(vd a, vd b)                                                                                     \
    {                                                                                                                  \
        return KR_COMPARED(a, b, how);                                                                                 \
    }
KR_COMPARISON(vd_lt, _CMP_LT_OQ)
KR_COMPARISON(vd_le, _CMP_LE_OQ)
KR_COMPARISON(vd_eq, _CMP_EQ_OQ)
KR_COMPARISON(vd_ne, _CMP_NEQ_UQ) /* true where either is NaN */
#undef KR_COMPARISON
#undef KR_COMPARED

KR_INLINE vd vd_abs(vd a)
{
    return vd_of_bits(vd_bits_and(vd_bits_of(a), vd_bits_set1(INT64_MAX)));
}

KR_INLINE vd vd_neg(vd a)
{
    return vd_sub(vd_set1(-0.0), a);
}

KR_INLINE vd vd_scale2(vd x, vd n)
{
    vd_bits low = vd_bits_of(vd_add(n, vd_set1(0x1.8p52))); /* its low bits are n */
    return vd_of_bits(KR_OF_WIDTH(add_epi64)(vd_bits_of(x), KR_OF_WIDTH(slli_epi64)(low, 52)));
}

KR_INLINE vd vd_mantissa(vd x, vd *e)
{
    const int64_t one = INT64_C(0x3ff) << 52, root = INT64_C(0x3fe6a09e667f3bcd); /* bits of 1 and of 2^-1/2 */
    vd_bits biased = KR_OF_WIDTH(srli_epi64)(KR_OF_WIDTH(add_epi64)(vd_bits_of(x), vd_bits_set1(one - root)), 52);
    *e = vd_sub(vd_of_bits(vd_bits_or(biased, vd_bits_set1(INT64_C(0x433) << 52))), vd_set1(0x1p52 + 1023));
    vd_bits whole = KR_OF_WIDTH(slli_epi64)(biased, 52);
    return vd_of_bits(KR_OF_WIDTH(add_epi64)(KR_OF_WIDTH(sub_epi64)(vd_bits_of(x), whole), vd_bits_set1(one)));
}

KR_INLINE void vd_add_squares(vd sum[2], vf x)
{
    const vd low = vd_lower(x), high = vd_upper(x);
    sum[0] = vd_fma(low, low, sum[0]);
    sum[1] = vd_fma(high, high, sum[1]);
}

#undef KR_OF_WIDTH
#pragma GCC diagnostic pop

#endif
