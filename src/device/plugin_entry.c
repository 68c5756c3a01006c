/* plugin_entry.c - the part of a plug-in that is not part of the library: its exported function, and the library's functions
 * that its device calls, through the table of the host. KR_PLUGIN_KIND is the kr_device_kind of the plug-in. */
#include "device/plugins.h"

#include <stdio.h>
#include <string.h>

extern const kr_device_kind KR_PLUGIN_KIND;

static const kr_plugin_host *library;

bool kr_fail(kr_ctx *ctx, kr_status status, const char *format, ...)
{
    char text[sizeof ctx->message];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    return library->fail(ctx, status, text);
}

void kr_memory_init(kr_memory *memory, const kr_allocator *hooks)
{
    library->memory_init(memory, hooks);
}

void *kr_memory_alloc_zeroed(kr_memory *memory, size_t bytes)
{
    return library->memory_alloc_zeroed(memory, bytes);
}

void kr_memory_free(kr_memory *memory, void *p, size_t bytes)
{
    library->memory_free(memory, p, bytes);
}

kr_plugin_entry_fn krait_device;

__attribute__((visibility("default"))) const kr_plugin *krait_device(const kr_plugin_host *host)
{
    static const kr_plugin plugin = { { sizeof plugin, KR_PLUGIN_INTERFACE }, &KR_PLUGIN_KIND };
    if (strcmp(host->head.interface, KR_PLUGIN_INTERFACE) == 0) library = host;
    return &plugin;
}
