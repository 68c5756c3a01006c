/* test_stack_dropout.c - dropout in stacks: off it changes no bit, recomputed layers draw the same masks, and it is applied
 * where the documentation says. */
#include "tests/nn/bidi_cases.h"
#include "tests/nn/networks.h"

typedef struct drop_out {
    double loss;
    double *g; /* of all parameters */
    int64_t count;
    uint64_t stream;
} drop_out;

static kr_layers *stack_of(kr_ctx *ctx, kr_recompute recompute, int64_t mlp, kr_residual_kind residual)
{
    kr_mamba2_config mamba;
    kr_mamba2_config_init(&mamba);
    mamba.d_model = 8;
    mamba.state_rank = mamba.per_head_dim = 4;
    kr_layers_config config;
    kr_layers_config_init(&config);
    config.block = kr_mamba2_block(&mamba);
    config.n_layers = 3;
    config.d_intermediate = mlp;
    config.mlp_multiple_of = 4;
    config.recompute = recompute;
    config.recompute_budget = (size_t)1 << 18;
    if (residual == KR_RESIDUAL_MULTI_GATE)
        config.residual = (kr_residual){ .kind = residual, .n_stream = 2, .init_bias = -1 };
    kr_ctx_seed(ctx, 3);
    return kr_layers_create(ctx, &config);
}

static drop_out run_stack(kr_recompute recompute, kr_residual_kind residual, double p, int threads)
{
    kr_ctx *ctx = kr_test_ctx(threads, NULL);
    kr_layers *stack = stack_of(ctx, recompute, 12, residual);
    kr_tape *t = kr_tape_create(ctx, KR_TAPE_GRAD);
    kr_call call;
    kr_call_init(&call);
    call.dropout = p;
    call.drop_state = true;
    kr_ctx_seed(ctx, 8);
    kr_tensor *x = kr_input(t, kr_randn(t, KR_DTYPE_F32, KR_SHAPE(2, 9, 8)));
    kr_tensor *y = kr_layers_forward(t, stack, x, &call).y;
    kr_tensor *loss = kr_mean(t, kr_mul(t, y, y), KR_ALL_AXES, false);
    kr_backward(t, loss);
    CHECK_OK(ctx);
    drop_out out = { .loss = kr_item(loss), .stream = ctx->stream };
    const kr_params *params = kr_layers_params(stack);
    for (int64_t i = -1; i < kr_params_count(params); i++) {
        const kr_tensor *g = kr_grad(i < 0 ? x : kr_params_at(params, i)->tensor);
        const int64_t n = kr_tensor_count(g);
        if (!g) continue; /* a gate that mixes nothing */
        out.g = realloc(out.g, (size_t)(out.count + n) * sizeof *out.g);
        if (!out.g || kr_tensor_read(g, KR_DTYPE_F64, out.g + out.count, n) != KR_OK) exit(2);
        out.count += n;
    }
    kr_tape_destroy(t);
    kr_layers_destroy(stack);
    kr_ctx_destroy(ctx);
    return out;
}

static void check_same(const char *what, drop_out got, const drop_out *want)
{
    CHECK(got.loss == want->loss, "%s: loss %.9g, not %.9g", what, got.loss, want->loss);
    CHECK(got.count == want->count && memcmp(got.g, want->g, (size_t)got.count * sizeof *got.g) == 0,
          "%s: gradients differ", what);
    CHECK(got.stream == want->stream, "%s: %llu streams drawn, not %llu", what, (unsigned long long)got.stream,
          (unsigned long long)want->stream);
    free(got.g);
}

TEST(recomputed_layers_drop_the_same)
{
    for (int residual = KR_RESIDUAL_STANDARD; residual <= KR_RESIDUAL_MULTI_GATE; residual++) {
        const drop_out plain = run_stack(KR_RECOMPUTE_NONE, (kr_residual_kind)residual, 0.3, 1);
        /* x, the stack's input, and a block and an MLP of each of three layers */
        CHECK(plain.stream == 1 + 1 + 2 * 3, "%llu streams", (unsigned long long)plain.stream);
        check_same("three threads", run_stack(KR_RECOMPUTE_NONE, (kr_residual_kind)residual, 0.3, 3), &plain);
        check_same("all recomputed", run_stack(KR_RECOMPUTE_ALL, (kr_residual_kind)residual, 0.3, 1), &plain);
        check_same("a budget", run_stack(KR_RECOMPUTE_BUDGET, (kr_residual_kind)residual, 0.3, 1), &plain);
        drop_out none = run_stack(KR_RECOMPUTE_NONE, (kr_residual_kind)residual, 0, 1);
        CHECK(none.loss != plain.loss && none.stream == 1, "without dropout: %g, %llu streams", none.loss,
              (unsigned long long)none.stream);
        free(none.g);
        free(plain.g);
    }
}

/* One layer without MLP: x' = dropout(x), y = x' + dropout(block(norm(x'))). */
TEST(a_layer_with_dropout_is_its_formula)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    kr_mamba2_config mamba;
    kr_mamba2_config_init(&mamba);
    mamba.d_model = 8;
    mamba.state_rank = mamba.per_head_dim = 4;
    kr_layers_config config;
    kr_layers_config_init(&config);
    config.block = kr_mamba2_block(&mamba);
    config.n_layers = 1;
    kr_layers *stack = kr_layers_create(ctx, &config);
    kr_tape *t = kr_tape_create(ctx, KR_TAPE_GRAD);
    kr_tensor *x = kr_input(t, kr_randn(t, KR_DTYPE_F32, KR_SHAPE(2, 9, 8)));
    kr_call call;
    kr_call_init(&call);
    call.dropout = 0.25;
    kr_ctx_seed(ctx, 8);
    kr_tensor *got = kr_layers_forward(t, stack, x, &call).y;
    kr_ctx_seed(ctx, 8);
    kr_tensor *dropped = kr_dropout(t, x, 0.25, NULL);
    kr_tensor *delta = kr_sub(t, kr_layers_forward(t, stack, dropped, NULL).y, dropped);
    /* the difference of sums loses some bits of f32 */
    CHECK_TENSORS("a layer", got, kr_add(t, dropped, kr_dropout(t, delta, 0.25, NULL)), 1e-6, 1);
    /* unrecorded, the same masks */
    kr_tape *plain = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    kr_tensor *copy = kr_new(plain, KR_DTYPE_F32, KR_SHAPE(2, 9, 8));
    kr_test_write(copy, kr_test_copy(x));
    kr_ctx_seed(ctx, 8);
    CHECK_TENSORS("unrecorded", kr_layers_forward(plain, stack, copy, &call).y, got, 1e-6, 1);
    CHECK_OK(ctx);
    kr_tape_destroy(plain);
    kr_tape_destroy(t);
    kr_layers_destroy(stack);
    kr_ctx_destroy(ctx);
}

/* One pair: x' = dropout(x), y = x' + dropout(F(x')), whichever way the two directions are merged. */
TEST(a_bidirectional_pair_with_dropout_is_its_formula)
{
    const bidi_blocks blocks = bidi_blocks_of(KR_DTYPE_F64);
    for (int merge = KR_BIDI_MERGE_MEAN; merge <= KR_BIDI_MERGE_CAT_LINEAR; merge++) {
        kr_ctx *ctx = kr_test_ctx(1 + 2 * merge, NULL);
        kr_bidi_config config = bidi_small(&blocks, KR_FAMILY_MAMBA2);
        config.n_layers = 2;
        config.merge = (kr_bidi_merge)merge;
        kr_bidi *bidi = kr_bidi_create(ctx, &config);
        kr_tape *t = kr_tape_create(ctx, KR_TAPE_GRAD);
        kr_tensor *x = kr_input(t, kr_randn(t, KR_DTYPE_F64, KR_SHAPE(2, 9, BIDI_ND)));
        kr_bidi_call call;
        kr_bidi_call_init(&call);
        call.dropout = 0.25;
        kr_ctx_seed(ctx, 8);
        kr_tensor *got = kr_bidi_forward(t, bidi, x, &call).y;
        CHECK(ctx->stream == 2, "%llu streams", (unsigned long long)ctx->stream);
        kr_ctx_seed(ctx, 8);
        kr_tensor *dropped = kr_dropout(t, x, 0.25, NULL);
        kr_tensor *delta = kr_sub(t, kr_bidi_forward(t, bidi, dropped, NULL).y, dropped);
        /* the difference of sums loses some bits of f64 */
        CHECK_TENSORS("a pair", got, kr_add(t, dropped, kr_dropout(t, delta, 0.25, NULL)), 1e-14, 1);
        CHECK(ctx->stream == 2, "a call without dropout draws: %llu streams", (unsigned long long)ctx->stream);
        kr_tape *plain = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
        kr_tensor *copy = kr_from_data(plain, KR_DTYPE_F64, kr_tensor_shape(x), kr_test_copy(x));
        kr_ctx_seed(ctx, 8);
        CHECK_SAME_BITS("unrecorded", kr_bidi_forward(plain, bidi, copy, &call).y, got);
        CHECK_OK(ctx);
        call.dropout = 1;
        CHECK(!kr_bidi_forward(t, bidi, x, &call).y, "all dropped");
        CHECK_ERROR(ctx, KR_ERR_ARG, "bidi.forward: dropout = 1, but must be from 0 to below 1");
        kr_tape_destroy(plain);
        kr_tape_destroy(t);
        kr_bidi_destroy(bidi);
        kr_ctx_destroy(ctx);
    }
}
