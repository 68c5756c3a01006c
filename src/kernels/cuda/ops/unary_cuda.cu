/* unary_cuda.cu - elementwise functions of one operand, y = f(x), and g_x = g_y f'(x); all architectures.
 *
 * f32 is computed in f32 if there is a function with a small ULP bound (ulp_math.cuh; log), else in f64 and rounded (sin,
 * cos, tanh, powers, and where factors would be denormal); f64 in f64. Each formula is one line below, p being alpha and q
 * beta.
 */
#include "kernels/cuda/prim/ulp_math.cuh"
#include "kernels/cuda/prim/launch.cuh"
#include "kernels/cuda/prim/math.cuh"

#include <math.h>

namespace
{

/* Functions of either type, good to a few ULP. */
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

/* Without overflow on either side. */
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

/* Beyond 750 sigmoid is exactly 0 or 1 in double; its product with an infinite x would be NaN. */
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

/* Beyond 80 e^-|x| is denormal or 0 in float. */
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

__device__ inline float erf_of(float x)
{
    return kr_erf_ulp(x);
}
__device__ inline double erf_of(double x)
{
    return erf(x);
}
__device__ inline float erf_slope_of(float x)
{
    return kr_erf_slope_ulp(x);
}
__device__ inline double erf_slope_of(double x)
{
    return 1.12837916709551257390 * exp(-x * x);
}

/* P(X < x), X standard normal. */
__device__ inline double normal_below(double x)
{
    return 0.5 * erfc(-x * 0.70710678118654752440);
}

__device__ inline float gelu_of(float x)
{
    return kr_gelu_ulp(x);
}

/* Below -40 the probability is 0 in double; its product with an infinite x would be NaN. */
__device__ inline double gelu_of(double x)
{
    return x < -40.0 ? -0.0 : x * normal_below(x);
}
__device__ inline float gelu_slope_of(float x)
{
    return kr_gelu_slope_ulp(x);
}
__device__ inline double gelu_slope_of(double x)
{
    if (fabs(x) > 40.0) return x > 0.0 ? 1.0 : 0.0;
    return normal_below(x) + x * 0.39894228040143267794 * exp(-0.5 * x * x);
}

/* Without fused products, as the reference has it: e^-v multiplies a rounding of v by |v|. */
__device__ inline double tanh_argument(double x)
{
    const double cubic = __dmul_rn(__dmul_rn(0.044715, x), x);
    return __dmul_rn(__dmul_rn(1.59576912160573071176, x), __dadd_rn(1.0, cubic));
}

__device__ inline float gelu_tanh_of(float x)
{
    return kr_gelu_tanh_ulp(x);
}
__device__ inline double gelu_tanh_of(double x)
{
    return x < -40.0 ? -0.0 : x * sigmoid_of(tanh_argument(x));
}
__device__ inline float gelu_tanh_slope_of(float x)
{
    return kr_gelu_tanh_slope_ulp(x);
}
__device__ inline double gelu_tanh_slope_of(double x)
{
    if (fabs(x) > 40.0) return x > 0.0 ? 1.0 : 0.0;
    const double v = tanh_argument(x), v_slope = 1.59576912160573071176 * (1.0 + 3.0 * 0.044715 * x * x);
    return sigmoid_of(v) + x * sigmoid_slope_of(v) * v_slope;
}

template <typename real> __device__ inline real power_of(real x, real p)
{
    return p == (real)2 ? x * x : (real)pow((double)x, (double)p);
}

/* g p x^(p-1), the product in double: its factors may be out of float's range */
template <typename real> __device__ inline real power_slope_of(real x, real g, real p)
{
    if (p == (real)2) return g * (x + x);
    return p == (real)0 ? (real)0 : (real)((double)g * ((double)p * pow((double)x, (double)p - 1.0)));
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
VALUE(sqrt, kr_sqrt(x))
VALUE(rsqrt, (real)1 / kr_sqrt(x))
VALUE(sin, sin_of(x))
VALUE(cos, cos_of(x))
VALUE(tanh, tanh_of(x))
VALUE(sigmoid, sigmoid_of(x))
VALUE(silu, silu_of(x))
VALUE(softplus, softplus_of(x))
VALUE(log_sigmoid, -softplus_of(-x))
VALUE(clamp, clamp_of(x, p, q))
VALUE(abs, kr_abs(x))
VALUE(relu, x < (real)0 ? (real)0 : x)
VALUE(erf, erf_of(x))
VALUE(gelu, gelu_of(x))
VALUE(gelu_tanh, gelu_tanh_of(x))
VALUE(pow_scalar, power_of(x, p))

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
SLOPE(abs, x > (real)0 ? g : x < (real)0 ? -g : g * (real)0)
SLOPE(relu, x > (real)0 ? g : g * (real)0)
SLOPE(erf, g *erf_slope_of(x))
SLOPE(gelu, g *gelu_slope_of(x))
SLOPE(gelu_tanh, g *gelu_tanh_slope_of(x))
SLOPE(pow_scalar, power_slope_of(x, g, p))

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
