/* text_ids.c - reads a text in blocks, cuts each at a place that changes no token, and encodes it. */
#include "cli/text_ids.h"

#include "cli/files.h"
#include "cli/options.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Bytes on each side of a cut that the tokenizer is asked about, and how many places it is asked about. */
enum { MARGIN = 256, PLACES = 256 };

struct cli_text_ids {
    cli_text_source source;
    size_t at;    /* how much of source.text was taken */
    char *buffer; /* of source.block_bytes */
    size_t held;  /* bytes in it */
    bool is_at_end;
    int32_t *ids;
    int64_t capacity;
};

cli_text_ids *cli_text_ids_open(const cli_text_source *source)
{
    cli_text_ids *text = calloc(1, sizeof *text);
    if (text) {
        text->source = *source;
        if (!text->source.block_bytes) text->source.block_bytes = (size_t)1 << 20;
        if (text->source.block_bytes < 4 * MARGIN) text->source.block_bytes = 4 * MARGIN;
        text->buffer = malloc(text->source.block_bytes);
    }
    if (text && text->buffer) return text;
    cli_complain(NULL, "there is no memory for %s", source->name);
    cli_text_ids_close(text);
    return NULL;
}

void cli_text_ids_close(cli_text_ids *text)
{
    if (!text) return;
    free(text->buffer);
    free(text->ids);
    free(text);
}

/* ---- blocks ---- */

/* Fills the buffer as far as the text goes. */
static bool fill(cli_text_ids *text)
{
    const cli_text_source *s = &text->source;
    const size_t room = s->block_bytes - text->held;
    size_t taken;
    if (s->file) {
        errno = 0;
        taken = fread(text->buffer + text->held, 1, room, s->file);
        if (taken < room && ferror(s->file)) return errno != EINTR && cli_cannot("read", s->name, errno);
    } else {
        taken = s->bytes - text->at < room ? s->bytes - text->at : room;
        if (taken) memcpy(text->buffer + text->held, s->text + text->at, taken);
        text->at += taken;
    }
    text->held += taken;
    text->is_at_end = taken < room;
    return true;
}

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

/* May a pre-tokenizer be trusted to cut before text[at]? 4 bytes on each side can be read. */
static bool is_boundary(const char *text, size_t at)
{
    if (text[at] == ' ' || text[at] == '\t') return !is_space_before(text, at);
    return text[at - 1] == '\n' && !is_space_at(text, at);
}

/* ---- ids ---- */

static bool reserve(cli_text_ids *text, int64_t count)
{
    if (count <= text->capacity) return true;
    int32_t *ids = realloc(text->ids, (size_t)count * sizeof *ids);
    if (!ids) {
        cli_complain(NULL, "there is no memory for %lld ids of %s", (long long)count, text->source.name);
        return false;
    }
    text->ids = ids;
    text->capacity = count;
    return true;
}

static int64_t encode(const cli_text_ids *text, const char *bytes, size_t count, int32_t *ids, int64_t capacity)
{
    kr_encode_options options;
    kr_encode_options_init(&options);
    options.adds_special = false;
    options.parses_special = !text->source.is_plain;
    return kr_tokenizer_encode(text->source.tok, bytes, count, &options, ids, capacity);
}

/* Has what stands around the place the same ids in one piece and in two? */
static bool agrees(const cli_text_ids *text, size_t at)
{
    int32_t whole[2 * MARGIN], parts[2 * MARGIN];
    size_t from = at - MARGIN;
    while (is_continuation(text->buffer[from]) && from + 4 < at) from++;
    const size_t before = at - from;
    const int64_t n = encode(text, text->buffer + from, before + MARGIN, whole, 2 * MARGIN);
    const int64_t n1 = encode(text, text->buffer + from, before, parts, 2 * MARGIN);
    if (n < 0 || n1 < 0 || n > 2 * MARGIN || n1 > n) return false;
    const int64_t n2 = encode(text, text->buffer + at, MARGIN, parts + n1, 2 * MARGIN - n1);
    return n1 + n2 == n && !memcmp(whole, parts, (size_t)n * sizeof *whole);
}

/* Where the full buffer is cut. */
static size_t find_cut(const cli_text_ids *text)
{
    const size_t last = text->held - MARGIN;
    int places = PLACES;
    for (size_t at = last; at > text->held / 2 && places; at--) {
        if (!is_boundary(text->buffer, at)) continue;
        if (agrees(text, at)) return at;
        places--;
    }
    size_t at = last;
    while (last - at < 3 && is_continuation(text->buffer[at])) at--;
    return is_continuation(text->buffer[at]) ? last : at;
}

/* ---- numbers ---- */

static bool is_separator(char c)
{
    return is_ascii_space(c) || c == ',';
}

static size_t find_separator(const cli_text_ids *text)
{
    size_t at = text->held;
    while (at && !is_separator(text->buffer[at - 1])) at--;
    return at ? at : text->held;
}

static int64_t parse_numbers(cli_text_ids *text, size_t bytes)
{
    int64_t count = 0;
    if (!reserve(text, (int64_t)bytes / 2 + 1)) return -1;
    for (size_t at = 0; at < bytes;) {
        int64_t value = 0;
        size_t end = at;
        while (end < bytes && text->buffer[end] >= '0' && text->buffer[end] <= '9' && value <= INT32_MAX)
            value = 10 * value + (text->buffer[end++] - '0');
        if (end == at && is_separator(text->buffer[at])) {
            at++;
            continue;
        }
        if (end == at || value > INT32_MAX || (end < bytes && !is_separator(text->buffer[end]))) {
            while (end < bytes && end - at < 20 && !is_separator(text->buffer[end])) end++;
            cli_complain("with --ids a prompt is whole numbers with spaces or commas between them",
                         "%s: '%.*s' is not the number of a token", text->source.name, (int)(end - at),
                         text->buffer + at);
            return -1;
        }
        text->ids[count++] = (int32_t)value;
        at = end;
    }
    return count;
}

/* ---- both ---- */

/* The ids of the next block; it may have none, of white space say. */
static int64_t next_block(cli_text_ids *text)
{
    if (!fill(text)) return -1;
    const bool is_text = text->source.tok;
    const size_t cut = text->is_at_end ? text->held : is_text ? find_cut(text) : find_separator(text);
    int64_t count;
    if (is_text) {
        const int64_t most = kr_tokenizer_most_ids(text->source.tok, cut);
        count = reserve(text, most) ? encode(text, text->buffer, cut, text->ids, most) : -1;
    } else {
        count = parse_numbers(text, cut);
    }
    text->held -= cut;
    memmove(text->buffer, text->buffer + cut, text->held);
    return count;
}

int64_t cli_text_ids_next(cli_text_ids *text, const int32_t **ids)
{
    int64_t count = 0;
    while (!count && (!text->is_at_end || text->held)) count = next_block(text);
    *ids = text->ids;
    return count;
}
