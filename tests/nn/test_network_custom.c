/* test_network_custom.c - custom networks: their calls, states of several families, parts of states, errors. */
#include "tests/harness.h"

#include "nn/state_impl.h"

enum { D = 8, V = 11, B = 2, S = 6, SLOTS = 4 };

/* A Mamba-2 block, a stack of two Mamba-3 layers, a Mamba-1 layer. */
typedef struct mixed {
    kr_ctx *ctx;
    kr_mamba2 *block;
    kr_layers *stack;
    kr_layer *layer;
    kr_params *params;
    kr_tensor *embedding_wd, *head_wd;
    kr_network *net;
    int ndestroyed;
    int fault; /* 0: none; see forward */
} mixed;

enum { GOOD, KEEPS_CACHE, RETURNS_NULL, WRONG_SHAPE, FAILS, ALWAYS_ALL };

static kr_tensor *forward(void *user, kr_tape *tape, kr_tensor *ids, kr_state *state, const kr_call *call)
{
    mixed *m = user;
    CHECK(!call->state && !call->advance && state, "the call has a state of its own");
    kr_tensor *x = kr_embedding(tape, m->embedding_wd, ids);
    const kr_block_call first = { .cache = kr_state_cache(state, 0), .reset_bs = call->reset_bs };
    const kr_block_out a = kr_block_forward(tape, (const kr_block *)m->block, x, &first);
    kr_call inner = *call;
    inner.state = kr_state_part(tape, state, 1, 2);
    const kr_layers_out b = kr_layers_forward(tape, m->stack, kr_add(tape, x, a.y), &inner);
    const kr_block_call last = { .cache = kr_state_cache(state, 3), .reset_bs = call->reset_bs };
    const kr_block_out c = kr_layer_forward(tape, m->layer, b.y, &last);
    kr_state_set_cache(state, 0, &a.cache);
    if (m->fault != KEEPS_CACHE) kr_state_set_part(state, 1, b.state);
    kr_state_set_cache(state, 3, &c.cache);
    if (m->fault == RETURNS_NULL) return NULL;
    if (m->fault == FAILS) kr_ctx_fail(m->ctx, KR_ERR_IO, "the database is away");
    kr_tensor *y = kr_linear(tape, c.y, m->head_wd, NULL);
    if (m->fault == WRONG_SHAPE) return kr_slice(tape, y, 2, 0, V - 1);
    return call->last_logits_only && m->fault != ALWAYS_ALL ? kr_slice(tape, y, 1, -1, kr_tensor_dim(y, 1)) : y;
}

static void count_destroy(void *user)
{
    ((mixed *)user)->ndestroyed++;
}

static kr_custom_network custom_of(mixed *m, kr_network_part *parts)
{
    kr_custom_network custom;
    kr_custom_network_init(&custom);
    parts[0] = (kr_network_part){ .block = (const kr_block *)m->block };
    parts[1] = (kr_network_part){ .layers = m->stack };
    parts[2] = (kr_network_part){ .block = kr_layer_block(m->layer) };
    custom.params = m->params;
    custom.n_parts = 3;
    custom.parts = parts;
    custom.vocab_size = V;
    custom.forward = forward;
    custom.destroy = count_destroy;
    custom.user = m;
    return custom;
}

static void make_parts(mixed *m)
{
    kr_mamba1_config m1;
    kr_mamba2_config m2;
    kr_mamba3_config m3;
    kr_mamba1_config_init(&m1);
    kr_mamba2_config_init(&m2);
    kr_mamba3_config_init(&m3);
    m1.d_model = m2.d_model = m3.d_model = D;
    m1.state_rank = m2.state_rank = m3.state_rank = 4;
    m2.per_head_dim = m3.per_head_dim = 4;
    m->block = kr_mamba2_create(m->ctx, &m2);
    kr_layers_config stack;
    kr_layers_config_init(&stack);
    stack.block = kr_mamba3_block(&m3);
    stack.n_layers = 2;
    m->stack = kr_layers_create(m->ctx, &stack);
    kr_layer_config layer;
    kr_layer_config_init(&layer);
    layer.block = kr_mamba1_block(&m1);
    m->layer = kr_layer_create(m->ctx, &layer);
    m->params = kr_params_create(m->ctx);
    kr_params_join(m->params, "block.", kr_mamba2_params(m->block));
    kr_params_join(m->params, "stack.", kr_layers_params(m->stack));
    kr_params_join(m->params, "layer.", kr_layer_params(m->layer));
    m->embedding_wd = kr_params_linear(m->params, "embedding", KR_DTYPE_F32, V, D, NULL);
    m->head_wd = kr_params_linear(m->params, "head", KR_DTYPE_F32, V, D, NULL);
}

static void begin(mixed *m)
{
    kr_network_part parts[3];
    *m = (mixed){ .ctx = kr_test_ctx(1, NULL) };
    make_parts(m);
    const kr_custom_network custom = custom_of(m, parts);
    m->net = kr_network_custom(m->ctx, &custom);
    CHECK_OK(m->ctx);
}

static void end(mixed *m)
{
    CHECK_OK(m->ctx);
    kr_network_destroy(m->net);
    CHECK(m->ndestroyed == 1, "destroyed %d times", m->ndestroyed);
    kr_params_destroy(m->params);
    kr_layer_destroy(m->layer);
    kr_layers_destroy(m->stack);
    kr_mamba2_destroy(m->block);
    kr_ctx_destroy(m->ctx);
}

static kr_tensor *ids_of(kr_tape *tape, int64_t from, int64_t to)
{
    int32_t ids[B * S];
    int64_t n = 0;
    for (int64_t b = 0; b < B; b++)
        for (int64_t s = from; s < to; s++) ids[n++] = (int32_t)((5 * b + 3 * s * s + 1) % V);
    return kr_from_data(tape, KR_DTYPE_I32, KR_SHAPE(B, to - from), ids);
}

TEST(custom_network_reads_in_pieces)
{
    mixed m;
    begin(&m);
    kr_tape *tape = kr_tape_create(m.ctx, KR_TAPE_NO_GRAD);
    const kr_network_out whole = kr_network_forward(tape, m.net, ids_of(tape, 0, S), NULL);
    CHECK(whole.y && kr_tensor_dim(whole.y, 1) == S && kr_tensor_dim(whole.y, 2) == V && !whole.hidden, "y");
    CHECK(kr_state_slots(whole.state) == SLOTS && kr_network_width(m.net) == V, "sizes");
    kr_state *state = kr_network_state(m.net, B);
    CHECK(kr_state_cache(state, 0)->family == KR_FAMILY_MAMBA2 &&
              kr_state_cache(state, 2)->family == KR_FAMILY_MAMBA3 &&
              kr_state_cache(state, 3)->family == KR_FAMILY_MAMBA1,
          "families of the slots");
    for (int fault = GOOD; fault <= ALWAYS_ALL; fault += ALWAYS_ALL) {
        m.fault = fault;
        kr_call call;
        kr_call_init(&call);
        call.advance = state;
        call.last_logits_only = true;
        kr_state_zero(state);
        const kr_network_out first = kr_network_forward(tape, m.net, ids_of(tape, 0, 4), &call);
        CHECK(first.state == state && kr_tensor_rank(first.y) == 2, "the state that is advanced");
        kr_tensor *one = kr_reshape(tape, ids_of(tape, 4, 5), KR_SHAPE(B));
        const kr_network_out second = kr_network_step(tape, m.net, one, &call);
        call.advance = NULL;
        call.state = state;
        const kr_network_out third = kr_network_forward(tape, m.net, ids_of(tape, 5, S), &call);
        kr_tensor *want4 = kr_reshape(tape, kr_slice(tape, whole.y, 1, 4, 5), KR_SHAPE(B, V));
        kr_tensor *want5 = kr_reshape(tape, kr_slice(tape, whole.y, 1, 5, 6), KR_SHAPE(B, V));
        /* short sums in another order */
        CHECK_TENSORS("step", second.y, want4, 2e-6, 1);
        CHECK_TENSORS("last", third.y, want5, 2e-6, 1);
    }
    kr_state_destroy(state);
    kr_tape_destroy(tape);
    end(&m);
}

/* Rows are chosen, joined and copied in states of several families, too. */
TEST(custom_states_have_rows)
{
    mixed m;
    begin(&m);
    kr_tape *tape = kr_tape_create(m.ctx, KR_TAPE_NO_GRAD);
    const kr_network_out out = kr_network_forward(tape, m.net, ids_of(tape, 0, S), NULL);
    kr_state *rows[2];
    for (int64_t b = 0; b < B; b++) rows[b] = kr_state_select(tape, out.state, 1, &b);
    const kr_state *joined = kr_state_join(tape, 2, rows);
    kr_state *kept = kr_network_state(m.net, 1);
    CHECK(kr_state_copy(kept, joined) == KR_OK && kr_state_batch(kept) == B, "copy");
    for (int64_t s = 0; s < SLOTS; s++)
        for (int i = 0; i < kr_cache_count(kr_state_cache(kept, s)->family); i++)
            CHECK_SAME_BITS("cache", kr_state_cache(kept, s)->tensors[i], kr_state_cache(out.state, s)->tensors[i]);
    CHECK(kr_state_bytes(kept) == kr_state_bytes(out.state), "bytes");

    /* slots one by one into a state of the caller's */
    kr_state *other = kr_network_state(m.net, B);
    CHECK(kr_state_set_cache(other, 0, kr_state_cache(out.state, 0)) == KR_OK &&
              kr_state_set_part(other, 1, kr_state_part(tape, out.state, 1, 3)) == KR_OK,
          "parts");
    for (int64_t s = 0; s < SLOTS; s++) {
        kr_tensor *from = kr_state_cache(out.state, s)->tensors[0];
        CHECK_SAME_BITS("part", kr_state_cache(other, s)->tensors[0], from);
        CHECK(kr_tensor_data(kr_state_cache(other, s)->tensors[0]) != kr_tensor_data(from), "no copy");
    }
    const kr_layers_out alone = kr_layers_forward(tape, m.stack, kr_randn(tape, KR_DTYPE_F32, KR_SHAPE(B, 1, D)), NULL);
    CHECK(kr_state_set_part(other, 1, alone.state) == KR_OK && !kr_state_is_initial(other), "of a stack");
    kr_state_destroy(other);
    kr_state_destroy(kept);
    kr_tape_destroy(tape);
    end(&m);
}

TEST(custom_network_learns)
{
    mixed m;
    begin(&m);
    kr_tape *tape = kr_tape_create(m.ctx, KR_TAPE_GRAD);
    kr_optimizer *optimizer = kr_optimizer_create(m.ctx, m.params, NULL);
    double first = 0, last = 0;
    for (int step = 0; step < 20; step++) {
        kr_loss_call call;
        kr_loss_call_init(&call);
        call.ids_bs = ids_of(tape, 0, S);
        const kr_loss_out out = kr_network_loss(tape, m.net, &call);
        CHECK(out.scores.scored == B * (S - 1) && out.state, "%lld scored", (long long)out.scores.scored);
        kr_backward(tape, out.loss);
        last = kr_item(out.loss);
        if (step == 0) first = last;
        kr_optimizer_step(optimizer, 0.02, 1);
        kr_tape_reset(tape);
    }
    CHECK(last < first / 2, "loss from %g to %g", first, last);
    kr_optimizer_destroy(optimizer);
    kr_tape_destroy(tape);
    end(&m);
}

TEST(custom_network_faults)
{
    mixed m;
    begin(&m);
    kr_tape *tape = kr_tape_create(m.ctx, KR_TAPE_NO_GRAD);
    static const struct {
        int fault;
        kr_status status;
        const char *text;
    } faults[] = { { KEEPS_CACHE, KR_ERR_STATE,
                     "network.forward: the custom network's forward left the cache of slot 1" },
                   { RETURNS_NULL, KR_ERR_STATE, "forward returned NULL without an error" },
                   { WRONG_SHAPE, KR_ERR_SHAPE, "returned y [2, 6, 10], but must return [2, 6, 11]" },
                   { FAILS, KR_ERR_IO, "network.forward, custom network: the database is away" } };
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        m.fault = faults[i].fault;
        CHECK(!kr_network_forward(tape, m.net, ids_of(tape, 0, S), NULL).y, "fault %d", faults[i].fault);
        CHECK_ERROR_HAS(m.ctx, faults[i].status, faults[i].text);
        kr_tape_reset(tape);
    }
    m.fault = GOOD;
    kr_call call;
    kr_call_init(&call);
    call.skip_head = true;
    CHECK(!kr_network_forward(tape, m.net, ids_of(tape, 0, S), &call).y, "no head");
    CHECK_ERROR_HAS(m.ctx, KR_ERR_UNSUPPORTED, "skip_head is set");
    kr_tape_reset(tape);
    kr_tensor *streams[SLOTS];
    kr_call_init(&call);
    call.streams = streams;
    CHECK(!kr_network_forward(tape, m.net, ids_of(tape, 0, S), &call).y, "no streams");
    CHECK_ERROR_HAS(m.ctx, KR_ERR_UNSUPPORTED, "streams is given");
    kr_tape_reset(tape);
    CHECK(!kr_network_step_infinite(tape, m.net, kr_reshape(tape, ids_of(tape, 0, 1), KR_SHAPE(B))), "no stack");
    CHECK_ERROR_HAS(m.ctx, KR_ERR_UNSUPPORTED, "the network is custom");
    kr_tape_reset(tape);
    kr_call_init(&call);
    kr_state *alien = kr_state_create(m.ctx, m.stack, B);
    call.state = alien;
    CHECK(!kr_network_forward(tape, m.net, ids_of(tape, 0, S), &call).y, "a state of the stack alone");
    CHECK_ERROR_HAS(m.ctx, KR_ERR_ARG, "the state has 2 slots");
    kr_tape_reset(tape);
    kr_state_destroy(alien);
    CHECK(!kr_network_layers(m.net) && kr_network_params(m.net) == m.params, "parts of a custom network");
    kr_tape_destroy(tape);
    end(&m);
}

#define REFUSED(change, text)                                                                                          \
    do {                                                                                                               \
        kr_custom_network custom = custom_of(&m, parts);                                                               \
        change;                                                                                                        \
        CHECK(!kr_network_custom(m.ctx, &custom), "%s", text);                                                         \
        CHECK_ERROR_HAS(m.ctx, kr_ctx_status(m.ctx), text);                                                            \
    } while (0)

TEST(custom_network_errors)
{
    mixed m;
    kr_network_part parts[3];
    begin(&m);
    CHECK(!kr_network_custom(m.ctx, NULL), "no struct");
    CHECK_ERROR_HAS(m.ctx, KR_ERR_ARG, "network.custom: config is NULL");
    REFUSED(custom.params = NULL, "network.custom: params is NULL");
    REFUSED(custom.n_parts = 0, "network.custom: n_parts = 0");
    REFUSED(custom.parts = NULL, "n_parts = 3, but parts is NULL");
    REFUSED(custom.vocab_size = 0, "one of them must be above 0");
    REFUSED(custom.input_size = 3, "one of them must be above 0");
    REFUSED((custom.vocab_size = 0, custom.input_size = 3), "width = 0");
    REFUSED(parts[1].block = (const kr_block *)m.block, "parts[1] has both block and layers");
    REFUSED(parts[2].block = NULL, "parts[2] has neither block nor layers");
    REFUSED(parts[0].reserved[1] = &m, "reserved");
    kr_custom_network custom = custom_of(&m, parts);
    custom.forward = NULL;
    custom.destroy = NULL;
    kr_network *silent = kr_network_custom(m.ctx, &custom);
    kr_tape *tape = kr_tape_create(m.ctx, KR_TAPE_NO_GRAD);
    CHECK(silent && !kr_network_forward(tape, silent, ids_of(tape, 0, S), NULL).y, "no forward");
    CHECK_ERROR_HAS(m.ctx, KR_ERR_ARG, "it is for states only");
    kr_network_destroy(silent);
    CHECK(!kr_network_state(m.net, 0), "no rows");
    CHECK_ERROR(m.ctx, KR_ERR_ARG, "network.state: batch = 0, but must be at least 1");
    kr_tape_destroy(tape);
    end(&m);
}

TEST(state_part_errors)
{
    mixed m;
    begin(&m);
    kr_tape *tape = kr_tape_create(m.ctx, KR_TAPE_NO_GRAD);
    kr_state *own = kr_network_state(m.net, B), *narrow = kr_network_state(m.net, 1),
             *full = kr_network_state(m.net, B);
    kr_state_copy(full, kr_network_forward(tape, m.net, ids_of(tape, 0, S), NULL).state);
    CHECK(!kr_state_part(tape, full, 2, 3), "behind the end");
    CHECK_ERROR(m.ctx, KR_ERR_ARG, "state.part: slots 2 to 4, but the state has slots 0 to 3");
    kr_tape_reset(tape);
    CHECK(kr_state_set_part(own, 0, kr_state_part(tape, full, 1, 2)) == KR_ERR_ARG, "families");
    CHECK_ERROR(m.ctx, KR_ERR_ARG, "state.set_part: slot 0 of the state is mamba2, but the new one is mamba3");
    kr_tape_reset(tape);
    CHECK(kr_state_set_part(narrow, 1, kr_state_part(tape, full, 1, 2)) == KR_ERR_SHAPE, "rows");
    CHECK_ERROR(m.ctx, KR_ERR_SHAPE, "state.set_part: the state has 1 rows, but the new slots have 2");
    kr_tape_reset(tape);
    CHECK(kr_state_set_part(own, 0, NULL) == KR_ERR_ARG, "nothing");
    CHECK_ERROR(m.ctx, KR_ERR_ARG, "state.set_part: part is NULL");
    kr_tape_reset(tape);
    CHECK(kr_state_set_cache(own, 0, NULL) == KR_ERR_ARG, "nothing");
    CHECK_ERROR(m.ctx, KR_ERR_ARG, "state.set_cache: cache is NULL");
    kr_tape_reset(tape);
    CHECK(kr_state_set_cache(own, 9, kr_state_cache(full, 0)) == KR_ERR_ARG, "no such slot");
    CHECK_ERROR_HAS(m.ctx, KR_ERR_ARG, "state.set_cache: slots 9 to 9");
    kr_tape_reset(tape);
    CHECK(kr_state_set_cache(narrow, 0, kr_state_cache(full, 0)) == KR_ERR_SHAPE, "rows");
    CHECK_ERROR_HAS(m.ctx, KR_ERR_SHAPE, "with 1 rows");
    kr_tape_reset(tape);
    kr_cache half = *kr_state_cache(full, 0);
    half.tensors[1] = NULL;
    CHECK(kr_state_set_cache(own, 0, &half) == KR_ERR_ARG, "half a cache");
    CHECK_ERROR_HAS(m.ctx, KR_ERR_ARG, "is NULL; a cache has all its tensors");
    kr_tape_reset(tape);
    CHECK(kr_state_set_cache(NULL, 0, &half) == KR_ERR_ARG && kr_state_set_part(NULL, 0, own) == KR_ERR_ARG, "NULL");
    CHECK(kr_state_is_initial(own), "an error has changed the state");
    kr_state_destroy(full);
    kr_state_destroy(own);
    kr_state_destroy(narrow);
    kr_tape_destroy(tape);
    end(&m);
}

TEST(custom_network_allocation_may_fail)
{
    mixed m;
    kr_network_part parts[3];
    begin(&m);
    const size_t before = kr_ctx_memory(m.ctx).live_bytes;
    const kr_custom_network custom = custom_of(&m, parts);
    kr_network *net = NULL;
    size_t n = 0;
    while (!net && n < 100) {
        kr_ctx_fail_allocation(m.ctx, ++n);
        net = kr_network_custom(m.ctx, &custom);
        kr_ctx_fail_allocation(m.ctx, 0);
        if (net) break;
        CHECK_ERROR_HAS(m.ctx, KR_ERR_NOMEM, "no memory for");
        CHECK(kr_ctx_memory(m.ctx).live_bytes == before && m.ndestroyed == 0, "allocation %zu", n);
    }
    CHECK(net && n >= 2, "made after %zu refused allocations", n);
    kr_network_destroy(net);
    m.ndestroyed = 0;
    end(&m);
}
