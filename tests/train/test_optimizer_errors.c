/* test_optimizer_errors.c - what optimizers refuse, in which words, and that nothing has changed after it. */
#include "tests/error_tests.h"
#include "tests/train/optimizing.h"

static kr_params *params;
static kr_optimizer_options o;

static void init_options(void)
{
    kr_optimizer_options_init(&o);
    o.clip_norm = 0; /* no scaling down before what is refused */
}

static bool create(void)
{
    kr_optimizer *opt = kr_optimizer_create(ctx, params, &o);
    kr_optimizer_destroy(opt);
    init_options();
    return opt != NULL;
}

#define REFUSED_OPTION(set, text)                                                                                      \
    do {                                                                                                               \
        o.set;                                                                                                         \
        REFUSED(KR_ERR_ARG, "optimizer: " text, create());                                                             \
    } while (0)

TEST(optimizer_refuses_options)
{
    begin();
    params = optimizing_table(ctx, KR_DTYPE_F32);
    init_options();
    REFUSED_OPTION(kind = (kr_optimizer_kind)3, "kind = 3 is not a kr_optimizer_kind");
    REFUSED_OPTION(beta1 = 1, "beta1 = 1, but must be from 0 to below 1");
    REFUSED_OPTION(beta1 = -0.5, "beta1 = -0.5, but must be from 0 to below 1");
    REFUSED_OPTION(beta2 = (double)NAN, "beta2 = nan, but must be from 0 to below 1");
    REFUSED_OPTION(eps = 0, "eps = 0, but must be above 0 and finite");
    REFUSED_OPTION(weight_decay = -1, "weight_decay = -1, but must be finite and not negative");
    REFUSED_OPTION(weight_decay = (double)INFINITY, "weight_decay = inf, but must be finite and not negative");
    REFUSED_OPTION(momentum = 1, "momentum = 1, but must be from 0 to below 1");
    REFUSED_OPTION(dampening = 2, "dampening = 2, but must be from 0 to 1");
    o.use_nesterov = true;
    REFUSED_OPTION(dampening = 0.5, "use_nesterov needs a momentum (0.9) above 0 and a dampening (0.5) of 0");
    o.use_nesterov = true;
    REFUSED_OPTION(momentum = 0, "use_nesterov needs a momentum (0) above 0 and a dampening (0) of 0");
    REFUSED_OPTION(muon_momentum = 1, "muon_momentum = 1, but must be from 0 to below 1");
    REFUSED_OPTION(muon_steps = 0, "muon_steps = 0, but must be from 1 to 100");
    REFUSED_OPTION(muon_steps = 101, "muon_steps = 101, but must be from 1 to 100");
    REFUSED_OPTION(muon_coefficients[1] = (double)NAN, "muon_coefficients = 3.4445, nan, 2.0315, but must be finite");
    REFUSED_OPTION(muon_ratio = (kr_muon_ratio)4, "muon_ratio = 4 is not a kr_muon_ratio");
    REFUSED_OPTION(muon_weight_decay = -2, "muon_weight_decay = -2, but must be finite and not negative");
    REFUSED_OPTION(n_without = 1, "n_without = 1, but `without` is NULL or the number is negative");
    o.without = (const char *const[]){ "unknown" };
    REFUSED_OPTION(n_without = 1, "without[0] is 'unknown', but no parameter has such a segment");
    o.without = (const char *const[]){ "z", NULL };
    REFUSED_OPTION(n_without = 2, "without[1] is NULL");
    REFUSED_OPTION(clip_norm = -1, "clip_norm = -1, but must be finite and not negative");
    REFUSED_OPTION(clip_value = (double)NAN, "clip_value = nan, but must be finite and not negative");
    REFUSED_OPTION(ema_decay = 1, "ema_decay = 1, but must be from 0 to below 1");
    CHECK(create(), "the defaults are refused");
    kr_params_destroy(params);
    params = NULL;
    REFUSED(KR_ERR_ARG, "optimizer: the parameter table has no rows", create());
    end();
}

TEST(optimizer_refuses_tables)
{
    begin();
    init_options();
    params = kr_params_create(ctx);
    static const kr_segment rows[] = { { "a", 2, true }, { "b", 3, true } };
    kr_params_add(params, &(kr_param_spec){ .name = "cube",
                                            .axes = "a b c",
                                            .dtype = KR_DTYPE_F32,
                                            .shape = KR_SHAPE(5, 2, 2),
                                            .n_segments = 2,
                                            .segments = rows });
    kr_params_seal(params);
    CHECK(create(), "AdamW steps what has segments of any shape");
    o.kind = KR_OPTIMIZER_MUON;
    REFUSED(KR_ERR_SHAPE,
            "optimizer: cube [5, 2, 2] has segments of 5 rows in all, but Muon updates matrices, and all of their rows",
            create());
    kr_params_destroy(params);
    kr_ctx *other = kr_test_ctx(1, NULL);
    params = optimizing_table(other, KR_DTYPE_F32);
    REFUSED(KR_ERR_STATE, "optimizer: norm.weight belongs to another context", create());
    kr_params_destroy(params);
    kr_ctx_destroy(other);
    end();
}

/* ---- steps ---- */

static void give(const char *name, double value, int64_t place, double odd)
{
    double g[288];
    for (int i = 0; i < 288; i++) g[i] = i == place ? odd : value;
    optimizing_give(ctx, kr_params_find(params, name)->tensor, g);
}

/* A step that must fail with these words and change nothing. */
static void step_refused(kr_optimizer *opt, double lr, double scale, kr_status status, const char *text)
{
    kr_params *before = optimizing_table(ctx, KR_DTYPE_F32);
    for (int64_t i = 0; i < kr_params_count(params); i++) {
        const kr_tensor *w = kr_params_at(params, i)->tensor;
        kr_param_write(kr_params_at(before, i)->tensor, KR_DTYPE_F32, kr_test_copy(w), kr_tensor_count(w));
    }
    const int64_t steps = kr_optimizer_steps(opt);
    CHECK(kr_optimizer_step(opt, lr, scale) == status, "status");
    CHECK_ERROR(ctx, status, text);
    CHECK(kr_optimizer_steps(opt) == steps, "the step is counted");
    optimizing_same_weights(params, before);
    kr_params_destroy(before);
}

TEST(optimizer_refuses_steps)
{
    begin();
    init_options();
    params = optimizing_table(ctx, KR_DTYPE_F32);
    o.ema_decay = 0.5;
    kr_optimizer *opt = kr_optimizer_create(ctx, params, &o);
    step_refused(opt, 0.1, 1, KR_ERR_STATE,
                 "optimizer.step: no gradient has reached any parameter that is not frozen; call kr_backward before");
    give("conv.weight", 1, 5, (double)INFINITY);
    step_refused(
        opt, 0.1, 1, KR_ERR_NUMERIC,
        "optimizer.step: the gradient of conv.weight [4, 1, 3] holds inf at [1, 0, 2]; no parameter has changed");
    CHECK(isinf(kr_optimizer_grad_norm(opt)), "norm %g", kr_optimizer_grad_norm(opt));
    kr_params_zero_grad(params);
    give("norm.weight", 1, 0, 1);
    give("out_proj.weight", 0, 35, (double)NAN);
    step_refused(
        opt, 0.1, 1, KR_ERR_NUMERIC,
        "optimizer.step: the gradient of out_proj.weight [9, 4] holds nan at [8, 3]; no parameter has changed");
    kr_params_zero_grad(params);
    give("norm.weight", 0, 2, 3e20);
    step_refused(opt, 0.1, 1, KR_ERR_NUMERIC,
                 "optimizer.step: the gradient of norm.weight has the norm 3e+20, too large to be squared in f32; set "
                 "options.clip_norm; no parameter has changed");
    CHECK(kr_optimizer_step(opt, 0.1, 1e-10) == KR_OK, "scaled down it is small enough");
    give("norm.weight", 1, 0, 1);
    step_refused(opt, -1, 1, KR_ERR_ARG, "optimizer.step: lr = -1, but a learning rate is finite and not negative");
    step_refused(opt, (double)NAN, 1, KR_ERR_ARG,
                 "optimizer.step: lr = nan, but a learning rate is finite and not negative");
    step_refused(opt, 0.1, 0, KR_ERR_ARG, "optimizer.step: grad_scale = 0, but must be above 0 and finite");
    kr_optimizer_use_ema(opt, true);
    step_refused(
        opt, 0.1, 1, KR_ERR_STATE,
        "optimizer.step: the parameters hold the averaged weights; call kr_optimizer_use_ema(optimizer, false) "
        "first");
    CHECK(kr_optimizer_reread(opt) == KR_ERR_STATE, "rereads the averages");
    kr_ctx_clear(ctx);
    kr_optimizer_use_ema(opt, false);
    CHECK(kr_optimizer_step(opt, 0.1, 1) == KR_OK && kr_optimizer_steps(opt) == 2, "a good step is refused");
    kr_optimizer_destroy(opt);
    opt = kr_optimizer_create(ctx, params, NULL);
    CHECK(kr_optimizer_use_ema(opt, true) == KR_ERR_STATE, "there are no averages");
    CHECK_ERROR(ctx, KR_ERR_STATE,
                "optimizer.use_ema: there are no averaged weights; set options.ema_decay, 0.999 say");
    kr_optimizer_destroy(opt);
    kr_params_destroy(params);
    end();
}

/* The norm is of all gradients: with a clip a large one is scaled down, and clips by value go by elements. */
TEST(optimizer_steps_on_large_gradients_that_are_clipped)
{
    begin();
    params = optimizing_table(ctx, KR_DTYPE_F32);
    for (int by_value = 0; by_value < 2; by_value++) {
        init_options();
        if (by_value) o.clip_value = 1;
        else o.clip_norm = 1;
        kr_optimizer *opt = kr_optimizer_create(ctx, params, &o);
        give("norm.weight", 1e30, 2, 3e30);
        CHECK(kr_optimizer_step(opt, 0.1, 1) == KR_OK, "%s", kr_ctx_message(ctx));
        CHECK(kr_optimizer_grad_norm(opt) > 3e30, "norm %g", kr_optimizer_grad_norm(opt));
        double *w = kr_test_values(kr_params_find(params, "norm.weight")->tensor);
        for (int i = 0; i < 6; i++) CHECK(isfinite(w[i]), "%g", w[i]);
        free(w);
        kr_optimizer_destroy(opt);
    }
    kr_params_destroy(params);
    end();
}

TEST(optimizer_passes_nothing_through)
{
    kr_optimizer_destroy(NULL);
    char text[8] = "x";
    CHECK(kr_optimizer_step(NULL, 1, 1) == KR_ERR_ARG && kr_optimizer_reread(NULL) == KR_ERR_ARG &&
              kr_optimizer_use_ema(NULL, true) == KR_ERR_ARG,
          "NULL is stepped");
    CHECK(kr_optimizer_steps(NULL) == 0 && kr_optimizer_grad_norm(NULL) == 0 && kr_optimizer_bytes(NULL) == 0, "NULL");
    CHECK(kr_optimizer_describe(NULL, text, sizeof text) == 0 && text[0] == '\0', "'%s'", text);
    CHECK(strcmp(kr_optimizer_kind_name(KR_OPTIMIZER_MUON), "muon") == 0 &&
              strcmp(kr_optimizer_kind_name((kr_optimizer_kind)7), "?") == 0,
          "names");
}

/* ---- memory ---- */

TEST(optimizer_without_memory)
{
    begin();
    params = optimizing_table(ctx, KR_DTYPE_BF16);
    for (int kind = KR_OPTIMIZER_ADAMW; kind <= KR_OPTIMIZER_MUON; kind++)
        for (size_t n = 1;; n++) {
            init_options();
            o.kind = (kr_optimizer_kind)kind;
            o.ema_decay = 0.5;
            const kr_memory_stats before = kr_ctx_memory(ctx);
            kr_ctx_fail_allocation(ctx, n);
            kr_optimizer *opt = kr_optimizer_create(ctx, params, &o);
            kr_ctx_fail_allocation(ctx, 0);
            const bool made = opt != NULL;
            kr_optimizer_destroy(opt);
            CHECK(kr_ctx_memory(ctx).live_bytes == before.live_bytes, "allocation %zu leaks", n);
            if (made) {
                CHECK_OK(ctx);
                CHECK(n > 3, "only %zu allocations", n - 1);
                break;
            }
            CHECK(kr_ctx_status(ctx) == KR_ERR_NOMEM, "allocation %zu: %s", n, kr_ctx_message(ctx));
            kr_ctx_clear(ctx);
        }
    kr_params_destroy(params);
    end();
}

/* Saving and loading, each allocation refused in turn. */
static bool saves(const kr_optimizer *opt)
{
    kr_tensor_writer *writer = kr_tensor_writer_create(ctx);
    const bool saved = kr_optimizer_snapshot(opt, writer) == KR_OK && !kr_ctx_failed(ctx);
    kr_tensor_writer_destroy(writer);
    return saved;
}

TEST(optimizer_saves_without_memory)
{
    begin();
    init_options();
    params = optimizing_table(ctx, KR_DTYPE_F32);
    kr_optimizer *opt = kr_optimizer_create(ctx, params, &o);
    for (size_t n = 1;; n++) {
        const size_t before = kr_ctx_memory(ctx).live_bytes;
        kr_ctx_fail_allocation(ctx, n);
        const bool saved = saves(opt);
        kr_ctx_fail_allocation(ctx, 0);
        CHECK(kr_ctx_memory(ctx).live_bytes == before, "allocation %zu leaks", n);
        if (saved) break;
        CHECK(kr_ctx_status(ctx) == KR_ERR_NOMEM, "allocation %zu: %s", n, kr_ctx_message(ctx));
        kr_ctx_clear(ctx);
    }
    kr_optimizer_destroy(opt);
    kr_params_destroy(params);
    end();
}
