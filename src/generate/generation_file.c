/* generation_file.c - a generation as a file: its state (model/state_file.c), and the tensors
 *
 *   generation.totals    i64 [3]      seed, tokens read as prompt, tokens generated
 *   generation.rows      i64 [n 9]    pending, finish, tokens since the last feed, tokens sampled, bytes of text that
 *                                     are held, how many of them are not matched with stops, distinct tokens; if the state
 *                                     has read the pending token: the next token, and the bits of its log-probability (f64);
 *                                     else -1 and 0
 *   generation.occurred  i64 [m 3]    of those tokens, row after row: id, in the prompt (0 or 1), times generated
 *   generation.text      i32 [k]      the held bytes, row after row
 *
 * The state has a row for each row, or one for all of them before the first token is sampled.
 */
#include "generate/generation_impl.h"
#include "generate/row_numbers.h"
#include "model/state_file.h"
#include "nn/state_rows.h"

#include <math.h>
#include <string.h>

enum { TOTALS, ROWS, OCCURRED, TEXT, NEXTRAS };
enum { SEED, PROMPT_TOKENS, TOKENS, NTOTALS };
enum { PENDING, FINISH, SINCE_FEED, SAMPLED, WAITING, MATCH_FROM, DISTINCT, READY, READY_LOGPROB, ROW_FIELDS };

static const kr_state_format format = { .name = "krait.generation",
                                        .version = "2",
                                        .what = "generation",
                                        .nextras = NEXTRAS,
                                        .extras = { "generation.totals", "generation.rows", "generation.occurred",
                                                    "generation.text" } };

/* ---- writing ---- */

static void list_row(const kr_row *row, int64_t *fields)
{
    fields[PENDING] = row->queue.count ? *kr_row_queue_ids(&row->queue) : -1;
    fields[FINISH] = row->finish;
    fields[SINCE_FEED] = row->n_generated;
    fields[SAMPLED] = (int64_t)row->sampler.n_sampled;
    fields[WAITING] = (int64_t)row->text.nheld;
    fields[MATCH_FROM] = (int64_t)row->text.match_from;
    fields[DISTINCT] = row->sampler.counts.count;
    fields[READY] = -1;
    fields[READY_LOGPROB] = 0;
    if (!row->is_ahead) return;
    fields[READY] = row->ahead.id;
    memcpy(&fields[READY_LOGPROB], &row->ahead.logprob, sizeof fields[READY_LOGPROB]);
}

/* A device that is ahead has sampled a token for each of its rows. False after an error: some have none. */
static bool take_samples(kr_generation *g)
{
    if (!kr_row_batch_settle(g->batch)) return false;
    for (int64_t r = 0; r < g->nrows && g->rows[r]; r++) {
        const kr_row *row = g->rows[r];
        if (kr_require(g->ctx, !row->is_ahead || row->ahead.id >= 0, KR_ERR_NUMERIC,
                       "the logits of row %lld hold a NaN or an infinity, or -inf for all tokens", (long long)r))
            continue;
        g->is_inconsistent = true;
        return false;
    }
    return true;
}

/* The state of all rows, on the tape; of a row that has read nothing, the initial one, which *own then is. NULL after an
 * error. */
static kr_state *whole_state(kr_generation *g, kr_arena *arena, kr_state **own)
{
    kr_row *first = g->rows[0];
    int n = 0;
    if (first->place < 0 && (!first->state || kr_state_is_initial(first->state))) {
        *own = kr_network_state(g->batch->net, 1);
        if (*own && g->batch->net->has_class_tokens) kr_state_announce(*own, KR_LENGTH_UNKNOWN);
        return *own;
    }
    kr_state **states = kr_arena_alloc(arena, (size_t)g->nrows * sizeof *states);
    if (!kr_require(g->ctx, states != NULL, KR_ERR_NOMEM, "no memory for %lld states", (long long)g->nrows))
        return NULL;
    for (; n < g->nrows && g->rows[n]; n++)
        if (!(states[n] = g->batch->is_separate ? g->rows[n]->state : kr_row_state_view(g->rows[n]))) return NULL;
    return n == 1 ? states[0] : kr_state_join(g->batch->tape, n, states);
}

static bool save(kr_generation *g, kr_arena *arena, const kr_save_target *target)
{
    int64_t totals[NTOTALS], ntokens = 0, nbytes = 0;
    memcpy(&totals[SEED], &g->settings.sampler.seed, sizeof totals[SEED]);
    totals[PROMPT_TOKENS] = g->prompt_tokens;
    totals[TOKENS] = g->tokens;
    int64_t *rows = kr_arena_alloc(arena, (size_t)(g->nrows * ROW_FIELDS) * sizeof *rows);
    for (int64_t r = 0; rows && r < g->nrows; r++) {
        list_row(kr_generation_row_of(g, r), rows + r * ROW_FIELDS);
        ntokens += rows[r * ROW_FIELDS + DISTINCT];
        nbytes += rows[r * ROW_FIELDS + WAITING];
    }
    int64_t *occurred = kr_arena_alloc(arena, (size_t)(ntokens * KR_COUNT_FIELDS) * sizeof *occurred), *at = occurred;
    int32_t *text = kr_arena_alloc(arena, (size_t)nbytes * sizeof *text), *to = text;
    if (!kr_require(g->ctx, rows && occurred && text, KR_ERR_NOMEM, "no memory for %lld rows", (long long)g->nrows))
        return false;
    for (int64_t r = 0; r < g->nrows; r++) {
        const kr_row *row = kr_generation_row_of(g, r);
        kr_counts_list(&row->sampler.counts, at);
        at += row->sampler.counts.count * KR_COUNT_FIELDS;
        for (size_t i = 0; i < row->text.nheld; i++) *to++ = (unsigned char)row->text.held[i];
    }
    const kr_state_extra extras[NEXTRAS] = { { KR_DTYPE_I64, KR_SHAPE(NTOTALS), totals },
                                             { KR_DTYPE_I64, KR_SHAPE(g->nrows, ROW_FIELDS), rows },
                                             { KR_DTYPE_I64, KR_SHAPE(ntokens, KR_COUNT_FIELDS), occurred },
                                             { KR_DTYPE_I32, KR_SHAPE(nbytes), text } };
    kr_state *own = NULL;
    const kr_state *state = whole_state(g, arena, &own);
    const bool saved = state && kr_state_file_write(&format, state, g->batch->net, extras, target);
    kr_state_destroy(own);
    return saved;
}

static kr_status save_generation(kr_generation *g, const kr_save_target *target)
{
    enum { BLOCK_BYTES = 4096 };
    kr_ctx *ctx = g->ctx;
    if (kr_ctx_failed(ctx)) return ctx->status;
    kr_tape_reset(g->batch->tape);
    kr_arena arena;
    kr_arena_init(&arena, &ctx->memory, BLOCK_BYTES);
    const bool saved = kr_require(ctx, !g->is_inconsistent, KR_ERR_STATE, "an earlier call failed midway") &&
                       take_samples(g) && save(g, &arena, target);
    kr_arena_deinit(&arena);
    if (!saved) kr_blame(ctx, "generation.save");
    return ctx->status;
}

kr_status kr_generation_save(kr_generation *g, const char *path)
{
    return g ? save_generation(g, &(kr_save_target){ .path = path }) : KR_ERR_ARG;
}

kr_status kr_generation_save_memory(kr_generation *g, void *out, size_t bytes, size_t *needed)
{
    kr_save_target target;
    if (!g) return KR_ERR_ARG;
    if (kr_ctx_failed(g->ctx)) return g->ctx->status;
    if (kr_save_to_memory(g->ctx, &target, out, bytes, needed)) return save_generation(g, &target);
    kr_blame(g->ctx, "generation.save");
    return g->ctx->status;
}

/* ---- reading ---- */

/* The contents of a file, unchecked, and the rows made of them. */
typedef struct content {
    kr_generation *g;
    kr_ctx *ctx;
    kr_arena arena;
    int64_t *totals, *rows, *occurred, *text;
    int64_t ntokens, nbytes;
    kr_row **made; /* [n_made] */
    int64_t n_made;
} content;

static bool read_content(content *c, const kr_tensor_file *file, const kr_tensor_file_item *const *extras)
{
    int64_t n_totals = NTOTALS, nrows = extras[ROWS]->shape.rank > 0 ? extras[ROWS]->shape.dims[0] : 0;
    c->ntokens = c->nbytes = -1;
    if (!kr_require(c->ctx, nrows == c->g->nrows, KR_ERR_ARG,
                    "the file has %lld rows, but this generation has n_samples = %lld", (long long)nrows,
                    (long long)c->g->nrows))
        return false;
    kr_arena *arena = &c->arena;
    c->totals = kr_numbers_read(c->ctx, arena, file, extras[TOTALS], KR_DTYPE_I64, &n_totals, 0);
    if (c->totals) c->rows = kr_numbers_read(c->ctx, arena, file, extras[ROWS], KR_DTYPE_I64, &nrows, ROW_FIELDS);
    if (c->rows)
        c->occurred =
            kr_numbers_read(c->ctx, arena, file, extras[OCCURRED], KR_DTYPE_I64, &c->ntokens, KR_COUNT_FIELDS);
    if (c->occurred) c->text = kr_numbers_read(c->ctx, arena, file, extras[TEXT], KR_DTYPE_I32, &c->nbytes, 0);
    return c->text != NULL;
}

/* The next token, if the row has read its pending token; the row has its own state then. */
static bool is_ready_right(const content *c, const int64_t *row, int64_t batch)
{
    double logprob;
    memcpy(&logprob, &row[READY_LOGPROB], sizeof logprob);
    return row[READY] == -1 ? row[READY_LOGPROB] == 0
                            : kr_is_within(row[READY], 0, c->g->batch->vocab - 1) && batch == c->g->nrows &&
                                  row[PENDING] >= 0 && !isnan(logprob);
}

static bool is_row_right(const content *c, const int64_t *row, int64_t batch, int64_t ntokens, int64_t nbytes)
{
    return kr_is_within(row[PENDING], -1, c->g->batch->vocab - 1) &&
           kr_is_within(row[FINISH], KR_FINISH_NONE, KR_FINISH_STOP) && row[SINCE_FEED] >= 0 && row[SAMPLED] >= 0 &&
           kr_is_within(row[WAITING], 0, c->nbytes - nbytes) && kr_is_within(row[MATCH_FROM], 0, row[WAITING]) &&
           kr_is_within(row[DISTINCT], 0, c->ntokens - ntokens) && is_ready_right(c, row, batch);
}

/* Rows that share a state are alike, but for their texts and counts. */
static bool check_rows(const content *c, const kr_state *state)
{
    const int64_t batch = kr_state_batch(state), *first = c->rows, *live = NULL;
    int64_t ntokens = 0, nbytes = 0;
    if (!kr_require(c->ctx, batch == 1 || batch == c->g->nrows, KR_ERR_FORMAT,
                    "the state has %lld rows, but there are %lld", (long long)batch, (long long)c->g->nrows))
        return false;
    for (int64_t r = 0; r < c->g->nrows; r++) {
        const int64_t *row = c->rows + r * ROW_FIELDS;
        if (row[FINISH] == KR_FINISH_NONE && !live) live = row; /* unfinished rows are at the same position */
        const bool agrees = (row[PENDING] < 0) == (first[PENDING] < 0) &&
                            (batch == c->g->nrows || memcmp(row, first, ROW_FIELDS * sizeof *row) == 0) &&
                            (row[FINISH] != KR_FINISH_NONE || (row[READY] < 0) == (live[READY] < 0));
        const bool right = is_row_right(c, row, batch, ntokens, nbytes);
        if (!kr_require(c->ctx, right && agrees, KR_ERR_FORMAT,
                        "row %lld of tensor 'generation.rows' has a number out of range", (long long)r))
            return false;
        ntokens += row[DISTINCT];
        nbytes += row[WAITING];
    }
    return kr_require(c->ctx, first[PENDING] >= 0 || kr_state_is_initial(state), KR_ERR_FORMAT,
                      "the state is not initial, but no token is pending") &&
           kr_require(c->ctx, ntokens == c->ntokens && nbytes == c->nbytes, KR_ERR_FORMAT,
                      "'generation.rows' counts %lld tokens and %lld bytes, but there are %lld and %lld",
                      (long long)ntokens, (long long)nbytes, (long long)c->ntokens, (long long)c->nbytes) &&
           kr_require(c->ctx, nbytes == 0 || c->g->batch->tok, KR_ERR_ARG,
                      "the file has buffered text, but this generation has no tokenizer");
}

static bool check_tokens(const content *c)
{
    int64_t before = 0;
    for (int64_t r = 0; r < c->g->nrows; r++) {
        const int64_t n = c->rows[r * ROW_FIELDS + DISTINCT],
                      wrong = kr_counts_find_wrong(c->occurred + before * KR_COUNT_FIELDS, n, c->g->batch->vocab);
        if (!kr_require(c->ctx, wrong < 0, KR_ERR_FORMAT,
                        "row %lld of tensor 'generation.occurred' has a number out of range",
                        (long long)(before + wrong)))
            return false;
        before += n;
    }
    return kr_bytes_check(c->ctx, "generation.text", c->text, c->nbytes) &&
           kr_require(c->ctx, c->totals[PROMPT_TOKENS] >= 0 && c->totals[TOKENS] >= 0, KR_ERR_FORMAT,
                      "tensor 'generation.totals' has a negative count");
}

/* ---- rows ---- */

/* Capacity for the pending token, the counts, and held text, which may be longer than this generation's stops need. */
static bool reserve(kr_row *row, const int64_t *fields)
{
    kr_memory *memory = &row->ctx->memory;
    return kr_require(row->ctx,
                      kr_row_queue_reserve(&row->queue, memory, 1, 1) &&
                          kr_token_counts_reserve(&row->sampler.counts, memory, fields[DISTINCT]) &&
                          kr_held_text_reserve(&row->text, memory, row->text.capacity + (size_t)fields[WAITING]),
                      KR_ERR_NOMEM, "no memory for the text of row %lld", (long long)row->options.stream);
}

/* Where a row stands. Its pending token is counted, fed or sampled. */
static void put_position(kr_row *row, const int64_t *fields)
{
    if (fields[PENDING] >= 0) {
        kr_row_queue_put(&row->queue, (int32_t)fields[PENDING]);
        row->n_tokens = 1;
        row->sampled_at = 0;
    }
    row->is_ahead = fields[READY] >= 0;
    row->ahead_at = -1;
    row->ahead.id = (int32_t)fields[READY];
    memcpy(&row->ahead.logprob, &fields[READY_LOGPROB], sizeof row->ahead.logprob);
    row->sampler.n_sampled = (uint64_t)fields[SAMPLED];
    kr_row_start(row);
    row->n_generated = fields[SINCE_FEED];
    if (fields[FINISH] != KR_FINISH_NONE) kr_row_end(row, (kr_finish)fields[FINISH]);
    else if (row->options.max_tokens == 0) kr_row_end(row, KR_FINISH_LENGTH);
}

static bool make_rows(content *c, int64_t count)
{
    const int64_t *token = c->occurred, *byte = c->text;
    c->made = kr_arena_alloc(&c->arena, (size_t)count * sizeof(kr_row *));
    if (!kr_require(c->ctx, c->made != NULL, KR_ERR_NOMEM, "no memory for %lld rows", (long long)count)) return false;
    for (int64_t r = 0; r < count; r++) {
        const int64_t *fields = c->rows + r * ROW_FIELDS;
        kr_row *row = kr_generation_add_row(c->g, "row", r, NULL);
        if (!row) return false;
        c->made[c->n_made++] = row;
        if (!reserve(row, fields)) return false;
        memcpy(&row->sampler_options.seed, &c->totals[SEED], sizeof row->sampler_options.seed);
        kr_counts_put_list(&row->sampler.counts, token, fields[DISTINCT]);
        token += fields[DISTINCT] * KR_COUNT_FIELDS;
        put_position(row, fields);
        row->text.nheld = (size_t)fields[WAITING];
        row->text.match_from = (size_t)fields[MATCH_FROM];
        for (size_t i = 0; i < row->text.nheld; i++) row->text.held[i] = (char)(unsigned char)*byte++;
    }
    return true;
}

static bool take(void *user, const kr_state *state, const kr_tensor_file *file,
                 const kr_tensor_file_item *const *extras)
{
    content *c = user;
    return read_content(c, file, extras) && check_rows(c, state) && check_tokens(c) &&
           make_rows(c, kr_state_batch(state));
}

/* The rows of the state, to the rows made; a state of one row becomes that row's. False after an error. */
static bool give_states(content *c, kr_state **state)
{
    if (c->n_made == 1) {
        c->made[0]->state = *state;
        *state = NULL;
        return true;
    }
    for (int64_t r = 0; r < c->n_made; r++) {
        const kr_state *view = kr_state_row_view(c->g->batch->tape, *state, r);
        kr_state *own = view ? kr_network_state(c->g->batch->net, 1) : NULL;
        c->made[r]->state = own;
        if (!own || kr_state_copy(own, view) != KR_OK) return false;
    }
    return true;
}

/* The rows made instead of those that there are. */
static void apply(const content *c)
{
    kr_generation *g = c->g;
    kr_row_batch_clear(g->batch);
    for (int64_t r = 0; r < g->nrows; r++) {
        kr_row_destroy(g->rows[r]);
        g->rows[r] = r < c->n_made ? c->made[r] : NULL;
    }
    memcpy(&g->settings.sampler.seed, &c->totals[SEED], sizeof g->settings.sampler.seed);
    g->prompt_tokens = c->totals[PROMPT_TOKENS];
    g->tokens = c->totals[TOKENS];
    g->is_inconsistent = false;
    for (int64_t r = 0; r < g->nrows; r++) kr_generation_clear_made(g, r);
}

static kr_status load_generation(kr_generation *g, const kr_load_source *source)
{
    enum { BLOCK_BYTES = 4096 };
    kr_ctx *ctx = g->ctx;
    if (kr_ctx_failed(ctx)) return ctx->status;
    kr_tape_reset(g->batch->tape);
    content c = { .g = g, .ctx = ctx };
    kr_arena_init(&c.arena, &ctx->memory, BLOCK_BYTES);
    kr_state *state = kr_state_file_read(&format, ctx, g->batch->net, source, take, &c);
    if (state && give_states(&c, &state)) {
        apply(&c);
    } else {
        kr_blame(ctx, "generation.load");
        for (int64_t i = 0; i < c.n_made; i++) kr_row_destroy(c.made[i]);
    }
    kr_state_destroy(state);
    kr_arena_deinit(&c.arena);
    return ctx->status;
}

kr_status kr_generation_load(kr_generation *g, const char *path)
{
    return g ? load_generation(g, &(kr_load_source){ .path = path }) : KR_ERR_ARG;
}

kr_status kr_generation_load_memory(kr_generation *g, const void *data, size_t bytes)
{
    return g ? load_generation(g, &(kr_load_source){ .is_memory = true, .data = data, .bytes = bytes }) : KR_ERR_ARG;
}
