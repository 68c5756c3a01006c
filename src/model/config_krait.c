/* config_krait.c - the object "krait" of config.json: settings that a layout has no key for, by the fields' names. */
#include "model/model_config_impl.h"

#include "nn/layers_impl.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#define PREFIX "krait."

static const char *const schedules[] = { "cyclic", "stretched", "custom", NULL };
static const char *const residuals[] = { "standard", "multi_gate", NULL };
static const char *const position_names[] = { "start", "middle", "end", "custom", NULL };
static const char *const rotations[] = { "complex", "quaternion", NULL };
static const char *const activations[] = { "heavy_tail", "softplus", NULL };
static const char *const pathways[] = { "single", "double", NULL };

static bool check_nothing(kr_ctx *ctx, const char *prefix, const kr_key *key, const kr_model_values *config)
{
    (void)ctx, (void)prefix, (void)key, (void)config;
    return true;
}

/* ---- lists ---- */

/* Allocates a list on the arena, NULL after an error. */
static void *make_list(kr_reading *r, const kr_key *key, const kr_json *value, size_t bytes)
{
    if (kr_json_kind_of(value) != KR_JSON_ARRAY) {
        kr_key_refuse(r, key->name, value, "an array");
        return NULL;
    }
    void *list = kr_arena_alloc(r->arena, ((size_t)kr_json_length(value) + 1) * bytes);
    if (!list) kr_fail(r->ctx, KR_ERR_NOMEM, "config.json: no memory for " PREFIX "%s", key->name);
    return list;
}

static bool read_schedule(kr_reading *r, const kr_key *key, const kr_json *value)
{
    int64_t *list = make_list(r, key, value, sizeof *list);
    if (!list) return false;
    r->nschedule = 0;
    for (const kr_json *item = kr_json_first(value); item; item = kr_json_next(item)) {
        if (!kr_json_is_integer(item)) return kr_key_refuse(r, key->name, item, "whole numbers, each a set of weights");
        list[r->nschedule++] = item->integer;
    }
    r->config->layers.custom_schedule = list;
    return true;
}

static int64_t virtual_layers(const kr_model_values *c)
{
    return c->layers.n_virtual ? c->layers.n_virtual : c->layers.n_layers;
}

static void write_schedule(kr_json_writer *w, const kr_key *key, const kr_model_values *config)
{
    kr_json_write_open(w, key->name, '[');
    for (int64_t v = 0; v < virtual_layers(config); v++)
        kr_json_write_integer(w, NULL, config->layers.custom_schedule[v]);
    kr_json_write_close(w, ']');
}

/* Only a custom schedule has a list, and no layout has a key for one. */
static bool same_schedule(const kr_model_values *a, const kr_model_values *b)
{
    return (a->layers.schedule == KR_SCHEDULE_CUSTOM) == (b->layers.schedule == KR_SCHEDULE_CUSTOM);
}

static const kr_key_kind schedule_key = { 0, read_schedule, check_nothing, write_schedule, same_schedule, NULL };

/* A class token, and its layer if `layer` is given: {"kind": "custom", "at": 3, "layer": 0}. */
static bool read_class_token(kr_reading *r, const char *name, const kr_json *value, kr_class_token *class_token,
                             int64_t *layer)
{
    const char *rule = layer ? "objects with \"layer\", \"kind\" and, for a custom one, \"at\""
                             : "objects with \"kind\" and, for a custom one, \"at\"";
    const kr_json *kind = kr_json_find(value, "kind"), *at = kr_json_find(value, "at"),
                  *own = layer ? kr_json_find(value, "layer") : NULL;
    const int64_t known = (kind != NULL) + (at != NULL) + (own != NULL);
    int k = 0;
    while (position_names[k] && !kr_json_is_word(kind, position_names[k])) k++;
    if (kr_json_kind_of(value) != KR_JSON_OBJECT || kr_json_length(value) != known || !position_names[k] ||
        (at && (!kr_json_is_integer(at) || at->integer < 0)) || (k == KR_CLASS_TOKEN_CUSTOM && !at) ||
        (layer && (!kr_json_is_integer(own) || own->integer < 0)))
        return kr_key_refuse(r, name, value, rule);
    *class_token = (kr_class_token){ .kind = (kr_class_token_kind)k, .at = at ? at->integer : 0 };
    if (layer) *layer = own->integer;
    return true;
}

static void write_class_token(kr_json_writer *w, const kr_class_token *class_token, const int64_t *layer)
{
    kr_json_write_open(w, NULL, '{');
    if (layer) kr_json_write_integer(w, "layer", *layer);
    kr_json_write_string(w, "kind", position_names[class_token->kind]);
    if (class_token->kind == KR_CLASS_TOKEN_CUSTOM) kr_json_write_integer(w, "at", class_token->at);
    kr_json_write_close(w, '}');
}

static bool read_token_list(kr_reading *r, const kr_key *key, const kr_json *value, const kr_class_token **list,
                            int *count)
{
    kr_class_token *class_tokens = make_list(r, key, value, sizeof *class_tokens);
    *count = 0;
    if (!class_tokens) return false;
    for (const kr_json *item = kr_json_first(value); item; item = kr_json_next(item))
        if (!read_class_token(r, key->name, item, &class_tokens[(*count)++], NULL)) return false;
    *list = class_tokens;
    return true;
}

static void write_token_list(kr_json_writer *w, const char *name, const kr_class_token *class_tokens, int count)
{
    kr_json_write_open(w, name, '[');
    for (int i = 0; i < count; i++) write_class_token(w, &class_tokens[i], NULL);
    kr_json_write_close(w, ']');
}

static bool read_latents(kr_reading *r, const kr_key *key, const kr_json *value)
{
    return read_token_list(r, key, value, &r->config->layers.latents, &r->config->layers.n_latents);
}

static void write_latents(kr_json_writer *w, const kr_key *key, const kr_model_values *config)
{
    write_token_list(w, key->name, config->layers.latents, config->layers.n_latents);
}

static bool same_latents(const kr_model_values *a, const kr_model_values *b)
{
    return !a->layers.n_latents == !b->layers.n_latents;
}

static const kr_key_kind latents_key = { 0, read_latents, check_nothing, write_latents, same_latents, NULL };

static bool read_class_tokens(kr_reading *r, const kr_key *key, const kr_json *value)
{
    return read_token_list(r, key, value, &r->config->network.class_tokens, &r->config->network.n_class_tokens);
}

static void write_class_tokens(kr_json_writer *w, const kr_key *key, const kr_model_values *config)
{
    write_token_list(w, key->name, config->network.class_tokens, config->network.n_class_tokens);
}

static bool same_class_tokens(const kr_model_values *a, const kr_model_values *b)
{
    return !a->network.n_class_tokens == !b->network.n_class_tokens;
}

static const kr_key_kind class_tokens_key = {
    0, read_class_tokens, check_nothing, write_class_tokens, same_class_tokens, NULL
};

static bool read_layer_latents(kr_reading *r, const kr_key *key, const kr_json *value)
{
    kr_layers_config *c = &r->config->layers;
    kr_layer_class_token *class_tokens = make_list(r, key, value, sizeof *class_tokens);
    c->n_layer_latents = 0;
    if (!class_tokens) return false;
    for (const kr_json *item = kr_json_first(value); item; item = kr_json_next(item)) {
        kr_layer_class_token *m = &class_tokens[c->n_layer_latents++];
        if (!read_class_token(r, key->name, item, &m->token, &m->layer)) return false;
    }
    c->layer_latents = class_tokens;
    return true;
}

static void write_layer_latents(kr_json_writer *w, const kr_key *key, const kr_model_values *config)
{
    kr_json_write_open(w, key->name, '[');
    for (int i = 0; i < config->layers.n_layer_latents; i++)
        write_class_token(w, &config->layers.layer_latents[i].token, &config->layers.layer_latents[i].layer);
    kr_json_write_close(w, ']');
}

static bool same_layer_latents(const kr_model_values *a, const kr_model_values *b)
{
    return !a->layers.n_layer_latents == !b->layers.n_layer_latents;
}

static const kr_key_kind layer_latents_key = {
    0, read_layer_latents, check_nothing, write_layer_latents, same_layer_latents, NULL
};

/* ---- the residual scheme: a nested object ---- */

static const kr_key residual_rows[] = {
    { .name = "kind",
      .kind = &kr_word_key,
      .offset = KR_FIELD(layers.residual.kind),
      .words = residuals,
      .flags = KR_KEY_ALWAYS },
    { .name = "n_stream",
      .kind = &kr_integer_key,
      .offset = KR_FIELD(layers.residual.n_stream),
      .least = 1,
      .most = KR_STREAMS_MAX,
      .flags = KR_KEY_ALWAYS },
    { .name = "init_bias",
      .kind = &kr_number_key,
      .offset = KR_FIELD(layers.residual.init_bias),
      .least = KR_KEY_ANY,
      .flags = KR_KEY_ALWAYS },
    { .name = "init_bias_step",
      .kind = &kr_number_key,
      .offset = KR_FIELD(layers.residual.init_bias_step),
      .least = KR_KEY_ANY,
      .flags = KR_KEY_ALWAYS },
    { .name = "per_virtual_layer",
      .kind = &kr_bool_key,
      .offset = KR_FIELD(layers.residual.per_virtual_layer),
      .flags = KR_KEY_ALWAYS },
};
static const kr_keys residual_keys = KR_KEYS(residual_rows);

static bool is_multi_gate(const kr_model_values *c)
{
    return c->layers.residual.kind != KR_RESIDUAL_STANDARD;
}

static bool check_residual(kr_ctx *ctx, const char *prefix, const kr_key *key, const kr_model_values *config)
{
    (void)prefix, (void)key;
    return !is_multi_gate(config) || kr_keys_check(ctx, PREFIX "residual.", &residual_keys, config);
}

static bool read_residual(kr_reading *r, const kr_key *key, const kr_json *value)
{
    if (kr_json_kind_of(value) != KR_JSON_OBJECT) return kr_key_refuse(r, key->name, value, "an object");
    kr_reading inner = *r;
    inner.object = value;
    inner.prefix = PREFIX "residual.";
    return kr_keys_read(&inner, (const kr_keys *const[]){ &residual_keys }, 1, true);
}

static void write_residual(kr_json_writer *w, const kr_key *key, const kr_model_values *config)
{
    kr_json_write_open(w, key->name, '{');
    kr_keys_write(w, &residual_keys, config, config);
    kr_json_write_close(w, '}');
}

static bool same_residual(const kr_model_values *a, const kr_model_values *b)
{
    return is_multi_gate(a) == is_multi_gate(b);
}

static const kr_key_kind residual_key = { 0, read_residual, check_residual, write_residual, same_residual, NULL };

/* ---- the rotated part of a state ---- */

static bool read_rope(kr_reading *r, const kr_key *key, const kr_json *value)
{
    return kr_number_key.read(r, key, value);
}

static bool check_rope(kr_ctx *ctx, const char *prefix, const kr_key *key, const kr_model_values *config)
{
    const double rope = config->mamba3.rope_fraction;
    return kr_require(ctx, rope == 0 || rope == 0.5 || rope == 1, KR_ERR_FORMAT,
                      "config.json: %s%s = %g, but must be 0, 0.5 or 1", prefix, key->name, rope);
}

static void write_rope(kr_json_writer *w, const kr_key *key, const kr_model_values *config)
{
    kr_json_write_number(w, key->name, config->mamba3.rope_fraction);
}

static const kr_key_kind rope_key = { sizeof(double), read_rope, check_rope, write_rope, NULL, NULL };

/* ---- tables ---- */

static const kr_key common_rows[] = {
    { .name = "vocab_size", .kind = &kr_integer_key, .offset = KR_FIELD(network.vocab_size), .flags = KR_KEY_HARMLESS },
    { .name = "pad_vocab_size_multiple",
      .kind = &kr_integer_key,
      .offset = KR_FIELD(network.pad_vocab_size_multiple),
      .least = 1,
      .flags = KR_KEY_HARMLESS },
    { .name = "fused_add_norm", .kind = &kr_bool_key, .offset = KR_FIELD(fused_add_norm), .flags = KR_KEY_HARMLESS },
    { .name = "n_virtual", .kind = &kr_integer_key, .offset = KR_FIELD(layers.n_virtual), .most = KR_VIRTUAL_MOST },
    { .name = "schedule", .kind = &kr_word_key, .offset = KR_FIELD(layers.schedule), .words = schedules },
    { .name = "custom_schedule", .kind = &schedule_key },
    { .name = "norm_eps", .kind = &kr_number_key, .offset = KR_FIELD(layers.norm_eps), .flags = KR_KEY_ABOVE },
    { .name = "mlp_multiple_of", .kind = &kr_integer_key, .offset = KR_FIELD(layers.mlp_multiple_of), .least = 1 },
    { .name = "has_mlp_bias", .kind = &kr_bool_key, .offset = KR_FIELD(layers.has_mlp_bias) },
    { .name = "ignore_first_residual", .kind = &kr_bool_key, .offset = KR_FIELD(layers.ignore_first_residual) },
    { .name = "ignore_last_residual", .kind = &kr_bool_key, .offset = KR_FIELD(layers.ignore_last_residual) },
    { .name = "residual", .kind = &residual_key },
    { .name = "latents", .kind = &latents_key },
    { .name = "layer_latents", .kind = &layer_latents_key },
    { .name = "embedding_std",
      .kind = &kr_number_key,
      .offset = KR_FIELD(network.embedding_std),
      .flags = KR_KEY_ABOVE | KR_KEY_INITIAL },
    { .name = "rescales_residual",
      .kind = &kr_bool_key,
      .offset = KR_FIELD(network.rescale_residual),
      .flags = KR_KEY_INITIAL },
    { .name = "n_residuals",
      .kind = &kr_integer_key,
      .offset = KR_FIELD(network.n_residuals),
      .least = 1,
      .flags = KR_KEY_INITIAL },
    { .name = "zeroes_proj_biases",
      .kind = &kr_bool_key,
      .offset = KR_FIELD(network.zero_proj_biases),
      .flags = KR_KEY_INITIAL },
    { .name = "input_size", .kind = &kr_integer_key, .offset = KR_FIELD(network.input_size) },
    { .name = "output_size", .kind = &kr_integer_key, .offset = KR_FIELD(network.output_size) },
    { .name = "has_final_norm", .kind = &kr_bool_key, .offset = KR_FIELD(network.has_final_norm) },
    { .name = "class_tokens", .kind = &class_tokens_key },
};

static const kr_key mamba1_rows[] = {
    { .name = "d_inner", .kind = &kr_integer_key, .offset = KR_FIELD(mamba1.d_inner) },
    { .name = "dt_limit", .kind = &kr_pair_key, .offset = KR_FIELD(mamba1.dt_limit_min), .flags = KR_KEY_INFINITE },
    { .name = "bcdt_norm_eps", .kind = &kr_number_key, .offset = KR_FIELD(mamba1.bcdt_norm_eps) },
    { .name = "has_learnable_init_state", .kind = &kr_bool_key, .offset = KR_FIELD(mamba1.has_learnable_init_state) },
};

static const kr_key mamba2_rows[] = {
    { .name = "norm_per_group", .kind = &kr_bool_key, .offset = KR_FIELD(mamba2.norm_per_group) },
    { .name = "mixer_norm_eps", .kind = &kr_number_key, .offset = KR_FIELD(mamba2.norm_eps), .flags = KR_KEY_ABOVE },
    { .name = "conv_init", .kind = &kr_number_key, .offset = KR_FIELD(mamba2.conv_init), .flags = KR_KEY_INITIAL },
    { .name = "a_init_range",
      .kind = &kr_pair_key,
      .offset = KR_FIELD(mamba2.a_init_min),
      .flags = KR_KEY_ABOVE | KR_KEY_INITIAL },
    { .name = "has_learnable_init_state", .kind = &kr_bool_key, .offset = KR_FIELD(mamba2.has_learnable_init_state) },
};

static const kr_key mamba3_rows[] = {
    { .name = "rotation", .kind = &kr_word_key, .offset = KR_FIELD(mamba3.rotation), .words = rotations },
    { .name = "rope_fraction", .kind = &rope_key, .offset = KR_FIELD(mamba3.rope_fraction) },
    { .name = "rotation_range",
      .kind = &kr_number_key,
      .offset = KR_FIELD(mamba3.rotation_range),
      .flags = KR_KEY_ABOVE },
    { .name = "a_activation", .kind = &kr_word_key, .offset = KR_FIELD(mamba3.a_activation), .words = activations },
    { .name = "has_shared_norm_gain", .kind = &kr_bool_key, .offset = KR_FIELD(mamba3.has_shared_norm_gain) },
    { .name = "mixer_norm_eps", .kind = &kr_number_key, .offset = KR_FIELD(mamba3.norm_eps), .flags = KR_KEY_ABOVE },
    { .name = "has_proj_bias", .kind = &kr_bool_key, .offset = KR_FIELD(mamba3.has_proj_bias) },
    { .name = "dt_limit", .kind = &kr_pair_key, .offset = KR_FIELD(mamba3.dt_limit_min), .flags = KR_KEY_INFINITE },
    { .name = "has_learnable_init_state", .kind = &kr_bool_key, .offset = KR_FIELD(mamba3.has_learnable_init_state) },
    { .name = "pathway",
      .kind = &kr_word_key,
      .offset = KR_FIELD(mamba3.pathway),
      .words = pathways,
      .flags = KR_KEY_HARMLESS },
};

static const kr_keys common = KR_KEYS(common_rows);
static const kr_keys families[] = { KR_KEYS(mamba1_rows), KR_KEYS(mamba2_rows), KR_KEYS(mamba3_rows) };

/* A registered family has all of its keys in ssm_cfg. */
static const kr_keys *keys_of(kr_family family)
{
    static const kr_keys none = { NULL, 0 };
    return kr_registered_kind_of(family) ? &none : &families[family];
}

/* ---- checks of several fields ---- */

static bool check_schedule(kr_ctx *ctx, const kr_model_values *c, int64_t count)
{
    const kr_layers_config *l = &c->layers;
    const int64_t nvirtual = virtual_layers(c);
    if (l->schedule != KR_SCHEDULE_CUSTOM) return true;
    if (!kr_require(ctx, l->custom_schedule != NULL && count == nvirtual, KR_ERR_FORMAT,
                    "config.json: " PREFIX "schedule = 'custom', but " PREFIX "custom_schedule has %lld numbers and "
                    "must have %lld: one for each virtual layer",
                    (long long)(l->custom_schedule ? count : 0), (long long)nvirtual))
        return false;
    for (int64_t v = 0; v < nvirtual; v++)
        if (!kr_require(ctx, l->custom_schedule[v] >= 0 && l->custom_schedule[v] < l->n_layers, KR_ERR_FORMAT,
                        "config.json: " PREFIX "custom_schedule[%lld] = %lld, but must be from 0 to %lld: a set of "
                        "weights",
                        (long long)v, (long long)l->custom_schedule[v], (long long)l->n_layers - 1))
            return false;
    return true;
}

static bool check_ends(kr_ctx *ctx, const kr_network_config *n)
{
    return kr_require(ctx, (n->vocab_size > 0) != (n->input_size > 0), KR_ERR_FORMAT,
                      "config.json: vocab_size = %lld and " PREFIX
                      "input_size = %lld, but one of them must be above 0: tokens or features",
                      (long long)n->vocab_size, (long long)n->input_size) &&
           kr_require(ctx, (n->input_size > 0) == (n->output_size > 0), KR_ERR_FORMAT,
                      "config.json: " PREFIX "input_size = %lld and " PREFIX
                      "output_size = %lld, but a network has both or none",
                      (long long)n->input_size, (long long)n->output_size);
}

static bool check_together(kr_ctx *ctx, const kr_model_values *c, int64_t nschedule)
{
    const kr_layers_config *l = &c->layers;
    const char *op = "config.json: krait";
    if (!check_schedule(ctx, c, nschedule) || !check_ends(ctx, &c->network) ||
        !kr_class_tokens_check(ctx, op, "latents", l->latents, l->n_latents) ||
        !kr_class_tokens_check(ctx, op, "class_tokens", c->network.class_tokens, c->network.n_class_tokens) ||
        !kr_require(ctx, l->n_layer_latents >= 0 && (l->n_layer_latents == 0 || l->layer_latents), KR_ERR_FORMAT,
                    "%s: n_layer_latents = %d, but layer_latents is not a list of that many valid entries", op,
                    l->n_layer_latents))
        return false;
    for (int i = 0; i < l->n_layer_latents; i++) {
        char field[64];
        snprintf(field, sizeof field, "layer_latents[%d]", i);
        if (!kr_require(ctx, l->layer_latents[i].layer >= 0 && l->layer_latents[i].layer < l->n_layers, KR_ERR_FORMAT,
                        "%s: %s.layer = %lld, but must be from 0 to %lld: a set of weights", op, field,
                        (long long)l->layer_latents[i].layer, (long long)l->n_layers - 1) ||
            !kr_class_token_check(ctx, op, field, &l->layer_latents[i].token))
            return false;
    }
    return true;
}

bool kr_krait_check(kr_ctx *ctx, const kr_model_values *config)
{
    return kr_keys_check(ctx, PREFIX, &common, config) && kr_keys_check(ctx, PREFIX, keys_of(config->family), config) &&
           kr_require(ctx, config->layers.n_layers >= 1 && config->layers.n_layers <= KR_LAYERS_MOST, KR_ERR_FORMAT,
                      "config.json: n_layers = %lld, but must be from 1 to %d", (long long)config->layers.n_layers,
                      KR_LAYERS_MOST) &&
           check_together(ctx, config, virtual_layers(config));
}

/* ---- reading and writing ---- */

bool kr_krait_read(kr_reading *r, const kr_json *root)
{
    const kr_json *krait = kr_json_find(root, "krait");
    kr_model_values *c = r->config;
    r->prefix = "";
    r->nschedule = -1;
    if (krait && kr_json_kind_of(krait) != KR_JSON_OBJECT) return kr_key_refuse(r, "krait", krait, "an object");
    r->object = krait;
    r->prefix = PREFIX;
    if (krait && !kr_keys_read(r, (const kr_keys *const[]){ &common, keys_of(c->family) }, 2, true)) return false;
    if (!kr_require(r->ctx, r->nschedule < 0 || c->layers.schedule == KR_SCHEDULE_CUSTOM, KR_ERR_FORMAT,
                    "config.json: " PREFIX "custom_schedule is given, but " PREFIX "schedule is not 'custom'"))
        return false;
    if (!kr_require(r->ctx, c->layout != KR_LAYOUT_HF || c->network.input_size == 0, KR_ERR_UNSUPPORTED,
                    "config.json: " PREFIX "input_size is given, but the hf layout has no network from features"))
        return false;
    /* a network from features has no vocabulary, and its file may omit it */
    if (c->network.input_size > 0 && !kr_json_find(root, "vocab_size")) c->network.vocab_size = 0;
    return check_together(r->ctx, c, r->nschedule);
}

/* The rows to be written. */
typedef struct needs {
    const kr_model_values *config, *seen;
    bool has_initial; /* rows of initial values count */
} needs;

static bool is_needed(const needs *n, const kr_key *key)
{
    return !kr_key_same(key, n->config, n->seen) && (n->has_initial || !(key->flags & KR_KEY_INITIAL));
}

static void write_table(kr_json_writer *w, const needs *n, const kr_keys *keys, bool *is_open)
{
    for (size_t i = 0; i < keys->count; i++) {
        const kr_key *key = &keys->rows[i];
        if (!is_needed(n, key)) continue;
        if (!*is_open) kr_json_write_open(w, "krait", '{');
        *is_open = true;
        key->kind->write(w, key, n->config);
    }
}

/* The keys that change numbers, by name. */
static void warn(kr_ctx *ctx, const needs *n, const kr_layout_kind *layout)
{
    char names[512] = "";
    size_t length = 0;
    const kr_keys *const tables[] = { &common, keys_of(n->config->family) };
    for (int t = 0; t < 2; t++)
        for (size_t i = 0; i < tables[t]->count && length < sizeof names; i++) {
            const kr_key *key = &tables[t]->rows[i];
            if (!is_needed(n, key) || (layout == &kr_hf_layout && (key->flags & (KR_KEY_HARMLESS | KR_KEY_INITIAL))))
                continue;
            length += (size_t)snprintf(names + length, sizeof names - length, "%s%s", length ? ", " : "", key->name);
        }
    if (length) kr_note(ctx, KR_LOG_WARNING, "config.json: 'krait' holds %s: %s", names, layout->warning);
}

void kr_krait_write(kr_ctx *ctx, kr_json_writer *w, const kr_model_values *config, const kr_model_values *seen,
                    const kr_layout_kind *layout, bool warns)
{
    /* initialisation of another layout's parameters is no reason to lose compatibility with the official code */
    const needs n = { config, seen, layout == &kr_hf_layout || config->layout == KR_LAYOUT_OFFICIAL };
    bool is_open = false;
    write_table(w, &n, &common, &is_open);
    write_table(w, &n, keys_of(config->family), &is_open);
    if (is_open) kr_json_write_close(w, '}');
    if (warns) warn(ctx, &n, layout);
}
