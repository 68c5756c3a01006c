/* batch_ahead.c - results that a device computed ahead of the calls.
 *
 * A device samples, and its next step is queued before the host has the tokens. When the next call is another one, or rows
 * join or leave, the network has already read the last token of every row of that step, which is in the row's queue still,
 * and has sampled the one after it. A row that goes on by the same rules keeps the sample (`ahead`) and generates it in
 * its next step. A row that leaves, is copied, or gets other rules keeps the logits instead: what it generates, or what is
 * scored, begins with them, and the token is not read again. Rows of a generation keep their rules, and so the sample.
 */
#include "base/device_memory.h"
#include "generate/batch_impl.h"

#include <string.h>

/* ---- logits of a row ---- */

static size_t bytes_of(const kr_row_logits *logits)
{
    return (size_t)logits->width * kr_dtype_bytes(logits->dtype);
}

void kr_row_logits_free(kr_row_logits *logits, kr_memory *memory)
{
    if (logits->data) kr_memory_free(memory, logits->data, bytes_of(logits));
    *logits = (kr_row_logits){ .data = NULL };
}

bool kr_row_logits_create(kr_row_logits *logits, kr_ctx *ctx, kr_dtype dtype, int64_t width)
{
    *logits = (kr_row_logits){ dtype, width, NULL };
    logits->data = kr_memory_alloc(&ctx->memory, bytes_of(logits));
    return kr_require(ctx, logits->data != NULL, KR_ERR_NOMEM, "no memory for %lld logits of a row", (long long)width);
}

bool kr_row_logits_copy(kr_row_logits *to, const kr_row_logits *from, kr_ctx *ctx)
{
    *to = (kr_row_logits){ .data = NULL };
    if (!from->data) return true;
    if (!kr_row_logits_create(to, ctx, from->dtype, from->width)) return false;
    memcpy(to->data, from->data, bytes_of(from));
    return true;
}

kr_tensor *kr_row_logits_tensor(const kr_row_logits *logits, kr_tape *tape)
{
    return kr_from_data(tape, logits->dtype, KR_SHAPE(1, logits->width), logits->data);
}

/* Row `at` of logits [b w]. */
static bool fetch(kr_ctx *ctx, const kr_tensor *x, int64_t at, kr_row_logits *to)
{
    return kr_row_logits_create(to, ctx, x->dtype, x->dims[1]) &&
           kr_fetch(ctx, to->data, x->data + at * x->strides[0] * (int64_t)kr_dtype_bytes(x->dtype), bytes_of(to));
}

/* ---- taking ---- */

bool kr_row_batch_settle(kr_row_batch *b)
{
    if (!kr_decoder_is_ahead(b->decoder)) return true;
    if (!kr_decoder_wait(b->decoder)) return false;
    const kr_dtype dtype = b->decoder->logits->dtype;
    for (int64_t i = 0; i < b->n_members; i++) {
        kr_row *row = b->members[i];
        kr_device_sampler_take(b->device, dtype, i, &row->ahead.id, &row->ahead.logprob);
        row->is_ahead = row->status == KR_OK;
        row->ahead_at = i;
    }
    return true;
}

/* The last token of a row that is not in place, read by itself. */
static bool read_last(kr_row *row)
{
    kr_row_batch *b = row->batch;
    kr_call call;
    kr_call_init(&call);
    if (!kr_row_own_state(row)) return false;
    call.advance = row->state;
    kr_tensor *x = kr_from_data(b->tape, KR_DTYPE_I32, KR_SHAPE(1), kr_row_queue_ids(&row->queue));
    const kr_tensor *logits = kr_network_step(b->tape, b->net, x, &call).y;
    if (logits && fetch(b->ctx, logits, 0, &row->logits)) return true;
    kr_row_logits_free(&row->logits, &b->ctx->memory);
    return false;
}

bool kr_row_batch_catch_up(kr_row_batch *b)
{
    bool is_ahead = kr_decoder_is_ahead(b->decoder);
    for (int64_t i = 0; i < b->n_members; i++) is_ahead = is_ahead || b->members[i]->is_ahead;
    for (kr_row *row = b->first; is_ahead && row; row = row->next)
        if (row->place < 0 && kr_row_is_ready(row) && !kr_row_has_result(row) && !read_last(row)) return false;
    return true;
}

bool kr_row_keep_logits(kr_row *row)
{
    if (row->place >= 0 && !kr_row_batch_settle(row->batch)) return false;
    if (!row->is_ahead) return true;
    if (row->batch->is_generation) {
        row->ahead_at = -1;
        return true;
    }
    row->is_ahead = !fetch(row->ctx, row->batch->decoder->logits, row->ahead_at, &row->logits);
    if (row->is_ahead) kr_row_logits_free(&row->logits, &row->ctx->memory);
    return !row->is_ahead;
}

bool kr_row_copy_logits(kr_row *row, kr_row_logits *copy)
{
    *copy = (kr_row_logits){ .data = NULL };
    if (row->place >= 0 && !kr_row_batch_settle(row->batch)) return false;
    const bool done = row->is_ahead ? fetch(row->ctx, row->batch->decoder->logits, row->ahead_at, copy)
                                    : kr_row_logits_copy(copy, &row->logits, row->ctx);
    if (!done) kr_row_logits_free(copy, &row->ctx->memory);
    return done;
}
