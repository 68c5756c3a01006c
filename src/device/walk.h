/* walk.h - from tensors to the index space of an elementwise kernel. */
#ifndef KR_DEVICE_WALK_H
#define KR_DEVICE_WALK_H

#include "kernels/kernels.h"
#include "tensor/tensor_impl.h"

/* The space of `shape`, over which each operand broadcasts (axes aligned at the end, size 1 repeats). Axes of size 1 are
 * dropped, and adjacent axes that are contiguous in every operand are merged. */
kr_walk kr_walk_over(const kr_shape *shape, int count, const kr_tensor *const *operands);

/* One operand over its own shape. */
kr_walk kr_walk_self(const kr_tensor *x);

/* The arguments that copy x to y, of one shape and any types and strides. */
kr_copy_args kr_copy_of(const kr_tensor *y, const kr_tensor *x);

#endif
