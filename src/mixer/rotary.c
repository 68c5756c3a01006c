/* rotary.c - Mamba-3's complex rotation: angles that accumulate along a sequence, and rows rotated by them.
 *
 *   theta [b s a], dt [b s h], initial [q h a] -> angle [b s h a], final [q h a]
 *   x [b s m h r], or x [b s m g r] and bias [h m r]; angle -> y [b s m h r]
 * Formulas and gradients: kernels/args/mamba3_args.h. Saved: the operands. theta may be a strided part of wider rows;
 * it is read in place, and its gradient is written in place.
 */
#include "mixer/rotary.h"

#include "ops/ops_impl.h"
#include "ops/sequences.h"

enum { THETA, DT, INITIAL, NIN };

/* Attributes of the node. */
typedef struct angles_attrs {
    kr_sequences sequences;
    double range;
} angles_attrs;

static void angles_backward(kr_back *back)
{
    kr_tape *tape = kr_back_tape(back);
    const angles_attrs *attrs = kr_back_attrs(back);
    const kr_tensor *theta = kr_back_in(back, THETA), *dt = kr_back_in(back, DT), *angle = kr_back_out(back, 0);
    kr_tensor *g[NIN] = { NULL, NULL, NULL }, *slab = KR_BACK_SLAB(back, THETA, angles_bwd_g_theta);
    for (int i = 0; i < NIN; i++)
        if (kr_back_wants(back, i) && !(slab && i == THETA))
            g[i] = kr_new(tape, theta->dtype, kr_tensor_shape(kr_back_in(back, i)));
    /* a consumer of the final angle alone leaves the others without a gradient */
    kr_tensor *g_angle = kr_back_grad(back, 0), *g_final = kr_back_grad(back, 1);
    g_angle = g_angle ? kr_contiguous(tape, g_angle) : kr_zeros(tape, angle->dtype, kr_tensor_shape(angle));
    if (g_final) g_final = kr_contiguous(tape, g_final);
    if (kr_ctx_failed(tape->ctx)) return;
    kr_angles_bwd_args args = { .nb = theta->dims[0],
                                .ns = theta->dims[1],
                                .nh = dt->dims[2],
                                .na = theta->dims[2],
                                .nq = attrs->sequences.count,
                                .sequences = attrs->sequences.list,
                                .theta = kr_operand_of(theta),
                                .dt = dt->data,
                                .g_angle = g_angle->data,
                                .g_final = kr_tensor_data(g_final),
                                .g_theta = kr_operand_of(slab ? slab : g[THETA]),
                                .g_dt = kr_tensor_data(g[DT]),
                                .g_initial = kr_tensor_data(g[INITIAL]),
                                .range = attrs->range };
    if (!KR_RUN(tape->ctx, angles_bwd[kr_real_of(theta->dtype)], &args)) return;
    for (int i = 0; i < NIN; i++) kr_back_accumulate(back, i, g[i]);
}

static const kr_rule angles_rule = { .name = "rotation_angles", .backward = angles_backward };

static bool bind_angles(kr_tape *tape, kr_tensor *const *in, double range, kr_tensor *seq_start, kr_dims *d,
                        kr_sequences *sequences)
{
    const char *op = angles_rule.name;
    if (!kr_bind(tape, op, d, "theta:bsa dt:bsh initial_angle:qha?", in[THETA], in[DT], in[INITIAL]) ||
        !kr_require(tape->ctx, range > 0, KR_ERR_ARG, "%s: range = %g, but must be above 0", op, range) ||
        !kr_require(tape->ctx, d->h >= 1 && d->a >= 1, KR_ERR_SHAPE, "%s: theta %s and dt %s have an empty axis", op,
                    KR_TEXT_OF(in[THETA]), KR_TEXT_OF(in[DT])) ||
        !kr_sequences_from(tape, op, seq_start, d->b, d->s, sequences))
        return false;
    return kr_require(tape->ctx, !in[INITIAL] || d->q == sequences->count, KR_ERR_SHAPE,
                      "%s: initial_angle %s must be %s: an angle for each sequence", op, KR_TEXT_OF(in[INITIAL]),
                      KR_TEXT_OF_SHAPE(&KR_SHAPE(sequences->count, d->h, d->a)));
}

kr_rotation_out kr_rotation_angles_chunked(kr_tape *tape, kr_tensor *theta, kr_tensor *dt, kr_tensor *initial,
                                           double range, kr_tensor *seq_start, int64_t chunk_len)
{
    const kr_rotation_out none = { .angle_bsha = NULL };
    kr_tensor *in[NIN] = { theta, dt, initial };
    angles_attrs attrs = { .range = range };
    kr_dims d;
    kr_dtype result;
    if (!bind_angles(tape, in, range, seq_start, &d, &attrs.sequences) ||
        !KR_REALS(tape, angles_rule.name, "theta dt initial_angle", &result, &in[THETA], &in[DT], &in[INITIAL]))
        return none;
    const kr_rows rows = kr_rows_of(tape, in[THETA]);
    for (int i = 0; i < NIN; i++)
        if (in[i] && !(in[i] = i == THETA ? rows.x : kr_contiguous(tape, in[i]))) return none;
    kr_tensor *out[2] = { kr_new(tape, in[THETA]->dtype, KR_SHAPE(d.b, d.s, d.h, d.a)),
                          kr_new(tape, in[THETA]->dtype, KR_SHAPE(attrs.sequences.count, d.h, d.a)) };
    if (!out[0] || !out[1]) return none;
    kr_angles_args args = { .nb = d.b,
                            .ns = d.s,
                            .nh = d.h,
                            .na = d.a,
                            .nq = attrs.sequences.count,
                            .nl = chunk_len,
                            .sequences = attrs.sequences.list,
                            .theta = kr_operand_of(in[THETA]),
                            .dt = in[DT]->data,
                            .initial = kr_tensor_data(in[INITIAL]),
                            .angle = out[0]->data,
                            .final = out[1]->data,
                            .range = range };
    if (!KR_RUN(tape->ctx, angles[kr_real_of(in[THETA]->dtype)], &args)) return none;
    const kr_record_args record = { .rule = &angles_rule,
                                    .n_in = NIN,
                                    .in = in,
                                    .n_out = 2,
                                    .out = out,
                                    .attrs = &attrs,
                                    .attrs_bytes = sizeof attrs };
    if (!kr_record_node(tape, &record, false)) return none;
    return (kr_rotation_out){ .angle_bsha = out[0], .final_bha = out[1] };
}

kr_rotation_out kr_rotation_angles(kr_tape *tape, kr_tensor *theta, kr_tensor *dt, kr_tensor *initial, double range,
                                   kr_tensor *seq_start)
{
    return kr_rotation_angles_chunked(tape, theta, dt, initial, range, seq_start, 0);
}

/* ---- rows ---- */

enum { X, BIAS, ANGLE, NROTATE };

static void rotate_backward(kr_back *back)
{
    kr_tape *tape = kr_back_tape(back);
    const kr_tensor *x = kr_back_in(back, X), *bias = kr_back_in(back, BIAS), *angle = kr_back_in(back, ANGLE);
    kr_tensor *g_y = kr_contiguous(tape, kr_back_grad(back, 0)), *g[NROTATE] = { NULL, NULL, NULL };
    /* B and C share their angles: the gradient of the second is added to the first one's */
    bool is_first = true;
    kr_tensor *g_angle = kr_back_into(back, ANGLE, &is_first);
    for (int i = 0; i < ANGLE; i++)
        if (kr_back_wants(back, i)) g[i] = kr_new(tape, x->dtype, kr_tensor_shape(kr_back_in(back, i)));
    if (!g_y || kr_ctx_failed(tape->ctx)) return;
    kr_rotate_bwd_args args = { .no = x->dims[0] * x->dims[1],
                                .nm = x->dims[2],
                                .nh = angle->dims[2],
                                .ng = x->dims[3],
                                .nr = x->dims[4],
                                .na = angle->dims[3],
                                .x = x->data,
                                .bias = kr_tensor_data(bias),
                                .angle = angle->data,
                                .g_y = g_y->data,
                                .g_x = kr_tensor_data(g[X]),
                                .g_bias = kr_tensor_data(g[BIAS]),
                                .g_angle = kr_tensor_data(g_angle),
                                .split_pairs = *(const bool *)kr_back_attrs(back),
                                .accumulate = g_angle && !is_first };
    if (!KR_RUN(tape->ctx, rotate_bwd[kr_real_of(x->dtype)], &args)) return;
    for (int i = 0; i < NROTATE; i++) kr_back_accumulate(back, i, g[i]);
}

static const kr_rule rotate_rule = { .name = "rotate", .backward = rotate_backward };

static bool check_pairs(kr_tape *tape, const kr_dims *d, const kr_tensor *x, kr_pairing pairing)
{
    return kr_require(tape->ctx, pairing == KR_PAIRING_ADJACENT || pairing == KR_PAIRING_SPLIT, KR_ERR_ARG,
                      "rotate: pairing = %d is neither adjacent nor split", (int)pairing) &&
           kr_require(tape->ctx, pairing == KR_PAIRING_ADJACENT || d->r % 2 == 0, KR_ERR_SHAPE,
                      "rotate: r = %lld of x %s is odd, but split pairs need an even r", (long long)d->r,
                      KR_TEXT_OF(x)) &&
           kr_require(tape->ctx, d->a <= d->r / 2, KR_ERR_SHAPE,
                      "rotate: a = %lld angles rotate %lld entries, but r of x %s is %lld", (long long)d->a,
                      (long long)(2 * d->a), KR_TEXT_OF(x), (long long)d->r);
}

/* The operands have been checked; d.h heads, as many rows of x as its axis has. */
static kr_tensor *rotate(kr_tape *tape, const kr_dims *d, kr_tensor *x, kr_tensor *bias, kr_tensor *angle,
                         kr_pairing pairing)
{
    kr_dtype result;
    if (!KR_REALS(tape, "rotate", "x bias angle", &result, &x, &bias, &angle) || !(x = kr_contiguous(tape, x)) ||
        (bias && !(bias = kr_contiguous(tape, bias))) || !(angle = kr_contiguous(tape, angle)))
        return NULL;
    kr_tensor *y = kr_new(tape, x->dtype, KR_SHAPE(d->b, d->s, d->m, d->h, d->r));
    if (!y) return NULL;
    const bool split_pairs = pairing == KR_PAIRING_SPLIT;
    kr_rotate_args args = { .no = d->b * d->s,
                            .nm = d->m,
                            .nh = d->h,
                            .ng = x->dims[3],
                            .nr = d->r,
                            .na = d->a,
                            .x = x->data,
                            .bias = kr_tensor_data(bias),
                            .angle = angle->data,
                            .y = kr_operand_of(y),
                            .split_pairs = split_pairs };
    if (!KR_RUN(tape->ctx, rotate[kr_real_of(x->dtype)], &args)) return NULL;
    y = kr_recorded(tape, &rotate_rule, y, &split_pairs, sizeof split_pairs, KR_LIST(x, bias, angle));
    return kr_store_as(tape, y, result);
}

kr_tensor *kr_rotate(kr_tape *tape, kr_tensor *x, kr_tensor *angle, kr_pairing pairing)
{
    kr_dims d;
    if (!kr_bind(tape, "rotate", &d, "x:bsmhr angle:bsha", x, angle) || !check_pairs(tape, &d, x, pairing)) return NULL;
    return rotate(tape, &d, x, NULL, angle, pairing);
}

kr_tensor *kr_rotate_groups(kr_tape *tape, kr_tensor *x, kr_tensor *bias, kr_tensor *angle, kr_pairing pairing)
{
    kr_dims d;
    if (!kr_bind(tape, "rotate", &d, "x:bsmgr bias:hmr? angle:bsha", x, bias, angle) ||
        !check_pairs(tape, &d, x, pairing) ||
        !kr_require(tape->ctx, d.g >= 1 && d.h % d.g == 0, KR_ERR_SHAPE,
                    "rotate: g = %lld groups of x %s do not divide h = %lld of angle %s", (long long)d.g, KR_TEXT_OF(x),
                    (long long)d.h, KR_TEXT_OF(angle)))
        return NULL;
    return rotate(tape, &d, x, bias, angle, pairing);
}
