/* rotate_cpu.c - pairs of a row turned by their angles, and the gradients, in f32 vectors.
 *
 *   x, y [no nm nh nr]    angle [no nh na]    pair i is (2i, 2i + 1), or with half (i, i + nr/2); other entries pass
 *   (y0, y1) = (x0 cos - x1 sin, x0 sin + x1 cos)
 * backward: (g_x0, g_x1) = (g_y0 cos + g_y1 sin, g_y1 cos - g_y0 sin);   g_angle = sum over m of x0 g_x1 - x1 g_x0
 *
 * A token is one unit of work. VF angles at a time have their sine and cosine taken once for all ranks. Adjacent pairs
 * are turned where they lie: y = x (c, c) + swap(x) (-s, s).
 */
#include "kernels/cpu/isa.h"
#include "kernels/cpu/ranges.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/vec_lanes.h"
#include "kernels/cpu/vec_trig.h"

/* -1, 1, -1, 1, ... */
static const float alternating[16] = { -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1 };

/* Rows of one token and head: rank m's is m * m_stride after the first. */
typedef struct rows {
    int64_t nm, m_stride, nr, na;
    const float *angle, *x, *g_y;
    float *y, *g_x, *g_angle; /* NULL where not wanted */
} rows;

/* What lies between and behind the pairs, of all ranks. */
KR_INLINE void pass(const rows *k, const float *from, float *to, bool half)
{
    int64_t end = half ? k->nr / 2 : k->nr, first = half ? k->na : 2 * k->na;
    for (int64_t m = 0; m < k->nm; m++) {
        int64_t at = m * k->m_stride + first;
        row_copy(to + at, from + at, end - first);
        if (half) row_copy(to + at + end, from + at + end, end - first);
    }
}

/* ---- pairs half a row apart ---- */

KR_INLINE void turn_half(const rows *k, int64_t i, int64_t n)
{
    vf s, c;
    vf_sincos(row_load(k->angle + i, n), &s, &c);
    for (int64_t m = 0; m < k->nm; m++) {
        int64_t at = m * k->m_stride + i, other = at + k->nr / 2;
        vf x0 = row_load(k->x + at, n), x1 = row_load(k->x + other, n);
        row_store(k->y + at, n, vf_fnma(x1, s, vf_mul(x0, c)));
        row_store(k->y + other, n, vf_fma(x0, s, vf_mul(x1, c)));
    }
}

KR_INLINE void turn_back_half(const rows *k, int64_t i, int64_t n)
{
    vf s, c, sum = vf_zero();
    vf_sincos(row_load(k->angle + i, n), &s, &c);
    for (int64_t m = 0; m < k->nm; m++) {
        int64_t at = m * k->m_stride + i, other = at + k->nr / 2;
        vf x0 = row_load_ahead(k->x + at, n, k->nr), x1 = row_load_ahead(k->x + other, n, k->nr);
        vf g0 = row_load_ahead(k->g_y + at, n, k->nr), g1 = row_load_ahead(k->g_y + other, n, k->nr);
        vf g_x0 = vf_fma(g1, s, vf_mul(g0, c)), g_x1 = vf_fnma(g0, s, vf_mul(g1, c));
        if (k->g_x) {
            row_store(k->g_x + at, n, g_x0);
            row_store(k->g_x + other, n, g_x1);
        }
        sum = vf_fnma(x1, g_x0, vf_fma(x0, g_x1, sum));
    }
    if (k->g_angle) row_store(k->g_angle + i, n, sum);
}

/* ---- adjacent pairs ---- */

KR_INLINE vf turned(vf x, vf c, vf s)
{
    return vf_fma(vf_swap_pairs(x), s, vf_mul(x, c));
}

/* Angles i .. i+n-1 are entries 2i .. 2i+2n-1 of the rows: two vectors. */
KR_INLINE void turn_adjacent(const rows *k, int64_t i, int64_t n)
{
    vf s, c, sign = vf_load(alternating);
    vf_sincos(row_load(k->angle + i, n), &s, &c);
    vf c0 = vf_twice_low(c), c1 = vf_twice_high(c);
    vf s0 = vf_mul(sign, vf_twice_low(s)), s1 = vf_mul(sign, vf_twice_high(s));
    int64_t n0 = 2 * n, n1 = 2 * n - VF;
    for (int64_t m = 0; m < k->nm; m++) {
        int64_t at = m * k->m_stride + 2 * i;
        row_store(k->y + at, n0, turned(row_load(k->x + at, n0), c0, s0));
        if (n1 > 0) row_store(k->y + at + VF, n1, turned(row_load(k->x + at + VF, n1), c1, s1));
    }
}

/* One vector of pairs turned back; adds (x0 g_x1, x1 g_x0) to sum. */
KR_INLINE vf turn_back(const rows *k, int64_t at, int64_t n, vf c, vf s, vf sum)
{
    vf x = row_load_ahead(k->x + at, n, k->nr), g_x = turned(row_load_ahead(k->g_y + at, n, k->nr), c, s);
    if (k->g_x) row_store(k->g_x + at, n, g_x);
    return vf_fma(x, vf_swap_pairs(g_x), sum);
}

KR_INLINE void turn_back_adjacent(const rows *k, int64_t i, int64_t n)
{
    vf s, c, sign = vf_neg(vf_load(alternating)), sum0 = vf_zero(), sum1 = vf_zero();
    vf_sincos(row_load(k->angle + i, n), &s, &c);
    vf c0 = vf_twice_low(c), c1 = vf_twice_high(c);
    vf s0 = vf_mul(sign, vf_twice_low(s)), s1 = vf_mul(sign, vf_twice_high(s));
    int64_t n0 = 2 * n, n1 = 2 * n - VF;
    for (int64_t m = 0; m < k->nm; m++) {
        int64_t at = m * k->m_stride + 2 * i;
        sum0 = turn_back(k, at, n0, c0, s0, sum0);
        if (n1 > 0) sum1 = turn_back(k, at + VF, n1, c1, s1, sum1);
    }
    sum0 = vf_sub(sum0, vf_swap_pairs(sum0));
    sum1 = vf_sub(sum1, vf_swap_pairs(sum1));
    if (k->g_angle) row_store(k->g_angle + i, n, vf_evens(sum0, sum1));
}

/* ---- tokens ---- */

#define OVER_ANGLES(k, body)                                                                                           \
    do {                                                                                                               \
        int64_t i = 0;                                                                                                 \
        for (; i + VF <= (k)->na; i += VF) body((k), i, VF);                                                           \
        if (i < (k)->na) body((k), i, (k)->na - i);                                                                    \
    } while (0)

static void rotate_tokens(const void *args, int64_t first, int64_t end, int worker)
{
    (void)worker;
    const kr_rotate_args *a = args;
    for (int64_t oh = first * a->nh; oh < end * a->nh; oh++) {
        int64_t at = (oh / a->nh * a->nm * a->nh + oh % a->nh) * a->nr;
        rows k = { .nm = a->nm, .m_stride = a->nh * a->nr, .nr = a->nr, .na = a->na };
        k.angle = (const float *)a->angle + oh * a->na;
        k.x = (const float *)a->x + at;
        k.y = (float *)a->y + at;
        if (a->half) OVER_ANGLES(&k, turn_half);
        else OVER_ANGLES(&k, turn_adjacent);
        pass(&k, k.x, k.y, a->half);
    }
}

void KR_FN(rotate)(const kr_rotate_args *a)
{
    if (a->nr > 0) kr_ranges_run(a->exec.pool, a->no, a->nm * a->nh * a->nr, rotate_tokens, a);
}

static void rotate_bwd_tokens(const void *args, int64_t first, int64_t end, int worker)
{
    (void)worker;
    const kr_rotate_bwd_args *a = args;
    for (int64_t oh = first * a->nh; oh < end * a->nh; oh++) {
        int64_t at = (oh / a->nh * a->nm * a->nh + oh % a->nh) * a->nr;
        rows k = { .nm = a->nm, .m_stride = a->nh * a->nr, .nr = a->nr, .na = a->na };
        k.angle = (const float *)a->angle + oh * a->na;
        k.x = (const float *)a->x + at;
        k.g_y = (const float *)a->g_y + at;
        if (a->g_x) k.g_x = (float *)a->g_x + at;
        if (a->g_angle) k.g_angle = (float *)a->g_angle + oh * a->na;
        if (a->half) OVER_ANGLES(&k, turn_back_half);
        else OVER_ANGLES(&k, turn_back_adjacent);
        if (k.g_x) pass(&k, k.g_y, k.g_x, a->half);
    }
}

void KR_FN(rotate_bwd)(const kr_rotate_bwd_args *a)
{
    if (a->nr > 0) kr_ranges_run(a->exec.pool, a->no, 2 * a->nm * a->nh * a->nr, rotate_bwd_tokens, a);
}
