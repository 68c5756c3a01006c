/* cases_unary.c - cases of the elementwise functions of one operand and of their gradients.
 *
 * A row of unary.def without a `row_NAME` here does not compile.
 */
#include "kernels/select.h"
#include "tests/kernels/conformance.h"

typedef struct unary_row {
    double low, high; /* of random inputs */
    double alpha, beta;
    double (*size)(double x, double alpha, double beta); /* magnitude of the terms of y, if that is not |y| */
    double (*slope_size)(double x);                      /* the same for f' */
    bool chooses; /* the gradient is g or 0: whether a NaN in g propagates where it is 0 is unspecified */
} unary_row;

static double scale_size(double x, double alpha, double beta)
{
    return fabs(alpha * x) + fabs(beta);
}

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

/* s (1 + |x|); and where e^x is denormal it has lost digits before x multiplies it */
static double silu_slope_size(double x)
{
    return isfinite(x) ? sigmoid(x) * (1 + fabs(x)) + 0x1p-120 : 0;
}

/* Both terms of gelu', by erf or by tanh; and denormals as for silu. */
static double gelu_slope_size(double x)
{
    return isfinite(x) ? 0.5 * erfc(-x * 0.7071067811865476) + fabs(x) * exp(-0.45 * x * x) + 0x1p-120 : 0;
}

static double one(double x)
{
    (void)x;
    return 1;
}

static const unary_row row_scale = { -3, 3, 1.75, -0.5, scale_size, NULL, false };
static const unary_row row_exp = { -12, 12, 0, 0, NULL, NULL, false };
static const unary_row row_log = { 0.01, 30, 0, 0, NULL, NULL, false };
static const unary_row row_sqrt = { 0, 30, 0, 0, NULL, NULL, false };
static const unary_row row_rsqrt = { 0.01, 30, 0, 0, NULL, NULL, false };
static const unary_row row_sin = { -20, 20, 0, 0, NULL, NULL, false };
static const unary_row row_cos = { -20, 20, 0, 0, NULL, NULL, false };
static const unary_row row_tanh = { -5, 5, 0, 0, NULL, one, false };
static const unary_row row_sigmoid = { -12, 12, 0, 0, NULL, sigmoid, false };
static const unary_row row_silu = { -12, 12, 0, 0, NULL, silu_slope_size, false };
static const unary_row row_softplus = { -25, 25, 0, 0, NULL, NULL, false };
static const unary_row row_log_sigmoid = { -25, 25, 0, 0, NULL, NULL, false };
static const unary_row row_clamp = { -2, 2, -0.75, 0.5, NULL, NULL, true };
static const unary_row row_abs = { -2, 2, 0, 0, NULL, NULL, true };
static const unary_row row_relu = { -2, 2, 0, 0, NULL, NULL, true };
static const unary_row row_erf = { -4.5, 4.5, 0, 0, NULL, NULL, false };
static const unary_row row_gelu = { -15, 12, 0, 0, NULL, gelu_slope_size, false };
static const unary_row row_gelu_tanh = { -12, 12, 0, 0, NULL, gelu_slope_size, false };
static const unary_row row_pow_scalar = { 0.01, 30, -1.75, 0, NULL, NULL, false };

typedef void unary_fn(const kr_unary_args *);

static void first_row(void *args)
{
    kr_walk *walk = &((kr_unary_args *)args)->walk;
    if (kr_walk_count(walk) > 0) walk->dims[0] = 1;
}

static void first_row_bwd(void *args)
{
    kr_walk *walk = &((kr_unary_bwd_args *)args)->walk;
    if (kr_walk_count(walk) > 0) walk->dims[0] = 1;
}

static const char *text_of(kr_shape shape, char *text, size_t bytes)
{
    size_t at = (size_t)snprintf(text, bytes, "[");
    for (int axis = 0; axis < shape.rank; axis++)
        at += (size_t)snprintf(text + at, bytes - at, "%s%lld", axis ? ", " : "", (long long)shape.dims[axis]);
    snprintf(text + at, bytes - at, "]");
    return text;
}

static void put_specials(double *value, int64_t count)
{
    for (int64_t i = 0; i < count; i++) value[i] = kr_to_float(kr_specials[i % kr_nspecials]);
}

static void forward_scales(kr_case *c, const unary_row *row, const kr_walk *walk, kr_extent y, kr_extent x,
                           const double *value)
{
    if (!row->size) return;
    double *scale = case_scale(c);
    for (int64_t i = 0; i < kr_walk_count(walk); i++)
        scale[y.first + kr_walk_at(walk, 0, i)] =
            row->size(value[x.first + kr_walk_at(walk, 1, i)], row->alpha, row->beta);
}

static void forward_case(kr_sweep *sweep, const unary_row *row, kr_shape shape, kr_case_layout y_layout,
                         kr_case_layout x_layout, bool special)
{
    kr_unary_args a = { .alpha = row->alpha, .beta = row->beta };
    kr_walk_shape(&a.walk, shape);
    const kr_extent y = kr_walk_lay_out(&a.walk, 0, y_layout), x = kr_walk_lay_out(&a.walk, 1, x_layout);
    char text[80];
    kr_case c;
    case_begin(&c, &a, sizeof a, "%s, y %s, x %s%s", text_of(shape, text, sizeof text), kr_case_layout_name(y_layout),
               kr_case_layout_name(x_layout), special ? ", special values" : "");
    double *value = case_walk_input(&c, FIELD(kr_unary_args, x), x, row->low, row->high);
    if (special) put_specials(value, x.count);
    if (y.count > 2 && !special) value[x.count / 2] = row->alpha;
    case_walk_output(&c, FIELD(kr_unary_args, y), y);
    forward_scales(&c, row, &a.walk, y, x, value);
    c.many_tasks = kr_walk_shape_is_large(shape);
    if (shape.rank > 0) c.first_row = first_row;
    case_done(sweep, &c);
}

/* y is x. */
static void in_place_case(kr_sweep *sweep, const unary_row *row, kr_shape shape, kr_case_layout layout)
{
    kr_unary_args a = { .alpha = row->alpha, .beta = row->beta };
    kr_walk_shape(&a.walk, shape);
    const kr_extent both = kr_walk_lay_out(&a.walk, 0, layout);
    kr_walk_lay_out(&a.walk, 1, layout);
    kr_case c;
    case_begin(&c, &a, sizeof a, "[%lld, %lld] in place, %s", (long long)shape.dims[0], (long long)shape.dims[1],
               kr_case_layout_name(layout));
    double *value = case_walk_input(&c, FIELD(kr_unary_args, x), both, row->low, row->high);
    c.operands[0].is_output = true;
    c.operands[0].also = offsetof(kr_unary_args, y);
    forward_scales(&c, row, &a.walk, both, both, value);
    case_done(sweep, &c);
}

static void unary_cases(kr_sweep *sweep, const unary_row *row)
{
    for (int n = 0; kr_walk_shapes(n).rank >= 0; n++) {
        const kr_shape shape = kr_walk_shapes(n);
        const int times = kr_walk_shape_is_large(shape) ? 1 : kr_test_quick() ? 2 : 6;
        for (int i = 0; i < times; i++) {
            const bool plain = i == 0 && n % 2 == 0;
            forward_case(sweep, row, shape, plain ? KR_PLAIN : kr_pick_layout(true),
                         plain ? KR_PLAIN : kr_pick_layout(false), false);
        }
    }
    for (int layout = 0; layout < KR_OUTPUT_LAYOUTS; layout++)
        in_place_case(sweep, row, KR_SHAPE(11, 19), (kr_case_layout)layout);
    forward_case(sweep, row, KR_SHAPE(kr_nspecials), KR_PLAIN, KR_PLAIN, true);
    forward_case(sweep, row, KR_SHAPE(kr_nspecials), KR_GAPPED, KR_BACKWARDS, true);
}

/* f of all of x, in f64, rounded to float. */
static void values_of(unary_fn *f, const unary_row *row, const double *x, double *y, int64_t n)
{
    kr_unary_args a = { .alpha = row->alpha, .beta = row->beta, .x = x, .y = y };
    a.walk.rank = 1;
    a.walk.dims[0] = n;
    a.walk.strides[0][0] = a.walk.strides[1][0] = 1;
    f(&a);
    for (int64_t i = 0; i < n; i++) y[i] = kr_to_float(y[i]);
}

static void backward_case(kr_sweep *sweep, const unary_row *row, unary_fn *f, kr_shape shape,
                          const kr_case_layout layout[4], bool special)
{
    kr_unary_bwd_args a = { .alpha = row->alpha, .beta = row->beta };
    kr_walk_shape(&a.walk, shape);
    kr_extent at[4];
    for (int o = 0; o < 4; o++) at[o] = kr_walk_lay_out(&a.walk, o, layout[o]);
    char text[80];
    kr_case c;
    case_begin(&c, &a, sizeof a, "%s, g_x %s, x %s, y %s, g_y %s%s", text_of(shape, text, sizeof text),
               kr_case_layout_name(layout[0]), kr_case_layout_name(layout[1]), kr_case_layout_name(layout[2]),
               kr_case_layout_name(layout[3]), special ? ", special values" : "");
    double *x = case_walk_input(&c, FIELD(kr_unary_bwd_args, x), at[1], row->low, row->high);
    if (special) put_specials(x, at[1].count);
    double *f_x = calloc((size_t)at[1].count + 1, sizeof *f_x);
    if (!f_x) exit(2);
    values_of(f, row, x, f_x, at[1].count);
    double *y = case_walk_input(&c, FIELD(kr_unary_bwd_args, y), at[2], -1, 1);
    double *g_y = case_walk_input(&c, FIELD(kr_unary_bwd_args, g_y), at[3], -2, 2);
    /* infinity times a slope that underflows in one type only proves nothing */
    for (int64_t i = 0; special && !row->chooses && i < at[3].count; i += 11) g_y[i] = i % 2 ? 0 : NAN;
    case_walk_output(&c, FIELD(kr_unary_bwd_args, g_x), at[0]);
    double *scale = row->slope_size ? case_scale(&c) : NULL;
    for (int64_t i = 0; i < kr_walk_count(&a.walk); i++) {
        const int64_t from = at[1].first + kr_walk_at(&a.walk, 1, i);
        y[at[2].first + kr_walk_at(&a.walk, 2, i)] = f_x[from];
        if (scale)
            scale[at[0].first + kr_walk_at(&a.walk, 0, i)] =
                row->slope_size(x[from]) * fabs(g_y[at[3].first + kr_walk_at(&a.walk, 3, i)]);
    }
    free(f_x);
    c.many_tasks = kr_walk_shape_is_large(shape);
    if (shape.rank > 0) c.first_row = first_row_bwd;
    case_done(sweep, &c);
}

static void unary_bwd_cases(kr_sweep *sweep, const unary_row *row, unary_fn *f)
{
    static const kr_case_layout plain[4] = { KR_PLAIN, KR_PLAIN, KR_PLAIN, KR_PLAIN };
    for (int n = 0; kr_walk_shapes(n).rank >= 0; n++) {
        const kr_shape shape = kr_walk_shapes(n);
        const int times = kr_walk_shape_is_large(shape) ? 1 : kr_test_quick() ? 2 : 6;
        for (int i = 0; i < times; i++) {
            const kr_case_layout layout[4] = { kr_pick_layout(true), kr_pick_layout(false), kr_pick_layout(true),
                                               kr_pick_layout(false) };
            backward_case(sweep, row, f, shape, i == 0 && n % 2 == 0 ? plain : layout, false);
        }
    }
    backward_case(sweep, row, f, KR_SHAPE(11 * kr_nspecials), plain, true);
}

#define KR_UNARY(name)                                                                                                 \
    kr_cases_fn kr_cases_##name, kr_cases_##name##_bwd;                                                                \
    void kr_cases_##name(kr_sweep *sweep)                                                                              \
    {                                                                                                                  \
        unary_cases(sweep, &row_##name);                                                                               \
    }                                                                                                                  \
    void kr_cases_##name##_bwd(kr_sweep *sweep)                                                                        \
    {                                                                                                                  \
        unary_bwd_cases(sweep, &row_##name, kr_kernels_nth(0)->name[KR_REAL_F64].run);                                 \
    }
#include "kernels/unary.def"
#undef KR_UNARY
