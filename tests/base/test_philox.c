/* test_philox.c - the generator's known answers, the place of a draw, and the shape of what is drawn. */
#include "base/normal.h"
#include "tests/harness.h"

/* Published with the algorithm (Random123, kat_vectors, philox4x32 10). */
TEST(known_answers)
{
    static const struct {
        uint32_t counter[4], key[2], want[4];
    } rows[] = {
        { { 0, 0, 0, 0 }, { 0, 0 }, { 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8 } },
        { { 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff },
          { 0xffffffff, 0xffffffff },
          { 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd } },
        { { 0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344 },
          { 0xa4093822, 0x299f31d0 },
          { 0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1 } },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        kr_philox_block counter;
        memcpy(counter.word, rows[i].counter, sizeof counter.word);
        const kr_philox_block got = kr_philox(counter, rows[i].key[0], rows[i].key[1]);
        for (int w = 0; w < 4; w++)
            CHECK(got.word[w] == rows[i].want[w], "row %zu, word %d: got %08x want %08x", i, w, (unsigned)got.word[w],
                  (unsigned)rows[i].want[w]);
    }
}

TEST(seed_stream_and_block_are_key_and_counter)
{
    const kr_philox_block counter = { { 0x89abcdefu, 0x01234567u, 0x76543210u, 0xfedcba98u } };
    const kr_philox_block want = kr_philox(counter, 0xdeadbeefu, 0x12345678u);
    const kr_philox_block got =
        kr_philox_at(UINT64_C(0x12345678deadbeef), UINT64_C(0xfedcba9876543210), UINT64_C(0x0123456789abcdef));
    CHECK(memcmp(&got, &want, sizeof got) == 0, "halves are misplaced");
}

/* All four words of nearby counters and keys differ, and half of their bits do. */
TEST(nearby_counters_share_nothing)
{
    int64_t flipped = 0, nwords = 0;
    for (uint64_t block = 0; block < 4000; block++) {
        const kr_philox_block here = kr_philox_at(7, 3, block);
        const kr_philox_block others[3] = { kr_philox_at(7, 3, block + 1), kr_philox_at(7, 4, block),
                                            kr_philox_at(8, 3, block) };
        for (int o = 0; o < 3; o++)
            for (int w = 0; w < 4; w++, nwords++)
                for (uint32_t x = here.word[w] ^ others[o].word[w]; x; x &= x - 1) flipped++;
    }
    const double mean = (double)flipped / (double)nwords, error = sqrt(8.0 / (double)nwords);
    CHECK(fabs(mean - 16) < 5 * error, "%.4f of 32 bits differ", mean);
}

typedef struct moments {
    double mean, variance, skew, kurtosis;
    int64_t beyond[6]; /* draws with |z| > 0, 1, .. 5 */
} moments;

static moments moments_of(const double *z, int64_t n)
{
    moments m = { 0, 0, 0, 0, { 0 } };
    for (int64_t i = 0; i < n; i++) {
        m.mean += z[i];
        m.variance += z[i] * z[i];
        m.skew += z[i] * z[i] * z[i];
        m.kurtosis += z[i] * z[i] * z[i] * z[i];
        for (int k = 0; k < 6; k++) m.beyond[k] += fabs(z[i]) > k;
    }
    m.mean /= (double)n, m.variance /= (double)n, m.skew /= (double)n, m.kurtosis /= (double)n;
    return m;
}

/* Each within 5 standard errors of what the law says. */
static void check_normal(const char *what, const double *z, int64_t n)
{
    const moments m = moments_of(z, n);
    const double root = sqrt((double)n);
    CHECK(fabs(m.mean) < 5 / root, "%s: mean %g", what, m.mean);
    CHECK(fabs(m.variance - 1) < 5 * sqrt(2) / root, "%s: second moment %g", what, m.variance);
    CHECK(fabs(m.skew) < 5 * sqrt(15) / root, "%s: third moment %g", what, m.skew);
    CHECK(fabs(m.kurtosis - 3) < 5 * sqrt(96) / root, "%s: fourth moment %g", what, m.kurtosis);
    for (int k = 1; k < 6; k++) {
        const double p = erfc(k / sqrt(2)), want = p * (double)n;
        CHECK(fabs((double)m.beyond[k] - want) < 5 * sqrt(want) + 2, "%s: %lld beyond %d, %g expected", what,
              (long long)m.beyond[k], k, want);
    }
}

TEST(normals_have_the_normal_law)
{
    const int64_t nblocks = kr_test_quick() ? 50000 : 400000;
    double *z = malloc((size_t)nblocks * 4 * sizeof *z);
    if (!z) exit(2);
    for (int64_t b = 0; b < nblocks; b++) {
        const kr_philox_block block = kr_philox_at(42, 1, (uint64_t)b);
        kr_normals_f32(&block, z + 4 * b);
    }
    check_normal("f32", z, 4 * nblocks);
    for (int64_t b = 0; b < nblocks; b++) {
        const kr_philox_block block = kr_philox_at(42, 2, (uint64_t)b);
        kr_normals_f64(&block, z + 2 * b);
    }
    check_normal("f64", z, 2 * nblocks);
    double products = 0; /* neighbours of a pair are independent */
    for (int64_t i = 0; i < 2 * nblocks; i += 2) products += z[i] * z[i + 1];
    CHECK(fabs(products / sqrt((double)nblocks)) < 5, "pairs are correlated: %g", products / (double)nblocks);
    free(z);
}

TEST(uniforms_fill_the_unit_interval)
{
    enum { CELLS = 64 };
    const int64_t nblocks = 50000;
    int64_t cells[2][CELLS] = { { 0 } };
    for (int64_t b = 0; b < nblocks; b++) {
        const kr_philox_block block = kr_philox_at(42, 9, (uint64_t)b);
        double u[4], v[2];
        kr_uniforms_f32(&block, u);
        kr_uniforms_f64(&block, v);
        for (int i = 0; i < 4; i++) {
            CHECK(u[i] >= 0 && u[i] < 1 && (double)(float)u[i] == u[i], "f32 draw %a", u[i]);
            cells[0][(int)(u[i] * CELLS)]++;
        }
        for (int i = 0; i < 2; i++) {
            CHECK(v[i] >= 0 && v[i] < 1, "f64 draw %a", v[i]);
            cells[1][(int)(v[i] * CELLS)]++;
        }
    }
    for (int k = 0; k < 2; k++) {
        const double want = (double)(nblocks * (k ? 2 : 4)) / CELLS;
        double chi = 0;
        for (int i = 0; i < CELLS; i++) chi += ((double)cells[k][i] - want) * ((double)cells[k][i] - want) / want;
        CHECK(fabs(chi - (CELLS - 1)) < 5 * sqrt(2.0 * (CELLS - 1)), "%s: chi^2 %g", k ? "f64" : "f32", chi);
    }
}

/* The pieces of Box-Muller against libm, at the ends of their ranges too. */
TEST(logarithm_and_turn_are_good_to_a_few_units)
{
    double worst_log = 0, worst_rotation = 0;
    for (int i = 0; i <= 200000; i++) {
        const double u = i == 0 ? 0x1p-53 : i <= 64 ? ldexp(1, -i) : kr_test_uniform(0x1p-53, 1);
        const double want = log(u),
                     error = fabs(kr_normal_log(u) - want) / (fabs(want) > 0x1p-53 ? fabs(want) : 0x1p-53);
        if (error > worst_log) worst_log = error;
        const double v = i < 64 ? i / 64.0 : kr_test_uniform(0, 1);
        double cosine, sine;
        kr_normal_turn(v, &cosine, &sine);
        const double angle = 6.28318530717958647692 * v;
        const double off = fmax(fabs(cosine - cos(angle)), fabs(sine - sin(angle)));
        if (off > worst_rotation) worst_rotation = off;
    }
    CHECK(worst_log < 8e-16, "ln is off by %g", worst_log);
    CHECK(worst_rotation < 1.5e-15, "cos or sin is off by %g", worst_rotation); /* the angle itself is rounded */
    double z0, z1;
    kr_normal_pair(1, 0, &z0, &z1);
    CHECK(z0 == 0 && z1 == 0, "u = 1 gives (%g, %g)", z0, z1);
    kr_normal_pair(0x1p-53, 0, &z0, &z1);
    CHECK(fabs(z0 - 8.571674348652905) < 1e-12, "the largest draw is %.15g", z0);
}
