/* raw_scan.c - the selective scan of Mamba-1. */
#include "raw/raw_impl.h"

#define OPERANDS "x:bsi dt:bsi a:ir b:bsgr c:bsgr d:i? z:bsi? initial:qir?"

enum { X, DT, A, B, C, D, Z, INITIAL, Y, FINAL, NFORWARD };
enum { G_Y = INITIAL + 1, G_FINAL, G_X, G_DT, G_A, G_B, G_C, G_D, G_Z, G_INITIAL, NBACKWARD };

static bool check(const raw_call *call)
{
    const kr_dims *d = &call->d;
    kr_ctx *ctx = call->ctx;
    return kr_require(ctx, d->b >= 1 && d->s >= 1 && d->i >= 1 && d->r >= 1, KR_ERR_SHAPE,
                      "%s: x %s and a %s have an empty axis", call->op, KR_TEXT_OF(call->x[X]),
                      KR_TEXT_OF(call->x[A])) &&
           kr_require(ctx, d->g >= 1 && d->i % d->g == 0, KR_ERR_SHAPE,
                      "%s: g = %lld groups of b %s do not divide i = %lld channels", call->op, (long long)d->g,
                      KR_TEXT_OF(call->x[B]), (long long)d->i);
}

static bool run_forward(raw_call *call)
{
    const kr_dims *d = &call->d;
    kr_scan_args args = { .nb = d->b,
                          .ns = d->s,
                          .ni = d->i,
                          .ng = d->g,
                          .nr = d->r,
                          .nq = call->nq,
                          .sequences = call->sequences,
                          .x = kr_token_operand(call->x[X]),
                          .dt = kr_token_operand(call->x[DT]),
                          .z = kr_token_operand(call->x[Z]),
                          .b = kr_token_operand(call->x[B]),
                          .c = kr_token_operand(call->x[C]),
                          .a = raw_data(call, A),
                          .d = raw_data(call, D),
                          .initial = raw_data(call, INITIAL),
                          .y = raw_data(call, Y),
                          .final = raw_data(call, FINAL) };
    return RAW_RUN(call, scan[call->real], &args);
}

static bool run_backward(raw_call *call)
{
    const kr_dims *d = &call->d;
    kr_scan_bwd_args args = { .nb = d->b,
                              .ns = d->s,
                              .ni = d->i,
                              .ng = d->g,
                              .nr = d->r,
                              .nq = call->nq,
                              .sequences = call->sequences,
                              .x = kr_token_operand(call->x[X]),
                              .dt = kr_token_operand(call->x[DT]),
                              .z = kr_token_operand(call->x[Z]),
                              .b = kr_token_operand(call->x[B]),
                              .c = kr_token_operand(call->x[C]),
                              .a = raw_data(call, A),
                              .d = raw_data(call, D),
                              .initial = raw_data(call, INITIAL),
                              .g_y = raw_gradient(call, G_Y, d->b * d->s * d->i),
                              .g_final = raw_data(call, G_FINAL),
                              .g_x = raw_data(call, G_X),
                              .g_dt = raw_data(call, G_DT),
                              .g_a = raw_data(call, G_A),
                              .g_b = raw_data(call, G_B),
                              .g_c = raw_data(call, G_C),
                              .g_d = raw_data(call, G_D),
                              .g_z = raw_data(call, G_Z),
                              .g_initial = raw_data(call, G_INITIAL) };
    return RAW_RUN(call, scan_bwd[call->real], &args);
}

static const raw_rule scan_rules[NBACKWARD] = {
    [X] = { RAW_TOKENS, 0 }, [DT] = { RAW_TOKENS, 0 }, [B] = { RAW_TOKENS, 0 },
    [C] = { RAW_TOKENS, 0 }, [Z] = { RAW_TOKENS, 0 },
};

const raw_about raw_scan = { RAW_TEXTS("scan", OPERANDS, "y:bsi final:qir?"),
                             .n_operands = Y,
                             .n_views = NFORWARD,
                             .options = RAW_SEQUENCES,
                             .state_operand = INITIAL,
                             .state_result = FINAL,
                             .rules = scan_rules,
                             .check = check,
                             .run = run_forward };

const raw_about raw_scan_backward = {
    RAW_TEXTS("scan_backward", OPERANDS " g_y:bsi? g_final:qir?",
              "g_x:bsi? g_dt:bsi? g_a:ir? g_b:bsgr? g_c:bsgr? g_d:i? g_z:bsi? g_initial:qir?"),
    .n_operands = G_X,
    .n_views = NBACKWARD,
    .options = RAW_SEQUENCES,
    .rules = scan_rules,
    .check = check,
    .run = run_backward
};
