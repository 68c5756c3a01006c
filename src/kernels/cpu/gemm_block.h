/* gemm_block.h - a block of C, GEMM_KC steps of k at most, by one task: tiles of rows times panels of columns.
 *
 * A tile of A stays in the first-level cache while all panels of B's block, in the second-level cache, are read; C is
 * written along its rows. A tile that cannot be read in place is packed first, once for all panels of the block.
 */
#ifndef KR_KERNELS_CPU_GEMM_BLOCK_H
#define KR_KERNELS_CPU_GEMM_BLOCK_H

#include "kernels/cpu/gemm_pack.h"

/* Columns of a block: its part of B (times GEMM_KC) stays in the second-level cache of processors of that instruction
 * set. */
#if defined(__AVX512F__)
#define GEMM_BLOCK_COLUMNS 512
#else
#define GEMM_BLOCK_COLUMNS 384
#endif

/* GEMM_KC steps of a block's columns of B: panel i is at b + i * panel_step, row stride b_k. */
typedef struct gemm_panels {
    const float *b;
    int64_t b_k, panel_step;
} gemm_panels;

/* Readable in place: only a few of a tile's lines fall into one set of the cache, and few pages are touched. */
static bool gemm_a_in_place(const gemm_problem *p)
{
    if (p->a_k == 1) {
        return p->a_m % 1024 != 0;
    }
    return p->a_m == 1 && p->a_k <= 256 && p->a_k >= -256;
}

/* Packs columns n0..n1-1, steps k0..k0+nk-1 of B into y. */
static gemm_panels gemm_panels_pack(const gemm_problem *p, int64_t k0, int64_t nk, int64_t n0, int64_t n1, float *y)
{
    const gemm_panels panels = { y, GEMM_NR, nk * GEMM_NR };
    for (int64_t n = n0; n < n1; n += GEMM_NR, y += nk * GEMM_NR) {
        const void *b = gemm_b_at(p->b, k0 * p->b_k + n * p->b_n, p->b_dtype);
        gemm_pack_b(b, p->b_k, p->b_n, nk, gemm_min(GEMM_NR, n1 - n), y, p->b_dtype);
    }
    return panels;
}

/* Output of the product of steps k0..: the base enters with the first chain, the others add to C. */
static gemm_out gemm_out_at(const gemm_problem *p, int64_t m, int64_t n, int64_t k0)
{
    return (gemm_out){ p->out.c + m * p->out.c_m + n, p->out.c_m,
                       k0 == 0 && p->out.bias != NULL ? p->out.bias + n : NULL, k0 > 0 || p->out.add_c };
}

/* Operands of one task. */
typedef struct gemm_block {
    const gemm_problem *p;
    int64_t tiles, t0, t1; /* tiles t0..t1-1 of the problem's rows, which are cut evenly into `tiles` */
    int64_t n0, n1;        /* columns */
    int64_t k0, nk;        /* steps; nk <= GEMM_KC */
    gemm_panels panels;    /* of these columns and steps */
    float *scratch;        /* GEMM_A_TILE floats */
} gemm_block;

/* The end of the columns that rows up to m_end - 1 need. */
static int64_t gemm_columns_end(const gemm_problem *p, int64_t m_end, int64_t n1)
{
    return p->symmetric ? gemm_min(n1, p->first_row + m_end) : n1;
}

static void gemm_block_run(const gemm_block *g)
{
    const gemm_problem *p = g->p;
    const bool in_place = gemm_a_in_place(p);
    for (int64_t t = g->t0; t < g->t1; t++) {
        const int64_t m = gemm_part(p->nm, t, g->tiles), nm = gemm_part(p->nm, t + 1, g->tiles) - m;
        const int64_t n_end = gemm_columns_end(p, m + nm, g->n1);
        if (n_end <= g->n0) {
            continue;
        }
        gemm_tile tile = { .nk = g->nk,
                           .a = p->a + m * p->a_m + g->k0 * p->a_k,
                           .a_m = p->a_m,
                           .a_k = p->a_k,
                           .b = g->panels.b,
                           .b_k = g->panels.b_k };
        if (!in_place) {
            gemm_pack_a(tile.a, p->a_m, p->a_k, nm, g->nk, g->scratch);
            tile.a = g->scratch;
            tile.a_m = p->a_m == 1 ? 1 : GEMM_A_ROW;
            tile.a_k = p->a_m == 1 ? GEMM_MR : 1;
        }
        for (int64_t n = g->n0; n < n_end; n += GEMM_NR) {
            tile.nn = gemm_min(GEMM_NR, g->n1 - n);
            tile.out = gemm_out_at(p, m, n, g->k0);
            gemm_tile_for(nm, tile.nn)(&tile);
            tile.b += g->panels.panel_step;
        }
    }
}

#endif
