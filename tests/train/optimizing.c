/* optimizing.c - the parameter table of the optimizers' tests, gradients by hand, and comparisons. */
#include "tests/train/optimizing.h"

#include "tape/tape_impl.h"

kr_params *optimizing_table(kr_ctx *ctx, kr_dtype dtype)
{
    static const kr_segment in_rows[] = {
        { "z", 14, true }, { "x", 6, true }, { "dt", 3, false }, { "rotation", 1, true }
    };
    static const kr_segment out_rows[] = { { "out", 9, true } };
    const kr_init normal = { .kind = KR_INIT_NORMAL, .a = 0, .b = 1 };
    kr_params *params = kr_params_create(ctx);
    const kr_param_spec specs[] = {
        { .name = "norm.weight",
          .axes = "d",
          .dtype = dtype == KR_DTYPE_F64 ? KR_DTYPE_F64 : KR_DTYPE_F32,
          .shape = KR_SHAPE(6) },
        { .name = "embed.weight", .axes = "w d", .dtype = dtype, .shape = KR_SHAPE(7, 5), .has_decay = true },
        { .name = "conv.weight", .axes = "v 1 k", .dtype = dtype, .shape = KR_SHAPE(4, 1, 3), .has_decay = true },
        { .name = "in_proj.weight",
          .axes = "zxdtr d",
          .dtype = dtype,
          .shape = KR_SHAPE(24, 12),
          .has_decay = true,
          .n_segments = 4,
          .segments = in_rows },
        { .name = "out_proj.weight",
          .axes = "d i",
          .dtype = dtype,
          .shape = KR_SHAPE(9, 4),
          .has_decay = true,
          .n_segments = 1,
          .segments = out_rows },
    };
    for (size_t i = 0; i < sizeof specs / sizeof *specs; i++) {
        kr_param_spec spec = specs[i];
        spec.init = normal;
        kr_params_add(params, &spec);
    }
    kr_ctx_seed(ctx, kr_test_seed());
    if (!kr_params_seal(params)) exit(2);
    return params;
}

void optimizing_give(kr_ctx *ctx, kr_tensor *param, const double *g)
{
    kr_tape *tape = kr_tape_create(ctx, KR_TAPE_GRAD);
    kr_tensor *wide = kr_from_data(tape, KR_DTYPE_F64, kr_tensor_shape(param), g);
    kr_tensor *narrow = kr_cast(tape, wide, kr_tensor_dtype(param));
    if (!narrow || !kr_grad_add(tape, param, narrow)) CHECK(false, "no gradient: %s", kr_ctx_message(ctx));
    kr_tape_destroy(tape);
}

void optimizing_give_all(kr_ctx *ctx, const kr_params *params, double size, double *g)
{
    int64_t at = 0;
    for (int64_t i = 0; i < kr_params_count(params); i++) {
        kr_tensor *param = kr_params_at(params, i)->tensor;
        const int64_t n = kr_tensor_count(param);
        double *draws = malloc((size_t)n * sizeof *draws);
        if (!draws) exit(2);
        for (int64_t e = 0; e < n; e++) draws[e] = (double)(float)(size * kr_test_normal());
        optimizing_give(ctx, param, draws);
        if (g) kr_tensor_read(kr_grad(param), KR_DTYPE_F64, g + at, n);
        free(draws);
        at += n;
    }
}

double *optimizing_values(const kr_params *params)
{
    double *values = malloc((size_t)kr_params_elements(params) * sizeof *values);
    if (!values) exit(2);
    int64_t at = 0;
    for (int64_t i = 0; i < kr_params_count(params); i++) {
        const kr_tensor *param = kr_params_at(params, i)->tensor;
        kr_tensor_read(param, KR_DTYPE_F64, values + at, kr_tensor_count(param));
        at += kr_tensor_count(param);
    }
    return values;
}

bool optimizing_same_weights(const kr_params *a, const kr_params *b)
{
    bool same = true;
    for (int64_t i = 0; i < kr_params_count(a); i++)
        same =
            CHECK_SAME_BITS(kr_params_at(a, i)->name, kr_params_at(a, i)->tensor, kr_params_at(b, i)->tensor) && same;
    return same;
}
