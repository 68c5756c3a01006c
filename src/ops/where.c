/* where.c - a choice by mask, and a constant put in by mask.
 *
 *   where:     y = mask ? a : b;   g_a = mask ? g : 0,  g_b = mask ? 0 : g   (summed where broadcast)
 *   mask_fill: y = mask ? value : x;   g_x = mask ? 0 : g
 */
#include "ops/ops_impl.h"

/* a or b NULL: the scalar. Not recorded. */
static kr_tensor *choose(kr_tape *tape, const kr_tensor *mask, const kr_tensor *a, const kr_tensor *b, double scalar,
                         const kr_shape *shape)
{
    const kr_tensor *real = a ? a : b;
    kr_tensor *y = kr_new(tape, real->dtype, *shape);
    if (!y) return NULL;
    kr_where_args args = { .walk = kr_walk_over(shape, 4, (const kr_tensor *[]){ y, mask, a ? a : real, b ? b : real }),
                           .mask = (const int32_t *)(const void *)mask->data,
                           .a = a ? a->data : NULL,
                           .b = b ? b->data : NULL,
                           .y = y->data,
                           .scalar = scalar };
    return KR_RUN(tape->ctx, where[kr_real_of(y->dtype)], &args) ? y : NULL;
}

/* mask as i32, or NULL with an error. */
static kr_tensor *as_mask(kr_tape *tape, const char *op, kr_tensor *mask)
{
    if (!kr_require(tape->ctx, mask->dtype == KR_DTYPE_I32 || mask->dtype == KR_DTYPE_I64, KR_ERR_DTYPE,
                    "%s: mask %s is %s, but must be i32 or i64", op, KR_TEXT_OF(mask), kr_dtype_name(mask->dtype)))
        return NULL;
    return kr_cast(tape, mask, KR_DTYPE_I32);
}

static void where_backward(kr_back *back)
{
    kr_tape *tape = kr_back_tape(back);
    kr_tensor *g = kr_back_grad(back, 0), *mask = kr_back_in(back, 0);
    const kr_shape shape = kr_tensor_shape(g);
    if (kr_back_wants(back, 1))
        kr_back_accumulate(
            back, 1, kr_sum_to(tape, choose(tape, mask, g, NULL, 0, &shape), kr_tensor_shape(kr_back_in(back, 1))));
    if (kr_back_wants(back, 2))
        kr_back_accumulate(
            back, 2, kr_sum_to(tape, choose(tape, mask, NULL, g, 0, &shape), kr_tensor_shape(kr_back_in(back, 2))));
}

static const kr_rule where_rule = { .name = "where", .backward = where_backward, .allow_infinity = true };

kr_tensor *kr_where(kr_tape *tape, kr_tensor *mask, kr_tensor *a, kr_tensor *b)
{
    kr_dims d;
    kr_dtype result;
    if (!kr_bind(tape, "where", &d, "mask:..", mask) || !kr_bind(tape, "where", &d, "a:..", a) ||
        !kr_bind(tape, "where", &d, "b:..", b) || !KR_REALS(tape, "where", "a b", &result, &a, &b) ||
        !(mask = as_mask(tape, "where", mask)))
        return NULL;
    const kr_shape shapes[] = { kr_tensor_shape(a), kr_tensor_shape(b), kr_tensor_shape(mask) };
    kr_shape both, shape;
    if (!kr_broadcast(tape, "where", "a", &shapes[0], "b", &shapes[1], &both)) return NULL;
    if (!kr_broadcast(tape, "where", "mask", &shapes[2], "a with b", &both, &shape)) return NULL;
    kr_tensor *y = choose(tape, mask, a, b, 0, &shape);
    return kr_store_as(tape, kr_recorded(tape, &where_rule, y, NULL, 0, KR_LIST(mask, a, b)), result);
}

static void mask_fill_backward(kr_back *back)
{
    kr_tape *tape = kr_back_tape(back);
    kr_tensor *g = kr_back_grad(back, 0);
    const kr_shape shape = kr_tensor_shape(g);
    kr_tensor *g_x = choose(tape, kr_back_in(back, 1), NULL, g, 0, &shape);
    kr_back_accumulate(back, 0, kr_sum_to(tape, g_x, kr_tensor_shape(kr_back_in(back, 0))));
}

static const kr_rule mask_fill_rule = { .name = "mask_fill", .backward = mask_fill_backward, .allow_infinity = true };

kr_tensor *kr_mask_fill(kr_tape *tape, kr_tensor *x, kr_tensor *mask, double value)
{
    kr_dims d;
    kr_dtype result;
    if (!kr_bind(tape, "mask_fill", &d, "x:..", x) || !kr_bind(tape, "mask_fill", &d, "mask:..", mask) ||
        !KR_REALS(tape, "mask_fill", "x", &result, &x) || !(mask = as_mask(tape, "mask_fill", mask)))
        return NULL;
    const kr_shape x_shape = kr_tensor_shape(x), mask_shape = kr_tensor_shape(mask);
    kr_shape shape;
    if (!kr_broadcast(tape, "mask_fill", "x", &x_shape, "mask", &mask_shape, &shape)) return NULL;
    kr_tensor *y = choose(tape, mask, NULL, x, value, &shape);
    return kr_store_as(tape, kr_recorded(tape, &mask_fill_rule, y, NULL, 0, KR_LIST(x, mask)), result);
}
