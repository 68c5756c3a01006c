/* conv.c - causal depthwise convolution over time, with the window that carries it on.
 *
 *   x [b s v], weight [v k], bias [v], window [b v k] -> y [b s v], window [b v k]
 *   u[b,s,v] = bias[v] + sum_j weight[v,j] past(b, s-(k-1)+j, v);  y = u or silu(u)
 *   past is x, and the window before it. backward: kernels/kernels.h, kr_conv_bwd_args; u is recomputed.
 */
#include "ops/ops.h"

enum { X, WEIGHT, BIAS, WINDOW, NIN };

static void conv_backward(kr_back *back)
{
    kr_tape *tape = kr_back_tape(back);
    const kr_tensor *in[NIN];
    kr_tensor *g[NIN] = { NULL, NULL, NULL, NULL };
    for (int i = 0; i < NIN; i++) in[i] = kr_back_in(back, i);
    for (int i = 0; i < NIN; i++)
        if (kr_back_wants(back, i)) g[i] = kr_new(tape, in[X]->dtype, kr_tensor_shape(in[i]));
    /* a consumer of the window alone leaves y without a gradient */
    kr_tensor *g_y = kr_back_grad(back, 0), *g_window = kr_back_grad(back, 1);
    g_y = g_y ? kr_contiguous(tape, g_y) : kr_zeros(tape, in[X]->dtype, kr_tensor_shape(in[X]));
    if (g_window) g_window = kr_contiguous(tape, g_window);
    if (kr_ctx_failed(tape->ctx)) return;
    kr_conv_bwd_args args = { .nb = in[X]->dims[0],
                              .ns = in[X]->dims[1],
                              .nv = in[X]->dims[2],
                              .nk = in[WEIGHT]->dims[1],
                              .x = in[X]->data,
                              .weight = in[WEIGHT]->data,
                              .bias = kr_tensor_data(in[BIAS]),
                              .window = kr_tensor_data(in[WINDOW]),
                              .g_y = g_y->data,
                              .g_window_out = kr_tensor_data(g_window),
                              .g_x = kr_tensor_data(g[X]),
                              .g_weight = kr_tensor_data(g[WEIGHT]),
                              .g_bias = kr_tensor_data(g[BIAS]),
                              .g_window = kr_tensor_data(g[WINDOW]),
                              .silu = *(const bool *)kr_back_attrs(back) };
    if (!KR_RUN(tape->ctx, conv_bwd[kr_real_of(in[X]->dtype)], &args)) return;
    for (int i = 0; i < NIN; i++) kr_back_give(back, i, g[i]);
}

static const kr_rule conv_rule = { .name = "causal_conv", .backward = conv_backward };

static kr_tensor *row_major_or_null(kr_tape *tape, kr_tensor *x)
{
    return x ? kr_contiguous(tape, x) : NULL;
}

kr_conv_out kr_causal_conv(kr_tape *tape, kr_tensor *x, kr_tensor *weight, kr_tensor *bias, kr_tensor *window,
                           bool silu)
{
    const kr_conv_out none = { NULL, NULL };
    kr_dims d;
    kr_dtype result;
    if (!kr_bind(tape, "causal_conv", &d, "x:bsv weight:vk bias:v? window:bvk?", x, weight, bias, window) ||
        !kr_require(tape->ctx, d.k >= 1, KR_ERR_SHAPE, "causal_conv: weight %s has no tap; k must be at least 1",
                    KR_TEXT_OF(weight)) ||
        !KR_REALS(tape, "causal_conv", "x weight bias window", &result, &x, &weight, &bias, &window))
        return none;
    x = kr_contiguous(tape, x);
    weight = kr_contiguous(tape, weight);
    bias = row_major_or_null(tape, bias);
    window = row_major_or_null(tape, window);
    if (kr_ctx_failed(tape->ctx)) return none;
    kr_tensor *out[2] = { kr_new(tape, x->dtype, kr_tensor_shape(x)), kr_new(tape, x->dtype, KR_SHAPE(d.b, d.v, d.k)) };
    if (!out[0] || !out[1]) return none;
    kr_conv_args args = { .nb = d.b,
                          .ns = d.s,
                          .nv = d.v,
                          .nk = d.k,
                          .x = x->data,
                          .weight = weight->data,
                          .bias = kr_tensor_data(bias),
                          .window = kr_tensor_data(window),
                          .y = out[0]->data,
                          .window_out = out[1]->data,
                          .silu = silu };
    if (!KR_RUN(tape->ctx, conv[kr_real_of(x->dtype)], &args)) return none;
    const kr_record_args record = { .rule = &conv_rule,
                                    .nin = NIN,
                                    .in = (kr_tensor *[]){ x, weight, bias, window },
                                    .nout = 2,
                                    .out = out,
                                    .attrs = &silu,
                                    .attrs_bytes = sizeof silu };
    if (!kr_record(tape, &record)) return none;
    return (kr_conv_out){ kr_store_as(tape, out[0], result), kr_store_as(tape, out[1], result) };
}
