/* test_text_model.c - model folders opened with their tokenizers: BOS, EOS, byte models, errors, failing memory. */
#define _POSIX_C_SOURCE 200809L
#include "tests/temp_folder.h"

#include <krait/generate.h>

static kr_ctx *ctx;
static char model_path[300];

/* A model of one small layer, in model_path. eos and bos -1: its files name none. */
static void make_model(int64_t vocab, int64_t eos, int64_t bos)
{
    kr_model_config *config = kr_model_config_create(ctx);
    kr_model_config_set_d_model(config, 8);
    config->layers->n_layers = 1;
    config->mamba2->state_rank = 4;
    config->mamba2->per_head_dim = 4;
    config->network->vocab_size = vocab;
    config->bos = bos;
    if (eos >= 0) {
        config->n_eos = 1;
        config->eos[0] = eos;
    }
    kr_model *model = kr_model_create(ctx, config);
    snprintf(model_path, sizeof model_path, "%s", in_folder("model"));
    CHECK(kr_model_save(model, model_path, NULL) == KR_OK, "%s", kr_ctx_message(ctx));
    kr_model_destroy(model);
    kr_model_config_destroy(config);
}

/* The 256 bytes, <s> (256), which begins each text, and <|endoftext|> (257). */
static void put_tokenizer(void)
{
    static const char flags[] = "\"single_word\": false, \"lstrip\": false, \"rstrip\": false, \"normalized\": false, "
                                "\"special\": true";
    static char json[8192];
    size_t n =
        (size_t)snprintf(json, sizeof json,
                         "{\"version\": \"1.0\", \"truncation\": null, \"padding\": null, \"added_tokens\": ["
                         "{\"id\": 256, \"content\": \"<s>\", %s}, {\"id\": 257, \"content\": \"<|endoftext|>\", %s}], "
                         "\"normalizer\": null, \"pre_tokenizer\": {\"type\": \"ByteLevel\", "
                         "\"add_prefix_space\": false, \"use_regex\": false}, "
                         "\"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": "
                         "{\"id\": \"<s>\", \"type_id\": 0}}, {\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}], "
                         "\"pair\": [], \"special_tokens\": {\"<s>\": {\"id\": \"<s>\", \"ids\": [256], "
                         "\"tokens\": [\"<s>\"]}}}, \"decoder\": {\"type\": \"ByteLevel\"}, "
                         "\"model\": {\"type\": \"BPE\", \"vocab\": {",
                         flags, flags);
    for (int byte = 0, others = 0; byte < 256; byte++) { /* the letters of byte-level vocabularies */
        const bool is_own = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
        n += (size_t)snprintf(json + n, sizeof json - n, "%s\"\\u%04x\": %d", byte ? ", " : "",
                              (unsigned)(is_own ? byte : 256 + others), byte);
        others += !is_own;
    }
    n += (size_t)snprintf(json + n, sizeof json - n, "}, \"merges\": []}}");
    char path[400];
    snprintf(path, sizeof path, "%s/tokenizer.json", model_path);
    write_image(path, json, n);
}

static void begin(void)
{
    ctx = kr_test_ctx(1, NULL);
    begin_folder();
}

static void end(void)
{
    static const char *const names[] = { "config.json", "generation_config.json", "model.safetensors",
                                         "tokenizer.json" };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[400];
        snprintf(path, sizeof path, "%s/%s", model_path, names[i]);
        remove(path);
    }
    CHECK(rmdir(model_path) == 0, "%s is left", model_path);
    CHECK_OK(ctx);
    end_folder();
    kr_ctx_destroy(ctx);
}

TEST(text_model_with_a_tokenizer_in_its_folder)
{
    begin();
    make_model(300, -1, -1);
    put_tokenizer();
    kr_text_model *lm = kr_text_model_open(ctx, model_path, NULL);
    CHECK_OK(ctx);
    int n_bos, n_eos;
    const int32_t *bos = kr_text_model_bos(lm, &n_bos), *eos = kr_text_model_eos(lm, &n_eos);
    CHECK(kr_tokenizer_size(kr_text_model_tokenizer(lm)) == 258 && kr_text_model_model(lm), "another tokenizer");
    CHECK(n_bos == 1 && bos[0] == 256, "%d BOS ids", n_bos);
    CHECK(n_eos == 1 && eos[0] == 257 && kr_text_model_start(lm) == 257, "%d EOS ids", n_eos);
    kr_generate_options options;
    kr_generate_options_init(&options);
    kr_text_model_set_stops(lm, &options);
    CHECK(options.n_stop_ids == 1 && options.stop_ids[0] == 257 && options.max_tokens == 256, "other stops");
    const kr_network *net = kr_model_network(kr_text_model_model(lm));
    kr_generation *g = kr_generation_create(ctx, net, kr_text_model_tokenizer(lm), &options);
    CHECK(kr_text_model_feed(lm, g, "ab", 2) == KR_OK && kr_generation_prompt_tokens(g) == 3, "<s> a b are three");
    kr_generation_destroy(g);
    g = kr_generation_create(ctx, net, kr_text_model_tokenizer(lm), &options);
    CHECK(kr_text_model_feed(lm, g, "", 0) == KR_OK && kr_generation_prompt_tokens(g) == 1, "an empty prompt is <s>");
    kr_generation_destroy(g);
    kr_text_model_destroy(lm);
    end();
}

TEST(text_model_takes_eos_and_bos_of_the_files)
{
    begin();
    make_model(258, 257, 256);
    kr_text_model *lm = kr_text_model_open(ctx, model_path, NULL); /* no tokenizer.json: bytes */
    int n_bos, n_eos;
    const int32_t *eos = kr_text_model_eos(lm, &n_eos);
    kr_text_model_bos(lm, &n_bos);
    CHECK(kr_tokenizer_size(kr_text_model_tokenizer(lm)) == 256 && n_bos == 0, "no bytes");
    CHECK(n_eos == 1 && eos[0] == 257 && kr_text_model_start(lm) == 256, "start %d", (int)kr_text_model_start(lm));
    kr_generation *g =
        kr_generation_create(ctx, kr_model_network(kr_text_model_model(lm)), kr_text_model_tokenizer(lm), NULL);
    CHECK(kr_text_model_feed(lm, g, "", 0) == KR_OK && kr_generation_prompt_tokens(g) == 1,
          "an empty prompt is the BOS");
    kr_generation_destroy(g);
    kr_text_model_destroy(lm);
    end();
}

TEST(text_model_without_special_tokens)
{
    begin();
    make_model(256, -1, -1);
    kr_text_model *lm = kr_text_model_open(ctx, model_path, NULL);
    int n_eos;
    kr_text_model_eos(lm, &n_eos);
    CHECK(n_eos == 0 && kr_text_model_start(lm) == -1, "%d EOS ids", n_eos);
    kr_generation *g =
        kr_generation_create(ctx, kr_model_network(kr_text_model_model(lm)), kr_text_model_tokenizer(lm), NULL);
    CHECK(kr_text_model_feed(lm, g, "", 0) == KR_ERR_ARG, "an empty prompt");
    CHECK_ERROR(ctx, KR_ERR_ARG, "text_model: the prompt is empty, and the model has no BOS or EOS token");
    kr_generation_destroy(g);
    kr_text_model_destroy(lm);
    end();
}

TEST(text_model_errors)
{
    begin();
    make_model(300, -1, -1);
    CHECK(!kr_text_model_open(ctx, model_path, NULL), "no tokenizer");
    CHECK_ERROR_HAS(ctx, KR_ERR_ARG,
                    "has no tokenizer.json, and its vocabulary of 300 tokens is not that of bytes; put tokenizer.json "
                    "into the folder or "
                    "name it: the one that the model was trained with");
    kr_text_model *lm = kr_text_model_open(ctx, model_path, &(kr_text_model_options){ .skip_tokenizer = true });
    CHECK(lm && !kr_text_model_tokenizer(lm) && kr_text_model_start(lm) == -1, "%s", kr_ctx_message(ctx));
    kr_text_model_destroy(lm);
    lm = kr_text_model_open(ctx, model_path, &(kr_text_model_options){ .skip_tokenizer = true, .tokenizer = "bytes" });
    CHECK(lm && kr_tokenizer_size(kr_text_model_tokenizer(lm)) == 256, "%s", kr_ctx_message(ctx));
    kr_text_model_destroy(lm);
    CHECK(!kr_text_model_open(ctx, model_path, &(kr_text_model_options){ .reserved = { 0, 1 } }), "a later field");
    CHECK_ERROR_HAS(ctx, KR_ERR_UNSUPPORTED, "kr_text_model_options");
    CHECK(!kr_text_model_open(ctx, in_folder("nothing"), NULL), "no folder");
    CHECK_ERROR_HAS(ctx, KR_ERR_IO, "nothing");
    CHECK(!kr_text_model_open(ctx, NULL, NULL), "no path");
    CHECK_ERROR_HAS(ctx, KR_ERR_ARG, "the folder's path is NULL or empty");
    make_model(100, -1, -1);
    CHECK(!kr_text_model_open(ctx, model_path, NULL), "few tokens");
    CHECK_ERROR_HAS(ctx, KR_ERR_ARG, "its vocabulary of 100 tokens is smaller than the 256 bytes");
    CHECK(!kr_text_model_open(ctx, model_path, &(kr_text_model_options){ .tokenizer = "bytes" }), "too many tokens");
    CHECK_ERROR_HAS(ctx, KR_ERR_ARG, "tokenizer bytes has 256 tokens, but model ");
    int count = 7;
    CHECK(!kr_text_model_model(NULL) && !kr_text_model_tokenizer(NULL) && !kr_text_model_eos(NULL, &count) && !count &&
              !kr_text_model_bos(NULL, NULL) && kr_text_model_start(NULL) == -1 &&
              kr_text_model_feed(NULL, NULL, "", 0) == KR_ERR_ARG,
          "NULL is used");
    kr_text_model_set_stops(NULL, NULL);
    kr_text_model_destroy(NULL);
    end();
}

TEST(text_model_survives_every_failed_allocation)
{
    begin();
    make_model(300, -1, -1);
    put_tokenizer();
    const size_t live = kr_ctx_memory(ctx).live_bytes;
    bool done = false;
    size_t n = 1;
    for (; !done && n < 5000; n++) {
        kr_ctx_fail_allocation(ctx, n);
        kr_text_model *lm = kr_text_model_open(ctx, model_path, NULL);
        kr_ctx_fail_allocation(ctx, 0);
        done = lm != NULL;
        CHECK(done || kr_ctx_status(ctx) == KR_ERR_NOMEM, "allocation %zu: %s", n, kr_ctx_message(ctx));
        kr_ctx_clear(ctx);
        kr_text_model_destroy(lm);
        CHECK(kr_ctx_memory(ctx).live_bytes == live, "allocation %zu leaks", n);
    }
    CHECK(done && n > 10, "%zu allocations", n);
    end();
}
