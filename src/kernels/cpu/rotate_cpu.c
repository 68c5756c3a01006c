/* rotate_cpu.c - rotary: rotates pairs of a row by their angles, and the gradients, in f32 vectors.
 *
 *   x [no nm ng nr]    bias [nh nm nr]    y [no nm nh nr]    angle [no nh na]
 *   u = x + bias, x repeated for the heads of its group; pair i is (2i, 2i + 1), or with split_pairs (i, i + nr/2)
 *   (y0, y1) = (u0 cos - u1 sin, u0 sin + u1 cos); other entries are copied
 * backward: (g_u0, g_u1) = (g_y0 cos + g_y1 sin, g_y1 cos - g_y0 sin);   g_angle = sum over m of u0 g_u1 - u1 g_u0
 *           g_x = sum over the group's heads of g_u;   g_bias = sum over o of g_u
 *
 * A token is one unit of work; if g_bias is wanted, a unit is a block of tokens, whose partial sum is stored in
 * scratch. Sine and cosine of VF angles are computed once for all ranks. Adjacent pairs are rotated in offsets: y = u (c,
 * c) + swap(u) (-s, s).
 */
#include "kernels/cpu/isa.h"
#include "kernels/cpu/ranges.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/vec_lanes.h"
#include "kernels/cpu/vec_trig.h"

/* -1, 1, -1, 1, ... */
static const float alternating[16] = { -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1 };

/* Rows of one token and head, rank 0's; the rank strides are y_m for y, x_m for x and g_x, nr for the bias. */
typedef struct rows {
    int64_t nm, x_m, y_m, nr, na;
    const float *angle, *x, *bias, *g_y;
    float *y, *g_x, *g_bias, *g_angle; /* NULL where not wanted */
    bool adds;                         /* to g_x: not the first head of the group */
    bool adds_angle;                   /* to g_angle */
} rows;

/* u of rank m, n entries from i on. */
KR_INLINE vf entries(const rows *k, int64_t m, int64_t i, int64_t n)
{
    vf x = row_load(k->x + m * k->x_m + i, n);
    return k->bias ? vf_add(x, row_load(k->bias + m * k->nr + i, n)) : x;
}

KR_INLINE void store_grad(const rows *k, int64_t m, int64_t i, int64_t n, vf g_u)
{
    if (k->g_x) {
        float *at = k->g_x + m * k->x_m + i;
        row_store(at, n, k->adds ? vf_add(row_load(at, n), g_u) : g_u);
    }
    if (k->g_bias) {
        float *at = k->g_bias + m * k->nr + i;
        row_store(at, n, vf_add(row_load(at, n), g_u));
    }
}

KR_INLINE void store_angle(const rows *k, int64_t i, int64_t n, vf g)
{
    if (!k->g_angle) return;
    row_store(k->g_angle + i, n, k->adds_angle ? vf_add(row_load(k->g_angle + i, n), g) : g);
}

/* ---- entries outside of the pairs ---- */

KR_INLINE void pass_entries(const rows *k, int64_t m, int64_t i, int64_t n, bool back)
{
    const int64_t at = m * k->y_m + i;
    if (back) store_grad(k, m, i, n, row_load(k->g_y + at, n));
    else row_store(k->y + at, n, entries(k, m, i, n));
}

KR_INLINE void pass_run(const rows *k, int64_t m, int64_t first, int64_t end, bool back)
{
    int64_t i = first;
    for (; i + VF <= end; i += VF) pass_entries(k, m, i, VF, back);
    if (i < end) pass_entries(k, m, i, end - i, back);
}

KR_INLINE void pass(const rows *k, bool split_pairs, bool back)
{
    int64_t end = split_pairs ? k->nr / 2 : k->nr, first = split_pairs ? k->na : 2 * k->na;
    for (int64_t m = 0; m < k->nm; m++) {
        pass_run(k, m, first, end, back);
        if (split_pairs) pass_run(k, m, end + first, 2 * end, back);
    }
}

/* ---- split pairs (i, i + nr/2) ---- */

KR_INLINE void rotate_split(const rows *k, int64_t i, int64_t n)
{
    vf s, c;
    vf_sincos(row_load(k->angle + i, n), &s, &c);
    for (int64_t m = 0; m < k->nm; m++) {
        int64_t at = m * k->y_m + i, other = i + k->nr / 2;
        vf u0 = entries(k, m, i, n), u1 = entries(k, m, other, n);
        row_store(k->y + at, n, vf_fnma(u1, s, vf_mul(u0, c)));
        row_store(k->y + at + k->nr / 2, n, vf_fma(u0, s, vf_mul(u1, c)));
    }
}

KR_INLINE void rotate_bwd_split(const rows *k, int64_t i, int64_t n)
{
    vf s, c, sum = vf_zero();
    vf_sincos(row_load(k->angle + i, n), &s, &c);
    for (int64_t m = 0; m < k->nm; m++) {
        const float *g_y = k->g_y + m * k->y_m + i;
        int64_t other = i + k->nr / 2;
        vf g0 = row_load_ahead(g_y, n, k->nr), g1 = row_load_ahead(g_y + k->nr / 2, n, k->nr);
        vf g_u0 = vf_fma(g1, s, vf_mul(g0, c)), g_u1 = vf_fnma(g0, s, vf_mul(g1, c));
        store_grad(k, m, i, n, g_u0);
        store_grad(k, m, other, n, g_u1);
        sum = vf_fnma(entries(k, m, other, n), g_u0, vf_fma(entries(k, m, i, n), g_u1, sum));
    }
    store_angle(k, i, n, sum);
}

/* ---- adjacent pairs ---- */

KR_INLINE vf rotated(vf x, vf c, vf s)
{
    return vf_fma(vf_swap_pairs(x), s, vf_mul(x, c));
}

/* Angles i .. i+n-1 are entries 2i .. 2i+2n-1 of the rows: two vectors. */
KR_INLINE void rotate_pairs_adjacent(const rows *k, int64_t i, int64_t n)
{
    vf s, c, sign = vf_load(alternating);
    vf_sincos(row_load(k->angle + i, n), &s, &c);
    vf c0 = vf_twice_low(c), c1 = vf_twice_high(c);
    vf s0 = vf_mul(sign, vf_twice_low(s)), s1 = vf_mul(sign, vf_twice_high(s));
    int64_t n0 = 2 * n, n1 = 2 * n - VF;
    for (int64_t m = 0; m < k->nm; m++) {
        float *y = k->y + m * k->y_m + 2 * i;
        row_store(y, n0, rotated(entries(k, m, 2 * i, n0), c0, s0));
        if (n1 > 0) row_store(y + VF, n1, rotated(entries(k, m, 2 * i + VF, n1), c1, s1));
    }
}

/* One vector of pairs rotated by the negative angle; adds (u0 g_u1, u1 g_u0) to sum. */
KR_INLINE vf rotate_inverse(const rows *k, int64_t m, int64_t i, int64_t n, vf c, vf s, vf sum)
{
    vf g_u = rotated(row_load_ahead(k->g_y + m * k->y_m + i, n, k->nr), c, s);
    store_grad(k, m, i, n, g_u);
    return vf_fma(entries(k, m, i, n), vf_swap_pairs(g_u), sum);
}

KR_INLINE void rotate_bwd_adjacent(const rows *k, int64_t i, int64_t n)
{
    vf s, c, sign = vf_neg(vf_load(alternating)), sum0 = vf_zero(), sum1 = vf_zero();
    vf_sincos(row_load(k->angle + i, n), &s, &c);
    vf c0 = vf_twice_low(c), c1 = vf_twice_high(c);
    vf s0 = vf_mul(sign, vf_twice_low(s)), s1 = vf_mul(sign, vf_twice_high(s));
    int64_t n0 = 2 * n, n1 = 2 * n - VF;
    for (int64_t m = 0; m < k->nm; m++) {
        sum0 = rotate_inverse(k, m, 2 * i, n0, c0, s0, sum0);
        if (n1 > 0) sum1 = rotate_inverse(k, m, 2 * i + VF, n1, c1, s1, sum1);
    }
    sum0 = vf_sub(sum0, vf_swap_pairs(sum0));
    sum1 = vf_sub(sum1, vf_swap_pairs(sum1));
    store_angle(k, i, n, vf_evens(sum0, sum1));
}

/* ---- tokens ---- */

#define OVER_ANGLES(k, body)                                                                                           \
    do {                                                                                                               \
        int64_t i = 0;                                                                                                 \
        for (; i + VF <= (k)->na; i += VF) body((k), i, VF);                                                           \
        if (i < (k)->na) body((k), i, (k)->na - i);                                                                    \
    } while (0)

/* Offsets of rank 0 of token o and head h in x, y and the bias. */
typedef struct offsets {
    int64_t x, y, bias;
} offsets;

static offsets place_of(int64_t o, int64_t h, int64_t nm, int64_t nh, int64_t ng, int64_t nr)
{
    return (offsets){ (o * nm * ng + h / (nh / ng)) * nr, (o * nm * nh + h) * nr, h * nm * nr };
}

static void rotate_tokens(const void *args, int64_t first, int64_t end, int worker)
{
    (void)worker;
    const kr_rotate_args *a = args;
    for (int64_t oh = first * a->nh; oh < end * a->nh; oh++) {
        const offsets at = place_of(oh / a->nh, oh % a->nh, a->nm, a->nh, a->ng, a->nr);
        rows k = { .nm = a->nm, .x_m = a->ng * a->nr, .y_m = a->nh * a->nr, .nr = a->nr, .na = a->na };
        k.angle = (const float *)a->angle + oh * a->na;
        k.x = (const float *)a->x + at.x;
        k.bias = a->bias ? (const float *)a->bias + at.bias : NULL;
        k.y = (float *)a->y.data + at.y;
        if (a->split_pairs) OVER_ANGLES(&k, rotate_split);
        else OVER_ANGLES(&k, rotate_pairs_adjacent);
        pass(&k, a->split_pairs, false);
    }
}

void KR_FN(rotate)(const kr_rotate_args *a)
{
    if (a->nr > 0 && a->ng > 0) kr_ranges_run(a->exec.pool, a->no, a->nm * a->nh * a->nr, rotate_tokens, a);
}

enum { TOKENS = 32 }; /* of a block */

static int64_t bias_floats(const kr_rotate_bwd_args *a)
{
    return a->nh * a->nm * a->nr;
}

/* g_bias: the partial sums of these tokens, or NULL. */
static void rotate_tokens_bwd(const kr_rotate_bwd_args *a, int64_t first, int64_t end, float *g_bias)
{
    for (int64_t oh = first * a->nh; oh < end * a->nh; oh++) {
        const int64_t h = oh % a->nh;
        const offsets at = place_of(oh / a->nh, h, a->nm, a->nh, a->ng, a->nr);
        rows k = { .nm = a->nm, .x_m = a->ng * a->nr, .y_m = a->nh * a->nr, .nr = a->nr, .na = a->na };
        k.angle = (const float *)a->angle + oh * a->na;
        k.x = (const float *)a->x + at.x;
        k.bias = a->bias ? (const float *)a->bias + at.bias : NULL;
        k.g_y = (const float *)a->g_y + at.y;
        k.adds = h % (a->nh / a->ng) != 0;
        k.adds_angle = a->accumulate;
        if (a->g_x) k.g_x = (float *)a->g_x + at.x;
        if (g_bias) k.g_bias = g_bias + at.bias;
        if (a->g_angle) k.g_angle = (float *)a->g_angle + oh * a->na;
        if (a->split_pairs) OVER_ANGLES(&k, rotate_bwd_split);
        else OVER_ANGLES(&k, rotate_bwd_adjacent);
        pass(&k, a->split_pairs, true);
    }
}

static void rotate_bwd_tokens(const void *args, int64_t first, int64_t end, int worker)
{
    (void)worker;
    rotate_tokens_bwd(args, first, end, NULL);
}

static void rotate_bwd_blocks(const void *args, int64_t first, int64_t end, int worker)
{
    (void)worker;
    const kr_rotate_bwd_args *a = args;
    for (int64_t block = first; block < end; block++) {
        float *g_bias = (float *)a->exec.scratch + block * bias_floats(a);
        memset(g_bias, 0, (size_t)bias_floats(a) * sizeof(float));
        rotate_tokens_bwd(a, block * TOKENS, kr_smaller((block + 1) * TOKENS, a->no), g_bias);
    }
}

/* Units are KR_PARTIAL_COLUMNS entries of the bias each. */
static void add_bias_blocks(const void *args, int64_t first, int64_t end, int worker)
{
    (void)worker;
    const kr_rotate_bwd_args *a = args;
    for (int64_t unit = first; unit < end; unit++) {
        int64_t i0 = unit * KR_PARTIAL_COLUMNS, n = kr_smaller(KR_PARTIAL_COLUMNS, bias_floats(a) - i0);
        double sum[KR_PARTIAL_COLUMNS];
        kr_add_partials((const float *)a->exec.scratch + i0, kr_blocks(a->no, TOKENS), bias_floats(a), n, sum);
        for (int64_t i = 0; i < n; i++) ((float *)a->g_bias)[i0 + i] = (float)sum[i];
    }
}

size_t KR_FN(rotate_bwd_scratch)(const kr_rotate_bwd_args *a)
{
    return a->g_bias ? (size_t)(kr_blocks(a->no, TOKENS) * bias_floats(a)) * sizeof(float) : 0;
}

void KR_FN(rotate_bwd)(const kr_rotate_bwd_args *a)
{
    const int64_t token = 2 * a->nm * a->nh * a->nr, nblocks = kr_blocks(a->no, TOKENS);
    if (a->nr == 0 || a->ng == 0) return;
    if (!a->g_bias) {
        kr_ranges_run(a->exec.pool, a->no, token, rotate_bwd_tokens, a);
        return;
    }
    kr_ranges_run(a->exec.pool, nblocks, TOKENS * token, rotate_bwd_blocks, a);
    kr_ranges_run(a->exec.pool, kr_blocks(bias_floats(a), KR_PARTIAL_COLUMNS), nblocks * KR_PARTIAL_COLUMNS,
                  add_bias_blocks, a);
}
