/* vec_avx512.h - the vectors of vec.h in AVX-512 (F, BW, VL, DQ): 16 lanes, masks in mask registers. */
#ifndef KR_KERNELS_CPU_VEC_AVX512_H
#define KR_KERNELS_CPU_VEC_AVX512_H

#include <immintrin.h>

/* Without optimisation gcc's intrinsics are macros, whose conversions would be reported here. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wsign-conversion"

typedef __m512 vf;
typedef __m512i vi;
typedef __mmask16 vm;

enum { VF = 16 };

/* The first n lanes. */
KR_INLINE vm vm_first(int64_t n)
{
    unsigned count = n >= VF ? VF : n <= 0 ? 0 : (unsigned)n;
    return (vm)((1u << count) - 1u);
}

KR_INLINE vm vm_and(vm a, vm b)
{
    return (vm)(a & b);
}

KR_INLINE vm vm_or(vm a, vm b)
{
    return (vm)(a | b);
}

KR_INLINE bool vm_any(vm a)
{
    return a != 0;
}

KR_INLINE bool vm_all(vm a)
{
    return a == (vm)0xffff;
}

KR_INLINE vf vf_set1(float x)
{
    return _mm512_set1_ps(x);
}

KR_INLINE vf vf_zero(void)
{
    return _mm512_setzero_ps();
}

KR_INLINE vf vf_load(const float *p)
{
    return _mm512_loadu_ps(p);
}

KR_INLINE void vf_store(float *p, vf a)
{
    _mm512_storeu_ps(p, a);
}

KR_INLINE vf vf_load_n(const float *p, int64_t n)
{
    return _mm512_maskz_loadu_ps(vm_first(n), p);
}

KR_INLINE void vf_store_n(float *p, int64_t n, vf a)
{
    _mm512_mask_storeu_ps(p, vm_first(n), a);
}

KR_INLINE vf vf_add(vf a, vf b)
{
    return _mm512_add_ps(a, b);
}

KR_INLINE vf vf_sub(vf a, vf b)
{
    return _mm512_sub_ps(a, b);
}

KR_INLINE vf vf_mul(vf a, vf b)
{
    return _mm512_mul_ps(a, b);
}

KR_INLINE vf vf_div(vf a, vf b)
{
    return _mm512_div_ps(a, b);
}

KR_INLINE vf vf_fma(vf a, vf b, vf c)
{
    return _mm512_fmadd_ps(a, b, c);
}

KR_INLINE vf vf_fnma(vf a, vf b, vf c)
{
    return _mm512_fnmadd_ps(a, b, c);
}

KR_INLINE vf vf_min(vf a, vf b)
{
    return _mm512_min_ps(a, b);
}

KR_INLINE vf vf_max(vf a, vf b)
{
    return _mm512_max_ps(a, b);
}

KR_INLINE vf vf_sqrt(vf a)
{
    return _mm512_sqrt_ps(a);
}

KR_INLINE vf vf_floor(vf a)
{
    return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
}

/* To the nearest integer, ties to even. */
KR_INLINE vf vf_round(vf a)
{
    return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

KR_INLINE vm vf_lt(vf a, vf b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ);
}

KR_INLINE vm vf_le(vf a, vf b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_LE_OQ);
}

KR_INLINE vm vf_gt(vf a, vf b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ);
}

KR_INLINE vm vf_ge(vf a, vf b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_GE_OQ);
}

KR_INLINE vm vf_eq(vf a, vf b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ);
}

KR_INLINE vm vf_is_nan(vf a)
{
    return _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q);
}

KR_INLINE vf vf_select(vm m, vf a, vf b)
{
    return _mm512_mask_blend_ps(m, b, a);
}

KR_INLINE vf vf_keep(vm m, vf a)
{
    return _mm512_maskz_mov_ps(m, a);
}

KR_INLINE vi vf_bits(vf a)
{
    return _mm512_castps_si512(a);
}

KR_INLINE vf vf_of_bits(vi a)
{
    return _mm512_castsi512_ps(a);
}

KR_INLINE vi vi_set1(int32_t x)
{
    return _mm512_set1_epi32(x);
}

KR_INLINE vi vi_load(const int32_t *p)
{
    return _mm512_loadu_si512(p);
}

KR_INLINE vi vi_load_n(const int32_t *p, int64_t n)
{
    return _mm512_maskz_loadu_epi32(vm_first(n), p);
}

KR_INLINE void vi_store(int32_t *p, vi a)
{
    _mm512_storeu_si512(p, a);
}

KR_INLINE vi vi_add(vi a, vi b)
{
    return _mm512_add_epi32(a, b);
}

/* The low words of the unsigned products; *high: the high words. */
KR_INLINE vi vi_mul_wide(vi a, vi b, vi *high)
{
    const __m512i even = _mm512_mul_epu32(a, b);
    const __m512i odd = _mm512_mul_epu32(_mm512_srli_epi64(a, 32), _mm512_srli_epi64(b, 32));
    *high = _mm512_mask_blend_epi32(0xaaaa, _mm512_srli_epi64(even, 32), odd);
    return _mm512_mask_blend_epi32(0xaaaa, even, _mm512_slli_epi64(odd, 32));
}

/* a >= b, both unsigned. */
KR_INLINE vm vi_at_least(vi a, vi b)
{
    return _mm512_cmpge_epu32_mask(a, b);
}

KR_INLINE vi vi_sub(vi a, vi b)
{
    return _mm512_sub_epi32(a, b);
}

KR_INLINE vi vi_and(vi a, vi b)
{
    return _mm512_and_si512(a, b);
}

KR_INLINE vi vi_or(vi a, vi b)
{
    return _mm512_or_si512(a, b);
}

KR_INLINE vi vi_xor(vi a, vi b)
{
    return _mm512_xor_si512(a, b);
}

KR_INLINE vi vi_shift_left(vi a, int count)
{
    return _mm512_slli_epi32(a, (unsigned)count);
}

/* Keeps the sign. */
KR_INLINE vi vi_shift_right(vi a, int count)
{
    return _mm512_srai_epi32(a, (unsigned)count);
}

KR_INLINE vm vi_is_zero(vi a)
{
    return _mm512_testn_epi32_mask(a, a);
}

KR_INLINE float vf_sum(vf a)
{
    __m256 q = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 h = _mm_add_ps(_mm256_castps256_ps128(q), _mm256_extractf128_ps(q, 1));
    h = _mm_add_ps(h, _mm_movehl_ps(h, h));
    return _mm_cvtss_f32(_mm_add_ss(h, _mm_movehdup_ps(h)));
}

/* The largest lane; NaN lanes may be ignored. */
KR_INLINE float vf_max_lanes(vf a)
{
    __m256 q = _mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 h = _mm_max_ps(_mm256_castps256_ps128(q), _mm256_extractf128_ps(q, 1));
    h = _mm_max_ps(h, _mm_movehl_ps(h, h));
    return _mm_cvtss_f32(_mm_max_ss(h, _mm_movehdup_ps(h)));
}

KR_INLINE vf vf_scale2(vf x, vf n)
{
    return _mm512_scalef_ps(x, n);
}

KR_INLINE vf vf_mantissa(vf x, vf *e)
{
    vf m = _mm512_getmant_ps(x, _MM_MANT_NORM_p75_1p5, _MM_MANT_SIGN_src);
    vf floor_log2 = _mm512_getexp_ps(x);
    /* a mantissa below 1 was halved */
    *e = _mm512_mask_add_ps(floor_log2, vf_lt(m, vf_set1(1)), floor_log2, vf_set1(1));
    return m;
}

#pragma GCC diagnostic pop

#endif
