/* bench_machine.h - the machine's limits as contenders: multiply-adds in registers, and plain reads. */
#ifndef KR_BENCH_BENCH_MACHINE_H
#define KR_BENCH_BENCH_MACHINE_H

#include "bench/bench.h"

/* Fused multiply-adds on enough independent chains to hide their latency. */
typedef struct peak_job {
    void (*loop)(int64_t rounds);
    kr_pool *pool;
    int64_t tasks;
} peak_job;

/* Sums floats and discards the sum. */
typedef struct read_job {
    float (*sum)(const float *x, int64_t n);
    kr_pool *pool;
    const float *x;
    int64_t n, piece; /* floats in all, and for one task */
    int64_t sets, at; /* x holds `sets` segments of n floats; each call reads the next one */
    int64_t repeat;   /* above 0: each thread reads its own piece this many times */
} read_job;

/* The peak of instruction set `isa`; NULL if this program has no loop for it. */
contender *machine_enter_peak(bench_env *env, contender *line, int *n, peak_job *job, const char *isa, int threads);

/* Reads of n floats at x, cycling through `sets` segments. */
contender *machine_enter_read(bench_env *env, contender *line, int *n, read_job *job, const float *x, int64_t floats,
                              int64_t sets, int threads);

/* The model's name, caches and features. */
void machine_describe(bench_machine *machine, uint64_t features, int threads);

/* Bytes of the last-level cache, 32 MiB if unknown. */
int64_t machine_last_cache(void);

#endif
