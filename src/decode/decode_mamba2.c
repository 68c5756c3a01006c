/* decode_mamba2.c - one token of each row through a Mamba-2 layer, in three kernels.
 *
 *   [z | x B C | dt] = norm(u) W_in, x B C through the convolution
 *   H <- e^da H + s x (outer) B;   y = H C + D x
 *   u + norm(y, z) W_out;   with many rows the core applies the gate: y silu(z)
 *
 * Window and state are updated in place, or the update of the state is deferred (decode/lazy_state.h).
 */
#include "decode/decode_family.h"
#include "device/device.h"
#include "nn/mamba2_impl.h"
#include "ops/autocast.h"
#include "ops/ops_impl.h"

static const char *fallback(const kr_ctx *ctx, const void *block)
{
    const kr_mamba2 *m = block;
    if (!KR_DECODE_TAKES(ctx, decode_linear_w, m->in_proj) || !KR_DECODE_TAKES(ctx, decode_linear_w, m->out_proj) ||
        !KR_DECODE_TAKES(ctx, decode_linear_taps, m->conv_weight))
        return KR_DECODE_WEIGHTS;
    if (m->nmlp != 0) return "d_ssm is smaller than d_inner, and its decode kernels have no MLP";
    return m->dt_bias_h->dtype == KR_DTYPE_F32 && kr_decode_is_f32(m->in_proj_bias)
               ? NULL
               : "its decode kernels take f32 biases, rates and states";
}

/* With few rows the output projection applies the gate as it reads; with more rows the gate would be read too often. */
static bool core_gates(const kr_mamba2 *m, int64_t nb)
{
    return nb > KR_GEMV_ROWS && m->norm.groups == 1 && !m->norm.norm_before_gate;
}

static kr_decode_linear_args in_proj(const kr_mamba2 *m, const kr_decode_request *r)
{
    kr_decode_linear_args args = kr_decode_in_proj(r, m->in_proj, m->in_proj_bias, r->buffers->row_bo);
    args.conv_from = m->nssm;
    args.nc = m->nv;
    args.nt = m->config.conv_kernel;
    args.taps = kr_operand_of(m->conv_weight);
    args.conv_bias = kr_tensor_data(m->conv_bias);
    args.window = r->cache->mamba2.conv_bvk->data;
    return args;
}

static kr_decode_mamba2 core(const kr_mamba2 *m, const kr_decode_request *r, bool gates)
{
    const kr_mamba2_config *c = &m->config;
    const kr_decode_buffers *buffers = r->buffers;
    const kr_tensor *row_bo = buffers->row_bo;
    kr_decode_mamba2 y = { .z_at = 0,
                           .x_at = m->nssm,
                           .b_at = 2 * m->nssm,
                           .c_at = 2 * m->nssm + c->n_groups * c->state_rank,
                           .dt_at = m->nssm + m->nv };
    y.core = (kr_decode_ssd_args){ .nb = r->nb,
                                   .nh = m->nh,
                                   .np = c->per_head_dim,
                                   .ng = c->n_groups,
                                   .nr = c->state_rank,
                                   .x = kr_decode_columns(row_bo, y.x_at),
                                   .b = kr_decode_columns(row_bo, y.b_at),
                                   .c = kr_decode_columns(row_bo, y.c_at),
                                   .dt = kr_decode_columns(row_bo, y.dt_at),
                                   .y = kr_operand_of(buffers->y_bi),
                                   .dt_bias = m->dt_bias_h->data,
                                   .a_log = m->a_log_h->data,
                                   .d = m->d->data,
                                   .gain = gates ? kr_tensor_data(m->norm_gain) : NULL,
                                   .d_per_dim = c->has_d_per_dim,
                                   .dt_min = c->dt_limit_min,
                                   .dt_max = c->dt_limit_max,
                                   .state = r->cache->mamba2.ssm_bhpr->data,
                                   .squares = gates ? buffers->squares_bt->data : NULL,
                                   .deferred = kr_tensor_data(r->records) };
    if (gates) y.core.z = kr_decode_columns(row_bo, y.z_at);
    return y;
}

static kr_decode_linear_args out_proj(const kr_mamba2 *m, const kr_decode_request *r, bool gated)
{
    const kr_decode_buffers *buffers = r->buffers;
    kr_decode_linear_args args = kr_decode_out_proj(r, buffers->y_bi, m->out_proj, m->out_proj_bias);
    args.ng = m->norm.groups;
    args.has_norm = m->config.has_norm;
    args.norm_first = m->norm.norm_before_gate;
    args.eps = m->norm.eps;
    if (gated) {
        args.squares = buffers->squares_bt->data;
        args.nsquares = buffers->squares_bt->dims[1];
    } else {
        args.z = kr_operand_of(buffers->row_bo);
        args.gain = kr_tensor_data(m->norm_gain);
    }
    return args;
}

static bool describe(kr_tape *tape, const kr_decode_request *r, kr_decode_layer *layer)
{
    const kr_mamba2 *m = r->block;
    kr_decode_buffers *buffers = r->buffers;
    const int64_t tiles = m->nh * ((m->config.per_head_dim + KR_DECODE_TILE - 1) / KR_DECODE_TILE);
    const bool gates = core_gates(m, r->nb), casts = gates && m->out_proj->dtype == KR_DTYPE_BF16 &&
                                                     kr_autocasts(tape->ctx) &&
                                                     kr_accepts(tape->ctx, decode_ssd_y, KR_DTYPE_BF16) &&
                                                     kr_accepts(tape->ctx, decode_linear_x, KR_DTYPE_BF16);
    if (!kr_decode_buffer(tape, &buffers->row_bo, KR_DTYPE_F32, r->nb, m->in_proj->dims[0]) ||
        !kr_decode_buffer(tape, &buffers->y_bi, casts ? KR_DTYPE_BF16 : KR_DTYPE_F32, r->nb, m->nssm) ||
        (gates && !kr_decode_buffer(tape, &buffers->squares_bt, KR_DTYPE_F32, r->nb, tiles)))
        return false;
    *layer = (kr_decode_layer){ .kind = KR_DECODE_MAMBA2,
                                .in_proj = in_proj(m, r),
                                .out_proj = out_proj(m, r, gates),
                                .mamba2 = core(m, r, gates) };
    return true;
}

/* ---- deferred updates ---- */

static int64_t record_elements(const void *block)
{
    const kr_mamba2 *m = block;
    const kr_mamba2_config *c = &m->config;
    return kr_deferred_parts_of(m->nh, c->per_head_dim, c->n_groups, c->state_rank).row;
}

static bool flush(kr_ctx *ctx, const void *block, const kr_cache *cache, int64_t nb, kr_tensor *records)
{
    const kr_mamba2 *m = block;
    const kr_mamba2_config *c = &m->config;
    kr_decode_ssd_args args = { .nb = nb,
                                .nh = m->nh,
                                .np = c->per_head_dim,
                                .ng = c->n_groups,
                                .nr = c->state_rank,
                                .state = cache->mamba2.ssm_bhpr->data,
                                .deferred = records->data };
    return KR_RUN(ctx, decode_ssd[KR_REAL_F32], &args);
}

const kr_decode_family kr_mamba2_decode = { .kind = &kr_mamba2_kind,
                                            .fallback = fallback,
                                            .describe = describe,
                                            .record_elements = record_elements,
                                            .flush = flush };
