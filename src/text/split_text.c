/* split_text.c - finds a position where a long text can be split in two without changing its ids.
 *
 * Pre-tokenizers split before a space or tab that follows another character, and after a line break that another
 * character follows. Such a position is used if the tokenizer confirms that the text around it has the same ids in one
 * piece and in two. A text without one is split between two characters.
 */
#include "text/tokenizer_impl.h"

#include <string.h>

/* Bytes on each side of a split that the tokenizer encodes for the comparison, and the number of positions tried. */
enum { MARGIN = 256, CANDIDATES = 256 };

static bool is_ascii_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static bool is_continuation(char c)
{
    return ((unsigned char)c & 0xc0) == 0x80;
}

/* Unicode's White_Space outside of ASCII, in UTF-8. */
static bool is_wide_space(const char *c, size_t bytes)
{
    static const char *const spaces[] = { "\xc2\x85",     "\xc2\xa0",     "\xe1\x9a\x80", "\xe2\x80\xa8",
                                          "\xe2\x80\xa9", "\xe2\x80\xaf", "\xe2\x81\x9f", "\xe3\x80\x80" };
    for (size_t i = 0; i < sizeof spaces / sizeof *spaces; i++) {
        if (strlen(spaces[i]) == bytes && !memcmp(spaces[i], c, bytes)) return true;
    }
    return bytes == 3 && !memcmp(c, "\xe2\x80", 2) && (unsigned char)c[2] <= 0x8a; /* U+2000 .. U+200A */
}

/* Is the character that ends before, or begins at, `at` white space? */
static bool is_space_before(const char *text, size_t at)
{
    size_t from = at - 1;
    while (from && at - from < 4 && is_continuation(text[from])) from--;
    return is_ascii_space(text[at - 1]) || is_wide_space(text + from, at - from);
}
static bool is_space_at(const char *text, size_t at)
{
    return is_ascii_space(text[at]) || is_wide_space(text + at, 2) || is_wide_space(text + at, 3);
}

/* Do pre-tokenizers split before text[at]? 4 bytes on each side can be read. */
static bool is_boundary(const char *text, size_t at)
{
    if (text[at] == ' ' || text[at] == '\t') return !is_space_before(text, at);
    return text[at - 1] == '\n' && !is_space_at(text, at);
}

/* Does the text around the position have the same ids in one piece and in two? */
static bool agrees(const kr_tokenizer *tok, const char *text, size_t at, const kr_encode_options *options)
{
    int32_t whole[2 * MARGIN], parts[2 * MARGIN];
    size_t from = at - MARGIN;
    while (is_continuation(text[from]) && from + 4 < at) from++;
    const size_t before = at - from;
    const int64_t n = kr_tokenizer_encode(tok, text + from, before + MARGIN, options, whole, 2 * MARGIN);
    const int64_t n1 = kr_tokenizer_encode(tok, text + from, before, options, parts, 2 * MARGIN);
    if (n < 0 || n1 < 0 || n > 2 * MARGIN || n1 > n) return false;
    const int64_t n2 = kr_tokenizer_encode(tok, text + at, MARGIN, options, parts + n1, 2 * MARGIN - n1);
    return n1 + n2 == n && !memcmp(whole, parts, (size_t)n * sizeof *whole);
}

size_t kr_tokenizer_split(const kr_tokenizer *tok, const char *text, size_t bytes, const kr_encode_options *options)
{
    if (!tok || bytes < KR_SPLIT_MIN_BYTES) return bytes;
    kr_encode_options plain;
    if (!KR_TAKE(tok->ctx, "tokenizer.split", kr_encode_options, options, &plain)) return bytes;
    plain.add_special = false;
    const size_t last = bytes - MARGIN;
    int candidates = CANDIDATES;
    for (size_t at = last; at > bytes / 2 && candidates; at--) {
        if (!is_boundary(text, at)) continue;
        if (agrees(tok, text, at, &plain)) return at;
        candidates--;
    }
    size_t at = last;
    while (last - at < 3 && is_continuation(text[at])) at--;
    return is_continuation(text[at]) ? last : at;
}
