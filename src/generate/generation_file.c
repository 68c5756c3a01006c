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
#include "model/state_file.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TOTALS, ROWS, OCCURRED, TEXT, NEXTRAS };
enum { SEED, PROMPT_TOKENS, TOKENS, NTOTALS };
enum { PENDING, FINISH, SINCE_FEED, SAMPLED, WAITING, MATCH_FROM, DISTINCT, READY, READY_LOGPROB, ROW_FIELDS };
enum { ID, IN_PROMPT, GENERATED, TOKEN_FIELDS };

static const kr_state_format format = { .name = "krait.generation",
                                        .version = "2",
                                        .what = "generation",
                                        .nextras = NEXTRAS,
                                        .extras = { "generation.totals", "generation.rows", "generation.occurred",
                                                    "generation.text" } };

/* ---- writing ---- */

static void list_row(const kr_generation *g, int64_t row, int64_t *fields)
{
    const kr_continuation *r = &g->rows[row];
    fields[PENDING] = r->pending;
    fields[FINISH] = r->finish;
    fields[SINCE_FEED] = r->ntokens;
    fields[SAMPLED] = (int64_t)g->sampler->rows[row].n_sampled;
    fields[WAITING] = (int64_t)r->text.nheld;
    fields[MATCH_FROM] = (int64_t)r->text.match_from;
    fields[DISTINCT] = g->sampler->rows[row].counts.count;
    fields[READY] = -1;
    fields[READY_LOGPROB] = 0;
    if (!r->is_ready) return;
    fields[READY] = r->ready.id;
    memcpy(&fields[READY_LOGPROB], &r->ready.logprob, sizeof fields[READY_LOGPROB]);
}

static int by_id(const void *a, const void *b)
{
    const int64_t x = ((const int64_t *)a)[ID], y = ((const int64_t *)b)[ID];
    return (x > y) - (x < y);
}

/* In the order of their ids. */
static int64_t *list_occurred(const kr_generation *g, int64_t row, int64_t *to)
{
    const kr_token_counts *counts = &g->sampler->rows[row].counts;
    int64_t at = 0, *next = to;
    for (const kr_token_count *count; (count = kr_token_counts_next(counts, &at)); next += TOKEN_FIELDS) {
        next[ID] = count->id;
        next[IN_PROMPT] = count->is_prompt;
        next[GENERATED] = count->generated;
    }
    qsort(to, (size_t)counts->count, TOKEN_FIELDS * sizeof *to, by_id);
    return next;
}

static bool save(const kr_generation *g, kr_arena *arena, const kr_save_target *target)
{
    int64_t totals[NTOTALS], ntokens = 0, nbytes = 0;
    memcpy(&totals[SEED], &g->sampler->options.seed, sizeof totals[SEED]);
    totals[PROMPT_TOKENS] = g->prompt_tokens;
    totals[TOKENS] = g->tokens;
    int64_t *rows = kr_arena_alloc(arena, (size_t)(g->nrows * ROW_FIELDS) * sizeof *rows);
    for (int64_t r = 0; rows && r < g->nrows; r++) {
        list_row(g, r, rows + r * ROW_FIELDS);
        ntokens += rows[r * ROW_FIELDS + DISTINCT];
        nbytes += rows[r * ROW_FIELDS + WAITING];
    }
    int64_t *occurred = kr_arena_alloc(arena, (size_t)(ntokens * TOKEN_FIELDS) * sizeof *occurred), *at = occurred;
    int32_t *text = kr_arena_alloc(arena, (size_t)nbytes * sizeof *text), *to = text;
    if (!kr_require(g->ctx, rows && occurred && text, KR_ERR_NOMEM, "no memory for %lld rows", (long long)g->nrows))
        return false;
    for (int64_t r = 0; r < g->nrows; r++) {
        at = list_occurred(g, r, at);
        for (size_t i = 0; i < g->rows[r].text.nheld; i++) *to++ = (unsigned char)g->rows[r].text.held[i];
    }
    const kr_state_extra extras[NEXTRAS] = { { KR_DTYPE_I64, KR_SHAPE(NTOTALS), totals },
                                             { KR_DTYPE_I64, KR_SHAPE(g->nrows, ROW_FIELDS), rows },
                                             { KR_DTYPE_I64, KR_SHAPE(ntokens, TOKEN_FIELDS), occurred },
                                             { KR_DTYPE_I32, KR_SHAPE(nbytes), text } };
    const kr_state *state = kr_generation_whole_state(g);
    return state && kr_state_file_write(&format, state, g->net, extras, target);
}

static kr_status save_generation(kr_generation *g, const kr_save_target *target)
{
    enum { BLOCK_BYTES = 4096 };
    kr_ctx *ctx = g->ctx;
    if (kr_ctx_failed(ctx)) return ctx->status;
    kr_tape_reset(g->tape);
    kr_arena arena;
    kr_arena_init(&arena, &ctx->memory, BLOCK_BYTES);
    const bool saved = kr_require(ctx, !g->is_inconsistent, KR_ERR_STATE, "an earlier call failed midway") &&
                       kr_generation_catch_up(g) && save(g, &arena, target);
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

/* The contents of a file, unchecked. */
typedef struct content {
    kr_generation *g;
    kr_ctx *ctx;
    kr_arena arena;
    int64_t *totals, *rows, *occurred, *text;
    int64_t ntokens, nbytes;
} content;

/* A tensor of the given rows (-1: any) and columns (0: no such axis); NULL after an error. */
static int64_t *read_numbers(content *c, const kr_tensor_file *file, const kr_tensor_file_item *item, kr_dtype dtype,
                             int64_t nrows, int64_t ncolumns)
{
    const kr_shape *shape = &item->shape;
    const bool fits = shape->rank == 1 + (ncolumns > 0) && (nrows < 0 || shape->dims[0] == nrows) &&
                      (ncolumns == 0 || shape->dims[1] == ncolumns);
    if (!kr_require(c->ctx, fits && item->dtype == dtype, KR_ERR_FORMAT, "tensor '%s' is %s %s, which is not valid",
                    item->name, item->type, KR_TEXT_OF_SHAPE(shape)))
        return NULL;
    int64_t *numbers = kr_arena_alloc(&c->arena, (size_t)item->count * sizeof *numbers);
    if (!kr_require(c->ctx, numbers != NULL, KR_ERR_NOMEM, "no memory for tensor '%s' %s", item->name,
                    KR_TEXT_OF_SHAPE(shape)))
        return NULL;
    return kr_tensor_file_read(file, item, KR_DTYPE_I64, numbers, item->count) == KR_OK ? numbers : NULL;
}

static bool read_content(content *c, const kr_tensor_file *file, const kr_tensor_file_item *const *extras)
{
    const int64_t nrows = extras[ROWS]->shape.rank > 0 ? extras[ROWS]->shape.dims[0] : 0;
    if (!kr_require(c->ctx, nrows == c->g->nrows, KR_ERR_ARG,
                    "the file has %lld rows, but this generation has n_samples = %lld", (long long)nrows,
                    (long long)c->g->nrows) ||
        !(c->totals = read_numbers(c, file, extras[TOTALS], KR_DTYPE_I64, NTOTALS, 0)) ||
        !(c->rows = read_numbers(c, file, extras[ROWS], KR_DTYPE_I64, nrows, ROW_FIELDS)) ||
        !(c->occurred = read_numbers(c, file, extras[OCCURRED], KR_DTYPE_I64, -1, TOKEN_FIELDS)) ||
        !(c->text = read_numbers(c, file, extras[TEXT], KR_DTYPE_I32, -1, 0)))
        return false;
    c->ntokens = extras[OCCURRED]->shape.dims[0];
    c->nbytes = extras[TEXT]->shape.dims[0];
    return true;
}

static bool is_within(int64_t n, int64_t least, int64_t most)
{
    return n >= least && n <= most;
}

/* The next token, if the row has read its pending token; the row has its own state then. */
static bool is_ready_right(const content *c, const int64_t *row, int64_t batch)
{
    double logprob;
    memcpy(&logprob, &row[READY_LOGPROB], sizeof logprob);
    return row[READY] == -1 ? row[READY_LOGPROB] == 0
                            : is_within(row[READY], 0, c->g->vocab - 1) && batch == c->g->nrows && row[PENDING] >= 0 &&
                                  !isnan(logprob);
}

static bool is_row_right(const content *c, const int64_t *row, int64_t batch, int64_t ntokens, int64_t nbytes)
{
    return is_within(row[PENDING], -1, c->g->vocab - 1) && is_within(row[FINISH], KR_FINISH_NONE, KR_FINISH_STOP) &&
           row[SINCE_FEED] >= 0 && row[SAMPLED] >= 0 && is_within(row[WAITING], 0, c->nbytes - nbytes) &&
           is_within(row[MATCH_FROM], 0, row[WAITING]) && is_within(row[DISTINCT], 0, c->ntokens - ntokens) &&
           is_ready_right(c, row, batch);
}

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
        const bool agrees =
            (row[PENDING] < 0) == (first[PENDING] < 0) &&
            (batch == c->g->nrows || (row[PENDING] == first[PENDING] && row[FINISH] == first[FINISH])) &&
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
           kr_require(c->ctx, nbytes == 0 || c->g->tok, KR_ERR_ARG,
                      "the file has buffered text, but this generation has no tokenizer");
}

static bool check_tokens(const content *c)
{
    const int64_t most = KR_TOKEN_COUNT_MOST, *token = c->occurred;
    for (int64_t r = 0; r < c->g->nrows; r++) {
        int64_t before = -1;
        for (int64_t i = 0; i < c->rows[r * ROW_FIELDS + DISTINCT]; i++, token += TOKEN_FIELDS) {
            const bool right = is_within(token[ID], before + 1, c->g->vocab - 1) && is_within(token[IN_PROMPT], 0, 1) &&
                               is_within(token[GENERATED], 0, most) && token[IN_PROMPT] + token[GENERATED] > 0;
            if (!kr_require(c->ctx, right, KR_ERR_FORMAT,
                            "row %lld of tensor 'generation.occurred' has a number out of range",
                            (long long)((token - c->occurred) / TOKEN_FIELDS)))
                return false;
            before = token[ID];
        }
    }
    for (int64_t i = 0; i < c->nbytes; i++)
        if (!kr_require(c->ctx, is_within(c->text[i], 0, 255), KR_ERR_FORMAT,
                        "tensor 'generation.text' holds %lld, which is not a byte", (long long)c->text[i]))
            return false;
    return kr_require(c->ctx, c->totals[PROMPT_TOKENS] >= 0 && c->totals[TOKENS] >= 0, KR_ERR_FORMAT,
                      "tensor 'generation.totals' has a negative count");
}

/* Capacity for the counts of tokens, and for held text, which may be longer than this generation's stops need. */
static bool reserve(const content *c)
{
    for (int64_t r = 0; r < c->g->nrows; r++)
        if (!kr_row_sampler_reserve(&c->g->sampler->rows[r], c->ctx, "generation.load",
                                    c->rows[r * ROW_FIELDS + DISTINCT]) ||
            !kr_require(c->ctx,
                        kr_held_text_reserve(&c->g->rows[r].text, &c->ctx->memory,
                                             c->g->longest + (size_t)c->rows[r * ROW_FIELDS + WAITING]),
                        KR_ERR_NOMEM, "no memory for the text of row %lld", (long long)r))
            return false;
    return true;
}

static void apply(const content *c)
{
    kr_generation *g = c->g;
    uint64_t seed;
    memcpy(&seed, &c->totals[SEED], sizeof seed);
    kr_sampler_forget(g->sampler, seed);
    g->prompt_tokens = c->totals[PROMPT_TOKENS];
    g->tokens = c->totals[TOKENS];
    const int64_t *token = c->occurred, *byte = c->text;
    for (int64_t r = 0; r < g->nrows; r++) {
        const int64_t *from = c->rows + r * ROW_FIELDS;
        kr_continuation *row = &g->rows[r];
        row->pending = (int32_t)from[PENDING];
        row->is_ready = from[READY] >= 0;
        row->ready.id = (int32_t)from[READY];
        memcpy(&row->ready.logprob, &from[READY_LOGPROB], sizeof row->ready.logprob);
        row->finish = (kr_finish)from[FINISH];
        row->ntokens = from[SINCE_FEED];
        g->sampler->rows[r].n_sampled = (uint64_t)from[SAMPLED];
        row->text.nheld = (size_t)from[WAITING];
        row->text.match_from = (size_t)from[MATCH_FROM];
        for (size_t i = 0; i < row->text.nheld; i++) row->text.held[i] = (char)(unsigned char)*byte++;
        for (int64_t i = 0; i < from[DISTINCT]; i++, token += TOKEN_FIELDS) {
            kr_token_count *count = kr_token_counts_put(&g->sampler->rows[r].counts, (int32_t)token[ID]);
            count->is_prompt = token[IN_PROMPT] != 0;
            count->generated = (uint32_t)token[GENERATED];
        }
        kr_held_text_hide(&row->text);
        row->made = (kr_generated){ .text = row->text.shown, .finish = row->finish };
    }
}

static bool take(void *user, const kr_state *state, const kr_tensor_file *file,
                 const kr_tensor_file_item *const *extras)
{
    content *c = user;
    if (!read_content(c, file, extras) || !check_rows(c, state) || !check_tokens(c) || !reserve(c)) return false;
    apply(c);
    return true;
}

static kr_status load_generation(kr_generation *g, const kr_load_source *source)
{
    enum { BLOCK_BYTES = 4096 };
    kr_ctx *ctx = g->ctx;
    if (kr_ctx_failed(ctx)) return ctx->status;
    content c = { .g = g, .ctx = ctx };
    kr_arena_init(&c.arena, &ctx->memory, BLOCK_BYTES);
    kr_state *state = kr_state_file_read(&format, ctx, g->net, source, take, &c);
    kr_arena_deinit(&c.arena);
    if (state) {
        kr_decoder_drop_samples(g->decoder);
        kr_generation_set_state(g, state);
        g->is_inconsistent = false;
    } else {
        kr_blame(ctx, "generation.load");
    }
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
