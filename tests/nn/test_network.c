/* test_network.c - making stacks and networks: their tables, and how they begin. */
#include "tests/nn/networks.h"
#include "tests/error_tests.h"

/* ---- tables ---- */

TEST(network_described)
{
    begin();
    net_recipe r = net_recipe_of(KR_FAMILY_MAMBA2, VOCAB);
    r.layers.n_layers = 1;
    r.layers.d_intermediate = 6;
    r.network.tie_embeddings = false;
    kr_network *w = kr_network_create(ctx, net_network_config(&r));
    static const char want[] = "name                                     shape                axes      "
                               "    count  begins as                    decay  optimizer\n"
                               "backbone.layers.0.mixer.dt_bias          [4]                  h         "
                               "        4  dt 0.001 .. 0.1              no     adamw\n"
                               "backbone.layers.0.mixer.A_log            [4]                  h         "
                               "        4  log of 1 .. 16               no     adamw\n"
                               "backbone.layers.0.mixer.D                [4]                  h         "
                               "        4  1                            no     adamw\n"
                               "backbone.layers.0.mixer.in_proj.weight   [44, 8]              zxbcdt d  "
                               "      352  uniform -0.3536 .. 0.3536    yes    muon[z:16 x:16 b:4 c:4 dt:4*]\n"
                               "backbone.layers.0.mixer.out_proj.weight  [8, 16]              d i       "
                               "      128  uniform -0.25 .. 0.25        yes    muon[out:8]\n"
                               "backbone.layers.0.mixer.conv1d.weight    [24, 1, 4]           v 1 k     "
                               "       96  uniform -0.5 .. 0.5          yes    adamw\n"
                               "backbone.layers.0.mixer.conv1d.bias      [24]                 v         "
                               "       24  uniform -0.5 .. 0.5          no     adamw\n"
                               "backbone.layers.0.mixer.norm.weight      [16]                 i         "
                               "       16  1                            no     adamw\n"
                               "backbone.layers.0.norm.weight            [8]                  d         "
                               "        8  1                            no     adamw\n"
                               "backbone.layers.0.norm2.weight           [8]                  d         "
                               "        8  1                            no     adamw\n"
                               "backbone.layers.0.mlp.fc1.weight         [16, 8]              vg d      "
                               "      128  uniform -0.3536 .. 0.3536    yes    muon[value:8 gate:8]\n"
                               "backbone.layers.0.mlp.fc2.weight         [8, 8]               d v       "
                               "       64  uniform -0.3536 .. 0.3536    yes    muon[out:8]\n"
                               "backbone.norm_f.weight                   [8]                  d         "
                               "        8  1                            no     adamw\n"
                               "backbone.embedding.weight                [16, 8]              w d       "
                               "      128  normal 0, 0.02               yes    adamw\n"
                               "lm_head.weight                           [16, 8]              w d       "
                               "      128  uniform -0.3536 .. 0.3536    yes    adamw\n"
                               "total 1100 parameters, 640 on muon (58.2 %)\n";
    char text[4096];
    const size_t length = kr_network_describe(w, text, sizeof text);
    CHECK(length == strlen(text) && strcmp(text, want) == 0, "described as\n%s", text);
    CHECK(kr_network_describe(w, NULL, 0) == length, "the length alone");
    CHECK(kr_network_width(w) == 16 && kr_layers_virtual(kr_network_layers(w)) == 1 &&
              kr_layers_d_model(kr_network_layers(w)) == NET_D,
          "sizes");
    kr_network_destroy(w);
    CHECK(kr_network_width(NULL) == 0 && kr_layers_virtual(NULL) == 0 && kr_layers_d_model(NULL) == 0 &&
              !kr_network_params(NULL) && !kr_network_layers(NULL) && !kr_layers_params(NULL),
          "of nothing");
    kr_network_destroy(NULL);
    kr_layers_destroy(NULL);
    end();
}

static void check_names(const kr_params *params, const char *const *names, int count)
{
    for (int i = 0; i < count; i++) CHECK(kr_params_find(params, names[i]) != NULL, "no parameter %s", names[i]);
}

TEST(network_names)
{
    begin();
    static const kr_class_token class_token[] = { { .kind = KR_CLASS_TOKEN_START } };
    static const kr_layer_class_token of_layer[] = { { 1, { .kind = KR_CLASS_TOKEN_END } } };
    net_recipe r = net_recipe_of(KR_FAMILY_MAMBA3, LATENT);
    r.layers.d_intermediate = 4;
    r.layers.residual = (kr_residual){
        .kind = KR_RESIDUAL_MULTI_GATE, .n_stream = 2, .init_bias = 0, .init_bias_step = 0, .per_virtual_layer = true
    };
    r.layers.n_virtual = 3;
    r.layers.latents = r.network.class_tokens = class_token;
    r.layers.n_latents = r.network.n_class_tokens = r.layers.n_layer_latents = 1;
    r.layers.layer_latents = of_layer;
    r.network.has_final_norm = true;
    kr_network *w = kr_network_create(ctx, net_network_config(&r));
    static const char *const names[] = { "in_proj.weight",
                                         "in_proj.bias",
                                         "out_proj.weight",
                                         "out_proj.bias",
                                         "class_tokens",
                                         "backbone.latents",
                                         "backbone.norm_f.weight",
                                         "backbone.layers.1.mixer.in_proj.weight",
                                         "backbone.layers.0.norm.weight",
                                         "backbone.layers.0.norm2.weight",
                                         "backbone.layers.1.mlp.fc1.weight",
                                         "backbone.layers.1.latents",
                                         "backbone.gates.2.w_alpha" };
    check_names(kr_network_params(w), names, (int)(sizeof names / sizeof *names));
    CHECK(!kr_params_find(kr_network_params(w), "backbone.layers.0.latents") &&
              !kr_params_find(kr_network_params(w), "backbone.gates.3.w_alpha"),
          "too many");
    kr_network_destroy(w);
    /* a tied vocabulary network has one table, and an untied one two */
    for (int tied = 0; tied < 2; tied++) {
        r = net_recipe_of(KR_FAMILY_MAMBA1, VOCAB);
        r.network.tie_embeddings = tied;
        w = kr_network_create(ctx, net_network_config(&r));
        const kr_param_row *table = kr_params_find(kr_network_params(w), "backbone.embedding.weight");
        CHECK(table && kr_tensor_dim(table->tensor, 0) == 16 && kr_tensor_dim(table->tensor, 1) == NET_D, "the table");
        CHECK((kr_params_find(kr_network_params(w), "lm_head.weight") == NULL) == tied, "the head");
        CHECK(kr_params_find(kr_network_params(w), "backbone.norm_f.weight") != NULL, "the norm");
        kr_network_destroy(w);
    }
    end();
}

/* ---- how they begin ---- */

typedef struct spread {
    double mean, std, most;
} spread;

static spread spread_of(const kr_params *params, const char *name)
{
    spread s = { 0, 0, 0 };
    const kr_param_row *row = kr_params_find(params, name);
    if (!CHECK(row != NULL, "no parameter %s", name)) return s;
    double *values = kr_test_values(row->tensor);
    const int64_t count = kr_tensor_count(row->tensor);
    for (int64_t i = 0; i < count; i++) {
        s.mean += values[i] / (double)count;
        s.std += values[i] * values[i] / (double)count;
        s.most = fmax(s.most, fabs(values[i]));
    }
    s.std = sqrt(s.std - s.mean * s.mean);
    free(values);
    return s;
}

static kr_network *made(net_recipe *r, uint64_t seed)
{
    kr_ctx_seed(ctx, seed);
    return kr_network_create(ctx, net_network_config(r));
}

TEST(network_embedding_begins_small)
{
    begin();
    net_recipe r = net_recipe_of(KR_FAMILY_MAMBA2, VOCAB);
    r.mamba2.d_model = 64;
    r.mamba2.per_head_dim = 32;
    r.network.vocab_size = 500;
    for (int i = 0; i < 2; i++) {
        r.network.embedding_std = i ? 0.3 : 0.02;
        kr_network *w = made(&r, 1);
        const spread s = spread_of(kr_network_params(w), "backbone.embedding.weight");
        /* 32256 draws: the deviation's own is 1 / sqrt(2 n) = 0.4 %, the mean's 0.56 % of it; five of each */
        CHECK(fabs(s.std / r.network.embedding_std - 1) < 0.02 && fabs(s.mean) < 0.028 * r.network.embedding_std,
              "mean %g, deviation %g", s.mean, s.std);
        kr_network_destroy(w);
    }
    end();
}

static double ratio_of(const kr_tensor *x, const kr_tensor *y)
{
    double *a = kr_test_values(x), *b = kr_test_values(y), ratio = a[0] == b[0] ? 1 : a[0] / b[0];
    for (int64_t i = 0; i < kr_tensor_count(x); i++)
        if (fabs(a[i] - ratio * b[i]) > 1e-6 * fabs(b[i])) ratio = NAN;
    free(a);
    free(b);
    return ratio;
}

/* Residual outputs alone, by 1 / sqrt(n_residuals n_virtual); all else is the same draw. */
TEST(network_residuals_begin_rescaled)
{
    begin();
    for (int family = 0; family < NET_FAMILIES; family++)
        for (int64_t residuals = 1; residuals <= 2; residuals++) {
            net_recipe r = net_recipe_of((kr_family)family, VOCAB);
            r.layers.n_virtual = 5;
            r.layers.d_intermediate = 4;
            r.network.n_residuals = residuals;
            kr_network *scaled = made(&r, 7);
            r.network.rescale_residual = false;
            kr_network *plain = made(&r, 7);
            for (int64_t i = 0; i < kr_params_count(kr_network_params(plain)); i++) {
                const kr_param_row *a = kr_params_at(kr_network_params(scaled), i);
                const kr_param_row *b = kr_params_at(kr_network_params(plain), i);
                const bool is_out = strstr(a->name, "mixer.out_proj.weight") || strstr(a->name, "mlp.fc2.weight");
                const double want = is_out ? 1 / sqrt(5.0 * (double)residuals) : 1;
                CHECK(fabs(ratio_of(a->tensor, b->tensor) - want) < 1e-6, "%s is %g times the plain draw", a->name,
                      ratio_of(a->tensor, b->tensor));
            }
            kr_network_destroy(scaled);
            kr_network_destroy(plain);
        }
    end();
}

TEST(network_biases_begin_at_0)
{
    begin();
    for (int family = 0; family < NET_FAMILIES; family++)
        for (int zeroes = 0; zeroes < 2; zeroes++) {
            net_recipe r = net_recipe_of((kr_family)family, VOCAB);
            r.mamba1.has_proj_bias = r.mamba2.has_proj_bias = r.mamba3.has_proj_bias = true;
            r.layers.d_intermediate = 4;
            r.layers.has_mlp_bias = true;
            r.network.zero_proj_biases = zeroes;
            kr_network *w = made(&r, 3);
            int seen = 0;
            for (int64_t i = 0; i < kr_params_count(kr_network_params(w)); i++) {
                const char *name = kr_params_at(kr_network_params(w), i)->name;
                const bool is_proj = strstr(name, "in_proj.bias") || strstr(name, "out_proj.bias") ||
                                     strstr(name, "fc1.bias") || strstr(name, "fc2.bias");
                if (!strstr(name, ".bias")) continue;
                seen += is_proj;
                CHECK((spread_of(kr_network_params(w), name).most == 0) == (is_proj && zeroes), "%s", name);
            }
            CHECK(seen == 8, "%d biases of projections", seen);
            kr_network_destroy(w);
        }
    /* those of a latent network are drawn as usual */
    net_recipe r = net_recipe_of(KR_FAMILY_MAMBA2, LATENT);
    kr_network *w = made(&r, 3);
    CHECK(spread_of(kr_network_params(w), "in_proj.bias").most > 0 &&
              spread_of(kr_network_params(w), "in_proj.bias").most <= 1 / sqrt(NET_INPUT) &&
              spread_of(kr_network_params(w), "out_proj.bias").most > 0,
          "biases of a latent network");
    kr_network_destroy(w);
    end();
}

TEST(network_begins_by_the_seed)
{
    begin();
    net_recipe r = net_recipe_of(KR_FAMILY_MAMBA3, VOCAB);
    r.layers.d_intermediate = 4;
    kr_network *a = made(&r, 11), *b = made(&r, 11), *c = made(&r, 12);
    bool differs = false;
    for (int64_t i = 0; i < kr_params_count(kr_network_params(a)); i++) {
        const kr_param_row *row = kr_params_at(kr_network_params(a), i);
        CHECK_SAME_BITS(row->name, kr_params_at(kr_network_params(b), i)->tensor, row->tensor);
        const kr_tensor *other = kr_params_at(kr_network_params(c), i)->tensor;
        differs = differs || memcmp(kr_test_copy(other), kr_test_copy(row->tensor),
                                    (size_t)kr_tensor_count(other) * sizeof(float)) != 0;
    }
    CHECK(differs, "another seed, the same network");
    kr_ctx_seed(ctx, 11);
    kr_params_reset(kr_network_params(c));
    CHECK(kr_params_values_hash(kr_network_params(c)) == kr_params_values_hash(kr_network_params(a)),
          "reset by the seed");
    kr_network_destroy(a);
    kr_network_destroy(b);
    kr_network_destroy(c);
    end();
}
