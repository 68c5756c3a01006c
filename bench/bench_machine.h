/* bench_machine.h - the machine's own limits, as contenders: multiply-adds that never leave the registers, and plain reads. */
#ifndef KR_BENCH_BENCH_MACHINE_H
#define KR_BENCH_BENCH_MACHINE_H

#include "bench/bench.h"

/* Fused multiply-adds on so many independent chains as hide their latency. */
typedef struct peak_job {
    void (*loop)(int64_t rounds);
    kr_pool *pool;
    int64_t tasks;
} peak_job;

/* Sums floats and forgets the sum. */
typedef struct read_job {
    float (*sum)(const float *x, int64_t n);
    kr_pool *pool;
    const float *x;
    int64_t n, piece; /* floats in all, and for one task */
    int64_t sets, at; /* x holds `sets` stretches of n floats; each call reads the next one */
    int64_t repeat;   /* above 0: each thread reads a piece of its own so many times */
} read_job;

/* The peak for the set called `isa`; NULL if this bench has no loop for it. */
contender *machine_enter_peak(bench_env *env, contender *line, int *n, peak_job *job, const char *isa, int threads);

/* Reads of n floats at x, `sets` stretches of them in turn. */
contender *machine_enter_read(bench_env *env, contender *line, int *n, read_job *job, const float *x, int64_t floats,
                              int64_t sets, int threads);

/* The model's name, caches and features. */
void machine_describe(bench_machine *machine, uint64_t features, int threads);

/* Bytes of the last-level cache, 32 MiB if the system does not tell. */
int64_t machine_last_cache(void);

#endif
