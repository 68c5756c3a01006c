/* engine_plugin.c - loads an engine from a shared object, libkrait_NAME.so: next to the library or the program, in
 * ../lib of it, or where the system looks for libraries. KR_NAME_PLUGIN (KR_MPI_PLUGIN) is its path.
 */
#define _GNU_SOURCE
#include "comm/comm_impl.h"
#include "comm/engine.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PATH = 1024 };

/* dlsym returns a function as an object pointer. */
static kr_engine_entry_fn *entry_of(void *object)
{
    void *found = dlsym(object, KR_ENGINE_ENTRY);
    kr_engine_entry_fn *entry = NULL;
    memcpy(&entry, &found, sizeof entry);
    return entry;
}

/* The folder of the library or program that this code is in, with its '/'; "" if unknown. */
static void own_folder(char *folder, size_t bytes)
{
    static const char here;
    Dl_info info;
    folder[0] = '\0';
    if (dladdr(&here, &info) == 0 || !info.dli_fname || !strchr(info.dli_fname, '/')) {
        const ssize_t length = readlink("/proc/self/exe", folder, bytes - 1);
        folder[length > 0 ? length : 0] = '\0';
    } else snprintf(folder, bytes, "%s", info.dli_fname);
    char *slash = strrchr(folder, '/');
    if (slash) slash[1] = '\0';
    else folder[0] = '\0';
}

/* MPI opens components, which need its symbols: they are global. */
static void *load(const char *name, char *path, size_t bytes)
{
    char folder[PATH - 64], variable[64];
    snprintf(variable, sizeof variable, "KR_%s_PLUGIN", name);
    for (char *c = variable; *c; c++)
        if (*c >= 'a' && *c <= 'z') *c = (char)(*c - 'a' + 'A');
    const char *given = getenv(variable);
    own_folder(folder, sizeof folder);
    snprintf(path, bytes, "%slibkrait_%s.so", folder, name);
    if (given && *given) snprintf(path, bytes, "%s", given);
    else if (access(path, R_OK) != 0) {
        snprintf(path, bytes, "%s../lib/libkrait_%s.so", folder, name);
        if (access(path, R_OK) != 0) snprintf(path, bytes, "libkrait_%s.so", name);
    }
    return dlopen(path, RTLD_NOW | RTLD_GLOBAL);
}

const kr_engine *kr_engine_load(kr_ctx *ctx, const char *name, void **library)
{
    char tried[PATH] = "";
    *library = load(name, tried, sizeof tried);
    if (!*library) {
        const char *why = dlerror();
        kr_fail(
            ctx, KR_ERR_UNSUPPORTED,
            "comm.create: engine %s: its plug-in cannot be loaded: %.400s; install libkrait_%s.so next to the library "
            "(docs/distributed.md), or use engine tcp",
            name, why ? why : tried, name);
        return NULL;
    }
    kr_engine_entry_fn *entry = entry_of(*library);
    const kr_engine *engine = entry ? entry() : NULL;
    if (!kr_require(ctx, engine, KR_ERR_FORMAT, "comm.create: engine %s: %s exports no function %s", name, tried,
                    KR_ENGINE_ENTRY) ||
        !kr_require(
            ctx, engine->version == KR_ENGINE_VERSION, KR_ERR_UNSUPPORTED,
            "comm.create: engine %s: the plug-in has version %d, but this library needs version %d; build both from "
            "one source tree",
            name, engine->version, KR_ENGINE_VERSION))
        return NULL;
    return engine;
}
