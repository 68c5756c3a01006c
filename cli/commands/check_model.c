/* check_model.c - krait check --model: loads a model, says what it is, and has it checked. */
#include "cli/commands/check_model.h"

#include "cli/common/cli_machine.h"
#include "cli/common/cli_options.h"

#include <krait/weights.h>

#include <stdio.h>
#include <string.h>

kr_model *check_model_load(const check_model_options *options, kr_ctx *ctx)
{
    kr_load_options load;
    kr_load_options_init(&load);
    load.dtype = options->dtype;
    kr_model *model = kr_model_load(ctx, options->model, &load);
    return check_complain_of(ctx) ? NULL : model;
}

/* The type that most elements of the files are of. */
static kr_dtype stored_dtype(kr_ctx *ctx, const char *folder)
{
    int64_t elements[KR_DTYPE_I64 + 1] = { 0 };
    kr_dtype most = KR_DTYPE_F32;
    kr_weights *weights = kr_weights_open(ctx, folder);
    for (int64_t i = 0; i < kr_weights_count(weights); i++) {
        const kr_weights_item *item = kr_weights_at(weights, i);
        if (item->is_readable && (unsigned)item->dtype <= KR_DTYPE_I64) elements[item->dtype] += item->count;
    }
    for (int dtype = 0; dtype <= KR_DTYPE_I64; dtype++)
        if (elements[dtype] > elements[most]) most = (kr_dtype)dtype;
    kr_weights_close(weights);
    return most;
}

static void describe(const check_model_options *o, kr_ctx *ctx, const kr_model *model)
{
    const kr_network *net = kr_model_network(model);
    const kr_model_config *config = kr_model_config_of(model);
    const kr_dtype stored = stored_dtype(ctx, o->model);
    printf("%s: %s, %s layout, %lld layers, %.4g M parameters in %s; computed with weights in %s, %s\n", o->model,
           kr_family_name(config->family), kr_layout_name(config->layout),
           (long long)kr_layers_virtual(kr_network_layers(net)),
           (double)kr_params_elements(kr_network_params(net)) / 1e6, kr_dtype_name(stored), kr_dtype_name(o->dtype),
           cli_machine_text(ctx).text);
    if (o->against && (stored == KR_DTYPE_BF16 || stored == KR_DTYPE_F16) && o->dtype != stored)
        printf("note  what was recorded by a program that computes in %s is further away; see --tolerance\n",
               kr_dtype_name(stored));
}

int check_model(const check_model_options *options)
{
    const cli_machine machine = { .threads = options->threads, .isa = options->isa, .device = options->device };
    kr_ctx *ctx = cli_open(&machine, options->seed);
    int status = CLI_FAILED;
    kr_model *model = check_complain_of(ctx) ? NULL : check_model_load(options, ctx);
    if (model) describe(options, ctx, model);
    if (model && kr_model_config_of(model)->network->vocab_size < 1) {
        cli_complain(NULL, "check: %s: it is not a language model", options->model);
    } else if (model && !check_complain_of(ctx)) {
        status = options->against ? check_against(options, ctx, model) : check_model_laws(options, ctx, model);
    }
    kr_model_destroy(model);
    kr_ctx_destroy(ctx);
    return status;
}
