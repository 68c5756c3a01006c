/* shared_model.h - a small text model in a folder, and what is computed with it: tokens, scores, a generation. */
#ifndef KR_TESTS_SHARED_MODEL_H
#define KR_TESTS_SHARED_MODEL_H

#include "tests/temp_folder.h"

static const char shared_text[] = "It's a tale of 12 worlds, and  of none.\n\tWe've said: caf\xc3\xa9!";

/* The 256 bytes and two words, split by the expression of GPT-2, or not split. */
static inline void put_shared_tokenizer(const char *path, bool use_regex)
{
    static char json[8192];
    size_t n = (size_t)snprintf(json, sizeof json,
                                "{\"version\": \"1.0\", \"truncation\": null, \"padding\": null, \"added_tokens\": [], "
                                "\"normalizer\": {\"type\": \"NFC\"}, \"pre_tokenizer\": {\"type\": \"ByteLevel\", "
                                "\"add_prefix_space\": false, \"use_regex\": %s}, \"post_processor\": null, "
                                "\"decoder\": {\"type\": \"ByteLevel\"}, \"model\": {\"type\": \"BPE\", \"vocab\": {",
                                use_regex ? "true" : "false");
    for (int byte = 0, others = 0; byte < 256; byte++) { /* the letters of byte-level vocabularies */
        const bool is_own = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
        n += (size_t)snprintf(json + n, sizeof json - n, "%s\"\\u%04x\": %d", byte ? ", " : "",
                              (unsigned)(is_own ? byte : 256 + others), byte);
        others += !is_own;
    }
    n += (size_t)snprintf(json + n, sizeof json - n, ", \"of\": 256, \"ai\": 257}, \"merges\": [\"o f\", \"a i\"]}}");
    write_image(path, json, n);
}

/* In the folder "m". */
static inline void save_shared_model(kr_ctx *ctx)
{
    char path[400];
    kr_model_config *config = kr_model_config_create(ctx);
    kr_model_config_set_d_model(config, 16);
    config->layers->n_layers = 2;
    config->mamba2->state_rank = config->mamba2->per_head_dim = 8;
    config->network->vocab_size = 258;
    kr_model *model = kr_model_create(ctx, config);
    CHECK(kr_model_save(model, in_folder("m"), NULL) == KR_OK, "%s", kr_ctx_message(ctx));
    kr_model_destroy(model);
    kr_model_config_destroy(config);
    snprintf(path, sizeof path, "%s/tokenizer.json", in_folder("m"));
    put_shared_tokenizer(path, true);
    kr_tokenizer *tok = kr_tokenizer_load(ctx, path);
    if (kr_ctx_status(ctx) == KR_ERR_UNSUPPORTED) { /* built without PCRE2 */
        kr_ctx_clear(ctx);
        put_shared_tokenizer(path, false);
    }
    kr_tokenizer_destroy(tok);
}

static inline void drop_shared_model(void)
{
    static const char *const names[] = { "config.json", "model.safetensors", "tokenizer.json" };
    char path[400];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(path, sizeof path, "%s/%s", in_folder("m"), names[i]);
        remove(path);
    }
    rmdir(in_folder("m"));
}

typedef struct shared_results {
    int64_t n;
    int32_t ids[128], drawn[24];
    float scores[8];
    char text[128];
} shared_results;

/* Everything that a thread does with a model; false after an error of the context. */
static inline bool compute_shared(kr_ctx *ctx, const kr_text_model *lm, shared_results *r)
{
    memset(r, 0, sizeof *r);
    const kr_tokenizer *tok = kr_text_model_tokenizer(lm);
    const kr_network *net = kr_model_network(kr_text_model_model(lm));
    r->n = kr_tokenizer_encode(tok, shared_text, sizeof shared_text - 1, NULL, r->ids, 128);
    kr_tokenizer_decode(tok, r->ids, r->n < 128 ? r->n : 128, false, r->text, sizeof r->text - 1);

    kr_tape *tape = kr_tape_create(ctx, KR_TAPE_GRAD);
    kr_tensor *id_bs = kr_from_data(tape, KR_DTYPE_I32, KR_SHAPE(1, r->n), r->ids);
    kr_tensor *y = kr_network_forward(tape, net, id_bs, NULL).y;
    kr_tensor *scores = kr_slice(tape, kr_log_softmax(tape, y, -1), -1, 0, 8);
    if (scores)
        IGNORE(kr_tensor_read(kr_contiguous(tape, kr_slice(tape, scores, 1, 0, 1)), KR_DTYPE_F32, r->scores, 8));
    kr_tape_destroy(tape);

    kr_generate_options options;
    kr_sampler_options sampler;
    kr_generate_options_init(&options);
    kr_sampler_options_init(&sampler);
    sampler.temperature = 1;
    options.sampler = &sampler;
    options.max_tokens = 24;
    kr_ctx_seed(ctx, 7);
    kr_generation *g = kr_generation_create(ctx, net, tok, &options);
    int drawn = 0;
    if (kr_text_model_feed(lm, g, shared_text, sizeof shared_text - 1) == KR_OK)
        while (drawn < 24 && kr_generation_next(g) == KR_OK) r->drawn[drawn++] = kr_generation_row(g, 0)->sample.id;
    kr_generation_destroy(g);
    return !kr_ctx_failed(ctx) && drawn == 24;
}

#endif
