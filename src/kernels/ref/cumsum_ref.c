/* cumsum_ref.c - prefix sums along one axis, from the front or from the back.
 *
 *   x, y [no nr ni]    y[o, r, i] = sum of x[o, q, i] over q <= r  (reverse: q >= r)
 */
#include "kernels/ref/ref.h"

void KR_REF(cumsum)(const kr_cumsum_args *a)
{
    const real *x = a->x;
    real *y = a->y;
    for (int64_t o = 0; o < a->no; o++) {
        for (int64_t i = 0; i < a->ni; i++) {
            double sum = 0;
            for (int64_t step = 0; step < a->nr; step++) {
                int64_t r = a->reverse ? a->nr - 1 - step : step, at = (o * a->nr + r) * a->ni + i;
                sum += (double)x[at];
                y[at] = (real)sum;
            }
        }
    }
}
