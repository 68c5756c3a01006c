/* lr.c - learning rates as functions of the step; <krait/train.h> has the formulas. */
#include "base/ctx_impl.h"
#include "base/names.h"
#include "base/sized.h"

#include <krait/train.h>

#include <math.h>

static const double pi = 3.14159265358979323846;

KR_DEFAULTS(kr_lr_schedule) = { .size = sizeof(kr_lr_schedule),
                                .kind = KR_LR_COSINE,
                                .max_lr = 1e-3,
                                .min_lr = KR_AUTO,
                                .warmup_steps = KR_AUTO,
                                .decay_steps = KR_AUTO };

/* Replaces KR_AUTO with numbers. */
static void derive(kr_lr_schedule *s)
{
    enum { MOST_WARMUP = 100 };
    const int64_t warmup = s->total_steps / 20;
    if (s->min_lr == KR_AUTO) s->min_lr = s->max_lr / 10;
    if (s->warmup_steps == KR_AUTO) s->warmup_steps = warmup < MOST_WARMUP ? warmup : MOST_WARMUP;
    if (s->decay_steps == KR_AUTO) s->decay_steps = s->total_steps / 5;
}

KR_NAMES(kr_lr_kind, "constant", "cosine", "linear", "wsd");

static double cosine(double min, double max, double t)
{
    return min + 0.5 * (max - min) * (1 + cos(pi * t));
}

static double decayed(const kr_lr_schedule *s, kr_lr_shape shape, double t)
{
    switch (shape) {
    case KR_LR_SHAPE_COSINE: return cosine(s->min_lr, s->max_lr, t);
    case KR_LR_SHAPE_SQRT: return s->max_lr - (s->max_lr - s->min_lr) * sqrt(t);
    default: return s->max_lr - (s->max_lr - s->min_lr) * t;
    }
}

/* Where between two steps, the second one later. */
static double between(int64_t from, int64_t to, int64_t step)
{
    return (double)(step - from) / (double)(to - from);
}

double kr_lr_at(const kr_lr_schedule *schedule, int64_t step)
{
    kr_lr_schedule s;
    if (!schedule || !KR_TAKE(NULL, "lr", kr_lr_schedule, schedule, &s)) return 0;
    derive(&s);
    if (step < 0) step = 0;
    if (step < s.warmup_steps) /* written so that a warm-up from 0 is max_lr * step / warmup_steps to the bit */
        return s.start_lr == 0 ? s.max_lr * (double)step / (double)s.warmup_steps
                               : s.start_lr + (s.max_lr - s.start_lr) * between(0, s.warmup_steps, step);
    if (s.kind == KR_LR_CONSTANT) return s.max_lr;
    if (step >= s.total_steps) return s.min_lr;
    if (s.kind == KR_LR_COSINE) return decayed(&s, KR_LR_SHAPE_COSINE, between(s.warmup_steps, s.total_steps, step));
    if (s.kind == KR_LR_LINEAR) return decayed(&s, KR_LR_SHAPE_LINEAR, between(s.warmup_steps, s.total_steps, step));
    int64_t from = s.total_steps - s.decay_steps;
    if (from < s.warmup_steps) from = s.warmup_steps;
    return step < from ? s.max_lr : decayed(&s, s.shape, between(from, s.total_steps, step));
}

static bool check_rate(kr_ctx *ctx, const char *name, double lr)
{
    return kr_require(ctx, isfinite(lr) && lr >= 0, KR_ERR_ARG,
                      "lr: %s = %g, but a learning rate is finite and not negative", name, lr);
}

static bool check_spans(kr_ctx *ctx, const kr_lr_schedule *s)
{
    if (!kr_require(ctx, s->warmup_steps >= 0, KR_ERR_ARG, "lr: warmup_steps = %lld must not be negative",
                    (long long)s->warmup_steps))
        return false;
    if (s->kind == KR_LR_CONSTANT) return true;
    return kr_require(ctx, s->total_steps > s->warmup_steps, KR_ERR_ARG,
                      "lr: total_steps = %lld must be more than warmup_steps = %lld in a %s schedule",
                      (long long)s->total_steps, (long long)s->warmup_steps, kr_lr_kind_name(s->kind)) &&
           kr_require(ctx,
                      s->kind != KR_LR_STABLE_DECAY ||
                          (s->decay_steps >= 0 && s->decay_steps <= s->total_steps - s->warmup_steps),
                      KR_ERR_ARG, "lr: decay_steps = %lld must be from 0 to total_steps - warmup_steps = %lld",
                      (long long)s->decay_steps, (long long)(s->total_steps - s->warmup_steps));
}

kr_status kr_lr_check(kr_ctx *ctx, const kr_lr_schedule *schedule)
{
    if (kr_ctx_failed(ctx)) return kr_ctx_status(ctx);
    kr_lr_schedule s;
    if (!kr_require(ctx, schedule != NULL, KR_ERR_ARG, "lr: the schedule is NULL") ||
        !KR_TAKE(ctx, "lr", kr_lr_schedule, schedule, &s))
        return ctx->status;
    derive(&s);
    if (kr_require(ctx, s.kind >= KR_LR_CONSTANT && s.kind <= KR_LR_STABLE_DECAY, KR_ERR_ARG,
                   "lr: kind = %d is not a kr_lr_kind", (int)s.kind) &&
        kr_require(ctx, s.shape >= KR_LR_SHAPE_LINEAR && s.shape <= KR_LR_SHAPE_SQRT, KR_ERR_ARG,
                   "lr: shape = %d is not a kr_lr_shape", (int)s.shape) &&
        check_rate(ctx, "max_lr", s.max_lr) && check_rate(ctx, "min_lr", s.min_lr) &&
        check_rate(ctx, "start_lr", s.start_lr))
        check_spans(ctx, &s);
    return ctx->status;
}
