/* tokenizer_read.h - reads a tokenizer.json, section by section, as untrusted input.
 *
 * Every function takes the path of its value in the file, "pre_tokenizer.pretokenizers[1]", for messages, and returns
 * false after an error.
 */
#ifndef KR_TEXT_TOKENIZER_READ_H
#define KR_TEXT_TOKENIZER_READ_H

#include "text/tokenizer_impl.h"
#include "io/json_impl.h"
#include "io/quote.h"

typedef struct kr_reader {
    kr_ctx *ctx;
    kr_tokenizer *tok;
    const kr_json *vocab;
    uint64_t seed; /* of hash tables: depends on the whole file */
} kr_reader;

typedef struct kr_json_path {
    char text[200];
} kr_json_path;
kr_json_path kr_json_path_of(const char *format, ...) KR_PRINTF(1, 2);

/* tokenizer_model.c */
bool kr_read_model(kr_reader *r, const kr_json *model, const kr_json *added);
bool kr_read_added_tokens(kr_reader *r, const kr_json *added);

/* tokenizer_parts.c */
bool kr_read_normalizer(kr_reader *r, const kr_json *part, const char *path);
bool kr_read_pre_tokenizer(kr_reader *r, const kr_json *part, const char *path);
bool kr_read_post_processor(kr_reader *r, const kr_json *part, const char *path);
bool kr_read_decoder(kr_reader *r, const kr_json *part, const char *path);

/* tokenizer_read.c: shared helpers */

/* "tokenizer: PLACE TEXT"; always false. */
bool kr_refuse(kr_reader *r, const char *path, const char *format, ...) KR_PRINTF(3, 4);
bool kr_read_no_memory(kr_reader *r);

/* Checks the kind of a value; an error otherwise. */
bool kr_read_kind(kr_reader *r, const kr_json *value, kr_json_kind kind, const char *path);

/* A member that is true or false; if missing or null, `fallback`. */
bool kr_read_flag(kr_reader *r, const kr_json *object, const char *key, bool fallback, const char *path, bool *flag);

/* The text of the member "type" of an object, or NULL after an error. */
const char *kr_read_type(kr_reader *r, const kr_json *object, const char *path);

/* Warns of members whose keys are not among `known`, words separated by spaces. */
void kr_warn_of_keys(kr_reader *r, const kr_json *object, const char *known, const char *path);

#endif
