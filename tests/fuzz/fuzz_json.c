/* fuzz_json.c - any bytes as JSON: a value or an error, never both, and every value can be walked. */
#define _POSIX_C_SOURCE 200809L
#include "fuzz.h"

#include <krait/experimental/json.h>

/* Depth is bounded by the parser's own limit. */
static int64_t walk(const kr_json *value)
{
    int64_t count = 1;
    for (const kr_json *inner = kr_json_first(value); inner; inner = kr_json_next(inner)) {
        const kr_json *found = kr_json_find(value, kr_json_key(inner)); /* another where a key holds a zero byte */
        if (found && strcmp(kr_json_key(found), kr_json_key(inner)) != 0) abort();
        count += walk(inner);
    }
    const char *text = kr_json_text(value);
    if (text && text[kr_json_length(value)] != '\0') abort();
    return count;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    kr_ctx *ctx = fuzz_ctx();
    kr_json_options options;
    kr_json_options_init(&options);
    options.allow_nonfinite = size % 2;
    kr_json *root = kr_json_parse(ctx, (const char *)data, size, &options);
    if ((root != NULL) == kr_ctx_failed(ctx)) abort();
    if (root && walk(root) < 1) abort();
    kr_json_destroy(root);
    kr_ctx_clear(ctx);
    return 0;
}
