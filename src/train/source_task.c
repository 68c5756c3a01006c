/* source_task.c - rows of symbols with a label each, in memory, as a source. */
#include "train/source.h"

#include <krait/tasks.h>

#include <math.h>
#include <string.h>

typedef struct task_source {
    kr_source base;
    int64_t length;
    int32_t *symbols, *labels; /* info.count of each */
    bool is_one_hot;
} task_source;

static const task_source *of(const kr_source *source)
{
    return (const task_source *)(const void *)source;
}

static bool read_symbols(const kr_source *source, int64_t from, int64_t count, const kr_positions *out)
{
    const task_source *s = of(source);
    const int64_t nf = source->info.n_features;
    for (int64_t i = 0; i < count; i++) {
        const int32_t symbol = s->symbols[from + i];
        out->labels[i] = s->labels[from + i];
        if (out->ids) out->ids[i] = symbol;
        for (int64_t f = 0; out->x && f < nf; f++) out->x[i * nf + f] = f == symbol ? 1.0F : 0.0F;
    }
    return true;
}

static int64_t find_start(const kr_source *source, int64_t from, int64_t to)
{
    return kr_next_multiple(from, to, of(source)->length);
}

static void deinit(kr_source *source)
{
    task_source *s = (task_source *)(void *)source;
    const size_t bytes = (size_t)source->info.count * sizeof(int32_t);
    kr_memory_free(&source->ctx->memory, s->symbols, bytes);
    kr_memory_free(&source->ctx->memory, s->labels, bytes);
}

static const kr_source_kind task_kind = { sizeof(task_source), read_symbols, find_start, deinit };

/* Room for n_rows rows. */
static task_source *make(kr_ctx *ctx, int64_t n_rows, int64_t length, int64_t n_symbols, int64_t n_classes,
                         bool is_one_hot)
{
    kr_source *source = kr_source_new(ctx, &task_kind);
    if (!source) return NULL;
    task_source *s = (task_source *)(void *)source;
    source->info = (kr_source_info){ .count = n_rows * length, .n_classes = n_classes };
    *(is_one_hot ? &source->info.n_features : &source->info.n_ids) = n_symbols;
    s->length = length;
    s->is_one_hot = is_one_hot;
    const size_t bytes = (size_t)source->info.count * sizeof(int32_t);
    s->symbols = kr_memory_alloc(&ctx->memory, bytes);
    s->labels = kr_memory_alloc(&ctx->memory, bytes);
    if (s->symbols && s->labels) return s;
    kr_fail(ctx, KR_ERR_NOMEM, "task: no memory for %lld rows of %lld", (long long)n_rows, (long long)length);
    kr_source_destroy(source);
    return NULL;
}

kr_source *kr_source_task(kr_ctx *ctx, const kr_task *task, int64_t n_rows, bool is_one_hot)
{
    enum { MOST_ROWS = 1 << 24, MOST_LENGTH = 1 << 24 };
    if (kr_ctx_failed(ctx) || !kr_require(ctx, task, KR_ERR_ARG, "task: is NULL")) return NULL;
    const char *name = kr_task_name(task->kind);
    const int least = task->kind == KR_TASK_A5 ? 1 : 12;
    if (!kr_require(ctx, name, KR_ERR_ARG, "task: kind = %d is no task", (int)task->kind) ||
        !kr_require(ctx, kr_task_family(task->kind, task->family), KR_ERR_ARG, "task %s: family = %d, but it has %d",
                    name, task->family, kr_task_families(task->kind)) ||
        !kr_require(ctx, task->length >= least && task->length <= MOST_LENGTH, KR_ERR_ARG,
                    "task %s: length = %lld must be from %d to %d", name, (long long)task->length, least,
                    MOST_LENGTH) ||
        !kr_require(ctx, n_rows >= 1 && n_rows <= MOST_ROWS, KR_ERR_ARG, "task %s: n_rows = %lld must be from 1 to %d",
                    name, (long long)n_rows, MOST_ROWS))
        return NULL;
    task_source *s = make(ctx, n_rows, task->length, KR_TASK_SYMBOLS, kr_task_classes(task->kind), is_one_hot);
    if (!s) return NULL;
    kr_task_fill(task, n_rows, s->symbols, s->labels);
    return &s->base;
}

/* ---- modular addition ---- */

kr_modular_task kr_modular_task_default(void)
{
    return (kr_modular_task){ .p = 97, .n_terms = 2, .train_fraction = 0.5, .part = KR_DATA_TRAIN };
}

/* p^n_terms; 0 if that is above the most. */
static int64_t row_count(const kr_modular_task *task)
{
    const int64_t most = 2000000;
    int64_t total = 1;
    for (int64_t i = 0; i < task->n_terms; i++) {
        if (total > most / task->p) return 0;
        total *= task->p;
    }
    return total;
}

/* The numbers 0 .. total - 1, by Fisher and Yates from the end. */
static void shuffle(int64_t *order, int64_t total, uint64_t seed)
{
    for (int64_t i = 0; i < total; i++) order[i] = i;
    for (int64_t i = total - 1; i > 0; i--) {
        const int64_t j = (int64_t)(kr_splitmix64(&seed) % (uint64_t)(i + 1)), kept = order[i];
        order[i] = order[j];
        order[j] = kept;
    }
}

/* Digits of the row's number, the most significant first, and their sum at the last one. */
static void write_row(const kr_modular_task *task, int64_t number, int32_t *symbols, int32_t *labels)
{
    int64_t sum = 0;
    for (int64_t i = task->n_terms - 1; i >= 0; i--, number /= task->p) {
        symbols[i] = (int32_t)(number % task->p);
        labels[i] = KR_NOT_SCORED;
        sum += symbols[i];
    }
    labels[task->n_terms - 1] = (int32_t)(sum % task->p);
}

kr_source *kr_source_modular(kr_ctx *ctx, const kr_modular_task *task)
{
    if (kr_ctx_failed(ctx) || !kr_require(ctx, task, KR_ERR_ARG, "modular: the task is NULL")) return NULL;
    if (!kr_require(ctx, task->p >= 2 && task->n_terms >= 1 && row_count(task) > 0, KR_ERR_ARG,
                    "modular: p = %lld must be at least 2, n_terms = %lld at least 1, and p^n_terms at most 2000000",
                    (long long)task->p, (long long)task->n_terms) ||
        !kr_require(ctx, task->train_fraction >= 0 && task->train_fraction <= 1, KR_ERR_ARG,
                    "modular: train_fraction = %g must be from 0 to 1", task->train_fraction) ||
        !kr_require(ctx, task->part == KR_DATA_TRAIN || task->part == KR_DATA_VALIDATION, KR_ERR_ARG,
                    "modular: part = %d is no kr_data_part", (int)task->part))
        return NULL;
    const int64_t total = row_count(task), n_train = (int64_t)llround(task->train_fraction * (double)total);
    const int64_t from = task->part == KR_DATA_TRAIN ? 0 : n_train;
    const int64_t n_rows = task->part == KR_DATA_TRAIN ? n_train : total - n_train;
    if (!kr_require(ctx, n_rows > 0, KR_ERR_ARG, "modular: train_fraction = %g of %lld rows leaves this part none",
                    task->train_fraction, (long long)total))
        return NULL;
    int64_t *order = kr_memory_alloc(&ctx->memory, (size_t)total * sizeof *order);
    if (!kr_require(ctx, order, KR_ERR_NOMEM, "modular: no memory for %lld rows", (long long)total)) return NULL;
    task_source *s = make(ctx, n_rows, task->n_terms, task->p, task->p, false);
    shuffle(order, total, task->split_seed);
    for (int64_t i = 0; s && i < n_rows; i++)
        write_row(task, order[from + i], s->symbols + i * task->n_terms, s->labels + i * task->n_terms);
    kr_memory_free(&ctx->memory, order, (size_t)total * sizeof *order);
    return s ? &s->base : NULL;
}
