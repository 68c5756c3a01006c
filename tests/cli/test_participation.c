/* test_participation.c - participation ratios where they can be told beforehand, and the gradient of one. */
#include "lab/participation.h"
#include "tests/harness.h"

static const double pi = 3.14159265358979323846;

/* f32 sums of a few thousand products, in whatever order, keep about six digits. */
static const double tolerance = 2e-5;

static void check_ratio(const char *what, double got, double want)
{
    CHECK_CLOSE(what, &got, &want, 1, NULL, tolerance, 1e-30);
}

static double ratio_of(kr_tape *tape, int64_t n, int64_t d, const double *x)
{
    kr_tensor *ratio =
        cli_participation(tape, kr_cast(tape, kr_from_data(tape, KR_DTYPE_F64, KR_SHAPE(n, d), x), KR_DTYPE_F32));
    return ratio ? kr_item(ratio) : NAN;
}

/* Rows that are the axes of d numbers, each `times` long: all directions have equal parts. */
static double *axes_of(int64_t d, int times, double length)
{
    double *x = calloc((size_t)(d * d * times), sizeof *x);
    for (int64_t i = 0; i < d * times; i++) x[i * d + i % d] = i % 2 ? length : -length;
    return x;
}

TEST(participation_of_matrices)
{
    kr_ctx *ctx = kr_test_ctx(0, NULL);
    kr_tape *tape = kr_tape_create(ctx, KR_TAPE_GRAD);
    double *axes = axes_of(8, 3, 1), one[30], wide[30];
    for (int i = 0; i < 30; i++) one[i] = (i / 5 - 2.5) * (i % 5 - 1.7); /* a column times a row */
    for (int i = 0; i < 30; i++) wide[i] = (i / 6 - 2.5) * (i % 6 - 1.7);
    check_ratio("axes", ratio_of(tape, 24, 8, axes), 8);
    check_ratio("rank 1", ratio_of(tape, 6, 5, one), 1);
    check_ratio("rank 1, wide", ratio_of(tape, 5, 6, wide), 1);
    /* Two directions with squares 4 and 1: 25 / 17. */
    check_ratio("two", ratio_of(tape, 2, 3, (double[]){ 2, 0, 0, 0, 0, 1 }), 25.0 / 17);
    /* It does not see the scale, not even where squares of squares are no f32. */
    for (double scale = 1e-30; scale < 1e32; scale *= 1e12) {
        double x[] = { 2 * scale, 0, 0, 0, 0, scale };
        check_ratio("scaled", ratio_of(tape, 2, 3, x), 25.0 / 17);
    }
    CHECK(isnan(ratio_of(tape, 2, 2, (double[4]){ 0 })), "zeros have a ratio");
    CHECK_OK(ctx);
    free(axes);
    kr_tape_destroy(tape);
    kr_ctx_destroy(ctx);
}

TEST(participation_of_moments)
{
    kr_ctx *ctx = kr_test_ctx(0, NULL);
    kr_tape *tape = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    cli_moments m;
    CHECK(cli_moments_open(&m, 4), "no memory");
    /* A cross of eight points around (10, 0, 0, 0): uncentred nearly one direction, centred four. */
    double x[8 * 4] = { 0 };
    for (int i = 0; i < 8; i++) {
        x[i * 4] = 10;
        x[i * 4 + i / 2] += i % 2 ? 1 : -1;
    }
    kr_tensor *rows = kr_cast(tape, kr_from_data(tape, KR_DTYPE_F64, KR_SHAPE(2, 2, 2, 4), x), KR_DTYPE_F32);
    cli_moments_add(&m, tape, kr_slice(tape, rows, 0, 0, 1));
    cli_moments_add(&m, tape, kr_slice(tape, rows, 0, 1, 2));
    CHECK(m.count == 8, "%lld rows", (long long)m.count);
    check_ratio("centred", cli_moments_participation(&m, true), 4);
    check_ratio("uncentred", cli_moments_participation(&m, false), 808.0 * 808 / (802.0 * 802 + 3 * 4));
    cli_moments_clear(&m);
    cli_moments_add(&m, tape, kr_slice(tape, rows, 0, 0, 1));
    CHECK(m.count == 4, "%lld rows after clear", (long long)m.count);
    cli_moments_close(&m);
    CHECK_OK(ctx);
    kr_tape_destroy(tape);
    kr_ctx_destroy(ctx);
}

TEST(participation_of_isotropic_cloud)
{
    /* Normal draws: PR of n rows of d numbers tends to n d / (n + d + 1). */
    enum { ND = 16, NN = 4000 };
    kr_ctx *ctx = kr_test_ctx(0, NULL);
    kr_tape *tape = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    cli_moments m;
    CHECK(cli_moments_open(&m, ND), "no memory");
    cli_moments_add(&m, tape, kr_randn(tape, KR_DTYPE_F32, KR_SHAPE(NN, ND)));
    const double want = (double)NN * ND / (NN + ND + 1),
                 got[] = { cli_moments_participation(&m, false), cli_moments_participation(&m, true) };
    for (int i = 0; i < 2; i++) CHECK(fabs(got[i] - want) < 0.02, "got %g, want about %g", got[i], want);
    cli_moments_close(&m);
    kr_tape_destroy(tape);
    kr_ctx_destroy(ctx);
}

TEST(participation_of_frequencies)
{
    enum { N = 97, D = 6 };
    double table[N * D], energy[N / 2];
    /* A cosine and a sine of the same frequency: each has (N / 2)^2 of it, in every column. */
    for (int f = 1; f <= N / 2; f += 5) {
        for (int t = 0; t < N; t++)
            for (int c = 0; c < D; c++)
                table[t * D + c] = 3 + (c % 2 ? sin(2 * pi * f * t / N) : cos(2 * pi * f * t / N));
        CHECK(cli_dft_energies(N, D, table, energy), "no memory");
        const double want = D * (N / 2.0) * (N / 2.0);
        CHECK(fabs(energy[f - 1] - want) < 1e-9 * want, "frequency %d: %g, want %g", f, energy[f - 1], want);
        CHECK(fabs(cli_spread(N / 2, energy) - 1) < 1e-9, "one frequency: %g", cli_spread(N / 2, energy));
    }
    /* Two of them, alike. */
    for (int t = 0; t < N; t++)
        for (int c = 0; c < D; c++) table[t * D + c] = cos(2 * pi * 7 * t / N) + sin(2 * pi * 30 * t / N + c);
    CHECK(cli_dft_energies(N, D, table, energy), "no memory");
    CHECK(fabs(cli_spread(N / 2, energy) - 2) < 1e-9, "two frequencies: %g", cli_spread(N / 2, energy));
    /* A single symbol that stands out is all frequencies alike. */
    for (int i = 0; i < N * D; i++) table[i] = i == 5 * D;
    CHECK(cli_dft_energies(N, D, table, energy), "no memory");
    CHECK(fabs(cli_spread(N / 2, energy) - N / 2) < 1e-9, "a peak: %g", cli_spread(N / 2, energy));
    /* The highest of an even number of points: -1, 1, -1, 1. */
    double even[4] = { -1, 1, -1, 1 }, two[2];
    CHECK(cli_dft_energies(4, 1, even, two) && fabs(two[0]) < 1e-12 && fabs(two[1] - 16) < 1e-12, "even: %g %g", two[0],
          two[1]);
}

/* The gradient against differences, in f64. */
static void check_gradient(int64_t n, int64_t d, double scale)
{
    kr_ctx *ctx = kr_test_ctx(0, NULL);
    kr_tape *tape = kr_tape_create(ctx, KR_TAPE_GRAD);
    double x[64], got[64], want[64];
    for (int64_t i = 0; i < n * d; i++) x[i] = scale * kr_test_normal();
    kr_tensor *in = kr_input(tape, kr_from_data(tape, KR_DTYPE_F64, KR_SHAPE(n, d), x));
    CHECK(kr_backward(tape, cli_participation(tape, in)) == KR_OK, "backward");
    if (!kr_ctx_failed(ctx)) kr_tensor_read(kr_grad(in), KR_DTYPE_F64, got, n * d);
    for (int64_t i = 0; i < n * d; i++) {
        const double kept = x[i], h = 1e-5 * scale;
        double y[2];
        for (int side = 0; side < 2; side++) {
            x[i] = kept + (side ? h : -h);
            y[side] = kr_item(cli_participation(tape, kr_from_data(tape, KR_DTYPE_F64, KR_SHAPE(n, d), x)));
        }
        x[i] = kept;
        want[i] = (y[1] - y[0]) / (2 * h);
    }
    /* Central differences err by h^2 and by rounding / h: about 1e-10 of the largest. */
    const kr_shape shape = KR_SHAPE(n, d);
    CHECK_CLOSE("gradient", got, want, n * d, &shape, 1e-7, 1e-30);
    CHECK_OK(ctx);
    kr_tape_destroy(tape);
    kr_ctx_destroy(ctx);
}

TEST(participation_gradient)
{
    check_gradient(7, 4, 1);
    check_gradient(3, 8, 1);
    check_gradient(5, 5, 1e-12); /* of a size whose fourth powers would be lost in f32 */
    check_gradient(2, 3, 1e6);
}
