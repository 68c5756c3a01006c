/* graph.c - kernels recorded once and replayed as one.
 *
 * Before the recording the scratch of kernels gets one block for the most that any of them has asked for, so that all
 * of them find it in one place; a replay is refused once that block has gone.
 */
#include "device/device.h"

struct kr_recording {
    void *record;
    const void *scratch; /* where it began */
    int64_t launches;
};

bool kr_record_begin(kr_ctx *ctx)
{
    kr_device *device = ctx->device;
    if (kr_ctx_failed(ctx) || !device->verbs || !device->verbs->begin_record || device->is_recording || !kr_wait(ctx) ||
        !kr_arena_reserve(&device->scratch))
        return false;
    const char *why = device->verbs->begin_record(device);
    if (why) return kr_device_fault(ctx, "recording kernels", why);
    device->is_recording = true;
    device->tore_record = false;
    return true;
}

kr_recording *kr_record_end(kr_ctx *ctx)
{
    kr_device *device = ctx->device;
    int64_t launches = 0;
    void *record = device->verbs->end_record(device, &launches);
    device->is_recording = device->is_busy = device->wrote_integers = false;
    kr_recording *r = NULL;
    if (record && !device->tore_record && !kr_ctx_failed(ctx)) r = kr_memory_alloc(&ctx->memory, sizeof *r);
    if (r) *r = (kr_recording){ record, kr_arena_base(&device->scratch), launches };
    else if (record) device->verbs->forget(device, record);
    return r;
}

bool kr_record_is_whole(const kr_ctx *ctx, const kr_recording *recording)
{
    return kr_arena_base(&ctx->device->scratch) == recording->scratch;
}

bool kr_record_replay(kr_ctx *ctx, const kr_recording *recording)
{
    kr_device *device = ctx->device;
    if (kr_ctx_failed(ctx)) return false;
    const char *why = device->verbs->replay(device, recording->record);
    device->is_busy = device->wrote_integers = true;
    device->last_kernel = "of a recording";
    return !why || kr_device_fault(ctx, "replaying kernels", why);
}

int64_t kr_record_launches(const kr_recording *recording)
{
    return recording ? recording->launches : 0;
}

void kr_record_destroy(kr_ctx *ctx, kr_recording *recording)
{
    if (!recording) return;
    kr_wait(ctx);
    ctx->device->verbs->forget(ctx->device, recording->record);
    kr_memory_free(&ctx->memory, recording, sizeof *recording);
}
