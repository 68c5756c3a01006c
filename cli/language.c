/* language.c - opens models and tokenizers, and finds out which tokens begin and end a text. */
#include "cli/language.h"

#include "cli/files.h"
#include "cli/machine.h"

#include <krait/params.h>

#include <stdio.h>
#include <string.h>

/* ---- model ---- */

static bool open_model(kr_ctx *ctx, const cli_language_values *values, cli_language *language)
{
    static const kr_dtype dtypes[] = { KR_DTYPE_AS_STORED, KR_F32, KR_BF16, KR_F16 };
    char path[CLI_PATH_BYTES];
    kr_load_options options;
    kr_load_options_init(&options);
    options.dtype = dtypes[values->dtype];
    language->model = kr_model_load(ctx, values->folder, &options);
    if (kr_ctx_failed(ctx)) {
        const bool has_config = cli_join(path, values->folder, "config.json") && cli_exists(path);
        cli_complain(has_config ? NULL : cli_model_remedy, "%s", kr_ctx_message(ctx));
        return false;
    }
    language->net = kr_model_network(language->model);
    language->vocab = kr_model_config_of(language->model)->network.vocab_size;
    return true;
}

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
             (long long)config->layers.n_layers, (long long)kr_model_config_d_model(config),
             (double)kr_params_elements(params) / 1e6, kr_dtype_name(weight_dtype(params)));
    return text;
}

/* ---- tokenizer ---- */

/* Byte models have 256 tokens, or a few more for what begins, ends and pads a text. */
static bool is_byte_vocabulary(int64_t vocab)
{
    return vocab >= 256 && vocab <= 264;
}

static const char *where_from(const cli_language *language)
{
    const kr_family family = kr_model_config_of(language->model)->family;
    const kr_layout layout = kr_model_config_of(language->model)->layout;
    if (language->vocab >= 50254 && language->vocab <= 50304)
        return "it should be that of GPT-NeoX-20b: pass its tokenizer.json by --tokenizer FILE, or put it into the "
               "folder";
    if (language->vocab == 128256 || (family == KR_MAMBA3 && layout == KR_LAYOUT_OFFICIAL && language->vocab > 50304))
        return "it should be that of Llama-3.1: pass its tokenizer.json by --tokenizer FILE, or put it into the folder";
    return "pass the tokenizer.json that the model was trained with by --tokenizer FILE, or put it into the folder";
}

static void complain_of_no_tokenizer(const cli_language *language, const char *folder)
{
    if (!language->vocab)
        cli_complain("krait info tells what it takes and gives", "%s is a model of numbers: it has no tokens", folder);
    else if (language->vocab < 256)
        cli_complain("its tokens are no text that is known here: generate --ids takes and gives their numbers",
                     "%s has no tokenizer.json, and its %lld tokens are fewer than there are bytes", folder,
                     (long long)language->vocab);
    else
        cli_complain(where_from(language), "%s has no tokenizer.json, and its %lld tokens are not the 256 bytes",
                     folder, (long long)language->vocab);
}

static bool open_tokenizer(kr_ctx *ctx, const cli_language_values *values, cli_language *language)
{
    char path[CLI_PATH_BYTES];
    const char *name = values->tokenizer;
    if (!cli_join(path, values->folder, "tokenizer.json")) return false;
    if (!name && cli_exists(path)) name = path;
    if (!name && is_byte_vocabulary(language->vocab)) name = "bytes";
    if (!name) {
        complain_of_no_tokenizer(language, values->folder);
        return false;
    }
    language->tok = strcmp(name, "bytes") ? kr_tokenizer_load(ctx, name) : kr_tokenizer_bytes(ctx);
    if (cli_failed(ctx)) return false;
    if (kr_tokenizer_size(language->tok) > language->vocab) {
        cli_complain("they do not belong together: see --tokenizer",
                     "tokenizer %s has %lld tokens, but model %s has %lld", name,
                     (long long)kr_tokenizer_size(language->tok), values->folder, (long long)language->vocab);
        return false;
    }
    return true;
}

/* ---- special tokens ---- */

/* What stands before the ids of a text when the tokenizer's post-processor has its way. */
static bool find_begin(kr_ctx *ctx, cli_language *language)
{
    int32_t plain[16], around[16];
    kr_encode_options options;
    kr_encode_options_init(&options);
    const int64_t n_around = kr_tokenizer_encode(language->tok, "a", 1, &options, around, 16);
    options.adds_special = false;
    const int64_t n_plain = kr_tokenizer_encode(language->tok, "a", 1, &options, plain, 16);
    if (cli_failed(ctx)) return false;
    for (int64_t at = 0; at + n_plain <= n_around && n_around <= 16; at++) {
        if (memcmp(around + at, plain, (size_t)n_plain * sizeof *plain)) continue;
        language->n_begin = at < CLI_MAX_BEGIN ? (int)at : CLI_MAX_BEGIN;
        memcpy(language->begin, around, (size_t)language->n_begin * sizeof *around);
        break;
    }
    return true;
}

static void find_ends(cli_language *language)
{
    static const char *const texts[] = { "<|endoftext|>", "<|end_of_text|>", "</s>" };
    const kr_model_config *config = kr_model_config_of(language->model);
    for (int i = 0; i < config->n_eos; i++) {
        if (config->eos[i] < language->vocab) language->eos[language->n_eos++] = (int32_t)config->eos[i];
    }
    for (size_t i = 0; !config->n_eos && language->tok && i < sizeof texts / sizeof *texts; i++) {
        const int32_t id = kr_tokenizer_find(language->tok, texts[i]);
        if (id >= 0) language->eos[language->n_eos++] = id;
    }
    const bool has_bos = config->bos >= 0 && config->bos < language->vocab;
    language->start = has_bos ? (int32_t)config->bos : language->n_eos ? language->eos[0] : -1;
}

bool cli_language_open(kr_ctx *ctx, const cli_language_values *values, bool needs_tokenizer, cli_language *language)
{
    *language = (cli_language){ .start = -1 };
    bool is_open = open_model(ctx, values, language);
    if (is_open && (needs_tokenizer || values->tokenizer))
        is_open = open_tokenizer(ctx, values, language) && find_begin(ctx, language);
    if (is_open) find_ends(language);
    else cli_language_close(language);
    return is_open;
}

void cli_language_close(cli_language *language)
{
    kr_tokenizer_destroy(language->tok);
    kr_model_destroy(language->model);
    *language = (cli_language){ .start = -1 };
}
