/* test_trainer_resume.c - 20 steps are 10, a checkpoint, and 10 more in another trainer: to the bit. */
#define _POSIX_C_SOURCE 200809L
#include "tests/nn/own_kinds.h"
#include "tests/train/running.h"

#include "train/trainer.h"

enum { HALF = 10 };

/* The hash of weights and optimizer, the losses, and where the data stand, after 2 HALF steps. */
typedef struct outcome {
    uint64_t hash;
    double losses[2 * HALF];
    kr_loader_position position;
    kr_train_progress progress;
    kr_random_position random;
} outcome;

static outcome outcome_of(run *r)
{
    return (outcome){ .hash = run_hash(r),
                      .position = kr_loader_snapshot(r->loader),
                      .progress = kr_trainer_progress(r->trainer),
                      .random = kr_random_position_of(r->ctx) };
}

static outcome run_through(run_setup setup)
{
    double losses[2 * HALF];
    setup.folder = NULL;
    run r = run_begin(&setup);
    run_steps(&r, 2 * HALF, losses);
    outcome o = outcome_of(&r);
    memcpy(o.losses, losses, sizeof losses);
    run_end(&r);
    return o;
}

static outcome run_in_halves(const run_setup *setup)
{
    double losses[2 * HALF];
    run r = run_begin(setup);
    run_steps(&r, HALF, losses);
    CHECK(kr_trainer_save(r.trainer) == KR_OK, "not saved: %s", kr_ctx_message(r.ctx));
    run_end(&r);
    r = run_begin(setup);
    kr_ctx_seed(r.ctx, 99); /* which the checkpoint knows better */
    CHECK(kr_trainer_resume(r.trainer) == KR_OK, "not resumed: %s", kr_ctx_message(r.ctx));
    CHECK(kr_trainer_progress(r.trainer).step == HALF && kr_trainer_progress(r.trainer).loss == losses[HALF - 1],
          "resumed at step %lld", (long long)kr_trainer_progress(r.trainer).step);
    run_steps(&r, HALF, losses + HALF);
    outcome o = outcome_of(&r);
    memcpy(o.losses, losses, sizeof losses);
    run_end(&r);
    return o;
}

static void check_halves(const char *name, run_setup setup)
{
    begin_folder();
    setup.steps = 2 * HALF;
    setup.folder = the_run();
    const outcome whole = run_through(setup), halves = run_in_halves(&setup);
    CHECK(whole.hash == halves.hash, "%s: weights or optimizer differ", name);
    CHECK(memcmp(whole.losses, halves.losses, sizeof whole.losses) == 0, "%s: losses differ", name);
    CHECK(memcmp(&whole.position, &halves.position, sizeof whole.position) == 0, "%s: data differ", name);
    CHECK(whole.progress.n_positions == halves.progress.n_positions && whole.progress.epoch > 0 &&
              whole.progress.epoch == halves.progress.epoch && halves.progress.is_done,
          "%s: progress differs", name);
    CHECK(whole.random.seed == halves.random.seed && whole.random.stream == halves.random.stream,
          "%s: the random stream differs", name);
    CHECK(whole.losses[2 * HALF - 1] < whole.losses[0], "%s: the loss goes from %g to %g", name, whole.losses[0],
          whole.losses[2 * HALF - 1]);
    remove_tree(folder);
}

TEST(trainer_resumes_to_the_bit)
{
    static const char *const names[] = { "mamba1", "mamba2", "mamba3" };
    for (int family = KR_FAMILY_MAMBA1; family <= KR_FAMILY_MAMBA3; family++)
        check_halves(names[family], (run_setup){ .family = (kr_family)family });
}

TEST(trainer_resumes_registered_families)
{
    check_halves("average", (run_setup){ .family = own_average() });
    check_halves("average, carried", (run_setup){ .family = own_packed(), .carry = true, .has_ema = true });
    check_halves("average in bf16, muon",
                 (run_setup){ .family = own_packed(), .dtype = KR_DTYPE_BF16, .kind = KR_OPTIMIZER_MUON });
}

/* The masks go on where they stood; evaluations have none and change none. */
TEST(trainer_resumes_dropout)
{
    check_halves("dropout", (run_setup){ .family = KR_FAMILY_MAMBA3, .dropout = 0.1 });
    check_halves("dropout, accumulated",
                 (run_setup){ .family = KR_FAMILY_MAMBA2, .dropout = 0.1, .accumulate = 2, .carry = true });
}

TEST(dropout_is_for_steps_alone)
{
    run_setup setup = { .family = KR_FAMILY_MAMBA2, .steps = 4, .has_validation = true };
    double losses[2][2], evaluations[2];
    for (int k = 0; k < 2; k++) {
        setup.dropout = k ? 0.5 : 0;
        run r = run_begin(&setup);
        evaluations[k] = kr_trainer_evaluate(r.trainer, r.validation, 0).loss;
        CHECK(kr_trainer_evaluate(r.trainer, r.validation, 0).loss == evaluations[k], "two evaluations differ");
        run_steps(&r, 2, losses[k]);
        run_end(&r);
    }
    CHECK(evaluations[0] == evaluations[1], "an evaluation drops: %g, not %g", evaluations[1], evaluations[0]);
    CHECK(losses[0][0] != losses[1][0], "a step drops nothing");
}

TEST(trainer_resumes_carried_states)
{
    for (int family = kr_test_quick() ? KR_FAMILY_MAMBA3 : KR_FAMILY_MAMBA1; family <= KR_FAMILY_MAMBA3; family++) {
        check_halves("carried", (run_setup){ .family = (kr_family)family, .carry = true });
        check_halves("carried, accumulated",
                     (run_setup){ .family = (kr_family)family, .carry = true, .accumulate = 2 });
    }
}

TEST(trainer_resumes_each_optimizer)
{
    check_halves("muon", (run_setup){ .family = KR_FAMILY_MAMBA2, .kind = KR_OPTIMIZER_MUON });
    check_halves("sgd", (run_setup){ .family = KR_FAMILY_MAMBA2, .kind = KR_OPTIMIZER_SGD, .max_lr = 0.2 });
    check_halves("averages", (run_setup){ .family = KR_FAMILY_MAMBA3, .has_ema = true });
    check_halves("accumulated", (run_setup){ .family = KR_FAMILY_MAMBA1, .accumulate = 3 });
}

TEST(trainer_resumes_halves)
{
    check_halves("bf16", (run_setup){ .family = KR_FAMILY_MAMBA2, .dtype = KR_DTYPE_BF16 });
    check_halves("bf16, muon, averages, carried", (run_setup){ .family = KR_FAMILY_MAMBA3,
                                                               .dtype = KR_DTYPE_BF16,
                                                               .kind = KR_OPTIMIZER_MUON,
                                                               .has_ema = true,
                                                               .carry = true });
}

/* ---- models that come from files ---- */

/* A model whose files have every tensor in bf16: norms and rates, f32 in memory, are saved rounded, and resumed exactly. */
static run run_loaded(const run_setup *setup, const char *model_folder, const kr_load_options *how)
{
    run r = run_prepare(setup);
    kr_model_destroy(r.model);
    r.model = kr_model_load(r.ctx, model_folder, how);
    r.trainer = run_trainer(&r, r.model, r.loader);
    CHECK_OK(r.ctx);
    return r;
}

static void write_all_in_bf16(kr_ctx *ctx, const kr_model *model, const char *to)
{
    IGNORE(kr_model_save(model, to, NULL)); /* for its config.json */
    const kr_params *params = kr_network_params(kr_model_network(model));
    kr_tensor_writer *w = kr_tensor_writer_create(ctx);
    uint16_t *buffer = malloc(sizeof *buffer * (size_t)kr_params_elements(params)), *at = buffer;
    for (int64_t i = 0; i < kr_params_count(params); i++) {
        const kr_param_row *row = kr_params_at(params, i);
        const int64_t count = kr_tensor_count(row->tensor);
        kr_tensor_read(row->tensor, KR_DTYPE_BF16, at, count);
        kr_tensor_writer_add(w, row->name, KR_DTYPE_BF16, kr_tensor_shape(row->tensor), at);
        at += count;
    }
    IGNORE(kr_tensor_writer_save_folder(w, to, KR_CONTAINER_SAFETENSORS, 0));
    kr_tensor_writer_destroy(w);
    free(buffer);
}

TEST(trainer_resumes_models_that_are_stored_rounded)
{
    begin_folder();
    double losses[6];
    run_setup setup = { .family = KR_FAMILY_MAMBA2, .steps = 6 };
    run r = run_begin(&setup);
    write_all_in_bf16(r.ctx, r.model, in_folder("model"));
    run_end(&r);
    r = run_loaded(&setup, in_folder("model"), NULL);
    run_steps(&r, 6, losses);
    const uint64_t want = run_hash(&r);
    run_end(&r);
    setup.folder = the_run();
    r = run_loaded(&setup, in_folder("model"), NULL);
    run_steps(&r, 3, losses);
    CHECK(kr_trainer_save(r.trainer) == KR_OK, "%s", kr_ctx_message(r.ctx));
    run_end(&r);
    r = run_loaded(&setup, the_run(), NULL); /* what was saved is a model too */
    CHECK(kr_trainer_resume(r.trainer) == KR_OK, "%s", kr_ctx_message(r.ctx));
    run_steps(&r, 3, losses);
    CHECK(run_hash(&r) == want, "weights that are rounded in files are resumed rounded");
    run_end(&r);
    remove_tree(folder);
}

/* The same bits with less of the tape. The budget is the stack's, and the head beyond it has a part of both peaks. */
TEST(trainer_trains_loaded_models_within_a_budget)
{
    begin_folder();
    run_setup setup = { .family = KR_FAMILY_MAMBA3, .steps = 4 };
    run r = run_begin(&setup);
    IGNORE(kr_model_save(r.model, in_folder("model"), NULL));
    run_end(&r);
    double losses[2][4];
    uint64_t hashes[3];
    size_t peaks[3];
    kr_load_options how;
    for (int i = 0; i < 3; i++) {
        kr_load_options_init(&how);
        if (i > 0) how.recompute = i == 1 ? KR_RECOMPUTE_ALL : KR_RECOMPUTE_BUDGET;
        if (i == 2) how.recompute_budget = (peaks[0] + 2 * peaks[1]) / 3;
        r = run_loaded(&setup, in_folder("model"), &how);
        run_steps(&r, 4, losses[i > 0]);
        hashes[i] = run_hash(&r);
        peaks[i] = kr_tape_peak_bytes(r.trainer->tape);
        run_end(&r);
        CHECK(hashes[i] == hashes[0] && memcmp(losses[0], losses[i > 0], sizeof losses[0]) == 0,
              "recompute %d changes bits", i);
        CHECK(i == 0 || peaks[i] < peaks[0], "recompute %d: %zu bytes of the tape, %zu without", i, peaks[i], peaks[0]);
    }
    remove_tree(folder);
}

/* ---- what is saved ---- */

/* The folder and each checkpoint are models; with averages, the averaged ones. */
TEST(trainer_saves_what_one_would_use)
{
    begin_folder();
    run r = run_begin(&(run_setup){ .family = KR_FAMILY_MAMBA2, .steps = 5, .has_ema = true, .folder = the_run() });
    CHECK(kr_trainer_run(r.trainer) == KR_OK, "%s", kr_ctx_message(r.ctx));
    static const char *const places[] = { "run", "run/checkpoints/step-00000005" };
    const kr_params *own = kr_network_params(kr_model_network(r.model));
    for (int i = 0; i < 2; i++) {
        kr_model *model = kr_model_load(r.ctx, in_folder(places[i]), NULL);
        const kr_params *saved = kr_network_params(kr_model_network(model));
        kr_optimizer_use_ema(kr_trainer_optimizer(r.trainer), true);
        for (int64_t p = 0; p < kr_params_count(own); p++)
            CHECK_SAME_BITS(kr_params_at(own, p)->name, kr_params_at(saved, p)->tensor, kr_params_at(own, p)->tensor);
        kr_optimizer_use_ema(kr_trainer_optimizer(r.trainer), false);
        kr_model_destroy(model);
    }
    run_end(&r);
    remove_tree(folder);
}
