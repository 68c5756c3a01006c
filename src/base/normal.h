/* normal.h - uniform and normal samples from the words of one Philox block.
 *
 *   f32 layout: 4 samples a block.  uniform i = (word[i] >> 8) 2^-24
 *               normals 0, 1 from (word[0], word[1]), normals 2, 3 from (word[2], word[3])
 *   f64 layout: 2 samples a block.  uniform i = (word[2i] word[2i+1] >> 11) 2^-53
 *               normals 0, 1 from all four words
 *   Box-Muller: radius = (-2 ln u)^1/2, u in (0, 1];   z0 = radius cos(2 pi v), z1 = radius sin(2 pi v), v in [0, 1)
 *
 * Only + - * / and sqrt in double are used, so every machine that rounds as IEEE 754 says, GPUs too, gives the same
 * bits, provided the compiler forms no fused multiply-add (-ffp-contract=off, nvcc -fmad=false). ln, sin and cos are
 * good to about 4e-16 of their value.
 */
#ifndef KR_BASE_NORMAL_H
#define KR_BASE_NORMAL_H

#include "base/philox.h"

#include <math.h>
#include <string.h>

/* ln x of a normal x > 0: x = 2^e m with m in [2^-1/2, 2^1/2); ln m = 2 artanh(s), s = (m-1)/(m+1), by its series. */
KR_EVERYWHERE double kr_normal_log(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    uint64_t fraction = bits & 0xfffffffffffffull;
    int exponent = (int)(bits >> 52) - 1023;
    if (fraction > 0x6a09e667f3bccull) exponent += 1; /* m above 2^1/2 is halved */
    uint64_t m_bits = (fraction > 0x6a09e667f3bccull ? 0x3feull : 0x3ffull) << 52 | fraction;
    double m;
    memcpy(&m, &m_bits, sizeof m);

    double s = (m - 1.0) / (m + 1.0), z = s * s; /* z < 0.0295: the first term left out is below 1e-17 */
    double tail = 1.0 / 21.0;
    tail = tail * z + 1.0 / 19.0;
    tail = tail * z + 1.0 / 17.0;
    tail = tail * z + 1.0 / 15.0;
    tail = tail * z + 1.0 / 13.0;
    tail = tail * z + 1.0 / 11.0;
    tail = tail * z + 1.0 / 9.0;
    tail = tail * z + 1.0 / 7.0;
    tail = tail * z + 1.0 / 5.0;
    tail = tail * z + 1.0 / 3.0;
    double log_m = 2.0 * s + 2.0 * s * (z * tail);
    return (double)exponent * 0.69314718055994530942 + log_m;
}

/* cos and sin of v turns, v in [0, 1). The nearest quarter turn comes off exactly; Taylor series on +-pi/4. */
KR_EVERYWHERE void kr_normal_turn(double v, double *cosine, double *sine)
{
    double quarters = 4.0 * v;
    int nearest = (int)(quarters + 0.5);
    double x = (quarters - (double)nearest) * 1.57079632679489661923, z = x * x;

    double s = 1.0 / 355687428096000.0; /* 1/17! */
    s = s * z - 1.0 / 1307674368000.0;
    s = s * z + 1.0 / 6227020800.0;
    s = s * z - 1.0 / 39916800.0;
    s = s * z + 1.0 / 362880.0;
    s = s * z - 1.0 / 5040.0;
    s = s * z + 1.0 / 120.0;
    s = s * z - 1.0 / 6.0;
    s = x + x * (z * s);

    double c = 1.0 / 20922789888000.0; /* 1/16! */
    c = c * z - 1.0 / 87178291200.0;
    c = c * z + 1.0 / 479001600.0;
    c = c * z - 1.0 / 3628800.0;
    c = c * z + 1.0 / 40320.0;
    c = c * z - 1.0 / 720.0;
    c = c * z + 1.0 / 24.0;
    c = c * z - 0.5;
    c = 1.0 + z * c;

    switch (nearest & 3) {
    case 0: *cosine = c, *sine = s; break;
    case 1: *cosine = -s, *sine = c; break;
    case 2: *cosine = -c, *sine = -s; break;
    default: *cosine = s, *sine = -c; break;
    }
}

/* Two independent normals; u in (0, 1], v in [0, 1). */
KR_EVERYWHERE void kr_normal_pair(double u, double v, double *z0, double *z1)
{
    double radius = sqrt(-2.0 * kr_normal_log(u)), cosine, sine;
    kr_normal_turn(v, &cosine, &sine);
    *z0 = radius * cosine;
    *z1 = radius * sine;
}

/* The 53 upper bits of the words (high, low) as an integer. */
KR_EVERYWHERE double kr_draw_53(uint32_t high, uint32_t low)
{
    return (double)(((uint64_t)high << 32 | low) >> 11);
}

KR_EVERYWHERE void kr_uniforms_f32(const kr_philox_block *block, double u[4])
{
    for (int i = 0; i < 4; i++) u[i] = (double)(block->word[i] >> 8) * 0x1p-24;
}

KR_EVERYWHERE void kr_uniforms_f64(const kr_philox_block *block, double u[2])
{
    for (int i = 0; i < 2; i++) u[i] = kr_draw_53(block->word[2 * i], block->word[2 * i + 1]) * 0x1p-53;
}

KR_EVERYWHERE void kr_normals_f32(const kr_philox_block *block, double z[4])
{
    for (int i = 0; i < 4; i += 2) {
        double u = ((double)block->word[i] + 1.0) * 0x1p-32, v = (double)block->word[i + 1] * 0x1p-32;
        kr_normal_pair(u, v, &z[i], &z[i + 1]);
    }
}

KR_EVERYWHERE void kr_normals_f64(const kr_philox_block *block, double z[2])
{
    double u = (kr_draw_53(block->word[0], block->word[1]) + 1.0) * 0x1p-53;
    double v = kr_draw_53(block->word[2], block->word[3]) * 0x1p-53;
    kr_normal_pair(u, v, &z[0], &z[1]);
}

#endif
