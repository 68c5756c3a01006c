/* half.h - the 16-bit float formats, one value at a time.
 *
 *   bf16: 1 sign, 8 exponent, 7 fraction bits: the upper half of a float
 *   f16:  1 sign, 5 exponent, 10 fraction bits: IEEE binary16
 *
 * Widening is exact. Narrowing rounds once, to nearest, ties to even; overflow gives infinity, denormals are kept, and
 * a NaN stays a quiet NaN with the upper bits of its payload.
 */
#ifndef KR_BASE_HALF_H
#define KR_BASE_HALF_H

#include "base/host_device.h"

#include <stdint.h>
#include <string.h>

KR_EVERYWHERE uint32_t kr_float_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

KR_EVERYWHERE float kr_float_of_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

KR_EVERYWHERE float kr_float_from_bf16(uint16_t h)
{
    return kr_float_of_bits((uint32_t)h << 16);
}

KR_EVERYWHERE uint16_t kr_bf16_from_float(float x)
{
    uint32_t bits = kr_float_bits(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((bits >> 16) | 0x40u);
    bits += 0x7fffu + ((bits >> 16) & 1u);
    return (uint16_t)(bits >> 16);
}

KR_EVERYWHERE float kr_float_from_f16(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    uint32_t magnitude = h & 0x7fffu;
    if (magnitude >= 0x7c00u) { /* infinity, or NaN (made quiet) */
        uint32_t quiet = magnitude > 0x7c00u ? 0x400000u : 0u;
        return kr_float_of_bits(sign | 0x7f800000u | quiet | ((magnitude & 0x3ffu) << 13));
    }
    if (magnitude < 0x400u) { /* denormal: a multiple of 2^-24 */
        float value = (float)magnitude * 0x1p-24f;
        return kr_float_of_bits(sign | kr_float_bits(value));
    }
    return kr_float_of_bits(sign | ((magnitude << 13) + (112u << 23))); /* exponent bias 15 to 127 */
}

KR_EVERYWHERE uint16_t kr_f16_from_float(float x)
{
    uint32_t bits = kr_float_bits(x);
    uint32_t sign = (bits >> 16) & 0x8000u;
    uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return (uint16_t)(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
    if (magnitude >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u); /* 65520 and above round to infinity */
    if (magnitude < 0x38800000u) {
        /* below 2^-14: adding 0.5 leaves the sum's last bit at 2^-24, so the addition rounds as f16 does */
        float sum = kr_float_of_bits(magnitude) + 0.5f;
        return (uint16_t)(sign | (kr_float_bits(sum) - 0x3f000000u));
    }
    magnitude += 0xfffu + ((magnitude >> 13) & 1u);
    return (uint16_t)(sign | ((magnitude - (112u << 23)) >> 13));
}

/* A double to float "to odd": toward zero, with the last bit set if the result is inexact. Rounding the result again to
 * a format with at least two bits fewer equals one rounding of the double. */
KR_EVERYWHERE float kr_float_to_odd(double x)
{
    float nearest = (float)x;
    if ((double)nearest == x || x != x) return nearest;
    uint32_t bits = kr_float_bits(nearest);
    double magnitude = x < 0 ? -x : x;
    if ((double)kr_float_of_bits(bits & 0x7fffffffu) > magnitude) bits -= 1;
    return kr_float_of_bits(bits | 1u);
}

KR_EVERYWHERE uint16_t kr_bf16_from_double(double x)
{
    return kr_bf16_from_float(kr_float_to_odd(x));
}

KR_EVERYWHERE uint16_t kr_f16_from_double(double x)
{
    return kr_f16_from_float(kr_float_to_odd(x));
}

#endif
