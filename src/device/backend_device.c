/* backend_device.c - a device whose memory and queue are functions of a backend. */
#include "device/backend_impl.h"

#include <stdio.h>
#include <string.h>

/* A block of the device's memory. */
typedef struct device_block {
    char *data;
    size_t bytes;
} device_block;

typedef struct outside {
    const kr_backend_device *verbs;
    void *handle;
    int number;
    kr_memory *host;
    device_block *blocks; /* in order of address */
    int64_t nblocks, capacity;
    const char *trouble; /* of a function that cannot fail here; NULL: none */
} outside;

/* ---- blocks ---- */

/* The number of blocks that begin at p or before it. */
static int64_t blocks_up_to(const outside *o, const void *p)
{
    int64_t low = 0, high = o->nblocks;
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (o->blocks[middle].data <= (const char *)p) low = middle + 1;
        else high = middle;
    }
    return low;
}

static const device_block *block_of(const outside *o, const void *p)
{
    const int64_t n = blocks_up_to(o, p);
    const device_block *b = n ? &o->blocks[n - 1] : NULL;
    return b && (const char *)p < b->data + b->bytes ? b : NULL;
}

char *kr_backend_device_block(const kr_device *device, const void *p, size_t *bytes)
{
    const device_block *b = block_of(device->handle, p);
    *bytes = b ? b->bytes : 0;
    return b ? b->data : NULL;
}

static bool reserve_block(outside *o)
{
    if (o->nblocks < o->capacity) return true;
    const int64_t capacity = o->capacity ? 2 * o->capacity : 64;
    device_block *blocks = kr_memory_alloc(o->host, (size_t)capacity * sizeof *blocks);
    if (!blocks) return false;
    if (o->nblocks) memcpy(blocks, o->blocks, (size_t)o->nblocks * sizeof *blocks);
    if (o->blocks) kr_memory_free(o->host, o->blocks, (size_t)o->capacity * sizeof *blocks);
    o->blocks = blocks;
    o->capacity = capacity;
    return true;
}

/* There is capacity for it. */
static void add_block(outside *o, char *p, size_t bytes)
{
    const int64_t at = blocks_up_to(o, p);
    memmove(o->blocks + at + 1, o->blocks + at, (size_t)(o->nblocks - at) * sizeof *o->blocks);
    o->blocks[at] = (device_block){ p, bytes };
    o->nblocks++;
}

static void remove_block(outside *o, const void *p)
{
    const int64_t at = blocks_up_to(o, p) - 1;
    o->nblocks--;
    memmove(o->blocks + at, o->blocks + at + 1, (size_t)(o->nblocks - at) * sizeof *o->blocks);
}

static void *device_alloc(void *user, size_t bytes, size_t align)
{
    outside *o = user;
    char *p = reserve_block(o) ? o->verbs->alloc(o->handle, bytes ? bytes : 1, align) : NULL;
    if (p) add_block(o, p, bytes ? bytes : 1);
    return p;
}

static void device_free(void *user, void *p)
{
    outside *o = user;
    remove_block(o, p);
    o->verbs->free(o->handle, p);
}

/* ---- memory of other contexts ---- */

static bool may_share(const kr_device *device, const kr_device *owner)
{
    const outside *o = device->handle, *other = owner->handle;
    return o->verbs == other->verbs && o->number == other->number && o->verbs->free_detached;
}

static bool import(kr_device *device, void *p, size_t bytes)
{
    outside *o = device->handle;
    if (!reserve_block(o)) return false;
    add_block(o, p, bytes);
    return true;
}

static void forget(kr_device *device, const void *p)
{
    remove_block(device->handle, p);
}

static void detach(const kr_device *device, kr_memory *branch)
{
    const outside *o = device->handle;
    branch->hooks = (kr_allocator){ NULL, o->verbs->free_detached, o->verbs->user };
}

static void *shared_alloc(void *user, size_t bytes, size_t align)
{
    const outside *o = user;
    return o->verbs->alloc_shared(o->handle, bytes, align);
}

static void shared_free(void *user, void *p)
{
    const outside *o = user;
    o->verbs->free_shared(o->handle, p);
}

/* ---- operations ---- */

static bool holds(const kr_device *device, const void *p)
{
    return block_of(device->handle, p) != NULL;
}

static const char *upload(kr_device *device, void *to, const void *host, size_t bytes)
{
    const outside *o = device->handle;
    return o->verbs->upload(o->handle, to, host, bytes);
}

static const char *download(kr_device *device, void *host, const void *from, size_t bytes)
{
    const outside *o = device->handle;
    return o->verbs->download(o->handle, host, from, bytes);
}

static const char *copy(kr_device *device, void *to, const void *from, size_t bytes)
{
    const outside *o = device->handle;
    return o->verbs->copy(o->handle, to, from, bytes);
}

static void zero(void *user, void *p, size_t bytes)
{
    outside *o = user;
    const char *why = o->verbs->zero(o->handle, p, bytes);
    if (why && !o->trouble) o->trouble = why;
}

static const char *trouble_of(outside *o)
{
    const char *why = o->trouble;
    o->trouble = NULL;
    return why;
}

static const char *wait(kr_device *device)
{
    outside *o = device->handle;
    const char *why = trouble_of(o);
    return why ? why : o->verbs->wait(o->handle);
}

static const char *record_event(kr_device *device, int event)
{
    (void)device, (void)event;
    return NULL;
}

static const char *wait_event(kr_device *device, int event)
{
    (void)event;
    return wait(device);
}

static const char *check(kr_device *device)
{
    outside *o = device->handle;
    const char *why = device->fallback.trouble ? device->fallback.trouble : trouble_of(o);
    return why || !o->verbs->check ? why : o->verbs->check(o->handle);
}

static bool memory_info(const kr_device *device, size_t *free, size_t *all)
{
    const outside *o = device->handle;
    return o->verbs->memory_info && o->verbs->memory_info(o->handle, free, all);
}

static void close(kr_device *device)
{
    outside *o = device->handle;
    kr_memory *host = o->host;
    o->verbs->close(o->handle);
    if (o->blocks) kr_memory_free(host, o->blocks, (size_t)o->capacity * sizeof *o->blocks);
    kr_memory_free(host, o, sizeof *o);
}

static const kr_device_ops vtable = { .holds = holds,
                                      .upload = upload,
                                      .download = download,
                                      .copy = copy,
                                      .wait = wait,
                                      .record_event = record_event,
                                      .wait_event = wait_event,
                                      .check = check,
                                      .memory_info = memory_info,
                                      .close = close,
                                      .detach = detach,
                                      .may_share = may_share,
                                      .import = import,
                                      .forget = forget };

bool kr_backend_device_open(kr_ctx *ctx, kr_device *device, const kr_backend_info *info, int number)
{
    const char *name = NULL;
    if (!kr_require(ctx, !device->allocator, KR_ERR_UNSUPPORTED,
                    "ctx: device %s:%d: device_allocator is set, but a backend's device has its own memory", info->name,
                    number))
        return false;
    outside *o = kr_memory_alloc_zeroed(&ctx->memory, sizeof *o);
    if (!kr_require(ctx, o != NULL, KR_ERR_NOMEM, "ctx: device %s:%d: no memory for a device", info->name, number))
        return false;
    o->verbs = info->device;
    o->number = number;
    o->host = &ctx->memory;
    const char *why = o->verbs->open(o->verbs->user, number, &o->handle, &name);
    if (why) {
        kr_memory_free(&ctx->memory, o, sizeof *o);
        return kr_fail(ctx, KR_ERR_DEVICE, "ctx: device %s:%d: %s", info->name, number, why);
    }
    device->vtable = &vtable;
    device->handle = o;
    device->own = o->handle;
    device->fallback.is_host_visible = o->verbs->is_host_visible;
    kr_memory_init(&device->device_memory, &(kr_allocator){ device_alloc, device_free, o });
    device->device_memory.zero = zero;
    kr_memory_init(&device->shared,
                   o->verbs->alloc_shared ? &(kr_allocator){ shared_alloc, shared_free, o } : &ctx->memory.hooks);
    if (info->kernels && !info->target) device->kernels = *info->kernels;
    else memset(&device->kernels, 0, sizeof device->kernels);
    device->kernels.name = info->name;
    snprintf(device->name, sizeof device->name, "%s:%d %s", info->name, number, name ? name : "");
    return true;
}
