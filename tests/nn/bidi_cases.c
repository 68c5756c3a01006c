/* bidi_cases.c - small stacks in both directions. */
#include "tests/nn/bidi_cases.h"

bidi_blocks bidi_blocks_of(kr_dtype dtype)
{
    bidi_blocks b;
    kr_mamba1_config_init(&b.mamba1);
    b.mamba1.d_model = BIDI_ND;
    b.mamba1.state_rank = 4;
    b.mamba1.dtype = dtype;
    kr_mamba2_config_init(&b.mamba2);
    b.mamba2.d_model = BIDI_ND;
    b.mamba2.state_rank = 4;
    b.mamba2.per_head_dim = 4;
    b.mamba2.dtype = dtype;
    kr_mamba3_config_init(&b.mamba3);
    b.mamba3.d_model = BIDI_ND;
    b.mamba3.state_rank = 8;
    b.mamba3.per_head_dim = 4;
    b.mamba3.dtype = dtype;
    return b;
}

kr_block_config bidi_block(const bidi_blocks *blocks, int family)
{
    return family == KR_FAMILY_MAMBA1   ? kr_mamba1_block(&blocks->mamba1)
           : family == KR_FAMILY_MAMBA2 ? kr_mamba2_block(&blocks->mamba2)
                                        : kr_mamba3_block(&blocks->mamba3);
}

kr_bidi_config bidi_small(const bidi_blocks *blocks, int family)
{
    kr_bidi_config c;
    kr_bidi_config_init(&c);
    c.block = bidi_block(blocks, family);
    c.n_layers = 4;
    return c;
}

void bidi_scatter(const kr_params *params)
{
    for (int64_t i = 0; i < kr_params_count(params); i++) {
        const kr_param_row *row = kr_params_at(params, i);
        const int64_t count = kr_tensor_count(row->tensor);
        double *values = kr_test_values(row->tensor);
        const bool is_drawn = row->init.kind == KR_INIT_UNIFORM || row->init.kind == KR_INIT_NORMAL;
        /* steps so long that the states matter */
        const double shift = strstr(row->name, "dt_bias") || strstr(row->name, "dt_proj.bias") ? 2 : 0;
        for (int64_t e = 0; e < count; e++)
            values[e] = (is_drawn ? 0 : values[e] + shift) + 0.3 * sin(1.3 * (double)(e + 1) + 0.7 * (double)(i + 1));
        kr_param_write(row->tensor, KR_DTYPE_F64, values, count);
        free(values);
    }
}

kr_bidi_out bidi_forward_from(kr_tape *tape, const kr_bidi *bidi, kr_tensor *x, const kr_cache *caches)
{
    kr_bidi_call call;
    kr_bidi_call_init(&call);
    call.caches = caches;
    return kr_bidi_forward(tape, bidi, x, &call);
}
