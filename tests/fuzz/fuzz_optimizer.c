/* fuzz_optimizer.c - any bytes as the file of an optimizer, whole or the pieces of ranks: one that can go on stepping, or an
 * error that leaves it as it was. With KR_FUZZ_SEEDS naming a folder, valid files are put there first: no mutation would find the parameters'
 * hash. */
#define _POSIX_C_SOURCE 200809L
#include "fuzz.h"

#include "train/optimizer_impl.h"

#include <krait/block.h>
#include <krait/ops.h>
#include <krait/train.h>

static kr_ctx *ctx;
static kr_tape *tape;
static kr_mamba2 *block;

static kr_optimizer *make(void)
{
    kr_optimizer_options options;
    kr_optimizer_options_init(&options);
    options.kind = KR_OPTIMIZER_MUON;
    options.ema_decay = 0.5;
    return kr_optimizer_create(ctx, kr_mamba2_params(block), &options);
}

static void step(kr_optimizer *optimizer)
{
    const kr_params *params = kr_mamba2_params(block);
    for (int64_t i = 0; i < kr_params_count(params); i++) {
        kr_tensor *w = kr_params_at(params, i)->tensor;
        kr_tape_reset(tape);
        kr_backward(tape, kr_mean(tape, kr_mul(tape, w, w), KR_ALL_AXES, false));
    }
    kr_optimizer_step(optimizer, 1e-3, 1);
    if (kr_ctx_failed(ctx)) abort();
}

static void write_seeds(const char *folder)
{
    kr_optimizer *optimizer = make();
    for (int n = 0; n < 2; n++) { /* initial, used */
        char seed[512];
        snprintf(seed, sizeof seed, "%s/seed-%d", folder, n);
        kr_tensor_writer *writer = kr_tensor_writer_create(ctx);
        kr_optimizer_snapshot(optimizer, writer);
        IGNORE(kr_tensor_writer_save(writer, seed, KR_CONTAINER_SAFETENSORS));
        kr_tensor_writer_destroy(writer);
        step(optimizer);
    }
    char seed[512];
    snprintf(seed, sizeof seed, "%s/seed-pieces", folder);
    kr_tensor_writer *writer = kr_tensor_writer_create(ctx);
    if (!kr_optimizer_add_steps(optimizer, writer) || !kr_optimizer_add_pieces(optimizer, writer)) abort();
    IGNORE(kr_tensor_writer_save(writer, seed, KR_CONTAINER_SAFETENSORS));
    kr_tensor_writer_destroy(writer);
    kr_optimizer_destroy(optimizer);
    if (kr_ctx_failed(ctx)) abort();
}

/* The same file as that of a rank: what was checked can be taken. */
static void read_pieces(const kr_tensor_file *file)
{
    kr_params_reset(kr_mamba2_params(block)); /* a state of any finite numbers may have taken them to infinity */
    kr_optimizer *optimizer = make();
    const bool is_right = kr_optimizer_restore_pieces(optimizer, 1, &file, false);
    if (is_right == kr_ctx_failed(ctx) || kr_optimizer_steps(optimizer) != 0) abort();
    if (is_right && !kr_optimizer_restore_pieces(optimizer, 1, &file, true)) abort();
    kr_ctx_clear(ctx);
    step(optimizer);
    kr_optimizer_destroy(optimizer);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    ctx = fuzz_ctx();
    tape = kr_tape_create(ctx, KR_TAPE_GRAD);
    kr_mamba2_config config;
    kr_mamba2_config_init(&config);
    config.d_model = config.state_rank = config.per_head_dim = 2;
    config.expand = 1;
    block = kr_mamba2_create(ctx, &config);
    if (getenv("KR_FUZZ_SEEDS")) write_seeds(getenv("KR_FUZZ_SEEDS"));
    return kr_ctx_failed(ctx);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    kr_params_reset(kr_mamba2_params(block));
    kr_optimizer *optimizer = make();
    kr_tensor_file *file = kr_tensor_file_open_memory(ctx, data, size);
    if (file) {
        const bool loaded = kr_optimizer_restore(optimizer, file) == KR_OK;
        if (loaded == kr_ctx_failed(ctx)) abort();
        if (!loaded && kr_optimizer_steps(optimizer) != 0) abort();
        if (loaded && kr_optimizer_steps(optimizer) < 0) abort();
    }
    kr_ctx_clear(ctx);
    step(optimizer);
    if (file) read_pieces(file);
    kr_tensor_file_close(file);
    kr_optimizer_destroy(optimizer);
    return 0;
}
