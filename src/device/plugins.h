/* plugins.h - devices in shared objects of their own: libkrait_cuda.so, for a library that was built without CUDA.
 *
 * A plug-in is compiled from the sources that would otherwise be part of the library (device_cuda.c, kernels/cuda), with
 * plugin_entry.c. Both sides share internal structs, such as kr_device, so both must come from the same sources: they compare
 * KR_PLUGIN_INTERFACE, a hash of the headers that plug-ins are compiled with (cmake/device_plugin.cmake). A plug-in links nothing
 * of the library; it calls the functions of kr_plugin_host. */
#ifndef KR_DEVICE_PLUGINS_H
#define KR_DEVICE_PLUGINS_H

#include "device/device.h"

#include "base/text_buffer.h"

/* The function that a plug-in exports, by this name. */
#define KR_PLUGIN_ENTRY "krait_device"

/* The first fields of the two structs below. They are the same in all versions, because they are read before it is known that
 * the other fields are. */
typedef struct kr_plugin_head {
    size_t size;           /* of the whole struct */
    const char *interface; /* KR_PLUGIN_INTERFACE: "0.3.0-1a2b3c4d", the version and the hash */
} kr_plugin_head;

/* What a plug-in calls of the library. */
typedef struct kr_plugin_host {
    kr_plugin_head head;
    bool (*fail)(kr_ctx *ctx, kr_status status, const char *text); /* kr_fail with "%s" */
    void (*memory_init)(kr_memory *memory, const kr_allocator *hooks);
    void *(*memory_alloc_zeroed)(kr_memory *memory, size_t bytes);
    void (*memory_free)(kr_memory *memory, void *p, size_t bytes);
} kr_plugin_host;

/* A plug-in: one kind of device. */
typedef struct kr_plugin {
    kr_plugin_head head;
    const kr_device_kind *kind;
} kr_plugin;

/* Type of krait_device. The host stays valid; a plug-in may use it if the interfaces are equal. The result is valid as long as
 * the object is loaded. */
typedef const kr_plugin *kr_plugin_entry_fn(const kr_plugin_host *host);

/* The n-th kind of device that was loaded; NULL past the last. */
const kr_device_kind *kr_plugin_nth(int n);

/* The loaded kind of that name; NULL: none. */
const kr_device_kind *kr_plugin_named(const char *name);

/* The file that a loaded kind comes from; NULL: it was not loaded. */
const char *kr_plugin_file(const kr_device_kind *kind);

/* Loads "cuda" for a library that was built without it, unless it is loaded: the plug-in that KR_CUDA_PLUGIN names, or
 * libkrait_cuda.so where the system looks for libraries. KR_OK, or an error, which `why` explains: KR_ERR_IO if the file is
 * missing or cannot be loaded. */
kr_status kr_plugin_load_cuda(kr_text_buffer *why);

#endif
