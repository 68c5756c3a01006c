/* walk.c - broadcasting strides, merged into as few axes as possible. */
#include "device/walk.h"

static int64_t stride_at(const kr_tensor *x, int axis, int rank)
{
    const int own = axis - (rank - x->rank);
    return own < 0 || x->dims[own] == 1 ? 0 : x->strides[own];
}

static bool joins(const kr_walk *walk, int count, int outer, int64_t inner_dim, const int64_t *inner)
{
    for (int o = 0; o < count; o++)
        if (walk->strides[o][outer] != inner[o] * inner_dim) return false;
    return true;
}

kr_walk kr_walk_over(const kr_shape *shape, int count, const kr_tensor *const *operands)
{
    kr_walk walk = { 0 };
    for (int axis = 0; axis < shape->rank; axis++) {
        const int64_t dim = shape->dims[axis];
        if (dim == 1) continue;
        int64_t inner[KR_WALK_OPERANDS] = { 0 };
        for (int o = 0; o < count; o++) inner[o] = stride_at(operands[o], axis, shape->rank);
        int to = walk.rank;
        if (to > 0 && joins(&walk, count, to - 1, dim, inner)) walk.dims[--to] *= dim;
        else walk.dims[to] = dim;
        for (int o = 0; o < count; o++) walk.strides[o][to] = inner[o];
        walk.rank = to + 1;
    }
    return walk;
}

kr_walk kr_walk_self(const kr_tensor *x)
{
    const kr_shape shape = kr_tensor_shape(x);
    return kr_walk_over(&shape, 1, &x);
}

kr_copy_args kr_copy_of(const kr_tensor *y, const kr_tensor *x)
{
    const kr_shape shape = kr_tensor_shape(y);
    return (kr_copy_args){ .walk = kr_walk_over(&shape, 2, (const kr_tensor *[]){ y, x }),
                           .x_dtype = x->dtype,
                           .y_dtype = y->dtype,
                           .x = x->data,
                           .y = y->data };
}
