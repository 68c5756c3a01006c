/* regex.h - the regular expressions of a tokenizer file: written for Oniguruma, matched by PCRE2.
 *
 * They are translated on the way (regex_translate.c), so that the two agree, but for characters that are newer than
 * PCRE2's tables. A pattern that would try ways without end fails with an error: the first tries at a place have a limit
 * each, and what goes beyond it is taken from a budget in proportion to the text.
 */
#ifndef KR_TEXT_REGEX_H
#define KR_TEXT_REGEX_H

#include "text/buffer.h"

typedef struct kr_regex kr_regex;

/* pattern[0..bytes), UTF-8, compiled; place is where it stands in the file, for messages. NULL after an error: the
 * pattern is none, uses what cannot be translated, or this build is without PCRE2. */
kr_regex *kr_regex_create(kr_ctx *ctx, const char *pattern, size_t bytes, const char *place);
void kr_regex_destroy(kr_regex *regex);

/* Renews the budget for texts of so many bytes together. */
void kr_regex_begin(kr_regex *regex, size_t bytes);

typedef struct kr_match {
    size_t begin, end;
} kr_match;

/* The first match in text[0..bytes), valid UTF-8, that begins at `from` or later. 1: *match is it; 0: there is none; -1
 * after an error. */
int kr_regex_find(kr_regex *regex, const char *text, size_t bytes, size_t from, kr_match *match);

/* The pattern for PCRE2, behind what is in `out`. False after an error that names what cannot be translated. */
bool kr_regex_translate(kr_buffer *out, const char *pattern, size_t bytes, const char *place);

/* Does PCRE2 know this property, "\p{sc:Greek}"? 1 or 0; -1 after an error. */
int kr_regex_has_property(kr_ctx *ctx, const char *property, size_t bytes);

#endif
