/* vec_trig.h - sin and cos on vectors of floats, over the whole range of float.
 *
 *   n = round(|x| 2/pi);  r = |x| - n pi/2, |r| <= pi/4, held as high + low;
 *   sin |x| and cos x are +-sin r or +-cos r by n mod 4;  sin x also has the sign of x
 */
#ifndef KR_KERNELS_CPU_VEC_TRIG_H
#define KR_KERNELS_CPU_VEC_TRIG_H

#include "kernels/cpu/vec.h"

#include <math.h>

/* Above this |x| the lanes are reduced one at a time. */
#define TRIG_WIDE 100000.0f

/* r = x - n pi/2 by the binary digits of 2/pi, for x >= 1 (NaN for infinity and NaN). Returns n mod 4.
 *   x = m 2^e with a 24-bit integer m. Of m 2/pi 2^e only the bits below 4 matter: three words of 2/pi, from the bit
 *   of weight 2^(1-e) on, give them to 2^-60 in 64-bit arithmetic. No float from 1 on is closer than 2^-30 to a
 *   multiple of pi/2, so at least 30 bits of r are right. */
static inline int trig_reduce_wide(float x, float *high, float *low)
{
    static const uint32_t two_over_pi[9] = { 0,          0xa2f9836e, 0x4e441529, 0xfc2757d1, 0xf534ddc0,
                                             0xdb629599, 0x3c439041, 0xfe5163ab, 0xdebbc561 };
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    int exponent = (int)(bits >> 23);
    if (exponent >= 0xff) {
        *high = *low = x - x;
        return 0;
    }
    uint64_t m = (bits & 0x7fffff) | 0x800000;
    int start = exponent - 150 + 30; /* first wanted bit of the table: weight 2^(1-e), the table's first is 2^31 */
    const uint32_t *word = two_over_pi + start / 32;
    int shift = start % 32;
    uint32_t w[3];
    for (int i = 0; i < 3; i++) {
        uint64_t pair = ((uint64_t)word[i] << 32) | word[i + 1];
        w[i] = (uint32_t)((pair << shift) >> 32);
    }
    /* x 2/pi mod 4, in units of 2^-62 */
    uint64_t quadrants = ((m * w[0]) << 32) + m * w[1] + ((m * w[2]) >> 32);
    uint64_t n = (quadrants + ((uint64_t)1 << 61)) >> 62;
    double r = (double)(int64_t)(quadrants - (n << 62)) * (0x1.921fb54442d18p0 * 0x1p-62);
    *high = (float)r;
    *low = (float)(r - (double)*high);
    return (int)(n & 3);
}

/* Replaces n, high, low in the lanes whose x is above TRIG_WIDE. */
static inline void trig_reduce_wide_lanes(vf x, vi *n, vf *high, vf *low)
{
    float x_lane[VF], high_lane[VF], low_lane[VF];
    int32_t n_lane[VF];
    vf_store(x_lane, x);
    vf_store(high_lane, *high);
    vf_store(low_lane, *low);
    vi_store(n_lane, *n);
    for (int i = 0; i < VF; i++)
        if (!(x_lane[i] <= TRIG_WIDE)) n_lane[i] = trig_reduce_wide(x_lane[i], high_lane + i, low_lane + i);
    *high = vf_load(high_lane);
    *low = vf_load(low_lane);
    *n = vi_load(n_lane);
}

/* For x >= 0. */
KR_INLINE void trig_reduce(vf x, vi *n, vf *high, vf *low)
{
    const vf magic = vf_set1(0x1.8p23f);
    vf t = vf_fma(x, vf_set1(0x1.45f306p-1f), magic);
    vf quadrants = vf_sub(t, magic);
    *n = vf_bits(t); /* its low bits are the integer's */
    /* pi/2 in three floats. The first step is exact; the second's rounding error is recovered, except where the result
     * is so small that the subtraction cancels (then it is not needed). */
    vf first = vf_fnma(quadrants, vf_set1(0x1.921fb6p0f), x);
    *high = vf_fnma(quadrants, vf_set1(-0x1.777a5cp-25f), first);
    vf error = vf_fnma(quadrants, vf_set1(-0x1.777a5cp-25f), vf_sub(first, *high));
    error = vf_keep(vf_gt(vf_abs(*high), vf_set1(0x1p-7f)), error);
    *low = vf_fnma(quadrants, vf_set1(-0x1.ee59dap-50f), error);
    if (!vm_all(vf_le(x, vf_set1(TRIG_WIDE)))) trig_reduce_wide_lanes(x, n, high, low);
}

/* Costs little more than one of them. */
KR_INLINE void vf_sincos(vf x, vf *sin_x, vf *cos_x)
{
    vi n;
    vf high, low;
    trig_reduce(vf_abs(x), &n, &high, &low);
    vf u = vf_mul(high, high);
    vf p = vf_fma(vf_set1(-0x1.991546p-13f), u, vf_set1(0x1.1106bap-7f));
    p = vf_fma(p, u, vf_set1(-0x1.555544p-3f));
    vf sin_r = vf_add(high, vf_fma(vf_mul(u, high), p, low));
    vf q = vf_fma(vf_set1(0x1.99dcfap-16f), u, vf_set1(-0x1.6c0c12p-10f));
    q = vf_fma(q, u, vf_set1(0x1.55554ap-5f));
    q = vf_fma(q, u, vf_set1(-0.5f));
    vf cos_r = vf_fma(u, q, vf_fnma(high, low, vf_set1(1)));
    vm even = vi_is_zero(vi_and(n, vi_set1(1)));
    vi sin_sign = vi_xor(vi_shift_left(vi_and(n, vi_set1(2)), 30), vi_and(vf_bits(x), vi_set1(INT32_MIN)));
    vi cos_sign = vi_shift_left(vi_and(vi_add(n, vi_set1(1)), vi_set1(2)), 30);
    *sin_x = vf_of_bits(vi_xor(vf_bits(vf_select(even, sin_r, cos_r)), sin_sign));
    *cos_x = vf_of_bits(vi_xor(vf_bits(vf_select(even, cos_r, sin_r)), cos_sign));
}

KR_INLINE vf vf_sin(vf x)
{
    vf sin_x, cos_x;
    vf_sincos(x, &sin_x, &cos_x);
    return sin_x;
}

KR_INLINE vf vf_cos(vf x)
{
    vf sin_x, cos_x;
    vf_sincos(x, &sin_x, &cos_x);
    return cos_x;
}

#endif
