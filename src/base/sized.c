/* sized.c - takes the option structs of callers that were compiled with an older or a newer header. */
#include "base/sized.h"

#include <string.h>

/* No struct is a page long: a larger size was never set by an _init. */
enum { SIZE_MOST = 4096 };

static bool is_zero(const unsigned char *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (bytes[i]) return false;
    return true;
}

bool kr_sized_take(kr_ctx *ctx, const char *op, const char *name, const void *given, size_t full, const void *defaults,
                   void *own)
{
    memcpy(own, defaults, full);
    if (!given) return true;
    size_t size;
    memcpy(&size, given, sizeof size);
    const bool is_size = size >= sizeof size && size <= SIZE_MOST;
    const bool is_known = is_size && (size <= full || is_zero((const unsigned char *)given + full, size - full));
    if (ctx && !is_size)
        kr_fail(ctx, KR_ERR_ARG, "%s: %s.size is %zu, but the struct has %zu bytes; call %s_init before setting fields",
                op, name, size, full, name);
    else if (ctx && !is_known)
        kr_fail(ctx, KR_ERR_UNSUPPORTED,
                "%s: %s has %zu bytes in the program and %zu here, and a field that is unknown here is set; the "
                "program was "
                "built with a newer header: install that version of the library, or leave the field 0",
                op, name, size, full);
    if (!is_known) return false;
    memcpy(own, given, size < full ? size : full);
    memcpy(own, &full, sizeof full);
    return true;
}

bool kr_reserved_fail(kr_ctx *ctx, const char *op, const char *name)
{
    return kr_fail(ctx, KR_ERR_UNSUPPORTED,
                   "%s: a reserved word of %s is not 0; set all of the struct with an initialiser, or install the "
                   "version of the library that the program was built for",
                   op, name);
}
