/* batch.c - a batch: its options, one step of all rows, and the events of a step. */
#include "base/sized.h"
#include "generate/batch_impl.h"
#include "generate/logits.h"
#include "nn/state_rows.h"
#include "text/tokenizer_impl.h"

#include <stdlib.h>
#include <string.h>

KR_DEFAULTS(kr_row_batch_options) = { .size = sizeof(kr_row_batch_options), .max_rows = 32 };

/* ---- making one ---- */

static bool check_options(kr_ctx *ctx, const char *op, const kr_row_batch_options *o, int64_t unit)
{
    const int64_t most = INT64_C(1) << 20;
    return kr_require(ctx, o->max_rows >= 1 && o->max_rows <= most, KR_ERR_ARG,
                      "%s: max_rows = %lld, but must be from 1 to %lld", op, (long long)o->max_rows, (long long)most) &&
           kr_require(ctx, o->grid >= 0 && (o->grid <= most || o->grid == unit) && o->grid % unit == 0, KR_ERR_ARG,
                      "%s: grid = %lld, but must be a multiple of %lld, the network's chunks, and at most %lld", op,
                      (long long)o->grid, (long long)unit, (long long)most) &&
           kr_require(ctx, o->prefill_tokens >= 0, KR_ERR_ARG, "%s: prefill_tokens = %lld, but must not be negative",
                      op, (long long)o->prefill_tokens);
}

/* Tokens of which pieces are multiples; 1 for a network that gives other bits wherever it is cut. */
static int64_t unit_of(const kr_network *net)
{
    const int64_t grid = kr_network_grid(net);
    return grid > 0 ? grid : 1;
}

/* Long enough for products at full speed, short enough for other rows to wait. */
static int64_t default_grid(const kr_ctx *ctx, int64_t unit)
{
    enum { ON_CPU = 192, ON_DEVICE = 1024 };
    const int64_t least = kr_ctx_on_device(ctx) ? ON_DEVICE : ON_CPU;
    return unit >= least ? unit : (least + unit - 1) / unit * unit;
}

static bool make_parts(kr_row_batch *b, const char *op)
{
    kr_ctx *ctx = b->ctx;
    const size_t rows = (size_t)b->options.max_rows, words = ((size_t)b->vocab + 31) / 32;
    kr_arena_init(&b->arena, &ctx->memory, 1024);
    kr_arena_init(&b->lists, &ctx->memory, 1024);
    b->members = kr_arena_alloc(&b->arena, rows * sizeof(kr_row *));
    b->ids = kr_arena_alloc(&b->arena, rows * sizeof *b->ids);
    b->allowed = kr_arena_alloc(&b->arena, words * sizeof *b->allowed);
    b->tape = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    b->decoder = kr_decoder_create(b->net, b->options.max_rows);
    return kr_require(ctx,
                      b->members && b->ids && b->allowed && kr_sampler_work_init(&b->work, ctx, &b->arena, b->vocab),
                      KR_ERR_NOMEM, "%s: no memory for %zu rows of %lld tokens", op, rows, (long long)b->vocab) &&
           ((b->tape && b->decoder) || kr_blame(ctx, "%s", op));
}

bool kr_row_batch_can_run(kr_ctx *ctx, const char *op, const kr_network *net, const kr_tokenizer *tok)
{
    return !kr_ctx_failed(ctx) && kr_require(ctx, net != NULL, KR_ERR_ARG, "%s: the network is NULL", op) &&
           kr_require(ctx, net->ctx == ctx, KR_ERR_STATE, "%s: the network belongs to another context", op) &&
           kr_require(ctx, net->is_vocab, KR_ERR_ARG, "%s: the network takes features, but must take tokens", op) &&
           kr_require(ctx, !net->is_custom || net->custom.forward, KR_ERR_ARG,
                      "%s: the custom network has no forward; it is for states only", op) &&
           kr_require(ctx, !net->has_length_class_tokens, KR_ERR_UNSUPPORTED,
                      "%s: the network has middle or end class tokens, which need the length of the text in advance",
                      op) &&
           kr_require(ctx, !tok || tok->ctx == ctx, KR_ERR_STATE, "%s: the tokenizer belongs to another context", op);
}

kr_row_batch *kr_row_batch_make(kr_ctx *ctx, const char *op, const kr_network *net, const kr_tokenizer *tok,
                                const kr_row_batch_options *options, bool is_generation)
{
    kr_row_batch *batch = kr_memory_alloc_zeroed(&ctx->memory, sizeof *batch);
    if (!kr_require(ctx, batch != NULL, KR_ERR_NOMEM, "%s: no memory for a batch", op)) return NULL;
    *batch = (kr_row_batch){ .ctx = ctx,
                             .net = net,
                             .tok = tok,
                             .options = *options,
                             .vocab = net->config.vocab_size,
                             .grid = options->grid,
                             .longest = tok ? tok->longest : 0,
                             .is_generation = is_generation,
                             .is_separate = net->has_class_tokens && !is_generation };
    if (make_parts(batch, op)) return batch;
    kr_row_batch_destroy(batch);
    return NULL;
}

kr_row_batch *kr_row_batch_create(kr_ctx *ctx, const kr_network *net, const kr_tokenizer *tok,
                                  const kr_row_batch_options *options)
{
    const char *op = "row_batch.create";
    kr_row_batch_options own;
    if (!kr_row_batch_can_run(ctx, op, net, tok) || !KR_TAKE(ctx, op, kr_row_batch_options, options, &own) ||
        !check_options(ctx, op, &own, unit_of(net)))
        return NULL;
    if (own.grid == 0) own.grid = default_grid(ctx, unit_of(net));
    if (own.prefill_tokens == 0) own.prefill_tokens = 4 * own.grid;
    return kr_row_batch_make(ctx, op, net, tok, &own, false);
}

void kr_row_batch_destroy(kr_row_batch *batch)
{
    if (!batch) return;
    kr_decoder_destroy(batch->decoder);
    kr_device_sampler_destroy(batch->device);
    kr_state_destroy(batch->live);
    batch->live = NULL;
    for (kr_row *row = batch->first; row; row = row->next) row->place = -1;
    while (batch->first) kr_row_destroy(batch->first);
    if (batch->event_capacity)
        kr_memory_free(&batch->ctx->memory, batch->events, (size_t)batch->event_capacity * sizeof *batch->events);
    kr_tape_destroy(batch->tape);
    kr_arena_deinit(&batch->lists);
    kr_arena_deinit(&batch->arena);
    kr_memory_free(&batch->ctx->memory, batch, sizeof *batch);
}

/* ---- events ---- */

kr_row_event *kr_row_batch_event(kr_row_batch *b, kr_row *row, kr_row_event_kind kind)
{
    enum { LEAST = 16 };
    if (b->n_events == b->event_capacity) {
        const int64_t wider = b->event_capacity ? 2 * b->event_capacity : LEAST;
        kr_row_event *own = kr_memory_alloc(&b->ctx->memory, (size_t)wider * sizeof *own);
        if (!kr_require(b->ctx, own != NULL, KR_ERR_NOMEM, "row_batch.step: no memory for %lld events",
                        (long long)wider))
            return NULL;
        if (b->n_events) memcpy(own, b->events, (size_t)b->n_events * sizeof *own);
        if (b->event_capacity) kr_memory_free(&b->ctx->memory, b->events, (size_t)b->event_capacity * sizeof *own);
        b->events = own;
        b->event_capacity = wider;
    }
    b->events[b->n_events] = (kr_row_event){ .kind = kind, .row = row, .text = "" };
    return &b->events[b->n_events++];
}

const kr_sample *kr_row_batch_top(kr_row_batch *b, const kr_tensor *logits, int64_t index, int64_t n_top)
{
    kr_sample *top = kr_arena_alloc(&b->lists, (size_t)n_top * sizeof *top);
    if (!kr_require(b->ctx, top != NULL, KR_ERR_NOMEM, "row_batch.step: no memory for %lld tokens", (long long)n_top))
        return NULL;
    kr_tensor row = *logits;
    row.dims[0] = 1;
    row.data += index * logits->strides[0] * (int64_t)kr_dtype_bytes(logits->dtype);
    return kr_top_tokens(&row, b->vocab, n_top, top) == KR_OK ? top : NULL;
}

/* By row, and of one row in the order in which they happened: positions ascend. */
static int in_order(const void *a, const void *b)
{
    const kr_row_event *x = a, *y = b;
    if (x->row->serial != y->row->serial) return x->row->serial < y->row->serial ? -1 : 1;
    const bool x_fails = x->kind == KR_ROW_EVENT_ERROR, y_fails = y->kind == KR_ROW_EVENT_ERROR;
    if (x_fails != y_fails) return x_fails ? 1 : -1;
    return x->position < y->position ? -1 : x->position > y->position;
}

/* ---- a step ---- */

/* The tokens of every generating or waiting row can be counted without an allocation while they are read. */
static bool reserve_counts(kr_row_batch *b)
{
    for (kr_row *row = b->first; row; row = row->next) {
        const int64_t more = row->queue.count + 1;
        if (row->ticket && (!kr_row_sampler_reserve(&row->sampler, b->ctx, "row_batch.step", more) ||
                            !kr_require(b->ctx, kr_row_queue_reserve(&row->queue, &b->ctx->memory, 1, 1), KR_ERR_NOMEM,
                                        "row_batch.step: no memory for the tokens of a row")))
            return false;
    }
    return true;
}

static bool step(kr_row_batch *b)
{
    return reserve_counts(b) && kr_row_batch_assemble(b) && kr_row_batch_decode(b) &&
           kr_row_batch_read(b, b->options.prefill_tokens);
}

kr_status kr_row_batch_step(kr_row_batch *batch, const kr_row_event **events, int64_t *count)
{
    const char *op = "row_batch.step";
    if (events) *events = NULL;
    if (count) *count = 0;
    if (!batch) return KR_ERR_ARG;
    kr_ctx *ctx = batch->ctx;
    if (kr_ctx_failed(ctx) ||
        !kr_require(ctx, events && count, KR_ERR_ARG, "%s: %s is NULL", op, events ? "count" : "events"))
        return ctx->status;
    batch->n_events = 0;
    kr_arena_reset(&batch->lists);
    kr_tape_reset(batch->tape);
    for (kr_row *row = batch->first; row; row = row->next) kr_held_text_hide(&row->text);
    if (!step(batch)) {
        kr_blame(ctx, "%s", op);
        return ctx->status;
    }
    if (batch->n_events > 1) qsort(batch->events, (size_t)batch->n_events, sizeof *batch->events, in_order);
    *events = batch->events;
    *count = batch->n_events;
    return batch->n_events ? KR_OK : KR_END;
}

kr_status kr_row_batch_set_prefill(kr_row_batch *batch, int64_t prefill_tokens)
{
    if (!batch) return KR_ERR_ARG;
    kr_ctx *ctx = batch->ctx;
    if (!kr_ctx_failed(ctx) &&
        kr_require(ctx, prefill_tokens >= -1, KR_ERR_ARG,
                   "row_batch.set_prefill: prefill_tokens = %lld, but must not be negative, or -1 for no limit",
                   (long long)prefill_tokens))
        batch->options.prefill_tokens = prefill_tokens < 0 ? INT64_MAX : prefill_tokens;
    return ctx->status;
}

/* On other devices, and with products in bf16, the number of rows selects the kernels. A custom network may do anything. */
static bool is_exact(const kr_row_batch *b)
{
    return !kr_ctx_on_device(b->ctx) && !b->net->is_custom && kr_ctx_info_of(b->ctx).products == KR_PRECISION_EXACT;
}

kr_row_batch_stats kr_row_batch_stats_of(const kr_row_batch *batch)
{
    kr_row_batch_stats stats = { .rows = 0 };
    if (!batch) return stats;
    stats = (kr_row_batch_stats){ .rows = batch->nrows,
                                  .prompt_tokens = batch->prompt_tokens,
                                  .tokens = batch->tokens,
                                  .grid = batch->grid,
                                  .state_bytes = batch->state_bytes,
                                  .is_exact = is_exact(batch) };
    for (const kr_row *row = batch->first; row; row = row->next) {
        const bool generates = row->place >= 0 && row->is_generating;
        stats.generating += generates;
        stats.waiting += !generates && row->status == KR_OK && (row->is_generating || row->queue.count > 1);
    }
    return stats;
}
