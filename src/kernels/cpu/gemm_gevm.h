/* gemm_gevm.h - products with up to GEMM_GEMV_ROWS rows of A where B is adjacent along n: rows of B are read once, in
 * place, and added to sums that stay in the first-level cache.
 *
 *   A [m k] any strides      B [k n], b_n = 1      C [m n] columns adjacent
 */
#ifndef KR_KERNELS_CPU_GEMM_GEVM_H
#define KR_KERNELS_CPU_GEMM_GEVM_H

#include "kernels/cpu/gemm_gemv.h"

#define GEMM_GEVM_COLUMNS 512 /* per pass: their sums and eight rows of B fit the first-level cache */
#define GEMM_GEVM_LEAST 256   /* per task: long sequential runs are faster */

/* sum[n] += a[q] b[q][n] for eight rows of B, in order of q; prefetches the next eight if `fetch`. fetch and dtype are
 * constants. */
KR_INLINE void gemm_gevm_8(const float *a, int64_t a_k, const void *b, int64_t b_k, int64_t nn, float *sum,
                           const bool fetch, const kr_storage_dtype dtype)
{
    vf x[8];
    GEMM_UNROLL
    for (int q = 0; q < 8; q++) {
        x[q] = vf_set1(a[q * a_k]);
    }
    int64_t n = 0;
    for (; n + VF <= nn; n += VF) {
        vf y = vf_load(sum + n);
        GEMM_UNROLL
        for (int q = 0; q < 8; q++) {
            if (fetch && n % GEMM_B_LINE(dtype) == 0) {
                gemm_prefetch(gemm_b_at(b, (8 + q) * b_k + n, dtype));
            }
            y = vf_fma(x[q], gemm_b_load(b, q * b_k + n, dtype), y);
        }
        vf_store(sum + n, y);
    }
    if (n < nn) {
        vf y = vf_load_n(sum + n, nn - n);
        GEMM_UNROLL
        for (int q = 0; q < 8; q++) {
            y = vf_fma(x[q], gemm_b_load_n(b, q * b_k + n, nn - n, dtype), y);
        }
        vf_store_n(sum + n, nn - n, y);
    }
}

/* One chain for nn <= GEMM_GEVM_COLUMNS columns from n0 on, k0..k1-1, added to base. dtype is a constant. */
KR_INLINE void gemm_gevm_chain(const gemm_problem *g, int64_t n0, int64_t nn, int64_t k0, int64_t k1,
                               const kr_storage_dtype dtype)
{
    float sum[GEMM_GEMV_ROWS][GEMM_GEVM_COLUMNS];
    for (int64_t m = 0; m < g->nm; m++) {
        for (int64_t n = 0; n < nn; n++) {
            sum[m][n] = 0.0f;
        }
    }
    int64_t k = k0;
    for (; k + 8 <= k1; k += 8) {
        const float *a = g->a + k * g->a_k;
        const void *b = gemm_b_at(g->b, k * g->b_k + n0, dtype);
        gemm_gevm_8(a, g->a_k, b, g->b_k, nn, sum[0], true, dtype);
        for (int64_t m = 1; m < g->nm; m++) {
            gemm_gevm_8(a + m * g->a_m, g->a_k, b, g->b_k, nn, sum[m], false, dtype);
        }
    }
    for (; k < k1; k++) {
        for (int64_t m = 0; m < g->nm; m++) {
            const vf x = vf_set1(g->a[m * g->a_m + k * g->a_k]);
            for (int64_t n = 0; n < nn; n += VF) {
                const vf y = gemm_b_load_n(g->b, k * g->b_k + n0 + n, nn - n, dtype);
                vf_store_n(sum[m] + n, nn - n, vf_fma(x, y, vf_load_n(sum[m] + n, nn - n)));
            }
        }
    }
    for (int64_t m = 0; m < g->nm; m++) {
        float *c = g->out.c + m * g->out.c_m + n0;
        const float *bias = k0 == 0 && g->out.bias != NULL ? g->out.bias + n0 : NULL;
        const bool add_c = k0 > 0 || g->out.add_c;
        for (int64_t n = 0; n < nn; n++) {
            const float base = !add_c ? (bias != NULL ? bias[n] : 0.0f) : (bias != NULL ? c[n] + bias[n] : c[n]);
            c[n] = add_c || bias != NULL ? base + sum[m][n] : sum[m][n];
        }
    }
}

static void gemm_gevm_chain_f32(const gemm_problem *g, int64_t n0, int64_t nn, int64_t k0, int64_t k1)
{
    gemm_gevm_chain(g, n0, nn, k0, k1, KR_STORAGE_NATIVE);
}

static void gemm_gevm_chain_bf16(const gemm_problem *g, int64_t n0, int64_t nn, int64_t k0, int64_t k1)
{
    gemm_gevm_chain(g, n0, nn, k0, k1, KR_STORAGE_BF16);
}

static void gemm_gevm_chain_f16(const gemm_problem *g, int64_t n0, int64_t nn, int64_t k0, int64_t k1)
{
    gemm_gevm_chain(g, n0, nn, k0, k1, KR_STORAGE_F16);
}

/* Columns from..to-1 of C; b_n = 1. */
static void gemm_gevm_run(const gemm_problem *g, int64_t from, int64_t to)
{
    static void (*const chains[])(const gemm_problem *, int64_t, int64_t, int64_t,
                                  int64_t) = { [KR_STORAGE_NATIVE] = gemm_gevm_chain_f32,
                                               [KR_STORAGE_BF16] = gemm_gevm_chain_bf16,
                                               [KR_STORAGE_F16] = gemm_gevm_chain_f16 };
    for (int64_t n = from; n < to; n += GEMM_GEVM_COLUMNS) {
        for (int64_t k = 0; k < g->nk; k += GEMM_KC) {
            chains[g->b_dtype](g, n, gemm_min(GEMM_GEVM_COLUMNS, to - n), k, gemm_min(k + GEMM_KC, g->nk));
        }
    }
}

#endif
