/* device.c - runs kernels on a device, and the host's part of it. */
#include "device/device.h"

#include "base/entry.h"

#include <string.h>

int kr_real_of(kr_dtype dtype)
{
    return dtype == KR_DTYPE_F64 ? KR_REAL_F64 : KR_REAL_F32;
}

/* ---- faults ---- */

bool kr_device_fault(kr_ctx *ctx, const char *when, const char *why)
{
    const kr_device *device = ctx->device;
    const char *kernel = device->last_kernel ? device->last_kernel : "none";
    ctx->broken = true;
    return kr_fail(ctx, KR_ERR_DEVICE, "%s: %s: %s; the last queued kernel: %.*s, by %s, which last made %s",
                   device->name, when, why, (int)strcspn(kernel, "["), kernel,
                   device->last_op ? device->last_op : "no op", KR_TEXT_OF_SHAPE(&device->made));
}

/* For contexts that share weights which this one has written. */
static void note_wait(kr_ctx *ctx)
{
    atomic_store_explicit(&ctx->nwaited, ctx->nwrites, memory_order_release);
}

bool kr_wait(kr_ctx *ctx)
{
    kr_device *device = ctx->device;
    if (!device->vtable || kr_ctx_is_forked(ctx)) return true;
    if (!device->is_busy) {
        note_wait(ctx);
        return true;
    }
    if (device->is_capturing) {
        device->capture_failed = true;
        return true;
    }
    device->is_busy = device->wrote_integers = false;
    if (device->probe) device->probe(device->probe_user, KR_PROBE_WAIT);
    const char *why = device->vtable->wait(device);
    note_wait(ctx);
    return !why || kr_device_fault(ctx, "waiting for it", why);
}

bool kr_event(kr_ctx *ctx, int event)
{
    kr_device *device = ctx->device;
    if (kr_ctx_failed(ctx)) return false;
    const char *why = device->vtable->record_event(device, event);
    return !why || kr_device_fault(ctx, "recording an event", why);
}

bool kr_wait_event(kr_ctx *ctx, int event)
{
    kr_device *device = ctx->device;
    if (!device->is_busy) return true;
    if (device->probe) device->probe(device->probe_user, KR_PROBE_WAIT);
    const char *why = device->vtable->wait_event(device, event);
    return !why || kr_device_fault(ctx, "waiting for a part of its queue", why);
}

bool kr_integers_ready(kr_ctx *ctx)
{
    return !ctx->device->wrote_integers || kr_wait(ctx);
}

/* ---- running ---- */

bool kr_exec_set(kr_ctx *ctx, kr_exec *exec, bool has_kernel, const char *slot)
{
    const kr_device_ops *vtable = ctx->device->vtable;
    if (vtable && vtable->enter) vtable->enter(ctx->device);
    ctx->device->asked_kernel = slot;
    exec->pool = ctx->pool;
    exec->stream = ctx->device->stream;
    exec->own = ctx->device->own;
    exec->precision = ctx->device->precision;
    exec->library = &ctx->device->library;
    exec->ctx = ctx;
    return kr_require(ctx, has_kernel, KR_ERR_UNSUPPORTED, "%s: no kernel %.*s%s", ctx->device->name,
                      (int)strcspn(slot, "["), slot, strchr(slot, '[') ? " of this type" : "");
}

bool kr_exec_begin(kr_ctx *ctx, kr_exec *exec, size_t scratch_bytes)
{
    exec->scratch = NULL;
    if (scratch_bytes == 0) return true;
    exec->scratch = kr_arena_alloc(ctx->device->vtable ? &ctx->device->scratch : &ctx->scratch, scratch_bytes);
    const char *slot = ctx->device->asked_kernel;
    return kr_require(ctx, exec->scratch != NULL, KR_ERR_NOMEM,
                      "%s: no memory for %zu bytes of scratch of its kernel %.*s",
                      ctx->device->op ? ctx->device->op : "scratch", scratch_bytes, (int)strcspn(slot, "["), slot);
}

bool kr_exec_check(kr_ctx *ctx, const char *slot)
{
    kr_device *device = ctx->device;
    if (device->probe) device->probe(device->probe_user, slot);
    if (!device->vtable) return true;
    device->is_busy = true;
    device->last_kernel = slot;
    const char *why = device->vtable->check(device);
    if (why) return kr_device_fault(ctx, "queueing a kernel", why);
    const size_t refused = device->fallback.refused;
    device->fallback.refused = 0;
    return kr_require(ctx, refused == 0, KR_ERR_NOMEM,
                      "%s: no host memory for %zu bytes of the operands of %.*s, which the device lacks", device->name,
                      refused, (int)strcspn(slot, "["), slot);
}

bool kr_exec_end(kr_ctx *ctx, const char *slot)
{
    kr_arena_reset(ctx->device->vtable ? &ctx->device->scratch : &ctx->scratch);
    return kr_exec_check(ctx, slot);
}

/* ---- lists of kernels ---- */

bool kr_run_adamw(kr_ctx *ctx, int real, int64_t count, kr_adamw_args *each)
{
    const kr_device_lists *lists = ctx->device->lists;
    kr_exec exec = { .scratch = NULL };
    if (lists && lists->adamw[real] && count > 0) {
        if (!kr_exec_set(ctx, &exec, true, "adamw")) return false;
        lists->adamw[real](&exec, count, each);
        return kr_exec_check(ctx, "adamw");
    }
    for (int64_t i = 0; i < count; i++)
        if (!KR_RUN(ctx, adamw[real], &each[i])) return false;
    return true;
}

size_t kr_squares_work_of(kr_ctx *ctx, int64_t count, kr_squares_args *each)
{
    size_t sum = 0, most = 0;
    for (int64_t i = 0; i < count; i++) {
        const size_t bytes = KR_SCRATCH_OF(ctx, squares, &each[i]);
        sum += bytes;
        if (bytes > most) most = bytes;
    }
    return ctx->device->lists && ctx->device->lists->squares ? sum : most;
}

bool kr_run_squares(kr_ctx *ctx, int64_t count, kr_squares_args *each, void *work)
{
    const kr_device_lists *lists = ctx->device->lists;
    kr_exec exec = { .scratch = NULL };
    if (lists && lists->squares && count > 0) {
        if (!kr_exec_set(ctx, &exec, true, "squares")) return false;
        exec.scratch = work;
        lists->squares(&exec, count, each);
        return kr_exec_check(ctx, "squares");
    }
    for (int64_t i = 0; i < count; i++)
        if (!KR_RUN_WITH(ctx, squares, &each[i], work)) return false;
    return true;
}

/* ---- memory ---- */

bool kr_ctx_on_device(const kr_ctx *ctx)
{
    return ctx->device->vtable != NULL;
}

bool kr_device_owns(const kr_ctx *ctx, const void *p)
{
    const kr_device *device = ctx->device;
    return kr_on_device(ctx, p) && (!device->vtable->owns || device->vtable->owns(device, p));
}

kr_memory *kr_float_memory(kr_ctx *ctx)
{
    return ctx->device->vtable ? &ctx->device->device_memory : &ctx->memory;
}

kr_memory *kr_shared_memory(kr_ctx *ctx)
{
    return ctx->device->vtable ? &ctx->device->shared : &ctx->memory;
}

kr_result *kr_results(kr_ctx *ctx)
{
    return ctx->device->vtable ? (kr_result *)(void *)ctx->device->host_stage : ctx->device->results;
}

void kr_zero_floats(kr_ctx *ctx, void *p, size_t bytes)
{
    kr_device *device = ctx->device;
    if (bytes == 0) return;
    if (!device->vtable) {
        memset(p, 0, bytes);
        return;
    }
    device->device_memory.zero(device->device_memory.hooks.user, p, bytes);
    device->is_busy = true;
}

bool kr_copy_floats(kr_ctx *ctx, void *to, const void *from, size_t bytes)
{
    kr_device *device = ctx->device;
    if (!device->vtable) {
        memcpy(to, from, bytes);
        return true;
    }
    const char *why = device->vtable->copy(device, to, from, bytes);
    device->is_busy = true;
    return !why || kr_device_fault(ctx, "copying in its memory", why);
}

static bool swap_device(kr_ctx *ctx, char *a, char *b, size_t bytes)
{
    kr_device *device = ctx->device;
    const size_t most = device->access.stage_bytes;
    for (size_t at = 0; at < bytes; at += most) {
        const size_t n = bytes - at < most ? bytes - at : most;
        const char *why = device->vtable->copy(device, device->device_stage, a + at, n);
        if (!why) why = device->vtable->copy(device, a + at, b + at, n);
        if (!why) why = device->vtable->copy(device, b + at, device->device_stage, n);
        if (why) return kr_device_fault(ctx, "copying in its memory", why);
    }
    device->is_busy = true;
    return true;
}

bool kr_swap_floats(kr_ctx *ctx, void *a, void *b, size_t bytes)
{
    if (kr_ctx_on_device(ctx)) return swap_device(ctx, a, b, bytes);
    char held[4096], *x = a, *y = b;
    for (size_t at = 0; at < bytes; at += sizeof held) {
        const size_t n = bytes - at < sizeof held ? bytes - at : sizeof held;
        memcpy(held, x + at, n);
        memcpy(x + at, y + at, n);
        memcpy(y + at, held, n);
    }
    return true;
}

bool kr_find_not_finite(kr_ctx *ctx, kr_dtype dtype, const void *x, int64_t n, int64_t *first)
{
    kr_result *result = kr_results(ctx);
    kr_finite_args args = { .n = n, .dtype = dtype, .x = x, .first = &result->whole };
    result->whole = -1;
    if (kr_ctx_on_device(ctx) && !kr_on_device(ctx, x)) ctx->device->host->finite.run(&args);
    else if (!KR_RUN(ctx, finite, &args) || !kr_wait(ctx)) return false;
    *first = result->whole;
    return true;
}
