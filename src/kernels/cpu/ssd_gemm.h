/* ssd_gemm.h - the small matrix products of the state space core, on the register tiles of gemm_kernel.h.
 *
 *   C[m, n] = (C[m, n] if add) + sum over k of A[m, k] B[k, n]
 *
 * A has any strides. B and C have adjacent columns inside a panel of GEMM_NR columns; panels have any stride: GEMM_NR
 * in a plain matrix, or one panel after the other, each [row][GEMM_NR]. B is read in whole vectors, so its rows are
 * padded to a multiple of VF. Rows are split evenly into tiles by ssd_tiles and ssd_tile_begin.
 */
#ifndef KR_KERNELS_CPU_SSD_GEMM_H
#define KR_KERNELS_CPU_SSD_GEMM_H

#include "kernels/cpu/gemm_kernel.h"
#include "kernels/cpu/ranges.h"

/* A, with its strides along rows and along k. */
typedef struct ssd_left {
    const float *x;
    int64_t row, step;
} ssd_left;

typedef struct ssd_right {
    const float *x;
    int64_t row, panel;
} ssd_right;

typedef struct ssd_out {
    float *x;
    int64_t row, panel;
    bool add;
} ssd_out;

static inline ssd_left ssd_rows(const float *x, int64_t row)
{
    return (ssd_left){ x, row, 1 };
}

/* The transpose of a matrix with row stride `row`. */
static inline ssd_left ssd_columns(const float *x, int64_t row)
{
    return (ssd_left){ x, 1, row };
}

static inline ssd_right ssd_matrix(const float *x, int64_t row)
{
    return (ssd_right){ x, row, GEMM_NR };
}

static inline ssd_right ssd_panels(const float *x, int64_t panel)
{
    return (ssd_right){ x, GEMM_NR, panel };
}

static inline ssd_out ssd_to(float *x, int64_t row)
{
    return (ssd_out){ x, row, GEMM_NR, false };
}

static inline ssd_out ssd_add_to(float *x, int64_t row)
{
    return (ssd_out){ x, row, GEMM_NR, true };
}

static inline int64_t ssd_tiles(int64_t nm)
{
    return kr_blocks(nm, GEMM_MR);
}

static inline int64_t ssd_tile_begin(int64_t nm, int64_t tile)
{
    return nm * tile / ssd_tiles(nm);
}

static void ssd_multiply(int64_t nm, int64_t nn, int64_t nk, ssd_left a, ssd_right b, ssd_out c)
{
    for (int64_t i = 0; i < ssd_tiles(nm); i++) {
        int64_t m = ssd_tile_begin(nm, i), rows = ssd_tile_begin(nm, i + 1) - m;
        gemm_tile tile = { .nk = nk, .a = a.x + m * a.row, .a_m = a.row, .a_k = a.step, .b = b.x, .b_k = b.row };
        tile.out = (gemm_out){ c.x + m * c.row, c.row, NULL, c.add };
        for (int64_t n = 0; n < nn; n += GEMM_NR) {
            tile.nn = kr_smaller(GEMM_NR, nn - n);
            gemm_tile_for(rows, tile.nn)(&tile);
            tile.b += b.panel;
            tile.out.c += c.panel;
        }
    }
}

#endif
