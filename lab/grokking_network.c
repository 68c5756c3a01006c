/* grokking_network.c - the network for modular addition, and the set of all sums. */
#include "lab/grokking.h"
#include "lab/tasks.h"

#include "cli/common/floats.h"

#include <math.h>
#include <stdio.h>

static void set_config(const grok_values *v, kr_model_config *config)
{
    config->family = KR_FAMILY_MAMBA2;
    kr_model_config_set_d_model(config, v->d_model);
    config->mamba2->expand = v->expand;
    config->mamba2->per_head_dim = v->expand * v->d_model; /* one head */
    config->mamba2->state_rank = v->state_rank;
    config->mamba2->conv_kernel = 1; /* symbols interact in the state only */
    config->layers->n_layers = v->n_layers;
    config->network->vocab_size = v->p;
    config->network->pad_vocab_size_multiple = 1;
    config->network->tie_embeddings = false;
}

static float scaled(const void *user, int64_t at, float value)
{
    (void)at;
    return (float)(*(const double *)user * (double)value);
}

static void scale_param(kr_tensor *param, double factor)
{
    cli_change_floats(param, scaled, &factor);
}

/* The reference's initialisation where it differs from that of language models, and config.json has no key for it: a
 * wide embedding, and projections that do not shrink with depth. */
static void scale_weights(const grok *g)
{
    scale_param(g->matrices[0].weight, g->v->embedding_std / kr_model_config_of(g->model)->network->embedding_std);
    for (int i = 0; i < g->n_matrices; i++)
        if (g->matrices[i].kind == GROK_OUT) scale_param(g->matrices[i].weight, sqrt((double)g->v->n_layers));
}

static void add_matrix(grok *g, grok_matrix_kind kind, int64_t layer, kr_tensor *weight, int64_t from, int64_t rows)
{
    g->matrices[g->n_matrices++] = (grok_matrix){ kind, layer, weight, from, from + rows };
}

static kr_tensor *find(const grok *g, const char *name)
{
    return kr_params_find(kr_network_params(g->net), name)->tensor;
}

static void find_matrices(grok *g)
{
    const kr_mamba2_config *mamba = kr_model_config_of(g->model)->mamba2;
    const int64_t ni = mamba->expand * mamba->d_model, nr = mamba->state_rank;
    char name[100];
    add_matrix(g, GROK_EMBEDDING, -1, find(g, "backbone.embedding.weight"), 0, g->v->p);
    add_matrix(g, GROK_HEAD, -1, find(g, "lm_head.weight"), 0, g->v->p);
    for (int64_t layer = 0; layer < g->v->n_layers; layer++) {
        snprintf(name, sizeof name, "backbone.layers.%d.mixer.in_proj.weight", (int)layer);
        kr_tensor *in_proj = find(g, name);
        add_matrix(g, GROK_Z, layer, in_proj, 0, ni);
        add_matrix(g, GROK_X, layer, in_proj, ni, ni);
        add_matrix(g, GROK_B, layer, in_proj, 2 * ni, nr);
        add_matrix(g, GROK_C, layer, in_proj, 2 * ni + nr, nr);
        snprintf(name, sizeof name, "backbone.layers.%d.mixer.out_proj.weight", (int)layer);
        add_matrix(g, GROK_OUT, layer, find(g, name), 0, mamba->d_model);
    }
}

/* Does a loaded network match the options? */
static bool is_same_network(const kr_model_config *a, const kr_model_config *b)
{
    const kr_mamba2_config *m = a->mamba2, *n = b->mamba2;
    return a->family == b->family && m->d_model == n->d_model && m->expand == n->expand &&
           m->per_head_dim == n->per_head_dim && m->state_rank == n->state_rank && m->conv_kernel == n->conv_kernel &&
           m->n_groups == n->n_groups && a->layers->n_layers == b->layers->n_layers && !a->layers->n_virtual &&
           a->network->vocab_size == b->network->vocab_size && !a->network->tie_embeddings;
}

static bool open_network(grok *g, const char *from)
{
    kr_model_config *config = kr_model_config_create(g->ctx);
    if (config) set_config(g->v, config);
    if (config) g->model = from ? kr_model_load(g->ctx, from, NULL) : kr_model_create(g->ctx, config);
    const bool is_same = g->model && is_same_network(kr_model_config_of(g->model), config);
    kr_model_config_destroy(config);
    if (!g->model) return cli_failed(g->ctx), false;
    if (!is_same) {
        cli_complain("give the --p, --d-model, --expand, --state-rank and --n-layers of that network",
                     "task grokking: the network in %s does not match the options", from);
        return false;
    }
    g->net = kr_model_network(g->model);
    find_matrices(g);
    if (!from) scale_weights(g);
    return true;
}

static bool open_part(grok *g, kr_data_part part)
{
    lab_modular_task task = lab_modular_task_default();
    task.p = g->v->p;
    task.n_terms = g->v->k;
    task.train_fraction = g->v->train_fraction;
    task.split_seed = g->v->split_seed;
    task.part = part;
    g->sources[part] = lab_source_modular(g->ctx, &task);
    if (!g->sources[part]) return !cli_failed(g->ctx);
    const int64_t n_rows = kr_source_info_of(g->sources[part]).count / g->v->k;
    kr_loader_options options;
    kr_loader_options_init(&options);
    options.length = g->v->k;
    options.batch = n_rows;
    options.pack = false;
    options.shuffle = false; /* every batch has all rows, and they are shuffled already */
    g->loaders[part] = kr_loader_create(g->sources[part], &options);
    if (part == KR_DATA_PART_VALIDATION) {
        options.batch = n_rows < GROK_STATE_ROWS ? n_rows : GROK_STATE_ROWS;
        g->sample = kr_loader_create(g->sources[part], &options);
    }
    return !cli_failed(g->ctx);
}

bool grok_open(grok *g, kr_ctx *ctx, const grok_values *v, const char *from)
{
    *g = (grok){ .v = v, .ctx = ctx };
    return !cli_failed(ctx) && open_part(g, KR_DATA_PART_TRAIN) && open_part(g, KR_DATA_PART_VALIDATION) &&
           open_network(g, from);
}

void grok_close(grok *g)
{
    kr_loader_destroy(g->sample);
    for (int part = 0; part < 2; part++) {
        kr_loader_destroy(g->loaders[part]);
        kr_source_destroy(g->sources[part]);
    }
    kr_model_destroy(g->model);
}

kr_tensor *grok_matrix_of(kr_tape *tape, const grok_matrix *matrix)
{
    return kr_slice(tape, matrix->weight, 0, matrix->from, matrix->to);
}

const char *grok_matrix_name(grok_matrix_kind kind)
{
    static const char *const names[] = { "emb", "head", "z", "x", "b", "c", "out" };
    return names[kind];
}

kr_tensor *grok_token(kr_tape *tape, kr_tensor *ids_bs, int64_t s)
{
    return kr_reshape(tape, kr_slice(tape, ids_bs, 1, s, s + 1), KR_SHAPE(-1));
}

kr_tensor *grok_hidden(kr_tape *tape, const grok *g, kr_tensor *ids_bs)
{
    const int64_t ns = kr_tensor_dim(ids_bs, 1);
    kr_call call;
    kr_call_init(&call);
    call.skip_head = true;
    if (!g->v->is_stepwise) {
        call.drop_state = true;
        kr_tensor *hidden_bsd = kr_network_forward(tape, g->net, ids_bs, &call).hidden;
        return kr_reshape(tape, kr_slice(tape, hidden_bsd, 1, ns - 1, ns), KR_SHAPE(-1, g->v->d_model));
    }
    kr_network_out out = { 0 };
    for (int64_t s = 0; s < ns; s++) {
        call.state = out.state;
        call.drop_state = s == ns - 1;
        out = kr_network_step(tape, g->net, grok_token(tape, ids_bs, s), &call);
    }
    return out.hidden;
}
