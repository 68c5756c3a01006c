/* cmd_convert.c - krait convert: a model in another layout, type or container. */
#include "cli/common/commands.h"
#include "cli/common/cli_files.h"
#include "cli/common/cli_machine.h"
#include "cli/common/tensors.h"

#include <krait/model.h>

#include <stdio.h>
#include <string.h>

typedef struct convert_values {
    const char *source, *target, *max_shard;
    int layout, dtype, container;
    bool force;
} convert_values;

static const cli_operand operands[] = {
    { "SRC", offsetof(convert_values, source), false, "a model folder" },
    { "DST", offsetof(convert_values, target), false, "output folder; created if it does not exist" },
    { 0 },
};

#define AT(field) offsetof(convert_values, field)
static const cli_option options[] = {
    { "layout", 0, "official|hf", CLI_CHOICE, AT(layout), NULL, 0,
      "layout of config.json and tensor names (default: unchanged)" },
    { "dtype", 0, "f32|bf16|f16", CLI_CHOICE, AT(dtype), NULL, 0,
      "type of the matrices; small tensors become f32 (default: unchanged)" },
    { "container", 0, "safetensors|torch", CLI_CHOICE, AT(container), "safetensors", 0, "of the weights" },
    { "max-shard-size", 0, "SIZE", CLI_TEXT, AT(max_shard), NULL, 0,
      "split the weights into files of at most this size, e.g. 5GB (default: one file)" },
    { "force", 0, NULL, CLI_FLAG, AT(force), NULL, 0, "replace an existing model in DST" },
    { 0 },
};

static const kr_dtype dtypes[] = { KR_DTYPE_F32, KR_DTYPE_BF16, KR_DTYPE_F16 };

/* Files of a model folder other than the weights. The last of them is also written by kr_model_save, if there are token
 * ids, or removed. */
static const char *const side_files[] = {
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.json",
    "merges.txt",     "generation_config.json"
};
enum { NSIDE_FILES = sizeof side_files / sizeof *side_files };

/* ---- side files ---- */

/* Copies existing files, and lists their names in `copied`; warns of files that only the target has, since they belong
 * to another model. False after an error message. */
static bool copy_side_files(const convert_values *v, char *copied, size_t bytes)
{
    char from[CLI_PATH_BYTES], to[CLI_PATH_BYTES];
    size_t n = 0;
    for (int i = 0; i < NSIDE_FILES; i++) {
        if (!cli_join(from, v->source, side_files[i]) || !cli_join(to, v->target, side_files[i])) return false;
        if (cli_exists(from)) {
            if (!cli_copy_file(from, to)) return false;
            n += (size_t)snprintf(copied + n, bytes - n, "%s%s", n ? ", " : "", side_files[i]);
        } else if (i < NSIDE_FILES - 1 && cli_exists(to)) {
            fprintf(stderr, "krait: warning: %s existed before and is kept; %s has none\n", to, v->source);
        }
    }
    return true;
}

/* ---- summary ---- */

typedef struct found {
    cli_tensors sums;
    const char *container;
    int files;
} found;

static bool find_out(kr_ctx *ctx, const char *folder, found *f)
{
    kr_tensor_file *weights = kr_tensor_file_open(ctx, folder);
    if (!weights) return false;
    *f = (found){ .sums = cli_tensors_of(weights), .files = kr_tensor_file_shards(weights) };
    f->container = kr_tensor_file_container(weights) == KR_CONTAINER_TORCH ? "torch" : "safetensors";
    kr_tensor_file_close(weights);
    return true;
}

static void change(const char *what, const char *before, const char *after)
{
    if (strcmp(before, after) != 0) printf("%-11s%s -> %s\n", what, before, after);
    else printf("%-11s%s\n", what, after);
}

static void print_summary(const convert_values *v, const kr_model *model, const found *before, const found *after,
                          const char *copied)
{
    const kr_model_config *config = kr_model_config_of(model);
    const kr_layout layout = v->layout < 0 ? config->layout : (kr_layout)v->layout;
    char files[2][32], word[CLI_PATH_BYTES];
    printf("%s: %s, %lld layers, %s parameters\n", v->target, kr_family_name(config->family),
           (long long)config->layers->n_layers,
           cli_count_text((double)kr_params_elements(kr_network_params(kr_model_network(model)))).text);
    change("layout", kr_layout_name(config->layout), kr_layout_name(layout));
    change("dtype", before->sums.dtypes, after->sums.dtypes);
    change("container", before->container, after->container);
    snprintf(files[0], sizeof files[0], "%d", before->files);
    snprintf(files[1], sizeof files[1], "%d", after->files);
    change("files", files[0], files[1]);
    change("bytes", cli_bytes_text(before->sums.bytes).text, cli_bytes_text(after->sums.bytes).text);
    if (*copied) printf("%-11s%s\n", "copied", copied);
    printf("next: krait info %s\n", cli_shell_word(v->target, word, sizeof word));
}

/* ---- the command ---- */

static bool may_convert(const convert_values *v)
{
    const char *file = cli_is_folder(v->source) ? cli_model_file(v->source) : NULL;
    if (!file) {
        const bool is_there = cli_exists(v->source);
        cli_complain(cli_model_remedy, "convert: cannot open %s%s: %s", v->source, is_there ? "/config.json" : "",
                     is_there && !cli_is_folder(v->source) ? "not a folder" : "no such file or directory");
        return false;
    }
    if (cli_is_same(v->source, v->target)) {
        cli_complain("choose another folder for DST", "convert: %s and %s are the same folder", v->source, v->target);
        return false;
    }
    return cli_may_write_model("convert", v->target, v->force);
}

static int convert(kr_ctx *ctx, const convert_values *v, size_t max_shard_bytes)
{
    kr_load_options load;
    kr_save_options save;
    kr_load_options_init(&load);
    kr_save_options_init(&save);
    if (v->layout >= 0) save.layout = (kr_layout)v->layout;
    if (v->dtype >= 0) load.dtype = save.dtype = dtypes[v->dtype]; /* loaded in that type: there is no second copy */
    save.container = (kr_container)v->container;
    save.max_shard_bytes = max_shard_bytes;

    found before, after;
    char copied[200] = "";
    int status = CLI_FAILED;
    kr_model *model = find_out(ctx, v->source, &before) ? kr_model_load(ctx, v->source, &load) : NULL;
    if (model && kr_model_save(model, v->target, &save) == KR_OK && copy_side_files(v, copied, sizeof copied) &&
        find_out(ctx, v->target, &after)) {
        print_summary(v, model, &before, &after, copied);
        status = CLI_OK;
    }
    kr_model_destroy(model);
    return status;
}

static int run(int argc, char **argv)
{
    convert_values v = { 0 };
    int status = cli_parse(&cli_convert, &v, argc, argv);
    if (status >= 0) return status;
    const size_t max_shard_bytes = v.max_shard ? cli_size_of(v.max_shard) : 0;
    if (v.max_shard && !max_shard_bytes) {
        cli_complain("see krait convert --help", "convert: --max-shard-size is '%s', but must be a size: 5GB, 300MiB",
                     v.max_shard);
        return CLI_USAGE;
    }
    if (!may_convert(&v)) return CLI_FAILED;
    kr_ctx *ctx = cli_open(&(cli_machine){ .device = "cpu" }, 0);
    status = kr_ctx_failed(ctx) ? CLI_FAILED : convert(ctx, &v, max_shard_bytes);
    if (kr_ctx_failed(ctx))
        cli_complain(kr_ctx_status(ctx) == KR_ERR_NUMERIC ? "choose --dtype bf16 or f32" : NULL, "convert: %s",
                     kr_ctx_message(ctx));
    kr_ctx_destroy(ctx);
    return status;
}

const cli_command cli_convert = {
    .name = "convert",
    .summary = "convert a model to another layout, type or container",
    .options = options,
    .run = run,
    .operands = operands,
    .more = "Other files of a model are copied unchanged: tokenizer.json, tokenizer_config.json,\n"
            "special_tokens_map.json, vocab.json, merges.txt, generation_config.json.\n",
};
