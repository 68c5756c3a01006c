/* autoencoder.c - the parameters of an image autoencoder, its encoder and its decoder. */
#include "lab/autoencoder.h"

enum { N_LAYERS = 2, N_VIRTUAL = 6 };

#define NORM_EPS 8.1585e-8 /* of the reference's norms in f32 */

/* Inserted between the two halves of the patches, and reads both. */
static const kr_class_token middle = { .kind = KR_CLASS_TOKEN_MIDDLE };

static kr_bidi *new_stack(kr_ctx *ctx, const autoencoder_config *config, bool is_encoder)
{
    kr_bidi_config stack;
    kr_bidi_config_init(&stack);
    stack.block = kr_mamba3_block(&config->block);
    stack.n_layers = N_LAYERS;
    stack.n_virtual = N_VIRTUAL;
    stack.schedule = KR_BIDI_SCHEDULE_STRIDED_STRETCHED;
    stack.merge = KR_BIDI_MERGE_CAT_LINEAR;
    stack.norm_eps = NORM_EPS;
    stack.ignore_first_residual = is_encoder;
    stack.ignore_last_residual = true;
    if (is_encoder && config->pool == AUTOENCODER_MIDDLE) {
        stack.n_latents = 1;
        stack.latents = &middle;
    }
    return kr_bidi_create(ctx, &stack);
}

static autoencoder_linear new_linear(kr_params *params, const char *name, int64_t n_out, int64_t n_in)
{
    autoencoder_linear linear;
    linear.weight = kr_params_linear(params, name, KR_DTYPE_F32, n_out, n_in, &linear.bias);
    return linear;
}

/* A learned row for each patch. */
static kr_tensor *new_rows(kr_params *params, const char *name, int64_t n_patches, int64_t d_model)
{
    kr_param_options options;
    kr_param_options_init(&options);
    options.axes = "s d";
    options.init = (kr_init){ KR_INIT_NORMAL, 0, 0.02, 0 };
    options.has_decay = true;
    return kr_params_make(params, name, KR_DTYPE_F32, KR_SHAPE(n_patches, d_model), &options);
}

bool autoencoder_create(autoencoder *net, kr_ctx *ctx, const autoencoder_config *config)
{
    const int64_t nd = config->block.d_model, nf = config->n_pixels, ns = config->n_patches, nn = config->n_latents;
    *net = (autoencoder){ .config = *config, .params = kr_params_create(ctx) };
    net->in = new_linear(net->params, "in", nd, nf);
    net->position_sd = new_rows(net->params, "position", ns, nd);
    net->encoder = new_stack(ctx, config, true);
    kr_params_join(net->params, "encoder.", kr_bidi_params(net->encoder));
    net->latent = new_linear(net->params, "latent", nn, nd);
    net->query_sd = new_rows(net->params, "query", ns, nd);
    if (config->modulation == AUTOENCODER_FILM) net->scale = new_linear(net->params, "scale", nd, nn);
    net->shift = new_linear(net->params, "shift", nd, nn);
    net->decoder = new_stack(ctx, config, false);
    kr_params_join(net->params, "decoder.", kr_bidi_params(net->decoder));
    net->out = new_linear(net->params, "out", nf, nd);
    return !kr_ctx_failed(ctx);
}

void autoencoder_destroy(autoencoder *net)
{
    kr_params_destroy(net->params);
    kr_bidi_destroy(net->encoder);
    kr_bidi_destroy(net->decoder);
    *net = (autoencoder){ 0 };
}

static kr_tensor *apply(kr_tape *tape, const autoencoder_linear *linear, kr_tensor *x)
{
    return kr_linear(tape, x, linear->weight, linear->bias);
}

kr_tensor *autoencoder_encode(kr_tape *tape, const autoencoder *net, kr_tensor *x_bsf)
{
    kr_tensor *h_bsd = kr_add(tape, apply(tape, &net->in, x_bsf), net->position_sd);
    kr_tensor *y_bsd = kr_bidi_forward(tape, net->encoder, h_bsd, NULL).y;
    if (net->config.pool == AUTOENCODER_MEAN) return apply(tape, &net->latent, kr_mean(tape, y_bsd, KR_AXES(1), false));
    const int64_t at = kr_class_token_index(&middle, 1, 0, net->config.n_patches);
    kr_tensor *row_b1d = kr_slice(tape, y_bsd, 1, at, at + 1);
    return apply(tape, &net->latent,
                 kr_reshape(tape, row_b1d, KR_SHAPE(kr_tensor_dim(x_bsf, 0), net->config.block.d_model)));
}

kr_tensor *autoencoder_decode(kr_tape *tape, const autoencoder *net, kr_tensor *z_bn)
{
    const kr_shape per_image = KR_SHAPE(kr_tensor_dim(z_bn, 0), 1, net->config.block.d_model);
    kr_tensor *q = net->query_sd;
    if (net->config.modulation == AUTOENCODER_FILM) {
        kr_tensor *scale_b1d = kr_reshape(tape, apply(tape, &net->scale, z_bn), per_image);
        q = kr_mul(tape, q, kr_affine(tape, scale_b1d, 1, 1));
    }
    q = kr_add(tape, q, kr_reshape(tape, apply(tape, &net->shift, z_bn), per_image));
    return apply(tape, &net->out, kr_bidi_forward(tape, net->decoder, q, NULL).y);
}
