/* tokenizer_read.c - a tokenizer.json as a whole. */
#include "text/tokenizer_read.h"

#include "io/file.h"

#include <stdarg.h>
#include <stdio.h>

kr_json_path kr_json_path_of(const char *format, ...)
{
    kr_json_path path;
    va_list list;
    va_start(list, format);
    vsnprintf(path.text, sizeof path.text, format, list);
    va_end(list);
    return path;
}

bool kr_refuse(kr_reader *r, const char *path, const char *format, ...)
{
    char text[400];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    return kr_fail(r->ctx, KR_ERR_FORMAT, "tokenizer: %s %s", path, text);
}

bool kr_read_no_memory(kr_reader *r)
{
    return kr_fail(r->ctx, KR_ERR_NOMEM, "tokenizer: no memory for its tables");
}

bool kr_read_kind(kr_reader *r, const kr_json *value, kr_json_kind kind, const char *path)
{
    return kr_json_kind_of(value) == kind ||
           kr_refuse(r, path, "is %s, but must be of the kind %s", value ? kr_json_kind_name(value->kind) : "not there",
                     kr_json_kind_name(kind));
}

bool kr_read_flag(kr_reader *r, const kr_json *object, const char *key, bool fallback, const char *path, bool *flag)
{
    const kr_json *value = kr_json_find(object, key);
    *flag = kr_json_bool(value, fallback);
    return kr_json_kind_of(value) == KR_JSON_NULL ||
           kr_read_kind(r, value, KR_JSON_BOOL, kr_json_path_of("%s.%s", path, key).text);
}

const char *kr_read_type(kr_reader *r, const kr_json *object, const char *path)
{
    const kr_json *type = kr_json_find(object, "type");
    if (!kr_read_kind(r, object, KR_JSON_OBJECT, path) ||
        !kr_read_kind(r, type, KR_JSON_STRING, kr_json_path_of("%s.type", path).text))
        return NULL;
    return kr_json_text(type);
}

/* Is the word one of those in `words`? */
static bool is_among(const char *word, size_t length, const char *words)
{
    for (const char *at = words; *at;) {
        const size_t n = strcspn(at, " ");
        if (n == length && memcmp(at, word, n) == 0) return true;
        at += n;
        at += *at == ' ';
    }
    return false;
}

void kr_warn_of_keys(kr_reader *r, const kr_json *object, const char *known, const char *path)
{
    for (const kr_json *member = kr_json_first(object); member; member = kr_json_next(member))
        if (!is_among(member->key, member->key_length, known))
            kr_note(r->ctx, KR_LOG_WARNING, "tokenizer: %s.%s is unknown and has no effect", path,
                    kr_quote_of(member->key, member->key_length).text);
}

static bool read_root(kr_reader *r, const kr_json *root)
{
    static const char *const ignored[] = { "truncation", "padding" };
    if (!kr_read_kind(r, root, KR_JSON_OBJECT, "the file")) return false;
    kr_warn_of_keys(r, root,
                    "version truncation padding added_tokens normalizer pre_tokenizer post_processor decoder model",
                    "the file");
    const kr_json *version = kr_json_find(root, "version");
    if (version && (!kr_json_text(version) || strcmp(kr_json_text(version), "1.0") != 0))
        return kr_refuse(r, "version", "is not \"1.0\"");
    for (int i = 0; i < 2; i++)
        if (kr_json_kind_of(kr_json_find(root, ignored[i])) != KR_JSON_NULL)
            kr_note(r->ctx, KR_LOG_WARNING, "tokenizer: %s is set in the file, but has no effect here", ignored[i]);
    const kr_json *added = kr_json_find(root, "added_tokens");
    if (kr_json_kind_of(added) != KR_JSON_NULL && !kr_read_kind(r, added, KR_JSON_ARRAY, "added_tokens")) return false;
    return kr_read_model(r, kr_json_find(root, "model"), added) &&
           kr_read_normalizer(r, kr_json_find(root, "normalizer"), "normalizer") && kr_read_added_tokens(r, added) &&
           kr_read_pre_tokenizer(r, kr_json_find(root, "pre_tokenizer"), "pre_tokenizer") &&
           kr_read_post_processor(r, kr_json_find(root, "post_processor"), "post_processor") &&
           kr_read_decoder(r, kr_json_find(root, "decoder"), "decoder");
}

kr_tokenizer *kr_tokenizer_parse(kr_ctx *ctx, const char *json, size_t bytes)
{
    if (kr_ctx_failed(ctx)) return NULL;
    kr_json *root = kr_json_parse(ctx, json, bytes, NULL);
    if (!root) {
        kr_blame(ctx, "tokenizer");
        return NULL;
    }
    kr_tokenizer *tok = kr_tokenizer_new(ctx);
    kr_reader r = { .ctx = ctx, .tok = tok, .seed = kr_hash_bytes(KR_HASH_BEGIN, json, bytes) };
    if (tok && !read_root(&r, root)) {
        kr_tokenizer_destroy(tok);
        tok = NULL;
    }
    kr_json_destroy(root);
    return tok;
}

kr_tokenizer *kr_tokenizer_load(kr_ctx *ctx, const char *path)
{
    kr_file file;
    if (kr_ctx_failed(ctx) || !kr_file_open(&file, ctx, path, true)) return NULL;
    kr_tokenizer *tok = kr_tokenizer_parse(ctx, (const char *)file.data, file.bytes);
    kr_file_close(&file);
    if (!tok) kr_blame(ctx, "%s", path);
    return tok;
}
