/* batch_read.c - prompts: pieces of several rows in one forward call, packed, or of one row in place.
 *
 * Rows take turns, a piece each, in the order in which they asked. Packed sequences give each row the bits that it has alone.
 */
#include "generate/batch_impl.h"
#include "generate/logits.h"
#include "nn/state_rows.h"

#include <string.h>

/* A piece to be read. */
typedef struct piece {
    kr_row *row;
    int64_t count;
} piece;

/* ---- choosing ---- */

/* The row with the smallest ticket above `after` that has a piece to read; NULL: none. */
static kr_row *next_reader(const kr_row_batch *b, uint64_t after)
{
    kr_row *best = NULL;
    for (kr_row *row = b->first; row; row = row->next)
        if (row->ticket > after && (!best || row->ticket < best->ticket) && kr_row_piece(row) > 0) best = row;
    return best;
}

/* Pieces of at most `most` tokens, but one at least, of different rows. Returns their number. */
static int64_t choose(kr_row_batch *b, int64_t most, piece *pieces)
{
    int64_t n = 0, total = 0;
    uint64_t after = b->reads_after;
    for (int64_t tried = 0; tried < b->nrows; tried++) {
        kr_row *row = next_reader(b, after);
        if (!row) row = next_reader(b, 0);
        if (!row || (n && row == pieces[0].row)) break;
        const int64_t count = kr_row_piece(row);
        if (n && total + count > most) break;
        pieces[n++] = (piece){ row, count };
        total += count;
        after = row->ticket;
    }
    b->reads_after = n ? after : 0;
    return n;
}

/* ---- scores ---- */

/* The log-probabilities of the tokens after those of the piece, from their logits [count w]. False after an error. */
static bool score(kr_row_batch *b, const piece *p, const kr_tensor *logits_cw, kr_row_event *event)
{
    const int64_t n_top = p->row->options.n_top;
    kr_sample *scores = kr_arena_alloc(&b->lists, (size_t)p->count * sizeof *scores);
    kr_sample *top = kr_arena_alloc(&b->lists, (size_t)(p->count * n_top) * sizeof *top);
    if (!kr_require(b->ctx, scores && top, KR_ERR_NOMEM, "no memory for %lld scores", (long long)p->count))
        return false;
    const int32_t *ids = kr_row_queue_ids(&p->row->queue);
    for (int64_t i = 0; i < p->count; i++) {
        kr_logits logits;
        if (!kr_logits_read(&logits, "score", logits_cw, i, b->vocab, b->work.logits, b->work.weights)) return false;
        scores[i] = (kr_sample){ ids[i + 1], kr_logits_logprob(&logits, ids[i + 1]) };
        const kr_sample *best = n_top ? kr_row_batch_top(b, logits_cw, i, n_top) : NULL;
        if (n_top && !best) return false;
        if (n_top) memcpy(top + i * n_top, best, (size_t)n_top * sizeof *top);
    }
    event->n_scores = p->count;
    event->scores = scores;
    event->n_top = n_top;
    event->top = n_top ? top : NULL;
    return true;
}

/* ---- reading ---- */

static bool wants_scores(const kr_row *row)
{
    return row->options.score_prompt && row->is_generating;
}

/* One piece, in place; *logits [count w] if they are wanted. */
static bool read_alone(kr_row_batch *b, const piece *p, kr_tensor **logits)
{
    kr_call call;
    kr_call_init(&call);
    if (!kr_row_own_state(p->row)) return false;
    if (p->row->is_ahead) return true; /* a device has read it */
    if (p->row->logits.data) {         /* likewise */
        if (wants_scores(p->row)) *logits = kr_row_logits_tensor(&p->row->logits, b->tape);
        return !kr_ctx_failed(b->ctx);
    }
    call.advance = p->row->state;
    call.skip_head = !wants_scores(p->row) && !b->net->is_custom;
    call.last_logits_only = !wants_scores(p->row);
    const kr_shape shape = p->count == 1 ? KR_SHAPE(1) : KR_SHAPE(1, p->count);
    kr_tensor *x = kr_from_data(b->tape, KR_DTYPE_I32, shape, kr_row_queue_ids(&p->row->queue));
    kr_network_out out =
        p->count == 1 ? kr_network_step(b->tape, b->net, x, &call) : kr_network_forward(b->tape, b->net, x, &call);
    if (wants_scores(p->row) && out.y) *logits = kr_reshape(b->tape, out.y, KR_SHAPE(p->count, -1));
    return !kr_ctx_failed(b->ctx);
}

/* Ids of all pieces as one row [1 total], and where each begins. */
static bool pack(kr_row_batch *b, int64_t n, const piece *pieces, kr_tensor **x, kr_tensor **starts)
{
    int64_t total = 0, at = 0;
    for (int64_t i = 0; i < n; i++) total += pieces[i].count;
    *x = kr_new(b->tape, KR_DTYPE_I32, KR_SHAPE(1, total));
    *starts = kr_new(b->tape, KR_DTYPE_I32, KR_SHAPE(1, total));
    if (!*x || !*starts) return false;
    int32_t *ids = kr_tensor_data(*x), *start = kr_tensor_data(*starts);
    memset(start, 0, (size_t)total * sizeof *start);
    for (int64_t i = 0; i < n; at += pieces[i++].count) {
        memcpy(ids + at, kr_row_queue_ids(&pieces[i].row->queue), (size_t)pieces[i].count * sizeof *ids);
        start[at] = 1;
    }
    return true;
}

/* Several pieces in one call. States are read, and written when all is well. */
static bool read_packed(kr_row_batch *b, int64_t n, const piece *pieces)
{
    kr_tensor *x, *starts;
    kr_state **states = kr_arena_alloc(&b->lists, (size_t)n * sizeof *states);
    if (!kr_require(b->ctx, states != NULL, KR_ERR_NOMEM, "no memory for %lld states", (long long)n)) return false;
    for (int64_t i = 0; i < n; i++)
        if (!kr_row_own_state(pieces[i].row) || !(states[i] = kr_row_state_view(pieces[i].row))) return false;
    kr_call call;
    kr_call_init(&call);
    call.state = kr_state_join(b->tape, (int)n, states);
    call.skip_head = !b->net->is_custom;
    call.last_logits_only = true;
    if (!call.state || !pack(b, n, pieces, &x, &starts)) return false;
    call.seq_start_bs = starts;
    const kr_network_out out = kr_network_forward(b->tape, b->net, x, &call);
    for (int64_t i = 0; i < n && !kr_ctx_failed(b->ctx); i++) {
        const kr_state *view = kr_state_row_view(b->tape, out.state, i);
        if (view) kr_state_copy(pieces[i].row->state, view);
    }
    return !kr_ctx_failed(b->ctx);
}

/* ---- a call ---- */

static bool can_pack(const kr_row_batch *b, const piece *p)
{
    return !b->net->has_class_tokens && !b->net->is_custom && !wants_scores(p->row) && p->count > 1;
}

/* The row's piece was read: its event, and the end of a row that wants no tokens. */
static bool finish_piece(kr_row_batch *b, const piece *p, const kr_tensor *logits)
{
    kr_row *row = p->row;
    kr_row_event *event = kr_row_batch_event(b, row, KR_ROW_EVENT_PROMPT);
    if (!event) return false;
    event->position = row->n_tokens - row->queue.count;
    event->n_tokens = p->count;
    if (logits && !score(b, p, logits, event)) {
        b->n_events--;
        return false;
    }
    kr_row_was_read(row, p->count);
    b->prompt_tokens += p->count;
    if (!b->state_bytes && row->state) b->state_bytes = kr_state_info_of(row->state).bytes;
    if (row->queue.count == 1 && !row->is_generating) row->ticket = 0;
    if (!kr_row_is_ready(row) || row->options.max_tokens != 0) return true;
    kr_row_end(row, KR_FINISH_LENGTH);
    event->finish = KR_FINISH_LENGTH;
    return true;
}

/* One after another: an error of a row is that row's. */
static bool read_each(kr_row_batch *b, int64_t n, const piece *pieces)
{
    for (int64_t i = 0; i < n; i++) {
        kr_tensor *logits = NULL;
        const bool done = read_alone(b, &pieces[i], &logits) && finish_piece(b, &pieces[i], logits);
        if (!done && !kr_row_fail(pieces[i].row)) return false;
        kr_tape_reset(b->tape);
    }
    return true;
}

/* A faulty row must not fail the others of a packed call: they are read again, one after another. */
static bool read_together(kr_row_batch *b, int64_t n, const piece *pieces)
{
    if (n <= 1) return read_each(b, n, pieces);
    if (!read_packed(b, n, pieces)) {
        if (b->ctx->status != KR_ERR_NUMERIC) return false;
        kr_ctx_clear(b->ctx);
        kr_tape_reset(b->tape);
        return read_each(b, n, pieces);
    }
    for (int64_t i = 0; i < n; i++)
        if (!finish_piece(b, &pieces[i], NULL)) return false;
    kr_tape_reset(b->tape);
    return true;
}

/* Pieces that can be packed come first, in their order. Returns their number. */
static int64_t part(const kr_row_batch *b, int64_t n, piece *pieces, piece *work)
{
    int64_t n_packed = 0, n_alone = 0;
    for (int64_t i = 0; i < n; i++) {
        if (can_pack(b, &pieces[i])) pieces[n_packed++] = pieces[i];
        else work[n_alone++] = pieces[i];
    }
    memcpy(pieces + n_packed, work, (size_t)n_alone * sizeof *work);
    return n_packed;
}

bool kr_row_batch_read(kr_row_batch *b, int64_t most)
{
    for (bool is_first = true; most > 0; is_first = false) {
        piece *pieces = kr_arena_alloc(&b->lists, 2 * (size_t)b->nrows * sizeof *pieces);
        if (!kr_require(b->ctx, pieces != NULL, KR_ERR_NOMEM, "no memory for the pieces of %lld rows",
                        (long long)b->nrows))
            return false;
        const kr_row *first = next_reader(b, b->reads_after);
        if (!first) first = next_reader(b, 0);
        if (!first || (!is_first && kr_row_piece(first) > most)) return true;
        const int64_t n = choose(b, most, pieces), n_packed = part(b, n, pieces, pieces + b->nrows);
        for (int64_t i = 0; i < n; i++) most -= pieces[i].count;
        if (!read_together(b, n_packed, pieces) || !read_each(b, n - n_packed, pieces + n_packed)) return false;
    }
    return true;
}
