/* cases_cross_entropy.c - cases of the cross-entropy of rows with labels, alone and with its gradient, and of the
 * gradient from the first pass's statistics. */
#include "tests/kernels/conformance.h"

kr_cases_fn kr_cases_cross_entropy, kr_cases_cross_entropy_bwd;

typedef struct rows {
    int64_t no, nr, nv;
    bool many_tasks;
} rows;

/* Vectors of 8 and 16, four of them interleaved; tasks of 16384 elements; columns beyond the classes. */
static const rows shapes[] = {
    { 0, 5, 5, false },      { 1, 1, 1, false },        { 3, 2, 2, false },      { 5, 3, 1, false },
    { 4, 7, 7, false },      { 5, 8, 7, false },        { 6, 9, 9, false },      { 5, 16, 16, false },
    { 7, 17, 17, false },    { 4, 24, 19, false },      { 6, 33, 33, false },    { 5, 64, 61, false },
    { 3, 65, 65, false },    { 4, 128, 127, false },    { 3, 1000, 997, false }, { 600, 64, 61, true },
    { 5, 8191, 8191, true }, { 3, 20011, 20003, true }, { 40000, 1, 1, true },   { 4, 12000, 11990, false },
};
enum { NSHAPES = (int)(sizeof shapes / sizeof *shapes) };

typedef enum kind {
    CLOSE,   /* within 3 of each other */
    SPREAD,  /* within 60 */
    CERTAIN, /* the label much larger than the others: the remaining loss is tiny */
    EQUAL,   /* few different numbers, so that the maximum is not unique */
    SPECIAL  /* NaN and infinities */
} kind;

static const char *const kind_names[] = { "close", "spread", "certain", "equal", "special" };

typedef enum way { ALONE, WITH_GRADIENT, IN_PLACE } way;

static void fill(double *x, int64_t *label, rows n, kind k)
{
    static const double values[] = { NAN, INFINITY, -INFINITY, 0x1p-149 };
    for (int64_t o = 0; o < n.no; o++) {
        double *row = x + o * n.nr;
        label[o] = o % 5 == 3 ? (o % 2 ? -1 : -100) : kr_test_below(n.nv);
        for (int64_t v = 0; k == EQUAL && v < n.nr; v++) row[v] = floor(row[v]);
        if (k == CERTAIN && label[o] >= 0) row[label[o]] = 24;
        if (k == SPECIAL && o % 6 < 4) row[kr_test_below(n.nv)] = values[o % 6];
        for (int64_t v = 0; k == SPECIAL && o % 6 == 4 && v < n.nr; v++) row[v] = -INFINITY;
        for (int64_t v = n.nv; v < n.nr; v++) row[v] = 1e30; /* no class */
    }
}

/* The error scale of a row. A term e^(x - m) inherits the rounding of x - m. */
typedef struct row_scale {
    double m, sum, others; /* others: the terms other than the largest, each times 1 + |x - m| */
    double away;           /* sum of m - x */
} row_scale;

static double weighed(double x, double m)
{
    const double e = exp(x - m);
    return e > 0 ? e * (1 + m - x) : 0;
}

static row_scale scale_of(const double *x, int64_t nv)
{
    row_scale s = { -INFINITY, 0, 0, 0 };
    for (int64_t v = 0; v < nv; v++)
        if (x[v] > s.m) s.m = x[v];
    for (int64_t v = 0; v < nv; v++) {
        s.sum += exp(x[v] - s.m);
        s.away += s.m - x[v];
        if (x[v] != s.m) s.others += weighed(x[v], s.m);
    }
    return s;
}

static double finite_or_0(double x)
{
    return isfinite(x) ? x : 0;
}

static double miss_scale(const row_scale *s, double of_label)
{
    return s->others / s->sum + (of_label == s->m ? 0 : 1);
}

static double gradient_scale(const row_scale *s, const double *x, int64_t v, int64_t label, int64_t nv, double q,
                             double alpha)
{
    if (v >= nv) return 0;
    if (v == label) return alpha * (miss_scale(s, x[v]) + q);
    return alpha * (weighed(x[v], s->m) / s->sum + exp(x[v] - s->m) * s->others / s->sum / s->sum + q / (double)nv);
}

static void first_row(void *args)
{
    kr_cross_entropy_args *a = args;
    if (a->no > 0) a->no = 1;
}

static void set_scales(double *loss, double *stats, double *g, const double *x, const int64_t *label, rows n, double q,
                       double alpha)
{
    for (int64_t o = 0; o < n.no; o++) {
        if (label[o] < 0) continue;
        const double *row = x + o * n.nr;
        const row_scale s = scale_of(row, n.nv);
        if (loss) loss[o] = finite_or_0(s.others / s.sum + (1 - q) * (s.m - row[label[o]]) + q * s.away / (double)n.nv);
        if (stats) {
            stats[o * KR_ROW_STATS + KR_ROW_INVERSE] = finite_or_0((1 + s.others / s.sum) / s.sum);
            stats[o * KR_ROW_STATS + KR_ROW_MISS] = finite_or_0(miss_scale(&s, row[label[o]]));
        }
        for (int64_t v = 0; g && v < n.nr; v++)
            g[o * n.nr + v] = finite_or_0(gradient_scale(&s, row, v, label[o], n.nv, q, alpha));
    }
}

static void forward_case(kr_sweep *sweep, rows n, kind k, double q, way w)
{
    kr_cross_entropy_args a = { .no = n.no, .nr = n.nr, .nv = n.nv, .smoothing = q, .alpha = 0.375, .g_x.row = n.nr };
    kr_case c;
    case_begin(&c, &a, sizeof a, "[%lld, %lld of %lld] %s, smoothing %g%s", (long long)n.no, (long long)n.nv,
               (long long)n.nr, kind_names[k], q,
               w == ALONE      ? ""
               : w == IN_PLACE ? ", g_x is x"
                               : ", with g_x");
    const kr_shape shape = KR_SHAPE(n.no, n.nr);
    const double spread = k == SPREAD ? 60 : 3;
    double *x = (w == IN_PLACE ? case_in_out : case_input)(&c, FIELD(kr_cross_entropy_args, x), shape, -spread, spread);
    double *g = w == IN_PLACE ? case_scale(&c) : NULL;
    if (w == IN_PLACE) c.operands[c.noperands - 1].also = offsetof(kr_cross_entropy_args, g_x.data) | KR_IS_TYPED;
    int64_t *label = case_raw(&c, FIELD(kr_cross_entropy_args, label), KR_DTYPE_I64, n.no, false);
    fill(x, label, n, k);
    case_output(&c, FIELD(kr_cross_entropy_args, loss), KR_SHAPE(n.no));
    double *loss = case_scale(&c);
    case_output(&c, FIELD(kr_cross_entropy_args, stats), KR_SHAPE(n.no, KR_ROW_STATS));
    double *stats = case_scale(&c);
    if (w == WITH_GRADIENT) {
        case_output(&c, OPERAND(kr_cross_entropy_args, g_x), shape);
        g = case_scale(&c);
    }
    set_scales(loss, stats, g, x, label, n, q, a.alpha);
    c.terms = n.nv + 1;
    c.many_tasks = n.many_tasks;
    c.first_row = first_row;
    case_done(sweep, &c);
}

void kr_cases_cross_entropy(kr_sweep *sweep)
{
    for (int i = 0; i < NSHAPES; i++)
        for (int w = ALONE; w <= IN_PLACE; w++) {
            forward_case(sweep, shapes[i], CLOSE, 0, (way)w);
            forward_case(sweep, shapes[i], CLOSE, 0.125, (way)w);
            if (shapes[i].many_tasks) continue;
            for (int k = SPREAD; k <= EQUAL; k++)
                forward_case(sweep, shapes[i], (kind)k, w == ALONE ? 0 : 0.25, (way)w);
            forward_case(sweep, shapes[i], CERTAIN, 0, (way)w);
        }
    for (int w = ALONE; w <= IN_PLACE; w++) {
        forward_case(sweep, (rows){ 48, 5, 5, false }, SPECIAL, 0, (way)w);
        forward_case(sweep, (rows){ 48, 41, 39, false }, SPECIAL, 0, (way)w);
    }
}

static void first_row_bwd(void *args)
{
    kr_cross_entropy_bwd_args *a = args;
    if (a->no > 0) a->no = 1;
}

static void backward_case(kr_sweep *sweep, rows n, kind k, double q)
{
    kr_cross_entropy_bwd_args a = { .no = n.no, .nr = n.nr, .nv = n.nv, .smoothing = q, .alpha = 0.375 };
    kr_case c;
    case_begin(&c, &a, sizeof a, "[%lld, %lld of %lld] %s, smoothing %g", (long long)n.no, (long long)n.nv,
               (long long)n.nr, kind_names[k], q);
    const double spread = k == SPREAD ? 60 : 3;
    double *x = case_input(&c, FIELD(kr_cross_entropy_bwd_args, x), KR_SHAPE(n.no, n.nr), -spread, spread);
    int64_t *label = case_raw(&c, FIELD(kr_cross_entropy_bwd_args, label), KR_DTYPE_I64, n.no, false);
    fill(x, label, n, k);
    double *stats = case_input(&c, FIELD(kr_cross_entropy_bwd_args, stats), KR_SHAPE(n.no, KR_ROW_STATS), 0, 1);
    for (int64_t o = 0; o < n.no; o++) {
        const row_scale s = scale_of(x + o * n.nr, n.nv);
        stats[o * KR_ROW_STATS + KR_ROW_MAX] = s.m;
        stats[o * KR_ROW_STATS + KR_ROW_INVERSE] = kr_to_float(1 / s.sum);
    }
    case_input(&c, FIELD(kr_cross_entropy_bwd_args, g_y), KR_SCALAR, -2, 2);
    case_output(&c, FIELD(kr_cross_entropy_bwd_args, g_x), KR_SHAPE(n.no, n.nr));
    set_scales(NULL, NULL, case_scale(&c), x, label, n, q, 2 * a.alpha);
    c.many_tasks = n.many_tasks;
    c.first_row = first_row_bwd;
    case_done(sweep, &c);
}

void kr_cases_cross_entropy_bwd(kr_sweep *sweep)
{
    for (int i = 0; i < NSHAPES; i++)
        for (int k = CLOSE; k <= CERTAIN; k++) {
            backward_case(sweep, shapes[i], (kind)k, 0);
            backward_case(sweep, shapes[i], (kind)k, 0.125);
        }
}
