/* cmd_new.c - krait new: a folder with a model with initial weights. */
#include "cli/common/commands.h"
#include "cli/common/cli_files.h"
#include "cli/common/cli_machine.h"
#include "cli/common/model_options.h"
#include "cli/commands/cmd_report.h"

#include <math.h>
#include <stdio.h>

typedef struct new_values {
    cli_model_values model;
    const char *folder;
    int container;
    bool force;
    uint64_t seed;
} new_values;

static const cli_operand operands[] = {
    { "DIR", offsetof(new_values, folder), false, "the folder; created if it does not exist" },
    { 0 },
};

#define AT(field) offsetof(new_values, field)
static const cli_option options[] = {
    CLI_MODEL_OPTIONS(new_values, model, "block family (required)", "model width (required)",
                      "vocabulary size (default 256: bytes)"),
    { "config", 0, "FILE", CLI_TEXT, AT(model.config), NULL, 0,
      "start from this config.json: its values become the defaults" },
    { "layout", 0, "official|hf", CLI_CHOICE, AT(model.layout), NULL, 0,
      "layout of config.json and tensor names (default official)" },
    { "container", 0, "safetensors|torch", CLI_CHOICE, AT(container), "safetensors", 0, "of the weights" },
    { "seed", 0, "N", CLI_U64, AT(seed), "1", 0, "random seed of the weights" },
    { "force", 0, NULL, CLI_FLAG, AT(force), NULL, 0, "replace an existing model in the folder" },
    { 0 },
};

static void print_summary(kr_ctx *ctx, const new_values *v, const kr_model *model)
{
    const kr_model_config *config = kr_model_config_of(model);
    kr_model_size size = { 0 };
    char word[CLI_PATH_BYTES];
    kr_model_measure(ctx, config, &size);
    printf("%s: %s, %lld layers, d_model %lld, %s parameters, %s in %s\n", v->folder, kr_family_name(config->family),
           (long long)config->layers->n_layers, (long long)kr_model_config_d_model(config),
           cli_count_text((double)size.parameters).text, cli_bytes_text((double)size.weight_bytes).text,
           kr_dtype_name(cli_model_dtypes[v->model.dtype > 0 ? v->model.dtype : 0]));
    printf("next: krait info %s\n", cli_shell_word(v->folder, word, sizeof word));
}

static int make(kr_ctx *ctx, const new_values *v)
{
    cli_model_shape shape;
    kr_model *model = NULL;
    int status = CLI_FAILED;
    if (cli_model_begin(ctx, &v->model, &shape)) {
        if (!cli_model_shape_set("new", &v->model, &shape)) {
            status = CLI_USAGE;
        } else {
            kr_save_options save;
            kr_save_options_init(&save);
            if (v->model.layout >= 0) save.layout = (kr_layout)v->model.layout;
            save.container = (kr_container)v->container;
            model = kr_model_create(ctx, shape.config);
            if (model && kr_model_save(model, v->folder, &save) == KR_OK) status = CLI_OK;
        }
    }
    if (status == CLI_OK) print_summary(ctx, v, model);
    if (cli_model_failed(ctx, "new")) status = CLI_FAILED;
    kr_model_destroy(model);
    cli_model_shape_free(&shape);
    return status;
}

static int run(int argc, char **argv)
{
    new_values v = { .model = CLI_MODEL_VALUES };
    int status = cli_parse(&cli_new, &v, argc, argv);
    if (status >= 0) return status;
    const char *missing = v.model.config       ? NULL
                          : v.model.family < 0 ? "--family is missing: mamba1, mamba2 or mamba3"
                          : !v.model.d_model   ? "--d-model is missing: the width of the model, such as 256"
                                               : NULL;
    if (missing) {
        cli_complain("see krait new --help", "new: %s", missing);
        return CLI_USAGE;
    }
    if (!cli_may_write_model("new", v.folder, v.force)) return CLI_FAILED;
    kr_ctx *ctx = cli_open(&(cli_machine){ .device = "cpu" }, v.seed);
    status = cli_model_failed(ctx, "new") ? CLI_FAILED : make(ctx, &v);
    kr_ctx_destroy(ctx);
    return status;
}

const cli_command cli_new = {
    .name = "new",
    .summary = "create a model with initial weights: config.json and model.safetensors in a folder",
    .options = options,
    .run = run,
    .operands = operands,
    .more = "krait new tiny --family mamba3 --d-model 256 creates a byte-level model.\n",
};
