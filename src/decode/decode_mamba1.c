/* decode_mamba1.c - one token of each row through a Mamba-1 layer, in four kernels.
 *
 *   [x | z] = norm(u) W_in, x through the convolution
 *   [low | B | C] = x W_x
 *   dt = clamp(softplus(low W_dt + bias));   H <- e^(dt A) H + dt B x;   y = (C H + D x) silu(z)
 *   u + y W_out
 *
 * Window and state are updated in place.
 */
#include "decode/decode_family.h"
#include "nn/mamba1_impl.h"
#include "ops/ops_impl.h"

static const char *fallback(const kr_ctx *ctx, const void *block)
{
    const kr_mamba1 *m = block;
    if (!KR_DECODE_TAKES(ctx, decode_linear_w, m->in_proj) || !KR_DECODE_TAKES(ctx, decode_linear_w, m->x_proj) ||
        !KR_DECODE_TAKES(ctx, decode_linear_w, m->out_proj) || !KR_DECODE_TAKES(ctx, decode_scan_w, m->dt_proj) ||
        !KR_DECODE_TAKES(ctx, decode_linear_taps, m->conv_weight))
        return KR_DECODE_WEIGHTS;
    return m->small == KR_DTYPE_F32 && kr_decode_is_f32(m->in_proj_bias) && kr_decode_is_f32(m->out_proj_bias) &&
                   kr_decode_is_f32(m->conv_bias)
               ? NULL
               : "its decode kernels take f32 biases, rates and states";
}

static kr_decode_linear_args in_proj(const kr_mamba1 *m, const kr_decode_request *r, const kr_tensor *row_bo)
{
    kr_decode_linear_args args = kr_decode_in_proj(r, m->in_proj, m->in_proj_bias, row_bo);
    args.nc = m->ni;
    args.nt = m->config.conv_kernel;
    args.taps = kr_operand_of(m->conv_weight);
    args.conv_bias = kr_tensor_data(m->conv_bias);
    args.window = r->cache->mamba1.conv_bik->data;
    return args;
}

static kr_decode_linear_args x_proj(const kr_mamba1 *m, const kr_tensor *row_bo, const kr_tensor *low_bo)
{
    const kr_tensor *w = m->x_proj;
    return (kr_decode_linear_args){ .nm = row_bo->dims[0],
                                    .nn = w->dims[0],
                                    .nk = w->dims[1],
                                    .ng = 1,
                                    .x = kr_operand_of(row_bo),
                                    .w = kr_operand_of(w),
                                    .y = kr_operand_of(low_bo) };
}

static kr_decode_scan_args core(const kr_mamba1 *m, const kr_decode_request *r)
{
    const kr_mamba1_config *c = &m->config;
    const kr_decode_buffers *buffers = r->buffers;
    return (kr_decode_scan_args){ .nb = r->nb,
                                  .ni = m->ni,
                                  .nr = c->state_rank,
                                  .nx = m->nx,
                                  .x = kr_decode_columns(buffers->row_bo, 0),
                                  .z = kr_decode_columns(buffers->row_bo, m->ni),
                                  .low = kr_decode_columns(buffers->low_bo, 0),
                                  .b = kr_decode_columns(buffers->low_bo, m->nx),
                                  .c = kr_decode_columns(buffers->low_bo, m->nx + c->state_rank),
                                  .w = kr_operand_of(m->dt_proj),
                                  .y = kr_operand_of(buffers->y_bi),
                                  .dt_bias = m->dt_bias_i->data,
                                  .a_log = m->a_log_ir->data,
                                  .d = m->d_i->data,
                                  .eps = c->bcdt_norm_eps > 0 ? m->bcdt_norm.eps : 0,
                                  .dt_min = c->dt_limit_min,
                                  .dt_max = c->dt_limit_max,
                                  .state = r->cache->mamba1.ssm_bir->data };
}

static bool describe(kr_tape *tape, const kr_decode_request *r, kr_decode_layer *layer)
{
    const kr_mamba1 *m = r->block;
    kr_decode_buffers *buffers = r->buffers;
    const kr_tensor *row_bo = kr_decode_buffer(tape, &buffers->row_bo, KR_DTYPE_F32, r->nb, 2 * m->ni);
    const kr_tensor *low_bo = kr_decode_buffer(tape, &buffers->low_bo, KR_DTYPE_F32, r->nb, m->x_proj->dims[0]);
    const kr_tensor *y_bi = kr_decode_buffer(tape, &buffers->y_bi, KR_DTYPE_F32, r->nb, m->ni);
    if (!row_bo || !low_bo || !y_bi) return false;
    *layer = (kr_decode_layer){ .kind = KR_DECODE_MAMBA1,
                                .in_proj = in_proj(m, r, row_bo),
                                .out_proj = kr_decode_out_proj(r, y_bi, m->out_proj, m->out_proj_bias),
                                .mamba1 = { x_proj(m, row_bo, low_bo), core(m, r) } };
    return true;
}

const kr_decode_family kr_mamba1_decode = { .kind = &kr_mamba1_kind, .fallback = fallback, .describe = describe };
