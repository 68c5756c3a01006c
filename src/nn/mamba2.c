/* mamba2.c - the Mamba-2 block: forward over sequences, single steps, and the steady state.
 *
 *   [z0 x0 | z | x B C | dt] = u W_in          x B C = silu(conv(x B C))
 *   dt = clamp(softplus(dt + bias)), A = -exp(A_log)
 *   H_t = exp(dt A) H_{t-1} + dt x (outer) B;   y = H_t C + D x
 *   out = [silu(z0) x0 | norm(y, z)] W_out
 */
#include "nn/mamba2_impl.h"

#include "mixer/core.h"

#include <math.h>

/* ---- pieces of forward and step_infinite ---- */

/* The projection cut into its parts; z0 and x0 are NULL without a parallel MLP. xbc is widened before the convolution,
 * so that its window always has the type of an initial cache. */
typedef struct projected {
    kr_tensor *z0, *x0, *z, *xbc, *dt;
} projected;

/* autocasts: xbc may be cast to bf16. */
static projected project(kr_tape *tape, const kr_mamba2 *m, kr_tensor *u, bool autocasts)
{
    const int64_t sizes[5] = { m->nmlp, m->nmlp, m->nssm, m->nv, m->nh };
    const int without = m->nmlp ? 0 : 2, count = 5 - without;
    kr_tensor *part[5] = { NULL };
    if (!kr_linear_parts(tape, u, m->in_proj, m->in_proj_bias, count, sizes + without, autocasts ? 3 - without : -1,
                         part + without))
        return (projected){ NULL, NULL, NULL, NULL, NULL };
    if (!part[3]->flags.grad_f32) part[3] = kr_cast(tape, part[3], kr_tensor_dtype(m->dt_bias_h));
    return (projected){ part[0], part[1], part[2], part[3], part[4] };
}

/* clamp(softplus(dt + bias)) */
static kr_tensor *steps(kr_tape *tape, const kr_mamba2 *m, kr_tensor *dt)
{
    const kr_mamba2_config *c = &m->config;
    kr_tensor *step = kr_softplus(tape, kr_add(tape, dt, m->dt_bias_h));
    const bool is_limited = c->dt_limit_min > 0 || c->dt_limit_max < INFINITY;
    return is_limited ? kr_clamp(tape, step, c->dt_limit_min, c->dt_limit_max) : step;
}

static kr_tensor *rates(kr_tape *tape, const kr_mamba2 *m)
{
    return kr_neg(tape, kr_exp(tape, m->a_log_h));
}

/* y and x [.. i], by head or by channel. */
static kr_tensor *add_skip_per_dim(kr_tape *tape, const kr_mamba2 *m, kr_tensor *y, kr_tensor *x)
{
    return m->config.has_d_per_dim ? kr_add(tape, y, kr_mul(tape, x, m->d)) : y;
}

/* norm(y, z), the parallel MLP, the output projection. */
static kr_tensor *finish(kr_tape *tape, const kr_mamba2 *m, kr_tensor *y, const projected *in)
{
    if (!m->nmlp) {
        y = m->config.has_norm ? kr_norm_operand(tape, y, in->z, m->norm_gain, &m->norm)
                               : kr_gate_operand(tape, y, in->z);
    } else {
        y = m->config.has_norm ? kr_gated_norm(tape, y, in->z, m->norm_gain, &m->norm) : kr_gate(tape, y, in->z);
        kr_tensor *mlp = kr_cast(tape, kr_gate(tape, in->x0, in->z0), kr_tensor_dtype(y));
        y = kr_concat(tape, -1, 2, (kr_tensor *[]){ mlp, y });
    }
    return kr_linear(tape, y, m->out_proj, m->out_proj_bias);
}

static kr_dtype cache_dtype(const kr_mamba2 *m)
{
    return kr_tensor_dtype(m->dt_bias_h);
}

static kr_tensor *taps(kr_tape *tape, const kr_mamba2 *m)
{
    return kr_reshape(tape, m->conv_weight, KR_SHAPE(m->nv, m->config.conv_kernel));
}

/* ---- forward ---- */

/* Is the core the only reader of x, B and C, norm or gate the only reader of y, and does the core cast them to bf16? */
static bool autocasts(const kr_tape *tape, const kr_mamba2 *m, const kr_block_input *input)
{
    return kr_tensor_dtype(m->dt_bias_h) == KR_DTYPE_F32 && !input->mask_bs1 && !input->seq &&
           !m->config.has_d_per_dim && m->nssm % 4 == 0 && m->config.n_groups * m->config.state_rank % 4 == 0 &&
           kr_ssd_autocasts(tape->ctx, input->path, input->x_bsd->dims[1], 1, m->config.state_rank);
}

/* x, B and C after the convolution; returns its window. */
static kr_tensor *convolve(kr_tape *tape, const kr_mamba2 *m, const kr_block_input *input, kr_tensor *in_bsv,
                           kr_tensor *window, kr_tensor **xbc)
{
    const int64_t nr = m->config.state_rank, sizes[3] = { m->nssm, m->config.n_groups * nr, m->config.n_groups * nr };
    if (autocasts(tape, m, input) && in_bsv) {
        const kr_conv_operands operands = { in_bsv, taps(tape, m), m->conv_bias, window, input->seq_start_bs };
        return kr_causal_conv_parts(tape, &operands, 3, sizes, xbc);
    }
    const kr_conv_out conv =
        kr_causal_conv(tape, in_bsv, taps(tape, m), m->conv_bias, window, input->seq_start_bs, true);
    kr_split(tape, kr_block_masked(tape, input, conv.y_bsv), -1, 3, sizes, xbc);
    return conv.window_bvk;
}

static kr_block_result forward(kr_tape *tape, const void *block, const kr_block_input *given)
{
    const kr_mamba2 *m = block;
    const kr_block_result none = { .y_bsd = NULL };
    kr_piece piece;
    const kr_block_input *input = &piece.input;
    kr_dims d;
    if (!kr_piece_begin(tape, &kr_mamba2_kind, m, given, &piece, &d)) return none;
    const kr_mamba2_config *c = &m->config;
    const kr_mamba2_cache *cache = input->cache ? &input->cache->mamba2 : NULL;
    const int64_t ng = c->n_groups, nr = c->state_rank, np = c->per_head_dim;

    const bool is_autocast = autocasts(tape, m, input);
    const projected in = project(tape, m, kr_block_masked(tape, input, input->x_bsd), is_autocast);
    kr_tensor *before = cache ? cache->conv_bvk : NULL;
    if (input->seq) before = kr_piece_window(tape, &piece, in.xbc, c->conv_kernel, before);
    kr_tensor *xbc[3] = { NULL }, *window = convolve(tape, m, input, in.xbc, before, xbc);

    kr_mamba2_ssd_input ssd = { .x_bshp = kr_reshape(tape, xbc[0], KR_SHAPE(d.b, d.s, m->nh, np)),
                                .dt_bsh = steps(tape, m, in.dt),
                                .a_decay_h = rates(tape, m),
                                .b_bsgr = kr_reshape(tape, xbc[1], KR_SHAPE(d.b, d.s, ng, nr)),
                                .c_bsgr = kr_reshape(tape, xbc[2], KR_SHAPE(d.b, d.s, ng, nr)),
                                .d_h = c->has_d_per_dim ? NULL : m->d,
                                .initial_state_bhpr = cache ? cache->ssm_bhpr : NULL,
                                .learned_init_hpr = cache || input->seq ? NULL : m->learned_init_hpr,
                                .seq_start_bs = input->seq_start_bs };
    if (input->seq) ssd.initial_state_bhpr = kr_mamba2_scan_state(tape, m, &piece, &ssd);
    kr_tensor *destination = cache ? kr_block_state_destination(input, cache->ssm_bhpr) : NULL;
    kr_ssd_out out = kr_mamba2_ssd_run_into(tape, &ssd, input->path, destination, is_autocast);
    kr_tensor *y = kr_reshape(tape, out.y, KR_SHAPE(d.b, d.s, m->nssm));
    y = finish(tape, m, add_skip_per_dim(tape, m, y, xbc[0]), &in);
    window = kr_cast(tape, window, cache_dtype(m)); /* of a 16-bit block it may be 16-bit */
    window = kr_piece_end(tape, &piece, window);
    out.final_state = kr_piece_end(tape, &piece, out.final_state);
    if (!y || kr_ctx_failed(tape->ctx)) return none;
    return (kr_block_result){ y, { KR_FAMILY_MAMBA2, { .mamba2 = { window, out.final_state } } } };
}

/* ---- steady state ----
 *
 *   the window is full of x: conv = silu(x sum_k w_k + bias);   H = dt x (outer) B / (1 - exp(dt A))
 *   y = <B, C> x dt / (1 - exp(dt A)) + D x
 */
static kr_tensor *step_infinite(kr_tape *tape, const void *block, kr_tensor *x_bd)
{
    const kr_mamba2 *m = block;
    kr_dims d;
    if (!kr_block_begin_token(tape, "mamba2.step_infinite", m, x_bd, &d)) return NULL;
    const kr_mamba2_config *c = &m->config;
    const int64_t nb = d.b, ng = c->n_groups, nr = c->state_rank, np = c->per_head_dim, nhg = m->nh / ng;

    const projected in = project(tape, m, x_bd, false);
    kr_tensor *conv = kr_mul(
        tape, in.xbc, kr_sum(tape, kr_cast(tape, taps(tape, m), kr_tensor_dtype(m->dt_bias_h)), KR_AXES(1), false));
    if (m->conv_bias) conv = kr_add(tape, conv, m->conv_bias);
    kr_tensor *xbc[3] = { NULL };
    kr_split(tape, kr_silu(tape, conv), -1, 3, (int64_t[]){ m->nssm, ng * nr, ng * nr }, xbc);

    kr_tensor *dt_bh = steps(tape, m, in.dt);
    kr_tensor *weight_bh = kr_geometric_sum(tape, dt_bh, kr_mul(tape, dt_bh, rates(tape, m)));
    kr_tensor *bc_bg1 =
        kr_sum(tape, kr_reshape(tape, kr_mul(tape, xbc[1], xbc[2]), KR_SHAPE(nb, ng, nr)), KR_AXES(2), true);
    kr_tensor *gain_bgh = kr_mul(tape, kr_reshape(tape, weight_bh, KR_SHAPE(nb, ng, nhg)), bc_bg1);
    kr_tensor *gain_bh = kr_reshape(tape, gain_bgh, KR_SHAPE(nb, m->nh));
    if (!c->has_d_per_dim) gain_bh = kr_add(tape, gain_bh, m->d);
    kr_tensor *x_bhp = kr_reshape(tape, xbc[0], KR_SHAPE(nb, m->nh, np));
    kr_tensor *y_bhp = kr_mul(tape, x_bhp, kr_reshape(tape, gain_bh, KR_SHAPE(nb, m->nh, 1)));
    kr_tensor *y = kr_reshape(tape, y_bhp, KR_SHAPE(nb, m->nssm));
    return finish(tape, m, add_skip_per_dim(tape, m, y, xbc[0]), &in);
}

/* ---- the kind ---- */

static int64_t optimal_chunk_len(const void *block)
{
    const kr_mamba2 *m = block;
    return kr_ssd_optimal_chunk_len(m->config.state_rank, m->config.per_head_dim);
}

static kr_ssd_path path_of(const void *block)
{
    const kr_mamba2 *m = block;
    const kr_ssd_path own = m->config.path;
    return (kr_ssd_path){ own.algorithm, own.chunk_len ? own.chunk_len : optimal_chunk_len(block) };
}

static kr_shape cache_shape(const void *block, int i, int64_t batch)
{
    const kr_mamba2 *m = block;
    return i == 0 ? KR_SHAPE(batch, m->nv, m->config.conv_kernel)
                  : KR_SHAPE(batch, m->nh, m->config.per_head_dim, m->config.state_rank);
}

static kr_cache initial_cache(kr_tape *tape, const void *block, int64_t batch)
{
    const kr_mamba2 *m = block;
    if (!kr_block_begin_initial(tape, &kr_mamba2_kind, m, batch)) return (kr_cache){ .family = KR_FAMILY_MAMBA2 };
    const kr_dtype type = cache_dtype(m);
    const kr_shape state = cache_shape(m, 1, batch);
    const kr_mamba2_cache cache = { kr_zeros(tape, type, cache_shape(m, 0, batch)),
                                    m->learned_init_hpr ? kr_expand(tape, m->learned_init_hpr, state)
                                                        : kr_zeros(tape, type, state) };
    return (kr_cache){ KR_FAMILY_MAMBA2, { .mamba2 = cache } };
}

static const void *config_of(const void *block)
{
    return &((const kr_mamba2 *)block)->config;
}

const kr_block_kind kr_mamba2_kind = { .family = KR_FAMILY_MAMBA2,
                                       .name = "mamba2",
                                       .scans_pieces = kr_piece_is_scanned,
                                       .calls = KR_BLOCK_CALLS("mamba2"),
                                       .ncache = 2,
                                       .cache_names = { "conv", "ssm" },
                                       .create = kr_mamba2_declare,
                                       .config = config_of,
                                       .path = path_of,
                                       .optimal_chunk_len = optimal_chunk_len,
                                       .cache_shape = cache_shape,
                                       .initial_cache = initial_cache,
                                       .forward = forward,
                                       .step_infinite = step_infinite };
