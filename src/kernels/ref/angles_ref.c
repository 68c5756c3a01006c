/* angles_ref.c - rotation angles accumulated along each sequence, wrapped, and their gradients.
 *
 *   theta [b s a]    dt [b s h]    angle [b s h a]    initial, final [q h a]
 *   phi_t = wrap(phi_{t-1} + dt_t[h] range pi tanh(theta_t[a])),   wrap(x) = x - 2 pi round(x / 2 pi)
 *   every nl tokens phi is rounded to its type, as between calls
 * backward, G_t = g_final + sum of g_angle_k over k >= t:
 *   g_initial = G_start;   g_dt_t[h] = range pi sum_a G_t tanh(theta_t[a])
 *   g_theta_t[a] = range pi (1 - tanh^2) sum_h dt_t[h] G_t
 */
#include "kernels/ref/ref.h"
#include "kernels/ref/ref_operand.h"

#include <math.h>

#define PI 3.14159265358979323846

static double wrap(double x)
{
    return x - 2 * PI * rint(x / (2 * PI));
}

void KR_REF(angles)(const kr_angles_args *n)
{
    const real *dt = n->dt, *initial = n->initial;
    real *angle = n->angle, *final = n->final;
    for (int64_t q = 0; q < n->nq; q++) {
        const kr_sequence sequence = n->sequences[q];
        for (int64_t ha = 0; ha < n->nh * n->na; ha++) {
            const int64_t h = ha / n->na, a = ha % n->na;
            double phi = initial ? wrap((double)initial[q * n->nh * n->na + ha]) : 0.0;
            for (int64_t s = sequence.start; s < sequence.end; s++) {
                const int64_t token = sequence.row * n->ns + s;
                const bool starts_chunk = n->nl > 0 && s > sequence.start && (s - sequence.start) % n->nl == 0;
                if (starts_chunk) phi = wrap((double)(real)phi);
                const double rate = n->range * PI * tanh(kr_ref_at(&n->theta, token, a));
                phi = wrap(phi + (double)dt[token * n->nh + h] * rate);
                angle[token * n->nh * n->na + ha] = (real)phi;
            }
            final[q * n->nh * n->na + ha] = (real)phi;
        }
    }
}

enum { TOKENS = 256 }; /* tokens per block */

/* Tokens t0 .. t1-1 of sequence q, their first in memory, and the sum over one axis for each of them. */
typedef struct block {
    int64_t q, t0, t1, token;
    double sum[TOKENS];
} block;

/* G_t[h, a], summed from the end of the sequence to t. */
static double total_from(const kr_angles_bwd_args *n, int64_t q, int64_t t, int64_t ha)
{
    const real *g_angle = n->g_angle, *g_final = n->g_final;
    const int64_t width = n->nh * n->na;
    double total = g_final ? (double)g_final[q * width + ha] : 0.0;
    for (int64_t s = n->sequences[q].end - 1; s >= t; s--)
        total += (double)g_angle[(n->sequences[q].row * n->ns + s) * width + ha];
    return total;
}

/* sum_t += G_t[h, a] (dt_t[h] or tanh(theta_t[a])) */
static void add_terms(const kr_angles_bwd_args *n, block *k, int64_t h, int64_t a, bool by_dt)
{
    const real *g_angle = n->g_angle, *dt = n->dt;
    double total = total_from(n, k->q, k->t1, h * n->na + a);
    for (int64_t i = k->t1 - k->t0 - 1; i >= 0; i--) {
        const int64_t token = k->token + i;
        total += (double)g_angle[(token * n->nh + h) * n->na + a];
        k->sum[i] += total * (by_dt ? (double)dt[token * n->nh + h] : tanh(kr_ref_at(&n->theta, token, a)));
    }
}

static void block_gradients(const kr_angles_bwd_args *n, block *k)
{
    const int64_t length = k->t1 - k->t0;
    for (int64_t h = 0; n->g_dt && h < n->nh; h++) {
        for (int64_t i = 0; i < length; i++) k->sum[i] = 0;
        for (int64_t a = 0; a < n->na; a++) add_terms(n, k, h, a, false);
        for (int64_t i = 0; i < length; i++)
            ((real *)n->g_dt)[(k->token + i) * n->nh + h] = (real)(n->range * PI * k->sum[i]);
    }
    for (int64_t a = 0; n->g_theta.data && a < n->na; a++) {
        for (int64_t i = 0; i < length; i++) k->sum[i] = 0;
        for (int64_t h = 0; h < n->nh; h++) add_terms(n, k, h, a, true);
        for (int64_t i = 0; i < length; i++) {
            const double u = tanh(kr_ref_at(&n->theta, k->token + i, a));
            kr_ref_put(&n->g_theta, k->token + i, a, n->range * PI * (1 - u * u) * k->sum[i]);
        }
    }
}

void KR_REF(angles_bwd)(const kr_angles_bwd_args *n)
{
    for (int64_t q = 0; q < n->nq; q++) {
        const kr_sequence sequence = n->sequences[q];
        for (int64_t t = sequence.start; t < sequence.end; t += TOKENS) {
            block k = { .q = q, .t0 = t, .t1 = kr_ref_min(t + TOKENS, sequence.end) };
            k.token = sequence.row * n->ns + t;
            block_gradients(n, &k);
        }
        for (int64_t ha = 0; n->g_initial && ha < n->nh * n->na; ha++)
            ((real *)n->g_initial)[q * n->nh * n->na + ha] = (real)total_from(n, q, sequence.start, ha);
    }
}
