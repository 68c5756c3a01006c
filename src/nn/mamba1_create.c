/* mamba1_create.c - the config of a Mamba-1 block, its checks, and its parameters.
 *
 *   A_log [i r], D [i]
 *   in_proj [2 i, d]       rows: x, z                    conv1d  [i 1 k], [i]
 *   x_proj  [x + 2 r, i]   rows: dt (its rank), B, C     dt_proj [i x], [i]
 *   out_proj [d i], init_states [i r]
 */
#include "nn/mamba1_impl.h"

#include "base/sized.h"

#include "nn/block_config.h"

#include <math.h>
#include <string.h>

#define OP "mamba1.create"

KR_DEFAULTS(kr_mamba1_config) = { .size = sizeof(kr_mamba1_config),
                                  .dtype = KR_DTYPE_F32,
                                  .state_rank = 16,
                                  .conv_kernel = 4,
                                  .expand = 2,
                                  .has_conv_bias = true,
                                  .dt_min = 1e-3,
                                  .dt_max = 0.1,
                                  .dt_init_floor = 1e-4,
                                  .dt_scale = 1,
                                  .dt_limit_max = INFINITY };

static bool check_config(kr_ctx *ctx, const kr_mamba1_config *c)
{
    return kr_config_dtype(ctx, OP, c->dtype) && kr_config_at_least(ctx, OP, "d_model", c->d_model, 1) &&
           kr_config_at_least(ctx, OP, "state_rank", c->state_rank, 1) &&
           kr_config_at_least(ctx, OP, "conv_kernel", c->conv_kernel, 1) &&
           kr_config_at_least(ctx, OP, "expand", c->expand, 1) &&
           kr_config_at_least(ctx, OP, "d_inner", c->d_inner, 0) &&
           kr_config_at_least(ctx, OP, "dt_rank", c->dt_rank, 0) &&
           kr_require(ctx, c->dt_scale >= 0 && isfinite(c->dt_scale), KR_ERR_ARG,
                      OP ": dt_scale = %g, but must be finite and not negative", c->dt_scale) &&
           kr_require(ctx, c->bcdt_norm_eps >= 0 && isfinite(c->bcdt_norm_eps), KR_ERR_ARG,
                      OP ": bcdt_norm_eps = %g, but must be finite and not negative; 0 means no norm",
                      c->bcdt_norm_eps) &&
           kr_config_steps(ctx, OP, c->dt_min, c->dt_max, c->dt_init_floor, c->dt_limit_min, c->dt_limit_max);
}

static kr_tensor *add_matrix(kr_params *params, const char *name, const char *axes, kr_dtype dtype, int64_t n_out,
                             int64_t n_in, int n_segments, const kr_segment *segments)
{
    return kr_params_add_linear(params, &(kr_param_spec){ .name = name,
                                                          .axes = axes,
                                                          .dtype = dtype,
                                                          .shape = KR_SHAPE(n_out, n_in),
                                                          .n_segments = n_segments,
                                                          .segments = segments });
}

/* The state space: its rates, its skip. */
static void declare_scan(kr_mamba1 *m, kr_params *params)
{
    m->a_log_ir = kr_params_add(params, &(kr_param_spec){ .name = "A_log",
                                                          .axes = "i r",
                                                          .dtype = m->small,
                                                          .shape = KR_SHAPE(m->ni, m->config.state_rank),
                                                          .init = { KR_INIT_LOG_INDEX, 0, 0, 0 } });
    m->d_i = kr_params_add_vector(params, "D", "i", m->small, m->ni, kr_init_fill(1));
}

/* From u to x and z, and the short convolution. */
static void declare_input(kr_mamba1 *m, kr_params *params)
{
    const kr_mamba1_config *c = &m->config;
    const int64_t nd = c->d_model, ni = m->ni, nk = c->conv_kernel;
    const kr_segment rows[] = { { "x", ni, true }, { "z", ni, true } };
    m->in_proj = add_matrix(params, "in_proj.weight", "xz d", c->dtype, 2 * ni, nd, 2, rows);
    if (c->has_proj_bias) m->in_proj_bias = kr_params_add_bias(params, "in_proj.bias", "xz", c->dtype, 2 * ni, nd);
    m->conv_weight = kr_params_add(params, &(kr_param_spec){ .name = "conv1d.weight",
                                                             .axes = "i 1 k",
                                                             .dtype = c->dtype,
                                                             .shape = KR_SHAPE(ni, 1, nk),
                                                             .init = kr_init_linear(nk),
                                                             .has_decay = true });
    if (c->has_conv_bias)
        m->conv_bias = kr_params_add_vector(params, "conv1d.bias", "i", m->small, ni, kr_init_linear(nk));
}

/* From x to dt, B and C. */
static void declare_selection(kr_mamba1 *m, kr_params *params)
{
    const kr_mamba1_config *c = &m->config;
    const int64_t nr = c->state_rank;
    const double bound = c->dt_scale / sqrt((double)m->nx);
    const kr_segment rows[] = { { "dt", m->nx, false }, { "b", nr, true }, { "c", nr, true } };
    m->x_proj = add_matrix(params, "x_proj.weight", "dtbc i", c->dtype, m->nx + 2 * nr, m->ni, 3, rows);
    m->dt_proj = kr_params_add(params, &(kr_param_spec){ .name = "dt_proj.weight",
                                                         .axes = "i x",
                                                         .dtype = c->dtype,
                                                         .shape = KR_SHAPE(m->ni, m->nx),
                                                         .init = c->has_constant_dt
                                                                     ? kr_init_fill(bound)
                                                                     : (kr_init){ KR_INIT_UNIFORM, -bound, bound, 0 },
                                                         .has_decay = true,
                                                         .is_linear = true });
    m->dt_bias_i = kr_params_add_vector(params, "dt_proj.bias", "i", m->small, m->ni,
                                        (kr_init){ KR_INIT_DT_BIAS, c->dt_min, c->dt_max, c->dt_init_floor });
}

static void declare_output(kr_mamba1 *m, kr_params *params)
{
    const kr_mamba1_config *c = &m->config;
    const int64_t nd = c->d_model;
    m->out_proj = kr_params_add_linear(params, &(kr_param_spec){ .name = "out_proj.weight",
                                                                 .axes = "d i",
                                                                 .dtype = c->dtype,
                                                                 .shape = KR_SHAPE(nd, m->ni),
                                                                 .is_residual_out = true,
                                                                 .n_segments = 1,
                                                                 .segments = (kr_segment[]){ { "out", nd, true } } });
    if (c->has_proj_bias) m->out_proj_bias = kr_params_add_bias(params, "out_proj.bias", "d", c->dtype, nd, m->ni);
    if (c->has_learnable_init_state)
        m->learned_init_ir = kr_params_add(params, &(kr_param_spec){ .name = "init_states",
                                                                     .axes = "i r",
                                                                     .dtype = m->small,
                                                                     .shape = KR_SHAPE(m->ni, c->state_rank),
                                                                     .init = kr_init_fill(0) });
}

void *kr_mamba1_declare(kr_ctx *ctx, kr_params *params, const void *config)
{
    kr_mamba1_config own;
    if (kr_ctx_failed(ctx) || !kr_config_given(ctx, OP, config) || !KR_TAKE(ctx, OP, kr_mamba1_config, config, &own) ||
        !check_config(ctx, &own))
        return NULL;
    kr_mamba1 *m = kr_block_alloc(ctx, &kr_mamba1_kind, sizeof *m, own.d_model, own.dtype);
    if (!m) return NULL;
    m->config = own;
    m->ni = own.d_inner ? own.d_inner : own.expand * own.d_model;
    m->nx = own.dt_rank ? own.dt_rank : (own.d_model + 15) / 16;
    m->small = kr_config_small_dtype(own.dtype);
    kr_norm_options_init(&m->bcdt_norm);
    m->bcdt_norm.eps = own.bcdt_norm_eps;
    declare_scan(m, params);
    declare_input(m, params);
    declare_selection(m, params);
    declare_output(m, params);
    if (!kr_ctx_failed(ctx)) return m;
    kr_block_free(m);
    return NULL;
}
