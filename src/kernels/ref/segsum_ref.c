/* segsum_ref.c - sums over all segments of a row: the logarithms of the decay matrix of one chunk.
 *
 *   x [no nl]    y [no nl nl]
 *   y[t, u] = sum of x[q] over u < q <= t for t >= u (0 on the diagonal), -inf for t < u
 *   backward: g_x[q] = sum of g_y[t, u] over u < q <= t
 */
#include "kernels/ref/ref.h"

#include <math.h>

void KR_REF(segsum)(const kr_segsum_args *a)
{
    int64_t nl = a->nl;
    for (int64_t o = 0; o < a->no; o++) {
        const real *x = (const real *)a->x + o * nl;
        real *y_tu = (real *)a->y + o * nl * nl;
        for (int64_t t = 0; t < nl; t++) {
            double sum = 0;
            for (int64_t u = t; u >= 0; u--) {
                y_tu[t * nl + u] = (real)sum;
                sum += (double)x[u];
            }
            for (int64_t u = t + 1; u < nl; u++) y_tu[t * nl + u] = (real)-INFINITY;
        }
    }
}

#define POSITIONS 64 /* positions q per pass */

void KR_REF(segsum_bwd)(const kr_segsum_args *a)
{
    int64_t nl = a->nl;
    for (int64_t o = 0; o < a->no; o++) {
        const real *g_tu = (const real *)a->x + o * nl * nl;
        real *y = (real *)a->y + o * nl;
        for (int64_t q0 = 0; q0 < nl; q0 += POSITIONS) {
            double sum[POSITIONS] = { 0 };
            int64_t end = kr_ref_min(q0 + POSITIONS, nl);
            for (int64_t t = q0; t < nl; t++) {
                double before = 0; /* sum of g[t, u] over u < q */
                for (int64_t u = 0; u < q0; u++) before += (double)g_tu[t * nl + u];
                for (int64_t q = q0; q < end && q <= t; q++) {
                    sum[q - q0] += before;
                    before += (double)g_tu[t * nl + q];
                }
            }
            for (int64_t q = q0; q < end; q++) y[q] = (real)sum[q - q0];
        }
    }
}
