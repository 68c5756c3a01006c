/* row_snapshot.c - copies of rows: in memory, and as files or streams of model/state_file.c with the tensors
 *
 *   row.numbers   i64 [6]     tokens of the text, where the feed begins that is being read, position of the last
 *                             generated token (-1: none), bytes of text that are held, how many of them are not matched
 *                             with stops, tokens sampled
 *   row.queue     i32 [k]     tokens that were not read
 *   row.ends      i64 [e]     where feeds end among them
 *   row.counts    i64 [m 3]   tokens that occurred, by id: id, in the prompt (0 or 1), times generated
 *   row.text      i32 [n]     the held bytes
 *   row.logits    f32 [w]     those after the last token, f64 for f64 weights, if a device has read it ahead; else [0]
 */
#include "generate/batch_impl.h"
#include "generate/row_numbers.h"
#include "model/state_file.h"
#include "nn/state_rows.h"

#include <math.h>
#include <string.h>

struct kr_snapshot {
    kr_ctx *ctx;
    const kr_network *net;
    kr_state *state; /* NULL: initial */
    kr_row_queue queue;
    kr_token_counts counts;
    int64_t n_tokens, feed_start, sampled_at;
    uint64_t n_sampled;
    kr_row_logits logits; /* if the state has read the last token */
    char *held;           /* [nheld] */
    size_t nheld, match_from;
};

static kr_status status_of(const kr_row *row)
{
    return row ? row->ctx->status : KR_ERR_ARG;
}

/* ---- in memory ---- */

void kr_snapshot_destroy(kr_snapshot *s)
{
    if (!s) return;
    kr_memory *memory = &s->ctx->memory;
    kr_state_destroy(s->state);
    kr_row_logits_free(&s->logits, memory);
    kr_row_queue_free(&s->queue, memory);
    kr_token_counts_free(&s->counts, memory);
    if (s->nheld) kr_memory_free(memory, s->held, s->nheld);
    kr_memory_free(memory, s, sizeof *s);
}

static kr_snapshot *create(kr_ctx *ctx, const kr_network *net)
{
    kr_snapshot *s = kr_memory_alloc_zeroed(&ctx->memory, sizeof *s);
    if (!s) kr_fail(ctx, KR_ERR_NOMEM, "no memory for a snapshot");
    else *s = (kr_snapshot){ .ctx = ctx, .net = net, .sampled_at = -1 };
    return s;
}

static bool copy_held(kr_snapshot *s, const char *held, size_t count)
{
    if (count == 0) return true;
    s->held = kr_memory_alloc(&s->ctx->memory, count);
    if (!s->held) return false;
    memcpy(s->held, held, count);
    s->nheld = count;
    return true;
}

static bool take_text(kr_snapshot *s, const kr_row *row)
{
    kr_memory *memory = &s->ctx->memory;
    s->n_tokens = row->n_tokens;
    s->feed_start = row->feed_start;
    s->sampled_at = row->sampled_at;
    s->n_sampled = row->sampler.n_sampled;
    s->match_from = row->text.match_from;
    return kr_row_queue_copy(&s->queue, &row->queue, memory) &&
           kr_token_counts_copy(&s->counts, &row->sampler.counts, memory) &&
           copy_held(s, row->text.held, row->text.nheld);
}

static bool has_state(const kr_row *row)
{
    return row->place >= 0 || (row->state && !kr_state_is_initial(row->state));
}

kr_snapshot *kr_row_snapshot(kr_row *row)
{
    const char *op = "row.snapshot";
    if (!row || kr_ctx_failed(row->ctx) ||
        !kr_require(row->ctx, row->status == KR_OK, KR_ERR_STATE, "%s: the row has failed: %s", op, row->message))
        return NULL;
    kr_tape_reset(row->batch->tape);
    kr_snapshot *s = create(row->ctx, row->batch->net);
    if (!s) return NULL;
    bool done = kr_require(row->ctx, take_text(s, row), KR_ERR_NOMEM, "%s: no memory for the text of a row", op) &&
                kr_row_copy_logits(row, &s->logits);
    if (done && has_state(row)) {
        const kr_state *view = row->batch->is_separate ? row->state : kr_row_state_view(row);
        s->state = view ? kr_network_state(s->net, 1) : NULL;
        done = s->state && kr_state_copy(s->state, view) == KR_OK;
    }
    if (done) return s;
    kr_blame(row->ctx, "%s", op);
    kr_snapshot_destroy(s);
    return NULL;
}

/* Parts of a row that a snapshot replaces, made before the row is changed. */
typedef struct parts {
    kr_state *state;
    kr_row_logits logits;
    kr_row_queue queue;
    kr_token_counts counts;
} parts;

static void free_parts(kr_ctx *ctx, parts *p)
{
    kr_state_destroy(p->state);
    kr_row_logits_free(&p->logits, &ctx->memory);
    kr_row_queue_free(&p->queue, &ctx->memory);
    kr_token_counts_free(&p->counts, &ctx->memory);
}

static bool make_parts(kr_row *row, const kr_snapshot *s, parts *p)
{
    kr_ctx *ctx = row->ctx;
    const size_t capacity = row->text.capacity + s->nheld;
    if (!kr_require(ctx,
                    kr_row_queue_copy(&p->queue, &s->queue, &ctx->memory) &&
                        kr_token_counts_copy(&p->counts, &s->counts, &ctx->memory) &&
                        kr_held_text_reserve(&row->text, &ctx->memory, capacity),
                    KR_ERR_NOMEM, "no memory for the text of a row") ||
        !kr_row_logits_copy(&p->logits, &s->logits, ctx))
        return false;
    if (!s->state) return true;
    p->state = kr_network_state(s->net, 1);
    return p->state && kr_state_copy(p->state, s->state) == KR_OK;
}

/* Swaps what the row has with the parts, and takes the numbers of the snapshot. */
static void put_parts(kr_row *row, const kr_snapshot *s, parts *p)
{
    const parts old = { row->state, row->logits, row->queue, row->sampler.counts };
    row->state = p->state;
    row->logits = p->logits;
    row->is_ahead = false;
    row->queue = p->queue;
    row->sampler.counts = p->counts;
    *p = old;
    row->sampler.n_sampled = s->n_sampled;
    row->n_tokens = s->n_tokens;
    row->feed_start = s->feed_start;
    row->sampled_at = s->sampled_at;
    if (s->nheld) memcpy(row->text.held, s->held, s->nheld);
    row->text.nheld = s->nheld;
    row->text.match_from = s->match_from;
    kr_held_text_hide(&row->text);
    kr_row_end(row, KR_FINISH_NONE);
    row->n_generated = 0;
    row->status = KR_OK;
    row->message[0] = '\0';
    if (row->queue.count > 1) row->ticket = ++row->batch->n_tickets;
}

static bool restore(kr_row *row, const kr_snapshot *s)
{
    parts p = { .state = NULL };
    const bool made = make_parts(row, s, &p) && (row->place < 0 || kr_row_batch_leave(row, false));
    if (made) put_parts(row, s, &p);
    free_parts(row->ctx, &p);
    return made;
}

kr_status kr_row_restore(kr_row *row, const kr_snapshot *s)
{
    const char *op = "row.restore";
    if (!row || kr_ctx_failed(row->ctx)) return status_of(row);
    if (!kr_require(row->ctx, s != NULL, KR_ERR_ARG, "%s: the snapshot is NULL", op) ||
        !kr_require(row->ctx, s->ctx == row->ctx && s->net == row->batch->net, KR_ERR_STATE,
                    "%s: the snapshot is of another network or context; use kr_row_save and kr_row_load", op))
        return row->ctx->status;
    kr_tape_reset(row->batch->tape);
    if (!restore(row, s)) kr_blame(row->ctx, "%s", op);
    return row->ctx->status;
}

kr_snapshot_info kr_snapshot_info_of(const kr_snapshot *s)
{
    if (!s) return (kr_snapshot_info){ .tokens = 0 };
    const kr_row_logits *logits = &s->logits;
    size_t bytes = sizeof *s + s->nheld;
    if (s->state) bytes += kr_state_info_of(s->state).bytes;
    if (logits->data) bytes += (size_t)logits->width * kr_dtype_bytes(logits->dtype);
    bytes += (size_t)s->queue.capacity * sizeof *s->queue.ids + (size_t)s->queue.end_capacity * sizeof *s->queue.ends;
    bytes += (size_t)s->counts.capacity * sizeof *s->counts.entries;
    return (kr_snapshot_info){ .tokens = s->n_tokens, .queued = s->queue.count, .bytes = bytes };
}

/* ---- as a file ---- */

enum { NUMBERS, QUEUE, ENDS, COUNTS, TEXT, LOGITS, NEXTRAS };
enum { N_TOKENS, FEED_START, SAMPLED_AT, N_HELD, MATCH_FROM, N_SAMPLED, NNUMBERS };

static const kr_state_format format = { .name = "krait.row",
                                        .version = "1",
                                        .what = "row",
                                        .nextras = NEXTRAS,
                                        .extras = { "row.numbers", "row.queue", "row.ends", "row.counts", "row.text",
                                                    "row.logits" } };

static bool save(const kr_snapshot *s, kr_arena *arena, const kr_save_target *target)
{
    int64_t numbers[NNUMBERS] = { s->n_tokens,       s->feed_start,          s->sampled_at,
                                  (int64_t)s->nheld, (int64_t)s->match_from, (int64_t)s->n_sampled };
    int64_t *counts = kr_arena_alloc(arena, (size_t)(s->counts.count * KR_COUNT_FIELDS) * sizeof *counts);
    int32_t *text = kr_arena_alloc(arena, s->nheld * sizeof *text);
    if (!kr_require(s->ctx, counts && text, KR_ERR_NOMEM, "no memory for the counts of %lld tokens",
                    (long long)s->counts.count))
        return false;
    kr_counts_list(&s->counts, counts);
    for (size_t i = 0; i < s->nheld; i++) text[i] = (unsigned char)s->held[i];
    const kr_row_queue *q = &s->queue;
    const kr_state_extra extras[NEXTRAS] = { { KR_DTYPE_I64, KR_SHAPE(NNUMBERS), numbers },
                                             { KR_DTYPE_I32, KR_SHAPE(q->count), kr_row_queue_ids(q) },
                                             { KR_DTYPE_I64, KR_SHAPE(q->n_ends), kr_row_queue_ends(q) },
                                             { KR_DTYPE_I64, KR_SHAPE(s->counts.count, KR_COUNT_FIELDS), counts },
                                             { KR_DTYPE_I32, KR_SHAPE((int64_t)s->nheld), text },
                                             { s->logits.data ? s->logits.dtype : KR_DTYPE_F32,
                                               KR_SHAPE(s->logits.data ? s->logits.width : 0), s->logits.data } };
    kr_state *initial = s->state ? NULL : kr_network_state(s->net, 1);
    const kr_state *state = s->state ? s->state : initial;
    const bool saved = state && kr_state_file_write(&format, state, s->net, extras, target);
    kr_state_destroy(initial);
    return saved;
}

kr_status kr_row_save(kr_row *row, const char *path)
{
    enum { BLOCK_BYTES = 4096 };
    const char *op = "row.save";
    if (!row || kr_ctx_failed(row->ctx)) return status_of(row);
    if (!kr_require(row->ctx, path != NULL, KR_ERR_ARG, "%s: path is NULL", op)) return row->ctx->status;
    kr_snapshot *s = kr_row_snapshot(row);
    kr_arena arena;
    kr_arena_init(&arena, &row->ctx->memory, BLOCK_BYTES);
    if (!s || !save(s, &arena, &(kr_save_target){ .path = path })) kr_blame(row->ctx, "%s", op);
    kr_arena_deinit(&arena);
    kr_snapshot_destroy(s);
    return row->ctx->status;
}

/* The program's function that writes. */
typedef struct sink {
    kr_ctx *ctx;
    kr_write_fn *write;
    void *user;
} sink;

static bool check_answer(kr_ctx *ctx, kr_status status, const char *verb)
{
    return kr_require(ctx, status == KR_OK, status == KR_END ? KR_ERR_ARG : status, "the function that %s returned %s",
                      verb, kr_status_name(status));
}

static bool write_piece(void *user, const void *piece, size_t bytes)
{
    const sink *to = user;
    return bytes == 0 || check_answer(to->ctx, to->write(to->user, piece, bytes), "writes");
}

kr_status kr_snapshot_write(const kr_snapshot *s, kr_write_fn *write, void *user)
{
    enum { BLOCK_BYTES = 4096 };
    const char *op = "snapshot.write";
    if (!s) return KR_ERR_ARG;
    kr_ctx *ctx = s->ctx;
    if (kr_ctx_failed(ctx) || !kr_require(ctx, write != NULL, KR_ERR_ARG, "%s: write is NULL", op)) return ctx->status;
    sink to = { ctx, write, user };
    kr_arena arena;
    kr_arena_init(&arena, &ctx->memory, BLOCK_BYTES);
    if (!save(s, &arena, &(kr_save_target){ .take = write_piece, .user = &to })) kr_blame(ctx, "%s", op);
    kr_arena_deinit(&arena);
    return ctx->status;
}

/* ---- reading a file ---- */

typedef struct content {
    const kr_row_batch *batch; /* that it is for */
    kr_ctx *ctx;
    kr_arena arena;
    kr_snapshot *snapshot;
    int64_t *numbers, *queue, *ends, *counts, *text;
    int64_t n_queue, n_ends, n_counts, n_text;
    kr_row_logits logits;
} content;

/* Their number is checked: none, or as many as the network has. */
static bool read_logits(content *c, const kr_tensor_file *file, const kr_tensor_file_item *item)
{
    const int64_t width = c->batch->net->nw;
    const bool is_none = item->shape.rank == 1 && item->count == 0,
               fits = item->shape.rank == 1 && item->count == width &&
                      (item->dtype == KR_DTYPE_F32 || item->dtype == KR_DTYPE_F64);
    if (!kr_require(c->ctx, is_none || fits, KR_ERR_FORMAT,
                    "tensor '%s' is %s %s, but must be F32 or F64 [0] or [%lld]", item->name, item->type,
                    KR_TEXT_OF_SHAPE(&item->shape), (long long)width))
        return false;
    return is_none || (kr_row_logits_create(&c->logits, c->ctx, item->dtype, width) &&
                       kr_tensor_file_read(file, item, item->dtype, c->logits.data, width) == KR_OK);
}

static bool read_content(content *c, const kr_tensor_file *file, const kr_tensor_file_item *const *extras)
{
    int64_t n_numbers = NNUMBERS;
    c->n_queue = c->n_ends = c->n_counts = c->n_text = -1;
    return (c->numbers = kr_numbers_read(c->ctx, &c->arena, file, extras[NUMBERS], KR_DTYPE_I64, &n_numbers, 0)) &&
           (c->queue = kr_numbers_read(c->ctx, &c->arena, file, extras[QUEUE], KR_DTYPE_I32, &c->n_queue, 0)) &&
           (c->ends = kr_numbers_read(c->ctx, &c->arena, file, extras[ENDS], KR_DTYPE_I64, &c->n_ends, 0)) &&
           (c->counts = kr_numbers_read(c->ctx, &c->arena, file, extras[COUNTS], KR_DTYPE_I64, &c->n_counts,
                                        KR_COUNT_FIELDS)) &&
           (c->text = kr_numbers_read(c->ctx, &c->arena, file, extras[TEXT], KR_DTYPE_I32, &c->n_text, 0)) &&
           read_logits(c, file, extras[LOGITS]);
}

static bool check_numbers(const content *c, const kr_state *state)
{
    const int64_t *n = c->numbers, most = INT64_C(1) << 62;
    const bool right = kr_is_within(n[N_TOKENS], c->n_queue, most) &&
                       kr_is_within(n[FEED_START], 0, n[N_TOKENS] - c->n_queue) &&
                       kr_is_within(n[SAMPLED_AT], -1, n[N_TOKENS] - 1) && n[N_HELD] == c->n_text &&
                       kr_is_within(n[MATCH_FROM], 0, n[N_HELD]) && n[N_SAMPLED] >= 0;
    return kr_require(c->ctx, right, KR_ERR_FORMAT, "tensor 'row.numbers' has a number out of range") &&
           kr_require(c->ctx, kr_state_batch(state) == 1, KR_ERR_FORMAT, "the state has %lld rows, but must have one",
                      (long long)kr_state_batch(state)) &&
           kr_require(c->ctx, n[N_TOKENS] > c->n_queue || kr_state_is_initial(state), KR_ERR_FORMAT,
                      "the state has read something, but the row has read nothing") &&
           kr_require(c->ctx, c->n_text == 0 || c->batch->tok, KR_ERR_ARG,
                      "the file has text that waits, but this batch has no tokenizer");
}

/* Unread tokens belong to feeds, the last of which ends with the text; a single one may be a generated token instead. */
static bool check_queue(const content *c)
{
    const int64_t vocab = c->batch->vocab, n_tokens = c->numbers[N_TOKENS];
    int64_t before = n_tokens - c->n_queue;
    bool right = c->n_ends > 0 || c->n_queue <= 1;
    for (int64_t i = 0; i < c->n_queue; i++) right = right && kr_is_within(c->queue[i], 0, vocab - 1);
    for (int64_t i = 0; i < c->n_ends; i++) {
        right = right && kr_is_within(c->ends[i], before + 1, n_tokens);
        before = c->ends[i];
    }
    if (c->logits.data) right = right && c->n_queue > 0 && c->numbers[SAMPLED_AT] == n_tokens - c->n_queue;
    return kr_require(c->ctx, right && (c->n_ends == 0 || before == n_tokens), KR_ERR_FORMAT,
                      "tensor 'row.queue' or 'row.ends' has a number out of range");
}

static bool check_counts(const content *c)
{
    const int64_t wrong = kr_counts_find_wrong(c->counts, c->n_counts, c->batch->vocab);
    return kr_require(c->ctx, wrong < 0, KR_ERR_FORMAT, "row %lld of tensor 'row.counts' has a number out of range",
                      (long long)wrong) &&
           kr_bytes_check(c->ctx, "row.text", c->text, c->n_text);
}

static bool fill_snapshot(content *c)
{
    kr_snapshot *s = c->snapshot;
    kr_memory *memory = &c->ctx->memory;
    if (!kr_row_queue_reserve(&s->queue, memory, c->n_queue, c->n_ends) ||
        !kr_token_counts_reserve(&s->counts, memory, c->n_counts))
        return false;
    for (int64_t i = 0; i < c->n_queue; i++) kr_row_queue_put(&s->queue, (int32_t)c->queue[i]);
    for (int64_t i = 0; i < c->n_ends; i++) kr_row_queue_put_end(&s->queue, c->ends[i]);
    kr_counts_put_list(&s->counts, c->counts, c->n_counts);
    s->logits = c->logits;
    c->logits = (kr_row_logits){ .data = NULL };
    s->n_tokens = c->numbers[N_TOKENS];
    s->feed_start = c->numbers[FEED_START];
    s->sampled_at = c->numbers[SAMPLED_AT];
    s->match_from = (size_t)c->numbers[MATCH_FROM];
    s->n_sampled = (uint64_t)c->numbers[N_SAMPLED];
    char *held = kr_arena_alloc(&c->arena, (size_t)c->n_text);
    for (int64_t i = 0; held && i < c->n_text; i++) held[i] = (char)(unsigned char)c->text[i];
    return held && copy_held(s, held, (size_t)c->n_text);
}

static bool take(void *user, const kr_state *state, const kr_tensor_file *file,
                 const kr_tensor_file_item *const *extras)
{
    content *c = user;
    return read_content(c, file, extras) && check_numbers(c, state) && check_queue(c) && check_counts(c) &&
           (c->snapshot = create(c->ctx, c->batch->net)) != NULL &&
           kr_require(c->ctx, fill_snapshot(c), KR_ERR_NOMEM, "no memory for the text of a row");
}

/* NULL after an error. */
static kr_snapshot *load(const kr_row_batch *batch, const kr_load_source *source)
{
    enum { BLOCK_BYTES = 4096 };
    kr_ctx *ctx = batch->ctx;
    content c = { .batch = batch, .ctx = ctx };
    kr_arena_init(&c.arena, &ctx->memory, BLOCK_BYTES);
    kr_state *state = kr_state_file_read(&format, ctx, batch->net, source, take, &c);
    kr_arena_deinit(&c.arena);
    kr_row_logits_free(&c.logits, &ctx->memory);
    if (state) {
        c.snapshot->state = state;
        return c.snapshot;
    }
    kr_snapshot_destroy(c.snapshot);
    return NULL;
}

kr_status kr_row_load(kr_row *row, const char *path)
{
    const char *op = "row.load";
    if (!row || kr_ctx_failed(row->ctx)) return status_of(row);
    kr_ctx *ctx = row->ctx;
    if (!kr_require(ctx, path != NULL, KR_ERR_ARG, "%s: path is NULL", op)) return ctx->status;
    kr_tape_reset(row->batch->tape);
    kr_snapshot *s = load(row->batch, &(kr_load_source){ .path = path });
    if (!s || !restore(row, s)) kr_blame(ctx, "%s", op);
    kr_snapshot_destroy(s);
    return ctx->status;
}

/* ---- reading a stream ---- */

typedef struct buffer {
    kr_memory *memory;
    char *data; /* [capacity] */
    size_t count, capacity;
} buffer;

static bool widen(kr_ctx *ctx, buffer *b)
{
    enum { LEAST = 1 << 16 };
    const size_t wider = b->capacity ? 2 * b->capacity : LEAST;
    char *own = wider > b->capacity ? kr_memory_alloc(b->memory, wider) : NULL;
    if (!kr_require(ctx, own != NULL, KR_ERR_NOMEM, "no memory for more than %zu bytes", b->count)) return false;
    if (b->count) memcpy(own, b->data, b->count);
    if (b->capacity) kr_memory_free(b->memory, b->data, b->capacity);
    b->data = own;
    b->capacity = wider;
    return true;
}

/* All that the function has. */
static bool read_all(kr_ctx *ctx, buffer *b, kr_read_fn *read, void *user)
{
    for (;;) {
        if (b->count == b->capacity && !widen(ctx, b)) return false;
        const size_t most = b->capacity - b->count;
        size_t bytes = 0;
        const kr_status status = read(user, b->data + b->count, most, &bytes);
        if (status == KR_END) return true;
        if (!check_answer(ctx, status, "reads") ||
            !kr_require(ctx, bytes > 0 && bytes <= most, KR_ERR_ARG,
                        "the function that reads returned %zu bytes, but must return from 1 to the %zu asked for, or "
                        "KR_END",
                        bytes, most))
            return false;
        b->count += bytes;
    }
}

kr_snapshot *kr_snapshot_read(kr_row_batch *batch, kr_read_fn *read, void *user)
{
    const char *op = "snapshot.read";
    if (!batch || kr_ctx_failed(batch->ctx)) return NULL;
    kr_ctx *ctx = batch->ctx;
    if (!kr_require(ctx, read != NULL, KR_ERR_ARG, "%s: read is NULL", op)) return NULL;
    buffer all = { .memory = &ctx->memory };
    kr_snapshot *s = read_all(ctx, &all, read, user)
                         ? load(batch, &(kr_load_source){ .is_memory = true, .data = all.data, .bytes = all.count })
                         : NULL;
    if (all.capacity) kr_memory_free(all.memory, all.data, all.capacity);
    if (!s) kr_blame(ctx, "%s", op);
    return s;
}

/* ---- norms ---- */

/* Index of the cache's recurrent state, which is its largest tensor. */
static int recurrent_of(const kr_cache *cache, int n)
{
    int best = 0;
    for (int i = 1; i < n; i++)
        if (kr_count_of(cache->tensors[i]) > kr_count_of(cache->tensors[best])) best = i;
    return best;
}

static bool read_norms(kr_row *row, const kr_tensor *x, int64_t heads, double *norms)
{
    kr_ctx *ctx = row->ctx;
    const int64_t count = kr_count_of(x), width = count / heads;
    double *values = kr_memory_alloc(&ctx->memory, (size_t)count * sizeof *values);
    if (!kr_require(ctx, values != NULL, KR_ERR_NOMEM, "no memory for %lld numbers", (long long)count)) return false;
    const bool was_read = kr_tensor_read(x, KR_DTYPE_F64, values, count) == KR_OK;
    for (int64_t h = 0; was_read && h < heads; h++) {
        double sum = 0;
        for (int64_t i = 0; i < width; i++) sum += values[h * width + i] * values[h * width + i];
        norms[h] = sqrt(sum / (double)width);
    }
    kr_memory_free(&ctx->memory, values, (size_t)count * sizeof *values);
    return was_read;
}

kr_status kr_row_state_norms(kr_row *row, int64_t slot, double *norms, int64_t capacity, int64_t *count)
{
    const char *op = "row.state_norms";
    if (count) *count = 0;
    if (!row || kr_ctx_failed(row->ctx)) return status_of(row);
    kr_ctx *ctx = row->ctx;
    const kr_network *net = row->batch->net;
    const kr_state_layout layout = kr_network_layout(net);
    if (!kr_require(ctx, slot >= 0 && slot < layout.nslots, KR_ERR_ARG,
                    "%s: slot = %lld, but the network has slots from 0 to %lld", op, (long long)slot,
                    (long long)layout.nslots - 1) ||
        !kr_require(ctx, count && (norms || capacity == 0), KR_ERR_ARG, "%s: %s is NULL", op,
                    count ? "norms" : "count"))
        return ctx->status;
    kr_tape_reset(row->batch->tape);
    const kr_state *view = kr_row_state_view(row);
    if (!view) return ctx->status;
    const kr_cache *cache = &view->slots[slot];
    const kr_tensor *x = cache->tensors[recurrent_of(cache, kr_slot_kind(view, slot)->ncache)];
    const int64_t heads = x->rank == 4 ? x->dims[1] : 1;
    *count = heads;
    if (capacity == 0) return KR_OK;
    if (kr_require(ctx, capacity >= heads, KR_ERR_ARG, "%s: capacity = %lld, but there are %lld heads", op,
                   (long long)capacity, (long long)heads) &&
        !read_norms(row, x, heads, norms))
        kr_blame(ctx, "%s", op);
    return ctx->status;
}
