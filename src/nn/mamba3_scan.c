/* mamba3_scan.c - the cache before a piece of rows, by scans over the pieces (KR_SEQ_SCAN).
 *
 *   angle   the sum of the angles of the pieces before: a scan with decay 1
 *   k, v    of the last token of the piece before, its B rotated by the angles that it has then
 *   state   decay = exp(sum over t of da_t);  H = the state after the piece if that before it is 0, k and v included;
 *           the state before the piece is the scan of (decay, H)
 * H is the final state of a run of the core, whose outputs are not used; the layer runs another one from the state found. In a
 * row with resets, decay is 0 and angles begin at the last one. The sequences that begin inside the piece have the initial cache.
 * The first piece begins from its cache.
 */
#include "nn/mamba3_impl.h"

/* A tensor of the cache for each sequence. */
static kr_tensor *of_sequences(kr_tape *tape, const kr_piece *piece, kr_tensor *rows, kr_tensor *initial)
{
    return piece->plan ? kr_block_begin_sequences(tape, piece->plan, rows, initial)
                       : kr_cast(tape, rows, kr_tensor_dtype(initial));
}

/* x [b ..] of the piece before. */
static kr_tensor *from_before(kr_tape *tape, const kr_piece *piece, kr_tensor *x)
{
    const kr_shape shape = kr_tensor_shape(x);
    kr_shape token = { .rank = shape.rank + 1, .dims = { shape.dims[0], 1 } };
    for (int i = 1; i < shape.rank; i++) token.dims[i + 1] = shape.dims[i];
    return kr_reshape(tape, kr_halo(tape, piece->input.seq, kr_reshape(tape, x, token), 1), shape);
}

/* 1, or 0 for rows with a reset: [b] and axes of one element. */
static kr_tensor *unbroken(kr_tape *tape, const kr_piece *piece, kr_dtype dtype, int64_t nb, int rank)
{
    kr_shape shape = { .rank = rank, .dims = { nb, 1, 1, 1 } };
    kr_tensor *some = kr_piece_unbroken(tape, piece, dtype, rank);
    return some ? some : kr_full(tape, dtype, shape, 1);
}

static kr_tensor *angles_before(kr_tape *tape, const kr_mamba3 *m, const kr_piece *piece,
                                const kr_mamba3_tokens *tokens, const kr_mamba3_cache *own,
                                const kr_mamba3_cache *initial)
{
    kr_tensor *from = own ? of_sequences(tape, piece, own->rotation, initial->rotation) : NULL;
    kr_tensor *after = kr_piece_end(tape, piece, kr_mamba3_rotations_of(tape, m, tokens, from, &piece->input).final);
    kr_tensor *decay_b = unbroken(tape, piece, kr_tensor_dtype(after), tokens->nb, 1);
    kr_tensor *before = kr_state_scan(tape, piece->input.seq, decay_b, after);
    return from ? from : of_sequences(tape, piece, before, initial->rotation);
}

/* The state before the piece; cache has the rest, and the state to begin the first run from. */
static kr_tensor *state_before(kr_tape *tape, const kr_mamba3 *m, const kr_piece *piece, const kr_mamba3_tokens *tokens,
                               const kr_mamba3_cache *cache, const kr_mamba3_spans *spans)
{
    kr_seq_parallel *seq = piece->input.seq;
    const kr_shape bhpr = KR_SHAPE(tokens->nb, m->nh, m->config.per_head_dim, m->config.state_rank);
    kr_tensor *da = tokens->step.da_bsh, *decay = kr_zeros(tape, kr_tensor_dtype(da), bhpr), *after = decay;
    if (!kr_seq_is_last(seq)) { /* nothing is asked of the last piece */
        const kr_mamba3_before before = kr_mamba3_before_of(tape, m, cache, spans->count);
        const kr_ssd_out out = kr_mamba3_run(tape, m, &piece->input, cache->pathway, tokens, &before, spans);
        after = kr_piece_end(tape, piece, out.final_state);
        decay = kr_mul(tape, kr_exp(tape, kr_sum(tape, da, KR_AXES(1), false)),
                       unbroken(tape, piece, kr_tensor_dtype(da), tokens->nb, 2));
    }
    return kr_state_scan(tape, seq, decay, after);
}

kr_mamba3_cache kr_mamba3_scan_cache(kr_tape *tape, const kr_mamba3 *m, const kr_piece *piece,
                                     kr_mamba3_pathway pathway, kr_mamba3_tokens *tokens, kr_mamba3_rotations *rotation,
                                     const kr_mamba3_spans *spans)
{
    const kr_block_input *input = &piece->input;
    const bool is_first = kr_seq_is_first(input->seq);
    const kr_mamba3_cache initial = kr_mamba3_kind.initial_cache(tape, m, 1).mamba3;
    const kr_mamba3_cache rows =
        is_first && input->cache ? input->cache->mamba3 : kr_mamba3_kind.initial_cache(tape, m, tokens->nb).mamba3;
    kr_mamba3_cache cache = { .pathway = pathway };
    cache.rotation = angles_before(tape, m, piece, tokens, is_first ? &rows : NULL, &initial);
    *rotation = kr_mamba3_rotations_of(tape, m, tokens, cache.rotation, input);
    kr_mamba3_make_bc(tape, m, tokens, rotation->each, false);

    kr_tensor *k =
        from_before(tape, piece, kr_piece_end(tape, piece, kr_mamba3_last_key(tape, m, tokens, rotation, spans)));
    kr_tensor *x = kr_piece_end(tape, piece, kr_mamba3_last(tape, spans, tokens->x_bsi));
    kr_tensor *v = kr_reshape(tape, from_before(tape, piece, x), KR_SHAPE(tokens->nb, m->nh, -1));
    cache.k_bmhr = of_sequences(tape, piece, is_first ? rows.k_bmhr : k, initial.k_bmhr);
    cache.v_bhp = of_sequences(tape, piece, is_first ? rows.v_bhp : v, initial.v_bhp);

    kr_tensor *zeros = kr_zeros(tape, kr_tensor_dtype(initial.ssm_bhpr), kr_tensor_shape(rows.ssm_bhpr));
    cache.ssm_bhpr = of_sequences(tape, piece, is_first ? rows.ssm_bhpr : zeros, initial.ssm_bhpr);
    kr_tensor *before = state_before(tape, m, piece, tokens, &cache, spans);
    if (!is_first) cache.ssm_bhpr = of_sequences(tape, piece, before, initial.ssm_bhpr);
    return cache;
}
