/* test_streams.c - the residual stream after each virtual layer, as a call gives it. */
#include "tests/nn/differences.h"
#include "tests/nn/networks.h"
#include "tests/nn/networks_by_hand.h"

enum { NB = 2, NS = 5, NV = 4 };

static void gates(net_recipe *r)
{
    r->layers.residual = (kr_residual){
        .kind = KR_RESIDUAL_MULTI_GATE, .n_stream = 2, .init_bias = -1, .init_bias_step = 0.5, .per_virtual_layer = true
    };
}

static void ends(net_recipe *r)
{
    r->layers.ignore_first_residual = r->layers.ignore_last_residual = true;
    r->layers.d_intermediate = 6;
}

static void class_tokens(net_recipe *r)
{
    static const kr_layer_class_token each[] = { { 0, { .kind = KR_CLASS_TOKEN_START } },
                                                 { 1, { .kind = KR_CLASS_TOKEN_MIDDLE } } };
    r->layers.layer_latents = each;
    r->layers.n_layer_latents = 2;
}

static const struct {
    const char *name;
    void (*set)(net_recipe *r);
} variants[] = { { "plain", NULL }, { "gates", gates }, { "ends", ends }, { "class tokens", class_tokens } };
enum { NVARIANTS = sizeof variants / sizeof *variants };

static net_recipe recipe(int family, int which)
{
    net_recipe r = net_recipe_of((kr_family)family, BARE);
    net_recipe_type(&r, KR_DTYPE_F64);
    r.layers.n_virtual = NV;
    if (variants[which].set) variants[which].set(&r);
    return r;
}

/* The sum of all streams' elements, each times a number of its own. */
static kr_tensor *weigh(kr_tape *tape, kr_tensor *const *streams)
{
    kr_tensor *sum = NULL;
    for (int v = 0; v < NV; v++) {
        kr_tensor *part = differences_weigh(tape, streams[v], v);
        sum = sum ? kr_add(tape, sum, part) : part;
    }
    return sum;
}

static void take_grads(net *n, kr_tensor *x, double **grads)
{
    const int64_t count = kr_params_count(n->params);
    for (int64_t i = 0; i <= count; i++) {
        const kr_tensor *g = kr_grad(i < count ? kr_params_at(n->params, i)->tensor : x);
        grads[i] = g ? kr_test_values(g) : NULL;
    }
}

/* Values, and the gradients that flow out of the streams alone. */
TEST(streams_are_those_of_the_formulas)
{
    for (int family = 0; family < NET_FAMILIES; family++)
        for (int k = 0; k < 2 * NVARIANTS; k++) {
            net_recipe r = recipe(family, k / 2);
            if (k % 2) r.layers.recompute = KR_RECOMPUTE_ALL;
            net n;
            if (!net_open(&n, variants[k / 2].name, &r, 1)) continue;
            double *grads[2][128] = { { NULL } };
            kr_tensor *streams[NV], *after[NV];
            kr_call call;
            kr_call_init(&call);
            call.streams = streams;
            kr_tensor *x = net_input(&n, n.tape, NB, NS);
            kr_tensor *y = kr_layers_forward(n.tape, n.stack, x, &call).y;
            CHECK_OK(n.ctx);
            CHECK(y == streams[NV - 1], "%s: the last stream is not the output", n.name);
            kr_backward(n.tape, weigh(n.tape, streams));
            take_grads(&n, x, grads[0]);
            kr_params_zero_grad(n.params);
            kr_tape *tape = kr_tape_create(n.ctx, KR_TAPE_GRAD);
            kr_tensor *again = net_input(&n, tape, NB, NS);
            streams_by_hand(tape, n.layers, again, after);
            for (int v = 0; v < NV; v++) CHECK_TENSORS(n.name, streams[v], after[v], 1e-12, NET_FLOOR);
            kr_backward(tape, weigh(tape, after));
            take_grads(&n, again, grads[1]);
            CHECK_OK(n.ctx);
            const int64_t count = kr_params_count(n.params);
            for (int64_t i = 0; i <= count; i++) {
                const kr_tensor *of = i < count ? kr_params_at(n.params, i)->tensor : x;
                const char *name = i < count ? kr_params_at(n.params, i)->name : "x";
                CHECK(!grads[0][i] == !grads[1][i], "%s: a gradient of %s on one side only", n.name, name);
                if (grads[0][i] && grads[1][i])
                    CHECK_CLOSE(name, grads[0][i], grads[1][i], kr_tensor_count(of), NULL, 1e-11, NET_FLOOR);
                free(grads[0][i]);
                free(grads[1][i]);
            }
            kr_tape_destroy(tape);
            net_close(&n);
        }
}

/* Unrecorded layers, all of them or those below a horizon, give the same bits, and they stay until the tape's reset. */
TEST(streams_outlast_their_layers)
{
    for (int family = 0; family < NET_FAMILIES; family++)
        for (int which = 0; which < NVARIANTS; which++)
            for (int how = 0; how < 2; how++) {
                net_recipe r = recipe(family, which);
                net n;
                if (!net_open(&n, variants[which].name, &r, 1)) continue;
                kr_tensor *streams[NV], *kept[NV];
                kr_call call;
                kr_call_init(&call);
                call.streams = kept;
                kr_layers_forward(n.tape, n.stack, net_input(&n, n.tape, NB, NS), &call);
                kr_tape *tape = kr_tape_create(n.ctx, how ? KR_TAPE_GRAD : KR_TAPE_NO_GRAD);
                if (how) n.stack->config.grad_horizon = 1;
                call.streams = streams;
                kr_layers_forward(tape, n.stack, net_input(&n, tape, NB, NS), &call);
                kr_randn(tape, KR_DTYPE_F64, KR_SHAPE(NB, NS, 40)); /* into the memory that was released */
                CHECK_OK(n.ctx);
                for (int v = 0; v < NV; v++) {
                    CHECK_SAME_BITS(n.name, streams[v], kept[v]);
                    CHECK(kr_requires_grad(streams[v]) == (how && v == NV - 1), "%s: gradient of stream %d", n.name, v);
                }
                kr_tape_destroy(tape);
                net_close(&n);
            }
}

/* A step's streams are those of its token. */
TEST(streams_of_steps)
{
    for (int family = 0; family < NET_FAMILIES; family++) {
        const net_recipe r = recipe(family, 1);
        net n;
        if (!net_open(&n, "steps", &r, 1)) continue;
        kr_tensor *streams[NV], *whole[NV], *x = net_input(&n, n.tape, NB, NS);
        kr_call call;
        kr_call_init(&call);
        call.streams = whole;
        kr_layers_forward(n.tape, n.stack, x, &call);
        call.streams = streams;
        for (int64_t s = 0; s < NS; s++) {
            kr_tensor *token = kr_reshape(n.tape, kr_slice(n.tape, x, 1, s, s + 1), KR_SHAPE(NB, NET_D));
            call.state = kr_layers_step(n.tape, n.stack, token, &call).state;
            for (int v = 0; v < NV; v++)
                CHECK_TENSORS("stream of a step", streams[v], kr_slice(n.tape, whole[v], 1, s, s + 1), 1e-12,
                              NET_FLOOR);
        }
        CHECK_OK(n.ctx);
        net_close(&n);
    }
}

/* Before any token there is a stream where a class token is, and none elsewhere. */
TEST(streams_of_primes)
{
    static const kr_layer_class_token first = { 1, { .kind = KR_CLASS_TOKEN_START } };
    net_recipe r = recipe(KR_FAMILY_MAMBA2, 0);
    r.layers.layer_latents = &first;
    r.layers.n_layer_latents = 1;
    r.layers.n_virtual = 2;
    net n;
    if (!net_open(&n, "primes", &r, 1)) return;
    kr_state *state = kr_state_create(n.ctx, n.stack, NB);
    kr_state_announce(state, 3);
    kr_tensor *streams[2];
    kr_call call;
    kr_call_init(&call);
    call.state = state;
    call.streams = streams;
    kr_layers_prime(n.tape, n.stack, &call);
    CHECK_OK(n.ctx);
    CHECK(!streams[0], "a stream without a token");
    CHECK(kr_tensor_dim(streams[1], 0) == NB && kr_tensor_dim(streams[1], 1) == 1, "no stream of the class token");
    kr_state_destroy(state);
    net_close(&n);
}
