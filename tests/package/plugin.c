/* plugin.c - a plug-in with Krait inside: it links the static library and exports one function. */
#include <krait/krait.h>

#include <stdio.h>

__attribute__((visibility("default"))) bool plugin_run(const void *create_of_host)
{
    kr_ctx_options options;
    kr_ctx_options_init(&options);
    options.threads = 2;
    kr_ctx *ctx = kr_ctx_create(&options);
    kr_tape *tape = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    const double y = kr_item(kr_sum(tape, kr_full(tape, KR_DTYPE_F32, KR_SHAPE(2, 3), 7.0), KR_ALL_AXES, false));
    printf("y = %g, %s\n", y, (const void *)kr_ctx_create == create_of_host ? "the host's Krait" : "its own Krait");
    kr_tape_destroy(tape);
    const bool ok = !kr_ctx_failed(ctx);
    kr_ctx_destroy(ctx);
    return ok;
}
