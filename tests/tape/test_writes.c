/* test_writes.c - a tensor that is written or destroyed between forward and backward is an error at backward: no wrong
 * gradient, no use after free. */
#include "tests/harness.h"

static kr_ctx *ctx;
static kr_tape *t;
static kr_tensor *w; /* [2 2], all 2 */

static void begin(void)
{
    ctx = kr_test_ctx(1, NULL);
    t = kr_tape_create(ctx, KR_TAPE_GRAD);
    w = kr_param_create(ctx, KR_DTYPE_F32, KR_SHAPE(2, 2));
    kr_param_fill(w, 2);
}

static void end(void)
{
    CHECK_OK(ctx);
    kr_param_destroy(w);
    kr_tape_destroy(t);
    kr_ctx_destroy(ctx);
}

/* The sum of the squares of w, or of what shows its memory. */
static kr_tensor *loss_of(kr_tensor *x)
{
    return kr_sum(t, kr_mul(t, x, x), KR_ALL_AXES, false);
}

static void check_gradient(const char *what, double want)
{
    kr_tensor *grad = kr_grad(w);
    for (int64_t i = 0; grad && i < 4; i++) {
        const double got = kr_tensor_at(grad, (const int64_t[]){ i / 2, i % 2 });
        CHECK(got == want, "%s: gradient %g, not %g", what, got, want);
    }
    CHECK(grad != NULL, "%s: no gradient", what);
    kr_zero_grad(w);
}

static const float fours[4] = { 4, 4, 4, 4 };

static void write(int how)
{
    switch (how) {
    case 0: kr_param_write(w, KR_DTYPE_F32, fours, 4); break;
    case 1: kr_tensor_write(w, KR_DTYPE_F32, fours, 4); break;
    case 2: kr_param_fill(w, 4); break;
    case 3: kr_param_normal(w, 0, 1); break;
    default: kr_param_uniform(w, 0, 1); break;
    }
}

TEST(a_parameter_written_before_backward)
{
    begin();
    for (int how = 0; how < 5; how++) {
        kr_param_fill(w, 2);
        kr_tensor *loss = loss_of(w);
        write(how);
        CHECK(kr_backward(t, loss) == KR_ERR_STATE, "write %d", how);
        CHECK_ERROR(ctx, KR_ERR_STATE,
                    "backward of mul: the parameter [2, 2] was written after mul had used it; write it after "
                    "kr_backward, or call kr_tape_reset and run the step again");
        kr_tape_reset(t);
        kr_param_fill(w, 3);
        kr_zero_grad(w);
        CHECK(kr_backward(t, loss_of(w)) == KR_OK, "%s", kr_ctx_message(ctx));
        check_gradient("again", 6);
        write(how); /* after backward */
        kr_tape_reset(t);
    }
    end();
}

TEST(views_share_the_writes_of_their_tensor)
{
    begin();
    kr_tensor *loss = loss_of(kr_transpose(t, kr_slice(t, w, 0, 0, 1)));
    kr_param_fill(w, 4);
    CHECK(kr_backward(t, loss) == KR_ERR_STATE, "a view of a parameter");
    CHECK_ERROR_HAS(ctx, KR_ERR_STATE, "the parameter [2, 2] was written after ");
    kr_tape_reset(t);

    kr_tensor *x = kr_input(t, kr_zeros(t, KR_DTYPE_F32, KR_SHAPE(2, 2)));
    loss = loss_of(kr_reshape(t, x, KR_SHAPE(4)));
    kr_tensor *view = kr_detach(t, x);
    CHECK(kr_tensor_write(view, KR_DTYPE_F32, fours, 4) == KR_OK, "%s", kr_ctx_message(ctx));
    CHECK(kr_backward(t, loss) == KR_ERR_STATE, "written through a view");
    CHECK_ERROR_HAS(ctx, KR_ERR_STATE, "the tensor [2, 2] was written after ");
    end();
}

/* A view that a scope keeps, and one of the caller's memory, whose header the scope releases. */
TEST(writes_after_a_scope)
{
    begin();
    float numbers[4] = { 1, 2, 3, 4 };
    const kr_scope scope = kr_no_grad_begin(t);
    kr_tensor *view = kr_slice(t, w, 0, 0, 1), *own = kr_view_data(t, KR_DTYPE_F32, KR_SHAPE(4), NULL, numbers);
    kr_no_grad_end(t, scope, KR_KEEP(&view, &own));
    kr_tensor *x = kr_input(t, kr_slice(t, own, 0, 0, 2));
    kr_tensor *loss = kr_sum(t, kr_mul(t, x, kr_reshape(t, view, KR_SHAPE(2))), KR_ALL_AXES, false);
    kr_param_fill(w, 4);
    CHECK(kr_backward(t, loss) == KR_ERR_STATE, "a kept view of a parameter");
    CHECK_ERROR_HAS(ctx, KR_ERR_STATE, "was written after mul had used it");
    end();
}

TEST(tensors_that_were_not_read_may_be_written)
{
    begin();
    kr_tensor *other = kr_param_create(ctx, KR_DTYPE_F32, KR_SHAPE(2, 2));
    kr_tensor *filled = kr_new(t, KR_DTYPE_F32, KR_SHAPE(2, 2));
    kr_tensor_write(filled, KR_DTYPE_F32, fours, 4); /* before the op that reads it */
    kr_tensor *loss = kr_sum(t, kr_mul(t, w, filled), KR_ALL_AXES, false);
    kr_param_fill(other, 1);
    CHECK(kr_backward(t, loss) == KR_OK, "%s", kr_ctx_message(ctx));
    check_gradient("filled", 4);
    kr_param_destroy(other);
    end();
}

/* ---- checkpoints ---- */

static void square(kr_tape *tape, void *user, kr_tensor *const *in, kr_tensor **out)
{
    (void)user;
    kr_tensor *half = kr_new(tape, KR_DTYPE_F32, KR_SHAPE(2, 2));
    kr_tensor_write(half, KR_DTYPE_F32, (const float[]){ 0.5f, 0.5f, 0.5f, 0.5f }, 4); /* in either run */
    out[0] = kr_mul(tape, kr_mul(tape, half, in[0]), w);
}

static kr_tensor *checkpointed(void)
{
    kr_tensor *y = NULL, *x = kr_input(t, kr_full(t, KR_DTYPE_F32, KR_SHAPE(2, 2), 6));
    kr_checkpoint(t, square, NULL, 1, &x, 1, &y);
    return kr_sum(t, y, KR_ALL_AXES, false);
}

TEST(writes_and_recomputation)
{
    begin();
    CHECK(kr_backward(t, checkpointed()) == KR_OK, "%s", kr_ctx_message(ctx));
    check_gradient("checkpoint", 3);
    kr_tape_reset(t);
    kr_tensor *loss = checkpointed();
    kr_param_fill(w, 4); /* which the function reaches by itself */
    CHECK(kr_backward(t, loss) == KR_ERR_STATE, "a parameter in a checkpoint");
    CHECK_ERROR_HAS(ctx, KR_ERR_STATE, "the parameter [2, 2] was written after checkpoint had used it");
    end();
}

/* ---- destroyed parameters ---- */

/* Destroys w; a parameter of the same shape may then be allocated in its place. */
static void destroy_w(void)
{
    kr_param_destroy(w);
    w = kr_param_create(ctx, KR_DTYPE_F32, KR_SHAPE(2, 2));
    kr_param_fill(w, 3);
}

TEST(a_parameter_destroyed_before_backward)
{
    begin();
    const size_t live = kr_ctx_memory(ctx).live_blocks;
    for (int as_view = 0; as_view < 2; as_view++) {
        kr_tensor *loss = loss_of(as_view ? kr_transpose(t, w) : w);
        destroy_w();
        CHECK(kr_backward(t, loss) == KR_ERR_STATE, "view %d", as_view);
        if (as_view) CHECK_ERROR_HAS(ctx, KR_ERR_STATE, "the parameter [2, 2] was destroyed after ");
        else
            CHECK_ERROR(ctx, KR_ERR_STATE,
                        "backward of mul: the parameter [2, 2] was destroyed after mul had used it; destroy it after "
                        "kr_backward, or call kr_tape_reset and run the step again");
        CHECK(!kr_grad(w), "a gradient of the new parameter");
        kr_tape_reset(t);
        CHECK(kr_backward(t, loss_of(w)) == KR_OK, "%s", kr_ctx_message(ctx));
        check_gradient("again", 6);
        destroy_w(); /* after backward */
        kr_tape_reset(t);
    }
    CHECK(kr_ctx_memory(ctx).live_blocks <= live + 8, "%zu blocks, %zu at first: headers are left",
          kr_ctx_memory(ctx).live_blocks, live);
    end();
}

/* Headers last until no tape holds recorded ops; parameters that no tape has used come and go. */
TEST(destroyed_parameters_and_two_tapes)
{
    begin();
    kr_tape *other = kr_tape_create(ctx, KR_TAPE_GRAD);
    kr_tensor *loss = loss_of(w), *y = kr_sum(other, kr_exp(other, w), KR_ALL_AXES, false);
    destroy_w();
    kr_tape_reset(t);
    CHECK(kr_backward(other, y) == KR_ERR_STATE, "on the other tape");
    CHECK_ERROR_HAS(ctx, KR_ERR_STATE, "the parameter [2, 2] was destroyed after exp had used it");
    loss = loss_of(w);
    kr_tape_destroy(other);
    CHECK(kr_backward(t, loss) == KR_OK, "%s", kr_ctx_message(ctx));
    kr_tape_reset(t);
    const size_t live = kr_ctx_memory(ctx).live_blocks;
    loss = loss_of(w);
    for (int i = 0; i < 100; i++) kr_param_destroy(kr_param_create(ctx, KR_DTYPE_F32, KR_SHAPE(64)));
    CHECK(kr_ctx_memory(ctx).live_blocks <= live + 100, "the elements are freed at once");
    kr_zero_grad(w);
    CHECK(kr_backward(t, loss) == KR_OK, "%s", kr_ctx_message(ctx));
    check_gradient("parameters that it did not use", 6);
    kr_tape_reset(t);
    CHECK(kr_ctx_memory(ctx).live_blocks == live, "%zu blocks, %zu before", kr_ctx_memory(ctx).live_blocks, live);
    end();
}

TEST(destroyed_parameters_and_recomputation)
{
    begin();
    kr_tensor *loss = checkpointed();
    destroy_w(); /* fn would read the new one */
    CHECK(kr_backward(t, loss) == KR_ERR_STATE, "a parameter in a checkpoint");
    CHECK_ERROR_HAS(ctx, KR_ERR_STATE, "the parameter [2, 2] was destroyed after checkpoint had used it");
    end();
}

/* A parameter that the function only compares with, and one whose values it copies. */
static void masked(kr_tape *tape, void *user, kr_tensor *const *in, kr_tensor **out)
{
    kr_tensor *other = *(kr_tensor **)user;
    kr_tensor *mask = kr_cast(tape, kr_gt(tape, other, in[0]), KR_DTYPE_F32);
    out[0] = kr_mul(tape, kr_mul(tape, in[0], mask), w);
}

static void copied(kr_tape *tape, void *user, kr_tensor *const *in, kr_tensor **out)
{
    out[0] = kr_mul(tape, kr_mul(tape, in[0], kr_detach(tape, kr_input(tape, *(kr_tensor **)user))), w);
}

TEST(parameters_that_a_checkpoint_reads_without_gradient)
{
    begin();
    kr_checkpoint_fn *const fns[] = { masked, copied };
    for (int i = 0; i < 4; i++) {
        kr_tensor *other = kr_param_create(ctx, KR_DTYPE_F32, KR_SHAPE(2, 2));
        kr_param_fill(other, 9);
        kr_param_freeze(other, true);
        kr_tensor *y = NULL, *x = kr_input(t, kr_full(t, KR_DTYPE_F32, KR_SHAPE(2, 2), 6));
        kr_checkpoint(t, fns[i / 2], &other, 1, &x, 1, &y);
        kr_tensor *loss = kr_sum(t, y, KR_ALL_AXES, false);
        if (i % 2) kr_param_destroy(other);
        else kr_param_fill(other, 0);
        CHECK(kr_backward(t, loss) == KR_ERR_STATE, "%d", i);
        CHECK_ERROR_HAS(ctx, KR_ERR_STATE,
                        i % 2 ? "the parameter [2, 2] was destroyed after checkpoint had used it"
                              : "the parameter [2, 2] was written after checkpoint had used it");
        if (i % 2 == 0) kr_param_destroy(other);
        kr_tape_reset(t);
    }
    end();
}

/* The first op of the tape; its parameter does not outlive the function. */
static void with_own(kr_tape *tape, void *user, kr_tensor *const *in, kr_tensor **out)
{
    (void)user, (void)in;
    kr_tensor *own = kr_param_create(ctx, KR_DTYPE_F32, KR_SHAPE(2, 2));
    out[0] = kr_mul(tape, own, w);
    kr_param_destroy(own);
}

TEST(a_checkpoint_that_destroys_its_parameter)
{
    begin();
    kr_tensor *y = NULL;
    kr_checkpoint(t, with_own, NULL, 0, NULL, 1, &y);
    kr_tensor *loss = kr_sum(t, y, KR_ALL_AXES, false);
    CHECK(kr_backward(t, loss) == KR_ERR_STATE, "destroyed before its gradient");
    CHECK_ERROR_HAS(ctx, KR_ERR_STATE, "the parameter [2, 2] was destroyed after mul had used it");
    end();
}

/* A table takes its names with it: messages have a copy, or no name if there is no memory for one. */
TEST(names_of_destroyed_parameters)
{
    begin();
    for (int is_refused = 0; is_refused < 2; is_refused++) {
        kr_params *params = kr_params_create(ctx);
        kr_tensor *loss = loss_of(kr_params_make(params, "scale", KR_DTYPE_F32, KR_SHAPE(2, 2), NULL));
        kr_ctx_fail_allocation(ctx, is_refused ? 1 : 0);
        kr_params_destroy(params);
        kr_ctx_fail_allocation(ctx, 0);
        CHECK_OK(ctx);
        CHECK(kr_backward(t, loss) == KR_ERR_STATE, "refused %d", is_refused);
        CHECK_ERROR_HAS(ctx, KR_ERR_STATE,
                        is_refused ? "the parameter [2, 2] was destroyed" : "the parameter scale [2, 2] was destroyed");
        kr_tape_reset(t);
    }
    end();
}
