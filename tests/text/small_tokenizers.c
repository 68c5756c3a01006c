/* small_tokenizers.c - writing small tokenizer.json files, and holding results against expectations. */
#include "tests/text/small_tokenizers.h"

#include "text/byte_level.h"
#include "text/regex.h"
#include "io/utf8.h"

#include <stdarg.h>

static char json[1 << 16];
static size_t used;

KR_PRINTF(1, 2) static void add(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    used += (size_t)vsnprintf(json + used, sizeof json - used, format, list);
    va_end(list);
}

/* The words of an array's inside, numbered: "a", "b" becomes "a": 256, "b": 257. Words have no commas or quotes. */
static void add_words(const char *words)
{
    int id = 256;
    for (const char *at = words; *at;) {
        const size_t n = strcspn(at, ",");
        add(", %.*s: %d", (int)n, at, id++);
        at += n;
        if (*at) at++;
    }
}

const char *small_json(const small_file *f)
{
    used = 0;
    add("{\"version\": \"1.0\", \"truncation\": null, \"padding\": null, %s", f->more ? f->more : "");
    add("\"added_tokens\": [%s], \"normalizer\": %s, ", f->added ? f->added : "",
        f->normalizer ? f->normalizer : "null");
    add("\"pre_tokenizer\": %s, ", f->pre_tokenizer ? f->pre_tokenizer : PLAIN_BYTES);
    add("\"post_processor\": %s, ", f->post_processor ? f->post_processor : "null");
    add("\"decoder\": %s, ", f->decoder ? f->decoder : "{\"type\": \"ByteLevel\"}");
    add("\"model\": {\"type\": \"BPE\", %s\"vocab\": {", f->model ? f->model : "");
    bool is_first = true;
    for (int i = 0; i < 256; i++) {
        if (f->without && i != 0 && strchr(f->without, (char)i)) continue;
        char c[5] = "";
        kr_utf8_write(c, kr_byte_level_char((unsigned char)i));
        add("%s\"%s%s\": %d", is_first ? "" : ", ", *c == '"' || *c == '\\' ? "\\" : "", c, i);
        is_first = false;
    }
    if (f->words) add_words(f->words);
    add("}, \"merges\": [%s]}}", f->merges ? f->merges : "");
    return json;
}

kr_tokenizer *small_tokenizer(kr_ctx *ctx, const small_file *file)
{
    small_json(file);
    kr_tokenizer *tok = kr_tokenizer_parse(ctx, json, used);
    CHECK(tok != NULL, "not read: %s", kr_ctx_message(ctx));
    return tok;
}

const char *ids_text(const kr_tokenizer *tok, const char *text, size_t bytes, const kr_encode_options *options)
{
    static char out[8000];
    int32_t ids[1000];
    size_t at = 0;
    const int64_t n = kr_tokenizer_encode(tok, text, bytes, options, ids, 1000);
    out[0] = '\0';
    if (n < 0) return "error";
    for (int64_t i = 0; i < n && i < 1000; i++)
        at += (size_t)snprintf(out + at, sizeof out - at, i ? " %d" : "%d", (int)ids[i]);
    return out;
}

bool check_ids(const kr_tokenizer *tok, const char *text, const char *want, const char *file, int line)
{
    const char *got = ids_text(tok, text, strlen(text), NULL);
    return kr_test_check(strcmp(got, want) == 0, file, line, "\"%s\" gives %s, want %s", text, got, want);
}

static bool same(const char *a, size_t na, const char *b, size_t nb)
{
    return na == nb && (na == 0 || memcmp(a, b, na) == 0);
}

bool check_round_trip(const kr_tokenizer *tok, const char *text, size_t bytes, const char *want, size_t want_bytes)
{
    const int64_t most = kr_tokenizer_max_ids(tok, bytes);
    int32_t *ids = malloc((size_t)(most + 1) * sizeof *ids);
    const int64_t n = kr_tokenizer_encode(tok, text, bytes, NULL, ids, most);
    bool good = CHECK(n >= 0 && n <= most, "%lld ids, at most %lld promised", (long long)n, (long long)most);
    for (int64_t i = 0; good && i < n; i++)
        good = CHECK(kr_tokenizer_token(tok, ids[i], NULL) != NULL, "id %d is not a token", (int)ids[i]);
    if (good) {
        const size_t capacity = kr_tokenizer_decode(tok, ids, n, true, NULL, 0);
        char *decoded = malloc(capacity + 1), *streamed = malloc(capacity + 1);
        size_t at = 0, part = 0;
        CHECK(kr_tokenizer_decode(tok, ids, n, true, decoded, capacity) == capacity, "decode gives two lengths");
        good = CHECK(same(decoded, capacity, want, want_bytes), "%zu bytes come back as %zu others, want %zu", bytes,
                     capacity, want_bytes);
        kr_text_stream *stream = kr_text_stream_create(tok);
        for (int64_t i = 0; i <= n && good; i++) {
            const char *shown = i < n ? kr_text_stream_put(stream, ids[i], &part) : kr_text_stream_end(stream, &part);
            good = CHECK(shown && at + part <= capacity && shown[part] == '\0', "the stream gives too much");
            if (good && part) memcpy(streamed + at, shown, part);
            at += part;
        }
        good = good && CHECK(same(streamed, at, decoded, capacity), "the stream gives another text");
        kr_text_stream_destroy(stream);
        free(decoded);
        free(streamed);
    }
    free(ids);
    return good;
}

bool has_regex(void)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    kr_regex *regex = kr_regex_create(ctx, "a", 1, "test");
    const bool has = regex || kr_ctx_status(ctx) != KR_ERR_UNSUPPORTED;
    kr_regex_destroy(regex);
    kr_ctx_destroy(ctx);
    return has;
}
