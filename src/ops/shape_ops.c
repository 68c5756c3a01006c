/* shape_ops.c - views: reshape, permute, slice, split, expand, flip. The gradient is the inverse view. */
#include "ops/ops_impl.h"

#include <string.h>

/* ---- reshape: g_x = g_y in x's shape; a gradient in a slab becomes x's without a copy ---- */

static void reshape_backward(kr_back *back)
{
    kr_tape *tape = kr_back_tape(back);
    kr_tensor *x = kr_back_in(back, 0), *g = kr_back_grad(back, 0);
    if (kr_grad_move_to_slab(tape, x, g)) return;
    kr_back_accumulate(back, 0, kr_reshape(tape, kr_cast(tape, g, kr_grad_dtype(x)), kr_tensor_shape(x)));
}

static const kr_rule reshape_rule = { .name = "reshape", .backward = reshape_backward, .allow_infinity = true };

/* Replaces a size of -1 by the remaining size. */
static bool infer_shape(kr_tape *tape, const kr_tensor *x, const kr_shape *given, kr_shape *shape)
{
    *shape = *given;
    const int64_t count = kr_count_of(x);
    int open = -1;
    bool ok = given->rank >= 0 && given->rank <= KR_MAX_RANK;
    int64_t rest = 1;
    for (int i = 0; ok && i < given->rank; i++) {
        if (given->dims[i] == -1 && open < 0) open = i;
        else if (given->dims[i] < 0 || (given->dims[i] > 0 && rest > INT64_MAX / given->dims[i])) ok = false;
        else rest *= given->dims[i];
    }
    if (ok && open >= 0) {
        ok = rest > 0 && count % rest == 0;
        if (ok) shape->dims[open] = count / rest;
    }
    ok = ok && (open >= 0 || rest == count) && kr_shape_count(shape) >= 0;
    kr_shape shown = *given;
    if (shown.rank < 0 || shown.rank > KR_MAX_RANK) shown.rank = 0;
    return kr_require(tape->ctx, ok, KR_ERR_SHAPE, "reshape: x %s has %lld elements, which do not fill %s%s",
                      KR_TEXT_OF(x), (long long)count, KR_TEXT_OF_SHAPE(&shown),
                      open >= 0 ? " (-1 takes what remains)" : "");
}

/* The strides of x as a view of that shape, if there is one: axes are cut and joined in runs of equal size, and the
 * axes of x in a run must follow one another. */
static bool strides_as(const kr_tensor *x, const kr_shape *shape, int64_t *strides)
{
    int64_t dims[KR_MAX_RANK], steps[KR_MAX_RANK];
    int rank = 0;
    for (int i = 0; i < x->rank; i++) {
        if (x->dims[i] == 1) continue;
        dims[rank] = x->dims[i];
        steps[rank++] = x->strides[i];
    }
    for (int i = 0; i < shape->rank; i++) strides[i] = 1; /* of axes of size 1 after the last run */
    for (int from = 0, to = 0; from < rank;) {
        int64_t have = dims[from], want = shape->dims[to];
        int last = from++, end = to + 1;
        while (have != want) {
            if (want < have) {
                want *= shape->dims[end++];
            } else {
                if (steps[last] != dims[from] * steps[from]) return false;
                have *= dims[from];
                last = from++;
            }
        }
        int64_t step = steps[last];
        for (int i = end - 1; i >= to; i--) {
            strides[i] = step;
            step *= shape->dims[i];
        }
        to = end;
    }
    return true;
}

kr_tensor *kr_reshape(kr_tape *tape, kr_tensor *x, kr_shape given)
{
    kr_shape shape;
    int64_t strides[KR_MAX_RANK];
    if (!kr_bind_any(tape, "reshape", x) || !infer_shape(tape, x, &given, &shape)) return NULL;
    const bool is_view = !kr_tensor_is_row_major(x) && strides_as(x, &shape, strides);
    if (!is_view && !(x = kr_contiguous(tape, x))) return NULL;
    kr_tensor *y = kr_view_of(tape, x, &shape, is_view ? strides : NULL, 0);
    if (y) kr_slab_share(y, x);
    return kr_recorded(tape, &reshape_rule, y, NULL, 0, KR_LIST(x));
}

/* ---- permute: g_x = g_y by the inverse order ---- */

static void permute_backward(kr_back *back)
{
    const kr_axes *order = kr_back_attrs(back);
    kr_axes inverse = { order->count, { 0 } };
    for (int i = 0; i < order->count; i++) inverse.axis[order->axis[i]] = i;
    kr_back_accumulate(back, 0, kr_permute(kr_back_tape(back), kr_back_grad(back, 0), inverse));
}

static const kr_rule permute_rule = { .name = "permute", .backward = permute_backward, .allow_infinity = true };

kr_tensor *kr_permute(kr_tape *tape, kr_tensor *x, kr_axes order)
{
    if (!kr_bind_any(tape, "permute", x)) return NULL;
    if (!kr_require(tape->ctx, order.count == x->rank, KR_ERR_ARG, "permute: %d axes given for x %s of rank %d",
                    order.count, KR_TEXT_OF(x), x->rank))
        return NULL;
    kr_shape shape = { x->rank, { 0 } };
    int64_t strides[KR_MAX_RANK];
    unsigned used = 0;
    for (int i = 0; i < x->rank; i++) {
        if (!kr_axis(tape, "permute", x, &order.axis[i])) return NULL;
        const unsigned bit = 1u << order.axis[i];
        if (!kr_require(tape->ctx, !(used & bit), KR_ERR_ARG, "permute: axis %d of x %s is named twice", order.axis[i],
                        KR_TEXT_OF(x)))
            return NULL;
        used |= bit;
        shape.dims[i] = x->dims[order.axis[i]];
        strides[i] = x->strides[order.axis[i]];
    }
    kr_tensor *y = kr_view_of(tape, x, &shape, strides, 0);
    return kr_recorded(tape, &permute_rule, y, &order, sizeof order, KR_LIST(x));
}

kr_tensor *kr_transpose(kr_tape *tape, kr_tensor *x)
{
    kr_dims d;
    if (!kr_bind(tape, "transpose", &d, "x:..mn", x)) return NULL;
    kr_axes order = { x->rank, { 0 } };
    for (int i = 0; i < x->rank; i++) order.axis[i] = i;
    order.axis[x->rank - 2] = x->rank - 1;
    order.axis[x->rank - 1] = x->rank - 2;
    return kr_permute(tape, x, order);
}

/* ---- slice: g_x is 0 but for the slice, which several slices of one x add into ---- */

typedef struct slice_attrs {
    int axis;
    int64_t from;
} slice_attrs;

static kr_tensor *window(kr_tape *tape, const kr_tensor *x, int axis, int64_t from, int64_t count)
{
    kr_shape shape = kr_tensor_shape(x);
    shape.dims[axis] = count;
    return kr_view_of(tape, x, &shape, x->strides, from * x->strides[axis]);
}

static void slice_backward(kr_back *back)
{
    kr_tape *tape = kr_back_tape(back);
    const slice_attrs *attrs = kr_back_attrs(back);
    const kr_tensor *g = kr_back_grad(back, 0);
    bool is_new;
    kr_tensor *g_x = kr_back_into(back, 0, &is_new);
    if (!g_x || (is_new && !kr_assign_value(tape->ctx, g_x, 0))) return;
    kr_tensor *part = window(tape, g_x, attrs->axis, attrs->from, g->dims[attrs->axis]);
    if (!part) return;
    if (is_new) kr_assign(tape->ctx, part, g);
    else kr_assign_sum(tape->ctx, part, g);
}

static const kr_rule slice_rule = { .name = "slice", .backward = slice_backward, .allow_infinity = true };

kr_tensor *kr_slice(kr_tape *tape, kr_tensor *x, int axis, int64_t from, int64_t to)
{
    if (!kr_bind_any(tape, "slice", x) || !kr_axis(tape, "slice", x, &axis)) return NULL;
    const int64_t size = x->dims[axis], first = from < 0 ? from + size : from, last = to < 0 ? to + size : to;
    if (!kr_require(tape->ctx, first >= 0 && first <= last && last <= size, KR_ERR_ARG,
                    "slice: %lld to %lld is not a range of axis %d of x %s", (long long)from, (long long)to, axis,
                    KR_TEXT_OF(x)))
        return NULL;
    const slice_attrs attrs = { axis, first };
    kr_tensor *y = window(tape, x, axis, first, last - first);
    return kr_recorded(tape, &slice_rule, y, &attrs, sizeof attrs, KR_LIST(x));
}

/* ---- split: g_x is the parts' gradients side by side, 0 where none arrived ---- */

typedef struct split_attrs {
    int axis, count;
} split_attrs;

static void split_backward(kr_back *back)
{
    kr_tape *tape = kr_back_tape(back);
    const split_attrs *attrs = kr_back_attrs(back);
    bool is_new;
    kr_tensor *g_x = kr_back_into(back, 0, &is_new);
    int64_t from = 0;
    for (int i = 0; g_x && i < attrs->count; i++) {
        const kr_tensor *g = kr_back_grad(back, i);
        const int64_t size = kr_back_out(back, i)->dims[attrs->axis];
        kr_tensor *part = is_new || g ? window(tape, g_x, attrs->axis, from, size) : NULL;
        if (part && !g) kr_assign_value(tape->ctx, part, 0);
        else if (part && is_new) kr_assign(tape->ctx, part, g);
        else if (part) kr_assign_sum(tape->ctx, part, g);
        from += size;
    }
}

static const kr_rule split_rule = { .name = "split", .backward = split_backward, .allow_infinity = true };

static bool check_sizes(kr_tape *tape, const kr_tensor *x, int axis, int count, const int64_t *sizes)
{
    int64_t total = 0;
    for (int i = 0; i < count; i++) {
        if (!kr_require(tape->ctx, sizes[i] >= 0 && sizes[i] <= x->dims[axis] - total, KR_ERR_SHAPE,
                        "split: size %d is %lld, but %lld are left of axis %d of x %s", i, (long long)sizes[i],
                        (long long)(x->dims[axis] - total), axis, KR_TEXT_OF(x)))
            return false;
        total += sizes[i];
    }
    return kr_require(tape->ctx, total == x->dims[axis], KR_ERR_SHAPE,
                      "split: the %d sizes add up to %lld, but axis %d of x %s is %lld", count, (long long)total, axis,
                      KR_TEXT_OF(x), (long long)x->dims[axis]);
}

kr_status kr_split(kr_tape *tape, kr_tensor *x, int axis, int count, const int64_t *sizes, kr_tensor **parts)
{
    for (int i = 0; parts && i < count; i++) parts[i] = NULL;
    if (!kr_bind_any(tape, "split", x) ||
        !kr_require(tape->ctx, count <= 0 || (sizes && parts), KR_ERR_ARG, "split: %s is NULL",
                    sizes ? "parts" : "sizes") ||
        !kr_axis(tape, "split", x, &axis) || !check_sizes(tape, x, axis, count, sizes))
        return tape ? tape->ctx->status : KR_ERR_ARG;
    if (count == 0) return KR_OK;
    int64_t from = 0;
    bool ok = true;
    for (int i = 0; ok && i < count; i++) {
        parts[i] = window(tape, x, axis, from, sizes[i]);
        ok = parts[i] != NULL;
        from += sizes[i];
    }
    const split_attrs attrs = { axis, count };
    const kr_record_args record = { .rule = &split_rule,
                                    .n_in = 1,
                                    .in = &x,
                                    .n_out = count,
                                    .out = parts,
                                    .attrs = &attrs,
                                    .attrs_bytes = sizeof attrs };
    ok = ok && kr_record_node(tape, &record, false);
    for (int i = 0; !ok && i < count; i++) parts[i] = NULL;
    return tape->ctx->status;
}

/* ---- expand: g_x = g_y summed over the repeats ---- */

static void expand_backward(kr_back *back)
{
    kr_back_accumulate(back, 0,
                       kr_sum_to(kr_back_tape(back), kr_back_grad(back, 0), kr_tensor_shape(kr_back_in(back, 0))));
}

static const kr_rule expand_rule = { .name = "expand", .backward = expand_backward, .allow_infinity = true };

kr_tensor *kr_expand(kr_tape *tape, kr_tensor *x, kr_shape shape)
{
    if (!kr_bind_any(tape, "expand", x)) return NULL;
    const int added = shape.rank - x->rank;
    bool fits = added >= 0 && kr_shape_count(&shape) >= 0;
    int64_t strides[KR_MAX_RANK] = { 0 };
    for (int i = 0; fits && i < x->rank; i++) {
        fits = x->dims[i] == shape.dims[i + added] || x->dims[i] == 1;
        strides[i + added] = x->dims[i] == 1 ? 0 : x->strides[i];
    }
    kr_shape shown = shape;
    if (shown.rank < 0 || shown.rank > KR_MAX_RANK) shown.rank = 0;
    if (!kr_require(tape->ctx, fits, KR_ERR_SHAPE, "expand: x %s does not repeat to %s: only axes of size 1 do",
                    KR_TEXT_OF(x), KR_TEXT_OF_SHAPE(&shown)))
        return NULL;
    return kr_recorded(tape, &expand_rule, kr_view_of(tape, x, &shape, strides, 0), NULL, 0, KR_LIST(x));
}

/* ---- flip: g_x = g_y flipped ---- */

static void flip_backward(kr_back *back)
{
    kr_back_accumulate(back, 0, kr_flip(kr_back_tape(back), kr_back_grad(back, 0), *(const int *)kr_back_attrs(back)));
}

static const kr_rule flip_rule = { .name = "flip", .backward = flip_backward, .allow_infinity = true };

kr_tensor *kr_flip(kr_tape *tape, kr_tensor *x, int axis)
{
    if (!kr_bind_any(tape, "flip", x) || !kr_axis(tape, "flip", x, &axis)) return NULL;
    const kr_shape shape = kr_tensor_shape(x);
    int64_t strides[KR_MAX_RANK];
    memcpy(strides, x->strides, sizeof strides);
    strides[axis] = -strides[axis];
    const int64_t last = x->dims[axis] > 0 ? (x->dims[axis] - 1) * x->strides[axis] : 0;
    kr_tensor *y = kr_view_of(tape, x, &shape, strides, last);
    return kr_recorded(tape, &flip_rule, y, &axis, sizeof axis, KR_LIST(x));
}
