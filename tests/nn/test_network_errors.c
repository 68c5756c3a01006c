/* test_network_errors.c - what stacks and networks refuse, in which words; and refused memory. */
#include "tests/memory.h"
#include "tests/nn/networks.h"
#include "tests/error_tests.h"

/* ---- configs that are refused ---- */

#define STACK(text, change)                                                                                            \
    do {                                                                                                               \
        net_recipe r = net_recipe_of(KR_FAMILY_MAMBA2, BARE);                                                          \
        net_layers_config(&r);                                                                                         \
        kr_layers_config *c = &r.layers;                                                                               \
        change;                                                                                                        \
        REFUSED(KR_ERR_ARG, "layers.create: " text, kr_layers_create(ctx, c));                                         \
    } while (0)

TEST(layers_refuse_configs)
{
    begin();
    static const int64_t order[] = { 0, 1, 2 }, back[] = { 0, -1 };
    static const kr_class_token kinds[] = { { .kind = KR_CLASS_TOKEN_START }, { .kind = (kr_class_token_kind)9 } },
                                places[] = { { .kind = KR_CLASS_TOKEN_CUSTOM, .at = -1 } };
    static const kr_layer_class_token far[] = { { 0, { .kind = KR_CLASS_TOKEN_START } },
                                                { 2, { .kind = KR_CLASS_TOKEN_START } } };
    static const kr_layer_class_token bad_kind[] = { { 0, { .kind = KR_CLASS_TOKEN_START } },
                                                     { 1, { .kind = (kr_class_token_kind)-1 } } };
    static const kr_layer_class_token bad_at[] = { { 1, { .kind = KR_CLASS_TOKEN_CUSTOM, .at = -4 } } };
    REFUSED(KR_ERR_ARG, "layers.create: config is NULL", kr_layers_create(ctx, NULL));
    STACK("block.family = 7 is not one of mamba1, mamba2, mamba3, or registered", c->block.family = (kr_family)7);
    STACK("block.config is NULL; set block with kr_mamba1_block, kr_mamba2_block or kr_mamba3_block",
          c->block.config = NULL);
    STACK("n_layers = 0, but must be at least 1", c->n_layers = 0);
    STACK("n_layers = 9223372036854775807, but must be at most 1073741824", c->n_layers = INT64_MAX);
    STACK("n_virtual = -1, but must be at least 0", c->n_virtual = -1);
    STACK("schedule = 3 is not one of cyclic, stretched, custom", c->schedule = (kr_schedule)3);
    STACK("custom_schedule is NULL, but the schedule is custom; give n_virtual numbers",
          c->schedule = KR_SCHEDULE_CUSTOM);
    STACK("custom_schedule[2] = 2, but must be from 0 to 1: a set of weights",
          (c->schedule = KR_SCHEDULE_CUSTOM, c->custom_schedule = order, c->n_virtual = 3));
    STACK("custom_schedule[1] = -1, but must be from 0 to 1: a set of weights",
          (c->schedule = KR_SCHEDULE_CUSTOM, c->custom_schedule = back));
    STACK("norm_eps = 0, but must be above 0 and finite", c->norm_eps = 0);
    STACK("norm_eps = nan, but must be above 0 and finite", c->norm_eps = NAN);
    STACK("d_intermediate = -1, but must be at least 0", c->d_intermediate = -1);
    STACK("mlp_multiple_of = 0, but must be at least 1", c->mlp_multiple_of = 0);
    STACK("residual.kind = 2 is neither standard nor multi-gate", c->residual.kind = (kr_residual_kind)2);
    STACK("residual.n_stream = 0, but must be at least 1", c->residual.kind = KR_RESIDUAL_MULTI_GATE);
    STACK("residual.n_stream = 33, but must be at most 32",
          c->residual = ((kr_residual){ .kind = KR_RESIDUAL_MULTI_GATE,
                                        .n_stream = 33,
                                        .init_bias = 0,
                                        .init_bias_step = 0,
                                        .per_virtual_layer = false }));
    STACK("residual.init_bias = inf, but must be finite", c->residual = ((kr_residual){ .kind = KR_RESIDUAL_MULTI_GATE,
                                                                                        .n_stream = 2,
                                                                                        .init_bias = INFINITY,
                                                                                        .init_bias_step = 0,
                                                                                        .per_virtual_layer = false }));
    STACK("residual.init_bias_step = nan, but must be finite",
          c->residual = ((kr_residual){ .kind = KR_RESIDUAL_MULTI_GATE,
                                        .n_stream = 2,
                                        .init_bias = 0,
                                        .init_bias_step = NAN,
                                        .per_virtual_layer = false }));
    STACK("grad_horizon = -2, but must be at least -1", c->grad_horizon = -2);
    STACK("recompute = 3 is not one of none, all, budget", c->recompute = (kr_recompute)3);
    STACK("recompute_budget = 0, but recompute asks for a budget in bytes", c->recompute = KR_RECOMPUTE_BUDGET);
    STACK("n_latents = -1, but must not be negative", c->n_latents = -1);
    STACK("n_latents = 1, but latents is NULL", c->n_latents = 1);
    STACK("latents[1].kind = 9 is not one of start, middle, end, custom", (c->n_latents = 2, c->latents = kinds));
    STACK("latents[0].at = -1, but a custom position must not be negative", (c->n_latents = 1, c->latents = places));
    STACK("n_layer_latents = -1, but must not be negative", c->n_layer_latents = -1);
    STACK("n_layer_latents = 2, but layer_latents is NULL", c->n_layer_latents = 2);
    STACK("layer_latents[1].layer = 2, but must be from 0 to 1: a set of weights",
          (c->n_layer_latents = 2, c->layer_latents = far));
    STACK("layer_latents[1].token.kind = -1 is not one of start, middle, end, custom",
          (c->n_layer_latents = 2, c->layer_latents = bad_kind));
    STACK("layer_latents[0].token.at = -4, but a custom position must not be negative",
          (c->n_layer_latents = 1, c->layer_latents = bad_at));
    STACK("mamba2.create: d_model = 0, but must be at least 1", r.mamba2.d_model = 0);
    kr_fail(ctx, KR_ERR_ARG, "an earlier error");
    CHECK(!kr_layers_create(ctx, NULL) && !kr_network_create(ctx, NULL), "made after an error");
    CHECK_ERROR(ctx, KR_ERR_ARG, "an earlier error");
    kr_tape_reset(t);
    end();
}

#define NETWORK(ends, text, change)                                                                                    \
    do {                                                                                                               \
        net_recipe r = net_recipe_of(KR_FAMILY_MAMBA1, ends);                                                          \
        net_network_config(&r);                                                                                        \
        kr_network_config *c = &r.network;                                                                             \
        change;                                                                                                        \
        REFUSED(KR_ERR_ARG, "network.create: " text, kr_network_create(ctx, c));                                       \
    } while (0)

TEST(network_refuses_configs)
{
    begin();
    static const kr_class_token good[] = { { .kind = KR_CLASS_TOKEN_START } },
                                places[] = { { .kind = KR_CLASS_TOKEN_CUSTOM, .at = -1 } };
    REFUSED(KR_ERR_ARG, "network.create: config is NULL", kr_network_create(ctx, NULL));
    NETWORK(VOCAB, "layers is NULL; point it at a kr_layers_config", c->layers = NULL);
    NETWORK(VOCAB, "vocab_size = -1, but must be at least 0", c->vocab_size = -1);
    NETWORK(LATENT, "input_size = -1, but must be at least 0", c->input_size = -1);
    NETWORK(VOCAB, "vocab_size = 11 and input_size = 4, but one of them must be above 0: tokens or features",
            c->input_size = 4);
    NETWORK(VOCAB, "vocab_size = 0 and input_size = 0, but one of them must be above 0: tokens or features",
            c->vocab_size = 0);
    NETWORK(VOCAB, "pad_vocab_size_multiple = 0, but must be at least 1", c->pad_vocab_size_multiple = 0);
    NETWORK(VOCAB, "embedding_std = 0, but must be above 0 and finite", c->embedding_std = 0);
    NETWORK(VOCAB, "n_residuals = 0, but must be at least 1", c->n_residuals = 0);
    NETWORK(VOCAB, "output_size = 3, but a vocabulary network gives logits; leave it 0", c->output_size = 3);
    NETWORK(VOCAB,
            "n_class_tokens = 1, but class tokens are for latent networks; a vocabulary network takes latents of its "
            "stack",
            (c->n_class_tokens = 1, c->class_tokens = good));
    NETWORK(LATENT, "output_size = 0, but must be at least 1", c->output_size = 0);
    NETWORK(LATENT, "n_class_tokens = -1, but must not be negative", c->n_class_tokens = -1);
    NETWORK(LATENT, "n_class_tokens = 1, but class_tokens is NULL", c->n_class_tokens = 1);
    NETWORK(LATENT, "class_tokens[0].at = -1, but a custom position must not be negative",
            (c->n_class_tokens = 1, c->class_tokens = places));
    NETWORK(LATENT, "layers.create: n_layers = 0, but must be at least 1", r.layers.n_layers = 0);
    NETWORK(VOCAB, "layers.create: mamba1.create: d_model = -3, but must be at least 1", r.mamba1.d_model = -3);
    end();
}

/* ---- calls that are refused ---- */

static kr_call plain_call(void)
{
    kr_call call;
    kr_call_init(&call);
    return call;
}

static const kr_call *from_state(kr_call *call, const kr_state *state)
{
    *call = plain_call();
    call->state = state;
    return call;
}

TEST(layers_refuse_inputs)
{
    begin();
    net_recipe r = net_recipe_of(KR_FAMILY_MAMBA2, BARE);
    kr_layers *s = kr_layers_create(ctx, net_layers_config(&r));
    kr_call call;
    REFUSED(KR_ERR_ARG, "layers.forward: the stack is NULL", kr_layers_forward(t, NULL, F(2, 3, 8), NULL).y);
    REFUSED(KR_ERR_ARG, "layers.step: the stack is NULL", kr_layers_step(t, NULL, F(2, 8), NULL).y);
    REFUSED(KR_ERR_ARG, "layers.prime: the stack is NULL", kr_layers_prime(t, NULL, NULL).state);
    REFUSED(KR_ERR_ARG, "layers.step_infinite: the stack is NULL", kr_layers_step_infinite(t, NULL, F(2, 8)));
    kr_call_init(&call);
    REFUSED(KR_ERR_ARG, "layers.step_infinite: call is given, but there are no options: pass NULL",
            kr_layers_call(t, s, KR_CALL_STEP_INFINITE, F(2, 8), &call).y);
    REFUSED(KR_ERR_ARG, "layers.forward: operand x is NULL", kr_layers_forward(t, s, NULL, NULL).y);
    REFUSED(KR_ERR_SHAPE, "layers.forward: axis d of x [2, 3, 7] is 7, but the stack has d_model = 8",
            kr_layers_forward(t, s, F(2, 3, 7), NULL).y);
    REFUSED(KR_ERR_SHAPE, "layers.step: axis d of x [2, 9] is 9, but the stack has d_model = 8",
            kr_layers_step(t, s, F(2, 9), NULL).y);
    REFUSED(KR_ERR_SHAPE, "layers.step_infinite: axis d of x [2, 9] is 9, but the stack has d_model = 8",
            kr_layers_step_infinite(t, s, F(2, 9)));
    REFUSED(KR_ERR_SHAPE, "layers.forward: x [2, 8] has rank 2, but must have 3 (axes bsd)",
            kr_layers_forward(t, s, F(2, 8), NULL).y);
    REFUSED(KR_ERR_SHAPE,
            "layers.forward, layer 0: mamba2: x [2, 0, 8] is empty; at least one row and one token are needed",
            kr_layers_forward(t, s, F(2, 0, 8), NULL).y);
    REFUSED(KR_ERR_DTYPE, "layers.forward: x is f64, but the blocks are f32; cast x, or create them with that dtype",
            kr_layers_forward(t, s, D(2, 3, 8), NULL).y);
    REFUSED(KR_ERR_DTYPE, "layers.step: x is i32, but the blocks are f32; cast x, or create them with that dtype",
            kr_layers_step(t, s, I(2, 8), NULL).y);
    REFUSED(KR_ERR_ARG, "layers.step: seq_start is for forward",
            (call = plain_call(), call.seq_start_bs = I(2, 1), kr_layers_step(t, s, F(2, 8), &call).y));
    REFUSED(KR_ERR_ARG, "layers.forward: seq_start and reset are both given; choose one",
            (call.seq_start_bs = I(2, 3), call.reset_bs = I(2, 3), kr_layers_forward(t, s, F(2, 3, 8), &call).y));
    REFUSED(KR_ERR_SHAPE, "layers.forward: seq_start [2, 4] must be [2, 3]: a flag for each token",
            (call = plain_call(), call.seq_start_bs = I(2, 4), kr_layers_forward(t, s, F(2, 3, 8), &call).y));
    REFUSED(KR_ERR_SHAPE, "layers.forward, layer 0: mamba2: axis s of reset [2, 4] is 4, but x [2, 3, 8] says s = 3",
            (call = plain_call(), call.reset_bs = I(2, 4), kr_layers_forward(t, s, F(2, 3, 8), &call).y));
    kr_layers_destroy(s);
    end();
}

TEST(masks_are_refused)
{
    static const kr_class_token begin_class_token = { .kind = KR_CLASS_TOKEN_START };
    begin();
    net_recipe r = net_recipe_of(KR_FAMILY_MAMBA2, BARE), marked = net_recipe_of(KR_FAMILY_MAMBA2, BARE);
    marked.layers.n_latents = 1;
    marked.layers.latents = &begin_class_token;
    kr_layers *s = kr_layers_create(ctx, net_layers_config(&r));
    kr_layers *sm = kr_layers_create(ctx, net_layers_config(&marked));
    kr_state *state = kr_state_create(ctx, sm, 2);
    kr_state_announce(state, 3);
    kr_call call = plain_call();
    REFUSED(KR_ERR_ARG, "layers.step: mask is for forward; leave out the rows whose token is padding",
            (call.mask_bs = I(2, 1), kr_layers_step(t, s, F(2, 8), &call).y));
    REFUSED(KR_ERR_ARG, "layers.prime: mask is for forward; leave out the rows whose token is padding",
            (call.mask_bs = I(2, 1), call.state = state, kr_layers_prime(t, sm, &call).y));
    REFUSED(KR_ERR_SHAPE, "layers.forward: mask [2, 4] must be [2, 3]: a number for each token",
            (call = plain_call(), call.mask_bs = I(2, 4), kr_layers_forward(t, s, F(2, 3, 8), &call).y));
    REFUSED(KR_ERR_SHAPE, "layers.forward: mask [2, 3, 1] has rank 3, but must have 2 (axes bs)",
            (call.mask_bs = I(2, 3, 1), kr_layers_forward(t, s, F(2, 3, 8), &call).y));
    REFUSED(KR_ERR_DTYPE, "layers.forward: mask [2, 3] is f32, but must be i32 or i64",
            (call.mask_bs = F(2, 3), kr_layers_forward(t, s, F(2, 3, 8), &call).y));
    REFUSED(KR_ERR_ARG, "layers.forward: mask [b 0, s 1] is -1, but must be 1, or 0 where the token is padding",
            (call.mask_bs = kr_from_data(t, KR_DTYPE_I32, KR_SHAPE(2, 2), (const int32_t[]){ 1, -1, 0, 1 }),
             kr_layers_forward(t, s, F(2, 2, 8), &call).y));
    REFUSED(KR_ERR_ARG, "layers.forward: mask is given, but class tokens cannot be combined with padded rows",
            (call.mask_bs = I(2, 3), kr_layers_forward(t, sm, F(2, 3, 8), &call).y));
    kr_tape_reset(t);
    kr_state_destroy(state);
    kr_layers_destroy(s);
    kr_layers_destroy(sm);
    end();
}

TEST(layers_refuse_states)
{
    begin();
    net_recipe r = net_recipe_of(KR_FAMILY_MAMBA2, BARE), other = net_recipe_of(KR_FAMILY_MAMBA3, BARE);
    net_recipe deep = net_recipe_of(KR_FAMILY_MAMBA2, BARE), wide = net_recipe_of(KR_FAMILY_MAMBA2, BARE);
    deep.layers.n_virtual = 3;
    wide.mamba2.d_model = 16;
    kr_layers *s = kr_layers_create(ctx, net_layers_config(&r)), *s3 = kr_layers_create(ctx, net_layers_config(&other));
    kr_layers *sd = kr_layers_create(ctx, net_layers_config(&deep)),
              *sw = kr_layers_create(ctx, net_layers_config(&wide));
    kr_state *of_3 = kr_state_create(ctx, s3, 2), *of_deep = kr_state_create(ctx, sd, 2);
    kr_state *of_1 = kr_state_create(ctx, s, 1), *of_wide = kr_state_create(ctx, sw, 2);
    kr_tape *t2 = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    kr_state_copy(of_wide, kr_layers_forward(t2, sw, kr_zeros(t2, KR_DTYPE_F32, KR_SHAPE(2, 1, 16)), NULL).state);
    kr_state *elsewhere = kr_layers_forward(t2, s, kr_zeros(t2, KR_DTYPE_F32, KR_SHAPE(2, 1, 8)), NULL).state;
    kr_call call;
    REFUSED(KR_ERR_ARG, "layers.forward: the state is of a stack of mamba3 blocks, but these are mamba2",
            kr_layers_forward(t, s, F(2, 3, 8), from_state(&call, of_3)).y);
    REFUSED(KR_ERR_ARG, "layers.step: the state has 3 slots, but the stack has 2 virtual layers",
            kr_layers_step(t, s, F(2, 8), from_state(&call, of_deep)).y);
    REFUSED(KR_ERR_SHAPE, "layers.step: the state has 1 rows, but there are 2 rows in x",
            kr_layers_step(t, s, F(2, 8), from_state(&call, of_1)).y);
    REFUSED(KR_ERR_SHAPE,
            "layers.forward, layer 0: mamba2: cache.conv [2, 40, 4] must be [2, 24, 4]: one for each row of x",
            kr_layers_forward(t, s, F(2, 3, 8), from_state(&call, of_wide)).y);
    REFUSED(
        KR_ERR_STATE,
        "layers.forward: the state is on another tape; carry it over with kr_state_copy into one of kr_state_create",
        kr_layers_forward(t, s, F(2, 3, 8), from_state(&call, elsewhere)).y);
    REFUSED(KR_ERR_SHAPE, "layers.forward: the state has 1 rows, but there are 2 sequences",
            (from_state(&call, of_1), call.seq_start_bs = I(2, 3), kr_layers_forward(t, s, F(2, 3, 8), &call).y));
    REFUSED(KR_ERR_ARG, "layers.prime: there is no state; give one with an announced length",
            kr_layers_prime(t, s, NULL).state);
    kr_tape_reset(t);
    kr_tape_destroy(t2);
    kr_state *states[] = { of_3, of_deep, of_1, of_wide };
    for (int i = 0; i < 4; i++) kr_state_destroy(states[i]);
    kr_layers *stacks[] = { s, s3, sd, sw };
    for (int i = 0; i < 4; i++) kr_layers_destroy(stacks[i]);
    end();
}

TEST(network_refuses_calls)
{
    begin();
    net_recipe rv = net_recipe_of(KR_FAMILY_MAMBA1, VOCAB), rl = net_recipe_of(KR_FAMILY_MAMBA1, LATENT);
    kr_network *v = kr_network_create(ctx, net_network_config(&rv)),
               *l = kr_network_create(ctx, net_network_config(&rl));
    REFUSED(KR_ERR_ARG, "network.forward: the network is NULL", kr_network_forward(t, NULL, I(2, 3), NULL).y);
    REFUSED(KR_ERR_ARG, "network.step: the network is NULL", kr_network_step(t, NULL, I(2), NULL).y);
    REFUSED(KR_ERR_ARG, "network.prime: the network is NULL", kr_network_prime(t, NULL, NULL).state);
    REFUSED(KR_ERR_ARG, "network.step_infinite: the network is NULL", kr_network_step_infinite(t, NULL, I(2)));
    kr_call call;
    kr_call_init(&call);
    REFUSED(KR_ERR_ARG, "network.step_infinite: call is given, but there are no options: pass NULL",
            kr_network_call(t, v, KR_CALL_STEP_INFINITE, I(2), &call).y);
    const kr_network_info info = kr_network_info_of(v), none = kr_network_info_of(NULL);
    CHECK(info.params == kr_network_params(v) && info.layers == kr_network_layers(v) && info.grid == 1 &&
              info.width == kr_network_width(v) && info.width >= 11,
          "properties of a network");
    CHECK(!none.params && !none.layers && none.width == 0 && none.grid == 0, "those of NULL");
    const kr_layers_info stack = kr_layers_info_of(info.layers);
    CHECK(stack.n_virtual == kr_layers_virtual(info.layers) && stack.d_model == 8 && stack.grid == 1 &&
              kr_layers_info_of(NULL).d_model == 0,
          "properties of a stack");
    REFUSED(KR_ERR_DTYPE, "network.forward: x [2, 3] is f32, but a vocabulary network takes ids, i32 or i64",
            kr_network_forward(t, v, F(2, 3), NULL).y);
    REFUSED(KR_ERR_SHAPE, "network.forward: x [2, 3, 1] has rank 3, but must have 2 (axes bs)",
            kr_network_forward(t, v, I(2, 3, 1), NULL).y);
    REFUSED(KR_ERR_SHAPE, "network.step: x [2, 3] has rank 2, but must have 1 (axes b)",
            kr_network_step(t, v, I(2, 3), NULL).y);
    /* 11 ids are asked for, but the table has 16 rows: what is beyond it is refused */
    kr_tape_reset(t);
    CHECK(kr_network_forward(t, v, kr_full(t, KR_DTYPE_I32, KR_SHAPE(2, 3), 15), NULL).y != NULL, "a padded id");
    REFUSED(KR_ERR_ARG, "network.forward, input: embedding: element 0 of id [2, 3] is 16, but must be from 0 to 15",
            kr_network_forward(t, v, kr_full(t, KR_DTYPE_I32, KR_SHAPE(2, 3), 16), NULL).y);
    REFUSED(KR_ERR_ARG, "network.step, input: embedding: element 0 of id [2, 1] is -1, but must be from 0 to 15",
            kr_network_step(t, v, kr_full(t, KR_DTYPE_I64, KR_SHAPE(2), -1), NULL).y);
    REFUSED(KR_ERR_SHAPE, "network.forward: axis f of x [2, 3, 4] is 4, but the network has input_size = 3",
            kr_network_forward(t, l, F(2, 3, 4), NULL).y);
    REFUSED(KR_ERR_DTYPE, "network.step: x is f64, but the blocks are f32; cast x, or create them with that dtype",
            kr_network_step(t, l, D(2, 3), NULL).y);
    REFUSED(KR_ERR_DTYPE, "network.forward: x is i32, but the blocks are f32; cast x, or create them with that dtype",
            kr_network_forward(t, l, I(2, 3, 3), NULL).y);
    REFUSED(KR_ERR_ARG, "network.prime: there is no state; give one with an announced length",
            kr_network_prime(t, l, NULL).state);
    kr_network_destroy(v);
    kr_network_destroy(l);
    end();
}

/* With check_finite the first op that makes a NaN is named, and the layer. */
TEST(a_nan_is_found_where_it_arises)
{
    kr_ctx_options options;
    kr_ctx_options_init(&options);
    options.check_finite = true;
    kr_ctx *c = kr_ctx_create(&options);
    kr_tape *tape = kr_tape_create(c, KR_TAPE_GRAD);
    net_recipe r = net_recipe_of(KR_FAMILY_MAMBA2, LATENT), rs = net_recipe_of(KR_FAMILY_MAMBA2, BARE);
    kr_network *w = kr_network_create(c, net_network_config(&r));
    kr_layers *s = kr_layers_create(c, net_layers_config(&rs));
    float x[2 * 3 * NET_D] = { 0 };
    x[7] = NAN;
    CHECK(!kr_network_forward(tape, w, kr_from_data(tape, KR_DTYPE_F32, KR_SHAPE(2, 3, NET_INPUT), x), NULL).y,
          "a NaN passes");
    CHECK_ERROR(c, KR_ERR_NUMERIC, "network.forward, input: reshape: output 0 [6, 3] holds nan at [2, 1]");
    kr_tape_reset(tape);
    CHECK(!kr_layers_forward(tape, s, kr_from_data(tape, KR_DTYPE_F32, KR_SHAPE(2, 3, NET_D), x), NULL).y,
          "a NaN passes");
    CHECK_ERROR(c, KR_ERR_NUMERIC, "layers.forward, layer 0: rms_norm: output 0 [2, 3, 8] holds nan at [0, 0, 0]");
    kr_tape_reset(tape);
    kr_param_fill(kr_params_find(kr_layers_params(s), "layers.1.mixer.D")->tensor, INFINITY);
    CHECK(!kr_layers_forward(tape, s, kr_full(tape, KR_DTYPE_F32, KR_SHAPE(2, 3, NET_D), 1), NULL).y,
          "an infinity passes");
    CHECK_ERROR_HAS(c, KR_ERR_NUMERIC, "layers.forward, layer 1: ");
    kr_layers_destroy(s);
    kr_network_destroy(w);
    kr_tape_destroy(tape);
    kr_ctx_destroy(c);
}

/* ---- refused memory ---- */

/* Gates for each virtual layer, so that the stack's arrays need several blocks; a list at every level. */
static net_recipe large(void)
{
    static const kr_class_token class_token[] = { { .kind = KR_CLASS_TOKEN_START }, { .kind = KR_CLASS_TOKEN_END } };
    static const kr_layer_class_token of_layer[] = { { 1, { .kind = KR_CLASS_TOKEN_END } } };
    net_recipe r = net_recipe_of(KR_FAMILY_MAMBA3, LATENT);
    r.layers.d_intermediate = 4;
    r.layers.n_virtual = 90;
    r.layers.residual = (kr_residual){
        .kind = KR_RESIDUAL_MULTI_GATE, .n_stream = 2, .init_bias = -1, .init_bias_step = 0.5, .per_virtual_layer = true
    };
    r.layers.latents = r.network.class_tokens = class_token;
    r.layers.n_latents = r.network.n_class_tokens = 2;
    r.layers.layer_latents = of_layer;
    r.layers.n_layer_latents = 1;
    r.network.has_final_norm = true;
    return r;
}

static void check_nothing_left(const kr_memory_stats *idle, size_t n)
{
    const kr_memory_stats left = all_memory(ctx);
    CHECK(left.live_blocks == idle->live_blocks && left.live_bytes == idle->live_bytes,
          "allocation %zu: %zu blocks of %zu bytes are left", n, left.live_blocks - idle->live_blocks,
          left.live_bytes - idle->live_bytes);
}

TEST(constructors_with_every_allocation_refused)
{
    begin();
    net_recipe r = large();
    const kr_memory_stats idle = all_memory(ctx);
    for (int bare = 0; bare < 2; bare++) {
        void *made = NULL;
        size_t n = 0;
        while (!made && n < 5000) {
            kr_ctx_fail_allocation(ctx, n += kr_test_quick() && n > 20 ? 9 : 1);
            kr_layers *s = bare ? kr_layers_create(ctx, net_layers_config(&r)) : NULL;
            kr_network *w = bare ? NULL : kr_network_create(ctx, net_network_config(&r));
            kr_ctx_fail_allocation(ctx, 0);
            made = bare ? (void *)s : (void *)w;
            if (!made) CHECK_ERROR_HAS(ctx, KR_ERR_NOMEM, "no memory for");
            kr_layers_destroy(s);
            kr_network_destroy(w);
            check_nothing_left(&idle, n);
        }
        CHECK(made && n > 300, "%s after %zu refused allocations", made ? "made" : "not made", n);
    }
    kr_tape_reset(t);
    end();
}

/* Forward, prime, step, backward; what they make is kept in a state. */
static void run_once(kr_tape *tape, const kr_network *w, kr_state *state)
{
    kr_call call;
    kr_call_init(&call);
    call.state = state;
    kr_state_zero(state);
    kr_state_announce(state, 4);
    kr_tensor *x = kr_input(tape, kr_full(tape, KR_DTYPE_F32, KR_SHAPE(1, 3, NET_INPUT), 0.5)), *streams[16];
    call.streams = streams;
    const kr_network_out first = kr_network_forward(tape, w, x, &call);
    call.state = first.state;
    const kr_network_out primed = kr_network_prime(tape, w, &call);
    call.state = primed.state;
    kr_tensor *token = kr_reshape(tape, kr_slice(tape, x, 1, 0, 1), KR_SHAPE(1, NET_INPUT));
    const kr_network_out last = kr_network_step(tape, w, token, &call);
    kr_state_copy(state, last.state);
    if (kr_requires_grad(last.y)) kr_backward(tape, kr_sum(tape, last.y, KR_ALL_AXES, false));
}

static void refuse_each(kr_recompute recompute, kr_tape_mode mode, int64_t horizon, size_t stride)
{
    net_recipe r = large();
    r.family = KR_FAMILY_MAMBA2;
    r.layers.n_virtual = 3;
    r.layers.recompute = recompute;
    r.layers.recompute_budget = 400000;
    r.layers.grad_horizon = horizon;
    drop_scratch(ctx);
    const kr_memory_stats idle = all_memory(ctx);
    bool passed = false;
    size_t n = 1;
    for (; !passed && n < 20000; n += stride) {
        kr_network *w = kr_network_create(ctx, net_network_config(&r));
        kr_state *state = kr_state_create(ctx, kr_network_layers(w), 1);
        kr_tape *tape = kr_tape_create(ctx, mode);
        tape->heads.block_bytes = tape->data.block_bytes = tape->heap.chunk_bytes = KR_ALIGN;
        tape->shared.block_bytes = tape->device_heap.chunk_bytes = 4 * KR_ALIGN;
        ctx->scratch.block_bytes = KR_ALIGN;
        kr_ctx_fail_allocation(ctx, n);
        run_once(tape, w, state);
        kr_ctx_fail_allocation(ctx, 0);
        passed = !kr_ctx_failed(ctx);
        if (!passed) {
            CHECK(kr_ctx_status(ctx) == KR_ERR_NOMEM, "allocation %zu: %s", n, kr_ctx_message(ctx));
            kr_ctx_clear(ctx);
            kr_tape_reset(tape);
            run_once(tape, w, state);
            CHECK(!kr_ctx_failed(ctx), "after allocation %zu: %s", n, kr_ctx_message(ctx));
        }
        kr_tape_destroy(tape);
        kr_state_destroy(state);
        kr_network_destroy(w);
        drop_scratch(ctx);
        check_nothing_left(&idle, n);
    }
    CHECK(passed && n > 100, "%s after %zu refused allocations", passed ? "passed" : "did not pass", n);
}

TEST(calls_with_every_allocation_refused)
{
    begin();
    kr_tape_destroy(t);
    const size_t stride = kr_test_quick() ? 41 : 9;
    refuse_each(KR_RECOMPUTE_NONE, KR_TAPE_GRAD, KR_NO_HORIZON, stride);
    refuse_each(KR_RECOMPUTE_BUDGET, KR_TAPE_GRAD, 2, stride);
    refuse_each(KR_RECOMPUTE_NONE, KR_TAPE_NO_GRAD, KR_NO_HORIZON, stride);
    t = kr_tape_create(ctx, KR_TAPE_GRAD);
    end();
}
