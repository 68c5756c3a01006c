/* batch_decode.c - generating rows: their states lie side by side, and one step of the network reads a token of each.
 *
 * A row that joins takes the place behind the last one; when a row leaves, the last one moves to its place.
 */
#include "generate/batch_impl.h"
#include "nn/state_rows.h"

#include <string.h>

/* ---- places ---- */

/* Capacity for one more row: twice as many as before, up to max_rows. */
static bool make_place(kr_row_batch *b, const kr_state *like)
{
    if (b->live && b->n_members < b->live->capacity) return true;
    int64_t capacity = b->live ? 2 * b->live->capacity : 1;
    if (capacity > b->options.max_rows) capacity = b->options.max_rows;
    kr_state *wider = kr_state_rows_create(b->ctx, "row_batch", like, capacity);
    if (!wider) return false;
    for (int64_t i = 0; i < b->n_members; i++)
        if (!kr_state_row_copy(wider, i, b->live, i)) {
            kr_state_destroy(wider);
            return false;
        }
    if (b->live) kr_decoder_forget(b->decoder, b->live);
    kr_state_destroy(b->live);
    b->live = wider;
    return true;
}

static bool join(kr_row *row)
{
    kr_row_batch *b = row->batch;
    if (b->is_separate) {
        if (!kr_row_own_state(row)) return false;
    } else {
        const kr_state *view = kr_row_state_view(row);
        if (!view || !kr_row_batch_flush(b) || !make_place(b, view) ||
            !kr_state_row_copy(b->live, b->n_members, view, 0))
            return false;
        kr_state_destroy(row->state);
        row->state = NULL;
    }
    b->members[b->n_members] = row;
    row->place = b->n_members++;
    if (!b->is_separate) kr_state_rows_use(b->live, b->n_members);
    return true;
}

/* The row's own copy of its place in the batch's state. */
static kr_state *copy_out(kr_row *row)
{
    kr_state *state = kr_network_state(row->batch->net, 1);
    const kr_state *view = state ? kr_state_row_view(row->batch->tape, row->batch->live, row->place) : NULL;
    if (view && kr_state_copy(state, view) == KR_OK) return state;
    kr_state_destroy(state);
    return NULL;
}

bool kr_row_batch_leave(kr_row *row, bool keep)
{
    kr_row_batch *b = row->batch;
    const int64_t place = row->place, last = b->n_members - 1;
    if (!b->is_separate) {
        if (!kr_row_batch_flush(b)) return false;
        kr_state *own = keep ? copy_out(row) : NULL;
        if (keep && !own) return false;
        row->state = own;
        if (place != last && !kr_state_row_copy(b->live, place, b->live, last)) return false;
        kr_state_rows_use(b->live, last);
    }
    b->members[place] = b->members[last];
    b->members[place]->place = place;
    row->place = -1;
    b->n_members = last;
    return true;
}

/* The waiting row with the smallest ticket; NULL: none. */
static kr_row *next_ready(const kr_row_batch *b)
{
    kr_row *best = NULL;
    for (kr_row *row = b->first; row; row = row->next)
        if (row->place < 0 && kr_row_is_ready(row) && (!best || row->ticket < best->ticket)) best = row;
    return best;
}

/* A row that has no token to generate has read its prompt: it ends. */
static bool end_empty(kr_row *row)
{
    kr_row_event *event = kr_row_batch_event(row->batch, row, KR_ROW_EVENT_PROMPT);
    if (!event) return false;
    event->position = row->n_tokens - 1;
    event->finish = KR_FINISH_LENGTH;
    kr_row_end(row, KR_FINISH_LENGTH);
    return true;
}

bool kr_row_batch_assemble(kr_row_batch *b)
{
    int64_t n_ready = 0;
    for (kr_row *row = b->first; row; row = row->next) {
        if (kr_row_is_ready(row) && row->options.max_tokens == 0 && !end_empty(row)) return false;
        n_ready += kr_row_is_ready(row);
    }
    if (n_ready == 0) return true; /* no row needs a place */
    for (int64_t i = 0; i < b->n_members;) {
        if (kr_row_is_ready(b->members[i])) i++;
        else if (!kr_row_batch_leave(b->members[i], b->members[i]->status == KR_OK)) return false;
    }
    while (b->n_members < b->options.max_rows) {
        kr_row *row = next_ready(b);
        if (!row) break;
        if (!join(row)) return false;
    }
    return true;
}

/* ---- one token for each ---- */

static bool is_stop_id(const kr_row *row, int32_t id)
{
    for (int i = 0; i < row->options.n_stop_ids; i++)
        if (row->options.stop_ids[i] == id) return true;
    return false;
}

/* The row's text with one more token; true if a stop is complete. */
static bool put_text(kr_row *row, int32_t id)
{
    const kr_tokenizer *tok = row->batch->tok;
    size_t bytes = 0;
    const char *text = tok && !kr_tokenizer_is_special(tok, id) ? kr_tokenizer_token(tok, id, &bytes) : NULL;
    return kr_held_text_put(&row->text, &row->stops, text, text ? bytes : 0);
}

/* For callbacks, which are given all generated tokens. */
static bool keep_generated(kr_row *row, int32_t id)
{
    enum { LEAST = 64 };
    if (!row->sampler.change) return true;
    if (row->n_generated == row->generated_capacity) {
        const int64_t wider = row->generated_capacity ? 2 * row->generated_capacity : LEAST;
        int32_t *own = kr_memory_alloc(&row->ctx->memory, (size_t)wider * sizeof *own);
        if (!kr_require(row->ctx, own != NULL, KR_ERR_NOMEM, "no memory for %lld tokens of a row", (long long)wider))
            return false;
        if (row->generated_capacity) {
            memcpy(own, row->generated, (size_t)row->n_generated * sizeof *own);
            kr_memory_free(&row->ctx->memory, row->generated, (size_t)row->generated_capacity * sizeof *own);
        }
        row->generated = own;
        row->generated_capacity = wider;
    }
    row->generated[row->n_generated] = id;
    return true;
}

static kr_finish finish_of(kr_row *row, int32_t id)
{
    const int64_t most = row->options.max_tokens;
    if (is_stop_id(row, id)) return KR_FINISH_STOP_ID;
    if (put_text(row, id)) return KR_FINISH_STOP;
    return most >= 0 && row->n_generated >= most ? KR_FINISH_LENGTH : KR_FINISH_NONE;
}

/* The pending token was read, and this one follows. The queue and the counts have capacity for it. */
static bool take_sample(kr_row *row, kr_sample sample, const kr_sample *top)
{
    kr_row_batch *b = row->batch;
    kr_row_event *event = kr_row_batch_event(b, row, KR_ROW_EVENT_TOKEN);
    if (!event || !keep_generated(row, sample.id)) return false;
    kr_row_sampler_count(&row->sampler, sample.id);
    row->sampled_at = row->n_tokens++;
    kr_row_queue_put(&row->queue, sample.id);
    row->n_generated++;
    b->tokens++;
    const kr_finish finish = finish_of(row, sample.id);
    if (finish != KR_FINISH_NONE) {
        kr_held_text_end(&row->text);
        kr_row_end(row, finish);
    }
    *event = (kr_row_event){ .kind = KR_ROW_EVENT_TOKEN,
                             .row = row,
                             .position = row->sampled_at,
                             .n_tokens = 1,
                             .sample = sample,
                             .text = row->text.shown,
                             .bytes = row->text.nshown,
                             .finish = finish,
                             .n_top = row->options.n_top,
                             .top = top };
    return true;
}

/* Samples for the row from row `index` of the logits; an error is the row's. */
static bool sample_row(kr_row *row, const kr_tensor *logits, int64_t index)
{
    kr_row_batch *b = row->batch;
    const bool was_prompt = row->n_tokens - 1 != row->sampled_at;
    kr_row_was_read(row, 1);
    b->prompt_tokens += was_prompt;
    const int64_t n_top = row->options.n_top;
    kr_sample sample;
    const kr_sample *top = NULL;
    return kr_sampler_sample_row(&b->work, &row->sampler, "row.sample", logits, index, &sample) &&
           (n_top == 0 || (top = kr_row_batch_top(b, logits, index, n_top)) != NULL) && take_sample(row, sample, top);
}

/* Logits [n w] of the pending tokens of n rows, whose state is advanced. NULL after an error. */
static kr_tensor *run(kr_row_batch *b, kr_state *state, int64_t n, kr_row *const *rows)
{
    for (int64_t i = 0; i < n; i++) b->ids[i] = *kr_row_queue_ids(&rows[i]->queue);
    return kr_decoder_step(b->decoder, state, b->ids);
}

/* A failed step has left the states of its rows undefined. */
static bool fail_members(kr_row_batch *b)
{
    for (int64_t i = 0; i < b->n_members; i++) {
        b->members[i]->status = b->ctx->status;
        strcpy(b->members[i]->message, "a step of all rows failed midway");
        kr_row_end(b->members[i], KR_FINISH_NONE);
    }
    return false;
}

/* Rows one after another, each with its own state. */
static bool decode_separately(kr_row_batch *b)
{
    for (int64_t i = 0; i < b->n_members; i++) {
        kr_row *row = b->members[i];
        const kr_tensor *logits = run(b, row->state, 1, &row);
        if ((!logits || !sample_row(row, logits, 0)) && !kr_row_fail(row)) return false;
        kr_tape_reset(b->tape);
    }
    return true;
}

bool kr_row_batch_decode(kr_row_batch *b)
{
    int64_t n_ready = 0;
    for (int64_t i = 0; i < b->n_members; i++) n_ready += kr_row_is_ready(b->members[i]);
    if (n_ready == 0) return true;
    if (b->is_separate) return decode_separately(b);
    const kr_tensor *logits = run(b, b->live, b->n_members, b->members);
    if (!logits) return fail_members(b);
    for (int64_t i = 0; i < b->n_members; i++)
        if (!sample_row(b->members[i], logits, i) && !kr_row_fail(b->members[i])) return fail_members(b);
    kr_tape_reset(b->tape);
    return true;
}
