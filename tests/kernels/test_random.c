/* test_random.c - random samples of the kernel: any part of a stream has the same numbers, intervals are half open, and
 * values are those of base/normal.h. */
#include "base/half.h"
#include "base/normal.h"
#include "tests/kernels/conformance.h"

enum { N = 3001 };

static const kr_dtype dtypes[] = { KR_DTYPE_F32, KR_DTYPE_F64, KR_DTYPE_BF16, KR_DTYPE_F16 };

static void draw(const kr_kernels *set, kr_random_args a, void *y)
{
    a.y = y;
    const kr_span span = { offsetof(kr_random_args, y), 0, y, (size_t)a.n * kr_dtype_bytes(a.dtype), true };
    kr_run_spans(kr_kernel_named("random"), set, 0, NULL, &a, sizeof a, &span, 1, "draws");
}

TEST(any_offset_gives_the_same_numbers)
{
    for (int s = 0; kr_judged_set(s); s++) {
        const kr_kernels *set = kr_judged_set(s);
        for (int k = 0; set->random.run && k < 8; k++) {
            kr_random_args a = { .n = N, .dtype = dtypes[k / 2], .normal = k % 2, .alpha = 1, .beta = 3 };
            a.seed = kr_test_seed();
            a.stream = 5;
            const size_t bytes = kr_dtype_bytes(a.dtype);
            static double whole[N], part[N];
            draw(set, a, whole);
            for (int i = 0; i < 200; i++) {
                a.offset = (uint64_t)kr_test_below(N);
                a.n = 1 + kr_test_below(N - (int64_t)a.offset);
                memset(part, 0, sizeof part);
                draw(set, a, part);
                CHECK(memcmp(part, (char *)whole + a.offset * bytes, (size_t)a.n * bytes) == 0,
                      "%s, %s %s: %lld draws from %llu differ", set->name, kr_dtype_name(a.dtype),
                      a.normal ? "normal" : "uniform", (long long)a.n, (unsigned long long)a.offset);
            }
        }
    }
}

TEST(offsets_beyond_32_bits_and_streams_are_apart)
{
    const kr_kernels *set = kr_runnable_set(0);
    kr_random_args a = { .n = 64, .dtype = KR_DTYPE_F32, .beta = 1, .seed = 9 };
    float first[64], other[64];
    draw(set, a, first);
    const struct {
        uint64_t seed, stream, offset;
    } places[] = { { 9, 0, UINT64_C(1) << 34 },
                   { 9, 1, 0 },
                   { 9, UINT64_C(1) << 32, 0 },
                   { 10, 0, 0 },
                   { 9 + (UINT64_C(1) << 32), 0, 0 } };
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        a.seed = places[i].seed;
        a.stream = places[i].stream;
        a.offset = places[i].offset;
        draw(set, a, other);
        int same = 0;
        for (int k = 0; k < 64; k++) same += first[k] == other[k];
        CHECK(same == 0, "place %zu repeats %d of 64 numbers", i, same);
    }
}

/* alpha + beta z and alpha + (beta - alpha) u of the block's lanes, rounded once. */
TEST(draws_are_those_of_the_generator)
{
    const kr_kernels *set = kr_runnable_set(0);
    float single[40];
    double twice[40], lanes[4];
    for (int normal = 0; normal < 2; normal++) {
        kr_random_args a = { .n = 40, .dtype = KR_DTYPE_F32, .normal = normal, .alpha = -0.25, .beta = 1.5, .seed = 3 };
        a.stream = 8;
        draw(set, a, single);
        a.dtype = KR_DTYPE_F64;
        draw(set, a, twice);
        const double scale = normal ? 1.5 : 1.75;
        for (uint64_t i = 0; i < 40; i++) {
            kr_philox_block block = kr_philox_at(3, 8, i / 4);
            (normal ? kr_normals_f32 : kr_uniforms_f32)(&block, lanes);
            CHECK(single[i] == (float)(-0.25 + scale * lanes[i % 4]), "f32 draw %llu", (unsigned long long)i);
            block = kr_philox_at(3, 8, i / 2);
            (normal ? kr_normals_f64 : kr_uniforms_f64)(&block, lanes);
            CHECK(twice[i] == -0.25 + scale * lanes[i % 2], "f64 draw %llu", (unsigned long long)i);
        }
    }
}

static double value_at(const void *y, kr_dtype dtype, int64_t i)
{
    switch (dtype) {
    case KR_DTYPE_F32: return (double)((const float *)y)[i];
    case KR_DTYPE_F64: return ((const double *)y)[i];
    case KR_DTYPE_BF16: return (double)kr_float_from_bf16(((const uint16_t *)y)[i]);
    default: return (double)kr_float_from_f16(((const uint16_t *)y)[i]);
    }
}

/* In 8 or 11 bits many samples round up to the end of the interval, which is excluded. */
TEST(uniform_intervals_are_half_open)
{
    enum { MANY = 60000 };
    static const double ends[][2] = { { 0, 1 }, { -1, 0 }, { 3, 4 }, { -4, -3 }, { 1000, 1001 } };
    static double y[MANY];
    for (int k = 0; k < 4; k++) {
        for (size_t e = 0; e < sizeof ends / sizeof *ends; e++) {
            kr_random_args a = { .n = MANY, .dtype = dtypes[k], .alpha = ends[e][0], .beta = ends[e][1], .seed = 1 };
            draw(kr_runnable_set(0), a, y);
            double least = INFINITY, most = -INFINITY;
            for (int64_t i = 0; i < MANY; i++) {
                least = fmin(least, value_at(y, a.dtype, i));
                most = fmax(most, value_at(y, a.dtype, i));
            }
            CHECK(least >= ends[e][0] && most < ends[e][1], "%s in [%g, %g): from %g to %g", kr_dtype_name(a.dtype),
                  ends[e][0], ends[e][1], least, most);
        }
    }
}

TEST(moments_of_the_kernel)
{
    enum { MANY = 100000 };
    static double y[MANY];
    for (int k = 0; k < 8; k++) {
        const bool normal = k % 2;
        kr_random_args a = { .n = MANY, .dtype = dtypes[k / 2], .normal = normal, .alpha = 2, .beta = 5, .seed = 77 };
        draw(kr_runnable_set(0), a, y);
        double sum = 0, squares = 0;
        for (int64_t i = 0; i < MANY; i++) sum += value_at(y, a.dtype, i);
        const double mean = sum / MANY, want = normal ? 2 : 3.5, deviation = normal ? 5 : 3 / sqrt(12);
        for (int64_t i = 0; i < MANY; i++) squares += pow(value_at(y, a.dtype, i) - mean, 2);
        const double std = sqrt(squares / MANY);
        CHECK(fabs(mean - want) < 5 * deviation / sqrt(MANY) + 0.003, "%s mean %g", kr_dtype_name(a.dtype), mean);
        CHECK(fabs(std / deviation - 1) < 0.012, "%s deviation %g of %g", kr_dtype_name(a.dtype), std, deviation);
    }
}
