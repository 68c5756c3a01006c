/* own_backend.c - a backend that replaces the fused SSD core, forward and backward, of f32. It counts calls and passes them
 * on to the kernels that it replaces, where a real one would compute the sizes that it is made for.
 *
 * The same source is a program, which registers the backend and trains a Mamba-3 of the double pathway with it, and, compiled
 * with -DOWN_BACKEND_SHARED -shared -fPIC, a shared object for any program:
 *
 *   KR_BACKEND=./own_backend.so krait train --data notes.txt --out run
 */
#include <krait/backend/kernels.h>

#include <stdatomic.h>
#include <stddef.h>

static atomic_long forward_calls, backward_calls; /* contexts in several threads may use the backend */

static void run_ssd(const kr_ssd_args *args)
{
    atomic_fetch_add(&forward_calls, 1);
    args->exec.library->ssd[KR_REAL_F32].run(args);
}

static void run_ssd_bwd(const kr_ssd_bwd_args *args)
{
    atomic_fetch_add(&backward_calls, 1);
    args->exec.library->ssd_bwd[KR_REAL_F32].run(args);
}

/* The scratch that `run` needs: here that of the replaced kernel. */
static size_t scratch_ssd(const kr_ssd_args *args)
{
    size_t (*const scratch)(const kr_ssd_args *) = args->exec.library->ssd[KR_REAL_F32].scratch;
    return scratch ? scratch(args) : 0;
}

static size_t scratch_ssd_bwd(const kr_ssd_bwd_args *args)
{
    size_t (*const scratch)(const kr_ssd_bwd_args *) = args->exec.library->ssd_bwd[KR_REAL_F32].scratch;
    return scratch ? scratch(args) : 0;
}

/* Slots that are not named stay as they are: f64, and every other kernel. */
static const kr_kernels kernels = { .name = "counting",
                                    .ssd = { [KR_REAL_F32] = { run_ssd, scratch_ssd } },
                                    .ssd_bwd = { [KR_REAL_F32] = { run_ssd_bwd, scratch_ssd_bwd } } };

static const kr_backend_info counting = { KR_BACKEND_HEAD, .name = "counting", .target = "cpu", .kernels = &kernels };

#ifdef OWN_BACKEND_SHARED

/* The library compares versions and refuses what does not fit; a backend that needs more looks at `host`, and may return
 * NULL. */
__attribute__((visibility("default"))) const kr_backend_info *krait_backend(const kr_backend_host *host);
const kr_backend_info *krait_backend(const kr_backend_host *host)
{
    (void)host;
    return &counting;
}

#else

#include <krait/krait.h>
#include <stdio.h>

static void train(kr_ctx *ctx)
{
    kr_mamba3_config mamba;
    kr_mamba3_config_init(&mamba);
    mamba.d_model = 32;
    mamba.state_rank = 16;
    mamba.per_head_dim = 16;
    mamba.pathway = KR_MAMBA3_PATHWAY_DOUBLE;
    kr_mamba3 *block = kr_mamba3_create(ctx, &mamba);
    kr_optimizer *optimizer = kr_optimizer_create(ctx, kr_mamba3_params(block), NULL);
    kr_tape *tape = kr_tape_create(ctx, KR_TAPE_GRAD);
    for (int step = 0; step < 3 && !kr_ctx_failed(ctx); step++) {
        kr_tensor *x = kr_randn(tape, KR_DTYPE_F32, KR_SHAPE(2, 24, 32));
        kr_mamba3_out out = kr_mamba3_forward(tape, block, x, NULL, kr_mamba3_path(block));
        kr_backward(tape, kr_mse(tape, out.y, x, NULL));
        if (kr_optimizer_step(optimizer, 1e-3, 1) != KR_OK) break;
        kr_tape_reset(tape);
    }
    kr_tape_destroy(tape);
    kr_optimizer_destroy(optimizer);
    kr_mamba3_destroy(block);
}

int main(void)
{
    kr_ctx_options options;
    kr_ctx_options_init(&options);
    kr_ctx *any = kr_ctx_create(NULL);
    bool failed = kr_backend_register(any, &counting) != KR_OK;
    if (failed) fprintf(stderr, "krait: %s\n", kr_ctx_message(any));
    kr_ctx_destroy(any);
    if (failed) return 1;

    options.backend = "counting";
    options.device = "cpu";
    kr_ctx *ctx = kr_ctx_create(&options);
    if (!kr_ctx_failed(ctx)) train(ctx);
    printf("ssd runs on %s, ssd_bwd on %s\n", kr_ctx_kernel(ctx, "ssd"), kr_ctx_kernel(ctx, "ssd_bwd"));
    printf("3 steps: %ld calls forward, %ld backward\n", atomic_load(&forward_calls), atomic_load(&backward_calls));
    failed = kr_ctx_failed(ctx) || forward_calls == 0 || backward_calls == 0;
    if (kr_ctx_failed(ctx)) fprintf(stderr, "krait: %s\n", kr_ctx_message(ctx));
    kr_ctx_destroy(ctx);
    return failed;
}

#endif
