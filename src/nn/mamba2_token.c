/* mamba2_token.c - one token of each row through a Mamba-2 layer, by three kernels.
 *
 *   [z | x B C | dt] = norm(u) W_in, x B C through the convolution
 *   H <- e^da H + s x (outer) B;   y = H C + D x
 *   u + norm(y, z) W_out
 *
 * Window and state are changed where they lie: the caller's own, or copies of them.
 */
#include "nn/mamba2.h"

bool kr_mamba2_takes_token(const void *block, const kr_token_input *in)
{
    const kr_mamba2 *m = block;
    const kr_mamba2_cache *cache = &in->cache->mamba2;
    return m->nmlp == 0 && !kr_dtype_is_half(kr_tensor_dtype(in->norm_d)) && m->dt_bias_h->dtype == KR_F32 &&
           cache->conv_bvk->dtype == KR_F32 && cache->ssm_bhpr->dtype == KR_F32 &&
           (!m->in_proj_bias || m->in_proj_bias->dtype == KR_F32) && kr_tensor_is_row_major(cache->conv_bvk) &&
           kr_tensor_is_row_major(cache->ssm_bhpr);
}

/* [z | x B C | dt] */
static bool enter(kr_tape *tape, const kr_mamba2 *m, const kr_token_input *in, kr_tensor *window, kr_tensor *all_bo)
{
    kr_token_linear_args args = { .nm = all_bo->dims[0],
                                  .nn = all_bo->dims[1],
                                  .nk = m->head.d_model,
                                  .ng = 1,
                                  .x_m = m->head.d_model,
                                  .y_m = all_bo->dims[1],
                                  .x = in->x_bsd->data,
                                  .gain = in->norm_d->data,
                                  .w = m->in_proj->data,
                                  .bias = kr_tensor_data(m->in_proj_bias),
                                  .y = all_bo->data,
                                  .w_half = kr_half_of(m->in_proj->dtype),
                                  .has_norm = true,
                                  .eps = in->norm->eps,
                                  .conv_from = m->nssm,
                                  .nc = m->nv,
                                  .nt = m->config.conv_kernel,
                                  .taps = m->conv_weight->data,
                                  .taps_half = kr_half_of(m->conv_weight->dtype),
                                  .conv_bias = kr_tensor_data(m->conv_bias),
                                  .window = window->data };
    return KR_RUN(tape->ctx, token_linear[KR_REAL_F32], &args);
}

static bool advance(kr_tape *tape, const kr_mamba2 *m, const kr_tensor *all_bo, kr_tensor *state, kr_tensor *y_bi)
{
    const kr_mamba2_config *c = &m->config;
    const float *x = (const float *)(const void *)all_bo->data + m->nssm;
    kr_token_ssd_args args = { .nb = all_bo->dims[0],
                               .nh = m->nh,
                               .np = c->per_head_dim,
                               .ng = c->ngroups,
                               .nr = c->state_rank,
                               .stride = all_bo->dims[1],
                               .y_stride = m->nssm,
                               .x = x,
                               .b = x + m->nssm,
                               .c = x + m->nssm + c->ngroups * c->state_rank,
                               .dt = x + m->nv,
                               .dt_bias = m->dt_bias_h->data,
                               .a_log = m->a_log_h->data,
                               .d = m->d->data,
                               .d_per_dim = c->has_d_per_dim,
                               .dt_min = c->dt_limit_min,
                               .dt_max = c->dt_limit_max,
                               .state = state->data,
                               .y = y_bi->data };
    return KR_RUN(tape->ctx, token_ssd[KR_REAL_F32], &args);
}

static bool leave(kr_tape *tape, const kr_mamba2 *m, const kr_token_input *in, const kr_tensor *all_bo,
                  const kr_tensor *y_bi)
{
    kr_token_linear_args args = { .nm = all_bo->dims[0],
                                  .nn = m->head.d_model,
                                  .nk = m->nssm,
                                  .ng = m->norm.groups,
                                  .x_m = m->nssm,
                                  .z_m = all_bo->dims[1],
                                  .base_m = m->head.d_model,
                                  .y_m = m->head.d_model,
                                  .x = y_bi->data,
                                  .z = all_bo->data,
                                  .gain = kr_tensor_data(m->norm_gain),
                                  .w = m->out_proj->data,
                                  .bias = kr_tensor_data(m->out_proj_bias),
                                  .base = in->x_bsd->data,
                                  .y = in->y_bsd->data,
                                  .w_half = kr_half_of(m->out_proj->dtype),
                                  .has_norm = m->config.has_norm,
                                  .norm_first = m->norm.norm_before_gate,
                                  .eps = m->norm.eps };
    return KR_RUN(tape->ctx, token_linear[KR_REAL_F32], &args);
}

static kr_tensor *own(kr_tape *tape, const kr_token_input *in, kr_tensor *x)
{
    if (in->in_place) return x;
    kr_tensor *y = kr_new(tape, x->dtype, kr_tensor_shape(x));
    return y && kr_assign(tape->ctx, y, x) ? y : NULL;
}

bool kr_mamba2_token(kr_tape *tape, const void *block, const kr_token_input *in, kr_cache *after)
{
    const kr_mamba2 *m = block;
    const int64_t nb = in->x_bsd->dims[0];
    kr_tensor *window = own(tape, in, in->cache->mamba2.conv_bvk);
    kr_tensor *state = own(tape, in, in->cache->mamba2.ssm_bhpr);
    kr_tensor *all_bo = kr_new(tape, KR_F32, KR_SHAPE(nb, m->in_proj->dims[0]));
    kr_tensor *y_bi = kr_new(tape, KR_F32, KR_SHAPE(nb, m->nssm));
    if (!window || !state || !all_bo || !y_bi || !enter(tape, m, in, window, all_bo) ||
        !advance(tape, m, all_bo, state, y_bi) || !leave(tape, m, in, all_bo, y_bi))
        return false;
    *after = (kr_cache){ KR_MAMBA2, { .mamba2 = { window, state } } };
    return true;
}
