/* test_generation.c - generation is a step-by-step loop, to the bit: rows, prompts in chunks, feeds in between. */
#include "device/device.h"
#include "generate/batch_impl.h"
#include "generate/generation_impl.h"
#include "nn/network_impl.h"
#include "tests/generate/plain_sampler.h"
#include "tests/generate/chat.h"

enum { FAMILIES = 3, VOCAB = CHAT_VOCAB - 3, PROMPT = 23 };

static void make_prompt(int32_t *ids, int count)
{
    for (int i = 0; i < count; i++) ids[i] = (int32_t)kr_test_below(VOCAB);
}

/* ---- a loop by hand ---- */

typedef struct loop {
    kr_ctx *ctx;
    const kr_network *net;
    kr_tape *t;
    kr_state *state; /* of one row */
} loop;

static loop loop_begin(kr_ctx *ctx, const kr_network *net, bool announces)
{
    loop l = { ctx, net, kr_tape_create(ctx, KR_TAPE_NO_GRAD), kr_state_create(ctx, kr_network_layers(net), 1) };
    if (announces) kr_state_announce(l.state, KR_LENGTH_UNKNOWN);
    return l;
}

static void loop_end(loop *l)
{
    kr_tape_destroy(l->t);
    kr_state_destroy(l->state);
}

/* Logits of the last of `count` ids: on the tape until the next call. */
static kr_tensor *loop_read(loop *l, const int32_t *ids, int64_t count)
{
    kr_tape_reset(l->t);
    kr_call call;
    kr_call_init(&call);
    call.state = l->state;
    call.last_logits_only = true;
    const kr_network_out out =
        count == 1 ? kr_network_step(l->t, l->net, kr_from_data(l->t, KR_DTYPE_I32, KR_SHAPE(1), ids), &call)
                   : kr_network_forward(l->t, l->net, kr_from_data(l->t, KR_DTYPE_I32, KR_SHAPE(1, count), ids), &call);
    kr_state_copy(l->state, out.state);
    return out.y;
}

static void loop_prompt(loop *l, const int32_t *ids, int64_t count, int64_t chunk)
{
    for (int64_t from = 0; from < count; from += chunk)
        loop_read(l, ids + from, count - from < chunk ? count - from : chunk);
}

/* ---- generation = the loop ---- */

static void check_rows_by_hand(kr_ctx *ctx, const kr_network *net, const kr_generate_options *o, const int32_t *prompt,
                               int64_t count, bool announces)
{
    enum { STEPS = 20 };
    chat_record record = { 0 };
    kr_generation *g = kr_generation_create(ctx, net, NULL, o);
    kr_generation_feed(g, prompt, count);
    chat_on(&record, g, STEPS);
    CHECK(record.count == STEPS && kr_generation_prompt_tokens(g) == count &&
              kr_generation_tokens(g) == STEPS * o->n_samples,
          "%d calls: %s", record.count, kr_ctx_message(ctx));
    kr_generation_destroy(g);
    for (int64_t r = 0; r < o->n_samples; r++) { /* each row alone, in a batch of one */
        loop l = loop_begin(ctx, net, announces);
        plain_row plain = plain_row_new(r, VOCAB);
        kr_sampler *sampler = kr_sampler_create(ctx, o->sampler, r + 1, VOCAB);
        for (int64_t i = 0; i < count; i++) {
            plain.in_prompt[prompt[i]] = true;
            kr_sampler_accept(sampler, r, prompt[i]);
        }
        loop_prompt(&l, prompt, count - 1, o->prefill_chunk);
        int32_t id = prompt[count - 1];
        for (int step = 0; step < STEPS; step++) {
            const kr_tensor *logits = loop_read(&l, &id, 1);
            double *x = kr_test_values(logits);
            kr_sample own;
            kr_sampler_next_rows(sampler, logits, 1, &r, &own);
            const kr_sample want = plain_next(&plain, o->sampler, x, CHAT_VOCAB);
            const chat_row *got = &record.rows[step][r];
            CHECK(got->is_new && got->sample.id == want.id && got->sample.id == own.id &&
                      fabs(got->sample.logprob - own.logprob) <=
                          (kr_ctx_on_device(ctx) ? 1e-6 : 0) * (1 - own.logprob) &&
                      fabs(own.logprob - want.logprob) < 1e-12 * (1 - want.logprob),
                  "row %d, step %d: token %d at %.17g, not %d at %.17g", (int)r, step, got->sample.id,
                  got->sample.logprob, want.id, want.logprob);
            id = want.id;
            free(x);
        }
        plain_row_free(&plain);
        kr_sampler_destroy(sampler);
        loop_end(&l);
    }
    CHECK_OK(ctx);
}

TEST(generation_is_a_loop_of_steps)
{
    static const kr_dtype types[] = { KR_DTYPE_F32, KR_DTYPE_F64, KR_DTYPE_BF16 };
    kr_ctx *ctx = kr_test_ctx(2, NULL);
    int32_t prompt[PROMPT];
    make_prompt(prompt, PROMPT);
    for (int f = 0; f < FAMILIES; f++)
        for (int d = 0; d < 3; d++) {
            kr_network *net = chat_network(ctx, (kr_family)f, types[d], 0, NULL);
            kr_generate_options o = chat_options();
            chat_sampler.seed = (uint64_t)(10 * f + d);
            o.prefill_chunk = 7; /* 22 tokens: 7 7 7 1 */
            chat_sampler.temperature = 0;
            check_rows_by_hand(ctx, net, &o, prompt, PROMPT, false);
            o.n_samples = d == 0 ? CHAT_ROWS : 2;
            chat_sampler.temperature = 1.2;
            check_rows_by_hand(ctx, net, &o, prompt, PROMPT, false);
            chat_sampler.top_k = 30;
            chat_sampler.top_p = 0.9;
            chat_sampler.min_p = 0.01;
            chat_sampler.repetition_penalty = 1.3;
            chat_sampler.presence_penalty = 0.2;
            chat_sampler.frequency_penalty = 0.1;
            check_rows_by_hand(ctx, net, &o, prompt, 1, false); /* a prompt of one token is only pending */
            check_rows_by_hand(ctx, net, &o, prompt, 2, false);
            kr_network_destroy(net);
        }
    kr_ctx_destroy(ctx);
}

/* Learned rows that stand at a fixed place are spliced in once, wherever the chunks end. */
TEST(generation_with_class_tokens)
{
    const kr_class_token latents[] = { { .kind = KR_CLASS_TOKEN_START },
                                       { .kind = KR_CLASS_TOKEN_CUSTOM, .at = 4 },
                                       { .kind = KR_CLASS_TOKEN_CUSTOM, .at = 30 } };
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    int32_t prompt[PROMPT];
    make_prompt(prompt, PROMPT);
    kr_network *net = chat_network(ctx, KR_FAMILY_MAMBA2, KR_DTYPE_F32, 3, latents);
    kr_generate_options o = chat_options();
    o.n_samples = 2;
    for (o.prefill_chunk = 3; o.prefill_chunk < 9; o.prefill_chunk += 5)
        check_rows_by_hand(ctx, net, &o, prompt, PROMPT, true);
    kr_network_destroy(net);
    kr_ctx_destroy(ctx);
}

/* Rows that stop at different tokens and are fed again, with one step of the network for all rows or one each. */
static void stop_and_feed(kr_ctx *ctx, const kr_network *net, const int32_t *prompt, bool is_separate,
                          chat_record *record)
{
    enum { STEPS = 40 };
    const int32_t stops[] = { 1, 2, 3, 4, 5, 6, 7, 8 };
    kr_generate_options o = chat_options();
    o.n_samples = CHAT_ROWS;
    o.stop_ids = stops;
    o.n_stop_ids = 8;
    o.max_tokens = STEPS;
    chat_sampler.temperature = 1.2;
    chat_sampler.seed = 5;
    kr_generation *g = kr_generation_create(ctx, net, NULL, &o);
    if (is_separate) g->batch->is_separate = true;
    for (int turn = 0; turn < 2; turn++) {
        kr_generation_feed(g, prompt, PROMPT);
        chat_on(record, g, 1);
        CHECK(g->batch->is_separate == (is_separate || turn > 0), "turn %d: separate: %d, %s", turn,
              g->batch->is_separate, kr_ctx_message(ctx));
        chat_on(record, g, STEPS);
    }
    int64_t least = STEPS, most = 0;
    for (int r = 0; r < CHAT_ROWS; r++) {
        const int64_t tokens = kr_row_info_of(g->rows[r]).tokens;
        if (tokens < least) least = tokens;
        if (tokens > most) most = tokens;
    }
    CHECK(least < most || most > STEPS, "rows have %d to %d tokens: no row stopped", (int)least, (int)most);
    kr_generation_destroy(g);
}

TEST(samples_share_steps_while_class_tokens_are_at_one_position)
{
    const kr_class_token latents[] = { { .kind = KR_CLASS_TOKEN_START },
                                       { .kind = KR_CLASS_TOKEN_CUSTOM, .at = 4 },
                                       { .kind = KR_CLASS_TOKEN_CUSTOM, .at = 30 } };
    chat_record together = { 0 }, separate = { 0 };
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    kr_network *net = chat_network(ctx, KR_FAMILY_MAMBA2, KR_DTYPE_F32, 3, latents);
    int32_t prompt[PROMPT];
    make_prompt(prompt, PROMPT);
    stop_and_feed(ctx, net, prompt, false, &together);
    stop_and_feed(ctx, net, prompt, true, &separate);
    chat_check("one step for all rows", &together, &separate, 0);
    CHECK_OK(ctx);
    kr_network_destroy(net);
    kr_ctx_destroy(ctx);
}

TEST(generation_is_the_same_for_any_threads)
{
    chat_record records[3] = { { 0 } };
    int32_t prompt[PROMPT];
    make_prompt(prompt, PROMPT);
    for (int threads = 1; threads <= 3; threads++) {
        kr_ctx *ctx = kr_test_ctx(threads, NULL);
        kr_network *net = chat_network(ctx, KR_FAMILY_MAMBA3, KR_DTYPE_F32, 0, NULL);
        kr_generate_options o = chat_options();
        o.n_samples = 3;
        kr_generation *g = kr_generation_create(ctx, net, NULL, &o);
        kr_generation_feed(g, prompt, PROMPT);
        chat_on(&records[threads - 1], g, 15);
        CHECK_OK(ctx);
        chat_check("threads", &records[threads - 1], &records[0], 0);
        kr_generation_destroy(g);
        kr_network_destroy(net);
        kr_ctx_destroy(ctx);
    }
}

/* ---- chunks and feeds ---- */

static void feed_pieces(kr_generation *g, const int32_t *prompt, int64_t count, int64_t first, int64_t then)
{
    for (int64_t from = 0, n = first; from < count; from += n, n = then) {
        if (n > count - from) n = count - from;
        kr_generation_feed(g, prompt + from, n);
    }
}

static chat_record chat_after(kr_ctx *ctx, const kr_network *net, const kr_generate_options *o, const int32_t *prompt,
                              int64_t count, int64_t first, int64_t then)
{
    chat_record record = { 0 };
    kr_generation *g = kr_generation_create(ctx, net, NULL, o);
    feed_pieces(g, prompt, count, first, then);
    chat_on(&record, g, 12);
    CHECK(kr_generation_prompt_tokens(g) == count, "%d tokens", (int)kr_generation_prompt_tokens(g));
    kr_generation_destroy(g);
    return record;
}

/* Chunks of another size change the rounding, not the tokens; in f64 by about 1e-14 of a logit, of which some hundred
 * add up. Feeds whose pieces end where chunks would (one token is left pending) change nothing at all. */
TEST(prompts_in_chunks_and_pieces)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    int32_t prompt[PROMPT];
    make_prompt(prompt, PROMPT);
    for (int f = 0; f < FAMILIES; f++) {
        kr_network *net = chat_network(ctx, (kr_family)f, KR_DTYPE_F64, 0, NULL);
        kr_generate_options o = chat_options();
        o.n_samples = 2;
        const chat_record want = chat_after(ctx, net, &o, prompt, PROMPT, PROMPT, PROMPT);
        for (o.prefill_chunk = 1; o.prefill_chunk <= PROMPT; o.prefill_chunk++) {
            const int64_t c = o.prefill_chunk;
            const chat_record got = chat_after(ctx, net, &o, prompt, PROMPT, PROMPT, PROMPT);
            for (int i = 0; i < want.count; i++)
                for (int r = 0; r < 2; r++)
                    CHECK(got.rows[i][r].sample.id == want.rows[i][r].sample.id &&
                              fabs(got.rows[i][r].sample.logprob - want.rows[i][r].sample.logprob) < 1e-11,
                          "chunks of %d: token %d", (int)c, i);
            const chat_record pieces = chat_after(ctx, net, &o, prompt, PROMPT, c + 1, c);
            chat_check("pieces", &pieces, &got, 0);
        }
        kr_network_destroy(net);
    }
    CHECK_OK(ctx);
    kr_ctx_destroy(ctx);
}

/* Has the row generated the token before that call? */
static bool has_generated(const chat_record *record, int call, int row, int32_t id)
{
    for (int i = 0; i < call; i++)
        if (record->rows[i][row].sample.id == id) return true;
    return false;
}

/* A conversation: two rows end at different times, both are fed, both go on; by hand, in batches of one. */
TEST(finished_rows_go_on_after_a_feed)
{
    enum { FIRST = 9, SECOND = 6, MOST = 8 };
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    int32_t prompt[FIRST], more[SECOND], stop = -1;
    make_prompt(prompt, FIRST);
    make_prompt(more, SECOND);
    for (int f = 0; f < FAMILIES; f++) {
        kr_network *net = chat_network(ctx, (kr_family)f, KR_DTYPE_F32, 0, NULL);
        kr_generate_options o = chat_options();
        o.n_samples = 3;
        o.max_tokens = MOST;
        chat_sampler.frequency_penalty = 0.5;
        chat_sampler.repetition_penalty = 1.1;
        chat_record probe = { 0 };
        kr_generation *g = kr_generation_create(ctx, net, NULL, &o);
        kr_generation_feed(g, prompt, FIRST);
        chat_on(&probe, g, MOST);
        CHECK(probe.count == MOST && probe.rows[MOST - 1][2].finish == KR_FINISH_LENGTH &&
                  kr_generation_next(g) == KR_END,
              "max_tokens");
        kr_generation_destroy(g);
        int last = 2; /* the call at which row 1 ends early, others perhaps: its token is new then */
        while (last < MOST - 2 && has_generated(&probe, last, 1, probe.rows[last][1].sample.id)) last++;
        stop = probe.rows[last][1].sample.id;

        o.n_stop_ids = 1;
        o.stop_ids = &stop;
        chat_record record = { 0 };
        g = kr_generation_create(ctx, net, NULL, &o);
        stop = -1; /* it has a copy */
        kr_generation_feed(g, prompt, FIRST);
        chat_on(&record, g, MOST);
        const int turn = record.count;
        stop = probe.rows[last][1].sample.id;
        const chat_row *then = &record.rows[last + 1][1]; /* unless the others ended, too */
        CHECK(record.rows[last][1].finish == KR_FINISH_STOP_ID &&
                  (turn == last + 1 || (!then->is_new && then->finish == KR_FINISH_STOP_ID)),
              "row 1 stops at %d", last);
        kr_generation_feed(g, more, SECOND);
        chat_on(&record, g, 2 * MOST);
        for (int r = 0; r < 3; r++) {
            int made = 0;
            for (int i = turn; i < record.count; i++) made += record.rows[i][r].is_new;
            const kr_finish finish = record.rows[record.count - 1][r].finish;
            CHECK(finish == KR_FINISH_LENGTH ? made == MOST : finish == KR_FINISH_STOP_ID && made <= MOST,
                  "row %d ends with %d after %d: max_tokens counts anew", r, finish, made);
        }
        CHECK(record.count > turn && record.rows[turn][0].is_new && record.rows[turn][1].is_new, "all go on");
        CHECK(kr_generation_prompt_tokens(g) == FIRST + 3 * SECOND, "%d", (int)kr_generation_prompt_tokens(g));
        kr_generation_feed(g, NULL, 0); /* nothing more to read: only on */
        const int again = record.count;
        chat_on(&record, g, MOST);
        CHECK(record.count > again, "an empty feed opens the rows");
        kr_generation_destroy(g);

        int64_t total = 0;
        for (int64_t r = 0; r < 3; r++) {
            loop l = loop_begin(ctx, net, false);
            plain_row plain = plain_row_new(r, VOCAB);
            int32_t id = 0, joined[1 + SECOND];
            for (int i = 0; i < record.count; i++) {
                if (i == 0) {
                    loop_prompt(&l, prompt, FIRST - 1, o.prefill_chunk);
                    for (int j = 0; j < FIRST; j++) plain.in_prompt[prompt[j]] = true;
                    id = prompt[FIRST - 1];
                } else if (i == turn) {
                    joined[0] = id;
                    memcpy(joined + 1, more, sizeof more);
                    loop_prompt(&l, joined, SECOND, o.prefill_chunk);
                    for (int j = 0; j < SECOND; j++) plain.in_prompt[more[j]] = true;
                    id = more[SECOND - 1];
                }
                const chat_row *got = &record.rows[i][r];
                if (!got->is_new) continue;
                double *x = kr_test_values(loop_read(&l, &id, 1));
                id = plain_next(&plain, o.sampler, x, CHAT_VOCAB).id;
                free(x);
                total++;
                CHECK(got->sample.id == id && (got->finish == KR_FINISH_STOP_ID) == (id == stop),
                      "row %d, call %d: token %d, not %d, finish %d", (int)r, i, got->sample.id, id, got->finish);
            }
            plain_row_free(&plain);
            loop_end(&l);
        }
        CHECK(total > 0, "no tokens");
        kr_network_destroy(net);
    }
    CHECK_OK(ctx);
    kr_ctx_destroy(ctx);
}

TEST(generation_ends)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    kr_network *net = chat_network(ctx, KR_FAMILY_MAMBA2, KR_DTYPE_F32, 0, NULL);
    kr_generate_options o = chat_options();
    const int32_t ids[] = { 5, 6 };
    for (o.max_tokens = 0; o.max_tokens < 3; o.max_tokens++) {
        kr_generation *g = kr_generation_create(ctx, net, NULL, &o);
        kr_generation_feed(g, ids, 2);
        int64_t n = 0;
        while (kr_generation_next(g) == KR_OK) n++;
        CHECK(n == o.max_tokens && kr_generation_tokens(g) == n, "%d tokens, not %d", (int)n, (int)o.max_tokens);
        CHECK(!kr_generation_row(g, 0)->is_new && kr_generation_row(g, 0)->finish == KR_FINISH_LENGTH &&
                  kr_generation_row(g, 0)->bytes == 0,
              "the row after its end");
        kr_generation_destroy(g);
    }
    o.max_tokens = -1;
    kr_generation *g = kr_generation_create(ctx, net, NULL, &o);
    kr_generation_feed(g, ids, 2);
    for (int i = 0; i < 600; i++) CHECK(kr_generation_next(g) == KR_OK, "token %d", i);
    CHECK(kr_generation_row(g, 0)->finish == KR_FINISH_NONE && !kr_generation_row(g, 1) && !kr_generation_row(g, -1),
          "no end");
    kr_generation_destroy(g);
    kr_generation_destroy(NULL);
    CHECK(!kr_generation_row(NULL, 0) && kr_generation_tokens(NULL) == 0 && kr_generation_prompt_tokens(NULL) == 0 &&
              kr_generation_next(NULL) == KR_ERR_ARG && kr_generation_feed(NULL, ids, 2) == KR_ERR_ARG &&
              kr_generation_feed_text(NULL, "x", 1) == KR_ERR_ARG && kr_generation_save(NULL, "x") == KR_ERR_ARG &&
              kr_generation_load(NULL, "x") == KR_ERR_ARG,
          "NULL");
    CHECK_OK(ctx);
    kr_network_destroy(net);
    kr_ctx_destroy(ctx);
}

/* ---- memory ---- */

/* Not a byte more after 1000 tokens than after 10, and no allocation on the way. */
TEST(generation_in_constant_memory)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    int32_t prompt[PROMPT];
    make_prompt(prompt, PROMPT);
    for (int f = 0; f < FAMILIES; f++)
        for (int penalises = 0; penalises < 2; penalises++) {
            kr_network *net = chat_network(ctx, (kr_family)f, KR_DTYPE_F32, 0, NULL);
            kr_tokenizer *tok = kr_tokenizer_bytes(ctx);
            kr_generate_options o = chat_options();
            o.n_samples = 2;
            o.max_tokens = -1;
            o.n_stops = 1;
            o.stops = (const char *[]){ "a text that does not come" };
            chat_sampler.presence_penalty = 0.1 * penalises;
            kr_generation *g = kr_generation_create(ctx, net, tok, &o);
            kr_generation_feed(g, prompt, PROMPT);
            for (int i = 0; i < 10; i++) IGNORE(kr_generation_next(g));
            const kr_memory_stats after_10 = kr_ctx_memory(ctx);
            for (int i = 10; i < (kr_test_quick() ? 200 : 1000); i++) IGNORE(kr_generation_next(g));
            const kr_memory_stats after_1000 = kr_ctx_memory(ctx);
            CHECK_OK(ctx);
            CHECK(after_10.live_bytes == after_1000.live_bytes && after_10.live_blocks == after_1000.live_blocks &&
                      after_10.peak_bytes == after_1000.peak_bytes && after_10.total_blocks == after_1000.total_blocks,
                  "%zu bytes after 10 tokens, %zu after 1000; %zu allocations in between", after_10.live_bytes,
                  after_1000.live_bytes, after_1000.total_blocks - after_10.total_blocks);
            kr_generation_destroy(g);
            kr_tokenizer_destroy(tok);
            kr_network_destroy(net);
        }
    kr_ctx_destroy(ctx);
}
