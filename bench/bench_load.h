/* bench_load.h - what other processes, and other guests of the same host, take of the CPUs meanwhile. */
#ifndef KR_BENCH_BENCH_LOAD_H
#define KR_BENCH_BENCH_LOAD_H

/* CPU seconds so far: of all normal processes, of those with low priority, of this one; and the wall's seconds. */
typedef struct load_event {
    double normal, low, own, wall;
} load_event;

load_event load_begin(void);

/* How many CPUs others kept busy since then. */
double load_foreign(const load_event *then);

/* Sleeps until others of normal priority leave the CPUs alone for a moment, or until `seconds` have gone by. Returns
 * the seconds it slept. */
double load_wait_quiet(double seconds);

#endif
