/* sampler_impl.h - struct of a sampler: its options, the tokens that occurred in each row, and scratch. */
#ifndef KR_GENERATE_SAMPLER_IMPL_H
#define KR_GENERATE_SAMPLER_IMPL_H

#include "base/ctx_impl.h"
#include "decode/device_sampler.h"
#include "generate/select_top.h"

#include <krait/generate.h>

/* How often a token occurred in a row: 2 times as often as it was generated, and 1 if it was in the prompt. */
typedef uint32_t kr_occurrence;
#define KR_OCCURRENCE_PROMPT 1u
#define KR_OCCURRENCE_ONCE 2u
#define KR_OCCURRENCE_MOST (UINT32_MAX - 1) /* counting ends there */

struct kr_sampler {
    kr_ctx *ctx;
    kr_arena arena;             /* everything below */
    kr_sampler_options options; /* biases is a copy */
    int64_t nrows, vocab;
    uint64_t *n_sampled;     /* [nrows]: tokens that each row has sampled */
    kr_occurrence *occurred; /* [nrows vocab] */

    /* one row at work: its tokens in the order of their ids, fewer after each filter */
    double *logits, *weights; /* [vocab] */
    int32_t *ids;             /* [vocab] */
    kr_ranked *ranked;        /* [vocab] */

    kr_device_sampler *device; /* for options that it has; NULL: not created yet */
};

static inline kr_occurrence *kr_sampler_occurred(const kr_sampler *sampler, int64_t row)
{
    return sampler->occurred + row * sampler->vocab;
}

/* Chooses the token of a row out of sampler->logits [vocab], which holds the model's own logits, finite or -infinity;
 * it is changed. -1 after an error. */
int32_t kr_sampler_choose(kr_sampler *sampler, int64_t row, double max);

/* Counts a token that was chosen. */
void kr_sampler_count(kr_sampler *sampler, int64_t row, int32_t id);

/* kr_sampler_next_rows for tokens that are counted later, or not at all. */
kr_status kr_sampler_sample(kr_sampler *sampler, const char *op, const kr_tensor *logits_bw, int64_t count,
                            const int64_t *rows, kr_sample *samples);

/* The device's sampler for these options, its rows set to those of the next samples; NULL: the host samples, or after an
 * error. */
kr_device_sampler *kr_sampler_on_device(kr_sampler *sampler, int64_t count, const int64_t *rows);

/* All rows as new, with another seed. */
void kr_sampler_forget(kr_sampler *sampler, uint64_t seed);

#endif
