/* case_building.c - operands of a case: their values, layouts and shapes. */
#include "base/half.h"
#include "tests/kernels/conformance.h"

#include <float.h>
#include <stdarg.h>

double kr_to_float(double x)
{
    return (double)(float)x;
}

static void *must_alloc(size_t bytes)
{
    void *p = calloc(bytes ? bytes : 1, 1);
    if (!p) exit(2);
    return p;
}

void case_begin(kr_case *c, const void *args, size_t args_bytes, const char *format, ...)
{
    *c = (kr_case){ .args = args, .args_bytes = args_bytes, .terms = 1 };
    va_list list;
    va_start(list, format);
    vsnprintf(c->text, sizeof c->text, format, list);
    va_end(list);
}

static kr_case_operand *add_operand(kr_case *c, size_t field, const char *name, kr_extent extent)
{
    if (c->noperands == KR_MAX_OPERANDS) exit(2);
    kr_case_operand *o = &c->operands[c->noperands++];
    *o = (kr_case_operand){ .name = name,
                            .field = field & ~(size_t)KR_IS_TYPED,
                            .is_typed = field & KR_IS_TYPED,
                            .dtype = KR_REAL,
                            .count = extent.count,
                            .first = extent.first };
    return o;
}

double *case_walk_input(kr_case *c, size_t field, const char *name, kr_extent extent, double low, double high)
{
    kr_case_operand *o = add_operand(c, field, name, extent);
    o->value = must_alloc((size_t)o->count * sizeof *o->value);
    for (int64_t i = 0; i < o->count; i++) o->value[i] = kr_to_float(kr_test_uniform(low, high));
    return o->value;
}

void case_walk_output(kr_case *c, size_t field, const char *name, kr_extent extent)
{
    add_operand(c, field, name, extent)->is_output = true;
}

static kr_extent extent_of(kr_shape shape)
{
    kr_extent extent = { 1, 0 };
    for (int axis = 0; axis < shape.rank; axis++) extent.count *= shape.dims[axis];
    return extent;
}

double *case_input(kr_case *c, size_t field, const char *name, kr_shape shape, double low, double high)
{
    double *value = case_walk_input(c, field, name, extent_of(shape), low, high);
    c->operands[c->noperands - 1].shape = shape;
    return value;
}

void case_output(kr_case *c, size_t field, const char *name, kr_shape shape)
{
    case_walk_output(c, field, name, extent_of(shape));
    c->operands[c->noperands - 1].shape = shape;
}

double *case_in_out(kr_case *c, size_t field, const char *name, kr_shape shape, double low, double high)
{
    double *value = case_input(c, field, name, shape, low, high);
    c->operands[c->noperands - 1].is_output = true;
    return value;
}

void *case_raw(kr_case *c, size_t field, const char *name, kr_dtype dtype, int64_t count, bool is_output)
{
    kr_case_operand *o = add_operand(c, field, name, (kr_extent){ count, 0 });
    o->dtype = (int)dtype;
    o->is_output = is_output;
    if (!is_output) o->bytes = must_alloc((size_t)count * kr_dtype_bytes(dtype));
    return o->bytes;
}

void case_walk_halves(kr_case *c, size_t field, const char *name, kr_extent extent, kr_dtype dtype)
{
    uint16_t *bits = case_raw(c, field, name, dtype, extent.count, false);
    c->operands[c->noperands - 1].first = extent.first;
    for (int64_t i = 0; i < extent.count; i++) {
        const float x = (float)kr_test_uniform(-1, 1);
        bits[i] = dtype == KR_DTYPE_BF16 ? kr_bf16_from_float(x) : kr_f16_from_float(x);
    }
}

double *case_scale(kr_case *c)
{
    kr_case_operand *o = &c->operands[c->noperands - 1];
    if (!o->scale) o->scale = must_alloc((size_t)o->count * sizeof *o->scale);
    return o->scale;
}

/* ---- walks ---- */

void kr_walk_shape(kr_walk *walk, kr_shape shape)
{
    *walk = (kr_walk){ .rank = shape.rank };
    memcpy(walk->dims, shape.dims, sizeof walk->dims);
}

static int64_t inner_stride(kr_case_layout layout)
{
    switch (layout) {
    case KR_GAPPED: return 2;
    case KR_REPEATED:
    case KR_REPEATED_ALL: return 0;
    default: return 1;
    }
}

kr_extent kr_walk_lay_out(kr_walk *walk, int o, kr_case_layout layout)
{
    const int rank = walk->rank;
    int64_t *strides = walk->strides[o], step = 1, gap = layout == KR_GAPPED || layout == KR_PADDED ? 3 : 0;
    for (int i = 0; i < rank; i++) {
        const int axis = layout == KR_TRANSPOSED ? i : rank - 1 - i;
        const bool inner = axis == rank - 1;
        strides[axis] = step;
        if (layout != KR_TRANSPOSED && inner) strides[axis] = inner_stride(layout);
        if (!inner && (layout == KR_REPEATED_ROWS || layout == KR_REPEATED_ALL)) strides[axis] = 0;
        const bool counts = !(inner && layout == KR_REPEATED);
        step = counts ? step * walk->dims[axis] * (inner && layout == KR_GAPPED ? 2 : 1) + (inner ? gap : 0) : step;
        if (layout == KR_BACKWARDS) strides[axis] = -strides[axis];
    }
    kr_extent extent = { 1, 0 };
    for (int axis = 0; axis < rank; axis++) {
        if (walk->dims[axis] == 0) return (kr_extent){ 0, 0 };
        const int64_t reach = (walk->dims[axis] - 1) * strides[axis];
        extent.count += reach < 0 ? -reach : reach;
        if (reach < 0) extent.first -= reach;
    }
    return extent;
}

int64_t kr_walk_count(const kr_walk *walk)
{
    int64_t count = 1;
    for (int axis = 0; axis < walk->rank; axis++) count *= walk->dims[axis];
    return count;
}

int64_t kr_walk_at(const kr_walk *walk, int o, int64_t flat)
{
    int64_t at = 0;
    for (int axis = walk->rank - 1; axis >= 0; axis--) {
        at += flat % walk->dims[axis] * walk->strides[o][axis];
        flat /= walk->dims[axis];
    }
    return at;
}

kr_shape kr_walk_shapes(int n)
{
    static const kr_shape shapes[] = {
        { 1, { 20011 } },
        { 2, { 3, 16389 } },
        { 2, { 701, 61 } },
        { 3, { 3, 130, 67 } },
        { 2, { 40009, 1 } },
        { 0, { 0 } },
        { 1, { 0 } },
        { 2, { 0, 5 } },
        { 2, { 5, 0 } },
        { 1, { 1 } },
        { 1, { 2 } },
        { 1, { 3 } },
        { 1, { 7 } },
        { 1, { 8 } },
        { 1, { 9 } },
        { 1, { 13 } },
        { 1, { 15 } },
        { 1, { 16 } },
        { 1, { 17 } },
        { 1, { 31 } },
        { 1, { 32 } },
        { 1, { 33 } },
        { 1, { 61 } },
        { 1, { 255 } },
        { 1, { 256 } },
        { 1, { 257 } },
        { 1, { 521 } },
        { 2, { 1, 19 } },
        { 2, { 19, 1 } },
        { 2, { 3, 5 } },
        { 2, { 4, 8 } },
        { 2, { 7, 16 } },
        { 2, { 5, 17 } },
        { 2, { 33, 15 } },
        { 3, { 2, 3, 7 } },
        { 3, { 5, 1, 9 } },
        { 4, { 2, 3, 4, 17 } },
        { 8, { 2, 1, 2, 1, 3, 1, 2, 3 } },
        { 8, { 1, 2, 1, 2, 1, 2, 2, 9 } },
    };
    return n < (int)(sizeof shapes / sizeof *shapes) ? shapes[n] : (kr_shape){ .rank = -1 };
}

bool kr_walk_shape_is_large(kr_shape shape)
{
    return extent_of(shape).count >= 16384;
}

kr_case_layout kr_pick_layout(bool is_output)
{
    return (kr_case_layout)kr_test_below(is_output ? KR_OUTPUT_LAYOUTS : KR_INPUT_LAYOUTS);
}

const char *kr_case_layout_name(kr_case_layout layout)
{
    static const char *const names[KR_INPUT_LAYOUTS] = { "plain",  "transposed", "backwards",     "gapped",
                                                         "padded", "repeated",   "repeated rows", "one element" };
    return names[layout];
}

/* clang-format off */
#define BOTH(x) x, -(x)
const double kr_specials[] = {
    BOTH(0.0), BOTH(1.0), NAN, BOTH((double)INFINITY), BOTH(0x1p-149), BOTH(0x1p-140), BOTH(0x1.fffffcp-127),
    BOTH(0x1p-126), BOTH((double)FLT_MAX), BOTH(0x1p127), BOTH(0x1p64), BOTH(0x1p-64), BOTH(0x1p-30), BOTH(0x1p-12),
    BOTH(0.5), BOTH(0.75), BOTH(1.2784645), BOTH(2.0), BOTH(3.1415927410125732), BOTH(9.0), BOTH(17.0), BOTH(18.5),
    BOTH(20.0), BOTH(20.000001907348633), BOTH(40.5), BOTH(87.33654022216797), BOTH(88.72283172607422), BOTH(89.0),
    BOTH(103.0), BOTH(104.0), BOTH(110.0), BOTH(1000.0), BOTH(102943.703125), BOTH(1e10),
};
/* clang-format on */
const int kr_nspecials = (int)(sizeof kr_specials / sizeof *kr_specials);
