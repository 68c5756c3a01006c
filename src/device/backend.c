/* backend.c - backends: registered by the program or loaded from shared objects, checked, laid over the tables of kernels. */
#include "device/backend_impl.h"

#include "base/cpu.h"
#include "base/pool.h"
#include "base/sized.h"
#include "kernels/select.h"

#include <krait/backend/kernels.h>

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { REGISTERED_MOST = 16, NAME_BYTES = 32, PATH_MOST = 1024 };

/* ---- services ---- */

extern const kr_kernels kr_ref_kernels;

static void parallel(const kr_exec *exec, int64_t n, kr_backend_task_fn *task, void *user)
{
    kr_pool_run(exec->pool, n, task, user);
}

static int threads(const kr_exec *exec)
{
    return kr_pool_size(exec->pool);
}

const kr_backend_host *kr_backend_services(void)
{
    static const kr_backend_host host = { .size = sizeof(kr_backend_host),
                                          .version = KR_BACKEND_VERSION,
                                          .contract = KR_KERNEL_CONTRACT,
                                          .reference = &kr_ref_kernels,
                                          .parallel = parallel,
                                          .threads = threads };
    return &host;
}

/* ---- checks ---- */

static bool check_name(kr_ctx *ctx, const char *op, const char *name)
{
    const bool ok = name && name[0] >= 'a' && name[0] <= 'z' && strlen(name) < NAME_BYTES &&
                    name[strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_")] == '\0';
    return kr_require(
               ctx, ok, KR_ERR_ARG,
               "%s: name is %.60s, but must be from 1 to %d of the characters a-z, 0-9 and _, the first a letter", op,
               name ? name : "NULL", NAME_BYTES - 1) &&
           kr_require(ctx, strcmp(name, "cpu") != 0 && strcmp(name, "cuda") != 0 && !kr_kernels_named(name), KR_ERR_ARG,
                      "%s: the name %s belongs to a part of the library; choose another", op, name);
}

/* The scratch function of a slot says what its own `run` needs. */
static const char *scratch_without_run(const kr_kernels *set)
{
#define KR_KERNEL(kernel, args)                                                                                        \
    for (int real = 0; real < KR_NREALS; real++)                                                                       \
        if (set->kernel[real].scratch && !set->kernel[real].run) return #kernel;
#define KR_KERNEL_ANY(kernel, args)                                                                                    \
    if (set->kernel.scratch && !set->kernel.run) return #kernel;
#include "kernels/kernels.def"
#undef KR_KERNEL
#undef KR_KERNEL_ANY
    return NULL;
}

static bool check_kernels(kr_ctx *ctx, const char *op, const kr_backend_info *info)
{
    const char *slot = info->kernels ? scratch_without_run(info->kernels) : NULL;
    return kr_require(ctx, info->kernels || info->device, KR_ERR_ARG, "%s: %s: kernels and device are both NULL", op,
                      info->name) &&
           kr_require(ctx, !slot, KR_ERR_ARG, "%s: %s: the kernel %s has a scratch function, but no run", op,
                      info->name, slot) &&
           kr_require(ctx, !info->kernels || kr_kernels_runnable(info->kernels, kr_cpu_features()), KR_ERR_UNSUPPORTED,
                      "%s: %s: kernels.needs names features that this processor lacks", op, info->name);
}

static bool check_device(kr_ctx *ctx, const char *op, const kr_backend_info *info)
{
    const kr_backend_device *d = info->device;
    if (!d) return true;
    if (!kr_require(ctx, d->size == sizeof *d, KR_ERR_UNSUPPORTED,
                    "%s: %s: device.size is %zu, but the struct has %zu bytes here; build the backend with the headers "
                    "of this library, %s",
                    op, info->name, d->size, sizeof *d, kr_version()))
        return false;
    const char *missing = !d->open       ? "open"
                          : !d->close    ? "close"
                          : !d->alloc    ? "alloc"
                          : !d->free     ? "free"
                          : !d->upload   ? "upload"
                          : !d->download ? "download"
                          : !d->copy     ? "copy"
                          : !d->zero     ? "zero"
                          : !d->wait     ? "wait"
                                         : NULL;
    return kr_require(ctx, !missing, KR_ERR_ARG, "%s: %s: device.%s is NULL", op, info->name, missing) &&
           kr_require(ctx, !d->alloc_shared == !d->free_shared, KR_ERR_ARG,
                      "%s: %s: device.alloc_shared and device.free_shared: one is NULL, the other is not", op,
                      info->name);
}

static bool check_info(kr_ctx *ctx, const char *op, const kr_backend_info *info)
{
    return kr_require(ctx, info->size == sizeof *info && info->version == KR_BACKEND_VERSION, KR_ERR_UNSUPPORTED,
                      "%s: the backend has version %d and a kr_backend_info of %zu bytes, but this library has version "
                      "%d and %zu bytes; build the backend with the headers of this library, %s",
                      op, info->version, info->size, KR_BACKEND_VERSION, sizeof *info, kr_version()) &&
           kr_require(ctx, info->contract == KR_KERNEL_CONTRACT && info->kernels_bytes == sizeof(kr_kernels),
                      KR_ERR_UNSUPPORTED,
                      "%s: the backend is for kernels of contract %u, but this library has contract %u; build the "
                      "backend with the headers of this library, %s",
                      op, (unsigned)info->contract, (unsigned)KR_KERNEL_CONTRACT, kr_version()) &&
           check_name(ctx, op, info->name) && check_kernels(ctx, op, info) && check_device(ctx, op, info);
}

/* ---- registered ones ---- */

static const kr_backend_info *registered[REGISTERED_MOST];
static atomic_int count;
static atomic_flag is_busy = ATOMIC_FLAG_INIT;

const kr_backend_info *kr_backend_nth(int n)
{
    return n >= 0 && n < atomic_load_explicit(&count, memory_order_acquire) ? registered[n] : NULL;
}

static const kr_backend_info *registered_as(const char *name, size_t length)
{
    const kr_backend_info *info;
    for (int n = 0; (info = kr_backend_nth(n)); n++)
        if (strlen(info->name) == length && memcmp(info->name, name, length) == 0) return info;
    return NULL;
}

static void append(kr_ctx *ctx, const char *op, const kr_backend_info *info)
{
    const int n = atomic_load_explicit(&count, memory_order_relaxed);
    const kr_backend_info *other = registered_as(info->name, strlen(info->name));
    if (other == info ||
        !kr_require(ctx, !other, KR_ERR_ARG, "%s: the name %s belongs to another backend; choose another", op,
                    info->name) ||
        !kr_require(ctx, n < REGISTERED_MOST, KR_ERR_UNSUPPORTED,
                    "%s: %s would be backend number %d, but at most %d can be registered", op, info->name, n + 1,
                    REGISTERED_MOST))
        return;
    registered[n] = info;
    atomic_store_explicit(&count, n + 1, memory_order_release);
}

kr_status kr_backend_register(kr_ctx *ctx, const kr_backend_info *info)
{
    static const char op[] = "backend.register";
    if (kr_ctx_failed(ctx)) return kr_ctx_status(ctx);
    if (!kr_require(ctx, info != NULL, KR_ERR_ARG, "%s: info is NULL", op) || !check_info(ctx, op, info))
        return ctx->status;
    while (atomic_flag_test_and_set_explicit(&is_busy, memory_order_acquire)) continue; /* for a few stores */
    append(ctx, op, info);
    atomic_flag_clear_explicit(&is_busy, memory_order_release);
    return ctx->status;
}

/* ---- those of a context ---- */

/* dlsym returns a function as an object pointer. */
static kr_backend_entry_fn *entry_of(void *object)
{
    void *found = dlsym(object, KR_BACKEND_ENTRY);
    kr_backend_entry_fn *entry = NULL;
    memcpy(&entry, &found, sizeof entry);
    return entry;
}

static const kr_backend_info *load(kr_ctx *ctx, const char *path, void **object)
{
    char op[PATH_MOST + 16];
    snprintf(op, sizeof op, "backend %s", path);
    *object = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!*object) {
        const char *why = dlerror();
        kr_fail(ctx, KR_ERR_IO, "%s: %s", op, why ? why : "cannot be loaded");
        return NULL;
    }
    kr_backend_entry_fn *entry = entry_of(*object);
    if (!kr_require(ctx, entry != NULL, KR_ERR_FORMAT, "%s: it exports no function %s, so it is no backend", op,
                    KR_BACKEND_ENTRY))
        return NULL;
    const kr_backend_info *info = entry(kr_backend_services());
    return kr_require(
               ctx, info != NULL, KR_ERR_UNSUPPORTED,
               "%s: it does not work with version %d of the backend interface and contract %u, those of krait %s", op,
               KR_BACKEND_VERSION, (unsigned)KR_KERNEL_CONTRACT, kr_version()) &&
                   check_info(ctx, op, info)
               ? info
               : NULL;
}

static bool take_one(kr_ctx *ctx, const char *source, const char *name, size_t length)
{
    kr_device *device = ctx->device;
    char text[PATH_MOST];
    if (!kr_require(ctx, length > 0 && length < sizeof text, KR_ERR_ARG,
                    "ctx: %s has an empty name, or one of more than %d bytes", source, PATH_MOST - 1) ||
        !kr_require(ctx, device->nbackends < KR_BACKENDS_MOST, KR_ERR_ARG, "ctx: %s names more than %d backends",
                    source, KR_BACKENDS_MOST))
        return false;
    memcpy(text, name, length);
    text[length] = '\0';
    kr_backend_use *use = &device->backends[device->nbackends];
    *use = (kr_backend_use){ .info = NULL };
    if (strchr(text, '/')) use->info = load(ctx, text, &use->object);
    else if (!(use->info = registered_as(text, length)))
        kr_fail(ctx, KR_ERR_ARG,
                "ctx: %s names the backend %.60s, which is not registered; a shared object is named by a path with a "
                "'/'",
                source, text);
    if (use->info || use->object) device->nbackends++; /* also one that is to be closed after an error */
    return use->info != NULL;
}

bool kr_backends_load(kr_ctx *ctx, const char *asked)
{
    const char *source = "backend";
    if (!asked) {
        asked = getenv("KR_BACKEND");
        source = "KR_BACKEND";
    }
    while (asked && *asked) {
        const size_t length = strcspn(asked, ",");
        if (!take_one(ctx, source, asked, length)) return false;
        asked += length;
        if (*asked == ',' && !kr_require(ctx, asked[1] != '\0', KR_ERR_ARG, "ctx: %s ends with a comma", source))
            return false;
        asked += *asked == ',';
    }
    return true;
}

void kr_backends_close(kr_device *device)
{
    for (int i = device->nbackends - 1; i >= 0; i--)
        if (device->backends[i].object) dlclose(device->backends[i].object);
    device->nbackends = 0;
}

const kr_backend_info *kr_backend_with_device(const kr_device *device, const char *name, size_t length)
{
    for (int i = 0; i < device->nbackends; i++) {
        const kr_backend_info *info = device->backends[i].info;
        if (info->device && strlen(info->name) == length && memcmp(info->name, name, length) == 0) return info;
    }
    const kr_backend_info *info = registered_as(name, length);
    return info && info->device ? info : NULL;
}

/* ---- tables ---- */

static void lay_over(kr_ctx *ctx, kr_backend_use *use, kr_kernels *table)
{
    const int replaced = kr_kernels_overlay(table, use->info->kernels);
    use->is_used = use->is_used || replaced > 0;
    kr_note(ctx, KR_LOG_INFO, "backend %s: %d kernels of %s replaced", use->info->name, replaced, table->name);
}

/* Is a set of that name among those up to `last`? */
static bool is_up_to(const char *name, const kr_kernels *last)
{
    for (int n = 0; kr_kernels_nth(n); n++) {
        if (strcmp(kr_kernels_nth(n)->name, name) == 0) return true;
        if (kr_kernels_nth(n) == last) break;
    }
    return false;
}

void kr_backends_overlay_cpu(kr_ctx *ctx, kr_kernels *table, const kr_kernels *last)
{
    for (int i = 0; i < ctx->device->nbackends; i++) {
        kr_backend_use *use = &ctx->device->backends[i];
        const char *target = use->info->target;
        const bool is_cpu = target ? strcmp(target, "cpu") == 0 || is_up_to(target, last) : !use->info->device;
        if (is_cpu && use->info->kernels) lay_over(ctx, use, table);
    }
}

/* Does it replace a kernel that a device also runs for lists of arguments, past its slot (kr_device_lists)? */
static bool replaces_lists(const kr_kernels *set)
{
    const bool in_f32 = set->adamw[KR_REAL_F32].run || set->decode_linear[KR_REAL_F32].run ||
                        set->decode_ssd[KR_REAL_F32].run || set->embedding[KR_REAL_F32].run;
    return in_f32 || set->adamw[KR_REAL_F64].run || set->squares.run;
}

void kr_backends_overlay_device(kr_ctx *ctx, const char *kind)
{
    for (int i = 0; i < ctx->device->nbackends; i++) {
        kr_backend_use *use = &ctx->device->backends[i];
        if (use->info->target && strcmp(use->info->target, kind) == 0 && use->info->kernels) {
            lay_over(ctx, use, &ctx->device->kernels);
            if (replaces_lists(use->info->kernels)) ctx->device->lists = NULL;
        }
        if (use->info->device && strcmp(use->info->name, kind) == 0) use->is_used = true;
    }
}

kr_backend_stats kr_ctx_backend_stats(const kr_ctx *ctx)
{
    kr_backend_stats stats = { .n_backends = 0 };
    const kr_device *device = ctx ? ctx->device : NULL;
    if (!device) return stats;
    for (int i = 0; i < device->nbackends; i++) stats.n_backends += device->backends[i].is_used;
    stats.fallback_calls = device->fallback.calls;
    stats.fallback_bytes = device->fallback.bytes;
    return stats;
}
