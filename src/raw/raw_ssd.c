/* raw_ssd.c - the SSD core, with B and C as given or to be rotated by the kernel, and its gradients also of the boundary.
 *
 * The backward kernel knows no boundary. With one, the state that it begins with is made in work memory, as kr_boundary_state
 * does, and the gradients of the boundary follow from that of the state, as in mixer/fused.c. Sums have the same order there.
 */
#include "raw/raw_impl.h"

#include <krait/ssd.h>

#define OPERANDS "v:bsmhp b:bsmgr c:bsmgr da:bsh w:bsh? diag_weight:bsh? d:h? initial:qhpr?"
#define BOUNDARY_OPERANDS "boundary:qh? boundary_v:qmhp? boundary_b:qmhr?"
#define ROTARY_OPERANDS "angle:bsha bias_b:hmr? bias_c:hmr?"
#define GRADIENTS                                                                                                      \
    "g_v:bsmhp? g_b:bsmgr? g_c:bsmgr? g_da:bsh? g_w:bsh? g_diag_weight:bsh? g_d:h? g_initial:qhpr? g_boundary:qh? "    \
    "g_boundary_v:qmhp? g_boundary_b:qmhr?"

/* The operands of both directions; in the backward one those of the boundary come at once. Those of the rotation are the
 * last, and absent in the ops without one. */
enum { V, B, C, DA, W, DIAG_WEIGHT, D, INITIAL };
enum { CARRY = INITIAL + 1, BOUNDARY, BOUNDARY_V, BOUNDARY_B, NPLAIN, ANGLE = NPLAIN, BIAS_B, BIAS_C, NROTARY };
enum { BACK_BOUNDARY = INITIAL + 1, BACK_BOUNDARY_V, BACK_BOUNDARY_B, NBACK_PLAIN };
enum { BACK_ANGLE = NBACK_PLAIN, BACK_BIAS_B, BACK_BIAS_C, NBACK_ROTARY };

/* Results, from the first one on: y and final; g_y and g_final are the last operands of the backward op. */
enum { Y, FINAL, NRESULTS };
enum { G_Y, G_FINAL, NGIVEN };
enum { G_V, G_B, G_C, G_DA, G_W, G_DIAG_WEIGHT, G_D, G_INITIAL, G_BOUNDARY, G_BOUNDARY_V, G_BOUNDARY_B, NGRADIENTS };
enum { G_ANGLE = NGRADIENTS, G_BIAS_B, G_BIAS_C, NGRADIENTS_ROTARY };

/* The place of a result; of a gradient of the forward op's results. */
static int result(const raw_call *call, int i)
{
    return call->about->n_operands + i;
}

static int given(const raw_call *call, int i)
{
    return call->about->n_operands - NGIVEN + i;
}

/* ---- checks ---- */

static bool check_sizes(const raw_call *call)
{
    const kr_dims *d = &call->d;
    kr_ctx *ctx = call->ctx;
    return kr_require(ctx, d->b >= 1 && d->s >= 1 && d->m >= 1 && d->h >= 1 && d->p >= 1 && d->r >= 1, KR_ERR_SHAPE,
                      "%s: v %s and b %s have an empty axis", call->op, KR_TEXT_OF(call->x[V]),
                      KR_TEXT_OF(call->x[B])) &&
           kr_require(ctx, d->g >= 1 && d->h % d->g == 0, KR_ERR_SHAPE,
                      "%s: g = %lld groups of b %s do not divide h = %lld heads", call->op, (long long)d->g,
                      KR_TEXT_OF(call->x[B]), (long long)d->h);
}

static bool check_boundary(const raw_call *call, int first)
{
    kr_tensor *const *x = &call->x[first];
    return kr_require(call->ctx, !x[0] == !x[1] && !x[1] == !x[2], KR_ERR_ARG,
                      "%s: boundary, boundary_v and boundary_b are given in part; give all three or none", call->op);
}

static bool check_rotary(const raw_call *call)
{
    const kr_dims *d = &call->d;
    kr_ctx *ctx = call->ctx;
    return kr_require(ctx, kr_accepts(ctx, ssd_v, KR_DTYPE_BF16), KR_ERR_UNSUPPORTED,
                      "%s: the kernels of %s do not rotate b and c; use KR_RAW_ROTATE and KR_RAW_SSD", call->op,
                      kr_ctx_device(ctx)) &&
           kr_require(ctx, !call->o.split_pairs || d->r % 2 == 0, KR_ERR_SHAPE,
                      "%s: r = %lld of b %s is odd, but split pairs need an even r", call->op, (long long)d->r,
                      KR_TEXT_OF(call->x[B])) &&
           kr_require(ctx, d->a >= 1 && d->a <= d->r / 2, KR_ERR_SHAPE,
                      "%s: a = %lld angles rotate %lld entries, but r of b %s is %lld; from 1 to r / 2 angles",
                      call->op, (long long)d->a, (long long)(2 * d->a), KR_TEXT_OF(call->x[B]), (long long)d->r);
}

static bool check_forward(const raw_call *call)
{
    kr_tensor *const *x = call->x;
    return check_sizes(call) && check_boundary(call, BOUNDARY) &&
           kr_require(call->ctx, !x[CARRY] || (x[W] && x[DIAG_WEIGHT]), KR_ERR_ARG,
                      "%s: carry is given, which needs w and diag_weight", call->op);
}

static bool check_backward(const raw_call *call)
{
    const kr_tensor *g_b = call->x[result(call, G_B)], *g_c = call->x[result(call, G_C)];
    if (!check_sizes(call) || !check_boundary(call, BACK_BOUNDARY)) return false;
    return kr_require(call->ctx, !g_b || !g_c || g_b->dtype == g_c->dtype, KR_ERR_DTYPE,
                      "%s: g_b is %s and g_c is %s, but the kernel writes both in one type", call->op,
                      kr_dtype_name(g_b->dtype), kr_dtype_name(g_c->dtype));
}

static bool check_rotary_forward(const raw_call *call)
{
    return check_forward(call) && check_rotary(call);
}

static bool check_rotary_backward(const raw_call *call)
{
    return check_backward(call) && check_rotary(call);
}

/* ---- forward ---- */

static int64_t chunk_len_of(const raw_call *call)
{
    return call->o.chunk_len ? call->o.chunk_len : kr_ssd_optimal_chunk_len(call->d.r, call->d.p);
}

static int64_t state_count(const raw_call *call)
{
    return call->nq * call->d.h * call->d.p * call->d.r;
}

static bool run_forward(raw_call *call)
{
    const kr_dims *d = &call->d;
    kr_ssd_args args = { .nb = d->b,
                         .ns = d->s,
                         .nm = d->m,
                         .nh = d->h,
                         .np = d->p,
                         .ng = d->g,
                         .nr = d->r,
                         .nl = chunk_len_of(call),
                         .nq = call->nq,
                         .sequences = call->sequences,
                         .v = kr_token_operand(call->x[V]),
                         .b = kr_token_operand(call->x[B]),
                         .c = kr_token_operand(call->x[C]),
                         .da = raw_data(call, DA),
                         .w = raw_data(call, W),
                         .diag_weight = raw_data(call, DIAG_WEIGHT),
                         .d = raw_data(call, D),
                         .initial = raw_data(call, INITIAL),
                         .boundary = raw_data(call, BOUNDARY),
                         .boundary_v = raw_data(call, BOUNDARY_V),
                         .boundary_b = raw_data(call, BOUNDARY_B),
                         .carry = raw_data(call, CARRY),
                         .y = kr_token_operand(call->x[result(call, Y)]),
                         .final = raw_result(call, result(call, FINAL), state_count(call)) };
    if (call->about->n_operands == NROTARY) {
        args.angle = raw_data(call, ANGLE);
        args.bias_b = raw_data(call, BIAS_B);
        args.bias_c = raw_data(call, BIAS_C);
        args.na = d->a;
        args.split_pairs = call->o.split_pairs;
    }
    return RAW_RUN(call, ssd[call->real], &args);
}

static const raw_rule forward_rules[NPLAIN + NRESULTS] = { [V] = RAW_RULE(RAW_TOKENS, ssd_v),
                                                           [B] = RAW_RULE(RAW_TOKENS, ssd_b),
                                                           [C] = RAW_RULE(RAW_TOKENS, ssd_c),
                                                           [NPLAIN + Y] = RAW_RULE(RAW_PLAIN, ssd_y) };

const raw_about raw_ssd = { RAW_TEXTS("ssd", OPERANDS " carry:bsh? " BOUNDARY_OPERANDS, "y:bsmhp final:qhpr?"),
                            .n_operands = NPLAIN,
                            .n_views = NPLAIN + NRESULTS,
                            .options = RAW_CHUNK_LEN | RAW_SEQUENCES,
                            .state_operand = INITIAL,
                            .state_result = NPLAIN + FINAL,
                            .rules = forward_rules,
                            .check = check_forward,
                            .run = run_forward };

static const raw_rule rotary_rules[NROTARY + NRESULTS] = { [V] = RAW_RULE(RAW_TOKENS, ssd_v),
                                                           [B] = RAW_RULE(RAW_PLAIN, ssd_b),
                                                           [C] = RAW_RULE(RAW_PLAIN, ssd_c),
                                                           [NROTARY + Y] = RAW_RULE(RAW_PLAIN, ssd_y) };

const raw_about raw_ssd_rotary = {
    RAW_TEXTS("ssd_rotary", OPERANDS " carry:bsh? " BOUNDARY_OPERANDS " " ROTARY_OPERANDS, "y:bsmhp final:qhpr?"),
    .n_operands = NROTARY,
    .n_views = NROTARY + NRESULTS,
    .options = RAW_CHUNK_LEN | RAW_SEQUENCES | RAW_SPLIT_PAIRS,
    .state_operand = INITIAL,
    .state_result = NROTARY + FINAL,
    .rules = rotary_rules,
    .check = check_rotary_forward,
    .run = run_forward
};

/* ---- backward ---- */

/* The boundary's operands with the axes of a batch of products, and what is computed from them. */
typedef struct boundary {
    kr_tensor scale_qh11, v_qhmp, b_qhmr; /* views of the operands */
    kr_tensor scaled_qhmp;                /* boundary_v boundary */
    kr_tensor state_qhpr;                 /* before the first tokens */
} boundary;

/* x with two axes exchanged. */
static kr_tensor swapped(const kr_tensor *x, int i, int j)
{
    kr_tensor y = *x;
    y.dims[i] = x->dims[j];
    y.strides[i] = x->strides[j];
    y.dims[j] = x->dims[i];
    y.strides[j] = x->strides[i];
    return y;
}

static bool multiply(raw_call *call, kr_tensor *y, const kr_tensor *a, const kr_tensor *b)
{
    const kr_shape shape = kr_tensor_shape(y);
    kr_binary_args args = {
        .walk = kr_walk_over(&shape, 3, (const kr_tensor *[]){ y, a, b }), .a = a->data, .b = b->data, .y = y->data
    };
    return RAW_RUN(call, mul[call->real], &args);
}

static bool product(raw_call *call, kr_tensor *y, const kr_tensor *a, const kr_tensor *b, bool accumulate)
{
    kr_matmul_args args = kr_matmul_of(y, a, b, NULL, accumulate);
    return RAW_RUN(call, matmul[call->real], &args);
}

static bool copy(raw_call *call, kr_tensor *y, const kr_tensor *x)
{
    kr_copy_args args = kr_copy_of(y, x);
    return RAW_RUN(call, copy, &args);
}

/* state = initial + boundary sum_m boundary_v[m] (outer) boundary_b[m] */
static bool make_state(raw_call *call, boundary *k)
{
    const kr_dims *d = &call->d;
    const kr_tensor *scale = call->x[BACK_BOUNDARY], *initial = call->x[INITIAL];
    k->scale_qh11 = *scale;
    kr_tensor_layout(&k->scale_qh11, scale->dtype, &KR_SHAPE(call->nq, d->h, 1, 1));
    k->v_qhmp = swapped(call->x[BACK_BOUNDARY_V], 1, 2);
    k->b_qhmr = swapped(call->x[BACK_BOUNDARY_B], 1, 2);
    raw_take_tensor(call, &k->scaled_qhmp, KR_SHAPE(call->nq, d->h, d->m, d->p));
    raw_take_tensor(call, &k->state_qhpr, KR_SHAPE(call->nq, d->h, d->p, d->r));
    const kr_tensor scaled_qhpm = swapped(&k->scaled_qhmp, 2, 3);
    return multiply(call, &k->scaled_qhmp, &k->v_qhmp, &k->scale_qh11) &&
           (!initial || copy(call, &k->state_qhpr, initial)) &&
           product(call, &k->state_qhpr, &scaled_qhpm, &k->b_qhmr, initial != NULL);
}

/* With G the gradient of the state:
 *   g_boundary_v[m] = boundary G boundary_b[m];   g_boundary_b[m] = boundary boundary_v[m] G
 *   g_boundary = sum_m <boundary_v[m], G boundary_b[m]> */
static bool run_boundary(raw_call *call, const boundary *k, void *g_state)
{
    const kr_dims *d = &call->d;
    kr_tensor *const *x = &call->x[result(call, 0)];
    kr_tensor g_qhpr = k->state_qhpr, gb_qhmp, products_qhmp;
    g_qhpr.data = g_state;
    if (x[G_BOUNDARY] || x[G_BOUNDARY_V]) {
        const kr_tensor g_qhrp = swapped(&g_qhpr, 2, 3);
        raw_take_tensor(call, &gb_qhmp, KR_SHAPE(call->nq, d->h, d->m, d->p));
        if (!product(call, &gb_qhmp, &k->b_qhmr, &g_qhrp, false)) return false;
        if (x[G_BOUNDARY]) {
            raw_take_tensor(call, &products_qhmp, KR_SHAPE(call->nq, d->h, d->m, d->p));
            kr_reduce_args sum = { .no = call->nq * d->h,
                                   .nr = d->m * d->p,
                                   .ni = 1,
                                   .x = products_qhmp.data,
                                   .y = x[G_BOUNDARY]->data,
                                   .alpha = 1 };
            if (!multiply(call, &products_qhmp, &k->v_qhmp, &gb_qhmp) || !RAW_RUN(call, sum[call->real], &sum))
                return false;
        }
        if (x[G_BOUNDARY_V]) {
            kr_tensor g_qhmp = swapped(x[G_BOUNDARY_V], 1, 2);
            if (!multiply(call, &g_qhmp, &gb_qhmp, &k->scale_qh11)) return false;
        }
    }
    if (!x[G_BOUNDARY_B]) return true;
    kr_tensor g_qhmr = swapped(x[G_BOUNDARY_B], 1, 2);
    return product(call, &g_qhmr, &k->scaled_qhmp, &g_qhpr, false);
}

static bool run_core_backward(raw_call *call, const void *initial, void *g_initial)
{
    const kr_dims *d = &call->d;
    kr_tensor *const *g = &call->x[result(call, 0)];
    kr_tensor g_y = { .ctx = call->ctx };
    if (call->x[given(call, G_Y)]) g_y = *call->x[given(call, G_Y)];
    else kr_tensor_layout(&g_y, call->dtype, &KR_SHAPE(d->b, d->s, d->m, d->h, d->p));
    g_y.data = raw_gradient(call, given(call, G_Y), kr_count_of(&g_y));
    kr_ssd_bwd_args args = { .nb = d->b,
                             .ns = d->s,
                             .nm = d->m,
                             .nh = d->h,
                             .np = d->p,
                             .ng = d->g,
                             .nr = d->r,
                             .nl = chunk_len_of(call),
                             .nq = call->nq,
                             .sequences = call->sequences,
                             .v = kr_token_operand(call->x[V]),
                             .b = kr_token_operand(call->x[B]),
                             .c = kr_token_operand(call->x[C]),
                             .g_y = kr_token_operand(&g_y),
                             .da = raw_data(call, DA),
                             .w = raw_data(call, W),
                             .diag_weight = raw_data(call, DIAG_WEIGHT),
                             .d = raw_data(call, D),
                             .initial = initial,
                             .g_final = raw_data(call, given(call, G_FINAL)),
                             .g_v = kr_token_operand(g[G_V]),
                             .g_b = kr_token_operand(g[G_B]),
                             .g_c = kr_token_operand(g[G_C]),
                             .g_da = raw_data(call, result(call, G_DA)),
                             .g_w = raw_data(call, result(call, G_W)),
                             .g_diag_weight = raw_data(call, result(call, G_DIAG_WEIGHT)),
                             .g_d = raw_data(call, result(call, G_D)),
                             .g_initial = g_initial };
    if (call->about->n_operands == NBACK_ROTARY + NGIVEN) {
        args.angle = raw_data(call, BACK_ANGLE);
        args.bias_b = raw_data(call, BACK_BIAS_B);
        args.bias_c = raw_data(call, BACK_BIAS_C);
        args.g_angle = raw_data(call, result(call, G_ANGLE));
        args.g_bias_b = raw_data(call, result(call, G_BIAS_B));
        args.g_bias_c = raw_data(call, result(call, G_BIAS_C));
        args.na = d->a;
        args.split_pairs = call->o.split_pairs;
    }
    return RAW_RUN(call, ssd_bwd[call->real], &args);
}

static bool run_backward(raw_call *call)
{
    kr_tensor *const *x = call->x, *const *g = &call->x[result(call, 0)];
    void *g_initial = raw_data(call, result(call, G_INITIAL));
    if (!x[BACK_BOUNDARY]) return run_core_backward(call, raw_data(call, INITIAL), g_initial);
    boundary k;
    if (!make_state(call, &k)) return false;
    const bool wants = g[G_BOUNDARY] || g[G_BOUNDARY_V] || g[G_BOUNDARY_B];
    void *g_state = wants ? raw_result(call, result(call, G_INITIAL), state_count(call)) : g_initial;
    return run_core_backward(call, k.state_qhpr.data, g_state) && (!wants || run_boundary(call, &k, g_state));
}

#define OF_PLAIN(i) [NBACK_PLAIN + NGIVEN + (i)]
static const raw_rule backward_rules[NBACK_PLAIN + NGIVEN + NGRADIENTS] = {
    [V] = RAW_RULE(RAW_TOKENS, ssd_bwd_v),
    [B] = RAW_RULE(RAW_TOKENS, ssd_bwd_b),
    [C] = RAW_RULE(RAW_TOKENS, ssd_bwd_c),
    [NBACK_PLAIN + G_Y] = RAW_RULE(RAW_PLAIN, ssd_bwd_g_y),
    OF_PLAIN(G_V) = RAW_RULE(RAW_PLAIN, ssd_bwd_g_v),
    OF_PLAIN(G_B) = RAW_RULE(RAW_PLAIN, ssd_bwd_g_b),
    OF_PLAIN(G_C) = RAW_RULE(RAW_PLAIN, ssd_bwd_g_c)
};

const raw_about raw_ssd_backward = { RAW_TEXTS("ssd_backward",
                                               OPERANDS " " BOUNDARY_OPERANDS " g_y:bsmhp? g_final:qhpr?", GRADIENTS),
                                     .n_operands = NBACK_PLAIN + NGIVEN,
                                     .n_views = NBACK_PLAIN + NGIVEN + NGRADIENTS,
                                     .options = RAW_CHUNK_LEN | RAW_SEQUENCES,
                                     .rules = backward_rules,
                                     .check = check_backward,
                                     .run = run_backward };

/* g_b and g_c, which are sums over heads, are of the slot's type. */
static const raw_rule rotary_backward_rules[NBACK_ROTARY + NGIVEN + NGRADIENTS_ROTARY] = {
    [V] = RAW_RULE(RAW_TOKENS, ssd_bwd_v),
    [B] = RAW_RULE(RAW_PLAIN, ssd_bwd_b),
    [C] = RAW_RULE(RAW_PLAIN, ssd_bwd_c),
    [NBACK_ROTARY + G_Y] = RAW_RULE(RAW_PLAIN, ssd_bwd_g_y),
    [NBACK_ROTARY + NGIVEN + G_V] = RAW_RULE(RAW_PLAIN, ssd_bwd_g_v)
};

const raw_about raw_ssd_rotary_backward = {
    RAW_TEXTS("ssd_rotary_backward", OPERANDS " " BOUNDARY_OPERANDS " " ROTARY_OPERANDS " g_y:bsmhp? g_final:qhpr?",
              GRADIENTS " g_angle:bsha? g_bias_b:hmr? g_bias_c:hmr?"),
    .n_operands = NBACK_ROTARY + NGIVEN,
    .n_views = NBACK_ROTARY + NGIVEN + NGRADIENTS_ROTARY,
    .options = RAW_CHUNK_LEN | RAW_SEQUENCES | RAW_SPLIT_PAIRS,
    .rules = rotary_backward_rules,
    .check = check_rotary_backward,
    .run = run_backward
};
