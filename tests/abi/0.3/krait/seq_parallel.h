/* seq_parallel.h - sequence parallelism: the tokens of each row are divided into pieces, one for each rank.
 *
 *   kr_comm *comm = kr_comm_create(ctx, NULL);                    // ranks by the environment; here one
 *   kr_seq_parallel *seq = kr_seq_parallel_create(ctx, comm, 0, KR_SEQ_AUTO);
 *   kr_call call;
 *   kr_call_init(&call);
 *   call.seq_parallel = seq;
 *   kr_layers_out out = kr_layers_forward(tape, kr_network_layers(net), x_bsd, &call); // this rank's tokens of each row
 *   kr_backward(tape, kr_sum(tape, out.y, KR_ALL_AXES, false));   // the loss of these tokens; on all ranks
 *   kr_seq_parallel_destroy(seq);
 *   kr_comm_destroy(comm);
 *
 * A recurrent layer needs of the tokens before its own nothing but a state, whose size does not depend on their number. So rank
 * p computes piece p of all rows, gets the state before it from rank p - 1, and gives the state after it to rank p + 1; in the
 * backward pass the gradients of the states go the other way. Everything else is local: norms, projections, MLPs, losses.
 * Gradients of weights are those of the rank's own tokens; the caller adds them over the ranks (kr_comm_sum, or the trainer:
 * kr_train_options.sequence_ranks). docs/distributed.md */
#ifndef KRAIT_SEQ_PARALLEL_H
#define KRAIT_SEQ_PARALLEL_H

#include <krait/comm.h>
#include <krait/ops.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct kr_seq_parallel kr_seq_parallel;

/* How a layer gets the state before a piece.
 * EXACT: it begins from the final state of the layer on the rank before; while that rank computes the next layer, this one
 * computes this layer. On the CPU outputs and states have the same bits as without pieces if the cuts are multiples of
 * kr_layers_grid.
 * SCAN: all ranks compute what their tokens add to the state, at once; a scan over these (kr_state_scan) gives the states
 * before the pieces, and then all compute the layer. Outputs differ from those of whole rows by rounding. Blocks of the library
 * but for Mamba-3 with quaternions, with a communicator; one rank that computes all pieces has the state already, and computes
 * as in EXACT.
 * AUTO: EXACT for up to 4 pieces; SCAN for more, where it is possible. */
typedef enum kr_seq_mode { KR_SEQ_AUTO = 0, KR_SEQ_EXACT = 1, KR_SEQ_SCAN = 2 } kr_seq_mode;

/* With a communicator, of the same context: piece = rank, and pieces = 0 or the number of ranks. comm NULL: this rank computes
 * all pieces of a row, one after another, with the same bits: the forward pass of piece p on its own tape, for p from 0,
 * each after kr_seq_parallel_begin; then the backward passes from the last piece to the first.
 *
 * Calls with it are collective, and so is their backward pass: all ranks make the same calls with the same network and number
 * of rows. A rank without a loss back-propagates zeros. After an error of one rank the communicator cannot be used any more.
 * The caller destroys it, after the backward passes that use it, and before the communicator. NULL after an error. */
KR_API kr_seq_parallel *kr_seq_parallel_create(kr_ctx *ctx, kr_comm *comm, int pieces, kr_seq_mode mode);
KR_API void kr_seq_parallel_destroy(kr_seq_parallel *seq);

/* The next calls are of this piece. Begins the row anew with piece 0. With a communicator the piece is the rank. */
KR_API kr_status kr_seq_parallel_begin(kr_seq_parallel *seq, int piece);

/* The first token of a piece when rows of `length` tokens are cut into pieces about equal, at multiples of `grid` tokens
 * (kr_network_grid; 0 and 1: anywhere); piece = pieces gives the length. -1 if there would be an empty piece. */
KR_API int64_t kr_seq_parallel_cut(int64_t length, int64_t grid, int pieces, int piece);

/* ---- ops of layers whose tokens lie on several pieces; collective, as is their backward pass ---- */

/* The last n tokens of x [b s ..] on the piece before, [b n ..]; zeros on the first. A piece that another one follows has at
 * least n tokens. Gradients go back to the piece before. */
KR_API kr_tensor *kr_halo(kr_tape *tape, kr_seq_parallel *seq, kr_tensor *x, int64_t n);

/* Exclusive scan over the pieces: S_0 = 0, S_{p+1} = decay_p S_p + state_p; the result is S_p on piece p. decay has the first
 * axes of state, such as [b h] and [b h p r]; f32 or f64. */
KR_API kr_tensor *kr_state_scan(kr_tape *tape, kr_seq_parallel *seq, kr_tensor *decay, kr_tensor *state);

#ifdef __cplusplus
}
#endif
#endif
