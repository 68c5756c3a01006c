/* device_memory.h - memory that the processor cannot touch, as those see it who are handed a plain pointer: what lies there is
 * fetched or stored by the device. Where a context has no such memory all of this is memcpy and memset.
 */
#ifndef KR_BASE_DEVICE_MEMORY_H
#define KR_BASE_DEVICE_MEMORY_H

#include "base/ctx_impl.h"

struct kr_device_access {
    bool (*holds)(const kr_ctx *ctx, const void *p);
    /* Adds to `text`, of `bytes` bytes, what the device has left, if it was what refused memory. */
    void (*explain)(kr_ctx *ctx, char *text, size_t bytes);
    bool (*fetch)(kr_ctx *ctx, void *host, const void *p, size_t bytes); /* waits for what was queued */
    bool (*store)(kr_ctx *ctx, void *p, const void *host, size_t bytes); /* near is the caller's again on return */
    char *stage;                                                         /* near memory that is quick to fetch to */
    size_t stage_bytes;
};

bool kr_on_device(const kr_ctx *ctx, const void *p);

/* Bytes at p, far or near, to the caller's memory and from it. False after an error of the device. */
bool kr_fetch(kr_ctx *ctx, void *host, const void *p, size_t bytes);
bool kr_store(kr_ctx *ctx, void *p, const void *host, size_t bytes);

/* Shows the bytes at p to `take`, in order: at once where they are near, else piece by piece. A piece is a multiple of 64
 * bytes, but for the last, and must not be kept. False as soon as `take` says so, or after an error. */
typedef bool kr_piece_fn(void *user, const void *piece, size_t bytes);
bool kr_each_block(kr_ctx *ctx, const void *p, size_t bytes, kr_piece_fn *take, void *user);

/* kr_hash_bytes (base/hash.h) of the bytes at p. */
uint64_t kr_hash_at(kr_ctx *ctx, uint64_t state, const void *p, size_t bytes);

#endif
