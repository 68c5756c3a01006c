/* test_transfers.c - a tensor's elements on their way: any type, layout and size, from the caller's memory and to it, on
 * the processor and on devices alike; and plain pointers to device memory. */
#include "base/device_memory.h"
#include "base/hash.h"
#include "device/device.h"
#include "tests/harness.h"

/* The test's own devices, whatever KR_DEVICE says: at once, late, and the processor. */
static const char *const devices[] = { "cpu", "mock", "mock:1" };
enum { NDEVICES = 3 };

static kr_ctx *open_ctx(const char *device)
{
    kr_ctx_options options;
    kr_ctx_options_init(&options);
    options.device = device;
    options.threads = 1;
    kr_ctx *ctx = kr_ctx_create(&options);
    CHECK_OK(ctx);
    return ctx;
}

/* Numbers that every type holds: from -120 to 120. */
static double number(int64_t i)
{
    return (double)(i * 7919 % 241 - 120);
}

static void fill(kr_dtype dtype, void *to, int64_t n)
{
    for (int64_t i = 0; i < n; i++) switch (dtype) {
        case KR_DTYPE_F64: ((double *)to)[i] = number(i); break;
        case KR_DTYPE_F32: ((float *)to)[i] = (float)number(i); break;
        case KR_DTYPE_I64: ((int64_t *)to)[i] = (int64_t)number(i); break;
        case KR_DTYPE_I32: ((int32_t *)to)[i] = (int32_t)number(i); break;
        default: break;
        }
}

/* Through every pair of types, there and back, from nothing to several pieces. */
TEST(transfers_between_all_types)
{
    static const int64_t counts[] = { 0, 1, 63, 100000, 600001 };
    static const kr_dtype near_types[] = { KR_DTYPE_F64, KR_DTYPE_F32, KR_DTYPE_I64, KR_DTYPE_I32 };
    for (int d = 0; d < NDEVICES; d++) {
        kr_ctx *ctx = open_ctx(devices[d]);
        kr_tape *t = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
        for (size_t c = 0; c < sizeof counts / sizeof *counts - (size_t)kr_test_quick(); c++) {
            const int64_t n = counts[c];
            char *in = malloc((size_t)n * 8 + 1);
            double *out = calloc((size_t)n + 1, sizeof *out);
            if (!in || !out) exit(2);
            for (int near = 0; near < 4; near++) {
                fill(near_types[near], in, n);
                for (int type = KR_DTYPE_F32; type <= KR_DTYPE_I64; type++) {
                    kr_tensor *x = kr_new(t, (kr_dtype)type, KR_SHAPE(n));
                    kr_tensor_write(x, near_types[near], in, n);
                    CHECK(kr_tensor_read(x, KR_DTYPE_F64, out, n) == KR_OK, "%s", kr_ctx_message(ctx));
                    int64_t i = 0;
                    while (i < n && out[i] == number(i)) i++;
                    CHECK(i == n, "%s: %s into %s: element %lld of %lld is %g, not %g", devices[d],
                          kr_dtype_name(near_types[near]), kr_dtype_name((kr_dtype)type), (long long)i, (long long)n,
                          out[i < n ? i : 0], number(i));
                    kr_tape_reset(t);
                }
            }
            free(in);
            free(out);
        }
        CHECK_OK(ctx);
        kr_tape_destroy(t);
        kr_ctx_destroy(ctx);
    }
}

/* Views of any strides, small and larger than a piece, element by element and as a whole. */
TEST(transfers_of_views)
{
    for (int d = 0; d < NDEVICES; d++)
        for (int large = 0; large < 2; large++) {
            kr_ctx *ctx = open_ctx(devices[d]);
            kr_tape *t = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
            const int64_t na = large ? 700 : 5, nb = large ? 300 : 3, nc = 4;
            double *values = malloc((size_t)(na * nb * nc) * sizeof *values);
            if (!values) exit(2);
            for (int64_t i = 0; i < na * nb * nc; i++) values[i] = number(i);
            kr_tensor *x = kr_from_data(t, KR_DTYPE_F64, KR_SHAPE(na, nb, nc), values);
            kr_tensor *y = kr_flip(t, kr_slice(t, kr_permute(t, x, KR_AXES(2, 1, 0)), 2, 1, na), 0);
            double *got = kr_test_copy(y);
            int64_t bad = 0;
            for (int64_t c = 0; c < nc; c++)
                for (int64_t b = 0; b < nb; b++)
                    for (int64_t a = 1; a < na; a++) bad += *got++ != values[(a * nb + b) * nc + (nc - 1 - c)];
            CHECK(bad == 0, "%s: %lld elements of a view are wrong", devices[d], (long long)bad);
            const int64_t at[] = { 1, 2, 3 };
            CHECK(kr_tensor_at(y, at) == values[(4 * nb + 2) * nc + 2], "%s: one element", devices[d]);

            /* the caller's memory by strides, borrowed, and so copied on a device */
            const int64_t strides[] = { 1, nc };
            kr_tensor *lent = kr_view_data(t, KR_DTYPE_F64, KR_SHAPE(nc, na * nb), strides, values);
            got = kr_test_copy(lent);
            for (int64_t c = 0; c < nc; c++)
                for (int64_t i = 0; i < na * nb; i++) bad += *got++ != values[i * nc + c];
            CHECK(bad == 0, "%s: %lld elements of a lent view are wrong", devices[d], (long long)bad);
            CHECK_OK(ctx);
            free(values);
            kr_tape_destroy(t);
            kr_ctx_destroy(ctx);
        }
}

/* A plain pointer into device memory is what tensors and files are read from and written to. */
TEST(transfers_by_plain_pointers)
{
    enum { N = 300001 };
    for (int d = 0; d < NDEVICES; d++) {
        kr_ctx *ctx = open_ctx(devices[d]);
        kr_tensor *a = kr_param_create(ctx, KR_DTYPE_F32, KR_SHAPE(N)),
                  *b = kr_param_create(ctx, KR_DTYPE_F64, KR_SHAPE(N));
        kr_param_normal(a, 0, 1);
        float *values = kr_test_copy(a);
        CHECK(kr_on_device(ctx, kr_tensor_data(a)) == (d > 0) && !kr_on_device(ctx, values),
              "host and device are mistaken");
        CHECK(kr_param_write(b, KR_DTYPE_F32, kr_tensor_data(a), N) == KR_OK, "%s", kr_ctx_message(ctx));
        const double *wide = kr_test_copy(b);
        int64_t i = 0;
        while (i < N && wide[i] == (double)values[i]) i++;
        CHECK(i == N, "%s: from device to device: element %lld is another", devices[d], (long long)i);
        CHECK(kr_tensor_read(a, KR_DTYPE_F64, kr_tensor_data(b), N) == KR_OK, "%s", kr_ctx_message(ctx));
        wide = kr_test_copy(b);
        for (i = 0; i < N && wide[i] == (double)values[i];) i++;
        CHECK(i == N, "%s: read into device memory: element %lld is another", devices[d], (long long)i);
        for (size_t bytes = 0; bytes < 70; bytes++)
            CHECK(kr_hash_at(ctx, 1, kr_tensor_data(a), bytes) == kr_hash_bytes(1, values, bytes), "hash of %zu",
                  bytes);
        CHECK(kr_hash_at(ctx, 1, kr_tensor_data(a), 4 * N) == kr_hash_bytes(1, values, 4 * N),
              "hash of several pieces");
        CHECK_OK(ctx);
        kr_param_destroy(a);
        kr_param_destroy(b);
        kr_ctx_destroy(ctx);
    }
}

/* Where the first NaN is, a sum of squares, an exchange: what kernels leave for the host. */
TEST(results_of_kernels)
{
    enum { N = 300000 };
    for (int d = 0; d < NDEVICES; d++) {
        kr_ctx *ctx = open_ctx(devices[d]);
        kr_tensor *a = kr_param_create(ctx, KR_DTYPE_F32, KR_SHAPE(N)),
                  *b = kr_param_create(ctx, KR_DTYPE_F32, KR_SHAPE(N));
        kr_param_normal(a, 0, 1);
        kr_param_fill(b, 2);
        const float *values = kr_test_copy(a);
        int64_t first = 0;
        CHECK(kr_find_not_finite(ctx, KR_DTYPE_F32, kr_tensor_data(a), N, &first) && first == -1, "%lld",
              (long long)first);
        CHECK(kr_swap_floats(ctx, kr_tensor_data(a), kr_tensor_data(b), N * sizeof(float)), "no exchange");
        CHECK(memcmp(kr_test_copy(b), values, N * sizeof(float)) == 0, "%s: what is exchanged", devices[d]);
        CHECK(((float *)kr_test_copy(a))[N - 1] == 2, "%s: the other side of an exchange", devices[d]);
        kr_test_put(b, N - 7, INFINITY);
        CHECK(kr_find_not_finite(ctx, KR_DTYPE_F32, kr_tensor_data(b), N, &first) && first == N - 7, "%lld",
              (long long)first);
        const float near[3] = { 1, NAN, 1 };
        CHECK(kr_find_not_finite(ctx, KR_DTYPE_F32, near, 3, &first) && first == 1, "near: %lld", (long long)first);
        CHECK_OK(ctx);
        kr_param_destroy(a);
        kr_param_destroy(b);
        kr_ctx_destroy(ctx);
    }
}

/* Integers lie still, whatever is queued: made, used, and made again in scopes and after resets. */
TEST(integers_are_not_overtaken)
{
    for (int d = 0; d < NDEVICES; d++) {
        kr_ctx *ctx = open_ctx(devices[d]);
        kr_tape *t = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
        kr_tensor *table = kr_param_create(ctx, KR_DTYPE_F32, KR_SHAPE(1000, 3));
        kr_tensor *sum = kr_param_create(ctx, KR_DTYPE_F32, KR_SHAPE(1, 3));
        kr_param_fill(table, 1);
        for (int i = 0; i < 300; i++) kr_test_put(table, 3 * i, i);
        for (int step = 0; step < 300; step++) {
            const kr_scope scope = kr_no_grad_begin(t);
            const int32_t id = step;
            kr_tensor *row = kr_embedding(t, table, kr_from_data(t, KR_DTYPE_I32, KR_SHAPE(1), &id));
            kr_tensor *both = kr_add(t, sum, row);
            kr_no_grad_end(t, scope, KR_KEEP(&both));
            CHECK(kr_tensor_read(both, KR_DTYPE_F32, kr_tensor_data(sum), 3) == KR_OK, "%s", kr_ctx_message(ctx));
            if (step % 7 == 0) kr_tape_reset(t);
        }
        const float *got = kr_test_copy(sum);
        CHECK(got[0] == 299 * 300 / 2 && got[1] == 300 && got[2] == 300, "%s: %g, %g, %g", devices[d], (double)got[0],
              (double)got[1], (double)got[2]);
        /* a cast to integers is read by the host when it has run */
        kr_tensor *ids = kr_cast(t, kr_scale(t, kr_full(t, KR_DTYPE_F32, KR_SHAPE(4), 21), 2), KR_DTYPE_I64);
        kr_tensor *rows = kr_embedding(t, table, ids);
        CHECK(((float *)kr_test_copy(rows))[9] == 42, "%s: a row by a number that was computed", devices[d]);
        CHECK_OK(ctx);
        kr_tape_destroy(t);
        kr_param_destroy(table);
        kr_param_destroy(sum);
        kr_ctx_destroy(ctx);
    }
}
