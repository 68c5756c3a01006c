/* fuzz_config.c - any bytes as config.json: a config that comes back from each layout that has words for it, or an error.
 * What came back is written as the same text, and what it would take can be told. */
#define _POSIX_C_SOURCE 200809L
#include "fuzz.h"

#include <krait/model.h>

enum { MOST = 1 << 20 };

static void check_written(kr_ctx *ctx, const kr_model_config *config, kr_layout layout)
{
    static char text[MOST], again[MOST];
    size_t length = 0, second = 0;
    if (kr_model_config_format(ctx, config, layout, text, MOST, &length) != KR_OK) {
        if (layout == config->layout) abort(); /* its own layout has words for all that was read from it */
        kr_ctx_clear(ctx);
        return;
    }
    if (length >= MOST || strlen(text) != length) abort();
    kr_model_config *back = kr_model_config_parse(ctx, text, length);
    if (!back || kr_model_config_format(ctx, back, layout, again, MOST, &second) != KR_OK) abort();
    /* how initial parameters are sampled is not carried from one layout to the other */
    if (layout == config->layout && (length != second || memcmp(text, again, length) != 0)) abort();
    kr_model_config_destroy(back);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    kr_ctx *ctx = fuzz_ctx();
    const size_t blocks = kr_ctx_memory(ctx).live_blocks;
    char *text = malloc(size ? size : 1); /* of its exact size, for the sanitizer to guard */
    if (!text) return 0;
    memcpy(text, data, size);
    kr_model_config *config = kr_model_config_parse(ctx, text, size);
    free(text);
    if ((config != NULL) == kr_ctx_failed(ctx)) abort();
    if (config) {
        check_written(ctx, config, KR_LAYOUT_OFFICIAL);
        check_written(ctx, config, KR_LAYOUT_HF);
        kr_model_size measured;
        if (config->layers->n_layers <= 64 && config->layers->n_virtual <= 64) kr_model_measure(ctx, config, &measured);
    }
    kr_ctx_clear(ctx);
    kr_model_config_destroy(config);
    if (kr_ctx_memory(ctx).live_blocks != blocks) abort();
    return 0;
}
