/* gemm_b.h - loads of the operand B in its storage type: f32, or 16-bit floats widened in registers.
 *
 * `dtype` is a constant wherever these are inlined; elements are numbered from b, in B's storage type.
 */
#ifndef KR_KERNELS_CPU_GEMM_B_H
#define KR_KERNELS_CPU_GEMM_B_H

#include "base/half.h"
#include "kernels/cpu/gemm_vec.h"
#include "kernels/args/matmul_args.h"

/* Bytes of an element, elements of a cache line. */
#define GEMM_B_BYTES(dtype) ((dtype) == KR_DTYPE_F32 ? 4 : 2)
#define GEMM_B_LINE(dtype) (64 / GEMM_B_BYTES(dtype))

/* Address of element i; for a prefetch it may be outside of the operand. */
KR_INLINE const void *gemm_b_at(const void *b, int64_t i, kr_dtype dtype)
{
    return (const void *)((uintptr_t)b + (uintptr_t)(i * GEMM_B_BYTES(dtype)));
}

KR_INLINE float gemm_b_one(const void *b, int64_t i, kr_dtype dtype)
{
    if (dtype == KR_DTYPE_F32) return ((const float *)b)[i];
    const uint16_t bits = ((const uint16_t *)b)[i];
    return dtype == KR_DTYPE_BF16 ? kr_float_from_bf16(bits) : kr_float_from_f16(bits);
}

/* Elements i .. i + VF - 1; the first n of them. */
KR_INLINE vf gemm_b_load(const void *b, int64_t i, const kr_dtype dtype)
{
    const uint16_t *h = (const uint16_t *)b + i;
    return dtype == KR_DTYPE_F32    ? vf_load((const float *)b + i)
           : dtype == KR_DTYPE_BF16 ? vf_load_bf16(h)
                                    : vf_load_f16(h);
}

KR_INLINE vf gemm_b_load_n(const void *b, int64_t i, int64_t n, const kr_dtype dtype)
{
    const uint16_t *h = (const uint16_t *)b + i;
    if (dtype == KR_DTYPE_F32) return vf_load_n((const float *)b + i, n);
    return dtype == KR_DTYPE_BF16 ? vf_load_bf16_n(h, n) : vf_load_f16_n(h, n);
}

/* Steps of k per transpose: as many elements as fit 128 bits. */
#define GEMM_B_STEPS(dtype) (16 / GEMM_B_BYTES(dtype))

/* Eight steps of eight columns of 16-bit floats. Columns r and r + 4 are loaded into one vector, as in g8_transpose_4. */
KR_INLINE void gemm_b_transpose_16bit(const uint16_t *b, int64_t b_n, g8 t[8], const kr_dtype dtype)
{
    const uint16_t *b4 = gemm_opaque(b + 4 * b_n);
    const __m256i zero = _mm256_setzero_si256();
    g8 first[4], last[4];
    GEMM_UNROLL
    for (int r = 0; r < 4; r++) {
        const __m128i low = _mm_loadu_si128((const __m128i *)(const void *)(b + r * b_n));
        const __m128i high = _mm_loadu_si128((const __m128i *)(const void *)(b4 + r * b_n));
        if (dtype == KR_DTYPE_BF16) { /* the upper 16 bits of a float, above zeros */
            const __m256i both = _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
            first[r] = _mm256_castsi256_ps(_mm256_unpacklo_epi16(zero, both));
            last[r] = _mm256_castsi256_ps(_mm256_unpackhi_epi16(zero, both));
        } else {
            first[r] = _mm256_cvtph_ps(_mm_unpacklo_epi64(low, high));
            last[r] = _mm256_cvtph_ps(_mm_unpackhi_epi64(low, high));
        }
    }
    g8_transpose_pairs(first, t);
    g8_transpose_pairs(last, t + 4);
}

/* GEMM_B_STEPS(dtype) steps of eight columns of stride b_n, each adjacent along k: t[q] = B[q, 0..7]. */
KR_INLINE void gemm_b_transpose(const void *b, int64_t b_n, g8 t[8], const kr_dtype dtype)
{
    if (dtype == KR_DTYPE_F32) g8_transpose_4(b, b_n, t);
    else gemm_b_transpose_16bit(b, b_n, t, dtype);
}

#endif
