/* raw_conv.c - the causal convolution. Its kernel does not update a window in place: that is done by way of work memory. */
#include "raw/raw_impl.h"

#define OPERANDS "x:bsv weight:vk bias:v? window:qvk?"

enum { X, WEIGHT, BIAS, WINDOW };
enum { Y = WINDOW + 1, WINDOW_OUT, NFORWARD };
enum { G_Y = WINDOW + 1, G_WINDOW_OUT, G_X, G_WEIGHT, G_BIAS, G_WINDOW, NBACKWARD };

static bool check(const raw_call *call)
{
    return kr_require(call->ctx, call->d.k >= 1, KR_ERR_SHAPE, "%s: weight %s has no tap; k must be at least 1",
                      call->op, KR_TEXT_OF(call->x[WEIGHT]));
}

static kr_operand x_operand(const kr_tensor *x)
{
    return (kr_operand){ x->data, x->dtype, x->strides[1] };
}

static bool run_forward(raw_call *call)
{
    const kr_dims *d = &call->d;
    void *window = call->x[WINDOW_OUT] ? raw_state(call, WINDOW_OUT, WINDOW, call->nq * d->v * d->k) : NULL;
    kr_conv_args args = { .nb = d->b,
                          .ns = d->s,
                          .nv = d->v,
                          .nk = d->k,
                          .nq = call->nq,
                          .x_batch = call->x[X]->strides[0],
                          .sequences = call->sequences,
                          .x = x_operand(call->x[X]),
                          .y = kr_operand_of(call->x[Y]),
                          .weight = raw_data(call, WEIGHT),
                          .bias = raw_data(call, BIAS),
                          .window = raw_data(call, WINDOW),
                          .window_out = window,
                          .silu = call->o.silu };
    return RAW_RUN(call, conv[call->real], &args) && raw_store(call, WINDOW_OUT, WINDOW, window);
}

static bool run_backward(raw_call *call)
{
    const kr_dims *d = &call->d;
    const kr_tensor *g_y = call->x[G_Y];
    kr_conv_bwd_args args = { .nb = d->b,
                              .ns = d->s,
                              .nv = d->v,
                              .nk = d->k,
                              .nq = call->nq,
                              .x_batch = call->x[X]->strides[0],
                              .sequences = call->sequences,
                              .x = x_operand(call->x[X]),
                              .weight = raw_data(call, WEIGHT),
                              .bias = raw_data(call, BIAS),
                              .window = raw_data(call, WINDOW),
                              .g_window_out = raw_data(call, G_WINDOW_OUT),
                              .ng_y = 1,
                              .g_y = { { raw_gradient(call, G_Y, d->b * d->s * d->v), g_y ? g_y->dtype : call->dtype,
                                         d->v } },
                              .from = { 0, d->v },
                              .g_x = kr_operand_of(call->x[G_X]),
                              .g_weight = raw_data(call, G_WEIGHT),
                              .g_bias = raw_data(call, G_BIAS),
                              .g_window = raw_data(call, G_WINDOW),
                              .silu = call->o.silu };
    return RAW_RUN(call, conv_bwd[call->real], &args);
}

static const raw_rule forward_rules[NFORWARD] = {
    [X] = RAW_RULE(RAW_CHANNELS, conv_x), [Y] = RAW_RULE(RAW_PLAIN, conv_y)
};

const raw_about raw_conv = { RAW_TEXTS("conv", OPERANDS, "y:bsv window_out:qvk?"),
                             .n_operands = Y,
                             .n_views = NFORWARD,
                             .options = RAW_SILU | RAW_SEQUENCES,
                             .state_operand = WINDOW,
                             .state_result = WINDOW_OUT,
                             .rules = forward_rules,
                             .check = check,
                             .run = run_forward };

static const raw_rule backward_rules[NBACKWARD] = { [X] = RAW_RULE(RAW_CHANNELS, conv_bwd_x),
                                                    [G_Y] = RAW_RULE(RAW_PLAIN, conv_bwd_g_y),
                                                    [G_X] = RAW_RULE(RAW_ROWS, conv_bwd_g_x) };

const raw_about raw_conv_backward = { RAW_TEXTS("conv_backward", OPERANDS " g_y:bsv? g_window_out:qvk?",
                                                "g_x:bsv? g_weight:vk? g_bias:v? g_window:qvk?"),
                                      .n_operands = G_X,
                                      .n_views = NBACKWARD,
                                      .options = RAW_SILU | RAW_SEQUENCES,
                                      .rules = backward_rules,
                                      .check = check,
                                      .run = run_backward };
