/* differences.c - central differences: (f(x + h) - f(x - h)) / 2h leaves h^2 f''' / 6 and rounding 2e-16 |f| / h. */
#include "tests/nn/differences.h"

kr_tensor *differences_weigh(kr_tape *tape, kr_tensor *y, int n)
{
    const int64_t count = kr_tensor_count(y);
    double *weights = malloc((size_t)(count + 1) * sizeof *weights);
    if (!weights) exit(2);
    for (int64_t i = 0; i < count; i++) weights[i] = sin(1.7 * (double)(i + 1) + n);
    kr_tensor *w = kr_cast(tape, kr_from_data(tape, KR_DTYPE_F64, kr_tensor_shape(y), weights), kr_tensor_dtype(y));
    free(weights);
    return kr_sum(tape, kr_mul(tape, y, w), KR_ALL_AXES, false);
}

static double value_of(kr_ctx *ctx, differences_program *program, void *user)
{
    kr_tape *tape = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    const double value = kr_item(program(tape, user));
    kr_tape_destroy(tape);
    return value;
}

static void check_param(kr_ctx *ctx, differences_program *program, void *user, kr_tensor *param, const char *name,
                        int64_t most, double tolerance)
{
    kr_tensor *grad = kr_grad(param);
    if (!CHECK(grad && kr_tensor_dtype(param) == KR_DTYPE_F64, "%s: no gradient, or not f64", name)) return;
    const int64_t count = kr_tensor_count(param), n = count < most ? count : most;
    double *got = malloc((size_t)n * sizeof *got), *want = malloc((size_t)n * sizeof *want);
    if (!got || !want) exit(2);
    const double *x = kr_test_copy(param), *g = kr_test_copy(grad);
    for (int64_t k = 0; k < n; k++) {
        const int64_t i = k * count / n;
        const double kept = x[i], h = 1e-5 * (1 + fabs(kept));
        kr_test_put(param, i, kept + h);
        const double up = value_of(ctx, program, user);
        kr_test_put(param, i, kept - h);
        const double down = value_of(ctx, program, user);
        kr_test_put(param, i, kept);
        got[k] = g[i];
        want[k] = (up - down) / (2 * h);
    }
    CHECK_CLOSE(name, got, want, n, NULL, tolerance, 1);
    free(got);
    free(want);
}

void differences_check(kr_ctx *ctx, differences_program *program, void *user, int count, kr_tensor *const *params,
                       const char *const *names, int64_t most, double tolerance)
{
    for (int i = 0; i < count; i++) kr_zero_grad(params[i]);
    kr_tape *tape = kr_tape_create(ctx, KR_TAPE_GRAD);
    kr_backward(tape, program(tape, user));
    CHECK_OK(ctx);
    kr_tape_destroy(tape);
    for (int i = 0; i < count; i++) check_param(ctx, program, user, params[i], names[i], most, tolerance);
    CHECK_OK(ctx);
}

void differences_check_table(kr_ctx *ctx, differences_program *program, void *user, const kr_params *params,
                             int64_t most, double tolerance)
{
    const int count = (int)kr_params_count(params);
    kr_tensor **list = malloc((size_t)(count + 1) * sizeof *list);
    const char **names = malloc((size_t)(count + 1) * sizeof *names);
    if (!list || !names) exit(2);
    for (int i = 0; i < count; i++) {
        list[i] = kr_params_at(params, i)->tensor;
        names[i] = kr_params_at(params, i)->name;
    }
    differences_check(ctx, program, user, count, list, names, most, tolerance);
    free(list);
    free(names);
}
