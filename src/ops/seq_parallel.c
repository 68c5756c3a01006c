/* seq_parallel.c - the pieces of a row on several ranks, or one after another on one: their messages. */
#include "ops/seq_parallel_impl.h"

#include "base/device_memory.h"
#include "comm/comm_impl.h"

#include <string.h>

#define OP "seq_parallel"

/* ---- messages ---- */

kr_seq_message *kr_seq_message_new(kr_seq_parallel *seq, size_t bytes)
{
    kr_seq_message *message = kr_memory_alloc_zeroed(&seq->ctx->memory, sizeof *message + bytes);
    if (message) message->bytes = bytes;
    else kr_fail(seq->ctx, KR_ERR_NOMEM, OP ": no memory for a message of %zu bytes", bytes);
    return message;
}

void kr_seq_message_free(kr_seq_parallel *seq, kr_seq_message *message)
{
    if (message) kr_memory_free(&seq->ctx->memory, message, sizeof *message + message->bytes);
}

static void drop(kr_seq_parallel *seq, kr_seq_way way)
{
    while (seq->first[way]) {
        kr_seq_message *message = seq->first[way];
        seq->first[way] = message->next;
        kr_seq_message_free(seq, message);
    }
    seq->last[way] = NULL;
}

/* Waits for the message under way. */
static bool end_send(kr_seq_parallel *seq, kr_seq_way way)
{
    const kr_ticket ticket = seq->ticket[way];
    seq->ticket[way] = 0;
    const bool ok = !ticket || kr_comm_end(seq->comm, ticket) == KR_OK;
    drop(seq, way);
    return ok;
}

static int neighbour(kr_seq_way way, int piece, bool is_sender)
{
    return (way == KR_SEQ_FORWARD) == is_sender ? piece + 1 : piece - 1;
}

bool kr_seq_send(kr_seq_parallel *seq, kr_seq_way way, int piece, kr_seq_message *message)
{
    if (!message) return false;
    if (seq->comm && !end_send(seq, way)) {
        kr_seq_message_free(seq, message);
        return false;
    }
    if (seq->last[way]) seq->last[way]->next = message;
    else seq->first[way] = message;
    seq->last[way] = message;
    if (!seq->comm) return true;
    seq->ticket[way] = kr_comm_begin_exchange(seq->comm, neighbour(way, piece, true), kr_seq_payload(message),
                                              message->bytes, -1, NULL, 0);
    return seq->ticket[way] != 0;
}

bool kr_seq_receive(kr_seq_parallel *seq, kr_seq_way way, int piece, kr_seq_message *message)
{
    if (!message) return false;
    if (seq->comm)
        return kr_comm_recv(seq->comm, neighbour(way, piece, false), kr_seq_payload(message), message->bytes) == KR_OK;
    kr_seq_message *sent = seq->first[way];
    if (!kr_require(seq->ctx, sent, KR_ERR_STATE, OP ": piece %d has %s, but piece %d has not", piece,
                    way == KR_SEQ_FORWARD ? "begun" : "begun its backward pass", neighbour(way, piece, false)) ||
        !kr_require(seq->ctx, sent->bytes == message->bytes, KR_ERR_SHAPE,
                    OP ": piece %d has given %zu bytes, but piece %d takes %zu; all pieces have the same rows",
                    neighbour(way, piece, false), sent->bytes, piece, message->bytes))
        return false;
    memcpy(kr_seq_payload(message), kr_seq_payload(sent), sent->bytes);
    seq->first[way] = sent->next;
    if (!seq->first[way]) seq->last[way] = NULL;
    kr_seq_message_free(seq, sent);
    return true;
}

void kr_seq_tell(kr_seq_parallel *seq)
{
    if (seq->comm && kr_ctx_failed(seq->ctx)) (void)kr_comm_barrier(seq->comm);
}

/* ---- life ---- */

kr_seq_parallel *kr_seq_parallel_create(kr_ctx *ctx, kr_comm *comm, int pieces, kr_seq_mode mode)
{
    if (kr_ctx_failed(ctx)) return NULL;
    const int ranks = comm ? kr_comm_size(comm) : 0;
    if (!kr_require(ctx, !comm || comm->ctx == ctx, KR_ERR_STATE,
                    OP ".create: the communicator belongs to another context") ||
        !kr_require(ctx, !comm || pieces == 0 || pieces == ranks, KR_ERR_ARG,
                    OP ".create: pieces = %d, but the communicator has %d ranks, of which each has one piece", pieces,
                    ranks) ||
        !kr_require(ctx, comm || pieces >= 1, KR_ERR_ARG, OP ".create: pieces = %d, but must be at least 1", pieces) ||
        !kr_require(ctx, mode >= KR_SEQ_AUTO && mode <= KR_SEQ_SCAN, KR_ERR_ARG,
                    OP ".create: mode = %d is not a kr_seq_mode", (int)mode))
        return NULL;
    kr_seq_parallel *seq = kr_memory_alloc_zeroed(&ctx->memory, sizeof *seq);
    if (!kr_require(ctx, seq, KR_ERR_NOMEM, OP ".create: out of memory")) return NULL;
    *seq = (kr_seq_parallel){ .ctx = ctx, .comm = comm, .pieces = comm ? ranks : pieces, .mode = mode };
    seq->piece = comm ? kr_comm_rank(comm) : 0;
    return seq;
}

void kr_seq_parallel_destroy(kr_seq_parallel *seq)
{
    if (!seq) return;
    for (int way = 0; way < 2; way++) end_send(seq, (kr_seq_way)way);
    kr_memory_free(&seq->ctx->memory, seq, sizeof *seq);
}

kr_status kr_seq_parallel_begin(kr_seq_parallel *seq, int piece)
{
    if (!seq) return KR_ERR_ARG;
    kr_ctx *ctx = seq->ctx;
    if (!kr_require(ctx, piece >= 0 && piece < seq->pieces, KR_ERR_ARG,
                    OP ".begin: piece = %d, but must be from 0 to %d", piece, seq->pieces - 1) ||
        !kr_require(ctx, !seq->comm || piece == seq->piece, KR_ERR_ARG,
                    OP ".begin: piece = %d, but this rank has piece %d", piece, seq->piece))
        return ctx->status;
    if (!seq->comm && piece == 0)
        for (int way = 0; way < 2; way++) drop(seq, (kr_seq_way)way);
    seq->piece = piece;
    return ctx->status;
}

int64_t kr_seq_parallel_cut(int64_t length, int64_t grid, int pieces, int piece)
{
    if (grid < 1) grid = 1;
    if (length < 1 || pieces < 1 || piece < 0 || piece > pieces) return -1;
    const int64_t units = (length - 1) / grid + 1;
    if (units < pieces) return -1;
    const int64_t first = units / pieces * piece + units % pieces * piece / pieces;
    return piece == pieces ? length : first * grid;
}

/* ---- states ----
 *
 * A message has a word of bits, one for each tensor whose gradient is wanted, then the tensors, row-major. The node of a taken
 * state and that of a given one run in every backward pass, so that messages match whatever gradients there are.
 */

typedef struct passed {
    kr_seq_parallel *seq;
    int piece;
    uint64_t wanted; /* bit i: the gradient of tensor i of the list */
} passed;

enum { HEAD_BYTES = 8 };

static size_t bytes_of(const kr_tensor *x, kr_dtype dtype)
{
    return kr_dtype_span(dtype, kr_count_of(x));
}

/* Copies x, or zeros for NULL, to `bytes`. */
static bool pack(kr_tape *tape, char *bytes, const kr_tensor *x, size_t count)
{
    if (!x || count == 0) return true;
    if (!kr_tensor_is_row_major(x)) {
        kr_tensor *flat = kr_new(tape, x->dtype, kr_tensor_shape(x));
        if (!flat || !kr_assign(tape->ctx, flat, x)) return false;
        x = flat;
    }
    return kr_fetch(tape->ctx, bytes, x->data, count);
}

static void taken_backward(kr_back *back)
{
    kr_tape *tape = kr_back_tape(back);
    const passed *p = kr_back_attrs(back);
    int count = 0;
    size_t bytes = HEAD_BYTES, at = HEAD_BYTES;
    for (uint64_t bits = p->wanted; bits; bits &= bits - 1) count++;
    for (int i = 0; i < count; i++) bytes += bytes_of(kr_back_out(back, i), kr_grad_dtype(kr_back_out(back, i)));
    kr_seq_message *message = kr_seq_message_new(p->seq, bytes);
    for (int i = 0; message && i < count; i++) {
        const size_t n = bytes_of(kr_back_out(back, i), kr_grad_dtype(kr_back_out(back, i)));
        if (!pack(tape, kr_seq_payload(message) + at, kr_back_grad(back, i), n)) break;
        at += n;
    }
    if (message && kr_ctx_failed(tape->ctx)) kr_seq_message_free(p->seq, message);
    else kr_seq_send(p->seq, KR_SEQ_BACKWARD, p->piece, message);
}

static const kr_rule taken_rule = { .name = "seq_take_state", .backward = taken_backward };

static void given_backward(kr_back *back)
{
    kr_tape *tape = kr_back_tape(back);
    const passed *p = kr_back_attrs(back);
    int count = 0;
    size_t bytes = HEAD_BYTES, at = HEAD_BYTES;
    for (uint64_t bits = p->wanted; bits; bits &= bits - 1) count++;
    for (int i = 0; i < count; i++) bytes += bytes_of(kr_back_in(back, i), kr_grad_dtype(kr_back_in(back, i)));
    kr_seq_message *message = kr_seq_message_new(p->seq, bytes);
    if (kr_seq_receive(p->seq, KR_SEQ_BACKWARD, p->piece, message))
        for (int i = 0; i < count; i++) {
            kr_tensor *x = kr_back_in(back, i), *g = kr_new(tape, kr_grad_dtype(x), kr_tensor_shape(x));
            const size_t n = g ? bytes_of(x, g->dtype) : 0;
            if (!g || !kr_store(tape->ctx, g->data, kr_seq_payload(message) + at, n)) break;
            at += n;
            kr_back_accumulate(back, i, g);
        }
    kr_seq_message_free(p->seq, message);
}

static const kr_rule given_rule = { .name = "seq_give_state", .backward = given_backward };

bool kr_seq_take_state(kr_tape *tape, kr_seq_parallel *seq, const char *op, bool is_recorded, int count, kr_tensor **x)
{
    size_t bytes = HEAD_BYTES, at = HEAD_BYTES;
    kr_tensor *wanted[KR_SEQ_TENSORS_MOST];
    int n_wanted = 0;
    if (!kr_tape_ready(tape, op)) return false;
    for (int i = 0; i < count; i++)
        if (x[i]) bytes += bytes_of(x[i], x[i]->dtype);
    kr_seq_message *message = kr_seq_message_new(seq, bytes);
    bool ok = kr_seq_receive(seq, KR_SEQ_FORWARD, seq->piece, message);
    passed p = { seq, seq->piece, 0 };
    if (ok) memcpy(&p.wanted, kr_seq_payload(message), HEAD_BYTES);
    for (int i = 0; ok && i < count; i++) {
        if (!x[i]) continue;
        const size_t n = bytes_of(x[i], x[i]->dtype);
        kr_tensor *y = kr_new(tape, x[i]->dtype, kr_tensor_shape(x[i]));
        ok = y && kr_store(tape->ctx, y->data, kr_seq_payload(message) + at, n);
        at += n;
        x[i] = y;
        if (p.wanted >> i & 1) wanted[n_wanted++] = y;
    }
    kr_seq_message_free(seq, message);
    if (!ok) return kr_blame(tape->ctx, "piece %d of %d", seq->piece, seq->pieces);
    if (!is_recorded || !n_wanted) return true;
    return kr_record_always(
        tape, &(kr_record_args){
                  .rule = &taken_rule, .n_out = n_wanted, .out = wanted, .attrs = &p, .attrs_bytes = sizeof p });
}

bool kr_seq_give_state(kr_tape *tape, kr_seq_parallel *seq, const char *op, bool is_recorded, int count,
                       kr_tensor *const *x)
{
    size_t bytes = HEAD_BYTES, at = HEAD_BYTES;
    kr_tensor *wanted[KR_SEQ_TENSORS_MOST];
    int n_wanted = 0;
    if (!kr_tape_ready(tape, op)) return false;
    passed p = { seq, seq->piece, 0 };
    for (int i = 0; i < count; i++) {
        if (!x[i]) continue;
        bytes += bytes_of(x[i], x[i]->dtype);
        if (!is_recorded || !tape->recording || !x[i]->flags.requires_grad) continue;
        p.wanted |= UINT64_C(1) << i;
        wanted[n_wanted++] = x[i];
    }
    kr_seq_message *message = kr_seq_message_new(seq, bytes);
    if (!message) return false;
    memcpy(kr_seq_payload(message), &p.wanted, HEAD_BYTES);
    for (int i = 0; i < count && !kr_ctx_failed(tape->ctx); i++) {
        if (!x[i]) continue;
        const size_t n = bytes_of(x[i], x[i]->dtype);
        pack(tape, kr_seq_payload(message) + at, x[i], n);
        at += n;
    }
    if (kr_ctx_failed(tape->ctx)) {
        kr_seq_message_free(seq, message);
        return false;
    }
    if (!kr_seq_send(seq, KR_SEQ_FORWARD, seq->piece, message)) return false;
    return !n_wanted ||
           kr_record_always(
               tape, &(kr_record_args){
                         .rule = &given_rule, .n_in = n_wanted, .in = wanted, .attrs = &p, .attrs_bytes = sizeof p });
}
