/* bytes.h - a growable byte buffer in the context's memory, and little-endian numbers in it. */
#ifndef KR_IO_BYTES_H
#define KR_IO_BYTES_H

#include "base/ctx_impl.h"

#include <string.h>

typedef struct kr_bytes {
    unsigned char *data;
    size_t used, capacity;
} kr_bytes;

static inline void kr_bytes_free(kr_ctx *ctx, kr_bytes *b)
{
    kr_memory_free(&ctx->memory, b->data, b->capacity);
    *b = (kr_bytes){ NULL, 0, 0 };
}

/* Appends `more` uninitialised bytes; NULL with the context's error set, which begins with who. */
static inline void *kr_bytes_more(kr_ctx *ctx, kr_bytes *b, size_t more, const char *who)
{
    enum { LEAST = 256 };
    if (more > b->capacity - b->used) {
        size_t capacity = b->capacity ? b->capacity : LEAST;
        while (capacity <= SIZE_MAX / 4 && capacity - b->used < more) capacity += capacity / 2;
        unsigned char *data = capacity <= SIZE_MAX / 4 ? kr_memory_alloc(&ctx->memory, capacity) : NULL;
        if (!data) {
            kr_fail(ctx, KR_ERR_NOMEM, "%s: no memory for %zu bytes", who, capacity);
            return NULL;
        }
        if (b->used) memcpy(data, b->data, b->used);
        kr_memory_free(&ctx->memory, b->data, b->capacity);
        b->data = data;
        b->capacity = capacity;
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
