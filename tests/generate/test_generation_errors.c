/* test_generation_errors.c - what a generation does not take, with the exact texts; failures midway; allocations that
 * fail, and that nothing is left. */
#define _POSIX_C_SOURCE 200809L
#include "generate/generation_impl.h"
#include "tests/temp_folder.h"
#include "tests/memory.h"
#include "tests/generate/chat.h"

enum { VOCAB = CHAT_VOCAB - 3 };

static kr_ctx *ctx;
static kr_network *net;
static kr_tokenizer *tok;

static void begin(void)
{
    ctx = kr_test_ctx(1, NULL);
    net = chat_network(ctx, KR_FAMILY_MAMBA2, KR_DTYPE_F32, 0, NULL);
    tok = kr_tokenizer_bytes(ctx);
}

static void end(void)
{
    CHECK_OK(ctx);
    kr_tokenizer_destroy(tok);
    kr_network_destroy(net);
    kr_ctx_destroy(ctx);
}

#define NO_OPTIONS(status, text, ...)                                                                                  \
    do {                                                                                                               \
        kr_generate_options o = chat_options();                                                                        \
        __VA_ARGS__;                                                                                                   \
        CHECK(!kr_generation_create(ctx, net, tok, &o), "%s is not refused", #__VA_ARGS__);                            \
        CHECK_ERROR(ctx, status, "generation.create: " text);                                                          \
    } while (0)

TEST(generate_options_out_of_range)
{
    begin();
    const size_t blocks = kr_ctx_memory(ctx).live_blocks;
    NO_OPTIONS(KR_ERR_ARG, "n_samples = 0, but must be from 1 to 1048576", o.n_samples = 0);
    NO_OPTIONS(KR_ERR_ARG, "n_samples = 1048577, but must be from 1 to 1048576", o.n_samples = 1048577);
    NO_OPTIONS(KR_ERR_ARG, "max_tokens = -2, but must be at least 0, or -1 for no limit", o.max_tokens = -2);
    NO_OPTIONS(KR_ERR_ARG, "prefill_chunk = 0, but must be from 1 to 1048576", o.prefill_chunk = 0);
    NO_OPTIONS(KR_ERR_ARG, "n_stop_ids = 1, but stop_ids is NULL", o.n_stop_ids = 1);
    NO_OPTIONS(KR_ERR_ARG, "n_stop_ids = -1, but stop_ids is NULL", o.n_stop_ids = -1);
    NO_OPTIONS(KR_ERR_ARG, "n_stops = 2, but stops is NULL", o.n_stops = 2);
    const int32_t ids[] = { 0, VOCAB, -1 };
    NO_OPTIONS(KR_ERR_ARG, "stop_ids[1] = 253, but the network's tokens are from 0 to 252", o.n_stop_ids = 2,
               o.stop_ids = ids);
    NO_OPTIONS(KR_ERR_ARG, "stop_ids[0] = -1, but the network's tokens are from 0 to 252", o.n_stop_ids = 1,
               o.stop_ids = ids + 2);
    const char *stops[] = { "a", "", NULL };
    NO_OPTIONS(KR_ERR_ARG, "stops[1] is empty, which every text begins with", o.n_stops = 2, o.stops = stops);
    NO_OPTIONS(KR_ERR_ARG, "stops[0] is NULL", o.n_stops = 1, o.stops = stops + 2);
    NO_OPTIONS(KR_ERR_ARG, "sampler.create: top_p = 2, but must be above 0 and at most 1", chat_sampler.top_p = 2);
    NO_OPTIONS(KR_ERR_ARG, "sampler.create: biases[0].id = 253, but tokens are from 0 to 252",
               chat_sampler.n_biases = 1, chat_sampler.biases = &(kr_logit_bias){ VOCAB, 0 });
    kr_tokenizer *kept = tok;
    tok = NULL;
    NO_OPTIONS(KR_ERR_ARG, "n_stops = 1, but stop texts need a tokenizer; give one, or use stop_ids", o.n_stops = 1,
               o.stops = stops);
    tok = kept;
    CHECK(kr_ctx_memory(ctx).live_blocks == blocks, "memory is left");
    end();
}

TEST(networks_that_cannot_generate)
{
    begin();
    kr_ctx *foreign = kr_test_ctx(1, NULL);
    kr_tokenizer *far = kr_tokenizer_bytes(foreign);
    CHECK(!kr_generation_create(ctx, NULL, NULL, NULL), "NULL");
    CHECK_ERROR(ctx, KR_ERR_ARG, "generation.create: the network is NULL");
    CHECK(!kr_generation_create(foreign, net, NULL, NULL), "another context");
    CHECK_ERROR(foreign, KR_ERR_STATE, "generation.create: the network belongs to another context");
    CHECK(!kr_generation_create(ctx, net, far, NULL), "another context");
    CHECK_ERROR(ctx, KR_ERR_STATE, "generation.create: the tokenizer belongs to another context");
    const kr_class_token last = { .kind = KR_CLASS_TOKEN_END };
    kr_network *ends = chat_network(ctx, KR_FAMILY_MAMBA2, KR_DTYPE_F32, 1, &last);
    CHECK(!kr_generation_create(ctx, ends, NULL, NULL), "an end class token");
    CHECK_ERROR(
        ctx, KR_ERR_UNSUPPORTED,
        "generation.create: the network has middle or end class tokens, which need the length of the text in advance");
    kr_mamba2_config mamba;
    kr_mamba2_config_init(&mamba);
    mamba.d_model = 64;
    kr_layers_config layers;
    kr_layers_config_init(&layers);
    layers.block = kr_mamba2_block(&mamba);
    layers.n_layers = 1;
    kr_network_config config;
    kr_network_config_init(&config);
    config.layers = &layers;
    config.input_size = config.output_size = 4;
    kr_network *latent = kr_network_create(ctx, &config);
    CHECK(!kr_generation_create(ctx, latent, NULL, NULL), "features");
    CHECK_ERROR(ctx, KR_ERR_ARG, "generation.create: the network takes features, but must take tokens");
    kr_network_destroy(latent);
    kr_network_destroy(ends);
    kr_tokenizer_destroy(far);
    kr_ctx_destroy(foreign);
    end();
}

TEST(feeds_that_are_refused)
{
    begin();
    kr_generation *g = kr_generation_create(ctx, net, NULL, NULL);
    CHECK(kr_generation_next(g) != KR_OK, "nothing was read");
    CHECK_ERROR(ctx, KR_ERR_STATE, "generation.next: no prompt was fed; feed at least one token, such as BOS");
    kr_generation_feed(g, NULL, 3);
    CHECK_ERROR(ctx, KR_ERR_ARG, "generation.feed: count = 3, and ids is NULL");
    kr_generation_feed(g, (int32_t[]){ 1 }, -1);
    CHECK_ERROR(ctx, KR_ERR_ARG, "generation.feed: count = -1, and ids is a list");
    kr_generation_feed(g, (int32_t[]){ 1, VOCAB }, 2);
    CHECK_ERROR(ctx, KR_ERR_ARG, "generation.feed: ids[1] = 253, but the network's tokens are from 0 to 252");
    kr_generation_feed(g, (int32_t[]){ -1 }, 1);
    CHECK_ERROR(ctx, KR_ERR_ARG, "generation.feed: ids[0] = -1, but the network's tokens are from 0 to 252");
    kr_generation_feed_text(g, "x", 1);
    CHECK_ERROR(ctx, KR_ERR_ARG,
                "generation.feed_text: there is no tokenizer; give one to kr_generation_create, or feed ids");
    CHECK(kr_generation_feed(g, NULL, 0) == KR_OK && kr_generation_next(g) != KR_OK, "an empty feed is nothing");
    kr_ctx_clear(ctx);
    CHECK(kr_generation_feed(g, (int32_t[]){ 1 }, 1) == KR_OK && kr_generation_next(g) == KR_OK,
          "it continues after all these errors");
    kr_generation_destroy(g);
    g = kr_generation_create(ctx, net, tok, NULL);
    kr_generation_feed_text(g, NULL, 1);
    CHECK_ERROR(ctx, KR_ERR_ARG, "generation.feed_text: text is NULL");
    kr_generation_feed_text(g, "\xff", 1);
    CHECK_ERROR(ctx, KR_ERR_ARG, "generation.feed: ids[0] = 255, but the network's tokens are from 0 to 252");
    kr_generation_destroy(g);
    end();
}

/* Weights that give NaN: the error names the row; from then on only a file helps. */
TEST(a_failure_half_way_is_remembered)
{
    begin_folder();
    begin();
    kr_generate_options o = chat_options();
    o.n_samples = 2;
    kr_logit_bias bias;
    chat_on_host(&bias);
    kr_generation *g = kr_generation_create(ctx, net, tok, &o);
    kr_generation_feed_text(g, "abc", 3);
    IGNORE(kr_generation_next(g));
    IGNORE(kr_generation_save(g, in_folder("chat")));
    chat_record want = { 0 }, got = { 0 };
    chat_on(&want, g, 5);
    const float kept = ((float *)kr_test_copy(net->norm_f_d))[3];
    kr_test_put(net->norm_f_d, 3, NAN);
    CHECK(kr_generation_next(g) != KR_OK, "NaN");
    CHECK_ERROR_HAS(ctx, KR_ERR_NUMERIC, "generation.next: row.sample: logits [2, 256] hold nan for token 0 of row 0");
    kr_test_put(net->norm_f_d, 3, (double)kept);
    CHECK(kr_generation_next(g) != KR_OK, "inconsistent");
    CHECK_ERROR(ctx, KR_ERR_STATE,
                "generation.next: an earlier call failed midway; load a file with kr_generation_load, or create a "
                "new generation");
    CHECK(kr_generation_feed_text(g, "x", 1) == KR_ERR_STATE, "inconsistent");
    kr_ctx_clear(ctx);
    IGNORE(kr_generation_save(g, in_folder("inconsistent")));
    CHECK_ERROR(ctx, KR_ERR_STATE, "generation.save: an earlier call failed midway");
    CHECK(kr_generation_load(g, in_folder("chat")) == KR_OK, "%s", kr_ctx_message(ctx));
    chat_on(&got, g, 5);
    chat_check("after the load", &got, &want, 0);
    kr_generation_destroy(g);
    end();
    end_folder();
}

/* ---- allocations that fail ---- */

static kr_generation *make(void)
{
    static const int32_t stop_ids[] = { 1 };
    static const char *const stops[] = { "xyz" };
    kr_generate_options o = chat_options();
    o.n_samples = 3;
    o.n_stop_ids = 1;
    o.stop_ids = stop_ids;
    o.n_stops = 1;
    o.stops = stops;
    return kr_generation_create(ctx, net, tok, &o);
}

/* What a call may do to a generation that stands at step 0 (nothing read), 1 (read), 2 (in the middle, a row rests). */
static void stand_at(kr_generation *g, int step)
{
    if (step > 0) kr_generation_feed_text(g, "once", 4);
    for (int i = 0; step > 1 && i < 3; i++) {
        IGNORE(kr_generation_next(g));
        if (i == 0) kr_row_end(g->rows[1], KR_FINISH_STOP);
    }
}

static bool call(kr_generation *g, int what)
{
    switch (what) {
    case 0: return kr_generation_feed_text(g, " upon a time", 12) == KR_OK;
    case 1: return kr_generation_next(g) == KR_OK;
    case 2: return kr_generation_save(g, in_folder("out")) == KR_OK;
    default: return kr_generation_load(g, in_folder("chat")) == KR_OK;
    }
}

static void check_calls(int step, int what)
{
    size_t before = 0, n = 0; /* at first nothing fails: then a device has the memory that it keeps */
    for (bool done = false; !done && n < 400; n++) {
        kr_generation *g = make();
        stand_at(g, step);
        CHECK_OK(ctx);
        kr_ctx_fail_allocation(ctx, n);
        const bool went = call(g, what);
        done = went && n > 0;
        kr_ctx_fail_allocation(ctx, 0);
        CHECK(went == !kr_ctx_failed(ctx) && (went || kr_ctx_status(ctx) == KR_ERR_NOMEM), "step %d, call %d: %s", step,
              what, kr_ctx_message(ctx));
        kr_ctx_clear(ctx);
        if (!went && what >= 2) /* neither changes anything unless it succeeds */
            CHECK(kr_generation_save(g, in_folder("after")) == KR_OK, "%s", kr_ctx_message(ctx));
        CHECK(kr_generation_load(g, in_folder("chat")) == KR_OK && kr_generation_next(g) == KR_OK, "%s",
              kr_ctx_message(ctx));
        kr_generation_destroy(g);
        drop_scratch(ctx);
        if (n == 0) before = kr_ctx_memory(ctx).live_blocks;
    }
    CHECK(n > 1 && n < 400, "step %d, call %d: %zu allocations", step, what, n);
    CHECK(kr_ctx_memory(ctx).live_blocks == before, "step %d, call %d: memory is left", step, what);
}

TEST(generation_allocations_may_fail)
{
    begin_folder();
    begin();
    kr_generation *g = make();
    stand_at(g, 2);
    IGNORE(kr_generation_save(g, in_folder("chat")));
    kr_generation_destroy(g);
    const size_t blocks = kr_ctx_memory(ctx).live_blocks;
    size_t n = 1;
    for (g = NULL; !g && n < 100; n++) {
        kr_ctx_fail_allocation(ctx, n);
        g = make();
        kr_ctx_fail_allocation(ctx, 0);
        if (!g) {
            CHECK(kr_ctx_status(ctx) == KR_ERR_NOMEM, "%s", kr_ctx_message(ctx));
            kr_ctx_clear(ctx);
            CHECK(kr_ctx_memory(ctx).live_blocks == blocks, "create, allocation %zu: memory is left", n);
        }
    }
    CHECK(n > 10 && n < 100, "%zu allocations", n);
    kr_generation_destroy(g);
    for (int step = 0; step < 3; step++)
        for (int what = 0; what < 4; what++)
            if (step > 0 || what != 1) check_calls(step, what);
    end();
    end_folder();
}
