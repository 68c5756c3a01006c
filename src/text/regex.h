/* regex.h - the regular expressions of a tokenizer file: written for Oniguruma, matched by PCRE2.
 *
 * They are translated (regex_translate.c), so that the two agree, except for characters newer than PCRE2's tables. A
 * pattern with catastrophic backtracking fails with an error: the first attempts at a position have a limit each, and
 * steps beyond it are charged to a budget in proportion to the text.
 */
#ifndef KR_TEXT_REGEX_H
#define KR_TEXT_REGEX_H

#include "text/buffer.h"

typedef struct kr_regex kr_regex;

/* Compiles pattern[0..bytes), UTF-8; path is its path in the file, for messages. NULL after an error: the pattern is
 * invalid, uses a construct that cannot be translated, or this build is without PCRE2. */
kr_regex *kr_regex_create(kr_ctx *ctx, const char *pattern, size_t bytes, const char *path);
void kr_regex_destroy(kr_regex *regex);

/* The same expression in another context, without compiling it again; `from` may be in use by another thread. NULL after an
 * error. */
kr_regex *kr_regex_share(kr_ctx *ctx, const kr_regex *from);

/* Resets the budget for texts of `bytes` bytes in total. */
void kr_regex_begin(kr_regex *regex, size_t bytes);

typedef struct kr_match {
    size_t begin, end;
} kr_match;

/* The first match in text[0..bytes), valid UTF-8, that begins at `from` or later. 1: found, in *match; 0: none; -1
 * after an error. */
int kr_regex_find(kr_regex *regex, const char *text, size_t bytes, size_t from, kr_match *match);

/* Appends the pattern for PCRE2 to `out`. False after an error that names the construct that cannot be translated. */
bool kr_regex_translate(kr_buffer *out, const char *pattern, size_t bytes, const char *path);

/* Does PCRE2 support this property, "\p{sc:Greek}"? 1 or 0; -1 after an error. */
int kr_regex_has_property(kr_ctx *ctx, const char *property, size_t bytes);

#endif
