/* ops_shape.h - the same elements in another arrangement or type.
 *
 *   kr_tensor *x_bshp = kr_reshape(tape, x_bsi, KR_SHAPE(2, 64, 8, -1));
 *   kr_tensor *x_bhsp = kr_permute(tape, x_bshp, KR_AXES(0, 2, 1, 3));
 *
 * Views (no copy): permute, transpose, slice, split, expand, flip, and reshape where strides allow. All element types
 * (gather and embedding: floats by integer ids); gradients for the float ones.
 */
#ifndef KRAIT_OPS_SHAPE_H
#define KRAIT_OPS_SHAPE_H

#include <krait/ops_math.h>

#ifdef __cplusplus
extern "C" {
#endif

/* One size may be -1: what remains. */
KR_API kr_tensor *kr_reshape(kr_tape *tape, kr_tensor *x, kr_shape shape);

/* Axis i of the result is axis order[i] of x. */
KR_API kr_tensor *kr_permute(kr_tape *tape, kr_tensor *x, kr_axes order);

/* The last two axes exchanged. */
KR_API kr_tensor *kr_transpose(kr_tape *tape, kr_tensor *x);

/* Elements from .. to - 1 of an axis; both may be < 0 and count from the end then. */
KR_API kr_tensor *kr_slice(kr_tape *tape, kr_tensor *x, int axis, int64_t from, int64_t to);

/* An axis cut into `count` parts of the given sizes, which must add up to it. False after an error (parts are NULL). */
KR_API bool kr_split(kr_tape *tape, kr_tensor *x, int axis, int count, const int64_t *sizes, kr_tensor **parts);

/* Joined along an axis; all other sizes agree. */
KR_API kr_tensor *kr_concat(kr_tape *tape, int axis, int count, kr_tensor *const *x);

/* `before` and `after` more elements on an axis, all `value`. */
KR_API kr_tensor *kr_pad(kr_tape *tape, kr_tensor *x, int axis, int64_t before, int64_t after, double value);

/* Repeats axes of size 1, and adds axes in front, up to the shape. */
KR_API kr_tensor *kr_expand(kr_tape *tape, kr_tensor *x, kr_shape shape);

/* An axis in reverse order. */
KR_API kr_tensor *kr_flip(kr_tape *tape, kr_tensor *x, int axis);

/* x itself if its elements are row-major, else a copy that is. */
KR_API kr_tensor *kr_contiguous(kr_tape *tape, kr_tensor *x);

/* To another element type: float to a narrower float rounds to nearest even; float to integer truncates, saturates, and
 * makes NaN 0. The gradient is cast back; integers have none. */
KR_API kr_tensor *kr_cast(kr_tape *tape, kr_tensor *x, kr_dtype dtype);

/* y[.., j, ..] = x[.., id[.., j, ..], ..] along the axis; id is i32 or i64, of x's rank, and agrees with x on the other
 * axes. */
KR_API kr_tensor *kr_gather(kr_tape *tape, kr_tensor *x, int axis, kr_tensor *id);

/* table [w d], id [..] (i32 or i64) -> [.. d]: rows by number. */
KR_API kr_tensor *kr_embedding(kr_tape *tape, kr_tensor *table, kr_tensor *id);

#ifdef __cplusplus
}
#endif
#endif
