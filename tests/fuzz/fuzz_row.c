/* fuzz_row.c - any bytes as a snapshot of a row, as a stream and as a file: a row that continues, or an error after which nothing
 * has changed. With KR_FUZZ_SEEDS naming a folder, valid files are put there first: no mutation would find the hashes of a
 * network.
 */
#define _POSIX_C_SOURCE 200809L
#include "fuzz.h"

#include <krait/batch.h>

static kr_ctx *ctx;
static kr_network *net;
static kr_tokenizer *tok;
static kr_row_batch *batch;
static kr_row *row;

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
    config.vocab_size = 256;
    net = kr_network_create(ctx, &config);
}

static void take_steps(int most)
{
    const kr_row_event *events;
    int64_t count;
    for (int i = 0; i < most && kr_row_batch_step(batch, &events, &count) == KR_OK; i++) continue;
}

static void generate(int most)
{
    static const char *const stops[] = { "abc", "\xc3\xa9" };
    kr_sampler_options sampler;
    kr_sampler_options_init(&sampler);
    sampler.repetition_penalty = 1.1;
    sampler.frequency_penalty = 0.1;
    kr_row_options options;
    kr_row_options_init(&options);
    options.sampler = &sampler;
    options.max_tokens = most;
    options.n_stops = 2;
    options.stops = stops;
    kr_row_generate(row, &options);
}

/* Nothing fed, a prompt fed, in the middle, at the end. */
static void write_seeds(const char *folder)
{
    for (int n = 0; n < 4; n++) {
        char seed[512];
        snprintf(seed, sizeof seed, "%s/seed-%d", folder, n);
        row = kr_row_create(batch);
        if (n > 0) kr_row_feed_text(row, "hello", 5);
        if (n > 1) generate(6);
        take_steps(n == 1 ? 0 : n == 2 ? 3 : 100);
        IGNORE(kr_row_save(row, seed));
        kr_row_destroy(row);
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
    batch = kr_row_batch_create(ctx, net, tok, NULL);
    if (getenv("KR_FUZZ_SEEDS")) write_seeds(getenv("KR_FUZZ_SEEDS"));
    row = kr_row_create(batch);
    return kr_ctx_failed(ctx);
}

typedef struct input {
    const uint8_t *data;
    size_t size, at;
} input;

static kr_status next(void *user, void *data, size_t capacity, size_t *bytes)
{
    input *in = user;
    const size_t left = in->size - in->at, most = 1 + in->size / 3;
    if (left == 0) return KR_END;
    *bytes = left < most ? left : most;
    if (*bytes > capacity) *bytes = capacity;
    memcpy(data, in->data + in->at, *bytes);
    in->at += *bytes;
    return KR_OK;
}

/* The row continues; values that a file may hold may make its logits overflow, which is an error of the row, and nothing else
 * may go wrong. */
static void go_on(void)
{
    if (kr_row_info_of(row).tokens > 0) generate(3);
    take_steps(8);
    if (kr_row_info_of(row).status == KR_OK) {
        kr_row_cancel(row);
        kr_row_feed_text(row, "on", 2);
        generate(2);
        take_steps(8);
    }
    if (kr_ctx_failed(ctx) && kr_ctx_status(ctx) != KR_ERR_STATE) abort();
    kr_ctx_clear(ctx);
    kr_row_destroy(row);
    row = kr_row_create(batch);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    input in = { data, size, 0 };
    const size_t blocks = kr_ctx_memory(ctx).live_blocks;
    kr_snapshot *snapshot = kr_snapshot_read(batch, next, &in);
    const bool is_read = snapshot != NULL;
    if (is_read && kr_row_restore(row, snapshot) != KR_OK) abort();
    kr_snapshot_destroy(snapshot);
    if (is_read) go_on();
    else if (kr_ctx_memory(ctx).live_blocks != blocks || kr_row_info_of(row).tokens != 0) abort();
    kr_ctx_clear(ctx);
    const bool is_loaded = kr_row_load(row, fuzz_file(data, size)) == KR_OK;
    if (is_loaded != is_read) abort();
    kr_ctx_clear(ctx);
    if (is_loaded) go_on();
    return 0;
}
