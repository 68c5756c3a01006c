/* test_layers.c - stacks: against their formulas written out, and by the laws of splits, sequences, rows and threads. */
#include "tests/nn/networks.h"
#include "tests/nn/networks_by_hand.h"

/* ---- stacks of all kinds ---- */

static void mlp(net_recipe *r)
{
    r->layers.d_intermediate = 6;
    r->layers.has_mlp_bias = true;
}

static void cyclic(net_recipe *r)
{
    r->layers.n_virtual = 5;
}

static void stretched(net_recipe *r)
{
    r->layers.n_virtual = 5;
    r->layers.schedule = KR_SCHEDULE_STRETCHED;
}

static void custom(net_recipe *r)
{
    static const int64_t order[] = { 1, 0, 0, 1 };
    r->layers.n_virtual = 4;
    r->layers.schedule = KR_SCHEDULE_CUSTOM;
    r->layers.custom_schedule = order;
}

static void without_first(net_recipe *r)
{
    r->layers.ignore_first_residual = true;
}

static void without_ends(net_recipe *r)
{
    mlp(r);
    r->layers.n_virtual = 3;
    r->layers.ignore_first_residual = r->layers.ignore_last_residual = true;
}

static void gates(net_recipe *r, int64_t nstream, int64_t nvirtual)
{
    r->layers.n_virtual = nvirtual;
    r->layers.residual =
        (kr_residual){ .kind = KR_RESIDUAL_MULTI_GATE, .n_stream = nstream, .init_bias = -1, .init_bias_step = 0.5 };
}

static void gates_below_depth(net_recipe *r)
{
    gates(r, 2, 5);
    r->layers.residual.per_virtual_layer = true;
}

static void gates_at_depth(net_recipe *r)
{
    gates(r, 4, 4);
    mlp(r);
}

static void one_stream(net_recipe *r)
{
    gates(r, 1, 3);
}

static void gates_without_ends(net_recipe *r)
{
    gates(r, 2, 5);
    r->layers.ignore_first_residual = r->layers.ignore_last_residual = true;
}

static void single(net_recipe *r)
{
    gates(r, 3, 1);
    r->layers.n_layers = 1;
}

static void everything_of_blocks(net_recipe *r)
{
    r->mamba1.has_proj_bias = r->mamba2.has_proj_bias = r->mamba3.has_proj_bias = true;
    r->mamba1.has_learnable_init_state = r->mamba2.has_learnable_init_state = true;
    r->mamba3.has_learnable_init_state = true;
    r->mamba2.n_groups = 2;
    r->mamba3.rotation = KR_ROTATION_QUATERNION;
    r->mamba3.is_mimo = true;
    r->mamba3.mimo_rank = 2;
    r->mamba3.rope_fraction = 1;
}

typedef struct variant {
    const char *name;
    void (*set)(net_recipe *r);
} variant;

static const variant variants[] = { { "plain", NULL },
                                    { "mlp", mlp },
                                    { "cyclic", cyclic },
                                    { "stretched", stretched },
                                    { "custom", custom },
                                    { "without the first residual", without_first },
                                    { "without first and last, mlp", without_ends },
                                    { "2 streams of 5, by virtual layer", gates_below_depth },
                                    { "4 streams of 4, mlp", gates_at_depth },
                                    { "1 stream", one_stream },
                                    { "2 streams, without first and last", gates_without_ends },
                                    { "one layer of 3 streams", single },
                                    { "blocks with everything", everything_of_blocks } };
enum { NVARIANTS = sizeof variants / sizeof *variants };

static net_recipe stack_of(int family, int which)
{
    net_recipe r = net_recipe_of((kr_family)family, BARE);
    if (variants[which].set) variants[which].set(&r);
    return r;
}

/* ---- the formulas ---- */

TEST(stacks_are_their_formulas)
{
    for (int family = 0; family < NET_FAMILIES; family++)
        for (int i = 0; i < NVARIANTS; i++) {
            net_recipe r = stack_of(family, i);
            net_recipe_type(&r, KR_DTYPE_F64);
            net n;
            if (!net_open(&n, variants[i].name, &r, 1)) continue;
            outcome *got = results_of(&n, 2, 5, false), *want = results_of(&n, 2, 5, true);
            net_compare(&n, &(net_problem){ .nb = 2 }, "against its formula", got, want);
            outcome_free(got);
            outcome_free(want);
            net_close(&n);
        }
}

/* Weights that are used again are the same as copies of them, with the gradients of the copies added up. */
TEST(virtual_layers_are_layers)
{
    for (int i = 2; i <= 4; i++) {
        net_recipe r = stack_of(KR_FAMILY_MAMBA2, i), deep = stack_of(KR_FAMILY_MAMBA2, 0);
        net_recipe_type(&r, KR_DTYPE_F64);
        net_recipe_type(&deep, KR_DTYPE_F64);
        deep.layers.n_layers = r.layers.n_virtual;
        net shared, copies;
        if (!net_open(&shared, variants[i].name, &r, 0)) continue;
        if (!net_open(&copies, "copies", &deep, 0)) continue;
        const int64_t rows = kr_params_count(shared.params) / 2;
        for (int64_t v = 0; v < r.layers.n_virtual; v++)
            for (int64_t k = 0; k < rows; k++) {
                const kr_tensor *from = kr_params_at(shared.params, shared.layers->real[v] * rows + k)->tensor;
                kr_param_write(kr_params_at(copies.params, v * rows + k)->tensor, KR_DTYPE_F64, kr_test_copy(from),
                               kr_tensor_count(from));
            }
        outcome *got = results_of(&shared, 2, 5, false), *each = results_of(&copies, 2, 5, false);
        for (int64_t k = 0; k < 2 * rows; k++) { /* got - sum of the copies' gradients */
            entry *e = &got->entries[2 + k];
            for (int64_t v = 0; v < r.layers.n_virtual; v++)
                for (int64_t x = 0; shared.layers->real[v] == k / rows && x < e->count; x++)
                    e->values[x] -= each->entries[2 + v * rows + k % rows].values[x];
            for (int64_t x = 0; x < e->count; x++)
                CHECK(fabs(e->values[x]) < 1e-10, "%s: %s is off by %g", shared.name, e->name, e->values[x]);
        }
        CHECK_CLOSE("y", got->entries[0].values, each->entries[0].values, each->entries[0].count, NULL, 1e-12, 0.1);
        outcome_free(got);
        outcome_free(each);
        net_close(&shared);
        net_close(&copies);
    }
}

/* ---- the laws ---- */

static void law_splits(net *n, bool from_state)
{
    static const kr_ssd_path short_chunks = { KR_SSD_SERIAL_RECALCULATED, 2 };
    static const net_mode ways[] = {
        { .name = "steps", .parts = { STEP, STEP, STEP, STEP, STEP, STEP } },
        { .name = "step + 3 + step + 1", .parts = { STEP, 3, STEP, 1 } },
        { .name = "2 + 4", .parts = { 2, 4 }, .path = &short_chunks },
        { .name = "5 + step", .parts = { 5, STEP } },
    };
    const int count = n->dtype == KR_DTYPE_F64 ? 4 : 2;
    net_same(n, &(net_problem){ .nb = 2, .ns = 6, .from_state = from_state }, ways, count);
}

/* Two rows of six: lengths 2, 1, 3 and 6, 0. Resets: a row that forgets twice, one that forgets at once, one never. */
static const int32_t packed[] = { 1, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0 };
static const int32_t resets[] = { 0, 0, 1, 0, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 };

static void law_sequences(net *n, bool from_state)
{
    const net_problem problems[] = {
        { .nb = 2, .ns = 6, .from_state = from_state, .starts = packed },
        { .nb = 3, .ns = 6, .from_state = from_state, .starts = resets, .is_reset = true }
    };
    for (int k = 0; k < 2; k++)
        net_same(n, &problems[k], &(net_mode){ .name = k ? "forgetting alone" : "sequences alone", .alone = true }, 1);
}

/* Outputs and states to the bit; gradients of parameters are sums over rows, in another order. */
static void law_rows(net *n, bool from_state)
{
    static const net_mode ways[] = { { .name = "whole" }, { .name = "steps", .parts = { STEP, STEP, STEP } } };
    const net_problem p = { .nb = 4, .ns = 3, .from_state = from_state };
    for (int i = 0; i < 2; i++) {
        net_mode alone = ways[i];
        alone.alone = true;
        outcome *got = net_run(n, &p, &alone), *want = net_run(n, &p, &ways[i]);
        compare_rows(n->name, got, want);
        net_compare(n, &p, "rows alone", got, want);
        outcome_free(got);
        outcome_free(want);
    }
}

static void law_state_is_dropped(net *n, bool from_state)
{
    const net_problem p = { .nb = 2, .ns = 6, .from_state = from_state };
    outcome *want = net_run(n, &p, &(net_mode){ .name = "kept", .without_states = true });
    outcome *got = net_run(n, &p, &(net_mode){ .name = "dropped", .without_states = true, .drop_state = true });
    compare_bits("drops_state", got, want, true);
    outcome_free(got);
    outcome_free(want);
}

TEST(stacks_obey_the_laws)
{
    for (int family = 0; family < NET_FAMILIES; family++)
        for (int i = 0; i < NVARIANTS; i++)
            for (int wide = 0; wide < 2; wide++) {
                if (kr_test_quick() && (i + family + wide) % 3) continue;
                if (!wide && (i + family) % 2) continue; /* f32 says little that f64 does not */
                net_recipe r = stack_of(family, i);
                net_recipe_type(&r, wide ? KR_DTYPE_F64 : KR_DTYPE_F32);
                net n;
                if (!net_open(&n, variants[i].name, &r, 1)) continue;
                for (int from_state = 0; from_state < 2; from_state++) {
                    law_splits(&n, from_state);
                    if (wide) law_sequences(&n, from_state);
                    else law_rows(&n, from_state);
                    law_state_is_dropped(&n, from_state);
                }
                net_close(&n);
            }
}

/* A step that forgets, in one row of two: that row begins anew, the other continues. */
TEST(a_step_may_forget)
{
    const net_recipe r = stack_of(KR_FAMILY_MAMBA3, 1);
    net n;
    if (!net_open(&n, "forgetting", &r, 1)) return;
    kr_state *state = net_random_state(&n, 2);
    kr_tensor *x = kr_reshape(n.tape, net_input(&n, n.tape, 2, 1), KR_SHAPE(2, NET_D));
    kr_call call;
    kr_call_init(&call);
    const net_out initial = net_call(&n, n.tape, KR_RUN_STEP, x, &call);
    call.state = state;
    const net_out on = net_call(&n, n.tape, KR_RUN_STEP, x, &call);
    call.reset_bs = kr_from_data(n.tape, KR_DTYPE_I32, KR_SHAPE(2, 1), (const int32_t[]){ 0, 1 });
    const net_out some = net_call(&n, n.tape, KR_RUN_STEP, x, &call);
    CHECK_OK(n.ctx);
    for (int64_t b = 0; b < 2; b++) {
        const net_out *want = b ? &initial : &on;
        CHECK_TENSORS("y", kr_slice(n.tape, some.y, 0, b, b + 1), kr_slice(n.tape, want->y, 0, b, b + 1), 1e-5, 0.1);
        for (int64_t v = 0; v < n.layers->nvirtual; v++)
            for (int i = 0; i < n.kind->ncache; i++)
                CHECK_TENSORS("state", kr_slice(n.tape, some.state->slots[v].tensors[i], 0, b, b + 1),
                              kr_slice(n.tape, want->state->slots[v].tensors[i], 0, b, b + 1), 1e-5, 0.1);
    }
    kr_state_destroy(state);
    net_close(&n);
}

/* Enough tokens for kernels to cut them into several tasks. */
TEST(stacks_with_any_number_of_threads)
{
    for (int family = 0; family < NET_FAMILIES; family++) {
        net_recipe r = stack_of(family, 7);
        r.mamba1.d_model = r.mamba2.d_model = r.mamba3.d_model = 32;
        r.layers.d_intermediate = 32;
        outcome *want = NULL;
        for (int threads = 1; threads <= 3; threads++) {
            net n;
            if (!net_open(&n, "threads", &r, threads)) break;
            const net_problem p = { .nb = 3, .ns = 120, .from_state = true };
            outcome *got = net_run(&n, &p, &(net_mode){ .name = "threads", .parts = { 80, STEP, 39 } });
            if (want) compare_bits("threads", got, want, true);
            if (want) outcome_free(got);
            else want = got;
            net_close(&n);
        }
        if (want) outcome_free(want);
    }
}
