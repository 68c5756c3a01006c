/* gates.cuh - silu(z) = z sigmoid(z) and its slope, of numbers and of packs: to the last places, or quickly. */
#ifndef KR_KERNELS_CUDA_GATES_CUH
#define KR_KERNELS_CUDA_GATES_CUH

#include "kernels/cuda/functions.cuh"
#include "kernels/cuda/parts.cuh"

/* Beyond these sigmoid is 0 or 1 to the last bit; its product with an infinite x would be NaN. */
static __device__ __forceinline__ float kr_gate_reach(float)
{
    return 110.0f;
}
static __device__ __forceinline__ double kr_gate_reach(double)
{
    return 750.0;
}

/* Of numbers within this the gates take the short way: e^z and e^-z and their products are normal. */
static __device__ __forceinline__ bool kr_is_near(float z)
{
    return fabsf(z) < 80.0f;
}
static __device__ __forceinline__ bool kr_is_near(double)
{
    return false;
}

/* e^x for a near x, as kr_exp_parts has it. */
static __device__ __forceinline__ float kr_exp_near(float x)
{
    float n;
    const float factor = kr_exp_parts(x, &n);
    return kr_scale2_normal(factor, n);
}

/* 1 / x for a normal x, and the estimate that it comes of. */
static __device__ __forceinline__ float kr_inverse_near(float x, float *estimate)
{
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(*estimate) : "f"(x));
    return __fmaf_rn(__fmaf_rn(-x, *estimate, 1.0f), *estimate, *estimate);
}

/* z / (1 + e^-z) for a near z, 2.3 ULP. */
static __device__ __forceinline__ float kr_silu_near(float z)
{
    const float d = __fadd_rn(1.0f, kr_exp_near(-z));
    float inverse;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(d));
    const float y = __fmul_rn(z, inverse);
    return __fmaf_rn(__fmaf_rn(-y, d, z), inverse, y);
}
static __device__ __forceinline__ double kr_silu_near(double z)
{
    return z;
}

/* z sigmoid(z). */
static __device__ __forceinline__ float kr_silu(float z)
{
    return kr_is_near(z) ? kr_silu_near(z) : kr_silu_ulp(z);
}
static __device__ __forceinline__ double kr_silu(double z)
{
    return z < -kr_gate_reach(z) ? -0.0 : z / (1 + exp(-z));
}

/* silu(z) and its slope s (1 + z (1 - s)), s = sigmoid(z), for a near z; 1 - s = e^-z s. */
static __device__ __forceinline__ void kr_silu_slope_near(float z, float *silu, float *slope)
{
    const float e = kr_exp_near(-z), d = __fadd_rn(1.0f, e);
    float inverse;
    const float s = kr_inverse_near(d, &inverse), y = __fmul_rn(z, inverse);
    *silu = __fmaf_rn(__fmaf_rn(-y, d, z), inverse, y);
    *slope = __fmul_rn(s, __fmaf_rn(z, __fmul_rn(e, s), 1.0f));
}
static __device__ __forceinline__ void kr_silu_slope_near(double, double *, double *) {}

/* silu(z) and its slope sigmoid(z) (1 + z sigmoid(-z)). */
static __device__ __forceinline__ void kr_silu_slope(float z, float *silu, float *slope)
{
    if (kr_is_near(z)) {
        kr_silu_slope_near(z, silu, slope);
        return;
    }
    const float away = fabsf(z), e = kr_exp_ulp(-away), near = kr_over_one_plus(1.0f, 0.0f, e), far = e * near;
    const float s = z < 0 ? far : near, other = z < 0 ? near : far;
    *slope = away > kr_gate_reach(z) ? s : s * fmaf(z, other, 1.0f);
    *silu = kr_silu_ulp(z);
}
static __device__ __forceinline__ void kr_silu_slope(double z, double *silu, double *slope)
{
    const double away = fabs(z), e = exp(-away), s = 1 / (1 + exp(-z)), other = (z < 0 ? 1 : e) / (1 + e);
    *slope = away > kr_gate_reach(z) ? s : s * (1 + z * other);
    *silu = kr_silu(z);
}

/* The same by the estimates that the hardware has, to within 1e-5 of a result or of 1: for what is computed in bf16
 * precision, which keeps 4e-3. */
static __device__ __forceinline__ float kr_sigmoid_quick(float z)
{
    float e, s;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(z * -1.4426950408889634f));
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(s) : "f"(1.0f + e));
    return s;
}
static __device__ __forceinline__ void kr_silu_slope_quick(float z, float *silu, float *slope)
{
    const float s = kr_sigmoid_quick(z);
    *silu = z < -kr_gate_reach(z) ? -0.0f : z * s;
    *slope = fabsf(z) > kr_gate_reach(z) ? s : s * fmaf(z, 1.0f - s, 1.0f);
}
static __device__ __forceinline__ void kr_silu_slope_quick(double z, double *silu, double *slope)
{
    kr_silu_slope(z, silu, slope);
}

template <typename T> static inline bool kr_is_quick(const kr_exec *exec)
{
    return sizeof(T) == sizeof(float) && exec->precision == KR_PRECISION_BF16;
}

template <typename T, int COUNT> static __device__ __forceinline__ bool kr_are_near(const kr_pack<T> z[COUNT])
{
    bool near = true;
#pragma unroll
    for (int p = 0; p < COUNT; p++)
#pragma unroll
        for (int i = 0; i < kr_pack<T>::N; i++) near = near && kr_is_near(z[p].v[i]);
    return near;
}

/* silu of COUNT packs. A number's result is the same whatever its neighbours are: they only choose whether all can go
 * the short way. The long one is a loop, to be short itself. */
template <typename T, int COUNT> static __device__ __forceinline__ void kr_silus_of(kr_pack<T> z[COUNT], bool quick)
{
    enum { N = kr_pack<T>::N };
    T slope;
    if (quick) {
#pragma unroll
        for (int i = 0; i < COUNT * N; i++) kr_silu_slope_quick(z[i / N].v[i % N], &z[i / N].v[i % N], &slope);
    } else if (kr_are_near<T, COUNT>(z)) {
#pragma unroll
        for (int i = 0; i < COUNT * N; i++) z[i / N].v[i % N] = kr_silu_near(z[i / N].v[i % N]);
    } else {
        T far[COUNT * N];
#pragma unroll
        for (int i = 0; i < COUNT * N; i++) far[i] = z[i / N].v[i % N];
#pragma unroll 1
        for (int i = 0; i < COUNT * N; i++) far[i] = kr_silu(far[i]);
#pragma unroll
        for (int i = 0; i < COUNT * N; i++) z[i / N].v[i % N] = far[i];
    }
}

/* silu and its slope of COUNT packs. */
template <typename T, int COUNT>
static __device__ __forceinline__ void kr_slopes_of(const kr_pack<T> z[COUNT], bool quick, kr_pack<T> silu[COUNT],
                                                    kr_pack<T> slope[COUNT])
{
    enum { N = kr_pack<T>::N };
    if (quick) {
#pragma unroll
        for (int i = 0; i < COUNT * N; i++)
            kr_silu_slope_quick(z[i / N].v[i % N], &silu[i / N].v[i % N], &slope[i / N].v[i % N]);
    } else if (kr_are_near<T, COUNT>(z)) {
#pragma unroll
        for (int i = 0; i < COUNT * N; i++)
            kr_silu_slope_near(z[i / N].v[i % N], &silu[i / N].v[i % N], &slope[i / N].v[i % N]);
    } else {
        T far[COUNT * N], of_far[COUNT * N];
#pragma unroll
        for (int i = 0; i < COUNT * N; i++) far[i] = z[i / N].v[i % N];
#pragma unroll 1
        for (int i = 0; i < COUNT * N; i++) kr_silu_slope(far[i], &far[i], &of_far[i]);
#pragma unroll
        for (int i = 0; i < COUNT * N; i++) silu[i / N].v[i % N] = far[i], slope[i / N].v[i % N] = of_far[i];
    }
}

template <typename T> static __device__ __forceinline__ kr_pack<T> kr_silu_of(const kr_pack<T> &z, bool quick)
{
    kr_pack<T> y = z;
    kr_silus_of<T, 1>(&y, quick);
    return y;
}

template <typename T>
static __device__ __forceinline__ void kr_slopes_of(const kr_pack<T> &z, bool quick, kr_pack<T> *silu,
                                                    kr_pack<T> *slope)
{
    kr_slopes_of<T, 1>(&z, quick, silu, slope);
}

#endif
