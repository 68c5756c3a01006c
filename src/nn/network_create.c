/* network_create.c - the config of a network, its checks, its parameters and their initial values.
 *
 *   vocabulary   backbone.embedding.weight [w d], backbone.layers..., backbone.norm_f.weight [d], lm_head.weight [w d]
 *   latent       in_proj [d f], backbone.layers..., backbone.norm_f.weight [d], out_proj [o d], class_tokens [n f]
 */
#include "nn/block_config.h"

#include "base/sized.h"
#include "nn/network_impl.h"

#include <math.h>
#include <string.h>

#define OP "network.create"

KR_DEFAULTS(kr_network_config) = { .size = sizeof(kr_network_config),
                                   .pad_vocab_size_multiple = 8,
                                   .tie_embeddings = true,
                                   .embedding_std = 0.02,
                                   .rescale_residual = true,
                                   .n_residuals = 1,
                                   .zero_proj_biases = true };

static bool check_config(kr_ctx *ctx, const kr_network_config *c)
{
    return kr_require(ctx, c->layers != NULL, KR_ERR_ARG, OP ": layers is NULL; point it at a kr_layers_config") &&
           kr_config_at_least(ctx, OP, "vocab_size", c->vocab_size, 0) &&
           kr_config_at_least(ctx, OP, "input_size", c->input_size, 0) &&
           kr_require(ctx, (c->vocab_size > 0) != (c->input_size > 0), KR_ERR_ARG,
                      OP
                      ": vocab_size = %lld and input_size = %lld, but one of them must be above 0: tokens or features",
                      (long long)c->vocab_size, (long long)c->input_size) &&
           (c->vocab_size == 0 ||
            (kr_config_at_least(ctx, OP, "pad_vocab_size_multiple", c->pad_vocab_size_multiple, 1) &&
             kr_config_positive(ctx, OP, "embedding_std", c->embedding_std) &&
             kr_config_at_least(ctx, OP, "n_residuals", c->n_residuals, 1) &&
             kr_require(ctx, c->output_size == 0, KR_ERR_ARG,
                        OP ": output_size = %lld, but a vocabulary network gives logits; leave it 0",
                        (long long)c->output_size) &&
             kr_require(ctx, c->n_class_tokens == 0, KR_ERR_ARG,
                        OP
                        ": n_class_tokens = %d, but class tokens are for latent networks; a vocabulary network takes "
                        "latents of its stack",
                        c->n_class_tokens))) &&
           (c->input_size == 0 || kr_config_at_least(ctx, OP, "output_size", c->output_size, 1)) &&
           kr_class_tokens_check(ctx, OP, "class_tokens", c->class_tokens, c->n_class_tokens);
}

/* ---- parameters ---- */

static kr_tensor *declare_table(kr_params *params, const char *name, kr_dtype dtype, int64_t rows, int64_t width,
                                const char *axes, double std, bool is_head)
{
    return kr_params_add(params, &(kr_param_spec){ .name = name,
                                                   .axes = axes,
                                                   .dtype = dtype,
                                                   .shape = KR_SHAPE(rows, width),
                                                   .init = { KR_INIT_NORMAL, 0, std, 0 },
                                                   .has_decay = true,
                                                   .is_linear = is_head });
}

static kr_tensor *declare_linear(kr_params *params, const char *name, const char *axes, kr_dtype dtype, int64_t out,
                                 int64_t in)
{
    return kr_params_add_linear(
        params, &(kr_param_spec){ .name = name, .axes = axes, .dtype = dtype, .shape = KR_SHAPE(out, in) });
}

/* Input and output modules; their rows come last, since the stack defines width and type. */
static void declare_ends(kr_network *net, kr_dtype dtype, int64_t nd)
{
    const kr_network_config *c = &net->config;
    if (net->is_vocab) {
        net->embedding_wd = declare_table(net->params, "backbone.embedding.weight", dtype, net->nw, nd, "w d",
                                          c->embedding_std, c->tie_embeddings);
        if (!c->tie_embeddings) net->head_wd = declare_linear(net->params, "lm_head.weight", "w d", dtype, net->nw, nd);
        return;
    }
    net->in_proj = declare_linear(net->params, "in_proj.weight", "d f", dtype, nd, c->input_size);
    net->in_proj_bias = kr_params_add_bias(net->params, "in_proj.bias", "d", dtype, nd, c->input_size);
    net->out_proj = declare_linear(net->params, "out_proj.weight", "o d", dtype, c->output_size, nd);
    net->out_proj_bias = kr_params_add_bias(net->params, "out_proj.bias", "o", dtype, c->output_size, nd);
    if (c->n_class_tokens)
        net->class_tokens_nf =
            declare_table(net->params, "class_tokens", dtype, c->n_class_tokens, c->input_size, "n f", 0.02, false);
}

static bool declare(kr_network *net, const kr_layers_config *layers)
{
    const kr_network_config *c = &net->config;
    const size_t outer = kr_params_enter(net->params, "backbone.");
    net->layers = kr_layers_declare(net->ctx, net->params, layers, false);
    kr_params_leave(net->params, outer);
    if (!net->layers) return kr_blame(net->ctx, OP);
    const kr_dtype dtype = kr_block_dtype(net->layers->layers[0].block);
    const int64_t nd = net->layers->nd;
    if (net->is_vocab || c->has_final_norm)
        net->norm_f_d = kr_params_add_vector(net->params, "backbone.norm_f.weight", "d", kr_config_small_dtype(dtype),
                                             nd, kr_init_fill(1));
    declare_ends(net, dtype, nd);
    if (net->is_vocab && c->rescale_residual)
        kr_params_rescale_residual(net->params, 1 / sqrt((double)(c->n_residuals * net->layers->nvirtual)));
    if (net->is_vocab && c->zero_proj_biases) kr_params_zero_biases(net->params);
    return !kr_ctx_failed(net->ctx);
}

static bool copy_tokens(kr_network *net)
{
    kr_network_config *c = &net->config;
    kr_class_token *copy = kr_arena_alloc(&net->arena, (size_t)(c->n_class_tokens + 1) * sizeof *copy);
    if (!copy) return kr_fail(net->ctx, KR_ERR_NOMEM, OP ": no memory for a list of class tokens");
    for (int i = 0; i < c->n_class_tokens; i++) {
        copy[i] = c->class_tokens[i];
        net->has_class_tokens = true;
        net->has_length_class_tokens |= copy[i].kind == KR_CLASS_TOKEN_MIDDLE || copy[i].kind == KR_CLASS_TOKEN_END;
    }
    c->class_tokens = copy;
    return true;
}

kr_network *kr_network_declare(kr_ctx *ctx, const kr_network_config *config)
{
    kr_network_config own;
    if (kr_ctx_failed(ctx) || !kr_config_given(ctx, OP, config) || !KR_TAKE(ctx, OP, kr_network_config, config, &own) ||
        !check_config(ctx, &own))
        return NULL;
    kr_network *net = kr_memory_alloc_zeroed(&ctx->memory, sizeof *net);
    if (!net) {
        kr_fail(ctx, KR_ERR_NOMEM, OP ": no memory for a network");
        return NULL;
    }
    const kr_layers_config *layers = own.layers;
    net->ctx = ctx;
    net->config = own;
    net->config.layers = NULL;
    net->is_vocab = own.vocab_size > 0;
    const int64_t pad = own.pad_vocab_size_multiple;
    net->nw = net->is_vocab ? (own.vocab_size + pad - 1) / pad * pad : own.output_size;
    kr_arena_init(&net->arena, &ctx->memory, 1024);
    net->params = kr_params_create(ctx);
    if (net->params && copy_tokens(net) && declare(net, layers)) {
        net->has_class_tokens |= net->layers->has_class_tokens;
        net->has_length_class_tokens |= net->layers->has_length_class_tokens;
        return net;
    }
    kr_network_destroy(net);
    return NULL;
}

kr_network *kr_network_create(kr_ctx *ctx, const kr_network_config *config)
{
    kr_network *net = kr_network_declare(ctx, config);
    if (net && kr_params_seal(net->params)) return net;
    kr_network_destroy(net);
    return NULL;
}

void kr_network_destroy(kr_network *net)
{
    if (!net) return;
    if (net->custom.destroy) net->custom.destroy(net->custom.user);
    if (net->layers) kr_layers_free(net->layers);
    kr_params_destroy(net->params);
    kr_arena_deinit(&net->arena);
    kr_memory_free(&net->ctx->memory, net, sizeof *net);
}

kr_state_layout kr_network_layout(const kr_network *net)
{
    return net->is_custom ? (kr_state_layout){ .nslots = net->nslots, .blocks = net->slots }
                          : kr_layers_layout(net->layers);
}

const kr_block *kr_network_slot(const kr_network *net, int64_t slot)
{
    return net->is_custom ? net->slots[slot] : net->layers->layers[net->layers->real[slot]].block;
}

kr_state *kr_network_state(const kr_network *net, int64_t batch)
{
    if (!net || kr_ctx_failed(net->ctx)) return NULL;
    const kr_state_layout layout = kr_network_layout(net);
    return kr_state_allocate(net->ctx, "network.state", &layout, batch);
}

kr_network_info kr_network_info_of(const kr_network *net)
{
    if (!net) return (kr_network_info){ .params = NULL };
    return (kr_network_info){ .params = net->is_custom ? net->custom.params : net->params,
                              .layers = net->layers,
                              .width = net->nw,
                              .grid = kr_network_grid_of(net) };
}
