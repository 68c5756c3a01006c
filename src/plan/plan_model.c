/* plan_model.c - a config as stages of a step: operations, parameters and when their gradients are complete, bytes of
 * activations. The parameter table is declared without memory.
 */
#include "plan/train_plan_impl.h"

#include "model/model_impl.h"
#include "plan/block_flops.h"

#include <stdio.h>
#include <string.h>

/* ---- operations ---- */

/* Of a registered family only the matrices are known: each element multiplies and adds once for each token. */
static double registered_flops(const kr_params *params)
{
    double flops = 0;
    for (int64_t i = 0; i < kr_params_count(params); i++) {
        const kr_param_row *row = kr_params_at(params, i);
        if (strncmp(row->name, "backbone.layers.0.mixer.", 24) == 0 && kr_tensor_rank(row->tensor) >= 2)
            flops += 2 * (double)kr_tensor_count(row->tensor);
    }
    return flops;
}

/* The forward pass of a block, a token, in rows of `length` tokens with the chunk length that the block uses. */
static double mixer_flops(const kr_network *net, kr_model_values *own, int64_t length)
{
    const kr_block_kind *kind = net->layers->kind;
    const kr_ssd_path path = kind->path(net->layers->layers[0].block);
    const double tokens = (double)length;
    own->mamba2.path = own->mamba3.path = path;
    switch (own->family) {
    case KR_FAMILY_MAMBA1: return kr_mamba1_flops(&own->mamba1, 1, length) / tokens;
    case KR_FAMILY_MAMBA2: return kr_mamba2_flops(&own->mamba2, 1, length) / tokens;
    case KR_FAMILY_MAMBA3: return kr_mamba3_flops(&own->mamba3, 1, length) / tokens;
    default: return registered_flops(net->params);
    }
}

/* fc1 2 d 2v, fc2 2 v d */
static double mlp_flops(const kr_layers *layers)
{
    const kr_layers_config *c = &layers->config;
    return c->d_intermediate ? 6.0 * (double)layers->nd * (double)kr_mlp_hidden(c->d_intermediate, c->mlp_multiple_of)
                             : 0;
}

/* ---- stages ---- */

/* Of each set of weights: its first use is the last in the backward pass. */
static int64_t *find_stages(kr_plan_model *m, const kr_layers *layers)
{
    int64_t *stages = kr_arena_alloc(&m->arena, (size_t)(layers->config.n_layers + 1) * sizeof *stages);
    for (int64_t i = 0; stages && i < layers->config.n_layers; i++) stages[i] = layers->nvirtual + 1; /* never used */
    for (int64_t v = layers->nvirtual - 1; stages && v >= 0; v--) stages[layers->real[v]] = layers->nvirtual - v;
    return stages;
}

static bool is_of_head(const char *name)
{
    return strcmp(name, "backbone.norm_f.weight") == 0 || strncmp(name, "lm_head.", 8) == 0 ||
           strncmp(name, "out_proj.", 9) == 0;
}

static int64_t stage_of(const kr_layers *layers, const int64_t *stages, const char *name)
{
    long long i;
    if (sscanf(name, "backbone.layers.%lld.", &i) == 1) return stages[i];
    if (sscanf(name, "backbone.gates.%lld.", &i) == 1)
        return layers->config.residual.per_virtual_layer ? layers->nvirtual - i : stages[i];
    return is_of_head(name) ? 0 : layers->nvirtual + 1;
}

static bool read_rows(kr_ctx *ctx, const char *op, const kr_network *net, kr_plan_model *m)
{
    const int64_t count = kr_params_count(net->params);
    const int64_t *stages = find_stages(m, net->layers);
    m->rows = kr_arena_alloc(&m->arena, (size_t)(count + 1) * sizeof *m->rows);
    if (!kr_require(ctx, m->rows && stages, KR_ERR_NOMEM, "%s: no memory for a list of %lld parameters", op,
                    (long long)count))
        return false;
    for (int64_t i = count - 1; i >= 0; i--) {
        const kr_param_row *row = kr_params_at(net->params, i);
        const double elements = (double)kr_tensor_count(row->tensor);
        const double bytes = elements * (double)kr_dtype_bytes(kr_tensor_dtype(row->tensor));
        m->rows[m->n_rows++] = (kr_plan_row){ .elements = elements,
                                              .bytes = bytes,
                                              .stage = stage_of(net->layers, stages, row->name),
                                              .is_table = row->tensor == net->embedding_wd && !net->head_wd };
        m->elements += elements;
        m->weight_bytes += bytes;
        if (kr_dtype_bytes(kr_tensor_dtype(row->tensor)) < 4) m->short_elements += elements;
    }
    return true;
}

/* ---- the whole ---- */

bool kr_plan_read_model(kr_ctx *ctx, const char *op, const kr_model_config *config, int64_t length, kr_plan_model *m)
{
    kr_model_values own;
    kr_model_size size;
    if (kr_model_measure(ctx, config, &size) != KR_OK || !kr_model_take_config(ctx, op, &own, config))
        return kr_blame(ctx, "%s", op);
    kr_network *net = kr_model_declare(ctx, &own, kr_config_dtype_of(&own));
    if (!net) return kr_blame(ctx, "%s", op);
    const double nd = (double)net->layers->nd;
    const kr_residual *residual = &net->layers->config.residual;
    const double streams = residual->kind == KR_RESIDUAL_MULTI_GATE ? (double)residual->n_stream : 0;
    m->n_virtual = net->layers->nvirtual;
    m->layer_flops = mixer_flops(net, &own, length) + mlp_flops(net->layers);
    m->head_flops = 2 * nd * (double)net->nw;
    m->input_flops = net->is_vocab ? 0 : 2 * nd * (double)net->config.input_size;
    m->layer_bytes = (double)size.prefill_bytes;
    m->stream_bytes = (1 + streams) * nd * 4;
    m->n_outputs = (double)net->nw;
    m->n_inputs = net->is_vocab ? (double)net->nw : 0;
    const bool ok = read_rows(ctx, op, net, m);
    kr_network_destroy(net);
    return ok;
}
