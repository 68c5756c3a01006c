/* functions.cuh - e^x and the functions of gates for float, by the polynomials of kernels/cpu/vec_math.h.
 *
 * The bounds are those stated there: e^x 1 ULP, sigmoid, silu, softplus 2 ULP, denormals included. Each operation is
 * written as the one instruction that it is, so that the compiler joins none of them to another.
 */
#ifndef KR_KERNELS_CUDA_FUNCTIONS_CUH
#define KR_KERNELS_CUDA_FUNCTIONS_CUH

#include <cuda_runtime.h>
#include <stdint.h>

/* Splits e^x, |x| <= 120 or NaN, into 2^n and the returned factor, in [0.7, 1.42].
 *   n = round(x / ln 2);  r = x - n ln 2;  factor = e^r = 1 + r + r^2 q(r), |r| <= ln(2)/2 */
static __device__ __forceinline__ float kr_exp_parts(float x, float *n)
{
    const float magic = 0x1.8p23f; /* adding it rounds to an integer */
    *n = __fsub_rn(__fmaf_rn(x, 0x1.715476p0f, magic), magic);
    float r = __fmaf_rn(-*n, 0x1.62e430p-1f, x);
    r = __fmaf_rn(-*n, -0x1.05c610p-29f, r);
    float q = 0x1.6ac408p-10f;
    q = __fmaf_rn(q, r, 0x1.123ddep-7f);
    q = __fmaf_rn(q, r, 0x1.55585ap-5f);
    q = __fmaf_rn(q, r, 0x1.55548cp-3f);
    q = __fmaf_rn(q, r, 0x1.fffffcp-2f);
    q = __fmaf_rn(q, r, 1.0f);
    return __fmaf_rn(q, r, 1.0f);
}

/* x 2^n, |n| <= 200, as two factors in range: the sum's low bits are n + 254, each half of which is a power's biased
 * exponent. */
static __device__ __forceinline__ float kr_scale2(float x, float n)
{
    const int32_t biased = __float_as_int(__fadd_rn(n, 0x1.8p23f + 254)), half = biased >> 1;
    const float first = __int_as_float((int32_t)((uint32_t)half << 23));
    return __fmul_rn(__fmul_rn(x, first), __int_as_float((int32_t)((uint32_t)(biased - half) << 23)));
}

/* x 2^n where the result is normal, or n is 0: the same bits by its exponent alone. */
static __device__ __forceinline__ float kr_scale2_normal(float x, float n)
{
    const uint32_t exponent = (uint32_t)__float_as_int(__fadd_rn(n, 0x1.8p23f)) << 23;
    return __int_as_float((int32_t)((uint32_t)__float_as_int(x) + exponent));
}

/* e^x; infinity above 88.72, 0 below -103.97. */
static __device__ __forceinline__ float kr_exp_ulp(float x)
{
    float n;
    if (fabsf(x) < 87.0f) {
        const float near = kr_exp_parts(x, &n);
        return kr_scale2_normal(near, n);
    }
    const float factor = kr_exp_parts(fmaxf(-105.0f, fminf(90.0f, x)), &n);
    return x == x ? kr_scale2(factor, n) : x;
}

/* (a + a_low) / (1 + t) for t in [0, 1], all but correctly rounded, a_low being of the order of a's last place: an
 * estimate y, then its excess y (1 + t) - a, which is exact up to one rounding. */
static __device__ __forceinline__ float kr_over_one_plus(float a, float a_low, float t)
{
    float inverse;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(__fadd_rn(1.0f, t)));
    const float y = __fmul_rn(a, inverse);
    const float excess = __fsub_rn(__fmaf_rn(y, t, __fsub_rn(y, a)), a_low);
    return __fmaf_rn(-excess, inverse, y);
}

/* a b / (1 + t). */
static __device__ __forceinline__ float kr_product_over_one_plus(float a, float b, float t)
{
    const float product = __fmul_rn(a, b);
    return kr_over_one_plus(product, __fmaf_rn(a, b, -product), t);
}

/* 1 / (1 + e^-x). With t = e^-|x|: 1 / (1 + t), or t / (1 + t) for x < 0. */
static __device__ __forceinline__ float kr_sigmoid_ulp(float x)
{
    const float t = kr_exp_ulp(-fabsf(x));
    return kr_over_one_plus(x < 0.0f ? t : 1.0f, 0.0f, t);
}

/* x / (1 + e^-x): from 18 on it is x; for x < 0 the factor 2^n of e^x is applied last, since x e^x outlives e^x. */
static __device__ __forceinline__ float kr_silu_ulp(float x)
{
    float n;
    if (x > -80.0f && x <= 18.0f) {
        const float part = kr_exp_parts(-fabsf(x), &n), e = kr_scale2_normal(part, n);
        const float near = kr_product_over_one_plus(x, x < 0.0f ? part : 1.0f, e);
        return x < 0.0f ? kr_scale2_normal(near, n) : near;
    }
    const float limited = fmaxf(-120.0f, fminf(40.0f, x)); /* from -109 down the result is -0 */
    const float factor = kr_exp_parts(-fabsf(limited), &n), t = kr_scale2(factor, n);
    const float y = kr_product_over_one_plus(limited, x < 0.0f ? factor : 1.0f, t);
    return x <= 18.0f ? kr_scale2(y, x < 0.0f ? n : 0.0f) : x;
}

/* ln(1 + t) for t in [0, 1]: t + t^2 q(t), within 1.25 ULP. */
static __device__ __forceinline__ float kr_log1p_unit(float t)
{
    float q = 0x1.11362cp-9f;
    q = __fmaf_rn(q, t, -0x1.c0a1fep-7f);
    q = __fmaf_rn(q, t, 0x1.58ff44p-5f);
    q = __fmaf_rn(q, t, -0x1.54f16cp-4f);
    q = __fmaf_rn(q, t, 0x1.ff28d8p-4f);
    q = __fmaf_rn(q, t, -0x1.4a72b2p-3f);
    q = __fmaf_rn(q, t, 0x1.978b54p-3f);
    q = __fmaf_rn(q, t, -0x1.ffc59ep-3f);
    q = __fmaf_rn(q, t, 0x1.5553b6p-2f);
    q = __fmaf_rn(q, t, -0x1.fffff8p-2f);
    return __fmaf_rn(__fmul_rn(t, t), q, t);
}

/* ln(1 + e^x) = max(x, 0) + ln(1 + e^-|x|). From x = 17 on the sum rounds to x, as the definition has it above 20. */
static __device__ __forceinline__ float kr_softplus_ulp(float x)
{
    return __fadd_rn(x > 0.0f ? x : 0.0f, kr_log1p_unit(kr_exp_ulp(-fabsf(x))));
}

#endif
