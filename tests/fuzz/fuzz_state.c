/* fuzz_state.c - any bytes as a saved state: a state that its network can go on from, or an error; for a stack, and for a
 * custom network of two families. With KR_FUZZ_SEEDS
 * naming a folder, valid states are put there first: no mutation would find the hashes of a network. */
#define _POSIX_C_SOURCE 200809L
#include "fuzz.h"

#include <krait/network.h>

static kr_ctx *ctx;
static kr_tape *tape;
static kr_network *net, *hand;
static kr_block *parts[2];

static void make_network(void)
{
    kr_mamba3_config block;
    kr_mamba3_config_init(&block);
    block.d_model = 4;
    block.state_rank = 4;
    block.per_head_dim = 4;
    kr_layers_config layers;
    kr_layers_config_init(&layers);
    layers.block = kr_mamba3_block(&block);
    layers.n_layers = 1;
    layers.n_virtual = 2;
    const kr_class_token latent = { .kind = KR_CLASS_TOKEN_CUSTOM, .at = 3 };
    layers.n_latents = 1;
    layers.latents = &latent;
    kr_network_config config;
    kr_network_config_init(&config);
    config.layers = &layers;
    config.vocab_size = 8;
    net = kr_network_create(ctx, &config);
}

static void make_by_hand(void)
{
    kr_mamba2_config first;
    kr_mamba3_config second;
    kr_mamba2_config_init(&first);
    kr_mamba3_config_init(&second);
    first.d_model = second.d_model = 4;
    first.state_rank = second.state_rank = 4;
    first.per_head_dim = second.per_head_dim = 4;
    parts[0] = (kr_block *)kr_mamba2_create(ctx, &first);
    parts[1] = (kr_block *)kr_mamba3_create(ctx, &second);
    const kr_network_part list[] = { { .block = parts[0] }, { .block = parts[1] } };
    kr_custom_network custom;
    kr_custom_network_init(&custom);
    custom.params = kr_block_params(parts[1]);
    custom.n_parts = 2;
    custom.parts = list;
    custom.input_size = custom.width = 4;
    hand = kr_network_custom(ctx, &custom);
}

/* A token through both blocks; false after an error. */
static bool step_by_hand(kr_state *state)
{
    kr_tensor *x = kr_zeros(tape, KR_DTYPE_F32, KR_SHAPE(kr_state_batch(state), 4));
    for (int64_t i = 0; i < 2; i++) {
        const kr_block_out out = kr_block_step(tape, parts[i], x, kr_state_cache(state, i));
        x = out.y;
        kr_state_set_cache(state, i, &out.cache);
    }
    return x != NULL;
}

/* One token onwards; the new state, on the tape. */
static kr_state *step(const kr_state *state)
{
    kr_call call;
    kr_call_init(&call);
    call.state = state;
    const int32_t ids[4] = { 1, 2, 3, 4 };
    return kr_network_step(tape, net, kr_from_data(tape, KR_DTYPE_I32, KR_SHAPE(kr_state_batch(state)), ids), &call)
        .state;
}

static void write_seeds(const char *folder)
{
    for (int n = 0; n < 3; n++) { /* initial, used, announced and used */
        char seed[512];
        snprintf(seed, sizeof seed, "%s/seed-%d", folder, n);
        kr_state *state = kr_state_create(ctx, kr_network_layers(net), 1 + n);
        if (n == 2) kr_state_announce(state, 5);
        if (n > 0) kr_state_copy(state, step(state));
        IGNORE(kr_state_save(state, net, seed));
        kr_state_destroy(state);
        kr_tape_reset(tape);
    }
    for (int n = 0; n < 2; n++) {
        char seed[512];
        snprintf(seed, sizeof seed, "%s/hand-%d", folder, n);
        kr_state *state = kr_network_state(hand, 1 + n);
        if (n == 1) step_by_hand(state);
        IGNORE(kr_state_save(state, hand, seed));
        kr_state_destroy(state);
        kr_tape_reset(tape);
    }
    if (kr_ctx_failed(ctx)) abort();
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    ctx = fuzz_ctx();
    tape = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    make_network();
    make_by_hand();
    if (getenv("KR_FUZZ_SEEDS")) write_seeds(getenv("KR_FUZZ_SEEDS"));
    return kr_ctx_failed(ctx);
}

/* path NULL: from memory */
static void load(const kr_network *own, const char *path, const uint8_t *data, size_t size)
{
    const size_t blocks = kr_ctx_memory(ctx).live_blocks;
    kr_state *state = path ? kr_state_load(ctx, own, path) : kr_state_load_memory(ctx, own, data, size);
    if ((state != NULL) == kr_ctx_failed(ctx)) abort();
    if (state && kr_state_batch(state) <= 4) {
        const bool ran = own == net ? step(state) != NULL : step_by_hand(state);
        if (!ran && kr_ctx_status(ctx) != KR_ERR_DTYPE) abort();
    }
    kr_ctx_clear(ctx);
    kr_tape_reset(tape);
    kr_state_destroy(state);
    if (!state && kr_ctx_memory(ctx).live_blocks != blocks) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *path = fuzz_file(data, size);
    load(net, path, NULL, 0);
    load(hand, path, NULL, 0);
    uint8_t *copy = malloc(size ? size : 1); /* of its exact size, for the sanitizer to guard */
    if (!copy) return 0;
    memcpy(copy, data, size);
    load(net, NULL, copy, size);
    free(copy);
    return 0;
}
