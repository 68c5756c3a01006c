/* conv_ref.c - causal depthwise convolution with a carried window, and its gradients.
 *
 *   x, y [b s v]    weight [v k]    bias [v] or none    window, window_out [q v k] or none: the last nk inputs
 * Within a sequence q of length n, tokens numbered from its first:
 *   past(t, v) = x[t, v], for t < 0 window[q, v, nk + t] (0 if there is no window)
 *   u[s, v] = bias[v] + sum over j of weight[v, j] past(s - (nk-1) + j, v);   y = u, or silu(u)
 *   window_out[q, v, j] = past(n - nk + j, v)
 * backward, g_u = g_y (silu'(u)), u recomputed:
 *   g_past(t, v) = sum over j of weight[v, j] g_u[t + (nk-1) - j, v] + g_window_out[q, v, t - (n - nk)]
 *   g_x is g_past at t >= 0, g_window[q, v, nk + t] is g_past at t < 0
 *   g_weight[v, j] = sum over (q, s) of g_u[s, v] past(s - (nk-1) + j, v);   g_bias[v] = sum of g_u
 * Terms outside 0 <= s < n, and window columns outside 0 <= j < nk, are 0.
 */
#include "kernels/ref/ref.h"
#include "kernels/ref/ref_operand.h"
#include "kernels/ref/ref_silu.h"

/* One sequence of either direction. */
typedef struct conv {
    int64_t n, nv, nk; /* tokens, channels, taps */
    int64_t first;     /* token in [b s] */
    kr_operand x;
    int64_t x_first; /* index of the first token's first channel */
    const real *weight, *bias;
    const real *window; /* [v k] or NULL */
} conv;

static double past(const conv *c, int64_t t, int64_t v)
{
    if (t >= 0) return kr_ref_load(c->x.data, c->x.dtype, c->x_first + t * c->x.row + v);
    return c->window ? (double)c->window[v * c->nk + c->nk + t] : 0.0;
}

static double before_activation(const conv *c, int64_t s, int64_t v)
{
    double u = c->bias ? (double)c->bias[v] : 0.0;
    for (int64_t j = 0; j < c->nk; j++) u += (double)c->weight[v * c->nk + j] * past(c, s - (c->nk - 1) + j, v);
    return u;
}

/* Sequence q; works on the arguments of either direction. */
#define SEQUENCE(a, q)                                                                                                 \
    {                                                                                                                  \
        .n = (a)->sequences[q].end - (a)->sequences[q].start, .nv = (a)->nv, .nk = (a)->nk,                            \
        .first = (a)->sequences[q].row * (a)->ns + (a)->sequences[q].start, .x = (a)->x,                               \
        .x_first = (a)->sequences[q].row * (a)->x_batch + (a)->sequences[q].start * (a)->x.row, .weight = (a)->weight, \
        .bias = (a)->bias, .window = (a)->window ? (const real *)(a)->window + (q) * (a)->nv * (a)->nk : NULL          \
    }

void KR_REF(conv)(const kr_conv_args *a)
{
    for (int64_t q = 0; q < a->nq; q++) {
        const conv c = SEQUENCE(a, q);
        for (int64_t s = 0; s < c.n; s++) {
            for (int64_t v = 0; v < a->nv; v++) {
                double u = before_activation(&c, s, v);
                kr_ref_put(&a->y, c.first + s, v, a->silu ? u * sigmoid(u) : u);
            }
        }
        for (int64_t v = 0; a->window_out && v < a->nv; v++)
            for (int64_t j = 0; j < a->nk; j++)
                ((real *)a->window_out)[(q * a->nv + v) * a->nk + j] = (real)past(&c, c.n - a->nk + j, v);
    }
}

/* g_y of a token, from the part that has the channel. */
static double gradient_of_y(const kr_conv_bwd_args *a, int64_t token, int64_t v)
{
    int part = 0;
    while (part + 1 < a->ng_y && v >= a->from[part + 1]) part++;
    return kr_ref_at(&a->g_y[part], token, a->ng_y > 1 ? v - a->from[part] : v);
}

static double gradient_of_u(const kr_conv_bwd_args *a, const conv *c, int64_t s, int64_t v)
{
    double g_y = gradient_of_y(a, c->first + s, v);
    if (!a->silu) return g_y;
    double u = before_activation(c, s, v);
    return g_y * sigmoid(u) * (1.0 + u * sigmoid(-u));
}

static double gradient_of_past(const kr_conv_bwd_args *a, const conv *c, int64_t q, int64_t t, int64_t v)
{
    double sum = 0;
    for (int64_t j = 0; j < c->nk; j++) {
        int64_t s = t + (c->nk - 1) - j;
        if (s >= 0 && s < c->n) sum += (double)c->weight[v * c->nk + j] * gradient_of_u(a, c, s, v);
    }
    int64_t column = t - (c->n - c->nk);
    if (a->g_window_out && column >= 0 && column < c->nk)
        sum += (double)((const real *)a->g_window_out)[(q * c->nv + v) * c->nk + column];
    return sum;
}

static void input_gradients(const kr_conv_bwd_args *a)
{
    real *g_window = a->g_window;
    const bool has_x = a->g_x.data != NULL;
    for (int64_t token = 0; has_x && token < a->nb * a->ns; token++)
        for (int64_t v = 0; v < a->nv; v++) kr_ref_put(&a->g_x, token, v, 0);
    for (int64_t q = 0; q < a->nq; q++) {
        const conv c = SEQUENCE(a, q);
        for (int64_t s = 0; has_x && s < c.n; s++)
            for (int64_t v = 0; v < c.nv; v++) kr_ref_put(&a->g_x, c.first + s, v, gradient_of_past(a, &c, q, s, v));
        for (int64_t v = 0; g_window && v < c.nv; v++)
            for (int64_t j = 0; j < c.nk; j++)
                g_window[(q * c.nv + v) * c.nk + j] = (real)gradient_of_past(a, &c, q, j - c.nk, v);
    }
}

/* The sum over all tokens of g_u times the input at tap j; of g_u alone for j = nk. */
static double sum_over_tokens(const kr_conv_bwd_args *a, int64_t v, int64_t j)
{
    double sum = 0;
    for (int64_t q = 0; q < a->nq; q++) {
        const conv c = SEQUENCE(a, q);
        for (int64_t s = 0; s < c.n; s++)
            sum += gradient_of_u(a, &c, s, v) * (j < a->nk ? past(&c, s - (a->nk - 1) + j, v) : 1.0);
    }
    return sum;
}

void KR_REF(conv_bwd)(const kr_conv_bwd_args *a)
{
    input_gradients(a);
    for (int64_t v = 0; v < a->nv; v++) {
        for (int64_t j = 0; a->g_weight && j < a->nk; j++)
            ((real *)a->g_weight)[v * a->nk + j] = (real)sum_over_tokens(a, v, j);
        if (a->g_bias) ((real *)a->g_bias)[v] = (real)sum_over_tokens(a, v, a->nk);
    }
}
