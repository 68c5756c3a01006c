/* gemm_small.h - a part of C by one task: B is read in place, or packed into the worker's scratch. */
#ifndef KR_KERNELS_CPU_GEMM_SMALL_H
#define KR_KERNELS_CPU_GEMM_SMALL_H

#include "kernels/cpu/gemm_block.h"

/* Columns per pass, and scratch of a worker in floats: these columns of B and one tile of A. */
#define GEMM_SMALL_COLUMNS 128
#define GEMM_SMALL_SCRATCH (GEMM_KC * GEMM_SMALL_COLUMNS + GEMM_A_TILE)

/* B's rows can be read in place if they are floats with a small stride and vectors are whole. */
static bool gemm_b_in_place(const gemm_problem *p, int64_t n0, int64_t n1)
{
    return !p->b_dtype && p->b_n == 1 && p->b_k <= 256 && p->b_k >= -256 && (n1 - n0) % VF == 0;
}

/* Rows from m0 to m1-1 and columns n0..n1-1 of C. */
static void gemm_small(const gemm_problem *whole, int64_t m0, int64_t m1, int64_t n0, int64_t n1, float *scratch)
{
    gemm_problem p = *whole;
    p.nm = m1 - m0;
    p.a += m0 * p.a_m;
    p.out.c += m0 * p.out.c_m;
    p.first_row += m0;
    n1 = gemm_columns_end(&p, p.nm, n1);
    const int64_t tiles = gemm_ceil_div(p.nm, GEMM_MR);
    for (int64_t n = n0; n < n1; n += GEMM_SMALL_COLUMNS) {
        const int64_t end = gemm_min(n + GEMM_SMALL_COLUMNS, n1);
        const bool in_place = gemm_b_in_place(&p, n, end);
        for (int64_t k0 = 0; k0 < p.nk; k0 += GEMM_KC) {
            const int64_t nk = gemm_min(GEMM_KC, p.nk - k0);
            gemm_block block = { .p = &p,
                                 .tiles = tiles,
                                 .t0 = 0,
                                 .t1 = tiles,
                                 .n0 = n,
                                 .n1 = end,
                                 .k0 = k0,
                                 .nk = nk,
                                 .scratch = scratch };
            if (in_place) {
                block.panels = (gemm_panels){ (const float *)p.b + k0 * p.b_k + n, p.b_k, GEMM_NR };
            } else {
                block.panels = gemm_panels_pack(&p, k0, nk, n, end, scratch + GEMM_A_TILE);
            }
            gemm_block_run(&block);
        }
    }
}

#endif
