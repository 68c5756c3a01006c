/* nfc.c - decomposes, orders marks and composes, only where a text is not normalised already.
 *
 * A character of class 0 that does not compose with any preceding one, and that is its own normal form, is quiet: the
 * text before it does not depend on the text after it. So a text is split before its quiet characters, and only spans
 * with other characters are processed. Most pages of Unicode have quiet characters only.
 */
#include "text/nfc.h"

#include "io/utf8.h"

enum { L_BASE = 0x1100, V_BASE = 0x1161, T_BASE = 0x11a7, S_BASE = 0xac00, N_L = 19, N_V = 21, N_T = 28 };
enum { FIRST_LOUD = 0x300, PAGE = 256 };

void kr_nfc_free(kr_nfc *nfc)
{
    kr_buffer_free(&nfc->out);
    kr_buffer_free(&nfc->chars);
    kr_buffer_free(&nfc->sorted);
}

/* ---- the tables ---- */

static const kr_nfc_pair *decomposition(uint32_t c)
{
    int low = 0, high = kr_nfc_npairs;
    while (low < high) {
        const int middle = (low + high) / 2;
        const kr_nfc_pair *pair = &kr_nfc_pairs[middle];
        if (pair->composed == c) return pair;
        if (pair->composed < c) low = middle + 1;
        else high = middle;
    }
    return NULL;
}

/* 0: they do not compose. */
static uint32_t compose(uint32_t first, uint32_t second)
{
    if (first - L_BASE < N_L && second - V_BASE < N_V)
        return S_BASE + ((first - L_BASE) * N_V + (second - V_BASE)) * N_T;
    if (first - S_BASE < N_L * N_V * N_T && (first - S_BASE) % N_T == 0 && second - T_BASE - 1 < N_T - 1)
        return first + (second - T_BASE);
    int low = 0, high = kr_nfc_ncomposites;
    while (low < high) {
        const int middle = (low + high) / 2;
        const kr_nfc_pair *pair = &kr_nfc_pairs[kr_nfc_composites[middle]];
        if (pair->first == first && pair->second == second) return pair->composed;
        if (pair->first < first || (pair->first == first && pair->second < second)) low = middle + 1;
        else high = middle;
    }
    return 0;
}

static uint32_t class_of(uint32_t c)
{
    int low = 0, high = kr_nfc_nclasses;
    while (low < high) {
        const int middle = (low + high) / 2;
        if (kr_nfc_classes[middle].last < c) low = middle + 1;
        else high = middle;
    }
    return low < kr_nfc_nclasses && kr_nfc_classes[low].first <= c ? kr_nfc_classes[low].combining : 0;
}

static bool may_be_second(uint32_t c)
{
    if (c - V_BASE < N_V || c - T_BASE - 1 < N_T - 1) return true;
    int low = 0, high = kr_nfc_nseconds;
    while (low < high) {
        const int middle = (low + high) / 2;
        if (kr_nfc_seconds[middle] < c) low = middle + 1;
        else high = middle;
    }
    return low < kr_nfc_nseconds && kr_nfc_seconds[low] == c;
}

static bool is_quiet(uint32_t c)
{
    if (c < FIRST_LOUD) return true;
    const uint32_t page = c / PAGE;
    if (page / 32 >= (uint32_t)kr_nfc_npages || !(kr_nfc_pages[page / 32] >> page % 32 & 1)) return true;
    const kr_nfc_pair *pair = decomposition(c);
    return class_of(c) == 0 && !may_be_second(c) && (!pair || compose(pair->first, pair->second) == c);
}

/* ---- a span ---- */

static bool put_char(kr_nfc *nfc, uint32_t c)
{
    const kr_nfc_char one = { c, class_of(c) };
    return kr_buffer_put(&nfc->chars, &one, sizeof one);
}

/* Recursion depth is the depth of canonical decompositions: three levels. */
static bool put_decomposed(kr_nfc *nfc, uint32_t c)
{
    if (c - S_BASE < N_L * N_V * N_T) {
        const uint32_t s = c - S_BASE, t = s % N_T;
        return put_char(nfc, L_BASE + s / (N_V * N_T)) && put_char(nfc, V_BASE + s / N_T % N_V) &&
               (t == 0 || put_char(nfc, T_BASE + t));
    }
    const kr_nfc_pair *pair = decomposition(c);
    if (!pair) return put_char(nfc, c);
    return put_decomposed(nfc, pair->first) && (pair->second == 0 || put_decomposed(nfc, pair->second));
}

/* By class, stable: insertion sort for a few, counting sort for many. */
static bool sort_marks(kr_nfc *nfc, kr_nfc_char *marks, size_t count)
{
    enum { FEW = 16, NCLASSES = 256 };
    if (count <= FEW) {
        for (size_t i = 1; i < count; i++) {
            const kr_nfc_char one = marks[i];
            size_t at = i;
            for (; at > 0 && marks[at - 1].combining > one.combining; at--) marks[at] = marks[at - 1];
            marks[at] = one;
        }
        return true;
    }
    size_t begin[NCLASSES + 1] = { 0 };
    nfc->sorted.bytes = 0;
    if (!kr_buffer_put(&nfc->sorted, marks, count * sizeof *marks)) return false;
    const kr_nfc_char *from = (const kr_nfc_char *)(void *)nfc->sorted.data;
    for (size_t i = 0; i < count; i++) begin[from[i].combining + 1]++;
    for (int c = 0; c < NCLASSES; c++) begin[c + 1] += begin[c];
    for (size_t i = 0; i < count; i++) marks[begin[from[i].combining]++] = from[i];
    return true;
}

static bool order_marks(kr_nfc *nfc, kr_nfc_char *chars, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        size_t end = i;
        while (end < count && chars[end].combining != 0) end++;
        if (!sort_marks(nfc, chars + i, end - i)) return false;
        i = end;
    }
    return true;
}

/* A mark composes with the last starter unless a mark of the same or a higher class remains between them; a starter
 * composes with a starter that it directly follows. Returns the number of remaining characters. */
static size_t compose_chars(kr_nfc_char *chars, size_t count)
{
    size_t n = 0, starter = SIZE_MAX;
    for (size_t i = 0; i < count; i++) {
        const kr_nfc_char c = chars[i];
        const bool is_free = starter != SIZE_MAX && (n == starter + 1 || chars[n - 1].combining < c.combining);
        const uint32_t sum = is_free ? compose(chars[starter].code, c.code) : 0;
        if (sum != 0) {
            chars[starter].code = sum;
            continue;
        }
        if (c.combining == 0) starter = n;
        chars[n++] = c;
    }
    return n;
}

static bool put_normalized(kr_nfc *nfc, const unsigned char *text, size_t bytes)
{
    nfc->chars.bytes = 0;
    for (size_t at = 0; at < bytes;) {
        const size_t length = kr_utf8_length(text + at, bytes - at);
        if (!put_decomposed(nfc, kr_utf8_read(text + at, length))) return false;
        at += length;
    }
    kr_nfc_char *chars = (kr_nfc_char *)(void *)nfc->chars.data;
    size_t count = nfc->chars.bytes / sizeof *chars;
    if (!order_marks(nfc, chars, count)) return false;
    count = compose_chars(chars, count);
    if (!kr_buffer_reserve(&nfc->out, 4 * count)) return false;
    char *out = nfc->out.data + nfc->out.bytes;
    for (size_t i = 0; i < count; i++) out = kr_utf8_write(out, chars[i].code);
    nfc->out.bytes = (size_t)(out - nfc->out.data);
    return true;
}

/* ---- a text ---- */

typedef struct span {
    size_t begin, end; /* from a quiet character, or the start of the text, up to the next quiet one after others */
} span;

/* The next span with a character that is not quiet; at the end of the text: none. */
static span next_loud(const unsigned char *text, size_t from, size_t bytes)
{
    size_t quiet = from, at = from;
    bool has_loud = false;
    while (at < bytes) {
        if (text[at] < 0x80 && !has_loud) {
            quiet = at++;
            continue;
        }
        const size_t length = kr_utf8_length(text + at, bytes - at);
        if (!is_quiet(kr_utf8_read(text + at, length))) has_loud = true;
        else if (has_loud) break;
        else quiet = at;
        at += length;
    }
    return (span){ has_loud ? quiet : bytes, at };
}

bool kr_nfc_normalize(kr_nfc *nfc, const char **text, size_t *bytes)
{
    const unsigned char *from = (const unsigned char *)*text;
    span s = next_loud(from, 0, *bytes);
    if (s.begin == *bytes) return true;
    nfc->out.bytes = 0;
    size_t copied = 0;
    for (; s.begin < *bytes; s = next_loud(from, s.end, *bytes)) {
        if (!kr_buffer_put(&nfc->out, from + copied, s.begin - copied) ||
            !put_normalized(nfc, from + s.begin, s.end - s.begin))
            return false;
        copied = s.end;
    }
    if (!kr_buffer_put(&nfc->out, from + copied, *bytes - copied)) return false;
    *text = nfc->out.data ? nfc->out.data : "";
    *bytes = nfc->out.bytes;
    return true;
}
