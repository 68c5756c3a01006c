/* panels_ref.c - few rows times a packed weight.
 *
 *   x [m k], panels [n / KR_PANEL][k][KR_PANEL]:   y[m, n] = bias[n] + sum_k x[m, k] w[n, k]
 */
#include "kernels/ref/ref.h"
#include "kernels/ref/ref_half.h"

void KR_REF(panels)(const kr_panels_args *a)
{
    const real *x_mk = a->x, *panels = a->panels, *bias_n = a->bias;
    real *y_mn = a->y;
    for (int64_t m = 0; m < a->nm; m++) {
        for (int64_t n = 0; n < a->nn; n++) {
            int64_t first = n / KR_PANEL * KR_PANEL * a->nk + n % KR_PANEL; /* of w [k], stride KR_PANEL */
            double sum = bias_n ? (double)bias_n[n] : 0;
            for (int64_t k = 0; k < a->nk; k++) {
                int64_t at = first + k * KR_PANEL;
                double w = a->dtype ? kr_ref_widened(a->panels, at, a->dtype) : (double)panels[at];
                sum += (double)x_mk[m * a->x_m + k] * w;
            }
            y_mn[m * a->y_m + n] = (real)sum;
        }
    }
}
