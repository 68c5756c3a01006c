/* bench_load.h - CPU time taken by other processes, and by other guests of the host. */
#ifndef KR_BENCH_BENCH_LOAD_H
#define KR_BENCH_BENCH_LOAD_H

/* CPU seconds until now: of all normal processes, of those with low priority, of this one; and wall time. */
typedef struct load_event {
    double normal, low, own, wall;
} load_event;

load_event load_begin(void);

/* The number of CPUs kept busy by others since then. */
double load_foreign(const load_event *then);

/* Sleeps until other processes of normal priority pause, or until `seconds` have passed. Returns the seconds slept. */
double load_wait_quiet(double seconds);

#endif
