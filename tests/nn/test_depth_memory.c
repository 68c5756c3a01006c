/* test_depth_memory.c - what depth costs, by the tape's exact counters. */
#include "tests/nn/networks.h"

typedef struct figures {
    size_t peak;     /* of the tape */
    size_t ctx_peak; /* of the context, above what was there before */
    size_t state;    /* bytes of the new state on the tape: each tensor rounded up to 64 */
} figures;

static void gates(net_recipe *r)
{
    r->layers.d_intermediate = 8;
    r->layers.residual = (kr_residual){ .kind = KR_RESIDUAL_MULTI_GATE,
                                        .n_stream = 3,
                                        .init_bias = -1,
                                        .init_bias_step = 0.5,
                                        .per_virtual_layer = false };
}

static size_t rounded_bytes(const kr_state *state)
{
    size_t bytes = 0;
    for (int64_t v = 0; state && v < kr_state_slots(state); v++)
        for (int i = 0; i < kr_slot_kind(state, v)->ncache; i++) {
            const kr_tensor *x = kr_state_cache(state, v)->tensors[i];
            const size_t own = (size_t)kr_tensor_count(x) * kr_dtype_bytes(kr_tensor_dtype(x));
            bytes += own ? (own + KR_ALIGN - 1) / KR_ALIGN * KR_ALIGN : KR_ALIGN;
        }
    return bytes;
}

static figures measure(const net_recipe *recipe, kr_tape_mode mode, bool by_step, bool drop_state)
{
    net n;
    if (!net_open(&n, "memory", recipe, 1)) exit(2);
    const size_t before = kr_ctx_memory(n.ctx).live_bytes;
    kr_tape *tape = kr_tape_create(n.ctx, mode);
    kr_tensor *x = net_input(&n, tape, 2, by_step ? 1 : 12);
    if (by_step) {
        const int64_t nb = kr_tensor_dim(x, 0), width = kr_tensor_rank(x) == 3 ? kr_tensor_dim(x, 2) : 0;
        x = kr_reshape(tape, x, width ? KR_SHAPE(nb, width) : KR_SHAPE(nb));
    }
    kr_call call;
    kr_call_init(&call);
    call.drop_state = drop_state;
    const net_out out = net_call(&n, tape, by_step ? KR_RUN_STEP : KR_RUN_FORWARD, x, &call);
    if (mode == KR_TAPE_GRAD) kr_backward_from(tape, 1, &out.y, NULL);
    CHECK_OK(n.ctx);
    const figures f = { kr_tape_peak_bytes(tape), kr_ctx_memory(n.ctx).peak_bytes - before, rounded_bytes(out.state) };
    kr_tape_destroy(tape);
    net_close(&n);
    return f;
}

static net_recipe of_depth(int family, net_ends ends, bool gated, int64_t depth, int64_t horizon)
{
    net_recipe r = net_recipe_of((kr_family)family, ends);
    if (gated) gates(&r);
    r.layers.n_virtual = depth;
    r.layers.grad_horizon = horizon;
    return r;
}

/* Without recording nothing stays of a layer but its state. The context has a slot of a few words for each layer, too,
 * and asks for memory by blocks of 16 KiB at least. */
TEST(depth_costs_no_memory_without_recording)
{
    for (int family = 0; family < NET_FAMILIES; family++)
        for (int which = 0; which < 12; which++) {
            const net_ends ends = (net_ends)(which % 3);
            const bool gated = which / 3 % 2, by_step = which / 6;
            const net_recipe few = of_depth(family, ends, gated, 8, KR_NO_HORIZON);
            const net_recipe many = of_depth(family, ends, gated, 64, KR_NO_HORIZON);
            const figures a = measure(&few, KR_TAPE_NO_GRAD, by_step, true),
                          b = measure(&many, KR_TAPE_NO_GRAD, by_step, true);
            CHECK(a.peak == b.peak && a.peak > 0, "%s: %zu bytes for 8 layers, %zu for 64",
                  kr_family_name((kr_family)family), a.peak, b.peak);
            CHECK(b.ctx_peak < a.ctx_peak + 64 * 64 + (1 << 14), "%zu bytes of the context for 8 layers, %zu for 64",
                  a.ctx_peak, b.ctx_peak);
            const figures c = measure(&few, KR_TAPE_NO_GRAD, by_step, false),
                          d = measure(&many, KR_TAPE_NO_GRAD, by_step, false);
            CHECK(d.state == 8 * c.state && d.peak - c.peak == d.state - c.state,
                  "%s: states of %zu and %zu bytes, peaks of %zu and %zu", kr_family_name((kr_family)family), c.state,
                  d.state, c.peak, d.peak);
            CHECK(c.peak >= a.peak && c.peak <= a.peak + c.state, "a state costs more than itself");
        }
}

/* Forward and backward with a horizon: the layers below it are run, and forgotten. */
TEST(depth_costs_no_memory_below_a_horizon)
{
    for (int family = 0; family < NET_FAMILIES; family++)
        for (int gated = 0; gated < 2; gated++)
            for (int64_t k = 0; k <= 3; k += 3) {
                const net_recipe few = of_depth(family, LATENT, gated, 8, k);
                const net_recipe many = of_depth(family, LATENT, gated, 64, k);
                const net_recipe all = of_depth(family, LATENT, gated, 64, KR_NO_HORIZON);
                const figures a = measure(&few, KR_TAPE_GRAD, false, true),
                              b = measure(&many, KR_TAPE_GRAD, false, true);
                CHECK(a.peak == b.peak, "%s: %zu bytes for 8 layers, %zu for 64", kr_family_name((kr_family)family),
                      a.peak, b.peak);
                const figures c = measure(&few, KR_TAPE_GRAD, false, false),
                              d = measure(&many, KR_TAPE_GRAD, false, false);
                CHECK(d.peak - c.peak == d.state - c.state, "%s: states of %zu and %zu bytes, peaks of %zu and %zu",
                      kr_family_name((kr_family)family), c.state, d.state, c.peak, d.peak);
                CHECK(b.peak < measure(&all, KR_TAPE_GRAD, false, true).peak / 5, "the horizon saves nothing");
            }
}
