/* mamba1_scan.c - the state before a piece of rows, by a scan over the pieces (KR_SEQ_SCAN).
 *
 *   decay = exp(A sum over t of dt_t);  H = the state after the piece if that before it is 0
 *   the state before the piece is the scan of (decay, H); the first piece has H of its initial state
 * H is the final state of a selective scan, whose outputs are not used; the layer runs another one from the state found. In a
 * row with resets decay is 0. The sequences that begin inside the piece have the initial state.
 */
#include "nn/mamba1_impl.h"

/* The state after the piece, [b i r], from `before` [b i r]. */
static kr_tensor *state_after(kr_tape *tape, const kr_piece *piece, const kr_selective_scan_input *scan,
                              kr_tensor *before, kr_tensor *initial)
{
    kr_selective_scan_input only = *scan;
    only.c_bsgr = scan->b_bsgr;
    only.d_i = only.z_bsi = NULL;
    only.initial_state_bir = piece->plan ? kr_block_begin_sequences(tape, piece->plan, before, initial) : before;
    return kr_piece_end(tape, piece, kr_selective_scan(tape, &only).final_state);
}

kr_tensor *kr_mamba1_scan_state(kr_tape *tape, const kr_mamba1 *m, const kr_piece *piece,
                                const kr_selective_scan_input *scan)
{
    kr_seq_parallel *seq = piece->input.seq;
    const kr_cache *cache = piece->input.cache;
    const int64_t nb = kr_dim_of(scan->x_bsi, 0), nr = m->config.state_rank;
    const kr_shape bir = KR_SHAPE(nb, m->ni, nr);
    kr_tensor *initial = kr_mamba1_kind.initial_cache(tape, m, 1).mamba1.ssm_bir;
    kr_tensor *from = !kr_seq_is_first(seq) ? kr_zeros(tape, m->small, bir)
                      : cache               ? cache->mamba1.ssm_bir
                                            : kr_expand(tape, initial, bir);
    kr_tensor *decay = from, *state = from; /* of the last piece nothing is asked */
    if (!kr_seq_is_last(seq)) {
        kr_tensor *sum = kr_reshape(tape, kr_sum(tape, scan->dt_bsi, KR_AXES(1), false), KR_SHAPE(nb, m->ni, 1));
        kr_tensor *unbroken = kr_piece_unbroken(tape, piece, m->small, 3);
        decay = kr_exp(tape, kr_mul(tape, sum, scan->a_ir));
        if (unbroken) decay = kr_mul(tape, decay, unbroken);
        state = state_after(tape, piece, scan, from, initial);
    }
    kr_tensor *before = kr_state_scan(tape, seq, decay, state);
    if (kr_seq_is_first(seq)) before = from;
    return piece->plan ? kr_block_begin_sequences(tape, piece->plan, before, initial) : before;
}
