/* unary_erf.h - erf and GELU, exact and by tanh, on vectors of floats, and their slopes.
 *
 * Bounds in units of the last place (ULP), denormals included; in brackets the worst of all arguments above 2^-16:
 *   erf 1.5 (1.181)   gelu 5 (4.391)   gelu_tanh 3 (2.383)   slope of erf 3 (2.69)
 * Slopes of gelu have an absolute error below 3e-7. NaN gives NaN and infinity the limit, -0 in gelu(-infinity). Lanes and
 * instruction sets are as in vec_math.h.
 *
 * The normal distribution's tail is e^(-t^2/2) r(t), t >= 0; its ratio r is smooth and falls from 1/2 like 1 / t.
 */
#ifndef KR_KERNELS_CPU_UNARY_ERF_H
#define KR_KERNELS_CPU_UNARY_ERF_H

#include "kernels/cpu/vec_math.h"

/* x r(t) (1 + delta) for t in [0, 15] and a small delta: r = p(u) / (t + 4), u = (t - 4) / (t + 4) = 1 - 8 / (t + 4).
 * The quotient's error is known, and also enters through u: about 1 - u times in all. This error and those of the
 * products are subtracted together with delta. */
KR_INLINE vf tail_ratio(vf x, vf t, vf delta)
{
    const vf four = vf_set1(4), one = vf_set1(1);
    vf d = vf_add(t, four), d_low = vf_sub(t, vf_sub(d, four)), inverse = vf_div(one, d);
    vf u = vf_fnma(inverse, vf_set1(8), one), error = vf_fnma(inverse, d_low, vf_fnma(inverse, d, one));
    vf p = vf_set1(-0x1.cafb6cp-14f);
    p = vf_fma(p, u, vf_set1(0x1.b8041ap-13f));
    p = vf_fma(p, u, vf_set1(0x1.97bbb6p-10f));
    p = vf_fma(p, u, vf_set1(-0x1.cfe026p-9f));
    p = vf_fma(p, u, vf_set1(-0x1.ecfbe0p-8f));
    p = vf_fma(p, u, vf_set1(0x1.eee372p-5f));
    p = vf_fma(p, u, vf_set1(-0x1.7e002cp-3f));
    p = vf_fma(p, u, vf_set1(0x1.8c6d72p-2f));
    p = vf_fma(p, u, vf_set1(-0x1.373e38p-1f));
    p = vf_fma(p, u, vf_set1(0x1.82b4bcp-1f));
    vf ratio = vf_mul(p, inverse), ratio_low = vf_fma(p, inverse, vf_neg(ratio));
    vf y = vf_mul(x, ratio), y_low = vf_fma(x, ratio_low, vf_fma(x, ratio, vf_neg(y)));
    return vf_add(y, vf_fma(y, vf_fma(vf_sub(one, u), error, delta), y_low));
}

/* e^(-scale x^2) = factor 2^n (1 + delta) for scale x^2 <= 120; scale is a power of two. The square is held in two floats:
 * its rounding alone would cost scale x^2 ULP. */
KR_INLINE vf exp_of_square(vf x, float scale, vf *n, vf *delta)
{
    vf square = vf_mul(x, x);
    *delta = vf_mul(vf_fma(x, x, vf_neg(square)), vf_set1(-scale));
    return exp_parts(vf_mul(square, vf_set1(-scale)), n);
}

/* erf x.
 *   a = |x|;  a < 1: a + a p(a^2);  else 1 - 2 e^(-a^2) r(2^1/2 a);  with x's sign */
KR_INLINE vf vf_erf(vf x)
{
    vf a = vf_min(vf_set1(4), vf_abs(x)), u = vf_mul(a, a), n, delta; /* from 4 on the result rounds to 1 */
    vf p = vf_set1(0x1.477204p-14f);
    p = vf_fma(p, u, vf_set1(-0x1.a3515ep-11f));
    p = vf_fma(p, u, vf_set1(0x1.53f224p-8f));
    p = vf_fma(p, u, vf_set1(-0x1.b7f71ap-6f));
    p = vf_fma(p, u, vf_set1(0x1.ce2ce6p-4f));
    p = vf_fma(p, u, vf_set1(-0x1.81273ep-2f));
    p = vf_fma(p, u, vf_set1(0x1.06eba8p-3f));
    vf inner = vf_fma(a, p, a);
    vf factor = exp_of_square(a, 1, &n, &delta);
    vf tail = vf_mul(factor, tail_ratio(vf_set1(2), vf_mul(a, vf_set1(0x1.6a09e6p0f)), delta));
    vf outer = vf_sub(vf_set1(1), vf_scale2(tail, n));
    return vf_with_sign(vf_select(vf_lt(a, vf_set1(1)), inner, outer), x);
}

/* erf'(x) = 2 pi^-1/2 e^(-x^2). */
KR_INLINE vf vf_erf_slope(vf x)
{
    vf n, delta, factor = exp_of_square(vf_min(vf_set1(10.5f), vf_abs(x)), 1, &n, &delta);
    return vf_scale2(vf_mul(vf_fma(factor, delta, factor), vf_set1(0x1.20dd76p0f)), n);
}

/* x P(X < x), X standard normal. With a = |x|, l = a e^(-a^2/2) r(a): -l for x < 0, else x - l. The factor 2^n of l is
 * applied last, since the exponential underflows before the product does. */
KR_INLINE vf vf_gelu(vf x)
{
    vf n, delta, a = vf_min(vf_set1(15), vf_abs(x)); /* below -14.3 the result is -0 */
    vf factor = exp_of_square(a, 0.5f, &n, &delta);
    vf l = vf_scale2(vf_mul(factor, tail_ratio(a, a, delta)), n);
    return vf_with_sign(vf_select(vf_lt(x, vf_zero()), l, vf_sub(x, l)), x);
}

/* gelu'(x) = P(X < x) + x (2 pi)^-1/2 e^(-x^2/2). */
KR_INLINE vf vf_gelu_slope(vf x)
{
    vf n, delta, a = vf_min(vf_set1(15), vf_abs(x)), limited = vf_with_sign(a, x);
    vf factor = exp_of_square(a, 0.5f, &n, &delta), e = vf_scale2(factor, n),
       tail = vf_mul(e, tail_ratio(vf_set1(1), a, delta));
    vf below = vf_select(vf_le(x, vf_zero()), tail, vf_sub(vf_set1(1), tail));
    return vf_fma(vf_mul(limited, vf_set1(0x1.988454p-2f)), vf_fma(e, delta, e), below);
}

/* v = 2 (2 / pi)^1/2 (x + 0.044715 x^3) = x (c + d x^2) in two floats, for |x| <= 11. */
KR_INLINE vf gelu_tanh_argument(vf x, vf *low)
{
    const vf c = vf_set1(0x1.988454p0f), d = vf_set1(0x1.2444f2p-4f);
    vf square = vf_mul(x, x), square_low = vf_fma(x, x, vf_neg(square));
    vf cubic = vf_mul(d, square), cubic_low = vf_fma(d, square, vf_neg(cubic));
    vf sum = vf_add(c, cubic), part = vf_sub(sum, c); /* the sum's rounding, whichever term is larger */
    vf sum_low = vf_add(vf_sub(c, vf_sub(sum, part)), vf_sub(cubic, part));
    vf rest = vf_fma(square, vf_set1(0x1.49b16ap-29f),
                     vf_set1(-0x1.857936p-25f)); /* the parts of c and d below float precision */
    rest = vf_add(vf_fma(d, square_low, cubic_low), vf_add(rest, sum_low));
    vf v = vf_mul(x, sum);
    *low = vf_fma(x, rest, vf_fma(x, sum, vf_neg(v)));
    return v;
}

/* x / (1 + e^-v), as silu_wide. */
KR_INLINE vf vf_gelu_tanh(vf x)
{
    vf n, low, limited = vf_max(vf_set1(-11), vf_min(vf_set1(11), x)); /* from -10.7 down the result is -0 */
    vf v = gelu_tanh_argument(vf_neg_abs(limited), &low);
    vf factor = exp_parts(v, &n);
    factor = vf_fma(factor, low, factor);
    vm lower = vf_lt(x, vf_zero());
    vf y = product_over_one_plus(limited, vf_select(lower, factor, vf_set1(1)), vf_scale2(factor, n));
    y = vf_scale2(y, vf_keep(lower, n));
    return vf_select(vf_gt(x, vf_set1(9)), x, y);
}

/* s + x s (1 - s) v'(x), s = 1 / (1 + e^-v). */
KR_INLINE vf vf_gelu_tanh_slope(vf x)
{
    vf low, limited = vf_max(vf_set1(-11), vf_min(vf_set1(11), x));
    vf t = exp_in_range(gelu_tanh_argument(vf_neg_abs(limited), &low));
    vf larger = vf_div(vf_set1(1), vf_add(vf_set1(1), t)), smaller = vf_mul(t, larger);
    vm lower = vf_lt(x, vf_zero());
    vf v_slope = vf_fma(vf_mul(limited, limited), vf_set1(0x1.b6676cp-3f), vf_set1(0x1.988454p0f));
    vf steep = vf_mul(vf_mul(limited, v_slope), vf_mul(larger, smaller));
    return vf_add(vf_select(lower, smaller, larger), steep);
}

#endif
