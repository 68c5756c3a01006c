/* compare_cpu.c - comparisons of f32, y = 1 or 0. The reference kernel handles other types. */
#include "kernels/cpu/isa.h"
#include "kernels/cpu/walk_cpu.h"
#include "kernels/ref/ref.h"

/* The integer 1, as the bits of a lane. */
static inline vf true_lane(void)
{
    return vf_of_bits(vi_set1(1));
}

#define LANE(name)                                                                                                     \
    static inline vf lane_##name(lanes in)                                                                             \
    {                                                                                                                  \
        return vf_keep(vf_##name(in.a, in.b), true_lane());                                                            \
    }
LANE(eq)
LANE(lt)
LANE(le)
LANE(gt)
LANE(ge)

static inline vf lane_ne(lanes in)
{
    return vf_select(vf_eq(in.a, in.b), vf_zero(), true_lane());
}

#define KR_COMPARISON(name, outcomes)                                                                                  \
    static void name##_task(void *job, int64_t index, int worker)                                                      \
    {                                                                                                                  \
        (void)worker;                                                                                                  \
        walk_task(job, index, lane_##name, 2);                                                                         \
    }
#include "kernels/compare.def"
#undef KR_COMPARISON

void KR_FN(compare)(const kr_compare_args *a)
{
    walk_job job = { .walk = a->walk, .y = (char *)a->y, .in = { a->a, a->b } };
#define KR_COMPARISON(name, outcomes)                                                                                  \
    if (a->dtype == KR_DTYPE_F32 && a->wanted == (outcomes)) {                                                         \
        walk_run(&job, a->exec.pool, name##_task);                                                                     \
        return;                                                                                                        \
    }
#include "kernels/compare.def"
#undef KR_COMPARISON
    kr_ref_compare(a);
}
