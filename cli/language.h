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
#ifndef KR_CLI_LANGUAGE_H
#define KR_CLI_LANGUAGE_H

#include "cli/options.h"

#include <krait/model.h>
#include <krait/tokenizer.h>

typedef struct cli_language_values {
    const char *folder;    /* an operand of the subcommand */
    const char *tokenizer; /* NULL: the folder's, or bytes */
    int dtype;
} cli_language_values;

#define CLI_LANGUAGE_OPTIONS(values, field)                                                                            \
    { "tokenizer",                                                                                                     \
      0,                                                                                                               \
      "FILE",                                                                                                          \
      CLI_TEXT,                                                                                                        \
      offsetof(values, field.tokenizer),                                                                               \
      NULL,                                                                                                            \
      0,                                                                                                               \
      "tokenizer.json, or the word bytes (default MODEL/tokenizer.json; bytes if the model has 256 tokens)" },         \
    {                                                                                                                  \
        "dtype", 0, "stored|f32|bf16|f16", CLI_CHOICE, offsetof(values, field.dtype), "stored", 0,                     \
            "of the weights in memory"                                                                                 \
    }

enum { CLI_MAX_BEGIN = 8 };

typedef struct cli_language {
    kr_model *model;
    const kr_network *net;
    kr_tokenizer *tok; /* NULL: none */
    int64_t vocab;     /* tokens, without the padding of the table */
    /* What the tokenizer puts before a text, such as <|begin_of_text|>. */
    int n_begin;
    int32_t begin[CLI_MAX_BEGIN];
    /* Tokens that end a text: the model's; or, where it names none, the tokenizer's by their usual texts. */
    int n_eos;
    int32_t eos[KR_MAX_EOS];
    int32_t start; /* what an empty text begins with: the model's bos, else the first eos; -1: none */
} cli_language;

/* False after a complaint. needs_tokenizer: there must be one; else only if values->tokenizer asks for it. */
bool cli_language_open(kr_ctx *ctx, const cli_language_values *values, bool needs_tokenizer, cli_language *language);
void cli_language_close(cli_language *language);

/* "mamba2, 24 layers, 129.1 M parameters, bf16" into text; returns text. */
const char *cli_language_text(const cli_language *language, char *text, size_t bytes);

#endif
