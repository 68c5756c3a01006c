/* cases_copy.c - cases of copies between all element types and layouts, of fills, of random samples, and of the search
 * for values that are not finite. Outputs are compared by bytes. */
#include "tests/kernels/conformance.h"

kr_cases_fn kr_cases_copy, kr_cases_fill, kr_cases_random, kr_cases_finite;

enum { NDTYPES = 6 };

static void first_row_copy(void *args)
{
    kr_walk *walk = &((kr_copy_args *)args)->walk;
    if (kr_walk_count(walk) > 0) walk->dims[0] = 1;
}

/* Arbitrary bits for integers; floats of all magnitudes, with specials between. */
static void fill_source(void *x, kr_dtype dtype, int64_t count)
{
    const size_t bytes = kr_dtype_bytes(dtype);
    for (int64_t i = 0; i < count; i++) {
        uint64_t bits = kr_test_next();
        if (dtype == KR_DTYPE_F32 || dtype == KR_DTYPE_F64) {
            double value = i % 3 == 0 ? kr_specials[kr_test_below(kr_nspecials)] : kr_test_uniform(-400, 400);
            if (i % 7 == 0) value = kr_test_normal() * exp(kr_test_uniform(-100, 80));
            const float single = (float)value;
            if (dtype == KR_DTYPE_F64) memcpy(&bits, &value, sizeof value);
            else memcpy(&bits, &single, sizeof single);
        } else if (i % 2) {
            bits >>= kr_test_below(64); /* small and large integers */
        }
        memcpy((char *)x + (size_t)i * bytes, &bits, bytes);
    }
}

static void copy_case(kr_sweep *sweep, kr_dtype to, kr_dtype from, kr_shape shape, kr_case_layout y_layout,
                      kr_case_layout x_layout)
{
    kr_copy_args a = { .x_dtype = from, .y_dtype = to };
    kr_walk_shape(&a.walk, shape);
    const kr_extent y = kr_walk_lay_out(&a.walk, 0, y_layout), x = kr_walk_lay_out(&a.walk, 1, x_layout);
    kr_case c;
    case_begin(&c, &a, sizeof a, "%s to %s, rank %d of %lld, last %lld, y %s, x %s", kr_dtype_name(from),
               kr_dtype_name(to), shape.rank, (long long)kr_walk_count(&a.walk),
               shape.rank ? (long long)shape.dims[shape.rank - 1] : 1LL, kr_case_layout_name(y_layout),
               kr_case_layout_name(x_layout));
    fill_source(case_raw(&c, FIELD(kr_copy_args, x), from, x.count, false), from, x.count);
    c.operands[0].first = x.first;
    case_raw(&c, FIELD(kr_copy_args, y), to, y.count, true);
    c.operands[1].first = y.first;
    c.many_tasks = kr_walk_shape_is_large(shape);
    if (shape.rank > 0) c.first_row = first_row_copy;
    case_done(sweep, &c);
}

void kr_cases_copy(kr_sweep *sweep)
{
    static const kr_dtype moved[] = { KR_DTYPE_F32, KR_DTYPE_I32, KR_DTYPE_BF16, KR_DTYPE_F64 };
    for (int pair = 0; pair < NDTYPES * NDTYPES; pair++) {
        const kr_dtype to = (kr_dtype)(pair / NDTYPES), from = (kr_dtype)(pair % NDTYPES);
        copy_case(sweep, to, from, KR_SHAPE(1031), KR_PLAIN, KR_PLAIN);
        for (int i = 0; i < (kr_test_quick() ? 3 : 12); i++) {
            const kr_shape shape = kr_walk_shapes(5 + (int)kr_test_below(34));
            copy_case(sweep, to, from, shape, kr_pick_layout(true), kr_pick_layout(false));
        }
        copy_case(sweep, to, from, KR_SHAPE(3, 12001), KR_PLAIN, pair % 2 ? KR_PLAIN : KR_GAPPED);
    }
    for (int i = 0; i < 4; i++) { /* moves without a change of type, transposes among them */
        for (int n = 0; kr_walk_shapes(n).rank >= 0; n++) {
            copy_case(sweep, moved[i], moved[i], kr_walk_shapes(n), KR_PLAIN, KR_TRANSPOSED);
            copy_case(sweep, moved[i], moved[i], kr_walk_shapes(n), kr_pick_layout(true), kr_pick_layout(false));
        }
        for (int64_t rows = 3; rows < 42; rows += 6)
            copy_case(sweep, moved[i], moved[i], KR_SHAPE(rows, 37 - rows / 2, 5), KR_PADDED, KR_TRANSPOSED);
        copy_case(sweep, moved[i], moved[i], KR_SHAPE(70001), KR_PLAIN, KR_REPEATED);
        copy_case(sweep, moved[i], moved[i], KR_SHAPE(2, 70001), KR_PADDED, KR_PLAIN);
    }
}

static void first_row_fill(void *args)
{
    kr_walk *walk = &((kr_fill_args *)args)->walk;
    if (kr_walk_count(walk) > 0) walk->dims[0] = 1;
}

void kr_cases_fill(kr_sweep *sweep)
{
    static const double values[] = { 0, -1.7, 3e9, NAN, -INFINITY, 1e-41 };
    for (int n = 0; kr_walk_shapes(n).rank >= 0; n++) {
        for (int dtype = 0; dtype < NDTYPES; dtype++) {
            const kr_shape shape = kr_walk_shapes(n);
            kr_fill_args a = { .dtype = (kr_dtype)dtype, .value = values[(n + dtype) % 6] };
            kr_walk_shape(&a.walk, shape);
            const kr_case_layout layout = n % 3 ? kr_pick_layout(true) : KR_PLAIN;
            const kr_extent y = kr_walk_lay_out(&a.walk, 0, layout);
            kr_case c;
            case_begin(&c, &a, sizeof a, "%s %g, rank %d of %lld, %s", kr_dtype_name(a.dtype), a.value, shape.rank,
                       (long long)kr_walk_count(&a.walk), kr_case_layout_name(layout));
            case_raw(&c, FIELD(kr_fill_args, y), a.dtype, y.count, true);
            c.operands[0].first = y.first;
            c.many_tasks = kr_walk_shape_is_large(shape);
            if (shape.rank > 0) c.first_row = first_row_fill;
            case_done(sweep, &c);
        }
    }
}

static void first_draw(void *args)
{
    kr_random_args *a = args;
    if (a->n > 0) a->n = 1;
}

void kr_cases_random(kr_sweep *sweep)
{
    static const int64_t sizes[] = { 0, 1, 2, 3, 4, 5, 7, 8, 9, 31, 33, 257, 40009 };
    static const kr_dtype dtypes[] = { KR_DTYPE_F32, KR_DTYPE_F64, KR_DTYPE_BF16, KR_DTYPE_F16 };
    for (int i = 0; i < 4 * 2 * (int)(sizeof sizes / sizeof *sizes); i++) {
        kr_random_args a = { .n = sizes[i / 8], .dtype = dtypes[i % 4], .normal = i / 4 % 2, .alpha = -0.5, .beta = 2 };
        a.seed = 12345 + (uint64_t)i;
        a.stream = kr_test_next();
        a.offset = (uint64_t)kr_test_below(9);
        kr_case c;
        case_begin(&c, &a, sizeof a, "%lld of %s %s, offset %llu", (long long)a.n, kr_dtype_name(a.dtype),
                   a.normal ? "normal" : "uniform", (unsigned long long)a.offset);
        case_raw(&c, FIELD(kr_random_args, y), a.dtype, a.n, true);
        c.many_tasks = a.n > 20000;
        c.first_row = first_draw;
        case_done(sweep, &c);
    }
}

/* Bits of an infinity or a NaN of each float type. */
static uint64_t bad_bits(kr_dtype dtype, bool nan)
{
    switch (dtype) {
    case KR_DTYPE_F32: return nan ? 0xffc00000u : 0x7f800000u;
    case KR_DTYPE_F64: return nan ? 0x7ff0000000000001u : 0xfff0000000000000u;
    case KR_DTYPE_BF16: return nan ? 0x7f81u : 0xff80u;
    default: return nan ? 0xfe00u : 0x7c00u;
    }
}

void kr_cases_finite(kr_sweep *sweep)
{
    static const int64_t sizes[] = { 0, 1, 7, 8, 9, 16, 17, 33, 255, 40009 };
    for (int i = 0; i < 10 * NDTYPES * 4; i++) {
        const int64_t n = sizes[i / (NDTYPES * 4)];
        kr_finite_args a = { .n = n, .dtype = (kr_dtype)(i % NDTYPES) };
        const int nbad = i / NDTYPES % 4;
        kr_case c;
        case_begin(&c, &a, sizeof a, "%lld of %s, %d bad", (long long)n, kr_dtype_name(a.dtype), nbad);
        char *x = case_raw(&c, FIELD(kr_finite_args, x), a.dtype, n, false);
        const size_t bytes = kr_dtype_bytes(a.dtype);
        for (int bad = 0; n > 0 && a.dtype < KR_DTYPE_I32 && bad < nbad; bad++) {
            const uint64_t bits = bad_bits(a.dtype, bad % 2);
            memcpy(x + (size_t)kr_test_below(n) * bytes, &bits, bytes);
        }
        case_raw(&c, FIELD(kr_finite_args, first), KR_DTYPE_I64, 1, true);
        c.many_tasks = n > 20000;
        case_done(sweep, &c);
    }
}
