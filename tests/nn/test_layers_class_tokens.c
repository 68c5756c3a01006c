/* test_layers_class_tokens.c - class tokens at all levels: against splicing by hand, in chunks, steps and primes. */
#include "tests/nn/networks.h"
#include "tests/nn/networks_by_hand.h"

#define START                                                                                                          \
    {                                                                                                                  \
        .kind = KR_CLASS_TOKEN_START                                                                                   \
    }
#define MIDDLE                                                                                                         \
    {                                                                                                                  \
        .kind = KR_CLASS_TOKEN_MIDDLE                                                                                  \
    }
#define END                                                                                                            \
    {                                                                                                                  \
        .kind = KR_CLASS_TOKEN_END                                                                                     \
    }
#define CUSTOM(k)                                                                                                      \
    {                                                                                                                  \
        .kind = KR_CLASS_TOKEN_CUSTOM, .at = (k)                                                                       \
    }
#define COUNT(list) (int)(sizeof(list) / sizeof *(list))

/* ---- places ---- */

static const kr_class_token tokens_of_net[] = { END, START, MIDDLE, CUSTOM(1) };
static const kr_class_token latents_of_stack[] = { START, CUSTOM(2), END, START };
static const kr_layer_class_token latents_of_layers[] = {
    { 0, START }, { 1, MIDDLE }, { 0, END }, { 1, CUSTOM(1) }, { 1, END }
};

static void at_all_levels(net_recipe *r)
{
    if (r->ends == LATENT) r->network.class_tokens = tokens_of_net;
    if (r->ends == LATENT) r->network.n_class_tokens = COUNT(tokens_of_net);
    r->layers.latents = latents_of_stack;
    r->layers.n_latents = COUNT(latents_of_stack);
    r->layers.layer_latents = latents_of_layers;
    r->layers.n_layer_latents = COUNT(latents_of_layers);
}

/* Some never come: what is inside counts those that do. */
static void some_beyond(net_recipe *r)
{
    static const kr_class_token far[] = { CUSTOM(40), START, CUSTOM(6) }, last[] = { END, CUSTOM(50), MIDDLE };
    static const kr_layer_class_token each[] = { { 0, END }, { 0, CUSTOM(60) }, { 1, END } };
    if (r->ends == LATENT) r->network.class_tokens = far;
    if (r->ends == LATENT) r->network.n_class_tokens = COUNT(far);
    r->layers.latents = last;
    r->layers.n_latents = COUNT(last);
    r->layers.layer_latents = each;
    r->layers.n_layer_latents = COUNT(each);
}

/* Places that no length changes. */
static void of_any_length(net_recipe *r)
{
    static const kr_class_token first[] = { START, CUSTOM(3) };
    static const kr_layer_class_token each[] = { { 0, CUSTOM(0) }, { 1, CUSTOM(4) }, { 1, START } };
    if (r->ends == LATENT) r->network.class_tokens = first;
    if (r->ends == LATENT) r->network.n_class_tokens = COUNT(first);
    r->layers.latents = first + 1;
    r->layers.n_latents = 1;
    r->layers.layer_latents = each;
    r->layers.n_layer_latents = COUNT(each);
}

static void in_one_layer(net_recipe *r)
{
    static const kr_layer_class_token each[] = { { 1, START }, { 1, CUSTOM(2) }, { 1, END } };
    r->layers.layer_latents = each;
    r->layers.n_layer_latents = COUNT(each);
}

static void under_gates(net_recipe *r)
{
    at_all_levels(r);
    r->layers.n_virtual = 4;
    r->layers.d_intermediate = 6;
    r->layers.residual = (kr_residual){
        .kind = KR_RESIDUAL_MULTI_GATE, .n_stream = 2, .init_bias = -1, .init_bias_step = 0.5, .per_virtual_layer = true
    };
}

static void under_gates_in_one_layer(net_recipe *r)
{
    in_one_layer(r);
    r->layers.n_virtual = 5;
    r->layers.residual = (kr_residual){ .kind = KR_RESIDUAL_MULTI_GATE,
                                        .n_stream = 3,
                                        .init_bias = -1,
                                        .init_bias_step = 0.5,
                                        .per_virtual_layer = false };
    r->layers.ignore_first_residual = true;
}

static const struct {
    const char *name;
    void (*set)(net_recipe *r);
    bool has_length; /* some place depends on it */
} variants[] = { { "all levels", at_all_levels, true },  { "some beyond the end", some_beyond, true },
                 { "any length", of_any_length, false }, { "one layer", in_one_layer, true },
                 { "under gates", under_gates, true },   { "under gates, one layer", under_gates_in_one_layer, true } };
enum { NVARIANTS = sizeof variants / sizeof *variants, NS = 6 };

static const net_ends ends_of[] = { LATENT, BARE, VOCAB };

static net_recipe recipe_at(int family, int which, net_ends ends, kr_dtype dtype)
{
    net_recipe r = net_recipe_of((kr_family)family, ends);
    net_recipe_type(&r, dtype);
    variants[which].set(&r);
    return r;
}

/* ---- laws ---- */

TEST(class_tokens_as_spliced_by_hand)
{
    for (int family = 0; family < NET_FAMILIES; family++)
        for (int i = 0; i < NVARIANTS; i++)
            for (int64_t ns = 1; ns <= NS; ns += 5) {
                net_recipe r = recipe_at(family, i, ends_of[(family + i) % 3], KR_DTYPE_F64);
                net n;
                if (!net_open(&n, variants[i].name, &r, 1)) continue;
                outcome *got = results_of(&n, 2, ns, false), *want = results_of(&n, 2, ns, true);
                net_compare(&n, &(net_problem){ .nb = 2 }, "against splicing by hand", got, want);
                outcome_free(got);
                outcome_free(want);
                net_close(&n);
            }
}

static const net_mode ways[] = {
    { .name = "steps", .parts = { STEP, STEP, STEP, STEP, STEP, STEP } },
    { .name = "2 + 4", .parts = { 2, 4 } },
    { .name = "step + 3 + 2", .parts = { STEP, 3, 2 } },
    { .name = "primed steps", .parts = { PRIME, STEP, PRIME, PRIME, STEP, STEP, PRIME, STEP, STEP, STEP, PRIME } },
    { .name = "prime + 3 + prime + 3", .parts = { PRIME, 3, PRIME, 3 } },
    { .name = "prime + 6", .parts = { PRIME, 6 } },
};

static void check_ways(int family, int which, net_ends ends, kr_dtype dtype, bool from_state)
{
    net_recipe r = recipe_at(family, which, ends, dtype);
    net n;
    if (!net_open(&n, variants[which].name, &r, 1)) return;
    net_problem p = { .nb = 2, .ns = NS, .from_state = from_state, .is_announced = true };
    net_same(&n, &p, ways, COUNT(ways));
    if (!variants[which].has_length) {
        p.full_len = KR_LENGTH_UNKNOWN;
        net_same(&n, &p, ways, COUNT(ways));
    }
    /* a forward without an announcement is a whole sequence */
    const net_problem unannounced = { .nb = 2, .ns = NS, .from_state = from_state };
    p.full_len = 0;
    outcome *got = net_run(&n, &unannounced, &(net_mode){ .name = "unannounced" });
    outcome *want = net_run(&n, &p, &(net_mode){ .name = "announced" });
    compare_bits(n.name, got, want, true);
    outcome_free(got);
    outcome_free(want);
    net_close(&n);
}

TEST(class_tokens_in_chunks_steps_and_primes)
{
    for (int family = 0; family < NET_FAMILIES; family++)
        for (int i = 0; i < NVARIANTS; i++)
            for (int k = 0; k < 3; k++) {
                const int from_state = (family + i + k) % 2;
                if (kr_test_quick() && k != (family + i) % 3) continue;
                check_ways(family, i, ends_of[k], k == 0 ? KR_DTYPE_F32 : KR_DTYPE_F64, from_state);
                if (k != 0) check_ways(family, i, ends_of[k], KR_DTYPE_F64, !from_state);
            }
}

/* ---- single calls ---- */

static net opened(net_ends ends, void (*set)(net_recipe *), kr_dtype dtype)
{
    net_recipe r = net_recipe_of(KR_FAMILY_MAMBA2, ends);
    net_recipe_type(&r, dtype);
    if (set) set(&r);
    net n;
    if (!net_open(&n, "class tokens", &r, 1)) exit(2);
    return n;
}

static kr_tensor *token(net *n, kr_tensor *x, int64_t at)
{
    return kr_reshape(n->tape, kr_slice(n->tape, x, 1, at, at + 1), KR_SHAPE(kr_tensor_dim(x, 0), kr_tensor_dim(x, 2)));
}

static kr_call call_from(const kr_state *state)
{
    kr_call call;
    kr_call_init(&call);
    call.state = state;
    return call;
}

static void check_same_state(const char *what, const kr_state *got, const kr_state *want, bool same_cursors)
{
    for (int64_t v = 0; v < want->nslots; v++)
        for (int i = 0; i < kr_slot_kind(want, v)->ncache; i++) {
            const kr_tensor *a = got->slots[v].tensors[i], *b = want->slots[v].tensors[i];
            if (CHECK(!a == !b, "%s: slot %d is initial in one only", what, (int)v) && a)
                CHECK_TENSORS(what, a, b, 1e-5, 0.1);
        }
    if (!same_cursors) return;
    bool same = got->cursors.is_on == want->cursors.is_on && got->cursors.full_len == want->cursors.full_len &&
                got->cursors.network == want->cursors.network && got->cursors.stack == want->cursors.stack;
    for (int64_t v = 0; v < want->nslots; v++) same = same && got->cursors.layers[v] == want->cursors.layers[v];
    CHECK(same, "%s: the class tokens stand elsewhere", what);
}

/* A step after a prime leaves what the step alone leaves, cursors included; rounding is that of other chunks. */
TEST(a_prime_before_a_step_changes_nothing)
{
    net n = opened(LATENT, under_gates, KR_DTYPE_F32);
    kr_state *state = kr_state_create(n.ctx, n.layers, 2);
    kr_state_announce(state, NS);
    kr_tensor *x = net_input(&n, n.tape, 2, NS);
    kr_state *alone = state, *primed = state;
    for (int64_t s = 0; s < NS; s++) {
        kr_call call = call_from(alone);
        const net_out a = net_call(&n, n.tape, KR_RUN_STEP, token(&n, x, s), &call);
        call = call_from(primed);
        const net_out p = net_call(&n, n.tape, KR_RUN_PRIME, NULL, &call);
        call = call_from(p.state);
        const net_out b = net_call(&n, n.tape, KR_RUN_STEP, token(&n, x, s), &call);
        CHECK_OK(n.ctx);
        CHECK_TENSORS("y", b.y, a.y, 1e-5, 0.1);
        check_same_state("state", b.state, a.state, true);
        alone = a.state;
        primed = b.state;
    }
    kr_state_destroy(state);
    net_close(&n);
}

TEST(a_prime_with_nothing_due_changes_nothing)
{
    net n = opened(LATENT, at_all_levels, KR_DTYPE_F32), plain = opened(LATENT, NULL, KR_DTYPE_F32);
    kr_state *state = net_random_state(&n, 2);
    kr_tensor *x = net_input(&n, n.tape, 2, NS);
    /* at the announced end */
    kr_state_announce(state, NS);
    kr_call call = call_from(state);
    const net_out whole = net_call(&n, n.tape, KR_RUN_FORWARD, x, &call);
    const kr_state *unannounced = net_call(&n, n.tape, KR_RUN_FORWARD, x, NULL).state;
    CHECK(!unannounced->cursors.is_on && unannounced->cursors.network == 0 && unannounced->cursors.layers[0] == 0,
          "positions are kept that were not requested");
    call = call_from(whole.state);
    const net_out after = net_call(&n, n.tape, KR_RUN_PRIME, NULL, &call);
    CHECK_OK(n.ctx);
    CHECK(after.y == NULL && after.state != NULL, "a prime at the end gives something");
    check_same_state("at the end", after.state, whole.state, true);
    /* primed twice */
    call = call_from(state);
    const net_out once = net_call(&n, n.tape, KR_RUN_PRIME, NULL, &call);
    call = call_from(once.state);
    const net_out twice = net_call(&n, n.tape, KR_RUN_PRIME, NULL, &call);
    CHECK(once.y != NULL && twice.y == NULL, "primed twice");
    check_same_state("primed twice", twice.state, once.state, true);
    /* without class tokens, and initial: it stays initial */
    kr_state *initial = kr_state_create(plain.ctx, plain.layers, 2);
    call = call_from(initial);
    const net_out none = net_call(&plain, plain.tape, KR_RUN_PRIME, NULL, &call);
    CHECK_OK(plain.ctx);
    CHECK(none.y == NULL && none.state && kr_state_is_initial(none.state) && kr_state_batch(none.state) == 2,
          "a prime without class tokens");
    kr_state_announce(initial, NS);
    const net_out announced = net_call(&plain, plain.tape, KR_RUN_PRIME, NULL, &call);
    CHECK(announced.y == NULL && kr_state_is_initial(announced.state), "a prime without class tokens, announced");
    kr_state_destroy(initial);
    kr_state_destroy(state);
    net_close(&n);
    net_close(&plain);
}

/* With a single class token each call's last token is known. */
TEST(a_step_returns_the_last_token_it_emitted)
{
    static const kr_class_token end_only[] = { END }, start_only[] = { START };
    for (int which = 0; which < 2; which++) {
        net_recipe r = net_recipe_of(KR_FAMILY_MAMBA2, LATENT);
        r.network.class_tokens = which ? start_only : end_only;
        r.network.n_class_tokens = 1;
        net n;
        if (!net_open(&n, "one class token", &r, 1)) return;
        kr_state *state = kr_state_create(n.ctx, n.layers, 2);
        kr_state_announce(state, 3);
        kr_tensor *x = net_input(&n, n.tape, 2, 3);
        kr_tensor *whole = net_call(&n, n.tape, KR_RUN_FORWARD, x, NULL).y;
        CHECK(kr_tensor_dim(whole, 1) == 4, "3 tokens and a class token");
        kr_state *at = state;
        for (int64_t s = 0; s < 3; s++) {
            kr_call call = call_from(at);
            const net_out out = net_call(&n, n.tape, KR_RUN_STEP, token(&n, x, s), &call);
            const int64_t index = which ? s + 1 : s == 2 ? 3 : s; /* the closing step gives the end class token's */
            CHECK_TENSORS("step", out.y, token(&n, whole, index), 1e-5, 0.1);
            at = out.state;
        }
        CHECK_OK(n.ctx);
        kr_state_destroy(state);
        net_close(&n);
    }
}

/* Past the announced length a custom class token lands before the next token, whatever its place was. */
TEST(a_custom_place_past_the_end)
{
    static const kr_class_token far[] = { CUSTOM(9), END };
    net_recipe r = net_recipe_of(KR_FAMILY_MAMBA3, LATENT);
    r.network.class_tokens = far;
    r.network.n_class_tokens = 2;
    net n;
    if (!net_open(&n, "far", &r, 1)) return;
    kr_tensor *x = net_input(&n, n.tape, 2, 4), *short_x = kr_slice(n.tape, x, 1, 0, 3);
    CHECK(kr_tensor_dim(net_call(&n, n.tape, KR_RUN_FORWARD, short_x, NULL).y, 1) == 4, "3 tokens, and the end");
    kr_state *state = kr_state_create(n.ctx, n.layers, 2);
    kr_state_announce(state, 3);
    kr_call call = call_from(state);
    const net_out all = net_call(&n, n.tape, KR_RUN_FORWARD, x, &call),
                  most = net_call(&n, n.tape, KR_RUN_FORWARD, short_x, &call);
    CHECK(kr_tensor_dim(all.y, 1) == 6 && kr_tensor_dim(most.y, 1) == 4, "0 1 2 end far 3");
    call = call_from(most.state);
    const net_out last = net_call(&n, n.tape, KR_RUN_STEP, token(&n, x, 3), &call);
    CHECK_OK(n.ctx);
    CHECK_TENSORS("the token past the end", last.y, token(&n, all.y, 5), 1e-5, 0.1);
    kr_state_destroy(state);
    net_close(&n);
}

/* Steps, and states without an announced length, have no class tokens. */
TEST(a_step_without_an_announcement_injects_nothing)
{
    net n = opened(LATENT, of_any_length, KR_DTYPE_F32), plain = opened(LATENT, NULL, KR_DTYPE_F32);
    for (int64_t i = 0; i < kr_params_count(plain.params); i++) {
        const kr_param_row *row = kr_params_at(plain.params, i);
        const kr_tensor *from = kr_params_find(n.params, row->name)->tensor;
        kr_param_write(row->tensor, KR_DTYPE_F32, kr_test_copy(from), kr_tensor_count(from));
    }
    const net_out a = net_call(&n, n.tape, KR_RUN_STEP, token(&n, net_input(&n, n.tape, 2, 1), 0), NULL);
    const net_out b =
        net_call(&plain, plain.tape, KR_RUN_STEP, token(&plain, net_input(&plain, plain.tape, 2, 1), 0), NULL);
    CHECK_SAME_BITS("y", a.y, b.y);
    check_same_state("state", a.state, b.state, true);
    kr_call call = call_from(a.state);
    const net_out primed = net_call(&n, n.tape, KR_RUN_PRIME, NULL, &call);
    CHECK(!primed.y, "a prime without an announcement gives something");
    CHECK_OK(n.ctx);
    CHECK_OK(plain.ctx);
    net_close(&n);
    net_close(&plain);
}

/* Rows of halves that come before any token are added up in f32 as the others are. */
TEST(class_tokens_of_halves_before_a_token)
{
    for (int k = 1; k < 3; k++) {
        net n = opened(ends_of[k], k == 1 ? in_one_layer : under_gates_in_one_layer, KR_DTYPE_BF16);
        kr_state *state = kr_state_create(n.ctx, n.layers, 2);
        kr_state_announce(state, NS);
        kr_tensor *x = kr_slice(n.tape, net_input(&n, n.tape, 2, 1), 1, 0, 1);
        kr_call call = call_from(state);
        const net_out whole = net_call(&n, n.tape, KR_RUN_FORWARD, x, &call);
        const net_out primed = net_call(&n, n.tape, KR_RUN_PRIME, NULL, &call);
        call = call_from(primed.state);
        const net_out step = net_call(&n, n.tape, KR_RUN_FORWARD, x, &call);
        CHECK_OK(n.ctx);
        CHECK(primed.y && kr_tensor_dtype(primed.y) == kr_tensor_dtype(whole.y), "a primed row has another type");
        const int64_t last = k - 1; /* of the primed: layer 1 is run once, or twice */
        kr_tensor *want = kr_reshape(n.tape, kr_slice(n.tape, whole.y, 1, last, last + 1), kr_tensor_shape(primed.y));
        CHECK_TENSORS("primed", primed.y, want, 1e-5, 0.1);
        CHECK_TENSORS("after it", step.y, kr_slice(n.tape, whole.y, 1, last + 1, last + 2), 1e-5, 0.1);
        kr_state_destroy(state);
        net_close(&n);
    }
}

/* ---- nothing but class tokens ---- */

TEST(a_chunk_of_nothing_but_class_tokens)
{
    static const kr_class_token end_only[] = { END };
    net_recipe r = net_recipe_of(KR_FAMILY_MAMBA1, LATENT);
    r.network.class_tokens = end_only;
    r.network.n_class_tokens = 1;
    net n;
    if (!net_open(&n, "end", &r, 1)) return;
    kr_tensor *none = kr_zeros(n.tape, KR_DTYPE_F32, KR_SHAPE(2, 0, NET_INPUT));
    const net_out only = net_call(&n, n.tape, KR_RUN_FORWARD, none, NULL);
    CHECK_OK(n.ctx);
    CHECK(only.y && kr_tensor_dim(only.y, 1) == 1, "the end of nothing");
    /* the same row as a token of a network without class tokens */
    kr_network_config plain = *net_network_config(&r);
    plain.n_class_tokens = 0;
    kr_network *twin = kr_network_create(n.ctx, &plain);
    for (int64_t i = 0; i < kr_params_count(kr_network_params(twin)); i++) {
        const kr_param_row *row = kr_params_at(kr_network_params(twin), i);
        const kr_tensor *from = kr_params_find(n.params, row->name)->tensor;
        kr_param_write(row->tensor, KR_DTYPE_F32, kr_test_copy(from), kr_tensor_count(from));
    }
    kr_tensor *row = kr_params_find(n.params, "class_tokens")->tensor;
    kr_tensor *x = kr_expand(n.tape, row, KR_SHAPE(2, 1, NET_INPUT));
    CHECK_SAME_BITS("the end class token", only.y, kr_network_forward(n.tape, twin, x, NULL).y);
    CHECK_OK(n.ctx);
    kr_network_destroy(twin);
    net_close(&n);
}

/* ---- errors ---- */

static void refused(net *n, kr_run_mode mode, kr_tensor *x, const kr_call *call, kr_status status, const char *text)
{
    const net_out out = net_call(n, n->tape, mode, x, call);
    CHECK(!out.y && !out.state, "not refused: %s", text);
    CHECK_ERROR(n->ctx, status, text);
    kr_tape_reset(n->tape);
}

TEST(class_tokens_refuse)
{
    net n = opened(LATENT, at_all_levels, KR_DTYPE_F32);
    kr_state *state = kr_state_create(n.ctx, n.layers, 2);
    kr_state_announce(state, KR_LENGTH_UNKNOWN);
    kr_call call = call_from(state);
#define X net_input(&n, n.tape, 2, 3)
    const char *unknown = "network.forward: a middle or end class token needs the sequence's length; announce it with "
                          "kr_state_announce";
    refused(&n, KR_RUN_FORWARD, X, &call, KR_ERR_STATE, unknown);
    refused(
        &n, KR_RUN_STEP, token(&n, X, 0), &call, KR_ERR_STATE,
        "network.step: a middle or end class token needs the sequence's length; announce it with kr_state_announce");
    refused(
        &n, KR_RUN_PRIME, NULL, &call, KR_ERR_STATE,
        "network.prime: a middle or end class token needs the sequence's length; announce it with kr_state_announce");
    refused(&n, KR_RUN_STEP, token(&n, X, 0), NULL, KR_ERR_STATE,
            "network.step: middle and end class tokens need the sequence's length; announce it with kr_state_announce");
    refused(&n, KR_RUN_PRIME, NULL, NULL, KR_ERR_ARG,
            "network.prime: there is no state; give one with an announced length");
    kr_state_zero(state); /* and nothing is announced any more */
    refused(
        &n, KR_RUN_PRIME, NULL, &call, KR_ERR_STATE,
        "network.prime: middle and end class tokens need the sequence's length; announce it with kr_state_announce");
    kr_call_init(&call);
    call.seq_start_bs = kr_zeros(n.tape, KR_DTYPE_I32, KR_SHAPE(2, 3));
    refused(&n, KR_RUN_FORWARD, X, &call, KR_ERR_ARG,
            "network.forward: seq_start is given, but class tokens cannot be combined with packed rows or resets");
    kr_call_init(&call);
    call.reset_bs = kr_zeros(n.tape, KR_DTYPE_I32, KR_SHAPE(2, 3));
    refused(&n, KR_RUN_FORWARD, X, &call, KR_ERR_ARG,
            "network.forward: reset is given, but class tokens cannot be combined with packed rows or resets");
    CHECK_OK(n.ctx);
    kr_state_destroy(state);
    net_close(&n);
}
