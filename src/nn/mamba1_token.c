/* mamba1_token.c - one token of each row through a Mamba-1 layer, by four kernels.
 *
 *   [x | z] = norm(u) W_in, x through the convolution
 *   [low | B | C] = x W_x
 *   dt = clamp(softplus(low W_dt + bias));   H <- e^(dt A) H + dt B x;   y = (C H + D x) silu(z)
 *   u + y W_out
 *
 * Window and state are changed where they lie: the caller's own, or copies of them.
 */
#include "nn/mamba1.h"

static bool is_f32(const kr_tensor *x)
{
    return !x || x->dtype == KR_F32;
}

bool kr_mamba1_takes_token(const void *block, const kr_token_input *in)
{
    const kr_mamba1 *m = block;
    const kr_mamba1_cache *cache = &in->cache->mamba1;
    return is_f32(in->norm_d) && m->small == KR_F32 && is_f32(m->in_proj_bias) && is_f32(m->out_proj_bias) &&
           is_f32(m->conv_bias) && is_f32(cache->conv_bik) && is_f32(cache->ssm_bir) &&
           kr_tensor_is_row_major(cache->conv_bik) && kr_tensor_is_row_major(cache->ssm_bir);
}

static bool enter(kr_tape *tape, const kr_mamba1 *m, const kr_token_input *in, kr_tensor *window, kr_tensor *xz_bo)
{
    kr_token_linear_args args = { .nm = xz_bo->dims[0],
                                  .nn = 2 * m->ni,
                                  .nk = m->head.d_model,
                                  .ng = 1,
                                  .x_m = m->head.d_model,
                                  .y_m = 2 * m->ni,
                                  .x = in->x_bsd->data,
                                  .gain = in->norm_d->data,
                                  .w = m->in_proj->data,
                                  .bias = kr_tensor_data(m->in_proj_bias),
                                  .y = xz_bo->data,
                                  .w_half = kr_half_of(m->in_proj->dtype),
                                  .has_norm = true,
                                  .eps = in->norm->eps,
                                  .nc = m->ni,
                                  .nt = m->config.conv_kernel,
                                  .taps = m->conv_weight->data,
                                  .taps_half = kr_half_of(m->conv_weight->dtype),
                                  .conv_bias = kr_tensor_data(m->conv_bias),
                                  .window = window->data };
    return KR_RUN(tape->ctx, token_linear[KR_REAL_F32], &args);
}

/* x W + base, of rows of x that lie x_m apart. */
static bool multiply(kr_tape *tape, const kr_tensor *x, int64_t x_m, const kr_tensor *w, const kr_tensor *bias,
                     const kr_tensor *base, kr_tensor *y)
{
    kr_token_linear_args args = { .nm = x->dims[0],
                                  .nn = w->dims[0],
                                  .nk = w->dims[1],
                                  .ng = 1,
                                  .x_m = x_m,
                                  .base_m = w->dims[0],
                                  .y_m = w->dims[0],
                                  .x = x->data,
                                  .w = w->data,
                                  .bias = kr_tensor_data(bias),
                                  .base = kr_tensor_data(base),
                                  .y = y->data,
                                  .w_half = kr_half_of(w->dtype) };
    return KR_RUN(tape->ctx, token_linear[KR_REAL_F32], &args);
}

static bool advance(kr_tape *tape, const kr_mamba1 *m, const kr_tensor *xz_bo, const kr_tensor *by_bo, kr_tensor *state,
                    kr_tensor *y_bi)
{
    const kr_mamba1_config *c = &m->config;
    const float *x = (const float *)(const void *)xz_bo->data, *low = (const float *)(const void *)by_bo->data;
    kr_token_scan_args args = { .nb = xz_bo->dims[0],
                                .ni = m->ni,
                                .nr = c->state_rank,
                                .nx = m->nx,
                                .x_stride = 2 * m->ni,
                                .stride = by_bo->dims[1],
                                .x = x,
                                .z = x + m->ni,
                                .low = low,
                                .b = low + m->nx,
                                .c = low + m->nx + c->state_rank,
                                .w = m->dt_proj->data,
                                .dt_bias = m->dt_bias_i->data,
                                .a_log = m->a_log_ir->data,
                                .d = m->d_i->data,
                                .w_half = kr_half_of(m->dt_proj->dtype),
                                .eps = c->bcdt_norm_eps > 0 ? m->bcdt_norm.eps : 0,
                                .dt_min = c->dt_limit_min,
                                .dt_max = c->dt_limit_max,
                                .state = state->data,
                                .y = y_bi->data };
    return KR_RUN(tape->ctx, token_scan[KR_REAL_F32], &args);
}

bool kr_mamba1_token(kr_tape *tape, const void *block, const kr_token_input *in, kr_cache *after)
{
    const kr_mamba1 *m = block;
    const int64_t nb = in->x_bsd->dims[0];
    kr_tensor *window = kr_token_own(tape, in, in->cache->mamba1.conv_bik);
    kr_tensor *state = kr_token_own(tape, in, in->cache->mamba1.ssm_bir);
    kr_tensor *xz_bo = kr_new(tape, KR_F32, KR_SHAPE(nb, 2 * m->ni));
    kr_tensor *by_bo = kr_new(tape, KR_F32, KR_SHAPE(nb, m->x_proj->dims[0]));
    kr_tensor *y_bi = kr_new(tape, KR_F32, KR_SHAPE(nb, m->ni));
    if (!window || !state || !xz_bo || !by_bo || !y_bi || !enter(tape, m, in, window, xz_bo) ||
        !multiply(tape, xz_bo, 2 * m->ni, m->x_proj, NULL, NULL, by_bo) ||
        !advance(tape, m, xz_bo, by_bo, state, y_bi) ||
        !multiply(tape, y_bi, m->ni, m->out_proj, m->out_proj_bias, in->x_bsd, in->y_bsd))
        return false;
    *after = (kr_cache){ KR_MAMBA1, { .mamba1 = { window, state } } };
    return true;
}
