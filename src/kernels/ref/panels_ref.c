/* panels_ref.c - few rows times a packed weight.
 *
 *   x [m k], panels [n / KR_PANEL][k][KR_PANEL]:   y[m, n] = bias[n] + sum_k x[m, k] w[n, k]
 */
#include "kernels/ref/ref.h"
#include "kernels/ref/ref_operand.h"

void KR_REF(panels)(const kr_panels_args *a)
{
    const real *bias_n = a->bias;
    for (int64_t m = 0; m < a->nm; m++) {
        for (int64_t n = 0; n < a->nn; n++) {
            int64_t first = n / KR_PANEL * KR_PANEL * a->nk + n % KR_PANEL; /* of w [k], stride KR_PANEL */
            double sum = bias_n ? (double)bias_n[n] : 0;
            for (int64_t k = 0; k < a->nk; k++) {
                int64_t at = first + k * KR_PANEL;
                sum += kr_ref_at(&a->x, m, k) * kr_ref_load(a->w.data, a->w.dtype, at);
            }
            kr_ref_put(&a->y, m, n, sum);
        }
    }
}
