/* test_data_network.c - batches go into networks as they are: carried rows with their marks give what the whole rows
 * give at once, and a document's logits do not depend on what it is packed with. */
#include "tests/harness.h"

enum { WORDS = 256 };

static kr_network *small_network(kr_ctx *ctx)
{
    kr_mamba2_config block;
    kr_layers_config layers;
    kr_network_config config;
    kr_mamba2_config_init(&block);
    kr_layers_config_init(&layers);
    kr_network_config_init(&config);
    block.d_model = 16;
    block.state_rank = 8;
    block.per_head_dim = 8;
    layers.block = kr_mamba2_block(&block);
    layers.n_layers = 2;
    config.layers = &layers;
    config.vocab_size = WORDS;
    return kr_network_create(ctx, &config);
}

static kr_source *three_documents(kr_ctx *ctx, kr_tokenizer *tok)
{
    static const char text[] = "a first document, then|the second one|and a third that is the longest of them";
    kr_text_options o;
    kr_text_options_init(&o);
    o.separator = "|";
    return kr_source_string(ctx, text, strlen(text), tok, &o);
}

/* Logits of every position that is no padding, by its row and place there: [2, most, w]. */
static void run(kr_tape *tape, const kr_network *net, kr_source *source, int64_t length, int64_t most, double *logits)
{
    kr_loader_options o;
    kr_loader_options_init(&o);
    o.batch = 2;
    o.length = length;
    o.carry = true;
    o.n_epochs = 1;
    kr_loader *loader = kr_loader_create(source, &o);
    const kr_state *state = NULL;
    for (kr_batch batch; kr_loader_next(tape, loader, &batch) == KR_OK;) {
        kr_call call;
        kr_call_init(&call);
        call.state = state;
        call.reset_bs = batch.reset_bs;
        const kr_network_out out = kr_network_forward(tape, net, batch.ids_bs, &call);
        state = out.state;
        double *y = kr_test_values(out.y);
        for (int64_t b = 0; b < 2; b++)
            for (int64_t s = 0; s < length && batch.step * length + s < most; s++)
                memcpy(logits + (b * most + batch.step * length + s) * WORDS, y + (b * length + s) * WORDS,
                       WORDS * sizeof *y);
        free(y);
    }
    kr_loader_destroy(loader);
}

TEST(carried_batches_equal_whole_rows)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    kr_tape *tape = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    kr_tokenizer *tok = kr_tokenizer_bytes(ctx);
    kr_network *net = small_network(ctx);
    kr_source *source = three_documents(ctx, tok);
    const int64_t most = (kr_source_info_of(source).count - 1) / 2; /* both rows have so many at least */
    const size_t n = (size_t)(2 * most * WORDS);
    double *whole = calloc(n, sizeof *whole), *parts = calloc(n, sizeof *parts);
    run(tape, net, source, most + 1, most, whole);
    run(tape, net, source, 7, most, parts);
    CHECK_OK(ctx);
    CHECK(whole[0] != 0, "no logits");
    CHECK_CLOSE("carried", parts, whole, (int64_t)n, NULL, 2e-5, 1e-3); /* other chunks, other order of f32 sums */
    free(whole);
    free(parts);
    kr_source_destroy(source);
    kr_network_destroy(net);
    kr_tokenizer_destroy(tok);
    kr_tape_destroy(tape);
    kr_ctx_destroy(ctx);
}

TEST(packed_documents_equal_single_ones)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    kr_tape *tape = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    kr_tokenizer *tok = kr_tokenizer_bytes(ctx);
    kr_network *net = small_network(ctx);
    kr_source *source = three_documents(ctx, tok);
    kr_loader_options o;
    kr_loader_options_init(&o);
    o.batch = 1;
    o.shuffle = false;
    o.length = kr_source_info_of(source).count - 1;
    kr_loader *packed = kr_loader_create(source, &o);
    o.pack = false;
    o.length = 0;
    kr_loader *single = kr_loader_create(source, &o);
    kr_batch batch;
    kr_call call;
    kr_call_init(&call);
    CHECK(kr_loader_next(tape, packed, &batch) == KR_OK && batch.reset_bs && !batch.mask_bs, "no packed batch");
    call.reset_bs = batch.reset_bs;
    double *all = kr_test_values(kr_network_forward(tape, net, batch.ids_bs, &call).y);
    const int64_t starts[3] = { 0, 22, 36 };
    for (int i = 0; i < 3; i++) {
        CHECK(kr_loader_next(tape, single, &batch) == KR_OK && !batch.reset_bs && !batch.mask_bs, "no single batch");
        double *one = kr_test_values(kr_network_forward(tape, net, batch.ids_bs, NULL).y);
        CHECK_CLOSE("document", one, all + starts[i] * WORDS, kr_tensor_count(batch.ids_bs) * WORDS, NULL, 2e-5, 1e-3);
        free(one);
    }
    CHECK_OK(ctx);
    free(all);
    kr_loader_destroy(packed);
    kr_loader_destroy(single);
    kr_source_destroy(source);
    kr_network_destroy(net);
    kr_tokenizer_destroy(tok);
    kr_tape_destroy(tape);
    kr_ctx_destroy(ctx);
}
