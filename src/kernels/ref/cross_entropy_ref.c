/* cross_entropy_ref.c - cross-entropy of rows with one label each, and its gradient (kernels/kernels.h).
 *
 *   x [no nr], of which the first nv columns are classes;  loss [no];  stats [no KR_ROW_STATS];  g_x [no nr]
 */
#include "kernels/ref/ref.h"
#include "kernels/ref/ref_operand.h"

#include <math.h>

/* Sums over the classes of a row. */
typedef struct row_sums {
    double m;
    double rest, equal; /* sum of e^(x - m) over x below m; the number of x equal to m */
    double away;        /* sum of m - x */
} row_sums;

static row_sums sum_row(const real *x, int64_t nv)
{
    row_sums s = { -INFINITY, 0, 0, 0 };
    for (int64_t v = 0; v < nv; v++)
        if ((double)x[v] > s.m) s.m = (double)x[v];
    for (int64_t v = 0; v < nv; v++) {
        if ((double)x[v] == s.m) s.equal += 1;
        else s.rest += exp((double)x[v] - s.m);
        s.away += s.m - (double)x[v];
    }
    return s;
}

static bool is_first(const real *x, int64_t label)
{
    for (int64_t v = 0; v < label; v++)
        if (x[v] == x[label]) return false;
    return true;
}

static real gradient_at(const kr_cross_entropy_args *a, double p, double miss, bool is_label)
{
    const double even = a->smoothing / (double)a->nv;
    return (real)(a->alpha * (is_label ? a->smoothing - even - miss : p - even));
}

static void score_row(const kr_cross_entropy_args *a, int64_t o)
{
    const real *x = (const real *)a->x + o * a->nr;
    const int64_t label = a->label[o];
    real *loss = (real *)a->loss + o, *stats = (real *)a->stats + o * KR_ROW_STATS;
    const row_sums s = sum_row(x, a->nv);
    const double q = a->smoothing, of_label = (double)x[label], rest_sum = s.equal - 1 + s.rest, sum = 1 + rest_sum;
    const double others = of_label == s.m ? rest_sum : sum - exp(of_label - s.m);
    const double mean = q > 0 ? q * s.away / (double)a->nv : 0;
    *loss = (real)(log1p(rest_sum) + (1 - q) * (s.m - of_label) + mean);
    stats[KR_ROW_MAX] = (real)s.m;
    stats[KR_ROW_INVERSE] = (real)(1 / sum);
    stats[KR_ROW_MISS] = (real)(others / sum);
    stats[KR_ROW_RIGHT] = of_label == s.m && !isnan(sum) && is_first(x, label) ? (real)1 : (real)0;
    for (int64_t v = 0; a->g_x.data && v < a->nr; v++) {
        const bool is_class = v < a->nv;
        kr_ref_put(&a->g_x, o, v,
                   is_class ? (double)gradient_at(a, exp((double)x[v] - s.m) / sum, others / sum, v == label) : 0);
    }
}

static void zero(real *y, int64_t n)
{
    for (int64_t i = 0; i < n; i++) y[i] = 0;
}

void KR_REF(cross_entropy)(const kr_cross_entropy_args *a)
{
    for (int64_t o = 0; o < a->no; o++) {
        if (a->label[o] >= 0) {
            score_row(a, o);
            continue;
        }
        ((real *)a->loss)[o] = 0;
        zero((real *)a->stats + o * KR_ROW_STATS, KR_ROW_STATS);
        for (int64_t v = 0; a->g_x.data && v < a->nr; v++) kr_ref_put(&a->g_x, o, v, 0);
    }
}

void KR_REF(cross_entropy_bwd)(const kr_cross_entropy_bwd_args *a)
{
    const kr_cross_entropy_args like = { .nv = a->nv,
                                         .smoothing = a->smoothing,
                                         .alpha = a->alpha * (double)*(const real *)a->g_y };
    for (int64_t o = 0; o < a->no; o++) {
        const real *x = (const real *)a->x + o * a->nr, *stats = (const real *)a->stats + o * KR_ROW_STATS;
        real *g_x = (real *)a->g_x + o * a->nr;
        zero(g_x, a->nr);
        for (int64_t v = 0; v < a->nv && a->label[o] >= 0; v++) {
            const double p = exp((double)x[v] - (double)stats[KR_ROW_MAX]) * (double)stats[KR_ROW_INVERSE];
            g_x[v] = gradient_at(&like, p, (double)stats[KR_ROW_MISS], v == a->label[o]);
        }
    }
}
