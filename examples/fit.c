/* fit.c - a training loop without an optimizer: a small network learns y = sin(3 x) by gradient descent.
 *
 *   x [b 1] -> linear -> tanh -> linear -> y [b 1];   loss = mean (y - sin 3x)^2
 */
#include <krait/krait.h>
#include <stdio.h>

enum { BATCH = 64, HIDDEN = 64, STEPS = 2000, NPARAMS = 4 };

static kr_tensor *network(kr_tape *tape, kr_tensor *const *params, kr_tensor *x_bi)
{
    kr_tensor *hidden_bh = kr_tanh(tape, kr_linear(tape, x_bi, params[0], params[1]));
    return kr_linear(tape, hidden_bh, params[2], params[3]);
}

static double train_step(kr_tape *tape, kr_tensor *const *params)
{
    kr_tape_reset(tape);
    kr_tensor *x_bi = kr_rand(tape, KR_DTYPE_F32, KR_SHAPE(BATCH, 1), -1, 1);
    kr_tensor *error_bi = kr_sub(tape, network(tape, params, x_bi), kr_sin(tape, kr_scale(tape, x_bi, 3)));
    kr_tensor *loss = kr_mean(tape, kr_mul(tape, error_bi, error_bi), KR_ALL_AXES, false);
    kr_backward(tape, loss);
    return kr_item(loss);
}

/* w -= lr g_w. The memory of a parameter may be written between steps. */
static void update(kr_tensor *const *params, float lr)
{
    for (int i = 0; i < NPARAMS; i++) {
        float *w = kr_tensor_data(params[i]);
        const float *g_w = kr_tensor_data(kr_grad(params[i]));
        for (int64_t k = 0; k < kr_tensor_count(params[i]); k++) w[k] -= lr * g_w[k];
        kr_zero_grad(params[i]);
    }
}

int main(void)
{
    kr_ctx *ctx = kr_ctx_create(NULL);
    kr_tensor *params[NPARAMS] = {
        kr_param_create(ctx, KR_DTYPE_F32, KR_SHAPE(HIDDEN, 1)),
        kr_param_create(ctx, KR_DTYPE_F32, KR_SHAPE(HIDDEN)),
        kr_param_create(ctx, KR_DTYPE_F32, KR_SHAPE(1, HIDDEN)),
        kr_param_create(ctx, KR_DTYPE_F32, KR_SHAPE(1)),
    };
    kr_param_normal(params[0], 0, 2);
    kr_param_uniform(params[1], -1, 1);
    kr_param_normal(params[2], 0, 0.1);

    kr_tape *tape = kr_tape_create(ctx, KR_TAPE_GRAD);
    double loss = 0;
    for (int step = 0; step < STEPS && !kr_ctx_failed(ctx); step++) {
        loss = train_step(tape, params);
        if (kr_ctx_failed(ctx)) break;
        update(params, 0.05f);
        if (step % 400 == 0) printf("step %4d  loss %.5f\n", step, loss);
    }
    if (kr_ctx_failed(ctx)) fprintf(stderr, "krait: %s\n", kr_ctx_message(ctx));
    else printf("step %4d  loss %.5f\n", STEPS, loss);

    const int failed = kr_ctx_failed(ctx) || !(loss < 0.01);
    kr_tape_destroy(tape);
    for (int i = 0; i < NPARAMS; i++) kr_param_destroy(params[i]);
    kr_ctx_destroy(ctx);
    return failed;
}
