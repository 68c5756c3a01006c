/* vec_math.h - exp, log, sin, cos and their relatives on vectors of floats.
 *
 * Bounds in units of the last place (ULP), denormals included; in brackets the worst of all 2^32 arguments:
 *   exp 1 (0.892)       log 1 (0.905)    sin 1.5 (1.225)      cos 1.5 (1.217)         tanh 1 (0.960)
 *   sigmoid 2 (1.497)   silu 2 (1.674)   softplus 2 (1.861)   log_sigmoid 2 (1.861)
 * NaN gives NaN. Infinity gives the limit, also in silu(-infinity) = -0; sin and cos have none there and give NaN.
 * A lane's result depends on that lane's argument alone (but for the sign and payload of a NaN), and all instruction
 * sets give the same bits. Polynomials are minimax fits with float coefficients.
 */
#ifndef KR_KERNELS_CPU_VEC_MATH_H
#define KR_KERNELS_CPU_VEC_MATH_H

#include "kernels/cpu/vec.h"
#include "kernels/cpu/vec_trig.h"

/* Splits e^x, |x| <= 120 or NaN, into 2^n and the returned factor, in [0.7, 1.42].
 *   n = round(x / ln 2);  r = x - n ln 2;  factor = e^r = 1 + r + r^2 q(r), |r| <= ln(2)/2
 * ln 2 is the sum of two floats; the first step of r is exact. */
KR_INLINE vf exp_parts(vf x, vf *n)
{
    const vf magic = vf_set1(0x1.8p23f); /* adding it rounds to an integer */
    *n = vf_sub(vf_fma(x, vf_set1(0x1.715476p0f), magic), magic);
    vf r = vf_fnma(*n, vf_set1(0x1.62e430p-1f), x);
    r = vf_fnma(*n, vf_set1(-0x1.05c610p-29f), r);
    vf q = vf_set1(0x1.6ac408p-10f);
    q = vf_fma(q, r, vf_set1(0x1.123ddep-7f));
    q = vf_fma(q, r, vf_set1(0x1.55585ap-5f));
    q = vf_fma(q, r, vf_set1(0x1.55548cp-3f));
    q = vf_fma(q, r, vf_set1(0x1.fffffcp-2f));
    q = vf_fma(q, r, vf_set1(1));
    return vf_fma(q, r, vf_set1(1));
}

/* e^x for |x| <= 120 or NaN. */
KR_INLINE vf exp_in_range(vf x)
{
    vf n;
    vf factor = exp_parts(x, &n);
    return vf_scale2(factor, n);
}

/* e^x; infinity above 88.72, 0 below -103.97. */
KR_INLINE vf vf_exp(vf x)
{
    /* beyond these limits the result is infinity or 0; a NaN propagates */
    return exp_in_range(vf_max(vf_set1(-105), vf_min(vf_set1(90), x)));
}

/* e^-|x|. */
KR_INLINE vf vf_exp_neg_abs(vf x)
{
    return exp_in_range(vf_max(vf_set1(-105), vf_neg_abs(x)));
}

/* ln(x 2^shift) for normal positive x.
 *   x = m 2^e, m in [0.75, 1.5);  f = m - 1 (exact);  ln x = (e + shift) ln 2 + f + f^2 q(f)
 * The sum with the leading part of ln 2 is held in two floats, for it cancels where the result is small 0. */
KR_INLINE vf log_normal(vf x, vf shift)
{
    vf e;
    vf f = vf_sub(vf_mantissa(x, &e), vf_set1(1));
    e = vf_add(e, shift);
    vf q = vf_set1(-0x1.7966cep-5f);
    q = vf_fma(q, f, vf_set1(0x1.b1febep-4f));
    q = vf_fma(q, f, vf_set1(-0x1.0e9108p-3f));
    q = vf_fma(q, f, vf_set1(0x1.287626p-3f));
    q = vf_fma(q, f, vf_set1(-0x1.54d6b2p-3f));
    q = vf_fma(q, f, vf_set1(0x1.99671ap-3f));
    q = vf_fma(q, f, vf_set1(-0x1.000082p-2f));
    q = vf_fma(q, f, vf_set1(0x1.5555acp-2f));
    q = vf_fma(q, f, vf_set1(-0x1.0p-1f));
    vf leading = vf_mul(e, vf_set1(0x1.62ep-1f)); /* exact: the factor has 12 bits */
    vf high = vf_add(leading, f);
    vf low = vf_sub(f, vf_sub(high, leading));
    low = vf_fma(e, vf_set1(0x1.0bfbe8p-15f), low);
    return vf_add(high, vf_fma(vf_mul(f, f), q, low));
}

/* The logarithm where some lane is denormal, zero, negative, infinite or NaN. */
static inline vf log_special(vf x)
{
    const vf infinity = vf_set1((float)INFINITY);
    vm denormal = vf_lt(x, vf_set1(0x1p-126f));
    vf y = log_normal(vf_select(denormal, vf_mul(x, vf_set1(0x1p32f)), x), vf_keep(denormal, vf_set1(-32)));
    y = vf_select(vf_lt(x, infinity), y, x); /* infinity and NaN are their own logarithm */
    y = vf_select(vf_eq(x, vf_zero()), vf_neg(infinity), y);
    return vf_select(vf_lt(x, vf_zero()), vf_set1((float)NAN), y);
}

/* ln x; -infinity at 0, NaN below. */
KR_INLINE vf vf_log(vf x)
{
    vm normal = vm_and(vf_ge(x, vf_set1(0x1p-126f)), vf_lt(x, vf_set1((float)INFINITY)));
    if (!vm_all(normal)) return log_special(x);
    return log_normal(x, vf_zero());
}

/* ln(1 + t) for t in [0, 1]: t + t^2 q(t), within 1.25 ULP. */
KR_INLINE vf vf_log1p_unit(vf t)
{
    vf q = vf_set1(0x1.11362cp-9f);
    q = vf_fma(q, t, vf_set1(-0x1.c0a1fep-7f));
    q = vf_fma(q, t, vf_set1(0x1.58ff44p-5f));
    q = vf_fma(q, t, vf_set1(-0x1.54f16cp-4f));
    q = vf_fma(q, t, vf_set1(0x1.ff28d8p-4f));
    q = vf_fma(q, t, vf_set1(-0x1.4a72b2p-3f));
    q = vf_fma(q, t, vf_set1(0x1.978b54p-3f));
    q = vf_fma(q, t, vf_set1(-0x1.ffc59ep-3f));
    q = vf_fma(q, t, vf_set1(0x1.5553b6p-2f));
    q = vf_fma(q, t, vf_set1(-0x1.fffff8p-2f));
    return vf_fma(vf_mul(t, t), q, t);
}

/* tanh x.
 *   a = |x|;  a < 1: a + a^3 q(a^2);  else 1 - 2 / (e^2a + 1);  with x's sign */
KR_INLINE vf vf_tanh(vf x)
{
    vf a = vf_abs(x);
    vf u = vf_mul(x, x);
    vf q = vf_set1(-0x1.7ad826p-12f);
    q = vf_fma(q, u, vf_set1(0x1.2f095cp-9f));
    q = vf_fma(q, u, vf_set1(-0x1.04e1a4p-7f));
    q = vf_fma(q, u, vf_set1(0x1.6036e0p-6f));
    q = vf_fma(q, u, vf_set1(-0x1.b96a10p-5f));
    q = vf_fma(q, u, vf_set1(0x1.110c32p-3f));
    q = vf_fma(q, u, vf_set1(-0x1.55553ep-2f));
    vf small = vf_fma(vf_mul(u, q), a, a);
    /* from 10 on the result rounds to 1 */
    vf e = exp_in_range(vf_min(vf_set1(20), vf_add(a, a)));
    vf large = vf_sub(vf_set1(1), vf_div(vf_set1(2), vf_add(e, vf_set1(1))));
    return vf_with_sign(vf_select(vf_lt(a, vf_set1(1)), small, large), x);
}

/* (a + a_low) / (1 + t) for t in [0, 1], almost correctly rounded; a_low, of the order of a's last place, may be NULL.
 * The first quotient y has the rounding error of 1 + t; its excess y (1 + t) - a is exact up to one rounding (y - a is
 * exact: y is in [a/2, a]). The correction needs 1 / (1 + t) to a few percent only: a linear approximation. */
KR_INLINE vf over_one_plus(vf a, const vf *a_low, vf t)
{
    vf d = vf_add(vf_set1(1), t);
    vf y = vf_div(a, d);
    vf excess = vf_fma(y, t, vf_sub(y, a));
    if (a_low) excess = vf_sub(excess, *a_low);
    vf inverse = vf_fnma(d, vf_set1(0.4853f), vf_set1(1.4571f));
    return vf_fnma(excess, inverse, y); /* in this form a = -0 gives -0 */
}

/* a b / (1 + t). */
KR_INLINE vf product_over_one_plus(vf a, vf b, vf t)
{
    vf product = vf_mul(a, b);
    vf product_low = vf_fma(a, b, vf_neg(product));
    return over_one_plus(product, &product_low, t);
}

/* 1 / (1 + e^-x). With t = e^-|x|: 1 / (1 + t), or t / (1 + t) for x < 0, which keeps its relative accuracy down to
 * denormals. */
KR_INLINE vf vf_sigmoid(vf x)
{
    vf t = vf_exp_neg_abs(x);
    return over_one_plus(vf_select(vf_lt(x, vf_zero()), t, vf_set1(1)), NULL, t);
}

/* silu for any x: from 18 on it is x; for x < 0 the factor 2^n of e^x is applied last, since e^x underflows before x
 * e^x. */
static inline vf silu_wide(vf x)
{
    vf n;
    vf limited = vf_max(vf_set1(-120), vf_min(vf_set1(40), x)); /* from -109 down the result is -0 */
    vf factor = exp_parts(vf_neg_abs(limited), &n);
    vf t = vf_scale2(factor, n);
    vm negative = vf_lt(x, vf_zero());
    vf y = product_over_one_plus(limited, vf_select(negative, factor, vf_set1(1)), t);
    y = vf_scale2(y, vf_keep(negative, n));
    return vf_select(vf_gt(x, vf_set1(18)), x, y);
}

/* x / (1 + e^-x), as sigmoid. */
KR_INLINE vf vf_silu(vf x)
{
    vf minus = vf_neg_abs(x);
    /* here scaling by 2^n stays clear of denormals, so that both code paths give the same bits */
    if (vm_any(vf_lt(minus, vf_set1(-40)))) return silu_wide(x);
    vf t = exp_in_range(minus);
    return product_over_one_plus(x, vf_select(vf_lt(x, vf_zero()), t, vf_set1(1)), t);
}

/* silu'(x) = s (1 + x (1 - s)), s = sigmoid(x), for |x| <= 120 and t = e^-|x|; 1 - s is formed without the subtraction.
 * Absolute error below 3e-7. */
KR_INLINE vf silu_slope_of(vf x, vf t)
{
    vf larger = vf_div(vf_set1(1), vf_add(vf_set1(1), t));
    vf smaller = vf_mul(t, larger);
    vm negative = vf_lt(x, vf_zero());
    vf s = vf_select(negative, smaller, larger);
    return vf_mul(s, vf_fma(x, vf_select(negative, larger, smaller), vf_set1(1)));
}

KR_INLINE vf vf_silu_slope(vf x)
{
    x = vf_max(vf_set1(-120), vf_min(vf_set1(120), x)); /* keeps infinity out of x (1 - s) */
    return silu_slope_of(x, exp_in_range(vf_neg_abs(x)));
}

/* vf_silu(x) and vf_silu_slope(x), to the bit, with one exponential. */
KR_INLINE vf vf_silu_and_slope(vf x, vf *slope)
{
    vf limited = vf_max(vf_set1(-120), vf_min(vf_set1(120), x)), minus = vf_neg_abs(limited);
    vf t = exp_in_range(minus);
    *slope = silu_slope_of(limited, t);
    if (vm_any(vf_lt(minus, vf_set1(-40)))) return silu_wide(x);
    return product_over_one_plus(x, vf_select(vf_lt(x, vf_zero()), t, vf_set1(1)), t);
}

/* ln(1 + e^x) = max(x, 0) + ln(1 + e^-|x|). From x = 17 on the sum rounds to x, as the definition has it above 20. */
KR_INLINE vf vf_softplus(vf x)
{
    vf y = vf_log1p_unit(vf_exp_neg_abs(x));
    return vf_add(vf_max(vf_zero(), x), y);
}

/* -softplus(-x). */
KR_INLINE vf vf_log_sigmoid(vf x)
{
    return vf_neg(vf_softplus(vf_neg(x)));
}

#endif
