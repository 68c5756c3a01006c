/* gemm_vec.h - additions to vec.h for the matrix product: vectors of eight in either instruction set, prefetches,
 * unrolling.
 *
 * g8 is always eight floats: transposes of 8 rows run in half-width vectors in both sets, because their shuffles stay
 * inside 128-bit lanes and issue twice a cycle.
 */
#ifndef KR_KERNELS_CPU_GEMM_VEC_H
#define KR_KERNELS_CPU_GEMM_VEC_H

#include "kernels/cpu/vec.h"

#include <immintrin.h>
#include <stdint.h>

/* Terms of one chain: a tile's columns of B (GEMM_KC x GEMM_NR floats) stay in the first-level cache. It is part of
 * the definition of the result: changing it changes bits. */
#define GEMM_KC 256

/* The loops over a tile's rows and columns must be unrolled, so that accumulators stay in registers. */
#if defined(__clang__)
#define GEMM_UNROLL _Pragma("clang loop unroll(full)")
#else
#define GEMM_UNROLL _Pragma("GCC unroll 16")
#endif

typedef __m256 g8;

KR_INLINE g8 g8_zero(void)
{
    return _mm256_setzero_ps();
}
KR_INLINE g8 g8_all(float x)
{
    return _mm256_set1_ps(x);
}
KR_INLINE g8 g8_load(const float *p)
{
    return _mm256_loadu_ps(p);
}
KR_INLINE void g8_store(float *p, g8 x)
{
    _mm256_storeu_ps(p, x);
}
KR_INLINE g8 g8_add(g8 a, g8 b)
{
    return _mm256_add_ps(a, b);
}
KR_INLINE g8 g8_fma(g8 a, g8 b, g8 c)
{
    return _mm256_fmadd_ps(a, b, c);
}

/* Prefetches the line of p into the second-level cache; p may be outside of any operand. */
KR_INLINE void gemm_prefetch(const void *p)
{
    _mm_prefetch((const char *)p, _MM_HINT_T1);
}

/* Hides the origin of p: the compiler then forms the addresses of rows by adding strides to p, as an x86 load can,
 * instead of keeping a pointer for each row and running out of registers. */
KR_INLINE const void *gemm_opaque(const void *p)
{
    __asm__("" : "+r"(p));
    return p;
}

/* 4x4 transposes within lanes: t[q] has element q of the four rows of either lane. */
KR_INLINE void g8_transpose_pairs(const g8 pair[4], g8 t[4])
{
    const g8 low01 = _mm256_unpacklo_ps(pair[0], pair[1]), high01 = _mm256_unpackhi_ps(pair[0], pair[1]);
    const g8 low23 = _mm256_unpacklo_ps(pair[2], pair[3]), high23 = _mm256_unpackhi_ps(pair[2], pair[3]);
    t[0] = _mm256_shuffle_ps(low01, low23, 0x44);
    t[1] = _mm256_shuffle_ps(low01, low23, 0xee);
    t[2] = _mm256_shuffle_ps(high01, high23, 0x44);
    t[3] = _mm256_shuffle_ps(high01, high23, 0xee);
}

/* Four columns of eight rows of stride `stride`: t[q] = x[0..7][q]. Rows r and r + 4 are loaded into one vector with
 * insertion, so that only 4x4 transposes within lanes remain. */
KR_INLINE void g8_transpose_4(const float *x, int64_t stride, g8 t[4])
{
    const float *x4 = gemm_opaque(x + 4 * stride);
    g8 pair[4];
    GEMM_UNROLL
    for (int r = 0; r < 4; r++) {
        pair[r] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(x + r * stride)),
                                       _mm_loadu_ps(x4 + r * stride), 1);
    }
    g8_transpose_pairs(pair, t);
}

#endif
