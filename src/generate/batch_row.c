/* batch_row.c - rows of a batch: feeding, options, forks, and the text that a row has. */
#include "base/sized.h"
#include "generate/batch_impl.h"
#include "nn/state_rows.h"
#include "text/tokenizer_impl.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

KR_DEFAULTS(kr_row_options) = { .size = sizeof(kr_row_options), .max_tokens = 256 };

static kr_status status_of(const kr_row *row)
{
    return row ? row->ctx->status : KR_ERR_ARG;
}

/* Can a call change the row? */
static bool is_usable(const kr_row *row, const char *op)
{
    return row && !kr_ctx_failed(row->ctx) &&
           kr_require(row->ctx, row->status == KR_OK, KR_ERR_STATE,
                      "%s: the row has failed: %s; destroy it, or restore a snapshot", op, row->message);
}

/* ---- making one ---- */

static bool make_text(kr_row *row, size_t stops_longest)
{
    enum { UNFINISHED_MOST = 3 };
    const size_t capacity = row->text.nheld + stops_longest + UNFINISHED_MOST + row->batch->longest;
    return kr_held_text_reserve(&row->text, &row->ctx->memory, capacity);
}

kr_row *kr_row_create(kr_row_batch *batch)
{
    const char *op = "row.create";
    if (!batch || kr_ctx_failed(batch->ctx)) return NULL;
    kr_ctx *ctx = batch->ctx;
    kr_row *row = kr_memory_alloc_zeroed(&ctx->memory, sizeof *row);
    if (!kr_require(ctx, row != NULL, KR_ERR_NOMEM, "%s: no memory for a row", op)) return NULL;
    *row = (kr_row){ .ctx = ctx, .batch = batch, .serial = ++batch->n_serials, .sampled_at = -1, .place = -1 };
    kr_arena_init(&row->arena, &ctx->memory, 1024);
    row->options = kr_row_options_defaults;
    row->sampler_options = kr_sampler_options_defaults;
    row->sampler.options = &row->sampler_options;
    if (!make_text(row, 0)) {
        kr_arena_deinit(&row->arena);
        kr_memory_free(&ctx->memory, row, sizeof *row);
        kr_fail(ctx, KR_ERR_NOMEM, "%s: no memory for the text of a row", op);
        return NULL;
    }
    kr_held_text_hide(&row->text);
    row->prev = batch->last;
    if (batch->last) batch->last->next = row;
    else batch->first = row;
    batch->last = row;
    batch->nrows++;
    return row;
}

static void free_generated(kr_row *row)
{
    if (row->generated_capacity)
        kr_memory_free(&row->ctx->memory, row->generated, (size_t)row->generated_capacity * sizeof *row->generated);
    row->generated = NULL;
    row->generated_capacity = 0;
}

void kr_row_destroy(kr_row *row)
{
    if (!row) return;
    kr_row_batch *batch = row->batch;
    if (row->place >= 0) kr_row_batch_leave(row, false);
    if (row->prev) row->prev->next = row->next;
    else batch->first = row->next;
    if (row->next) row->next->prev = row->prev;
    else batch->last = row->prev;
    batch->nrows--;
    for (int64_t i = 0; i < batch->n_events;) { /* no event names it any more */
        if (batch->events[i].row == row) batch->events[i] = batch->events[--batch->n_events];
        else i++;
    }
    kr_state_destroy(row->state);
    kr_row_logits_free(&row->logits, &row->ctx->memory);
    kr_row_queue_free(&row->queue, &row->ctx->memory);
    kr_token_counts_free(&row->sampler.counts, &row->ctx->memory);
    kr_held_text_free(&row->text, &row->ctx->memory);
    free_generated(row);
    kr_arena_deinit(&row->arena);
    kr_memory_free(&row->ctx->memory, row, sizeof *row);
}

/* ---- feeding ---- */

bool kr_row_check_ids(const kr_row_batch *batch, const char *op, const int32_t *ids, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        if (!kr_require(batch->ctx, ids[i] >= 0 && ids[i] < batch->vocab, KR_ERR_ARG,
                        "%s: ids[%lld] = %d, but the network's tokens are from 0 to %lld", op, (long long)i,
                        (int)ids[i], (long long)batch->vocab - 1))
            return false;
    return true;
}

/* The next feed begins with the last token of the one before. */
static void join_feeds(kr_row *row)
{
    row->queue.n_ends = row->queue.end_from = 0;
    row->feed_start = row->n_tokens - 1;
}

kr_status kr_row_feed(kr_row *row, const int32_t *ids, int64_t count)
{
    const char *op = "row.feed";
    if (!is_usable(row, op)) return status_of(row);
    kr_ctx *ctx = row->ctx;
    if (!kr_require(ctx, count >= 0 && (ids || count == 0), KR_ERR_ARG, "%s: count = %lld, and ids is %s", op,
                    (long long)count, ids ? "a list" : "NULL") ||
        !kr_require(ctx, !row->is_generating, KR_ERR_STATE,
                    "%s: the row generates; wait until it has finished, or call kr_row_cancel first", op))
        return ctx->status;
    if (!kr_row_check_ids(row->batch, op, ids, count)) return ctx->status;
    if (count == 0) return KR_OK;
    if (!kr_require(ctx, kr_row_queue_reserve(&row->queue, &ctx->memory, count, 2), KR_ERR_NOMEM,
                    "%s: no memory for %lld tokens", op, (long long)count))
        return ctx->status;
    if (row->batch->is_generation && row->queue.count == 1 && !kr_row_has_result(row)) join_feeds(row);
    else if (row->queue.count && row->queue.n_ends == 0) kr_row_queue_put_end(&row->queue, row->n_tokens); /* sampled */
    for (int64_t i = 0; i < count; i++) kr_row_queue_put(&row->queue, ids[i]);
    row->n_tokens += count;
    kr_row_queue_put_end(&row->queue, row->n_tokens);
    if (!row->ticket) row->ticket = ++row->batch->n_tickets;
    return KR_OK;
}

int32_t *kr_row_encode(const kr_row_batch *batch, const char *op, const char *creator, bool add_special,
                       const char *text, size_t bytes, int64_t *count, int64_t *capacity)
{
    kr_ctx *ctx = batch->ctx;
    if (!kr_require(ctx, batch->tok != NULL, KR_ERR_ARG, "%s: there is no tokenizer; give one to %s, or feed ids", op,
                    creator) ||
        !kr_require(ctx, text || bytes == 0, KR_ERR_ARG, "%s: text is NULL", op))
        return NULL;
    kr_encode_options options;
    kr_encode_options_init(&options);
    options.add_special = add_special;
    *capacity = kr_tokenizer_max_ids(batch->tok, bytes);
    int32_t *ids = kr_memory_alloc(&ctx->memory, (size_t)*capacity * sizeof *ids);
    if (!kr_require(ctx, ids != NULL, KR_ERR_NOMEM, "%s: no memory for %lld ids", op, (long long)*capacity))
        return NULL;
    *count = kr_tokenizer_encode(batch->tok, text, bytes, &options, ids, *capacity);
    if (*count >= 0) return ids;
    kr_blame(ctx, "%s", op);
    kr_memory_free(&ctx->memory, ids, (size_t)*capacity * sizeof *ids);
    return NULL;
}

kr_status kr_row_feed_text(kr_row *row, const char *text, size_t bytes)
{
    const char *op = "row.feed_text";
    if (!is_usable(row, op)) return status_of(row);
    int64_t count, capacity;
    int32_t *ids =
        kr_row_encode(row->batch, op, "kr_row_batch_create", row->n_tokens == 0, text, bytes, &count, &capacity);
    if (!ids) return row->ctx->status;
    kr_row_feed(row, ids, count);
    kr_memory_free(&row->ctx->memory, ids, (size_t)capacity * sizeof *ids);
    return row->ctx->status;
}

/* Feeds are read in pieces of the grid, counted from their beginning; their last token is a piece of its own. */
int64_t kr_row_piece(const kr_row *row)
{
    const kr_row_queue *q = &row->queue;
    if (q->count <= 1 || row->status != KR_OK) return 0;
    const int64_t at = row->n_tokens - q->count, left = q->ends[q->end_from] - at;
    if (left == 1) return 1;
    const int64_t grid = row->batch->grid, piece = grid - (at - row->feed_start) % grid;
    return piece < left - 1 ? piece : left - 1;
}

void kr_row_was_read(kr_row *row, int64_t count)
{
    kr_row_queue *q = &row->queue;
    int64_t at = row->n_tokens - q->count;
    for (int64_t i = 0; i < count; i++)
        if (at + i != row->sampled_at) kr_row_sampler_accept(&row->sampler, kr_row_queue_ids(q)[i]);
    at += count;
    kr_row_queue_take(q, count);
    row->is_ahead = false;
    kr_row_logits_free(&row->logits, &row->ctx->memory);
    if (q->n_ends && q->ends[q->end_from] == at) {
        row->feed_start = at;
        q->end_from++;
        if (--q->n_ends == 0) q->end_from = 0;
    } else if (q->n_ends == 0) {
        row->feed_start = at;
    }
}

/* ---- options ---- */

static bool check_options(const kr_row_batch *batch, const char *op, const kr_row_options *o)
{
    kr_ctx *ctx = batch->ctx;
    if (!kr_require(ctx, o->max_tokens >= -1, KR_ERR_ARG,
                    "%s: max_tokens = %lld, but must be at least 0, or -1 for no limit", op,
                    (long long)o->max_tokens) ||
        !kr_require(ctx, o->n_top >= 0 && o->n_top <= batch->vocab, KR_ERR_ARG,
                    "%s: n_top = %lld, but must be from 0 to the %lld tokens of the vocabulary", op,
                    (long long)o->n_top, (long long)batch->vocab) ||
        !kr_require(ctx, !o->score_prompt || !batch->net->has_class_tokens, KR_ERR_UNSUPPORTED,
                    "%s: score_prompt is set, but the network has class tokens, whose outputs lie among those of the "
                    "prompt",
                    op) ||
        !kr_require(ctx, o->n_stop_ids >= 0 && (o->n_stop_ids == 0 || o->stop_ids), KR_ERR_ARG,
                    "%s: n_stop_ids = %d, but stop_ids is %s", op, o->n_stop_ids, o->stop_ids ? "a list" : "NULL") ||
        !kr_require(ctx, o->n_stops >= 0 && (o->n_stops == 0 || o->stops), KR_ERR_ARG,
                    "%s: n_stops = %d, but stops is %s", op, o->n_stops, o->stops ? "a list" : "NULL") ||
        !kr_require(ctx, o->n_stops == 0 || batch->tok, KR_ERR_ARG,
                    "%s: n_stops = %d, but stop texts need a tokenizer; give one, or use stop_ids", op, o->n_stops))
        return false;
    for (int i = 0; i < o->n_stop_ids; i++)
        if (!kr_require(ctx, o->stop_ids[i] >= 0 && o->stop_ids[i] < batch->vocab, KR_ERR_ARG,
                        "%s: stop_ids[%d] = %d, but the network's tokens are from 0 to %lld", op, i,
                        (int)o->stop_ids[i], (long long)batch->vocab - 1))
            return false;
    for (int i = 0; i < o->n_stops; i++)
        if (!kr_require(ctx, o->stops[i] && *o->stops[i], KR_ERR_ARG, "%s: stops[%d] is %s", op, i,
                        o->stops[i] ? "empty, which every text begins with" : "NULL"))
            return false;
    return true;
}

static void *copy_of(kr_arena *arena, const void *from, size_t bytes)
{
    void *own = kr_arena_alloc(arena, bytes);
    return own && bytes ? memcpy(own, from, bytes) : own;
}

/* Copies of the lists, in an arena. False if the allocation fails. */
static bool copy_lists(kr_arena *arena, kr_row_options *o, kr_sampler_options *sampler, kr_stops *stops)
{
    const size_t n_stops = (size_t)o->n_stops;
    *stops = (kr_stops){ .count = o->n_stops,
                         .texts = kr_arena_alloc(arena, n_stops * sizeof *stops->texts),
                         .bytes = kr_arena_alloc(arena, n_stops * sizeof *stops->bytes) };
    o->stop_ids = copy_of(arena, o->stop_ids, (size_t)o->n_stop_ids * sizeof *o->stop_ids);
    sampler->biases = copy_of(arena, sampler->biases, (size_t)sampler->n_biases * sizeof *sampler->biases);
    if (!stops->texts || !stops->bytes || !o->stop_ids || !sampler->biases) return false;
    for (size_t i = 0; i < n_stops; i++) {
        stops->bytes[i] = strlen(o->stops[i]);
        if (!(stops->texts[i] = copy_of(arena, o->stops[i], stops->bytes[i] + 1))) return false;
        if (stops->bytes[i] > stops->longest) stops->longest = stops->bytes[i];
    }
    o->stops = stops->texts;
    return true;
}

bool kr_row_settings_make(kr_row_settings *s, const kr_row_batch *batch, const char *op, const char *sampler_op,
                          const kr_row_options *options, kr_arena *arena)
{
    kr_ctx *ctx = batch->ctx;
    s->options = *options;
    s->options.sampler = NULL; /* each row has its own */
    return check_options(batch, op, &s->options) &&
           kr_sampler_take_options(ctx, sampler_op, options->sampler, batch->vocab, &s->sampler) &&
           kr_require(ctx, copy_lists(arena, &s->options, &s->sampler, &s->stops), KR_ERR_NOMEM,
                      "%s: no memory for the options of a row", op);
}

bool kr_row_use(kr_row *row, const char *op, const kr_row_settings *s)
{
    const kr_row_options *o = &s->options;
    if (!kr_require(row->ctx, make_text(row, s->stops.longest), KR_ERR_NOMEM, "%s: no memory for the text of a row",
                    op))
        return false;
    row->options = *o;
    row->options.sampler = &row->sampler_options;
    row->sampler_options = s->sampler;
    row->stops = s->stops;
    row->sampler.stream = o->stream;
    row->sampler.n_sampled = row->sampler.stamp = 0;
    row->is_on_host = o->n_top > 0 || o->process || !kr_row_sampler_fits_device(&row->sampler);
    row->sampler.change = o->process || o->constrain ? kr_row_change_logits : NULL;
    row->sampler.user = row;
    return true;
}

void kr_row_start(kr_row *row)
{
    kr_held_text_hide(&row->text);
    row->text.match_from = row->text.nheld;
    row->n_generated = 0;
    row->finish = KR_FINISH_NONE;
    row->is_generating = true;
    row->ticket = ++row->batch->n_tickets;
}

kr_status kr_row_generate(kr_row *row, const kr_row_options *options)
{
    const char *op = "row.generate";
    if (!is_usable(row, op)) return status_of(row);
    kr_ctx *ctx = row->ctx;
    kr_row_options own;
    kr_row_settings settings;
    kr_arena arena;
    kr_arena_init(&arena, &ctx->memory, 1024);
    if (!KR_TAKE(ctx, op, kr_row_options, options, &own) ||
        !kr_row_settings_make(&settings, row->batch, op, op, &own, &arena) ||
        !kr_require(ctx, row->queue.count > 0, KR_ERR_STATE,
                    "%s: nothing was fed; feed at least one token, such as the model's beginning of a text", op) ||
        !kr_row_keep_logits(row) || !kr_row_use(row, op, &settings)) {
        kr_arena_deinit(&arena);
        return ctx->status;
    }
    kr_arena_deinit(&row->arena);
    row->arena = arena;
    kr_row_start(row);
    return KR_OK;
}

static kr_status process(kr_row *row, double *logits, int64_t vocab)
{
    const kr_row_options *o = &row->options;
    return o->process ? o->process(o->process_user, row->generated, row->n_generated, logits, vocab) : KR_OK;
}

bool kr_row_allow(kr_row *row)
{
    const kr_row_options *o = &row->options;
    const int64_t vocab = row->batch->vocab;
    uint32_t *allowed = row->batch->allowed;
    memset(allowed, 0, (size_t)((vocab + 31) / 32) * sizeof *allowed);
    const kr_status status = o->constrain(o->constrain_user, row->generated, row->n_generated, allowed, vocab);
    return kr_require(row->ctx, status == KR_OK, status == KR_END ? KR_ERR_ARG : status, "the constraint returned %s",
                      kr_status_name(status));
}

bool kr_row_change_logits(void *user, kr_ctx *ctx, double *logits, int64_t vocab)
{
    kr_row *row = user;
    const kr_status processed = process(row, logits, vocab);
    if (!kr_require(ctx, processed == KR_OK, processed == KR_END ? KR_ERR_ARG : processed,
                    "the logits processor returned %s", kr_status_name(processed)))
        return false;
    if (!row->options.constrain) return true;
    if (!kr_row_allow(row)) return false;
    const uint32_t *allowed = row->batch->allowed;
    for (int64_t i = 0; i < vocab; i++)
        if (!(allowed[i / 32] >> (i % 32) & 1)) logits[i] = -(double)INFINITY;
    return true;
}

/* ---- ends ---- */

void kr_row_end(kr_row *row, kr_finish finish)
{
    row->finish = finish;
    row->is_generating = false;
    row->ticket = 0;
    free_generated(row);
}

kr_status kr_row_cancel(kr_row *row)
{
    if (!is_usable(row, "row.cancel")) return status_of(row);
    kr_row_queue *q = &row->queue;
    const int64_t at = row->n_tokens - q->count, n_kept = q->count && at == row->sampled_at;
    row->n_tokens = at + n_kept;
    q->count = n_kept;
    q->n_ends = 0;
    if (n_kept == 0) row->feed_start = at;
    kr_row_end(row, KR_FINISH_NONE);
    return KR_OK;
}

bool kr_row_fail(kr_row *row)
{
    kr_ctx *ctx = row->ctx;
    row->status = ctx->status;
    snprintf(row->message, sizeof row->message, "%s", ctx->message);
    if (row->status == KR_ERR_NOMEM || row->status == KR_ERR_DEVICE || row->status == KR_ERR_INTERNAL) return false;
    kr_ctx_clear(ctx);
    kr_row_end(row, KR_FINISH_NONE);
    if (kr_ctx_failed(ctx)) return false;
    kr_row_event *event = kr_row_batch_event(row->batch, row, KR_ROW_EVENT_ERROR);
    if (!event) return false;
    event->status = row->status;
    event->text = row->message;
    event->bytes = strlen(row->message);
    return true;
}

/* ---- states ---- */

kr_state *kr_row_state_view(kr_row *row)
{
    kr_row_batch *batch = row->batch;
    if (row->place >= 0 && !batch->is_separate)
        return kr_row_batch_flush(batch) ? kr_state_row_view(batch->tape, batch->live, row->place) : NULL;
    if (row->state && !kr_state_is_initial(row->state)) return kr_state_row_view(batch->tape, row->state, 0);
    return kr_network_initial_row(batch->tape, batch->net);
}

bool kr_row_own_state(kr_row *row)
{
    const kr_network *net = row->batch->net;
    if (row->place >= 0 && !row->batch->is_separate) return kr_row_batch_leave(row, true);
    if (row->state) return true;
    row->state = kr_network_state(net, 1);
    if (row->state && net->has_class_tokens) kr_state_announce(row->state, KR_LENGTH_UNKNOWN);
    return row->state && !kr_ctx_failed(row->ctx);
}

/* ---- copies of a row ---- */

static bool copy_text(kr_row *to, const kr_row *from)
{
    kr_memory *memory = &to->ctx->memory;
    if (!kr_row_queue_copy(&to->queue, &from->queue, memory) ||
        !kr_token_counts_copy(&to->sampler.counts, &from->sampler.counts, memory) ||
        !kr_held_text_reserve(&to->text, memory, from->text.capacity))
        return false;
    if (from->text.nheld) memcpy(to->text.held, from->text.held, from->text.nheld);
    to->text.nheld = from->text.nheld;
    to->text.match_from = from->text.match_from;
    kr_held_text_hide(&to->text);
    to->n_tokens = from->n_tokens;
    to->feed_start = from->feed_start;
    to->sampled_at = from->sampled_at;
    if (to->queue.count > 1) to->ticket = ++to->batch->n_tickets;
    return true;
}

/* The state of `from`, in place or not; nothing where it has none. */
bool kr_row_copy_state(kr_row *to, kr_row *from)
{
    const kr_network *net = to->batch->net;
    const bool is_own = from->place < 0 || from->batch->is_separate;
    if (is_own && !from->state) return true;
    const kr_state *view = is_own ? from->state : kr_row_state_view(from);
    to->state = view ? kr_network_state(net, 1) : NULL;
    return to->state && kr_state_copy(to->state, view) == KR_OK;
}

kr_row *kr_row_fork_text(kr_row *row, const char *op)
{
    kr_row *fork = kr_row_create(row->batch);
    if (fork && kr_require(row->ctx, copy_text(fork, row), KR_ERR_NOMEM, "%s: no memory for the text of a row", op) &&
        kr_row_copy_logits(row, &fork->logits))
        return fork;
    kr_row_destroy(fork);
    return NULL;
}

kr_row *kr_row_fork(kr_row *row)
{
    const char *op = "row.fork";
    if (!is_usable(row, op)) return NULL;
    kr_tape_reset(row->batch->tape);
    kr_row *fork = kr_row_fork_text(row, op);
    if (fork && kr_row_copy_state(fork, row)) return fork;
    kr_blame(row->ctx, "%s", op);
    kr_row_destroy(fork);
    return NULL;
}

kr_row_info kr_row_info_of(const kr_row *row)
{
    if (!row) return (kr_row_info){ .status = KR_ERR_ARG };
    return (kr_row_info){ .tokens = row->n_tokens,
                          .queued = row->queue.count,
                          .generated = row->n_generated,
                          .is_generating = row->is_generating,
                          .finish = row->finish,
                          .status = row->status };
}
