/* sequences.h - the sequences of a batch: from a marker of starts to the list that the kernels take. */
#ifndef KR_OPS_SEQUENCES_H
#define KR_OPS_SEQUENCES_H

#include "kernels/sequence.h"
#include "tape/tape_impl.h"

/* In order of row and start; every token of the batch is in one of them. The list has the lifetime of the tape's step
 * (or scope) in which it was made. */
typedef struct kr_sequences {
    int64_t count;
    const kr_sequence *list;
} kr_sequences;

/* seq_start_bs (i32 or i64, [b s]) is not 0 where a new sequence begins; position 0 of a row always begins one. NULL:
 * each row is one sequence. False after an error: another shape or type, a row without tokens, no memory. */
bool kr_sequences_from(kr_tape *tape, const char *op, kr_tensor *seq_start_bs, int64_t nb, int64_t ns,
                       kr_sequences *out);

/* The same for ops that accept rows without tokens: each is one sequence of length 0. */
bool kr_sequences_maybe_empty(kr_tape *tape, const char *op, kr_tensor *seq_start_bs, int64_t nb, int64_t ns,
                              kr_sequences *out);

/* *seq_start_bs <- the marker of cu_seqlens; see kr_seq_start_from_cu_seqlens. Nothing for NULL. Fails if there is a marker
 * already. */
bool kr_cu_seqlens_take(kr_tape *tape, const char *op, kr_tensor *cu_seqlens, int64_t nb, int64_t ns,
                        kr_tensor **seq_start_bs);

#endif
