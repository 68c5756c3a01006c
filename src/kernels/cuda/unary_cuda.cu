/* unary_cuda.cu - elementwise functions of one operand, y = f(x), and g_x = g_y f'(x).
 *
 * f32 is computed in f32 where a function of its own is good to some ulp (functions.cuh; log), else in f64 and rounded
 * (sin, cos, tanh, and where factors would be denormal); f64 in f64. Each formula is one line below, p being alpha and q
 * beta.
 */
#include "kernels/cuda/functions.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/numbers.cuh"

#include <math.h>

namespace
{

/* Functions of either type, good to some ulp. */
__device__ inline float exp_of(float x)
{
    return kr_exp_ulp(x);
}
__device__ inline double exp_of(double x)
{
    return exp(x);
}
__device__ inline float sin_of(float x)
{
    return (float)sin((double)x);
}
__device__ inline double sin_of(double x)
{
    return sin(x);
}
__device__ inline float cos_of(float x)
{
    return (float)cos((double)x);
}
__device__ inline double cos_of(double x)
{
    return cos(x);
}
__device__ inline float tanh_of(float x)
{
    return (float)tanh((double)x);
}
__device__ inline double tanh_of(double x)
{
    return tanh(x);
}
__device__ inline float sigmoid_of(float x)
{
    return kr_sigmoid_ulp(x);
}

/* Without an overflow on either side. */
__device__ inline double sigmoid_of(double x)
{
    const double e = exp(-fabs(x));
    return (x < 0 ? e : 1) / (1 + e);
}

/* e^-|x| / (1 + e^-|x|)^2: no cancellation on either side. */
template <typename real> __device__ inline real sigmoid_slope_of(real x)
{
    const real e = exp_of(-kr_abs(x)), s = (real)1 + e;
    return e / (s * s);
}

/* Beyond 750 sigmoid is 0 or 1 to the last bit of a double; its product with an infinite x would be NaN. */
__device__ inline double silu_of(double x)
{
    return x < -750.0 ? -0.0 : x * sigmoid_of(x);
}

__device__ inline double silu_slope_of(double x)
{
    return fabs(x) > 750.0 ? sigmoid_of(x) : sigmoid_of(x) + x * sigmoid_slope_of(x);
}

__device__ inline float silu_of(float x)
{
    return kr_silu_ulp(x);
}

/* Beyond 80 e^-|x| has few bits left of a float, or none. */
__device__ inline float silu_slope_of(float x)
{
    return fabsf(x) > 80.0f ? (float)silu_slope_of((double)x) : sigmoid_of(x) + x * sigmoid_slope_of(x);
}

__device__ inline float softplus_of(float x)
{
    return kr_softplus_ulp(x);
}
__device__ inline double softplus_of(double x)
{
    return x > 20 ? x : log1p(exp(x));
}

template <typename real> __device__ inline real clamp_of(real x, real low, real high)
{
    const real raised = x < low ? low : x;
    return raised > high ? high : raised;
}

#define VALUE(name, formula)                                                                                           \
    template <typename real> struct value_##name {                                                                     \
        __device__ real operator()(real x, real p, real q) const                                                       \
        {                                                                                                              \
            (void)p, (void)q;                                                                                          \
            return formula;                                                                                            \
        }                                                                                                              \
    };
VALUE(scale, fma(p, x, q))
VALUE(exp, exp_of(x))
VALUE(log, kr_log(x))
VALUE(sqrt, kr_root(x))
VALUE(rsqrt, (real)1 / kr_root(x))
VALUE(sin, sin_of(x))
VALUE(cos, cos_of(x))
VALUE(tanh, tanh_of(x))
VALUE(sigmoid, sigmoid_of(x))
VALUE(silu, silu_of(x))
VALUE(softplus, softplus_of(x))
VALUE(log_sigmoid, -softplus_of(-x))
VALUE(clamp, clamp_of(x, p, q))

/* f'(x), y = f(x) given. */
#define SLOPE(name, formula)                                                                                           \
    template <typename real> struct slope_##name {                                                                     \
        __device__ real operator()(real x, real y, real g, real p, real q) const                                       \
        {                                                                                                              \
            (void)x, (void)y, (void)p, (void)q;                                                                        \
            return formula;                                                                                            \
        }                                                                                                              \
    };
SLOPE(scale, g *p)
SLOPE(exp, g *y)
SLOPE(log, g / x)
SLOPE(sqrt, (real)0.5 * g / y)
SLOPE(rsqrt, (real)-0.5 * g * y * y * y) /* in this order: y^3 alone may be infinite where g is 0 */
SLOPE(sin, g *cos_of(x))
SLOPE(cos, -(g *sin_of(x)))
SLOPE(tanh, g *((real)4 * sigmoid_slope_of((real)2 * x)))
SLOPE(sigmoid, g *sigmoid_slope_of(x))
SLOPE(silu, g *silu_slope_of(x))
SLOPE(softplus, x > (real)20 ? g : g * sigmoid_of(x))
SLOPE(log_sigmoid, x < (real)-20 ? g : g * sigmoid_of(-x))
SLOPE(clamp, x >= p && x <= q ? g : g * (real)0)

template <typename real, typename F> void forward(const kr_unary_args *a, F f)
{
    const real *x = (const real *)a->x, p = (real)a->alpha, q = (real)a->beta;
    real *y = (real *)a->y;
    kr_cuda_walk<2>(a->exec, a->walk, [=] __device__(const int64_t *at) { y[at[0]] = f(x[at[1]], p, q); });
}

template <typename real, typename F> void backward(const kr_unary_bwd_args *a, F f)
{
    const real *x = (const real *)a->x, *y = (const real *)a->y, *g_y = (const real *)a->g_y;
    const real p = (real)a->alpha, q = (real)a->beta;
    real *g_x = (real *)a->g_x;
    kr_cuda_walk<4>(a->exec, a->walk,
                    [=] __device__(const int64_t *at) { g_x[at[0]] = f(x[at[1]], y[at[2]], g_y[at[3]], p, q); });
}

} // namespace

#define KR_UNARY(name)                                                                                                 \
    void kr_cuda_f32_##name(const kr_unary_args *a)                                                                    \
    {                                                                                                                  \
        forward<float>(a, value_##name<float>());                                                                      \
    }                                                                                                                  \
    void kr_cuda_f64_##name(const kr_unary_args *a)                                                                    \
    {                                                                                                                  \
        forward<double>(a, value_##name<double>());                                                                    \
    }                                                                                                                  \
    void kr_cuda_f32_##name##_bwd(const kr_unary_bwd_args *a)                                                          \
    {                                                                                                                  \
        backward<float>(a, slope_##name<float>());                                                                     \
    }                                                                                                                  \
    void kr_cuda_f64_##name##_bwd(const kr_unary_bwd_args *a)                                                          \
    {                                                                                                                  \
        backward<double>(a, slope_##name<double>());                                                                   \
    }
#include "kernels/unary.def"
#undef KR_UNARY
