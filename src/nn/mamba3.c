/* mamba3.c - the Mamba-3 block: forward over sequences, and step by step.
 *
 *   tokens = in_proj(u);  B, C rotated by angles or quaternions that accumulate along the sequence
 *   y, H = the trapezoidal recurrence, by either pathway;   out = out_proj(gate(y))
 */
#include "nn/mamba3_impl.h"

#include "mixer/core.h"
#include "mixer/rotary.h"

/* ---- rotation ---- */

kr_mamba3_rotations kr_mamba3_rotations_of(kr_tape *tape, const kr_mamba3 *m, const kr_mamba3_tokens *tokens,
                                           kr_tensor *initial, const kr_block_input *input)
{
    const kr_mamba3_config *c = &m->config;
    const int64_t chunk_len = kr_ssd_chunk_len_or_optimal(input->path, c->state_rank, c->per_head_dim);
    const double range = c->rotation_range;
    kr_tensor *dt = tokens->step.dt_bsh, *seq_start_bs = input->seq_start_bs;
    if (c->rotation == KR_ROTATION_QUATERNION) {
        kr_tensor *q_bshj4 = kr_quaternion_increments(tape, tokens->rotation, dt, range);
        const kr_quaternion_out out = kr_quaternion_cumprod_chunked(tape, q_bshj4, initial, seq_start_bs, chunk_len);
        return (kr_mamba3_rotations){ out.cum_bshj4, out.final_bhj4 };
    }
    const kr_rotation_out out =
        kr_rotation_angles_chunked(tape, tokens->rotation, dt, initial, range, seq_start_bs, chunk_len);
    return (kr_mamba3_rotations){ out.angle_bsha, out.final_bha };
}

static kr_pairing pairing_of(const kr_mamba3 *m)
{
    return m->config.is_mimo ? KR_PAIRING_SPLIT : KR_PAIRING_ADJACENT;
}

/* B or C after the norm, of groups. */
static kr_tensor *normed_maps(kr_tape *tape, const kr_mamba3 *m, kr_tensor *raw_bsmgr, kr_tensor *gain_r)
{
    kr_norm_options norm;
    kr_norm_options_init(&norm);
    norm.eps = m->config.norm_eps;
    return kr_rms_norm(tape, raw_bsmgr, gain_r, &norm);
}

/* B or C after norm, bias and rotation. */
static kr_tensor *rotated_bc(kr_tape *tape, const kr_mamba3 *m, kr_tensor *raw_bsmgr, kr_tensor *gain_r,
                             kr_tensor *bias_hmr, kr_tensor *rotation)
{
    if (m->nrotated > 0 && m->config.rotation == KR_ROTATION_COMPLEX)
        return kr_rotate_groups(tape, normed_maps(tape, m, raw_bsmgr, gain_r), bias_hmr, rotation, pairing_of(m));
    kr_tensor *x_bsmhr = kr_mamba3_maps(tape, m, raw_bsmgr, gain_r, bias_hmr);
    return m->nrotated > 0 ? kr_quaternion_rotate(tape, x_bsmhr, rotation) : x_bsmhr;
}

void kr_mamba3_make_bc(kr_tape *tape, const kr_mamba3 *m, kr_mamba3_tokens *tokens, kr_tensor *rotation,
                       bool core_rotates)
{
    if (!core_rotates) {
        tokens->b_bsmhr = rotated_bc(tape, m, tokens->b_bsmgr, m->b_gain_r, m->b_bias_hmr, rotation);
        tokens->c_bsmhr = rotated_bc(tape, m, tokens->c_bsmgr, m->c_gain_r, m->c_bias_hmr, rotation);
        return;
    }
    tokens->b_bsmhr = normed_maps(tape, m, tokens->b_bsmgr, m->b_gain_r);
    tokens->c_bsmhr = normed_maps(tape, m, tokens->c_bsmgr, m->c_gain_r);
    tokens->rotary = (kr_ssd_rotary_args){ rotation, m->b_bias_hmr, m->c_bias_hmr, pairing_of(m) };
}

kr_tensor *kr_mamba3_last_key(kr_tape *tape, const kr_mamba3 *m, const kr_mamba3_tokens *tokens,
                              const kr_mamba3_rotations *rotation, const kr_mamba3_spans *spans)
{
    kr_tensor *last = kr_mamba3_last(tape, spans, tokens->b_bsmhr);
    if (!tokens->rotary.angle_bsha) return last;
    const int64_t nq = spans->count, nr = m->config.state_rank;
    kr_tensor *angle_qsha = kr_reshape(tape, rotation->final, KR_SHAPE(nq, 1, m->nh, m->nrotations));
    kr_tensor *k_qsmhr = kr_rotate_groups(tape, kr_reshape(tape, last, KR_SHAPE(nq, 1, m->nm, m->config.n_groups, nr)),
                                          m->b_bias_hmr, angle_qsha, pairing_of(m));
    return kr_reshape(tape, k_qsmhr, KR_SHAPE(nq, m->nm, m->nh, nr));
}

/* ---- forward ---- */

kr_mamba3_before kr_mamba3_before_of(kr_tape *tape, const kr_mamba3 *m, const kr_mamba3_cache *cache, int64_t count)
{
    kr_tensor *v = kr_mamba3_values(tape, m, kr_reshape(tape, cache->v_bhp, KR_SHAPE(count, 1, m->ni)), count, 1);
    return (kr_mamba3_before){ .state_qhpr = cache->ssm_bhpr,
                               .v_qmhp = kr_reshape(tape, v, KR_SHAPE(count, m->nm, m->nh, -1)),
                               .k_qmhr = cache->k_bmhr };
}

static kr_block_result forward(kr_tape *tape, const void *block, const kr_block_input *given)
{
    const kr_mamba3 *m = block;
    const kr_block_result none = { .y_bsd = NULL };
    kr_piece piece;
    const kr_block_input *input = &piece.input;
    kr_dims d;
    kr_mamba3_spans spans;
    if (!kr_piece_begin(tape, &kr_mamba3_kind, m, given, &piece, &d)) return none;
    const kr_mamba3_cache *cache = input->cache ? &input->cache->mamba3 : NULL;
    const kr_mamba3_pathway pathway = cache ? cache->pathway : m->config.pathway;
    if (!kr_require(tape->ctx, pathway == KR_MAMBA3_PATHWAY_SINGLE || pathway == KR_MAMBA3_PATHWAY_DOUBLE, KR_ERR_ARG,
                    "%s: cache.pathway = %d is neither single nor double", input->op, (int)pathway) ||
        !kr_mamba3_spans_of(tape, input, d.b, d.s, &spans))
        return none;

    const bool autocasts = pathway == KR_MAMBA3_PATHWAY_SINGLE && !input->seq &&
                           kr_ssd_autocasts(tape->ctx, input->path, d.s, m->nm, m->config.state_rank);
    kr_mamba3_tokens tokens = kr_mamba3_project(tape, m, kr_block_masked(tape, input, input->x_bsd), d.b, d.s,
                                                autocasts && !m->config.is_mimo);
    kr_mamba3_rotations rotation;
    kr_mamba3_cache found;
    if (input->seq) {
        found = kr_mamba3_scan_cache(tape, m, &piece, pathway, &tokens, &rotation, &spans);
        cache = &found;
    } else {
        rotation = kr_mamba3_rotations_of(tape, m, &tokens, cache ? cache->rotation : NULL, input);
        kr_mamba3_make_bc(tape, m, &tokens, rotation.each,
                          autocasts && m->nrotated > 0 && m->config.rotation == KR_ROTATION_COMPLEX);
    }

    const kr_mamba3_before before =
        cache ? kr_mamba3_before_of(tape, m, cache, spans.count) : (kr_mamba3_before){ NULL, NULL, NULL };
    const kr_ssd_out out = kr_mamba3_run(tape, m, input, pathway, &tokens, cache ? &before : NULL, &spans);
    kr_tensor *y = kr_mamba3_finish(tape, m, out.y, &tokens);

    kr_tensor *x_last = kr_mamba3_last(tape, &spans, tokens.x_bsi);
    if (x_last && x_last->flags.grad_f32) x_last = kr_cast(tape, x_last, KR_DTYPE_F32);
    kr_cache next = { KR_FAMILY_MAMBA3,
                      { .mamba3 = { .ssm_bhpr = out.final_state,
                                    .k_bmhr = kr_mamba3_last_key(tape, m, &tokens, &rotation, &spans),
                                    .v_bhp = kr_reshape(tape, x_last, KR_SHAPE(spans.count, m->nh, -1)),
                                    .rotation = rotation.final,
                                    .pathway = pathway } } };
    for (int i = 0; i < kr_mamba3_kind.ncache; i++) next.tensors[i] = kr_piece_end(tape, &piece, next.tensors[i]);
    return kr_ctx_failed(tape->ctx) ? none : (kr_block_result){ y, next };
}

/* ---- the kind ---- */

/* The core sees m rows for each token, so a chunk of as many rows has fewer tokens. */
static int64_t optimal_chunk_len(const void *block)
{
    const kr_mamba3 *m = block;
    const int64_t rows = kr_ssd_optimal_chunk_len(m->config.state_rank, m->config.per_head_dim);
    return m->nm == 1 ? rows : (rows / m->nm + 15) / 16 * 16;
}

static kr_ssd_path path_of(const void *block)
{
    const kr_mamba3 *m = block;
    const kr_ssd_path own = m->config.path;
    return (kr_ssd_path){ own.algorithm, own.chunk_len ? own.chunk_len : optimal_chunk_len(block) };
}

static kr_shape cache_shape(const void *block, int i, int64_t batch)
{
    const kr_mamba3 *m = block;
    const int64_t nh = m->nh, np = m->config.per_head_dim, nr = m->config.state_rank;
    switch (i) {
    case 0: return KR_SHAPE(batch, nh, np, nr);
    case 1: return KR_SHAPE(batch, m->nm, nh, nr);
    case 2: return KR_SHAPE(batch, nh, np);
    default: break;
    }
    return m->config.rotation == KR_ROTATION_QUATERNION ? KR_SHAPE(batch, nh, m->nrotations, 4)
                                                        : KR_SHAPE(batch, nh, m->nrotations);
}

/* No rotation: angles 0, quaternions 1. */
static kr_tensor *no_rotation(kr_tape *tape, const kr_mamba3 *m, kr_dtype type, int64_t batch)
{
    const kr_shape shape = cache_shape(m, 3, batch);
    if (m->config.rotation == KR_ROTATION_COMPLEX) return kr_zeros(tape, type, shape);
    const double one[4] = { 1, 0, 0, 0 };
    return kr_expand(tape, kr_cast(tape, kr_from_data(tape, KR_DTYPE_F64, KR_SHAPE(4), one), type), shape);
}

static kr_cache initial_cache(kr_tape *tape, const void *block, int64_t batch)
{
    const kr_mamba3 *m = block;
    if (!kr_block_begin_initial(tape, &kr_mamba3_kind, m, batch)) return (kr_cache){ .family = KR_FAMILY_MAMBA3 };
    const kr_dtype type = kr_tensor_dtype(m->dt_bias_h);
    const kr_shape state = cache_shape(m, 0, batch);
    const kr_mamba3_cache cache = { .ssm_bhpr = m->learned_init_hpr ? kr_expand(tape, m->learned_init_hpr, state)
                                                                    : kr_zeros(tape, type, state),
                                    .k_bmhr = kr_zeros(tape, type, cache_shape(m, 1, batch)),
                                    .v_bhp = kr_zeros(tape, type, cache_shape(m, 2, batch)),
                                    .rotation = no_rotation(tape, m, type, batch),
                                    .pathway = m->config.pathway };
    return (kr_cache){ KR_FAMILY_MAMBA3, { .mamba3 = cache } };
}

/* Angles add up over pieces; quaternions do not. */
static bool scans_pieces(const void *block)
{
    return ((const kr_mamba3 *)block)->config.rotation == KR_ROTATION_COMPLEX;
}

static const void *config_of(const void *block)
{
    return &((const kr_mamba3 *)block)->config;
}

const kr_block_kind kr_mamba3_kind = { .family = KR_FAMILY_MAMBA3,
                                       .name = "mamba3",
                                       .scans_pieces = scans_pieces,
                                       .calls = KR_BLOCK_CALLS("mamba3"),
                                       .ncache = 4,
                                       .cache_names = { "ssm", "k", "v", "rotation" },
                                       .create = kr_mamba3_declare,
                                       .config = config_of,
                                       .path = path_of,
                                       .optimal_chunk_len = optimal_chunk_len,
                                       .cache_shape = cache_shape,
                                       .initial_cache = initial_cache,
                                       .forward = forward,
                                       .step_infinite = kr_mamba3_infinite };
