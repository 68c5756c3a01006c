/* device.h - a device: its merged kernel table, and how a kernel is run on it. */
#ifndef KR_DEVICE_DEVICE_H
#define KR_DEVICE_DEVICE_H

#include "base/ctx.h"
#include "kernels/kernels.h"

typedef struct kr_device {
    kr_kernels kernels;
} kr_device;

/* Index of the slot that computes in this type: KR_REAL_F32 or KR_REAL_F64. */
int kr_real_of(kr_dtype dtype);

/* Runs a kernel: hands it the pool and the scratch that it asks for. False when the scratch cannot be had.
 *
 *   kr_binary_args args = { ... };
 *   if (!KR_RUN(ctx, mul[kr_real_of(y->dtype)], &args)) return NULL;
 */
#define KR_RUN(ctx, slot, args)                                                                                        \
    ((args)->exec.pool = (ctx)->pool,                                                                                  \
     kr_exec_begin((ctx), &(args)->exec,                                                                               \
                   (ctx)->device->kernels.slot.scratch ? (ctx)->device->kernels.slot.scratch(args) : 0)                \
         ? ((ctx)->device->kernels.slot.run(args), kr_exec_end(ctx))                                                   \
         : false)

bool kr_exec_begin(kr_ctx *ctx, kr_exec *exec, size_t scratch_bytes);
bool kr_exec_end(kr_ctx *ctx); /* true */

#endif
