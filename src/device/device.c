/* device.c - the call of a kernel: pool and scratch. */
#include "device/device.h"

int kr_real_of(kr_dtype dtype)
{
    return dtype == KR_F64 ? KR_REAL_F64 : KR_REAL_F32;
}

bool kr_exec_begin(kr_ctx *ctx, kr_exec *exec, size_t scratch_bytes)
{
    exec->scratch = NULL;
    if (scratch_bytes == 0) return true;
    exec->scratch = kr_arena_alloc(&ctx->scratch, scratch_bytes);
    return kr_require(ctx, exec->scratch != NULL, KR_ERR_NOMEM, "scratch: no memory for %zu bytes", scratch_bytes);
}

bool kr_exec_end(kr_ctx *ctx)
{
    kr_arena_reset(&ctx->scratch);
    return true;
}
