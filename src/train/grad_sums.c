/* grad_sums.c - buffers of gradients, and their sums over micro-batches. */
#include "train/grad_sums.h"

#include "device/device.h"

#include <string.h>

static const kr_dtype types[2] = { KR_DTYPE_F32, KR_DTYPE_F64 };

static int type_of(kr_dtype dtype)
{
    return dtype == KR_DTYPE_F64;
}

void kr_grad_sums_init(kr_grad_sums *g, kr_ctx *ctx, kr_params *params, int64_t bucket_bytes)
{
    *g = (kr_grad_sums){ .ctx = ctx, .params = params, .bucket_bytes = bucket_bytes ? bucket_bytes : KR_BUCKET_BYTES };
}

void kr_grad_sums_add_late(kr_grad_sums *g, const kr_tensor *param)
{
    if (param && g->nlate < KR_LATE_MOST) g->late[g->nlate++] = param;
}

/* ---- layout ---- */

static bool is_late(const kr_grad_sums *g, const kr_tensor *param)
{
    bool found = false;
    for (int i = 0; i < g->nlate; i++) found = found || g->late[i] == param;
    return found;
}

static bool is_trained(const kr_grad_sums *g, int64_t i)
{
    return kr_params_at(g->params, i)->tensor->flags.requires_grad;
}

static size_t buffer_bytes(const kr_grad_sums *g, int type)
{
    return kr_dtype_span(types[type], g->elements[type]);
}

static bool is_in(const kr_grad_sums *g, const char *data)
{
    for (int b = 0; b < g->nbuffers; b++)
        for (int type = 0; type < 2; type++) {
            const char *from = g->buffers[b][type];
            if (from && data >= from && data < from + buffer_bytes(g, type)) return true;
        }
    return false;
}

static void free_all(kr_grad_sums *g)
{
    kr_memory *memory = &g->ctx->memory;
    for (int64_t i = 0; i < g->nrows; i++) {
        kr_tensor *x = g->rows[i].param;
        if (x && x->grad && x->grad->flags.is_part && is_in(g, x->grad->data)) kr_param_drop_grad(x);
    }
    for (int b = 0; b < g->nbuffers; b++)
        for (int type = 0; type < 2; type++)
            if (g->buffers[b][type])
                kr_memory_free(kr_float_memory(g->ctx), g->buffers[b][type], buffer_bytes(g, type));
    if (g->buckets) kr_memory_free(memory, g->buckets, (size_t)g->nrows * sizeof *g->buckets);
    if (g->rows) kr_memory_free(memory, g->rows, (size_t)g->nrows * sizeof *g->rows);
    if (g->order) kr_memory_free(memory, g->order, (size_t)g->nrows * sizeof *g->order);
    kr_grad_sums none = { .ctx = g->ctx, .params = g->params, .bucket_bytes = g->bucket_bytes, .nlate = g->nlate };
    memcpy(none.late, g->late, sizeof none.late);
    *g = none;
}

void kr_grad_sums_deinit(kr_grad_sums *g)
{
    if (g->ctx) free_all(g);
}

static bool is_laid_out(const kr_grad_sums *g)
{
    if (!g->rows || g->nrows != kr_params_count(g->params)) return false;
    for (int64_t i = 0; i < g->nrows; i++) {
        const kr_tensor *x = kr_params_at(g->params, i)->tensor;
        if (g->rows[i].param != (is_trained(g, i) ? x : NULL)) return false;
    }
    return true;
}

/* Appends row order[at] to the last bucket, or to a new one if that is full, of another type, or not late as the row is. */
static void add_to_bucket(kr_grad_sums *g, int64_t at, int64_t count, bool late)
{
    const kr_grad_row *row = &g->rows[g->order[at]];
    kr_grad_bucket *last = g->nbuckets ? &g->buckets[g->nbuckets - 1] : NULL;
    if (!last || last->dtype != row->dtype || kr_dtype_span(row->dtype, last->count) >= (size_t)g->bucket_bytes ||
        late != is_late(g, g->rows[g->order[last->from]].param)) {
        last = &g->buckets[g->nbuckets++];
        *last = (kr_grad_bucket){ .dtype = row->dtype, .first = row->at, .from = at };
    }
    last->end = at + 1;
    last->count = row->at + count - last->first;
}

static void place_row(kr_grad_sums *g, int64_t i, int64_t *at)
{
    kr_tensor *x = kr_params_at(g->params, i)->tensor;
    kr_grad_row *row = &g->rows[i];
    const int64_t unit = KR_ALIGN / (int64_t)kr_dtype_bytes(row->dtype);
    int64_t *end = &g->elements[type_of(row->dtype)];
    const int64_t count = (kr_count_of(x) + unit - 1) / unit * unit;
    row->param = x;
    row->at = *end;
    *end += count;
    g->order[*at] = i;
    add_to_bucket(g, *at, count, is_late(g, x));
    ++*at;
}

static void lay_out(kr_grad_sums *g)
{
    int64_t at = 0;
    for (int late = 0; late < 2; late++)
        for (int64_t i = g->nrows - 1; i >= 0; i--) {
            const kr_tensor *x = kr_params_at(g->params, i)->tensor;
            if (late == 0)
                g->rows[i] = (kr_grad_row){ .dtype = x->dtype == KR_DTYPE_F64 ? KR_DTYPE_F64 : KR_DTYPE_F32 };
            if (is_trained(g, i) && is_late(g, x) == (late == 1)) place_row(g, i, &at);
        }
}

static bool add_buffer(kr_grad_sums *g)
{
    const int b = g->nbuffers++;
    for (int type = 0; type < 2; type++) {
        const size_t bytes = buffer_bytes(g, type);
        g->buffers[b][type] = bytes ? kr_memory_alloc_zeroed(kr_float_memory(g->ctx), bytes) : NULL;
        if (bytes && !g->buffers[b][type])
            return kr_fail(g->ctx, KR_ERR_NOMEM, "trainer: no memory for %zu bytes of gradients", bytes);
    }
    return true;
}

static int buffers_for(int64_t count)
{
    int levels = 0;
    while ((INT64_C(1) << levels) < count) levels++;
    return levels + 1;
}

bool kr_grad_sums_begin(kr_grad_sums *g, int64_t count)
{
    if (!is_laid_out(g)) {
        free_all(g);
        g->nrows = kr_params_count(g->params);
        g->rows = kr_memory_alloc_zeroed(&g->ctx->memory, (size_t)g->nrows * sizeof *g->rows);
        g->buckets = kr_memory_alloc_zeroed(&g->ctx->memory, (size_t)g->nrows * sizeof *g->buckets);
        g->order = kr_memory_alloc_zeroed(&g->ctx->memory, (size_t)g->nrows * sizeof *g->order);
        if (!g->rows || !g->buckets || !g->order) {
            kr_fail(g->ctx, KR_ERR_NOMEM, "trainer: no memory for a list of %lld gradients", (long long)g->nrows);
            free_all(g);
            return false;
        }
        lay_out(g);
    }
    while (g->nbuffers < buffers_for(count))
        if (!add_buffer(g)) {
            free_all(g);
            return false;
        }
    for (int64_t i = 0; i < g->nrows; i++) g->rows[i].is_reached = false;
    for (int k = 0; k < KR_SUM_LEVELS; k++) g->levels[k] = -1;
    g->current = 0;
    g->count = count;
    g->done = 0;
    return true;
}

/* ---- sums ---- */

static void *place(const kr_grad_sums *g, int buffer, kr_dtype dtype, int64_t at)
{
    return (char *)g->buffers[buffer][type_of(dtype)] + kr_dtype_offset(dtype, at);
}

void *kr_grad_sums_at(const kr_grad_sums *g, int64_t i)
{
    return place(g, g->current, g->rows[i].dtype, g->rows[i].at);
}

void *kr_grad_sums_bucket(const kr_grad_sums *g, const kr_grad_bucket *bucket)
{
    return place(g, g->current, bucket->dtype, bucket->first);
}

bool kr_grad_sums_open(kr_grad_sums *g)
{
    for (int64_t i = 0; i < g->nrows; i++) {
        kr_tensor *x = g->rows[i].param;
        if (!x) continue;
        if (x->dtype == g->rows[i].dtype && !kr_param_place_grad(x, kr_grad_sums_at(g, i)))
            return kr_fail(g->ctx, KR_ERR_NOMEM, "trainer: no memory for a gradient");
        kr_param_grad_is_zero(x);
    }
    return true;
}

/* to = a + b, of a bucket in three buffers, some of them the same. */
static bool add(kr_grad_sums *g, const kr_grad_bucket *bucket, int a, int b, int to)
{
    kr_binary_args args = { .walk = { .rank = 1, .dims = { bucket->count }, .strides = { { 1 }, { 1 }, { 1 } } },
                            .a = place(g, a, bucket->dtype, bucket->first),
                            .b = place(g, b, bucket->dtype, bucket->first),
                            .y = place(g, to, bucket->dtype, bucket->first) };
    return KR_RUN(g->ctx, add[kr_real_of(bucket->dtype)], &args);
}

static bool convert(kr_grad_sums *g, kr_dtype y_dtype, void *y, kr_dtype x_dtype, const void *x, int64_t n)
{
    kr_copy_args args = { .walk = { .rank = 1, .dims = { n }, .strides = { { 1 }, { 1 } } },
                          .x_dtype = x_dtype,
                          .y_dtype = y_dtype,
                          .x = x,
                          .y = y };
    return KR_RUN(g->ctx, copy, &args);
}

/* The current buffer's part of a row: widened, or zeros. */
static bool complete(kr_grad_sums *g, int64_t i)
{
    kr_grad_row *row = &g->rows[i];
    const kr_tensor *x = row->param;
    const int64_t n = kr_count_of(x);
    const bool is_written = x->grad && !x->flags.grad_is_zero;
    row->is_reached = row->is_reached || is_written;
    if (!is_written) {
        kr_zero_floats(g->ctx, kr_grad_sums_at(g, i), kr_dtype_span(row->dtype, n));
    } else if (x->dtype != row->dtype) {
        return convert(g, row->dtype, kr_grad_sums_at(g, i), x->dtype, x->grad->data, n);
    }
    return !kr_ctx_failed(g->ctx);
}

bool kr_grad_sums_finish(kr_grad_sums *g, const kr_grad_bucket *bucket)
{
    for (int64_t k = bucket->from; k < bucket->end; k++)
        if (!complete(g, g->order[k])) return false;
    int k = 0;
    for (; (g->done >> k) & 1; k++)
        if (!add(g, bucket, g->levels[k], g->current, g->current)) return false;
    if (g->done + 1 < g->count) return true;
    int sum = -1; /* what is left in the counter, from the largest down */
    for (int top = KR_SUM_LEVELS - 1; top >= k; top--) {
        const int level = g->levels[top];
        if (level < 0) continue;
        if (sum >= 0 && !add(g, bucket, sum, level, sum)) return false;
        if (sum < 0) sum = level;
    }
    return sum < 0 || add(g, bucket, sum, g->current, g->current);
}

static int find_free(const kr_grad_sums *g)
{
    for (int b = 0; b < g->nbuffers; b++) {
        bool is_used = false;
        for (int k = 0; k < KR_SUM_LEVELS; k++) is_used = is_used || g->levels[k] == b;
        if (!is_used) return b;
    }
    return -1;
}

void kr_grad_sums_close(kr_grad_sums *g)
{
    int k = 0;
    for (; (g->done >> k) & 1; k++) g->levels[k] = -1;
    if (++g->done == g->count) return;
    g->levels[k] = g->current;
    g->current = find_free(g);
}

bool kr_grad_sums_finish_all(kr_grad_sums *g)
{
    for (int64_t b = 0; b < g->nbuckets; b++)
        if (!kr_grad_sums_finish(g, &g->buckets[b])) return false;
    kr_grad_sums_close(g);
    return true;
}

bool kr_grad_sums_add(kr_grad_sums *g, const kr_grad_sums *other)
{
    for (int64_t i = 0; i < g->nrows; i++) g->rows[i].is_reached = g->rows[i].is_reached || other->rows[i].is_reached;
    for (int64_t b = 0; b < g->nbuckets; b++) {
        const kr_grad_bucket *bucket = &g->buckets[b];
        kr_binary_args args = { .walk = { .rank = 1, .dims = { bucket->count }, .strides = { { 1 }, { 1 }, { 1 } } },
                                .a = kr_grad_sums_bucket(g, bucket),
                                .b = kr_grad_sums_bucket(other, bucket),
                                .y = kr_grad_sums_bucket(g, bucket) };
        if (!KR_RUN(g->ctx, add[kr_real_of(bucket->dtype)], &args)) return false;
    }
    return true;
}

void kr_grad_sums_end(kr_grad_sums *g, bool keep_grad)
{
    for (int64_t i = 0; i < g->nrows; i++) {
        kr_tensor *x = g->rows[i].param;
        if (!x || !x->grad) continue;
        x->flags.grad_is_zero = !g->rows[i].is_reached;
        if (x->dtype == g->rows[i].dtype) continue;
        if (keep_grad) convert(g, x->dtype, x->grad->data, g->rows[i].dtype, kr_grad_sums_at(g, i), kr_count_of(x));
        else kr_zero_grad(x);
    }
}
