/* config_hf.c - config.json of Hugging Face's transformers: model_type mamba, falcon_mamba (Mamba-1) and mamba2.
 *
 * vocab_size is the number of rows of the embedding, padding included. One epsilon serves the layers' norms and
 * Mamba-2's gated norm, which is over the whole width whatever n_groups is.
 */
#include "model/model_config_impl.h"

#include "base/ctx_impl.h"
#include "io/quote.h"

#include <string.h>

typedef enum type { MAMBA, FALCON, MAMBA2, TYPES } type;

static const char *const type_names[TYPES] = { "mamba", "falcon_mamba", "mamba2" };
static const char *const architectures[TYPES] = { "MambaForCausalLM", "FalconMambaForCausalLM", "Mamba2ForCausalLM" };

/* ---- kinds of values of this layout ---- */

static const char *const act_names[] = { "silu", "swish" };

static bool read_act(kr_reading *r, const kr_key *key, const kr_json *value)
{
    if (kr_json_is_word(value, act_names[0]) || kr_json_is_word(value, act_names[1])) return true;
    return kr_key_refuse(r, key->name, value, "'silu', the only activation of these models");
}

static bool check_nothing(kr_ctx *ctx, const char *prefix, const kr_key *key, const kr_model_values *config)
{
    (void)ctx, (void)prefix, (void)key, (void)config;
    return true;
}

static void write_act(kr_json_writer *w, const kr_key *key, const kr_model_values *config)
{
    (void)config;
    kr_json_write_string(w, key->name, act_names[0]);
}

static bool always_same(const kr_model_values *a, const kr_model_values *b)
{
    (void)a, (void)b;
    return true;
}

static void copy_nothing(kr_model_values *to, const kr_model_values *from)
{
    (void)to, (void)from;
}

static const kr_key_kind act_key = { 0, read_act, check_nothing, write_act, always_same, copy_nothing };

static int64_t heads_of(const kr_model_values *c)
{
    return c->mamba2.expand * c->mamba2.d_model / c->mamba2.per_head_dim;
}

static bool read_heads(kr_reading *r, const kr_key *key, const kr_json *value)
{
    if (!kr_json_is_integer(value) || value->integer < 1)
        return kr_key_refuse(r, key->name, value, "a positive integer");
    r->num_heads = value->integer;
    return true;
}

static void write_heads(kr_json_writer *w, const kr_key *key, const kr_model_values *config)
{
    kr_json_write_integer(w, key->name, heads_of(config));
}

static const kr_key_kind heads_key = { 0, read_heads, check_nothing, write_heads, always_same, copy_nothing };

static const char *const dtype_names[] = { "float32", "float64", "bfloat16", "float16", NULL }; /* by kr_dtype */

/* The weights determine the type, so an unknown one is only a warning. The newer key wins. */
static bool read_dtype(kr_reading *r, const kr_key *key, const kr_json *value)
{
    const kr_json *newer = kr_json_find(r->object, "dtype");
    if (kr_json_kind_of(newer) != KR_JSON_NULL && newer != value) return true;
    for (int t = 0; dtype_names[t]; t++)
        if (kr_json_is_word(value, dtype_names[t])) {
            kr_config_set_dtype(r->config, (kr_dtype)t);
            return true;
        }
    if (!kr_json_text(value)) return kr_key_refuse(r, key->name, value, "the name of a type");
    kr_note(r->ctx, KR_LOG_WARNING, "config.json: %s = '%s' is not a supported type; the type of the weights is used",
            key->name, kr_quote_of(value->text, value->length).text);
    return true;
}

static void write_dtype(kr_json_writer *w, const kr_key *key, const kr_model_values *config)
{
    kr_json_write_string(w, key->name, dtype_names[kr_config_dtype_of(config)]);
}

static void copy_dtype(kr_model_values *to, const kr_model_values *from)
{
    kr_config_set_dtype(to, kr_config_dtype_of(from));
}

static const kr_key_kind dtype_key = { 0, read_dtype, check_nothing, write_dtype, always_same, copy_dtype };

/* ---- keys ---- */

static const kr_key common_rows[] = {
    { .name = "vocab_size",
      .kind = &kr_integer_key,
      .offset = KR_FIELD(network.vocab_size),
      .least = 1,
      .flags = KR_KEY_ALWAYS },
    { .name = "hidden_size", .kind = &kr_d_model_key, .flags = KR_KEY_ALWAYS },
    { .name = "num_hidden_layers",
      .kind = &kr_integer_key,
      .offset = KR_FIELD(layers.n_layers),
      .least = 1,
      .most = KR_LAYERS_MOST,
      .flags = KR_KEY_ALWAYS },
    { .name = "layer_norm_epsilon",
      .kind = &kr_number_key,
      .offset = KR_FIELD(layers.norm_eps),
      .flags = KR_KEY_ALWAYS | KR_KEY_ABOVE },
    { .name = "hidden_act", .kind = &act_key, .flags = KR_KEY_ALWAYS },
    { .name = "residual_in_fp32",
      .kind = &kr_bool_key,
      .offset = KR_FIELD(layers.residual_in_f32),
      .flags = KR_KEY_ALWAYS },
    { .name = "tie_word_embeddings",
      .kind = &kr_bool_key,
      .offset = KR_FIELD(network.tie_embeddings),
      .flags = KR_KEY_ALWAYS },
    { .name = "initializer_range",
      .kind = &kr_number_key,
      .offset = KR_FIELD(network.embedding_std),
      .flags = KR_KEY_ALWAYS | KR_KEY_ABOVE },
    { .name = "rescale_prenorm_residual",
      .kind = &kr_bool_key,
      .offset = KR_FIELD(network.rescale_residual),
      .flags = KR_KEY_ALWAYS },
    { .name = "torch_dtype", .kind = &dtype_key, .flags = KR_KEY_ALWAYS | KR_KEY_NULLABLE },
};

static const char *const dt_inits[] = { "random", "constant", NULL };

static const kr_key mamba1_rows[] = {
    { .name = "state_size",
      .kind = &kr_integer_key,
      .offset = KR_FIELD(mamba1.state_rank),
      .least = 1,
      .flags = KR_KEY_ALWAYS },
    { .name = "expand",
      .kind = &kr_integer_key,
      .offset = KR_FIELD(mamba1.expand),
      .least = 1,
      .flags = KR_KEY_ALWAYS },
    { .name = "intermediate_size",
      .kind = &kr_optional_key,
      .offset = KR_FIELD(mamba1.d_inner),
      .flags = KR_KEY_ALWAYS },
    { .name = "conv_kernel",
      .kind = &kr_integer_key,
      .offset = KR_FIELD(mamba1.conv_kernel),
      .least = 1,
      .flags = KR_KEY_ALWAYS },
    { .name = "use_bias", .kind = &kr_bool_key, .offset = KR_FIELD(mamba1.has_proj_bias), .flags = KR_KEY_ALWAYS },
    { .name = "use_conv_bias", .kind = &kr_bool_key, .offset = KR_FIELD(mamba1.has_conv_bias), .flags = KR_KEY_ALWAYS },
    { .name = "time_step_rank", .kind = &kr_auto_key, .offset = KR_FIELD(mamba1.dt_rank), .flags = KR_KEY_ALWAYS },
    { .name = "time_step_scale", .kind = &kr_number_key, .offset = KR_FIELD(mamba1.dt_scale), .flags = KR_KEY_ALWAYS },
    { .name = "time_step_min",
      .kind = &kr_number_key,
      .offset = KR_FIELD(mamba1.dt_min),
      .flags = KR_KEY_ALWAYS | KR_KEY_ABOVE },
    { .name = "time_step_max",
      .kind = &kr_number_key,
      .offset = KR_FIELD(mamba1.dt_max),
      .flags = KR_KEY_ALWAYS | KR_KEY_ABOVE },
    { .name = "time_step_floor",
      .kind = &kr_number_key,
      .offset = KR_FIELD(mamba1.dt_init_floor),
      .flags = KR_KEY_ALWAYS | KR_KEY_ABOVE },
    { .name = "time_step_init_scheme",
      .kind = &kr_choice_key,
      .offset = KR_FIELD(mamba1.has_constant_dt),
      .words = dt_inits,
      .flags = KR_KEY_ALWAYS },
};

static const kr_key falcon_rows[] = {
    { .name = "mixer_rms_eps",
      .kind = &kr_number_key,
      .offset = KR_FIELD(mamba1.bcdt_norm_eps),
      .flags = KR_KEY_ALWAYS | KR_KEY_ABOVE },
};

static const kr_key mamba2_rows[] = {
    { .name = "num_heads", .kind = &heads_key, .flags = KR_KEY_ALWAYS },
    { .name = "head_dim",
      .kind = &kr_integer_key,
      .offset = KR_FIELD(mamba2.per_head_dim),
      .least = 1,
      .flags = KR_KEY_ALWAYS },
    { .name = "state_size",
      .kind = &kr_integer_key,
      .offset = KR_FIELD(mamba2.state_rank),
      .least = 1,
      .flags = KR_KEY_ALWAYS },
    { .name = "n_groups",
      .kind = &kr_integer_key,
      .offset = KR_FIELD(mamba2.n_groups),
      .least = 1,
      .flags = KR_KEY_ALWAYS },
    { .name = "expand",
      .kind = &kr_integer_key,
      .offset = KR_FIELD(mamba2.expand),
      .least = 1,
      .flags = KR_KEY_ALWAYS },
    { .name = "conv_kernel",
      .kind = &kr_integer_key,
      .offset = KR_FIELD(mamba2.conv_kernel),
      .least = 1,
      .flags = KR_KEY_ALWAYS },
    { .name = "use_bias", .kind = &kr_bool_key, .offset = KR_FIELD(mamba2.has_proj_bias), .flags = KR_KEY_ALWAYS },
    { .name = "use_conv_bias", .kind = &kr_bool_key, .offset = KR_FIELD(mamba2.has_conv_bias), .flags = KR_KEY_ALWAYS },
    { .name = "chunk_size", .kind = &kr_optional_key, .offset = KR_FIELD(chunk_size) },
    { .name = "time_step_min",
      .kind = &kr_number_key,
      .offset = KR_FIELD(mamba2.dt_min),
      .flags = KR_KEY_ALWAYS | KR_KEY_ABOVE },
    { .name = "time_step_max",
      .kind = &kr_number_key,
      .offset = KR_FIELD(mamba2.dt_max),
      .flags = KR_KEY_ALWAYS | KR_KEY_ABOVE },
    { .name = "time_step_floor",
      .kind = &kr_number_key,
      .offset = KR_FIELD(mamba2.dt_init_floor),
      .flags = KR_KEY_ALWAYS | KR_KEY_ABOVE },
    { .name = "time_step_limit",
      .kind = &kr_pair_key,
      .offset = KR_FIELD(mamba2.dt_limit_min),
      .flags = KR_KEY_INFINITE },
};

/* Only read: the newer name of torch_dtype. */
static const kr_key dtype_rows[] = { { .name = "dtype", .kind = &dtype_key, .flags = KR_KEY_NULLABLE } };

/* Keys of such files that change no number: housekeeping, runtime options of transformers, leftovers of the official
 * spelling, and for Mamba-2 keys that its code ignores. */
static const kr_key idle_rows[] = {
    { .name = "model_type" },
    { .name = "architectures" },
    { .name = "auto_map" },
    { .name = "krait" },
    { .name = "transformers_version" },
    { .name = "_name_or_path" },
    { .name = "use_cache" },
    { .name = "use_mambapy" },
    { .name = "use_falcon_mambapy" },
    { .name = "return_dict" },
    { .name = "use_associative_scan" },
    { .name = "output_hidden_states" },
    { .name = "d_model" },
    { .name = "n_layer" },
    { .name = "d_inner" },
    { .name = "d_intermediate" },
    { .name = "ssm_cfg" },
    { .name = "fused_add_norm" },
    { .name = "rms_norm" },
    { .name = "attn_layer_idx" },
    { .name = "pad_vocab_size_multiple" },
    { .name = "attn_cfg" },
    { .name = "tie_embeddings" },
};
static const kr_key idle_mamba2_rows[] = { { .name = "norm_before_gate" },    { .name = "intermediate_size" },
                                           { .name = "time_step_rank" },      { .name = "time_step_scale" },
                                           { .name = "A_initializer_range" }, { .name = "time_step_init_scheme" } };

static const kr_keys common = KR_KEYS(common_rows), dtype_alias = KR_KEYS(dtype_rows), idle = KR_KEYS(idle_rows);
static const kr_keys idle_mamba2 = KR_KEYS(idle_mamba2_rows), mamba1 = KR_KEYS(mamba1_rows),
                     falcon = KR_KEYS(falcon_rows), mamba2 = KR_KEYS(mamba2_rows), none = { NULL, 0 };

/* The two tables of a type in addition to those of all types. */
static const kr_keys *const type_keys[TYPES][2] = { { &mamba1, &none }, { &mamba1, &falcon }, { &mamba2, &none } };

/* ---- reading ---- */

static void set_defaults(kr_model_values *c, type t)
{
    kr_model_values_init(c);
    c->layout = KR_LAYOUT_HF;
    c->family = t == MAMBA2 ? KR_FAMILY_MAMBA2 : KR_FAMILY_MAMBA1;
    kr_config_set_d_model(c, t == MAMBA2 ? 4096 : 768);
    c->layers.n_layers = t == MAMBA2 ? 64 : 32;
    c->network.vocab_size = t == MAMBA2 ? 32768 : 50280;
    c->network.pad_vocab_size_multiple = 1;
    c->network.tie_embeddings = t != MAMBA2;
    c->network.embedding_std = 0.1;
    c->network.rescale_residual = false;
    c->mamba1.bcdt_norm_eps = t == FALCON ? 1e-6 : 0;
    c->mamba2.n_groups = 8;
    c->mamba2.norm_per_group = false;
}

static bool read_type(const kr_reading *r, const kr_json *root, type *t)
{
    const kr_json *value = kr_json_find(root, "model_type");
    for (int i = 0; i < TYPES; i++)
        if (kr_json_is_word(value, type_names[i])) {
            *t = (type)i;
            return true;
        }
    return kr_key_refuse(r, "model_type", value, "'mamba', 'mamba2' or 'falcon_mamba'");
}

/* Sizes that depend on others. */
static void derive_sizes(kr_model_values *c)
{
    if (c->mamba1.d_inner == c->mamba1.expand * c->mamba1.d_model) c->mamba1.d_inner = 0;
    c->mamba2.norm_eps = c->layers.norm_eps;
}

static bool check_heads(const kr_reading *r)
{
    const kr_mamba2_config *c = &r->config->mamba2;
    const int64_t heads = r->num_heads ? r->num_heads : 128; /* the default of transformers */
    return kr_require(r->ctx, heads <= c->expand * c->d_model && heads * c->per_head_dim == c->expand * c->d_model,
                      KR_ERR_FORMAT,
                      "config.json: num_heads = %lld times head_dim = %lld must be hidden_size = %lld times expand = "
                      "%lld",
                      (long long)heads, (long long)c->per_head_dim, (long long)c->d_model, (long long)c->expand);
}

static bool read(kr_reading *r, const kr_json *root)
{
    type t = MAMBA;
    if (!read_type(r, root, &t)) return false;
    set_defaults(r->config, t);
    r->object = root;
    const kr_keys *const tables[] = { &common,      type_keys[t][0], type_keys[t][1], &kr_token_keys,
                                      &dtype_alias, &idle,           &idle_mamba2 };
    if (!kr_keys_read(r, tables, t == MAMBA2 ? 7 : 6, false)) return false;
    if (!kr_json_find(root, "use_bias"))
        kr_note(r->ctx, KR_LOG_WARNING, "config.json: use_bias is missing; assuming false");
    derive_sizes(r->config);
    return t != MAMBA2 || check_heads(r);
}

/* ---- writing ---- */

static bool refuse(kr_ctx *ctx, const char *what)
{
    return kr_fail(ctx, KR_ERR_UNSUPPORTED,
                   "config.json: the hf layout has no %s; save the model in the official layout", what);
}

/* Configs that transformers cannot represent: networks ... */
static bool check_network(kr_ctx *ctx, const kr_model_values *c)
{
    if (c->family == KR_FAMILY_MAMBA3) return refuse(ctx, "Mamba-3");
    if (kr_registered_kind_of(c->family)) return refuse(ctx, "blocks that a program has registered");
    if (c->network.input_size > 0) return refuse(ctx, "network from features (input_size)");
    if (c->layers.d_intermediate > 0) return refuse(ctx, "MLP (d_intermediate)");
    return true;
}

/* ... and Mamba-2 blocks, whose sizes are in range. */
static bool check_mamba2(kr_ctx *ctx, const kr_mamba2_config *c)
{
    const int64_t width = c->expand * c->d_model;
    if (c->d_ssm && c->d_ssm != width) return refuse(ctx, "parallel MLP (d_ssm)");
    if (c->has_d_per_dim) return refuse(ctx, "skip for each channel (D_has_hdim)");
    if (!c->has_norm) return refuse(ctx, "Mamba-2 without its gated norm (rmsnorm)");
    if (c->norm_before_gate) return refuse(ctx, "norm before the gate (norm_before_gate)");
    return kr_require(ctx, width % c->per_head_dim == 0, KR_ERR_FORMAT,
                      "config.json: head_dim = %lld does not divide hidden_size times expand = %lld",
                      (long long)c->per_head_dim, (long long)width);
}

/* The nearest config that the keys can express. */
static void adapt(kr_model_values *expressible)
{
    kr_network_config *n = &expressible->network;
    const int64_t pad = n->pad_vocab_size_multiple;
    n->vocab_size = (n->vocab_size + pad - 1) / pad * pad;
    if (!expressible->mamba1.d_inner)
        expressible->mamba1.d_inner = expressible->mamba1.expand * expressible->mamba1.d_model;
    n->rescale_residual = false; /* with true, transformers 5 divides weights that it has just loaded */
}

static bool write(kr_ctx *ctx, kr_json_writer *w, const kr_model_values *config, kr_model_values *seen)
{
    kr_model_values expressible = *config;
    const type t = expressible.family == KR_FAMILY_MAMBA2 ? MAMBA2
                   : expressible.mamba1.bcdt_norm_eps > 0 ? FALCON
                                                          : MAMBA;
    const kr_keys *const tables[] = { &common, type_keys[t][0], type_keys[t][1], &kr_token_keys };
    if (!check_network(ctx, &expressible)) return false;
    for (int i = 0; i < 4; i++)
        if (!kr_keys_check(ctx, "", tables[i], &expressible)) return false;
    if (t == MAMBA2 && !check_mamba2(ctx, &expressible.mamba2)) return false;
    adapt(&expressible);
    set_defaults(seen, t);
    kr_json_write_open(w, "architectures", '[');
    kr_json_write_string(w, NULL, architectures[t]);
    kr_json_write_close(w, ']');
    kr_json_write_string(w, "model_type", type_names[t]);
    for (int i = 0; i < 4; i++) kr_keys_write(w, tables[i], &expressible, seen);
    for (int i = 0; i < 4; i++) kr_keys_copy(tables[i], seen, &expressible);
    seen->network.rescale_residual = config->network.rescale_residual; /* not carried: of initial weights only */
    derive_sizes(seen);
    return true;
}

const kr_layout_kind kr_hf_layout = { read, write, "transformers ignores it and computes different results" };
