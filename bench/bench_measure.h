/* bench_measure.h - times several ways of doing the same work against each other.
 *
 * The contenders take turns: a round runs one block of each, so that a neighbour who takes the machine away for a while
 * takes it from all of them. A block is some samples, a sample so many calls as make about 0.1 ms. A rate is work per
 * nanosecond: floating-point operations give GFLOP/s, bytes GB/s, elements elements/ns.
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
    void (*wait)(void *arg);                 /* after the calls of a sample: until what they queued has run; NULL */
    double sample_ns;                        /* of a sample at least; 0: 0.1 ms */
    double extra_bytes;                      /* of memory that a call needs beside its operands; 0: not told */
    const char *note;                        /* behind the line: which way was taken; NULL: none */
    bool hidden;                             /* not in the table, only in the JSON */
    bool lingers;                            /* leaves threads behind that spin for some milliseconds */
    bool compares_time;                      /* the table shows its time for the work over the other's */
    double tokens;                           /* of one call, where its rate in tokens is of interest; 0: it is not */
    double published_ns;                     /* what others published for a call, on a machine of theirs; 0: nothing */
    const contender *versus[MEASURE_VERSUS]; /* whom to compare it with; NULL: nobody */

    /* What measure() finds. */
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
