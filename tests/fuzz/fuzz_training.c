/* fuzz_training.c - any bytes as a checkpoint's file: a run that continues, or an error that leaves it as it was. The first
 * byte says which: '{' is the beginning of checkpoint.json, others come before training.safetensors, whose fingerprint is
 * then made right. With KR_FUZZ_SEEDS naming a folder, valid files are put there first. */
#define _POSIX_C_SOURCE 200809L
#include "fuzz.h"

#include "base/hash.h"

#include <inttypes.h>
#include <krait/block.h>
#include <krait/ops.h>
#include <krait/train.h>
#include <sys/stat.h>
#include <unistd.h>

static kr_ctx *ctx;
static kr_mamba2 *block;
static kr_loader *loader;
static char folder[64], step_folder[128];
static char *manifest, *training; /* as they were saved */
static size_t manifest_bytes, training_bytes;

static const char *path_of(const char *name)
{
    static char path[256];
    snprintf(path, sizeof path, "%s/%s", step_folder, name);
    return path;
}

static void write_file(const char *path, const void *data, size_t bytes)
{
    remove(path);
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(data, 1, bytes, f) != bytes || fclose(f) != 0) abort();
}

static char *read_file(const char *path, size_t *bytes)
{
    FILE *f = fopen(path, "rb");
    char *data = malloc(1 << 16);
    if (!f || !data) abort();
    *bytes = fread(data, 1, 1 << 16, f);
    fclose(f);
    return data;
}

/* All parameters' squares. */
static kr_loss_out squares(void *user, kr_tape *tape, const kr_batch *batch, const kr_state *state)
{
    (void)user;
    (void)state;
    kr_loss_out out = { .scores = { .scored = batch->n_scored } };
    const kr_params *params = kr_mamba2_params(block);
    for (int64_t i = 0; i < kr_params_count(params); i++) {
        kr_tensor *w = kr_params_at(params, i)->tensor;
        kr_tensor *mean = kr_mean(tape, kr_mul(tape, w, w), KR_ALL_AXES, false);
        out.loss = out.loss ? kr_add(tape, out.loss, mean) : mean;
    }
    return out;
}

static kr_trainer *make(void)
{
    const kr_loader_position begin = { .count = kr_loader_snapshot(loader).count,
                                       .steps_per_epoch = kr_loader_steps_per_epoch(loader) };
    IGNORE(kr_loader_restore(loader, &begin));
    kr_params_reset(kr_mamba2_params(block));
    kr_train_options o;
    kr_train_options_init(&o);
    o.steps = INT64_C(1) << 60;
    kr_optimizer_options descent;
    kr_optimizer_options_init(&descent);
    descent.kind = KR_OPTIMIZER_SGD;
    descent.momentum = 0;
    descent.clip_norm = 1;
    o.optimizer = &descent;
    o.params = kr_mamba2_params(block);
    o.loss_fn = squares;
    o.folder = folder;
    o.keep_last = 0;
    return kr_trainer_create(ctx, NULL, loader, &o);
}

static void save_one(void)
{
    kr_trainer *trainer = make();
    if (kr_trainer_step(trainer) != KR_OK || kr_trainer_save(trainer) != KR_OK) abort();
    kr_trainer_destroy(trainer);
    manifest = read_file(path_of("checkpoint.json"), &manifest_bytes);
    training = read_file(path_of("training.safetensors"), &training_bytes);
    if (!getenv("KR_FUZZ_SEEDS")) return;
    char seed[512];
    snprintf(seed, sizeof seed, "%s/seed-0", getenv("KR_FUZZ_SEEDS"));
    write_file(seed, manifest, manifest_bytes);
    snprintf(seed, sizeof seed, "%s/seed-1", getenv("KR_FUZZ_SEEDS"));
    memmove(training + 1, training, training_bytes);
    training[0] = 't';
    write_file(seed, training, training_bytes + 1);
    memmove(training, training + 1, training_bytes);
}

static void leave(void)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    if (folder[0] && system(command) != 0) fprintf(stderr, "%s is left\n", folder);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    ctx = fuzz_ctx();
    kr_mamba2_config config;
    kr_mamba2_config_init(&config);
    config.d_model = config.state_rank = config.per_head_dim = 2;
    config.expand = 1;
    block = kr_mamba2_create(ctx, &config);
    kr_tokenizer *tok = kr_tokenizer_bytes(ctx);
    kr_source *source = kr_source_string(ctx, "a few bytes to read", 19, tok, NULL);
    kr_tokenizer_destroy(tok);
    kr_loader_options reading;
    kr_loader_options_init(&reading);
    reading.length = 4;
    reading.batch = 2;
    loader = kr_loader_create(source, &reading);
    if (!mkdtemp(fuzz_template(folder))) return 1;
    atexit(leave);
    snprintf(step_folder, sizeof step_folder, "%s/checkpoints/step-00000001", folder);
    save_one();
    return kr_ctx_failed(ctx);
}

/* The manifest's words on training.safetensors, made right for other bytes. */
static void write_manifest(const uint8_t *data, size_t size)
{
    char text[1024], file[256];
    size_t model_bytes;
    snprintf(file, sizeof file, "%s", path_of("model.safetensors"));
    char *model = read_file(file, &model_bytes);
    const int length = snprintf(text, sizeof text,
                                "{\"version\": 1, \"model.safetensors\": {\"bytes\": %zu, \"hash\": \"%016" PRIx64
                                "\"}, \"training.safetensors\": {\"bytes\": %zu, \"hash\": \"%016" PRIx64 "\"}}",
                                model_bytes, kr_hash_bytes(KR_HASH_BEGIN, model, model_bytes), size,
                                kr_hash_bytes(KR_HASH_BEGIN, data, size));
    free(model);
    write_file(path_of("checkpoint.json"), text, (size_t)length);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const bool is_manifest = size > 0 && data[0] == '{';
    if (is_manifest) {
        write_file(path_of("training.safetensors"), training, training_bytes);
        write_file(path_of("checkpoint.json"), data, size);
    } else {
        const size_t skip = size > 0;
        write_file(path_of("training.safetensors"), data + skip, size - skip);
        write_manifest(data + skip, size - skip);
    }
    kr_trainer *trainer = make();
    const bool resumed = kr_trainer_resume(trainer) == KR_OK;
    if (resumed == kr_ctx_failed(ctx)) abort();
    const kr_train_progress p = kr_trainer_progress(trainer);
    if (!resumed && (p.step != 0 || kr_loader_step(loader) != 0 || kr_loader_epoch(loader) != 0)) abort();
    if (resumed && (p.step < 0 || p.best_step > p.step || p.eval_step > p.step)) abort();
    kr_ctx_clear(ctx);
    if (resumed && !p.is_done) IGNORE(kr_trainer_step(trainer));
    kr_ctx_clear(ctx);
    kr_trainer_destroy(trainer);
    return 0;
}
