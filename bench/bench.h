/* bench.h - the environment of a case, and the list of cases.
 *
 * A case builds its operands, enters contenders (ours for each instruction set, a peer, the machine's limit), measures
 * them together and reports. Operands live until the case ends.
 */
#ifndef KR_BENCH_BENCH_H
#define KR_BENCH_BENCH_H

#include "bench/bench_measure.h"
#include "bench/bench_report.h"

#include "base/pool.h"
#include "kernels/kernels.h"

enum { BENCH_SETS = 4, BENCH_BLOCKS = 256, BENCH_CONTENDERS = 12 };

typedef struct bench_env {
    kr_memory memory;
    int threads;
    kr_pool *pool;   /* of `threads` threads */
    double seconds;  /* for one contender of one case */
    double patience; /* seconds left to wait for a quiet machine, and to repeat disturbed measurements */
    int nsets;
    kr_kernels sets[BENCH_SETS]; /* ours to measure, each merged over the reference; the best last */
    uint64_t features;
    const char *device; /* for cases of a device; NULL: they are not run */
    bench_report *report;
    int nblocks;
    void *blocks[BENCH_BLOCKS];
} bench_env;

typedef struct bench_case bench_case;
struct bench_case {
    const char *name; /* "gemm/512x256x1164"; NULL ends a list */
    const char *what; /* for --list */
    void (*run)(bench_env *env, const bench_case *self);
    int64_t size[4];
    int variant;
};

extern const bench_case bench_machine_cases[];
extern const bench_case bench_gemm_cases[];
extern const bench_case bench_gemv_cases[];
extern const bench_case bench_math_cases[];
extern const bench_case bench_norm_cases[];
extern const bench_case bench_conv_cases[];
extern const bench_case bench_reduce_cases[];
extern const bench_case bench_ssd_cases[];
extern const bench_case bench_scan_cases[];
extern const bench_case bench_paths_cases[];
extern const bench_case bench_block_cases[];
extern const bench_case bench_step_cases[];
extern const bench_case bench_model_cases[];
extern const bench_case bench_loss_cases[];
extern const bench_case bench_train_cases[];

/* Of a device (--device). */
extern const bench_case bench_gpu_bandwidth_cases[];
extern const bench_case bench_gpu_gemm_cases[];
extern const bench_case bench_gpu_ssd_cases[];
extern const bench_case bench_gpu_block_cases[];
extern const bench_case bench_gpu_train_cases[];
extern const bench_case bench_gpu_model_cases[];

/* Memory of the running case, 64-byte aligned; ends the program if out of memory. */
void *bench_bytes(bench_env *env, size_t bytes);

/* n floats, uniform in [low, high). */
float *bench_floats(bench_env *env, int64_t n, double low, double high);

/* The pool for kernels with 1 or env->threads threads. */
kr_pool *bench_pool(const bench_env *env, int threads);

/* Calls body(env, self, threads) for 1 and, if greater, for env->threads. */
void bench_each_width(bench_env *env, const bench_case *self,
                      void (*body)(bench_env *env, const bench_case *self, int threads));

/* Appends a contender to the line of *n. */
contender *bench_enter(contender *line, int *n, void (*call)(void *), void *arg, double work, const char *name);

/* "krait/avx512" for one of our sets. */
const char *bench_name(char text[24], const char *who, const char *set);

/* Adds b to the contenders that a is compared with. */
void bench_compare(contender *a, const contender *b);

/* Measures and reports. */
void bench_run(bench_env *env, const bench_case *self, int threads, const char *unit, contender *line, int n);

/* Ends the program with "krait-bench: TEXT" and status 1. */
void bench_fail(const char *format, ...) KR_PRINTF(1, 2);

#endif
