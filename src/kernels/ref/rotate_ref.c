/* rotate_ref.c - rotary embedding: pairs of a row rotated by their angles, and the gradients.
 *
 *   x [no nm ng nr]    bias [nh nm nr]    y [no nm nh nr]    angle [no nh na]
 *   u = x + bias, x repeated for the heads of its group; pair i is (2i, 2i + 1), or with split_pairs (i, i + nr/2)
 *   (y0, y1) = (u0 cos - u1 sin, u0 sin + u1 cos); other entries are copied
 * backward: (g_u0, g_u1) = (g_y0 cos + g_y1 sin, g_y1 cos - g_y0 sin);   g_angle = sum over m of u0 g_u1 - u1 g_u0
 *           g_x = sum over the group's heads of g_u;   g_bias = sum over o of g_u
 */
#include "kernels/ref/ref.h"
#include "kernels/ref/ref_operand.h"

#include <math.h>

/* Pair i of a row is (i step, i step + distance). */
typedef struct pairs {
    int64_t na, step, distance;
} pairs;

static pairs pairs_of(int64_t nr, int64_t na, bool split_pairs)
{
    return split_pairs ? (pairs){ na, 1, nr / 2 } : (pairs){ na, 2, 1 };
}

/* The other entry of entry r's pair, and its angle's index; -1 if it is not rotated. */
static int64_t partner(const pairs *n, int64_t r, int64_t *angle, double *sign)
{
    const int64_t first = n->step == 1 ? r % n->distance : r / 2 * 2;
    *angle = first / n->step;
    if (*angle >= n->na || (n->step == 1 && r >= 2 * n->distance)) return -1;
    *sign = r == first ? -1 : 1;
    return r == first ? r + n->distance : first;
}

/* Entry r of the row x + bias. */
static double entry(const real *x, const real *bias, int64_t r)
{
    return (double)x[r] + (bias ? (double)bias[r] : 0);
}

/* Entry r of the row x + bias, its pair rotated by `direction` times its angle. */
static double rotated(const pairs *n, const real *x, const real *bias, const real *angle, double direction, int64_t r)
{
    int64_t i;
    double sign;
    const int64_t other = partner(n, r, &i, &sign);
    if (other < 0) return entry(x, bias, r);
    const double c = cos((double)angle[i]), s = direction * sin((double)angle[i]);
    return entry(x, bias, r) * c + sign * entry(x, bias, other) * s;
}

void KR_REF(rotate)(const kr_rotate_args *a)
{
    const pairs n = pairs_of(a->nr, a->na, a->split_pairs);
    for (int64_t row = 0; a->ng > 0 && row < a->no * a->nm * a->nh; row++) {
        const int64_t om = row / a->nh, o = om / a->nm, m = om % a->nm, h = row % a->nh, group = h / (a->nh / a->ng);
        const real *x = (const real *)a->x + (om * a->ng + group) * a->nr;
        const real *bias = a->bias ? (const real *)a->bias + (h * a->nm + m) * a->nr : NULL;
        const real *angle = (const real *)a->angle + (o * a->nh + h) * a->na;
        for (int64_t r = 0; r < a->nr; r++)
            kr_ref_store(a->y.data, a->y.dtype, row * a->nr + r, rotated(&n, x, bias, angle, 1, r));
    }
}

/* ---- gradients ---- */

/* g_u of entry r, rank m of token o and head h. */
static double rotated_back(const kr_rotate_bwd_args *a, const pairs *n, int64_t o, int64_t m, int64_t h, int64_t r)
{
    const real *g_y = (const real *)a->g_y + ((o * a->nm + m) * a->nh + h) * a->nr;
    return rotated(n, g_y, NULL, (const real *)a->angle + (o * a->nh + h) * a->na, -1, r);
}

static void input_gradient(const kr_rotate_bwd_args *a, const pairs *n)
{
    const int64_t each = a->nh / a->ng;
    for (int64_t at = 0; at < a->no * a->nm * a->ng * a->nr; at++) {
        const int64_t row = at / a->nr, om = row / a->ng, h0 = row % a->ng * each;
        double sum = 0;
        for (int64_t h = h0; h < h0 + each; h++) sum += rotated_back(a, n, om / a->nm, om % a->nm, h, at % a->nr);
        ((real *)a->g_x)[at] = (real)sum;
    }
}

static void bias_gradient(const kr_rotate_bwd_args *a, const pairs *n)
{
    for (int64_t at = 0; at < a->nh * a->nm * a->nr; at++) {
        const int64_t row = at / a->nr;
        double sum = 0;
        for (int64_t o = 0; o < a->no; o++) sum += rotated_back(a, n, o, row % a->nm, row / a->nm, at % a->nr);
        ((real *)a->g_bias)[at] = (real)sum;
    }
}

/* One token and head, all ranks. */
static void angle_gradient(const kr_rotate_bwd_args *a, const pairs *n, int64_t o, int64_t h)
{
    for (int64_t i = 0; i < a->na; i++) {
        const int64_t r = i * n->step, other = r + n->distance;
        double sum = 0;
        for (int64_t m = 0; m < a->nm; m++) {
            const real *x = (const real *)a->x + ((o * a->nm + m) * a->ng + h / (a->nh / a->ng)) * a->nr;
            const real *bias = a->bias ? (const real *)a->bias + (h * a->nm + m) * a->nr : NULL;
            sum += entry(x, bias, r) * rotated_back(a, n, o, m, h, other) -
                   entry(x, bias, other) * rotated_back(a, n, o, m, h, r);
        }
        real *g_angle = (real *)a->g_angle + (o * a->nh + h) * a->na + i;
        *g_angle = a->accumulate ? *g_angle + (real)sum : (real)sum;
    }
}

void KR_REF(rotate_bwd)(const kr_rotate_bwd_args *a)
{
    const pairs n = pairs_of(a->nr, a->na, a->split_pairs);
    if (a->ng == 0) return;
    if (a->g_x) input_gradient(a, &n);
    if (a->g_bias) bias_gradient(a, &n);
    for (int64_t oh = 0; a->g_angle && oh < a->no * a->nh; oh++) angle_gradient(a, &n, oh / a->nh, oh % a->nh);
}
