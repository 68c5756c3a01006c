/* device_sampler.c - arguments and results of the sampling kernel, in memory that it shares with the host. */
#include "decode/device_sampler.h"

#include "base/device_memory.h"
#include "device/device.h"

enum { PER_ROW = 2 * sizeof(int64_t) + 2 * sizeof(double) + 2 * sizeof(int32_t) }; /* row, n_sampled; logprob; id */
enum { DEVICE_PER_ROW = 2 * sizeof(int64_t) };                                     /* row, n_sampled */

kr_device_sampler *kr_device_sampler_create(kr_ctx *ctx, int64_t nrows, const kr_device_sampling *rules)
{
    kr_device_sampler *s = kr_memory_alloc_zeroed(&ctx->memory, sizeof *s);
    if (s) {
        *s = (kr_device_sampler){ .ctx = ctx, .rules = *rules, .nrows = nrows };
        s->shared = kr_memory_alloc(kr_shared_memory(ctx), (size_t)nrows * PER_ROW);
        s->device_memory = kr_memory_alloc(kr_float_memory(ctx), (size_t)nrows * DEVICE_PER_ROW);
    }
    if (kr_require(ctx, s && s->shared && s->device_memory, KR_ERR_NOMEM,
                   "decode: no memory for the samples of %lld rows", (long long)nrows))
        return s;
    kr_device_sampler_destroy(s);
    return NULL;
}

void kr_device_sampler_destroy(kr_device_sampler *s)
{
    if (!s) return;
    kr_wait(s->ctx);
    kr_memory_free(kr_shared_memory(s->ctx), s->shared, (size_t)s->nrows * PER_ROW);
    kr_memory_free(kr_float_memory(s->ctx), s->device_memory, (size_t)s->nrows * DEVICE_PER_ROW);
    kr_memory_free(&s->ctx->memory, s, sizeof *s);
}

static int64_t *numbers(const kr_device_sampler *s)
{
    return (int64_t *)(void *)s->shared;
}

static double *logprobs(const kr_device_sampler *s)
{
    return (double *)(void *)(numbers(s) + 2 * s->nrows);
}

static int32_t *ids(const kr_device_sampler *s)
{
    return (int32_t *)(void *)(logprobs(s) + 2 * s->nrows);
}

void kr_device_sampler_set(kr_device_sampler *s, int64_t i, int64_t row, uint64_t n_sampled)
{
    numbers(s)[i] = row;
    numbers(s)[s->nrows + i] = (int64_t)n_sampled;
}

bool kr_device_sampler_begin(kr_device_sampler *s)
{
    return kr_store(s->ctx, s->device_memory, numbers(s), (size_t)s->nrows * DEVICE_PER_ROW);
}

bool kr_device_sampler_reads(const kr_tensor *logits)
{
    return !kr_dtype_is_16bit(logits->dtype) && (logits->strides[1] == 1 || logits->dims[1] <= 1);
}

bool kr_device_sampler_queue(kr_device_sampler *s, const kr_tensor *logits, int32_t *next)
{
    const kr_device_sampling *rules = &s->rules;
    if (!kr_device_sampler_reads(logits)) return true;
    kr_sample_args args = { .nb = logits->dims[0],
                            .nw = logits->dims[1],
                            .vocab = rules->vocab,
                            .stride = logits->strides[0],
                            .top_k = rules->top_k,
                            .temperature = rules->temperature,
                            .top_p = rules->top_p,
                            .min_p = rules->min_p,
                            .seed = rules->seed,
                            .x = logits->data,
                            .row = s->device_memory,
                            .n_sampled = s->device_memory + s->nrows,
                            .n_sampled_stride = s->nrows,
                            .id = ids(s),
                            .next = next,
                            .logprob = logprobs(s) };
    s->ctx->device->wrote_integers = true;
    return KR_RUN(s->ctx, sample[kr_real_of(logits->dtype)], &args);
}

bool kr_device_sampler_take(const kr_device_sampler *s, kr_dtype dtype, int64_t i, uint64_t n_sampled, int32_t *id,
                            double *logprob)
{
    const int64_t index = i + (int64_t)(n_sampled % 2) * s->nrows;
    const double single = (double)((const float *)(const void *)logprobs(s))[index];
    *id = ids(s)[index];
    *logprob = dtype == KR_DTYPE_F64 ? logprobs(s)[index] : single;
    return *id >= 0;
}
