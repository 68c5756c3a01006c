/* cases_compare.c - cases of the comparisons, of every type. Outputs are compared by bytes. */
#include "tests/kernels/conformance.h"

kr_cases_fn kr_cases_compare;

static const kr_dtype dtypes[] = { KR_DTYPE_F32, KR_DTYPE_F64, KR_DTYPE_I32, KR_DTYPE_I64 };
static const int outcomes[] = {
#define KR_COMPARISON(name, outcomes) outcomes,
#include "kernels/compare.def"
#undef KR_COMPARISON
};
enum { NOUTCOMES = (int)(sizeof outcomes / sizeof *outcomes) };

static void first_row(void *args)
{
    kr_walk *walk = &((kr_compare_args *)args)->walk;
    if (kr_walk_count(walk) > 0) walk->dims[0] = 1;
}

/* Few values, so that many pairs are equal; integers that differ in their upper or lower half alone. */
static void put_value(void *x, kr_dtype dtype, int64_t i, bool special)
{
    static const int64_t whole[] = { 0, 1, -1, INT64_C(1) << 32, (INT64_C(1) << 32) + 1, INT64_MIN, INT64_MAX };
    const int64_t n = kr_test_below(5) - 2;
    const double real = special ? kr_specials[i % kr_nspecials] : (double)n / 2;
    if (dtype == KR_DTYPE_F32) ((float *)x)[i] = (float)real;
    else if (dtype == KR_DTYPE_F64) ((double *)x)[i] = real;
    else if (dtype == KR_DTYPE_I32) ((int32_t *)x)[i] = special ? (i % 2 ? INT32_MIN : INT32_MAX) : (int32_t)n;
    else ((int64_t *)x)[i] = special ? whole[i % 7] : n;
}

static void compare_case(kr_sweep *sweep, kr_dtype dtype, int wanted, kr_shape shape, const kr_case_layout layout[3],
                         bool special)
{
    kr_compare_args a = { .dtype = dtype, .wanted = wanted };
    kr_walk_shape(&a.walk, shape);
    kr_extent at[3];
    for (int o = 0; o < 3; o++) at[o] = kr_walk_lay_out(&a.walk, o, layout[o]);
    kr_case c;
    case_begin(&c, &a, sizeof a, "%s, outcomes %d, rank %d of %lld, y %s, a %s, b %s%s", kr_dtype_name(dtype), wanted,
               shape.rank, (long long)kr_walk_count(&a.walk), kr_case_layout_name(layout[0]),
               kr_case_layout_name(layout[1]), kr_case_layout_name(layout[2]), special ? ", special" : "");
    void *l = case_raw(&c, FIELD(kr_compare_args, a), dtype, at[1].count, false);
    c.operands[0].first = at[1].first;
    for (int64_t i = 0; i < at[1].count; i++) put_value(l, dtype, i, special);
    void *r = case_raw(&c, FIELD(kr_compare_args, b), dtype, at[2].count, false);
    c.operands[1].first = at[2].first;
    for (int64_t i = 0; i < at[2].count; i++) put_value(r, dtype, i, special);
    case_raw(&c, FIELD(kr_compare_args, y), KR_DTYPE_I32, at[0].count, true);
    c.operands[2].first = at[0].first;
    c.many_tasks = kr_walk_shape_is_large(shape);
    if (shape.rank > 0) c.first_row = first_row;
    case_done(sweep, &c);
}

void kr_cases_compare(kr_sweep *sweep)
{
    static const kr_case_layout pairs[3] = { KR_PLAIN, KR_REPEATED, KR_REPEATED_ROWS };
    for (int k = 0; k < 4 * NOUTCOMES; k++) {
        const kr_dtype dtype = dtypes[k / NOUTCOMES];
        const int wanted = outcomes[k % NOUTCOMES];
        for (int n = 0; kr_walk_shapes(n).rank >= 0; n++) {
            const kr_case_layout layout[3] = { kr_pick_layout(true), kr_pick_layout(false), kr_pick_layout(false) };
            if (n % 2 == k % 2 || kr_walk_shape_is_large(kr_walk_shapes(n)))
                compare_case(sweep, dtype, wanted, kr_walk_shapes(n), layout, false);
        }
        compare_case(sweep, dtype, wanted, KR_SHAPE(kr_nspecials, kr_nspecials), pairs, true);
    }
}
