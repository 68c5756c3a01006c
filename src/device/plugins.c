/* plugins.c - loads plug-ins, and keeps the kinds of devices that they have until the process ends. */
#define _GNU_SOURCE /* dladdr, RTLD_NODELETE */
#include "device/plugins.h"

#include <krait/backend.h>

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PLUGINS_MOST = 8, PATH_MOST = 1024 };

/* ---- services ---- */

static bool fail(kr_ctx *ctx, kr_status status, const char *text)
{
    return kr_fail(ctx, status, "%s", text);
}

static const kr_plugin_host services = {
    { sizeof services, KR_PLUGIN_INTERFACE }, fail, kr_memory_init, kr_memory_alloc_zeroed, kr_memory_free
};

/* ---- loaded plug-ins ---- */

typedef struct loaded_plugin {
    const kr_device_kind *kind;
    char file[PATH_MOST];
} loaded_plugin;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of those who load */
static loaded_plugin plugins[PLUGINS_MOST];
static atomic_int count;

static const loaded_plugin *nth(int n)
{
    return n >= 0 && n < atomic_load_explicit(&count, memory_order_acquire) ? &plugins[n] : NULL;
}

static const loaded_plugin *named(const char *name)
{
    const loaded_plugin *plugin;
    for (int n = 0; (plugin = nth(n)); n++)
        if (strcmp(plugin->kind->name, name) == 0) return plugin;
    return NULL;
}

const kr_device_kind *kr_plugin_nth(int n)
{
    const loaded_plugin *plugin = nth(n);
    return plugin ? plugin->kind : NULL;
}

const kr_device_kind *kr_plugin_named(const char *name)
{
    const loaded_plugin *plugin = named(name);
    return plugin ? plugin->kind : NULL;
}

const char *kr_plugin_file(const kr_device_kind *kind)
{
    const loaded_plugin *plugin;
    for (int n = 0; (plugin = nth(n)); n++)
        if (plugin->kind == kind) return plugin->file;
    return NULL;
}

/* ---- loading ---- */

/* dlsym returns a function as an object pointer. */
static kr_plugin_entry_fn *entry_of(void *object)
{
    void *found = dlsym(object, KR_PLUGIN_ENTRY);
    kr_plugin_entry_fn *entry = NULL;
    memcpy(&entry, &found, sizeof entry);
    return entry;
}

/* What has the device already; NULL: nothing. */
static const char *source_of(const char *name)
{
    const loaded_plugin *plugin = named(name);
    return plugin ? plugin->file : kr_device_is_built_in(name) ? "the library itself" : NULL;
}

static void note_file(char *file, kr_plugin_entry_fn *entry, const char *path)
{
    Dl_info about;
    void *symbol;
    memcpy(&symbol, &entry, sizeof symbol);
    snprintf(file, PATH_MOST, "%s", dladdr(symbol, &about) && about.dli_fname ? about.dli_fname : path);
}

/* Adds the kind of an object, which stays loaded then. */
static kr_status add(void *object, const char *path, kr_text_buffer *why)
{
    kr_plugin_entry_fn *entry = entry_of(object);
    if (!entry) {
        kr_text_buffer_print(why, "%s: it exports no function %s, so it is no plug-in", path, KR_PLUGIN_ENTRY);
        return KR_ERR_FORMAT;
    }
    const kr_plugin *plugin = entry(&services);
    if (strcmp(plugin->head.interface, KR_PLUGIN_INTERFACE) != 0) {
        kr_text_buffer_print(
            why,
            "%s: it is a plug-in for krait %s, but this library is krait %s; install the same version of "
            "both, or build both from the same sources",
            path, plugin->head.interface, KR_PLUGIN_INTERFACE);
        return KR_ERR_UNSUPPORTED;
    }
    const kr_device_kind *kind = plugin->kind;
    const char *source = source_of(kind->name);
    if (source) {
        kr_text_buffer_print(why, "%s: the device %s is that of %s already", path, kind->name, source);
        return kr_plugin_file(kind) ? KR_END : KR_ERR_STATE;
    }
    const int n = atomic_load_explicit(&count, memory_order_relaxed);
    if (n == PLUGINS_MOST) {
        kr_text_buffer_print(why, "%s: %d plug-ins are loaded, and there can be no more", path, n);
        return KR_ERR_UNSUPPORTED;
    }
    plugins[n].kind = kind;
    note_file(plugins[n].file, entry, path);
    atomic_store_explicit(&count, n + 1, memory_order_release);
    return KR_OK;
}

/* KR_OK, KR_END if it was loaded before, or an error, and `why` says what is wrong. A file stays in the process, also when it
 * is refused: the CUDA runtime leaves functions behind that run when the process ends. */
static kr_status load(const char *path, kr_text_buffer *why)
{
    pthread_mutex_lock(&lock);
    void *object = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    const char *problem = object ? NULL : dlerror();
    kr_status status = KR_ERR_IO;
    if (object) status = add(object, path, why);
    else kr_text_buffer_print(why, "%s", problem ? problem : path);
    if (object && status != KR_OK) dlclose(object);
    pthread_mutex_unlock(&lock);
    return status;
}

kr_status kr_device_load(kr_ctx *ctx, const char *path)
{
    static const char op[] = "device.load";
    if (kr_ctx_failed(ctx)) return kr_ctx_status(ctx);
    if (!kr_require(ctx, path && *path, KR_ERR_ARG, "%s: path is %s", op, path ? "empty" : "NULL")) return ctx->status;
    char text[PATH_MOST];
    kr_text_buffer why = kr_text_buffer_of(text, sizeof text);
    const kr_status status = load(path, &why);
    if (status != KR_OK && status != KR_END) kr_fail(ctx, status, "%s: %s", op, text);
    return ctx->status;
}

kr_status kr_plugin_load_cuda(kr_text_buffer *why)
{
    if (kr_plugin_named("cuda")) return KR_OK;
    const char *path = getenv("KR_CUDA_PLUGIN");
    const kr_status status = load(path && *path ? path : "libkrait_cuda.so", why);
    return status == KR_END ? KR_OK : status;
}
