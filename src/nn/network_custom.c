/* network_custom.c - a custom network: the program's forward function, and the states of its blocks. */
#include "base/sized.h"
#include "nn/block_config.h"
#include "nn/network_impl.h"

#define OP "network.custom"

KR_DEFAULTS(kr_custom_network) = { .size = sizeof(kr_custom_network) };

/* ---- creation ---- */

static bool check_part(kr_ctx *ctx, const kr_network_part *part, int i)
{
    return KR_RESERVED(ctx, OP, "kr_network_part", part) &&
           kr_require(ctx, (part->block != NULL) != (part->layers != NULL), KR_ERR_ARG,
                      OP ": parts[%d] has %s layers, but must have one of them", i,
                      part->block ? "both block and" : "neither block nor") &&
           kr_require(ctx, (part->block ? part->block->ctx : part->layers->ctx) == ctx, KR_ERR_STATE,
                      OP ": parts[%d] belongs to another context", i) &&
           kr_require(
               ctx, !part->layers || !part->layers->has_class_tokens, KR_ERR_UNSUPPORTED,
               OP ": parts[%d] has class tokens, whose positions only a kr_network keeps; insert such rows in forward",
               i);
}

static bool check_custom(kr_ctx *ctx, const kr_custom_network *c)
{
    if (!kr_require(ctx, c->params != NULL, KR_ERR_ARG, OP ": params is NULL; give the table of all parameters") ||
        !kr_require(ctx, kr_params_ctx(c->params) == ctx, KR_ERR_STATE, OP ": params belongs to another context") ||
        !kr_config_at_least(ctx, OP, "n_parts", c->n_parts, 1) ||
        !kr_require(ctx, c->parts != NULL, KR_ERR_ARG, OP ": n_parts = %d, but parts is NULL", c->n_parts) ||
        !kr_config_at_least(ctx, OP, "vocab_size", c->vocab_size, 0) ||
        !kr_config_at_least(ctx, OP, "input_size", c->input_size, 0) ||
        !kr_config_at_least(ctx, OP, "width", c->width, 0) ||
        !kr_require(ctx, (c->vocab_size > 0) != (c->input_size > 0), KR_ERR_ARG,
                    OP ": vocab_size = %lld and input_size = %lld, but one of them must be above 0: tokens or features",
                    (long long)c->vocab_size, (long long)c->input_size) ||
        !kr_require(ctx, c->width > 0 || c->vocab_size > 0, KR_ERR_ARG,
                    OP ": width = 0, but a network of features has no other width of y"))
        return false;
    for (int i = 0; i < c->n_parts; i++)
        if (!check_part(ctx, &c->parts[i], i)) return false;
    return true;
}

static int64_t part_slots(const kr_network_part *part)
{
    return part->block ? 1 : part->layers->nvirtual;
}

static bool list_slots(kr_network *net, const kr_custom_network *c)
{
    for (int i = 0; i < c->n_parts; i++) net->nslots += part_slots(&c->parts[i]);
    net->slots = kr_arena_alloc(&net->arena, (size_t)net->nslots * sizeof *net->slots);
    if (!net->slots) return kr_fail(net->ctx, KR_ERR_NOMEM, OP ": no memory for %lld slots", (long long)net->nslots);
    int64_t slot = 0;
    for (int i = 0; i < c->n_parts; i++) {
        const kr_layers *layers = c->parts[i].layers;
        if (!layers) net->slots[slot++] = c->parts[i].block;
        for (int64_t v = 0; layers && v < layers->nvirtual; v++)
            net->slots[slot++] = layers->layers[layers->real[v]].block;
    }
    return true;
}

kr_network *kr_network_custom(kr_ctx *ctx, const kr_custom_network *custom)
{
    kr_custom_network own;
    if (kr_ctx_failed(ctx) || !kr_config_given(ctx, OP, custom) || !KR_TAKE(ctx, OP, kr_custom_network, custom, &own) ||
        !check_custom(ctx, &own))
        return NULL;
    kr_network *net = kr_memory_alloc_zeroed(&ctx->memory, sizeof *net);
    if (!kr_require(ctx, net != NULL, KR_ERR_NOMEM, OP ": no memory for a network")) return NULL;
    net->ctx = ctx;
    net->is_custom = true;
    net->is_vocab = own.vocab_size > 0;
    net->config.vocab_size = own.vocab_size;
    net->config.input_size = own.input_size;
    net->nw = own.width ? own.width : own.vocab_size;
    kr_arena_init(&net->arena, &ctx->memory, 1024);
    if (list_slots(net, &own)) {
        net->custom = own;
        net->custom.parts = NULL;
        return net;
    }
    kr_network_destroy(net);
    return NULL;
}

/* ---- calls ---- */

static bool check_call(kr_tape *tape, const char *op, const kr_network *net, const kr_call *call)
{
    return kr_require(tape->ctx, net->custom.forward != NULL, KR_ERR_ARG,
                      "%s: the custom network has no forward; it is for states only", op) &&
           kr_require(tape->ctx, !call->skip_head, KR_ERR_UNSUPPORTED,
                      "%s: skip_head is set, but a custom network has no separate head", op) &&
           kr_require(tape->ctx, !call->seq_parallel, KR_ERR_UNSUPPORTED,
                      "%s: seq_parallel is given, but a custom network has no layers between which states pass", op) &&
           kr_require(tape->ctx, !call->streams, KR_ERR_UNSUPPORTED,
                      "%s: streams is given, but a custom network has no residual streams", op);
}

static bool check_output(kr_tape *tape, const char *op, const kr_network *net, const kr_tensor *x, kr_tensor *y,
                         bool last_only)
{
    kr_ctx *ctx = tape->ctx;
    kr_dims d;
    if (!kr_require(ctx, y != NULL, KR_ERR_STATE, "%s: the custom network's forward returned NULL without an error",
                    op) ||
        !kr_bind(tape, op, &d, "y:bsw", y))
        return false;
    const int64_t nb = x->dims[0], ns = x->dims[1];
    return kr_require(ctx, d.b == nb && (d.s == ns || (last_only && d.s == 1)) && d.w == net->nw, KR_ERR_SHAPE,
                      "%s: the custom network's forward returned y %s, but must return [%lld, %lld, %lld]", op,
                      KR_TEXT_OF(y), (long long)nb, (long long)ns, (long long)net->nw);
}

/* A cache that stays as it was has not read x. */
static bool check_caches(kr_tape *tape, const kr_run *run, const kr_cache *before)
{
    for (int64_t slot = 0; slot < run->state->nslots; slot++)
        if (kr_slot_kind(run->state, slot)->ncache > 0 &&
            !kr_require(tape->ctx, run->state->slots[slot].tensors[0] != before[slot].tensors[0], KR_ERR_STATE,
                        "%s: the custom network's forward left the cache of slot %lld as it was; replace it with "
                        "kr_state_set_cache or kr_state_set_part",
                        run->op, (long long)slot))
            return false;
    return true;
}

/* The new state begins as the old one; *before is a copy of its slots. */
static bool begin_slots(kr_tape *tape, kr_run *run, kr_cache **before)
{
    const int64_t nslots = run->state->nslots;
    for (int64_t slot = 0; run->call.state && slot < nslots; slot++)
        run->state->slots[slot] = run->call.state->slots[slot];
    *before = kr_arena_alloc(&tape->heads, (size_t)nslots * sizeof **before);
    if (!*before) return kr_fail(tape->ctx, KR_ERR_NOMEM, "%s: no memory for %lld slots", run->op, (long long)nslots);
    for (int64_t slot = 0; slot < nslots; slot++) (*before)[slot] = run->state->slots[slot];
    return true;
}

kr_network_out kr_custom_run(kr_tape *tape, const char *op, kr_run_mode mode, const kr_network *net, kr_tensor *x,
                             const kr_call *call)
{
    const kr_network_out none = { .y = NULL };
    kr_run run;
    kr_cache *before;
    if (!kr_run_begin(tape, &run, op, mode, kr_network_layout(net), call, x, false, false) ||
        !check_call(tape, op, net, &run.call) || !begin_slots(tape, &run, &before))
        return none;
    const bool last_only = mode == KR_RUN_STEP || run.call.last_logits_only;
    kr_call how = run.call;
    how.state = how.advance = NULL;
    how.drop_state = false;
    how.last_logits_only = last_only;
    kr_tensor *y = net->custom.forward(net->custom.user, tape, x, run.state, &how);
    if (kr_ctx_failed(tape->ctx)) {
        kr_blame(tape->ctx, "%s, custom network", op);
        return none;
    }
    if (!check_output(tape, op, net, x, y, last_only) || !check_caches(tape, &run, before)) return none;
    if (last_only) y = kr_last_token(tape, y);
    const kr_network_out out = { .y = y, .state = kr_run_end(&run) };
    return kr_ctx_failed(tape->ctx) ? none : out;
}
