/* consumer.c - the smallest program against an installed Krait: y = a b, g_a = b. */
#include <krait/krait.h>

#include <stdio.h>

int main(void)
{
    kr_ctx *ctx = kr_ctx_create(NULL);
    kr_tape *tape = kr_tape_create(ctx, KR_TAPE_GRAD);
    kr_tensor *a = kr_input(tape, kr_full(tape, KR_DTYPE_F32, KR_SHAPE(1), 6.0));
    kr_tensor *b = kr_full(tape, KR_DTYPE_F32, KR_SHAPE(1), 7.0);
    kr_tensor *y = kr_mul(tape, a, b);
    kr_backward(tape, y);
    if (kr_ctx_failed(ctx)) fprintf(stderr, "consumer: %s\n", kr_ctx_message(ctx));
    printf("y = %g, g_a = %g\n", kr_item(y), kr_item(kr_grad(a)));
    kr_tape_destroy(tape);
    kr_ctx_destroy(ctx);
    return 0;
}
