/* test_optimizer_reference.c - a hundred steps of every kind against the plain optimizer in double, for parameters of
 * f64 and of f32, on every instruction set.
 *
 * Gradients do not depend on the weights, so that errors add up but do not feed on themselves.
 */
#include "tests/train/optimizing.h"

#include "train/optimizer_impl.h"

enum { NSTEPS = 100 };

typedef struct variant {
    const char *name;
    void (*set)(kr_optimizer_options *o);
} variant;

static const char *const without[] = { "x", "out" };

static void plain_adamw(kr_optimizer_options *o)
{
    o->kind = KR_OPTIMIZER_ADAMW;
}

static void other_betas(kr_optimizer_options *o)
{
    o->beta2 = 0.95;
    o->eps = 1e-5;
    o->weight_decay = 0.1;
    o->decay_all = true;
    o->ema_decay = 0.9;
}

static void cautious(kr_optimizer_options *o)
{
    o->is_cautious = true;
    o->weight_decay = 0.3;
    o->clip_value = 0.8;
}

static void clipped(kr_optimizer_options *o)
{
    o->clip_norm = 9;
    o->clip_value = 1;
}

static void plain_sgd(kr_optimizer_options *o)
{
    o->kind = KR_OPTIMIZER_SGD;
    o->momentum = 0;
    o->clip_norm = 9;
}

static void sgd_momentum(kr_optimizer_options *o)
{
    o->kind = KR_OPTIMIZER_SGD;
    o->dampening = 0.25;
    o->ema_decay = 0.99;
}

static void sgd_nesterov(kr_optimizer_options *o)
{
    o->kind = KR_OPTIMIZER_SGD;
    o->use_nesterov = true;
    o->decay_all = true;
}

static void plain_muon(kr_optimizer_options *o)
{
    o->kind = KR_OPTIMIZER_MUON;
}

static void muon_original(kr_optimizer_options *o)
{
    o->kind = KR_OPTIMIZER_MUON;
    o->muon_ratio = KR_MUON_RATIO_ORIGINAL;
    o->use_muon_nesterov = false;
    o->muon_weight_decay = 0.2;
    o->n_without = 2;
    o->without = without;
    o->beta2 = 0.95;
}

static void muon_inputs(kr_optimizer_options *o)
{
    o->kind = KR_OPTIMIZER_MUON;
    o->muon_ratio = KR_MUON_RATIO_ORIGINAL_INPUTS;
    o->muon_momentum = 0.8;
    o->muon_steps = 3;
    o->clip_norm = 9;
    o->ema_decay = 0.9;
}

static const variant variants[] = {
    { "adamw", plain_adamw },
    { "adamw, other betas", other_betas },
    { "adamw, cautious", cautious },
    { "adamw, clipped", clipped },
    { "sgd", plain_sgd },
    { "sgd, momentum", sgd_momentum },
    { "sgd, nesterov", sgd_nesterov },
    { "muon", plain_muon },
    { "muon, original", muon_original },
    { "muon, inputs", muon_inputs },
};
enum { NVARIANTS = (int)(sizeof variants / sizeof *variants) };

/* The averages as doubles, one parameter after another. */
static double *averages(const kr_optimizer *opt)
{
    double *all = malloc((size_t)kr_params_elements(opt->params) * sizeof *all);
    if (!all) exit(2);
    int64_t at = 0;
    for (int64_t i = 0; i < opt->count; i++) {
        const kr_optimizer_slot *slot = &opt->slots[i];
        kr_tensor average = *slot->row->tensor;
        average.dtype = slot->dtype;
        average.data = slot->ema;
        kr_tensor_read(&average, KR_DTYPE_F64, all + at, kr_slot_elements(slot));
        at += kr_slot_elements(slot);
    }
    return all;
}

static void compare(const char *isa, kr_dtype dtype, const variant *v, double tolerance)
{
    kr_ctx *ctx = kr_test_ctx(2, isa);
    kr_params *params = optimizing_table(ctx, dtype);
    kr_optimizer_options o;
    kr_optimizer_options_init(&o);
    v->set(&o);
    kr_optimizer *opt = kr_optimizer_create(ctx, params, &o);
    CHECK_OK(ctx);
    plain_optimizer *plain = plain_create(params, &o);
    double *g = malloc((size_t)plain->count * sizeof *g);
    if (!g || !opt) exit(2);
    for (int step = 0; step < NSTEPS; step++) {
        const double lr = 0.01 * (1 + step % 7), scale = step % 3 ? 1 : 0.5;
        optimizing_give_all(ctx, params, 1, g);
        kr_optimizer_step(opt, lr, scale);
        plain_step(plain, g, lr, scale);
        CHECK(fabs(kr_optimizer_grad_norm(opt) - plain->grad_norm) <= 1e-12 * plain->grad_norm,
              "%s: norm %.17g, not %.17g", v->name, kr_optimizer_grad_norm(opt), plain->grad_norm);
    }
    CHECK_OK(ctx);
    CHECK(kr_optimizer_steps(opt) == NSTEPS, "%lld steps", (long long)kr_optimizer_steps(opt));
    double *got = optimizing_values(params);
    char what[64];
    snprintf(what, sizeof what, "%s, %s %s", v->name, isa ? isa : "best", kr_dtype_name(dtype));
    CHECK_CLOSE(what, got, plain->w, plain->count, NULL, tolerance, 1);
    free(got);
    if (o.ema_decay > 0) {
        got = averages(opt);
        CHECK_CLOSE(what, got, plain->ema, plain->count, NULL, tolerance, 1);
        free(got);
    }
    free(g);
    plain_destroy(plain);
    kr_optimizer_destroy(opt);
    kr_params_destroy(params);
    kr_ctx_destroy(ctx);
}

/* What a hundred steps leave of a rounding: in w itself each adds up to an ulp of its size (here below 8), and a step
 * of Muon has orthogonalised a matrix whose small singular values were amplified up to 3.4445^5 = 485 times, roundings
 * included. */
static double tolerance_of(kr_dtype dtype, kr_optimizer_kind kind)
{
    const double unit = dtype == KR_DTYPE_F64 ? 0x1p-53 : 0x1p-24;
    return (kind == KR_OPTIMIZER_MUON ? 485 : 1) * NSTEPS * unit;
}

static void compare_all(const char *isa, kr_dtype dtype)
{
    for (int i = 0; i < NVARIANTS; i++) {
        kr_optimizer_options o;
        kr_optimizer_options_init(&o);
        variants[i].set(&o);
        compare(isa, dtype, &variants[i], tolerance_of(dtype, o.kind));
    }
}

TEST(optimizer_reference_f64)
{
    compare_all(NULL, KR_DTYPE_F64);
}

TEST(optimizer_reference_f32)
{
    compare_all(NULL, KR_DTYPE_F32);
}

TEST(optimizer_reference_f32_of_plain_kernels)
{
    compare_all("ref", KR_DTYPE_F32);
}

TEST(optimizer_reference_f32_avx2)
{
    char choices[64];
    if (!strstr(kr_isa_choices(choices, sizeof choices), "avx2")) SKIP("no avx2");
    compare_all("avx2", KR_DTYPE_F32);
}
