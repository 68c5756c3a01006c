/* convert.c - copies elements out of a file with conversion.
 *
 * A tensor is processed as rows of one stride: axes in row-major order are merged first, so a contiguous tensor is a
 * single row. Elements are copied with memcpy: a file does not guarantee alignment.
 */
#include "io/convert.h"

#include "base/device_memory.h"
#include "base/half.h"
#include "io/quote.h"
#include "tensor/tensor_impl.h"

#include <string.h>

/* n elements with stride `step` in bytes, written contiguously; `first` is the row-major index of the first. */
typedef struct row {
    const char *from;
    size_t step;
    char *to;
    int64_t n, first;
} row;

#define EACH(source, target, value)                                                                                    \
    for (int64_t i = 0; i < r->n; i++) {                                                                               \
        source x;                                                                                                      \
        memcpy(&x, r->from + (size_t)i * r->step, sizeof x);                                                           \
        ((target *)r->to)[i] = (value);                                                                                \
    }                                                                                                                  \
    break

static void copy_row(const row *r, size_t bytes)
{
    if (r->step == bytes) {
        memcpy(r->to, r->from, (size_t)r->n * bytes);
        return;
    }
    switch (bytes) {
    case 2: EACH(uint16_t, uint16_t, x);
    case 4: EACH(uint32_t, uint32_t, x);
    default: EACH(uint64_t, uint64_t, x);
    }
}

static void doubles_row(const row *r, kr_dtype to)
{
    switch (to) {
    case KR_DTYPE_F32: EACH(double, float, (float)x);
    case KR_DTYPE_BF16: EACH(double, uint16_t, kr_bf16_from_double(x));
    default: EACH(double, uint16_t, kr_f16_from_double(x));
    }
}

static void floats_row(const row *r, kr_dtype to)
{
    switch (to) {
    case KR_DTYPE_F64: EACH(float, double, (double)x);
    case KR_DTYPE_BF16: EACH(float, uint16_t, kr_bf16_from_float(x));
    default: EACH(float, uint16_t, kr_f16_from_float(x));
    }
}

static void bf16_row(const row *r, kr_dtype to)
{
    switch (to) {
    case KR_DTYPE_F64: EACH(uint16_t, double, (double)kr_float_from_bf16(x));
    case KR_DTYPE_F32: EACH(uint16_t, float, kr_float_from_bf16(x));
    default: EACH(uint16_t, uint16_t, kr_f16_from_float(kr_float_from_bf16(x)));
    }
}

static void f16_row(const row *r, kr_dtype to)
{
    switch (to) {
    case KR_DTYPE_F64: EACH(uint16_t, double, (double)kr_float_from_f16(x));
    case KR_DTYPE_F32: EACH(uint16_t, float, kr_float_from_f16(x));
    default: EACH(uint16_t, uint16_t, kr_bf16_from_float(kr_float_from_f16(x)));
    }
}

#define LOAD(type)                                                                                                     \
    {                                                                                                                  \
        type x;                                                                                                        \
        memcpy(&x, p, sizeof x);                                                                                       \
        return x;                                                                                                      \
    }

static int64_t integer_at(const kr_element_type *type, const char *p)
{
    switch (type->bytes) {
    case 8: LOAD(int64_t)
    case 4:
        if (type->is_signed) LOAD(int32_t)
        LOAD(uint32_t)
    case 2:
        if (type->is_signed) LOAD(int16_t)
        LOAD(uint16_t)
    default:
        if (type->is_signed) LOAD(int8_t)
        LOAD(uint8_t)
    }
}

static bool integers_row(kr_ctx *ctx, const char *who, const kr_elements *e, kr_dtype to, const row *r)
{
    for (int64_t i = 0; i < r->n; i++) {
        const int64_t x = integer_at(e->type, r->from + (size_t)i * r->step);
        if (to == KR_DTYPE_I64) {
            ((int64_t *)r->to)[i] = x;
            continue;
        }
        if (x < INT32_MIN || x > INT32_MAX)
            return kr_fail(ctx, KR_ERR_NUMERIC, "%s: element %lld of tensor '%s' is %lld, which does not fit i32", who,
                           (long long)(r->first + i), kr_quote_of(e->name, strlen(e->name)).text, (long long)x);
        ((int32_t *)r->to)[i] = (int32_t)x;
    }
    return true;
}

static bool read_row(kr_ctx *ctx, const char *who, const kr_elements *e, kr_dtype to, const row *r)
{
    if (e->type->is_native && e->type->dtype == to) copy_row(r, e->type->bytes);
    else if (!kr_dtype_is_float(to)) return integers_row(ctx, who, e, to, r);
    else if (e->type->dtype == KR_DTYPE_F64) doubles_row(r, to);
    else if (e->type->dtype == KR_DTYPE_F32) floats_row(r, to);
    else if (e->type->dtype == KR_DTYPE_BF16) bf16_row(r, to);
    else f16_row(r, to);
    return true;
}

/* ---- all rows ---- */

typedef struct axis {
    int64_t size, stride;
} axis;

/* The axes longer than 1, merged where the outer one continues the inner one; returns their number. */
static int merge_axes(const kr_elements *e, axis *axes)
{
    int n = 0;
    for (int a = 0; a < e->shape.rank; a++) {
        const axis next = { e->shape.dims[a], e->strides[a] };
        if (next.size == 1) continue;
        /* next.size * next.stride: strides of a checked tensor stay inside its data, so the product fits */
        if (n > 0 && axes[n - 1].stride == next.size * next.stride) {
            axes[n - 1].size *= next.size;
            axes[n - 1].stride = next.stride;
        } else {
            axes[n++] = next;
        }
    }
    return n;
}

static bool read_rows(kr_ctx *ctx, const char *who, const kr_elements *e, kr_dtype to, char *out)
{
    axis axes[KR_MAX_RANK];
    const int rank = merge_axes(e, axes);
    const axis inner = rank ? axes[rank - 1] : (axis){ 1, 1 };
    const size_t bytes = e->type->bytes, row_bytes = kr_dtype_span(to, inner.size);
    int64_t index[KR_MAX_RANK] = { 0 };
    row r = { e->data, (size_t)inner.stride * bytes, out, inner.size, 0 };
    for (;;) {
        if (!read_row(ctx, who, e, to, &r)) return false;
        r.first += r.n;
        if (r.first >= e->count) return true;
        r.to += row_bytes;
        int a = rank - 2;
        for (; index[a] + 1 == axes[a].size; a--) {
            r.from -= (size_t)index[a] * (size_t)axes[a].stride * bytes;
            index[a] = 0;
        }
        r.from += (size_t)axes[a].stride * bytes;
        index[a]++;
    }
}

/* To device memory: directly if no conversion is needed, else through a converted copy of the tensor. */
static bool read_device(kr_ctx *ctx, const char *who, const kr_elements *e, kr_dtype to, void *out)
{
    axis axes[KR_MAX_RANK];
    const size_t bytes = kr_dtype_span(to, e->count);
    const int rank = merge_axes(e, axes);
    if (e->type->is_native && e->type->dtype == to && (rank == 0 || (rank == 1 && axes[0].stride == 1)))
        return kr_store(ctx, out, e->data, bytes);
    void *copy = kr_memory_alloc(&ctx->memory, bytes);
    if (!copy)
        return kr_fail(ctx, KR_ERR_NOMEM, "%s: no memory for a copy of tensor '%s' of %zu bytes", who,
                       kr_quote_of(e->name, strlen(e->name)).text, bytes);
    const bool done = read_rows(ctx, who, e, to, copy) && kr_store(ctx, out, copy, bytes);
    kr_memory_free(&ctx->memory, copy, bytes);
    return done;
}

kr_status kr_elements_read(kr_ctx *ctx, const char *who, const kr_elements *e, kr_dtype dtype, void *out, int64_t count)
{
    if (!kr_require(ctx, kr_dtype_is_valid(dtype), KR_ERR_DTYPE, "%s: %d is not a kr_dtype", who, (int)dtype))
        return ctx->status;
    const kr_quote name = kr_quote_of(e->name, strlen(e->name));
    if (!kr_require(ctx, count == e->count, KR_ERR_SHAPE, "%s: tensor '%s' %s has %lld elements, not %lld", who,
                    name.text, KR_TEXT_OF_SHAPE(&e->shape), (long long)e->count, (long long)count) ||
        !kr_require(ctx, e->type->is_readable && kr_dtype_is_float(e->type->dtype) == kr_dtype_is_float(dtype),
                    KR_ERR_DTYPE, "%s: tensor '%s' of type %s cannot be read as %s", who, name.text, e->type->name,
                    kr_dtype_name(dtype)) ||
        !kr_require(ctx, out != NULL || count == 0, KR_ERR_ARG, "%s: out is NULL", who) || count == 0)
        return ctx->status;
    if (kr_on_device(ctx, out)) read_device(ctx, who, e, dtype, out);
    else read_rows(ctx, who, e, dtype, out);
    return ctx->status;
}

void kr_elements_row_major(kr_elements *e)
{
    int64_t stride = 1;
    for (int a = e->shape.rank - 1; a >= 0; a--) {
        e->strides[a] = stride;
        if (e->count > 0) stride *= e->shape.dims[a]; /* with a size of 0, the other sizes may have any product */
    }
}
