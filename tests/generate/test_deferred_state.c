/* test_deferred_state.c - steps that defer the state update of their token: the same bits as steps that give it to the state at
 * once, at whatever time someone reads the state.
 */
#define _POSIX_C_SOURCE 200809L
#include "generate/decode_graph.h"
#include "nn/layers_impl.h"
#include "nn/deferred_state.h"
#include "tests/temp_folder.h"
#include "tests/generate/chat.h"

#include <math.h>

enum { ROWS = 11, PROMPT = 5, STEPS = 2 * KR_DEFERRED_TOKENS + 5 };

static kr_ctx *open_device(const char *name)
{
    return chat_device(name, KR_PRECISION_EXACT);
}

/* A state of ROWS rows that have read different prompts. */
static kr_state *primed(kr_ctx *ctx, const kr_network *net)
{
    int32_t ids[ROWS * PROMPT];
    for (int i = 0; i < ROWS * PROMPT; i++) ids[i] = i * 37 % 250;
    kr_state *state = kr_state_create(ctx, kr_network_layers(net), ROWS);
    kr_tape *tape = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    kr_call call;
    kr_call_init(&call);
    call.advance = state;
    kr_network_forward(tape, net, kr_from_data(tape, KR_DTYPE_I32, KR_SHAPE(ROWS, PROMPT), ids), &call);
    kr_tape_destroy(tape);
    CHECK_OK(ctx);
    return state;
}

static void compare_states(const char *what, const kr_state *got, const kr_state *want)
{
    for (int64_t s = 0; s < kr_state_slots(want); s++) {
        const kr_cache *a = kr_state_cache(got, s), *b = kr_state_cache(want, s);
        CHECK_SAME_BITS(what, a->mamba2.conv_bvk, b->mamba2.conv_bvk);
        CHECK_SAME_BITS(what, a->mamba2.ssm_bhpr, b->mamba2.ssm_bhpr);
    }
}

/* A step of both, by a captured graph that may defer updates and directly. */
static void step_both(kr_decode_graph *graph, const kr_network *net, kr_state *deferring, kr_state *at_once, int i)
{
    int32_t ids[ROWS];
    for (int r = 0; r < ROWS; r++) ids[r] = (i * 31 + r * 7) % 250;
    kr_tape *tape = kr_tape_create(net->ctx, KR_TAPE_NO_GRAD);
    kr_call call;
    kr_call_init(&call);
    call.advance = at_once;
    call.skip_hidden = true; /* as steps do */
    const kr_tensor *want = kr_network_step(tape, net, kr_from_data(tape, KR_DTYPE_I32, KR_SHAPE(ROWS), ids), &call).y;
    const kr_tensor *got = kr_decode_graph_run(graph, net, deferring, ids, NULL, NULL);
    CHECK_OK(net->ctx);
    if (got && want) CHECK_SAME_BITS("logits", got, want);
    kr_tape_destroy(tape);
}

/* reads: the state is looked at after every so many steps; 0: at the end alone. */
static void run_both(const char *device, kr_dtype dtype, int reads)
{
    kr_ctx *ctx = open_device(device);
    if (!ctx) return;
    kr_network *net = chat_network(ctx, KR_FAMILY_MAMBA2, dtype, 0, NULL);
    kr_state *deferring = primed(ctx, net), *at_once = primed(ctx, net);
    kr_decode_graph graph = { .tape = NULL };
    bool deferred = false;
    for (int i = 0; i < STEPS && !kr_ctx_failed(ctx); i++) {
        step_both(&graph, net, deferring, at_once, i);
        deferred = deferred ||
                   (deferring->deferred && deferring->deferred->is_pending && deferring->deferred->slots[0].is_used);
        if (reads && i % reads == reads - 1) compare_states("a state on the way", deferring, at_once);
    }
    CHECK(deferred, "%s: no token was kept", device);
    compare_states("the state at the end", deferring, at_once);
    CHECK_OK(ctx);
    kr_decode_graph_free(&graph, ctx);
    kr_state_destroy(deferring);
    kr_state_destroy(at_once);
    kr_network_destroy(net);
    kr_ctx_destroy(ctx);
}

static const char *const devices[] = { "mock", "mock:1", "cuda" };

TEST(deferred_updates_change_no_bits)
{
    for (int d = 0; d < 3; d++)
        for (int reads = 0; reads < 12; reads += 3) run_both(devices[d], d == 1 ? KR_DTYPE_BF16 : KR_DTYPE_F32, reads);
}

/* Copies, choices of rows and calls of other kinds see all tokens. */
TEST(others_see_deferred_updates)
{
    for (int d = 0; d < 3; d++) {
        kr_ctx *ctx = open_device(devices[d]);
        if (!ctx) continue;
        kr_network *net = chat_network(ctx, KR_FAMILY_MAMBA2, KR_DTYPE_F32, 0, NULL);
        kr_state *deferring = primed(ctx, net), *at_once = primed(ctx, net), *copy = primed(ctx, net);
        kr_decode_graph graph = { .tape = NULL };
        for (int i = 0; i < 5; i++) step_both(&graph, net, deferring, at_once, i);
        kr_state_copy(copy, deferring);
        compare_states("a copy", copy, at_once);
        for (int i = 5; i < 8; i++) step_both(&graph, net, deferring, at_once, i);
        const int64_t rows[] = { 7, 2 };
        kr_tape *tape = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
        compare_states("rows", kr_state_select(tape, deferring, 2, rows), kr_state_select(tape, at_once, 2, rows));
        for (int i = 8; i < 10; i++) step_both(&graph, net, deferring, at_once, i);
        int32_t ids[ROWS * 2];
        for (int i = 0; i < ROWS * 2; i++) ids[i] = i;
        kr_state *states[] = { deferring, at_once };
        for (int i = 0; i < 2; i++) {
            kr_call call;
            kr_call_init(&call);
            call.advance = states[i];
            kr_network_forward(tape, net, kr_from_data(tape, KR_DTYPE_I32, KR_SHAPE(ROWS, 2), ids), &call);
        }
        compare_states("two tokens more", deferring, at_once);
        for (int i = 10; i < 13; i++) step_both(&graph, net, deferring, at_once, i);
        compare_states("and steps after them", deferring, at_once);
        CHECK(kr_state_zero(deferring) == KR_OK && kr_state_is_initial(deferring),
              "nothing is deferred to an initial state");
        CHECK_OK(ctx);
        kr_tape_destroy(tape);
        kr_decode_graph_free(&graph, ctx);
        kr_state_destroy(deferring);
        kr_state_destroy(at_once);
        kr_state_destroy(copy);
        kr_network_destroy(net);
        kr_ctx_destroy(ctx);
    }
}

/* ---- generations ---- */

enum { SAMPLES = 12, MAX_TOKENS = 40 };

/* Rows leave one by one at the ids that end them; *ids, *logprobs [MAX_TOKENS SAMPLES], -1 where a row had left. saved_at: the
 * generation is resumed from a file after so many steps; -1: never. */
static void chat_of_many(const char *device, int saved_at, int32_t *ids, double *logprobs)
{
    static const int32_t stops[] = { 3, 17, 40, 41, 42, 43, 44, 99, 100, 101, 150, 200 };
    kr_ctx *ctx = open_device(device);
    kr_network *net = chat_network(ctx, KR_FAMILY_MAMBA2, KR_DTYPE_F32, 0, NULL);
    kr_generate_options o = chat_options();
    o.n_samples = SAMPLES;
    o.max_tokens = MAX_TOKENS;
    chat_sampler.seed = 11;
    o.n_stop_ids = 12;
    o.stop_ids = stops;
    const int32_t prompt[] = { 5, 77, 9 };
    kr_generation *g = kr_generation_create(ctx, net, NULL, &o);
    kr_generation_feed(g, prompt, 3);
    for (int step = 0; step < MAX_TOKENS; step++) {
        if (step == saved_at) {
            IGNORE(kr_generation_save(g, in_folder("chat")));
            kr_generation_destroy(g);
            g = kr_generation_create(ctx, net, NULL, &o);
            IGNORE(kr_generation_load(g, in_folder("chat")));
        }
        const bool goes_on = kr_generation_next(g) == KR_OK;
        for (int r = 0; r < SAMPLES; r++) {
            const kr_generated *one = kr_generation_row(g, r);
            const bool is_new = goes_on && one && one->is_new;
            ids[step * SAMPLES + r] = is_new ? one->sample.id : -1;
            logprobs[step * SAMPLES + r] = is_new ? one->sample.logprob : 0;
        }
    }
    CHECK_OK(ctx);
    kr_generation_destroy(g);
    kr_network_destroy(net);
    kr_ctx_destroy(ctx);
}

TEST(rows_leave_and_files_keep_deferred_updates)
{
    static int32_t want[MAX_TOKENS * SAMPLES], whole[MAX_TOKENS * SAMPLES], got[MAX_TOKENS * SAMPLES];
    static double of_want[MAX_TOKENS * SAMPLES], of_whole[MAX_TOKENS * SAMPLES], of_got[MAX_TOKENS * SAMPLES];
    begin_folder();
    chat_of_many("cpu", -1, want, of_want);
    int left = 0;
    for (int r = 0; r < SAMPLES; r++) left += want[(MAX_TOKENS - 1) * SAMPLES + r] < 0;
    CHECK(left > 2 && left < SAMPLES, "%d of %d rows left on the way", left, SAMPLES);
    for (int d = 0; d < 3; d++) {
        kr_ctx *ctx = open_device(devices[d]);
        if (!ctx) continue;
        kr_ctx_destroy(ctx);
        chat_of_many(devices[d], -1, whole, of_whole);
        for (int i = 0; i < MAX_TOKENS * SAMPLES; i++)
            CHECK(whole[i] == want[i] && fabs(of_whole[i] - of_want[i]) < 1e-4, "%s, step %d, row %d: %d, not %d",
                  devices[d], i / SAMPLES, i % SAMPLES, whole[i], want[i]);
        for (int saved_at = 2; saved_at < 20; saved_at += 5) {
            chat_of_many(devices[d], saved_at, got, of_got);
            CHECK(memcmp(got, whole, sizeof got) == 0 && memcmp(of_got, of_whole, sizeof of_got) == 0,
                  "%s: a generation saved after %d steps continues with other bits", devices[d], saved_at);
        }
    }
    end_folder();
}

/* The n-th allocation of a step fails, for n = 1, 2, ...: nothing leaks. */
TEST(no_memory_for_deferred_updates)
{
    for (size_t n = 1; n < 200; n++) {
        kr_ctx *ctx = open_device("mock");
        kr_network *net = chat_network(ctx, KR_FAMILY_MAMBA2, KR_DTYPE_F32, 0, NULL);
        kr_state *state = primed(ctx, net);
        const int64_t before = (int64_t)kr_ctx_memory(ctx).live_bytes;
        kr_decode_graph graph = { .tape = NULL };
        const int32_t ids[ROWS] = { 0 };
        kr_ctx_fail_allocation(ctx, n);
        const bool done = kr_decode_graph_run(&graph, net, state, ids, NULL, NULL) != NULL;
        kr_ctx_fail_allocation(ctx, 0);
        CHECK(done || kr_ctx_status(ctx) == KR_ERR_NOMEM, "allocation %d: %s", (int)n, kr_ctx_message(ctx));
        kr_decode_graph_free(&graph, ctx);
        kr_deferred_drop(state);
        CHECK((int64_t)kr_ctx_memory(ctx).live_bytes == before || done, "allocation %d leaks", (int)n);
        kr_state_destroy(state);
        kr_network_destroy(net);
        kr_ctx_destroy(ctx);
        if (done) return;
    }
    CHECK(false, "a step needs more than 200 allocations");
}
