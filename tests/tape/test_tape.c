/* test_tape.c - the graph: what reaches which leaf, what stays and what goes, what is refused. */
#include "tests/harness.h"

static kr_tensor *leaf(kr_tape *t, kr_dtype d, int64_t n, double first)
{
    double values[64];
    for (int64_t i = 0; i < n; i++) values[i] = first + (double)i;
    return kr_input(t, kr_cast(t, kr_from_data(t, KR_DTYPE_F64, KR_SHAPE(n), values), d));
}

static bool is(const kr_tensor *x, int count, const double *want, int line)
{
    if (!kr_test_check(x != NULL, __FILE__, line, "line %d: NULL", line)) return false;
    double *got = kr_test_values(x);
    const bool ok = kr_test_check(kr_tensor_count(x) == count, __FILE__, line, "line %d: %lld elements", line,
                                  (long long)kr_tensor_count(x)) &&
                    kr_test_close("elements", got, want, count, NULL, 0, 0, __FILE__, line);
    free(got);
    return ok;
}
#define IS(x, ...)                                                                                                     \
    is((x), (int)(sizeof((const double[]){ __VA_ARGS__ }) / sizeof(double)), (const double[]){ __VA_ARGS__ }, __LINE__)

/* A context and a tape for the test, checked and destroyed at its end. */
typedef struct setup {
    kr_ctx *ctx;
    kr_tape *t;
} setup;

static setup begin(void)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    return (setup){ ctx, kr_tape_create(ctx, KR_TAPE_GRAD) };
}

static void end(setup s)
{
    CHECK_OK(s.ctx);
    kr_tape_destroy(s.t);
    kr_ctx_destroy(s.ctx);
}

/* ---- accumulation ---- */

TEST(gradients_accumulate)
{
    setup s = begin();
    kr_tape *t = s.t;
    for (int d = KR_DTYPE_F32; d <= KR_DTYPE_F16; d++) {
        kr_tensor *x = leaf(t, (kr_dtype)d, 3, 1);
        /* x^2 + x, and a diamond: (2x) (3x) */
        kr_tensor *y = kr_add(t, kr_mul(t, x, x), x);
        kr_tensor *z = kr_mul(t, kr_scale(t, x, 2), kr_scale(t, x, 3));
        kr_backward(t, kr_sum(t, kr_add(t, y, z), KR_ALL_AXES, false));
        IS(kr_grad(x), 15, 29, 43);
        kr_tape_reset(t);
    }
    /* one tensor on both sides, many times */
    kr_tensor *x = leaf(t, KR_DTYPE_F64, 2, 3), *y = x;
    for (int i = 0; i < 5; i++) y = kr_add(t, y, y);
    kr_backward_from(t, 1, &y, NULL);
    IS(kr_grad(x), 32, 32);
    end(s);
}

TEST(parameters_accumulate_until_zeroed)
{
    setup s = begin();
    kr_tape *t = s.t;
    for (int d = KR_DTYPE_F32; d <= KR_DTYPE_F16; d++) {
        kr_tensor *w = kr_param_create(s.ctx, (kr_dtype)d, KR_SHAPE(2));
        kr_param_write(w, KR_DTYPE_F32, (const float[]){ 2, 3 }, 2);
        CHECK(kr_requires_grad(w) && !kr_grad(w), "a new parameter has no gradient");
        for (int step = 1; step <= 3; step++) {
            kr_tape_reset(t);
            kr_tensor *x = leaf(t, (kr_dtype)d, 2, 1);
            kr_tensor *y = kr_add(t, kr_mul(t, w, x), kr_slice(t, kr_mul(t, w, w), 0, 0, 2));
            kr_backward_from(t, 1, &y, NULL);
            IS(kr_grad(w), 5 * step, 8 * step);
        }
        kr_zero_grad(w);
        IS(kr_grad(w), 0, 0);
        kr_tape_reset(t);
        kr_tensor *y = kr_slice(t, w, 0, 1, 2), *z = kr_slice(t, w, 0, 1, 2);
        kr_backward_from(t, 2, (kr_tensor *[]){ y, z }, NULL);
        IS(kr_grad(w), 0, 2);
        kr_tape_destroy(t);
        IS(kr_grad(w), 0, 2);
        kr_param_destroy(w);
        t = s.t = kr_tape_create(s.ctx, KR_TAPE_GRAD);
    }
    end(s);
}

TEST(several_outputs)
{
    setup s = begin();
    kr_tape *t = s.t;
    kr_tensor *x = leaf(t, KR_DTYPE_F32, 2, 1), *y = kr_mul(t, x, x), *z = kr_scale(t, y, 10);
    kr_tensor *seed = kr_from_data(t, KR_DTYPE_F32, KR_SHAPE(2), (const float[]){ 100, 1000 });
    kr_retain_grad(y);
    /* y is an output itself, and inside of another; z twice */
    CHECK(kr_backward_from(t, 3, (kr_tensor *[]){ y, z, z }, (kr_tensor *[]){ seed, NULL, seed }) == KR_OK, "status");
    IS(kr_grad(y), 100 + 10 + 1000, 1000 + 10 + 10000);
    IS(kr_grad(x), 2 * 1110, 4 * 11010);
    IS(seed, 100, 1000);
    CHECK(!kr_grad(z), "the gradient of an output that was not asked to be kept is released");
    kr_tape_reset(t);

    /* a parameter's gradient as the seed; a leaf as the output */
    kr_tensor *w = kr_param_create(s.ctx, KR_DTYPE_F32, KR_SHAPE(2));
    kr_param_fill(w, 7);
    x = leaf(t, KR_DTYPE_F32, 2, 1);
    kr_backward_from(t, 1, &x, (kr_tensor *[]){ w });
    IS(kr_grad(x), 7, 7);
    kr_param_destroy(w);
    end(s);
}

TEST(unused_and_unreached)
{
    setup s = begin();
    kr_tape *t = s.t;
    kr_tensor *x = leaf(t, KR_DTYPE_F32, 2, 1), *other = leaf(t, KR_DTYPE_F32, 2, 1), *y = kr_exp(t, other);
    kr_tensor *constant = kr_zeros(t, KR_DTYPE_F32, KR_SHAPE(2)), *z = kr_mul(t, x, constant);
    CHECK(kr_requires_grad(x) && kr_requires_grad(y) && !kr_requires_grad(constant) &&
              !kr_requires_grad(kr_exp(t, constant)),
          "what depends on a leaf needs a gradient");
    const int64_t nodes = kr_tape_nodes(t);
    kr_exp(t, constant);
    CHECK(kr_tape_nodes(t) == nodes, "an op on constants is not recorded");
    kr_backward_from(t, 1, &z, NULL);
    IS(kr_grad(x), 0, 0);
    CHECK(!kr_grad(other) && !kr_grad(y) && !kr_grad(constant), "no gradient where none arrives");
    end(s);
}

TEST(retain_detach_input_freeze)
{
    setup s = begin();
    kr_tape *t = s.t;
    kr_tensor *x = leaf(t, KR_DTYPE_F32, 2, 1);
    kr_tensor *a = kr_scale(t, x, 2), *b = kr_retain_grad(kr_scale(t, a, 3)), *c = kr_mul(t, b, kr_detach(t, b));
    CHECK(!kr_requires_grad(kr_detach(t, b)), "detached");
    kr_tensor *cut = kr_input(t, b);
    CHECK(kr_tensor_data(cut) != kr_tensor_data(b), "an input is a copy");
    kr_tensor *d = kr_mul(t, cut, cut);
    kr_backward_from(t, 2, (kr_tensor *[]){ c, d }, NULL);
    IS(kr_grad(b), 6, 12);
    IS(kr_grad(x), 36, 72);
    IS(kr_grad(cut), 12, 24);
    CHECK(!kr_grad(a) && !kr_grad(c), "only what was asked for is kept");
    kr_tape_reset(t);

    kr_tensor *w = kr_param_create(s.ctx, KR_DTYPE_F32, KR_SHAPE(2));
    kr_param_fill(w, 5);
    kr_param_freeze(w, true);
    x = leaf(t, KR_DTYPE_F32, 2, 1);
    kr_tensor *y = kr_mul(t, x, w);
    kr_backward_from(t, 1, &y, NULL);
    IS(kr_grad(x), 5, 5);
    CHECK(!kr_grad(w) && !kr_requires_grad(w), "frozen");
    kr_tape_reset(t);
    kr_param_freeze(w, false);
    y = kr_mul(t, w, w);
    kr_backward_from(t, 1, &y, NULL);
    IS(kr_grad(w), 10, 10);
    kr_param_destroy(w);
    end(s);
}

/* ---- life of a tape ---- */

TEST(no_grad_tapes)
{
    setup s = begin();
    kr_tape *t = kr_tape_create(s.ctx, KR_TAPE_NO_GRAD);
    kr_tensor *w = kr_param_create(s.ctx, KR_DTYPE_F32, KR_SHAPE(2));
    kr_tensor *x = kr_input(t, kr_zeros(t, KR_DTYPE_F32, KR_SHAPE(2))), *y = kr_mul(t, x, w);
    CHECK(kr_tape_nodes(t) == 0 && !kr_requires_grad(y) && !kr_requires_grad(x), "nothing is recorded");
    CHECK(kr_backward_from(t, 1, &y, NULL) == KR_ERR_STATE, "status");
    CHECK_ERROR(s.ctx, KR_ERR_STATE,
                "backward: the tape was made with KR_TAPE_NO_GRAD and recorded nothing; make it with KR_TAPE_GRAD");
    kr_tape_destroy(t);
    kr_param_destroy(w);
    end(s);
}

TEST(backward_errors)
{
    setup s = begin();
    kr_tape *t = s.t;
    kr_ctx *ctx = s.ctx;
    kr_tensor *x = leaf(t, KR_DTYPE_F32, 2, 1), *y = kr_exp(t, x);
    CHECK(kr_backward(t, y) == KR_ERR_SHAPE, "status");
    CHECK_ERROR(ctx, KR_ERR_SHAPE,
                "backward: loss [2] has 2 elements, but must have 1; sum it, or use kr_backward_from");
    CHECK(!kr_exp(t, x), "the tape is stale");
    CHECK_ERROR(ctx, KR_ERR_STATE,
                "exp: an earlier call on this tape failed; call kr_tape_reset before using it again");
    CHECK(kr_backward(t, y) == KR_ERR_STATE, "status");
    CHECK_ERROR(ctx, KR_ERR_STATE,
                "backward: an earlier call on this tape failed; call kr_tape_reset before using it again");

#define REFUSED(status, text, call)                                                                                    \
    do {                                                                                                               \
        kr_tape_reset(t);                                                                                              \
        x = leaf(t, KR_DTYPE_F32, 2, 1), y = kr_exp(t, x);                                                             \
        CHECK((call) == (status), "status of %s", #call);                                                              \
        CHECK_ERROR(ctx, (status), (text));                                                                            \
    } while (0)
    REFUSED(KR_ERR_ARG, "backward: output 0 is NULL", kr_backward(t, NULL));
    REFUSED(KR_ERR_ARG, "backward: output 1 is NULL", kr_backward_from(t, 2, (kr_tensor *[]){ y, NULL }, NULL));
    REFUSED(KR_ERR_ARG, "backward: count = 0, but at least one output is needed", kr_backward_from(t, 0, &y, NULL));
    REFUSED(KR_ERR_ARG, "backward: output 0 [] depends on no parameter and no kr_input, or was made without recording",
            kr_backward(t, kr_zeros(t, KR_DTYPE_F32, KR_SCALAR)));
    REFUSED(KR_ERR_SHAPE, "backward: the gradient of output 0 is f32 [3], but the output is f32 [2]",
            kr_backward_from(t, 1, &y, (kr_tensor *[]){ kr_zeros(t, KR_DTYPE_F32, KR_SHAPE(3)) }));
    REFUSED(KR_ERR_SHAPE, "backward: the gradient of output 0 is f64 [2], but the output is f32 [2]",
            kr_backward_from(t, 1, &y, (kr_tensor *[]){ kr_zeros(t, KR_DTYPE_F64, KR_SHAPE(2)) }));
    kr_ctx *other = kr_test_ctx(1, NULL);
    kr_tape *second = kr_tape_create(ctx, KR_TAPE_GRAD), *abroad = kr_tape_create(other, KR_TAPE_GRAD);
    kr_tensor *near = leaf(second, KR_DTYPE_F32, 2, 1), *far = leaf(abroad, KR_DTYPE_F32, 2, 1);
    kr_tensor *w = kr_param_create(ctx, KR_DTYPE_F32, KR_SHAPE(2));
    REFUSED(KR_ERR_STATE, "backward: output 0 [2] was not made on this tape", kr_backward_from(t, 1, &near, NULL));
    REFUSED(KR_ERR_STATE, "backward: output 0 [2] was not made on this tape", kr_backward_from(t, 1, &far, NULL));
    REFUSED(KR_ERR_STATE, "backward: output 0 [2] was not made on this tape", kr_backward_from(t, 1, &w, NULL));
    REFUSED(KR_ERR_STATE, "backward: the gradient of output 0 belongs to another tape",
            kr_backward_from(t, 1, &y, &near));
    REFUSED(KR_ERR_STATE, "backward: the gradient of output 0 belongs to another context",
            kr_backward_from(t, 1, &y, &far));
    kr_param_destroy(w);
    kr_tape_destroy(second);
    kr_tape_destroy(abroad);
    kr_ctx_destroy(other);
    kr_tape_reset(t);
    kr_scope scope = kr_no_grad_begin(t);
    x = leaf(t, KR_DTYPE_F32, 2, 1);
    kr_backward_from(t, 1, &x, NULL);
    CHECK_ERROR(ctx, KR_ERR_STATE, "backward: a no-grad scope is still open on this tape");
    (void)scope;
    end(s);
}

TEST(once_for_each_step)
{
    setup s = begin();
    kr_tape *t = s.t;
    kr_tensor *x = leaf(t, KR_DTYPE_F32, 1, 3), *y = kr_mul(t, x, x);
    CHECK(kr_backward(t, y) == KR_OK, "the first time");
    /* the gradient is an ordinary tensor now, and the tape takes further ops */
    IS(kr_add(t, kr_grad(x), kr_scale(t, x, 10)), 36);
    CHECK(kr_backward(t, y) == KR_ERR_STATE, "the second time");
    CHECK_ERROR(s.ctx, KR_ERR_STATE,
                "backward: this tape has been run backwards already; call kr_tape_reset and record the step again");
    kr_tape_reset(t);
    CHECK(kr_tape_bytes(t) == 0 && kr_tape_nodes(t) == 0, "a reset tape is empty");
    x = leaf(t, KR_DTYPE_F32, 1, 4);
    CHECK(kr_backward(t, kr_mul(t, x, x)) == KR_OK, "after a reset");
    IS(kr_grad(x), 8);
    end(s);
}

/* An error invalidates the tape that it happened on, until its reset, and no other one. */
TEST(an_error_invalidates_its_tape)
{
    static const char message[] = "neg: an earlier call on this tape failed; call kr_tape_reset before using it again";
    setup s = begin();
    kr_tape *second = kr_tape_create(s.ctx, KR_TAPE_GRAD);
    kr_tensor *x = leaf(s.t, KR_DTYPE_F32, 2, 1), *y = leaf(second, KR_DTYPE_F32, 2, 3);
    kr_tensor *loss = kr_sum(second, kr_mul(second, y, y), KR_ALL_AXES, false);
    kr_reshape(s.t, x, KR_SHAPE(3));
    CHECK(!kr_neg(second, y), "the error of the context holds for all tapes until it is cleared");
    kr_ctx_clear(s.ctx);
    CHECK(kr_backward(second, loss) == KR_OK, "%s", kr_ctx_message(s.ctx));
    IS(kr_grad(y), 6, 8);
    CHECK(!kr_neg(s.t, x), "the first tape failed");
    CHECK_ERROR(s.ctx, KR_ERR_STATE, message);
    CHECK(!kr_neg(s.t, x), "and stays so");
    CHECK_ERROR(s.ctx, KR_ERR_STATE, message);
    CHECK(kr_backward(s.t, x) == KR_ERR_STATE, "also for backward");
    kr_ctx_clear(s.ctx);
    kr_tape_reset(s.t);
    IS(kr_neg(s.t, leaf(s.t, KR_DTYPE_F32, 2, 1)), -1, -2);
    kr_tape_destroy(second);
    end(s);
}

TEST(an_error_without_a_tape_invalidates_none)
{
    setup s = begin();
    kr_tensor *x = leaf(s.t, KR_DTYPE_F32, 2, 1), *p = kr_param_create(s.ctx, KR_DTYPE_F32, KR_SHAPE(2));
    float buffer[3];
    kr_ctx_fail(s.ctx, KR_ERR_IO, "of the program");
    CHECK_ERROR(s.ctx, KR_ERR_IO, "of the program");
    CHECK(kr_param_write(p, KR_DTYPE_F32, buffer, 3) == KR_ERR_SHAPE, "a parameter");
    kr_ctx_clear(s.ctx);
    CHECK(kr_tensor_read(x, KR_DTYPE_F32, buffer, 3) == KR_ERR_ARG, "a read changes nothing");
    kr_ctx_clear(s.ctx);
    CHECK(!kr_tape_create(s.ctx, (kr_tape_mode)7), "no mode");
    kr_ctx_clear(s.ctx);
    IS(kr_neg(s.t, x), -1, -2);
    kr_param_destroy(p);
    end(s);
}

static kr_tape *inner;

static void use_another_tape(kr_back *back)
{
    kr_reshape(inner, kr_zeros(inner, KR_DTYPE_F32, KR_SHAPE(2)), KR_SHAPE(3));
    kr_back_accumulate(back, 0, kr_back_grad(back, 0));
}

/* A callback of a call on one tape fails on another: both are incomplete. */
TEST(an_error_in_a_callback_invalidates_both_tapes)
{
    static const kr_rule rule = { .name = "other", .backward = use_another_tape };
    setup s = begin();
    inner = kr_tape_create(s.ctx, KR_TAPE_NO_GRAD);
    kr_tensor *x = leaf(s.t, KR_DTYPE_F32, 1, 1), *y = kr_contiguous(s.t, kr_detach(s.t, x));
    kr_record(s.t, &(kr_record_args){ .rule = &rule, .n_in = 1, .in = &x, .n_out = 1, .out = &y });
    CHECK(kr_backward(s.t, y) == KR_ERR_SHAPE, "the callback fails");
    kr_ctx_clear(s.ctx);
    CHECK(!kr_zeros(inner, KR_DTYPE_F32, KR_SHAPE(2)), "the tape of the callback");
    kr_ctx_clear(s.ctx);
    CHECK(!kr_neg(s.t, x), "the tape of the call");
    kr_ctx_clear(s.ctx);
    kr_tape_destroy(inner);
    end(s);
}

/* ---- custom ops ---- */

typedef struct power_attrs {
    int exponent;
} power_attrs;

/* y = x^n, written by hand: x and x^(n-1) are what the backward needs. */
static void power_backward(kr_back *back)
{
    kr_tape *t = kr_back_tape(back);
    const power_attrs *attrs = kr_back_attrs(back);
    CHECK(kr_back_out(back, 0) != NULL && kr_back_in(back, 0) != NULL, "operands of the rule");
    kr_tensor *slope = kr_scale(t, kr_back_saved(back, 0), attrs->exponent);
    CHECK(!kr_requires_grad(slope), "nothing is recorded in a rule");
    if (kr_back_wants(back, 0)) kr_back_accumulate(back, 0, kr_mul(t, kr_back_grad(back, 0), slope));
}
static const kr_rule power_rule = { .name = "power", .backward = power_backward };

static kr_tensor *power(kr_tape *t, kr_tensor *x, int exponent)
{
    kr_tensor *y = kr_new(t, KR_DTYPE_F32, kr_tensor_shape(x)), *saved = kr_new(t, KR_DTYPE_F32, kr_tensor_shape(x));
    if (!y || !saved) return NULL;
    float *to_y = kr_test_copy(x), *to_saved = kr_test_copy(x);
    for (int64_t i = 0; i < kr_tensor_count(x); i++) {
        to_saved[i] = powf(to_saved[i], (float)(exponent - 1));
        to_y[i] = powf(to_y[i], (float)exponent);
    }
    kr_tensor_write(y, KR_DTYPE_F32, to_y, kr_tensor_count(y));
    kr_tensor_write(saved, KR_DTYPE_F32, to_saved, kr_tensor_count(y));
    const power_attrs attrs = { exponent };
    const kr_record_args args = { .rule = &power_rule,
                                  .n_in = 1,
                                  .n_out = 1,
                                  .n_saved = 1,
                                  .in = &x,
                                  .out = &y,
                                  .saved = &saved,
                                  .attrs = &attrs,
                                  .attrs_bytes = sizeof attrs };
    return kr_record(t, &args) == KR_OK ? y : NULL;
}

/* (a, b) -> (a + b, b): writes the gradients itself, by kr_back_into; a may be missing. */
static void pair_backward(kr_back *back)
{
    for (int in = 0; in < 2; in++) {
        bool is_new;
        kr_tensor *g = kr_back_into(back, in, &is_new);
        if (!g) continue;
        CHECK(kr_tensor_is_contiguous(g), "the gradient to write into is contiguous");
        float *to = kr_test_copy(g);
        for (int64_t i = 0; i < kr_tensor_count(g); i++) {
            float sum = is_new ? 0 : to[i];
            if (kr_back_grad(back, 0)) sum += (float)kr_tensor_at(kr_back_grad(back, 0), &i);
            if (in == 1 && kr_back_grad(back, 1)) sum += (float)kr_tensor_at(kr_back_grad(back, 1), &i);
            to[i] = sum;
        }
        kr_tensor_write(g, KR_DTYPE_F32, to, kr_tensor_count(g));
    }
}
static const kr_rule pair_rule = { .name = "pair", .backward = pair_backward };

static void pair(kr_tape *t, kr_tensor *a, kr_tensor *b, kr_tensor **out)
{
    out[0] = kr_new(t, KR_DTYPE_F32, kr_tensor_shape(b)), out[1] = kr_new(t, KR_DTYPE_F32, kr_tensor_shape(b));
    for (int64_t i = 0; i < kr_tensor_count(b); i++) {
        kr_test_put(out[1], i, kr_tensor_at(b, &i));
        kr_test_put(out[0], i, (double)((float)kr_tensor_at(b, &i) + (a ? (float)kr_tensor_at(a, &i) : 0)));
    }
    kr_record(
        t, &(kr_record_args){ .rule = &pair_rule, .n_in = 2, .n_out = 2, .in = (kr_tensor *[]){ a, b }, .out = out });
}

TEST(own_rules)
{
    setup s = begin();
    kr_tape *t = s.t;
    kr_tensor *x = leaf(t, KR_DTYPE_F32, 2, 2), *y = power(t, x, 3);
    IS(y, 8, 27);
    kr_backward_from(t, 1, &y, NULL);
    IS(kr_grad(x), 12, 27);
    kr_tape_reset(t);
    kr_tensor *constant = power(t, kr_detach(t, leaf(t, KR_DTYPE_F32, 2, 2)), 2);
    CHECK(!kr_requires_grad(constant) && kr_tape_nodes(t) == 0, "nothing to record");

    kr_tensor *w = kr_param_create(s.ctx, KR_DTYPE_F32, KR_SHAPE(2));
    for (int step = 1; step <= 2; step++) { /* the second time the parameter has a gradient already */
        kr_tape_reset(t);
        kr_tensor *a = leaf(t, KR_DTYPE_F32, 2, 1), *out[2], *again[2];
        pair(t, a, w, out);
        pair(t, NULL, out[1], again); /* again[0] is left without a gradient */
        kr_backward_from(t, 2, (kr_tensor *[]){ kr_scale(t, out[0], 3), kr_scale(t, again[1], 4) }, NULL);
        IS(kr_grad(a), 3, 3);
        IS(kr_grad(w), 7 * step, 7 * step);
    }
    kr_param_destroy(w);
    /* a gradient that others hold too is not written into */
    kr_tape_reset(t);
    kr_tensor *a = leaf(t, KR_DTYPE_F32, 2, 1), *out[2];
    pair(t, NULL, a, out);
    kr_tensor *b = kr_retain_grad(kr_add(t, out[0], a));
    kr_backward_from(t, 1, &b, NULL);
    IS(kr_grad(b), 1, 1);
    IS(kr_grad(a), 2, 2);
    end(s);
}

static void wrong_backward(kr_back *back)
{
    kr_back_accumulate(back, 0, kr_zeros(kr_back_tape(back), KR_DTYPE_F32, KR_SHAPE(3)));
}
static void failing_backward(kr_back *back)
{
    kr_back_accumulate(back, 0, kr_reshape(kr_back_tape(back), kr_back_grad(back, 0), KR_SHAPE(5)));
}
static void nested_backward(kr_back *back)
{
    kr_backward_from(kr_back_tape(back), 1, (kr_tensor *[]){ kr_back_out(back, 0) }, NULL);
}

TEST(own_rules_refused)
{
    setup s = begin();
    kr_tape *t = s.t;
    kr_ctx *ctx = s.ctx;
    const kr_rule wrong = { .name = "wrong", .backward = wrong_backward };
    const kr_rule failing = { .name = "failing", .backward = failing_backward };
    const kr_rule nested = { .name = "nested", .backward = nested_backward };
    const struct {
        const kr_rule *rule;
        kr_status status;
        const char *text;
    } cases[] = {
        { &wrong, KR_ERR_SHAPE, "backward of wrong: gradient of input 0 is f32 [3], but the input is f32 [2]" },
        { &failing, KR_ERR_SHAPE, "backward of failing: reshape: x [2] has 2 elements, which do not fill [5]" },
        { &nested, KR_ERR_STATE, "backward of nested: backward: called from within a backward rule" },
    };
    for (int i = 0; i < 3; i++) {
        kr_tape_reset(t);
        kr_tensor *x = leaf(t, KR_DTYPE_F32, 2, 1), *y = kr_zeros(t, KR_DTYPE_F32, KR_SHAPE(2));
        CHECK(kr_record(t, &(kr_record_args){ .rule = cases[i].rule, .n_in = 1, .n_out = 1, .in = &x, .out = &y }) ==
                  KR_OK,
              "recorded");
        CHECK(kr_backward_from(t, 1, &y, NULL) == cases[i].status, "status");
        CHECK_ERROR(ctx, cases[i].status, cases[i].text);
    }
    kr_tape_reset(t);
    kr_tensor *x = leaf(t, KR_DTYPE_F32, 2, 1), *y = NULL;
    CHECK(kr_record(t, &(kr_record_args){ .rule = &wrong, .n_in = 1, .n_out = 1, .in = &x, .out = &y }) != KR_OK,
          "no output");
    CHECK_ERROR(ctx, KR_ERR_ARG, "wrong: output 0 to record is NULL");
    kr_tape_reset(t);
    x = leaf(t, KR_DTYPE_F32, 2, 1), y = kr_exp(t, x);
    CHECK(kr_record(t, &(kr_record_args){ .rule = &wrong, .n_in = 1, .n_out = 1, .in = &x, .out = &y }) != KR_OK,
          "recorded twice");
    CHECK_ERROR(ctx, KR_ERR_ARG, "wrong: output 0 [2] to record is not a new tensor of this tape");
    kr_tape_reset(t);
    kr_tape *second = kr_tape_create(ctx, KR_TAPE_GRAD);
    x = leaf(second, KR_DTYPE_F32, 2, 1), y = kr_zeros(t, KR_DTYPE_F32, KR_SHAPE(2));
    CHECK(kr_record(t, &(kr_record_args){ .rule = &wrong, .n_in = 1, .n_out = 1, .in = &x, .out = &y }) != KR_OK,
          "foreign input");
    CHECK_ERROR(ctx, KR_ERR_STATE, "wrong: input 0 [2] to record belongs to another tape or context");
    kr_tape_destroy(second);
    end(s);
}

/* ---- check_finite ---- */

TEST(check_finite_names_op_output_and_index)
{
    kr_ctx_options o;
    kr_ctx_options_init(&o);
    o.threads = 1;
    o.check_finite = true;
    kr_ctx *ctx = kr_ctx_create(&o);
    kr_tape *t = kr_tape_create(ctx, KR_TAPE_GRAD);
    for (int d = KR_DTYPE_F32; d <= KR_DTYPE_F16; d++) {
        kr_tensor *x =
            kr_cast(t, kr_from_data(t, KR_DTYPE_F32, KR_SHAPE(2, 3), (const float[]){ 1, 2, 3, 4, 0, 6 }), (kr_dtype)d);
        CHECK(!kr_log(t, x), "log(0) is refused");
        CHECK_ERROR(ctx, KR_ERR_NUMERIC, "log: output 0 [2, 3] holds -inf at [1, 1]");
        kr_tape_reset(t);
    }
    CHECK(!kr_sqrt(t, kr_full(t, KR_DTYPE_F64, KR_SCALAR, -1)), "sqrt(-1) is refused");
    CHECK_ERROR_HAS(ctx, KR_ERR_NUMERIC, "sqrt: output 0 [] holds ");
    kr_tape_reset(t);
    /* infinities that are meant pass; a NaN among them does not */
    kr_tensor *x = kr_from_data(t, KR_DTYPE_F32, KR_SHAPE(3), (const float[]){ 1, 2, NAN });
    CHECK(kr_exp(t, kr_segsum(t, kr_zeros(t, KR_DTYPE_F32, KR_SHAPE(3)))) != NULL, "segsum's -inf");
    CHECK(kr_mask_fill(t, x, kr_full(t, KR_DTYPE_I32, KR_SHAPE(3), 1), -INFINITY) != NULL, "a filled -inf");
    CHECK_OK(ctx);
    CHECK(!kr_segsum(t, x), "a NaN behind an infinity is refused");
    CHECK_ERROR_HAS(ctx, KR_ERR_NUMERIC, "segsum: output 0 [3, 3] holds nan at [2, 0]");
    kr_tape_reset(t);
    /* the second output of a convolution, and a gradient */
    kr_tensor *huge = kr_full(t, KR_DTYPE_F32, KR_SHAPE(1, 2, 1), INFINITY),
              *none = kr_full(t, KR_DTYPE_F32, KR_SHAPE(1, 1), 1);
    CHECK(!kr_causal_conv(t, kr_pad(t, huge, 1, 0, 2, 0), none, NULL, NULL, NULL, false).y_bsv,
          "an infinite convolution");
    CHECK_ERROR(ctx, KR_ERR_NUMERIC, "causal_conv: output 0 [1, 4, 1] holds inf at [0, 0, 0]");
    kr_tape_reset(t);
    kr_tensor *zero = kr_input(t, kr_zeros(t, KR_DTYPE_F32, KR_SHAPE(2))),
              *y = kr_mul(t, zero, kr_full(t, KR_DTYPE_F32, KR_SHAPE(2), 1e30f));
    CHECK(kr_backward_from(t, 1, &y, (kr_tensor *[]){ kr_full(t, KR_DTYPE_F32, KR_SHAPE(2), 1e30) }) == KR_ERR_NUMERIC,
          "status");
    CHECK_ERROR(ctx, KR_ERR_NUMERIC, "backward of mul: mul: output 0 [2] holds inf at [0]");
    kr_tape_destroy(t);
    kr_ctx_destroy(ctx);
}
