/* test_writes_of_parameters.c - what writes parameters makes the gradients of earlier forward passes errors. */
#define _POSIX_C_SOURCE 200809L
#include "tests/temp_folder.h"

static kr_ctx *ctx;
static kr_tape *t;
static kr_params *params;
static kr_tensor *weight;
static kr_optimizer *opt;

static void begin(kr_optimizer_kind kind, kr_dtype dtype)
{
    ctx = kr_test_ctx(1, NULL);
    t = kr_tape_create(ctx, KR_TAPE_GRAD);
    params = kr_params_create(ctx);
    weight = kr_params_linear(params, "head", dtype, 3, 3, NULL);
    kr_optimizer_options options;
    kr_optimizer_options_init(&options);
    options.kind = kind;
    options.ema_decay = 0.5;
    opt = kr_optimizer_create(ctx, params, &options);
    CHECK_OK(ctx);
}

static void end(void)
{
    CHECK_OK(ctx);
    kr_optimizer_destroy(opt);
    kr_params_destroy(params);
    kr_tape_destroy(t);
    kr_ctx_destroy(ctx);
}

static kr_tensor *forward(void)
{
    kr_tensor *x = kr_input(t, kr_full(t, kr_tensor_dtype(weight), KR_SHAPE(2, 3), 1));
    kr_tensor *y = kr_linear(t, x, weight, NULL);
    return kr_sum(t, kr_cast(t, kr_mul(t, y, y), KR_DTYPE_F32), KR_ALL_AXES, false);
}

static void step(void)
{
    CHECK(kr_backward(t, forward()) == KR_OK && kr_optimizer_step(opt, 0.1, 1) == KR_OK, "%s", kr_ctx_message(ctx));
    kr_tape_reset(t);
}

static void check_refused(const char *what, kr_tensor *loss)
{
    CHECK(kr_backward(t, loss) == KR_ERR_STATE, "%s", what);
    CHECK_ERROR(ctx, KR_ERR_STATE,
                "backward of linear: the parameter head.weight [3, 3] was written after linear had used it; write it "
                "after kr_backward, or call kr_tape_reset and run the step again");
    kr_tape_reset(t);
}

TEST(an_optimizer_step_before_backward)
{
    for (int kind = KR_OPTIMIZER_ADAMW; kind <= KR_OPTIMIZER_MUON; kind++)
        for (int d = KR_DTYPE_F32; d <= KR_DTYPE_BF16; d++) {
            begin((kr_optimizer_kind)kind, (kr_dtype)d);
            step();
            kr_tape *second = kr_tape_create(ctx, KR_TAPE_GRAD), *first = t;
            kr_tensor *loss = forward();
            t = second; /* another step meanwhile */
            step();
            t = first;
            check_refused(kr_optimizer_kind_name((kr_optimizer_kind)kind), loss);
            kr_tape_destroy(second);
            end();
        }
}

TEST(averaged_weights_before_backward)
{
    begin(KR_OPTIMIZER_ADAMW, KR_DTYPE_F32);
    step();
    kr_optimizer_use_ema(opt, true); /* an evaluation between two steps */
    forward();
    kr_tape_reset(t);
    kr_optimizer_use_ema(opt, false);
    step();
    kr_tensor *loss = forward();
    kr_optimizer_use_ema(opt, true);
    check_refused("averaged weights", loss);
    kr_optimizer_use_ema(opt, false);
    end();
}

TEST(files_and_resets_before_backward)
{
    begin(KR_OPTIMIZER_SGD, KR_DTYPE_F32);
    begin_folder();
    CHECK(kr_params_save(params, in_folder("p")) == KR_OK, "%s", kr_ctx_message(ctx));
    kr_tensor *loss = forward();
    CHECK(kr_params_load(params, in_folder("p")) == KR_OK, "%s", kr_ctx_message(ctx));
    check_refused("a file", loss);
    loss = forward();
    kr_params_reset(params);
    check_refused("new initial values", loss);
    loss = forward();
    kr_params_freeze(params, true); /* no write */
    kr_params_freeze(params, false);
    CHECK(kr_params_pack(params) == KR_OK, "%s", kr_ctx_message(ctx));
    kr_params_unpack(params);
    CHECK(kr_backward(t, loss) == KR_OK, "%s", kr_ctx_message(ctx));
    end_folder();
    end();
}
