/* first.c - the smallest differentiable program: one linear layer, a loss, its gradient. */
#include <krait/krait.h>
#include <stdio.h>

int main(void)
{
    kr_ctx *ctx = kr_ctx_create(NULL); /* all cores, the best instruction set */
    kr_tensor *w_oi = kr_param_create(ctx, KR_DTYPE_F32, KR_SHAPE(64, 32));
    kr_param_normal(w_oi, 0, 0.1);

    kr_tape *tape = kr_tape_create(ctx, KR_TAPE_GRAD);
    kr_tensor *x_bi = kr_randn(tape, KR_DTYPE_F32, KR_SHAPE(8, 32));
    kr_tensor *y_bo = kr_silu(tape, kr_linear(tape, x_bi, w_oi, NULL));
    kr_tensor *loss = kr_mean(tape, kr_mul(tape, y_bo, y_bo), KR_ALL_AXES, false);
    kr_backward(tape, loss);

    if (kr_ctx_failed(ctx)) fprintf(stderr, "krait: %s\n", kr_ctx_message(ctx)); /* one check for all calls above */
    else
        printf("loss %.4f, gradient [%lld, %lld]\n", kr_item(loss), KR_DIM(kr_grad(w_oi), 0), KR_DIM(kr_grad(w_oi), 1));

    const int failed = kr_ctx_failed(ctx);
    kr_tape_destroy(tape);
    kr_param_destroy(w_oi);
    kr_ctx_destroy(ctx);
    return failed;
}
