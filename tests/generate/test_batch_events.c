/* test_batch_events.c - events of a batch: texts, stops, scores, top tokens, callbacks, and errors of single rows. */
#include "tests/generate/chat.h"

#include <krait/batch.h>

enum { VOCAB = CHAT_VOCAB - 3 };

typedef struct rig {
    kr_ctx *ctx;
    kr_network *net;
    kr_tokenizer *tok;
    kr_row_batch *batch;
} rig;

static rig open_rig(int64_t max_rows)
{
    rig g = { .ctx = kr_test_ctx(1, NULL) };
    g.net = chat_network(g.ctx, KR_FAMILY_MAMBA2, KR_DTYPE_F32, 0, NULL);
    g.tok = kr_tokenizer_bytes(g.ctx);
    kr_row_batch_options o;
    kr_row_batch_options_init(&o);
    o.max_rows = max_rows;
    g.batch = kr_row_batch_create(g.ctx, g.net, NULL, &o);
    CHECK_OK(g.ctx);
    return g;
}

static void close_rig(rig *g)
{
    CHECK_OK(g->ctx);
    kr_row_batch_destroy(g->batch);
    kr_tokenizer_destroy(g->tok);
    kr_network_destroy(g->net);
    kr_ctx_destroy(g->ctx);
}

/* The first event of the row in the next steps; kind PROMPT and no row: there is none. */
static kr_row_event event_of(kr_row_batch *batch, const kr_row *row, kr_row_event_kind kind)
{
    const kr_row_event *events;
    int64_t count;
    while (kr_row_batch_step(batch, &events, &count) == KR_OK)
        for (int64_t i = 0; i < count; i++)
            if (events[i].row == row && events[i].kind == kind) return events[i];
    return (kr_row_event){ .row = NULL };
}

/* ---- scores and top tokens ---- */

TEST(scores_are_log_probabilities_of_the_prompt)
{
    enum { COUNT = 40, TOP = 3 };
    rig g = open_rig(1);
    int32_t ids[COUNT];
    for (int i = 0; i < COUNT; i++) ids[i] = (int32_t)kr_test_below(VOCAB);
    kr_tape *t = kr_tape_create(g.ctx, KR_TAPE_NO_GRAD);
    kr_tensor *logits = kr_network_forward(t, g.net, kr_from_data(t, KR_DTYPE_I32, KR_SHAPE(1, COUNT), ids), NULL).y;
    double *want = kr_test_values(kr_softmax(t, logits, -1));
    kr_row *row = kr_row_create(g.batch);
    kr_row_options o;
    kr_row_options_init(&o);
    o.max_tokens = 0;
    o.score_prompt = true;
    o.n_top = TOP;
    kr_row_feed(row, ids, COUNT);
    kr_row_generate(row, &o);
    const kr_row_event *events;
    int64_t count, n = 0;
    kr_finish finish = KR_FINISH_NONE;
    while (kr_row_batch_step(g.batch, &events, &count) == KR_OK)
        for (int64_t e = 0; e < count; e++)
            for (int64_t i = 0; i < events[e].n_scores; i++, finish = events[e].finish) {
                const int64_t at = events[e].position + i + 1;
                const kr_sample got = events[e].scores[i], top = events[e].top[i * TOP];
                const double p = want[(at - 1) * CHAT_VOCAB + ids[at]];
                CHECK(got.id == ids[at] && fabs(exp(got.logprob) - p) < 1e-5, "token %lld: %d with %g, not %d with %g",
                      (long long)at, got.id, exp(got.logprob), ids[at], p);
                CHECK(events[e].n_top == TOP && top.logprob >= events[e].top[i * TOP + 1].logprob &&
                          top.logprob >= got.logprob,
                      "the top tokens of %lld do not descend", (long long)at);
                n++;
            }
    CHECK(n == COUNT - 1 && finish == KR_FINISH_LENGTH, "%lld scores, finish %d", (long long)n, (int)finish);
    CHECK(kr_row_info_of(row).queued == 1 && !kr_row_info_of(row).is_generating, "the last token was read");
    free(want);
    kr_tape_destroy(t);
    close_rig(&g);
}

TEST(top_tokens_begin_with_the_greedy_one)
{
    rig g = open_rig(2);
    const int32_t ids[2] = { 7, 8 };
    kr_sampler_options sampler;
    kr_sampler_options_init(&sampler);
    sampler.temperature = 0;
    kr_row_options o;
    kr_row_options_init(&o);
    o.sampler = &sampler;
    o.n_top = 5;
    o.max_tokens = 3;
    kr_row *row = kr_row_create(g.batch);
    kr_row_feed(row, ids, 2);
    kr_row_generate(row, &o);
    for (int i = 0; i < 3; i++) {
        const kr_row_event e = event_of(g.batch, row, KR_ROW_EVENT_TOKEN);
        if (!CHECK(e.row == row && e.n_top == 5 && e.top, "no token %d", i)) break;
        CHECK(e.top[0].id == e.sample.id && e.top[0].logprob == e.sample.logprob && e.position == 2 + i,
              "token %d at %lld, not %d", e.sample.id, (long long)e.position, e.top[0].id);
    }
    close_rig(&g);
}

/* ---- texts ---- */

TEST(rows_have_texts_and_stops_of_their_own)
{
    rig g = open_rig(4);
    kr_row_batch_destroy(g.batch);
    g.batch = kr_row_batch_create(g.ctx, g.net, g.tok, NULL);
    kr_logit_bias only[CHAT_VOCAB];
    const char *const stops[1] = { "bbb" };
    kr_row *rows[2];
    char text[2][64] = { "", "" };
    for (int i = 0; i < 2; i++) {
        kr_row_options o;
        kr_row_options_init(&o);
        kr_sampler_options_init(&chat_sampler);
        chat_only(only, "b");
        o.sampler = &chat_sampler;
        o.max_tokens = 20;
        o.n_stops = i ? 0 : 1;
        o.stops = stops;
        rows[i] = kr_row_create(g.batch);
        kr_row_feed_text(rows[i], "x", 1);
        kr_row_generate(rows[i], &o);
    }
    kr_finish finish[2] = { KR_FINISH_NONE, KR_FINISH_NONE };
    const kr_row_event *events;
    int64_t count;
    while (kr_row_batch_step(g.batch, &events, &count) == KR_OK)
        for (int64_t e = 0; e < count; e++) {
            const int i = events[e].row == rows[1];
            strncat(text[i], events[e].text, 63 - strlen(text[i]));
            if (events[e].kind == KR_ROW_EVENT_TOKEN) finish[i] = events[e].finish;
        }
    CHECK(finish[0] == KR_FINISH_STOP && text[0][0] == '\0', "finish %d, '%s'", (int)finish[0], text[0]);
    CHECK(finish[1] == KR_FINISH_LENGTH && strcmp(text[1], "bbbbbbbbbbbbbbbbbbbb") == 0, "finish %d, '%s'",
          (int)finish[1], text[1]);
    close_rig(&g);
}

/* ---- callbacks ---- */

typedef struct called {
    int64_t calls, n, last;
    kr_status answer;
} called;

static kr_status only_next(void *user, const int32_t *ids, int64_t n, double *logits, int64_t vocab)
{
    called *c = user;
    c->calls++;
    c->n = n;
    c->last = n ? ids[n - 1] : -1;
    for (int64_t i = 0; i < vocab; i++)
        if (i != 10 + n) logits[i] = -INFINITY;
    return c->answer;
}

static kr_status only_even(void *user, const int32_t *ids, int64_t n, uint32_t *allowed, int64_t vocab)
{
    called *c = user;
    (void)ids;
    c->calls++;
    c->n = n;
    for (int64_t i = 0; i < vocab; i += 2) allowed[i / 32] |= UINT32_C(1) << (i % 32);
    return c->answer;
}

TEST(processors_and_constraints_choose)
{
    rig g = open_rig(4);
    const int32_t id = 5;
    called processed = { 0 }, constrained = { 0 };
    kr_row_options o, p;
    kr_row_options_init(&o);
    kr_row_options_init(&p);
    o.max_tokens = p.max_tokens = 70;
    o.process = only_next;
    o.process_user = &processed;
    p.constrain = only_even;
    p.constrain_user = &constrained;
    kr_row *a = kr_row_create(g.batch), *b = kr_row_create(g.batch);
    kr_row_feed(a, &id, 1);
    kr_row_feed(b, &id, 1);
    kr_row_generate(a, &o);
    kr_row_generate(b, &p);
    const kr_row_event *events;
    int64_t count, n = 0;
    while (kr_row_batch_step(g.batch, &events, &count) == KR_OK)
        for (int64_t e = 0; e < count; e++) {
            const int32_t got = events[e].sample.id;
            if (events[e].row == a) {
                CHECK(got == 10 + n, "the processor's token %lld is %d", (long long)n, got);
                n += events[e].kind == KR_ROW_EVENT_TOKEN;
            } else CHECK(got % 2 == 0, "the constraint allowed %d", got);
        }
    CHECK(processed.calls == 70 && processed.n == 69 && processed.last == 10 + 68, "%lld calls, the last with %lld",
          (long long)processed.calls, (long long)processed.n);
    CHECK(constrained.calls == 70 && constrained.n == 69, "%lld calls", (long long)constrained.calls);
    close_rig(&g);
}

/* ---- errors of a row ---- */

static double sum_of(kr_row_batch *batch, kr_row *row)
{
    double sum = 0;
    const kr_row_event *events;
    int64_t count;
    while (kr_row_batch_step(batch, &events, &count) == KR_OK)
        for (int64_t e = 0; e < count; e++)
            if (events[e].row == row && events[e].kind == KR_ROW_EVENT_TOKEN) sum += events[e].sample.logprob;
    return sum;
}

/* With a head of its own, so that a NaN in the embedding of a token is not in all logits. */
static kr_network *untied_network(kr_ctx *ctx)
{
    kr_mamba2_config mamba;
    kr_mamba2_config_init(&mamba);
    mamba.d_model = 8;
    mamba.state_rank = mamba.per_head_dim = 4;
    kr_layers_config layers;
    kr_layers_config_init(&layers);
    layers.block = kr_mamba2_block(&mamba);
    layers.n_layers = 1;
    kr_network_config config;
    kr_network_config_init(&config);
    config.layers = &layers;
    config.vocab_size = VOCAB;
    config.tie_embeddings = false;
    return kr_network_create(ctx, &config);
}

TEST(an_error_of_a_row_is_its_event)
{
    rig g = open_rig(4);
    kr_row_batch_destroy(g.batch);
    kr_network_destroy(g.net);
    g.net = untied_network(g.ctx);
    g.batch = kr_row_batch_create(g.ctx, g.net, NULL, NULL);
    CHECK_OK(g.ctx);
    kr_tensor *embedding = kr_params_find(kr_network_params(g.net), "backbone.embedding.weight")->tensor;
    for (int64_t i = 0; i < 8; i++) kr_test_put(embedding, 200 * 8 + i, NAN);
    const int32_t good[3] = { 1, 2, 3 }, bad[3] = { 1, 200, 3 };
    kr_row *alone = kr_row_create(g.batch);
    kr_row_options o;
    kr_row_options_init(&o);
    o.max_tokens = 6;
    kr_logit_bias never = { 200, -INFINITY };
    kr_sampler_options sampler;
    kr_sampler_options_init(&sampler);
    sampler.n_biases = 1;
    sampler.biases = &never;
    o.sampler = &sampler;
    kr_row_feed(alone, good, 3);
    kr_row_generate(alone, &o);
    const double want = sum_of(g.batch, alone);

    called refused = { .answer = KR_ERR_IO };
    kr_row *row = kr_row_create(g.batch), *broken = kr_row_create(g.batch), *refusing = kr_row_create(g.batch);
    kr_row_feed(row, good, 3);
    kr_row_feed(broken, bad, 3);
    kr_row_feed(refusing, good, 3);
    kr_row_generate(row, &o);
    kr_row_generate(broken, &o);
    o.process = only_next;
    o.process_user = &refused;
    kr_row_generate(refusing, &o);
    const kr_row_event *events;
    int64_t count;
    int n_errors = 0;
    double sum = 0;
    while (kr_row_batch_step(g.batch, &events, &count) == KR_OK)
        for (int64_t e = 0; e < count; e++) {
            if (events[e].row == row && events[e].kind == KR_ROW_EVENT_TOKEN) sum += events[e].sample.logprob;
            if (events[e].kind != KR_ROW_EVENT_ERROR) continue;
            n_errors++;
            const bool is_broken = events[e].row == broken;
            CHECK(is_broken || events[e].row == refusing, "an error of another row: %s", events[e].text);
            CHECK(events[e].status == (is_broken ? KR_ERR_NUMERIC : KR_ERR_IO) &&
                      strstr(events[e].text, is_broken ? "nan" : "the logits processor returned io"),
                  "status %d: %s", (int)events[e].status, events[e].text);
        }
    CHECK(n_errors == 2 && sum == want, "%d errors, %.17g, not %.17g", n_errors, sum, want);
    CHECK(kr_row_info_of(broken).status == KR_ERR_NUMERIC, "the row does not know its error");
    CHECK(kr_row_feed(broken, good, 1) == KR_ERR_STATE, "a failed row takes tokens");
    CHECK_ERROR_HAS(g.ctx, KR_ERR_STATE, "row.feed: the row has failed: ");
    close_rig(&g);
}

/* ---- limits of a step ---- */

/* Tokens that the next step reads; -1: it has nothing to do. */
static int64_t read_by_step(kr_row_batch *batch)
{
    const kr_row_event *events;
    int64_t count, read = 0;
    if (kr_row_batch_step(batch, &events, &count) != KR_OK) return -1;
    for (int64_t i = 0; i < count; i++) read += events[i].kind == KR_ROW_EVENT_PROMPT ? events[i].n_tokens : 0;
    return read;
}

TEST(prompt_tokens_of_a_step_are_limited)
{
    rig g = open_rig(2);
    const int64_t grid = kr_row_batch_stats_of(g.batch).grid, count = 5 * grid + 7;
    int32_t *ids = calloc((size_t)count, sizeof *ids);
    kr_row *row = kr_row_create(g.batch), *other = kr_row_create(g.batch);
    kr_row_feed(row, ids, count);
    kr_row_feed(other, ids, 3);
    CHECK(kr_row_batch_set_prefill(g.batch, 0) == KR_OK && read_by_step(g.batch) == -1, "a step reads a prompt");
    CHECK(kr_row_batch_stats_of(g.batch).waiting == 2, "%lld rows wait",
          (long long)kr_row_batch_stats_of(g.batch).waiting);
    kr_row_batch_set_prefill(g.batch, 1);
    int64_t read = read_by_step(g.batch);
    CHECK(read == grid, "%lld tokens, not a piece", (long long)read);
    kr_row_batch_set_prefill(g.batch, 3 * grid - 1);
    read = read_by_step(g.batch);
    CHECK(read == 2 + 2 * grid, "%lld tokens, not those of the other row and two pieces", (long long)read);
    kr_row_batch_set_prefill(g.batch, 0); /* the others generate meanwhile */
    kr_row_options o;
    kr_row_options_init(&o);
    o.max_tokens = 4;
    kr_row_generate(other, &o);
    for (int i = 0; i < 4; i++) CHECK(read_by_step(g.batch) == 0, "step %d", i);
    CHECK(kr_row_info_of(other).finish == KR_FINISH_LENGTH && read_by_step(g.batch) == -1,
          "the other row does not continue");
    kr_row_batch_set_prefill(g.batch, -1);
    read = read_by_step(g.batch);
    CHECK(read == count - 3 * grid - 1 && kr_row_info_of(row).queued == 1, "%lld tokens, not the rest",
          (long long)read);
    CHECK(kr_row_batch_set_prefill(g.batch, -2) == KR_ERR_ARG, "-2");
    CHECK_ERROR(g.ctx, KR_ERR_ARG,
                "row_batch.set_prefill: prefill_tokens = -2, but must not be negative, or -1 for no limit");
    free(ids);
    close_rig(&g);
}

/* ---- errors of calls ---- */

TEST(calls_of_a_batch_say_what_is_wrong)
{
    rig g = open_rig(2);
    kr_row_batch_options o;
    kr_row_batch_options_init(&o);
    o.max_rows = 0;
    CHECK(!kr_row_batch_create(g.ctx, g.net, NULL, &o), "a batch of no rows");
    CHECK_ERROR(g.ctx, KR_ERR_ARG, "row_batch.create: max_rows = 0, but must be from 1 to 1048576");
    kr_row_batch_options_init(&o);
    o.grid = 7;
    CHECK(!kr_row_batch_create(g.ctx, g.net, NULL, &o), "a grid of 7");
    CHECK_ERROR_HAS(g.ctx, KR_ERR_ARG, "row_batch.create: grid = 7, but must be a multiple of ");
    CHECK(!kr_row_batch_create(g.ctx, NULL, NULL, NULL), "no network");
    CHECK_ERROR(g.ctx, KR_ERR_ARG, "row_batch.create: the network is NULL");
    kr_row *row = kr_row_create(g.batch);
    const int32_t ids[2] = { 1, VOCAB };
    CHECK(kr_row_feed(row, ids, 2) == KR_ERR_ARG, "an id too large");
    CHECK_ERROR(g.ctx, KR_ERR_ARG, "row.feed: ids[1] = 253, but the network's tokens are from 0 to 252");
    CHECK(kr_row_feed_text(row, "a", 1) == KR_ERR_ARG, "a text without a tokenizer");
    CHECK_ERROR(g.ctx, KR_ERR_ARG,
                "row.feed_text: there is no tokenizer; give one to kr_row_batch_create, or feed ids");
    CHECK(kr_row_generate(row, NULL) == KR_ERR_STATE, "an empty row");
    CHECK_ERROR_HAS(g.ctx, KR_ERR_STATE, "row.generate: nothing was fed");
    kr_row_feed(row, ids, 1);
    kr_row_options p;
    kr_row_options_init(&p);
    p.n_top = VOCAB + 1;
    CHECK(kr_row_generate(row, &p) == KR_ERR_ARG, "more top tokens than tokens");
    CHECK_ERROR(g.ctx, KR_ERR_ARG, "row.generate: n_top = 254, but must be from 0 to the 253 tokens of the vocabulary");
    kr_row_generate(row, NULL);
    CHECK(kr_row_feed(row, ids, 1) == KR_ERR_STATE, "a row that generates is fed");
    CHECK_ERROR_HAS(g.ctx, KR_ERR_STATE, "row.feed: the row generates; wait until it has finished");
    double norms[1];
    int64_t count;
    CHECK(kr_row_state_norms(row, 2, norms, 1, &count) == KR_ERR_ARG, "a slot too many");
    CHECK_ERROR(g.ctx, KR_ERR_ARG, "row.state_norms: slot = 2, but the network has slots from 0 to 1");
    CHECK(kr_row_restore(row, NULL) == KR_ERR_ARG, "no snapshot");
    CHECK_ERROR(g.ctx, KR_ERR_ARG, "row.restore: the snapshot is NULL");
    close_rig(&g);
}

/* Each allocation fails once: an error, nothing lost, and the same tokens when it is tried again. */
TEST(a_batch_survives_every_failed_allocation)
{
    rig g = open_rig(2);
    const int32_t ids[4] = { 3, 1, 4, 1 };
    kr_row_options o;
    kr_row_options_init(&o);
    o.max_tokens = 3;
    o.n_top = 2;
    double want = 0;
    bool done = false;
    for (size_t n = 0; !done && n < 2000; n++) {
        kr_ctx_fail_allocation(g.ctx, n); /* 0: none */
        kr_row_batch *batch = kr_row_batch_create(g.ctx, g.net, g.tok, NULL);
        kr_row *row = batch ? kr_row_create(batch) : NULL;
        kr_row_feed(row, ids, 4);
        kr_row *fork = row ? kr_row_fork(row) : NULL;
        kr_row_generate(row, &o);
        if (fork) kr_row_generate(fork, &o);
        const double sum = batch ? sum_of(batch, row) : 0;
        kr_snapshot *snapshot = row ? kr_row_snapshot(row) : NULL;
        const bool failed = kr_ctx_failed(g.ctx);
        kr_ctx_fail_allocation(g.ctx, 0);
        CHECK(!failed || kr_ctx_status(g.ctx) == KR_ERR_NOMEM, "allocation %zu: %s", n, kr_ctx_message(g.ctx));
        if (n == 0) want = sum;
        else if (!failed) done = CHECK(sum == want, "allocation %zu: %.17g, not %.17g", n, sum, want) || true;
        kr_ctx_clear(g.ctx);
        kr_snapshot_destroy(snapshot);
        kr_row_batch_destroy(batch);
    }
    CHECK(done, "allocations did not end");
    close_rig(&g);
}
