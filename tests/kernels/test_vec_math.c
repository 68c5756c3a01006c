/* test_vec_math.c - the vectorised functions against double libm, in units of the last place (ULP), for each
 * instruction set that this machine can run.
 *
 * The functions are called through the elementwise kernels. Inputs: every 997th bit pattern of float, and all patterns
 * margin the points where a function changes its method or its range. A second pass has the same inputs in another order
 * and in small calls: an element's bits must not depend on its position.
 */
#include "tests/kernels/conformance.h"

enum {
    PATTERN_STRIDE = 997,
    QUICK_STRIDE = 50021,
    NEAR = 2048, /* patterns on either side of a special point */
    CHUNK = 4099 /* elements per call: a prime, so that partial vectors are used */
};

typedef struct function {
    const kr_kernel *kernel;
    double (*exact)(double);
    double bound; /* in ULP, as vec_math.h states it */
} function;

static double exact_sigmoid(double x)
{
    return x < 0 ? exp(x) / (1 + exp(x)) : 1 / (1 + exp(-x));
}

static double exact_silu(double x)
{
    return x == -(double)INFINITY ? -0.0 : x * exact_sigmoid(x);
}

static double exact_softplus(double x)
{
    return x > 20 ? x : log1p(exp(x));
}

static double exact_log_sigmoid(double x)
{
    return -exact_softplus(-x);
}

static double exact_gelu(double x)
{
    return x == -(double)INFINITY ? -0.0 : 0.5 * x * erfc(-x / sqrt(2));
}

static double exact_gelu_tanh(double x)
{
    return fabs(x) > 1e30 ? (x > 0 ? x : -0.0) : x * exact_sigmoid(2 * sqrt(2 / acos(-1)) * (x + 0.044715 * x * x * x));
}

static float of_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* |got - want| in units of want's last place; infinity counts as 2^128, the next number if there were one. A zero of
 * the wrong sign and a NaN on one side only are infinitely wrong. */
static double ulps(float got, double want)
{
    if (isnan(want) || isnan(got)) return isnan(want) && isnan(got) ? 0 : (double)INFINITY;
    if (want == 0) return got == 0 && !signbit(got) == !signbit(want) ? 0 : (double)INFINITY;
    double top = 0x1p128;
    double value = isinf(got) ? copysign(top, got) : got;
    if (fabs(want) > top) want = copysign(top, want);
    int exponent;
    frexp(want, &exponent);
    if (exponent < -125) exponent = -125; /* denormals share one unit */
    return fabs(value - want) / ldexp(1, exponent - 24);
}

/* All inputs, in a malloc'ed array. */
static float *make_inputs(int64_t *count)
{
    /* clang-format off */
    static const float special[] = {
        0, 0x1p-126f, 0x1p-24f, 0x1p-12f, 0x1p-7f, 0.5f, 1, 2, 10, INFINITY, /* zero, denormals, ends of the range */
        87.336545f, 88.722839f, 103.27893f, 103.97208f, 105, 108.7f, 120,    /* where e^x and x e^x end */
        0.34657359f, 1.0397208f, 0.75f, 1.5f, 17, 18, 20, 40, 80,            /* where methods change */
        4, 9, 10.7f, 11, 13, 14.2f, 15,                                      /* where erf and gelu end */
        0.78539819f, 1.5707964f, 3.1415927f, 4.712389f, 6.2831855f, 100000,  /* multiples of pi/4, the wide reduction */
        102943.7f, 0x1p22f, 0x1p24f, 16367173.0f * 0x1p72f,                  /* the last is margin a multiple of pi/2 */
    };
    /* clang-format on */
    const int64_t nspecial = (int64_t)(sizeof special / sizeof *special);
    const uint64_t stride = kr_test_quick() ? QUICK_STRIDE : PATTERN_STRIDE;
    const int64_t n = (int64_t)(((uint64_t)1 << 32) / stride) + 1, margin = kr_test_quick() ? NEAR / 32 : NEAR;
    float *x = malloc((size_t)(n + nspecial * (2 * margin + 1) * 2) * sizeof *x);
    if (!x) exit(2);
    int64_t k = 0;
    for (uint64_t bits = 0; bits < (uint64_t)1 << 32; bits += stride) x[k++] = of_bits((uint32_t)bits);
    for (int64_t i = 0; i < nspecial; i++)
        for (int64_t d = -margin; d <= margin; d++) {
            uint32_t bits = (uint32_t)((int64_t)bits_of(special[i]) + d);
            x[k++] = of_bits(bits);
            x[k++] = of_bits(bits ^ 0x80000000u);
        }
    *count = k;
    return x;
}

/* stride 1, or -1: x and y are the last elements. */
static void call(const function *f, const kr_kernels *set, float *x, float *y, int64_t n, int64_t stride)
{
    const size_t bytes = (size_t)n * sizeof(float);
    kr_unary_args a = { .x = x, .y = y };
    a.walk.rank = 1;
    a.walk.dims[0] = n;
    a.walk.strides[0][0] = stride;
    a.walk.strides[1][0] = stride;
    const kr_span spans[] = { { offsetof(kr_unary_args, x), 0, stride < 0 ? x - (n - 1) : x, bytes, false },
                              { offsetof(kr_unary_args, y), 0, stride < 0 ? y - (n - 1) : y, bytes, true } };
    kr_run_spans(f->kernel, set, KR_REAL_F32, NULL, &a, sizeof a, spans, 2, "ulps");
}

static void check_ulps(const function *f, const kr_kernels *set, float *x, const double *want, float *y, int64_t n)
{
    const int64_t chunk = set == device_kernels() ? n : CHUNK;
    for (int64_t i = 0; i < n; i += chunk) call(f, set, x + i, y + i, n - i < chunk ? n - i : chunk, 1);
    double worst = 0;
    int64_t where = 0;
    for (int64_t i = 0; i < n; i++) {
        double e = ulps(y[i], want[i]);
        if (!(e <= worst)) {
            worst = e;
            where = i;
        }
    }
    CHECK(worst <= f->bound, "%s %s: worst %.3f ULP (bound %.2f) at x = %a: got %a want %a", f->kernel->name, set->name,
          worst, f->bound, (double)x[where], (double)y[where], want[where]);
    if (getenv("KR_TEST_VERBOSE"))
        printf("%-11s %-6s worst %.3f ULP at x = %a\n", f->kernel->name, set->name, worst, (double)x[where]);
}

static bool same(float a, float b)
{
    return bits_of(a) == bits_of(b) || (isnan(a) && isnan(b));
}

/* Calls with distant elements as neighbours, 1, 2, 3, ... elements per call, running backwards. */
static void check_place(const function *f, const kr_kernels *set, const float *x, const float *y, int64_t n)
{
    enum { MOST = 61 };
    float mixed_x[MOST], mixed_y[MOST];
    int64_t index[MOST], bad = 0;
    const int64_t many = kr_test_quick() || set == device_kernels() ? 20000 : 400000;
    for (int64_t done = 0, size = 1; done < many; done += size, size = size % MOST + 1) {
        for (int64_t i = 0; i < size; i++) {
            index[i] = kr_test_below(n);
            mixed_x[i] = x[index[i]];
        }
        call(f, set, mixed_x + size - 1, mixed_y + size - 1, size, -1);
        for (int64_t i = 0; i < size; i++) bad += !same(mixed_y[i], y[index[i]]);
    }
    CHECK(bad == 0, "%s %s: %lld elements change with their place", f->kernel->name, set->name, (long long)bad);
}

static void check_function(const char *name, double (*exact)(double), double bound)
{
    const function f = { kr_kernel_named(name), exact, bound };
    int64_t n = 0;
    float *x = make_inputs(&n);
    double *want = malloc((size_t)n * sizeof *want);
    float *y = malloc((size_t)n * sizeof *y);
    if (!want || !y) exit(2);
    for (int64_t i = 0; i < n; i++) want[i] = exact((double)x[i]);
    for (int k = 0; kr_judged_set(k); k++) {
        if (kr_judged_set(k) == kr_runnable_set(0)) continue; /* the reference is libm itself */
        if (!f.kernel->has(kr_judged_set(k), KR_REAL_F32)) continue;
        check_ulps(&f, kr_judged_set(k), x, want, y, n);
        check_place(&f, kr_judged_set(k), x, y, n);
    }
    free(x);
    free(want);
    free(y);
}

#define WITHIN(name, exact, bound)                                                                                     \
    TEST(ulps_of_##name)                                                                                               \
    {                                                                                                                  \
        check_function(#name, exact, bound);                                                                           \
    }
WITHIN(exp, exp, 1)
WITHIN(log, log, 1)
WITHIN(sin, sin, 1.5)
WITHIN(cos, cos, 1.5)
WITHIN(tanh, tanh, 1)
WITHIN(sigmoid, exact_sigmoid, 2)
WITHIN(silu, exact_silu, 2)
WITHIN(softplus, exact_softplus, 2)
WITHIN(log_sigmoid, exact_log_sigmoid, 2)
WITHIN(erf, erf, 1.5)
WITHIN(gelu, exact_gelu, 5)
WITHIN(gelu_tanh, exact_gelu_tanh, 3)
