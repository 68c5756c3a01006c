/* source_text.c - text to tokens, a block at a time: into memory, or into a token file where they may be too many. */
#include "base/sized.h"
#include "data/jsonl.h"
#include "data/source_tokens.h"

#include <string.h>

enum { BLOCK_BYTES = 1 << 20 };

KR_DEFAULTS(kr_text_options) = { .size = sizeof(kr_text_options), .document_end = -1, .memory_budget = KR_DATA_BUDGET };

typedef struct encoder {
    kr_ctx *ctx;
    const char *name; /* of the text, for messages */
    const kr_tokenizer *tok;
    kr_text_options options;
    kr_encode_options how;
    kr_token_writer writer;
    int32_t *ids;
    int64_t capacity;
} encoder;

/* ---- one document ---- */

static bool put_block(encoder *e, const char *text, size_t bytes)
{
    const int64_t most = kr_tokenizer_max_ids(e->tok, bytes);
    if (most > e->capacity) {
        kr_memory_free(&e->ctx->memory, e->ids, (size_t)e->capacity * sizeof *e->ids);
        e->ids = kr_memory_alloc(&e->ctx->memory, (size_t)most * sizeof *e->ids);
        e->capacity = e->ids ? most : 0;
        if (!e->ids) return kr_fail(e->ctx, KR_ERR_NOMEM, "%s: no memory for %lld ids", e->name, (long long)most);
    }
    const int64_t count = kr_tokenizer_encode(e->tok, text, bytes, &e->how, e->ids, e->capacity);
    return count >= 0 && kr_token_writer_put(&e->writer, e->ids, count);
}

static bool put_document(encoder *e, const char *text, size_t bytes)
{
    if (bytes == 0) return true;
    bool ok = kr_token_writer_document(&e->writer);
    for (size_t at = 0; ok && at < bytes;) {
        const bool is_last = bytes - at <= BLOCK_BYTES;
        const size_t n = is_last ? bytes - at : kr_tokenizer_split(e->tok, text + at, BLOCK_BYTES, &e->how);
        ok = put_block(e, text + at, n);
        at += n;
    }
    if (ok && e->options.document_end >= 0) ok = kr_token_writer_put(&e->writer, &e->options.document_end, 1);
    return ok;
}

/* ---- all of them ---- */

/* The separator's next position in text[0..bytes), or the end. */
static size_t find_separator(const char *text, size_t bytes, const char *separator)
{
    const size_t length = strlen(separator);
    for (size_t at = 0; bytes - at >= length; at++) {
        const char *first = memchr(text + at, separator[0], bytes - at - length + 1);
        if (!first) break;
        at = (size_t)(first - text);
        if (!memcmp(first, separator, length)) return at;
    }
    return bytes;
}

static bool put_text(encoder *e, const char *text, size_t bytes)
{
    const char *separator = e->options.separator;
    bool ok = true;
    for (size_t at = 0; ok && at < bytes;) {
        const size_t n = separator ? find_separator(text + at, bytes - at, separator) : bytes - at;
        ok = put_document(e, text + at, n);
        at += n + (separator ? strlen(separator) : 0);
    }
    return ok;
}

/* ---- sources ---- */

static bool check(encoder *e, const kr_text_options *options)
{
    kr_ctx *ctx = e->ctx;
    kr_encode_options_init(&e->how);
    if (!kr_require(ctx, e->tok, KR_ERR_ARG, "%s: the tokenizer is NULL", e->name) ||
        !KR_TAKE(ctx, e->name, kr_text_options, options, &e->options))
        return false;
    e->how.add_special = false;
    e->how.parse_special = e->options.parse_special;
    const int64_t n_ids = kr_tokenizer_size(e->tok);
    return kr_require(ctx, e->options.document_end >= -1 && e->options.document_end < n_ids, KR_ERR_ARG,
                      "%s: document_end = %d must be -1 or one of the tokenizer's %lld ids", e->name,
                      (int)e->options.document_end, (long long)n_ids) &&
           kr_require(ctx, !e->options.separator || *e->options.separator, KR_ERR_ARG,
                      "%s: separator is empty; NULL makes the text one document", e->name);
}

/* Where the ids of so many bytes go. */
static bool begin(encoder *e, size_t bytes)
{
    const int64_t n_ids = kr_tokenizer_size(e->tok);
    const size_t width = n_ids <= 65536 ? 2 : 4;
    const bool fits = bytes <= e->options.memory_budget / width;
    if (!kr_require(e->ctx, fits || e->options.token_path, KR_ERR_ARG,
                    "%s: the ids of %zu bytes may take more than memory_budget = %zu; name a token_path to write them "
                    "to, or raise the budget",
                    e->name, bytes, e->options.memory_budget))
        return false;
    return kr_token_writer_begin(&e->writer, e->ctx, fits ? NULL : e->options.token_path, n_ids);
}

static kr_source *finish(encoder *e, bool ok)
{
    kr_tokens tokens;
    kr_memory_free(&e->ctx->memory, e->ids, (size_t)e->capacity * sizeof *e->ids);
    ok = ok && kr_require(e->ctx, e->writer.count > 0, KR_ERR_FORMAT, "%s: it contains no text", e->name);
    return kr_token_writer_end(&e->writer, ok, &tokens) ? kr_source_of_tokens(e->ctx, &tokens) : NULL;
}

kr_source *kr_source_open_string(kr_ctx *ctx, const kr_source_options *o)
{
    encoder e = { .ctx = ctx, .name = "text", .tok = o->tok };
    if (!kr_require(ctx, o->text || o->bytes == 0, KR_ERR_ARG, "text: is NULL, but has %zu bytes", o->bytes))
        return NULL;
    return check(&e, o->text_options) && begin(&e, o->bytes) ? finish(&e, put_text(&e, o->text, o->bytes)) : NULL;
}

kr_source *kr_source_open_text(kr_ctx *ctx, const kr_source_options *o)
{
    kr_file file;
    if (!kr_file_open(&file, ctx, o->path, true)) return NULL;
    encoder e = { .ctx = ctx, .name = o->path, .tok = o->tok };
    kr_source *source = NULL;
    if (check(&e, o->text_options) && begin(&e, file.bytes))
        source = finish(&e, put_text(&e, (const char *)file.data, file.bytes));
    kr_file_close(&file);
    return source;
}

kr_source *kr_source_open_jsonl(kr_ctx *ctx, const kr_source_options *o)
{
    if (!kr_require(ctx, o->field, KR_ERR_ARG, "jsonl: field is NULL")) return NULL;
    kr_jsonl lines;
    if (!kr_jsonl_open(&lines, ctx, o->path, o->field)) return NULL;
    encoder e = { .ctx = ctx, .name = o->path, .tok = o->tok };
    kr_source *source = NULL;
    if (check(&e, o->text_options) &&
        kr_require(ctx, !e.options.separator, KR_ERR_ARG,
                   "%s: a separator is given, but in JSON Lines a line is a document", o->path) &&
        begin(&e, lines.file.bytes)) {
        bool ok = true;
        size_t bytes;
        for (const char *text; ok && (text = kr_jsonl_next(&lines, &bytes));) ok = put_document(&e, text, bytes);
        source = finish(&e, ok && !kr_ctx_failed(ctx));
    }
    kr_jsonl_close(&lines);
    return source;
}
