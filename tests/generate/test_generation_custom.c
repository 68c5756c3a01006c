/* test_generation_custom.c - custom networks generate what built-in ones do, and have state files. */
#define _POSIX_C_SOURCE 200809L
#include "tests/temp_folder.h"
#include "tests/generate/chat.h"

#include <krait/batch.h>

/* The built-in network again, out of its own parts: an embedding, a stack, a norm, the embedding as head. */
static kr_tensor *forward(void *user, kr_tape *tape, kr_tensor *ids, kr_state *state, const kr_call *call)
{
    const kr_network *net = user;
    const kr_layers *layers = kr_network_layers(net);
    const kr_params *params = kr_network_params(net);
    kr_tensor *embedding_wd = kr_params_find(params, "backbone.embedding.weight")->tensor;
    kr_tensor *gain_d = kr_params_find(params, "backbone.norm_f.weight")->tensor;
    kr_call inner = *call;
    inner.state = kr_state_part(tape, state, 0, kr_state_slots(state));
    const kr_layers_out out = kr_layers_forward(tape, layers, kr_embedding(tape, embedding_wd, ids), &inner);
    kr_state_set_part(state, 0, out.state);
    return kr_linear(tape, kr_rms_norm(tape, out.y, gain_d, NULL), embedding_wd, NULL);
}

static kr_network *by_hand(kr_ctx *ctx, kr_network *net)
{
    const kr_network_part part = { .layers = kr_network_layers(net) };
    kr_custom_network custom;
    kr_custom_network_init(&custom);
    custom.params = kr_network_params(net);
    custom.n_parts = 1;
    custom.parts = &part;
    custom.vocab_size = CHAT_VOCAB - 3;
    custom.width = CHAT_VOCAB;
    custom.forward = forward;
    custom.user = net;
    kr_network *made = kr_network_custom(ctx, &custom);
    CHECK_OK(ctx);
    return made;
}

static kr_generation *chat(kr_ctx *ctx, const kr_network *net, const kr_tokenizer *tok)
{
    static const int32_t stop_ids[] = { 10 };
    static const char *const stops[] = { "ab" };
    static kr_logit_bias biases[CHAT_VOCAB];
    kr_generate_options o = chat_options();
    o.n_samples = 3;
    o.max_tokens = 20;
    o.prefill_chunk = 4;
    o.n_stop_ids = 1;
    o.stop_ids = stop_ids;
    o.n_stops = 1;
    o.stops = stops;
    chat_sampler.temperature = 1;
    chat_only(biases, "abcd\n");
    kr_generation *g = kr_generation_create(ctx, net, tok, &o);
    CHECK_OK(ctx);
    return g;
}

/* A device has kernels for norm and head of the built-in network at once: the same tokens, logits to their rounding. */
static void check_record(kr_ctx *ctx, const chat_record *got, const chat_record *want)
{
    if (!kr_test_on_device(ctx)) {
        chat_check("by hand", got, want, 0);
        return;
    }
    CHECK(got->count == want->count, "%d calls, not %d", got->count, want->count);
    for (int i = 0; i < got->count; i++)
        for (int r = 0; r < 3; r++) {
            const kr_sample a = got->rows[i][r].sample, b = want->rows[i][r].sample;
            CHECK(a.id == b.id && fabs(a.logprob - b.logprob) < 1e-4, "call %d, row %d: %d (%g), not %d (%g)", i, r,
                  a.id, a.logprob, b.id, b.logprob);
        }
}

TEST(custom_generation_is_the_networks)
{
    static const kr_family families[] = { KR_FAMILY_MAMBA1, KR_FAMILY_MAMBA2, KR_FAMILY_MAMBA3 };
    for (int f = 0; f < 3; f++) {
        kr_ctx *ctx = kr_test_ctx(1, NULL);
        kr_tokenizer *tok = kr_tokenizer_bytes(ctx);
        kr_network *net = chat_network(ctx, families[f], KR_DTYPE_F32, 0, NULL), *hand = by_hand(ctx, net);
        chat_record want = { 0 }, got = { 0 }, resumed = { 0 };
        kr_generation *a = chat(ctx, net, tok), *b = chat(ctx, hand, tok), *c = chat(ctx, hand, tok);
        kr_generation_feed_text(a, "once upon a time", 16);
        kr_generation_feed_text(b, "once upon a time", 16);
        chat_on(&want, a, 30);
        begin_folder();
        chat_on(&got, b, 3);
        CHECK(kr_generation_save(b, in_folder("chat")) == KR_OK, "%s", kr_ctx_message(ctx));
        chat_on(&got, b, 30);
        check_record(ctx, &got, &want);
        CHECK(kr_generation_load(c, in_folder("chat")) == KR_OK, "%s", kr_ctx_message(ctx));
        chat_on(&resumed, c, 30);
        chat_check("resumed", &resumed, &got, 3);
        CHECK(want.count > 4, "%d calls", want.count);

        /* the file is the custom network's, and of these weights */
        CHECK(kr_generation_load(a, in_folder("chat")) == KR_ERR_FORMAT, "another architecture");
        CHECK_ERROR_HAS(ctx, KR_ERR_FORMAT, "the state belongs to another architecture");
        kr_test_put(kr_params_at(kr_network_params(net), 0)->tensor, 0, 0.25);
        CHECK(kr_generation_load(c, in_folder("chat")) == KR_ERR_FORMAT, "other weights");
        CHECK_ERROR_HAS(ctx, KR_ERR_FORMAT, "other weights");
        end_folder();
        kr_generation_destroy(a);
        kr_generation_destroy(b);
        kr_generation_destroy(c);
        kr_network_destroy(hand);
        kr_network_destroy(net);
        kr_tokenizer_destroy(tok);
        kr_ctx_destroy(ctx);
    }
}

/* Blocks of two families, run by a loop of the program's own: the state goes to a file and back. */
typedef struct loop {
    kr_ctx *ctx;
    kr_mamba2 *a;
    kr_mamba3 *b;
    kr_params *params;
    kr_network *net;
} loop;

static void make_loop(loop *l, int64_t state_rank)
{
    kr_mamba2_config m2;
    kr_mamba3_config m3;
    kr_mamba2_config_init(&m2);
    kr_mamba3_config_init(&m3);
    m2.d_model = m3.d_model = 8;
    m2.state_rank = m3.state_rank = state_rank;
    m2.per_head_dim = m3.per_head_dim = 4;
    kr_ctx_seed(l->ctx, 5);
    l->a = kr_mamba2_create(l->ctx, &m2);
    l->b = kr_mamba3_create(l->ctx, &m3);
    l->params = kr_params_create(l->ctx);
    kr_params_join(l->params, "a.", kr_mamba2_params(l->a));
    kr_params_join(l->params, "b.", kr_mamba3_params(l->b));
    const kr_network_part parts[] = { { .block = (const kr_block *)l->a }, { .block = (const kr_block *)l->b } };
    kr_custom_network custom;
    kr_custom_network_init(&custom);
    custom.params = l->params;
    custom.n_parts = 2;
    custom.parts = parts;
    custom.input_size = custom.width = 8;
    l->net = kr_network_custom(l->ctx, &custom);
    CHECK_OK(l->ctx);
}

static void drop_loop(loop *l)
{
    kr_network_destroy(l->net);
    kr_params_destroy(l->params);
    kr_mamba2_destroy(l->a);
    kr_mamba3_destroy(l->b);
}

/* One token through both blocks; the state moves on. */
static kr_tensor *turn(loop *l, kr_tape *tape, kr_state *state, kr_tensor *x)
{
    const kr_block_out a = kr_block_step(tape, (const kr_block *)l->a, x, kr_state_cache(state, 0));
    const kr_block_out b = kr_block_step(tape, (const kr_block *)l->b, a.y, kr_state_cache(state, 1));
    kr_state_set_cache(state, 0, &a.cache);
    kr_state_set_cache(state, 1, &b.cache);
    return b.y;
}

TEST(custom_state_file_comes_back)
{
    loop l = { .ctx = kr_test_ctx(1, NULL) };
    make_loop(&l, 4);
    begin_folder();
    kr_tape *tape = kr_tape_create(l.ctx, KR_TAPE_NO_GRAD);
    kr_tensor *x = kr_randn(tape, KR_DTYPE_F32, KR_SHAPE(2, 8));
    kr_state *state = kr_network_state(l.net, 2);
    for (int i = 0; i < 3; i++) turn(&l, tape, state, x);
    CHECK(kr_state_save(state, l.net, in_folder("s")) == KR_OK, "%s", kr_ctx_message(l.ctx));
    kr_state *back = kr_state_load(l.ctx, l.net, in_folder("s"));
    CHECK_OK(l.ctx);
    CHECK_SAME_BITS("next token", turn(&l, tape, back, x), turn(&l, tape, state, x));
    CHECK(kr_state_cache(back, 0)->family == KR_FAMILY_MAMBA2 && kr_state_cache(back, 1)->family == KR_FAMILY_MAMBA3,
          "families");
    loop other = { .ctx = l.ctx };
    make_loop(&other, 8);
    CHECK(!kr_state_load(l.ctx, other.net, in_folder("s")), "other sizes");
    CHECK_ERROR_HAS(l.ctx, KR_ERR_FORMAT, "the state belongs to another architecture");
    CHECK(kr_state_save(state, other.net, in_folder("t")) != KR_OK, "the state of another network");
    CHECK_ERROR_HAS(l.ctx, KR_ERR_SHAPE, "but must be");
    drop_loop(&other);
    kr_state_destroy(back);
    kr_state_destroy(state);
    kr_tape_destroy(tape);
    end_folder();
    drop_loop(&l);
    kr_ctx_destroy(l.ctx);
}

TEST(custom_generation_needs_forward)
{
    loop l = { .ctx = kr_test_ctx(1, NULL) };
    make_loop(&l, 4);
    CHECK(!kr_generation_create(l.ctx, l.net, NULL, NULL), "features");
    CHECK_ERROR_HAS(l.ctx, KR_ERR_ARG, "the network takes features");
    drop_loop(&l);
    kr_ctx_destroy(l.ctx);
}

TEST(rows_of_custom_networks_promise_no_bits)
{
    kr_ctx *ctx = chat_device("cpu", KR_PRECISION_EXACT);
    kr_network *net = chat_network(ctx, KR_FAMILY_MAMBA2, KR_DTYPE_F32, 0, NULL), *own = by_hand(ctx, net);
    kr_row_batch *batch = kr_row_batch_create(ctx, own, NULL, NULL);
    CHECK_OK(ctx);
    CHECK(!kr_row_batch_stats_of(batch).is_exact, "a custom network");
    kr_row_batch_destroy(batch);
    kr_network_destroy(own);
    kr_network_destroy(net);
    kr_ctx_destroy(ctx);
}
