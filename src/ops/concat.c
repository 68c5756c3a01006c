/* concat.c - concat and pad: operands copied next to each other. Gradients are the corresponding slices of g_y. */
#include "ops/ops_impl.h"

#include <stdio.h>

/* The part of y that begins at `from` on the axis and has x's shape. */
static kr_tensor *slice_of(kr_tape *tape, const kr_tensor *y, int axis, int64_t from, const kr_tensor *x)
{
    const kr_shape shape = kr_tensor_shape(x);
    return kr_view_of(tape, y, &shape, y->strides, from * y->strides[axis]);
}

static bool put(kr_tape *tape, const kr_tensor *y, int axis, int64_t from, const kr_tensor *x)
{
    if (kr_count_of(x) == 0) return true;
    kr_tensor *slice = slice_of(tape, y, axis, from, x);
    return slice && kr_assign(tape->ctx, slice, x);
}

static void concat_backward(kr_back *back)
{
    const int *attrs = kr_back_attrs(back); /* axis, count */
    kr_tape *tape = kr_back_tape(back);
    int64_t from = 0;
    for (int i = 0; i < attrs[1]; i++) {
        const int64_t size = kr_back_in(back, i)->dims[attrs[0]];
        if (kr_back_wants(back, i))
            kr_back_accumulate(back, i, kr_slice(tape, kr_back_grad(back, 0), attrs[0], from, from + size));
        from += size;
    }
}

static const kr_rule concat_rule = { .name = "concat", .backward = concat_backward, .allow_infinity = true };

static bool fits_first(kr_tape *tape, int axis, int i, const kr_tensor *first, const kr_tensor *x)
{
    kr_ctx *ctx = tape->ctx;
    if (x->rank != first->rank)
        return kr_fail(ctx, KR_ERR_SHAPE, "concat: x%d %s has rank %d, but x0 %s has rank %d", i, KR_TEXT_OF(x),
                       x->rank, KR_TEXT_OF(first), first->rank);
    for (int a = 0; a < x->rank; a++)
        if (a != axis && x->dims[a] != first->dims[a])
            return kr_fail(ctx, KR_ERR_SHAPE, "concat: x%d %s differs from x0 %s on an axis other than %d", i,
                           KR_TEXT_OF(x), KR_TEXT_OF(first), axis);
    return kr_require(ctx, x->dtype == first->dtype, KR_ERR_DTYPE, "concat: x%d is %s, but x0 is %s", i,
                      kr_dtype_name(x->dtype), kr_dtype_name(first->dtype));
}

kr_tensor *kr_concat(kr_tape *tape, int axis, int count, kr_tensor *const *x)
{
    if (!kr_tape_ready(tape, "concat")) return NULL;
    if (!kr_require(tape->ctx, count >= 1 && x, KR_ERR_ARG, "concat: %d operands, but at least one is needed", count))
        return NULL;
    kr_dims d;
    kr_shape shape = { 0, { 0 } };
    for (int i = 0; i < count; i++) {
        char contract[32];
        snprintf(contract, sizeof contract, "x%d:..", i);
        if (!kr_bind(tape, "concat", &d, contract, x[i])) return NULL;
        if (i == 0 && !kr_axis(tape, "concat", x[0], &axis)) return NULL;
        if (i == 0) shape = kr_tensor_shape(x[0]);
        else if (!fits_first(tape, axis, i, x[0], x[i])) return NULL;
        else shape.dims[axis] += x[i]->dims[axis];
    }
    kr_tensor *y = kr_new(tape, x[0]->dtype, shape);
    if (!y) return NULL;
    int64_t from = 0;
    for (int i = 0; i < count; i++) {
        if (!put(tape, y, axis, from, x[i])) return NULL;
        from += x[i]->dims[axis];
    }
    const int attrs[2] = { axis, count };
    return kr_recorded(tape, &concat_rule, y, attrs, sizeof attrs, count, x);
}

typedef struct pad_attrs {
    int axis;
    int64_t before;
} pad_attrs;

static void pad_backward(kr_back *back)
{
    const pad_attrs *attrs = kr_back_attrs(back);
    const int64_t size = kr_back_in(back, 0)->dims[attrs->axis];
    kr_back_accumulate(
        back, 0, kr_slice(kr_back_tape(back), kr_back_grad(back, 0), attrs->axis, attrs->before, attrs->before + size));
}

static const kr_rule pad_rule = { .name = "pad", .backward = pad_backward, .allow_infinity = true };

kr_tensor *kr_pad(kr_tape *tape, kr_tensor *x, int axis, int64_t before, int64_t after, double value)
{
    if (!kr_bind_any(tape, "pad", x) || !kr_axis(tape, "pad", x, &axis)) return NULL;
    if (!kr_require(
            tape->ctx, before >= 0 && after >= 0 && before <= INT64_MAX / 4 && after <= INT64_MAX / 4, KR_ERR_ARG,
            "pad: before = %lld, after = %lld on axis %d of x %s, but neither may be negative; kr_slice shortens",
            (long long)before, (long long)after, axis, KR_TEXT_OF(x)))
        return NULL;
    kr_shape shape = kr_tensor_shape(x);
    shape.dims[axis] += before + after;
    kr_tensor *y = kr_new(tape, x->dtype, shape);
    if (!y || !kr_assign_value(tape->ctx, y, value) || !put(tape, y, axis, before, x)) return NULL;
    const pad_attrs attrs = { axis, before };
    return kr_recorded(tape, &pad_rule, y, &attrs, sizeof attrs, KR_LIST(x));
}
