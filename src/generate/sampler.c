/* sampler.c - options of a sampler, its rows and their tokens; sampler_choose.c selects a token. */
#include "generate/sampler_impl.h"

#include "base/sized.h"
#include "generate/logits.h"
#include "generate/softmax_f64.h"

#include <math.h>
#include <string.h>

#define OP "sampler.create"

KR_DEFAULTS(kr_sampler_options) = {
    .size = sizeof(kr_sampler_options), .temperature = 1, .top_p = 1, .repetition_penalty = 1
};

/* ---- options ---- */

static bool take_options(kr_ctx *ctx, kr_sampler_options *own, const kr_sampler_options *options)
{
    if (!KR_TAKE(ctx, OP, kr_sampler_options, options, own)) return false;
    const kr_sampler_options *o = own;
    return kr_require(ctx, o->temperature >= 0 && isfinite(o->temperature), KR_ERR_ARG,
                      OP ": temperature = %g, but must be finite and not negative", o->temperature) &&
           kr_require(ctx, o->top_k >= 0, KR_ERR_ARG, OP ": top_k = %lld, but must be at least 1, or 0 for all tokens",
                      (long long)o->top_k) &&
           kr_require(ctx, o->top_p > 0 && o->top_p <= 1, KR_ERR_ARG,
                      OP ": top_p = %g, but must be above 0 and at most 1", o->top_p) &&
           kr_require(ctx, o->min_p >= 0 && o->min_p <= 1, KR_ERR_ARG, OP ": min_p = %g, but must be from 0 to 1",
                      o->min_p) &&
           kr_require(ctx, o->repetition_penalty > 0 && isfinite(o->repetition_penalty), KR_ERR_ARG,
                      OP ": repetition_penalty = %g, but must be above 0 and finite", o->repetition_penalty) &&
           kr_require(ctx, isfinite(o->presence_penalty), KR_ERR_ARG, OP ": presence_penalty = %g, but must be finite",
                      o->presence_penalty) &&
           kr_require(ctx, isfinite(o->frequency_penalty), KR_ERR_ARG,
                      OP ": frequency_penalty = %g, but must be finite", o->frequency_penalty) &&
           kr_require(ctx, o->n_biases >= 0, KR_ERR_ARG, OP ": n_biases = %d, but must not be negative", o->n_biases) &&
           kr_require(ctx, o->n_biases == 0 || o->biases, KR_ERR_ARG, OP ": n_biases = %d, but biases is NULL",
                      o->n_biases);
}

static bool check_biases(const kr_sampler *s)
{
    for (int i = 0; i < s->options.n_biases; i++) {
        const kr_logit_bias *b = &s->options.biases[i];
        if (!kr_require(s->ctx, b->id >= 0 && b->id < s->vocab, KR_ERR_ARG,
                        OP ": biases[%d].id = %d, but tokens are from 0 to %lld", i, (int)b->id,
                        (long long)s->vocab - 1) ||
            !kr_require(s->ctx, b->bias < (double)INFINITY, KR_ERR_ARG,
                        OP ": biases[%d].bias = %g, but must be finite or -inf", i, b->bias))
            return false;
    }
    return true;
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
    return (own || n == 0) && check_biases(s);
}

static bool allocate_arrays(kr_sampler *s)
{
    return (s->n_sampled = alloc_zeroed(s, s->nrows, sizeof *s->n_sampled)) &&
           (s->occurred = alloc_zeroed(s, s->nrows * s->vocab, sizeof *s->occurred)) &&
           (s->logits = alloc_zeroed(s, s->vocab, sizeof *s->logits)) &&
           (s->weights = alloc_zeroed(s, s->vocab, sizeof *s->weights)) &&
           (s->ids = alloc_zeroed(s, s->vocab, sizeof *s->ids)) &&
           (s->ranked = alloc_zeroed(s, s->vocab, sizeof *s->ranked));
}

kr_sampler *kr_sampler_create(kr_ctx *ctx, const kr_sampler_options *options, int64_t rows, int64_t vocab)
{
    const int64_t most = INT64_C(1) << 30;
    kr_sampler_options own;
    if (kr_ctx_failed(ctx) || !take_options(ctx, &own, options) ||
        !kr_require(ctx, rows >= 1 && rows <= most, KR_ERR_ARG, OP ": rows = %lld, but must be from 1 to %lld",
                    (long long)rows, (long long)most) ||
        !kr_require(ctx, vocab >= 1 && vocab <= most, KR_ERR_ARG, OP ": vocab = %lld, but must be from 1 to %lld",
                    (long long)vocab, (long long)most))
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
    kr_sampler_free_device(sampler);
    kr_arena_deinit(&sampler->arena);
    kr_memory_free(&sampler->ctx->memory, sampler, sizeof *sampler);
}

void kr_sampler_forget(kr_sampler *sampler, uint64_t seed)
{
    sampler->options.seed = seed;
    memset(sampler->n_sampled, 0, (size_t)sampler->nrows * sizeof *sampler->n_sampled);
    memset(sampler->occurred, 0, (size_t)(sampler->nrows * sampler->vocab) * sizeof *sampler->occurred);
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
                   "%s: id = %d, but tokens are from 0 to %lld", op, (int)id, (long long)sampler->vocab - 1))
        kr_sampler_occurred(sampler, row)[id] |= KR_OCCURRENCE_PROMPT;
    return sampler->ctx->status;
}

void kr_sampler_count(kr_sampler *s, int64_t row, int32_t id)
{
    kr_occurrence *occurrence = kr_sampler_occurred(s, row) + id;
    s->n_sampled[row]++;
    if (*occurrence < KR_OCCURRENCE_MOST) *occurrence += KR_OCCURRENCE_ONCE;
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

/* rows NULL: all of them. */
kr_status kr_sampler_sample(kr_sampler *s, const char *op, const kr_tensor *logits_bw, int64_t count,
                            const int64_t *rows, kr_sample *samples)
{
    if (!check_call(s, op, logits_bw, count, rows, samples)) return s->ctx->status;
    for (int64_t i = 0; i < count; i++) {
        const int64_t row = rows ? rows[i] : i;
        kr_logits logits;
        if (!kr_logits_read(&logits, op, logits_bw, i, s->vocab, s->logits, s->weights)) return s->ctx->status;
        const int32_t id = kr_sampler_choose(s, row, logits.max);
        if (id < 0) {
            kr_blame(s->ctx, "%s: row %lld", op, (long long)row);
            return s->ctx->status;
        }
        samples[i] = (kr_sample){ id, kr_logits_logprob(&logits, id) };
    }
    return KR_OK;
}

/* Counts are updated only if every row has a token. */
static kr_status next_rows(kr_sampler *s, const char *op, const kr_tensor *logits_bw, int64_t count,
                           const int64_t *rows, kr_sample *samples)
{
    const kr_status status = kr_sampler_sample(s, op, logits_bw, count, rows, samples);
    for (int64_t i = 0; status == KR_OK && i < count; i++) kr_sampler_count(s, rows ? rows[i] : i, samples[i].id);
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
