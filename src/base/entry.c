/* entry.c - one thread at a time uses a context. */
#include "base/entry.h"

#include "base/fork.h"

/* Its address identifies the thread. */
static _Thread_local char this_thread;

bool kr_ctx_is_shared(const kr_ctx *ctx)
{
    return atomic_load_explicit(&ctx->is_shared, memory_order_relaxed);
}

bool kr_ctx_is_forked(const kr_ctx *ctx)
{
    return ctx->nforks != kr_fork_count();
}

/* The other thread recorded no error, since this one may have been recording its own. */
static void take_shared_error(kr_ctx *ctx)
{
    atomic_store_explicit(&ctx->is_shared, false, memory_order_relaxed);
    kr_fail(ctx, KR_ERR_STATE, "%s", KR_SHARED_TEXT);
}

/* In a forked child: the thread that used the context does not exist here. */
static bool begin_forked(kr_entry *entry, kr_ctx *ctx, kr_entry_kind kind)
{
    ctx->failed_tape = NULL;
    entry->ctx = NULL;
    return kind == KR_ENTRY_DESTROYS ||
           kr_fail(
               ctx, KR_ERR_STATE,
               "ctx: created before fork, and its threads and devices belong to the parent; create a context in the "
               "child, which may only destroy what the parent created");
}

bool kr_entry_begin(kr_entry *entry, kr_ctx *ctx, bool *tape, kr_entry_kind kind)
{
    entry->ctx = ctx;
    if (!ctx) return true;
    if (kr_ctx_is_forked(ctx)) return begin_forked(entry, ctx, kind);
    const uintptr_t self = (uintptr_t)&this_thread;
    uintptr_t user = atomic_load_explicit(&ctx->user, memory_order_relaxed);
    if (user != self) {
        user = 0;
        if (!atomic_compare_exchange_strong_explicit(&ctx->user, &user, self, memory_order_acquire,
                                                     memory_order_relaxed)) {
            atomic_store_explicit(&ctx->is_shared, true, memory_order_relaxed);
            return false;
        }
        if (kr_ctx_is_shared(ctx)) take_shared_error(ctx);
    }
    ctx->depth++;
    entry->outer_tape = ctx->failed_tape;
    entry->tape = ctx->failed_tape = tape;
    entry->was_ok = ctx->status == KR_OK;
    return true;
}

void kr_entry_end(const kr_entry *entry)
{
    kr_ctx *ctx = entry->ctx;
    if (!ctx) return;
    if (entry->tape && entry->was_ok && ctx->status != KR_OK) *entry->tape = true;
    ctx->failed_tape = entry->outer_tape;
    if (--ctx->depth == 0) atomic_store_explicit(&ctx->user, 0, memory_order_release);
}
