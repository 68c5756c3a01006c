/* borrow.c - tensors over the caller's memory. */
#include "device/device.h"
#include "tape/tape_impl.h"

#include <string.h>

bool kr_describe_memory(kr_tape *tape, const char *op, kr_dtype dtype, const kr_shape *shape, const void *data,
                        kr_tensor *x)
{
    if (!kr_tape_ready(tape, op)) return false;
    const int64_t count = kr_shape_count(shape);
    if (!kr_require(tape->ctx, kr_dtype_is_valid(dtype), KR_ERR_DTYPE, "%s: %d is not a kr_dtype", op, (int)dtype) ||
        !kr_require(tape->ctx, count >= 0, KR_ERR_SHAPE,
                    "%s: invalid shape: rank %d must be from 0 to %d, and sizes not negative and addressable", op,
                    shape->rank, KR_MAX_RANK) ||
        !kr_require(tape->ctx, data != NULL || count == 0, KR_ERR_ARG, "%s: data is NULL, but the shape is %s", op,
                    KR_TEXT_OF_SHAPE(shape)))
        return false;
    *x = (kr_tensor){ .ctx = tape->ctx, .tape = tape };
    kr_tensor_layout(x, dtype, shape);
    memcpy(&x->data, &data, sizeof data); /* tensors on a tape are never written, so const holds */
    return true;
}

/* Device memory. A kernel that reads an unaligned element there is a fault, which breaks the context. */
static bool can_lend(kr_tape *tape, const char *op, kr_dtype dtype, const void *data)
{
    return kr_require(tape->ctx, kr_device_owns(tape->ctx, data), KR_ERR_ARG,
                      "%s: data is memory of another device than %s; copy it there first", op,
                      tape->ctx->device->name) &&
           kr_require(tape->ctx, (uintptr_t)data % kr_dtype_bytes(dtype) == 0, KR_ERR_ARG,
                      "%s: the address of data is not a multiple of %zu, the size of an element", op,
                      kr_dtype_bytes(dtype));
}

kr_tensor *kr_borrow(kr_tape *tape, const char *op, kr_dtype dtype, const kr_shape *shape, const int64_t *strides,
                     const void *data)
{
    kr_tensor borrowed;
    if (!kr_describe_memory(tape, op, dtype, shape, data, &borrowed)) return NULL;
    if (!kr_ctx_on_device(tape->ctx)) return kr_view_of(tape, &borrowed, shape, strides, 0);
    /* the host reads integers, so they are not used in device memory */
    if (kr_dtype_is_float(dtype) && kr_on_device(tape->ctx, data))
        return can_lend(tape, op, dtype, data) ? kr_view_of(tape, &borrowed, shape, strides, 0) : NULL;
    kr_tensor *y = kr_new(tape, dtype, *shape); /* the device cannot access the caller's memory */
    if (strides) memcpy(borrowed.strides, strides, (size_t)shape->rank * sizeof *strides);
    return y && kr_tensor_take(y, &borrowed) ? y : NULL;
}

kr_tensor *kr_input_view(kr_tape *tape, const kr_view *view)
{
    if (!kr_tape_ready(tape, "input_view") ||
        !kr_require(tape->ctx, view != NULL, KR_ERR_ARG, "input_view: view is NULL"))
        return NULL;
    kr_shape shape = { .rank = view->rank };
    memcpy(shape.dims, view->dims, sizeof shape.dims);
    if (!kr_require(tape->ctx, !kr_dtype_is_valid(view->dtype) || kr_dtype_is_float(view->dtype), KR_ERR_DTYPE,
                    "input_view: the view is %s, but only floats have gradients", kr_dtype_name(view->dtype)) ||
        !kr_require(tape->ctx,
                    !kr_dtype_is_valid(view->dtype) || (uintptr_t)view->data % kr_dtype_bytes(view->dtype) == 0,
                    KR_ERR_ARG, "input_view: the address of data is not a multiple of %zu, the size of an element",
                    kr_dtype_bytes(view->dtype)))
        return NULL;
    kr_tensor *y = kr_borrow(tape, "input_view", view->dtype, &shape, view->strides, view->data);
    if (y) y->flags.requires_grad = tape->recording;
    return y;
}
