/* test_mamba2_stack.c - steps whose layers wait for one another and run as one: what layers by themselves give.
 *
 * Kernels may add up the squares of a norm in another order, which moves a factor by some units of 2^-24, and one rounded
 * operand in some ten thousands by 2^-8, one of hundreds in a sum: BOUND is of the largest element. Where the same kernels
 * run, bits are the same.
 */
#include "tests/decode/decoding.h"

#include <math.h>

static const double BOUND = 4e-3;
enum { VOCAB = 61, STEPS = 2 * KR_DEFERRED_TOKENS + 3, MOST_ROWS = 80 };

typedef struct sizes {
    int64_t rows, d_model, per_head_dim, state_rank, n_groups, layers;
} sizes;

static kr_network *network(kr_ctx *ctx, const sizes *n)
{
    kr_mamba2_config block;
    kr_mamba2_config_init(&block);
    block.d_model = n->d_model;
    block.per_head_dim = n->per_head_dim;
    block.state_rank = n->state_rank;
    block.n_groups = n->n_groups;
    block.norm_per_group = false;
    block.dtype = KR_DTYPE_BF16;
    kr_layers_config layers;
    kr_layers_config_init(&layers);
    layers.block = kr_mamba2_block(&block);
    layers.n_layers = n->layers;
    layers.residual_in_f32 = true;
    kr_network_config config;
    kr_network_config_init(&config);
    config.layers = &layers;
    config.vocab_size = VOCAB;
    config.pad_vocab_size_multiple = 64;
    config.embedding_std = 0.8;
    kr_ctx_seed(ctx, 3);
    kr_network *net = kr_network_create(ctx, &config);
    CHECK_OK(ctx);
    return net;
}

static kr_state *primed(kr_ctx *ctx, const kr_network *net, int64_t rows)
{
    int32_t ids[2 * MOST_ROWS];
    for (int i = 0; i < 2 * rows; i++) ids[i] = i * 37 % VOCAB;
    kr_state *state = kr_state_create(ctx, kr_network_layers(net), rows);
    kr_tape *tape = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    kr_call call;
    kr_call_init(&call);
    call.advance = state;
    kr_network_forward(tape, net, kr_from_data(tape, KR_DTYPE_I32, KR_SHAPE(rows, 2), ids), &call);
    kr_tape_destroy(tape);
    CHECK_OK(ctx);
    return state;
}

/* bound 0: the same bits. */
static void compare(const char *what, const kr_tensor *got, const kr_tensor *want, double bound)
{
    if (bound == 0) CHECK_SAME_BITS(what, got, want);
    else CHECK_TENSORS(what, got, want, bound, 0);
}

static void count_slot(void *user, const char *slot)
{
    *(int *)user += strcmp(slot, "decode_layers") == 0;
}

/* A captured step with deferred updates, of layers that may run as one; and one of another decoder, whose layers run one by
 * one, with updates that are applied at once: its records hold one token at most. */
static void step_both(kr_decoder *joined, kr_decoder *single, kr_state *moved, kr_state *want, int i, double bound)
{
    const int64_t rows = kr_state_batch(want);
    const kr_device_lists *lists = joined->ctx->device->lists;
    int32_t ids[MOST_ROWS];
    for (int r = 0; r < rows; r++) ids[r] = (i * 31 + r * 7) % VOCAB;
    joined->ctx->device->lists = NULL;
    const kr_tensor *logits = kr_decoder_step(single, want, ids);
    kr_decoder_flush(single, want);
    joined->ctx->device->lists = lists;
    compare("logits", kr_decoder_step(joined, moved, ids), logits, bound);
    CHECK_OK(joined->ctx);
}

static void run_both(const char *device, const sizes *n, bool exactly, bool as_one)
{
    const double bound = exactly ? 0 : BOUND * sqrt((double)n->layers / 3);
    kr_ctx *ctx = chat_device(device, KR_PRECISION_BF16);
    if (!ctx) return;
    int count = 0;
    ctx->device->probe = count_slot;
    ctx->device->probe_user = &count;
    kr_network *net = network(ctx, n);
    kr_state *moved = primed(ctx, net, n->rows), *pure = primed(ctx, net, n->rows);
    kr_decoder *steps = kr_decoder_create(net, n->rows), *single = kr_decoder_create(net, n->rows);
    for (int i = 0; i < STEPS && !kr_ctx_failed(ctx); i++) step_both(steps, single, moved, pure, i, bound);
    CHECK((count > 0) == as_one, "%s: layers ran as one %d times", device, count);
    kr_decoder_flush(steps, moved);
    for (int64_t s = 0; s < n->layers; s++) {
        const kr_cache *got = kr_state_cache(moved, s), *want = kr_state_cache(pure, s);
        compare("windows", got->mamba2.conv_bvk, want->mamba2.conv_bvk, bound);
        compare("states", got->mamba2.ssm_bhpr, want->mamba2.ssm_bhpr, bound);
    }
    CHECK_OK(ctx);
    kr_decoder_destroy(steps);
    kr_decoder_destroy(single);
    kr_state_destroy(moved);
    kr_state_destroy(pure);
    kr_network_destroy(net);
    kr_ctx_destroy(ctx);
}

TEST(layers_that_wait_run_as_they_would)
{
    const sizes small = { 11, 8, 4, 4, 1, 3 };
    run_both("mock", &small, true, false);
    run_both("mock:1", &small, true, true);
}

static bool is_hopper(void)
{
    kr_ctx *ctx = chat_device("cuda", KR_PRECISION_BF16);
    const bool is = ctx && strstr(kr_ctx_device(ctx), "H");
    kr_ctx_destroy(ctx);
    return is;
}

/* Products of one stage and of several, tiles that are not full, several groups, heads of several widths, halves that are not
 * equal, more layers than a launch has, whose roundings go astray like steps of a walk: BOUND is of three. */
static const sizes all[] = { { 64, 768, 64, 128, 1, 3 },   { 61, 256, 64, 128, 2, 3 }, { 64, 512, 32, 128, 4, 3 },
                             { 80, 1024, 128, 128, 1, 3 }, { 33, 768, 64, 128, 1, 3 }, { 64, 256, 64, 128, 1, 34 } };

TEST(layers_as_one_kernel)
{
    if (!is_hopper()) SKIP("there is no GPU of sm_90");
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) run_both("cuda", &all[i], false, true);
}

TEST(layers_as_one_kernel_give_the_same_bits)
{
    if (!is_hopper()) SKIP("there is no GPU of sm_90");
    kr_ctx *ctx = chat_device("cuda", KR_PRECISION_BF16);
    const sizes *n = &all[0];
    kr_network *net = network(ctx, n);
    kr_state *one = primed(ctx, net, n->rows), *other = primed(ctx, net, n->rows);
    kr_decoder *steps = kr_decoder_create(net, n->rows), *again = kr_decoder_create(net, n->rows);
    int32_t ids[MOST_ROWS];
    for (int i = 0; i < STEPS; i++) {
        for (int r = 0; r < n->rows; r++) ids[r] = (i * 31 + r * 7) % VOCAB;
        CHECK_SAME_BITS("logits", kr_decoder_step(steps, one, ids), kr_decoder_step(again, other, ids));
    }
    kr_decoder_flush(steps, one);
    kr_decoder_flush(again, other);
    for (int64_t s = 0; s < n->layers; s++)
        CHECK_SAME_BITS("states", kr_state_cache(one, s)->mamba2.ssm_bhpr, kr_state_cache(other, s)->mamba2.ssm_bhpr);
    CHECK_OK(ctx);
    kr_decoder_destroy(steps);
    kr_decoder_destroy(again);
    kr_state_destroy(one);
    kr_state_destroy(other);
    kr_network_destroy(net);
    kr_ctx_destroy(ctx);
}
