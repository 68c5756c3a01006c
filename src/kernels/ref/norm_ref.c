/* norm_ref.c - RMS norm over groups of the last axis, with an optional gate.
 *
 *   x, z, y [no ni]    gain [ni] or none (1)    q [no ng]    z none: no gate
 *   gate first: u = x silu(z);  q = (mean_group(u^2) + eps)^-1/2;  y = u q gain
 *   norm first: u = x;          q as above;                        y = u q gain silu(z)
 * backward, w = gain g_y (norm first: gain g_y silu(z)):
 *   g_u = q w - q^3 u mean_group(w u), which is eps q^3 w in a group of one channel
 *   gate first: g_x = g_u silu(z), g_z = g_u x silu'(z);   norm first: g_x = g_u, g_z = u q gain g_y silu'(z)
 *   g_gain[i] = sum over rows of g_y u q (silu(z) if norm first)
 * u is recomputed, q is given.
 */
#include "kernels/ref/ref.h"
#include "kernels/ref/ref_operand.h"
#include "kernels/ref/ref_silu.h"

#include <math.h>

/* Factors of the gate: of u, and of y. */
typedef struct gate {
    double of_u, of_y;
    double slope; /* silu'(z) */
} gate;

/* Of element i of row o. */
static gate gate_at(const kr_operand *z, int64_t o, int64_t i, bool norm_first)
{
    gate g = { 1.0, 1.0, 0.0 };
    if (!z->data) return g;
    double v = kr_ref_at(z, o, i), s = sigmoid(v);
    *(norm_first ? &g.of_y : &g.of_u) = v * s;
    g.slope = s * (1.0 + v * sigmoid(-v));
    return g;
}

void KR_REF(norm)(const kr_norm_args *a)
{
    const real *gain = a->gain;
    int64_t width = a->ng ? a->ni / a->ng : 0;
    for (int64_t group = 0; group < a->no * a->ng; group++) {
        int64_t o = group / a->ng, channel = group % a->ng * width;
        double squares = 0;
        for (int64_t i = channel; i < channel + width; i++) {
            double u = kr_ref_at(&a->x, o, i) * gate_at(&a->z, o, i, a->norm_first).of_u;
            squares += u * u;
        }
        double scale = 1.0 / sqrt(squares / (double)width + a->eps);
        ((real *)a->q)[group] = (real)scale;
        for (int64_t i = channel; i < channel + width; i++) {
            gate g = gate_at(&a->z, o, i, a->norm_first);
            double factor = gain ? (double)gain[i] : 1.0;
            kr_ref_put(&a->y, o, i, kr_ref_at(&a->x, o, i) * g.of_u * scale * factor * g.of_y);
        }
    }
}

static void norm_bwd_group(const kr_norm_bwd_args *a, int64_t group)
{
    const real *gain = a->gain;
    int64_t width = a->ni / a->ng, o = group / a->ng, channel = group % a->ng * width;
    double q = (double)((const real *)a->q)[group], wu = 0;
    for (int64_t i = channel; i < channel + width; i++) {
        gate g = gate_at(&a->z, o, i, a->norm_first);
        double factor = gain ? (double)gain[i] : 1.0;
        wu += factor * kr_ref_at(&a->g_y, o, i) * g.of_y * kr_ref_at(&a->x, o, i) * g.of_u;
    }
    for (int64_t i = channel; i < channel + width; i++) {
        gate g = gate_at(&a->z, o, i, a->norm_first);
        double x = kr_ref_at(&a->x, o, i), u = x * g.of_u;
        double g_out = (gain ? (double)gain[i] : 1.0) * kr_ref_at(&a->g_y, o, i);
        double g_u = q * g_out * g.of_y - q * q * q * u * (wu / (double)width);
        if (width == 1) g_u = a->eps * q * q * q * g_out * g.of_y;
        if (a->g_x.data && a->accumulate)
            kr_ref_put(&a->g_x, o, i, kr_ref_at(&a->g_x, o, i) + (double)(real)(g_u * g.of_u));
        else if (a->g_x.data) kr_ref_put(&a->g_x, o, i, g_u * g.of_u);
        if (a->g_z.data) kr_ref_put(&a->g_z, o, i, (a->norm_first ? u * q * g_out : g_u * x) * g.slope);
    }
}

#define CHANNELS 64 /* channels per pass of the gain's gradient */

static void gain_gradient(const kr_norm_bwd_args *a)
{
    const real *q = a->q;
    real *g_gain = a->g_gain;
    int64_t width = a->ng ? a->ni / a->ng : 0;
    for (int64_t i0 = 0; i0 < a->ni; i0 += CHANNELS) {
        double sum[CHANNELS] = { 0 };
        int64_t end = kr_ref_min(i0 + CHANNELS, a->ni);
        for (int64_t o = 0; o < a->no; o++) {
            for (int64_t i = i0; i < end; i++) {
                gate g = gate_at(&a->z, o, i, a->norm_first);
                sum[i - i0] += kr_ref_at(&a->g_y, o, i) * kr_ref_at(&a->x, o, i) * g.of_u * g.of_y *
                               (double)q[o * a->ng + i / width];
            }
        }
        for (int64_t i = i0; i < end; i++) g_gain[i] = (real)sum[i - i0];
    }
}

void KR_REF(norm_bwd)(const kr_norm_bwd_args *a)
{
    if (a->g_x.data || a->g_z.data)
        for (int64_t group = 0; group < a->no * a->ng; group++) norm_bwd_group(a, group);
    if (a->g_gain) gain_gradient(a);
}
