/* decode_core_ref.c - reference decode kernels: the selective scan of Mamba-1 and the SSD core of Mamba-3, one token per
 * row.
 *
 *   H <- e^(s A) H + s B x, y = (C H + D x) silu(z);   H <- e^da (H + carry V' k) + gamma V B, y = norm(H C + D V) silu(z)
 * Formulas: kernels/args/decode_args.h.
 */
#include "kernels/ref/ref.h"
#include "kernels/ref/ref_operand.h"
#include "kernels/ref/ref_silu.h"

#include <math.h>

#define PI 3.14159265358979323846

static double softplus(double x)
{
    return x > 20 ? x : log1p(exp(x));
}

static double clamped(double x, double low, double high)
{
    return fmin(fmax(x, (double)(real)low), (double)(real)high);
}

/* Element i of x; `none` without one. */
static double at(const void *x, int64_t i, double none)
{
    return x ? (double)((const real *)x)[i] : none;
}

/* 1 / (mean square + eps)^1/2 of n elements of a row, from `first` on. */
static double scale_of(const kr_operand *x, int64_t row, int64_t first, int64_t n, double eps)
{
    double squares = 0;
    for (int64_t i = first; i < first + n; i++) squares += kr_ref_at(x, row, i) * kr_ref_at(x, row, i);
    return 1 / sqrt(squares / (double)n + eps);
}

/* ---- Mamba-1 ---- */

static void scan_task(void *arg, int64_t row, int worker)
{
    (void)worker;
    const kr_decode_scan_args *a = arg;
    const double of_low = a->eps > 0 ? scale_of(&a->low, row, 0, a->nx, a->eps) : 1;
    const double of_b = a->eps > 0 ? scale_of(&a->b, row, 0, a->nr, a->eps) : 1,
                 of_c = a->eps > 0 ? scale_of(&a->c, row, 0, a->nr, a->eps) : 1;
    for (int64_t i = 0; i < a->ni; i++) {
        const double x = kr_ref_at(&a->x, row, i);
        double raw = at(a->dt_bias, i, 0);
        for (int64_t k = 0; k < a->nx; k++) raw += of_low * kr_ref_at(&a->low, row, k) * kr_ref_at(&a->w, i, k);
        const double step = clamped(softplus(raw), a->dt_min, a->dt_max);
        double y = at(a->d, i, 0) * x;
        real *state = (real *)a->state + (row * a->ni + i) * a->nr;
        for (int64_t r = 0; r < a->nr; r++) {
            const double decay = exp(-step * exp(at(a->a_log, i * a->nr + r, 0)));
            const double now = decay * (double)state[r] + step * of_b * kr_ref_at(&a->b, row, r) * x;
            state[r] = (real)now;
            y += of_c * kr_ref_at(&a->c, row, r) * now;
        }
        kr_ref_put(&a->y, row, i, y * silu(kr_ref_at(&a->z, row, i)));
    }
}

void KR_REF(decode_scan)(const kr_decode_scan_args *a)
{
    kr_decode_scan_args args = *a;
    kr_pool_run(a->exec.pool, a->nb, scan_task, &args);
}

/* ---- Mamba-3 ---- */

static double wrap(double x)
{
    return x - 2 * PI * rint(x / (2 * PI));
}

typedef struct token_scale {
    double dt, decay, gamma, carry;
} token_scale;

static token_scale token_scale_of(const kr_decode_mamba3_args *a, int64_t row, int64_t h)
{
    const double raw = kr_ref_at(&a->a, row, h), lambda = kr_ref_at(&a->lambda, row, h);
    const double rate = a->softplus ? softplus(raw) : raw < 0 ? 1 / (1 - raw) : 1 + raw;
    const double dt = clamped(softplus(kr_ref_at(&a->dt, row, h) + at(a->dt_bias, h, 0)), a->dt_min, a->dt_max);
    return (token_scale){ dt, exp(-dt * fmax(rate, (double)(real)a->a_floor)), dt / (1 + exp(-lambda)),
                          dt / (1 + exp(lambda)) };
}

/* Buffers of a head, in a worker's scratch. */
typedef struct head {
    double *angle;          /* [na] */
    double *b, *c;          /* [m r], after norm and bias, rotated */
    double *y;              /* [m p] */
    int64_t row, h, number; /* number: row * nh + h */
} head;

static int64_t head_doubles(const kr_decode_mamba3_args *a)
{
    return a->na + 2 * a->nm * a->nr + a->nm * a->np;
}

static head head_of(const kr_decode_mamba3_args *a, int64_t task, int worker)
{
    double *from = (double *)a->exec.scratch + worker * head_doubles(a);
    head n = { .angle = from, .row = task / a->nh, .h = task % a->nh, .number = task };
    n.b = n.angle + a->na;
    n.c = n.b + a->nm * a->nr;
    n.y = n.c + a->nm * a->nr;
    return n;
}

/* B or C [m r] of the head: norm, bias, then rotary. */
static void form_bc(const kr_decode_mamba3_args *a, const head *n, const kr_operand *raw, const void *gain,
                    const void *bias, double *to)
{
    const int64_t nr = a->nr, e = n->h / (a->nh / a->ng), pair_stride = a->split_pairs ? nr / 2 : 1,
                  step = a->split_pairs ? 1 : 2;
    for (int64_t m = 0; m < a->nm; m++) {
        const int64_t first = (m * a->ng + e) * nr;
        const double scale = scale_of(raw, n->row, first, nr, a->eps);
        double *y = to + m * nr;
        for (int64_t r = 0; r < nr; r++)
            y[r] =
                scale * kr_ref_at(raw, n->row, first + r) * at(gain, r, 1) + at(bias, (n->h * a->nm + m) * nr + r, 0);
        for (int64_t i = 0; i < a->nrotated; i++) {
            const double c = cos(n->angle[i]), s = sin(n->angle[i]), y0 = y[i * step], y1 = y[i * step + pair_stride];
            y[i * step] = y0 * c - y1 * s;
            y[i * step + pair_stride] = y0 * s + y1 * c;
        }
    }
}

/* Updates row p of the state, and adds its products with C to y. */
static void update_row(const kr_decode_mamba3_args *a, const head *n, token_scale now, int64_t p)
{
    const int64_t nr = a->nr;
    real *state = (real *)a->state + (n->number * a->np + p) * nr;
    const double x = kr_ref_at(&a->x, n->row, n->h * a->np + p), prev_x = at(a->v, n->number * a->np + p, 0);
    for (int64_t m = 0; m < a->nm; m++)
        n->y[m * a->np + p] = at(a->d, n->h, 0) * x * at(a->mimo_x, (n->h * a->nm + m) * a->np + p, 1);
    for (int64_t r = 0; r < nr; r++) {
        double old = (double)state[r], new_part = 0;
        for (int64_t m = 0; m < a->nm; m++) {
            const double mimo = at(a->mimo_x, (n->h * a->nm + m) * a->np + p, 1);
            old += now.carry * prev_x * mimo * at(a->k, ((n->row * a->nm + m) * a->nh + n->h) * nr + r, 0);
            new_part += x * mimo * n->b[m * nr + r];
        }
        const double sum = now.decay * old + now.gamma * new_part;
        state[r] = (real)sum;
        for (int64_t m = 0; m < a->nm; m++) n->y[m * a->np + p] += sum * n->c[m * nr + r];
    }
}

/* Norm, gate and sum of the ranks. */
static void finish(const kr_decode_mamba3_args *a, const head *n)
{
    for (int64_t m = 0; a->has_norm && m < a->nm; m++) {
        double squares = 0, *y = n->y + m * a->np;
        for (int64_t p = 0; p < a->np; p++) squares += y[p] * y[p];
        for (int64_t p = 0; p < a->np; p++) y[p] /= sqrt(squares / (double)a->np + a->eps);
    }
    for (int64_t p = 0; p < a->np; p++) {
        const double z = kr_ref_at(&a->z, n->row, n->h * a->np + p);
        double sum = 0;
        for (int64_t m = 0; m < a->nm; m++) {
            const int64_t hmp = (n->h * a->nm + m) * a->np + p;
            sum += at(a->mimo_o, hmp, 1) * n->y[m * a->np + p] * silu(z * at(a->mimo_z, hmp, 1));
        }
        kr_ref_put(&a->y, n->row, n->h * a->np + p, sum * at(a->gain, a->shared_gain ? p : n->h * a->np + p, 1));
    }
}

static void mamba3_task(void *arg, int64_t task, int worker)
{
    const kr_decode_mamba3_args *a = arg;
    const head n = head_of(a, task, worker);
    const token_scale now = token_scale_of(a, n.row, n.h);
    real *angle = (real *)a->angle + task * a->na;
    for (int64_t i = 0; i < a->na; i++) {
        const double delta = now.dt * a->range * PI * tanh(kr_ref_at(&a->theta, n.row, i));
        n.angle[i] = wrap(wrap((double)angle[i]) + delta);
        angle[i] = (real)n.angle[i];
    }
    form_bc(a, &n, &a->b, a->b_gain, a->b_bias, n.b);
    form_bc(a, &n, &a->c, a->c_gain, a->c_bias, n.c);
    for (int64_t p = 0; p < a->np; p++) update_row(a, &n, now, p);
    finish(a, &n);
    for (int64_t mr = 0; mr < a->nm * a->nr; mr++)
        ((real *)a->k)[((n.row * a->nm + mr / a->nr) * a->nh + n.h) * a->nr + mr % a->nr] = (real)n.b[mr];
    for (int64_t p = 0; p < a->np; p++)
        ((real *)a->v)[task * a->np + p] = (real)kr_ref_at(&a->x, n.row, n.h * a->np + p);
}

size_t KR_REF(decode_mamba3_scratch)(const kr_decode_mamba3_args *a)
{
    return (size_t)(kr_pool_size(a->exec.pool) * head_doubles(a)) * sizeof(double);
}

void KR_REF(decode_mamba3)(const kr_decode_mamba3_args *a)
{
    kr_decode_mamba3_args args = *a;
    kr_pool_run(a->exec.pool, a->nb * a->nh, mamba3_task, &args);
}
