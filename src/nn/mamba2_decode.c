/* mamba2_decode.c - one token of each row through a Mamba-2 layer, in three kernels.
 *
 *   [z | x B C | dt] = norm(u) W_in, x B C through the convolution
 *   H <- e^da H + s x (outer) B;   y = H C + D x
 *   u + norm(y, z) W_out;   with many rows the core applies the gate: y silu(z)
 *
 * Window and state are updated in place: the caller's, or copies of them.
 */
#include "nn/mamba2_impl.h"
#include "nn/deferred_state.h"

bool kr_mamba2_can_decode(const void *block, const kr_decode_input *in)
{
    const kr_mamba2 *m = block;
    const kr_mamba2_cache *cache = &in->cache->mamba2;
    return m->nmlp == 0 && !kr_dtype_is_16bit(kr_tensor_dtype(in->norm_d)) && m->dt_bias_h->dtype == KR_DTYPE_F32 &&
           cache->conv_bvk->dtype == KR_DTYPE_F32 && cache->ssm_bhpr->dtype == KR_DTYPE_F32 &&
           (!m->in_proj_bias || m->in_proj_bias->dtype == KR_DTYPE_F32) && kr_tensor_is_row_major(cache->conv_bvk) &&
           kr_tensor_is_row_major(cache->ssm_bhpr);
}

/* A step and its intermediate results. */
typedef struct step {
    const kr_mamba2 *m;
    const kr_decode_input *in;
    kr_tensor *window_bvk, *state_bhpr;
    kr_tensor *all_bo; /* [z | x B C | dt] */
    kr_tensor *y_bi;   /* of the core */
    kr_tensor *
        squares_bt; /* the core applies the gate, and stores the squares for the norm; NULL: the norm applies the gate */
} step;

static kr_decode_linear_args in_proj_args(const step *s)
{
    const kr_mamba2 *m = s->m;
    return (kr_decode_linear_args){ .nm = s->all_bo->dims[0],
                                    .nn = s->all_bo->dims[1],
                                    .nk = m->head.d_model,
                                    .ng = 1,
                                    .x_m = m->head.d_model,
                                    .y_m = s->all_bo->dims[1],
                                    .x = s->in->x_bsd->data,
                                    .gain = s->in->norm_d->data,
                                    .w = m->in_proj->data,
                                    .bias = kr_tensor_data(m->in_proj_bias),
                                    .y = s->all_bo->data,
                                    .w_dtype = kr_storage_dtype_of(m->in_proj->dtype),
                                    .has_norm = true,
                                    .eps = s->in->norm->eps,
                                    .conv_from = m->nssm,
                                    .nc = m->nv,
                                    .nt = m->config.conv_kernel,
                                    .taps = m->conv_weight->data,
                                    .taps_dtype = kr_storage_dtype_of(m->conv_weight->dtype),
                                    .conv_bias = kr_tensor_data(m->conv_bias),
                                    .window = s->window_bvk->data };
}

static kr_decode_ssd_args core_args(const step *s)
{
    const kr_mamba2 *m = s->m;
    const kr_mamba2_config *c = &m->config;
    const float *z = (const float *)(const void *)s->all_bo->data, *x = z + m->nssm;
    return (kr_decode_ssd_args){ .nb = s->all_bo->dims[0],
                                 .nh = m->nh,
                                 .np = c->per_head_dim,
                                 .ng = c->n_groups,
                                 .nr = c->state_rank,
                                 .stride = s->all_bo->dims[1],
                                 .y_stride = m->nssm,
                                 .x = x,
                                 .b = x + m->nssm,
                                 .c = x + m->nssm + c->n_groups * c->state_rank,
                                 .dt = x + m->nv,
                                 .dt_bias = m->dt_bias_h->data,
                                 .a_log = m->a_log_h->data,
                                 .d = m->d->data,
                                 .z = s->squares_bt ? z : NULL,
                                 .gain = s->squares_bt ? kr_tensor_data(m->norm_gain) : NULL,
                                 .d_per_dim = c->has_d_per_dim,
                                 .dt_min = c->dt_limit_min,
                                 .dt_max = c->dt_limit_max,
                                 .state = s->state_bhpr->data,
                                 .y = s->y_bi->data,
                                 .squares = kr_tensor_data(s->squares_bt),
                                 .y_dtype = kr_storage_dtype_of(s->y_bi->dtype),
                                 .deferred = s->in->deferred ? s->in->deferred->tokens->data : NULL };
}

static kr_decode_linear_args out_proj_args(const step *s)
{
    const kr_mamba2 *m = s->m;
    const bool gates = !s->squares_bt;
    return (kr_decode_linear_args){ .nm = s->all_bo->dims[0],
                                    .nn = m->head.d_model,
                                    .nk = m->nssm,
                                    .ng = m->norm.groups,
                                    .x_m = m->nssm,
                                    .z_m = s->all_bo->dims[1],
                                    .base_m = m->head.d_model,
                                    .y_m = m->head.d_model,
                                    .x = s->y_bi->data,
                                    .z = gates ? s->all_bo->data : NULL,
                                    .gain = gates ? kr_tensor_data(m->norm_gain) : NULL,
                                    .w = m->out_proj->data,
                                    .bias = kr_tensor_data(m->out_proj_bias),
                                    .base = s->in->x_bsd->data,
                                    .y = s->in->y_bsd->data,
                                    .squares = kr_tensor_data(s->squares_bt),
                                    .nsquares = gates ? 0 : s->squares_bt->dims[1],
                                    .w_dtype = kr_storage_dtype_of(m->out_proj->dtype),
                                    .x_dtype = kr_storage_dtype_of(s->y_bi->dtype),
                                    .has_norm = m->config.has_norm,
                                    .norm_first = m->norm.norm_before_gate,
                                    .eps = m->norm.eps };
}

static bool run(kr_ctx *ctx, const step *s)
{
    kr_decode_layer layer = { in_proj_args(s), core_args(s), out_proj_args(s), NULL };
    kr_decode_list *list = s->in->list;
    if (!list || list->count == list->most) return kr_run_decode_layers(ctx, 1, &layer);
    list->layers[list->count++] = layer;
    return true;
}

/* With few rows, state traffic does not matter. */
bool kr_mamba2_may_defer(const void *block, int64_t batch, kr_deferred_slot *slot)
{
    const kr_mamba2 *m = block;
    const kr_mamba2_config *c = &m->config;
    if (batch <= KR_GEMV_ROWS) return false;
    slot->ngroups = c->n_groups;
    slot->elements = batch * kr_deferred_parts_of(m->nh, c->per_head_dim, c->n_groups, c->state_rank).row;
    return true;
}

bool kr_mamba2_flush(kr_ctx *ctx, const kr_cache *cache, const kr_deferred_slot *slot)
{
    kr_tensor *state_bhpr = cache->mamba2.ssm_bhpr;
    kr_decode_ssd_args args = { .nb = state_bhpr->dims[0],
                                .nh = state_bhpr->dims[1],
                                .np = state_bhpr->dims[2],
                                .ng = slot->ngroups,
                                .nr = state_bhpr->dims[3],
                                .state = state_bhpr->data,
                                .deferred = slot->tokens->data };
    return KR_RUN(ctx, decode_ssd[KR_REAL_F32], &args);
}

/* With few rows the output projection applies the gate as it reads; with more rows the gate would be read too often. */
static bool core_gates(const kr_mamba2 *m, int64_t nb)
{
    return nb > KR_GEMV_ROWS && m->norm.groups == 1 && !m->norm.norm_before_gate;
}

bool kr_mamba2_decode(kr_tape *tape, const void *block, const kr_decode_input *in, kr_cache *after)
{
    const kr_mamba2 *m = block;
    const int64_t nb = in->x_bsd->dims[0], np = m->config.per_head_dim;
    const bool gates = core_gates(m, nb), casts = m->out_proj->dtype == KR_DTYPE_BF16 && kr_autocasts(tape->ctx) &&
                                                  kr_accepts(tape->ctx, decode_ssd_y, KR_DTYPE_BF16) &&
                                                  kr_accepts(tape->ctx, decode_linear_x, KR_DTYPE_BF16);
    step s = { .m = m, .in = in };
    s.window_bvk = kr_decode_own(tape, in, in->cache->mamba2.conv_bvk);
    s.state_bhpr = kr_decode_own(tape, in, in->cache->mamba2.ssm_bhpr);
    s.all_bo = kr_new(tape, KR_DTYPE_F32, KR_SHAPE(nb, m->in_proj->dims[0]));
    s.y_bi = kr_new(tape, gates && casts ? KR_DTYPE_BF16 : KR_DTYPE_F32, KR_SHAPE(nb, m->nssm));
    if (gates)
        s.squares_bt = kr_new(tape, KR_DTYPE_F32, KR_SHAPE(nb, m->nh * ((np + KR_DECODE_TILE - 1) / KR_DECODE_TILE)));
    if (!s.window_bvk || !s.state_bhpr || !s.all_bo || !s.y_bi || (gates && !s.squares_bt) || !run(tape->ctx, &s))
        return false;
    if (in->deferred) in->deferred->is_used = true;
    *after = (kr_cache){ KR_FAMILY_MAMBA2, { .mamba2 = { s.window_bvk, s.state_bhpr } } };
    return true;
}
