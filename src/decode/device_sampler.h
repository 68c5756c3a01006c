/* device_sampler.h - samples tokens from the logits of decode steps on the device: ids and log-probabilities are copied back,
 * the logits stay there. Temperature, top-k, top-p and min-p only, and no 16-bit logits.
 *
 * Samples of one step may be queued before those of the step before it are taken.
 */
#ifndef KR_DECODE_DEVICE_SAMPLER_H
#define KR_DECODE_DEVICE_SAMPLER_H

#include "base/ctx_impl.h"
#include "tensor/tensor_impl.h"

typedef struct kr_device_sampling {
    int64_t vocab, top_k; /* tokens that may be sampled; see kr_sample_args */
    double temperature, top_p, min_p;
    uint64_t seed;
} kr_device_sampling;

typedef struct kr_device_sampler {
    kr_ctx *ctx;
    kr_device_sampling rules;
    int64_t nrows;
    char *shared;           /* arguments and results in pinned memory */
    int64_t *device_memory; /* [2 nrows] row numbers and counts of sampled tokens, which kernels increment */
} kr_device_sampler;

/* For up to nrows rows. NULL after an error. */
kr_device_sampler *kr_device_sampler_create(kr_ctx *ctx, int64_t nrows, const kr_device_sampling *rules);
void kr_device_sampler_destroy(kr_device_sampler *sampler);

/* Can it sample from such logits? */
bool kr_device_sampler_reads(const kr_tensor *logits);

/* Before the first of several consecutive samples: the i-th row, and how many tokens it has sampled; then all of them. */
void kr_device_sampler_set(kr_device_sampler *sampler, int64_t i, int64_t row, uint64_t n_sampled);
bool kr_device_sampler_begin(kr_device_sampler *sampler);

/* Samples from logits [count w], by a kernel that also stores the ids in next; does nothing for logits that it cannot
 * read. */
bool kr_device_sampler_queue(kr_device_sampler *sampler, const kr_tensor *logits, int32_t *next);

/* The i-th row's sample after it had sampled n_sampled tokens, which was waited for; false if the row has none: a NaN or an
 * infinity among its logits, or -inf for all tokens. */
bool kr_device_sampler_take(const kr_device_sampler *sampler, kr_dtype dtype, int64_t i, uint64_t n_sampled,
                            int32_t *id, double *logprob);

#endif
