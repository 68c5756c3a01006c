/* vec_half_avx512.h - loads and stores of bf16 and f16, widened to float lanes, in AVX-512: 16 lanes to 256 bits. */
#ifndef KR_KERNELS_CPU_VEC_HALF_AVX512_H
#define KR_KERNELS_CPU_VEC_HALF_AVX512_H

#include "kernels/cpu/vec_avx512.h"

/* Without optimisation gcc's intrinsics are macros, whose conversions would be reported here. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wsign-conversion"

KR_INLINE vf vf_widen_bf16(__m256i h)
{
    return vf_of_bits(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}

KR_INLINE __m256i vf_narrow_bf16(vf a)
{
    vi bits = vf_bits(a);
    vi odd = vi_and(_mm512_srli_epi32(bits, 16), vi_set1(1));
    vi rounded = _mm512_srli_epi32(vi_add(bits, vi_add(odd, vi_set1(0x7fff))), 16);
    vi quiet = vi_or(_mm512_srli_epi32(bits, 16), vi_set1(0x40));
    return _mm512_cvtepi32_epi16(_mm512_mask_mov_epi32(rounded, vf_is_nan(a), quiet));
}

KR_INLINE vf vf_load_bf16(const uint16_t *p)
{
    return vf_widen_bf16(_mm256_loadu_si256((const __m256i *)(const void *)p));
}

KR_INLINE vf vf_load_bf16_n(const uint16_t *p, int64_t n)
{
    return vf_widen_bf16(_mm256_maskz_loadu_epi16(vm_first(n), p));
}

KR_INLINE void vf_store_bf16(uint16_t *p, vf a)
{
    _mm256_storeu_si256((__m256i *)(void *)p, vf_narrow_bf16(a));
}

KR_INLINE void vf_store_bf16_n(uint16_t *p, int64_t n, vf a)
{
    _mm256_mask_storeu_epi16(p, vm_first(n), vf_narrow_bf16(a));
}

KR_INLINE vf vf_load_f16(const uint16_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
}

KR_INLINE vf vf_load_f16_n(const uint16_t *p, int64_t n)
{
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(vm_first(n), p));
}

KR_INLINE void vf_store_f16(uint16_t *p, vf a)
{
    _mm256_storeu_si256((__m256i *)(void *)p, _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

KR_INLINE void vf_store_f16_n(uint16_t *p, int64_t n, vf a)
{
    _mm256_mask_storeu_epi16(p, vm_first(n), _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

#pragma GCC diagnostic pop

#endif
