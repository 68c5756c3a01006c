/* network_share.c - a network of another context over the same weights: declared again from the configs that the first one
 * keeps, with headers of its own that point to the same memory. Nothing of the first network is written, except the count of
 * its weights' users, so other threads may use it meanwhile. */
#include "nn/network_impl.h"

#define OP "network.share"

/* The config that a stack was declared with. `latents` has space for all of its layers' class tokens. */
static kr_layers_config config_of(const kr_layers *s, kr_layer_class_token *latents)
{
    kr_layers_config config = s->config;
    int count = 0;
    config.block = (kr_block_config){ .family = s->kind->family, .config = s->kind->config(s->layers[0].block) };
    config.custom_schedule = s->config.schedule == KR_SCHEDULE_CUSTOM ? s->real : NULL;
    for (int64_t l = 0; l < config.n_layers; l++)
        for (int i = 0; i < s->layers[l].nlatents; i++)
            latents[count++] = (kr_layer_class_token){ l, s->layers[l].latents[i] };
    config.layer_latents = latents;
    return config;
}

static kr_network *declare(kr_ctx *ctx, const kr_network *net)
{
    const size_t bytes = (size_t)net->layers->config.n_layer_latents * sizeof(kr_layer_class_token);
    kr_layer_class_token *latents = kr_memory_alloc(&ctx->memory, bytes);
    if (!latents) {
        kr_fail(ctx, KR_ERR_NOMEM, OP ": no memory for a list of class tokens");
        return NULL;
    }
    const kr_layers_config layers = config_of(net->layers, latents);
    kr_network_config config = net->config;
    config.layers = &layers;
    kr_network *shared = kr_network_declare(ctx, &config);
    kr_memory_free(&ctx->memory, latents, bytes);
    return shared;
}

kr_network *kr_network_share(kr_ctx *ctx, const kr_network *net)
{
    if (kr_ctx_failed(ctx) || !kr_require(ctx, net != NULL, KR_ERR_ARG, OP ": net is NULL") ||
        !kr_require(ctx, !net->is_custom, KR_ERR_UNSUPPORTED,
                    OP
                    ": a custom network runs the program's forward on the program's parameters; create it in the other "
                    "context, and copy the parameters with kr_params_save and kr_params_load"))
        return NULL;
    kr_network *shared = declare(ctx, net);
    if (shared && kr_params_share_weights(shared->params, net->params, OP)) return shared;
    if (ctx->status == KR_ERR_NOMEM) kr_blame(ctx, OP);
    kr_network_destroy(shared);
    return NULL;
}
