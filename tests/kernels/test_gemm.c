/* test_gemm.c - the vector matrix products against a plain double loop, and the laws of their bits.
 *
 * Every case is computed several times: with 1 and 3 threads, another layout of A and B, row by row, and with B stored
 * as bf16 or f16, which holds its values exactly. The first must agree with the double sum within the rounding of
 * chains of fused multiply-adds, all others with the first bit by bit. A device selects its kernel by sizes and layout:
 * there all must agree with the double sum, and bit-exact with the first are a second run, a row among other rows, and
 * the rows of a product of few rows one by one. Outputs have gaps between rows that must stay untouched; buffers have
 * exact sizes, so that a sanitizer sees each access outside.
 */
#include "base/half.h"
#include "tests/kernels/conformance.h"

/* The memory layout of an operand. */
typedef enum layout { PLAIN, TRANSPOSED, PADDED, PADDED_TRANSPOSED, SPREAD, BACKWARDS, NLAYOUTS } layout;

typedef struct operand {
    float *memory, *first;
    int64_t row, column;
    size_t count;
} operand;

typedef struct gemm_case {
    int64_t nm, nn, nk;
    layout a, b;
    int64_t c_padding;
    bool bias, accumulate;
    int64_t nb0, nb1;        /* batch dims */
    bool a_shared, b_shared; /* broadcast along the first batch axis */
    kr_dtype half;           /* a type that holds B's values; KR_DTYPE_F32: as KR_DTYPE_BF16 */
} gemm_case;

static uint16_t narrowed(float x, kr_dtype half)
{
    return half == KR_DTYPE_F16 ? kr_f16_from_float(x) : kr_bf16_from_float(x);
}

static float rounded(float x, kr_dtype half)
{
    const uint16_t bits = narrowed(x, half);
    return half == KR_DTYPE_F16 ? kr_float_from_f16(bits) : kr_float_from_bf16(bits);
}

static float next_float(void)
{
    return (float)kr_test_uniform(-1, 1);
}

static int64_t pick(const int64_t *from, size_t n)
{
    return from[kr_test_below((int64_t)n)];
}

static void *must_alloc(size_t bytes)
{
    void *p = malloc(bytes > 0 ? bytes : 1);
    if (p == NULL) {
        fprintf(stderr, "out of memory\n");
        exit(2);
    }
    return p;
}

/* [rows columns] with the values of x [rows columns] in the given layout. */
static operand lay_out(const float *x, int64_t rows, int64_t columns, layout how)
{
    operand o = { 0 };
    switch (how) {
    case TRANSPOSED: o.row = 1, o.column = rows; break;
    case PADDED: o.row = columns + 3, o.column = 1; break;
    case PADDED_TRANSPOSED: o.row = 1, o.column = rows + 5; break;
    case SPREAD: o.row = 2 * columns + 1, o.column = 2; break;
    case BACKWARDS: o.row = -columns, o.column = 1; break;
    default: o.row = columns, o.column = 1; break;
    }
    const int64_t r = rows > 0 ? rows - 1 : 0, c = columns > 0 ? columns - 1 : 0;
    const int64_t low = (o.row < 0 ? o.row * r : 0), high = (o.row > 0 ? o.row * r : 0) + o.column * c;
    o.count = rows * columns == 0 ? 0 : (size_t)(high - low + 1);
    o.memory = must_alloc(o.count * sizeof(float));
    for (size_t i = 0; i < o.count; i++) {
        o.memory[i] = NAN;
    }
    o.first = o.memory - low;
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t j = 0; j < columns; j++) {
            o.first[i * o.row + j * o.column] = x[i * columns + j];
        }
    }
    return o;
}

/* The memory of a product: A, B, C, bias. */
enum { NSPANS = 4 };
typedef struct spans {
    kr_span of[NSPANS];
} spans;

static spans spans_of(const operand *a, void *b, size_t b_bytes, float *c, size_t c_bytes, float *bias, int64_t nn)
{
    return (spans){ { { offsetof(kr_matmul_args, a.data), 0, a->memory, a->count * sizeof(float), false },
                      { offsetof(kr_matmul_args, b.data), 0, b, b_bytes, false },
                      { offsetof(kr_matmul_args, c.data), 0, c, c_bytes, true },
                      { offsetof(kr_matmul_args, bias), 0, bias, bias ? (size_t)nn * sizeof(float) : 0, false } } };
}

static void call(const kr_kernels *set, const kr_matmul_args *args, const spans *memory)
{
    kr_run_spans(kr_kernel_named("matmul"), set, KR_REAL_F32, args->exec.pool, args, sizeof *args, memory->of, NSPANS,
                 "product");
}

static void check(bool ok, const gemm_case *t, const char *set, const char *what)
{
    CHECK(ok, "%s: %s: m %lld n %lld k %lld a %d b %d gap %lld bias %d acc %d batch %lld x %lld shared %d %d", set,
          what, (long long)t->nm, (long long)t->nn, (long long)t->nk, (int)t->a, (int)t->b, (long long)t->c_padding,
          (int)t->bias, (int)t->accumulate, (long long)t->nb0, (long long)t->nb1, (int)t->a_shared, (int)t->b_shared);
}

typedef struct data {
    float *a, *b, *bias, *c0; /* A [items m k], B [items k n], C before the call [items m c_m] */
    int64_t a_items, b_items, items, c_m;
} data;

static float *random_floats(int64_t n)
{
    float *x = must_alloc((size_t)n * sizeof(float));
    for (int64_t i = 0; i < n; i++) {
        x[i] = next_float();
    }
    return x;
}

static data make_data(const gemm_case *t)
{
    data d = { 0 };
    d.items = t->nb0 * t->nb1;
    d.a_items = (t->a_shared ? 1 : t->nb0) * t->nb1;
    d.b_items = (t->b_shared ? 1 : t->nb0) * t->nb1;
    d.c_m = t->nn + t->c_padding;
    d.a = random_floats(d.a_items * t->nm * t->nk);
    d.b = random_floats(d.b_items * t->nk * t->nn);
    for (int64_t i = 0; i < d.b_items * t->nk * t->nn; i++) {
        d.b[i] = rounded(d.b[i], t->half);
    }
    d.bias = random_floats(t->nn);
    d.c0 = random_floats(d.items * t->nm * d.c_m);
    return d;
}

static void free_data(data *d)
{
    free(d->a);
    free(d->b);
    free(d->bias);
    free(d->c0);
}

/* The same operand as bf16 or f16. */
static uint16_t *narrow(const operand *o, kr_dtype half)
{
    uint16_t *y = must_alloc(o->count * sizeof *y);
    for (size_t i = 0; i < o->count; i++) {
        y[i] = narrowed(o->memory[i], half);
    }
    return y;
}

typedef enum how { WHOLE, BY_ROW, IN_HALVES, IN_HALVES_BY_ROW } how;

/* C of the whole case, in the given layouts; each item of A and B is laid out as one row of items. */
static float *compute(const gemm_case *t, const data *d, const kr_kernels *set, kr_pool *pool, layout la, layout lb,
                      how variant)
{
    const size_t c_count = (size_t)(d->items * t->nm * d->c_m);
    float *c = must_alloc(c_count * sizeof(float));
    memcpy(c, d->c0, c_count * sizeof(float));
    /* Items are stacked: one operand of items * m rows keeps every layout valid for each item. */
    operand a = lay_out(d->a, d->a_items * t->nm, t->nk, la), b = lay_out(d->b, d->b_items * t->nk, t->nn, lb);
    kr_matmul_args args = { .exec = { .pool = pool },
                            .nm = t->nm,
                            .nn = t->nn,
                            .nk = t->nk,
                            .a = { a.first, KR_DTYPE_F32, a.row, a.column },
                            .b = { b.first, KR_DTYPE_F32, b.row, b.column },
                            .c = { c, KR_DTYPE_F32, d->c_m },
                            .bias = t->bias ? d->bias : NULL,
                            .accumulate = t->accumulate,
                            .batch_rank = 3,
                            .batch_dims = { t->nb0, 1, t->nb1 },
                            .batch_a = { t->a_shared ? 0 : t->nb1 * t->nm * a.row, 0, t->nm * a.row },
                            .batch_b = { t->b_shared ? 0 : t->nb1 * t->nk * b.row, 0, t->nk * b.row },
                            .batch_c = { t->nb1 * t->nm * d->c_m, 0, t->nm * d->c_m } };
    uint16_t *halves = NULL;
    if (variant == IN_HALVES || variant == IN_HALVES_BY_ROW) {
        args.b.dtype = t->half == KR_DTYPE_F16 ? KR_DTYPE_F16 : KR_DTYPE_BF16;
        halves = narrow(&b, t->half);
        args.b.data = halves + (b.first - b.memory);
    }
    if (d->items == 1) {
        args.batch_rank = 0;
    }
    const spans memory =
        spans_of(&a, halves ? (void *)halves : (void *)b.memory, b.count * (halves ? sizeof *halves : sizeof *b.memory),
                 c, c_count * sizeof(float), t->bias ? d->bias : NULL, t->nn);
    if (variant == BY_ROW || variant == IN_HALVES_BY_ROW) {
        args.nm = 1;
        for (int64_t m = 0; m < t->nm; m++) {
            args.a.data = a.first + m * a.row;
            args.c.data = c + m * d->c_m;
            call(set, &args, &memory);
        }
    } else {
        call(set, &args, &memory);
    }
    free(a.memory);
    free(b.memory);
    free(halves);
    return c;
}

/* Gaps untouched, and sums within the rounding of a chain: about (k + 3) half-ulps of the sum of magnitudes. On the CPU
 * the chain begins with C and the bias, added; elsewhere these may follow separately (is_separate). */
static bool agrees(const gemm_case *t, const data *d, const float *c, bool is_separate)
{
    const double unit = 5.97e-8, terms = (double)(t->nk < 256 ? t->nk : 256) + (double)t->nk / 256.0 + 4.0;
    for (int64_t item = 0; item < d->items; item++) {
        const float *a = d->a + (t->a_shared ? item % t->nb1 : item) * t->nm * t->nk;
        const float *b = d->b + (t->b_shared ? item % t->nb1 : item) * t->nk * t->nn;
        for (int64_t m = 0; m < t->nm; m++) {
            const float *got = c + (item * t->nm + m) * d->c_m, *old = d->c0 + (item * t->nm + m) * d->c_m;
            for (int64_t n = 0; n < t->nn; n++) {
                double sum = (t->accumulate ? (double)old[n] : 0.0) + (t->bias ? (double)d->bias[n] : 0.0);
                double size = fabs(sum) + 1e-30;
                if (is_separate)
                    size += (t->accumulate ? fabs((double)old[n]) : 0) + (t->bias ? fabs((double)d->bias[n]) : 0);
                for (int64_t k = 0; k < t->nk; k++) {
                    const double term = (double)a[m * t->nk + k] * (double)b[k * t->nn + n];
                    sum += term;
                    size += fabs(term);
                }
                if (!(fabs((double)got[n] - sum) <= unit * terms * size)) {
                    return false;
                }
            }
            if (memcmp(got + t->nn, old + t->nn, (size_t)t->c_padding * sizeof(float)) != 0) {
                return false;
            }
        }
    }
    return true;
}

static void check_case(const gemm_case *t, const kr_kernels *set, kr_pool *pool)
{
    const struct {
        bool threads;
        layout a, b;
        how variant;
        const char *broken;
    } others[] = {
        { true, t->a, t->b, WHOLE, "bits depend on threads" },
        { true, PLAIN, PLAIN, WHOLE, "bits depend on layout" },
        { false, t->a, t->b, BY_ROW, "a row's bits depend on the other rows" },
        { false, t->a, t->b, IN_HALVES, "bits depend on whether B is widened before" },
        { true, TRANSPOSED, TRANSPOSED, IN_HALVES, "bits of halves depend on threads or layout" },
        { false, t->a, t->b, IN_HALVES_BY_ROW, "a row's bits depend on the other rows, with halves" },
    };
    data d = make_data(t);
    const size_t bytes = (size_t)(d.items * t->nm * d.c_m) * sizeof(float);
    float *c = compute(t, &d, set, NULL, t->a, t->b, WHOLE);
    check(agrees(t, &d, c, false), t, set->name, "differs from the double sum");
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        float *other =
            compute(t, &d, set, others[i].threads ? pool : NULL, others[i].a, others[i].b, others[i].variant);
        check(memcmp(c, other, bytes) == 0, t, set->name, others[i].broken);
        free(other);
    }
    free(c);
    free_data(&d);
}

/* Changes A's rows, except row `fixed` of each item. */
static void change_rows(const gemm_case *t, data *d, int64_t fixed)
{
    for (int64_t row = 0; row < d->a_items * t->nm; row++)
        for (int64_t k = 0; row % t->nm != fixed && k < t->nk; k++) d->a[row * t->nk + k] = next_float();
}

static bool same_row(const gemm_case *t, const data *d, const float *x, const float *y, int64_t row)
{
    for (int64_t item = 0; item < d->items; item++) {
        const int64_t at = (item * t->nm + row) * d->c_m;
        if (memcmp(x + at, y + at, (size_t)t->nn * sizeof(float)) != 0) return false;
    }
    return true;
}

static void check_device_case(const gemm_case *t, const kr_kernels *set, kr_pool *pool)
{
    const bool k_adjacent =
        (t->a == PLAIN || t->a == PADDED || t->a == BACKWARDS) && (t->b == TRANSPOSED || t->b == PADDED_TRANSPOSED);
    const bool few = t->nm <= KR_GEMV_ROWS && k_adjacent;
    const struct {
        bool wanted, bits;
        layout a, b;
        how variant;
        const char *broken;
    } others[] = {
        { true, true, t->a, t->b, WHOLE, "bits differ in a second run" },
        { true, false, PLAIN, PLAIN, WHOLE, "wrong in another layout" },
        { few, true, t->a, t->b, BY_ROW, "a row's bits depend on how many rows there are" },
        { true, false, t->a, t->b, IN_HALVES, "wrong with B in halves" },
        { few, true, t->a, t->b, IN_HALVES, "bits depend on whether B is widened before" },
        { few, true, t->a, t->b, IN_HALVES_BY_ROW, "a row's bits depend on how many rows there are, with halves" },
    };
    data d = make_data(t);
    const size_t bytes = (size_t)(d.items * t->nm * d.c_m) * sizeof(float);
    float *c = compute(t, &d, set, pool, t->a, t->b, WHOLE);
    check(agrees(t, &d, c, true), t, set->name, "differs from the double sum");
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        if (!others[i].wanted) continue;
        float *other = compute(t, &d, set, pool, others[i].a, others[i].b, others[i].variant);
        check(others[i].bits ? memcmp(c, other, bytes) == 0 : agrees(t, &d, other, true), t, set->name,
              others[i].broken);
        free(other);
    }
    if (t->nm > 0) {
        const int64_t fixed = kr_test_below(t->nm);
        change_rows(t, &d, fixed);
        float *other = compute(t, &d, set, pool, t->a, t->b, WHOLE);
        check(same_row(t, &d, c, other, fixed), t, set->name, "a row's bits depend on what other rows hold");
        free(other);
    }
    free(c);
    free_data(&d);
}

static void sweep(const kr_kernels *set, kr_pool *pool, int cases)
{
    void (*check_set)(const gemm_case *, const kr_kernels *, kr_pool *) =
        set == device_kernels() ? check_device_case : check_case;
    static const int64_t few[] = {
        0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 15, 16, 17, 24, 31, 32, 33, 63, 64, 65, 67
    };
    static const int64_t terms[] = { 0, 1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 31, 64, 67, 255, 256, 257, 511, 513, 769 };
    static const int64_t many[] = { 191, 192, 193, 197, 256, 331, 389 };
    for (int i = 0; i < cases; i++) {
        gemm_case t = { .nm = pick(few, 24), .nn = pick(few, 24), .nk = pick(terms, 20), .nb0 = 1, .nb1 = 1 };
        t.a = (layout)kr_test_below(NLAYOUTS);
        t.b = (layout)kr_test_below(NLAYOUTS);
        t.c_padding = kr_test_below(2) * 3;
        t.bias = kr_test_below(2) == 0;
        t.accumulate = kr_test_below(2) == 0;
        t.half = kr_test_below(2) ? KR_DTYPE_BF16 : KR_DTYPE_F16;
        const int64_t kind = kr_test_below(16);
        if (kind < 5) {
            t.nb0 = kr_test_below(4);
            t.nb1 = 1 + kr_test_below(3);
            t.a_shared = kr_test_below(3) == 0;
            t.b_shared = kr_test_below(3) == 0;
        } else if (kind < 7) {
            t.nm = pick(many, 7);
        } else if (kind < 9) {
            t.nn = pick(many, 7);
        } else if (kind == 9) {
            t.nm = pick(many, 7);
            t.nn = pick(many, 7);
        }
        check_set(&t, set, pool);
    }
    /* Layouts of the large path, several blocks of rows and of columns, and strides that collide in caches. */
    const gemm_case large[] = {
        { 389, 331, 257, TRANSPOSED, TRANSPOSED, 1, true, true, 1, 1, false, false, KR_DTYPE_F16 },
        { 4099, 37, 67, PLAIN, TRANSPOSED, 0, false, false, 1, 1, false, false, KR_DTYPE_BF16 },
        { 4099, 37, 67, SPREAD, PLAIN, 2, true, false, 1, 1, false, false, KR_DTYPE_F16 },
        { 193, 4133, 13, TRANSPOSED, PLAIN, 0, false, true, 1, 1, false, false, KR_DTYPE_BF16 },
        { 200, 200, 512, PLAIN, TRANSPOSED, 0, false, false, 2, 1, false, true, KR_DTYPE_F16 },
        { 3, 4133, 512, PLAIN, TRANSPOSED, 0, true, false, 1, 1, false, false, KR_DTYPE_BF16 },
        { 2, 2053, 300, PLAIN, PLAIN, 0, true, true, 3, 1, true, false, KR_DTYPE_F16 },
        { 2053, 1, 300, PLAIN, PLAIN, 0, false, true, 2, 1, false, false, KR_DTYPE_BF16 },
    };
    for (size_t i = 0; i < sizeof large / sizeof large[0]; i++) {
        check_set(&large[i], set, pool);
    }
}

TEST(products_keep_their_bits_in_every_layout)
{
    for (int n = 0; kr_judged_set(n); n++)
        if (kr_kernel_named("matmul")->has(kr_judged_set(n), KR_REAL_F32))
            sweep(kr_judged_set(n), kr_test_pool(3), kr_test_quick() ? 15 : 400);
}

/* X X^T [m m], X [m k]: every product of two elements equals its mirror image, so both halves have the same bits. */
static void check_symmetric(int64_t nm, int64_t nk, layout how_laid, const kr_kernels *set, kr_pool *pool)
{
    enum { GAP = 3 };
    const int64_t c_m = nm + GAP, count = nm * c_m;
    float *values = random_floats(nm * nk);
    const operand x = lay_out(values, nm, nk, how_laid);
    float *c[2];
    for (int symmetric = 0; symmetric < 2; symmetric++) {
        c[symmetric] = must_alloc((size_t)count * sizeof(float));
        for (int64_t i = 0; i < count; i++) c[symmetric][i] = 7;
        kr_matmul_args args = { .exec.pool = symmetric ? pool : NULL,
                                .nm = nm,
                                .nn = nm,
                                .nk = nk,
                                .a = { x.first, KR_DTYPE_F32, x.row, x.column },
                                .b = { x.first, KR_DTYPE_F32, x.column, x.row },
                                .c = { c[symmetric], KR_DTYPE_F32, c_m },
                                .symmetric = symmetric };
        const spans memory =
            spans_of(&x, x.memory, x.count * sizeof(float), c[symmetric], (size_t)count * sizeof(float), NULL, 0);
        call(set, &args, &memory);
    }
    const gemm_case t = {
        .nm = nm, .nn = nm, .nk = nk, .a = how_laid, .b = how_laid, .c_padding = GAP, .nb0 = 1, .nb1 = 1
    };
    check(memcmp(c[0], c[1], (size_t)count * sizeof(float)) == 0, &t, set->name, "the symmetric product differs");
    for (int i = 0; i < 2; i++) free(c[i]);
    free(x.memory);
    free(values);
}

TEST(symmetric_products_are_the_whole_ones)
{
    static const int64_t sides[] = { 1, 2, 4, 5, 13, 31, 64, 65, 130, 192, 193, 260, 389 }, terms[] = { 1, 33, 257 };
    for (int n = 0; kr_judged_set(n); n++)
        if (kr_kernel_named("matmul")->has(kr_judged_set(n), KR_REAL_F32))
            for (size_t i = 0; i < sizeof sides / sizeof *sides; i++)
                for (size_t k = 0; k < sizeof terms / sizeof *terms; k++)
                    for (int how_laid = 0; how_laid < (kr_test_quick() ? 1 : NLAYOUTS); how_laid++)
                        check_symmetric(sides[i], terms[k], (layout)how_laid, kr_judged_set(n), kr_test_pool(3));
}
