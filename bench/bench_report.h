/* bench_report.h - the table on stdout, one line per contender, and the same in JSON. */
#ifndef KR_BENCH_BENCH_REPORT_H
#define KR_BENCH_BENCH_REPORT_H

#include "bench/bench_measure.h"

#include <stdint.h>

typedef struct bench_report bench_report;

/* The machine of the figures. */
typedef struct bench_machine {
    char model[96];
    char device[128];  /* "cpu", or the text of kr_ctx_device */
    uint64_t features; /* KR_CPU_ bits */
    int cpus, threads;
    long l1_bytes, l2_bytes, l3_bytes; /* 0: unknown */
} bench_machine;

/* NULL if out of memory. */
bench_report *report_begin(const bench_machine *machine, double seconds);

/* One line for each contender, printed immediately. foreign: CPUs kept busy by others during the case. */
void report_add(bench_report *report, const char *case_name, int threads, const char *unit, const contender *line,
                int n, double foreign);

/* Writes the JSON to `path` (NULL: none) and frees the report; false if it cannot be written. */
bool report_end(bench_report *report, const char *path);

#endif
