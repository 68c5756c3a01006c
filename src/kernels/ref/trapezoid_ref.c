/* trapezoid_ref.c - the coefficients of Mamba-3's trapezoidal rule, and their gradients.
 *
 *   dt_raw, a_raw, lambda_raw, dt, da, gamma, carry, beta [no nh]    dt_bias [nh] or none
 *   dt = softplus(dt_raw + dt_bias) within limits    a = -max(f(a_raw), floor)    l = sigmoid(lambda_raw)
 *   da = dt a    gamma = l dt    carry = (1 - l) dt    beta = carry e^da
 * backward, c = g_carry + e^da g_beta, d = g_da + carry e^da g_beta:
 *   g_dt_raw = (g_dt + a d + l g_gamma + (1 - l) c) softplus'(dt_raw + dt_bias), 0 where dt is cut off
 *   g_a_raw = -dt d f'(a_raw), 0 where the floor holds;    g_lambda_raw = dt (g_gamma - c) l (1 - l)
 */
#include "kernels/ref/ref.h"
#include "kernels/ref/ref_operand.h"

#include <math.h>

static double sigmoid(double x)
{
    return 1.0 / (1.0 + exp(-x));
}

static double softplus(double x)
{
    return x > 20.0 ? x : log1p(exp(x));
}

static double softplus_slope(double x)
{
    return x > 20.0 ? 1.0 : sigmoid(x);
}

static double rate(double x, bool is_softplus)
{
    if (is_softplus) return softplus(x);
    return x >= 0 ? 1.0 + x : 1.0 / (1.0 - x);
}

static double rate_slope(double x, bool is_softplus)
{
    if (is_softplus) return softplus_slope(x);
    return x >= 0 ? 1.0 : 1.0 / ((1.0 - x) * (1.0 - x));
}

/* One token and head: the coefficients, and further values that their gradients need. */
typedef struct point {
    double raw, step;      /* dt_raw + dt_bias; its softplus before the limits */
    double dt, a, l, rest; /* rest = 1 - l */
} point;

static double at(const void *x, int64_t i)
{
    return x ? (double)((const real *)x)[i] : 0.0;
}

static point point_of(const kr_trapezoid_args *t, int64_t i)
{
    const int64_t o = i / t->nh, h = i % t->nh;
    point p = { .raw = kr_ref_at(&t->dt_raw, o, h) + at(t->dt_bias, h) };
    double f = rate(kr_ref_at(&t->a_raw, o, h), t->softplus), lambda_raw = kr_ref_at(&t->lambda_raw, o, h);
    p.step = softplus(p.raw);
    p.dt = p.step < t->dt_min ? t->dt_min : p.step > t->dt_max ? t->dt_max : p.step;
    p.a = f < t->a_floor ? -t->a_floor : -f;
    p.l = sigmoid(lambda_raw);
    p.rest = sigmoid(-lambda_raw);
    return p;
}

void KR_REF(trapezoid)(const kr_trapezoid_args *a)
{
    for (int64_t i = 0; i < a->no * a->nh; i++) {
        point p = point_of(a, i);
        ((real *)a->dt)[i] = (real)p.dt;
        ((real *)a->da)[i] = (real)(p.dt * p.a);
        ((real *)a->gamma)[i] = (real)(p.l * p.dt);
        ((real *)a->carry)[i] = (real)(p.rest * p.dt);
        ((real *)a->beta)[i] = (real)(p.rest * p.dt * exp(p.dt * p.a));
    }
}

static void put(const kr_operand *y, int64_t nh, int64_t i, double v)
{
    if (y->data) kr_ref_put(y, i / nh, i % nh, v);
}

void KR_REF(trapezoid_bwd)(const kr_trapezoid_bwd_args *a)
{
    const kr_trapezoid_args in = { .nh = a->nh,
                                   .dt_raw = a->dt_raw,
                                   .dt_bias = a->dt_bias,
                                   .a_raw = a->a_raw,
                                   .lambda_raw = a->lambda_raw,
                                   .a_floor = a->a_floor,
                                   .dt_min = a->dt_min,
                                   .dt_max = a->dt_max,
                                   .softplus = a->softplus };
    for (int64_t i = 0; i < a->no * a->nh; i++) {
        point p = point_of(&in, i);
        double alpha = exp(p.dt * p.a), g_gamma = at(a->g_gamma, i), a_raw = kr_ref_at(&a->a_raw, i / a->nh, i % a->nh);
        double c = at(a->g_carry, i) + alpha * at(a->g_beta, i);
        double d = at(a->g_da, i) + p.rest * p.dt * alpha * at(a->g_beta, i);
        double g_dt = at(a->g_dt, i) + p.a * d + p.l * g_gamma + p.rest * c;
        bool is_cut = p.step < a->dt_min || p.step > a->dt_max;
        bool at_floor = rate(a_raw, a->softplus) < a->a_floor;
        double g_dt_raw = is_cut ? 0.0 : g_dt * softplus_slope(p.raw);
        put(&a->g_dt_raw, a->nh, i, g_dt_raw);
        if (a->g_dt_summed) ((real *)a->g_dt_summed)[i] = (real)g_dt_raw;
        put(&a->g_a_raw, a->nh, i, at_floor ? 0.0 : -p.dt * d * rate_slope(a_raw, a->softplus));
        put(&a->g_lambda_raw, a->nh, i, p.dt * (g_gamma - c) * p.l * p.rest);
    }
}
