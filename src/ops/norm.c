/* norm.c - RMS norm over groups of the last axis, plain or gated.
 *
 *   x, z [.. i]   input and gate       gain [i]     y [.. i]     q [.. groups]
 *   gate first: u = x silu(z);  q = (mean_group(u^2) + eps)^-1/2;  y = u q gain
 *   norm first: u = x;          q as above;                        y = u q gain silu(z)
 *   backward: kernels/kernels.h, kr_norm_bwd_args.  saved: q       (u is recomputed)
 * x and z are often parts of a projection, so that their rows are strided; they are read in place, and their gradients
 * are written in place. An activation x in bf16 (ops/autocast.h) is read as such.
 */
#include "ops/ops_impl.h"

#include "base/sized.h"

#include <string.h>

KR_DEFAULTS(kr_norm_options) = { .size = sizeof(kr_norm_options), .eps = 1e-5, .groups = 1 };

static void accumulate_gradients(kr_back *back)
{
    kr_tape *tape = kr_back_tape(back);
    const kr_norm_options *o = kr_back_attrs(back);
    const kr_tensor *x = kr_back_in(back, 0), *gain = kr_back_in(back, 2);
    kr_tensor *g_y = KR_AS_TAKEN(tape, norm_bwd_g_y, kr_contiguous(tape, kr_back_grad(back, 0)));
    kr_tensor *in_x = KR_AS_TAKEN(tape, norm_bwd_x, kr_back_in(back, 0)), *z = kr_back_in(back, 1);
    kr_tensor *g[3] = { NULL, NULL, NULL }, *slab[2] = { KR_BACK_SLAB(back, 0, norm_bwd_g_x), NULL }, *g_x = NULL;
    if (z) slab[1] = KR_BACK_SLAB(back, 1, norm_bwd_g_z);
    /* without a gate x is often the residual stream, which already has a gradient: it is added to */
    bool is_first = true;
    if (!slab[0] && !z && !kr_dtype_is_16bit(x->dtype)) g_x = kr_back_into(back, 0, &is_first);
    kr_tensor *g_gain = kr_back_new(back, 2);
    for (int i = 0; i < 3; i++)
        if (kr_back_wants(back, i) && !(i < 2 && slab[i]) && !(g_x && i == 0) && !(g_gain && i == 2))
            g[i] = kr_new(tape, kr_grad_dtype(x), kr_tensor_shape(kr_back_in(back, i)));
    if (!g_y || !in_x || kr_ctx_failed(tape->ctx)) return;
    const kr_around a = kr_around_axis(x, x->rank - 1);
    kr_norm_bwd_args args = { .no = a.no,
                              .ni = a.nr,
                              .ng = o->groups,
                              .x = kr_operand_of(in_x),
                              .z = kr_operand_of(z),
                              .g_y = kr_operand_of(g_y),
                              .gain = kr_tensor_data(gain),
                              .q = kr_back_saved(back, 0)->data,
                              .g_x = kr_operand_of(g_x       ? g_x
                                                   : slab[0] ? slab[0]
                                                             : g[0]),
                              .g_z = kr_operand_of(slab[1] ? slab[1] : g[1]),
                              .g_gain = kr_tensor_data(g_gain ? g_gain : g[2]),
                              .eps = o->eps,
                              .norm_first = o->norm_before_gate,
                              .accumulate = g_x && !is_first };
    if (!KR_RUN(tape->ctx, norm_bwd[kr_real_of(kr_grad_dtype(x))], &args)) return;
    for (int i = 0; i < 3; i++) kr_back_accumulate(back, i, g[i]);
}

static void norm_backward(kr_back *back)
{
    accumulate_gradients(back);
    kr_slab_release(kr_back_tape(back), kr_slab_of(kr_back_out(back, 0)));
}

static const kr_rule rms_norm_rule = { .name = "rms_norm", .backward = norm_backward };
static const kr_rule gated_norm_rule = { .name = "gated_norm", .backward = norm_backward };

static bool check_options(kr_tape *tape, const char *op, const kr_norm_options *o, int64_t ni)
{
    return kr_require(tape->ctx, o->groups >= 1 && ni % o->groups == 0, KR_ERR_ARG,
                      "%s: groups = %lld does not divide i = %lld", op, (long long)o->groups, (long long)ni) &&
           kr_require(tape->ctx, o->eps >= 0, KR_ERR_ARG, "%s: eps = %g, but must not be negative", op, o->eps);
}

/* as_operand: bf16 if matrix products would round it. */
static kr_tensor *norm(kr_tape *tape, const kr_rule *rule, kr_tensor *x, kr_tensor *z, kr_tensor *gain,
                       const kr_norm_options *given, bool as_operand)
{
    kr_norm_options o;
    kr_dims d;
    kr_dtype result;
    if (!kr_bind(tape, rule->name, &d, "x:..i z:..i? gain:i?", x, z, gain) ||
        !KR_TAKE(tape->ctx, rule->name, kr_norm_options, given, &o) || !check_options(tape, rule->name, &o, d.i) ||
        !KR_REALS_KEPT(tape, rule->name, "x z gain", &result, KR_KEEPS_ACTIVATION(tape, norm_x, x), &x, &z, &gain) ||
        (gain && !(gain = kr_contiguous(tape, gain))))
        return NULL;
    const kr_rows x_rows = kr_rows_of(tape, x), z_rows = kr_rows_of(tape, z);
    if (!(x = x_rows.x) || (z && !(z = z_rows.x))) return NULL;
    const kr_dtype dtype = kr_grad_dtype(x);
    const bool rounds =
        as_operand && kr_autocasts_product(tape->ctx, dtype, d.rows) && kr_accepts(tape->ctx, norm_y, KR_DTYPE_BF16);
    kr_shape q_shape = d.lead;
    q_shape.dims[q_shape.rank++] = o.groups;
    kr_tensor *y = kr_new_activation(tape, dtype, rounds, kr_tensor_shape(x));
    kr_tensor *q = kr_new(tape, dtype, q_shape);
    if (!y || !q || (rounds && z && !kr_slab_create_own(tape, y))) return NULL;
    kr_norm_args args = { .no = d.rows,
                          .ni = d.i,
                          .ng = o.groups,
                          .x = kr_operand_of(x),
                          .z = kr_operand_of(z),
                          .y = kr_operand_of(y),
                          .gain = kr_tensor_data(gain),
                          .q = q->data,
                          .eps = o.eps,
                          .norm_first = o.norm_before_gate };
    if (!KR_RUN(tape->ctx, norm[kr_real_of(dtype)], &args)) return NULL;
    const kr_record_args record = { .rule = rule,
                                    .n_in = 3,
                                    .in = (kr_tensor *[]){ x, z, gain },
                                    .n_out = 1,
                                    .out = &y,
                                    .n_saved = 1,
                                    .saved = &q,
                                    .attrs = &o,
                                    .attrs_bytes = sizeof o };
    if (!kr_record_node(tape, &record, false)) return NULL;
    return rounds ? y : kr_store_as(tape, y, result);
}

kr_tensor *kr_rms_norm(kr_tape *tape, kr_tensor *x, kr_tensor *gain, const kr_norm_options *options)
{
    return norm(tape, &rms_norm_rule, x, NULL, gain, options, false);
}

kr_tensor *kr_gated_norm(kr_tape *tape, kr_tensor *x, kr_tensor *z, kr_tensor *gain, const kr_norm_options *options)
{
    kr_dims d;
    if (!kr_bind(tape, "gated_norm", &d, "x:..i z:..i", x, z)) return NULL;
    return norm(tape, &gated_norm_rule, x, z, gain, options, false);
}

kr_tensor *kr_norm_operand(kr_tape *tape, kr_tensor *x, kr_tensor *z, kr_tensor *gain, const kr_norm_options *options)
{
    return norm(tape, z ? &gated_norm_rule : &rms_norm_rule, x, z, gain, options, true);
}
