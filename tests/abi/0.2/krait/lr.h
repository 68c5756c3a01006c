/* lr.h - learning rates: a schedule is a plain struct, and its rate a function of the step alone.
 *
 *   kr_lr_schedule schedule;
 *   kr_lr_schedule_init(&schedule);
 *   schedule.max_lr = 3e-3;
 *   schedule.total_steps = 2000;              // cosine, with a warm-up of 100 steps, down to 3e-4
 *   for (int64_t step = 1; step <= 2000; step += 500) printf("%g\n", kr_lr_at(&schedule, step));
 *
 * Nothing is remembered between calls, so a run that is resumed at step s continues with kr_lr_at(&schedule, s).
 */
#ifndef KRAIT_LR_H
#define KRAIT_LR_H

#include <krait/ctx.h>

#ifdef __cplusplus
extern "C" {
#endif

/* With s the step, and warm, total, decay for warmup_steps, total_steps, decay_steps:
 *   s < warm:       start_lr + (max_lr - start_lr) s / warm           all kinds
 *   constant:       max_lr
 *   s >= total:     min_lr                                            all kinds but constant
 *   linear:         max_lr - (max_lr - min_lr) t,                     t = (s - warm) / (total - warm)
 *   cosine:         min_lr + (max_lr - min_lr) (1 + cos(pi t)) / 2    the same t
 *   stable decay:   max_lr until s = total - decay (or warm, if that is later), then by `shape`, t counted from there
 * A warm-up that begins at 0 gives no rate at all to step 0: count steps from 1. */
typedef enum kr_lr_kind {
    KR_LR_CONSTANT = 0,
    KR_LR_COSINE = 1,
    KR_LR_LINEAR = 2,
    KR_LR_STABLE_DECAY = 3 /* warm up, stay, decay: the decay can be begun from any point of the stable part */
} kr_lr_kind;

/* "constant", "cosine", "linear", "wsd"; "?" for an invalid value. */
KR_API_INLINE const char *kr_lr_kind_name(kr_lr_kind kind)
{
    return kr_enum_name(KR_ENUM_LR_KIND, (int)kind);
}

/* How a stable rate ends, t from 0 to 1: what is left of max_lr - min_lr. */
typedef enum kr_lr_shape {
    KR_LR_SHAPE_LINEAR = 0, /* 1 - t */
    KR_LR_SHAPE_COSINE = 1, /* (1 + cos(pi t)) / 2 */
    KR_LR_SHAPE_SQRT = 2    /* 1 - t^1/2 */
} kr_lr_shape;

/* A number that is derived from others. */
#define KR_AUTO (-1)

typedef struct kr_lr_schedule {
    size_t size;          /* set by kr_lr_schedule_init */
    kr_lr_kind kind;      /* KR_LR_COSINE */
    double max_lr;        /* 1e-3 */
    double min_lr;        /* KR_AUTO: max_lr / 10 */
    double start_lr;      /* 0: of the warm-up */
    int64_t warmup_steps; /* KR_AUTO: total_steps / 20, at most 100 */
    int64_t total_steps;  /* 0; all kinds but constant need it. A trainer puts its own steps in the place of 0 */
    int64_t decay_steps;  /* KR_AUTO: total_steps / 5; of the stable decay */
    kr_lr_shape shape;    /* KR_LR_SHAPE_LINEAR; of the stable decay */
} kr_lr_schedule;
#define kr_lr_schedule_init(schedule) KR_STRUCT_INIT(LR_SCHEDULE, kr_lr_schedule, schedule)

/* The rate of a step; negative steps count as 0. 0 for NULL, and for a schedule that kr_lr_check refuses for its size. */
KR_API double kr_lr_at(const kr_lr_schedule *schedule, int64_t step);

/* Is it a schedule: rates that are finite and not negative, spans that fit into each other? */
KR_API kr_status kr_lr_check(kr_ctx *ctx, const kr_lr_schedule *schedule);

#ifdef __cplusplus
}
#endif
#endif
