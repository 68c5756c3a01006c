/* json.h - a strict JSON parser for untrusted input.
 *
 *   kr_json *config = kr_json_parse(ctx, "{\"d_model\": 256}", 16, NULL);
 *   printf("%lld\n", (long long)kr_json_integer(kr_json_find(config, "d_model"), -1));   // 256
 *   kr_json_destroy(config);
 *
 * Implements RFC 8259 exactly: UTF-8 is checked; there are no comments, no trailing commas and nothing after the value.
 * Keys of an object must be unique, and sizes have limits. An error names the byte and the reason: json: at byte 12:
 * expected ':' after the key, got '2' */
#ifndef KRAIT_EXPERIMENTAL_JSON_H
#define KRAIT_EXPERIMENTAL_JSON_H

#include <krait/ctx.h>
#include <krait/experimental/static_only.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A value of a document; the root represents the document. */
typedef struct kr_json kr_json;

typedef enum kr_json_kind {
    KR_JSON_NULL = 0,
    KR_JSON_BOOL = 1,
    KR_JSON_NUMBER = 2,
    KR_JSON_STRING = 3,
    KR_JSON_ARRAY = 4,
    KR_JSON_OBJECT = 5
} kr_json_kind;

typedef struct kr_json_options {
    size_t size;          /* set by kr_json_options_init */
    size_t max_bytes;     /* 128 MiB; maximum size of the text */
    int64_t max_values;   /* 4 million; each value takes 64 bytes */
    int max_depth;        /* 64; nesting of arrays and objects, at most 512 */
    bool allow_nonfinite; /* false; true: accept NaN, Infinity and -Infinity, which Python writes */
} kr_json_options;
#define kr_json_options_init(options) KR_STRUCT_INIT(JSON_OPTIONS, kr_json_options, options)

/* Parses text[0..length) and returns the root, or NULL after an error. The text is not kept. NULL options: all
 * defaults. Destroy the root, which releases all values, before the context. */
KR_EXPERIMENTAL_API kr_json *kr_json_parse(kr_ctx *ctx, const char *text, size_t length,
                                           const kr_json_options *options);
KR_EXPERIMENTAL_API void kr_json_destroy(kr_json *root);

/* All functions below treat NULL as null. */
KR_EXPERIMENTAL_API kr_json_kind kr_json_kind_of(const kr_json *value);
KR_EXPERIMENTAL_API const char *kr_json_kind_name(kr_json_kind kind); /* "null", "bool", "number", ... */

/* The value if it has that kind, `otherwise` if not. An integer is a number without fraction and exponent that fits in
 * 64 bits; it is exact. A number is the nearest double. */
KR_EXPERIMENTAL_API bool kr_json_bool(const kr_json *value, bool otherwise);
KR_EXPERIMENTAL_API double kr_json_number(const kr_json *value, double otherwise);
KR_EXPERIMENTAL_API int64_t kr_json_integer(const kr_json *value, int64_t otherwise);
KR_EXPERIMENTAL_API bool kr_json_is_integer(const kr_json *value);

/* The UTF-8 text of a string, zero-terminated (\u0000 gives further zeros inside); NULL for other kinds. */
KR_EXPERIMENTAL_API const char *kr_json_text(const kr_json *value);

/* Bytes of a string, number of values of an array or object; 0 for other kinds. */
KR_EXPERIMENTAL_API int64_t kr_json_length(const kr_json *value);

/* Iterates over the values of an array or object in the order of the text; NULL after the last. key: the key of a
 * member of an object; NULL for other values. */
KR_EXPERIMENTAL_API const kr_json *kr_json_first(const kr_json *value);
KR_EXPERIMENTAL_API const kr_json *kr_json_next(const kr_json *value);
KR_EXPERIMENTAL_API const char *kr_json_key(const kr_json *value);

/* A member of an object by its key; NULL if there is none, or if the value is not an object. */
KR_EXPERIMENTAL_API const kr_json *kr_json_find(const kr_json *value, const char *key);

/* Position of the value in the text, for messages. */
KR_EXPERIMENTAL_API size_t kr_json_offset(const kr_json *value);

#ifdef __cplusplus
}
#endif
#endif
