/* vec_half_avx2.h - loads and stores of bf16 and f16, widened to float lanes, in AVX2 and F16C: 8 lanes to 128 bits. */
#ifndef KR_KERNELS_CPU_VEC_HALF_AVX2_H
#define KR_KERNELS_CPU_VEC_HALF_AVX2_H

#include "kernels/cpu/vec_avx2.h"

/* AVX2 has no masked moves of 16-bit elements: a partial vector goes through a small buffer. */
KR_INLINE __m128i vf_load_half_n(const uint16_t *p, int64_t n)
{
    uint16_t lanes[VF] = { 0 };
    for (int64_t i = 0; i < n && i < VF; i++) lanes[i] = p[i];
    return _mm_loadu_si128((const __m128i *)(const void *)lanes);
}

KR_INLINE void vf_store_half_n(uint16_t *p, int64_t n, __m128i h)
{
    uint16_t lanes[VF];
    _mm_storeu_si128((__m128i *)(void *)lanes, h);
    for (int64_t i = 0; i < n && i < VF; i++) p[i] = lanes[i];
}

KR_INLINE vf vf_widen_bf16(__m128i h)
{
    return vf_of_bits(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}

KR_INLINE __m128i vf_narrow_bf16(vf a)
{
    vi bits = vf_bits(a);
    vi upper = _mm256_srli_epi32(bits, 16);
    vi odd = vi_and(upper, vi_set1(1));
    vi rounded = _mm256_srli_epi32(vi_add(bits, vi_add(odd, vi_set1(0x7fff))), 16);
    vi quiet = vi_or(upper, vi_set1(0x40));
    vi word = vf_bits(vf_select(vf_is_nan(a), vf_of_bits(quiet), vf_of_bits(rounded)));
    return _mm_packus_epi32(_mm256_castsi256_si128(word), _mm256_extracti128_si256(word, 1));
}

KR_INLINE vf vf_load_bf16(const uint16_t *p)
{
    return vf_widen_bf16(_mm_loadu_si128((const __m128i *)(const void *)p));
}

KR_INLINE vf vf_load_bf16_n(const uint16_t *p, int64_t n)
{
    return vf_widen_bf16(vf_load_half_n(p, n));
}

KR_INLINE void vf_store_bf16(uint16_t *p, vf a)
{
    _mm_storeu_si128((__m128i *)(void *)p, vf_narrow_bf16(a));
}

KR_INLINE void vf_store_bf16_n(uint16_t *p, int64_t n, vf a)
{
    vf_store_half_n(p, n, vf_narrow_bf16(a));
}

KR_INLINE vf vf_load_f16(const uint16_t *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p));
}

KR_INLINE vf vf_load_f16_n(const uint16_t *p, int64_t n)
{
    return _mm256_cvtph_ps(vf_load_half_n(p, n));
}

KR_INLINE void vf_store_f16(uint16_t *p, vf a)
{
    _mm_storeu_si128((__m128i *)(void *)p, _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
}

KR_INLINE void vf_store_f16_n(uint16_t *p, int64_t n, vf a)
{
    vf_store_half_n(p, n, _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
}

#endif
