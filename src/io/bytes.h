/* bytes.h - bytes that grow in the context's memory, and little-endian numbers in them. */
#ifndef KR_IO_BYTES_H
#define KR_IO_BYTES_H

#include "base/ctx_impl.h"

#include <string.h>

typedef struct kr_bytes {
    unsigned char *data;
    size_t used, room;
} kr_bytes;

static inline void kr_bytes_free(kr_ctx *ctx, kr_bytes *b)
{
    kr_memory_free(&ctx->memory, b->data, b->room);
    *b = (kr_bytes){ NULL, 0, 0 };
}

/* `more` bytes behind those that are there, to be filled in; NULL with the context's error set, which begins with who. */
static inline void *kr_bytes_more(kr_ctx *ctx, kr_bytes *b, size_t more, const char *who)
{
    enum { LEAST = 256 };
    if (more > b->room - b->used) {
        size_t room = b->room ? b->room : LEAST;
        while (room <= SIZE_MAX / 4 && room - b->used < more) room += room / 2;
        unsigned char *data = room <= SIZE_MAX / 4 ? kr_memory_alloc(&ctx->memory, room) : NULL;
        if (!data) {
            kr_fail(ctx, KR_ERR_NOMEM, "%s: no memory for %zu bytes", who, room);
            return NULL;
        }
        if (b->used) memcpy(data, b->data, b->used);
        kr_memory_free(&ctx->memory, b->data, b->room);
        b->data = data;
        b->room = room;
    }
    b->used += more;
    return b->data + b->used - more;
}

static inline void kr_little_put(unsigned char *at, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++) at[i] = (unsigned char)(value >> (8 * i));
}

static inline uint64_t kr_little_get(const unsigned char *at, int bytes)
{
    uint64_t value = 0;
    for (int i = 0; i < bytes; i++) value |= (uint64_t)at[i] << (8 * i);
    return value;
}

#endif
