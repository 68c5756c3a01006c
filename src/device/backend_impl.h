/* backend_impl.h - backends of a context: kernels that replace those of the library, and devices from outside. */
#ifndef KR_DEVICE_BACKEND_IMPL_H
#define KR_DEVICE_BACKEND_IMPL_H

#include "device/device.h"

#include <krait/backend.h>

/* Finds or loads the backends that `asked` names (NULL: KR_BACKEND), into ctx->device. False after an error. */
bool kr_backends_load(kr_ctx *ctx, const char *asked);

/* Closes their shared objects. */
void kr_backends_close(kr_device *device);

/* Replaces kernels of the CPU's table, whose best instruction set is `last`; and of the table of a kind of device. */
void kr_backends_overlay_cpu(kr_ctx *ctx, kr_kernels *table, const kr_kernels *last);
void kr_backends_overlay_device(kr_ctx *ctx, const char *kind);

/* A backend with a device of this name: one that the context uses, or that is registered. NULL: none. */
const kr_backend_info *kr_backend_with_device(const kr_device *device, const char *name, size_t length);

/* The n-th registered backend; NULL past the last. */
const kr_backend_info *kr_backend_nth(int n);

/* kr_device_kind.open of a backend's device (backend_device.c). */
bool kr_backend_device_open(kr_ctx *ctx, kr_device *device, const kr_backend_info *info, int number);

/* The block of device memory that p is in: its start and size; NULL: none. For kernels that fall back. */
char *kr_backend_device_block(const kr_device *device, const void *p, size_t *bytes);

/* ---- kernels that a device lacks (fallback.c) ---- */

/* Empty slots of the device's table get functions that run the CPU's kernel. */
void kr_fallback_fill(kr_ctx *ctx);

/* Is the slot of that kernel, of which `run` is the function in f32, one of these? */
bool kr_fallback_is(const char *kernel, kr_any_fn *run);

/* Zeroes the padding of a struct. Compilers without the builtin leave it as it is (device/fallback.c). */
#ifdef __has_builtin
#if __has_builtin(__builtin_clear_padding)
#define KR_CLEAR_PADDING(x) __builtin_clear_padding(x)
#endif
#endif
#ifndef KR_CLEAR_PADDING
#define KR_CLEAR_PADDING(x) ((void)(x))
#endif

#endif
