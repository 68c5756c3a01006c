/* trapezoid.c - Mamba-3's trapezoidal rule: its coefficients, the weight of keys in the single pathway, the boundary.
 *
 *   dt_raw, a_raw, lambda_raw [b s h], dt_bias [h] -> dt, da, gamma, carry, beta [b s h]
 *   trapezoid: formulas and gradients in kernels/args/mamba3_args.h; everything is recomputed from the operands, which may be
 *              strided parts of wider rows: they are read in place, and their gradients are written in place
 *   scale:     scale_t = gamma_t + carry_{t+1}, 0 for carry at the end of a sequence
 *   boundary:  state + carry0 sum_m v[m] (outer) k[m], one product over m
 */
#include "ops/ops_impl.h"

#include "base/sized.h"

#include <krait/ssd.h>

#include <math.h>
#include <string.h>

enum { DT_RAW, DT_BIAS, A_RAW, LAMBDA_RAW, NIN };
enum { DT, DA, GAMMA, CARRY, BETA, NOUT };

KR_DEFAULTS(kr_trapezoid_options) = { .size = sizeof(kr_trapezoid_options),
                                      .a_activation = KR_A_ACTIVATION_HEAVY_TAIL,
                                      .a_floor = 1e-4,
                                      .dt_min = 0,
                                      .dt_max = (double)INFINITY };

/* The gradients of the projections, if all three can be written into the fused buffer. */
static bool find_slabs(kr_back *back, kr_tensor **slab)
{
    if (!kr_accepts(kr_back_tape(back)->ctx, trapezoid_bwd_g_raw, KR_DTYPE_BF16)) return false;
    if (!kr_back_has_slab(back, DT_RAW) || !kr_back_has_slab(back, A_RAW) || !kr_back_has_slab(back, LAMBDA_RAW))
        return false;
    for (int i = 0; i < NIN; i++) slab[i] = i == DT_BIAS ? NULL : kr_back_slab(back, i);
    return true;
}

static void trapezoid_backward(kr_back *back)
{
    kr_tape *tape = kr_back_tape(back);
    const kr_trapezoid_options *o = kr_back_attrs(back);
    kr_tensor *in[NIN], *g_out[NOUT], *g[NIN] = { NULL }, *slab[NIN] = { NULL };
    for (int i = 0; i < NIN; i++) in[i] = kr_back_in(back, i);
    const kr_shape shape = kr_tensor_shape(in[DT_RAW]);
    for (int i = 0; i < NOUT; i++) {
        g_out[i] = kr_back_grad(back, i);
        if (g_out[i]) g_out[i] = kr_contiguous(tape, g_out[i]);
    }
    const bool is_in_slab = find_slabs(back, slab);
    const bool wants_dt = !is_in_slab && kr_back_wants(back, DT_RAW);
    if (wants_dt || kr_back_wants(back, DT_BIAS)) g[DT_RAW] = kr_new(tape, in[DT_RAW]->dtype, shape);
    if (!is_in_slab && kr_back_wants(back, A_RAW)) g[A_RAW] = kr_new(tape, in[DT_RAW]->dtype, shape);
    if (!is_in_slab && kr_back_wants(back, LAMBDA_RAW)) g[LAMBDA_RAW] = kr_new(tape, in[DT_RAW]->dtype, shape);
    if (kr_ctx_failed(tape->ctx)) return;
    kr_trapezoid_bwd_args args = { .no = shape.dims[0] * shape.dims[1],
                                   .nh = shape.dims[2],
                                   .dt_raw = kr_operand_of(in[DT_RAW]),
                                   .a_raw = kr_operand_of(in[A_RAW]),
                                   .lambda_raw = kr_operand_of(in[LAMBDA_RAW]),
                                   .dt_bias = kr_tensor_data(in[DT_BIAS]),
                                   .g_dt = kr_tensor_data(g_out[DT]),
                                   .g_da = kr_tensor_data(g_out[DA]),
                                   .g_gamma = kr_tensor_data(g_out[GAMMA]),
                                   .g_carry = kr_tensor_data(g_out[CARRY]),
                                   .g_beta = kr_tensor_data(g_out[BETA]),
                                   .g_dt_raw = kr_operand_of(is_in_slab ? slab[DT_RAW] : g[DT_RAW]),
                                   .g_a_raw = kr_operand_of(is_in_slab ? slab[A_RAW] : g[A_RAW]),
                                   .g_lambda_raw = kr_operand_of(is_in_slab ? slab[LAMBDA_RAW] : g[LAMBDA_RAW]),
                                   .g_dt_summed = kr_tensor_data(is_in_slab ? g[DT_RAW] : NULL),
                                   .a_floor = o->a_floor,
                                   .dt_min = o->dt_min,
                                   .dt_max = o->dt_max,
                                   .softplus = o->a_activation == KR_A_ACTIVATION_SOFTPLUS };
    if (!KR_RUN(tape->ctx, trapezoid_bwd[kr_real_of(in[DT_RAW]->dtype)], &args)) return;
    if (kr_back_wants(back, DT_BIAS)) g[DT_BIAS] = kr_sum(tape, g[DT_RAW], KR_AXES(0, 1), false);
    if (is_in_slab) g[DT_RAW] = NULL;
    for (int i = 0; i < NIN; i++) kr_back_accumulate(back, i, g[i]);
}

static const kr_rule trapezoid_rule = { .name = "trapezoid", .backward = trapezoid_backward };

static bool check_options(kr_tape *tape, const kr_trapezoid_options *o)
{
    kr_ctx *ctx = tape->ctx;
    return kr_require(ctx, o->a_activation == KR_A_ACTIVATION_HEAVY_TAIL || o->a_activation == KR_A_ACTIVATION_SOFTPLUS,
                      KR_ERR_ARG, "trapezoid: a_activation = %d is neither heavy tail nor softplus",
                      (int)o->a_activation) &&
           kr_require(ctx, o->a_floor > 0, KR_ERR_ARG, "trapezoid: a_floor = %g, but must be above 0", o->a_floor) &&
           kr_require(ctx, o->dt_min >= 0 && o->dt_min <= o->dt_max, KR_ERR_ARG,
                      "trapezoid: dt_min = %g and dt_max = %g, but 0 <= dt_min <= dt_max must hold", o->dt_min,
                      o->dt_max);
}

/* Gives the projections one row stride, by copies if needed. */
static bool lay_out(kr_tape *tape, kr_tensor **in)
{
    const kr_rows dt = kr_rows_of(tape, in[DT_RAW]), a = kr_rows_of(tape, in[A_RAW]),
                  lambda = kr_rows_of(tape, in[LAMBDA_RAW]);
    const bool are_alike = dt.stride == a.stride && a.stride == lambda.stride;
    in[DT_RAW] = are_alike ? dt.x : kr_contiguous(tape, dt.x);
    in[A_RAW] = are_alike ? a.x : kr_contiguous(tape, a.x);
    in[LAMBDA_RAW] = are_alike ? lambda.x : kr_contiguous(tape, lambda.x);
    if (in[DT_BIAS] && !(in[DT_BIAS] = kr_contiguous(tape, in[DT_BIAS]))) return false;
    return in[DT_RAW] && in[A_RAW] && in[LAMBDA_RAW];
}

static bool run_trapezoid(kr_tape *tape, kr_tensor *const *in, kr_tensor *const *out, const kr_trapezoid_options *o)
{
    kr_trapezoid_args args = { .no = in[DT_RAW]->dims[0] * in[DT_RAW]->dims[1],
                               .nh = in[DT_RAW]->dims[2],
                               .dt_raw = kr_operand_of(in[DT_RAW]),
                               .a_raw = kr_operand_of(in[A_RAW]),
                               .lambda_raw = kr_operand_of(in[LAMBDA_RAW]),
                               .dt_bias = kr_tensor_data(in[DT_BIAS]),
                               .dt = out[DT]->data,
                               .da = out[DA]->data,
                               .gamma = out[GAMMA]->data,
                               .carry = out[CARRY]->data,
                               .beta = out[BETA]->data,
                               .a_floor = o->a_floor,
                               .dt_min = o->dt_min,
                               .dt_max = o->dt_max,
                               .softplus = o->a_activation == KR_A_ACTIVATION_SOFTPLUS };
    return KR_RUN(tape->ctx, trapezoid[kr_real_of(in[DT_RAW]->dtype)], &args);
}

kr_trapezoid_out kr_trapezoid(kr_tape *tape, kr_tensor *dt_raw, kr_tensor *dt_bias, kr_tensor *a_raw,
                              kr_tensor *lambda_raw, const kr_trapezoid_options *given)
{
    const kr_trapezoid_out none = { .dt_bsh = NULL };
    kr_trapezoid_options o;
    kr_dims d;
    kr_dtype result;
    if (!kr_bind(tape, "trapezoid", &d, "dt_raw:bsh dt_bias:h? a_raw:bsh lambda_raw:bsh", dt_raw, dt_bias, a_raw,
                 lambda_raw) ||
        !KR_TAKE(tape->ctx, "trapezoid", kr_trapezoid_options, given, &o) || !check_options(tape, &o) ||
        !KR_REALS(tape, "trapezoid", "dt_raw dt_bias a_raw lambda_raw", &result, &dt_raw, &dt_bias, &a_raw,
                  &lambda_raw))
        return none;
    kr_tensor *in[NIN] = { dt_raw, dt_bias, a_raw, lambda_raw }, *out[NOUT];
    if (!lay_out(tape, in)) return none;
    for (int i = 0; i < NOUT; i++)
        if (!(out[i] = kr_new(tape, in[DT_RAW]->dtype, kr_tensor_shape(in[DT_RAW])))) return none;
    if (!run_trapezoid(tape, in, out, &o)) return none;
    const kr_record_args record = {
        .rule = &trapezoid_rule, .n_in = NIN, .in = in, .n_out = NOUT, .out = out, .attrs = &o, .attrs_bytes = sizeof o
    };
    if (!kr_record_node(tape, &record, false)) return none;
    return (kr_trapezoid_out){
        .dt_bsh = out[DT], .da_bsh = out[DA], .gamma_bsh = out[GAMMA], .carry_bsh = out[CARRY], .beta_bsh = out[BETA]
    };
}

/* x_{t+1} at t, 0 at the last. */
static kr_tensor *next_of(kr_tape *tape, kr_tensor *x, int64_t ns)
{
    return kr_pad(tape, kr_slice(tape, x, 1, 1, ns), 1, 0, 1, 0);
}

kr_tensor *kr_trapezoid_scale(kr_tape *tape, kr_tensor *gamma, kr_tensor *carry, kr_tensor *seq_start)
{
    kr_dims d;
    kr_dtype result;
    if (!kr_bind(tape, "trapezoid_scale", &d, "gamma:bsh carry:bsh seq_start:bs?", gamma, carry, seq_start) ||
        !kr_require(tape->ctx, d.s >= 1, KR_ERR_SHAPE, "trapezoid_scale: gamma %s has no token; a sequence needs one",
                    KR_TEXT_OF(gamma)) ||
        (seq_start && !kr_require(tape->ctx, seq_start->dtype == KR_DTYPE_I32 || seq_start->dtype == KR_DTYPE_I64,
                                  KR_ERR_DTYPE, "trapezoid_scale: seq_start %s is %s, but must be i32 or i64",
                                  KR_TEXT_OF(seq_start), kr_dtype_name(seq_start->dtype))) ||
        !KR_REALS(tape, "trapezoid_scale", "gamma carry", &result, &gamma, &carry))
        return NULL;
    kr_tensor *next = next_of(tape, carry, d.s);
    if (seq_start)
        next = kr_mask_fill(tape, next, kr_reshape(tape, next_of(tape, seq_start, d.s), KR_SHAPE(d.b, d.s, 1)), 0);
    return kr_store_as(tape, kr_add(tape, gamma, next), result);
}

kr_tensor *kr_boundary_state(kr_tape *tape, kr_tensor *state, kr_tensor *carry0, kr_tensor *v, kr_tensor *k)
{
    kr_dims d;
    kr_dtype result;
    if (!kr_bind(tape, "boundary_seed", &d, "state:bhpr? carry0:bh v:bmhp k:bmhr", state, carry0, v, k) ||
        !KR_REALS(tape, "boundary_seed", "state carry0 v k", &result, &state, &carry0, &v, &k))
        return NULL;
    kr_tensor *v_bhpm = kr_permute(tape, v, KR_AXES(0, 2, 3, 1)), *k_bhmr = kr_permute(tape, k, KR_AXES(0, 2, 1, 3));
    v_bhpm = kr_mul(tape, v_bhpm, kr_reshape(tape, carry0, KR_SHAPE(d.b, d.h, 1, 1)));
    if (!v_bhpm || !k_bhmr) return NULL;
    return kr_store_as(tape, kr_matmul_add(tape, v_bhpm, k_bhmr, NULL, state), result);
}
