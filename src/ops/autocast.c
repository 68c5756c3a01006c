/* autocast.c - which activations are stored in bf16 (autocast.h). */
#include "ops/autocast.h"

#include "device/device.h"

/* ---- the precision of a call ---- */

static bool is_precision(kr_precision precision)
{
    return precision >= KR_PRECISION_EXACT && precision <= KR_PRECISION_BF16;
}

bool kr_precision_check(kr_ctx *ctx, const char *op, kr_precision precision)
{
    return kr_require(ctx, precision == KR_PRECISION_UNSET || is_precision(precision), KR_ERR_ARG,
                      "%s: precision = %d is not a kr_precision", op, (int)precision);
}

kr_precision kr_precision_begin(kr_ctx *ctx, kr_precision precision)
{
    if (!ctx || !ctx->device) return KR_PRECISION_UNSET;
    const kr_precision before = ctx->device->precision;
    if (is_precision(precision)) ctx->device->precision = precision;
    return before;
}

void kr_precision_end(kr_ctx *ctx, kr_precision before)
{
    if (is_precision(before)) ctx->device->precision = before;
}

/* ---- what it means ---- */

bool kr_autocasts(const kr_ctx *ctx)
{
    return ctx->device->precision == KR_PRECISION_BF16 && kr_accepts(ctx, matmul_a, KR_DTYPE_BF16) &&
           kr_accepts(ctx, matmul_b, KR_DTYPE_BF16) && kr_accepts(ctx, matmul_c, KR_DTYPE_BF16);
}

bool kr_autocasts_product(const kr_ctx *ctx, kr_dtype dtype, int64_t rows)
{
    return dtype == KR_DTYPE_F32 && rows > KR_GEMV_AUTOCAST && kr_autocasts(ctx);
}

kr_tensor *kr_autocast_operand(kr_tape *tape, kr_tensor *x, int64_t rows)
{
    if (!x || !kr_autocasts_product(tape->ctx, x->dtype, rows)) return x;
    kr_tensor *y = kr_new(tape, KR_DTYPE_BF16, kr_tensor_shape(x));
    return y && kr_assign(tape->ctx, y, x) ? y : NULL;
}

/* The sizes that kernels/cuda runs on tensor cores on every device. */
bool kr_autocasts_core(const kr_ctx *ctx, int64_t ns, int64_t nm, int64_t nr)
{
    enum { STEPS = 4, MOST_RANKS = 64, MOST_STATES = 128 };
    return kr_autocasts(ctx) && kr_accepts(ctx, ssd_v, KR_DTYPE_BF16) && kr_accepts(ctx, ssd_b, KR_DTYPE_BF16) &&
           kr_accepts(ctx, ssd_c, KR_DTYPE_BF16) && ns > STEPS && nm <= MOST_RANKS && nr <= MOST_STATES;
}

kr_tensor *kr_new_activation(kr_tape *tape, kr_dtype dtype, bool rounds, kr_shape shape)
{
    kr_tensor *y = kr_new(tape, rounds ? KR_DTYPE_BF16 : dtype, shape);
    if (y) y->flags.grad_f32 = rounds;
    return y;
}
