/* layer_norm_cpu.c - layer norm over groups of the last axis, in f32 vectors.
 *
 *   x, y [no ni]    gain [ni] or none (1)    bias [ni] or none (0)    mean, q [no ng]
 *   mean = mean_group(x);  q = (mean_group((x - mean)^2) + eps)^-1/2;  y = (x - mean) q gain + bias
 * backward, u = (x - mean) q, w = gain g_y:
 *   g_x = q (w - mean_group(w) - u mean_group(w u));   g_gain = sum over rows of g_y u;   g_bias = sum over rows of g_y
 *
 * A row is one unit of work. Sums along a row are in float over runs of RUN channels, which are added in double.
 * g_gain and g_bias are summed in float over fixed blocks of rows, then over the blocks in order in double.
 */
#include "kernels/cpu/isa.h"
#include "kernels/cpu/ranges.h"
#include "kernels/cpu/vec.h"

#include <math.h>

enum { RUN = 4096 };

KR_INLINE vf load_some(const float *p, int64_t n)
{
    return n >= VF ? vf_load(p) : vf_load_n(p, n);
}

KR_INLINE void store_some(float *p, int64_t n, vf v)
{
    if (n >= VF) vf_store(p, v);
    else vf_store_n(p, n, v);
}

static double sum_of(const float *x, int64_t n)
{
    double sum = 0;
    for (int64_t start = 0; start < n; start += RUN) {
        int64_t stop = kr_smaller(start + RUN, n), i = start;
        vf s0 = vf_zero(), s1 = vf_zero(), s2 = vf_zero(), s3 = vf_zero();
        for (; i + 4 * VF <= stop; i += 4 * VF) {
            s0 = vf_add(s0, vf_load(x + i));
            s1 = vf_add(s1, vf_load(x + i + VF));
            s2 = vf_add(s2, vf_load(x + i + 2 * VF));
            s3 = vf_add(s3, vf_load(x + i + 3 * VF));
        }
        for (; i < stop; i += VF) s0 = vf_add(s0, load_some(x + i, stop - i));
        sum += (double)vf_sum(vf_add(vf_add(s0, s1), vf_add(s2, s3)));
    }
    return sum;
}

/* n <= VF channels less the mean; 0 in the lanes beyond. */
KR_INLINE vf centred(const float *x, int64_t n, vf mean)
{
    return n >= VF ? vf_sub(vf_load(x), mean) : vf_keep(vm_first(n), vf_sub(vf_load_n(x, n), mean));
}

static double sum_of_squares(const float *x, int64_t n, float mean)
{
    const vf m = vf_set1(mean);
    double sum = 0;
    for (int64_t start = 0; start < n; start += RUN) {
        int64_t stop = kr_smaller(start + RUN, n), i = start;
        vf s0 = vf_zero(), s1 = vf_zero();
        for (; i + 2 * VF <= stop; i += 2 * VF) {
            vf u0 = centred(x + i, VF, m), u1 = centred(x + i + VF, VF, m);
            s0 = vf_fma(u0, u0, s0);
            s1 = vf_fma(u1, u1, s1);
        }
        for (; i < stop; i += VF) {
            vf u = centred(x + i, stop - i, m);
            s0 = vf_fma(u, u, s0);
        }
        sum += (double)vf_sum(vf_add(s0, s1));
    }
    return sum;
}

static void layer_norm_rows(const void *args, int64_t first, int64_t end, int worker)
{
    (void)worker;
    const kr_layer_norm_args *a = args;
    int64_t width = a->ni / a->ng;
    for (int64_t group = first * a->ng; group < end * a->ng; group++) {
        int64_t channel = group % a->ng * width;
        const float *x = (const float *)a->x.data + group / a->ng * a->x.row + channel;
        const float *gain = a->gain ? (const float *)a->gain + channel : NULL;
        const float *bias = a->bias ? (const float *)a->bias + channel : NULL;
        float *y = (float *)a->y + group * width, mean = (float)(sum_of(x, width) / (double)width);
        float q = (float)(1.0 / sqrt(sum_of_squares(x, width, mean) / (double)width + a->eps));
        ((float *)a->mean)[group] = mean;
        ((float *)a->q)[group] = q;
        for (int64_t i = 0; i < width; i += VF) {
            vf v = vf_mul(vf_sub(load_some(x + i, width - i), vf_set1(mean)), vf_set1(q));
            if (gain && bias) v = vf_fma(v, load_some(gain + i, width - i), load_some(bias + i, width - i));
            else if (gain) v = vf_mul(v, load_some(gain + i, width - i));
            else if (bias) v = vf_add(v, load_some(bias + i, width - i));
            store_some(y + i, width - i, v);
        }
    }
}

void KR_FN(layer_norm)(const kr_layer_norm_args *a)
{
    if (a->ng > 0) kr_ranges_run(a->exec.pool, a->no, a->ni, layer_norm_rows, a);
}

/* ---- backward ---- */

/* One group of one row; g_x, g_gain, g_bias NULL when not wanted, gain NULL for 1. */
typedef struct group {
    const float *x, *gain, *g_y;
    float *g_x, *g_gain, *g_bias; /* g_gain, g_bias: of this block of rows, accumulate */
    int64_t width;
    float mean, q;
} group;

/* n <= VF channels at i. */
KR_INLINE vf normed(const group *g, int64_t i, int64_t n)
{
    return vf_mul(vf_sub(load_some(g->x + i, n), vf_set1(g->mean)), vf_set1(g->q));
}

KR_INLINE vf weighted(const group *g, int64_t i, int64_t n)
{
    vf g_y = load_some(g->g_y + i, n);
    return g->gain ? vf_mul(g_y, load_some(g->gain + i, n)) : g_y;
}

/* The means of w and of w u; w is 0 in lanes beyond the group. */
static void means_of(const group *g, float *of_w, float *of_wu)
{
    double w_sum = 0, wu_sum = 0;
    for (int64_t start = 0; start < g->width; start += RUN) {
        int64_t stop = kr_smaller(start + RUN, g->width);
        vf w_lanes = vf_zero(), wu_lanes = vf_zero();
        for (int64_t i = start; i < stop; i += VF) {
            vf w = weighted(g, i, stop - i);
            w_lanes = vf_add(w_lanes, w);
            wu_lanes = vf_fma(w, normed(g, i, stop - i), wu_lanes);
        }
        w_sum += (double)vf_sum(w_lanes);
        wu_sum += (double)vf_sum(wu_lanes);
    }
    *of_w = (float)(w_sum / (double)g->width);
    *of_wu = (float)(wu_sum / (double)g->width);
}

static void group_gradients(const group *g)
{
    float of_w = 0, of_wu = 0;
    if (g->g_x) means_of(g, &of_w, &of_wu);
    for (int64_t i = 0; i < g->width; i += VF) {
        int64_t n = g->width - i;
        vf u = normed(g, i, n), g_y = load_some(g->g_y + i, n);
        if (g->g_x) {
            vf g_u = vf_fnma(u, vf_set1(of_wu), vf_sub(weighted(g, i, n), vf_set1(of_w)));
            store_some(g->g_x + i, n, vf_mul(g_u, vf_set1(g->q)));
        }
        if (g->g_gain) store_some(g->g_gain + i, n, vf_fma(g_y, u, load_some(g->g_gain + i, n)));
        if (g->g_bias) store_some(g->g_bias + i, n, vf_add(g_y, load_some(g->g_bias + i, n)));
    }
}

static int64_t rows_per_block(const kr_layer_norm_bwd_args *a)
{
    return kr_smaller(256, kr_larger(16, 2 * KR_TASK_ELEMENTS / kr_larger(1, a->ni)));
}

/* Scratch: g_gain, then g_bias, of each block of rows, [blocks ni] each. */
size_t KR_FN(layer_norm_bwd_scratch)(const kr_layer_norm_bwd_args *a)
{
    int64_t nwanted = (a->g_gain != NULL) + (a->g_bias != NULL);
    return (size_t)(nwanted * kr_blocks(a->no, rows_per_block(a)) * a->ni) * sizeof(float);
}

static float *bias_partials(const kr_layer_norm_bwd_args *a)
{
    return (float *)a->exec.scratch + (a->g_gain ? kr_blocks(a->no, rows_per_block(a)) * a->ni : 0);
}

/* Units are blocks of rows. */
static void bwd_blocks(const void *args, int64_t first, int64_t end, int worker)
{
    (void)worker;
    const kr_layer_norm_bwd_args *a = args;
    int64_t nrows = rows_per_block(a), width = a->ni / a->ng;
    for (int64_t block = first; block < end; block++) {
        float *g_gain = a->g_gain ? (float *)a->exec.scratch + block * a->ni : NULL;
        float *g_bias = a->g_bias ? bias_partials(a) + block * a->ni : NULL;
        if (g_gain) memset(g_gain, 0, (size_t)a->ni * sizeof(float));
        if (g_bias) memset(g_bias, 0, (size_t)a->ni * sizeof(float));
        int64_t stop = kr_smaller((block + 1) * nrows, a->no) * a->ng;
        for (int64_t e = block * nrows * a->ng; e < stop; e++) {
            int64_t channel = e % a->ng * width;
            group g = { .x = (const float *)a->x.data + e / a->ng * a->x.row + channel,
                        .g_y = (const float *)a->g_y + e * width,
                        .width = width,
                        .mean = ((const float *)a->mean)[e],
                        .q = ((const float *)a->q)[e] };
            if (a->gain) g.gain = (const float *)a->gain + channel;
            if (a->g_x) g.g_x = (float *)a->g_x + e * width;
            if (g_gain) g.g_gain = g_gain + channel;
            if (g_bias) g.g_bias = g_bias + channel;
            group_gradients(&g);
        }
    }
}

/* Units are KR_PARTIAL_COLUMNS channels each. */
static void add_blocks(const void *args, int64_t first, int64_t end, int worker)
{
    (void)worker;
    const kr_layer_norm_bwd_args *a = args;
    const float *of_gain = a->exec.scratch, *of_bias = bias_partials(a);
    const int64_t nblocks = kr_blocks(a->no, rows_per_block(a));
    for (int64_t unit = first; unit < end; unit++) {
        int64_t i0 = unit * KR_PARTIAL_COLUMNS, n = kr_smaller(KR_PARTIAL_COLUMNS, a->ni - i0);
        double sum[KR_PARTIAL_COLUMNS];
        if (a->g_gain) kr_add_partials(of_gain + i0, nblocks, a->ni, n, sum);
        for (int64_t i = 0; a->g_gain && i < n; i++) ((float *)a->g_gain)[i0 + i] = (float)sum[i];
        if (a->g_bias) kr_add_partials(of_bias + i0, nblocks, a->ni, n, sum);
        for (int64_t i = 0; a->g_bias && i < n; i++) ((float *)a->g_bias)[i0 + i] = (float)sum[i];
    }
}

void KR_FN(layer_norm_bwd)(const kr_layer_norm_bwd_args *a)
{
    if (a->ng == 0 || a->ni == 0) return;
    int64_t nblocks = kr_blocks(a->no, rows_per_block(a));
    if (nblocks == 0) { /* empty sums */
        if (a->g_gain) memset(a->g_gain, 0, (size_t)a->ni * sizeof(float));
        if (a->g_bias) memset(a->g_bias, 0, (size_t)a->ni * sizeof(float));
        return;
    }
    kr_ranges_run(a->exec.pool, nblocks, rows_per_block(a) * a->ni, bwd_blocks, a);
    if (a->g_gain || a->g_bias)
        kr_ranges_run(a->exec.pool, kr_blocks(a->ni, KR_PARTIAL_COLUMNS), 2 * nblocks * KR_PARTIAL_COLUMNS, add_blocks,
                      a);
}
