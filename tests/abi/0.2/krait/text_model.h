/* text_model.h - a language model opened by its folder: weights, tokenizer, and the tokens that begin and end a text.
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
#ifndef KRAIT_TEXT_MODEL_H
#define KRAIT_TEXT_MODEL_H

#include <krait/generate.h>
#include <krait/model.h>
#include <krait/tokenizer.h>

#ifdef __cplusplus
extern "C" {
#endif

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
