/* reduce.c - sum, mean and maximum over axes; index of the maximum along one.
 *
 *   sum:  g_x = g_y, repeated        mean: g_x = g_y / count, repeated        max: g_x = g_y at the first maximum
 * Adjacent reduced axes are reduced in place; otherwise they are moved to the end first.
 */
#include "ops/ops_impl.h"

/* x with kept axes first and reduced ones last or in one run; and the shapes of the result. */
typedef struct plan {
    kr_tensor *x;
    kr_around around;
    kr_shape kept;    /* reduced axes have size 1 */
    kr_shape dropped; /* reduced axes are removed */
} plan;

static bool mark_axes(kr_tape *tape, const char *op, const kr_tensor *x, const kr_axes *axes, bool *reduced)
{
    for (int i = 0; i < x->rank; i++) reduced[i] = axes->count < 0;
    if (!kr_require(tape->ctx, axes->count <= KR_MAX_RANK, KR_ERR_ARG, "%s: %d axes, but at most %d exist", op,
                    axes->count, KR_MAX_RANK))
        return false;
    for (int i = 0; i < axes->count; i++) {
        int axis = axes->axis[i];
        if (!kr_axis(tape, op, x, &axis)) return false;
        if (!kr_require(tape->ctx, !reduced[axis], KR_ERR_ARG, "%s: axis %d of x %s is named twice", op, axis,
                        KR_TEXT_OF(x)))
            return false;
        reduced[axis] = true;
    }
    return true;
}

static bool make_plan(kr_tape *tape, const char *op, kr_tensor *x, const kr_axes *axes, plan *p)
{
    bool reduced[KR_MAX_RANK];
    if (!mark_axes(tape, op, x, axes, reduced)) return false;
    *p = (plan){ .x = x, .around = { 1, 1, 1 } };
    kr_axes order = { x->rank, { 0 } };
    int nkept = 0, nreduced = 0, runs = 0, first = x->rank;
    for (int i = 0; i < x->rank; i++) nkept += !reduced[i];
    for (int i = 0, kept = 0; i < x->rank; i++) {
        p->kept.dims[p->kept.rank++] = reduced[i] ? 1 : x->dims[i];
        if (!reduced[i]) p->dropped.dims[p->dropped.rank++] = x->dims[i];
        order.axis[reduced[i] ? nkept + nreduced++ : kept++] = i;
        if (reduced[i] && (i == 0 || !reduced[i - 1])) runs++;
        if (reduced[i] && first == x->rank) first = i;
    }
    if (runs > 1) {
        p->x = kr_permute(tape, x, order);
        first = nkept;
    }
    p->x = kr_contiguous(tape, p->x);
    if (!p->x) return false;
    for (int i = 0; i < x->rank; i++) {
        int64_t *n = i < first ? &p->around.no : i < first + nreduced ? &p->around.nr : &p->around.ni;
        *n *= p->x->dims[i];
    }
    return true;
}

/* The gradient of the result, with the reduced axes back at size 1. */
static kr_tensor *kept_grad(kr_back *back)
{
    return kr_reshape(kr_back_tape(back), kr_back_grad(back, 0), *(const kr_shape *)kr_back_attrs(back));
}

typedef struct sum_attrs {
    kr_shape kept;
    double alpha;
} sum_attrs;

static void sum_backward(kr_back *back)
{
    kr_tape *tape = kr_back_tape(back);
    const sum_attrs *attrs = kr_back_attrs(back);
    kr_tensor *g = kept_grad(back);
    if (attrs->alpha != 1) g = kr_scale(tape, g, attrs->alpha);
    kr_back_accumulate(back, 0, kr_expand(tape, g, kr_tensor_shape(kr_back_in(back, 0))));
}

static kr_tensor *sum(kr_tape *tape, const kr_rule *rule, kr_tensor *x, const kr_axes *axes, bool keep, bool mean)
{
    kr_dtype result;
    plan p;
    if (!kr_bind_any(tape, rule->name, x) || !KR_REALS(tape, rule->name, "x", &result, &x) ||
        !make_plan(tape, rule->name, x, axes, &p))
        return NULL;
    const sum_attrs attrs = { p.kept, mean ? 1.0 / (double)p.around.nr : 1.0 };
    kr_tensor *y = kr_new(tape, x->dtype, keep ? p.kept : p.dropped);
    if (!y) return NULL;
    kr_reduce_args args = {
        .no = p.around.no, .nr = p.around.nr, .ni = p.around.ni, .x = p.x->data, .y = y->data, .alpha = attrs.alpha
    };
    if (!KR_RUN(tape->ctx, sum[kr_real_of(y->dtype)], &args)) return NULL;
    return kr_store_as(tape, kr_recorded(tape, rule, y, &attrs, sizeof attrs, KR_LIST(x)), result);
}

static const kr_rule sum_rule = { .name = "sum", .backward = sum_backward };
static const kr_rule mean_rule = { .name = "mean", .backward = sum_backward };

/* Recorded on the planned x: its own permutation and copy are nodes already. */
static void max_backward(kr_back *back)
{
    kr_tape *tape = kr_back_tape(back);
    const kr_around *a = kr_back_attrs(back);
    const kr_tensor *x = kr_back_in(back, 0);
    kr_tensor *g = kr_contiguous(tape, kr_back_grad(back, 0));
    kr_tensor *g_x = kr_new(tape, x->dtype, kr_tensor_shape(x));
    if (!g || !g_x) return;
    kr_max_bwd_args args = { .no = a->no, .nr = a->nr, .ni = a->ni, .x = x->data, .g_y = g->data, .g_x = g_x->data };
    if (KR_RUN(tape->ctx, max_bwd[kr_real_of(x->dtype)], &args)) kr_back_accumulate(back, 0, g_x);
}

static const kr_rule max_rule = { .name = "max", .backward = max_backward };

static kr_tensor *max_over(kr_tape *tape, kr_tensor *x, const kr_axes *axes, bool keep)
{
    kr_dtype result;
    plan p;
    if (!kr_bind_any(tape, "max", x) || !KR_REALS(tape, "max", "x", &result, &x) ||
        !make_plan(tape, "max", x, axes, &p) ||
        !kr_require(tape->ctx, p.around.nr > 0, KR_ERR_SHAPE, "max: x %s has no elements", KR_TEXT_OF(x)))
        return NULL;
    kr_tensor *y = kr_new(tape, x->dtype, keep ? p.kept : p.dropped);
    if (!y) return NULL;
    kr_reduce_args args = { .no = p.around.no, .nr = p.around.nr, .ni = p.around.ni, .x = p.x->data, .y = y->data };
    if (!KR_RUN(tape->ctx, max[kr_real_of(y->dtype)], &args)) return NULL;
    return kr_store_as(tape, kr_recorded(tape, &max_rule, y, &p.around, sizeof p.around, KR_LIST(p.x)), result);
}

kr_tensor *kr_reduce(kr_tape *tape, kr_reduce_kind kind, kr_tensor *x, kr_axes axes, bool keep)
{
    switch (kind) {
    case KR_REDUCE_SUM: return sum(tape, &sum_rule, x, &axes, keep, false);
    case KR_REDUCE_MEAN: return sum(tape, &mean_rule, x, &axes, keep, true);
    case KR_REDUCE_MAX: return max_over(tape, x, &axes, keep);
    }
    if (tape) kr_fail(tape->ctx, KR_ERR_ARG, "reduce: %d is not a kr_reduce_kind", (int)kind);
    return NULL;
}

kr_tensor *kr_argmax(kr_tape *tape, kr_tensor *x, int axis, bool keep)
{
    kr_dtype result;
    plan p;
    if (!kr_bind_any(tape, "argmax", x) || !KR_REALS(tape, "argmax", "x", &result, &x) ||
        !make_plan(tape, "argmax", x, &(kr_axes){ 1, { axis } }, &p) ||
        !kr_require(tape->ctx, p.around.nr > 0, KR_ERR_SHAPE, "argmax: x %s has no elements", KR_TEXT_OF(x)))
        return NULL;
    kr_tensor *y = kr_new(tape, KR_DTYPE_I64, keep ? p.kept : p.dropped);
    if (!y) return NULL;
    kr_argmax_args args = {
        .no = p.around.no, .nr = p.around.nr, .ni = p.around.ni, .x = p.x->data, .y = (int64_t *)(void *)y->data
    };
    tape->ctx->device->wrote_integers = true;
    return KR_RUN(tape->ctx, argmax[kr_real_of(x->dtype)], &args) ? y : NULL;
}
