/* test_model.c - models made, loaded and saved: nothing is lost on the way to a folder and back, in any type, in either
 * container and layout; what is measured is what is taken.
 */
#define _DEFAULT_SOURCE
#include "tests/model/folders.h"
#include "tests/model/config_values.h"

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
    end_folder();
}

static const char *const goldens[] = {
    "official_lm/mamba1",      "official_lm/mamba2",      "official_lm/mamba2_g2_untied",
    "official_lm/mamba3_siso", "official_lm/mamba3_mimo", "official_lm/mamba3_siso_rope1_outnorm",
    "hf_mamba/tied",           "hf_mamba2/g1_untied",     "hf_mamba2/g2_untied"
};
enum { GOLDENS = sizeof goldens / sizeof *goldens };

static kr_model *load_golden(const char *name)
{
    char path[512];
    snprintf(path, sizeof path, "%s/tests/golden/%s", KR_SOURCE_DIR, name);
    kr_model *model = kr_model_load(ctx, path, NULL);
    CHECK(model != NULL, "%s", kr_ctx_message(ctx));
    return model;
}

static kr_model *load(const char *name)
{
    kr_model *model = kr_model_load(ctx, in_folder(name), NULL);
    CHECK(model != NULL, "%s", kr_ctx_message(ctx));
    return model;
}

static void save(const kr_model *model, const char *name, const kr_save_options *options)
{
    CHECK(kr_model_save(model, in_folder(name), options) == KR_OK, "%s", kr_ctx_message(ctx));
}

static kr_save_options saving(kr_layout layout, kr_dtype dtype, kr_container container, size_t max_shard_bytes)
{
    kr_save_options o;
    kr_save_options_init(&o);
    o.layout = layout;
    o.dtype = dtype;
    o.container = container;
    o.max_shard_bytes = max_shard_bytes;
    return o;
}

/* ---- there and back ---- */

static const struct {
    const char *what;
    kr_container container;
    size_t max_shard_bytes;
    const char *file; /* that is there */
} ways[] = { { "safetensors", KR_CONTAINER_SAFETENSORS, 0, "model.safetensors" },
             { "shards", KR_CONTAINER_SAFETENSORS, 100000, "model.safetensors.index.json" },
             { "torch", KR_CONTAINER_TORCH, 0, "pytorch_model.bin" },
             { "torch shards", KR_CONTAINER_TORCH, 100000, "pytorch_model.bin.index.json" } };

TEST(saved_and_loaded_again)
{
    begin();
    for (int g = 0; g < GOLDENS; g++) {
        kr_model *model = load_golden(goldens[g]);
        for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
            const kr_save_options o =
                saving(KR_LAYOUT_AS_LOADED, KR_DTYPE_AS_STORED, ways[w].container, ways[w].max_shard_bytes);
            save(model, "m", &o);
            CHECK(has_file("m", ways[w].file) && has_file("m", "config.json"), "%s: no %s", ways[w].what, ways[w].file);
            kr_model *again = load("m");
            check_same_model(ways[w].what, again, model);
            check_same_config(ways[w].what, ctx, again, model);
            CHECK(kr_model_config_of(again)->layout == kr_model_config_of(model)->layout, "layout");
            kr_model_destroy(again);
            drop_folder("m");
        }
        kr_model_destroy(model);
    }
    end();
}

/* In a type, loaded as it is stored, and saved again: the same bytes. In 16 bits small parameters stay in 32. */
TEST(all_types)
{
    begin();
    static const kr_dtype dtypes[] = { KR_DTYPE_F32, KR_DTYPE_F64, KR_DTYPE_BF16, KR_DTYPE_F16 };
    for (int g = 0; g < GOLDENS; g += kr_test_quick() ? 4 : 1)
        for (int t = 0; t < 4; t++) {
            kr_model *model = load_golden(goldens[g]);
            kr_save_options o = saving(KR_LAYOUT_AS_LOADED, dtypes[t], KR_CONTAINER_SAFETENSORS, 0);
            save(model, "a", &o);
            kr_model *first = load("a");
            o.dtype = KR_DTYPE_AS_STORED;
            save(first, "b", &o);
            CHECK(same_file("a", "b", "model.safetensors") && same_file("a", "b", "config.json"), "%s as %s",
                  goldens[g], kr_dtype_name(dtypes[t]));
            const kr_params *params = kr_network_params(kr_model_network(first));
            const kr_dtype small = dtypes[t] == KR_DTYPE_F64 ? KR_DTYPE_F64 : KR_DTYPE_F32;
            CHECK(kr_tensor_dtype(kr_params_find(params, "backbone.embedding.weight")->tensor) == dtypes[t] &&
                      kr_tensor_dtype(kr_params_find(params, "backbone.norm_f.weight")->tensor) == small &&
                      kr_model_config_of(first)->mamba1->dtype == dtypes[t],
                  "%s", kr_dtype_name(dtypes[t]));
            /* and widened again on loading */
            kr_load_options wide;
            kr_load_options_init(&wide);
            wide.dtype = KR_DTYPE_F64;
            kr_model *widened = kr_model_load(ctx, in_folder("a"), &wide);
            CHECK(widened && kr_model_config_of(widened)->mamba1->dtype == KR_DTYPE_F64, "%s", kr_ctx_message(ctx));
            kr_model_destroy(widened);
            kr_model_destroy(first);
            kr_model_destroy(model);
            drop_folder("a");
            drop_folder("b");
        }
    end();
}

/* One tensor is of another type than the rest: the model's type loses nothing, and each is saved as it was. */
TEST(mixed_types)
{
    begin();
    static const struct {
        kr_dtype rest, one, want;
        const char *name;
    } rows[] = { { KR_DTYPE_BF16, KR_DTYPE_F32, KR_DTYPE_F32, "backbone.layers.0.mixer.in_proj.weight" },
                 { KR_DTYPE_BF16, KR_DTYPE_F16, KR_DTYPE_F32, "backbone.layers.0.mixer.in_proj.weight" },
                 { KR_DTYPE_F16, KR_DTYPE_F64, KR_DTYPE_F64, "backbone.layers.1.mixer.out_proj.weight" },
                 { KR_DTYPE_BF16, KR_DTYPE_F64, KR_DTYPE_F64, "backbone.norm_f.weight" },
                 { KR_DTYPE_F32, KR_DTYPE_F16, KR_DTYPE_F32, "backbone.layers.0.mixer.in_proj.weight" },
                 { KR_DTYPE_F32, KR_DTYPE_BF16, KR_DTYPE_F32, "backbone.norm_f.weight" } };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        kr_model *model = load_golden("official_lm/mamba2");
        const kr_save_options o = saving(KR_LAYOUT_AS_LOADED, rows[i].rest, KR_CONTAINER_SAFETENSORS, 0);
        save(model, "a", &o);
        kr_tensor_file *weights = kr_tensor_file_open(ctx, in_folder("a"));
        kr_tensor_writer *writer = kr_tensor_writer_create(ctx);
        void *data[64];
        for (int64_t n = 0; n < kr_tensor_file_count(weights); n++) {
            const kr_tensor_file_item *item = kr_tensor_file_at(weights, n);
            const kr_dtype dtype = strcmp(item->name, rows[i].name) == 0 ? rows[i].one : item->dtype;
            IGNORE(kr_tensor_file_read(weights, item, dtype, data[n] = malloc((size_t)item->count * 8), item->count));
            kr_tensor_writer_add(writer, item->name, dtype, item->shape, data[n]);
        }
        mkdir(in_folder("b"), 0777);
        copy_config("official_lm/mamba2", "b");
        IGNORE(kr_tensor_writer_save_folder(writer, in_folder("b"), KR_CONTAINER_SAFETENSORS, 0));
        for (int64_t n = 0; n < kr_tensor_file_count(weights); n++) free(data[n]);
        kr_tensor_writer_destroy(writer);
        kr_tensor_file_close(weights);
        kr_model *mixed = load("b");
        CHECK(kr_model_config_of(mixed)->mamba2->dtype == rows[i].want, "row %zu: %s", i,
              kr_dtype_name(kr_model_config_of(mixed)->mamba2->dtype));
        save(mixed, "c", NULL);
        kr_model *again = load("c");
        check_same_model("mixed", again, mixed);
        kr_tensor_file *b = kr_tensor_file_open(ctx, in_folder("b")), *c = kr_tensor_file_open(ctx, in_folder("c"));
        for (int64_t n = 0; n < kr_tensor_file_count(b); n++) {
            const kr_tensor_file_item *item = kr_tensor_file_at(b, n), *other = kr_tensor_file_find(c, item->name);
            CHECK(other && other->dtype == item->dtype, "row %zu: %s", i, item->name);
        }
        kr_tensor_file_close(b);
        kr_tensor_file_close(c);
        kr_model_destroy(again);
        kr_model_destroy(mixed);
        kr_model_destroy(model);
        drop_folder("a");
        drop_folder("b");
        drop_folder("c");
    }
    end();
}

/* ---- layouts ---- */

static kr_tensor *logits_of(kr_tape *t, const kr_model *model)
{
    int32_t ids[2][7];
    for (int i = 0; i < 14; i++) ids[i / 7][i % 7] = 11 * i;
    return kr_network_forward(t, kr_model_network(model), kr_from_data(t, KR_DTYPE_I32, KR_SHAPE(2, 7), ids), NULL).y;
}

TEST(official_to_hugging_face_and_back)
{
    begin();
    for (int g = 0; g < GOLDENS; g++) {
        kr_model *model = load_golden(goldens[g]);
        const kr_model_config *config = kr_model_config_of(model);
        if (config->family != KR_FAMILY_MAMBA3) {
            const bool was_hf = config->layout == KR_LAYOUT_HF;
            const kr_container container = g % 2 ? KR_CONTAINER_TORCH : KR_CONTAINER_SAFETENSORS;
            const kr_save_options there =
                saving(was_hf ? KR_LAYOUT_OFFICIAL : KR_LAYOUT_HF, KR_DTYPE_AS_STORED, container, 0);
            const kr_save_options back = saving(config->layout, KR_DTYPE_AS_STORED, KR_CONTAINER_SAFETENSORS, 0);
            save(model, "a", &there);
            kr_tensor_file *weights = kr_tensor_file_open(ctx, in_folder("a"));
            CHECK((kr_tensor_file_find(weights, "backbone.embeddings.weight") != NULL) == !was_hf &&
                      (kr_tensor_file_find(weights, "backbone.embedding.weight") != NULL) == was_hf,
                  "names");
            kr_tensor_file_close(weights);
            kr_model *other = load("a");
            save(other, "b", &back);
            kr_model *again = load("b");
            CHECK(kr_model_config_of(other)->layout == there.layout && kr_model_config_of(again)->layout == back.layout,
                  "layouts");
            check_same_model(goldens[g], other, model);
            check_same_model(goldens[g], again, model);
            check_same_config(goldens[g], ctx, again, model);
            kr_tape *t = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
            CHECK_SAME_BITS("logits", logits_of(t, other), logits_of(t, model));
            kr_tape_destroy(t);
            kr_model_destroy(other);
            kr_model_destroy(again);
            drop_folder("a");
            drop_folder("b");
        }
        kr_model_destroy(model);
    }
    end();
}

/* The Hugging Face loader takes the official name of the table too. */
TEST(official_names_in_a_hugging_face_folder)
{
    begin();
    kr_model *model = load_golden("hf_mamba/tied");
    mkdir(in_folder("m"), 0777);
    copy_config("hf_mamba/tied", "m");
    write_changed(ctx, "hf_mamba/tied", "m",
                  &(change){ .name = "backbone.embeddings.weight", .renamed = "backbone.embedding.weight" });
    kr_model *other = load("m");
    check_same_model("names", other, model);
    kr_model_destroy(other);
    kr_model_destroy(model);
    drop_folder("m");
    end();
}

/* ---- tied heads ---- */

TEST(tied_heads)
{
    begin();
    static const char head[] = "lm_head.weight", table[] = "backbone.embedding.weight";
    kr_model *model = load_golden("official_lm/mamba1");
    mkdir(in_folder("m"), 0777);
    copy_config("official_lm/mamba1", "m");
    write_changed(ctx, "official_lm/mamba1", "m", &(change){ .added = head, .from = table });
    kr_model *both = load("m");
    check_same_model("a copy of the head", both, model);
    kr_model_destroy(both);
    write_changed(ctx, "official_lm/mamba1", "m", &(change){ .added = head, .from = table, .delta = 1 });
    CHECK(!kr_model_load(ctx, in_folder("m"), NULL), "another head");
    CHECK_ERROR_HAS(ctx, KR_ERR_FORMAT,
                    ": the config says that the embeddings are tied, but 'lm_head.weight' is not equal to "
                    "'backbone.embedding.weight'; if the head is separate, set tie_embeddings to false");
    const kr_dtype half = KR_DTYPE_BF16; /* the table is rounded, the head is not: not equal */
    write_changed(ctx, "official_lm/mamba1", "m",
                  &(change){ .name = table, .dtype = &half, .added = head, .from = table });
    CHECK(!kr_model_load(ctx, in_folder("m"), NULL), "a rounded table");
    CHECK_ERROR_HAS(ctx, KR_ERR_FORMAT, "the embeddings are tied");
    drop_folder("m");
    /* torch's loader wants both names, safetensors have one */
    for (int torch = 0; torch < 2; torch++) {
        const kr_save_options o = saving(KR_LAYOUT_AS_LOADED, KR_DTYPE_AS_STORED, (kr_container)torch, 0);
        save(model, "m", &o);
        kr_tensor_file *weights = kr_tensor_file_open(ctx, in_folder("m"));
        CHECK((kr_tensor_file_find(weights, head) != NULL) == (torch == 1), "%s", torch ? "torch" : "safetensors");
        kr_tensor_file_close(weights);
        drop_folder("m");
    }
    kr_model_destroy(model);
    end();
}

/* ---- token ids ---- */

TEST(token_ids_in_either_layout)
{
    begin();
    kr_model *model = load_golden("hf_mamba/tied");
    kr_save_options o = saving(KR_LAYOUT_OFFICIAL, KR_DTYPE_AS_STORED, KR_CONTAINER_SAFETENSORS, 0);
    save(model, "m", &o);
    file_image image = read_image(file_of("m", "generation_config.json"));
    static const char want[] = "{\n  \"bos_token_id\": 0,\n  \"eos_token_id\": 2,\n  \"pad_token_id\": 1\n}\n";
    CHECK(image.bytes == strlen(want) && memcmp(image.data, want, image.bytes) == 0, "%.*s", (int)image.bytes,
          (const char *)image.data);
    free(image.data);
    kr_model *official = load("m");
    check_same_config("official", ctx, official, model);
    kr_model_destroy(official);

    put_text("m", "generation_config.json", "{\"temperature\": 0.5, \"eos_token_id\": [7, 9], \"bos_token_id\": null}");
    official = load("m");
    const kr_model_config *c = kr_model_config_of(official);
    CHECK(c && c->n_eos == 2 && c->eos[1] == 9 && c->bos == -1 && c->pad == -1, "a list");
    kr_model_destroy(official);
    CHECK(nlogged == 0, "%s", logged);
    put_text("m", "generation_config.json", "{\"eos_token_id\": \"x\"}");
    CHECK(!kr_model_load(ctx, in_folder("m"), NULL), "a string");
    CHECK_ERROR_HAS(ctx, KR_ERR_FORMAT, "generation_config.json: ");
    put_text("m", "generation_config.json", "[]");
    CHECK(!kr_model_load(ctx, in_folder("m"), NULL), "an array");
    CHECK_ERROR_HAS(ctx, KR_ERR_FORMAT, "generation_config.json: the file is not an object, but of the kind array");

    /* of a model without any, an old file would be read in its place */
    kr_model *without = load_golden("official_lm/mamba1");
    save(without, "m", NULL);
    CHECK(!has_file("m", "generation_config.json"), "it is left");
    kr_model_destroy(without);
    kr_model_destroy(model);
    drop_folder("m");
    end();
}

/* ---- new models ---- */

static kr_model_values small(kr_family family)
{
    kr_model_values c;
    kr_model_values_init(&c);
    c.family = family;
    kr_config_set_d_model(&c, 16);
    c.layers.n_layers = 2;
    c.network.vocab_size = 13;
    c.mamba2.per_head_dim = c.mamba3.per_head_dim = 8;
    c.mamba2.state_rank = c.mamba3.state_rank = 8;
    return c;
}

TEST(a_new_model_is_its_network)
{
    begin();
    for (int f = 0; f < 3; f++) {
        kr_model_values c = small((kr_family)f);
        kr_ctx_seed(ctx, 7);
        kr_model *model = kr_model_create(ctx, config_of(&c));
        kr_layers_config stack = c.layers;
        stack.block = f == 0   ? kr_mamba1_block(&c.mamba1)
                      : f == 1 ? kr_mamba2_block(&c.mamba2)
                               : kr_mamba3_block(&c.mamba3);
        kr_network_config network = c.network;
        network.layers = &stack;
        kr_ctx_seed(ctx, 7);
        kr_network *net = kr_network_create(ctx, &network);
        const kr_params *a = kr_network_params(kr_model_network(model)), *b = kr_network_params(net);
        CHECK(kr_params_count(a) == kr_params_count(b) && kr_params_count(a) > 10, "parameters");
        for (int64_t i = 0; i < kr_params_count(a); i++)
            CHECK_SAME_BITS(kr_params_at(a, i)->name, kr_params_at(a, i)->tensor, kr_params_at(b, i)->tensor);
        save(model, "m", NULL);
        kr_model *again = load("m");
        check_same_model("initial", again, model);
        check_same_config("initial", ctx, again, model);
        kr_model_destroy(again);
        kr_network_destroy(net);
        kr_model_destroy(model);
        drop_folder("m");
    }
    end();
}

/* All that a config can say and a layout cannot: virtual layers, class tokens, gates, learned states. */
TEST(models_of_our_own)
{
    begin();
    const int64_t schedule[] = { 1, 0, 1 };
    const kr_class_token latents[] = { { .kind = KR_CLASS_TOKEN_START } };
    const kr_layer_class_token of_layers[] = { { 1, { .kind = KR_CLASS_TOKEN_START } } };
    kr_model_values c = small(KR_FAMILY_MAMBA3);
    c.layers.n_virtual = 3;
    c.layers.schedule = KR_SCHEDULE_CUSTOM;
    c.layers.custom_schedule = schedule;
    c.layers.latents = latents;
    c.layers.n_latents = 1;
    c.layers.layer_latents = of_layers;
    c.layers.n_layer_latents = 1;
    c.layers.residual = (kr_residual){
        .kind = KR_RESIDUAL_MULTI_GATE, .n_stream = 2, .init_bias = -1, .init_bias_step = 0, .per_virtual_layer = false
    };
    c.mamba3.a_activation = KR_A_ACTIVATION_SOFTPLUS;
    c.mamba3.rotation = KR_ROTATION_QUATERNION;
    c.mamba3.rope_fraction = 1;
    c.mamba3.has_learnable_init_state = true;
    kr_model *model = kr_model_create(ctx, config_of(&c));
    if (CHECK(model != NULL, "%s", kr_ctx_message(ctx))) {
        save(model, "m", NULL);
        CHECK(nlogged == 1 && strstr(logged, "the official code refuses such a file"), "%s", logged);
        kr_model *again = load("m");
        check_same_model("ours", again, model);
        check_same_config("ours", ctx, again, model);
        kr_tape *t = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
        int32_t ids[5] = { 1, 2, 3, 4, 5 };
        kr_tensor *id = kr_from_data(t, KR_DTYPE_I32, KR_SHAPE(1, 5), ids);
        CHECK_SAME_BITS("logits", kr_network_forward(t, kr_model_network(again), id, NULL).y,
                        kr_network_forward(t, kr_model_network(model), id, NULL).y);
        kr_tape_destroy(t);
        kr_model_destroy(again);
        drop_folder("m");
    }
    kr_model_destroy(model);
    end();
}

TEST(latent_networks)
{
    begin();
    kr_model_values c = small(KR_FAMILY_MAMBA2);
    c.network.vocab_size = 0;
    c.network.input_size = 3;
    c.network.output_size = 5;
    c.network.has_final_norm = true;
    kr_model *model = kr_model_create(ctx, config_of(&c));
    save(model, "m", NULL);
    kr_model *again = load("m");
    check_same_model("latent", again, model);
    check_same_config("latent", ctx, again, model);
    kr_model_destroy(again);
    kr_model_destroy(model);
    drop_folder("m");
    end();
}

/* ---- sizes ---- */

/* Bytes of the tape for each token of a prompt. */
static double bytes_per_token(const kr_model *model)
{
    size_t peak[2];
    for (int i = 0; i < 2; i++) {
        const int64_t ns = i ? 768 : 256;
        kr_tape *t = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
        kr_call call;
        kr_call_init(&call);
        call.last_logits_only = true;
        kr_network_forward(t, kr_model_network(model), kr_zeros(t, KR_DTYPE_I32, KR_SHAPE(1, ns)), &call);
        peak[i] = kr_tape_peak_bytes(t);
        kr_tape_destroy(t);
    }
    return (double)(peak[1] - peak[0]) / 512;
}

static void check_measure(const char *what, const kr_model_config *c)
{
    kr_model_size size;
    const size_t before = kr_ctx_memory(ctx).live_bytes;
    if (!CHECK(kr_model_measure(ctx, c, &size) == KR_OK, "%s: %s", what, kr_ctx_message(ctx))) return;
    CHECK(kr_ctx_memory(ctx).live_bytes == before, "%s: memory is left", what);
    kr_model *model = kr_model_create(ctx, c);
    const kr_network *net = kr_model_network(model);
    const kr_params *params = kr_network_params(net);
    size_t bytes = 0;
    for (int64_t i = 0; i < kr_params_count(params); i++) {
        const kr_tensor *x = kr_params_at(params, i)->tensor;
        bytes += (size_t)kr_tensor_count(x) * kr_dtype_bytes(kr_tensor_dtype(x));
    }
    CHECK(size.parameters == kr_params_elements(params) && size.weight_bytes == bytes, "%s: parameters", what);
    kr_tape *t = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    const kr_network_out out = kr_network_forward(t, net, kr_zeros(t, KR_DTYPE_I32, KR_SHAPE(1, 3)), NULL);
    CHECK(size.state_bytes == kr_state_bytes(out.state), "%s: a state of %zu bytes, not %zu", what,
          kr_state_bytes(out.state), size.state_bytes);
    kr_tape_destroy(t);
    const double got = bytes_per_token(model), told = (double)size.prefill_bytes;
    CHECK(got > 0.75 * told && got < 1.25 * told, "%s: %.0f bytes for each token, told are %.0f", what, got, told);
    kr_model_destroy(model);
}

TEST(measured_before_it_is_made)
{
    begin();
    for (int f = 0; f < 3; f++)
        for (int v = 0; v < 5; v++) {
            kr_model_values c = small((kr_family)f);
            kr_config_set_d_model(&c, 64);
            char what[40];
            snprintf(what, sizeof what, "mamba%d, variant %d", f + 1, v);
            if (v == 1) c.layers.d_intermediate = 300;
            if (v == 2) c.mamba2.n_groups = c.mamba3.n_groups = 4;
            if (v == 2) c.layers.n_virtual = 5;
            if (v == 3) c.mamba3.is_mimo = true;
            if (v == 3) c.mamba3.has_outproj_norm = c.mamba2.has_proj_bias = true;
            if (v == 3) c.network.tie_embeddings = false;
            if (v == 4) c.mamba1.dtype = c.mamba2.dtype = c.mamba3.dtype = KR_DTYPE_BF16;
            check_measure(what, config_of(&c));
        }
    /* any size, without its memory: the largest that was published, and one that no machine has */
    kr_model_values c = small(KR_FAMILY_MAMBA1);
    kr_config_set_d_model(&c, 2560);
    c.layers.n_layers = 64;
    c.network.vocab_size = 50277;
    kr_model_size size;
    CHECK(kr_model_measure(ctx, config_of(&c), &size) == KR_OK && size.parameters == 2768345600,
          "mamba-2.8b has %lld parameters", (long long)size.parameters);
    kr_config_set_d_model(&c, 1 << 20);
    CHECK(kr_model_measure(ctx, config_of(&c), &size) == KR_OK && size.weight_bytes > (size_t)1 << 40, "%s",
          kr_ctx_message(ctx));
    c.layers.n_layers = 0;
    CHECK(kr_model_measure(ctx, config_of(&c), &size) == KR_ERR_ARG && size.parameters == 0, "no layers");
    CHECK_ERROR_HAS(ctx, KR_ERR_ARG, "model.measure: network.create: layers.create: n_layers = 0");
    CHECK(kr_model_measure(ctx, config_of(&c), NULL) == KR_ERR_ARG, "NULL");
    CHECK_ERROR(ctx, KR_ERR_ARG, "model.measure: size is NULL");
    end();
}
