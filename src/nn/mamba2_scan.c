/* mamba2_scan.c - the state before a piece of rows, by a scan over the pieces (KR_SEQ_SCAN).
 *
 *   window: the last d_conv - 1 inputs of the convolution on the piece before
 *   R_t = da_t + .. + da_last;  decay = exp(R_0);  H = sum over t of exp(R_t - da_t) dt_t x_t (outer) B_t
 *   the state before the piece is the scan of (decay, H); the first piece has H + decay initial
 * H is one matrix product for each group. In a row with resets decay is 0, and H is of the tokens from its last reset, at t, on,
 * plus exp(R_t) initial. The sequences that begin inside the piece have the initial state.
 */
#include "nn/mamba2_impl.h"

/* Of rows with resets, 1 or 0 for each token: those that the state after a row is made of, and the first of them if that is a
 * reset. NULL: no resets. */
typedef struct survivors {
    kr_tensor *token_bs1, *first_bs1;
} survivors;

static survivors find_survivors(kr_tape *tape, const kr_piece *piece, kr_dtype dtype)
{
    const survivors none = { NULL, NULL };
    kr_tensor *reset_bs = piece->input.reset_bs;
    if (!piece->plan) return none;
    const int64_t nb = kr_dim_of(reset_bs, 0), ns = kr_dim_of(reset_bs, 1);
    kr_tensor *token = kr_new(tape, KR_DTYPE_I32, KR_SHAPE(nb, ns, 1));
    kr_tensor *first = kr_new(tape, KR_DTYPE_I32, KR_SHAPE(nb, ns, 1));
    if (!token || !first) return none;
    int32_t *of_token = (int32_t *)(void *)token->data, *of_first = (int32_t *)(void *)first->data;
    for (int64_t b = 0; b < nb; b++) {
        bool survives = true;
        for (int64_t t = ns - 1; t >= 0; t--) {
            const bool is_reset = kr_tensor_at(reset_bs, (int64_t[]){ b, t }) != 0;
            of_token[b * ns + t] = survives;
            of_first[b * ns + t] = survives && is_reset;
            survives = survives && !is_reset;
        }
    }
    return (survivors){ kr_cast(tape, token, dtype), kr_cast(tape, first, dtype) };
}

/* decay [b h] and H [b h p r] of the piece; with `own`, the state before the first piece, that after it. */
typedef struct summary {
    kr_tensor *decay_bh, *state_bhpr;
} summary;

static summary sum_up(kr_tape *tape, const kr_mamba2 *m, const kr_piece *piece, const kr_mamba2_ssd_input *ssd,
                      kr_tensor *initial, kr_tensor *own)
{
    const int64_t ng = m->config.n_groups, nr = m->config.state_rank, np = m->config.per_head_dim, nh = m->nh;
    const int64_t nb = kr_dim_of(ssd->dt_bsh, 0), ns = kr_dim_of(ssd->dt_bsh, 1);
    const kr_dtype dtype = kr_tensor_dtype(ssd->dt_bsh);
    const survivors s = find_survivors(tape, piece, dtype);

    kr_tensor *da = kr_mul(tape, ssd->dt_bsh, ssd->a_decay_h), *rest = kr_cumsum_reverse(tape, da, 1);
    kr_tensor *decay_bh = kr_reshape(tape, kr_exp(tape, kr_slice(tape, rest, 1, 0, 1)), KR_SHAPE(nb, nh));
    kr_tensor *weight = kr_mul(tape, kr_exp(tape, kr_sub(tape, rest, da)), ssd->dt_bsh);
    kr_tensor *unbroken_b1 = kr_piece_unbroken(tape, piece, dtype, 2);
    if (unbroken_b1) decay_bh = kr_mul(tape, decay_bh, unbroken_b1);
    if (s.token_bs1) weight = kr_mul(tape, weight, s.token_bs1);

    kr_tensor *x = kr_mul(tape, ssd->x_bshp, kr_reshape(tape, weight, KR_SHAPE(nb, ns, nh, 1)));
    x = kr_permute(tape, kr_reshape(tape, x, KR_SHAPE(nb, ns, ng, nh / ng * np)), KR_AXES(0, 2, 3, 1));
    kr_tensor *b_bgsr = kr_permute(tape, ssd->b_bsgr, KR_AXES(0, 2, 1, 3));
    kr_tensor *state = kr_reshape(tape, kr_matmul(tape, x, b_bgsr), KR_SHAPE(nb, nh, np, nr));
    if (s.first_bs1 && m->learned_init_hpr) { /* what is left of the initial state after the last reset */
        kr_tensor *left_bh = kr_sum(tape, kr_mul(tape, kr_exp(tape, rest), s.first_bs1), KR_AXES(1), false);
        state = kr_add(tape, state, kr_mul(tape, initial, kr_reshape(tape, left_bh, KR_SHAPE(nb, nh, 1, 1))));
    }
    if (own) state = kr_add(tape, state, kr_mul(tape, own, kr_reshape(tape, decay_bh, KR_SHAPE(nb, nh, 1, 1))));
    return (summary){ decay_bh, state };
}

kr_tensor *kr_mamba2_scan_state(kr_tape *tape, const kr_mamba2 *m, const kr_piece *piece,
                                const kr_mamba2_ssd_input *ssd)
{
    kr_seq_parallel *seq = piece->input.seq;
    const kr_cache *cache = piece->input.cache;
    const kr_shape bhpr = KR_SHAPE(kr_dim_of(ssd->dt_bsh, 0), m->nh, m->config.per_head_dim, m->config.state_rank);
    kr_tensor *initial = kr_mamba2_kind.initial_cache(tape, m, 1).mamba2.ssm_bhpr, *own = NULL;
    if (kr_seq_is_first(seq)) own = cache ? cache->mamba2.ssm_bhpr : kr_expand(tape, initial, bhpr);
    kr_tensor *zeros = kr_zeros(tape, kr_tensor_dtype(ssd->dt_bsh), bhpr); /* nothing is asked of the last piece */
    const summary all = kr_seq_is_last(seq) ? (summary){ zeros, zeros } : sum_up(tape, m, piece, ssd, initial, own);
    kr_tensor *before = kr_state_scan(tape, seq, all.decay_bh, all.state_bhpr);
    if (own) before = own;
    return piece->plan ? kr_block_begin_sequences(tape, piece->plan, before, initial) : before;
}
