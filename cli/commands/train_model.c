/* train_model.c - the model of krait train: new with initial weights, loaded from a folder, or from a checkpoint. */
#include "cli/commands/cmd_report.h"
#include "cli/commands/cmd_train.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- before the data ---- */

/* The tokenizer.json that is copied into the run's folder; "" for bytes, or if none is known. */
static bool find_tokenizer(train_setup *s, const char *folder)
{
    const char *name = s->values->tokenizer;
    char *path = s->tokenizer_path;
    path[0] = 0;
    if (folder && (s->checkpoint[0] || !name)) {
        if (!cli_join(path, folder, "tokenizer.json")) return false;
        if (cli_exists(path)) return true;
        path[0] = 0;
    }
    if (name && strcmp(name, "bytes") != 0) snprintf(path, CLI_PATH_BYTES, "%s", name);
    return true;
}

bool train_open_language(train_setup *s)
{
    const train_values *v = s->values;
    const char *folder = s->checkpoint[0] ? s->checkpoint : v->model_folder;
    const bool is_text = s->kind == TRAIN_TEXT || s->kind == TRAIN_JSONL;
    if (!find_tokenizer(s, folder)) return false;
    const char *tokenizer = s->tokenizer_path[0] ? s->tokenizer_path : v->tokenizer;
    if (folder) {
        const cli_language_values l = { .folder = folder,
                                        .tokenizer = tokenizer,
                                        .dtype = s->checkpoint[0] || v->model.dtype < 0 ? 0 : v->model.dtype + 1 };
        if (!cli_language_open(s->ctx, &l, is_text, &s->language)) return false;
        s->tok = s->language.tok;
        return true;
    }
    if (s->tokenizer_path[0]) s->own_tok = kr_tokenizer_load(s->ctx, s->tokenizer_path);
    else if (is_text || tokenizer) s->own_tok = kr_tokenizer_bytes(s->ctx);
    s->tok = s->own_tok;
    return !cli_failed(s->ctx);
}

/* ---- with them ---- */

static int64_t outputs_of(const kr_source_info *info)
{
    return info->n_classes ? info->n_classes : info->n_targets;
}

/* Does an existing model fit the data? */
static bool check_model(const train_setup *s)
{
    const kr_network_config *n = kr_model_config_of(s->language.model)->network;
    const kr_source_info *info = &s->info;
    const char *folder = s->checkpoint[0] ? s->checkpoint : s->values->model_folder;
    if (info->n_ids) {
        if (n->vocab_size >= info->n_ids) return true;
        if (!n->vocab_size)
            return train_refuse(s, "%s is a network over features, but %s holds tokens", folder, s->values->data);
        return train_refuse(s, "%s has %" PRId64 " tokens, but those of %s go up to %" PRId64, folder, n->vocab_size,
                            s->values->data, info->n_ids - 1);
    }
    if (n->input_size == info->n_features && n->output_size == outputs_of(info)) return true;
    return train_refuse(s, "%s makes %" PRId64 " outputs of %" PRId64 " features, but %s has %" PRId64 " for %" PRId64,
                        folder, n->output_size, n->input_size, s->values->data, outputs_of(info), info->n_features);
}

/* Options of the backward pass, which are not part of a model file. */
static void set_backward(const train_setup *s, kr_layers_config *layers)
{
    layers->grad_horizon = s->values->grad_horizon;
    if (!s->values->memory_budget) return;
    layers->recompute = KR_RECOMPUTE_BUDGET;
    layers->recompute_budget = cli_size_of(s->values->memory_budget);
}

/* The same model with the options of set_backward, which are chosen at creation. */
static kr_model *remake(const train_setup *s, const kr_model *model)
{
    kr_model_config config = *kr_model_config_of(model);
    kr_layers_config layers = *config.layers;
    set_backward(s, &layers);
    config.layers = &layers;
    kr_model *other = kr_model_create(s->ctx, &config);
    if (!other) return NULL;
    const kr_params *from = kr_network_params(kr_model_network(model)),
                    *to = kr_network_params(kr_model_network(other));
    for (int64_t i = 0; i < kr_params_count(to) && !kr_ctx_failed(s->ctx); i++) {
        const kr_tensor *x = kr_params_at(from, i)->tensor;
        kr_param_write(kr_params_at(to, i)->tensor, kr_tensor_dtype(x), kr_tensor_data(x), kr_tensor_count(x));
    }
    return other;
}

static bool make_model(train_setup *s)
{
    cli_model_values v = s->values->model;
    cli_model_shape shape;
    if (v.family < 0 && !v.config) v.family = KR_FAMILY_MAMBA3;
    if (!v.d_model && !v.config) v.d_model = 256;
    bool is_made = false;
    if (v.vocab && v.vocab < s->info.n_ids)
        train_refuse(s, "--vocab is %" PRId64 ", but the tokens of %s go up to %" PRId64, v.vocab, s->values->data,
                     s->info.n_ids - 1);
    else if (cli_model_begin(s->ctx, &v, &shape)) {
        kr_network_config *network = shape.config->network;
        network->vocab_size = s->info.n_ids;
        network->input_size = s->info.n_features;
        network->output_size = s->info.n_features ? outputs_of(&s->info) : 0;
        if (s->info.n_features) network->has_final_norm = true;
        if (cli_model_shape_set("train", &v, &shape)) {
            set_backward(s, shape.config->layers);
            s->own_model = kr_model_create(s->ctx, shape.config);
            is_made = s->own_model;
        } else {
            *s->is_refused = true;
        }
        cli_model_shape_free(&shape);
    }
    return !cli_model_failed(s->ctx, "train") && is_made;
}

bool train_open_model(train_setup *s)
{
    if (!s->language.model) {
        if (!make_model(s)) return false;
        s->model = s->own_model;
        return true;
    }
    if (!check_model(s)) return false;
    s->model = s->language.model;
    if (!s->values->memory_budget && s->values->grad_horizon == KR_NO_HORIZON) return true;
    s->model = s->own_model = remake(s, s->language.model);
    return !cli_failed(s->ctx);
}

const char *train_model_text(const train_setup *s, const cli_live *live, char *text, size_t bytes)
{
    const kr_model_config *config = kr_model_config_of(s->model);
    const kr_params *params = kr_network_params(kr_model_network(s->model));
    const char *dot = cli_dot(live);
    char ends[80], machine[160];
    if (!s->info.n_ids)
        snprintf(ends, sizeof ends, "%" PRId64 " features, %" PRId64 " %s", s->info.n_features, outputs_of(&s->info),
                 s->info.n_classes ? "classes" : "targets");
    else if (s->tok && !s->tokenizer_path[0]) snprintf(ends, sizeof ends, "byte tokens");
    else snprintf(ends, sizeof ends, "%" PRId64 " tokens", config->network->vocab_size);
    if (cli_on_device(s->ctx)) snprintf(machine, sizeof machine, "%s", kr_ctx_device(s->ctx));
    else snprintf(machine, sizeof machine, "cpu %s %s%d", kr_ctx_isa(s->ctx), cli_times(live), kr_ctx_threads(s->ctx));
    snprintf(text, bytes, "%s %s %" PRId64 " layers %s %s parameters %s %s %s %s", kr_family_name(config->family), dot,
             config->layers->n_layers, dot, cli_count_text((double)kr_params_elements(params)).text, dot, ends, dot,
             machine);
    return text;
}
