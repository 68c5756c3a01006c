/* language.c - opens a text model for a command, and words its errors for the command line. */
#include "cli/common/language.h"

#include "cli/common/cli_files.h"

#include <krait/params.h>

#include <stdio.h>
#include <string.h>

/* ---- recognising the tokenizer ---- */

/* Of most of the weights. */
static kr_dtype weight_dtype(const kr_params *params)
{
    const kr_tensor *largest = NULL;
    for (int64_t i = 0; i < kr_params_count(params); i++) {
        const kr_tensor *weight = kr_params_at(params, i)->tensor;
        if (kr_tensor_count(weight) > kr_tensor_count(largest)) largest = weight;
    }
    return kr_tensor_dtype(largest);
}

const char *cli_language_text(const cli_language *language, char *text, size_t bytes)
{
    const kr_model_config *config = kr_model_config_of(language->model);
    const kr_params *params = kr_network_params(language->net);
    snprintf(text, bytes, "%s, %lld layers of width %lld, %.2f M parameters, %s", kr_family_name(config->family),
             (long long)config->layers->n_layers, (long long)kr_model_config_d_model(config),
             (double)kr_params_elements(params) / 1e6, kr_dtype_name(weight_dtype(params)));
    return text;
}

/* ---- opening ---- */

/* The library ends a message about a tokenizer with the remedy, after "; ". */
static bool complain(kr_ctx *ctx, const char *folder)
{
    char path[CLI_PATH_BYTES], remedy[400];
    const char *message = kr_ctx_message(ctx), *end = strstr(message, "; ");
    const bool has_config = cli_join(path, folder, "config.json") && cli_exists(path);
    if (!has_config) cli_complain(cli_model_remedy, "%s", message);
    else if (!end || !strstr(message, "token")) cli_complain(NULL, "%s", message);
    else {
        snprintf(remedy, sizeof remedy, "%s (see --tokenizer)", end + 2);
        cli_complain(remedy, "%.*s", (int)(end - message), message);
    }
    return false;
}

bool cli_language_open(kr_ctx *ctx, const cli_language_values *values, bool needs_tokenizer, cli_language *language)
{
    static const kr_dtype dtypes[] = { KR_DTYPE_AS_STORED, KR_DTYPE_F32, KR_DTYPE_BF16, KR_DTYPE_F16 };
    kr_load_options load;
    kr_text_model_options options = { 0 };
    kr_load_options_init(&load);
    load.dtype = dtypes[values->dtype];
    load.no_mmap = values->no_mmap;
    options.tokenizer = values->tokenizer;
    options.skip_tokenizer = !needs_tokenizer;
    options.load = &load;
    *language = (cli_language){ .lm = kr_text_model_open(ctx, values->folder, &options), .start = -1 };
    if (!language->lm) return complain(ctx, values->folder);
    language->model = kr_text_model_model(language->lm);
    language->net = kr_model_network(language->model);
    language->tok = kr_text_model_tokenizer(language->lm);
    language->vocab = kr_model_config_of(language->model)->network->vocab_size;
    language->begin = kr_text_model_bos(language->lm, &language->n_begin);
    language->eos = kr_text_model_eos(language->lm, &language->n_eos);
    language->start = kr_text_model_start(language->lm);
    return true;
}

void cli_language_close(cli_language *language)
{
    kr_text_model_destroy(language->lm);
    *language = (cli_language){ .start = -1 };
}
