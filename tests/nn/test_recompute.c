/* test_recompute.c - layers that are run again in the backward pass: the same bits, and a budget that holds. */
#include "tests/nn/networks.h"

/* ---- the same bits ---- */

static void mlp(net_recipe *r)
{
    r->layers.n_virtual = 4;
    r->layers.d_intermediate = 6;
}

static void gates(net_recipe *r)
{
    mlp(r);
    r->layers.n_virtual = 5;
    r->layers.residual = (kr_residual){
        .kind = KR_RESIDUAL_MULTI_GATE, .n_stream = 3, .init_bias = -1, .init_bias_step = 0.5, .per_virtual_layer = true
    };
}

static void gates_and_ends(net_recipe *r)
{
    gates(r);
    r->layers.ignore_first_residual = r->layers.ignore_last_residual = true;
}

static void horizon(net_recipe *r)
{
    gates(r);
    r->layers.grad_horizon = 3;
}

static void class_tokens(net_recipe *r)
{
    static const kr_layer_class_token each[] = { { 0, { .kind = KR_CLASS_TOKEN_START } },
                                                 { 1, { .kind = KR_CLASS_TOKEN_END } } };
    gates(r);
    r->layers.layer_latents = each;
    r->layers.n_layer_latents = 2;
}

static const struct {
    const char *name;
    void (*set)(net_recipe *r);
} variants[] = { { "plain", NULL },
                 { "mlp", mlp },
                 { "gates", gates },
                 { "gates, ends", gates_and_ends },
                 { "gates, horizon", horizon },
                 { "gates, class tokens", class_tokens } };
enum { NVARIANTS = sizeof variants / sizeof *variants };

static const int32_t packed[] = { 1, 0, 0, 1, 1, 0, 1, 0, 1, 0, 0, 0 };

static const int32_t padded[] = { 0, 0, 1, 1, 1, 1, 1, 1, 0, 1, 1, 0 };

static outcome *outcome_of(const net_recipe *r, const net_problem *p, const net_mode *way)
{
    net n;
    if (!net_open(&n, "recompute", r, 1)) return calloc(1, sizeof(outcome));
    outcome *o = net_run(&n, p, way);
    net_close(&n);
    return o;
}

/* NONE against ALL, and against budgets that let some layers be recorded and some not. */
static void check_bits(int family, int which, const net_problem *p, const net_mode *way)
{
    net_recipe r = net_recipe_of((kr_family)family, which % 2 ? LATENT : BARE);
    if (variants[which].set) variants[which].set(&r);
    outcome *want = outcome_of(&r, p, way);
    r.layers.recompute = KR_RECOMPUTE_ALL;
    outcome *got = outcome_of(&r, p, way);
    compare_bits(variants[which].name, got, want, true);
    outcome_free(got);
    r.layers.recompute = KR_RECOMPUTE_BUDGET;
    for (size_t budget = 190000; budget < 400000; budget += 100000) {
        r.layers.recompute_budget = budget;
        got = outcome_of(&r, p, way);
        compare_bits(variants[which].name, got, want, true);
        outcome_free(got);
    }
    outcome_free(want);
}

TEST(recomputed_layers_give_the_same_bits)
{
    static const net_mode ways[] = { { .name = "whole" }, { .name = "parts", .parts = { 2, STEP, 3 } } };
    static const net_mode dropped = { .name = "dropped", .drop_state = true, .without_states = true };
    for (int family = 0; family < NET_FAMILIES; family++)
        for (int i = 0; i < NVARIANTS; i++) {
            if (kr_test_quick() && (family + i) % 3) continue;
            const bool is_marked = variants[i].set == class_tokens;
            const net_problem p = { .nb = 2, .ns = 6, .from_state = i % 2, .is_announced = is_marked };
            check_bits(family, i, &p, &ways[(family + i) % 2]);
            check_bits(family, i, &p, &dropped);
            if (is_marked) continue;
            const net_problem rows = { .nb = 2, .ns = 6, .from_state = !(i % 2), .starts = packed, .is_reset = i > 2 };
            check_bits(family, i, &rows, &ways[0]);
            const net_problem masked = { .nb = 2, .ns = 6, .mask = padded };
            check_bits(family, i, &masked, &ways[0]);
        }
}

/* ---- the budget ---- */

typedef struct load {
    const char *name;
    int64_t nb, ns, nvirtual;
    bool has_mlp, has_gates, is_packed, is_reset, from_state, drop_state, is_marked, is_masked;
    int64_t horizon; /* 0: none */
    kr_dtype dtype;
} load;

static const load loads[] = { { "plain", 2, 16, 6, .dtype = KR_DTYPE_F32 },
                              { "long", 1, 80, 4, .dtype = KR_DTYPE_F32 },
                              { "wide", 8, 3, 9, .dtype = KR_DTYPE_F32 },
                              { "one layer", 2, 16, 1, .dtype = KR_DTYPE_F32 },
                              { "f64", 2, 16, 5, .dtype = KR_DTYPE_F64 },
                              { "halves", 2, 16, 5, .dtype = KR_DTYPE_BF16 },
                              { "mlp", 2, 16, 6, .has_mlp = true },
                              { "gates", 2, 16, 7, .has_gates = true },
                              { "gates, mlp", 3, 10, 5, .has_gates = true, .has_mlp = true },
                              { "gates, class tokens", 2, 10, 5, .has_gates = true, .is_marked = true },
                              { "long, gates, class tokens", 2, 90, 5, .has_gates = true, .is_marked = true },
                              { "packed", 2, 24, 6, .is_packed = true },
                              { "packed, gates, state", 2, 24, 5, .is_packed = true, .has_gates = true,
                                .from_state = true },
                              { "reset", 2, 24, 5, .is_packed = true, .is_reset = true, .from_state = true },
                              { "from a state", 4, 6, 8, .from_state = true },
                              { "dropped", 2, 16, 6, .drop_state = true },
                              { "masked", 2, 16, 6, .is_masked = true },
                              { "horizon", 2, 16, 8, .has_mlp = true, .horizon = 4 } };
enum { NLOADS = sizeof loads / sizeof *loads };

static net_recipe recipe_for(kr_family family, const load *l, size_t budget)
{
    static const kr_layer_class_token each[] = { { 0, { .kind = KR_CLASS_TOKEN_START } },
                                                 { 1, { .kind = KR_CLASS_TOKEN_END } } };
    net_recipe r = net_recipe_of(family, BARE);
    net_recipe_type(&r, l->dtype);
    r.layers.n_virtual = l->nvirtual;
    if (l->nvirtual == 1) r.layers.n_layers = 1;
    if (l->has_mlp) r.layers.d_intermediate = 16;
    if (l->has_gates)
        r.layers.residual = (kr_residual){ .kind = KR_RESIDUAL_MULTI_GATE,
                                           .n_stream = 3,
                                           .init_bias = -1,
                                           .init_bias_step = 0.5,
                                           .per_virtual_layer = false };
    if (l->is_marked) r.layers.layer_latents = each;
    if (l->is_marked) r.layers.n_layer_latents = 2;
    if (l->horizon) r.layers.grad_horizon = l->horizon;
    r.layers.recompute = budget ? KR_RECOMPUTE_BUDGET : KR_RECOMPUTE_NONE;
    r.layers.recompute_budget = budget;
    return r;
}

typedef struct taken {
    size_t peak;
    int64_t nodes;
} taken;

/* Forward, and backward from y and from nothing else. The tape's peak counts from its beginning. */
static taken run_load(net *n, const load *l)
{
    kr_state *own = l->from_state ? net_random_state(n, l->is_packed && !l->is_reset ? 8 : l->nb) : NULL;
    kr_tape *tape = kr_tape_create(n->ctx, KR_TAPE_GRAD);
    kr_call call;
    kr_call_init(&call);
    kr_tensor *x = net_input(n, tape, l->nb, l->ns);
    call.state = own ? kr_state_input(tape, own) : NULL;
    call.drop_state = l->drop_state;
    if (l->is_packed) {
        int32_t starts[128] = { 0 };
        for (int64_t i = 0; i < l->nb * l->ns; i += 6) starts[i] = 1; /* 8 sequences in 2 rows of 24 */
        kr_tensor *marks = kr_from_data(tape, KR_DTYPE_I32, KR_SHAPE(l->nb, l->ns), starts);
        if (l->is_reset) call.reset_bs = marks;
        else call.seq_start_bs = marks;
    }
    if (l->is_masked)
        call.mask_bs = kr_cast(tape, kr_full(tape, KR_DTYPE_F32, KR_SHAPE(l->nb, l->ns), 1), KR_DTYPE_I32);
    const net_out out = net_call(n, tape, KR_RUN_FORWARD, x, &call);
    taken t = { 0, kr_tape_nodes(tape) };
    if (out.y) kr_backward_from(tape, 1, &out.y, NULL);
    t.peak = kr_tape_peak_bytes(tape);
    kr_tape_destroy(tape);
    kr_state_destroy(own);
    return t;
}

/* The least that a budget must be, from the error message of a smaller one; 0 if there is none. */
static size_t least_of(net *n, const load *l, size_t budget)
{
    n->stack->config.recompute_budget = budget;
    run_load(n, l);
    if (!kr_ctx_failed(n->ctx)) return 0;
    size_t said = 0, least = 0;
    char text[256], x[64] = "";
    const char *message = kr_ctx_message(n->ctx), *from = strstr(message, "but x ");
    if (from) sscanf(from, "but x %63[^]]] needs %zu", x, &least);
    sscanf(message, "layers.forward: recompute_budget = %zu", &said);
    snprintf(text, sizeof text,
             "layers.forward: recompute_budget = %zu bytes, but x %s] needs %zu at the least; raise it, or cut the "
             "batch or the "
             "sequence",
             said, x, least);
    CHECK(said == budget && least > budget, "%s: %s", l->name, message);
    CHECK_ERROR(n->ctx, KR_ERR_ARG, text);
    return least;
}

static void check_load(kr_family family, const load *l)
{
    const net_recipe all = recipe_for(family, l, 0), some = recipe_for(family, l, 1);
    net kept, n;
    if (!net_open(&kept, l->name, &all, 1)) return;
    const taken everything = run_load(&kept, l);
    CHECK_OK(kept.ctx);
    net_close(&kept);
    if (!net_open(&n, l->name, &some, 1)) return;
    const size_t least = least_of(&n, l, 1);
    CHECK(least_of(&n, l, least - 1) == least, "%s: the least budget is another below it", l->name);
    /* from the least to twice of all, in equal steps */
    const int steps = kr_test_quick() ? 3 : 6;
    const size_t top = 2 * (everything.peak > least ? everything.peak : least);
    int64_t nodes = 0;
    for (int i = 0; i <= steps; i++) {
        const size_t budget = least + (top - least) * (size_t)i / (size_t)steps;
        n.stack->config.recompute_budget = budget;
        const taken t = run_load(&n, l);
        CHECK_OK(n.ctx);
        CHECK(t.peak <= budget, "%s %s: %zu bytes of %zu (least %zu)", kr_family_name(family), l->name, t.peak, budget,
              least);
        CHECK(t.nodes >= nodes, "%s %s: fewer nodes for a larger budget", kr_family_name(family), l->name);
        if (i == 0 && l->nvirtual > 1) CHECK(t.nodes < everything.nodes, "%s: all is recorded at once", l->name);
        nodes = t.nodes;
    }
    CHECK(nodes == everything.nodes, "%s: not all layers are recorded, with memory for them", l->name);
    /* the least is no more than it must be: from five layers on, well below all of them */
    CHECK((double)least <= (l->nvirtual < 5 ? 1.1 : 0.8) * (double)everything.peak,
          "%s %s: %zu bytes at the least, but all of them take %zu", kr_family_name(family), l->name, least,
          everything.peak);
    net_close(&n);
}

TEST(a_budget_holds)
{
    for (int family = 0; family < NET_FAMILIES; family++)
        for (int i = 0; i < NLOADS; i++)
            if (!kr_test_quick() || (family + i) % 3 == 0) check_load((kr_family)family, &loads[i]);
}

/* Layers come to be recorded one by one. */
TEST(a_larger_budget_records_more_layers)
{
    const load l = { "one by one", 2, 16, 6, .dtype = KR_DTYPE_F32 };
    const net_recipe r = recipe_for(KR_FAMILY_MAMBA2, &l, 1);
    net n;
    if (!net_open(&n, l.name, &r, 1)) return;
    const size_t least = least_of(&n, &l, 1);
    int64_t counts[64] = { 0 };
    int ncounts = 0;
    for (size_t budget = least; budget < 10 * least && ncounts < 64; budget += 1000) {
        n.stack->config.recompute_budget = budget;
        const int64_t nodes = run_load(&n, &l).nodes;
        if (ncounts == 0 || counts[ncounts - 1] != nodes) counts[ncounts++] = nodes;
    }
    CHECK_OK(n.ctx);
    /* not all but one: with none to recompute no memory is needed for that */
    CHECK(ncounts == 6, "%d different numbers of nodes, but 0 to 4, or all 6 layers may be recorded", ncounts);
    for (int i = 2; i < ncounts; i++)
        CHECK(counts[i] - counts[i - 1] == (i == 5 ? 2 : 1) * (counts[1] - counts[0]), "%d: %lld nodes", i,
              (long long)counts[i]);
    net_close(&n);
}

/* ---- measuring has no effect ---- */

TEST(measuring_leaves_parameters_alone)
{
    net_recipe r = net_recipe_of(KR_FAMILY_MAMBA2, BARE);
    gates(&r);
    r.layers.recompute = KR_RECOMPUTE_BUDGET;
    r.layers.recompute_budget = 1; /* too little: measured, and refused */
    net n;
    if (!net_open(&n, "measured", &r, 1)) return;
    const int64_t count = kr_params_count(n.params);
    kr_tensor *twice = kr_params_find(n.params, "layers.1.mixer.in_proj.weight")->tensor;
    for (int round = 0; round < 3; round++) {
        /* before any gradient; with gradients, some frozen; zeroed */
        double *before[128];
        bool had[128], wanted[128];
        if (round == 1) {
            n.stack->config.recompute = KR_RECOMPUTE_NONE;
            kr_tape_reset(n.tape);
            kr_tensor *y = kr_layers_forward(n.tape, n.stack, net_input(&n, n.tape, 2, 5), NULL).y;
            kr_backward_from(n.tape, 1, &y, NULL);
            n.stack->config.recompute = KR_RECOMPUTE_BUDGET;
            kr_param_freeze(twice, true);
        }
        if (round == 2) kr_params_zero_grad(n.params);
        for (int64_t i = 0; i < count; i++) {
            kr_tensor *x = kr_params_at(n.params, i)->tensor;
            had[i] = kr_grad(x) != NULL;
            wanted[i] = kr_requires_grad(x);
            before[i] = had[i] ? kr_test_values(kr_grad(x)) : NULL;
        }
        CHECK_OK(n.ctx);
        kr_tape_reset(n.tape);
        n.stack->measured->load.nb = 0; /* measure again */
        kr_layers_forward(n.tape, n.stack, net_input(&n, n.tape, 2, 7 + round), NULL);
        CHECK_ERROR_HAS(n.ctx, KR_ERR_ARG, "at the least");
        for (int64_t i = 0; i < count; i++) {
            kr_tensor *x = kr_params_at(n.params, i)->tensor;
            const char *name = kr_params_at(n.params, i)->name;
            CHECK(had[i] == (kr_grad(x) != NULL) && wanted[i] == kr_requires_grad(x), "%s in round %d", name, round);
            double *after = kr_grad(x) ? kr_test_values(kr_grad(x)) : NULL;
            if (before[i] && after)
                CHECK(memcmp(before[i], after, (size_t)kr_tensor_count(x) * sizeof *after) == 0,
                      "%s: its gradient in "
                      "round %d",
                      name, round);
            free(before[i]);
            free(after);
        }
    }
    CHECK(!kr_requires_grad(twice), "thawed");
    net_close(&n);
}
