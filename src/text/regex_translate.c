/* regex_translate.c - translates Oniguruma's Ruby syntax, in which tokenizer files are written, to PCRE2's.
 *
 * Constructs with the same meaning in both are copied. Others are expanded:
 *
 *   \s \S     White_Space, without U+180E               (?m)        dot matches newlines: (?s)
 *   \w \W     letters, marks, digits, connectors        {,n}        {0,n}
 *   \b \B     the same, by lookaround                   \uHHHH      \x{HHHH}
 *   \h \H     hexadecimal digits                        \v          U+000B
 *   \O        any character                             \p{Greek}   the script: \p{sc:Greek}
 *
 * ^ and $ match at line breaks, by a compile option. Constructs without a short equivalent (nested classes, [:alpha:],
 * {n,m}+, (?x), \W in a class and similar) are errors that name them. One difference remains: a case-insensitive match
 * of one character with several, as of U+00DF with "ss", which only Oniguruma supports.
 */
#include "text/regex.h"
#include "io/quote.h"

/* Contents of character classes. */
#define SPACE "\\x09-\\x0d\\x20\\x85\\xa0\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"
#define NOT_SPACE                                                                                                      \
    "\\x00-\\x08\\x0e-\\x1f\\x21-\\x84\\x86-\\x9f\\xa1-\\x{167f}\\x{1681}-\\x{1fff}\\x{200b}-\\x{2027}"                \
    "\\x{202a}-\\x{202e}\\x{2030}-\\x{205e}\\x{2060}-\\x{2fff}\\x{3001}-\\x{10ffff}"
#define WORD "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\xb2\\xb3\\xb9\\xbc-\\xbe"
#define HEX "0-9A-Fa-f"

typedef struct translator {
    kr_buffer *out;
    const char *pattern;
    size_t bytes, at;
    const char *path;
} translator;

/* Always false. */
static bool refuse(const translator *t, const char *what)
{
    return kr_fail(t->out->ctx, KR_ERR_UNSUPPORTED,
                   "tokenizer: %s: the regular expression \"%s\" has %s at byte %zu, which is not supported", t->path,
                   kr_quote_of(t->pattern, t->bytes).text, what, t->at);
}

static int peek(const translator *t, size_t ahead)
{
    return t->at + ahead < t->bytes ? (unsigned char)t->pattern[t->at + ahead] : -1;
}

static bool put(translator *t, const char *text)
{
    return kr_buffer_put(t->out, text, strlen(text));
}

static bool copy(translator *t, size_t bytes)
{
    const bool copied = kr_buffer_put(t->out, t->pattern + t->at, bytes);
    t->at += bytes;
    return copied;
}

static bool is_digit(int c)
{
    return c >= '0' && c <= '9';
}

static bool is_letter(int c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

static bool is_hex(int c)
{
    return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

/* ---- escapes ---- */

/* \p{NAME}, \P{NAME}, \p{^NAME}; scripts are distinguished from script extensions. */
static bool translate_property(translator *t)
{
    size_t end = 3;
    if (peek(t, 2) != '{') return refuse(t, "a property without braces");
    while (peek(t, end) >= 0 && peek(t, end) != '}') end++;
    if (peek(t, end) < 0) return refuse(t, "a property without its closing brace");
    const size_t name_at = peek(t, 3) == '^' ? 4 : 3;
    enum { LONGEST_CATEGORY = 2, LONGEST = 40 };
    const size_t length = end - name_at;
    if (length > LONGEST_CATEGORY && length < LONGEST) {
        kr_buffer script = { .ctx = t->out->ctx };
        const bool has_text = kr_buffer_put(&script, "\\p{sc:", 6) &&
                              kr_buffer_put(&script, t->pattern + t->at + name_at, length) &&
                              kr_buffer_put(&script, "}", 1);
        const int is_script = has_text ? kr_regex_has_property(script.ctx, script.data, script.bytes) : -1;
        kr_buffer_free(&script);
        if (is_script < 0) return false;
        if (is_script) {
            if (!copy(t, name_at) || !put(t, "sc:")) return false;
            return copy(t, length + 1);
        }
    }
    return copy(t, end + 1);
}

/* \xHH, \x{H...}, \uHHHH */
static bool translate_number(translator *t)
{
    if (peek(t, 1) == 'u') {
        for (size_t i = 2; i < 6; i++)
            if (!is_hex(peek(t, i))) return refuse(t, "\\u without four digits");
        t->at += 2;
        return put(t, "\\x{") && copy(t, 4) && put(t, "}");
    }
    if (peek(t, 2) == '{') {
        size_t end = 3;
        while (is_hex(peek(t, end))) end++;
        return end > 3 && peek(t, end) == '}' ? copy(t, end + 1) : refuse(t, "\\x{ without its number");
    }
    if (!is_hex(peek(t, 2)) || !is_hex(peek(t, 3)) || peek(t, 2) >= '8') return refuse(t, "\\x that is not ASCII");
    return copy(t, 4);
}

typedef struct escape {
    char letter;
    const char *outside, *inside; /* NULL: an error there */
} escape;

static const escape escapes[] = {
    { 's', "[" SPACE "]", SPACE },
    { 'S', "[^" SPACE "]", NOT_SPACE },
    { 'w', "[" WORD "]", WORD },
    { 'W', "[^" WORD "]", NULL },
    { 'b', "(?:(?<=[" WORD "])(?![" WORD "])|(?<![" WORD "])(?=[" WORD "]))", "\\x08" },
    { 'B', "(?:(?<=[" WORD "])(?=[" WORD "])|(?<![" WORD "])(?![" WORD "]))", NULL },
    { 'h', "[" HEX "]", HEX },
    { 'H', "[^" HEX "]", NULL },
    { 'v', "\\x0b", "\\x0b" },
    { 'O', "(?s:.)", NULL },
};
static const char same_everywhere[] = "dDnrtfae", same_outside[] = "AZzGKRXkgN";

static bool translate_escape(translator *t, bool in_class)
{
    const int c = peek(t, 1);
    if (c < 0) return refuse(t, "a backslash at its end");
    if (c == 'p' || c == 'P') return translate_property(t);
    if (c == 'x' || c == 'u') return translate_number(t);
    for (size_t i = 0; i < sizeof escapes / sizeof *escapes; i++) {
        if (escapes[i].letter != c) continue;
        const char *text = in_class ? escapes[i].inside : escapes[i].outside;
        /* a class of characters cannot be the end of a range */
        const bool is_range = in_class && c != 'b' && c != 'v' && peek(t, 2) == '-' && peek(t, 3) != ']';
        if (!text || is_range) break;
        t->at += 2;
        return put(t, text);
    }
    const bool is_same = !is_letter(c) || strchr(same_everywhere, c) || (!in_class && strchr(same_outside, c));
    if (is_same && !(c == 'N' && peek(t, 2) == '{')) {
        size_t length = 2;
        while ((peek(t, length) & 0xc0) == 0x80 && peek(t, length) >= 0)
            length++; /* continuation bytes of a character */
        return copy(t, c < 0x80 ? 2 : length);
    }
    const char what[] = { '\\', (char)c, '\0' };
    return refuse(t, what);
}

/* ---- classes, groups, repetitions ---- */

static bool translate_class(translator *t)
{
    const size_t begin = t->at;
    if (!copy(t, 1) || (peek(t, 0) == '^' && !copy(t, 1))) return false;
    if (peek(t, 0) == ']') { /* the first one is a literal */
        t->at++;
        if (!put(t, "\\]")) return false;
    }
    for (;;) {
        const int c = peek(t, 0);
        if (c < 0) {
            t->at = begin;
            return refuse(t, "a class without its closing bracket");
        }
        if (c == '[') return refuse(t, peek(t, 1) == ':' ? "a POSIX bracket" : "a class in a class");
        if (c == '&' && peek(t, 1) == '&') return refuse(t, "an intersection of classes");
        if (c == '-' && peek(t, 1) == '\\' && peek(t, 2) >= 0 && strchr("sSwWhH", peek(t, 2)))
            return refuse(t, "a range to a set of characters");
        if (c == '\\') {
            if (!translate_escape(t, true)) return false;
            continue;
        }
        if (!copy(t, 1)) return false;
        if (c == ']') return true;
    }
}

/* From "(". */
static bool translate_group(translator *t)
{
    if (peek(t, 1) == '*') return refuse(t, "(*");
    if (peek(t, 1) != '?') return copy(t, 1);
    if (peek(t, 2) == '#') {
        while (peek(t, 0) >= 0 && peek(t, 0) != ')') t->at++;
        if (peek(t, 0) < 0) return refuse(t, "a comment without its end");
        t->at++;
        return true;
    }
    size_t end = 2;
    while (is_letter(peek(t, end)) || peek(t, end) == '-') end++;
    if (end == 2 || (peek(t, end) != ':' && peek(t, end) != ')')) return copy(t, 2);
    if (!copy(t, 2)) return false;
    for (size_t i = 2; i < end; i++) {
        const int c = peek(t, 0);
        if (c != 'i' && c != 'm' && c != '-') return refuse(t, "another group option than i and m");
        t->at++;
        if (!put(t, c == 'i' ? "i" : c == 'm' ? "s" : "-")) return false;
    }
    return true;
}

/* From "{": a repetition count, or a literal. */
static bool translate_brace(translator *t)
{
    size_t end = 1;
    while (is_digit(peek(t, end))) end++;
    const bool has_low = end > 1, has_comma = peek(t, end) == ',';
    if (has_comma) end++;
    const size_t high = end;
    while (is_digit(peek(t, end))) end++;
    const bool has_high = has_comma && end > high;
    if (peek(t, end) != '}' || !(has_low || has_high)) {
        t->at++;
        return put(t, "\\{");
    }
    const int next = peek(t, end + 1);
    if (next == '+' || next == '*' || next == '{' || (next == '?' && !has_comma))
        return refuse(t, "a repetition of a repetition");
    if (has_low) return copy(t, end + 1);
    t->at++;
    return put(t, "{0") && copy(t, end);
}

bool kr_regex_translate(kr_buffer *out, const char *pattern, size_t bytes, const char *path)
{
    translator t = { out, pattern, bytes, 0, path };
    while (t.at < bytes) {
        const int c = peek(&t, 0);
        const bool done = c == '\\'  ? translate_escape(&t, false)
                          : c == '[' ? translate_class(&t)
                          : c == '(' ? translate_group(&t)
                          : c == '{' ? translate_brace(&t)
                                     : copy(&t, 1);
        if (!done) return false;
    }
    return true;
}
