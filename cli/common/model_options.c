/* model_options.c - checks the options of a model's shape, and makes a config of them. */
#include "cli/common/model_options.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const kr_dtype cli_model_dtypes[3] = { KR_DTYPE_F32, KR_DTYPE_BF16, KR_DTYPE_F16 };

/* ---- names of options ---- */

typedef struct model_only {
    cli_model_values model;
} model_only;
static const cli_option options[] = { CLI_MODEL_OPTIONS(model_only, model, "", "", "") };

#define AT(field) offsetof(cli_model_values, field)

/* The name of the option that sets a value, by its offset. */
static const char *option_of(size_t value)
{
    size_t i = 0;
    while (options[i].offset != value) i++;
    return options[i].name;
}

/* ---- whole numbers: which option sets which field ---- */

enum { NFAMILIES = 3 };

/* A field: the offset in kr_model_config of the pointer to its part, and its own offset there. */
typedef struct model_place {
    size_t part, field; /* part 0: that family has none */
} model_place;

typedef struct model_size {
    const char *field; /* in the library's messages */
    size_t value;
    model_place place[NFAMILIES];
} model_size;

#define IN(part, field)                                                                                                \
    {                                                                                                                  \
        offsetof(kr_model_config, part), offsetof(kr_##part##_config, field)                                           \
    }
#define IN_ALL(part, field)                                                                                            \
    {                                                                                                                  \
        IN(part, field), IN(part, field), IN(part, field)                                                              \
    }
#define IN_NONE                                                                                                        \
    {                                                                                                                  \
        0, 0                                                                                                           \
    }
static const model_size sizes[] = {
    { "n_layers", AT(layers), IN_ALL(layers, n_layers) },
    { "vocab_size", AT(vocab), IN_ALL(network, vocab_size) },
    { "d_intermediate", AT(mlp), IN_ALL(layers, d_intermediate) },
    { "n_virtual", AT(virtual_layers), IN_ALL(layers, n_virtual) },
    { "n_stream", AT(streams), IN_ALL(layers, residual.n_stream) },
    { "state_rank", AT(d_state), { IN(mamba1, state_rank), IN(mamba2, state_rank), IN(mamba3, state_rank) } },
    { "expand", AT(expand), { IN(mamba1, expand), IN(mamba2, expand), IN(mamba3, expand) } },
    { "per_head_dim", AT(head_dim), { IN_NONE, IN(mamba2, per_head_dim), IN(mamba3, per_head_dim) } },
    { "n_groups", AT(groups), { IN_NONE, IN(mamba2, n_groups), IN(mamba3, n_groups) } },
    { "conv_kernel", AT(d_conv), { IN(mamba1, conv_kernel), IN(mamba2, conv_kernel), IN_NONE } },
    { "mimo_rank", AT(mimo_rank), { IN_NONE, IN_NONE, IN(mamba3, mimo_rank) } },
};
enum { NSIZES = sizeof sizes / sizeof *sizes };

static int64_t given(const cli_model_values *v, const model_size *size)
{
    return *(const int64_t *)((const char *)v + size->value);
}

/* ---- conflicting options ---- */

static bool refuse(const char *command, const char *format, ...) KR_PRINTF(2, 3);
static bool refuse(const char *command, const char *format, ...)
{
    char text[256], remedy[80];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    snprintf(remedy, sizeof remedy, "see krait %s --help", command);
    cli_complain(remedy, "%s: %s", command, text);
    return false;
}

/* Options of another family or scheme are an error, not ignored. */
static bool fits_family(const char *command, const cli_model_values *v, kr_family family)
{
    if (family > KR_FAMILY_MAMBA3)
        return refuse(command, "there are no options for blocks of %s", kr_family_name(family));
    for (int i = 0; i < NSIZES; i++)
        if (given(v, &sizes[i]) && !sizes[i].place[family].part)
            return refuse(command, "--%s does not apply to %s", option_of(sizes[i].value), kr_family_name(family));
    const struct {
        size_t value;
        bool is_given;
    } others[] = { { AT(rotation), v->rotation >= 0 },
                   { AT(rope_fraction), v->rope_fraction >= 0 },
                   { AT(a_activation), v->a_activation >= 0 },
                   { AT(has_outproj_norm), v->has_outproj_norm } };
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (others[i].is_given && family != KR_FAMILY_MAMBA3)
            return refuse(command, "--%s does not apply to %s", option_of(others[i].value), kr_family_name(family));
    return true;
}

static bool fits_residual(const char *command, const cli_model_values *v, kr_residual_kind kind)
{
    const bool has_any =
        v->streams || !isnan(v->gate_bias) || !isnan(v->gate_bias_step) || v->has_gates_per_virtual_layer;
    if (kind == KR_RESIDUAL_MULTI_GATE || !has_any) return true;
    return refuse(command, "--streams and --gate... are for --residual multi-gate");
}

/* ---- from options to a config ---- */

static int64_t *field_of(kr_model_config *config, const model_size *size)
{
    const model_place *place = &size->place[config->family];
    void *part;
    memcpy(&part, (const char *)config + place->part, sizeof part);
    return (int64_t *)(void *)((char *)part + place->field);
}

static void set_sizes(const cli_model_values *v, kr_model_config *config)
{
    if (v->d_model) kr_model_config_set_d_model(config, v->d_model);
    if (v->d_model || v->expand) { /* values that a file derived from its own widths */
        config->mamba1->d_inner = 0;
        config->mamba1->dt_rank = 0;
        config->mamba2->d_ssm = 0;
    }
    for (int i = 0; i < NSIZES; i++)
        if (given(v, &sizes[i])) *field_of(config, &sizes[i]) = given(v, &sizes[i]);
}

static void set_block(const cli_model_values *v, kr_model_config *config)
{
    static const double fractions[] = { 0, 0.5, 1 };
    kr_mamba3_config *mamba3 = config->mamba3;
    if (v->mimo_rank) mamba3->is_mimo = true;
    if (v->rotation >= 0) mamba3->rotation = (kr_rotation_kind)v->rotation;
    if (v->rope_fraction >= 0) mamba3->rope_fraction = fractions[v->rope_fraction];
    if (v->a_activation >= 0)
        mamba3->a_activation = v->a_activation ? KR_A_ACTIVATION_SOFTPLUS : KR_A_ACTIVATION_HEAVY_TAIL;
    if (v->has_outproj_norm) mamba3->has_outproj_norm = true;
    if (v->dtype >= 0) config->mamba1->dtype = config->mamba2->dtype = mamba3->dtype = cli_model_dtypes[v->dtype];
    /* the rule of that layout's own loaders, which know no groups here */
    if (v->layout == KR_LAYOUT_HF && config->layout != KR_LAYOUT_HF) config->mamba2->norm_per_group = false;
}

/* "0,1,1,0" into config; *list is to be freed. */
static bool set_list(const char *command, const char *text, kr_model_config *config, int64_t **list)
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
        config->layers->schedule = KR_SCHEDULE_CUSTOM;
        config->layers->custom_schedule = *list;
        config->layers->n_virtual = count;
        return true;
    }
    return refuse(command, "--schedule is '%.80s', but must be cyclic, stretched or a list of layers from 0: 0,1,1,0",
                  text);
}

static bool set_schedule(const char *command, const cli_model_values *v, kr_model_config *config, int64_t **list)
{
    if (!v->schedule) return true;
    const bool is_stretched = !strcmp(v->schedule, "stretched");
    if (!is_stretched && strcmp(v->schedule, "cyclic") != 0) {
        if (!set_list(command, v->schedule, config, list)) return false;
        if (!v->virtual_layers || v->virtual_layers == config->layers->n_virtual) return true;
        return refuse(command, "--virtual-layers is %lld, but the list of --schedule has %lld",
                      (long long)v->virtual_layers, (long long)config->layers->n_virtual);
    }
    config->layers->schedule = is_stretched ? KR_SCHEDULE_STRETCHED : KR_SCHEDULE_CYCLIC;
    return true;
}

static bool set_residual(const char *command, const cli_model_values *v, kr_model_config *config)
{
    kr_residual *residual = &config->layers->residual;
    const bool is_new = v->residual == KR_RESIDUAL_MULTI_GATE && residual->kind != KR_RESIDUAL_MULTI_GATE;
    if (v->residual >= 0) residual->kind = (kr_residual_kind)v->residual;
    if (!fits_residual(command, v, residual->kind)) return false;
    if (is_new && !v->streams) residual->n_stream = 2;
    if (v->has_gates_per_virtual_layer) residual->per_virtual_layer = true;
    if (!isnan(v->gate_bias_step)) residual->init_bias_step = v->gate_bias_step;
    if (!isnan(v->gate_bias)) residual->init_bias = v->gate_bias;
    else if (is_new) {
        const int64_t depth = config->layers->n_virtual ? config->layers->n_virtual : config->layers->n_layers;
        residual->init_bias = kr_multi_gate_depth_bias(depth - (residual->n_stream - 1), residual->n_stream);
        if (isnan(residual->init_bias))
            return refuse(command, "there are too many --streams for so few layers to derive --gate-bias; give it");
    }
    return true;
}

bool cli_model_shape_set(const char *command, const cli_model_values *v, cli_model_shape *shape)
{
    kr_model_config *config = shape->config;
    if (v->family >= 0 && shape->is_loaded && v->family != (int)config->family)
        return refuse(command, "--family differs from that of %s, %s", v->config, kr_family_name(config->family));
    if (v->family >= 0) config->family = (kr_family)v->family;
    if (!fits_family(command, v, config->family)) return false;
    set_sizes(v, config);
    set_block(v, config);
    if (v->is_untied) config->network->tie_embeddings = false;
    return set_schedule(command, v, config, &shape->schedule) && set_residual(command, v, config);
}

bool cli_model_begin(kr_ctx *ctx, const cli_model_values *v, cli_model_shape *shape)
{
    *shape = (cli_model_shape){ .is_loaded = v->config != NULL };
    shape->config = v->config ? kr_model_config_load(ctx, v->config) : kr_model_config_create(ctx);
    if (!shape->config) return false;
    if (!v->config) {
        shape->config->layers->n_layers = 4;
        shape->config->network->vocab_size = 256;
    }
    return true;
}

void cli_model_shape_free(cli_model_shape *shape)
{
    kr_model_config_destroy(shape->config);
    free(shape->schedule);
    *shape = (cli_model_shape){ .config = NULL };
}

/* ---- errors of the library ---- */

/* Where the fields that a message names are set on the line: "state_rank is --d-state". */
static const char *options_of(const char *message, char *text, size_t bytes)
{
    static const model_size others[] = { { .field = "d_model", .value = AT(d_model) },
                                         { .field = "rope_fraction", .value = AT(rope_fraction) },
                                         { .field = "custom_schedule", .value = AT(schedule) },
                                         { .field = "init_bias", .value = AT(gate_bias) } };
    const model_size *rows[NSIZES + 4] = { &others[0], &others[1], &others[2], &others[3] };
    size_t n = 0;
    for (int i = 0; i < NSIZES; i++) rows[i + 4] = &sizes[i];
    for (const char *word = message; *word;) {
        const size_t length = strspn(word, "abcdefghijklmnopqrstuvwxyz_ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789");
        for (int i = 0; i < NSIZES + 4 && length; i++) {
            const char *field = rows[i]->field;
            if (strlen(field) != length || memcmp(field, word, length) != 0) continue;
            char part[80];
            snprintf(part, sizeof part, "%s is --%s", field, option_of(rows[i]->value));
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

bool cli_model_failed(kr_ctx *ctx, const char *command)
{
    char text[200] = "";
    const char *message = without_calls(kr_ctx_message(ctx));
    if (kr_ctx_failed(ctx)) cli_complain(options_of(message, text, sizeof text), "%s: %s", command, message);
    return kr_ctx_failed(ctx);
}
