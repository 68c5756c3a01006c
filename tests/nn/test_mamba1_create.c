/* test_mamba1_create.c - what a Mamba-1 block is made of, and what is refused: parameters with their names, shapes and
 * initial values, every field of the config, wrong inputs and caches, every allocation.
 */
#include "tests/memory.h"
#include "tests/nn/mamba1_cases.h"
#include "tests/error_tests.h"

#include "nn/block_impl.h"

/* ---- the table ---- */

typedef struct wanted {
    const char *name, *axes;
    kr_shape shape;
    kr_dtype dtype;
    bool has_decay;
    const char *segments; /* "x 64, dt 2 adamw" */
} wanted;

static void check_row(const kr_param_row *row, const wanted *w)
{
    char segments[128] = "", shape[KR_SHAPE_TEXT_BYTES];
    for (int i = 0; i < row->n_segments; i++) {
        const kr_segment *s = &row->segments[i];
        const size_t used = strlen(segments);
        snprintf(segments + used, sizeof segments - used, "%s%s %lld%s", i ? ", " : "", s->name, (long long)s->rows,
                 s->use_muon ? "" : " adamw");
    }
    const kr_shape got = kr_tensor_shape(row->tensor);
    CHECK(strcmp(row->name, w->name) == 0, "%s is where %s should be", row->name, w->name);
    CHECK(strcmp(row->axes, w->axes) == 0, "%s: axes \"%s\", not \"%s\"", w->name, row->axes, w->axes);
    CHECK(kr_shape_equal(&got, &w->shape), "%s is %s", w->name, kr_shape_text(row->tensor, shape, sizeof shape));
    CHECK(kr_tensor_dtype(row->tensor) == w->dtype, "%s is %s", w->name, kr_dtype_name(kr_tensor_dtype(row->tensor)));
    CHECK(row->has_decay == w->has_decay, "%s %s", w->name, row->has_decay ? "decays" : "does not decay");
    CHECK(strcmp(segments, w->segments) == 0, "%s: segments \"%s\", not \"%s\"", w->name, segments, w->segments);
    CHECK(kr_requires_grad(row->tensor), "%s needs no gradient", w->name);
}

static void check_table(const kr_mamba1_config *config, int64_t count, const wanted *rows)
{
    kr_mamba1 *block = kr_mamba1_create(ctx, config);
    const kr_params *params = kr_mamba1_params(block);
    CHECK(kr_params_count(params) == count, "%lld rows, not %lld", (long long)kr_params_count(params),
          (long long)count);
    for (int64_t i = 0; i < count && i < kr_params_count(params); i++) check_row(kr_params_at(params, i), &rows[i]);
    kr_mamba1_destroy(block);
}

TEST(mamba1_table_of_the_defaults)
{
    begin();
    kr_mamba1_config config;
    kr_mamba1_config_init(&config);
    config.d_model = 32;
    const wanted rows[] = {
        { "A_log", "i r", KR_SHAPE(64, 16), KR_DTYPE_F32, false, "" },
        { "D", "i", KR_SHAPE(64), KR_DTYPE_F32, false, "" },
        { "in_proj.weight", "xz d", KR_SHAPE(128, 32), KR_DTYPE_F32, true, "x 64, z 64" },
        { "conv1d.weight", "i 1 k", KR_SHAPE(64, 1, 4), KR_DTYPE_F32, true, "" },
        { "conv1d.bias", "i", KR_SHAPE(64), KR_DTYPE_F32, false, "" },
        { "x_proj.weight", "dtbc i", KR_SHAPE(34, 64), KR_DTYPE_F32, true, "dt 2 adamw, b 16, c 16" },
        { "dt_proj.weight", "i x", KR_SHAPE(64, 2), KR_DTYPE_F32, true, "" },
        { "dt_proj.bias", "i", KR_SHAPE(64), KR_DTYPE_F32, false, "" },
        { "out_proj.weight", "d i", KR_SHAPE(32, 64), KR_DTYPE_F32, true, "out 32" },
    };
    check_table(&config, 9, rows);
    end();
}

/* All that is optional, and halves: matrices in bf16, what is small in f32. */
TEST(mamba1_table_of_everything)
{
    begin();
    kr_mamba1_config config = mamba1_case_config(&mamba1_cases[NCASES - 1], KR_DTYPE_BF16);
    config.has_conv_bias = true;
    const wanted rows[] = {
        { "A_log", "i r", KR_SHAPE(13, 3), KR_DTYPE_F32, false, "" },
        { "D", "i", KR_SHAPE(13), KR_DTYPE_F32, false, "" },
        { "in_proj.weight", "xz d", KR_SHAPE(26, 7), KR_DTYPE_BF16, true, "x 13, z 13" },
        { "in_proj.bias", "xz", KR_SHAPE(26), KR_DTYPE_F32, false, "" },
        { "conv1d.weight", "i 1 k", KR_SHAPE(13, 1, 5), KR_DTYPE_BF16, true, "" },
        { "conv1d.bias", "i", KR_SHAPE(13), KR_DTYPE_F32, false, "" },
        { "x_proj.weight", "dtbc i", KR_SHAPE(9, 13), KR_DTYPE_BF16, true, "dt 3 adamw, b 3, c 3" },
        { "dt_proj.weight", "i x", KR_SHAPE(13, 3), KR_DTYPE_BF16, true, "" },
        { "dt_proj.bias", "i", KR_SHAPE(13), KR_DTYPE_F32, false, "" },
        { "out_proj.weight", "d i", KR_SHAPE(7, 13), KR_DTYPE_BF16, true, "out 7" },
        { "out_proj.bias", "d", KR_SHAPE(7), KR_DTYPE_F32, false, "" },
        { "init_states", "i r", KR_SHAPE(13, 3), KR_DTYPE_F32, false, "" },
    };
    check_table(&config, 12, rows);
    end();
}

TEST(mamba1_dt_rank_by_default)
{
    static const int64_t pairs[][2] = { { 1, 1 }, { 15, 1 }, { 16, 1 }, { 17, 2 }, { 33, 3 }, { 256, 16 } };
    begin();
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        kr_mamba1_config config;
        kr_mamba1_config_init(&config);
        config.d_model = pairs[i][0];
        config.state_rank = 4; /* has no say in it */
        kr_mamba1 *block = kr_mamba1_create(ctx, &config);
        const int64_t nx = kr_tensor_dim(mamba1_param(block, DT_PROJ), 1);
        CHECK(nx == pairs[i][1], "d_model %lld: dt_rank %lld, not %lld", (long long)pairs[i][0], (long long)nx,
              (long long)pairs[i][1]);
        kr_mamba1_destroy(block);
    }
    end();
}

/* In the table of a network: a prefix, one table for all, and a scale for what ends a residual branch. */
TEST(mamba1_in_a_table_of_others)
{
    begin();
    kr_mamba1_config config = mamba1_case_config(&mamba1_cases[7], KR_DTYPE_F32);
    kr_params *params = kr_params_create(ctx);
    const size_t outer = kr_params_enter(params, "layers.%d.mixer.", 3);
    kr_mamba1 *block = kr_mamba1_kind.create(ctx, params, &config);
    kr_params_leave(params, outer);
    kr_params_rescale_residual(params, 0.25);
    CHECK(kr_params_seal(params), "%s", kr_ctx_message(ctx));
    CHECK(kr_params_count(params) == 11, "%lld rows", (long long)kr_params_count(params));
    CHECK(kr_mamba1_params(block) == NULL, "a block in another's table has a table of its own");
    for (int64_t i = 0; i < kr_params_count(params); i++) {
        const kr_param_row *row = kr_params_at(params, i);
        const bool is_out = strcmp(row->name, "layers.3.mixer.out_proj.weight") == 0;
        CHECK(row->init_scale == (is_out ? 0.25 : 1), "%s is scaled by %g", row->name, row->init_scale);
    }
    CHECK(kr_params_find(params, "layers.3.mixer.A_log") != NULL, "no prefix");
    kr_block_free(block);
    kr_params_destroy(params);
    end();
}

/* ---- the initial values ---- */

/* All within +-bound, and some near either end: all of n draws are below 0.8 bound once in exp(n / 10) times. */
static void check_uniform(const kr_mamba1 *block, int i, double bound)
{
    double *v = kr_test_values(mamba1_param(block, i));
    const int64_t n = kr_tensor_count(mamba1_param(block, i));
    double least = v[0], most = v[0];
    for (int64_t j = 0; j < n; j++) {
        least = fmin(least, v[j]);
        most = fmax(most, v[j]);
    }
    CHECK(least >= -bound && most <= bound, "%s: %g .. %g is beyond +-%g", mamba1_names[i], least, most, bound);
    CHECK(least < -0.8 * bound && most > 0.8 * bound, "%s: %g .. %g does not fill +-%g", mamba1_names[i], least, most,
          bound);
    free(v);
}

static void check_fill(const kr_mamba1 *block, int i, double value)
{
    double *v = kr_test_values(mamba1_param(block, i));
    for (int64_t j = 0; j < kr_tensor_count(mamba1_param(block, i)); j++)
        if (!CHECK(v[j] == value, "%s[%lld] = %g, not %g", mamba1_names[i], (long long)j, v[j], value)) break;
    free(v);
}

/* softplus(bias) is log-uniform from dt_min to dt_max, but dt_init_floor at least: the draws below it are equal to it,
 * within 1e-12, as softplus^-1 and back lose some digits of 1e-3. */
static void check_steps(const kr_mamba1 *block, double low, double high, double floor)
{
    double *v = kr_test_values(mamba1_param(block, DT_BIAS));
    const int64_t n = kr_tensor_count(mamba1_param(block, DT_BIAS));
    int64_t at_floor = 0;
    double mean = 0, least = INFINITY, most = 0;
    for (int64_t j = 0; j < n; j++) {
        const double dt = log1p(exp(v[j]));
        least = fmin(least, dt);
        most = fmax(most, dt);
        at_floor += fabs(dt / floor - 1) < 1e-12;
        mean += log(dt) / (double)n;
    }
    const double from = fmax(low, floor), share = floor > low ? log(floor / low) / log(high / low) : 0;
    CHECK(least >= from * (1 - 1e-12) && most < high, "steps from %g to %g, not from %g to %g", least, most, from,
          high);
    CHECK(least < from * 1.5 && most > high / 1.5, "steps from %g to %g do not fill %g to %g", least, most, from, high);
    /* five standard deviations of a share among n, and of a mean over a range */
    CHECK(fabs((double)at_floor / (double)n - share) <= 5 * sqrt(share * (1 - share) / (double)n),
          "%lld of %lld steps are at the floor, not %g of them", (long long)at_floor, (long long)n, share);
    if (share == 0)
        CHECK(fabs(mean - log(low * high) / 2) < 5 * log(high / low) / sqrt(12.0 * (double)n),
              "the mean of log dt is %g, not %g", mean, log(low * high) / 2);
    free(v);
}

TEST(mamba1_begins_as_officially)
{
    begin();
    kr_mamba1_config config;
    kr_mamba1_config_init(&config);
    config.dtype = KR_DTYPE_F64;
    config.d_model = 160;
    config.has_proj_bias = config.has_learnable_init_state = true;
    kr_mamba1 *block = kr_mamba1_create(ctx, &config);
    double *a_log = kr_test_values(mamba1_param(block, A_LOG));
    for (int64_t j = 0; j < 320 * 16; j++)
        CHECK(fabs(a_log[j] - log((double)(j % 16 + 1))) < 1e-15, "A_log[%lld] = %g", (long long)j, a_log[j]);
    free(a_log);
    check_fill(block, SKIP_D, 1);
    check_fill(block, INIT_STATE, 0);
    check_uniform(block, IN, 1 / sqrt(160.0));
    check_uniform(block, IN_BIAS, 1 / sqrt(160.0));
    check_uniform(block, CONV, 0.5);
    check_uniform(block, CONV_BIAS, 0.5);
    check_uniform(block, X_PROJ, 1 / sqrt(320.0));
    check_uniform(block, DT_PROJ, 1 / sqrt(10.0));
    check_uniform(block, OUT, 1 / sqrt(320.0));
    check_uniform(block, OUT_BIAS, 1 / sqrt(320.0));
    check_steps(block, 1e-3, 0.1, 1e-4);
    kr_mamba1_destroy(block);
    end();
}

TEST(mamba1_begins_as_told)
{
    begin();
    kr_mamba1_config config;
    kr_mamba1_config_init(&config);
    config.dtype = KR_DTYPE_F64;
    config.d_model = 160;
    config.dt_rank = 9;
    config.dt_scale = 0.5;
    config.dt_min = 0.01;
    config.dt_max = 0.5;
    config.dt_init_floor = 0.05;
    kr_mamba1 *block = kr_mamba1_create(ctx, &config);
    check_uniform(block, DT_PROJ, 0.5 / 3);
    check_steps(block, 0.01, 0.5, 0.05);
    kr_mamba1_destroy(block);

    config.has_constant_dt = true;
    block = kr_mamba1_create(ctx, &config);
    check_fill(block, DT_PROJ, 0.5 / 3);
    kr_mamba1_destroy(block);

    config.dt_scale = 0;
    block = kr_mamba1_create(ctx, &config);
    check_fill(block, DT_PROJ, 0);
    kr_mamba1_destroy(block);
    end();
}

TEST(mamba1_values_follow_the_seed)
{
    begin();
    const kr_mamba1_config config = mamba1_case_config(&mamba1_cases[0], KR_DTYPE_F32);
    kr_ctx_seed(ctx, 7);
    kr_mamba1 *one = kr_mamba1_create(ctx, &config);
    kr_mamba1 *other = kr_mamba1_create(ctx, &config);
    kr_ctx_seed(ctx, 7);
    kr_mamba1 *again = kr_mamba1_create(ctx, &config);
    for (int i = 0; i < NPARAMS; i++)
        if (mamba1_param(one, i)) CHECK_SAME_BITS(mamba1_names[i], mamba1_param(one, i), mamba1_param(again, i));
    double *a = kr_test_values(mamba1_param(one, IN)), *b = kr_test_values(mamba1_param(other, IN));
    CHECK(a[0] != b[0], "two blocks begin alike");
    free(a);
    free(b);
    kr_mamba1_destroy(one);
    kr_mamba1_destroy(other);
    kr_mamba1_destroy(again);
    end();
}

/* ---- configs ---- */

static void refuse(kr_status status, const char *text, kr_mamba1_config config)
{
    REFUSED(status, text, kr_mamba1_create(ctx, &config));
}

/* The defaults at d_model = 32 but for one field. */
#define REFUSE_FIELD(field, value, why)                                                                                \
    do {                                                                                                               \
        kr_mamba1_config bad = mamba1_case_config(&mamba1_cases[0], KR_DTYPE_F32);                                     \
        bad.field = (value);                                                                                           \
        refuse(KR_ERR_ARG, "mamba1.create: " why, bad);                                                                \
    } while (0)

TEST(mamba1_config_sizes)
{
    begin();
    REFUSE_FIELD(d_model, 0, "d_model = 0, but must be at least 1");
    REFUSE_FIELD(d_model, -3, "d_model = -3, but must be at least 1");
    REFUSE_FIELD(d_model, INT64_MAX, "d_model = 9223372036854775807, but must be at most 1073741824");
    REFUSE_FIELD(state_rank, 0, "state_rank = 0, but must be at least 1");
    REFUSE_FIELD(state_rank, INT64_MAX, "state_rank = 9223372036854775807, but must be at most 1073741824");
    REFUSE_FIELD(conv_kernel, 0, "conv_kernel = 0, but must be at least 1");
    REFUSE_FIELD(conv_kernel, (1LL << 30) + 1, "conv_kernel = 1073741825, but must be at most 1073741824");
    REFUSE_FIELD(expand, 0, "expand = 0, but must be at least 1");
    REFUSE_FIELD(expand, INT64_MAX, "expand = 9223372036854775807, but must be at most 1073741824");
    REFUSE_FIELD(d_inner, -1, "d_inner = -1, but must be at least 0");
    REFUSE_FIELD(d_inner, INT64_MAX, "d_inner = 9223372036854775807, but must be at most 1073741824");
    REFUSE_FIELD(dt_rank, -1, "dt_rank = -1, but must be at least 0");
    REFUSE_FIELD(dt_rank, INT64_MAX, "dt_rank = 9223372036854775807, but must be at most 1073741824");
    end();
}

TEST(mamba1_config_steps)
{
    begin();
    REFUSE_FIELD(dt_min, 0, "dt_min = 0, but must be above 0 and finite");
    REFUSE_FIELD(dt_min, 0.2, "dt_min = 0.2 is above dt_max = 0.1");
    REFUSE_FIELD(dt_min, (double)NAN, "dt_min = nan, but must be above 0 and finite");
    REFUSE_FIELD(dt_max, (double)INFINITY, "dt_max = inf, but must be above 0 and finite");
    REFUSE_FIELD(dt_init_floor, -1, "dt_init_floor = -1, but must be above 0 and finite");
    REFUSE_FIELD(dt_scale, -0.5, "dt_scale = -0.5, but must be finite and not negative");
    REFUSE_FIELD(bcdt_norm_eps, -1e-6, "bcdt_norm_eps = -1e-06, but must be finite and not negative; 0 means no norm");
    REFUSE_FIELD(bcdt_norm_eps, (double)NAN,
                 "bcdt_norm_eps = nan, but must be finite and not negative; 0 means no norm");
    REFUSE_FIELD(dt_scale, (double)INFINITY, "dt_scale = inf, but must be finite and not negative");
    REFUSE_FIELD(dt_limit_min, -1, "dt_limit_min = -1, but must be finite and not negative");
    REFUSE_FIELD(dt_limit_min, (double)INFINITY, "dt_limit_min = inf, but must be finite and not negative");
    REFUSE_FIELD(dt_limit_max, -2, "dt_limit_max = -2, but must be at least dt_limit_min = 0");
    REFUSE_FIELD(dt_limit_max, (double)NAN, "dt_limit_max = nan, but must be at least dt_limit_min = 0");
    end();
}

TEST(mamba1_config_as_a_whole)
{
    begin();
    kr_mamba1_config config = mamba1_case_config(&mamba1_cases[0], KR_DTYPE_I32);
    refuse(KR_ERR_DTYPE, "mamba1.create: dtype = i32, but must be f32, f64, bf16 or f16", config);
    config.dtype = (kr_dtype)99;
    refuse(KR_ERR_DTYPE, "mamba1.create: dtype = ?, but must be f32, f64, bf16 or f16", config);
    config.dtype = KR_DTYPE_F32;
    REFUSED(KR_ERR_ARG, "mamba1.create: config is NULL", kr_mamba1_create(ctx, NULL));
    /* sizes that are none together: in_proj would be of 2^91 elements */
    config = mamba1_case_config(&mamba1_cases[0], KR_DTYPE_F32);
    config.d_model = config.expand = 1LL << 30;
    CHECK(!kr_mamba1_create(ctx, &config), "a block of 2^64 bytes and more is made");
    CHECK_ERROR_HAS(ctx, KR_ERR_SHAPE, "param: invalid shape: ");
    /* an older caller's struct is shorter; what it does not have is at its default */
    config = mamba1_case_config(&mamba1_cases[0], KR_DTYPE_F32);
    config.has_learnable_init_state = true;
    config.size = offsetof(kr_mamba1_config, has_learnable_init_state);
    kr_mamba1 *block = kr_mamba1_create(ctx, &config);
    CHECK(block && !mamba1_param(block, INIT_STATE), "a field beyond the size is read");
    kr_mamba1_destroy(block);
    kr_mamba1_destroy(NULL);
    CHECK(kr_mamba1_params(NULL) == NULL, "no block has parameters");
    end();
}

/* ---- calls ---- */

TEST(mamba1_refuses_inputs)
{
    begin();
    const kr_mamba1_config config = mamba1_case_config(&mamba1_cases[0], KR_DTYPE_F32);
    kr_mamba1 *m = kr_mamba1_create(ctx, &config);
    REFUSED(KR_ERR_SHAPE, "mamba1.forward: axis d of x [2, 5, 16] is 16, but the block has d_model = 32",
            kr_mamba1_forward(t, m, F(2, 5, 16), NULL).y);
    REFUSED(KR_ERR_SHAPE, "mamba1.forward: x [2, 0, 32] is empty; at least one row and one token are needed",
            kr_mamba1_forward(t, m, F(2, 0, 32), NULL).y);
    REFUSED(KR_ERR_DTYPE, "mamba1.forward: x is f64, but the block is f32; cast x, or create the block with that dtype",
            kr_mamba1_forward(t, m, D(2, 5, 32), NULL).y);
    REFUSED(KR_ERR_DTYPE, "mamba1.forward: x is i32, but the block is f32; cast x, or create the block with that dtype",
            kr_mamba1_forward(t, m, I(2, 5, 32), NULL).y);
    REFUSED(KR_ERR_ARG, "block.forward: the block is NULL", kr_mamba1_forward(t, NULL, F(2, 5, 32), NULL).y);
    REFUSED(KR_ERR_SHAPE, "mamba1.step: axis d of x [2, 16] is 16, but the block has d_model = 32",
            kr_mamba1_step(t, m, F(2, 16), NULL).y);
    REFUSED(KR_ERR_ARG, "block.step: the block is NULL", kr_mamba1_step(t, NULL, F(2, 32), NULL).y);
    REFUSED(KR_ERR_SHAPE, "mamba1.step_infinite: axis d of x [2, 16] is 16, but the block has d_model = 32",
            kr_mamba1_step_infinite(t, m, F(2, 16)));
    REFUSED(KR_ERR_ARG, "block.step_infinite: the block is NULL", kr_mamba1_step_infinite(t, NULL, F(2, 32)));
    REFUSED(KR_ERR_ARG, "mamba1.initial_cache: batch = 0, but must be at least 1",
            kr_mamba1_initial_cache(t, m, 0).conv_bik);
    REFUSED(KR_ERR_ARG, "block.initial_cache: the block is NULL", kr_mamba1_initial_cache(t, NULL, 1).ssm_bir);
    kr_mamba1_destroy(m);
    end();
}

static kr_tensor *of_another_family(const kr_mamba1 *m)
{
    const kr_cache other = { KR_FAMILY_MAMBA2, { .mamba1 = { F(2, 64, 4), F(2, 64, 16) } } };
    const kr_block_input input = { .op = "mamba1.forward", .x_bsd = F(2, 5, 32), .cache = &other };
    return kr_mamba1_kind.forward(t, m, &input).y_bsd;
}

TEST(mamba1_refuses_caches)
{
    begin();
    const kr_mamba1_config config = mamba1_case_config(&mamba1_cases[0], KR_DTYPE_F32);
    kr_mamba1 *m = kr_mamba1_create(ctx, &config);
#define CACHE(conv, ssm) &(kr_mamba1_cache){ conv, ssm }
    REFUSED(KR_ERR_SHAPE, "mamba1.forward: cache.conv [2, 64, 3] must be [2, 64, 4]: one for each row of x",
            kr_mamba1_forward(t, m, F(2, 5, 32), CACHE(F(2, 64, 3), F(2, 64, 16))).y);
    REFUSED(KR_ERR_SHAPE, "mamba1.forward: cache.ssm [1, 64, 16] must be [2, 64, 16]: one for each row of x",
            kr_mamba1_forward(t, m, F(2, 5, 32), CACHE(F(2, 64, 4), F(1, 64, 16))).y);
    REFUSED(KR_ERR_ARG, "mamba1.step: cache.ssm is NULL; a cache has all its tensors, or pass NULL for the initial one",
            kr_mamba1_step(t, m, F(2, 32), CACHE(F(2, 64, 4), NULL)).y);
    REFUSED(KR_ERR_SHAPE,
            "mamba1.forward_packed: cache.conv [2, 64, 4] must be [3, 64, 4]: one for each sequence of seq_start",
            kr_mamba1_forward_packed(t, m, F(2, 2, 32),
                                     kr_from_data(t, KR_DTYPE_I32, KR_SHAPE(2, 2), (int32_t[]){ 1, 0, 1, 1 }),
                                     CACHE(F(2, 64, 4), F(2, 64, 16)))
                .y);
    REFUSED(KR_ERR_SHAPE, "mamba1.forward_reset: cache.conv [1, 64, 4] must be [2, 64, 4]: one for each row",
            kr_mamba1_forward_reset(t, m, F(2, 2, 32), I(2, 2), CACHE(F(1, 64, 4), F(2, 64, 16))).y);
    REFUSED(KR_ERR_DTYPE,
            "mamba1.forward: cache.conv is f64, but the block is f32; cast it, or create the block with that dtype",
            kr_mamba1_forward(t, m, F(2, 5, 32), CACHE(D(2, 64, 4), F(2, 64, 16))).y);
    REFUSED(KR_ERR_DTYPE,
            "mamba1.forward: cache.ssm is f64, but the block is f32; cast it, or create the block with that dtype",
            kr_mamba1_forward(t, m, F(2, 5, 32), CACHE(F(2, 64, 4), D(2, 64, 16))).y);
    REFUSED(KR_ERR_ARG, "mamba1.forward: the cache is of the family mamba2, but the block is mamba1",
            of_another_family(m));
    CHECK(kr_cache_count(KR_FAMILY_MAMBA1) == 2 && strcmp(kr_cache_name(KR_FAMILY_MAMBA1, 0), "conv") == 0 &&
              strcmp(kr_cache_name(KR_FAMILY_MAMBA1, 1), "ssm") == 0 && !kr_cache_name(KR_FAMILY_MAMBA1, 2),
          "a cache is of other tensors than conv and ssm");
    kr_mamba1_destroy(m);
    end();
}

/* ---- memory ---- */

TEST(mamba1_create_with_every_allocation_refused)
{
    begin();
    const kr_mamba1_config config = mamba1_case_config(&mamba1_cases[NCASES - 1], KR_DTYPE_BF16);
    const kr_memory_stats idle = all_memory(ctx);
    kr_mamba1 *block = NULL;
    size_t n = 0;
    while (!block && n < 1000) {
        kr_ctx_fail_allocation(ctx, ++n);
        block = kr_mamba1_create(ctx, &config);
        kr_ctx_fail_allocation(ctx, 0);
        if (!block) CHECK_ERROR_HAS(ctx, KR_ERR_NOMEM, "no memory for");
        kr_mamba1_destroy(block);
        const kr_memory_stats left = all_memory(ctx);
        CHECK(left.live_blocks == idle.live_blocks && left.live_bytes == idle.live_bytes,
              "allocation %zu: %zu blocks of %zu bytes are left", n, left.live_blocks - idle.live_blocks,
              left.live_bytes - idle.live_bytes);
    }
    /* a head for each of 11 parameters, and the block, the table, its rows, two slabs at least */
    CHECK(block && n > 16, "%s after %zu refused allocations", block ? "made" : "not made", n);
    end();
}

/* Forward and backward on a tape whose arenas ask for each piece by itself. */
static void run_once(kr_tape *tape, const kr_mamba1 *block, int64_t nd)
{
    kr_tensor *x_bsd = kr_input(tape, kr_full(tape, KR_DTYPE_F32, KR_SHAPE(1, 3, nd), 0.5));
    const kr_mamba1_out first = kr_mamba1_forward(tape, block, x_bsd, NULL);
    kr_tensor *x_bd = kr_reshape(tape, kr_slice(tape, first.y, 1, 2, 3), KR_SHAPE(1, nd));
    const kr_mamba1_out next = kr_mamba1_step(tape, block, x_bd, &first.cache);
    kr_tensor *limit_bd = kr_mamba1_step_infinite(tape, block, next.y);
    kr_backward(tape, kr_sum(tape, limit_bd, KR_ALL_AXES, false));
}

TEST(mamba1_runs_with_every_allocation_refused)
{
    begin();
    kr_mamba1_config config = mamba1_case_config(&mamba1_cases[NCASES - 1], KR_DTYPE_F32);
    const size_t idle = all_memory(ctx).live_blocks, stride = kr_test_quick() ? 7 : 1;
    bool passed = false;
    size_t n = 1;
    for (; !passed && n < 5000; n += stride) {
        kr_mamba1 *block = kr_mamba1_create(ctx, &config);
        kr_tape *tape = kr_tape_create(ctx, KR_TAPE_GRAD);
        tape->heads.block_bytes = tape->data.block_bytes = tape->heap.chunk_bytes = KR_ALIGN;
        tape->shared.block_bytes = tape->device_heap.chunk_bytes = 4 * KR_ALIGN;
        ctx->scratch.block_bytes = KR_ALIGN;
        kr_ctx_fail_allocation(ctx, n);
        run_once(tape, block, config.d_model);
        kr_ctx_fail_allocation(ctx, 0);
        passed = !kr_ctx_failed(ctx);
        if (!passed) {
            CHECK(kr_ctx_status(ctx) == KR_ERR_NOMEM, "allocation %zu: %s", n, kr_ctx_message(ctx));
            kr_ctx_clear(ctx);
            kr_tape_reset(tape);
            run_once(tape, block, config.d_model);
            CHECK_OK(ctx);
        }
        kr_tape_destroy(tape);
        kr_mamba1_destroy(block);
        drop_scratch(ctx);
        CHECK(all_memory(ctx).live_blocks == idle, "allocation %zu: %zu blocks are left", n,
              all_memory(ctx).live_blocks - idle);
    }
    CHECK(passed && n > 100, "%s after %zu refused allocations", passed ? "passed" : "did not pass", n);
    end();
}
