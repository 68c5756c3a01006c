/* rotate_ref.c - pairs of a row turned by their angles, and the gradients.
 *
 *   x, y [no nm nh nr]    angle [no nh na]    pair i is (2i, 2i + 1), or with half (i, i + nr/2); other entries pass
 *   (y0, y1) = (x0 cos - x1 sin, x0 sin + x1 cos)
 * backward: (g_x0, g_x1) = (g_y0 cos + g_y1 sin, g_y1 cos - g_y0 sin);   g_angle = sum over m of x0 g_x1 - x1 g_x0
 */
#include "kernels/ref/ref.h"

#include <math.h>

/* Where the entries of pair i lie in a row. */
typedef struct pairs {
    int64_t na, step, apart;
} pairs;

static pairs pairs_of(int64_t nr, int64_t na, bool half)
{
    return half ? (pairs){ na, 1, nr / 2 } : (pairs){ na, 2, 1 };
}

/* Turns the pairs of a row by sign * angle. */
static void turn(const pairs *n, int64_t nr, const real *x, const real *angle, double sign, real *y)
{
    for (int64_t i = 0; i < nr; i++) y[i] = x[i];
    for (int64_t i = 0; i < n->na; i++) {
        const int64_t at = i * n->step, other = at + n->apart;
        const double c = cos((double)angle[i]), s = sign * sin((double)angle[i]);
        const double x0 = (double)x[at], x1 = (double)x[other];
        y[at] = (real)(x0 * c - x1 * s);
        y[other] = (real)(x0 * s + x1 * c);
    }
}

void KR_REF(rotate)(const kr_rotate_args *a)
{
    const pairs n = pairs_of(a->nr, a->na, a->half);
    for (int64_t row = 0; row < a->no * a->nm * a->nh; row++) {
        const int64_t o = row / (a->nm * a->nh), h = row % a->nh;
        turn(&n, a->nr, (const real *)a->x + row * a->nr, (const real *)a->angle + (o * a->nh + h) * a->na, 1,
             (real *)a->y + row * a->nr);
    }
}

/* One token and head, all ranks. */
static void angle_gradient(const kr_rotate_bwd_args *a, const pairs *n, int64_t o, int64_t h)
{
    for (int64_t i = 0; i < a->na; i++) {
        const int64_t place = (o * a->nh + h) * a->na + i;
        const double angle = (double)((const real *)a->angle)[place], c = cos(angle), s = sin(angle);
        double sum = 0;
        for (int64_t m = 0; m < a->nm; m++) {
            const int64_t at = ((o * a->nm + m) * a->nh + h) * a->nr + i * n->step, other = at + n->apart;
            const real *x = a->x, *g_y = a->g_y;
            const double g0 = (double)g_y[at], g1 = (double)g_y[other];
            sum += (double)x[at] * (g1 * c - g0 * s) - (double)x[other] * (g0 * c + g1 * s);
        }
        ((real *)a->g_angle)[place] = (real)sum;
    }
}

void KR_REF(rotate_bwd)(const kr_rotate_bwd_args *a)
{
    const pairs n = pairs_of(a->nr, a->na, a->half);
    for (int64_t row = 0; a->g_x && row < a->no * a->nm * a->nh; row++) {
        const int64_t o = row / (a->nm * a->nh), h = row % a->nh;
        turn(&n, a->nr, (const real *)a->g_y + row * a->nr, (const real *)a->angle + (o * a->nh + h) * a->na, -1,
             (real *)a->g_x + row * a->nr);
    }
    for (int64_t oh = 0; a->g_angle && oh < a->no * a->nh; oh++) angle_gradient(a, &n, oh / a->nh, oh % a->nh);
}
