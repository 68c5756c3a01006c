/* test_loss_errors.c - what losses refuse, and in which words. */
#include "tests/error_tests.h"

static kr_cross_entropy_options o;
static kr_loss_options l;

static void defaults(void)
{
    kr_cross_entropy_options_init(&o);
    kr_loss_options_init(&l);
}

static kr_tensor *labels(const int32_t *values, int64_t count)
{
    return kr_from_data(t, KR_DTYPE_I32, KR_SHAPE(count), values);
}

TEST(cross_entropy_refuses)
{
    begin();
    defaults();
    REFUSED(KR_ERR_ARG, "cross_entropy: operand logits is NULL", kr_cross_entropy(t, NULL, I(2), NULL));
    REFUSED(KR_ERR_ARG, "cross_entropy: operand labels is NULL", kr_cross_entropy(t, F(2, 3), NULL, NULL));
    REFUSED(KR_ERR_SHAPE, "cross_entropy: leading axes of labels [3] are [3], but logits [2, 3] has [2]",
            kr_cross_entropy(t, F(2, 3), I(3), NULL));
    REFUSED(KR_ERR_SHAPE, "cross_entropy: logits [2, 0] has no class; w must be at least 1",
            kr_cross_entropy(t, F(2, 0), I(2), NULL));
    REFUSED(KR_ERR_DTYPE, "cross_entropy: labels [2] is f32, but must be i32 or i64",
            kr_cross_entropy(t, F(2, 3), F(2), NULL));
    REFUSED(KR_ERR_DTYPE, "cross_entropy: logits [2, 3] is i32, but must be f32, f64, bf16 or f16; kr_cast converts",
            kr_cross_entropy(t, I(2, 3), I(2), NULL));
    REFUSED(KR_ERR_ARG, "cross_entropy: label [1] is 3, but must be from 0 to 2, or ignore_index = -100",
            kr_cross_entropy(t, F(2, 3), labels((const int32_t[]){ 2, 3 }, 2), NULL));
    REFUSED(
        KR_ERR_ARG, "cross_entropy: label [0, 1] is -1, but must be from 0 to 2, or ignore_index = -100",
        kr_cross_entropy(t, F(1, 2, 3), kr_reshape(t, labels((const int32_t[]){ -100, -1 }, 2), KR_SHAPE(1, 2)), NULL));
    o.n_classes = 2;
    REFUSED(KR_ERR_ARG, "cross_entropy: label [0] is 2, but must be from 0 to 1, or ignore_index = -100",
            kr_cross_entropy(t, F(1, 3), labels((const int32_t[]){ 2 }, 1), &o));
    o.n_classes = 4;
    REFUSED(KR_ERR_ARG, "cross_entropy: n_classes = 4, but logits [2, 3] says w = 3",
            kr_cross_entropy(t, F(2, 3), I(2), &o));
    defaults();
    o.label_smoothing = 1.5;
    REFUSED(KR_ERR_ARG, "cross_entropy: label_smoothing = 1.5, but must be from 0 to 1",
            kr_cross_entropy(t, F(2, 3), I(2), &o));
    o.label_smoothing = NAN;
    REFUSED(KR_ERR_ARG, "cross_entropy: label_smoothing = nan, but must be from 0 to 1",
            kr_cross_entropy(t, F(2, 3), I(2), &o));
    defaults();
    o.reduction = (kr_reduction)2;
    REFUSED(KR_ERR_ARG, "cross_entropy: reduction = 2 is neither KR_REDUCTION_MEAN nor KR_REDUCTION_SUM",
            kr_cross_entropy(t, F(2, 3), I(2), &o));
    defaults();
#define MASKED(m) (o.mask = (m), kr_cross_entropy(t, F(2, 3), I(2), &o))
    REFUSED(KR_ERR_DTYPE, "cross_entropy: mask [2] is f32, but must be i32 or i64", MASKED(F(2)));
    REFUSED(KR_ERR_SHAPE, "cross_entropy: leading axes of mask [3] are [3], but logits [2, 3] has [2]", MASKED(I(3)));
    end();
}

TEST(head_cross_entropy_refuses)
{
    begin();
    REFUSED(KR_ERR_ARG, "head_cross_entropy: operand weight is NULL",
            kr_head_cross_entropy(t, F(2, 3), NULL, NULL, I(2), NULL));
    REFUSED(KR_ERR_SHAPE, "head_cross_entropy: axis d of weight [5, 4] is 4, but hidden [2, 3] says d = 3",
            kr_head_cross_entropy(t, F(2, 3), F(5, 4), NULL, I(2), NULL));
    REFUSED(KR_ERR_SHAPE, "head_cross_entropy: axis w of bias [4] is 4, but weight [5, 3] says w = 5",
            kr_head_cross_entropy(t, F(2, 3), F(5, 3), F(4), I(2), NULL));
    REFUSED(KR_ERR_DTYPE,
            "head_cross_entropy: weight [5, 3] is f64, but hidden is f32; f64 mixes with no other type, kr_cast one of "
            "them",
            kr_head_cross_entropy(t, F(2, 3), D(5, 3), NULL, I(2), NULL));
    REFUSED(KR_ERR_ARG, "head_cross_entropy: label [1] is 5, but must be from 0 to 4, or ignore_index = -100",
            kr_head_cross_entropy(t, F(2, 3), F(5, 3), NULL, labels((const int32_t[]){ 4, 5 }, 2), NULL));
    REFUSED(KR_ERR_SHAPE, "head_cross_entropy: weight [0, 3] has no class; w must be at least 1",
            kr_head_cross_entropy(t, F(2, 3), F(0, 3), NULL, I(2), NULL));
    REFUSED(KR_ERR_ARG, "accuracy: label [1] is 9, but must be from 0 to 2, or ignore_index = -100",
            kr_accuracy(t, F(2, 3), labels((const int32_t[]){ 0, 9 }, 2), NULL).scored);
    end();
}

TEST(losses_with_targets_refuse)
{
    begin();
    defaults();
    REFUSED(KR_ERR_ARG, "mse: operand targets is NULL", kr_mse(t, F(2, 3), NULL, NULL));
    REFUSED(KR_ERR_SHAPE, "mse: leading axes of targets [3] are [3], but outputs [2, 3] has [2, 3]",
            kr_mse(t, F(2, 3), F(3), NULL));
    REFUSED(KR_ERR_SHAPE, "soft_cross_entropy: axis w of targets [2, 4] is 4, but outputs [2, 3] says w = 3",
            kr_soft_cross_entropy(t, F(2, 3), F(2, 4), NULL));
    REFUSED(KR_ERR_DTYPE, "bce: targets [2] is i32, but must be f32, f64, bf16 or f16; kr_cast converts",
            kr_bce(t, F(2), I(2), NULL));
    l.has_probabilities = true;
    REFUSED(KR_ERR_ARG, "mse: has_probabilities is set, but outputs are taken as they are", kr_mse(t, F(2), F(2), &l));
    defaults();
    l.has_target_logits = true;
    REFUSED(KR_ERR_ARG, "bce: has_target_logits is set, but is for soft_cross_entropy", kr_bce(t, F(2), F(2), &l));
    defaults();
    l.eps = 1;
    REFUSED(KR_ERR_ARG, "bce: eps = 1, but must be from 0 to below 1", kr_bce(t, F(2), F(2), &l));
    defaults();
    l.huber_delta = 0;
    REFUSED(KR_ERR_ARG, "huber_loss: huber_delta = 0, but must be above 0 and finite",
            kr_huber_loss(t, F(2), F(2), &l));
    defaults();
    l.quantile = 1;
    REFUSED(KR_ERR_ARG, "quantile_loss: quantile = 1, but must be above 0 and below 1",
            kr_quantile_loss(t, F(2), F(2), &l));
    defaults();
    REFUSED(KR_ERR_ARG, "l1_loss: operand outputs is NULL", kr_l1_loss(t, NULL, F(2), NULL));
    REFUSED(KR_ERR_ARG, "target_loss: kind = 0 is cross-entropy, which has labels, not targets; use kr_cross_entropy",
            kr_target_loss(t, KR_LOSS_CROSS_ENTROPY, F(2), F(2), NULL));
    REFUSED(KR_ERR_ARG, "target_loss: kind = 7 is not a kr_loss_kind",
            kr_target_loss(t, (kr_loss_kind)7, F(2), F(2), NULL));
    l.reduction = (kr_reduction)-1;
    REFUSED(KR_ERR_ARG, "bce: reduction = -1 is neither KR_REDUCTION_MEAN nor KR_REDUCTION_SUM",
            kr_bce(t, F(2), F(2), &l));
    defaults();
#define WITH(m, call) (l.mask = (m), (call))
    REFUSED(KR_ERR_SHAPE, "mse: mask [2] does not repeat to [2, 3], the outputs' shape",
            WITH(I(2), kr_mse(t, F(2, 3), F(2, 3), &l)));
    REFUSED(KR_ERR_SHAPE, "soft_cross_entropy: mask [2, 3] does not repeat to [2], a number for each row",
            WITH(I(2, 3), kr_soft_cross_entropy(t, F(2, 3), F(2, 3), &l)));
    REFUSED(KR_ERR_DTYPE, "bce: mask [3] is f32, but must be i32 or i64", WITH(F(3), kr_bce(t, F(2, 3), F(2, 3), &l)));
    end();
}

/* ---- networks ---- */

static kr_network *network(bool is_vocab, bool has_class_tokens)
{
    kr_mamba2_config mamba;
    kr_mamba2_config_init(&mamba);
    mamba.d_model = 8;
    mamba.per_head_dim = 8;
    kr_layers_config layers;
    kr_layers_config_init(&layers);
    layers.block = kr_mamba2_block(&mamba);
    layers.n_layers = 1;
    const kr_class_token class_token = { .kind = KR_CLASS_TOKEN_START };
    layers.n_latents = has_class_tokens;
    layers.latents = &class_token;
    kr_network_config config;
    kr_network_config_init(&config);
    config.layers = &layers;
    if (is_vocab) config.vocab_size = 5;
    else config.input_size = 3, config.output_size = 4;
    return kr_network_create(ctx, &config);
}

static kr_loss_call c;
static kr_call how;

/* The call with some fields set; others are as initialised. */
#define LOSS(net, ...)                                                                                                 \
    (kr_call_init(&how), kr_loss_call_init(&c), c.call = &how, __VA_ARGS__, kr_network_loss(t, net, &c).loss)

TEST(network_loss_refuses)
{
    begin();
    kr_network *vocab = network(true, false), *latent = network(false, false), *marked = network(true, true);
    CHECK_OK(ctx);
    REFUSED(KR_ERR_ARG, "network.loss: the network is NULL", LOSS(NULL, c.ids_bs = I(1, 2)));
    REFUSED(KR_ERR_ARG, "network.loss: the call is NULL; it says what the input is",
            kr_network_loss(t, vocab, NULL).loss);
    char text[160];
    snprintf(
        text, sizeof text,
        "network.loss: kr_loss_call.size is 0, but the struct has %zu bytes; call kr_loss_call_init before setting "
        "fields",
        sizeof c);
    REFUSED(KR_ERR_ARG, text, LOSS(vocab, c.size = 0));
    snprintf(text, sizeof text,
             "network.loss: kr_call.size is 1, but the struct has %zu bytes; call kr_call_init before setting fields",
             sizeof how);
    REFUSED(KR_ERR_ARG, text, LOSS(vocab, how.size = 1));
    REFUSED(KR_ERR_ARG, "network.loss: kind = 7 is not a kr_loss_kind", LOSS(vocab, c.kind = (kr_loss_kind)7));
    REFUSED(KR_ERR_ARG, "network.loss: ids_bs is NULL, but is the input of a vocabulary network",
            LOSS(vocab, c.kind = 0));
    REFUSED(KR_ERR_ARG, "network.loss: x_bsf is NULL, but is the input of a latent network",
            LOSS(latent, c.ids_bs = I(1, 2)));
    REFUSED(KR_ERR_ARG, "network.loss: ids_bs is given, but a latent network reads x_bsf",
            LOSS(latent, c.ids_bs = I(1, 2), c.x_bsf = F(1, 2, 3)));
    REFUSED(KR_ERR_ARG, "network.loss: labels is NULL, but only ids have a next token",
            LOSS(latent, c.x_bsf = F(1, 2, 3)));
    REFUSED(KR_ERR_ARG,
            "network.loss: labels is NULL, but the network inserts class tokens; give a label for each output",
            LOSS(marked, c.ids_bs = I(1, 2)));
    REFUSED(KR_ERR_ARG, "network.loss: labels is NULL, but the last token has no next one",
            LOSS(vocab, c.ids_bs = I(1, 2), how.last_logits_only = true));
    REFUSED(KR_ERR_ARG,
            "network.loss: targets are given, but cross-entropy has labels, and the other kinds have targets",
            LOSS(vocab, c.ids_bs = I(1, 2), c.targets = F(1, 2, 8)));
    REFUSED(KR_ERR_ARG,
            "network.loss: labels are given, but cross-entropy has labels, and the other kinds have targets",
            LOSS(latent, c.x_bsf = F(1, 2, 3), c.kind = KR_LOSS_MSE, c.labels = I(1, 2)));
    REFUSED(KR_ERR_ARG, "network.loss: targets is NULL, but this kind of loss has them",
            LOSS(latent, c.x_bsf = F(1, 2, 3), c.kind = KR_LOSS_BCE));
    REFUSED(KR_ERR_ARG, "network.loss: label_smoothing = 0.1, but this kind of loss has no labels",
            LOSS(latent, c.x_bsf = F(1, 2, 3), c.kind = KR_LOSS_BCE, c.targets = F(1, 2, 4), c.label_smoothing = 0.1));
    REFUSED(KR_ERR_SHAPE,
            "network.loss: mse: leading axes of targets [1, 2, 5] are [1, 2, 5], but outputs [1, 2, 4] has [1, 2, 4]",
            LOSS(latent, c.x_bsf = F(1, 2, 3), c.kind = KR_LOSS_MSE, c.targets = F(1, 2, 5)));
    REFUSED(KR_ERR_ARG,
            "network.loss: head_cross_entropy: label [0, 1] is 5, but must be from 0 to 4, or ignore_index = -100",
            LOSS(vocab, c.ids_bs = I(1, 2),
                 c.labels = kr_reshape(t, labels((const int32_t[]){ 4, 5 }, 2), KR_SHAPE(1, 2))));
    REFUSED(KR_ERR_SHAPE, "network.loss: scored [2] must be [1, 2]: a number for each token",
            LOSS(vocab, c.ids_bs = I(1, 2), c.scored = I(2)));
    REFUSED(KR_ERR_SHAPE, "network.loss: seq_start [2, 1] must be [1, 2]: a number for each token",
            LOSS(vocab, c.ids_bs = I(1, 2), how.seq_start_bs = I(2, 1)));
    REFUSED(KR_ERR_SHAPE, "network.loss: ids [2] has rank 1, but must have 2 (axes bs)", LOSS(vocab, c.ids_bs = I(2)));
    REFUSED(KR_ERR_ARG, "network.forward: seq_start and reset are both given; choose one",
            LOSS(vocab, c.ids_bs = I(1, 2), how.seq_start_bs = I(1, 2), how.reset_bs = I(1, 2)));
    kr_network_destroy(marked);
    kr_network_destroy(latent);
    kr_network_destroy(vocab);
    end();
}
