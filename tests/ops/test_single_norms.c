/* test_single_norms.c - gradients of the RMS norm over groups of one channel: the last axis has one, or each is a group.
 *
 *   y = u q gain, q = (u^2 + eps)^-1/2:   dy/du = gain eps q^3
 * q w and q^3 u (w u), the terms of wider groups, agree to all digits of f32 here, so that their difference has none.
 */
#include "tests/harness.h"

#include <krait/ops.h>

enum { ROWS = 9, CHANNELS = 37, COUNT = ROWS * CHANNELS };

typedef enum gate { NO_GATE, GATE_FIRST, NORM_FIRST, GATES } gate;
static const char *const gate_names[GATES] = { "no gate", "gate first", "norm first" };

typedef struct numbers {
    double x[COUNT], z[COUNT], gain[COUNT], g_y[COUNT];
} numbers;

/* x over seven orders of magnitude; z where neither silu nor its slope is near 0. `period` channels share gains. */
static numbers make_numbers(int64_t period)
{
    numbers n;
    for (int64_t i = 0; i < COUNT; i++) {
        n.x[i] = (double)(float)((kr_test_below(2) ? 1 : -1) * pow(10, kr_test_uniform(-4, 3)));
        n.z[i] = (double)(float)kr_test_uniform(0.2, 4);
        n.gain[i] = i < period ? (double)(float)kr_test_uniform(0.5, 2) : n.gain[i % period];
        n.g_y[i] = (double)(float)kr_test_uniform(0.5, 1);
    }
    return n;
}

static void want_at(const numbers *n, int64_t i, gate g, double eps, double *g_x, double *g_z)
{
    const double s = 1 / (1 + exp(-n->z[i])), silu = n->z[i] * s, slope = s * (1 + n->z[i] * (1 - s));
    const double u = g == GATE_FIRST ? n->x[i] * silu : n->x[i], g_out = n->gain[i] * n->g_y[i];
    const double g_u = g_out * (g == NORM_FIRST ? silu : 1) * eps / pow(u * u + eps, 1.5);
    *g_x = g == GATE_FIRST ? g_u * silu : g_u;
    *g_z = g == GATE_FIRST ? g_u * n->x[i] * slope : u / sqrt(u * u + eps) * g_out * slope;
}

static void check_element(const char *what, int64_t i, double got, double want, double tolerance)
{
    CHECK(fabs(got - want) <= tolerance * fabs(want), "%s[%lld] = %.9g, but expected %.9g", what, (long long)i, got,
          want);
}

static kr_tensor *tensor_of(kr_tape *tape, kr_dtype dtype, kr_shape shape, const double *values)
{
    return kr_input(tape, kr_cast(tape, kr_from_data(tape, KR_DTYPE_F64, shape, values), dtype));
}

/* A row has `channels`, each a group. */
static void check_norm(kr_ctx *ctx, kr_dtype dtype, gate g, int64_t channels, double eps)
{
    const numbers n = make_numbers(channels);
    const kr_shape shape = KR_SHAPE(COUNT / channels, channels);
    kr_norm_options o;
    kr_norm_options_init(&o);
    o.groups = channels;
    o.eps = eps;
    o.norm_before_gate = g == NORM_FIRST;
    kr_tape *tape = kr_tape_create(ctx, KR_TAPE_GRAD);
    kr_tensor *x = tensor_of(tape, dtype, shape, n.x), *z = tensor_of(tape, dtype, shape, n.z);
    kr_tensor *gain = tensor_of(tape, dtype, KR_SHAPE(channels), n.gain);
    kr_tensor *y = g == NO_GATE ? kr_rms_norm(tape, x, gain, &o) : kr_gated_norm(tape, x, z, gain, &o);
    kr_tensor *g_y = tensor_of(tape, dtype, shape, n.g_y);
    kr_backward_from(tape, 1, &y, &g_y);
    if (CHECK_OK(ctx)) {
        double *g_x = kr_test_values(kr_grad(x)), *g_z = g == NO_GATE ? NULL : kr_test_values(kr_grad(z));
        /* q has its rounding three times in q^3; silu, its slope and the products have some ulps more */
        const double tolerance = dtype == KR_DTYPE_F32 ? 4e-6 : 1e-14;
        char what[128];
        snprintf(what, sizeof what, "%s, %s, %d channels, eps %g: gradient", dtype == KR_DTYPE_F32 ? "f32" : "f64",
                 gate_names[g], (int)channels, eps);
        for (int64_t i = 0; i < COUNT; i++) {
            double want_x, want_z;
            want_at(&n, i, g, eps, &want_x, &want_z);
            check_element(what, i, g_x[i], want_x, tolerance);
            if (g_z) check_element(what, i, g_z[i], want_z, tolerance);
        }
        free(g_x);
        free(g_z);
    }
    kr_tape_destroy(tape);
}

TEST(norms_of_one_channel)
{
    char names[128];
    kr_isa_choices(names, sizeof names);
    for (char *isa = strtok(names, ", "); isa; isa = strtok(NULL, ", ")) {
        kr_ctx *ctx = kr_test_ctx(1, isa);
        for (int g = 0; g < GATES; g++)
            for (int i = 0; i < 4; i++) {
                check_norm(ctx, KR_DTYPE_F32, (gate)g, i & 1 ? CHANNELS : 1, i & 2 ? 1e-5 : 1e-2);
                check_norm(ctx, KR_DTYPE_F64, (gate)g, i & 1 ? CHANNELS : 1, i & 2 ? 1e-5 : 1e-2);
            }
        kr_ctx_destroy(ctx);
    }
}

/* Without eps y is the sign of x times the gain: its gradient is 0. */
TEST(norms_of_one_channel_without_eps)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    for (int g = 0; g < GATES - 1; g++) check_norm(ctx, KR_DTYPE_F32, (gate)g, CHANNELS, 0);
    kr_ctx_destroy(ctx);
}
