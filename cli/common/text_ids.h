/* text_ids.h - the ids of a text of any length, a block at a time: memory does not grow with the text.
 *
 *   cli_text_ids *text = cli_text_ids_open(&(cli_text_source){ .tok = tok, .name = "book.txt", .file = file });
 *   const int32_t *ids;
 *   for (int64_t n; (n = cli_text_ids_next(text, &ids)) > 0;) ...;        // n < 0: said why on stderr
 *   cli_text_ids_close(text);
 *
 * A text of one block is encoded as a whole; a longer one is cut by kr_tokenizer_split.
 *
 * Without a tokenizer the text is numbers, with white space or commas between them.
 */
#ifndef KR_CLI_COMMON_TEXT_IDS_H
#define KR_CLI_COMMON_TEXT_IDS_H

#include <krait/text.h>

#include <stdio.h>

typedef struct cli_text_source {
    const kr_tokenizer *tok; /* NULL: numbers */
    bool is_plain;           /* special tokens are not recognised: their letters are text */
    const char *name;        /* of the file, for error messages */
    FILE *file;              /* NULL: the text at ... */
    const char *text;
    size_t bytes;
    size_t block_bytes; /* 0: 1 MiB */
} cli_text_source;

typedef struct cli_text_ids cli_text_ids;

/* NULL: out of memory, and said so. File and text must stay. */
cli_text_ids *cli_text_ids_open(const cli_text_source *source);
void cli_text_ids_close(cli_text_ids *text);

/* The next ids, which live until the next call; 0 at the end; -1 after an error message, after an interrupt in the middle of
 * reading, or after an error of the tokenizer, which is in its context. Special tokens around a text are not
 * included. */
int64_t cli_text_ids_next(cli_text_ids *text, const int32_t **ids);

#endif
