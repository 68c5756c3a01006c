/* cases_optimizer.c - cases of the optimizer kernels: AdamW, momentum, the moving average, sums of squares. */
#include "base/half.h"
#include "tests/kernels/conformance.h"

kr_cases_fn kr_cases_adamw, kr_cases_sgd, kr_cases_lerp, kr_cases_squares;

/* Vectors of 8 and 16, pieces and blocks of 4096, tasks of 16384. */
static const int64_t sizes[] = { 0,  1,  2,   7,   8,    9,    15,   16,   17,   31,    32,
                                 33, 63, 255, 257, 4095, 4096, 4097, 8191, 8209, 20011, 40009 };
enum { NSIZES = (int)(sizeof sizes / sizeof *sizes) };

static int64_t size_at(int index)
{
    return sizes[index % NSIZES];
}

/* A gradient, by `index`: of the slot's type and 16-bit, kept and cleared, unbounded and clipped. */
static double *grad_operand(kr_case *c, kr_taken_grad *grad, size_t field, int64_t n, int index)
{
    static const kr_dtype halves[] = { KR_DTYPE_F32, KR_DTYPE_F32, KR_DTYPE_BF16, KR_DTYPE_F16 };
    static const double scales[] = { 1, 0.125, 0.37 };
    const kr_dtype dtype = halves[index % 4];
    *grad = (kr_taken_grad){ .scale = scales[index % 3], .clears = index / 2 % 2 };
    grad->clip = index % 5 < 3 ? (double)INFINITY : 0.25;
    double *g = NULL;
    if (dtype != KR_DTYPE_F32) case_walk_halves(c, field, "grad.g", (kr_extent){ n, 0 }, dtype);
    else g = case_input(c, field, "grad.g", KR_SHAPE(n), -2, 2);
    c->operands[c->noperands - 1].is_output = grad->clears;
    return g;
}

static void put_specials(double *x, int64_t n)
{
    for (int64_t i = 0; x && i < n; i++) x[i] = kr_to_float(kr_specials[i % kr_nspecials]);
}

/* ---- adamw ---- */

static void adamw_first(void *args)
{
    kr_adamw_args *a = args;
    if (a->n > 5) a->n = 5;
}

/* Terms that are subtracted count as if they were added. */
static void adamw_sizes(void *args)
{
    kr_adamw_args *a = args;
    a->decay = -a->decay;
    a->rate = -a->rate;
}

/* If decay depends on the sign of m, the sign is unambiguous: m and g agree, or both are zero. */
static void agree(double *m, const double *g, int64_t n)
{
    for (int64_t i = 0; i < n; i++) m[i] = g[i] == 0 ? copysign(0, m[i]) : copysign(m[i], g[i]);
}

static void adamw_case(kr_sweep *sweep, int64_t n, int index, bool special)
{
    static const double beta2[] = { 0.999, 0.95, 0.5 }, decays[] = { 0, 1e-3, 1e-9, 0.25 };
    kr_adamw_args a = { .n = n,
                        .beta1 = index % 2 ? 0.9 : 0.5,
                        .beta2 = beta2[index % 3],
                        .eps = index % 2 ? 1e-8 : 1e-5,
                        .rate = index % 3 ? 1e-3 : 0.5,
                        .root = index % 2 ? 1 : 31.6,
                        .decay = decays[index % 4],
                        .cautious = index / 3 % 2 && index % 4 < 2 && !special };
    kr_case c;
    double *g = NULL;
    case_begin(&c, &a, sizeof a, "%lld, index %d%s%s", (long long)n, index, a.cautious ? ", cautious" : "",
               special ? ", special values" : "");
    g = grad_operand(&c, &a.grad, offsetof(kr_adamw_args, grad.g.data) | KR_IS_TYPED, n, special ? index % 2 : index);
    if (special) put_specials(g, n);
    for (int64_t i = 0; special && i < n; i++)
        if (isfinite(g[i]) && fabs(g[i]) > 0x1p63) g[i] = copysign(0x1p40, g[i]);
    double *w = case_in_out(&c, FIELD(kr_adamw_args, w), KR_SHAPE(n), -2, 2);
    double *m = case_in_out(&c, FIELD(kr_adamw_args, m), KR_SHAPE(n), -1, 1);
    case_in_out(&c, FIELD(kr_adamw_args, v), KR_SHAPE(n), 0, 1);
    for (int64_t i = 0; g && !special && i < n; i += 7) w[i] = i % 2 ? 0.0 : -0.0;
    for (int64_t i = 3; g && !special && i < n; i += 5) g[i] = i % 2 ? 0.0 : 1e-30;
    if (a.cautious) agree(m, g, n);
    c.by_magnitudes = true;
    c.for_scale = adamw_sizes;
    c.many_tasks = n > 16384;
    c.first_row = adamw_first;
    case_done(sweep, &c);
}

void kr_cases_adamw(kr_sweep *sweep)
{
    for (int index = 0; index < 5 * NSIZES; index++) adamw_case(sweep, size_at(index + index / NSIZES), index, false);
    for (int index = 0; index < 4; index++) adamw_case(sweep, 2 * kr_nspecials + index, index, true);
}

/* ---- sgd ---- */

static void sgd_first(void *args)
{
    kr_sgd_args *a = args;
    if (a->n > 5) a->n = 5;
}

static void sgd_sizes(void *args)
{
    kr_sgd_args *a = args;
    a->decay = -a->decay;
    a->rate = -a->rate;
}

static void sgd_case(kr_sweep *sweep, int64_t n, int index, bool special)
{
    const bool has_velocity = index % 4 != 3, has_direction = index / 4 % 2;
    kr_sgd_args a = { .n = n,
                      .momentum = index % 2 ? 0.9 : 0.95,
                      .gain = index % 3 ? 1 : 0.75,
                      .penalty = index / 2 % 2 ? 0.125 : 0,
                      .rate = 0.1,
                      .decay = index % 5 ? 0 : 0.01,
                      .is_first = index % 7 == 0,
                      .nesterov = index / 3 % 2 };
    kr_case c;
    case_begin(&c, &a, sizeof a, "%lld, index %d%s%s%s", (long long)n, index, has_velocity ? "" : ", no velocity",
               has_direction ? ", direction" : "", special ? ", special values" : "");
    double *g =
        grad_operand(&c, &a.grad, offsetof(kr_sgd_args, grad.g.data) | KR_IS_TYPED, n, special ? index % 2 : index);
    if (special) put_specials(g, n);
    if (has_velocity) case_in_out(&c, FIELD(kr_sgd_args, velocity), KR_SHAPE(n), -1, 1);
    if (has_direction) case_output(&c, FIELD(kr_sgd_args, direction), KR_SHAPE(n));
    if (!has_direction) case_in_out(&c, FIELD(kr_sgd_args, w), KR_SHAPE(n), -2, 2);
    else if (a.penalty != 0) case_input(&c, FIELD(kr_sgd_args, w), KR_SHAPE(n), -2, 2);
    c.by_magnitudes = true;
    c.for_scale = sgd_sizes;
    c.many_tasks = n > 16384;
    c.first_row = sgd_first;
    case_done(sweep, &c);
}

void kr_cases_sgd(kr_sweep *sweep)
{
    for (int index = 0; index < 6 * NSIZES; index++) sgd_case(sweep, size_at(index + index / NSIZES), index, false);
    for (int index = 0; index < 4; index++) sgd_case(sweep, 2 * kr_nspecials + index, index, true);
}

/* ---- lerp ---- */

static void lerp_first(void *args)
{
    kr_lerp_args *a = args;
    if (a->n > 5) a->n = 5;
}

static void lerp_case(kr_sweep *sweep, int64_t n, double c_of, bool special)
{
    kr_lerp_args a = { .n = n, .c = c_of };
    kr_case c;
    case_begin(&c, &a, sizeof a, "%lld, c %g%s", (long long)n, c_of, special ? ", special values" : "");
    double *x = case_input(&c, FIELD(kr_lerp_args, x), KR_SHAPE(n), -2, 2);
    if (special) put_specials(x, n);
    double *y = case_in_out(&c, FIELD(kr_lerp_args, y), KR_SHAPE(n), -2, 2), *scale = case_scale(&c);
    for (int64_t i = 0; i < n; i++) scale[i] = fabs(y[i]) + c_of * (fabs(x[i]) + fabs(y[i]));
    c.many_tasks = n > 16384;
    c.first_row = lerp_first;
    case_done(sweep, &c);
}

void kr_cases_lerp(kr_sweep *sweep)
{
    static const double cs[] = { 0, 1e-4, 0.1, 0.5, 1 };
    for (int index = 0; index < 5 * NSIZES; index++) lerp_case(sweep, size_at(index), cs[index / NSIZES], false);
    lerp_case(sweep, 2 * kr_nspecials + 3, 0.125, true);
}

/* ---- squares ---- */

static void put_value(char *at, kr_dtype dtype, double value)
{
    const float single = (float)value;
    const uint16_t half = dtype == KR_DTYPE_BF16 ? kr_bf16_from_float(single) : kr_f16_from_float(single);
    if (dtype == KR_DTYPE_F64) memcpy(at, &value, sizeof value);
    else if (dtype == KR_DTYPE_F32) memcpy(at, &single, sizeof single);
    else memcpy(at, &half, sizeof half);
}

static void squares_case(kr_sweep *sweep, int64_t n, kr_dtype dtype, double size, double special)
{
    kr_squares_args a = { .n = n, .dtype = dtype };
    kr_case c;
    case_begin(&c, &a, sizeof a, "%lld of %s, size %g, one is %g", (long long)n, kr_dtype_name(dtype), size, special);
    char *x = case_raw(&c, FIELD(kr_squares_args, x), dtype, n, false);
    const size_t bytes = kr_dtype_bytes(dtype);
    for (int64_t i = 0; i < n; i++) put_value(x + (size_t)i * bytes, dtype, kr_test_uniform(-size, size));
    if (n > 0 && special != 0) put_value(x + (size_t)kr_test_below(n) * bytes, dtype, special);
    case_raw(&c, FIELD(kr_squares_args, sum), KR_DTYPE_F64, 1, true);
    c.many_tasks = n > 16384;
    case_done(sweep, &c);
}

void kr_cases_squares(kr_sweep *sweep)
{
    for (int i = 0; i < 4 * NSIZES; i++) {
        const kr_dtype dtype = (kr_dtype)(i % 4); /* f32, f64, bf16, f16 */
        squares_case(sweep, sizes[i / 4], dtype, 1, 0);
        squares_case(sweep, sizes[i / 4], dtype, dtype == KR_DTYPE_F16 ? 6e4 : 1e38, i % 3 ? 0 : (double)INFINITY);
        squares_case(sweep, sizes[i / 4], dtype, dtype == KR_DTYPE_F16 ? 1e-6 : 1e-40, i % 5 ? 0 : (double)NAN);
    }
}
