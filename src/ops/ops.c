/* ops.c - the common steps of ops: element types, axes, broadcasting. */
#include "ops/ops_impl.h"

#include <string.h>

/* The n-th word of "x z gain", as the precision and pointer of a %.*s. */
static const char *nth_name(const char *names, int n, int *length)
{
    while (n-- > 0) names += strcspn(names, " ") + 1;
    *length = (int)strcspn(names, " ");
    return names;
}

static bool check_types(kr_tape *tape, const char *op, const char *names, int count, kr_tensor **const *operands,
                        kr_dtype *common)
{
    const kr_tensor *first = NULL;
    int first_at = 0, len, first_len;
    *common = KR_DTYPE_F32;
    for (int i = 0; i < count; i++) {
        const kr_tensor *x = *operands[i];
        if (!x) continue; /* kr_bind reports missing operands */
        if (!kr_dtype_is_float(x->dtype)) {
            const char *name = nth_name(names, i, &len);
            return kr_fail(tape->ctx, KR_ERR_DTYPE,
                           "%s: %.*s %s is %s, but must be f32, f64, bf16 or f16; kr_cast converts", op, len, name,
                           KR_TEXT_OF(x), kr_dtype_name(x->dtype));
        }
        if (!first) {
            first = x;
            first_at = i;
            *common = kr_grad_dtype(x);
        }
        if (x->dtype == first->dtype && x->flags.grad_f32 == first->flags.grad_f32) continue;
        if (x->dtype == KR_DTYPE_F64 || first->dtype == KR_DTYPE_F64) {
            const char *name = nth_name(names, i, &len), *first_name = nth_name(names, first_at, &first_len);
            return kr_fail(tape->ctx, KR_ERR_DTYPE,
                           "%s: %.*s %s is %s, but %.*s is %s; f64 mixes with no other type, kr_cast one of them", op,
                           len, name, KR_TEXT_OF(x), kr_dtype_name(x->dtype), first_len, first_name,
                           kr_dtype_name(first->dtype));
        }
        *common = KR_DTYPE_F32;
    }
    return true;
}

bool kr_reals(kr_tape *tape, const char *op, const char *names, kr_dtype *result, unsigned kept, int count,
              kr_tensor **const *operands)
{
    if (!kr_tape_ready(tape, op) || !check_types(tape, op, names, count, operands, result)) return false;
    for (int i = 0; i < count; i++) {
        kr_tensor **x = operands[i];
        if (kept >> i & 1 || !*x || !kr_dtype_is_narrow((*x)->dtype)) continue;
        if (!(*x = kr_cast(tape, *x, KR_DTYPE_F32))) return false;
    }
    return true;
}

kr_tensor *kr_as_taken(kr_tape *tape, uint32_t accepts, kr_tensor *x)
{
    if (!x || !kr_dtype_is_narrow(x->dtype) || accepts & KR_DTYPE_BIT(x->dtype)) return x;
    return kr_cast(tape, x, KR_DTYPE_F32);
}

kr_tensor *kr_store_as(kr_tape *tape, kr_tensor *y, kr_dtype result)
{
    return !y || y->dtype == result ? y : kr_cast(tape, y, result);
}

kr_tensor *kr_recorded(kr_tape *tape, const kr_rule *rule, kr_tensor *y, const void *attrs, size_t attrs_bytes,
                       int n_in, kr_tensor *const *in)
{
    const kr_record_args args = {
        .rule = rule, .n_in = n_in, .in = in, .n_out = 1, .out = &y, .attrs = attrs, .attrs_bytes = attrs_bytes
    };
    return y && kr_record_node(tape, &args, false) ? y : NULL;
}

bool kr_broadcast(kr_tape *tape, const char *op, const char *a_name, const kr_shape *a, const char *b_name,
                  const kr_shape *b, kr_shape *out)
{
    out->rank = a->rank > b->rank ? a->rank : b->rank;
    for (int back = 1; back <= out->rank; back++) {
        const int64_t da = back <= a->rank ? a->dims[a->rank - back] : 1;
        const int64_t db = back <= b->rank ? b->dims[b->rank - back] : 1;
        if (!kr_require(tape->ctx, da == db || da == 1 || db == 1, KR_ERR_SHAPE,
                        "%s: %s %s and %s %s do not broadcast: axis -%d is %lld against %lld, and neither is 1", op,
                        a_name, KR_TEXT_OF_SHAPE(a), b_name, KR_TEXT_OF_SHAPE(b), back, (long long)da, (long long)db))
            return false;
        out->dims[out->rank - back] = da == 1 ? db : da;
    }
    return true;
}

bool kr_axis(kr_tape *tape, const char *op, const kr_tensor *x, int *axis)
{
    const int given = *axis;
    if (*axis < 0) *axis += x->rank;
    return kr_require(tape->ctx, *axis >= 0 && *axis < x->rank, KR_ERR_ARG, "%s: axis %d of x %s, which has rank %d",
                      op, given, KR_TEXT_OF(x), x->rank);
}

kr_around kr_around_axis(const kr_tensor *x, int axis)
{
    kr_around a = { 1, x->dims[axis], 1 };
    for (int i = 0; i < axis; i++) a.no *= x->dims[i];
    for (int i = axis + 1; i < x->rank; i++) a.ni *= x->dims[i];
    return a;
}

bool kr_row_stride(const kr_tensor *x, int64_t *stride)
{
    const int last = x->rank - 1;
    if (x->dims[last] > 1 && x->strides[last] != 1) return false;
    int64_t span = 0; /* rows below the axis; 0: none yet */
    for (int i = last - 1; i >= 0; i--) {
        if (x->dims[i] == 1) continue;
        if (span == 0) *stride = x->strides[i];
        else if (x->strides[i] != *stride * span) return false;
        span = (span ? span : 1) * x->dims[i];
    }
    return true;
}

kr_rows kr_rows_of(kr_tape *tape, kr_tensor *x)
{
    if (!x || x->rank == 0) return (kr_rows){ x, 1, 1, 1 };
    const kr_around a = kr_around_axis(x, x->rank - 1);
    kr_rows rows = { x, a.no, a.nr, a.nr };
    if (a.no * a.nr == 0 || kr_row_stride(x, &rows.stride)) return rows;
    return (kr_rows){ kr_contiguous(tape, x), a.no, a.nr, a.nr };
}

kr_operand kr_operand_of(const kr_tensor *x)
{
    if (!x) return (kr_operand){ .data = NULL };
    kr_operand rows = { x->data, x->dtype, x->rank ? x->dims[x->rank - 1] : 1 };
    if (x->rank && kr_count_of(x) > 0) kr_row_stride(x, &rows.row);
    return rows;
}

/* Elements of one token of x [b s ..]. */
static int64_t token_elements(const kr_tensor *x)
{
    int64_t count = 1;
    for (int i = 2; i < x->rank; i++) count *= x->dims[i];
    return count;
}

bool kr_token_stride(const kr_tensor *x, int64_t *stride)
{
    int64_t inner = 1;
    for (int i = x->rank - 1; i >= 2; i--) {
        if (x->dims[i] != 1 && x->strides[i] != inner) return false;
        inner *= x->dims[i];
    }
    const int64_t nb = x->dims[0], ns = x->dims[1];
    if (ns == 1) *stride = nb == 1 ? inner : x->strides[0];
    else *stride = x->strides[1];
    return ns == 1 || nb == 1 || x->strides[0] == ns * x->strides[1];
}

kr_operand kr_token_operand(const kr_tensor *x)
{
    if (!x) return (kr_operand){ .data = NULL };
    kr_operand tokens = { x->data, x->dtype, token_elements(x) };
    if (kr_count_of(x) > 0) kr_token_stride(x, &tokens.row);
    return tokens;
}

kr_tensor *kr_with_token_stride(kr_tape *tape, kr_tensor *x, int64_t *stride)
{
    if (!x) return NULL;
    if (kr_count_of(x) > 0 && kr_token_stride(x, stride)) return x;
    *stride = token_elements(x);
    return kr_contiguous(tape, x);
}

kr_tensor *kr_sum_to(kr_tape *tape, kr_tensor *g, kr_shape shape)
{
    if (!g) return NULL;
    const int added = g->rank - shape.rank;
    kr_axes axes = { 0, { 0 } };
    for (int i = 0; i < g->rank; i++)
        if (i < added || (shape.dims[i - added] == 1 && g->dims[i] != 1)) axes.axis[axes.count++] = i;
    if (axes.count == 0) return g;
    return kr_reshape(tape, kr_sum(tape, g, axes, true), shape);
}
