/* ulp_math.cuh - e^x, sigmoid, silu, softplus, erf and GELU for float with ULP bounds, by the polynomials of
 * kernels/cpu/vec_math.h and unary_cpu.c.
 *
 * The bounds are those stated there: e^x 1 ULP, sigmoid, silu, softplus 2 ULP, erf 1.5, gelu 5, gelu_tanh 3, denormals
 * included. Operations are intrinsics with explicit rounding, so that the compiler contracts none of them.
 */
#ifndef KR_KERNELS_CUDA_PRIM_ULP_MATH_CUH
#define KR_KERNELS_CUDA_PRIM_ULP_MATH_CUH

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

/* x 2^n, |n| <= 200, as two factors in range: the low bits of the sum are n + 254, and each half of it is the biased
 * exponent of a power. */
static __device__ __forceinline__ float kr_scale2(float x, float n)
{
    const int32_t biased = __float_as_int(__fadd_rn(n, 0x1.8p23f + 254)), half = biased >> 1;
    const float first = __int_as_float((int32_t)((uint32_t)half << 23));
    return __fmul_rn(__fmul_rn(x, first), __int_as_float((int32_t)((uint32_t)(biased - half) << 23)));
}

/* x 2^n where the result is normal, or n is 0: the same bits, by adding to the exponent. */
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
        const float factor = kr_exp_parts(x, &n);
        return kr_scale2_normal(factor, n);
    }
    const float factor = kr_exp_parts(fmaxf(-105.0f, fminf(90.0f, x)), &n);
    return x == x ? kr_scale2(factor, n) : x;
}

/* (a + a_low) / (1 + t) for t in [0, 1], almost correctly rounded, a_low being of the order of a's last place: an estimate
 * y, then its excess y (1 + t) - a, which is exact up to one rounding. */
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

/* x / (1 + e^-x): x itself from 18 on; for x < 0 the factor 2^n of e^x is applied last, since x e^x underflows later than
 * e^x. */
static __device__ __forceinline__ float kr_silu_ulp(float x)
{
    float n;
    if (x > -80.0f && x <= 18.0f) {
        const float part = kr_exp_parts(-fabsf(x), &n), e = kr_scale2_normal(part, n);
        const float y = kr_product_over_one_plus(x, x < 0.0f ? part : 1.0f, e);
        return x < 0.0f ? kr_scale2_normal(y, n) : y;
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

/* ---- erf and GELU: kernels/cpu/unary_cpu.c has the formulas ---- */

/* The tail of the normal distribution is e^(-t^2/2) r(t): x r(t) (1 + delta) for t in [0, 15]. */
static __device__ __forceinline__ float kr_tail_ratio(float x, float t, float delta)
{
    const float d = __fadd_rn(t, 4.0f), d_low = __fsub_rn(t, __fsub_rn(d, 4.0f)), inverse = __fdiv_rn(1.0f, d);
    const float u = __fmaf_rn(-inverse, 8.0f, 1.0f);
    const float error = __fmaf_rn(-inverse, d_low, __fmaf_rn(-inverse, d, 1.0f));
    float p = -0x1.cafb6cp-14f;
    p = __fmaf_rn(p, u, 0x1.b8041ap-13f);
    p = __fmaf_rn(p, u, 0x1.97bbb6p-10f);
    p = __fmaf_rn(p, u, -0x1.cfe026p-9f);
    p = __fmaf_rn(p, u, -0x1.ecfbe0p-8f);
    p = __fmaf_rn(p, u, 0x1.eee372p-5f);
    p = __fmaf_rn(p, u, -0x1.7e002cp-3f);
    p = __fmaf_rn(p, u, 0x1.8c6d72p-2f);
    p = __fmaf_rn(p, u, -0x1.373e38p-1f);
    p = __fmaf_rn(p, u, 0x1.82b4bcp-1f);
    const float ratio = __fmul_rn(p, inverse), ratio_low = __fmaf_rn(p, inverse, -ratio);
    const float y = __fmul_rn(x, ratio), y_low = __fmaf_rn(x, ratio_low, __fmaf_rn(x, ratio, -y));
    return __fadd_rn(y, __fmaf_rn(y, __fmaf_rn(__fsub_rn(1.0f, u), error, delta), y_low));
}

/* e^(-scale x^2) = factor 2^n (1 + delta) for scale x^2 <= 120; scale is a power of two. */
static __device__ __forceinline__ float kr_exp_of_square(float x, float scale, float *n, float *delta)
{
    const float square = __fmul_rn(x, x);
    *delta = __fmul_rn(__fmaf_rn(x, x, -square), -scale);
    return kr_exp_parts(__fmul_rn(square, -scale), n);
}

/* min(|x|, most); NaN propagates. */
static __device__ __forceinline__ float kr_abs_up_to(float most, float x)
{
    const float a = fabsf(x);
    return a > most ? most : a;
}

static __device__ __forceinline__ float kr_erf_ulp(float x)
{
    const float a = kr_abs_up_to(4.0f, x), u = __fmul_rn(a, a); /* from 4 on the result rounds to 1 */
    if (a < 1.0f) {
        float p = 0x1.477204p-14f;
        p = __fmaf_rn(p, u, -0x1.a3515ep-11f);
        p = __fmaf_rn(p, u, 0x1.53f224p-8f);
        p = __fmaf_rn(p, u, -0x1.b7f71ap-6f);
        p = __fmaf_rn(p, u, 0x1.ce2ce6p-4f);
        p = __fmaf_rn(p, u, -0x1.81273ep-2f);
        p = __fmaf_rn(p, u, 0x1.06eba8p-3f);
        return copysignf(__fmaf_rn(a, p, a), x);
    }
    float n, delta;
    const float factor = kr_exp_of_square(a, 1.0f, &n, &delta);
    const float tail = __fmul_rn(factor, kr_tail_ratio(2.0f, __fmul_rn(a, 0x1.6a09e6p0f), delta));
    return copysignf(__fsub_rn(1.0f, kr_scale2(tail, n)), x);
}

static __device__ __forceinline__ float kr_erf_slope_ulp(float x)
{
    float n, delta;
    const float factor = kr_exp_of_square(kr_abs_up_to(10.5f, x), 1.0f, &n, &delta);
    return kr_scale2(__fmul_rn(__fmaf_rn(factor, delta, factor), 0x1.20dd76p0f), n);
}

static __device__ __forceinline__ float kr_gelu_ulp(float x)
{
    float n, delta;
    const float a = kr_abs_up_to(15.0f, x), factor = kr_exp_of_square(a, 0.5f, &n, &delta);
    const float l = kr_scale2(__fmul_rn(factor, kr_tail_ratio(a, a, delta)), n); /* 0 below -14.3 */
    return copysignf(x < 0.0f ? l : __fsub_rn(x, l), x);
}

static __device__ __forceinline__ float kr_gelu_slope_ulp(float x)
{
    float n, delta;
    const float a = kr_abs_up_to(15.0f, x), limited = copysignf(a, x), factor = kr_exp_of_square(a, 0.5f, &n, &delta);
    const float e = kr_scale2(factor, n), tail = __fmul_rn(e, kr_tail_ratio(1.0f, a, delta));
    const float below = x <= 0.0f ? tail : __fsub_rn(1.0f, tail);
    return __fmaf_rn(__fmul_rn(limited, 0x1.988454p-2f), __fmaf_rn(e, delta, e), below);
}

/* v = 2 (2 / pi)^1/2 (x + 0.044715 x^3) in two floats, for |x| <= 11. */
static __device__ __forceinline__ float kr_gelu_tanh_argument(float x, float *low)
{
    const float c = 0x1.988454p0f, d = 0x1.2444f2p-4f;
    const float square = __fmul_rn(x, x), square_low = __fmaf_rn(x, x, -square);
    const float cubic = __fmul_rn(d, square), cubic_low = __fmaf_rn(d, square, -cubic);
    const float sum = __fadd_rn(c, cubic), part = __fsub_rn(sum, c);
    const float sum_low = __fadd_rn(__fsub_rn(c, __fsub_rn(sum, part)), __fsub_rn(cubic, part));
    float rest = __fmaf_rn(square, 0x1.49b16ap-29f, -0x1.857936p-25f); /* rounding errors of c and d */
    rest = __fadd_rn(__fmaf_rn(d, square_low, cubic_low), __fadd_rn(rest, sum_low));
    const float v = __fmul_rn(x, sum);
    *low = __fmaf_rn(x, rest, __fmaf_rn(x, sum, -v));
    return v;
}

static __device__ __forceinline__ float kr_gelu_tanh_ulp(float x)
{
    if (x > 9.0f) return x;
    float n, low;
    const float limited = x < -11.0f ? -11.0f : x; /* from -10.7 down the result is -0 */
    const float v = kr_gelu_tanh_argument(-fabsf(limited), &low), part = kr_exp_parts(v, &n);
    const float factor = __fmaf_rn(part, low, part);
    const float y = kr_product_over_one_plus(limited, x < 0.0f ? factor : 1.0f, kr_scale2(factor, n));
    return kr_scale2(y, x < 0.0f ? n : 0.0f);
}

static __device__ __forceinline__ float kr_gelu_tanh_slope_ulp(float x)
{
    float n, low;
    const float limited = copysignf(kr_abs_up_to(11.0f, x), x), v = kr_gelu_tanh_argument(-fabsf(limited), &low);
    const float part = kr_exp_parts(v, &n), t = kr_scale2(part, n);
    const float larger = __fdiv_rn(1.0f, __fadd_rn(1.0f, t)), smaller = __fmul_rn(t, larger);
    const float v_slope = __fmaf_rn(__fmul_rn(limited, limited), 0x1.b6676cp-3f, 0x1.988454p0f);
    const float steep = __fmul_rn(__fmul_rn(limited, v_slope), __fmul_rn(larger, smaller));
    return __fadd_rn(x < 0.0f ? smaller : larger, steep);
}

#endif
