/* scan_ref.c - the selective scan of Mamba-1: the recurrence and its gradient, token by token.
 *
 *   x, dt, z, y [b s i]   a [i r]   b, c [b s g r]   d [i] or none   z none: no gate   initial, final [q i r]
 *   channel i belongs to group e = i / (ni/ng)
 * forward, each sequence q and channel i:          | backward, t from the last to the first; G [r] starts as g_final
 *   A_t = exp(dt_t a)                              |   g_p = g_y silu(z)                 g_z = g_y p_t silu'(z)
 *   H_t = A_t H_{t-1} + dt_t B_t x_t               |   G      += C_t g_p                 g_C_t += g_p H_t
 *   p_t = <C_t, H_t> + D x_t                       |   g_B_t  += G dt_t x_t              g_D   += g_p x_t
 *   y_t = p_t, or p_t silu(z_t)                    |   g_x_t   = dt_t <G, B_t> + D g_p
 *                                                  |   g_dt_t  = x_t <G, B_t> + <A_t G, a H_{t-1}>
 *                                                  |   g_a    += dt_t A_t G H_{t-1}      G = A_t G, at last g_initial
 * Forward, the state is rounded to its type after each token, so that a sequence has the same bits wherever it is cut. Sums
 * over the channels of a group (g_B, g_C) and over all tokens (g_a, g_D) are held in double. The states of one channel are
 * recomputed and kept for the length of a sequence.
 */
#include "kernels/ref/ref.h"
#include "kernels/ref/ref_operand.h"
#include "kernels/ref/ref_silu.h"
#include "kernels/args/ssd_args.h"

#include <math.h>
#include <string.h>

void KR_REF(scan)(const kr_scan_args *a)
{
    const real *d = a->d, *initial = a->initial;
    const bool is_gated = a->z.data != NULL;
    real *y = a->y, *final = a->final;
    double *state = a->exec.scratch; /* [r] */
    for (int64_t q = 0; q < a->nq; q++) {
        for (int64_t i = 0; i < a->ni; i++) {
            const real *rates = (const real *)a->a + i * a->nr;
            for (int64_t r = 0; r < a->nr; r++) state[r] = initial ? (double)initial[(q * a->ni + i) * a->nr + r] : 0.0;
            for (int64_t s = a->sequences[q].start; s < a->sequences[q].end; s++) {
                int64_t token = a->sequences[q].row * a->ns + s, group = i / (a->ni / a->ng);
                double step = kr_ref_at(&a->dt, token, i), input = kr_ref_at(&a->x, token, i);
                double sum = d ? (double)d[i] * input : 0.0;
                for (int64_t r = 0; r < a->nr; r++) {
                    const double h = exp(step * (double)rates[r]) * state[r] +
                                     step * kr_ref_at(&a->b, token, group * a->nr + r) * input;
                    sum += kr_ref_at(&a->c, token, group * a->nr + r) * h;
                    state[r] = (double)(real)h; /* as between calls */
                }
                double gate = is_gated ? kr_ref_at(&a->z, token, i) : 0.0;
                y[token * a->ni + i] = (real)(is_gated ? sum * gate * sigmoid(gate) : sum);
            }
            for (int64_t r = 0; final && r < a->nr; r++) final[(q * a->ni + i) * a->nr + r] = (real)state[r];
        }
    }
}

size_t KR_REF(scan_scratch)(const kr_scan_args *a)
{
    return (size_t)a->nr * sizeof(double);
}

/* Scratch of the backward pass. */
typedef struct sums {
    double *states;    /* [s+1 r]: before the first token and after each */
    double *g_b, *g_c; /* [s r], of one sequence and group */
    double *g_a;       /* [i r], of all sequences */
    double *g_d;       /* [i] */
    double *g_state;   /* [r] */
} sums;

static sums carve(const kr_scan_bwd_args *a)
{
    double *p = a->exec.scratch;
    const int64_t ns = a->ns, ni = a->ni, nr = a->nr;
    return (sums){ .states = p,
                   .g_b = p + (ns + 1) * nr,
                   .g_c = p + (2 * ns + 1) * nr,
                   .g_state = p + (3 * ns + 1) * nr,
                   .g_a = p + (3 * ns + 2) * nr,
                   .g_d = p + (3 * ns + 2 + ni) * nr };
}

size_t KR_REF(scan_bwd_scratch)(const kr_scan_bwd_args *a)
{
    return (size_t)((3 * a->ns + 2 + a->ni) * a->nr + a->ni) * sizeof(double);
}

/* One channel of one sequence. */
typedef struct channel {
    kr_sequence tokens;
    int64_t i, state; /* the channel; its first element in initial and final */
    int64_t group;    /* of the channel */
    const real *a;    /* [r] */
} channel;

/* The channel's operands of a token. */
static double b_at(const kr_scan_bwd_args *a, const channel *k, int64_t token, int64_t r)
{
    return kr_ref_at(&a->b, token, k->group * a->nr + r);
}

static double c_at(const kr_scan_bwd_args *a, const channel *k, int64_t token, int64_t r)
{
    return kr_ref_at(&a->c, token, k->group * a->nr + r);
}

static double x_at(const kr_scan_bwd_args *a, const channel *k, int64_t token)
{
    return kr_ref_at(&a->x, token, k->i);
}

static double dt_at(const kr_scan_bwd_args *a, const channel *k, int64_t token)
{
    return kr_ref_at(&a->dt, token, k->i);
}

static void recompute_states(const kr_scan_bwd_args *a, const channel *k, double *states)
{
    const real *initial = a->initial;
    for (int64_t r = 0; r < a->nr; r++) states[r] = initial ? (double)initial[k->state + r] : 0.0;
    for (int64_t s = k->tokens.start; s < k->tokens.end; s++, states += a->nr) {
        int64_t token = k->tokens.row * a->ns + s;
        double step = dt_at(a, k, token), input = x_at(a, k, token);
        for (int64_t r = 0; r < a->nr; r++)
            states[a->nr + r] = exp(step * (double)k->a[r]) * states[r] + step * b_at(a, k, token, r) * input;
    }
}

/* The gradient of p_t; also writes g_z. */
static double through_gate(const kr_scan_bwd_args *a, const channel *k, int64_t token, double p)
{
    int64_t at = token * a->ni + k->i;
    double g_y = (double)((const real *)a->g_y)[at];
    if (!a->z.data) return g_y;
    double z = kr_ref_at(&a->z, token, k->i), s = sigmoid(z);
    if (a->g_z) ((real *)a->g_z)[at] = (real)(g_y * p * s * (1.0 + z * sigmoid(-z)));
    return g_y * z * s;
}

/* Token s of a channel; states points at H_{t-1}, H_t follows. */
static void token_gradients(const kr_scan_bwd_args *a, const channel *k, const sums *u, int64_t s, const double *states)
{
    const int64_t nr = a->nr, token = k->tokens.row * a->ns + s, at = token * a->ni + k->i;
    double step = dt_at(a, k, token), input = x_at(a, k, token);
    double skip = a->d ? (double)((const real *)a->d)[k->i] : 0.0, p = skip * input;
    for (int64_t r = 0; r < nr; r++) p += c_at(a, k, token, r) * states[nr + r];
    double g_p = through_gate(a, k, token, p), along_b = 0, g_step = 0;
    double *g_b = u->g_b + (s - k->tokens.start) * nr, *g_c = u->g_c + (s - k->tokens.start) * nr;
    for (int64_t r = 0; r < nr; r++) {
        double g = u->g_state[r] + c_at(a, k, token, r) * g_p, decay = exp(step * (double)k->a[r]);
        g_c[r] += g_p * states[nr + r];
        g_b[r] += g * step * input;
        along_b += g * b_at(a, k, token, r);
        g_step += decay * g * (double)k->a[r] * states[r];
        u->g_a[k->i * nr + r] += step * decay * g * states[r];
        u->g_state[r] = decay * g;
    }
    u->g_d[k->i] += g_p * input;
    if (a->g_x) ((real *)a->g_x)[at] = (real)(step * along_b + skip * g_p);
    if (a->g_dt) ((real *)a->g_dt)[at] = (real)(input * along_b + g_step);
}

static void channel_gradients(const kr_scan_bwd_args *a, const channel *k, const sums *u)
{
    const real *g_final = a->g_final;
    recompute_states(a, k, u->states);
    for (int64_t r = 0; r < a->nr; r++) u->g_state[r] = g_final ? (double)g_final[k->state + r] : 0.0;
    for (int64_t s = k->tokens.end - 1; s >= k->tokens.start; s--)
        token_gradients(a, k, u, s, u->states + (s - k->tokens.start) * a->nr);
    for (int64_t r = 0; a->g_initial && r < a->nr; r++) ((real *)a->g_initial)[k->state + r] = (real)u->g_state[r];
}

static void group_gradients(const kr_scan_bwd_args *a, const sums *u, int64_t q, int64_t group)
{
    const int64_t width = a->ni / a->ng, nr = a->nr;
    const kr_sequence tokens = a->sequences[q];
    const int64_t length = tokens.end - tokens.start;
    memset(u->g_b, 0, (size_t)(length * nr) * sizeof *u->g_b);
    memset(u->g_c, 0, (size_t)(length * nr) * sizeof *u->g_c);
    for (int64_t i = group * width; i < (group + 1) * width; i++) {
        const channel k = { tokens, i, (q * a->ni + i) * nr, group, (const real *)a->a + i * nr };
        channel_gradients(a, &k, u);
    }
    for (int64_t s = 0; s < length; s++) {
        int64_t at_bc = ((tokens.row * a->ns + tokens.start + s) * a->ng + group) * nr;
        for (int64_t r = 0; r < nr; r++) {
            if (a->g_b) ((real *)a->g_b)[at_bc + r] = (real)u->g_b[s * nr + r];
            if (a->g_c) ((real *)a->g_c)[at_bc + r] = (real)u->g_c[s * nr + r];
        }
    }
}

/* Tokens of no sequence have gradient 0. */
static void clear(void *g, int64_t count)
{
    if (g) memset(g, 0, (size_t)count * sizeof(real));
}

void KR_REF(scan_bwd)(const kr_scan_bwd_args *a)
{
    const sums u = carve(a);
    clear(a->g_x, a->nb * a->ns * a->ni);
    clear(a->g_dt, a->nb * a->ns * a->ni);
    clear(a->g_z, a->nb * a->ns * a->ni);
    clear(a->g_b, a->nb * a->ns * a->ng * a->nr);
    clear(a->g_c, a->nb * a->ns * a->ng * a->nr);
    memset(u.g_a, 0, (size_t)(a->ni * a->nr) * sizeof *u.g_a);
    memset(u.g_d, 0, (size_t)a->ni * sizeof *u.g_d);
    for (int64_t q = 0; q < a->nq; q++)
        for (int64_t group = 0; group < a->ng; group++) group_gradients(a, &u, q, group);
    for (int64_t j = 0; a->g_a && j < a->ni * a->nr; j++) ((real *)a->g_a)[j] = (real)u.g_a[j];
    for (int64_t i = 0; a->g_d && i < a->ni; i++) ((real *)a->g_d)[i] = (real)u.g_d[i];
}
