/* test_pack.c - packed weights: the same bits, a copy that goes when the weight is written, memory that is counted. */
#include "nn/params_impl.h"
#include "tests/harness.h"

static kr_network *make_network(kr_ctx *ctx, kr_dtype dtype)
{
    kr_mamba2_config mamba;
    kr_mamba2_config_init(&mamba);
    mamba.dtype = dtype;
    mamba.d_model = 36;
    mamba.state_rank = 9;
    mamba.per_head_dim = 12;
    mamba.has_proj_bias = true;
    kr_layers_config stack;
    kr_layers_config_init(&stack);
    stack.block = kr_mamba2_block(&mamba);
    stack.n_layers = 2;
    stack.d_intermediate = 300; /* more than one chain of a product */
    kr_network_config config;
    kr_network_config_init(&config);
    config.layers = &stack;
    config.vocab_size = 70;
    config.zero_proj_biases = false;
    kr_ctx_seed(ctx, 5);
    return kr_network_create(ctx, &config);
}

/* Logits of nb rows for one token. */
static kr_tensor *step(kr_tape *t, const kr_network *net, int64_t nb)
{
    int32_t ids[8];
    for (int i = 0; i < 8; i++) ids[i] = 11 * i % 70;
    return kr_network_step(t, net, kr_from_data(t, KR_DTYPE_I32, KR_SHAPE(nb), ids), NULL).y;
}

TEST(packed_weights_give_the_same_bits)
{
    static const kr_dtype types[] = { KR_DTYPE_F32, KR_DTYPE_BF16, KR_DTYPE_F16 };
    for (int i = 0; i < 6; i++) {
        kr_ctx *ctx = kr_test_ctx(i % 2 ? 3 : 1, NULL);
        kr_network *net = make_network(ctx, types[i / 2]);
        kr_tape *t = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
        for (int64_t nb = 1; nb <= 6; nb++) {
            kr_tensor *plain = step(t, net, nb);
            CHECK(kr_params_pack(kr_network_params(net)) == KR_OK, "pack");
            CHECK_SAME_BITS("packed", step(t, net, nb), plain);
            kr_params_unpack(kr_network_params(net));
            CHECK_SAME_BITS("unpacked", step(t, net, nb), plain);
            kr_tape_reset(t);
        }
        CHECK_OK(ctx);
        kr_tape_destroy(t);
        kr_network_destroy(net);
        kr_ctx_destroy(ctx);
    }
}

TEST(packed_copies_are_used_and_go_with_a_write)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    if (kr_test_on_device(ctx)) {
        kr_ctx_destroy(ctx);
        SKIP("weights are packed on the CPU only");
    }
    kr_network *net = make_network(ctx, KR_DTYPE_F32);
    kr_tape *t = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    kr_params_pack(kr_network_params(net));
    kr_tensor *w = kr_params_find(kr_network_params(net), "backbone.layers.1.mixer.out_proj.weight")->tensor;
    kr_tensor *before = step(t, net, 1);
    /* behind the library's back, where the copy is the old weight's */
    float *first = kr_tensor_data(w);
    const float old = *first;
    *first += 1;
    CHECK_SAME_BITS("the copy is what is read", step(t, net, 1), before);
    *first = old;
    kr_param_fill(w, 0.25);
    kr_tensor *filled = step(t, net, 1);
    kr_params_unpack(kr_network_params(net));
    CHECK_SAME_BITS("a written weight is read itself", step(t, net, 1), filled);
    kr_tensor *apart = kr_sub(t, filled, before);
    CHECK(kr_item(kr_sum(t, kr_mul(t, apart, apart), KR_ALL_AXES, false)) > 0, "the write counts");
    CHECK_OK(ctx);
    kr_tape_destroy(t);
    kr_network_destroy(net);
    kr_ctx_destroy(ctx);
}

/* Panels of 64 outputs, the last one filled up. */
static size_t bytes_of_panels(kr_params *params)
{
    size_t bytes = 0;
    for (int64_t i = 0; i < kr_params_count(params); i++) {
        const kr_param_row *row = kr_params_at(params, i);
        if (row->n_segments || strcmp(row->name, "backbone.embedding.weight") == 0)
            bytes += (size_t)((kr_tensor_dim(row->tensor, 0) + 63) / 64 * 64 * kr_tensor_dim(row->tensor, 1)) *
                     kr_dtype_bytes(kr_tensor_dtype(row->tensor));
    }
    return bytes;
}

TEST(packing_is_counted_and_may_fail)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    if (kr_test_on_device(ctx)) {
        kr_ctx_destroy(ctx);
        SKIP("weights are packed on the CPU only");
    }
    kr_network *net = make_network(ctx, KR_DTYPE_F32);
    kr_params *params = kr_network_params(net);
    const size_t idle = kr_ctx_memory(ctx).live_bytes;
    size_t refused = 0;
    for (;; refused++) {
        kr_ctx_fail_allocation(ctx, refused + 1);
        if (kr_params_pack(params) == KR_OK) break;
        CHECK_ERROR_HAS(ctx, KR_ERR_NOMEM, ": pack: no memory for a copy of a weight [");
        kr_params_unpack(params);
        CHECK(kr_ctx_memory(ctx).live_bytes == idle, "nothing is left after failure %zu", refused);
    }
    kr_ctx_fail_allocation(ctx, 0);
    CHECK(refused == 9, "%zu weights: 4 of each layer, and the embedding, which is the head", refused);
    const size_t packed = kr_ctx_memory(ctx).live_bytes;
    const size_t want = bytes_of_panels(params);
    CHECK(packed - idle == want, "%zu bytes, not %zu", packed - idle, want);
    kr_params_pack(params);
    CHECK(kr_ctx_memory(ctx).live_bytes == packed, "packing again takes nothing");
    CHECK_OK(ctx);
    kr_network_destroy(net);

    net = make_network(ctx, KR_DTYPE_BF16);
    const size_t halves = kr_ctx_memory(ctx).live_bytes;
    kr_params_pack(kr_network_params(net));
    CHECK(2 * bytes_of_panels(kr_network_params(net)) == want, "halves are half as large");
    CHECK(2 * (kr_ctx_memory(ctx).live_bytes - halves) == want, "and so are their panels");
    kr_network_destroy(net);

    net = make_network(ctx, KR_DTYPE_F64);
    const size_t plain = kr_ctx_memory(ctx).live_bytes;
    CHECK(kr_params_pack(kr_network_params(net)) == KR_OK && kr_ctx_memory(ctx).live_bytes == plain,
          "f64 is passed over");
    kr_network_destroy(net);
    kr_ctx_destroy(ctx);
}
