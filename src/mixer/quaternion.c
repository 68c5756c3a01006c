/* quaternion.c - Mamba-3's rotation by quaternions: increments, their cumulative products, rows rotated by them.
 *
 *   raw [b s h j 3], dt [b s h] -> q [b s h j 4];   q, initial [q h j 4] -> cum [b s h j 4], final [q h j 4]
 *   x [b s m h r], cum -> y [b s m h r]
 * Formulas and gradients: kernels/args/mamba3_args.h. Saved: the operands, and of the products their results.
 */
#include "mixer/rotary.h"

#include "ops/ops_impl.h"
#include "ops/sequences.h"

/* ---- increments ---- */

static void increments_backward(kr_back *back)
{
    kr_tape *tape = kr_back_tape(back);
    const kr_tensor *raw = kr_back_in(back, 0), *dt = kr_back_in(back, 1);
    kr_tensor *g_q = kr_contiguous(tape, kr_back_grad(back, 0)), *g[2] = { NULL, NULL };
    for (int i = 0; i < 2; i++)
        if (kr_back_wants(back, i)) g[i] = kr_new(tape, raw->dtype, kr_tensor_shape(kr_back_in(back, i)));
    if (!g_q || kr_ctx_failed(tape->ctx)) return;
    kr_quaternion_exp_bwd_args args = { .no = kr_count_of(dt),
                                        .nj = raw->dims[3],
                                        .raw = raw->data,
                                        .dt = dt->data,
                                        .g_q = g_q->data,
                                        .g_raw = kr_tensor_data(g[0]),
                                        .g_dt = kr_tensor_data(g[1]),
                                        .range = *(const double *)kr_back_attrs(back) };
    if (!KR_RUN(tape->ctx, quaternion_exp_bwd[kr_real_of(raw->dtype)], &args)) return;
    for (int i = 0; i < 2; i++) kr_back_accumulate(back, i, g[i]);
}

static const kr_rule increments_rule = { .name = "quaternion_increments", .backward = increments_backward };

kr_tensor *kr_quaternion_increments(kr_tape *tape, kr_tensor *raw, kr_tensor *dt, double range)
{
    const char *op = increments_rule.name;
    kr_dims d;
    kr_dtype result;
    if (!kr_bind(tape, op, &d, "raw:bshj3 dt:bsh", raw, dt) ||
        !kr_require(tape->ctx, range > 0, KR_ERR_ARG, "%s: range = %g, but must be above 0", op, range) ||
        !KR_REALS(tape, op, "raw dt", &result, &raw, &dt) || !(raw = kr_contiguous(tape, raw)) ||
        !(dt = kr_contiguous(tape, dt)))
        return NULL;
    kr_tensor *q = kr_new(tape, raw->dtype, KR_SHAPE(d.b, d.s, d.h, d.j, 4));
    if (!q) return NULL;
    kr_quaternion_exp_args args = {
        .no = d.b * d.s * d.h, .nj = d.j, .raw = raw->data, .dt = dt->data, .q = q->data, .range = range
    };
    if (!KR_RUN(tape->ctx, quaternion_exp[kr_real_of(raw->dtype)], &args)) return NULL;
    return kr_recorded(tape, &increments_rule, q, &range, sizeof range, KR_LIST(raw, dt));
}

/* ---- running products ---- */

static void cumprod_backward(kr_back *back)
{
    kr_tape *tape = kr_back_tape(back);
    const kr_sequences *sequences = kr_back_attrs(back);
    const kr_tensor *q = kr_back_in(back, 0), *initial = kr_back_in(back, 1), *cum = kr_back_out(back, 0);
    kr_tensor *g[2] = { NULL, NULL }, *g_cum = kr_back_grad(back, 0), *g_final = kr_back_grad(back, 1);
    for (int i = 0; i < 2; i++)
        if (kr_back_wants(back, i)) g[i] = kr_new(tape, q->dtype, kr_tensor_shape(kr_back_in(back, i)));
    g_cum = g_cum ? kr_contiguous(tape, g_cum) : kr_zeros(tape, cum->dtype, kr_tensor_shape(cum));
    if (g_final) g_final = kr_contiguous(tape, g_final);
    if (kr_ctx_failed(tape->ctx)) return;
    kr_quaternion_scan_bwd_args args = { .nb = q->dims[0],
                                         .ns = q->dims[1],
                                         .nh = q->dims[2],
                                         .nj = q->dims[3],
                                         .nq = sequences->count,
                                         .sequences = sequences->list,
                                         .q = q->data,
                                         .initial = kr_tensor_data(initial),
                                         .cum = cum->data,
                                         .g_cum = g_cum->data,
                                         .g_final = kr_tensor_data(g_final),
                                         .g_q = kr_tensor_data(g[0]),
                                         .g_initial = kr_tensor_data(g[1]) };
    if (!KR_RUN(tape->ctx, quaternion_scan_bwd[kr_real_of(q->dtype)], &args)) return;
    for (int i = 0; i < 2; i++) kr_back_accumulate(back, i, g[i]);
}

static const kr_rule cumprod_rule = { .name = "quaternion_cumprod", .backward = cumprod_backward };

static bool bind_cumprod(kr_tape *tape, kr_tensor *q, kr_tensor *initial, kr_tensor *seq_start, kr_dims *d,
                         kr_sequences *sequences)
{
    const char *op = cumprod_rule.name;
    return kr_bind(tape, op, d, "q:bshj4 initial:qhj4?", q, initial) &&
           kr_sequences_from(tape, op, seq_start, d->b, d->s, sequences) &&
           kr_require(tape->ctx, !initial || d->q == sequences->count, KR_ERR_SHAPE,
                      "%s: initial %s must be %s: quaternions for each sequence", op, KR_TEXT_OF(initial),
                      KR_TEXT_OF_SHAPE(&KR_SHAPE(sequences->count, d->h, d->j, 4)));
}

kr_quaternion_out kr_quaternion_cumprod_chunked(kr_tape *tape, kr_tensor *q, kr_tensor *initial, kr_tensor *seq_start,
                                                int64_t chunk_len)
{
    const kr_quaternion_out none = { .cum_bshj4 = NULL };
    kr_sequences sequences;
    kr_dims d;
    kr_dtype result;
    if (!bind_cumprod(tape, q, initial, seq_start, &d, &sequences) ||
        !KR_REALS(tape, cumprod_rule.name, "q initial", &result, &q, &initial) || !(q = kr_contiguous(tape, q)) ||
        (initial && !(initial = kr_contiguous(tape, initial))))
        return none;
    kr_tensor *out[2] = { kr_new(tape, q->dtype, kr_tensor_shape(q)),
                          kr_new(tape, q->dtype, KR_SHAPE(sequences.count, d.h, d.j, 4)) };
    if (!out[0] || !out[1]) return none;
    kr_quaternion_scan_args args = { .nb = d.b,
                                     .ns = d.s,
                                     .nh = d.h,
                                     .nj = d.j,
                                     .nq = sequences.count,
                                     .nl = chunk_len,
                                     .sequences = sequences.list,
                                     .q = q->data,
                                     .initial = kr_tensor_data(initial),
                                     .cum = out[0]->data,
                                     .final = out[1]->data };
    if (!KR_RUN(tape->ctx, quaternion_scan[kr_real_of(q->dtype)], &args)) return none;
    const kr_record_args record = { .rule = &cumprod_rule,
                                    .n_in = 2,
                                    .in = (kr_tensor *[]){ q, initial },
                                    .n_out = 2,
                                    .out = out,
                                    .attrs = &sequences,
                                    .attrs_bytes = sizeof sequences };
    if (!kr_record_node(tape, &record, false)) return none;
    return (kr_quaternion_out){ .cum_bshj4 = out[0], .final_bhj4 = out[1] };
}

kr_quaternion_out kr_quaternion_cumprod(kr_tape *tape, kr_tensor *q, kr_tensor *initial, kr_tensor *seq_start)
{
    return kr_quaternion_cumprod_chunked(tape, q, initial, seq_start, 0);
}

/* ---- rows ---- */

static void rotate_backward(kr_back *back)
{
    kr_tape *tape = kr_back_tape(back);
    const kr_tensor *x = kr_back_in(back, 0), *cum = kr_back_in(back, 1);
    kr_tensor *g_y = kr_contiguous(tape, kr_back_grad(back, 0)), *g[2] = { NULL, NULL };
    for (int i = 0; i < 2; i++)
        if (kr_back_wants(back, i)) g[i] = kr_new(tape, x->dtype, kr_tensor_shape(kr_back_in(back, i)));
    if (!g_y || kr_ctx_failed(tape->ctx)) return;
    kr_quaternion_rotate_bwd_args args = { .no = x->dims[0] * x->dims[1],
                                           .nm = x->dims[2],
                                           .nh = x->dims[3],
                                           .nr = x->dims[4],
                                           .nj = cum->dims[3],
                                           .x = x->data,
                                           .cum = cum->data,
                                           .g_y = g_y->data,
                                           .g_x = kr_tensor_data(g[0]),
                                           .g_cum = kr_tensor_data(g[1]) };
    if (!KR_RUN(tape->ctx, quaternion_rotate_bwd[kr_real_of(x->dtype)], &args)) return;
    for (int i = 0; i < 2; i++) kr_back_accumulate(back, i, g[i]);
}

static const kr_rule rotate_rule = { .name = "quaternion_rotate", .backward = rotate_backward };

kr_tensor *kr_quaternion_rotate(kr_tape *tape, kr_tensor *x, kr_tensor *cum)
{
    const char *op = rotate_rule.name;
    kr_dims d;
    kr_dtype result;
    if (!kr_bind(tape, op, &d, "x:bsmhr cum:bshj4", x, cum) ||
        !kr_require(tape->ctx, d.j <= d.r / 4, KR_ERR_SHAPE,
                    "%s: j = %lld blocks rotate %lld entries, but r of x %s is %lld", op, (long long)d.j,
                    (long long)(4 * d.j), KR_TEXT_OF(x), (long long)d.r) ||
        !KR_REALS(tape, op, "x cum", &result, &x, &cum) || !(x = kr_contiguous(tape, x)) ||
        !(cum = kr_contiguous(tape, cum)))
        return NULL;
    kr_tensor *y = kr_new(tape, x->dtype, kr_tensor_shape(x));
    if (!y) return NULL;
    kr_quaternion_rotate_args args = {
        .no = d.b * d.s, .nm = d.m, .nh = d.h, .nr = d.r, .nj = d.j, .x = x->data, .cum = cum->data, .y = y->data
    };
    if (!KR_RUN(tape->ctx, quaternion_rotate[kr_real_of(x->dtype)], &args)) return NULL;
    return kr_store_as(tape, kr_recorded(tape, &rotate_rule, y, NULL, 0, KR_LIST(x, cum)), result);
}
