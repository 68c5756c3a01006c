/* trapezoid_cuda.cu - the coefficients of Mamba-3's trapezoidal discretisation, and their gradients; all architectures, f32
 * and f64.
 *
 *   dt_raw, a_raw, lambda_raw, dt, da, gamma, carry, beta [no nh]    dt_bias [nh] or none
 *   dt = softplus(dt_raw + dt_bias) within limits    a = -max(f(a_raw), floor)    l = sigmoid(lambda_raw)
 *   da = dt a    gamma = l dt    carry = (1 - l) dt    beta = carry e^da
 * backward, c = g_carry + e^da g_beta, d = g_da + carry e^da g_beta:
 *   g_dt_raw = (g_dt + a d + l g_gamma + (1 - l) c) softplus'(dt_raw + dt_bias), 0 where dt is clamped
 *   g_a_raw = -dt d f'(a_raw), 0 where the floor applies;    g_lambda_raw = dt (g_gamma - c) l (1 - l)
 *
 * One thread per element.
 */
#include "kernels/cuda/prim/dtype16.cuh"
#include "kernels/cuda/prim/math.cuh"
#include "kernels/args/mamba3_args.h"

enum { THREADS = 256 };

template <typename T> struct operands {
    int64_t raw_padding;
    const T *dt_raw, *dt_bias, *a_raw, *lambda_raw;
    T a_floor, dt_min, dt_max;
    bool softplus;
};

/* Of one token and head. Comparisons are ordered so that NaN propagates. */
template <typename T> struct coefficients {
    T raw, step;          /* dt_raw + dt_bias; its softplus before the limits */
    T dt, a_raw, rate, a; /* rate = f(a_raw) */
    T l, rest;            /* rest = 1 - l, to full precision */
};

/* The token of element i. */
KR_DEVICE int64_t token_of(int64_t i, const kr_divisor &nh)
{
    return i < INT32_MAX ? (int64_t)kr_quotient((uint32_t)i, nh) : i / nh.d;
}

template <typename T> KR_DEVICE coefficients<T> point_of(const operands<T> &t, int64_t i, const kr_divisor &nh)
{
    coefficients<T> p;
    const int64_t o = token_of(i, nh), h = i - o * nh.d, from = i + o * t.raw_padding;
    p.raw = t.dt_raw[from] + (t.dt_bias ? t.dt_bias[h] : (T)0);
    p.step = kr_softplus(p.raw);
    p.dt = p.step < t.dt_min ? t.dt_min : p.step > t.dt_max ? t.dt_max : p.step;
    p.a_raw = t.a_raw[from];
    p.rate = t.softplus ? kr_softplus(p.a_raw) : p.a_raw < (T)0 ? (T)1 / ((T)1 - p.a_raw) : (T)1 + p.a_raw;
    p.a = p.rate < t.a_floor ? -t.a_floor : -p.rate;
    const T lambda = t.lambda_raw[from];
    p.l = kr_sigmoid(lambda);
    p.rest = kr_sigmoid(-lambda);
    return p;
}

template <typename T>
static __global__ void __launch_bounds__(THREADS)
    trapezoid(const operands<T> t, int64_t count, const kr_divisor nh, T *dt, T *da, T *gamma, T *carry, T *beta)
{
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= count) return;
    const coefficients<T> p = point_of(t, i, nh);
    const T part = p.rest * p.dt;
    dt[i] = p.dt;
    da[i] = p.dt * p.a;
    gamma[i] = p.l * p.dt;
    carry[i] = part;
    beta[i] = part * kr_exp(p.dt * p.a);
}

template <typename T> struct gradients {
    const T *dt, *da, *gamma, *carry, *beta; /* NULL: 0 */
    void *dt_raw, *a_raw, *lambda_raw;       /* NULL: not wanted */
    T *dt_summed;
    int64_t padding; /* of the three, between their rows */
    kr_dtype dtype;
};

template <typename T>
static __global__ void __launch_bounds__(THREADS)
    trapezoid_bwd(const operands<T> t, int64_t count, const kr_divisor nh, const gradients<T> g)
{
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= count) return;
    const coefficients<T> p = point_of(t, i, nh);
    const T from_beta = g.beta ? kr_exp(p.dt * p.a) * g.beta[i] : (T)0;
    const T c = (g.carry ? g.carry[i] : (T)0) + from_beta;
    const T d = (g.da ? g.da[i] : (T)0) + p.rest * p.dt * from_beta;
    const T g_gamma = g.gamma ? g.gamma[i] : (T)0;
    const T g_dt = (g.dt ? g.dt[i] : (T)0) + p.a * d + p.l * g_gamma + p.rest * c;
    const bool is_cut = p.step < t.dt_min || p.step > t.dt_max;
    const int64_t to = i + token_of(i, nh) * g.padding;
    const T g_raw = is_cut ? (T)0 : g_dt * kr_sigmoid(p.raw);
    if (g.dt_raw) kr_store_as(g.dt_raw, to, g_raw, g.dtype);
    if (g.dt_summed) g.dt_summed[i] = g_raw;
    const T slope = t.softplus ? kr_sigmoid(p.a_raw) : p.a_raw < (T)0 ? p.rate * p.rate : (T)1;
    if (g.a_raw) kr_store_as(g.a_raw, to, p.rate < t.a_floor ? (T)0 : -p.dt * d * slope, g.dtype);
    if (g.lambda_raw) kr_store_as(g.lambda_raw, to, p.dt * (g_gamma - c) * p.l * p.rest, g.dtype);
}

template <typename T, typename A> static operands<T> operands_of(const A *a)
{
    operands<T> t = { a->dt_raw.row - a->nh,
                      (const T *)a->dt_raw.data,
                      (const T *)a->dt_bias,
                      (const T *)a->a_raw.data,
                      (const T *)a->lambda_raw.data,
                      (T)a->a_floor,
                      (T)a->dt_min,
                      (T)a->dt_max,
                      a->softplus };
    return t;
}

template <typename T> static void run(const kr_trapezoid_args *a)
{
    const int64_t count = a->no * a->nh;
    if (count == 0) return;
    trapezoid<T><<<(unsigned)kr_ceil_div(count, THREADS), THREADS, 0, (cudaStream_t)a->exec.stream>>>(
        operands_of<T>(a), count, kr_divisor_of(a->nh), (T *)a->dt, (T *)a->da, (T *)a->gamma, (T *)a->carry,
        (T *)a->beta);
}

template <typename T> static void run_bwd(const kr_trapezoid_bwd_args *a)
{
    const int64_t count = a->no * a->nh;
    if (count == 0) return;
    const kr_operand *of_three = a->g_dt_raw.data ? &a->g_dt_raw : a->g_a_raw.data ? &a->g_a_raw : &a->g_lambda_raw;
    const gradients<T> g = { (const T *)a->g_dt,    (const T *)a->g_da,
                             (const T *)a->g_gamma, (const T *)a->g_carry,
                             (const T *)a->g_beta,  a->g_dt_raw.data,
                             a->g_a_raw.data,       a->g_lambda_raw.data,
                             (T *)a->g_dt_summed,   of_three->data ? of_three->row - a->nh : 0,
                             of_three->dtype };
    trapezoid_bwd<T><<<(unsigned)kr_ceil_div(count, THREADS), THREADS, 0, (cudaStream_t)a->exec.stream>>>(
        operands_of<T>(a), count, kr_divisor_of(a->nh), g);
}

extern "C" void kr_cuda_f32_trapezoid(const kr_trapezoid_args *a)
{
    run<float>(a);
}
extern "C" void kr_cuda_f64_trapezoid(const kr_trapezoid_args *a)
{
    run<double>(a);
}
extern "C" void kr_cuda_f32_trapezoid_bwd(const kr_trapezoid_bwd_args *a)
{
    run_bwd<float>(a);
}
extern "C" void kr_cuda_f64_trapezoid_bwd(const kr_trapezoid_bwd_args *a)
{
    run_bwd<double>(a);
}
