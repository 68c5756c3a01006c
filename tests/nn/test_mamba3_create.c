/* test_mamba3_create.c - a Mamba-3 block's parameters, the exact texts of its errors, and constructors without memory. */
#include "tests/error_tests.h"

/* ---- parameters ---- */

typedef struct wanted {
    const char *name;
    kr_shape shape;
    bool has_decay;
    double low, high; /* of the initial values */
} wanted;

static void check_rows(const char *what, const kr_mamba3_config *config, int count, const wanted *rows)
{
    kr_mamba3 *m = kr_mamba3_create(ctx, config);
    const kr_params *params = kr_mamba3_params(m);
    CHECK(kr_params_count(params) == count, "%s has %lld parameters", what, (long long)kr_params_count(params));
    for (int i = 0; i < count && i < kr_params_count(params); i++) {
        const kr_param_row *row = kr_params_at(params, i);
        const kr_shape shape = kr_tensor_shape(row->tensor);
        char text[64];
        CHECK(strcmp(row->name, rows[i].name) == 0, "%s: row %d is %s, not %s", what, i, row->name, rows[i].name);
        CHECK(shape.rank == rows[i].shape.rank &&
                  memcmp(shape.dims, rows[i].shape.dims, (size_t)shape.rank * sizeof *shape.dims) == 0,
              "%s: %s is %s", what, row->name, kr_shape_text(row->tensor, text, sizeof text));
        CHECK(row->has_decay == rows[i].has_decay, "%s: %s %s", what, row->name,
              row->has_decay ? "decays" : "does not decay");
        double *values = kr_test_values(row->tensor), least = INFINITY, most = -INFINITY;
        for (int64_t k = 0; k < kr_tensor_count(row->tensor); k++) {
            least = fmin(least, values[k]);
            most = fmax(most, values[k]);
        }
        /* an f32 may round over a bound */
        CHECK(least >= rows[i].low - 1e-6 && most <= rows[i].high + 1e-6, "%s: %s begins from %g to %g", what,
              row->name, least, most);
        free(values);
    }
    kr_mamba3_destroy(m);
}
#define CHECK_ROWS(what, config, ...)                                                                                  \
    check_rows(what, config, (int)(sizeof((wanted[]){ __VA_ARGS__ }) / sizeof(wanted)), (wanted[]){ __VA_ARGS__ })

static double inverse_softplus(double dt)
{
    return dt + log(-expm1(-dt));
}

/* The shapes of the published 187m models. */
TEST(mamba3_parameters_of_published_models)
{
    begin();
    kr_mamba3_config c;
    kr_mamba3_config_init(&c);
    c.d_model = 768;
    const double d = 1 / sqrt(768.0), i = 1 / sqrt(1536.0), low = inverse_softplus(1e-3), high = inverse_softplus(0.1);
    CHECK_ROWS("siso", &c, { "dt_bias", KR_SHAPE(24), false, low, high },
               { "B_bias", KR_SHAPE(24, 1, 128), false, 1, 1 }, { "C_bias", KR_SHAPE(24, 1, 128), false, 1, 1 },
               { "D", KR_SHAPE(24), false, 1, 1 }, { "in_proj.weight", KR_SHAPE(3432, 768), true, -d, d },
               { "B_norm.weight", KR_SHAPE(128), false, 1, 1 }, { "C_norm.weight", KR_SHAPE(128), false, 1, 1 },
               { "out_proj.weight", KR_SHAPE(768, 1536), true, -i, i });
    c.is_mimo = true;
    CHECK_ROWS("mimo", &c, { "dt_bias", KR_SHAPE(24), false, low, high },
               { "B_bias", KR_SHAPE(24, 4, 128), false, 1, 1 }, { "C_bias", KR_SHAPE(24, 4, 128), false, 1, 1 },
               { "mimo_x", KR_SHAPE(24, 4, 64), false, 0.25, 0.25 }, { "mimo_z", KR_SHAPE(24, 4, 64), false, 1, 1 },
               { "mimo_o", KR_SHAPE(24, 4, 64), false, 0.25, 0.25 }, { "D", KR_SHAPE(24), false, 1, 1 },
               { "in_proj.weight", KR_SHAPE(4200, 768), true, -d, d }, { "B_norm.weight", KR_SHAPE(128), false, 1, 1 },
               { "C_norm.weight", KR_SHAPE(128), false, 1, 1 },
               { "out_proj.weight", KR_SHAPE(768, 1536), true, -i, i });
    end();
}

static kr_mamba3_config small(void)
{
    kr_mamba3_config c;
    kr_mamba3_config_init(&c);
    c.d_model = 16;
    c.per_head_dim = 8;
    c.state_rank = 8;
    return c;
}

TEST(mamba3_parameters_of_every_option)
{
    begin();
    kr_mamba3_config c = small();
    c.has_proj_bias = c.has_outproj_norm = c.has_learnable_init_state = c.is_mimo = true;
    c.mimo_rank = 1;
    c.n_groups = 2;
    c.rotation = KR_ROTATION_QUATERNION;
    const double d = 0.25, i = 1 / sqrt(32.0), low = inverse_softplus(1e-3), high = inverse_softplus(0.1);
    /* 2 32 + 2 1 2 8 + 3 4 rows, and 4 heads with a quaternion of 3 channels each */
    CHECK_ROWS("all options", &c, { "dt_bias", KR_SHAPE(4), false, low, high },
               { "B_bias", KR_SHAPE(4, 1, 8), false, 1, 1 }, { "C_bias", KR_SHAPE(4, 1, 8), false, 1, 1 },
               { "mimo_x", KR_SHAPE(4, 1, 8), false, 1, 1 }, { "mimo_z", KR_SHAPE(4, 1, 8), false, 1, 1 },
               { "mimo_o", KR_SHAPE(4, 1, 8), false, 1, 1 }, { "D", KR_SHAPE(4), false, 1, 1 },
               { "in_proj.weight", KR_SHAPE(64 + 32 + 12 + 12, 16), true, -d, d },
               { "in_proj.bias", KR_SHAPE(120), false, -d, d }, { "B_norm.weight", KR_SHAPE(8), false, 1, 1 },
               { "C_norm.weight", KR_SHAPE(8), false, 1, 1 }, { "norm.weight", KR_SHAPE(32), false, 1, 1 },
               { "out_proj.weight", KR_SHAPE(16, 32), true, -i, i }, { "out_proj.bias", KR_SHAPE(16), false, -i, i },
               { "init_states", KR_SHAPE(4, 8, 8), false, 0, 0 });
    c = small();
    c.has_outproj_norm = c.has_shared_norm_gain = true;
    c.dt_init_floor = 0.05;
    c.mimo_rank = -3; /* without a meaning */
    CHECK_ROWS("shared gain", &c, { "dt_bias", KR_SHAPE(4), false, inverse_softplus(0.05), high },
               { "B_bias", KR_SHAPE(4, 1, 8), false, 1, 1 }, { "C_bias", KR_SHAPE(4, 1, 8), false, 1, 1 },
               { "D", KR_SHAPE(4), false, 1, 1 }, { "in_proj.weight", KR_SHAPE(64 + 16 + 12 + 2, 16), true, -d, d },
               { "B_norm.weight", KR_SHAPE(8), false, 1, 1 }, { "C_norm.weight", KR_SHAPE(8), false, 1, 1 },
               { "norm.weight", KR_SHAPE(8), false, 1, 1 }, { "out_proj.weight", KR_SHAPE(16, 32), true, -i, i });
    end();
}

/* in_proj's rows for every kind of rotation: a dummy channel, or a dummy block of each head, where nothing is rotated. */
TEST(mamba3_segments)
{
    static const struct {
        kr_rotation_kind rotation;
        double fraction;
        int64_t rows;
    } cases[] = { { KR_ROTATION_COMPLEX, 1, 4 },          { KR_ROTATION_COMPLEX, 0.5, 2 },
                  { KR_ROTATION_COMPLEX, 0, 1 },          { KR_ROTATION_QUATERNION, 1, 4 * 2 * 3 },
                  { KR_ROTATION_QUATERNION, 0.5, 4 * 3 }, { KR_ROTATION_QUATERNION, 0, 4 * 3 } };
    begin();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const kr_segment want[] = { { "z", 32, true },      { "x", 32, true },
                                    { "b", 48, true },      { "c", 48, true },
                                    { "dt", 4, false },     { "a", 4, false },
                                    { "lambda", 4, false }, { "rotation", cases[i].rows, true } };
        kr_mamba3_config c = small();
        c.is_mimo = true;
        c.mimo_rank = 3;
        c.n_groups = 2;
        c.rotation = cases[i].rotation;
        c.rope_fraction = cases[i].fraction;
        kr_mamba3 *m = kr_mamba3_create(ctx, &c);
        const kr_param_row *row = kr_params_find(kr_mamba3_params(m), "in_proj.weight");
        if (CHECK(row && row->n_segments == 8, "case %zu: segments", i))
            for (int k = 0; k < 8; k++)
                CHECK(strcmp(row->segments[k].name, want[k].name) == 0 && row->segments[k].rows == want[k].rows &&
                          row->segments[k].use_muon == want[k].use_muon,
                      "case %zu: segment %d is %s, %lld rows", i, k, row->segments[k].name,
                      (long long)row->segments[k].rows);
        const kr_param_row *out = kr_params_find(kr_mamba3_params(m), "out_proj.weight");
        CHECK(out && out->n_segments == 1 && strcmp(out->segments[0].name, "out") == 0 && out->segments[0].use_muon,
              "out_proj is one matrix");
        const kr_mamba3_cache initial = kr_mamba3_initial_cache(t, m, 2);
        CHECK(kr_tensor_dim(initial.rotation, 2) == (cases[i].rows < 5 ? cases[i].rows : cases[i].rows / 12),
              "case %zu: rotations in the cache", i);
        kr_mamba3_destroy(m);
    }
    end();
}

/* Small parameters of a block of halves stay in f32. */
TEST(mamba3_types)
{
    begin();
    kr_mamba3_config c = small();
    c.dtype = KR_DTYPE_BF16;
    c.has_proj_bias = c.is_mimo = c.has_outproj_norm = c.has_learnable_init_state = true;
    kr_mamba3 *m = kr_mamba3_create(ctx, &c);
    for (int64_t i = 0; i < kr_params_count(kr_mamba3_params(m)); i++) {
        const kr_param_row *row = kr_params_at(kr_mamba3_params(m), i);
        const kr_dtype want = strstr(row->name, "_proj.weight") ? KR_DTYPE_BF16 : KR_DTYPE_F32;
        CHECK(kr_tensor_dtype(row->tensor) == want, "%s is %s", row->name, kr_dtype_name(kr_tensor_dtype(row->tensor)));
    }
    kr_mamba3_destroy(m);
    end();
}

TEST(mamba3_defaults_and_path)
{
    begin();
    kr_mamba3_config c;
    kr_mamba3_config_init(&c);
    CHECK(c.size == sizeof c && c.dtype == KR_DTYPE_F32 && c.d_model == 0 && c.state_rank == 128 && c.expand == 2 &&
              c.per_head_dim == 64 && c.n_groups == 1 && !c.is_mimo && c.mimo_rank == 4,
          "sizes");
    CHECK(c.rotation == KR_ROTATION_COMPLEX && c.rope_fraction == 0.5 && c.rotation_range == 1 &&
              c.a_activation == KR_A_ACTIVATION_HEAVY_TAIL && c.a_floor == 1e-4 && c.norm_eps == 1e-5,
          "rotation and rates");
    CHECK(!c.has_outproj_norm && !c.has_shared_norm_gain && !c.has_proj_bias && !c.has_learnable_init_state, "options");
    CHECK(c.dt_min == 1e-3 && c.dt_max == 0.1 && c.dt_init_floor == 1e-4 && c.dt_limit_min == 0 &&
              isinf(c.dt_limit_max) && c.pathway == KR_MAMBA3_PATHWAY_SINGLE,
          "steps and pathway");
    c.d_model = 128;
    kr_mamba3 *m = kr_mamba3_create(ctx, &c);
    kr_ssd_path path = kr_mamba3_path(m);
    CHECK(path.algorithm == KR_SSD_SERIAL_RECALCULATED && path.chunk_len == 96, "chunk_len = %lld",
          (long long)path.chunk_len);
    kr_mamba3_destroy(m);
    path = kr_mamba3_path(NULL);
    CHECK(path.algorithm == KR_SSD_SERIAL_RECALCULATED, "the path of no block");
    /* a caller that was compiled when the config had fewer fields */
    kr_struct_init(KR_STRUCT_MAMBA3_CONFIG, &c, offsetof(kr_mamba3_config, pathway));
    c.d_model = 128;
    c.pathway = (kr_mamba3_pathway)77; /* beyond its end */
    m = kr_mamba3_create(ctx, &c);
    CHECK(kr_mamba3_initial_cache(t, m, 1).pathway == KR_MAMBA3_PATHWAY_SINGLE,
          "what a short config does not have is the default");
    kr_mamba3_destroy(m);
    kr_mamba3_destroy(NULL);
    CHECK(!kr_mamba3_params(NULL), "no block, no parameters");
    end();
}

/* ---- errors ---- */

/* One field of a small config changed. */
#define BAD(status, text, change)                                                                                      \
    do {                                                                                                               \
        kr_mamba3_config c = small();                                                                                  \
        change;                                                                                                        \
        REFUSED(status, "mamba3.create: " text, kr_mamba3_create(ctx, &c));                                            \
    } while (0)

TEST(mamba3_config_errors)
{
    begin();
    BAD(KR_ERR_DTYPE, "dtype = i32, but must be f32, f64, bf16 or f16", c.dtype = KR_DTYPE_I32);
    BAD(KR_ERR_ARG, "d_model = 0, but must be at least 1", c.d_model = 0);
    BAD(KR_ERR_ARG, "state_rank = 0, but must be at least 1", c.state_rank = 0);
    BAD(KR_ERR_ARG, "expand = -1, but must be at least 1", c.expand = -1);
    BAD(KR_ERR_ARG, "per_head_dim = 0, but must be at least 1", c.per_head_dim = 0);
    BAD(KR_ERR_ARG, "n_groups = 0, but must be at least 1", c.n_groups = 0);
    BAD(KR_ERR_ARG, "mimo_rank = 0, but must be at least 1", (c.mimo_rank = 0, c.is_mimo = true));
    BAD(KR_ERR_ARG, "d_model = 4611686018427387904, but must be at most 1073741824", c.d_model = INT64_C(1) << 62);
    BAD(KR_ERR_ARG, "per_head_dim = 5 does not divide d_inner = 32", c.per_head_dim = 5);
    BAD(KR_ERR_ARG, "n_groups = 3 does not divide the 4 heads (d_inner / per_head_dim)", c.n_groups = 3);
    BAD(KR_ERR_ARG, "rotation = 2 is neither complex nor quaternion", c.rotation = (kr_rotation_kind)2);
    BAD(KR_ERR_ARG, "state_rank = 7, but must be even: entries are rotated in pairs", c.state_rank = 7);
    BAD(KR_ERR_ARG, "state_rank = 6, but must be a multiple of 4: quaternions rotate blocks of four",
        (c.state_rank = 6, c.rotation = KR_ROTATION_QUATERNION));
    BAD(KR_ERR_ARG, "rope_fraction = 0.25, but must be 0, 0.5 or 1", c.rope_fraction = 0.25);
    BAD(KR_ERR_ARG, "rope_fraction = nan, but must be 0, 0.5 or 1", c.rope_fraction = (double)NAN);
    BAD(KR_ERR_ARG,
        "rope_fraction = 0.5 of state_rank = 12 is 6 entries, but quaternions rotate blocks of four; make state_rank a "
        "multiple of 8",
        (c.state_rank = 12, c.rotation = KR_ROTATION_QUATERNION));
    BAD(KR_ERR_ARG, "rotation_range = 0, but must be above 0 and finite", c.rotation_range = 0);
    BAD(KR_ERR_ARG, "a_activation = 9 is neither heavy tail nor softplus", c.a_activation = (kr_a_activation)9);
    BAD(KR_ERR_ARG, "a_floor = 0, but must be above 0 and finite", c.a_floor = 0);
    BAD(KR_ERR_ARG, "norm_eps = -1, but must be above 0 and finite", c.norm_eps = -1);
    BAD(KR_ERR_ARG, "dt_min = 0.2 is above dt_max = 0.1", c.dt_min = 0.2);
    BAD(KR_ERR_ARG, "dt_limit_max = 1, but must be at least dt_limit_min = 2",
        (c.dt_limit_min = 2, c.dt_limit_max = 1));
    BAD(KR_ERR_ARG, "path.algorithm = 3 is not one of Minimal, Serial, SerialRecalculated",
        c.path.algorithm = (kr_ssd_algorithm)3);
    BAD(KR_ERR_ARG, "path.chunk_len = -1, but must be at least 1, or 0 for the optimal one", c.path.chunk_len = -1);
    BAD(KR_ERR_ARG, "pathway = 2 is neither single nor double", c.pathway = (kr_mamba3_pathway)2);
    REFUSED(KR_ERR_ARG, "mamba3.create: config is NULL", kr_mamba3_create(ctx, NULL));
    BAD(KR_ERR_SHAPE, "in_proj would have some 2.31e+18 rows, more than can be addressed",
        (c.is_mimo = true, c.mimo_rank = INT64_C(1) << 30, c.state_rank = INT64_C(1) << 30));
    end();
}

/* A block of halves of the state that do not turn is one of sizes too: two entries have no half pair. */
TEST(mamba3_least_sizes)
{
    begin();
    kr_mamba3_config c = small();
    c.d_model = c.expand = c.per_head_dim = 1;
    c.state_rank = 2;
    kr_mamba3 *m = kr_mamba3_create(ctx, &c);
    const kr_mamba3_out out =
        kr_mamba3_forward(t, m, kr_randn(t, KR_DTYPE_F32, KR_SHAPE(1, 3, 1)), NULL, kr_mamba3_path(m));
    CHECK(kr_tensor_dim(out.cache.rotation, 2) == 1, "one angle is kept");
    CHECK(isfinite(kr_item(kr_sum(t, out.y, KR_ALL_AXES, false))), "y is finite");
    kr_mamba3_destroy(m);
    end();
}

TEST(mamba3_call_errors)
{
    begin();
    kr_mamba3_config c = small();
    kr_mamba3 *m = kr_mamba3_create(ctx, &c);
    c.rotation = KR_ROTATION_QUATERNION;
    kr_mamba3 *other = kr_mamba3_create(ctx, &c);
    const kr_ssd_path path = kr_mamba3_path(m);
#define FORWARD(x, cache) kr_mamba3_forward(t, m, x, cache, path).y
    REFUSED(KR_ERR_ARG, "block.forward: the block is NULL", kr_mamba3_forward(t, NULL, F(1, 3, 16), NULL, path).y);
    REFUSED(KR_ERR_SHAPE, "mamba3.forward: axis d of x [1, 3, 15] is 15, but the block has d_model = 16",
            FORWARD(F(1, 3, 15), NULL));
    REFUSED(KR_ERR_DTYPE, "mamba3.forward: x is f64, but the block is f32; cast x, or create the block with that dtype",
            FORWARD(D(1, 3, 16), NULL));
    REFUSED(KR_ERR_ARG, "mamba3.initial_cache: batch = 0, but must be at least 1",
            kr_mamba3_initial_cache(t, m, 0).ssm_bhpr);
    REFUSED(KR_ERR_SHAPE, "mamba3.step_infinite: axis d of x [2, 8] is 8, but the block has d_model = 16",
            kr_mamba3_step_infinite(t, m, F(2, 8)));

    kr_tape_reset(t);
    kr_mamba3_cache bad = kr_mamba3_initial_cache(t, m, 2);
    bad.pathway = (kr_mamba3_pathway)5;
#define REFUSED_PATHWAY(op, call)                                                                                      \
    do {                                                                                                               \
        CHECK(!(call), "%s is not refused", op);                                                                       \
        CHECK_ERROR(ctx, KR_ERR_ARG, "mamba3." op ": cache.pathway = 5 is neither single nor double");                 \
        kr_tape_reset(t);                                                                                              \
        bad = kr_mamba3_initial_cache(t, m, 2);                                                                        \
        bad.pathway = (kr_mamba3_pathway)5;                                                                            \
    } while (0)
    REFUSED_PATHWAY("forward", FORWARD(F(2, 3, 16), &bad));
    REFUSED_PATHWAY("forward_packed", kr_mamba3_forward_packed(t, m, F(2, 3, 16), I(2, 3), &bad, path).y);
    REFUSED_PATHWAY("forward_reset", kr_mamba3_forward_reset(t, m, F(2, 3, 16), I(2, 3), &bad, path).y);
    REFUSED_PATHWAY("step", kr_mamba3_step(t, m, F(2, 16), &bad).y);

    kr_tape_reset(t);
    bad = kr_mamba3_initial_cache(t, other, 2);
    CHECK(!FORWARD(F(2, 3, 16), &bad), "quaternions for angles");
    CHECK_ERROR(ctx, KR_ERR_SHAPE,
                "mamba3.forward: cache.rotation [2, 4, 1, 4] must be [2, 4, 2]: one for each row of x");
    kr_tape_reset(t);
    bad = kr_mamba3_initial_cache(t, m, 2);
    bad.k_bmhr = NULL;
    CHECK(!kr_mamba3_step(t, m, F(2, 16), &bad).y, "no k");
    CHECK_ERROR(ctx, KR_ERR_ARG,
                "mamba3.step: cache.k is NULL; a cache has all its tensors, or pass NULL for the initial one");
    kr_tape_reset(t);
    kr_mamba3_destroy(m);
    kr_mamba3_destroy(other);
    end();
}

/* ---- no memory ---- */

TEST(mamba3_constructor_starved)
{
    begin();
    kr_mamba3_config c = small();
    c.is_mimo = c.has_proj_bias = c.has_outproj_norm = c.has_learnable_init_state = true;
    const size_t before = kr_ctx_memory(ctx).live_bytes;
    bool done = false;
    for (size_t n = 1; n < 500 && !done; n++) {
        kr_ctx_fail_allocation(ctx, n);
        kr_mamba3 *m = kr_mamba3_create(ctx, &c);
        kr_ctx_fail_allocation(ctx, 0);
        done = m != NULL;
        CHECK(done != kr_ctx_failed(ctx) && (done || kr_ctx_status(ctx) == KR_ERR_NOMEM), "allocation %zu: %s", n,
              kr_ctx_message(ctx));
        kr_mamba3_destroy(m);
        kr_ctx_clear(ctx);
        CHECK(kr_ctx_memory(ctx).live_bytes == before, "allocation %zu leaves %zu bytes", n,
              kr_ctx_memory(ctx).live_bytes - before);
    }
    CHECK(done, "a block needs more than 500 allocations");
    end();
}

/* Packed rows with caches, by the double pathway: every list and copy there is. */
static bool use(kr_mamba3 *m, kr_rotation_kind rotation)
{
    static const int32_t marks[2][4] = { { 1, 0, 1, 0 }, { 1, 0, 0, 1 } };
    kr_mamba3_cache cache = kr_mamba3_initial_cache(t, m, 4);
    cache.pathway = rotation == KR_ROTATION_COMPLEX ? KR_MAMBA3_PATHWAY_DOUBLE : KR_MAMBA3_PATHWAY_SINGLE;
    kr_tensor *start = kr_from_data(t, KR_DTYPE_I32, KR_SHAPE(2, 4), marks),
              *x = kr_randn(t, KR_DTYPE_F32, KR_SHAPE(2, 4, 16));
    kr_mamba3_out out = kr_mamba3_forward_packed(t, m, x, start, &cache, kr_mamba3_path(m));
    out = kr_mamba3_step(t, m, kr_randn(t, KR_DTYPE_F32, KR_SHAPE(4, 16)), &out.cache);
    kr_tensor *y = kr_add(t, out.y, kr_mamba3_step_infinite(t, m, kr_randn(t, KR_DTYPE_F32, KR_SHAPE(4, 16))));
    kr_backward(t, kr_sum(t, y, KR_ALL_AXES, false));
    return !kr_ctx_failed(ctx);
}

TEST(mamba3_calls_starved)
{
    for (int rotation = 0; rotation < 2; rotation++) {
        begin();
        kr_mamba3_config c = small();
        c.is_mimo = c.has_learnable_init_state = true;
        c.mimo_rank = 2;
        c.rotation = (kr_rotation_kind)rotation;
        kr_mamba3 *m = kr_mamba3_create(ctx, &c);
        bool done = false;
        for (size_t n = 1; n < 2000 && !done; n += kr_test_quick() ? 7 : 1) {
            kr_tape_destroy(t); /* so that all memory is asked for anew */
            t = kr_tape_create(ctx, KR_TAPE_GRAD);
            kr_ctx_fail_allocation(ctx, n);
            done = use(m, c.rotation);
            kr_ctx_fail_allocation(ctx, 0);
            CHECK(done || kr_ctx_status(ctx) == KR_ERR_NOMEM, "allocation %zu: %s", n, kr_ctx_message(ctx));
            kr_ctx_clear(ctx);
        }
        CHECK(done, "the calls need more than 2000 allocations");
        kr_tape_reset(t);
        CHECK(use(m, c.rotation), "after all this: %s", kr_ctx_message(ctx));
        kr_tape_reset(t);
        kr_mamba3_destroy(m);
        end();
    }
}
