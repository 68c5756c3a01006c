/* raw_check.c - holds the caller's views, options and sequences against the description of an op.
 *
 * Nothing here trusts the caller but for one thing: that a view's memory is as large as its sizes and strides say.
 */
#include "raw/raw_impl.h"

#include "device/row_lists.h"

#include <math.h>
#include <string.h>

/* ---- names ---- */

/* The n-th term of the contract, "initial:qhpr?". */
static const char *term_of(const raw_call *call, int n)
{
    const char *term = call->about->contract;
    while (n-- > 0) term = strchr(term, ' ') + 1;
    return term;
}

const char *raw_name(const raw_call *call, int n, char *text, size_t bytes)
{
    return kr_contract_name(call->about->contract, n, text, bytes);
}

/* Does the n-th view have an axis q? */
static bool has_sequences(const raw_call *call, int n)
{
    const char *axes = strchr(term_of(call, n), ':');
    const size_t length = strcspn(axes, " ");
    return memchr(axes, 'q', length) != NULL;
}

/* "[8, 4, 1]": strides like a shape. */
#define STRIDES_OF(x) strides_write((x), (char[KR_SHAPE_TEXT_BYTES]){ 0 }, KR_SHAPE_TEXT_BYTES)
static const char *strides_write(const kr_tensor *x, char *text, size_t bytes)
{
    kr_shape strides = { x->rank, { 0 } };
    memcpy(strides.dims, x->strides, (size_t)x->rank * sizeof *x->strides);
    return kr_shape_write(&strides, text, bytes);
}

/* ---- options ---- */

static bool check_absent_options(const raw_call *call)
{
    const kr_raw_options *o = &call->o, *standard = &kr_raw_options_defaults;
    const struct {
        unsigned option;
        bool is_set;
        const char *name;
    } all[] = { { RAW_CHUNK_LEN, o->chunk_len != standard->chunk_len, "chunk_len" },
                { RAW_SEQUENCES, o->sequences || o->n_sequences != 0, "sequences" },
                { RAW_N_GROUPS, o->n_groups != standard->n_groups, "n_groups" },
                { RAW_EPS, o->eps != standard->eps, "eps" },
                { RAW_RANGE, o->range != standard->range, "range" },
                { RAW_LIMITS, o->a_floor != standard->a_floor, "a_floor" },
                { RAW_LIMITS, o->dt_min != standard->dt_min, "dt_min" },
                { RAW_LIMITS, o->dt_max != standard->dt_max, "dt_max" },
                { RAW_SILU, o->silu, "silu" },
                { RAW_NORM_FIRST, o->norm_first, "norm_first" },
                { RAW_SPLIT_PAIRS, o->split_pairs, "split_pairs" },
                { RAW_SOFTPLUS, o->softplus, "softplus" },
                { RAW_ACCUMULATE, o->accumulate, "accumulate" } };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i].is_set && !(call->about->options & all[i].option))
            return kr_fail(call->ctx, KR_ERR_ARG, "%s: option %s is set, but this op does not have it", call->op,
                           all[i].name);
    return true;
}

static bool check_options(const raw_call *call)
{
    const kr_raw_options *o = &call->o;
    kr_ctx *ctx = call->ctx;
    return check_absent_options(call) && kr_precision_check(ctx, call->op, o->precision) &&
           kr_require(ctx, o->chunk_len >= 0, KR_ERR_ARG, "%s: chunk_len = %lld, but must not be negative", call->op,
                      (long long)o->chunk_len) &&
           kr_require(ctx, o->range > 0, KR_ERR_ARG, "%s: range = %g, but must be above 0", call->op, o->range) &&
           kr_require(ctx, o->eps >= 0, KR_ERR_ARG, "%s: eps = %g, but must not be negative", call->op, o->eps) &&
           kr_require(ctx, o->a_floor > 0, KR_ERR_ARG, "%s: a_floor = %g, but must be above 0", call->op, o->a_floor) &&
           kr_require(ctx, o->dt_min >= 0 && o->dt_min <= o->dt_max, KR_ERR_ARG,
                      "%s: dt_min = %g and dt_max = %g, but 0 <= dt_min <= dt_max must hold", call->op, o->dt_min,
                      o->dt_max);
}

/* ---- views ---- */

/* Strides whose products with sizes are numbers. */
static bool has_extent(const kr_tensor *x)
{
    int64_t rows = 1, inner = 0;
    for (int i = 0; i < x->rank; i++) {
        const int64_t most = INT64_MAX / 64 / (x->dims[i] > 1 ? x->dims[i] : 1);
        if (x->dims[i] > 1 && (x->strides[i] > most || x->strides[i] < -most)) return false;
        if (i == x->rank - 1 || x->dims[i] == 0) continue;
        rows *= x->dims[i];
        if (x->dims[i] > 1) inner = x->strides[i];
    }
    return inner <= INT64_MAX / rows && inner >= -(INT64_MAX / rows);
}

/* An address for what has no elements. */
static char nowhere[KR_ALIGN];

static bool take_view(raw_call *call, int n, const kr_view *view, bool is_optional)
{
    kr_ctx *ctx = call->ctx;
    const char *op = call->op;
    kr_tensor *x = &call->tensors[n];
    call->x[n] = NULL;
    if (!view->data && is_optional) return true;
    const bool has_rank = view->rank >= 0 && view->rank <= KR_MAX_RANK;
    *x = (kr_tensor){ .ctx = ctx, .dtype = view->dtype, .rank = has_rank ? view->rank : 0, .data = view->data };
    memcpy(x->dims, view->dims, sizeof x->dims);
    memcpy(x->strides, view->strides, sizeof x->strides);
    const kr_shape shape = { x->rank, { 0 } };
    kr_shape sizes = shape;
    memcpy(sizes.dims, x->dims, sizeof sizes.dims);
    const int64_t count = has_rank ? kr_shape_count(&sizes) : -1;
    if (!kr_require(ctx, view->data || count == 0, KR_ERR_ARG,
                    "%s: %s is absent (its data is NULL); what may be has a ?: %s", op, RAW_NAME(call, n),
                    call->about->signature) ||
        !kr_require(ctx, has_rank, KR_ERR_SHAPE, "%s: %s has rank %d, but it must be from 0 to %d", op,
                    RAW_NAME(call, n), view->rank, KR_MAX_RANK) ||
        !kr_require(ctx, count >= 0, KR_ERR_SHAPE,
                    "%s: %s %s is no shape: sizes must not be negative, and all elements addressable", op,
                    RAW_NAME(call, n), KR_TEXT_OF_SHAPE(&sizes)) ||
        !kr_require(ctx, kr_dtype_is_valid(x->dtype), KR_ERR_DTYPE, "%s: dtype %d of %s %s is not a kr_dtype", op,
                    (int)x->dtype, RAW_NAME(call, n), KR_TEXT_OF(x)) ||
        !kr_require(ctx, count == 0 || has_extent(x), KR_ERR_SHAPE,
                    "%s: %s %s has strides %s, which reach beyond all memory", op, RAW_NAME(call, n), KR_TEXT_OF(x),
                    STRIDES_OF(x)))
        return false;
    if (!x->data) x->data = nowhere;
    call->x[n] = x;
    return true;
}

static bool take_views(raw_call *call, const kr_view *views)
{
    const char *term = call->about->contract;
    for (int n = 0; n < call->about->n_views; n++) {
        const size_t length = strcspn(term, " ");
        if (!take_view(call, n, &views[n], term[length - 1] == '?')) return false;
        term += length + (term[length] == ' ');
    }
    return true;
}

/* ---- types ---- */

static uint32_t types_of(const raw_call *call, int n)
{
    const size_t accepts = call->about->rules[n].accepts;
    uint32_t types = 0;
    if (accepts && call->dtype == KR_DTYPE_F32)
        memcpy(&types, (const char *)&call->ctx->device->kernels.accepts + accepts - 1, sizeof types);
    return types | KR_DTYPE_BIT(call->dtype);
}

static bool check_type(const raw_call *call, int n, int first)
{
    const kr_tensor *x = call->x[n];
    if (types_of(call, n) & KR_DTYPE_BIT(x->dtype)) return true;
    if (!kr_dtype_is_float(x->dtype))
        return kr_fail(call->ctx, KR_ERR_DTYPE, "%s: %s %s is %s, but must be f32 or f64", call->op, RAW_NAME(call, n),
                       KR_TEXT_OF(x), kr_dtype_name(x->dtype));
    if (kr_dtype_is_narrow(x->dtype) && call->dtype == KR_DTYPE_F32)
        return kr_fail(call->ctx, KR_ERR_DTYPE,
                       "%s: %s %s is %s, which the kernel of %s does not take there; convert it to f32", call->op,
                       RAW_NAME(call, n), KR_TEXT_OF(x), kr_dtype_name(x->dtype), kr_ctx_device(call->ctx));
    return kr_fail(call->ctx, KR_ERR_DTYPE,
                   "%s: %s %s is %s, but %s %s is %s; f64 mixes with no other type, convert one of them", call->op,
                   RAW_NAME(call, n), KR_TEXT_OF(x), kr_dtype_name(x->dtype), RAW_NAME(call, first),
                   KR_TEXT_OF(call->x[first]), kr_dtype_name(call->x[first]->dtype));
}

/* The type of the slot is that of the first view that is f32 or f64. */
static bool check_types(raw_call *call)
{
    int first = -1;
    call->dtype = KR_DTYPE_F32;
    for (int n = 0; first < 0 && n < call->about->n_views; n++)
        if (call->x[n] && (call->x[n]->dtype == KR_DTYPE_F32 || call->x[n]->dtype == KR_DTYPE_F64)) first = n;
    if (first >= 0) call->dtype = call->x[first]->dtype;
    call->real = kr_real_of(call->dtype);
    for (int n = 0; n < call->about->n_views; n++)
        if (call->x[n] && !check_type(call, n, first)) return false;
    return true;
}

/* ---- strides ---- */

static bool is_readable(const kr_tensor *x, raw_layout layout)
{
    int64_t distance;
    switch (layout) {
    case RAW_PLAIN: return kr_tensor_is_row_major(x);
    case RAW_ROWS: return x->rank == 0 || kr_row_stride(x, &distance);
    case RAW_TOKENS: return kr_token_stride(x, &distance);
    case RAW_CHANNELS: return x->dims[2] == 1 || x->strides[2] == 1;
    case RAW_STRIDED: return true;
    }
    return false;
}

static bool check_layout(const raw_call *call, int n)
{
    static const char *const rules[] = {
        [RAW_PLAIN] = "it row-major without gaps",
        [RAW_ROWS] = "adjacent elements along its last axis, and all rows at one distance",
        [RAW_TOKENS] = "tokens whose elements are row-major without gaps, and all tokens at one distance",
        [RAW_CHANNELS] = "adjacent channels",
        [RAW_STRIDED] = "it",
    };
    const kr_tensor *x = call->x[n];
    const raw_layout layout = call->about->rules[n].layout;
    if (kr_count_of(x) == 0) return true;
    const bool is_result = n >= call->about->n_operands;
    if (!kr_require(call->ctx, is_readable(x, layout), KR_ERR_SHAPE,
                    "%s: %s %s has strides %s, but the kernel %s %s; use a copy", call->op, RAW_NAME(call, n),
                    KR_TEXT_OF(x), STRIDES_OF(x), is_result ? "writes" : "reads", rules[layout]))
        return false;
    return !is_result || layout != RAW_ROWS || x->rank == 0 ||
           kr_require(call->ctx, kr_operand_of(x).row >= x->dims[x->rank - 1], KR_ERR_SHAPE,
                      "%s: %s %s has strides %s, but a result needs rows in rising order that do not overlap", call->op,
                      RAW_NAME(call, n), KR_TEXT_OF(x), STRIDES_OF(x));
}

/* ---- results ---- */

/* The gradient of an operand that is absent, which is an error but where absent means 0. Results are in the order of their
 * operands. */
static bool check_wanted(const raw_call *call)
{
    const int n_operands = call->about->n_operands;
    for (int i = 0, n = n_operands; n < call->about->n_views && i < n_operands; i++, n++) {
        if (!call->x[n] || call->x[i]) continue;
        const char *name = RAW_NAME(call, i), *result = RAW_NAME(call, n);
        const bool is_gradient = strncmp(result, "g_", 2) == 0 && strcmp(result + 2, name) == 0;
        const bool may_be_zero = strcmp(name, "initial") == 0 || strcmp(name, "window") == 0;
        if (is_gradient && !may_be_zero)
            return kr_fail(call->ctx, KR_ERR_ARG, "%s: %s is wanted, but %s is absent", call->op, result, name);
    }
    return true;
}

/* ---- sequences ---- */

static bool check_sequence(const raw_call *call, int64_t i, int64_t nb, int64_t ns)
{
    const kr_sequence *s = &call->sequences[i], *before = i ? s - 1 : NULL;
    const long long row = (long long)s->row, start = (long long)s->start, end = (long long)s->end;
    if (!kr_require(call->ctx, s->row >= 0 && s->row < nb && s->start >= 0 && s->start < s->end && s->end <= ns,
                    KR_ERR_ARG,
                    "%s: sequence %lld is row %lld from %lld to %lld, but there are %lld rows of %lld tokens, and a "
                    "sequence has at least one",
                    call->op, (long long)i, row, start, end, (long long)nb, (long long)ns))
        return false;
    return kr_require(call->ctx, !before || before->row < s->row || (before->row == s->row && before->end <= s->start),
                      KR_ERR_ARG,
                      "%s: sequence %lld, row %lld from %lld to %lld, is not behind the one before it, row %lld from "
                      "%lld to %lld",
                      call->op, (long long)i, row, start, end, (long long)before->row, (long long)before->start,
                      (long long)before->end);
}

/* Memory that the host may read here, and the kernels. */
static bool check_shared(const raw_call *call)
{
    const kr_device *device = call->ctx->device;
    if (!device->vtable) return true;
    const bool is_shared = device->vtable->shares ? device->vtable->shares(device, call->o.sequences)
                                                  : !device->vtable->holds(device, call->o.sequences);
    return kr_require(call->ctx, is_shared, KR_ERR_ARG,
                      "%s: sequences is not in memory that both the host and %s read; use pinned host memory", call->op,
                      device->name);
}

static bool take_sequences(raw_call *call, int64_t nb, int64_t ns)
{
    const kr_raw_options *o = &call->o;
    kr_ctx *ctx = call->ctx;
    call->nq = o->n_sequences;
    if (!o->sequences) {
        call->nq = nb;
        call->sequences = kr_row_list(ctx, call->op, nb, ns);
        return kr_require(ctx, o->n_sequences == 0, KR_ERR_ARG, "%s: n_sequences = %lld, but sequences is NULL",
                          call->op, (long long)o->n_sequences) &&
               call->sequences != NULL;
    }
    call->sequences = (const kr_sequence *)(const void *)o->sequences;
    if (!kr_require(ctx, o->n_sequences >= 1, KR_ERR_ARG, "%s: n_sequences = %lld, but sequences is given", call->op,
                    (long long)o->n_sequences) ||
        !kr_require(ctx, (uintptr_t)o->sequences % sizeof *o->sequences == 0, KR_ERR_ARG,
                    "%s: the address of sequences is not a multiple of %zu", call->op, sizeof *o->sequences) ||
        !check_shared(call))
        return false;
    int64_t tokens = 0;
    for (int64_t i = 0; i < call->nq; i++) {
        if (!check_sequence(call, i, nb, ns)) return false;
        tokens += call->sequences[i].end - call->sequences[i].start;
    }
    return kr_require(ctx, !call->about->covers || tokens == nb * ns, KR_ERR_ARG,
                      "%s: the sequences hold %lld tokens, but there are %lld, and each must be in one", call->op,
                      (long long)tokens, (long long)(nb * ns));
}

/* Views with an axis q have a row for each sequence. */
static bool check_sequence_rows(const raw_call *call)
{
    if (call->d.q == call->nq) return true;
    for (int n = 0; n < call->about->n_views; n++)
        if (call->x[n] && has_sequences(call, n))
            return kr_fail(call->ctx, KR_ERR_SHAPE, "%s: axis q of %s %s is %lld, but there are %lld sequences",
                           call->op, RAW_NAME(call, n), KR_TEXT_OF(call->x[n]), (long long)call->d.q,
                           (long long)call->nq);
    return true;
}

bool raw_bind(raw_call *call, const kr_view *views, const kr_raw_options *given)
{
    const raw_about *about = call->about;
    if (!KR_TAKE(call->ctx, call->op, kr_raw_options, given, &call->o) || !check_options(call) ||
        !take_views(call, views) || !kr_contract_bind(call->ctx, call->op, &call->d, about->contract, call->x) ||
        !check_types(call))
        return false;
    for (int n = 0; n < about->n_views; n++)
        if (call->x[n] && !check_layout(call, n)) return false;
    if (!check_wanted(call)) return false;
    if (about->check && !about->check(call)) return false;
    if (!(about->options & RAW_SEQUENCES)) return true;
    return take_sequences(call, call->d.b, call->d.s) && check_sequence_rows(call);
}

/* ---- memory ---- */

/* The bytes of a view: from `low` to `high`; and as blocks of `width` bytes at multiples of `period` from `low`, 0: one. */
typedef struct span {
    uintptr_t low, high;
    uint64_t width, period;
} span;

static uint64_t common_divisor(uint64_t a, uint64_t b)
{
    while (b) {
        const uint64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

static span span_of(const kr_tensor *x)
{
    const int64_t element = (int64_t)kr_dtype_bytes(x->dtype);
    span s = { (uintptr_t)x->data, (uintptr_t)x->data + (uintptr_t)element, (uint64_t)element, 0 };
    bool is_block = true;
    for (int i = x->rank - 1; i >= 0; i--) {
        if (x->dims[i] == 1) continue;
        const int64_t stride = x->strides[i] * element, reach = stride * (x->dims[i] - 1);
        is_block = is_block && stride == (int64_t)s.width;
        if (is_block) s.width *= (uint64_t)x->dims[i];
        else s.period = common_divisor(s.period, (uint64_t)(stride < 0 ? -stride : stride));
        if (reach < 0) s.low -= (uintptr_t)-reach;
        else s.high += (uintptr_t)reach;
    }
    return s;
}

static bool overlaps(const kr_tensor *a, const kr_tensor *b)
{
    if (kr_count_of(a) == 0 || kr_count_of(b) == 0) return false;
    const span x = span_of(a), y = span_of(b);
    if (x.high <= y.low || y.high <= x.low) return false;
    const uint64_t period = common_divisor(x.period, y.period);
    if (period == 0 || x.width > period || y.width > period) return true;
    const uint64_t at = (uint64_t)((uintptr_t)b->data % period), from = (uint64_t)((uintptr_t)a->data % period);
    const uint64_t after = (at + period - from) % period; /* of y's blocks behind x's */
    return after < x.width || after + y.width > period;
}

/* Is view n, a state, updated in place by result m? */
static bool is_in_place(const raw_call *call, int n, int m)
{
    return call->about->state_operand == n && call->about->state_result == m && call->x[n]->data == call->x[m]->data;
}

static bool check_overlap(const raw_call *call)
{
    for (int m = call->about->n_operands; m < call->about->n_views; m++)
        for (int n = 0; call->x[m] && n < m; n++)
            if (call->x[n] && overlaps(call->x[m], call->x[n]) && !is_in_place(call, n, m))
                return kr_fail(call->ctx, KR_ERR_ARG, "%s: result %s %s overlaps %s %s in memory%s", call->op,
                               RAW_NAME(call, m), KR_TEXT_OF(call->x[m]), RAW_NAME(call, n), KR_TEXT_OF(call->x[n]),
                               call->about->state_operand == n && call->about->state_result == m
                                   ? "; it may be the same memory, or other memory"
                                   : "");
    return true;
}

bool raw_check_memory(const raw_call *call)
{
    kr_ctx *ctx = call->ctx;
    for (int n = 0; n < call->about->n_views; n++) {
        const kr_tensor *x = call->x[n];
        if (!x || kr_count_of(x) == 0) continue;
        const size_t align = kr_dtype_bytes(x->dtype);
        if (!kr_require(ctx, (uintptr_t)x->data % align == 0, KR_ERR_ARG,
                        "%s: the address of %s %s is not a multiple of %zu, the size of %s", call->op,
                        RAW_NAME(call, n), KR_TEXT_OF(x), align, kr_dtype_name(x->dtype)) ||
            !kr_require(ctx, !kr_ctx_on_device(ctx) || kr_on_device(ctx, x->data), KR_ERR_ARG,
                        "%s: %s %s is not in the memory of %s", call->op, RAW_NAME(call, n), KR_TEXT_OF(x),
                        kr_ctx_device(ctx)))
            return false;
    }
    return check_overlap(call);
}
