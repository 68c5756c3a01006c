/* generate.h - text generation: chunked parallel prefill, then decoding token by token in constant memory.
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
 * A generation has constant size and can be saved to a file. A loaded generation continues with the same bits as an
 * uninterrupted run.
 *
 * Sections: Sampling, generation, text models. */
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
 * Sampling tokens from logits: greedy, or with temperature, top-k, top-p, min-p, penalties and biases.
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
 * Filters apply in this order: logit bias, penalties, temperature, top-k, top-p, min-p; then one token is sampled. Ties
 * between equal logits go to the smaller id. Each row has its own random stream, which depends on the seed, the index
 * of the row and the number of tokens sampled for it, but not on other rows. */

typedef struct kr_logit_bias {
    int32_t id;
    double bias; /* -INFINITY: never sampled */
} kr_logit_bias;

typedef struct kr_sampler_options {
    size_t size;        /* set by kr_sampler_options_init */
    double temperature; /* 1; 0: greedy */
    int64_t top_k;      /* 0: off; only the k most probable tokens */
    double top_p;       /* 1: off; nucleus sampling: smallest set with cumulative probability >= p */
    double min_p;       /* 0; only tokens at least min_p times as probable as the most probable one */
    /* 1; logits of tokens that have occurred are divided by it if positive, otherwise multiplied. */
    double repetition_penalty;
    double presence_penalty;     /* 0; subtracted from the logits of generated tokens, once ... */
    double frequency_penalty;    /* 0; ... or once per occurrence */
    int n_biases;                /* logit biases */
    const kr_logit_bias *biases; /* copied */
    uint64_t seed;
} kr_sampler_options;
#define kr_sampler_options_init(options) KR_STRUCT_INIT(SAMPLER_OPTIONS, kr_sampler_options, options)

typedef struct kr_sampler kr_sampler;

/* Creates a sampler for `rows` rows of logits over `vocab` tokens. NULL after an error that names field, value and
 * rule. */
KR_API kr_sampler *kr_sampler_create(kr_ctx *ctx, const kr_sampler_options *options, int64_t rows, int64_t vocab);
KR_API void kr_sampler_destroy(kr_sampler *sampler);

typedef struct kr_sample {
    int32_t id;
    double logprob; /* log softmax of the unmodified logits at id */
} kr_sample;

/* Registers a token of the prompt: it counts as having occurred, not as generated. */
KR_API kr_status kr_sampler_accept(kr_sampler *sampler, int64_t row, int32_t id);

/* Samples one token per row from logits [rows, w], w >= vocab; columns from vocab on are never sampled. NaN, +infinity
 * or an empty set of candidates is an error; no row has changed then. */
KR_API kr_status kr_sampler_next(kr_sampler *sampler, const kr_tensor *logits_bw, kr_sample *samples);

/* The same for a subset of the rows: logits [count, w] for rows[0..count), in ascending order. */
KR_API kr_status kr_sampler_next_rows(kr_sampler *sampler, const kr_tensor *logits_bw, int64_t count,
                                      const int64_t *rows, kr_sample *samples);

/* The `count` most probable tokens of one row of logits [w] or [1, w], in descending order, with their
 * log-probabilities. */
KR_API kr_status kr_top_tokens(const kr_tensor *logits, int64_t vocab, int64_t count, kr_sample *top);

/* ==== Generation ==== */

typedef struct kr_generate_options {
    size_t size;                       /* set by kr_generate_options_init */
    const kr_sampler_options *sampler; /* NULL: all defaults; copied */
    int64_t n_samples;                 /* 1: number of continuations of the prompt, generated in parallel */
    int64_t max_tokens;                /* 256; -1: unlimited, until a stop */
    int64_t prefill_chunk;             /* 512: prompt tokens per prefill call; memory is proportional to it */
    int n_stop_ids;                    /* token ids that end a row; generated, but without text */
    const int32_t *stop_ids;           /* copied */
    int n_stops;                       /* strings that end a row; the text ends before them */
    const char *const *stops;          /* copied */
} kr_generate_options;
#define kr_generate_options_init(options) KR_STRUCT_INIT(GENERATE_OPTIONS, kr_generate_options, options)

typedef enum kr_finish {
    KR_FINISH_NONE = 0,
    KR_FINISH_LENGTH = 1,  /* max_tokens */
    KR_FINISH_STOP_ID = 2, /* a stop id */
    KR_FINISH_STOP = 3     /* a stop text */
} kr_finish;

/* The result of the last kr_generation_next for one row. */
typedef struct kr_generated {
    bool is_new;      /* false: the row had already finished */
    kr_sample sample; /* the generated token */
    /* New text, in whole characters; "" without a tokenizer. Valid until the next call. */
    const char *text;
    size_t bytes;
    kr_finish finish;
} kr_generated;

typedef struct kr_generation kr_generation;

/* Creates a generation. The tokenizer may be NULL; then there are no texts. NULL options: all defaults. NULL after an
 * error that names field, value and rule. Network and tokenizer must outlive the generation. */
KR_API kr_generation *kr_generation_create(kr_ctx *ctx, const kr_network *net, const kr_tokenizer *tok,
                                           const kr_generate_options *options);
KR_API void kr_generation_destroy(kr_generation *g);

/* Feeds more of the prompt, the same for all rows. Finished rows continue, and max_tokens counts from here. The last
 * token is kept for the next call, as sampled tokens are. An empty feed only lets the rows continue. Texts are encoded
 * with the special tokens of the tokenizer if they are the first input, and without them later. */
KR_API kr_status kr_generation_feed(kr_generation *g, const int32_t *ids, int64_t count);
KR_API kr_status kr_generation_feed_text(kr_generation *g, const char *text, size_t bytes);

/* Generates one more token for each unfinished row. KR_END when all rows have finished. It is an error if no prompt was
 * fed; if a step fails midway, only kr_generation_load continues. With GPU sampling the next step is already in flight;
 * if weights change between calls, the next token still comes from the old weights. */
KR_API KR_MUST_CHECK kr_status kr_generation_next(kr_generation *g);
KR_API const kr_generated *kr_generation_row(const kr_generation *g, int64_t row);

typedef struct kr_generation_stats {
    int64_t prompt_tokens; /* prompt tokens; a prompt shared by several samples is counted once */
    int64_t tokens;        /* tokens generated, over all rows */
    uint64_t reserved[6];  /* 0; for later versions */
} kr_generation_stats;

/* Token counts so far; 0 for NULL. The functions below return one field each. */
KR_API kr_generation_stats kr_generation_stats_of(const kr_generation *g);
KR_API_INLINE int64_t kr_generation_prompt_tokens(const kr_generation *g)
{
    return kr_generation_stats_of(g).prompt_tokens;
}
KR_API_INLINE int64_t kr_generation_tokens(const kr_generation *g)
{
    return kr_generation_stats_of(g).tokens;
}

/* Saves and restores the whole generation: state, pending tokens, sampler state, buffered text. The file is bound to
 * its network, as with kr_state_save; options are not stored, except the seed. The file must have the same number of
 * rows. If loading fails, the generation has not changed. */
KR_API KR_MUST_CHECK kr_status kr_generation_save(kr_generation *g, const char *path);
KR_API KR_MUST_CHECK kr_status kr_generation_load(kr_generation *g, const char *path);

/* The same with the bytes of the file in the caller's memory, as kr_state_save_memory. */
KR_API KR_MUST_CHECK kr_status kr_generation_save_memory(kr_generation *g, void *out, size_t bytes, size_t *needed);
KR_API KR_MUST_CHECK kr_status kr_generation_load_memory(kr_generation *g, const void *data, size_t bytes);

/* ==== Text models ====
 *
 * A language model opened from its folder: weights, tokenizer, BOS and EOS tokens.
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

/* Initialise with { 0 }. */
typedef struct kr_text_model_options {
    /* Path of a tokenizer.json, or "bytes". NULL: FOLDER/tokenizer.json; without that file bytes, if the vocabulary has
     * 256 to 264 tokens. */
    const char *tokenizer;
    const kr_load_options *load; /* NULL: the defaults of kr_model_load */
    bool skip_tokenizer;         /* true: no tokenizer unless `tokenizer` names one */
    uint64_t reserved[4];        /* 0; for later versions */
} kr_text_model_options;

/* Opens a text model. NULL options: all defaults. NULL after an error: the model cannot be loaded, there is no
 * tokenizer, or the tokenizer has more tokens than the model. Destroy before the context; NULL is allowed. */
KR_API kr_text_model *kr_text_model_open(kr_ctx *ctx, const char *folder, const kr_text_model_options *options);
KR_API void kr_text_model_destroy(kr_text_model *lm);

/* Creates a text model in `ctx` over the weights and the tokenizer of another one, with the ownership, thread safety and
 * errors of kr_network_share. */
KR_API kr_text_model *kr_text_model_share(kr_ctx *ctx, const kr_text_model *lm);

/* The parts of a text model, all valid as long as the text model. */
typedef struct kr_text_model_info {
    kr_model *model;
    const kr_tokenizer *tokenizer; /* NULL if none was opened */
    int n_bos;                     /* BOS ids, which the tokenizer prepends to each text; at most 8 */
    const int32_t *bos;
    /* EOS ids: eos_token_id of the model files; otherwise <|endoftext|>, <|end_of_text|> and </s>, if the tokenizer has
     * them. */
    int n_eos;
    const int32_t *eos;
    /* First token of an empty prompt if there is no BOS: the bos_token_id of the model, otherwise the first EOS; -1:
     * none. */
    int32_t start;
    uint64_t reserved[4]; /* 0; for later versions */
} kr_text_model_info;

/* The parts of a text model; for NULL all are empty and start is -1. The functions below return one field each. */
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

/* Sets n_stop_ids and stop_ids of initialised options to the EOS ids, which are valid as long as the text model. */
KR_API_INLINE void kr_text_model_set_stops(const kr_text_model *lm, kr_generate_options *options)
{
    if (lm && options) options->stop_ids = kr_text_model_eos(lm, &options->n_stop_ids);
}

/* Feeds the prompt of a new generation: kr_generation_feed_text, or for an empty prompt the BOS or start token.
 * KR_ERR_ARG if the prompt is empty and the model has neither. */
KR_API kr_status kr_text_model_feed(const kr_text_model *lm, kr_generation *g, const char *text, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
