/* test_check.c - folders that would not load: kr_model_check gives every reason, and kr_model_load agrees with it. */
#define _DEFAULT_SOURCE
#include "tests/model/folders.h"

static kr_ctx *ctx;

static void begin(void)
{
    begin_folder();
    ctx = logging_ctx();
    CHECK(mkdir(in_folder("model"), 0777) == 0, "mkdir");
}

static void end(void)
{
    CHECK_OK(ctx);
    drop_folder("model");
    kr_ctx_destroy(ctx);
    end_folder();
}

typedef struct reasons {
    int64_t count;
    char text[8192];
} reasons;

static void take(void *user, const char *text)
{
    reasons *r = user;
    const size_t n = strlen(r->text);
    r->count++;
    snprintf(r->text + n, sizeof r->text - n, "%s\n", text);
}

/* Why in_folder("model") would not load, and that it does not. */
static reasons check(const char *what)
{
    reasons r = { .count = 0 };
    const int64_t count = kr_model_check(ctx, in_folder("model"), take, &r);
    CHECK_OK(ctx);
    CHECK(count == r.count, "%s: %lld reasons, not %lld", what, (long long)count, (long long)r.count);
    CHECK(kr_model_check(ctx, in_folder("model"), NULL, NULL) == count, "%s: without a function", what);
    kr_model *model = kr_model_load(ctx, in_folder("model"), NULL);
    CHECK((model == NULL) == (count > 0), "%s: %lld reasons, but load says: %s", what, (long long)count,
          kr_ctx_message(ctx));
    kr_ctx_clear(ctx);
    kr_model_destroy(model);
    return r;
}

static void has(const char *what, const reasons *r, const char *line)
{
    char with_end[300];
    snprintf(with_end, sizeof with_end, "%s\n", line);
    CHECK(strstr(r->text, with_end) != NULL, "%s: no \"%s\" in:\n%s", what, line, r->text);
}

TEST(golden_models_would_load)
{
    begin();
    static const char *const goldens[] = { "official_lm/mamba1",      "official_lm/mamba2_g2_untied",
                                           "official_lm/mamba3_mimo", "official_lm/mamba3_siso_rope1_outnorm",
                                           "hf_mamba/tied",           "hf_mamba2/g2_untied" };
    for (size_t i = 0; i < sizeof goldens / sizeof *goldens; i++) {
        char path[512];
        reasons r = { .count = 0 };
        snprintf(path, sizeof path, "%s/tests/golden/%s", KR_SOURCE_DIR, goldens[i]);
        CHECK(kr_model_check(ctx, path, take, &r) == 0, "%s: %s", goldens[i], r.text);
    }
    end();
}

TEST(every_tensor_is_accounted_for)
{
    begin();
    static const kr_shape square = { 2, { 32, 32 } }, rotated = { 2, { 64, 256 } };
    static const kr_dtype whole = KR_DTYPE_I32;
    static const struct {
        change c;
        int64_t count;
        const char *line[2];
    } cases[] = {
        { { .name = NULL }, 0, { NULL } },
        { { .name = "backbone.norm_f.weight", .renamed = "" },
          1,
          { "tensor 'backbone.norm_f.weight' is missing", NULL } },
        { { .name = "backbone.norm_f.weight", .renamed = "backbone.norm_g.weight" },
          2,
          { "tensor 'backbone.norm_f.weight' is missing",
            "tensor 'backbone.norm_g.weight' is not a parameter of the model" } },
        { { .name = "backbone.embedding.weight", .shape = &rotated },
          1,
          { "tensor 'backbone.embedding.weight' is [64, 256], but must be [256, 64]", NULL } },
        { { .name = "backbone.layers.1.mixer.out_proj.weight", .shape = &square, .dtype = &whole },
          2,
          { "tensor 'backbone.layers.1.mixer.out_proj.weight' is I32, but parameters are floats",
            "tensor 'backbone.layers.1.mixer.out_proj.weight' is [32, 32], but must be [64, 128]" } },
        { { .added = "lm_head.weight", .from = "backbone.embedding.weight" }, 0, { NULL } },
        { { .added = "lm_head.weight" }, 1, { "tensor 'lm_head.weight' is [1], but must be [256, 64]", NULL } },
        { { .added = "backbone.extra", .from = "backbone.norm_f.weight" },
          1,
          { "tensor 'backbone.extra' is not a parameter of the model", NULL } },
    };
    copy_config("official_lm/mamba2", "model");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char what[32];
        snprintf(what, sizeof what, "case %zu", i);
        write_changed(ctx, "official_lm/mamba2", "model", &cases[i].c);
        const reasons r = check(what);
        CHECK(r.count == cases[i].count, "%s: %lld reasons:\n%s", what, (long long)r.count, r.text);
        for (int k = 0; k < 2 && cases[i].line[k]; k++) has(what, &r, cases[i].line[k]);
    }
    end();
}

#define CONFIG(layers, more)                                                                                           \
    "{\"d_model\": 64, \"n_layer\": " layers ", \"vocab_size\": 256, " more                                            \
    "\"ssm_cfg\": {\"layer\": \"Mamba2\", \"d_state\": 32, \"headdim\": 16}}"

TEST(configs_and_files_are_told_of)
{
    begin();
    write_changed(ctx, "official_lm/mamba2", "model", &(change){ .name = NULL });
    reasons r = check("no config");
    CHECK(r.count == 1 && strstr(r.text, "config.json: no such file"), "%s", r.text);

    put_text("model", "config.json", CONFIG("3", ""));
    r = check("three layers");
    CHECK(r.count == 9, "%lld reasons, a layer has 9 tensors:\n%s", (long long)r.count, r.text);
    has("three layers", &r, "tensor 'backbone.layers.2.mixer.in_proj.weight' is missing");

    put_text("model", "config.json", CONFIG("1", ""));
    r = check("one layer");
    CHECK(r.count == 9, "%lld reasons, a layer has 9 tensors:\n%s", (long long)r.count, r.text);
    has("one layer", &r, "tensor 'backbone.layers.1.mixer.in_proj.weight' is not a parameter of the model");

    put_text("model", "config.json", CONFIG("5000", ""));
    r = check("many layers");
    has("many layers", &r, "the config has 5000 layers, but there are 20 tensors in all");

    put_text("model", "config.json", CONFIG("2", "\"attn_layer_idx\": [1], "));
    remove(file_of("model", "model.safetensors"));
    r = check("attention, and no weights");
    CHECK(r.count == 2 && strstr(r.text, "attn_layer_idx"), "%s", r.text);
    end();
}

TEST(token_ids_of_folders)
{
    begin();
    put_text("model", "config.json", CONFIG("2", ""));
    put_text("model", "generation_config.json", "{\"eos_token_id\": [7, 9]}");
    kr_model_config *config = kr_model_config_load(ctx, in_folder("model"));
    if (CHECK(config != NULL, "%s", kr_ctx_message(ctx)))
        CHECK(config->n_eos == 2 && config->eos[0] == 7 && config->eos[1] == 9, "n_eos %d", config->n_eos);
    kr_model_config_destroy(config);
    config = kr_model_config_load(ctx, file_of("model", "config.json"));
    if (CHECK(config != NULL, "%s", kr_ctx_message(ctx))) CHECK(config->n_eos == 0, "n_eos %d", config->n_eos);
    kr_model_config_destroy(config);
    CHECK(kr_model_config_load(ctx, "") == NULL, "no path");
    CHECK_ERROR_HAS(ctx, KR_ERR_ARG, "path is NULL or empty");
    end();
}

TEST(any_allocation_of_a_check_may_fail)
{
    begin();
    copy_config("official_lm/mamba2", "model");
    write_changed(ctx, "official_lm/mamba2", "model", &(change){ .name = "backbone.norm_f.weight", .renamed = "" });
    const size_t before = kr_ctx_memory(ctx).live_blocks;
    size_t n = 1;
    for (; n < 1000; n++) {
        kr_ctx_fail_allocation(ctx, n);
        const int64_t count = kr_model_check(ctx, in_folder("model"), NULL, NULL);
        kr_ctx_fail_allocation(ctx, 0);
        CHECK(count == 1 || (count == -1 && kr_ctx_status(ctx) == KR_ERR_NOMEM), "allocation %zu: %lld, %s", n,
              (long long)count, kr_ctx_message(ctx));
        CHECK(kr_ctx_memory(ctx).live_blocks == before, "allocation %zu: memory is left", n);
        kr_ctx_clear(ctx);
        if (count == 1) break;
    }
    CHECK(n > 5 && n < 1000, "%zu allocations", n - 1);
    CHECK(kr_model_check(ctx, NULL, NULL, NULL) == -1, "no folder");
    CHECK_ERROR(ctx, KR_ERR_ARG, "model.check: the folder's path is NULL or empty");
    end();
}
