/* fuzz_generation.c - any bytes as a saved generation: one that continues, or an error after which nothing has changed.
 * With KR_FUZZ_SEEDS naming a folder, valid files are put there first: no mutation would find the hashes of a network. */
#define _POSIX_C_SOURCE 200809L
#include "fuzz.h"

#include <krait/generate.h>

static kr_ctx *ctx;
static kr_network *net;
static kr_tokenizer *tok;
static kr_generation *one, *two; /* of one row and of two */

static void make_network(void)
{
    kr_mamba2_config block;
    kr_mamba2_config_init(&block);
    block.d_model = 4;
    block.state_rank = 4;
    block.per_head_dim = 4;
    kr_layers_config layers;
    kr_layers_config_init(&layers);
    layers.block = kr_mamba2_block(&block);
    layers.n_layers = 1;
    kr_network_config config;
    kr_network_config_init(&config);
    config.layers = &layers;
    config.vocab_size = 128;
    net = kr_network_create(ctx, &config);
}

static kr_generation *make_generation(int64_t n_samples)
{
    static const char *const stops[] = { "abc", "\xc3\xa9" };
    static const int32_t stop_ids[] = { 7 };
    kr_generate_options options;
    kr_generate_options_init(&options);
    kr_sampler_options sampler;
    kr_sampler_options_init(&sampler);
    options.sampler = &sampler;
    options.n_samples = n_samples;
    options.max_tokens = 6;
    options.prefill_chunk = 3;
    options.n_stops = 2;
    options.stops = stops;
    options.n_stop_ids = 1;
    options.stop_ids = stop_ids;
    sampler.repetition_penalty = 1.1;
    sampler.frequency_penalty = 0.1;
    return kr_generation_create(ctx, net, tok, &options);
}

/* Nothing read, a prompt read, in the middle, at the end: of one row and of two. */
static void write_seeds(const char *folder)
{
    for (int n = 0; n < 8; n++) {
        char seed[512];
        snprintf(seed, sizeof seed, "%s/seed-%d", folder, n);
        kr_generation *g = make_generation(1 + n / 4);
        if (n % 4 > 0) kr_generation_feed_text(g, "hello", 5);
        for (int i = 0; i < (n % 4 == 2 ? 3 : n % 4 == 3 ? 9 : 0); i++) IGNORE(kr_generation_next(g));
        IGNORE(kr_generation_save(g, seed));
        kr_generation_destroy(g);
    }
    if (kr_ctx_failed(ctx)) abort();
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    ctx = fuzz_ctx();
    tok = kr_tokenizer_bytes(ctx);
    make_network();
    one = make_generation(1);
    two = make_generation(2);
    if (getenv("KR_FUZZ_SEEDS")) write_seeds(getenv("KR_FUZZ_SEEDS"));
    return kr_ctx_failed(ctx);
}

/* It continues and is fed; values that a file may hold may make its logits overflow, nothing else may go wrong. */
static void go_on(kr_generation *g)
{
    for (int i = 0; i < 3; i++) IGNORE(kr_generation_next(g));
    if (!kr_ctx_failed(ctx)) kr_generation_feed_text(g, "on", 2);
    for (int i = 0; i < 2; i++) IGNORE(kr_generation_next(g));
    const kr_status status = kr_ctx_status(ctx);
    if (status != KR_OK && status != KR_ERR_NUMERIC && status != KR_ERR_DTYPE && status != KR_ERR_STATE) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *path = fuzz_file(data, size);
    kr_generation *const both[] = { one, two };
    for (int i = 0; i < 2; i++) {
        const size_t blocks = kr_ctx_memory(ctx).live_blocks;
        const int64_t tokens = kr_generation_tokens(both[i]);
        const kr_status status =
            i == 0 ? kr_generation_load(both[i], path) : kr_generation_load_memory(both[i], data, size);
        if (status == KR_OK) {
            go_on(both[i]);
        } else if (kr_ctx_memory(ctx).live_blocks != blocks || kr_generation_tokens(both[i]) != tokens) {
            abort();
        }
        kr_ctx_clear(ctx);
    }
    return 0;
}
