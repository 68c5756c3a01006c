/* mamba1_impl.h - internals of a Mamba-1 block. */
#ifndef KR_NN_MAMBA1_IMPL_H
#define KR_NN_MAMBA1_IMPL_H

#include "nn/piece_scan.h"

struct kr_mamba1 {
    kr_block head;
    kr_mamba1_config config;
    int64_t ni, nx; /* d_inner, dt_rank */
    kr_norm_options bcdt_norm;
    kr_dtype small; /* of the parameters that are no matrices, and of the caches */
    kr_tensor *a_log_ir, *d_i, *in_proj, *in_proj_bias, *conv_weight, *conv_bias, *x_proj, *dt_proj, *dt_bias_i,
        *out_proj, *out_proj_bias, *learned_init_ir;
};

/* create of kr_block_kind. */
void *kr_mamba1_declare(kr_ctx *ctx, kr_params *params, const void *config);

/* The state before a piece (mamba1_scan.c), of each sequence, or of each row without resets. */
kr_tensor *kr_mamba1_scan_state(kr_tape *tape, const kr_mamba1 *m, const kr_piece *piece,
                                const kr_selective_scan_input *scan);

#endif
