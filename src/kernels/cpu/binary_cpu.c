/* binary_cpu.c - the elementwise functions of two operands, y = f(a, b), the gradients of maximum, minimum and pow,
 * and where.
 *
 * The operands are in lanes a, b (and c) in the order of their walk.
 */
#include "kernels/cpu/isa.h"
#include "kernels/cpu/vec_pow.h"
#include "kernels/cpu/walk_cpu.h"

static inline vf lane_add(lanes in)
{
    return vf_add(in.a, in.b);
}

static inline vf lane_sub(lanes in)
{
    return vf_sub(in.a, in.b);
}

static inline vf lane_mul(lanes in)
{
    return vf_mul(in.a, in.b);
}

static inline vf lane_div(lanes in)
{
    return vf_div(in.a, in.b);
}

/* vf_max propagates a NaN in b, not one in a */
static inline vf lane_maximum(lanes in)
{
    return vf_select(vf_is_nan(in.a), in.a, vf_max(in.a, in.b));
}

/* c where a > b, c / 2 where a = b, else 0 */
static inline vf lane_maximum_bwd(lanes in)
{
    vf half = vf_keep(vf_eq(in.a, in.b), vf_mul(in.c, vf_set1(0.5f)));
    return vf_select(vf_gt(in.a, in.b), in.c, half);
}

/* vf_min propagates a NaN in b, not one in a */
static inline vf lane_minimum(lanes in)
{
    return vf_select(vf_is_nan(in.a), in.a, vf_min(in.a, in.b));
}

/* c where a < b, c / 2 where a = b, else 0 */
static inline vf lane_minimum_bwd(lanes in)
{
    vf half = vf_keep(vf_eq(in.a, in.b), vf_mul(in.c, vf_set1(0.5f)));
    return vf_select(vf_lt(in.a, in.b), in.c, half);
}

static inline vf lane_pow(lanes in)
{
    return vf_pow(in.a, in.b);
}

static inline vf lane_pow_bwd(lanes in)
{
    return vf_pow_bwd(in.a, in.b, in.c);
}

static inline vf lane_pow_bwd_of_b(lanes in)
{
    return vf_pow_bwd_of_exponent(in.a, in.b, in.c);
}

/* a holds the mask */
static inline vf lane_where(lanes in)
{
    return vf_select(vi_is_zero(vf_bits(in.a)), in.c, in.b);
}

static void binary_run(const kr_binary_args *a, kr_task_fn *task)
{
    walk_job job = { .walk = a->walk, .y = a->y, .in = { a->a, a->b } };
    walk_run(&job, a->exec.pool, task);
}

#define KR_BINARY(name)                                                                                                \
    static void name##_task(void *job, int64_t index, int worker)                                                      \
    {                                                                                                                  \
        (void)worker;                                                                                                  \
        walk_task(job, index, lane_##name, 2);                                                                         \
    }                                                                                                                  \
    void KR_FN(name)(const kr_binary_args *a)                                                                          \
    {                                                                                                                  \
        binary_run(a, name##_task);                                                                                    \
    }
#include "kernels/binary.def"
#undef KR_BINARY

#define BACKWARD_TASK(name, lane)                                                                                      \
    static void name##_task(void *job, int64_t index, int worker)                                                      \
    {                                                                                                                  \
        (void)worker;                                                                                                  \
        walk_task(job, index, lane, 3);                                                                                \
    }
BACKWARD_TASK(maximum_bwd, lane_maximum_bwd)
BACKWARD_TASK(minimum_bwd, lane_minimum_bwd)
BACKWARD_TASK(pow_bwd, lane_pow_bwd)
BACKWARD_TASK(pow_bwd_of_b, lane_pow_bwd_of_b)

/* of_b: the operands are swapped, which is valid for a function symmetric in them. */
static void choice_bwd_run(const kr_binary_bwd_args *a, kr_task_fn *task)
{
    walk_job job = { .walk = a->walk, .y = a->y, .in = { a->a, a->b, a->g } };
    if (a->of_b) {
        job.in[0] = a->b;
        job.in[1] = a->a;
        memcpy(job.walk.strides[1], a->walk.strides[2], sizeof job.walk.strides[1]);
        memcpy(job.walk.strides[2], a->walk.strides[1], sizeof job.walk.strides[2]);
    }
    walk_run(&job, a->exec.pool, task);
}

void KR_FN(maximum_bwd)(const kr_binary_bwd_args *a)
{
    choice_bwd_run(a, maximum_bwd_task);
}

void KR_FN(minimum_bwd)(const kr_binary_bwd_args *a)
{
    choice_bwd_run(a, minimum_bwd_task);
}

void KR_FN(pow_bwd)(const kr_binary_bwd_args *a)
{
    walk_job job = { .walk = a->walk, .y = a->y, .in = { a->a, a->b, a->g } };
    walk_run(&job, a->exec.pool, a->of_b ? pow_bwd_of_b_task : pow_bwd_task);
}

static void where_task(void *job, int64_t index, int worker)
{
    (void)worker;
    walk_task(job, index, lane_where, 3);
}

void KR_FN(where)(const kr_where_args *a)
{
    const float scalar = (float)a->scalar;
    const void *in[WALK_INPUTS] = { a->mask, a->a, a->b };
    walk_job job = { .walk = a->walk, .y = a->y };
    for (int k = 0; k < WALK_INPUTS; k++) {
        if (!in[k]) {
            in[k] = &scalar;
            memset(job.walk.strides[k + 1], 0, sizeof job.walk.strides[k + 1]);
        }
        job.in[k] = in[k];
    }
    walk_run(&job, a->exec.pool, where_task);
}
