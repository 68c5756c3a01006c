/* trainer_carry.c - carried states of several ranks.
 *
 * Each micro-batch begins from the state after the one before it. So a rank waits for the state after the last micro-batch of
 * the rank before it, and gives its own to the next one before its backward pass; the last rank gives its state to all. In a
 * step the ranks run one after another forward, and together backward.
 *
 * A state is moved as the bytes of its tensors, which have the same shapes on all ranks, behind a word that says whether the
 * rank has failed: then it gives no state, and the next one fails too.
 */
#include "train/trainer_ranks.h"

#include "base/device_memory.h"
#include "nn/state_impl.h"
#include "tape/tape_impl.h"

#include <string.h>

#define OP "trainer"

enum { HEAD_BYTES = 8 };

static size_t bytes_of(const kr_tensor *x)
{
    return x ? kr_dtype_span(x->dtype, kr_count_of(x)) : 0;
}

static size_t state_bytes(const kr_state *state)
{
    size_t n = HEAD_BYTES;
    for (int64_t s = 0; s < state->nslots; s++)
        for (int i = 0; i < kr_slot_kind(state, s)->ncache; i++) n += bytes_of(state->slots[s].tensors[i]);
    return (n + HEAD_BYTES - 1) / HEAD_BYTES * HEAD_BYTES;
}

/* Tensors of a forward pass may be views with any strides. */
static void pack(kr_tape *tape, const kr_state *state, char *bytes)
{
    bytes += HEAD_BYTES;
    for (int64_t s = 0; s < state->nslots; s++)
        for (int i = 0; i < kr_slot_kind(state, s)->ncache; i++) {
            const kr_tensor *x = state->slots[s].tensors[i];
            if (x && !kr_tensor_is_row_major(x)) {
                kr_tensor *flat = kr_new(tape, x->dtype, kr_tensor_shape(x));
                if (!flat || !kr_assign(tape->ctx, flat, x)) return;
                x = flat;
            }
            if (bytes_of(x) && !kr_fetch(tape->ctx, bytes, x->data, bytes_of(x))) return;
            bytes += bytes_of(x);
        }
}

static void unpack(const kr_state *state, const char *bytes)
{
    bytes += HEAD_BYTES;
    for (int64_t s = 0; s < state->nslots; s++)
        for (int i = 0; i < kr_slot_kind(state, s)->ncache; i++) {
            const kr_tensor *x = state->slots[s].tensors[i];
            if (bytes_of(x)) kr_store(state->ctx, x->data, bytes, bytes_of(x));
            bytes += bytes_of(x);
        }
}

/* The tensors of a state that nothing went through have no shapes: they get those of a forward pass. */
static bool shape(kr_trainer *t)
{
    if (!kr_state_slot_is_initial(t->moving, 0)) return true;
    if (!kr_state_slot_is_initial(t->carried, 0)) return kr_state_copy(t->moving, t->carried) == KR_OK;
    if (!t->eval_tape && !(t->eval_tape = kr_tape_create(t->ctx, KR_TAPE_NO_GRAD))) return false;
    const kr_step_start start = kr_step_start_of(t);
    kr_batch batch;
    if (kr_loader_next(t->eval_tape, t->loader, &batch) == KR_OK) {
        const kr_loss_out out = kr_trainer_loss(t, t->eval_tape, &batch, t->carried, NULL, NULL);
        if (out.loss) kr_state_copy(t->moving, out.state);
    }
    kr_trainer_return(t, &start);
    kr_tape_reset(t->eval_tape);
    return !kr_ctx_failed(t->ctx);
}

void kr_carry_free(kr_trainer *t)
{
    if (t->carry_bytes) kr_memory_free(&t->ctx->memory, t->carry_in, 2 * t->carry_bytes);
    t->carry_in = NULL;
    t->carry_bytes = 0;
}

bool kr_carry_begin(kr_trainer *t)
{
    t->has_taken = t->rank == 0 || t->seq;
    t->has_given = t->rank == t->ranks - 1 || t->seq;
    if (!shape(t)) return false;
    const size_t bytes = state_bytes(t->moving);
    if (bytes == t->carry_bytes) return true;
    kr_carry_free(t);
    t->carry_in = kr_memory_alloc_zeroed(&t->ctx->memory, 2 * bytes);
    if (t->carry_in) t->carry_bytes = bytes;
    return kr_require(t->ctx, t->carry_in, KR_ERR_NOMEM, OP ": no memory for %zu bytes of carried states", bytes);
}

bool kr_carry_again(kr_trainer *t)
{
    if (t->rank > 0) unpack(t->moving, t->carry_in);
    return !kr_ctx_failed(t->ctx);
}

bool kr_carry_take(kr_trainer *t)
{
    if (t->has_taken) return true;
    t->has_taken = true;
    return kr_comm_recv(t->comm, t->rank - 1, t->carry_in, t->carry_bytes) == KR_OK &&
           kr_require(t->ctx, t->carry_in[0] == 0, KR_ERR_STATE,
                      OP ".step: rank %d has failed, so that there is no state to begin from", t->rank - 1) &&
           kr_carry_again(t);
}

void kr_carry_give(kr_trainer *t, const kr_state *state)
{
    char *out = t->carry_in + t->carry_bytes;
    if (t->has_given) return;
    t->has_given = true;
    memset(out, 0, HEAD_BYTES);
    if (state) pack(t->tape, state, out);
    out[0] = !state || kr_ctx_failed(t->ctx);
    t->carry_ticket = kr_comm_begin_exchange(t->comm, t->rank + 1, out, t->carry_bytes, -1, NULL, 0);
}

void kr_carry_end(kr_trainer *t)
{
    if (!t->has_taken) kr_comm_recv(t->comm, t->rank - 1, t->carry_in, t->carry_bytes);
    t->has_taken = true;
    kr_carry_give(t, NULL);
    if (t->rank < t->ranks - 1 && !t->seq) kr_comm_end(t->comm, t->carry_ticket);
}

bool kr_carry_share(kr_trainer *t)
{
    char *bytes = t->carry_in + t->carry_bytes;
    if (t->rank == t->ranks - 1) pack(t->tape, t->moving, bytes);
    if (kr_comm_broadcast(t->comm, t->ranks - 1, bytes, t->carry_bytes) != KR_OK) return false;
    unpack(t->moving, bytes);
    return !kr_ctx_failed(t->ctx);
}
