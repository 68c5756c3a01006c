/* test_mamba3_infinite.c - a token repeated forever: against many steps, near no decay and no rotation, gradients. */
#include "tests/nn/mamba3_reference.h"

enum { NB = 3 };

static kr_tensor *repeated(kr_tape *tape, kr_tensor *x_bd, int64_t ns)
{
    const int64_t nd = kr_tensor_dim(x_bd, 1);
    return kr_expand(tape, kr_reshape(tape, x_bd, KR_SHAPE(NB, 1, nd)), KR_SHAPE(NB, ns, nd));
}

/* With a_floor = 1 and steps of 0.05 at least, 600 of them leave e^-30 of the beginning; 300 steps e^-15. */
TEST(mamba3_infinite_is_the_limit_of_steps)
{
    for (int i = 0; variant_at(i); i++)
        for (int d = 0; d < 2; d++) {
            variant v = *variant_at(i);
            const kr_dtype dtype = d ? KR_DTYPE_F32 : KR_DTYPE_F64;
            v.config.a_floor = 1;
            v.config.dt_limit_min = 0.05;
            v.config.dt_limit_max = 5;
            kr_ctx *ctx = kr_test_ctx(2, NULL);
            kr_tape *tape = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
            kr_mamba3 *m = shaken_block(ctx, &v.config, dtype);
            kr_tensor *x = kr_randn(tape, dtype, KR_SHAPE(NB, v.config.d_model));
            kr_mamba3_out out =
                kr_mamba3_forward(tape, m, repeated(tape, x, d ? 298 : 599), NULL, kr_ssd_path_default());
            for (int k = 0; k <= d; k++) out = kr_mamba3_step(tape, m, x, &out.cache);
            /* f32: an angle of hundreds of tokens, each rounded to 2^-22 */
            CHECK_TENSORS(v.name, kr_mamba3_step_infinite(tape, m, x), out.y, d ? 1e-3 : 1e-10, 1);
            CHECK_OK(ctx);
            kr_tape_destroy(tape);
            kr_mamba3_destroy(m);
            kr_ctx_destroy(ctx);
        }
}

/* Steps of some 1e-4 and rates of 1e-4: 1 - alpha is 1e-8, less than an f32 tells from 0. The state sums up to
 * thousands, which the norm of the output takes off again. */
TEST(mamba3_infinite_keeps_its_digits)
{
    for (int i = 0; variant_at(i); i++) {
        const variant v = *variant_at(i);
        if (v.config.dt_limit_min > 0) continue;
        kr_ctx *ctx = kr_test_ctx(1, NULL);
        kr_tape *tape = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
        kr_mamba3_config slow = v.config;
        slow.a_activation = KR_A_ACTIVATION_SOFTPLUS;
        slow.a_floor = 1e-4;
        slow.has_proj_bias = false;
        kr_mamba3 *m[2] = { shaken_block(ctx, &slow, KR_DTYPE_F32), NULL };
        double *weight = kr_test_values(kr_params_find(kr_mamba3_params(m[0]), "in_proj.weight")->tensor);
        const kr_param_row *row = kr_params_find(kr_mamba3_params(m[0]), "in_proj.weight");
        int64_t first[9] = { 0 };
        for (int k = 0; k < 8; k++) first[k + 1] = first[k] + row->segments[k].rows;
        const int64_t nd = slow.d_model;
        for (int64_t r = first[4]; r < first[8]; r++) { /* dt, A, lambda, rotation */
            const bool is_rate = r >= first[5] && r < first[6], is_turn = r >= first[7];
            for (int64_t k = 0; k < nd; k++)
                weight[r * nd + k] = k == 0 && is_rate ? -12 : weight[r * nd + k] * (is_turn ? 1e-4 : 1);
        }
        kr_param_write(row->tensor, KR_DTYPE_F64, weight, first[8] * nd);
        kr_param_fill(kr_params_find(kr_mamba3_params(m[0]), "dt_bias")->tensor, -9);
        slow.dtype = KR_DTYPE_F64;
        m[1] = kr_mamba3_create(ctx, &slow);
        for (int64_t k = 0; k < kr_params_count(kr_mamba3_params(m[0])); k++) {
            double *values = kr_test_values(kr_params_at(kr_mamba3_params(m[0]), k)->tensor);
            kr_tensor *to = kr_params_at(kr_mamba3_params(m[1]), k)->tensor;
            kr_param_write(to, KR_DTYPE_F64, values, kr_tensor_count(to));
            free(values);
        }
        double *x = calloc(NB * (size_t)nd, sizeof *x);
        for (int b = 0; b < NB; b++)
            for (int64_t k = 0; k < nd; k++) x[b * nd + k] = k == 0 ? 1 : kr_test_uniform(-0.1, 0.1);
        kr_tensor *y[2];
        for (int k = 0; k < 2; k++)
            y[k] = kr_mamba3_step_infinite(
                tape, m[k],
                kr_cast(tape, kr_from_data(tape, KR_DTYPE_F64, KR_SHAPE(NB, nd), x), k ? KR_DTYPE_F64 : KR_DTYPE_F32));
        /* inner products that cancel to a hundredth of their terms */
        CHECK_TENSORS(v.name, kr_cast(tape, y[0], KR_DTYPE_F64), y[1], 2e-4, 1);
        CHECK_OK(ctx);
        free(x);
        free(weight);
        kr_tape_destroy(tape);
        kr_mamba3_destroy(m[0]);
        kr_mamba3_destroy(m[1]);
        kr_ctx_destroy(ctx);
    }
}

/* Steps of exactly 0 leave the skip alone, and no NaN. */
TEST(mamba3_infinite_without_steps)
{
    for (int i = 0; variant_at(i); i++) {
        const variant v = *variant_at(i);
        if (v.config.dt_limit_min > 0) continue;
        kr_ctx *ctx = kr_test_ctx(1, NULL);
        kr_tape *tape = kr_tape_create(ctx, KR_TAPE_GRAD);
        kr_mamba3 *m = shaken_block(ctx, &v.config, KR_DTYPE_F32);
        kr_param_fill(kr_params_find(kr_mamba3_params(m), "dt_bias")->tensor, -2000);
        kr_tensor *x = kr_input(tape, kr_randn(tape, KR_DTYPE_F32, KR_SHAPE(NB, v.config.d_model)));
        kr_tensor *y = kr_mamba3_step_infinite(tape, m, x);
        kr_mamba3_cache empty = kr_mamba3_initial_cache(tape, m, NB); /* without a learned state, which would stay */
        empty.ssm_bhpr = kr_zeros(tape, KR_DTYPE_F32, kr_tensor_shape(empty.ssm_bhpr));
        kr_tensor *one = kr_mamba3_forward(tape, m, repeated(tape, x, 5), &empty, kr_ssd_path_default()).y;
        one = kr_reshape(tape, kr_slice(tape, one, 1, 4, 5), KR_SHAPE(NB, -1));
        CHECK_TENSORS(v.name, y, one, 1e-5, 0.1);
        kr_backward(tape, kr_sum(tape, kr_mul(tape, y, y), KR_ALL_AXES, false));
        double *g = kr_test_values(kr_grad(x));
        for (int64_t k = 0; k < kr_tensor_count(x); k++)
            if (!CHECK(isfinite(g[k]), "%s: g_x[%lld] is %g", v.name, (long long)k, g[k])) break;
        free(g);
        CHECK_OK(ctx);
        kr_tape_destroy(tape);
        kr_mamba3_destroy(m);
        kr_ctx_destroy(ctx);
    }
}

/* ---- gradients against differences, along a direction of each parameter and of x ---- */

static double weighed(kr_ctx *ctx, kr_mamba3 *m, const double *x, const double *head, int64_t nd)
{
    kr_tape *tape = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    double *y = kr_test_values(kr_mamba3_step_infinite(tape, m, kr_from_data(tape, KR_DTYPE_F64, KR_SHAPE(NB, nd), x)));
    double sum = 0;
    for (int64_t i = 0; i < NB * nd; i++) sum += y[i] * head[i];
    free(y);
    kr_tape_destroy(tape);
    return sum;
}

static void check_direction(const char *what, kr_ctx *ctx, kr_mamba3 *m, double *x, const double *head, int64_t nd,
                            double *values, kr_tensor *param, const kr_tensor *g, int64_t count)
{
    const double step = 1e-4 / sqrt((double)count);
    static const double places[4] = { 1, -1, 2, -2 };
    double *direction = malloc(2 * (size_t)count * sizeof *direction), *centre = direction + count, f[4], got = 0;
    for (int64_t i = 0; i < count; i++) direction[i] = kr_test_normal();
    memcpy(centre, values, (size_t)count * sizeof *centre);
    for (int k = 0; k < 4; k++) {
        for (int64_t i = 0; i < count; i++) values[i] = centre[i] + places[k] * step * direction[i];
        if (param) kr_test_write(param, values);
        f[k] = weighed(ctx, m, x, head, nd);
    }
    memcpy(values, centre, (size_t)count * sizeof *centre);
    if (param) kr_test_write(param, values);
    double *slope = g ? kr_test_values(g) : NULL;
    for (int64_t i = 0; slope && i < count; i++) got += slope[i] * direction[i];
    const double want = (8 * (f[0] - f[1]) - (f[2] - f[3])) / (12 * step);
    CHECK(fabs(got - want) <= 1e-6 * (fabs(want) + sqrt((double)count)), "%s: got %.9g want %.9g", what, got, want);
    free(slope);
    free(direction);
}

TEST(mamba3_infinite_gradients)
{
    for (int i = 0; variant_at(i); i++) {
        const variant v = *variant_at(i);
        kr_ctx *ctx = kr_test_ctx(1, NULL);
        kr_tape *tape = kr_tape_create(ctx, KR_TAPE_GRAD);
        kr_mamba3 *m = shaken_block(ctx, &v.config, KR_DTYPE_F64);
        const int64_t nd = v.config.d_model;
        double x[64], head[64];
        for (int64_t k = 0; k < NB * nd; k++) x[k] = kr_test_normal(), head[k] = kr_test_normal();
        kr_tensor *in = kr_input(tape, kr_from_data(tape, KR_DTYPE_F64, KR_SHAPE(NB, nd), x));
        kr_tensor *y = kr_mamba3_step_infinite(tape, m, in),
                  *g_y = kr_from_data(tape, KR_DTYPE_F64, KR_SHAPE(NB, nd), head);
        kr_backward_from(tape, 1, &y, &g_y);
        char text[96];
        snprintf(text, sizeof text, "%s: g_x", v.name);
        check_direction(text, ctx, m, x, head, nd, x, NULL, kr_grad(in), NB * nd);
        for (int64_t k = 0; k < kr_params_count(kr_mamba3_params(m)); k++) {
            const kr_param_row *row = kr_params_at(kr_mamba3_params(m), k);
            snprintf(text, sizeof text, "%s: g_%s", v.name, row->name);
            check_direction(text, ctx, m, x, head, nd, kr_test_copy(row->tensor), row->tensor, kr_grad(row->tensor),
                            kr_tensor_count(row->tensor));
        }
        CHECK_OK(ctx);
        kr_tape_destroy(tape);
        kr_mamba3_destroy(m);
        kr_ctx_destroy(ctx);
    }
}
