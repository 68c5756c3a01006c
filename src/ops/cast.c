/* cast.c - another element type, or another layout.
 *
 *   y = x, converted; backward: g_x = g_y, converted back.
 */
#include "ops/ops_impl.h"

static void cast_backward(kr_back *back)
{
    kr_back_accumulate(back, 0, kr_cast(kr_back_tape(back), kr_back_grad(back, 0), kr_grad_dtype(kr_back_in(back, 0))));
}

static const kr_rule cast_rule = { .name = "cast", .backward = cast_backward, .allow_infinity = true };

kr_tensor *kr_cast(kr_tape *tape, kr_tensor *x, kr_dtype dtype)
{
    if (!kr_bind_any(tape, "cast", x)) return NULL;
    if (!kr_require(tape->ctx, kr_dtype_is_valid(dtype), KR_ERR_DTYPE, "cast: %d is not a kr_dtype", (int)dtype))
        return NULL;
    if (x->dtype == dtype) return x;
    kr_tensor *y = kr_new(tape, dtype, kr_tensor_shape(x));
    if (!y || !kr_assign(tape->ctx, y, x)) return NULL;
    if (!kr_dtype_is_float(dtype)) return y;
    return kr_recorded(tape, &cast_rule, y, NULL, 0, KR_LIST(x));
}

static void contiguous_backward(kr_back *back)
{
    kr_back_accumulate(back, 0, kr_back_grad(back, 0));
}

static const kr_rule contiguous_rule = { .name = "contiguous",
                                         .backward = contiguous_backward,
                                         .allow_infinity = true };

kr_tensor *kr_contiguous(kr_tape *tape, kr_tensor *x)
{
    if (!kr_bind_any(tape, "contiguous", x)) return NULL;
    if (kr_tensor_is_row_major(x)) return x;
    kr_tensor *y = kr_new(tape, x->dtype, kr_tensor_shape(x));
    if (!y || !kr_assign(tape->ctx, y, x)) return NULL;
    y->flags.grad_f32 = x->flags.grad_f32;
    return kr_recorded(tape, &contiguous_rule, y, NULL, 0, KR_LIST(x));
}
