/* far.c - plain pointers that may lead to far memory. */
#include "base/far.h"

#include "base/hash.h"

#include <string.h>

bool kr_is_far(const kr_ctx *ctx, const void *p)
{
    return ctx->far && p && ctx->far->holds(ctx, p);
}

bool kr_fetch(kr_ctx *ctx, void *near, const void *p, size_t bytes)
{
    if (bytes == 0) return true;
    if (kr_is_far(ctx, p)) return ctx->far->fetch(ctx, near, p, bytes);
    memcpy(near, p, bytes);
    return true;
}

bool kr_store(kr_ctx *ctx, void *p, const void *near, size_t bytes)
{
    if (bytes == 0) return true;
    if (kr_is_far(ctx, p)) return ctx->far->store(ctx, p, near, bytes);
    memcpy(p, near, bytes);
    return true;
}

bool kr_each_piece(kr_ctx *ctx, const void *p, size_t bytes, kr_piece_fn *take, void *user)
{
    if (bytes == 0 || !kr_is_far(ctx, p)) return take(user, p, bytes);
    for (size_t at = 0; at < bytes; at += ctx->far->stage_bytes) {
        const size_t n = bytes - at < ctx->far->stage_bytes ? bytes - at : ctx->far->stage_bytes;
        if (!ctx->far->fetch(ctx, ctx->far->stage, (const char *)p + at, n) || !take(user, ctx->far->stage, n))
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
    kr_each_piece(ctx, p, bytes, hash_piece, &h);
    return h.state;
}
