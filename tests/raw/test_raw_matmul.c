/* test_raw_matmul.c - the raw matrix product against that of a tape, to the bit: transposed operands, a bias, sums, parts of
 * wider rows. */
#include "tests/raw/raw_case.h"

enum { A, B, BIAS, Y, VIEWS };

static kr_view transposed(kr_view x)
{
    const kr_view y = x;
    x.dims[0] = y.dims[1], x.strides[0] = y.strides[1];
    x.dims[1] = y.dims[0], x.strides[1] = y.strides[0];
    return x;
}

static kr_view view_of(const kr_tensor *x)
{
    return kr_view_contiguous(kr_tensor_dtype(x), kr_tensor_shape(x), kr_tensor_data(x));
}

/* Bit 0: a is a transposed view, 1: b is, 2: with a bias, 3: added to y, 4: y is a part of wider rows. */
static void check_product(kr_tape *t, kr_dtype dtype, int64_t nj, int64_t nk, int64_t ni, int which)
{
    raw_case c = { .op = KR_RAW_MATMUL, .dtype = dtype, .t = t };
    kr_raw_options options;
    kr_tensor *a = noise(&c, "x", which & 1 ? KR_SHAPE(nk, nj) : KR_SHAPE(nj, nk));
    kr_tensor *b = noise(&c, "x", which & 2 ? KR_SHAPE(ni, nk) : KR_SHAPE(nk, ni));
    kr_tensor *bias = which & 4 ? noise(&c, "x", KR_SHAPE(ni)) : NULL;
    kr_tensor *before = which & 8 ? noise(&c, "x", KR_SHAPE(nj, ni)) : NULL;
    kr_tensor *want =
        kr_matmul_add(t, which & 1 ? kr_transpose(t, a) : a, which & 2 ? kr_transpose(t, b) : b, bias, before);
    const int64_t line = which & 16 ? ni + 3 : ni;
    kr_tensor *wide = unwritten(&c, KR_SHAPE(nj, line));
    if (before && line > ni)
        wide = kr_contiguous(t, kr_concat(t, 1, 2, (kr_tensor *[]){ before, unwritten(&c, KR_SHAPE(nj, line - ni)) }));
    else if (before) wide = kr_input(t, before);
    kr_view views[VIEWS] = { view_of(a), view_of(b), { .data = NULL }, view_of(wide) };
    if (which & 1) views[A] = transposed(views[A]);
    if (which & 2) views[B] = transposed(views[B]);
    if (bias) views[BIAS] = view_of(bias);
    views[Y].dims[1] = ni;
    kr_raw_options_init(&options);
    options.accumulate = before != NULL;
    CHECK(run_exactly(t, KR_RAW_MATMUL, VIEWS, views, options) == KR_OK, "%s", kr_ctx_message(kr_tape_ctx(t)));
    char text[100];
    snprintf(text, sizeof text, "%s, [%lld %lld] [%lld %lld], case %d", kr_dtype_name(dtype), (long long)nj,
             (long long)nk, (long long)nk, (long long)ni, which);
    CHECK_SAME(kr_tape_ctx(t), text, kr_slice(t, wide, 1, 0, ni), want, 1e-5, 1);
    if (line > ni) {
        double *gap = kr_test_values(kr_slice(t, wide, 1, ni, line));
        for (int64_t i = 0; i < nj * 3; i++) CHECK(isnan(gap[i]), "%s: written behind a row", text);
        free(gap);
    }
}

TEST(raw_products_have_the_bits_of_a_tape)
{
    kr_ctx *ctx = kr_test_ctx(2, NULL);
    static const int64_t sizes[][3] = { { 1, 7, 33 }, { 5, 64, 3 }, { 70, 33, 65 }, { 3, 0, 4 }, { 0, 3, 4 } };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int which = 0; which < 32; which++)
            for (int real = 0; real < 2; real++) {
                kr_tape *t = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
                if ((which & 12) != 12)
                    check_product(t, real ? KR_DTYPE_F64 : KR_DTYPE_F32, sizes[i][0], sizes[i][1], sizes[i][2], which);
                kr_tape_destroy(t);
            }
    CHECK_OK(ctx);
    kr_ctx_destroy(ctx);
}

TEST(raw_products_are_checked)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    kr_tape *t = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    const kr_dtype f32 = KR_DTYPE_F32;
    kr_view views[VIEWS] = { view_of(kr_zeros(t, f32, KR_SHAPE(2, 3))), view_of(kr_zeros(t, f32, KR_SHAPE(4, 5))),
                             view_of(kr_zeros(t, f32, KR_SHAPE(5))), view_of(kr_zeros(t, f32, KR_SHAPE(2, 5))) };
    kr_raw_options options;
    CHECK(kr_raw_run(ctx, KR_RAW_MATMUL, VIEWS, views, NULL) == KR_ERR_SHAPE, "sizes");
    CHECK_ERROR(ctx, KR_ERR_SHAPE, "raw matmul: axis k of b [4, 5] is 4, but a [2, 3] says k = 3");
    views[B] = view_of(kr_zeros(t, f32, KR_SHAPE(3, 5)));
    kr_raw_options_init(&options);
    options.accumulate = true;
    CHECK(kr_raw_run(ctx, KR_RAW_MATMUL, VIEWS, views, &options) == KR_ERR_ARG, "a bias");
    CHECK_ERROR(ctx, KR_ERR_ARG, "raw matmul: accumulate is set, but with a bias products are not added");
    kr_view y = views[Y];
    views[Y].strides[0] = 4;
    CHECK(kr_raw_run(ctx, KR_RAW_MATMUL, VIEWS, views, NULL) == KR_ERR_SHAPE, "rows over one another");
    CHECK_ERROR(ctx, KR_ERR_SHAPE,
                "raw matmul: y [2, 5] has strides [4, 1], but a result needs rows in rising order that do not overlap");
    views[Y] = y;
    views[A].data = y.data;
    CHECK(kr_raw_run(ctx, KR_RAW_MATMUL, VIEWS, views, NULL) == KR_ERR_ARG, "in place");
    CHECK_ERROR(ctx, KR_ERR_ARG, "raw matmul: result y [2, 5] overlaps a [2, 3] in memory");
    kr_tape_destroy(t);
    kr_ctx_destroy(ctx);
}
