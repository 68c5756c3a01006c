/* quickstart.c - a Mamba-3 block: 64 tokens in parallel, then one step from their cache. */
#include <krait/krait.h>

#include <math.h>
#include <stdio.h>

int main(void)
{
    kr_ctx *ctx = kr_ctx_create(NULL); /* all cores, the best instruction set */

    kr_mamba3_config config;
    kr_mamba3_config_init(&config); /* the official defaults */
    config.d_model = 256;
    kr_mamba3 *block = kr_mamba3_create(ctx, &config);

    kr_tape *tape = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    kr_tensor *all_bsd = kr_randn(tape, KR_DTYPE_F32, KR_SHAPE(2, 65, 256));
    kr_tensor *first_bsd = kr_slice(tape, all_bsd, 1, 0, 64);
    kr_tensor *last_bd = kr_reshape(tape, kr_slice(tape, all_bsd, 1, 64, 65), KR_SHAPE(2, 256));

    kr_mamba3_out whole =
        kr_mamba3_forward(tape, block, first_bsd, NULL, kr_mamba3_path(block)); /* 64 tokens in parallel */
    kr_mamba3_out next = kr_mamba3_step(tape, block, last_bd, &whole.cache);    /* the 65th, in constant memory */

    /* the same 65 tokens in one call */
    kr_mamba3_out reference = kr_mamba3_forward(tape, block, all_bsd, NULL, kr_mamba3_path(block));
    kr_tensor *same_bd = kr_reshape(tape, kr_slice(tape, reference.y, 1, 64, 65), KR_SHAPE(2, 256));
    kr_tensor *error_bd = kr_sub(tape, next.y, same_bd);
    const double worst = sqrt(kr_item(kr_max(tape, kr_mul(tape, error_bd, error_bd), KR_ALL_AXES, false)));

    const bool failed = kr_ctx_failed(ctx); /* one check for all calls above */
    if (failed) fprintf(stderr, "krait: %s\n", kr_ctx_message(ctx));
    else
        printf("y [%lld, %lld], differs by %.1e from one call over all 65 tokens\n", KR_DIM(next.y, 0),
               KR_DIM(next.y, 1), worst);

    kr_tape_destroy(tape);
    kr_mamba3_destroy(block);
    kr_ctx_destroy(ctx);
    return failed || !(worst < 1e-4);
}
