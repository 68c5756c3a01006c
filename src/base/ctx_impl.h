/* ctx_impl.h - internals of a context: the state that all modules share. */
#ifndef KR_BASE_CTX_IMPL_H
#define KR_BASE_CTX_IMPL_H

#include "base/alloc.h"
#include "base/arena.h"
#include "base/pool.h"

#include <krait/ctx.h>

#include <stdatomic.h>

struct kr_device;
struct kr_device_access;

struct kr_ctx {
    kr_memory memory;
    _Atomic(kr_status) status; /* any thread may read it; the rest belongs to the thread that uses the context */
    char message[1024];        /* fixed, so that failing needs no memory */
    bool broken;               /* creation failed: the error cannot be cleared */
    bool *failed_tape;         /* set to true by an error, for the tape in use; NULL: no tape */

    /* base/entry.h */
    atomic_uintptr_t user; /* the thread inside a call, or 0 */
    int depth;             /* of its nested calls */
    atomic_bool is_shared; /* a second thread called meanwhile */
    unsigned nforks;       /* kr_fork_count of the process that created it */

    kr_pool *pool;
    atomic_uint_least64_t nwaited; /* nwrites of the last wait for a device, which any thread may read */
    uint64_t nwrites;  /* to parameters and other tensors that may have been read (tape/tape_impl.h, kr_wrote) */
    int64_t nrecorded; /* tapes that hold recorded ops */
    struct kr_tensor *destroyed; /* headers of parameters that such a tape may refer to (tape/param.c) */
    kr_arena scratch;            /* call scratch, by mark and release */
    kr_log_fn *log;
    void *log_user;
    uint64_t seed, stream; /* each random op uses the next stream */
    bool check_finite;
    struct kr_device *device;
    struct kr_device_access *device_access; /* NULL: all memory of this context is host memory (base/device_memory.h) */
};

/* Records the first error; always false. The text names op, operand, sizes, rule and remedy, lower case, no full stop.
 * */
bool kr_fail(kr_ctx *ctx, kr_status status, const char *format, ...) KR_PRINTF(3, 4);

/* cond, or the failure: for checks of the caller's input. A macro, so that the text's arguments (rendered shapes) are
 * only computed when it is needed. */
#define kr_require(ctx, cond, ...) ((cond) || kr_fail((ctx), __VA_ARGS__))

/* Prepends "what: " to the recorded message, if there is one; always false. */
bool kr_blame(kr_ctx *ctx, const char *format, ...) KR_PRINTF(2, 3);

void kr_note(kr_ctx *ctx, kr_log_level level, const char *format, ...) KR_PRINTF(3, 4);

#endif
