/* test_generation_golden.c - greedy generation equals what Hugging Face's generate recorded. */
#include "tests/harness.h"

#include <krait/generate.h>
#include <krait/model.h>

enum { GIVEN = 12, MOST = 4096 };

static void check_model(const char *name)
{
    char path[400];
    kr_ctx *ctx = kr_test_ctx(2, NULL);
    snprintf(path, sizeof path, KR_SOURCE_DIR "/tests/golden/%s", name);
    kr_model *model = kr_model_load(ctx, path, NULL);
    snprintf(path, sizeof path, KR_SOURCE_DIR "/tests/golden/%s/io.safetensors", name);
    kr_tensor_file *file = kr_tensor_file_open(ctx, path);
    CHECK_OK(ctx);
    const kr_tensor_file_item *item = file ? kr_tensor_file_find(file, "gen_ids") : NULL;
    if (!CHECK(model && item && item->count <= MOST, "%s: no gen_ids", name)) return;
    static int32_t ids[MOST];
    IGNORE(kr_tensor_file_read(file, item, KR_DTYPE_I32, ids, item->count));

    const kr_model_config *config = kr_model_config_of(model);
    kr_logit_bias biases[KR_MAX_EOS];
    kr_generate_options o;
    kr_generate_options_init(&o);
    kr_sampler_options sampler;
    kr_sampler_options_init(&sampler);
    o.sampler = &sampler;
    for (int i = 0; i < config->n_eos; i++) biases[i] = (kr_logit_bias){ (int32_t)config->eos[i], -INFINITY };
    sampler.n_biases = config->n_eos;
    sampler.biases = biases;
    sampler.temperature = 0;
    o.prefill_chunk = 5;
    const int64_t rows = item->shape.dims[0], len = item->shape.dims[1];
    o.max_tokens = len - GIVEN;
    for (int64_t row = 0; row < rows; row++) {
        kr_generation *g = kr_generation_create(ctx, kr_model_network(model), NULL, &o);
        kr_generation_feed(g, ids + row * len, GIVEN);
        int64_t at = GIVEN;
        for (; kr_generation_next(g) == KR_OK; at++)
            CHECK(kr_generation_row(g, 0)->sample.id == ids[row * len + at], "%s: row %d, token %d is %d, not %d", name,
                  (int)row, (int)at, kr_generation_row(g, 0)->sample.id, ids[row * len + at]);
        CHECK(at == len, "%s: %d tokens", name, (int)at);
        kr_generation_destroy(g);
    }
    CHECK_OK(ctx);
    kr_tensor_file_close(file);
    kr_model_destroy(model);
    kr_ctx_destroy(ctx);
}

TEST(greedy_tokens_of_hugging_face)
{
    check_model("hf_mamba/tied");
    check_model("hf_mamba2/g1_untied");
    check_model("hf_mamba2/g2_untied");
}
