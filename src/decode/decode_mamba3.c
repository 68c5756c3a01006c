/* decode_mamba3.c - one token of each row through a Mamba-3 layer, in three kernels.
 *
 *   [z x B C dt A lambda angles] = norm(u) W_in
 *   H <- e^da (H + carry V' k) + gamma V B, B and C rotated;   y = sum over ranks of H C + D V, normed or not, gated
 *   u + y W_out
 *
 * The cache is updated in place. Both pathways give the same result.
 */
#include "decode/decode_family.h"
#include "nn/mamba3_impl.h"
#include "ops/ops_impl.h"

static const char *fallback(const kr_ctx *ctx, const void *block)
{
    const kr_mamba3 *m = block;
    const kr_mamba3_config *c = &m->config;
    if (c->rotation != KR_ROTATION_COMPLEX) return "rotation by quaternions has no decode kernel";
    if (kr_decode_mamba3_elements(m->nm, c->state_rank, c->per_head_dim, m->nrotations) > KR_DECODE_MAMBA3_MAX)
        return "a head is too large for the shared memory of its decode kernel";
    if (!KR_DECODE_TAKES(ctx, decode_linear_w, m->in_proj) || !KR_DECODE_TAKES(ctx, decode_linear_w, m->out_proj))
        return KR_DECODE_WEIGHTS;
    return kr_decode_is_f32(m->dt_bias_h) && kr_decode_is_f32(m->mimo_x_hmp) && kr_decode_is_f32(m->in_proj_bias) &&
                   kr_decode_is_f32(m->out_proj_bias)
               ? NULL
               : "its decode kernels take f32 biases, rates and states";
}

/* The parts of the projection, one after another, and the block's parameters. */
static kr_decode_mamba3_args core(const kr_mamba3 *m, const kr_decode_request *r)
{
    const kr_mamba3_config *c = &m->config;
    const kr_mamba3_cache *cache = &r->cache->mamba3;
    const kr_tensor *row_bo = r->buffers->row_bo;
    const int64_t nmgr = m->nm * c->n_groups * c->state_rank, b_at = 2 * m->ni, dt_at = b_at + 2 * nmgr;
    return (kr_decode_mamba3_args){ .nb = r->nb,
                                    .nm = m->nm,
                                    .nh = m->nh,
                                    .np = c->per_head_dim,
                                    .ng = c->n_groups,
                                    .nr = c->state_rank,
                                    .na = m->nrotations,
                                    .nrotated = m->nrotated,
                                    .z = kr_decode_columns(row_bo, 0),
                                    .x = kr_decode_columns(row_bo, m->ni),
                                    .b = kr_decode_columns(row_bo, b_at),
                                    .c = kr_decode_columns(row_bo, b_at + nmgr),
                                    .dt = kr_decode_columns(row_bo, dt_at),
                                    .a = kr_decode_columns(row_bo, dt_at + m->nh),
                                    .lambda = kr_decode_columns(row_bo, dt_at + 2 * m->nh),
                                    .theta = kr_decode_columns(row_bo, dt_at + 3 * m->nh),
                                    .y = kr_operand_of(r->buffers->y_bi),
                                    .dt_bias = m->dt_bias_h->data,
                                    .b_gain = m->b_gain_r->data,
                                    .c_gain = m->c_gain_r->data,
                                    .b_bias = m->b_bias_hmr->data,
                                    .c_bias = m->c_bias_hmr->data,
                                    .mimo_x = kr_tensor_data(m->mimo_x_hmp),
                                    .mimo_z = kr_tensor_data(m->mimo_z_hmp),
                                    .mimo_o = kr_tensor_data(m->mimo_o_hmp),
                                    .d = m->d_h->data,
                                    .gain = kr_tensor_data(m->norm_gain),
                                    .softplus = m->steps.a_activation == KR_A_ACTIVATION_SOFTPLUS,
                                    .split_pairs = c->is_mimo,
                                    .has_norm = c->has_outproj_norm,
                                    .shared_gain = c->has_shared_norm_gain,
                                    .eps = c->norm_eps,
                                    .a_floor = m->steps.a_floor,
                                    .dt_min = m->steps.dt_min,
                                    .dt_max = m->steps.dt_max,
                                    .range = c->rotation_range,
                                    .state = cache->ssm_bhpr->data,
                                    .k = cache->k_bmhr->data,
                                    .v = cache->v_bhp->data,
                                    .angle = cache->rotation->data };
}

static bool describe(kr_tape *tape, const kr_decode_request *r, kr_decode_layer *layer)
{
    const kr_mamba3 *m = r->block;
    kr_decode_buffers *buffers = r->buffers;
    const kr_tensor *row_bo = kr_decode_buffer(tape, &buffers->row_bo, KR_DTYPE_F32, r->nb, m->in_proj->dims[0]);
    const kr_tensor *y_bi = kr_decode_buffer(tape, &buffers->y_bi, KR_DTYPE_F32, r->nb, m->ni);
    if (!row_bo || !y_bi) return false;
    *layer = (kr_decode_layer){ .kind = KR_DECODE_MAMBA3,
                                .in_proj = kr_decode_in_proj(r, m->in_proj, m->in_proj_bias, row_bo),
                                .out_proj = kr_decode_out_proj(r, y_bi, m->out_proj, m->out_proj_bias),
                                .mamba3 = core(m, r) };
    return true;
}

const kr_decode_family kr_mamba3_decode = { .kind = &kr_mamba3_kind, .fallback = fallback, .describe = describe };
