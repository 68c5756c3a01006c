/* layers_create.c - the config of a stack, its checks, and its parameters. */
#include "nn/block_config.h"

#include "base/sized.h"
#include "nn/layers_impl.h"

#include <stdio.h>
#include <string.h>

#define OP "layers.create"

KR_DEFAULTS(kr_layers_config) = { .size = sizeof(kr_layers_config),
                                  .norm_eps = 1e-5,
                                  .mlp_multiple_of = 128,
                                  .residual_in_f32 = true,
                                  .grad_horizon = KR_NO_HORIZON };

/* ---- checks ---- */

static bool check_schedule(kr_ctx *ctx, const kr_layers_config *c, int64_t nvirtual)
{
    if (!kr_require(ctx, c->schedule >= KR_SCHEDULE_CYCLIC && c->schedule <= KR_SCHEDULE_CUSTOM, KR_ERR_ARG,
                    OP ": schedule = %d is not one of cyclic, stretched, custom", (int)c->schedule))
        return false;
    if (c->schedule != KR_SCHEDULE_CUSTOM) return true;
    if (!kr_require(ctx, c->custom_schedule != NULL, KR_ERR_ARG,
                    OP ": custom_schedule is NULL, but the schedule is custom; give n_virtual numbers"))
        return false;
    for (int64_t v = 0; v < nvirtual; v++)
        if (!kr_require(ctx, c->custom_schedule[v] >= 0 && c->custom_schedule[v] < c->n_layers, KR_ERR_ARG,
                        OP ": custom_schedule[%lld] = %lld, but must be from 0 to %lld: a set of weights", (long long)v,
                        (long long)c->custom_schedule[v], (long long)c->n_layers - 1))
            return false;
    return true;
}

static bool check_class_tokens(kr_ctx *ctx, const kr_layers_config *c)
{
    const int count = c->n_layer_latents;
    if (!kr_class_tokens_check(ctx, OP, "latents", c->latents, c->n_latents) ||
        !kr_require(ctx, count >= 0, KR_ERR_ARG, OP ": n_layer_latents = %d, but must not be negative", count) ||
        !kr_require(ctx, count == 0 || c->layer_latents, KR_ERR_ARG,
                    OP ": n_layer_latents = %d, but layer_latents is NULL", count))
        return false;
    for (int i = 0; i < count; i++) {
        const kr_layer_class_token *m = &c->layer_latents[i];
        char field[64];
        snprintf(field, sizeof field, "layer_latents[%d].token", i);
        if (!kr_require(ctx, m->layer >= 0 && m->layer < c->n_layers, KR_ERR_ARG,
                        OP ": layer_latents[%d].layer = %lld, but must be from 0 to %lld: a set of weights", i,
                        (long long)m->layer, (long long)c->n_layers - 1) ||
            !kr_class_token_check(ctx, OP, field, &m->token))
            return false;
    }
    return true;
}

static bool check_config(kr_ctx *ctx, const kr_layers_config *c, int64_t nvirtual)
{
    return kr_block_config_check(ctx, OP, &c->block) && kr_config_at_least(ctx, OP, "n_layers", c->n_layers, 1) &&
           kr_config_at_least(ctx, OP, "n_virtual", c->n_virtual, 0) && check_schedule(ctx, c, nvirtual) &&
           kr_config_positive(ctx, OP, "norm_eps", c->norm_eps) &&
           kr_config_at_least(ctx, OP, "d_intermediate", c->d_intermediate, 0) &&
           kr_config_at_least(ctx, OP, "mlp_multiple_of", c->mlp_multiple_of, 1) &&
           kr_residual_check(ctx, OP, &c->residual) &&
           kr_require(ctx, c->residual.kind != KR_RESIDUAL_MULTI_GATE || c->residual.n_stream <= KR_STREAMS_MAX,
                      KR_ERR_ARG, OP ": residual.n_stream = %lld, but must be at most %d",
                      (long long)c->residual.n_stream, KR_STREAMS_MAX) &&
           kr_config_at_least(ctx, OP, "grad_horizon", c->grad_horizon, KR_NO_HORIZON) &&
           kr_require(ctx, c->recompute >= KR_RECOMPUTE_NONE && c->recompute <= KR_RECOMPUTE_BUDGET, KR_ERR_ARG,
                      OP ": recompute = %d is not one of none, all, budget", (int)c->recompute) &&
           kr_require(ctx, c->recompute != KR_RECOMPUTE_BUDGET || c->recompute_budget > 0, KR_ERR_ARG,
                      OP ": recompute_budget = 0, but recompute asks for a budget in bytes") &&
           check_class_tokens(ctx, c);
}

/* ---- arrays ---- */

static void *copy_of(kr_arena *arena, const void *list, size_t bytes)
{
    void *copy = kr_arena_alloc(arena, bytes ? bytes : 1);
    if (copy && bytes) memcpy(copy, list, bytes);
    return copy;
}

static void *zeroed(kr_arena *arena, size_t bytes)
{
    void *p = kr_arena_alloc(arena, bytes);
    return p ? memset(p, 0, bytes) : NULL;
}

/* The class tokens of one set of weights, out of the list of all. */
static bool copy_layer_class_tokens(kr_layers *s, int64_t layer)
{
    const kr_layers_config *c = &s->config;
    kr_layer_weights *l = &s->layers[layer];
    l->latents = kr_arena_alloc(&s->arena, (size_t)(c->n_layer_latents + 1) * sizeof *l->latents);
    if (!l->latents) return false;
    for (int i = 0; i < c->n_layer_latents; i++)
        if (c->layer_latents[i].layer == layer) l->latents[l->nlatents++] = c->layer_latents[i].token;
    return true;
}

static bool allocate(kr_layers *s)
{
    kr_layers_config *c = &s->config;
    const size_t nlayers = (size_t)c->n_layers, nvirtual = (size_t)s->nvirtual;
    const size_t ngates = c->residual.kind != KR_RESIDUAL_MULTI_GATE ? 0
                          : c->residual.per_virtual_layer            ? nvirtual
                                                                     : nlayers;
    s->real = kr_arena_alloc(&s->arena, nvirtual * sizeof *s->real);
    s->layers = zeroed(&s->arena, nlayers * sizeof *s->layers);
    s->measured = zeroed(&s->arena, sizeof *s->measured);
    if (s->measured) atomic_flag_clear(&s->measured->is_busy);
    if (ngates) s->gates = zeroed(&s->arena, ngates * sizeof *s->gates);
    c->latents = copy_of(&s->arena, c->latents, (size_t)c->n_latents * sizeof *c->latents);
    if (!s->real || !s->layers || !s->measured || !c->latents || (ngates && !s->gates)) return false;
    for (int64_t l = 0; l < c->n_layers; l++)
        if (!copy_layer_class_tokens(s, l)) return false;
    for (int64_t v = 0; v < s->nvirtual; v++)
        s->real[v] = kr_schedule_at(c->schedule, c->custom_schedule, v, s->nvirtual, c->n_layers);
    c->layer_latents = NULL;
    c->custom_schedule = NULL;
    return true;
}

static void note_class_tokens(kr_layers *s, const kr_class_token *class_tokens, int count)
{
    for (int i = 0; i < count; i++) {
        s->has_class_tokens = true;
        s->has_length_class_tokens |=
            class_tokens[i].kind == KR_CLASS_TOKEN_MIDDLE || class_tokens[i].kind == KR_CLASS_TOKEN_END;
    }
}

/* ---- parameters ---- */

static kr_tensor *declare_latents(kr_params *params, kr_dtype dtype, int count, int64_t nd)
{
    if (count == 0) return NULL;
    return kr_params_add(params, &(kr_param_spec){ .name = "latents",
                                                   .axes = "n d",
                                                   .dtype = dtype,
                                                   .shape = KR_SHAPE(count, nd),
                                                   .init = { KR_INIT_NORMAL, 0, 0.02, 0 },
                                                   .has_decay = true });
}

static bool declare_layer(kr_layers *s, kr_params *params, int64_t i, bool is_single)
{
    const kr_layers_config *c = &s->config;
    kr_layer_weights *l = &s->layers[i];
    const size_t outer =
        is_single ? kr_params_enter(params, "%s", "") : kr_params_enter(params, "layers.%lld.", (long long)i);
    const size_t inner = kr_params_enter(params, "mixer.");
    l->block = kr_block_declare(s->ctx, s->kind, params, c->block.config);
    kr_params_leave(params, inner);
    if (!l->block) return kr_blame(s->ctx, OP);
    const int64_t nd = kr_block_d_model(l->block);
    const kr_dtype dtype = kr_block_dtype(l->block), small = kr_config_small_dtype(dtype);
    l->norm_d = kr_params_add_vector(params, "norm.weight", "d", small, nd, kr_init_fill(1));
    if (c->d_intermediate) {
        l->norm2_d = kr_params_add_vector(params, "norm2.weight", "d", small, nd, kr_init_fill(1));
        kr_mlp_declare(&l->mlp, params, dtype, nd, kr_mlp_hidden(c->d_intermediate, c->mlp_multiple_of),
                       c->has_mlp_bias);
    }
    l->latents_nd = declare_latents(params, dtype, l->nlatents, nd);
    note_class_tokens(s, l->latents, l->nlatents);
    kr_params_leave(params, outer);
    return !kr_ctx_failed(s->ctx);
}

static bool declare(kr_layers *s, kr_params *params, bool is_single)
{
    const kr_layers_config *c = &s->config;
    s->params = params;
    for (int64_t i = 0; i < c->n_layers; i++)
        if (!declare_layer(s, params, i, is_single)) return false;
    const void *first = s->layers[0].block;
    const kr_dtype dtype = kr_block_dtype(first);
    s->nd = kr_block_d_model(first);
    const int64_t ngates = c->residual.per_virtual_layer ? s->nvirtual : c->n_layers;
    for (int64_t i = 0; s->gates && i < ngates; i++) {
        const size_t outer = kr_params_enter(params, "gates.%lld.", (long long)i);
        kr_multi_gate_declare(&s->gates[i], params, kr_config_small_dtype(dtype), s->nd, c->norm_eps, &c->residual);
        kr_params_leave(params, outer);
    }
    s->latents_nd = declare_latents(params, dtype, c->n_latents, s->nd);
    note_class_tokens(s, c->latents, c->n_latents);
    return !kr_ctx_failed(s->ctx);
}

kr_layers *kr_layers_declare(kr_ctx *ctx, kr_params *params, const kr_layers_config *config, bool is_single)
{
    kr_layers_config own;
    if (kr_ctx_failed(ctx) || !kr_config_given(ctx, OP, config) || !KR_TAKE(ctx, OP, kr_layers_config, config, &own))
        return NULL;
    const int64_t nvirtual = own.n_virtual ? own.n_virtual : own.n_layers;
    if (!check_config(ctx, &own, nvirtual)) return NULL;
    kr_layers *s = kr_memory_alloc_zeroed(&ctx->memory, sizeof *s);
    if (!s) {
        kr_fail(ctx, KR_ERR_NOMEM, OP ": no memory for a stack");
        return NULL;
    }
    s->ctx = ctx;
    s->config = own;
    s->kind = kr_block_kind_of(own.block.family);
    s->nvirtual = nvirtual;
    kr_norm_options_init(&s->norm);
    s->norm.eps = own.norm_eps;
    kr_arena_init(&s->arena, &ctx->memory, 4096);
    if (!allocate(s)) kr_fail(ctx, KR_ERR_NOMEM, OP ": no memory for %lld layers", (long long)nvirtual);
    else if (declare(s, params, is_single)) return s;
    kr_layers_free(s);
    return NULL;
}

void kr_layers_free(kr_layers *s)
{
    for (int64_t i = 0; s->layers && i < s->config.n_layers; i++)
        if (s->layers[i].block) kr_block_free(s->layers[i].block);
    kr_arena_deinit(&s->arena);
    kr_memory_free(&s->ctx->memory, s, sizeof *s);
}

kr_layers *kr_layers_create(kr_ctx *ctx, const kr_layers_config *config)
{
    kr_params *params = kr_params_create(ctx);
    kr_layers *s = params ? kr_layers_declare(ctx, params, config, false) : NULL;
    if (s && kr_params_seal(params)) {
        s->owns_params = true;
        return s;
    }
    if (s) kr_layers_free(s);
    kr_params_destroy(params);
    return NULL;
}

void kr_layers_destroy(kr_layers *s)
{
    if (!s) return;
    if (s->owns_params) kr_params_destroy(s->params);
    kr_layers_free(s);
}

kr_layers_info kr_layers_info_of(const kr_layers *s)
{
    if (!s) return (kr_layers_info){ .params = NULL };
    return (kr_layers_info){
        .params = s->params, .n_virtual = s->nvirtual, .d_model = s->nd, .grid = kr_layers_grid_of(s)
    };
}
