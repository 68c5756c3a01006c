/* device_memory.h - host access to device memory through plain pointers: the device copies the bytes. In a context
 * without device memory all of this is memcpy and memset.
 */
#ifndef KR_BASE_DEVICE_MEMORY_H
#define KR_BASE_DEVICE_MEMORY_H

#include "base/ctx_impl.h"

struct kr_device_access {
    bool (*holds)(const kr_ctx *ctx, const void *p);
    /* Appends the device's free memory to `text`, of `bytes` bytes, if a device allocation failed. */
    void (*explain)(kr_ctx *ctx, char *text, size_t bytes);
    bool (*fetch)(kr_ctx *ctx, void *host, const void *p, size_t bytes); /* waits for queued work */
    bool (*store)(kr_ctx *ctx, void *p, const void *host, size_t bytes); /* the host buffer may be reused on return */
    char *stage;                                                         /* pinned host memory for fast copies */
    size_t stage_bytes;
};

bool kr_on_device(const kr_ctx *ctx, const void *p);

/* Copies bytes at p, in device or host memory, to the caller's memory and from it. False after an error of the
 * device. */
bool kr_fetch(kr_ctx *ctx, void *host, const void *p, size_t bytes);
bool kr_store(kr_ctx *ctx, void *p, const void *host, size_t bytes);

/* Passes the bytes at p to `take`, in order: host memory in one call, device memory in pieces. Every piece but the last
 * is a multiple of 64 bytes; the pointer is valid during the call only. False as soon as `take` returns false, or after
 * an error. */
typedef bool kr_piece_fn(void *user, const void *piece, size_t bytes);
bool kr_each_block(kr_ctx *ctx, const void *p, size_t bytes, kr_piece_fn *take, void *user);

/* kr_hash_bytes (base/hash.h) of the bytes at p. */
uint64_t kr_hash_at(kr_ctx *ctx, uint64_t state, const void *p, size_t bytes);

#endif
