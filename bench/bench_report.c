/* bench_report.c - aligned lines as the cases finish; JSON of all of them at the end. */
#include "bench/bench_report.h"

#include "base/cpu.h"
#include "bench/bench_load.h"

#include <krait/base.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct ratio {
    char of[24];
    double value, best; /* by rounds, and of the two best samples */
} ratio;

typedef struct row {
    char case_name[48], who[24], unit[16];
    int threads, samples, rounds, nratios;
    rates rate;
    double call_ns, foreign_cpus, tokens, published_ns, extra_bytes;
    char note[32];
    bool compares_time;
    ratio ratios[MEASURE_VERSUS];
} row;

struct bench_report {
    bench_machine machine;
    double seconds;
    load_event begin;
    int nrows, capacity;
    row *rows;
    char last_case[48];
};

static void print_head(const bench_report *report)
{
    const bench_machine *m = &report->machine;
    printf("krait %s on %s: %d CPUs, features", kr_version(), m->model, m->cpus);
    for (int bit = 0; bit < 64; bit++)
        if (m->features >> bit & 1) printf(" %s", kr_cpu_feature_name((uint64_t)1 << bit));
    printf("; L1 %ld KiB, L2 %ld KiB, L3 %ld KiB\n", m->l1_bytes >> 10, m->l2_bytes >> 10, m->l3_bytes >> 10);
    if (strcmp(m->device, "cpu") != 0) printf("device %s\n", m->device);
    printf("%-36s %3s %-14s %9s %9s %17s  %-8s %12s %5s  %s\n", "case", "thr", "who", "median", "best", "p10..p90",
           "unit", "us/call", "load", "ratio");
    fflush(stdout);
}

bench_report *report_begin(const bench_machine *machine, double seconds)
{
    bench_report *report = calloc(1, sizeof *report);
    if (!report) return NULL;
    report->machine = *machine;
    report->seconds = seconds;
    report->begin = load_begin();
    print_head(report);
    return report;
}

static void print_row(const bench_report *report, const row *r)
{
    const bool repeated = strcmp(report->last_case, r->case_name) == 0;
    printf("%-36s %3d %-14s %9.3f %9.3f %8.3f..%7.3f  %-8s %12.2f %5.2f  ", repeated ? "" : r->case_name, r->threads,
           r->who, r->rate.median, r->rate.best, r->rate.p10, r->rate.p90, r->unit, r->call_ns / 1e3, r->foreign_cpus);
    for (int i = 0; i < r->nratios; i++) {
        const ratio *q = &r->ratios[i];
        if (r->compares_time) printf("%s%.2f times as long as %s", i ? ", " : "", 1 / q->value, q->of);
        else printf("%s%.2f of %s", i ? ", " : "", q->value, q->of);
    }
    if (r->tokens > 0) printf(", %.1f tokens/s", 1e9 * r->tokens / r->call_ns);
    if (r->extra_bytes > 0) printf(", +%.0f MiB", r->extra_bytes / (1 << 20));
    if (r->note[0]) printf(", by %s", r->note);
    if (r->published_ns > 0) printf(" (published: %.2f us)", r->published_ns / 1e3);
    putchar('\n');
    fflush(stdout);
}

static row *new_row(bench_report *report)
{
    if (report->nrows == report->capacity) {
        const int capacity = report->capacity ? 2 * report->capacity : 64;
        row *rows = realloc(report->rows, (size_t)capacity * sizeof *rows);
        if (!rows) return NULL;
        report->rows = rows;
        report->capacity = capacity;
    }
    row *r = &report->rows[report->nrows++];
    memset(r, 0, sizeof *r);
    return r;
}

void report_add(bench_report *report, const char *case_name, int threads, const char *unit, const contender *line,
                int n, double foreign)
{
    for (int i = 0; i < n; i++) {
        const contender *c = &line[i];
        row *r = new_row(report);
        if (!r) return;
        snprintf(r->case_name, sizeof r->case_name, "%s", case_name);
        snprintf(r->who, sizeof r->who, "%s", c->name);
        snprintf(r->unit, sizeof r->unit, "%s", unit);
        r->threads = threads;
        r->rate = measured_rates(c);
        r->samples = c->nsamples;
        r->rounds = c->nrounds;
        r->call_ns = c->call_ns;
        r->foreign_cpus = foreign;
        r->tokens = c->tokens;
        r->published_ns = c->published_ns;
        r->extra_bytes = c->extra_bytes;
        snprintf(r->note, sizeof r->note, "%s", c->note ? c->note : "");
        r->compares_time = c->compares_time;
        for (int v = 0; v < MEASURE_VERSUS && c->versus[v]; v++) {
            ratio *q = &r->ratios[r->nratios++];
            snprintf(q->of, sizeof q->of, "%s", c->versus[v]->name);
            q->value = measured_ratio(c, c->versus[v]);
            q->best = r->rate.best / measured_rates(c->versus[v]).best;
        }
        if (c->hidden) continue;
        print_row(report, r);
        snprintf(report->last_case, sizeof report->last_case, "%s", case_name);
    }
}

/* A JSON string; our names are plain, a processor's model might not be. */
static void json_text(FILE *out, const char *text)
{
    fputc('"', out);
    for (; *text; text++) {
        const unsigned char c = (unsigned char)*text;
        if (c == '"' || c == '\\') fprintf(out, "\\%c", c);
        else if (c < 0x20 || c > 0x7e) fprintf(out, "\\u%04x", c);
        else fputc(c, out);
    }
    fputc('"', out);
}

static void json_machine(FILE *out, const bench_report *report, double foreign)
{
    const bench_machine *m = &report->machine;
    fputs("  \"machine\": {\"model\": ", out);
    json_text(out, m->model);
    fputs(", \"device\": ", out);
    json_text(out, m->device);
    fprintf(out, ", \"cpus\": %d, \"threads\": %d, \"l1_bytes\": %ld, \"l2_bytes\": %ld, \"l3_bytes\": %ld, ", m->cpus,
            m->threads, m->l1_bytes, m->l2_bytes, m->l3_bytes);
    fprintf(out, "\"foreign_cpus\": %.3f, \"features\": [", foreign);
    const char *comma = "";
    for (int bit = 0; bit < 64; bit++) {
        if (!(m->features >> bit & 1)) continue;
        fputs(comma, out);
        json_text(out, kr_cpu_feature_name((uint64_t)1 << bit));
        comma = ", ";
    }
    fputs("]},\n", out);
}

static void json_row(FILE *out, const row *r, bool last)
{
    fputs("    {\"case\": ", out);
    json_text(out, r->case_name);
    fprintf(out, ", \"threads\": %d, \"who\": ", r->threads);
    json_text(out, r->who);
    fputs(", \"unit\": ", out);
    json_text(out, r->unit);
    fprintf(out, ", \"median\": %.6g, \"best\": %.6g, \"p10\": %.6g, \"p90\": %.6g, ", r->rate.median, r->rate.best,
            r->rate.p10, r->rate.p90);
    fprintf(out, "\"rounds\": %d, \"samples\": %d, \"call_ns\": %.6g, \"foreign_cpus\": %.3f, ", r->rounds, r->samples,
            r->call_ns, r->foreign_cpus);
    if (r->tokens > 0) fprintf(out, "\"tokens_per_s\": %.6g, ", 1e9 * r->tokens / r->call_ns);
    if (r->published_ns > 0) fprintf(out, "\"published_ns\": %.6g, ", r->published_ns);
    if (r->extra_bytes > 0) fprintf(out, "\"extra_bytes\": %.0f, ", r->extra_bytes);
    if (r->note[0]) {
        fputs("\"by\": ", out);
        json_text(out, r->note);
        fputs(", ", out);
    }
    fputs("\"ratios\": {", out);
    for (int i = 0; i < r->nratios; i++) {
        if (i) fputs(", ", out);
        json_text(out, r->ratios[i].of);
        fprintf(out, ": {\"median\": %.4f, \"best\": %.4f}", r->ratios[i].value, r->ratios[i].best);
    }
    fprintf(out, "}}%s\n", last ? "" : ",");
}

static bool write_json(const bench_report *report, const char *path, double foreign)
{
    FILE *out = fopen(path, "w");
    if (!out) return false;
    fprintf(out, "{\n  \"krait\": \"%s\",\n  \"seconds\": %g,\n", kr_version(), report->seconds);
    json_machine(out, report, foreign);
    fputs("  \"rows\": [\n", out);
    for (int i = 0; i < report->nrows; i++) json_row(out, &report->rows[i], i + 1 == report->nrows);
    fputs("  ]\n}\n", out);
    const bool ok = !ferror(out);
    return fclose(out) == 0 && ok;
}

bool report_end(bench_report *report, const char *path)
{
    const double foreign = load_foreign(&report->begin);
    printf("%.0f s; other processes kept %.2f CPUs busy during the run\n", clock_ns() / 1e9 - report->begin.wall,
           foreign);
    const bool ok = !path || write_json(report, path, foreign);
    free(report->rows);
    free(report);
    return ok;
}
