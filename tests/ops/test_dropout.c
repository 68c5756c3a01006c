/* test_dropout.c - dropout: the mask is a function of seed, stream and element, whoever computes it. */
#include "base/dropout_words.h"
#include "tests/ops/cases.h"

enum { N = 1000 };

static kr_dropout_options at(uint64_t stream, int64_t first)
{
    kr_dropout_options o;
    kr_dropout_options_init(&o);
    o.stream = stream;
    o.first = first;
    return o;
}

/* Element i is kept if its word is at least p 2^32: computed here, word by word. */
TEST(dropout_is_its_formula)
{
    const char *isas[8];
    static const kr_dtype types[] = { KR_DTYPE_F32, KR_DTYPE_F64, KR_DTYPE_BF16 };
    for (int n = case_isas(isas) - 1; n >= 0; n--)
        for (int k = 0; k < 6; k++) {
            kr_ctx *ctx = kr_test_ctx(k % 2 ? 3 : 1, isas[n]);
            kr_ctx_seed(ctx, 77);
            kr_tape *t = kr_tape_create(ctx, KR_TAPE_GRAD);
            kr_tensor *x = kr_input(t, kr_full(t, types[k / 2], KR_SHAPE(10, N / 10), 1));
            const kr_dropout_options o = at(UINT64_C(3) << 40, 37);
            kr_tensor *y = kr_dropout(t, x, 0.25, &o);
            kr_backward(t, kr_sum(t, y, KR_ALL_AXES, false));
            CHECK_OK(ctx);
            double *got = kr_test_values(y), *g = kr_test_values(kr_grad(x));
            /* 4/3 in the element type: what 1 times the scale is */
            double *want = kr_test_values(kr_full(t, types[k / 2], KR_SCALAR,
                                                  types[k / 2] == KR_DTYPE_F64 ? 1 / 0.75 : (double)(float)(1 / 0.75)));
            for (int i = 0; i < N; i++) {
                const bool is_kept = kr_dropout_word(77, UINT64_C(3) << 40, (uint64_t)(37 + i)) >= 0x40000000u;
                CHECK(got[i] == (is_kept ? *want : 0) && g[i] == got[i], "%s, %s: element %d is %g, gradient %g",
                      isas[n], kr_dtype_name(types[k / 2]), i, got[i], g[i]);
            }
            free(got);
            free(g);
            free(want);
            kr_tape_destroy(t);
            kr_ctx_destroy(ctx);
        }
}

TEST(parts_have_the_mask_of_the_whole)
{
    kr_ctx *ctx = kr_test_ctx(2, NULL);
    kr_tape *t = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    kr_tensor *x = kr_randn(t, KR_DTYPE_F32, KR_SHAPE(N));
    static const int64_t sizes[3] = { 301, 64, N - 301 - 64 };
    kr_tensor *parts[3], *dropped[3];
    kr_dropout_options o = at(8, 0);
    kr_split(t, x, 0, 3, sizes, parts);
    for (int i = 0; i < 3; i++) {
        dropped[i] = kr_dropout(t, parts[i], 0.4, &o);
        o.first += sizes[i];
    }
    o.first = 0;
    CHECK_SAME_BITS("parts", kr_concat(t, 0, 3, dropped), kr_dropout(t, x, 0.4, &o));
    CHECK_SAME_BITS("a strided operand", kr_dropout(t, kr_transpose(t, kr_reshape(t, x, KR_SHAPE(20, 50))), 0.4, &o),
                    kr_dropout(t, kr_contiguous(t, kr_transpose(t, kr_reshape(t, x, KR_SHAPE(20, 50)))), 0.4, &o));
    CHECK_OK(ctx);
    kr_tape_destroy(t);
    kr_ctx_destroy(ctx);
}

/* Without a stream each call takes the context's next one; p = 0 takes none and is x itself. */
TEST(streams_of_dropout)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    kr_tape *t = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    kr_tensor *x = kr_full(t, KR_DTYPE_F32, KR_SHAPE(N), 1);
    const kr_dropout_options third = at(2, 0);
    kr_ctx_seed(ctx, 5);
    kr_tensor *first = kr_dropout(t, x, 0.5, NULL);
    CHECK(kr_dropout(t, x, 0, NULL) == x, "p = 0 gives another tensor");
    kr_tensor *again = kr_dropout(t, x, 0.5, NULL), *next = kr_dropout(t, x, 0.5, NULL);
    kr_tensor *apart = kr_abs(t, kr_sub(t, first, again));
    CHECK(kr_item(kr_max(t, apart, KR_ALL_AXES, false)) == 2, "two calls have the same mask");
    CHECK_SAME_BITS("stream 2 is that of the third call", next, kr_dropout(t, x, 0.5, &third));
    kr_ctx_seed(ctx, 5);
    CHECK_SAME_BITS("the seed begins anew", kr_dropout(t, x, 0.5, NULL), first);
    CHECK_OK(ctx);
    kr_tape_destroy(t);
    kr_ctx_destroy(ctx);
}

/* Of n elements n p are dropped, within 5 standard deviations; the mean of the rest makes up for it. */
TEST(how_many_are_dropped)
{
    enum { COUNT = 200000 };
    static const double ps[] = { 0.001, 0.1, 0.5, 0.9 };
    kr_ctx *ctx = kr_test_ctx(2, NULL);
    kr_tape *t = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    kr_tensor *x = kr_full(t, KR_DTYPE_F64, KR_SHAPE(COUNT), 1);
    for (size_t i = 0; i < sizeof ps / sizeof *ps; i++) {
        const double p = ps[i], mean = kr_item(kr_mean(t, kr_dropout(t, x, p, NULL), KR_ALL_AXES, false));
        const double kept = mean * (1 - p), sigma = sqrt(p * (1 - p) / COUNT);
        CHECK(fabs(kept - (1 - p)) <= 5 * sigma, "p = %g: %g are kept", p, kept);
    }
    CHECK_OK(ctx);
    kr_tape_destroy(t);
    kr_ctx_destroy(ctx);
}

static void two_dropouts(kr_tape *t, void *user, kr_tensor *const *in, kr_tensor **out)
{
    (void)user;
    out[0] = kr_dropout(t, kr_tanh(t, kr_dropout(t, in[0], 0.3, NULL)), 0.6, NULL);
}

TEST(dropout_under_recomputation)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    kr_tape *t = kr_tape_create(ctx, KR_TAPE_GRAD);
    void *y[2], *g[2];
    for (int k = 0; k < 2; k++) {
        kr_ctx_seed(ctx, 6);
        kr_tensor *x = kr_input(t, kr_randn(t, KR_DTYPE_F32, KR_SHAPE(N))), *out;
        if (k) kr_checkpoint(t, two_dropouts, NULL, 1, &x, 1, &out);
        else two_dropouts(t, NULL, &x, &out);
        kr_tensor *loss = kr_sum(t, kr_mul(t, out, kr_dropout(t, out, 0.2, NULL)), KR_ALL_AXES, false);
        kr_backward(t, loss);
        CHECK_OK(ctx);
        y[k] = kr_test_copy(out);
        g[k] = kr_test_copy(kr_grad(x));
        kr_tape_reset(t);
    }
    CHECK(memcmp(y[0], y[1], N * sizeof(float)) == 0, "values differ");
    CHECK(memcmp(g[0], g[1], N * sizeof(float)) == 0, "gradients differ");
    kr_tape_destroy(t);
    kr_ctx_destroy(ctx);
}
