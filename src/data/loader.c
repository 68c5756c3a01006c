/* loader.c - cuts a source into rows, and orders them. */
#include "data/loader.h"

#include "base/sized.h"
#include "data/shuffle.h"

#include <math.h>

/* Random stream of the split into training and validation; no epoch uses it. */
#define SPLIT_STREAM UINT64_MAX

KR_DEFAULTS(kr_loader_options) = {
    .size = sizeof(kr_loader_options), .batch = 8, .length = 256, .shuffle = true, .pack = true, .reset = true
};

/* ---- parts ---- */

static bool check(const kr_loader *l)
{
    enum { MOST_ROWS = 1 << 24 };
    const int64_t most_length = INT64_C(1) << 32;
    const kr_loader_options *o = &l->options;
    kr_ctx *ctx = l->ctx;
    return kr_require(ctx, o->batch >= 1 && o->batch <= MOST_ROWS, KR_ERR_ARG,
                      "loader: batch = %lld must be from 1 to %d", (long long)o->batch, MOST_ROWS) &&
           kr_require(ctx, o->length >= 0 && o->length <= most_length, KR_ERR_ARG,
                      "loader: length = %lld must be from 0 to %lld", (long long)o->length, (long long)most_length) &&
           kr_require(ctx, o->length > 0 || !o->pack, KR_ERR_ARG,
                      "loader: length = 0 stands for whole documents, which needs pack = false") &&
           kr_require(ctx, o->pack || !o->carry, KR_ERR_ARG, "loader: carry needs pack = true") &&
           kr_require(ctx, o->n_epochs >= 0, KR_ERR_ARG, "loader: n_epochs = %lld must not be negative",
                      (long long)o->n_epochs) &&
           kr_require(ctx, o->part == KR_DATA_PART_TRAIN || o->part == KR_DATA_PART_VALIDATION, KR_ERR_ARG,
                      "loader: part = %d is not a kr_data_part", (int)o->part) &&
           kr_require(ctx, o->validation_fraction >= 0 && o->validation_fraction < 1, KR_ERR_ARG,
                      "loader: validation_fraction = %g must be at least 0 and below 1", o->validation_fraction) &&
           kr_require(ctx, o->part == KR_DATA_PART_TRAIN || o->validation_fraction > 0, KR_ERR_ARG,
                      "loader: the validation part is empty: validation_fraction is 0");
}

/* How many of n are for training. */
static int64_t train_share(const kr_loader *l, int64_t n)
{
    return n - (int64_t)llround(l->options.validation_fraction * (double)n);
}

static int64_t ceil_div(int64_t a, int64_t b)
{
    return a / b + (a % b != 0);
}

/* Packed and carried: a stretch of the corpus. */
static bool take_stretch(kr_loader *l)
{
    const kr_source *s = l->source;
    const kr_loader_options *o = &l->options;
    int64_t cut = train_share(l, s->info.count);
    const int64_t start = s->kind->find_start(s, cut, s->info.count);
    if (start < s->info.count) cut = start;
    l->from = o->part == KR_DATA_PART_TRAIN ? 0 : cut;
    l->count = (o->part == KR_DATA_PART_TRAIN ? cut : s->info.count - cut) - s->info.predict_next;
    if (l->count < 0) l->count = 0;
    l->n_rows = o->carry ? o->batch : ceil_div(l->count, o->length);
    if (!o->carry) return true;
    l->steps = o->drop_last ? l->count / o->batch / o->length : ceil_div(ceil_div(l->count, o->batch), o->length);
    return kr_require(l->ctx, l->count >= o->batch, KR_ERR_ARG,
                      "loader: %lld positions are too few for %lld carried rows", (long long)l->count,
                      (long long)o->batch);
}

/* ---- documents ---- */

static bool is_in_part(const kr_loader *l, int64_t document, int64_t total)
{
    const bool is_train = kr_shuffled(total, l->options.split_seed, SPLIT_STREAM, document) < train_share(l, total);
    return is_train == (l->options.part == KR_DATA_PART_TRAIN);
}

static void take_document(kr_loader *l, int64_t from, int64_t to)
{
    const int64_t count = to - from - l->source->info.predict_next;
    if (count <= 0) return;
    l->documents[l->n_documents++] = (kr_loader_document){ from, count, l->n_rows };
    l->n_rows += l->options.length ? ceil_div(count, l->options.length) : 1;
    l->count += count;
}

static size_t document_bytes(const kr_loader *l)
{
    return (size_t)l->n_documents * sizeof *l->documents;
}

/* The documents of the part with at least one position to score. */
static bool take_documents(kr_loader *l)
{
    const kr_source *s = l->source;
    int64_t total = 0;
    for (int64_t at = 0; at < s->info.count; at = s->kind->find_start(s, at + 1, s->info.count)) total++;
    l->n_documents = total;
    l->documents = kr_memory_alloc(&l->ctx->memory, document_bytes(l));
    if (!kr_require(l->ctx, l->documents, KR_ERR_NOMEM, "loader: no memory for an index of %lld documents",
                    (long long)total))
        return false;
    kr_loader_document *all = l->documents;
    l->n_documents = 0;
    int64_t document = 0;
    for (int64_t at = 0; at < s->info.count; document++) {
        const int64_t end = s->kind->find_start(s, at + 1, s->info.count);
        if (is_in_part(l, document, total)) take_document(l, at, end);
        at = end;
    }
    /* the block is freed by its size, so it is shrunk to the used part */
    const int64_t used = l->n_documents;
    l->documents = kr_memory_alloc(&l->ctx->memory, document_bytes(l));
    for (int64_t i = 0; l->documents && i < used; i++) l->documents[i] = all[i];
    kr_memory_free(&l->ctx->memory, all, (size_t)total * sizeof *all);
    return kr_require(l->ctx, l->documents, KR_ERR_NOMEM, "loader: no memory for an index of %lld documents",
                      (long long)used);
}

/* The last document that begins at or before a row of the part. */
static const kr_loader_document *document_of(const kr_loader *l, int64_t row)
{
    int64_t low = 0, high = l->n_documents - 1;
    while (low < high) {
        const int64_t middle = low + (high - low + 1) / 2;
        if (l->documents[middle].before <= row) low = middle;
        else high = middle - 1;
    }
    return l->documents + low;
}

/* ---- rows ---- */

static int64_t at_most(int64_t count, int64_t most)
{
    return count < 0 ? 0 : count < most ? count : most;
}

kr_loader_row kr_loader_row_at(const kr_loader *l, int64_t b)
{
    const kr_loader_options *o = &l->options;
    if (o->carry) {
        /* b count / batch, without the product */
        const int64_t each = l->count / o->batch, more = l->count % o->batch;
        const int64_t begin = b * each + b * more / o->batch, end = (b + 1) * each + (b + 1) * more / o->batch;
        const int64_t from = begin + l->step * o->length;
        return (kr_loader_row){ l->from + (from < end ? from : end), at_most(end - from, o->length) };
    }
    int64_t row = l->step * o->batch + b;
    if (o->shuffle) row = kr_shuffled(l->n_rows, o->seed, (uint64_t)l->epoch, row);
    if (o->pack) {
        const int64_t from = row * o->length;
        return (kr_loader_row){ l->from + from, at_most(l->count - from, o->length) };
    }
    const kr_loader_document *document = document_of(l, row);
    const int64_t from = (row - document->before) * o->length;
    return (kr_loader_row){ document->from + from,
                            o->length ? at_most(document->count - from, o->length) : document->count };
}

/* ---- life ---- */

static bool build(kr_loader *l)
{
    const kr_loader_options *o = &l->options;
    if (!check(l) || !(o->pack ? take_stretch(l) : take_documents(l))) return false;
    if (!o->carry) l->steps = o->drop_last ? l->n_rows / o->batch : ceil_div(l->n_rows, o->batch);
    return kr_require(l->ctx, l->count > 0, KR_ERR_ARG,
                      "loader: nothing to %s: the source has %lld positions, validation_fraction is %g",
                      o->part == KR_DATA_PART_TRAIN ? "train on" : "validate on", (long long)l->source->info.count,
                      o->validation_fraction) &&
           kr_require(l->ctx, l->steps > 0, KR_ERR_ARG,
                      "loader: drop_last leaves no batch: %lld positions do not fill %lld rows of %lld",
                      (long long)l->count, (long long)o->batch, (long long)o->length);
}

kr_loader *kr_loader_create(const kr_source *source, const kr_loader_options *options)
{
    if (!source || kr_ctx_failed(source->ctx)) return NULL;
    enum { BLOCK_BYTES = 1 << 14 };
    kr_ctx *ctx = source->ctx;
    kr_loader *l = kr_memory_alloc_zeroed(&ctx->memory, sizeof *l);
    if (!kr_require(ctx, l, KR_ERR_NOMEM, "loader: no memory for a loader")) return NULL;
    l->ctx = ctx;
    l->source = source;
    kr_arena_init(&l->arena, &ctx->memory, BLOCK_BYTES);
    if (KR_TAKE(ctx, "loader", kr_loader_options, options, &l->options) && build(l)) return l;
    kr_loader_destroy(l);
    return NULL;
}

void kr_loader_destroy(kr_loader *l)
{
    if (!l) return;
    kr_memory *memory = &l->ctx->memory;
    kr_arena_deinit(&l->arena);
    kr_memory_free(memory, l->documents, document_bytes(l));
    kr_memory_free(memory, l, sizeof *l);
}

/* ---- position ---- */

kr_loader_position kr_loader_snapshot(const kr_loader *l)
{
    if (!l) return (kr_loader_position){ 0 };
    return (kr_loader_position){
        .seed = l->options.seed, .epoch = l->epoch, .step = l->step, .count = l->count, .steps_per_epoch = l->steps
    };
}

int64_t kr_loader_left(const kr_loader *l)
{
    const int64_t epochs = l->options.n_epochs - l->epoch;
    if (l->options.n_epochs == 0) return INT64_MAX;
    return epochs > 0 ? epochs * l->steps - l->step : 0;
}

kr_loader_position kr_loader_after(kr_loader_position position, int64_t count)
{
    const int64_t step = position.step + count;
    position.epoch += step / position.steps_per_epoch;
    position.step = step % position.steps_per_epoch;
    return position;
}

kr_status kr_loader_restore(kr_loader *l, const kr_loader_position *position)
{
    if (!l) return KR_ERR_ARG;
    kr_ctx *ctx = l->ctx;
    if (kr_ctx_failed(ctx)) return kr_ctx_status(ctx);
    if (kr_require(ctx, position, KR_ERR_ARG, "loader.restore: position is NULL") &&
        kr_require(
            ctx, position->count == l->count && position->steps_per_epoch == l->steps, KR_ERR_ARG,
            "loader.restore: the position belongs to %lld steps through %lld positions, but this loader has %lld "
            "through %lld; source and options must be those it was saved with",
            (long long)position->steps_per_epoch, (long long)position->count, (long long)l->steps,
            (long long)l->count) &&
        kr_require(ctx, position->epoch >= 0 && position->step >= 0 && position->step < l->steps, KR_ERR_ARG,
                   "loader.restore: invalid position: step %lld of epoch %lld, of %lld steps",
                   (long long)position->step, (long long)position->epoch, (long long)l->steps)) {
        l->options.seed = position->seed;
        l->epoch = position->epoch;
        l->step = position->step;
    }
    return kr_ctx_status(ctx);
}
