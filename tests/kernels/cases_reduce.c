/* cases_reduce.c - cases of sums and maxima along an axis, of prefix sums and of segment sums. */
#include "tests/kernels/conformance.h"

kr_cases_fn kr_cases_sum, kr_cases_max, kr_cases_max_bwd, kr_cases_argmax, kr_cases_cumsum, kr_cases_segsum,
    kr_cases_segsum_bwd;

typedef struct cube {
    int64_t no, nr, ni;
    bool many_tasks;
} cube;

/* Vectors of 8 and 16 and four of them interleaved; blocks of 4096 along a row, of 128 rows, of 512 columns. */
static const cube cubes[] = {
    { 0, 3, 5, false },    { 3, 0, 5, false },    { 3, 5, 0, false },    { 3, 0, 1, false },    { 1, 1, 1, false },
    { 2, 7, 1, false },    { 3, 8, 1, false },    { 2, 9, 1, false },    { 5, 15, 1, false },   { 3, 16, 1, false },
    { 4, 17, 1, false },   { 7, 31, 1, false },   { 2, 32, 1, false },   { 3, 33, 1, false },   { 6, 61, 1, false },
    { 2, 64, 1, false },   { 3, 67, 1, false },   { 2, 127, 1, false },  { 1, 4095, 1, false }, { 2, 4096, 1, false },
    { 2, 4097, 1, false }, { 3, 12289, 1, true }, { 700, 61, 1, true },  { 1, 1, 7, false },    { 2, 3, 2, false },
    { 2, 5, 7, false },    { 1, 7, 8, false },    { 3, 4, 9, false },    { 2, 9, 15, false },   { 1, 2, 16, false },
    { 2, 3, 17, false },   { 1, 11, 31, false },  { 2, 6, 33, false },   { 1, 5, 63, false },   { 3, 13, 65, false },
    { 2, 127, 5, false },  { 1, 128, 19, false }, { 2, 129, 11, false }, { 1, 257, 33, false }, { 1, 3, 511, false },
    { 1, 4, 513, false },  { 2, 130, 530, true }, { 1, 1031, 67, true }, { 90, 31, 37, true },  { 1, 2, 20011, true },
};
enum { NCUBES = (int)(sizeof cubes / sizeof *cubes) };

static void put_specials(double *x, int64_t count)
{
    static const double values[] = { NAN, INFINITY, -INFINITY, 0.0, -0.0, 0x1p-149, -0x1p-149, 0x1p100, -0x1p90 };
    for (int64_t i = 0; i < count; i++)
        if (kr_test_below(6) == 0) x[i] = values[kr_test_below((int64_t)(sizeof values / sizeof *values))];
}

/* ---- sum and max ---- */

static void first_row(void *args)
{
    kr_reduce_args *a = args;
    if (a->no > 0) a->no = 1;
}

static void magnitude_of_alpha(void *args)
{
    kr_reduce_args *a = args;
    a->alpha = fabs(a->alpha);
}

static void reduce_case(kr_sweep *sweep, cube n, bool is_sum, bool special)
{
    kr_reduce_args a = { .no = n.no, .nr = n.nr, .ni = n.ni, .alpha = n.nr % 2 ? -0.625 : 1 };
    kr_case c;
    case_begin(&c, &a, sizeof a, "x [%lld, %lld, %lld]%s", (long long)n.no, (long long)n.nr, (long long)n.ni,
               special ? ", special values" : "");
    double *x = case_input(&c, FIELD(kr_reduce_args, x), KR_SHAPE(n.no, n.nr, n.ni), -1, 1);
    if (special) put_specials(x, n.no * n.nr * n.ni);
    case_output(&c, FIELD(kr_reduce_args, y), KR_SHAPE(n.no, n.ni));
    c.terms = n.nr + 1;
    c.by_magnitudes = is_sum;
    c.for_scale = magnitude_of_alpha;
    c.many_tasks = n.many_tasks;
    c.first_row = first_row;
    case_done(sweep, &c);
}

void kr_cases_sum(kr_sweep *sweep)
{
    for (int i = 0; i < NCUBES; i++) {
        reduce_case(sweep, cubes[i], true, false);
        if (!cubes[i].many_tasks) reduce_case(sweep, cubes[i], true, false);
    }
    reduce_case(sweep, (cube){ 40, 5, 1, false }, true, true);
    reduce_case(sweep, (cube){ 3, 6, 35, false }, true, true);
}

void kr_cases_max(kr_sweep *sweep)
{
    for (int i = 0; i < NCUBES; i++) {
        if (cubes[i].nr == 0) continue;
        reduce_case(sweep, cubes[i], false, false);
        if (!cubes[i].many_tasks) reduce_case(sweep, cubes[i], false, true);
    }
}

static void first_row_max_bwd(void *args)
{
    kr_max_bwd_args *a = args;
    if (a->no > 0) a->no = 1;
}

static void max_bwd_case(kr_sweep *sweep, cube n, bool special)
{
    kr_max_bwd_args a = { .no = n.no, .nr = n.nr, .ni = n.ni };
    kr_case c;
    case_begin(&c, &a, sizeof a, "x [%lld, %lld, %lld]%s", (long long)n.no, (long long)n.nr, (long long)n.ni,
               special ? ", special values" : "");
    double *x = case_input(&c, FIELD(kr_max_bwd_args, x), KR_SHAPE(n.no, n.nr, n.ni), -1, 1);
    for (int64_t i = 0; i < n.no * n.nr * n.ni; i++) x[i] = kr_to_float(rint(x[i] * 4) / 4); /* ties */
    if (special) put_specials(x, n.no * n.nr * n.ni);
    double *g_y = case_input(&c, FIELD(kr_max_bwd_args, g_y), KR_SHAPE(n.no, n.ni), -1, 1);
    if (special && n.no * n.ni > 0) g_y[0] = NAN;
    case_output(&c, FIELD(kr_max_bwd_args, g_x), KR_SHAPE(n.no, n.nr, n.ni));
    c.many_tasks = n.many_tasks;
    c.first_row = first_row_max_bwd;
    case_done(sweep, &c);
}

void kr_cases_max_bwd(kr_sweep *sweep)
{
    for (int i = 0; i < NCUBES; i++) {
        if (cubes[i].nr == 0) continue;
        max_bwd_case(sweep, cubes[i], false);
        if (!cubes[i].many_tasks) max_bwd_case(sweep, cubes[i], true);
    }
}

static void first_row_argmax(void *args)
{
    kr_argmax_args *a = args;
    if (a->no > 0) a->no = 1;
}

static void argmax_case(kr_sweep *sweep, cube n, bool special)
{
    kr_argmax_args a = { .no = n.no, .nr = n.nr, .ni = n.ni };
    kr_case c;
    case_begin(&c, &a, sizeof a, "x [%lld, %lld, %lld]%s", (long long)n.no, (long long)n.nr, (long long)n.ni,
               special ? ", special values" : "");
    double *x = case_input(&c, FIELD(kr_argmax_args, x), KR_SHAPE(n.no, n.nr, n.ni), -1, 1);
    for (int64_t i = 0; i < n.no * n.nr * n.ni; i++) x[i] = kr_to_float(rint(x[i] * 4) / 4); /* ties */
    if (special) put_specials(x, n.no * n.nr * n.ni);
    case_raw(&c, FIELD(kr_argmax_args, y), KR_DTYPE_I64, n.no * n.ni, true);
    c.many_tasks = n.many_tasks;
    c.first_row = first_row_argmax;
    case_done(sweep, &c);
}

void kr_cases_argmax(kr_sweep *sweep)
{
    for (int i = 0; i < NCUBES; i++) {
        if (cubes[i].nr == 0) continue;
        argmax_case(sweep, cubes[i], false);
        if (!cubes[i].many_tasks) argmax_case(sweep, cubes[i], true);
    }
}

/* ---- prefix sums ---- */

static void first_row_cumsum(void *args)
{
    kr_cumsum_args *a = args;
    if (a->no > 0) a->no = 1;
}

static void cumsum_case(kr_sweep *sweep, cube n, bool reverse, bool special)
{
    kr_cumsum_args a = { .no = n.no, .nr = n.nr, .ni = n.ni, .reverse = reverse };
    kr_case c;
    case_begin(&c, &a, sizeof a, "x [%lld, %lld, %lld]%s%s", (long long)n.no, (long long)n.nr, (long long)n.ni,
               reverse ? " reversed" : "", special ? ", special values" : "");
    double *x = case_input(&c, FIELD(kr_cumsum_args, x), KR_SHAPE(n.no, n.nr, n.ni), -1, 1);
    for (int64_t i = 0; special && i < n.no * n.nr * n.ni; i += 5) x[i] = i % 2 ? NAN : i % 3 ? INFINITY : -INFINITY;
    case_output(&c, FIELD(kr_cumsum_args, y), KR_SHAPE(n.no, n.nr, n.ni));
    c.terms = n.nr + 1;
    c.by_magnitudes = true;
    c.many_tasks = n.many_tasks;
    c.first_row = first_row_cumsum;
    case_done(sweep, &c);
}

void kr_cases_cumsum(kr_sweep *sweep)
{
    for (int i = 0; i < NCUBES; i++)
        for (int reverse = 0; reverse < 2; reverse++) cumsum_case(sweep, cubes[i], reverse, false);
    cumsum_case(sweep, (cube){ 9, 7, 1, false }, false, true);
    cumsum_case(sweep, (cube){ 2, 4, 19, false }, true, true);
}

/* ---- segment sums ---- */

static void first_row_segsum(void *args)
{
    kr_segsum_args *a = args;
    if (a->no > 0) a->no = 1;
}

typedef struct square {
    int64_t no, nl;
    bool many_tasks;
} square;

static const square squares[] = { { 0, 5, false },  { 3, 0, false },  { 1, 1, false },   { 2, 2, false },
                                  { 3, 7, false },  { 2, 8, false },  { 1, 9, false },   { 4, 15, false },
                                  { 2, 16, false }, { 3, 17, false }, { 1, 31, false },  { 2, 33, false },
                                  { 40, 64, true }, { 3, 67, false }, { 2, 129, false }, { 5, 130, true },
                                  { 300, 17, true } };

void kr_cases_segsum(kr_sweep *sweep)
{
    for (size_t i = 0; i < sizeof squares / sizeof *squares; i++) {
        const int64_t no = squares[i].no, nl = squares[i].nl;
        kr_segsum_args a = { .no = no, .nl = nl };
        kr_case c;
        case_begin(&c, &a, sizeof a, "x [%lld, %lld]", (long long)no, (long long)nl);
        case_input(&c, FIELD(kr_segsum_args, x), KR_SHAPE(no, nl), -1, 1);
        case_output(&c, FIELD(kr_segsum_args, y), KR_SHAPE(no, nl, nl));
        c.terms = nl + 1;
        c.by_magnitudes = true;
        c.many_tasks = squares[i].many_tasks;
        c.first_row = first_row_segsum;
        case_done(sweep, &c);
    }
}

/* Above the diagonal is NaN: it is not read. */
void kr_cases_segsum_bwd(kr_sweep *sweep)
{
    for (size_t i = 0; i < sizeof squares / sizeof *squares; i++) {
        const int64_t no = squares[i].no, nl = squares[i].nl;
        kr_segsum_args a = { .no = no, .nl = nl };
        kr_case c;
        case_begin(&c, &a, sizeof a, "x [%lld, %lld, %lld]", (long long)no, (long long)nl, (long long)nl);
        double *x = case_input(&c, FIELD(kr_segsum_args, x), KR_SHAPE(no, nl, nl), -1, 1);
        for (int64_t at = 0; at < no * nl * nl; at++)
            if (at % nl > at / nl % nl) x[at] = NAN;
        case_output(&c, FIELD(kr_segsum_args, y), KR_SHAPE(no, nl));
        c.terms = nl * nl + 1;
        c.by_magnitudes = true;
        c.many_tasks = squares[i].many_tasks;
        c.first_row = first_row_segsum;
        case_done(sweep, &c);
    }
}
