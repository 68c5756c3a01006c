/* task_sources.c - rows of symbols with a label each, in memory, as a source. */
#include "lab/tasks.h"

#include <math.h>
#include <stdlib.h>

typedef struct task_rows {
    int64_t length, n_features; /* n_features 0: ids */
    int32_t *symbols, *labels;
} task_rows;

static kr_status read_symbols(void *user, int64_t from, int64_t count, const kr_positions *out)
{
    const task_rows *rows = user;
    const int64_t nf = rows->n_features;
    for (int64_t i = 0; i < count; i++) {
        const int32_t symbol = rows->symbols[from + i];
        out->labels[i] = rows->labels[from + i];
        if (out->ids) out->ids[i] = symbol;
        for (int64_t f = 0; out->x && f < nf; f++) out->x[i * nf + f] = f == symbol ? 1.0F : 0.0F;
    }
    return KR_OK;
}

static int64_t find_row(void *user, int64_t from, int64_t to)
{
    const task_rows *rows = user;
    const int64_t start = (from + rows->length - 1) / rows->length * rows->length;
    return start < to ? start : to;
}

static void free_rows(void *user)
{
    task_rows *rows = user;
    if (rows) {
        free(rows->symbols);
        free(rows->labels);
    }
    free(rows);
}

/* Space for n_rows rows; NULL with the context's error set. */
static task_rows *new_rows(kr_ctx *ctx, int64_t n_rows, int64_t length)
{
    task_rows *rows = calloc(1, sizeof *rows);
    if (rows) {
        rows->length = length;
        rows->symbols = malloc((size_t)(n_rows * length) * sizeof *rows->symbols);
        rows->labels = malloc((size_t)(n_rows * length) * sizeof *rows->labels);
        if (rows->symbols && rows->labels) return rows;
    }
    free_rows(rows);
    kr_ctx_fail(ctx, KR_ERR_NOMEM, "task: no memory for %lld rows of %lld", (long long)n_rows, (long long)length);
    return NULL;
}

/* Takes ownership of the rows. */
static kr_source *source_of(kr_ctx *ctx, task_rows *rows, int64_t n_rows, int64_t n_symbols, int64_t n_classes,
                            bool is_one_hot)
{
    const kr_source_callbacks callbacks = { .read = read_symbols, .find_start = find_row, .destroy = free_rows };
    kr_source_info info = { .count = n_rows * rows->length, .n_classes = n_classes };
    *(is_one_hot ? &info.n_features : &info.n_ids) = n_symbols;
    rows->n_features = info.n_features;
    kr_source *source = kr_source_custom(ctx, &info, &callbacks, rows);
    if (!source) free_rows(rows);
    return source;
}

kr_source *lab_source_task(kr_ctx *ctx, const lab_task *task, int64_t n_rows, bool is_one_hot)
{
    enum { MOST_ROWS = 1 << 24, MOST_LENGTH = 1 << 24 };
    if (kr_ctx_failed(ctx) || !lab_require(ctx, task, KR_ERR_ARG, "task: is NULL")) return NULL;
    const char *name = lab_task_name(task->kind);
    const int least = task->kind == LAB_TASK_A5 ? 1 : 12;
    if (!lab_require(ctx, name, KR_ERR_ARG, "task: kind = %d is not a task", (int)task->kind) ||
        !lab_require(ctx, lab_task_family(task->kind, task->family), KR_ERR_ARG, "task %s: family = %d, but it has %d",
                     name, task->family, lab_task_families(task->kind)) ||
        !lab_require(ctx, task->length >= least && task->length <= MOST_LENGTH, KR_ERR_ARG,
                     "task %s: length = %lld must be from %d to %d", name, (long long)task->length, least,
                     MOST_LENGTH) ||
        !lab_require(ctx, n_rows >= 1 && n_rows <= MOST_ROWS, KR_ERR_ARG, "task %s: n_rows = %lld must be from 1 to %d",
                     name, (long long)n_rows, MOST_ROWS))
        return NULL;
    task_rows *rows = new_rows(ctx, n_rows, task->length);
    if (!rows) return NULL;
    lab_task_fill(task, n_rows, rows->symbols, rows->labels);
    return source_of(ctx, rows, n_rows, LAB_TASK_SYMBOLS, lab_task_classes(task->kind), is_one_hot);
}

/* ---- modular addition ---- */

lab_modular_task lab_modular_task_default(void)
{
    return (lab_modular_task){ .p = 97, .n_terms = 2, .train_fraction = 0.5, .part = KR_DATA_PART_TRAIN };
}

/* p^n_terms; 0 if it exceeds the limit. */
static int64_t row_count(const lab_modular_task *task)
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
        const int64_t j = (int64_t)(lab_splitmix64(&seed) % (uint64_t)(i + 1)), swapped = order[i];
        order[i] = order[j];
        order[j] = swapped;
    }
}

/* Digits of the row's index, the most significant first, and their sum as the last label. */
static void write_row(const lab_modular_task *task, int64_t number, int32_t *symbols, int32_t *labels)
{
    int64_t sum = 0;
    for (int64_t i = task->n_terms - 1; i >= 0; i--, number /= task->p) {
        symbols[i] = (int32_t)(number % task->p);
        labels[i] = KR_NOT_SCORED;
        sum += symbols[i];
    }
    labels[task->n_terms - 1] = (int32_t)(sum % task->p);
}

kr_source *lab_source_modular(kr_ctx *ctx, const lab_modular_task *task)
{
    if (kr_ctx_failed(ctx) || !lab_require(ctx, task, KR_ERR_ARG, "modular: the task is NULL")) return NULL;
    if (!lab_require(ctx, task->p >= 2 && task->n_terms >= 1 && row_count(task) > 0, KR_ERR_ARG,
                     "modular: p = %lld must be at least 2, n_terms = %lld at least 1, and p^n_terms at most 2000000",
                     (long long)task->p, (long long)task->n_terms) ||
        !lab_require(ctx, task->train_fraction >= 0 && task->train_fraction <= 1, KR_ERR_ARG,
                     "modular: train_fraction = %g must be from 0 to 1", task->train_fraction) ||
        !lab_require(ctx, task->part == KR_DATA_PART_TRAIN || task->part == KR_DATA_PART_VALIDATION, KR_ERR_ARG,
                     "modular: part = %d is not a kr_data_part", (int)task->part))
        return NULL;
    const int64_t total = row_count(task), n_train = (int64_t)llround(task->train_fraction * (double)total);
    const int64_t from = task->part == KR_DATA_PART_TRAIN ? 0 : n_train;
    const int64_t n_rows = task->part == KR_DATA_PART_TRAIN ? n_train : total - n_train;
    if (!lab_require(ctx, n_rows > 0, KR_ERR_ARG, "modular: train_fraction = %g of %lld rows leaves this part none",
                     task->train_fraction, (long long)total))
        return NULL;
    int64_t *order = malloc((size_t)total * sizeof *order);
    task_rows *rows = new_rows(ctx, n_rows, task->n_terms);
    if (order && rows) {
        shuffle(order, total, task->split_seed);
        for (int64_t i = 0; i < n_rows; i++)
            write_row(task, order[from + i], rows->symbols + i * task->n_terms, rows->labels + i * task->n_terms);
    } else {
        kr_ctx_fail(ctx, KR_ERR_NOMEM, "modular: no memory for %lld rows", (long long)total);
        free_rows(rows);
        rows = NULL;
    }
    free(order);
    return rows ? source_of(ctx, rows, n_rows, task->p, task->p, false) : NULL;
}
