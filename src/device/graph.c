/* graph.c - graph capture: kernels captured once and launched as one.
 *
 * Before capture, kernel scratch is allocated as one block of the largest size requested so far, so that it has one
 * address; a launch is refused once that block has been freed.
 */
#include "device/device.h"

#include "base/entry.h"

struct kr_graph {
    void *captured;
    const void *scratch; /* its address at capture */
    int64_t launches;
};

bool kr_graph_capture_begin(kr_ctx *ctx)
{
    kr_device *device = ctx->device;
    if (kr_ctx_failed(ctx) || !device->vtable || !device->vtable->capture_begin || device->is_capturing ||
        !kr_wait(ctx) || !kr_arena_reserve(&device->scratch))
        return false;
    const char *why = device->vtable->capture_begin(device);
    if (why) return kr_device_fault(ctx, "capturing kernels", why);
    device->is_capturing = true;
    device->capture_failed = false;
    return true;
}

kr_graph *kr_graph_capture_end(kr_ctx *ctx)
{
    kr_device *device = ctx->device;
    int64_t launches = 0;
    void *captured = device->vtable->capture_end(device, &launches);
    device->is_capturing = device->is_busy = device->wrote_integers = false;
    kr_graph *r = NULL;
    if (captured && !device->capture_failed && !kr_ctx_failed(ctx)) r = kr_memory_alloc(&ctx->memory, sizeof *r);
    if (r) *r = (kr_graph){ captured, kr_arena_base(&device->scratch), launches };
    else if (captured) device->vtable->destroy_graph(device, captured);
    return r;
}

bool kr_graph_is_complete(const kr_ctx *ctx, const kr_graph *graph)
{
    return kr_arena_base(&ctx->device->scratch) == graph->scratch;
}

bool kr_graph_launch(kr_ctx *ctx, const kr_graph *graph)
{
    kr_device *device = ctx->device;
    if (kr_ctx_failed(ctx)) return false;
    const char *why = device->vtable->launch_graph(device, graph->captured);
    device->is_busy = device->wrote_integers = true;
    device->last_kernel = "of a graph";
    return !why || kr_device_fault(ctx, "launching captured kernels", why);
}

int64_t kr_graph_launches(const kr_graph *graph)
{
    return graph ? graph->launches : 0;
}

void kr_graph_destroy(kr_ctx *ctx, kr_graph *graph)
{
    if (!graph) return;
    kr_wait(ctx);
    if (!kr_ctx_is_forked(ctx)) ctx->device->vtable->destroy_graph(ctx->device, graph->captured);
    kr_memory_free(&ctx->memory, graph, sizeof *graph);
}
