/* test_official.c - tiny language models of the official implementation: the same logits, hidden states, loss, gradients
 * of every parameter, steps and final states.
 *
 * tests/golden/official_lm/NAME holds the weights, by the names of our own parameter table, and what the official code
 * made of input_ids and labels, in f32. Both sides round, so the bound is some 40 roundings of the largest element, and
 * for gradients, which are sums over all tokens, four times that.
 */
#include "tests/harness.h"

static const double values_bound = 2.5e-6, gradients_bound = 1e-5;

typedef struct blocks {
    kr_mamba1_config mamba1;
    kr_mamba2_config mamba2;
    kr_mamba3_config mamba3;
} blocks;

typedef struct model {
    const char *name;
    kr_family family;
    void (*change)(blocks *b); /* from the sizes that most have */
    bool is_tied;
} model;

static void groups(blocks *b)
{
    b->mamba2.state_rank = 16;
    b->mamba2.ngroups = 2;
}

static void mimo(blocks *b)
{
    b->mamba3.is_mimo = true;
    b->mamba3.mimo_rank = 4;
}

static void rope_and_norm(blocks *b)
{
    b->mamba3.state_rank = 16;
    b->mamba3.rope_fraction = 1;
    b->mamba3.has_outproj_norm = true;
}

static const model models[] = {
    { "mamba1", KR_MAMBA1, NULL, true },
    { "mamba2", KR_MAMBA2, NULL, true },
    { "mamba2_g2_untied", KR_MAMBA2, groups, false },
    { "mamba3_siso", KR_MAMBA3, NULL, true },
    { "mamba3_mimo", KR_MAMBA3, mimo, true },
    { "mamba3_siso_rope1_outnorm", KR_MAMBA3, rope_and_norm, false },
};

static kr_network *make_network(kr_ctx *ctx, const model *m)
{
    blocks b;
    kr_mamba1_config_init(&b.mamba1);
    kr_mamba2_config_init(&b.mamba2);
    kr_mamba3_config_init(&b.mamba3);
    b.mamba1.d_model = b.mamba2.d_model = b.mamba3.d_model = 64;
    b.mamba2.state_rank = b.mamba3.state_rank = 32;
    b.mamba2.per_head_dim = b.mamba3.per_head_dim = 16;
    if (m->change) m->change(&b);
    kr_layers_config stack;
    kr_layers_config_init(&stack);
    stack.n_layers = 2;
    stack.block = m->family == KR_MAMBA1   ? kr_mamba1_block(&b.mamba1)
                  : m->family == KR_MAMBA2 ? kr_mamba2_block(&b.mamba2)
                                           : kr_mamba3_block(&b.mamba3);
    kr_network_config config;
    kr_network_config_init(&config);
    config.layers = &stack;
    config.vocab_size = 256;
    config.tie_embeddings = m->is_tied;
    return kr_network_create(ctx, &config);
}

static kr_safetensors *open_file(kr_ctx *ctx, const model *m, const char *file)
{
    char path[512];
    snprintf(path, sizeof path, "%s/tests/golden/official_lm/%s/%s", KR_SOURCE_DIR, m->name, file);
    return kr_safetensors_open(ctx, path);
}

/* A tensor of a file on the tape; NULL if there is none. */
static kr_tensor *from_file(kr_tape *t, const kr_safetensors *file, const char *name)
{
    const kr_safetensors_item *item = kr_safetensors_find(file, name);
    return item ? kr_from_data(t, item->dtype, item->shape, item->data) : NULL;
}

/* Every parameter is in the file, and every tensor of the file is a parameter. */
static void read_weights(kr_tape *t, const kr_network *net, const kr_safetensors *file)
{
    const kr_params *params = kr_network_params(net);
    CHECK(kr_params_count(params) == kr_safetensors_count(file), "%lld parameters, %lld tensors",
          (long long)kr_params_count(params), (long long)kr_safetensors_count(file));
    for (int64_t i = 0; i < kr_params_count(params); i++) {
        const kr_param_row *row = kr_params_at(params, i);
        const kr_safetensors_item *item = kr_safetensors_find(file, row->name);
        const kr_tensor *given = from_file(t, file, row->name);
        char ours[200], theirs[200];
        if (!CHECK(given != NULL, "%s is not in the file", row->name)) continue;
        CHECK(strcmp(kr_shape_text(row->tensor, ours, sizeof ours), kr_shape_text(given, theirs, sizeof theirs)) == 0,
              "%s is %s, in the file %s", row->name, ours, theirs);
        kr_param_write(row->tensor, item->dtype, kr_tensor_data(given), item->count);
    }
}

static void check_forward(kr_tape *t, const kr_network *net, const kr_safetensors *io)
{
    kr_tensor *ids = from_file(t, io, "input_ids"), *labels = from_file(t, io, "labels");
    const int64_t nb = kr_tensor_dim(ids, 0), ns = kr_tensor_dim(ids, 1);
    const kr_network_out out = kr_network_forward(t, net, ids, NULL);
    kr_tensor *right = kr_gather(t, kr_log_softmax(t, out.y, -1), 2, kr_reshape(t, labels, KR_SHAPE(nb, ns, 1)));
    kr_tensor *loss = kr_neg(t, kr_mean(t, right, KR_ALL_AXES, false));
    kr_backward(t, loss);
    CHECK_TENSORS("logits", out.y, from_file(t, io, "logits"), values_bound, 0);
    CHECK_TENSORS("hidden", out.hidden, from_file(t, io, "hidden"), values_bound, 0);
    const double want = kr_item(from_file(t, io, "loss"));
    CHECK(fabs(kr_item(loss) - want) < values_bound * want, "loss %.9g, not %.9g", kr_item(loss), want);
    const kr_params *params = kr_network_params(net);
    for (int64_t i = 0; i < kr_params_count(params); i++) {
        const kr_param_row *row = kr_params_at(params, i);
        char name[200];
        snprintf(name, sizeof name, "grad/%s", row->name);
        kr_tensor *g = from_file(t, io, name);
        if (CHECK(g && kr_grad(row->tensor), "no %s", name))
            CHECK_TENSORS(name, kr_grad(row->tensor), g, gradients_bound, 0);
    }
}

/* Token by token; the files of Mamba-3 have no steps, whose logits are the forward's then, and no states. */
static void check_steps(kr_ctx *ctx, const kr_network *net, const kr_safetensors *io)
{
    kr_tape *t = kr_tape_create(ctx, KR_NO_GRAD);
    kr_tensor *ids = from_file(t, io, "input_ids");
    kr_tensor *want = from_file(t, io, kr_safetensors_find(io, "step_logits") ? "step_logits" : "logits");
    const int64_t nb = kr_tensor_dim(ids, 0), ns = kr_tensor_dim(ids, 1), nw = kr_tensor_dim(want, 2);
    kr_tensor *y[64];
    kr_call call;
    kr_call_init(&call);
    for (int64_t s = 0; s < ns && s < 64; s++) {
        kr_tensor *id = kr_reshape(t, kr_slice(t, ids, 1, s, s + 1), KR_SHAPE(nb));
        const kr_network_out out = kr_network_step(t, net, id, &call);
        y[s] = kr_reshape(t, out.y, KR_SHAPE(nb, 1, nw));
        call.state = out.state;
    }
    CHECK(ns <= 64, "%lld tokens", (long long)ns);
    CHECK_TENSORS("steps", kr_concat(t, 1, (int)ns, y), want, values_bound, 0);
    for (int64_t slot = 0; slot < 2; slot++) {
        char name[64];
        snprintf(name, sizeof name, "final_ssm_state/%lld", (long long)slot);
        if (!kr_safetensors_find(io, name)) continue;
        const kr_cache *cache = kr_state_cache(call.state, slot);
        CHECK_TENSORS(name, cache->tensors[1], from_file(t, io, name), values_bound, 0);
        snprintf(name, sizeof name, "final_conv_state/%lld", (long long)slot);
        CHECK_TENSORS(name, cache->tensors[0], from_file(t, io, name), values_bound, 0);
    }
    kr_tape_destroy(t);
}

TEST(official_models)
{
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        kr_ctx *ctx = kr_test_ctx(0, NULL);
        kr_network *net = make_network(ctx, &models[i]);
        kr_safetensors *weights = open_file(ctx, &models[i], "model.safetensors");
        kr_safetensors *io = open_file(ctx, &models[i], "io.safetensors");
        kr_tape *t = kr_tape_create(ctx, KR_GRAD);
        if (CHECK(net && weights && io, "%s: %s", models[i].name, kr_ctx_message(ctx))) {
            read_weights(t, net, weights);
            check_forward(t, net, io);
            check_steps(ctx, net, io);
        }
        CHECK(!kr_ctx_failed(ctx), "%s: %s", models[i].name, kr_ctx_message(ctx));
        kr_tape_destroy(t);
        kr_safetensors_close(io);
        kr_safetensors_close(weights);
        kr_network_destroy(net);
        kr_ctx_destroy(ctx);
    }
}
