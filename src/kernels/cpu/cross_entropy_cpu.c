/* cross_entropy_cpu.c - cross-entropy of rows with one label each, and its gradient, row by row
 * (kernels/kernels.h).
 *
 *   m = max(x);  S = equal + rest: the number of x equal to m, and the sum of e^(x - m) over the others
 *   loss = ln S + (1 - q) (m - x[label]) + q mean(m - x);  g_x = alpha (e^(x - m) / S - q / nv), less at the label
 *
 * The gradient needs no second exponential: the first pass stores e^(x - m) in g_x.
 * Sums run in ROW_SUMS interleaved vectors, which are added pairwise at the end: their order depends on nv alone.
 */
#include "kernels/cpu/isa.h"
#include "kernels/cpu/ranges.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/vec_math.h"

enum { ROW_SUMS = 4 /* enough to hide the latency of an addition */ };

typedef struct row_sums {
    vf rest[ROW_SUMS], equal[ROW_SUMS], away[ROW_SUMS];
} row_sums;

/* The same, reduced to scalars. */
typedef struct row_totals {
    float rest, equal, away;
} row_totals;

/* Adds the n lanes at x to the k-th sums; stores e^(x - m) in e if e is not NULL. */
KR_INLINE void sum_step(row_sums *s, int k, const float *x, float *e, int64_t n, vf m, bool spreads)
{
    const vf v = row_load(x, n), below = vf_sub(v, m), power = vf_exp(below);
    vf rest = vf_select(vf_eq(v, m), vf_zero(), power), equal = vf_keep(vf_eq(v, m), vf_set1(1)), away = vf_neg(below);
    if (e) row_store(e, n, power);
    if (n < VF) {
        rest = vf_keep(vm_first(n), rest);
        equal = vf_keep(vm_first(n), equal);
        away = vf_keep(vm_first(n), away);
    }
    s->rest[k] = vf_add(s->rest[k], rest);
    s->equal[k] = vf_add(s->equal[k], equal);
    if (spreads) s->away[k] = vf_add(s->away[k], away);
}

KR_INLINE float total(const vf *sum)
{
    return vf_sum(vf_add(vf_add(sum[0], sum[2]), vf_add(sum[1], sum[3])));
}

KR_INLINE row_totals sum_row(const float *x, float *e, int64_t n, float max, bool spreads)
{
    const vf m = vf_set1(max);
    row_sums s;
    for (int k = 0; k < ROW_SUMS; k++) s.rest[k] = s.equal[k] = s.away[k] = vf_zero();
    int64_t i = 0;
    for (; i + ROW_SUMS * VF <= n; i += ROW_SUMS * VF)
        for (int k = 0; k < ROW_SUMS; k++) sum_step(&s, k, x + i + k * VF, e ? e + i + k * VF : NULL, VF, m, spreads);
    for (int k = 0; k < ROW_SUMS && i < n; k++, i += VF) sum_step(&s, k, x + i, e ? e + i : NULL, n - i, m, spreads);
    return (row_totals){ total(s.rest), total(s.equal), total(s.away) };
}

static row_totals sums_of(const float *x, float *e, int64_t n, float m, bool spreads)
{
    if (spreads) return e ? sum_row(x, e, n, m, true) : sum_row(x, NULL, n, m, true);
    return e ? sum_row(x, e, n, m, false) : sum_row(x, NULL, n, m, false);
}

static float one_lane(vf y)
{
    float lanes[VF];
    vf_store(lanes, y);
    return lanes[0];
}

/* ln(1 + t), t >= 0. */
static double log_1p(float t)
{
    return (double)one_lane(t <= 1 ? vf_log1p_unit(vf_set1(t)) : vf_log(vf_set1(1 + t)));
}

static bool is_first(const float *x, int64_t label)
{
    const vf label_value = vf_set1(x[label]);
    for (int64_t i = 0; i < label; i += VF)
        if (vm_any(vm_and(vm_first(label - i), vf_eq(row_load(x + i, label - i), label_value)))) return false;
    return true;
}

/* g = e a - b over the classes, then 0. */
static void write_gradient(float *g, const float *e, int64_t nv, int64_t nr, double a, double b)
{
    const vf factor = vf_set1((float)a), less = vf_set1(-(float)b);
    int64_t i = 0;
    for (; i + VF <= nv; i += VF) vf_store(g + i, vf_fma(vf_load(e + i), factor, less));
    if (i < nv) vf_store_n(g + i, nv - i, vf_fma(vf_load_n(e + i, nv - i), factor, less));
    for (i = nv; i < nr; i++) g[i] = 0;
}

static float label_gradient(double alpha, double q, int64_t nv, double miss)
{
    return (float)(alpha * (q - q / (double)nv - miss));
}

static void score_row(const kr_cross_entropy_args *a, int64_t o)
{
    const float *x = (const float *)a->x + o * a->nr;
    float *g_x = a->g_x.data ? (float *)a->g_x.data + o * a->nr : NULL, *stats = (float *)a->stats + o * KR_ROW_STATS;
    const int64_t label = a->label[o];
    const double q = a->smoothing, nv = (double)a->nv;
    const float m = row_max(x, a->nv), of_label = x[label];
    const bool is_largest = of_label == m && is_first(x, label); /* before g_x overwrites x */
    const row_totals s = sums_of(x, g_x, a->nv, m, q > 0);
    const float rest_sum = s.equal - 1 + s.rest;
    const double sum = 1 + (double)rest_sum;
    const double others = of_label == m ? (double)rest_sum : sum - (double)one_lane(vf_exp(vf_set1(of_label - m)));
    const double mean = q > 0 ? q * (double)s.away / nv : 0;
    ((float *)a->loss)[o] = (float)(log_1p(rest_sum) + (1 - q) * ((double)m - (double)of_label) + mean);
    stats[KR_ROW_MAX] = m;
    stats[KR_ROW_INVERSE] = (float)(1 / sum);
    stats[KR_ROW_MISS] = (float)(others / sum);
    stats[KR_ROW_RIGHT] = is_largest && sum == sum ? 1 : 0;
    if (!g_x) return;
    write_gradient(g_x, g_x, a->nv, a->nr, a->alpha / sum, a->alpha * q / nv);
    g_x[label] = label_gradient(a->alpha, q, a->nv, others / sum);
}

static void score_rows(const void *args, int64_t first, int64_t end, int worker)
{
    (void)worker;
    const kr_cross_entropy_args *a = args;
    for (int64_t o = first; o < end; o++) {
        if (a->label[o] >= 0) {
            score_row(a, o);
            continue;
        }
        ((float *)a->loss)[o] = 0;
        memset((float *)a->stats + o * KR_ROW_STATS, 0, KR_ROW_STATS * sizeof(float));
        if (a->g_x.data) memset((float *)a->g_x.data + o * a->nr, 0, (size_t)a->nr * sizeof(float));
    }
}

static void differentiate_row(const kr_cross_entropy_bwd_args *a, int64_t o, double alpha)
{
    const float *x = (const float *)a->x + o * a->nr, *stats = (const float *)a->stats + o * KR_ROW_STATS;
    float *g_x = (float *)a->g_x + o * a->nr;
    const double q = a->smoothing;
    const vf m = vf_set1(stats[KR_ROW_MAX]), factor = vf_set1((float)(alpha * (double)stats[KR_ROW_INVERSE])),
             less = vf_set1(-(float)(alpha * q / (double)a->nv));
    for (int64_t i = 0; i < a->nv; i += VF) {
        const int64_t n = a->nv - i;
        row_store(g_x + i, n, vf_fma(vf_exp(vf_sub(row_load(x + i, n), m)), factor, less));
    }
    for (int64_t i = a->nv; i < a->nr; i++) g_x[i] = 0;
    g_x[a->label[o]] = label_gradient(alpha, q, a->nv, (double)stats[KR_ROW_MISS]);
}

static void differentiate_rows(const void *args, int64_t first, int64_t end, int worker)
{
    (void)worker;
    const kr_cross_entropy_bwd_args *a = args;
    const double alpha = a->alpha * (double)*(const float *)a->g_y;
    for (int64_t o = first; o < end; o++) {
        if (a->label[o] >= 0) differentiate_row(a, o, alpha);
        else memset((float *)a->g_x + o * a->nr, 0, (size_t)a->nr * sizeof(float));
    }
}

void KR_FN(cross_entropy)(const kr_cross_entropy_args *a)
{
    kr_ranges_run(a->exec.pool, a->no, a->nr, score_rows, a);
}

void KR_FN(cross_entropy_bwd)(const kr_cross_entropy_bwd_args *a)
{
    kr_ranges_run(a->exec.pool, a->no, a->nr, differentiate_rows, a);
}
