/* backend_plugin.c - shared objects for tests/device/test_backends.c: PLUGIN says what is wrong with each. */
#include <krait/backend/kernels.h>

#include <stddef.h>

enum { GOOD, OTHER_VERSION, OTHER_CONTRACT, NO_KERNELS, NO_ENTRY, NULL_INFO };

/* y = -x, which no softplus gives. */
static void run_softplus(const kr_unary_args *args)
{
    const float *x = args->x;
    float *y = args->y;
    for (int64_t i = 0; i < args->walk.dims[0]; i++) y[i] = -x[i];
}

static const kr_kernels kernels = { .softplus = { [KR_REAL_F32] = { .run = run_softplus } } };

static const kr_backend_info info = { .size = sizeof(kr_backend_info),
                                      .version = KR_BACKEND_VERSION + (PLUGIN == OTHER_VERSION),
                                      .contract = KR_KERNEL_CONTRACT + (PLUGIN == OTHER_CONTRACT),
                                      .kernels_bytes = sizeof(struct kr_kernels),
                                      .name = "plugin",
                                      .target = "cpu",
                                      .kernels = PLUGIN == NO_KERNELS ? NULL : &kernels };

#if PLUGIN == 4 /* NO_ENTRY */
#define krait_backend krait_backend_of_another_name
#endif

__attribute__((visibility("default"))) const kr_backend_info *krait_backend(const kr_backend_host *host);
const kr_backend_info *krait_backend(const kr_backend_host *host)
{
    return host->version == KR_BACKEND_VERSION && PLUGIN != NULL_INFO ? &info : NULL;
}
