/* test_lazy_state.c - steps that defer the state update of their token: the same bits as steps that give it to the state at
 * once, at whatever time someone reads the state.
 */
#include "tests/decode/decoding.h"

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

static void compare_states(const char *what, kr_decoder *d, const kr_state *got, const kr_state *want)
{
    kr_decoder_flush(d, got);
    for (int64_t s = 0; s < kr_state_slots(want); s++) {
        const kr_cache *a = kr_state_cache(got, s), *b = kr_state_cache(want, s);
        CHECK_SAME_BITS(what, a->mamba2.conv_bvk, b->mamba2.conv_bvk);
        CHECK_SAME_BITS(what, a->mamba2.ssm_bhpr, b->mamba2.ssm_bhpr);
    }
}

/* A deferring step, and one of another decoder whose updates are applied at once. */
static void step_both(kr_decoder *d, kr_decoder *plain, kr_state *deferring, kr_state *at_once, int i)
{
    int32_t ids[ROWS];
    for (int r = 0; r < ROWS; r++) ids[r] = (i * 31 + r * 7) % 250;
    const kr_tensor *want = kr_decoder_step(plain, at_once, ids), *got = kr_decoder_step(d, deferring, ids);
    kr_decoder_flush(plain, at_once);
    CHECK_OK(d->ctx);
    if (got && want) CHECK_SAME_BITS("logits", got, want);
}

/* The same token by a call, whose update of the state is applied at once. */
static void step_directly(const kr_network *net, kr_state *state, int i)
{
    int32_t ids[ROWS];
    for (int r = 0; r < ROWS; r++) ids[r] = (i * 31 + r * 7) % 250;
    kr_tape *tape = kr_tape_create(net->ctx, KR_TAPE_NO_GRAD);
    kr_call call;
    kr_call_init(&call);
    call.advance = state;
    CHECK(kr_network_step(tape, net, kr_from_data(tape, KR_DTYPE_I32, KR_SHAPE(ROWS), ids), &call).y, "step %d", i);
    kr_tape_destroy(tape);
}

/* reads: the state is looked at after every so many steps; 0: at the end alone. */
static void run_both(const char *device, kr_dtype dtype, int reads)
{
    kr_ctx *ctx = open_device(device);
    if (!ctx) return;
    kr_network *net = chat_network(ctx, KR_FAMILY_MAMBA2, dtype, 0, NULL);
    kr_state *deferring = primed(ctx, net), *at_once = primed(ctx, net), *direct = primed(ctx, net);
    kr_decoder *d = kr_decoder_create(net, ROWS), *plain = kr_decoder_create(net, ROWS);
    bool deferred = false;
    for (int i = 0; i < STEPS && !kr_ctx_failed(ctx); i++) {
        step_both(d, plain, deferring, at_once, i);
        step_directly(net, direct, i);
        deferred |= d->lazy.rows == ROWS && plain->lazy.rows == 0;
        if (reads && i % reads == reads - 1) compare_states("a state on the way", d, deferring, at_once);
    }
    CHECK(deferred, "%s: no update was deferred", device);
    compare_states("the state at the end", d, deferring, at_once);
    compare_states("the state of calls", d, deferring, direct);
    CHECK_OK(ctx);
    kr_decoder_destroy(d);
    kr_decoder_destroy(plain);
    kr_state_destroy(direct);
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

/* After a flush copies, choices of rows and calls of other kinds see all tokens. */
TEST(others_see_deferred_updates_after_a_flush)
{
    for (int n = 0; n < 3; n++) {
        kr_ctx *ctx = open_device(devices[n]);
        if (!ctx) continue;
        kr_network *net = chat_network(ctx, KR_FAMILY_MAMBA2, KR_DTYPE_F32, 0, NULL);
        kr_state *deferring = primed(ctx, net), *at_once = primed(ctx, net), *copy = primed(ctx, net);
        kr_decoder *d = kr_decoder_create(net, ROWS), *plain = kr_decoder_create(net, ROWS);
        for (int i = 0; i < 5; i++) step_both(d, plain, deferring, at_once, i);
        kr_decoder_flush(d, deferring);
        kr_state_copy(copy, deferring);
        compare_states("a copy", d, copy, at_once);
        for (int i = 5; i < 8; i++) step_both(d, plain, deferring, at_once, i);
        kr_decoder_flush(d, deferring);
        const int64_t rows[] = { 7, 2 };
        kr_tape *tape = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
        compare_states("rows", d, kr_state_select(tape, deferring, 2, rows), kr_state_select(tape, at_once, 2, rows));
        for (int i = 8; i < 10; i++) step_both(d, plain, deferring, at_once, i);
        kr_decoder_flush(d, deferring);
        int32_t ids[ROWS * 2];
        for (int i = 0; i < ROWS * 2; i++) ids[i] = i;
        kr_state *states[] = { deferring, at_once };
        for (int i = 0; i < 2; i++) {
            kr_call call;
            kr_call_init(&call);
            call.advance = states[i];
            kr_network_forward(tape, net, kr_from_data(tape, KR_DTYPE_I32, KR_SHAPE(ROWS, 2), ids), &call);
        }
        compare_states("two tokens more", d, deferring, at_once);
        for (int i = 10; i < 13; i++) step_both(d, plain, deferring, at_once, i);
        compare_states("and steps after them", d, deferring, at_once);
        CHECK_OK(ctx);
        kr_tape_destroy(tape);
        kr_decoder_destroy(d);
        kr_decoder_destroy(plain);
        kr_state_destroy(deferring);
        kr_state_destroy(at_once);
        kr_state_destroy(copy);
        kr_network_destroy(net);
        kr_ctx_destroy(ctx);
    }
}

/* One decoder, two states in turn: the updates of one are applied before the other's step. */
TEST(a_decoder_of_two_states)
{
    for (int n = 0; n < 3; n++) {
        kr_ctx *ctx = open_device(devices[n]);
        if (!ctx) continue;
        kr_network *net = chat_network(ctx, KR_FAMILY_MAMBA2, KR_DTYPE_F32, 0, NULL);
        kr_state *a = primed(ctx, net), *b = primed(ctx, net), *want = primed(ctx, net);
        kr_decoder *d = kr_decoder_create(net, ROWS), *plain = kr_decoder_create(net, ROWS);
        for (int i = 0; i < STEPS; i++) {
            int32_t ids[ROWS];
            for (int r = 0; r < ROWS; r++) ids[r] = (i * 31 + r * 7) % 250;
            kr_decoder_step(d, b, ids);
            step_both(d, plain, a, want, i);
        }
        compare_states("the first", d, a, want);
        compare_states("the second", d, b, want);
        CHECK(d->n_planned == 2, "%d steps were planned for two states", (int)d->n_planned);
        CHECK_OK(ctx);
        kr_decoder_destroy(d);
        kr_decoder_destroy(plain);
        kr_state_destroy(a);
        kr_state_destroy(b);
        kr_state_destroy(want);
        kr_network_destroy(net);
        kr_ctx_destroy(ctx);
    }
}

/* The n-th allocation of a decoder and its steps fails, for n = 1, 2, ...: nothing leaks, and the rest works again. */
static void fail_nth(const char *device, kr_family family)
{
    for (size_t n = 1; n < 400; n++) {
        kr_ctx *ctx = open_device(device);
        if (!ctx) return;
        kr_network *net = chat_network(ctx, family, KR_DTYPE_F32, 0, NULL);
        kr_state *state = primed(ctx, net);
        const int64_t before = (int64_t)kr_ctx_memory(ctx).live_bytes;
        const int32_t ids[ROWS] = { 0 };
        kr_ctx_fail_allocation(ctx, n);
        kr_decoder *d = kr_decoder_create(net, ROWS);
        bool done = d != NULL;
        for (int i = 0; i < 3 && done; i++) done = kr_decoder_step(d, state, ids) != NULL;
        kr_ctx_fail_allocation(ctx, 0);
        CHECK(done || kr_ctx_status(ctx) == KR_ERR_NOMEM, "allocation %d: %s", (int)n, kr_ctx_message(ctx));
        if (!done && d) {
            kr_ctx_clear(ctx);
            kr_state *again = primed(ctx, net);
            CHECK(kr_decoder_step(d, again, ids), "allocation %d: the next step: %s", (int)n, kr_ctx_message(ctx));
            kr_decoder_forget(d, again);
            kr_state_destroy(again);
        }
        kr_decoder_destroy(d);
        CHECK((int64_t)kr_ctx_memory(ctx).live_bytes == before, "allocation %d leaks", (int)n);
        kr_state_destroy(state);
        kr_network_destroy(net);
        kr_ctx_destroy(ctx);
        if (done) return;
    }
    CHECK(false, "%s: a step needs more than 400 allocations", device);
}

TEST(no_memory_for_a_decoder)
{
    for (int family = KR_FAMILY_MAMBA1; family <= KR_FAMILY_MAMBA3; family++) {
        fail_nth("cpu", (kr_family)family);
        fail_nth("mock", (kr_family)family);
    }
}
