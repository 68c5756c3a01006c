/* bidi_create.c - the config of a stack in both directions, its checks, and its parameters. */
#include "nn/bidi_impl.h"

#include "base/sized.h"
#include "nn/block_config.h"

#include <string.h>

#define OP "bidi.create"

KR_DEFAULTS(kr_bidi_config) = { .size = sizeof(kr_bidi_config), .norm_eps = 1e-5 };

/* ---- checks ---- */

static bool check_count(kr_ctx *ctx, const char *field, int64_t value)
{
    return kr_config_at_least(ctx, OP, field, value, 2) &&
           kr_require(ctx, value % 2 == 0, KR_ERR_ARG, OP ": %s = %lld, but must be even: layers come in pairs", field,
                      (long long)value);
}

static bool check_schedule(kr_ctx *ctx, const kr_bidi_config *c, int64_t nvirtual)
{
    if (!kr_require(ctx, c->schedule >= KR_BIDI_SCHEDULE_STRIDED_CYCLIC && c->schedule <= KR_BIDI_SCHEDULE_CUSTOM,
                    KR_ERR_ARG,
                    OP ": schedule = %d is not one of strided cyclic, strided stretched, symmetric cyclic, symmetric "
                       "stretched, custom",
                    (int)c->schedule))
        return false;
    if (c->schedule != KR_BIDI_SCHEDULE_CUSTOM) return true;
    if (!kr_require(ctx, c->custom_schedule != NULL, KR_ERR_ARG,
                    OP ": custom_schedule is NULL, but the schedule is custom; give n_virtual numbers"))
        return false;
    for (int64_t v = 0; v < nvirtual; v++)
        if (!kr_require(ctx, c->custom_schedule[v] >= 0 && c->custom_schedule[v] < c->n_layers, KR_ERR_ARG,
                        OP ": custom_schedule[%lld] = %lld, but must be from 0 to n_layers - 1 = %lld", (long long)v,
                        (long long)c->custom_schedule[v], (long long)(c->n_layers - 1)))
            return false;
    return true;
}

static bool check_config(kr_ctx *ctx, const kr_bidi_config *c, int64_t nvirtual)
{
    return kr_block_config_check(ctx, OP, &c->block) && check_count(ctx, "n_layers", c->n_layers) &&
           check_count(ctx, "n_virtual", nvirtual) && check_schedule(ctx, c, nvirtual) &&
           kr_require(ctx, c->merge == KR_BIDI_MERGE_MEAN || c->merge == KR_BIDI_MERGE_CAT_LINEAR, KR_ERR_ARG,
                      OP ": merge = %d is neither mean nor cat-linear", (int)c->merge) &&
           kr_config_positive(ctx, OP, "norm_eps", c->norm_eps) && kr_residual_check(ctx, OP, &c->residual) &&
           kr_class_tokens_check(ctx, OP, "latents", c->latents, c->n_latents);
}

/* ---- arrays ---- */

static void *zeroed(kr_arena *arena, int64_t count, size_t bytes)
{
    void *list = kr_arena_alloc(arena, (size_t)count * bytes);
    return list ? memset(list, 0, (size_t)count * bytes) : NULL;
}

static int64_t count_gates(const kr_bidi *bidi)
{
    const kr_residual *residual = &bidi->config.residual;
    if (residual->kind != KR_RESIDUAL_MULTI_GATE) return 0;
    return (residual->per_virtual_layer ? bidi->nvirtual : bidi->config.n_layers) / 2;
}

static bool allocate(kr_bidi *bidi)
{
    kr_bidi_config *c = &bidi->config;
    const int64_t ngates = count_gates(bidi);
    kr_class_token *latents = zeroed(&bidi->arena, c->n_latents, sizeof *latents);
    bidi->real = zeroed(&bidi->arena, bidi->nvirtual, sizeof *bidi->real);
    bidi->layers = zeroed(&bidi->arena, c->n_layers, sizeof *bidi->layers);
    bidi->joins = zeroed(&bidi->arena, c->n_layers / 2, sizeof *bidi->joins);
    if (ngates) bidi->gates = zeroed(&bidi->arena, ngates, sizeof *bidi->gates);
    if (!latents || !bidi->real || !bidi->layers || !bidi->joins || (ngates && !bidi->gates)) return false;
    for (int i = 0; i < c->n_latents; i++) latents[i] = c->latents[i];
    for (int64_t v = 0; v < bidi->nvirtual; v++)
        bidi->real[v] = kr_bidi_schedule_at(c->schedule, c->custom_schedule, v, bidi->nvirtual, c->n_layers);
    c->latents = latents;
    c->custom_schedule = NULL;
    return true;
}

/* ---- parameters ---- */

static bool declare_layer(kr_bidi *bidi, int64_t i)
{
    kr_params *params = bidi->params;
    kr_bidi_layer *l = &bidi->layers[i];
    const size_t outer = kr_params_enter(params, "layers.%lld.", (long long)i);
    const size_t inner = kr_params_enter(params, "mixer.");
    l->block = kr_block_declare(bidi->ctx, bidi->kind, params, bidi->config.block.config);
    kr_params_leave(params, inner);
    if (!l->block) return kr_blame(bidi->ctx, OP);
    const kr_dtype small = kr_config_small_dtype(kr_block_dtype(l->block));
    bidi->nd = kr_block_d_model(l->block);
    l->norm_d = kr_params_add_vector(params, "norm.weight", "d", small, bidi->nd, kr_init_fill(1));
    kr_params_leave(params, outer);
    return !kr_ctx_failed(bidi->ctx);
}

static void declare_join(kr_bidi *bidi, int64_t pair, kr_dtype dtype)
{
    const int64_t nd = bidi->nd;
    kr_bidi_join *join = &bidi->joins[pair];
    const size_t outer = kr_params_enter(bidi->params, "merge.%lld.", (long long)pair);
    join->weight = kr_params_add_linear(bidi->params, &(kr_param_spec){ .name = "weight",
                                                                        .axes = "d dd",
                                                                        .dtype = dtype,
                                                                        .shape = KR_SHAPE(nd, 2 * nd),
                                                                        .n_segments = 1,
                                                                        .segments = &(kr_segment){ "out", nd, true } });
    join->bias = kr_params_add_bias(bidi->params, "bias", "d", dtype, nd, 2 * nd);
    kr_params_leave(bidi->params, outer);
}

static bool declare(kr_bidi *bidi)
{
    const kr_bidi_config *c = &bidi->config;
    for (int64_t i = 0; i < c->n_layers; i++)
        if (!declare_layer(bidi, i)) return false;
    const kr_dtype dtype = kr_block_dtype(bidi->layers[0].block);
    for (int64_t pair = 0; c->merge == KR_BIDI_MERGE_CAT_LINEAR && pair < c->n_layers / 2; pair++)
        declare_join(bidi, pair, dtype);
    for (int64_t i = 0; i < count_gates(bidi); i++) {
        const size_t outer = kr_params_enter(bidi->params, "gates.%lld.", (long long)i);
        kr_multi_gate_declare(&bidi->gates[i], bidi->params, kr_config_small_dtype(dtype), bidi->nd, c->norm_eps,
                              &c->residual);
        kr_params_leave(bidi->params, outer);
    }
    if (c->n_latents)
        bidi->latents_nd = kr_params_add(bidi->params, &(kr_param_spec){ .name = "latents",
                                                                         .axes = "n d",
                                                                         .dtype = dtype,
                                                                         .shape = KR_SHAPE(c->n_latents, bidi->nd),
                                                                         .init = { KR_INIT_NORMAL, 0, 0.02, 0 },
                                                                         .has_decay = true });
    return kr_params_seal(bidi->params);
}

/* ---- the stack ---- */

kr_bidi *kr_bidi_create(kr_ctx *ctx, const kr_bidi_config *config)
{
    kr_bidi_config own;
    if (kr_ctx_failed(ctx) || !kr_config_given(ctx, OP, config) || !KR_TAKE(ctx, OP, kr_bidi_config, config, &own))
        return NULL;
    const int64_t nvirtual = own.n_virtual ? own.n_virtual : own.n_layers;
    if (!check_config(ctx, &own, nvirtual)) return NULL;
    kr_bidi *bidi = kr_memory_alloc_zeroed(&ctx->memory, sizeof *bidi);
    if (!bidi) {
        kr_fail(ctx, KR_ERR_NOMEM, OP ": no memory for a stack");
        return NULL;
    }
    bidi->ctx = ctx;
    bidi->config = own;
    bidi->kind = kr_block_kind_of(own.block.family);
    bidi->nvirtual = nvirtual;
    kr_norm_options_init(&bidi->norm);
    bidi->norm.eps = own.norm_eps;
    kr_arena_init(&bidi->arena, &ctx->memory, 4096);
    bidi->params = kr_params_create(ctx);
    if (!allocate(bidi)) kr_fail(ctx, KR_ERR_NOMEM, OP ": no memory for %lld layers", (long long)nvirtual);
    else if (bidi->params && declare(bidi)) return bidi;
    kr_bidi_destroy(bidi);
    return NULL;
}

void kr_bidi_destroy(kr_bidi *bidi)
{
    if (!bidi) return;
    for (int64_t i = 0; bidi->layers && i < bidi->config.n_layers; i++)
        if (bidi->layers[i].block) kr_block_free(bidi->layers[i].block);
    kr_params_destroy(bidi->params);
    kr_arena_deinit(&bidi->arena);
    kr_memory_free(&bidi->ctx->memory, bidi, sizeof *bidi);
}

kr_params *kr_bidi_params(const kr_bidi *bidi)
{
    return bidi ? bidi->params : NULL;
}
