/* bench_measure.c - warm-up, rounds, order statistics. */
#define _POSIX_C_SOURCE 200809L
#include "bench/bench_measure.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    SAMPLE_NS = 100 * 1000, /* long compared with the clock's 50 ns, short compared with a scheduler's slice of 3 ms */
    WARM_NS = 5 * 1000 * 1000,   /* calls of at least this duration need no warm-up call */
    LINGER_NS = 12 * 1000 * 1000 /* OpenMP's workers spin this long before they sleep */
};

double clock_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static void pause_ns(long ns)
{
    const struct timespec t = { 0, ns };
    nanosleep(&t, NULL);
}

static double time_calls(const contender *c, long calls)
{
    const double start = clock_ns();
    for (long i = 0; i < calls; i++) c->call(c->arg);
    if (c->wait) c->wait(c->arg);
    const double ns = clock_ns() - start;
    return ns > 1 ? ns : 1;
}

/* The plan of a contender's block. */
typedef struct block {
    long calls; /* in a sample */
    int samples;
    double ns; /* expected for all */
    bool warm;
} block;

static block plan_block(const contender *c)
{
    const double least = c->sample_ns > 0 ? c->sample_ns : SAMPLE_NS;
    double ns = time_calls(c, 1); /* cold: pages, branch predictors, lazily created threads */
    long calls = 1;
    while ((ns = time_calls(c, calls)) < least && calls < 1L << 30) calls *= 2;
    const double call_ns = ns / (double)calls;
    block b = { .calls = (long)(least / call_ns), .warm = call_ns < WARM_NS };
    if (b.calls < 1) b.calls = 1;
    const double sample_ns = call_ns * (double)b.calls;
    b.samples = (int)(MEASURE_BLOCK * least / sample_ns);
    if (b.samples < 1) b.samples = 1;
    if (b.samples > MEASURE_BLOCK) b.samples = MEASURE_BLOCK;
    b.ns = sample_ns * (b.samples + b.warm);
    return b;
}

static int compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The q-quantile of the sorted values, q in [0, 1], interpolated. */
static double quantile(const double *values, int n, double q)
{
    double sorted[MEASURE_ROUNDS * MEASURE_BLOCK];
    if (n < 1) return 0;
    memcpy(sorted, values, (size_t)n * sizeof *sorted);
    qsort(sorted, (size_t)n, sizeof *sorted, compare_doubles);
    const double at = q * (n - 1);
    const int low = (int)at, high = low + 1 < n ? low + 1 : low;
    return sorted[low] + (at - low) * (sorted[high] - sorted[low]);
}

static void run_block(contender *c, const block *b)
{
    if (b->warm) time_calls(c, b->calls);
    double *samples = c->samples + c->nsamples;
    for (int i = 0; i < b->samples; i++) samples[i] = c->work * (double)b->calls / time_calls(c, b->calls);
    c->nsamples += b->samples;
    c->rounds[c->nrounds++] = quantile(samples, b->samples, 0.5);
    if (c->lingers) pause_ns(LINGER_NS);
}

void measure(contender *contenders, int n, double seconds)
{
    enum { MAX_CONTENDERS = 16, LEAST_ROUNDS = 4 };
    block blocks[MAX_CONTENDERS];
    double longest = 1;
    for (int i = 0; i < n; i++) {
        contenders[i].nrounds = contenders[i].nsamples = 0;
        blocks[i] = plan_block(&contenders[i]);
        if (contenders[i].lingers) pause_ns(LINGER_NS);
        if (blocks[i].ns > longest) longest = blocks[i].ns;
    }
    int rounds = (int)(seconds * 1e9 / longest);
    if (rounds < LEAST_ROUNDS) rounds = LEAST_ROUNDS;
    if (rounds > MEASURE_ROUNDS) rounds = MEASURE_ROUNDS;
    for (int round = 0; round < rounds; round++)
        for (int i = 0; i < n; i++) run_block(&contenders[i], &blocks[i]);
    for (int i = 0; i < n; i++) contenders[i].call_ns = contenders[i].work / measured_rates(&contenders[i]).median;
}

rates measured_rates(const contender *c)
{
    return (rates){ .median = quantile(c->samples, c->nsamples, 0.5),
                    .best = quantile(c->samples, c->nsamples, 1),
                    .p10 = quantile(c->samples, c->nsamples, 0.1),
                    .p90 = quantile(c->samples, c->nsamples, 0.9) };
}

double measured_ratio(const contender *a, const contender *b)
{
    double ratios[MEASURE_ROUNDS];
    const int n = a->nrounds < b->nrounds ? a->nrounds : b->nrounds;
    for (int i = 0; i < n; i++) ratios[i] = a->rounds[i] / b->rounds[i];
    return quantile(ratios, n, 0.5);
}
