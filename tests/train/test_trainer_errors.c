/* test_trainer_errors.c - what a trainer does not take: options, folders, checkpoints of others, damaged files. */
#define _POSIX_C_SOURCE 200809L
#include "tests/train/running.h"

#include "train/trainer.h"

/* ---- options ---- */

static void refuse_create(run *r, kr_model *model, kr_loader *loader, const char *text)
{
    CHECK(!run_trainer(r, model, loader), "not refused: %s", text);
    CHECK_ERROR_HAS(r->ctx, KR_ERR_ARG, text);
}

TEST(trainer_refuses_options)
{
    const run_setup setup = { .family = KR_FAMILY_MAMBA2, .steps = 5 };
    run r = run_prepare(&setup);
    const kr_train_options fine = r.options;
#define REFUSED_WITH(field, value, text)                                                                               \
    r.options.field = (value);                                                                                         \
    refuse_create(&r, r.model, r.loader, (text));                                                                      \
    r.options = fine
    REFUSED_WITH(size, 0, "trainer: kr_train_options.size is 0, but the struct has ");
    REFUSED_WITH(steps, -1, "trainer: steps = -1, but must be at least 0");
    REFUSED_WITH(steps, 0, "trainer: steps = 0 means \"until the data ends\", but the loader repeats; set steps, or");
    REFUSED_WITH(accumulate, 0, "trainer: accumulate = 0, but must be at least 1");
    REFUSED_WITH(eval_every, -2, "trainer: eval_every = -2, but must be at least -1");
    REFUSED_WITH(eval_batches, -2, "trainer: eval_batches = -2, but must be at least 0");
    REFUSED_WITH(save_every, -2, "trainer: save_every = -2, but must be at least -1");
    REFUSED_WITH(keep_last, -2, "trainer: keep_last = -2, but must be at least 0");
    REFUSED_WITH(n_extra_files, 2, "trainer: n_extra_files = 2, but extra_files is NULL");
    static const char *const extra_files[][2] = {
        { "x/y", NULL }, { "config.json", "x" }, { "a/t.json", "b/t.json" }, { "x/", "y" }, { ".krait-x", "y" }
    };
    for (int i = 0; i < 5; i++) {
        r.options.extra_files = extra_files[i];
        REFUSED_WITH(n_extra_files, 2,
                     i == 0 ? "trainer: extra_files[1] is NULL" : "whose name is empty or a duplicate");
    }
    REFUSED_WITH(loss, (kr_loss_kind)9, "trainer: loss = 9 is not a kr_loss_kind");
    REFUSED_WITH(label_smoothing, 1.5, "trainer: label_smoothing = 1.5, but must be from 0 to 1");
    REFUSED_WITH(folder, "", "trainer: the folder's path is empty");
    r.schedule.max_lr = -1;
    refuse_create(&r, r.model, r.loader, "trainer: lr: max_lr = -1");
    r.schedule.max_lr = 1e-3;
    r.optimizer.eps = 0;
    refuse_create(&r, r.model, r.loader, "optimizer: eps = 0");
    r.optimizer.eps = 1e-8;
    REFUSED_WITH(params, kr_network_params(kr_model_network(r.model)), "model and options.params are both given");
    refuse_create(&r, NULL, r.loader,
                  "trainer: model and options.params are NULL; give a model, or NULL and options.params");
    refuse_create(&r, r.model, NULL, "trainer: the loader is NULL");
    r.options.params = kr_network_params(kr_model_network(r.model));
    refuse_create(&r, NULL, r.loader, "model is NULL, so options.loss_fn must compute the loss, but it is NULL");
    run_end(&r);
}

static kr_loss_out count_nothing(void *user, kr_tape *tape, const kr_batch *batch, const kr_state *state)
{
    (void)user;
    (void)batch;
    (void)state;
    return (kr_loss_out){ .loss = kr_full(tape, KR_DTYPE_F32, KR_SCALAR, 2) };
}

static kr_loss_out give_nothing(void *user, kr_tape *tape, const kr_batch *batch, const kr_state *state)
{
    (void)user;
    (void)tape;
    (void)batch;
    (void)state;
    return (kr_loss_out){ .scores = { .scored = 1 } };
}

static void refuse_step(const run_setup *setup, kr_status status, const char *text)
{
    run r = run_begin(setup);
    CHECK(kr_trainer_step(r.trainer) != KR_OK, "not refused: %s", text);
    CHECK_ERROR_HAS(r.ctx, status, text);
    CHECK(kr_loader_step(r.loader) == 0 && kr_trainer_progress(r.trainer).step == 0, "a refused step moves");
    run_end(&r);
}

TEST(trainer_refuses_losses)
{
    refuse_step(&(run_setup){ .family = KR_FAMILY_MAMBA2, .steps = 5, .loss_fn = count_nothing }, KR_ERR_ARG,
                "trainer.step: loss_fn has scores.scored = 0, but a loss of 2; set it to the number of values that the "
                "loss is the mean of");
    refuse_step(&(run_setup){ .family = KR_FAMILY_MAMBA2, .steps = 5, .loss_fn = give_nothing }, KR_ERR_ARG,
                "trainer.step: loss_fn did not return a loss of one element");
    run r = run_prepare(&(run_setup){ .family = KR_FAMILY_MAMBA2, .steps = 5 });
    r.options.loss = KR_LOSS_MSE;
    r.trainer = run_trainer(&r, r.model, r.loader);
    CHECK(kr_trainer_step(r.trainer) != KR_OK, "tokens have targets");
    CHECK_ERROR(r.ctx, KR_ERR_ARG,
                "trainer.step: this kind of loss needs targets, which the loader's source does not have");
    run_end(&r);
}

/* ---- folders ---- */

TEST(trainer_refuses_a_folder_of_another_run)
{
    begin_folder();
    const run_setup setup = { .family = KR_FAMILY_MAMBA2, .steps = 4, .folder = the_run() };
    run r = run_begin(&setup);
    CHECK(kr_trainer_run(r.trainer) == KR_OK, "%s", kr_ctx_message(r.ctx));
    run_end(&r);
    r = run_begin(&setup);
    CHECK(kr_trainer_run(r.trainer) == KR_ERR_STATE, "it begins anew over a run");
    CHECK_ERROR_HAS(r.ctx, KR_ERR_STATE,
                    "run has checkpoints already, up to step 4; call kr_trainer_resume to continue from "
                    "there, or choose another folder");
    CHECK(kr_trainer_step(r.trainer) != KR_OK, "it begins anew over a run");
    kr_ctx_clear(r.ctx);
    CHECK(kr_trainer_save(r.trainer) == KR_ERR_STATE, "it saves over a run");
    kr_ctx_clear(r.ctx);
    run_end(&r);
    r = run_begin(&(run_setup){ .family = KR_FAMILY_MAMBA2, .steps = 4 });
    CHECK(kr_trainer_save(r.trainer) == KR_ERR_STATE, "saved nowhere");
    CHECK_ERROR(r.ctx, KR_ERR_STATE, "trainer.save: options.folder is NULL: checkpoints need a folder");
    CHECK(kr_trainer_resume(r.trainer) == KR_ERR_STATE, "resumed from nowhere");
    CHECK_ERROR(r.ctx, KR_ERR_STATE, "trainer.resume: options.folder is NULL: a resumed run needs a folder");
    run_end(&r);
    remove_tree(folder);
}

TEST(trainer_resumes_nothing_where_there_is_nothing)
{
    begin_folder();
    run r = run_begin(&(run_setup){ .family = KR_FAMILY_MAMBA2, .steps = 1, .folder = the_run() });
    const uint64_t hash = run_hash(&r);
    CHECK(kr_trainer_resume(r.trainer) == KR_OK && run_hash(&r) == hash && !is_there("run"), "%s",
          kr_ctx_message(r.ctx));
    CHECK(kr_trainer_run(r.trainer) == KR_OK, "%s", kr_ctx_message(r.ctx));
    run_end(&r);
    remove_tree(folder);
}

/* ---- checkpoints of others ---- */

static void refuse_resume(run *r, kr_status status, const char *part)
{
    const uint64_t hash = run_hash(r);
    const kr_loader_position position = kr_loader_snapshot(r->loader);
    CHECK(kr_trainer_resume(r->trainer) == status, "status %s", kr_status_name(kr_ctx_status(r->ctx)));
    CHECK_ERROR_HAS(r->ctx, status, part);
    const kr_loader_position after = kr_loader_snapshot(r->loader);
    CHECK(run_hash(r) == hash && after.step == position.step && after.epoch == position.epoch &&
              after.seed == position.seed && kr_trainer_progress(r->trainer).step == 0,
          "a refused checkpoint leaves a trace: %s", part);
    CHECK(kr_trainer_run(r->trainer) == KR_ERR_STATE, "it saves over a checkpoint that it refused");
    kr_ctx_clear(r->ctx);
}

static void save_one(const run_setup *setup)
{
    run r = run_begin(setup);
    run_steps(&r, 2, (double[2]){ 0 });
    CHECK(kr_trainer_save(r.trainer) == KR_OK, "%s", kr_ctx_message(r.ctx));
    run_end(&r);
}

static void refuse_other(const run_setup *other, const char *part)
{
    run r = run_begin(other);
    refuse_resume(&r, KR_ERR_FORMAT, part);
    run_end(&r);
}

TEST(trainer_refuses_checkpoints_of_others)
{
    begin_folder();
    const char *keep = the_run();
    const run_setup own = { .family = KR_FAMILY_MAMBA2, .steps = 5, .folder = keep };
    save_one(&own);
    refuse_other(&(run_setup){ .family = KR_FAMILY_MAMBA3, .steps = 5, .folder = keep },
                 "checkpoints/step-00000002: it belongs to another model: its config.json has `");
    refuse_other(&(run_setup){ .family = KR_FAMILY_MAMBA2, .steps = 5, .folder = keep, .kind = KR_OPTIMIZER_MUON },
                 "the file has another kind of optimizer");
    refuse_other(&(run_setup){ .family = KR_FAMILY_MAMBA2, .steps = 5, .folder = keep, .has_ema = true },
                 "tensor 'optimizer.ema.");
    refuse_other(&(run_setup){ .family = KR_FAMILY_MAMBA2, .steps = 5, .folder = keep, .carry = true },
                 "it was saved without a carried state, but this run is one with");
    run r = run_prepare(&own);
    kr_loader_destroy(r.loader);
    r.loader = run_loader(r.source, false, KR_DATA_PART_VALIDATION);
    r.trainer = run_trainer(&r, r.model, r.loader);
    refuse_resume(&r, KR_ERR_ARG, "loader.restore: the position belongs to ");
    run_end(&r);
    remove_tree(folder);
}

/* ---- damage ---- */

static void change_byte(const char *path, size_t from_end)
{
    file_image image = read_image(path);
    image.data[image.bytes - from_end] ^= 1;
    write_image(path, image.data, image.bytes);
    free(image.data);
}

TEST(trainer_names_files_that_were_damaged)
{
    begin_folder();
    const char *keep = the_run();
    const run_setup own = { .family = KR_FAMILY_MAMBA2, .steps = 5, .folder = keep, .carry = true };
    static const char *const names[] = { "training.safetensors", "model.safetensors", "state.safetensors" };
    for (int i = 0; i < 3; i++) {
        char path[400], part[300];
        save_one(&own);
        snprintf(path, sizeof path, "%s/checkpoints/step-00000002/%s", keep, names[i]);
        snprintf(part, sizeof part,
                 "step-00000002/%s was changed or damaged: it is not the file that checkpoint.json tells of; remove ",
                 names[i]);
        change_byte(path, 5);
        refuse_other(&own, part);
        change_byte(path, 5);
        CHECK(truncate(path, 100) == 0, "not cut");
        refuse_other(&own, part);
        remove(path);
        run r = run_begin(&own);
        CHECK(kr_trainer_resume(r.trainer) == KR_ERR_IO, "resumed without %s", names[i]);
        CHECK_ERROR_HAS(r.ctx, KR_ERR_IO, names[i]);
        run_end(&r);
        remove_tree(keep);
    }
    remove_tree(folder);
}

TEST(trainer_passes_over_checkpoints_that_are_not_whole)
{
    begin_folder();
    const run_setup own = { .family = KR_FAMILY_MAMBA2, .steps = 5, .folder = the_run() };
    save_one(&own);
    CHECK(rename(in_folder("run/checkpoints/step-00000002"), in_folder("run/checkpoints/step-00000003")) == 0,
          "not renamed");
    refuse_other(&own, "checkpoints/step-00000003: its name says step 3, but it is of step 2");
    CHECK(rename(in_folder("run/checkpoints/step-00000003"), in_folder("run/checkpoints/step-00000002")) == 0,
          "not renamed");
    mkdir(in_folder("run/checkpoints/step-00000004"), 0755);
    mkdir(in_folder("run/checkpoints/step-4"), 0755); /* not a name of ours */
    run r = run_begin(&own);
    CHECK(kr_trainer_resume(r.trainer) == KR_OK && kr_trainer_progress(r.trainer).step == 2, "%s",
          kr_ctx_message(r.ctx));
    CHECK(kr_trainer_run(r.trainer) == KR_OK, "%s", kr_ctx_message(r.ctx));
    run_end(&r);
    r = run_begin(&own);
    CHECK(kr_trainer_resume(r.trainer) == KR_OK && kr_trainer_progress(r.trainer).step == 5, "%s",
          kr_ctx_message(r.ctx));
    run_end(&r);
    remove_tree(folder);
}
