/* trainer_ranks.h - what a step of several ranks adds to that of one. */
#ifndef KR_TRAIN_TRAINER_RANKS_H
#define KR_TRAIN_TRAINER_RANKS_H

#include "train/trainer.h"

/* Collective, when all ranks have made their trainers: an error on all of them if one has failed, or if it has another model,
 * data, options or kernels. is_made: this rank's trainer is whole. */
bool kr_ranks_meet(kr_trainer *t, bool is_made);

/* Collective, before a step: memory for it. An error on all ranks if one has none. */
bool kr_ranks_begin(kr_trainer *t, bool is_ready);

/* Before and after the backward pass of this rank's last micro-batch: buckets are posted during it. */
void kr_ranks_post_at_fences(kr_trainer *t, bool is_on);

/* After this rank's micro-batches: the time that they took. After the step: the times of all ranks. */
void kr_ranks_note_computed(kr_trainer *t);
void kr_ranks_note_step(kr_trainer *t);

/* Collective, after this rank's micro-batches: the sums of gradients are those of all ranks, each on its owner, and all ranks
 * have the results of all micro-batches. False on all ranks if one of them has failed before; only that one has an error. */
bool kr_ranks_sum(kr_trainer *t);

/* Collective, after a failed step: all ranks get the error of the first rank that has one, or of one that has found the
 * origin of numbers that are not finite. */
void kr_ranks_tell(kr_trainer *t, bool has_found);

/* Collective: does a rank want it? */
bool kr_ranks_any(kr_trainer *t, bool is_wanted);

/* Collective: fills in `results` [count], of which each rank has its own (kr_rank_first). */
bool kr_ranks_gather_results(kr_trainer *t, kr_batch_result *results, int64_t count);

/* The first of `count` things dealt to a rank in order; that of rank `ranks` is their end. */
static inline int64_t kr_rank_first(const kr_trainer *t, int rank, int64_t count)
{
    return count / t->ranks * rank + count % t->ranks * rank / t->ranks;
}

void kr_ranks_free(kr_trainer *t);

/* ---- pieces of rows (trainer_pieces.c) ---- */

/* Can this run have rows in pieces? */
bool kr_pieces_check(kr_trainer *t);

/* Of several ranks collective. */
bool kr_pieces_create(kr_trainer *t);
void kr_pieces_destroy(kr_trainer *t);

/* The piece of all tensors of a batch. */
bool kr_pieces_cut(const kr_trainer *t, kr_tape *tape, kr_batch *batch, int piece);

/* One rank that computes all pieces: before a step; losses and gradients of a micro-batch; the sum over the pieces; after it. */
bool kr_pieces_begin(kr_trainer *t);
bool kr_pieces_run_batch(kr_trainer *t, const kr_step_start *start, int64_t m);
bool kr_pieces_add(kr_trainer *t);
void kr_pieces_reset(kr_trainer *t);

/* ---- carried states (trainer_carry.c); of several ranks ---- */

/* Before a step: memory for it. */
bool kr_carry_begin(kr_trainer *t);
void kr_carry_free(kr_trainer *t);

/* Before this rank's first micro-batch: `moving` is the state after the one before it. again: in a second run. */
bool kr_carry_take(kr_trainer *t);
bool kr_carry_again(kr_trainer *t);

/* The state after this rank's last micro-batch, for the next rank. */
void kr_carry_give(kr_trainer *t, const kr_state *state);

/* What has not been taken or given, because this rank has failed. */
void kr_carry_end(kr_trainer *t);

/* Collective, after a step: `moving` of all ranks is the state after its last micro-batch. */
bool kr_carry_share(kr_trainer *t);

#endif
