/* recompute.c - gradient checkpointing: a part of the graph that is recomputed in the backward pass instead of being
 * stored.
 *
 * Forward runs fn in a no-grad scope and records one node. Backward runs fn again, recorded at the end of the tape,
 * walks those new nodes backwards, and drops them. They refer to the outer tensors themselves, so that all tensors that
 * fn used, listed or not, receive their gradients as usual.
 *
 * Parameters that fn read are saved tensors of the node: one that was written or destroyed since is found before fn
 * runs again.
 */
#include "tape/tape_impl.h"

#include <string.h>

typedef struct recipe {
    kr_checkpoint_fn *fn;
    void *user;
    uint64_t seed, stream; /* the second run repeats the random numbers */
} recipe;

static void checkpoint_backward(kr_back *back);
static const kr_rule checkpoint_rule = { .name = "checkpoint", .backward = checkpoint_backward };

/* In the backward pass: runs fn again, recorded, and seeds its outputs with their gradients. */
static void replay(kr_tape *tape, const recipe *r, kr_tensor *const *in, int n_out, kr_tensor *const *g_out)
{
    kr_tensor *out[KR_KEEP_MAX] = { NULL };
    const uint64_t seed = tape->ctx->seed, stream = tape->ctx->stream;
    tape->ctx->seed = r->seed;
    tape->ctx->stream = r->stream;
    tape->in_backward = false;
    tape->recording = true;
    r->fn(tape, r->user, in, out);
    tape->recording = false;
    tape->in_backward = true;
    tape->ctx->seed = seed;
    tape->ctx->stream = stream;
    for (int i = 0; i < n_out && !kr_ctx_failed(tape->ctx); i++)
        if (g_out[i] && out[i] && out[i]->flags.requires_grad) kr_grad_add(tape, out[i], g_out[i]);
}

static void checkpoint_backward(kr_back *back)
{
    kr_tape *tape = kr_back_tape(back);
    const recipe *r = kr_back_attrs(back);
    const kr_node *node = kr_back_out(back, 0)->node;
    kr_node *stop = tape->last;
    const int64_t nnodes = tape->nnodes;
    const kr_tape_mark mark = kr_tape_mark_now(tape);

    kr_tensor *g_out[KR_KEEP_MAX] = { NULL };
    for (int i = 0; i < node->n_out; i++) g_out[i] = kr_back_grad(back, i);
    kr_temporary *outer = tape->temporaries;
    tape->temporaries = NULL;
    const kr_node *replayed = tape->replayed;
    tape->replayed = node;
    replay(tape, r, node->in, node->n_out, g_out);
    tape->replayed = replayed;
    kr_release_temporaries(tape);
    tape->temporaries = outer;
    if (!kr_ctx_failed(tape->ctx)) kr_run_backward(tape, stop);

    tape->last = stop;
    tape->nnodes = nnodes;
    kr_tape_release(tape, &mark, kr_tape_is_full(tape, &mark));
}

bool kr_add_read(kr_tape *tape, kr_tensor *param)
{
    if (tape->nread && tape->read[tape->nread - 1] == param) return true;
    if (tape->nread == tape->read_capacity) {
        kr_memory *memory = &tape->ctx->memory;
        const int capacity = 2 * tape->read_capacity + 64;
        kr_tensor **list = kr_memory_alloc(memory, (size_t)capacity * sizeof *list);
        if (!list)
            return kr_fail(tape->ctx, KR_ERR_NOMEM, "checkpoint: no memory for a list of %d parameters", capacity);
        if (tape->nread) memcpy(list, tape->read, (size_t)tape->nread * sizeof *list);
        kr_memory_free(memory, tape->read, (size_t)tape->read_capacity * sizeof *list);
        tape->read = list;
        tape->read_capacity = capacity;
    }
    tape->read[tape->nread++] = param;
    return true;
}

/* Headers of parameters that fn destroys stay while the list refers to them. */
static void begin_reads(kr_tape *tape)
{
    tape->lists_reads = true;
    tape->nread = 0;
    tape->ctx->nrecorded++;
}

static void end_reads(kr_tape *tape)
{
    tape->ctx->nrecorded--;
    kr_free_destroyed(tape->ctx);
}

static bool record(kr_tape *tape, const recipe *r, int n_in, kr_tensor *const *in, int n_out, kr_tensor **out)
{
    /* an output that fn returned unchanged gets its own header, so that recording does not modify the original */
    for (int i = 0; i < n_out; i++)
        if (!(out[i] = kr_detach(tape, out[i]))) return false;
    return kr_record_node(tape,
                          &(kr_record_args){ .rule = &checkpoint_rule,
                                             .n_in = n_in,
                                             .in = in,
                                             .n_out = n_out,
                                             .out = out,
                                             .n_saved = tape->nread,
                                             .saved = tape->read,
                                             .attrs = r,
                                             .attrs_bytes = sizeof *r },
                          true);
}

kr_status kr_checkpoint(kr_tape *tape, kr_checkpoint_fn *fn, void *user, int n_in, kr_tensor *const *in, int n_out,
                        kr_tensor **out)
{
    for (int i = 0; out && i < n_out; i++) out[i] = NULL;
    if (!tape) return KR_ERR_ARG;
    kr_ctx *ctx = tape->ctx;
    if (!kr_tape_ready(tape, "checkpoint")) return ctx->status;
    if (!kr_require(ctx, fn && out && n_in >= 0 && (in || n_in == 0), KR_ERR_ARG, "checkpoint: %s is NULL",
                    !fn   ? "fn"
                    : out ? "in"
                          : "out"))
        return ctx->status;
    if (!kr_require(ctx, n_out >= 1 && n_out <= KR_KEEP_MAX, KR_ERR_ARG,
                    "checkpoint: n_out = %d, but must be from 1 to %d", n_out, KR_KEEP_MAX))
        return ctx->status;
    const recipe r = { fn, user, ctx->seed, ctx->stream };
    const bool recording = tape->recording, saw_before = tape->saw_grad;
    kr_tensor **keep[KR_KEEP_MAX];
    for (int i = 0; i < n_out; i++) keep[i] = &out[i];

    tape->saw_grad = false;
    if (recording) begin_reads(tape);
    kr_scope scope = kr_no_grad_begin(tape);
    fn(tape, user, in, out);
    for (int i = 0; i < n_out; i++)
        if (!out[i]) kr_fail(ctx, KR_ERR_ARG, "checkpoint: the function left out[%d] NULL", i);
    kr_no_grad_end(tape, scope, n_out, keep);
    const bool saw = tape->saw_grad;
    tape->saw_grad = saw || saw_before;
    if (recording) tape->lists_reads = false;
    if (!kr_ctx_failed(ctx) && recording && saw) record(tape, &r, n_in, in, n_out, out);
    if (recording) end_reads(tape);
    return ctx->status;
}
