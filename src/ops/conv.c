/* conv.c - causal depthwise convolution over time, with the window that carries it on.
 *
 *   x [b s v], weight [v k], bias [v], window [q v k] -> y [b s v], window [q v k]
 *   u[s,v] = bias[v] + sum_j weight[v,j] past(s-(k-1)+j, v) within each sequence;  y = u or silu(u)
 *   past is x, and the window before it. backward: kernels/kernels.h, kr_conv_bwd_args; u is recomputed.
 * x may be a part of a wider row; it is read where it is.
 */
#include "ops/ops.h"
#include "ops/sequences.h"

enum { X, WEIGHT, BIAS, WINDOW, NIN };

typedef struct conv_attrs {
    kr_sequences sequences;
    bool silu;
} conv_attrs;

static void conv_backward(kr_back *back)
{
    kr_tape *tape = kr_back_tape(back);
    const conv_attrs *attrs = kr_back_attrs(back);
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
                              .nq = attrs->sequences.count,
                              .x_batch = in[X]->strides[0],
                              .x_stride = in[X]->strides[1],
                              .sequences = attrs->sequences.list,
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
                              .silu = attrs->silu };
    if (!KR_RUN(tape->ctx, conv_bwd[kr_real_of(in[X]->dtype)], &args)) return;
    for (int i = 0; i < NIN; i++) kr_back_give(back, i, g[i]);
}

static const kr_rule conv_rule = { .name = "causal_conv", .backward = conv_backward };

static bool bind_conv(kr_tape *tape, kr_tensor *const *in, kr_tensor *seq_start, kr_dims *d, kr_sequences *sequences)
{
    const char *op = conv_rule.name;
    return kr_bind(tape, op, d, "x:bsv weight:vk bias:v? window:qvk?", in[X], in[WEIGHT], in[BIAS], in[WINDOW]) &&
           kr_require(tape->ctx, d->k >= 1, KR_ERR_SHAPE, "%s: weight %s has no tap; k must be at least 1", op,
                      KR_TEXT_OF(in[WEIGHT])) &&
           kr_sequences_maybe_empty(tape, op, seq_start, d->b, d->s, sequences) &&
           kr_require(tape->ctx, !in[WINDOW] || d->q == sequences->count, KR_ERR_SHAPE,
                      "%s: window %s must be %s: one for each sequence", op, KR_TEXT_OF(in[WINDOW]),
                      KR_TEXT_OF_SHAPE(&KR_SHAPE(sequences->count, d->v, d->k)));
}

/* x as the kernel takes it: channels adjacent, tokens and rows any distance apart. */
static kr_tensor *with_adjacent_channels(kr_tape *tape, kr_tensor *x)
{
    return x->dims[2] <= 1 || x->strides[2] == 1 ? x : kr_contiguous(tape, x);
}

kr_conv_out kr_causal_conv(kr_tape *tape, kr_tensor *x, kr_tensor *weight, kr_tensor *bias, kr_tensor *window,
                           kr_tensor *seq_start, bool silu)
{
    const kr_conv_out none = { NULL, NULL };
    kr_tensor *in[NIN] = { x, weight, bias, window };
    conv_attrs attrs = { .silu = silu };
    kr_dims d;
    kr_dtype result;
    if (!bind_conv(tape, in, seq_start, &d, &attrs.sequences) ||
        !KR_REALS(tape, conv_rule.name, "x weight bias window", &result, &in[X], &in[WEIGHT], &in[BIAS], &in[WINDOW]))
        return none;
    for (int i = 0; i < NIN; i++)
        if (in[i] && !(in[i] = i == X ? with_adjacent_channels(tape, in[i]) : kr_contiguous(tape, in[i]))) return none;
    const kr_dtype dtype = in[X]->dtype;
    kr_tensor *out[2] = { kr_new(tape, dtype, KR_SHAPE(d.b, d.s, d.v)),
                          kr_new(tape, dtype, KR_SHAPE(attrs.sequences.count, d.v, d.k)) };
    if (!out[0] || !out[1]) return none;
    kr_conv_args args = { .nb = d.b,
                          .ns = d.s,
                          .nv = d.v,
                          .nk = d.k,
                          .nq = attrs.sequences.count,
                          .x_batch = in[X]->strides[0],
                          .x_stride = in[X]->strides[1],
                          .sequences = attrs.sequences.list,
                          .x = in[X]->data,
                          .weight = in[WEIGHT]->data,
                          .bias = kr_tensor_data(in[BIAS]),
                          .window = kr_tensor_data(in[WINDOW]),
                          .y = out[0]->data,
                          .window_out = out[1]->data,
                          .silu = silu };
    if (!KR_RUN(tape->ctx, conv[kr_real_of(dtype)], &args)) return none;
    const kr_record_args record = {
        .rule = &conv_rule, .nin = NIN, .in = in, .nout = 2, .out = out, .attrs = &attrs, .attrs_bytes = sizeof attrs
    };
    if (!kr_record(tape, &record)) return none;
    return (kr_conv_out){ kr_store_as(tape, out[0], result), kr_store_as(tape, out[1], result) };
}
