/* model_options.h - the shape of a model on the command line, for the subcommands that make one.
 *
 *   typedef struct hello_values { cli_model_values model; } hello_values;
 *   static const cli_option options[] = {
 *       CLI_MODEL_OPTIONS(hello_values, model, "block family", "model width", "vocabulary size"),
 *       { 0 },
 *   };
 *   ...
 *   hello_values values = { .model = CLI_MODEL_VALUES };
 *   cli_model_shape shape;
 *   if (cli_model_begin(ctx, &values.model, &shape) && cli_model_shape_set("hello", &values.model, &shape))
 *       model = kr_model_create(ctx, &shape.config);
 *   cli_model_failed(ctx, "hello");
 *   cli_model_shape_free(&shape);
 */
#ifndef KR_CLI_COMMON_MODEL_OPTIONS_H
#define KR_CLI_COMMON_MODEL_OPTIONS_H

#include "cli/common/cli_options.h"

#include <krait/model.h>

typedef struct cli_model_values {
    const char *config, *schedule; /* config: a file to begin from; NULL: none */
    int family, rotation, rope_fraction, a_activation, residual, dtype, layout;
    int64_t d_model, layers, vocab, d_state, head_dim, expand, groups, d_conv, mimo_rank, mlp, virtual_layers, streams;
    double gate_bias, gate_bias_step; /* NaN: not given */
    bool has_outproj_norm, is_untied, has_gates_per_virtual_layer;
} cli_model_values;

/* Values before the command line is read; NAN is of math.h. */
#define CLI_MODEL_VALUES                                                                                               \
    {                                                                                                                  \
        .family = -1, .rotation = -1, .rope_fraction = -1, .a_activation = -1, .residual = -1, .dtype = -1,            \
        .layout = -1, .gate_bias = NAN, .gate_bias_step = NAN                                                          \
    }

/* All but the config, which differs between commands, as does the help of the first three. */
#define CLI_MODEL_ROW(values, name, arg, kind, field, least, help)                                                     \
    {                                                                                                                  \
        name, 0, arg, kind, offsetof(values, field), NULL, least, help                                                 \
    }
#define CLI_MODEL_OPTIONS(values, field, family_help, d_model_help, vocab_help)                                        \
    CLI_MODEL_ROW(values, "family", "mamba1|mamba2|mamba3", CLI_CHOICE | CLI_SHAPE, field.family, 0, family_help),     \
        CLI_MODEL_ROW(values, "d-model", "N", CLI_I64 | CLI_SHAPE, field.d_model, 1, d_model_help),                    \
        CLI_MODEL_ROW(values, "vocab", "N", CLI_I64 | CLI_FIXED, field.vocab, 1, vocab_help),                          \
        CLI_MODEL_ROW(values, "layers", "N", CLI_I64 | CLI_SHAPE, field.layers, 1,                                     \
                      "number of layers with their own weights (default 4)"),                                          \
        CLI_MODEL_ROW(values, "d-state", "N", CLI_I64 | CLI_SHAPE, field.d_state, 1,                                   \
                      "state rank (default 16 for mamba1, else 128)"),                                                 \
        CLI_MODEL_ROW(values, "head-dim", "N", CLI_I64 | CLI_SHAPE, field.head_dim, 1,                                 \
                      "channels per head; not in mamba1 (default 64)"),                                                \
        CLI_MODEL_ROW(values, "expand", "N", CLI_I64 | CLI_SHAPE, field.expand, 1,                                     \
                      "inner width / model width (default 2)"),                                                        \
        CLI_MODEL_ROW(values, "groups", "N", CLI_I64 | CLI_SHAPE, field.groups, 1,                                     \
                      "groups of B and C; not in mamba1 (default 1)"),                                                 \
        CLI_MODEL_ROW(values, "d-conv", "N", CLI_I64 | CLI_SHAPE, field.d_conv, 1,                                     \
                      "convolution kernel size; not in mamba3 (default 4)"),                                           \
        CLI_MODEL_ROW(values, "mimo-rank", "N", CLI_I64 | CLI_SHAPE, field.mimo_rank, 1,                               \
                      "mamba3: MIMO rank (default: SISO)"),                                                            \
        CLI_MODEL_ROW(values, "rotation", "complex|quaternion", CLI_CHOICE | CLI_SHAPE, field.rotation, 0,             \
                      "mamba3 (default complex)"),                                                                     \
        CLI_MODEL_ROW(values, "rope-fraction", "0|0.5|1", CLI_CHOICE | CLI_SHAPE, field.rope_fraction, 0,              \
                      "mamba3: fraction of the state with rotary embedding (default 0.5)"),                            \
        CLI_MODEL_ROW(values, "a-activation", "heavy-tail|softplus", CLI_CHOICE | CLI_SHAPE, field.a_activation, 0,    \
                      "mamba3: activation of the decay rate A (default heavy-tail)"),                                  \
        CLI_MODEL_ROW(values, "outproj-norm", NULL, CLI_FLAG | CLI_SHAPE, field.has_outproj_norm, 0,                   \
                      "mamba3: RMS norm before the gate"),                                                             \
        CLI_MODEL_ROW(values, "mlp", "N", CLI_I64 | CLI_SHAPE, field.mlp, 1,                                           \
                      "width of an MLP in each layer (default: no MLP)"),                                              \
        CLI_MODEL_ROW(values, "untied", NULL, CLI_FLAG | CLI_SHAPE, field.is_untied, 0,                                \
                      "do not tie the LM head to the embedding"),                                                      \
        CLI_MODEL_ROW(values, "virtual-layers", "N", CLI_I64 | CLI_SHAPE, field.virtual_layers, 1,                     \
                      "number of virtual layers, which share weights (default: one per layer)"),                       \
        CLI_MODEL_ROW(values, "schedule", "cyclic|stretched|LIST", CLI_TEXT | CLI_SHAPE, field.schedule, 0,            \
                      "weights of each virtual layer; or a list: 0,1,1,0 (default cyclic)"),                           \
        CLI_MODEL_ROW(values, "residual", "standard|multi-gate", CLI_CHOICE | CLI_SHAPE, field.residual, 0,            \
                      "residual connections (default standard)"),                                                      \
        CLI_MODEL_ROW(values, "streams", "N", CLI_I64 | CLI_SHAPE, field.streams, 1,                                   \
                      "multi-gate: residual streams (default 2)"),                                                     \
        CLI_MODEL_ROW(values, "gate-bias", "X", CLI_REAL | CLI_SHAPE, field.gate_bias, -1000,                          \
                      "multi-gate: gate bias of stream 0 (default: by depth)"),                                        \
        CLI_MODEL_ROW(values, "gate-bias-step", "X", CLI_REAL | CLI_SHAPE, field.gate_bias_step, -1000,                \
                      "multi-gate: bias increment for each further stream (default 0)"),                               \
        CLI_MODEL_ROW(values, "gates-per-virtual-layer", NULL, CLI_FLAG | CLI_SHAPE,                                   \
                      field.has_gates_per_virtual_layer, 0, "multi-gate: separate gates for each virtual layer"),      \
        CLI_MODEL_ROW(values, "dtype", "f32|bf16|f16", CLI_CHOICE | CLI_FIXED, field.dtype, 0,                         \
                      "type of the matrices (default f32)")

/* The types that --dtype chooses from. */
extern const kr_dtype cli_model_dtypes[3];

/* A config, and the memory it points to. */
typedef struct cli_model_shape {
    kr_model_config *config;
    bool is_loaded;
    int64_t *schedule;
} cli_model_shape;

/* The library's defaults with four layers and 256 tokens, or the config of the file. False after an error of the
 * context. */
bool cli_model_begin(kr_ctx *ctx, const cli_model_values *values, cli_model_shape *shape);

/* Writes the given options to the config. False after an error message: options that have no effect in the family or
 * the scheme, or conflict. */
bool cli_model_shape_set(const char *command, const cli_model_values *values, cli_model_shape *shape);
void cli_model_shape_free(cli_model_shape *shape);

/* Prints the error of ctx, if there is one, and the options that set the fields named in it; true then. */
bool cli_model_failed(kr_ctx *ctx, const char *command);

#endif
