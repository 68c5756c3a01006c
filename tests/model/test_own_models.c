/* test_own_models.c - models of families that a program has registered: to a folder and back, states in files, text out of
 * them, the self-test, and what config.json may not say.
 */
#define _DEFAULT_SOURCE
#include "tests/model/folders.h"
#include "tests/nn/own_kinds.h"

#include <krait/experimental/check.h>

static kr_ctx *ctx;

static void begin(void)
{
    begin_folder();
    ctx = logging_ctx();
}

static void end(void)
{
    CHECK_OK(ctx);
    kr_ctx_destroy(ctx);
    CHECK(own_live == 0, "%d blocks are left", own_live);
    end_folder();
}

static kr_model *make_model(kr_family family, kr_dtype dtype)
{
    own_config own = own_small(family);
    char label[] = "a \"label\"";
    own.expand = 3;
    own.label = label;
    own.head.dtype = dtype;
    kr_model_config *config = kr_model_config_create(ctx);
    config->family = family;
    config->registered = &own;
    config->layers->n_layers = 2;
    config->layers->n_virtual = 3;
    config->network->vocab_size = 256;
    CHECK(kr_model_config_d_model(config) == 8, "d_model");
    kr_model *model = kr_model_create(ctx, config);
    CHECK(model != NULL, "%s", kr_ctx_message(ctx));
    kr_model_config_destroy(config);
    memset(label, 'x', sizeof label - 1); /* the model has a copy */
    return model;
}

static void save(const kr_model *model, const char *name)
{
    CHECK(kr_model_save(model, in_folder(name), NULL) == KR_OK, "%s", kr_ctx_message(ctx));
}

/* ---- folders ---- */

TEST(own_models_are_saved_and_loaded)
{
    begin();
    static const kr_dtype dtypes[] = { KR_DTYPE_F32, KR_DTYPE_BF16, KR_DTYPE_F64 };
    for (int i = 0; i < 3; i++) {
        kr_model *model = make_model(own_packed(), dtypes[i]);
        save(model, "m");
        kr_model *again = kr_model_load(ctx, in_folder("m"), NULL);
        CHECK(again != NULL, "%s", kr_ctx_message(ctx));
        check_same_model("registered", again, model);
        check_same_config("registered", ctx, again, model);
        const kr_model_config *c = kr_model_config_of(again);
        const own_config *own = c->registered;
        CHECK(c->family == own_packed() && own->expand == 3 && own->is_gated && own->rate == -0.5 &&
                  own->head.d_model == 8 && own->head.dtype == dtypes[i] && strcmp(own->label, "a \"label\"") == 0,
              "its config: %lld %g %s", (long long)own->expand, own->rate, own->label);
        kr_model_destroy(again);
        kr_model_destroy(model);
        drop_folder("m");
    }
    end();
}

TEST(own_models_in_config_json)
{
    begin();
    static const char want[] =
        "\"ssm_cfg\": {\n    \"layer\": \"own_packed\",\n    \"expand\": 3,\n    \"rate\": -0.5,\n"
        "    \"is_gated\": true,\n    \"label\": \"a \\\"label\\\"\"\n  }";
    kr_model *model = make_model(own_packed(), KR_DTYPE_F32);
    char text[2048];
    config_text(ctx, model, KR_LAYOUT_OFFICIAL, text, sizeof text);
    CHECK(strstr(text, want) != NULL, "%s", text);
    size_t needed;
    CHECK(kr_model_config_format(ctx, kr_model_config_of(model), KR_LAYOUT_HF, text, sizeof text, &needed) != KR_OK,
          "in the hf layout");
    CHECK_ERROR(ctx, KR_ERR_UNSUPPORTED,
                "config.json: the hf layout has no blocks that a program has registered; save the model in the "
                "official layout");
    kr_model_size size;
    CHECK(kr_model_measure(ctx, kr_model_config_of(model), &size) == KR_OK, "%s", kr_ctx_message(ctx));
    CHECK(size.parameters == kr_params_elements(kr_network_params(kr_model_network(model))) &&
              size.state_bytes == 3 * 24 * sizeof(float) && size.prefill_bytes > 4 * 24 * sizeof(float),
          "%lld parameters, %zu bytes of states", (long long)size.parameters, size.state_bytes);
    kr_model_destroy(model);
    end();
}

static const struct {
    const char *text, *message;
} errors[] = {
    { "{\"ssm_cfg\": {\"layer\": \"own_unknown\"}}", "config.json: ssm_cfg.layer = 'own_unknown', but must be "
                                                     "'Mamba1', 'Mamba2', 'Mamba3' or a family that the program "
                                                     "has registered" },
    { "{\"ssm_cfg\": {\"layer\": \"mamba2\"}}", "config.json: ssm_cfg.layer = 'mamba2', but must be 'Mamba1', "
                                                "'Mamba2', 'Mamba3' or a family that the program has "
                                                "registered" },
    { "{\"ssm_cfg\": {\"layer\": \"own_packed\", \"expand\": 0}}",
      "config.json: ssm_cfg.expand = 0, but must be from 1 to 16" },
    { "{\"ssm_cfg\": {\"layer\": \"own_packed\", \"expand\": 1.5}}",
      "config.json: ssm_cfg.expand = 1.5, but must be a whole number" },
    { "{\"ssm_cfg\": {\"layer\": \"own_packed\", \"rate\": NaN}}",
      "config.json: ssm_cfg.rate = nan, but must be finite" },
    { "{\"ssm_cfg\": {\"layer\": \"own_packed\", \"rate\": true}}",
      "config.json: ssm_cfg.rate = true, but must be a number" },
    { "{\"ssm_cfg\": {\"layer\": \"own_packed\", \"is_gated\": 1}}",
      "config.json: ssm_cfg.is_gated = 1, but must be true or false" },
    { "{\"ssm_cfg\": {\"layer\": \"own_packed\", \"label\": \"a\\u0000b\"}}",
      "config.json: ssm_cfg.label = 'a?b', but must be a string without zero bytes" },
    { "{\"ssm_cfg\": {\"layer\": \"own_packed\", \"d_state\": 16}}",
      "config.json: the key 'ssm_cfg.d_state' is unknown to blocks of own_packed" },
    { "{\"ssm_cfg\": {\"layer\": \"own_packed\"}, \"krait\": {\"norm_per_group\": true}}",
      "config.json: the key 'krait.norm_per_group' is unknown" },
};

TEST(own_configs_in_files_that_are_refused)
{
    begin();
    own_packed();
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++) {
        kr_model_config *config = kr_model_config_parse(ctx, errors[i].text, strlen(errors[i].text));
        CHECK(!config, "%s", errors[i].text);
        kr_model_config_destroy(config);
        CHECK_ERROR(ctx, KR_ERR_FORMAT, errors[i].message);
    }
    static const char plain[] = "{\"d_model\": 16, \"n_layer\": 1, \"ssm_cfg\": {\"layer\": \"own_packed\", "
                                "\"layer_idx\": 3}, \"krait\": {\"n_virtual\": 2}}";
    kr_model_config *config = kr_model_config_parse(ctx, plain, sizeof plain - 1);
    if (CHECK(config != NULL, "%s", kr_ctx_message(ctx))) {
        const own_config *own = config->registered;
        CHECK(own->expand == 2 && own->head.d_model == 16 && strcmp(own->label, "plain") == 0 &&
                  config->layers->n_virtual == 2,
              "defaults");
        kr_model_config_set_d_model(config, 32);
        CHECK(own->head.d_model == 32, "d_model");
    }
    kr_model_config_destroy(config);
    own_config small = { .head = { .size = 3 } };
    kr_model_config *bad = kr_model_config_create(ctx);
    bad->family = own_packed();
    bad->registered = &small;
    CHECK(!kr_model_create(ctx, bad), "a model");
    CHECK_ERROR_HAS(ctx, KR_ERR_ARG, "registered.size is 3, but the config of own_packed has 56 bytes");
    kr_model_config_destroy(bad);
    end();
}

/* ---- states and text ---- */

static void read_ids(kr_tape *tape, const kr_network *net, kr_state *state, int64_t ns)
{
    int64_t ids[8];
    for (int64_t i = 0; i < ns; i++) ids[i] = 65 + i;
    kr_call call;
    kr_call_init(&call);
    call.advance = state;
    kr_network_forward(tape, net, kr_from_data(tape, KR_DTYPE_I64, KR_SHAPE(1, ns), ids), &call);
}

TEST(own_states_in_files)
{
    begin();
    kr_tape *tape = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    kr_model *model = make_model(own_delay(), KR_DTYPE_F32), *other = make_model(own_packed(), KR_DTYPE_F32);
    const kr_network *net = kr_model_network(model);
    kr_state *state = kr_network_state(net, 1);
    read_ids(tape, net, state, 5);
    CHECK(kr_state_save(state, net, in_folder("s")) == KR_OK, "%s", kr_ctx_message(ctx));
    kr_state *loaded = kr_state_load(ctx, net, in_folder("s"));
    CHECK(loaded != NULL, "%s", kr_ctx_message(ctx));
    for (int64_t slot = 0; loaded && slot < 3; slot++)
        for (int i = 0; i < 2; i++)
            CHECK_SAME_BITS(kr_cache_name(own_delay(), i), kr_state_cache(loaded, slot)->tensors[i],
                            kr_state_cache(state, slot)->tensors[i]);
    CHECK(!kr_state_load(ctx, kr_model_network(other), in_folder("s")), "of another family");
    CHECK_ERROR_HAS(ctx, KR_ERR_FORMAT, "its blocks are 'own_delay', those of the network are 'own_packed'");
    kr_state_destroy(loaded);
    kr_state_destroy(state);
    kr_model_destroy(other);
    kr_model_destroy(model);
    kr_tape_destroy(tape);
    end();
}

static void generate(kr_model *model, char *text, size_t bytes)
{
    kr_tokenizer *tok = kr_tokenizer_bytes(ctx);
    kr_generate_options options;
    kr_generate_options_init(&options);
    options.max_tokens = 12;
    kr_generation *g = kr_generation_create(ctx, kr_model_network(model), tok, &options);
    kr_generation_feed_text(g, "ab", 2);
    text[0] = '\0';
    while (kr_generation_next(g) == KR_OK) {
        const size_t n = strlen(text);
        snprintf(text + n, bytes - n, "%s", kr_generation_row(g, 0)->text);
    }
    kr_generation_destroy(g);
    kr_tokenizer_destroy(tok);
}

TEST(own_models_generate)
{
    begin();
    char texts[2][128];
    kr_model *model = make_model(own_packed(), KR_DTYPE_F32);
    for (int i = 0; i < 2; i++) {
        kr_ctx_seed(ctx, 3);
        generate(model, texts[i], sizeof texts[i]);
    }
    CHECK(texts[0][0] && strcmp(texts[0], texts[1]) == 0, "'%s', then '%s'", texts[0], texts[1]);
    kr_model_destroy(model);
    end();
}

TEST(own_models_pass_the_self_test)
{
    begin();
    kr_check_options options;
    kr_check_options_init(&options);
    options.kind = KR_CHECK_MODEL;
    options.tokens = 20;
    const kr_family families[] = { own_average(), own_packed(), own_delay() };
    for (int f = 0; f < 3; f++) {
        kr_model *model = make_model(families[f], KR_DTYPE_F32);
        kr_check_counts counts;
        save(model, "m");
        options.model = in_folder("m");
        CHECK(kr_check_run(ctx, &options, &counts) == KR_OK, "%s", kr_ctx_message(ctx));
        CHECK(counts.failed == 0 && counts.passed >= 3, "%s: %lld passed, %lld failed", kr_family_name(families[f]),
              (long long)counts.passed, (long long)counts.failed);
        kr_model_destroy(model);
        drop_folder("m");
    }
    end();
}

/* ---- memory ---- */

TEST(own_models_without_memory)
{
    begin();
    kr_model *model = make_model(own_packed(), KR_DTYPE_F32);
    save(model, "m");
    kr_model_destroy(model);
    const size_t blocks = kr_ctx_memory(ctx).live_blocks;
    size_t n = 1;
    for (bool done = false; !done; n++) {
        kr_ctx_fail_allocation(ctx, n);
        kr_model *loaded = kr_model_load(ctx, in_folder("m"), NULL);
        kr_ctx_fail_allocation(ctx, 0);
        done = loaded != NULL;
        CHECK(done || kr_ctx_status(ctx) == KR_ERR_NOMEM, "allocation %zu: %s", n, kr_ctx_message(ctx));
        kr_ctx_clear(ctx);
        kr_model_destroy(loaded);
        CHECK(own_live == 0, "%d blocks are left", own_live);
        CHECK(done || kr_ctx_memory(ctx).live_blocks == blocks, "allocation %zu: memory is left", n);
    }
    CHECK(n > 10, "%zu allocations", n - 1);
    drop_folder("m");
    end();
}
