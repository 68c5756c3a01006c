/* mamba3_pathways.c - single and double pathway of a Mamba-3 block through the SSD core, and the state after a
 * sequence.
 *
 *   H_t = alpha_t H_{t-1} + beta_t V_{t-1} (outer) B_{t-1} + gamma_t V_t (outer) B_t;   y_t = H_t C_t + D V_t
 *   single:  scale_t = gamma_t + carry_{t+1}, from H + carry_0 V_{-1} (outer) B_{-1}: one run, strict
 *   double:  core(gamma V, B) from H, and core(beta V_prev, B_prev) from 0
 * V_{-1} and B_{-1} are the previous call's last token: 0 before a sequence. docs/mamba3.md derives both.
 */
#include "nn/mamba3_impl.h"

#include "ops/sequences.h"
#include "mixer/core.h"

/* ---- the ends of sequences ---- */

bool kr_mamba3_spans_of(kr_tape *tape, const kr_block_input *input, int64_t nb, int64_t ns, kr_mamba3_spans *spans)
{
    *spans = (kr_mamba3_spans){ nb, nb, ns, NULL, NULL };
    if (!input->seq_start_bs) return true;
    kr_sequences sequences;
    if (!kr_sequences_from(tape, input->op, input->seq_start_bs, nb, ns, &sequences)) return false;
    const int64_t count = sequences.count;
    int64_t *ids = kr_arena_alloc(&tape->heads, 2 * (size_t)count * sizeof *ids);
    if (!ids) return kr_fail(tape->ctx, KR_ERR_NOMEM, "%s: no memory for a list of sequences", input->op);
    for (int64_t q = 0; q < count; q++) {
        const int64_t row = sequences.list[q].row * ns;
        ids[q] = row + sequences.list[q].start;
        ids[count + q] = row + sequences.list[q].end - 1;
    }
    *spans = (kr_mamba3_spans){ count, nb, ns, ids, ids + count };
    return true;
}

/* x [b s ..] as [b s, ..]: a row for each token. */
static kr_tensor *token_rows(kr_tape *tape, kr_tensor *x)
{
    const kr_shape whole = kr_tensor_shape(x);
    kr_shape rows = { whole.rank - 1, { whole.dims[0] * whole.dims[1] } };
    for (int i = 1; i < rows.rank; i++) rows.dims[i] = whole.dims[i + 1];
    return kr_reshape(tape, x, rows);
}

static kr_tensor *token_of_each(kr_tape *tape, const kr_mamba3_spans *spans, kr_tensor *x, const int64_t *ids,
                                int64_t s)
{
    if (!x) return NULL;
    if (ids) return kr_select_rows(tape, token_rows(tape, x), spans->count, ids);
    return token_rows(tape, kr_slice(tape, x, 1, s, s + 1));
}

kr_tensor *kr_mamba3_first(kr_tape *tape, const kr_mamba3_spans *spans, kr_tensor *x)
{
    return token_of_each(tape, spans, x, spans->first, 0);
}

kr_tensor *kr_mamba3_last(kr_tape *tape, const kr_mamba3_spans *spans, kr_tensor *x)
{
    return token_of_each(tape, spans, x, spans->last, spans->ns - 1);
}

/* ---- single ---- */

static kr_ssd_out run_single(kr_tape *tape, const kr_mamba3 *m, const kr_block_input *input,
                             const kr_mamba3_tokens *tokens, const kr_mamba3_before *before,
                             const kr_mamba3_spans *spans)
{
    const kr_trapezoid_out *step = &tokens->step;
    kr_mamba3_single_ssd_input ssd = { .v_bsmhp = tokens->v_bsmhp,
                                       .b_bsmhr = tokens->b_bsmhr,
                                       .c_bsmhr = tokens->c_bsmhr,
                                       .da_bsh = step->da_bsh,
                                       .gamma_bsh = step->gamma_bsh,
                                       .scale_bsh = kr_trapezoid_scale(tape, step->gamma_bsh, step->carry_bsh,
                                                                       input->seq_start_bs),
                                       .carry_bsh = step->carry_bsh,
                                       .d_h = m->d_h,
                                       .learned_init_hpr = before ? NULL : m->learned_init_hpr,
                                       .seq_start_bs = input->seq_start_bs };
    kr_tensor *destination = before ? kr_block_state_destination(input, before->state_qhpr) : NULL;
    if (before) {
        ssd.initial_state_bhpr = before->state_qhpr;
        ssd.carry0_bh = kr_mamba3_first(tape, spans, step->carry_bsh);
        ssd.v_before_bmhp = before->v_qmhp;
        ssd.k_before_bmhr = before->k_qmhr;
    }
    return kr_mamba3_single_ssd_run_rotary(tape, &ssd, &tokens->rotary, input->path, destination, !m->config.is_mimo);
}

/* ---- double ---- */

/* Rows of [before; tokens]: for each token the one before it, which for first tokens is in `before` (all of them in its
 * only row if there is one for all). */
static kr_tensor *previous_packed(kr_tape *tape, const kr_mamba3_spans *spans, kr_tensor *x, kr_tensor *before_q)
{
    const int64_t nrows = spans->nb * spans->ns, nbefore = kr_dim_of(before_q, 0);
    int64_t *ids = kr_arena_alloc(&tape->heads, (size_t)nrows * sizeof *ids);
    if (!ids) {
        kr_fail(tape->ctx, KR_ERR_NOMEM, "mamba3: no memory for the positions of %lld tokens", (long long)nrows);
        return NULL;
    }
    for (int64_t i = 0; i < nrows; i++) ids[i] = nbefore + i - 1;
    for (int64_t q = 0; q < spans->count; q++) ids[spans->first[q]] = nbefore == 1 ? 0 : q;
    kr_tensor *both[2] = { before_q, token_rows(tape, x) };
    kr_tensor *rows = kr_select_rows(tape, kr_concat(tape, 0, 2, both), nrows, ids);
    return kr_reshape(tape, rows, kr_tensor_shape(x));
}

/* x_{t-1} at t; at the first token of a sequence the value before it, or 0. x [b s ..], before [q ..] or NULL. */
static kr_tensor *previous(kr_tape *tape, const kr_mamba3_spans *spans, kr_tensor *x, kr_tensor *before_q)
{
    kr_dtype result;
    if (!x || !KR_REALS(tape, "mamba3", "x before", &result, &x, &before_q)) return NULL;
    kr_shape one = kr_tensor_shape(x); /* a token of each row */
    one.dims[1] = 1;
    if (spans->first) {
        if (!before_q) one.dims[0] = 1;
        return previous_packed(tape, spans, x, before_q ? before_q : token_rows(tape, kr_zeros(tape, x->dtype, one)));
    }
    kr_tensor *earlier = kr_slice(tape, x, 1, 0, spans->ns - 1);
    if (!before_q) return kr_pad(tape, earlier, 1, 1, 0, 0);
    kr_tensor *both[2] = { kr_reshape(tape, before_q, one), earlier };
    return kr_concat(tape, 1, 2, both);
}

/* v weighted for each token and head. */
static kr_tensor *weighted(kr_tape *tape, const kr_mamba3_tokens *tokens, kr_tensor *v_bsmhp, kr_tensor *weight_bsh)
{
    const int64_t nh = kr_dim_of(weight_bsh, 2);
    return kr_mul(tape, v_bsmhp, kr_reshape(tape, weight_bsh, KR_SHAPE(tokens->nb, tokens->ns, 1, nh, 1)));
}

static kr_ssd_out run_double(kr_tape *tape, const kr_mamba3 *m, const kr_block_input *input,
                             const kr_mamba3_tokens *tokens, const kr_mamba3_before *before,
                             const kr_mamba3_spans *spans)
{
    const kr_trapezoid_out *step = &tokens->step;
    const kr_mamba3_double_ssd_input now = { .v_bsmhp = weighted(tape, tokens, tokens->v_bsmhp, step->gamma_bsh),
                                             .da_bsh = step->da_bsh,
                                             .b_bsmhr = tokens->b_bsmhr,
                                             .c_bsmhr = tokens->c_bsmhr,
                                             .initial_state_bhpr = before ? before->state_qhpr : NULL,
                                             .learned_init_hpr = before ? NULL : m->learned_init_hpr,
                                             .seq_start_bs = input->seq_start_bs };
    kr_tensor *v_prev = previous(tape, spans, tokens->v_bsmhp, before ? before->v_qmhp : NULL);
    const kr_mamba3_double_ssd_input then = { .v_bsmhp = weighted(tape, tokens, v_prev, step->beta_bsh),
                                              .da_bsh = step->da_bsh,
                                              .b_bsmhr = previous(tape, spans, tokens->b_bsmhr,
                                                                  before ? before->k_qmhr : NULL),
                                              .c_bsmhr = tokens->c_bsmhr,
                                              .seq_start_bs = input->seq_start_bs };
    const kr_ssd_out out = kr_mamba3_double_ssd_run_pair(tape, &now, &then, input->path);
    return (kr_ssd_out){ .y = kr_mamba3_add_skip(tape, m, out.y, tokens->v_bsmhp), .final_state = out.final_state };
}

kr_ssd_out kr_mamba3_run(kr_tape *tape, const kr_mamba3 *m, const kr_block_input *input, kr_mamba3_pathway pathway,
                         const kr_mamba3_tokens *tokens, const kr_mamba3_before *before, const kr_mamba3_spans *spans)
{
    return pathway == KR_MAMBA3_PATHWAY_SINGLE ? run_single(tape, m, input, tokens, before, spans)
                                               : run_double(tape, m, input, tokens, before, spans);
}
