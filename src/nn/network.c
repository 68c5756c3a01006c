/* network.c - a call through a network: its input, the stack, its head. */
#include "nn/network_impl.h"

/* ---- input and head ---- */

/* ids or features, one token or many -> the stack's input, [.. d]. */
static kr_tensor *enter(kr_tape *tape, const char *op, const kr_network *net, kr_tensor *x)
{
    if (!x) return NULL;
    const bool in_f32 = net->layers->config.residual_in_f32;
    kr_tensor *y = !net->is_vocab ? kr_linear(tape, x, net->in_proj, net->in_proj_bias)
                   : in_f32       ? kr_embedding_to_widen(tape, net->embedding_wd, x)
                                  : kr_embedding(tape, net->embedding_wd, x);
    /* a 16-bit stream starts as 16-bit, though the bias is wider */
    if (!in_f32 && kr_dtype_is_16bit(x->dtype)) y = kr_cast(tape, y, x->dtype);
    if (!y) kr_blame(tape->ctx, "%s, input", op);
    return y;
}

kr_head kr_network_head(const kr_network *net)
{
    if (!net->is_vocab) return (kr_head){ net->out_proj, net->out_proj_bias };
    return (kr_head){ net->head_wd ? net->head_wd : net->embedding_wd, NULL };
}

/* The stack's output -> out->hidden, the head's output -> out->y, unless it is skipped. */
static void apply_head(kr_tape *tape, const char *op, const kr_network *net, kr_tensor *x, const kr_call *call,
                       kr_network_out *out)
{
    const kr_head head = kr_network_head(net);
    if (!x) return;
    out->hidden = net->norm_f_d ? kr_rms_norm(tape, x, net->norm_f_d, &net->layers->norm) : x;
    if (!call->skip_head) out->y = kr_linear(tape, out->hidden, head.weight_wd, head.bias_w);
    if (kr_ctx_failed(tape->ctx)) kr_blame(tape->ctx, "%s, head", op);
}

/* ---- checks ---- */

/* x is [b s] or [b s f]; without its axis s for one token. */
static bool check_input(kr_tape *tape, const char *op, const kr_network *net, kr_tensor *x, bool is_token)
{
    kr_dims d;
    if (!kr_tape_ready(tape, op) || !kr_require(tape->ctx, net != NULL, KR_ERR_ARG, "%s: the network is NULL", op))
        return false;
    const char *contract = net->is_vocab ? (is_token ? "x:b" : "x:bs") : (is_token ? "x:bf" : "x:bsf");
    if (!kr_bind(tape, op, &d, contract, x)) return false;
    if (net->is_vocab)
        return kr_require(tape->ctx, x->dtype == KR_DTYPE_I32 || x->dtype == KR_DTYPE_I64, KR_ERR_DTYPE,
                          "%s: x %s is %s, but a vocabulary network takes ids, i32 or i64", op, KR_TEXT_OF(x),
                          kr_dtype_name(x->dtype));
    return kr_require(tape->ctx, d.f == net->config.input_size, KR_ERR_SHAPE,
                      "%s: axis f of x %s is %lld, but the network has input_size = %lld", op, KR_TEXT_OF(x),
                      (long long)d.f, (long long)net->config.input_size) &&
           (net->is_custom || kr_layers_take_type(tape, op, net->layers, x));
}

static bool has_stack(kr_tape *tape, const char *op, const kr_network *net)
{
    return kr_require(tape->ctx, !net->is_custom, KR_ERR_UNSUPPORTED,
                      "%s: the network is custom; call its parts instead", op);
}

/* ---- calls ---- */

/* x [b c] or [b c f]; NULL: c = 0. */
static kr_network_out run_network(kr_tape *tape, const kr_network *net, kr_run *run, kr_tensor *x,
                                  kr_stack_fn *run_stack)
{
    const kr_network_config *c = &net->config;
    const kr_network_out none = { .y = NULL };
    kr_splice *plan = kr_run_plan(tape, run, c->n_class_tokens);
    int nplan;
    if (!plan || !kr_run_splice(tape, run, c->class_tokens, c->n_class_tokens, net->class_tokens_nf,
                                &run->cursors.network, plan, &nplan, &x))
        return none;
    x = enter(tape, run->op, net, x);
    if (kr_ctx_failed(tape->ctx)) return none;
    kr_fence(tape);
    kr_tensor *y = run_stack(tape, net->layers, x, run);
    kr_fence(tape);
    if (kr_ctx_failed(tape->ctx)) return none;
    if (y && (run->mode != KR_RUN_FORWARD || run->call.last_logits_only)) y = kr_last_token(tape, y);
    kr_network_out out = none;
    apply_head(tape, run->op, net, y, &run->call, &out);
    if (kr_ctx_failed(tape->ctx)) return none;
    out.state = kr_run_end(run);
    return out;
}

static kr_network_out run_forward(kr_tape *tape, const kr_network *net, kr_tensor *x, const kr_call *call,
                                  kr_stack_fn *run_stack)
{
    const char *op = "network.forward";
    kr_run run;
    if (!check_input(tape, op, net, x, false)) return (kr_network_out){ .y = NULL };
    if (net->is_custom) return kr_custom_run(tape, op, KR_RUN_FORWARD, net, x, call);
    if (!kr_run_begin(tape, &run, op, KR_RUN_FORWARD, kr_layers_layout(net->layers), call, x, net->has_class_tokens,
                      net->has_length_class_tokens))
        return (kr_network_out){ .y = NULL };
    return run_network(tape, net, &run, x, run_stack);
}

static kr_network_out run_step(kr_tape *tape, const kr_network *net, kr_tensor *x, const kr_call *call,
                               kr_stack_fn *run_stack)
{
    const char *op = "network.step";
    const kr_network_out none = { .y = NULL };
    kr_run run;
    if (!check_input(tape, op, net, x, true)) return none;
    const int64_t nb = kr_dim_of(x, 0);
    kr_tensor *one = kr_reshape(tape, x, net->is_vocab ? KR_SHAPE(nb, 1) : KR_SHAPE(nb, 1, net->config.input_size));
    if (net->is_custom) return kr_custom_run(tape, op, KR_RUN_STEP, net, one, call);
    if (!kr_run_begin(tape, &run, op, KR_RUN_STEP, kr_layers_layout(net->layers), call, one, net->has_class_tokens,
                      net->has_length_class_tokens))
        return none;
    return run_network(tape, net, &run, one, run_stack);
}

static kr_network_out run_prime(kr_tape *tape, const kr_network *net, const kr_call *call)
{
    const char *op = "network.prime";
    kr_run run;
    if (!kr_tape_ready(tape, op) || !kr_require(tape->ctx, net != NULL, KR_ERR_ARG, "%s: the network is NULL", op) ||
        !has_stack(tape, op, net) ||
        !kr_run_begin(tape, &run, op, KR_RUN_PRIME, kr_layers_layout(net->layers), call, NULL, net->has_class_tokens,
                      net->has_length_class_tokens))
        return (kr_network_out){ .y = NULL };
    return run_network(tape, net, &run, NULL, kr_layers_run);
}

static kr_tensor *run_infinite(kr_tape *tape, const kr_network *net, kr_tensor *x, const kr_call *call)
{
    const char *op = "network.step_infinite";
    if (!check_input(tape, op, net, x, true) || !has_stack(tape, op, net) || !kr_call_is_absent(tape->ctx, op, call))
        return NULL;
    kr_call defaults;
    kr_call_init(&defaults);
    kr_network_out out = { .y = NULL };
    kr_tensor *y = kr_layers_run_infinite(tape, "layers.step_infinite", net->layers, enter(tape, op, net, x));
    apply_head(tape, op, net, y, &defaults, &out);
    return out.y;
}

kr_network_out kr_network_run_call(kr_tape *tape, const kr_network *net, kr_call_kind kind, kr_tensor *x,
                                   const kr_call *call, kr_stack_fn *run_stack)
{
    switch (kind) {
    case KR_CALL_FORWARD: return run_forward(tape, net, x, call, run_stack);
    case KR_CALL_STEP: return run_step(tape, net, x, call, run_stack);
    case KR_CALL_PRIME: return run_prime(tape, net, call);
    case KR_CALL_STEP_INFINITE: return (kr_network_out){ .y = run_infinite(tape, net, x, call) };
    }
    if (tape) kr_fail(tape->ctx, KR_ERR_ARG, "network: %d is not a kr_call_kind", (int)kind);
    return (kr_network_out){ .y = NULL };
}
