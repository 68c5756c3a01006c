/* reduce_ref.c - sums and maxima along one axis.
 *
 *   x [no nr ni]    y [no ni]
 *   sum:     y[o, i] = alpha * sum over r of x[o, r, i]
 *   max:     y[o, i] = max over r of x[o, r, i]; NaN if any is NaN
 *   max_bwd: g_x[o, r, i] = g_y[o, i] at the first r of the maximum (or of the first NaN), else 0
 *   argmax:  y[o, i] = that r
 */
#include "kernels/ref/ref.h"

#include <math.h>

void KR_REF(sum)(const kr_reduce_args *a)
{
    const real *x = a->x;
    real *y = a->y;
    for (int64_t o = 0; o < a->no; o++) {
        for (int64_t i = 0; i < a->ni; i++) {
            double sum = 0;
            for (int64_t r = 0; r < a->nr; r++) sum += (double)x[(o * a->nr + r) * a->ni + i];
            y[o * a->ni + i] = (real)(a->alpha * sum);
        }
    }
}

/* Index of the first maximum of x[r * ni], or of the first NaN. */
static int64_t index_of_max(const real *x, int64_t nr, int64_t ni)
{
    int64_t index = 0;
    for (int64_t r = 0; r < nr; r++) {
        if (isnan(x[r * ni])) return r;
        if (x[r * ni] > x[index * ni]) index = r;
    }
    return index;
}

void KR_REF(max)(const kr_reduce_args *a)
{
    const real *x_ori = a->x;
    real *y = a->y;
    for (int64_t o = 0; o < a->no; o++) {
        for (int64_t i = 0; i < a->ni; i++) {
            const real *x_r = x_ori + o * a->nr * a->ni + i;
            y[o * a->ni + i] = x_r[index_of_max(x_r, a->nr, a->ni) * a->ni];
        }
    }
}

void KR_REF(max_bwd)(const kr_max_bwd_args *a)
{
    const real *x_ori = a->x, *g_y = a->g_y;
    real *g_x_ori = a->g_x;
    for (int64_t o = 0; o < a->no; o++) {
        for (int64_t i = 0; i < a->ni; i++) {
            int64_t start = o * a->nr * a->ni + i;
            int64_t index = index_of_max(x_ori + start, a->nr, a->ni);
            for (int64_t r = 0; r < a->nr; r++) g_x_ori[start + r * a->ni] = r == index ? g_y[o * a->ni + i] : (real)0;
        }
    }
}

void KR_REF(argmax)(const kr_argmax_args *a)
{
    const real *x = a->x;
    for (int64_t o = 0; o < a->no; o++)
        for (int64_t i = 0; i < a->ni; i++) a->y[o * a->ni + i] = index_of_max(x + o * a->nr * a->ni + i, a->nr, a->ni);
}
