/* test_params_compose.c - custom parameter tables: created, shared and joined rows, their owners, and errors. */
#include "tests/error_tests.h"

static kr_mamba2 *new_block(void)
{
    kr_mamba2_config c;
    kr_mamba2_config_init(&c);
    c.d_model = 16;
    c.state_rank = 4;
    c.per_head_dim = 8;
    return kr_mamba2_create(ctx, &c);
}

static kr_param_options normal(double std)
{
    kr_param_options o;
    kr_param_options_init(&o);
    o.axes = "s d";
    o.init = (kr_init){ KR_INIT_NORMAL, 0, std, 0 };
    return o;
}

/* ---- rows ---- */

TEST(params_compose_rows_are_in_order_under_their_prefixes)
{
    begin();
    kr_mamba2 *a = new_block(), *b = new_block();
    kr_tensor *lent = kr_param_create(ctx, KR_DTYPE_F32, KR_SHAPE(3)), *bias = NULL;
    kr_params *mine = kr_params_create(ctx);
    const kr_param_options o = normal(0.02);
    kr_tensor *position = kr_params_make(mine, "position", KR_DTYPE_F32, KR_SHAPE(8, 16), &o);
    kr_params_join(mine, "a.", kr_mamba2_params(a));
    kr_params_share(mine, "lent", lent, NULL);
    kr_params_join(mine, "", kr_mamba2_params(b));
    kr_tensor *weight = kr_params_linear(mine, "head", KR_DTYPE_F32, 10, 16, &bias);
    CHECK_OK(ctx);
    const int64_t n = kr_params_count(kr_mamba2_params(a));
    CHECK(kr_params_count(mine) == 2 * n + 4, "%lld rows of 2 x %lld + 4", (long long)kr_params_count(mine),
          (long long)n);
    CHECK(kr_params_at(mine, 0)->tensor == position && strcmp(kr_params_at(mine, 0)->axes, "s d") == 0, "position");
    for (int64_t i = 0; i < n; i++) {
        const kr_param_row *its = kr_params_at(kr_mamba2_params(a), i), *row = kr_params_at(mine, 1 + i);
        CHECK(strncmp(row->name, "a.", 2) == 0 && strcmp(row->name + 2, its->name) == 0, "%s of %s", row->name,
              its->name);
        CHECK(row->tensor == its->tensor && row->has_decay == its->has_decay && row->n_segments == its->n_segments &&
                  row->init.kind == its->init.kind && row->init_scale == its->init_scale &&
                  strcmp(row->axes, its->axes) == 0,
              "%s has another row", row->name);
        for (int s = 0; s < row->n_segments; s++)
            CHECK(row->segments[s].rows == its->segments[s].rows &&
                      row->segments[s].use_muon == its->segments[s].use_muon &&
                      strcmp(row->segments[s].name, its->segments[s].name) == 0,
                  "%s: segment %d", row->name, s);
        CHECK(kr_params_at(mine, 2 + n + i)->tensor == kr_params_at(kr_mamba2_params(b), i)->tensor, "no prefix");
    }
    const kr_param_row *head = kr_params_find(mine, "head.weight");
    CHECK(head && head->tensor == weight && head->has_decay && kr_params_find(mine, "head.bias")->tensor == bias,
          "head");
    CHECK(!kr_params_find(mine, "head.bias")->has_decay && !kr_params_find(mine, "lent")->has_decay, "decay");
    CHECK(kr_params_elements(mine) == 2 * kr_params_elements(kr_mamba2_params(a)) + 128 + 3 + 170, "elements");
    kr_params_destroy(mine);
    CHECK(kr_tensor_count(lent) == 3 && kr_params_count(kr_mamba2_params(a)) == n, "what was shared is still there");
    kr_param_destroy(lent);
    kr_mamba2_destroy(a);
    kr_mamba2_destroy(b);
    CHECK_OK(ctx);
    kr_tape_destroy(t);
    kr_ctx_destroy(ctx);
}

TEST(params_compose_draws_as_the_row_says)
{
    begin();
    kr_params *mine = kr_params_create(ctx);
    const kr_param_options o = normal(0.02);
    kr_tensor *bias = NULL, *x = kr_params_make(mine, "x", KR_DTYPE_F32, KR_SHAPE(64, 64), &o);
    kr_tensor *w = kr_params_linear(mine, "w", KR_DTYPE_F32, 50, 25, &bias);
    double *at = kr_test_values(x), square = 0, most = 0;
    for (int i = 0; i < 4096; i++) square += at[i] * at[i];
    CHECK(fabs(sqrt(square / 4096) - 0.02) < 0.0015, "deviation %g; 3 of its own are 0.0007", sqrt(square / 4096));
    double *wide = kr_test_values(w);
    for (int i = 0; i < 1250; i++) most = fmax(most, fabs(wide[i]));
    CHECK(most <= 0.2 && most > 0.19, "the largest weight is %g of 0.2", most);
    CHECK(kr_param_fill(x, 7) == KR_OK && kr_params_reset(mine) == KR_OK &&
              kr_item(kr_max(t, x, KR_ALL_AXES, false)) < 1,
          "reset draws anew");
    kr_params *half = kr_params_create(ctx);
    kr_params_linear(half, "w", KR_DTYPE_BF16, 4, 4, &bias);
    CHECK(kr_tensor_dtype(bias) == KR_DTYPE_F32, "the bias of halves is %s", kr_dtype_name(kr_tensor_dtype(bias)));
    CHECK(kr_params_pack(mine) == KR_OK && kr_params_pack(half) == KR_OK, "pack");
    kr_params_destroy(half);
    kr_params_destroy(mine);
    free(at);
    free(wide);
    end();
}

TEST(params_compose_is_what_an_optimizer_steps)
{
    begin();
    kr_mamba2 *block = new_block();
    kr_params *mine = kr_params_create(ctx);
    kr_tensor *bias = NULL, *w = kr_params_linear(mine, "in", KR_DTYPE_F32, 16, 4, &bias);
    kr_params_join(mine, "block.", kr_mamba2_params(block));
    kr_optimizer_options options;
    kr_optimizer_options_init(&options);
    options.kind = KR_OPTIMIZER_MUON;
    kr_optimizer *opt = kr_optimizer_create(ctx, mine, &options);
    double before[64];
    int64_t moved = 0;
    for (int64_t i = 0; i < kr_params_count(mine) && i < 64; i++) {
        double *values = kr_test_values(kr_params_at(mine, i)->tensor);
        before[i] = values[0];
        free(values);
    }
    kr_tensor *x = kr_linear(t, kr_randn(t, KR_DTYPE_F32, KR_SHAPE(2, 5, 4)), w, bias);
    kr_tensor *y = kr_mamba2_forward(t, block, x, NULL, kr_mamba2_path(block)).y;
    kr_backward(t, kr_mean(t, kr_mul(t, y, y), KR_ALL_AXES, false));
    CHECK(kr_optimizer_step(opt, 1e-2, 1) == KR_OK, "%s", kr_ctx_message(ctx));
    for (int64_t i = 0; i < kr_params_count(mine) && i < 64; i++) {
        double *values = kr_test_values(kr_params_at(mine, i)->tensor);
        moved += values[0] != before[i];
        free(values);
    }
    CHECK(moved == kr_params_count(mine), "%lld of %lld parameters moved", (long long)moved,
          (long long)kr_params_count(mine));
    kr_optimizer_destroy(opt);
    kr_params_destroy(mine);
    kr_mamba2_destroy(block);
    end();
}

/* ---- memory ---- */

static bool build(void)
{
    kr_mamba2 *block = new_block();
    kr_tensor *bias = NULL;
    kr_params *mine = kr_params_create(ctx);
    const kr_param_options o = normal(1);
    kr_params_make(mine, "position", KR_DTYPE_F32, KR_SHAPE(4, 16), &o);
    kr_params_join(mine, "block.", kr_mamba2_params(block));
    kr_params_linear(mine, "head", KR_DTYPE_F32, 3, 16, &bias);
    const bool ok = !kr_ctx_failed(ctx);
    kr_params_destroy(mine);
    kr_mamba2_destroy(block);
    return ok;
}

TEST(params_compose_every_allocation_failing)
{
    begin();
    const size_t live = kr_ctx_memory(ctx).live_bytes;
    int64_t refused = 0;
    bool ok = false;
    for (size_t n = 1; !ok && n < 1000; n++) {
        kr_ctx_fail_allocation(ctx, n);
        ok = build();
        kr_ctx_fail_allocation(ctx, 0);
        if (!ok) CHECK(kr_ctx_status(ctx) == KR_ERR_NOMEM, "allocation %zu: %s", n, kr_ctx_message(ctx));
        CHECK(kr_ctx_memory(ctx).live_bytes == live, "allocation %zu: %zu bytes are left", n,
              kr_ctx_memory(ctx).live_bytes - live);
        kr_ctx_clear(ctx);
        refused += !ok;
    }
    CHECK(ok && refused > 20, "%lld allocations were refused", (long long)refused);
    end();
}

/* ---- errors ---- */

TEST(params_compose_errors_of_rows)
{
    begin();
    kr_params *p = kr_params_create(ctx);
    kr_tensor *x = kr_params_make(p, "x", KR_DTYPE_F32, KR_SHAPE(2, 3), NULL);
    kr_tensor *lent = kr_param_create(ctx, KR_DTYPE_F32, KR_SHAPE(2, 3));
    kr_param_options o;
    kr_param_options_init(&o);
    REFUSED(KR_ERR_ARG, "params.make: a parameter needs a name",
            kr_params_make(p, "", KR_DTYPE_F32, KR_SHAPE(1), NULL));
    REFUSED(KR_ERR_ARG, "params.make: the table already has a parameter x",
            kr_params_make(p, "x", KR_DTYPE_F32, KR_SHAPE(1), NULL));
    REFUSED(KR_ERR_DTYPE, "params.make: y: param: type i32, but a parameter is f32, f64, bf16 or f16",
            kr_params_make(p, "y", KR_DTYPE_I32, KR_SHAPE(1), NULL));
    o.init = (kr_init){ KR_INIT_UNIFORM, 1, -1, 0 };
    REFUSED(KR_ERR_ARG, "params.make: y has an init that cannot be sampled: kind 1 of 1, -1, 0",
            kr_params_make(p, "y", KR_DTYPE_F32, KR_SHAPE(1), &o));
    o.init = (kr_init){ (kr_init_kind)9, 0, 0, 0 };
    REFUSED(KR_ERR_ARG, "params.make: y has init.kind = 9, which is not a kr_init_kind",
            kr_params_make(p, "y", KR_DTYPE_F32, KR_SHAPE(1), &o));
    kr_param_options_init(&o);
    o.is_linear = true;
    REFUSED(KR_ERR_SHAPE, "params.make: y [4] has is_linear set, but is not a matrix [out in]",
            kr_params_make(p, "y", KR_DTYPE_F32, KR_SHAPE(4), &o));
    o.n_segments = 1;
    REFUSED(KR_ERR_ARG, "params.make: y has n_segments = 1, but segments is NULL",
            kr_params_make(p, "y", KR_DTYPE_F32, KR_SHAPE(4, 2), &o));
    const kr_segment segment = { "all", 3, true };
    o.segments = &segment;
    REFUSED(KR_ERR_SHAPE,
            "params.make: y [4, 2] has segments of 3 rows in all, but they are for matrices, and for all rows",
            kr_params_make(p, "y", KR_DTYPE_F32, KR_SHAPE(4, 2), &o));
    REFUSED(KR_ERR_ARG, "params.share: the table already has a parameter x",
            kr_params_share(p, "x", lent, NULL) == KR_OK);
    REFUSED(KR_ERR_ARG, "params.share: y is already in the table, as x", kr_params_share(p, "y", x, NULL) == KR_OK);
    REFUSED(KR_ERR_ARG, "params.share: y is not a parameter of this context: kr_param_create makes one",
            kr_params_share(p, "y", F(2), NULL) == KR_OK);
    REFUSED(KR_ERR_ARG, "params.share: y is not a parameter of this context: kr_param_create makes one",
            kr_params_share(p, "y", NULL, NULL) == KR_OK);
    CHECK(kr_params_count(p) == 1 && kr_params_share(NULL, "y", x, NULL) == KR_ERR_ARG, "the table is as before");
    CHECK(!kr_params_make(NULL, "y", KR_DTYPE_F32, KR_SHAPE(1), NULL), "a row of no table");
    kr_params_destroy(p);
    kr_param_destroy(lent);
    kr_params_destroy(NULL);
    end();
}

TEST(params_compose_errors_of_tables)
{
    begin();
    kr_mamba2 *block = new_block();
    const kr_params *its = kr_mamba2_params(block);
    kr_params *p = kr_params_create(ctx), *other = kr_params_create(ctx);
    kr_tensor *bias = NULL;
    kr_params_join(p, "a.", its);
    const int64_t n = kr_params_count(p);
    REFUSED(KR_ERR_ARG, "params.join: the table already has a parameter a.dt_bias",
            kr_params_join(p, "a.", its) == KR_OK);
    REFUSED(KR_ERR_ARG, "params.join: b.dt_bias is already in the table, as a.dt_bias",
            kr_params_join(p, "b.", its) == KR_OK);
    REFUSED(KR_ERR_ARG, "params.join: the table to join is NULL, or the table itself",
            kr_params_join(p, "c.", p) == KR_OK);
    REFUSED(KR_ERR_ARG, "params.join: the prefix is NULL; \"\" is none", kr_params_join(p, NULL, its) == KR_OK);
    kr_params_make(other, "fine", KR_DTYPE_F32, KR_SHAPE(2), NULL);
    kr_params_make(other, "A_log", KR_DTYPE_F32, KR_SHAPE(2), NULL);
    REFUSED(KR_ERR_ARG, "params.join: the table already has a parameter a.A_log",
            kr_params_join(p, "a.", other) == KR_OK);
    CHECK(kr_params_count(p) == n && !kr_params_find(p, "a.fine"), "half of a table was joined");
    kr_params_make(other, "fine.bias", KR_DTYPE_F32, KR_SHAPE(2), NULL);
    REFUSED(KR_ERR_ARG, "params.make: the table already has a parameter fine.bias",
            kr_params_linear(other, "fine", KR_DTYPE_F32, 2, 2, &bias));
    CHECK(kr_params_count(other) == 3, "half of a projection was made");
    char longest[600];
    memset(longest, 'x', sizeof longest);
    longest[599] = '\0';
    CHECK(kr_params_join(p, longest, other) == KR_ERR_ARG, "a name of 600 bytes");
    CHECK_ERROR_HAS(ctx, KR_ERR_ARG, "params.join: a name of 603 bytes, but at most 511 are allowed: xxx");
    kr_params_destroy(p);
    kr_params_destroy(other);
    kr_mamba2_destroy(block);
    end();
}
