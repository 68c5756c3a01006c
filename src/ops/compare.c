/* compare.c - the comparisons of kernels/compare.def: i32 masks of 1 and 0, for kr_where, kr_mask_fill and losses.
 *
 * Operands are both floats or both integers, and broadcast. There is no gradient.
 */
#include "ops/ops_impl.h"

/* a and b of one type that the kernel takes. */
static bool unify(kr_tape *tape, const char *op, kr_tensor **a, kr_tensor **b)
{
    const bool a_float = kr_dtype_is_float((*a)->dtype), b_float = kr_dtype_is_float((*b)->dtype);
    kr_dtype result;
    if (a_float && b_float) return KR_REALS(tape, op, "a b", &result, a, b);
    if (!kr_require(
            tape->ctx, a_float == b_float, KR_ERR_DTYPE,
            "%s: a %s is %s, but b %s is %s; floats compare with floats, integers with integers: kr_cast one of them",
            op, KR_TEXT_OF(*a), kr_dtype_name((*a)->dtype), KR_TEXT_OF(*b), kr_dtype_name((*b)->dtype)))
        return false;
    if ((*a)->dtype == (*b)->dtype) return true;
    *a = kr_cast(tape, *a, KR_DTYPE_I64);
    *b = kr_cast(tape, *b, KR_DTYPE_I64);
    return *a && *b;
}

static kr_tensor *compare(kr_tape *tape, const char *op, int wanted, kr_tensor *a, kr_tensor *b)
{
    kr_dims d;
    if (!kr_bind(tape, op, &d, "a:..", a) || !kr_bind(tape, op, &d, "b:..", b) || !unify(tape, op, &a, &b)) return NULL;
    const kr_shape a_shape = kr_tensor_shape(a), b_shape = kr_tensor_shape(b);
    kr_shape shape;
    if (!kr_broadcast(tape, op, "a", &a_shape, "b", &b_shape, &shape)) return NULL;
    kr_tensor *y = kr_new(tape, KR_DTYPE_I32, shape);
    if (!y) return NULL;
    kr_compare_args args = { .walk = kr_walk_over(&shape, 3, (const kr_tensor *[]){ y, a, b }),
                             .dtype = a->dtype,
                             .wanted = wanted,
                             .a = a->data,
                             .b = b->data,
                             .y = (int32_t *)(void *)y->data };
    tape->ctx->device->wrote_integers = true;
    return KR_RUN(tape->ctx, compare, &args) ? y : NULL;
}

typedef struct comparison {
    const char *name;
    int outcomes;
} comparison;

static const comparison comparisons[] = {
#define KR_COMPARISON(name, outcomes) { #name, (outcomes) },
#include "kernels/compare.def"
#undef KR_COMPARISON
};

/* compare.def has the order of kr_compare_kind. */
kr_tensor *kr_compare(kr_tape *tape, kr_compare_kind which, kr_tensor *a, kr_tensor *b)
{
    if ((size_t)which < sizeof comparisons / sizeof *comparisons)
        return compare(tape, comparisons[which].name, comparisons[which].outcomes, a, b);
    if (tape) kr_fail(tape->ctx, KR_ERR_ARG, "compare: %d is not a kr_compare_kind", (int)which);
    return NULL;
}
