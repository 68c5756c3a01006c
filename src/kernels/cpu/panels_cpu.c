/* panels_cpu.c - few rows times a packed weight, in f32 vectors: the weight passes by once, in the order of addresses.
 *
 *   x [m k], panels [n / KR_PANEL][k][KR_PANEL]:   y[m, n] = bias[n] + sum_k x[m, k] w[n, k]
 * The sum has the order of matmul's, for the same bits: chains of GEMM_KC steps from 0, added one after another. A
 * chain of one panel fits the second-level cache, from where rows after the first have it.
 */
#include "kernels/cpu/gemm_vec.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/ranges.h"

enum { VECTORS = KR_PANEL / VF };

/* total += x[0..nk-1] w [nk][KR_PANEL] */
static void add_chain(const float *x, const float *w, int64_t nk, float *total, bool is_first)
{
    vf sum[VECTORS];
    GEMM_UNROLL
    for (int v = 0; v < VECTORS; v++) sum[v] = vf_zero();
    for (int64_t k = 0; k < nk; k++, w += KR_PANEL) {
        const vf all = vf_set1(x[k]);
        GEMM_UNROLL
        for (int v = 0; v < VECTORS; v++) sum[v] = vf_fma(all, vf_load(w + v * VF), sum[v]);
    }
    GEMM_UNROLL
    for (int v = 0; v < VECTORS; v++)
        vf_store(total + v * VF, is_first ? sum[v] : vf_add(vf_load(total + v * VF), sum[v]));
}

static void run_panel(const kr_panels_args *a, int64_t panel)
{
    const int64_t first = panel * KR_PANEL, count = kr_smaller(KR_PANEL, a->nn - first);
    const float *w = (const float *)a->panels + first * a->nk, *bias = a->bias;
    for (int64_t m = 0; m < a->nm; m++) {
        const float *x = (const float *)a->x + m * a->x_m;
        float *y = (float *)a->y + m * a->y_m + first, total[KR_PANEL] = { 0 };
        if (bias)
            for (int64_t n = 0; n < count; n++) total[n] = bias[first + n];
        for (int64_t k = 0; k < a->nk; k += GEMM_KC)
            add_chain(x + k, w + k * KR_PANEL, kr_smaller(GEMM_KC, a->nk - k), total, k == 0 && !bias);
        for (int64_t n = 0; n < count; n++) y[n] = total[n];
    }
}

static void run_panels(const void *args, int64_t first, int64_t end, int worker)
{
    (void)worker;
    for (int64_t panel = first; panel < end; panel++) run_panel(args, panel);
}

void KR_FN(panels)(const kr_panels_args *a)
{
    kr_ranges_run(a->exec.pool, kr_panels_of(a->nn), KR_PANEL * a->nk * a->nm, run_panels, a);
}
