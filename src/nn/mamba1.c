/* mamba1.c - the Mamba-1 block: forward over sequences, single steps, and the steady state.
 *
 *   [x | z] = u W_in;   x = silu(conv(x))
 *   [dt_low | B | C] = x W_x, each divided by its RMS if configured
 *   dt = clamp(softplus(dt_low W_dt + bias)), A = -exp(A_log)
 *   H_t = exp(dt A) H_{t-1} + dt x B for each channel;   y = <C, H_t> + D x
 *   out = (y silu(z)) W_out
 */
#include "nn/mamba1_impl.h"

#include "ops/sequences.h"
#include "mixer/core.h"

#include <math.h>

/* ---- pieces of forward and step_infinite ---- */

/* x [.. i], z [.. i]. x is widened before the convolution, so that its window always has the type of an initial cache,
 * for all types of u and of the weights. */
typedef struct projected {
    kr_tensor *x, *z;
} projected;

static projected project(kr_tape *tape, const kr_mamba1 *m, kr_tensor *u)
{
    kr_tensor *part[2] = { NULL };
    kr_split(tape, kr_linear(tape, u, m->in_proj, m->in_proj_bias), -1, 2, (int64_t[]){ m->ni, m->ni }, part);
    return (projected){ kr_cast(tape, part[0], m->small), part[1] };
}

static kr_tensor *taps(kr_tape *tape, const kr_mamba1 *m)
{
    return kr_reshape(tape, m->conv_weight, KR_SHAPE(m->ni, m->config.conv_kernel));
}

/* dt [.. i] after clamp(softplus()), B and C [.. r]: all that x selects. */
typedef struct selected {
    kr_tensor *dt, *b, *c;
} selected;

static selected select_by(kr_tape *tape, const kr_mamba1 *m, kr_tensor *x)
{
    const kr_mamba1_config *c = &m->config;
    kr_tensor *part[3] = { NULL };
    kr_split(tape, kr_linear(tape, x, m->x_proj, NULL), -1, 3, (int64_t[]){ m->nx, c->state_rank, c->state_rank },
             part);
    for (int i = 0; c->bcdt_norm_eps > 0 && i < 3; i++) part[i] = kr_rms_norm(tape, part[i], NULL, &m->bcdt_norm);
    kr_tensor *dt = kr_softplus(tape, kr_linear(tape, part[0], m->dt_proj, m->dt_bias_i));
    const bool is_limited = c->dt_limit_min > 0 || c->dt_limit_max < INFINITY;
    if (is_limited) dt = kr_clamp(tape, dt, c->dt_limit_min, c->dt_limit_max);
    return (selected){ dt, part[1], part[2] };
}

static kr_tensor *rates(kr_tape *tape, const kr_mamba1 *m)
{
    return kr_neg(tape, kr_exp(tape, m->a_log_ir));
}

/* ---- forward ---- */

/* The states that sequences begin from; NULL: zeros. */
static kr_tensor *initial_states(kr_tape *tape, const kr_mamba1 *m, const kr_block_input *input, const kr_dims *d)
{
    if (input->cache) return input->cache->mamba1.ssm_bir;
    if (!m->learned_init_ir) return NULL;
    kr_sequences sequences;
    if (!kr_sequences_from(tape, input->op, input->seq_start_bs, d->b, d->s, &sequences)) return NULL;
    return kr_expand(tape, m->learned_init_ir, KR_SHAPE(sequences.count, m->ni, m->config.state_rank));
}

static kr_block_result forward(kr_tape *tape, const void *block, const kr_block_input *given)
{
    const kr_mamba1 *m = block;
    const kr_block_result none = { .y_bsd = NULL };
    kr_piece piece;
    const kr_block_input *input = &piece.input;
    kr_dims d;
    if (!kr_piece_begin(tape, &kr_mamba1_kind, m, given, &piece, &d)) return none;
    kr_tensor *window = input->cache ? input->cache->mamba1.conv_bik : NULL;
    const kr_shape one_group = KR_SHAPE(d.b, d.s, 1, m->config.state_rank);

    const projected in = project(tape, m, kr_block_masked(tape, input, input->x_bsd));
    if (input->seq) window = kr_piece_window(tape, &piece, in.x, m->config.conv_kernel, window);
    const kr_conv_out conv = kr_causal_conv(tape, in.x, taps(tape, m), m->conv_bias, window, input->seq_start_bs, true);
    kr_tensor *x_bsi = kr_block_masked(tape, input, conv.y_bsv);
    const selected by = select_by(tape, m, x_bsi);
    kr_selective_scan_input scan = { .x_bsi = x_bsi,
                                     .dt_bsi = by.dt,
                                     .a_ir = rates(tape, m),
                                     .b_bsgr = kr_reshape(tape, by.b, one_group),
                                     .c_bsgr = kr_reshape(tape, by.c, one_group),
                                     .d_i = m->d_i,
                                     .z_bsi = in.z,
                                     .seq_start_bs = input->seq_start_bs };
    scan.initial_state_bir =
        input->seq ? kr_mamba1_scan_state(tape, m, &piece, &scan) : initial_states(tape, m, input, &d);
    kr_tensor *destination = input->cache ? kr_block_state_destination(input, input->cache->mamba1.ssm_bir) : NULL;
    const kr_scan_out out = kr_selective_scan_into(tape, &scan, destination);
    kr_tensor *y = kr_linear(tape, out.y_bsi, m->out_proj, m->out_proj_bias);
    if (!y) return none;
    kr_tensor *after[2] = { kr_piece_end(tape, &piece, conv.window_bvk), kr_piece_end(tape, &piece, out.final_state) };
    if (kr_ctx_failed(tape->ctx)) return none;
    return (kr_block_result){ y, { KR_FAMILY_MAMBA1, { .mamba1 = { after[0], after[1] } } } };
}

/* ---- steady state ----
 *
 *   the window is full of x: conv = silu(x sum_k w_k + bias);   H = dt x B / (1 - exp(dt A)), for each channel and state
 *   y = x (sum_r dt B C / (1 - exp(dt A)) + D)
 */
static kr_tensor *step_infinite(kr_tape *tape, const void *block, kr_tensor *x_bd)
{
    const kr_mamba1 *m = block;
    kr_dims d;
    if (!kr_block_begin_token(tape, "mamba1.step_infinite", m, x_bd, &d)) return NULL;
    const int64_t nb = d.b, nr = m->config.state_rank;

    const projected in = project(tape, m, x_bd);
    kr_tensor *conv = kr_mul(tape, in.x, kr_sum(tape, kr_cast(tape, taps(tape, m), m->small), KR_AXES(1), false));
    if (m->conv_bias) conv = kr_add(tape, conv, m->conv_bias);
    kr_tensor *x_bi = kr_silu(tape, conv);

    const selected by = select_by(tape, m, x_bi);
    kr_tensor *dt_bi1 = kr_reshape(tape, by.dt, KR_SHAPE(nb, m->ni, 1));
    kr_tensor *weight_bir = kr_geometric_sum(tape, dt_bi1, kr_mul(tape, dt_bi1, rates(tape, m)));
    kr_tensor *bc_b1r = kr_reshape(tape, kr_mul(tape, by.b, by.c), KR_SHAPE(nb, 1, nr));
    kr_tensor *gain_bi = kr_sum(tape, kr_mul(tape, weight_bir, bc_b1r), KR_AXES(2), false);
    kr_tensor *y_bi = kr_mul(tape, x_bi, kr_add(tape, gain_bi, m->d_i));
    return kr_linear(tape, kr_gate(tape, y_bi, in.z), m->out_proj, m->out_proj_bias);
}

/* ---- the kind ---- */

static kr_ssd_path no_path(const void *block)
{
    (void)block;
    return kr_ssd_path_default();
}

static kr_shape cache_shape(const void *block, int i, int64_t batch)
{
    const kr_mamba1 *m = block;
    return KR_SHAPE(batch, m->ni, i == 0 ? m->config.conv_kernel : m->config.state_rank);
}

static kr_cache initial_cache(kr_tape *tape, const void *block, int64_t batch)
{
    const kr_mamba1 *m = block;
    if (!kr_block_begin_initial(tape, &kr_mamba1_kind, m, batch)) return (kr_cache){ .family = KR_FAMILY_MAMBA1 };
    const kr_shape state = cache_shape(m, 1, batch);
    const kr_mamba1_cache cache = { kr_zeros(tape, m->small, cache_shape(m, 0, batch)),
                                    m->learned_init_ir ? kr_expand(tape, m->learned_init_ir, state)
                                                       : kr_zeros(tape, m->small, state) };
    return (kr_cache){ KR_FAMILY_MAMBA1, { .mamba1 = cache } };
}

static const void *config_of(const void *block)
{
    return &((const kr_mamba1 *)block)->config;
}

const kr_block_kind kr_mamba1_kind = { .family = KR_FAMILY_MAMBA1,
                                       .name = "mamba1",
                                       .scans_pieces = kr_piece_is_scanned,
                                       .calls = KR_BLOCK_CALLS("mamba1"),
                                       .ncache = 2,
                                       .cache_names = { "conv", "ssm" },
                                       .create = kr_mamba1_declare,
                                       .config = config_of,
                                       .path = no_path,
                                       .cache_shape = cache_shape,
                                       .initial_cache = initial_cache,
                                       .forward = forward,
                                       .step_infinite = step_infinite };
