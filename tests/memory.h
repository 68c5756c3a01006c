/* memory.h - all that a context has of memory, on any device, for tests that count it. */
#ifndef KR_TESTS_MEMORY_H
#define KR_TESTS_MEMORY_H

#include "base/ctx_impl.h"
#include "device/device.h"

/* Of the context's own memory and of the device's; what they share is left out. */
static inline kr_memory_stats all_memory(const kr_ctx *of)
{
    kr_memory_stats all = kr_ctx_memory(of);
    const kr_memory_stats device = kr_ctx_device_memory(of);
    all.live_bytes += device.live_bytes;
    all.peak_bytes += device.peak_bytes;
    all.live_blocks += device.live_blocks;
    all.total_blocks += device.total_blocks;
    return all;
}

/* Frees the scratch of kernels, which a context keeps. */
static inline void drop_scratch(kr_ctx *of)
{
    kr_arena_deinit(&of->scratch);
    if (kr_ctx_on_device(of)) kr_arena_deinit(&of->device->scratch);
}

#endif
