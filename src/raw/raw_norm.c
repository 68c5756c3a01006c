/* raw_norm.c - norms over groups of the last axis, and the gate: rows that do not depend on one another. */
#include "raw/raw_impl.h"

/* ---- both norms ---- */

/* Views q and mean have a number for each group. */
static bool check_groups(const raw_call *call, int first, int count)
{
    const int64_t groups = call->o.n_groups, ni = call->d.i;
    if (!kr_require(call->ctx, groups >= 1 && ni % groups == 0, KR_ERR_ARG,
                    "%s: n_groups = %lld does not divide i = %lld", call->op, (long long)groups, (long long)ni))
        return false;
    for (int n = first; n < first + count; n++)
        if (call->x[n] && call->d.e != groups)
            return kr_fail(call->ctx, KR_ERR_SHAPE, "%s: axis e of %s %s is %lld, but n_groups = %lld", call->op,
                           RAW_NAME(call, n), KR_TEXT_OF(call->x[n]), (long long)call->d.e, (long long)groups);
    return true;
}

/* ---- RMS norm ---- */

enum { X, Z, GAIN, Y, Q, NNORM };
enum { BACK_Q = GAIN + 1, G_Y, G_X, G_Z, G_GAIN, NNORM_BACKWARD };

static bool check_norm(const raw_call *call)
{
    return check_groups(call, Q, 1) && kr_require(call->ctx, !call->o.norm_first || call->x[Z], KR_ERR_ARG,
                                                  "%s: norm_first is set, but z is absent", call->op);
}

static bool run_norm(raw_call *call)
{
    const kr_raw_options *o = &call->o;
    kr_norm_args args = { .no = call->d.rows,
                          .ni = call->d.i,
                          .ng = o->n_groups,
                          .x = kr_operand_of(call->x[X]),
                          .z = kr_operand_of(call->x[Z]),
                          .y = kr_operand_of(call->x[Y]),
                          .gain = raw_data(call, GAIN),
                          .q = raw_result(call, Q, call->d.rows * o->n_groups),
                          .eps = o->eps,
                          .norm_first = o->norm_first };
    return RAW_RUN(call, norm[call->real], &args);
}

static const raw_rule norm_rules[NNORM] = {
    [X] = RAW_RULE(RAW_ROWS, norm_x), [Z] = RAW_RULE(RAW_ROWS, norm_z), [Y] = RAW_RULE(RAW_PLAIN, norm_y)
};

const raw_about raw_norm = { RAW_TEXTS("norm", "x:..i z:..i? gain:i?", "y:..i q:..e?"),
                             .n_operands = Y,
                             .n_views = NNORM,
                             .options = RAW_EPS | RAW_N_GROUPS | RAW_NORM_FIRST,
                             .rules = norm_rules,
                             .check = check_norm,
                             .run = run_norm };

static bool check_norm_backward(const raw_call *call)
{
    const kr_tensor *g_x = call->x[G_X];
    if (!check_groups(call, BACK_Q, 1) ||
        !kr_require(call->ctx, !call->o.norm_first || call->x[Z], KR_ERR_ARG, "%s: norm_first is set, but z is absent",
                    call->op) ||
        !kr_require(call->ctx, !call->o.accumulate || !call->x[Z], KR_ERR_ARG,
                    "%s: accumulate is set, but with a gate z gradients are not added", call->op) ||
        !kr_require(call->ctx, !call->o.accumulate || g_x, KR_ERR_ARG, "%s: accumulate is set, but g_x is absent",
                    call->op))
        return false;
    if (!kr_require(call->ctx, !call->o.accumulate || kr_tensor_is_row_major(g_x), KR_ERR_SHAPE,
                    "%s: accumulate is set, but g_x %s is not row-major; use a copy", call->op, KR_TEXT_OF(g_x)))
        return false;
    return kr_require(call->ctx, !call->o.accumulate || g_x->dtype == call->dtype, KR_ERR_DTYPE,
                      "%s: accumulate is set, but g_x is %s; gradients are added in %s", call->op,
                      kr_dtype_name(g_x->dtype), kr_dtype_name(call->dtype));
}

static bool run_norm_backward(raw_call *call)
{
    const kr_raw_options *o = &call->o;
    kr_norm_bwd_args args = { .no = call->d.rows,
                              .ni = call->d.i,
                              .ng = o->n_groups,
                              .x = kr_operand_of(call->x[X]),
                              .z = kr_operand_of(call->x[Z]),
                              .g_y = kr_operand_of(call->x[G_Y]),
                              .gain = raw_data(call, GAIN),
                              .q = raw_data(call, BACK_Q),
                              .g_x = kr_operand_of(call->x[G_X]),
                              .g_z = kr_operand_of(call->x[G_Z]),
                              .g_gain = raw_data(call, G_GAIN),
                              .eps = o->eps,
                              .norm_first = o->norm_first,
                              .accumulate = o->accumulate };
    return RAW_RUN(call, norm_bwd[call->real], &args);
}

static const raw_rule norm_backward_rules[NNORM_BACKWARD] = { [X] = RAW_RULE(RAW_ROWS, norm_bwd_x),
                                                              [Z] = RAW_RULE(RAW_ROWS, norm_bwd_z),
                                                              [G_Y] = RAW_RULE(RAW_PLAIN, norm_bwd_g_y),
                                                              [G_X] = RAW_RULE(RAW_ROWS, norm_bwd_g_x),
                                                              [G_Z] = RAW_RULE(RAW_ROWS, norm_bwd_g_z) };

const raw_about raw_norm_backward = { RAW_TEXTS("norm_backward", "x:..i z:..i? gain:i? q:..e g_y:..i",
                                                "g_x:..i? g_z:..i? g_gain:i?"),
                                      .n_operands = G_X,
                                      .n_views = NNORM_BACKWARD,
                                      .options = RAW_EPS | RAW_N_GROUPS | RAW_NORM_FIRST | RAW_ACCUMULATE,
                                      .rules = norm_backward_rules,
                                      .check = check_norm_backward,
                                      .run = run_norm_backward };

/* ---- layer norm ---- */

enum { L_X, L_GAIN, L_BIAS, L_Y, L_MEAN, L_Q, NLAYER };
enum { B_X, B_GAIN, B_MEAN, B_Q, B_G_Y, B_G_X, B_G_GAIN, B_G_BIAS, NLAYER_BACKWARD };

static bool check_layer_norm(const raw_call *call)
{
    return check_groups(call, L_MEAN, 2);
}

static bool run_layer_norm(raw_call *call)
{
    const int64_t groups = call->o.n_groups, count = call->d.rows * groups;
    kr_layer_norm_args args = { .no = call->d.rows,
                                .ni = call->d.i,
                                .ng = groups,
                                .x = kr_operand_of(call->x[L_X]),
                                .gain = raw_data(call, L_GAIN),
                                .bias = raw_data(call, L_BIAS),
                                .y = raw_data(call, L_Y),
                                .mean = raw_result(call, L_MEAN, count),
                                .q = raw_result(call, L_Q, count),
                                .eps = call->o.eps };
    return RAW_RUN(call, layer_norm[call->real], &args);
}

static const raw_rule layer_norm_rules[NLAYER] = { [L_X] = RAW_RULE(RAW_ROWS, layer_norm_x) };

const raw_about raw_layer_norm = { RAW_TEXTS("layer_norm", "x:..i gain:i? bias:i?", "y:..i mean:..e? q:..e?"),
                                   .n_operands = L_Y,
                                   .n_views = NLAYER,
                                   .options = RAW_EPS | RAW_N_GROUPS,
                                   .rules = layer_norm_rules,
                                   .check = check_layer_norm,
                                   .run = run_layer_norm };

static bool check_layer_norm_backward(const raw_call *call)
{
    return check_groups(call, B_MEAN, 2);
}

static bool run_layer_norm_backward(raw_call *call)
{
    kr_layer_norm_bwd_args args = { .no = call->d.rows,
                                    .ni = call->d.i,
                                    .ng = call->o.n_groups,
                                    .x = kr_operand_of(call->x[B_X]),
                                    .gain = raw_data(call, B_GAIN),
                                    .mean = raw_data(call, B_MEAN),
                                    .q = raw_data(call, B_Q),
                                    .g_y = raw_data(call, B_G_Y),
                                    .g_x = raw_data(call, B_G_X),
                                    .g_gain = raw_data(call, B_G_GAIN),
                                    .g_bias = raw_data(call, B_G_BIAS) };
    return RAW_RUN(call, layer_norm_bwd[call->real], &args);
}

static const raw_rule layer_norm_backward_rules[NLAYER_BACKWARD] = { [B_X] = RAW_RULE(RAW_ROWS, layer_norm_bwd_x) };

const raw_about raw_layer_norm_backward = { RAW_TEXTS("layer_norm_backward", "x:..i gain:i? mean:..e q:..e g_y:..i",
                                                      "g_x:..i? g_gain:i? g_bias:i?"),
                                            .n_operands = B_G_X,
                                            .n_views = NLAYER_BACKWARD,
                                            .options = RAW_N_GROUPS,
                                            .rules = layer_norm_backward_rules,
                                            .check = check_layer_norm_backward,
                                            .run = run_layer_norm_backward };

/* ---- the gate ---- */

enum { GATE_X, GATE_Z, GATE_Y, NGATE };
enum { GATE_G_Y = GATE_Z + 1, GATE_G_X, GATE_G_Z, NGATE_BACKWARD };

/* The last axis is a row; a scalar is one of one element. */
static int64_t row_of(const kr_tensor *x)
{
    return x->rank ? x->dims[x->rank - 1] : 1;
}

static int64_t rows_of(const kr_tensor *x)
{
    int64_t rows = 1;
    for (int i = 0; i < x->rank - 1; i++) rows *= x->dims[i];
    return rows;
}

static bool run_gate(raw_call *call)
{
    const kr_tensor *x = call->x[GATE_X];
    kr_gate_args args = { .no = rows_of(x),
                          .ni = row_of(x),
                          .x = kr_operand_of(x),
                          .z = kr_operand_of(call->x[GATE_Z]),
                          .y = kr_operand_of(call->x[GATE_Y]) };
    return RAW_RUN(call, gate[call->real], &args);
}

static bool run_gate_backward(raw_call *call)
{
    const kr_tensor *x = call->x[GATE_X];
    kr_gate_bwd_args args = { .no = rows_of(x),
                              .ni = row_of(x),
                              .x = kr_operand_of(x),
                              .z = kr_operand_of(call->x[GATE_Z]),
                              .g_y = kr_operand_of(call->x[GATE_G_Y]),
                              .g_x = kr_operand_of(call->x[GATE_G_X]),
                              .g_z = kr_operand_of(call->x[GATE_G_Z]) };
    return RAW_RUN(call, gate_bwd[call->real], &args);
}

static const raw_rule gate_rules[NGATE] = {
    [GATE_X] = RAW_RULE(RAW_ROWS, gate_x), [GATE_Z] = RAW_RULE(RAW_ROWS, gate_z), [GATE_Y] = RAW_RULE(RAW_PLAIN, gate_y)
};

const raw_about raw_gate = { RAW_TEXTS("gate", "x:.. z:..", "y:.."), .n_operands = GATE_Y, .n_views = NGATE,
                             .rules = gate_rules, .run = run_gate };

static const raw_rule gate_backward_rules[NGATE_BACKWARD] = { [GATE_X] = RAW_RULE(RAW_ROWS, gate_bwd_x),
                                                              [GATE_Z] = RAW_RULE(RAW_ROWS, gate_bwd_z),
                                                              [GATE_G_Y] = RAW_RULE(RAW_ROWS, gate_bwd_g_y),
                                                              [GATE_G_X] = RAW_RULE(RAW_ROWS, gate_bwd_g_x),
                                                              [GATE_G_Z] = RAW_RULE(RAW_ROWS, gate_bwd_g_z) };

const raw_about raw_gate_backward = { RAW_TEXTS("gate_backward", "x:.. z:.. g_y:..", "g_x:..? g_z:..?"),
                                      .n_operands = GATE_G_X, .n_views = NGATE_BACKWARD, .rules = gate_backward_rules,
                                      .run = run_gate_backward };
