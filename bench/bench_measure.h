/* bench_measure.h - times several implementations of the same work against each other.
 *
 * The contenders are interleaved: a round runs one block of each, so that interference from other processes affects all
 * of them. A block is some samples, a sample as many calls as take about 0.1 ms. A rate is work per nanosecond:
 * floating-point operations give GFLOP/s, bytes GB/s, elements elements/ns.
 */
#ifndef KR_BENCH_BENCH_MEASURE_H
#define KR_BENCH_BENCH_MEASURE_H

#include <stdbool.h>

enum { MEASURE_ROUNDS = 24, MEASURE_BLOCK = 16, MEASURE_VERSUS = 3 };

typedef struct contender contender;
struct contender {
    char name[24];
    void (*call)(void *arg);
    void *arg;
    double work;                             /* of one call */
    void (*wait)(void *arg);                 /* after the calls of a sample: waits for queued work; NULL: none */
    double sample_ns;                        /* minimum duration of a sample; 0: 0.1 ms */
    double extra_bytes;                      /* memory that a call needs in addition to its operands; 0: not reported */
    const char *note;                        /* after the line: the code path; NULL: none */
    bool hidden;                             /* only in the JSON, not in the table */
    bool lingers;                            /* its threads keep spinning for some milliseconds */
    bool compares_time;                      /* the table shows the ratio of times for the work */
    double tokens;                           /* of one call, to report tokens per second; 0: not reported */
    double published_ns;                     /* published by others for a call, on their machine; 0: none */
    const contender *versus[MEASURE_VERSUS]; /* contenders to compare with; NULL: none */

    /* Results of measure(). */
    double call_ns; /* the median */
    int nrounds, nsamples;
    double rounds[MEASURE_ROUNDS]; /* median rate of each round's block */
    double samples[MEASURE_ROUNDS * MEASURE_BLOCK];
};

typedef struct rates {
    double median, best, p10, p90;
} rates;

/* Runs each contender for about `seconds`, in at least 4 and at most MEASURE_ROUNDS rounds. */
void measure(contender *contenders, int n, double seconds);

rates measured_rates(const contender *c);

/* The rate of a over that of b: the median of the ratios of the single rounds. Both come from one measure(). */
double measured_ratio(const contender *a, const contender *b);

/* Nanoseconds of the monotonic clock. */
double clock_ns(void);

#endif
