/* test_moves.c - copies between types, fills and the search for values that are not finite, against answers written
 * down here: for these kernels the reference is one of the sets under test, not the oracle. */
#include "tests/kernels/conformance.h"

typedef union element {
    float f32;
    double f64;
    uint16_t half;
    int32_t i32;
    int64_t i64;
} element;

typedef struct conversion {
    kr_dtype from, to;
    element x, y;
} conversion;

/* clang-format off */
#define F32(v) { .f32 = (v) }
#define F64(v) { .f64 = (v) }
#define HALF(v) { .half = (v) }
#define I32(v) { .i32 = (v) }
#define I64(v) { .i64 = (v) }
/* clang-format on */

static const conversion conversions[] = {
    /* floats to integers: toward 0, saturated, NaN is 0 */
    { KR_DTYPE_F32, KR_DTYPE_I32, F32(3.99f), I32(3) },
    { KR_DTYPE_F32, KR_DTYPE_I32, F32(-3.99f), I32(-3) },
    { KR_DTYPE_F32, KR_DTYPE_I32, F32(3e9f), I32(INT32_MAX) },
    { KR_DTYPE_F32, KR_DTYPE_I32, F32(-INFINITY), I32(INT32_MIN) },
    { KR_DTYPE_F32, KR_DTYPE_I32, F32(NAN), I32(0) },
    { KR_DTYPE_F64, KR_DTYPE_I32, F64(2147483646.9), I32(2147483646) },
    { KR_DTYPE_F64, KR_DTYPE_I32, F64(-2147483648.5), I32(INT32_MIN) },
    { KR_DTYPE_F64, KR_DTYPE_I64, F64(9.3e18), I64(INT64_MAX) },
    { KR_DTYPE_F64, KR_DTYPE_I64, F64(-1e19), I64(INT64_MIN) },
    { KR_DTYPE_F64, KR_DTYPE_I64, F64(9007199254740993.0), I64(9007199254740992) },
    { KR_DTYPE_F32, KR_DTYPE_I64, F32(0x1p62f), I64(INT64_C(1) << 62) },
    { KR_DTYPE_BF16, KR_DTYPE_I32, HALF(0xc0e0), I32(-7) },
    { KR_DTYPE_F16, KR_DTYPE_I64, HALF(0x7c00), I64(INT64_MAX) },
    /* integers among themselves */
    { KR_DTYPE_I64, KR_DTYPE_I32, I64(INT64_C(1) << 40), I32(INT32_MAX) },
    { KR_DTYPE_I64, KR_DTYPE_I32, I64(-INT64_C(5000000000)), I32(INT32_MIN) },
    { KR_DTYPE_I64, KR_DTYPE_I32, I64(-17), I32(-17) },
    { KR_DTYPE_I32, KR_DTYPE_I64, I32(INT32_MIN), I64(INT32_MIN) },
    /* integers to floats: one rounding */
    { KR_DTYPE_I32, KR_DTYPE_F32, I32(16777217), F32(16777216.0f) },
    { KR_DTYPE_I32, KR_DTYPE_F32, I32(16777219), F32(16777220.0f) },
    { KR_DTYPE_I64, KR_DTYPE_F64, I64(9007199254740993), F64(9007199254740992.0) },
    { KR_DTYPE_I64, KR_DTYPE_F32, I64(0x1000001000000001), F32(0x1.000002p60f) }, /* just above a tie of float */
    { KR_DTYPE_I64, KR_DTYPE_BF16, I64(0x4040000000000001), HALF(0x5e81) },       /* just above a tie of bf16 */
    { KR_DTYPE_I64, KR_DTYPE_BF16, I64(0x4040000000000000), HALF(0x5e80) },       /* the tie */
    { KR_DTYPE_I32, KR_DTYPE_F16, I32(2049), HALF(0x6800) },
    { KR_DTYPE_I32, KR_DTYPE_F16, I32(70000), HALF(0x7c00) },
    /* floats to narrower floats: nearest, ties to even, once */
    { KR_DTYPE_F64, KR_DTYPE_F32, F64(1 + 0x1p-24), F32(1) },
    { KR_DTYPE_F64, KR_DTYPE_F32, F64(1 + 0x1p-24 + 0x1p-52), F32(1 + 0x1p-23f) },
    { KR_DTYPE_F64, KR_DTYPE_F16, F64(1 + 0x1p-11 + 0x1p-40), HALF(0x3c01) },
    { KR_DTYPE_F64, KR_DTYPE_BF16, F64(1 + 0x1p-8 + 0x1p-40), HALF(0x3f81) },
    { KR_DTYPE_F32, KR_DTYPE_BF16, F32(1 + 0x1p-8f), HALF(0x3f80) },
    { KR_DTYPE_F32, KR_DTYPE_BF16, F32(1 + 0x1p-7f + 0x1p-8f), HALF(0x3f82) },
    { KR_DTYPE_F32, KR_DTYPE_F16, F32(65519.996f), HALF(0x7bff) },
    { KR_DTYPE_F32, KR_DTYPE_F16, F32(-65520), HALF(0xfc00) },
    { KR_DTYPE_F32, KR_DTYPE_F16, F32(0x1p-25f), HALF(0x0000) },
    { KR_DTYPE_F32, KR_DTYPE_F16, F32(0x1.8p-24f), HALF(0x0002) },
    { KR_DTYPE_F64, KR_DTYPE_F32, F64(1e300), F32(INFINITY) },
    { KR_DTYPE_F64, KR_DTYPE_F32, F64(-1e-60), F32(-0.0f) },
    /* and to wider ones */
    { KR_DTYPE_BF16, KR_DTYPE_F32, HALF(0x0001), F32(0x1p-133f) },
    { KR_DTYPE_F16, KR_DTYPE_F32, HALF(0x8001), F32(-0x1p-24f) },
    { KR_DTYPE_F16, KR_DTYPE_F64, HALF(0x7bff), F64(65504) },
    { KR_DTYPE_F32, KR_DTYPE_F64, F32(0x1p-149f), F64(0x1p-149) },
    { KR_DTYPE_BF16, KR_DTYPE_F16, HALF(0x3fc0), HALF(0x3e00) },
    { KR_DTYPE_F16, KR_DTYPE_BF16, HALF(0x3c01), HALF(0x3f80) },
};

/* Each conversion fills a row, so that vectors and partial vectors are used as well as single elements. */
static void check_conversion(const kr_kernels *set, const conversion *c, int64_t n)
{
    enum { MOST = 40 };
    element x[MOST], y[MOST];
    const size_t x_bytes = kr_dtype_bytes(c->from), y_bytes = kr_dtype_bytes(c->to);
    memset(y, 0x5a, sizeof y);
    for (int64_t i = 0; i < n; i++) memcpy((char *)x + (size_t)i * x_bytes, &c->x, x_bytes);
    kr_copy_args a = { .x_dtype = c->from, .y_dtype = c->to, .x = x, .y = y };
    a.walk.rank = 1;
    a.walk.dims[0] = n;
    a.walk.strides[0][0] = a.walk.strides[1][0] = 1;
    const kr_span spans[] = { { offsetof(kr_copy_args, x), 0, x, (size_t)n * x_bytes, false },
                              { offsetof(kr_copy_args, y), 0, y, sizeof y, true } };
    kr_run_spans(kr_kernel_named("copy"), set, 0, NULL, &a, sizeof a, spans, 2, "conversion");
    for (int64_t i = 0; i < n; i++) {
        uint64_t got = 0, want = 0;
        memcpy(&got, (char *)y + (size_t)i * y_bytes, y_bytes);
        memcpy(&want, &c->y, y_bytes);
        if (!CHECK(got == want, "%s, %s to %s, row %d, element %lld of %lld: got bits %llx want %llx", set->name,
                   kr_dtype_name(c->from), kr_dtype_name(c->to), (int)(c - conversions), (long long)i, (long long)n,
                   (unsigned long long)got, (unsigned long long)want))
            return;
    }
    CHECK(((unsigned char *)y)[(size_t)n * y_bytes] == 0x5a, "%s: wrote past the row", set->name);
}

TEST(copy_converts_as_written_down)
{
    for (int n = 0; kr_judged_set(n); n++) {
        if (!kr_judged_set(n)->copy.run) continue;
        for (size_t i = 0; i < sizeof conversions / sizeof *conversions; i++) {
            check_conversion(kr_judged_set(n), &conversions[i], 1);
            check_conversion(kr_judged_set(n), &conversions[i], 37);
        }
    }
}

/* Every third element of rows of five, in all types. */
TEST(fill_writes_its_places_and_no_others)
{
    static const struct {
        kr_dtype dtype;
        double value;
        element want;
    } rows[] = {
        { KR_DTYPE_F32, 0.1, F32(0.1f) },
        { KR_DTYPE_F64, 0.1, F64(0.1) },
        { KR_DTYPE_BF16, 1 + 0x1p-8 + 0x1p-40, HALF(0x3f81) },
        { KR_DTYPE_F16, -65504, HALF(0xfbff) },
        { KR_DTYPE_I32, -2.9, I32(-2) },
        { KR_DTYPE_I64, 0x1p40, I64(INT64_C(1) << 40) },
        { KR_DTYPE_I32, INFINITY, I32(INT32_MAX) },
        { KR_DTYPE_I64, NAN, I64(0) },
    };
    for (int n = 0; kr_judged_set(n); n++) {
        for (size_t r = 0; kr_judged_set(n)->fill.run && r < sizeof rows / sizeof *rows; r++) {
            element y[90];
            memset(y, 0x5a, sizeof y);
            const size_t bytes = kr_dtype_bytes(rows[r].dtype);
            kr_fill_args a = { .dtype = rows[r].dtype, .y = (char *)y + 4 * bytes, .value = rows[r].value };
            a.walk.rank = 2;
            a.walk.dims[0] = 4;
            a.walk.dims[1] = 5;
            a.walk.strides[0][0] = 16;
            a.walk.strides[0][1] = 3;
            const kr_span span = { offsetof(kr_fill_args, y), 0, y, sizeof y, true };
            kr_run_spans(kr_kernel_named("fill"), kr_judged_set(n), 0, NULL, &a, sizeof a, &span, 1, "fill");
            for (int i = 0; i < 80; i++) {
                const int at = i - 4;
                const bool ours = at >= 0 && at / 16 < 4 && at % 16 % 3 == 0 && at % 16 / 3 < 5;
                element want;
                memset(&want, 0x5a, sizeof want);
                if (ours) want = rows[r].want;
                CHECK(memcmp((char *)y + (size_t)i * bytes, &want, bytes) == 0, "%s, row %zu, place %d",
                      kr_judged_set(n)->name, r, i);
            }
        }
    }
}

TEST(finite_finds_the_first)
{
    enum { N = 100 };
    for (int n = 0; kr_judged_set(n); n++) {
        const kr_kernels *set = kr_judged_set(n);
        for (int at = -1; set->finite.run && at < N; at++) {
            float x[N];
            for (int i = 0; i < N; i++) x[i] = i % 2 ? 3.4e38f : -1e-45f;
            if (at >= 0) x[at] = at % 3 ? NAN : INFINITY;
            if (at >= 0 && at + 5 < N) x[at + 5] = -INFINITY;
            int64_t first = 77;
            const kr_finite_args a = { .n = N, .dtype = KR_DTYPE_F32, .x = x, .first = &first };
            const kr_span spans[] = { { offsetof(kr_finite_args, x), 0, x, sizeof x, false },
                                      { offsetof(kr_finite_args, first), 0, &first, sizeof first, true } };
            kr_run_spans(kr_kernel_named("finite"), set, 0, NULL, &a, sizeof a, spans, 2, "finite");
            CHECK(first == at, "%s: found %lld, but it is at %d", set->name, (long long)first, at);
        }
    }
}
