/* ssd_copies.h - copies the operands of a chunk into scratch: rows, panels of columns, transposes. */
#ifndef KR_KERNELS_CPU_SSD_COPIES_H
#define KR_KERNELS_CPU_SSD_COPIES_H

#include "kernels/cpu/ssd_gemm.h"
#include "kernels/cpu/transpose.h"

enum { SSD_LINE = 16 }; /* floats of a cache line */

/* y[i] = scale[i] x[i], rows of n columns, padded with zeros to whole vectors; scale NULL is 1. */
static inline void ssd_copy_rows(const float *x, int64_t x_row, const float *scale, int64_t rows, int64_t n, float *y,
                                 int64_t y_row)
{
    for (int64_t i = 0; i < rows; i++) {
        const float *from = x + i * x_row;
        float *to = y + i * y_row;
        vf factor = vf_set1(scale ? scale[i] : 1.0f);
        int64_t k = 0;
        for (; k + VF <= n; k += VF) vf_store(to + k, vf_mul(factor, vf_load(from + k)));
        if (k < n) vf_store(to + k, vf_mul(factor, vf_load_n(from + k, n - k)));
    }
}

/* Rows of n columns into panels of GEMM_NR columns with stride `panel` in floats; the last is padded with zeros. */
static inline void ssd_copy_panels(const float *x, int64_t x_row, int64_t rows, int64_t n, float *y, int64_t panel)
{
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t k = 0; k < n; k += GEMM_NR) {
            const float *from = x + i * x_row + k;
            float *to = y + k / GEMM_NR * panel + i * GEMM_NR;
            if (k + GEMM_NR <= n) {
                for (int q = 0; q < GEMM_NR; q += VF) vf_store(to + q, vf_load(from + q));
            } else {
                for (int q = 0; q < GEMM_NR; q += VF) vf_store(to + q, vf_load_n(from + q, n - k - q));
            }
        }
    }
}

/* Zeros for `count` columns from column `first` on. A product ignores the results there, but stale values may be slow
 * (denormals). */
static inline void ssd_clear_columns(float *y, int64_t y_row, int64_t rows, int64_t first, int64_t count)
{
    for (int64_t i = 0; i < rows; i++) memset(y + i * y_row + first, 0, (size_t)count * sizeof(float));
}

/* A chunk's rows [f r] as [r f], readable from any column in whole vectors: f_line has one spare cache line. */
static inline void ssd_transpose_chunk(const float *x, int64_t x_row, int64_t nf, int64_t n, float *y, int64_t f_line)
{
    kr_transpose(x, x_row, nf, n, y, f_line);
    ssd_clear_columns(y, f_line, n, nf, SSD_LINE);
}

/* Source of the rows of a chunk: nm rows per token of stride `row`, tokens of stride `token`, in floats. With one row
 * per token the row stride is `token`. */
typedef struct ssd_rows_of {
    const float *x;
    int64_t row, token, nm;
} ssd_rows_of;

static inline ssd_rows_of ssd_rows_at(const float *x, int64_t row, int64_t token, int64_t nm)
{
    return (ssd_rows_of){ x, nm == 1 ? token : row, token, nm };
}

/* Number of the nf rows with one stride: all, or those of a token. */
static inline int64_t ssd_run(const ssd_rows_of *from, int64_t nf)
{
    return from->token == from->nm * from->row ? nf : from->nm;
}

/* Row i, the first of its token. */
static inline const float *ssd_row(const ssd_rows_of *from, int64_t i)
{
    return from->x + i / from->nm * from->token;
}

/* ssd_copy_rows of a chunk's nf rows. */
static inline void ssd_fetch_rows(ssd_rows_of from, const float *scale, int64_t nf, int64_t n, float *y, int64_t y_row)
{
    int64_t run = ssd_run(&from, nf);
    for (int64_t i = 0; i < nf; i += run)
        ssd_copy_rows(ssd_row(&from, i), from.row, scale ? scale + i : NULL, run, n, y + i * y_row, y_row);
}

/* ssd_copy_panels of a chunk's nf rows. */
static inline void ssd_fetch_panels(ssd_rows_of from, int64_t nf, int64_t n, float *y, int64_t panel)
{
    int64_t run = ssd_run(&from, nf);
    for (int64_t i = 0; i < nf; i += run) ssd_copy_panels(ssd_row(&from, i), from.row, run, n, y + i * GEMM_NR, panel);
}

/* ssd_transpose_chunk of a chunk's nf rows. */
static inline void ssd_fetch_transposed(ssd_rows_of from, int64_t nf, int64_t n, float *y, int64_t f_line)
{
    int64_t run = ssd_run(&from, nf);
    for (int64_t i = 0; i < nf; i += run) kr_transpose(ssd_row(&from, i), from.row, run, n, y + i, f_line);
    ssd_clear_columns(y, f_line, n, nf, SSD_LINE);
}

/* The columns of panel number `panel` of np. */
static inline int64_t ssd_panel_columns(int64_t np, int64_t panel)
{
    return kr_smaller(GEMM_NR, np - panel * GEMM_NR);
}

/* A matrix [p n] as panels of columns p, each [n][GEMM_NR], with stride `panel` in floats. */
static inline void ssd_transpose_to_panels(const float *x, int64_t x_row, int64_t np, int64_t n, float *y,
                                           int64_t panel)
{
    for (int64_t i = 0; i * GEMM_NR < np; i++) {
        int64_t columns = ssd_panel_columns(np, i);
        kr_transpose(x + i * GEMM_NR * x_row, x_row, columns, n, y + i * panel, GEMM_NR);
        if (columns < GEMM_NR) ssd_clear_columns(y + i * panel, GEMM_NR, n, columns, GEMM_NR - columns);
    }
}

static inline void ssd_scale(float *x, int64_t n, float factor)
{
    vf f = vf_set1(factor);
    int64_t i = 0;
    for (; i + VF <= n; i += VF) vf_store(x + i, vf_mul(f, vf_load(x + i)));
    if (i < n) vf_store_n(x + i, n - i, vf_mul(f, vf_load_n(x + i, n - i)));
}

#endif
