/* mamba1_cases.c - the Mamba-1 blocks that the tests make. */
#include "tests/nn/mamba1_cases.h"

const mamba1_case mamba1_cases[NCASES] = {
    { .name = "base" },
    { .name = "state_rank 8", .state_rank = 8 },
    { .name = "conv 2", .conv_kernel = 2 },
    { .name = "conv 1", .conv_kernel = 1 },
    { .name = "expand 1", .expand = 1 },
    { .name = "dt_rank 8", .dt_rank = 8 },
    { .name = "no conv bias", .without_conv_bias = true },
    { .name = "proj bias", .with_proj_bias = true },
    { .name = "dt limits", .with_dt_limits = true },
    { .name = "d_inner 40", .d_inner = 40 },
    { .name = "learnable init state", .with_init_state = true },
    { .name = "constant dt", .with_constant_dt = true },
    { .name = "B, C and dt normed", .with_bcdt_norm = true },
    { .name = "normed, odd sizes",
      .d_model = 7,
      .state_rank = 3,
      .dt_rank = 5,
      .with_dt_limits = true,
      .with_proj_bias = true,
      .with_init_state = true,
      .with_bcdt_norm = true },
    { .name = "odd sizes",
      .d_model = 7,
      .d_inner = 13,
      .state_rank = 3,
      .conv_kernel = 5,
      .dt_rank = 3,
      .without_conv_bias = true,
      .with_proj_bias = true,
      .with_init_state = true },
};

kr_mamba1_config mamba1_case_config(const mamba1_case *c, kr_dtype dtype)
{
    kr_mamba1_config config;
    kr_mamba1_config_init(&config);
    config.dtype = dtype;
    config.d_model = c->d_model ? c->d_model : 32;
    if (c->state_rank) config.state_rank = c->state_rank;
    if (c->conv_kernel) config.conv_kernel = c->conv_kernel;
    if (c->expand) config.expand = c->expand;
    config.d_inner = c->d_inner;
    config.dt_rank = c->dt_rank;
    config.has_conv_bias = !c->without_conv_bias;
    config.has_proj_bias = c->with_proj_bias;
    config.has_learnable_init_state = c->with_init_state;
    config.has_constant_dt = c->with_constant_dt;
    if (c->with_bcdt_norm) config.bcdt_norm_eps = 0.05; /* as large as what it is added to: a wrong one is seen */
    if (c->with_dt_limits) {
        config.dt_limit_min = 0.02;
        config.dt_limit_max = 0.3;
    }
    return config;
}

const char *const mamba1_names[NPARAMS] = { "A_log",          "D",
                                            "in_proj.weight", "in_proj.bias",
                                            "conv1d.weight",  "conv1d.bias",
                                            "x_proj.weight",  "dt_proj.weight",
                                            "dt_proj.bias",   "out_proj.weight",
                                            "out_proj.bias",  "init_states" };

kr_tensor *mamba1_param(const kr_mamba1 *block, int i)
{
    const kr_param_row *row = kr_params_find(kr_mamba1_params(block), mamba1_names[i]);
    return row ? row->tensor : NULL;
}

kr_mamba1 *mamba1_scattered(kr_ctx *ctx, const kr_mamba1_config *config)
{
    kr_mamba1 *block = kr_mamba1_create(ctx, config);
    kr_param_uniform(mamba1_param(block, A_LOG), -0.7, 1.5);
    kr_param_uniform(mamba1_param(block, SKIP_D), -1, 1);
    kr_param_uniform(mamba1_param(block, DT_BIAS), -5, 1);
    if (config->has_learnable_init_state) kr_param_uniform(mamba1_param(block, INIT_STATE), -1, 1);
    return block;
}

bool went_well(kr_ctx *ctx)
{
    const bool ok = CHECK_OK(ctx);
    kr_ctx_clear(ctx);
    return ok;
}
