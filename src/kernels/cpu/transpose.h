/* transpose.h - transposes matrices of floats: tiles of 8 rows by 4 columns in registers, the edges element by element. */
#ifndef KR_KERNELS_CPU_TRANSPOSE_H
#define KR_KERNELS_CPU_TRANSPOSE_H

#include "kernels/cpu/gemm_vec.h"

/* y[k][i] = x[i][k] for i < rows, k < n. */
static inline void kr_transpose(const float *x, int64_t x_row, int64_t rows, int64_t n, float *y, int64_t y_row)
{
    const int64_t eights = rows / 8 * 8, fours = n / 4 * 4;
    for (int64_t i = 0; i < eights; i += 8) {
        for (int64_t k = 0; k < fours; k += 4) {
            g8 t[4];
            g8_transpose_4(x + i * x_row + k, x_row, t);
            for (int q = 0; q < 4; q++) g8_store(y + (k + q) * y_row + i, t[q]);
        }
        for (int64_t k = fours; k < n; k++)
            for (int64_t q = 0; q < 8; q++) y[k * y_row + i + q] = x[(i + q) * x_row + k];
    }
    for (int64_t i = eights; i < rows; i++)
        for (int64_t k = 0; k < n; k++) y[k * y_row + i] = x[i * x_row + k];
}

#endif
