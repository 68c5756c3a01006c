/* transfer.c - the way out: a tensor's elements into the caller's memory. */
#include "device/device.h"
#include "device/walk.h"
#include "tensor/tensor.h"

#include <math.h>
#include <string.h>

/* Without the context's pool and scratch: reading is allowed after an error, too. */
static void read_into(const kr_tensor *x, kr_dtype dtype, void *out)
{
    const kr_shape shape = kr_tensor_shape(x);
    kr_tensor y = { .ctx = x->ctx };
    kr_tensor_layout(&y, dtype, &shape);
    kr_copy_args args = { .walk = kr_walk_over(&shape, 2, (const kr_tensor *[]){ &y, x }),
                          .x_dtype = x->dtype,
                          .y_dtype = dtype,
                          .x = x->data,
                          .y = out };
    x->ctx->device->kernels.copy.run(&args);
}

kr_status kr_tensor_read(const kr_tensor *x, kr_dtype dtype, void *out, int64_t count)
{
    if (!x) return KR_ERR_ARG;
    if (!kr_dtype_is_valid(dtype)) {
        kr_fail(x->ctx, KR_ERR_DTYPE, "tensor_read: %d is no kr_dtype", (int)dtype);
        return KR_ERR_DTYPE;
    }
    if (count != kr_tensor_count(x)) {
        kr_fail(x->ctx, KR_ERR_ARG, "tensor_read: room for %lld elements, but x %s has %lld", (long long)count,
                KR_TEXT_OF(x), (long long)kr_tensor_count(x));
        return KR_ERR_ARG;
    }
    if (count > 0) read_into(x, dtype, out);
    return KR_OK;
}

double kr_tensor_at(const kr_tensor *x, const int64_t *index)
{
    if (!x) return NAN;
    kr_tensor one = *x;
    one.rank = 0;
    for (int axis = 0; axis < x->rank; axis++) {
        if (!kr_require(x->ctx, index[axis] >= 0 && index[axis] < x->dims[axis], KR_ERR_ARG,
                        "tensor_at: index %lld on axis %d of x %s", (long long)index[axis], axis, KR_TEXT_OF(x)))
            return NAN;
        one.data += index[axis] * x->strides[axis] * (int64_t)kr_dtype_bytes(x->dtype);
    }
    double value;
    read_into(&one, KR_F64, &value);
    return value;
}

double kr_item(const kr_tensor *x)
{
    if (!x) return NAN;
    if (!kr_require(x->ctx, kr_tensor_count(x) == 1, KR_ERR_SHAPE, "item: x %s has %lld elements, but must have 1",
                    KR_TEXT_OF(x), (long long)kr_tensor_count(x)))
        return NAN;
    return kr_tensor_at(x, (int64_t[KR_MAX_RANK]){ 0 });
}
