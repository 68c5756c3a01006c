/* sampler.c - options of a sampler, its rows and their tokens; sampler_choose.c selects a token. */
#include "generate/sampler_impl.h"

#include "base/sized.h"
#include "device/device.h"
#include "generate/logits.h"
#include "generate/softmax_f64.h"

#include <math.h>
#include <string.h>

#define OP "sampler.create"

KR_DEFAULTS(kr_sampler_options) = {
    .size = sizeof(kr_sampler_options), .temperature = 1, .top_p = 1, .repetition_penalty = 1
};

/* ---- options ---- */

static bool check_biases(kr_ctx *ctx, const char *op, const kr_sampler_options *o, int64_t vocab)
{
    for (int i = 0; i < o->n_biases; i++) {
        const kr_logit_bias *b = &o->biases[i];
        if (!kr_require(ctx, b->id >= 0 && b->id < vocab, KR_ERR_ARG,
                        "%s: biases[%d].id = %d, but tokens are from 0 to %lld", op, i, (int)b->id,
                        (long long)vocab - 1) ||
            !kr_require(ctx, b->bias < (double)INFINITY, KR_ERR_ARG,
                        "%s: biases[%d].bias = %g, but must be finite or -inf", op, i, b->bias))
            return false;
    }
    return true;
}

bool kr_sampler_take_options(kr_ctx *ctx, const char *op, const kr_sampler_options *options, int64_t vocab,
                             kr_sampler_options *own)
{
    if (!KR_TAKE(ctx, op, kr_sampler_options, options, own)) return false;
    const kr_sampler_options *o = own;
    return kr_require(ctx, o->temperature >= 0 && isfinite(o->temperature), KR_ERR_ARG,
                      "%s: temperature = %g, but must be finite and not negative", op, o->temperature) &&
           kr_require(ctx, o->top_k >= 0, KR_ERR_ARG, "%s: top_k = %lld, but must be at least 1, or 0 for all tokens",
                      op, (long long)o->top_k) &&
           kr_require(ctx, o->top_p > 0 && o->top_p <= 1, KR_ERR_ARG,
                      "%s: top_p = %g, but must be above 0 and at most 1", op, o->top_p) &&
           kr_require(ctx, o->min_p >= 0 && o->min_p <= 1, KR_ERR_ARG, "%s: min_p = %g, but must be from 0 to 1", op,
                      o->min_p) &&
           kr_require(ctx, o->repetition_penalty > 0 && isfinite(o->repetition_penalty), KR_ERR_ARG,
                      "%s: repetition_penalty = %g, but must be above 0 and finite", op, o->repetition_penalty) &&
           kr_require(ctx, isfinite(o->presence_penalty), KR_ERR_ARG, "%s: presence_penalty = %g, but must be finite",
                      op, o->presence_penalty) &&
           kr_require(ctx, isfinite(o->frequency_penalty), KR_ERR_ARG, "%s: frequency_penalty = %g, but must be finite",
                      op, o->frequency_penalty) &&
           kr_require(ctx, o->n_biases >= 0, KR_ERR_ARG, "%s: n_biases = %d, but must not be negative", op,
                      o->n_biases) &&
           kr_require(ctx, o->n_biases == 0 || o->biases, KR_ERR_ARG, "%s: n_biases = %d, but biases is NULL", op,
                      o->n_biases) &&
           check_biases(ctx, op, o, vocab);
}

/* ---- creation ---- */

/* Zeroed memory of the sampler's arena; NULL after an error. */
static void *alloc_zeroed(kr_sampler *s, int64_t count, size_t bytes)
{
    void *at = kr_arena_alloc(&s->arena, (size_t)count * bytes);
    if (at) memset(at, 0, (size_t)count * bytes);
    else
        kr_fail(s->ctx, KR_ERR_NOMEM, OP ": no memory for %lld rows of %lld tokens", (long long)s->nrows,
                (long long)s->vocab);
    return at;
}

static bool copy_biases(kr_sampler *s)
{
    const int n = s->options.n_biases;
    kr_logit_bias *own = n ? alloc_zeroed(s, n, sizeof *own) : NULL;
    if (own) memcpy(own, s->options.biases, (size_t)n * sizeof *own);
    s->options.biases = own;
    return own || n == 0;
}

bool kr_sampler_work_init(kr_sampler_work *work, kr_ctx *ctx, kr_arena *arena, int64_t vocab)
{
    const size_t n = (size_t)vocab;
    *work = (kr_sampler_work){ .ctx = ctx,
                               .vocab = vocab,
                               .logits = kr_arena_alloc(arena, n * sizeof *work->logits),
                               .weights = kr_arena_alloc(arena, n * sizeof *work->weights),
                               .ids = kr_arena_alloc(arena, n * sizeof *work->ids),
                               .ranked = kr_arena_alloc(arena, n * sizeof *work->ranked) };
    return work->logits && work->weights && work->ids && work->ranked;
}

/* Capacity for the distinct tokens of a long text, so that sampling rarely allocates. */
static bool allocate_arrays(kr_sampler *s)
{
    enum { DISTINCT = 4096 };
    const int64_t distinct = s->vocab < DISTINCT ? s->vocab : DISTINCT;
    if (!(s->rows = alloc_zeroed(s, s->nrows, sizeof *s->rows))) return false;
    for (int64_t row = 0; row < s->nrows; row++) {
        s->rows[row] = (kr_row_sampler){ .options = &s->options, .stream = (uint64_t)row };
        if (!kr_row_sampler_reserve(&s->rows[row], s->ctx, OP, distinct)) return false;
    }
    return kr_require(s->ctx, kr_sampler_work_init(&s->work, s->ctx, &s->arena, s->vocab), KR_ERR_NOMEM,
                      OP ": no memory for %lld rows of %lld tokens", (long long)s->nrows, (long long)s->vocab);
}

kr_sampler *kr_sampler_create(kr_ctx *ctx, const kr_sampler_options *options, int64_t rows, int64_t vocab)
{
    const int64_t most = INT64_C(1) << 30;
    kr_sampler_options own;
    if (kr_ctx_failed(ctx) ||
        !kr_require(ctx, rows >= 1 && rows <= most, KR_ERR_ARG, OP ": rows = %lld, but must be from 1 to %lld",
                    (long long)rows, (long long)most) ||
        !kr_require(ctx, vocab >= 1 && vocab <= most, KR_ERR_ARG, OP ": vocab = %lld, but must be from 1 to %lld",
                    (long long)vocab, (long long)most) ||
        !kr_sampler_take_options(ctx, OP, options, vocab, &own))
        return NULL;
    kr_sampler *s = kr_memory_alloc_zeroed(&ctx->memory, sizeof *s);
    if (!kr_require(ctx, s != NULL, KR_ERR_NOMEM, OP ": no memory for a sampler")) return NULL;
    *s = (kr_sampler){ .ctx = ctx, .options = own, .nrows = rows, .vocab = vocab };
    kr_arena_init(&s->arena, &ctx->memory, 1024);
    if (copy_biases(s) && allocate_arrays(s)) return s;
    kr_sampler_destroy(s);
    return NULL;
}

void kr_sampler_destroy(kr_sampler *sampler)
{
    if (!sampler) return;
    for (int64_t row = 0; sampler->rows && row < sampler->nrows; row++)
        kr_token_counts_free(&sampler->rows[row].counts, &sampler->ctx->memory);
    kr_arena_deinit(&sampler->arena);
    kr_memory_free(&sampler->ctx->memory, sampler, sizeof *sampler);
}

/* ---- on a device ---- */

/* Of a size that leaves a logit finite, and a weight a number, in f32. */
static bool is_moderate(double x)
{
    return fabs(x) <= 1e9;
}

bool kr_row_sampler_fits_device(const kr_row_sampler *row)
{
    const kr_sampler_options *o = row->options;
    bool fits = (o->temperature <= 0 || is_moderate(1 / o->temperature)) && is_moderate(o->temperature) &&
                is_moderate(o->repetition_penalty) && is_moderate(1 / o->repetition_penalty) &&
                is_moderate(o->presence_penalty) && is_moderate(o->frequency_penalty);
    for (int i = 0; fits && i < o->n_biases; i++) {
        const double bias = o->biases[i].bias;
        fits = is_moderate(bias) || bias <= -(double)INFINITY;
    }
    return fits;
}

/* In the scratch of a row: its biases as logits, its counts as ids. */
static const double *spread_biases(kr_sampler_work *work, const kr_sampler_options *o)
{
    memset(work->logits, 0, (size_t)work->vocab * sizeof *work->logits);
    for (int i = 0; i < o->n_biases; i++) work->logits[o->biases[i].id] += o->biases[i].bias;
    return work->logits;
}

static const uint32_t *spread_counts(kr_sampler_work *work, const kr_token_counts *counts)
{
    uint32_t *entries = (uint32_t *)(void *)work->ids;
    memset(entries, 0, (size_t)work->vocab * sizeof *entries);
    int64_t at = 0;
    for (const kr_token_count *count; (count = kr_token_counts_next(counts, &at));)
        entries[count->id] = count->generated | (count->is_prompt ? KR_SAMPLE_IN_PROMPT : 0);
    return entries;
}

bool kr_row_sampler_on_device(kr_sampler_work *work, kr_row_sampler *row, bool has_mask, kr_device_sampler *device,
                              int64_t place)
{
    const kr_sampler_options *o = row->options;
    if (kr_device_sampler_has(device, place, row->stamp, row->n_sampled)) return true;
    kr_sample_row put = { .rules = { .temperature = o->temperature,
                                     .top_p = o->top_p,
                                     .min_p = o->min_p,
                                     .repetition = o->repetition_penalty,
                                     .presence = o->presence_penalty,
                                     .frequency = o->frequency_penalty,
                                     .top_k = o->top_k,
                                     .seed = o->seed,
                                     .stream = row->stream,
                                     .flags = has_mask ? KR_SAMPLE_MASK : 0 },
                          .n_sampled = row->n_sampled };
    if (o->n_biases > 0) {
        put.rules.flags |= KR_SAMPLE_BIASES;
        put.biases = spread_biases(work, o);
    }
    if (kr_sampler_penalises(o)) {
        put.rules.flags |= KR_SAMPLE_PENALTIES;
        put.counts = spread_counts(work, &row->counts);
    }
    row->stamp = kr_device_sampler_set(device, place, &put);
    return row->stamp != 0;
}

/* ---- tokens ---- */

static bool check_row(const kr_sampler *s, const char *op, int64_t row)
{
    return kr_require(s->ctx, row >= 0 && row < s->nrows, KR_ERR_ARG,
                      "%s: row = %lld, but the sampler has rows from 0 to %lld", op, (long long)row,
                      (long long)s->nrows - 1);
}

kr_status kr_sampler_accept(kr_sampler *sampler, int64_t row, int32_t id)
{
    if (!sampler) return KR_ERR_ARG;
    const char *op = "sampler.accept";
    if (!kr_ctx_failed(sampler->ctx) && check_row(sampler, op, row) &&
        kr_require(sampler->ctx, id >= 0 && id < sampler->vocab, KR_ERR_ARG,
                   "%s: id = %d, but tokens are from 0 to %lld", op, (int)id, (long long)sampler->vocab - 1) &&
        kr_row_sampler_reserve(&sampler->rows[row], sampler->ctx, op, 1))
        kr_row_sampler_accept(&sampler->rows[row], id);
    return sampler->ctx->status;
}

bool kr_row_sampler_reserve(kr_row_sampler *row, kr_ctx *ctx, const char *op, int64_t more)
{
    return kr_require(ctx, kr_token_counts_reserve(&row->counts, &ctx->memory, more), KR_ERR_NOMEM,
                      "%s: no memory for the counts of %lld tokens", op, (long long)(row->counts.count + more));
}

/* Capacity for one more token in each row. False after an error. */
static bool reserve_rows(kr_sampler *s, const char *op)
{
    for (int64_t row = 0; row < s->nrows; row++)
        if (!kr_row_sampler_reserve(&s->rows[row], s->ctx, op, 1)) return false;
    return true;
}

void kr_row_sampler_accept(kr_row_sampler *row, int32_t id)
{
    kr_token_count *count = kr_token_counts_put(&row->counts, id);
    if (!count->is_prompt) row->stamp = 0;
    count->is_prompt = true;
}

void kr_row_sampler_count(kr_row_sampler *row, int32_t id)
{
    kr_token_count *count = kr_token_counts_put(&row->counts, id);
    row->n_sampled++;
    if (count->generated < KR_TOKEN_COUNT_MOST) count->generated++;
}

static bool check_call(const kr_sampler *s, const char *op, const kr_tensor *logits, int64_t count, const int64_t *rows,
                       const kr_sample *samples)
{
    kr_ctx *ctx = s->ctx;
    if (kr_ctx_failed(ctx) || !kr_require(ctx, logits != NULL, KR_ERR_ARG, "%s: logits is NULL", op) ||
        !kr_require(ctx, samples != NULL, KR_ERR_ARG, "%s: samples is NULL", op) ||
        !kr_require(ctx, logits->rank == 2 && logits->dims[0] == count, KR_ERR_SHAPE,
                    "%s: logits are %s, but must be [b, w] with %lld rows", op, KR_TEXT_OF(logits), (long long)count) ||
        !kr_logits_check(ctx, op, logits, s->vocab))
        return false;
    for (int64_t i = 0; rows && i < count; i++)
        if (!check_row(s, op, rows[i]) || !kr_require(ctx, i == 0 || rows[i] > rows[i - 1], KR_ERR_ARG,
                                                      "%s: rows[%lld] = %lld comes after %lld, but rows must ascend",
                                                      op, (long long)i, (long long)rows[i], (long long)rows[i - 1]))
            return false;
    return true;
}

bool kr_sampler_sample_row(kr_sampler_work *work, const kr_row_sampler *row, const char *op, const kr_tensor *logits_bw,
                           int64_t index, kr_sample *sample)
{
    kr_logits logits;
    if (!kr_logits_read(&logits, op, logits_bw, index, work->vocab, work->logits, work->weights)) return false;
    const int32_t id = kr_sampler_choose(work, row, logits.max);
    if (id >= 0) *sample = (kr_sample){ id, kr_logits_logprob(&logits, id) };
    return id >= 0 || kr_blame(work->ctx, "%s: row %lld", op, (long long)row->stream);
}

/* Samples that are not counted; rows NULL: all of them. */
static kr_status sample_rows(kr_sampler *s, const char *op, const kr_tensor *logits_bw, int64_t count,
                             const int64_t *rows, kr_sample *samples)
{
    if (!check_call(s, op, logits_bw, count, rows, samples)) return s->ctx->status;
    for (int64_t i = 0; i < count; i++)
        if (!kr_sampler_sample_row(&s->work, &s->rows[rows ? rows[i] : i], op, logits_bw, i, &samples[i]))
            return s->ctx->status;
    return KR_OK;
}

/* Counts are updated only if every row has a token. */
static kr_status next_rows(kr_sampler *s, const char *op, const kr_tensor *logits_bw, int64_t count,
                           const int64_t *rows, kr_sample *samples)
{
    if (!kr_ctx_failed(s->ctx) && !reserve_rows(s, op)) return s->ctx->status;
    const kr_status status = sample_rows(s, op, logits_bw, count, rows, samples);
    for (int64_t i = 0; status == KR_OK && i < count; i++)
        kr_row_sampler_count(&s->rows[rows ? rows[i] : i], samples[i].id);
    return status;
}

kr_status kr_sampler_next(kr_sampler *sampler, const kr_tensor *logits_bw, kr_sample *samples)
{
    return sampler ? next_rows(sampler, "sampler.next", logits_bw, sampler->nrows, NULL, samples) : KR_ERR_ARG;
}

kr_status kr_sampler_next_rows(kr_sampler *sampler, const kr_tensor *logits_bw, int64_t count, const int64_t *rows,
                               kr_sample *samples)
{
    const char *op = "sampler.next_rows";
    if (!sampler) return KR_ERR_ARG;
    if (kr_ctx_failed(sampler->ctx) ||
        !kr_require(sampler->ctx, count >= 1 && rows, KR_ERR_ARG, "%s: count = %lld rows, but must be at least 1", op,
                    rows ? (long long)count : 0LL))
        return sampler->ctx->status;
    return next_rows(sampler, op, logits_bw, count, rows, samples);
}

/* ---- the most probable ones ---- */

static bool rank(const kr_tensor *logits, int64_t vocab, int64_t count, kr_sample *top)
{
    kr_ctx *ctx = logits->ctx;
    double *x = kr_arena_alloc(&ctx->scratch, 2 * (size_t)vocab * sizeof *x);
    kr_ranked *ranked = kr_arena_alloc(&ctx->scratch, (size_t)vocab * sizeof *ranked);
    if (!kr_require(ctx, x && ranked, KR_ERR_NOMEM, "top_tokens: no memory for %lld tokens", (long long)vocab))
        return false;
    kr_logits read;
    if (!kr_logits_read(&read, "top_tokens", logits, 0, vocab, x, x + vocab)) return false;
    for (int64_t i = 0; i < vocab; i++) ranked[i] = (kr_ranked){ x[i], (int32_t)i };
    kr_rank_first(ranked, vocab, (double)count, false);
    kr_rank_all(ranked, count);
    for (int64_t i = 0; i < count; i++) top[i] = (kr_sample){ ranked[i].id, kr_logits_logprob(&read, ranked[i].id) };
    return true;
}

kr_status kr_top_tokens(const kr_tensor *logits, int64_t vocab, int64_t count, kr_sample *top)
{
    if (!logits) return KR_ERR_ARG;
    kr_ctx *ctx = logits->ctx;
    if (kr_ctx_failed(ctx) ||
        !kr_require(ctx, logits->rank == 1 || (logits->rank == 2 && logits->dims[0] == 1), KR_ERR_SHAPE,
                    "top_tokens: logits are %s, but must be one row, [w] or [1, w]", KR_TEXT_OF(logits)) ||
        !kr_require(ctx, vocab >= 1, KR_ERR_ARG, "top_tokens: vocab = %lld, but must be at least 1",
                    (long long)vocab) ||
        !kr_logits_check(ctx, "top_tokens", logits, vocab) ||
        !kr_require(ctx, count >= 1 && count <= vocab && top, KR_ERR_ARG,
                    "top_tokens: count = %lld, but must be from 1 to vocab = %lld", top ? (long long)count : 0LL,
                    (long long)vocab))
        return ctx->status;
    const kr_arena_mark mark = kr_arena_mark_now(&ctx->scratch);
    rank(logits, vocab, count, top);
    kr_arena_release(&ctx->scratch, mark);
    return ctx->status;
}
