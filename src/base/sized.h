/* sized.h - option structs that grow: a caller may have been compiled with fewer fields than the library, or with more. */
#ifndef KR_BASE_SIZED_H
#define KR_BASE_SIZED_H

#include "base/ctx_impl.h"

#include <string.h>

/* The defaults of a struct of structs.def, in the module that takes it:
 *   KR_DEFAULTS(kr_norm_options) = { .size = sizeof(kr_norm_options), .eps = 1e-5 };
 * KR_DECLARE_DEFAULTS is for the module's header, where other files take the struct too. */
#define KR_DECLARE_DEFAULTS(type) extern const type type##_defaults
#define KR_DEFAULTS(type)                                                                                              \
    KR_DECLARE_DEFAULTS(type);                                                                                         \
    const type type##_defaults

/* *own <- the caller's struct, of type `type`: the fields that both versions have, defaults for the rest; NULL: all
 * defaults. False after an error, which a NULL ctx does not record: a size that no such struct has, or a field set that
 * is unknown here; *own is the defaults then. */
#define KR_TAKE(ctx, op, type, given, own)                                                                             \
    kr_sized_take((ctx), (op), #type, 1 ? (given) : (const type *)0, sizeof(type), &type##_defaults,                   \
                  1 ? (own) : (type *)0)
bool kr_sized_take(kr_ctx *ctx, const char *op, const char *name, const void *given, size_t full, const void *defaults,
                   void *own);

/* Ops check the reserved words of their arguments in every call: hence inlined, and by words. */
static inline bool kr_words_are_zero(const void *words, size_t bytes)
{
    uint64_t any = 0, word;
    for (size_t i = 0; i + sizeof word <= bytes; i += sizeof word) {
        memcpy(&word, (const char *)words + i, sizeof word);
        any |= word;
    }
    return any == 0;
}

/* Always false. */
bool kr_reserved_fail(kr_ctx *ctx, const char *op, const char *name);

/* `reserved` words of a struct that has no size are 0: a field of a later version is an error, not ignored. */
#define KR_RESERVED(ctx, op, name, object)                                                                             \
    (kr_words_are_zero((object)->reserved, sizeof(object)->reserved) || kr_reserved_fail((ctx), (op), (name)))

#endif
