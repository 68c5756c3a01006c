/* test_devices.c - training on a device against training on the processor: the same losses, the same bits from
 * run to run, runs that move between them, and how many kernels a step queues.
 *
 * The device is an NVIDIA GPU where there is one, else the mock device, whose kernels are the processor's: there losses
 * must not differ at all.
 */
#define _POSIX_C_SOURCE 200809L
#include "tests/train/running.h"

#include "device/device.h"

/* f32 rounds to 6e-8, and sums of other orders differ by some of that; 50 steps at this rate carry it no further than
 * some 1e-6 of the loss. */
enum { STEPS = 50, HALF = 10 };
static const double rate = 1e-3, tolerance = 1e-4;

static const char *const family_names[] = { "mamba1", "mamba2", "mamba3" };

static const char *the_device(void)
{
    static const char *found;
    kr_ctx_options options;
    kr_ctx_options_init(&options);
    options.threads = 1;
    options.device = "cuda";
    if (found) return found;
    kr_ctx *ctx = kr_ctx_create(&options);
    found = kr_ctx_failed(ctx) ? "mock" : "cuda";
    kr_ctx_destroy(ctx);
    return found;
}

static bool is_mock(void)
{
    return strcmp(the_device(), "mock") == 0;
}

static uint64_t train(run_setup setup, const char *device, double *losses)
{
    setup.device = device;
    run r = run_begin(&setup);
    run_steps(&r, setup.steps, losses);
    const uint64_t hash = run_hash(&r);
    run_end(&r);
    return hash;
}

static void check_losses(const char *what, const char *name, const double *got, const double *want, int count)
{
    for (int i = 0; i < count; i++)
        if (!CHECK(fabs(got[i] - want[i]) <= (is_mock() ? 0 : tolerance), "%s, %s: step %d has the loss %.7f, not %.7f",
                   name, what, i, got[i], want[i]))
            return;
}

TEST(devices_train_alike)
{
    for (int family = kr_test_quick() ? KR_FAMILY_MAMBA3 : KR_FAMILY_MAMBA1; family <= KR_FAMILY_MAMBA3; family++) {
        const run_setup setup = { .family = (kr_family)family, .steps = STEPS, .max_lr = rate };
        double near[STEPS], far[STEPS], again[STEPS];
        train(setup, "cpu", near);
        const uint64_t first = train(setup, the_device(), far), second = train(setup, the_device(), again);
        check_losses("on a device", family_names[family], far, near, STEPS);
        CHECK(near[STEPS - 1] < near[0] - 0.1, "%s: the loss goes from %g to %g", family_names[family], near[0],
              near[STEPS - 1]);
        CHECK(first == second && memcmp(far, again, sizeof far) == 0, "%s: two runs differ", family_names[family]);
    }
}

/* ---- from one to the other ---- */

/* HALF steps on each device of the list, each resumed where the last one stopped. */
static void train_in_turns(run_setup setup, int count, const char *const *devices, double *losses)
{
    for (int i = 0; i < count; i++) {
        setup.device = devices[i];
        run r = run_begin(&setup);
        if (i > 0)
            CHECK(kr_trainer_resume(r.trainer) == KR_OK, "not resumed on %s: %s", devices[i], kr_ctx_message(r.ctx));
        CHECK(kr_trainer_progress(r.trainer).step == i * HALF, "resumed at step %lld",
              (long long)kr_trainer_progress(r.trainer).step);
        run_steps(&r, HALF, losses + i * HALF);
        CHECK(kr_trainer_save(r.trainer) == KR_OK, "not saved on %s: %s", devices[i], kr_ctx_message(r.ctx));
        run_end(&r);
    }
}

TEST(devices_hand_runs_over)
{
    const char *const there_and_back[] = { "cpu", the_device(), "cpu" }, *const lies_in_slab[] = { "cpu", "cpu",
                                                                                                   "cpu" };
    for (int family = kr_test_quick() ? KR_FAMILY_MAMBA3 : KR_FAMILY_MAMBA1; family <= KR_FAMILY_MAMBA3; family++) {
        run_setup setup = {
            .family = (kr_family)family, .steps = 3 * HALF, .max_lr = rate, .carry = family != KR_FAMILY_MAMBA1
        };
        double moved[3 * HALF], stayed[3 * HALF];
        begin_folder();
        setup.folder = the_run();
        train_in_turns(setup, 3, there_and_back, moved);
        remove_tree(folder);
        begin_folder();
        setup.folder = the_run();
        train_in_turns(setup, 3, lies_in_slab, stayed);
        remove_tree(folder);
        check_losses("handed over", family_names[family], moved, stayed, 3 * HALF);
    }
}

/* ---- how many kernels ---- */

typedef struct tally {
    int kernels, waits;
} tally;

static void count(void *user, const char *slot)
{
    tally *t = user;
    if (strcmp(slot, KR_PROBE_WAIT) == 0) t->waits++;
    else t->kernels++;
}

/* What a context queues from now on is counted. */
static void count_into(kr_ctx *ctx, tally *t)
{
    *t = (tally){ 0, 0 };
    ctx->device->probe = count;
    ctx->device->probe_user = t;
}

/* Kernels of loss and gradients, and of the optimizer's step, of a network of so many layers. */
static void count_step(kr_family family, int layers, tally *gradients, tally *step)
{
    kr_ctx_options options;
    kr_ctx_options_init(&options);
    options.threads = 1;
    options.device = the_device();
    kr_ctx *ctx = kr_ctx_create(&options);
    kr_model_config *config = kr_model_config_create(ctx);
    config->family = family;
    kr_model_config_set_d_model(config, 16);
    config->mamba1->state_rank = 4;
    config->mamba2->state_rank = config->mamba3->state_rank = 8;
    config->mamba2->per_head_dim = config->mamba3->per_head_dim = 8;
    config->layers->n_layers = layers;
    config->network->vocab_size = 64;
    kr_model *model = kr_model_create(ctx, config);
    kr_model_config_destroy(config);
    const kr_network *net = kr_model_network(model);
    kr_optimizer *optimizer = kr_optimizer_create(ctx, kr_network_params(net), NULL);
    kr_tape *tape = kr_tape_create(ctx, KR_TAPE_GRAD);
    const int32_t ids[2 * 9] = { 1, 5, 2, 8, 3, 9, 4, 4, 1, 60, 61, 1, 2, 3, 33, 4, 5, 6 };
    for (int i = 0; i < 3; i++) {
        kr_loss_call call;
        kr_loss_call_init(&call);
        kr_call how;
        kr_call_init(&how);
        call.call = &how;
        kr_tape_reset(tape);
        count_into(ctx, gradients);
        call.ids_bs = kr_view_data(tape, KR_DTYPE_I32, KR_SHAPE(2, 9), NULL, ids);
        how.drop_state = true;
        kr_backward(tape, kr_network_loss(tape, net, &call).loss);
        count_into(ctx, step);
        kr_optimizer_step(optimizer, 1e-3, 1);
        ctx->device->probe = NULL;
    }
    CHECK_OK(ctx);
    kr_tape_destroy(tape);
    kr_optimizer_destroy(optimizer);
    kr_model_destroy(model);
    kr_ctx_destroy(ctx);
}

/* The kernels that one more layer costs, forward and backward, and in the step; what all else costs. A number that grows
 * here is a pass over memory, or a launch, that was not there before. A GPU takes all parameters in one call each for their
 * norms and for their steps. */
TEST(devices_count_kernels)
{
    static const struct {
        int block, rest, per_layer, of_rest;
    } want[] = { { 36, 18, 20, 4 }, { 37, 18, 18, 4 }, { 43, 18, 18, 4 } };
    for (int family = KR_FAMILY_MAMBA1; family <= KR_FAMILY_MAMBA3; family++) {
        tally one, two, one_step, two_steps;
        count_step((kr_family)family, 1, &one, &one_step);
        count_step((kr_family)family, 2, &two, &two_steps);
        const int block = two.kernels - one.kernels, per_layer = two_steps.kernels - one_step.kernels;
        CHECK(block == want[family].block && one.kernels - block == want[family].rest,
              "%s: %d kernels a block and %d others, not %d and %d", family_names[family], block, one.kernels - block,
              want[family].block, want[family].rest);
        const int in_each = is_mock() ? want[family].per_layer : 0, extra_files = is_mock() ? want[family].of_rest : 2;
        CHECK(per_layer == in_each && one_step.kernels - per_layer == extra_files,
              "%s: %d kernels to step a layer and %d others, not %d and %d", family_names[family], per_layer,
              one_step.kernels - per_layer, in_each, extra_files);
        CHECK(one.waits == 0 && one_step.waits == 1, "%s: %d waits for gradients, %d for a step", family_names[family],
              one.waits, one_step.waits);
    }
}

/* ---- products that round ---- */

/* What is varied: 320 rows and more are rounded, and go ways of their own. */
typedef struct rounding_case {
    const char *name;
    kr_family family;
    bool is_mimo, has_norm, recomputes;
    kr_mamba3_pathway pathway;
} rounding_case;

/* The gradients of all parameters of a small network, one after another, to be freed; their number; the loss. */
static double *gradients_of(const rounding_case *c, kr_precision precision, int64_t *count, double *loss)
{
    enum { ROWS = 5, LENGTH = 80, WORDS = 64 };
    kr_ctx_options options;
    kr_ctx_options_init(&options);
    options.threads = 1;
    options.device = the_device();
    options.precision = precision;
    options.seed = 11;
    kr_ctx *ctx = kr_ctx_create(&options);
    kr_model_config *config = kr_model_config_create(ctx);
    config->family = c->family;
    kr_model_config_set_d_model(config, 64);
    config->mamba2->state_rank = config->mamba3->state_rank = 32;
    config->mamba2->per_head_dim = config->mamba3->per_head_dim = 32;
    config->mamba3->is_mimo = c->is_mimo;
    if (c->is_mimo) config->mamba3->mimo_rank = 2;
    config->mamba3->has_outproj_norm = c->has_norm;
    config->mamba3->pathway = c->pathway;
    config->layers->n_layers = 2;
    if (c->recomputes) config->layers->recompute = KR_RECOMPUTE_ALL;
    config->network->vocab_size = WORDS;
    kr_model *model = kr_model_create(ctx, config);
    kr_model_config_destroy(config);
    CHECK_OK(ctx);
    const kr_network *net = kr_model_network(model);
    const kr_params *params = kr_network_params(net);
    kr_tape *tape = kr_tape_create(ctx, KR_TAPE_GRAD);
    int32_t ids[ROWS * LENGTH];
    for (int i = 0; i < ROWS * LENGTH; i++) ids[i] = (i * i + 7 * i) % WORDS;
    kr_loss_call call;
    kr_loss_call_init(&call);
    kr_call how;
    kr_call_init(&how);
    call.call = &how;
    call.ids_bs = kr_view_data(tape, KR_DTYPE_I32, KR_SHAPE(ROWS, LENGTH), NULL, ids);
    how.drop_state = true;
    kr_tensor *result = kr_network_loss(tape, net, &call).loss;
    kr_backward(tape, result);
    *loss = kr_item(result);
    CHECK_OK(ctx);
    double *all = calloc((size_t)kr_params_elements(params), sizeof *all), *at = all;
    for (int64_t i = 0; i < kr_params_count(params); i++) {
        const kr_tensor *w = kr_params_at(params, i)->tensor;
        const int64_t n = kr_tensor_count(w);
        if (kr_grad(w)) kr_tensor_read(kr_grad(w), KR_DTYPE_F64, at, n);
        at += n;
    }
    *count = kr_params_elements(params);
    kr_tape_destroy(tape);
    kr_model_destroy(model);
    kr_ctx_destroy(ctx);
    return all;
}

/* Rounding to bf16 keeps 8 bits of an operand: 4e-3 at most, about 1.7e-3 on average, and through two layers forward and
 * backward some times that. The same gradients must come from either precision, to that, and to the bit from run to run.
 * The mock device rounds nothing. */
TEST(devices_round_operands)
{
    static const rounding_case cases[] = {
        { "mamba1", KR_FAMILY_MAMBA1, false, false, false, KR_MAMBA3_PATHWAY_SINGLE },
        { "mamba2", KR_FAMILY_MAMBA2, false, false, false, KR_MAMBA3_PATHWAY_SINGLE },
        { "mamba2, recomputed", KR_FAMILY_MAMBA2, false, false, true, KR_MAMBA3_PATHWAY_SINGLE },
        { "mamba3", KR_FAMILY_MAMBA3, false, false, false, KR_MAMBA3_PATHWAY_SINGLE },
        { "mamba3, norm, recomputed", KR_FAMILY_MAMBA3, false, true, true, KR_MAMBA3_PATHWAY_SINGLE },
        { "mamba3, double", KR_FAMILY_MAMBA3, false, false, false, KR_MAMBA3_PATHWAY_DOUBLE },
        { "mamba3, mimo", KR_FAMILY_MAMBA3, true, true, false, KR_MAMBA3_PATHWAY_SINGLE },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int64_t count;
        double losses[3], off = 0, size = 0, again = 0;
        double *exact = gradients_of(&cases[i], KR_PRECISION_EXACT, &count, &losses[0]);
        double *first = gradients_of(&cases[i], KR_PRECISION_BF16, &count, &losses[1]);
        double *second = gradients_of(&cases[i], KR_PRECISION_BF16, &count, &losses[2]);
        for (int64_t k = 0; k < count; k++) {
            off += (first[k] - exact[k]) * (first[k] - exact[k]);
            size += exact[k] * exact[k];
            again += fabs(first[k] - second[k]);
        }
        const double error = sqrt(off / size), allowed = is_mock() ? 0 : 1.5e-2;
        CHECK(size > 0 && error <= allowed, "%s: gradients are off by %.2g", cases[i].name, error);
        CHECK(is_mock() || error > 1e-5, "%s: nothing was rounded", cases[i].name);
        CHECK(fabs(losses[1] - losses[0]) <= (is_mock() ? 0 : 1e-2), "%s: a loss of %.6f, not %.6f", cases[i].name,
              losses[1], losses[0]);
        CHECK(again == 0 && losses[1] == losses[2], "%s: two runs differ", cases[i].name);
        free(exact);
        free(first);
        free(second);
    }
}
