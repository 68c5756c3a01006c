/* check_cases_ops.c - cases of the ops: one for each family at least, with its gradients; optimizer steps; sampling. */
#include "check/check_cases.h"

#include "mixer/core.h"
#include "mixer/rotary.h"

#define UNARY(name, low, high)                                                                                         \
    CASE(name)                                                                                                         \
    {                                                                                                                  \
        vector_out(r, kr_##name(t, X(0, low, high, 5, 37)));                                                           \
    }
UNARY(neg, -4, 4)
UNARY(exp, -4, 4)
UNARY(log, 0.25, 8)
UNARY(sqrt, 0.25, 8)
UNARY(rsqrt, 0.25, 8)
UNARY(sin, -8, 8)
UNARY(cos, -8, 8)
UNARY(tanh, -4, 4)
UNARY(sigmoid, -8, 8)
UNARY(silu, -8, 8)
UNARY(softplus, -25, 25)
UNARY(log_sigmoid, -8, 8)
UNARY(abs, -4.0078125, 4)
UNARY(relu, -4.0078125, 4)
UNARY(erf, -3, 3)
UNARY(gelu, -4, 4)
UNARY(gelu_tanh, -4, 4)
#undef UNARY
CASE(affine)
{
    vector_out(r, kr_affine(t, X(0, -4, 4, 5, 37), -1.5, 0.75));
}
CASE(clamp)
{
    vector_out(r, kr_clamp(t, X(0, -4, 4, 5, 37), -1.03125, 2.03125));
}

#define BINARY(name, low)                                                                                              \
    CASE(name)                                                                                                         \
    {                                                                                                                  \
        kr_tensor *a = X(0, -4, 4, 3, 5, 37), *b = X(1, low, 4, 37);                                                   \
        vector_out(r, kr_##name(t, a, b));                                                                             \
        vector_out(r, kr_##name(t, kr_transpose(t, a), X(2, low, 4, 37, 1)));                                          \
    }
BINARY(add, -4)
BINARY(sub, -4)
BINARY(mul, -4)
BINARY(div, 0.5)
BINARY(maximum, -4)
BINARY(minimum, -4)
#undef BINARY
CASE(pow)
{
    vector_out(r, kr_pow(t, X(0, 0.25, 4, 5, 37), X(1, -2, 2, 37)));
    vector_out(r, kr_pow_scalar(t, X(2, 0.25, 4, 37), -1.25));
}
CASE(where)
{
    kr_tensor *a = X(0, -4, 4, 5, 37), *b = X(1, -4, 4, 37);
    vector_out(r, kr_where(t, vector_ids(r, KR_SHAPE(5, 37), 2), a, b));
}

CASE(sum)
{
    kr_tensor *x = X(0, -4, 4, 7, 5, 37);
    vector_out(r, kr_sum(t, x, KR_AXES(-1), false));
    vector_out(r, kr_sum(t, x, KR_AXES(0, 1), true));
    vector_out(r, kr_mean(t, x, KR_ALL_AXES, false));
}
CASE(max)
{
    kr_tensor *x = X(0, -4, 4, 7, 5, 37);
    vector_out(r, kr_max(t, x, KR_AXES(-1), false));
    vector_out(r, kr_max(t, x, KR_AXES(0), false));
}
CASE(cumsum)
{
    kr_tensor *x = X(0, -4, 4, 5, 37, 3);
    vector_out(r, kr_cumsum(t, x, 1));
    vector_out(r, kr_cumsum_reverse(t, x, -1));
}
CASE(segsum)
{
    vector_out(r, kr_exp(t, kr_segsum(t, X(0, -1, 0, 3, 21))));
}
CASE(softmax)
{
    kr_tensor *x = X(0, -8, 8, 5, 101);
    vector_out(r, kr_softmax(t, x, -1));
    vector_out(r, kr_log_softmax(t, x, -1));
}
CASE(cross_entropy)
{
    kr_tensor *logits = X(0, -8, 8, 9, 101);
    vector_out(r, kr_cross_entropy(t, logits, vector_ids(r, KR_SHAPE(9), 101), NULL));
}
CASE(matmul)
{
    kr_tensor *a = X(0, -1, 1, 2, 37, 67), *b = X(1, -1, 1, 67, 43);
    vector_out(r, kr_matmul(t, a, b));
    vector_out(r, kr_matmul(t, kr_transpose(t, a), X(2, -1, 1, 2, 37, 5)));
}
CASE(linear)
{
    vector_out(r, kr_linear(t, X(0, -1, 1, 3, 21, 67), X(1, -1, 1, 45, 67), X(2, -1, 1, 45)));
}
CASE(few_rows)
{
    vector_out(r, kr_linear(t, X(0, -1, 1, 2, 131), X(1, -1, 1, 45, 131), X(2, -1, 1, 45)));
}

static kr_norm_options norm_options(int64_t groups, bool before)
{
    kr_norm_options o;
    kr_norm_options_init(&o);
    o.groups = groups;
    o.norm_before_gate = before;
    return o;
}
CASE(rms_norm)
{
    const kr_norm_options o = norm_options(3, false);
    vector_out(r, kr_rms_norm(t, X(0, -4, 4, 5, 111), X(1, 0.5, 2, 111), &o));
}
CASE(gated_norm)
{
    const kr_norm_options after = norm_options(1, false), before = norm_options(3, true);
    kr_tensor *x = X(0, -4, 4, 5, 111), *z = X(1, -4, 4, 5, 111), *gain = X(2, 0.5, 2, 111);
    vector_out(r, kr_gated_norm(t, x, z, gain, &after));
    vector_out(r, kr_gated_norm(t, x, z, gain, &before));
}
CASE(gate)
{
    vector_out(r, kr_gate(t, X(0, -4, 4, 5, 37), X(1, -4, 4, 5, 37)));
}
CASE(conv)
{
    kr_tensor *x = X(0, -2, 2, 2, 23, 37), *taps = X(1, -1, 1, 37, 4), *bias = X(2, -1, 1, 37),
              *window = X(3, -2, 2, 2, 37, 4);
    const kr_conv_out first = kr_causal_conv(t, x, taps, bias, NULL, NULL, true);
    const kr_conv_out next = kr_causal_conv(t, x, taps, bias, window, NULL, false);
    vector_out(r, first.y_bsv);
    vector_out(r, next.y_bsv);
    vector_out(r, next.window_bvk);
}
CASE(gather)
{
    vector_out(r, kr_gather(t, X(0, -4, 4, 5, 37), 1, vector_ids(r, KR_SHAPE(5, 11), 37)));
}
CASE(embedding)
{
    vector_out(r, kr_embedding(t, X(0, -4, 4, 13, 37), vector_ids(r, KR_SHAPE(3, 7), 13)));
}
CASE(cast)
{
    kr_tensor *x = X(0, -4, 4, 5, 37);
    vector_out(r, kr_cast(t, kr_cast(t, x, KR_DTYPE_BF16), r->dtype));
    vector_out(r, kr_concat(t, 1, 2, (kr_tensor *[]){ kr_flip(t, x, 1), kr_pad(t, x, 1, 2, 3, 0.5) }));
}

CASE(trapezoid)
{
    const kr_trapezoid_out o =
        kr_trapezoid(t, X(0, -6, 2, 2, 19, 5), X(1, -1, 1, 5), X(2, -3, 3, 2, 19, 5), X(3, -3, 3, 2, 19, 5), NULL);
    vector_out(r, o.da_bsh);
    vector_out(r, o.beta_bsh);
    vector_out(r, kr_trapezoid_scale(t, o.gamma_bsh, o.carry_bsh, NULL));
}
CASE(angles)
{
    const kr_rotation_out o =
        kr_rotation_angles(t, X(0, -2, 2, 2, 19, 7), X(1, 0, 0.125, 2, 19, 3), X(2, -3, 3, 2, 3, 7), 1, NULL);
    vector_out(r, kr_sin(t, o.angle_bsha)); /* a wrapped angle is defined up to 2 pi */
    vector_out(r, kr_cos(t, o.final_bha));
}
CASE(rotate)
{
    kr_tensor *x = X(0, -2, 2, 2, 11, 2, 3, 20), *angle = X(1, -3, 3, 2, 11, 3, 7);
    vector_out(r, kr_rotate(t, x, angle, KR_PAIRING_ADJACENT));
    vector_out(r, kr_rotate(t, x, angle, KR_PAIRING_SPLIT));
}
CASE(qk_norm)
{
    vector_out(r, kr_qk_norm(t, X(0, -2, 2, 2, 7, 2, 2, 24), X(1, 0.5, 2, 24), X(2, -1, 1, 4, 2, 24), 4, 1e-5));
}
CASE(quaternion)
{
    kr_tensor *q = kr_quaternion_increments(t, X(0, -2, 2, 2, 13, 3, 4, 3), X(1, 0.0625, 1, 2, 13, 3), 1);
    const kr_quaternion_out cum = kr_quaternion_cumprod(t, q, NULL, NULL);
    vector_out(r, cum.cum_bshj4);
    vector_out(r, kr_quaternion_rotate(t, X(2, -2, 2, 2, 13, 1, 3, 20), cum.cum_bshj4));
}

CASE(ssd_mamba2)
{
    const kr_mamba2_ssd_input i = { .x_bshp = X(0, -2, 2, 2, 75, 4, 16),
                                    .dt_bsh = X(1, 0.0078125, 0.25, 2, 75, 4),
                                    .a_decay_h = X(2, -4, -0.5, 4),
                                    .b_bsgr = X(3, -1, 1, 2, 75, 2, 24),
                                    .c_bsgr = X(4, -1, 1, 2, 75, 2, 24),
                                    .d_h = X(5, -1, 1, 4),
                                    .initial_state_bhpr = X(6, -1, 1, 2, 4, 16, 24) };
    const kr_ssd_out o = kr_mamba2_ssd_run(t, &i, (kr_ssd_path){ KR_SSD_SERIAL_RECALCULATED, 32 });
    vector_out(r, o.y);
    vector_out(r, o.final_state);
}
CASE(ssd_few_tokens)
{
    const kr_mamba2_ssd_input i = { .x_bshp = X(0, -2, 2, 2, 3, 4, 16),
                                    .dt_bsh = X(1, 0.0078125, 0.25, 2, 3, 4),
                                    .a_decay_h = X(2, -4, -0.5, 4),
                                    .b_bsgr = X(3, -1, 1, 2, 3, 1, 24),
                                    .c_bsgr = X(4, -1, 1, 2, 3, 1, 24),
                                    .initial_state_bhpr = X(5, -1, 1, 2, 4, 16, 24) };
    const kr_ssd_out o = kr_mamba2_ssd_run(t, &i, kr_ssd_path_default());
    vector_out(r, o.y);
    vector_out(r, o.final_state);
}
CASE(ssd_mamba3)
{
    const kr_mamba3_single_ssd_input i = { .v_bsmhp = X(0, -2, 2, 1, 45, 2, 3, 16),
                                           .b_bsmhr = X(1, -1, 1, 1, 45, 2, 3, 24),
                                           .c_bsmhr = X(2, -1, 1, 1, 45, 2, 3, 24),
                                           .da_bsh = X(3, -1, 0, 1, 45, 3),
                                           .gamma_bsh = X(4, 0, 0.25, 1, 45, 3),
                                           .scale_bsh = X(5, 0, 0.5, 1, 45, 3) };
    const kr_ssd_out o = kr_mamba3_single_ssd_run(t, &i, (kr_ssd_path){ KR_SSD_SERIAL_RECALCULATED, 16 });
    vector_out(r, o.y);
    vector_out(r, o.final_state);
}
CASE(selective_scan)
{
    const kr_selective_scan_input i = { .x_bsi = X(0, -2, 2, 2, 43, 37),
                                        .dt_bsi = X(1, 0.0078125, 0.25, 2, 43, 37),
                                        .a_ir = X(2, -4, -0.5, 37, 16),
                                        .b_bsgr = X(3, -1, 1, 2, 43, 1, 16),
                                        .c_bsgr = X(4, -1, 1, 2, 43, 1, 16),
                                        .d_i = X(5, -1, 1, 37),
                                        .z_bsi = X(6, -4, 4, 2, 43, 37) };
    const kr_scan_out o = kr_selective_scan(t, &i);
    vector_out(r, o.y_bsi);
    vector_out(r, o.final_state);
}

CASE(layer_norm)
{
    const kr_norm_options o = norm_options(3, false);
    vector_out(r, kr_layer_norm(t, X(0, -4, 4, 5, 111), X(1, 0.5, 2, 111), X(2, -1, 1, 111), &o));
}
CASE(argmax)
{
    kr_tensor *x = X(0, -4, 4, 5, 37);
    kr_tensor *last = kr_cast(t, kr_argmax(t, x, 1, false), r->dtype),
              *first = kr_cast(t, kr_argmax(t, x, 0, false), r->dtype);
    vector_out(r, kr_mul(t, X(1, -1, 1, 5), last));
    vector_out(r, kr_mul(t, X(2, -1, 1, 37), first));
}
/* Each comparison has a power of two, so that their sum identifies those that hold. */
CASE(compare)
{
    kr_tensor *a = X(0, -0.0078125, 0.0078125, 5, 37), *b = X(1, -0.0078125, 0.0078125, 37), *sum = NULL;
    kr_tensor *(*const compare[])(kr_tape *, kr_tensor *, kr_tensor *) = { kr_eq, kr_ne, kr_lt, kr_le, kr_gt, kr_ge };
    for (int i = 0; i < 6; i++) {
        kr_tensor *y = kr_scale(t, kr_cast(t, compare[i](t, a, b), r->dtype), (double)(1 << i));
        sum = sum ? kr_add(t, sum, y) : y;
    }
    vector_out(r, kr_mul(t, X(2, -1, 1, 5, 37), sum));
}
CASE(dropout)
{
    kr_dropout_options o;
    kr_dropout_options_init(&o);
    o.stream = 7;
    o.first = 5;
    kr_ctx_seed(kr_tape_ctx(t), 11);
    vector_out(r, kr_dropout(t, X(0, -4, 4, 5, 111), 0.375, &o));
}
CASE(losses)
{
    kr_tensor *y = X(0, -4, 4, 5, 37), *target = X(1, -4.0078125, 4, 5, 37);
    kr_loss_options o;
    kr_loss_options_init(&o);
    o.huber_delta = 0.75;
    o.quantile = 0.875;
    vector_out(r, kr_mse(t, y, target, &o));
    vector_out(r, kr_l1_loss(t, y, target, &o));
    vector_out(r, kr_huber_loss(t, y, target, &o));
    vector_out(r, kr_quantile_loss(t, y, target, &o));
}
CASE(probability_losses)
{
    vector_out(r, kr_bce(t, X(0, -8, 8, 5, 37), X(1, 0, 1, 5, 37), NULL));
    vector_out(r, kr_soft_cross_entropy(t, X(2, -8, 8, 5, 37), X(3, 0, 1, 5, 37), NULL));
}

/* ---- optimizer steps: weights after three steps of known gradients ---- */

enum { STEP_ROWS = 24, STEP_COLS = 37, STEP_ELEMENTS = STEP_ROWS * STEP_COLS, N_STEPS = 3 };

/* The gradient of <w, g> is g. */
static bool step_along(kr_ctx *ctx, kr_optimizer *optimizer, kr_tensor *w, const double *g)
{
    kr_tape *tape = kr_tape_create(ctx, KR_TAPE_GRAD);
    kr_tensor *g_w = kr_cast(tape, kr_from_data(tape, KR_DTYPE_F64, kr_tensor_shape(w), g), kr_tensor_dtype(w));
    const bool ok = kr_backward(tape, kr_sum(tape, kr_mul(tape, w, g_w), KR_ALL_AXES, false)) == KR_OK &&
                    kr_optimizer_step(optimizer, 0.0625, 1) == KR_OK;
    kr_tape_destroy(tape);
    return ok;
}

static void optimizer_case(vector_run *r, kr_tape *t, const kr_optimizer_options *o)
{
    double values[STEP_ELEMENTS];
    kr_ctx *ctx = kr_tape_ctx(t);
    kr_params *params = kr_params_create(ctx);
    kr_param_options row;
    kr_param_options_init(&row);
    const kr_segment segment = { .name = "w", .rows = STEP_ROWS, .use_muon = true };
    row.has_decay = row.is_linear = true;
    row.n_segments = 1;
    row.segments = &segment;
    kr_tensor *w = kr_params_make(params, "w", r->dtype, KR_SHAPE(STEP_ROWS, STEP_COLS), &row);
    kr_tensor *first = X(0, -2, 2, STEP_ROWS, STEP_COLS), *factor = X(1, 0.5, 2, STEP_ROWS, STEP_COLS);
    kr_optimizer *optimizer = NULL;
    bool ok = w && kr_tensor_read(first, KR_DTYPE_F64, values, STEP_ELEMENTS) == KR_OK &&
              kr_param_write(w, KR_DTYPE_F64, values, STEP_ELEMENTS) == KR_OK &&
              (optimizer = kr_optimizer_create(ctx, params, o)) != NULL;
    for (int k = 0; ok && k < N_STEPS; k++)
        ok = kr_tensor_read(X(2 + k, -1, 1, STEP_ROWS, STEP_COLS), KR_DTYPE_F64, values, STEP_ELEMENTS) == KR_OK &&
             step_along(ctx, optimizer, w, values);
    if (ok && o->ema_decay > 0) ok = kr_optimizer_use_ema(optimizer, true) == KR_OK;
    if (ok && kr_tensor_read(w, KR_DTYPE_F64, values, STEP_ELEMENTS) == KR_OK)
        vector_out(r,
                   kr_mul(t, factor, kr_cast(t, kr_from_data(t, KR_DTYPE_F64, kr_tensor_shape(w), values), r->dtype)));
    kr_optimizer_destroy(optimizer);
    kr_params_destroy(params);
}

static kr_optimizer_options optimizer_options(kr_optimizer_kind kind)
{
    kr_optimizer_options o;
    kr_optimizer_options_init(&o);
    o.kind = kind;
    o.weight_decay = 0.125; /* explicit, so that recorded results do not depend on defaults */
    o.beta2 = 0.999;
    o.clip_norm = 0;
    return o;
}
CASE(adamw)
{
    kr_optimizer_options o = optimizer_options(KR_OPTIMIZER_ADAMW);
    o.clip_norm = 8;
    optimizer_case(r, t, &o);
}
CASE(adamw_cautious)
{
    kr_optimizer_options o = optimizer_options(KR_OPTIMIZER_ADAMW);
    o.is_cautious = true;
    optimizer_case(r, t, &o);
}
CASE(adamw_ema)
{
    kr_optimizer_options o = optimizer_options(KR_OPTIMIZER_ADAMW);
    o.ema_decay = 0.75;
    optimizer_case(r, t, &o);
}
CASE(sgd)
{
    kr_optimizer_options o = optimizer_options(KR_OPTIMIZER_SGD);
    o.use_nesterov = true;
    optimizer_case(r, t, &o);
}
CASE(muon)
{
    const kr_optimizer_options o = optimizer_options(KR_OPTIMIZER_MUON);
    optimizer_case(r, t, &o);
}

/* ---- sampling: the tokens chosen from fixed logits, and their log-probabilities ---- */

enum { SAMPLE_ROWS = 4, SAMPLE_TOKENS = 101, SAMPLE_STEPS = 3 };

static void sampler_case(vector_run *r, kr_tape *t, const kr_sampler_options *o)
{
    kr_tensor *logits = X(0, -8, 8, SAMPLE_ROWS, SAMPLE_TOKENS);
    double chosen[2][SAMPLE_STEPS * SAMPLE_ROWS];
    kr_sampler *sampler = kr_sampler_create(kr_tape_ctx(t), o, SAMPLE_ROWS, SAMPLE_TOKENS);
    bool ok = sampler != NULL;
    for (int step = 0; ok && step < SAMPLE_STEPS; step++) {
        kr_sample samples[SAMPLE_ROWS];
        ok = kr_sampler_next(sampler, logits, samples) == KR_OK;
        for (int row = 0; ok && row < SAMPLE_ROWS; row++) {
            chosen[0][step * SAMPLE_ROWS + row] = samples[row].id;
            chosen[1][step * SAMPLE_ROWS + row] = samples[row].logprob;
        }
    }
    for (int i = 0; ok && i < 2; i++) {
        kr_tensor *values = kr_from_data(t, KR_DTYPE_F64, KR_SHAPE(SAMPLE_STEPS * SAMPLE_ROWS), chosen[i]);
        vector_out(r, kr_mul(t, X(1 + i, 0.5, 2, SAMPLE_STEPS * SAMPLE_ROWS), kr_cast(t, values, r->dtype)));
    }
    kr_sampler_destroy(sampler);
}

static kr_sampler_options sampler_options(double temperature)
{
    kr_sampler_options o;
    kr_sampler_options_init(&o);
    o.temperature = temperature;
    o.seed = 17;
    return o;
}
CASE(sample_greedy)
{
    kr_sampler_options o = sampler_options(0);
    o.repetition_penalty = 1.5; /* so that the samples are different tokens */
    sampler_case(r, t, &o);
}
CASE(sample_top_k)
{
    kr_sampler_options o = sampler_options(2);
    o.top_k = 11;
    sampler_case(r, t, &o);
}
CASE(sample_top_p)
{
    kr_sampler_options o = sampler_options(1.5);
    o.top_p = 0.8125;
    sampler_case(r, t, &o);
}
CASE(sample_min_p)
{
    kr_sampler_options o = sampler_options(4);
    o.min_p = 0.125;
    sampler_case(r, t, &o);
}

/* Numbers of taps with loops of their own, and more, without an input window and with one. */
CASE(conv_taps)
{
    kr_tensor *x = X(0, -2, 2, 2, 23, 37), *bias = X(1, -1, 1, 37), *window = X(2, -2, 2, 2, 37, 6);
    vector_out(r, kr_causal_conv(t, x, X(3, -1, 1, 37, 2), bias, NULL, NULL, true).y_bsv);
    vector_out(r, kr_causal_conv(t, x, X(4, -1, 1, 37, 3), bias, NULL, NULL, true).y_bsv);
    const kr_conv_out many = kr_causal_conv(t, x, X(5, -1, 1, 37, 6), bias, window, NULL, true);
    vector_out(r, many.y_bsv);
    vector_out(r, many.window_bvk);
}
/* Few values, so that many are equal, 0, or at a limit. */
CASE(ties)
{
    kr_tensor *a = X(0, -0.0078125, 0.0078125, 5, 37), *b = X(1, -0.0078125, 0.0078125, 37);
    vector_out(r, kr_add(t, kr_maximum(t, a, b), kr_scale(t, kr_minimum(t, a, b), 3)));
    vector_out(r, kr_add(t, kr_abs(t, a), kr_scale(t, kr_relu(t, a), 4)));
    vector_out(r, kr_clamp(t, a, -0.00390625, 0.00390625));
    vector_out(r, kr_max(t, a, KR_AXES(-1), false));
}
/* Training: the gradient of the logits in the pass of the loss, with smoothing, ignored labels and a padded vocabulary. */
CASE(head_cross_entropy)
{
    kr_cross_entropy_options o;
    kr_cross_entropy_options_init(&o);
    o.label_smoothing = 0.125;
    o.ignore_index = 3;
    o.n_classes = 101;
    o.exclude_padding = true;
    vector_out(r, kr_head_cross_entropy(t, X(0, -1, 1, 9, 67), X(1, -1, 1, 104, 67), X(2, -1, 1, 104),
                                        vector_ids(r, KR_SHAPE(9), 101), &o));
}

/* A square, which needs no logarithm; and an exponent for numbers of both signs that has one. */
CASE(squares)
{
    vector_out(r, kr_pow_scalar(t, X(0, -4, 4, 5, 37), 2));
    vector_out(r, kr_pow_scalar(t, X(1, -4, 4, 5, 37), 1));
}

/* Rows of several vectors, which narrow ones do not fill. */
CASE(wide_layer_norm)
{
    vector_out(r, kr_layer_norm(t, X(0, -4, 4, 5, 145), X(1, 0.5, 2, 145), X(2, -1, 1, 145), NULL));
}
/* Without a bias, and without a gain. */
CASE(partial_layer_norm)
{
    vector_out(r, kr_layer_norm(t, X(0, -4, 4, 5, 37), X(1, 0.5, 2, 37), NULL, NULL));
    vector_out(r, kr_layer_norm(t, X(2, -4, 4, 5, 37), NULL, X(3, -1, 1, 37), NULL));
}

/* Gradients that are added to those of a residual connection. */
CASE(residual_norm)
{
    kr_tensor *x = X(0, -4, 4, 5, 37);
    vector_out(r, kr_add(t, x, kr_rms_norm(t, x, X(1, 0.5, 2, 37), NULL)));
}
CASE(wide_segsum)
{
    vector_out(r, kr_exp(t, kr_segsum(t, X(0, -0.25, 0, 3, 53))));
}

/* Two groups with two heads each, and a bias. */
CASE(rotate_groups)
{
    kr_tensor *x = X(0, -2, 2, 2, 11, 2, 2, 44), *bias = X(1, -1, 1, 4, 2, 44), *angle = X(2, -3, 3, 2, 11, 4, 19);
    vector_out(r, kr_rotate_groups(t, x, bias, angle, KR_PAIRING_ADJACENT));
    vector_out(r, kr_rotate_groups(t, x, bias, angle, KR_PAIRING_SPLIT));
}

/* The two cores of the double pathway as one run. */
CASE(ssd_mamba3_double)
{
    const kr_mamba3_double_ssd_input now = { .v_bsmhp = X(0, -2, 2, 1, 45, 2, 3, 16),
                                             .b_bsmhr = X(1, -1, 1, 1, 45, 2, 3, 24),
                                             .c_bsmhr = X(2, -1, 1, 1, 45, 2, 3, 24),
                                             .da_bsh = X(3, -1, 0, 1, 45, 3),
                                             .initial_state_bhpr = X(4, -1, 1, 1, 3, 16, 24) };
    kr_mamba3_double_ssd_input then = now;
    then.v_bsmhp = X(5, -2, 2, 1, 45, 2, 3, 16);
    then.b_bsmhr = X(6, -1, 1, 1, 45, 2, 3, 24);
    then.initial_state_bhpr = NULL;
    const kr_ssd_path path = { KR_SSD_SERIAL_RECALCULATED, 16 };
    const kr_ssd_out o = kr_mamba3_double_ssd_run_pair(t, &now, &then, path);
    vector_out(r, o.y);
    vector_out(r, o.final_state);
}

static const vector_case cases[] = {
    ROW(neg, "scale, scale_bwd"),
    ROW(exp, "exp, exp_bwd"),
    ROW(log, "log, log_bwd"),
    ROW(sqrt, "sqrt, sqrt_bwd"),
    ROW(rsqrt, "rsqrt, rsqrt_bwd"),
    ROW(sin, "sin, sin_bwd"),
    ROW(cos, "cos, cos_bwd"),
    ROW(tanh, "tanh, tanh_bwd"),
    ROW(sigmoid, "sigmoid, sigmoid_bwd"),
    ROW(silu, "silu, silu_bwd"),
    ROW(softplus, "softplus, softplus_bwd"),
    ROW(log_sigmoid, "log_sigmoid, log_sigmoid_bwd"),
    ROW(abs, "abs, abs_bwd"),
    ROW(relu, "relu, relu_bwd"),
    ROW(erf, "erf, erf_bwd"),
    ROW(gelu, "gelu, gelu_bwd"),
    ROW(gelu_tanh, "gelu_tanh, gelu_tanh_bwd"),
    ROW(affine, "scale, scale_bwd"),
    ROW(clamp, "clamp, clamp_bwd"),
    ROW(add, "add"),
    ROW(sub, "sub"),
    ROW(mul, "mul"),
    ROW(div, "div"),
    ROW(maximum, "maximum, maximum_bwd"),
    ROW(minimum, "minimum, minimum_bwd"),
    ROW(pow, "pow_scalar, pow_scalar_bwd, pow, pow_bwd"),
    ROW(where, "where"),
    ROW(sum, "sum"),
    ROW(max, "max, max_bwd"),
    ROW(cumsum, "cumsum"),
    ROW(segsum, "segsum, segsum_bwd"),
    ROW(softmax, "softmax, softmax_bwd"),
    ROW(cross_entropy, "cross_entropy, cross_entropy_bwd"),
    ROW(matmul, "matmul"),
    ROW(linear, "matmul"),
    ROW(few_rows, "matmul"),
    ROW(rms_norm, "norm, norm_bwd"),
    ROW(gated_norm, "norm, norm_bwd"),
    ROW(gate, "gate, gate_bwd"),
    ROW(conv, "conv, conv_bwd"),
    ROW(gather, "gather, gather_bwd"),
    ROW(embedding, "embedding, embedding_bwd"),
    ROW(cast, "copy, fill"),
    ROW(trapezoid, "trapezoid, trapezoid_bwd"),
    ROW(angles, "angles, angles_bwd"),
    ROW(rotate, "rotate, rotate_bwd"),
    ROW(qk_norm, "norm, norm_bwd"),
    ROW(quaternion, "quaternion_exp, quaternion_exp_bwd, quaternion_scan, quaternion_scan_bwd, quaternion_rotate, "
                    "quaternion_rotate_bwd"),
    ROW(ssd_mamba2, "ssd, ssd_bwd"),
    ROW(ssd_few_tokens, "ssd, ssd_bwd"),
    ROW(ssd_mamba3, "ssd, ssd_bwd"),
    ROW(selective_scan, "scan, scan_bwd"),
    ROW(layer_norm, "layer_norm, layer_norm_bwd"),
    ROW(argmax, "argmax"),
    ROW(compare, "compare"),
    ROW(dropout, "dropout"),
    ROW(losses, "abs, abs_bwd, clamp, maximum, maximum_bwd"),
    ROW(probability_losses, "log_sigmoid, log_sigmoid_bwd, softmax, softmax_bwd"),
    ROW(adamw, "adamw, squares"),
    ROW(adamw_cautious, "adamw"),
    ROW(sgd, "sgd"),
    ROW(muon, "matmul, scale, sgd, squares"),
    ROW(sample_greedy, NULL),
    ROW(sample_top_k, NULL),
    ROW(sample_top_p, NULL),
    ROW(sample_min_p, NULL),
    ROW(adamw_ema, "adamw, lerp"),
    ROW(conv_taps, "conv, conv_bwd"),
    ROW(ties,
        "maximum, maximum_bwd, minimum, minimum_bwd, abs, abs_bwd, relu, relu_bwd, clamp, clamp_bwd, max, max_bwd"),
    ROW(head_cross_entropy, "cross_entropy, matmul"),
    ROW(wide_layer_norm, "layer_norm, layer_norm_bwd"),
    ROW(wide_segsum, "segsum, segsum_bwd"),
    ROW(rotate_groups, "rotate, rotate_bwd"),
    ROW(ssd_mamba3_double, "ssd, ssd_bwd"),
    ROW(partial_layer_norm, "layer_norm, layer_norm_bwd"),
    ROW(residual_norm, "norm, norm_bwd"),
    ROW(squares, "pow_scalar, pow_scalar_bwd"),
};
const vector_table vector_ops = { cases, sizeof cases / sizeof *cases, 1 };
