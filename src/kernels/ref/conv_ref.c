/* conv_ref.c - causal depthwise convolution with a carried window, and its gradients.
 *
 *   x, y [b s v]    weight [v k]    bias [v] or none    window, window_out [b v k] or none: the last nk inputs
 *   past(b, t, v) = x[b, t, v], for t < 0 window[b, v, nk + t] (0 if there is no window)
 *   u[b, s, v] = bias[v] + sum over j of weight[v, j] past(b, s - (nk-1) + j, v);   y = u, or silu(u)
 *   window_out[b, v, j] = past(b, ns - nk + j, v)
 * backward, g_u = g_y (silu'(u)), u recomputed:
 *   g_past(b, t, v) = sum over j of weight[v, j] g_u[b, t + (nk-1) - j, v] + g_window_out[b, v, t - (ns - nk)]
 *   g_x is g_past at t >= 0, g_window[b, v, nk + t] is g_past at t < 0
 *   g_weight[v, j] = sum over (b, s) of g_u[b, s, v] past(b, s - (nk-1) + j, v);   g_bias[v] = sum of g_u
 * Terms outside 0 <= s < ns, and window columns outside 0 <= j < nk, are 0.
 */
#include "kernels/ref/ref.h"

#include <math.h>

static double sigmoid(double x)
{
    return 1.0 / (1.0 + exp(-x));
}

/* The inputs of either direction. */
typedef struct conv {
    int64_t ns, nv, nk;
    const real *x, *weight, *bias, *window;
} conv;

static double past(const conv *c, int64_t b, int64_t t, int64_t v)
{
    if (t >= 0) return (double)c->x[(b * c->ns + t) * c->nv + v];
    return c->window ? (double)c->window[(b * c->nv + v) * c->nk + c->nk + t] : 0.0;
}

static double before_activation(const conv *c, int64_t b, int64_t s, int64_t v)
{
    double u = c->bias ? (double)c->bias[v] : 0.0;
    for (int64_t j = 0; j < c->nk; j++) u += (double)c->weight[v * c->nk + j] * past(c, b, s - (c->nk - 1) + j, v);
    return u;
}

void KR_REF(conv)(const kr_conv_args *a)
{
    const conv c = { a->ns, a->nv, a->nk, a->x, a->weight, a->bias, a->window };
    real *y = a->y, *window_out = a->window_out;
    for (int64_t b = 0; b < a->nb; b++) {
        for (int64_t s = 0; s < a->ns; s++) {
            for (int64_t v = 0; v < a->nv; v++) {
                double u = before_activation(&c, b, s, v);
                y[(b * a->ns + s) * a->nv + v] = (real)(a->silu ? u * sigmoid(u) : u);
            }
        }
        for (int64_t v = 0; window_out && v < a->nv; v++)
            for (int64_t j = 0; j < a->nk; j++)
                window_out[(b * a->nv + v) * a->nk + j] = (real)past(&c, b, a->ns - a->nk + j, v);
    }
}

static double gradient_of_u(const kr_conv_bwd_args *a, const conv *c, int64_t b, int64_t s, int64_t v)
{
    double g_y = (double)((const real *)a->g_y)[(b * a->ns + s) * a->nv + v];
    if (!a->silu) return g_y;
    double u = before_activation(c, b, s, v);
    return g_y * sigmoid(u) * (1.0 + u * sigmoid(-u));
}

static double gradient_of_past(const kr_conv_bwd_args *a, const conv *c, int64_t b, int64_t t, int64_t v)
{
    double sum = 0;
    for (int64_t j = 0; j < c->nk; j++) {
        int64_t s = t + (c->nk - 1) - j;
        if (s >= 0 && s < c->ns) sum += (double)c->weight[v * c->nk + j] * gradient_of_u(a, c, b, s, v);
    }
    int64_t column = t - (c->ns - c->nk);
    if (a->g_window_out && column >= 0 && column < c->nk)
        sum += (double)((const real *)a->g_window_out)[(b * c->nv + v) * c->nk + column];
    return sum;
}

static void input_gradients(const kr_conv_bwd_args *a, const conv *c)
{
    real *g_x = a->g_x, *g_window = a->g_window;
    for (int64_t b = 0; b < a->nb; b++) {
        for (int64_t s = 0; g_x && s < c->ns; s++)
            for (int64_t v = 0; v < c->nv; v++)
                g_x[(b * c->ns + s) * c->nv + v] = (real)gradient_of_past(a, c, b, s, v);
        for (int64_t v = 0; g_window && v < c->nv; v++)
            for (int64_t j = 0; j < c->nk; j++)
                g_window[(b * c->nv + v) * c->nk + j] = (real)gradient_of_past(a, c, b, j - c->nk, v);
    }
}

static void weight_gradient(const kr_conv_bwd_args *a, const conv *c, int64_t v, int64_t j)
{
    double sum = 0;
    for (int64_t b = 0; b < a->nb; b++)
        for (int64_t s = 0; s < c->ns; s++) sum += gradient_of_u(a, c, b, s, v) * past(c, b, s - (c->nk - 1) + j, v);
    ((real *)a->g_weight)[v * c->nk + j] = (real)sum;
}

static void bias_gradient(const kr_conv_bwd_args *a, const conv *c, int64_t v)
{
    double sum = 0;
    for (int64_t b = 0; b < a->nb; b++)
        for (int64_t s = 0; s < c->ns; s++) sum += gradient_of_u(a, c, b, s, v);
    ((real *)a->g_bias)[v] = (real)sum;
}

void KR_REF(conv_bwd)(const kr_conv_bwd_args *a)
{
    const conv c = { a->ns, a->nv, a->nk, a->x, a->weight, a->bias, a->window };
    input_gradients(a, &c);
    for (int64_t v = 0; a->g_weight && v < c.nv; v++)
        for (int64_t j = 0; j < c.nk; j++) weight_gradient(a, &c, v, j);
    for (int64_t v = 0; a->g_bias && v < c.nv; v++) bias_gradient(a, &c, v);
}
