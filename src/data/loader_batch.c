/* loader_batch.c - fills in a batch: rows from the source, targets, starts of documents. */
#include "data/loader.h"

#include "tape/tape_impl.h"

#include <math.h>
#include <string.h>

/* A batch in the loader's memory; arrays that the source does not have are NULL. */
typedef struct staging {
    int64_t nb, ns;
    int32_t *ids_bs, *labels_bs, *scored_bs, *reset_bs, *mask_bs;
    float *x_bsf, *targets_bso;
    int32_t *ids_s; /* a row and the position behind it, where that is predicted */
    float *x_sf;
    bool *filled_s; /* the same: is the value filled in? */
} staging;

/* ---- memory ---- */

/* Zeros of 4 bytes each; NULL with the context's error set. */
static void *alloc_zeros(kr_loader *l, int64_t rows, int64_t ns, int64_t width)
{
    const int64_t most = INT64_C(1) << 40;
    const bool fits = ns <= most / rows && width <= most / (rows * ns);
    const size_t bytes = fits ? (size_t)(rows * ns * width) * 4 : 0;
    void *memory = fits ? kr_arena_alloc(&l->arena, bytes) : NULL;
    if (memory) memset(memory, 0, bytes);
    else
        kr_fail(l->ctx, KR_ERR_NOMEM, "loader: no memory for a batch of [%lld, %lld, %lld]", (long long)rows,
                (long long)ns, (long long)width);
    return memory;
}

static bool stage(kr_loader *l, staging *g)
{
    const kr_source_info *info = &l->source->info;
    const int64_t nb = g->nb, ns = g->ns;
    bool ok = (g->reset_bs = alloc_zeros(l, nb, ns, 1)) && (g->mask_bs = alloc_zeros(l, nb, ns, 1));
    ok = ok && (g->scored_bs = alloc_zeros(l, nb, ns, 1));
    if (info->n_ids) ok = ok && (g->ids_bs = alloc_zeros(l, nb, ns, 1)) && (g->ids_s = alloc_zeros(l, 1, ns + 1, 1));
    else
        ok = ok && (g->x_bsf = alloc_zeros(l, nb, ns, info->n_features)) &&
             (g->x_sf = alloc_zeros(l, 1, ns + 1, info->n_features));
    if (info->n_classes) ok = ok && (g->labels_bs = alloc_zeros(l, nb, ns, 1));
    if (info->n_targets) ok = ok && (g->targets_bso = alloc_zeros(l, nb, ns, info->n_targets));
    if (info->predict_next) ok = ok && (g->filled_s = alloc_zeros(l, 1, ns + 1, 1));
    return ok;
}

/* ---- rows ---- */

static int32_t *row_of(int32_t *x_bs, int64_t b, int64_t ns)
{
    return x_bs ? x_bs + b * ns : NULL;
}

/* Reads the source's values and derives the rest. */
static bool read_row(const kr_loader *l, const staging *g, int64_t b, kr_loader_row row)
{
    const kr_source *s = l->source;
    const kr_source_info *info = &s->info;
    const int64_t nf = info->n_features, no = info->n_targets;
    int32_t *ids = row_of(g->ids_bs, b, g->ns), *labels = row_of(g->labels_bs, b, g->ns);
    float *x = g->x_bsf ? g->x_bsf + b * g->ns * nf : NULL;
    float *targets = g->targets_bso ? g->targets_bso + b * g->ns * no : NULL;
    if (!info->predict_next)
        return s->kind->read(s, row.from, row.count,
                             &(kr_positions){ .ids = ids, .x = x, .labels = labels, .targets = targets });
    const size_t n = (size_t)row.count;
    for (size_t i = 0; i <= n; i++) g->filled_s[i] = false;
    if (!s->kind->read(s, row.from, row.count + 1,
                       &(kr_positions){ .ids = g->ids_s, .x = g->x_sf, .is_filled = g->filled_s }))
        return false;
    if (ids) {
        memcpy(ids, g->ids_s, n * sizeof *ids);
        memcpy(labels, g->ids_s + 1, n * sizeof *labels);
    } else {
        memcpy(x, g->x_sf, n * (size_t)nf * sizeof *x);
        memcpy(targets, g->x_sf + nf, n * (size_t)nf * sizeof *targets);
    }
    return true;
}

/* The position of a document that is predicted last; *end is where the next one begins. */
static int64_t last_scored(const kr_loader *l, int64_t position, int64_t *end)
{
    const kr_source *s = l->source;
    *end = s->kind->find_start(s, position + 1, s->info.count);
    return *end - 1 - s->info.predict_next;
}

/* scored[0..count) of a row: 1, or 0 where a rule takes a position out. */
static void mark_scored(const kr_loader *l, kr_loader_row row, int32_t *scored)
{
    const kr_source *s = l->source;
    const int64_t to = row.from + row.count;
    for (int64_t i = 0; i < row.count; i++) scored[i] = !l->options.score_last;
    if (l->options.score_last) {
        for (int64_t at = row.from, end; at < to; at = end) {
            const int64_t last = last_scored(l, at, &end);
            if (last >= row.from && last < to) scored[last - row.from] = 1;
        }
    }
    if (!s->info.predict_next || !l->options.reset) return;
    for (int64_t at = row.from + 1; (at = s->kind->find_start(s, at, to + 1)) <= to; at++)
        scored[at - 1 - row.from] = 0;
}

static void mark_resets(const kr_loader *l, kr_loader_row row, int32_t *reset)
{
    const kr_source *s = l->source;
    const int64_t to = row.from + row.count;
    if (l->options.carry && l->step == 0 && row.count > 0) reset[0] = 1;
    if (!l->options.reset) return;
    int64_t at = row.from + !l->options.carry;
    for (; at < to && (at = s->kind->find_start(s, at, to)) < to; at++) reset[at - row.from] = 1;
}

/* Masks unknown values: targets with a NaN, which become 0, and next positions that are filled in. */
static void leave_out_missing(const kr_loader *l, const staging *g, int64_t b, int64_t count, int32_t *scored)
{
    const int64_t no = l->source->info.n_targets;
    float *targets = g->targets_bso ? g->targets_bso + b * g->ns * no : NULL;
    for (int64_t i = 0; i < count; i++) {
        for (int64_t k = 0; targets && k < no; k++) {
            if (!isnan(targets[i * no + k])) continue;
            targets[i * no + k] = 0;
            scored[i] = 0;
        }
        if (g->filled_s && g->filled_s[i + 1]) scored[i] = 0;
    }
}

static bool fill_row(const kr_loader *l, const staging *g, int64_t b, kr_loader_row row)
{
    int32_t *scored = row_of(g->scored_bs, b, g->ns), *labels = row_of(g->labels_bs, b, g->ns);
    if (row.count > 0) {
        if (!read_row(l, g, b, row)) return false;
        mark_scored(l, row, scored);
        leave_out_missing(l, g, b, row.count, scored);
        mark_resets(l, row, row_of(g->reset_bs, b, g->ns));
    }
    for (int64_t i = 0; i < row.count; i++) g->mask_bs[b * g->ns + i] = 1;
    for (int64_t i = 0; labels && i < g->ns; i++) {
        if (!scored[i]) labels[i] = KR_NOT_SCORED;
        scored[i] = labels[i] != KR_NOT_SCORED;
    }
    return true;
}

/* ---- batches ---- */

static int64_t sum_of(const int32_t *x, int64_t count)
{
    int64_t sum = 0;
    for (int64_t i = 0; i < count; i++) sum += x[i];
    return sum;
}

static bool to_tape(kr_tape *tape, const kr_loader *l, const staging *g, kr_batch *batch)
{
    const int64_t nb = g->nb, ns = g->ns, all = nb * ns;
    const kr_shape bs = KR_SHAPE(nb, ns);
    const kr_source_info *info = &l->source->info;
    kr_batch made = { .n_positions = sum_of(g->mask_bs, all), .epoch = l->epoch, .step = l->step };
    const bool has_targets = g->labels_bs || g->targets_bso;
    made.n_scored = has_targets ? sum_of(g->scored_bs, all) : 0;
    if (g->ids_bs) made.ids_bs = kr_from_data(tape, KR_DTYPE_I32, bs, g->ids_bs);
    if (g->x_bsf) made.x_bsf = kr_from_data(tape, KR_DTYPE_F32, KR_SHAPE(nb, ns, info->n_features), g->x_bsf);
    if (g->labels_bs) made.labels_bs = kr_from_data(tape, KR_DTYPE_I32, bs, g->labels_bs);
    if (g->targets_bso) {
        made.targets_bso = kr_from_data(tape, KR_DTYPE_F32, KR_SHAPE(nb, ns, info->n_targets), g->targets_bso);
        made.scored_bs = kr_from_data(tape, KR_DTYPE_I32, bs, g->scored_bs);
    }
    if (sum_of(g->reset_bs, all) > 0) made.reset_bs = kr_from_data(tape, KR_DTYPE_I32, bs, g->reset_bs);
    if (made.n_positions < all) made.mask_bs = kr_from_data(tape, KR_DTYPE_I32, bs, g->mask_bs);
    if (kr_ctx_failed(l->ctx)) return false;
    *batch = made;
    return true;
}

static bool make_batch(kr_tape *tape, kr_loader *l, kr_batch *batch)
{
    const kr_loader_options *o = &l->options;
    const int64_t left = l->n_rows - l->step * o->batch;
    staging g = { .nb = o->carry || left > o->batch ? o->batch : left, .ns = o->pack ? o->length : 0 };
    for (int64_t b = 0; b < g.nb && !o->pack; b++) {
        const int64_t count = kr_loader_row_at(l, b).count;
        if (count > g.ns) g.ns = count;
    }
    if (!stage(l, &g)) return false;
    for (int64_t b = 0; b < g.nb; b++)
        if (!fill_row(l, &g, b, kr_loader_row_at(l, b))) return false;
    return to_tape(tape, l, &g, batch);
}

kr_status kr_loader_next(kr_tape *tape, kr_loader *l, kr_batch *batch)
{
    if (batch) *batch = (kr_batch){ 0 };
    if (!l || !tape || !batch) return KR_ERR_ARG;
    if (!kr_tape_ready(tape, "loader.next")) return tape->ctx->status;
    if (!kr_require(l->ctx, tape->ctx == l->ctx, KR_ERR_STATE,
                    "loader.next: the tape belongs to another context than the loader"))
        return l->ctx->status;
    if (l->options.n_epochs > 0 && l->epoch >= l->options.n_epochs) return KR_END;
    const bool ok = make_batch(tape, l, batch);
    kr_arena_reset(&l->arena);
    if (ok && ++l->step == l->steps) {
        l->step = 0;
        l->epoch++;
    }
    return ok ? KR_OK : l->ctx->status;
}
