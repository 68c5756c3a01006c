/* params_compose.c - parameter tables of networks that a user puts together: own parameters, shared ones, other tables. */
#include "base/sized.h"
#include "nn/block_impl.h"
#include "nn/block_config.h"
#include "nn/init.h"
#include "nn/params_impl.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

KR_DEFAULTS(kr_param_options) = { .size = sizeof(kr_param_options), .axes = "" };

/* ---- checks ---- */

static bool check_table(const kr_params *params)
{
    return params && !kr_ctx_failed(kr_params_ctx(params));
}

static bool check_name(const kr_params *params, const char *op, const char *name)
{
    kr_ctx *ctx = kr_params_ctx(params);
    return kr_require(ctx, name && *name, KR_ERR_ARG, "%s: a parameter needs a name", op) &&
           kr_require(ctx, !kr_params_has(params, name), KR_ERR_ARG, "%s: the table already has a parameter %s", op,
                      name);
}

/* Checks for ranges that would give NaN or no values. */
static bool check_init(kr_ctx *ctx, const char *op, const char *name, const kr_init *init)
{
    const double a = init->a, b = init->b, c = init->c;
    bool ok = isfinite(a) && isfinite(b) && isfinite(c);
    switch (init->kind) {
    case KR_INIT_FILL:
    case KR_INIT_LOG_INDEX:
    case KR_INIT_RAMP: break;
    case KR_INIT_UNIFORM: ok = ok && a <= b; break;
    case KR_INIT_NORMAL: ok = ok && b >= 0; break;
    case KR_INIT_DT_BIAS: ok = ok && a > 0 && a <= b && c >= 0; break;
    case KR_INIT_LOG_RANGE: ok = ok && a > 0 && a <= b; break;
    default:
        return kr_require(ctx, false, KR_ERR_ARG, "%s: %s has init.kind = %d, which is not a kr_init_kind", op, name,
                          (int)init->kind);
    }
    return kr_require(ctx, ok, KR_ERR_ARG, "%s: %s has an init that cannot be sampled: kind %d of %g, %g, %g", op, name,
                      (int)init->kind, a, b, c);
}

static bool check_segments(kr_ctx *ctx, const char *op, const char *name, const kr_shape *shape,
                           const kr_param_options *o)
{
    int64_t rows = 0;
    if (!kr_require(ctx, o->n_segments >= 0 && (!o->n_segments || o->segments), KR_ERR_ARG,
                    "%s: %s has n_segments = %d, but segments is %s", op, name, o->n_segments,
                    o->segments ? "given" : "NULL"))
        return false;
    for (int i = 0; i < o->n_segments; i++) {
        const kr_segment *segment = &o->segments[i];
        if (!kr_require(ctx, segment->name && *segment->name && segment->rows >= 0 && segment->rows <= KR_CONFIG_MOST,
                        KR_ERR_ARG, "%s: segment %d of %s needs a name, and rows = %lld from 0 on", op, i, name,
                        (long long)segment->rows))
            return false;
        rows += segment->rows;
    }
    return kr_require(ctx, !o->n_segments || (shape->rank == 2 && rows == shape->dims[0]), KR_ERR_SHAPE,
                      "%s: %s %s has segments of %lld rows in all, but they are for matrices, and for all rows", op,
                      name, KR_TEXT_OF_SHAPE(shape), (long long)rows);
}

/* The caller's options over the defaults, all checked. */
static bool take(kr_ctx *ctx, const char *op, const char *name, const kr_shape *shape, const kr_param_options *options,
                 kr_param_options *own)
{
    if (!KR_TAKE(ctx, op, kr_param_options, options, own)) return false;
    if (!own->axes) own->axes = "";
    return check_init(ctx, op, name, &own->init) &&
           kr_require(ctx, !own->is_linear || shape->rank == 2, KR_ERR_SHAPE,
                      "%s: %s %s has is_linear set, but is not a matrix [out in]", op, name, KR_TEXT_OF_SHAPE(shape)) &&
           check_segments(ctx, op, name, shape, own);
}

static kr_param_spec spec_of(const char *name, const kr_param_options *o)
{
    return (kr_param_spec){ .name = name,
                            .axes = o->axes,
                            .init = o->init,
                            .has_decay = o->has_decay,
                            .is_linear = o->is_linear,
                            .is_residual_out = o->is_residual_out,
                            .n_segments = o->n_segments,
                            .segments = o->segments };
}

/* A table that a network is declared in has no rows but those of kr_params_make. */
static bool check_complete(const kr_params *params, const char *op)
{
    return kr_require(
        kr_params_ctx(params), !kr_params_is_declaring(params), KR_ERR_STATE,
        "%s: the create function of a block adds parameters with kr_params_make and kr_params_linear only", op);
}

/* One step of an optimizer would move it twice. */
static bool check_once(const kr_params *params, const char *op, const char *name, const kr_tensor *tensor)
{
    for (int64_t i = 0; i < kr_params_count(params); i++) {
        const kr_param_row *row = kr_params_at(params, i);
        if (!kr_require(kr_params_ctx(params), row->tensor != tensor, KR_ERR_ARG,
                        "%s: %s is already in the table, as %s", op, name, row->name))
            return false;
    }
    return true;
}

/* ---- rows ---- */

static kr_tensor *declare(kr_params *params, const char *name, kr_dtype dtype, kr_shape shape,
                          const kr_param_options *options)
{
    kr_param_spec spec = spec_of(name, options);
    spec.dtype = dtype;
    spec.shape = shape;
    return kr_params_add(params, &spec);
}

kr_tensor *kr_params_make(kr_params *params, const char *name, kr_dtype dtype, kr_shape shape,
                          const kr_param_options *options)
{
    static const char op[] = "params.make";
    kr_param_options own;
    if (!check_table(params) || !check_name(params, op, name) ||
        !take(kr_params_ctx(params), op, name, &shape, options, &own))
        return NULL;
    if (kr_params_is_declaring(params)) return declare(params, name, dtype, shape, &own);
    kr_tensor *tensor = kr_param_create(kr_params_ctx(params), dtype, shape);
    const kr_param_spec spec = spec_of(name, &own);
    if (!tensor) {
        kr_blame(kr_params_ctx(params), "%s: %s", op, name);
    } else if (kr_init_apply(tensor, &own.init, 1) && kr_params_put(params, &spec, 1, tensor, false)) {
        return tensor;
    }
    kr_param_destroy(tensor);
    return NULL;
}

kr_status kr_params_share(kr_params *params, const char *name, kr_tensor *param, const kr_param_options *options)
{
    static const char op[] = "params.share";
    if (!params) return KR_ERR_ARG;
    kr_ctx *ctx = kr_params_ctx(params);
    kr_param_options own;
    const kr_shape shape = kr_tensor_shape(param);
    if (!kr_ctx_failed(ctx) && check_complete(params, op) && check_name(params, op, name) &&
        kr_require(ctx, param && !param->tape && param->ctx == ctx, KR_ERR_ARG,
                   "%s: %s is not a parameter of this context: kr_param_create makes one", op, name) &&
        take(ctx, op, name, &shape, options, &own) && check_once(params, op, name, param)) {
        const kr_param_spec spec = spec_of(name, &own);
        kr_params_put(params, &spec, 1, param, true);
    }
    return ctx->status;
}

/* ---- other tables ---- */

static bool join_row(kr_params *params, const kr_params *other, int64_t i, const char *prefix)
{
    static const char op[] = "params.join";
    const kr_param_row *row = kr_params_at(other, i);
    char name[512];
    const int length = snprintf(name, sizeof name, "%s%s", prefix, row->name);
    kr_param_spec spec = kr_params_spec_at(other, i);
    spec.name = name;
    return kr_require(kr_params_ctx(params), length >= 0 && (size_t)length < sizeof name, KR_ERR_ARG,
                      "%s: a name of %d bytes, but at most %d are allowed: %.60s...", op, length, (int)sizeof name - 1,
                      name) &&
           check_name(params, op, name) && check_once(params, op, name, row->tensor) &&
           kr_params_put(params, &spec, row->init_scale, row->tensor, true);
}

kr_status kr_params_join(kr_params *params, const char *prefix, const kr_params *other)
{
    if (!params) return KR_ERR_ARG;
    kr_ctx *ctx = kr_params_ctx(params);
    const int64_t before = kr_params_count(params), count = kr_params_count(other);
    if (kr_ctx_failed(ctx) || !check_complete(params, "params.join") ||
        !kr_require(ctx, prefix && other && other != params, KR_ERR_ARG, "params.join: the %s",
                    prefix ? "table to join is NULL, or the table itself" : "prefix is NULL; \"\" is none"))
        return ctx->status;
    if (!kr_require(ctx, kr_params_ctx(other) == ctx, KR_ERR_STATE, "params.join: %s* is of another context", prefix))
        return ctx->status;
    for (int64_t i = 0; i < count; i++)
        if (!join_row(params, other, i, prefix)) {
            kr_params_shorten(params, before);
            break;
        }
    return ctx->status;
}

/* ---- projections ---- */

static kr_tensor *make_bias(kr_params *params, const char *name, kr_dtype dtype, int64_t n_out, int64_t n_in)
{
    if (kr_params_is_declaring(params))
        return check_name(params, "params.linear", name) ? kr_params_add_bias(params, name, "o", dtype, n_out, n_in)
                                                         : NULL;
    kr_param_options o;
    kr_param_options_init(&o);
    o.axes = "o";
    o.init = kr_init_linear(n_in);
    return kr_params_make(params, name, kr_config_small_dtype(dtype), KR_SHAPE(n_out), &o);
}

kr_tensor *kr_params_linear(kr_params *params, const char *name, kr_dtype dtype, int64_t n_out, int64_t n_in,
                            kr_tensor **bias)
{
    static const char op[] = "params.linear";
    char text[512];
    if (bias) *bias = NULL;
    if (!check_table(params) ||
        !kr_require(kr_params_ctx(params), name && *name && strlen(name) < sizeof text - sizeof ".weight", KR_ERR_ARG,
                    "%s: a projection needs a name, of at most %d bytes", op,
                    (int)(sizeof text - sizeof ".weight") - 1))
        return NULL;
    const int64_t before = kr_params_count(params);
    kr_param_options o;
    kr_param_options_init(&o);
    o.axes = "o i";
    o.init = kr_init_linear(n_in);
    o.has_decay = o.is_linear = true;
    snprintf(text, sizeof text, "%s.weight", name);
    kr_tensor *weight = kr_params_make(params, text, dtype, KR_SHAPE(n_out, n_in), &o);
    if (!weight || !bias) return weight;
    snprintf(text, sizeof text, "%s.bias", name);
    if ((*bias = make_bias(params, text, dtype, n_out, n_in))) return weight;
    kr_params_shorten(params, before);
    kr_param_destroy(weight);
    return NULL;
}
