/* bench_report.h - the table on stdout, one line a contender, and the same in JSON. */
#ifndef KR_BENCH_BENCH_REPORT_H
#define KR_BENCH_BENCH_REPORT_H

#include "bench/bench_measure.h"

#include <stdint.h>

typedef struct bench_report bench_report;

/* What the figures were measured on. */
typedef struct bench_machine {
    char model[96];
    char device[128];  /* "cpu", or as kr_ctx_device has it */
    uint64_t features; /* KR_CPU_ bits */
    int cpus, threads;
    long l1_bytes, l2_bytes, l3_bytes; /* 0: unknown */
} bench_machine;

/* NULL when there is no memory. */
bench_report *report_begin(const bench_machine *machine, double seconds);

/* One line for each contender, printed at once. foreign: how many CPUs others kept busy meanwhile. */
void report_add(bench_report *report, const char *case_name, int threads, const char *unit, const contender *line,
                int n, double foreign);

/* Writes the JSON to `path` (NULL: nowhere) and frees the report; false if it cannot be written. */
bool report_end(bench_report *report, const char *path);

#endif
