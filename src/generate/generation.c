/* generation.c - one prompt and its continuations: the rows of a batch.
 *
 * The last token of a row, fed or sampled, stays unread: the next call reads it. The first row reads the prompt for all;
 * the first step forks it. A feed ends what rows generate, gives all of them the same tokens, reads them, and lets them
 * generate again: by the same options, with the same random streams.
 */
#include "generate/generation_impl.h"

static kr_status status_of(const kr_generation *g)
{
    return g ? g->ctx->status : KR_ERR_ARG;
}

/* Checks at the start of a call. */
static bool begin(kr_generation *g, const char *op)
{
    kr_tape_reset(g->batch->tape);
    return kr_require(
        g->ctx, !g->is_inconsistent, KR_ERR_STATE,
        "%s: an earlier call failed midway; load a file with kr_generation_load, or create a new generation", op);
}

/* A step of the batch, whose tokens become results. False after an error: that of a row is the generation's. */
static bool step_batch(kr_generation *g)
{
    const kr_row_event *events;
    int64_t count;
    const kr_status status = kr_row_batch_step(g->batch, &events, &count);
    if (status != KR_OK) return status == KR_END;
    for (int64_t i = 0; i < count; i++) {
        const kr_row_event *e = &events[i];
        if (e->kind == KR_ROW_EVENT_ERROR) return kr_fail(g->ctx, e->status, "%s", e->text);
        if (e->kind != KR_ROW_EVENT_TOKEN) continue;
        g->made[e->row->options.stream] = (kr_generated){ true, e->sample, e->text, e->bytes, e->finish };
        g->tokens++;
    }
    return true;
}

/* ---- reading a prompt ---- */

/* Tokens that the rows are fed at once: they and the last one before, if it is unread, are one chunk. */
static int64_t next_chunk(const kr_generation *g, int64_t left)
{
    const kr_row *row = g->rows[0];
    const bool has_pending = row->queue.count > 0 && !kr_row_has_result(row);
    const int64_t most = g->batch->grid + !has_pending;
    return left < most ? left : most;
}

static bool read_prompt(kr_generation *g, const int32_t *ids, int64_t count)
{
    if (!kr_row_batch_settle(g->batch)) return false;
    for (int64_t r = 0; r < g->nrows && g->rows[r]; r++) kr_row_end(g->rows[r], KR_FINISH_NONE);
    for (int64_t at = 0, n; at < count; at += n) {
        n = next_chunk(g, count - at);
        for (int64_t r = 0; r < g->nrows && g->rows[r]; r++)
            if (kr_row_feed(g->rows[r], ids + at, n) != KR_OK) return false;
        if (!step_batch(g)) return false;
    }
    for (int64_t r = 0; r < g->nrows && g->rows[r]; r++) {
        if (!kr_row_sampler_reserve(&g->rows[r]->sampler, g->ctx, "row", 1)) return false;
        kr_row_sampler_accept(&g->rows[r]->sampler, ids[count - 1]); /* which is unread */
        g->prompt_tokens += count;
    }
    return true;
}

/* All rows generate from here on. */
static void start_rows(kr_generation *g)
{
    for (int64_t r = 0; r < g->nrows && g->rows[r]; r++) {
        kr_row_start(g->rows[r]);
        if (g->settings.options.max_tokens == 0) kr_row_end(g->rows[r], KR_FINISH_LENGTH);
    }
    for (int64_t r = 0; r < g->nrows; r++) kr_generation_clear_made(g, r);
}

kr_status kr_generation_feed(kr_generation *g, const int32_t *ids, int64_t count)
{
    const char *op = "generation.feed";
    if (!g || kr_ctx_failed(g->ctx) || !begin(g, op) ||
        !kr_require(g->ctx, count >= 0 && (ids || count == 0), KR_ERR_ARG, "%s: count = %lld, and ids is %s", op,
                    (long long)count, ids ? "a list" : "NULL") ||
        !kr_row_check_ids(g->batch, op, ids, count))
        return status_of(g);
    g->is_inconsistent = true;
    if (count == 0 || read_prompt(g, ids, count)) {
        start_rows(g);
        g->is_inconsistent = false;
    } else {
        kr_blame(g->ctx, "%s", op);
    }
    return status_of(g);
}

kr_status kr_generation_feed_text(kr_generation *g, const char *text, size_t bytes)
{
    if (!g || kr_ctx_failed(g->ctx)) return status_of(g);
    int64_t count, capacity;
    const bool is_first = g->rows[0]->n_tokens == 0; /* special tokens before a text are added once, at its beginning */
    int32_t *ids = kr_row_encode(g->batch, "generation.feed_text", "kr_generation_create", is_first, text, bytes,
                                 &count, &capacity);
    if (!ids) return status_of(g);
    kr_generation_feed(g, ids, count);
    kr_memory_free(&g->ctx->memory, ids, (size_t)capacity * sizeof *ids);
    return status_of(g);
}

/* ---- one token for each row ---- */

/* Each row has its own state from now on. */
static bool fork_rows(kr_generation *g)
{
    if (g->nrows == 1 || g->rows[1]) return true;
    for (int64_t r = 1; r < g->nrows; r++) {
        g->rows[r] = kr_generation_add_row(g, "fork", r, g->rows[0]);
        if (!g->rows[r]) return false;
        kr_row_start(g->rows[r]);
    }
    return kr_row_batch_join_copies(g->rows[0], g->nrows - 1, g->rows + 1);
}

kr_status kr_generation_next(kr_generation *g)
{
    const char *op = "generation.next";
    if (!g) return KR_ERR_ARG;
    if (kr_ctx_failed(g->ctx) || !begin(g, op) ||
        !kr_require(g->ctx, g->rows[0]->queue.count > 0, KR_ERR_STATE,
                    "%s: no prompt was fed; feed at least one token, such as BOS", op))
        return g->ctx->status;
    bool is_live = false;
    for (int64_t r = 0; r < g->nrows; r++) {
        kr_generation_clear_made(g, r);
        is_live = is_live || kr_generation_row_of(g, r)->is_generating;
    }
    if (!is_live) return KR_END;
    g->is_inconsistent = true;
    if (!fork_rows(g) || !kr_row_batch_catch_up(g->batch) || !step_batch(g)) {
        kr_blame(g->ctx, "%s", op);
        return g->ctx->status;
    }
    g->is_inconsistent = false;
    return KR_OK;
}

const kr_generated *kr_generation_row(const kr_generation *g, int64_t row)
{
    return g && row >= 0 && row < g->nrows ? &g->made[row] : NULL;
}

kr_generation_stats kr_generation_stats_of(const kr_generation *g)
{
    return (kr_generation_stats){ .prompt_tokens = g ? g->prompt_tokens : 0, .tokens = g ? g->tokens : 0 };
}
