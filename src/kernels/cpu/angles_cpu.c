/* angles_cpu.c - rotation angles accumulated along each sequence, wrapped, and their gradients, in f32.
 *
 *   theta [b s a]    dt [b s h]    angle [b s h a]    initial, final [q h a]
 *   phi_t = wrap(phi_{t-1} + dt_t[h] rate_t[a]),   rate = range pi tanh(theta),   wrap(x) = x - 2 pi round(x / 2 pi)
 *   every nl tokens phi is rounded to f32, as between calls
 * backward, G_t = g_final + sum of g_angle_k over k >= t:
 *   g_initial = G_start;   g_dt_t[h] = sum_a G_t rate_t[a];   g_theta_t[a] = range pi (1 - tanh^2) sum_h dt_t[h] G_t
 *
 * Forward: rates of all tokens in double, then a prefix sum in double for each sequence and head. The loops over angles
 * are plain C of a fixed trip count, which the compiler vectorises. Backward: tokens in blocks of BLOCK, counted from
 * the start of their sequence. First the sum of g_angle over each block, then the suffix sum after each block, from the
 * last to the first, then G inside the blocks.
 */
#include "kernels/cpu/isa.h"
#include "kernels/cpu/ranges.h"
#include "kernels/cpu/vec.h"
#include "kernels/cpu/vec_math.h"

#include <math.h>

#define PI 3.14159265358979323846

enum {
    LANES = 32,  /* angles per inner loop */
    BLOCK = 128, /* tokens */
    COST = 4     /* of a step in double, relative to the elements of KR_TASK_ELEMENTS */
};

/* ---- forward ---- */

/* e^x for x in [-40, 0], to 2^-51: 2^n e^r with |r| <= ln(2)/2, and twelve terms of the series. */
KR_INLINE double exp_in_double(double x)
{
    double shifted = x * 1.4426950408889634 + 0x1.8p52, n = shifted - 0x1.8p52;
    double r = (x - n * 0x1.62e42fefa38p-1) - n * 0x1.ef35793c7673p-45;
    double p = 1.0 / 479001600;
    p = p * r + 1.0 / 39916800;
    p = p * r + 1.0 / 3628800;
    p = p * r + 1.0 / 362880;
    p = p * r + 1.0 / 40320;
    p = p * r + 1.0 / 5040;
    p = p * r + 1.0 / 720;
    p = p * r + 1.0 / 120;
    p = p * r + 1.0 / 24;
    p = p * r + 1.0 / 6;
    p = p * r + 0.5;
    p = p * r + 1;
    p = p * r + 1;
    uint64_t bits; /* the low bits of `shifted` are those of n */
    memcpy(&bits, &shifted, sizeof bits);
    bits = (bits + 1023) << 52;
    double power;
    memcpy(&power, &bits, sizeof power);
    return p * power;
}

/* rate[i] = factor tanh(theta[i]). The error is relative to 1, not to a small tanh; sums of rates tolerate that. */
static void fill_rates(const float *theta, double factor, double *rate, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        double x = (double)theta[i], size = fabs(x);
        double e = exp_in_double(size < 20 ? -2 * size : -40);
        double y = (1 - e) / (1 + e);
        rate[i] = factor * (x != x ? x : x < 0 ? -y : y);
    }
}

static void rotate_all_tokens(const void *args, int64_t first, int64_t end, int worker)
{
    (void)worker;
    const kr_angles_args *n = args;
    for (int64_t t = first; t < end; t++)
        fill_rates((const float *)n->theta.data + t * n->theta.row, n->range * PI,
                   (double *)n->exec.scratch + t * n->na, n->na);
}

KR_INLINE double wrap(double x)
{
    return x - 2 * PI * rint(x * (1 / (2 * PI)));
}

/* One sequence, head and up to LANES angles from a0 on. */
KR_INLINE void sum_lanes(const kr_angles_args *n, int64_t q, int64_t h, int64_t a0, int64_t count)
{
    const kr_sequence sequence = n->sequences[q];
    const int64_t state = (q * n->nh + h) * n->na + a0, token0 = sequence.row * n->ns;
    int64_t token = token0 + sequence.start, end = token0 + sequence.end;
    float carried[LANES]; /* the angle before a chunk */
    for (int64_t i = 0; i < count; i++) carried[i] = n->initial ? ((const float *)n->initial)[state + i] : 0;
    do {
        const int64_t stop = n->nl > 0 && n->nl < end - token ? token + n->nl : end;
        double phi[LANES];
        for (int64_t i = 0; i < count; i++) phi[i] = wrap((double)carried[i]);
        for (; token < stop; token++) {
            const double dt = (double)((const float *)n->dt)[token * n->nh + h];
            const double *rate = (const double *)n->exec.scratch + token * n->na + a0;
            float *angle = (float *)n->angle + (token * n->nh + h) * n->na + a0;
            for (int64_t i = 0; i < count; i++) {
                phi[i] = wrap(phi[i] + dt * rate[i]);
                angle[i] = (float)phi[i];
            }
        }
        for (int64_t i = 0; i < count; i++) carried[i] = (float)phi[i];
    } while (token < end);
    memcpy((float *)n->final + state, carried, (size_t)count * sizeof *carried);
}

/* Units are (sequence, head). */
static void sum_heads(const void *args, int64_t first, int64_t end, int worker)
{
    (void)worker;
    const kr_angles_args *n = args;
    for (int64_t unit = first; unit < end; unit++) {
        int64_t q = unit / n->nh, h = unit % n->nh, a = 0;
        for (; a + LANES <= n->na; a += LANES) sum_lanes(n, q, h, a, LANES);
        if (a + LANES / 2 <= n->na) {
            sum_lanes(n, q, h, a, LANES / 2);
            a += LANES / 2;
        }
        if (a < n->na) sum_lanes(n, q, h, a, n->na - a);
    }
}

size_t KR_FN(angles_scratch)(const kr_angles_args *n)
{
    return (size_t)(n->nb * n->ns * n->na) * sizeof(double);
}

void KR_FN(angles)(const kr_angles_args *n)
{
    if (n->nq == 0 || n->na == 0) return;
    kr_ranges_run(n->exec.pool, n->nb * n->ns, n->na * COST * 2, rotate_all_tokens, n);
    kr_ranges_run(n->exec.pool, n->nq * n->nh, n->nb * n->ns / n->nq * n->na * COST, sum_heads, n);
}

/* ---- backward ---- */

/* Tokens t0 .. t1-1 of the batch, all of one sequence. */
typedef struct block {
    int64_t t0, t1;
} block;

/* Scratch: the blocks, the first block of each sequence (and their number), then [h a] floats for each block: the sum
 * of its g_angle, then the suffix sum after it, then its running G. */
typedef struct backward {
    const kr_angles_bwd_args *n;
    block *blocks;
    int64_t *first_block; /* [q + 1] */
    float *total;         /* [blocks h a] */
    int64_t width;        /* h a */
} backward;

static int64_t most_blocks(const kr_angles_bwd_args *n)
{
    return n->nq + n->nb * n->ns / BLOCK;
}

static size_t head_bytes(const kr_angles_bwd_args *n) /* of the lists, in whole cache lines */
{
    size_t bytes = (size_t)most_blocks(n) * sizeof(block) + (size_t)(n->nq + 1) * sizeof(int64_t);
    return (bytes + 63) / 64 * 64;
}

size_t KR_FN(angles_bwd_scratch)(const kr_angles_bwd_args *n)
{
    return head_bytes(n) + (size_t)(most_blocks(n) * n->nh * n->na) * sizeof(float);
}

static void list_blocks(const backward *f)
{
    int64_t count = 0;
    for (int64_t q = 0; q < f->n->nq; q++) {
        const kr_sequence sequence = f->n->sequences[q];
        const int64_t token0 = sequence.row * f->n->ns;
        f->first_block[q] = count;
        for (int64_t t = sequence.start; t < sequence.end; t += BLOCK)
            f->blocks[count++] = (block){ token0 + t, token0 + kr_smaller(t + BLOCK, sequence.end) };
    }
    f->first_block[f->n->nq] = count;
}

static void block_sums(const void *args, int64_t first, int64_t end, int worker)
{
    (void)worker;
    const backward *f = args;
    for (int64_t k = first; k < end; k++) {
        float *total = f->total + k * f->width;
        memset(total, 0, (size_t)f->width * sizeof(float));
        for (int64_t t = f->blocks[k].t0; t < f->blocks[k].t1; t++) {
            const float *g = (const float *)f->n->g_angle + t * f->width;
            for (int64_t i = 0; i < f->width; i++) total[i] += g[i];
        }
    }
}

/* Units are sequences: replaces each block's sum by the sum over the blocks after it. */
static void following_sums(const void *args, int64_t first, int64_t end, int worker)
{
    (void)worker;
    const backward *f = args;
    for (int64_t q = first; q < end; q++) {
        for (int64_t i = 0; i < f->width; i++) {
            double sum = f->n->g_final ? (double)((const float *)f->n->g_final)[q * f->width + i] : 0;
            for (int64_t k = f->first_block[q + 1] - 1; k >= f->first_block[q]; k--) {
                float *total = f->total + k * f->width + i;
                double with = sum + (double)*total;
                *total = (float)sum;
                sum = with;
            }
            if (f->n->g_initial) ((float *)f->n->g_initial)[q * f->width + i] = (float)sum;
        }
    }
}

/* One token: G += g_angle; the sums over a for g_dt, over h for g_theta. */
static void token_gradients(const backward *f, int64_t t, float *total)
{
    const kr_angles_bwd_args *n = f->n;
    const float *theta = (const float *)n->theta.data + t * n->theta.row, *dt = (const float *)n->dt + t * n->nh;
    const float *g_angle = (const float *)n->g_angle + t * f->width;
    float *g_theta = n->g_theta.data ? (float *)n->g_theta.data + t * n->na : NULL;
    const vf factor = vf_set1((float)(n->range * PI));
    for (int64_t h = 0; n->g_dt && h < n->nh; h++) ((float *)n->g_dt)[t * n->nh + h] = 0;
    for (int64_t a = 0; a < n->na; a += VF) {
        const int64_t count = n->na - a;
        const vf u = vf_tanh(vf_load_n(theta + a, count)), rate = vf_mul(factor, u);
        vf by_head = vf_zero();
        for (int64_t h = 0; h < n->nh; h++) {
            float *sum = total + h * n->na + a;
            vf g = vf_add(vf_load_n(sum, count), vf_load_n(g_angle + h * n->na + a, count));
            vf_store_n(sum, count, g);
            by_head = vf_fma(vf_set1(dt[h]), g, by_head);
            if (n->g_dt) ((float *)n->g_dt)[t * n->nh + h] += vf_sum(vf_mul(g, rate));
        }
        if (g_theta) vf_store_n(g_theta + a, count, vf_mul(vf_mul(factor, vf_fnma(u, u, vf_set1(1))), by_head));
    }
}

static void block_gradients(const void *args, int64_t first, int64_t end, int worker)
{
    (void)worker;
    const backward *f = args;
    for (int64_t k = first; k < end; k++)
        for (int64_t t = f->blocks[k].t1 - 1; t >= f->blocks[k].t0; t--) token_gradients(f, t, f->total + k * f->width);
}

void KR_FN(angles_bwd)(const kr_angles_bwd_args *n)
{
    if (n->nq == 0 || n->na == 0) return;
    backward f = { .n = n, .blocks = n->exec.scratch, .width = n->nh * n->na };
    f.first_block = (int64_t *)(void *)(f.blocks + most_blocks(n));
    f.total = (float *)(void *)((char *)n->exec.scratch + head_bytes(n));
    list_blocks(&f);
    const int64_t nblocks = f.first_block[n->nq], block_elements = BLOCK * f.width;
    kr_ranges_run(n->exec.pool, nblocks, block_elements, block_sums, &f);
    kr_ranges_run(n->exec.pool, n->nq, nblocks / n->nq * f.width, following_sums, &f);
    if (n->g_dt || n->g_theta.data) kr_ranges_run(n->exec.pool, nblocks, 2 * block_elements, block_gradients, &f);
}
