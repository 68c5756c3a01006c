/* vec_avx2.h - the vectors of vec.h in AVX2 with FMA and F16C: 8 lanes, masks as lanes of all ones or all zeros. */
#ifndef KR_KERNELS_CPU_VEC_AVX2_H
#define KR_KERNELS_CPU_VEC_AVX2_H

#include <immintrin.h>

typedef __m256 vf;
typedef __m256i vi;
typedef __m256 vm;

enum { VF = 8 };

/* The first n lanes. */
KR_INLINE vm vm_first(int64_t n)
{
    int32_t count = n >= VF ? VF : n <= 0 ? 0 : (int32_t)n;
    __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(count), lane));
}

KR_INLINE vm vm_and(vm a, vm b)
{
    return _mm256_and_ps(a, b);
}

KR_INLINE vm vm_or(vm a, vm b)
{
    return _mm256_or_ps(a, b);
}

KR_INLINE bool vm_any(vm a)
{
    return _mm256_movemask_ps(a) != 0;
}

KR_INLINE bool vm_all(vm a)
{
    return _mm256_movemask_ps(a) == 0xff;
}

KR_INLINE vf vf_set1(float x)
{
    return _mm256_set1_ps(x);
}

KR_INLINE vf vf_zero(void)
{
    return _mm256_setzero_ps();
}

KR_INLINE vf vf_load(const float *p)
{
    return _mm256_loadu_ps(p);
}

KR_INLINE void vf_store(float *p, vf a)
{
    _mm256_storeu_ps(p, a);
}

KR_INLINE vf vf_load_n(const float *p, int64_t n)
{
    return _mm256_maskload_ps(p, _mm256_castps_si256(vm_first(n)));
}

KR_INLINE void vf_store_n(float *p, int64_t n, vf a)
{
    _mm256_maskstore_ps(p, _mm256_castps_si256(vm_first(n)), a);
}

KR_INLINE vf vf_add(vf a, vf b)
{
    return _mm256_add_ps(a, b);
}

KR_INLINE vf vf_sub(vf a, vf b)
{
    return _mm256_sub_ps(a, b);
}

KR_INLINE vf vf_mul(vf a, vf b)
{
    return _mm256_mul_ps(a, b);
}

KR_INLINE vf vf_div(vf a, vf b)
{
    return _mm256_div_ps(a, b);
}

KR_INLINE vf vf_fma(vf a, vf b, vf c)
{
    return _mm256_fmadd_ps(a, b, c);
}

KR_INLINE vf vf_fnma(vf a, vf b, vf c)
{
    return _mm256_fnmadd_ps(a, b, c);
}

KR_INLINE vf vf_min(vf a, vf b)
{
    return _mm256_min_ps(a, b);
}

KR_INLINE vf vf_max(vf a, vf b)
{
    return _mm256_max_ps(a, b);
}

KR_INLINE vf vf_sqrt(vf a)
{
    return _mm256_sqrt_ps(a);
}

KR_INLINE vf vf_floor(vf a)
{
    return _mm256_round_ps(a, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
}

/* To the nearest integer, ties to even. */
KR_INLINE vf vf_round(vf a)
{
    return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

KR_INLINE vm vf_lt(vf a, vf b)
{
    return _mm256_cmp_ps(a, b, _CMP_LT_OQ);
}

KR_INLINE vm vf_le(vf a, vf b)
{
    return _mm256_cmp_ps(a, b, _CMP_LE_OQ);
}

KR_INLINE vm vf_gt(vf a, vf b)
{
    return _mm256_cmp_ps(a, b, _CMP_GT_OQ);
}

KR_INLINE vm vf_ge(vf a, vf b)
{
    return _mm256_cmp_ps(a, b, _CMP_GE_OQ);
}

KR_INLINE vm vf_eq(vf a, vf b)
{
    return _mm256_cmp_ps(a, b, _CMP_EQ_OQ);
}

KR_INLINE vm vf_is_nan(vf a)
{
    return _mm256_cmp_ps(a, a, _CMP_UNORD_Q);
}

KR_INLINE vf vf_select(vm m, vf a, vf b)
{
    return _mm256_blendv_ps(b, a, m);
}

KR_INLINE vf vf_keep(vm m, vf a)
{
    return _mm256_and_ps(m, a);
}

KR_INLINE vi vf_bits(vf a)
{
    return _mm256_castps_si256(a);
}

KR_INLINE vf vf_of_bits(vi a)
{
    return _mm256_castsi256_ps(a);
}

KR_INLINE vi vi_set1(int32_t x)
{
    return _mm256_set1_epi32(x);
}

KR_INLINE vi vi_load(const int32_t *p)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)p);
}

KR_INLINE vi vi_load_n(const int32_t *p, int64_t n)
{
    return _mm256_maskload_epi32(p, _mm256_castps_si256(vm_first(n)));
}

KR_INLINE void vi_store(int32_t *p, vi a)
{
    _mm256_storeu_si256((__m256i *)(void *)p, a);
}

KR_INLINE vi vi_add(vi a, vi b)
{
    return _mm256_add_epi32(a, b);
}

/* The low words of the unsigned products; *high: the high words. */
KR_INLINE vi vi_mul_wide(vi a, vi b, vi *high)
{
    const __m256i even = _mm256_mul_epu32(a, b);
    const __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64(a, 32), _mm256_srli_epi64(b, 32));
    *high = _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa);
    return _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xaa);
}

/* a >= b, both unsigned. */
KR_INLINE vm vi_at_least(vi a, vi b)
{
    return _mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_max_epu32(a, b), a));
}

KR_INLINE vi vi_sub(vi a, vi b)
{
    return _mm256_sub_epi32(a, b);
}

KR_INLINE vi vi_and(vi a, vi b)
{
    return _mm256_and_si256(a, b);
}

KR_INLINE vi vi_or(vi a, vi b)
{
    return _mm256_or_si256(a, b);
}

KR_INLINE vi vi_xor(vi a, vi b)
{
    return _mm256_xor_si256(a, b);
}

KR_INLINE vi vi_shift_left(vi a, int count)
{
    return _mm256_slli_epi32(a, count);
}

/* Keeps the sign. */
KR_INLINE vi vi_shift_right(vi a, int count)
{
    return _mm256_srai_epi32(a, count);
}

KR_INLINE vm vi_is_zero(vi a)
{
    return _mm256_castsi256_ps(_mm256_cmpeq_epi32(a, _mm256_setzero_si256()));
}

KR_INLINE float vf_sum(vf a)
{
    __m128 h = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    h = _mm_add_ps(h, _mm_movehl_ps(h, h));
    return _mm_cvtss_f32(_mm_add_ss(h, _mm_movehdup_ps(h)));
}

/* The largest lane; NaN lanes may be ignored. */
KR_INLINE float vf_max_lanes(vf a)
{
    __m128 h = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    h = _mm_max_ps(h, _mm_movehl_ps(h, h));
    return _mm_cvtss_f32(_mm_max_ss(h, _mm_movehdup_ps(h)));
}

KR_INLINE vf vf_scale2(vf x, vf n)
{
    /* 2^n as two factors in range. The sum's low bits are n + 254, each half of which is a power's biased exponent. */
    vi biased = vf_bits(vf_add(n, vf_set1(0x1.8p23f + 254)));
    vi half = vi_shift_right(biased, 1);
    vf first = vf_of_bits(vi_shift_left(half, 23));
    vf second = vf_of_bits(vi_shift_left(vi_sub(biased, half), 23));
    return vf_mul(vf_mul(x, first), second);
}

KR_INLINE vf vf_mantissa(vf x, vf *e)
{
    vi offset = vi_sub(vf_bits(x), vi_set1(0x3f400000)); /* bits of 0.75 */
    vi exponent = vi_shift_right(offset, 23);
    *e = _mm256_cvtepi32_ps(exponent);
    return vf_of_bits(vi_sub(vf_bits(x), vi_shift_left(exponent, 23)));
}

#endif
