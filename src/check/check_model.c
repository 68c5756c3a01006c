/* check_model.c - loads a model, describes it, and runs its checks. */
#include "check/check_model.h"

#include "base/ctx_impl.h"

#include <krait/tensor_file.h>

#include <stdio.h>
#include <string.h>

kr_model *check_model_load(const check_tally *tally, kr_ctx *ctx)
{
    kr_load_options load;
    kr_load_options_init(&load);
    load.dtype = tally->options->dtype;
    return kr_model_load(ctx, tally->options->model, &load);
}

/* The type that most elements of the files are of. */
static kr_dtype stored_dtype(kr_ctx *ctx, const char *folder)
{
    int64_t elements[KR_DTYPE_I64 + 1] = { 0 };
    kr_dtype most = KR_DTYPE_F32;
    kr_tensor_file *weights = kr_tensor_file_open(ctx, folder);
    for (int64_t i = 0; i < kr_tensor_file_count(weights); i++) {
        const kr_tensor_file_item *item = kr_tensor_file_at(weights, i);
        if (item->is_readable && (unsigned)item->dtype <= KR_DTYPE_I64) elements[item->dtype] += item->count;
    }
    for (int dtype = 0; dtype <= KR_DTYPE_I64; dtype++)
        if (elements[dtype] > elements[most]) most = (kr_dtype)dtype;
    kr_tensor_file_close(weights);
    return most;
}

static void describe(check_tally *t, kr_ctx *ctx, const kr_model *model)
{
    const kr_check_options *o = t->options;
    const kr_network *net = kr_model_network(model);
    const kr_model_config *config = kr_model_config_of(model);
    const kr_dtype stored = stored_dtype(ctx, o->model);
    char machine[160], text[1024];
    if (check_on_device(ctx)) snprintf(machine, sizeof machine, "%.150s", kr_ctx_device(ctx));
    else snprintf(machine, sizeof machine, "%s, threads %d", kr_ctx_isa(ctx), kr_ctx_threads(ctx));
    snprintf(text, sizeof text,
             "%.600s: %s, %s layout, %lld layers, %.4g M parameters in %s; computed with weights in %s, %s", o->model,
             kr_family_name(config->family), kr_layout_name(config->layout),
             (long long)kr_layers_virtual(kr_network_layers(net)),
             (double)kr_params_elements(kr_network_params(net)) / 1e6, kr_dtype_name(stored), kr_dtype_name(o->dtype),
             machine);
    check_print(t, KR_CHECK_HEADING, NULL, text);
    if (!o->against || (stored != KR_DTYPE_BF16 && stored != KR_DTYPE_F16) || o->dtype == stored) return;
    snprintf(text, sizeof text, "results recorded in %s need a larger tolerance; see --tolerance",
             kr_dtype_name(stored));
    check_print(t, KR_CHECK_NOTE, NULL, text);
}

bool check_model(check_tally *t)
{
    const kr_check_options *o = t->options;
    const int threads = o->threads || o->against ? o->threads : check_threads_to_try(t);
    if (kr_ctx_failed(t->ctx)) return false;
    kr_ctx *ctx = check_open(&(check_setup){ o->isa, threads, o->dtype, o->seed, o->device, t, true });
    kr_model *model = kr_ctx_failed(ctx) ? NULL : check_model_load(t, ctx);
    if (model) describe(t, ctx, model);
    bool ok = model && !kr_ctx_failed(ctx) &&
              kr_require(ctx, kr_model_config_of(model)->network->vocab_size > 0, KR_ERR_UNSUPPORTED,
                         "%s is not a language model", o->model);
    ok = ok && (o->against ? check_against(t, ctx, model) : check_model_invariants(t, ctx, model));
    if (kr_ctx_failed(ctx)) check_give_up(t, ctx);
    kr_model_destroy(model);
    kr_ctx_destroy(ctx);
    return ok;
}
