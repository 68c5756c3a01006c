/* language.h - a model folder with its tokenizer, as the subcommands that read and write text open it.
 *
 *   typedef struct hello_values { cli_language_values language; } hello_values;
 *   static const cli_option options[] = { CLI_LANGUAGE_OPTIONS(hello_values, language), { 0 } };
 *   ...
 *   cli_language language;
 *   if (!cli_language_open(ctx, &values.language, true, &language)) return CLI_FAILED;
 *   ...
 *   cli_language_close(&language);
 */
#ifndef KR_CLI_COMMON_LANGUAGE_H
#define KR_CLI_COMMON_LANGUAGE_H

#include "cli/common/cli_options.h"

#include <krait/generate.h>

typedef struct cli_language_values {
    const char *folder;    /* an operand of the subcommand */
    const char *tokenizer; /* NULL: the folder's, or bytes */
    int dtype;
    bool no_mmap;
} cli_language_values;

#define CLI_LANGUAGE_OPTIONS(values, field)                                                                            \
    { "tokenizer",                                                                                                     \
      0,                                                                                                               \
      "FILE",                                                                                                          \
      CLI_TEXT,                                                                                                        \
      offsetof(values, field.tokenizer),                                                                               \
      NULL,                                                                                                            \
      0,                                                                                                               \
      "tokenizer.json, or the word bytes (default: MODEL/tokenizer.json; bytes for a model with 256 tokens)" },        \
        { "no-mmap",                                                                                                   \
          0,                                                                                                           \
          NULL,                                                                                                        \
          CLI_FLAG,                                                                                                    \
          offsetof(values, field.no_mmap),                                                                             \
          NULL,                                                                                                        \
          0,                                                                                                           \
          "copy the weights into memory instead of using them in the mapped file" },                                   \
    {                                                                                                                  \
        "dtype", 0, "stored|f32|bf16|f16", CLI_CHOICE, offsetof(values, field.dtype), "stored", 0,                     \
            "type of the weights in memory"                                                                            \
    }

/* All of it belongs to lm. */
typedef struct cli_language {
    kr_text_model *lm;
    kr_model *model;
    const kr_network *net;
    const kr_tokenizer *tok; /* NULL: none */
    int64_t vocab;           /* tokens, without the padding of the table */
    int n_begin, n_eos;
    const int32_t *begin, *eos; /* before a text, as <|begin_of_text|>, and at its end */
    int32_t start;              /* first token of an empty text: the model's BOS, else the first EOS; -1: none */
} cli_language;

/* False after an error message. needs_tokenizer: a tokenizer is required; else only if values->tokenizer is given. */
bool cli_language_open(kr_ctx *ctx, const cli_language_values *values, bool needs_tokenizer, cli_language *language);
void cli_language_close(cli_language *language);

/* "mamba2, 24 layers, 129.1 M parameters, bf16" into text; returns text. */
const char *cli_language_text(const cli_language *language, char *text, size_t bytes);

#endif
