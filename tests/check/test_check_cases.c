/* test_check_cases.c - every kernel of the processor has a case in krait check
 * that names it, and runs it. */
#include "check/check_vectors.h"
#include "device/device.h"
#include "tests/harness.h"

#include <stdio.h>
#include <string.h>

/* All kernels, from the list that defines their table. */
static const char *const kernels[] = {
#define KR_KERNEL(name, args) #name,
#define KR_KERNEL_ANY KR_KERNEL
#include "kernels/kernels.def"
#undef KR_KERNEL
#undef KR_KERNEL_ANY
};
enum { NKERNELS = sizeof kernels / sizeof *kernels };

static int find(const char *name, size_t length)
{
    for (int i = 0; i < NKERNELS; i++)
        if (strlen(kernels[i]) == length && memcmp(kernels[i], name, length) == 0) return i;
    return -1;
}

typedef struct ran {
    bool kernel[NKERNELS];
} ran;

static void see(void *user, const char *slot)
{
    const int i = find(slot, strcspn(slot, "[")); /* "matmul[kr_real_of(y->dtype)]"; not a wait */
    if (i >= 0) ((ran *)user)->kernel[i] = true;
}

TEST(check_cases_name_every_kernel)
{
    kr_ctx_options options;
    kr_ctx_options_init(&options);
    options.threads = 1;
    options.device = "cpu";
    kr_ctx *ctx = kr_ctx_create(&options);
    bool named[NKERNELS] = { false };
    const char *name, *list;
    for (int n = 0; check_vectors_at(n, &name, &list); n++) {
        ran seen = { { false } };
        ctx->device->probe = see;
        ctx->device->probe_user = &seen;
        CHECK(check_vectors_try(ctx, KR_DTYPE_F32, n), "%s", kr_ctx_message(ctx));
        for (const char *at = list; at && *at;) {
            const size_t length = strcspn(at, ", ");
            const int i = find(at, length);
            CHECK(i >= 0, "case %s names %.*s, which is no kernel", name, (int)length, at);
            CHECK(i < 0 || seen.kernel[i], "case %s names %.*s, but does not run it", name, (int)length, at);
            if (i >= 0) named[i] = true;
            at += length + strspn(at + length, ", ");
        }
    }
    for (int i = 0; i < NKERNELS; i++) CHECK(named[i], "no case of krait check names the kernel %s", kernels[i]);
    kr_ctx_destroy(ctx);
}
