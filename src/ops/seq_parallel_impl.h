/* seq_parallel_impl.h - messages between the pieces of a row, and states that pass from one to the next. */
#ifndef KR_OPS_SEQ_PARALLEL_IMPL_H
#define KR_OPS_SEQ_PARALLEL_IMPL_H

#include "ops/ops_impl.h"

#include <krait/seq_parallel.h>

/* Forward: from piece to piece + 1; backward: from piece to piece - 1. */
typedef enum kr_seq_way { KR_SEQ_FORWARD, KR_SEQ_BACKWARD } kr_seq_way;

typedef struct kr_seq_message {
    struct kr_seq_message *next;
    size_t bytes; /* of the payload, which follows */
} kr_seq_message;

struct kr_seq_parallel {
    kr_ctx *ctx;
    kr_comm *comm; /* NULL: one rank */
    int piece, pieces;
    kr_seq_mode mode;
    /* One rank: what has been sent and not received. Several: the message that is being sent. By kr_seq_way. */
    kr_seq_message *first[2], *last[2];
    kr_ticket ticket[2];
};

/* A message of `bytes`, to be filled and sent; NULL after an error. */
kr_seq_message *kr_seq_message_new(kr_seq_parallel *seq, size_t bytes);
static inline char *kr_seq_payload(kr_seq_message *message)
{
    return (char *)(message + 1);
}
void kr_seq_message_free(kr_seq_parallel *seq, kr_seq_message *message);

/* Sends a message from `piece` to its neighbour, and frees it; at most one of each way is under way. */
bool kr_seq_send(kr_seq_parallel *seq, kr_seq_way way, int piece, kr_seq_message *message);

/* Receives what the neighbour of `piece` has sent it, of as many bytes as the message has. */
bool kr_seq_receive(kr_seq_parallel *seq, kr_seq_way way, int piece, kr_seq_message *message);

static inline bool kr_seq_is_first(const kr_seq_parallel *seq)
{
    return seq->piece == 0;
}
static inline bool kr_seq_is_last(const kr_seq_parallel *seq)
{
    return seq->piece == seq->pieces - 1;
}

/* After an error: the other ranks, which wait for this one or will, get it. */
void kr_seq_tell(kr_seq_parallel *seq);

enum { KR_SEQ_TENSORS_MOST = 8 };

/* x[i] <- the state that the piece before gave, each of the shape and type of x[i]; NULL tensors stay. With is_recorded the
 * backward pass gives their gradients to it, if it wants them. Not for the first piece. op is for messages. */
bool kr_seq_take_state(kr_tape *tape, kr_seq_parallel *seq, const char *op, bool is_recorded, int count, kr_tensor **x);

/* Gives x to the next piece, of the types that it expects. With is_recorded the backward pass adds the gradients that come
 * back. Not for the last piece. */
bool kr_seq_give_state(kr_tape *tape, kr_seq_parallel *seq, const char *op, bool is_recorded, int count,
                       kr_tensor *const *x);

#endif
