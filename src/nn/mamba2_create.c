/* mamba2_create.c - the config of a Mamba-2 block, its checks, and its parameters.
 *
 *   in_proj [2 i + 2 g r + h, d]   rows: z0 x0 (the parallel MLP, d_inner - d_ssm each), z x (d_ssm), B C (g r), dt (h)
 *   conv1d  [v 1 k], [v]           v = d_ssm + 2 g r
 *   dt_bias A_log [h], D [h] or [d_ssm], norm [d_ssm], init_states [h p r], out_proj [d i]
 */
#include "nn/mamba2_impl.h"

#include "base/sized.h"

#include "nn/block_config.h"

#include <math.h>
#include <string.h>

#define OP "mamba2.create"

KR_DEFAULTS(kr_mamba2_config) = { .size = sizeof(kr_mamba2_config),
                                  .dtype = KR_DTYPE_F32,
                                  .state_rank = 128,
                                  .conv_kernel = 4,
                                  .expand = 2,
                                  .per_head_dim = 64,
                                  .n_groups = 1,
                                  .a_init_min = 1,
                                  .a_init_max = 16,
                                  .has_norm = true,
                                  .norm_per_group = true,
                                  .norm_eps = 1e-5,
                                  .has_conv_bias = true,
                                  .dt_min = 1e-3,
                                  .dt_max = 0.1,
                                  .dt_init_floor = 1e-4,
                                  .dt_limit_max = INFINITY,
                                  .path = { KR_SSD_SERIAL_RECALCULATED, 0 } };

static bool check_sizes(kr_ctx *ctx, const kr_mamba2_config *c)
{
    return kr_config_dtype(ctx, OP, c->dtype) && kr_config_at_least(ctx, OP, "d_model", c->d_model, 1) &&
           kr_config_at_least(ctx, OP, "state_rank", c->state_rank, 1) &&
           kr_config_at_least(ctx, OP, "conv_kernel", c->conv_kernel, 1) &&
           kr_config_at_least(ctx, OP, "expand", c->expand, 1) &&
           kr_config_at_least(ctx, OP, "per_head_dim", c->per_head_dim, 1) &&
           kr_config_at_least(ctx, OP, "d_ssm", c->d_ssm, 0) && kr_config_at_least(ctx, OP, "n_groups", c->n_groups, 1);
}

static bool check_config(kr_ctx *ctx, const kr_mamba2_config *c)
{
    if (!check_sizes(ctx, c)) return false;
    const int64_t ni = c->expand * c->d_model, nssm = c->d_ssm ? c->d_ssm : ni;
    return kr_require(ctx, c->conv_init >= 0 && isfinite(c->conv_init), KR_ERR_ARG,
                      OP ": conv_init = %g, but must be a bound above 0, or 0 for the usual one", c->conv_init) &&
           kr_require(ctx, nssm <= ni, KR_ERR_ARG,
                      OP ": d_ssm = %lld, but must be at most d_inner = expand d_model = %lld", (long long)nssm,
                      (long long)ni) &&
           kr_require(ctx, nssm % c->per_head_dim == 0, KR_ERR_ARG,
                      OP ": per_head_dim = %lld does not divide %s = %lld", (long long)c->per_head_dim,
                      c->d_ssm ? "d_ssm" : "d_inner", (long long)nssm) &&
           kr_require(ctx, nssm / c->per_head_dim % c->n_groups == 0, KR_ERR_ARG,
                      OP ": n_groups = %lld does not divide the %lld heads (%s / per_head_dim)", (long long)c->n_groups,
                      (long long)(nssm / c->per_head_dim), c->d_ssm ? "d_ssm" : "d_inner") &&
           kr_config_positive(ctx, OP, "a_init_min", c->a_init_min) &&
           kr_require(ctx, c->a_init_max >= c->a_init_min && isfinite(c->a_init_max), KR_ERR_ARG,
                      OP ": a_init_max = %g, but must be finite and at least a_init_min = %g", c->a_init_max,
                      c->a_init_min) &&
           kr_config_positive(ctx, OP, "norm_eps", c->norm_eps) &&
           kr_config_steps(ctx, OP, c->dt_min, c->dt_max, c->dt_init_floor, c->dt_limit_min, c->dt_limit_max) &&
           kr_config_path(ctx, OP, c->path);
}

static void declare_projections(kr_mamba2 *m, kr_params *params)
{
    const kr_mamba2_config *c = &m->config;
    const int64_t nd = c->d_model, ngr = c->n_groups * c->state_rank;
    const kr_segment in_rows[] = { { "z0", m->nmlp, true }, { "x0", m->nmlp, true }, { "z", m->nssm, true },
                                   { "x", m->nssm, true },  { "b", ngr, true },      { "c", ngr, true },
                                   { "dt", m->nh, false } };
    const int skipped = m->nmlp ? 0 : 2; /* without a parallel MLP */
    const int64_t n_in = 2 * m->ni + 2 * ngr + m->nh;
    m->in_proj = kr_params_add_linear(params, &(kr_param_spec){ .name = "in_proj.weight",
                                                                .axes = "zxbcdt d",
                                                                .dtype = c->dtype,
                                                                .shape = KR_SHAPE(n_in, nd),
                                                                .n_segments = 7 - skipped,
                                                                .segments = in_rows + skipped });
    const kr_segment out_rows[] = { { "out", nd, true } };
    m->out_proj = kr_params_add_linear(params, &(kr_param_spec){ .name = "out_proj.weight",
                                                                 .axes = "d i",
                                                                 .dtype = c->dtype,
                                                                 .shape = KR_SHAPE(nd, m->ni),
                                                                 .is_residual_out = true,
                                                                 .n_segments = 1,
                                                                 .segments = out_rows });
    if (!c->has_proj_bias) return;
    m->in_proj_bias = kr_params_add_bias(params, "in_proj.bias", "zxbcdt", c->dtype, n_in, nd);
    m->out_proj_bias = kr_params_add_bias(params, "out_proj.bias", "d", c->dtype, nd, m->ni);
}

static void declare(kr_mamba2 *m, kr_params *params)
{
    const kr_mamba2_config *c = &m->config;
    const kr_dtype small = kr_config_small_dtype(c->dtype);
    const kr_init taps = c->conv_init > 0 ? (kr_init){ KR_INIT_UNIFORM, -c->conv_init, c->conv_init, 0 }
                                          : kr_init_linear(c->conv_kernel);
    m->dt_bias_h = kr_params_add_vector(params, "dt_bias", "h", small, m->nh,
                                        (kr_init){ KR_INIT_DT_BIAS, c->dt_min, c->dt_max, c->dt_init_floor });
    m->a_log_h = kr_params_add_vector(params, "A_log", "h", small, m->nh,
                                      (kr_init){ KR_INIT_LOG_RANGE, c->a_init_min, c->a_init_max, 0 });
    m->d = c->has_d_per_dim ? kr_params_add_vector(params, "D", "i", small, m->nssm, kr_init_fill(1))
                            : kr_params_add_vector(params, "D", "h", small, m->nh, kr_init_fill(1));
    declare_projections(m, params);
    m->conv_weight = kr_params_add(params, &(kr_param_spec){ .name = "conv1d.weight",
                                                             .axes = "v 1 k",
                                                             .dtype = c->dtype,
                                                             .shape = KR_SHAPE(m->nv, 1, c->conv_kernel),
                                                             .init = taps,
                                                             .has_decay = true });
    if (c->has_conv_bias)
        m->conv_bias = kr_params_add_vector(params, "conv1d.bias", "v", small, m->nv, kr_init_linear(c->conv_kernel));
    if (c->has_norm) m->norm_gain = kr_params_add_vector(params, "norm.weight", "i", small, m->nssm, kr_init_fill(1));
    if (c->has_learnable_init_state)
        m->learned_init_hpr =
            kr_params_add(params, &(kr_param_spec){ .name = "init_states",
                                                    .axes = "h p r",
                                                    .dtype = small,
                                                    .shape = KR_SHAPE(m->nh, c->per_head_dim, c->state_rank),
                                                    .init = kr_init_fill(0) });
}

void *kr_mamba2_declare(kr_ctx *ctx, kr_params *params, const void *config)
{
    kr_mamba2_config own;
    if (kr_ctx_failed(ctx) || !kr_config_given(ctx, OP, config) || !KR_TAKE(ctx, OP, kr_mamba2_config, config, &own) ||
        !check_config(ctx, &own))
        return NULL;
    kr_mamba2 *m = kr_block_alloc(ctx, &kr_mamba2_kind, sizeof *m, own.d_model, own.dtype);
    if (!m) return NULL;
    m->config = own;
    m->ni = own.expand * own.d_model;
    m->nssm = own.d_ssm ? own.d_ssm : m->ni;
    m->nmlp = m->ni - m->nssm;
    m->nh = m->nssm / own.per_head_dim;
    m->nv = m->nssm + 2 * own.n_groups * own.state_rank;
    kr_norm_options_init(&m->norm);
    m->norm.eps = own.norm_eps;
    m->norm.groups = own.norm_per_group ? own.n_groups : 1;
    m->norm.norm_before_gate = own.norm_before_gate;
    declare(m, params);
    if (!kr_ctx_failed(ctx)) return m;
    kr_block_free(m);
    return NULL;
}
