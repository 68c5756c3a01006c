/* gemm_pack.h - packs blocks of A and B for the tile kernel. Values do not change: 16-bit floats of B are widened,
 * which is exact.
 *
 *   B [k n] -> panels of GEMM_NR columns, each [k][GEMM_NR]; missing columns of the last one are unspecified
 *   A [m k] -> a tile of up to GEMM_MR rows: [k][GEMM_MR] where A's rows are adjacent (a_m = 1), else
 *              [row][GEMM_A_ROW]. A keeps its orientation, since the kernel reads it by strides.
 */
#ifndef KR_KERNELS_CPU_GEMM_PACK_H
#define KR_KERNELS_CPU_GEMM_PACK_H

#include "kernels/cpu/gemm_kernel.h"

/* One cache line more than a chain: rows of a tile then start in different sets of the cache. */
#define GEMM_A_ROW (GEMM_KC + 16)
#define GEMM_A_TILE (GEMM_MR * GEMM_A_ROW)

KR_INLINE int64_t gemm_min(int64_t a, int64_t b)
{
    return a < b ? a : b;
}
KR_INLINE int64_t gemm_max(int64_t a, int64_t b)
{
    return a > b ? a : b;
}
KR_INLINE int64_t gemm_ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* Start of part i of n equal parts of `whole`. */
KR_INLINE int64_t gemm_part(int64_t whole, int64_t i, int64_t n)
{
    return whole * i / n;
}

/* Eight columns of B, each adjacent along k: y[k][GEMM_NR] gets columns 0..7. */
KR_INLINE void gemm_pack_b8_transposed(const void *b, int64_t b_n, int64_t nk, float *y, const kr_dtype dtype)
{
    const int steps = GEMM_B_STEPS(dtype);
    int64_t k = 0;
    for (; k + steps <= nk; k += steps) {
        g8 t[8];
        gemm_b_transpose(gemm_b_at(b, k, dtype), b_n, t, dtype);
        GEMM_UNROLL
        for (int q = 0; q < steps; q++) {
            g8_store(y + (k + q) * GEMM_NR, t[q]);
        }
    }
    for (; k < nk; k++) {
        for (int n = 0; n < 8; n++) {
            y[k * GEMM_NR + n] = gemm_b_one(b, n * b_n + k, dtype);
        }
    }
}

static void gemm_pack_b_strided(const void *b, int64_t b_k, int64_t b_n, int64_t nk, int64_t nn, float *y,
                                kr_dtype dtype)
{
    for (int64_t k = 0; k < nk; k++) {
        for (int64_t n = 0; n < nn; n++) {
            y[k * GEMM_NR + n] = gemm_b_one(b, k * b_k + n * b_n, dtype);
        }
    }
}

/* Zeros for the columns nn.. of a panel, so that unused lanes of a tile do no slow arithmetic (denormals) on stale
 * values. */
static void gemm_pad_b(int64_t nk, int64_t nn, float *y)
{
    for (int64_t k = 0; k < nk; k++) {
        for (int64_t n = nn; n < GEMM_NR; n++) {
            y[k * GEMM_NR + n] = 0.0f;
        }
    }
}

/* One panel: nn <= GEMM_NR columns of B [k n], nk <= GEMM_KC. dtype is a constant wherever this is inlined. */
KR_INLINE void gemm_pack_b_as(const void *b, int64_t b_k, int64_t b_n, int64_t nk, int64_t nn, float *y,
                              const kr_dtype dtype)
{
    if (nn < GEMM_NR) {
        gemm_pad_b(nk, nn, y);
    }
    if (b_n == 1) {
        for (int64_t k = 0; k < nk; k++) {
            if (nn == GEMM_NR) {
                GEMM_UNROLL
                for (int v = 0; v < GEMM_NV; v++) {
                    vf_store(y + k * GEMM_NR + v * VF, gemm_b_load(b, k * b_k + v * VF, dtype));
                }
            } else {
                for (int64_t n = 0; n < nn; n++) {
                    y[k * GEMM_NR + n] = gemm_b_one(b, k * b_k + n, dtype);
                }
            }
        }
        return;
    }
    if (b_k != 1) {
        gemm_pack_b_strided(b, b_k, b_n, nk, nn, y, dtype);
        return;
    }
    /* Sixteen steps of k at a time: whole cache lines of floats are read, and few lines are written at a time. */
    const int64_t whole = nn / 8 * 8;
    for (int64_t k = 0; k < nk; k += 16) {
        const int64_t some = gemm_min(16, nk - k);
        for (int64_t n = 0; n < whole; n += 8) {
            gemm_pack_b8_transposed(gemm_b_at(b, n * b_n + k, dtype), b_n, some, y + k * GEMM_NR + n, dtype);
        }
    }
    gemm_pack_b_strided(gemm_b_at(b, whole * b_n, dtype), 1, b_n, nk, nn - whole, y + whole, dtype);
}

static void gemm_pack_b(const void *b, int64_t b_k, int64_t b_n, int64_t nk, int64_t nn, float *y, kr_dtype dtype)
{
    if (dtype == KR_DTYPE_BF16) {
        gemm_pack_b_as(b, b_k, b_n, nk, nn, y, KR_DTYPE_BF16);
    } else if (dtype == KR_DTYPE_F16) {
        gemm_pack_b_as(b, b_k, b_n, nk, nn, y, KR_DTYPE_F16);
    } else {
        gemm_pack_b_as(b, b_k, b_n, nk, nn, y, KR_DTYPE_F32);
    }
}

/* One tile: nm <= GEMM_MR rows of A [m k], nk <= GEMM_KC. */
static void gemm_pack_a(const float *a, int64_t a_m, int64_t a_k, int64_t nm, int64_t nk, float *y)
{
    if (a_m == 1) {
        /* Whole vectors are stored; the next step overwrites the excess. */
        for (int64_t k = 0; k < nk; k++) {
            vf_store(y + k * GEMM_MR, vf_load_n(a + k * a_k, nm));
        }
        return;
    }
    for (int64_t m = 0; m < nm; m++) {
        const float *row = a + m * a_m;
        float *to = y + m * GEMM_A_ROW;
        int64_t k = 0;
        if (a_k == 1) {
            for (; k + VF <= nk; k += VF) {
                vf_store(to + k, vf_load(row + k));
            }
        }
        for (; k < nk; k++) {
            to[k] = row[k * a_k];
        }
    }
}

#endif
