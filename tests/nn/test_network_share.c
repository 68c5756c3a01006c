/* test_network_share.c - networks of several contexts over the same weights: the same bits, their own headers only, freed by
 * the last, written by a single one.
 */
#include "tests/memory.h"
#include "tests/nn/networks.h"

#include "nn/params_impl.h"

#include <string.h>

/* ---- every kind of network ---- */

static void with_schedule(net_recipe *r)
{
    static const int64_t order[] = { 1, 0, 0, 1, 1 };
    r->layers.n_virtual = 5;
    r->layers.schedule = KR_SCHEDULE_CUSTOM;
    r->layers.custom_schedule = order;
    r->layers.d_intermediate = 12;
    r->layers.mlp_multiple_of = 4;
    r->layers.has_mlp_bias = true;
}

static void with_gates(net_recipe *r)
{
    r->layers.n_virtual = 4;
    r->layers.schedule = KR_SCHEDULE_STRETCHED;
    r->layers.residual.kind = KR_RESIDUAL_MULTI_GATE;
    r->layers.residual.n_stream = 3;
    r->layers.residual.per_virtual_layer = true;
}

static void with_tokens(net_recipe *r)
{
    static const kr_class_token start[] = { { .kind = KR_CLASS_TOKEN_START },
                                            { .kind = KR_CLASS_TOKEN_CUSTOM, .at = 2 } };
    static const kr_layer_class_token of_layers[] = { { 1, { .kind = KR_CLASS_TOKEN_START } },
                                                      { 0, { .kind = KR_CLASS_TOKEN_CUSTOM, .at = 1 } } };
    r->layers.latents = start;
    r->layers.n_latents = 1;
    r->layers.layer_latents = of_layers;
    r->layers.n_layer_latents = 2;
    if (r->ends != LATENT) return;
    r->network.class_tokens = start;
    r->network.n_class_tokens = 2;
}

static void untied(net_recipe *r)
{
    r->network.tie_embeddings = false;
}

static void (*const variants[])(net_recipe *r) = { NULL, with_schedule, with_gates, with_tokens, untied };
enum { VARIANTS = sizeof variants / sizeof *variants };

static net_recipe recipe_of(int family, int variant, bool is_latent, kr_dtype dtype)
{
    net_recipe r = net_recipe_of((kr_family)family, is_latent ? LATENT : VOCAB);
    net_recipe_type(&r, dtype);
    if (variants[variant]) variants[variant](&r);
    return r;
}

/* A handle on n's weights in a context of its own; net_close takes it. */
static net share(const net *n)
{
    net other = *n;
    CHECK(kr_ctx_wait(n->ctx) == KR_OK, "%s", kr_ctx_message(n->ctx)); /* its parameters have been written */
    other.ctx = kr_test_ctx(2, NULL);
    other.tape = kr_tape_create(other.ctx, KR_TAPE_GRAD);
    other.network = kr_network_share(other.ctx, n->network);
    CHECK(other.network != NULL, "%s", kr_ctx_message(other.ctx));
    other.layers = kr_network_layers(other.network);
    other.params = kr_network_params(other.network);
    return other;
}

static kr_tensor *forward(net *n)
{
    kr_tape_reset(n->tape);
    kr_tensor *x = net_input(n, n->tape, 2, 6);
    return kr_network_forward(n->tape, n->network, x, NULL).y;
}

TEST(shared_networks_have_the_same_bits)
{
    static const kr_dtype dtypes[] = { KR_DTYPE_F32, KR_DTYPE_F64, KR_DTYPE_BF16 };
    for (int i = 0; i < 2 * 3 * NET_FAMILIES * VARIANTS; i++) {
        const int variant = i / (2 * 3 * NET_FAMILIES);
        const net_recipe r = recipe_of(i / 6 % NET_FAMILIES, variant, i % 2, dtypes[i / 2 % 3]);
        net n;
        if (!net_open(&n, "shared", &r, 1)) continue;
        net other = share(&n);
        CHECK_SAME_BITS("y", forward(&other), forward(&n));
        CHECK(kr_params_values_hash(other.params) == kr_params_values_hash(n.params), "values");
        char text[2][4096];
        kr_network_describe(n.network, text[0], sizeof text[0]);
        kr_network_describe(other.network, text[1], sizeof text[1]);
        CHECK(strcmp(text[0], text[1]) == 0, "%s\n%s", text[0], text[1]);
        for (int64_t p = 0; p < kr_params_count(n.params); p++)
            CHECK(kr_tensor_data(kr_params_at(other.params, p)->tensor) ==
                      kr_tensor_data(kr_params_at(n.params, p)->tensor),
                  "%s has been copied", kr_params_at(n.params, p)->name);
        CHECK_OK(other.ctx);
        CHECK_OK(n.ctx);
        net_close(&other);
        net_close(&n);
    }
}

/* The residual stream of a shared network may be differentiated, its parameters may not. */
TEST(shared_networks_give_gradients_of_inputs)
{
    const net_recipe r = recipe_of(KR_FAMILY_MAMBA2, 0, true, KR_DTYPE_F32);
    net n;
    if (!net_open(&n, "shared", &r, 1)) return;
    net other = share(&n), *const both[] = { &n, &other };
    kr_tensor *g[2];
    for (int i = 0; i < 2; i++) {
        kr_tape *tape = both[i]->tape;
        kr_tensor *x = kr_input(tape, net_input(both[i], tape, 2, 6));
        kr_tensor *y = kr_network_forward(tape, both[i]->network, x, NULL).y;
        CHECK(kr_backward(tape, kr_sum(tape, y, KR_ALL_AXES, false)) == KR_OK, "%s", kr_ctx_message(both[i]->ctx));
        g[i] = kr_grad(x);
    }
    CHECK_SAME_BITS("gradient", g[1], g[0]);
    for (int64_t p = 0; p < kr_params_count(n.params); p++) {
        CHECK(!kr_grad(kr_params_at(other.params, p)->tensor), "a gradient of a frozen parameter");
        CHECK(kr_grad(kr_params_at(n.params, p)->tensor), "the other one's parameters keep theirs");
    }
    net_close(&other);
    net_close(&n);
}

/* ---- life ---- */

static size_t live(const kr_ctx *ctx)
{
    return all_memory(ctx).live_bytes;
}

static kr_network *make(kr_ctx *ctx, kr_dtype dtype)
{
    static net_recipe r;
    r = recipe_of(KR_FAMILY_MAMBA2, 0, false, dtype);
    return kr_network_create(ctx, net_network_config(&r));
}

/* Whoever comes last frees the weights: in every order, with panels, the memory of each context is truthful all along. */
TEST(shared_networks_are_destroyed_in_every_order)
{
    static const int orders[6][3] = { { 0, 1, 2 }, { 0, 2, 1 }, { 1, 0, 2 }, { 1, 2, 0 }, { 2, 0, 1 }, { 2, 1, 0 } };
    for (int o = 0; o < 12; o++) {
        kr_ctx *ctx[3];
        kr_network *owner[3];
        size_t idle[3];
        for (int i = 0; i < 3; i++) {
            ctx[i] = kr_test_ctx(1, NULL);
            idle[i] = live(ctx[i]);
        }
        owner[0] = make(ctx[0], KR_DTYPE_F32);
        if (o >= 6) CHECK(kr_params_pack(kr_network_params(owner[0])) == KR_OK, "%s", kr_ctx_message(ctx[0]));
        const size_t whole = live(ctx[0]);
        const uint64_t hash = kr_params_values_hash(kr_network_params(owner[0]));
        owner[1] = kr_network_share(ctx[1], owner[0]);
        owner[2] = kr_network_share(ctx[2], owner[1]); /* of a shared one */
        CHECK(live(ctx[0]) == whole, "sharing takes nothing from the owner");
        CHECK(live(ctx[1]) == live(ctx[2]), "headers: %zu and %zu bytes", live(ctx[1]), live(ctx[2]));
        const size_t headers = live(ctx[1]) - idle[1], n = (size_t)kr_params_count(kr_network_params(owner[1]));
        CHECK(headers < 4096 + n * 1024, "%zu bytes for %zu parameters", headers, n); /* 24 layers: 0.2 MiB */
        for (int i = 0; i < 3; i++) {
            const int which = orders[o % 6][i];
            CHECK(kr_params_values_hash(kr_network_params(owner[which])) == hash, "order %d: the weights are gone", o);
            kr_network_destroy(owner[which]);
            CHECK(live(ctx[which]) == idle[which], "order %d: %zu bytes are left in context %d", o,
                  live(ctx[which]) - idle[which], which);
            CHECK_OK(ctx[which]);
            kr_ctx_destroy(ctx[which]);
        }
    }
}

/* Counts what an allocator of the program hands out. */
typedef struct counter {
    int blocks;
} counter;

static void *count_alloc(void *user, size_t bytes, size_t align)
{
    counter *c = user;
    c->blocks++;
    return aligned_alloc(align, (bytes + align - 1) / align * align);
}

static void count_free(void *user, void *p)
{
    counter *c = user;
    c->blocks--;
    free(p);
}

TEST(shared_weights_go_back_to_the_allocator_that_gave_them)
{
    counter first = { 0 }, second = { 0 };
    kr_ctx_options options;
    kr_ctx_options_init(&options);
    options.threads = 1;
    options.device = "cpu";
    options.allocator = (kr_allocator){ count_alloc, count_free, &first };
    kr_ctx *one = kr_ctx_create(&options);
    options.allocator.user = &second;
    kr_ctx *two = kr_ctx_create(&options);
    kr_network *owner = make(one, KR_DTYPE_F32), *shared = kr_network_share(two, owner);
    kr_network_destroy(owner);
    kr_ctx_destroy(one);
    CHECK(first.blocks == 2, "the weights' count and one slab are left: %d blocks", first.blocks);
    const size_t before = live(two);
    CHECK(kr_params_pack(kr_network_params(shared)) == KR_OK, "%s", kr_ctx_message(two));
    CHECK(live(two) > before && first.blocks > 2, "the only user may pack, and counts what it has");
    kr_network_destroy(shared);
    CHECK(first.blocks == 0, "%d blocks are left", first.blocks);
    kr_ctx_destroy(two);
    CHECK(second.blocks == 0, "%d blocks are left", second.blocks);
}

TEST(sharing_a_network_takes_little_memory)
{
    kr_ctx *one = kr_test_ctx(1, NULL), *two = kr_test_ctx(1, NULL);
    kr_network *owner = make(one, KR_DTYPE_F32);
    const size_t idle = live(two);
    kr_network *shared = kr_network_share(two, owner);
    const size_t per_row = (live(two) - idle) / (size_t)kr_params_count(kr_network_params(shared));
    CHECK(per_row < 1536, "%zu bytes for each parameter", per_row);
    kr_network_destroy(shared);
    kr_network_destroy(owner);
    kr_ctx_destroy(two);
    kr_ctx_destroy(one);
}

TEST(sharing_a_network_may_fail)
{
    kr_ctx *one = kr_test_ctx(1, NULL), *two = kr_test_ctx(1, NULL);
    kr_network *owner = make(one, KR_DTYPE_F32), *shared = NULL;
    const size_t idle = live(two);
    int failures = 0;
    for (; !shared; failures++) {
        kr_ctx_fail_allocation(two, (size_t)failures + 1);
        shared = kr_network_share(two, owner);
        if (shared) break;
        CHECK_ERROR_HAS(two, KR_ERR_NOMEM, "network");
        CHECK(live(two) == idle, "failure %d leaves %zu bytes", failures, live(two) - idle);
        CHECK(kr_params_reset(kr_network_params(owner)) == KR_OK, "no user is left: %s", kr_ctx_message(one));
    }
    CHECK(failures > 10, "%d allocations", failures);
    kr_ctx_fail_allocation(two, 0);
    kr_network_destroy(shared);
    kr_network_destroy(owner);
    kr_ctx_destroy(two);
    kr_ctx_destroy(one);
}

/* ---- writing ---- */

#define RULE "the weights of %s are shared by %d models, and only weights of a single one may change"

static void check_refused(kr_ctx *ctx, const char *op, const char *name, int count)
{
    char text[300];
    snprintf(text, sizeof text, "%s: " RULE, op, name, count);
    CHECK_ERROR_HAS(ctx, KR_ERR_STATE, text);
}

static void check_all_refused(kr_ctx *ctx, kr_params *params, int count)
{
    const char *name = kr_params_at(params, 0)->name;
    kr_tensor *x = kr_params_at(params, 0)->tensor;
    const float value = 1;
    CHECK(kr_param_write(x, KR_DTYPE_F32, &value, kr_tensor_count(x)) == KR_ERR_STATE, "write");
    check_refused(ctx, "param_write", name, count);
    CHECK(kr_tensor_write(x, KR_DTYPE_F32, &value, kr_tensor_count(x)) == KR_ERR_STATE, "write");
    check_refused(ctx, "param_write", name, count);
    CHECK(kr_param_fill(x, 2) == KR_ERR_STATE, "fill");
    check_refused(ctx, "param_fill", name, count);
    CHECK(kr_param_normal(x, 0, 1) == KR_ERR_STATE, "normal");
    check_refused(ctx, "param_normal", name, count);
    CHECK(kr_params_reset(params) == KR_ERR_STATE, "reset");
    check_refused(ctx, "params.reset", name, count);
    if (kr_test_on_device(ctx)) return;
    CHECK(kr_params_pack(params) == KR_ERR_STATE, "pack");
    check_refused(ctx, "params.pack", name, count);
    kr_params_unpack(params);
    check_refused(ctx, "params.unpack", name, count);
}

TEST(shared_weights_are_not_written)
{
    kr_ctx *one = kr_test_ctx(1, NULL), *two = kr_test_ctx(1, NULL), *three = kr_test_ctx(1, NULL);
    kr_network *owner = make(one, KR_DTYPE_F32);
    kr_params_pack(kr_network_params(owner));
    kr_network *a = kr_network_share(two, owner), *b = kr_network_share(three, owner);
    const uint64_t hash = kr_params_values_hash(kr_network_params(owner));
    check_all_refused(one, kr_network_params(owner), 3);
    check_all_refused(two, kr_network_params(a), 3);
    kr_params_freeze(kr_network_params(a), true);
    CHECK_OK(two);
    kr_params_freeze(kr_network_params(a), false);
    check_refused(two, "param_freeze", kr_params_at(kr_network_params(a), 0)->name, 3);
    kr_network_destroy(b);
    check_all_refused(two, kr_network_params(a), 2);
    CHECK(kr_params_values_hash(kr_network_params(owner)) == hash, "nothing has changed");
    kr_network_destroy(owner);
    kr_tensor *x = kr_params_at(kr_network_params(a), 0)->tensor; /* the only one now */
    CHECK(kr_param_fill(x, 2) == KR_OK && kr_params_pack(kr_network_params(a)) == KR_OK, "%s", kr_ctx_message(two));
    kr_params_freeze(kr_network_params(a), false);
    CHECK_OK(two);
    CHECK(kr_params_reset(kr_network_params(a)) == KR_OK, "%s", kr_ctx_message(two));
    kr_network_destroy(a);
    kr_ctx_destroy(three);
    kr_ctx_destroy(two);
    kr_ctx_destroy(one);
}

/* ---- what is not shared ---- */

static kr_tensor *nothing(void *user, kr_tape *tape, kr_tensor *ids, kr_state *state, const kr_call *call)
{
    (void)user, (void)tape, (void)ids, (void)state, (void)call;
    return NULL;
}

static void check_custom(kr_ctx *one, kr_ctx *two, const kr_network *owner)
{
    kr_custom_network custom;
    kr_custom_network_init(&custom);
    const kr_network_part part = { .layers = kr_network_layers(owner) };
    custom.params = kr_network_params(owner);
    custom.n_parts = 1;
    custom.parts = &part;
    custom.vocab_size = 4;
    custom.forward = nothing;
    kr_network *made = kr_network_custom(one, &custom);
    CHECK(made && !kr_network_share(two, made), "a custom network");
    CHECK_ERROR_HAS(two, KR_ERR_UNSUPPORTED,
                    "network.share: a custom network runs the program's forward on the program's");
    kr_network_destroy(made);
}

TEST(sharing_errors)
{
    kr_ctx *one = kr_test_ctx(1, NULL), *two = kr_test_ctx(1, NULL);
    kr_network *owner = make(one, KR_DTYPE_F32);
    CHECK(!kr_network_share(two, NULL), "NULL");
    CHECK_ERROR(two, KR_ERR_ARG, "network.share: net is NULL");
    CHECK(!kr_network_share(NULL, owner), "no context");
    check_custom(one, two, owner);

    kr_ctx_options options;
    kr_ctx_options_init(&options);
    options.threads = 1;
    options.device = kr_test_on_device(one) ? "cpu" : "mock";
    kr_ctx *elsewhere = kr_ctx_create(&options);
    CHECK(!kr_network_share(elsewhere, owner), "another device");
    CHECK_ERROR_HAS(elsewhere, KR_ERR_STATE, "network.share: the weights are on device ");
    kr_ctx_destroy(elsewhere);

    kr_tensor *x = kr_params_at(kr_network_params(owner), 0)->tensor;
    CHECK(kr_weights_begin_write(x, "test"), "%s", kr_ctx_message(one)); /* as an optimizer does for its life */
    CHECK(!kr_network_share(two, owner), "while it is written");
    CHECK_ERROR_HAS(two, KR_ERR_STATE,
                    "network.share: the weights are being trained or written; destroy their optimizer");
    kr_weights_end_write(x);
    CHECK(kr_ctx_wait(one) == KR_OK, "%s", kr_ctx_message(one));

    kr_param_options row;
    kr_param_options_init(&row);
    CHECK(kr_params_make(kr_network_params(owner), "mine", KR_DTYPE_F32, KR_SHAPE(2), &row), "%s", kr_ctx_message(one));
    CHECK(!kr_network_share(two, owner), "a row that was added");
    CHECK_ERROR_HAS(two, KR_ERR_UNSUPPORTED, "network.share: the parameter table has rows that were added to it (");
    kr_network_destroy(owner);
    kr_ctx_destroy(two);
    kr_ctx_destroy(one);
}

/* A device that may still be writing: what was queued must have run before another context's kernels read it. */
TEST(sharing_waits_for_queued_writes)
{
    kr_ctx_options options;
    kr_ctx_options_init(&options);
    options.threads = 1;
    options.device = "mock:1";
    kr_ctx *one = kr_ctx_create(&options), *two = kr_ctx_create(&options);
    kr_network *owner = make(one, KR_DTYPE_F32), *first = kr_network_share(two, owner);
    CHECK(first != NULL, "what is created has been written: %s", kr_ctx_message(two));
    kr_network_destroy(first);
    kr_param_fill(kr_params_at(kr_network_params(owner), 0)->tensor, 2);
    CHECK(!kr_network_share(two, owner), "a fill is queued");
    CHECK_ERROR(
        two, KR_ERR_STATE,
        "network.share: mock:1 runs late may still be writing the weights; call kr_ctx_wait with their context first");
    CHECK(kr_ctx_wait(one) == KR_OK, "%s", kr_ctx_message(one));
    kr_network *shared = kr_network_share(two, owner);
    CHECK(shared != NULL, "%s", kr_ctx_message(two));
    kr_tensor *x = kr_params_at(kr_network_params(shared), 0)->tensor;
    double *values = kr_test_values(x);
    CHECK(values[0] == 2, "%g", values[0]);
    free(values);
    kr_network_destroy(owner);
    kr_ctx_destroy(one);
    values = kr_test_values(x);
    CHECK(values[0] == 2, "%g", values[0]);
    free(values);
    kr_network_destroy(shared);
    kr_ctx_destroy(two);
}
