/* fallback.c - kernels that a device lacks, run by the CPU.
 *
 * The operands of a kernel are pointers in its argument struct. A word of the struct that is an address in the device's
 * memory is such a pointer; sizes and factors are not, since no number that occurs there is an address. For each of them the
 * whole block of memory that it points into is downloaded, and the struct's copy points to that; after the kernel the
 * blocks that it has changed are uploaded. So strides and overlaps of operands do not matter. This is slow, and counted: a
 * device should have the kernels that its programs spend their time in.
 *
 * A word that has flags in its low bytes and padding above them may hold the rest of an old address there. So padding is
 * zeroed. Where the compiler cannot do that a block may be transferred for nothing, but the flags must not change: a copy
 * has the low 16 bits of the address that its block has.
 */
#include "device/backend_impl.h"

#include <string.h>

enum { ARGS_BYTES = 1024, OPERANDS_MOST = ARGS_BYTES / (int)sizeof(void *), LOW_BITS = 0xffff };

/* A block of device memory and its copy on the host: `host` is what the kernel works on, and as many bytes behind it have
 * what was downloaded. */
typedef struct shadow {
    char *device, *host;
    size_t bytes;
    void *allocated; /* of shadow_bytes; host lies in it */
} shadow;

typedef struct staging {
    kr_ctx *ctx;
    shadow shadows[OPERANDS_MOST];
    int count;
    bool is_full; /* there was no host memory */
} staging;

typedef void run_fn(const kr_kernels *host, const void *args);

/* ---- transfers ---- */

/* A block twice, and space to choose the low 16 bits of its address. */
static size_t shadow_bytes(size_t bytes)
{
    return 2 * bytes + LOW_BITS + 1;
}

static const char *add_shadow(staging *s, char *data, size_t bytes)
{
    kr_device *device = s->ctx->device;
    char *allocated = bytes <= SIZE_MAX / 2 - LOW_BITS ? kr_memory_alloc(&s->ctx->memory, shadow_bytes(bytes)) : NULL;
    if (!allocated) {
        device->fallback.refused = bytes;
        s->is_full = true;
        return NULL;
    }
    char *host = allocated + (((uintptr_t)data - (uintptr_t)allocated) & LOW_BITS);
    s->shadows[s->count++] = (shadow){ data, host, bytes, allocated };
    device->fallback.bytes += bytes;
    const char *why = device->vtable->download(device, host + bytes, data, bytes);
    if (!why) memcpy(host, host + bytes, bytes);
    return why;
}

/* *p <- the same place in the copy of its block, if it is in device memory. */
static const char *redirect(staging *s, char **p)
{
    size_t bytes;
    char *data = kr_backend_device_block(s->ctx->device, *p, &bytes);
    if (!data) return NULL;
    int i = 0;
    while (i < s->count && s->shadows[i].device != data) i++;
    const char *why = i < s->count ? NULL : add_shadow(s, data, bytes);
    if (!why && !s->is_full) *p = s->shadows[i].host + (*p - data);
    return why;
}

static const char *redirect_all(staging *s, char *args, size_t bytes)
{
    const char *why = NULL;
    for (size_t at = 0; !why && !s->is_full && at + sizeof(char *) <= bytes; at += sizeof(char *)) {
        char *p;
        memcpy(&p, args + at, sizeof p);
        if (!p || (uintptr_t)p % 2) continue; /* operands are aligned, to 2 bytes at least */
        why = redirect(s, &p);
        memcpy(args + at, &p, sizeof p);
    }
    return why;
}

/* What the kernel has changed is uploaded, and nothing else: other contexts may be reading shared weights. */
static const char *finish(staging *s, bool uploads)
{
    kr_device *device = s->ctx->device;
    const char *why = NULL;
    for (int i = 0; i < s->count; i++) {
        const shadow *x = &s->shadows[i];
        if (uploads && !why && memcmp(x->host, x->host + x->bytes, x->bytes) != 0) {
            why = device->vtable->upload(device, x->device, x->host, x->bytes);
            device->fallback.bytes += x->bytes;
        }
        kr_memory_free(&s->ctx->memory, x->allocated, shadow_bytes(x->bytes));
    }
    return why;
}

/* A kernel cannot fail: what goes wrong is an error in kr_exec_check, which follows it. */
static void fall_back(const kr_exec *exec, run_fn *run, const void *args, size_t bytes)
{
    _Alignas(16) char own[ARGS_BYTES];
    kr_ctx *ctx = exec->ctx;
    kr_device *device = ctx->device;
    staging s = { .ctx = ctx };
    device->fallback.calls++;
    const char *why = device->vtable->wait(device);
    memcpy(own, args, bytes);
    if (!why && !device->fallback.is_host_visible) why = redirect_all(&s, own, bytes);
    const bool runs = !why && !s.is_full;
    ((kr_exec *)(void *)own)->library = &device->processor_library;
    if (runs) run(device->host, own);
    const char *after = finish(&s, runs);
    if (!device->fallback.trouble) device->fallback.trouble = why ? why : after;
}

/* ---- functions for each slot ---- */

#define SLOT(name, slot, type)                                                                                         \
    static void run_##name(const kr_kernels *host, const void *args)                                                   \
    {                                                                                                                  \
        host->slot.run(args);                                                                                          \
    }                                                                                                                  \
    static void fall_back_##name(const type *args)                                                                     \
    {                                                                                                                  \
        _Static_assert(sizeof(type) <= ARGS_BYTES, "the arguments of " #name);                                         \
        type own = *args;                                                                                              \
        KR_CLEAR_PADDING(&own);                                                                                        \
        fall_back(&own.exec, run_##name, &own, sizeof own);                                                            \
    }                                                                                                                  \
    static size_t scratch_##name(const type *args)                                                                     \
    {                                                                                                                  \
        const kr_device *device = ((const kr_ctx *)args->exec.ctx)->device;                                            \
        type own = *args;                                                                                              \
        own.exec.library = &device->processor_library;                                                                 \
        return device->host->slot.scratch ? device->host->slot.scratch(&own) : 0;                                      \
    }
#define KR_KERNEL(name, type)                                                                                          \
    SLOT(name##_f32, name[KR_REAL_F32], type)                                                                          \
    SLOT(name##_f64, name[KR_REAL_F64], type)
#define KR_KERNEL_ANY(name, type) SLOT(name, name, type)
#include "kernels/kernels.def"
#undef KR_KERNEL
#undef KR_KERNEL_ANY
#undef SLOT

static const kr_kernels functions = {
#define KR_KERNEL(kernel, type)                                                                                        \
    .kernel = {                                                                                                        \
        [KR_REAL_F32] = { fall_back_##kernel##_f32, scratch_##kernel##_f32 },                                          \
        [KR_REAL_F64] = { fall_back_##kernel##_f64, scratch_##kernel##_f64 },                                          \
    },
#define KR_KERNEL_ANY(kernel, type) .kernel = { fall_back_##kernel, scratch_##kernel },
#include "kernels/kernels.def"
#undef KR_KERNEL
#undef KR_KERNEL_ANY
};

void kr_fallback_fill(kr_ctx *ctx)
{
    kr_kernels *table = &ctx->device->kernels;
    const kr_kernels *host = ctx->device->host;
#define SLOT(slot)                                                                                                     \
    if (!table->slot.run && host->slot.run) table->slot = functions.slot;
#define KR_KERNEL(kernel, type) SLOT(kernel[KR_REAL_F32]) SLOT(kernel[KR_REAL_F64])
#define KR_KERNEL_ANY(kernel, type) SLOT(kernel)
#include "kernels/kernels.def"
#undef KR_KERNEL
#undef KR_KERNEL_ANY
#undef SLOT
}

bool kr_fallback_is(const char *kernel, kr_any_fn *run)
{
    return run == kr_kernels_function(&functions, kernel);
}
