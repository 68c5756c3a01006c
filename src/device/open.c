/* open.c - opens and closes the device of the options or the environment, by name. */
#include "device/backend_impl.h"
#include "device/plugins.h"
#include "device/row_lists.h"
#include "kernels/select.h"

#include "base/entry.h"
#include "base/sized.h"
#include "base/text_buffer.h"

#include <stdlib.h>
#include <string.h>

enum {
    STAGE_BYTES = 1 << 20,
    RESULT_BYTES = KR_RESULTS * sizeof(kr_result),
    SCRATCH_BLOCK = 1 << 20,
    REASON_BYTES = 2048
};

/* ---- kinds ---- */

#ifdef KR_HAVE_CUDA
extern const kr_device_kind kr_cuda_kind;
#else
/* Stands for the plug-in until it is loaded, when the device is first used or listed. */
static const kr_device_kind *cuda_of_plugin(kr_text_buffer *why)
{
    static const char missing[] =
        "this build has no CUDA kernels; build with cmake --preset cuda (KR_CUDA=ON), or install "
        "the plug-in libkrait_cuda.so (pip install \"krait-ssm[cuda]\"): ";
    char text[REASON_BYTES];
    kr_text_buffer reason = kr_text_buffer_of(text, sizeof text);
    const kr_status status = kr_plugin_load_cuda(&reason);
    kr_text_buffer_print(why, "%s%s", status == KR_ERR_IO ? missing : "", text);
    return kr_plugin_named("cuda");
}

static bool open_plugin(kr_ctx *ctx, kr_device *device, int number)
{
    char text[REASON_BYTES];
    kr_text_buffer why = kr_text_buffer_of(text, sizeof text);
    const kr_device_kind *kind = cuda_of_plugin(&why);
    if (kind) return kind->open(ctx, device, number);
    return kr_fail(ctx, KR_ERR_UNSUPPORTED, "ctx: device cuda:%d: %s", number, text);
}

static size_t describe_plugin(char *text, size_t bytes)
{
    char reason[REASON_BYTES];
    kr_text_buffer why = kr_text_buffer_of(reason, sizeof reason), buffer = kr_text_buffer_of(text, bytes);
    const kr_device_kind *kind = cuda_of_plugin(&why);
    if (kind) return kind->describe(text, bytes);
    kr_text_buffer_print(&buffer, "cuda: %s\n", reason);
    return buffer.length;
}

static const kr_device_kind kr_cuda_kind = { "cuda", open_plugin, describe_plugin };
#endif

const kr_device_kind *kr_device_kind_of_tests;

bool kr_device_is_built_in(const char *name)
{
#ifdef KR_HAVE_CUDA
    if (strcmp(name, kr_cuda_kind.name) == 0) return true;
#endif
    return kr_device_kind_of_tests && strcmp(name, kr_device_kind_of_tests->name) == 0;
}

/* Those of plug-ins come first: "cuda" then hides the one that stands for it. */
const kr_device_kind *kr_device_kind_nth(int n)
{
    const kr_device_kind *kind;
    bool has_cuda = false;
    for (int i = 0; (kind = kr_plugin_nth(i)); i++) {
        if (n-- == 0) return kind;
        has_cuda = has_cuda || strcmp(kind->name, kr_cuda_kind.name) == 0;
    }
    if (!has_cuda && n-- == 0) return &kr_cuda_kind;
    return n == 0 ? kr_device_kind_of_tests : NULL;
}

size_t kr_devices_write(char *text, size_t bytes)
{
    kr_text_buffer buffer = kr_text_buffer_of(text, bytes);
    const kr_device_kind *kind;
    kr_text_buffer_print(&buffer, "cpu\n");
    const kr_backend_info *backend;
    for (int n = 0; (backend = kr_backend_nth(n)); n++)
        if (backend->device) kr_text_buffer_print(&buffer, "%s: the device of a backend\n", backend->name);
    for (int n = 0; (kind = kr_device_kind_nth(n)); n++) {
        buffer.length += kind->describe(buffer.length < buffer.capacity ? text + buffer.length : NULL,
                                        buffer.length < buffer.capacity ? buffer.capacity - buffer.length : 0);
        const char *file = kr_plugin_file(kr_device_kind_nth(n)); /* describing it may have loaded it */
        if (file) kr_text_buffer_print(&buffer, "%s: loaded from %s\n", kind->name, file);
    }
    return buffer.length;
}

/* ---- device memory behind plain pointers ---- */

static bool holds(const kr_ctx *ctx, const void *p)
{
    return ctx->device->vtable->holds(ctx->device, p);
}

static void explain(kr_ctx *ctx, char *text, size_t bytes)
{
    const kr_device *device = ctx->device;
    const double mib = 0x1p20;
    kr_text_buffer buffer = kr_text_buffer_of(text, bytes);
    if (device->shared.refused)
        kr_text_buffer_print(&buffer, "; the system refused %zu bytes that %s could read", device->shared.refused,
                             device->name);
    if (device->device_memory.refused) {
        size_t free = 0, all = 0;
        kr_text_buffer_print(&buffer, "; %s refused %zu bytes: this context has %.1f MiB of it in use", device->name,
                             device->device_memory.refused, (double)device->device_memory.stats.live_bytes / mib);
        if (device->vtable->memory_info && device->vtable->memory_info(device, &free, &all))
            kr_text_buffer_print(&buffer, ", %.1f of %.1f MiB are free", (double)free / mib, (double)all / mib);
        kr_text_buffer_print(&buffer,
                             "; use a smaller batch or shorter rows, recompute layers (recompute_budget), or free what "
                             "other tapes and programs hold");
    }
    ctx->device->shared.refused = ctx->device->device_memory.refused = 0;
}

static bool fetch(kr_ctx *ctx, void *host, const void *p, size_t bytes)
{
    if (ctx->broken) return false; /* its contents are not valid */
    const char *why = ctx->device->vtable->download(ctx->device, host, p, bytes);
    return !why || kr_device_fault(ctx, "reading its memory", why);
}

static bool store(kr_ctx *ctx, void *p, const void *host, size_t bytes)
{
    if (ctx->broken) return false;
    const char *why = ctx->device->vtable->upload(ctx->device, p, host, bytes);
    return !why || kr_device_fault(ctx, "writing its memory", why);
}

/* ---- opening and closing ---- */

/* A device of a kind of the library, or of a backend. */
static bool open_in_device_memory(kr_ctx *ctx, const kr_device_kind *kind, const kr_backend_info *backend, int number)
{
    kr_device *device = ctx->device;
    device->processor = device->kernels;
    device->processor_library = device->library;
    device->host = &device->processor;
    if (!(kind ? kind->open(ctx, device, number) : kr_backend_device_open(ctx, device, backend, number))) {
        device->vtable = NULL;
        return false;
    }
    if (backend) kr_fallback_fill(ctx);
    device->library = device->kernels;
    kr_backends_overlay_device(ctx, kind ? kind->name : backend->name);
    device->device_memory.fail_in_of = device->shared.fail_in_of = &ctx->memory;
    device->device_memory.is_device = device->shared.is_device = true;
    device->device_memory.nforks = device->shared.nforks = ctx->nforks;
    kr_arena_init_device(&device->scratch, &device->device_memory, &ctx->memory, SCRATCH_BLOCK);
    device->host_stage = kr_memory_alloc(&device->shared, RESULT_BYTES + STAGE_BYTES);
    device->device_stage = kr_memory_alloc(&device->device_memory, STAGE_BYTES);
    device->access = (struct kr_device_access){ .holds = holds,
                                                .explain = explain,
                                                .fetch = fetch,
                                                .store = store,
                                                .stage = device->host_stage ? device->host_stage + RESULT_BYTES : NULL,
                                                .stage_bytes = STAGE_BYTES };
    ctx->device_access = &device->access;
    return kr_require(ctx, device->host_stage && device->device_stage, KR_ERR_NOMEM,
                      "ctx: %s: no memory for staging buffers of %d bytes", device->name, (int)STAGE_BYTES);
}

void kr_device_close(kr_ctx *ctx)
{
    kr_device *device = ctx->device;
    if (!device) return;
    if (device->vtable) kr_wait(ctx);
    kr_row_lists_free(ctx);
    if (device->vtable) {
        kr_arena_deinit(&device->scratch);
        if (device->device_stage) kr_memory_free(&device->device_memory, device->device_stage, STAGE_BYTES);
        if (device->host_stage) kr_memory_free(&device->shared, device->host_stage, RESULT_BYTES + STAGE_BYTES);
        if (!kr_ctx_is_forked(ctx)) device->vtable->close(device);
    }
    kr_backends_close(device);
    kr_memory_free(&ctx->memory, device, sizeof *device);
    ctx->device = NULL;
    ctx->device_access = NULL;
}

/* The number after "cuda" or "cuda:"; -1: another name. */
static int number_of(const char *asked, const char *name)
{
    const size_t length = strlen(name);
    if (strncmp(asked, name, length) != 0) return -1;
    const char *rest = asked + length;
    if (*rest == '\0') return 0;
    if (*rest != ':' || strlen(rest) < 2 || strlen(rest) > 4 || rest[1 + strspn(rest + 1, "0123456789")]) return -1;
    int number = 0;
    for (rest++; *rest; rest++) number = 10 * number + (*rest - '0');
    return number;
}

static bool open_named(kr_ctx *ctx, const char *asked, const char *source)
{
    if (strcmp(asked, "cpu") == 0) return true;
    const kr_device_kind *kind = NULL;
    for (int n = 0; (kind = kr_device_kind_nth(n)) && number_of(asked, kind->name) < 0;) n++;
    if (kind) return open_in_device_memory(ctx, kind, NULL, number_of(asked, kind->name));
    const kr_backend_info *backend = kr_backend_with_device(ctx->device, asked, strcspn(asked, ":"));
    const int number = backend ? number_of(asked, backend->name) : -1;
    return number >= 0 ? open_in_device_memory(ctx, NULL, backend, number)
                       : kr_fail(ctx, KR_ERR_ARG,
                                 "ctx: %s%.40s is not a device; choose one of: cpu, cuda, cuda:N, or the name of a "
                                 "backend with a device",
                                 source, asked);
}

static bool open_asked(kr_ctx *ctx, const char *asked)
{
    const char *source = "device = ";
    if (!asked) {
        asked = getenv("KR_DEVICE");
        source = "KR_DEVICE=";
    }
    return !asked || !*asked || open_named(ctx, asked, source);
}

/* what: "ctx" or "ctx.use_stream" */
static bool use_stream(kr_ctx *ctx, const char *what, void *stream)
{
    kr_device *device = ctx->device;
    if (!device->vtable || !device->vtable->use_stream)
        return kr_require(ctx, !stream, KR_ERR_UNSUPPORTED, "%s: the device %s has no streams; leave the stream NULL",
                          what, device->name);
    if (!kr_require(ctx, !device->is_capturing, KR_ERR_STATE,
                    "%s: the library is capturing a decode step; choose the stream before the step", what))
        return false;
    const char *why = device->vtable->use_stream(device, stream);
    return kr_require(ctx, !why, KR_ERR_ARG, "%s: %s cannot use the stream: %s; it must be a stream of this device",
                      what, device->name, why);
}

kr_status kr_ctx_use_stream(kr_ctx *ctx, void *stream)
{
    if (!ctx) return KR_ERR_ARG;
    if (!kr_ctx_failed(ctx)) use_stream(ctx, "ctx.use_stream", stream);
    return ctx->status;
}

static bool check_allocator(kr_ctx *ctx, const kr_device_allocator *allocator)
{
    return !allocator || (kr_require(ctx, allocator->alloc && allocator->free, KR_ERR_ARG,
                                     "ctx: device_allocator.%s is NULL", allocator->alloc ? "free" : "alloc") &&
                          KR_RESERVED(ctx, "ctx", "kr_device_allocator", allocator));
}

bool kr_device_open(kr_ctx *ctx, const kr_ctx_options *options, const kr_kernels *last, uint64_t features)
{
    kr_device *device = ctx->device = kr_memory_alloc_zeroed(&ctx->memory, sizeof *device);
    if (!kr_require(ctx, device != NULL, KR_ERR_NOMEM, "ctx: no memory for the kernel table")) return false;
    if (!kr_backends_load(ctx, options->backend)) return false;
    kr_kernels_merge(&device->kernels, last, features);
    device->library = device->kernels;
    kr_backends_overlay_cpu(ctx, &device->kernels, last);
    device->host = &device->kernels;
    memcpy(device->name, "cpu", sizeof "cpu");
    device->allocator = options->device_allocator;
    return check_allocator(ctx, device->allocator) && open_asked(ctx, options->device) &&
           kr_require(ctx, device->vtable || !device->allocator, KR_ERR_UNSUPPORTED,
                      "ctx: device_allocator is set, but the device cpu has host memory only: set allocator") &&
           use_stream(ctx, "ctx", options->stream);
}

kr_status kr_ctx_wait(kr_ctx *ctx)
{
    if (ctx && ctx->device && !ctx->broken) kr_wait(ctx);
    return kr_ctx_status(ctx);
}

kr_memory_stats kr_ctx_memory_stats(const kr_ctx *ctx, kr_memory_kind kind)
{
    if (ctx && kind == KR_MEMORY_HOST) return ctx->memory.stats;
    if (ctx && ctx->device && kind == KR_MEMORY_DEVICE) return ctx->device->device_memory.stats;
    if (ctx && ctx->device && kind == KR_MEMORY_PINNED) return ctx->device->shared.stats;
    return (kr_memory_stats){ 0 };
}
