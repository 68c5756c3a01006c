/* test_half_weights.c - linear layers and embeddings whose weights are halves: what an explicit cast would give, to the
 * bit, in values and gradients, without its memory. */
#include "ops/ops_impl.h"
#include "tests/harness.h"

typedef struct setting {
    kr_ctx *ctx;
    kr_tensor *weight, *bias; /* [o i], [o] */
    kr_dtype x_type;
    int64_t rows;
} setting;

typedef struct result {
    kr_tensor *y, *g_x, *g_weight, *g_bias; /* copies on a tape that outlives the run */
} result;

static kr_tensor *copy(kr_tape *to, const kr_tensor *x)
{
    return kr_from_data(to, kr_tensor_dtype(x), kr_tensor_shape(x), kr_test_copy(x));
}

static result run(const setting *s, kr_tape *keep, bool casts)
{
    result r = { .y = NULL };
    const int64_t ni = kr_tensor_dim(s->weight, 1), count = s->rows * ni;
    double *values = calloc((size_t)count + 1, sizeof *values);
    if (!values) exit(2);
    for (int64_t i = 0; i < count; i++) values[i] = sin((double)i * 0.7);
    kr_tape *t = kr_tape_create(s->ctx, KR_TAPE_GRAD);
    kr_tensor *x = kr_input(t, kr_cast(t, kr_from_data(t, KR_DTYPE_F64, KR_SHAPE(s->rows, ni), values), s->x_type));
    free(values);
    const bool is_16bit = s->x_type != KR_DTYPE_F32;
    kr_tensor *y;
    if (casts) {
        y = kr_linear(t, kr_cast(t, x, KR_DTYPE_F32), kr_cast(t, s->weight, KR_DTYPE_F32), s->bias);
        if (is_16bit && !s->bias && s->x_type == kr_tensor_dtype(s->weight)) y = kr_cast(t, y, s->x_type);
    } else {
        y = kr_linear(t, x, s->weight, s->bias);
    }
    kr_zero_grad(s->weight);
    kr_zero_grad(s->bias);
    kr_backward(t, kr_sum(t, kr_cast(t, kr_mul(t, y, y), KR_DTYPE_F32), KR_ALL_AXES, false));
    CHECK_OK(s->ctx);
    r = (result){ copy(keep, y), copy(keep, kr_grad(x)), copy(keep, kr_grad(s->weight)), NULL };
    if (s->bias) r.g_bias = copy(keep, kr_grad(s->bias));
    kr_tape_destroy(t);
    return r;
}

/* What another order of sums may change, relative to the largest of a tensor: some roundings of floats; and where they
 * are rounded to halves, two steps of these. */
static double order_of(const kr_tensor *x)
{
    return kr_tensor_dtype(x) == KR_DTYPE_F32 ? 1e-5 : kr_tensor_dtype(x) == KR_DTYPE_F16 ? 0x1p-9 : 0x1p-6;
}

static void check_linear(kr_ctx *ctx, kr_tape *keep, const setting *s)
{
    const result own = run(s, keep, false), cast = run(s, keep, true);
    CHECK_SAME(ctx, "y", own.y, cast.y, order_of(own.y), 1);
    CHECK_SAME(ctx, "g_x", own.g_x, cast.g_x, fmax(order_of(own.y), order_of(own.g_x)), 1);
    CHECK_SAME(ctx, "g_weight", own.g_weight, cast.g_weight, fmax(order_of(own.y), order_of(own.g_weight)), 1);
    if (s->bias) CHECK_SAME(ctx, "g_bias", own.g_bias, cast.g_bias, order_of(own.y), 1);
    CHECK_OK(ctx);
    kr_tape_reset(keep);
}

TEST(linear_of_halves_is_linear_of_the_cast)
{
    static const struct {
        int64_t rows, no, ni;
    } sizes[] = { { 1, 70, 300 }, { 4, 33, 17 }, { 5, 1, 40 }, { 30, 65, 129 }, { 2, 3, 1 } };
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    kr_tape *keep = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int k = 0; k < 8; k++) {
            const kr_dtype half = k % 2 ? KR_DTYPE_F16 : KR_DTYPE_BF16;
            setting s = { .ctx = ctx, .rows = sizes[i].rows, .x_type = k / 2 % 2 ? half : KR_DTYPE_F32 };
            s.weight = kr_param_create(ctx, half, KR_SHAPE(sizes[i].no, sizes[i].ni));
            kr_param_normal(s.weight, 0, 1);
            if (k / 4) s.bias = kr_param_create(ctx, KR_DTYPE_F32, KR_SHAPE(sizes[i].no));
            if (s.bias) kr_param_normal(s.bias, 0, 1);
            check_linear(ctx, keep, &s);
            kr_param_destroy(s.weight);
            kr_param_destroy(s.bias);
        }
    kr_tape_destroy(keep);
    kr_ctx_destroy(ctx);
}

/* The gradient is added up in f32 and rounded once, however often an id repeats. */
TEST(embedding_of_halves_is_embedding_of_the_cast)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    kr_tape *t = kr_tape_create(ctx, KR_TAPE_GRAD);
    for (int k = 0; k < 2; k++) {
        const kr_dtype half = k ? KR_DTYPE_F16 : KR_DTYPE_BF16;
        kr_tensor *tables[2];
        kr_tensor *y[2];
        for (int i = 0; i < 2; i++) {
            tables[i] = kr_param_create(ctx, half, KR_SHAPE(9, 13));
            kr_ctx_seed(ctx, 3);
            kr_param_normal(tables[i], 0, 1);
        }
        static const int32_t list[6] = { 0, 8, 3, 3, 3, 1 };
        kr_tensor *id = kr_from_data(t, KR_DTYPE_I32, KR_SHAPE(2, 3), list);
        y[0] = kr_embedding(t, tables[0], id);
        y[1] = kr_cast(t, kr_embedding(t, kr_cast(t, tables[1], KR_DTYPE_F32), id), half);
        CHECK_SAME_BITS("y", y[0], y[1]);
        for (int i = 0; i < 2; i++) y[i] = kr_sum(t, kr_mul(t, y[i], y[i]), KR_ALL_AXES, false);
        kr_backward_from(t, 2, y, NULL);
        CHECK_OK(ctx);
        CHECK_SAME_BITS("g_table", kr_grad(tables[0]), kr_grad(tables[1]));
        kr_tape_reset(t);
        for (int i = 0; i < 2; i++) kr_param_destroy(tables[i]);
    }
    kr_tape_destroy(t);
    kr_ctx_destroy(ctx);
}

TEST(embedding_that_is_to_be_widened)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    kr_tape *t = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    static const int64_t widths[] = { 1, 13, 64, 1028, 2050 };
    static const int32_t list[6] = { 0, 8, 3, 3, 3, 1 };
    for (int i = 0; i < 5; i++)
        for (int k = 0; k < 3; k++) {
            const kr_dtype type = k == 0 ? KR_DTYPE_BF16 : k == 1 ? KR_DTYPE_F16 : KR_DTYPE_F32;
            kr_tensor *table = kr_param_create(ctx, type, KR_SHAPE(9, widths[i]));
            kr_param_normal(table, 0, 1);
            kr_tensor *id = kr_from_data(t, KR_DTYPE_I32, KR_SHAPE(2, 3), list);
            CHECK_SAME_BITS("y", kr_cast(t, kr_embedding_to_widen(t, table, id), KR_DTYPE_F32),
                            kr_cast(t, kr_embedding(t, table, id), KR_DTYPE_F32));
            CHECK_OK(ctx);
            kr_tape_reset(t);
            kr_param_destroy(table);
        }
    kr_tape_destroy(t);
    kr_ctx_destroy(ctx);
}

/* The tape holds what goes in and what comes out, each rounded up to 64 bytes. */
TEST(weights_of_halves_are_not_copied)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    kr_tensor *weight = kr_param_create(ctx, KR_DTYPE_BF16, KR_SHAPE(500, 64));
    const int32_t list[3] = { 4, 499, 4 };
    for (int looks_up = 0; looks_up < 2; looks_up++) {
        kr_tape *t = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
        const size_t want = looks_up ? 64 + 3 * 64 * 2 : 3 * 64 * 4 + 6016;
        if (looks_up) kr_embedding(t, weight, kr_from_data(t, KR_DTYPE_I32, KR_SHAPE(3), list));
        else kr_linear(t, kr_zeros(t, KR_DTYPE_F32, KR_SHAPE(3, 64)), weight, NULL);
        CHECK_OK(ctx);
        CHECK(kr_tape_peak_bytes(t) == want, "%zu bytes, not %zu", kr_tape_peak_bytes(t), want);
        kr_tape_destroy(t);
    }
    kr_param_destroy(weight);
    kr_ctx_destroy(ctx);
}
