/* cases_binary.c - cases of the elementwise functions of two operands, of gradients of some of them, and of where. */
#include "tests/kernels/conformance.h"

#define KR_BINARY(name) kr_cases_fn kr_cases_##name;
#include "kernels/binary.def"
#undef KR_BINARY
kr_cases_fn kr_cases_maximum_bwd, kr_cases_minimum_bwd, kr_cases_pow_bwd, kr_cases_where;

/* Ranges of the operands. */
typedef struct binary_row {
    double a_low, a_high, b_low, b_high;
} binary_row;

static const binary_row row_any = { -2, 2, -2, 2 };
static const binary_row row_powers = { 0.02, 8, -3, 3 };
#define row_add row_any
#define row_sub row_any
#define row_mul row_any
#define row_div row_any
#define row_maximum row_any
#define row_minimum row_any
#define row_pow row_powers

static void cut(kr_walk *walk)
{
    if (kr_walk_count(walk) > 0) walk->dims[0] = 1;
}

static void first_row(void *args)
{
    cut(&((kr_binary_args *)args)->walk);
}

static void first_row_bwd(void *args)
{
    cut(&((kr_binary_bwd_args *)args)->walk);
}

static void first_row_where(void *args)
{
    cut(&((kr_where_args *)args)->walk);
}

/* Some elements of either equal, for the ties of maximum. */
static void tie(double *a, int64_t na, const double *b, int64_t nb)
{
    for (int64_t i = 0; i < na && i < nb; i += 3) a[i] = b[i];
}

static void binary_case(kr_sweep *sweep, const binary_row *row, kr_shape shape, const kr_case_layout layout[3])
{
    kr_binary_args a = { 0 };
    kr_walk_shape(&a.walk, shape);
    kr_extent at[3];
    for (int o = 0; o < 3; o++) at[o] = kr_walk_lay_out(&a.walk, o, layout[o]);
    kr_case c;
    case_begin(&c, &a, sizeof a, "rank %d of %lld, last %lld, y %s, a %s, b %s", shape.rank,
               (long long)kr_walk_count(&a.walk), shape.rank ? (long long)shape.dims[shape.rank - 1] : 1LL,
               kr_case_layout_name(layout[0]), kr_case_layout_name(layout[1]), kr_case_layout_name(layout[2]));
    double *l = case_walk_input(&c, FIELD(kr_binary_args, a), at[1], row->a_low, row->a_high);
    double *r = case_walk_input(&c, FIELD(kr_binary_args, b), at[2], row->b_low, row->b_high);
    if (row == &row_any) tie(l, at[1].count, r, at[2].count);
    case_walk_output(&c, FIELD(kr_binary_args, y), at[0]);
    c.many_tasks = kr_walk_shape_is_large(shape);
    if (shape.rank > 0) c.first_row = first_row;
    case_done(sweep, &c);
}

/* Every special value with every other. */
static void special_pairs(kr_sweep *sweep)
{
    kr_binary_args a = { 0 };
    kr_walk_shape(&a.walk, KR_SHAPE(kr_nspecials, kr_nspecials));
    const kr_extent y = kr_walk_lay_out(&a.walk, 0, KR_PLAIN), l = kr_walk_lay_out(&a.walk, 1, KR_REPEATED),
                    r = kr_walk_lay_out(&a.walk, 2, KR_REPEATED_ROWS);
    kr_case c;
    case_begin(&c, &a, sizeof a, "all pairs of %d special values", kr_nspecials);
    double *left = case_walk_input(&c, FIELD(kr_binary_args, a), l, 0, 1);
    double *right = case_walk_input(&c, FIELD(kr_binary_args, b), r, 0, 1);
    for (int i = 0; i < kr_nspecials; i++) left[i] = right[i] = kr_to_float(kr_specials[i]);
    case_walk_output(&c, FIELD(kr_binary_args, y), y);
    case_done(sweep, &c);
}

/* y is a, or b. */
static void in_place_case(kr_sweep *sweep, const binary_row *row, kr_case_layout layout, bool onto_b)
{
    kr_binary_args a = { 0 };
    kr_walk_shape(&a.walk, KR_SHAPE(9, 37));
    const kr_extent at = kr_walk_lay_out(&a.walk, 0, layout);
    kr_walk_lay_out(&a.walk, 1, layout);
    kr_walk_lay_out(&a.walk, 2, layout);
    kr_case c;
    case_begin(&c, &a, sizeof a, "[9, 37] onto %s, %s", onto_b ? "b" : "a", kr_case_layout_name(layout));
    case_walk_input(&c, FIELD(kr_binary_args, a), at, row->a_low, row->a_high);
    case_walk_input(&c, FIELD(kr_binary_args, b), at, row->b_low, row->b_high);
    kr_case_operand *o = &c.operands[onto_b];
    o->is_output = true;
    o->also = offsetof(kr_binary_args, y);
    case_done(sweep, &c);
}

static int times_for(kr_shape shape)
{
    return kr_walk_shape_is_large(shape) ? 1 : kr_test_quick() ? 2 : 8;
}

static void binary_cases(kr_sweep *sweep, const binary_row *row)
{
    static const kr_case_layout plain[3] = { KR_PLAIN, KR_PLAIN, KR_PLAIN };
    for (int n = 0; kr_walk_shapes(n).rank >= 0; n++) {
        const kr_shape shape = kr_walk_shapes(n);
        for (int i = 0; i < times_for(shape); i++) {
            const kr_case_layout layout[3] = { kr_pick_layout(true), kr_pick_layout(false), kr_pick_layout(false) };
            binary_case(sweep, row, shape, i == 0 && n % 2 == 0 ? plain : layout);
        }
    }
    special_pairs(sweep);
    for (int layout = 0; layout < KR_OUTPUT_LAYOUTS; layout++) {
        in_place_case(sweep, row, (kr_case_layout)layout, false);
        in_place_case(sweep, row, (kr_case_layout)layout, true);
    }
}

#define KR_BINARY(name)                                                                                                \
    void kr_cases_##name(kr_sweep *sweep)                                                                              \
    {                                                                                                                  \
        binary_cases(sweep, &row_##name);                                                                              \
    }
#include "kernels/binary.def"
#undef KR_BINARY

static void bwd_case(kr_sweep *sweep, const binary_row *row, kr_shape shape, const kr_case_layout layout[4], bool of_b,
                     bool special)
{
    kr_binary_bwd_args a = { .of_b = of_b };
    kr_walk_shape(&a.walk, shape);
    kr_extent at[4];
    for (int o = 0; o < 4; o++) at[o] = kr_walk_lay_out(&a.walk, o, layout[o]);
    kr_case c;
    case_begin(&c, &a, sizeof a, "rank %d of %lld, y %s, a %s, b %s, g %s, of %s%s", shape.rank,
               (long long)kr_walk_count(&a.walk), kr_case_layout_name(layout[0]), kr_case_layout_name(layout[1]),
               kr_case_layout_name(layout[2]), kr_case_layout_name(layout[3]), of_b ? "b" : "a",
               special ? ", special" : "");
    double *l = case_walk_input(&c, FIELD(kr_binary_bwd_args, a), at[1], row->a_low, row->a_high);
    double *r = case_walk_input(&c, FIELD(kr_binary_bwd_args, b), at[2], row->b_low, row->b_high);
    if (row == &row_any) tie(l, at[1].count, r, at[2].count);
    double *g = case_walk_input(&c, FIELD(kr_binary_bwd_args, g), at[3], -2, 2);
    if (special) {
        for (int64_t i = 0; i < at[1].count; i++) l[i] = kr_to_float(kr_specials[i % kr_nspecials]);
        for (int64_t i = 0; i < at[2].count; i++) r[i] = kr_to_float(kr_specials[i % kr_nspecials]);
        /* a factor of 0 or infinity makes the product with such a g undefined */
        for (int64_t i = 0; row == &row_any && i < at[3].count; i += 7) g[i] = i % 2 ? NAN : INFINITY;
    }
    case_walk_output(&c, FIELD(kr_binary_bwd_args, y), at[0]);
    c.many_tasks = kr_walk_shape_is_large(shape);
    if (shape.rank > 0) c.first_row = first_row_bwd;
    case_done(sweep, &c);
}

static void bwd_cases(kr_sweep *sweep, const binary_row *row)
{
    static const kr_case_layout pairs[4] = { KR_PLAIN, KR_REPEATED, KR_REPEATED_ROWS, KR_PLAIN };
    for (int n = 0; kr_walk_shapes(n).rank >= 0; n++) {
        for (int i = 0; i < times_for(kr_walk_shapes(n)); i++) {
            const kr_case_layout layout[4] = { kr_pick_layout(true), kr_pick_layout(false), kr_pick_layout(false),
                                               kr_pick_layout(false) };
            bwd_case(sweep, row, kr_walk_shapes(n), layout, (n + i) % 2, false);
        }
    }
    for (int of_b = 0; of_b < 2; of_b++) bwd_case(sweep, row, KR_SHAPE(kr_nspecials, kr_nspecials), pairs, of_b, true);
}

#define BACKWARD(name)                                                                                                 \
    void kr_cases_##name##_bwd(kr_sweep *sweep)                                                                        \
    {                                                                                                                  \
        bwd_cases(sweep, &row_##name);                                                                                 \
    }
BACKWARD(maximum)
BACKWARD(minimum)
BACKWARD(pow)

/* without: 0 both operands, 1 the scalar for a, 2 for b, 3 for both. */
static void where_case(kr_sweep *sweep, kr_shape shape, const kr_case_layout layout[4], int without, bool special)
{
    kr_where_args a = { .scalar = special ? -INFINITY : 0.375 };
    kr_walk_shape(&a.walk, shape);
    kr_extent at[4];
    for (int o = 0; o < 4; o++) at[o] = kr_walk_lay_out(&a.walk, o, layout[o]);
    kr_case c;
    case_begin(&c, &a, sizeof a, "rank %d of %lld, y %s, mask %s, a %s, b %s, without %d%s", shape.rank,
               (long long)kr_walk_count(&a.walk), kr_case_layout_name(layout[0]), kr_case_layout_name(layout[1]),
               kr_case_layout_name(layout[2]), kr_case_layout_name(layout[3]), without, special ? ", special" : "");
    int32_t *mask = case_raw(&c, FIELD(kr_where_args, mask), KR_DTYPE_I32, at[1].count, false);
    c.operands[0].first = at[1].first;
    for (int64_t i = 0; i < at[1].count; i++)
        mask[i] = i % 5 ? (int32_t)(kr_test_below(3) - 1) : i % 2 ? INT32_MIN : 0x100;
    double *l = without & 1 ? NULL : case_walk_input(&c, FIELD(kr_where_args, a), at[2], -2, 2);
    double *r = without & 2 ? NULL : case_walk_input(&c, FIELD(kr_where_args, b), at[3], -2, 2);
    for (int64_t i = 0; special && l && i < at[2].count; i++) l[i] = kr_to_float(kr_specials[i % kr_nspecials]);
    for (int64_t i = 0; special && r && i < at[3].count; i++) r[i] = kr_to_float(kr_specials[i % kr_nspecials]);
    case_walk_output(&c, FIELD(kr_where_args, y), at[0]);
    c.many_tasks = kr_walk_shape_is_large(shape);
    if (shape.rank > 0) c.first_row = first_row_where;
    case_done(sweep, &c);
}

void kr_cases_where(kr_sweep *sweep)
{
    static const kr_case_layout plain[4] = { KR_PLAIN, KR_PLAIN, KR_PLAIN, KR_PLAIN };
    for (int n = 0; kr_walk_shapes(n).rank >= 0; n++) {
        for (int i = 0; i < times_for(kr_walk_shapes(n)); i++) {
            const kr_case_layout layout[4] = { kr_pick_layout(true), kr_pick_layout(false), kr_pick_layout(false),
                                               kr_pick_layout(false) };
            where_case(sweep, kr_walk_shapes(n), i == 0 && n % 2 ? plain : layout, (n + i) % 4, false);
        }
    }
    for (int without = 0; without < 4; without++) where_case(sweep, KR_SHAPE(3 * kr_nspecials), plain, without, true);
}
