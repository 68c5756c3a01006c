/* state_rows.h - capacity of a state for more rows than are in use, and copies of single rows. */
#ifndef KR_NN_STATE_ROWS_H
#define KR_NN_STATE_ROWS_H

#include "nn/network_impl.h"

/* A state of the caller with memory for `capacity` rows, of which none is in use (batch 0): tensors with the types and shapes
 * of those of `like`, which has tensors in all slots. NULL after an error. */
kr_state *kr_state_rows_create(kr_ctx *ctx, const char *op, const kr_state *like, int64_t capacity);

/* The first `batch` rows are in use from now on; batch <= capacity. */
void kr_state_rows_use(kr_state *state, int64_t batch);

/* Rows `row` .. row + count - 1 of `to` <- row `from_row` of `from`: states of one network, all slots with tensors. They may
 * be any rows within the capacity. False after an error. */
bool kr_state_row_copy_to(kr_state *to, int64_t row, int64_t count, const kr_state *from, int64_t from_row);

static inline bool kr_state_row_copy(kr_state *to, int64_t row, const kr_state *from, int64_t from_row)
{
    return kr_state_row_copy_to(to, row, 1, from, from_row);
}

/* One row as a state on the tape that shows its memory; nothing is copied. NULL after an error. */
kr_state *kr_state_row_view(kr_tape *tape, const kr_state *state, int64_t row);

/* The initial state of one row with all its tensors, on the tape: what a state without tensors stands for. NULL after an
 * error. */
kr_state *kr_network_initial_row(kr_tape *tape, const kr_network *net);

#endif
