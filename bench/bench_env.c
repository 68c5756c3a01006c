/* bench_env.c - shared by all cases: operands, pools, contenders, error messages. */
#include "bench/bench.h"
#include "bench/bench_load.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const double DISTURBED = 0.25; /* CPUs kept busy by others */

void bench_fail(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fflush(stdout);
    fputs("krait-bench: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    exit(1);
}

void *bench_bytes(bench_env *env, size_t bytes)
{
    void *p = NULL;
    if (env->nblocks < BENCH_BLOCKS) p = aligned_alloc(64, (bytes / 64 + 1) * 64);
    if (!p) bench_fail("no memory for %zu bytes of operands", bytes);
    env->blocks[env->nblocks++] = p;
    return p;
}

float *bench_floats(bench_env *env, int64_t n, double low, double high)
{
    static uint64_t state = 1; /* a linear congruential generator is random enough for operands, and fast */
    float *x = bench_bytes(env, (size_t)n * sizeof *x);
    for (int64_t i = 0; i < n; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        x[i] = (float)(low + (high - low) * (double)(state >> 40) / (double)(1 << 24));
    }
    return x;
}

kr_pool *bench_pool(const bench_env *env, int threads)
{
    return threads > 1 ? env->pool : NULL;
}

void bench_each_width(bench_env *env, const bench_case *self,
                      void (*body)(bench_env *env, const bench_case *self, int threads))
{
    body(env, self, 1);
    if (env->threads > 1) body(env, self, env->threads);
}

contender *bench_enter(contender *line, int *n, void (*call)(void *), void *arg, double work, const char *name)
{
    if (*n >= BENCH_CONTENDERS) bench_fail("more than %d contenders", BENCH_CONTENDERS);
    contender *c = &line[(*n)++];
    memset(c, 0, sizeof *c);
    snprintf(c->name, sizeof c->name, "%s", name);
    c->call = call;
    c->arg = arg;
    c->work = work;
    return c;
}

const char *bench_name(char text[24], const char *who, const char *set)
{
    snprintf(text, 24, "%s/%s", who, set);
    return text;
}

void bench_compare(contender *a, const contender *b)
{
    for (int i = 0; i < MEASURE_VERSUS; i++) {
        if (a->versus[i]) continue;
        a->versus[i] = b;
        return;
    }
    bench_fail("%s is compared with more than %d others", a->name, MEASURE_VERSUS);
}

void bench_run(bench_env *env, const bench_case *self, int threads, const char *unit, contender *line, int n)
{
    static contender best[BENCH_CONTENDERS];
    double least = INFINITY;
    for (;;) {
        env->patience -= load_wait_quiet(env->patience);
        const load_event begin = load_begin();
        measure(line, n, env->seconds);
        const double foreign = load_foreign(&begin);
        if (foreign < least) {
            least = foreign;
            memcpy(best, line, (size_t)n * sizeof *line);
        }
        if (least < DISTURBED || env->patience <= 0) break;
        env->patience -= clock_ns() / 1e9 - begin.wall;
    }
    memcpy(line, best, (size_t)n * sizeof *line);
    report_add(env->report, self->name, threads, unit, line, n, least);
}
