/* qk_norm.c - the norm of Mamba-3's B and C: RMS norm over the state, expansion of groups to heads, bias.
 *
 *   x [b s m g r], gain [r], bias [h m r] -> y [b s m h r];   head h = e + (n_heads / g) group, e < n_heads / g
 *   y[.., h, :] = x[.., group, :] / sqrt(mean(x^2) + eps) gain + bias[h, m, :]
 * Composed of ops: the norm runs on groups, the addition of the bias broadcasts them.
 */
#include "ops/ops_impl.h"

#include <krait/ssd.h>

kr_tensor *kr_qk_norm(kr_tape *tape, kr_tensor *x, kr_tensor *gain, kr_tensor *bias, int64_t n_heads, double eps)
{
    kr_dims d;
    kr_dtype result;
    if (!kr_bind(tape, "qk_norm", &d, "x:bsmgr gain:r? bias:hmr?", x, gain, bias) ||
        !kr_require(tape->ctx, !bias || d.h == n_heads, KR_ERR_SHAPE,
                    "qk_norm: axis h of bias %s is %lld, but n_heads = %lld", KR_TEXT_OF(bias), (long long)d.h,
                    (long long)n_heads) ||
        !kr_require(tape->ctx, n_heads >= 1 && d.g >= 1 && n_heads % d.g == 0, KR_ERR_SHAPE,
                    "qk_norm: g = %lld groups of x %s do not divide n_heads = %lld", (long long)d.g, KR_TEXT_OF(x),
                    (long long)n_heads) ||
        !kr_require(tape->ctx, eps >= 0, KR_ERR_ARG, "qk_norm: eps = %g, but must not be negative", eps) ||
        !KR_REALS(tape, "qk_norm", "x gain bias", &result, &x, &gain, &bias))
        return NULL;
    kr_norm_options options;
    kr_norm_options_init(&options);
    options.eps = eps;
    const int64_t each = n_heads / d.g;
    kr_tensor *y = kr_reshape(tape, kr_rms_norm(tape, x, gain, &options), KR_SHAPE(d.b, d.s, d.m, d.g, 1, d.r));
    if (!y) return NULL;
    if (bias) {
        kr_tensor *bias_mhr = kr_permute(tape, bias, KR_AXES(1, 0, 2));
        y = kr_add(tape, y, kr_reshape(tape, bias_mhr, KR_SHAPE(d.m, d.g, each, d.r)));
    } else {
        y = kr_expand(tape, y, KR_SHAPE(d.b, d.s, d.m, d.g, each, d.r));
    }
    return y ? kr_store_as(tape, kr_reshape(tape, y, KR_SHAPE(d.b, d.s, d.m, n_heads, d.r)), result) : NULL;
}
