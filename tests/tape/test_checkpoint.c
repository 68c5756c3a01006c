/* test_checkpoint.c - recomputation: the same gradients to the bit, less memory, errors from either run. */
#include "tests/harness.h"

enum { WIDTH = 32, ROWS = 16 };

/* What the functions reach besides their inputs. */
typedef struct reach {
    kr_tensor *w, *earlier;
    bool nested, draws;
    int calls, fail_at, forget_at;
} reach;

static void segment(kr_tape *t, void *user, kr_tensor *const *in, kr_tensor **out)
{
    reach *r = user;
    r->calls++;
    kr_tensor *h = kr_silu(t, kr_linear(t, in[0], r->w, NULL));
    h = kr_mul(t, h, r->earlier);
    if (r->draws) h = kr_mul(t, h, kr_rand(t, KR_DTYPE_F32, KR_SHAPE(ROWS, WIDTH), 0, 2));
    if (r->calls == r->fail_at) h = kr_reshape(t, h, KR_SHAPE(5));
    out[0] = kr_add(t, h, in[1]);
    out[1] = r->calls == r->forget_at ? NULL : in[0]; /* an input passed on */
}

static void segments(kr_tape *t, void *user, kr_tensor *const *in, kr_tensor **out)
{
    reach *r = user;
    kr_tensor *middle[2];
    if (r->nested) kr_checkpoint(t, segment, r, 2, in, 2, middle);
    else segment(t, r, in, middle);
    kr_tensor *next[] = { middle[0], middle[1] };
    if (r->nested) kr_checkpoint(t, segment, r, 2, next, 2, out);
    else segment(t, r, next, out);
}

/* Gradients of x, of the captured tensor and of the parameter, as one list. */
typedef struct outcome {
    double *g[3];
    double loss;
    size_t peak;
} outcome;

static outcome run(bool checkpointed, bool nested, bool draws)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    kr_ctx_seed(ctx, 5);
    kr_tape *t = kr_tape_create(ctx, KR_TAPE_GRAD);
    reach r = { .w = kr_param_create(ctx, KR_DTYPE_F32, KR_SHAPE(WIDTH, WIDTH)), .nested = nested, .draws = draws };
    kr_param_normal(r.w, 0, 0.2);
    kr_tensor *x = kr_input(t, kr_randn(t, KR_DTYPE_F32, KR_SHAPE(ROWS, WIDTH)));
    kr_tensor *e = kr_input(t, kr_randn(t, KR_DTYPE_F32, KR_SHAPE(ROWS, WIDTH)));
    r.earlier = kr_tanh(t, e);
    kr_tensor *in[] = { kr_sin(t, x), x }, *out[2];
    if (checkpointed)
        CHECK(kr_checkpoint(t, segments, &r, 2, in, 2, out) == KR_OK, "checkpoint: %s", kr_ctx_message(ctx));
    else segments(t, &r, in, out);
    kr_rand(t, KR_DTYPE_F32, KR_SHAPE(3), 0, 1); /* later draws do not disturb the second run */
    kr_tensor *loss = kr_mean(t, kr_mul(t, out[0], kr_exp(t, out[1])), KR_ALL_AXES, false);
    kr_backward(t, loss);
    CHECK_OK(ctx);
    CHECK(r.calls == (checkpointed ? nested ? 6 : 4 : 2), "%d calls of the function", r.calls);
    outcome o = { { kr_test_values(kr_grad(x)), kr_test_values(kr_grad(e)), kr_test_values(kr_grad(r.w)) },
                  kr_item(loss),
                  kr_tape_peak_bytes(t) };
    const kr_tensor *next = kr_rand(t, KR_DTYPE_F32, KR_SCALAR, 0, 1);
    CHECK(kr_item(next) == kr_item(next), "a draw after it");
    kr_tape_destroy(t);
    kr_param_destroy(r.w);
    kr_ctx_destroy(ctx);
    return o;
}

TEST(same_gradients_to_the_bit)
{
    const int64_t counts[] = { ROWS * WIDTH, ROWS * WIDTH, WIDTH * WIDTH };
    for (int draws = 0; draws < 2; draws++) {
        outcome plain = run(false, false, draws);
        for (int nested = 0; nested < 2; nested++) {
            outcome o = run(true, nested, draws);
            CHECK(o.loss == plain.loss, "loss %.9g, %.9g without checkpoint", o.loss, plain.loss);
            for (int i = 0; i < 3; i++) {
                CHECK(memcmp(o.g[i], plain.g[i], (size_t)counts[i] * sizeof(double)) == 0,
                      "gradient %d differs (nested %d, draws %d)", i, nested, draws);
                free(o.g[i]);
            }
        }
        for (int i = 0; i < 3; i++) free(plain.g[i]);
    }
}

/* ---- memory: 8 segments of 4 elementwise ops on vectors of V bytes ---- */

enum { SEGMENTS = 8, OPS = 4, V = 64 * 1024 };

static void four_ops(kr_tape *t, void *user, kr_tensor *const *in, kr_tensor **out)
{
    (void)user;
    kr_tensor *h = in[0];
    for (int i = 0; i < OPS; i++) h = kr_sin(t, h);
    out[0] = h;
}

/* Peak in units of V, rounded to the nearest: headers are far smaller. */
static double peak_of_chain(bool checkpointed)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    kr_tape *t = kr_tape_create(ctx, KR_TAPE_GRAD);
    float *ones = calloc(V / 4, sizeof *ones);
    if (!ones) exit(2);
    kr_tensor *x = kr_input(t, kr_view_data(t, KR_DTYPE_F32, KR_SHAPE(V / 4), NULL, ones)), *h = x;
    for (int i = 0; i < SEGMENTS; i++) {
        if (checkpointed) kr_checkpoint(t, four_ops, NULL, 1, (kr_tensor *[]){ h }, 1, &h);
        else four_ops(t, NULL, (kr_tensor *[]){ h }, &h);
    }
    const size_t lent = kr_test_on_device(ctx); /* a device has a copy of the caller's vector */
    CHECK(kr_tape_bytes(t) == (size_t)V * (lent + (checkpointed ? 1 + SEGMENTS : 1 + SEGMENTS * OPS)),
          "%zu vectors and %zu bytes after forward", kr_tape_bytes(t) / V, kr_tape_bytes(t) % V);
    kr_backward_from(t, 1, &h, NULL);
    CHECK_OK(ctx);
    const double peak = (double)kr_tape_peak_bytes(t) / V - (double)lent;
    kr_tape_destroy(t);
    kr_ctx_destroy(ctx);
    free(ones);
    return peak;
}

TEST(memory_of_a_chain)
{
    /* plain: 33 vectors, and two gradients at a time. With checkpoints: the input and 8 outputs; the replayed segment
     * (4); the gradient of its end, held while two more pass through it. */
    const double plain = peak_of_chain(false), checkpointed = peak_of_chain(true);
    CHECK(floor(plain) == 1 + SEGMENTS * OPS + 2, "peak of the plain chain: %.3f vectors", plain);
    CHECK(floor(checkpointed) == 1 + SEGMENTS + OPS + 3, "peak with checkpoints: %.3f vectors", checkpointed);
}

/* Nothing of the inside stays in no-grad mode either, and there is no second run. */
TEST(without_gradients)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    kr_tape *t = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    kr_tensor *x = kr_zeros(t, KR_DTYPE_F32, KR_SHAPE(V / 4)), *y;
    CHECK(kr_checkpoint(t, four_ops, NULL, 1, &x, 1, &y) == KR_OK, "checkpoint");
    CHECK(kr_tape_bytes(t) == 2 * V && kr_tape_nodes(t) == 0, "%zu bytes", kr_tape_bytes(t));
    kr_tape_destroy(t);
    t = kr_tape_create(ctx, KR_TAPE_GRAD);
    x = kr_zeros(t, KR_DTYPE_F32, KR_SHAPE(V / 4));
    CHECK(kr_checkpoint(t, four_ops, NULL, 1, &x, 1, &y) == KR_OK && !kr_requires_grad(y) && kr_tape_nodes(t) == 0,
          "constants in, constant out");
    CHECK_OK(ctx);
    kr_tape_destroy(t);
    kr_ctx_destroy(ctx);
}

TEST(errors_of_either_run)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    kr_tape *t = kr_tape_create(ctx, KR_TAPE_GRAD);
    kr_tensor *w = kr_param_create(ctx, KR_DTYPE_F32, KR_SHAPE(WIDTH, WIDTH));
    for (int fail_at = 1; fail_at <= 2; fail_at++) {
        kr_tape_reset(t);
        kr_tensor *x = kr_input(t, kr_zeros(t, KR_DTYPE_F32, KR_SHAPE(ROWS, WIDTH))), *out[2] = { x, x };
        reach r = { .w = w, .earlier = x, .fail_at = fail_at };
        const bool ok = kr_checkpoint(t, segment, &r, 2, (kr_tensor *[]){ x, x }, 2, out) == KR_OK;
        CHECK(ok == (fail_at == 2), "the error comes in run %d", fail_at);
        if (ok) CHECK(kr_backward_from(t, 1, out, NULL) == KR_ERR_SHAPE, "status");
        else CHECK(!out[0] && !out[1], "outputs are NULL after an error");
        CHECK_ERROR(ctx, KR_ERR_SHAPE,
                    ok ? "backward of checkpoint: reshape: x [16, 32] has 512 elements, which do not fill [5]"
                       : "reshape: x [16, 32] has 512 elements, which do not fill [5]");
    }
    kr_tape_reset(t);
    kr_tensor *x = kr_input(t, kr_zeros(t, KR_DTYPE_F32, KR_SHAPE(ROWS, WIDTH))), *out[2];
    reach r = { .w = w, .earlier = x, .forget_at = 1 };
    CHECK(kr_checkpoint(t, segment, &r, 2, (kr_tensor *[]){ x, x }, 2, out) == KR_ERR_ARG, "an output is missing");
    CHECK_ERROR(ctx, KR_ERR_ARG, "checkpoint: the function left out[1] NULL");
    kr_tape_reset(t);
    CHECK(kr_checkpoint(t, segment, &r, 0, NULL, 0, out) == KR_ERR_ARG, "no outputs");
    CHECK_ERROR(ctx, KR_ERR_ARG, "checkpoint: n_out = 0, but must be from 1 to 64");
    kr_tape_destroy(t);
    kr_param_destroy(w);
    kr_ctx_destroy(ctx);
}

/* The seed may be set anew between the two runs. */
static void noisy(kr_tape *t, void *user, kr_tensor *const *in, kr_tensor **out)
{
    (void)user;
    out[0] = kr_mul(t, in[0], kr_randn(t, KR_DTYPE_F32, KR_SHAPE(4)));
}

TEST(draws_repeat)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    kr_tape *t = kr_tape_create(ctx, KR_TAPE_GRAD);
    kr_tensor *x = kr_input(t, kr_full(t, KR_DTYPE_F32, KR_SHAPE(4), 1)), *y;
    kr_checkpoint(t, noisy, NULL, 1, &x, 1, &y);
    kr_ctx_seed(ctx, 99);
    kr_backward_from(t, 1, &y, NULL);
    CHECK_SAME_BITS("the slope is the draw", kr_grad(x), y);
    kr_tensor *after = kr_randn(t, KR_DTYPE_F32, KR_SHAPE(4));
    kr_ctx_seed(ctx, 99);
    CHECK_SAME_BITS("backward leaves the stream alone", after, kr_randn(t, KR_DTYPE_F32, KR_SHAPE(4)));
    CHECK_OK(ctx);
    kr_tape_destroy(t);
    kr_ctx_destroy(ctx);
}
