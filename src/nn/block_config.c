/* block_config.c - checks of config fields that several families have. */
#include "nn/block_config.h"

#include "tensor/tensor_impl.h"

#include <math.h>

bool kr_config_at_least(kr_ctx *ctx, const char *op, const char *field, int64_t value, int64_t least)
{
    return kr_require(ctx, value >= least, KR_ERR_ARG, "%s: %s = %lld, but must be at least %lld", op, field,
                      (long long)value, (long long)least) &&
           kr_require(ctx, value <= KR_CONFIG_MOST, KR_ERR_ARG, "%s: %s = %lld, but must be at most %lld", op, field,
                      (long long)value, (long long)KR_CONFIG_MOST);
}

bool kr_config_dtype(kr_ctx *ctx, const char *op, kr_dtype dtype)
{
    return kr_require(ctx, kr_dtype_is_valid(dtype) && kr_dtype_is_float(dtype), KR_ERR_DTYPE,
                      "%s: dtype = %s, but must be f32, f64, bf16 or f16", op, kr_dtype_name(dtype));
}

bool kr_config_positive(kr_ctx *ctx, const char *op, const char *field, double value)
{
    return kr_require(ctx, value > 0 && isfinite(value), KR_ERR_ARG, "%s: %s = %g, but must be above 0 and finite", op,
                      field, value);
}

bool kr_config_steps(kr_ctx *ctx, const char *op, double dt_min, double dt_max, double floor, double low, double high)
{
    return kr_config_positive(ctx, op, "dt_min", dt_min) && kr_config_positive(ctx, op, "dt_max", dt_max) &&
           kr_config_positive(ctx, op, "dt_init_floor", floor) &&
           kr_require(ctx, dt_min <= dt_max, KR_ERR_ARG, "%s: dt_min = %g is above dt_max = %g", op, dt_min, dt_max) &&
           kr_require(ctx, low >= 0 && isfinite(low), KR_ERR_ARG,
                      "%s: dt_limit_min = %g, but must be finite and not negative", op, low) &&
           kr_require(ctx, high >= low, KR_ERR_ARG, "%s: dt_limit_max = %g, but must be at least dt_limit_min = %g", op,
                      high, low);
}

bool kr_config_path(kr_ctx *ctx, const char *op, kr_ssd_path path)
{
    return kr_require(ctx, path.algorithm >= KR_SSD_MINIMAL && path.algorithm <= KR_SSD_SERIAL_RECALCULATED, KR_ERR_ARG,
                      "%s: path.algorithm = %d is not one of Minimal, Serial, SerialRecalculated", op,
                      (int)path.algorithm) &&
           kr_require(ctx, path.chunk_len >= 0, KR_ERR_ARG,
                      "%s: path.chunk_len = %lld, but must be at least 1, or 0 for the optimal one", op,
                      (long long)path.chunk_len);
}

kr_dtype kr_config_small_dtype(kr_dtype dtype)
{
    return kr_dtype_is_16bit(dtype) ? KR_DTYPE_F32 : dtype;
}
