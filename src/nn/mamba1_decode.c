/* mamba1_decode.c - one token of each row through a Mamba-1 layer, in four kernels.
 *
 *   [x | z] = norm(u) W_in, x through the convolution
 *   [low | B | C] = x W_x
 *   dt = clamp(softplus(low W_dt + bias));   H <- e^(dt A) H + dt B x;   y = (C H + D x) silu(z)
 *   u + y W_out
 *
 * Window and state are updated in place: the caller's, or copies of them.
 */
#include "nn/mamba1_impl.h"

static bool is_f32(const kr_tensor *x)
{
    return !x || x->dtype == KR_DTYPE_F32;
}

bool kr_mamba1_can_decode(const void *block, const kr_decode_input *in)
{
    const kr_mamba1 *m = block;
    const kr_mamba1_cache *cache = &in->cache->mamba1;
    return is_f32(in->norm_d) && m->small == KR_DTYPE_F32 && is_f32(m->in_proj_bias) && is_f32(m->out_proj_bias) &&
           is_f32(m->conv_bias) && is_f32(cache->conv_bik) && is_f32(cache->ssm_bir) &&
           kr_tensor_is_row_major(cache->conv_bik) && kr_tensor_is_row_major(cache->ssm_bir);
}

static bool run_in_proj(kr_tape *tape, const kr_mamba1 *m, const kr_decode_input *in, kr_tensor *window,
                        kr_tensor *xz_bo)
{
    kr_decode_linear_args args = { .nm = xz_bo->dims[0],
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
                                   .w_dtype = kr_storage_dtype_of(m->in_proj->dtype),
                                   .has_norm = true,
                                   .eps = in->norm->eps,
                                   .nc = m->ni,
                                   .nt = m->config.conv_kernel,
                                   .taps = m->conv_weight->data,
                                   .taps_dtype = kr_storage_dtype_of(m->conv_weight->dtype),
                                   .conv_bias = kr_tensor_data(m->conv_bias),
                                   .window = window->data };
    return KR_RUN(tape->ctx, decode_linear[KR_REAL_F32], &args);
}

/* x W + base; x_m: row stride of x. */
static bool multiply(kr_tape *tape, const kr_tensor *x, int64_t x_m, const kr_tensor *w, const kr_tensor *bias,
                     const kr_tensor *base, kr_tensor *y)
{
    kr_decode_linear_args args = { .nm = x->dims[0],
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
                                   .w_dtype = kr_storage_dtype_of(w->dtype) };
    return KR_RUN(tape->ctx, decode_linear[KR_REAL_F32], &args);
}

static bool run_scan(kr_tape *tape, const kr_mamba1 *m, const kr_tensor *xz_bo, const kr_tensor *by_bo,
                     kr_tensor *state, kr_tensor *y_bi)
{
    const kr_mamba1_config *c = &m->config;
    const float *x = (const float *)(const void *)xz_bo->data, *low = (const float *)(const void *)by_bo->data;
    kr_decode_scan_args args = { .nb = xz_bo->dims[0],
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
                                 .w_dtype = kr_storage_dtype_of(m->dt_proj->dtype),
                                 .eps = c->bcdt_norm_eps > 0 ? m->bcdt_norm.eps : 0,
                                 .dt_min = c->dt_limit_min,
                                 .dt_max = c->dt_limit_max,
                                 .state = state->data,
                                 .y = y_bi->data };
    return KR_RUN(tape->ctx, decode_scan[KR_REAL_F32], &args);
}

bool kr_mamba1_decode(kr_tape *tape, const void *block, const kr_decode_input *in, kr_cache *after)
{
    const kr_mamba1 *m = block;
    const int64_t nb = in->x_bsd->dims[0];
    kr_tensor *window = kr_decode_own(tape, in, in->cache->mamba1.conv_bik);
    kr_tensor *state = kr_decode_own(tape, in, in->cache->mamba1.ssm_bir);
    kr_tensor *xz_bo = kr_new(tape, KR_DTYPE_F32, KR_SHAPE(nb, 2 * m->ni));
    kr_tensor *by_bo = kr_new(tape, KR_DTYPE_F32, KR_SHAPE(nb, m->x_proj->dims[0]));
    kr_tensor *y_bi = kr_new(tape, KR_DTYPE_F32, KR_SHAPE(nb, m->ni));
    if (!window || !state || !xz_bo || !by_bo || !y_bi || !run_in_proj(tape, m, in, window, xz_bo) ||
        !multiply(tape, xz_bo, 2 * m->ni, m->x_proj, NULL, NULL, by_bo) ||
        !run_scan(tape, m, xz_bo, by_bo, state, y_bi) ||
        !multiply(tape, y_bi, m->ni, m->out_proj, m->out_proj_bias, in->x_bsd, in->y_bsd))
        return false;
    *after = (kr_cache){ KR_FAMILY_MAMBA1, { .mamba1 = { window, state } } };
    return true;
}
