/* new.c - krait new: a folder with a model of fresh weights. */
#include "cli/commands.h"
#include "cli/files.h"
#include "cli/machine.h"
#include "cli/report.h"

#include <krait/model.h>

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct new_values {
    const char *folder, *config, *schedule;
    int family, rotation, rope_fraction, a_activation, residual, dtype, layout, container;
    int64_t d_model, layers, vocab, d_state, head_dim, expand, groups, d_conv, mimo_rank, mlp, virtual_layers, streams;
    double gate_bias, gate_bias_step; /* NaN: not given */
    bool has_outproj_norm, is_untied, has_gates_per_virtual_layer, force;
    uint64_t seed;
} new_values;

static const cli_operand operands[] = {
    { "DIR", offsetof(new_values, folder), false, "the folder; it is made if there is none" },
    { 0 },
};

#define AT(field) offsetof(new_values, field)
static const cli_option options[] = {
    { "family", 0, "mamba1|mamba2|mamba3", CLI_CHOICE, AT(family), NULL, 0, "of the blocks; must be given" },
    { "d-model", 0, "N", CLI_I64, AT(d_model), NULL, 1, "model width; must be given" },
    { "layers", 0, "N", CLI_I64, AT(layers), NULL, 1, "sets of weights (default 4)" },
    { "vocab", 0, "N", CLI_I64, AT(vocab), NULL, 1, "tokens (default 256: the bytes)" },
    { "d-state", 0, "N", CLI_I64, AT(d_state), NULL, 1, "state of a channel (default 16 in mamba1, else 128)" },
    { "head-dim", 0, "N", CLI_I64, AT(head_dim), NULL, 1, "channels of a head; not in mamba1 (default 64)" },
    { "expand", 0, "N", CLI_I64, AT(expand), NULL, 1, "inner width over model width (default 2)" },
    { "groups", 0, "N", CLI_I64, AT(groups), NULL, 1, "groups of B and C; not in mamba1 (default 1)" },
    { "d-conv", 0, "N", CLI_I64, AT(d_conv), NULL, 1, "taps of the convolution; not in mamba3 (default 4)" },
    { "mimo-rank", 0, "N", CLI_I64, AT(mimo_rank), NULL, 1,
      "mamba3: several inputs and outputs, of this rank (default: one)" },
    { "rotation", 0, "complex|quaternion", CLI_CHOICE, AT(rotation), NULL, 0, "mamba3 (default complex)" },
    { "rope-fraction", 0, "0|0.5|1", CLI_CHOICE, AT(rope_fraction), NULL, 0,
      "mamba3: how much of the state turns (default 0.5)" },
    { "a-activation", 0, "heavy-tail|softplus", CLI_CHOICE, AT(a_activation), NULL, 0,
      "mamba3: what makes the decay rate (default heavy-tail)" },
    { "outproj-norm", 0, NULL, CLI_FLAG, AT(has_outproj_norm), NULL, 0, "mamba3: a norm before the gate" },
    { "mlp", 0, "N", CLI_I64, AT(mlp), NULL, 1, "an MLP of this width in each layer (default none)" },
    { "untied", 0, NULL, CLI_FLAG, AT(is_untied), NULL, 0, "a head of its own, not the embedding" },
    { "virtual-layers", 0, "N", CLI_I64, AT(virtual_layers), NULL, 1,
      "layers that are run, with weights used more than once (default as many as there are)" },
    { "schedule", 0, "cyclic|stretched|LIST", CLI_TEXT, AT(schedule), NULL, 0,
      "which weights a virtual layer has; or a list, 0,1,1,0 (default cyclic)" },
    { "residual", 0, "standard|multi-gate", CLI_CHOICE, AT(residual), NULL, 0,
      "how layers are added up (default standard)" },
    { "streams", 0, "N", CLI_I64, AT(streams), NULL, 1, "multi-gate: residual streams (default 2)" },
    { "gate-bias", 0, "X", CLI_REAL, AT(gate_bias), NULL, -1000, "multi-gate: of stream 0 (default: by depth)" },
    { "gate-bias-step", 0, "X", CLI_REAL, AT(gate_bias_step), NULL, -1000,
      "multi-gate: added for each further stream (default 0)" },
    { "gates-per-virtual-layer", 0, NULL, CLI_FLAG, AT(has_gates_per_virtual_layer), NULL, 0,
      "multi-gate: gates of its own for each" },
    { "dtype", 0, "f32|bf16|f16", CLI_CHOICE, AT(dtype), NULL, 0, "of the matrices (default f32)" },
    { "config", 0, "FILE", CLI_TEXT, AT(config), NULL, 0, "a config.json to begin from: defaults are then the file's" },
    { "layout", 0, "official|hf", CLI_CHOICE, AT(layout), NULL, 0, "spelling of the files (default official)" },
    { "container", 0, "safetensors|torch", CLI_CHOICE, AT(container), "safetensors", 0, "of the weights" },
    { "seed", 0, "N", CLI_U64, AT(seed), "1", 0, "of the weights: the same seed gives the same bytes" },
    { "force", 0, NULL, CLI_FLAG, AT(force), NULL, 0, "replace the model that the folder holds" },
    { 0 },
};

static const kr_dtype dtypes[] = { KR_F32, KR_BF16, KR_F16 };

/* ---- whole numbers: which option goes where ---- */

enum { NFAMILIES = 3 };

typedef struct new_size {
    const char *option, *field; /* on the line, and in the library's messages */
    size_t value;
    size_t place[NFAMILIES]; /* in kr_model_config; 0: that family has none */
} new_size;

#define IN(field) offsetof(kr_model_config, field)
#define IN_ALL(field)                                                                                                  \
    {                                                                                                                  \
        IN(field), IN(field), IN(field)                                                                                \
    }
static const new_size sizes[] = {
    { "layers", "n_layers", AT(layers), IN_ALL(layers.n_layers) },
    { "vocab", "vocab_size", AT(vocab), IN_ALL(network.vocab_size) },
    { "mlp", "d_intermediate", AT(mlp), IN_ALL(layers.d_intermediate) },
    { "virtual-layers", "n_virtual", AT(virtual_layers), IN_ALL(layers.n_virtual) },
    { "streams", "n_stream", AT(streams), IN_ALL(layers.residual.n_stream) },
    { "d-state", "state_rank", AT(d_state), { IN(mamba1.state_rank), IN(mamba2.state_rank), IN(mamba3.state_rank) } },
    { "expand", "expand", AT(expand), { IN(mamba1.expand), IN(mamba2.expand), IN(mamba3.expand) } },
    { "head-dim", "per_head_dim", AT(head_dim), { 0, IN(mamba2.per_head_dim), IN(mamba3.per_head_dim) } },
    { "groups", "ngroups", AT(groups), { 0, IN(mamba2.ngroups), IN(mamba3.ngroups) } },
    { "d-conv", "conv_kernel", AT(d_conv), { IN(mamba1.conv_kernel), IN(mamba2.conv_kernel), 0 } },
    { "mimo-rank", "mimo_rank", AT(mimo_rank), { 0, 0, IN(mamba3.mimo_rank) } },
};
enum { NSIZES = sizeof sizes / sizeof *sizes };

static int64_t given(const new_values *v, const new_size *size)
{
    return *(const int64_t *)((const char *)v + size->value);
}

/* ---- what does not go together ---- */

static bool refuse(const char *format, ...) KR_PRINTF(1, 2);
static bool refuse(const char *format, ...)
{
    char text[256];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    cli_complain("see krait new --help", "new: %s", text);
    return false;
}

/* Options of one family or scheme are not passed over in silence where there is another. */
static bool fits_family(const new_values *v, kr_family family)
{
    for (int i = 0; i < NSIZES; i++)
        if (given(v, &sizes[i]) && !sizes[i].place[family])
            return refuse("--%s has no meaning in %s", sizes[i].option, kr_family_name(family));
    const struct {
        const char *option;
        bool is_given;
    } others[] = { { "rotation", v->rotation >= 0 },
                   { "rope-fraction", v->rope_fraction >= 0 },
                   { "a-activation", v->a_activation >= 0 },
                   { "outproj-norm", v->has_outproj_norm } };
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (others[i].is_given && family != KR_MAMBA3)
            return refuse("--%s has no meaning in %s", others[i].option, kr_family_name(family));
    return true;
}

static bool fits_residual(const new_values *v, kr_residual_kind kind)
{
    const bool has_any =
        v->streams || !isnan(v->gate_bias) || !isnan(v->gate_bias_step) || v->has_gates_per_virtual_layer;
    if (kind == KR_RESIDUAL_MULTI_GATE || !has_any) return true;
    return refuse("--streams and --gate... are for --residual multi-gate");
}

/* ---- from options to a config ---- */

static void set_sizes(const new_values *v, kr_model_config *config)
{
    if (v->d_model) kr_model_config_set_d_model(config, v->d_model);
    if (v->d_model || v->expand) { /* what a file derived from its own widths */
        config->mamba1.d_inner = 0;
        config->mamba1.dt_rank = 0;
        config->mamba2.d_ssm = 0;
    }
    for (int i = 0; i < NSIZES; i++)
        if (given(v, &sizes[i])) *(int64_t *)((char *)config + sizes[i].place[config->family]) = given(v, &sizes[i]);
}

static void set_block(const new_values *v, kr_model_config *config)
{
    static const double fractions[] = { 0, 0.5, 1 };
    kr_mamba3_config *mamba3 = &config->mamba3;
    if (v->mimo_rank) mamba3->is_mimo = true;
    if (v->rotation >= 0) mamba3->rotation = (kr_rotation_kind)v->rotation;
    if (v->rope_fraction >= 0) mamba3->rope_fraction = fractions[v->rope_fraction];
    if (v->a_activation >= 0) mamba3->a_activation = v->a_activation ? KR_A_SOFTPLUS : KR_A_HEAVY_TAIL;
    if (v->has_outproj_norm) mamba3->has_outproj_norm = true;
    if (v->dtype >= 0) config->mamba1.dtype = config->mamba2.dtype = mamba3->dtype = dtypes[v->dtype];
    /* the rule of that layout's own loaders, which know no groups here */
    if (v->layout == KR_LAYOUT_HF && config->layout != KR_LAYOUT_HF) config->mamba2.norm_per_group = false;
}

/* "0,1,1,0" into config; *list is to be freed. */
static bool set_list(const char *text, kr_model_config *config, int64_t **list)
{
    int64_t count = 0;
    *list = malloc((strlen(text) / 2 + 1) * sizeof **list);
    for (const char *at = text; *list; at++) {
        char *end;
        errno = 0;
        const long long layer = strtoll(at, &end, 10);
        if (!isdigit((unsigned char)*at) || errno || (*end && *end != ',')) break;
        (*list)[count++] = layer;
        at = end;
        if (*at) continue;
        config->layers.schedule = KR_SCHEDULE_CUSTOM;
        config->layers.custom_schedule = *list;
        config->layers.n_virtual = count;
        return true;
    }
    return refuse("--schedule is '%.80s', but must be cyclic, stretched or a list of layers from 0: 0,1,1,0", text);
}

static bool set_schedule(const new_values *v, kr_model_config *config, int64_t **list)
{
    if (!v->schedule) return true;
    const bool is_stretched = !strcmp(v->schedule, "stretched");
    if (!is_stretched && strcmp(v->schedule, "cyclic") != 0) {
        if (!set_list(v->schedule, config, list)) return false;
        if (!v->virtual_layers || v->virtual_layers == config->layers.n_virtual) return true;
        return refuse("--virtual-layers is %lld, but the list of --schedule has %lld", (long long)v->virtual_layers,
                      (long long)config->layers.n_virtual);
    }
    config->layers.schedule = is_stretched ? KR_SCHEDULE_STRETCHED : KR_SCHEDULE_CYCLIC;
    return true;
}

static bool set_residual(const new_values *v, kr_model_config *config)
{
    kr_residual *residual = &config->layers.residual;
    const bool is_new = v->residual == KR_RESIDUAL_MULTI_GATE && residual->kind != KR_RESIDUAL_MULTI_GATE;
    if (v->residual >= 0) residual->kind = (kr_residual_kind)v->residual;
    if (!fits_residual(v, residual->kind)) return false;
    if (is_new && !v->streams) residual->n_stream = 2;
    if (v->has_gates_per_virtual_layer) residual->per_virtual_layer = true;
    if (!isnan(v->gate_bias_step)) residual->init_bias_step = v->gate_bias_step;
    if (!isnan(v->gate_bias)) residual->init_bias = v->gate_bias;
    else if (is_new) {
        const int64_t depth = config->layers.n_virtual ? config->layers.n_virtual : config->layers.n_layers;
        residual->init_bias = kr_multi_gate_depth_bias(depth - (residual->n_stream - 1), residual->n_stream);
        if (isnan(residual->init_bias))
            return refuse("there are too many --streams for so few layers to derive --gate-bias; give it");
    }
    return true;
}

static bool set_config(const new_values *v, kr_model_config *config, int64_t **list)
{
    if (v->family >= 0) config->family = (kr_family)v->family;
    if (!fits_family(v, config->family)) return false;
    set_sizes(v, config);
    set_block(v, config);
    if (v->is_untied) config->network.tie_embeddings = false;
    return set_schedule(v, config, list) && set_residual(v, config);
}

/* The defaults, or what the file says; *loaded owns what config points at, and is to be destroyed. */
static bool first_config(kr_ctx *ctx, const new_values *v, kr_model_config *config, kr_model_config **loaded)
{
    kr_model_config_init(config);
    config->layers.n_layers = 4;
    config->network.vocab_size = 256;
    if (!v->config) return true;
    *loaded = kr_model_config_load(ctx, v->config);
    if (!*loaded) return false;
    *config = **loaded;
    return true;
}

/* ---- the command ---- */

/* Where the fields that a message names are set on the line: "state_rank is --d-state". */
static const char *options_of(const char *message, char *text, size_t bytes)
{
    static const new_size d_model = { "d-model", "d_model", 0, { 0 } },
                          others[] = { { "rope-fraction", "rope_fraction", 0, { 0 } },
                                       { "schedule", "custom_schedule", 0, { 0 } },
                                       { "gate-bias", "init_bias", 0, { 0 } } };
    const new_size *rows[NSIZES + 4] = { &d_model, &others[0], &others[1], &others[2] };
    size_t n = 0;
    for (int i = 0; i < NSIZES; i++) rows[i + 4] = &sizes[i];
    for (const char *word = message; *word;) {
        const size_t length = strspn(word, "abcdefghijklmnopqrstuvwxyz_ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789");
        for (int i = 0; i < NSIZES + 4 && length; i++) {
            const char *field = rows[i]->field;
            if (strlen(field) != length || memcmp(field, word, length) != 0) continue;
            char part[80];
            snprintf(part, sizeof part, "%s is --%s", field, rows[i]->option);
            if (!strstr(text, part) && n + strlen(part) + 3 < bytes)
                n += (size_t)snprintf(text + n, bytes - n, "%s%s", n ? ", " : "", part);
        }
        word += length ? length : 1;
    }
    return n ? text : NULL;
}

/* A message without the "model.create: network.create: ..." that it begins with; "config.json: " stays. */
static const char *without_calls(const char *message)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz_0123456789";
    for (;;) {
        const char *at = message + strspn(message, letters);
        if (*at++ != '.' || !strncmp(at, "json:", 5)) return message;
        at += strspn(at, letters);
        if (at[0] != ':' || at[1] != ' ') return message;
        message = at + 2;
    }
}

static bool has_failed(kr_ctx *ctx)
{
    char text[200] = "";
    const char *message = without_calls(kr_ctx_message(ctx));
    if (kr_ctx_failed(ctx)) cli_complain(options_of(message, text, sizeof text), "new: %s", message);
    return kr_ctx_failed(ctx);
}

static void tell(kr_ctx *ctx, const new_values *v, const kr_model *model)
{
    const kr_model_config *config = kr_model_config_of(model);
    kr_model_size size = { 0 };
    char word[CLI_PATH_BYTES];
    kr_model_measure(ctx, config, &size);
    printf("%s: %s, %lld layers, d_model %lld, %s parameters, %s in %s\n", v->folder, kr_family_name(config->family),
           (long long)config->layers.n_layers, (long long)kr_model_config_d_model(config),
           cli_count_text((double)size.parameters).text, cli_bytes_text((double)size.weight_bytes).text,
           kr_dtype_name(dtypes[v->dtype > 0 ? v->dtype : 0]));
    printf("next: krait info %s\n", cli_shell_word(v->folder, word, sizeof word));
}

static int make(kr_ctx *ctx, const new_values *v)
{
    kr_model_config config, *loaded = NULL;
    kr_model *model = NULL;
    int64_t *list = NULL;
    int status = CLI_FAILED;
    if (first_config(ctx, v, &config, &loaded)) {
        if (v->family >= 0 && loaded && v->family != (int)config.family) {
            refuse("--family is another than that of %s, %s", v->config, kr_family_name(config.family));
            status = CLI_USAGE;
        } else if (!set_config(v, &config, &list)) {
            status = CLI_USAGE;
        } else {
            kr_save_options save;
            kr_save_options_init(&save);
            if (v->layout >= 0) save.layout = (kr_layout)v->layout;
            save.container = (kr_container)v->container;
            model = kr_model_create(ctx, &config);
            if (model && kr_model_save(model, v->folder, &save) == KR_OK) status = CLI_OK;
        }
    }
    if (status == CLI_OK) tell(ctx, v, model);
    if (has_failed(ctx)) status = CLI_FAILED;
    kr_model_destroy(model);
    kr_model_config_destroy(loaded);
    free(list);
    return status;
}

static int run(int argc, char **argv)
{
    new_values v = { .gate_bias = NAN, .gate_bias_step = NAN };
    int status = cli_parse(&cli_new, &v, argc, argv);
    if (status >= 0) return status;
    if (!v.config && v.family < 0) {
        refuse("--family is missing: mamba1, mamba2 or mamba3");
        return CLI_USAGE;
    }
    if (!v.config && !v.d_model) {
        refuse("--d-model is missing: the width of the model, 256 say");
        return CLI_USAGE;
    }
    if (!cli_may_write_model("new", v.folder, v.force)) return CLI_FAILED;
    kr_ctx *ctx = cli_open(&(cli_machine){ 0 }, v.seed);
    status = has_failed(ctx) ? CLI_FAILED : make(ctx, &v);
    kr_ctx_destroy(ctx);
    return status;
}

const cli_command cli_new = {
    .name = "new",
    .summary = "makes a model with fresh weights: config.json and model.safetensors in a folder",
    .options = options,
    .run = run,
    .operands = operands,
    .more = "krait new tiny --family mamba3 --d-model 256 makes a model of bytes.\n",
};
