/* unary_cpu.c - the elementwise functions of one operand, y = f(x), and their gradients g_x = g_y f'(x).
 *
 * Forward functions see x in lane a. Backward functions see x in a, y = f(x) in b and g_y in c.
 */
#include "kernels/cpu/isa.h"
#include "kernels/cpu/vec_math.h"
#include "kernels/cpu/vec_pow.h"
#include "kernels/cpu/walk_cpu.h"

/* Erf and GELU, exact and by tanh, on vectors of floats, and their slopes.
 *
 * Bounds in units of the last place (ULP), denormals included; in brackets the worst of all arguments above 2^-16:
 *   erf 1.5 (1.181)   gelu 5 (4.391)   gelu_tanh 3 (2.383)   slope of erf 3 (2.69)
 * Slopes of gelu have an absolute error below 3e-7. NaN gives NaN and infinity the limit, -0 in gelu(-infinity). Lanes and
 * instruction sets are as in vec_math.h.
 *
 * The normal distribution's tail is e^(-t^2/2) r(t), t >= 0; its ratio r is smooth and falls from 1/2 like 1 / t.
 */

/* x r(t) (1 + delta) for t in [0, 15] and a small delta: r = p(u) / (t + 4), u = (t - 4) / (t + 4) = 1 - 8 / (t + 4).
 * The quotient's error is known, and also enters through u: about 1 - u times in all. This error and those of the
 * products are subtracted together with delta. */
KR_INLINE vf tail_ratio(vf x, vf t, vf delta)
{
    const vf four = vf_set1(4), one = vf_set1(1);
    vf d = vf_add(t, four), d_low = vf_sub(t, vf_sub(d, four)), inverse = vf_div(one, d);
    vf u = vf_fnma(inverse, vf_set1(8), one), error = vf_fnma(inverse, d_low, vf_fnma(inverse, d, one));
    vf p = vf_set1(-0x1.cafb6cp-14f);
    p = vf_fma(p, u, vf_set1(0x1.b8041ap-13f));
    p = vf_fma(p, u, vf_set1(0x1.97bbb6p-10f));
    p = vf_fma(p, u, vf_set1(-0x1.cfe026p-9f));
    p = vf_fma(p, u, vf_set1(-0x1.ecfbe0p-8f));
    p = vf_fma(p, u, vf_set1(0x1.eee372p-5f));
    p = vf_fma(p, u, vf_set1(-0x1.7e002cp-3f));
    p = vf_fma(p, u, vf_set1(0x1.8c6d72p-2f));
    p = vf_fma(p, u, vf_set1(-0x1.373e38p-1f));
    p = vf_fma(p, u, vf_set1(0x1.82b4bcp-1f));
    vf ratio = vf_mul(p, inverse), ratio_low = vf_fma(p, inverse, vf_neg(ratio));
    vf y = vf_mul(x, ratio), y_low = vf_fma(x, ratio_low, vf_fma(x, ratio, vf_neg(y)));
    return vf_add(y, vf_fma(y, vf_fma(vf_sub(one, u), error, delta), y_low));
}

/* e^(-scale x^2) = factor 2^n (1 + delta) for scale x^2 <= 120; scale is a power of two. The square is held in two floats:
 * its rounding alone would cost scale x^2 ULP. */
KR_INLINE vf exp_of_square(vf x, float scale, vf *n, vf *delta)
{
    vf square = vf_mul(x, x);
    *delta = vf_mul(vf_fma(x, x, vf_neg(square)), vf_set1(-scale));
    return exp_parts(vf_mul(square, vf_set1(-scale)), n);
}

/* erf x.
 *   a = |x|;  a < 1: a + a p(a^2);  else 1 - 2 e^(-a^2) r(2^1/2 a);  with x's sign */
KR_INLINE vf vf_erf(vf x)
{
    vf a = vf_min(vf_set1(4), vf_abs(x)), u = vf_mul(a, a), n, delta; /* from 4 on the result rounds to 1 */
    vf p = vf_set1(0x1.477204p-14f);
    p = vf_fma(p, u, vf_set1(-0x1.a3515ep-11f));
    p = vf_fma(p, u, vf_set1(0x1.53f224p-8f));
    p = vf_fma(p, u, vf_set1(-0x1.b7f71ap-6f));
    p = vf_fma(p, u, vf_set1(0x1.ce2ce6p-4f));
    p = vf_fma(p, u, vf_set1(-0x1.81273ep-2f));
    p = vf_fma(p, u, vf_set1(0x1.06eba8p-3f));
    vf inner = vf_fma(a, p, a);
    vf factor = exp_of_square(a, 1, &n, &delta);
    vf tail = vf_mul(factor, tail_ratio(vf_set1(2), vf_mul(a, vf_set1(0x1.6a09e6p0f)), delta));
    vf outer = vf_sub(vf_set1(1), vf_scale2(tail, n));
    return vf_with_sign(vf_select(vf_lt(a, vf_set1(1)), inner, outer), x);
}

/* erf'(x) = 2 pi^-1/2 e^(-x^2). */
KR_INLINE vf vf_erf_slope(vf x)
{
    vf n, delta, factor = exp_of_square(vf_min(vf_set1(10.5f), vf_abs(x)), 1, &n, &delta);
    return vf_scale2(vf_mul(vf_fma(factor, delta, factor), vf_set1(0x1.20dd76p0f)), n);
}

/* x P(X < x), X standard normal. With a = |x|, l = a e^(-a^2/2) r(a): -l for x < 0, else x - l. The factor 2^n of l is
 * applied last, since the exponential underflows before the product does. */
KR_INLINE vf vf_gelu(vf x)
{
    vf n, delta, a = vf_min(vf_set1(15), vf_abs(x)); /* below -14.3 the result is -0 */
    vf factor = exp_of_square(a, 0.5f, &n, &delta);
    vf l = vf_scale2(vf_mul(factor, tail_ratio(a, a, delta)), n);
    return vf_with_sign(vf_select(vf_lt(x, vf_zero()), l, vf_sub(x, l)), x);
}

/* gelu'(x) = P(X < x) + x (2 pi)^-1/2 e^(-x^2/2). */
KR_INLINE vf vf_gelu_slope(vf x)
{
    vf n, delta, a = vf_min(vf_set1(15), vf_abs(x)), limited = vf_with_sign(a, x);
    vf factor = exp_of_square(a, 0.5f, &n, &delta), e = vf_scale2(factor, n),
       tail = vf_mul(e, tail_ratio(vf_set1(1), a, delta));
    vf below = vf_select(vf_le(x, vf_zero()), tail, vf_sub(vf_set1(1), tail));
    return vf_fma(vf_mul(limited, vf_set1(0x1.988454p-2f)), vf_fma(e, delta, e), below);
}

/* v = 2 (2 / pi)^1/2 (x + 0.044715 x^3) = x (c + d x^2) in two floats, for |x| <= 11. */
KR_INLINE vf gelu_tanh_argument(vf x, vf *low)
{
    const vf c = vf_set1(0x1.988454p0f), d = vf_set1(0x1.2444f2p-4f);
    vf square = vf_mul(x, x), square_low = vf_fma(x, x, vf_neg(square));
    vf cubic = vf_mul(d, square), cubic_low = vf_fma(d, square, vf_neg(cubic));
    vf sum = vf_add(c, cubic), part = vf_sub(sum, c); /* the sum's rounding, whichever term is larger */
    vf sum_low = vf_add(vf_sub(c, vf_sub(sum, part)), vf_sub(cubic, part));
    vf rest = vf_fma(square, vf_set1(0x1.49b16ap-29f),
                     vf_set1(-0x1.857936p-25f)); /* the parts of c and d below float precision */
    rest = vf_add(vf_fma(d, square_low, cubic_low), vf_add(rest, sum_low));
    vf v = vf_mul(x, sum);
    *low = vf_fma(x, rest, vf_fma(x, sum, vf_neg(v)));
    return v;
}

/* x / (1 + e^-v), as silu_wide. */
KR_INLINE vf vf_gelu_tanh(vf x)
{
    vf n, low, limited = vf_max(vf_set1(-11), vf_min(vf_set1(11), x)); /* from -10.7 down the result is -0 */
    vf v = gelu_tanh_argument(vf_neg_abs(limited), &low);
    vf factor = exp_parts(v, &n);
    factor = vf_fma(factor, low, factor);
    vm lower = vf_lt(x, vf_zero());
    vf y = product_over_one_plus(limited, vf_select(lower, factor, vf_set1(1)), vf_scale2(factor, n));
    y = vf_scale2(y, vf_keep(lower, n));
    return vf_select(vf_gt(x, vf_set1(9)), x, y);
}

/* s + x s (1 - s) v'(x), s = 1 / (1 + e^-v). */
KR_INLINE vf vf_gelu_tanh_slope(vf x)
{
    vf low, limited = vf_max(vf_set1(-11), vf_min(vf_set1(11), x));
    vf t = exp_in_range(gelu_tanh_argument(vf_neg_abs(limited), &low));
    vf larger = vf_div(vf_set1(1), vf_add(vf_set1(1), t)), smaller = vf_mul(t, larger);
    vm lower = vf_lt(x, vf_zero());
    vf v_slope = vf_fma(vf_mul(limited, limited), vf_set1(0x1.b6676cp-3f), vf_set1(0x1.988454p0f));
    vf steep = vf_mul(vf_mul(limited, v_slope), vf_mul(larger, smaller));
    return vf_add(vf_select(lower, smaller, larger), steep);
}

/* Two roundings, so that instruction sets with and without a fused form agree to the bit. */
static inline vf lane_scale(lanes in)
{
    return vf_add(vf_mul(in.alpha, in.a), in.beta);
}

static inline vf lane_scale_bwd(lanes in)
{
    return vf_mul(in.alpha, in.c);
}

static inline vf lane_exp(lanes in)
{
    return vf_exp(in.a);
}

/* g y */
static inline vf lane_exp_bwd(lanes in)
{
    return vf_mul(in.c, in.b);
}

static inline vf lane_log(lanes in)
{
    return vf_log(in.a);
}

/* g / x */
static inline vf lane_log_bwd(lanes in)
{
    return vf_div(in.c, in.a);
}

static inline vf lane_sqrt(lanes in)
{
    return vf_sqrt(in.a);
}

/* g / (2 y) */
static inline vf lane_sqrt_bwd(lanes in)
{
    return vf_div(vf_mul(in.c, vf_set1(0.5f)), in.b);
}

static inline vf lane_rsqrt(lanes in)
{
    return vf_div(vf_set1(1), vf_sqrt(in.a));
}

/* -g y^3 / 2; multiplied up from g so that a small g keeps y^3 in range */
static inline vf lane_rsqrt_bwd(lanes in)
{
    vf g = vf_mul(in.c, vf_set1(-0.5f));
    return vf_mul(vf_mul(vf_mul(g, in.b), in.b), in.b);
}

static inline vf lane_sin(lanes in)
{
    return vf_sin(in.a);
}

static inline vf lane_sin_bwd(lanes in)
{
    return vf_mul(in.c, vf_cos(in.a));
}

static inline vf lane_cos(lanes in)
{
    return vf_cos(in.a);
}

static inline vf lane_cos_bwd(lanes in)
{
    return vf_mul(in.c, vf_neg(vf_sin(in.a)));
}

static inline vf lane_tanh(lanes in)
{
    return vf_tanh(in.a);
}

/* g (1 - y^2) */
static inline vf lane_tanh_bwd(lanes in)
{
    return vf_mul(in.c, vf_fnma(in.b, in.b, vf_set1(1)));
}

static inline vf lane_sigmoid(lanes in)
{
    return vf_sigmoid(in.a);
}

/* g y (1 - y) */
static inline vf lane_sigmoid_bwd(lanes in)
{
    return vf_mul(vf_mul(in.c, in.b), vf_sub(vf_set1(1), in.b));
}

static inline vf lane_silu(lanes in)
{
    return vf_silu(in.a);
}

static inline vf lane_silu_bwd(lanes in)
{
    return vf_mul(in.c, vf_silu_slope(in.a));
}

static inline vf lane_softplus(lanes in)
{
    return vf_softplus(in.a);
}

/* g sigmoid(x), which rounds to g above 20 */
static inline vf lane_softplus_bwd(lanes in)
{
    return vf_mul(in.c, vf_sigmoid(in.a));
}

static inline vf lane_log_sigmoid(lanes in)
{
    return vf_log_sigmoid(in.a);
}

/* g sigmoid(-x) */
static inline vf lane_log_sigmoid_bwd(lanes in)
{
    return vf_mul(in.c, vf_sigmoid(vf_neg(in.a)));
}

/* Propagates NaN. */
static inline vf lane_clamp(lanes in)
{
    return vf_min(in.beta, vf_max(in.alpha, in.a));
}

static inline vf lane_clamp_bwd(lanes in)
{
    return vf_keep(vm_and(vf_ge(in.a, in.alpha), vf_le(in.a, in.beta)), in.c);
}

static inline vf lane_abs(lanes in)
{
    return vf_abs(in.a);
}

/* g, -g, or 0 at 0 */
static inline vf lane_abs_bwd(lanes in)
{
    vf g = vf_select(vf_lt(in.a, vf_zero()), vf_neg(in.c), in.c);
    return vf_keep(vm_or(vf_lt(in.a, vf_zero()), vf_gt(in.a, vf_zero())), g);
}

/* Propagates NaN. */
static inline vf lane_relu(lanes in)
{
    return vf_max(vf_zero(), in.a);
}

static inline vf lane_relu_bwd(lanes in)
{
    return vf_keep(vf_gt(in.a, vf_zero()), in.c);
}

static inline vf lane_erf(lanes in)
{
    return vf_erf(in.a);
}

static inline vf lane_erf_bwd(lanes in)
{
    return vf_mul(in.c, vf_erf_slope(in.a));
}

static inline vf lane_gelu(lanes in)
{
    return vf_gelu(in.a);
}

static inline vf lane_gelu_bwd(lanes in)
{
    return vf_mul(in.c, vf_gelu_slope(in.a));
}

static inline vf lane_gelu_tanh(lanes in)
{
    return vf_gelu_tanh(in.a);
}

static inline vf lane_gelu_tanh_bwd(lanes in)
{
    return vf_mul(in.c, vf_gelu_tanh_slope(in.a));
}

/* All lanes have the same exponent; 2 is the most frequent. */
static inline vf lane_pow_scalar(lanes in)
{
    if (vm_all(vf_eq(in.alpha, vf_set1(2)))) return vf_mul(in.a, in.a);
    return vf_pow(in.a, in.alpha);
}

static inline vf lane_pow_scalar_bwd(lanes in)
{
    if (vm_all(vf_eq(in.alpha, vf_set1(2)))) return vf_mul(in.c, vf_add(in.a, in.a));
    return vf_pow_bwd(in.a, in.alpha, in.c);
}

static void unary_run(const kr_unary_args *a, kr_task_fn *task)
{
    walk_job job = { .walk = a->walk, .y = a->y, .in = { a->x }, .alpha = (float)a->alpha, .beta = (float)a->beta };
    walk_run(&job, a->exec.pool, task);
}

static void unary_bwd_run(const kr_unary_bwd_args *a, kr_task_fn *task)
{
    walk_job job = {
        .walk = a->walk, .y = a->g_x, .in = { a->x, a->y, a->g_y }, .alpha = (float)a->alpha, .beta = (float)a->beta
    };
    walk_run(&job, a->exec.pool, task);
}

/* The kernels and their tasks, one pair per row of the table. */
#define KR_UNARY(name)                                                                                                 \
    static void name##_task(void *job, int64_t index, int worker)                                                      \
    {                                                                                                                  \
        (void)worker;                                                                                                  \
        walk_task(job, index, lane_##name, 1);                                                                         \
    }                                                                                                                  \
    static void name##_bwd_task(void *job, int64_t index, int worker)                                                  \
    {                                                                                                                  \
        (void)worker;                                                                                                  \
        walk_task(job, index, lane_##name##_bwd, 3);                                                                   \
    }                                                                                                                  \
    void KR_FN(name)(const kr_unary_args *a)                                                                           \
    {                                                                                                                  \
        unary_run(a, name##_task);                                                                                     \
    }                                                                                                                  \
    void KR_FN(name##_bwd)(const kr_unary_bwd_args *a)                                                                 \
    {                                                                                                                  \
        unary_bwd_run(a, name##_bwd_task);                                                                             \
    }
#include "kernels/unary.def"
#undef KR_UNARY
