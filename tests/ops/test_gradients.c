/* test_gradients.c - every case of cases.def: gradients against difference quotients in f64, then all types, instruction
 * sets and layouts against f64.
 */
#include "tests/ops/cases.h"

/* The projection of the outputs that the gradients belong to; infinite elements (segsum) are constants. */
static double projection(const case_result *r)
{
    double sum = 0;
    for (int n = 0; n < r->n_out; n++)
        for (int64_t i = 0; i < r->y_count[n]; i++)
            if (isfinite(r->y[n][i])) sum += r->y[n][i] * case_seed(n, i);
    return sum;
}

static double value_at(kr_ctx *ctx, const kr_case *c, int n_in, case_input *in, double *place, double value)
{
    const double kept = *place;
    case_result r;
    *place = value;
    const bool ok = case_execute(ctx, c, n_in, in, (case_run){ KR_DTYPE_F64, LAYOUT_PLAIN, -1, false }, &r);
    *place = kept;
    const double sum = ok ? projection(&r) : NAN;
    case_result_free(&r);
    return sum;
}

/* Central differences leave h^2 f'''/6 ~ 1e-10 and rounding 2e-16 |loss| / h ~ 1e-10; ten times that is allowed and
 * any wrong term of a rule is far above it. */
static void check_differences(kr_ctx *ctx, const kr_case *c, int n_in, case_input *in, const case_result *r)
{
    for (int n = 0; n < n_in; n++) {
        double *want = malloc((size_t)in[n].count * sizeof *want);
        if (!want) exit(2);
        memcpy(want, r->g[n], (size_t)in[n].count * sizeof *want);
        for (int64_t i = 0; i < in[n].count; i += kr_test_difference_step(ctx)) {
            double *x = &in[n].values[i];
            const double h = 1e-5 * (1 + fabs(*x)), up = *x + h, down = *x - h;
            want[i] = (value_at(ctx, c, n_in, in, x, up) - value_at(ctx, c, n_in, in, x, down)) / (up - down);
        }
        char what[128];
        snprintf(what, sizeof what, "%s: gradient of input %d", c->name, n);
        CHECK_CLOSE(what, r->g[n], want, in[n].count, &in[n].shape, 2e-9, 1);
        free(want);
    }
}

TEST(differences)
{
    kr_ctx *ctx = kr_test_ctx(1, "ref");
    for (int i = 0; i < kr_ncases; i++) {
        case_input in[CASE_MAX_IN];
        case_result r;
        const int n_in = case_inputs_make(&kr_cases[i], in);
        if (case_execute(ctx, &kr_cases[i], n_in, in, (case_run){ KR_DTYPE_F64, LAYOUT_PLAIN, -1, true }, &r))
            check_differences(ctx, &kr_cases[i], n_in, in, &r);
        case_result_free(&r);
        case_inputs_free(n_in, in);
    }
    kr_ctx_destroy(ctx);
}

static void check_results(const char *what, const kr_case *c, const case_result *got, const case_result *want,
                          double times, double tolerance)
{
    char text[160];
    for (int n = 0; n < want->n_out; n++) {
        snprintf(text, sizeof text, "%s, %s: output %d", c->name, what, n);
        CHECK_CLOSE(text, got->y[n], want->y[n], want->y_count[n], &want->y_shape[n], tolerance, 1);
    }
    for (int n = 0; n < want->n_in; n++) {
        snprintf(text, sizeof text, "%s, %s: gradient of input %d", c->name, what, n);
        for (int64_t i = 0; i < want->g_count[n]; i++) want->g[n][i] *= times;
        CHECK_CLOSE(text, got->g[n], want->g[n], want->g_count[n], &want->g_shape[n], tolerance, 1);
        for (int64_t i = 0; i < want->g_count[n]; i++) want->g[n][i] /= times;
    }
}

/* All layouts, and each input alone wanting its gradient, against the plain f64 result on the reference kernels. */
static void check_type(kr_ctx *ref, kr_ctx *ctx, const kr_case *c, kr_dtype dtype, double tolerance)
{
    case_input in[CASE_MAX_IN];
    case_result want, got;
    const int n_in = case_inputs_make(c, in);
    case_inputs_round(ref, dtype, n_in, in);
    if (case_execute(ref, c, n_in, in, (case_run){ KR_DTYPE_F64, LAYOUT_PLAIN, -1, true }, &want)) {
        for (int layout = 0; layout < NLAYOUTS; layout++) {
            char what[64];
            snprintf(what, sizeof what, "%s %s layout %d", kr_dtype_name(dtype), kr_ctx_isa(ctx), layout);
            if (case_execute(ctx, c, n_in, in, (case_run){ dtype, (case_layout)layout, -1, true }, &got))
                check_results(what, c, &got, &want, layout == LAYOUT_PARAMS ? 2 : 1, tolerance);
            case_result_free(&got);
        }
        for (int n = 0; n < n_in; n++) {
            char what[64];
            snprintf(what, sizeof what, "%s %s input %d alone", kr_dtype_name(dtype), kr_ctx_isa(ctx), n);
            case_result one = want;
            double zero[4096] = { 0 };
            for (int other = 0; other < n_in; other++)
                if (other != n) one.g[other] = zero;
            if (case_execute(ctx, c, n_in, in, (case_run){ dtype, LAYOUT_PLAIN, n, true }, &got))
                check_results(what, c, &got, &one, 1, tolerance);
            case_result_free(&got);
        }
    }
    case_result_free(&want);
    case_inputs_free(n_in, in);
}

/* Made of some five ops in a row, each of which stores its result in the operands' type. */
static bool is_composed(const kr_case *c)
{
    return !strcmp(c->op, "kr_bce") || !strcmp(c->op, "kr_soft_cross_entropy");
}

static void check_all(const char *isa, kr_dtype dtype, double tolerance)
{
    kr_ctx *ref = kr_test_ctx(1, "ref"), *ctx = kr_test_ctx(2, isa);
    const double times = kr_dtype_bytes(dtype) == 2 ? 2 : 1; /* roundings of those that are composed */
    for (int i = 0; i < kr_ncases; i++)
        check_type(ref, ctx, &kr_cases[i], dtype, is_composed(&kr_cases[i]) ? times * tolerance : tolerance);
    kr_ctx_destroy(ctx);
    kr_ctx_destroy(ref);
}

/* f64 sums may be taken in another order: some 64 terms of one rounding each. */
TEST(f64_on_every_isa)
{
    const char *isas[8];
    for (int n = case_isas(isas) - 1; n >= 0; n--) check_all(isas[n], KR_DTYPE_F64, 1e-13);
}

/* Kernels round a few times (2^-24 each) and functions are good to 4 ULP; sums of up to 64 terms may cancel to the size
 * of one term, to which the bound is relative. */
TEST(f32_on_every_isa)
{
    const char *isas[8];
    for (int n = case_isas(isas) - 1; n >= 0; n--) check_all(isas[n], KR_DTYPE_F32, 4e-6);
}

/* Computed in f32, then rounded once for the result (2^-9 of it in bf16, 2^-12 in f16), a second time where gradients
 * of several uses are added up, a third in the second backward pass of a parameter. */
TEST(halves)
{
    const char *isas[8];
    const char *best = isas[case_isas(isas) - 1];
    check_all(best, KR_DTYPE_BF16, 3 * 0x1p-8);
    check_all(best, KR_DTYPE_F16, 3 * 0x1p-11);
    if (!kr_test_quick()) check_all("ref", KR_DTYPE_BF16, 3 * 0x1p-8);
}
