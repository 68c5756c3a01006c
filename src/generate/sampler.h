/* sampler.h - inside of a sampler: its options, what each row has had, and room to work. */
#ifndef KR_GENERATE_SAMPLER_H
#define KR_GENERATE_SAMPLER_H

#include "base/ctx.h"
#include "generate/ranking.h"

#include <krait/sampler.h>

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
    uint64_t *drawn;         /* [nrows]: tokens that each row has sampled */
    kr_occurrence *occurred; /* [nrows vocab] */

    /* one row at work: its tokens in the order of their ids, fewer after each filter */
    double *logits, *weights; /* [vocab] */
    int32_t *ids;             /* [vocab] */
    kr_ranked *ranked;        /* [vocab] */
};

static inline kr_occurrence *kr_sampler_occurred(const kr_sampler *sampler, int64_t row)
{
    return sampler->occurred + row * sampler->vocab;
}

/* Chooses the token of a row out of sampler->logits [vocab], which holds the model's own logits, finite or -infinity;
 * it is changed. -1 after an error. */
int32_t kr_sampler_choose(kr_sampler *sampler, int64_t row, double max);

/* All rows as new, with another seed. */
void kr_sampler_forget(kr_sampler *sampler, uint64_t seed);

#endif
