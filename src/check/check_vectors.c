/* check_vectors.c - the built-in cases of the check suite and their comparison with recorded results. */
#include "check/check_vectors.h"

#include "base/ctx_impl.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { N_PROJECTIONS = 4, MOST_INPUTS = 8, MOST_OUTPUTS = 4, MOST_RESULTS = MOST_INPUTS + MOST_OUTPUTS };

/* ---- inputs: the same numbers on every machine, exact in f32 ---- */

static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94D049BB133111EB);
    return x ^ (x >> 31);
}

static uint64_t hash(uint64_t a, uint64_t b, uint64_t c)
{
    return mix(mix(mix(a + UINT64_C(0x9E3779B97F4A7C15)) + b) + c);
}

typedef struct vector_run {
    kr_tape *tape;
    kr_dtype dtype;
    uint64_t id; /* of the case: key of its inputs */
    int n_in, n_out;
    kr_tensor *in[MOST_INPUTS], *out[MOST_OUTPUTS];
} vector_run;

static int64_t elements(kr_shape shape)
{
    int64_t count = 1;
    for (int i = 0; i < shape.rank; i++) count *= shape.dims[i];
    return count;
}

/* Input `index` of the case, a leaf with a gradient: multiples of 1/1024 in [low, high). The caller names the index, since
 * C leaves the order in which arguments and initializers are evaluated to the compiler. */
static kr_tensor *in(vector_run *r, int index, kr_shape shape, double low, double high)
{
    const int64_t count = elements(shape);
    double *values = check_alloc(kr_tape_ctx(r->tape), (size_t)count * sizeof *values);
    if (!values || index >= MOST_INPUTS) {
        check_free(values);
        return NULL;
    }
    const double steps = floor((high - low) * 1024);
    for (int64_t i = 0; i < count; i++)
        values[i] = low + floor(steps * (double)(hash(r->id, (uint64_t)index, (uint64_t)i) >> 11) * 0x1p-53) / 1024;
    kr_tensor *x = kr_cast(r->tape, kr_from_data(r->tape, KR_DTYPE_F64, shape, values), r->dtype);
    check_free(values);
    if (r->n_in <= index) r->n_in = index + 1;
    return r->in[index] = kr_input(r->tape, x);
}

/* Integers in [0, below). */
static kr_tensor *ids(vector_run *r, kr_shape shape, int64_t below)
{
    int32_t values[512];
    const int64_t count = elements(shape);
    if (count > 512) return NULL;
    for (int64_t i = 0; i < count; i++) values[i] = (int32_t)(hash(r->id, 99, (uint64_t)i) % (uint64_t)below);
    return kr_from_data(r->tape, KR_DTYPE_I32, shape, values);
}

static void out(vector_run *r, kr_tensor *y)
{
    if (r->n_out < MOST_OUTPUTS) r->out[r->n_out++] = y;
}

/* ---- cases ---- */

typedef struct vector_case {
    const char *name;
    const char *kernels; /* whose results it shows */
    void (*build)(vector_run *r, kr_tape *t);
} vector_case;

#define CASE(name) static void build_##name(vector_run *r, kr_tape *t)
#define X(index, low, high, ...) in(r, index, KR_SHAPE(__VA_ARGS__), low, high)

#define UNARY(name, low, high)                                                                                         \
    CASE(name)                                                                                                         \
    {                                                                                                                  \
        out(r, kr_##name(t, X(0, low, high, 5, 37)));                                                                  \
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
    out(r, kr_affine(t, X(0, -4, 4, 5, 37), -1.5, 0.75));
}
CASE(clamp)
{
    out(r, kr_clamp(t, X(0, -4, 4, 5, 37), -1.03125, 2.03125));
}

#define BINARY(name, low)                                                                                              \
    CASE(name)                                                                                                         \
    {                                                                                                                  \
        kr_tensor *a = X(0, -4, 4, 3, 5, 37), *b = X(1, low, 4, 37);                                                   \
        out(r, kr_##name(t, a, b));                                                                                    \
        out(r, kr_##name(t, kr_transpose(t, a), X(2, low, 4, 37, 1)));                                                 \
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
    out(r, kr_pow(t, X(0, 0.25, 4, 5, 37), X(1, -2, 2, 37)));
    out(r, kr_pow_scalar(t, X(2, 0.25, 4, 37), -1.25));
}
CASE(where)
{
    kr_tensor *a = X(0, -4, 4, 5, 37), *b = X(1, -4, 4, 37);
    out(r, kr_where(t, ids(r, KR_SHAPE(5, 37), 2), a, b));
}

CASE(sum)
{
    kr_tensor *x = X(0, -4, 4, 7, 5, 37);
    out(r, kr_sum(t, x, KR_AXES(-1), false));
    out(r, kr_sum(t, x, KR_AXES(0, 1), true));
    out(r, kr_mean(t, x, KR_ALL_AXES, false));
}
CASE(max)
{
    kr_tensor *x = X(0, -4, 4, 7, 5, 37);
    out(r, kr_max(t, x, KR_AXES(-1), false));
    out(r, kr_max(t, x, KR_AXES(0), false));
}
CASE(cumsum)
{
    kr_tensor *x = X(0, -4, 4, 5, 37, 3);
    out(r, kr_cumsum(t, x, 1));
    out(r, kr_cumsum_reverse(t, x, -1));
}
CASE(segsum)
{
    out(r, kr_exp(t, kr_segsum(t, X(0, -1, 0, 3, 21))));
}
CASE(softmax)
{
    kr_tensor *x = X(0, -8, 8, 5, 101);
    out(r, kr_softmax(t, x, -1));
    out(r, kr_log_softmax(t, x, -1));
}
CASE(cross_entropy)
{
    kr_tensor *logits = X(0, -8, 8, 9, 101);
    out(r, kr_cross_entropy(t, logits, ids(r, KR_SHAPE(9), 101), NULL));
}
CASE(matmul)
{
    kr_tensor *a = X(0, -1, 1, 2, 37, 67), *b = X(1, -1, 1, 67, 43);
    out(r, kr_matmul(t, a, b));
    out(r, kr_matmul(t, kr_transpose(t, a), X(2, -1, 1, 2, 37, 5)));
}
CASE(linear)
{
    out(r, kr_linear(t, X(0, -1, 1, 3, 21, 67), X(1, -1, 1, 45, 67), X(2, -1, 1, 45)));
}
CASE(few_rows)
{
    out(r, kr_linear(t, X(0, -1, 1, 2, 131), X(1, -1, 1, 45, 131), X(2, -1, 1, 45)));
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
    out(r, kr_rms_norm(t, X(0, -4, 4, 5, 111), X(1, 0.5, 2, 111), &o));
}
CASE(gated_norm)
{
    const kr_norm_options after = norm_options(1, false), before = norm_options(3, true);
    kr_tensor *x = X(0, -4, 4, 5, 111), *z = X(1, -4, 4, 5, 111), *gain = X(2, 0.5, 2, 111);
    out(r, kr_gated_norm(t, x, z, gain, &after));
    out(r, kr_gated_norm(t, x, z, gain, &before));
}
CASE(gate)
{
    out(r, kr_gate(t, X(0, -4, 4, 5, 37), X(1, -4, 4, 5, 37)));
}
CASE(conv)
{
    kr_tensor *x = X(0, -2, 2, 2, 23, 37), *taps = X(1, -1, 1, 37, 4), *bias = X(2, -1, 1, 37),
              *window = X(3, -2, 2, 2, 37, 4);
    const kr_conv_out first = kr_causal_conv(t, x, taps, bias, NULL, NULL, true);
    const kr_conv_out next = kr_causal_conv(t, x, taps, bias, window, NULL, false);
    out(r, first.y_bsv);
    out(r, next.y_bsv);
    out(r, next.window_bvk);
}
CASE(gather)
{
    out(r, kr_gather(t, X(0, -4, 4, 5, 37), 1, ids(r, KR_SHAPE(5, 11), 37)));
}
CASE(embedding)
{
    out(r, kr_embedding(t, X(0, -4, 4, 13, 37), ids(r, KR_SHAPE(3, 7), 13)));
}
CASE(cast)
{
    kr_tensor *x = X(0, -4, 4, 5, 37);
    out(r, kr_cast(t, kr_cast(t, x, KR_DTYPE_BF16), r->dtype));
    out(r, kr_concat(t, 1, 2, (kr_tensor *[]){ kr_flip(t, x, 1), kr_pad(t, x, 1, 2, 3, 0.5) }));
}

CASE(trapezoid)
{
    const kr_trapezoid_out o =
        kr_trapezoid(t, X(0, -6, 2, 2, 19, 5), X(1, -1, 1, 5), X(2, -3, 3, 2, 19, 5), X(3, -3, 3, 2, 19, 5), NULL);
    out(r, o.da_bsh);
    out(r, o.beta_bsh);
    out(r, kr_trapezoid_scale(t, o.gamma_bsh, o.carry_bsh, NULL));
}
CASE(angles)
{
    const kr_rotation_out o =
        kr_rotation_angles(t, X(0, -2, 2, 2, 19, 7), X(1, 0, 0.125, 2, 19, 3), X(2, -3, 3, 2, 3, 7), 1, NULL);
    out(r, kr_sin(t, o.angle_bsha)); /* a wrapped angle is defined up to 2 pi */
    out(r, kr_cos(t, o.final_bha));
}
CASE(rotate)
{
    kr_tensor *x = X(0, -2, 2, 2, 11, 2, 3, 20), *angle = X(1, -3, 3, 2, 11, 3, 7);
    out(r, kr_rotate(t, x, angle, KR_PAIRING_ADJACENT));
    out(r, kr_rotate(t, x, angle, KR_PAIRING_SPLIT));
}
CASE(qk_norm)
{
    out(r, kr_qk_norm(t, X(0, -2, 2, 2, 7, 2, 2, 24), X(1, 0.5, 2, 24), X(2, -1, 1, 4, 2, 24), 4, 1e-5));
}
CASE(quaternion)
{
    kr_tensor *q = kr_quaternion_increments(t, X(0, -2, 2, 2, 13, 3, 4, 3), X(1, 0.0625, 1, 2, 13, 3), 1);
    const kr_quaternion_out cum = kr_quaternion_cumprod(t, q, NULL, NULL);
    out(r, cum.cum_bshj4);
    out(r, kr_quaternion_rotate(t, X(2, -2, 2, 2, 13, 1, 3, 20), cum.cum_bshj4));
}

CASE(ssd_mamba2)
{
    const kr_mamba2_ssd_input i = { .x_bnlhp = X(0, -2, 2, 2, 75, 4, 16),
                                    .dt_bnlh = X(1, 0.0078125, 0.25, 2, 75, 4),
                                    .a_decay_h = X(2, -4, -0.5, 4),
                                    .b_bnlgr = X(3, -1, 1, 2, 75, 2, 24),
                                    .c_bnlgr = X(4, -1, 1, 2, 75, 2, 24),
                                    .d_h = X(5, -1, 1, 4),
                                    .initial_state_bhpr = X(6, -1, 1, 2, 4, 16, 24) };
    const kr_ssd_out o = kr_mamba2_ssd_run(t, &i, (kr_ssd_path){ KR_SSD_SERIAL_RECALCULATED, 32 });
    out(r, o.y);
    out(r, o.final_state);
}
CASE(ssd_few_tokens)
{
    const kr_mamba2_ssd_input i = { .x_bnlhp = X(0, -2, 2, 2, 3, 4, 16),
                                    .dt_bnlh = X(1, 0.0078125, 0.25, 2, 3, 4),
                                    .a_decay_h = X(2, -4, -0.5, 4),
                                    .b_bnlgr = X(3, -1, 1, 2, 3, 1, 24),
                                    .c_bnlgr = X(4, -1, 1, 2, 3, 1, 24),
                                    .initial_state_bhpr = X(5, -1, 1, 2, 4, 16, 24) };
    const kr_ssd_out o = kr_mamba2_ssd_run(t, &i, kr_ssd_path_default());
    out(r, o.y);
    out(r, o.final_state);
}
CASE(ssd_mamba3)
{
    const kr_mamba3_single_ssd_input i = { .v_bnlmhp = X(0, -2, 2, 1, 45, 2, 3, 16),
                                           .b_bnlmhr = X(1, -1, 1, 1, 45, 2, 3, 24),
                                           .c_bnlmhr = X(2, -1, 1, 1, 45, 2, 3, 24),
                                           .da_bnlh = X(3, -1, 0, 1, 45, 3),
                                           .gamma_bnlh = X(4, 0, 0.25, 1, 45, 3),
                                           .scale_bnlh = X(5, 0, 0.5, 1, 45, 3) };
    const kr_ssd_out o = kr_mamba3_single_ssd_run(t, &i, (kr_ssd_path){ KR_SSD_SERIAL_RECALCULATED, 16 });
    out(r, o.y);
    out(r, o.final_state);
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
    out(r, o.y_bsi);
    out(r, o.final_state);
}

CASE(layer_norm)
{
    const kr_norm_options o = norm_options(3, false);
    out(r, kr_layer_norm(t, X(0, -4, 4, 5, 111), X(1, 0.5, 2, 111), X(2, -1, 1, 111), &o));
}
CASE(argmax)
{
    kr_tensor *x = X(0, -4, 4, 5, 37);
    kr_tensor *last = kr_cast(t, kr_argmax(t, x, 1, false), r->dtype),
              *first = kr_cast(t, kr_argmax(t, x, 0, false), r->dtype);
    out(r, kr_mul(t, X(1, -1, 1, 5), last));
    out(r, kr_mul(t, X(2, -1, 1, 37), first));
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
    out(r, kr_mul(t, X(2, -1, 1, 5, 37), sum));
}
CASE(dropout)
{
    kr_dropout_options o;
    kr_dropout_options_init(&o);
    o.stream = 7;
    o.first = 5;
    kr_ctx_seed(kr_tape_ctx(t), 11);
    out(r, kr_dropout(t, X(0, -4, 4, 5, 111), 0.375, &o));
}
CASE(losses)
{
    kr_tensor *y = X(0, -4, 4, 5, 37), *target = X(1, -4.0078125, 4, 5, 37);
    kr_loss_options o;
    kr_loss_options_init(&o);
    o.huber_delta = 0.75;
    o.quantile = 0.875;
    out(r, kr_mse(t, y, target, &o));
    out(r, kr_l1_loss(t, y, target, &o));
    out(r, kr_huber_loss(t, y, target, &o));
    out(r, kr_quantile_loss(t, y, target, &o));
}
CASE(probability_losses)
{
    out(r, kr_bce(t, X(0, -8, 8, 5, 37), X(1, 0, 1, 5, 37), NULL));
    out(r, kr_soft_cross_entropy(t, X(2, -8, 8, 5, 37), X(3, 0, 1, 5, 37), NULL));
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
    const kr_segment segment = { .name = "w", .rows = STEP_ROWS, .muon = true };
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
    if (ok && kr_tensor_read(w, KR_DTYPE_F64, values, STEP_ELEMENTS) == KR_OK)
        out(r, kr_mul(t, factor, kr_cast(t, kr_from_data(t, KR_DTYPE_F64, kr_tensor_shape(w), values), r->dtype)));
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
CASE(sgd)
{
    kr_optimizer_options o = optimizer_options(KR_OPTIMIZER_SGD);
    o.nesterov = true;
    optimizer_case(r, t, &o);
}
CASE(muon)
{
    const kr_optimizer_options o = optimizer_options(KR_OPTIMIZER_MUON);
    optimizer_case(r, t, &o);
}

/* ---- sampling: the tokens chosen from fixed logits, and their log-probabilities ---- */

enum { SAMPLE_ROWS = 4, SAMPLE_TOKENS = 101, SAMPLE_DRAWS = 3 };

static void sampler_case(vector_run *r, kr_tape *t, const kr_sampler_options *o)
{
    kr_tensor *logits = X(0, -8, 8, SAMPLE_ROWS, SAMPLE_TOKENS);
    double chosen[2][SAMPLE_DRAWS * SAMPLE_ROWS];
    kr_sampler *sampler = kr_sampler_create(kr_tape_ctx(t), o, SAMPLE_ROWS, SAMPLE_TOKENS);
    bool ok = sampler != NULL;
    for (int draw = 0; ok && draw < SAMPLE_DRAWS; draw++) {
        kr_sample samples[SAMPLE_ROWS];
        ok = kr_sampler_next(sampler, logits, samples) == KR_OK;
        for (int row = 0; ok && row < SAMPLE_ROWS; row++) {
            chosen[0][draw * SAMPLE_ROWS + row] = samples[row].id;
            chosen[1][draw * SAMPLE_ROWS + row] = samples[row].logprob;
        }
    }
    for (int i = 0; ok && i < 2; i++) {
        kr_tensor *values = kr_from_data(t, KR_DTYPE_F64, KR_SHAPE(SAMPLE_DRAWS * SAMPLE_ROWS), chosen[i]);
        out(r, kr_mul(t, X(1 + i, 0.5, 2, SAMPLE_DRAWS * SAMPLE_ROWS), kr_cast(t, values, r->dtype)));
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

#define ROW(name, kernels)                                                                                             \
    {                                                                                                                  \
#name, kernels, build_##name                                                                                   \
    }
static const vector_case cases[] = {
    ROW(neg, "unary"),
    ROW(exp, "unary"),
    ROW(log, "unary"),
    ROW(sqrt, "unary"),
    ROW(rsqrt, "unary"),
    ROW(sin, "unary"),
    ROW(cos, "unary"),
    ROW(tanh, "unary"),
    ROW(sigmoid, "unary"),
    ROW(silu, "unary"),
    ROW(softplus, "unary"),
    ROW(log_sigmoid, "unary"),
    ROW(abs, "unary"),
    ROW(relu, "unary"),
    ROW(erf, "unary"),
    ROW(gelu, "unary"),
    ROW(gelu_tanh, "unary"),
    ROW(affine, "unary"),
    ROW(clamp, "unary"),
    ROW(add, "binary"),
    ROW(sub, "binary"),
    ROW(mul, "binary"),
    ROW(div, "binary"),
    ROW(maximum, "binary, maximum_bwd"),
    ROW(minimum, "binary, minimum_bwd"),
    ROW(pow, "binary, pow_bwd"),
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
    ROW(quaternion, "quaternion_exp, quaternion_scan, quaternion_rotate and their gradients"),
    ROW(ssd_mamba2, "ssd, ssd_bwd"),
    ROW(ssd_few_tokens, "ssd, ssd_bwd"),
    ROW(ssd_mamba3, "ssd, ssd_bwd"),
    ROW(selective_scan, "scan, scan_bwd"),
    ROW(layer_norm, "layer_norm, layer_norm_bwd"),
    ROW(argmax, "argmax"),
    ROW(compare, "compare"),
    ROW(dropout, "dropout"),
    ROW(losses, "binary, unary, maximum_bwd"),
    ROW(probability_losses, "unary, softmax, softmax_bwd"),
    ROW(adamw, "adamw, squares"),
    ROW(adamw_cautious, "adamw"),
    ROW(sgd, "sgd"),
    ROW(muon, "matmul, squares, lerp"),
    ROW(sample_greedy, "sample"),
    ROW(sample_top_k, "sample"),
    ROW(sample_top_p, "sample"),
    ROW(sample_min_p, "sample"),
};
enum { N_CASES = sizeof cases / sizeof *cases };

/* ---- running and projecting ---- */

/* Sums of a tensor's elements with fixed signs, and the scale of their rounding errors: the root of the sum of squares. */
typedef struct projection {
    double sum[N_PROJECTIONS], scale;
} projection;

typedef struct vector_results {
    int n_in, n_out;
    projection of[MOST_RESULTS]; /* outputs, then gradients of the inputs */
    char error[200];             /* "": none */
} vector_results;

static bool project(kr_ctx *ctx, const kr_tensor *x, int64_t count, uint64_t key, projection *p)
{
    *p = (projection){ { 0 }, 0 };
    if (!x) return true; /* no gradient arrived: 0 */
    double *values = check_alloc(ctx, (size_t)count * sizeof *values);
    const bool ok = values && kr_tensor_read(x, KR_DTYPE_F64, values, count) == KR_OK;
    for (int64_t i = 0; ok && i < count; i++) {
        const uint64_t signs = hash(key, 7, (uint64_t)i);
        for (int k = 0; k < N_PROJECTIONS; k++) p->sum[k] += (signs >> k) & 1 ? values[i] : -values[i];
        p->scale += values[i] * values[i];
    }
    p->scale = sqrt(p->scale);
    check_free(values);
    return ok;
}

/* Starts the backward pass from exact multiples of 1/16. */
static kr_tensor *output_gradient(vector_run *r, int o)
{
    const kr_shape shape = kr_tensor_shape(r->out[o]);
    const int64_t count = elements(shape);
    double *values = check_alloc(kr_tape_ctx(r->tape), (size_t)count * sizeof *values);
    if (!values) return NULL;
    for (int64_t i = 0; i < count; i++)
        values[i] = (double)(hash(r->id, 1000 + (uint64_t)o, (uint64_t)i) % 31) / 16 - 15.0 / 16;
    kr_tensor *g = kr_cast(r->tape, kr_from_data(r->tape, KR_DTYPE_F64, shape, values), r->dtype);
    check_free(values);
    return g;
}

static void run_case(kr_ctx *ctx, kr_dtype dtype, int number, vector_results *results)
{
    *results = (vector_results){ .error = "" };
    vector_run r = { .tape = kr_tape_create(ctx, KR_TAPE_GRAD), .dtype = dtype, .id = 1 + (uint64_t)number };
    cases[number].build(&r, r.tape);
    kr_tensor *g[MOST_OUTPUTS];
    for (int o = 0; o < r.n_out; o++) g[o] = output_gradient(&r, o);
    bool ok = !kr_ctx_failed(ctx) && kr_backward_from(r.tape, r.n_out, r.out, g) == KR_OK;
    results->n_out = r.n_out;
    results->n_in = r.n_in;
    for (int o = 0; ok && o < r.n_out; o++)
        ok = project(ctx, r.out[o], kr_tensor_count(r.out[o]), r.id * 100 + (uint64_t)o, &results->of[o]);
    for (int i = 0; ok && i < r.n_in; i++)
        ok = project(ctx, kr_grad(r.in[i]), kr_tensor_count(r.in[i]), r.id * 100 + 50 + (uint64_t)i,
                     &results->of[r.n_out + i]);
    if (!ok)
        snprintf(results->error, sizeof results->error, "%.190s",
                 kr_ctx_failed(ctx) ? kr_ctx_message(ctx) : "out of memory");
    kr_ctx_clear(ctx);
    kr_tape_destroy(r.tape);
}

/* ---- recorded results ---- */

typedef struct vector_record {
    const char *name;
    int n_out, n_in;
    projection of[MOST_RESULTS];
} vector_record;

static const vector_record records[] = {
#include "check/check_vectors.inc"
    { 0 },
};

static const vector_record *record_of(const char *name)
{
    for (const vector_record *r = records; r->name; r++)
        if (!strcmp(r->name, name)) return r;
    return NULL;
}

/* A case's results as a row of check_vectors.inc; false: it does not fit. */
static bool write_record(const char *name, const vector_results *v, char *text, size_t bytes)
{
    int n = snprintf(text, bytes, "{ \"%s\",\n  %d,\n  %d,\n  {\n", name, v->n_out, v->n_in);
    for (int i = 0; i < v->n_out + v->n_in; i++) {
        const projection *p = &v->of[i];
        if (n < 0 || (size_t)n >= bytes) return false;
        n += snprintf(text + n, bytes - (size_t)n, "      { { %.14g, %.14g, %.14g, %.14g }, %.8g },\n", p->sum[0],
                      p->sum[1], p->sum[2], p->sum[3], p->scale);
    }
    if (n < 0 || (size_t)n >= bytes) return false;
    n += snprintf(text + n, bytes - (size_t)n, "  } },");
    return n > 0 && (size_t)n < bytes;
}

bool check_vectors_record(check_tally *t)
{
    char text[200 * (MOST_RESULTS + 1)];
    kr_ctx *ctx = check_open(&(check_setup){ .isa = "ref", .threads = 1, .device = "cpu", .tally = t });
    bool ok = !kr_ctx_failed(ctx) || check_give_up(t, ctx);
    if (ok) check_print(t, KR_CHECK_HEADING, NULL, "/* check_vectors.inc - written by krait check --record. */");
    for (int n = 0; ok && n < N_CASES; n++) {
        vector_results v;
        run_case(ctx, KR_DTYPE_F64, n, &v);
        ok = kr_require(t->ctx, !v.error[0] && write_record(cases[n].name, &v, text, sizeof text), KR_ERR_INTERNAL,
                        "%s: %s", cases[n].name, v.error);
        if (ok) check_print(t, KR_CHECK_HEADING, NULL, text);
    }
    kr_ctx_destroy(ctx);
    return ok;
}

/* ---- comparing ---- */

typedef struct vector_worst {
    double error;
    char where[96];
} vector_worst;

/* The worst difference of a case's projections, relative to the norm of the recorded tensor. */
static void compare_case(int number, const vector_results *got, vector_worst *worst)
{
    const vector_record *want = record_of(cases[number].name);
    *worst = (vector_worst){ 0, "" };
    if (!want || want->n_out != got->n_out || want->n_in != got->n_in) {
        *worst = (vector_worst){ NAN, "the recorded results are of another version" };
        return;
    }
    for (int i = 0; i < got->n_out + got->n_in; i++) {
        double difference = 0;
        for (int k = 0; k < N_PROJECTIONS; k++) {
            const double d = fabs(got->of[i].sum[k] - want->of[i].sum[k]);
            difference = d > difference || isnan(d) ? d : difference;
        }
        const double error = want->of[i].scale > 0 ? difference / want->of[i].scale : difference;
        if (!(error > worst->error || isnan(error))) continue;
        worst->error = error;
        if (i < got->n_out) snprintf(worst->where, sizeof worst->where, "output %d", i);
        else snprintf(worst->where, sizeof worst->where, "the gradient of input %d", i - got->n_out);
        if (isnan(error)) return;
    }
}

void check_vectors(check_tally *tally, const check_setup *setup, const char *name)
{
    const bool is_f64 = setup->dtype == KR_DTYPE_F64;
    /* f32: rounding errors of a tensor's elements add up like a random walk, so that they stay within some units in the
     * last place of its norm; long sums before that add a few times as much. Devices sum in other orders and have their
     * own math functions. f64: 14 printed digits. */
    const double most = is_f64 ? 1e-11 : strcmp(name, setup->isa ? setup->isa : "") == 0 ? 5e-6 : 2e-5;
    char what[96], text[256];
    kr_ctx *ctx = check_open(setup);
    vector_worst worst = { 0, "" };
    int nfailed = 0;
    if (check_failed(tally, ctx)) nfailed = N_CASES;
    for (int n = 0; n < N_CASES && !kr_ctx_failed(ctx); n++) {
        vector_results got;
        vector_worst here;
        run_case(ctx, setup->dtype, n, &got);
        compare_case(n, &got, &here);
        if (!got.error[0] && here.error <= most) {
            if (here.error > worst.error) {
                worst.error = here.error;
                snprintf(worst.where, sizeof worst.where, "%.30s, %.50s", cases[n].name, here.where);
            }
            continue;
        }
        nfailed++;
        snprintf(what, sizeof what, "recorded %s, %s", cases[n].name, name);
        if (got.error[0]) snprintf(text, sizeof text, "%s", got.error);
        else
            snprintf(text, sizeof text, "relative error %.1e in %.60s (at most %.0e): kernel %.90s of %s is wrong",
                     here.error, here.where, most, cases[n].kernels, name);
        check_report_kernel(tally, what, text, cases[n].kernels);
    }
    snprintf(what, sizeof what, "recorded results, %s: %d cases", name, N_CASES);
    if (nfailed) snprintf(text, sizeof text, "%d of them differ", nfailed);
    else snprintf(text, sizeof text, "worst relative error %.1e in %s (at most %.0e)", worst.error, worst.where, most);
    check_report(tally, nfailed == 0, what, text);
    kr_ctx_destroy(ctx);
}
