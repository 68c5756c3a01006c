/* softmax.c - softmax and its logarithm along an axis.
 *
 *   y = e^(x - max x) / sum;  g_x = y (g_y - <y, g_y>)         log: y = x - max x - log sum;  g_x = g_y - e^y sum(g_y)
 */
#include "ops/ops_impl.h"

static void softmax_backward(kr_back *back)
{
    kr_tape *tape = kr_back_tape(back);
    const kr_tensor *y = kr_back_out(back, 0);
    kr_tensor *g_y = kr_contiguous(tape, kr_back_grad(back, 0));
    kr_tensor *g_x = kr_new(tape, y->dtype, kr_tensor_shape(y));
    if (!g_y || !g_x) return;
    const kr_around a = kr_around_axis(y, y->rank - 1);
    kr_softmax_bwd_args args = { .no = a.no,
                                 .nr = a.nr,
                                 .y = y->data,
                                 .g_y = g_y->data,
                                 .g_x = g_x->data,
                                 .logarithm = *(const bool *)kr_back_attrs(back) };
    if (KR_RUN(tape->ctx, softmax_bwd[kr_real_of(y->dtype)], &args)) kr_back_accumulate(back, 0, g_x);
}

static const kr_rule softmax_rule = { .name = "softmax", .backward = softmax_backward };
static const kr_rule log_softmax_rule = { .name = "log_softmax", .backward = softmax_backward, .allow_infinity = true };

/* Over the last axis of a row-major x. */
static kr_tensor *over_last(kr_tape *tape, const kr_rule *rule, kr_tensor *x, bool logarithm)
{
    kr_tensor *y = kr_new(tape, x->dtype, kr_tensor_shape(x));
    if (!y) return NULL;
    const kr_around a = kr_around_axis(x, x->rank - 1);
    kr_softmax_args args = { .no = a.no, .nr = a.nr, .x = x->data, .y = y->data, .logarithm = logarithm };
    if (!KR_RUN(tape->ctx, softmax[kr_real_of(x->dtype)], &args)) return NULL;
    return kr_recorded(tape, rule, y, &logarithm, sizeof logarithm, KR_LIST(x));
}

static kr_tensor *softmax(kr_tape *tape, const kr_rule *rule, kr_tensor *x, int axis, bool logarithm)
{
    kr_dtype result;
    if (!kr_bind_any(tape, rule->name, x) || !KR_REALS(tape, rule->name, "x", &result, &x) ||
        !kr_axis(tape, rule->name, x, &axis))
        return NULL;
    kr_axes swap = { x->rank, { 0 } };
    for (int i = 0; i < x->rank; i++) swap.axis[i] = i;
    swap.axis[axis] = x->rank - 1;
    swap.axis[x->rank - 1] = axis;
    const bool is_last = axis == x->rank - 1;
    x = kr_contiguous(tape, is_last ? x : kr_permute(tape, x, swap));
    kr_tensor *y = x ? over_last(tape, rule, x, logarithm) : NULL;
    return kr_store_as(tape, is_last ? y : y ? kr_permute(tape, y, swap) : NULL, result);
}

kr_tensor *kr_softmax_along(kr_tape *tape, kr_tensor *x, int axis, bool logarithm)
{
    return softmax(tape, logarithm ? &log_softmax_rule : &softmax_rule, x, axis, logarithm);
}
