/* single_layer.c - a single layer as an object: a stack of one set of weights, whose cache the caller owns. */
#include "nn/layers_impl.h"

#define OP "layer.create"

struct kr_layer {
    kr_ctx *ctx;
    kr_layers *stack;
};

KR_DEFAULTS(kr_layer_config) = {
    .size = sizeof(kr_layer_config), .norm_eps = 1e-5, .mlp_multiple_of = 128, .residual_in_f32 = true
};

static kr_layers_config stack_config(const kr_layer_config *c)
{
    kr_layers_config stack;
    kr_layers_config_init(&stack);
    stack.block = c->block;
    stack.n_layers = 1;
    stack.norm_eps = c->norm_eps;
    stack.d_intermediate = c->d_intermediate;
    stack.mlp_multiple_of = c->mlp_multiple_of;
    stack.has_mlp_bias = c->has_mlp_bias;
    stack.ignore_first_residual = c->ignore_residual;
    stack.residual_in_f32 = c->residual_in_f32;
    return stack;
}

/* The stack with its own parameter table; NULL after an error. */
static kr_layers *make_stack(kr_ctx *ctx, const kr_layer_config *c)
{
    const kr_layers_config config = stack_config(c);
    kr_params *params = kr_params_create(ctx);
    kr_layers *stack = params ? kr_layers_declare(ctx, params, &config, true) : NULL;
    if (stack && kr_params_seal(params)) {
        stack->owns_params = true;
        return stack;
    }
    if (stack) kr_layers_free(stack);
    kr_params_destroy(params);
    kr_blame(ctx, OP);
    return NULL;
}

kr_layer *kr_layer_create(kr_ctx *ctx, const kr_layer_config *config)
{
    kr_layer_config own;
    if (kr_ctx_failed(ctx) || !kr_config_given(ctx, OP, config) || !KR_TAKE(ctx, OP, kr_layer_config, config, &own))
        return NULL;
    kr_layer *layer = kr_memory_alloc_zeroed(&ctx->memory, sizeof *layer);
    if (!kr_require(ctx, layer != NULL, KR_ERR_NOMEM, OP ": no memory for a layer")) return NULL;
    layer->ctx = ctx;
    layer->stack = make_stack(ctx, &own);
    if (layer->stack) return layer;
    kr_memory_free(&ctx->memory, layer, sizeof *layer);
    return NULL;
}

void kr_layer_destroy(kr_layer *layer)
{
    if (!layer) return;
    kr_ctx *ctx = layer->ctx;
    kr_layers_destroy(layer->stack);
    kr_memory_free(&ctx->memory, layer, sizeof *layer);
}

kr_layer_info kr_layer_info_of(const kr_layer *layer)
{
    if (!layer) return (kr_layer_info){ .params = NULL };
    return (kr_layer_info){ .params = layer->stack->params, .block = layer->stack->layers[0].block };
}

/* ---- calls ---- */

static bool exists(kr_tape *tape, const char *op, const kr_layer *layer)
{
    return kr_tape_ready(tape, op) && kr_require(tape->ctx, layer != NULL, KR_ERR_ARG, "%s: the layer is NULL", op);
}

/* The caller's cache as a state on the tape; NULL for an initial one, and after an error. The block checks shapes. */
static kr_state *state_of(kr_tape *tape, const char *op, const kr_layers *s, const kr_cache *cache)
{
    if (!cache || !kr_require(tape->ctx, cache->family == s->kind->family, KR_ERR_ARG,
                              "%s: the cache is of the family %s, but the block is %s", op,
                              kr_family_name(cache->family), s->kind->name))
        return NULL;
    if (kr_cache_is_initial(cache)) return NULL;
    const kr_state_layout layout = kr_layers_layout(s);
    const kr_tensor *first = cache->tensors[0];
    kr_state *state = kr_state_new(tape, &layout, first ? kr_dim_of(first, 0) : 1);
    if (state) state->slots[0] = *cache;
    return state;
}

/* x [b s d] -> y [b s d]. */
static kr_block_out run(kr_tape *tape, const char *op, kr_run_mode mode, const kr_layer *layer, kr_tensor *x_bsd,
                        const kr_block_call *how, kr_stack_fn *run_stack)
{
    const kr_layers *s = layer->stack;
    const kr_block_out none = { .y = NULL };
    kr_run run;
    kr_call call;
    kr_call_init(&call);
    call.state = state_of(tape, op, s, how->cache);
    call.seq_start_bs = how->seq_start_bs;
    call.reset_bs = how->reset_bs;
    call.mask_bs = how->mask_bs;
    call.path = how->path;
    if (kr_ctx_failed(tape->ctx) ||
        !kr_run_begin(tape, &run, op, mode, kr_layers_layout(s), &call, x_bsd, false, false))
        return none;
    kr_tensor *y_bsd = run_stack(tape, s, x_bsd, &run);
    return y_bsd ? (kr_block_out){ .y = y_bsd, .cache = run.state->slots[0] } : none;
}

static kr_block_out run_forward(kr_tape *tape, const kr_layer *layer, kr_tensor *x_bsd, const kr_block_call *call,
                                kr_stack_fn *run_stack)
{
    const char *op = "layer.forward";
    const kr_block_call defaults = { 0 };
    kr_dims d;
    if (!call) call = &defaults;
    if (!exists(tape, op, layer) || !KR_RESERVED(tape->ctx, op, "kr_block_call", call) ||
        !kr_bind(tape, op, &d, "x:bsd", x_bsd) || !kr_layers_check_input(tape, op, layer->stack, x_bsd))
        return (kr_block_out){ .y = NULL };
    return run(tape, op, KR_RUN_FORWARD, layer, x_bsd, call, run_stack);
}

static kr_block_out run_step(kr_tape *tape, const kr_layer *layer, kr_tensor *x_bd, const kr_block_call *call,
                             kr_stack_fn *run_stack)
{
    const char *op = "layer.step";
    const kr_block_call defaults = { 0 };
    kr_dims d;
    if (!exists(tape, op, layer) || !kr_block_call_fits(tape->ctx, op, KR_CALL_STEP, call) ||
        !kr_bind(tape, op, &d, "x:bd", x_bd) || !kr_layers_check_input(tape, op, layer->stack, x_bd))
        return (kr_block_out){ .y = NULL };
    kr_block_out out = run(tape, op, KR_RUN_STEP, layer, kr_reshape(tape, x_bd, KR_SHAPE(d.b, 1, d.d)),
                           call ? call : &defaults, run_stack);
    out.y = kr_last_token(tape, out.y);
    return out;
}

static kr_block_out run_infinite(kr_tape *tape, const kr_layer *layer, kr_tensor *x_bd, const kr_block_call *call)
{
    const char *op = "layer.step_infinite";
    if (!exists(tape, op, layer) || !kr_block_call_fits(tape->ctx, op, KR_CALL_STEP_INFINITE, call))
        return (kr_block_out){ .y = NULL };
    return (kr_block_out){ .y = kr_layers_run_infinite(tape, op, layer->stack, x_bd) };
}

kr_block_out kr_layer_run_call(kr_tape *tape, const kr_layer *layer, kr_call_kind kind, kr_tensor *x,
                               const kr_block_call *call, kr_stack_fn *run_stack)
{
    switch (kind) {
    case KR_CALL_FORWARD: return run_forward(tape, layer, x, call, run_stack);
    case KR_CALL_STEP: return run_step(tape, layer, x, call, run_stack);
    case KR_CALL_STEP_INFINITE: return run_infinite(tape, layer, x, call);
    case KR_CALL_PRIME: break;
    }
    if (tape) kr_fail(tape->ctx, KR_ERR_ARG, "layer.call: kind = %d is not a call of a layer", (int)kind);
    return (kr_block_out){ .y = NULL };
}
