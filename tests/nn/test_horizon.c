/* test_horizon.c - grad_horizon: only the last K virtual layers are differentiated, and the rest is passed over. */
#include "tests/nn/networks.h"

enum { DEPTH = 4 };

static net_recipe deep(kr_family family, net_ends ends, int64_t horizon)
{
    net_recipe r = net_recipe_of(family, ends);
    net_recipe_type(&r, KR_DTYPE_F64);
    r.layers.n_layers = DEPTH;
    r.layers.d_intermediate = 4;
    r.layers.grad_horizon = horizon;
    return r;
}

/* Weights shared among virtual layers, and streams. */
static void shared(net_recipe *r)
{
    r->layers.n_layers = 2;
    r->layers.n_virtual = DEPTH + 1;
    r->layers.schedule = KR_SCHEDULE_STRETCHED;
}

static void gates(net_recipe *r)
{
    r->layers.residual = (kr_residual){
        .kind = KR_RESIDUAL_MULTI_GATE, .n_stream = 2, .init_bias = -1, .init_bias_step = 0.5, .per_virtual_layer = true
    };
}

static void gates_and_ends(net_recipe *r)
{
    shared(r);
    gates(r);
    r->layers.residual.n_stream = 3;
    r->layers.ignore_first_residual = r->layers.ignore_last_residual = true;
}

static const struct {
    const char *name;
    void (*set)(net_recipe *r);
} variants[] = { { "plain", NULL }, { "shared", shared }, { "gates", gates }, { "gates, ends", gates_and_ends } };
enum { NVARIANTS = sizeof variants / sizeof *variants };

static net_recipe variant_of(int family, int which, net_ends ends, int64_t horizon)
{
    net_recipe r = deep((kr_family)family, ends, horizon);
    if (variants[which].set) variants[which].set(&r);
    return r;
}

static outcome *outcome_of(const net_recipe *r, bool without_states)
{
    net n;
    if (!net_open(&n, "horizon", r, 1)) return calloc(1, sizeof(outcome));
    const net_problem p = { .nb = 2, .ns = 5, .from_state = true };
    outcome *o = net_run(&n, &p, &(net_mode){ .name = "whole", .without_states = without_states });
    net_close(&n);
    return o;
}

/* ---- values ---- */

TEST(a_horizon_beyond_the_depth_is_none)
{
    for (int family = 0; family < NET_FAMILIES; family++)
        for (int i = 0; i < NVARIANTS; i++) {
            const net_recipe none = variant_of(family, i, LATENT, KR_NO_HORIZON);
            outcome *want = outcome_of(&none, false);
            const int64_t n = none.layers.n_virtual ? none.layers.n_virtual : none.layers.n_layers;
            for (int64_t k = n; k <= n + 3; k += 3) {
                const net_recipe r = variant_of(family, i, LATENT, k);
                outcome *got = outcome_of(&r, false);
                compare_bits(variants[i].name, got, want, true);
                outcome_free(got);
            }
            outcome_free(want);
        }
}

TEST(a_horizon_changes_no_value)
{
    for (int i = 0; i < NVARIANTS; i++) {
        const net_recipe none = variant_of(KR_FAMILY_MAMBA3, i, VOCAB, KR_NO_HORIZON);
        outcome *want = outcome_of(&none, false);
        for (int64_t k = 0; k < DEPTH; k++) {
            const net_recipe r = variant_of(KR_FAMILY_MAMBA3, i, VOCAB, k);
            outcome *got = outcome_of(&r, false);
            compare_bits(variants[i].name, got, want, false);
            outcome_free(got);
        }
        outcome_free(want);
    }
}

TEST(a_horizon_is_inert_without_recording)
{
    const net_recipe none = deep(KR_FAMILY_MAMBA2, LATENT, KR_NO_HORIZON), two = deep(KR_FAMILY_MAMBA2, LATENT, 2);
    net a, b;
    if (!net_open(&a, "none", &none, 1) || !net_open(&b, "two", &two, 1)) return;
    kr_tape *ta = kr_tape_create(a.ctx, KR_TAPE_NO_GRAD), *tb = kr_tape_create(b.ctx, KR_TAPE_NO_GRAD);
    const net_out ya = net_call(&a, ta, KR_RUN_FORWARD, net_input(&a, ta, 2, 5), NULL);
    const net_out yb = net_call(&b, tb, KR_RUN_FORWARD, net_input(&b, tb, 2, 5), NULL);
    CHECK_SAME_BITS("y", yb.y, ya.y);
    CHECK(kr_tape_nodes(tb) == 0 && kr_tape_peak_bytes(ta) == kr_tape_peak_bytes(tb),
          "something is done for a horizon");
    kr_tape_destroy(ta);
    kr_tape_destroy(tb);
    net_close(&a);
    net_close(&b);
}

/* ---- gradients, against the upper layers alone ---- */

static void take_entry(outcome *o, const char *name, const kr_tensor *of, const kr_tensor *values)
{
    entry *e = &o->entries[o->count++];
    snprintf(e->name, sizeof e->name, "g_%s", name);
    e->is_gradient = true;
    e->shape = kr_tensor_shape(of);
    e->count = kr_tensor_count(of);
    e->values = values ? kr_test_values(values) : calloc((size_t)e->count + 1, sizeof *e->values);
    if (!e->values) exit(2);
}

static void take_params(net *n, outcome *o)
{
    for (int64_t i = 0; i < kr_params_count(n->params); i++) {
        const kr_param_row *row = kr_params_at(n->params, i);
        take_entry(o, row->name, row->tensor, kr_grad(row->tensor));
    }
}

/* The layers from cut on, over leaves with the values that the lower ones make; x has the gradients of all leaves. */
static outcome *upper_layers_alone(net *n, int64_t cut)
{
    const kr_layers *s = n->layers;
    outcome *o = calloc(1, sizeof *o);
    if (!o) exit(2);
    kr_tape *t = n->tape;
    kr_tape_reset(t);
    kr_params_zero_grad(n->params);
    kr_tensor *x = net_input(n, t, 2, 5);
    kr_flow flow = { .x = x, .nstreams = s->gates ? 1 : 0, .streams = { x } };
    kr_layer_job job = { .layers = s, .op = "by hand", .path = s->kind->path(s->layers[0].block) };
    kr_cache after;
    for (; job.v < cut; job.v++) kr_layer_run(t, &job, &flow, NULL, &after);
    kr_tensor *leaves[9] = { flow.x = kr_input(t, flow.x) };
    const int64_t nstreams = flow.nstreams;
    for (int64_t q = 0; q < nstreams; q++) leaves[1 + q] = flow.streams[q] = kr_input(t, flow.streams[q]);
    for (; job.v < s->nvirtual; job.v++) kr_layer_run(t, &job, &flow, NULL, &after);
    kr_backward(t, kr_sum(t, kr_mul(t, flow.x, flow.x), KR_ALL_AXES, false));
    CHECK_OK(n->ctx);
    kr_tensor *sum = NULL;
    for (int64_t q = 0; q <= nstreams; q++)
        if (kr_grad(leaves[q])) sum = sum ? kr_add(t, sum, kr_grad(leaves[q])) : kr_grad(leaves[q]);
    take_entry(o, "x", x, sum);
    take_params(n, o);
    return o;
}

static outcome *with_horizon(net *n)
{
    outcome *o = calloc(1, sizeof *o);
    if (!o) exit(2);
    kr_tape_reset(n->tape);
    kr_params_zero_grad(n->params);
    kr_tensor *x = net_input(n, n->tape, 2, 5), *y = kr_layers_forward(n->tape, n->stack, x, NULL).y;
    kr_backward(n->tape, kr_sum(n->tape, kr_mul(n->tape, y, y), KR_ALL_AXES, false));
    CHECK_OK(n->ctx);
    take_entry(o, "x", x, kr_grad(x));
    take_params(n, o);
    return o;
}

/* Lower layers have no gradient, shared weights that of their upper uses, and what arrives at the cut, on the pooled
 * token and on every stream, goes to the input as it is. */
TEST(a_horizon_differentiates_the_upper_layers)
{
    for (int family = 0; family < NET_FAMILIES; family++)
        for (int i = 0; i < NVARIANTS; i++)
            for (int64_t k = 0; k <= DEPTH; k++) {
                const net_recipe r = variant_of(family, i, BARE, k);
                net n;
                if (!net_open(&n, variants[i].name, &r, 1)) continue;
                const int64_t cut = n.layers->nvirtual > k ? n.layers->nvirtual - k : 0;
                outcome *got = with_horizon(&n), *want = upper_layers_alone(&n, cut);
                compare(variants[i].name, got, want, 0, 1e-12, 0.1);
                outcome_free(got);
                outcome_free(want);
                net_close(&n);
            }
}

TEST(a_horizon_leaves_lower_parameters_alone)
{
    const net_recipe r = deep(KR_FAMILY_MAMBA1, LATENT, 2);
    net n;
    if (!net_open(&n, "two of four", &r, 1)) return;
    kr_tensor *y = net_call(&n, n.tape, KR_RUN_FORWARD, net_input(&n, n.tape, 2, 5), NULL).y;
    kr_backward(n.tape, kr_sum(n.tape, kr_mul(n.tape, y, y), KR_ALL_AXES, false));
    CHECK_OK(n.ctx);
    for (int64_t i = 0; i < kr_params_count(n.params); i++) {
        const kr_param_row *row = kr_params_at(n.params, i);
        const bool is_lower = strstr(row->name, "layers.0.") || strstr(row->name, "layers.1.");
        CHECK(is_lower == !kr_grad(row->tensor), "%s has %s gradient", row->name, is_lower ? "a" : "no");
    }
    net_close(&n);
}

TEST(a_horizon_lets_the_input_train)
{
    static const int64_t horizons[] = { KR_NO_HORIZON, 4, 2, 0 };
    for (int family = 0; family < NET_FAMILIES; family++)
        for (size_t i = 0; i < sizeof horizons / sizeof *horizons; i++)
            for (int ends = VOCAB; ends <= LATENT; ends++)
                for (int gated = 0; gated < 2; gated++) {
                    net_recipe r = deep((kr_family)family, (net_ends)ends, horizons[i]);
                    if (gated) gates(&r);
                    r.network.tie_embeddings = false;
                    net n;
                    if (!net_open(&n, "input", &r, 1)) continue;
                    kr_tensor *y = net_call(&n, n.tape, KR_RUN_FORWARD, net_input(&n, n.tape, 2, 5), NULL).y;
                    kr_backward(n.tape, kr_sum(n.tape, kr_mul(n.tape, y, y), KR_ALL_AXES, false));
                    CHECK_OK(n.ctx);
                    const char *name = ends == VOCAB ? "backbone.embedding.weight" : "in_proj.weight";
                    CHECK(net_grad_size(&n, name) > 1e-3, "%s: gradient %g with a horizon of %lld", name,
                          net_grad_size(&n, name), (long long)horizons[i]);
                    net_close(&n);
                }
}

/* ---- lower layers that do nothing ---- */

static void fill(net *n, const char *name, int64_t layer, double value)
{
    char text[64];
    snprintf(text, sizeof text, name, (long long)layer);
    const kr_param_row *row = kr_params_find(n->params, text);
    if (row) kr_param_fill(row->tensor, value);
}

/* Layers below the cut add 0, and with gates their stream keeps what it is (sigmoid(-1000) = 0). */
static void make_idle(net *n, int64_t cut)
{
    for (int64_t i = 0; i < cut; i++) {
        fill(n, "layers.%lld.mixer.out_proj.weight", i, 0);
        fill(n, "layers.%lld.mlp.fc2.weight", i, 0);
        fill(n, "gates.%lld.w_beta", i, 0);
        fill(n, "gates.%lld.b_beta", i, -1000);
    }
}

/* Then nothing is lost: the gradients of input and latents are those without a horizon. */
TEST(a_horizon_over_idle_layers_is_exact)
{
    static const kr_layer_class_token latents[] = { { 0, { .kind = KR_CLASS_TOKEN_START } },
                                                    { 1, { .kind = KR_CLASS_TOKEN_END } },
                                                    { 1, { .kind = KR_CLASS_TOKEN_CUSTOM, .at = 2 } },
                                                    { 2, { .kind = KR_CLASS_TOKEN_MIDDLE } },
                                                    { 3, { .kind = KR_CLASS_TOKEN_END } } };
    static const kr_class_token of_stack[] = { { .kind = KR_CLASS_TOKEN_MIDDLE } };
    for (int gated = 0; gated < 2; gated++)
        for (int marked = 0; marked < 2; marked++) {
            outcome *each[2];
            for (int k = 0; k < 2; k++) {
                net_recipe r = deep(KR_FAMILY_MAMBA2, BARE, k ? 2 : KR_NO_HORIZON);
                if (gated) gates(&r);
                r.layers.residual.n_stream = 1;
                if (marked) r.layers.layer_latents = latents;
                if (marked) r.layers.n_layer_latents = 5;
                if (marked) r.layers.latents = of_stack;
                if (marked) r.layers.n_latents = 1;
                net n;
                if (!net_open(&n, "idle", &r, 1)) exit(2);
                make_idle(&n, 2);
                each[k] = with_horizon(&n);
                net_close(&n);
            }
            for (int i = 0; i < each[0]->count; i++) {
                const entry *want = &each[0]->entries[i], *got = &each[1]->entries[i];
                const bool is_kept = strcmp(want->name, "g_x") == 0 || strstr(want->name, "latents");
                const bool is_upper = strstr(want->name, "layers.2.") || strstr(want->name, "layers.3.");
                double most = 0;
                for (int64_t e = 0; e < want->count; e++) most = fmax(most, fabs(want->values[e]));
                if (is_kept) CHECK(most > 1e-3, "%s: nothing to compare", want->name);
                if (is_kept || is_upper)
                    CHECK_CLOSE(want->name, got->values, want->values, want->count, &want->shape, 1e-12, 0.1);
            }
            outcome_free(each[0]);
            outcome_free(each[1]);
        }
}

/* ---- calls ---- */

static void with_class_tokens(net_recipe *r)
{
    static const kr_class_token of_stack[] = { { .kind = KR_CLASS_TOKEN_START }, { .kind = KR_CLASS_TOKEN_END } };
    static const kr_layer_class_token of_layers[] = { { 0, { .kind = KR_CLASS_TOKEN_START } },
                                                      { 1, { .kind = KR_CLASS_TOKEN_MIDDLE } },
                                                      { 2, { .kind = KR_CLASS_TOKEN_START } },
                                                      { 2, { .kind = KR_CLASS_TOKEN_END } },
                                                      { 3, { .kind = KR_CLASS_TOKEN_CUSTOM, .at = 2 } } };
    r->layers.latents = of_stack;
    r->layers.n_latents = 2;
    r->layers.layer_latents = of_layers;
    r->layers.n_layer_latents = 5;
}

TEST(a_horizon_in_chunks_steps_and_primes)
{
    static const net_mode ways[] = {
        { .name = "steps", .parts = { STEP, STEP, STEP, STEP, STEP } },
        { .name = "2 + 3", .parts = { 2, 3 } },
        { .name = "step + 2 + step + 1", .parts = { STEP, 2, STEP, 1 } },
        { .name = "primed", .parts = { PRIME, STEP, PRIME, 2, PRIME, STEP, STEP } },
    };
    for (int family = 0; family < NET_FAMILIES; family++)
        for (int64_t k = 0; k <= 3; k++)
            for (int which = 0; which < 4; which++) {
                if (kr_test_quick() && (family + k + which) % 3) continue;
                net_recipe r = deep((kr_family)family, which % 2 ? LATENT : BARE, k);
                if (which >= 2) gates(&r);
                const bool is_marked = which != 0;
                if (is_marked) with_class_tokens(&r);
                net n;
                if (!net_open(&n, "horizon", &r, 1)) continue;
                const net_problem p = { .nb = 2, .ns = 5, .from_state = (k + which) % 2, .is_announced = is_marked };
                net_same(&n, &p, ways, is_marked ? 4 : 3);
                net_close(&n);
            }
}

/* Slots below the cut are constants, on their way in and out; those above carry gradients from call to call. */
TEST(caches_below_the_cut_carry_no_gradient)
{
    const net_recipe r = deep(KR_FAMILY_MAMBA3, BARE, 2);
    net n;
    if (!net_open(&n, "caches", &r, 1)) return;
    kr_state *own = net_random_state(&n, 2);
    kr_state *begin = kr_state_input(n.tape, own);
    kr_call call;
    kr_call_init(&call);
    call.state = begin;
    kr_tensor *x = net_input(&n, n.tape, 2, 5);
    const net_out first = net_call(&n, n.tape, KR_RUN_FORWARD, kr_slice(n.tape, x, 1, 0, 2), &call);
    call.state = first.state;
    const net_out second = net_call(&n, n.tape, KR_RUN_FORWARD, kr_slice(n.tape, x, 1, 2, 5), &call);
    for (int64_t v = 0; v < DEPTH; v++)
        for (int i = 0; i < n.kind->ncache; i++) {
            CHECK(kr_requires_grad(kr_state_cache(first.state, v)->tensors[i]) == (v >= 2) &&
                      kr_requires_grad(kr_state_cache(second.state, v)->tensors[i]) == (v >= 2),
                  "slot %d, %s", (int)v, n.kind->cache_names[i]);
        }
    kr_backward(n.tape, kr_sum(n.tape, kr_mul(n.tape, second.y, second.y), KR_ALL_AXES, false));
    CHECK_OK(n.ctx);
    for (int64_t v = 0; v < DEPTH; v++)
        CHECK(!kr_grad(kr_state_cache(begin, v)->tensors[0]) == (v < 2), "slot %d of the first state", (int)v);
    kr_state_destroy(own);
    net_close(&n);
}
