/* text_ids.c - reads a text in blocks, cuts each at a place that changes no token, and encodes it. */
#include "cli/common/text_ids.h"

#include "cli/common/cli_files.h"
#include "cli/common/cli_options.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

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
        if (text->source.block_bytes < KR_SPLIT_MIN_BYTES) text->source.block_bytes = KR_SPLIT_MIN_BYTES;
        text->buffer = malloc(text->source.block_bytes);
    }
    if (text && text->buffer) return text;
    cli_complain(NULL, "out of memory for %s", source->name);
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

/* Fills the buffer, up to the end of the text. */
static bool fill(cli_text_ids *text)
{
    const cli_text_source *s = &text->source;
    const size_t capacity = s->block_bytes - text->held;
    size_t taken;
    if (s->file) {
        errno = 0;
        taken = fread(text->buffer + text->held, 1, capacity, s->file);
        if (taken < capacity && ferror(s->file)) return errno != EINTR && cli_cannot("read", s->name, errno);
    } else {
        taken = s->bytes - text->at < capacity ? s->bytes - text->at : capacity;
        if (taken) memcpy(text->buffer + text->held, s->text + text->at, taken);
        text->at += taken;
    }
    text->held += taken;
    text->is_at_end = taken < capacity;
    return true;
}

static bool is_ascii_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

/* ---- ids ---- */

static bool reserve(cli_text_ids *text, int64_t count)
{
    if (count <= text->capacity) return true;
    int32_t *ids = realloc(text->ids, (size_t)count * sizeof *ids);
    if (!ids) {
        cli_complain(NULL, "out of memory for %lld ids of %s", (long long)count, text->source.name);
        return false;
    }
    text->ids = ids;
    text->capacity = count;
    return true;
}

static kr_encode_options how_to_encode(const cli_text_ids *text)
{
    kr_encode_options options;
    kr_encode_options_init(&options);
    options.add_special = false;
    options.parse_special = !text->source.is_plain;
    return options;
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
            cli_complain("with --ids a prompt is a list of integers separated by spaces or commas",
                         "%s: '%.*s' is not a token id", text->source.name, (int)(end - at), text->buffer + at);
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
    const kr_encode_options how = how_to_encode(text);
    const size_t cut = text->is_at_end ? text->held
                       : is_text       ? kr_tokenizer_split(text->source.tok, text->buffer, text->held, &how)
                                       : find_separator(text);
    int64_t count;
    if (is_text) {
        const int64_t most = kr_tokenizer_max_ids(text->source.tok, cut);
        count =
            reserve(text, most) ? kr_tokenizer_encode(text->source.tok, text->buffer, cut, &how, text->ids, most) : -1;
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
