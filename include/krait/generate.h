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
 */
#ifndef KRAIT_GENERATE_H
#define KRAIT_GENERATE_H

#include <krait/network.h>
#include <krait/sampler.h>
#include <krait/tokenizer.h>

#ifdef __cplusplus
extern "C" {
#endif

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

#ifdef __cplusplus
}
#endif
#endif
