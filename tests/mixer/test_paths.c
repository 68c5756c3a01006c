/* test_paths.c - Minimal = Serial = SerialRecalculated, on results and on every gradient. */
#include "tests/mixer/paths.h"

/* Rounding of f32 sums over a chunk and a state, relative to the largest element; f64 has 1e-16 where f32 has 6e-8. */
static const double f32_values = 1e-5, f32_gradients = 1e-4, f64_all = 1e-11;

/* All algorithms in f64 by the reference kernels (the plain recurrence is one of them), then in f32 on each set. */
static void check_case_above(const ssd_case *c, double floor)
{
    static const char *const names[] = { "Minimal", "Serial", "SerialRecalculated" };
    static const char *const sets[] = { "ref", "avx2", "avx512" };
    char text[256], what[400], choices[128];
    kr_isa_choices(choices, sizeof choices);
    case_text(c, text, sizeof text);
    operands o = make_operands(c);
    results want = run_case(c, &o, KR_DTYPE_F64, KR_SSD_SERIAL_RECALCULATED, "ref", 1, NULL);
    for (int a = KR_SSD_MINIMAL; a <= KR_SSD_SERIAL; a++) {
        results got = run_case(c, &o, KR_DTYPE_F64, (kr_ssd_algorithm)a, "ref", 1, NULL);
        snprintf(what, sizeof what, "%s, f64, %s", names[a], text);
        compare_results(what, &got, &want, f64_all, f64_all, floor);
        free_results(&got);
    }
    for (int a = KR_SSD_MINIMAL; a <= KR_SSD_SERIAL_RECALCULATED; a++)
        for (int s = 0; s < 3; s++) {
            if (!strstr(choices, sets[s])) continue;
            results got = run_case(c, &o, KR_DTYPE_F32, (kr_ssd_algorithm)a, sets[s], 1, NULL);
            snprintf(what, sizeof what, "%s, f32 %s, %s", names[a], sets[s], text);
            compare_results(what, &got, &want, f32_values, f32_gradients, floor);
            free_results(&got);
        }
    free_results(&want);
    free_operands(&o);
}

static void check_case(const ssd_case *c)
{
    check_case_above(c, 0);
}

/* The three tests of the seeds: b 2, n chunks of l, h heads of p, g groups, state r. */
static void seed_case(int64_t nn, int64_t nl, int64_t nh, int64_t ng)
{
    check_case(&(ssd_case){ .family = MAMBA2,
                            .nb = 2,
                            .ns = nn * nl,
                            .nm = 1,
                            .nh = nh,
                            .np = 8,
                            .ng = ng,
                            .nr = 8,
                            .nl = nl,
                            .cut = true,
                            .initial = true,
                            .skip = true });
}

TEST(paths_agree_no_gqa)
{
    seed_case(3, 4, 2, 2);
}

TEST(paths_agree_gqa)
{
    seed_case(3, 4, 4, 1);
}

TEST(paths_agree_single_chunk)
{
    seed_case(1, 4, 2, 2);
}

TEST(random_cases)
{
    static const int64_t chunk[] = { 0, 1, 2, 5, 16, 64, 1000 };
    const int count = kr_test_quick() ? 12 : 60;
    for (int i = 0; i < count; i++) {
        ssd_case c = { .family = (family)(i % 3) };
        c.nb = 1 + kr_test_below(3);
        c.nm = c.family == MAMBA2 ? 1 : 1 + kr_test_below(4);
        c.ng = 1 + kr_test_below(3);
        c.nh = c.ng * (1 + kr_test_below(3));
        c.np = 1 + kr_test_below(20);
        c.nr = 1 + kr_test_below(20);
        c.nl = chunk[kr_test_below(7)];
        c.ns = 1 + kr_test_below(40);
        c.cut = c.nl > 0 && c.nl < 20 && kr_test_below(3) == 0;
        if (c.cut) c.ns = c.nl * (1 + kr_test_below(4));
        c.initial = kr_test_below(2);
        c.learned = kr_test_below(2);
        c.skip = kr_test_below(2);
        c.packed = kr_test_below(3) == 0;
        check_case(&c);
    }
}

TEST(usual_sizes)
{
    check_case(&(ssd_case){
        .family = MAMBA2, .nb = 1, .ns = 200, .nm = 1, .nh = 4, .np = 64, .ng = 1, .nr = 64, .initial = true });
    check_case(
        &(ssd_case){ .family = MAMBA3_SINGLE, .nb = 1, .ns = 70, .nm = 4, .nh = 2, .np = 64, .ng = 2, .nr = 64 });
}

/* Decays from none to total: exp underflows to 0 without side effects. On CUDA a decay's gradient is then a difference
 * of sums of order 1 and may be much smaller than they are, so errors are relative to 1. */
TEST(extreme_decays)
{
    static const double decays[] = { 1e-30, 1e-3, 10, 100, 1e4 };
    for (int f = MAMBA2; f <= MAMBA3_SINGLE; f++)
        for (int i = 0; i < 5; i++)
            check_case_above(&(ssd_case){ .family = (family)f,
                                          .nb = 1,
                                          .ns = 21,
                                          .nm = f == MAMBA2 ? 1 : 2,
                                          .nh = 2,
                                          .np = 5,
                                          .ng = 1,
                                          .nr = 6,
                                          .nl = 8,
                                          .initial = true,
                                          .decay = decays[i] },
                             1);
}

TEST(threads_and_neighbours_do_not_matter)
{
    for (int f = MAMBA2; f <= MAMBA3_SINGLE; f++) {
        const ssd_case c = { .family = (family)f,
                             .nb = 3,
                             .ns = 150,
                             .nm = f == MAMBA2 ? 1 : 2,
                             .nh = 6,
                             .np = 16,
                             .ng = 2,
                             .nr = 16,
                             .nl = 32,
                             .initial = true,
                             .packed = true };
        operands o = make_operands(&c);
        results one = run_case(&c, &o, KR_DTYPE_F32, KR_SSD_SERIAL_RECALCULATED, NULL, 1, NULL);
        results three = run_case(&c, &o, KR_DTYPE_F32, KR_SSD_SERIAL_RECALCULATED, NULL, 3, NULL);
        compare_results("3 threads against 1", &three, &one, 0, 0, 0);
        free_results(&one);
        free_results(&three);
        free_operands(&o);
    }
}

TEST(chunk_length_rule)
{
    CHECK(kr_ssd_optimal_chunk_len(128, 64) == 96, "got %lld", (long long)kr_ssd_optimal_chunk_len(128, 64));
    CHECK(kr_ssd_optimal_chunk_len(64, 64) == 64, "got %lld", (long long)kr_ssd_optimal_chunk_len(64, 64));
    CHECK(kr_ssd_optimal_chunk_len(1, 1) == 32, "got %lld", (long long)kr_ssd_optimal_chunk_len(1, 1));
    CHECK(kr_ssd_optimal_chunk_len(256, 128) == 192, "got %lld", (long long)kr_ssd_optimal_chunk_len(256, 128));
    CHECK(kr_ssd_optimal_chunk_len(1024, 1024) == 512, "got %lld", (long long)kr_ssd_optimal_chunk_len(1024, 1024));
    const kr_ssd_path path = kr_ssd_path_default();
    CHECK(path.algorithm == KR_SSD_SERIAL_RECALCULATED && kr_ssd_chunk_len(path) == 0, "the default is another");
    CHECK(kr_ssd_chunk_len_or_optimal(path, 128, 64) == 96, "open: the optimal one");
    CHECK(kr_ssd_chunk_len_or_optimal((kr_ssd_path){ KR_SSD_SERIAL, 7 }, 128, 64) == 7, "given: that one");
    CHECK(kr_ssd_core_optimal(64, 64).algorithm == KR_SSD_MINIMAL && kr_ssd_core_optimal(64, 64).chunk_len == 64,
          "core");
    CHECK(kr_ssd_chunked_optimal(64, 64).algorithm == KR_SSD_SERIAL, "chunked");
    CHECK(kr_ssd_chunked_recalculated_optimal(64, 64).algorithm == KR_SSD_SERIAL_RECALCULATED, "recalculated");
}

/* Bytes of an algorithm beyond operands, outputs and gradients. */
static size_t bytes_beyond(const ssd_case *c, kr_ssd_algorithm algorithm)
{
    operands o = make_operands(c);
    size_t peak, results_bytes = 0;
    results r = run_case(c, &o, KR_DTYPE_F32, algorithm, NULL, 1, &peak);
    for (int i = 0; i < MAX_RESULTS; i++) results_bytes += (size_t)r.counts[i] * sizeof(float);
    free_results(&r);
    free_operands(&o);
    return peak > results_bytes ? peak - results_bytes : 0;
}

TEST(memory_of_the_default_is_a_third_of_the_others)
{
    if (kr_test_quick()) SKIP("a large case");
    const ssd_case c = { .family = MAMBA2, .nb = 2, .ns = 2048, .nm = 1, .nh = 8, .np = 64, .ng = 1, .nr = 64 };
    const size_t fused = bytes_beyond(&c, KR_SSD_SERIAL_RECALCULATED);
    for (int a = KR_SSD_MINIMAL; a <= KR_SSD_SERIAL; a++) {
        const size_t other = bytes_beyond(&c, (kr_ssd_algorithm)a);
        CHECK((double)fused <= 0.35 * (double)other, "%zu bytes against %zu of %s", fused, other,
              a ? "Serial" : "Minimal");
    }
}

/* Memory that grows with the sequence: the states of the chunks, da = dt A and its gradient, and partial sums over
 * heads. */
TEST(memory_of_the_default_grows_by_chunk_states_only)
{
    if (kr_test_quick()) SKIP("a large case");
    ssd_case c = { .family = MAMBA2, .nb = 1, .ns = 4096, .nm = 1, .nh = 4, .np = 64, .ng = 4, .nr = 64, .nl = 64 };
    const size_t shorter = bytes_beyond(&c, KR_SSD_SERIAL_RECALCULATED);
    const int64_t added = c.ns;
    c.ns *= 2;
    const size_t longer = bytes_beyond(&c, KR_SSD_SERIAL_RECALCULATED);
    const size_t states =
        (size_t)(added / c.nl * c.np * (c.nr + 16)) * sizeof(float); /* of one head; rows are padded */
    const size_t decays = (size_t)(4 * added * c.nh) * sizeof(float);
    const size_t slack = 1 << 20; /* blocks of the arenas */
    CHECK(longer <= shorter + states + decays + slack, "%zu bytes at s 8192, %zu at s 4096", longer, shorter);
}
