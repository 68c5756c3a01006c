/* cases_softmax.c - cases of softmax, its logarithm, and their gradients. */
#include "tests/kernels/conformance.h"

kr_cases_fn kr_cases_softmax, kr_cases_softmax_bwd;

typedef struct rows {
    int64_t no, nr;
    bool many_tasks;
} rows;

/* Vectors of 8 and 16, four of them interleaved; tasks of 16384 elements. */
static const rows shapes[] = {
    { 0, 5, false },   { 3, 0, false },   { 1, 1, false },    { 3, 2, false },    { 2, 7, false },   { 3, 8, false },
    { 2, 9, false },   { 5, 15, false },  { 3, 16, false },   { 2, 17, false },   { 1, 31, false },  { 4, 32, false },
    { 3, 33, false },  { 2, 61, false },  { 1, 64, false },   { 2, 65, false },   { 3, 127, false }, { 2, 1000, false },
    { 600, 61, true }, { 5, 8191, true }, { 3, 20011, true }, { 40000, 1, true },
};
enum { NSHAPES = (int)(sizeof shapes / sizeof *shapes) };

static void first_row(void *args)
{
    kr_softmax_args *a = args;
    if (a->no > 0) a->no = 1;
}

static double row_max(const double *x, int64_t nr)
{
    double m = -INFINITY;
    for (int64_t r = 0; r < nr; r++)
        if (x[r] > m) m = x[r];
    return m;
}

/* softmax: y (1 + |x - m|);   logarithm: |x - m| + |ln s| + 1 */
static void forward_scales(kr_case *c, const double *x, rows n, bool logarithm)
{
    double *scale = case_scale(c);
    for (int64_t o = 0; o < n.no; o++) {
        const double *x_r = x + o * n.nr;
        const double m = row_max(x_r, n.nr);
        double s = 0;
        for (int64_t r = 0; r < n.nr; r++) s += exp(x_r[r] - m);
        for (int64_t r = 0; r < n.nr; r++) {
            const double away = m - x_r[r];
            scale[o * n.nr + r] = logarithm ? away + log(s) + 1 : exp(-away) / s * (1 + away);
        }
    }
}

static void softmax_case(kr_sweep *sweep, rows n, bool logarithm, double spread, bool special)
{
    kr_softmax_args a = { .no = n.no, .nr = n.nr, .logarithm = logarithm };
    kr_case c;
    case_begin(&c, &a, sizeof a, "[%lld, %lld]%s, spread %g%s", (long long)n.no, (long long)n.nr,
               logarithm ? " logarithm" : "", spread, special ? ", special values" : "");
    double *x = case_input(&c, FIELD(kr_softmax_args, x), KR_SHAPE(n.no, n.nr), -spread, spread);
    for (int64_t o = 0; special && o < n.no; o++) {
        double *x_r = x + o * n.nr;
        static const double values[] = { NAN, INFINITY, -INFINITY, 0x1p127, -0x1p127, 0x1p-149 };
        const int kind = (int)(o % 7);
        if (kind < 6) x_r[kr_test_below(n.nr)] = values[kind];
        for (int64_t r = 0; kind == 6 && r < n.nr; r++) x_r[r] = -INFINITY;
    }
    case_output(&c, FIELD(kr_softmax_args, y), KR_SHAPE(n.no, n.nr));
    forward_scales(&c, x, n, logarithm);
    c.terms = n.nr + 1;
    c.many_tasks = n.many_tasks;
    c.first_row = first_row;
    case_done(sweep, &c);
}

void kr_cases_softmax(kr_sweep *sweep)
{
    for (int i = 0; i < NSHAPES; i++) {
        for (int logarithm = 0; logarithm < 2; logarithm++) {
            softmax_case(sweep, shapes[i], logarithm, 3, false);
            if (!shapes[i].many_tasks) softmax_case(sweep, shapes[i], logarithm, 60, false);
        }
    }
    for (int logarithm = 0; logarithm < 2; logarithm++) {
        softmax_case(sweep, (rows){ 28, 5, false }, logarithm, 3, true);
        softmax_case(sweep, (rows){ 28, 41, false }, logarithm, 3, true);
    }
}

static void first_row_bwd(void *args)
{
    kr_softmax_bwd_args *a = args;
    if (a->no > 0) a->no = 1;
}

/* Sets y to a softmax (or its logarithm) of random numbers, and the scales of g_x. */
static void backward_values(double *y, const double *g, double *scale, rows n, bool logarithm)
{
    for (int64_t o = 0; o < n.no; o++) {
        double *y_r = y + o * n.nr, sum = 0, size = 0;
        const double *g_r = g + o * n.nr;
        for (int64_t r = 0; r < n.nr; r++) sum += exp(y_r[r]);
        for (int64_t r = 0; r < n.nr; r++) {
            y_r[r] = kr_to_float(logarithm ? y_r[r] - log(sum) : exp(y_r[r]) / sum);
            size += fabs((logarithm ? 1 : y_r[r]) * g_r[r]);
        }
        for (int64_t r = 0; r < n.nr; r++)
            scale[o * n.nr + r] = logarithm ? fabs(g_r[r]) + exp(y_r[r]) * size : y_r[r] * (fabs(g_r[r]) + size);
    }
}

void kr_cases_softmax_bwd(kr_sweep *sweep)
{
    for (int i = 0; i < 2 * NSHAPES; i++) {
        const rows n = shapes[i / 2];
        const bool logarithm = i % 2;
        kr_softmax_bwd_args a = { .no = n.no, .nr = n.nr, .logarithm = logarithm };
        kr_case c;
        case_begin(&c, &a, sizeof a, "[%lld, %lld]%s", (long long)n.no, (long long)n.nr, logarithm ? " logarithm" : "");
        double *y = case_input(&c, FIELD(kr_softmax_bwd_args, y), KR_SHAPE(n.no, n.nr), -3, 3);
        double *g = case_input(&c, FIELD(kr_softmax_bwd_args, g_y), KR_SHAPE(n.no, n.nr), -1, 1);
        case_output(&c, FIELD(kr_softmax_bwd_args, g_x), KR_SHAPE(n.no, n.nr));
        backward_values(y, g, case_scale(&c), n, logarithm);
        c.terms = n.nr + 1;
        c.many_tasks = n.many_tasks;
        c.first_row = first_row_bwd;
        case_done(sweep, &c);
    }
}
