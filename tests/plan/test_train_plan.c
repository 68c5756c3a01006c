/* test_train_plan.c - plans against numbers computed by hand, against the table of the paper model that they were designed
 * by, and against recorded memory; and which numbers of ranks give the bits of one.
 */
#include "tests/plan/plans.h"

/* ---- operations ---- */

static void check_flops(const char *what, kr_model_config *config, int64_t length, double want)
{
    kr_plan_options o = options_of(1);
    o.length = length;
    o.tokens = 4 * length;
    kr_plan p = made(config, &o);
    CHECK(fabs(p.token_flops - want) <= 1e-12 * want, "%s: %.17g operations a token, expected %.17g", what,
          p.token_flops, want);
    CHECK(fabs(p.flops - want * (double)o.tokens) <= 1e-12 * p.flops, "%s: %.17g operations, expected %.17g", what,
          p.flops, want * (double)o.tokens);
    kr_model_config_destroy(config);
}

TEST(operations_of_a_token_by_hand)
{
    begin();
    /* in_proj 2 d 2i, conv 2 k i, x_proj 2 i (x + 2r), dt_proj 2 x i, scan 6 i r, out_proj 2 i d; head 2 w d; three times */
    check_flops(
        "mamba1", shape(KR_FAMILY_MAMBA1, 768, 24, 50288), 2048,
        3.0 * (24 * (2.0 * 768 * 3072 + 2 * 4 * 1536 + 2 * 1536 * 80 + 2 * 48 * 1536 + 6 * 1536 * 16 + 2 * 1536 * 768) +
               2.0 * 50288 * 768));
    /* in_proj 2 d (2i + 2r + h), conv 2 k (i + 2r), state 4 h p r, pairs n (n + 1) (r + h p) of chunks of 96: 21 and a rest
     * of 32 in 2048; out_proj 2 i d */
    const double pairs = (21.0 * 96 * 97 + 32 * 33) / 2048 * (128 + 1536);
    check_flops("mamba2", shape(KR_FAMILY_MAMBA2, 768, 24, 50288), 2048,
                3 * (24 * (2.0 * 768 * 3352 + 2 * 4 * 1792 + 4.0 * 24 * 64 * 128 + pairs + 2 * 1536 * 768) +
                     2.0 * 50288 * 768));
    /* in_proj 2 d (2i + 2r + 3h + a), a = 32 angles; pairs for each head */
    check_flops(
        "mamba3", shape(KR_FAMILY_MAMBA3, 256, 2, 256), 96,
        3 * (2 * (2.0 * 256 * (1024 + 256 + 24 + 32) + 4.0 * 8 * 64 * 128 + 97 * (8 * 128 + 8 * 64) + 2 * 512 * 256) +
             2.0 * 256 * 256));
    /* of rank 4, m: B and C, state and values m times, pairs m^2 times in chunks of 32 */
    kr_model_config *mimo = shape(KR_FAMILY_MAMBA3, 256, 2, 256);
    mimo->mamba3->is_mimo = true;
    check_flops("mimo", mimo, 96,
                3 * (2 * (2.0 * 256 * (1024 + 4 * 256 + 24 + 32) + 4.0 * 4 * 8 * 64 * 128 +
                          33 * 16 * (8 * 128 + 8 * 64) + 2 * 512 * 256) +
                     2.0 * 256 * 256));
    end();
}

TEST(operations_of_other_layers)
{
    begin();
    kr_model_config *config = shape(KR_FAMILY_MAMBA1, 64, 2, 256);
    const double block = 2.0 * 64 * 256 + 2 * 4 * 128 + 2 * 128 * 36 + 2 * 4 * 128 + 6 * 128 * 16 + 2 * 128 * 64;
    config->layers->n_virtual = 5; /* two sets of weights */
    check_flops("virtual layers", config, 16, 3 * (5 * block + 2.0 * 256 * 64));
    config = shape(KR_FAMILY_MAMBA1, 64, 2, 256);
    config->layers->d_intermediate = 100; /* rounded up to 128: fc1 [2 128, d], fc2 [d, 128] */
    check_flops("an MLP", config, 16, 3 * (2 * (block + 2.0 * 64 * 256 + 2.0 * 128 * 64) + 2.0 * 256 * 64));
    config = shape(KR_FAMILY_MAMBA1, 64, 2, 0);
    config->network->input_size = 7;
    config->network->output_size = 3;
    check_flops("features", config, 16, 3 * (2 * block + 2.0 * 7 * 64 + 2.0 * 3 * 64));
    end();
}

TEST(recomputed_layers_run_forward_twice)
{
    begin();
    kr_model_config *config = shape(KR_FAMILY_MAMBA2, 256, 4, 1024);
    kr_plan_options o = options_of(1);
    const kr_plan none = made(config, &o);
    const double layers = none.token_flops / 3 - 2.0 * 1024 * 256;
    for (int m = 0; m <= 4; m++) {
        o.recompute = m;
        const kr_plan some = made(config, &o);
        const double want = none.flops + m / 4.0 * layers * (double)o.tokens;
        CHECK(fabs(some.flops - want) < 1e-9 * want, "%d layers: %.9g operations, expected %.9g", m, some.flops, want);
        CHECK(fabs(some.compute - want / o.flops) < 1e-9 * some.compute, "%d layers: %g s", m, some.compute);
        CHECK(fabs(some.efficiency - none.flops / want) < 1e-9, "%d layers: efficiency %g", m, some.efficiency);
    }
    const kr_plan four = made(config, &o);
    o.recompute = KR_PLAN_ALL;
    const kr_plan all = made(config, &o);
    CHECK(all.flops == four.flops && all.memory_bytes == four.memory_bytes, "all are not four layers");
    kr_model_config_destroy(config);
    end();
}

/* ---- the paper model ---- */

/* Rows: a model. All-reduce in ms and efficiency in % for 8 GPUs; 64 and 4096 with 8 x 400G a host; 64 and 4096 with one;
 * 64 with 1 x 100G. Operations a token in GFLOP and the step in ms are those of the same table. */
static const struct {
    const char *name;
    int64_t d_model, layers;
    double gflop, step, sums[6], efficiency[6];
} table[] = {
    { "130m", 768, 24, 0.84, 47, { 2.4, 4.4, 8.5, 22, 29, 83 }, { 98, 98, 98, 87, 87, 46 } },
    { "370m", 1024, 48, 2.39, 132, { 7.0, 12.5, 24, 63, 81, 236 }, { 99, 99, 99, 94, 94, 46 } },
    { "780m", 1536, 48, 4.95, 274, { 15, 26, 51, 133, 172, 500 }, { 99, 99, 99, 95, 95, 45 } },
    { "1.3b", 2048, 48, 8.42, 466, { 25, 46, 88, 229, 297, 862 }, { 100, 100, 100, 96, 96, 44 } },
    { "2.7b", 2560, 64, 16.8, 930, { 51, 92, 177, 459, 596, 1734 }, { 100, 100, 100, 98, 96, 44 } },
};

static kr_plan_options cluster(int column)
{
    static const struct {
        int64_t ranks;
        double nic;
    } clusters[6] = { { 8, 45e9 }, { 64, 360e9 }, { 4096, 360e9 }, { 64, 45e9 }, { 4096, 45e9 }, { 64, 11.25e9 } };
    kr_plan_options o = options_of(clusters[column].ranks);
    o.nic_bytes = clusters[column].nic;
    o.exchange = KR_PLAN_EXCHANGE_RINGS;
    return o;
}

TEST(the_table_of_the_paper_model)
{
    begin();
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        kr_model_config *config = shape(KR_FAMILY_MAMBA2, table[i].d_model, table[i].layers, 50288);
        for (int c = 0; c < 6; c++) {
            kr_plan_options o = cluster(c);
            o.latency = 0;
            const kr_plan p = made(config, &o);
            /* the table's figures have two digits or three */
            CHECK(fabs(p.token_flops * 1e-9 / table[i].gflop - 1) < 0.006 &&
                      fabs(1e3 * p.compute / table[i].step - 1) < 0.01,
                  "%s: %.3f GFLOP, %.1f ms; expected %.3f, %.1f", table[i].name, p.token_flops * 1e-9, 1e3 * p.compute,
                  table[i].gflop, table[i].step);
            /* the table has messages of 25 MB; buckets that are cut at parameters are more */
            const double hosts = (double)o.ranks / 8, messages = p.sum_bytes / 25e6;
            const double sums = 1e3 * (p.sums + messages * 2 * log2(hosts) * 15e-6);
            CHECK(fabs(sums / table[i].sums[c] - 1) < 0.025, "%s, column %d: sums of %.2f ms, expected %.2f",
                  table[i].name, c, sums, table[i].sums[c]);
            /* 2.5 points: the table hides sums behind 0.6 of the step, the plan behind the layers' backward pass, 0.48 of it
             * at 130m and 0.64 at 2.7b; and latency is left out here */
            CHECK(fabs(100 * p.efficiency - table[i].efficiency[c]) < 2.5,
                  "%s, column %d: efficiency %.1f %%, expected %.0f", table[i].name, c, 100 * p.efficiency,
                  table[i].efficiency[c]);
        }
        kr_model_config_destroy(config);
    }
    end();
}

/* One bucket, so that the sum can be written down: b bytes, G = 8, H = 8, three rounds of one message. */
TEST(a_sum_by_hand)
{
    begin();
    kr_model_config *config = shape(KR_FAMILY_MAMBA2, 256, 2, 1024);
    kr_plan_options o = options_of(64);
    o.bucket_bytes = 1 << 30;
    o.exchange = KR_PLAN_EXCHANGE_HOSTS;
    const kr_plan p = made(config, &o);
    const double b = 4.0 * (double)p.parameters, inside = 7 / 8.0 * b / 370e9, between = 7 / 8.0 * b / 45e9;
    CHECK(p.is_exact, "a micro-batch for each of 64 ranks");
    CHECK(p.buckets == 1 && p.sum_bytes == b, "%lld buckets of %g bytes", (long long)p.buckets, p.sum_bytes);
    CHECK(fabs(p.sums - 2 * (inside + between + 3 * 15e-6)) < 1e-12, "ordered: %.9g s", p.sums);
    CHECK(fabs(p.exposed - p.sums) < 1e-15 && p.last == p.sums, "nothing can hide it: %g of %g s", p.exposed, p.sums);
    CHECK(p.nic_traffic == 2 * b * 7 / 8 && p.link_traffic == 2 * b * 7 / 8, "traffic %g, %g", p.nic_traffic,
          p.link_traffic);
    o.exchange = KR_PLAN_EXCHANGE_RINGS;
    const kr_plan fast = made(config, &o);
    CHECK(!fast.is_exact, "fast sums have bits of their own");
    CHECK(fabs(fast.sums - 2 * (between + 3 * 15e-6)) < 1e-12, "fast: %.9g s", fast.sums);
    o.exchange = KR_PLAN_EXCHANGE_HOSTS;
    o.reduce_dtype = KR_DTYPE_BF16;
    const kr_plan halved = made(config, &o);
    CHECK(fabs(halved.sums - (inside + between + 6 * 15e-6)) < 1e-12, "bf16: %.9g s", halved.sums);
    /* the sum is a scatter; the weights are gathered, and the norm takes two messages of each round */
    o.reduce_dtype = KR_DTYPE_F32;
    o.shards = KR_PLAN_SHARDS_OPTIMIZER;
    const kr_plan sharded = made(config, &o);
    CHECK(fabs(sharded.sums - p.sums) < 1e-12, "sharded: %.9g s, not %.9g", sharded.sums, p.sums);
    CHECK(fabs(sharded.exposed - p.sums - 6 * 15e-6) < 1e-12, "sharded: %.9g s exposed", sharded.exposed);
    /* direct: a rank sends 1/64 to each of 7 in its host and 56 elsewhere, and a header before; 8 of them share the NICs */
    o.exchange = KR_PLAN_EXCHANGE_DIRECT;
    o.shards = KR_PLAN_SHARDS_NONE;
    const kr_plan direct = made(config, &o);
    CHECK(fabs(direct.sums - 2 * (8 * between + 2 * (15e-6 + 63e-6))) < 1e-12, "direct: %.9g s", direct.sums);
    CHECK(direct.is_exact && fabs(direct.nic_traffic - 2 * b * 7) < 1 && fabs(direct.link_traffic - 2 * b * 7 / 64) < 1,
          "direct: traffic %g, %g", direct.nic_traffic, direct.link_traffic);
    o.ranks = 8;
    const kr_plan host = made(config, &o);
    CHECK(fabs(host.sums - 2 * (7 / 8.0 * b / 370e9 + 2 * 7e-6)) < 1e-12 && host.nic_traffic == 0, "one host: %.9g s",
          host.sums);
    kr_model_config_destroy(config);
    end();
}

/* In the reverse order of the table; a parameter that does not fit begins a new bucket. */
TEST(buckets_are_cut_at_parameters)
{
    begin();
    kr_model_config *config = shape(KR_FAMILY_MAMBA2, 256, 3, 1024);
    kr_model *model = kr_model_create(ctx, config);
    const kr_params *params = kr_network_params(kr_model_network(model));
    const int64_t count = kr_params_count(params), sizes[] = { 1, 4000, 100000, 3000000, 1 << 30 };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        kr_plan_options o = options_of(2);
        o.bucket_bytes = sizes[i];
        int64_t want = 0;
        double open = 0;
        for (int64_t row = count - 1; row >= 0; row--) {
            const double bytes = 4 * (double)kr_tensor_count(kr_params_at(params, row)->tensor);
            const bool fits = want && open + bytes <= (double)sizes[i];
            want += !fits;
            open = fits ? open + bytes : bytes;
        }
        const int64_t got = made(config, &o).buckets;
        CHECK(got == want && (sizes[i] > 1 || got == count), "%lld bytes: %lld buckets, expected %lld",
              (long long)sizes[i], (long long)got, (long long)want);
    }
    kr_model_destroy(model);
    kr_model_config_destroy(config);
    end();
}

/* Of a tied embedding the head's part can be summed early: what is left is the look-ups' rows, and the second half. */
TEST(a_split_embedding)
{
    begin();
    kr_model_config *config = shape(KR_FAMILY_MAMBA2, 768, 24, 50288);
    kr_plan_options o = options_of(64);
    o.exchange = KR_PLAN_EXCHANGE_HOSTS;
    const kr_plan whole = made(config, &o);
    o.split_embedding = true;
    o.lookup_rows = 10000;
    const kr_plan split = made(config, &o);
    const double rows = 10000.0 / 50288;
    CHECK(split.last < 0.7 * whole.last && split.exposed < 0.7 * whole.exposed, "%g s remain of %g", split.last,
          whole.last);
    /* the scatter of the table is done for the head, and for the rows of the look-ups */
    CHECK(fabs(split.sum_bytes - whole.sum_bytes - 4 * rows * 50288 * 768) < 1, "%.0f bytes, %.0f before",
          split.sum_bytes, whole.sum_bytes);
    o.lookup_rows = 0; /* as many as there may be: 8 x 16384 tokens have all 50288 rows */
    const kr_plan all = made(config, &o);
    CHECK(fabs(all.sum_bytes - whole.sum_bytes - 4.0 * 50288 * 768) < 1, "%.0f bytes", all.sum_bytes);
    config->network->tie_embeddings = false;
    const kr_plan untied = made(config, &o);
    o.split_embedding = false;
    CHECK(untied.sums == made(config, &o).sums, "an untied embedding is split");
    kr_model_config_destroy(config);
    end();
}

/* ---- memory ---- */

TEST(memory_of_shares_by_hand)
{
    begin();
    kr_model_config *config = shape(KR_FAMILY_MAMBA2, 2560, 64, 50288);
    kr_plan_options o = options_of(8);
    kr_plan p = made(config, &o);
    const double n = (double)p.parameters;
    CHECK(p.weight_bytes == 4 * n && p.gradient_bytes == 4 * n && p.optimizer_bytes == 8 * n, "16 N: %g %g %g",
          p.weight_bytes / n, p.gradient_bytes / n, p.optimizer_bytes / n);
    CHECK(fabs(p.weight_bytes + p.gradient_bytes + p.optimizer_bytes - 43.2e9) < 0.1e9, "43 GB at 2.7b");
    o.shards = KR_PLAN_SHARDS_OPTIMIZER;
    p = made(config, &o);
    CHECK(p.gradient_bytes == 4 * n && p.optimizer_bytes == n, "(8 + 8/R) N: %g", p.optimizer_bytes / n);
    o.shards = KR_PLAN_SHARDS_GRADIENTS;
    p = made(config, &o);
    CHECK(p.gradient_bytes == n / 2 && p.optimizer_bytes == n, "(4 + 12/R) N: %g", p.gradient_bytes / n);
    o.micro_batches = 8 * 4; /* sums of 1 and of 2 micro-batches wait for the fourth, whose gradients are dropped */
    p = made(config, &o);
    CHECK(p.gradient_bytes == 2.125 * 4 * n, "4 a rank: %g N", p.gradient_bytes / n);
    o.shards = KR_PLAN_SHARDS_NONE;
    p = made(config, &o);
    CHECK(p.gradient_bytes == 3 * 4 * n, "log2(M/R) + 1 buffers: %g N", p.gradient_bytes / n);
    o.micro_batches = 8 * 3;
    CHECK(made(config, &o).gradient_bytes == 3 * 4 * n, "3 a rank: sums of 1 and of 2, and one that is written");
    config->mamba2->dtype = KR_DTYPE_BF16; /* matrices; their f32 copies belong to the optimizer, sums are f32 */
    p = made(config, &o);
    CHECK(p.gradient_bytes == 3 * 4 * n, "bf16: gradients of %g N", p.gradient_bytes / n);
    CHECK(p.weight_bytes < 2.01 * n && fabs(p.optimizer_bytes - (8 * n + 4 * n)) < 0.01 * n, "bf16: %g N, %g N",
          p.weight_bytes / n, p.optimizer_bytes / n);
    kr_model_config_destroy(config);
    end();
}

/* Bytes that the tape of a training step has for each further token, by its peak with two lengths. */
static double bytes_per_token(const kr_model_config *config)
{
    const int64_t length = kr_test_quick() ? 128 : 256;
    double bytes[2];
    kr_model *model = kr_model_create(ctx, config);
    for (int i = 0; i < 2; i++) {
        const int64_t ns = i ? 3 * length : length;
        kr_tape *tape = kr_tape_create(ctx, KR_TAPE_GRAD);
        kr_loss_call call;
        kr_loss_call_init(&call);
        call.ids_bs = kr_zeros(tape, KR_DTYPE_I32, KR_SHAPE(1, ns));
        kr_backward(tape, kr_network_loss(tape, kr_model_network(model), &call).loss);
        bytes[i] = (double)kr_tape_peak_bytes(tape);
        kr_tape_destroy(tape);
    }
    kr_model_destroy(model);
    CHECK_OK(ctx);
    return (bytes[1] - bytes[0]) / (double)(2 * length);
}

TEST(activations_of_a_real_step)
{
    begin();
    for (int f = 0; f < 3; f++)
        for (int r = 0; r < 2; r++) {
            kr_model_config *config = shape((kr_family)f, kr_test_quick() ? 128 : 256, 8, 256);
            if (r) config->layers->recompute = KR_RECOMPUTE_ALL;
            kr_plan_options o = options_of(1);
            o.recompute = r ? KR_PLAN_ALL : 0;
            const double want = made(config, &o).activation_bytes / (double)o.tokens, got = bytes_per_token(config);
            /* 30 %: the estimate is that of kr_model_measure, which counts what a forward pass makes; a tape keeps what the
             * backward pass reads */
            CHECK(got > 0.7 * want && got < 1.3 * want, "mamba%d, recompute %d: %.0f bytes a token, expected %.0f",
                  f + 1, r, got, want);
            kr_model_config_destroy(config);
        }
    end();
}

/* ---- bits ---- */

/* A sum that tells in which order it was made: not commutative, not associative. */
static uint64_t add(uint64_t a, uint64_t b)
{
    uint64_t x = a * 0x9e3779b97f4a7c15u + (b ^ 0xd1b54a32d192ed03u) * 0xbf58476d1ce4e5b9u;
    x ^= x >> 31;
    return x * 0x94d049bb133111ebu ^ x >> 29;
}

/* The binary counter: level k holds the sum of 2^k; what is left at the end is added from the largest down. */
static uint64_t tree_sum(const uint64_t *x, int count)
{
    uint64_t level[8];
    bool is_full[8] = { false };
    for (int i = 0; i < count; i++) {
        uint64_t sum = x[i];
        int k = 0;
        for (; is_full[k]; k++) {
            sum = add(level[k], sum);
            is_full[k] = false;
        }
        level[k] = sum;
        is_full[k] = true;
    }
    bool has_any = false;
    uint64_t all = 0;
    for (int k = 7; k >= 0; k--)
        if (is_full[k]) {
            all = has_any ? add(all, level[k]) : level[k];
            has_any = true;
        }
    return all;
}

TEST(numbers_of_ranks_with_the_bits_of_one)
{
    enum { MOST = 48 };
    uint64_t x[MOST], sums[MOST];
    for (int i = 0; i < MOST; i++) x[i] = kr_test_next();
    for (int m = 1; m <= MOST; m++)
        for (int ranks = 1; ranks <= m + 1; ranks++) {
            bool is_same = m % ranks == 0;
            for (int r = 0; r < ranks && is_same; r++) sums[r] = tree_sum(x + r * (m / ranks), m / ranks);
            if (is_same) is_same = tree_sum(sums, ranks) == tree_sum(x, m);
            CHECK(kr_plan_is_exact(m, ranks) == is_same, "%d micro-batches on %d ranks are%s exact", m, ranks,
                  is_same ? "" : " not");
        }
    CHECK(!kr_plan_is_exact(0, 1) && !kr_plan_is_exact(4, 0) && !kr_plan_is_exact(-4, -2), "numbers below 1");
}

/* ---- errors ---- */

#define REFUSED(text, change)                                                                                          \
    do {                                                                                                               \
        kr_plan_options o = options_of(8);                                                                             \
        kr_plan p;                                                                                                     \
        change;                                                                                                        \
        CHECK(kr_plan_make(ctx, config, &o, &p) == KR_ERR_ARG, "%s is not refused", #change);                          \
        CHECK_ERROR(ctx, KR_ERR_ARG, "plan.make: " text);                                                              \
        CHECK(p.parameters == 0 && p.step == 0, "there is a plan");                                                    \
    } while (0)

TEST(refused_options)
{
    begin();
    kr_model_config *config = shape(KR_FAMILY_MAMBA2, 64, 2, 256);
    const int64_t beyond = 8;
    const double zero = 0;
    REFUSED("ranks = 0, but must be from 1 to 1048576", o.ranks = 0);
    REFUSED("ranks_per_host = 0, but must be from 1 to 1048576", o.ranks_per_host = 0);
    REFUSED("ranks = 12 is no multiple of ranks_per_host = 8; use whole hosts", o.ranks = 12);
    REFUSED("tokens = 0, but must be from 1 to 1099511627776", o.tokens = 0);
    REFUSED("length = 3000 does not divide tokens = 16384; a micro-batch has whole rows", o.length = 3000);
    REFUSED("ranks = 8 does not divide micro_batches = 12; every rank has as many", o.micro_batches = 12);
    REFUSED("bucket_bytes = 0, but must be from 1 to 1099511627776", o.bucket_bytes = 0);
    REFUSED("lookup_rows = -1, but must be from 0 to 1099511627776", o.lookup_rows = -1);
    REFUSED("recompute = -2, but must be from -1 to 1099511627776", o.recompute = -2);
    REFUSED("flops = -1, but must be finite and above 0", o.flops = -1);
    REFUSED("link_bytes = inf, but must be finite and above 0", o.link_bytes = INFINITY);
    REFUSED("nic_bytes = 0, but must be finite and above 0", o.nic_bytes = 0);
    REFUSED("activation_scale = 0, but must be finite and above 0", o.activation_scale = 0);
    REFUSED("overhead = -1, but must be finite and not negative", o.overhead = -1);
    REFUSED("exchange = 3, but must be one of kr_plan_exchange", o.exchange = (kr_plan_exchange)3);
    REFUSED("latency = -1, but must be finite and not negative", o.latency = -1);
    REFUSED("reduce_dtype is f16, but must be f32 or bf16", o.reduce_dtype = KR_DTYPE_F16);
    REFUSED("shards = 3, but must be one of kr_plan_shards", o.shards = (kr_plan_shards)3);
    REFUSED("steps = 1, but must be from 2 to 1000", o.steps = 1);
    REFUSED("jitter = 0.6, but must be from 0 to 0.5", o.jitter = 0.6);
    REFUSED("n_slow = 9, but must be from 0 to 8", o.n_slow = 9);
    REFUSED("n_slow = 1, but slow_ranks or slow_factors is NULL", o.n_slow = 1);
    REFUSED("slow_ranks[0] = 8, but must be from 0 to ranks - 1 = 7",
            (o.n_slow = 1, o.slow_ranks = &beyond, o.slow_factors = &zero));
    REFUSED("slow_factors[0] = 0, but must be finite and above 0",
            (o.n_slow = 1, o.slow_ranks = &(int64_t){ 0 }, o.slow_factors = &zero));
    config->mamba2->per_head_dim = 33;
    kr_plan p;
    CHECK(kr_plan_make(ctx, config, NULL, &p) == KR_ERR_ARG, "heads of 33");
    CHECK_ERROR_HAS(ctx, KR_ERR_ARG, "per_head_dim = 33 does not divide d_inner = 128");
    CHECK(kr_plan_make(ctx, config, NULL, NULL) == KR_ERR_ARG, "no plan");
    CHECK_ERROR(ctx, KR_ERR_ARG, "plan.make: plan is NULL");
    CHECK(kr_plan_make(NULL, config, NULL, &p) != KR_OK, "no context");
    kr_model_config_destroy(config);
    end();
}

TEST(any_allocation_may_fail)
{
    begin();
    kr_model_config *config = shape(KR_FAMILY_MAMBA3, 64, 2, 256);
    const size_t before = kr_ctx_memory(ctx).live_bytes;
    kr_plan_simulation s;
    size_t n = 1;
    for (kr_status status = KR_ERR_NOMEM; status != KR_OK && n < 1000; n++) {
        kr_ctx_fail_allocation(ctx, n);
        status = kr_plan_simulate(ctx, config, NULL, &s);
        kr_ctx_fail_allocation(ctx, 0);
        CHECK(status == KR_OK || status == KR_ERR_NOMEM, "allocation %zu: %s", n, kr_ctx_message(ctx));
        kr_ctx_clear(ctx);
        CHECK(kr_ctx_memory(ctx).live_bytes == before, "allocation %zu: memory is left", n);
    }
    CHECK(n > 3 && n < 1000, "%zu allocations", n);
    kr_model_config_destroy(config);
    end();
}
