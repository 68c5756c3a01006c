/* panels_cpu.c - few rows times a packed weight, in f32 vectors: the weight is read once, in address order.
 *
 *   x [m k], panels [n / KR_PANEL][k][KR_PANEL]:   y[m, n] = bias[n] + sum_k x[m, k] w[n, k]
 * The sum has the order of matmul's, for the same bits: chains of GEMM_KC steps from 0, added one after another. A
 * chain of one panel fits the second-level cache, from which rows after the first read it. Panels of 16-bit floats are
 * widened in registers: they take half the memory.
 */
#include "kernels/cpu/gemm_b.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/ranges.h"

enum { VECTORS = KR_PANEL / VF };

/* total += x[0..nk-1] w [nk][KR_PANEL]; dtype is a constant. */
KR_INLINE void add_chain(const float *x, const void *w, int64_t nk, float *total, bool is_first, const kr_dtype dtype)
{
    vf sum[VECTORS];
    GEMM_UNROLL
    for (int v = 0; v < VECTORS; v++) sum[v] = vf_zero();
    for (int64_t k = 0; k < nk; k++, w = gemm_b_at(w, KR_PANEL, dtype)) {
        const vf all = vf_set1(x[k]);
        GEMM_UNROLL
        for (int v = 0; v < VECTORS; v++) sum[v] = vf_fma(all, gemm_b_load(w, v * VF, dtype), sum[v]);
    }
    GEMM_UNROLL
    for (int v = 0; v < VECTORS; v++)
        vf_store(total + v * VF, is_first ? sum[v] : vf_add(vf_load(total + v * VF), sum[v]));
}

static void add_chain_f32(const float *x, const void *w, int64_t nk, float *total, bool is_first)
{
    add_chain(x, w, nk, total, is_first, KR_DTYPE_F32);
}

static void add_chain_bf16(const float *x, const void *w, int64_t nk, float *total, bool is_first)
{
    add_chain(x, w, nk, total, is_first, KR_DTYPE_BF16);
}

static void add_chain_f16(const float *x, const void *w, int64_t nk, float *total, bool is_first)
{
    add_chain(x, w, nk, total, is_first, KR_DTYPE_F16);
}

static void run_panel(const kr_panels_args *a, int64_t panel)
{
    static void (*const adds[])(const float *, const void *, int64_t, float *, bool) = {
        [KR_DTYPE_F32] = add_chain_f32, [KR_DTYPE_BF16] = add_chain_bf16, [KR_DTYPE_F16] = add_chain_f16
    };
    const int64_t first = panel * KR_PANEL, count = kr_smaller(KR_PANEL, a->nn - first);
    const void *w = gemm_b_at(a->w.data, first * a->nk, a->w.dtype);
    const float *bias = a->bias;
    for (int64_t m = 0; m < a->nm; m++) {
        const float *x = (const float *)a->x.data + m * a->x.row;
        float *y = (float *)a->y.data + m * a->y.row + first, total[KR_PANEL] = { 0 };
        if (bias)
            for (int64_t n = 0; n < count; n++) total[n] = bias[first + n];
        for (int64_t k = 0; k < a->nk; k += GEMM_KC)
            adds[a->w.dtype](x + k, gemm_b_at(w, k * KR_PANEL, a->w.dtype), kr_smaller(GEMM_KC, a->nk - k), total,
                             k == 0 && !bias);
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
