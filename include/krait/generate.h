/* generate.h - a prompt read in chunks by the parallel form, then one token after another, in constant memory.
 *
 *   kr_tokenizer *tok = kr_tokenizer_bytes(ctx);
 *   kr_sampler_options sampler;
 *   kr_sampler_options_init(&sampler);
 *   sampler.temperature = 0.8;
 *   kr_generate_options options;
 *   kr_generate_options_init(&options);
 *   options.max_tokens = 100;
 *   options.sampler = &sampler;
 *   kr_generation *g = kr_generation_create(ctx, net, tok, &options);
 *   kr_generation_feed_text(g, "Once upon a time", 16);
 *   while (kr_generation_next(g) == KR_OK) {
 *       const kr_generated *one = kr_generation_row(g, 0);
 *       fwrite(one->text, 1, one->bytes, stdout);
 *   }
 *   if (kr_generation_save(g, "chat.state") != KR_OK) fprintf(stderr, "%s\n", kr_ctx_message(ctx));
 *   kr_generation_destroy(g);
 *   kr_tokenizer_destroy(tok);
 *
 * What a generation remembers does not grow with its length, and goes into a file: loaded again, at any later time, it
 * continues with the same bits as an uninterrupted run.
 *
 * Sections: Sampling, generation, text models.
 */
#ifndef KRAIT_GENERATE_H
#define KRAIT_GENERATE_H

#include <krait/model.h>
#include <krait/network.h>
#include <krait/tape.h>
#include <krait/text.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ==== Sampling ====
 *
 * From logits to tokens: greedy, or drawn after temperature, top-k, top-p, min-p, penalties and biases.
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

/* ==== Generation ==== */

typedef struct kr_generate_options {
    size_t size;                       /* set by kr_generate_options_init */
    const kr_sampler_options *sampler; /* NULL: its defaults; copied */
    int64_t n_samples;                 /* 1: continuations of the one prompt, side by side */
    int64_t max_tokens;                /* 256; -1: no end but a stop */
    int64_t prefill_chunk;             /* 512: tokens of the prompt that are read at once; memory goes with it */
    int n_stop_ids;                    /* tokens that end a row; they are generated, but show no text */
    const int32_t *stop_ids;           /* copied */
    int n_stops;                       /* texts that end a row; what is shown ends before them */
    const char *const *stops;          /* copied */
} kr_generate_options;
#define kr_generate_options_init(options) KR_STRUCT_INIT(GENERATE_OPTIONS, kr_generate_options, options)

typedef enum kr_finish {
    KR_FINISH_NONE = 0,
    KR_FINISH_LENGTH = 1,  /* max_tokens */
    KR_FINISH_STOP_ID = 2, /* a stop id */
    KR_FINISH_STOP = 3     /* a stop text */
} kr_finish;

/* What the last call of kr_generation_next made of a row. */
typedef struct kr_generated {
    bool is_new;      /* false: the row had finished before */
    kr_sample sample; /* the token */
    const char *text; /* what can be shown now, whole characters; "" without a tokenizer. Until the next call */
    size_t bytes;
    kr_finish finish;
} kr_generated;

typedef struct kr_generation kr_generation;

/* The tokenizer may be NULL: no texts then. Network and tokenizer must stay. NULL options: all defaults. NULL after an
 * error that names field, value and rule. */
KR_API kr_generation *kr_generation_create(kr_ctx *ctx, const kr_network *net, const kr_tokenizer *tok,
                                           const kr_generate_options *options);
KR_API void kr_generation_destroy(kr_generation *g);

/* Reads more of the prompt, the same for all rows; finished rows continue from there, max_tokens counts anew. The last
 * token
 * is left for the next call, as sampled tokens are. An empty feed only resumes the rows. Texts are encoded with the
 * tokenizer's special tokens around them while nothing was read, and without them later. */
KR_API kr_status kr_generation_feed(kr_generation *g, const int32_t *ids, int64_t count);
KR_API kr_status kr_generation_feed_text(kr_generation *g, const char *text, size_t bytes);

/* One more token for each row that has not finished: KR_OK, KR_END when all rows have, or an error: nothing was read yet,
 * or a step failed half-way (then only kr_generation_load continues). On a GPU that samples itself the next step is
 * computed
 * ahead of the call: if the network's weights are changed between two calls, the next token is still the old weights'. */
KR_API KR_MUST_CHECK kr_status kr_generation_next(kr_generation *g);
KR_API const kr_generated *kr_generation_row(const kr_generation *g, int64_t row);

typedef struct kr_generation_stats {
    int64_t prompt_tokens; /* read as prompt; a prompt shared by several samples is counted once */
    int64_t tokens;        /* generated, of all rows together */
    uint64_t reserved[6];  /* 0; for later versions */
} kr_generation_stats;

/* Numbers of tokens so far, and each by itself; 0 for NULL. */
KR_API kr_generation_stats kr_generation_stats_of(const kr_generation *g);
KR_API_INLINE int64_t kr_generation_prompt_tokens(const kr_generation *g)
{
    return kr_generation_stats_of(g).prompt_tokens;
}
KR_API_INLINE int64_t kr_generation_tokens(const kr_generation *g)
{
    return kr_generation_stats_of(g).tokens;
}

/* Everything that the rest depends on: state, tokens not yet read, the sampler's streams and counts, text that waits.
 * The file knows its network, as that of kr_state_save does; options are not in it, but the seed is: load restores the
 * streams. Load replaces what g remembers, or after an error nothing; the file must have as many rows. */
KR_API KR_MUST_CHECK kr_status kr_generation_save(kr_generation *g, const char *path);
KR_API KR_MUST_CHECK kr_status kr_generation_load(kr_generation *g, const char *path);

/* ==== Text models ====
 *
 * A language model opened by its folder: weights, tokenizer, and the tokens that begin and end a text.
 *
 *   kr_text_model *lm = kr_text_model_open(ctx, "mamba2-130m", NULL);
 *   kr_generate_options options;
 *   kr_generate_options_init(&options);
 *   options.max_tokens = 20;
 *   kr_text_model_set_stops(lm, &options);                                            // the generation ends at EOS
 *   kr_generation *g = kr_generation_create(ctx, kr_model_network(kr_text_model_model(lm)), kr_text_model_tokenizer(lm),
 *                                           &options);
 *   kr_text_model_feed(lm, g, "Once upon a time", 16);
 *   while (kr_generation_next(g) == KR_OK) fputs(kr_generation_row(g, 0)->text, stdout);
 *   kr_generation_destroy(g);
 *   kr_text_model_destroy(lm);
 *   kr_ctx_clear(ctx);                    // there may be no such folder
 */

typedef struct kr_text_model kr_text_model;

/* Begin with { 0 }. */
typedef struct kr_text_model_options {
    const char *tokenizer;       /* path of a tokenizer.json, or "bytes". NULL: FOLDER/tokenizer.json; without that file
                                  * bytes, if the vocabulary has 256 to 264 tokens */
    const kr_load_options *load; /* NULL: the defaults of kr_model_load */
    bool skip_tokenizer;         /* true: no tokenizer unless `tokenizer` names one */
    uint64_t reserved[4];        /* 0; for later versions */
} kr_text_model_options;

/* NULL options: all defaults. NULL after an error: a model that cannot be loaded, no tokenizer, or one with more tokens
 * than
 * the model. Destroy before the context; NULL is allowed. */
KR_API kr_text_model *kr_text_model_open(kr_ctx *ctx, const char *folder, const kr_text_model_options *options);
KR_API void kr_text_model_destroy(kr_text_model *lm);

/* What a text model consists of; all of it lives as long as the text model. */
typedef struct kr_text_model_info {
    kr_model *model;
    const kr_tokenizer *tokenizer; /* NULL if none was opened */
    int n_bos; /* ids that the tokenizer puts before each text, such as <|begin_of_text|>; at most 8 */
    const int32_t *bos;
    int n_eos; /* ids that end a text: eos_token_id of the model's files; if there is none, <|endoftext|>, <|end_of_text|>
                * and </s> where the tokenizer has them */
    const int32_t *eos;
    int32_t start; /* what an empty prompt begins with if there is no BOS: the model's own, else its first EOS; -1:
                           * none */
    uint64_t reserved[4]; /* 0; for later versions */
} kr_text_model_info;

/* The parts of a text model, and each by itself. NULL has none, and start is -1. */
KR_API kr_text_model_info kr_text_model_info_of(const kr_text_model *lm);
KR_API_INLINE kr_model *kr_text_model_model(const kr_text_model *lm)
{
    return kr_text_model_info_of(lm).model;
}
KR_API_INLINE const kr_tokenizer *kr_text_model_tokenizer(const kr_text_model *lm)
{
    return kr_text_model_info_of(lm).tokenizer;
}
KR_API_INLINE const int32_t *kr_text_model_bos(const kr_text_model *lm, int *count)
{
    const kr_text_model_info info = kr_text_model_info_of(lm);
    if (count) *count = info.n_bos;
    return info.bos;
}
KR_API_INLINE const int32_t *kr_text_model_eos(const kr_text_model *lm, int *count)
{
    const kr_text_model_info info = kr_text_model_info_of(lm);
    if (count) *count = info.n_eos;
    return info.eos;
}
KR_API_INLINE int32_t kr_text_model_start(const kr_text_model *lm)
{
    return kr_text_model_info_of(lm).start;
}

/* Sets n_stop_ids and stop_ids of initialised options to the EOS ids, which live as long as the text model. */
KR_API void kr_text_model_set_stops(const kr_text_model *lm, kr_generate_options *options);

/* Feeds a prompt to a generation that has read nothing yet: kr_generation_feed_text, or for an empty prompt its BOS or
 * start
 * token. KR_ERR_ARG if the prompt is empty and the model has neither. */
KR_API kr_status kr_text_model_feed(const kr_text_model *lm, kr_generation *g, const char *text, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
