/* test_optimizer.c - optimizers: closed forms, what is passed over, clipping, accumulation, decay, halves, averages,
 * the same bits for any number of threads, memory, and the text. */
#include "tests/train/optimizing.h"

#include "base/device_memory.h"
#include "base/half.h"
#include "train/optimizer_impl.h"

static kr_ctx *ctx;
static kr_params *params;
static kr_optimizer_options o;

static void begin(kr_dtype dtype)
{
    ctx = kr_test_ctx(1, NULL);
    params = optimizing_table(ctx, dtype);
    kr_optimizer_options_init(&o);
    o.beta2 = 0.999;
    o.weight_decay = 0.01;
    o.clip_norm = 0;
}

static void end(void)
{
    CHECK_OK(ctx);
    kr_params_destroy(params);
    kr_ctx_destroy(ctx);
}

static kr_tensor *param(const char *name)
{
    return kr_params_find(params, name)->tensor;
}

static double at(const char *name, int64_t flat)
{
    double *values = kr_test_values(param(name)), x = values[flat];
    free(values);
    return x;
}

/* Adds the same number to all elements of a parameter's gradient. */
static void give(const char *name, double g)
{
    double all[288];
    for (int i = 0; i < 288; i++) all[i] = g;
    optimizing_give(ctx, param(name), all);
}

static double largest_grad(const char *name)
{
    double most = 0, *values = kr_test_values(kr_grad(param(name)));
    for (int64_t i = 0; i < kr_tensor_count(param(name)); i++) most = fmax(most, fabs(values[i]));
    free(values);
    return most;
}

static bool near(double got, double want, double tolerance)
{
    return CHECK(fabs(got - want) <= tolerance, "got %.17g, want %.17g", got, want);
}

/* ---- closed forms ---- */

/* A gradient that is always the same: m / (1 - beta1^t) = g, v / (1 - beta2^t) = g^2, so each step is lr g / (|g| +
 * eps). */
TEST(adamw_steps_by_lr_under_a_constant_gradient)
{
    begin(KR_DTYPE_F64);
    o.weight_decay = 0;
    o.eps = 0.5;
    kr_optimizer *opt = kr_optimizer_create(ctx, params, &o);
    const double start = at("embed.weight", 3);
    for (int t = 1; t <= 50; t++) {
        give("embed.weight", -2);
        kr_optimizer_step(opt, 0.1, 1);
        near(at("embed.weight", 3), start + t * 0.1 * 2 / 2.5, 1e-12);
        near(kr_optimizer_grad_norm(opt), 2 * sqrt(35), 1e-12);
    }
    kr_optimizer_destroy(opt);
    end();
}

/* Without gradient but for its zeros, decay alone acts: w (1 - lr weight_decay)^t. */
TEST(adamw_decays_geometrically)
{
    begin(KR_DTYPE_F64);
    o.weight_decay = 0.5;
    kr_optimizer *opt = kr_optimizer_create(ctx, params, &o);
    const double start = at("embed.weight", 0), norm = at("norm.weight", 0);
    for (int t = 1; t <= 20; t++) {
        give("embed.weight", 0);
        give("norm.weight", 0);
        kr_optimizer_step(opt, 0.1, 1);
        near(at("embed.weight", 0), start * pow(0.95, t), 1e-14);
        CHECK(at("norm.weight", 0) == norm, "a norm decays");
    }
    kr_optimizer_destroy(opt);
    end();
}

/* A decay of 1e-8 a step is lost in one f32 step, and is not lost where the rest of the step moves the weight too. */
TEST(adamw_keeps_decay_below_an_ulp)
{
    begin(KR_DTYPE_F32);
    o.weight_decay = 0.04;
    kr_optimizer *opt = kr_optimizer_create(ctx, params, &o);
    kr_param_fill(param("embed.weight"), 1);
    give("embed.weight", 1);
    kr_optimizer_step(opt, 0x1p-20, 1); /* 2^-20 and 0.04 2^-20 (0.64 of an ulp below 1) in one sum */
    const double want = 1 - 0x1p-20 * 1.04;
    near(at("embed.weight", 7), want, 0x1p-25);
    kr_optimizer_destroy(opt);
    end();
}

/* u_t = g (1 - mu^t) / (1 - mu), so the weight has moved by lr g (t - mu (1 - mu^t) / (1 - mu)) / (1 - mu). */
TEST(sgd_gathers_momentum)
{
    begin(KR_DTYPE_F64);
    o.kind = KR_OPTIMIZER_SGD;
    o.weight_decay = 0;
    o.momentum = 0.75;
    kr_optimizer *opt = kr_optimizer_create(ctx, params, &o);
    const double start = at("norm.weight", 1);
    for (int t = 1; t <= 40; t++) {
        give("norm.weight", 3);
        kr_optimizer_step(opt, 0.01, 1);
        near(at("norm.weight", 1), start - 0.01 * 3 * (t - 0.75 * (1 - pow(0.75, t)) / 0.25) / 0.25, 1e-12);
    }
    kr_optimizer_destroy(opt);
    end();
}

/* ---- decay ---- */

/* Of one step with a zero gradient: did the row decay? */
static bool has_decay(kr_optimizer *opt, const char *name)
{
    const double before = at(name, 0);
    give(name, 0);
    kr_optimizer_step(opt, 0.1, 1);
    return at(name, 0) != before;
}

TEST(decay_follows_the_table)
{
    for (int kind = KR_OPTIMIZER_ADAMW; kind <= KR_OPTIMIZER_MUON; kind++)
        for (int all = 0; all < 2; all++) {
            begin(KR_DTYPE_F64);
            o.kind = (kr_optimizer_kind)kind;
            o.decay_all = all;
            o.weight_decay = 0.1;
            kr_optimizer *opt = kr_optimizer_create(ctx, params, &o);
            for (int64_t i = 0; i < kr_params_count(params); i++) {
                const kr_param_row *row = kr_params_at(params, i);
                CHECK(has_decay(opt, row->name) == (row->has_decay || all), "%s, %s, all %d",
                      kr_optimizer_kind_name(o.kind), row->name, all);
            }
            kr_optimizer_destroy(opt);
            end();
        }
}

/* Decay where it goes the gradient's way: w and m of one sign; elsewhere as without decay, to the bit. */
TEST(cautious_decay_goes_by_signs)
{
    double results[3][35], start[35], g[35];
    for (int i = 0; i < 35; i++) g[i] = i % 3 == 0 ? 0 : kr_test_normal();
    for (int run = 0; run < 3; run++) { /* no decay, plain, cautious */
        begin(KR_DTYPE_F32);
        o.weight_decay = run == 0 ? 0 : 0.5;
        o.is_cautious = run == 2;
        kr_optimizer *opt = kr_optimizer_create(ctx, params, &o);
        float *w = kr_test_copy(param("embed.weight"));
        w[1] = 0;
        w[2] = -0.0F;
        kr_test_write(param("embed.weight"), w);
        for (int i = 0; i < 35; i++) start[i] = (double)w[i];
        optimizing_give(ctx, param("embed.weight"), g);
        kr_optimizer_step(opt, 0.1, 1);
        kr_tensor_read(param("embed.weight"), KR_DTYPE_F64, results[run], 35);
        kr_optimizer_destroy(opt);
        end();
    }
    int with = 0;
    for (int i = 0; i < 35; i++) {
        const bool decayed = (start[i] >= 0) == (g[i] >= 0);
        CHECK(results[2][i] == results[decayed ? 1 : 0][i], "element %d: w %g, g %g", i, start[i], g[i]);
        with += decayed;
    }
    CHECK(with > 5 && with < 30, "%d of 35 decay", with);
}

/* ---- clipping ---- */

/* Plain SGD with lr 1 subtracts the gradient as it is taken. */
static void clip_case(double clip_norm, double clip_value, double scale, double want_embed, double want_norm)
{
    begin(KR_DTYPE_F64);
    o.kind = KR_OPTIMIZER_SGD;
    o.momentum = 0;
    o.weight_decay = 0;
    o.clip_norm = clip_norm;
    o.clip_value = clip_value;
    kr_optimizer *opt = kr_optimizer_create(ctx, params, &o);
    const double embed = at("embed.weight", 9), norm = at("norm.weight", 2);
    give("embed.weight", 2);
    give("norm.weight", -5);
    kr_optimizer_step(opt, 1, scale);
    near(embed - at("embed.weight", 9), want_embed, 1e-13);
    near(norm - at("norm.weight", 2), want_norm, 1e-13);
    near(kr_optimizer_grad_norm(opt), scale * sqrt(35 * 4 + 6 * 25), 1e-12); /* before clipping */
    kr_optimizer_destroy(opt);
    end();
}

TEST(clipping_by_norm_and_by_value)
{
    const double norm = sqrt(35 * 4 + 6 * 25);
    clip_case(0, 0, 1, 2, -5);
    clip_case(0, 0, 0.25, 0.5, -1.25);
    clip_case(norm + 1e-9, 0, 1, 2, -5);
    clip_case(1, 0, 1, 2 / norm, -5 / norm);
    clip_case(1, 0, 0.25, 2 / norm, -5 / norm);
    clip_case(0, 3, 1, 2, -3);
    clip_case(0, 1, 0.25, 0.5, -1);
    clip_case(norm / 2, 2, 1, 1, -2); /* the norm first, then each element */
}

/* ---- what is passed over ---- */

TEST(passes_over_frozen_and_untouched_parameters)
{
    begin(KR_DTYPE_F32);
    kr_optimizer *opt = kr_optimizer_create(ctx, params, &o);
    kr_params *before = optimizing_table(ctx, KR_DTYPE_F32);
    give("embed.weight", 1);
    give("out_proj.weight", 1);
    kr_param_freeze(param("out_proj.weight"), true);
    for (int t = 0; t < 3; t++) {
        kr_optimizer_step(opt, 0.1, 1);
        near(kr_optimizer_grad_norm(opt), sqrt(35), 1e-12); /* of what is stepped */
        give("embed.weight", 1);
    }
    for (int64_t i = 0; i < kr_params_count(params); i++) {
        const char *name = kr_params_at(params, i)->name;
        if (strcmp(name, "embed.weight") == 0)
            CHECK(at(name, 0) != (double)*(float *)kr_test_copy(kr_params_at(before, i)->tensor), "stays");
        else CHECK_SAME_BITS(name, kr_params_at(params, i)->tensor, kr_params_at(before, i)->tensor);
    }
    /* thawed, its first step is a first one: lr in size */
    kr_param_freeze(param("out_proj.weight"), false);
    const double start = at("out_proj.weight", 0);
    kr_optimizer_step(opt, 0.1, 1);
    near(at("out_proj.weight", 0), start * (1 - 0.1 * 0.01) - 0.1, 1e-6);
    kr_params_destroy(before);
    kr_optimizer_destroy(opt);
    end();
}

/* A gradient that was taken and zeroed is none: momentum does not go on without a new one. */
TEST(passes_over_what_has_no_new_gradient)
{
    for (int keeps = 0; keeps < 2; keeps++) {
        begin(KR_DTYPE_F32);
        o.keep_grad = keeps;
        kr_optimizer *opt = kr_optimizer_create(ctx, params, &o);
        give("conv.weight", 1);
        kr_optimizer_step(opt, 0.1, 1);
        const double once = at("conv.weight", 0);
        give("embed.weight", 1);
        kr_optimizer_step(opt, 0.1, 1);
        CHECK((at("conv.weight", 0) == once) == !keeps, "keeps %d: %g after %g", keeps, at("conv.weight", 0), once);
        kr_params_zero_grad(params);
        CHECK(kr_optimizer_step(opt, 0.1, 1) == KR_ERR_STATE, "zeroed gradients are taken");
        kr_ctx_clear(ctx);
        kr_optimizer_destroy(opt);
        end();
    }
}

TEST(zeroes_gradients_or_keeps_them)
{
    for (int keeps = 0; keeps < 2; keeps++) {
        begin(KR_DTYPE_BF16);
        o.keep_grad = keeps;
        kr_optimizer *opt = kr_optimizer_create(ctx, params, &o);
        optimizing_give_all(ctx, params, 1, NULL);
        kr_optimizer_step(opt, 0.1, 1);
        for (int64_t i = 0; i < kr_params_count(params); i++)
            CHECK((largest_grad(kr_params_at(params, i)->name) == 0) == !keeps, "%s, keeps %d",
                  kr_params_at(params, i)->name, keeps);
        if (!keeps) { /* what comes next is not added to anything old */
            give("embed.weight", 0.5);
            CHECK(largest_grad("embed.weight") == 0.5, "%g", largest_grad("embed.weight"));
        }
        kr_optimizer_destroy(opt);
        end();
    }
}

/* ---- accumulation ---- */

/* Four small batches and one large one: the sum of four f32 gradients has three roundings, and a step of AdamW moves by
 * lr times what is within 3 2^-24 relative of the sum of magnitudes, here below 8; powers of two divide exactly. */
static void accumulate(kr_optimizer_kind kind, double tolerance)
{
    begin(KR_DTYPE_F32);
    o.kind = kind;
    o.clip_norm = 3;
    kr_params *other = optimizing_table(ctx, KR_DTYPE_F32);
    kr_optimizer *a = kr_optimizer_create(ctx, params, &o), *b = kr_optimizer_create(ctx, other, &o);
    const int64_t n = kr_params_elements(params);
    double *g = malloc((size_t)n * sizeof *g), *sum = malloc((size_t)n * sizeof *sum);
    if (!g || !sum) exit(2);
    for (int t = 0; t < 10; t++) {
        memset(sum, 0, (size_t)n * sizeof *sum);
        for (int part = 0; part < 4; part++) {
            const int64_t rows = kr_params_count(params);
            double *grad = calloc((size_t)n, sizeof *grad);
            if (!grad) exit(2);
            for (int64_t i = 0; i < n; i++) grad[i] = (double)(float)kr_test_normal();
            int64_t from = 0;
            for (int64_t r = 0; r < rows; r++) {
                optimizing_give(ctx, kr_params_at(params, r)->tensor, grad + from);
                from += kr_tensor_count(kr_params_at(params, r)->tensor);
            }
            for (int64_t i = 0; i < n; i++) sum[i] += grad[i] / 4;
            free(grad);
        }
        int64_t from = 0;
        for (int64_t r = 0; r < kr_params_count(other); r++) {
            optimizing_give(ctx, kr_params_at(other, r)->tensor, sum + from);
            from += kr_tensor_count(kr_params_at(other, r)->tensor);
        }
        kr_optimizer_step(a, 0.01, 0.25);
        kr_optimizer_step(b, 0.01, 1);
        near(kr_optimizer_grad_norm(a), kr_optimizer_grad_norm(b), 1e-6 * kr_optimizer_grad_norm(b));
    }
    double *x = optimizing_values(params), *y = optimizing_values(other);
    CHECK_CLOSE(kr_optimizer_kind_name(kind), x, y, n, NULL, tolerance, 1);
    free(x);
    free(y);
    free(g);
    free(sum);
    kr_optimizer_destroy(a);
    kr_optimizer_destroy(b);
    kr_params_destroy(other);
    end();
}

TEST(accumulation_is_the_large_batch)
{
    /* ten steps of 0.01: an element whose four gradients cancel moves by their rounding over their sum's size */
    accumulate(KR_OPTIMIZER_SGD, 1e-6);
    accumulate(KR_OPTIMIZER_ADAMW, 1e-5);
    accumulate(KR_OPTIMIZER_MUON, 5e-5); /* small singular values are amplified, and so are their roundings */
}

/* ---- halves ---- */

/* The f32 copies are stepped as f32 parameters would be, to the bit, and the parameters are these, rounded. */
static void halves(kr_dtype dtype)
{
    begin(dtype);
    o.kind = KR_OPTIMIZER_MUON;
    kr_params *wide = optimizing_table(ctx, KR_DTYPE_F32);
    for (int64_t i = 0; i < kr_params_count(params); i++) {
        const kr_tensor *w = kr_params_at(params, i)->tensor;
        double *values = kr_test_values(w);
        kr_param_write(kr_params_at(wide, i)->tensor, KR_DTYPE_F64, values, kr_tensor_count(w));
        free(values);
    }
    kr_optimizer *opt = kr_optimizer_create(ctx, params, &o), *f32 = kr_optimizer_create(ctx, wide, &o);
    const int64_t n = kr_params_elements(params);
    double *g = malloc((size_t)n * sizeof *g);
    if (!g) exit(2);
    for (int t = 0; t < 10; t++) {
        optimizing_give_all(ctx, params, 1, g);
        int64_t from = 0;
        for (int64_t i = 0; i < kr_params_count(wide); i++) {
            optimizing_give(ctx, kr_params_at(wide, i)->tensor, g + from);
            from += kr_tensor_count(kr_params_at(wide, i)->tensor);
        }
        kr_optimizer_step(opt, 1e-4, 1); /* below half an ulp of most parameters, and not lost */
        kr_optimizer_step(f32, 1e-4, 1);
    }
    for (int64_t i = 0; i < opt->count; i++) {
        const kr_optimizer_slot *slot = &opt->slots[i];
        const kr_tensor *w = slot->row->tensor;
        CHECK((slot->master != NULL) == (w->dtype == dtype), "%s: a copy", slot->row->name);
        const float *want = kr_test_copy(kr_params_at(wide, i)->tensor);
        float *master = slot->master ? malloc((size_t)kr_slot_elements(slot) * sizeof *master) : NULL;
        if (master) kr_fetch(ctx, master, slot->master, (size_t)kr_slot_elements(slot) * sizeof *master);
        const uint16_t *bits = kr_test_copy(w);
        for (int64_t e = 0; master && e < kr_slot_elements(slot); e++) {
            const uint16_t rounded =
                dtype == KR_DTYPE_BF16 ? kr_bf16_from_float(master[e]) : kr_f16_from_float(master[e]);
            if (!CHECK(master[e] == want[e] && bits[e] == rounded, "%s[%lld]: %.9g, not %.9g; bits %x", slot->row->name,
                       (long long)e, (double)master[e], (double)want[e], bits[e]))
                break;
        }
        free(master);
    }
    free(g);
    kr_optimizer_destroy(opt);
    kr_optimizer_destroy(f32);
    kr_params_destroy(wide);
    end();
}

TEST(halves_are_stepped_as_f32)
{
    halves(KR_DTYPE_BF16);
    halves(KR_DTYPE_F16);
}

TEST(reread_takes_written_parameters)
{
    begin(KR_DTYPE_BF16);
    o.ema_decay = 0.5;
    o.weight_decay = 0;
    kr_optimizer *opt = kr_optimizer_create(ctx, params, &o);
    kr_param_fill(param("embed.weight"), 8);
    kr_optimizer_reread(opt);
    give("embed.weight", 1);
    kr_optimizer_step(opt, 0.5, 1);
    near(at("embed.weight", 0), 7.5, 0);
    kr_optimizer_use_ema(opt, true);
    near(at("embed.weight", 0), 7.75, 0);
    kr_optimizer_use_ema(opt, false);
    kr_optimizer_destroy(opt);
    end();
}

/* ---- averages ---- */

/* A weight that moves by -1 a step, followed with decay d: ema_t = w_t + d (1 - d^t) / (1 - d). */
TEST(ema_follows_in_a_closed_form)
{
    begin(KR_DTYPE_F64);
    o.kind = KR_OPTIMIZER_SGD;
    o.momentum = 0;
    o.weight_decay = 0;
    o.ema_decay = 0.9;
    kr_optimizer *opt = kr_optimizer_create(ctx, params, &o);
    for (int t = 1; t <= 30; t++) {
        give("norm.weight", 1);
        kr_optimizer_step(opt, 1, 1);
        const double w = at("norm.weight", 4), still = at("embed.weight", 4);
        kr_optimizer_use_ema(opt, true);
        kr_optimizer_use_ema(opt, true);
        near(at("norm.weight", 4), w + 0.9 * (1 - pow(0.9, t)) / 0.1, 1e-12);
        near(at("embed.weight", 4), still, 0);
        kr_optimizer_use_ema(opt, false);
        kr_optimizer_use_ema(opt, false);
        CHECK(at("norm.weight", 4) == w, "the trained weight has changed");
    }
    kr_optimizer_destroy(opt);
    end();
}

TEST(ema_goes_in_and_out_to_the_bit)
{
    for (int dtype = KR_DTYPE_F32; dtype <= KR_DTYPE_F16; dtype++) {
        begin((kr_dtype)dtype);
        o.ema_decay = 0.7;
        kr_params *other = optimizing_table(ctx, (kr_dtype)dtype);
        kr_optimizer *a = kr_optimizer_create(ctx, params, &o), *b = kr_optimizer_create(ctx, other, &o);
        for (int t = 0; t < 5; t++) {
            optimizing_give_all(ctx, params, 1, NULL);
            for (int64_t i = 0; i < kr_params_count(params); i++) {
                double *g = kr_test_values(kr_grad(kr_params_at(params, i)->tensor));
                optimizing_give(ctx, kr_params_at(other, i)->tensor, g);
                free(g);
            }
            kr_optimizer_step(a, 0.1, 1);
            kr_optimizer_step(b, 0.1, 1);
            kr_optimizer_use_ema(a, true);
            double *x = optimizing_values(params), *y = optimizing_values(other), most = 0;
            for (int64_t e = 0; e < kr_params_elements(params); e++) most = fmax(most, fabs(x[e] - y[e]));
            CHECK(most > 0.01, "the averages are not in");
            free(x);
            free(y);
            kr_optimizer_use_ema(a, false);
            optimizing_same_weights(params, other);
        }
        kr_params_destroy(other);
        kr_optimizer_destroy(a);
        kr_optimizer_destroy(b);
        end();
    }
}

/* A packed copy of the weights must not outlive a step, nor a change to the averages. */
TEST(steps_drop_packed_copies)
{
    begin(KR_DTYPE_F32);
    o.ema_decay = 0.5;
    kr_optimizer *opt = kr_optimizer_create(ctx, params, &o);
    kr_tensor *w = param("out_proj.weight");
    kr_param_pack(w);
    give("out_proj.weight", 1);
    kr_optimizer_step(opt, 0.1, 1);
    CHECK(!w->storage->packed, "the packed copy outlives a step");
    kr_param_pack(w);
    kr_optimizer_use_ema(opt, true);
    CHECK(!w->storage->packed, "the packed copy outlives the averages");
    kr_optimizer_use_ema(opt, false);
    kr_optimizer_destroy(opt);
    end();
}

/* ---- threads ---- */

/* Tables that are large enough for many tasks: a block, its weights after some steps by 1, 2 and 3 threads. */
static kr_mamba2 *trained_block(kr_ctx *of, kr_optimizer_kind kind, double *norm)
{
    kr_mamba2_config config;
    kr_mamba2_config_init(&config);
    config.d_model = kr_test_quick() ? 64 : 128;
    kr_ctx_seed(of, 7);
    kr_mamba2 *m = kr_mamba2_create(of, &config);
    kr_optimizer_options options;
    kr_optimizer_options_init(&options);
    options.kind = kind;
    options.clip_norm = 1;
    options.ema_decay = 0.9;
    kr_optimizer *opt = kr_optimizer_create(of, kr_mamba2_params(m), &options);
    for (int t = 0; t < 3; t++) {
        kr_tape *tape = kr_tape_create(of, KR_TAPE_GRAD);
        kr_tensor *x = kr_randn(tape, KR_DTYPE_F32, KR_SHAPE(1, 8, config.d_model));
        kr_tensor *y = kr_mamba2_forward(tape, m, x, NULL, kr_mamba2_path(m)).y;
        kr_backward(tape, kr_mean(tape, kr_mul(tape, y, y), KR_ALL_AXES, false));
        kr_optimizer_step(opt, 0.01, 1);
        kr_tape_destroy(tape);
    }
    *norm = kr_optimizer_grad_norm(opt);
    kr_optimizer_use_ema(opt, true); /* what is compared */
    kr_optimizer_destroy(opt);
    return m;
}

TEST(optimizer_same_bits_for_any_number_of_threads)
{
    for (int kind = KR_OPTIMIZER_ADAMW; kind <= KR_OPTIMIZER_MUON; kind++) {
        kr_ctx *one = kr_test_ctx(1, NULL);
        double norm;
        kr_mamba2 *want = trained_block(one, (kr_optimizer_kind)kind, &norm);
        for (int threads = 2; threads <= 3; threads++) {
            kr_ctx *many = kr_test_ctx(threads, NULL);
            double other;
            kr_mamba2 *got = trained_block(many, (kr_optimizer_kind)kind, &other);
            CHECK(other == norm, "%d threads: norm %.17g, not %.17g", threads, other, norm);
            optimizing_same_weights(kr_mamba2_params(got), kr_mamba2_params(want));
            CHECK_OK(many);
            kr_mamba2_destroy(got);
            kr_ctx_destroy(many);
        }
        CHECK_OK(one);
        kr_mamba2_destroy(want);
        kr_ctx_destroy(one);
    }
}

/* ---- memory ---- */

static size_t rounded_up(int64_t bytes)
{
    return ((size_t)bytes + 63) / 64 * 64;
}

static size_t live_bytes(void)
{
    return kr_ctx_memory(ctx).live_bytes + kr_ctx_device_memory(ctx).live_bytes;
}

TEST(optimizer_bytes_are_exact)
{
    static const struct {
        kr_optimizer_kind kind;
        double momentum, ema;
        int adamw_numbers, muon_numbers; /* an element */
    } table[] = { { KR_OPTIMIZER_ADAMW, 0.9, 0, 2, 2 }, { KR_OPTIMIZER_ADAMW, 0.9, 0.5, 3, 3 },
                  { KR_OPTIMIZER_SGD, 0, 0, 0, 0 },     { KR_OPTIMIZER_SGD, 0.9, 0, 1, 1 },
                  { KR_OPTIMIZER_MUON, 0.9, 0, 2, 1 },  { KR_OPTIMIZER_MUON, 0.9, 0.5, 3, 2 } };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        begin(KR_DTYPE_F32);
        o.kind = table[i].kind;
        o.momentum = table[i].momentum;
        o.ema_decay = table[i].ema;
        const size_t before = live_bytes();
        kr_optimizer *opt = kr_optimizer_create(ctx, params, &o);
        size_t want = 0; /* arrays of 6, 35, 12, then parts of 168, 72, 36, 12 or 288, and 36 */
        const size_t adamw = (size_t)table[i].adamw_numbers, muon = (size_t)table[i].muon_numbers,
                     has_ema = o.ema_decay > 0;
        want += adamw * (rounded_up(4 * 6) + rounded_up(4 * 35) + rounded_up(4 * 12));
        if (o.kind != KR_OPTIMIZER_MUON) want += adamw * (rounded_up(4 * 288) + rounded_up(4 * 36));
        else
            want += (muon - has_ema) *
                        (rounded_up(4 * 168) + rounded_up(4 * 72) + rounded_up(4 * 12) + rounded_up(4 * 36)) +
                    (adamw - has_ema) * rounded_up(4 * 36) + has_ema * (rounded_up(4 * 288) + rounded_up(4 * 36));
        CHECK(kr_optimizer_bytes(opt) == want, "row %zu: %zu bytes, not %zu", i, kr_optimizer_bytes(opt), want);
        const size_t made = live_bytes();
        CHECK(made - before == want + opt->work_bytes + sizeof *opt + 64 + 8192, "row %zu: %zu bytes besides the state",
              i, made - before - want);
        optimizing_give_all(ctx, params, 1, NULL);
        const kr_memory_stats given = kr_ctx_memory(ctx);
        kr_optimizer_step(opt, 0.1, 1);
        CHECK(kr_ctx_memory(ctx).total_blocks == given.total_blocks, "row %zu: a step asks for memory", i);
        kr_optimizer_destroy(opt);
        end();
    }
}

/* AdamW of a large table: two floats a parameter, and some KiB. */
TEST(adamw_takes_two_floats_a_parameter)
{
    ctx = kr_test_ctx(1, NULL);
    kr_mamba2_config config;
    kr_mamba2_config_init(&config);
    config.d_model = 256;
    kr_mamba2 *m = kr_mamba2_create(ctx, &config);
    const size_t before = live_bytes(), floats = 8 * (size_t)kr_params_elements(kr_mamba2_params(m));
    kr_optimizer *opt = kr_optimizer_create(ctx, kr_mamba2_params(m), NULL);
    const size_t more = live_bytes() - before;
    CHECK(more >= floats && more < floats + 16384, "%zu bytes for %zu of moments", more, floats);
    kr_optimizer_destroy(opt);
    kr_mamba2_destroy(m);
    CHECK_OK(ctx);
    kr_ctx_destroy(ctx);
}

/* ---- text ---- */

static void describes(kr_optimizer_kind kind, const char *const *names, int count, const char *want)
{
    begin(KR_DTYPE_F32);
    o.kind = kind;
    o.n_without = count;
    o.without = names;
    kr_optimizer *opt = kr_optimizer_create(ctx, params, &o);
    char text[1024];
    const size_t length = kr_optimizer_describe(opt, text, sizeof text);
    CHECK(strcmp(text, want) == 0, "got\n%s", text);
    CHECK(length == strlen(want) && kr_optimizer_describe(opt, NULL, 0) == length, "length %zu", length);
    char part[20];
    CHECK(kr_optimizer_describe(opt, part, sizeof part) == length && strlen(part) == 19, "'%s'", part);
    kr_optimizer_destroy(opt);
    end();
}

TEST(optimizer_describes_itself)
{
    static const char head[] = "rank  name             shape                     count  decay  updated by\n"
                               "   1  norm.weight      [6]                           6  no     %s\n"
                               "   2  embed.weight     [7, 5]                       35  yes    %s\n"
                               "   3  conv.weight      [4, 1, 3]                    12  yes    %s\n"
                               "   2  in_proj.weight   [24, 12]                    288  yes    %s\n"
                               "   2  out_proj.weight  [9, 4]                       36  yes    %s\n"
                               "total 377 parameters, %s\n";
    char want[1024];
    snprintf(want, sizeof want, head, "adamw", "adamw", "adamw", "adamw", "adamw", "0 on muon (0.0 %)");
    describes(KR_OPTIMIZER_ADAMW, NULL, 0, want);
    snprintf(want, sizeof want, head, "sgd", "sgd", "sgd", "sgd", "sgd", "0 on muon (0.0 %)");
    describes(KR_OPTIMIZER_SGD, NULL, 0, want);
    snprintf(want, sizeof want, head, "adamw", "adamw", "adamw", "muon[z:14 x:6 dt:3* rotation:1]", "muon[out:9]",
             "288 on muon (76.4 %)");
    describes(KR_OPTIMIZER_MUON, NULL, 0, want);
    snprintf(want, sizeof want, head, "adamw", "adamw", "adamw", "muon[z:14 x:6* dt:3* rotation:1]", "muon[out:9*]",
             "180 on muon (47.7 %)");
    describes(KR_OPTIMIZER_MUON, (const char *const[]){ "out", "x" }, 2, want);
}
