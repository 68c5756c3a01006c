/* test_muon.c - Muon's orthogonalisation: what it makes of singular values, against three plain loops, of each segment
 * by itself, and whatever the shape. */
#include "tests/train/optimizing.h"

#include "device/device.h"
#include "train/optimizer_impl.h"

static const double coefficients[3] = { 3.4445, -4.775, 2.0315 };

static kr_muon muon_of(kr_ctx *ctx, kr_dtype dtype, int64_t rows, int64_t cols)
{
    return (
        kr_muon){ .ctx = ctx, .dtype = dtype, .rows = rows, .cols = cols, .steps = 5, .coefficients = coefficients };
}

/* x [rows cols], in place. */
static void orthogonalise(const kr_muon *muon, double *x)
{
    const int64_t n = muon->rows * muon->cols;
    const size_t bytes = kr_muon_work(muon);
    const size_t element = kr_dtype_bytes(muon->dtype);
    char *near = malloc(bytes), *work = kr_memory_alloc(kr_float_memory(muon->ctx), bytes);
    if (!near || !work) exit(2);
    memset(near, 0xff, bytes); /* NaN: nothing may be read before it is written */
    for (int64_t i = 0; i < n; i++)
        if (muon->dtype == KR_DTYPE_F64) ((double *)(void *)near)[i] = x[i];
        else ((float *)(void *)near)[i] = (float)x[i];
    kr_store(muon->ctx, work, near, bytes);
    kr_fetch(muon->ctx, near, kr_muon_orthogonalise(muon, work), (size_t)n * element);
    for (int64_t i = 0; i < n; i++)
        x[i] =
            muon->dtype == KR_DTYPE_F64 ? ((const double *)(void *)near)[i] : (double)((const float *)(void *)near)[i];
    free(near);
    kr_memory_free(kr_float_memory(muon->ctx), work, bytes);
}

static double *draw(int64_t n)
{
    double *x = malloc((size_t)n * sizeof *x);
    if (!x) exit(2);
    for (int64_t i = 0; i < n; i++) x[i] = (double)(float)kr_test_normal();
    return x;
}

static double *copy(const double *x, int64_t n)
{
    double *y = malloc((size_t)n * sizeof *y);
    if (!y) exit(2);
    return memcpy(y, x, (size_t)n * sizeof *y);
}

/* a [n k] with orthogonal columns, by Gram-Schmidt done twice. */
static double *orthogonal_columns(int64_t n, int64_t k)
{
    double *a = draw(n * k);
    for (int64_t c = 0; c < k; c++)
        for (int pass = 0; pass < 2; pass++) {
            for (int64_t other = 0; other < c; other++) {
                double dot = 0;
                for (int64_t r = 0; r < n; r++) dot += a[r * k + c] * a[r * k + other];
                for (int64_t r = 0; r < n; r++) a[r * k + c] -= dot * a[r * k + other];
            }
            double norm = 0;
            for (int64_t r = 0; r < n; r++) norm += a[r * k + c] * a[r * k + c];
            for (int64_t r = 0; r < n; r++) a[r * k + c] /= sqrt(norm);
        }
    return a;
}

/* U diag(s) V^T. */
static double *with_singular_values(const double *u, const double *s, const double *v, int64_t rows, int64_t cols,
                                    int64_t k)
{
    double *x = calloc((size_t)(rows * cols), sizeof *x);
    if (!x) exit(2);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < cols; c++)
            for (int64_t e = 0; e < k; e++) x[r * cols + c] += u[r * k + e] * s[e] * v[c * k + e];
    return x;
}

static double five_times(double s)
{
    for (int i = 0; i < 5; i++) s = coefficients[0] * s + coefficients[1] * pow(s, 3) + coefficients[2] * pow(s, 5);
    return s;
}

/* Singular vectors stay, singular values go through the polynomial five times: into the band between its turning
 * points, 0.682 and 1.203, down to a hundredth of the norm. */
static void closed_form(kr_ctx *ctx, kr_dtype dtype, int64_t rows, int64_t cols)
{
    const int64_t k = rows < cols ? rows : cols;
    double *u = orthogonal_columns(rows, k), *v = orthogonal_columns(cols, k), *s = draw(k), *want = draw(k), norm = 0;
    for (int64_t e = 0; e < k; e++) {
        s[e] = exp(kr_test_uniform(-3, 0));
        norm += s[e] * s[e];
    }
    for (int64_t e = 0; e < k; e++) {
        want[e] = five_times(s[e] / sqrt(norm));
        CHECK(s[e] / sqrt(norm) < 0.01 || (want[e] > 0.68 && want[e] < 1.21), "%g becomes %g", s[e] / sqrt(norm),
              want[e]);
    }
    double *x = with_singular_values(u, s, v, rows, cols, k), *y = with_singular_values(u, want, v, rows, cols, k);
    const kr_muon muon = muon_of(ctx, dtype, rows, cols);
    orthogonalise(&muon, x);
    char what[64];
    snprintf(what, sizeof what, "%s [%lld, %lld]", kr_dtype_name(dtype), (long long)rows, (long long)cols);
    /* a rounding of X is amplified as small singular values are: by at most 3.4445^5 */
    CHECK_CLOSE(what, x, y, rows * cols, NULL, 485 * (dtype == KR_DTYPE_F64 ? 0x1p-52 : 0x1p-23), 1);
    free(u);
    free(v);
    free(s);
    free(want);
    free(x);
    free(y);
}

TEST(muon_maps_singular_values)
{
    static const int64_t shapes[][2] = { { 1, 1 }, { 1, 7 }, { 7, 1 }, { 8, 8 }, { 5, 17 }, { 40, 24 }, { 33, 70 } };
    kr_ctx *ctx = kr_test_ctx(2, NULL);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        closed_form(ctx, KR_DTYPE_F64, shapes[i][0], shapes[i][1]);
        closed_form(ctx, KR_DTYPE_F32, shapes[i][0], shapes[i][1]);
    }
    CHECK_OK(ctx);
    kr_ctx_destroy(ctx);
}

TEST(muon_is_as_three_plain_loops)
{
    static const int64_t shapes[][2] = { { 1, 3 }, { 3, 1 }, { 16, 16 }, { 17, 9 }, { 9, 65 }, { 96, 48 } };
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const int64_t rows = shapes[i][0], cols = shapes[i][1];
        double *x = draw(rows * cols), *y = copy(x, rows * cols), *z = copy(x, rows * cols);
        const kr_muon f64 = muon_of(ctx, KR_DTYPE_F64, rows, cols), f32 = muon_of(ctx, KR_DTYPE_F32, rows, cols);
        plain_orthogonalise(x, rows, cols, 5, coefficients);
        orthogonalise(&f64, y);
        orthogonalise(&f32, z);
        CHECK_CLOSE("f64", y, x, rows * cols, NULL, 485 * 0x1p-52, 1);
        CHECK_CLOSE("f32", z, x, rows * cols, NULL, 485 * 0x1p-23, 1);
        free(x);
        free(y);
        free(z);
    }
    kr_ctx_destroy(ctx);
}

/* Nothing to go by: a matrix of zeros stays one; the size of the gradient does not matter, its direction does. */
TEST(muon_of_zeros_and_of_any_size)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    const kr_muon muon = muon_of(ctx, KR_DTYPE_F32, 6, 10);
    double zero[60] = { 0 }, *x = draw(60), *y = copy(x, 60);
    orthogonalise(&muon, zero);
    for (int i = 0; i < 60; i++) CHECK(zero[i] == 0, "zero becomes %g", zero[i]);
    for (int i = 0; i < 60; i++) y[i] *= 0x1p40; /* exact, and so is its norm: the same bits */
    orthogonalise(&muon, x);
    orthogonalise(&muon, y);
    for (int i = 0; i < 60; i++) CHECK(x[i] == y[i], "%g and %g", x[i], y[i]);
    free(x);
    free(y);
    kr_ctx_destroy(ctx);
}

TEST(muon_ratios)
{
    static const struct {
        int64_t rows, cols;
        double match, original, inputs;
    } table[] = { { 64, 16, 1.6, 2, 1 }, { 16, 64, 1.6, 1, 2 }, { 25, 25, 1, 1, 1 } };
    for (int i = 0; i < 3; i++) {
        const int64_t r = table[i].rows, c = table[i].cols;
        CHECK(fabs(kr_muon_ratio_of(KR_MUON_RATIO_MATCH_RMS, r, c) - table[i].match) < 1e-15, "match of row %d", i);
        CHECK(kr_muon_ratio_of(KR_MUON_RATIO_ORIGINAL, r, c) == table[i].original, "original of row %d", i);
        CHECK(kr_muon_ratio_of(KR_MUON_RATIO_ORIGINAL_INPUTS, r, c) == table[i].inputs, "inputs of row %d", i);
        CHECK(kr_muon_ratio_of(KR_MUON_RATIO_PLAIN, r, c) == 1, "plain of row %d", i);
    }
}

/* ---- in an optimizer ---- */

static kr_optimizer *optimizer_of(kr_ctx *ctx, kr_params *params, kr_optimizer_kind kind)
{
    kr_optimizer_options o;
    kr_optimizer_options_init(&o);
    o.kind = kind;
    o.weight_decay = 0;
    o.muon_ratio = KR_MUON_RATIO_PLAIN;
    return kr_optimizer_create(ctx, params, &o);
}

/* Rows of AdamW's in a fused weight are stepped to the bits of plain AdamW; each segment of Muon's moves by what its
 * own rows are orthogonalised to, and the whole weight would move otherwise. */
TEST(muon_steps_segments_by_themselves)
{
    enum { ROWS = 24, COLS = 12, FIRST = 6 + 35 + 12 };
    static const int64_t begins[] = { 0, 14, 23, ROWS }, rows[] = { 14, 6, 1 };
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    kr_params *a = optimizing_table(ctx, KR_DTYPE_F32), *b = optimizing_table(ctx, KR_DTYPE_F32);
    kr_optimizer *muon = optimizer_of(ctx, a, KR_OPTIMIZER_MUON), *adamw = optimizer_of(ctx, b, KR_OPTIMIZER_ADAMW);
    double *before = optimizing_values(a), *g = draw(ROWS * COLS), *whole = copy(g, ROWS * COLS);
    kr_tensor *of_a = kr_params_find(a, "in_proj.weight")->tensor, *of_b = kr_params_find(b, "in_proj.weight")->tensor;
    optimizing_give(ctx, of_a, g);
    optimizing_give(ctx, of_b, g);
    kr_optimizer_step(muon, 1, 1);
    kr_optimizer_step(adamw, 1, 1);
    CHECK_OK(ctx);
    const float *x = kr_test_copy(of_a), *y = kr_test_copy(of_b);
    for (int row = 0; row < ROWS; row++) {
        const bool is_dt = row >= 20 && row < 23, same = memcmp(x + COLS * row, y + COLS * row, COLS * sizeof *x) == 0;
        CHECK(same == is_dt, "row %d is %s", row, same ? "AdamW's" : "Muon's");
    }
    double *moved = optimizing_values(a), fallback = 0;
    for (int i = 0; i < ROWS * COLS; i++) moved[FIRST + i] = before[FIRST + i] - moved[FIRST + i];
    plain_orthogonalise(whole, ROWS, COLS, 5, coefficients);
    for (int segment = 0; segment < 3; segment++) {
        const int64_t from = begins[segment] * COLS, n = rows[segment] * COLS;
        plain_orthogonalise(g + from, rows[segment], COLS, 5, coefficients);
        CHECK_CLOSE("a segment", moved + FIRST + from, g + from, n, NULL, 485 * 0x1p-23, 1);
        for (int64_t i = from; i < from + n; i++) fallback = fmax(fallback, fabs(whole[i] - g[i]));
    }
    CHECK(fallback > 0.01, "the whole weight is orthogonalised to the same, but for %g", fallback);
    free(before);
    free(moved);
    free(g);
    free(whole);
    kr_optimizer_destroy(muon);
    kr_optimizer_destroy(adamw);
    kr_params_destroy(a);
    kr_params_destroy(b);
    kr_ctx_destroy(ctx);
}
