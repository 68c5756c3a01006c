/* device_memory.c - access to plain pointers that may be device memory. */
#include "base/device_memory.h"

#include "base/hash.h"

#include <string.h>

bool kr_on_device(const kr_ctx *ctx, const void *p)
{
    return ctx->device_access && p && ctx->device_access->holds(ctx, p);
}

bool kr_fetch(kr_ctx *ctx, void *host, const void *p, size_t bytes)
{
    if (bytes == 0) return true;
    if (kr_on_device(ctx, p)) return ctx->device_access->fetch(ctx, host, p, bytes);
    memcpy(host, p, bytes);
    return true;
}

bool kr_store(kr_ctx *ctx, void *p, const void *host, size_t bytes)
{
    if (bytes == 0) return true;
    if (kr_on_device(ctx, p)) return ctx->device_access->store(ctx, p, host, bytes);
    memcpy(p, host, bytes);
    return true;
}

bool kr_each_block(kr_ctx *ctx, const void *p, size_t bytes, kr_piece_fn *take, void *user)
{
    if (bytes == 0 || !kr_on_device(ctx, p)) return take(user, p, bytes);
    for (size_t at = 0; at < bytes; at += ctx->device_access->stage_bytes) {
        const size_t n = bytes - at < ctx->device_access->stage_bytes ? bytes - at : ctx->device_access->stage_bytes;
        if (!ctx->device_access->fetch(ctx, ctx->device_access->stage, (const char *)p + at, n) ||
            !take(user, ctx->device_access->stage, n))
            return false;
    }
    return true;
}

typedef struct hashing {
    uint64_t state;
    size_t bytes, left;
} hashing;

static bool hash_piece(void *user, const void *piece, size_t bytes)
{
    hashing *h = user;
    h->left -= bytes;
    h->state = h->left ? kr_hash_part(h->state, piece, bytes) : kr_hash_last(h->state, piece, bytes, h->bytes);
    return true;
}

uint64_t kr_hash_at(kr_ctx *ctx, uint64_t state, const void *p, size_t bytes)
{
    hashing h = { state, bytes, bytes };
    kr_each_block(ctx, p, bytes, hash_piece, &h);
    return h.state;
}
