/* grokking_run.c - a training run: steps with all rows, evaluations at their interval, and the files written. */
#include "lab/grokking.h"

#include "cli/common/cli_files.h"
#include "cli/common/interrupt.h"
#include "cli/common/live.h"
#include "cli/common/metrics.h"
#include "cli/common/options_json.h"
#include "cli/report/report_html.h"
#include "cli/common/step_lines.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Columns of metrics.csv after the common ones. */
static const char *const extra_columns[] = { "penalty", "emb_pr", "head_pr", "emb_freq_pr" };
enum { PENALTY, EMB_PR, HEAD_PR, EMB_FREQ_PR, N_EXTRA };

typedef struct training {
    grok g;
    const char *folder; /* NULL: nothing is saved */
    kr_trainer *trainer;
    kr_tape *tape; /* of measurements */
    cli_live live;
    cli_metrics metrics;
    cli_step_lines states, weights;
    double test_loss, test_accuracy; /* of the last evaluation; NaN: none */
    int64_t memorised,
        generalised; /* the first steps with a train, test accuracy of 99 % in an evaluation; 0: none yet */
    bool has_failed, is_enough;
} training;

/* ---- the trainer ---- */

static kr_step_fn after_step;

static void set_optimizer(const grok_values *v, kr_optimizer_options *o)
{
    kr_optimizer_options_init(o);
    o->beta2 = 0.999;
    o->clip_norm = 0;
    o->weight_decay = v->wd;
    o->decay_all = true;
    o->clip_value = 1;
    o->eps = 0x1p-23;
    if (isnan(v->sgd)) return;
    o->kind = KR_OPTIMIZER_SGD;
    o->momentum = v->sgd;
}

static void set_options(training *t, kr_train_options *o)
{
    const grok_values *v = t->g.v;
    kr_train_options_init(o);
    o->steps = v->steps;
    o->loss_fn = grok_loss;
    o->loss_user = &t->g;
    o->validation = t->g.loaders[KR_DATA_PART_VALIDATION];
    o->eval_every = v->eval_every;
    o->eval_batches = 0;
    o->folder = t->folder;
    o->save_every = v->save_every;
    o->on_step = after_step;
    o->user = t;
}

/* ---- tests ---- */

static bool is_test_step(const grok_values *v, int64_t step)
{
    return (step & (step - 1)) == 0 || step % v->eval_every == 0 || step == v->steps;
}

static bool measure_states(training *t, int64_t step)
{
    grok_state_ratios ratios[GROK_MAX_LAYERS];
    bool is_well = grok_measure_states(&t->g, t->tape, ratios);
    for (int64_t layer = 0; is_well && layer < t->g.v->n_layers; layer++) {
        const grok_state_ratios *r = &ratios[layer];
        const double values[] = { r->pooled, r->pooled_centred, r->final, r->final_centred };
        is_well = cli_step_lines_put(&t->states, step, 2, (int64_t[]){ layer, 0 }, 4, values);
    }
    return is_well;
}

/* Participation ratios: those of layers go to weights.csv, those of embedding and head to the row of metrics.csv. */
static bool measure(training *t, int64_t step, double *extra)
{
    grok_weight_ratios ratios;
    if (t->g.v->has_no_diagnostics || !t->folder) return true;
    bool is_well = grok_measure_weights(&t->g, t->tape, &ratios);
    extra[EMB_PR] = ratios.matrices[0];
    extra[HEAD_PR] = ratios.matrices[1];
    extra[EMB_FREQ_PR] = ratios.frequencies;
    for (int64_t layer = 0; is_well && layer < t->g.v->n_layers; layer++) {
        double values[GROK_LAYER_MATRICES + 1];
        for (int i = 0; i < GROK_LAYER_MATRICES; i++) values[i] = ratios.matrices[2 + layer * GROK_LAYER_MATRICES + i];
        values[GROK_LAYER_MATRICES] = ratios.b_symbols[layer];
        is_well = cli_step_lines_put(&t->weights, step, 1, &layer, GROK_LAYER_MATRICES + 1, values);
    }
    if (is_well && !t->g.v->has_no_state_pr) is_well = measure_states(t, step);
    kr_tape_reset(t->tape);
    return is_well && !cli_failed(t->g.ctx);
}

static void note_accuracy(training *t, int64_t step, double train, double test)
{
    if (!t->memorised && train >= 0.99) t->memorised = step;
    if (!t->generalised && test >= 0.99) t->generalised = step;
}

/* The evaluation of a step, by the trainer or here, into the row; false after an error. */
static bool test(training *t, kr_trainer *trainer, const kr_train_progress *p, cli_metrics_row *row)
{
    row->eval_loss = p->eval_loss;
    row->eval_accuracy = isnan(p->eval_accuracy) ? 0 : p->eval_accuracy; /* the trainer reports NaN if none is right */
    if (!p->is_evaluated) {
        const kr_evaluation e = kr_trainer_evaluate(trainer, t->g.loaders[KR_DATA_PART_VALIDATION], 0);
        row->eval_loss = e.loss;
        row->eval_accuracy = (double)e.n_right / (double)e.n_scored;
    }
    t->test_loss = row->eval_loss;
    t->test_accuracy = row->eval_accuracy;
    note_accuracy(t, row->step, row->accuracy, row->eval_accuracy);
    t->is_enough = row->eval_accuracy >= t->g.v->stop_at;
    return !kr_ctx_failed(t->g.ctx);
}

static bool after_step(void *user, kr_trainer *trainer, const kr_train_progress *p)
{
    training *t = user;
    const grok_values *v = t->g.v;
    const bool is_test = is_test_step(v, p->step);
    double extra[N_EXTRA] = { t->g.auxiliary, NAN, NAN, NAN };
    cli_metrics_row row = cli_metrics_row_init(p->step + v->step_offset);
    row.epoch = p->epoch;
    row.positions = p->n_positions;
    row.loss = t->g.ce;
    row.accuracy = (double)p->n_right / (double)p->n_scored;
    row.lr = p->lr;
    row.grad_norm = p->grad_norm;
    row.memory_bytes = (int64_t)kr_ctx_memory(t->g.ctx).live_bytes;
    row.is_slow = is_test || p->is_saved;
    row.extra = extra;
    bool is_well = !is_test || (test(t, trainer, p, &row) && measure(t, row.step, extra));
    cli_live_show(&t->live, &(cli_live_row){ .step = row.step,
                                             .steps = v->steps + v->step_offset,
                                             .positions = p->n_positions,
                                             .loss = row.loss,
                                             .accuracy = row.accuracy,
                                             .eval_loss = t->test_loss,
                                             .eval_accuracy = t->test_accuracy,
                                             .memory_bytes = (size_t)row.memory_bytes,
                                             .is_due = is_test });
    if (is_test) cli_live_pause(&t->live);
    if (is_well && t->folder) is_well = cli_metrics_put(&t->metrics, &row);
    t->has_failed = !is_well;
    return is_well && !t->is_enough && !cli_interrupted();
}

/* ---- a run ---- */

/* Restores the evaluations of an earlier part of the run from its metrics.csv. */
static void recall_accuracy(training *t, int64_t last_step)
{
    enum { ACCURACY = 4, EVAL_ACCURACY = 8 };
    char path[CLI_PATH_BYTES], line[1024];
    FILE *file = cli_join(path, t->folder, "metrics.csv") ? fopen(path, "r") : NULL;
    while (file && fgets(line, sizeof line, file)) {
        const char *fields[EVAL_ACCURACY + 1] = { line };
        int n = 0;
        for (const char *at = line; n < EVAL_ACCURACY && (at = strchr(at, ',')) != NULL;) fields[++n] = ++at;
        if (n < EVAL_ACCURACY || *fields[EVAL_ACCURACY] == ',' || strtoll(line, NULL, 10) > last_step) continue;
        note_accuracy(t, strtoll(line, NULL, 10), strtod(fields[ACCURACY], NULL), strtod(fields[EVAL_ACCURACY], NULL));
    }
    if (file) fclose(file);
}

static bool open_files(training *t, const cli_command *command, const cli_given *given)
{
    const int64_t step = kr_trainer_progress(t->trainer).step;
    const int64_t last = step ? step + t->g.v->step_offset : -1;
    char path[CLI_PATH_BYTES];
    if (!t->folder) return true;
    recall_accuracy(t, last);
    if (!cli_join(path, t->folder, "task.json") || !cli_json_write(command, t->g.v, given, path) ||
        !cli_metrics_open(&t->metrics, t->folder, last, N_EXTRA, extra_columns))
        return false;
    return t->g.v->has_no_diagnostics ||
           (cli_step_lines_open(&t->weights, t->folder, "weights.csv",
                                "step,layer,z_pr,x_pr,b_pr,c_pr,out_pr,b_symbols_pr", last) &&
            (t->g.v->has_no_state_pr ||
             cli_step_lines_open(&t->states, t->folder, "pr.csv",
                                 "step,layer,head,pooled_pr,pooled_centred_pr,final_pr,final_centred_pr", last)));
}

static bool close_files(training *t)
{
    const bool a = cli_metrics_close(&t->metrics), b = cli_step_lines_close(&t->weights);
    return cli_step_lines_close(&t->states) && a && b;
}

static void report_setup(training *t)
{
    const grok_values *v = t->g.v;
    if (v->is_quiet) return;
    cli_live_say(&t->live,
                 "%" PRId64 " symbols of %" PRId64 ": %" PRId64 " sums for training, %" PRId64
                 " for the test %s %" PRId64 " parameters %s %s",
                 v->k, v->p, kr_source_info_of(t->g.sources[0]).count / v->k,
                 kr_source_info_of(t->g.sources[1]).count / v->k, cli_dot(&t->live),
                 kr_params_elements(kr_network_params(t->g.net)), cli_dot(&t->live), isnan(v->sgd) ? "adamw" : "sgd");
}

static void report_result(training *t)
{
    const kr_train_progress p = kr_trainer_progress(t->trainer);
    char word[CLI_PATH_BYTES];
    const int64_t offset = t->g.v->step_offset;
    printf("step %" PRId64, p.step + offset);
    if (p.n_scored) printf(": train %.2f %% right", 100 * (double)p.n_right / (double)p.n_scored);
    if (!isnan(t->test_accuracy)) printf(", test %.2f %%", 100 * t->test_accuracy);
    putchar('\n');
    if (t->memorised) printf("99 %% of the training sums right by step %" PRId64, t->memorised);
    if (t->memorised) printf(t->generalised ? ", of the test sums by step %" PRId64 "\n" : "\n", t->generalised);
    if (!t->folder) return;
    cli_shell_word(t->folder, word, sizeof word);
    if (!p.is_done && !t->is_enough) printf("next: krait task grokking --resume %s\n", word);
    else printf("next: krait task grokking --eval %s; see %s/report.html\n", word, word);
}

static bool train(training *t, const cli_command *command, const cli_given *given)
{
    kr_optimizer_options optimizer;
    kr_lr_schedule schedule;
    kr_train_options options;
    set_optimizer(t->g.v, &optimizer);
    kr_lr_schedule_init(&schedule);
    schedule.kind = KR_LR_CONSTANT;
    schedule.warmup_steps = 0;
    schedule.max_lr = t->g.v->lr;
    set_options(t, &options);
    options.optimizer = &optimizer;
    options.schedule = &schedule;
    t->trainer = kr_trainer_create(t->g.ctx, t->g.model, t->g.loaders[KR_DATA_PART_TRAIN], &options);
    t->tape = kr_tape_create(t->g.ctx, KR_TAPE_NO_GRAD);
    t->g.trainer = t->trainer;
    if (cli_failed(t->g.ctx)) return false;
    if (t->g.v->resume && kr_trainer_resume(t->trainer) != KR_OK && cli_failed(t->g.ctx)) return false;
    const kr_train_progress p = kr_trainer_progress(t->trainer);
    if (p.eval_step) t->test_accuracy = isnan(p.eval_accuracy) ? 0 : p.eval_accuracy;
    if (cli_failed(t->g.ctx) || !open_files(t, command, given)) return false;
    report_setup(t);
    const bool is_run = kr_trainer_run(t->trainer) == KR_OK;
    cli_live_close(&t->live);
    return (is_run || !cli_failed(t->g.ctx)) && !t->has_failed;
}

int grok_train(const cli_command *command, const grok_values *v, const cli_given *given, const char *folder)
{
    training t = { .folder = folder, .test_loss = NAN, .test_accuracy = NAN };
    kr_ctx *ctx = cli_open(&v->machine, v->seed);
    cli_live_open(&t.live, "tok", 10, v->is_quiet);
    bool is_well = grok_open(&t.g, ctx, v, v->from) && train(&t, command, given);
    is_well = close_files(&t) && is_well;
    if (is_well) report_result(&t);
    if (is_well && folder) is_well = cli_write_report(folder);
    kr_tape_destroy(t.tape);
    kr_trainer_destroy(t.trainer);
    grok_close(&t.g);
    kr_ctx_destroy(ctx);
    return is_well ? CLI_OK : CLI_FAILED;
}
