/* testing.h - fault injection: makes allocations fail.
 *
 *   kr_ctx_fail_allocation(ctx, 1);
 *   kr_tensor *w = kr_param_create(ctx, KR_DTYPE_F32, KR_SHAPE(64, 32));   // NULL: the next allocation fails
 *   kr_ctx_clear(ctx);
 */
#ifndef KRAIT_EXPERIMENTAL_TESTING_H
#define KRAIT_EXPERIMENTAL_TESTING_H

#include <krait/ctx.h>
#include <krait/experimental/static_only.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The n-th allocation from now (1: the next) in any of the context's three memories fails; 0 disables it. Use the context
 * from one thread only, as always. */
KR_EXPERIMENTAL_API void kr_ctx_fail_allocation(kr_ctx *ctx, size_t n);

#ifdef __cplusplus
}
#endif
#endif
