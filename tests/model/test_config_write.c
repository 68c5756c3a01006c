/* test_config_write.c - config.json written: every field comes back, in either layout; plain models have no "krait";
 * what a layout cannot say is refused or warned of.
 */
#include "tests/model/log.h"
#include "tests/model/config_values.h"

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

enum { TEXT_BYTES = 1 << 14 };

static bool write_to(const kr_model_config *c, kr_layout layout, char *text)
{
    size_t needed = 0;
    return kr_model_config_format(ctx, c, layout, text, TEXT_BYTES, &needed) == KR_OK && strlen(text) == needed;
}

/* ---- fields ---- */

typedef enum where {
    BOTH,     /* comes back from both layouts */
    OFFICIAL, /* the Hugging Face layout refuses all but the default */
    DROPPED,  /* not carried to Hugging Face: how initial parameters are sampled */
    INITIAL   /* not carried from Hugging Face to official: how initial parameters are sampled */
} where;

typedef struct field {
    const char *name;
    size_t offset;
    char kind;           /* i: int64_t; b: bool; e: enum; d: double above 0; z: double from 0 on; s: any double */
    int family;          /* -1: of all */
    int64_t least, most; /* i, e */
    where where;
} field;

#define ROW(kind, family, path, least, most, where)                                                                    \
    {                                                                                                                  \
#path, offsetof(kr_model_values, path), kind, family, least, most, where                                       \
    }

static const field fields[] = {
    ROW('i', -1, layers.n_layers, 1, 9, BOTH),
    ROW('i', -1, layers.d_intermediate, 0, 99, OFFICIAL),
    ROW('i', -1, layers.mlp_multiple_of, 1, 99, BOTH),
    ROW('b', -1, layers.has_mlp_bias, 0, 1, BOTH),
    ROW('d', -1, layers.norm_eps, 0, 0, BOTH),
    ROW('b', -1, layers.ignore_first_residual, 0, 1, BOTH),
    ROW('b', -1, layers.ignore_last_residual, 0, 1, BOTH),
    ROW('b', -1, layers.residual_in_f32, 0, 1, BOTH),
    ROW('e', -1, layers.schedule, 0, 1, BOTH),
    ROW('i', -1, layers.n_virtual, 0, 20, BOTH),
    ROW('i', -1, network.vocab_size, 1, 1000, BOTH),
    ROW('i', -1, network.pad_vocab_size_multiple, 1, 20, BOTH),
    ROW('b', -1, network.tie_embeddings, 0, 1, BOTH),
    ROW('d', -1, network.embedding_std, 0, 0, INITIAL),
    ROW('b', -1, network.rescale_residual, 0, 1, DROPPED),
    ROW('i', -1, network.n_residuals, 1, 3, INITIAL),
    ROW('b', -1, network.zero_proj_biases, 0, 1, INITIAL),
    ROW('b', -1, network.has_final_norm, 0, 1, BOTH),
    ROW('b', -1, fused_add_norm, 0, 1, BOTH),

    ROW('i', KR_FAMILY_MAMBA1, mamba1.state_rank, 1, 99, BOTH),
    ROW('i', KR_FAMILY_MAMBA1, mamba1.conv_kernel, 1, 9, BOTH),
    ROW('i', KR_FAMILY_MAMBA1, mamba1.expand, 1, 5, BOTH),
    ROW('i', KR_FAMILY_MAMBA1, mamba1.d_inner, 1000, 1010, BOTH),
    ROW('i', KR_FAMILY_MAMBA1, mamba1.dt_rank, 0, 9, BOTH),
    ROW('b', KR_FAMILY_MAMBA1, mamba1.has_conv_bias, 0, 1, BOTH),
    ROW('b', KR_FAMILY_MAMBA1, mamba1.has_proj_bias, 0, 1, BOTH),
    ROW('d', KR_FAMILY_MAMBA1, mamba1.dt_min, 0, 0, BOTH),
    ROW('d', KR_FAMILY_MAMBA1, mamba1.dt_max, 0, 0, BOTH),
    ROW('d', KR_FAMILY_MAMBA1, mamba1.dt_init_floor, 0, 0, BOTH),
    ROW('z', KR_FAMILY_MAMBA1, mamba1.dt_scale, 0, 0, BOTH),
    ROW('b', KR_FAMILY_MAMBA1, mamba1.has_constant_dt, 0, 1, BOTH),
    ROW('z', KR_FAMILY_MAMBA1, mamba1.dt_limit_min, 0, 0, BOTH),
    ROW('b', KR_FAMILY_MAMBA1, mamba1.has_learnable_init_state, 0, 1, BOTH),
    ROW('z', KR_FAMILY_MAMBA1, mamba1.bcdt_norm_eps, 0, 0, BOTH),

    ROW('i', KR_FAMILY_MAMBA2, mamba2.state_rank, 1, 99, BOTH),
    ROW('i', KR_FAMILY_MAMBA2, mamba2.conv_kernel, 1, 9, BOTH),
    ROW('z', KR_FAMILY_MAMBA2, mamba2.conv_init, 0, 0, BOTH),
    ROW('i', KR_FAMILY_MAMBA2, mamba2.expand, 1, 5, BOTH),
    ROW('i', KR_FAMILY_MAMBA2, mamba2.per_head_dim, 1, 2, BOTH),
    ROW('i', KR_FAMILY_MAMBA2, mamba2.d_ssm, 0, 9, OFFICIAL),
    ROW('i', KR_FAMILY_MAMBA2, mamba2.n_groups, 2, 9, BOTH),
    ROW('d', KR_FAMILY_MAMBA2, mamba2.a_init_min, 0, 0, BOTH),
    ROW('b', KR_FAMILY_MAMBA2, mamba2.has_d_per_dim, 0, 1, OFFICIAL),
    ROW('b', KR_FAMILY_MAMBA2, mamba2.has_norm, 0, 1, OFFICIAL),
    ROW('b', KR_FAMILY_MAMBA2, mamba2.norm_before_gate, 0, 1, OFFICIAL),
    ROW('b', KR_FAMILY_MAMBA2, mamba2.norm_per_group, 0, 1, BOTH),
    ROW('d', KR_FAMILY_MAMBA2, mamba2.norm_eps, 0, 0, BOTH),
    ROW('b', KR_FAMILY_MAMBA2, mamba2.has_proj_bias, 0, 1, BOTH),
    ROW('b', KR_FAMILY_MAMBA2, mamba2.has_conv_bias, 0, 1, BOTH),
    ROW('d', KR_FAMILY_MAMBA2, mamba2.dt_min, 0, 0, BOTH),
    ROW('d', KR_FAMILY_MAMBA2, mamba2.dt_max, 0, 0, BOTH),
    ROW('d', KR_FAMILY_MAMBA2, mamba2.dt_init_floor, 0, 0, BOTH),
    ROW('z', KR_FAMILY_MAMBA2, mamba2.dt_limit_min, 0, 0, BOTH),
    ROW('b', KR_FAMILY_MAMBA2, mamba2.has_learnable_init_state, 0, 1, BOTH),
    ROW('i', KR_FAMILY_MAMBA2, chunk_size, 0, 300, BOTH),

    ROW('i', KR_FAMILY_MAMBA3, mamba3.state_rank, 1, 99, BOTH),
    ROW('i', KR_FAMILY_MAMBA3, mamba3.expand, 1, 5, BOTH),
    ROW('i', KR_FAMILY_MAMBA3, mamba3.per_head_dim, 1, 99, BOTH),
    ROW('i', KR_FAMILY_MAMBA3, mamba3.n_groups, 1, 9, BOTH),
    ROW('b', KR_FAMILY_MAMBA3, mamba3.is_mimo, 0, 1, BOTH),
    ROW('i', KR_FAMILY_MAMBA3, mamba3.mimo_rank, 1, 9, BOTH),
    ROW('e', KR_FAMILY_MAMBA3, mamba3.rotation, 0, 1, BOTH),
    ROW('d', KR_FAMILY_MAMBA3, mamba3.rotation_range, 0, 0, BOTH),
    ROW('e', KR_FAMILY_MAMBA3, mamba3.a_activation, 0, 1, BOTH),
    ROW('d', KR_FAMILY_MAMBA3, mamba3.a_floor, 0, 0, BOTH),
    ROW('b', KR_FAMILY_MAMBA3, mamba3.has_outproj_norm, 0, 1, BOTH),
    ROW('b', KR_FAMILY_MAMBA3, mamba3.has_shared_norm_gain, 0, 1, BOTH),
    ROW('d', KR_FAMILY_MAMBA3, mamba3.norm_eps, 0, 0, BOTH),
    ROW('b', KR_FAMILY_MAMBA3, mamba3.has_proj_bias, 0, 1, BOTH),
    ROW('d', KR_FAMILY_MAMBA3, mamba3.dt_min, 0, 0, BOTH),
    ROW('d', KR_FAMILY_MAMBA3, mamba3.dt_max, 0, 0, BOTH),
    ROW('d', KR_FAMILY_MAMBA3, mamba3.dt_init_floor, 0, 0, BOTH),
    ROW('z', KR_FAMILY_MAMBA3, mamba3.dt_limit_min, 0, 0, BOTH),
    ROW('b', KR_FAMILY_MAMBA3, mamba3.has_learnable_init_state, 0, 1, BOTH),
    ROW('e', KR_FAMILY_MAMBA3, mamba3.pathway, 0, 1, BOTH),
    ROW('i', KR_FAMILY_MAMBA3, chunk_size, 0, 300, BOTH),
};
enum { FIELDS = sizeof fields / sizeof *fields };

static size_t bytes_of(const field *f)
{
    return f->kind == 'b' ? sizeof(bool) : f->kind == 'e' ? sizeof(int) : 8;
}

/* Of any size, with any digits. */
static double draw_double(const field *f)
{
    if (f->kind == 'z' && kr_test_below(4) == 0) return 0;
    const double x = ldexp(kr_test_uniform(0.5, 1), (int)kr_test_below(60) - 40);
    return kr_test_below(3) == 0 ? ldexp(1, (int)kr_test_below(8)) : x;
}

static void draw_field(kr_model_values *c, const field *f)
{
    char *at = (char *)c + f->offset;
    const int64_t n = f->least + kr_test_below(f->most - f->least + 1);
    const double x = draw_double(f);
    const int e = (int)n;
    const bool b = n;
    memcpy(at,
           f->kind == 'i'   ? (const void *)&n
           : f->kind == 'b' ? (const void *)&b
           : f->kind == 'e' ? (const void *)&e
                            : &x,
           bytes_of(f));
}

static bool is_of(const field *f, const kr_model_values *c, kr_layout layout)
{
    return (f->family < 0 || f->family == (int)c->family) && (layout == KR_LAYOUT_OFFICIAL || f->where != OFFICIAL);
}

static void check_fields(const kr_model_values *got, const kr_model_values *want, kr_layout layout, const char *text)
{
    CHECK(got->family == want->family && got->layout == layout &&
              kr_model_config_d_model(config_of(got)) == kr_model_config_d_model(config_of(want)),
          "%s", text);
    const bool drops_initial = layout == KR_LAYOUT_OFFICIAL && want->layout == KR_LAYOUT_HF;
    for (int i = 0; i < FIELDS; i++) {
        const field *f = &fields[i];
        if (!is_of(f, want, layout) || (drops_initial && f->where >= DROPPED)) continue;
        if (layout == KR_LAYOUT_HF && f->where == DROPPED) continue;
        const bool same = memcmp((const char *)got + f->offset, (const char *)want + f->offset, bytes_of(f)) == 0;
        if (!CHECK(same, "%s comes back as another from %s", f->name, text)) return;
    }
}

/* Any fields changed, some or all. */
static kr_model_values draw_config(kr_family family, kr_layout layout)
{
    kr_model_values c;
    kr_model_values_init(&c);
    c.family = family;
    c.layout = kr_test_below(2) ? KR_LAYOUT_HF : KR_LAYOUT_OFFICIAL;
    c.layers.n_layers = 2;
    c.network.vocab_size = 100;
    kr_config_set_d_model(&c, 64 + 2 * kr_test_below(50));
    c.mamba2.n_groups = 2;     /* of one group it does not matter how norms go, and that is not told */
    c.mamba2.per_head_dim = 2; /* the Hugging Face layout counts heads, whole ones */
    const int64_t odds = 1 + kr_test_below(6);
    for (int i = 0; i < FIELDS; i++)
        if (is_of(&fields[i], &c, layout) && kr_test_below(odds) == 0) draw_field(&c, &fields[i]);
    const double rope[] = { 0, 0.5, 1 };
    c.mamba3.rope_fraction = rope[kr_test_below(3)];
    c.mamba2.a_init_max = c.mamba2.a_init_min * 2;
    double *limits[] = { &c.mamba1.dt_limit_max, &c.mamba2.dt_limit_max, &c.mamba3.dt_limit_max };
    const double lows[] = { c.mamba1.dt_limit_min, c.mamba2.dt_limit_min, c.mamba3.dt_limit_min };
    for (int i = 0; i < 3; i++) *limits[i] = kr_test_below(2) ? INFINITY : lows[i] + 0.1;
    c.bos = kr_test_below(3) - 1;
    c.pad = kr_test_below(3) - 1;
    c.n_eos = (int)kr_test_below(4);
    for (int i = 0; i < c.n_eos; i++) c.eos[i] = kr_test_below(100);
    return c;
}

static void check_limits(const kr_model_values *got, const kr_model_values *want)
{
    CHECK((want->family != KR_FAMILY_MAMBA1 || got->mamba1.dt_limit_max == want->mamba1.dt_limit_max) &&
              (want->family != KR_FAMILY_MAMBA2 || (got->mamba2.dt_limit_max == want->mamba2.dt_limit_max &&
                                                    got->mamba2.a_init_max == want->mamba2.a_init_max)) &&
              (want->family != KR_FAMILY_MAMBA3 || (got->mamba3.dt_limit_max == want->mamba3.dt_limit_max &&
                                                    got->mamba3.rope_fraction == want->mamba3.rope_fraction)),
          "limits");
}

static void check_tokens(const kr_model_values *got, const kr_model_values *want)
{
    CHECK(got->bos == want->bos && got->pad == want->pad && got->n_eos == want->n_eos &&
              memcmp(got->eos, want->eos, (size_t)want->n_eos * sizeof *want->eos) == 0,
          "token ids");
}

TEST(every_field_comes_back)
{
    begin();
    static char text[TEXT_BYTES], again[TEXT_BYTES];
    const int rounds = kr_test_quick() ? 60 : 600;
    for (int n = 0; n < rounds; n++) {
        const kr_layout layout = kr_test_below(2) ? KR_LAYOUT_HF : KR_LAYOUT_OFFICIAL;
        const kr_family family = (kr_family)kr_test_below(layout == KR_LAYOUT_HF ? 2 : 3);
        const kr_model_values c = draw_config(family, layout);
        if (!CHECK(write_to(config_of(&c), layout, text), "%s", kr_ctx_message(ctx))) break;
        kr_model_config *back = kr_model_config_parse(ctx, text, strlen(text));
        if (!CHECK(back != NULL, "%s: %s", kr_ctx_message(ctx), text)) break;
        const kr_model_values got = values_of(ctx, back);
        check_fields(&got, &c, layout, text);
        check_limits(&got, &c);
        if (layout == KR_LAYOUT_HF) check_tokens(&got, &c);
        CHECK(write_to(back, layout, again) && strcmp(text, again) == 0, "%s is written again as %s", text, again);
        kr_model_config_destroy(back);
    }
    end();
}

/* The lists, which have one way to be there. */
TEST(lists_come_back)
{
    begin();
    static char text[TEXT_BYTES], again[TEXT_BYTES];
    const int64_t schedule[] = { 1, 0, 1 };
    const kr_class_token latents[] = { { .kind = KR_CLASS_TOKEN_END },
                                       { .kind = KR_CLASS_TOKEN_CUSTOM, .at = 9007199254740993 } };
    const kr_layer_class_token of_layers[] = { { 1, { .kind = KR_CLASS_TOKEN_MIDDLE } },
                                               { 0, { .kind = KR_CLASS_TOKEN_CUSTOM, .at = 3 } } };
    kr_model_values c;
    kr_model_values_init(&c);
    kr_config_set_d_model(&c, 64);
    c.layers.n_layers = 2;
    c.layers.n_virtual = 3;
    c.layers.schedule = KR_SCHEDULE_CUSTOM;
    c.layers.custom_schedule = schedule;
    c.layers.latents = latents;
    c.layers.n_latents = 2;
    c.layers.layer_latents = of_layers;
    c.layers.n_layer_latents = 2;
    c.layers.residual = (kr_residual){ .kind = KR_RESIDUAL_MULTI_GATE,
                                       .n_stream = 3,
                                       .init_bias = -1.5,
                                       .init_bias_step = 0.25,
                                       .per_virtual_layer = true };
    c.network.input_size = 5;
    c.network.output_size = 7;
    c.network.class_tokens = latents;
    c.network.n_class_tokens = 1;
    CHECK(write_to(config_of(&c), KR_LAYOUT_AS_LOADED, text), "%s", kr_ctx_message(ctx));
    kr_model_config *back = kr_model_config_parse(ctx, text, strlen(text));
    if (CHECK(back != NULL, "%s", kr_ctx_message(ctx))) {
        const kr_layers_config *l = back->layers;
        CHECK(l->n_virtual == 3 && l->schedule == KR_SCHEDULE_CUSTOM &&
                  memcmp(l->custom_schedule, schedule, sizeof schedule) == 0,
              "schedule");
        CHECK(l->n_latents == 2 && l->latents[0].kind == KR_CLASS_TOKEN_END &&
                  l->latents[1].kind == KR_CLASS_TOKEN_CUSTOM && l->latents[1].at == 9007199254740993,
              "latents");
        CHECK(l->n_layer_latents == 2 && l->layer_latents[0].layer == 1 &&
                  l->layer_latents[0].token.kind == KR_CLASS_TOKEN_MIDDLE && l->layer_latents[1].layer == 0 &&
                  l->layer_latents[1].token.at == 3,
              "latents of layers");
        CHECK(l->residual.kind == KR_RESIDUAL_MULTI_GATE && l->residual.n_stream == 3 &&
                  l->residual.init_bias == -1.5 && l->residual.init_bias_step == 0.25 && l->residual.per_virtual_layer,
              "residual");
        CHECK(back->network->input_size == 5 && back->network->output_size == 7 && back->network->vocab_size == 0 &&
                  back->network->n_class_tokens == 1 && back->network->class_tokens[0].kind == KR_CLASS_TOKEN_END,
              "network");
        CHECK(write_to(back, KR_LAYOUT_AS_LOADED, again) && strcmp(text, again) == 0, "%s", again);
    }
    kr_model_config_destroy(back);
    end();
}

/* ---- one layout to the other ---- */

static kr_model_config *read_golden(const char *name)
{
    char path[512];
    snprintf(path, sizeof path, "%s/tests/golden/%s/config.json", KR_SOURCE_DIR, name);
    kr_model_config *c = kr_model_config_load(ctx, path);
    CHECK(c != NULL, "%s", kr_ctx_message(ctx));
    return c;
}

/* Through the other layout and back: the same text. */
static void check_there_and_back(const char *name, const char *warnings)
{
    static char own[TEXT_BYTES], other[TEXT_BYTES], back[TEXT_BYTES];
    kr_model_config *c = read_golden(name);
    const kr_layout foreign = c->layout == KR_LAYOUT_HF ? KR_LAYOUT_OFFICIAL : KR_LAYOUT_HF;
    forget_log();
    CHECK(write_to(c, KR_LAYOUT_AS_LOADED, own) && nlogged == 0 && !strstr(own, "krait"), "%s: %s %s", name, own,
          logged);
    CHECK(write_to(c, foreign, other), "%s", kr_ctx_message(ctx));
    CHECK(strcmp(logged, warnings) == 0, "%s: %s", name, logged);
    kr_model_config *d = kr_model_config_parse(ctx, other, strlen(other));
    CHECK(d && write_to(d, c->layout, back), "%s", kr_ctx_message(ctx));
    if (c->layout == KR_LAYOUT_OFFICIAL) CHECK(strcmp(own, back) == 0, "%s became %s", own, back);
    kr_model_config_destroy(d);
    kr_model_config_destroy(c);
}

TEST(layouts_there_and_back)
{
    begin();
    check_there_and_back("official_lm/mamba1", "");
    check_there_and_back("official_lm/mamba2", "");
    check_there_and_back(
        "official_lm/mamba2_g2_untied",
        "config.json: 'krait' holds norm_per_group: transformers ignores it and computes different results\n");
    check_there_and_back("hf_mamba/tied", "");
    check_there_and_back("hf_mamba2/g1_untied", "");
    check_there_and_back("hf_mamba2/g2_untied",
                         "config.json: 'krait' holds norm_per_group: the official code refuses such a file\n");
    end();
}

TEST(published_sizes_there_and_back)
{
    begin();
    static char own[TEXT_BYTES], other[TEXT_BYTES], back[TEXT_BYTES];
    const char *text =
        "{\"d_model\": 768, \"n_layer\": 24, \"vocab_size\": 50277, \"ssm_cfg\": {}, \"pad_vocab_size_multiple\": 8}";
    kr_model_config *c = kr_model_config_parse(ctx, text, strlen(text));
    CHECK(write_to(c, KR_LAYOUT_OFFICIAL, own) && !strstr(own, "krait"), "%s", own);
    CHECK(write_to(c, KR_LAYOUT_HF, other) && strstr(other, "\"vocab_size\": 50280") &&
              strstr(other, "\"intermediate_size\": 1536") && strstr(other, "\"time_step_rank\": \"auto\""),
          "%s", other);
    kr_model_config *d = kr_model_config_parse(ctx, other, strlen(other));
    CHECK(d && d->network->vocab_size == 50277 && d->network->pad_vocab_size_multiple == 8, "%s", other);
    CHECK(d && write_to(d, KR_LAYOUT_OFFICIAL, back) && strcmp(own, back) == 0, "%s", back);
    CHECK(nlogged == 0, "%s", logged);
    kr_model_config_destroy(c);
    kr_model_config_destroy(d);
    end();
}

TEST(falcon_has_its_own_type)
{
    begin();
    static char text[TEXT_BYTES];
    kr_model_values c;
    kr_model_values_init(&c);
    c.family = KR_FAMILY_MAMBA1;
    c.network.vocab_size = 10;
    c.layers.n_layers = 1;
    c.mamba1.bcdt_norm_eps = 1e-6;
    kr_config_set_d_model(&c, 16);
    CHECK(write_to(config_of(&c), KR_LAYOUT_HF, text) && strstr(text, "\"model_type\": \"falcon_mamba\"") &&
              strstr(text, "\"mixer_rms_eps\": 1e-06") && strstr(text, "FalconMambaForCausalLM"),
          "%s", text);
    CHECK(nlogged == 0, "%s", logged);
    CHECK(write_to(config_of(&c), KR_LAYOUT_OFFICIAL, text) && strstr(text, "\"bcdt_norm_eps\": 1e-06") && nlogged == 1,
          "%s", text);
    end();
}

/* ---- errors ---- */

static void refuse(const kr_model_config *c, kr_layout layout, kr_status status, const char *message)
{
    char text[64] = "x";
    size_t needed = 1;
    CHECK(kr_model_config_format(ctx, c, layout, text, sizeof text, &needed) == status && needed == 0, "%s", message);
    CHECK_ERROR(ctx, status, message);
}

static kr_model_values plain(kr_family family)
{
    kr_model_values c;
    kr_model_values_init(&c);
    c.family = family;
    c.layers.n_layers = 2;
    c.network.vocab_size = 16;
    kr_config_set_d_model(&c, 64);
    return c;
}

#define REFUSE(family, layout, status, message, ...)                                                                   \
    do {                                                                                                               \
        kr_model_values c = plain(family);                                                                             \
        __VA_ARGS__;                                                                                                   \
        refuse(config_of(&c), layout, status, message);                                                                \
    } while (0)

TEST(what_hugging_face_has_not)
{
    begin();
#define HF(family, what, ...)                                                                                          \
    REFUSE(family, KR_LAYOUT_HF, KR_ERR_UNSUPPORTED,                                                                   \
           "config.json: the hf layout has no " what "; save the model in the official layout", __VA_ARGS__)
    HF(KR_FAMILY_MAMBA3, "Mamba-3", (void)c);
    HF(KR_FAMILY_MAMBA1, "MLP (d_intermediate)", c.layers.d_intermediate = 1);
    HF(KR_FAMILY_MAMBA2, "parallel MLP (d_ssm)", c.mamba2.d_ssm = 64);
    HF(KR_FAMILY_MAMBA2, "skip for each channel (D_has_hdim)", c.mamba2.has_d_per_dim = true);
    HF(KR_FAMILY_MAMBA2, "Mamba-2 without its gated norm (rmsnorm)", c.mamba2.has_norm = false);
    HF(KR_FAMILY_MAMBA2, "norm before the gate (norm_before_gate)", c.mamba2.norm_before_gate = true);
    HF(KR_FAMILY_MAMBA1, "network from features (input_size)", c.network.vocab_size = 0; c.network.input_size = 3;
       c.network.output_size = 3);
    end();
}

TEST(what_is_no_config)
{
    begin();
    const kr_status f = KR_ERR_FORMAT;
    REFUSE(KR_FAMILY_MAMBA1, (kr_layout)7, KR_ERR_ARG, "config.json: layout = 7 is neither official nor hf", (void)c);
    REFUSE(KR_FAMILY_MAMBA1, KR_LAYOUT_AS_LOADED, KR_ERR_ARG,
           "config.json: family = 9 is not one of mamba1, mamba2, mamba3, or registered", c.family = (kr_family)9);
    REFUSE(KR_FAMILY_MAMBA1, KR_LAYOUT_AS_LOADED, KR_ERR_DTYPE,
           "config.json: dtype = i32, but must be f32, f64, bf16 or f16", c.mamba1.dtype = KR_DTYPE_I32);
    REFUSE(KR_FAMILY_MAMBA1, KR_LAYOUT_OFFICIAL, f, "config.json: d_model = 0, but must be from 1 to 1073741824",
           kr_config_set_d_model(&c, 0));
    REFUSE(KR_FAMILY_MAMBA1, KR_LAYOUT_HF, f, "config.json: hidden_size = -1, but must be from 1 to 1073741824",
           kr_config_set_d_model(&c, -1));
    REFUSE(KR_FAMILY_MAMBA2, KR_LAYOUT_HF, f,
           "config.json: head_dim = 3 does not divide hidden_size times expand = 128", c.mamba2.per_head_dim = 3);
    REFUSE(KR_FAMILY_MAMBA2, KR_LAYOUT_OFFICIAL, f,
           "config.json: ssm_cfg.headdim = 0, but must be from 1 to 1073741824", c.mamba2.per_head_dim = 0);
    REFUSE(KR_FAMILY_MAMBA2, KR_LAYOUT_HF, f, "config.json: head_dim = 0, but must be from 1 to 1073741824",
           c.mamba2.per_head_dim = 0);
    REFUSE(KR_FAMILY_MAMBA2, KR_LAYOUT_OFFICIAL, f, "config.json: krait.norm_eps = nan, but must be finite and above 0",
           c.layers.norm_eps = NAN);
    REFUSE(KR_FAMILY_MAMBA2, KR_LAYOUT_HF, f,
           "config.json: krait.pad_vocab_size_multiple = 0, but must be from 1 to 1073741824",
           c.network.pad_vocab_size_multiple = 0);
    REFUSE(KR_FAMILY_MAMBA2, KR_LAYOUT_HF, f, "config.json: eos_token_id: n_eos = 9, but must be from 0 to 8",
           c.n_eos = 9);
    REFUSE(KR_FAMILY_MAMBA2, KR_LAYOUT_HF, f, "config.json: pad_token_id = -2, but must be an id, or -1 for none",
           c.pad = -2);
    REFUSE(KR_FAMILY_MAMBA3, KR_LAYOUT_OFFICIAL, f,
           "config.json: krait.pathway = 5, but must be from 0 to 1: 'single' ...",
           c.mamba3.pathway = (kr_mamba3_pathway)5);
    REFUSE(KR_FAMILY_MAMBA3, KR_LAYOUT_OFFICIAL, KR_ERR_ARG, "config.json: krait: n_latents = 2, but latents is NULL",
           c.layers.n_latents = 2);
    REFUSE(KR_FAMILY_MAMBA3, KR_LAYOUT_OFFICIAL, f, "config.json: n_layers = 0, but must be from 1 to 16384",
           c.layers.n_layers = 0);
    REFUSE(
        KR_FAMILY_MAMBA3, KR_LAYOUT_OFFICIAL, f,
        "config.json: krait.schedule = 'custom', but krait.custom_schedule has 0 numbers and must have 2: one for each "
        "virtual layer",
        c.layers.schedule = KR_SCHEDULE_CUSTOM);
    enum { MANY = 60000 };
    kr_class_token *latents = calloc(MANY, sizeof *latents);
    REFUSE(KR_FAMILY_MAMBA1, KR_LAYOUT_OFFICIAL, KR_ERR_ARG,
           "config.json: the lists of the config make it 1140304 bytes long, but at most 1048576 are read",
           c.layers.latents = latents;
           c.layers.n_latents = MANY);
    free(latents);
    CHECK(kr_model_config_format(ctx, NULL, KR_LAYOUT_HF, NULL, 0, NULL) == KR_ERR_ARG, "NULL");
    CHECK_ERROR(ctx, KR_ERR_ARG, "config.json: config is NULL");
    CHECK(strcmp(kr_layout_name(KR_LAYOUT_OFFICIAL), "official") == 0 &&
              strcmp(kr_layout_name(KR_LAYOUT_HF), "hf") == 0 && strcmp(kr_layout_name(KR_LAYOUT_AS_LOADED), "?") == 0,
          "names");
    end();
}

TEST(short_memory_is_filled_as_by_snprintf)
{
    begin();
    static char whole[TEXT_BYTES];
    kr_model_values c = plain(KR_FAMILY_MAMBA2);
    size_t needed = 0, length = 0;
    CHECK(kr_model_config_format(ctx, config_of(&c), KR_LAYOUT_HF, NULL, 0, &needed) == KR_OK && needed > 100, "%zu",
          needed);
    CHECK(kr_model_config_format(ctx, config_of(&c), KR_LAYOUT_HF, whole, needed + 1, &length) == KR_OK &&
              length == needed && strlen(whole) == needed,
          "%zu", length);
    for (size_t capacity = 1; capacity <= needed; capacity += 7) {
        char *part = malloc(capacity);
        CHECK(kr_model_config_format(ctx, config_of(&c), KR_LAYOUT_HF, part, capacity, &length) == KR_OK &&
                  length == needed && strlen(part) == capacity - 1 && memcmp(part, whole, capacity - 1) == 0,
              "%zu bytes", capacity);
        free(part);
    }
    end();
}

/* transformers 5 divides weights by it after loading them. */
TEST(config_written_for_transformers_does_not_rescale)
{
    begin();
    static char text[TEXT_BYTES];
    kr_model_values c;
    kr_model_values_init(&c);
    c.network.vocab_size = 8;
    c.layers.n_layers = 1;
    kr_config_set_d_model(&c, 64);
    CHECK(c.network.rescale_residual, "the default draws rescaled weights");
    CHECK(write_to(config_of(&c), KR_LAYOUT_HF, text), "%s", kr_ctx_message(ctx));
    CHECK(strstr(text, "\"rescale_prenorm_residual\": false") != NULL, "%s", text);
    end();
}
