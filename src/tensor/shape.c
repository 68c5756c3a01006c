/* shape.c - element types, sizes and strides. */
#include "tensor/tensor_impl.h"

#include "base/names.h"

#include <stdio.h>

KR_NAMES(kr_dtype, "f32", "f64", "bf16", "f16", "i32", "i64");
static const size_t dtype_bytes[KR_N_DTYPES] = { 4, 8, 2, 2, 4, 8 };

bool kr_dtype_is_valid(kr_dtype dtype)
{
    return (unsigned)dtype < KR_N_DTYPES;
}

size_t kr_dtype_bytes(kr_dtype dtype)
{
    return kr_dtype_is_valid(dtype) ? dtype_bytes[dtype] : 0;
}

size_t kr_dtype_span(kr_dtype dtype, int64_t count)
{
    return (size_t)count * kr_dtype_bytes(dtype);
}

int64_t kr_dtype_offset(kr_dtype dtype, int64_t at)
{
    return at * (int64_t)kr_dtype_bytes(dtype);
}

bool kr_dtype_is_float(kr_dtype dtype)
{
    return dtype == KR_DTYPE_F32 || dtype == KR_DTYPE_F64 || kr_dtype_is_narrow(dtype);
}

bool kr_dtype_is_narrow(kr_dtype dtype)
{
    return kr_dtype_is_16bit(dtype);
}

bool kr_dtype_is_16bit(kr_dtype dtype)
{
    return dtype == KR_DTYPE_BF16 || dtype == KR_DTYPE_F16;
}

int64_t kr_shape_count(const kr_shape *shape)
{
    enum { WIDEST = 8 }; /* bytes of an element: the product must be addressable in bytes */
    if (shape->rank < 0 || shape->rank > KR_MAX_RANK) return -1;
    int64_t count = 1, extent = 1; /* extent leaves out empty axes: strides must fit even then */
    for (int axis = 0; axis < shape->rank; axis++) {
        const int64_t size = shape->dims[axis];
        if (size < 0) return -1;
        if (size > 0 && extent > INT64_MAX / WIDEST / size) return -1;
        if (size > 0) extent *= size;
        count *= size;
    }
    return count;
}

bool kr_shape_equal(const kr_shape *a, const kr_shape *b)
{
    if (a->rank != b->rank) return false;
    for (int axis = 0; axis < a->rank; axis++)
        if (a->dims[axis] != b->dims[axis]) return false;
    return true;
}

const char *kr_shape_write(const kr_shape *shape, char *text, size_t bytes)
{
    size_t at = 0;
    for (int axis = 0; axis <= shape->rank && at < bytes; axis++) {
        int n = axis == shape->rank
                    ? snprintf(text + at, bytes - at, "%s]", axis ? "" : "[")
                    : snprintf(text + at, bytes - at, "%s%lld", axis ? ", " : "[", (long long)shape->dims[axis]);
        if (n < 0) break;
        at += (size_t)n;
    }
    return text;
}

const char *kr_index_text(const kr_tensor *x, int64_t flat, char *text, size_t bytes)
{
    kr_shape index = kr_tensor_shape(x);
    for (int axis = x->rank - 1; axis >= 0; axis--) {
        index.dims[axis] = flat % x->dims[axis];
        flat /= x->dims[axis];
    }
    return kr_shape_write(&index, text, bytes);
}

void kr_tensor_layout(kr_tensor *x, kr_dtype dtype, const kr_shape *shape)
{
    x->dtype = dtype;
    x->rank = shape->rank;
    int64_t stride = 1;
    for (int axis = shape->rank - 1; axis >= 0; axis--) {
        x->dims[axis] = shape->dims[axis];
        x->strides[axis] = stride;
        if (shape->dims[axis] > 0) stride *= shape->dims[axis];
    }
}

bool kr_tensor_is_row_major(const kr_tensor *x)
{
    int64_t stride = 1;
    for (int axis = x->rank - 1; axis >= 0; axis--) {
        if (x->dims[axis] == 0) return true;
        if (x->dims[axis] != 1 && x->strides[axis] != stride) return false;
        stride *= x->dims[axis];
    }
    return true;
}

kr_dtype kr_tensor_dtype(const kr_tensor *x)
{
    return x ? x->dtype : KR_DTYPE_F32;
}

kr_shape kr_tensor_shape(const kr_tensor *x)
{
    kr_shape shape = { 0, { 0 } };
    if (!x) return shape;
    shape.rank = x->rank;
    for (int axis = 0; axis < x->rank; axis++) shape.dims[axis] = x->dims[axis];
    return shape;
}

void *kr_tensor_data(const kr_tensor *x)
{
    return x ? x->data : NULL;
}

const char *kr_shape_text(const kr_tensor *x, char *text, size_t bytes)
{
    if (!text) return "";
    if (!x) {
        snprintf(text, bytes, "NULL");
        return text;
    }
    const kr_shape shape = kr_tensor_shape(x);
    return kr_shape_write(&shape, text, bytes);
}
