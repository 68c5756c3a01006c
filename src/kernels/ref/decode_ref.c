/* decode_ref.c - reference decode kernel: norm, matrix product and convolution of one token per row.
 *
 *   y = base + norm(x, z) W^T + bias, some outputs through a convolution
 * Formulas: kernels/args/decode_args.h.
 */
#include "kernels/ref/ref.h"
#include "kernels/ref/ref_operand.h"
#include "kernels/ref/ref_silu.h"

#include <math.h>

typedef struct linear_job {
    const kr_decode_linear_args *a;
    int64_t tasks_per_row;
} linear_job;

static double gate_of(const kr_decode_linear_args *a, int64_t m, int64_t k)
{
    return a->z.data ? silu(kr_ref_at(&a->z, m, k)) : 1;
}

static double group_scale(const kr_decode_linear_args *a, int64_t m, int64_t group)
{
    if (!a->has_norm) return 1;
    const int64_t width = a->nk / a->ng, first = group * width;
    double squares = 0;
    for (int64_t i = 0; a->squares && i < a->nsquares; i++)
        squares += (double)((const real *)a->squares)[m * a->nsquares + i];
    for (int64_t k = first; !a->squares && k < first + width; k++) {
        const double u = kr_ref_at(&a->x, m, k) * (a->norm_first ? 1 : gate_of(a, m, k));
        squares += u * u;
    }
    return 1 / sqrt(squares / (double)width + a->eps);
}

static double convolve(const kr_decode_linear_args *a, int64_t m, int64_t c, double v)
{
    real *window = (real *)a->window + (m * a->nc + c) * a->nt;
    double sum = a->conv_bias ? (double)((const real *)a->conv_bias)[c] : 0;
    for (int64_t t = 0; t < a->nt; t++) {
        window[t] = t + 1 < a->nt ? window[t + 1] : (real)v;
        const double past = t + 1 < a->nt ? (double)window[t] : v;
        sum += past * kr_ref_at(&a->taps, c, t);
    }
    return silu(sum);
}

#define OUTPUTS 16 /* outputs per pass */

static void linear_outputs(const kr_decode_linear_args *a, int64_t m, int64_t first, int64_t count)
{
    double sum[OUTPUTS] = { 0 }, scale = 1;
    for (int64_t k = 0; k < a->nk; k++) {
        if (k % (a->nk / a->ng) == 0) scale = group_scale(a, m, k / (a->nk / a->ng));
        const double gain = a->gain ? (double)((const real *)a->gain)[k] : 1;
        const double u = kr_ref_at(&a->x, m, k) * gate_of(a, m, k) * scale * gain;
        for (int64_t i = 0; i < count; i++) sum[i] += u * kr_ref_at(&a->w, first + i, k);
    }
    for (int64_t i = 0; i < count; i++) {
        const int64_t n = first + i, c = n - a->conv_from;
        if (a->bias) sum[i] += (double)((const real *)a->bias)[n];
        if (a->base.data) sum[i] += kr_ref_at(&a->base, m, n);
        kr_ref_put(&a->y, m, n, c >= 0 && c < a->nc ? convolve(a, m, c, sum[i]) : sum[i]);
    }
}

static void linear_task(void *arg, int64_t task, int worker)
{
    (void)worker;
    const linear_job *job = arg;
    linear_outputs(job->a, task / job->tasks_per_row, task % job->tasks_per_row * OUTPUTS,
                   kr_ref_min(OUTPUTS, job->a->nn - task % job->tasks_per_row * OUTPUTS));
}

void KR_REF(decode_linear)(const kr_decode_linear_args *a)
{
    linear_job job = { .a = a, .tasks_per_row = (a->nn + OUTPUTS - 1) / OUTPUTS };
    kr_pool_run(a->exec.pool, a->nm * job.tasks_per_row, linear_task, &job);
}
