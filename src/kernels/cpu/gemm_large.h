/* gemm_large.h - one large product: all threads pack a part of B into panels, then all multiply blocks of C with it.
 *
 * A part has GEMM_LARGE_STEPS steps of k at most and as many columns as fit 8 MiB, so that it stays in a shared cache.
 * A block of C takes all chains of the part before the next block begins: it stays in the second-level cache meanwhile.
 */
#ifndef KR_KERNELS_CPU_GEMM_LARGE_H
#define KR_KERNELS_CPU_GEMM_LARGE_H

#include "kernels/cpu/gemm_block.h"
#include "kernels/kernels.h"

#define GEMM_LARGE_FLOATS (1 << 21) /* of B in one part */
#define GEMM_LARGE_STEPS (16 * GEMM_KC)
#define GEMM_LARGE_ROWS 192   /* of a block */
#define GEMM_LARGE_TASKS 32   /* at least, if blocks of 48 x 64 allow it: enough to balance a few threads */
#define GEMM_PACK_COLUMNS 128 /* in one packing task */

/* One part: columns n0..n1-1, steps k0..k1-1. */
typedef struct gemm_large {
    const gemm_problem *p;
    int64_t n0, n1, k0, k1;
    int64_t tiles, m_blocks, n_blocks;
    float *b;      /* for every GEMM_KC steps, panels [k][GEMM_NR] */
    float *a_tile; /* one for each worker */
} gemm_large;

/* Panels of a part, and the address of those of step k and column panel i. */
static int64_t gemm_large_panels(const gemm_large *g)
{
    return gemm_ceil_div(g->n1 - g->n0, GEMM_NR);
}

static float *gemm_large_b(const gemm_large *g, int64_t k, int64_t i)
{
    return g->b + (k - g->k0) * gemm_large_panels(g) * GEMM_NR + i * gemm_min(GEMM_KC, g->k1 - k) * GEMM_NR;
}

static void gemm_large_pack(void *arg, int64_t index, int worker)
{
    const gemm_large *g = arg;
    const int64_t groups = gemm_ceil_div(g->n1 - g->n0, GEMM_PACK_COLUMNS);
    const int64_t k = g->k0 + index / groups * GEMM_KC, n = g->n0 + index % groups * GEMM_PACK_COLUMNS;
    (void)worker;
    gemm_panels_pack(g->p, k, gemm_min(GEMM_KC, g->k1 - k), n, gemm_min(n + GEMM_PACK_COLUMNS, g->n1),
                     gemm_large_b(g, k, (n - g->n0) / GEMM_NR));
}

/* Consecutive tasks have the same columns: their part of B is already cached. */
static void gemm_large_multiply(void *arg, int64_t index, int worker)
{
    const gemm_large *g = arg;
    const int64_t im = index % g->m_blocks, in = index / g->m_blocks;
    const int64_t t0 = gemm_part(g->tiles, im, g->m_blocks), t1 = gemm_part(g->tiles, im + 1, g->m_blocks);
    const int64_t i0 = gemm_part(gemm_large_panels(g), in, g->n_blocks);
    const int64_t i1 = gemm_part(gemm_large_panels(g), in + 1, g->n_blocks);
    gemm_block block = { .p = g->p,
                         .tiles = g->tiles,
                         .t0 = t0,
                         .t1 = t1,
                         .n0 = g->n0 + i0 * GEMM_NR,
                         .n1 = gemm_min(g->n0 + i1 * GEMM_NR, g->n1),
                         .scratch = g->a_tile + worker * GEMM_A_TILE };
    for (int64_t k = g->k0; k < g->k1; k += GEMM_KC) {
        block.k0 = k;
        block.nk = gemm_min(GEMM_KC, g->k1 - k);
        block.panels = (gemm_panels){ gemm_large_b(g, k, i0), GEMM_NR, block.nk * GEMM_NR };
        gemm_block_run(&block);
    }
}

/* Number of blocks of rows and columns: by shape alone. Rows are split first, since a tile of A that must be packed is
 * packed once for all columns of a block. */
static void gemm_large_cut(gemm_large *g)
{
    int64_t rows = GEMM_LARGE_ROWS, columns = GEMM_BLOCK_COLUMNS;
    for (;;) {
        g->m_blocks = gemm_ceil_div(g->tiles, rows / GEMM_MR);
        g->n_blocks = gemm_ceil_div(gemm_large_panels(g), columns / GEMM_NR);
        if (g->m_blocks * g->n_blocks >= GEMM_LARGE_TASKS || columns <= 64) {
            return;
        }
        if (rows > 48) {
            rows /= 2;
        } else {
            columns /= 2;
        }
    }
}

/* Columns of a part, whole panels. */
static int64_t gemm_large_columns(const gemm_problem *p)
{
    const int64_t most = GEMM_LARGE_FLOATS / gemm_min(p->nk, GEMM_LARGE_STEPS);
    const int64_t even = gemm_ceil_div(p->nn, gemm_ceil_div(p->nn, most));
    return gemm_ceil_div(even, GEMM_NR) * GEMM_NR;
}

/* Scratch in floats. */
static int64_t gemm_large_scratch(const gemm_problem *p, int workers)
{
    return gemm_large_columns(p) * gemm_min(p->nk, GEMM_LARGE_STEPS) + workers * GEMM_A_TILE;
}

static void gemm_large_run(const gemm_problem *p, kr_pool *pool, float *scratch)
{
    const int64_t columns = gemm_large_columns(p);
    gemm_large g = { .p = p, .tiles = gemm_ceil_div(p->nm, GEMM_MR), .b = scratch };
    g.a_tile = scratch + columns * gemm_min(p->nk, GEMM_LARGE_STEPS);
    for (g.n0 = 0; g.n0 < p->nn; g.n0 = g.n1) {
        g.n1 = gemm_min(g.n0 + columns, p->nn);
        gemm_large_cut(&g);
        for (g.k0 = 0; g.k0 < p->nk; g.k0 = g.k1) {
            g.k1 = gemm_min(g.k0 + GEMM_LARGE_STEPS, p->nk);
            kr_pool_run(pool, gemm_ceil_div(g.n1 - g.n0, GEMM_PACK_COLUMNS) * gemm_ceil_div(g.k1 - g.k0, GEMM_KC),
                        gemm_large_pack, &g);
            kr_pool_run(pool, g.m_blocks * g.n_blocks, gemm_large_multiply, &g);
        }
    }
}

#endif
