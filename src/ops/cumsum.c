/* cumsum.c - running sums along an axis, and segment sums.
 *
 *   cumsum: y_t = sum of x_q, q <= t (reverse: q >= t);        g_x = cumsum of g_y the other way
 *   segsum: y[t, u] = sum of x_q, u < q <= t; -inf for t < u;  g_x[q] = sum of g_y[t, u], u < q <= t
 */
#include "ops/ops_impl.h"

static kr_tensor *cumsum(kr_tape *tape, kr_tensor *x, int axis, bool reverse);

typedef struct cumsum_attrs {
    int axis;
    bool reverse;
} cumsum_attrs;

static void cumsum_backward(kr_back *back)
{
    const cumsum_attrs *attrs = kr_back_attrs(back);
    kr_back_accumulate(back, 0, cumsum(kr_back_tape(back), kr_back_grad(back, 0), attrs->axis, !attrs->reverse));
}

/* by `reverse` */
static const kr_rule cumsum_rules[] = { { .name = "cumsum", .backward = cumsum_backward },
                                        { .name = "cumsum_reverse", .backward = cumsum_backward } };

static kr_tensor *cumsum(kr_tape *tape, kr_tensor *x, int axis, bool reverse)
{
    kr_dtype result;
    const kr_rule *rule = &cumsum_rules[reverse];
    if (!kr_bind_any(tape, rule->name, x) || !KR_REALS(tape, rule->name, "x", &result, &x) ||
        !kr_axis(tape, rule->name, x, &axis) || !(x = kr_contiguous(tape, x)))
        return NULL;
    kr_tensor *y = kr_new(tape, x->dtype, kr_tensor_shape(x));
    if (!y) return NULL;
    const kr_around a = kr_around_axis(x, axis);
    kr_cumsum_args args = { .no = a.no, .nr = a.nr, .ni = a.ni, .x = x->data, .y = y->data, .reverse = reverse };
    if (!KR_RUN(tape->ctx, cumsum[kr_real_of(x->dtype)], &args)) return NULL;
    const cumsum_attrs attrs = { axis, reverse };
    return kr_store_as(tape, kr_recorded(tape, rule, y, &attrs, sizeof attrs, KR_LIST(x)), result);
}

kr_tensor *kr_cumulative_sum(kr_tape *tape, kr_tensor *x, int axis, bool reverse)
{
    return cumsum(tape, x, axis, reverse);
}

static void segsum_backward(kr_back *back)
{
    kr_tape *tape = kr_back_tape(back);
    const kr_tensor *x = kr_back_in(back, 0);
    kr_tensor *g = kr_contiguous(tape, kr_back_grad(back, 0));
    kr_tensor *g_x = kr_new(tape, x->dtype, kr_tensor_shape(x));
    if (!g || !g_x) return;
    const kr_around a = kr_around_axis(x, x->rank - 1);
    kr_segsum_args args = { .no = a.no, .nl = a.nr, .x = g->data, .y = g_x->data };
    if (KR_RUN(tape->ctx, segsum_bwd[kr_real_of(x->dtype)], &args)) kr_back_accumulate(back, 0, g_x);
}

static const kr_rule segsum_rule = { .name = "segsum", .backward = segsum_backward, .allow_infinity = true };

kr_tensor *kr_segsum(kr_tape *tape, kr_tensor *x)
{
    kr_dims d;
    kr_dtype result;
    if (!kr_bind(tape, "segsum", &d, "x:..l", x) || !KR_REALS(tape, "segsum", "x", &result, &x) ||
        !kr_require(tape->ctx, x->rank < KR_MAX_RANK, KR_ERR_SHAPE,
                    "segsum: x %s has rank %d, and the result would have one more than %d", KR_TEXT_OF(x), x->rank,
                    KR_MAX_RANK) ||
        !(x = kr_contiguous(tape, x)))
        return NULL;
    kr_shape shape = kr_tensor_shape(x);
    shape.dims[shape.rank++] = d.l;
    kr_tensor *y = kr_new(tape, x->dtype, shape);
    if (!y) return NULL;
    kr_segsum_args args = { .no = d.rows, .nl = d.l, .x = x->data, .y = y->data };
    if (!KR_RUN(tape->ctx, segsum[kr_real_of(x->dtype)], &args)) return NULL;
    return kr_store_as(tape, kr_recorded(tape, &segsum_rule, y, NULL, 0, KR_LIST(x)), result);
}
