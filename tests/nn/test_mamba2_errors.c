/* test_mamba2_errors.c - what a Mamba-2 block refuses, and in which words; and every allocation refused in turn. */
#include "tests/memory.h"
#include "tests/nn/mamba2_variants.h"
#include "tests/error_tests.h"

#include "base/arena.h"
#include "base/ctx_impl.h"
#include "nn/block_impl.h"

/* ---- configs ---- */

#define REFUSED_CONFIG(status, text, ...)                                                                              \
    do {                                                                                                               \
        kr_mamba2_config c = mamba2_small();                                                                           \
        __VA_ARGS__;                                                                                                   \
        REFUSED((status), "mamba2.create: " text, kr_mamba2_create(ctx, &c));                                          \
    } while (0)

TEST(mamba2_config_sizes)
{
    begin();
    REFUSED_CONFIG(KR_ERR_DTYPE, "dtype = i32, but must be f32, f64, bf16 or f16", c.dtype = KR_DTYPE_I32);
    REFUSED_CONFIG(KR_ERR_DTYPE, "dtype = ?, but must be f32, f64, bf16 or f16", c.dtype = (kr_dtype)77);
    REFUSED_CONFIG(KR_ERR_ARG, "d_model = 0, but must be at least 1", c.d_model = 0);
    REFUSED_CONFIG(KR_ERR_ARG, "d_model = 1073741825, but must be at most 1073741824", c.d_model = (1 << 30) + 1);
    REFUSED_CONFIG(KR_ERR_ARG, "state_rank = 0, but must be at least 1", c.state_rank = 0);
    REFUSED_CONFIG(KR_ERR_ARG, "conv_kernel = 0, but must be at least 1", c.conv_kernel = 0);
    REFUSED_CONFIG(KR_ERR_ARG, "expand = -1, but must be at least 1", c.expand = -1);
    REFUSED_CONFIG(KR_ERR_ARG, "expand = 9223372036854775807, but must be at most 1073741824", c.expand = INT64_MAX);
    REFUSED_CONFIG(KR_ERR_ARG, "per_head_dim = 0, but must be at least 1", c.per_head_dim = 0);
    REFUSED_CONFIG(KR_ERR_ARG, "per_head_dim = 24 does not divide d_inner = 64", c.per_head_dim = 24);
    REFUSED_CONFIG(KR_ERR_ARG, "per_head_dim = 8 does not divide d_ssm = 12", c.d_ssm = 12);
    REFUSED_CONFIG(KR_ERR_ARG, "d_ssm = -8, but must be at least 0", c.d_ssm = -8);
    REFUSED_CONFIG(KR_ERR_ARG, "d_ssm = 72, but must be at most d_inner = expand d_model = 64", c.d_ssm = 72);
    REFUSED_CONFIG(KR_ERR_ARG, "n_groups = 0, but must be at least 1", c.n_groups = 0);
    REFUSED_CONFIG(KR_ERR_ARG, "n_groups = 3 does not divide the 8 heads (d_inner / per_head_dim)", c.n_groups = 3);
    REFUSED_CONFIG(KR_ERR_ARG, "n_groups = 2 does not divide the 5 heads (d_ssm / per_head_dim)", c.d_ssm = 40,
                   c.n_groups = 2);
    end();
}

TEST(mamba2_config_numbers)
{
    begin();
    REFUSED_CONFIG(KR_ERR_ARG, "conv_init = -0.5, but must be a bound above 0, or 0 for the usual one",
                   c.conv_init = -0.5);
    REFUSED_CONFIG(KR_ERR_ARG, "conv_init = inf, but must be a bound above 0, or 0 for the usual one",
                   c.conv_init = INFINITY);
    REFUSED_CONFIG(KR_ERR_ARG, "a_init_min = 0, but must be above 0 and finite", c.a_init_min = 0);
    REFUSED_CONFIG(KR_ERR_ARG, "a_init_max = 0.5, but must be finite and at least a_init_min = 1", c.a_init_max = 0.5);
    REFUSED_CONFIG(KR_ERR_ARG, "a_init_max = inf, but must be finite and at least a_init_min = 1",
                   c.a_init_max = INFINITY);
    REFUSED_CONFIG(KR_ERR_ARG, "norm_eps = 0, but must be above 0 and finite", c.norm_eps = 0);
    REFUSED_CONFIG(KR_ERR_ARG, "norm_eps = inf, but must be above 0 and finite", c.norm_eps = INFINITY);
    REFUSED_CONFIG(KR_ERR_ARG, "dt_min = 0, but must be above 0 and finite", c.dt_min = 0);
    REFUSED_CONFIG(KR_ERR_ARG, "dt_max = -1, but must be above 0 and finite", c.dt_max = -1);
    REFUSED_CONFIG(KR_ERR_ARG, "dt_min = 0.5 is above dt_max = 0.1", c.dt_min = 0.5);
    REFUSED_CONFIG(KR_ERR_ARG, "dt_init_floor = 0, but must be above 0 and finite", c.dt_init_floor = 0);
    REFUSED_CONFIG(KR_ERR_ARG, "dt_limit_min = -1, but must be finite and not negative", c.dt_limit_min = -1);
    REFUSED_CONFIG(KR_ERR_ARG, "dt_limit_min = inf, but must be finite and not negative", c.dt_limit_min = INFINITY);
    REFUSED_CONFIG(KR_ERR_ARG, "dt_limit_max = 1, but must be at least dt_limit_min = 2", c.dt_limit_min = 2,
                   c.dt_limit_max = 1);
    REFUSED_CONFIG(KR_ERR_ARG, "path.algorithm = 3 is not one of Minimal, Serial, SerialRecalculated",
                   c.path.algorithm = (kr_ssd_algorithm)3);
    REFUSED_CONFIG(KR_ERR_ARG, "path.chunk_len = -1, but must be at least 1, or 0 for the optimal one",
                   c.path.chunk_len = -1);
    /* a NaN is outside of every range; how it is written is the C library's matter */
#define REFUSED_NAN(field)                                                                                             \
    do {                                                                                                               \
        kr_mamba2_config c = mamba2_small();                                                                           \
        c.field = NAN;                                                                                                 \
        CHECK(!kr_mamba2_create(ctx, &c), #field " is a NaN and not refused");                                         \
        CHECK_ERROR_HAS(ctx, KR_ERR_ARG, "mamba2.create: " #field " = ");                                              \
    } while (0)
    REFUSED_NAN(conv_init);
    REFUSED_NAN(a_init_min);
    REFUSED_NAN(a_init_max);
    REFUSED_NAN(norm_eps);
    REFUSED_NAN(dt_min);
    REFUSED_NAN(dt_max);
    REFUSED_NAN(dt_init_floor);
    REFUSED_NAN(dt_limit_min);
    REFUSED_NAN(dt_limit_max);
    kr_tape_reset(t);
    end();
}

TEST(mamba2_config_as_a_whole)
{
    begin();
    REFUSED(KR_ERR_ARG, "mamba2.create: config is NULL", kr_mamba2_create(ctx, NULL));
    /* sizes that are fine one by one, but whose product cannot be addressed */
    kr_mamba2_config c = mamba2_small();
    c.d_model = c.expand = 1 << 30;
    REFUSED(KR_ERR_SHAPE,
            "in_proj.weight: param: invalid shape: rank 2 must be from 0 to 8, and sizes not negative and addressable",
            kr_mamba2_create(ctx, &c));
    CHECK(!kr_mamba2_create(NULL, &c), "a block without a context");
    end();
}

/* A program compiled with fewer fields gets the defaults for the others; one with more is read as far as known. */
TEST(mamba2_config_of_other_versions)
{
    begin();
    struct {
        kr_mamba2_config known;
        double later[4];
    } newer;
    kr_struct_init(KR_STRUCT_MAMBA2_CONFIG, &newer.known, sizeof newer);
    CHECK(newer.known.size == sizeof newer && newer.later[3] == 0, "size %zu", newer.known.size);
    newer.known.d_model = 32;
    newer.known.per_head_dim = 8;
    kr_mamba2 *m = kr_mamba2_create(ctx, &newer.known);
    CHECK(m != NULL, "a larger config: %s", kr_ctx_message(ctx));
    kr_mamba2_destroy(m);

    kr_mamba2_config older;
    memset(&older, 0x55, sizeof older); /* what the fields behind its end hold must not matter */
    kr_struct_init(KR_STRUCT_MAMBA2_CONFIG, &older, offsetof(kr_mamba2_config, has_conv_bias));
    older.d_model = 32;
    older.per_head_dim = 8;
    m = kr_mamba2_create(ctx, &older);
    CHECK(m && kr_params_find(kr_mamba2_params(m), "conv1d.bias") != NULL, "a smaller config: %s", kr_ctx_message(ctx));
    CHECK(kr_mamba2_path(m).algorithm == KR_SSD_SERIAL_RECALCULATED, "not the default path");
    kr_mamba2_destroy(m);
    end();
}

/* ---- calls ---- */

static kr_mamba2 *block(void)
{
    const kr_mamba2_config c = mamba2_small();
    return kr_mamba2_create(ctx, &c);
}

static kr_tensor *forward(const kr_mamba2 *m, kr_tensor *x, kr_tensor *conv, kr_tensor *ssm)
{
    const kr_mamba2_cache cache = { conv, ssm };
    return kr_mamba2_forward(t, m, x, &cache, kr_mamba2_path(m)).y;
}

TEST(mamba2_tokens)
{
    begin();
    kr_mamba2 *m = block();
    const kr_ssd_path path = kr_mamba2_path(m);
    REFUSED(KR_ERR_SHAPE, "mamba2.forward: axis d of x [2, 3, 16] is 16, but the block has d_model = 32",
            kr_mamba2_forward(t, m, F(2, 3, 16), NULL, path).y);
    REFUSED(KR_ERR_SHAPE, "mamba2.forward_packed: axis d of x [2, 3, 16] is 16, but the block has d_model = 32",
            kr_mamba2_forward_packed(t, m, F(2, 3, 16), I(2, 3), NULL, path).y);
    REFUSED(KR_ERR_SHAPE, "mamba2.forward_reset: axis d of x [2, 3, 16] is 16, but the block has d_model = 32",
            kr_mamba2_forward_reset(t, m, F(2, 3, 16), I(2, 3), NULL, path).y);
    REFUSED(KR_ERR_SHAPE, "mamba2.step: axis d of x [2, 16] is 16, but the block has d_model = 32",
            kr_mamba2_step(t, m, F(2, 16), NULL).y);
    REFUSED(KR_ERR_SHAPE, "mamba2.step_infinite: axis d of x [2, 16] is 16, but the block has d_model = 32",
            kr_mamba2_step_infinite(t, m, F(2, 16)));
    REFUSED(KR_ERR_SHAPE, "mamba2.forward: x [2, 32] has rank 2, but must have 3 (axes bsd)",
            kr_mamba2_forward(t, m, F(2, 32), NULL, path).y);
    REFUSED(KR_ERR_SHAPE, "mamba2.step: x [2, 1, 32] has rank 3, but must have 2 (axes bd)",
            kr_mamba2_step(t, m, F(2, 1, 32), NULL).y);
    REFUSED(KR_ERR_DTYPE, "mamba2.forward: x is f64, but the block is f32; cast x, or create the block with that dtype",
            kr_mamba2_forward(t, m, D(2, 3, 32), NULL, path).y);
    REFUSED(KR_ERR_DTYPE, "mamba2.step: x is i32, but the block is f32; cast x, or create the block with that dtype",
            kr_mamba2_step(t, m, I(2, 32), NULL).y);
    REFUSED(KR_ERR_SHAPE, "mamba2.forward: x [2, 0, 32] is empty; at least one row and one token are needed",
            kr_mamba2_forward(t, m, F(2, 0, 32), NULL, path).y);
    REFUSED(KR_ERR_SHAPE, "mamba2.forward: x [0, 3, 32] is empty; at least one row and one token are needed",
            kr_mamba2_forward(t, m, F(0, 3, 32), NULL, path).y);
    REFUSED(KR_ERR_SHAPE, "mamba2.forward_reset: s = 0, but a sequence needs at least one token",
            kr_mamba2_forward_reset(t, m, F(2, 0, 32), I(2, 0), NULL, path).y);
    REFUSED(KR_ERR_SHAPE, "mamba2.step: x [0, 32] is empty; at least one row is needed",
            kr_mamba2_step(t, m, F(0, 32), NULL).y);
    REFUSED(KR_ERR_ARG, "mamba2.forward: operand x is NULL", kr_mamba2_forward(t, m, NULL, NULL, path).y);
    REFUSED(KR_ERR_ARG,
            "mamba2.forward_reset: seq_start and reset are both given; packed rows begin their sequences by seq_start "
            "alone",
            kr_block_forward(t, (const kr_block *)m, F(2, 3, 32),
                             &(kr_block_call){ .seq_start_bs = I(2, 3), .reset_bs = I(2, 3) })
                .y);
    REFUSED(KR_ERR_ARG, "mamba2.forward: call.reserved is not 0; initialise kr_block_call with { 0 }",
            kr_block_forward(t, (const kr_block *)m, F(2, 3, 32), &(kr_block_call){ .reserved = { t } }).y);
    REFUSED(KR_ERR_DTYPE, "mamba2.forward: mask [2, 3] is f32, but must be i32 or i64",
            kr_block_forward(t, (const kr_block *)m, F(2, 3, 32), &(kr_block_call){ .mask_bs = F(2, 3) }).y);
    REFUSED(KR_ERR_ARG, "mamba2_ssd: algorithm 5 is not one of Minimal, Serial, SerialRecalculated",
            kr_mamba2_forward(t, m, F(2, 3, 32), NULL, (kr_ssd_path){ (kr_ssd_algorithm)5, 0 }).y);
    REFUSED(KR_ERR_ARG, "mamba2_ssd: chunk_len = -3, but must be at least 1, or 0 for the optimal one",
            kr_mamba2_forward(t, m, F(2, 3, 32), NULL, (kr_ssd_path){ KR_SSD_SERIAL, -3 }).y);
    kr_mamba2_destroy(m);
    end();
}

TEST(mamba2_markers)
{
    begin();
    kr_mamba2 *m = block();
    const kr_ssd_path path = kr_mamba2_path(m);
    REFUSED(KR_ERR_SHAPE, "mamba2.forward_packed: seq_start [2, 4] must be [2, 3]: a flag for each token",
            kr_mamba2_forward_packed(t, m, F(2, 3, 32), I(2, 4), NULL, path).y);
    REFUSED(KR_ERR_DTYPE, "mamba2.forward_packed: seq_start [2, 3] is f32, but must be i32 or i64",
            kr_mamba2_forward_packed(t, m, F(2, 3, 32), F(2, 3), NULL, path).y);
    REFUSED(KR_ERR_SHAPE, "mamba2.forward_reset: axis s of reset [2, 4] is 4, but x [2, 3, 32] says s = 3",
            kr_mamba2_forward_reset(t, m, F(2, 3, 32), I(2, 4), NULL, path).y);
    REFUSED(KR_ERR_DTYPE, "mamba2.forward_reset: reset [2, 3] is f32, but must be i32 or i64",
            kr_mamba2_forward_reset(t, m, F(2, 3, 32), F(2, 3), NULL, path).y);
    kr_mamba2_destroy(m);
    end();
}

TEST(mamba2_caches)
{
    begin();
    kr_mamba2 *m = block();
    REFUSED(KR_ERR_SHAPE, "mamba2.forward: cache.conv [3, 80, 4] must be [2, 80, 4]: one for each row of x",
            forward(m, F(2, 3, 32), F(3, 80, 4), F(3, 8, 8, 8)));
    REFUSED(KR_ERR_SHAPE, "mamba2.forward: cache.ssm [2, 8, 8, 7] must be [2, 8, 8, 8]: one for each row of x",
            forward(m, F(2, 3, 32), F(2, 80, 4), F(2, 8, 8, 7)));
    REFUSED(KR_ERR_ARG,
            "mamba2.forward: cache.conv is NULL; a cache has all its tensors, or pass NULL for the initial one",
            forward(m, F(2, 3, 32), NULL, F(2, 8, 8, 8)));
    REFUSED(KR_ERR_ARG,
            "mamba2.forward: cache.ssm is NULL; a cache has all its tensors, or pass NULL for the initial one",
            forward(m, F(2, 3, 32), F(2, 80, 4), NULL));
    REFUSED(KR_ERR_DTYPE,
            "mamba2.forward: cache.ssm is f64, but the block is f32; cast it, or create the block with that dtype",
            forward(m, F(2, 3, 32), F(2, 80, 4), D(2, 8, 8, 8)));
    REFUSED(KR_ERR_DTYPE,
            "mamba2.forward: cache.conv is i32, but the block is f32; cast it, or create the block with that dtype",
            forward(m, F(2, 3, 32), I(2, 80, 4), F(2, 8, 8, 8)));
    kr_tape_reset(t);
    kr_mamba2_cache three = kr_mamba2_initial_cache(t, m, 3);
    CHECK(!kr_mamba2_step(t, m, F(2, 32), &three).y, "a step with another batch is not refused");
    CHECK_ERROR(ctx, KR_ERR_SHAPE, "mamba2.step: cache.conv [3, 80, 4] must be [2, 80, 4]: one for each row of x");
    kr_tape_reset(t);
    three = kr_mamba2_initial_cache(t, m, 3);
    CHECK(!kr_mamba2_forward_reset(t, m, F(2, 3, 32), I(2, 3), &three, kr_mamba2_path(m)).y, "reset: not refused");
    CHECK_ERROR(ctx, KR_ERR_SHAPE, "mamba2.forward_reset: cache.conv [3, 80, 4] must be [2, 80, 4]: one for each row");
    kr_tape_reset(t);
    three = kr_mamba2_initial_cache(t, m, 3);
    CHECK(!kr_mamba2_forward_packed(t, m, F(2, 3, 32), I(2, 3), &three, kr_mamba2_path(m)).y, "packed: not refused");
    CHECK_ERROR(ctx, KR_ERR_SHAPE,
                "mamba2.forward_packed: cache.conv [3, 80, 4] must be [2, 80, 4]: one for each sequence of seq_start");
    REFUSED(KR_ERR_ARG, "mamba2.initial_cache: batch = 0, but must be at least 1",
            kr_mamba2_initial_cache(t, m, 0).conv_bvk);
    kr_tape_reset(t);
    const kr_cache other = { KR_FAMILY_MAMBA1, { .mamba1 = { F(2, 80, 4), F(2, 80, 4) } } };
    const kr_block_input input = {
        .op = "mamba2.forward", .x_bsd = F(2, 3, 32), .cache = &other, .path = kr_mamba2_path(m)
    };
    CHECK(!kr_mamba2_kind.forward(t, m, &input).y_bsd, "the cache of another family is not refused");
    CHECK_ERROR(ctx, KR_ERR_ARG, "mamba2.forward: the cache is of the family mamba1, but the block is mamba2");
    kr_mamba2_destroy(m);
    end();
}

TEST(mamba2_null_block)
{
    begin();
    const kr_ssd_path path = kr_mamba2_path(NULL);
    CHECK(path.algorithm == KR_SSD_SERIAL_RECALCULATED && path.chunk_len == 0, "the path of no block");
    REFUSED(KR_ERR_ARG, "block.forward: the block is NULL", kr_mamba2_forward(t, NULL, F(2, 3, 32), NULL, path).y);
    REFUSED(KR_ERR_ARG, "block.forward: the block is NULL",
            kr_mamba2_forward_packed(t, NULL, F(2, 3, 32), I(2, 3), NULL, path).y);
    REFUSED(KR_ERR_ARG, "block.forward: the block is NULL",
            kr_mamba2_forward_reset(t, NULL, F(2, 3, 32), I(2, 3), NULL, path).y);
    REFUSED(KR_ERR_ARG, "block.step: the block is NULL", kr_mamba2_step(t, NULL, F(2, 32), NULL).y);
    REFUSED(KR_ERR_ARG, "block.step_infinite: the block is NULL", kr_mamba2_step_infinite(t, NULL, F(2, 32)));
    REFUSED(KR_ERR_ARG, "block.initial_cache: the block is NULL", kr_mamba2_initial_cache(t, NULL, 2).ssm_bhpr);
    CHECK(kr_mamba2_params(NULL) == NULL && kr_params_count(NULL) == 0, "the parameters of no block");
    kr_mamba2_destroy(NULL);
    kr_mamba2 *m = block();
    kr_tape_reset(t);
    CHECK(!kr_mamba2_forward(NULL, m, F(2, 3, 32), NULL, path).y && !kr_mamba2_step(NULL, m, F(2, 32), NULL).y,
          "something without a tape");
    kr_mamba2_destroy(m);
    end();
}

TEST(mamba2_of_another_context_and_not_finite)
{
    begin();
    kr_ctx_options options;
    kr_ctx_options_init(&options);
    options.threads = 1;
    options.check_finite = true;
    kr_ctx *strict = kr_ctx_create(&options);
    const kr_mamba2_config c = mamba2_small();
    kr_mamba2 *m = kr_mamba2_create(strict, &c);
    REFUSED(KR_ERR_STATE, "linear: operand weight [152, 32] belongs to another context",
            kr_mamba2_forward(t, m, F(2, 3, 32), NULL, kr_mamba2_path(m)).y);
    kr_tape *tape = kr_tape_create(strict, KR_TAPE_NO_GRAD);
    float x[2 * 3 * 32] = { 0 };
    x[32 + 5] = NAN;
    kr_tensor *x_bsd = kr_from_data(tape, KR_DTYPE_F32, KR_SHAPE(2, 3, 32), x);
    CHECK(!kr_mamba2_forward(tape, m, x_bsd, NULL, kr_mamba2_path(m)).y, "a NaN is not refused");
    CHECK_ERROR(strict, KR_ERR_NUMERIC, "reshape: output 0 [6, 32] holds nan at [1, 5]");
    kr_tape_destroy(tape);
    kr_mamba2_destroy(m);
    kr_ctx_destroy(strict);
    end();
}

/* ---- every allocation refused in turn ---- */

/* Everything that a block can have, in the smallest sizes. */
static kr_mamba2_config tiny(void)
{
    kr_mamba2_config c = mamba2_variant_at(16).config;
    c.d_model = 4;
    c.d_ssm = 4;
    c.state_rank = c.per_head_dim = 2;
    return c;
}

TEST(mamba2_create_starved)
{
    begin();
    const kr_mamba2_config c = tiny();
    kr_mamba2_destroy(kr_mamba2_create(ctx, &c)); /* what a context keeps for later is there now */
    const kr_memory_stats idle = all_memory(ctx);
    kr_mamba2 *m = NULL;
    size_t n = 0;
    while (!m && n < 1000) {
        kr_ctx_fail_allocation(ctx, ++n);
        m = kr_mamba2_create(ctx, &c);
        kr_ctx_fail_allocation(ctx, 0);
        if (m) break;
        CHECK(strstr(kr_ctx_message(ctx), "no memory for "), "allocation %zu: %s", n, kr_ctx_message(ctx));
        CHECK(kr_ctx_status(ctx) == KR_ERR_NOMEM, "allocation %zu: %s", n, kr_ctx_message(ctx));
        CHECK(all_memory(ctx).live_bytes == idle.live_bytes, "allocation %zu: %zu bytes are left", n,
              all_memory(ctx).live_bytes - idle.live_bytes);
        kr_ctx_clear(ctx);
    }
    CHECK(m && n > 15, "%zu allocations", n);
    kr_mamba2_destroy(m);
    CHECK(all_memory(ctx).live_blocks == idle.live_blocks, "destroyed, but %zu blocks are left",
          all_memory(ctx).live_blocks - idle.live_blocks);
    kr_tape_reset(t);
    end();
}

/* A sequence in two calls, rows that forget, a limit, and their gradients. */
static void run_all(kr_tape *tape, const kr_mamba2 *m)
{
    const int32_t reset[] = { 0, 1, 0, 1, 0, 0 };
    kr_tensor *x = kr_input(tape, kr_full(tape, KR_DTYPE_F32, KR_SHAPE(2, 3, 4), 0.5));
    kr_tensor *token = kr_reshape(tape, kr_slice(tape, x, 1, 0, 1), KR_SHAPE(2, 4));
    const kr_mamba2_out a = kr_mamba2_forward(tape, m, x, NULL, kr_mamba2_path(m));
    const kr_mamba2_out b = kr_mamba2_step(tape, m, token, &a.cache);
    const kr_mamba2_out c = kr_mamba2_forward_reset(tape, m, x, kr_from_data(tape, KR_DTYPE_I32, KR_SHAPE(2, 3), reset),
                                                    &b.cache, kr_mamba2_path(m));
    kr_tensor *y[4] = { b.y, c.y, c.cache.ssm_bhpr, kr_mamba2_step_infinite(tape, m, token) };
    if (!kr_ctx_failed(ctx)) kr_backward_from(tape, 4, y, NULL);
}

TEST(mamba2_calls_starved)
{
    begin();
    const kr_mamba2_config c = tiny();
    const size_t idle = all_memory(ctx).live_blocks;
    bool passed = false;
    size_t n = 1;
    for (; !passed && n < 5000; n += kr_test_quick() ? 17 : 1) {
        kr_mamba2 *m = kr_mamba2_create(ctx, &c);
        kr_tape *tape = kr_tape_create(ctx, KR_TAPE_GRAD);
        /* each piece of memory is asked for by itself */
        tape->heads.block_bytes = tape->data.block_bytes = tape->heap.chunk_bytes = KR_ALIGN;
        tape->shared.block_bytes = tape->device_heap.chunk_bytes = 4 * KR_ALIGN;
        ctx->scratch.block_bytes = KR_ALIGN;
        kr_ctx_fail_allocation(ctx, n);
        run_all(tape, m);
        kr_ctx_fail_allocation(ctx, 0);
        passed = !kr_ctx_failed(ctx);
        CHECK(passed || kr_ctx_status(ctx) == KR_ERR_NOMEM, "allocation %zu: %s", n, kr_ctx_message(ctx));
        kr_ctx_clear(ctx);
        kr_tape_destroy(tape);
        kr_mamba2_destroy(m);
        drop_scratch(ctx);
        CHECK(all_memory(ctx).live_blocks == idle, "allocation %zu: %zu blocks are left", n,
              all_memory(ctx).live_blocks - idle);
    }
    CHECK(passed && n > 100, "%zu allocations", n);
    kr_tape_reset(t);
    end();
}
