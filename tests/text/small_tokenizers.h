/* small_tokenizers.h - tokenizer.json files made by hand, for tests: the 256 bytes have their own numbers as ids, further
 * words follow from 256 on. */
#ifndef KR_TESTS_TEXT_SMALL_TOKENIZERS_H
#define KR_TESTS_TEXT_SMALL_TOKENIZERS_H

#include "tests/harness.h"

/* Every member is JSON; NULL stands for what is most common. */
typedef struct small_file {
    const char *words;          /* of the vocabulary from 256 on, as the inside of an array: "\"ab\", \"abc\"" */
    const char *merges;         /* inside of an array */
    const char *model;          /* more members of the model, with a comma behind: "\"ignore_merges\": true," */
    const char *without;        /* bytes, plain, that the vocabulary lacks */
    const char *added;          /* inside of an array */
    const char *normalizer;     /* null */
    const char *pre_tokenizer;  /* ByteLevel that does not cut and adds no space */
    const char *post_processor; /* null */
    const char *decoder;        /* ByteLevel */
    const char *more;           /* more members of the file, with a comma behind */
} small_file;

#define PLAIN_BYTES "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"use_regex\": false}"
#define GPT2_BYTES "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"use_regex\": true}"
#define SEQUENCE_OF(list) "{\"type\": \"Sequence\", \"pretokenizers\": [" list "]}"
#define SPLIT_BY(regex, behavior, invert)                                                                              \
    "{\"type\": \"Split\", \"pattern\": {\"Regex\": \"" regex "\"}, \"behavior\": \"" behavior                         \
    "\", \"invert\": " invert "}"

/* The text of a file; lives until the next call. */
const char *small_json(const small_file *file);

/* The tokenizer; NULL after a failure, which counts. */
kr_tokenizer *small_tokenizer(kr_ctx *ctx, const small_file *file);

/* Ids of a text as "104 101 256", at most 1000 of them; lives until the next call. NULL options: defaults. */
const char *ids_text(const kr_tokenizer *tok, const char *text, size_t bytes, const kr_encode_options *options);

bool check_ids(const kr_tokenizer *tok, const char *text, const char *want, const char *file, int line);
#define CHECK_IDS(tok, text, want) check_ids((tok), (text), (want), __FILE__, __LINE__)

/* decode(encode(text)) is `want`, through the stream too; ids are tokens, and no more than promised. */
bool check_round_trip(const kr_tokenizer *tok, const char *text, size_t bytes, const char *want, size_t want_bytes);

/* The built library matches regular expressions. */
bool has_regex(void);

#endif
