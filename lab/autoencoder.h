/* autoencoder.h - an image autoencoder with few latents: two bidirectional stacks over patches, composed of the
 * library's parts.
 *
 *   x_bsf       patches of an image [b s f]
 *   h           x W + position                                     [b s d]
 *   z_bn        (the mean over s, or a learned row's output, of encoder(h)) W    the latents
 *   q           query (1 + z W_scale) + z W_shift, or query + z W_shift          [b s d]
 *   logits      decoder(q) W                                       [b s f]
 */
#ifndef KR_LAB_AUTOENCODER_H
#define KR_LAB_AUTOENCODER_H

#include <krait/network.h>

typedef enum autoencoder_pool { AUTOENCODER_MEAN, AUTOENCODER_MIDDLE } autoencoder_pool;
typedef enum autoencoder_modulation { AUTOENCODER_FILM, AUTOENCODER_ADD } autoencoder_modulation;

typedef struct autoencoder_config {
    int64_t n_patches, n_pixels; /* of an image, of a patch */
    int64_t n_latents;
    autoencoder_pool pool;
    autoencoder_modulation modulation;
    kr_mamba3_config block; /* d_model is the width throughout */
} autoencoder_config;

typedef struct autoencoder_linear {
    kr_tensor *weight, *bias;
} autoencoder_linear;

typedef struct autoencoder {
    autoencoder_config config;
    kr_bidi *encoder, *decoder;
    kr_params *params; /* of encoder and decoder */
    autoencoder_linear in, latent, scale, shift, out;
    kr_tensor *position_sd, *query_sd;
} autoencoder;

/* False after an error of the context; destroy in any case. */
bool autoencoder_create(autoencoder *net, kr_ctx *ctx, const autoencoder_config *config);
void autoencoder_destroy(autoencoder *net);

kr_tensor *autoencoder_encode(kr_tape *tape, const autoencoder *net, kr_tensor *x_bsf); /* [b n_latents] */
kr_tensor *autoencoder_decode(kr_tape *tape, const autoencoder *net, kr_tensor *z_bn);  /* logits [b s f] */

#endif
