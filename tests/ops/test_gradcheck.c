/* test_gradcheck.c - the public gradient check: it passes right rules, finds wrong ones and names the element. */
#include "tests/error_tests.h"

#include <krait/ops.h>

static void mixed(kr_tape *tape, void *user, kr_tensor *const *in, kr_tensor **out)
{
    (void)user;
    out[0] = kr_silu(tape, kr_linear(tape, in[0], in[1], NULL));
    out[1] = kr_softmax(tape, kr_embedding(tape, in[1], in[2]), -1);
    out[2] = in[2]; /* an integer output has no gradient */
}

TEST(right_rules_pass)
{
    begin();
    kr_tape *own = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    kr_tensor *in[] = { kr_randn(own, KR_DTYPE_F32, KR_SHAPE(3, 5)), kr_randn(own, KR_DTYPE_BF16, KR_SHAPE(4, 5)),
                        kr_from_data(own, KR_DTYPE_I32, KR_SHAPE(2), (const int32_t[]){ 3, 1 }) };
    kr_gradcheck_result r;
    CHECK(kr_gradcheck(ctx, mixed, NULL, 3, in, 3, NULL, &r) == KR_OK, "%s", kr_ctx_message(ctx));
    CHECK(r.error > 0 && r.error <= 1 && r.n_compared == 35 && (r.input == 0 || r.input == 1), "error %g of %lld",
          r.error, (long long)r.n_compared);
    CHECK(kr_gradcheck(ctx, mixed, NULL, 3, in, 3, NULL, NULL) == KR_OK, "without a result");
    kr_tape_destroy(own);
    end();
}

/* y = x^3 with a rule that is wrong for one element, by the part `user` points at. */
typedef struct wrongness {
    int64_t element;
    double by;
} wrongness;

static void cube_backward(kr_back *back)
{
    kr_tape *tape = kr_back_tape(back);
    kr_tensor *x = kr_back_in(back, 0);
    const wrongness *w = *(const wrongness *const *)kr_back_attrs(back);
    kr_tensor *slope = kr_scale(tape, kr_mul(tape, x, x), 3);
    double *values = kr_test_values(slope);
    if (w->element >= 0) values[w->element] += w->by;
    kr_tensor *wrong = kr_cast(tape, kr_from_data(tape, KR_DTYPE_F64, kr_tensor_shape(x), values), kr_tensor_dtype(x));
    free(values);
    kr_back_accumulate(back, 0, kr_mul(tape, kr_back_grad(back, 0), wrong));
}
static const kr_rule cube_rule = { .name = "cube", .backward = cube_backward };

static void cube(kr_tape *tape, void *user, kr_tensor *const *in, kr_tensor **out)
{
    kr_tensor *x = in[1];
    kr_scope scope = kr_no_grad_begin(tape);
    kr_tensor *y = kr_mul(tape, kr_mul(tape, x, x), x);
    kr_no_grad_end(tape, scope, KR_KEEP(&y));
    kr_record(tape, &(kr_record_args){ .rule = &cube_rule,
                                       .n_in = 1,
                                       .in = &x,
                                       .n_out = 1,
                                       .out = &y,
                                       .attrs = &user,
                                       .attrs_bytes = sizeof user });
    out[0] = kr_add(tape, y, in[0]);
}

TEST(a_wrong_rule_is_found)
{
    begin();
    kr_tape *own = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    kr_tensor *in[] = { kr_zeros(own, KR_DTYPE_F64, KR_SCALAR), kr_full(own, KR_DTYPE_F64, KR_SHAPE(2, 3), 2) };
    wrongness w = { -1, 0 };
    kr_gradcheck_result r;
    CHECK(kr_gradcheck(ctx, cube, &w, 2, in, 1, NULL, &r) == KR_OK, "%s", kr_ctx_message(ctx));
    w = (wrongness){ 4, 1e-3 };
    CHECK(kr_gradcheck(ctx, cube, &w, 2, in, 1, NULL, &r) == KR_ERR_NUMERIC, "not found");
    CHECK(r.input == 1 && r.element == 4 && r.error > 10, "input %d, element %lld, error %g", r.input,
          (long long)r.element, r.error);
    CHECK(fabs(r.gradient - r.quotient) > 4e-4 && fabs(r.gradient - r.quotient) < 2e-3, "%g and %g", r.gradient,
          r.quotient);
    CHECK_ERROR_HAS(ctx, KR_ERR_NUMERIC, "gradcheck: the gradient of in[1] [2, 3] is");
    kr_gradcheck_options o;
    kr_gradcheck_options_init(&o);
    o.rtol = 1e-3;
    CHECK(kr_gradcheck(ctx, cube, &w, 2, in, 1, &o, &r) == KR_OK, "1e-3 of 12 is allowed: %s", kr_ctx_message(ctx));
    /* element 4 of 6 is not among those that are moved, but in the direction of all */
    o.rtol = 1e-7;
    o.max_elements = 1;
    CHECK(kr_gradcheck(ctx, cube, &w, 2, in, 1, &o, &r) == KR_ERR_NUMERIC && r.element == -1, "element %lld",
          (long long)r.element);
    CHECK(r.n_compared == 3, "%lld compared", (long long)r.n_compared);
    CHECK_ERROR_HAS(ctx, KR_ERR_NUMERIC, "along a random direction");
    kr_tape_destroy(own);
    end();
}

/* Draws are the same in each run, and the stream is left as it was. */
static void draws(kr_tape *tape, void *user, kr_tensor *const *in, kr_tensor **out)
{
    (void)user;
    kr_tensor *noise = kr_randn(tape, KR_DTYPE_F64, kr_tensor_shape(in[0]));
    out[0] = kr_mul(tape, kr_dropout(tape, in[0], 0.5, NULL), noise);
}

TEST(random_functions_are_checked)
{
    begin();
    kr_tape *own = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    kr_tensor *x = kr_full(own, KR_DTYPE_F64, KR_SHAPE(40), 1);
    kr_ctx_seed(ctx, 4);
    kr_tensor *want = kr_rand(own, KR_DTYPE_F64, KR_SHAPE(3), 0, 1);
    kr_ctx_seed(ctx, 4);
    CHECK(kr_gradcheck(ctx, draws, NULL, 1, &x, 1, NULL, NULL) == KR_OK, "%s", kr_ctx_message(ctx));
    CHECK_SAME_BITS("the stream", kr_rand(own, KR_DTYPE_F64, KR_SHAPE(3), 0, 1), want);
    kr_tape_destroy(own);
    end();
}

static void counts(kr_tape *tape, void *user, kr_tensor *const *in, kr_tensor **out)
{
    int *calls = user;
    out[0] = kr_scale(tape, in[0], (double)++*calls);
}
static void forgets(kr_tape *tape, void *user, kr_tensor *const *in, kr_tensor **out)
{
    (void)tape, (void)user, (void)in, (void)out;
}
static void fails(kr_tape *tape, void *user, kr_tensor *const *in, kr_tensor **out)
{
    (void)user;
    out[0] = kr_reshape(tape, in[0], KR_SHAPE(7));
}
static void constant(kr_tape *tape, void *user, kr_tensor *const *in, kr_tensor **out)
{
    (void)user;
    out[0] = kr_detach(tape, in[0]);
}

TEST(gradcheck_refuses)
{
    begin();
    kr_tape *own = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    kr_tensor *x = kr_full(own, KR_DTYPE_F64, KR_SHAPE(2), 1), *none = NULL;
    kr_gradcheck_options o;
    int calls = 0;
    CHECK(kr_gradcheck(ctx, counts, &calls, 1, &x, 1, NULL, NULL) == KR_ERR_NUMERIC, "not refused");
    CHECK_ERROR_HAS(ctx, KR_ERR_NUMERIC, "fn must compute the same each time");
    IGNORE(kr_gradcheck(ctx, forgets, NULL, 1, &x, 1, NULL, NULL));
    CHECK_ERROR(ctx, KR_ERR_ARG, "gradcheck: fn left out[0] NULL");
    IGNORE(kr_gradcheck(ctx, fails, NULL, 1, &x, 1, NULL, NULL));
    CHECK_ERROR_HAS(ctx, KR_ERR_SHAPE, "gradcheck, fn: reshape: ");
    IGNORE(kr_gradcheck(ctx, constant, NULL, 1, &x, 1, NULL, NULL));
    CHECK_ERROR(ctx, KR_ERR_ARG,
                "gradcheck: no output depends on a float input; compute the outputs from in[] on the tape given");
    IGNORE(kr_gradcheck(ctx, draws, NULL, 1, &none, 1, NULL, NULL));
    CHECK_ERROR(ctx, KR_ERR_ARG, "gradcheck: in[0] is NULL");
    IGNORE(kr_gradcheck(ctx, NULL, NULL, 1, &x, 1, NULL, NULL));
    CHECK_ERROR(ctx, KR_ERR_ARG, "gradcheck: fn is NULL");
    IGNORE(kr_gradcheck(ctx, draws, NULL, 1, &x, 0, NULL, NULL));
    CHECK_ERROR(ctx, KR_ERR_ARG, "gradcheck: n_in = 1 and n_out = 0, but must be at least 1");
    kr_gradcheck_options_init(&o);
    o.eps = 0;
    IGNORE(kr_gradcheck(ctx, draws, NULL, 1, &x, 1, &o, NULL));
    CHECK_ERROR(ctx, KR_ERR_ARG, "gradcheck: eps = 0, but must be above 0");
    kr_gradcheck_options_init(&o);
    o.atol = o.rtol = 0;
    IGNORE(kr_gradcheck(ctx, draws, NULL, 1, &x, 1, &o, NULL));
    CHECK_ERROR(ctx, KR_ERR_ARG, "gradcheck: atol = 0 and rtol = 0, but must not be negative, nor both 0");
    kr_gradcheck_options_init(&o);
    o.max_elements = 0;
    IGNORE(kr_gradcheck(ctx, draws, NULL, 1, &x, 1, &o, NULL));
    CHECK_ERROR(ctx, KR_ERR_ARG, "gradcheck: max_elements = 0, but must be at least 1");
    CHECK(kr_gradcheck(NULL, draws, NULL, 1, &x, 1, NULL, NULL) == KR_ERR_ARG, "without a context");
    kr_tape_destroy(own);
    end();
}

/* At each allocation in turn: an error, and nothing is lost. */
TEST(gradcheck_without_memory)
{
    begin();
    kr_tape *own = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    kr_tensor *x = kr_full(own, KR_DTYPE_F64, KR_SHAPE(2), 1);
    CHECK(kr_gradcheck(ctx, draws, NULL, 1, &x, 1, NULL, NULL) == KR_OK, "%s", kr_ctx_message(ctx));
    const size_t before = kr_ctx_memory(ctx).live_blocks;
    bool done = false;
    for (size_t n = 1; n < 500 && !done; n++) {
        kr_ctx_fail_allocation(ctx, n);
        done = kr_gradcheck(ctx, draws, NULL, 1, &x, 1, NULL, NULL) == KR_OK;
        kr_ctx_fail_allocation(ctx, 0);
        CHECK(done || kr_ctx_status(ctx) == KR_ERR_NOMEM, "allocation %zu: %s", n, kr_ctx_message(ctx));
        kr_ctx_clear(ctx);
        CHECK(kr_ctx_memory(ctx).live_blocks == before, "allocation %zu: %zu blocks stay", n,
              kr_ctx_memory(ctx).live_blocks - before);
    }
    CHECK(done, "500 allocations");
    kr_tape_destroy(own);
    end();
}
