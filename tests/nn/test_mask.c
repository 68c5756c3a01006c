/* test_mask.c - padded rows: what a mask of tokens does to stacks and networks. That it is the rule is held against plain
 * recurrences in test_mamba1.c and test_mamba2.c; here are its laws. */
#include "tests/nn/differences.h"
#include "tests/nn/networks.h"

enum { NB = 3, NS = 6 };

/* Padding on the left, on the right and between. */
static const int32_t padding[NB * NS] = { 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 1, 0, 1, 0, 0, 1 };

static void biases(net_recipe *r)
{
    r->mamba1.has_proj_bias = r->mamba2.has_proj_bias = r->mamba3.has_proj_bias = true;
}

static net_recipe recipe(int family, net_ends ends, bool has_biases)
{
    net_recipe r = net_recipe_of((kr_family)family, ends);
    net_recipe_type(&r, KR_DTYPE_F64);
    if (has_biases) biases(&r);
    return r;
}

/* ---- left padding ---- */

typedef struct reading {
    kr_tensor *y;
    kr_state *state;
    double *grads[128]; /* of the parameters */
} reading;

/* The tokens from `from` on, and the gradient of the sum of their outputs, each times a number of its own. */
static reading run_from(net *n, kr_tape *tape, int64_t from, const int32_t *mask)
{
    kr_call call;
    kr_call_init(&call);
    kr_tensor *x = net_input(n, tape, 1, NS);
    if (mask) call.mask_bs = kr_from_data(tape, KR_DTYPE_I32, KR_SHAPE(1, NS), mask);
    else x = kr_slice(tape, x, 1, from, NS);
    const net_out out = net_call(n, tape, KR_RUN_FORWARD, x, &call);
    reading r = { mask ? kr_slice(tape, out.y, 1, from, NS) : out.y, out.state, { NULL } };
    kr_params_zero_grad(n->params);
    kr_backward(tape, differences_weigh(tape, r.y, 0));
    for (int64_t i = 0; i < kr_params_count(n->params); i++) {
        const kr_tensor *g = kr_grad(kr_params_at(n->params, i)->tensor);
        r.grads[i] = g ? kr_test_values(g) : NULL;
    }
    return r;
}

static void check_left_padding(net *n, int64_t from)
{
    int32_t mask[NS];
    for (int64_t s = 0; s < NS; s++) mask[s] = s >= from;
    kr_tape_reset(n->tape);
    kr_tape *other = kr_tape_create(n->ctx, KR_TAPE_GRAD);
    reading got = run_from(n, n->tape, from, mask), want = run_from(n, other, from, NULL);
    if (!CHECK(!kr_ctx_failed(n->ctx), "%s: %s", n->name, kr_ctx_message(n->ctx))) return;
    CHECK_TENSORS("y of a row padded on the left", got.y, want.y, 1e-12, NET_FLOOR);
    for (int64_t v = 0; v < n->layers->nvirtual; v++)
        for (int i = 0; i < n->kind->ncache; i++)
            CHECK_TENSORS("state of a row padded on the left", got.state->slots[v].tensors[i],
                          want.state->slots[v].tensors[i], 1e-12, NET_FLOOR);
    for (int64_t i = 0; i < kr_params_count(n->params); i++) {
        const kr_param_row *row = kr_params_at(n->params, i);
        CHECK(!got.grads[i] == !want.grads[i], "%s: a gradient with or without padding only", row->name);
        if (got.grads[i] && want.grads[i])
            CHECK_CLOSE(row->name, got.grads[i], want.grads[i], kr_tensor_count(row->tensor), NULL, 1e-11, NET_FLOOR);
        free(got.grads[i]);
        free(want.grads[i]);
    }
    kr_tape_destroy(other);
}

/* Without in_proj's bias, padding on the left is not there. */
TEST(left_padding_changes_nothing)
{
    for (int family = 0; family < NET_FAMILIES; family++)
        for (int ends = BARE; ends <= VOCAB; ends++) {
            const net_recipe r = recipe(family, (net_ends)ends, false);
            net n;
            if (!net_open(&n, "left padding", &r, 1)) continue;
            for (int64_t from = 1; from < NS; from += 2) check_left_padding(&n, from);
            net_close(&n);
        }
}

/* With the bias it is: the windows of the first k - 1 tokens are full of it. A row that was padded then differs from
 * the same tokens alone, and from all tokens without a mask. */
TEST(left_padding_leaves_the_bias_behind)
{
    for (int family = 0; family < NET_FAMILIES; family++) {
        const net_recipe r = recipe(family, BARE, true);
        net n;
        if (!net_open(&n, "left padding, bias", &r, 1)) continue;
        static const int32_t mask[NS] = { 0, 0, 0, 1, 1, 1 };
        kr_tensor *x = net_input(&n, n.tape, 1, NS);
        kr_call call;
        kr_call_init(&call);
        kr_tensor *all = kr_layers_forward(n.tape, n.stack, x, &call).y;
        call.mask_bs = kr_from_data(n.tape, KR_DTYPE_I32, KR_SHAPE(1, NS), mask);
        kr_tensor *padded = kr_slice(n.tape, kr_layers_forward(n.tape, n.stack, x, &call).y, 1, 3, NS);
        kr_tensor *alone = kr_layers_forward(n.tape, n.stack, kr_slice(n.tape, x, 1, 3, NS), NULL).y;
        kr_tensor *others[2] = { alone, kr_slice(n.tape, all, 1, 3, NS) };
        for (int i = 0; i < 2; i++) {
            kr_tensor *apart = kr_sub(n.tape, padded, others[i]);
            const double most = kr_item(kr_max(n.tape, kr_mul(n.tape, apart, apart), KR_ALL_AXES, false));
            CHECK(most > 1e-8, "%s: padding moves the outputs by %g only", kr_family_name(r.family), sqrt(most));
        }
        CHECK_OK(n.ctx);
        net_close(&n);
    }
}

/* ---- laws ---- */

static void law_ones(net *n)
{
    int32_t ones[NB * NS];
    for (int i = 0; i < NB * NS; i++) ones[i] = 1;
    const net_problem plain = { .nb = NB, .ns = NS }, masked = { .nb = NB, .ns = NS, .mask = ones };
    outcome *want = net_run(n, &plain, &(net_mode){ .name = "plain" });
    outcome *got = net_run(n, &masked, &(net_mode){ .name = "ones" });
    compare_bits("a mask of ones", got, want, true);
    outcome_free(got);
    outcome_free(want);
}

static void law_splits(net *n, bool from_state)
{
    static const net_mode ways[] = { { .name = "1 + 3 + 2", .parts = { 1, 3, 2 } },
                                     { .name = "5 + 1", .parts = { 5, 1 } },
                                     { .name = "rows alone", .alone = true } };
    net_same(n, &(net_problem){ .nb = NB, .ns = NS, .from_state = from_state, .mask = padding }, ways, 3);
}

static void law_sequences(net *n, bool from_state)
{
    static const int32_t starts[NB * NS] = { 1, 0, 0, 1, 0, 0, 1, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0 };
    for (int is_reset = 0; is_reset < 2; is_reset++) {
        const net_problem p = {
            .nb = NB, .ns = NS, .from_state = from_state, .starts = starts, .is_reset = is_reset, .mask = padding
        };
        net_same(n, &p, &(net_mode){ .name = is_reset ? "forgetting alone" : "sequences alone", .alone = true }, 1);
    }
}

TEST(masked_stacks_obey_the_laws)
{
    for (int family = 0; family < NET_FAMILIES; family++)
        for (int which = 0; which < 2; which++) {
            net_recipe r = recipe(family, which ? VOCAB : BARE, true);
            if (which)
                r.layers.residual = (kr_residual){ .kind = KR_RESIDUAL_MULTI_GATE,
                                                   .n_stream = 2,
                                                   .init_bias = -1,
                                                   .init_bias_step = 0.5,
                                                   .per_virtual_layer = false };
            if (which) r.layers.d_intermediate = 6;
            net n;
            if (!net_open(&n, which ? "masked gates" : "masked", &r, 1)) continue;
            law_ones(&n);
            for (int from_state = 0; from_state < 2; from_state++) {
                law_splits(&n, from_state);
                law_sequences(&n, from_state);
            }
            net_close(&n);
        }
}

/* A block of halves, and a stream of them, take a mask too: each token that is read is as in f32, to the halves' eps. */
TEST(halves_are_masked)
{
    for (int family = 0; family < NET_FAMILIES; family++) {
        outcome *of[2];
        for (int i = 0; i < 2; i++) {
            net_recipe r = recipe(family, BARE, true);
            net_recipe_type(&r, i ? KR_DTYPE_BF16 : KR_DTYPE_F32);
            r.layers.residual_in_f32 = false;
            net n;
            if (!net_open(&n, "masked halves", &r, 1)) return;
            of[i] = net_run(&n, &(net_problem){ .nb = NB, .ns = NS, .mask = padding },
                            &(net_mode){ .name = "whole", .without_states = true });
            net_close(&n);
        }
        /* two layers, each of a dozen roundings of 2^-9 of parts of the sum */
        if (of[0]->count && of[1]->count)
            CHECK_CLOSE("y of halves", of[1]->entries[0].values, of[0]->entries[0].values, of[0]->entries[0].count,
                        NULL, 0.1, 1);
        outcome_free(of[0]);
        outcome_free(of[1]);
    }
}

/* ---- gradients ---- */

static kr_tensor *weighed(kr_tape *tape, void *user)
{
    net *n = user;
    kr_call call;
    kr_call_init(&call);
    call.mask_bs = kr_from_data(tape, KR_DTYPE_I32, KR_SHAPE(NB, NS), padding);
    return differences_weigh(tape, net_call(n, tape, KR_RUN_FORWARD, net_input(n, tape, NB, NS), &call).y, 0);
}

TEST(masked_gradients_are_differences)
{
    for (int family = 0; family < NET_FAMILIES; family++)
        for (int again = 0; again < 2; again++) {
            net_recipe r = recipe(family, VOCAB, true);
            if (again) r.layers.recompute = KR_RECOMPUTE_ALL;
            net n;
            if (!net_open(&n, "differences", &r, 1)) continue;
            differences_check_table(n.ctx, weighed, &n, n.params, kr_test_quick() ? 2 : 5, 1e-6);
            net_close(&n);
        }
}

/* Tokens that are padding give no gradient to their own input through the blocks: only the residual stream is left. */
TEST(padding_is_not_read)
{
    for (int family = 0; family < NET_FAMILIES; family++) {
        const net_recipe r = recipe(family, BARE, true);
        net n;
        if (!net_open(&n, "not read", &r, 1)) continue;
        kr_tensor *x = net_input(&n, n.tape, NB, NS);
        kr_call call;
        kr_call_init(&call);
        call.mask_bs = kr_from_data(n.tape, KR_DTYPE_I32, KR_SHAPE(NB, NS), padding);
        kr_tensor *y = net_call(&n, n.tape, KR_RUN_FORWARD, x, &call).y;
        kr_backward_from(n.tape, 1, &y, NULL);
        CHECK_OK(n.ctx);
        double *g = kr_test_values(kr_grad(x));
        for (int64_t i = 0; i < NB * NS * NET_D; i++)
            if (!padding[i / NET_D])
                CHECK(g[i] == 1, "%s: the gradient of a padding token is %.17g", kr_family_name(r.family), g[i]);
        free(g);
        net_close(&n);
    }
}
