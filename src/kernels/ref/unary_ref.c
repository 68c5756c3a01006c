/* unary_ref.c - elementwise functions of one operand, y = f(x), and g_x = g_y f'(x).
 *
 * Each f and f' is one line below, in double; unary.def makes the kernels of them. p is alpha, q is beta.
 */
#include "kernels/ref/ref.h"
#include "kernels/ref/ref_silu.h"
#include "kernels/ref/ref_walk.h"

#include <math.h>

static inline double softplus(double x)
{
    return x > 20.0 ? x : log1p(exp(x));
}

static inline double clamp(double x, double low, double high)
{
    double raised = x < low ? low : x;
    return raised > high ? high : raised;
}

/* Limits rounded to the element type, so that "on the limit" means equality of elements; exponents likewise. */
static inline double limit(double bound)
{
    return (double)(real)bound;
}

/* P(X < x), X standard normal: without cancellation below 0. */
static inline double normal_below(double x)
{
    return 0.5 * erfc(-x * 0.70710678118654752440);
}

static inline double normal_density(double x)
{
    return 0.39894228040143267794 * exp(-0.5 * x * x);
}

/* Below -40 the probability is 0 in double; its product with an infinite x would be NaN. */
static inline double gelu(double x)
{
    return x < -40.0 ? -0.0 : x * normal_below(x);
}

static inline double gelu_slope(double x)
{
    return fabs(x) > 40.0 ? (double)(x > 0.0) : normal_below(x) + x * normal_density(x);
}

/* gelu_tanh(x) = x sigmoid(v), v = 2 (2/pi)^1/2 (x + 0.044715 x^3) */
static inline double tanh_argument(double x)
{
    return 1.59576912160573071176 * x * (1.0 + 0.044715 * x * x);
}

static inline double gelu_tanh(double x)
{
    return x < -40.0 ? -0.0 : x * sigmoid(tanh_argument(x));
}

static inline double gelu_tanh_slope(double x)
{
    if (fabs(x) > 40.0) return (double)(x > 0.0);
    double v = tanh_argument(x), v_slope = 1.59576912160573071176 * (1.0 + 3.0 * 0.044715 * x * x);
    return sigmoid(v) + x * sigmoid_slope(v) * v_slope;
}

#define VALUE(name, formula)                                                                                           \
    static inline double value_##name(double x, double p, double q)                                                    \
    {                                                                                                                  \
        (void)p, (void)q;                                                                                              \
        return formula;                                                                                                \
    }
VALUE(scale, p *x + q)
VALUE(exp, exp(x))
VALUE(log, log(x))
VALUE(sqrt, sqrt(x))
VALUE(rsqrt, 1.0 / sqrt(x))
VALUE(sin, sin(x))
VALUE(cos, cos(x))
VALUE(tanh, tanh(x))
VALUE(sigmoid, sigmoid(x))
VALUE(silu, silu(x))
VALUE(softplus, softplus(x))
VALUE(log_sigmoid, -softplus(-x))
VALUE(clamp, clamp(x, limit(p), limit(q)))
VALUE(abs, fabs(x))
VALUE(relu, x < 0.0 ? 0.0 : x)
VALUE(erf, erf(x))
VALUE(gelu, gelu(x))
VALUE(gelu_tanh, gelu_tanh(x))
VALUE(pow_scalar, pow(x, limit(p)))

#define SLOPE(name, formula)                                                                                           \
    static inline double slope_##name(double x, double y, double p, double q)                                          \
    {                                                                                                                  \
        (void)x, (void)y, (void)p, (void)q;                                                                            \
        return formula;                                                                                                \
    }
SLOPE(scale, p)
SLOPE(exp, y)
SLOPE(log, 1.0 / x)
SLOPE(sqrt, 0.5 / y)
SLOPE(rsqrt, -0.5 * y * y * y)
SLOPE(sin, cos(x))
SLOPE(cos, -sin(x))
SLOPE(tanh, 1.0 / (cosh(x) * cosh(x)))
SLOPE(sigmoid, sigmoid_slope(x))
SLOPE(silu, silu_slope(x))
SLOPE(softplus, x > 20.0 ? 1.0 : sigmoid(x))
SLOPE(log_sigmoid, x < -20.0 ? 1.0 : sigmoid(-x))
SLOPE(clamp, x >= limit(p) && x <= limit(q) ? 1.0 : 0.0)
SLOPE(abs, (double)(x > 0.0) - (double)(x < 0.0))
SLOPE(relu, x > 0.0 ? 1.0 : 0.0)
SLOPE(erf, 1.12837916709551257390 * exp(-x * x))
SLOPE(gelu, gelu_slope(x))
SLOPE(gelu_tanh, gelu_tanh_slope(x))
SLOPE(pow_scalar, limit(p) == 0.0 ? 0.0 : limit(p) * pow(x, limit(p) - 1.0))

static inline void forward_rows(const kr_unary_args *a, int64_t task, double (*value)(double, double, double))
{
    const kr_walk *w = &a->walk;
    int64_t per_task = kr_walk_rows_per_task(w), first = task * per_task;
    int64_t end = kr_ref_min(first + per_task, kr_walk_nrows(w)), n = kr_walk_length(w);
    int64_t y_step = kr_walk_step(w, 0), x_step = kr_walk_step(w, 1);
    kr_odometer at = kr_odometer_at(w, 2, first);
    for (int64_t row = first; row < end; row++, kr_odometer_next(&at)) {
        real *y = (real *)a->y + at.offset[0];
        const real *x = (const real *)a->x + at.offset[1];
        for (int64_t i = 0; i < n; i++) y[i * y_step] = (real)value((double)x[i * x_step], a->alpha, a->beta);
    }
}

static inline void backward_rows(const kr_unary_bwd_args *a, int64_t task,
                                 double (*slope)(double, double, double, double))
{
    const kr_walk *w = &a->walk;
    int64_t per_task = kr_walk_rows_per_task(w), first = task * per_task;
    int64_t end = kr_ref_min(first + per_task, kr_walk_nrows(w)), n = kr_walk_length(w);
    int64_t g_x_step = kr_walk_step(w, 0), x_step = kr_walk_step(w, 1);
    int64_t y_step = kr_walk_step(w, 2), g_y_step = kr_walk_step(w, 3);
    kr_odometer at = kr_odometer_at(w, 4, first);
    for (int64_t row = first; row < end; row++, kr_odometer_next(&at)) {
        real *g_x = (real *)a->g_x + at.offset[0];
        const real *x = (const real *)a->x + at.offset[1], *y = (const real *)a->y + at.offset[2];
        const real *g_y = (const real *)a->g_y + at.offset[3];
        for (int64_t i = 0; i < n; i++) {
            double f = slope((double)x[i * x_step], (double)y[i * y_step], a->alpha, a->beta);
            g_x[i * g_x_step] = (real)((double)g_y[i * g_y_step] * f);
        }
    }
}

#define KR_UNARY(name)                                                                                                 \
    static void name##_task(void *arg, int64_t task, int worker)                                                       \
    {                                                                                                                  \
        (void)worker;                                                                                                  \
        forward_rows(*(const kr_unary_args **)arg, task, value_##name);                                                \
    }                                                                                                                  \
    void KR_REF(name)(const kr_unary_args *a)                                                                          \
    {                                                                                                                  \
        kr_walk_run(a->exec.pool, &a->walk, name##_task, &a);                                                          \
    }                                                                                                                  \
    static void name##_bwd_task(void *arg, int64_t task, int worker)                                                   \
    {                                                                                                                  \
        (void)worker;                                                                                                  \
        backward_rows(*(const kr_unary_bwd_args **)arg, task, slope_##name);                                           \
    }                                                                                                                  \
    void KR_REF(name##_bwd)(const kr_unary_bwd_args *a)                                                                \
    {                                                                                                                  \
        kr_walk_run(a->exec.pool, &a->walk, name##_bwd_task, &a);                                                      \
    }
#include "kernels/unary.def"
#undef KR_UNARY
