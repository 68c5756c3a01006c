/* vec_pow.h - powers x^y of floats, computed on vectors of doubles.
 *
 *   x^y = 2^(y log2 x);   log2 x = e + s p(s^2), s = (m - 1) / (m + 1), x = m 2^e;   2^r = 1 + r q(r), |r| <= 1/2
 *
 * Relative error of vd_pow below 2^-31 for x and y that are floats, or floats less 1: rounded to float it is within 0.51
 * ULP (0.504 is the worst that was found). Special values are those of C's pow: x^0 = 1^y = 1 for NaN too, a negative x
 * needs an integer y or gives NaN.
 */
#ifndef KR_KERNELS_CPU_VEC_POW_H
#define KR_KERNELS_CPU_VEC_POW_H

#include "kernels/cpu/vec_double.h"

#include <math.h>

/* log2 x for positive normal x, relative error below 2^-44. */
KR_INLINE vd log2_normal(vd x)
{
    vd e, m = vd_mantissa(x, &e);
    vd s = vd_div(vd_sub(m, vd_set1(1)), vd_add(m, vd_set1(1))), z = vd_mul(s, s);
    vd p = vd_set1(0x1.21b145146adb2p-2);
    p = vd_fma(p, z, vd_set1(0x1.479550ac78ab6p-2));
    p = vd_fma(p, z, vd_set1(0x1.a61a2ee7787aap-2));
    p = vd_fma(p, z, vd_set1(0x1.2776c2931e1bep-1));
    p = vd_fma(p, z, vd_set1(0x1.ec709dc53c811p-1));
    p = vd_fma(p, z, vd_set1(0x1.71547652b8251p+1));
    return vd_fma(s, p, e);
}

/* 2^p, clamped to 2^1021 and 2^-1021, beyond the range of float. */
KR_INLINE vd exp2_limited(vd p)
{
    p = vd_max(vd_set1(-1021), vd_min(vd_set1(1021), p));
    vd n = vd_sub(vd_add(p, vd_set1(0x1.8p52)), vd_set1(0x1.8p52)), r = vd_sub(p, n);
    vd q = vd_set1(0x1.c02142b2b6c61p-17);
    q = vd_fma(q, r, vd_set1(0x1.44407365d3674p-13));
    q = vd_fma(q, r, vd_set1(0x1.5dc061fd46d2fp-10));
    q = vd_fma(q, r, vd_set1(0x1.3b2a1bc375b4fp-7));
    q = vd_fma(q, r, vd_set1(0x1.c6b0550a1db32p-5));
    q = vd_fma(q, r, vd_set1(0x1.ebfbe0458b76cp-3));
    q = vd_fma(q, r, vd_set1(0x1.62e4300ba7578p-1));
    return vd_scale2(vd_fma(q, r, vd_set1(1)), n);
}

/* Where some lane has x that is not positive and finite, or y that is not finite; `power` is 2^(y log2 |x|). */
static inline vd pow_special(vd x, vd y, vd power)
{
    const vd zero = vd_zero(), one = vd_set1(1), infinity = vd_set1((double)INFINITY), nan = vd_set1((double)NAN);
    vd a = vd_abs(x), half = vd_mul(y, vd_set1(0.5));
    vdm rises = vd_lt(zero, y), fractional = vd_ne(vd_floor(y), y);
    vdm odd = vdm_and(vd_eq(vd_floor(y), y), vd_ne(vd_floor(half), half));
    vd of_infinity = vd_select(rises, infinity, zero), of_zero = vd_select(rises, zero, infinity);
    vd to_infinity = vd_select(vd_lt(one, a), of_infinity, vd_select(vd_lt(a, one), of_zero, one));
    power = vd_select(vd_eq(vd_abs(y), infinity), to_infinity, power);
    power = vd_select(vd_eq(a, infinity), of_infinity, power);
    power = vd_select(vd_eq(a, zero), of_zero, power);
    power = vd_select(vdm_and(vdm_and(vd_lt(x, zero), vd_lt(a, infinity)), fractional), nan, power);
    /* an odd power has the sign of x, that of a zero too */
    vd_bits sign = vd_bits_and(vd_bits_of(x), vd_bits_set1(INT64_MIN));
    power = vd_select(odd, vd_of_bits(vd_bits_or(vd_bits_of(power), sign)), power);
    power = vd_select(vd_ne(x, x), nan, vd_select(vd_ne(y, y), nan, power));
    return vd_select(vd_eq(y, zero), one, vd_select(vd_eq(x, one), one, power));
}

KR_INLINE vd vd_pow(vd x, vd y)
{
    const vd infinity = vd_set1((double)INFINITY);
    vd power = exp2_limited(vd_mul(y, log2_normal(vd_abs(x))));
    vdm plain = vdm_and(vdm_and(vd_lt(vd_zero(), x), vd_lt(x, infinity)), vd_lt(vd_abs(y), infinity));
    return vdm_all(plain) ? power : pow_special(x, y, power);
}

/* ln x; -infinity at 0, NaN below. */
KR_INLINE vd vd_log(vd x)
{
    const vd infinity = vd_set1((double)INFINITY);
    vd y = vd_mul(log2_normal(x), vd_set1(0x1.62e42fefa39efp-1));
    if (vdm_all(vdm_and(vd_lt(vd_zero(), x), vd_lt(x, infinity)))) return y;
    y = vd_select(vd_lt(x, infinity), y, x); /* infinity and NaN are their own logarithm */
    y = vd_select(vd_eq(x, vd_zero()), vd_neg(infinity), y);
    return vd_select(vd_lt(x, vd_zero()), vd_set1((double)NAN), y);
}

/* f of the lower and of the upper lanes, in double. */
KR_INLINE vf vf_pow(vf x, vf y)
{
    return vf_of_doubles(vd_pow(vd_lower(x), vd_lower(y)), vd_pow(vd_upper(x), vd_upper(y)));
}

/* d(x^y)/dx = y x^(y-1); 0 where y is 0. */
KR_INLINE vd vd_pow_slope(vd x, vd y)
{
    return vd_select(vd_eq(y, vd_zero()), vd_zero(), vd_mul(y, vd_pow(x, vd_sub(y, vd_set1(1)))));
}

/* d(x^y)/dy = x^y ln x; 0 where x is 0 and y is not negative. */
KR_INLINE vd vd_pow_slope_of_exponent(vd x, vd y)
{
    vdm flat = vdm_and(vd_eq(x, vd_zero()), vd_le(vd_zero(), y));
    return vd_select(flat, vd_zero(), vd_mul(vd_pow(x, y), vd_log(x)));
}

/* g d(x^y)/dx. */
KR_INLINE vf vf_pow_bwd(vf x, vf y, vf g)
{
    vd lower = vd_mul(vd_lower(g), vd_pow_slope(vd_lower(x), vd_lower(y)));
    return vf_of_doubles(lower, vd_mul(vd_upper(g), vd_pow_slope(vd_upper(x), vd_upper(y))));
}

/* g d(x^y)/dy. */
KR_INLINE vf vf_pow_bwd_of_exponent(vf x, vf y, vf g)
{
    vd lower = vd_mul(vd_lower(g), vd_pow_slope_of_exponent(vd_lower(x), vd_lower(y)));
    return vf_of_doubles(lower, vd_mul(vd_upper(g), vd_pow_slope_of_exponent(vd_upper(x), vd_upper(y))));
}

#endif
