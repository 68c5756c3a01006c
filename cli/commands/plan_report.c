/* plan_report.c - what krait plan prints: model, cluster and step; a line for each choice; the simulation; a command. */
#include "cli/commands/cmd_plan.h"

#include "cli/commands/cmd_report.h"
#include "cli/common/cli_files.h"
#include "cli/common/commands.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const char *const shard_names[] = { "none", "optimizer", "gradients" };

/* "12.3 ms", "4.56 s", of three digits or more. */
static cli_short seconds_text(double seconds)
{
    cli_short s;
    if (seconds < 0.9995) snprintf(s.text, sizeof s.text, "%.*f ms", seconds < 0.01 ? 2 : 1, 1e3 * seconds);
    else snprintf(s.text, sizeof s.text, "%.*f s", seconds < 10 ? 2 : 1, seconds);
    return s;
}

static double giga(double x)
{
    return x * 1e-9;
}

/* ---- model, cluster, step ---- */

static void print_model(cli_report *r, const plan_job *job)
{
    const kr_plan *p = &job->choices[job->best].plan;
    const kr_model_config *c = job->config;
    if (!r->is_json) {
        cli_report_text(r, "model", "%s, %lld layers, d_model %lld, %s parameters (%lld)", kr_family_name(c->family),
                        (long long)c->layers->n_layers, (long long)kr_model_config_d_model(c),
                        cli_count_text((double)p->parameters).text, (long long)p->parameters);
        cli_report_text(r, "work", "%.3g GFLOP a token, %.4g TFLOP a step and GPU, %.4g TFLOP/s", giga(p->token_flops),
                        p->flops * 1e-12, job->options.flops * 1e-12);
        return;
    }
    cli_report_text(r, "family", "%s", kr_family_name(c->family));
    cli_report_count(r, "parameters", p->parameters);
    cli_report_number(r, "token_flops", p->token_flops, "%g", p->token_flops);
    cli_report_number(r, "rate", job->options.flops, "%g", job->options.flops);
}

static void print_measured(cli_report *r, const plan_measured *m)
{
    if (!r->is_json) {
        cli_report_text(r, "measured", "on %s: steps of %s, %s and %s; %s at most", m->machine,
                        seconds_text(m->seconds[0]).text, seconds_text(m->seconds[1]).text,
                        seconds_text(m->seconds[2]).text, cli_bytes_text(m->memory).text);
        return;
    }
    cli_report_open(r, "measured", false);
    cli_report_text(r, "machine", "%s", m->machine);
    cli_report_open(r, "seconds", true);
    for (int i = 0; i < 3; i++) cli_report_number(r, NULL, m->seconds[i], "%g", m->seconds[i]);
    cli_report_close(r);
    cli_report_number(r, "memory", m->memory, "%g", m->memory);
    cli_report_close(r);
}

static void print_cluster(cli_report *r, const plan_job *job)
{
    const plan_values *v = job->values;
    const kr_plan_options *o = &job->options;
    const long long hosts = (long long)(o->ranks > o->ranks_per_host ? o->ranks / o->ranks_per_host : 1);
    if (r->is_json) {
        cli_report_count(r, "gpus", o->ranks);
        cli_report_count(r, "hosts", hosts);
        cli_report_number(r, "nic_bytes", o->nic_bytes, "%g", o->nic_bytes);
        cli_report_number(r, "link_bytes", o->link_bytes, "%g", o->link_bytes);
    } else if (hosts == 1) {
        cli_report_text(r, "cluster", "%lld GPU%s on one host, %.4g GB/s each way", (long long)o->ranks,
                        o->ranks == 1 ? "" : "s", giga(o->link_bytes));
    } else {
        cli_report_text(
            r, "cluster", "%lld hosts, %lld GPUs each; %.4g GB/s between GPUs, %lld x %s = %.4g GB/s between hosts",
            hosts, (long long)o->ranks_per_host, giga(o->link_bytes), (long long)v->nics, v->nic, giga(o->nic_bytes));
    }
}

/* The numbers of ranks that give the bits of one, the largest first. */
static void print_exact(cli_report *r, const plan_job *job)
{
    enum { MOST = 64 };
    const int64_t m = job->choices[job->best].plan.micro_batches;
    int64_t ranks[MOST];
    int count = 0;
    for (int64_t at = m; count < MOST - 1 && kr_plan_is_exact(m, at); at /= 2) ranks[count++] = at;
    if (!count || ranks[count - 1] != 1) ranks[count++] = 1;
    if (r->is_json) {
        cli_report_truth(r, "is_exact", job->choices[job->best].plan.is_exact, "yes");
        cli_report_counts(r, "exact_ranks", count, ranks);
        return;
    }
    char text[400] = "";
    for (int i = 0; i < count; i++)
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s%lld", i ? ", " : "", (long long)ranks[i]);
    cli_report_text(r, "same bits as 1 GPU", "%s; with %lld micro-batches on %s",
                    job->values->reduce                     ? "no, sums are fast"
                    : job->values->reduce_dtype             ? "no, sums are rounded to bf16"
                    : job->choices[job->best].plan.is_exact ? "yes"
                                                            : "no",
                    (long long)m, text);
}

static void print_step(cli_report *r, const plan_job *job)
{
    const kr_plan *p = &job->choices[job->best].plan;
    const kr_plan_options *o = &job->options;
    const double tokens = (double)p->micro_batches * (double)o->tokens;
    if (r->is_json) {
        cli_report_count(r, "micro_batches", p->micro_batches);
        cli_report_number(r, "tokens", tokens, "%.0f", tokens);
        cli_report_count(r, "buckets", p->buckets);
        cli_report_number(r, "sum_bytes", p->sum_bytes, "%g", p->sum_bytes);
        cli_report_number(r, "nic_traffic", p->nic_traffic, "%g", p->nic_traffic);
        cli_report_number(r, "link_traffic", p->link_traffic, "%g", p->link_traffic);
    } else {
        cli_report_text(r, "micro_batches", "%lld of %lld tokens, %lld for each GPU: %.0f tokens",
                        (long long)p->micro_batches, (long long)o->tokens, (long long)(p->micro_batches / o->ranks),
                        tokens);
        if (o->ranks > 1)
            cli_report_text(r, "traffic",
                            "%s of gradients in %lld bucket%s; a host sends %s, a GPU %s to others in its host",
                            cli_bytes_text(p->sum_bytes).text, (long long)p->buckets, p->buckets == 1 ? "" : "s",
                            cli_bytes_text(p->nic_traffic).text, cli_bytes_text(p->link_traffic).text);
    }
    print_exact(r, job);
}

/* ---- choices ---- */

static void print_choice_json(cli_report *r, const plan_choice *c, const plan_job *job)
{
    const struct {
        const char *key;
        double value;
    } numbers[] = {
        { "weights", c->plan.weight_bytes },
        { "gradients", c->plan.gradient_bytes },
        { "optimizer", c->plan.optimizer_bytes },
        { "activations", c->plan.activation_bytes },
        { "buffers", c->plan.buffer_bytes },
        { "memory", c->plan.memory_bytes },
        { "flops", c->plan.flops },
        { "compute", c->plan.compute },
        { "sums", c->plan.sums },
        { "window", c->plan.window },
        { "last", c->plan.last },
        { "exposed", c->plan.exposed },
        { "step", c->plan.step },
        { "efficiency", c->plan.efficiency },
        { "tokens_per_second", c->plan.tokens_per_second },
    };
    cli_report_open(r, NULL, false);
    cli_report_text(r, "shard", "%s", shard_names[c->shards]);
    cli_report_count(r, "recompute", c->recompute);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        cli_report_number(r, numbers[i].key, numbers[i].value, "%g", numbers[i].value);
    if (job->memory > 0) cli_report_truth(r, "fits", c->fits, "yes");
    cli_report_close(r);
}

static void print_choices(cli_report *r, const plan_job *job)
{
    if (r->is_json) {
        cli_report_open(r, "plans", true);
        for (int i = 0; i < job->count; i++) print_choice_json(r, &job->choices[i], job);
        cli_report_close(r);
        return;
    }
    const bool is_small = job->choices[0].plan.memory_bytes < 0x1p30;
    const double gib = is_small ? 0x1p-20 : 0x1p-30; /* or MiB */
    printf("\n  %-10s %9s %9s %9s %9s %11s %9s  %9s %9s %9s %6s %10s\n", "shard", "recompute", "weights", "gradients",
           "optimizer", "activations", is_small ? "MiB a GPU" : "GiB a GPU", "sums", "exposed", "step", "effic.",
           "tokens/s");
    for (int i = 0; i < job->count; i++) {
        const plan_choice *c = &job->choices[i];
        const kr_plan *p = &c->plan;
        printf("%c %-10s %9lld %9.2f %9.2f %9.2f %11.2f %9.2f%c %9s %9s %9s %4.0f %% %10s\n",
               i == job->best ? '*' : ' ', shard_names[c->shards], (long long)c->recompute, p->weight_bytes * gib,
               p->gradient_bytes * gib, p->optimizer_bytes * gib, p->activation_bytes * gib, p->memory_bytes * gib,
               job->memory > 0 && !c->fits ? '!' : ' ', seconds_text(p->sums).text, seconds_text(p->exposed).text,
               seconds_text(p->step).text, 100 * p->efficiency, cli_count_text(p->tokens_per_second).text);
    }
    printf("\n* recommended%s\n", job->memory > 0 ? "; ! does not fit in the memory of a GPU" : "");
    if (job->memory > 0 && !job->choices[job->best].fits)
        printf("Nothing fits in %s: use fewer --tokens, or GPUs with more memory.\n", cli_bytes_text(job->memory).text);
}

/* ---- simulation ---- */

static void print_simulation(cli_report *r, const plan_job *job)
{
    const kr_plan_simulation *s = job->simulation;
    const double formula = job->choices[job->best].plan.step, part = s->step / formula - 1;
    cli_report_open(r, "simulation", false);
    if (r->is_json) cli_report_text(r, "shard", "%s", shard_names[job->options.shards]);
    cli_report_number(r, "step", s->step, "%s, %+.1f %% to the formula's %s", seconds_text(s->step).text, 100 * part,
                      seconds_text(formula).text);
    cli_report_number(r, "exposed", s->exposed, "%s", seconds_text(s->exposed).text);
    cli_report_number(r, "efficiency", s->efficiency, "%.1f %%", 100 * s->efficiency);
    cli_report_number(r, "communication", s->communication, "%s, waiting for other ranks included",
                      seconds_text(s->communication).text);
    cli_report_number(r, "wait", s->wait, "%s for other ranks", seconds_text(s->wait).text);
    if (r->is_json) {
        cli_report_number(r, "formula", formula, "%g", formula);
        cli_report_count(r, "slowest_rank", s->slowest_rank);
        cli_report_number(r, "slowest", s->slowest, "%g", s->slowest);
        cli_report_number(r, "compute", s->compute, "%g", s->compute);
    } else if (s->slowest > 1.0001 * s->compute) {
        cli_report_text(r, "slowest", "rank %lld computes %s, the mean is %s", (long long)s->slowest_rank,
                        seconds_text(s->slowest).text, seconds_text(s->compute).text);
    }
    cli_report_close(r);
}

/* ---- the command ---- */

typedef struct line {
    char text[2048];
} line;

static void add(line *l, const char *format, ...) KR_PRINTF(2, 3);
static void add(line *l, const char *format, ...)
{
    const size_t used = strlen(l->text);
    va_list args;
    va_start(args, format);
    vsnprintf(l->text + used, sizeof l->text - used, format, args);
    va_end(args);
}

/* A word of a choice: the index-th of "a|b|c". */
static void add_word(line *l, const char *words, int index)
{
    while (index-- > 0 && strchr(words, '|')) words = strchr(words, '|') + 1;
    add(l, " %.*s", (int)strcspn(words, "|"), words);
}

/* --name value, if the option has one. */
static void add_option(line *l, const cli_option *option, const plan_values *v)
{
    char word[CLI_PATH_BYTES];
    const void *field = (const char *)v + option->offset;
    switch (cli_kind_of(option)) {
    case CLI_FLAG:
        if (*(const bool *)field) add(l, " --%s", option->name);
        break;
    case CLI_I64:
        if (*(const int64_t *)field) add(l, " --%s %lld", option->name, (long long)*(const int64_t *)field);
        break;
    case CLI_REAL:
        if (!isnan(*(const double *)field)) add(l, " --%s %.17g", option->name, *(const double *)field);
        break;
    case CLI_CHOICE:
        if (*(const int *)field < 0) break;
        add(l, " --%s", option->name);
        add_word(l, option->arg, *(const int *)field);
        break;
    case CLI_TEXT:
        if (*(const char *const *)field)
            add(l, " --%s %s", option->name, cli_shell_word(*(const char *const *)field, word, sizeof word));
        break;
    default: break;
    }
}

static void add_model(line *l, const plan_values *v)
{
    char word[CLI_PATH_BYTES];
    if (v->model.config) {
        const bool is_folder = cli_is_folder(v->model.config);
        add(l, " --model-config %s%s", cli_shell_word(v->model.config, word, sizeof word),
            is_folder ? "/config.json" : "");
    }
    for (const cli_option *option = cli_plan.options; option->name; option++)
        if (cli_has_mark(option, CLI_FIXED)) add_option(l, option, v);
}

static line command_of(const plan_job *job)
{
    line l = { "" };
    const plan_values *v = job->values;
    const kr_plan_options *o = &job->options;
    const plan_choice *best = &job->choices[job->best];
    if (o->ranks > o->ranks_per_host)
        add(&l, "mpirun -n %lld --map-by ppr:%lld:node --bind-to none krait", (long long)o->ranks,
            (long long)o->ranks_per_host);
    else if (o->ranks > 1) add(&l, "krait launch -n %lld --", (long long)o->ranks);
    else add(&l, "krait");
    add(&l, " train --data FILE --out DIR");
    add_model(&l, v);
    add(&l, " --batch %lld --length %lld --micro-batches %lld", (long long)(o->tokens / o->length),
        (long long)o->length, (long long)best->plan.micro_batches);
    if (o->exchange == KR_PLAN_EXCHANGE_RINGS) add(&l, " --reduce fast");
    if (v->device == PLAN_H200) add(&l, " --device cuda --precision bf16");
    else if (v->machine.device) add(&l, " --device %s", v->machine.device);
    if (best->recompute) {
        const double mib = (best->plan.activation_bytes + best->plan.buffer_bytes) / 0x1p20;
        add(&l, " --memory-budget %.0fMiB", ceil(mib));
    }
    return l;
}

void plan_print(const plan_job *job)
{
    cli_report r;
    cli_report_begin(&r, job->values->is_json);
    print_model(&r, job);
    if (job->measured) print_measured(&r, job->measured);
    print_cluster(&r, job);
    print_step(&r, job);
    if (job->memory > 0) cli_report_number(&r, "memory", job->memory, "%s a GPU", cli_bytes_text(job->memory).text);
    print_choices(&r, job);
    if (job->simulation) print_simulation(&r, job);
    const line command = command_of(job);
    if (r.is_json) {
        cli_report_text(&r, "recommended", "%s", shard_names[job->choices[job->best].shards]);
        cli_report_string(&r, "command", command.text);
    } else {
        printf("\n%s\n", command.text);
    }
    cli_report_end(&r);
}
