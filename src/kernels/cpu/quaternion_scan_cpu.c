/* quaternion_scan_cpu.c - running products of quaternions along each sequence, and the gradients, in f32.
 *
 *   q, cum [b s h j 4]    initial, final [q h j 4]    (w, x, y, z); (x) is the Hamilton product
 *   cum_t = p / |p|,  p = q_t (x) cum_{t-1};  every nl tokens cum is rounded to f32, as between calls
 * backward, from the last token to the first, G starting as g_final:
 *   G += g_cum_t;  P = (G - c <c, G>) / |p|, c = p / |p|;  g_q_t = P (x) conj(cum_{t-1});  G = conj(q_t) (x) P
 *   g_initial = G in the end
 *
 * The running product and G are held in double, so that they do not drift over long sequences. LANES products are
 * computed in parallel, one array per component; the loops over them have a fixed trip count, which the compiler
 * vectorises.
 */
#include "kernels/cpu/isa.h"
#include "kernels/cpu/ranges.h"
#include "kernels/cpu/vec.h"

#include <math.h>

enum {
    LANES = 16,
    COST = 8 /* of a product in double, relative to the elements of KR_TASK_ELEMENTS */
};

typedef struct quaternions {
    double w[LANES], x[LANES], y[LANES], z[LANES];
} quaternions;

/* n of LANES quaternions of memory; the others are 1. */
KR_INLINE void load(quaternions *a, const float *from, int64_t n)
{
    float part[LANES][4];
    if (n < LANES)
        for (int i = 0; i < LANES; i++) memcpy(part[i], (const float[4]){ 1, 0, 0, 0 }, sizeof part[i]);
    memcpy(part, from, (size_t)n * sizeof part[0]);
    for (int i = 0; i < LANES; i++) {
        a->w[i] = (double)part[i][0];
        a->x[i] = (double)part[i][1];
        a->y[i] = (double)part[i][2];
        a->z[i] = (double)part[i][3];
    }
}

KR_INLINE void store(float *to, const quaternions *a, int64_t n)
{
    float part[LANES][4];
    for (int i = 0; i < LANES; i++) {
        part[i][0] = (float)a->w[i];
        part[i][1] = (float)a->x[i];
        part[i][2] = (float)a->y[i];
        part[i][3] = (float)a->z[i];
    }
    memcpy(to, part, (size_t)n * sizeof part[0]);
}

KR_INLINE void fill(quaternions *a, double w)
{
    for (int i = 0; i < LANES; i++) {
        a->w[i] = w;
        a->x[i] = a->y[i] = a->z[i] = 0;
    }
}

/* Signs of -1 conjugate a factor: c = (a or conj a) (x) (b or conj b). */
KR_INLINE void multiply(quaternions *c, const quaternions *a, double a_sign, const quaternions *b, double b_sign)
{
    for (int i = 0; i < LANES; i++) {
        double aw = a->w[i], ax = a_sign * a->x[i], ay = a_sign * a->y[i], az = a_sign * a->z[i];
        double bw = b->w[i], bx = b_sign * b->x[i], by = b_sign * b->y[i], bz = b_sign * b->z[i];
        c->w[i] = aw * bw - ax * bx - ay * by - az * bz;
        c->x[i] = aw * bx + ax * bw + ay * bz - az * by;
        c->y[i] = aw * by - ax * bz + ay * bw + az * bx;
        c->z[i] = aw * bz + ax * by - ay * bx + az * bw;
    }
}

/* a = a / |a|; stores 1 / |a|. */
KR_INLINE void normalise(quaternions *a, double inverse[LANES])
{
    for (int i = 0; i < LANES; i++) {
        double square = a->w[i] * a->w[i] + a->x[i] * a->x[i] + a->y[i] * a->y[i] + a->z[i] * a->z[i];
        inverse[i] = 1 / sqrt(square);
        a->w[i] *= inverse[i];
        a->x[i] *= inverse[i];
        a->y[i] *= inverse[i];
        a->z[i] *= inverse[i];
    }
}

/* One sequence, LANES (or the last n) products from `lane` on. */
KR_INLINE void scan_lanes(const kr_quaternion_scan_args *a, int64_t sequence, int64_t lane, int64_t n)
{
    const kr_sequence at = a->sequences[sequence];
    const int64_t width = a->nh * a->nj, state = (sequence * width + lane) * 4;
    quaternions cum, q, p;
    double inverse[LANES];
    if (a->initial) load(&cum, (const float *)a->initial + state, n);
    else fill(&cum, 1);
    int64_t left = a->nl; /* tokens of the chunk */
    for (int64_t s = at.start; s < at.end; s++, left--) {
        const int64_t offset = ((at.row * a->ns + s) * width + lane) * 4;
        if (a->nl > 0 && left == 0) {
            load(&cum, (const float *)a->cum + offset - 4 * width, n);
            left = a->nl;
        }
        load(&q, (const float *)a->q + offset, n);
        multiply(&p, &q, 1, &cum, 1);
        normalise(&p, inverse);
        cum = p;
        store((float *)a->cum + offset, &cum, n);
    }
    store((float *)a->final + state, &cum, n);
}

/* Units are (sequence, LANES products). */
static void scan_units(const void *args, int64_t first, int64_t end, int worker)
{
    (void)worker;
    const kr_quaternion_scan_args *a = args;
    const int64_t width = a->nh * a->nj, nblocks = kr_blocks(width, LANES);
    for (int64_t unit = first; unit < end; unit++) {
        const int64_t lane = unit % nblocks * LANES;
        if (lane + LANES <= width) scan_lanes(a, unit / nblocks, lane, LANES);
        else scan_lanes(a, unit / nblocks, lane, width - lane);
    }
}

void KR_FN(quaternion_scan)(const kr_quaternion_scan_args *a)
{
    if (a->nq == 0) return;
    kr_ranges_run(a->exec.pool, a->nq * kr_blocks(a->nh * a->nj, LANES), a->nb * a->ns / a->nq * LANES * COST,
                  scan_units, a);
}

/* a += b */
KR_INLINE void add(quaternions *a, const quaternions *b)
{
    for (int i = 0; i < LANES; i++) {
        a->w[i] += b->w[i];
        a->x[i] += b->x[i];
        a->y[i] += b->y[i];
        a->z[i] += b->z[i];
    }
}

/* a = (a - c <c, a>) inverse */
KR_INLINE void make_tangent(quaternions *a, const quaternions *c, const double inverse[LANES])
{
    for (int i = 0; i < LANES; i++) {
        double along = c->w[i] * a->w[i] + c->x[i] * a->x[i] + c->y[i] * a->y[i] + c->z[i] * a->z[i];
        a->w[i] = (a->w[i] - c->w[i] * along) * inverse[i];
        a->x[i] = (a->x[i] - c->x[i] * along) * inverse[i];
        a->y[i] = (a->y[i] - c->y[i] * along) * inverse[i];
        a->z[i] = (a->z[i] - c->z[i] * along) * inverse[i];
    }
}

KR_INLINE void scan_bwd_lanes(const kr_quaternion_scan_bwd_args *a, int64_t sequence, int64_t lane, int64_t n)
{
    const kr_sequence at = a->sequences[sequence];
    const int64_t width = a->nh * a->nj, state = (sequence * width + lane) * 4;
    quaternions total, q, before, p, g;
    double inverse[LANES];
    if (a->g_final) load(&total, (const float *)a->g_final + state, n);
    else fill(&total, 0);
    for (int64_t s = at.end - 1; s >= at.start; s--) {
        const int64_t offset = ((at.row * a->ns + s) * width + lane) * 4;
        if (s > at.start) load(&before, (const float *)a->cum + offset - 4 * width, n);
        else if (a->initial) load(&before, (const float *)a->initial + state, n);
        else fill(&before, 1);
        load(&q, (const float *)a->q + offset, n);
        load(&g, (const float *)a->g_cum + offset, n);
        multiply(&p, &q, 1, &before, 1);
        normalise(&p, inverse);
        add(&total, &g);
        make_tangent(&total, &p, inverse);
        if (a->g_q) {
            multiply(&g, &total, 1, &before, -1);
            store((float *)a->g_q + offset, &g, n);
        }
        multiply(&g, &q, -1, &total, 1);
        total = g;
    }
    if (a->g_initial) store((float *)a->g_initial + state, &total, n);
}

static void scan_bwd_units(const void *args, int64_t first, int64_t end, int worker)
{
    (void)worker;
    const kr_quaternion_scan_bwd_args *a = args;
    const int64_t width = a->nh * a->nj, nblocks = kr_blocks(width, LANES);
    for (int64_t unit = first; unit < end; unit++) {
        const int64_t lane = unit % nblocks * LANES;
        if (lane + LANES <= width) scan_bwd_lanes(a, unit / nblocks, lane, LANES);
        else scan_bwd_lanes(a, unit / nblocks, lane, width - lane);
    }
}

void KR_FN(quaternion_scan_bwd)(const kr_quaternion_scan_bwd_args *a)
{
    if (a->nq == 0) return;
    kr_ranges_run(a->exec.pool, a->nq * kr_blocks(a->nh * a->nj, LANES), a->nb * a->ns / a->nq * LANES * COST,
                  scan_bwd_units, a);
}
