/* test_plan_simulate.c - the simulated schedule against the formulas, and against schedules written down by hand. */
#include "tests/plan/plans.h"

static kr_plan_simulation simulated(const kr_model_config *config, const kr_plan_options *options)
{
    kr_plan_simulation s;
    CHECK(kr_plan_simulate(ctx, config, options, &s) == KR_OK, "%s", kr_ctx_message(ctx));
    return s;
}

static void agree(const char *what, const kr_model_config *config, const kr_plan_options *o, double tolerance)
{
    static const char *const names[] = { "direct", "hosts", "rings" };
    const kr_plan p = made(config, o);
    const kr_plan_simulation s = simulated(config, o);
    CHECK(fabs(s.step / p.step - 1) <= tolerance,
          "%s, %lld ranks, %g GB/s, %s, shards %d, %lld micro-batches, recompute %lld, split %d, ahead %d: a simulated "
          "step is "
          "%.4g ms, by "
          "the formula %.4g ms (%+.2f %%)",
          what, (long long)o->ranks, o->nic_bytes * 1e-9, names[o->exchange], (int)o->shards,
          (long long)o->micro_batches, (long long)o->recompute, o->split_embedding, o->gather_ahead, 1e3 * s.step,
          1e3 * p.step, 100 * (s.step / p.step - 1));
    CHECK(fabs(s.efficiency - p.efficiency * p.step / s.step) < 1e-9, "%s: efficiency %g", what, s.efficiency);
}

/* 5 %: the formula lets sums begin with the backward pass, though a bucket must be whole first. */
static void agree_on_clusters(const char *what, const kr_model_config *config, int64_t ranks)
{
    static const double nics[] = { 360e9, 45e9, 11.25e9 };
    const int step = kr_test_quick() ? 7 : 1; /* of 48, so that each choice occurs with others */
    for (int n = 0; n < 3; n++)
        for (int variant = step > 1 ? n : 0; variant < 48; variant += step) {
            kr_plan_options o = options_of(ranks);
            o.nic_bytes = nics[n];
            o.exchange = (kr_plan_exchange)(variant / 16);
            o.shards = variant & 2 ? KR_PLAN_SHARDS_OPTIMIZER : KR_PLAN_SHARDS_NONE;
            o.micro_batches = variant & 4 ? 4 * ranks : 0;
            o.recompute = variant & 8 ? KR_PLAN_ALL : 0;
            o.split_embedding = variant & 8;
            o.gather_ahead = variant & 1;
            agree(what, config, &o, 0.05);
        }
}

TEST(agrees_with_the_formula_for_64_ranks)
{
    static const struct {
        const char *name;
        kr_family family;
        int64_t d_model, layers;
    } models[] = { { "130m", KR_FAMILY_MAMBA2, 768, 24 },  { "370m", KR_FAMILY_MAMBA2, 1024, 48 },
                   { "780m", KR_FAMILY_MAMBA2, 1536, 48 }, { "1.3b", KR_FAMILY_MAMBA2, 2048, 48 },
                   { "2.7b", KR_FAMILY_MAMBA2, 2560, 64 }, { "mamba1", KR_FAMILY_MAMBA1, 768, 24 },
                   { "mamba3", KR_FAMILY_MAMBA3, 768, 24 } };
    begin();
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        kr_model_config *config = shape(models[i].family, models[i].d_model, models[i].layers, 50288);
        agree_on_clusters(models[i].name, config, 64);
        kr_model_config_destroy(config);
    }
    end();
}

/* Computing takes no time: the step is all sums, one after another, on any number of hosts. */
TEST(sums_alone_take_what_the_formula_says)
{
    static const int64_t ranks[] = { 2, 3, 8, 24, 40, 56, 64, 104, 512 };
    begin();
    kr_model_config *config = shape(KR_FAMILY_MAMBA2, 256, 4, 1024);
    for (size_t i = 0; i < sizeof ranks / sizeof *ranks; i++)
        for (int variant = 0; variant < 12; variant++) {
            kr_plan_options o = options_of(ranks[i]);
            o.flops = 1e30;
            o.bucket_bytes = 1000000;
            o.exchange = (kr_plan_exchange)(variant / 4);
            o.shards = variant & 2 ? KR_PLAN_SHARDS_OPTIMIZER : KR_PLAN_SHARDS_NONE;
            o.gather_ahead = variant & 1;
            agree("sums alone", config, &o, 1e-6); /* the step's arithmetic is 1e-14 s */
        }
    kr_model_config_destroy(config);
    end();
}

/* One bucket is complete at the very end: the step is the computation and then the sum. With one bucket for each parameter
 * and a slow network the sums begin when the head is done, and never pause. */
TEST(schedules_by_hand)
{
    begin();
    kr_model_config *config = shape(KR_FAMILY_MAMBA2, 256, 4, 1024);
    kr_plan_options o = options_of(8);
    o.ranks_per_host = 1;
    o.bucket_bytes = 1 << 30;
    kr_plan p = made(config, &o);
    kr_plan_simulation s = simulated(config, &o);
    CHECK(fabs(s.step - p.compute - p.sums) < 1e-12, "one bucket: %.9g s, expected %.9g", s.step, p.compute + p.sums);
    CHECK(fabs(s.communication - p.sums) < 1e-12 && fabs(s.wait) < 1e-12, "communication %g s, of it %g waiting",
          s.communication, s.wait);
    o.bucket_bytes = 1;
    o.nic_bytes = 1e6;
    p = made(config, &o);
    s = simulated(config, &o);
    const double until_head = p.compute - p.window;
    CHECK(fabs(s.step - until_head - p.sums) < 1e-9 * s.step, "a slow network: %.9g s, expected %.9g", s.step,
          until_head + p.sums);
    o.nic_bytes = 1e18; /* nothing is exposed but the look-up table, and that takes no time */
    o.latency = o.overhead = 0;
    p = made(config, &o);
    s = simulated(config, &o);
    CHECK(fabs(s.step - p.compute) < 1e-6 * s.step, "a fast network: %.9g s, expected %.9g", s.step, p.compute);
    o.ranks = 1;
    p = made(config, &o);
    s = simulated(config, &o);
    CHECK(fabs(s.step - p.compute) < 1e-12 && s.communication == 0 && p.exposed == 0, "one rank: %g s", s.step);
    kr_model_config_destroy(config);
    end();
}

/* Weights that four virtual layers share are complete after the first of them, the last in the backward pass: all but norm_f's
 * 256 gradients are summed after it. */
TEST(shared_weights_are_summed_after_their_first_use)
{
    begin();
    kr_model_config *config = shape(KR_FAMILY_MAMBA2, 256, 1, 1024);
    config->layers->n_virtual = 4;
    kr_plan_options o = options_of(2);
    o.ranks_per_host = 1;
    o.exchange = KR_PLAN_EXCHANGE_HOSTS;
    o.bucket_bytes = 1;
    o.nic_bytes = 1e9;
    o.latency = 0;
    const kr_plan p = made(config, &o);
    const double want = p.compute + p.sums - 2 * 0.5 * 4 * 256 / o.nic_bytes, got = simulated(config, &o).step;
    CHECK(fabs(got - want) < 1e-9 * want, "%.9g s, expected %.9g", got, want);
    kr_model_config_destroy(config);
    end();
}

/* Everybody waits for the slowest: the step is its time, and what remains visible behind it. */
TEST(a_slow_rank_is_waited_for)
{
    static const int64_t slow[] = { 37, 3 };
    static const double factors[] = { 1.5, 1.2 };
    begin();
    kr_model_config *config = shape(KR_FAMILY_MAMBA2, 768, 24, 50288);
    kr_plan_options o = options_of(64);
    const kr_plan p = made(config, &o);
    const kr_plan_simulation even = simulated(config, &o);
    o.n_slow = 2;
    o.slow_ranks = slow;
    o.slow_factors = factors;
    const kr_plan_simulation s = simulated(config, &o);
    CHECK(s.slowest_rank == 37 && fabs(s.slowest - 1.5 * p.compute) < 1e-9, "rank %lld, %g s",
          (long long)s.slowest_rank, s.slowest);
    CHECK(fabs(s.compute - p.compute * (62 + 1.5 + 1.2) / 64) < 1e-9, "mean %g s", s.compute);
    CHECK(s.step >= 1.5 * p.compute && s.step < 1.5 * p.compute + even.exposed + 1e-9, "a step of %g s", s.step);
    CHECK(even.wait < 1e-9 && s.wait > 0.1 * p.compute, "waiting %g s", s.wait);
    kr_model_config_destroy(config);
    end();
}

/* Step by step everybody waits for the slowest of 64: the mean of the largest of 64 normal deviates is 2.38. Its standard
 * deviation is 0.45, so that the mean of 99 steps is within 0.14 of it, three times over. */
TEST(jitter_costs_the_largest_of_all_ranks)
{
    begin();
    kr_model_config *config = shape(KR_FAMILY_MAMBA2, 768, 24, 50288);
    kr_plan_options o = options_of(64);
    o.nic_bytes = 1e15; /* so that nothing else is exposed */
    o.link_bytes = 1e15;
    o.latency = o.overhead = 0;
    o.steps = 100;
    o.jitter = 0.02;
    o.seed = kr_test_seed();
    const kr_plan p = made(config, &o);
    const kr_plan_simulation s = simulated(config, &o), again = simulated(config, &o);
    const double deviates = (s.step / p.compute - 1) / o.jitter;
    CHECK(deviates > 2.38 - 0.14 && deviates < 2.38 + 0.14, "seed %llu: %g standard deviations",
          (unsigned long long)o.seed, deviates);
    CHECK(memcmp(&s, &again, sizeof s) == 0, "the same options give another result");
    o.seed++;
    CHECK(simulated(config, &o).step != s.step, "another seed gives the same result");
    kr_model_config_destroy(config);
    end();
}

TEST(refused_simulations)
{
    begin();
    kr_model_config *config = shape(KR_FAMILY_MAMBA2, 64, 2, 256);
    kr_plan_options o = options_of(1 << 17);
    kr_plan_simulation s;
    CHECK(kr_plan_simulate(ctx, config, &o, &s) == KR_ERR_ARG && s.step == 0, "131072 ranks");
    CHECK_ERROR(ctx, KR_ERR_ARG,
                "plan.simulate: ranks = 131072, but must be at most 65536; a plan without a simulation takes more");
    o.ranks = 12;
    CHECK(kr_plan_simulate(ctx, config, &o, &s) == KR_ERR_ARG, "12 ranks");
    CHECK_ERROR(ctx, KR_ERR_ARG, "plan.simulate: ranks = 12 is no multiple of ranks_per_host = 8; use whole hosts");
    CHECK(kr_plan_simulate(ctx, config, &o, NULL) == KR_ERR_ARG, "no result");
    CHECK_ERROR(ctx, KR_ERR_ARG, "plan.simulate: simulation is NULL");
    kr_model_config_destroy(config);
    end();
}
