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

/* z sigmoid(z). */
static __device__ __forceinline__ float kr_silu(float z)
{
    return kr_silu_ulp(z);
}
static __device__ __forceinline__ double kr_silu(double z)
{
    return z < -kr_gate_reach(z) ? -0.0 : z / (1 + exp(-z));
}

/* silu(z) and its slope sigmoid(z) (1 + z sigmoid(-z)). */
static __device__ __forceinline__ void kr_silu_slope(float z, float *silu, float *slope)
{
    const float away = fabsf(z), e = kr_exp_ulp(-away), near = kr_over_one_plus(1.0f, 0.0f, e), far = e * near;
    const float s = z < 0 ? far : near, other = z < 0 ? near : far;
    *slope = away > kr_gate_reach(z) ? s : s * fmaf(z, other, 1.0f);
    *silu = away > 40 ? kr_silu(z) : kr_product_over_one_plus(z, z < 0 ? e : 1.0f, e);
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

template <typename T> static __device__ __forceinline__ kr_pack<T> kr_silu_of(const kr_pack<T> &z, bool quick)
{
    kr_pack<T> y;
    T slope;
    if (quick) {
#pragma unroll
        for (int i = 0; i < kr_pack<T>::N; i++) kr_silu_slope_quick(z.v[i], &y.v[i], &slope);
    } else {
#pragma unroll
        for (int i = 0; i < kr_pack<T>::N; i++) y.v[i] = kr_silu(z.v[i]);
    }
    return y;
}

template <typename T>
static __device__ __forceinline__ void kr_slopes_of(const kr_pack<T> &z, bool quick, kr_pack<T> *silu,
                                                    kr_pack<T> *slope)
{
    if (quick) {
#pragma unroll
        for (int i = 0; i < kr_pack<T>::N; i++) kr_silu_slope_quick(z.v[i], &silu->v[i], &slope->v[i]);
    } else {
#pragma unroll
        for (int i = 0; i < kr_pack<T>::N; i++) kr_silu_slope(z.v[i], &silu->v[i], &slope->v[i]);
    }
}

#endif
