/* test_mlp.c - the gated MLP against plain loops, its gradients against differences, its rows of the table. */
#include "tests/harness.h"
#include "tests/nn/differences.h"

#include "nn/mlp.h"

TEST(hidden_is_rounded_up)
{
    const int64_t cases[][3] = { { 1264, 128, 1280 }, { 1536, 128, 1536 }, { 1, 128, 128 },
                                 { 129, 128, 256 },   { 7, 1, 7 },         { 0, 128, -1 },
                                 { -5, 128, -1 },     { 5, 0, -1 },        { INT64_MAX, 128, -1 } };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        CHECK(kr_mlp_hidden(cases[i][0], cases[i][1]) == cases[i][2], "%lld by %lld gives %lld", (long long)cases[i][0],
              (long long)cases[i][1], (long long)kr_mlp_hidden(cases[i][0], cases[i][1]));
}

enum { NB = 2, NS = 3, ND = 5, NH = 4 };

typedef struct made {
    kr_params *params;
    kr_mlp mlp;
    kr_tensor *x;
} made;

static made make(kr_ctx *ctx, kr_dtype dtype, bool has_bias)
{
    made m = { .params = kr_params_create(ctx), .x = kr_param_create(ctx, dtype, KR_SHAPE(NB, NS, ND)) };
    kr_mlp_declare(&m.mlp, m.params, dtype, ND, NH, has_bias);
    kr_params_seal(m.params);
    kr_param_normal(m.x, 0, 1);
    CHECK_OK(ctx);
    return m;
}

static void unmake(made *m)
{
    kr_params_destroy(m->params);
    kr_param_destroy(m->x);
}

/* One row in plain C. */
static void row_of(const made *m, const double *x, double *y)
{
    const double *w1 = kr_test_copy(m->mlp.fc1), *w2 = kr_test_copy(m->mlp.fc2);
    const double *b1 = kr_test_copy(m->mlp.fc1_bias), *b2 = kr_test_copy(m->mlp.fc2_bias);
    double both[2 * NH];
    for (int o = 0; o < 2 * NH; o++) {
        both[o] = b1 ? b1[o] : 0;
        for (int i = 0; i < ND; i++) both[o] += x[i] * w1[o * ND + i];
    }
    for (int o = 0; o < ND; o++) {
        y[o] = b2 ? b2[o] : 0;
        for (int i = 0; i < NH; i++) y[o] += both[i] * both[NH + i] / (1 + exp(-both[NH + i])) * w2[o * NH + i];
    }
}

TEST(values_first)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    for (int has_bias = 0; has_bias < 2; has_bias++) {
        made m = make(ctx, KR_DTYPE_F64, has_bias);
        kr_tape *tape = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
        kr_tensor *y = kr_mlp_run(tape, &m.mlp, m.x);
        double want[NB * NS * ND];
        for (int row = 0; row < NB * NS; row++) row_of(&m, (double *)kr_test_copy(m.x) + row * ND, want + row * ND);
        double *got = kr_test_values(y);
        CHECK_CLOSE("mlp", got, want, NB * NS * ND, NULL, 1e-14, 1); /* a few roundings of f64 */
        free(got);
        /* a single token is a row of the sequence */
        kr_tensor *x1 = kr_slice(tape, kr_slice(tape, m.x, 0, 1, 2), 1, 2, 3);
        kr_tensor *y1 = kr_mlp_run(tape, &m.mlp, kr_reshape(tape, x1, KR_SHAPE(1, ND)));
        CHECK_CLOSE("one row", kr_test_copy(y1), want + (NS + 2) * ND, ND, NULL, 1e-14, 1);
        CHECK_OK(ctx);
        kr_tape_destroy(tape);
        unmake(&m);
    }
    kr_ctx_destroy(ctx);
}

static kr_tensor *loss(kr_tape *tape, void *user)
{
    const made *m = user;
    return differences_weigh(tape, kr_mlp_run(tape, &m->mlp, m->x), 0);
}

/* f64 differences are good to some 1e-10 here. */
TEST(gradients)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    made m = make(ctx, KR_DTYPE_F64, true);
    differences_check_table(ctx, loss, &m, m.params, 100, 1e-8);
    differences_check(ctx, loss, &m, 1, &m.x, (const char *[]){ "x" }, 100, 1e-8);
    unmake(&m);
    kr_ctx_destroy(ctx);
}

TEST(rows_of_the_table)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    kr_params *params = kr_params_create(ctx);
    kr_mlp mlp;
    const size_t outer = kr_params_enter(params, "layers.3.");
    kr_mlp_declare(&mlp, params, KR_DTYPE_F32, ND, NH, true);
    kr_params_leave(params, outer);
    kr_params_rescale_residual(params, 0.5);
    CHECK(kr_params_seal(params), "sealed: %s", kr_ctx_message(ctx));
    const kr_param_row *fc1 = kr_params_find(params, "layers.3.mlp.fc1.weight"),
                       *fc2 = kr_params_find(params, "layers.3.mlp.fc2.weight");
    if (CHECK(kr_params_count(params) == 4 && fc1 && fc2 && kr_params_find(params, "layers.3.mlp.fc1.bias") &&
                  kr_params_find(params, "layers.3.mlp.fc2.bias"),
              "the names")) {
        CHECK(fc1->n_segments == 2 && strcmp(fc1->segments[0].name, "value") == 0 && fc1->segments[0].rows == NH &&
                  strcmp(fc1->segments[1].name, "gate") == 0 && fc1->segments[1].rows == NH &&
                  fc1->segments[0].use_muon && fc1->segments[1].use_muon && fc1->has_decay && fc1->init_scale == 1,
              "fc1");
        CHECK(fc2->n_segments == 1 && fc2->segments[0].rows == ND && fc2->segments[0].use_muon && fc2->has_decay &&
                  fc2->init_scale == 0.5,
              "fc2 ends a residual branch");
        CHECK(!kr_params_find(params, "layers.3.mlp.fc1.bias")->has_decay &&
                  !kr_params_find(params, "layers.3.mlp.fc2.bias")->has_decay,
              "biases do not decay");
        double *w = kr_test_values(fc1->tensor);
        for (int i = 0; i < 2 * NH * ND; i++) CHECK(fabs(w[i]) <= 1 / sqrt(ND), "fc1 is drawn from +-1/sqrt(d)");
        free(w);
    }
    kr_params_destroy(params);
    kr_ctx_destroy(ctx);
}
