/* test_trainer.c - a run: its evaluations, its checkpoints, what it keeps, and when it stops. */
#define _POSIX_C_SOURCE 200809L
#include "tests/train/running.h"

/* What on_step was told, and when it says stop. */
typedef struct telling {
    int64_t count, stops_at;
    kr_train_progress last;
    char evaluated[64], saved[64]; /* a mark for each step */
} telling;

static bool listen(void *user, kr_trainer *trainer, const kr_train_progress *p)
{
    telling *t = user;
    const kr_train_progress asked = kr_trainer_progress(trainer);
    CHECK(asked.step == p->step && asked.loss == p->loss && p->step == t->count + 1, "step %lld is told as %lld",
          (long long)t->count + 1, (long long)p->step);
    t->evaluated[t->count] = p->is_evaluated ? 'e' : '.';
    t->saved[t->count] = p->is_saved ? 's' : '.';
    t->count++;
    t->last = *p;
    return p->step != t->stops_at;
}

TEST(trainer_runs)
{
    begin_folder();
    telling t = { 0 };
    run r = run_begin(&(run_setup){ .family = KR_FAMILY_MAMBA3,
                                    .steps = 12,
                                    .eval_every = 5,
                                    .save_every = 4,
                                    .has_validation = true,
                                    .folder = the_run(),
                                    .on_step = listen,
                                    .user = &t });
    CHECK(kr_trainer_run(r.trainer) == KR_OK, "%s", kr_ctx_message(r.ctx));
    CHECK(t.count == 12 && t.last.is_done && t.last.is_saved && t.last.is_evaluated, "%lld steps", (long long)t.count);
    CHECK(strcmp(t.evaluated, "....e....e.e") == 0, "evaluated: %s", t.evaluated);
    CHECK(t.saved[3] == 's' && t.saved[7] == 's' && t.saved[11] == 's' && t.saved[0] == '.', "saved: %s", t.saved);
    CHECK(t.last.eval_step == 12 && isfinite(t.last.eval_loss) && t.last.eval_accuracy >= 0, "eval %g",
          t.last.eval_loss);
    CHECK(t.last.best_loss <= t.last.eval_loss && t.last.best_step > 0, "best %g", t.last.best_loss);
    CHECK(kr_trainer_run(r.trainer) == KR_OK && t.count == 12, "a run that is done continues");
    run_end(&r);
    remove_tree(folder);
}

/* A stop is a checkpoint, and no error; the run can be told to go on. */
TEST(trainer_stops_when_told)
{
    begin_folder();
    telling t = { .stops_at = 5 };
    run r = run_begin(
        &(run_setup){ .family = KR_FAMILY_MAMBA2, .steps = 8, .folder = the_run(), .on_step = listen, .user = &t });
    CHECK(kr_trainer_run(r.trainer) == KR_OK, "%s", kr_ctx_message(r.ctx));
    const kr_train_progress p = kr_trainer_progress(r.trainer);
    CHECK(p.step == 5 && p.is_saved && !p.is_done && newest_step(the_run()) == 5, "it stopped at step %lld",
          (long long)p.step);
    CHECK(kr_trainer_step(r.trainer) == KR_OK && kr_trainer_progress(r.trainer).step == 6, "no step after a stop");
    CHECK(kr_trainer_run(r.trainer) == KR_OK && kr_trainer_progress(r.trainer).is_done, "%s", kr_ctx_message(r.ctx));
    CHECK(kr_trainer_step(r.trainer) == KR_END, "a step behind the last");
    CHECK(newest_step(the_run()) == 8, "the end is not saved");
    run_end(&r);
    remove_tree(folder);
}

/* ---- until the loader's end ---- */

static kr_loader *loader_of(const run *r, int64_t batch, int64_t n_epochs, bool pack, bool shuffle)
{
    kr_loader_options o;
    kr_loader_options_init(&o);
    o.batch = batch;
    o.length = pack ? 11 : 0;
    o.pack = pack;
    o.shuffle = shuffle;
    o.n_epochs = n_epochs;
    return kr_loader_create(r->source, &o);
}

static run run_with(const run_setup *setup, int64_t batch, int64_t n_epochs)
{
    run r = run_prepare(setup);
    kr_loader_destroy(r.loader);
    r.loader = loader_of(&r, batch, n_epochs, true, true);
    r.trainer = run_trainer(&r, r.model, r.loader);
    CHECK_OK(r.ctx);
    return r;
}

TEST(trainer_ends_with_the_data)
{
    telling t = { 0 };
    run r = run_with(&(run_setup){ .family = KR_FAMILY_MAMBA2, .accumulate = 3, .on_step = listen, .user = &t }, 4, 2);
    const int64_t batches = 2 * kr_loader_steps_per_epoch(r.loader);
    CHECK(kr_trainer_run(r.trainer) == KR_OK, "%s", kr_ctx_message(r.ctx));
    /* the last step has the batches that are left */
    CHECK(batches % 3 != 0 && t.count == batches / 3 + 1 && t.last.is_done, "%lld steps of %lld batches",
          (long long)t.count, (long long)batches);
    CHECK(t.last.n_positions == 2 * (kr_source_info_of(r.source).count - 1), "%lld positions",
          (long long)t.last.n_positions);
    CHECK(t.last.lr == r.schedule.max_lr / 10, "the schedule ends with %g, not with the run", t.last.lr);
    run_end(&r);
}

/* ---- accumulation ---- */

/* Documents of many lengths, in f64, by plain descent: rows, and what they score, differ from batch to batch. */
static run run_documents(int64_t batch, int64_t accumulate)
{
    static const char text[] = "a tall tree|no|so it goes, and it runs on and on|yes|one two three|x|the end of it|ab|"
                               "some more|and a last one, rather long, to end with";
    run r = run_prepare(
        &(run_setup){ .family = KR_FAMILY_MAMBA3, .dtype = KR_DTYPE_F64, .kind = KR_OPTIMIZER_SGD, .steps = 1 });
    kr_text_options o;
    kr_text_options_init(&o);
    o.separator = "|";
    kr_loader_destroy(r.loader);
    kr_loader_destroy(r.validation);
    kr_source_destroy(r.source);
    r.validation = NULL;
    r.source = kr_source_string(r.ctx, text, sizeof text - 1, r.tok, &o);
    r.loader = loader_of(&r, batch, 1, false, false);
    r.options.accumulate = accumulate;
    r.schedule.kind = KR_LR_CONSTANT;
    r.schedule.warmup_steps = 0;
    r.schedule.max_lr = 1;
    r.trainer = run_trainer(&r, r.model, r.loader);
    CHECK_OK(r.ctx);
    return r;
}

TEST(trainer_accumulates_to_the_large_batch)
{
    run large = run_documents(9, 1);
    CHECK(kr_trainer_step(large.trainer) == KR_OK, "%s", kr_ctx_message(large.ctx));
    const kr_train_progress want = kr_trainer_progress(large.trainer);
    for (int64_t batch = 1; batch <= 5; batch++) {
        run small = run_documents(batch, (9 + batch - 1) / batch);
        CHECK(kr_trainer_step(small.trainer) == KR_OK, "%s", kr_ctx_message(small.ctx));
        const kr_train_progress got = kr_trainer_progress(small.trainer);
        CHECK(got.n_scored == want.n_scored && got.n_right == want.n_right && got.n_positions == want.n_positions,
              "batches of %lld score %lld", (long long)batch, (long long)got.n_scored);
        /* sums of f64 in another order */
        CHECK(fabs(got.loss - want.loss) < 1e-12 && fabs(got.grad_norm - want.grad_norm) < 1e-12 * want.grad_norm,
              "batches of %lld: loss %g, not %g", (long long)batch, got.loss, want.loss);
        const kr_params *a = kr_network_params(kr_model_network(small.model));
        const kr_params *b = kr_network_params(kr_model_network(large.model));
        for (int64_t i = 0; i < kr_params_count(a); i++)
            CHECK_TENSORS(kr_params_at(a, i)->name, kr_params_at(a, i)->tensor, kr_params_at(b, i)->tensor, 1e-12, 1);
        run_end(&small);
    }
    run_end(&large);
}

/* Where nothing moves, batches that are accumulated leave the states that they leave one by one. */
TEST(trainer_carries_states_within_a_step)
{
    double one[6], two[3];
    run_setup setup = { .family = KR_FAMILY_MAMBA2, .steps = 6, .carry = true, .max_lr = 1e-300 };
    run r = run_begin(&setup);
    run_steps(&r, 6, one);
    run_end(&r);
    setup.accumulate = 2;
    r = run_begin(&setup);
    for (int i = 0; i < 3; i++) {
        run_steps(&r, 1, &two[i]);
        CHECK(two[i] == (one[2 * i] + one[2 * i + 1]) / 2, "step %d: %.17g, not the mean of %.17g and %.17g", i, two[i],
              one[2 * i], one[2 * i + 1]);
    }
    run_end(&r);
}

/* ---- nothing to learn from ---- */

static kr_loss_out nothing_scored(void *user, kr_tape *tape, const kr_batch *batch, const kr_state *state)
{
    (void)user;
    (void)batch;
    (void)state;
    return (kr_loss_out){ .loss = kr_full(tape, KR_DTYPE_F32, KR_SCALAR, 0) };
}

TEST(trainer_passes_over_steps_that_score_nothing)
{
    run r = run_begin(&(run_setup){ .family = KR_FAMILY_MAMBA2, .steps = 2, .loss_fn = nothing_scored });
    const uint64_t hash = run_hash(&r);
    CHECK(kr_trainer_run(r.trainer) == KR_OK, "%s", kr_ctx_message(r.ctx));
    const kr_train_progress p = kr_trainer_progress(r.trainer);
    CHECK(p.step == 2 && p.loss == 0 && p.grad_norm == 0 && p.n_positions > 0 && run_hash(&r) == hash,
          "step %lld, loss %g", (long long)p.step, p.loss);
    run_end(&r);
}

/* ---- evaluation ---- */

/* Averages in and out, the loaders' places, the random stream: all of it as without. */
TEST(trainer_evaluates_without_a_trace)
{
    for (int family = KR_FAMILY_MAMBA1; family <= KR_FAMILY_MAMBA3; family++) {
        const run_setup setup = { .family = (kr_family)family,
                                  .steps = 6,
                                  .has_ema = family != KR_FAMILY_MAMBA2,
                                  .dtype = family == KR_FAMILY_MAMBA3 ? KR_DTYPE_BF16 : KR_DTYPE_F32,
                                  .carry = family == KR_FAMILY_MAMBA1 };
        run plain = run_begin(&setup), evaluated = run_begin(&setup);
        for (int i = 0; i < 6; i++) {
            const kr_evaluation e = kr_trainer_evaluate(evaluated.trainer, evaluated.validation, i % 3);
            const kr_evaluation own = kr_trainer_evaluate(evaluated.trainer, evaluated.loader, 2);
            CHECK(isfinite(e.loss) && isfinite(own.loss) && e.n_scored > 0 && e.n_right <= e.n_scored, "loss %g",
                  e.loss);
            CHECK(kr_trainer_step(plain.trainer) == KR_OK && kr_trainer_step(evaluated.trainer) == KR_OK, "%s",
                  kr_ctx_message(evaluated.ctx));
            CHECK(kr_trainer_progress(plain.trainer).loss == kr_trainer_progress(evaluated.trainer).loss, "losses");
        }
        CHECK(run_hash(&plain) == run_hash(&evaluated), "an evaluation leaves a trace");
        CHECK(kr_loader_step(evaluated.validation) == 0 && kr_loader_epoch(evaluated.validation) == 0, "moved");
        run_end(&plain);
        run_end(&evaluated);
    }
}

/* The mean over all that is scored, of whatever batches: as one batch has it. */
TEST(trainer_evaluates_the_mean)
{
    run r = run_documents(9, 1);
    kr_loader *one = loader_of(&r, 1, 1, false, true);
    const kr_evaluation whole = kr_trainer_evaluate(r.trainer, r.loader, 0),
                        parts = kr_trainer_evaluate(r.trainer, one, 0);
    CHECK(whole.n_scored == parts.n_scored && whole.n_right == parts.n_right && fabs(whole.loss - parts.loss) < 1e-12,
          "%.17g of %lld, not %.17g of %lld", parts.loss, (long long)parts.n_scored, whole.loss,
          (long long)whole.n_scored);
    kr_loader_destroy(one);
    run_end(&r);
}

/* ---- what is kept ---- */

static int list_steps(char *text, size_t bytes)
{
    int count = 0;
    text[0] = '\0';
    for (int step = 0; step < 100; step++) {
        char name[64];
        snprintf(name, sizeof name, "run/checkpoints/step-%08d", step);
        if (!is_there(name)) continue;
        count++;
        snprintf(text + strlen(text), bytes - strlen(text), "%d ", step);
    }
    return count;
}

TEST(trainer_keeps_the_best_and_the_last)
{
    begin_folder();
    telling t = { 0 };
    run r = run_prepare(&(run_setup){ .family = KR_FAMILY_MAMBA2,
                                      .steps = 12,
                                      .max_lr = 3,
                                      .has_validation = true,
                                      .eval_every = 1,
                                      .save_every = 4,
                                      .keep_last = 2,
                                      .folder = the_run(),
                                      .on_step = listen,
                                      .user = &t });
    r.schedule.warmup_steps = 11; /* the rate grows until it is too large: the lowest loss comes early */
    r.trainer = run_trainer(&r, r.model, r.loader);
    CHECK(kr_trainer_run(r.trainer) == KR_OK, "%s", kr_ctx_message(r.ctx));
    const int64_t best = t.last.best_step;
    char want[64], got[64], target[64] = "", listed[64];
    CHECK(best > 0 && best < 8, "the best is step %lld; another rate is needed here", (long long)best);
    snprintf(want, sizeof want, "%lld 8 12 ", (long long)best);
    list_steps(listed, sizeof listed);
    CHECK(strcmp(listed, want) == 0, "kept: %s, not %s", listed, want);
    snprintf(got, sizeof got, "checkpoints/step-%08lld", (long long)best);
    CHECK(readlink(in_folder("run/best"), target, sizeof target - 1) > 0 && strcmp(target, got) == 0, "best -> %s",
          target);
    kr_model *model = kr_model_load(r.ctx, in_folder("run/best"), NULL);
    CHECK(model != NULL, "%s", kr_ctx_message(r.ctx));
    kr_model_destroy(model);
    run_end(&r);
    remove_tree(folder);
}

TEST(trainer_keeps_all_if_asked)
{
    begin_folder();
    char listed[64];
    run r = run_begin(
        &(run_setup){ .family = KR_FAMILY_MAMBA2, .steps = 5, .save_every = 1, .keep_last = -1, .folder = the_run() });
    CHECK(kr_trainer_run(r.trainer) == KR_OK, "%s", kr_ctx_message(r.ctx));
    CHECK(list_steps(listed, sizeof listed) == 5 && !is_there("run/best"), "kept: %s", listed);
    run_end(&r);
    remove_tree(folder);
}

TEST(trainer_writes_extra_files)
{
    begin_folder();
    write_image(in_folder("tokenizer.json"), "{}\n", 3);
    const char *const extra_files[] = { in_folder("tokenizer.json") };
    run r = run_prepare(&(run_setup){ .family = KR_FAMILY_MAMBA2, .steps = 1, .folder = the_run() });
    r.options.n_extra_files = 1;
    r.options.extra_files = extra_files;
    r.trainer = run_trainer(&r, r.model, r.loader);
    CHECK(kr_trainer_run(r.trainer) == KR_OK, "%s", kr_ctx_message(r.ctx));
    CHECK(file_is(in_folder("run/tokenizer.json"), "{}\n"), "not in the folder");
    CHECK(file_is(in_folder("run/checkpoints/step-00000001/tokenizer.json"), "{}\n"), "not in the checkpoint");
    run_end(&r);
    remove_tree(folder);
}

/* ---- a table of parameters without a model ---- */

static kr_loss_out loss_of_network(void *user, kr_tape *tape, const kr_batch *batch, const kr_state *state)
{
    kr_loss_call call;
    kr_loss_call_init(&call);
    kr_call how;
    kr_call_init(&how);
    call.call = &how;
    call.ids_bs = batch->ids_bs;
    call.labels = batch->labels_bs;
    how.reset_bs = batch->reset_bs;
    how.state = state;
    how.drop_state = true;
    return kr_network_loss(tape, user, &call);
}

static run run_table(const char *run_folder)
{
    run r = run_prepare(&(run_setup){ .family = KR_FAMILY_MAMBA3, .steps = 6, .folder = run_folder, .has_ema = true });
    r.options.loss_fn = loss_of_network;
    r.options.loss_user = (void *)(uintptr_t)kr_model_network(r.model);
    r.options.params = kr_network_params(kr_model_network(r.model));
    r.trainer = run_trainer(&r, NULL, r.loader);
    CHECK_OK(r.ctx);
    return r;
}

TEST(trainer_trains_any_table)
{
    begin_folder();
    double losses[12];
    run r = run_begin(&(run_setup){ .family = KR_FAMILY_MAMBA3, .steps = 6, .has_ema = true });
    run_steps(&r, 6, losses);
    const uint64_t want = run_hash(&r);
    run_end(&r);
    r = run_table(the_run());
    run_steps(&r, 3, losses + 6);
    CHECK(kr_trainer_save(r.trainer) == KR_OK, "%s", kr_ctx_message(r.ctx));
    run_end(&r);
    r = run_table(the_run());
    CHECK(kr_trainer_resume(r.trainer) == KR_OK, "%s", kr_ctx_message(r.ctx));
    run_steps(&r, 3, losses + 9);
    CHECK(run_hash(&r) == want && memcmp(losses, losses + 6, 6 * sizeof *losses) == 0,
          "a table is not trained as its model is");
    CHECK(is_there("run/model.safetensors") && !is_there("run/config.json"), "files of a table");
    run_end(&r);
    remove_tree(folder);
}

/* ---- threads ---- */

TEST(trainer_threads_agree_to_the_bit)
{
    uint64_t hashes[2];
    double losses[2][5];
    for (int i = 0; i < 2; i++) {
        run r = run_begin(&(run_setup){ .family = KR_FAMILY_MAMBA3,
                                        .steps = 5,
                                        .threads = i + 1,
                                        .carry = true,
                                        .accumulate = 2,
                                        .kind = KR_OPTIMIZER_MUON });
        run_steps(&r, 5, losses[i]);
        hashes[i] = run_hash(&r);
        run_end(&r);
    }
    CHECK(hashes[0] == hashes[1] && memcmp(losses[0], losses[1], sizeof losses[0]) == 0,
          "two threads give other bits than one");
}
