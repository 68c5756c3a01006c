/* test_call_precision.c - the precision of a call: the bits of a context of that precision, forward and backward, whatever the
 * context's own is. On a GPU, and with the reference kernels, which take bf16 operands too.
 */
#include "tests/harness.h"

#include "device/device.h"

#include <krait/train.h>

enum { NB = 2, NS = 40, ND = 32, VOCAB = 48, MOST = 1 << 16 };

typedef struct setting {
    const char *device, *isa;
    kr_family family;
    kr_recompute recompute;
} setting;

/* The loss, its outputs' gradients of all parameters, and the logits of a forward pass. */
typedef struct results {
    int64_t count;
    double values[MOST];
} results;

static kr_ctx *open_context(const setting *s, kr_precision precision)
{
    kr_ctx_options options;
    kr_ctx_options_init(&options);
    options.device = s->device;
    options.isa = s->isa;
    options.precision = precision;
    options.threads = 2;
    options.seed = 5;
    return kr_ctx_create(&options);
}

static kr_network *make_network(kr_ctx *ctx, const setting *s)
{
    kr_mamba2_config mamba2;
    kr_mamba3_config mamba3;
    kr_layers_config layers;
    kr_network_config config;
    kr_mamba2_config_init(&mamba2);
    kr_mamba3_config_init(&mamba3);
    kr_layers_config_init(&layers);
    kr_network_config_init(&config);
    mamba2.d_model = mamba3.d_model = ND;
    mamba2.state_rank = mamba3.state_rank = 16;
    mamba2.per_head_dim = mamba3.per_head_dim = 16;
    layers.block = s->family == KR_FAMILY_MAMBA2 ? kr_mamba2_block(&mamba2) : kr_mamba3_block(&mamba3);
    layers.n_layers = 2;
    layers.recompute = s->recompute;
    config.layers = &layers;
    config.vocab_size = VOCAB;
    config.tie_embeddings = false;
    return kr_network_create(ctx, &config);
}

static void put(results *r, const kr_tensor *x)
{
    const int64_t n = kr_tensor_count(x);
    if (!CHECK(r->count + n <= MOST, "%lld numbers", (long long)(r->count + n))) return;
    IGNORE(kr_tensor_read(x, KR_DTYPE_F64, r->values + r->count, n));
    r->count += n;
}

/* Everything by calls of this precision, in a context of that one. */
static void compute(const setting *s, kr_precision of_ctx, kr_precision of_call, results *r)
{
    int32_t ids[NB * NS];
    kr_ctx *ctx = open_context(s, of_ctx);
    kr_network *net = make_network(ctx, s);
    kr_tape *tape = kr_tape_create(ctx, KR_TAPE_GRAD);
    kr_call call;
    kr_loss_call loss;
    kr_call_init(&call);
    kr_loss_call_init(&loss);
    CHECK(call.precision == KR_PRECISION_UNSET, "the default");
    call.precision = of_call;
    for (int i = 0; i < NB * NS; i++) ids[i] = (i * 37 + i / 7) % VOCAB;
    loss.ids_bs = kr_from_data(tape, KR_DTYPE_I32, KR_SHAPE(NB, NS), ids);
    loss.call = &call;
    r->count = 0;
    const kr_loss_out out = kr_network_loss(tape, net, &loss);
    kr_backward(tape, out.loss);
    CHECK_OK(ctx);
    put(r, out.loss);
    const kr_params *params = kr_network_params(net);
    for (int64_t i = 0; i < kr_params_count(params); i++) put(r, kr_grad(kr_params_at(params, i)->tensor));
    kr_tape_reset(tape);
    kr_tensor *id_bs = kr_from_data(tape, KR_DTYPE_I32, KR_SHAPE(NB, NS), ids);
    put(r, kr_network_forward(tape, net, id_bs, &call).y);
    CHECK(ctx->device->precision == of_ctx, "the context's precision is %d", (int)ctx->device->precision);
    CHECK_OK(ctx);
    kr_tape_destroy(tape);
    kr_network_destroy(net);
    kr_ctx_destroy(ctx);
}

static bool are_equal(const results *a, const results *b)
{
    return a->count == b->count && memcmp(a->values, b->values, (size_t)a->count * sizeof *a->values) == 0;
}

static void check_setting(const setting *s)
{
    static results exact, bf16, got;
    const kr_precision unset = KR_PRECISION_UNSET;
    compute(s, KR_PRECISION_EXACT, unset, &exact);
    compute(s, KR_PRECISION_BF16, unset, &bf16);
    CHECK(exact.count > 1000 && !are_equal(&exact, &bf16), "%s, family %d: bf16 has the bits of exact", s->device,
          (int)s->family);
    compute(s, KR_PRECISION_EXACT, KR_PRECISION_BF16, &got);
    CHECK(are_equal(&got, &bf16), "%s, family %d, recompute %d: calls in bf16", s->device, (int)s->family,
          (int)s->recompute);
    compute(s, KR_PRECISION_BF16, KR_PRECISION_EXACT, &got);
    CHECK(are_equal(&got, &exact), "%s, family %d, recompute %d: exact calls", s->device, (int)s->family,
          (int)s->recompute);
}

TEST(a_call_has_the_bits_of_a_context_of_its_precision)
{
    static const char *const devices[] = { "cpu", "cuda" };
    for (int d = 0; d < 2; d++)
        for (int family = KR_FAMILY_MAMBA2; family <= KR_FAMILY_MAMBA3; family++)
            for (int r = 0; r < 2; r++) {
                const setting s = { devices[d], d ? NULL : "ref", (kr_family)family,
                                    r ? KR_RECOMPUTE_ALL : KR_RECOMPUTE_NONE };
                kr_ctx *ctx = open_context(&s, KR_PRECISION_EXACT);
                const bool is_here = !kr_ctx_failed(ctx);
                kr_ctx_destroy(ctx);
                if (is_here) check_setting(&s);
            }
}

/* Two calls on one tape: the backward pass of each has its own precision. */
TEST(calls_on_one_tape_have_their_own_precisions)
{
    const setting s = { "cpu", "ref", KR_FAMILY_MAMBA2, KR_RECOMPUTE_NONE };
    static const kr_precision precisions[] = { KR_PRECISION_EXACT, KR_PRECISION_BF16 };
    double g[2][2][NB * NS * ND]; /* of both calls, in either order */
    kr_ctx *ctx = open_context(&s, KR_PRECISION_EXACT);
    kr_network *net = make_network(ctx, &s);
    for (int order = 0; order < 2; order++) {
        kr_tensor *x[2], *y[2];
        kr_tape *tape = kr_tape_create(ctx, KR_TAPE_GRAD);
        kr_ctx_seed(ctx, 3);
        kr_tensor *noise = kr_randn(tape, KR_DTYPE_F32, KR_SHAPE(NB, NS, ND));
        for (int k = 0; k < 2; k++) {
            kr_call call;
            kr_call_init(&call);
            call.precision = precisions[k ^ order];
            x[k] = kr_input(tape, noise);
            y[k] = kr_sum(tape, kr_layers_forward(tape, kr_network_layers(net), x[k], &call).y, KR_ALL_AXES, false);
        }
        CHECK(kr_backward(tape, kr_add(tape, y[0], y[1])) == KR_OK, "%s", kr_ctx_message(ctx));
        for (int k = 0; k < 2; k++)
            CHECK(kr_tensor_read(kr_grad(x[k]), KR_DTYPE_F64, g[order][k], NB * NS * ND) == KR_OK, "no gradient");
        kr_tape_destroy(tape);
    }
    CHECK(memcmp(g[0][0], g[1][1], sizeof g[0][0]) == 0 && memcmp(g[0][1], g[1][0], sizeof g[0][0]) == 0,
          "gradients depend on the other call");
    CHECK(memcmp(g[0][0], g[0][1], sizeof g[0][0]) != 0, "both are exact");
    kr_network_destroy(net);
    kr_ctx_destroy(ctx);
}

TEST(a_failed_call_leaves_the_precision_of_the_context)
{
    const setting s = { "cpu", "ref", KR_FAMILY_MAMBA2, KR_RECOMPUTE_NONE };
    kr_ctx *ctx = open_context(&s, KR_PRECISION_EXACT);
    kr_network *net = make_network(ctx, &s);
    kr_tape *tape = kr_tape_create(ctx, KR_TAPE_GRAD);
    kr_call call;
    kr_call_init(&call);
    call.precision = KR_PRECISION_BF16;
    CHECK(!kr_network_forward(tape, net, kr_zeros(tape, KR_DTYPE_F32, KR_SHAPE(2)), &call).y, "ids of one axis");
    CHECK(ctx->device->precision == KR_PRECISION_EXACT, "%d", (int)ctx->device->precision);
    CHECK_ERROR_HAS(ctx, KR_ERR_SHAPE, "network.forward: ");
    kr_tape_reset(tape);
    for (int bad = -2; bad <= 3; bad += 5) {
        call.precision = (kr_precision)bad;
        CHECK(!kr_network_forward(tape, net, kr_zeros(tape, KR_DTYPE_I32, KR_SHAPE(1, 2)), &call).y, "%d", bad);
        char text[100];
        snprintf(text, sizeof text, "network.forward: precision = %d is not a kr_precision", bad);
        CHECK_ERROR_HAS(ctx, KR_ERR_ARG, text);
        kr_tape_reset(tape);
    }
    kr_tape_destroy(tape);
    kr_network_destroy(net);
    kr_ctx_destroy(ctx);
}

TEST(a_stack_in_both_directions_has_the_precision_of_its_call)
{
    const setting s = { "cpu", "ref", KR_FAMILY_MAMBA2, KR_RECOMPUTE_NONE };
    enum { COUNT = NB * NS * ND };
    double y[2][2][COUNT]; /* by the precision of the result, of context and call */
    for (int of_call = 0; of_call < 2; of_call++)
        for (int which = 0; which < 2; which++) {
            const kr_precision precision = which ? KR_PRECISION_BF16 : KR_PRECISION_EXACT;
            kr_ctx *ctx = open_context(&s, of_call ? KR_PRECISION_EXACT : precision);
            kr_mamba2_config mamba;
            kr_bidi_config config;
            kr_bidi_call call;
            kr_mamba2_config_init(&mamba);
            kr_bidi_config_init(&config);
            kr_bidi_call_init(&call);
            mamba.d_model = ND;
            mamba.state_rank = mamba.per_head_dim = 16;
            config.block = kr_mamba2_block(&mamba);
            config.n_layers = 2;
            if (of_call) call.precision = precision;
            kr_bidi *bidi = kr_bidi_create(ctx, &config);
            kr_tape *tape = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
            kr_tensor *x = kr_randn(tape, KR_DTYPE_F32, KR_SHAPE(NB, NS, ND));
            CHECK(kr_tensor_read(kr_bidi_forward(tape, bidi, x, &call).y, KR_DTYPE_F64, y[which][of_call], COUNT) ==
                      KR_OK,
                  "%s", kr_ctx_message(ctx));
            call.precision = (kr_precision)9;
            CHECK(!kr_bidi_forward(tape, bidi, x, &call).y, "a precision of 9");
            CHECK_ERROR_HAS(ctx, KR_ERR_ARG, "bidi.forward: precision = 9 is not a kr_precision");
            kr_tape_destroy(tape);
            kr_bidi_destroy(bidi);
            kr_ctx_destroy(ctx);
        }
    for (int which = 0; which < 2; which++)
        CHECK(memcmp(y[which][0], y[which][1], sizeof y[0][0]) == 0, "precision %d of the call", which);
    CHECK(memcmp(y[0][0], y[1][0], sizeof y[0][0]) != 0, "bf16 is exact");
}
