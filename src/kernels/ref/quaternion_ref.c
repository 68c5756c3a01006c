/* quaternion_ref.c - quaternions (w, x, y, z) from generators, their cumulative products, rows rotated by them;
 * gradients.
 *
 *   raw [no nj 3]    dt [no]    q [no nj 4];   q, cum [b s h j 4]    initial, final [q h j 4];   x, y [no nm nh nr]
 *   exp:    q = (cos f, n sin f),  f = dt range pi/2 tanh(rho),  rho = |raw|, n = raw / rho
 *   scan:   cum_t = p / |p|,  p = q_t (x) cum_{t-1};  cum is rounded to its type every nl tokens, as between calls
 *   rotate: y = conj(cum) (x) x for the first nj blocks of four of a row, the remaining entries are copied
 * backward:
 *   exp:    g_raw = n g_f dt k (1 - tanh^2(rho)) + s (g_v - n <n, g_v>),  g_dt = sum_j g_f k tanh(rho),
 *           k = range pi/2,  g_f = cos f <n, g_v> - sin f g_w,  s = sin f / rho
 *   scan:   G_t = g_cum_t + conj(q_{t+1}) (x) P_{t+1},  P_t = (G_t - c <c, G_t>) / |p|,  c = p / |p|,
 *           g_q = P_t (x) conj(cum_{t-1}),  g_initial = conj(q_start) (x) P_start
 *   rotate: g_x = cum (x) g_y,  g_cum = sum over m of x (x) conj(g_y)
 */
#include "kernels/ref/ref.h"

#include <math.h>

#define PI 3.14159265358979323846

typedef struct quaternion {
    double w, x, y, z;
} quaternion;

static quaternion load(const void *p, int64_t n)
{
    const real *v = (const real *)p + 4 * n;
    return (quaternion){ (double)v[0], (double)v[1], (double)v[2], (double)v[3] };
}

static void store(void *p, int64_t n, quaternion a)
{
    real *v = (real *)p + 4 * n;
    v[0] = (real)a.w;
    v[1] = (real)a.x;
    v[2] = (real)a.y;
    v[3] = (real)a.z;
}

static quaternion product(quaternion a, quaternion b)
{
    return (quaternion){ a.w * b.w - a.x * b.x - a.y * b.y - a.z * b.z, a.w * b.x + a.x * b.w + a.y * b.z - a.z * b.y,
                         a.w * b.y - a.x * b.z + a.y * b.w + a.z * b.x, a.w * b.z + a.x * b.y - a.y * b.x + a.z * b.w };
}

static quaternion conjugate(quaternion a)
{
    return (quaternion){ a.w, -a.x, -a.y, -a.z };
}

static double dot(quaternion a, quaternion b)
{
    return a.w * b.w + a.x * b.x + a.y * b.y + a.z * b.z;
}

/* a + factor b */
static quaternion plus(quaternion a, double factor, quaternion b)
{
    return (quaternion){ a.w + factor * b.w, a.x + factor * b.x, a.y + factor * b.y, a.z + factor * b.z };
}

static quaternion times(quaternion a, double factor)
{
    return (quaternion){ a.w * factor, a.x * factor, a.y * factor, a.z * factor };
}

/* ---- exp ---- */

/* Direction (w = 0) and length of a generator, scaled by its largest entry: squares neither overflow nor underflow. */
static quaternion direction(const void *raw, int64_t n, double *rho)
{
    const real *v = (const real *)raw + 3 * n;
    const quaternion r = { 0, (double)v[0], (double)v[1], (double)v[2] };
    const double most = fmax(fmax(fabs(r.x), fabs(r.y)), fabs(r.z));
    *rho = r.x + r.y + r.z; /* 0, or a NaN that fmax ignored */
    if (most == 0) return r;
    const quaternion scaled = { 0, r.x / most, r.y / most, r.z / most };
    const double length = sqrt(dot(scaled, scaled));
    *rho = most * length;
    return times(scaled, 1 / length);
}

void KR_REF(quaternion_exp)(const kr_quaternion_exp_args *a)
{
    for (int64_t n = 0; n < a->no * a->nj; n++) {
        double rho;
        const quaternion axis = direction(a->raw, n, &rho);
        const double f = (double)((const real *)a->dt)[n / a->nj] * a->range * (PI / 2) * tanh(rho);
        quaternion q = times(axis, sin(f));
        q.w = cos(f);
        store(a->q, n, q);
    }
}

/* Gradients of one block; the return value is its term of g_dt. */
static double exp_gradient(const kr_quaternion_exp_bwd_args *a, int64_t n)
{
    double rho;
    const quaternion axis = direction(a->raw, n, &rho), g = load(a->g_q, n);
    const double dt = (double)((const real *)a->dt)[n / a->nj], k = a->range * (PI / 2), u = tanh(rho), f = dt * k * u;
    const double along = axis.x * g.x + axis.y * g.y + axis.z * g.z, g_f = cos(f) * along - sin(f) * g.w;
    const double s = rho > 0 ? sin(f) / rho : dt * k, factor = g_f * dt * k * (1 - u * u) - s * along;
    if (a->g_raw) {
        real *g_raw = (real *)a->g_raw + 3 * n;
        g_raw[0] = (real)(axis.x * factor + s * g.x);
        g_raw[1] = (real)(axis.y * factor + s * g.y);
        g_raw[2] = (real)(axis.z * factor + s * g.z);
    }
    return g_f * k * u;
}

void KR_REF(quaternion_exp_bwd)(const kr_quaternion_exp_bwd_args *a)
{
    for (int64_t o = 0; o < a->no; o++) {
        double sum = 0;
        for (int64_t j = 0; j < a->nj; j++) sum += exp_gradient(a, o * a->nj + j);
        if (a->g_dt) ((real *)a->g_dt)[o] = (real)sum;
    }
}

/* ---- scan ---- */

void KR_REF(quaternion_scan)(const kr_quaternion_scan_args *a)
{
    const int64_t nhj = a->nh * a->nj;
    for (int64_t lane = 0; lane < a->nq * nhj; lane++) {
        const kr_sequence sequence = a->sequences[lane / nhj];
        quaternion cum = a->initial ? load(a->initial, lane) : (quaternion){ 1, 0, 0, 0 };
        for (int64_t s = sequence.start; s < sequence.end; s++) {
            const int64_t at = (sequence.row * a->ns + s) * nhj + lane % nhj;
            const bool starts_chunk = a->nl > 0 && s > sequence.start && (s - sequence.start) % a->nl == 0;
            if (starts_chunk) cum = load(a->cum, at - nhj);
            const quaternion p = product(load(a->q, at), cum);
            cum = times(p, 1 / sqrt(dot(p, p)));
            store(a->cum, at, cum);
        }
        store(a->final, lane, cum);
    }
}

void KR_REF(quaternion_scan_bwd)(const kr_quaternion_scan_bwd_args *a)
{
    const int64_t nhj = a->nh * a->nj;
    for (int64_t lane = 0; lane < a->nq * nhj; lane++) {
        const kr_sequence sequence = a->sequences[lane / nhj];
        const quaternion one = { 1, 0, 0, 0 }, zero = { 0, 0, 0, 0 };
        quaternion total = a->g_final ? load(a->g_final, lane) : zero;
        for (int64_t s = sequence.end - 1; s >= sequence.start; s--) {
            const int64_t at = (sequence.row * a->ns + s) * nhj + lane % nhj;
            quaternion before = a->initial ? load(a->initial, lane) : one;
            if (s > sequence.start) before = load(a->cum, at - nhj);
            const quaternion q = load(a->q, at), p = product(q, before);
            const double inverse = 1 / sqrt(dot(p, p));
            const quaternion cum = times(p, inverse);
            total = plus(total, 1, load(a->g_cum, at));
            const quaternion tangent = times(plus(total, -dot(cum, total), cum), inverse);
            if (a->g_q) store(a->g_q, at, product(tangent, conjugate(before)));
            total = product(conjugate(q), tangent);
        }
        if (a->g_initial) store(a->g_initial, lane, total);
    }
}

/* ---- rotate ---- */

void KR_REF(quaternion_rotate)(const kr_quaternion_rotate_args *a)
{
    for (int64_t row = 0; row < a->no * a->nm * a->nh; row++) {
        const int64_t oh = row / (a->nm * a->nh) * a->nh + row % a->nh;
        const real *x = (const real *)a->x + row * a->nr;
        real *y = (real *)a->y + row * a->nr;
        for (int64_t j = 0; j < a->nj; j++) store(y, j, product(conjugate(load(a->cum, oh * a->nj + j)), load(x, j)));
        for (int64_t i = 4 * a->nj; i < a->nr; i++) y[i] = x[i];
    }
}

void KR_REF(quaternion_rotate_bwd)(const kr_quaternion_rotate_bwd_args *a)
{
    for (int64_t row = 0; a->g_x && row < a->no * a->nm * a->nh; row++) {
        const int64_t oh = row / (a->nm * a->nh) * a->nh + row % a->nh;
        const real *g_y = (const real *)a->g_y + row * a->nr;
        real *g_x = (real *)a->g_x + row * a->nr;
        for (int64_t j = 0; j < a->nj; j++) store(g_x, j, product(load(a->cum, oh * a->nj + j), load(g_y, j)));
        for (int64_t i = 4 * a->nj; i < a->nr; i++) g_x[i] = g_y[i];
    }
    for (int64_t n = 0; a->g_cum && n < a->no * a->nh * a->nj; n++) {
        const int64_t oh = n / a->nj, o = oh / a->nh, h = oh % a->nh, j = n % a->nj;
        quaternion sum = { 0, 0, 0, 0 };
        for (int64_t m = 0; m < a->nm; m++) {
            const int64_t row = ((o * a->nm + m) * a->nh + h) * a->nr;
            const quaternion x = load((const real *)a->x + row, j), g_y = load((const real *)a->g_y + row, j);
            sum = plus(sum, 1, product(x, conjugate(g_y)));
        }
        store(a->g_cum, n, sum);
    }
}
