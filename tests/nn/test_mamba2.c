/* test_mamba2.c - the Mamba-2 block: the laws of blocks over its variants, values against a plain recurrence, forever.
 */
#include "nn/block_impl.h"
#include "tests/nn/block_laws.h"
#include "tests/nn/mamba2_variants.h"

#include "tests/harness.h"

#define EACH_VARIANT(v)                                                                                                \
    for (int variant_ = 0; variant_ < MAMBA2_VARIANTS; variant_++)                                                     \
        for (mamba2_variant v = mamba2_variant_at(variant_); v.name; v.name = NULL)

/* ---- laws ---- */

TEST(mamba2_laws)
{
    EACH_VARIANT(v) block_laws(&(block_case){ v.name, kr_mamba2_block(&v.config) });
}

TEST(mamba2_laws_16bit)
{
    EACH_VARIANT(v) block_laws_16bit(&(block_case){ v.name, kr_mamba2_block(&v.config) });
}

TEST(mamba2_laws_threads)
{
    const mamba2_variant base = mamba2_variant_at(0), all = mamba2_variant_at(16);
    block_laws_threads(&(block_case){ base.name, kr_mamba2_block(&base.config) });
    block_laws_threads(&(block_case){ all.name, kr_mamba2_block(&all.config) });
}

/* ---- a block with noise on its parameters ---- */

static const double *param(const kr_mamba2 *m, const char *name)
{
    const kr_param_row *row = kr_params_find(kr_mamba2_params(m), name);
    return row ? kr_test_copy(row->tensor) : NULL;
}

static kr_mamba2 *noisy(kr_ctx *ctx, const kr_mamba2_config *config)
{
    kr_mamba2 *m = kr_mamba2_create(ctx, config);
    kr_params *params = kr_mamba2_params(m);
    for (int64_t i = 0; i < kr_params_count(params); i++) {
        kr_tensor *x = kr_params_at(params, i)->tensor;
        double *values = kr_test_values(x);
        const double shift = strcmp(kr_params_at(params, i)->name, "dt_bias") == 0 ? 1.5 : 0;
        for (int64_t e = 0; e < kr_tensor_count(x); e++) values[e] += shift + 0.2 * kr_test_normal();
        kr_param_write(x, KR_DTYPE_F64, values, kr_tensor_count(x));
        free(values);
    }
    return m;
}

static void fill_normal(double *values, int64_t count, double scale)
{
    for (int64_t i = 0; i < count; i++) values[i] = scale * kr_test_normal();
}

/* ---- the recurrence, token by token ----
 *
 *   [z0 x0 z x B C dt] = in_proj u;  [x B C] = silu(conv);  dt = clamp(softplus(dt + dt_bias))
 *   S = exp(-dt exp(A_log)) S + dt x (outer) B;  y = S C + D x;  [silu(z0) x0 | norm] -> out_proj
 * where a token is padding, u is 0 and so are x, B and C after silu
 */
enum { NB = 2, NS = 7, ND = 32, MAX_WIDTH = 512, MAX_STATE = 1024 };

typedef struct memory {
    double window[MAX_WIDTH][4]; /* [v k] */
    double state[MAX_STATE];     /* [h p r] */
} memory;

static int nbelow, nabove, nfree; /* steps that the limits cut, or not */

static double silu(double x)
{
    return x / (1 + exp(-x));
}

static void project(const double *w, const double *bias, int64_t n_out, int64_t n_in, const double *x, double *y)
{
    for (int64_t o = 0; o < n_out; o++) {
        y[o] = bias ? bias[o] : 0;
        for (int64_t i = 0; i < n_in; i++) y[o] += w[o * n_in + i] * x[i];
    }
}

static void convolve(const kr_mamba2 *m, const kr_mamba2_config *c, memory *s, double *xbc, int64_t nv)
{
    const double *w = param(m, "conv1d.weight"), *bias = param(m, "conv1d.bias");
    const int64_t nk = c->conv_kernel;
    for (int64_t v = 0; v < nv; v++) {
        for (int64_t k = 0; k + 1 < nk; k++) s->window[v][k] = s->window[v][k + 1];
        s->window[v][nk - 1] = xbc[v];
        double sum = bias ? bias[v] : 0;
        for (int64_t k = 0; k < nk; k++) sum += w[v * nk + k] * s->window[v][k];
        xbc[v] = silu(sum);
    }
}

static void core(const kr_mamba2 *m, const kr_mamba2_config *c, memory *s, const double *xbc, const double *dt_raw,
                 int64_t nssm, double *y)
{
    const int64_t np = c->per_head_dim, nr = c->state_rank, nh = nssm / np;
    for (int64_t h = 0; h < nh; h++) {
        const double raw = dt_raw[h] + param(m, "dt_bias")[h];
        const double free = raw > 20 ? raw : log1p(exp(raw));
        const double dt = fmin(fmax(free, c->dt_limit_min), c->dt_limit_max);
        nbelow += free < dt;
        nabove += free > dt;
        nfree += free == dt;
        const double decay = exp(-dt * exp(param(m, "A_log")[h]));
        const double *b = xbc + nssm + h / (nh / c->n_groups) * nr, *cc = b + c->n_groups * nr;
        for (int64_t p = 0; p < np; p++) {
            const int64_t i = h * np + p;
            y[i] = param(m, "D")[c->has_d_per_dim ? i : h] * xbc[i];
            for (int64_t r = 0; r < nr; r++) {
                double *state = &s->state[i * nr + r];
                *state = decay * *state + dt * xbc[i] * b[r];
                y[i] += *state * cc[r];
            }
        }
    }
}

static void gate_and_norm(const kr_mamba2 *m, const kr_mamba2_config *c, int64_t nssm, const double *z, double *y)
{
    const int64_t group = nssm / (c->norm_per_group ? c->n_groups : 1);
    for (int64_t i = 0; i < nssm; i++)
        if (!c->has_norm || !c->norm_before_gate) y[i] *= silu(z[i]);
    for (int64_t from = 0; c->has_norm && from < nssm; from += group) {
        double square = 0;
        for (int64_t i = from; i < from + group; i++) square += y[i] * y[i];
        for (int64_t i = from; i < from + group; i++) {
            y[i] *= param(m, "norm.weight")[i] / sqrt(square / (double)group + c->norm_eps);
            if (c->norm_before_gate) y[i] *= silu(z[i]);
        }
    }
}

static void token(const kr_mamba2 *m, const kr_mamba2_config *c, memory *s, const double *read, bool is_padding,
                  double *out)
{
    const int64_t ni = c->expand * ND, nssm = c->d_ssm ? c->d_ssm : ni, nmlp = ni - nssm;
    const int64_t nv = nssm + 2 * c->n_groups * c->state_rank, nh = nssm / c->per_head_dim;
    double u[ND], in[MAX_WIDTH], wide[MAX_WIDTH];
    for (int64_t i = 0; i < ND; i++) u[i] = is_padding ? 0 : read[i];
    project(param(m, "in_proj.weight"), param(m, "in_proj.bias"), 2 * nmlp + nssm + nv + nh, ND, u, in);
    double *z0 = in, *x0 = z0 + nmlp, *z = x0 + nmlp, *xbc = z + nssm, *dt = xbc + nv;
    convolve(m, c, s, xbc, nv);
    for (int64_t v = 0; is_padding && v < nv; v++) xbc[v] = 0;
    core(m, c, s, xbc, dt, nssm, wide + nmlp);
    gate_and_norm(m, c, nssm, z, wide + nmlp);
    for (int64_t i = 0; i < nmlp; i++) wide[i] = silu(z0[i]) * x0[i];
    project(param(m, "out_proj.weight"), param(m, "out_proj.bias"), ND, ni, wide, out);
}

/* All tokens of a row; the cache before and after them, in the arrangement of the block's. mask: 0 where a token is
 * padding, NULL: none is. */
static void recurrence(const kr_mamba2 *m, const kr_mamba2_config *c, const double *x, const int32_t *mask, double *y,
                       double *window, double *state, int64_t nv, int64_t nstate)
{
    memory s;
    const int64_t nk = c->conv_kernel;
    for (int64_t i = 0; i < nv * nk; i++) s.window[i / nk][i % nk] = window[i];
    memcpy(s.state, state, (size_t)nstate * sizeof *state);
    for (int64_t t = 0; t < NS; t++) token(m, c, &s, x + t * ND, mask && !mask[t], y + t * ND);
    for (int64_t i = 0; i < nv * nk; i++) window[i] = s.window[i / nk][i % nk];
    memcpy(state, s.state, (size_t)nstate * sizeof *state);
}

/* Padding on both sides of a row, and between. */
static const int32_t padding[NB * NS] = { 0, 0, 1, 1, 1, 1, 0, 1, 1, 0, 1, 0, 0, 1 };

static void check_values(const char *name, kr_mamba2_config c, bool from_cache, const int32_t *mask)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    kr_tape *tape = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    c.dtype = KR_DTYPE_F64;
    kr_mamba2 *m = noisy(ctx, &c);
    const kr_mamba2_cache initial = kr_mamba2_initial_cache(tape, m, NB);
    const int64_t nwindow = kr_tensor_count(initial.conv_bvk) / NB, nstate = kr_tensor_count(initial.ssm_bhpr) / NB;
    double x[NB * NS * ND], y[NB * NS * ND];
    double *window = kr_test_values(initial.conv_bvk), *state = kr_test_values(initial.ssm_bhpr);
    fill_normal(x, NB * NS * ND, 1);
    if (from_cache) {
        fill_normal(window, NB * nwindow, 0.5);
        fill_normal(state, NB * nstate, 0.5);
    }
    const kr_mamba2_cache cache = {
        kr_from_data(tape, KR_DTYPE_F64, kr_tensor_shape(initial.conv_bvk), window),
        kr_from_data(tape, KR_DTYPE_F64, kr_tensor_shape(initial.ssm_bhpr), state),
    };
    const kr_cache boxed = { KR_FAMILY_MAMBA2, { .mamba2 = cache } };
    kr_tensor *mask_bs = mask ? kr_from_data(tape, KR_DTYPE_I32, KR_SHAPE(NB, NS), mask) : NULL;
    const kr_block_input input = {
        .op = "mamba2",
        .x_bsd = kr_from_data(tape, KR_DTYPE_F64, KR_SHAPE(NB, NS, ND), x),
        .cache = from_cache ? &boxed : NULL,
        .mask_bs1 = mask ? kr_reshape(tape, kr_cast(tape, mask_bs, KR_DTYPE_F64), KR_SHAPE(NB, NS, 1)) : NULL,
        .path = kr_mamba2_path(m),
    };
    const kr_block_result any = kr_mamba2_kind.forward(tape, m, &input);
    const kr_mamba2_out out = { any.y_bsd, any.cache.mamba2 };
    for (int64_t b = 0; b < NB; b++)
        recurrence(m, &c, x + b * NS * ND, mask ? mask + b * NS : NULL, y + b * NS * ND, window + b * nwindow,
                   state + b * nstate, nwindow / c.conv_kernel, nstate);
    char text[160];
    snprintf(text, sizeof text, "%s from a %s cache%s", name, from_cache ? "random" : "initial",
             mask ? ", masked" : "");
    /* sums of 32 to 64 terms in another order */
    CHECK_TENSORS(text, out.y, kr_from_data(tape, KR_DTYPE_F64, KR_SHAPE(NB, NS, ND), y), 1e-13, 0);
    CHECK_TENSORS(text, out.cache.conv_bvk, kr_from_data(tape, KR_DTYPE_F64, kr_tensor_shape(initial.conv_bvk), window),
                  1e-13, 0);
    CHECK_TENSORS(text, out.cache.ssm_bhpr, kr_from_data(tape, KR_DTYPE_F64, kr_tensor_shape(initial.ssm_bhpr), state),
                  1e-13, 0);
    CHECK_OK(ctx);
    free(window);
    free(state);
    kr_mamba2_destroy(m);
    kr_tape_destroy(tape);
    kr_ctx_destroy(ctx);
}

TEST(mamba2_is_the_recurrence)
{
    EACH_VARIANT(v)
    {
        nbelow = nabove = nfree = 0;
        for (int i = 0; i < 4; i++) check_values(v.name, v.config, i % 2, i / 2 ? padding : NULL);
        CHECK(v.config.dt_limit_max > 1 || (nbelow && nabove && nfree),
              "%s: %d steps below, %d above, %d between: the limits are not tried", v.name, nbelow, nabove, nfree);
    }
}

/* ---- a learned state is added once ---- */

/* With a cache the learned state has no part in anything: the cache has it already. */
TEST(mamba2_learned_state_begins_sequences_only)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    kr_tape *tape = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    const kr_mamba2_config c = mamba2_variant_at(12).config;
    kr_mamba2 *m = noisy(ctx, &c);
    kr_tensor *learned = kr_params_find(kr_mamba2_params(m), "init_states")->tensor;
    kr_tensor *x = kr_randn(tape, KR_DTYPE_F32, KR_SHAPE(2, 5, 32));
    const kr_mamba2_cache cache = { kr_randn(tape, KR_DTYPE_F32, KR_SHAPE(2, 80, 4)),
                                    kr_randn(tape, KR_DTYPE_F32, KR_SHAPE(2, 8, 8, 8)) };
    const kr_mamba2_out a = kr_mamba2_forward(tape, m, x, &cache, kr_mamba2_path(m));
    const kr_mamba2_out a_step =
        kr_mamba2_step(tape, m, kr_slice(tape, kr_reshape(tape, x, KR_SHAPE(10, 32)), 0, 0, 2), &cache);
    const kr_mamba2_out initial = kr_mamba2_forward(tape, m, x, NULL, kr_mamba2_path(m));
    kr_param_normal(learned, 0, 1);
    const kr_mamba2_out b = kr_mamba2_forward(tape, m, x, &cache, kr_mamba2_path(m));
    const kr_mamba2_out b_step =
        kr_mamba2_step(tape, m, kr_slice(tape, kr_reshape(tape, x, KR_SHAPE(10, 32)), 0, 0, 2), &cache);
    const kr_mamba2_out other = kr_mamba2_forward(tape, m, x, NULL, kr_mamba2_path(m));
    CHECK_SAME_BITS("y", b.y, a.y);
    CHECK_SAME_BITS("state", b.cache.ssm_bhpr, a.cache.ssm_bhpr);
    CHECK_SAME_BITS("y of a step", b_step.y, a_step.y);
    kr_tensor *change = kr_sub(tape, other.y, initial.y);
    CHECK(kr_item(kr_max(tape, kr_mul(tape, change, change), KR_ALL_AXES, false)) > 1e-3,
          "an initial state has no part");
    CHECK_OK(ctx);
    kr_tape_destroy(tape);
    kr_mamba2_destroy(m);
    kr_ctx_destroy(ctx);
}

/* ---- forever ---- */

/* The steps are about 0.3 and rates 1 or more: 400 of them leave e^-40 or so of the beginning. Gradients of a
 * geometric sum have the terms t e^(-0.1 t) too, which are as small by then. */
static void check_infinite(const char *name, kr_mamba2_config c)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    kr_tape *tape = kr_tape_create(ctx, KR_TAPE_GRAD);
    c.dtype = KR_DTYPE_F64;
    c.dt_min = 0.2;
    c.dt_max = 0.6;
    if (c.dt_limit_max < 1) c.dt_limit_min = 0.3, c.dt_limit_max = 0.5;
    kr_mamba2 *m = kr_mamba2_create(ctx, &c);
    kr_params *params = kr_mamba2_params(m);
    double values[3 * ND];
    fill_normal(values, 3 * ND, 1);
    kr_tensor *g_y = kr_randn(tape, KR_DTYPE_F64, KR_SHAPE(3, ND));
    kr_tensor *x = kr_input(tape, kr_from_data(tape, KR_DTYPE_F64, KR_SHAPE(3, ND), values));
    kr_mamba2_out out = kr_mamba2_step(tape, m, x, NULL);
    for (int i = 1; i < 400; i++) out = kr_mamba2_step(tape, m, x, &out.cache);
    kr_backward_from(tape, 1, &out.y, &g_y);
    double *g_params[16], *g_x = kr_test_values(kr_grad(x)), *y = kr_test_values(out.y), g_head[3 * ND];
    for (int64_t i = 0; i < kr_params_count(params); i++)
        g_params[i] = kr_test_values(kr_grad(kr_params_at(params, i)->tensor));
    kr_tensor_read(g_y, KR_DTYPE_F64, g_head, 3 * ND);

    kr_tape_reset(tape);
    kr_params_zero_grad(params);
    x = kr_input(tape, kr_from_data(tape, KR_DTYPE_F64, KR_SHAPE(3, ND), values));
    g_y = kr_from_data(tape, KR_DTYPE_F64, KR_SHAPE(3, ND), g_head);
    kr_tensor *limit = kr_mamba2_step_infinite(tape, m, x);
    kr_backward_from(tape, 1, &limit, &g_y);
    CHECK_TENSORS(name, limit, kr_from_data(tape, KR_DTYPE_F64, KR_SHAPE(3, ND), y), 1e-9, 0);
    CHECK_TENSORS(name, kr_grad(x), kr_from_data(tape, KR_DTYPE_F64, KR_SHAPE(3, ND), g_x), 1e-8, 0);
    for (int64_t i = 0; i < kr_params_count(params); i++) {
        const kr_param_row *row = kr_params_at(params, i);
        char text[160];
        snprintf(text, sizeof text, "%s: g_%s", name, row->name);
        if (strcmp(row->name, "init_states") != 0) /* forgotten: the gradient is none here, e^-40 there */
            CHECK_TENSORS(text, kr_grad(row->tensor),
                          kr_from_data(tape, KR_DTYPE_F64, kr_tensor_shape(row->tensor), g_params[i]), 1e-8, 0);
        free(g_params[i]);
    }
    CHECK_OK(ctx);
    free(y);
    free(g_x);
    kr_mamba2_destroy(m);
    kr_tape_destroy(tape);
    kr_ctx_destroy(ctx);
}

TEST(mamba2_infinite_steps_are_400)
{
    for (int i = 0; i < MAMBA2_VARIANTS; i += kr_test_quick() ? 8 : 1) {
        const mamba2_variant v = mamba2_variant_at(i);
        check_infinite(v.name, v.config);
    }
}
