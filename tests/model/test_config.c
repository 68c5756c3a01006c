/* test_config.c - config.json: what is read of both layouts, what is warned of, what is refused, and that writing and
 * reading lose nothing.
 */
#include "tests/model/log.h"

#define READ(text) kr_model_config_parse(ctx, (text), strlen(text))

static kr_ctx *ctx;

static void begin(void)
{
    ctx = logging_ctx();
}

static void end(void)
{
    CHECK_OK(ctx);
    CHECK(kr_ctx_memory(ctx).live_blocks == blocks_at_begin, "memory is left");
    kr_ctx_destroy(ctx);
}

/* ---- reading ---- */

TEST(official_defaults)
{
    begin();
    kr_model_config *c = READ("{}");
    if (CHECK(c != NULL, "%s", kr_ctx_message(ctx))) {
        CHECK(c->layout == KR_LAYOUT_OFFICIAL && c->family == KR_FAMILY_MAMBA1, "an empty config is Mamba-1's");
        CHECK(kr_model_config_d_model(c) == 2560 && c->layers->n_layers == 64 && c->network->vocab_size == 50277,
              "sizes");
        CHECK(c->network->pad_vocab_size_multiple == 8 && c->network->tie_embeddings && c->layers->residual_in_f32 &&
                  c->fused_add_norm && c->layers->d_intermediate == 0,
              "switches");
        CHECK(c->mamba1->state_rank == 16 && c->mamba1->dt_rank == 0 && c->n_eos == 0 && c->bos == -1 && c->pad == -1,
              "block");
    }
    kr_model_config_destroy(c);
    CHECK(nlogged == 0, "%s", logged);
    end();
}

TEST(official_published)
{
    begin();
    kr_model_config *c =
        READ("{\"d_model\": 768, \"n_layer\": 24, \"vocab_size\": 50277, \"ssm_cfg\": {}, \"rms_norm\": true,"
             "\"residual_in_fp32\": true, \"fused_add_norm\": true, \"pad_vocab_size_multiple\": 8}");
    CHECK(c && c->family == KR_FAMILY_MAMBA1 && c->mamba1->d_model == 768 && c->layers->n_layers == 24, "mamba-130m");
    kr_model_config_destroy(c);
    c = READ(
        "{\"d_model\": 2048, \"d_intermediate\": 4096, \"n_layer\": 24, \"vocab_size\": 128256, \"ssm_cfg\": "
        "{\"layer\":"
        "\"Mamba3\", \"d_state\": 128, \"expand\": 2, \"headdim\": 64, \"is_mimo\": true, \"mimo_rank\": 4, "
        "\"chunk_size\": 16, \"is_outproj_norm\": false, \"rope_fraction\": 0.5, \"A_floor\": 1e-4, \"dropout\": 0.1}, "
        "\"attn_layer_idx\": [], \"attn_cfg\": {}, \"pad_vocab_size_multiple\": 16, \"tie_embeddings\": true}");
    CHECK(c && c->family == KR_FAMILY_MAMBA3 && c->mamba3->is_mimo && c->mamba3->mimo_rank == 4 &&
              c->chunk_size == 16 && c->mamba3->path.chunk_len == 0 && c->layers->d_intermediate == 4096 &&
              c->network->pad_vocab_size_multiple == 16 && c->mamba3->a_activation == KR_A_ACTIVATION_HEAVY_TAIL,
          "mamba3-mimo-1.5b");
    kr_model_config_destroy(c);
    CHECK(nlogged == 0, "%s", logged);
    end();
}

/* Every key of ssm_cfg, each with a value that is not its default. */
TEST(official_blocks)
{
    begin();
    kr_model_config *c =
        READ("{\"ssm_cfg\": {\"layer\": \"Mamba1\", \"d_state\": 3, \"d_conv\": 5, \"expand\": 6, \"dt_rank\": 7, "
             "\"dt_min\": 0.01, \"dt_max\": 0.2, \"dt_init\": \"constant\", \"dt_scale\": 0.5, \"dt_init_floor\": "
             "1e-3, \"conv_bias\": false, \"bias\": true, \"use_fast_path\": false, \"layer_idx\": null, "
             "\"device\": null, \"dtype\": null}}");
    const kr_mamba1_config *m1 = c->mamba1;
    CHECK(m1->state_rank == 3 && m1->conv_kernel == 5 && m1->expand == 6 && m1->dt_rank == 7 && m1->dt_min == 0.01 &&
              m1->dt_max == 0.2 && m1->has_constant_dt && m1->dt_scale == 0.5 && m1->dt_init_floor == 1e-3 &&
              !m1->has_conv_bias && m1->has_proj_bias,
          "Mamba-1");
    kr_model_config_destroy(c);
    c = READ(
        "{\"ssm_cfg\": {\"layer\": \"Mamba2\", \"d_state\": 3, \"d_conv\": 5, \"conv_init\": 0.25, \"expand\": 6, "
        "\"headdim\": "
        "7, \"d_ssm\": 14, \"ngroups\": 2, \"A_init_range\": [2, 8], \"D_has_hdim\": true, \"rmsnorm\": false, "
        "\"norm_before_gate\": true, \"dt_min\": 0.01, \"dt_max\": 0.2, \"dt_init_floor\": 1e-3, \"dt_limit\": [0.5, "
        "2], "
        "\"bias\": true, \"conv_bias\": false, \"chunk_size\": 128, \"use_mem_eff_path\": false, \"process_group\": "
        "null, \"sequence_parallel\": true, \"layer_idx\": 0, \"device\": null, \"dtype\": null}}");
    const kr_mamba2_config *m2 = c->mamba2;
    CHECK(m2->state_rank == 3 && m2->conv_kernel == 5 && m2->conv_init == 0.25 && m2->expand == 6 &&
              m2->per_head_dim == 7 && m2->d_ssm == 14 && m2->n_groups == 2 && m2->a_init_min == 2 &&
              m2->a_init_max == 8 && m2->has_d_per_dim && !m2->has_norm && m2->norm_before_gate,
          "Mamba-2");
    CHECK(m2->dt_min == 0.01 && m2->dt_max == 0.2 && m2->dt_init_floor == 1e-3 && m2->dt_limit_min == 0.5 &&
              m2->dt_limit_max == 2 && m2->has_proj_bias && !m2->has_conv_bias && m2->norm_per_group &&
              c->chunk_size == 128 && m2->path.chunk_len == 0,
          "Mamba-2");
    kr_model_config_destroy(c);
    c = READ(
        "{\"ssm_cfg\": {\"layer\": \"Mamba3\", \"d_state\": 4, \"expand\": 6, \"headdim\": 7, \"ngroups\": 2, "
        "\"rope_fraction\": 1, \"dt_min\": 0.01, \"dt_max\": 0.2, \"dt_init_floor\": 1e-3, \"A_floor\": 0.5, "
        "\"is_outproj_norm\": true, \"is_mimo\": true, \"mimo_rank\": 3, \"fuse_pregate_headwise_norm\": false, "
        "\"chunk_size\": 32, \"dropout\": 0.1, \"layer_idx\": 0, \"n_layer\": 3, \"device\": null, \"dtype\": null}}");
    const kr_mamba3_config *m3 = c->mamba3;
    CHECK(m3->state_rank == 4 && m3->expand == 6 && m3->per_head_dim == 7 && m3->n_groups == 2 &&
              m3->rope_fraction == 1 && m3->dt_min == 0.01 && m3->dt_max == 0.2 && m3->dt_init_floor == 1e-3 &&
              m3->a_floor == 0.5 && m3->has_outproj_norm && m3->is_mimo && m3->mimo_rank == 3 && c->chunk_size == 32,
          "Mamba-3");
    kr_model_config_destroy(c);
    CHECK(nlogged == 0, "%s", logged);
    end();
}

TEST(hf_spellings)
{
    begin();
    kr_model_config *c = READ("{\"model_type\": \"mamba2\", \"use_bias\": false}");
    CHECK(c && c->layout == KR_LAYOUT_HF && c->family == KR_FAMILY_MAMBA2 && c->mamba2->d_model == 4096 &&
              c->layers->n_layers == 64 && c->network->vocab_size == 32768 && c->mamba2->n_groups == 8 &&
              !c->network->tie_embeddings && !c->mamba2->norm_per_group && c->network->pad_vocab_size_multiple == 1,
          "defaults of mamba2");
    kr_model_config_destroy(c);
    c = READ("{\"model_type\": \"mamba\", \"use_bias\": false}");
    CHECK(c && c->family == KR_FAMILY_MAMBA1 && c->mamba1->d_model == 768 && c->layers->n_layers == 32 &&
              c->network->vocab_size == 50280 && c->network->tie_embeddings && c->mamba1->bcdt_norm_eps == 0,
          "defaults of mamba");
    kr_model_config_destroy(c);
    c = READ("{\"model_type\": \"falcon_mamba\", \"use_bias\": false}");
    CHECK(c && c->family == KR_FAMILY_MAMBA1 && c->mamba1->bcdt_norm_eps == 1e-6, "defaults of falcon_mamba");
    kr_model_config_destroy(c);
    CHECK(nlogged == 0, "%s", logged);

    /* as it was published, with what the official spelling left over */
    c = READ(
        "{\"architectures\": [\"MambaForCausalLM\"], \"bos_token_id\": 0, \"conv_kernel\": 4, \"d_inner\": 1536, "
        "\"d_model\": 768, \"eos_token_id\": 0, \"expand\": 2, \"fused_add_norm\": true, \"hidden_act\": \"silu\", "
        "\"hidden_size\": 768, \"initializer_range\": 0.1, \"intermediate_size\": 1536, \"layer_norm_epsilon\": 1e-05,"
        "\"model_type\": \"mamba\", \"n_layer\": 24, \"num_hidden_layers\": 24, \"pad_token_id\": 0, "
        "\"pad_vocab_size_multiple\": 8, \"rescale_prenorm_residual\": false, \"residual_in_fp32\": true, "
        "\"rms_norm\": "
        "true, \"ssm_cfg\": {}, \"state_size\": 16, \"time_step_floor\": 0.0001, \"time_step_init_scheme\": "
        "\"random\", "
        "\"time_step_max\": 0.1, \"time_step_min\": 0.001, \"time_step_rank\": 48, \"time_step_scale\": 1.0, "
        "\"torch_dtype\": \"float32\", \"transformers_version\": \"4.39.0.dev0\", \"use_bias\": false, \"use_cache\": "
        "true, \"use_conv_bias\": true, \"vocab_size\": 50280}");
    CHECK(c && c->mamba1->d_inner == 0 && c->mamba1->dt_rank == 48 && c->network->vocab_size == 50280 &&
              c->network->pad_vocab_size_multiple == 1 && c->n_eos == 1 && c->eos[0] == 0 && c->bos == 0 && c->pad == 0,
          "mamba-130m-hf");
    kr_model_config_destroy(c);
    c = READ(
        "{\"architectures\": [\"Mamba2ForCausalLM\"], \"bos_token_id\": null, \"chunk_size\": 256, \"conv_kernel\": 4, "
        "\"eos_token_id\": [2, 7], \"expand\": 2, \"head_dim\": 64, \"hidden_act\": \"silu\", \"hidden_size\": 4096, "
        "\"initializer_range\": 0.1, \"intermediate_size\": 8192, \"layer_norm_epsilon\": 2e-05, \"model_type\": "
        "\"mamba2\", \"n_groups\": 8, \"norm_before_gate\": true, \"num_heads\": 128, \"num_hidden_layers\": 64, "
        "\"rms_norm\": true, \"state_size\": 128, \"tie_word_embeddings\": false, \"time_step_limit\": [0.0, Infinity],"
        "\"time_step_init_scheme\": \"random\", \"time_step_rank\": 256, \"time_step_scale\": 1.0, \"torch_dtype\": "
        "\"bfloat16\", \"use_bias\": false, \"use_cache\": true, \"use_conv_bias\": true, \"vocab_size\": 32768}");
    CHECK(c && c->mamba2->dtype == KR_DTYPE_BF16 && c->mamba2->norm_eps == 2e-5 && c->layers->norm_eps == 2e-5 &&
              !c->mamba2->norm_before_gate && c->mamba2->dt_limit_max == INFINITY && c->n_eos == 2 && c->eos[1] == 7 &&
              c->bos == -1 && c->chunk_size == 256,
          "Codestral");
    kr_model_config_destroy(c);
    CHECK(nlogged == 0, "%s", logged);
    end();
}

TEST(infinities)
{
    begin();
    static const struct {
        const char *text;
        double low, high;
    } rows[] = {
        { "[0.0, Infinity]", 0, INFINITY },
        { "[0.5, {\"__float__\": \"Infinity\"}]", 0.5, INFINITY },
        { "[0, 1e39]", 0, INFINITY },
        { "[0, \"inf\"]", 0, INFINITY },
        { "[0.25, 3.4028235e38]", 0.25, INFINITY },
        { "[0, 1e30]", 0, 1e30 },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char text[300];
        snprintf(text, sizeof text, "{\"ssm_cfg\": {\"layer\": \"Mamba2\", \"dt_limit\": %s}}", rows[i].text);
        kr_model_config *c = READ(text);
        CHECK(c && c->mamba2->dt_limit_min == rows[i].low && c->mamba2->dt_limit_max == rows[i].high, "%s", text);
        kr_model_config_destroy(c);
        snprintf(text, sizeof text, "{\"model_type\": \"mamba2\", \"use_bias\": true, \"time_step_limit\": %s}",
                 rows[i].text);
        c = READ(text);
        CHECK(c && c->mamba2->dt_limit_min == rows[i].low && c->mamba2->dt_limit_max == rows[i].high, "%s", text);
        kr_model_config_destroy(c);
    }
    end();
}

TEST(dtypes)
{
    begin();
    static const struct {
        const char *text;
        kr_dtype dtype;
        int warnings;
    } rows[] = { { "\"torch_dtype\": \"float16\"", KR_DTYPE_F16, 0 },
                 { "\"dtype\": \"bfloat16\", \"torch_dtype\": \"float16\"", KR_DTYPE_BF16, 0 },
                 { "\"torch_dtype\": \"float16\", \"dtype\": \"float64\"", KR_DTYPE_F64, 0 },
                 { "\"torch_dtype\": \"float16\", \"dtype\": null", KR_DTYPE_F16, 0 },
                 { "\"torch_dtype\": null", KR_DTYPE_F32, 0 },
                 { "\"dtype\": \"int8\"", KR_DTYPE_F32, 1 } };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char text[200];
        snprintf(text, sizeof text, "{\"model_type\": \"mamba\", \"use_bias\": false, %s}", rows[i].text);
        nlogged = 0;
        kr_model_config *c = READ(text);
        CHECK(c && c->mamba1->dtype == rows[i].dtype && nlogged == rows[i].warnings, "%s", text);
        kr_model_config_destroy(c);
    }
    end();
}

TEST(unknown_keys_are_named)
{
    begin();
    kr_model_config *c = READ("{\"foo\": 1, \"ssm_cfg\": {\"bar\": [2]}}");
    CHECK(c != NULL && nlogged == 2, "%d warnings", nlogged);
    CHECK(strcmp(logged, "config.json: the key 'foo' is unknown and was ignored\n"
                         "config.json: the key 'ssm_cfg.bar' is unknown and was ignored\n") == 0,
          "%s", logged);
    kr_model_config_destroy(c);
    forget_log();
    c = READ("{\"model_type\": \"mamba\", \"mixer_rms_eps\": 1e-6}");
    CHECK(c != NULL && strcmp(logged, "config.json: the key 'mixer_rms_eps' is unknown and was ignored\n"
                                      "config.json: use_bias is missing; assuming false\n") == 0,
          "%s", logged);
    kr_model_config_destroy(c);
    end();
}

/* ---- errors ---- */

typedef struct error_case {
    kr_status status;
    const char *text, *message;
} error_case;

static void refuse_all(const error_case *rows, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        kr_model_config *c = READ(rows[i].text);
        CHECK(!c, "%s is taken", rows[i].text);
        CHECK_ERROR(ctx, rows[i].status, rows[i].message);
        kr_model_config_destroy(c);
    }
}
#define REFUSE_ALL(rows) refuse_all(rows, sizeof(rows) / sizeof *(rows))
#define F KR_ERR_FORMAT
#define U KR_ERR_UNSUPPORTED

TEST(official_errors)
{
    begin();
    static const error_case rows[] = {
        { F, "[]", "config.json: the file is not an object, but of the kind array" },
        { F, "{\"d_model\": 1, \"d_model\": 2}",
          "config.json: json: at byte 15: the key \"d_model\" occurs twice in one object" },
        { F, "{", "config.json: json: at byte 1: expected a key in quotes, got the end of the text" },
        { F, "{\"d_model\": \"64\"}", "config.json: d_model = '64', but must be a whole number" },
        { F, "{\"d_model\": 64.0}", "config.json: d_model = 64, but must be a whole number" },
        { F, "{\"d_model\": 0}", "config.json: d_model = 0, but must be from 1 to 1073741824" },
        { F, "{\"n_layer\": 20000}", "config.json: n_layer = 20000, but must be from 1 to 16384" },
        { F, "{\"n_layer\": null}", "config.json: n_layer = null, but must be a whole number" },
        { F, "{\"vocab_size\": 0}",
          "config.json: vocab_size = 0 and krait.input_size = 0, but one of them must be above 0: tokens or features" },
        { F, "{\"pad_vocab_size_multiple\": 0}",
          "config.json: pad_vocab_size_multiple = 0, but must be from 1 to 1073741824" },
        { F, "{\"tie_embeddings\": 1}", "config.json: tie_embeddings = 1, but must be true or false" },
        { F, "{\"ssm_cfg\": []}", "config.json: ssm_cfg = [], but must be an object" },
        { F, "{\"ssm_cfg\": {\"layer\": \"Mamba4\"}}",
          "config.json: ssm_cfg.layer = 'Mamba4', but must be 'Mamba1', 'Mamba2', 'Mamba3' or a family that the "
          "program has registered" },
        { F, "{\"ssm_cfg\": {\"layer\": \"Mamba1\\u0000\"}}",
          "config.json: ssm_cfg.layer = 'Mamba1?', but must be 'Mamba1', 'Mamba2', 'Mamba3' or a family that the "
          "program has registered" },
        { F, "{\"ssm_cfg\": {\"dt_rank\": \"automatic\"}}",
          "config.json: ssm_cfg.dt_rank = 'automatic', but must be a positive integer, or 'auto'" },
        { F, "{\"ssm_cfg\": {\"dt_rank\": 0}}",
          "config.json: ssm_cfg.dt_rank = 0, but must be a positive integer, or 'auto'" },
        { F, "{\"ssm_cfg\": {\"dt_init\": \"zero\"}}",
          "config.json: ssm_cfg.dt_init = 'zero', but must be 'random' or 'constant'" },
        { F, "{\"ssm_cfg\": {\"dt_min\": 0}}", "config.json: ssm_cfg.dt_min = 0, but must be finite and above 0" },
        { F, "{\"ssm_cfg\": {\"dt_min\": NaN}}", "config.json: ssm_cfg.dt_min = nan, but must be finite and above 0" },
        { F, "{\"ssm_cfg\": {\"dt_min\": Infinity}}",
          "config.json: ssm_cfg.dt_min = inf, but must be finite and above 0" },
        { F, "{\"ssm_cfg\": {\"dt_min\": \"x\"}}", "config.json: ssm_cfg.dt_min = 'x', but must be a number" },
        { F, "{\"ssm_cfg\": {\"layer\": \"Mamba2\", \"dt_limit\": [1]}}",
          "config.json: ssm_cfg.dt_limit = [...], but must be an array of two numbers" },
        { F, "{\"ssm_cfg\": {\"layer\": \"Mamba2\", \"dt_limit\": [2, 1]}}",
          "config.json: ssm_cfg.dt_limit = [2, 1], but must be a range: the first at least 0, the second no less" },
        { F, "{\"ssm_cfg\": {\"layer\": \"Mamba2\", \"dt_limit\": [Infinity, Infinity]}}",
          "config.json: ssm_cfg.dt_limit = [inf, inf], but must be a range: the first at least 0, the second no less" },
        { F, "{\"ssm_cfg\": {\"layer\": \"Mamba2\", \"A_init_range\": [0, 1]}}",
          "config.json: ssm_cfg.A_init_range = [0, 1], but must be a range: the first above 0, the second finite and "
          "no less" },
        { F, "{\"ssm_cfg\": {\"layer\": \"Mamba2\", \"d_ssm\": 0}}",
          "config.json: ssm_cfg.d_ssm = 0, but must be a positive integer, or null" },
        { F, "{\"ssm_cfg\": {\"layer\": \"Mamba3\", \"rope_fraction\": 0.25}}",
          "config.json: ssm_cfg.rope_fraction = 0.25, but must be 0.5 or 1" },
        { F, "{\"ssm_cfg\": {\"layer\": \"Mamba3\", \"rope_fraction\": 0}}",
          "config.json: ssm_cfg.rope_fraction = 0, but must be finite and above 0" },
        { F, "{\"attn_layer_idx\": 3}", "config.json: attn_layer_idx = 3, but must be an array" },
        { U, "{\"attn_layer_idx\": [9, 18]}",
          "config.json: attn_layer_idx names 2 attention layer(s), but models with attention are not supported" },
        { U, "{\"rms_norm\": false}", "config.json: rms_norm = false, but models with layer norms are not supported" },
    };
    REFUSE_ALL(rows);
    CHECK(!kr_model_config_parse(ctx, NULL, 0), "NULL");
    CHECK_ERROR(ctx, KR_ERR_ARG, "config.json: the text is NULL");
    char *large = malloc((1 << 20) + 2);
    memset(large, ' ', (1 << 20) + 1);
    CHECK(!kr_model_config_parse(ctx, large, (1 << 20) + 1), "more than 1 MiB");
    CHECK_ERROR_HAS(ctx, KR_ERR_FORMAT, "1048576");
    free(large);
    CHECK(!kr_model_config_load(ctx, "no/such/config.json"), "no file");
    CHECK_ERROR(ctx, KR_ERR_IO, "cannot open no/such/config.json: no such file or directory");
    end();
}

TEST(hf_errors)
{
    begin();
    static const error_case rows[] = {
        { F, "{\"model_type\": \"llama\"}",
          "config.json: model_type = 'llama', but must be 'mamba', 'mamba2' or 'falcon_mamba'" },
        { F, "{\"model_type\": \"mamba3\"}",
          "config.json: model_type = 'mamba3', but must be 'mamba', 'mamba2' or 'falcon_mamba'" },
        { F, "{\"model_type\": 3}", "config.json: model_type = 3, but must be 'mamba', 'mamba2' or 'falcon_mamba'" },
        { F, "{\"model_type\": \"mamba\", \"hidden_act\": \"gelu\"}",
          "config.json: hidden_act = 'gelu', but must be 'silu', the only activation of these models" },
        { F, "{\"model_type\": \"mamba2\", \"use_bias\": false, \"num_heads\": 100}",
          "config.json: num_heads = 100 times head_dim = 64 must be hidden_size = 4096 times expand = 2" },
        { F, "{\"model_type\": \"mamba2\", \"use_bias\": false, \"num_heads\": 9223372036854775807}",
          "config.json: num_heads = 9223372036854775807 times head_dim = 64 must be hidden_size = 4096 times expand = "
          "2" },
        { F, "{\"model_type\": \"mamba2\", \"num_heads\": 0}",
          "config.json: num_heads = 0, but must be a positive integer" },
        { F, "{\"model_type\": \"mamba\", \"vocab_size\": 0}",
          "config.json: vocab_size = 0, but must be from 1 to 1073741824" },
        { F, "{\"model_type\": \"mamba\", \"eos_token_id\": -3}",
          "config.json: eos_token_id = -3, but must be a token id, an array of such, or null for none" },
        { F, "{\"model_type\": \"mamba\", \"eos_token_id\": [1, \"2\"]}",
          "config.json: eos_token_id = [...], but must be a token id, an array of such, or null for none" },
        { F, "{\"model_type\": \"mamba\", \"eos_token_id\": [1, 2, 3, 4, 5, 6, 7, 8, 9]}",
          "config.json: eos_token_id has 9 ids, but at most 8 are kept" },
        { F, "{\"model_type\": \"mamba\", \"pad_token_id\": -2}",
          "config.json: pad_token_id = -2, but must be a token id, or null for none" },
        { F, "{\"model_type\": \"mamba\", \"torch_dtype\": 3}",
          "config.json: torch_dtype = 3, but must be the name of a type" },
        { F, "{\"model_type\": \"falcon_mamba\", \"mixer_rms_eps\": 0}",
          "config.json: mixer_rms_eps = 0, but must be finite and above 0" },
    };
    REFUSE_ALL(rows);
    end();
}

TEST(krait_errors)
{
    begin();
#define KRAIT(text) "{\"krait\": {" text "}}"
#define KRAIT3(text) "{\"ssm_cfg\": {\"layer\": \"Mamba3\"}, \"krait\": {" text "}}"
    static const error_case rows[] = {
        { F, "{\"krait\": 3}", "config.json: krait = 3, but must be an object" },
        { F, KRAIT("\"foo\": 1"), "config.json: the key 'krait.foo' is unknown" },
        { F, KRAIT("\"a_activation\": \"softplus\""), "config.json: the key 'krait.a_activation' is unknown" },
        { F, KRAIT3("\"a_activation\": \"relu\""),
          "config.json: krait.a_activation = 'relu', but must be 'heavy_tail' or 'softplus'" },
        { F, KRAIT3("\"rope_fraction\": 0.25"), "config.json: krait.rope_fraction = 0.25, but must be 0, 0.5 or 1" },
        { F, KRAIT("\"n_virtual\": -1"), "config.json: krait.n_virtual = -1, but must be from 0 to 65536" },
        { F, KRAIT("\"schedule\": \"odd\""),
          "config.json: krait.schedule = 'odd', but must be 'cyclic', 'stretched' or 'custom'" },
        { F, KRAIT("\"schedule\": \"custom\""),
          "config.json: krait.schedule = 'custom', but krait.custom_schedule has 0 numbers and must have 64: one for "
          "each "
          "virtual layer" },
        { F, KRAIT("\"schedule\": \"custom\", \"n_virtual\": 2, \"custom_schedule\": [0]"),
          "config.json: krait.schedule = 'custom', but krait.custom_schedule has 1 numbers and must have 2: one for "
          "each "
          "virtual layer" },
        { F, KRAIT("\"schedule\": \"custom\", \"n_virtual\": 2, \"custom_schedule\": [0, 64]"),
          "config.json: krait.custom_schedule[1] = 64, but must be from 0 to 63: a set of weights" },
        { F, KRAIT("\"custom_schedule\": [0]"),
          "config.json: krait.custom_schedule is given, but krait.schedule is not 'custom'" },
        { F, KRAIT("\"custom_schedule\": [0.5]"),
          "config.json: krait.custom_schedule = 0.5, but must be whole numbers, each a set of weights" },
        { F, KRAIT("\"residual\": \"multi_gate\""),
          "config.json: krait.residual = 'multi_gate', but must be an object" },
        { F, KRAIT("\"residual\": {\"kind\": \"multi_gate\", \"streams\": 2}"),
          "config.json: the key 'krait.residual.streams' is unknown" },
        { F, KRAIT("\"residual\": {\"kind\": \"multi_gate\"}"),
          "config.json: krait.residual.n_stream = 0, but must be from 1 to 32" },
        { F, KRAIT("\"latents\": [{\"kind\": \"custom\"}]"),
          "config.json: krait.latents = {...}, but must be objects with \"kind\" and, for a custom one, \"at\"" },
        { F, KRAIT("\"latents\": [{\"kind\": \"start\", \"layer\": 1}]"),
          "config.json: krait.latents = {...}, but must be objects with \"kind\" and, for a custom one, \"at\"" },
        { F, KRAIT("\"layer_latents\": [{\"layer\": 64, \"kind\": \"end\"}]"),
          "config.json: krait: layer_latents[0].layer = 64, but must be from 0 to 63: a set of weights" },
        { U, "{\"model_type\": \"mamba\", \"krait\": {\"vocab_size\": 0, \"input_size\": 3, \"output_size\": 2}}",
          "config.json: krait.input_size is given, but the hf layout has no network from features" },
        { F, KRAIT("\"input_size\": 3, \"output_size\": 0"),
          "config.json: krait.input_size = 3 and krait.output_size = 0, but a network has both or none" },
        { F, "{\"vocab_size\": 7, \"krait\": {\"input_size\": 3, \"output_size\": 2}}",
          "config.json: vocab_size = 7 and krait.input_size = 3, but one of them must be above 0: tokens or features" },
    };
    REFUSE_ALL(rows);
    end();
}

TEST(any_allocation_of_reading_may_fail)
{
    begin();
    const char *text =
        "{\"n_layer\": 2, \"krait\": {\"schedule\": \"custom\", \"n_virtual\": 3, \"custom_schedule\": [0, 1, 0], "
        "\"latents\": [{\"kind\": \"end\"}], \"layer_latents\": [{\"layer\": 1, \"kind\": \"start\"}]}}";
    size_t n = 1;
    for (; n < 100; n++) {
        kr_ctx_fail_allocation(ctx, n);
        kr_model_config *c = READ(text);
        kr_ctx_fail_allocation(ctx, 0);
        const bool done = c != NULL;
        CHECK(done || kr_ctx_status(ctx) == KR_ERR_NOMEM, "%s", kr_ctx_message(ctx));
        kr_ctx_clear(ctx);
        kr_model_config_destroy(c);
        CHECK(kr_ctx_memory(ctx).live_blocks == blocks_at_begin, "allocation %zu: memory is left", n);
        if (done) break;
    }
    CHECK(n > 3 && n < 100, "%zu allocations", n - 1);
    end();
}
