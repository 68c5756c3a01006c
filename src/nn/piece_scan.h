/* piece_scan.h - common code of blocks that find the state before a piece of rows by a scan over the pieces (KR_SEQ_SCAN). */
#ifndef KR_NN_PIECE_SCAN_H
#define KR_NN_PIECE_SCAN_H

#include "nn/block_impl.h"
#include "ops/seq_parallel_impl.h"

/* A forward that may be of a piece. */
typedef struct kr_piece {
    kr_block_input input;      /* of a piece with resets, seq_start is set to them */
    const kr_reset_plan *plan; /* NULL: no resets in a piece */
    kr_reset_plan resets;
} kr_piece;

/* scans_pieces of kinds whose blocks all do. */
bool kr_piece_is_scanned(const void *block);

/* kr_block_begin, and the sequences of a piece with resets. */
bool kr_piece_begin(kr_tape *tape, const kr_block_kind *kind, const void *block, const kr_block_input *input,
                    kr_piece *piece, kr_dims *d);

/* The convolution's window before the piece, of each sequence, or of each row without resets: of x [b s v], nk taps.
 * first: that of the first piece, or NULL. */
kr_tensor *kr_piece_window(kr_tape *tape, const kr_piece *piece, kr_tensor *x_bsv, int64_t nk, kr_tensor *first_bvk);

/* 1 for rows without a reset in the piece, else 0: [b] and `rank` axes in all; NULL: no resets. */
kr_tensor *kr_piece_unbroken(kr_tape *tape, const kr_piece *piece, kr_dtype dtype, int rank);

/* The cache tensor of each row out of that of each sequence: its last one. */
kr_tensor *kr_piece_end(kr_tape *tape, const kr_piece *piece, kr_tensor *x);

#endif
