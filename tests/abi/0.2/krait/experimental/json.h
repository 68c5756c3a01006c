/* json.h - reads JSON strictly, from untrusted input.
 *
 *   kr_json *config = kr_json_parse(ctx, "{\"d_model\": 256}", 16, NULL);
 *   printf("%lld\n", (long long)kr_json_integer(kr_json_find(config, "d_model"), -1));   // 256
 *   kr_json_destroy(config);
 *
 * RFC 8259 to the letter: UTF-8 is checked, no comments, no trailing commas, nothing after the value. A key
 * may occur once in an object, and sizes have limits. An error tells the byte and the reason: json: at byte 12:
 * expected ':' after the key, got '2'
 */
#ifndef KRAIT_EXPERIMENTAL_JSON_H
#define KRAIT_EXPERIMENTAL_JSON_H

#include <krait/ctx.h>
#include <krait/experimental/static_only.h>

#ifdef __cplusplus
extern "C" {
#endif

/* One value of a document; the root stands for all of it. */
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
    size_t max_bytes;     /* 128 MiB; of the text */
    int64_t max_values;   /* 4 million; each takes 64 bytes */
    int max_depth;        /* 64; arrays and objects inside one another, at most 512 */
    bool allow_nonfinite; /* false; the bare words NaN, Infinity and -Infinity, which Python writes */
} kr_json_options;
#define kr_json_options_init(options) KR_STRUCT_INIT(JSON_OPTIONS, kr_json_options, options)

/* The root of the document in text[0..length), or NULL after an error. The text is not needed any longer. NULL options
 * are the defaults. Destroy the root, and with it all values, before the context. */
KR_EXPERIMENTAL_API kr_json *kr_json_parse(kr_ctx *ctx, const char *text, size_t length,
                                           const kr_json_options *options);
KR_EXPERIMENTAL_API void kr_json_destroy(kr_json *root);

/* Everything below takes NULL as it takes null. */
KR_EXPERIMENTAL_API kr_json_kind kr_json_kind_of(const kr_json *value);
KR_EXPERIMENTAL_API const char *kr_json_kind_name(kr_json_kind kind); /* "null", "bool", "number", ... */

/* The value if it is of that kind, else `otherwise`. An integer is a number written without fraction and exponent that
 * fits 64 bits; it is exact. A number is the nearest double. */
KR_EXPERIMENTAL_API bool kr_json_bool(const kr_json *value, bool otherwise);
KR_EXPERIMENTAL_API double kr_json_number(const kr_json *value, double otherwise);
KR_EXPERIMENTAL_API int64_t kr_json_integer(const kr_json *value, int64_t otherwise);
KR_EXPERIMENTAL_API bool kr_json_is_integer(const kr_json *value);

/* A string's UTF-8, with a 0 behind it (and any number inside it, by \u0000); NULL for other kinds. */
KR_EXPERIMENTAL_API const char *kr_json_text(const kr_json *value);

/* Bytes of a string, values of an array or an object; else 0. */
KR_EXPERIMENTAL_API int64_t kr_json_length(const kr_json *value);

/* What is in an array or object, in the order of the text; NULL behind the last. A member's key, else NULL. */
KR_EXPERIMENTAL_API const kr_json *kr_json_first(const kr_json *value);
KR_EXPERIMENTAL_API const kr_json *kr_json_next(const kr_json *value);
KR_EXPERIMENTAL_API const char *kr_json_key(const kr_json *value);

/* A member of an object by its key; NULL if there is none, or no object. */
KR_EXPERIMENTAL_API const kr_json *kr_json_find(const kr_json *value, const char *key);

/* Where the value begins in the text, for messages. */
KR_EXPERIMENTAL_API size_t kr_json_offset(const kr_json *value);

#ifdef __cplusplus
}
#endif
#endif
