/* mamba2_impl.h - internals of a Mamba-2 block. */
#ifndef KR_NN_MAMBA2_IMPL_H
#define KR_NN_MAMBA2_IMPL_H

#include "nn/block_impl.h"

struct kr_mamba2 {
    kr_block head;
    kr_mamba2_config config;
    int64_t ni, nh, nv, nssm, nmlp; /* d_inner, heads, conv channels, d_ssm, d_inner - d_ssm */
    kr_norm_options norm;
    kr_tensor *in_proj, *in_proj_bias, *conv_weight, *conv_bias, *dt_bias_h, *a_log_h, *d, *norm_gain, *out_proj,
        *out_proj_bias, *learned_init_hpr;
};

/* create of kr_block_kind. */
void *kr_mamba2_declare(kr_ctx *ctx, kr_params *params, const void *config);

/* can_decode and token of kr_block_kind. */
bool kr_mamba2_can_decode(const void *block, const kr_decode_input *input);
bool kr_mamba2_decode(kr_tape *tape, const void *block, const kr_decode_input *input, kr_cache *after);

/* may_defer and flush of kr_block_kind. */
bool kr_mamba2_may_defer(const void *block, int64_t batch, struct kr_deferred_slot *slot);
bool kr_mamba2_flush(kr_ctx *ctx, const kr_cache *cache, const struct kr_deferred_slot *slot);

#endif
