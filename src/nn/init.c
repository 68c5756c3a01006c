/* init.c - initial values of parameters, by the rules of the official implementation.
 *
 *   dt bias      softplus^-1(D) = D + log(1 - e^-D),  D = max(exp(U(ln a, ln b)), c)
 *   log range    ln U(a, b)                      log index   ln 1, ln 2, ... along the last axis
 *   linear       U(-1/sqrt(fan_in), 1/sqrt(fan_in)): weight and bias
 */
#include "nn/init.h"

#include "device/device.h"
#include "nn/params_impl.h"

#include <math.h>
#include <stdio.h>

kr_init kr_init_linear(int64_t fan_in)
{
    const double bound = fan_in > 0 ? 1 / sqrt((double)fan_in) : 0;
    return (kr_init){ KR_INIT_UNIFORM, -bound, bound, 0 };
}

kr_init kr_init_fill(double value)
{
    return (kr_init){ KR_INIT_FILL, value, 0, 0 };
}

/* The i-th value of a rule that is computed on the host; u is uniform in [0, 1). */
static double value_of(const kr_init *init, double u, int64_t i, int64_t last)
{
    switch (init->kind) {
    case KR_INIT_DT_BIAS: {
        const double sampled = exp(log(init->a) + u * (log(init->b) - log(init->a)));
        const double dt = sampled > init->c ? sampled : init->c;
        return dt + log(-expm1(-dt));
    }
    case KR_INIT_LOG_RANGE: return log(init->a + u * (init->b - init->a));
    case KR_INIT_LOG_INDEX: return log((double)(i % last + 1));
    case KR_INIT_RAMP: return init->a + init->b * (double)(i % last);
    case KR_INIT_FILL:
    case KR_INIT_UNIFORM:
    case KR_INIT_NORMAL: break;
    }
    return init->a;
}

/* Samples in f64 for all types, so that f32 and f64 models of one seed have the same initial weights; on the host for
 * any device. */
static bool apply_on_host(kr_tensor *param, const kr_init *init, double scale)
{
    kr_ctx *ctx = param->ctx;
    const int64_t count = kr_count_of(param), last = kr_dim_of(param, -1);
    const size_t bytes = (size_t)count * sizeof(double);
    if (kr_ctx_failed(ctx)) return false;
    double *values = kr_memory_alloc(&ctx->memory, bytes);
    if (!values) return kr_fail(ctx, KR_ERR_NOMEM, "init: no memory for %lld values", (long long)count);
    const kr_random_args uniform = { .exec = { .pool = ctx->pool },
                                     .n = count,
                                     .dtype = KR_DTYPE_F64,
                                     .y = values,
                                     .seed = ctx->seed,
                                     .stream = ctx->stream++,
                                     .beta = 1 };
    ctx->device->host->random.run(&uniform);
    for (int64_t i = 0; i < count; i++) values[i] = scale * value_of(init, values[i], i, last);
    kr_param_write(param, KR_DTYPE_F64, values, count);
    kr_memory_free(&ctx->memory, values, bytes);
    return !kr_ctx_failed(ctx);
}

bool kr_init_apply(kr_tensor *param, const kr_init *init, double scale)
{
    switch (init->kind) {
    case KR_INIT_FILL: return kr_param_fill(param, init->a * scale) == KR_OK;
    case KR_INIT_UNIFORM: return kr_param_uniform(param, init->a * scale, init->b * scale) == KR_OK;
    case KR_INIT_NORMAL: return kr_param_normal(param, init->a * scale, init->b * scale) == KR_OK;
    case KR_INIT_DT_BIAS:
    case KR_INIT_LOG_RANGE:
    case KR_INIT_LOG_INDEX:
    case KR_INIT_RAMP: break;
    }
    return apply_on_host(param, init, scale);
}

const char *kr_init_text(const kr_init *init, double scale, char *text, size_t bytes)
{
    const double a = init->a * scale, b = init->b * scale;
    switch (init->kind) {
    case KR_INIT_FILL: snprintf(text, bytes, "%.4g", a); break;
    case KR_INIT_UNIFORM: snprintf(text, bytes, "uniform %.4g .. %.4g", a, b); break;
    case KR_INIT_NORMAL: snprintf(text, bytes, "normal %.4g, %.4g", a, b); break;
    case KR_INIT_DT_BIAS: snprintf(text, bytes, "dt %.4g .. %.4g", init->a, init->b); break;
    case KR_INIT_LOG_RANGE: snprintf(text, bytes, "log of %.4g .. %.4g", init->a, init->b); break;
    case KR_INIT_LOG_INDEX: snprintf(text, bytes, "log of 1, 2, .."); break;
    case KR_INIT_RAMP: snprintf(text, bytes, "%.4g + %.4g q", a, b); break;
    }
    return text;
}
