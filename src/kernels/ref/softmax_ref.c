/* softmax_ref.c - softmax and its logarithm over the last axis.
 *
 *   x, y [no nr]    m = max(x);  softmax: y = e^(x-m) / sum e^(x-m);  logarithm: y = x - m - ln sum e^(x-m)
 *   backward, softmax: g_x = y (g_y - <y, g_y>);   logarithm: g_x = g_y - e^y sum(g_y)
 */
#include "kernels/ref/ref.h"

#include <math.h>

void KR_REF(softmax)(const kr_softmax_args *a)
{
    for (int64_t o = 0; o < a->no; o++) {
        const real *x = (const real *)a->x + o * a->nr;
        real *y = (real *)a->y + o * a->nr;
        double max = -INFINITY, sum = 0;
        for (int64_t r = 0; r < a->nr; r++)
            if ((double)x[r] > max) max = (double)x[r];
        for (int64_t r = 0; r < a->nr; r++) sum += exp((double)x[r] - max);
        for (int64_t r = 0; r < a->nr; r++) {
            double shifted = (double)x[r] - max;
            y[r] = (real)(a->logarithm ? shifted - log(sum) : exp(shifted) / sum);
        }
    }
}

void KR_REF(softmax_bwd)(const kr_softmax_bwd_args *a)
{
    for (int64_t o = 0; o < a->no; o++) {
        const real *y = (const real *)a->y + o * a->nr, *g_y = (const real *)a->g_y + o * a->nr;
        real *g_x = (real *)a->g_x + o * a->nr;
        double sum = 0;
        for (int64_t r = 0; r < a->nr; r++) sum += (a->logarithm ? 1.0 : (double)y[r]) * (double)g_y[r];
        for (int64_t r = 0; r < a->nr; r++) {
            if (a->logarithm) g_x[r] = (real)((double)g_y[r] - exp((double)y[r]) * sum);
            else g_x[r] = (real)((double)y[r] * ((double)g_y[r] - sum));
        }
    }
}
