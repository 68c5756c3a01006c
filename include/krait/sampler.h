/* sampler.h - from logits to tokens: greedy, or drawn after temperature, top-k, top-p, min-p, penalties and biases.
 *
 *   kr_sampler_options options;
 *   kr_sampler_options_init(&options);
 *   options.temperature = 0.8;
 *   options.top_p = 0.95;
 *   kr_sampler *sampler = kr_sampler_create(ctx, &options, 8, 10);         // 8 rows, 10 tokens
 *   kr_sample samples[8];
 *   kr_sampler_next(sampler, logits_bw, samples);                          // samples[0].id, samples[0].logprob
 *   kr_sampler_destroy(sampler);
 *
 * The order is: logit bias, penalties, temperature, top-k, top-p, min-p; then one draw. Of equal logits the one with the
 * smaller id counts as the larger. Each row has a stream of its own that depends on the seed, its number and how many
 * tokens it has sampled: not on the other rows.
 */
#ifndef KRAIT_SAMPLER_H
#define KRAIT_SAMPLER_H

#include <krait/tape.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct kr_logit_bias {
    int32_t id;
    double bias; /* -INFINITY: never */
} kr_logit_bias;

typedef struct kr_sampler_options {
    size_t size;                 /* set by kr_sampler_options_init */
    double temperature;          /* 1; 0: greedy, the first of the largest */
    int64_t top_k;               /* 0: all; else only the k largest */
    double top_p;                /* 1: all; else the fewest largest whose probabilities add up to p at least */
    double min_p;                /* 0; only tokens at least min_p times as probable as the most probable one */
    double repetition_penalty;   /* 1; logits of tokens that occurred are divided by it if positive, else multiplied */
    double presence_penalty;     /* 0; subtracted from the logits of tokens that were generated ... */
    double frequency_penalty;    /* 0; ... and that, for each time */
    int n_biases;                /* added to the logits */
    const kr_logit_bias *biases; /* copied */
    uint64_t seed;
} kr_sampler_options;
#define kr_sampler_options_init(options) KR_STRUCT_INIT(SAMPLER_OPTIONS, kr_sampler_options, options)

typedef struct kr_sampler kr_sampler;

/* For `rows` rows of logits over `vocab` tokens. NULL after an error that names field, value and rule. */
KR_API kr_sampler *kr_sampler_create(kr_ctx *ctx, const kr_sampler_options *options, int64_t rows, int64_t vocab);
KR_API void kr_sampler_destroy(kr_sampler *sampler);

typedef struct kr_sample {
    int32_t id;
    double logprob; /* of the token under the model itself: log softmax of the logits as they were given */
} kr_sample;

/* A token of the prompt: counts as having occurred, not as generated. */
KR_API kr_status kr_sampler_accept(kr_sampler *sampler, int64_t row, int32_t id);

/* One token for each row; logits [rows, w], w >= vocab, of which those from vocab on are never chosen. NaN, +infinity,
 * or no token left to choose is an error, after which no row has moved. */
KR_API kr_status kr_sampler_next(kr_sampler *sampler, const kr_tensor *logits_bw, kr_sample *samples);

/* The same for some rows: logits [count, w], of the sampler's rows rows[0..count), which ascend. */
KR_API kr_status kr_sampler_next_rows(kr_sampler *sampler, const kr_tensor *logits_bw, int64_t count,
                                      const int64_t *rows, kr_sample *samples);

/* The `count` most probable tokens of one row of logits [w] or [1, w], most probable first, with their logprobs. */
KR_API kr_status kr_top_tokens(const kr_tensor *logits, int64_t vocab, int64_t count, kr_sample *top);

#ifdef __cplusplus
}
#endif
#endif
