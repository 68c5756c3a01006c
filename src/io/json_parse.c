/* json_parse.c - from a text to a tree of values, or to the byte and the reason why not.
 *
 * Strings are decoded into one buffer: a string without its quotes and escapes is shorter than its source, so the
 * text's length is enough for all of them with their closing zeros. Values are taken from the arena in batches.
 */
#include "io/decimal.h"
#include "io/json_impl.h"
#include "io/heapsort.h"
#include "io/quote.h"
#include "io/utf8.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { DEEPEST = 512, BATCH = 64 };

typedef struct parser {
    kr_ctx *ctx;
    kr_arena *arena;
    kr_json_options o;
    const char *text;
    size_t length, at;
    char *strings; /* next free byte */
    kr_json *spare;
    int nspare, depth;
    int64_t nvalues;
} parser;

static bool fail(parser *p, size_t at, const char *format, ...) KR_PRINTF(3, 4);
static bool fail(parser *p, size_t at, const char *format, ...)
{
    char reason[256];
    va_list list;
    va_start(list, format);
    vsnprintf(reason, sizeof reason, format, list);
    va_end(list);
    return kr_fail(p->ctx, KR_ERR_FORMAT, "json: at byte %zu: %s", at, reason);
}

static bool no_memory(parser *p)
{
    return kr_fail(p->ctx, KR_ERR_NOMEM, "json: at byte %zu: no memory", p->at);
}

/* What stands at `at`, for "expected .., got ..". */
typedef struct seen {
    char text[24];
} seen;

static seen seen_at(const parser *p, size_t at)
{
    seen s;
    if (at >= p->length) {
        snprintf(s.text, sizeof s.text, "the end of the text");
        return s;
    }
    const unsigned char c = (unsigned char)p->text[at];
    if (c == '\'') snprintf(s.text, sizeof s.text, "a quotation mark");
    else if (c >= ' ' && c <= '~') snprintf(s.text, sizeof s.text, "'%c'", c);
    else snprintf(s.text, sizeof s.text, "byte 0x%02x", c);
    return s;
}

static bool expected(parser *p, const char *what)
{
    return fail(p, p->at, "expected %s, got %s", what, seen_at(p, p->at).text);
}

/* -1 at the end. */
static int peek(const parser *p)
{
    return p->at < p->length ? (unsigned char)p->text[p->at] : -1;
}

static void skip_space(parser *p)
{
    while (p->at < p->length) {
        const char c = p->text[p->at];
        if (c != ' ' && c != '\t' && c != '\n' && c != '\r') break;
        p->at++;
    }
}

static bool take(parser *p, char c)
{
    if (peek(p) != (unsigned char)c) return false;
    p->at++;
    return true;
}

static bool take_word(parser *p, const char *word)
{
    const size_t n = strlen(word);
    if (p->length - p->at < n || memcmp(p->text + p->at, word, n) != 0) return false;
    p->at += n;
    return true;
}

/* ---- strings ---- */

static int hex_digit(int c)
{
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* The four digits behind \u. */
static bool read_hex4(parser *p, uint32_t *unit)
{
    *unit = 0;
    for (int i = 0; i < 4; i++, p->at++) {
        const int digit = hex_digit(peek(p));
        if (digit < 0) return expected(p, "one of the four hexadecimal digits after \\u");
        *unit = *unit << 4 | (uint32_t)digit;
    }
    return true;
}

static bool read_unicode(parser *p, size_t start, uint32_t *c)
{
    uint32_t low;
    if (!read_hex4(p, c)) return false;
    if (*c < 0xd800 || *c > 0xdfff) return true;
    if (*c >= 0xdc00) return fail(p, start, "\\u%04x is the second half of a pair without the first", (unsigned)*c);
    if (!take_word(p, "\\u"))
        return fail(p, start, "\\u%04x is the first half of a pair without the second", (unsigned)*c);
    if (!read_hex4(p, &low)) return false;
    if (low < 0xdc00 || low > 0xdfff)
        return fail(p, start, "\\u%04x is the first half of a pair, but \\u%04x is not a second", (unsigned)*c,
                    (unsigned)low);
    *c = 0x10000 + ((*c - 0xd800) << 10) + (low - 0xdc00);
    return true;
}

static bool read_escape(parser *p)
{
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    const size_t start = p->at++;
    const int c = peek(p);
    if (c == 'u') {
        uint32_t code;
        p->at++;
        if (!read_unicode(p, start, &code)) return false;
        p->strings = kr_utf8_write(p->strings, code);
        return true;
    }
    const char *name = c > 0 ? strchr(names, c) : NULL;
    if (!name) return expected(p, "one of \"\\/bfnrtu after a backslash");
    *p->strings++ = values[name - names];
    p->at++;
    return true;
}

/* From the opening quote. */
static bool read_string(parser *p, const char **text, size_t *length)
{
    const size_t start = p->at++;
    char *first = p->strings;
    for (;;) {
        const int c = peek(p);
        if (c < 0) return fail(p, start, "a string without its closing quote");
        if (c == '"') break;
        if (c < 0x20)
            return fail(p, p->at, "control character 0x%02x in a string; write it as \\u%04x", (unsigned)c,
                        (unsigned)c);
        if (c == '\\') {
            if (!read_escape(p)) return false;
            continue;
        }
        const size_t n = kr_utf8_length((const unsigned char *)p->text + p->at, p->length - p->at);
        if (n == 0) return fail(p, p->at, "byte 0x%02x does not begin a UTF-8 character", (unsigned)c);
        memcpy(p->strings, p->text + p->at, n);
        p->strings += n;
        p->at += n;
    }
    p->at++;
    *text = first;
    *length = (size_t)(p->strings - first);
    *p->strings++ = '\0';
    return true;
}

/* ---- numbers ---- */

static bool is_digit(int c)
{
    return c >= '0' && c <= '9';
}

static bool skip_digits(parser *p, const char *where)
{
    if (!is_digit(peek(p))) return expected(p, where);
    while (is_digit(peek(p))) p->at++;
    return true;
}

/* The integer in text[0..length), if it fits. */
static bool read_integer(const char *text, size_t length, int64_t *integer)
{
    const bool negative = *text == '-';
    const uint64_t most = (uint64_t)INT64_MAX + negative;
    uint64_t n = 0;
    for (size_t i = negative; i < length; i++) {
        const uint64_t digit = (uint64_t)(text[i] - '0');
        if (n > (most - digit) / 10) return false;
        n = n * 10 + digit;
    }
    *integer = negative ? (int64_t)(0 - n) : (int64_t)n;
    return true;
}

static bool read_number(parser *p, kr_json *value)
{
    const size_t start = p->at;
    bool whole = true;
    take(p, '-');
    if (take(p, '0')) {
        if (is_digit(peek(p))) return fail(p, start, "a number may not begin with 0 and another digit");
    } else if (!skip_digits(p, "a digit")) {
        return false;
    }
    if (take(p, '.')) {
        whole = false;
        if (!skip_digits(p, "a digit after the decimal point")) return false;
    }
    if (take(p, 'e') || take(p, 'E')) {
        whole = false;
        if (!take(p, '+')) take(p, '-');
        if (!skip_digits(p, "a digit of the exponent")) return false;
    }
    value->kind = KR_JSON_NUMBER;
    if (!kr_decimal_read(p->text + start, p->at - start, &value->number))
        return fail(p, start, "the number %s is too large for a double",
                    kr_quote_of(p->text + start, p->at - start).text);
    value->integer = 0;
    value->is_integer = whole && read_integer(p->text + start, p->at - start, &value->integer);
    return true;
}

static bool read_nonfinite(parser *p, kr_json *value, double number, const char *word)
{
    if (!p->o.allow_nonfinite) return fail(p, value->at, "%s is not JSON number", word);
    value->kind = KR_JSON_NUMBER;
    value->number = number;
    return true;
}

/* ---- arrays and objects ---- */

static bool read_value(parser *p, kr_json **out);

static kr_json *new_value(parser *p)
{
    if (p->nvalues++ >= p->o.max_values) {
        fail(p, p->at, "more than %lld values", (long long)p->o.max_values);
        return NULL;
    }
    if (p->nspare == 0) {
        p->spare = kr_arena_alloc(p->arena, BATCH * sizeof *p->spare);
        if (!p->spare) {
            no_memory(p);
            return NULL;
        }
        p->nspare = BATCH;
    }
    p->nspare--;
    kr_json *value = p->spare++;
    memset(value, 0, sizeof *value);
    value->at = (uint32_t)p->at;
    return value;
}

static bool enter(parser *p)
{
    if (p->depth >= p->o.max_depth) return fail(p, p->at, "arrays and objects deeper than %d levels", p->o.max_depth);
    p->depth++;
    p->at++;
    skip_space(p);
    return true;
}

static bool read_array(parser *p, kr_json *value)
{
    value->kind = KR_JSON_ARRAY;
    value->first = NULL;
    kr_json **link = &value->first;
    if (!enter(p)) return false;
    while (!take(p, ']')) {
        if (value->count && !take(p, ',')) return expected(p, "',' or ']' after a value of an array");
        if (value->count) skip_space(p);
        if (!read_value(p, link)) return false;
        link = &(*link)->next;
        value->count++;
        skip_space(p);
    }
    p->depth--;
    return true;
}

static int compare_members(const void *first, const void *second)
{
    const kr_json *a = first, *b = second;
    const int order = kr_json_compare_keys(a->key, a->key_length, b->key, b->key_length);
    return order ? order : (a->key_at > b->key_at) - (a->key_at < b->key_at);
}

static bool index_members(parser *p, kr_json *object)
{
    if (object->count == 0) return true;
    object->by_key = kr_arena_alloc(p->arena, (size_t)object->count * sizeof *object->by_key);
    if (!object->by_key) return no_memory(p);
    int64_t n = 0;
    for (kr_json *member = object->first; member; member = member->next) object->by_key[n++] = member;
    kr_sort_pointers(object->by_key, n, compare_members);
    for (int64_t i = 1; i < n; i++) {
        const kr_json *a = object->by_key[i - 1], *b = object->by_key[i];
        if (kr_json_compare_keys(a->key, a->key_length, b->key, b->key_length) == 0)
            return fail(p, b->key_at, "the key \"%s\" occurs twice in one object",
                        kr_quote_of(b->key, b->key_length).text);
    }
    return true;
}

static bool read_member(parser *p, kr_json **out)
{
    const size_t key_at = p->at;
    const char *key;
    size_t key_length;
    if (peek(p) != '"') return expected(p, "a key in quotes");
    if (!read_string(p, &key, &key_length)) return false;
    skip_space(p);
    if (!take(p, ':')) return expected(p, "':' after the key");
    skip_space(p);
    if (!read_value(p, out)) return false;
    (*out)->key = key;
    (*out)->key_length = (uint32_t)key_length;
    (*out)->key_at = (uint32_t)key_at;
    return true;
}

static bool read_object(parser *p, kr_json *value)
{
    value->kind = KR_JSON_OBJECT;
    value->first = NULL;
    value->by_key = NULL;
    kr_json **link = &value->first;
    if (!enter(p)) return false;
    while (!take(p, '}')) {
        if (value->count && !take(p, ',')) return expected(p, "',' or '}' after a member of an object");
        if (value->count) skip_space(p);
        if (!read_member(p, link)) return false;
        link = &(*link)->next;
        value->count++;
        skip_space(p);
    }
    p->depth--;
    return index_members(p, value);
}

static bool read_value(parser *p, kr_json **out)
{
    kr_json *value = new_value(p);
    if (!value) return false;
    *out = value;
    const int c = peek(p);
    if (c == '{') return read_object(p, value);
    if (c == '[') return read_array(p, value);
    if (c == '"') {
        value->kind = KR_JSON_STRING;
        return read_string(p, &value->text, &value->length);
    }
    if (take_word(p, "null")) return true;
    if (take_word(p, "true") || take_word(p, "false")) {
        value->kind = KR_JSON_BOOL;
        value->truth = c == 't';
        return true;
    }
    if (take_word(p, "NaN")) return read_nonfinite(p, value, NAN, "NaN");
    if (take_word(p, "Infinity")) return read_nonfinite(p, value, INFINITY, "Infinity");
    if (take_word(p, "-Infinity")) return read_nonfinite(p, value, -INFINITY, "-Infinity");
    if (c == '-' || is_digit(c)) return read_number(p, value);
    return expected(p, "a value");
}

static bool check_options(parser *p, const kr_json_options *given)
{
    if (!KR_TAKE(p->ctx, "json", kr_json_options, given, &p->o) ||
        !kr_require(p->ctx, p->o.max_depth >= 0 && p->o.max_depth <= DEEPEST, KR_ERR_ARG,
                    "json: max_depth = %d, but must be from 0 to %d", p->o.max_depth, DEEPEST) ||
        !kr_require(p->ctx, p->text || p->length == 0, KR_ERR_ARG, "json: text is NULL"))
        return false;
    const size_t most = p->o.max_bytes < UINT32_MAX ? p->o.max_bytes : UINT32_MAX; /* offsets have 32 bits */
    return kr_require(p->ctx, p->length <= most, KR_ERR_FORMAT, "json: %zu bytes, but at most %zu are read", p->length,
                      most);
}

kr_json *kr_json_parse_in(kr_ctx *ctx, kr_arena *arena, const char *text, size_t length, const kr_json_options *options)
{
    if (kr_ctx_failed(ctx)) return NULL;
    parser p = { .ctx = ctx, .arena = arena, .text = text, .length = length };
    if (!check_options(&p, options)) return NULL;
    p.strings = kr_arena_alloc(arena, length);
    if (!p.strings) {
        no_memory(&p);
        return NULL;
    }
    kr_json *root = NULL;
    skip_space(&p);
    if (!read_value(&p, &root)) return NULL;
    skip_space(&p);
    if (p.at < length) {
        fail(&p, p.at, "expected the end of the text, got %s", seen_at(&p, p.at).text);
        return NULL;
    }
    return root;
}
