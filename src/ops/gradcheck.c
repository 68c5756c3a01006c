/* gradcheck.c - gradients of a function against central differences in f64.
 *
 *   F(x) = sum over outputs and elements of w y(x), w random in [1/2, 3/2), 0 where y is not finite
 *   one element:       dF/dx_i           against (F(x + h e_i) - F(x - h e_i)) / 2h
 *   a large input:     <dF/dx, d>        against (F(x + h d) - F(x - h d)) / 2h, d random in [1/2, 3/2)
 */
#include "base/philox.h"
#include "ops/ops_impl.h"

#include <krait/ops.h>

#include <math.h>

#define OP "gradcheck"

KR_DEFAULTS(kr_gradcheck_options) = {
    .size = sizeof(kr_gradcheck_options), .eps = 1e-5, .atol = 1e-7, .rtol = 1e-6, .max_elements = 256
};

/* An input: its values on the host, which are moved, and its gradient. */
typedef struct leaf {
    const kr_tensor *given;
    int64_t count;
    double *x, *gradient; /* of floats; NULL for integers */
} leaf;

typedef struct check {
    kr_ctx *ctx;
    kr_checkpoint_fn *fn;
    void *user;
    int n_in, n_out;
    leaf *leaves;
    kr_tensor **in, **out; /* of the current run */
    kr_gradcheck_options o;
    uint64_t seed, stream; /* of the context, before each run */
    kr_tape *recorded, *plain;
    kr_gradcheck_result worst;
} check;

/* Number `index` of the family `family`, in [1/2, 3/2). */
static double weight_at(const check *c, uint64_t family, int64_t index)
{
    const kr_philox_block block = kr_philox_at(c->o.seed, family, (uint64_t)index);
    return 0.5 + block.word[0] * 0x1p-32;
}

static double output_weight(const check *c, int out, int64_t index)
{
    return weight_at(c, 2 * (uint64_t)out, index);
}

static double direction(const check *c, int in, int64_t index)
{
    return weight_at(c, 2 * (uint64_t)in + 1, index);
}

/* ---- memory ---- */

static double *doubles(const check *c, int64_t count)
{
    double *x = kr_memory_alloc(&c->ctx->memory, (size_t)count * sizeof *x + 1);
    if (!x) kr_fail(c->ctx, KR_ERR_NOMEM, OP ": no memory for %lld numbers", (long long)count);
    return x;
}

static void free_doubles(const check *c, double *x, int64_t count)
{
    if (x) kr_memory_free(&c->ctx->memory, x, (size_t)count * sizeof *x + 1);
}

static size_t list_bytes(int count, size_t each)
{
    return ((size_t)count + 1) * each;
}

static bool allocate(check *c)
{
    kr_memory *memory = &c->ctx->memory;
    c->leaves = kr_memory_alloc_zeroed(memory, list_bytes(c->n_in, sizeof *c->leaves));
    c->in = kr_memory_alloc_zeroed(memory, list_bytes(c->n_in, sizeof(kr_tensor *)));
    c->out = kr_memory_alloc_zeroed(memory, list_bytes(c->n_out, sizeof(kr_tensor *)));
    if (!c->leaves || !c->in || !c->out)
        return kr_fail(c->ctx, KR_ERR_NOMEM, OP ": no memory for %d inputs and %d outputs", c->n_in, c->n_out);
    return (c->recorded = kr_tape_create(c->ctx, KR_TAPE_GRAD)) && (c->plain = kr_tape_create(c->ctx, KR_TAPE_NO_GRAD));
}

static void release(check *c)
{
    kr_memory *memory = &c->ctx->memory;
    kr_tape_destroy(c->recorded);
    kr_tape_destroy(c->plain);
    for (int i = 0; c->leaves && i < c->n_in; i++) {
        free_doubles(c, c->leaves[i].x, c->leaves[i].count);
        free_doubles(c, c->leaves[i].gradient, c->leaves[i].count);
    }
    if (c->leaves) kr_memory_free(memory, c->leaves, list_bytes(c->n_in, sizeof *c->leaves));
    if (c->in) kr_memory_free(memory, c->in, list_bytes(c->n_in, sizeof(kr_tensor *)));
    if (c->out) kr_memory_free(memory, c->out, list_bytes(c->n_out, sizeof(kr_tensor *)));
}

/* ---- running fn ---- */

static bool take_inputs(check *c, kr_tensor *const *in)
{
    for (int i = 0; i < c->n_in; i++) {
        leaf *l = &c->leaves[i];
        if (!kr_require(c->ctx, in && in[i], KR_ERR_ARG, OP ": in[%d] is NULL", i) ||
            !kr_require(c->ctx, in[i]->ctx == c->ctx, KR_ERR_STATE, OP ": in[%d] %s belongs to another context", i,
                        KR_TEXT_OF(in[i])))
            return false;
        l->given = in[i];
        l->count = kr_count_of(in[i]);
        if (!kr_dtype_is_float(in[i]->dtype)) continue;
        if (!(l->x = doubles(c, l->count)) || !(l->gradient = doubles(c, l->count)) ||
            kr_tensor_read(in[i], KR_DTYPE_F64, l->x, l->count) != KR_OK)
            return false;
    }
    return true;
}

static kr_tensor *make_input(kr_tape *tape, const leaf *l)
{
    if (l->x) return kr_input(tape, kr_from_data(tape, KR_DTYPE_F64, kr_tensor_shape(l->given), l->x));
    kr_tensor *y = kr_new(tape, l->given->dtype, kr_tensor_shape(l->given));
    return y && kr_assign(tape->ctx, y, l->given) ? y : NULL;
}

/* out <- fn(in) on an empty tape. */
static bool run(check *c, kr_tape *tape)
{
    kr_tape_reset(tape);
    c->ctx->seed = c->seed;
    c->ctx->stream = c->stream;
    for (int i = 0; i < c->n_in; i++)
        if (!(c->in[i] = make_input(tape, &c->leaves[i]))) return false;
    for (int i = 0; i < c->n_out; i++) c->out[i] = NULL;
    c->fn(tape, c->user, c->in, c->out);
    if (kr_ctx_failed(c->ctx)) return kr_blame(c->ctx, OP ", fn");
    for (int i = 0; i < c->n_out; i++)
        if (!kr_require(c->ctx, c->out[i] != NULL, KR_ERR_ARG, OP ": fn left out[%d] NULL", i)) return false;
    return true;
}

/* F of the outputs; with weights, they are filled in for output number `out` (NULL: not wanted). */
static double sum_output(const check *c, int out, double *y, int64_t count, double *weights)
{
    double sum = 0;
    for (int64_t i = 0; i < count; i++) {
        const double w = isfinite(y[i]) ? output_weight(c, out, i) : 0;
        if (w > 0) sum += w * y[i];
        if (weights) weights[i] = w;
    }
    return sum;
}

/* *value <- F; g_out, unless NULL: the gradients of F by the outputs. */
static bool project(const check *c, kr_tape *tape, double *value, kr_tensor **g_out)
{
    *value = 0;
    for (int n = 0; n < c->n_out; n++) {
        const kr_tensor *y = c->out[n];
        if (!kr_dtype_is_float(y->dtype)) continue;
        const int64_t count = kr_count_of(y);
        double *values = doubles(c, 2 * count), *weights = g_out && values ? values + count : NULL;
        const bool ok = values && kr_tensor_read(y, KR_DTYPE_F64, values, count) == KR_OK;
        if (ok) *value += sum_output(c, n, values, count, weights);
        if (ok && g_out)
            g_out[n] = kr_cast(tape, kr_from_data(tape, KR_DTYPE_F64, kr_tensor_shape(y), weights), y->dtype);
        free_doubles(c, values, 2 * count);
        if (!ok || (g_out && !g_out[n])) return false;
    }
    return true;
}

/* F without recording. */
static bool value_of(check *c, double *value)
{
    return run(c, c->plain) && project(c, c->plain, value, NULL);
}

/* Float outputs to the front; how many. */
static int differentiable(const check *c, kr_tensor **y, kr_tensor **g)
{
    int count = 0;
    for (int n = 0; n < c->n_out; n++) {
        if (!g[n] || !kr_requires_grad(y[n])) continue;
        y[count] = y[n];
        g[count++] = g[n];
    }
    return count;
}

static bool back_propagate(check *c, double *value)
{
    const size_t bytes = list_bytes(c->n_out, sizeof(kr_tensor *));
    kr_tensor **g_out = kr_memory_alloc_zeroed(&c->ctx->memory, bytes);
    if (!g_out) return kr_fail(c->ctx, KR_ERR_NOMEM, OP ": no memory for %d outputs", c->n_out);
    bool ok = run(c, c->recorded) && project(c, c->recorded, value, g_out);
    if (ok) {
        const int count = differentiable(c, c->out, g_out);
        ok = kr_require(c->ctx, count > 0, KR_ERR_ARG,
                        OP ": no output depends on a float input; compute the outputs from in[] on the tape given") &&
             kr_backward_from(c->recorded, count, c->out, g_out) == KR_OK;
    }
    kr_memory_free(&c->ctx->memory, g_out, bytes);
    for (int i = 0; ok && i < c->n_in; i++) {
        leaf *l = &c->leaves[i];
        const kr_tensor *g = l->x ? kr_grad(c->in[i]) : NULL;
        for (int64_t k = 0; l->x && !g && k < l->count; k++) l->gradient[k] = 0;
        ok = !g || kr_tensor_read(g, KR_DTYPE_F64, l->gradient, l->count) == KR_OK;
    }
    return ok;
}

/* ---- comparing ---- */

static void compare(check *c, int in, int64_t element, double gradient, double quotient)
{
    const double error = fabs(gradient - quotient) / (c->o.atol + c->o.rtol * fabs(quotient));
    kr_gradcheck_result *w = &c->worst;
    w->n_compared++;
    if (w->input >= 0 && (isnan(w->error) || error <= w->error)) return;
    w->error = error;
    w->input = in;
    w->element = element;
    w->gradient = gradient;
    w->quotient = quotient;
}

static bool check_element(check *c, int in, int64_t i)
{
    double *x = &c->leaves[in].x[i], up, down;
    const double kept = *x, h = c->o.eps * (1 + fabs(kept)), high = kept + h, low = kept - h;
    *x = high;
    bool ok = value_of(c, &up);
    *x = low;
    ok = ok && value_of(c, &down);
    *x = kept;
    if (ok) compare(c, in, i, c->leaves[in].gradient[i], (up - down) / (high - low));
    return ok;
}

/* x + h d of the whole input; F there. */
static bool value_along(check *c, int in, const double *kept, double h, double *value)
{
    leaf *l = &c->leaves[in];
    for (int64_t i = 0; i < l->count; i++) l->x[i] = kept[i] + h * direction(c, in, i);
    return value_of(c, value);
}

static bool check_direction(check *c, int in)
{
    leaf *l = &c->leaves[in];
    double *kept = doubles(c, l->count), up, down, slope = 0;
    if (!kept) return false;
    for (int64_t i = 0; i < l->count; i++) {
        kept[i] = l->x[i];
        slope += l->gradient[i] * direction(c, in, i);
    }
    const bool ok = value_along(c, in, kept, c->o.eps, &up) && value_along(c, in, kept, -c->o.eps, &down);
    for (int64_t i = 0; i < l->count; i++) l->x[i] = kept[i];
    free_doubles(c, kept, l->count);
    if (ok) compare(c, in, -1, slope, (up - down) / (2 * c->o.eps));
    return ok;
}

static bool check_input(check *c, int in)
{
    const leaf *l = &c->leaves[in];
    if (!l->x) return true;
    const int64_t most = c->o.max_elements, count = l->count < most ? l->count : most;
    for (int64_t k = 0; k < count; k++) {
        const int64_t i = (int64_t)((double)k / (double)count * (double)l->count);
        if (!check_element(c, in, l->count == count ? k : i)) return false;
    }
    return l->count <= most || check_direction(c, in);
}

static bool check_all(check *c)
{
    double recorded, plain;
    if (!back_propagate(c, &recorded) || !value_of(c, &plain)) return false;
    if (!kr_require(c->ctx, fabs(recorded - plain) <= c->o.atol + c->o.rtol * fabs(plain), KR_ERR_NUMERIC,
                    OP
                    ": the outputs, weighted and added up, are %.9g where fn is recorded, but %.9g where it is not; fn "
                    "must compute the same each time",
                    recorded, plain))
        return false;
    for (int i = 0; i < c->n_in; i++)
        if (!check_input(c, i)) return false;
    return true;
}

static bool report(const check *c)
{
    const kr_gradcheck_result *w = &c->worst;
    char where[KR_SHAPE_TEXT_BYTES] = "along a random direction";
    if (!kr_require(c->ctx, w->input >= 0, KR_ERR_ARG, OP ": no float input has an element; nothing was compared"))
        return false;
    if (w->error <= 1) return true;
    if (w->element >= 0) kr_index_text(c->leaves[w->input].given, w->element, where, sizeof where);
    return kr_fail(c->ctx, KR_ERR_NUMERIC,
                   OP
                   ": the gradient of in[%d] %s is %.9g %s, but differences give %.9g, %.3g times the error that atol "
                   "= %g and rtol = %g allow; the backward rule is wrong, or fn has a kink there",
                   w->input, KR_TEXT_OF(c->leaves[w->input].given), w->gradient, where, w->quotient, w->error,
                   c->o.atol, c->o.rtol);
}

static bool check_options(kr_ctx *ctx, const kr_gradcheck_options *o)
{
    return kr_require(ctx, o->eps > 0 && isfinite(o->eps), KR_ERR_ARG, OP ": eps = %g, but must be above 0", o->eps) &&
           kr_require(ctx, o->atol >= 0 && o->rtol >= 0 && o->atol + o->rtol > 0, KR_ERR_ARG,
                      OP ": atol = %g and rtol = %g, but must not be negative, nor both 0", o->atol, o->rtol) &&
           kr_require(ctx, o->max_elements >= 1, KR_ERR_ARG, OP ": max_elements = %lld, but must be at least 1",
                      (long long)o->max_elements);
}

kr_status kr_gradcheck(kr_ctx *ctx, kr_checkpoint_fn *fn, void *user, int n_in, kr_tensor *const *in, int n_out,
                       const kr_gradcheck_options *options, kr_gradcheck_result *result)
{
    check c = { .ctx = ctx, .fn = fn, .user = user, .n_in = n_in, .n_out = n_out, .worst = { .input = -1 } };
    if (result) *result = c.worst;
    if (!ctx) return KR_ERR_ARG;
    if (kr_ctx_failed(ctx) || !KR_TAKE(ctx, OP, kr_gradcheck_options, options, &c.o) || !check_options(ctx, &c.o) ||
        !kr_require(ctx, fn != NULL, KR_ERR_ARG, OP ": fn is NULL") ||
        !kr_require(ctx, n_in >= 1 && n_out >= 1, KR_ERR_ARG, OP ": n_in = %d and n_out = %d, but must be at least 1",
                    n_in, n_out))
        return ctx->status;
    c.seed = ctx->seed;
    c.stream = ctx->stream;
    const bool ok = allocate(&c) && take_inputs(&c, in) && check_all(&c);
    ctx->seed = c.seed;
    ctx->stream = c.stream;
    if (result) *result = c.worst;
    if (ok) report(&c);
    release(&c);
    return ctx->status;
}
