/* json_impl.h - internals of a JSON value, and reading into the caller's arena. */
#ifndef KR_IO_JSON_IMPL_H
#define KR_IO_JSON_IMPL_H

#include "base/sized.h"

#include <krait/experimental/json.h>

KR_DECLARE_DEFAULTS(kr_json_options);

struct kr_json {
    kr_json_kind kind;
    bool truth, is_integer;
    uint32_t at, key_at; /* where value and key begin in the text */
    uint32_t key_length;
    const char *key; /* of an object's member */
    kr_json *next;   /* in the same array or object */
    union {
        struct {
            double number;
            int64_t integer;
        };
        struct {
            const char *text;
            size_t length;
        };
        struct {
            kr_json *first;
            const void **by_key; /* of an object: members (kr_json) in the order of their keys */
            int64_t count;
        };
    };
};

/* As kr_json_parse, with all memory from the arena, which keeps it after a failure too. */
kr_json *kr_json_parse_in(kr_ctx *ctx, kr_arena *arena, const char *text, size_t length,
                          const kr_json_options *options);

/* -1, 0 or 1: by bytes, the shorter first. */
int kr_json_compare_keys(const char *a, size_t na, const char *b, size_t nb);

#endif
