/* train_run.c - one run of krait train: files and output of each step, and the end of a run. */
#include "cli/common/interrupt.h"
#include "cli/commands/cmd_report.h"
#include "cli/report/report_html.h"
#include "cli/commands/cmd_train.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct running {
    const train_setup *s;
    kr_trainer *trainer;
    cli_live live;
    cli_metrics metrics;
    FILE *ranks; /* ranks.csv; NULL: one rank */
    double began;
    int64_t saved_step; /* step from which a later run would resume; -1: none */
    bool is_stopped;    /* by a signal */
    bool has_failed;    /* something that is said already */
    char errors[512];   /* of the targets of a table, in its own units; "": not known */
} running;

/* ---- with each step ---- */

static cli_metrics_row row_of(const running *r, const kr_train_progress *p)
{
    cli_metrics_row row = cli_metrics_row_init(p->step);
    const bool is_evaluated = p->eval_step == p->step;
    row.epoch = p->epoch;
    row.positions = p->n_positions;
    row.loss = p->loss;
    if (r->s->loss == KR_LOSS_CROSS_ENTROPY && p->n_scored > 0) row.accuracy = (double)p->n_right / (double)p->n_scored;
    row.lr = p->lr;
    row.grad_norm = p->grad_norm;
    if (is_evaluated) row.eval_loss = p->eval_loss;
    if (is_evaluated) row.eval_accuracy = p->eval_accuracy;
    row.memory_bytes = (int64_t)cli_peak_bytes(r->s->ctx);
    row.is_slow = is_evaluated || p->is_saved;
    row.must_stay = p->is_done;
    return row;
}

static void show(running *r, const kr_train_progress *p)
{
    const bool is_class = !r->s->info.n_ids && r->s->info.n_classes;
    cli_live_show(&r->live,
                  &(cli_live_row){ .step = p->step,
                                   .steps = r->s->steps,
                                   .positions = p->n_positions,
                                   .loss = p->loss,
                                   .accuracy = is_class && p->n_scored ? (double)p->n_right / (double)p->n_scored : NAN,
                                   .eval_loss = p->eval_step ? p->eval_loss : NAN,
                                   .eval_accuracy = is_class && p->eval_step ? p->eval_accuracy : NAN,
                                   .memory_bytes = cli_peak_bytes(r->s->ctx),
                                   .is_slow = p->is_evaluated || p->is_saved,
                                   .is_due = p->is_evaluated || p->is_done });
}

/* ranks.csv: times of the steps of several ranks. A resumed run appends to it. */
static bool open_ranks(running *r)
{
    char path[CLI_PATH_BYTES];
    if (!r->s->comm) return true;
    if (!cli_join(path, r->s->values->out, "ranks.csv")) return false;
    const bool is_new = !cli_exists(path);
    r->ranks = fopen(path, "ab");
    if (!r->ranks) return cli_cannot("open", path, errno);
    if (is_new)
        fputs("step,ranks,compute_seconds,comm_seconds,exposed_seconds,slowest_rank,slowest_seconds\n", r->ranks);
    return true;
}

static bool put_ranks(const running *r, int64_t step)
{
    if (!r->ranks) return true;
    const kr_train_ranks s = kr_trainer_ranks_of(r->trainer);
    fprintf(r->ranks, "%" PRId64 ",%d,%.6g,%.6g,%.6g,%d,%.6g\n", step, s.ranks, s.compute_seconds, s.comm_seconds,
            s.exposed_seconds, s.slowest_rank, s.slowest_seconds);
    return (!fflush(r->ranks) && !ferror(r->ranks)) || cli_cannot("write", "ranks.csv", errno);
}

/* Metrics and progress are rank 0's. */
static void report_step(running *r, const kr_train_progress *p)
{
    const cli_metrics_row row = row_of(r, p);
    show(r, p);
    if (!cli_metrics_put(&r->metrics, &row) || !put_ranks(r, p->step)) r->has_failed = true;
}

static bool on_step(void *user, kr_trainer *trainer, const kr_train_progress *p)
{
    running *r = user;
    const train_values *v = r->s->values;
    if (p->is_saved) r->saved_step = p->step;
    if (train_is_first(r->s)) report_step(r, p);
    if (v->sample_every && (p->step % v->sample_every == 0 || p->is_done) && (!r->has_failed || r->s->comm)) {
        if (!train_sample(r->s, &r->live, trainer, p->step)) r->has_failed = true;
        if (train_is_first(r->s)) cli_metrics_pause(&r->metrics);
    }
    if (!cli_interrupted() || p->is_done) return !r->has_failed;
    r->is_stopped = true;
    cli_live_close(&r->live);
    if (!v->is_quiet) printf("saving %s (step %" PRId64 ") ... ", v->out, p->step);
    fflush(stdout);
    return false;
}

/* ---- before the first ---- */

/* Is the sample of the last step missing? */
static bool catch_up_files(running *r, bool *is_due)
{
    const train_values *v = r->s->values;
    const kr_train_progress p = kr_trainer_progress(r->trainer);
    int64_t sampled = -1;
    if (v->sample_every && !train_sample_begin(r->s, p.step, &sampled)) return false;
    if (p.step > 0 && r->metrics.last_step < p.step) {
        const cli_metrics_row row = row_of(r, &p);
        if (!cli_metrics_put(&r->metrics, &row)) return false;
    }
    *is_due = v->sample_every && (p.step % v->sample_every == 0 || p.is_done) && sampled < p.step;
    return true;
}

/* Writes files that an interrupted run may not have written. */
static bool catch_up(running *r)
{
    const int64_t step = kr_trainer_progress(r->trainer).step;
    bool is_due = false;
    if (train_is_first(r->s) && !catch_up_files(r, &is_due)) return false;
    if (r->s->comm) kr_comm_broadcast(r->s->comm, 0, &is_due, sizeof is_due);
    return !is_due || train_sample(r->s, &r->live, r->trainer, step);
}

/* Files that go with the model into the run's folder and its checkpoints; "": there is no such file. */
typedef struct companions {
    char tokenizer[CLI_PATH_BYTES], scales[CLI_PATH_BYTES];
    int count;
    const char *list[2];
} companions;

static bool name_companions(train_setup *s, companions *c)
{
    if (s->tokenizer_path[0] && !cli_join(c->tokenizer, s->values->out, "tokenizer.json")) return false;
    if (!train_fit_columns(s, c->scales)) return false;
    if (c->tokenizer[0]) c->list[c->count++] = c->tokenizer;
    if (c->scales[0]) c->list[c->count++] = c->scales;
    return true;
}

/* Writes them, after an older run was removed. */
static bool keep_companions(const train_setup *s, const companions *c)
{
    if (c->tokenizer[0] && !cli_is_same(c->tokenizer, s->tokenizer_path) &&
        !cli_copy_file(s->tokenizer_path, c->tokenizer))
        return false;
    return train_keep_columns(s, c->scales);
}

static bool begin(running *r)
{
    const train_setup *s = r->s;
    const train_values *v = s->values;
    char path[CLI_PATH_BYTES], text[CLI_PATH_BYTES + 512];
    if (kr_trainer_resume(r->trainer) != KR_OK && cli_failed(s->ctx)) return false;
    const kr_train_progress p = kr_trainer_progress(r->trainer);
    r->saved_step = p.step > 0 ? p.step : -1;
    if (!train_is_first(s)) return catch_up(r) && !cli_failed(s->ctx);
    if (!cli_join(path, v->out, "train.json") || !cli_json_write(s->command, v, s->given, path) ||
        !cli_metrics_open(&r->metrics, v->out, p.step > 0 ? p.step : CLI_METRICS_NEW, 0, NULL) || !open_ranks(r))
        return false;
    if (!v->is_quiet) {
        cli_live_say(&r->live, "%s", train_model_text(s, &r->live, text, sizeof text));
        cli_live_say(&r->live, "%s", train_data_text(s, &r->live, text, sizeof text));
        if (s->remark[0]) cli_live_say(&r->live, "%s", s->remark);
        if (s->comm) cli_live_say(&r->live, "%s", kr_comm_text(s->comm));
        if (p.step > 0) cli_live_say(&r->live, "resuming at step %" PRId64, p.step);
    }
    return catch_up(r) && !cli_failed(s->ctx);
}

/* ---- the end ---- */

static void say_end(const running *r)
{
    const train_values *v = r->s->values;
    const kr_train_progress p = kr_trainer_progress(r->trainer);
    char word[CLI_PATH_BYTES];
    cli_shell_word(v->out, word, sizeof word);
    if (v->is_quiet) return;
    if (r->is_stopped) {
        printf("done. Resume with: krait train --resume %s\n", word);
        return;
    }
    printf("%s: step %" PRId64 ", loss %.4g", v->out, p.step, p.loss);
    if (p.eval_step) printf(", eval %.4g", p.eval_loss);
    if (p.eval_step && p.best_step != p.eval_step) printf(" (best %.4g at step %" PRId64 ")", p.best_loss, p.best_step);
    printf(", %s\n", cli_span_text(cli_seconds() - r->began).text);
    if (r->errors[0]) printf("%s\n", r->errors);
    printf("report: %s/report.html\n", v->out);
    if (r->s->tok) printf("next: krait generate %s -p \"...\"\n", word);
    else printf("next: krait info %s\n", word);
}

/* Reports the error, and the checkpoint to resume from. */
static void say_failure(const running *r)
{
    const train_setup *s = r->s;
    char word[CLI_PATH_BYTES], remedy[CLI_PATH_BYTES + 100] = "nothing was saved yet";
    cli_shell_word(s->values->out, word, sizeof word);
    if (r->saved_step > 0)
        snprintf(remedy, sizeof remedy, "step %" PRId64 " is saved: continue with krait train --resume %s",
                 r->saved_step, word);
    if (kr_ctx_failed(s->ctx)) cli_complain(remedy, "%s", kr_ctx_message(s->ctx));
    else fprintf(stderr, "       %s\n", remedy);
}

/* 75 if another rank is lost, so that the launcher looks for the cause elsewhere (EX_TEMPFAIL of sysexits.h). */
static int status_of_failure(const running *r)
{
    enum { LOST_RANK = 75 };
    const bool is_lost =
        r->s->comm && kr_ctx_status(r->s->ctx) == KR_ERR_IO && strstr(kr_ctx_message(r->s->ctx), "comm.");
    return is_lost ? LOST_RANK : CLI_FAILED;
}

static int train(running *r)
{
    const train_setup *s = r->s;
    if (!begin(r)) return CLI_FAILED;
    if (kr_trainer_progress(r->trainer).is_done) {
        if (!s->values->is_quiet) cli_live_say(&r->live, "all steps are done; continue with --steps N");
        if (!train_is_first(s)) return CLI_OK;
        return cli_metrics_close(&r->metrics) && cli_write_report(s->values->out) ? CLI_OK : CLI_FAILED;
    }
    cli_watch_stops();
    const bool is_run = kr_trainer_run(r->trainer) == KR_OK;
    cli_live_close(&r->live);
    const bool is_closed = cli_metrics_close(&r->metrics);
    if (is_run && !kr_trainer_progress(r->trainer).is_done) r->is_stopped = true; /* maybe by another rank */
    if (!is_run || r->has_failed || !is_closed) {
        if (r->is_stopped && !s->values->is_quiet) putchar('\n');
        fflush(stdout);
        say_failure(r);
        return status_of_failure(r);
    }
    if (!train_is_first(s)) return CLI_OK;
    const bool is_reported = cli_write_report(s->values->out);
    if (!r->is_stopped && !s->values->is_quiet && !train_errors_text(s, r->errors, sizeof r->errors)) return CLI_FAILED;
    say_end(r);
    if (!s->values->is_quiet) cli_print_fallback(s->ctx);
    return is_reported ? CLI_OK : CLI_FAILED;
}

/* ---- the whole ---- */

static bool describe(const kr_trainer *trainer)
{
    const kr_optimizer *optimizer = kr_trainer_optimizer(trainer);
    const size_t length = kr_optimizer_describe(optimizer, NULL, 0);
    char *text = malloc(length + 1);
    if (!text) return false;
    kr_optimizer_describe(optimizer, text, length + 1);
    fputs(text, stdout);
    free(text);
    return true;
}

int train_run(train_setup *s)
{
    const train_values *v = s->values;
    companions files = { .count = 0 };
    running r = { .s = s, .began = cli_seconds(), .saved_step = -1 };
    run_options all;
    train_fill(s, &all);
    kr_train_options *o = &all.run;
    if (!v->describes) {
        if (!name_companions(s, &files)) return CLI_FAILED;
        o->folder = v->out;
        o->n_extra_files = files.count;
        o->extra_files = files.list;
        o->on_step = on_step;
        o->user = &r;
    }
    r.trainer = kr_trainer_create(s->ctx, s->model, s->loader, o);
    int status = CLI_FAILED;
    if (!cli_failed(s->ctx)) {
        cli_live_open(&r.live, s->info.n_ids ? "tok" : "pos", v->log_seconds, v->is_quiet);
        if (v->describes) status = describe(r.trainer) ? CLI_OK : CLI_FAILED;
        else if (!train_is_first(s) || ((!v->force || train_clear(v->out)) && keep_companions(s, &files)))
            status = train(&r);
    }
    cli_metrics_close(&r.metrics);
    if (r.ranks) fclose(r.ranks);
    kr_trainer_destroy(r.trainer);
    return status;
}
