/* test_scope.c - no-grad scopes: memory goes back to what it was, kept tensors stay, order is enforced. */
#include "tests/harness.h"

enum { N = 1000 };

static kr_tensor *vector(kr_tape *t, double value)
{
    return kr_full(t, KR_DTYPE_F32, KR_SHAPE(N), value);
}

static const size_t vector_bytes = (N * 4 + 63) / 64 * 64; /* as the tape counts it */

static bool all_are(const kr_tensor *x, double value)
{
    double *values = kr_test_values(x);
    bool same = x != NULL;
    for (int64_t i = 0; i < kr_tensor_count(x); i++) same = same && values[i] == value;
    free(values);
    return same;
}

TEST(memory_goes_back)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    kr_tape *t = kr_tape_create(ctx, KR_TAPE_GRAD);
    kr_tensor *x = kr_input(t, vector(t, 1));
    const size_t before = kr_tape_bytes(t);
    CHECK(before == 2 * vector_bytes, "%zu bytes of two vectors", before);
    for (int round = 0; round < 3; round++) {
        kr_scope scope = kr_no_grad_begin(t);
        kr_tensor *y = kr_exp(t, kr_mul(t, x, x));
        CHECK(!kr_requires_grad(y) && kr_tape_nodes(t) == 0, "nothing is recorded");
        CHECK(kr_tape_bytes(t) == before + 2 * vector_bytes, "%zu bytes inside", kr_tape_bytes(t));
        CHECK(kr_no_grad_end(t, scope, 0, NULL) == KR_OK, "end");
        CHECK(kr_tape_bytes(t) == before, "%zu bytes after, %zu before", kr_tape_bytes(t), before);
    }
    CHECK(all_are(x, 1), "what was there before stays");
    const size_t blocks = kr_ctx_memory(ctx).live_blocks;
    for (int round = 0; round < 100; round++) {
        kr_scope scope = kr_no_grad_begin(t);
        for (int i = 0; i < 50; i++) kr_exp(t, x);
        kr_no_grad_end(t, scope, 0, NULL);
    }
    CHECK(kr_ctx_memory(ctx).live_blocks <= blocks + 8, "blocks are used again: %zu, %zu before",
          kr_ctx_memory(ctx).live_blocks, blocks);
    kr_tensor *y = kr_mul(t, x, x);
    CHECK(kr_requires_grad(y) && kr_tape_nodes(t) == 1, "recording continues after the scope");
    CHECK_OK(ctx);
    kr_tape_destroy(t);
    kr_ctx_destroy(ctx);
}

TEST(kept_tensors)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    kr_tape *t = kr_tape_create(ctx, KR_TAPE_GRAD);
    kr_tensor *w = kr_param_create(ctx, KR_DTYPE_F32, KR_SHAPE(3));
    kr_param_fill(w, 6);
    kr_tensor *x = kr_input(t, vector(t, 2)), *same = x, *param = w, *nothing = NULL;
    const size_t before = kr_tape_bytes(t);
    kr_scope scope = kr_no_grad_begin(t);
    kr_tensor *y = kr_mul(t, x, x), *waste = kr_exp(t, y);
    kr_tensor *view = kr_slice(t, kr_flip(t, kr_cumsum(t, x, 0), 0), 0, 1, 3); /* into memory of the scope */
    kr_tensor *outside = kr_slice(t, x, 0, 0, 4);                              /* into memory from before it */
    kr_tensor *of_param = kr_expand(t, w, KR_SHAPE(2, 3)), *twice = y;
    (void)waste;
    const void *x_data = kr_tensor_data(x), *w_data = kr_tensor_data(w);
    CHECK(kr_no_grad_end(t, scope, KR_KEEP(&y, &view, &outside, &same, &param, &of_param, &nothing, &twice)) == KR_OK,
          "end: %s", kr_ctx_message(ctx));
    CHECK(all_are(y, 4) && all_are(twice, 4) && kr_tensor_count(y) == N, "a kept tensor has its elements");
    CHECK(kr_tensor_count(view) == 2 && kr_tensor_at(view, (const int64_t[]){ 0 }) == 2 * (N - 1) &&
              kr_tensor_at(view, (const int64_t[]){ 1 }) == 2 * (N - 2),
          "a kept view has its elements");
    CHECK(kr_tensor_data(outside) == x_data && kr_tensor_count(outside) == 4 && all_are(outside, 2),
          "a view of earlier memory");
    CHECK(kr_tensor_data(of_param) == w_data && kr_tensor_stride(of_param, 0) == 0 && all_are(of_param, 6),
          "a view of a parameter");
    CHECK(same == x && kr_requires_grad(same) && param == w && !nothing, "what was made before stays as it is");
    CHECK(!kr_requires_grad(y) && !kr_requires_grad(outside), "kept tensors are constants");
    CHECK(kr_tape_bytes(t) == before + 2 * vector_bytes + 64, "%zu bytes: the kept ones (y twice) and nothing else",
          kr_tape_bytes(t) - before);
    kr_tensor *z = kr_mul(t, x, y);
    kr_backward_from(t, 1, &z, NULL);
    CHECK(all_are(kr_grad(x), 4), "kept tensors go into later ops");
    CHECK_OK(ctx);
    kr_tape_destroy(t);
    kr_param_destroy(w);
    kr_ctx_destroy(ctx);
}

/* Kept tensors larger and smaller than what they are moved over, in all types. */
TEST(kept_over_themselves)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    kr_tape *t = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    for (int d = KR_DTYPE_F32; d <= KR_DTYPE_I64; d++) {
        kr_scope scope = kr_no_grad_begin(t);
        kr_zeros(t, (kr_dtype)d, KR_SHAPE(3));
        kr_tensor *a = kr_full(t, (kr_dtype)d, KR_SHAPE(40000), 3), *b = kr_full(t, (kr_dtype)d, KR_SHAPE(5), 4);
        kr_tensor *c = kr_full(t, (kr_dtype)d, KR_SHAPE(100, 400), 5), *e = kr_full(t, (kr_dtype)d, KR_SHAPE(0, 2), 5);
        CHECK(kr_no_grad_end(t, scope, KR_KEEP(&c, &b, &a, &e)) == KR_OK, "end");
        CHECK(all_are(a, 3) && all_are(b, 4) && all_are(c, 5) && kr_tensor_dim(e, 1) == 2, "%s",
              kr_dtype_name((kr_dtype)d));
    }
    CHECK_OK(ctx);
    kr_tape_destroy(t);
    kr_ctx_destroy(ctx);
}

TEST(scopes_nest)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    kr_tape *t = kr_tape_create(ctx, KR_TAPE_GRAD);
    kr_tensor *x = kr_input(t, vector(t, 1));
    const size_t before = kr_tape_bytes(t);
    kr_scope outer = kr_no_grad_begin(t);
    kr_tensor *a = kr_scale(t, x, 2);
    kr_scope inner = kr_no_grad_begin(t);
    kr_tensor *b = kr_scale(t, a, 2);
    kr_scale(t, b, 2);
    CHECK(kr_no_grad_end(t, inner, KR_KEEP(&b)) == KR_OK, "inner end");
    CHECK(kr_tape_bytes(t) == before + 2 * vector_bytes, "a and b");
    CHECK(!kr_requires_grad(kr_scale(t, x, 3)), "the outer scope is still open");
    CHECK(kr_no_grad_end(t, outer, KR_KEEP(&b)) == KR_OK, "outer end");
    CHECK(all_are(b, 4) && kr_tape_bytes(t) == before + vector_bytes, "b alone is left");
    CHECK(kr_requires_grad(kr_scale(t, x, 3)), "recording continues");

    outer = kr_no_grad_begin(t);
    inner = kr_no_grad_begin(t);
    CHECK(kr_no_grad_end(t, outer, 0, NULL) == KR_ERR_STATE, "status");
    CHECK_ERROR(ctx, KR_ERR_STATE, "no_grad_end: scopes must end in the reverse order of their begin");
    kr_tape_reset(t);
    CHECK(kr_no_grad_end(t, inner, 0, NULL) == KR_ERR_STATE, "a scope does not outlive a reset");
    CHECK_ERROR(ctx, KR_ERR_STATE, "no_grad_end: scopes must end in the reverse order of their begin");
    kr_tape_reset(t);
    kr_scope scope = kr_no_grad_begin(t);
    kr_tensor **many[KR_KEEP_MAX + 1] = { NULL };
    CHECK(kr_no_grad_end(t, scope, KR_KEEP_MAX + 1, many) == KR_ERR_ARG, "status");
    CHECK_ERROR(ctx, KR_ERR_ARG, "no_grad_end: 65 tensors to keep, but at most 64 fit");
    CHECK(kr_no_grad_end(NULL, scope, 0, NULL) == KR_ERR_ARG, "no tape");
    kr_tape_destroy(t);
    kr_ctx_destroy(ctx);
}

/* After an error a scope ends all the same, and what it should keep is NULL. */
TEST(scope_after_an_error)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    kr_tape *t = kr_tape_create(ctx, KR_TAPE_GRAD);
    kr_tensor *x = kr_input(t, vector(t, 1));
    kr_scope scope = kr_no_grad_begin(t);
    kr_tensor *y = kr_scale(t, x, 2), *bad = kr_reshape(t, y, KR_SHAPE(7));
    CHECK(kr_no_grad_end(t, scope, KR_KEEP(&y, &bad)) == KR_ERR_SHAPE, "the first error's status");
    CHECK(!y && !bad, "NULL after an error");
    CHECK_ERROR(ctx, KR_ERR_SHAPE, "reshape: x [1000] has 1000 elements, which do not fill [7]");
    kr_tape_destroy(t);
    kr_ctx_destroy(ctx);
}

static void scoped_backward(kr_back *back)
{
    kr_tape *t = kr_back_tape(back);
    kr_scope scope = kr_no_grad_begin(t);
    kr_tensor *g = kr_scale(t, kr_back_grad(back, 0), 5);
    CHECK(kr_no_grad_end(t, scope, KR_KEEP(&g)) == KR_OK, "a scope in a rule");
    kr_back_accumulate(back, 0, g);
}

TEST(scope_in_a_rule)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    kr_tape *t = kr_tape_create(ctx, KR_TAPE_GRAD);
    const kr_rule rule = { .name = "scoped", .backward = scoped_backward };
    kr_tensor *x = kr_input(t, vector(t, 1)), *y = vector(t, 5);
    kr_record(t, &(kr_record_args){ .rule = &rule, .n_in = 1, .n_out = 1, .in = &x, .out = &y });
    kr_backward_from(t, 1, &y, NULL);
    CHECK(all_are(kr_grad(x), 5), "its gradient");
    CHECK_OK(ctx);
    kr_tape_destroy(t);
    kr_ctx_destroy(ctx);
}
