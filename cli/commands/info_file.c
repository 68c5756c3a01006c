/* info_file.c - describes a file: tensors, a saved state, an index, a config, a tokenizer. */
#include "cli/common/cli_files.h"
#include "cli/commands/cmd_info.h"
#include "cli/common/tensors.h"

#include <krait/experimental/json.h>
#include <krait/tensor_file.h>
#include <krait/text.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_JSON_BYTES = 128 << 20 };

static const char file_remedy[] =
    "krait info knows model folders, .safetensors, pytorch_model.bin, *.index.json, config.json, tokenizer.json";

/* ---- folders ---- */

/* The config as the weights want it: their type is not in it. */
static kr_dtype stored_dtype(const kr_tensor_file *weights)
{
    const kr_tensor_file_item *largest = NULL;
    for (int64_t i = 0; i < kr_tensor_file_count(weights); i++) {
        const kr_tensor_file_item *item = kr_tensor_file_at(weights, i);
        if (item->is_readable && (!largest || item->count > largest->count)) largest = item;
    }
    return largest && (largest->dtype == KR_DTYPE_BF16 || largest->dtype == KR_DTYPE_F16) ? largest->dtype
                                                                                          : KR_DTYPE_F32;
}

static void folder_tokenizer(info_run *run, const kr_model_config *config)
{
    char path[CLI_PATH_BYTES];
    if (!cli_join(path, run->values->path, "tokenizer.json")) return;
    if (!cli_exists(path)) {
        const bool is_bytes = config && config->network->vocab_size == 256;
        if (!run->report.is_json)
            cli_report_text(&run->report, "tokenizer", is_bytes ? "none: tokens are bytes" : "none");
        return;
    }
    const int64_t count = info_tokenizer(run, path), vocab = config ? config->network->vocab_size : INT64_MAX;
    char text[160];
    snprintf(text, sizeof text, "the tokenizer has %lld tokens, but the model only %lld", (long long)count,
             (long long)vocab);
    if (count > vocab) info_note(&run->warnings, text);
}

static void take_reason(void *user, const char *text)
{
    info_run *run = user;
    info_note(&run->reasons, text);
}

int info_folder(info_run *run)
{
    const char *folder = run->values->path;
    if (!cli_model_file(folder)) {
        cli_complain(cli_model_remedy, "cannot open %s/config.json: no such file or directory", folder);
        return CLI_FAILED;
    }
    kr_model_config *config = kr_model_config_load(run->ctx, folder);
    info_take_error(run);
    kr_tensor_file *weights = kr_tensor_file_open(run->ctx, folder);
    info_take_error(run);
    cli_report_begin(&run->report, run->values->is_json);
    cli_report_string(&run->report, "model", folder);
    if (config && weights)
        config->mamba1->dtype = config->mamba2->dtype = config->mamba3->dtype = stored_dtype(weights);
    if (config) info_config(run, config);
    folder_tokenizer(run, config);
    if (weights && !cli_report_tensors(&run->report, weights, run->values->shows_all))
        info_note(&run->reasons, "no memory for the table of tensors");
    if (config && weights) kr_model_check(run->ctx, folder, take_reason, run);
    info_take_error(run);
    info_verdict(run, true);
    cli_report_end(&run->report);
    kr_tensor_file_close(weights);
    kr_model_config_destroy(config);
    return run->reasons.count ? CLI_FAILED : CLI_OK;
}

/* ---- tokenizers ---- */

enum { MOST_SPECIAL_SHOWN = 8 };

static void special_token(cli_report *r, const kr_tokenizer *tok, int32_t id)
{
    char key[16], word[200];
    size_t bytes = 0;
    const char *text = kr_tokenizer_token(tok, id, &bytes);
    snprintf(key, sizeof key, "%d", (int)id);
    snprintf(word, sizeof word, "%.*s", (int)(bytes < sizeof word ? bytes : sizeof word - 1), text ? text : "");
    if (!r->is_json) {
        cli_report_string(r, key, word);
        return;
    }
    cli_report_open(r, NULL, false);
    cli_report_count(r, "id", id);
    cli_report_string(r, "text", word);
    cli_report_close(r);
}

static void special_tokens(cli_report *r, const kr_tokenizer *tok, int64_t nspecial)
{
    int64_t shown = 0;
    if (r->is_json) cli_report_open(r, "special", true);
    for (int64_t id = 0; id < kr_tokenizer_size(tok) && (r->is_json || shown < MOST_SPECIAL_SHOWN); id++) {
        if (!kr_tokenizer_is_special(tok, (int32_t)id)) continue;
        special_token(r, tok, (int32_t)id);
        shown++;
    }
    if (nspecial > shown) cli_report_line(r, "and %lld more", (long long)(nspecial - shown));
    if (r->is_json) cli_report_close(r);
}

int64_t info_tokenizer(info_run *run, const char *path)
{
    cli_report *r = &run->report;
    kr_tokenizer *tok = kr_tokenizer_load(run->ctx, path);
    int64_t count = kr_tokenizer_size(tok), nspecial = 0;
    for (int64_t id = 0; id < count; id++) nspecial += kr_tokenizer_is_special(tok, (int32_t)id);
    if (tok && !r->is_json)
        cli_report_text(r, "tokenizer", "byte-level BPE, %lld tokens, %lld special", (long long)count,
                        (long long)nspecial);
    else if (!r->is_json) cli_report_text(r, "tokenizer", "cannot be used: %s", kr_ctx_message(run->ctx));
    cli_report_open(r, r->is_json ? "tokenizer" : NULL, false);
    if (tok && r->is_json) {
        cli_report_text(r, "kind", "byte-level BPE");
        cli_report_count(r, "size", count);
    } else if (r->is_json) {
        cli_report_text(r, "error", "%s", kr_ctx_message(run->ctx));
    }
    if (tok) special_tokens(r, tok, nspecial);
    cli_report_close(r);
    kr_ctx_clear(run->ctx);
    if (!tok) count = -1;
    kr_tokenizer_destroy(tok);
    return count;
}

/* ---- tensors ---- */

static void metadata(cli_report *r, const kr_tensor_file *file)
{
    const char *key, *value;
    if (kr_tensor_file_metadata_at(file, 0, &key, &value) != KR_OK) return;
    cli_report_open(r, "metadata", false);
    for (int64_t i = 0; kr_tensor_file_metadata_at(file, i, &key, &value) == KR_OK; i++) {
        if (r->is_json) cli_report_string(r, key, value);
        else cli_report_line(r, "%.60s: %.100s%s", key, value, strlen(value) > 100 ? " ..." : "");
    }
    cli_report_close(r);
}

/* Files of kr_state_save and kr_generation_save say so in their metadata. */
static const char *kind_of(const kr_tensor_file *file)
{
    const char *format = file ? kr_tensor_file_metadata(file, "format") : NULL;
    if (!format || strncmp(format, "krait.", 6) != 0) return "weights";
    return !strcmp(format, "krait.state") ? "state" : !strcmp(format, "krait.generation") ? "generation" : format;
}

static int file_of_tensors(info_run *run)
{
    const char *path = run->values->path;
    kr_tensor_file *weights = kr_tensor_file_open(run->ctx, path);
    if (!weights) {
        const kr_status status = kr_ctx_status(run->ctx);
        cli_complain(status == KR_ERR_FORMAT ? file_remedy : NULL, "%s", kr_ctx_message(run->ctx));
        return CLI_FAILED;
    }
    kr_tensor_file *file = NULL;
    if (kr_tensor_file_container(weights) == KR_CONTAINER_SAFETENSORS && kr_tensor_file_shards(weights) == 1)
        file = kr_tensor_file_open(run->ctx, kr_tensor_file_shard_path(weights, 0));
    info_take_error(run);
    cli_report_begin(&run->report, run->values->is_json);
    cli_report_string(&run->report, "file", path);
    cli_report_text(&run->report, "kind", "%s", kind_of(file));
    if (file) metadata(&run->report, file);
    if (!cli_report_tensors(&run->report, weights, run->values->shows_all))
        info_note(&run->reasons, "no memory for the table of tensors");
    info_verdict(run, false);
    cli_report_end(&run->report);
    kr_tensor_file_close(file);
    kr_tensor_file_close(weights);
    return run->reasons.count ? CLI_FAILED : CLI_OK;
}

/* ---- JSON ---- */

static int file_of_config(info_run *run)
{
    kr_model_config *config = kr_model_config_load(run->ctx, run->values->path);
    info_take_error(run);
    cli_report_begin(&run->report, run->values->is_json);
    cli_report_string(&run->report, "file", run->values->path);
    cli_report_text(&run->report, "kind", "config");
    if (config) info_config(run, config);
    info_verdict(run, true);
    cli_report_end(&run->report);
    kr_model_config_destroy(config);
    return run->reasons.count ? CLI_FAILED : CLI_OK;
}

static int file_of_tokenizer(info_run *run)
{
    cli_report_begin(&run->report, run->values->is_json);
    cli_report_string(&run->report, "file", run->values->path);
    cli_report_text(&run->report, "kind", "tokenizer");
    const bool ok = info_tokenizer(run, run->values->path) >= 0;
    info_verdict(run, false);
    cli_report_end(&run->report);
    return ok ? CLI_OK : CLI_FAILED;
}

/* The kind of a JSON file is recognised by its characteristic keys. */
static int file_of_json(info_run *run)
{
    size_t bytes = 0;
    char *text = cli_read_file(run->values->path, MOST_JSON_BYTES, &bytes);
    if (!text) return CLI_FAILED;
    kr_json_options json_options;
    kr_json_options_init(&json_options);
    json_options.allow_nonfinite = true;
    kr_json *root = kr_json_parse(run->ctx, text, bytes, &json_options);
    free(text);
    if (!root) {
        cli_complain(NULL, "%s: %s", run->values->path, kr_ctx_message(run->ctx));
        return CLI_FAILED;
    }
    const bool is_index = kr_json_find(root, "weight_map") != NULL;
    const bool is_tokenizer = kr_json_find(kr_json_find(root, "model"), "vocab") != NULL;
    const bool is_config = kr_json_find(root, "d_model") || kr_json_find(root, "model_type") ||
                           kr_json_find(root, "ssm_cfg") || kr_json_find(root, "hidden_size");
    kr_json_destroy(root);
    if (is_index) return file_of_tensors(run);
    if (is_tokenizer) return file_of_tokenizer(run);
    if (is_config) return file_of_config(run);
    cli_complain(file_remedy, "%s: JSON, but neither a config nor a tokenizer nor an index of shards",
                 run->values->path);
    return CLI_FAILED;
}

int info_file(info_run *run)
{
    const char *path = run->values->path;
    const size_t length = strlen(path);
    if (!cli_exists(path)) {
        cli_complain(cli_model_remedy, "cannot open %s: no such file or directory", path);
        return CLI_FAILED;
    }
    return length > 5 && !strcmp(path + length - 5, ".json") ? file_of_json(run) : file_of_tensors(run);
}
