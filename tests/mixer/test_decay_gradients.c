/* test_decay_gradients.c - gradients of decays in f32 against f64, with step sizes over six orders of magnitude.
 *
 *   g_da_t = <gradient of the state after t, e^da_t state before t>,   g_A_h = sum of dt g_da over the tokens
 *
 * With da = dt A, one step may scale the state by e^-16 and the next one by almost 1, and g_da differs as much: a
 * kernel that computes it as a difference of sums over a chunk has no correct digit of the small ones. All three
 * algorithms must have them, on each instruction set.
 */
#include "tests/mixer/paths.h"

enum { DA = 3, WEIGHT = 4, GAMMA = 5, G = 2 }; /* operands; G + operand is its gradient among the results */

typedef enum pattern { MIXED, SMALL, MEDIUM, LARGE, RISING, FALLING, PEAKS, GAPS, PATTERNS } pattern;
static const char *const pattern_names[PATTERNS] = {
    "mixed", "1e-6", "1e-3", "1", "rising", "falling", "peaks", "gaps"
};

/* The step size of token s. */
static double step_size(pattern p, int64_t s, int64_t ns)
{
    const double at = (double)s / (double)ns;
    switch (p) {
    case MIXED: return pow(10, kr_test_uniform(-6, 0));
    case SMALL: return 1e-6;
    case MEDIUM: return 1e-3;
    case LARGE: return 1;
    case RISING: return pow(10, 6 * at - 6);
    case FALLING: return pow(10, -6 * at);
    case PEAKS: return s % 7 == 3 ? 1 : 1e-6;
    default: return s % 7 == 3 ? 1e-6 : 1;
    }
}

/* A of head h: from -1 to -16, as models are initialised. */
static double decay_rate(const ssd_case *c, int64_t h)
{
    return -1 - 15 * (double)h / (double)(c->nh > 1 ? c->nh - 1 : 1);
}

static void make_positive(double *x, const kr_shape *shape)
{
    int64_t count = x ? 1 : 0;
    for (int i = 0; i < shape->rank; i++) count *= shape->dims[i];
    for (int64_t i = 0; i < count; i++) x[i] = fabs(x[i]);
}

/* Operands of a case with these step sizes, which are returned [b s h]. If `positive`, all others are above 0. */
static double *set_steps(const ssd_case *c, operands *o, pattern p, bool positive)
{
    const int64_t count = c->nb * c->ns * c->nh;
    double *dt = malloc((size_t)count * sizeof *dt);
    for (int i = 0; positive && i < MAX_OPERANDS; i++)
        if (i != DA && i != WEIGHT && i != GAMMA) make_positive(o->values[i], &o->shapes[i]);
    if (positive) make_positive(o->g_y, &o->y_shape), make_positive(o->g_final, &o->final_shape);
    for (int64_t i = 0; i < count; i++) {
        const int64_t h = i % c->nh;
        dt[i] = (double)(float)(step_size(p, i / c->nh % c->ns, c->ns) * kr_test_uniform(0.7, 1));
        o->values[DA][i] = c->family == MAMBA2 ? dt[i] : (double)(float)(dt[i] * decay_rate(c, h));
        if (c->family == MAMBA3_SINGLE) o->values[WEIGHT][i] = o->values[GAMMA][i] = dt[i];
    }
    for (int64_t h = 0; c->family == MAMBA2 && h < c->nh; h++) o->values[WEIGHT][h] = (double)(float)decay_rate(c, h);
    return dt;
}

/* No two terms of these gradients cancel: each element must be right on its own scale. */
static void check_elements(const char *what, const results *got, const results *want, int operand, double tolerance)
{
    const int i = G + operand;
    double worst = 0;
    int64_t at = 0;
    for (int64_t k = 0; k < want->counts[i]; k++) {
        const double error = fabs(got->values[i][k] - want->values[i][k]) / fmax(fabs(want->values[i][k]), 1e-30);
        if (error > worst) worst = error, at = k;
    }
    CHECK(worst <= tolerance, "%s: %s[%lld] = %g, but expected %g (relative error %g)", what, result_names[i],
          (long long)at, got->values[i][at], want->values[i][at], worst);
}

/* g_A of each head, from g_da: relative to the sum of magnitudes of its terms. */
static void check_rates(const char *what, const ssd_case *c, const double *dt, const results *got, const results *want,
                        double tolerance)
{
    for (int64_t h = 0; h < c->nh; h++) {
        double error = 0, scale = 1e-30;
        for (int64_t i = h; i < c->nb * c->ns * c->nh; i += c->nh) {
            error += dt[i] * (got->values[G + DA][i] - want->values[G + DA][i]);
            scale += fabs(dt[i] * want->values[G + DA][i]);
        }
        CHECK(fabs(error) <= tolerance * scale, "%s: g_A of head %lld is off by %g of %g", what, (long long)h, error,
              scale);
    }
}

static void check_results(const char *what, const ssd_case *c, const double *dt, bool positive, const results *got,
                          const results *want)
{
    if (c->family == MAMBA2) {
        /* e^da has the rounding of da = dt A, up to 1e-6 of it where da is -16; the others are sums in f32 */
        check_elements(what, got, want, WEIGHT, 1e-5);
        return;
    }
    check_rates(what, c, dt, got, want, 2e-6);
    if (!positive) return;
    check_elements(what, got, want, DA, 1e-5);
    if (c->family == MAMBA3_SINGLE) {
        check_elements(what, got, want, WEIGHT, 1e-5);
        check_elements(what, got, want, GAMMA, 1e-5);
    }
}

static void check_steps(const ssd_case *c, pattern p, bool positive)
{
    static const char *const algorithms[] = { "Minimal", "Serial", "SerialRecalculated" };
    char text[256], what[400], choices[128];
    operands o = make_operands(c);
    double *dt = set_steps(c, &o, p, positive);
    results want = run_case(c, &o, KR_DTYPE_F64, KR_SSD_SERIAL_RECALCULATED, "ref", 1, NULL);
    kr_isa_choices(choices, sizeof choices);
    for (char *isa = strtok(choices, ", "); isa; isa = strtok(NULL, ", "))
        for (int a = KR_SSD_MINIMAL; a <= KR_SSD_SERIAL_RECALCULATED; a++) {
            results got = run_case(c, &o, KR_DTYPE_F32, (kr_ssd_algorithm)a, isa, 1, NULL);
            snprintf(what, sizeof what, "%s, %s, steps %s%s, %s", algorithms[a], isa, pattern_names[p],
                     positive ? ", all positive" : "", case_text(c, text, sizeof text));
            check_results(what, c, dt, positive, &got, &want);
            free_results(&got);
        }
    free_results(&want);
    free_operands(&o);
    free(dt);
}

static void check_patterns(const ssd_case *c)
{
    for (int p = 0; p < PATTERNS; p++) {
        check_steps(c, (pattern)p, true);
        if (c->family != MAMBA2) check_steps(c, (pattern)p, false); /* Mamba-2 has g_da too */
    }
}

static bool is_on_device(void)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    const bool on_device = kr_test_on_device(ctx);
    kr_ctx_destroy(ctx);
    return on_device;
}

/* Whole chunks and a partial one, more heads than a task has, an initial state. */
TEST(decay_gradients_mamba2)
{
    if (is_on_device()) SKIP("CUDA takes them for differences of sums over a chunk");
    check_patterns(
        &(ssd_case){ .family = MAMBA2, .nb = 1, .ns = 150, .nm = 1, .nh = 8, .np = 9, .ng = 1, .nr = 17, .nl = 64 });
    check_patterns(&(ssd_case){ .family = MAMBA2,
                                .nb = 2,
                                .ns = 70,
                                .nm = 1,
                                .nh = 4,
                                .np = 16,
                                .ng = 2,
                                .nr = 16,
                                .nl = 128,
                                .initial = true,
                                .skip = true });
}

/* Many sequences in a row: chunks of all lengths, one token too. */
TEST(decay_gradients_packed)
{
    if (is_on_device()) SKIP("CUDA takes them for differences of sums over a chunk");
    check_patterns(&(ssd_case){ .family = MAMBA2,
                                .nb = 2,
                                .ns = 60,
                                .nm = 1,
                                .nh = 3,
                                .np = 8,
                                .ng = 1,
                                .nr = 8,
                                .nl = 16,
                                .learned = true,
                                .packed = true });
    check_patterns(&(ssd_case){ .family = MAMBA3_SINGLE,
                                .nb = 1,
                                .ns = 60,
                                .nm = 2,
                                .nh = 2,
                                .np = 8,
                                .ng = 2,
                                .nr = 8,
                                .nl = 16,
                                .initial = true,
                                .packed = true });
}

TEST(decay_gradients_mamba3_double)
{
    if (is_on_device()) SKIP("CUDA takes them for differences of sums over a chunk");
    check_patterns(&(ssd_case){ .family = MAMBA3_DOUBLE,
                                .nb = 1,
                                .ns = 100,
                                .nm = 2,
                                .nh = 4,
                                .np = 8,
                                .ng = 2,
                                .nr = 16,
                                .nl = 32,
                                .initial = true });
}

TEST(decay_gradients_mamba3_single)
{
    if (is_on_device()) SKIP("CUDA takes them for differences of sums over a chunk");
    check_patterns(&(ssd_case){ .family = MAMBA3_SINGLE,
                                .nb = 1,
                                .ns = 100,
                                .nm = 1,
                                .nh = 7,
                                .np = 8,
                                .ng = 1,
                                .nr = 16,
                                .nl = 64,
                                .skip = true });
    check_patterns(&(ssd_case){ .family = MAMBA3_SINGLE,
                                .nb = 1,
                                .ns = 50,
                                .nm = 4,
                                .nh = 2,
                                .np = 8,
                                .ng = 2,
                                .nr = 16,
                                .nl = 16,
                                .initial = true });
}
