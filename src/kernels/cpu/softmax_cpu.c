/* softmax_cpu.c - softmax over the last axis, its logarithm, and their gradients, row by row.
 *
 *   x, y [no nr];  m = max(x), u = e^(x - m), s = sum(u):
 *   y = u / s                        logarithm: y = (x - m) - ln s
 *   g_x = y (g_y - <y, g_y>)         logarithm: g_x = g_y - e^y sum(g_y)
 *
 * Sums run in ROW_SUMS interleaved vectors, which are added pairwise at the end: their order depends on nr alone.
 * A row with a NaN or +infinity, or with -infinity throughout, becomes NaN, since x - m is NaN.
 */
#include "kernels/cpu/isa.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/vec_math.h"
#include "kernels/kernels.h"

enum {
    ROW_SUMS = 4,        /* enough to hide the latency of an addition */
    SOFTMAX_TASK = 16384 /* elements of a task, but at least a row */
};

/* One vector of either input, and the row's two scalars in every lane. */
typedef struct row_lanes {
    vf a, b;
    vf p, q;
} row_lanes;

typedef vf row_fn(row_lanes in);

/* f of the vector at i, stored to y if y is not NULL; lanes past the end count as 0. */
KR_INLINE vf row_step(row_fn *f, row_lanes in, const float *a, const float *b, float *y, int64_t i, int64_t n)
{
    if (n - i >= VF) {
        in.a = vf_load(a + i);
        in.b = vf_load(b + i);
        vf result = f(in);
        if (y) vf_store(y + i, result);
        return result;
    }
    in.a = vf_load_n(a + i, n - i);
    in.b = vf_load_n(b + i, n - i);
    vf result = f(in);
    if (y) vf_store_n(y + i, n - i, result);
    return vf_keep(vm_first(n - i), result);
}

/* y = f(a, b) along a row (y may be NULL, a or b); returns the sum of the results. */
KR_INLINE float row_run(row_fn *f, const float *a, const float *b, float *y, int64_t n, float p, float q)
{
    row_lanes in = { vf_zero(), vf_zero(), vf_set1(p), vf_set1(q) };
    vf sum[ROW_SUMS];
    for (int k = 0; k < ROW_SUMS; k++) sum[k] = vf_zero();
    int64_t i = 0;
    for (; i + ROW_SUMS * VF <= n; i += ROW_SUMS * VF)
        for (int k = 0; k < ROW_SUMS; k++) sum[k] = vf_add(sum[k], row_step(f, in, a, b, y, i + k * VF, n));
    for (int k = 0; k < ROW_SUMS && i < n; k++, i += VF) sum[k] = vf_add(sum[k], row_step(f, in, a, b, y, i, n));
    return vf_sum(vf_add(vf_add(sum[0], sum[2]), vf_add(sum[1], sum[3])));
}

/* a = x, p = m */
static inline vf row_exp(row_lanes in)
{
    return vf_exp(vf_sub(in.a, in.p));
}

/* a = u, p = 1 / s */
static inline vf row_scaled(row_lanes in)
{
    return vf_mul(in.a, in.p);
}

/* a = x, p = m, q = ln s */
static inline vf row_log(row_lanes in)
{
    return vf_sub(vf_sub(in.a, in.p), in.q);
}

/* a = y, b = g_y */
static inline vf row_product(row_lanes in)
{
    return vf_mul(in.a, in.b);
}

static inline vf row_gradient(row_lanes in)
{
    return in.b;
}

/* a = y, b = g_y, p = <y, g_y> */
static inline vf row_softmax_bwd(row_lanes in)
{
    return vf_mul(in.a, vf_sub(in.b, in.p));
}

/* a = y, b = g_y, p = sum(g_y) */
static inline vf row_log_softmax_bwd(row_lanes in)
{
    return vf_fnma(vf_exp(in.a), in.p, in.b);
}

static void softmax_row(const float *x, float *y, int64_t n, bool logarithm)
{
    float m = row_max(x, n);
    if (!logarithm) {
        float s = row_run(row_exp, x, x, y, n, m, 0);
        row_run(row_scaled, y, y, y, n, 1 / s, 0);
        return;
    }
    float s = row_run(row_exp, x, x, NULL, n, m, 0);
    float log_s[VF];
    vf_store(log_s, vf_log(vf_set1(s)));
    row_run(row_log, x, x, y, n, m, log_s[0]);
}

static void softmax_bwd_row(const float *y, const float *g_y, float *g_x, int64_t n, bool logarithm)
{
    if (logarithm) row_run(row_log_softmax_bwd, y, g_y, g_x, n, row_run(row_gradient, y, g_y, NULL, n, 0, 0), 0);
    else row_run(row_softmax_bwd, y, g_y, g_x, n, row_run(row_product, y, g_y, NULL, n, 0, 0), 0);
}

static int64_t rows_a_task(int64_t nr)
{
    return nr >= SOFTMAX_TASK ? 1 : SOFTMAX_TASK / nr;
}

static void softmax_task(void *arg, int64_t task, int worker)
{
    (void)worker;
    const kr_softmax_args *a = arg;
    int64_t rows = rows_a_task(a->nr);
    for (int64_t o = task * rows; o < a->no && o < (task + 1) * rows; o++)
        softmax_row((const float *)a->x + o * a->nr, (float *)a->y + o * a->nr, a->nr, a->logarithm);
}

static void softmax_bwd_task(void *arg, int64_t task, int worker)
{
    (void)worker;
    const kr_softmax_bwd_args *a = arg;
    int64_t rows = rows_a_task(a->nr);
    for (int64_t o = task * rows; o < a->no && o < (task + 1) * rows; o++) {
        int64_t row = o * a->nr;
        softmax_bwd_row((const float *)a->y + row, (const float *)a->g_y + row, (float *)a->g_x + row, a->nr,
                        a->logarithm);
    }
}

static void run_rows(kr_pool *pool, int64_t no, int64_t nr, kr_task_fn *task, void *arg)
{
    if (no == 0 || nr == 0) return;
    int64_t rows = rows_a_task(nr);
    int64_t ntasks = (no + rows - 1) / rows;
    if (ntasks == 1) task(arg, 0, 0);
    else kr_pool_run(pool, ntasks, task, arg);
}

void KR_FN(softmax)(const kr_softmax_args *a)
{
    kr_softmax_args args = *a;
    run_rows(a->exec.pool, a->no, a->nr, softmax_task, &args);
}

void KR_FN(softmax_bwd)(const kr_softmax_bwd_args *a)
{
    kr_softmax_bwd_args args = *a;
    run_rows(a->exec.pool, a->no, a->nr, softmax_bwd_task, &args);
}
