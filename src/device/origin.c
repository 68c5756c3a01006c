/* origin.c - which kernel set a slot of the merged table came from. */
#include "device/device.h"
#include "kernels/select.h"

#include <string.h>

/* The name of the set whose slot is the one in the table; sets are searched from the best to the reference. */
#define ORIGIN(kernel, slot)                                                                                           \
    if (on_device && strcmp(name, #kernel) == 0) return table->slot.run ? table->name : NULL;                          \
    if (strcmp(name, #kernel) == 0)                                                                                    \
        for (int n = last; n >= 0; n--)                                                                                \
            if (kr_kernels_nth(n)->slot.run == table->slot.run) return kr_kernels_nth(n)->name;

const char *kr_ctx_kernel(const kr_ctx *ctx, const char *name)
{
    if (!ctx || !ctx->device || !name) return NULL;
    const kr_kernels *table = &ctx->device->kernels;
    const bool on_device = kr_ctx_on_device(ctx);
    int last = 0;
    while (kr_kernels_nth(last + 1)) last++;
#define KR_KERNEL(kernel, args) ORIGIN(kernel, kernel[KR_REAL_F32])
#define KR_KERNEL_ANY(kernel, args) ORIGIN(kernel, kernel)
#include "kernels/kernels.def"
#undef KR_KERNEL
#undef KR_KERNEL_ANY
    return NULL;
}
