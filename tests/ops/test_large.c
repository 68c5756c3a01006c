/* test_large.c - a tensor of more than 2^31 elements on a GPU: what lies beyond is found by every kind of kernel.
 *
 * x [R W] has the elements r % 7 + c / 128, which floats hold exactly; each check reads a few places of the last rows and
 * knows what must be there.
 */
#include "tests/harness.h"

enum { R = 32771, W = 65537 }; /* 2^31 + 229379 elements */

static double x_at(int64_t r, int64_t c)
{
    return (double)(r % 7) + (double)c / 128;
}

static kr_ctx *ctx;
static kr_tape *tape;

/* Out of a column and a row: each element is written through strides of 0. */
static kr_tensor *make_x(void)
{
    float *column = malloc(R * sizeof *column), *row = malloc(W * sizeof *row);
    if (!column || !row) exit(2);
    for (int64_t r = 0; r < R; r++) column[r] = (float)(r % 7);
    for (int64_t c = 0; c < W; c++) row[c] = (float)c / 128;
    kr_tensor *x = kr_add(tape, kr_from_data(tape, KR_DTYPE_F32, KR_SHAPE(R, 1), column),
                          kr_from_data(tape, KR_DTYPE_F32, KR_SHAPE(1, W), row));
    free(column);
    free(row);
    return x;
}

static bool begin(void)
{
    ctx = kr_test_ctx(1, NULL);
    tape = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    /* as much as the largest test asks for, at once */
    kr_zeros(tape, KR_DTYPE_F32, KR_SHAPE(3, R, W));
    const bool fits = !kr_ctx_failed(ctx);
    kr_ctx_clear(ctx);
    kr_tape_reset(tape);
    if (fits) return true;
    kr_tape_destroy(tape);
    kr_ctx_destroy(ctx);
    return false;
}

static void end(void)
{
    CHECK_OK(ctx);
    kr_tape_destroy(tape);
    kr_ctx_destroy(ctx);
}

#define BEGIN_LARGE()                                                                                                  \
    do {                                                                                                               \
        if (!kr_test_chooses(NULL)) SKIP("only with KR_DEVICE=cuda: it takes 26 GB of a GPU's memory");                \
        if (!begin()) SKIP("the GPU has less than 26 GB free");                                                        \
    } while (0)

static const int64_t rows[] = { 0, 1, 32767, R - 2, R - 1 }, columns[] = { 0, 1, 32768, W - 2, W - 1 };

/* Elements of y [R W], or of its transpose. */
static void check_places(const char *what, const kr_tensor *y, bool rotated, double (*want)(int64_t r, int64_t c),
                         double tolerance)
{
    for (int i = 0; i < 5; i++)
        for (int k = 0; k < 5; k++) {
            const int64_t at[2] = { rotated ? columns[k] : rows[i], rotated ? rows[i] : columns[k] };
            const double got = kr_tensor_at(y, at), wanted = want(rows[i], columns[k]);
            CHECK(fabs(got - wanted) <= tolerance * fabs(wanted), "%s [%lld, %lld]: got %.9g want %.9g", what,
                  (long long)rows[i], (long long)columns[k], got, wanted);
        }
}

static double seven(int64_t r, int64_t c)
{
    (void)r, (void)c;
    return 7;
}

static double root(int64_t r, int64_t c)
{
    return sqrt(x_at(r, c));
}

TEST(large_fills_and_functions)
{
    BEGIN_LARGE();
    check_places("fill", kr_full(tape, KR_DTYPE_F32, KR_SHAPE(R, W), 7), false, seven, 0);
    kr_tape_reset(tape);
    kr_tensor *x = make_x();
    check_places("x", x, false, x_at, 0);
    check_places("sqrt", kr_sqrt(tape, x), false, root, 0x1p-23);
    end();
}

/* x [W R] row-major, and x in halves, which have 8 bits. */
TEST(large_copies)
{
    BEGIN_LARGE();
    kr_tensor *x = make_x();
    check_places("transposed", kr_contiguous(tape, kr_transpose(tape, x)), true, x_at, 0);
    check_places("bf16", kr_cast(tape, x, KR_DTYPE_BF16), false, x_at, 0x1p-8);
    end();
}

static double row_sum(int64_t r)
{
    return (double)(r % 7) * W + (double)(W - 1) * W / 256;
}

TEST(large_sums)
{
    BEGIN_LARGE();
    kr_tensor *x = make_x();
    kr_tensor *of_rows = kr_sum(tape, x, KR_AXES(1), false), *of_columns = kr_sum(tape, x, KR_AXES(0), false);
    double all = 0, of_sevens = 0;
    for (int64_t r = 0; r < R; r++) all += row_sum(r), of_sevens += (double)(r % 7);
    for (int i = 0; i < 5; i++) {
        const double got = kr_tensor_at(of_rows, &rows[i]), want = row_sum(rows[i]);
        CHECK(fabs(got - want) <= 1e-5 * want, "row %lld: got %.9g want %.9g", (long long)rows[i], got, want);
        const double at = kr_tensor_at(of_columns, &columns[i]), total = of_sevens + (double)columns[i] / 128 * R;
        CHECK(fabs(at - total) <= 1e-5 * total, "column %lld: got %.9g want %.9g", (long long)columns[i], at, total);
    }
    const double got = kr_item(kr_sum(tape, x, KR_ALL_AXES, false));
    CHECK(fabs(got - all) <= 1e-5 * all, "all: got %.9g want %.9g", got, all);
    end();
}

TEST(large_tables)
{
    BEGIN_LARGE();
    int32_t *list = malloc(5 * W * sizeof *list);
    if (!list) exit(2);
    for (int64_t i = 0; i < 5 * W; i++) list[i] = (int32_t)rows[i / W];
    kr_tensor *x = make_x(), *id = kr_from_data(tape, KR_DTYPE_I32, KR_SHAPE(5, W), list);
    kr_tensor *first = kr_contiguous(tape, kr_slice(tape, id, 1, 0, 1));
    kr_tensor *looked_up = kr_embedding(tape, x, kr_reshape(tape, first, KR_SHAPE(5)));
    kr_tensor *gathered = kr_gather(tape, x, 0, id);
    free(list);
    for (int i = 0; i < 5; i++)
        for (int k = 0; k < 5; k++) {
            const int64_t at[2] = { i, columns[k] };
            const double want = x_at(rows[i], columns[k]);
            CHECK(kr_tensor_at(looked_up, at) == want, "row %d of the table: %g", (int)rows[i], want);
            CHECK(kr_tensor_at(gathered, at) == want, "row %d of x: %g", (int)rows[i], want);
        }
    end();
}

static double normalised(int64_t r, int64_t c)
{
    double sum = 0;
    for (int64_t i = 0; i < W; i++) sum += x_at(r, i) * x_at(r, i);
    return x_at(r, c) / sqrt(sum / W + 1e-5);
}

static double of_softmax(int64_t r, int64_t c)
{
    (void)r;
    double sum = 0;
    for (int64_t i = 0; i < W; i++) sum += exp((double)(i - (W - 1)) / 128);
    return exp((double)(c - (W - 1)) / 128) / sum;
}

TEST(large_rows)
{
    BEGIN_LARGE();
    kr_tensor *x = make_x();
    check_places("rms_norm", kr_rms_norm(tape, x, NULL, NULL), false, normalised, 1e-5);
    kr_tape_reset(tape);
    x = make_x();
    kr_tensor *y = kr_softmax(tape, x, -1);
    for (int i = 0; i < 5; i++) {
        const int64_t at[2] = { rows[i], W - 1 };
        const double got = kr_tensor_at(y, at), want = of_softmax(rows[i], W - 1);
        CHECK(fabs(got - want) <= 1e-4 * want, "softmax [%lld, last]: got %.9g want %.9g", (long long)rows[i], got,
              want);
    }
    end();
}

/* y [R 2] = x w^T with a weight of ones and one of alternating signs. */
TEST(large_products)
{
    BEGIN_LARGE();
    float *ones = malloc(2 * W * sizeof *ones);
    if (!ones) exit(2);
    for (int64_t c = 0; c < W; c++) ones[c] = 1, ones[W + c] = c % 2 ? -1 : 1;
    kr_tensor *y = kr_linear(tape, make_x(), kr_from_data(tape, KR_DTYPE_F32, KR_SHAPE(2, W), ones), NULL);
    free(ones);
    for (int i = 0; i < 5; i++) {
        const double sum = row_sum(rows[i]), other = (double)(rows[i] % 7) + (double)(W - 1) / 256;
        const double got = kr_tensor_at(y, (int64_t[2]){ rows[i], 0 }),
                     got_other = kr_tensor_at(y, (int64_t[2]){ rows[i], 1 });
        /* a chain of 65537 roundings; another row would be off by 4e-3 */
        CHECK(fabs(got - sum) <= 1e-4 * sum, "row %lld: got %.9g want %.9g", (long long)rows[i], got, sum);
        CHECK(fabs(got_other - other) <= 1e-4 * sum, "row %lld: got %.9g want %.9g", (long long)rows[i], got_other,
              other);
    }
    end();
}
