/* mamba3_decode.c - one token of each row through a Mamba-3 layer, in three kernels.
 *
 *   [z x B C dt A lambda angles] = norm(u) W_in
 *   H <- e^da (H + carry V' k) + gamma V B, B and C rotated;   y = sum over ranks of H C + D V, normed or not, gated
 *   u + y W_out
 *
 * The cache is updated in place: the caller's, or a copy of it. Both pathways give the same result.
 */
#include "nn/mamba3_impl.h"

static bool is_f32(const kr_tensor *x)
{
    return !x || x->dtype == KR_DTYPE_F32;
}

bool kr_mamba3_can_decode(const void *block, const kr_decode_input *in)
{
    const kr_mamba3 *m = block;
    const kr_mamba3_config *c = &m->config;
    bool ok = c->rotation == KR_ROTATION_COMPLEX && is_f32(in->norm_d) && is_f32(m->dt_bias_h) &&
              is_f32(m->mimo_x_hmp) && is_f32(m->in_proj_bias) && is_f32(m->out_proj_bias) &&
              kr_decode_mamba3_elements(m->nm, c->state_rank, c->per_head_dim, m->nrotations) <= KR_DECODE_MAMBA3_MAX;
    for (int i = 0; ok && i < kr_mamba3_kind.ncache; i++) {
        const kr_tensor *x = in->cache->tensors[i];
        ok = x->dtype == KR_DTYPE_F32 && kr_tensor_is_row_major(x);
    }
    return ok;
}

static bool run_in_proj(kr_tape *tape, const kr_mamba3 *m, const kr_decode_input *in, kr_tensor *all_bo)
{
    kr_decode_linear_args args = { .nm = all_bo->dims[0],
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
                                   .w_dtype = kr_storage_dtype_of(m->in_proj->dtype),
                                   .has_norm = true,
                                   .eps = in->norm->eps };
    return KR_RUN(tape->ctx, decode_linear[KR_REAL_F32], &args);
}

static bool run_out_proj(kr_tape *tape, const kr_mamba3 *m, const kr_decode_input *in, const kr_tensor *y_bi)
{
    kr_decode_linear_args args = { .nm = y_bi->dims[0],
                                   .nn = m->head.d_model,
                                   .nk = m->ni,
                                   .ng = 1,
                                   .x_m = m->ni,
                                   .base_m = m->head.d_model,
                                   .y_m = m->head.d_model,
                                   .x = y_bi->data,
                                   .w = m->out_proj->data,
                                   .bias = kr_tensor_data(m->out_proj_bias),
                                   .base = in->x_bsd->data,
                                   .y = in->y_bsd->data,
                                   .w_dtype = kr_storage_dtype_of(m->out_proj->dtype) };
    return KR_RUN(tape->ctx, decode_linear[KR_REAL_F32], &args);
}

/* The parts of the projection, one after another, and the block's parameters. */
static kr_decode_mamba3_args core_args(const kr_mamba3 *m, const kr_tensor *all_bo)
{
    const kr_mamba3_config *c = &m->config;
    const int64_t nmgr = m->nm * c->n_groups * c->state_rank;
    const float *z = (const float *)(const void *)all_bo->data, *b = z + 2 * m->ni, *dt = b + 2 * nmgr;
    return (kr_decode_mamba3_args){ .nb = all_bo->dims[0],
                                    .nm = m->nm,
                                    .nh = m->nh,
                                    .np = c->per_head_dim,
                                    .ng = c->n_groups,
                                    .nr = c->state_rank,
                                    .na = m->nrotations,
                                    .nrotated = m->nrotated,
                                    .stride = all_bo->dims[1],
                                    .z = z,
                                    .x = z + m->ni,
                                    .b = b,
                                    .c = b + nmgr,
                                    .dt = dt,
                                    .a = dt + m->nh,
                                    .lambda = dt + 2 * m->nh,
                                    .theta = dt + 3 * m->nh,
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
                                    .range = c->rotation_range };
}

bool kr_mamba3_decode(kr_tape *tape, const void *block, const kr_decode_input *in, kr_cache *after)
{
    const kr_mamba3 *m = block;
    const int64_t nb = in->x_bsd->dims[0];
    kr_cache own = *in->cache;
    bool ok = true;
    for (int i = 0; i < kr_mamba3_kind.ncache; i++) {
        own.tensors[i] = kr_decode_own(tape, in, in->cache->tensors[i]);
        ok = ok && own.tensors[i];
    }
    kr_tensor *all_bo = kr_new(tape, KR_DTYPE_F32, KR_SHAPE(nb, m->in_proj->dims[0]));
    kr_tensor *y_bi = kr_new(tape, KR_DTYPE_F32, KR_SHAPE(nb, m->ni));
    if (!ok || !all_bo || !y_bi) return false;
    kr_decode_mamba3_args core = core_args(m, all_bo);
    core.state = own.mamba3.ssm_bhpr->data;
    core.k = own.mamba3.k_bmhr->data;
    core.v = own.mamba3.v_bhp->data;
    core.angle = own.mamba3.rotation->data;
    core.y = y_bi->data;
    if (!run_in_proj(tape, m, in, all_bo) || !KR_RUN(tape->ctx, decode_mamba3[KR_REAL_F32], &core) ||
        !run_out_proj(tape, m, in, y_bi))
        return false;
    *after = own;
    return true;
}
