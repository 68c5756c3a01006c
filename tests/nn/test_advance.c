/* test_advance.c - states that calls move on in place: the bits of the pure call, no memory, and what a failure leaves. */
#include "tests/nn/networks.h"

static void plain(net_recipe *r)
{
    (void)r;
}

/* Heads of 5 and 7 channels: rows of a state that vectors overlap. */
static void odd(net_recipe *r)
{
    r->mamba1.d_inner = 15;
    r->mamba2.per_head_dim = 5;
    r->mamba2.expand = 5;
    r->mamba3.per_head_dim = 7;
    r->mamba3.expand = 7;
    r->mamba3.is_mimo = r->mamba3.has_outproj_norm = true;
    r->mamba3.mimo_rank = 2;
    r->mamba1.has_learnable_init_state = r->mamba2.has_learnable_init_state = r->mamba3.has_learnable_init_state = true;
    r->layers.residual = (kr_residual){ .kind = KR_RESIDUAL_MULTI_GATE,
                                        .n_stream = 2,
                                        .init_bias = -1,
                                        .init_bias_step = 0.5,
                                        .per_virtual_layer = false };
}

static void other_ways(net_recipe *r)
{
    r->mamba2.path.algorithm = KR_SSD_SERIAL;
    r->mamba3.pathway = KR_MAMBA3_PATHWAY_DOUBLE;
    r->layers.n_virtual = 5;
}

static void of_halves(net_recipe *r)
{
    net_recipe_type(r, KR_DTYPE_BF16);
}

static void of_doubles(net_recipe *r)
{
    net_recipe_type(r, KR_DTYPE_F64);
}

static void (*const changes[])(net_recipe *) = { plain, odd, other_ways, of_halves, of_doubles };
enum { CHANGES = sizeof changes / sizeof *changes };

static void open_net(net *n, int family, int change, int threads)
{
    net_recipe r = net_recipe_of((kr_family)family, VOCAB);
    changes[change](&r);
    if (!net_open(n, "advance", &r, threads)) exit(2);
}

static void same_states(const kr_state *a, const kr_state *b)
{
    for (int64_t v = 0; v < kr_state_slots(a); v++)
        for (int i = 0; i < kr_slot_kind(a, v)->ncache; i++)
            CHECK_SAME_BITS("state", kr_state_cache(a, v)->tensors[i], kr_state_cache(b, v)->tensors[i]);
}

/* Tokens from..to-1 of x [b s], a step where there is one. */
static kr_tensor *call_part(net *n, kr_tensor *x, int64_t from, int64_t to, const kr_call *call, kr_state **state)
{
    kr_tape *t = n->tape;
    kr_tensor *part = kr_slice(t, x, 1, from, to);
    if (to - from == 1) part = kr_reshape(t, part, KR_SHAPE(kr_tensor_dim(x, 0)));
    const net_out out = net_call(n, t, to - from == 1 ? KR_RUN_STEP : KR_RUN_FORWARD, part, call);
    *state = out.state;
    CHECK_OK(n->ctx);
    return out.y;
}

static const int64_t cuts[] = { 0, 5, 6, 7, 9, 10 };
enum { CALLS = 5 };

/* One sequence by calls that return states, and by calls that advance one. */
static void run_both(net *n, bool is_announced)
{
    kr_tape *t = n->tape;
    const kr_scope scope = kr_no_grad_begin(t);
    kr_state *pure = kr_state_create(n->ctx, n->layers, 2), *moved = kr_state_create(n->ctx, n->layers, 2), *out;
    if (is_announced) kr_state_announce(pure, 10);
    if (is_announced) kr_state_announce(moved, 10);
    kr_tensor *x = net_input(n, t, 2, 10);
    const void *data = NULL;
    for (int i = 0; i < CALLS; i++) {
        kr_call call;
        kr_call_init(&call);
        call.state = pure;
        kr_tensor *want = call_part(n, x, cuts[i], cuts[i + 1], &call, &out);
        kr_state_copy(pure, out);
        call.state = NULL;
        call.advance = moved;
        kr_tensor *got = call_part(n, x, cuts[i], cuts[i + 1], &call, &out);
        CHECK(out == moved, "the call gives another state");
        CHECK_SAME_BITS("y", got, want);
        same_states(moved, pure);
        const kr_tensor *first = kr_state_cache(moved, 0)->tensors[n->kind->ncache - 1];
        if (i > 0) CHECK(kr_tensor_data(first) == data, "the state's memory is another");
        data = kr_tensor_data(first);
    }
    kr_state_destroy(pure);
    kr_state_destroy(moved);
    kr_no_grad_end(t, scope, 0, NULL);
    CHECK_OK(n->ctx);
}

TEST(an_advanced_state_has_the_bits_of_a_new_one)
{
    for (int family = 0; family < NET_FAMILIES; family++)
        for (int change = 0; change < CHANGES; change++)
            for (int threads = 1; threads <= 3; threads += 2) {
                net n;
                open_net(&n, family, change, threads);
                run_both(&n, false);
                net_close(&n);
            }
}

/* Class tokens: some calls have more tokens than the caller gave, and the state knows where they stand. */
TEST(an_advanced_state_knows_its_class_tokens)
{
    static const kr_class_token class_tokens[] = { { .kind = KR_CLASS_TOKEN_START },
                                                   { .kind = KR_CLASS_TOKEN_MIDDLE },
                                                   { .kind = KR_CLASS_TOKEN_END } };
    for (int family = 0; family < NET_FAMILIES; family++) {
        net_recipe r = net_recipe_of((kr_family)family, VOCAB);
        r.layers.latents = class_tokens;
        r.layers.n_latents = 3;
        net n;
        if (!net_open(&n, "class tokens", &r, 1)) exit(2);
        run_both(&n, true);
        net_close(&n);
    }
}

/* Packed rows and rows that forget: states for each sequence, states for each row. */
TEST(an_advanced_state_of_packed_rows)
{
    static const int32_t starts[14] = { 0, 0, 0, 1, 0, 0, 0, 1, 0, 1, 0, 0, 0, 0 };
    for (int family = 0; family < NET_FAMILIES; family++)
        for (int is_reset = 0; is_reset < 2; is_reset++) {
            net n;
            open_net(&n, family, 0, 1);
            kr_tape *t = kr_tape_create(n.ctx, KR_TAPE_NO_GRAD);
            kr_state *state = net_random_state(&n, is_reset ? 2 : 4);
            kr_call call;
            kr_call_init(&call);
            kr_tensor *starts_bs = kr_from_data(t, KR_DTYPE_I32, KR_SHAPE(2, 7), starts), *x = net_input(&n, t, 2, 7);
            if (is_reset) call.reset_bs = starts_bs;
            else call.seq_start_bs = starts_bs;
            call.state = state;
            const net_out pure = net_call(&n, t, KR_RUN_FORWARD, x, &call);
            call.state = NULL;
            call.advance = state;
            const net_out moved = net_call(&n, t, KR_RUN_FORWARD, x, &call);
            CHECK_OK(n.ctx);
            CHECK_SAME_BITS("y", moved.y, pure.y);
            same_states(state, pure.state);
            kr_state_destroy(state);
            kr_tape_destroy(t);
            net_close(&n);
        }
}

static size_t peak_of(net *n, kr_state *state, bool advances, bool drops)
{
    kr_tape *t = kr_tape_create(n->ctx, KR_TAPE_NO_GRAD);
    kr_call call;
    kr_call_init(&call);
    call.drop_state = drops;
    if (advances) call.advance = state;
    else call.state = state;
    net_call(n, t, KR_RUN_STEP, kr_reshape(t, net_input(n, t, 2, 1), KR_SHAPE(2)), &call);
    CHECK_OK(n->ctx);
    const size_t peak = kr_tape_peak_bytes(t);
    kr_tape_destroy(t);
    return peak;
}

/* The tape holds no state: no more than in a call that drops it; and the context has nothing new. */
TEST(an_advanced_state_takes_no_memory)
{
    for (int family = 0; family < NET_FAMILIES; family++)
        for (int64_t depth = 2; depth <= 32; depth += 30) {
            net_recipe r = net_recipe_of((kr_family)family, VOCAB);
            r.layers.n_virtual = depth;
            net n;
            if (!net_open(&n, "memory", &r, 1)) exit(2);
            kr_state *state = net_random_state(&n, 2);
            const size_t live = kr_ctx_memory(n.ctx).live_bytes;
            const size_t drops = peak_of(&n, state, false, true), moved = peak_of(&n, state, true, false);
            CHECK(moved <= drops, "%s, %lld layers: %zu bytes, and %zu without a state",
                  kr_family_name((kr_family)family), (long long)depth, moved, drops);
            CHECK(kr_ctx_memory(n.ctx).live_bytes == live, "%zu bytes are left",
                  kr_ctx_memory(n.ctx).live_bytes - live);
            kr_state_destroy(state);
            net_close(&n);
        }
}

/* ---- errors and failures ---- */

TEST(advance_is_refused)
{
    net n;
    open_net(&n, KR_FAMILY_MAMBA2, 0, 1);
    kr_state *state = net_random_state(&n, 2);
    kr_tensor *x = net_input(&n, n.tape, 2, 4);
    kr_call call;
    kr_call_init(&call);
    call.advance = state;
    net_call(&n, n.tape, KR_RUN_FORWARD, x, &call);
    CHECK_ERROR(n.ctx, KR_ERR_STATE,
                "network.forward: a state to advance is given, but the call is recorded, and its backward pass reads "
                "the old state; use a tape of KR_TAPE_NO_GRAD, or state and kr_state_copy");
    kr_tape *t = kr_tape_create(n.ctx, KR_TAPE_NO_GRAD);
    x = net_input(&n, t, 2, 4);
    call.state = state;
    net_call(&n, t, KR_RUN_FORWARD, x, &call);
    CHECK_ERROR(n.ctx, KR_ERR_ARG, "network.forward: state and advance are both given; choose one");
    kr_tape_reset(t);
    x = net_input(&n, t, 2, 4);
    call.state = NULL;
    call.drop_state = true;
    net_call(&n, t, KR_RUN_FORWARD, x, &call);
    CHECK_ERROR(n.ctx, KR_ERR_ARG, "network.forward: drop_state is set, but a state to advance is given; choose one");
    kr_tape_reset(t);
    x = net_input(&n, t, 2, 4);
    call.drop_state = false;
    call.advance = kr_state_detach(t, state);
    net_call(&n, t, KR_RUN_FORWARD, x, &call);
    CHECK_ERROR(n.ctx, KR_ERR_ARG,
                "network.forward: the state to advance is on a tape, where states do not change; give one of "
                "kr_state_create");
    kr_state_destroy(state);
    kr_tape_destroy(t);
    net_close(&n);
}

static void check_inconsistent(net *n, kr_tape *t, kr_state *state, kr_state *other)
{
    const char *text =
        "the state is inconsistent: a call that updated it failed midway; reset it with kr_state_zero, or "
        "overwrite it with kr_state_copy";
    kr_call call;
    kr_call_init(&call);
    call.state = state;
    net_call(n, t, KR_RUN_FORWARD, net_input(n, t, 2, 2), &call);
    CHECK_ERROR_HAS(n->ctx, KR_ERR_STATE, text);
    kr_tape_reset(t);
    call.state = NULL;
    call.advance = state;
    net_call(n, t, KR_RUN_FORWARD, net_input(n, t, 2, 2), &call);
    CHECK_ERROR_HAS(n->ctx, KR_ERR_STATE, text);
    kr_tape_reset(t);
    kr_state_fork(t, state, 0, 2);
    CHECK_ERROR_HAS(n->ctx, KR_ERR_STATE, text);
    kr_tape_reset(t);
    kr_state_copy(other, state);
    CHECK_ERROR_HAS(n->ctx, KR_ERR_STATE, text);
    IGNORE(kr_state_save(state, n->network, "never"));
    CHECK_ERROR_HAS(n->ctx, KR_ERR_STATE, text);
}

/* Every allocation of a call fails once: the state is as it was, or says that it is not; and can be made whole. */
TEST(a_state_whose_update_failed_is_whole_or_inconsistent)
{
    for (int family = 0; family < NET_FAMILIES; family++) {
        net n;
        open_net(&n, family, 0, 1);
        kr_state *before = net_random_state(&n, 2), *state = kr_state_create(n.ctx, n.layers, 2);
        kr_state *other = kr_state_create(n.ctx, n.layers, 2);
        int inconsistent = 0;
        for (int refused = 1;; refused++) {
            kr_state_copy(state, before);
            kr_tape *t = kr_tape_create(n.ctx, KR_TAPE_NO_GRAD);
            kr_call call;
            kr_call_init(&call);
            call.advance = state;
            kr_tensor *x = net_input(&n, t, 2, 3);
            kr_ctx_fail_allocation(n.ctx, (uint64_t)refused);
            net_call(&n, t, KR_RUN_FORWARD, x, &call);
            const bool failed = kr_ctx_failed(n.ctx);
            kr_ctx_fail_allocation(n.ctx, 0);
            if (failed) CHECK_ERROR_HAS(n.ctx, KR_ERR_NOMEM, "no memory");
            kr_tape_reset(t);
            if (failed && state->is_inconsistent) check_inconsistent(&n, t, state, other), inconsistent++;
            else if (failed) same_states(state, before);
            kr_tape_destroy(t);
            if (!failed) break;
        }
        CHECK(inconsistent > 0, "no call failed after the first layer");
        kr_state_destroy(before);
        kr_state_destroy(state);
        kr_state_destroy(other);
        net_close(&n);
    }
}

/* An error before the first layer leaves the state as it was; one in the second layer leaves it inconsistent. */
TEST(an_inconsistent_state_is_reset)
{
    for (int family = 0; family < NET_FAMILIES; family++) {
        net n;
        open_net(&n, family, 0, 1);
        kr_state *before = net_random_state(&n, 2), *state = kr_state_create(n.ctx, n.layers, 2);
        kr_tape *t = kr_tape_create(n.ctx, KR_TAPE_NO_GRAD);
        kr_call call;
        kr_call_init(&call);
        call.advance = state;
        kr_state_copy(state, before);
        kr_network_step(t, n.network, kr_from_data(t, KR_DTYPE_I32, KR_SHAPE(2), (const int32_t[]){ 3, 99 }), &call);
        CHECK_ERROR_HAS(n.ctx, KR_ERR_ARG, "element 1 of id [2, 1] is 99");
        CHECK(!state->is_inconsistent, "nothing was moved");
        same_states(state, before);
        for (int repair = 0; repair < 2; repair++) {
            kr_tape_reset(t);
            n.ctx->check_finite = true;
            kr_tensor *w = kr_params_find(n.params, "backbone.layers.1.mixer.out_proj.weight")->tensor;
            kr_param_fill(w, (double)NAN);
            kr_state_copy(state, before);
            kr_network_step(t, n.network, kr_from_data(t, KR_DTYPE_I32, KR_SHAPE(2), (const int32_t[]){ 3, 5 }), &call);
            CHECK_ERROR_HAS(n.ctx, KR_ERR_NUMERIC, "layer 1");
            CHECK(state->is_inconsistent, "the first layer was moved on");
            kr_param_fill(w, 0.1);
            if (repair) kr_state_copy(state, before);
            else kr_state_zero(state);
            kr_tape_reset(t);
            kr_network_step(t, n.network, kr_from_data(t, KR_DTYPE_I32, KR_SHAPE(2), (const int32_t[]){ 3, 5 }), &call);
            CHECK_OK(n.ctx);
        }
        kr_state_destroy(before);
        kr_state_destroy(state);
        kr_tape_destroy(t);
        net_close(&n);
    }
}
