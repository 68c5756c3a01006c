/* fuzz_tokenizer.c - any bytes as a tokenizer.json, and any bytes as a text.
 *
 * An input that begins with '{' is a file, up to the first zero byte, and what follows that is a text for it; any other
 * is a text for fixed small tokenizers, picked by its first byte. Laws: a tokenizer or an error, never both; ids are
 * tokens, and no more than promised; decoding gives what the stream gives; and, for the fixed ones, the text itself.
 */
#define _POSIX_C_SOURCE 200809L
#include "fuzz.h"

#include <krait/text.h>

static kr_ctx *ctx;

/* Every byte is a word, written out by the alphabet's rule; a few merges and added tokens besides. */
static kr_tokenizer *fixed(const char *normalizer, const char *pre_tokenizer)
{
    static char json[16384];
    size_t n = (size_t)snprintf(
        json, sizeof json,
        "{\"added_tokens\": [{\"id\": 300, \"content\": \"<s>\", \"special\": true}, {\"id\": 301, \"content\": \"  "
        "\"}, "
        "{\"id\": 302, \"content\": \"abc\", \"normalized\": false}, {\"id\": 303, \"content\": \"e\\u0301\"}], "
        "\"normalizer\": %s, \"pre_tokenizer\": %s, \"decoder\": {\"type\": \"ByteLevel\"}, "
        "\"model\": {\"merges\": [\"a b\", \"\\u00c3 \\u00a9\", \"ab a\", \"a a\", \"\\u0120 a\", \"aa aa\"], "
        "\"vocab\": "
        "{\"ab\": 256, \"\\u00c3\\u00a9\": 257, \"aba\": 258, \"aa\": 259, \"\\u0120a\": 260, \"aaaa\": 261",
        normalizer, pre_tokenizer);
    for (int i = 0, other = 0x100; i < 256; i++) {
        const int is_printable = (i >= 33 && i <= 126) || (i >= 161 && i <= 172) || i >= 174;
        n += (size_t)snprintf(json + n, sizeof json - n, ", \"\\u%04x\": %d", is_printable ? i : other++, i);
    }
    n += (size_t)snprintf(json + n, sizeof json - n, "}}}");
    kr_tokenizer *tok = kr_tokenizer_parse(ctx, json, n);
    if (!tok) {
        fprintf(stderr, "%s\n", kr_ctx_message(ctx));
        if (kr_ctx_status(ctx) != KR_ERR_UNSUPPORTED) abort(); /* a build without PCRE2 */
        kr_ctx_clear(ctx);
    }
    return tok;
}

#define PLAIN "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"use_regex\": false}"
static kr_tokenizer *toks[4]; /* the last one normalises */

static void begin(void)
{
    ctx = fuzz_ctx();
    toks[0] = fixed("null", PLAIN);
    toks[1] = fixed("null", "{\"type\": \"ByteLevel\", \"add_prefix_space\": false}");
    toks[2] = fixed(
        "null", "{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Split\", \"pattern\": {\"Regex\": "
                "\"\\\\p{L}+|\\\\b|\\\\s*\"}, \"behavior\": \"MergedWithNext\"}, " PLAIN ", {\"type\": \"Digits\"}]}");
    toks[3] = fixed("{\"type\": \"NFC\"}", PLAIN);
}

static void check(const kr_tokenizer *tok, const char *text, size_t bytes, bool gives_itself)
{
    const int64_t most = kr_tokenizer_max_ids(tok, bytes);
    int32_t *ids = malloc((size_t)(most + 1) * sizeof *ids);
    const int64_t n = kr_tokenizer_encode(tok, text, bytes, NULL, ids, most);
    if ((n < 0) != kr_ctx_failed(ctx) || n > most) abort();
    for (int64_t i = 0; i < n; i++)
        if (!kr_tokenizer_token(tok, ids[i], NULL)) abort();
    if (n >= 0) {
        const size_t all = kr_tokenizer_decode(tok, ids, n, false, NULL, 0);
        const size_t capacity = kr_tokenizer_decode(tok, ids, n, true, NULL, 0);
        char *decoded = malloc(all + 1);
        kr_tokenizer_decode(tok, ids, n, false, decoded, all);
        if (gives_itself && (all != bytes || memcmp(decoded, text, bytes) != 0)) abort();
        kr_tokenizer_decode(tok, ids, n, true, decoded, capacity);
        kr_text_stream *stream = kr_text_stream_create(tok);
        size_t at = 0, part;
        for (int64_t i = 0; i <= n; i++) {
            const char *shown = i < n ? kr_text_stream_put(stream, ids[i], &part) : kr_text_stream_end(stream, &part);
            if (at + part > capacity || memcmp(decoded + at, shown, part) != 0) abort();
            at += part;
        }
        if (at != capacity) abort();
        kr_text_stream_destroy(stream);
        free(decoded);
    }
    free(ids);
    kr_ctx_clear(ctx);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char some[] = "Hello, w\xc3\xb6rld 123  <s>\n\xff  e\xcc\x81 don't";
    if (!ctx) begin();
    const char *text = (const char *)data;
    if (size > 0 && text[0] != '{') {
        const int which = text[0] & 3;
        if (toks[which]) check(toks[which], text + 1, size - 1, which < 3);
        return 0;
    }
    const char *zero = size ? memchr(text, 0, size) : NULL;
    const size_t file_bytes = zero ? (size_t)(zero - text) : size;
    kr_tokenizer *tok = kr_tokenizer_parse(ctx, text, file_bytes);
    if ((tok != NULL) == kr_ctx_failed(ctx)) abort();
    kr_ctx_clear(ctx);
    if (tok) {
        check(tok, some, sizeof some - 1, false);
        if (zero) check(tok, zero + 1, size - file_bytes - 1, false);
    }
    kr_tokenizer_destroy(tok);
    return 0;
}
