/* test_cuda_decode.c - decode kernels on a device with products rounded to bf16: norm, matrix product, convolution, against
 * the f64 reference; the core with infinite values.
 *
 * Errors are of whole tensors, |got - want| / |want|: each operand is rounded once, 2^-9 / 3^(1/2) = 1.1e-3 of it, which a
 * sum of products keeps; BOUND allows both operands and a sum with a residual.
 */
#include "kernels/args/decode_args.h"
#include "tests/kernels/conformance.h"

static const double BOUND = 4e-3;

enum { MOST = 12, HEAD = -1 };

typedef struct rows {
    int64_t nm, nn, nk, nc; /* nc 0: a base instead of a convolution; HEAD: neither */
    bool is_16bit;          /* x is bf16, and its squares are given */
} rows;

/* One of each operand and result of the kernel. */
typedef struct job {
    kr_decode_linear_args args;
    int64_t counts[MOST];
    size_t fields[MOST];
    double *exact[MOST];
    float *single[MOST];
    uint16_t *half[MOST];
    bool is_output[MOST];
    int n;
} job;

static uint16_t bits_of(double x)
{
    const float f = (float)x;
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static double widened(uint16_t half)
{
    const uint32_t bits = (uint32_t)half << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return (double)f;
}

/* is_16bit: values of bf16, stored so on the device; for weights also in the reference. */
static int add(job *j, size_t field, int64_t count, double low, double high, bool is_16bit, bool is_output)
{
    const int i = j->n++;
    j->fields[i] = field;
    j->counts[i] = count;
    j->is_output[i] = is_output;
    j->exact[i] = malloc((size_t)count * sizeof(double));
    j->single[i] = malloc((size_t)count * sizeof(float));
    j->half[i] = is_16bit ? malloc((size_t)count * sizeof(uint16_t)) : NULL;
    if (!j->exact[i] || !j->single[i] || (is_16bit && !j->half[i])) exit(2);
    for (int64_t e = 0; e < count; e++) {
        double x = (double)(float)kr_test_uniform(low, high);
        if (is_16bit) x = widened(j->half[i][e] = bits_of(x));
        j->exact[i][e] = x;
        j->single[i][e] = (float)x;
    }
    return i;
}

#define ADD(j, name, count, low, high, is_16bit, is_output)                                                            \
    add(j, offsetof(kr_decode_linear_args, name), count, low, high, is_16bit, is_output)

static job make(rows n)
{
    job j = { .args = { .nm = n.nm,
                        .nn = n.nn,
                        .nk = n.nk,
                        .ng = 1,
                        .x.row = n.nk + 16,
                        .w.row = n.nk,
                        .base.row = n.nn,
                        .y.row = n.nn + (n.nc == HEAD ? 3 : 0),
                        .taps.row = 4,
                        .has_norm = true,
                        .eps = 1e-5,
                        .conv_from = n.nc > 0 ? 5 : 0,
                        .nc = n.nc > 0 ? n.nc : 0,
                        .nt = 4 } };
    ADD(&j, y.data, n.nm * j.args.y.row, 7, 8, false, true);
    ADD(&j, x.data, n.nm * j.args.x.row, -2, 2, n.is_16bit, false);
    ADD(&j, w.data, n.nn * n.nk, -1, 1, true, false);
    ADD(&j, bias, n.nn, -1, 1, false, false);
    if (n.nc > 0) {
        ADD(&j, window, n.nm * n.nc * 4, -2, 2, false, true);
        ADD(&j, taps.data, n.nc * 4, -1, 1, false, false);
    } else if (n.nc == 0) {
        ADD(&j, base.data, n.nm * n.nn, -2, 2, false, false);
    }
    if (n.is_16bit) {
        j.args.nsquares = n.nk / 8;
        ADD(&j, squares, n.nm * j.args.nsquares, 4, 12, false, false);
    } else {
        ADD(&j, gain, n.nk, 0.5, 2, false, false);
    }
    return j;
}

static void drop(job *j)
{
    for (int i = 0; i < j->n; i++) {
        free(j->exact[i]);
        free(j->single[i]);
        free(j->half[i]);
    }
}

/* Also sets the dtype of a view. */
static void point(kr_decode_linear_args *args, size_t field, void *to, kr_dtype dtype)
{
    kr_operand *const views[] = { &args->x, &args->z, &args->w, &args->base, &args->y, &args->taps };
    memcpy((char *)args + field, &to, sizeof to);
    for (size_t i = 0; i < sizeof views / sizeof *views; i++)
        if ((char *)views[i] == (char *)args + field) views[i]->dtype = dtype;
}

static void run_exact(const job *j)
{
    const kr_kernel *kernel = kr_kernel_named("decode_linear");
    kr_decode_linear_args args = j->args;
    for (int i = 0; i < j->n; i++) {
        const bool is_weight = j->fields[i] == offsetof(kr_decode_linear_args, w);
        if (is_weight) point(&args, j->fields[i], j->half[i], KR_DTYPE_BF16);
        else point(&args, j->fields[i], j->exact[i], KR_DTYPE_F64);
    }
    kernel->run(kr_runnable_set(0), KR_REAL_F64, &args);
}

static void in_bf16(kr_exec *exec)
{
    exec->precision = KR_PRECISION_BF16;
}

/* Runs the first `nm` rows, and reads the results as floats. */
static void run_on_device(const job *j, int64_t nm)
{
    kr_decode_linear_args args = j->args;
    kr_span spans[MOST];
    const bool takes_bf16 = device_kernels()->accepts.decode_linear_x & KR_DTYPE_BIT(KR_DTYPE_BF16);
    args.nm = nm;
    for (int i = 0; i < j->n; i++) {
        const bool is_x = j->fields[i] == offsetof(kr_decode_linear_args, x),
                   half = j->half[i] && (takes_bf16 || !is_x);
        void *data = half ? (void *)j->half[i] : (void *)j->single[i];
        spans[i] =
            (kr_span){ j->fields[i], 0, data, (size_t)j->counts[i] * (half ? 2 : sizeof(float)), j->is_output[i] };
        point(&args, j->fields[i], data, half ? KR_DTYPE_BF16 : KR_DTYPE_F32);
    }
    device_change_exec(in_bf16);
    CHECK(device_run_count(kr_kernel_named("decode_linear"), KR_REAL_F32, (char *)&args, spans, j->n, "in bf16"),
          "wrote past its scratch");
    device_change_exec(NULL);
}

static void compare(rows n, const job *j, int i)
{
    double error = 0, size = 0;
    for (int64_t e = 0; e < j->counts[i]; e++) {
        const double away = (double)j->single[i][e] - j->exact[i][e];
        error += away * away;
        size += j->exact[i][e] * j->exact[i][e];
    }
    CHECK(sqrt(error) <= BOUND * sqrt(size), "m %lld n %lld k %lld conv %lld half %d, result %d: %g of %g",
          (long long)n.nm, (long long)n.nn, (long long)n.nk, (long long)n.nc, (int)n.is_16bit, i, sqrt(error),
          sqrt(size));
}

TEST(values_of_rows_rounded_to_bf16)
{
    static const rows sizes[] = { { 9, 40, 64, 20, false },    { 16, 33, 72, 0, true },
                                  { 17, 100, 264, 60, false }, { 32, 2600, 768, 90, false },
                                  { 31, 96, 1536, 0, true },   { 40, 2570, 96, 30, false },
                                  { 64, 50, 520, 40, true },   { 70, 24, 1032, 0, false },
                                  { 130, 17, 40, 0, true },    { 12, 48, 2568, 0, false },
                                  { 64, 48, 5128, 0, true },   { 64, 2600, 768, 90, false },
                                  { 50, 48, 1536, 0, true },   { 40, 2564, 768, 0, true } };
    if (!device_kernels()) SKIP(device_why_not());
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        job j = make(sizes[i]);
        run_on_device(&j, sizes[i].nm);
        run_exact(&j);
        for (int o = 0; o < j.n; o++)
            if (j.is_output[o]) compare(sizes[i], &j, o);
        drop(&j);
    }
}

TEST(rows_rounded_to_bf16_are_the_same_alone_and_among_others)
{
    static const rows sizes[] = { { 64, 40, 520, 0, true },  { 33, 2600, 264, 0, false },
                                  { 70, 33, 768, 0, false }, { 64, 2600, 768, 0, false },
                                  { 64, 48, 1536, 0, true }, { 64, 17001, 256, HEAD, false } };
    if (!device_kernels()) SKIP(device_why_not());
    if (strcmp(device_kernels()->name, "cuda") != 0) SKIP("this device rounds nothing");
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        job j = make(sizes[i]);
        const size_t bytes = (size_t)(16 * j.args.y.row) * sizeof(float);
        run_on_device(&j, sizes[i].nm);
        float *among = malloc(bytes);
        if (!among) exit(2);
        memcpy(among, j.single[0], bytes);
        memset(j.single[0], 0, bytes);
        run_on_device(&j, 16);
        for (int64_t m = 0; m < 16; m++) /* elements between rows are not written */
            CHECK(memcmp(among + m * j.args.y.row, j.single[0] + m * j.args.y.row,
                         (size_t)sizes[i].nn * sizeof(float)) == 0,
                  "m %lld n %lld, row %lld: other bits", (long long)sizes[i].nm, (long long)sizes[i].nn, (long long)m);
        free(among);
        drop(&j);
    }
}

/* As many columns as a vocabulary, at least 128 per multiprocessor: wgmma kernels or cuBLASLt. Elements between rows stay
 * unchanged. */
TEST(heads_norm_their_rows)
{
    static const rows sizes[] = { { 64, 17001, 256, HEAD, false },
                                  { 9, 17100, 512, HEAD, false },
                                  { 70, 16960, 256, HEAD, false },
                                  { 33, 16960, 264, HEAD, false } };
    if (!device_kernels()) SKIP(device_why_not());
    if (strcmp(device_kernels()->name, "cuda") != 0) SKIP("this device has one kernel for them all");
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        job j = make(sizes[i]);
        run_on_device(&j, sizes[i].nm);
        run_exact(&j);
        compare(sizes[i], &j, 0);
        drop(&j);
    }
}

/* ---- the core ---- */

/* Everything positive, and x of one row p infinite: y is infinite there only; columns past the end do not count. */
TEST(an_infinite_value_is_one_of_its_own_row)
{
    enum { NB = 2, NH = 3, NP = 9, NR = 100, AT = 5, STRIDE = 2 * NH * NP + 2 * NR };
    static float row_of[NB * STRIDE], state[NB * NH * NP * NR], y[NB * NH * NP], of_head[NH] = { 0.1f, 0.2f, 0.3f };
    if (!device_kernels()) SKIP(device_why_not());
    for (int i = 0; i < NB * STRIDE; i++) row_of[i] = (float)kr_test_uniform(0.1, 1);
    for (int i = 0; i < NB * NH * NP * NR; i++) state[i] = 1;
    row_of[AT] = INFINITY;
    const kr_decode_ssd_args args = { .nb = NB,
                                      .nh = NH,
                                      .np = NP,
                                      .ng = 1,
                                      .nr = NR,
                                      .x = { row_of, KR_DTYPE_F32, STRIDE },
                                      .b = { row_of + NH * NP, KR_DTYPE_F32, STRIDE },
                                      .c = { row_of + NH * NP + NR, KR_DTYPE_F32, STRIDE },
                                      .dt = { row_of + NH * NP + 2 * NR, KR_DTYPE_F32, STRIDE },
                                      .y = { y, KR_DTYPE_F32, NH * NP },
                                      .dt_bias = of_head,
                                      .a_log = of_head,
                                      .d = of_head,
                                      .dt_max = INFINITY,
                                      .state = state };
    static const size_t in_rows[] = { offsetof(kr_decode_ssd_args, x), offsetof(kr_decode_ssd_args, b),
                                      offsetof(kr_decode_ssd_args, c), offsetof(kr_decode_ssd_args, dt) };
    static const size_t of_heads[] = { offsetof(kr_decode_ssd_args, dt_bias), offsetof(kr_decode_ssd_args, a_log),
                                       offsetof(kr_decode_ssd_args, d) };
    kr_span spans[9] = { { offsetof(kr_decode_ssd_args, state), 0, state, sizeof state, true },
                         { offsetof(kr_decode_ssd_args, y), 0, y, sizeof y, true } };
    int count = 2;
    for (int i = 0; i < 4; i++) {
        float *from;
        memcpy(&from, (const char *)&args + in_rows[i], sizeof from);
        spans[count++] =
            (kr_span){ in_rows[i], 0, from, sizeof row_of - (size_t)((char *)from - (char *)row_of), false };
    }
    for (int i = 0; i < 3; i++) spans[count++] = (kr_span){ of_heads[i], 0, of_head, sizeof of_head, false };
    kr_decode_ssd_args args_copy = args;
    CHECK(device_run_count(kr_kernel_named("decode_ssd"), KR_REAL_F32, (char *)&args_copy, spans, count, "infinite"),
          "scratch");
    for (int i = 0; i < NB * NH * NP; i++)
        CHECK(i == AT ? isinf(y[i]) && y[i] > 0 : isfinite(y[i]), "y[%d] = %g", i, (double)y[i]);
}
