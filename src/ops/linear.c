/* linear.c - the linear layer.
 *
 *   x [.. i], weight [o i], bias [o]:   y = x weight^T + bias
 *   g_x = g weight,  g_weight = g^T x,  g_bias = column sums of g; the products go straight into the gradients
 *
 * A weight of halves is read where it lies, in either direction: no widened copy of it is made. Its gradient is summed
 * up in f32 and rounded once.
 */
#include "ops/ops.h"

enum { X, WEIGHT, BIAS };

static void give(kr_back *back, int i, kr_tensor *a, kr_tensor *b)
{
    bool fresh;
    kr_tensor *g = a && b ? kr_back_into(back, i, &fresh) : NULL;
    if (g) kr_run_matmul(kr_back_tape(back)->ctx, g, a, b, NULL, !fresh);
}

/* a b in f32, rounded to the halves of input i. */
static void give_halves(kr_back *back, int i, kr_tensor *a, kr_tensor *b)
{
    kr_tape *tape = kr_back_tape(back);
    const kr_tensor *x = kr_back_in(back, i);
    kr_tensor *g = a && b ? kr_new(tape, KR_F32, kr_tensor_shape(x)) : NULL;
    if (g && kr_run_matmul(tape->ctx, g, a, b, NULL, false)) kr_back_give(back, i, kr_cast(tape, g, x->dtype));
}

static void linear_backward(kr_back *back)
{
    kr_tape *tape = kr_back_tape(back);
    kr_tensor *g = kr_back_grad(back, 0);
    const bool is_half = kr_dtype_is_half(kr_back_in(back, WEIGHT)->dtype);
    if (kr_back_wants(back, X)) give(back, X, g, kr_back_in(back, WEIGHT));
    if (kr_back_wants(back, WEIGHT))
        (is_half ? give_halves : give)(back, WEIGHT, kr_transpose(tape, g), kr_back_in(back, X));
    if (kr_back_wants(back, BIAS)) kr_back_give(back, BIAS, kr_sum(tape, g, KR_AXES(0), false));
}

static const kr_rule linear_rule = { .name = "linear", .backward = linear_backward };

/* Few rows, nothing to record, and a packed copy of the weight: the case of decoding. */
enum { FEW = 4 };

static bool takes_panels(const kr_tape *tape, const kr_tensor *x_ri, const kr_tensor *weight)
{
    return weight->packed && !tape->recording && x_ri->dims[0] <= FEW && x_ri->strides[1] == 1;
}

static bool run_panels(kr_ctx *ctx, kr_tensor *y_ro, const kr_tensor *x_ri, const kr_tensor *weight,
                       const kr_tensor *bias)
{
    kr_panels_args args = { .nm = x_ri->dims[0],
                            .nn = weight->dims[0],
                            .nk = weight->dims[1],
                            .x_m = x_ri->strides[0],
                            .y_m = y_ro->strides[0],
                            .x = x_ri->data,
                            .panels = weight->packed,
                            .half = kr_half_of(weight->dtype),
                            .bias = kr_tensor_data(bias),
                            .y = y_ro->data };
    return KR_RUN(ctx, panels[kr_real_of(y_ro->dtype)], &args);
}

kr_tensor *kr_linear(kr_tape *tape, kr_tensor *x, kr_tensor *weight, kr_tensor *bias)
{
    kr_dims d;
    kr_dtype result;
    if (!kr_bind(tape, "linear", &d, "x:..i weight:oi bias:o?", x, weight, bias) ||
        !KR_REALS_BUT(tape, "linear", "x weight bias", &result, WEIGHT, &x, &weight, &bias) ||
        (bias && !(bias = kr_contiguous(tape, bias))))
        return NULL;
    kr_tensor *x_ri = kr_reshape(tape, x, KR_SHAPE(d.rows, d.i));
    kr_tensor *y_ro = kr_new(tape, x->dtype, KR_SHAPE(d.rows, d.o));
    if (!x_ri || !y_ro) return NULL;
    if (takes_panels(tape, x_ri, weight)) {
        if (!run_panels(tape->ctx, y_ro, x_ri, weight, bias)) return NULL;
    } else {
        kr_tensor *weight_io = kr_transpose(tape, kr_detach(tape, weight));
        if (!weight_io || !kr_run_matmul(tape->ctx, y_ro, x_ri, weight_io, bias, false)) return NULL;
    }
    y_ro = kr_recorded(tape, &linear_rule, y_ro, NULL, 0, KR_LIST(x_ri, weight, bias));
    d.lead.dims[d.lead.rank++] = d.o;
    return kr_store_as(tape, kr_reshape(tape, y_ro, d.lead), result);
}
