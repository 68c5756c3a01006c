/* cases_matmul.c - cases of the matrix product: sizes around tiles and chains, transposes and views, batches. */
#include "tests/kernels/conformance.h"

kr_cases_fn kr_cases_matmul;

/* The memory layout of a matrix [rows columns]. */
typedef enum layout { PLAIN, TRANSPOSED, PADDED, SPREAD, UPSIDE_DOWN, ONE_ROW, NLAYOUTS } layout;

static const char *const layout_names[NLAYOUTS] = {
    "plain", "transposed", "padded", "spread", "upside down", "one row"
};

typedef struct matrix {
    int64_t row, column; /* strides */
    int64_t count, first;
} matrix;

static matrix matrix_of(int64_t rows, int64_t columns, layout how)
{
    matrix m = { columns, 1, 0, 0 };
    if (how == TRANSPOSED) m.row = 1, m.column = rows;
    if (how == PADDED) m.row = columns + 3;
    if (how == SPREAD) m.row = 2 * columns + 1, m.column = 2;
    if (how == UPSIDE_DOWN) m.row = -columns, m.first = (rows - 1) * columns;
    if (how == ONE_ROW) m.row = 0;
    if (rows > 0 && columns > 0) m.count = llabs(m.row) * (rows - 1) + m.column * (columns - 1) + 1;
    else m.first = 0;
    return m;
}

static const kr_dtype halves[] = { KR_DTYPE_F32, KR_DTYPE_BF16, KR_DTYPE_F16 };

typedef struct product {
    int64_t nm, nn, nk;
    layout a, b;
    int64_t c_padding;
    bool bias, accumulate;
    int64_t nb0, nb1; /* 0, 0: no batch */
    bool a_shared, b_shared;
    bool many_tasks;
    kr_dtype half; /* of B */
} product;

static void first_row(void *args)
{
    kr_matmul_args *a = args;
    if (a->nm > 0) a->nm = 1;
}

/* Batch strides: items of an operand are contiguous; a shared one has stride 0 along the first axis. */
static int64_t batch_strides(int64_t *strides, const product *p, int64_t item, bool shared)
{
    strides[0] = shared ? 0 : p->nb1 * item;
    strides[1] = item;
    return p->nb0 * p->nb1 == 0 ? 0 : ((shared ? 1 : p->nb0) * p->nb1 - 1) * item;
}

static void add_operands(kr_case *c, kr_matmul_args *args, const product *p)
{
    const matrix a = matrix_of(p->nm, p->nk, p->a), b = matrix_of(p->nk, p->nn, p->b);
    args->a.row = a.row, args->a.column = a.column;
    args->b.row = b.row, args->b.column = b.column;
    args->c.row = p->nn + p->c_padding;
    const int64_t c_item = p->nm * args->c.row;
    int64_t a_count = a.count, b_count = b.count, c_count = c_item > 0 ? c_item - p->c_padding : 0;
    if (p->nb0 || p->nb1) {
        args->batch_rank = 2;
        args->batch_dims[0] = p->nb0;
        args->batch_dims[1] = p->nb1;
        a_count += batch_strides(args->batch_a, p, a.count, p->a_shared);
        b_count += batch_strides(args->batch_b, p, b.count, p->b_shared);
        c_count += batch_strides(args->batch_c, p, c_item, false);
        if (p->nb0 * p->nb1 == 0) c_count = 0;
    }
    case_walk_input(c, OPERAND(kr_matmul_args, a), (kr_extent){ a_count, a.first }, -1, 1);
    const kr_extent b_extent = { b_count, b.first };
    if (p->half != KR_DTYPE_F32) case_walk_halves(c, OPERAND(kr_matmul_args, b), b_extent, p->half);
    else case_walk_input(c, OPERAND(kr_matmul_args, b), b_extent, -1, 1);
    if (p->bias) case_walk_input(c, FIELD(kr_matmul_args, bias), (kr_extent){ p->nn, 0 }, -1, 1);
    if (p->accumulate) {
        case_walk_input(c, OPERAND(kr_matmul_args, c), (kr_extent){ c_count, 0 }, -1, 1);
        c->operands[c->noperands - 1].is_output = true;
    } else {
        case_walk_output(c, OPERAND(kr_matmul_args, c), (kr_extent){ c_count, 0 });
    }
}

static void matmul_case(kr_sweep *sweep, product p)
{
    if ((p.a == UPSIDE_DOWN || p.a == ONE_ROW) && p.nm == 0) p.a = PLAIN;
    if ((p.b == UPSIDE_DOWN || p.b == ONE_ROW) && p.nk == 0) p.b = PLAIN;
    kr_matmul_args args = { .nm = p.nm, .nn = p.nn, .nk = p.nk, .accumulate = p.accumulate };
    kr_case c;
    case_begin(&c, &args, sizeof args, "m %lld n %lld k %lld, a %s, b %s%s, gap %lld%s%s, batch %lld x %lld%s%s",
               (long long)p.nm, (long long)p.nn, (long long)p.nk, layout_names[p.a], layout_names[p.b],
               p.half == KR_DTYPE_F32    ? ""
               : p.half == KR_DTYPE_BF16 ? " in bf16"
                                         : " in f16",
               (long long)p.c_padding, p.bias ? ", bias" : "", p.accumulate ? ", accumulate" : "", (long long)p.nb0,
               (long long)p.nb1, p.a_shared ? ", a shared" : "", p.b_shared ? ", b shared" : "");
    add_operands(&c, &args, &p);
    c.terms = p.nk + 2;
    c.by_magnitudes = true;
    c.many_tasks = p.many_tasks;
    c.first_row = first_row;
    case_done(sweep, &c);
}

static product random_product(void)
{
    static const int64_t sizes[] = { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 15, 16, 17, 31, 32, 33, 64, 67 };
    static const int64_t terms[] = { 0, 1, 2, 3, 4, 7, 8, 9, 16, 17, 31, 67, 255, 256, 257, 300 };
    product p = { .nm = sizes[kr_test_below(20)], .nn = sizes[kr_test_below(20)], .nk = terms[kr_test_below(16)] };
    p.a = (layout)kr_test_below(NLAYOUTS);
    p.b = (layout)kr_test_below(NLAYOUTS);
    p.c_padding = kr_test_below(2) * 3;
    p.bias = kr_test_below(2);
    p.accumulate = kr_test_below(2);
    p.half = halves[kr_test_below(3)];
    if (kr_test_below(3) == 0) {
        p.nb0 = kr_test_below(4);
        p.nb1 = 1 + kr_test_below(3);
        p.a_shared = kr_test_below(3) == 0;
        p.b_shared = kr_test_below(3) == 0;
    }
    return p;
}

/* Sizes that take the large path (2^23 multiply-adds), split rows, columns and k, or make many small items. */
static const product large[] = {
    { 261, 193, 257, TRANSPOSED, PLAIN, 0, true, false, 0, 0, false, false, true, KR_DTYPE_BF16 },
    { 199, 210, 301, PLAIN, TRANSPOSED, 3, false, true, 0, 0, false, false, true, KR_DTYPE_F32 },
    { 2, 2053, 130, PLAIN, PLAIN, 0, true, false, 0, 0, false, false, true, KR_DTYPE_BF16 },
    { 4, 1031, 257, PLAIN, TRANSPOSED, 0, false, true, 0, 0, false, false, true, KR_DTYPE_F16 },
    { 1, 3352, 768, PLAIN, TRANSPOSED, 0, false, false, 0, 0, false, false, true, KR_DTYPE_BF16 },
    { 3001, 1, 130, PLAIN, PLAIN, 0, false, false, 0, 0, false, false, true, KR_DTYPE_F32 },
    { 1500, 19, 33, SPREAD, PADDED, 1, true, true, 0, 0, false, false, true, KR_DTYPE_F32 },
    { 31, 33, 65, PLAIN, TRANSPOSED, 0, false, false, 6, 5, false, true, true, KR_DTYPE_F32 },
    { 64, 64, 64, TRANSPOSED, PLAIN, 0, true, true, 4, 3, true, false, true, KR_DTYPE_F32 },
    { 97, 130, 515, UPSIDE_DOWN, PADDED, 0, false, false, 0, 0, false, false, true, KR_DTYPE_F32 },
    { 197, 35, 4133, PADDED, TRANSPOSED, 0, true, false, 0, 0, false, false, true, KR_DTYPE_F16 },
};

/* More of B than one packed part holds: 2^21 elements. */
static const product largest = { 193, 530, 4100, PLAIN, PLAIN, 0, true, true, 0, 0, false, false, false, KR_DTYPE_F32 };

void kr_cases_matmul(kr_sweep *sweep)
{
    for (int a = 0; a < NLAYOUTS; a++)
        for (int b = 0; b < NLAYOUTS; b++)
            for (int flags = 0; flags < 12; flags++)
                matmul_case(sweep, (product){ .nm = 13,
                                              .nn = 35,
                                              .nk = 19,
                                              .a = (layout)a,
                                              .b = (layout)b,
                                              .c_padding = flags % 4,
                                              .half = halves[flags / 4],
                                              .bias = flags & 1,
                                              .accumulate = flags & 2 });
    const int times = sweep->mode == KR_SWEEP_THREADS ? 0 : kr_test_quick() ? 60 : 400;
    for (int i = 0; i < times; i++) matmul_case(sweep, random_product());
    for (size_t i = 0; i < sizeof large / sizeof *large; i++)
        if (!kr_test_quick() || i % 3 == 0) matmul_case(sweep, large[i]);
    if (!kr_test_quick() && sweep->mode == KR_SWEEP_VALUES) matmul_case(sweep, largest);
}
