/* test_batch.c - rows that come and go: each generates what it generates alone, to the bit; forks, snapshots, files. */
#define _POSIX_C_SOURCE 200809L
#include "tests/generate/chat.h"
#include "tests/temp_folder.h"

#include <krait/batch.h>

enum { FAMILIES = 3, VOCAB = CHAT_VOCAB - 3, ROWS = 9, TURNS = 3, TOKENS_MOST = 40, FEED_MOST = 230 };

/* ---- a row's script ---- */

typedef struct turn {
    int32_t ids[FEED_MOST];
    int64_t count;
    kr_sampler_options sampler;
    int64_t max_tokens;
    uint64_t stream;
    bool scores;
} turn;

typedef struct script {
    turn turns[TURNS];
    kr_logit_bias bias;
} script;

/* What a row generated, turn by turn. */
typedef struct record {
    kr_sample samples[TURNS][TOKENS_MOST];
    int64_t n[TURNS];
    double scores; /* their sum */
    double norms[64];
    int64_t n_norms;
} record;

static void make_script(script *s)
{
    *s = (script){ .bias = { (int32_t)kr_test_below(VOCAB), 2.5 } };
    for (int t = 0; t < TURNS; t++) {
        turn *u = &s->turns[t];
        u->count = t && kr_test_below(3) == 0 ? 0 : 1 + kr_test_below(kr_test_below(2) ? 9 : FEED_MOST);
        for (int64_t i = 0; i < u->count; i++) u->ids[i] = (int32_t)kr_test_below(VOCAB);
        kr_sampler_options_init(&u->sampler);
        u->sampler.temperature = kr_test_below(4) ? 0.9 : 0;
        u->sampler.top_p = kr_test_below(2) ? 0.8 : 1;
        u->sampler.top_k = kr_test_below(2) ? 17 : 0;
        u->sampler.repetition_penalty = kr_test_below(2) ? 1.3 : 1;
        u->sampler.frequency_penalty = kr_test_below(2) ? 0.2 : 0;
        u->sampler.seed = kr_test_next();
        u->sampler.n_biases = kr_test_below(2) ? 1 : 0;
        u->sampler.biases = &s->bias;
        u->max_tokens = 1 + kr_test_below(TOKENS_MOST);
        u->stream = (uint64_t)kr_test_below(5);
        u->scores = kr_test_below(3) == 0;
    }
}

static kr_row_options options_of(const turn *u)
{
    kr_row_options o;
    kr_row_options_init(&o);
    o.sampler = &u->sampler;
    o.max_tokens = u->max_tokens;
    o.stream = u->stream;
    o.score_prompt = u->scores;
    return o;
}

static void start_turn(kr_row *row, const turn *u)
{
    const kr_row_options o = options_of(u);
    kr_row_feed(row, u->ids, u->count);
    kr_row_generate(row, &o);
}

static void note(record *r, int t, const kr_row_event *e)
{
    if (e->kind == KR_ROW_EVENT_TOKEN && r->n[t] < TOKENS_MOST) r->samples[t][r->n[t]++] = e->sample;
    for (int64_t i = 0; i < e->n_scores; i++) r->scores += e->scores[i].logprob;
}

static void note_norms(record *r, kr_row *row)
{
    kr_row_state_norms(row, 1, r->norms, 64, &r->n_norms);
}

static kr_row_batch *open_batch(kr_ctx *ctx, const kr_network *net, int64_t max_rows, int64_t prefill_tokens)
{
    kr_row_batch_options o;
    kr_row_batch_options_init(&o);
    o.max_rows = max_rows;
    o.prefill_tokens = prefill_tokens;
    kr_row_batch *batch = kr_row_batch_create(ctx, net, NULL, &o);
    CHECK_OK(ctx);
    return batch;
}

static void run_alone(kr_ctx *ctx, const kr_network *net, const script *s, record *r)
{
    *r = (record){ .scores = 0 };
    kr_row_batch *batch = open_batch(ctx, net, 1, 0);
    kr_row *row = kr_row_create(batch);
    const kr_row_event *events;
    int64_t count;
    for (int t = 0; t < TURNS; t++) {
        start_turn(row, &s->turns[t]);
        while (kr_row_batch_step(batch, &events, &count) == KR_OK)
            for (int64_t i = 0; i < count; i++) note(r, t, &events[i]);
        CHECK_OK(ctx);
    }
    note_norms(r, row);
    kr_row_batch_destroy(batch);
}

static void check_record(const char *what, int row, const record *got, const record *want)
{
    bool same = true;
    for (int t = 0; t < TURNS && same; t++) {
        same = CHECK(got->n[t] == want->n[t], "%s: row %d, turn %d: %lld tokens, not %lld", what, row, t,
                     (long long)got->n[t], (long long)want->n[t]);
        for (int64_t i = 0; same && i < want->n[t]; i++)
            same = CHECK(got->samples[t][i].id == want->samples[t][i].id &&
                             got->samples[t][i].logprob == want->samples[t][i].logprob,
                         "%s: row %d, turn %d, token %lld is %d (%.17g), not %d (%.17g)", what, row, t, (long long)i,
                         got->samples[t][i].id, got->samples[t][i].logprob, want->samples[t][i].id,
                         want->samples[t][i].logprob);
    }
    CHECK(got->scores == want->scores, "%s: row %d: scores add up to %.17g, not %.17g", what, row, got->scores,
          want->scores);
    CHECK(got->n_norms == want->n_norms && memcmp(got->norms, want->norms, (size_t)want->n_norms * 8) == 0,
          "%s: row %d: the norms of the state differ", what, row);
}

/* ---- rows together ---- */

typedef struct seat {
    kr_row *row;
    int turn; /* -1: not begun */
    bool is_busy;
} seat;

static void begin_some(kr_row_batch *batch, const script *scripts, seat *seats)
{
    for (int i = 0; i < ROWS; i++) {
        seat *s = &seats[i];
        if (s->is_busy || s->turn == TURNS - 1 || kr_test_below(3)) continue;
        if (!s->row) s->row = kr_row_create(batch);
        s->turn++;
        s->is_busy = true;
        start_turn(s->row, &scripts[i].turns[s->turn]);
    }
}

static int seat_of(const seat *seats, const kr_row *row)
{
    for (int i = 0; i < ROWS; i++)
        if (seats[i].row == row) return i;
    return -1;
}

/* Other rows, which join, generate for a while and are destroyed in the middle of it. */
static void disturb(kr_row_batch *batch, kr_row **other)
{
    int32_t ids[7];
    for (int i = 0; i < 7; i++) ids[i] = (int32_t)kr_test_below(VOCAB);
    if (*other && kr_test_below(4) == 0) {
        kr_row_destroy(*other);
        *other = NULL;
    } else if (!*other && kr_test_below(2)) {
        *other = kr_row_create(batch);
        kr_row_feed(*other, ids, 1 + kr_test_below(7));
        kr_row_generate(*other, NULL);
    }
}

static void run_together(kr_ctx *ctx, const kr_network *net, const script *scripts, int64_t max_rows,
                         int64_t prefill_tokens, record *records)
{
    kr_row_batch *batch = open_batch(ctx, net, max_rows, prefill_tokens);
    seat seats[ROWS];
    kr_row *other = NULL;
    const kr_row_event *events;
    int64_t count, left = ROWS * TURNS;
    for (int i = 0; i < ROWS; i++) {
        seats[i] = (seat){ .turn = -1 };
        records[i] = (record){ .scores = 0 };
    }
    for (int steps = 0; left > 0 && steps < 20000 && !kr_ctx_failed(ctx); steps++) {
        begin_some(batch, scripts, seats);
        disturb(batch, &other);
        IGNORE(kr_row_batch_step(batch, &events, &count));
        for (int64_t e = 0; e < count; e++) {
            const int i = seat_of(seats, events[e].row);
            if (i < 0) continue;
            note(&records[i], seats[i].turn, &events[e]);
            if (events[e].kind != KR_ROW_EVENT_TOKEN || events[e].finish == KR_FINISH_NONE) continue;
            seats[i].is_busy = false;
            left--;
        }
    }
    CHECK(left == 0, "%lld turns did not end: %s", (long long)left, kr_ctx_message(ctx));
    for (int i = 0; i < ROWS; i++)
        if (seats[i].row) note_norms(&records[i], seats[i].row);
    kr_row_batch_destroy(batch);
}

/* can_score: the network has no class tokens. */
static void check_network(kr_ctx *ctx, const kr_network *net, const char *name, bool can_score)
{
    static script scripts[ROWS];
    static record alone[ROWS], together[ROWS];
    for (int i = 0; i < ROWS; i++) {
        make_script(&scripts[i]);
        for (int t = 0; t < TURNS && !can_score; t++) scripts[i].turns[t].scores = false;
        run_alone(ctx, net, &scripts[i], &alone[i]);
    }
    for (int round = 0; round < (kr_test_quick() ? 1 : 3) && !kr_test_chooses(ctx); round++) {
        /* on a device more than eight rows take other kernels, with other bits */
        const int64_t max_rows = 1 + kr_test_below(kr_test_on_device(ctx) ? ROWS - 1 : ROWS);
        run_together(ctx, net, scripts, max_rows, 1 + kr_test_below(900), together);
        for (int i = 0; i < ROWS; i++) check_record(name, i, &together[i], &alone[i]);
    }
    CHECK_OK(ctx);
}

static void check_rows(int threads, kr_family family, kr_dtype dtype, int n_latents, const kr_class_token *latents)
{
    kr_ctx *ctx = kr_test_ctx(threads, NULL);
    kr_network *net = chat_network(ctx, family, dtype, n_latents, latents);
    check_network(ctx, net, kr_family_name(family), n_latents == 0);
    kr_network_destroy(net);
    kr_ctx_destroy(ctx);
}

TEST(rows_that_come_and_go_are_as_alone)
{
    for (int family = 0; family < FAMILIES; family++) check_rows(1, (kr_family)family, KR_DTYPE_F32, 0, NULL);
}

TEST(rows_of_two_threads_are_as_alone)
{
    for (int family = 0; family < FAMILIES; family++) check_rows(2, (kr_family)family, KR_DTYPE_BF16, 0, NULL);
}

TEST(rows_with_class_tokens_are_as_alone)
{
    const kr_class_token latents[1] = { { .kind = KR_CLASS_TOKEN_START } };
    check_rows(1, KR_FAMILY_MAMBA2, KR_DTYPE_F32, 1, latents);
}

/* A row without a state has an initial one that is not zero, also among rows that have read something. */
static kr_network *learned_network(kr_ctx *ctx, kr_family family)
{
    kr_mamba2_config m2;
    kr_mamba3_config m3;
    kr_mamba2_config_init(&m2);
    kr_mamba3_config_init(&m3);
    m2.d_model = m3.d_model = 8;
    m2.state_rank = m3.state_rank = m2.per_head_dim = m3.per_head_dim = 4;
    m2.has_learnable_init_state = m3.has_learnable_init_state = true;
    kr_layers_config layers;
    kr_layers_config_init(&layers);
    layers.block = family == KR_FAMILY_MAMBA2 ? kr_mamba2_block(&m2) : kr_mamba3_block(&m3);
    layers.n_layers = 2;
    kr_network_config config;
    kr_network_config_init(&config);
    config.layers = &layers;
    config.vocab_size = VOCAB;
    config.embedding_std = 0.8;
    kr_network *net = kr_network_create(ctx, &config);
    kr_params *params = kr_network_params(net);
    for (int64_t i = 0; i < kr_params_count(params); i++)
        if (strstr(kr_params_at(params, i)->name, "init_states"))
            kr_param_normal(kr_params_at(params, i)->tensor, 0, 1);
    CHECK_OK(ctx);
    return net;
}

TEST(rows_with_learned_initial_states_are_as_alone)
{
    for (int family = KR_FAMILY_MAMBA2; family <= KR_FAMILY_MAMBA3; family++) {
        kr_ctx *ctx = kr_test_ctx(1, NULL);
        kr_network *net = learned_network(ctx, (kr_family)family);
        check_network(ctx, net, "learned initial states", true);
        kr_network_destroy(net);
        kr_ctx_destroy(ctx);
    }
}

/* ---- against calls of the network ---- */

/* Reads ids to the state by pieces of `grid`, the last one by a step; its logits. */
static kr_tensor *read_by_hand(kr_tape *t, const kr_network *net, kr_state *state, const int32_t *ids, int64_t count,
                               int64_t grid)
{
    kr_call call;
    kr_call_init(&call);
    call.advance = state;
    for (int64_t at = 0, n; at < count - 1; at += n) {
        n = count - 1 - at < grid ? count - 1 - at : grid;
        kr_tape_reset(t);
        kr_network_forward(t, net, kr_from_data(t, KR_DTYPE_I32, KR_SHAPE(1, n), ids + at), &call);
    }
    kr_tape_reset(t);
    return kr_network_step(t, net, kr_from_data(t, KR_DTYPE_I32, KR_SHAPE(1), ids + count - 1), &call).y;
}

TEST(a_row_is_a_loop_over_the_network)
{
    for (int which = 0; which < FAMILIES + 2; which++) { /* the last two with learned initial states */
        const int family = which < FAMILIES ? which : KR_FAMILY_MAMBA2 + which - FAMILIES;
        kr_ctx *ctx = kr_test_ctx(1, NULL);
        kr_network *net = which < FAMILIES ? chat_network(ctx, (kr_family)family, KR_DTYPE_F32, 0, NULL)
                                           : learned_network(ctx, (kr_family)family);
        script s;
        record r;
        make_script(&s);
        turn *u = &s.turns[0];
        u->count = FEED_MOST;
        for (int i = 0; i < FEED_MOST; i++) u->ids[i] = (int32_t)kr_test_below(VOCAB);
        u->stream = 0;
        run_alone(ctx, net, &s, &r);
        kr_row_batch *batch = open_batch(ctx, net, 1, 0);
        const int64_t grid = kr_row_batch_stats_of(batch).grid;
        kr_row_batch_destroy(batch);

        kr_tape *t = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
        kr_state *state = kr_network_state(net, 1);
        kr_sampler *sampler = kr_sampler_create(ctx, &u->sampler, 1, VOCAB);
        for (int64_t i = 0; i < u->count; i++) kr_sampler_accept(sampler, 0, u->ids[i]);
        kr_tensor *logits = read_by_hand(t, net, state, u->ids, u->count, grid);
        for (int64_t i = 0; i < u->max_tokens && !kr_ctx_failed(ctx); i++) {
            kr_sample sample;
            kr_sampler_next(sampler, logits, &sample);
            const double far = fabs(sample.logprob - r.samples[0][i].logprob);
            if (!CHECK(sample.id == r.samples[0][i].id && far <= (kr_test_on_device(ctx) ? 1e-5 : 0),
                       "%s: token %lld is %d (%.17g), not %d (%.17g)", kr_family_name((kr_family)family), (long long)i,
                       r.samples[0][i].id, r.samples[0][i].logprob, sample.id, sample.logprob))
                break;
            logits = read_by_hand(t, net, state, &sample.id, 1, grid);
        }
        CHECK_OK(ctx);
        kr_sampler_destroy(sampler);
        kr_state_destroy(state);
        kr_tape_destroy(t);
        kr_network_destroy(net);
        kr_ctx_destroy(ctx);
    }
}

/* ---- forks, snapshots, files ---- */

/* The row's next `most` tokens, greedy; the log-probabilities are added up. */
static double generate(kr_row_batch *batch, kr_row *row, int64_t most, uint64_t seed, int32_t *ids)
{
    kr_sampler_options sampler;
    kr_sampler_options_init(&sampler);
    sampler.seed = seed;
    kr_row_options o;
    kr_row_options_init(&o);
    o.sampler = &sampler;
    o.max_tokens = most;
    kr_row_generate(row, &o);
    const kr_row_event *events;
    int64_t count, n = 0;
    double sum = 0;
    while (kr_row_batch_step(batch, &events, &count) == KR_OK)
        for (int64_t i = 0; i < count; i++)
            if (events[i].row == row && events[i].kind == KR_ROW_EVENT_TOKEN) {
                sum += events[i].sample.logprob;
                ids[n++] = events[i].sample.id;
            }
    CHECK(n == most, "%lld tokens, not %lld: %s", (long long)n, (long long)most,
          kr_row_info_of(row).status ? "failed" : "");
    return sum;
}

static void feed_noise(kr_row *row, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        const int32_t id = (int32_t)kr_test_below(VOCAB);
        kr_row_feed(row, &id, 1);
    }
}

static void check_copies(kr_family family, bool has_class_tokens)
{
    const kr_class_token latents[1] = { { .kind = KR_CLASS_TOKEN_START } };
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    kr_network *net = chat_network(ctx, family, KR_DTYPE_F32, has_class_tokens, latents);
    kr_row_batch *batch = open_batch(ctx, net, 4, 0);
    int32_t want[12], got[12], spare[12];
    kr_row *row = kr_row_create(batch), *other = kr_row_create(batch);
    feed_noise(other, 3);
    generate(batch, other, 2, 5, spare);
    feed_noise(row, 5);
    kr_row *early = kr_row_fork(row); /* nothing was read yet */
    generate(batch, row, 4, 1, spare);
    generate(batch, early, 4, 1, got);
    CHECK(memcmp(got, spare, 4 * sizeof *got) == 0, "a fork of an unread row generates other tokens");
    feed_noise(row, 2);

    kr_snapshot *snapshot = kr_row_snapshot(row);
    kr_row *fork = kr_row_fork(row);
    CHECK_OK(ctx);
    begin_folder();
    CHECK(kr_row_save(row, in_folder("row.state")) == KR_OK, "save: %s", kr_ctx_message(ctx));
    const double sum = generate(batch, row, 12, 9, want);
    CHECK(generate(batch, fork, 12, 9, got) == sum && !memcmp(got, want, sizeof want), "%s: the fork differs",
          kr_family_name(family));
    CHECK(kr_row_restore(row, snapshot) == KR_OK, "restore: %s", kr_ctx_message(ctx));
    CHECK(generate(batch, row, 12, 9, got) == sum && !memcmp(got, want, sizeof want), "%s: the snapshot differs",
          kr_family_name(family));
    CHECK(kr_row_restore(other, snapshot) == KR_OK, "restore: %s", kr_ctx_message(ctx));
    CHECK(generate(batch, other, 12, 9, got) == sum && !memcmp(got, want, sizeof want),
          "%s: the snapshot in another row differs", kr_family_name(family));
    CHECK(kr_row_load(early, in_folder("row.state")) == KR_OK, "load: %s", kr_ctx_message(ctx));
    CHECK(generate(batch, early, 12, 9, got) == sum && !memcmp(got, want, sizeof want), "%s: the file differs",
          kr_family_name(family));
    const kr_row_info info = kr_row_info_of(early), same = kr_row_info_of(row);
    CHECK(info.tokens == same.tokens && info.generated == 12 && info.finish == KR_FINISH_LENGTH,
          "%lld tokens, not %lld", (long long)info.tokens, (long long)same.tokens);
    kr_snapshot_destroy(snapshot);
    kr_row_batch_destroy(batch);
    end_folder();
    CHECK_OK(ctx);
    kr_network_destroy(net);
    kr_ctx_destroy(ctx);
}

TEST(forks_snapshots_and_files_of_rows_continue_alike)
{
    for (int family = 0; family < FAMILIES; family++) check_copies((kr_family)family, false);
    check_copies(KR_FAMILY_MAMBA3, true);
}

/* ---- cancelling ---- */

TEST(a_cancelled_row_continues_from_what_it_has_read)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    kr_network *net = chat_network(ctx, KR_FAMILY_MAMBA2, KR_DTYPE_F32, 0, NULL);
    kr_row_batch *batch = open_batch(ctx, net, 2, 1);
    kr_row *row = kr_row_create(batch);
    const int32_t ids[6] = { 3, 1, 4, 1, 5, 9 };
    int32_t got[5];
    kr_row_feed(row, ids, 3);
    kr_row_feed(row, ids + 3, 3);
    const kr_row_event *events;
    int64_t count;
    CHECK(kr_row_batch_step(batch, &events, &count) == KR_OK && count == 1 && events[0].n_tokens == 2,
          "the first piece");
    kr_row_cancel(row); /* two tokens were read, four are dropped */
    CHECK(kr_row_info_of(row).tokens == 2 && kr_row_info_of(row).queued == 0, "%lld tokens, %lld queued",
          (long long)kr_row_info_of(row).tokens, (long long)kr_row_info_of(row).queued);
    CHECK(kr_row_generate(row, NULL) == KR_ERR_STATE, "a row without a token to read generates");
    CHECK_ERROR_HAS(ctx, KR_ERR_STATE, "row.generate: nothing was fed");
    kr_row_feed(row, ids + 3, 2);
    generate(batch, row, 5, 1, got);
    CHECK(kr_row_info_of(row).tokens == 9, "%lld tokens", (long long)kr_row_info_of(row).tokens);
    CHECK_OK(ctx);
    kr_row_batch_destroy(batch);
    kr_network_destroy(net);
    kr_ctx_destroy(ctx);
}
