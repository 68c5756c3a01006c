/* test_mamba1_infinite.c - step_infinite against 400 tokens of the same: values and gradients.
 *
 * With rates of -exp(-0.7) at least and steps of 0.2 at least, 400 tokens leave exp(-400 0.2 0.49) = 1e-17 of what was
 * before; what remains is rounding, as above, and in the gradients of sums over all tokens.
 */
#include "tests/nn/mamba1_cases.h"

enum { MAX_WIDTH = 32, NS_LONG = 400, NGRADS = NPARAMS + 1 };

/* y [b d] and the gradients of the parameters and of x, last, where there are any. */
typedef struct tail {
    double *y, *g[NGRADS];
} tail;

static void limit_free(tail *l)
{
    free(l->y);
    for (int i = 0; i < NGRADS; i++) free(l->g[i]);
}

/* The closed form; or the last of so many tokens. */
static tail limit_of(kr_ctx *ctx, const kr_mamba1 *block, int64_t nd, const double *x, const double *g_y, bool closed)
{
    kr_tape *tape = kr_tape_create(ctx, KR_TAPE_GRAD);
    kr_tensor *x_bd = kr_input(tape, kr_from_data(tape, KR_DTYPE_F64, KR_SHAPE(2, nd), x)), *y_bd;
    if (closed) {
        y_bd = kr_mamba1_step_infinite(tape, block, x_bd);
    } else {
        kr_tensor *x_bsd = kr_expand(tape, kr_reshape(tape, x_bd, KR_SHAPE(2, 1, nd)), KR_SHAPE(2, NS_LONG, nd));
        kr_tensor *y_bsd = kr_mamba1_forward(tape, block, x_bsd, NULL).y;
        y_bd = kr_reshape(tape, kr_slice(tape, y_bsd, 1, NS_LONG - 1, NS_LONG), KR_SHAPE(2, nd));
    }
    kr_tensor *seed = kr_from_data(tape, KR_DTYPE_F64, KR_SHAPE(2, nd), g_y);
    kr_params_zero_grad(kr_mamba1_params(block));
    kr_backward_from(tape, 1, &y_bd, &seed);
    tail l = { .y = NULL };
    if (went_well(ctx)) {
        l.y = kr_test_values(y_bd);
        l.g[NPARAMS] = kr_test_values(kr_grad(x_bd));
        for (int i = 0; i < NPARAMS; i++) {
            kr_tensor *param = mamba1_param(block, i), *g = param ? kr_grad(param) : NULL;
            if (g) l.g[i] = kr_test_values(g);
        }
    }
    kr_tape_destroy(tape);
    return l;
}

/* 400 steps, keeping nothing. */
static void check_unrolled(kr_ctx *ctx, const char *what, const kr_mamba1 *block, int64_t nd, const double *x,
                           const double *y)
{
    kr_tape *tape = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    kr_tensor *x_bd = kr_from_data(tape, KR_DTYPE_F64, KR_SHAPE(2, nd), x);
    kr_mamba1_out step = { .y = NULL };
    for (int s = 0; s < NS_LONG; s++) {
        kr_scope scope = kr_no_grad_begin(tape);
        step = kr_mamba1_step(tape, block, x_bd, s == 0 ? NULL : &step.cache);
        kr_no_grad_end(tape, scope, KR_KEEP(&step.y, &step.cache.conv_bik, &step.cache.ssm_bir));
    }
    if (went_well(ctx)) CHECK_TENSORS(what, kr_from_data(tape, KR_DTYPE_F64, KR_SHAPE(2, nd), y), step.y, 1e-13, 1e-3);
    kr_tape_destroy(tape);
}

static void check_infinite(kr_ctx *ctx, const mamba1_case *k)
{
    kr_mamba1_config config = mamba1_case_config(k, KR_DTYPE_F64);
    config.dt_limit_min = 0.2;
    if (config.dt_limit_max < 1) config.dt_limit_max = 0.4;
    const int64_t nd = config.d_model;
    double x[2 * MAX_WIDTH], g_y[2 * MAX_WIDTH];
    for (int64_t i = 0; i < 2 * nd; i++) {
        x[i] = kr_test_normal();
        g_y[i] = kr_test_normal();
    }
    kr_mamba1 *block = mamba1_scattered(ctx, &config);
    tail got = limit_of(ctx, block, nd, x, g_y, true);
    /* the learned state is long forgotten: nothing, not even a gradient of zeros, when the table is new */
    CHECK(!got.g[INIT_STATE], "%s, forever: the learned state has a gradient", k->name);
    tail want = limit_of(ctx, block, nd, x, g_y, false);
    char what[96];
    snprintf(what, sizeof what, "%s, forever", k->name);
    check_unrolled(ctx, what, block, nd, x, got.y);
    for (int i = 0; i < NGRADS; i++) {
        char text[128];
        snprintf(text, sizeof text, "%s, gradient of %s", what, i < NPARAMS ? mamba1_names[i] : "x");
        CHECK(!got.g[i] == !want.g[i] || i == INIT_STATE, "%s: it is there for one of the two only", text);
        if (!got.g[i] || !want.g[i]) continue;
        const kr_tensor *of = i < NPARAMS ? mamba1_param(block, i) : NULL;
        CHECK_CLOSE(text, got.g[i], want.g[i], of ? kr_tensor_count(of) : 2 * nd, NULL, 1e-13, 1e-3);
    }
    limit_free(&got);
    limit_free(&want);
    kr_mamba1_destroy(block);
}

TEST(mamba1_step_infinite_is_the_limit)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    for (int i = 0; i < NCASES; i += kr_test_quick() ? 3 : 1) check_infinite(ctx, &mamba1_cases[i]);
    kr_ctx_destroy(ctx);
}

/* Steps of 0 leave the state 0: the skip is all there is. */
TEST(mamba1_step_infinite_without_steps)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    kr_mamba1_config config = mamba1_case_config(&mamba1_cases[0], KR_DTYPE_F64);
    config.dt_limit_max = 0;
    kr_mamba1 *block = mamba1_scattered(ctx, &config);
    kr_tape *tape = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    kr_tensor *x_bd = kr_randn(tape, KR_DTYPE_F64, KR_SHAPE(3, config.d_model));
    kr_tensor *x_bsd = kr_expand(tape, kr_reshape(tape, x_bd, KR_SHAPE(3, 1, -1)), KR_SHAPE(3, 4, config.d_model));
    kr_tensor *limit = kr_mamba1_step_infinite(tape, block, x_bd);
    kr_tensor *y = kr_slice(tape, kr_mamba1_forward(tape, block, x_bsd, NULL).y, 1, 3, 4);
    CHECK_TENSORS("steps of 0", limit, kr_reshape(tape, y, KR_SHAPE(3, -1)), 1e-13, 1e-3);
    went_well(ctx);
    kr_tape_destroy(tape);
    kr_mamba1_destroy(block);
    kr_ctx_destroy(ctx);
}
