/* model_config.c - configs of models: defaults, copies, and config.json in any layout. */
#include "model/model_config_impl.h"

#include "base/entry.h"
#include "base/names.h"
#include "base/sized.h"
#include "io/file.h"
#include "nn/block_impl.h"
#include "nn/block_config.h"

#include <string.h>

KR_NAMES(kr_layout, "official", "hf");

/* ---- configs ---- */

KR_DECLARE_DEFAULTS(kr_mamba1_config);
KR_DECLARE_DEFAULTS(kr_mamba2_config);
KR_DECLARE_DEFAULTS(kr_mamba3_config);
KR_DECLARE_DEFAULTS(kr_layers_config);
KR_DECLARE_DEFAULTS(kr_network_config);

KR_DEFAULTS(kr_model_config) = {
    .size = sizeof(kr_model_config), .family = KR_FAMILY_MAMBA2, .fused_add_norm = true, .bos = -1, .pad = -1
};

void kr_model_values_init(kr_model_values *values)
{
    const kr_model_config *c = &kr_model_config_defaults;
    *values =
        (kr_model_values){ .family = c->family, .fused_add_norm = c->fused_add_norm, .bos = c->bos, .pad = c->pad };
    kr_mamba1_config_init(&values->mamba1);
    kr_mamba2_config_init(&values->mamba2);
    kr_mamba3_config_init(&values->mamba3);
    kr_layers_config_init(&values->layers);
    kr_network_config_init(&values->network);
}

void *kr_model_values_block(kr_model_values *values)
{
    return values->family == KR_FAMILY_MAMBA1   ? (void *)&values->mamba1
           : values->family == KR_FAMILY_MAMBA2 ? (void *)&values->mamba2
           : values->family == KR_FAMILY_MAMBA3 ? (void *)&values->mamba3
                                                : (void *)&values->registered;
}

void kr_model_values_set_family(kr_model_values *values, kr_family family)
{
    const kr_registered_kind *r = kr_registered_kind_of(family);
    values->family = family;
    memset(&values->registered, 0, sizeof values->registered);
    if (r) kr_registered_config_init(r, &values->registered);
}

/* The caller's config of a registered family, or its defaults. */
static bool take_registered(kr_ctx *ctx, const char *op, kr_model_values *values, const void *config)
{
    const kr_registered_kind *r = kr_registered_kind_of(values->family);
    kr_model_values_set_family(values, values->family);
    if (!r || !config) return true;
    size_t size;
    memcpy(&size, config, sizeof size);
    if (!kr_require(ctx, size == r->info.config_bytes, KR_ERR_ARG,
                    "%s: registered.size is %zu, but the config of %s has %zu bytes; call kr_block_config_init before "
                    "setting fields",
                    op, size, r->name, r->info.config_bytes))
        return false;
    memcpy(&values->registered, config, size);
    return true;
}

bool kr_model_values_take(kr_ctx *ctx, const char *op, kr_model_values *values, const kr_model_config *config)
{
    kr_model_config c;
    if (!kr_config_given(ctx, op, config) || !KR_TAKE(ctx, op, kr_model_config, config, &c)) return false;
    *values = (kr_model_values){ .layout = c.layout,
                                 .family = c.family,
                                 .fused_add_norm = c.fused_add_norm,
                                 .chunk_size = c.chunk_size,
                                 .n_eos = c.n_eos,
                                 .bos = c.bos,
                                 .pad = c.pad };
    memcpy(values->eos, c.eos, sizeof c.eos);
    return take_registered(ctx, op, values, c.registered) &&
           KR_TAKE(ctx, op, kr_mamba1_config, c.mamba1, &values->mamba1) &&
           KR_TAKE(ctx, op, kr_mamba2_config, c.mamba2, &values->mamba2) &&
           KR_TAKE(ctx, op, kr_mamba3_config, c.mamba3, &values->mamba3) &&
           KR_TAKE(ctx, op, kr_layers_config, c.layers, &values->layers) &&
           KR_TAKE(ctx, op, kr_network_config, c.network, &values->network);
}

void kr_config_box_publish(kr_config_box *box)
{
    kr_model_values *v = &box->values;
    box->config = (kr_model_config){ .size = sizeof box->config,
                                     .layout = v->layout,
                                     .family = v->family,
                                     .mamba1 = &v->mamba1,
                                     .mamba2 = &v->mamba2,
                                     .mamba3 = &v->mamba3,
                                     .layers = &v->layers,
                                     .network = &v->network,
                                     .fused_add_norm = v->fused_add_norm,
                                     .chunk_size = v->chunk_size,
                                     .n_eos = v->n_eos,
                                     .bos = v->bos,
                                     .pad = v->pad,
                                     .registered = kr_registered_kind_of(v->family) ? &v->registered : NULL };
    memcpy(box->config.eos, v->eos, sizeof v->eos);
}

kr_model_config *kr_model_config_create(kr_ctx *ctx)
{
    kr_config_box *box = kr_ctx_failed(ctx) ? NULL : kr_config_box_create(ctx);
    return box ? &box->config : NULL;
}

static int64_t d_model_of(const kr_model_values *values)
{
    return values->family == KR_FAMILY_MAMBA1   ? values->mamba1.d_model
           : values->family == KR_FAMILY_MAMBA2 ? values->mamba2.d_model
           : values->family == KR_FAMILY_MAMBA3 ? values->mamba3.d_model
                                                : values->registered.head.d_model;
}

void kr_config_set_d_model(kr_model_values *values, int64_t d_model)
{
    values->mamba1.d_model = values->mamba2.d_model = values->mamba3.d_model = values->registered.head.d_model =
        d_model;
}

void kr_config_set_dtype(kr_model_values *config, kr_dtype dtype)
{
    config->mamba1.dtype = config->mamba2.dtype = config->mamba3.dtype = config->registered.head.dtype = dtype;
}

kr_dtype kr_config_dtype_of(const kr_model_values *config)
{
    return config->family == KR_FAMILY_MAMBA1   ? config->mamba1.dtype
           : config->family == KR_FAMILY_MAMBA2 ? config->mamba2.dtype
           : config->family == KR_FAMILY_MAMBA3 ? config->mamba3.dtype
                                                : config->registered.head.dtype;
}

/* ---- the width, which every family's config has ---- */

static bool read_d_model(kr_reading *r, const kr_key *key, const kr_json *value)
{
    if (!kr_json_is_integer(value)) return kr_key_refuse(r, key->name, value, "a whole number");
    kr_config_set_d_model(r->config, value->integer);
    return true;
}

static bool check_d_model(kr_ctx *ctx, const char *prefix, const kr_key *key, const kr_model_values *config)
{
    const int64_t nd = d_model_of(config);
    return kr_require(ctx, nd >= 1 && nd <= KR_CONFIG_MOST, KR_ERR_FORMAT,
                      "config.json: %s%s = %lld, but must be from 1 to %lld", prefix, key->name, (long long)nd,
                      (long long)KR_CONFIG_MOST);
}

static void write_d_model(kr_json_writer *w, const kr_key *key, const kr_model_values *config)
{
    kr_json_write_integer(w, key->name, d_model_of(config));
}

static bool same_d_model(const kr_model_values *a, const kr_model_values *b)
{
    return d_model_of(a) == d_model_of(b);
}

static void copy_d_model(kr_model_values *to, const kr_model_values *from)
{
    kr_config_set_d_model(to, d_model_of(from));
}

const kr_key_kind kr_d_model_key = { 0, read_d_model, check_d_model, write_d_model, same_d_model, copy_d_model };

/* ---- configs that normalised their lists ---- */

kr_config_box *kr_config_box_create(kr_ctx *ctx)
{
    kr_config_box *box = kr_memory_alloc_zeroed(&ctx->memory, sizeof *box);
    if (!box) {
        kr_fail(ctx, KR_ERR_NOMEM, "no memory for a model's config");
        return NULL;
    }
    kr_model_values_init(&box->values);
    kr_config_box_publish(box);
    box->ctx = ctx;
    kr_arena_init(&box->arena, &ctx->memory, 1024);
    return box;
}

void kr_config_box_destroy(kr_config_box *box)
{
    kr_entry entry;
    if (!box || !kr_entry_begin(&entry, box->ctx, NULL, KR_ENTRY_DESTROYS)) return;
    kr_memory *memory = &box->ctx->memory;
    kr_arena_deinit(&box->arena);
    kr_memory_free(memory, box, sizeof *box);
    kr_entry_end(&entry);
}

/* NULL for an empty list, or if out of memory, then *ok is false. */
static const void *copy_list(kr_arena *arena, const void *list, int64_t count, size_t bytes, bool *ok)
{
    if (count == 0 || !list) return NULL;
    void *copy = kr_arena_alloc(arena, (size_t)count * bytes);
    if (copy) memcpy(copy, list, (size_t)count * bytes);
    *ok = *ok && copy;
    return copy;
}

kr_config_box *kr_config_box_clone(kr_ctx *ctx, const kr_model_values *values)
{
    kr_config_box *box = kr_config_box_create(ctx);
    if (!box) return NULL;
    box->values = *values;
    kr_layers_config *l = &box->values.layers;
    kr_network_config *n = &box->values.network;
    const int64_t nschedule = l->schedule != KR_SCHEDULE_CUSTOM ? 0 : l->n_virtual ? l->n_virtual : l->n_layers;
    bool ok = kr_registered_copy_texts(&box->arena, &box->values);
    l->custom_schedule = copy_list(&box->arena, l->custom_schedule, nschedule, sizeof *l->custom_schedule, &ok);
    l->latents = copy_list(&box->arena, l->latents, l->n_latents, sizeof *l->latents, &ok);
    l->layer_latents = copy_list(&box->arena, l->layer_latents, l->n_layer_latents, sizeof *l->layer_latents, &ok);
    n->class_tokens = copy_list(&box->arena, n->class_tokens, n->n_class_tokens, sizeof *n->class_tokens, &ok);
    l->block = (kr_block_config){ KR_FAMILY_MAMBA1, NULL };
    n->layers = NULL;
    kr_config_box_publish(box);
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
    kr_json *root = kr_json_parse(ctx, text, bytes, &options);
    if (root && kr_require(ctx, kr_json_kind_of(root) == KR_JSON_OBJECT, KR_ERR_FORMAT,
                           "the file is not an object, but of the kind %s", kr_json_kind_name(kr_json_kind_of(root))))
        return root;
    kr_blame(ctx, "%s", name);
    kr_json_destroy(root);
    return NULL;
}

kr_config_box *kr_config_read_text(kr_ctx *ctx, const char *text, size_t bytes)
{
    if (kr_ctx_failed(ctx) || !kr_require(ctx, text != NULL, KR_ERR_ARG, "config.json: the text is NULL")) return NULL;
    kr_config_box *box = kr_config_box_create(ctx);
    kr_json *root = box ? kr_config_parse(ctx, "config.json", text, bytes) : NULL;
    bool done = root != NULL;
    if (done) {
        const kr_layout_kind *layout = kr_json_find(root, "model_type") ? &kr_hf_layout : &kr_official_layout;
        kr_reading r = { .ctx = ctx, .arena = &box->arena, .config = &box->values, .prefix = "" };
        done = layout->read(&r, root) && kr_krait_read(&r, root);
    }
    kr_json_destroy(root);
    if (done) {
        kr_config_box_publish(box);
        return box;
    }
    kr_config_box_destroy(box);
    return NULL;
}

kr_model_config *kr_model_config_parse(kr_ctx *ctx, const char *text, size_t bytes)
{
    kr_config_box *box = kr_config_read_text(ctx, text, bytes);
    return box ? &box->config : NULL;
}

static kr_config_box *load_file(kr_ctx *ctx, const char *path)
{
    kr_file file;
    if (!kr_file_open(&file, ctx, path, false)) return NULL;
    kr_config_box *box = kr_config_read_text(ctx, (const char *)file.data, file.bytes);
    kr_file_close(&file);
    return box;
}

static bool load_generation(kr_ctx *ctx, const char *path, kr_config_box *box)
{
    kr_file file;
    if (kr_path_kind_of(path) == KR_PATH_NONE) return true;
    if (!kr_file_open(&file, ctx, path, false)) return false;
    const bool done = kr_generation_read(ctx, &box->values, (const char *)file.data, file.bytes);
    kr_config_box_publish(box);
    kr_file_close(&file);
    return done;
}

kr_config_box *kr_config_load_folder(kr_ctx *ctx, const char *folder)
{
    kr_arena arena;
    kr_arena_init(&arena, &ctx->memory, 1024);
    const char *path = kr_path_join(ctx, &arena, folder, "config.json");
    const char *generation = path ? kr_path_join(ctx, &arena, folder, "generation_config.json") : NULL;
    kr_config_box *box = generation ? load_file(ctx, path) : NULL;
    if (box && !kr_config_has_tokens(&box->values) && !load_generation(ctx, generation, box)) {
        kr_config_box_destroy(box);
        box = NULL;
    }
    kr_arena_deinit(&arena);
    return box;
}

kr_model_config *kr_model_config_load(kr_ctx *ctx, const char *path)
{
    if (kr_ctx_failed(ctx) || !kr_require(ctx, path && *path, KR_ERR_ARG, "config.json: the path is NULL or empty"))
        return NULL;
    kr_config_box *box =
        kr_path_kind_of(path) == KR_PATH_FOLDER ? kr_config_load_folder(ctx, path) : load_file(ctx, path);
    return box ? &box->config : NULL;
}

void kr_model_config_destroy(kr_model_config *config)
{
    kr_config_box_destroy((kr_config_box *)(void *)config); /* its first member */
}

/* ---- writing ---- */

/* Normalises redundant fields, so that fields without effect do not count as different. */
static void normalise_fields(kr_model_values *c, const kr_model_values *seen)
{
    kr_mamba1_config *m = &c->mamba1;
    if (c->family == KR_FAMILY_MAMBA1 && m->d_inner == m->expand * m->d_model) m->d_inner = 0;
    if (c->mamba2.n_groups == 1) c->mamba2.norm_per_group = seen->mamba2.norm_per_group;
}

static bool check_registered(kr_ctx *ctx, const kr_model_values *c)
{
    const kr_registered_kind *r = kr_registered_kind_of(c->family);
    return !r || kr_registered_config_check(ctx, "config.json", r, &c->registered);
}

static bool check_config(kr_ctx *ctx, const kr_model_values *c, kr_layout layout)
{
    return kr_require(ctx, layout == KR_LAYOUT_OFFICIAL || layout == KR_LAYOUT_HF, KR_ERR_ARG,
                      "config.json: layout = %d is neither official nor hf", (int)layout) &&
           kr_require(ctx, kr_block_kind_of(c->family) != NULL, KR_ERR_ARG,
                      "config.json: family = %d is not one of mamba1, mamba2, mamba3, or registered", (int)c->family) &&
           kr_config_dtype(ctx, "config.json", kr_config_dtype_of(c)) && check_registered(ctx, c) &&
           kr_krait_check(ctx, c);
}

kr_status kr_model_config_format(kr_ctx *ctx, const kr_model_config *config, kr_layout layout, char *text, size_t bytes,
                                 size_t *needed)
{
    kr_model_values values;
    if (needed) *needed = 0;
    if (kr_ctx_failed(ctx)) return kr_ctx_status(ctx);
    if (!kr_model_values_take(ctx, "config.json", &values, config)) return ctx->status;
    return kr_model_values_write(ctx, &values, layout, text, bytes, needed);
}

kr_status kr_model_values_write(kr_ctx *ctx, const kr_model_values *values, kr_layout layout, char *text, size_t bytes,
                                size_t *needed)
{
    kr_model_values normalised = *values, seen;
    if (needed) *needed = 0;
    if (kr_ctx_failed(ctx)) return kr_ctx_status(ctx);
    if (layout == KR_LAYOUT_AS_LOADED) layout = normalised.layout;
    if (!check_config(ctx, &normalised, layout)) return ctx->status;
    const kr_layout_kind *kind = layout == KR_LAYOUT_HF ? &kr_hf_layout : &kr_official_layout;
    kr_json_writer w;
    kr_json_write_begin(&w, text, bytes);
    kr_json_write_open(&w, NULL, '{');
    if (kind->write(ctx, &w, &normalised, &seen)) {
        normalise_fields(&normalised, &seen);
        kr_krait_write(ctx, &w, &normalised, &seen, kind, text != NULL);
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
