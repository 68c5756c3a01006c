/* buffer.h - a growable byte buffer in the context's memory. */
#ifndef KR_TEXT_BUFFER_H
#define KR_TEXT_BUFFER_H

#include "base/ctx_impl.h"

#include <string.h>

typedef struct kr_buffer {
    kr_ctx *ctx;
    char *data;
    size_t bytes, capacity;
} kr_buffer;

static inline void kr_buffer_free(kr_buffer *b)
{
    kr_memory_free(&b->ctx->memory, b->data, b->capacity);
    *b = (kr_buffer){ .ctx = b->ctx };
}

/* Reserves capacity for `more` bytes after the existing ones. */
static inline bool kr_buffer_reserve(kr_buffer *b, size_t more)
{
    enum { LEAST = 256 };
    if (more <= b->capacity - b->bytes) return true;
    if (more > SIZE_MAX / 4 - b->bytes) return kr_fail(b->ctx, KR_ERR_NOMEM, "tokenizer: a text too long to address");
    size_t capacity = b->capacity ? b->capacity : LEAST;
    while (capacity - b->bytes < more) capacity *= 2;
    char *data = kr_memory_alloc(&b->ctx->memory, capacity);
    if (!data) return kr_fail(b->ctx, KR_ERR_NOMEM, "tokenizer: no memory for %zu bytes", capacity);
    if (b->bytes) memcpy(data, b->data, b->bytes);
    kr_memory_free(&b->ctx->memory, b->data, b->capacity);
    b->data = data;
    b->capacity = capacity;
    return true;
}

static inline bool kr_buffer_put(kr_buffer *b, const void *data, size_t bytes)
{
    if (!kr_buffer_reserve(b, bytes)) return false;
    if (bytes) memcpy(b->data + b->bytes, data, bytes);
    b->bytes += bytes;
    return true;
}

#endif
