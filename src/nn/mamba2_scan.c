/* mamba2_scan.c - the state before a piece of rows, by a scan over the pieces (KR_SEQ_SCAN).
 *
 *   window: the last d_conv - 1 inputs of the convolution on the piece before
 *   R_t = da_t + .. + da_last;  decay = exp(R_0);  H = sum over t of exp(R_t - da_t) dt_t x_t (outer) B_t
 *   the state before the piece is the scan of (decay, H); the first piece has H + decay initial
 * H is one matrix product for each group. In a row with resets decay is 0, and H is of the tokens from its last reset, at t, on,
 * plus exp(R_t) initial. The sequences that begin inside the piece have the initial state.
 */
#include "nn/mamba2_impl.h"

#include "ops/seq_parallel_impl.h"

/* Of rows with resets, 1 or 0: the tokens that the state after a row is made of, the first of them if that is a reset, and
 * the rows without a reset. All NULL: no resets. */
typedef struct survivors {
    kr_tensor *token_bs1, *first_bs1, *row_b1;
} survivors;

static survivors find_survivors(kr_tape *tape, kr_tensor *reset_bs, kr_dtype dtype)
{
    const survivors none = { NULL, NULL, NULL };
    if (!reset_bs) return none;
    const int64_t nb = kr_dim_of(reset_bs, 0), ns = kr_dim_of(reset_bs, 1);
    kr_tensor *token = kr_new(tape, KR_DTYPE_I32, KR_SHAPE(nb, ns, 1));
    kr_tensor *first = kr_new(tape, KR_DTYPE_I32, KR_SHAPE(nb, ns, 1));
    kr_tensor *row = kr_new(tape, KR_DTYPE_I32, KR_SHAPE(nb, 1));
    if (!token || !first || !row) return none;
    int32_t *of_token = (int32_t *)(void *)token->data, *of_first = (int32_t *)(void *)first->data;
    int32_t *of_row = (int32_t *)(void *)row->data;
    for (int64_t b = 0; b < nb; b++) {
        of_row[b] = 1;
        for (int64_t t = ns - 1; t >= 0; t--) {
            const bool is_reset = kr_tensor_at(reset_bs, (int64_t[]){ b, t }) != 0;
            of_token[b * ns + t] = of_row[b];
            of_first[b * ns + t] = of_row[b] && is_reset;
            if (is_reset) of_row[b] = 0;
        }
    }
    return (survivors){ kr_cast(tape, token, dtype), kr_cast(tape, first, dtype), kr_cast(tape, row, dtype) };
}

kr_tensor *kr_mamba2_scan_window(kr_tape *tape, const kr_mamba2 *m, const kr_block_input *input,
                                 const kr_reset_plan *plan, kr_tensor *xbc_bsv)
{
    const int64_t nk = m->config.conv_kernel;
    kr_tensor *halo = kr_halo(tape, input->seq, xbc_bsv, nk - 1);
    kr_tensor *window = input->cache ? input->cache->mamba2.conv_bvk : NULL;
    if (!kr_seq_is_first(input->seq)) window = kr_pad(tape, kr_permute(tape, halo, KR_AXES(0, 2, 1)), 2, 1, 0, 0);
    if (!window || !plan) return window;
    kr_tensor *none = kr_zeros(tape, kr_tensor_dtype(window), KR_SHAPE(1, m->nv, nk));
    return kr_block_begin_sequences(tape, plan, window, none);
}

kr_tensor *kr_mamba2_scan_state(kr_tape *tape, const kr_mamba2 *m, const kr_block_input *input,
                                const kr_reset_plan *plan, const kr_mamba2_ssd_input *ssd)
{
    const int64_t ng = m->config.n_groups, nr = m->config.state_rank, np = m->config.per_head_dim;
    const int64_t nb = kr_dim_of(ssd->dt_bsh, 0), ns = kr_dim_of(ssd->dt_bsh, 1), nh = m->nh;
    const survivors s = find_survivors(tape, input->reset_bs, kr_tensor_dtype(ssd->dt_bsh));

    kr_tensor *da = kr_mul(tape, ssd->dt_bsh, ssd->a_decay_h), *rest = kr_cumsum_reverse(tape, da, 1);
    kr_tensor *decay_bh = kr_reshape(tape, kr_exp(tape, kr_slice(tape, rest, 1, 0, 1)), KR_SHAPE(nb, nh));
    kr_tensor *weight = kr_mul(tape, kr_exp(tape, kr_sub(tape, rest, da)), ssd->dt_bsh);
    if (s.token_bs1) weight = kr_mul(tape, weight, s.token_bs1);
    if (s.row_b1) decay_bh = kr_mul(tape, decay_bh, s.row_b1);
    kr_tensor *begun_bh =
        s.first_bs1 && m->learned_init_hpr /* the part of the initial state that the last reset leaves */
            ? kr_sum(tape, kr_mul(tape, kr_exp(tape, rest), s.first_bs1), KR_AXES(1), false)
            : NULL;

    kr_tensor *x = kr_mul(tape, ssd->x_bshp, kr_reshape(tape, weight, KR_SHAPE(nb, ns, nh, 1)));
    x = kr_permute(tape, kr_reshape(tape, x, KR_SHAPE(nb, ns, ng, nh / ng * np)), KR_AXES(0, 2, 3, 1));
    kr_tensor *b_bgsr = kr_permute(tape, ssd->b_bsgr, KR_AXES(0, 2, 1, 3));
    kr_tensor *state = kr_reshape(tape, kr_matmul(tape, x, b_bgsr), KR_SHAPE(nb, nh, np, nr));

    kr_tensor *initial = kr_mamba2_kind.initial_cache(tape, m, 1).mamba2.ssm_bhpr, *own = NULL;
    if (begun_bh)
        state = kr_add(tape, state, kr_mul(tape, initial, kr_reshape(tape, begun_bh, KR_SHAPE(nb, nh, 1, 1))));
    if (kr_seq_is_first(input->seq)) {
        own = input->cache ? input->cache->mamba2.ssm_bhpr : kr_expand(tape, initial, KR_SHAPE(nb, nh, np, nr));
        state = kr_add(tape, state, kr_mul(tape, own, kr_reshape(tape, decay_bh, KR_SHAPE(nb, nh, 1, 1))));
    }
    kr_tensor *before = kr_state_scan(tape, input->seq, decay_bh, state);
    if (own) before = own;
    return plan ? kr_block_begin_sequences(tape, plan, before, initial) : before;
}
