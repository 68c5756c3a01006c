/* jsonl.c - lines of a mapped file, each parsed separately. */
#include "data/jsonl.h"

#include "io/json_impl.h"
#include "io/quote.h"

#include <string.h>

bool kr_jsonl_open(kr_jsonl *lines, kr_ctx *ctx, const char *path, const char *field)
{
    enum { BLOCK_BYTES = 1 << 16 };
    *lines = (kr_jsonl){ .ctx = ctx, .path = path, .field = field };
    kr_arena_init(&lines->arena, &ctx->memory, BLOCK_BYTES);
    return kr_file_open(&lines->file, ctx, path, true);
}

void kr_jsonl_close(kr_jsonl *lines)
{
    kr_arena_deinit(&lines->arena);
    kr_file_close(&lines->file);
}

static bool is_blank(const char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if (text[i] != ' ' && text[i] != '\t' && text[i] != '\r') return false;
    return true;
}

static const char *read_field(kr_jsonl *lines, const char *text, size_t length, size_t *bytes)
{
    kr_ctx *ctx = lines->ctx;
    const long long line = (long long)lines->line;
    kr_arena_reset(&lines->arena);
    const kr_json *root = kr_json_parse_in(ctx, &lines->arena, text, length, NULL);
    if (!root) {
        kr_blame(ctx, "%s, line %lld", lines->path, line);
        return NULL;
    }
    if (!kr_require(ctx, kr_json_kind_of(root) == KR_JSON_OBJECT, KR_ERR_FORMAT, "%s, line %lld: is not an object",
                    lines->path, line))
        return NULL;
    const kr_json *value = kr_json_find(root, lines->field);
    if (!kr_require(ctx, value, KR_ERR_FORMAT, "%s, line %lld: the object has no field \"%s\"", lines->path, line,
                    kr_quote_of(lines->field, strlen(lines->field)).text) ||
        !kr_require(ctx, kr_json_kind_of(value) == KR_JSON_STRING, KR_ERR_FORMAT,
                    "%s, line %lld: field \"%s\" is a %s, but must be a string", lines->path, line,
                    kr_quote_of(lines->field, strlen(lines->field)).text, kr_json_kind_name(kr_json_kind_of(value))))
        return NULL;
    *bytes = (size_t)kr_json_length(value);
    return kr_json_text(value);
}

const char *kr_jsonl_next(kr_jsonl *lines, size_t *bytes)
{
    while (lines->at < lines->file.bytes) {
        const char *text = (const char *)lines->file.data + lines->at;
        const char *end = memchr(text, '\n', lines->file.bytes - lines->at);
        const size_t length = end ? (size_t)(end - text) : lines->file.bytes - lines->at;
        lines->at += length + 1;
        lines->line++;
        if (!is_blank(text, length)) return read_field(lines, text, length, bytes);
    }
    return NULL;
}
