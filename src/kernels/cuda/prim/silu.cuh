/* silu.cuh - silu(z) = z sigmoid(z) and its slope, for scalars and 16-byte vectors: to a few ULP, or with fast
 * approximations. */
#ifndef KR_KERNELS_CUDA_PRIM_SILU_CUH
#define KR_KERNELS_CUDA_PRIM_SILU_CUH

#include "kernels/cuda/prim/ulp_math.cuh"
#include "kernels/cuda/prim/block_reduce.cuh"

/* Beyond this |z| sigmoid is exactly 0 or 1; its product with an infinite x would be NaN. */
static __device__ __forceinline__ float kr_sigmoid_saturation(float)
{
    return 110.0f;
}
static __device__ __forceinline__ double kr_sigmoid_saturation(double)
{
    return 750.0;
}

/* For |z| below this the short code path is used: e^z, e^-z and their products are normal. */
static __device__ __forceinline__ bool kr_is_moderate(float z)
{
    return fabsf(z) < 80.0f;
}
static __device__ __forceinline__ bool kr_is_moderate(double)
{
    return false;
}

/* e^x for a moderate x, by kr_exp_parts. */
static __device__ __forceinline__ float kr_exp_moderate(float x)
{
    float n;
    const float factor = kr_exp_parts(x, &n);
    return kr_scale2_normal(factor, n);
}

/* 1 / x for a normal x, and the estimate that it is refined from. */
static __device__ __forceinline__ float kr_inverse_moderate(float x, float *estimate)
{
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(*estimate) : "f"(x));
    return __fmaf_rn(__fmaf_rn(-x, *estimate, 1.0f), *estimate, *estimate);
}

/* z / (1 + e^-z) for a moderate z, 2.3 ULP. */
static __device__ __forceinline__ float kr_silu_moderate(float z)
{
    const float d = __fadd_rn(1.0f, kr_exp_moderate(-z));
    float inverse;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(d));
    const float y = __fmul_rn(z, inverse);
    return __fmaf_rn(__fmaf_rn(-y, d, z), inverse, y);
}
static __device__ __forceinline__ double kr_silu_moderate(double z)
{
    return z;
}

/* z sigmoid(z). */
static __device__ __forceinline__ float kr_silu(float z)
{
    return kr_is_moderate(z) ? kr_silu_moderate(z) : kr_silu_ulp(z);
}
static __device__ __forceinline__ double kr_silu(double z)
{
    return z < -kr_sigmoid_saturation(z) ? -0.0 : z / (1 + exp(-z));
}

/* silu(z) and its slope s (1 + z (1 - s)), s = sigmoid(z), for a moderate z; 1 - s = e^-z s. */
static __device__ __forceinline__ void kr_silu_slope_moderate(float z, float *silu, float *slope)
{
    const float e = kr_exp_moderate(-z), d = __fadd_rn(1.0f, e);
    float inverse;
    const float s = kr_inverse_moderate(d, &inverse), y = __fmul_rn(z, inverse);
    *silu = __fmaf_rn(__fmaf_rn(-y, d, z), inverse, y);
    *slope = __fmul_rn(s, __fmaf_rn(z, __fmul_rn(e, s), 1.0f));
}
static __device__ __forceinline__ void kr_silu_slope_moderate(double, double *, double *) {}

/* silu(z) and its slope sigmoid(z) (1 + z sigmoid(-z)). */
static __device__ __forceinline__ void kr_silu_slope(float z, float *silu, float *slope)
{
    if (kr_is_moderate(z)) {
        kr_silu_slope_moderate(z, silu, slope);
        return;
    }
    const float magnitude = fabsf(z), e = kr_exp_ulp(-magnitude), large = kr_over_one_plus(1.0f, 0.0f, e),
                small = e * large;
    const float s = z < 0 ? small : large, other = z < 0 ? large : small;
    *slope = magnitude > kr_sigmoid_saturation(z) ? s : s * fmaf(z, other, 1.0f);
    *silu = kr_silu_ulp(z);
}
static __device__ __forceinline__ void kr_silu_slope(double z, double *silu, double *slope)
{
    const double magnitude = fabs(z), e = exp(-magnitude), s = 1 / (1 + exp(-z)), other = (z < 0 ? 1 : e) / (1 + e);
    *slope = magnitude > kr_sigmoid_saturation(z) ? s : s * (1 + z * other);
    *silu = kr_silu(z);
}

/* The same by hardware approximations, to within 1e-5 of a result or of 1: for bf16 precision, which keeps 4e-3. */
static __device__ __forceinline__ float kr_sigmoid_fast(float z)
{
    float e, s;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(z * -1.4426950408889634f));
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(s) : "f"(1.0f + e));
    return s;
}
static __device__ __forceinline__ void kr_silu_slope_fast(float z, float *silu, float *slope)
{
    const float s = kr_sigmoid_fast(z);
    *silu = z < -kr_sigmoid_saturation(z) ? -0.0f : z * s;
    *slope = fabsf(z) > kr_sigmoid_saturation(z) ? s : s * fmaf(z, 1.0f - s, 1.0f);
}
static __device__ __forceinline__ void kr_silu_slope_fast(double z, double *silu, double *slope)
{
    kr_silu_slope(z, silu, slope);
}

template <typename T> static inline bool kr_is_fast(const kr_exec *exec)
{
    return sizeof(T) == sizeof(float) && exec->precision == KR_PRECISION_BF16;
}

template <typename T, int COUNT> static __device__ __forceinline__ bool kr_are_moderate(const kr_vec16<T> z[COUNT])
{
    bool moderate = true;
#pragma unroll
    for (int p = 0; p < COUNT; p++)
#pragma unroll
        for (int i = 0; i < kr_vec16<T>::N; i++) moderate = moderate && kr_is_moderate(z[p].v[i]);
    return moderate;
}

/* silu of COUNT vectors. An element's result does not depend on its neighbours: they only choose whether all take the short
 * code path. The long one is a loop, to keep the code small. */
template <typename T, int COUNT> static __device__ __forceinline__ void kr_silus_of(kr_vec16<T> z[COUNT], bool quick)
{
    enum { N = kr_vec16<T>::N };
    T slope;
    if (quick) {
#pragma unroll
        for (int i = 0; i < COUNT * N; i++) kr_silu_slope_fast(z[i / N].v[i % N], &z[i / N].v[i % N], &slope);
    } else if (kr_are_moderate<T, COUNT>(z)) {
#pragma unroll
        for (int i = 0; i < COUNT * N; i++) z[i / N].v[i % N] = kr_silu_moderate(z[i / N].v[i % N]);
    } else {
        T values[COUNT * N];
#pragma unroll
        for (int i = 0; i < COUNT * N; i++) values[i] = z[i / N].v[i % N];
#pragma unroll 1
        for (int i = 0; i < COUNT * N; i++) values[i] = kr_silu(values[i]);
#pragma unroll
        for (int i = 0; i < COUNT * N; i++) z[i / N].v[i % N] = values[i];
    }
}

/* silu and its slope of COUNT vectors. */
template <typename T, int COUNT>
static __device__ __forceinline__ void kr_slopes_of(const kr_vec16<T> z[COUNT], bool quick, kr_vec16<T> silu[COUNT],
                                                    kr_vec16<T> slope[COUNT])
{
    enum { N = kr_vec16<T>::N };
    if (quick) {
#pragma unroll
        for (int i = 0; i < COUNT * N; i++)
            kr_silu_slope_fast(z[i / N].v[i % N], &silu[i / N].v[i % N], &slope[i / N].v[i % N]);
    } else if (kr_are_moderate<T, COUNT>(z)) {
#pragma unroll
        for (int i = 0; i < COUNT * N; i++)
            kr_silu_slope_moderate(z[i / N].v[i % N], &silu[i / N].v[i % N], &slope[i / N].v[i % N]);
    } else {
        T values[COUNT * N], slopes[COUNT * N];
#pragma unroll
        for (int i = 0; i < COUNT * N; i++) values[i] = z[i / N].v[i % N];
#pragma unroll 1
        for (int i = 0; i < COUNT * N; i++) kr_silu_slope(values[i], &values[i], &slopes[i]);
#pragma unroll
        for (int i = 0; i < COUNT * N; i++) silu[i / N].v[i % N] = values[i], slope[i / N].v[i % N] = slopes[i];
    }
}

template <typename T> static __device__ __forceinline__ kr_vec16<T> kr_silu_of(const kr_vec16<T> &z, bool quick)
{
    kr_vec16<T> y = z;
    kr_silus_of<T, 1>(&y, quick);
    return y;
}

template <typename T>
static __device__ __forceinline__ void kr_slopes_of(const kr_vec16<T> &z, bool quick, kr_vec16<T> *silu,
                                                    kr_vec16<T> *slope)
{
    kr_slopes_of<T, 1>(&z, quick, silu, slope);
}

#endif
