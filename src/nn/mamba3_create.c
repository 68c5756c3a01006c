/* mamba3_create.c - the config of a Mamba-3 block, its checks, and its parameters.
 *
 *   in_proj [2 i + 2 m g r + 3 h + rotation, d]   rows: z x (i each), B C (m g r), dt A lambda (h), rotation:
 *                                                 a angles for all heads, or h j 3 generators of quaternions
 *   dt_bias D [h], B_bias C_bias [h m r], mimo_x mimo_z mimo_o [h m p] (is_mimo), B_norm C_norm [r]
 *   norm [i] or [p], out_proj [d i], init_states [h p r]
 */
#include "nn/mamba3_impl.h"

#include "base/sized.h"

#include "nn/block_config.h"

#include <math.h>
#include <string.h>

#define OP "mamba3.create"

KR_DEFAULTS(kr_mamba3_config) = { .size = sizeof(kr_mamba3_config),
                                  .dtype = KR_DTYPE_F32,
                                  .state_rank = 128,
                                  .expand = 2,
                                  .per_head_dim = 64,
                                  .n_groups = 1,
                                  .mimo_rank = 4,
                                  .rotation = KR_ROTATION_COMPLEX,
                                  .rope_fraction = 0.5,
                                  .rotation_range = 1,
                                  .a_activation = KR_A_ACTIVATION_HEAVY_TAIL,
                                  .a_floor = 1e-4,
                                  .norm_eps = 1e-5,
                                  .dt_min = 1e-3,
                                  .dt_max = 0.1,
                                  .dt_init_floor = 1e-4,
                                  .dt_limit_max = INFINITY,
                                  .path = { KR_SSD_SERIAL_RECALCULATED, 0 },
                                  .pathway = KR_MAMBA3_PATHWAY_SINGLE };

/* ---- checks ---- */

static bool check_sizes(kr_ctx *ctx, const kr_mamba3_config *c)
{
    return kr_config_at_least(ctx, OP, "d_model", c->d_model, 1) &&
           kr_config_at_least(ctx, OP, "state_rank", c->state_rank, 1) &&
           kr_config_at_least(ctx, OP, "expand", c->expand, 1) &&
           kr_config_at_least(ctx, OP, "per_head_dim", c->per_head_dim, 1) &&
           kr_config_at_least(ctx, OP, "n_groups", c->n_groups, 1) &&
           (!c->is_mimo || kr_config_at_least(ctx, OP, "mimo_rank", c->mimo_rank, 1));
}

static bool check_heads(kr_ctx *ctx, const kr_mamba3_config *c)
{
    const int64_t ni = c->expand * c->d_model, nh = ni / c->per_head_dim;
    return kr_require(ctx, ni % c->per_head_dim == 0, KR_ERR_ARG,
                      OP ": per_head_dim = %lld does not divide d_inner = %lld", (long long)c->per_head_dim,
                      (long long)ni) &&
           kr_require(ctx, nh % c->n_groups == 0, KR_ERR_ARG,
                      OP ": n_groups = %lld does not divide the %lld heads (d_inner / per_head_dim)",
                      (long long)c->n_groups, (long long)nh);
}

/* Rotated entries of a state row: in pairs, so an even number. */
static int64_t rotated_entry_count(const kr_mamba3_config *c)
{
    return (int64_t)((double)c->state_rank * c->rope_fraction) / 2 * 2;
}

static bool check_rotation(kr_ctx *ctx, const kr_mamba3_config *c)
{
    const bool in_blocks = c->rotation == KR_ROTATION_QUATERNION;
    return kr_require(ctx, c->rotation == KR_ROTATION_COMPLEX || in_blocks, KR_ERR_ARG,
                      OP ": rotation = %d is neither complex nor quaternion", (int)c->rotation) &&
           kr_require(ctx, c->state_rank % 2 == 0, KR_ERR_ARG,
                      OP ": state_rank = %lld, but must be even: entries are rotated in pairs",
                      (long long)c->state_rank) &&
           kr_require(ctx, !in_blocks || c->state_rank % 4 == 0, KR_ERR_ARG,
                      OP ": state_rank = %lld, but must be a multiple of 4: quaternions rotate blocks of four",
                      (long long)c->state_rank) &&
           kr_require(ctx, c->rope_fraction == 0 || c->rope_fraction == 0.5 || c->rope_fraction == 1, KR_ERR_ARG,
                      OP ": rope_fraction = %g, but must be 0, 0.5 or 1", c->rope_fraction) &&
           kr_require(ctx, !in_blocks || rotated_entry_count(c) % 4 == 0, KR_ERR_ARG,
                      OP ": rope_fraction = %g of state_rank = %lld is %lld entries, but quaternions rotate blocks of "
                         "four; make state_rank a multiple of 8",
                      c->rope_fraction, (long long)c->state_rank, (long long)rotated_entry_count(c)) &&
           kr_config_positive(ctx, OP, "rotation_range", c->rotation_range);
}

/* The rows of in_proj are products of three sizes; counted in double, they cannot overflow. */
static bool check_rows(kr_ctx *ctx, const kr_mamba3_config *c)
{
    const double nr = (double)c->state_rank, ni = (double)c->expand * (double)c->d_model;
    const double nh = ni / (double)c->per_head_dim, nm = c->is_mimo ? (double)c->mimo_rank : 1;
    const double rows = 2 * ni + 2 * nm * (double)c->n_groups * nr + 3 * nh + nh * nr;
    return kr_require(ctx, rows < 0x1p60, KR_ERR_SHAPE,
                      OP ": in_proj would have some %.3g rows, more than can be addressed", rows);
}

static bool check_config(kr_ctx *ctx, const kr_mamba3_config *c)
{
    return kr_config_dtype(ctx, OP, c->dtype) && check_sizes(ctx, c) && check_heads(ctx, c) && check_rotation(ctx, c) &&
           check_rows(ctx, c) &&
           kr_require(ctx, c->a_activation == KR_A_ACTIVATION_HEAVY_TAIL || c->a_activation == KR_A_ACTIVATION_SOFTPLUS,
                      KR_ERR_ARG, OP ": a_activation = %d is neither heavy tail nor softplus", (int)c->a_activation) &&
           kr_config_positive(ctx, OP, "a_floor", c->a_floor) && kr_config_positive(ctx, OP, "norm_eps", c->norm_eps) &&
           kr_config_steps(ctx, OP, c->dt_min, c->dt_max, c->dt_init_floor, c->dt_limit_min, c->dt_limit_max) &&
           kr_config_path(ctx, OP, c->path) &&
           kr_require(ctx, c->pathway == KR_MAMBA3_PATHWAY_SINGLE || c->pathway == KR_MAMBA3_PATHWAY_DOUBLE, KR_ERR_ARG,
                      OP ": pathway = %d is neither single nor double", (int)c->pathway);
}

/* ---- parameters ---- */

static void declare_in_proj(kr_mamba3 *m, kr_params *params)
{
    const kr_mamba3_config *c = &m->config;
    const int64_t nd = c->d_model, nmgr = m->nm * c->n_groups * c->state_rank;
    const kr_segment rows[] = { { "z", m->ni, true },       { "x", m->ni, true },
                                { "b", nmgr, true },        { "c", nmgr, true },
                                { "dt", m->nh, false },     { "a", m->nh, false },
                                { "lambda", m->nh, false }, { "rotation", m->nchannel, true } };
    m->in_proj = kr_params_add_linear(params, &(kr_param_spec){ .name = "in_proj.weight",
                                                                .axes = "zxbcdtalr d",
                                                                .dtype = c->dtype,
                                                                .shape = KR_SHAPE(m->n_in, nd),
                                                                .n_segments = 8,
                                                                .segments = rows });
    if (c->has_proj_bias)
        m->in_proj_bias = kr_params_add_bias(params, "in_proj.bias", "zxbcdtalr", c->dtype, m->n_in, nd);
}

static void declare_out_proj(kr_mamba3 *m, kr_params *params)
{
    const kr_mamba3_config *c = &m->config;
    const int64_t nd = c->d_model;
    const kr_segment rows[] = { { "out", nd, true } };
    m->out_proj = kr_params_add_linear(params, &(kr_param_spec){ .name = "out_proj.weight",
                                                                 .axes = "d i",
                                                                 .dtype = c->dtype,
                                                                 .shape = KR_SHAPE(nd, m->ni),
                                                                 .is_residual_out = true,
                                                                 .n_segments = 1,
                                                                 .segments = rows });
    if (c->has_proj_bias) m->out_proj_bias = kr_params_add_bias(params, "out_proj.bias", "d", c->dtype, nd, m->ni);
}

/* A small tensor of one value, without weight decay. */
static kr_tensor *add_small(kr_params *params, kr_dtype dtype, const char *name, const char *axes, kr_shape shape,
                            double value)
{
    return kr_params_add(
        params,
        &(kr_param_spec){ .name = name, .axes = axes, .dtype = dtype, .shape = shape, .init = kr_init_fill(value) });
}

/* In the order of the official checkpoints. */
static void declare(kr_mamba3 *m, kr_params *params)
{
    const kr_mamba3_config *c = &m->config;
    const kr_dtype small = kr_config_small_dtype(c->dtype);
    const int64_t nr = c->state_rank, np = c->per_head_dim;
    const kr_shape hmr = KR_SHAPE(m->nh, m->nm, nr), hmp = KR_SHAPE(m->nh, m->nm, np);
    m->dt_bias_h = kr_params_add_vector(params, "dt_bias", "h", small, m->nh,
                                        (kr_init){ KR_INIT_DT_BIAS, c->dt_min, c->dt_max, c->dt_init_floor });
    m->b_bias_hmr = add_small(params, small, "B_bias", "h m r", hmr, 1);
    m->c_bias_hmr = add_small(params, small, "C_bias", "h m r", hmr, 1);
    if (c->is_mimo) {
        m->mimo_x_hmp = add_small(params, small, "mimo_x", "h m p", hmp, 1 / (double)m->nm);
        m->mimo_z_hmp = add_small(params, small, "mimo_z", "h m p", hmp, 1);
        m->mimo_o_hmp = add_small(params, small, "mimo_o", "h m p", hmp, 1 / (double)m->nm);
    }
    m->d_h = add_small(params, small, "D", "h", KR_SHAPE(m->nh), 1);
    declare_in_proj(m, params);
    m->b_gain_r = add_small(params, small, "B_norm.weight", "r", KR_SHAPE(nr), 1);
    m->c_gain_r = add_small(params, small, "C_norm.weight", "r", KR_SHAPE(nr), 1);
    if (c->has_outproj_norm)
        m->norm_gain = c->has_shared_norm_gain ? add_small(params, small, "norm.weight", "p", KR_SHAPE(np), 1)
                                               : add_small(params, small, "norm.weight", "i", KR_SHAPE(m->ni), 1);
    declare_out_proj(m, params);
    if (c->has_learnable_init_state)
        m->learned_init_hpr = add_small(params, small, "init_states", "h p r", KR_SHAPE(m->nh, np, nr), 0);
}

/* ---- making one ---- */

static void set_sizes(kr_mamba3 *m)
{
    const kr_mamba3_config *c = &m->config;
    m->ni = c->expand * c->d_model;
    m->nh = m->ni / c->per_head_dim;
    m->nm = c->is_mimo ? c->mimo_rank : 1;
    m->nrotated = rotated_entry_count(c) / (c->rotation == KR_ROTATION_QUATERNION ? 4 : 2);
    m->nrotations = m->nrotated > 0 ? m->nrotated : 1;
    m->nchannel = c->rotation == KR_ROTATION_QUATERNION ? 3 * m->nh * m->nrotations : m->nrotations;
    m->n_in = 2 * m->ni + 2 * m->nm * c->n_groups * c->state_rank + 3 * m->nh + m->nchannel;
    kr_trapezoid_options_init(&m->steps);
    m->steps.a_activation = c->a_activation;
    m->steps.a_floor = c->a_floor;
    m->steps.dt_min = c->dt_limit_min;
    m->steps.dt_max = c->dt_limit_max;
    kr_norm_options_init(&m->norm);
    m->norm.eps = c->norm_eps;
    m->norm.groups = m->nh;
    m->norm.norm_before_gate = true;
}

void *kr_mamba3_declare(kr_ctx *ctx, kr_params *params, const void *config)
{
    kr_mamba3_config own;
    if (kr_ctx_failed(ctx) || !kr_config_given(ctx, OP, config) || !KR_TAKE(ctx, OP, kr_mamba3_config, config, &own) ||
        !check_config(ctx, &own))
        return NULL;
    kr_mamba3 *m = kr_block_alloc(ctx, &kr_mamba3_kind, sizeof *m, own.d_model, own.dtype);
    if (!m) return NULL;
    m->config = own;
    set_sizes(m);
    declare(m, params);
    if (!kr_ctx_failed(ctx)) return m;
    kr_block_free(m);
    return NULL;
}
