/* task_mnist_train.c - a training run over images: steps, evaluations, and a picture after each of those. */
#define _POSIX_C_SOURCE 200809L
#include "cli/common/cli_files.h"
#include "cli/common/interrupt.h"
#include "cli/common/live.h"
#include "cli/common/metrics.h"
#include "lab/task_mnist.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <sys/stat.h>

#define EPS 8.1585e-8 /* the reference's, of f32 */

enum { PICTURE_ROWS = 20 };

typedef struct training {
    mnist_run *run;
    const char *folder;
    kr_trainer *trainer;
    cli_metrics metrics;
    cli_live live;
    int64_t steps_per_epoch, steps;
    bool is_stopped, is_ok;
} training;

/* ---- the trainer ---- */

static void set_optimizer(const mnist_values *v, kr_optimizer_options *o)
{
    kr_optimizer_options_init(o);
    o->beta2 = 0.999;
    o->clip_norm = 0;
    o->kind = v->has_muon ? KR_OPTIMIZER_MUON : KR_OPTIMIZER_ADAMW;
    o->eps = EPS;
    o->weight_decay = v->weight_decay;
    o->decay_all = true;
    o->is_cautious = true;
    o->clip_value = 1;
}

static void set_schedule(const mnist_values *v, const training *t, kr_lr_schedule *s)
{
    const int64_t warmup = (int64_t)llround(v->warmup * (double)t->steps_per_epoch);
    kr_lr_schedule_init(s);
    s->kind = KR_LR_COSINE;
    s->max_lr = v->lr;
    s->min_lr = v->min_lr;
    s->warmup_steps = warmup < t->steps ? warmup : t->steps - 1;
    s->total_steps = t->steps;
}

static bool after_step(void *user, kr_trainer *trainer, const kr_train_progress *p);

static void make_trainer(training *t)
{
    const mnist_values *v = t->run->values;
    char path[CLI_PATH_BYTES];
    const char *const extra_files[] = { path };
    kr_optimizer_options optimizer;
    kr_lr_schedule schedule;
    kr_train_options options;
    kr_model *model = NULL;
    kr_train_options_init(&options);
    t->steps_per_epoch = kr_loader_steps_per_epoch(t->run->data.loader);
    t->steps = v->epochs * t->steps_per_epoch;
    options.steps = t->steps;
    set_optimizer(v, &optimizer);
    set_schedule(v, t, &schedule);
    options.optimizer = &optimizer;
    options.schedule = &schedule;
    options.validation = t->run->data.check;
    options.eval_every = options.save_every = v->eval_every;
    options.eval_batches = v->eval_batches;
    options.folder = t->folder;
    options.on_step = after_step;
    options.user = t;
    if (t->folder && cli_join(path, t->folder, "task.json")) {
        options.n_extra_files = 1;
        options.extra_files = extra_files;
    }
    t->run->kind->set(t->run, &options, &model);
    t->trainer = kr_trainer_create(t->run->ctx, model, t->run->data.loader, &options);
}

/* ---- pictures ---- */

/* The first test images, and the network's output for them. */
static bool make_picture(mnist_run *run, kr_tape *tape, cli_picture *picture)
{
    const mnist_data *data = &run->data;
    kr_loader_options reading;
    kr_loader_options_init(&reading);
    reading.batch = PICTURE_ROWS;
    reading.length = 0;
    reading.pack = false;
    reading.shuffle = false;
    if (!data->test) {
        reading.part = KR_DATA_PART_VALIDATION;
        reading.validation_fraction = 0.1;
    }
    kr_loader *loader = kr_loader_create(data->test ? data->test : data->train, &reading);
    kr_batch batch;
    const bool ok = kr_loader_next(tape, loader, &batch) == KR_OK && run->kind->draw(run, tape, &batch, picture);
    kr_loader_destroy(loader);
    return ok && !kr_ctx_failed(run->ctx);
}

static bool write_picture(mnist_run *run, const char *folder, int64_t step)
{
    char pictures[CLI_PATH_BYTES], name[40], path[CLI_PATH_BYTES];
    snprintf(name, sizeof name, "step-%06lld.png", (long long)step);
    if (!cli_join(pictures, folder, "pictures") || !cli_join(path, pictures, name)) return false;
    if (mkdir(pictures, 0777) != 0 && errno != EEXIST) return cli_cannot("make", pictures, errno);
    kr_tape *tape = kr_tape_create(run->ctx, KR_TAPE_NO_GRAD);
    cli_picture picture = { 0 };
    bool ok = make_picture(run, tape, &picture);
    if (ok) ok = cli_picture_write(&picture, path);
    else cli_failed(run->ctx);
    cli_picture_free(&picture);
    kr_tape_destroy(tape);
    return ok;
}

/* ---- reports ---- */

static bool put_metrics(training *t, const kr_train_progress *p)
{
    if (!t->folder) return true;
    cli_metrics_row row = cli_metrics_row_init(p->step);
    row.epoch = (p->step - 1) / t->steps_per_epoch;
    row.positions = p->n_positions;
    row.loss = p->loss;
    row.accuracy = t->run->kind->has_labels && p->n_scored ? (double)p->n_right / (double)p->n_scored : NAN;
    row.lr = p->lr;
    row.grad_norm = p->grad_norm;
    row.memory_bytes = (int64_t)cli_peak_bytes(t->run->ctx);
    row.is_slow = p->is_evaluated || p->is_saved;
    if (p->is_evaluated) {
        row.eval_loss = p->eval_loss;
        row.eval_accuracy = p->eval_accuracy;
    }
    return cli_metrics_put(&t->metrics, &row);
}

static void show(training *t, const kr_train_progress *p)
{
    cli_live_show(&t->live, &(cli_live_row){ .step = p->step,
                                             .steps = t->steps,
                                             .positions = p->n_positions,
                                             .loss = p->loss,
                                             .accuracy = NAN,
                                             .eval_loss = p->eval_loss,
                                             .eval_accuracy = p->eval_accuracy,
                                             .memory_bytes = cli_peak_bytes(t->run->ctx),
                                             .is_due = p->is_evaluated });
}

/* ---- steps ---- */

static bool after_step(void *user, kr_trainer *trainer, const kr_train_progress *p)
{
    training *t = user;
    (void)trainer;
    if (p->step == 0) return true; /* before the first one */
    t->is_ok = put_metrics(t, p) && (!p->is_evaluated || !t->folder || write_picture(t->run, t->folder, p->step));
    show(t, p);
    const int64_t stop = t->run->values->stop_after;
    t->is_stopped = !p->is_done && (cli_interrupted() || (stop && p->step >= stop));
    return t->is_ok && !t->is_stopped;
}

static bool open_metrics(training *t, bool is_resumed)
{
    const int64_t step = kr_trainer_progress(t->trainer).step;
    return !t->folder || cli_metrics_open(&t->metrics, t->folder, is_resumed ? step : CLI_METRICS_NEW, 0, NULL);
}

bool mnist_train(mnist_run *run, const char *folder, bool is_resumed, bool *is_stopped)
{
    training t = { .run = run, .folder = folder, .is_ok = true };
    cli_live_open(&t.live, "tok", 10, false);
    cli_watch_interrupts();
    make_trainer(&t);
    bool ok = t.trainer && (!is_resumed || kr_trainer_resume(t.trainer) == KR_OK);
    if (!ok) cli_failed(run->ctx);
    if (ok && (!folder || run->write_options(run->user, folder)) && open_metrics(&t, is_resumed)) {
        ok = kr_trainer_run(t.trainer) == KR_OK;
        cli_live_wipe(&t.live);
        ok = (ok || !cli_failed(run->ctx)) && t.is_ok;
    } else {
        ok = false;
    }
    ok = cli_metrics_close(&t.metrics) && ok;
    *is_stopped = t.is_stopped;
    kr_trainer_destroy(t.trainer);
    return ok;
}

bool mnist_evaluate(mnist_run *run, kr_evaluation *evaluation)
{
    kr_train_options options;
    kr_model *model = NULL;
    kr_train_options_init(&options);
    run->kind->set(run, &options, &model);
    kr_trainer *trainer = kr_trainer_create(run->ctx, model, run->data.check, &options);
    *evaluation = kr_trainer_evaluate(trainer, run->data.check, 0);
    kr_trainer_destroy(trainer);
    return !cli_failed(run->ctx);
}
