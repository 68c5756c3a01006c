/* batch_decode.c - generating rows: their states lie side by side, and one step of the network reads a token of each.
 *
 * A row that joins takes the place behind the last one; when a row leaves, the last one moves to its place.
 *
 * A device samples for the rows whose logits the host need not read, and is one step ahead while they stay the same: the next
 * step is queued before the tokens of this one are taken. Rows that join after such a step wait for the next one; what the
 * others have by then is in batch_ahead.c.
 */
#include "generate/batch_impl.h"
#include "nn/state_rows.h"

#include <string.h>

/* ---- places ---- */

/* Rows that are allocated first: those that are ready. On a device all of them, if they take a small part of its memory:
 * steps are captured for the addresses of a state, which change when it grows. */
static int64_t first_capacity(const kr_row_batch *b, const kr_state *like, int64_t n_ready)
{
    enum { SMALL_PART = 16 };
    const kr_device *device = b->ctx->device;
    size_t free = 0, all = 0;
    const bool is_known =
        kr_ctx_on_device(b->ctx) && device->vtable->memory_info && device->vtable->memory_info(device, &free, &all);
    const size_t rows = (size_t)b->options.max_rows;
    return is_known && kr_state_info_of(like).bytes <= free / SMALL_PART / rows ? b->options.max_rows : n_ready;
}

/* Capacity for one more row: twice as many as before, up to max_rows. */
static bool make_place(kr_row_batch *b, const kr_state *like, int64_t n_ready)
{
    if (b->live && b->n_members < b->live->capacity) return true;
    int64_t capacity = b->live ? 2 * b->live->capacity : first_capacity(b, like, n_ready);
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

/* The row's own copy of its place in the batch's state. */
static kr_state *copy_out(kr_row *row)
{
    kr_state *state = kr_network_state(row->batch->net, 1);
    const kr_state *view = state ? kr_state_row_view(row->batch->tape, row->batch->live, row->place) : NULL;
    if (view && kr_state_copy(state, view) == KR_OK) return state;
    kr_state_destroy(state);
    return NULL;
}

static void destroy_live(kr_row_batch *b)
{
    if (b->live) kr_decoder_forget(b->decoder, b->live);
    kr_state_destroy(b->live);
    b->live = NULL;
}

/* From now on each row has its own state: the members get theirs. */
static bool separate(kr_row_batch *b)
{
    if (!kr_row_batch_flush(b)) return false;
    for (int64_t i = 0; i < b->n_members; i++)
        if (!(b->members[i]->state = copy_out(b->members[i]))) return false;
    b->is_separate = true;
    destroy_live(b);
    return true;
}

/* The row's class tokens are at its own position. If that is not the members', states are separate from now on. */
static bool match_class_tokens(kr_row *row)
{
    kr_row_batch *b = row->batch;
    if (!kr_row_own_state(row)) return false;
    if (b->n_members == 0) destroy_live(b); /* its position is that of rows that have left */
    return !b->live || kr_state_same_cursors(b->live, row->state) || separate(b);
}

/* A place behind the last row, with a copy of the row's state. */
static bool join_live(kr_row *row, int64_t n_ready)
{
    kr_row_batch *b = row->batch;
    const kr_state *view = kr_row_batch_settle(b) ? kr_row_state_view(row) : NULL;
    if (!view || !kr_row_batch_flush(b) || !make_place(b, view, n_ready) ||
        !kr_state_row_copy(b->live, b->n_members, view, 0))
        return false;
    kr_state_destroy(row->state);
    row->state = NULL;
    return true;
}

/* n_ready: rows that generate in this step. */
static bool join(kr_row *row, int64_t n_ready)
{
    kr_row_batch *b = row->batch;
    if (b->net->has_class_tokens && !match_class_tokens(row)) return false;
    if (!b->is_separate && !join_live(row, n_ready)) return false;
    b->members[b->n_members] = row;
    row->place = b->n_members++;
    if (!b->is_separate) kr_state_rows_use(b->live, b->n_members);
    return true;
}

bool kr_row_batch_join_copies(kr_row *row, int64_t n, kr_row *const *copies)
{
    kr_row_batch *b = row->batch;
    if (row->place < 0 && !join(row, 1 + n)) return false;
    if (b->is_separate) {
        for (int64_t i = 0; i < n; i++)
            if (!kr_row_copy_state(copies[i], row)) return false;
        return true;
    }
    if (!kr_state_row_copy_to(b->live, b->n_members, n, b->live, row->place)) return false;
    for (int64_t i = 0; i < n; i++) {
        b->members[b->n_members] = copies[i];
        copies[i]->place = b->n_members++;
    }
    kr_state_rows_use(b->live, b->n_members);
    return true;
}

/* Its state and place in the device's sampler are moved; without them a row is of no use. */
static bool move_row(kr_row *row, int64_t place)
{
    kr_row_batch *b = row->batch;
    if (kr_state_row_copy(b->live, place, b->live, row->place) &&
        (!b->device || kr_device_sampler_move(b->device, place, row->place)))
        return true;
    row->status = b->ctx->status;
    strcpy(row->message, "its state was lost when another row left");
    kr_row_end(row, KR_FINISH_NONE);
    return false;
}

bool kr_row_batch_leave(kr_row *row, bool keep)
{
    kr_row_batch *b = row->batch;
    const int64_t place = row->place, last = b->n_members - 1;
    bool done = true;
    if (!b->is_separate) {
        done = kr_row_batch_settle(b) && kr_row_batch_flush(b) && (!keep || kr_row_keep_logits(row));
        kr_state *own = done && keep ? copy_out(row) : NULL;
        if (keep && !own) return false;
        row->state = own;
        row->is_ahead = row->is_ahead && keep;
        if (b->device) kr_device_sampler_clear(b->device, place);
        if (place != last) done = move_row(b->members[last], place) && done;
        kr_state_rows_use(b->live, last);
    }
    b->members[place] = b->members[last];
    b->members[place]->place = place;
    row->place = -1;
    b->n_members = last;
    return done;
}

void kr_row_batch_clear(kr_row_batch *b)
{
    kr_decoder_drop_samples(b->decoder);
    for (int64_t i = 0; i < b->n_members; i++) {
        if (b->device) kr_device_sampler_clear(b->device, i);
        b->members[i]->place = -1;
    }
    b->n_members = 0;
    destroy_live(b);
}

/* The waiting row with the smallest ticket; NULL: none. */
static kr_row *next_ready(const kr_row_batch *b)
{
    kr_row *best = NULL;
    for (kr_row *row = b->first; row; row = row->next)
        if (row->place < 0 && kr_row_is_ready(row) && !kr_row_has_result(row) && (!best || row->ticket < best->ticket))
            best = row;
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

/* Does it stay where it is? */
static bool stays(const kr_row *row)
{
    return kr_row_is_ready(row) && !row->logits.data;
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
        if (stays(b->members[i])) i++;
        else if (!kr_row_batch_leave(b->members[i], b->members[i]->status == KR_OK)) return false;
    }
    while (b->n_members < b->options.max_rows) {
        kr_row *row = next_ready(b);
        if (!row) break;
        if (!join(row, n_ready)) return false;
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

/* The pending token was read. */
static void note_read(kr_row *row)
{
    row->batch->prompt_tokens += row->n_tokens - 1 != row->sampled_at;
    kr_row_was_read(row, 1);
}

/* Samples for the row from row `index` of the logits; an error is the row's. */
static bool sample_row(kr_row *row, const kr_tensor *logits, int64_t index)
{
    kr_row_batch *b = row->batch;
    note_read(row);
    const int64_t n_top = row->options.n_top;
    kr_sample sample;
    const kr_sample *top = NULL;
    return kr_sampler_sample_row(&b->work, &row->sampler, "row.sample", logits, index, &sample) &&
           (n_top == 0 || (top = kr_row_batch_top(b, logits, index, n_top)) != NULL) && take_sample(row, sample, top);
}

/* ids of the pending tokens of n rows. */
static const int32_t *pending_ids(kr_row_batch *b, int64_t n, kr_row *const *rows)
{
    for (int64_t i = 0; i < n; i++) b->ids[i] = *kr_row_queue_ids(&rows[i]->queue);
    return b->ids;
}

/* A failed step has left the states of its rows undefined. */
static bool fail_members(kr_row_batch *b)
{
    kr_decoder_drop_samples(b->decoder);
    for (int64_t i = 0; i < b->n_members; i++) {
        kr_row *row = b->members[i];
        row->status = b->ctx->status;
        strcpy(row->message, "a step of all rows failed midway");
        row->is_ahead = false;
        if (b->device) kr_device_sampler_clear(b->device, i);
        kr_row_end(row, KR_FINISH_NONE);
    }
    return false;
}

/* Rows one after another, each with its own state. */
static bool decode_separately(kr_row_batch *b)
{
    for (int64_t i = 0; i < b->n_members; i++) {
        kr_row *row = b->members[i];
        const kr_tensor *logits = kr_decoder_step(b->decoder, row->state, pending_ids(b, 1, &row));
        if ((!logits || !sample_row(row, logits, 0)) && !kr_row_fail(row)) return false;
        kr_tape_reset(b->tape);
    }
    return true;
}

/* ---- on the host ---- */

static bool sample_on_host(kr_row_batch *b, const kr_tensor *logits)
{
    for (int64_t i = 0; i < b->n_members; i++) {
        kr_row *row = b->members[i];
        if (kr_row_is_ready(row) && !sample_row(row, logits, i) && !kr_row_fail(row)) return fail_members(b);
    }
    return true;
}

static bool decode_on_host(kr_row_batch *b)
{
    const kr_tensor *logits = kr_decoder_step(b->decoder, b->live, pending_ids(b, b->n_members, b->members));
    return logits ? sample_on_host(b, logits) : fail_members(b);
}

/* ---- on a device ---- */

/* Does a device sample for some of the rows? */
static bool samples_there(const kr_row_batch *b)
{
    bool some = false;
    for (int64_t i = 0; i < b->n_members; i++) some = some || !b->members[i]->is_on_host;
    return some && !b->host_samples && kr_decoder_samples(b->decoder, b->live);
}

/* The tokens that the row's constraint allows next. */
static bool put_mask(kr_row *row, int64_t i)
{
    kr_row_batch *b = row->batch;
    if (!row->options.constrain) return true;
    if (!kr_row_allow(row)) return kr_blame(b->ctx, "row.sample: row %lld", (long long)row->sampler.stream);
    return kr_device_sampler_mask(b->device, i, b->allowed);
}

/* Rules and tokens of the rows; of one whose constraint fails, its error. False after an error of the batch. */
static bool put_rows(kr_row_batch *b)
{
    for (int64_t i = 0; i < b->n_members; i++) {
        kr_row *row = b->members[i];
        if (row->is_on_host) {
            kr_device_sampler_clear(b->device, i);
            continue;
        }
        if (row->n_tokens - 1 != row->sampled_at) kr_row_sampler_accept(&row->sampler, *kr_row_queue_ids(&row->queue));
        if (!kr_row_sampler_on_device(&b->work, &row->sampler, row->options.constrain != NULL, b->device, i))
            return false;
        if (put_mask(row, i)) continue;
        if (!kr_row_fail(row)) return false;
        kr_device_sampler_clear(b->device, i);
    }
    return kr_device_sampler_begin(b->device, b->n_members);
}

/* Can the next step be queued before the tokens of this one are taken? Not if rows join or leave, or the host has a say. */
static bool can_run_ahead(const kr_row_batch *b)
{
    for (int64_t i = 0; i < b->n_members; i++) {
        const kr_row *row = b->members[i];
        const int64_t most = row->options.max_tokens;
        if (!kr_row_is_ready(row) || row->is_on_host || row->options.constrain ||
            (most >= 0 && row->n_generated + 2 > most))
            return false;
    }
    const kr_row *row = b->first;
    while (row && !(row->is_generating && row->place < 0)) row = row->next;
    return !row || b->n_members == b->options.max_rows;
}

/* Could a token be sampled from the row's logits, which are not kept? Their shape is that of these. */
static bool check_sample(const kr_row *row, const kr_tensor *logits, bool has)
{
    return kr_require(
        row->ctx, has, KR_ERR_NUMERIC,
        "row.sample: logits %s hold a NaN or an infinity, or -inf for all tokens that row %lld may generate",
        logits ? KR_TEXT_OF(logits) : "of the row", (long long)row->sampler.stream);
}

/* The row's sample. If there is none the logits say why, unless a further step has overwritten them. */
static bool take_from_device(kr_row *row, int64_t i, const kr_tensor *logits, bool is_ahead)
{
    kr_row_batch *b = row->batch;
    kr_sample sample;
    const bool has = kr_device_sampler_take(b->device, logits->dtype, i, &sample.id, &sample.logprob);
    if (!has) kr_device_sampler_clear(b->device, i);
    if (!has && !is_ahead) return sample_row(row, logits, i);
    note_read(row);
    return check_sample(row, logits, has) && take_sample(row, sample, NULL);
}

/* Samples of the step that was queued first. */
static bool take_samples(kr_row_batch *b, const kr_tensor *logits)
{
    if (!kr_decoder_wait(b->decoder)) return fail_members(b);
    const bool is_ahead = kr_decoder_is_ahead(b->decoder);
    for (int64_t i = 0; i < b->n_members; i++) {
        kr_row *row = b->members[i];
        if (!kr_row_is_ready(row)) continue; /* its constraint failed */
        const bool done = row->is_on_host ? sample_row(row, logits, i) : take_from_device(row, i, logits, is_ahead);
        if (!done && !kr_row_fail(row)) return fail_members(b);
    }
    return true;
}

static bool decode_on_device(kr_row_batch *b)
{
    kr_decoder *d = b->decoder;
    if (!kr_decoder_is_ahead(d)) {
        if (!b->device) b->device = kr_device_sampler_create(b->ctx, b->options.max_rows, b->vocab);
        if (!b->device || !put_rows(b)) return false;
        if (!kr_decoder_step_and_sample(d, b->live, pending_ids(b, b->n_members, b->members), b->device))
            return fail_members(b);
        b->host_samples = !kr_device_sampler_reads(d->logits);
        if (b->host_samples) return sample_on_host(b, d->logits);
    }
    if (can_run_ahead(b) && !kr_decoder_run_ahead(d, b->live, b->device) && kr_ctx_failed(b->ctx))
        return fail_members(b);
    return take_samples(b, d->logits);
}

/* ---- results ahead ---- */

/* The token that was sampled ahead. If there is none the logits say why, where they are kept. */
static bool take_ahead(kr_row *row)
{
    const kr_row_batch *b = row->batch;
    if (row->ahead.id < 0 && row->ahead_at >= 0) return sample_row(row, b->decoder->logits, row->ahead_at);
    note_read(row);
    return check_sample(row, b->decoder->logits, row->ahead.id >= 0) && take_sample(row, row->ahead, NULL);
}

/* Rows that were sampled ahead generate those tokens. Others have joined since, and wait. */
static bool generate_ahead(kr_row_batch *b)
{
    for (int64_t i = 0; i < b->n_members; i++) {
        kr_row *row = b->members[i];
        if (row->is_ahead && !take_ahead(row) && !kr_row_fail(row)) return fail_members(b);
    }
    return true;
}

static bool take_from_logits(kr_row *row)
{
    const kr_tensor *logits = kr_row_logits_tensor(&row->logits, row->batch->tape);
    return logits && sample_row(row, logits, 0);
}

/* Rows that have left with the results of a step ahead generate a token of them, and join the others in the next step. */
static bool generate_outside(kr_row_batch *b)
{
    for (kr_row *row = b->first; row; row = row->next) {
        if (row->place >= 0 || !kr_row_has_result(row) || !kr_row_is_ready(row)) continue;
        const bool done = row->is_ahead ? take_ahead(row) : take_from_logits(row);
        if (!done && !kr_row_fail(row)) return false;
    }
    return true;
}

static bool decode(kr_row_batch *b, bool has_results)
{
    if (b->is_separate) return decode_separately(b);
    if (has_results) return generate_ahead(b);
    return kr_decoder_is_ahead(b->decoder) || samples_there(b) ? decode_on_device(b) : decode_on_host(b);
}

bool kr_row_batch_decode(kr_row_batch *b)
{
    int64_t n_ready = 0, n_ahead = 0;
    for (int64_t i = 0; i < b->n_members; i++) {
        n_ready += kr_row_is_ready(b->members[i]);
        n_ahead += b->members[i]->is_ahead;
    }
    if (!generate_outside(b) || (n_ready > 0 && !decode(b, n_ahead > 0))) return false;
    kr_tape_reset(b->tape);
    return true;
}
