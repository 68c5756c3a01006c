/* device_sampler.c - the rows of the sampling kernel: their rules, tables and results. */
#include "decode/device_sampler.h"

#include "base/device_memory.h"
#include "base/hash.h"
#include "device/device.h"

#include <string.h>

enum {
    RESULTS_PER_ROW = 2 * (sizeof(double) + sizeof(int32_t)), /* logprob, id: those of two samples */
    PER_ROW = sizeof(kr_sample_rules) + sizeof(int64_t)       /* rules, n_sampled */
};

static size_t words_of(const kr_device_sampler *s)
{
    return ((size_t)s->vocab + 31) / 32;
}

/* Bytes of a row of each table. */
static size_t biases_bytes(const kr_device_sampler *s)
{
    return (size_t)s->vocab * sizeof *s->biases;
}
static size_t counts_bytes(const kr_device_sampler *s)
{
    return (size_t)s->vocab * sizeof *s->counts;
}
static size_t mask_bytes(const kr_device_sampler *s)
{
    return words_of(s) * sizeof *s->mask;
}

kr_device_sampler *kr_device_sampler_create(kr_ctx *ctx, int64_t nrows, int64_t vocab)
{
    const size_t n = (size_t)nrows;
    kr_device_sampler *s = kr_memory_alloc_zeroed(&ctx->memory, sizeof *s);
    if (s) {
        *s = (kr_device_sampler){ .ctx = ctx, .nrows = nrows, .vocab = vocab, .is_stale = true, .is_greedy = true };
        s->results = kr_memory_alloc(kr_shared_memory(ctx), n * RESULTS_PER_ROW);
        s->host = kr_memory_alloc_zeroed(&ctx->memory, n * PER_ROW);
        s->stamps = kr_memory_alloc_zeroed(&ctx->memory, n * sizeof *s->stamps);
        s->device = kr_memory_alloc(kr_float_memory(ctx), n * PER_ROW);
    }
    if (kr_require(ctx, s && s->results && s->host && s->stamps && s->device, KR_ERR_NOMEM,
                   "decode: no memory for the samples of %lld rows", (long long)nrows))
        return s;
    kr_device_sampler_destroy(s);
    return NULL;
}

void kr_device_sampler_destroy(kr_device_sampler *s)
{
    if (!s) return;
    const size_t n = (size_t)s->nrows;
    kr_memory *floats = kr_float_memory(s->ctx);
    kr_wait(s->ctx);
    kr_memory_free(kr_shared_memory(s->ctx), s->results, n * RESULTS_PER_ROW);
    kr_memory_free(&s->ctx->memory, s->host, n * PER_ROW);
    kr_memory_free(&s->ctx->memory, s->stamps, n * sizeof *s->stamps);
    kr_memory_free(floats, s->device, n * PER_ROW);
    kr_memory_free(floats, s->biases, n * biases_bytes(s));
    kr_memory_free(floats, s->counts, n * counts_bytes(s));
    kr_memory_free(floats, s->mask, n * mask_bytes(s));
    kr_memory_free(&s->ctx->memory, s, sizeof *s);
}

bool kr_device_sampler_reads(const kr_tensor *logits)
{
    const bool is_taken = !kr_dtype_is_16bit(logits->dtype) || kr_accepts(logits->ctx, sample_x, logits->dtype);
    return is_taken && (logits->strides[1] == 1 || logits->dims[1] <= 1);
}

/* ---- places ---- */

static kr_sample_rules *rules_of(char *rows)
{
    return (kr_sample_rules *)(void *)rows;
}
static int64_t *n_sampled_of(const kr_device_sampler *s, char *rows)
{
    return (int64_t *)(void *)(rules_of(rows) + s->nrows);
}

/* The table at `have`, allocated if it is NULL. NULL after an error. */
static void *table(kr_device_sampler *s, void *have, size_t row_bytes)
{
    void *t = have ? have : kr_memory_alloc(kr_float_memory(s->ctx), (size_t)s->nrows * row_bytes);
    if (!t)
        kr_fail(s->ctx, KR_ERR_NOMEM, "decode: no memory for the biases, counts or masks of %lld rows",
                (long long)s->nrows);
    return t;
}

static bool put_biases(kr_device_sampler *s, int64_t i, const double *row)
{
    s->biases = table(s, s->biases, biases_bytes(s));
    return s->biases && kr_store(s->ctx, s->biases + i * s->vocab, row, biases_bytes(s));
}

static bool put_counts(kr_device_sampler *s, int64_t i, const uint32_t *row)
{
    s->counts = table(s, s->counts, counts_bytes(s));
    return s->counts && kr_store(s->ctx, s->counts + i * s->vocab, row, counts_bytes(s));
}

bool kr_device_sampler_mask(kr_device_sampler *s, int64_t i, const uint32_t *allowed)
{
    s->mask = table(s, s->mask, mask_bytes(s));
    return s->mask && kr_store(s->ctx, s->mask + i * (int64_t)words_of(s), allowed, mask_bytes(s));
}

uint64_t kr_device_sampler_set(kr_device_sampler *s, int64_t i, const kr_sample_row *row)
{
    kr_device_sampler_clear(s, i);
    if ((row->rules.flags & KR_SAMPLE_BIASES && !put_biases(s, i, row->biases)) ||
        (row->rules.flags & KR_SAMPLE_PENALTIES && !put_counts(s, i, row->counts)))
        return 0;
    kr_sample_rules *rules = rules_of(s->host) + i;
    *rules = row->rules;
    rules->flags |= KR_SAMPLE_ON;
    n_sampled_of(s, s->host)[i] = (int64_t)row->n_sampled;
    s->is_stale = true;
    s->is_greedy = s->is_greedy && rules->temperature <= 0;
    return s->stamps[i] = ++s->n_stamps;
}

bool kr_device_sampler_has(const kr_device_sampler *s, int64_t i, uint64_t stamp, uint64_t n_sampled)
{
    return stamp && s->stamps[i] == stamp && n_sampled_of(s, s->host)[i] == (int64_t)n_sampled;
}

void kr_device_sampler_clear(kr_device_sampler *s, int64_t i)
{
    kr_sample_rules *rules = rules_of(s->host) + i;
    s->is_stale = s->is_stale || rules->flags & KR_SAMPLE_ON;
    rules->flags = 0;
    s->stamps[i] = 0;
}

bool kr_device_sampler_move(kr_device_sampler *s, int64_t to, int64_t from)
{
    kr_sample_rules *rules = rules_of(s->host);
    const uint64_t flags = rules[from].flags;
    rules[to] = rules[from];
    n_sampled_of(s, s->host)[to] = n_sampled_of(s, s->host)[from];
    s->stamps[to] = s->stamps[from];
    s->is_stale = true;
    kr_device_sampler_clear(s, from);
    if ((flags & KR_SAMPLE_BIASES &&
         !kr_copy_floats(s->ctx, s->biases + to * s->vocab, s->biases + from * s->vocab, biases_bytes(s))) ||
        (flags & KR_SAMPLE_PENALTIES &&
         !kr_copy_floats(s->ctx, s->counts + to * s->vocab, s->counts + from * s->vocab, counts_bytes(s))))
        kr_device_sampler_clear(s, to);
    return !kr_ctx_failed(s->ctx);
}

bool kr_device_sampler_begin(kr_device_sampler *s, int64_t count)
{
    for (int64_t i = count; i < s->nrows; i++) kr_device_sampler_clear(s, i);
    if (!s->is_stale) return true;
    s->is_stale = !kr_store(s->ctx, s->device, s->host, (size_t)s->nrows * PER_ROW);
    return !s->is_stale;
}

/* ---- samples ---- */

static double *logprobs(const kr_device_sampler *s)
{
    return (double *)(void *)s->results;
}

static int32_t *ids(const kr_device_sampler *s)
{
    return (int32_t *)(void *)(logprobs(s) + 2 * s->nrows);
}

uint64_t kr_device_sampler_signature(const kr_device_sampler *s)
{
    uint64_t hash = kr_hash_word((uint64_t)(uintptr_t)s, s->is_greedy);
    hash = kr_hash_word(hash, (uint64_t)(uintptr_t)s->biases);
    hash = kr_hash_word(hash, (uint64_t)(uintptr_t)s->counts);
    return kr_hash_word(hash, (uint64_t)(uintptr_t)s->mask);
}

bool kr_device_sampler_queue(kr_device_sampler *s, const kr_tensor *logits, int32_t *next)
{
    if (!kr_device_sampler_reads(logits)) return true;
    kr_sample_args args = { .nb = logits->dims[0],
                            .nw = logits->dims[1],
                            .vocab = s->vocab,
                            .x = { logits->data, logits->dtype, logits->strides[0] },
                            .rules = rules_of(s->device),
                            .is_greedy = s->is_greedy,
                            .biases = s->biases,
                            .counts = s->counts,
                            .mask = s->mask,
                            .n_sampled = n_sampled_of(s, s->device),
                            .n_sampled_stride = s->nrows,
                            .id = ids(s),
                            .next = next,
                            .logprob = logprobs(s) };
    s->ctx->device->wrote_integers = true;
    return KR_RUN(s->ctx, sample[kr_real_of(logits->dtype)], &args);
}

bool kr_device_sampler_take(kr_device_sampler *s, kr_dtype dtype, int64_t i, int32_t *id, double *logprob)
{
    const int64_t index = i + n_sampled_of(s, s->host)[i]++ % 2 * s->nrows;
    const double single = (double)((const float *)(const void *)logprobs(s))[index];
    *id = ids(s)[index];
    *logprob = dtype == KR_DTYPE_F64 ? logprobs(s)[index] : single;
    return *id >= 0;
}
