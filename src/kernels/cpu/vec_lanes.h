/* vec_lanes.h - permutations of the lanes of vectors of floats: pairs (a0, a1) and quaternions (w, x, y, z).
 *
 *   vf_swap_pairs       (1, 0), (3, 2), ...                  vf_twice_low(a)   a0, a0, a1, a1, ... of the lower half
 *   vf_swap_halves      of four lanes: 2, 3, 0, 1            vf_twice_high(a)  the same of the upper half
 *   vf_reverse_quads    of four lanes: 3, 2, 1, 0            vf_evens(a, b)    a0, a2, ... then b0, b2, ...
 *   vf_quad_w .. _z     lane 0 .. 3 of each four, in all four lanes
 *
 * vf_sums_4(x, sums) sums the lanes of each of x[0] .. x[3]: in fours, (0 + 2) + (1 + 3), then by halves.
 */
#ifndef KR_KERNELS_CPU_VEC_LANES_H
#define KR_KERNELS_CPU_VEC_LANES_H

#include "kernels/cpu/vec.h"

/* Without optimisation gcc's intrinsics are macros, whose conversions would be reported here. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wsign-conversion"

#if defined(__AVX512F__)

#define KR_WITHIN_FOUR(name, order)                                                                                    \
    KR_INLINE vf name(vf a)                                                                                            \
    {                                                                                                                  \
        return _mm512_permute_ps(a, order);                                                                            \
    }

KR_INLINE vf vf_twice_low(vf a)
{
    return _mm512_permutexvar_ps(_mm512_set_epi32(7, 7, 6, 6, 5, 5, 4, 4, 3, 3, 2, 2, 1, 1, 0, 0), a);
}

KR_INLINE vf vf_twice_high(vf a)
{
    return _mm512_permutexvar_ps(_mm512_set_epi32(15, 15, 14, 14, 13, 13, 12, 12, 11, 11, 10, 10, 9, 9, 8, 8), a);
}

KR_INLINE void vf_sums_4(const vf *x, float *sums)
{
    const vf ab = _mm512_add_ps(_mm512_unpacklo_ps(x[0], x[1]), _mm512_unpackhi_ps(x[0], x[1]));
    const vf cd = _mm512_add_ps(_mm512_unpacklo_ps(x[2], x[3]), _mm512_unpackhi_ps(x[2], x[3]));
    const vf abcd = _mm512_add_ps(_mm512_shuffle_ps(ab, cd, 0x44), _mm512_shuffle_ps(ab, cd, 0xee));
    const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(abcd), _mm512_extractf32x8_ps(abcd, 1));
    _mm_storeu_ps(sums, _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1)));
}

KR_INLINE vf vf_evens(vf a, vf b)
{
    const vi even = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    return _mm512_permutex2var_ps(a, even, b);
}

#else

#define KR_WITHIN_FOUR(name, order)                                                                                    \
    KR_INLINE vf name(vf a)                                                                                            \
    {                                                                                                                  \
        return _mm256_permute_ps(a, order);                                                                            \
    }

KR_INLINE vf vf_twice_low(vf a)
{
    return _mm256_permutevar8x32_ps(a, _mm256_set_epi32(3, 3, 2, 2, 1, 1, 0, 0));
}

KR_INLINE vf vf_twice_high(vf a)
{
    return _mm256_permutevar8x32_ps(a, _mm256_set_epi32(7, 7, 6, 6, 5, 5, 4, 4));
}

KR_INLINE void vf_sums_4(const vf *x, float *sums)
{
    const vf ab = _mm256_add_ps(_mm256_unpacklo_ps(x[0], x[1]), _mm256_unpackhi_ps(x[0], x[1]));
    const vf cd = _mm256_add_ps(_mm256_unpacklo_ps(x[2], x[3]), _mm256_unpackhi_ps(x[2], x[3]));
    const vf abcd = _mm256_add_ps(_mm256_shuffle_ps(ab, cd, 0x44), _mm256_shuffle_ps(ab, cd, 0xee));
    _mm_storeu_ps(sums, _mm_add_ps(_mm256_castps256_ps128(abcd), _mm256_extractf128_ps(abcd, 1)));
}

KR_INLINE vf vf_evens(vf a, vf b)
{
    __m256d mixed = _mm256_castps_pd(_mm256_shuffle_ps(a, b, 0x88)); /* a0 a2 b0 b2, a4 a6 b4 b6 */
    return _mm256_castpd_ps(_mm256_permute4x64_pd(mixed, 0xd8));
}

#endif

KR_WITHIN_FOUR(vf_swap_pairs, 0xb1)
KR_WITHIN_FOUR(vf_swap_halves, 0x4e)
KR_WITHIN_FOUR(vf_reverse_quads, 0x1b)
KR_WITHIN_FOUR(vf_quad_w, 0x00)
KR_WITHIN_FOUR(vf_quad_x, 0x55)
KR_WITHIN_FOUR(vf_quad_y, 0xaa)
KR_WITHIN_FOUR(vf_quad_z, 0xff)
#undef KR_WITHIN_FOUR

#pragma GCC diagnostic pop

#endif
