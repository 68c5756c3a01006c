/* layer_norm.c - layer norm over groups of the last axis.
 *
 *   x [.. i]    gain, bias [i]    y [.. i]    mean, q [.. groups]
 *   mean = mean_group(x);  q = (mean_group((x - mean)^2) + eps)^-1/2;  y = (x - mean) q gain + bias
 *   backward: kernels/kernels.h, kr_layer_norm_bwd_args.  saved: mean, q
 */
#include "ops/ops_impl.h"

static void layer_norm_backward(kr_back *back)
{
    kr_tape *tape = kr_back_tape(back);
    const int64_t groups = *(const int64_t *)kr_back_attrs(back);
    const kr_rows x = kr_rows_of(tape, kr_back_in(back, 0));
    kr_tensor *g_y = kr_contiguous(tape, kr_back_grad(back, 0)), *g[3] = { NULL, NULL, NULL };
    if (!x.x || !g_y) return;
    for (int i = 0; i < 3; i++)
        if (kr_back_wants(back, i) && !(g[i] = kr_new(tape, x.x->dtype, kr_tensor_shape(kr_back_in(back, i))))) return;
    kr_layer_norm_bwd_args args = { .no = x.no,
                                    .ni = x.ni,
                                    .ng = groups,
                                    .x = kr_operand_of(x.x),
                                    .gain = kr_tensor_data(kr_back_in(back, 1)),
                                    .mean = kr_back_saved(back, 0)->data,
                                    .q = kr_back_saved(back, 1)->data,
                                    .g_y = g_y->data,
                                    .g_x = kr_tensor_data(g[0]),
                                    .g_gain = kr_tensor_data(g[1]),
                                    .g_bias = kr_tensor_data(g[2]) };
    if (!KR_RUN(tape->ctx, layer_norm_bwd[kr_real_of(x.x->dtype)], &args)) return;
    for (int i = 0; i < 3; i++) kr_back_accumulate(back, i, g[i]);
}

static const kr_rule layer_norm_rule = { .name = "layer_norm", .backward = layer_norm_backward };

static bool check_options(kr_tape *tape, const kr_norm_options *o, int64_t ni)
{
    return kr_require(tape->ctx, o->groups >= 1 && ni % o->groups == 0, KR_ERR_ARG,
                      "layer_norm: groups = %lld does not divide i = %lld", (long long)o->groups, (long long)ni) &&
           kr_require(tape->ctx, o->eps >= 0, KR_ERR_ARG, "layer_norm: eps = %g, but must not be negative", o->eps) &&
           kr_require(tape->ctx, !o->norm_before_gate, KR_ERR_ARG,
                      "layer_norm: norm_before_gate is set, but there is no gate; use kr_gated_norm");
}

kr_tensor *kr_layer_norm(kr_tape *tape, kr_tensor *x, kr_tensor *gain, kr_tensor *bias, const kr_norm_options *options)
{
    kr_norm_options o;
    kr_dims d;
    kr_dtype result;
    if (!kr_bind(tape, "layer_norm", &d, "x:..i gain:i? bias:i?", x, gain, bias) ||
        !KR_TAKE(tape->ctx, "layer_norm", kr_norm_options, options, &o) || !check_options(tape, &o, d.i) ||
        !KR_REALS(tape, "layer_norm", "x gain bias", &result, &x, &gain, &bias) ||
        (gain && !(gain = kr_contiguous(tape, gain))) || (bias && !(bias = kr_contiguous(tape, bias))))
        return NULL;
    const kr_rows rows = kr_rows_of(tape, x);
    if (!(x = rows.x)) return NULL;
    kr_shape per_group = d.lead;
    per_group.dims[per_group.rank++] = o.groups;
    kr_tensor *y = kr_new(tape, x->dtype, kr_tensor_shape(x));
    kr_tensor *saved[2] = { kr_new(tape, x->dtype, per_group), kr_new(tape, x->dtype, per_group) }; /* mean, q */
    if (!y || !saved[0] || !saved[1]) return NULL;
    kr_layer_norm_args args = { .no = d.rows,
                                .ni = d.i,
                                .ng = o.groups,
                                .x = kr_operand_of(x),
                                .gain = kr_tensor_data(gain),
                                .bias = kr_tensor_data(bias),
                                .y = y->data,
                                .mean = saved[0]->data,
                                .q = saved[1]->data,
                                .eps = o.eps };
    if (!KR_RUN(tape->ctx, layer_norm[kr_real_of(x->dtype)], &args)) return NULL;
    const kr_record_args record = { .rule = &layer_norm_rule,
                                    .n_in = 3,
                                    .in = (kr_tensor *[]){ x, gain, bias },
                                    .n_out = 1,
                                    .out = &y,
                                    .n_saved = 2,
                                    .saved = saved,
                                    .attrs = &o.groups,
                                    .attrs_bytes = sizeof o.groups };
    return kr_record_node(tape, &record, false) ? kr_store_as(tape, y, result) : NULL;
}
