/* softmax_f64.c - e^x of many numbers, their sum and their maximum, in loops without branches. */
#include "generate/softmax_f64.h"

#include <math.h>
#include <string.h>

enum { LANES = 8 };

/* -708 <= x <= 0. */
static double exp_of(double x)
{
    const double log2_e = 0x1.71547652b82fep+0, ln2_high = 0x1.62e42fefa3800p-1, ln2_low = 0x1.ef35793c76730p-45;
    const double shift = 0x1.8p52; /* adding it rounds to an integer, in the low bits */
    double k = x * log2_e + shift, scale;
    uint64_t bits;
    memcpy(&bits, &k, sizeof bits);
    bits = (bits + 1023) << 52;
    memcpy(&scale, &bits, sizeof scale);
    k -= shift;
    const double r = (x - k * ln2_high) - k * ln2_low;
    double p = 1.0 / 39916800;
    p = p * r + 1.0 / 3628800;
    p = p * r + 1.0 / 362880;
    p = p * r + 1.0 / 40320;
    p = p * r + 1.0 / 5040;
    p = p * r + 1.0 / 720;
    p = p * r + 1.0 / 120;
    p = p * r + 1.0 / 24;
    p = p * r + 1.0 / 6;
    p = p * r + 0.5;
    p = p * (r * r) + r + 1.0;
    return p * scale;
}

static void weigh(double *y, const double *x, int64_t count, double max, double divisor)
{
    enum { SPAN = 256 };
    double at[SPAN];
    for (int64_t from = 0; from < count; from += SPAN) {
        const int64_t n = count - from < SPAN ? count - from : SPAN;
        for (int64_t i = 0; i < n; i++) at[i] = (x[from + i] - max) / divisor;
        for (int64_t i = 0; i < n; i++) y[from + i] = at[i] < -708 ? -708 : at[i];
        for (int64_t i = 0; i < n; i++) y[from + i] = exp_of(y[from + i]);
        for (int64_t i = 0; i < n; i++) y[from + i] = at[i] < -708 ? 0 : y[from + i];
    }
}

typedef struct weights_job {
    double *y;
    const double *x;
    int64_t count;
    double max, divisor;
} weights_job;

enum { TASK = 8192 };

static void run_task(void *arg, int64_t index, int worker)
{
    (void)worker;
    const weights_job *job = arg;
    const int64_t from = index * TASK, left = job->count - from;
    weigh(job->y + from, job->x + from, left < TASK ? left : TASK, job->max, job->divisor);
}

void kr_weights_of(kr_pool *pool, double *y, const double *x, int64_t count, double max, double divisor)
{
    weights_job job = { y, x, count, max, divisor };
    kr_pool_run(pool, (count + TASK - 1) / TASK, run_task, &job);
}

double kr_sum_of(const double *x, int64_t count)
{
    double sums[LANES] = { 0 };
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES)
        for (int lane = 0; lane < LANES; lane++) sums[lane] += x[i + lane];
    for (; i < count; i++) sums[0] += x[i];
    return ((sums[0] + sums[4]) + (sums[1] + sums[5])) + ((sums[2] + sums[6]) + (sums[3] + sums[7]));
}

double kr_max_of(const double *x, int64_t count)
{
    double most[LANES];
    for (int lane = 0; lane < LANES; lane++) most[lane] = -INFINITY;
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES)
        for (int lane = 0; lane < LANES; lane++) most[lane] = x[i + lane] > most[lane] ? x[i + lane] : most[lane];
    for (; i < count; i++) most[0] = x[i] > most[0] ? x[i] : most[0];
    for (int lane = 1; lane < LANES; lane++) most[0] = most[lane] > most[0] ? most[lane] : most[0];
    return most[0];
}

bool kr_are_logits(const double *x, int64_t count)
{
    int64_t bad = 0;
    for (int64_t i = 0; i < count; i++) bad |= !(x[i] < (double)INFINITY);
    return !bad;
}
