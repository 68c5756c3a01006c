/* raw_quaternion.c - Mamba-3's rotation by quaternions: increments, their cumulative products, rows rotated by them. */
#include "raw/raw_impl.h"

static const raw_rule plain[RAW_MOST_VIEWS] = { { RAW_PLAIN, 0 } };

/* ---- increments ---- */

enum { RAW, DT, Q };
enum { G_Q = DT + 1, G_RAW, G_DT };

static bool run_exp(raw_call *call)
{
    kr_quaternion_exp_args args = { .no = call->d.rows,
                                    .nj = call->d.j,
                                    .raw = raw_data(call, RAW),
                                    .dt = raw_data(call, DT),
                                    .q = raw_data(call, Q),
                                    .range = call->o.range };
    return RAW_RUN(call, quaternion_exp[call->real], &args);
}

const raw_about raw_quaternion_exp = { RAW_TEXTS("quaternion_exp", "raw:..j3 dt:..", "q:..j4"),
                                       .n_operands = Q,
                                       .n_views = Q + 1,
                                       .options = RAW_RANGE,
                                       .rules = plain,
                                       .run = run_exp };

static bool run_exp_backward(raw_call *call)
{
    kr_quaternion_exp_bwd_args args = { .no = call->d.rows,
                                        .nj = call->d.j,
                                        .raw = raw_data(call, RAW),
                                        .dt = raw_data(call, DT),
                                        .g_q = raw_data(call, G_Q),
                                        .g_raw = raw_data(call, G_RAW),
                                        .g_dt = raw_data(call, G_DT),
                                        .range = call->o.range };
    return RAW_RUN(call, quaternion_exp_bwd[call->real], &args);
}

const raw_about raw_quaternion_exp_backward = { RAW_TEXTS("quaternion_exp_backward", "raw:..j3 dt:.. g_q:..j4",
                                                          "g_raw:..j3? g_dt:..?"),
                                                .n_operands = G_RAW,
                                                .n_views = G_DT + 1,
                                                .options = RAW_RANGE,
                                                .rules = plain,
                                                .run = run_exp_backward };

/* ---- cumulative products ---- */

enum { S_Q, S_INITIAL, S_CUM, S_FINAL };
enum { S_G_CUM = S_CUM + 1, S_G_FINAL, S_G_Q, S_G_INITIAL };

static bool check_scan(const raw_call *call)
{
    return kr_require(call->ctx, call->d.b >= 1 && call->d.s >= 1, KR_ERR_SHAPE,
                      "%s: q %s has no token; a sequence needs at least one", call->op, KR_TEXT_OF(call->x[S_Q]));
}

static bool run_scan(raw_call *call)
{
    const kr_dims *d = &call->d;
    void *final = raw_state(call, S_FINAL, S_INITIAL, call->nq * d->h * d->j * 4);
    kr_quaternion_scan_args args = { .nb = d->b,
                                     .ns = d->s,
                                     .nh = d->h,
                                     .nj = d->j,
                                     .nq = call->nq,
                                     .nl = call->o.chunk_len,
                                     .sequences = call->sequences,
                                     .q = raw_data(call, S_Q),
                                     .initial = raw_data(call, S_INITIAL),
                                     .cum = raw_data(call, S_CUM),
                                     .final = final };
    return RAW_RUN(call, quaternion_scan[call->real], &args) && raw_store(call, S_FINAL, S_INITIAL, final);
}

const raw_about raw_quaternion_scan = { RAW_TEXTS("quaternion_scan", "q:bshj4 initial:qhj4?", "cum:bshj4 final:qhj4?"),
                                        .n_operands = S_CUM,
                                        .n_views = S_FINAL + 1,
                                        .options = RAW_CHUNK_LEN | RAW_SEQUENCES,
                                        .covers = true,
                                        .state_operand = S_INITIAL,
                                        .state_result = S_FINAL,
                                        .rules = plain,
                                        .check = check_scan,
                                        .run = run_scan };

static bool run_scan_backward(raw_call *call)
{
    const kr_dims *d = &call->d;
    kr_quaternion_scan_bwd_args args = { .nb = d->b,
                                         .ns = d->s,
                                         .nh = d->h,
                                         .nj = d->j,
                                         .nq = call->nq,
                                         .sequences = call->sequences,
                                         .q = raw_data(call, S_Q),
                                         .initial = raw_data(call, S_INITIAL),
                                         .cum = raw_data(call, S_CUM),
                                         .g_cum = raw_gradient(call, S_G_CUM, d->b * d->s * d->h * d->j * 4),
                                         .g_final = raw_data(call, S_G_FINAL),
                                         .g_q = raw_data(call, S_G_Q),
                                         .g_initial = raw_data(call, S_G_INITIAL) };
    return RAW_RUN(call, quaternion_scan_bwd[call->real], &args);
}

const raw_about raw_quaternion_scan_backward = { RAW_TEXTS("quaternion_scan_backward",
                                                           "q:bshj4 initial:qhj4? cum:bshj4 g_cum:bshj4? g_final:qhj4?",
                                                           "g_q:bshj4? g_initial:qhj4?"),
                                                 .n_operands = S_G_Q,
                                                 .n_views = S_G_INITIAL + 1,
                                                 .options = RAW_SEQUENCES,
                                                 .covers = true,
                                                 .rules = plain,
                                                 .check = check_scan,
                                                 .run = run_scan_backward };

/* ---- rotated rows ---- */

enum { R_X, R_CUM, R_Y };
enum { R_G_Y = R_CUM + 1, R_G_X, R_G_CUM };

static bool check_rotate(const raw_call *call)
{
    const kr_dims *d = &call->d;
    return kr_require(call->ctx, d->j <= d->r / 4, KR_ERR_SHAPE,
                      "%s: j = %lld blocks rotate %lld entries, but r of x %s is %lld", call->op, (long long)d->j,
                      (long long)(4 * d->j), KR_TEXT_OF(call->x[R_X]), (long long)d->r);
}

static bool run_rotate(raw_call *call)
{
    const kr_dims *d = &call->d;
    kr_quaternion_rotate_args args = { .no = d->b * d->s,
                                       .nm = d->m,
                                       .nh = d->h,
                                       .nr = d->r,
                                       .nj = d->j,
                                       .x = raw_data(call, R_X),
                                       .cum = raw_data(call, R_CUM),
                                       .y = raw_data(call, R_Y) };
    return RAW_RUN(call, quaternion_rotate[call->real], &args);
}

const raw_about raw_quaternion_rotate = { RAW_TEXTS("quaternion_rotate", "x:bsmhr cum:bshj4", "y:bsmhr"),
                                          .n_operands = R_Y,
                                          .n_views = R_Y + 1,
                                          .rules = plain,
                                          .check = check_rotate,
                                          .run = run_rotate };

static bool run_rotate_backward(raw_call *call)
{
    const kr_dims *d = &call->d;
    kr_quaternion_rotate_bwd_args args = { .no = d->b * d->s,
                                           .nm = d->m,
                                           .nh = d->h,
                                           .nr = d->r,
                                           .nj = d->j,
                                           .x = raw_data(call, R_X),
                                           .cum = raw_data(call, R_CUM),
                                           .g_y = raw_data(call, R_G_Y),
                                           .g_x = raw_data(call, R_G_X),
                                           .g_cum = raw_data(call, R_G_CUM) };
    return RAW_RUN(call, quaternion_rotate_bwd[call->real], &args);
}

const raw_about raw_quaternion_rotate_backward = { RAW_TEXTS("quaternion_rotate_backward",
                                                             "x:bsmhr cum:bshj4 g_y:bsmhr", "g_x:bsmhr? g_cum:bshj4?"),
                                                   .n_operands = R_G_X,
                                                   .n_views = R_G_CUM + 1,
                                                   .rules = plain,
                                                   .check = check_rotate,
                                                   .run = run_rotate_backward };
