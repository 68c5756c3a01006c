/* conv.c - causal depthwise convolution over time, with the window that carries it on.
 *
 *   x [b s v], weight [v k], bias [v], window [q v k] -> y [b s v], window [q v k]
 *   u[s,v] = bias[v] + sum_j weight[v,j] past(s-(k-1)+j, v) within each sequence;  y = u or silu(u)
 *   past is x, and the window before it. backward: kernels/kernels.h, kr_conv_bwd_args; u is recomputed.
 * x may be a part of a wider row; it is read where it is.
 */
#include "ops/ops_impl.h"
#include "ops/sequences.h"

enum { X, WEIGHT, BIAS, WINDOW, NIN };

typedef struct conv_attrs {
    kr_sequences sequences;
    bool silu;
    int nparts; /* that y is cut into, the outputs before the window; 0: it is one */
} conv_attrs;

/* A gradient [b s ..], row-major; 0 if there is none: y has no gradient if only the window was used. */
static kr_tensor *gradient_of(kr_back *back, int out)
{
    kr_tape *tape = kr_back_tape(back);
    const kr_tensor *y = kr_back_out(back, out);
    kr_tensor *g = kr_back_grad(back, out);
    return g ? kr_contiguous(tape, g) : kr_zeros(tape, kr_grad_dtype(y), kr_tensor_shape(y));
}

/* The gradients of y or of its parts: of bf16 if all of them are and the kernel takes it. False after an error. */
static bool set_gradients_of_y(kr_back *back, int nparts, kr_conv_bwd_args *args)
{
    kr_tape *tape = kr_back_tape(back);
    const int count = nparts ? nparts : 1;
    kr_tensor *g[KR_CONV_PARTS];
    bool are_alike = true;
    for (int i = 0; i < count; i++) {
        if (!(g[i] = KR_AS_TAKEN(tape, conv_bwd_g_y, gradient_of(back, i)))) return false;
        are_alike = are_alike && g[i]->dtype == g[0]->dtype;
    }
    args->ng_y = count;
    for (int i = 0; i < count; i++) {
        if (!are_alike && !(g[i] = kr_cast(tape, g[i], KR_DTYPE_F32))) return false;
        args->g_y[i] = kr_operand_of(g[i]);
        args->from[i + 1] = args->from[i] + kr_back_out(back, i)->dims[2];
    }
    return true;
}

static void accumulate_gradients(kr_back *back)
{
    kr_tape *tape = kr_back_tape(back);
    const conv_attrs *attrs = kr_back_attrs(back);
    kr_tensor *in[NIN], *g[NIN] = { NULL, NULL, NULL, NULL };
    for (int i = 0; i < NIN; i++) in[i] = kr_back_in(back, i);
    const kr_dtype dtype = kr_grad_dtype(in[X]);
    kr_tensor *slab = KR_BACK_SLAB(back, X, conv_bwd_g_x), *g_bias = kr_back_new(back, BIAS);
    for (int i = 0; i < NIN; i++)
        if (kr_back_wants(back, i) && !(slab && i == X) && !(g_bias && i == BIAS))
            g[i] = kr_new(tape, dtype, kr_tensor_shape(in[i]));
    const int nparts = attrs->nparts;
    kr_tensor *g_window = kr_back_grad(back, nparts ? nparts : 1);
    if (g_window) g_window = kr_contiguous(tape, g_window);
    in[X] = KR_AS_TAKEN(tape, conv_bwd_x, in[X]);
    if (kr_ctx_failed(tape->ctx)) return;
    kr_conv_bwd_args args = { .nb = in[X]->dims[0],
                              .ns = in[X]->dims[1],
                              .nv = in[X]->dims[2],
                              .nk = in[WEIGHT]->dims[1],
                              .nq = attrs->sequences.count,
                              .x_batch = in[X]->strides[0],
                              .sequences = attrs->sequences.list,
                              .x = { in[X]->data, in[X]->dtype, in[X]->strides[1] },
                              .weight = in[WEIGHT]->data,
                              .bias = kr_tensor_data(in[BIAS]),
                              .window = kr_tensor_data(in[WINDOW]),
                              .g_window_out = kr_tensor_data(g_window),
                              .g_x = kr_operand_of(slab ? slab : g[X]),
                              .g_weight = kr_tensor_data(g[WEIGHT]),
                              .g_bias = kr_tensor_data(g_bias ? g_bias : g[BIAS]),
                              .g_window = kr_tensor_data(g[WINDOW]),
                              .silu = attrs->silu };
    if (!set_gradients_of_y(back, nparts, &args) || !KR_RUN(tape->ctx, conv_bwd[kr_real_of(dtype)], &args)) return;
    for (int i = 0; i < NIN; i++) kr_back_accumulate(back, i, g[i]);
}

static void conv_backward(kr_back *back)
{
    const conv_attrs *attrs = kr_back_attrs(back);
    accumulate_gradients(back);
    for (int i = 0; i < attrs->nparts; i++) kr_slab_release(kr_back_tape(back), kr_slab_of(kr_back_out(back, i)));
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

/* x as the kernel takes it: channels adjacent, tokens and rows of any stride. */
static kr_tensor *with_adjacent_channels(kr_tape *tape, kr_tensor *x)
{
    return x->dims[2] <= 1 || x->strides[2] == 1 ? x : kr_contiguous(tape, x);
}

/* Operands of one type, as the kernel takes them. */
static bool take_operands(kr_tape *tape, kr_tensor **in, kr_dtype *result)
{
    if (!KR_REALS_KEPT(tape, conv_rule.name, "x weight bias window", result, KR_KEEPS_ACTIVATION(tape, conv_x, in[X]),
                       &in[X], &in[WEIGHT], &in[BIAS], &in[WINDOW]))
        return false;
    for (int i = 0; i < NIN; i++)
        if (in[i] && !(in[i] = i == X ? with_adjacent_channels(tape, in[i]) : kr_contiguous(tape, in[i]))) return false;
    return true;
}

/* y, of bf16 with `rounds`, and the window. */
static bool run_conv(kr_tape *tape, const kr_dims *d, kr_tensor *const *in, const conv_attrs *attrs, bool rounds,
                     kr_tensor **y, kr_tensor **window)
{
    const kr_dtype dtype = kr_grad_dtype(in[X]);
    *y = kr_new_activation(tape, dtype, rounds, KR_SHAPE(d->b, d->s, d->v));
    *window = kr_new(tape, dtype, KR_SHAPE(attrs->sequences.count, d->v, d->k));
    if (!*y || !*window) return false;
    kr_conv_args args = { .nb = d->b,
                          .ns = d->s,
                          .nv = d->v,
                          .nk = d->k,
                          .nq = attrs->sequences.count,
                          .x_batch = in[X]->strides[0],
                          .sequences = attrs->sequences.list,
                          .x = { in[X]->data, in[X]->dtype, in[X]->strides[1] },
                          .y = kr_operand_of(*y),
                          .weight = in[WEIGHT]->data,
                          .bias = kr_tensor_data(in[BIAS]),
                          .window = kr_tensor_data(in[WINDOW]),
                          .window_out = (*window)->data,
                          .silu = attrs->silu };
    return KR_RUN(tape->ctx, conv[kr_real_of(dtype)], &args);
}

static bool record(kr_tape *tape, kr_tensor *const *in, const conv_attrs *attrs, int n_out, kr_tensor **out)
{
    const kr_record_args args = { .rule = &conv_rule,
                                  .n_in = NIN,
                                  .in = in,
                                  .n_out = n_out,
                                  .out = out,
                                  .attrs = attrs,
                                  .attrs_bytes = sizeof *attrs };
    return kr_record_node(tape, &args, false);
}

kr_conv_out kr_causal_conv(kr_tape *tape, kr_tensor *x, kr_tensor *weight, kr_tensor *bias, kr_tensor *window,
                           kr_tensor *seq_start, bool silu)
{
    const kr_conv_out none = { 0 };
    kr_tensor *in[NIN] = { x, weight, bias, window }, *out[2];
    conv_attrs attrs = { .silu = silu };
    kr_dims d;
    kr_dtype result;
    if (!bind_conv(tape, in, seq_start, &d, &attrs.sequences) || !take_operands(tape, in, &result) ||
        !run_conv(tape, &d, in, &attrs, false, &out[0], &out[1]) || !record(tape, in, &attrs, 2, out))
        return none;
    return (kr_conv_out){ .y_bsv = kr_store_as(tape, out[0], result), .window_bvk = kr_store_as(tape, out[1], result) };
}

kr_tensor *kr_causal_conv_parts(kr_tape *tape, const kr_conv_operands *o, int count, const int64_t *sizes,
                                kr_tensor **parts)
{
    kr_tensor *in[NIN] = { o->x, o->weight, o->bias, o->window }, *y, *out[KR_CONV_PARTS + 1];
    conv_attrs attrs = { .silu = true, .nparts = count };
    kr_dims d;
    kr_dtype result;
    for (int i = 0; i < count; i++) parts[i] = NULL;
    if (!kr_accepts(tape->ctx, conv_y, KR_DTYPE_BF16) || !kr_accepts(tape->ctx, conv_bwd_g_y, KR_DTYPE_BF16)) {
        const kr_conv_out whole = kr_causal_conv(tape, o->x, o->weight, o->bias, o->window, o->seq_start, true);
        return kr_split(tape, whole.y_bsv, -1, count, sizes, parts) == KR_OK ? whole.window_bvk : NULL;
    }
    if (!bind_conv(tape, in, o->seq_start, &d, &attrs.sequences) || !take_operands(tape, in, &result) ||
        !run_conv(tape, &d, in, &attrs, true, &y, &out[count]))
        return NULL;
    for (int64_t i = 0, from = 0; i < count; from += sizes[i++])
        if (!(out[i] = kr_view_of(tape, y, &KR_SHAPE(d.b, d.s, sizes[i]), y->strides, from)) ||
            !kr_slab_create_own(tape, out[i]))
            return NULL;
    if (!record(tape, in, &attrs, count + 1, out)) return NULL;
    for (int i = 0; i < count; i++) parts[i] = out[i];
    return kr_store_as(tape, out[count], result);
}
