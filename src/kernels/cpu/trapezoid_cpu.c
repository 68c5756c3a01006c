/* trapezoid_cpu.c - the coefficients of Mamba-3's trapezoidal rule and their gradients, in f32 vectors.
 *
 *   dt_raw, a_raw, lambda_raw, dt, da, gamma, carry, beta [no nh]    dt_bias [nh] or none
 *   dt = softplus(dt_raw + dt_bias) within limits    a = -max(f(a_raw), floor)    l = sigmoid(lambda_raw)
 *   da = dt a    gamma = l dt    carry = (1 - l) dt    beta = carry e^da
 * backward, c = g_carry + e^da g_beta, d = g_da + carry e^da g_beta:
 *   g_dt_raw = (g_dt + a d + l g_gamma + (1 - l) c) softplus'(dt_raw + dt_bias), 0 where dt is cut off
 *   g_a_raw = -dt d f'(a_raw), 0 where the floor holds;    g_lambda_raw = dt (g_gamma - c) l (1 - l)
 */
#include "kernels/cpu/isa.h"
#include "kernels/cpu/ranges.h"
#include "kernels/cpu/vec.h"
#include "kernels/cpu/vec_math.h"

enum { COST = 8 }; /* of an element's functions, relative to the elements of KR_TASK_ELEMENTS */

/* VF heads of a token: the coefficients, and further values that their gradients need. */
typedef struct point {
    vf raw, step;                   /* dt_raw + dt_bias; its softplus before the limits */
    vf dt, rate, a, l, rest, carry; /* rate = f(a_raw), rest = 1 - l */
} point;

KR_INLINE vf load_or_zero(const void *p, int64_t i, int64_t n)
{
    return p ? vf_load_n((const float *)p + i, n) : vf_zero();
}

KR_INLINE void store_if(void *p, int64_t i, int64_t n, vf v)
{
    if (p) vf_store_n((float *)p + i, n, v);
}

/* 1 + x for x >= 0, 1 / (1 - x) below. */
KR_INLINE vf heavy_tail(vf x)
{
    const vf one = vf_set1(1);
    return vf_select(vf_lt(x, vf_zero()), vf_div(one, vf_sub(one, x)), vf_add(one, x));
}

/* n heads from element i on, head h being the first. min and max are ordered so that a NaN propagates. */
KR_INLINE point point_of(const kr_trapezoid_args *t, int64_t i, int64_t h, int64_t n)
{
    point p;
    const int64_t from = i / t->nh * t->dt_raw.row + h;
    vf a_raw = load_or_zero(t->a_raw.data, from, n), lambda_raw = load_or_zero(t->lambda_raw.data, from, n);
    p.raw = vf_add(load_or_zero(t->dt_raw.data, from, n), load_or_zero(t->dt_bias, h, n));
    p.step = vf_softplus(p.raw);
    p.dt = vf_min(vf_set1((float)t->dt_max), vf_max(vf_set1((float)t->dt_min), p.step));
    p.rate = t->softplus ? vf_softplus(a_raw) : heavy_tail(a_raw);
    p.a = vf_neg(vf_max(vf_set1((float)t->a_floor), p.rate));
    p.l = vf_sigmoid(lambda_raw);
    p.rest = vf_sigmoid(vf_neg(lambda_raw));
    p.carry = vf_mul(p.rest, p.dt);
    return p;
}

static void trapezoid_tokens(const void *args, int64_t first, int64_t end, int worker)
{
    (void)worker;
    const kr_trapezoid_args *t = args;
    for (int64_t o = first; o < end; o++) {
        for (int64_t h = 0; h < t->nh; h += VF) {
            int64_t i = o * t->nh + h, n = t->nh - h;
            point p = point_of(t, i, h, n);
            vf da = vf_mul(p.dt, p.a);
            store_if(t->dt, i, n, p.dt);
            store_if(t->da, i, n, da);
            store_if(t->gamma, i, n, vf_mul(p.l, p.dt));
            store_if(t->carry, i, n, p.carry);
            store_if(t->beta, i, n, vf_mul(p.carry, vf_exp(da)));
        }
    }
}

void KR_FN(trapezoid)(const kr_trapezoid_args *a)
{
    if (a->nh > 0) kr_ranges_run(a->exec.pool, a->no, a->nh * COST, trapezoid_tokens, a);
}

KR_INLINE vf rate_slope(vf a_raw, vf rate, bool softplus)
{
    if (softplus) return vf_sigmoid(a_raw);
    return vf_select(vf_lt(a_raw, vf_zero()), vf_mul(rate, rate), vf_set1(1));
}

static void trapezoid_bwd_tokens(const void *args, int64_t first, int64_t end, int worker)
{
    (void)worker;
    const kr_trapezoid_bwd_args *t = args;
    const kr_trapezoid_args in = { .nh = t->nh,
                                   .dt_raw = t->dt_raw,
                                   .dt_bias = t->dt_bias,
                                   .a_raw = t->a_raw,
                                   .lambda_raw = t->lambda_raw,
                                   .a_floor = t->a_floor,
                                   .dt_min = t->dt_min,
                                   .dt_max = t->dt_max,
                                   .softplus = t->softplus };
    for (int64_t o = first; o < end; o++) {
        for (int64_t h = 0; h < t->nh; h += VF) {
            int64_t i = o * t->nh + h, n = t->nh - h;
            point p = point_of(&in, i, h, n);
            vf g_beta = vf_mul(vf_exp(vf_mul(p.dt, p.a)), load_or_zero(t->g_beta, i, n));
            vf g_gamma = load_or_zero(t->g_gamma, i, n);
            vf c = vf_add(load_or_zero(t->g_carry, i, n), g_beta);
            vf d = vf_fma(p.carry, g_beta, load_or_zero(t->g_da, i, n));
            vf g_dt = vf_fma(p.rest, c, vf_fma(p.l, g_gamma, vf_fma(p.a, d, load_or_zero(t->g_dt, i, n))));
            vm is_cut = vm_or(vf_lt(p.step, vf_set1((float)t->dt_min)), vf_gt(p.step, vf_set1((float)t->dt_max)));
            vm at_floor = vf_lt(p.rate, vf_set1((float)t->a_floor));
            vf slope = rate_slope(load_or_zero(t->a_raw.data, o * t->a_raw.row + h, n), p.rate, t->softplus);
            store_if(t->g_dt_raw.data, i, n, vf_select(is_cut, vf_zero(), vf_mul(g_dt, vf_sigmoid(p.raw))));
            store_if(t->g_a_raw.data, i, n, vf_select(at_floor, vf_zero(), vf_neg(vf_mul(vf_mul(p.dt, d), slope))));
            store_if(t->g_lambda_raw.data, i, n, vf_mul(vf_mul(p.dt, vf_sub(g_gamma, c)), vf_mul(p.l, p.rest)));
        }
    }
}

void KR_FN(trapezoid_bwd)(const kr_trapezoid_bwd_args *a)
{
    if (a->nh > 0) kr_ranges_run(a->exec.pool, a->no, a->nh * COST, trapezoid_bwd_tokens, a);
}
