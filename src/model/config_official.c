/* config_official.c - config.json of the official implementation: a MambaConfig, with the block's keys in ssm_cfg. */
#include "model/model_config_impl.h"

#include <string.h>

/* ---- keys ---- */

static const kr_key head_rows[] = {
    { .name = "d_model", .kind = &kr_d_model_key, .flags = KR_KEY_ALWAYS },
    { .name = "d_intermediate",
      .kind = &kr_integer_key,
      .offset = KR_FIELD(layers.d_intermediate),
      .flags = KR_KEY_ALWAYS },
    { .name = "n_layer",
      .kind = &kr_integer_key,
      .offset = KR_FIELD(layers.n_layers),
      .least = 1,
      .most = KR_LAYERS_MOST,
      .flags = KR_KEY_ALWAYS },
    { .name = "vocab_size", .kind = &kr_integer_key, .offset = KR_FIELD(network.vocab_size), .flags = KR_KEY_ALWAYS },
};

static const kr_key tail_rows[] = {
    { .name = "residual_in_fp32",
      .kind = &kr_bool_key,
      .offset = KR_FIELD(layers.residual_in_f32),
      .flags = KR_KEY_ALWAYS },
    { .name = "fused_add_norm", .kind = &kr_bool_key, .offset = KR_FIELD(fused_add_norm), .flags = KR_KEY_ALWAYS },
    { .name = "pad_vocab_size_multiple",
      .kind = &kr_integer_key,
      .offset = KR_FIELD(network.pad_vocab_size_multiple),
      .least = 1,
      .flags = KR_KEY_ALWAYS },
    { .name = "tie_embeddings",
      .kind = &kr_bool_key,
      .offset = KR_FIELD(network.tie_embeddings),
      .flags = KR_KEY_ALWAYS },
};

/* Read and written separately below. */
static const kr_key other_rows[] = { { .name = "ssm_cfg" },
                                     { .name = "attn_layer_idx" },
                                     { .name = "attn_cfg" },
                                     { .name = "rms_norm" },
                                     { .name = "krait" } };

static const char *const dt_inits[] = { "random", "constant", NULL };

static const kr_key mamba1_rows[] = {
    { .name = "d_state", .kind = &kr_integer_key, .offset = KR_FIELD(mamba1.state_rank), .least = 1 },
    { .name = "d_conv", .kind = &kr_integer_key, .offset = KR_FIELD(mamba1.conv_kernel), .least = 1 },
    { .name = "expand", .kind = &kr_integer_key, .offset = KR_FIELD(mamba1.expand), .least = 1 },
    { .name = "dt_rank", .kind = &kr_auto_key, .offset = KR_FIELD(mamba1.dt_rank) },
    { .name = "dt_min", .kind = &kr_number_key, .offset = KR_FIELD(mamba1.dt_min), .flags = KR_KEY_ABOVE },
    { .name = "dt_max", .kind = &kr_number_key, .offset = KR_FIELD(mamba1.dt_max), .flags = KR_KEY_ABOVE },
    { .name = "dt_init", .kind = &kr_choice_key, .offset = KR_FIELD(mamba1.has_constant_dt), .words = dt_inits },
    { .name = "dt_scale", .kind = &kr_number_key, .offset = KR_FIELD(mamba1.dt_scale) },
    { .name = "dt_init_floor",
      .kind = &kr_number_key,
      .offset = KR_FIELD(mamba1.dt_init_floor),
      .flags = KR_KEY_ABOVE },
    { .name = "conv_bias", .kind = &kr_bool_key, .offset = KR_FIELD(mamba1.has_conv_bias) },
    { .name = "bias", .kind = &kr_bool_key, .offset = KR_FIELD(mamba1.has_proj_bias) },
};

static const kr_key mamba2_rows[] = {
    { .name = "d_state", .kind = &kr_integer_key, .offset = KR_FIELD(mamba2.state_rank), .least = 1 },
    { .name = "d_conv", .kind = &kr_integer_key, .offset = KR_FIELD(mamba2.conv_kernel), .least = 1 },
    { .name = "conv_init", .kind = &kr_number_key, .offset = KR_FIELD(mamba2.conv_init), .flags = KR_KEY_NULLABLE },
    { .name = "expand", .kind = &kr_integer_key, .offset = KR_FIELD(mamba2.expand), .least = 1 },
    { .name = "headdim", .kind = &kr_integer_key, .offset = KR_FIELD(mamba2.per_head_dim), .least = 1 },
    { .name = "d_ssm", .kind = &kr_optional_key, .offset = KR_FIELD(mamba2.d_ssm) },
    { .name = "ngroups", .kind = &kr_integer_key, .offset = KR_FIELD(mamba2.n_groups), .least = 1 },
    { .name = "A_init_range", .kind = &kr_pair_key, .offset = KR_FIELD(mamba2.a_init_min), .flags = KR_KEY_ABOVE },
    { .name = "D_has_hdim", .kind = &kr_bool_key, .offset = KR_FIELD(mamba2.has_d_per_dim) },
    { .name = "rmsnorm", .kind = &kr_bool_key, .offset = KR_FIELD(mamba2.has_norm) },
    { .name = "norm_before_gate", .kind = &kr_bool_key, .offset = KR_FIELD(mamba2.norm_before_gate) },
    { .name = "dt_min", .kind = &kr_number_key, .offset = KR_FIELD(mamba2.dt_min), .flags = KR_KEY_ABOVE },
    { .name = "dt_max", .kind = &kr_number_key, .offset = KR_FIELD(mamba2.dt_max), .flags = KR_KEY_ABOVE },
    { .name = "dt_init_floor",
      .kind = &kr_number_key,
      .offset = KR_FIELD(mamba2.dt_init_floor),
      .flags = KR_KEY_ABOVE },
    { .name = "dt_limit", .kind = &kr_pair_key, .offset = KR_FIELD(mamba2.dt_limit_min), .flags = KR_KEY_INFINITE },
    { .name = "bias", .kind = &kr_bool_key, .offset = KR_FIELD(mamba2.has_proj_bias) },
    { .name = "conv_bias", .kind = &kr_bool_key, .offset = KR_FIELD(mamba2.has_conv_bias) },
    { .name = "chunk_size", .kind = &kr_optional_key, .offset = KR_FIELD(chunk_size) },
};

static const kr_key mamba3_rows[] = {
    { .name = "d_state", .kind = &kr_integer_key, .offset = KR_FIELD(mamba3.state_rank), .least = 1 },
    { .name = "expand", .kind = &kr_integer_key, .offset = KR_FIELD(mamba3.expand), .least = 1 },
    { .name = "headdim", .kind = &kr_integer_key, .offset = KR_FIELD(mamba3.per_head_dim), .least = 1 },
    { .name = "ngroups", .kind = &kr_integer_key, .offset = KR_FIELD(mamba3.n_groups), .least = 1 },
    { .name = "rope_fraction",
      .kind = &kr_number_key,
      .offset = KR_FIELD(mamba3.rope_fraction),
      .flags = KR_KEY_ABOVE },
    { .name = "dt_min", .kind = &kr_number_key, .offset = KR_FIELD(mamba3.dt_min), .flags = KR_KEY_ABOVE },
    { .name = "dt_max", .kind = &kr_number_key, .offset = KR_FIELD(mamba3.dt_max), .flags = KR_KEY_ABOVE },
    { .name = "dt_init_floor",
      .kind = &kr_number_key,
      .offset = KR_FIELD(mamba3.dt_init_floor),
      .flags = KR_KEY_ABOVE },
    { .name = "A_floor", .kind = &kr_number_key, .offset = KR_FIELD(mamba3.a_floor), .flags = KR_KEY_ABOVE },
    { .name = "is_outproj_norm", .kind = &kr_bool_key, .offset = KR_FIELD(mamba3.has_outproj_norm) },
    { .name = "is_mimo", .kind = &kr_bool_key, .offset = KR_FIELD(mamba3.is_mimo) },
    { .name = "mimo_rank", .kind = &kr_integer_key, .offset = KR_FIELD(mamba3.mimo_rank), .least = 1 },
    { .name = "chunk_size", .kind = &kr_optional_key, .offset = KR_FIELD(chunk_size) },
};

/* Keys of ssm_cfg that change no number: runtime options of the official code, and keys that it accepts without using. */
static const kr_key idle_rows[] = { { .name = "layer" },
                                    { .name = "layer_idx" },
                                    { .name = "n_layer" },
                                    { .name = "device" },
                                    { .name = "dtype" },
                                    { .name = "use_fast_path" },
                                    { .name = "use_mem_eff_path" },
                                    { .name = "process_group" },
                                    { .name = "sequence_parallel" },
                                    { .name = "fuse_pregate_headwise_norm" },
                                    { .name = "dropout" } };

static const kr_keys head = KR_KEYS(head_rows), tail = KR_KEYS(tail_rows), others = KR_KEYS(other_rows),
                     idle = KR_KEYS(idle_rows);
static const kr_keys families[] = { KR_KEYS(mamba1_rows), KR_KEYS(mamba2_rows), KR_KEYS(mamba3_rows) };
static const char *const layer_names[] = { "Mamba1", "Mamba2", "Mamba3" };

/* ---- reading ---- */

static void set_defaults(kr_model_values *c, kr_family family)
{
    kr_model_values_init(c);
    kr_model_values_set_family(c, family);
    kr_config_set_d_model(c, 2560);
    c->layers.n_layers = 64;
    c->network.vocab_size = 50277;
}

/* Valid configs that are not supported here. */
static bool check_supported(const kr_reading *r, const kr_json *root)
{
    const kr_json *attention = kr_json_find(root, "attn_layer_idx"), *rms = kr_json_find(root, "rms_norm");
    if (kr_json_kind_of(attention) != KR_JSON_NULL && kr_json_kind_of(attention) != KR_JSON_ARRAY)
        return kr_key_refuse(r, "attn_layer_idx", attention, "an array");
    if (rms && kr_json_kind_of(rms) != KR_JSON_BOOL) return kr_key_refuse(r, "rms_norm", rms, "true or false");
    return kr_require(
               r->ctx, kr_json_length(attention) == 0, KR_ERR_UNSUPPORTED,
               "config.json: attn_layer_idx names %lld attention layer(s), but models with attention are not supported",
               (long long)kr_json_length(attention)) &&
           kr_require(r->ctx, kr_json_bool(rms, true), KR_ERR_UNSUPPORTED,
                      "config.json: rms_norm = false, but models with layer norms are not supported");
}

static bool read_family(const kr_reading *r, const kr_json *ssm, kr_family *family)
{
    const kr_json *layer = kr_json_find(ssm, "layer");
    *family = KR_FAMILY_MAMBA1;
    if (kr_json_kind_of(ssm) != KR_JSON_NULL && kr_json_kind_of(ssm) != KR_JSON_OBJECT)
        return kr_key_refuse(r, "ssm_cfg", ssm, "an object");
    if (!layer) return true;
    for (int f = KR_FAMILY_MAMBA1; f <= KR_FAMILY_MAMBA3; f++)
        if (kr_json_is_word(layer, layer_names[f])) {
            *family = (kr_family)f;
            return true;
        }
    const char *text = kr_json_text(layer);
    const kr_block_kind *kind = text ? kr_block_kind_named(text, (size_t)kr_json_length(layer)) : NULL;
    if (kind && kind->registered) {
        *family = kind->family;
        return true;
    }
    return kr_key_refuse(r, "ssm_cfg.layer", layer,
                         "'Mamba1', 'Mamba2', 'Mamba3' or a family that the program has registered");
}

/* The official code supports these two only; 0 needs the object "krait". */
static bool check_rope(kr_ctx *ctx, const kr_model_values *c)
{
    const double rope = c->mamba3.rope_fraction;
    return kr_require(ctx, c->family != KR_FAMILY_MAMBA3 || rope == 0.5 || rope == 1, KR_ERR_FORMAT,
                      "config.json: ssm_cfg.rope_fraction = %g, but must be 0.5 or 1", rope);
}

static bool read(kr_reading *r, const kr_json *root)
{
    const kr_json *ssm = kr_json_find(root, "ssm_cfg");
    kr_family family;
    if (!check_supported(r, root) || !read_family(r, ssm, &family)) return false;
    set_defaults(r->config, family);
    r->object = root;
    if (!kr_keys_read(r, (const kr_keys *const[]){ &head, &tail, &others }, 3, false)) return false;
    r->object = ssm;
    r->prefix = "ssm_cfg.";
    if (kr_registered_kind_of(family)) return kr_registered_read(r, ssm, &idle);
    return kr_keys_read(r, (const kr_keys *const[]){ &families[family], &idle }, 2, false) &&
           check_rope(r->ctx, r->config);
}

/* ---- writing ---- */

static void write_ssm(kr_json_writer *w, const kr_model_values *c, const kr_model_values *defaults)
{
    kr_json_write_open(w, "ssm_cfg", '{');
    if (kr_registered_kind_of(c->family)) {
        kr_registered_write(w, c);
        kr_json_write_close(w, '}');
        return;
    }
    if (c->family != KR_FAMILY_MAMBA1)
        kr_json_write_string(w, "layer", layer_names[c->family]); /* older code has no such key */
    w->has_bare_infinity = true;
    kr_keys_write(w, &families[c->family], c, defaults);
    w->has_bare_infinity = false;
    kr_json_write_close(w, '}');
}

static bool write(kr_ctx *ctx, kr_json_writer *w, const kr_model_values *config, kr_model_values *seen)
{
    kr_model_values expressible = *config;
    if (expressible.mamba3.rope_fraction == 0) expressible.mamba3.rope_fraction = 0.5;
    static const kr_keys none = { NULL, 0 };
    const bool is_registered = kr_registered_kind_of(expressible.family) != NULL;
    const kr_keys *own = is_registered ? &none : &families[expressible.family];
    if (!kr_keys_check(ctx, "", &head, &expressible) || !kr_keys_check(ctx, "", &tail, &expressible) ||
        !kr_keys_check(ctx, "ssm_cfg.", own, &expressible) || !check_rope(ctx, &expressible))
        return false;
    set_defaults(seen, expressible.family);
    kr_keys_write(w, &head, &expressible, seen);
    write_ssm(w, &expressible, seen);
    kr_json_write_open(w, "attn_layer_idx", '[');
    kr_json_write_close(w, ']');
    kr_json_write_open(w, "attn_cfg", '{');
    kr_json_write_close(w, '}');
    kr_json_write_bool(w, "rms_norm", true);
    kr_keys_write(w, &tail, &expressible, seen);
    kr_keys_copy(&head, seen, &expressible);
    kr_keys_copy(&tail, seen, &expressible);
    kr_keys_copy(own, seen, &expressible);
    if (is_registered) seen->registered = expressible.registered;
    return true;
}

const kr_layout_kind kr_official_layout = { read, write, "the official code refuses such a file" };
