/* gemm_kernel.h - the innermost part of the matrix product: one tile of C in registers.
 *
 *   A [m k] any strides, read one element at a time      B [k n] columns adjacent, row stride b_k
 *   C [m n] columns adjacent                             m <= GEMM_MR, n <= GEMM_NR
 *
 *   C[m, n] = base[m, n] + sum over k of A[m, k] B[k, n]
 *
 * An element of C is one chain of fused multiply-adds over k in order that starts from 0, whatever the tile's size.
 * A row's bits are therefore independent of its neighbours.
 */
#ifndef KR_KERNELS_CPU_GEMM_KERNEL_H
#define KR_KERNELS_CPU_GEMM_KERNEL_H

#include "kernels/cpu/gemm_b.h"

#include <stdbool.h>
#include <stddef.h>

/* A tile fills the register file: 24 accumulators of 32, or 12 of 16, which hides the latency of two FMA units. */
#if defined(__AVX512F__)
#define GEMM_MR 12
#else
#define GEMM_MR 6
#endif
#define GEMM_NV 2
#define GEMM_NR (GEMM_NV * VF)

/* Output of a tile. base = (C if add_c) + (bias if not NULL). */
typedef struct gemm_out {
    float *c;
    int64_t c_m;
    const float *bias; /* [n] */
    bool add_c;
} gemm_out;

/* One whole product. */
typedef struct gemm_problem {
    int64_t nm, nn, nk;
    const float *a;
    int64_t a_m, a_k;
    const void *b;
    int64_t b_k, b_n;
    kr_dtype b_dtype;
    gemm_out out;
    bool symmetric;    /* panels of columns entirely above the diagonal are skipped */
    int64_t first_row; /* of C: offset of the problem's rows in a symmetric product */
} gemm_problem;

typedef struct gemm_tile {
    int64_t nk, nn;
    const float *a;
    int64_t a_m, a_k;
    const float *b; /* nn rounded up to whole vectors may be read of each row */
    int64_t b_k;
    gemm_out out;
} gemm_tile;

/* Writes a tile with a partial vector of columns or a bias from memory: sum [nm][GEMM_NR]. */
static void gemm_tile_write(const gemm_tile *t, int64_t nm, const float *sum)
{
    for (int64_t m = 0; m < nm; m++) {
        float *c = t->out.c + m * t->out.c_m;
        for (int64_t n = 0; n < t->nn; n += VF) {
            const int64_t some = t->nn - n;
            vf y = vf_load(sum + m * GEMM_NR + n);
            if (t->out.add_c || t->out.bias != NULL) {
                vf base = t->out.add_c ? vf_load_n(c + n, some) : vf_load_n(t->out.bias + n, some);
                if (t->out.add_c && t->out.bias != NULL) {
                    base = vf_add(base, vf_load_n(t->out.bias + n, some));
                }
                y = vf_add(base, y);
            }
            vf_store_n(c + n, some, y);
        }
    }
}

/* nm and nv are constants wherever this is inlined. */
KR_INLINE void gemm_tile_body(const gemm_tile *t, const int nm, const int nv)
{
    vf sum[GEMM_MR][GEMM_NV];
    GEMM_UNROLL
    for (int m = 0; m < nm; m++) {
        const float *c = t->out.c + m * t->out.c_m;
        _mm_prefetch((const char *)c, _MM_HINT_T0);
        _mm_prefetch((const char *)(c + (nv * VF - 1)), _MM_HINT_T0);
        GEMM_UNROLL
        for (int v = 0; v < nv; v++) {
            sum[m][v] = vf_zero();
        }
    }
    const int64_t a_m = t->a_m, a_k = t->a_k, b_k = t->b_k;
    const float *b = t->b;
    /* Rows in threes: x86 addressing reaches base, base + a_m and base + 2 a_m. */
    const float *a[(GEMM_MR + 2) / 3];
    GEMM_UNROLL
    for (int q = 0; q < (nm + 2) / 3; q++) {
        a[q] = t->a + 3 * q * a_m;
    }
    for (int64_t k = 0; k < t->nk; k++) {
        vf row[GEMM_NV];
        GEMM_UNROLL
        for (int v = 0; v < nv; v++) {
            row[v] = vf_load(b + v * VF);
        }
        GEMM_UNROLL
        for (int m = 0; m < nm; m++) {
            const vf x = vf_set1(a[m / 3][(m % 3) * a_m]);
            GEMM_UNROLL
            for (int v = 0; v < nv; v++) {
                sum[m][v] = vf_fma(x, row[v], sum[m][v]);
            }
        }
        b += b_k;
        GEMM_UNROLL
        for (int q = 0; q < (nm + 2) / 3; q++) {
            a[q] += a_k;
        }
    }
    const bool plain = t->nn == nv * VF && t->out.bias == NULL;
    const bool add_c = t->out.add_c;
    float spill[GEMM_MR * GEMM_NR];
    float *y = plain ? t->out.c : spill;
    const int64_t y_m = plain ? t->out.c_m : GEMM_NR;
    GEMM_UNROLL
    for (int m = 0; m < nm; m++) {
        GEMM_UNROLL
        for (int v = 0; v < nv; v++) {
            if (plain && add_c) {
                sum[m][v] = vf_add(vf_load(y + m * y_m + v * VF), sum[m][v]);
            }
            vf_store(y + m * y_m + v * VF, sum[m][v]);
        }
    }
    if (!plain) {
        gemm_tile_write(t, nm, spill);
    }
}

#define GEMM_TILE(nm)                                                                                                  \
    static void gemm_tile_##nm##_1(const gemm_tile *t)                                                                 \
    {                                                                                                                  \
        gemm_tile_body(t, nm, 1);                                                                                      \
    }                                                                                                                  \
    static void gemm_tile_##nm##_2(const gemm_tile *t)                                                                 \
    {                                                                                                                  \
        gemm_tile_body(t, nm, 2);                                                                                      \
    }
GEMM_TILE(1)
GEMM_TILE(2)
GEMM_TILE(3)
GEMM_TILE(4)
GEMM_TILE(5)
GEMM_TILE(6)
#if GEMM_MR == 12
GEMM_TILE(7)
GEMM_TILE(8)
GEMM_TILE(9)
GEMM_TILE(10)
GEMM_TILE(11)
GEMM_TILE(12)
#endif
#undef GEMM_TILE

typedef void gemm_tile_fn(const gemm_tile *t);

/* The kernel for nm rows (1..GEMM_MR) and nn columns (1..GEMM_NR). */
static gemm_tile_fn *gemm_tile_for(int64_t nm, int64_t nn)
{
#define GEMM_TILE(nm) { gemm_tile_##nm##_1, gemm_tile_##nm##_2 },
    static gemm_tile_fn *const table[GEMM_MR][GEMM_NV] = {
        GEMM_TILE(1) GEMM_TILE(2) GEMM_TILE(3) GEMM_TILE(4) GEMM_TILE(5) GEMM_TILE(6)
#if GEMM_MR == 12
            GEMM_TILE(7) GEMM_TILE(8) GEMM_TILE(9) GEMM_TILE(10) GEMM_TILE(11) GEMM_TILE(12)
#endif
    };
#undef GEMM_TILE
    return table[nm - 1][nn > VF];
}

#endif
