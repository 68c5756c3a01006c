/* generation.c - reading a prompt and continuing it.
 *
 * The last token of a row, fed or sampled, stays pending: the next call reads it. So a feed reads the pending tokens
 * and all but its own last one, in chunks, and a step reads the pending tokens and samples from their logits. Rows
 * share one state until the first step; it is forked with the logits of that step. A row that has finished leaves the
 * batch before the next step, with its state; a feed brings all of them back.
 *
 * A device that samples is one step ahead: it reads the sampled tokens while the host receives them. If the next call
 * is not a step, rows keep the result: the state has read the pending token, and the token after it is sampled
 * (is_ready).
 */
#include "generate/generation_impl.h"

#include <string.h>

static kr_status status_of(const kr_generation *g)
{
    return g ? g->ctx->status : KR_ERR_ARG;
}

/* Checks at the start of a call. */
static bool begin(kr_generation *g, const char *op)
{
    kr_tape_reset(g->tape);
    return kr_require(
        g->ctx, !g->is_inconsistent, KR_ERR_STATE,
        "%s: an earlier call failed midway; load a file with kr_generation_load, or create a new generation", op);
}

/* ---- states ---- */

/* The state of one member, on the tape. */
static kr_state *state_of_member(const kr_generation *g, int64_t member)
{
    return kr_state_select(g->tape, g->state, 1, &member);
}

kr_state *kr_generation_whole_state(const kr_generation *g)
{
    if (!kr_decoder_flush(g->decoder, g->state)) return NULL;
    if (!g->is_forked || g->nmembers == g->nrows) return g->state;
    for (int64_t r = 0, member = 0; r < g->nrows; r++) {
        const bool is_member = member < g->nmembers && g->members[member] == r;
        g->joined[r] = is_member ? state_of_member(g, member) : g->rows[r].idle_state;
        member += is_member;
        if (!g->joined[r]) return NULL;
    }
    return kr_state_join(g->tape, (int)g->nrows, g->joined);
}

/* All rows are in the batch. */
static void gather_members(kr_generation *g)
{
    g->nmembers = g->nrows;
    for (int64_t r = 0; r < g->nrows; r++) {
        g->members[r] = r;
        kr_state_destroy(g->rows[r].idle_state);
        g->rows[r].idle_state = NULL;
    }
}

void kr_generation_set_state(kr_generation *g, kr_state *state)
{
    kr_decoder_forget(g->decoder, g->state);
    kr_state_destroy(g->state);
    g->state = state;
    g->is_forked = kr_state_batch(state) == g->nrows;
    gather_members(g);
}

static bool rejoin_rows(kr_generation *g)
{
    if (g->nmembers == g->nrows) return true;
    const kr_state *whole = kr_generation_whole_state(g);
    if (!whole || kr_state_copy(g->state, whole) != KR_OK) return false;
    gather_members(g);
    return true;
}

static bool sample_next(kr_generation *g, const kr_tensor *logits)
{
    return kr_sampler_sample(g->sampler, "sampler.next_rows", logits, g->nmembers, g->members, g->samples) == KR_OK;
}

/* Copies the oldest samples that are still on the device to g->samples, one per member. */
static bool take_samples(kr_generation *g)
{
    const kr_tensor *logits = g->decoder->logits;
    bool has_all = true;
    if (!kr_decoder_wait(g->decoder)) return false;
    for (int64_t m = 0; m < g->nmembers; m++) {
        kr_sample *to = &g->samples[m];
        has_all &= kr_device_sampler_take(g->sampler->device, logits->dtype, m, &to->id, &to->logprob);
    }
    if (has_all) return true;
    if (!kr_decoder_is_ahead(g->decoder)) return sample_next(g, logits); /* reports the error in the logits */
    return kr_fail(g->ctx, KR_ERR_NUMERIC,
                   "sampler.next_rows: logits %s hold a NaN or an infinity, or -inf for all tokens of a row",
                   KR_TEXT_OF(logits));
}

bool kr_generation_catch_up(kr_generation *g)
{
    const bool was_inconsistent = g->is_inconsistent;
    if (!kr_decoder_is_ahead(g->decoder)) return true;
    g->is_inconsistent = true; /* after an error: the state has advanced, the rows have not */
    if (!take_samples(g)) return false;
    g->is_inconsistent = was_inconsistent;
    for (int64_t m = 0; m < g->nmembers; m++) {
        kr_continuation *row = &g->rows[g->members[m]];
        row->is_ready = true;
        row->ready = g->samples[m];
    }
    return true;
}

static bool is_live(const kr_continuation *row)
{
    return row->finish == KR_FINISH_NONE;
}

static bool is_ready(const kr_continuation *row)
{
    return row->is_ready;
}

static bool are_all(const kr_generation *g, bool (*stays)(const kr_continuation *))
{
    for (int64_t m = 0; m < g->nmembers; m++)
        if (!stays(&g->rows[g->members[m]])) return false;
    return true;
}

/* Removes the members for which `stays` is false, with their states. It is true for at least one. */
static bool remove_members(kr_generation *g, bool (*stays)(const kr_continuation *))
{
    int64_t nleft = 0;
    if (are_all(g, stays)) return true;
    if (!kr_generation_catch_up(g) || !kr_decoder_flush(g->decoder, g->state)) return false;
    for (int64_t m = 0; m < g->nmembers; m++) {
        kr_continuation *row = &g->rows[g->members[m]];
        if (stays(row)) {
            g->chosen[nleft++] = m;
            continue;
        }
        row->idle_state = kr_network_state(g->net, 1);
        if (!row->idle_state || kr_state_copy(row->idle_state, state_of_member(g, m)) != KR_OK) return false;
    }
    if (kr_state_copy(g->state, kr_state_select(g->tape, g->state, nleft, g->chosen)) != KR_OK) return false;
    for (int64_t i = 0; i < nleft; i++) g->members[i] = g->members[g->chosen[i]];
    g->nmembers = nleft;
    return true;
}

static int64_t batch_of(const kr_generation *g)
{
    return g->is_forked ? g->nmembers : 1;
}

/* ---- the network ---- */

/* Reads [b] or [b s] ids; the logits of the last one, [b w]. */
static kr_tensor *read_to(const kr_generation *g, kr_state *state, kr_tensor *ids)
{
    kr_call call;
    kr_call_init(&call);
    call.advance = state;
    call.last_logits_only = true;
    return kr_tensor_rank(ids) == 1 ? kr_network_step(g->tape, g->net, ids, &call).y
                                    : kr_network_forward(g->tape, g->net, ids, &call).y;
}

static kr_tensor *read_ids(const kr_generation *g, kr_tensor *ids)
{
    return kr_decoder_flush(g->decoder, g->state) ? read_to(g, g->state, ids) : NULL;
}

/* The pending tokens, to g->ids. */
static const int32_t *pending_ids(kr_generation *g)
{
    const int64_t nb = batch_of(g);
    for (int64_t b = 0; b < nb; b++) g->ids[b] = g->rows[g->members[b]].pending;
    return g->ids;
}

/* ---- reading a prompt ---- */

/* The pending token of the first row, and so of all rows; -1 if the network has read it. */
static int32_t first_pending(const kr_generation *g)
{
    return g->rows[0].is_ready ? -1 : g->rows[0].pending;
}

/* A row outside the batch reads its pending token and samples the next one. */
static bool make_ready(kr_generation *g, int64_t r)
{
    kr_continuation *row = &g->rows[r];
    const kr_tensor *logits =
        read_to(g, row->idle_state, kr_from_data(g->tape, KR_DTYPE_I32, KR_SHAPE(1), &row->pending));
    row->is_ready = logits && kr_sampler_sample(g->sampler, "sampler.next_rows", logits, 1, &r, &row->ready) == KR_OK;
    return row->is_ready;
}

/* Puts all rows into the batch, either all ready or none. */
static bool sync_rows(kr_generation *g)
{
    int64_t nready = 0;
    if (!kr_generation_catch_up(g)) return false;
    for (int64_t r = 0; r < g->nrows; r++) nready += g->rows[r].is_ready;
    if (nready == 0 || nready == g->nrows) return rejoin_rows(g);
    if (!rejoin_rows(g) || !remove_members(g, is_ready)) return false;
    for (int64_t r = 0; r < g->nrows; r++)
        if (g->rows[r].idle_state && !make_ready(g, r)) return false;
    return rejoin_rows(g);
}

/* `count` tokens from index `from` of the input: the pending token, if there is one, and then ids. */
static bool read_chunk(kr_generation *g, const int32_t *ids, int64_t from, int64_t count)
{
    const int64_t nb = batch_of(g), npending = first_pending(g) >= 0;
    kr_tensor *x = kr_new(g->tape, KR_DTYPE_I32, count == 1 ? KR_SHAPE(nb) : KR_SHAPE(nb, count));
    if (!x) return false;
    int32_t *to = kr_tensor_data(x);
    for (int64_t b = 0; b < nb; b++)
        for (int64_t i = from; i < from + count; i++)
            *to++ = i < npending ? g->rows[g->members[b]].pending : ids[i - npending];
    return read_ids(g, x) != NULL;
}

static bool read_prompt(kr_generation *g, const int32_t *ids, int64_t count)
{
    const int64_t total = (first_pending(g) >= 0) + count - 1, chunk = g->options.prefill_chunk;
    for (int64_t from = 0; from < total; from += chunk) {
        if (!read_chunk(g, ids, from, total - from < chunk ? total - from : chunk)) return false;
        kr_tape_reset(g->tape);
    }
    for (int64_t r = 0; r < g->nrows; r++) {
        for (int64_t i = 0; i < count; i++)
            if (kr_sampler_accept(g->sampler, r, ids[i]) != KR_OK) return false;
        g->rows[r].pending = ids[count - 1];
        g->rows[r].is_ready = false;
    }
    g->prompt_tokens += count * batch_of(g);
    return true;
}

/* Clears the finish of every row, so that it continues. */
static void open_rows(kr_generation *g)
{
    for (int64_t r = 0; r < g->nrows; r++) {
        kr_continuation *row = &g->rows[r];
        row->finish = g->options.max_tokens == 0 ? KR_FINISH_LENGTH : KR_FINISH_NONE;
        row->ntokens = 0;
        row->text.match_from = row->text.nheld;
    }
}

kr_status kr_generation_feed(kr_generation *g, const int32_t *ids, int64_t count)
{
    const char *op = "generation.feed";
    if (!g || kr_ctx_failed(g->ctx) || !begin(g, op) ||
        !kr_require(g->ctx, count >= 0 && (ids || count == 0), KR_ERR_ARG, "%s: count = %lld, and ids is %s", op,
                    (long long)count, ids ? "a list" : "NULL"))
        return status_of(g);
    for (int64_t i = 0; i < count; i++)
        if (!kr_require(g->ctx, ids[i] >= 0 && ids[i] < g->vocab, KR_ERR_ARG,
                        "%s: ids[%lld] = %d, but the network's tokens are from 0 to %lld", op, (long long)i,
                        (int)ids[i], (long long)g->vocab - 1))
            return status_of(g);
    g->is_inconsistent = true;
    if (sync_rows(g) && (count == 0 || read_prompt(g, ids, count))) {
        open_rows(g);
        g->is_inconsistent = false;
    } else {
        kr_blame(g->ctx, "%s", op);
    }
    return status_of(g);
}

kr_status kr_generation_feed_text(kr_generation *g, const char *text, size_t bytes)
{
    const char *op = "generation.feed_text";
    if (!g || kr_ctx_failed(g->ctx)) return status_of(g);
    if (!kr_require(g->ctx, g->tok != NULL, KR_ERR_ARG,
                    "%s: there is no tokenizer; give one to kr_generation_create, or feed ids", op) ||
        !kr_require(g->ctx, text || bytes == 0, KR_ERR_ARG, "%s: text is NULL", op))
        return status_of(g);
    kr_encode_options options;
    kr_encode_options_init(&options);
    options.add_special = g->rows[0].pending < 0; /* special tokens before a text are added once, at its beginning */
    const int64_t most = kr_tokenizer_max_ids(g->tok, bytes);
    int32_t *ids = kr_memory_alloc(&g->ctx->memory, (size_t)most * sizeof *ids);
    if (!kr_require(g->ctx, ids != NULL, KR_ERR_NOMEM, "%s: no memory for %lld ids", op, (long long)most))
        return status_of(g);
    const int64_t count = kr_tokenizer_encode(g->tok, text, bytes, &options, ids, most);
    if (count >= 0) kr_generation_feed(g, ids, count);
    else kr_blame(g->ctx, "%s", op);
    kr_memory_free(&g->ctx->memory, ids, (size_t)most * sizeof *ids);
    return status_of(g);
}

/* ---- one token for each row ---- */

static bool is_stop_id(const kr_generation *g, int32_t id)
{
    for (int i = 0; i < g->options.n_stop_ids; i++)
        if (g->options.stop_ids[i] == id) return true;
    return false;
}

/* The row's text with one more token; true if a stop is complete. */
static bool put_text(kr_generation *g, kr_continuation *row, int32_t id)
{
    size_t bytes = 0;
    const char *text = g->tok && !kr_tokenizer_is_special(g->tok, id) ? kr_tokenizer_token(g->tok, id, &bytes) : NULL;
    return kr_held_text_put(&row->text, &g->stops, text, text ? bytes : 0);
}

static void put_token(kr_generation *g, kr_continuation *row, kr_sample sample)
{
    kr_row_sampler_count(&g->sampler->rows[row - g->rows], sample.id);
    row->pending = sample.id;
    row->is_ready = false;
    row->ntokens++;
    if (is_stop_id(g, sample.id)) row->finish = KR_FINISH_STOP_ID;
    else if (put_text(g, row, sample.id)) row->finish = KR_FINISH_STOP;
    else if (g->options.max_tokens >= 0 && row->ntokens >= g->options.max_tokens) row->finish = KR_FINISH_LENGTH;
    if (row->finish != KR_FINISH_NONE) kr_held_text_end(&row->text);
    row->made = (kr_generated){ true, sample, row->text.shown, row->text.nshown, row->finish };
}

/* Forks the one state that all rows share: afterwards each row has logits and a state. */
static kr_tensor *step_and_fork(kr_generation *g)
{
    kr_tensor *logits = read_ids(g, kr_from_data(g->tape, KR_DTYPE_I32, KR_SHAPE(1), pending_ids(g)));
    if (!logits || kr_state_copy(g->state, kr_state_fork(g->tape, g->state, 0, g->nrows)) != KR_OK) return NULL;
    g->is_forked = true;
    return kr_expand(g->tape, logits, KR_SHAPE(g->nrows, kr_dim_of(logits, 1)));
}

/* Does every member continue after the current token, unless that token is a stop? */
static bool can_run_ahead(const kr_generation *g)
{
    for (int64_t m = 0; m < g->nmembers; m++)
        if (g->options.max_tokens >= 0 && g->rows[g->members[m]].ntokens + 2 > g->options.max_tokens) return false;
    return true;
}

/* Sampling on the device. The next step is queued before the host receives the tokens. */
static bool step_there(kr_generation *g, kr_device_sampler *sampler)
{
    kr_decoder *d = g->decoder;
    if (!kr_decoder_is_ahead(d) && !kr_decoder_step_and_sample(d, g->state, pending_ids(g), sampler)) return false;
    if (!kr_device_sampler_reads(d->logits)) return sample_next(g, d->logits);
    if (can_run_ahead(g) && !kr_decoder_run_ahead(d, g->state, sampler) && kr_ctx_failed(g->ctx)) return false;
    return take_samples(g);
}

/* The device's sampler, ready for the members unless it is ahead; NULL: the host samples, or after an error. */
static kr_device_sampler *device_sampler(kr_generation *g)
{
    if (kr_decoder_is_ahead(g->decoder)) return g->sampler->device;
    return kr_decoder_samples(g->decoder, g->state) ? kr_sampler_on_device(g->sampler, g->nmembers, g->members) : NULL;
}

/* One more token for all members, to g->samples. */
static bool step(kr_generation *g)
{
    const kr_tensor *logits;
    if (g->is_forked && !remove_members(g, is_live)) return false;
    if (g->rows[g->members[0]].is_ready) {
        for (int64_t m = 0; m < g->nmembers; m++) g->samples[m] = g->rows[g->members[m]].ready;
        return true;
    }
    kr_device_sampler *sampler = g->is_forked ? device_sampler(g) : NULL;
    if (sampler) return step_there(g, sampler);
    if (kr_ctx_failed(g->ctx)) return false;
    logits = g->is_forked ? kr_decoder_step(g->decoder, g->state, pending_ids(g)) : step_and_fork(g);
    return logits && sample_next(g, logits);
}

kr_status kr_generation_next(kr_generation *g)
{
    const char *op = "generation.next";
    if (!g) return KR_ERR_ARG;
    if (kr_ctx_failed(g->ctx) || !begin(g, op) ||
        !kr_require(g->ctx, g->rows[0].pending >= 0, KR_ERR_STATE,
                    "%s: no prompt was fed; feed at least one token, such as BOS", op))
        return g->ctx->status;
    int64_t nlive = 0;
    for (int64_t r = 0; r < g->nrows; r++) {
        kr_continuation *row = &g->rows[r];
        kr_held_text_hide(&row->text);
        row->made = (kr_generated){ .sample = row->made.sample, .text = row->text.shown, .finish = row->finish };
        nlive += row->finish == KR_FINISH_NONE;
    }
    if (nlive == 0) return KR_END;
    if (!kr_sampler_reserve(g->sampler, op)) return g->ctx->status;
    g->is_inconsistent = true;
    if (!step(g)) {
        kr_blame(g->ctx, "%s", op);
        return g->ctx->status;
    }
    for (int64_t m = 0; m < g->nmembers; m++) put_token(g, &g->rows[g->members[m]], g->samples[m]);
    g->tokens += g->nmembers;
    g->is_inconsistent = false;
    return KR_OK;
}

const kr_generated *kr_generation_row(const kr_generation *g, int64_t row)
{
    return g && row >= 0 && row < g->nrows ? &g->rows[row].made : NULL;
}

kr_generation_stats kr_generation_stats_of(const kr_generation *g)
{
    return (kr_generation_stats){ .prompt_tokens = g ? g->prompt_tokens : 0, .tokens = g ? g->tokens : 0 };
}
