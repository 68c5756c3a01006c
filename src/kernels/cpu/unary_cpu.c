/* unary_cpu.c - the elementwise functions of one operand, y = f(x), and their gradients g_x = g_y f'(x).
 *
 * Forward functions see x in lane a. Backward functions see x in a, y = f(x) in b and g_y in c.
 */
#include "kernels/cpu/isa.h"
#include "kernels/cpu/unary_erf.h"
#include "kernels/cpu/vec_math.h"
#include "kernels/cpu/vec_pow.h"
#include "kernels/cpu/walk_cpu.h"

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
