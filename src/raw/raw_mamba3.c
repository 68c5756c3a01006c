/* raw_mamba3.c - Mamba-3's coefficients and angles, and the rotation of rows by angles. */
#include "raw/raw_impl.h"

/* ---- the trapezoidal rule ---- */

#define RAW_OPERANDS "dt_raw:..h dt_bias:h? a_raw:..h lambda_raw:..h"

enum { DT_RAW, DT_BIAS, A_RAW, LAMBDA_RAW };
enum { DT = LAMBDA_RAW + 1, DA, GAMMA, CARRY, BETA, NTRAPEZOID };
enum { G_DT = LAMBDA_RAW + 1, G_DA, G_GAMMA, G_CARRY, G_BETA };
enum { G_DT_RAW = G_BETA + 1, G_DT_BIAS, G_A_RAW, G_LAMBDA_RAW, NTRAPEZOID_BACKWARD };

/* The kernel knows one distance of rows for all three. */
static bool check_trapezoid(const raw_call *call)
{
    kr_tensor *const *x = call->x;
    const int64_t row = kr_operand_of(x[DT_RAW]).row;
    if (call->d.rows <= 1 || call->d.h == 0) return true;
    return kr_require(
        call->ctx, kr_operand_of(x[A_RAW]).row == row && kr_operand_of(x[LAMBDA_RAW]).row == row, KR_ERR_SHAPE,
        "%s: the rows of dt_raw, a_raw and lambda_raw are %lld, %lld and %lld elements apart, but the kernel "
        "reads them at one distance; use copies",
        call->op, (long long)row, (long long)kr_operand_of(x[A_RAW]).row, (long long)kr_operand_of(x[LAMBDA_RAW]).row);
}

static bool run_trapezoid(raw_call *call)
{
    const kr_raw_options *o = &call->o;
    const int64_t count = call->d.rows * call->d.h;
    kr_trapezoid_args args = { .no = call->d.rows,
                               .nh = call->d.h,
                               .dt_raw = kr_operand_of(call->x[DT_RAW]),
                               .a_raw = kr_operand_of(call->x[A_RAW]),
                               .lambda_raw = kr_operand_of(call->x[LAMBDA_RAW]),
                               .dt_bias = raw_data(call, DT_BIAS),
                               .dt = raw_result(call, DT, count),
                               .da = raw_result(call, DA, count),
                               .gamma = raw_result(call, GAMMA, count),
                               .carry = raw_result(call, CARRY, count),
                               .beta = raw_result(call, BETA, count),
                               .a_floor = o->a_floor,
                               .dt_min = o->dt_min,
                               .dt_max = o->dt_max,
                               .softplus = o->softplus };
    return RAW_RUN(call, trapezoid[call->real], &args);
}

static const raw_rule trapezoid_rules[NTRAPEZOID] = {
    [DT_RAW] = { RAW_ROWS, 0 }, [A_RAW] = { RAW_ROWS, 0 }, [LAMBDA_RAW] = { RAW_ROWS, 0 }
};

const raw_about raw_trapezoid = { RAW_TEXTS("trapezoid", RAW_OPERANDS,
                                            "dt:..h? da:..h? gamma:..h? carry:..h? beta:..h?"),
                                  .n_operands = DT,
                                  .n_views = NTRAPEZOID,
                                  .options = RAW_LIMITS | RAW_SOFTPLUS,
                                  .rules = trapezoid_rules,
                                  .check = check_trapezoid,
                                  .run = run_trapezoid };

static bool check_trapezoid_backward(const raw_call *call)
{
    const kr_tensor *of_type = NULL;
    if (!check_trapezoid(call)) return false;
    for (int n = G_DT_RAW; n < NTRAPEZOID_BACKWARD; n++) {
        const kr_tensor *x = n == G_DT_BIAS ? NULL : call->x[n];
        if (x && of_type && x->dtype != of_type->dtype)
            return kr_fail(call->ctx, KR_ERR_DTYPE,
                           "%s: %s %s is %s, but another of the raw gradients is %s; they have one type", call->op,
                           RAW_NAME(call, n), KR_TEXT_OF(x), kr_dtype_name(x->dtype), kr_dtype_name(of_type->dtype));
        if (x) of_type = x;
    }
    return true;
}

/* Where the gradient of dt_bias is summed from: g_dt_raw if it is of the slot's type. If it is absent, memory of its own
 * stands for it, of the type of the others. */
static bool run_trapezoid_backward(raw_call *call)
{
    const kr_raw_options *o = &call->o;
    kr_tensor *const *x = call->x;
    const int64_t count = call->d.rows * call->d.h;
    kr_operand g_dt_raw = kr_operand_of(x[G_DT_RAW]);
    const kr_tensor *other = x[G_A_RAW] ? x[G_A_RAW] : x[G_LAMBDA_RAW];
    void *summed = NULL;
    if (x[G_DT_BIAS]) {
        if (!x[G_DT_RAW] && !(other && other->dtype != call->dtype))
            g_dt_raw = (kr_operand){ raw_take(call, kr_dtype_span(call->dtype, count)), call->dtype, call->d.h };
        else if (!x[G_DT_RAW] || x[G_DT_RAW]->dtype != call->dtype)
            summed = raw_take(call, kr_dtype_span(call->dtype, count));
    }
    kr_trapezoid_bwd_args args = { .no = call->d.rows,
                                   .nh = call->d.h,
                                   .dt_raw = kr_operand_of(x[DT_RAW]),
                                   .a_raw = kr_operand_of(x[A_RAW]),
                                   .lambda_raw = kr_operand_of(x[LAMBDA_RAW]),
                                   .dt_bias = raw_data(call, DT_BIAS),
                                   .g_dt = raw_data(call, G_DT),
                                   .g_da = raw_data(call, G_DA),
                                   .g_gamma = raw_data(call, G_GAMMA),
                                   .g_carry = raw_data(call, G_CARRY),
                                   .g_beta = raw_data(call, G_BETA),
                                   .g_dt_raw = g_dt_raw,
                                   .g_a_raw = kr_operand_of(x[G_A_RAW]),
                                   .g_lambda_raw = kr_operand_of(x[G_LAMBDA_RAW]),
                                   .g_dt_summed = summed,
                                   .a_floor = o->a_floor,
                                   .dt_min = o->dt_min,
                                   .dt_max = o->dt_max,
                                   .softplus = o->softplus };
    if (!RAW_RUN(call, trapezoid_bwd[call->real], &args)) return false;
    if (!x[G_DT_BIAS]) return true;
    kr_reduce_args sum = { .no = 1,
                           .nr = call->d.rows,
                           .ni = call->d.h,
                           .x = summed ? summed : g_dt_raw.data,
                           .y = x[G_DT_BIAS]->data,
                           .alpha = 1 };
    return RAW_RUN(call, sum[call->real], &sum);
}

static const raw_rule trapezoid_backward_rules[NTRAPEZOID_BACKWARD] = {
    [DT_RAW] = { RAW_ROWS, 0 },
    [A_RAW] = { RAW_ROWS, 0 },
    [LAMBDA_RAW] = { RAW_ROWS, 0 },
    [G_DT_RAW] = RAW_RULE(RAW_PLAIN, trapezoid_bwd_g_raw),
    [G_A_RAW] = RAW_RULE(RAW_PLAIN, trapezoid_bwd_g_raw),
    [G_LAMBDA_RAW] = RAW_RULE(RAW_PLAIN, trapezoid_bwd_g_raw)
};

const raw_about raw_trapezoid_backward = {
    RAW_TEXTS("trapezoid_backward", RAW_OPERANDS " g_dt:..h? g_da:..h? g_gamma:..h? g_carry:..h? g_beta:..h?",
              "g_dt_raw:..h? g_dt_bias:h? g_a_raw:..h? g_lambda_raw:..h?"),
    .n_operands = G_DT_RAW,
    .n_views = NTRAPEZOID_BACKWARD,
    .options = RAW_LIMITS | RAW_SOFTPLUS,
    .rules = trapezoid_backward_rules,
    .check = check_trapezoid_backward,
    .run = run_trapezoid_backward
};

/* ---- angles ---- */

enum { THETA, A_DT, INITIAL, ANGLE, FINAL, NANGLES };
enum { B_G_ANGLE = A_DT + 1, B_G_FINAL, B_G_THETA, B_G_DT, B_G_INITIAL, NANGLES_BACKWARD };

static bool check_angles(const raw_call *call)
{
    const kr_dims *d = &call->d;
    return kr_require(call->ctx, d->b >= 1 && d->s >= 1 && d->h >= 1 && d->a >= 1, KR_ERR_SHAPE,
                      "%s: theta %s and dt %s have an empty axis", call->op, KR_TEXT_OF(call->x[THETA]),
                      KR_TEXT_OF(call->x[A_DT]));
}

static bool run_angles(raw_call *call)
{
    const kr_dims *d = &call->d;
    void *final = raw_state(call, FINAL, INITIAL, call->nq * d->h * d->a);
    kr_angles_args args = { .nb = d->b,
                            .ns = d->s,
                            .nh = d->h,
                            .na = d->a,
                            .nq = call->nq,
                            .nl = call->o.chunk_len,
                            .sequences = call->sequences,
                            .theta = kr_operand_of(call->x[THETA]),
                            .dt = raw_data(call, A_DT),
                            .initial = raw_data(call, INITIAL),
                            .angle = raw_data(call, ANGLE),
                            .final = final,
                            .range = call->o.range };
    return RAW_RUN(call, angles[call->real], &args) && raw_store(call, FINAL, INITIAL, final);
}

static const raw_rule angles_rules[NANGLES] = { [THETA] = { RAW_ROWS, 0 } };

const raw_about raw_angles = { RAW_TEXTS("angles", "theta:bsa dt:bsh initial:qha?", "angle:bsha final:qha?"),
                               .n_operands = ANGLE,
                               .n_views = NANGLES,
                               .options = RAW_RANGE | RAW_CHUNK_LEN | RAW_SEQUENCES,
                               .covers = true,
                               .state_operand = INITIAL,
                               .state_result = FINAL,
                               .rules = angles_rules,
                               .check = check_angles,
                               .run = run_angles };

static bool run_angles_backward(raw_call *call)
{
    const kr_dims *d = &call->d;
    kr_angles_bwd_args args = { .nb = d->b,
                                .ns = d->s,
                                .nh = d->h,
                                .na = d->a,
                                .nq = call->nq,
                                .sequences = call->sequences,
                                .theta = kr_operand_of(call->x[THETA]),
                                .dt = raw_data(call, A_DT),
                                .g_angle = raw_gradient(call, B_G_ANGLE, d->b * d->s * d->h * d->a),
                                .g_final = raw_data(call, B_G_FINAL),
                                .g_theta = kr_operand_of(call->x[B_G_THETA]),
                                .g_dt = raw_data(call, B_G_DT),
                                .g_initial = raw_data(call, B_G_INITIAL),
                                .range = call->o.range };
    return RAW_RUN(call, angles_bwd[call->real], &args);
}

static const raw_rule angles_backward_rules[NANGLES_BACKWARD] = {
    [THETA] = { RAW_ROWS, 0 }, [B_G_THETA] = RAW_RULE(RAW_PLAIN, angles_bwd_g_theta)
};

const raw_about raw_angles_backward = { RAW_TEXTS("angles_backward", "theta:bsa dt:bsh g_angle:bsha? g_final:qha?",
                                                  "g_theta:bsa? g_dt:bsh? g_initial:qha?"),
                                        .n_operands = B_G_THETA,
                                        .n_views = NANGLES_BACKWARD,
                                        .options = RAW_RANGE | RAW_SEQUENCES,
                                        .covers = true,
                                        .rules = angles_backward_rules,
                                        .check = check_angles,
                                        .run = run_angles_backward };

/* ---- rotated rows ---- */

enum { R_X, R_BIAS, R_ANGLE, R_Y, NROTATE };
enum { R_G_Y = R_ANGLE + 1, R_G_X, R_G_BIAS, R_G_ANGLE, NROTATE_BACKWARD };

static bool check_rotate(const raw_call *call)
{
    const kr_dims *d = &call->d;
    const kr_tensor *x = call->x[R_X];
    kr_ctx *ctx = call->ctx;
    return kr_require(ctx, !call->o.split_pairs || d->r % 2 == 0, KR_ERR_SHAPE,
                      "%s: r = %lld of x %s is odd, but split pairs need an even r", call->op, (long long)d->r,
                      KR_TEXT_OF(x)) &&
           kr_require(ctx, d->a <= d->r / 2, KR_ERR_SHAPE,
                      "%s: a = %lld angles rotate %lld entries, but r of x %s is %lld", call->op, (long long)d->a,
                      (long long)(2 * d->a), KR_TEXT_OF(x), (long long)d->r) &&
           kr_require(ctx, d->g >= 1 && d->h % d->g == 0, KR_ERR_SHAPE,
                      "%s: g = %lld groups of x %s do not divide h = %lld of angle %s", call->op, (long long)d->g,
                      KR_TEXT_OF(x), (long long)d->h, KR_TEXT_OF(call->x[R_ANGLE]));
}

static bool run_rotate(raw_call *call)
{
    const kr_dims *d = &call->d;
    kr_rotate_args args = { .no = d->b * d->s,
                            .nm = d->m,
                            .nh = d->h,
                            .ng = d->g,
                            .nr = d->r,
                            .na = d->a,
                            .x = raw_data(call, R_X),
                            .bias = raw_data(call, R_BIAS),
                            .angle = raw_data(call, R_ANGLE),
                            .y = kr_operand_of(call->x[R_Y]),
                            .split_pairs = call->o.split_pairs };
    return RAW_RUN(call, rotate[call->real], &args);
}

static const raw_rule rotate_rules[NROTATE] = { [R_Y] = RAW_RULE(RAW_PLAIN, rotate_y) };

const raw_about raw_rotate = { RAW_TEXTS("rotate", "x:bsmgr bias:hmr? angle:bsha", "y:bsmhr"),
                               .n_operands = R_Y,
                               .n_views = NROTATE,
                               .options = RAW_SPLIT_PAIRS,
                               .rules = rotate_rules,
                               .check = check_rotate,
                               .run = run_rotate };

static bool check_rotate_backward(const raw_call *call)
{
    return check_rotate(call) && kr_require(call->ctx, !call->o.accumulate || call->x[R_G_ANGLE], KR_ERR_ARG,
                                            "%s: accumulate is set, but g_angle is absent", call->op);
}

static bool run_rotate_backward(raw_call *call)
{
    const kr_dims *d = &call->d;
    kr_rotate_bwd_args args = { .no = d->b * d->s,
                                .nm = d->m,
                                .nh = d->h,
                                .ng = d->g,
                                .nr = d->r,
                                .na = d->a,
                                .x = raw_data(call, R_X),
                                .bias = raw_data(call, R_BIAS),
                                .angle = raw_data(call, R_ANGLE),
                                .g_y = raw_data(call, R_G_Y),
                                .g_x = raw_data(call, R_G_X),
                                .g_bias = raw_data(call, R_G_BIAS),
                                .g_angle = raw_data(call, R_G_ANGLE),
                                .split_pairs = call->o.split_pairs,
                                .accumulate = call->o.accumulate };
    return RAW_RUN(call, rotate_bwd[call->real], &args);
}

static const raw_rule rotate_backward_rules[NROTATE_BACKWARD] = { { RAW_PLAIN, 0 } };

const raw_about raw_rotate_backward = { RAW_TEXTS("rotate_backward", "x:bsmgr bias:hmr? angle:bsha g_y:bsmhr",
                                                  "g_x:bsmgr? g_bias:hmr? g_angle:bsha?"),
                                        .n_operands = R_G_X,
                                        .n_views = NROTATE_BACKWARD,
                                        .options = RAW_SPLIT_PAIRS | RAW_ACCUMULATE,
                                        .rules = rotate_backward_rules,
                                        .check = check_rotate_backward,
                                        .run = run_rotate_backward };
