/* test_model_errors.c - folders that are no models, and disks and memory that do not suffice: each says what is wrong,
 * and leaves what was there.
 */
#define _DEFAULT_SOURCE
#include "tests/model/folders.h"
#include "tests/model/config_values.h"

#include <signal.h>
#include <sys/resource.h>

static kr_ctx *ctx;

static void begin(void)
{
    begin_folder();
    ctx = logging_ctx();
}

static void end(void)
{
    CHECK_OK(ctx);
    CHECK(kr_ctx_memory(ctx).live_blocks == blocks_at_begin, "memory is left");
    kr_ctx_destroy(ctx);
    end_folder();
}

static kr_model *load_golden(const char *name)
{
    char path[512];
    snprintf(path, sizeof path, "%s/tests/golden/%s", KR_SOURCE_DIR, name);
    return kr_model_load(ctx, path, NULL);
}

/* The folder "m" is refused; %s in the format is its path. */
static void refuse(kr_status status, const char *format)
{
    char message[1200];
    snprintf(message, sizeof message, format, in_folder("m"));
    kr_model *model = kr_model_load(ctx, in_folder("m"), NULL);
    CHECK(!model, "%s is not refused", message);
    kr_model_destroy(model);
    CHECK_ERROR(ctx, status, message);
}

/* The golden model with its weights changed. */
static void refuse_changed(const char *golden, kr_status status, const char *format, const change *c)
{
    mkdir(in_folder("m"), 0777);
    copy_config(golden, "m");
    write_changed(ctx, golden, "m", c);
    refuse(status, format);
    drop_folder("m");
}

TEST(tensors_that_are_not_the_models)
{
    begin();
    static const char one[] = "official_lm/mamba1", untied[] = "official_lm/mamba2_g2_untied";
    const kr_status f = KR_ERR_FORMAT;
    refuse_changed(one, f, "model.load: %s: the tensors do not match the config: 1 missing: 'backbone.norm_f.weight'",
                   &(change){ .name = "backbone.norm_f.weight", .renamed = "" });
    refuse_changed(one, f,
                   "model.load: %s: the tensors do not match the config: 1 missing: 'backbone.norm_f.weight'; 1 "
                   "unexpected: 'norm'",
                   &(change){ .name = "backbone.norm_f.weight", .renamed = "norm" });
    refuse_changed(one, f, "model.load: %s: the tensors do not match the config: 1 unexpected: 'foo?bar'",
                   &(change){ .added = "foo\nbar" });
    refuse_changed(untied, f,
                   "model.load: %s: the tensors do not match the config: 1 missing: 'lm_head.weight' (the embeddings "
                   "are not tied, so there must be a head)",
                   &(change){ .name = "lm_head.weight", .renamed = "" });
    refuse_changed("hf_mamba/tied", f,
                   "model.load: %s: the tensors do not match the config: 1 missing: 'backbone.embeddings.weight'",
                   &(change){ .name = "backbone.embeddings.weight", .renamed = "" });
    refuse_changed(one, f,
                   "model.load: %s: the tensors do not match the config: 1 missing: 'backbone.embedding.weight'; 1 "
                   "unexpected: 'backbone.embeddings.weight'",
                   &(change){ .name = "backbone.embedding.weight", .renamed = "backbone.embeddings.weight" });
    const kr_shape line = KR_SHAPE(63), rotated = KR_SHAPE(64, 256);
    refuse_changed(one, KR_ERR_SHAPE,
                   "model.load: %s: 1 tensor(s) of another shape: 'backbone.norm_f.weight' is [63] and must be [64]",
                   &(change){ .name = "backbone.norm_f.weight", .shape = &line });
    refuse_changed(one, KR_ERR_SHAPE,
                   "model.load: %s: 1 tensor(s) of another shape: 'backbone.embedding.weight' is [64, 256] and must be "
                   "[256, 64]",
                   &(change){ .name = "backbone.embedding.weight", .shape = &rotated });
    const kr_dtype whole = KR_DTYPE_I32;
    refuse_changed(one, KR_ERR_DTYPE,
                   "model.load: %s: 1 tensor(s) of a type that parameters do not have (F64, F32, BF16, F16): "
                   "'backbone.norm_f.weight' is I32",
                   &(change){ .name = "backbone.norm_f.weight", .dtype = &whole });
    refuse_changed(one, KR_ERR_SHAPE,
                   "model.load: %s: 1 tensor(s) of another shape: 'lm_head.weight' is [64] and must be [256, 64]",
                   &(change){ .added = "lm_head.weight", .from = "backbone.norm_f.weight" });
    end();
}

/* Many are counted, few are named. */
TEST(weights_of_another_model)
{
    begin();
    kr_model *model = load_golden("official_lm/mamba1");
    IGNORE(kr_model_save(model, in_folder("m"), NULL));
    kr_model_destroy(model);
    copy_config("official_lm/mamba3_siso", "m");
    refuse(KR_ERR_FORMAT,
           "model.load: %s: the tensors do not match the config: 10 missing: 'backbone.layers.0.mixer.dt_bias', "
           "'backbone.layers.0.mixer.B_bias', 'backbone.layers.0.mixer.C_bias', ...; 12 unexpected: "
           "'backbone.layers.0.mixer.A_log', 'backbone.layers.0.mixer.conv1d.weight', "
           "'backbone.layers.0.mixer.conv1d.bias', ...");
    put_text("m", "config.json", "{\"d_model\": 32, \"n_layer\": 2, \"vocab_size\": 256}");
    refuse(
        KR_ERR_SHAPE,
        "model.load: %s: 22 tensor(s) of another shape: 'backbone.layers.0.mixer.A_log' is [128, 16] and must be [64, "
        "16], 'backbone.layers.0.mixer.D' is [128] and must be [64], 'backbone.layers.0.mixer.in_proj.weight' is [256, "
        "64] and must be [128, 32], ...");
    put_text("m", "config.json", "{\"n_layer\": 16384}");
    refuse(KR_ERR_FORMAT, "model.load: %s: the config has 16384 layers, but there are 22 tensors in all");
    put_text("m", "config.json", "{\"d_model\": 1073741824, \"n_layer\": 2}");
    CHECK(!kr_model_load(ctx, in_folder("m"), NULL), "a model of absurd size");
    CHECK_ERROR_HAS(ctx, KR_ERR_SHAPE, "model.load: ");
    drop_folder("m");
    end();
}

TEST(folders_that_are_no_models)
{
    begin();
    char text[900];
    snprintf(text, sizeof text, "cannot open %s/config.json: no such file or directory", in_folder("m"));
    refuse(KR_ERR_IO, text);
    mkdir(in_folder("m"), 0777);
    refuse(KR_ERR_IO, text);
    put_text("m", "config.json", "{");
    CHECK(!kr_model_load(ctx, in_folder("m"), NULL), "no JSON");
    CHECK_ERROR_HAS(ctx, KR_ERR_FORMAT, "/m: config.json: json: at byte 1: ");
    copy_config("official_lm/mamba1", "m");
    CHECK(!kr_model_load(ctx, in_folder("m"), NULL), "no weights");
    CHECK_ERROR_HAS(ctx, KR_ERR_IO, "model.safetensors");
    put_text("m", "model.safetensors", "hello, world, here are no tensors");
    CHECK(!kr_model_load(ctx, in_folder("m"), NULL), "bad weights");
    CHECK_ERROR_HAS(ctx, KR_ERR_FORMAT, "model.load: ");
    drop_folder("m");
    CHECK(!kr_model_load(ctx, NULL, NULL) && kr_ctx_failed(ctx), "NULL");
    CHECK_ERROR(ctx, KR_ERR_ARG, "model.load: the folder's path is NULL or empty");
    CHECK(!kr_model_load(ctx, "", NULL), "empty");
    CHECK_ERROR(ctx, KR_ERR_ARG, "model.load: the folder's path is NULL or empty");
    kr_load_options o;
    kr_load_options_init(&o);
    o.dtype = KR_DTYPE_I64;
    CHECK(!kr_model_load(ctx, in_folder("m"), &o), "i64");
    CHECK_ERROR(ctx, KR_ERR_DTYPE, "model.load: dtype = i64, but must be f32, f64, bf16 or f16");
    end();
}

TEST(arguments_of_create_and_save)
{
    begin();
    kr_model_values c;
    kr_model_values_init(&c);
    CHECK(!kr_model_create(ctx, config_of(&c)), "no sizes");
    CHECK_ERROR_HAS(ctx, KR_ERR_ARG, "model.create: network.create: ");
    c.family = (kr_family)5;
    CHECK(!kr_model_create(ctx, config_of(&c)), "no family");
    CHECK_ERROR(ctx, KR_ERR_ARG, "model.create: family = 5 is not one of mamba1, mamba2, mamba3, or registered");
    CHECK(!kr_model_create(ctx, NULL), "NULL");
    CHECK_ERROR(ctx, KR_ERR_ARG, "model.create: config is NULL");
    kr_model_values_init(&c);
    c.n_eos = 9;
    CHECK(!kr_model_create(ctx, config_of(&c)), "ids");
    CHECK_ERROR(ctx, KR_ERR_ARG, "model.create: n_eos = 9, but must be from 0 to 8");

    kr_model *model = load_golden("official_lm/mamba3_siso");
    kr_save_options o;
    kr_save_options_init(&o);
    o.layout = KR_LAYOUT_HF;
    CHECK(kr_model_save(model, in_folder("m"), &o) == KR_ERR_UNSUPPORTED, "Mamba-3 in hf");
    CHECK_ERROR(ctx, KR_ERR_UNSUPPORTED,
                "model.save: config.json: the hf layout has no Mamba-3; save the model in the official layout");
    o.layout = (kr_layout)4;
    IGNORE(kr_model_save(model, in_folder("m"), &o));
    CHECK_ERROR(ctx, KR_ERR_ARG, "model.save: layout = 4 is neither official nor hf");
    kr_save_options_init(&o);
    o.container = (kr_container)4;
    IGNORE(kr_model_save(model, in_folder("m"), &o));
    CHECK_ERROR(ctx, KR_ERR_ARG, "model.save: container = 4 is neither safetensors nor torch");
    kr_save_options_init(&o);
    o.dtype = KR_DTYPE_I32;
    IGNORE(kr_model_save(model, in_folder("m"), &o));
    CHECK_ERROR(ctx, KR_ERR_DTYPE, "model.save: dtype = i32, but must be f32, f64, bf16 or f16");
    IGNORE(kr_model_save(model, NULL, NULL));
    CHECK_ERROR(ctx, KR_ERR_ARG, "model.save: the folder's path is NULL or empty");
    CHECK(kr_model_save(NULL, in_folder("m"), NULL) == KR_ERR_ARG, "NULL");
    char message[900];
    snprintf(message, sizeof message, "cannot make %s: no such file or directory", in_folder("no/m"));
    IGNORE(kr_model_save(model, in_folder("no/m"), NULL));
    CHECK_ERROR(ctx, KR_ERR_IO, message);
    CHECK(files_in_folder(false) == 0, "none of these left a file");
    write_image(in_folder("m"), "x", 1);
    IGNORE(kr_model_save(model, in_folder("m"), NULL));
    snprintf(message, sizeof message, "cannot make %s: file exists", in_folder("m"));
    CHECK_ERROR(ctx, KR_ERR_IO, message);
    CHECK(!kr_model_network(NULL) && !kr_model_config_of(NULL), "NULL");
    kr_model_destroy(NULL);
    kr_model_destroy(model);
    end();
}

/* Numbers beyond the largest f16 do not become infinite unseen. */
TEST(numbers_that_do_not_fit)
{
    begin();
    kr_model *model = load_golden("official_lm/mamba1");
    const kr_param_row *row =
        kr_params_find(kr_network_params(kr_model_network(model)), "backbone.layers.1.mixer.in_proj.weight");
    kr_test_put(row->tensor, 17, -70000);
    kr_save_options o;
    kr_save_options_init(&o);
    o.dtype = KR_DTYPE_F16;
    CHECK(kr_model_save(model, in_folder("m"), &o) == KR_ERR_NUMERIC, "saved");
    CHECK_ERROR(
        ctx, KR_ERR_NUMERIC,
        "model.save: tensor 'backbone.layers.1.mixer.in_proj.weight' holds 1 number too large for f16; the largest is "
        "-70000; save it as f32");
    o.dtype = KR_DTYPE_BF16;
    CHECK(kr_model_save(model, in_folder("m"), &o) == KR_OK, "%s", kr_ctx_message(ctx));
    kr_load_options l;
    kr_load_options_init(&l);
    l.dtype = KR_DTYPE_F16;
    CHECK(!kr_model_load(ctx, in_folder("m"), &l), "loaded");
    CHECK_ERROR_HAS(
        ctx, KR_ERR_NUMERIC,
        ": tensor 'backbone.layers.1.mixer.in_proj.weight' holds 1 number too large for f16; the largest is "
        "-70144; load it as bf16");
    drop_folder("m");
    kr_model_destroy(model);
    end();
}

/* ---- disks ---- */

/* Saving over an old model fails; the old model is as it was. */
static void check_old_stays(const kr_model *old, const kr_model *next, const char *what)
{
    CHECK(kr_model_save(next, in_folder("m"), NULL) == KR_ERR_IO, "%s: saved", what);
    CHECK_ERROR_HAS(ctx, KR_ERR_IO, "cannot ");
    kr_model *again = kr_model_load(ctx, in_folder("m"), NULL);
    check_same_model(what, again, old);
    kr_model_destroy(again);
}

TEST(full_disk_leaves_the_old_model)
{
    begin();
    kr_model *old = load_golden("official_lm/mamba1"), *next = load_golden("official_lm/mamba1");
    kr_param_fill(kr_params_at(kr_network_params(kr_model_network(next)), 0)->tensor, 1);
    IGNORE(kr_model_save(old, in_folder("m"), NULL));
    struct rlimit before, limit;
    getrlimit(RLIMIT_FSIZE, &before);
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    for (int i = 0; i < 3; i++) {
        limit = before;
        limit.rlim_cur = (rlim_t)(100000 * i);
        setrlimit(RLIMIT_FSIZE, &limit);
        check_old_stays(old, next, "a full disk");
        setrlimit(RLIMIT_FSIZE, &before);
    }
    signal(SIGXFSZ, handler);
    CHECK(kr_model_save(next, in_folder("m"), NULL) == KR_OK, "%s", kr_ctx_message(ctx));
    kr_model *again = kr_model_load(ctx, in_folder("m"), NULL);
    check_same_model("the new model", again, next);
    kr_model_destroy(again);
    kr_model_destroy(old);
    kr_model_destroy(next);
    drop_folder("m");
    end();
}

/* Permissions mean nothing to root, who therefore saves as somebody else. */
TEST(a_folder_that_may_not_be_written)
{
    enum { OTHER_USER = 65534 };
    const uid_t self = geteuid();
    begin();
    kr_model *old = load_golden("official_lm/mamba1"), *next = load_golden("official_lm/mamba2");
    IGNORE(kr_model_save(old, in_folder("m"), NULL));
    chmod(folder, 0755);
    chmod(in_folder("m"), 0555);
    if (CHECK(self != 0 || seteuid(OTHER_USER) == 0, "root stays root"))
        check_old_stays(old, next, "a read-only folder");
    CHECK(seteuid(self) == 0, "the user id stays");
    chmod(in_folder("m"), 0755);
    kr_model_destroy(old);
    kr_model_destroy(next);
    drop_folder("m");
    end();
}

/* ---- memory ---- */

TEST(any_allocation_of_models_may_fail)
{
    begin();
    kr_model *model = load_golden("hf_mamba2/g2_untied");
    const size_t blocks = kr_ctx_memory(ctx).live_blocks;
    kr_save_options o;
    kr_save_options_init(&o);
    o.layout = KR_LAYOUT_OFFICIAL;
    o.dtype = KR_DTYPE_BF16;
    size_t n = 1;
    for (; n < 1000; n++) {
        kr_ctx_fail_allocation(ctx, n);
        const kr_status status = kr_model_save(model, in_folder("m"), &o);
        kr_ctx_fail_allocation(ctx, 0);
        CHECK(kr_ctx_memory(ctx).live_blocks == blocks, "saving, allocation %zu: memory is left", n);
        CHECK(status == KR_OK || status == KR_ERR_NOMEM, "saving, allocation %zu: %s", n, kr_ctx_message(ctx));
        kr_ctx_clear(ctx);
        if (status == KR_OK) break;
    }
    CHECK(n > 10 && n < 1000, "%zu allocations", n - 1);
    for (n = 1; n < 1000; n++) {
        kr_ctx_fail_allocation(ctx, n);
        kr_model *again = kr_model_load(ctx, in_folder("m"), NULL);
        kr_ctx_fail_allocation(ctx, 0);
        const bool done = again != NULL;
        CHECK(done || kr_ctx_status(ctx) == KR_ERR_NOMEM, "loading, allocation %zu: %s", n, kr_ctx_message(ctx));
        kr_ctx_clear(ctx);
        kr_model_destroy(again);
        CHECK(kr_ctx_memory(ctx).live_blocks == blocks, "loading, allocation %zu: memory is left", n);
        if (done) break;
    }
    CHECK(n > 10 && n < 1000, "%zu allocations", n - 1);
    const kr_model_values c = values_of(ctx, kr_model_config_of(model));
    for (n = 1; n < 1000; n++) {
        kr_model_size size;
        kr_ctx_fail_allocation(ctx, n);
        kr_model *initial = kr_model_create(ctx, config_of(&c));
        const bool measured = initial && kr_model_measure(ctx, config_of(&c), &size) == KR_OK;
        kr_ctx_fail_allocation(ctx, 0);
        CHECK(measured || kr_ctx_status(ctx) == KR_ERR_NOMEM, "creating, allocation %zu: %s", n, kr_ctx_message(ctx));
        kr_ctx_clear(ctx);
        kr_model_destroy(initial);
        CHECK(kr_ctx_memory(ctx).live_blocks == blocks, "creating, allocation %zu: memory is left", n);
        if (measured) break;
    }
    CHECK(n > 10 && n < 1000, "%zu allocations", n - 1);
    kr_model_destroy(model);
    drop_folder("m");
    end();
}
