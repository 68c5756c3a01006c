/* config.c - configs of models: defaults, copies, and config.json whatever its layout. */
#include "model/config.h"

#include "base/sized.h"
#include "io/file.h"
#include "nn/block.h"
#include "nn/config.h"

#include <string.h>

const char *kr_layout_name(kr_layout layout)
{
    static const char *const names[] = { "official", "hf" };
    return layout == KR_LAYOUT_OFFICIAL || layout == KR_LAYOUT_HF ? names[layout] : "?";
}

/* ---- configs ---- */

void kr_model_config_init_sized(kr_model_config *config, size_t size)
{
    kr_model_config defaults = { .size = size, .family = KR_MAMBA2, .fused_add_norm = true, .bos = -1, .pad = -1 };
    kr_mamba1_config_init(&defaults.mamba1);
    kr_mamba2_config_init(&defaults.mamba2);
    kr_mamba3_config_init(&defaults.mamba3);
    kr_layers_config_init(&defaults.layers);
    kr_network_config_init(&defaults.network);
    kr_sized_init(config, size, &defaults, sizeof defaults);
}

void kr_model_config_set_d_model(kr_model_config *config, int64_t d_model)
{
    if (config) config->mamba1.d_model = config->mamba2.d_model = config->mamba3.d_model = d_model;
}

int64_t kr_model_config_d_model(const kr_model_config *config)
{
    if (!config) return 0;
    return config->family == KR_MAMBA1   ? config->mamba1.d_model
           : config->family == KR_MAMBA2 ? config->mamba2.d_model
                                         : config->mamba3.d_model;
}

void kr_config_set_dtype(kr_model_config *config, kr_dtype dtype)
{
    config->mamba1.dtype = config->mamba2.dtype = config->mamba3.dtype = dtype;
}

kr_dtype kr_config_dtype_of(const kr_model_config *config)
{
    return config->family == KR_MAMBA1   ? config->mamba1.dtype
           : config->family == KR_MAMBA2 ? config->mamba2.dtype
                                         : config->mamba3.dtype;
}

/* ---- the width, which every family's config has ---- */

static bool read_d_model(kr_reading *r, const kr_key *key, const kr_json *value)
{
    if (!kr_json_is_integer(value)) return kr_key_refuse(r, key->name, value, "a whole number");
    kr_model_config_set_d_model(r->config, value->integer);
    return true;
}

static bool check_d_model(kr_ctx *ctx, const char *prefix, const kr_key *key, const kr_model_config *config)
{
    const int64_t nd = kr_model_config_d_model(config);
    return kr_require(ctx, nd >= 1 && nd <= KR_CONFIG_MOST, KR_ERR_FORMAT,
                      "config.json: %s%s = %lld, but must be from 1 to %lld", prefix, key->name, (long long)nd,
                      (long long)KR_CONFIG_MOST);
}

static void write_d_model(kr_json_writer *w, const kr_key *key, const kr_model_config *config)
{
    kr_json_write_integer(w, key->name, kr_model_config_d_model(config));
}

static bool same_d_model(const kr_model_config *a, const kr_model_config *b)
{
    return kr_model_config_d_model(a) == kr_model_config_d_model(b);
}

static void copy_d_model(kr_model_config *to, const kr_model_config *from)
{
    kr_model_config_set_d_model(to, kr_model_config_d_model(from));
}

const kr_key_kind kr_d_model_key = { 0, read_d_model, check_d_model, write_d_model, same_d_model, copy_d_model };

/* ---- configs that own their lists ---- */

kr_config_box *kr_config_box_create(kr_ctx *ctx)
{
    kr_config_box *box = kr_memory_alloc_zeroed(&ctx->memory, sizeof *box);
    if (!box) {
        kr_fail(ctx, KR_ERR_NOMEM, "no memory for a model's config");
        return NULL;
    }
    kr_model_config_init(&box->config);
    box->ctx = ctx;
    kr_arena_init(&box->arena, &ctx->memory, 1024);
    return box;
}

void kr_config_box_destroy(kr_config_box *box)
{
    if (!box) return;
    kr_memory *memory = &box->ctx->memory;
    kr_arena_deinit(&box->arena);
    kr_memory_free(memory, box, sizeof *box);
}

/* NULL where there is nothing to copy, or no memory, which *ok then tells. */
static const void *copy_list(kr_arena *arena, const void *list, int64_t count, size_t bytes, bool *ok)
{
    if (count == 0 || !list) return NULL;
    void *copy = kr_arena_alloc(arena, (size_t)count * bytes);
    if (copy) memcpy(copy, list, (size_t)count * bytes);
    *ok = *ok && copy;
    return copy;
}

kr_config_box *kr_config_box_clone(kr_ctx *ctx, const kr_model_config *config)
{
    kr_config_box *box = kr_config_box_create(ctx);
    if (!box) return NULL;
    box->config = *config;
    kr_layers_config *l = &box->config.layers;
    kr_network_config *n = &box->config.network;
    const int64_t nschedule = l->schedule != KR_SCHEDULE_CUSTOM ? 0 : l->n_virtual ? l->n_virtual : l->n_layers;
    bool ok = true;
    l->custom_schedule = copy_list(&box->arena, l->custom_schedule, nschedule, sizeof *l->custom_schedule, &ok);
    l->latents = copy_list(&box->arena, l->latents, l->n_latents, sizeof *l->latents, &ok);
    l->layer_latents = copy_list(&box->arena, l->layer_latents, l->n_layer_latents, sizeof *l->layer_latents, &ok);
    n->class_tokens = copy_list(&box->arena, n->class_tokens, n->n_class_tokens, sizeof *n->class_tokens, &ok);
    l->block = (kr_block_config){ KR_MAMBA1, NULL };
    n->layers = NULL;
    if (ok) return box;
    kr_fail(ctx, KR_ERR_NOMEM, "no memory for the lists of a model's config");
    kr_config_box_destroy(box);
    return NULL;
}

/* ---- reading ---- */

kr_json *kr_config_parse(kr_ctx *ctx, const char *name, const char *text, size_t bytes)
{
    kr_json_options options;
    kr_json_options_init(&options);
    options.max_bytes = KR_CONFIG_BYTES_MOST;
    options.allow_nonfinite = true;
    kr_json *root = kr_json_create(ctx, text, bytes, &options);
    if (root && kr_require(ctx, kr_json_kind_of(root) == KR_JSON_OBJECT, KR_ERR_FORMAT,
                           "the file is no object, but of the kind %s", kr_json_kind_name(kr_json_kind_of(root))))
        return root;
    kr_blame(ctx, "%s", name);
    kr_json_destroy(root);
    return NULL;
}

kr_model_config *kr_model_config_read(kr_ctx *ctx, const char *text, size_t bytes)
{
    if (kr_ctx_failed(ctx) || !kr_require(ctx, text != NULL, KR_ERR_ARG, "config.json: the text is NULL")) return NULL;
    kr_config_box *box = kr_config_box_create(ctx);
    kr_json *root = box ? kr_config_parse(ctx, "config.json", text, bytes) : NULL;
    bool done = root != NULL;
    if (done) {
        const kr_layout_kind *layout = kr_json_find(root, "model_type") ? &kr_hf_layout : &kr_official_layout;
        kr_reading r = { .ctx = ctx, .arena = &box->arena, .config = &box->config, .prefix = "" };
        done = layout->read(&r, root) && kr_krait_read(&r, root);
    }
    kr_json_destroy(root);
    if (done) return &box->config;
    kr_config_box_destroy(box);
    return NULL;
}

static kr_model_config *load_file(kr_ctx *ctx, const char *path)
{
    kr_file file;
    if (!kr_file_open(&file, ctx, path, false)) return NULL;
    kr_model_config *config = kr_model_config_read(ctx, (const char *)file.data, file.bytes);
    kr_file_close(&file);
    return config;
}

static bool load_generation(kr_ctx *ctx, const char *path, kr_model_config *config)
{
    kr_file file;
    if (kr_path_kind_of(path) == KR_PATH_NONE) return true;
    if (!kr_file_open(&file, ctx, path, false)) return false;
    const bool done = kr_generation_read(ctx, config, (const char *)file.data, file.bytes);
    kr_file_close(&file);
    return done;
}

kr_model_config *kr_config_load_folder(kr_ctx *ctx, const char *folder)
{
    kr_arena arena;
    kr_arena_init(&arena, &ctx->memory, 1024);
    const char *path = kr_path_join(ctx, &arena, folder, "config.json");
    const char *generation = path ? kr_path_join(ctx, &arena, folder, "generation_config.json") : NULL;
    kr_model_config *config = generation ? load_file(ctx, path) : NULL;
    if (config && !kr_config_has_tokens(config) && !load_generation(ctx, generation, config)) {
        kr_model_config_destroy(config);
        config = NULL;
    }
    kr_arena_deinit(&arena);
    return config;
}

kr_model_config *kr_model_config_load(kr_ctx *ctx, const char *path)
{
    if (kr_ctx_failed(ctx) || !kr_require(ctx, path && *path, KR_ERR_ARG, "config.json: the path is NULL or empty"))
        return NULL;
    return kr_path_kind_of(path) == KR_PATH_FOLDER ? kr_config_load_folder(ctx, path) : load_file(ctx, path);
}

void kr_model_config_destroy(kr_model_config *config)
{
    kr_config_box_destroy((kr_config_box *)(void *)config); /* whose first member it is */
}

/* ---- writing ---- */

/* Fields that say the same in two ways, said in one: what they do not change shall not differ. */
static void settle(kr_model_config *c, const kr_model_config *seen)
{
    kr_mamba1_config *m = &c->mamba1;
    if (c->family == KR_MAMBA1 && m->d_inner == m->expand * m->d_model) m->d_inner = 0;
    if (c->mamba2.ngroups == 1) c->mamba2.norm_per_group = seen->mamba2.norm_per_group;
}

static bool check_config(kr_ctx *ctx, const kr_model_config *c, kr_layout layout)
{
    return kr_require(ctx, layout == KR_LAYOUT_OFFICIAL || layout == KR_LAYOUT_HF, KR_ERR_ARG,
                      "config.json: layout = %d is neither official nor hf", (int)layout) &&
           kr_require(ctx, kr_block_kind_of(c->family) != NULL, KR_ERR_ARG,
                      "config.json: family = %d is none of mamba1, mamba2, mamba3", (int)c->family) &&
           kr_config_dtype(ctx, "config.json", kr_config_dtype_of(c)) && kr_krait_check(ctx, c);
}

kr_status kr_model_config_write(kr_ctx *ctx, const kr_model_config *config, kr_layout layout, char *text, size_t bytes,
                                size_t *needed)
{
    kr_model_config own, seen;
    kr_model_config_init(&own);
    if (needed) *needed = 0;
    if (kr_ctx_failed(ctx)) return kr_ctx_status(ctx);
    if (!kr_config_take(ctx, "config.json", &own, sizeof own, config)) return ctx->status;
    if (layout == KR_LAYOUT_SAME) layout = own.layout;
    if (!check_config(ctx, &own, layout)) return ctx->status;
    const kr_layout_kind *kind = layout == KR_LAYOUT_HF ? &kr_hf_layout : &kr_official_layout;
    kr_json_writer w;
    kr_json_write_begin(&w, text, bytes);
    kr_json_write_open(&w, NULL, '{');
    if (kind->write(ctx, &w, &own, &seen)) {
        settle(&own, &seen);
        kr_krait_write(ctx, &w, &own, &seen, kind, text != NULL);
        kr_json_write_close(&w, '}');
        kr_json_write_end(&w);
        if (w.length > KR_CONFIG_BYTES_MOST)
            kr_fail(ctx, KR_ERR_ARG,
                    "config.json: the lists of the config make it %zu bytes long, but at most %d are read", w.length,
                    KR_CONFIG_BYTES_MOST);
    }
    if (needed && ctx->status == KR_OK) *needed = w.length;
    if (text && bytes && ctx->status != KR_OK) text[0] = '\0';
    return ctx->status;
}
