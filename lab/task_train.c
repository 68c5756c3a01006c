/* task_train.c - trains the network of a task over symbols: AdamW on the cross-entropy of all positions, an evaluation
 * after each epoch, and periodic checkpoints. */
#include "lab/task_train.h"

#include "cli/common/floats.h"
#include "cli/common/interrupt.h"
#include "cli/common/live.h"
#include "cli/common/metrics.h"
#include "lab/task_folder.h"

#include <krait/train.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { EPOCHS_PER_LINE = 10, EPOCHS_PER_SAVE = 10, NAME_BYTES = 64, SOLVED_STREAK = 2 };

#define F32_EPS 0x1p-23
#define NORM_EPS 8.1585e-8 /* of the reference's norms in f32 */
#define DT_LIMIT 65504.0   /* its largest step */

/* ---- the network ---- */

void task_set_config(const task_spec *spec, const task_values *values, kr_model_config *config)
{
    config->family = (kr_family)values->family;
    config->layers->n_layers = 1;
    config->layers->norm_eps = NORM_EPS;
    config->network->input_size = LAB_TASK_SYMBOLS;
    config->network->output_size = lab_task_classes(spec->kind);
    config->network->rescale_residual = false;
    config->network->zero_proj_biases = false;
    config->mamba1->has_proj_bias = config->mamba2->has_proj_bias = config->mamba3->has_proj_bias = true;
    config->mamba2->norm_eps = config->mamba3->norm_eps = NORM_EPS;
    config->mamba2->dt_limit_max = config->mamba3->dt_limit_max = DT_LIMIT;
    const task_rotation rotation = values->rotation < 0 ? spec->rotation : (task_rotation)values->rotation;
    config->mamba3->rotation = rotation == TASK_ROTATION_QUATERNION ? KR_ROTATION_QUATERNION : KR_ROTATION_COMPLEX;
    config->mamba3->rope_fraction = rotation == TASK_ROTATION_NONE ? 0 : 1;
    config->mamba3->rotation_range = 2;
    config->mamba3->a_activation = KR_A_ACTIVATION_SOFTPLUS;
    spec->set_network(config, rotation);
}

static bool is_decay(const kr_segment *segment)
{
    return !strcmp(segment->name, "dt") || !strcmp(segment->name, "a");
}

/* 0 in the rows of decay. */
static float without_decay(const void *user, int64_t at, float value)
{
    const kr_param_row *row = user;
    int64_t left = at / kr_tensor_dim(row->tensor, 1);
    for (int s = 0; s < row->n_segments; s++) {
        if (left < row->segments[s].rows) return is_decay(&row->segments[s]) ? 0 : value;
        left -= row->segments[s].rows;
    }
    return value;
}

void task_hold_decay(const kr_network *net)
{
    const kr_params *params = kr_network_params(net);
    for (int64_t i = 0; i < kr_params_count(params); i++) {
        const kr_param_row *row = kr_params_at(params, i);
        bool has_decay = false;
        for (int s = 0; s < row->n_segments; s++) has_decay |= is_decay(&row->segments[s]);
        if (has_decay) cli_change_floats(row->tensor, without_decay, row);
    }
}

task_words task_network_words(const kr_model *model, bool has_fixed_decay)
{
    const kr_model_config *config = kr_model_config_of(model);
    const kr_mamba3_config *mamba3 = config->mamba3;
    const char *rotation = config->family != KR_FAMILY_MAMBA3           ? ""
                           : mamba3->rope_fraction == 0                 ? " without rotation"
                           : mamba3->rotation == KR_ROTATION_QUATERNION ? " with quaternion rotation"
                                                                        : " with complex rotation";
    task_words words;
    snprintf(words.text, sizeof words.text, "%s%s, %lld parameters%s", kr_family_name(config->family), rotation,
             (long long)kr_params_elements(kr_network_params(kr_model_network(model))),
             has_fixed_decay ? ", fixed decay" : "");
    return words;
}

/* ---- state of a run ---- */

typedef struct training {
    task_run *run;
    const kr_network *net;
    kr_source *source;
    kr_loader *loader;
    kr_trainer *trainer;
    cli_metrics metrics;
    cli_live live;
    int64_t steps_per_epoch, steps;
    int64_t saved;   /* the step of the last checkpoint */
    int streak;      /* consecutive evaluations without an error, up to the last one */
    double loss_sum; /* over the steps of this epoch in this process ... */
    int64_t n_seen;  /* ... and their number */
    bool has_heading;
} training;

static void make_loader(training *t)
{
    const task_values *v = t->run->values;
    lab_task task = lab_task_of(t->run->spec->kind);
    task.length = v->length;
    kr_loader_options reading;
    kr_loader_options_init(&reading);
    reading.batch = v->batch;
    reading.length = v->length;
    reading.pack = false;
    reading.seed = v->seed;
    t->source = lab_source_task(t->run->ctx, &task, v->rows, true);
    t->loader = kr_loader_create(t->source, &reading);
    t->steps_per_epoch = t->loader ? kr_loader_steps_per_epoch(t->loader) : 1;
    t->steps = v->epochs * t->steps_per_epoch;
}

static void make_trainer(training *t)
{
    const task_values *v = t->run->values;
    char path[CLI_PATH_BYTES];
    const char *const extra_files[] = { path };
    kr_optimizer_options optimizer;
    kr_lr_schedule schedule;
    kr_train_options options;
    kr_optimizer_options_init(&optimizer);
    kr_lr_schedule_init(&schedule);
    kr_train_options_init(&options);
    options.steps = t->steps;
    options.optimizer = &optimizer;
    options.schedule = &schedule;
    optimizer.beta2 = 0.999;
    optimizer.clip_norm = 0;
    optimizer.eps = F32_EPS;
    optimizer.weight_decay = v->weight_decay;
    optimizer.decay_all = true;
    optimizer.is_cautious = true;
    optimizer.clip_value = 1;
    schedule.kind = KR_LR_COSINE;
    schedule.max_lr = v->lr;
    schedule.min_lr = isnan(v->min_lr) ? v->lr : v->min_lr;
    schedule.warmup_steps = v->warmup < t->steps ? v->warmup : t->steps - 1;
    schedule.total_steps = t->steps;
    options.folder = t->run->folder;
    options.save_every = 0;
    options.keep_best = false;
    if (options.folder && cli_join(path, options.folder, "task.json")) {
        options.n_extra_files = 1;
        options.extra_files = extra_files;
    }
    t->trainer = kr_trainer_create(t->run->ctx, t->run->model, t->loader, &options);
}

static bool open_metrics(training *t, int64_t step)
{
    char names[TASK_MOST_FAMILIES][NAME_BYTES];
    const char *extra[TASK_MOST_FAMILIES];
    const task_sets *sets = &t->run->sets;
    if (!t->run->folder) return true;
    for (int f = 0; f < sets->count; f++) {
        snprintf(names[f], sizeof names[f], "eval_accuracy_%s", sets->set[f].family);
        extra[f] = names[f];
    }
    return cli_metrics_open(&t->metrics, t->run->folder, t->run->is_resumed ? step : CLI_METRICS_NEW, sets->count,
                            extra);
}

/* ---- reports ---- */

static const task_set *main_set(const task_run *run)
{
    return &run->sets.set[run->sets.count - 1];
}

static int column_of(const char *name)
{
    return strlen(name) > 6 ? (int)strlen(name) + 2 : 8;
}

static void report_epoch(training *t, int64_t epoch)
{
    const task_sets *sets = &t->run->sets;
    char line[160];
    int n = 0;
    if (!t->has_heading) {
        n = snprintf(line, sizeof line, " epoch    loss");
        for (int f = 0; f < sets->count; f++)
            n +=
                snprintf(line + n, sizeof line - (size_t)n, "%*s", column_of(sets->set[f].family), sets->set[f].family);
        cli_live_say(&t->live, "%s", line);
        t->has_heading = true;
    }
    n = snprintf(line, sizeof line, "%6lld  %6.4f", (long long)epoch, t->loss_sum / (double)t->n_seen);
    for (int f = 0; f < sets->count; f++)
        n += snprintf(line + n, sizeof line - (size_t)n, "%*.2f", column_of(sets->set[f].family),
                      100 * task_set_accuracy(&sets->set[f]));
    cli_live_say(&t->live, "%s", line);
}

static bool put_metrics(training *t, const kr_train_progress *p, bool is_evaluated)
{
    const task_set *set = main_set(t->run);
    double extra[TASK_MOST_FAMILIES];
    if (!t->run->folder) return true;
    cli_metrics_row row = cli_metrics_row_init(p->step);
    row.epoch = (p->step - 1) / t->steps_per_epoch;
    row.positions = p->n_positions;
    row.loss = p->loss;
    row.accuracy = p->n_scored ? (double)p->n_right / (double)p->n_scored : NAN;
    row.lr = p->lr;
    row.grad_norm = p->grad_norm;
    row.memory_bytes = (int64_t)cli_peak_bytes(t->run->ctx);
    row.is_slow = is_evaluated;
    if (is_evaluated) {
        for (int f = 0; f < t->run->sets.count; f++) extra[f] = task_set_accuracy(&t->run->sets.set[f]);
        row.eval_loss = set->loss;
        row.eval_accuracy = task_set_accuracy(set);
        row.extra = extra;
    }
    return cli_metrics_put(&t->metrics, &row);
}

static void show(training *t, const kr_train_progress *p)
{
    const task_set *set = main_set(t->run);
    cli_live_show(&t->live, &(cli_live_row){ .step = p->step,
                                             .steps = t->steps,
                                             .positions = p->n_positions,
                                             .loss = p->loss,
                                             .accuracy = NAN,
                                             .eval_loss = NAN,
                                             .eval_accuracy = task_set_accuracy(set),
                                             .memory_bytes = cli_peak_bytes(t->run->ctx) });
}

/* ---- steps ---- */

static bool save(training *t, int64_t step)
{
    if (!t->run->folder || t->saved == step) return true;
    t->saved = step;
    return kr_trainer_save(t->trainer) == KR_OK && !cli_failed(t->run->ctx);
}

/* After the last step of an epoch. */
static bool end_epoch(training *t, const kr_train_progress *p)
{
    const int64_t epoch = p->step / t->steps_per_epoch;
    if (!task_sets_score(&t->run->sets, t->net)) return !cli_failed(t->run->ctx);
    t->streak = task_sets_all_right(&t->run->sets) ? t->streak + 1 : 0;
    t->run->epochs = epoch;
    if (epoch % EPOCHS_PER_LINE == 0 || t->streak == SOLVED_STREAK || p->step == t->steps) report_epoch(t, epoch);
    t->loss_sum = 0;
    t->n_seen = 0;
    return epoch % EPOCHS_PER_SAVE != 0 || save(t, p->step);
}

/* Until all steps are done, the task is solved, or Ctrl-C is pressed. */
static bool make_steps(training *t)
{
    const task_values *v = t->run->values;
    kr_train_progress p = kr_trainer_progress(t->trainer);
    bool ok = true;
    t->saved = t->run->is_resumed ? p.step : -1;
    while (ok && p.step < t->steps && (t->streak < SOLVED_STREAK || v->all_epochs)) {
        if (cli_interrupted()) break;
        if (kr_trainer_step(t->trainer) != KR_OK) return !cli_failed(t->run->ctx);
        if (v->has_fixed_decay) task_hold_decay(t->net);
        p = kr_trainer_progress(t->trainer);
        const bool is_end = p.step % t->steps_per_epoch == 0;
        t->loss_sum += p.loss;
        t->n_seen++;
        ok = (!is_end || end_epoch(t, &p)) && put_metrics(t, &p, is_end);
        show(t, &p);
    }
    t->run->is_solved = t->streak >= SOLVED_STREAK || (p.step >= t->steps && t->streak > 0);
    t->run->is_interrupted = ok && cli_interrupted() && p.step < t->steps && !t->run->is_solved;
    return save(t, p.step) && ok;
}

static bool begin(training *t)
{
    task_run *run = t->run;
    make_loader(t);
    make_trainer(t);
    if (cli_failed(run->ctx)) return false;
    if (run->is_resumed && kr_trainer_resume(t->trainer) != KR_OK) return !cli_failed(run->ctx);
    if (run->values->has_fixed_decay) task_hold_decay(t->net);
    const int64_t step = kr_trainer_progress(t->trainer).step;
    if (run->is_resumed) t->streak = task_folder_streak(run->folder, step, run->sets.count);
    run->epochs = step / t->steps_per_epoch;
    return task_sets_score(&run->sets, t->net) ? open_metrics(t, step) : !cli_failed(run->ctx);
}

bool task_train(task_run *run)
{
    training t = { .run = run, .net = kr_model_network(run->model) };
    const double began = cli_seconds();
    if (run->values->epochs == 0) return task_sets_score(&run->sets, t.net) || !cli_failed(run->ctx);
    cli_live_open(&t.live, "tok", 10, false);
    cli_watch_stops();
    bool ok = begin(&t) && make_steps(&t);
    cli_live_wipe(&t.live);
    ok = cli_metrics_close(&t.metrics) && ok;
    run->seconds = cli_seconds() - began;
    kr_trainer_destroy(t.trainer);
    kr_loader_destroy(t.loader);
    kr_source_destroy(t.source);
    return ok;
}
