/* gemm_vec.h - the few vector operations of the matrix product, for either instruction set.
 *
 * gv holds GV floats, the native width. g8 is always eight floats: transposes of 8 rows run in half-width vectors
 * in both sets, because their shuffles stay inside 128-bit lanes and issue twice a cycle.
 */
#ifndef KR_KERNELS_CPU_GEMM_VEC_H
#define KR_KERNELS_CPU_GEMM_VEC_H

#include <immintrin.h>
#include <stdint.h>

#define GEMM_INLINE static inline __attribute__((always_inline))

/* The loops over a tile's rows and columns must vanish, so that accumulators live in registers. */
#if defined(__clang__)
#define GEMM_UNROLL _Pragma("clang loop unroll(full)")
#else
#define GEMM_UNROLL _Pragma("GCC unroll 16")
#endif

typedef __m256 g8;

GEMM_INLINE g8 g8_zero(void)
{
    return _mm256_setzero_ps();
}
GEMM_INLINE g8 g8_all(float x)
{
    return _mm256_set1_ps(x);
}
GEMM_INLINE g8 g8_load(const float *p)
{
    return _mm256_loadu_ps(p);
}
GEMM_INLINE void g8_store(float *p, g8 x)
{
    _mm256_storeu_ps(p, x);
}
GEMM_INLINE g8 g8_add(g8 a, g8 b)
{
    return _mm256_add_ps(a, b);
}
GEMM_INLINE g8 g8_fma(g8 a, g8 b, g8 c)
{
    return _mm256_fmadd_ps(a, b, c);
}

#if defined(__AVX512F__)

typedef __m512 gv;
#define GV 16

GEMM_INLINE gv gv_zero(void)
{
    return _mm512_setzero_ps();
}
GEMM_INLINE gv gv_all(float x)
{
    return _mm512_set1_ps(x);
}
GEMM_INLINE gv gv_load(const float *p)
{
    return _mm512_loadu_ps(p);
}
GEMM_INLINE void gv_store(float *p, gv x)
{
    _mm512_storeu_ps(p, x);
}
GEMM_INLINE gv gv_add(gv a, gv b)
{
    return _mm512_add_ps(a, b);
}
GEMM_INLINE gv gv_fma(gv a, gv b, gv c)
{
    return _mm512_fmadd_ps(a, b, c);
}

/* The first n of GV elements, 0 <= n; the others are read as 0 and not written. */
GEMM_INLINE gv gv_load_some(const float *p, int64_t n)
{
    return _mm512_maskz_loadu_ps((__mmask16)(n >= GV ? 0xffffu : (1u << n) - 1u), p);
}

GEMM_INLINE void gv_store_some(float *p, gv x, int64_t n)
{
    _mm512_mask_storeu_ps(p, (__mmask16)(n >= GV ? 0xffffu : (1u << n) - 1u), x);
}

#elif defined(__AVX2__)

typedef __m256 gv;
#define GV 8

GEMM_INLINE gv gv_zero(void)
{
    return _mm256_setzero_ps();
}
GEMM_INLINE gv gv_all(float x)
{
    return _mm256_set1_ps(x);
}
GEMM_INLINE gv gv_load(const float *p)
{
    return _mm256_loadu_ps(p);
}
GEMM_INLINE void gv_store(float *p, gv x)
{
    _mm256_storeu_ps(p, x);
}
GEMM_INLINE gv gv_add(gv a, gv b)
{
    return _mm256_add_ps(a, b);
}
GEMM_INLINE gv gv_fma(gv a, gv b, gv c)
{
    return _mm256_fmadd_ps(a, b, c);
}

GEMM_INLINE __m256i gv_first(int64_t n)
{
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n >= GV ? GV : (int)n), lane);
}

/* The first n of GV elements, 0 <= n; the others are read as 0 and not written. */
GEMM_INLINE gv gv_load_some(const float *p, int64_t n)
{
    return _mm256_maskload_ps(p, gv_first(n));
}
GEMM_INLINE void gv_store_some(float *p, gv x, int64_t n)
{
    _mm256_maskstore_ps(p, gv_first(n), x);
}

#else
#error "the matrix product needs AVX2 or AVX-512"
#endif

/* p + offset for a prefetch: it may lie outside of the operand. */
GEMM_INLINE const float *gemm_offset(const float *p, int64_t offset)
{
    return (const float *)((uintptr_t)p + (uintptr_t)(offset * (int64_t)sizeof(float)));
}

/* Fetches the line of p[offset] into the second-level cache. */
GEMM_INLINE void gemm_prefetch(const float *p, int64_t offset)
{
    _mm_prefetch((const char *)gemm_offset(p, offset), _MM_HINT_T1);
}

/* Hides where p comes from: the compiler then forms the addresses of rows by adding strides to p, as an x86 load can,
 * instead of keeping a pointer for each row and running out of registers. */
GEMM_INLINE const float *gemm_opaque(const float *p)
{
    __asm__("" : "+r"(p));
    return p;
}

/* Four columns of eight rows that are `stride` apart: t[q] = x[0..7][q]. Rows r and r + 4 meet in one vector by a load
 * with insertion, so that what is left are 4x4 transposes within lanes. */
GEMM_INLINE void g8_transpose_4(const float *x, int64_t stride, g8 t[4])
{
    const float *x4 = gemm_opaque(x + 4 * stride);
    g8 pair[4];
    GEMM_UNROLL
    for (int r = 0; r < 4; r++) {
        pair[r] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(x + r * stride)),
                                       _mm_loadu_ps(x4 + r * stride), 1);
    }
    const g8 low01 = _mm256_unpacklo_ps(pair[0], pair[1]), high01 = _mm256_unpackhi_ps(pair[0], pair[1]);
    const g8 low23 = _mm256_unpacklo_ps(pair[2], pair[3]), high23 = _mm256_unpackhi_ps(pair[2], pair[3]);
    t[0] = _mm256_shuffle_ps(low01, low23, 0x44);
    t[1] = _mm256_shuffle_ps(low01, low23, 0xee);
    t[2] = _mm256_shuffle_ps(high01, high23, 0x44);
    t[3] = _mm256_shuffle_ps(high01, high23, 0xee);
}

#endif
