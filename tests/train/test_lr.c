/* test_lr.c - learning rates: tables of each kind, the reference system's cosine to the bit, continuity, errors. */
#include "tests/harness.h"

static kr_lr_schedule of(kr_lr_kind kind, double max, double min, int64_t warmup, int64_t total)
{
    kr_lr_schedule s;
    kr_lr_schedule_init(&s);
    s.kind = kind;
    s.max_lr = max;
    s.min_lr = min;
    s.warmup_steps = warmup;
    s.total_steps = total;
    return s;
}

typedef struct point {
    int64_t step;
    double lr;
} point;

static void check_table(const char *name, const kr_lr_schedule *s, const point *table, int count)
{
    for (int i = 0; i < count; i++) {
        const double got = kr_lr_at(s, table[i].step);
        CHECK(fabs(got - table[i].lr) <= 1e-15, "%s: step %lld has %.17g, not %.17g", name, (long long)table[i].step,
              got, table[i].lr);
    }
}
#define CHECK_TABLE(name, s, ...)                                                                                      \
    check_table(name, s, (const point[]){ __VA_ARGS__ }, (int)(sizeof((point[]){ __VA_ARGS__ }) / sizeof(point)))

TEST(lr_defaults)
{
    kr_lr_schedule s;
    kr_lr_schedule_init(&s);
    s.total_steps = 1000; /* cosine: 50 steps of warm-up, then from 1e-3 down to 1e-4 */
    CHECK_TABLE("defaults", &s, { 0, 0 }, { 25, 5e-4 }, { 50, 1e-3 }, { 525, 5.5e-4 }, { 1000, 1e-4 }, { 2000, 1e-4 });
    s.total_steps = 100000;
    CHECK_TABLE("at most 100 steps of warm-up", &s, { 50, 5e-4 }, { 100, 1e-3 }, { 100000, 1e-4 });
    s.kind = KR_LR_STABLE_DECAY;
    s.max_lr = 1e-2;
    CHECK_TABLE("a fifth of decay", &s, { 100, 1e-2 }, { 80000, 1e-2 }, { 90000, 5.5e-3 }, { 100000, 1e-3 });
}

TEST(lr_constant)
{
    kr_lr_schedule s = of(KR_LR_CONSTANT, 1e-3, 0, 0, 0);
    CHECK_TABLE("defaults", &s, { 0, 1e-3 }, { 1, 1e-3 }, { 1000000, 1e-3 });
    s.warmup_steps = 4;
    CHECK_TABLE("warm-up", &s, { 0, 0 }, { 1, 2.5e-4 }, { 3, 7.5e-4 }, { 4, 1e-3 }, { 1000, 1e-3 }, { -5, 0 });
    s.start_lr = 2e-4;
    CHECK_TABLE("warm-up from a rate", &s, { 0, 2e-4 }, { 1, 4e-4 }, { 2, 6e-4 }, { 4, 1e-3 });
}

TEST(lr_tables)
{
    kr_lr_schedule s = of(KR_LR_LINEAR, 0.5, 0.1, 10, 30);
    CHECK_TABLE("linear", &s, { 0, 0 }, { 5, 0.25 }, { 10, 0.5 }, { 15, 0.4 }, { 20, 0.3 }, { 29, 0.12 }, { 30, 0.1 },
                { 99, 0.1 });
    s.kind = KR_LR_COSINE; /* cos(pi / 3) = 1/2 a third of the way */
    s.total_steps = 40;
    CHECK_TABLE("cosine", &s, { 5, 0.25 }, { 10, 0.5 }, { 20, 0.4 }, { 25, 0.3 }, { 30, 0.2 }, { 40, 0.1 },
                { 41, 0.1 });
    s.kind = KR_LR_STABLE_DECAY;
    s.decay_steps = 16;
    CHECK_TABLE("stable", &s, { 5, 0.25 }, { 10, 0.5 }, { 23, 0.5 }, { 24, 0.5 }, { 28, 0.4 }, { 32, 0.3 },
                { 40, 0.1 });
    s.shape = KR_LR_SHAPE_SQRT;
    CHECK_TABLE("stable, sqrt", &s, { 23, 0.5 }, { 24, 0.5 }, { 25, 0.4 }, { 28, 0.3 }, { 33, 0.2 }, { 40, 0.1 });
    s.shape = KR_LR_SHAPE_COSINE;
    s.decay_steps = 15;
    CHECK_TABLE("stable, cosine", &s, { 24, 0.5 }, { 25, 0.5 }, { 30, 0.4 }, { 35, 0.2 }, { 40, 0.1 });
    s.decay_steps = 0;
    CHECK_TABLE("stable, no decay", &s, { 39, 0.5 }, { 40, 0.1 });
    s.decay_steps = 100; /* longer than what is left after the warm-up */
    s.shape = KR_LR_SHAPE_LINEAR;
    CHECK_TABLE("stable, all decay", &s, { 10, 0.5 }, { 25, 0.3 }, { 40, 0.1 });
}

/* step < warmup: max step / warmup; step >= total: min; else min + 0.5 (max - min) (1 + cos(pi (step - warmup) / (total
 * - warmup))), to the bit. */
TEST(lr_cosine_of_the_reference)
{
    const double max = 3e-2, min = 1e-4, pi = acos(-1);
    const int64_t warmup = 100, total = 5120;
    const kr_lr_schedule s = of(KR_LR_COSINE, max, min, warmup, total);
    for (int64_t step = 0; step < total + 100; step++) {
        double want = min + 0.5 * (max - min) * (1 + cos(pi * ((double)(step - warmup) / (double)(total - warmup))));
        if (step < warmup) want = max * (double)step / (double)warmup;
        else if (step >= total) want = min;
        if (!CHECK(kr_lr_at(&s, step) == want, "step %lld: %.17g, not %.17g", (long long)step, kr_lr_at(&s, step),
                   want))
            break;
    }
}

/* No kind jumps: neighbours differ by at most what its steepest part allows, and the rate stays in its range. */
TEST(lr_is_continuous_and_bounded)
{
    for (int kind = KR_LR_COSINE; kind <= KR_LR_STABLE_DECAY; kind++)
        for (int shape = KR_LR_SHAPE_LINEAR; shape <= KR_LR_SHAPE_COSINE; shape++) {
            kr_lr_schedule s = of((kr_lr_kind)kind, 1, 0.25, 50, 400);
            s.decay_steps = 100;
            s.shape = (kr_lr_shape)shape;
            for (int64_t step = 0; step < 500; step++) {
                const double a = kr_lr_at(&s, step), b = kr_lr_at(&s, step + 1);
                CHECK(fabs(a - b) <= 1.0 / 50 + 1e-12 && a >= 0 && a <= 1 && (step < 50 || (a >= 0.25 && b <= a)),
                      "kind %d, step %lld: %g, then %g", kind, (long long)step, a, b);
            }
        }
}

/* A caller that was compiled with fewer fields has the defaults of the others. */
TEST(lr_of_an_older_caller)
{
    kr_lr_schedule s;
    memset(&s, 0x7f, sizeof s);
    kr_struct_init(KR_STRUCT_LR_SCHEDULE, &s, offsetof(kr_lr_schedule, min_lr));
    CHECK(s.size == offsetof(kr_lr_schedule, min_lr) && kr_lr_at(&s, 1000) == 1e-4, "%g", kr_lr_at(&s, 1000));
    CHECK(kr_lr_at(NULL, 3) == 0, "no schedule");
}

static void refused(kr_ctx *ctx, kr_lr_schedule s, const char *text)
{
    CHECK(kr_lr_check(ctx, &s) == KR_ERR_ARG, "is not refused: %s", text);
    CHECK_ERROR(ctx, KR_ERR_ARG, text);
}

TEST(lr_errors)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    kr_lr_schedule s = of(KR_LR_STABLE_DECAY, 1, 0, 10, 100);
    s.decay_steps = 90;
    CHECK(kr_lr_check(ctx, &s) == KR_OK, "%s", kr_ctx_message(ctx));
    s.decay_steps = 91;
    refused(ctx, s, "lr: decay_steps = 91 must be from 0 to total_steps - warmup_steps = 90");
    refused(ctx, of((kr_lr_kind)9, 1, 0, 0, 1), "lr: kind = 9 is not a kr_lr_kind");
    s = of(KR_LR_COSINE, 1, 0, 0, 1);
    s.shape = (kr_lr_shape)3;
    refused(ctx, s, "lr: shape = 3 is not a kr_lr_shape");
    refused(ctx, of(KR_LR_COSINE, -1, 0, 0, 1), "lr: max_lr = -1, but a learning rate is finite and not negative");
    refused(ctx, of(KR_LR_COSINE, 1, (double)NAN, 0, 1),
            "lr: min_lr = nan, but a learning rate is finite and not negative");
    refused(ctx, of(KR_LR_COSINE, 1, 0, -2, 1), "lr: warmup_steps = -2 must not be negative");
    refused(ctx, of(KR_LR_LINEAR, 1, 0, 5, 5),
            "lr: total_steps = 5 must be more than warmup_steps = 5 in a linear schedule");
    CHECK(kr_lr_check(ctx, NULL) == KR_ERR_ARG, "NULL");
    CHECK_ERROR(ctx, KR_ERR_ARG, "lr: the schedule is NULL");
    CHECK(strcmp(kr_lr_kind_name(KR_LR_STABLE_DECAY), "wsd") == 0 && strcmp(kr_lr_kind_name((kr_lr_kind)-1), "?") == 0,
          "names");
    kr_ctx_destroy(ctx);
}
