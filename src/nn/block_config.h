/* block_config.h - the checks that the families' configs share: each names field, value and rule. */
#ifndef KR_NN_BLOCK_CONFIG_H
#define KR_NN_BLOCK_CONFIG_H

#include "base/ctx_impl.h"

#include <krait/ssd.h>

/* The largest size: products of two, and sums of a few of those, do not overflow. */
#define KR_CONFIG_MOST (INT64_C(1) << 30)

/* least <= value <= KR_CONFIG_MOST. */
bool kr_config_at_least(kr_ctx *ctx, const char *op, const char *field, int64_t value, int64_t least);

/* f32, f64, bf16 or f16. */
bool kr_config_dtype(kr_ctx *ctx, const char *op, kr_dtype dtype);

/* The initial steps: 0 < dt_min <= dt_max, 0 < floor; the limits: 0 <= low <= high, low finite. */
bool kr_config_steps(kr_ctx *ctx, const char *op, double dt_min, double dt_max, double floor, double low, double high);

/* value > 0 and finite. */
bool kr_config_positive(kr_ctx *ctx, const char *op, const char *field, double value);

/* An algorithm, and a chunk length that is not negative. */
bool kr_config_path(kr_ctx *ctx, const char *op, kr_ssd_path path);

/* The type of the small parameters of a block whose matrices are of `dtype`: 16-bit types have too few bits for
 * them. */
kr_dtype kr_config_small_dtype(kr_dtype dtype);

#endif
