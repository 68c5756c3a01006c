/* fuzz_model.c - any bytes as a model in memory: one that computes and is saved as bytes that load again, or an error. An
 * input is the length of the config in two bytes, low first, then the config, then the weights. With KR_FUZZ_SEEDS naming a
 * folder, small models are put there first. */
#define _POSIX_C_SOURCE 200809L
#include "fuzz.h"

#include <krait/model.h>

enum { MOST = 1 << 16 };

static kr_ctx *ctx;
static char config[MOST], weights[MOST];

static void write_seeds(const char *folder)
{
    for (int family = 0; family < 3; family++) {
        kr_model_config *own = kr_model_config_create(ctx);
        own->family = (kr_family)family;
        kr_model_config_set_d_model(own, 4);
        own->layers->n_layers = 1;
        own->mamba1->state_rank = own->mamba2->state_rank = own->mamba3->state_rank = 4;
        own->mamba2->per_head_dim = own->mamba3->per_head_dim = 4;
        own->network->vocab_size = 8;
        kr_model *model = kr_model_create(ctx, own);
        size_t n = 0, bytes = 0;
        if (kr_model_save_memory(model, NULL, config, MOST, &n, weights, MOST, &bytes) != KR_OK) abort();
        char path[512];
        snprintf(path, sizeof path, "%s/family-%d", folder, family);
        FILE *f = fopen(path, "wb");
        if (!f || fputc((int)(n & 255), f) == EOF || fputc((int)(n >> 8), f) == EOF || fwrite(config, 1, n, f) != n ||
            fwrite(weights, 1, bytes, f) != bytes || fclose(f) != 0)
            abort();
        kr_model_destroy(model);
        kr_model_config_destroy(own);
    }
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    ctx = fuzz_ctx();
    if (getenv("KR_FUZZ_SEEDS")) write_seeds(getenv("KR_FUZZ_SEEDS"));
    return kr_ctx_failed(ctx);
}

/* A part in a block of its exact size, for the sanitizer to guard. */
static uint8_t *part(const uint8_t *data, size_t size)
{
    uint8_t *copy = malloc(size ? size : 1);
    if (!copy) abort();
    if (size) memcpy(copy, data, size);
    return copy;
}

/* What was saved loads. */
static void check_saved(const kr_model *model)
{
    size_t n, bytes;
    if (kr_model_save_memory(model, NULL, config, MOST, &n, weights, MOST, &bytes) != KR_OK) {
        if (kr_ctx_status(ctx) != KR_ERR_ARG) abort(); /* larger than these buffers, or another layout's words */
        kr_ctx_clear(ctx);
        return;
    }
    kr_model *again = kr_model_load_memory(ctx, config, n, weights, bytes, NULL);
    if (!again) abort();
    kr_model_destroy(again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2) return 0;
    const size_t asked = data[0] | (size_t)data[1] << 8, n = asked < size - 2 ? asked : size - 2;
    const size_t blocks = kr_ctx_memory(ctx).live_blocks;
    uint8_t *first = part(data + 2, n), *second = part(data + 2 + n, size - 2 - n);
    kr_model *model = kr_model_load_memory(ctx, (const char *)first, n, second, size - 2 - n, NULL);
    if ((model != NULL) == kr_ctx_failed(ctx)) abort();
    free(first);
    free(second);
    if (model) check_saved(model);
    kr_ctx_clear(ctx);
    kr_model_destroy(model);
    if (kr_ctx_memory(ctx).live_blocks != blocks) abort();
    return 0;
}
