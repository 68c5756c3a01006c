/* test_saved_generations.c - generations saved to memory and loaded from it: the bytes of the files, and what continues
 * from them. */
#define _POSIX_C_SOURCE 200809L
#include "tests/saved_image.h"
#include "tests/generate/chat.h"

enum { STEPS = 6 };

static kr_ctx *ctx;
static kr_network *net;
static kr_tokenizer *tok;

static void begin(void)
{
    begin_folder();
    ctx = kr_test_ctx(1, NULL);
    net = chat_network(ctx, KR_FAMILY_MAMBA2, KR_DTYPE_F32, 0, NULL);
    tok = kr_tokenizer_bytes(ctx);
}

static void end(void)
{
    CHECK_OK(ctx);
    kr_tokenizer_destroy(tok);
    kr_network_destroy(net);
    kr_ctx_destroy(ctx);
    end_folder();
}

static kr_generation *make_generation(void)
{
    kr_generate_options o = chat_options();
    o.n_samples = 2;
    o.max_tokens = 20;
    chat_sampler.temperature = 1.2;
    chat_sampler.seed = 5;
    return kr_generation_create(ctx, net, tok, &o);
}

/* The ids of both rows of the next steps. */
static void go_on(kr_generation *g, int32_t *ids)
{
    for (int i = 0; i < STEPS; i++) {
        IGNORE(kr_generation_next(g));
        for (int row = 0; row < 2; row++) *ids++ = kr_generation_row(g, row)->sample.id;
    }
    CHECK_OK(ctx);
}

TEST(generations_are_saved_to_memory_as_to_a_file)
{
    begin();
    kr_generation *g = make_generation(), *other = make_generation();
    int32_t want[2 * STEPS], got[2 * STEPS];
    kr_generation_feed_text(g, "Once upon", 9);
    go_on(g, want);
    file_image image;
    CHECK(kr_generation_save(g, in_folder("g")) == KR_OK, "%s", kr_ctx_message(ctx));
    SAVE_IMAGE(ctx, image, kr_generation_save_memory(g, out, bytes, &needed));
    check_image("generation", &image, in_folder("g"));
    go_on(g, want);
    CHECK(kr_generation_load_memory(other, image.data, image.bytes) == KR_OK, "%s", kr_ctx_message(ctx));
    go_on(other, got);
    CHECK(memcmp(got, want, sizeof got) == 0, "it continues with other tokens");

    CHECK(kr_generation_load_memory(other, image.data, image.bytes - 1) == KR_ERR_FORMAT, "cut");
    CHECK_ERROR_HAS(ctx, KR_ERR_FORMAT, "generation.load: tensor_file: ");
    CHECK(kr_generation_load_memory(other, NULL, 1) == KR_ERR_ARG, "NULL");
    CHECK_ERROR(ctx, KR_ERR_ARG, "generation.load: tensor_file: data is NULL");
    CHECK(kr_generation_save_memory(other, NULL, 0, NULL) == KR_ERR_ARG, "NULL");
    CHECK_ERROR(ctx, KR_ERR_ARG, "generation.save: needed is NULL");
    go_on(g, want);
    go_on(other, got);
    CHECK(memcmp(got, want, sizeof got) == 0, "an error has changed it");
    free(image.data);
    kr_generation_destroy(g);
    kr_generation_destroy(other);
    end();
}
