/* mamba2_impl.h - internals of a Mamba-2 block. */
#ifndef KR_NN_MAMBA2_IMPL_H
#define KR_NN_MAMBA2_IMPL_H

#include "nn/piece_scan.h"

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

/* The state before a piece (mamba2_scan.c), of each sequence, or of each row without resets. */
kr_tensor *kr_mamba2_scan_state(kr_tape *tape, const kr_mamba2 *m, const kr_piece *piece,
                                const kr_mamba2_ssd_input *ssd);

#endif
