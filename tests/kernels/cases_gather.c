/* cases_gather.c - cases of elements and rows selected by index, and of their gradients. */
#include "tests/kernels/conformance.h"

kr_cases_fn kr_cases_gather, kr_cases_gather_bwd, kr_cases_embedding, kr_cases_embedding_bwd;

/* `count` ids below nr; few different ones, so that they repeat, and both ends. */
static void add_ids(kr_case *c, size_t field, const char *name, kr_dtype dtype, int64_t count, int64_t nr)
{
    void *id = case_raw(c, field, name, dtype, count, false);
    for (int64_t i = 0; i < count; i++) {
        int64_t value = i % 7 == 0 ? 0 : i % 11 == 0 ? nr - 1 : kr_test_below(nr);
        if (dtype == KR_DTYPE_I64) ((int64_t *)id)[i] = value;
        else ((int32_t *)id)[i] = (int32_t)value;
    }
}

static void first_row_gather(void *args)
{
    kr_gather_args *a = args;
    if (a->no > 0) a->no = 1;
}

typedef struct box {
    int64_t no, nr, ni, nj;
    bool many_tasks;
} box;

static const box boxes[] = {
    { 1, 1, 1, 1, false },   { 0, 3, 5, 2, false },    { 2, 3, 0, 2, false },  { 2, 3, 5, 0, false },
    { 3, 5, 1, 7, false },   { 2, 7, 1, 17, false },   { 3, 4, 8, 3, false },  { 2, 5, 9, 16, false },
    { 1, 3, 15, 4, false },  { 4, 2, 16, 5, false },   { 2, 9, 17, 3, false }, { 5, 6, 33, 2, false },
    { 3, 31, 67, 90, true }, { 1, 5, 1, 33000, true },
};

static void gather_case(kr_sweep *sweep, box n, kr_dtype dtype, bool backward)
{
    kr_gather_args a = { .no = n.no, .nr = n.nr, .ni = n.ni, .nj = n.nj, .id_dtype = dtype };
    const kr_shape rows = KR_SHAPE(n.no, n.nr, n.ni), chosen = KR_SHAPE(n.no, n.nj, n.ni);
    kr_case c;
    case_begin(&c, &a, sizeof a, "o %lld r %lld i %lld j %lld, ids %s", (long long)n.no, (long long)n.nr,
               (long long)n.ni, (long long)n.nj, kr_dtype_name(dtype));
    double *x = case_input(&c, FIELD(kr_gather_args, x), backward ? chosen : rows, -1, 1);
    if (!backward && n.no * n.nr * n.ni > 3) x[0] = NAN, x[2] = -INFINITY;
    add_ids(&c, FIELD(kr_gather_args, id), dtype, n.no * n.nj * n.ni, n.nr);
    if (backward) case_in_out(&c, FIELD(kr_gather_args, y), rows, -1, 1);
    else case_output(&c, FIELD(kr_gather_args, y), chosen);
    c.terms = n.nj + 1;
    c.by_magnitudes = backward;
    c.many_tasks = n.many_tasks;
    c.first_row = first_row_gather;
    case_done(sweep, &c);
}

void kr_cases_gather(kr_sweep *sweep)
{
    for (size_t i = 0; i < 2 * sizeof boxes / sizeof *boxes; i++)
        gather_case(sweep, boxes[i / 2], i % 2 ? KR_DTYPE_I64 : KR_DTYPE_I32, false);
}

void kr_cases_gather_bwd(kr_sweep *sweep)
{
    for (size_t i = 0; i < 2 * sizeof boxes / sizeof *boxes; i++)
        gather_case(sweep, boxes[i / 2], i % 2 ? KR_DTYPE_I64 : KR_DTYPE_I32, true);
}

static void first_row_embedding(void *args)
{
    kr_embedding_args *a = args;
    if (a->no > 0) a->no = 1;
}

typedef struct list {
    int64_t no, nr, ni;
    bool many_tasks;
} list;

/* The gradient is split by 64 columns. */
static const list lists[] = {
    { 0, 3, 5, false },    { 3, 2, 0, false },    { 1, 1, 1, false },    { 5, 3, 1, false },    { 4, 5, 7, false },
    { 3, 2, 8, false },    { 6, 4, 9, false },    { 7, 3, 15, false },   { 2, 5, 16, false },   { 5, 6, 17, false },
    { 9, 4, 31, false },   { 3, 3, 33, false },   { 8, 5, 63, false },   { 4, 7, 64, false },   { 5, 3, 65, false },
    { 11, 6, 129, false }, { 700, 50, 67, true }, { 300, 9, 257, true }, { 2, 3, 20011, true },
};

/* Rows of 16-bit floats are copied as bits. */
static void embedding_halves(kr_sweep *sweep, list n, kr_dtype dtype, kr_dtype halves)
{
    kr_embedding_args a = { .no = n.no, .nr = n.nr, .ni = n.ni, .id_dtype = dtype, .x.row = n.ni, .y.row = n.ni };
    kr_case c;
    case_begin(&c, &a, sizeof a, "o %lld r %lld i %lld, ids %s, %s", (long long)n.no, (long long)n.nr, (long long)n.ni,
               kr_dtype_name(dtype), kr_dtype_name(halves));
    case_walk_halves(&c, OPERAND(kr_embedding_args, x), (kr_extent){ n.nr * n.ni, 0 }, halves);
    add_ids(&c, FIELD(kr_embedding_args, id), dtype, n.no, n.nr);
    case_raw(&c, OPERAND(kr_embedding_args, y), halves, n.no * n.ni, true);
    c.many_tasks = n.many_tasks;
    c.first_row = first_row_embedding;
    case_done(sweep, &c);
}

static void embedding_case(kr_sweep *sweep, list n, kr_dtype dtype, bool backward)
{
    kr_embedding_args a = { .no = n.no, .nr = n.nr, .ni = n.ni, .id_dtype = dtype, .x.row = n.ni, .y.row = n.ni };
    const kr_shape rows = KR_SHAPE(n.nr, n.ni), chosen = KR_SHAPE(n.no, n.ni);
    kr_case c;
    case_begin(&c, &a, sizeof a, "o %lld r %lld i %lld, ids %s", (long long)n.no, (long long)n.nr, (long long)n.ni,
               kr_dtype_name(dtype));
    double *x = case_input(&c, OPERAND(kr_embedding_args, x), backward ? chosen : rows, -1, 1);
    if (!backward && n.nr * n.ni > 3) x[0] = NAN, x[2] = -INFINITY;
    add_ids(&c, FIELD(kr_embedding_args, id), dtype, n.no, n.nr);
    if (backward) case_in_out(&c, OPERAND(kr_embedding_args, y), rows, -1, 1);
    else case_output(&c, OPERAND(kr_embedding_args, y), chosen);
    c.terms = n.no + 1;
    c.by_magnitudes = backward;
    c.many_tasks = n.many_tasks;
    if (!backward) c.first_row = first_row_embedding; /* backward, rows of one id are added */
    case_done(sweep, &c);
}

void kr_cases_embedding(kr_sweep *sweep)
{
    for (size_t i = 0; i < 2 * sizeof lists / sizeof *lists; i++) {
        embedding_case(sweep, lists[i / 2], i % 2 ? KR_DTYPE_I64 : KR_DTYPE_I32, false);
        embedding_halves(sweep, lists[i / 2], i % 2 ? KR_DTYPE_I64 : KR_DTYPE_I32,
                         i % 4 < 2 ? KR_DTYPE_BF16 : KR_DTYPE_F16);
    }
}

void kr_cases_embedding_bwd(kr_sweep *sweep)
{
    for (size_t i = 0; i < 2 * sizeof lists / sizeof *lists; i++)
        embedding_case(sweep, lists[i / 2], i % 2 ? KR_DTYPE_I64 : KR_DTYPE_I32, true);
}
