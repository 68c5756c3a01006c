/* norm_cpu.c - RMS norm over groups of the last axis with an optional gate, in f32 vectors.
 *
 *   x, z, y [no ni]    gain [ni] or none (1)    q [no ng]    z none: no gate
 *   gate first: u = x silu(z);  q = (mean_group(u^2) + eps)^-1/2;  y = u q gain
 *   norm first: u = x;          q as above;                        y = u q gain silu(z)
 * backward, w = gain g_y (norm first: gain g_y silu(z)):
 *   g_u = q w - q^3 u mean_group(w u), which is eps q^3 w in a group of one channel
 *   gate first: g_x = g_u silu(z), g_z = g_u x silu'(z);   norm first: g_x = g_u, g_z = u q gain g_y silu'(z)
 *   g_gain[i] = sum over rows of g_y u q (silu(z) if norm first)
 *
 * A row is one unit of work. Forward keeps u in y between its two passes; backward keeps sigmoid(z) in scratch.
 * g_gain is summed in float over fixed blocks of rows, then over the blocks in order in double. Groups of one channel are
 * independent: their gradients are computed in vectors along the row.
 */
#include "kernels/cpu/isa.h"
#include "kernels/cpu/ranges.h"
#include "kernels/cpu/vec.h"
#include "kernels/cpu/vec_math.h"

#include <math.h>

/* Which of the three norms: a constant when inlined, so that each has specialised loops. */
typedef enum kind { PLAIN, GATE_FIRST, NORM_FIRST } kind;

enum { RUN = 4096 }; /* channels whose squares are summed in float; runs are added in double */

KR_INLINE vf load_some(const float *p, int64_t n)
{
    return n >= VF ? vf_load(p) : vf_load_n(p, n);
}

KR_INLINE void store_some(float *p, int64_t n, vf v)
{
    if (n >= VF) vf_store(p, v);
    else vf_store_n(p, n, v);
}

/* n <= VF channels: u, stored in y if there is a gate. Lanes beyond n are 0. */
KR_INLINE vf gated(const float *x, const float *z, float *y, int64_t n, kind k)
{
    vf u = load_some(x, n);
    if (k == GATE_FIRST) {
        u = vf_mul(u, vf_silu(load_some(z, n)));
        store_some(y, n, u);
    }
    return u;
}

KR_INLINE double sum_of_squares(const float *x, const float *z, float *y, int64_t n, kind k)
{
    double sum = 0;
    for (int64_t start = 0; start < n; start += RUN) {
        int64_t stop = kr_smaller(start + RUN, n), i = start;
        vf s0 = vf_zero(), s1 = vf_zero(), s2 = vf_zero(), s3 = vf_zero();
        for (; i + 4 * VF <= stop; i += 4 * VF) {
            vf u0 = gated(x + i, z + i, y + i, VF, k), u1 = gated(x + i + VF, z + i + VF, y + i + VF, VF, k);
            s0 = vf_fma(u0, u0, s0);
            s1 = vf_fma(u1, u1, s1);
            vf u2 = gated(x + i + 2 * VF, z + i + 2 * VF, y + i + 2 * VF, VF, k);
            vf u3 = gated(x + i + 3 * VF, z + i + 3 * VF, y + i + 3 * VF, VF, k);
            s2 = vf_fma(u2, u2, s2);
            s3 = vf_fma(u3, u3, s3);
        }
        for (; i < stop; i += VF) {
            vf u = gated(x + i, z + i, y + i, stop - i, k);
            s0 = vf_fma(u, u, s0);
        }
        sum += (double)vf_sum(vf_add(vf_add(s0, s1), vf_add(s2, s3)));
    }
    return sum;
}

KR_INLINE void scale(const float *u, const float *z, const float *gain, vf q, float *y, int64_t n, kind k)
{
    vf v = vf_mul(load_some(u, n), q);
    if (gain) v = vf_mul(v, load_some(gain, n));
    if (k == NORM_FIRST) v = vf_mul(v, vf_silu(load_some(z, n)));
    store_some(y, n, v);
}

KR_INLINE void norm_rows_of(const kr_norm_args *a, int64_t first, int64_t end, kind k)
{
    int64_t width = a->ni / a->ng;
    for (int64_t group = first * a->ng; group < end * a->ng; group++) {
        const float *x = (const float *)a->x.data + group * width + group / a->ng * (a->x.row - a->ni), *gain = a->gain;
        const float *z = k == PLAIN ? x : (const float *)a->z.data + group * width + group / a->ng * (a->z.row - a->ni);
        float *y = (float *)a->y.data + group * width;
        if (gain) gain += group % a->ng * width;
        double mean = sum_of_squares(x, z, y, width, k) / (double)width;
        float q = (float)(1.0 / sqrt(mean + a->eps));
        ((float *)a->q)[group] = q;
        const float *u = k == GATE_FIRST ? y : x;
        int64_t i = 0;
        for (; i + VF <= width; i += VF) scale(u + i, z + i, gain ? gain + i : NULL, vf_set1(q), y + i, VF, k);
        if (i < width) scale(u + i, z + i, gain ? gain + i : NULL, vf_set1(q), y + i, width - i, k);
    }
}

static void norm_rows(const void *args, int64_t first, int64_t end, int worker)
{
    (void)worker;
    const kr_norm_args *a = args;
    if (!a->z.data) norm_rows_of(a, first, end, PLAIN);
    else if (a->norm_first) norm_rows_of(a, first, end, NORM_FIRST);
    else norm_rows_of(a, first, end, GATE_FIRST);
}

void KR_FN(norm)(const kr_norm_args *a)
{
    if (a->ng > 0) kr_ranges_run(a->exec.pool, a->no, a->ni, norm_rows, a);
}

/* One group of one row in backward, or a row of groups of one channel each. g_x, g_z, g_gain NULL when not wanted, gain
 * NULL for 1. */
typedef struct group {
    const float *x, *z, *gain, *g_y;
    float *g_x, *g_z, *g_gain; /* g_gain: of this block of rows, accumulates */
    float *sigmoid;            /* [width], between the passes */
    int64_t width;
    float q;
    bool accumulate; /* to g_x */
} group;

/* n <= VF channels at i: the sum of w u; stores sigmoid(z). */
KR_INLINE vf weighted(const group *g, int64_t i, int64_t n, kind k)
{
    vf wu = vf_mul(load_some(g->x + i, n), load_some(g->g_y + i, n));
    if (g->gain) wu = vf_mul(wu, load_some(g->gain + i, n));
    if (k == PLAIN) return wu;
    vf z = load_some(g->z + i, n), sigmoid = vf_sigmoid(z);
    store_some(g->sigmoid + i, n, sigmoid);
    return vf_mul(wu, vf_mul(z, sigmoid)); /* the gate is a factor of u or of w */
}

KR_INLINE double sum_of_weighted(const group *g, kind k)
{
    double sum = 0;
    for (int64_t start = 0; start < g->width; start += RUN) {
        int64_t stop = kr_smaller(start + RUN, g->width), i = start;
        vf s0 = vf_zero(), s1 = vf_zero();
        for (; i + 2 * VF <= stop; i += 2 * VF) {
            s0 = vf_add(s0, weighted(g, i, VF, k));
            s1 = vf_add(s1, weighted(g, i + VF, VF, k));
        }
        for (; i < stop; i += VF) s0 = vf_add(s0, weighted(g, i, stop - i, k));
        sum += (double)vf_sum(vf_add(s0, s1));
    }
    return sum;
}

/* n <= VF channels at i of all gradients; c = q^3 mean(w u). single: groups of one channel, c = eps q^3. */
KR_INLINE void gradients(const group *g, int64_t i, int64_t n, vf q, vf c, kind k, bool single)
{
    vf x = load_some(g->x + i, n), g_y = load_some(g->g_y + i, n), u = x, silu = vf_set1(1), slope = vf_zero();
    if (k != PLAIN) {
        vf z = load_some(g->z + i, n), one = vf_set1(1);
        vf sigmoid = single ? vf_sigmoid(z) : load_some(g->sigmoid + i, n);
        silu = vf_mul(z, sigmoid);
        slope = vf_mul(sigmoid, vf_fma(z, vf_sub(one, sigmoid), one));
    }
    if (k == GATE_FIRST) u = vf_mul(x, silu);
    vf uq = vf_mul(u, q), g_out = g->gain ? vf_mul(g_y, load_some(g->gain + i, n)) : g_y;
    vf w = k == NORM_FIRST ? vf_mul(g_out, silu) : g_out;
    vf g_u = single ? vf_mul(c, w) : vf_fnma(c, u, vf_mul(q, w));
    if (g->g_x && g->accumulate) store_some(g->g_x + i, n, vf_add(load_some(g->g_x + i, n), g_u));
    else if (g->g_x) store_some(g->g_x + i, n, k == GATE_FIRST ? vf_mul(g_u, silu) : g_u);
    if (g->g_z && k == GATE_FIRST) store_some(g->g_z + i, n, vf_mul(vf_mul(g_u, x), slope));
    if (g->g_z && k == NORM_FIRST) store_some(g->g_z + i, n, vf_mul(vf_mul(uq, g_out), slope));
    if (g->g_gain) {
        vf term = k == NORM_FIRST ? vf_mul(uq, silu) : uq;
        store_some(g->g_gain + i, n, vf_fma(g_y, term, load_some(g->g_gain + i, n)));
    }
}

KR_INLINE void group_gradients(const group *g, kind k)
{
    double q = (double)g->q;
    vf c = vf_set1((float)(q * q * q * (sum_of_weighted(g, k) / (double)g->width)));
    int64_t i = 0;
    for (; i + VF <= g->width; i += VF) gradients(g, i, VF, vf_set1(g->q), c, k, false);
    if (i < g->width) gradients(g, i, g->width - i, vf_set1(g->q), c, k, false);
}

/* A row of groups of one channel each: q [width]. */
KR_INLINE void single_gradients(const group *g, const float *q_i, float eps, kind k)
{
    for (int64_t i = 0; i < g->width; i += VF) {
        vf q = load_some(q_i + i, g->width - i);
        vf c = vf_mul(vf_mul(vf_mul(q, q), q), vf_set1(eps));
        gradients(g, i, g->width - i, q, c, k, true);
    }
}

static int64_t rows_per_block(const kr_norm_bwd_args *a)
{
    return kr_smaller(256, kr_larger(16, 2 * KR_TASK_ELEMENTS / kr_larger(1, a->ni)));
}

/* Scratch: g_gain of each block of rows [blocks ni], then sigmoid [workers width], widths in whole cache lines. */
static int64_t padded(int64_t n)
{
    return kr_blocks(n, 16) * 16;
}

size_t KR_FN(norm_bwd_scratch)(const kr_norm_bwd_args *a)
{
    int64_t blocks = kr_blocks(a->no, rows_per_block(a)) * a->ni, width = a->ng ? a->ni / a->ng : 0;
    return (size_t)(padded(blocks) + kr_pool_size(a->exec.pool) * padded(width)) * sizeof(float);
}

/* Units are blocks of rows. */
static void norm_bwd_blocks(const void *args, int64_t first, int64_t end, int worker)
{
    const kr_norm_bwd_args *a = args;
    int64_t nrows = rows_per_block(a), width = a->ni / a->ng;
    float *partial = a->exec.scratch, *sigmoid = partial + padded(kr_blocks(a->no, nrows) * a->ni);
    for (int64_t block = first; block < end; block++) {
        float *g_gain = a->g_gain ? partial + block * a->ni : NULL;
        if (g_gain) memset(g_gain, 0, (size_t)a->ni * sizeof(float));
        int64_t stop = kr_smaller((block + 1) * nrows, a->no) * a->ng;
        for (int64_t e = block * nrows * a->ng; e < stop; e++) {
            int64_t at = e * width, channel = e % a->ng * width;
            group g = { .x = (const float *)a->x.data + at + e / a->ng * (a->x.row - a->ni),
                        .g_y = (const float *)a->g_y.data + at,
                        .width = width,
                        .accumulate = a->accumulate,
                        .q = ((const float *)a->q)[e],
                        .sigmoid = sigmoid + worker * padded(width) };
            if (a->z.data) g.z = (const float *)a->z.data + at + e / a->ng * (a->z.row - a->ni);
            if (a->gain) g.gain = (const float *)a->gain + channel;
            if (a->g_x.data) g.g_x = (float *)a->g_x.data + at + e / a->ng * (a->g_x.row - a->ni);
            if (a->g_z.data) g.g_z = (float *)a->g_z.data + at + e / a->ng * (a->g_z.row - a->ni);
            if (g_gain) g.g_gain = g_gain + channel;
            if (!a->z.data) group_gradients(&g, PLAIN);
            else if (a->norm_first) group_gradients(&g, NORM_FIRST);
            else group_gradients(&g, GATE_FIRST);
        }
    }
}

/* The same for groups of one channel each: one pass, along the row. A function of its own, since together with it the loops
 * above run out of registers. */
static void norm_bwd_single_blocks(const void *args, int64_t first, int64_t end, int worker)
{
    (void)worker;
    const kr_norm_bwd_args *a = args;
    const int64_t nrows = rows_per_block(a);
    const float eps = (float)a->eps;
    for (int64_t block = first; block < end; block++) {
        float *g_gain = a->g_gain ? (float *)a->exec.scratch + block * a->ni : NULL;
        if (g_gain) memset(g_gain, 0, (size_t)a->ni * sizeof(float));
        const int64_t stop = kr_smaller((block + 1) * nrows, a->no);
        for (int64_t row = block * nrows; row < stop; row++) {
            const int64_t at = row * a->ni;
            const float *q = (const float *)a->q + at;
            group g = { .x = (const float *)a->x.data + row * a->x.row,
                        .gain = a->gain,
                        .g_y = (const float *)a->g_y.data + at,
                        .g_gain = g_gain,
                        .width = a->ni,
                        .accumulate = a->accumulate };
            if (a->z.data) g.z = (const float *)a->z.data + row * a->z.row;
            if (a->g_x.data) g.g_x = (float *)a->g_x.data + row * a->g_x.row;
            if (a->g_z.data) g.g_z = (float *)a->g_z.data + row * a->g_z.row;
            if (!a->z.data) single_gradients(&g, q, eps, PLAIN);
            else if (a->norm_first) single_gradients(&g, q, eps, NORM_FIRST);
            else single_gradients(&g, q, eps, GATE_FIRST);
        }
    }
}

/* Units are KR_PARTIAL_COLUMNS channels each. */
static void add_gain_blocks(const void *args, int64_t first, int64_t end, int worker)
{
    (void)worker;
    const kr_norm_bwd_args *a = args;
    for (int64_t unit = first; unit < end; unit++) {
        int64_t i0 = unit * KR_PARTIAL_COLUMNS, n = kr_smaller(KR_PARTIAL_COLUMNS, a->ni - i0);
        double sum[KR_PARTIAL_COLUMNS];
        kr_add_partials((const float *)a->exec.scratch + i0, kr_blocks(a->no, rows_per_block(a)), a->ni, n, sum);
        for (int64_t i = 0; i < n; i++) ((float *)a->g_gain)[i0 + i] = (float)sum[i];
    }
}

void KR_FN(norm_bwd)(const kr_norm_bwd_args *a)
{
    if (a->ng == 0 || a->ni == 0) return;
    int64_t nblocks = kr_blocks(a->no, rows_per_block(a));
    kr_ranges_run(a->exec.pool, nblocks, rows_per_block(a) * a->ni,
                  a->ng == a->ni ? norm_bwd_single_blocks : norm_bwd_blocks, a);
    if (a->g_gain)
        kr_ranges_run(a->exec.pool, kr_blocks(a->ni, KR_PARTIAL_COLUMNS), nblocks * KR_PARTIAL_COLUMNS, add_gain_blocks,
                      a);
}
