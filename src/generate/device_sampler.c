/* device_sampler.c - sampling on the device: ids and log-probabilities are copied back, the logits stay there.
 *
 * Temperature, top-k, top-p and min-p are applied there; penalties and biases, and 16-bit logits, are handled on the host.
 */
#include "base/device_memory.h"
#include "device/device.h"
#include "generate/sampler_impl.h"

enum { PER_ROW = 2 * sizeof(int64_t) + 2 * sizeof(double) + 2 * sizeof(int32_t) }; /* row, n_sampled; logprob; id */
enum { DEVICE_PER_ROW = 2 * sizeof(int64_t) };                                     /* row, n_sampled */

static bool allocate(kr_sampler *s)
{
    if (!s->shared) s->shared = kr_memory_alloc(kr_shared_memory(s->ctx), (size_t)s->nrows * PER_ROW);
    if (!s->device_memory)
        s->device_memory = kr_memory_alloc(kr_float_memory(s->ctx), (size_t)s->nrows * DEVICE_PER_ROW);
    return s->shared && s->device_memory;
}

bool kr_sampler_on_device(kr_sampler *s)
{
    const kr_sampler_options *o = &s->options;
    return kr_ctx_on_device(s->ctx) && !o->n_biases && o->repetition_penalty == 1 && o->presence_penalty == 0 &&
           o->frequency_penalty == 0 && allocate(s);
}

void kr_sampler_free_device(kr_sampler *s)
{
    if (s->shared || s->device_memory) kr_wait(s->ctx);
    kr_memory_free(kr_shared_memory(s->ctx), s->shared, (size_t)s->nrows * PER_ROW);
    kr_memory_free(kr_float_memory(s->ctx), s->device_memory, (size_t)s->nrows * DEVICE_PER_ROW);
}

static int64_t *numbers(const kr_sampler *s)
{
    return (int64_t *)(void *)s->shared;
}

static double *logprobs(const kr_sampler *s)
{
    return (double *)(void *)(numbers(s) + 2 * s->nrows);
}

static int32_t *ids(const kr_sampler *s)
{
    return (int32_t *)(void *)(logprobs(s) + 2 * s->nrows);
}

bool kr_sampler_prepare(kr_sampler *s, int64_t count, const int64_t *rows)
{
    for (int64_t i = 0; i < count; i++) {
        numbers(s)[i] = rows[i];
        numbers(s)[s->nrows + i] = (int64_t)s->rows[rows[i]].n_sampled;
    }
    return kr_store(s->ctx, s->device_memory, numbers(s), (size_t)s->nrows * DEVICE_PER_ROW);
}

bool kr_sampler_reads(const kr_tensor *logits)
{
    return !kr_dtype_is_16bit(logits->dtype) && (logits->strides[1] == 1 || logits->dims[1] <= 1);
}

bool kr_sampler_queue(kr_sampler *s, const kr_tensor *logits, int32_t *next)
{
    const kr_sampler_options *o = &s->options;
    if (!kr_sampler_reads(logits)) return true;
    kr_sample_args args = { .nb = logits->dims[0],
                            .nw = logits->dims[1],
                            .vocab = s->vocab,
                            .stride = logits->strides[0],
                            .top_k = o->top_k,
                            .temperature = o->temperature,
                            .top_p = o->top_p,
                            .min_p = o->min_p,
                            .seed = o->seed,
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

bool kr_sampler_take(const kr_sampler *s, kr_dtype dtype, int64_t count, const int64_t *rows, kr_sample *samples)
{
    for (int64_t i = 0; i < count; i++) {
        const int64_t index = i + (int64_t)(s->rows[rows[i]].n_sampled % 2) * s->nrows;
        const double single = (double)((const float *)(const void *)logprobs(s))[index];
        if (ids(s)[index] < 0) return false;
        samples[i] = (kr_sample){ ids(s)[index], dtype == KR_DTYPE_F64 ? logprobs(s)[index] : single };
    }
    return true;
}
