/* piece_scan.c - pieces of rows in blocks: their sequences, and the windows of their convolutions. */
#include "nn/piece_scan.h"

bool kr_piece_is_scanned(const void *block)
{
    (void)block;
    return true;
}

bool kr_piece_begin(kr_tape *tape, const kr_block_kind *kind, const void *block, const kr_block_input *input,
                    kr_piece *piece, kr_dims *d)
{
    *piece = (kr_piece){ .input = *input };
    if (!kr_block_begin(tape, kind, block, input, d)) return false;
    if (!input->seq || !input->reset_bs) return true;
    piece->input.seq_start_bs = input->reset_bs;
    piece->plan = &piece->resets;
    return kr_block_plan_resets(tape, input->op, input->reset_bs, d->b, d->s, &piece->resets);
}

kr_tensor *kr_piece_window(kr_tape *tape, const kr_piece *piece, kr_tensor *x_bsv, int64_t nk, kr_tensor *first_bvk)
{
    kr_tensor *halo = kr_halo(tape, piece->input.seq, x_bsv, nk - 1), *window = first_bvk;
    if (!kr_seq_is_first(piece->input.seq)) window = kr_pad(tape, kr_permute(tape, halo, KR_AXES(0, 2, 1)), 2, 1, 0, 0);
    if (!window || !piece->plan) return window;
    kr_tensor *none = kr_zeros(tape, kr_tensor_dtype(window), KR_SHAPE(1, kr_dim_of(x_bsv, 2), nk));
    return kr_block_begin_sequences(tape, piece->plan, window, none);
}

kr_tensor *kr_piece_unbroken(kr_tape *tape, const kr_piece *piece, kr_dtype dtype, int rank)
{
    const kr_reset_plan *plan = piece->plan;
    if (!plan) return NULL;
    kr_shape shape = { .rank = rank };
    for (int i = 0; i < rank; i++) shape.dims[i] = 1;
    shape.dims[0] = plan->nb;
    kr_tensor *row = kr_new(tape, KR_DTYPE_I32, shape);
    if (!row) return NULL;
    int32_t *is_unbroken = (int32_t *)(void *)row->data;
    for (int64_t b = 0; b < plan->nb; b++) is_unbroken[b] = plan->from[plan->last[b]] == b;
    return kr_cast(tape, row, dtype);
}

kr_tensor *kr_piece_end(kr_tape *tape, const kr_piece *piece, kr_tensor *x)
{
    return piece->plan ? kr_select_rows(tape, x, piece->plan->nb, piece->plan->last) : x;
}
