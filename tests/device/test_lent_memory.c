/* test_lent_memory.c - device memory of the caller as tensors and gradients, without a copy, on the mock device. */
#include "tests/mock_device.h"

#include "tests/harness.h"

#include "device/device.h"

enum { N = 48 };

static kr_ctx *on(const char *device)
{
    kr_ctx_options o;
    kr_ctx_options_init(&o);
    o.device = device;
    o.threads = 1;
    return kr_ctx_create(&o);
}

/* Device memory of the program with these values. */
static float *lend(kr_ctx *ctx, const float *values)
{
    float *p = mock_memory_alloc(N * sizeof *p);
    const char *why = ctx->device->vtable->upload(ctx->device, p, values, N * sizeof *p);
    CHECK(!why, "%s", why);
    return p;
}

static void read_back(kr_ctx *ctx, float *to, const float *p)
{
    CHECK(kr_ctx_wait(ctx) == KR_OK && !ctx->device->vtable->download(ctx->device, to, p, N * sizeof *p), "%s",
          kr_ctx_message(ctx));
}

static void count_kernels(void *user, const char *slot)
{
    *(int *)user += strcmp(slot, KR_PROBE_WAIT) != 0;
}

static void check_device(const char *device)
{
    kr_ctx *ctx = on(device);
    kr_tape *t = kr_tape_create(ctx, KR_TAPE_GRAD);
    float values[N], got[N];
    for (int i = 0; i < N; i++) values[i] = (float)i - 7.5f;
    float *x = lend(ctx, values), *w = lend(ctx, values), *g_x = lend(ctx, values), *g_w = lend(ctx, values);
    int kernels = 0;
    ctx->device->probe = count_kernels;
    ctx->device->probe_user = &kernels;
    const int64_t strides[2] = { 1, 6 };
    kr_tensor *constant = kr_view_data(t, KR_DTYPE_F32, KR_SHAPE(6, 8), strides, x);
    const kr_view leaf = { w, KR_DTYPE_F32, 2, { 6, 8 }, { 8, 1 } };
    kr_tensor *w_ij = kr_input_view(t, &leaf),
              *x_ij = kr_input_view(t, &(kr_view){ x, KR_DTYPE_F32, 2, { 6, 8 }, { 1, 6 } });
    CHECK(kr_tensor_data(constant) == x && kr_tensor_data(w_ij) == w && kernels == 0, "%d kernels have copied",
          kernels);
    CHECK(!kr_tensor_is_host(constant) && kr_tensor_at(constant, (int64_t[]){ 2, 3 }) == values[2 + 3 * 6],
          "an element");

    kr_tensor *y = kr_add(t, kr_mul(t, kr_mul(t, constant, w_ij), x_ij), w_ij);
    kr_tensor *leaves[2] = { x_ij, w_ij };
    const kr_view into[2] = { { g_x, KR_DTYPE_F32, 2, { 6, 8 }, { 1, 6 } },
                              { g_w, KR_DTYPE_F32, 2, { 6, 8 }, { 8, 1 } } };
    CHECK(kr_backward_into(t, 1, &y, NULL, 2, leaves, into, false) == KR_OK, "%s", kr_ctx_message(ctx));
    double want_x[N], want_w[N], got_x[N], got_w[N];
    for (int i = 0; i < 6; i++)
        for (int j = 0; j < 8; j++) {
            const double a = values[i + 6 * j], b = values[8 * i + j];
            want_x[i + 6 * j] = a * b;
            want_w[8 * i + j] = a * a + 1;
        }
    read_back(ctx, got, g_x);
    for (int i = 0; i < N; i++) got_x[i] = got[i];
    read_back(ctx, got, g_w);
    for (int i = 0; i < N; i++) got_w[i] = got[i];
    CHECK_CLOSE("g_x", got_x, want_x, N, NULL, 0, 0); /* halves and quarters of small numbers: exact in f32 */
    CHECK_CLOSE("g_w", got_w, want_w, N, NULL, 0, 0);
    read_back(ctx, got, x);
    CHECK(memcmp(got, values, sizeof got) == 0, "the lent memory has changed");
    CHECK_OK(ctx);
    kr_tape_destroy(t);
    float *const all[] = { x, w, g_x, g_w };
    for (int i = 0; i < 4; i++) mock_memory_free(all[i]);
    kr_ctx_destroy(ctx);
}

TEST(device_memory_is_lent_without_a_copy)
{
    check_device("mock");
    check_device("mock:1");
}

/* Memory of a parameter of another context on the same device. */
TEST(memory_of_another_context_of_the_device_is_lent)
{
    kr_ctx *one = on("mock"), *two = on("mock");
    kr_tensor *p = kr_param_create(one, KR_DTYPE_F32, KR_SHAPE(N));
    IGNORE(kr_param_fill(p, 3));
    CHECK(kr_ctx_wait(one) == KR_OK, "%s", kr_ctx_message(one));
    kr_tape *t = kr_tape_create(two, KR_TAPE_NO_GRAD);
    kr_tensor *x = kr_view_data(t, KR_DTYPE_F32, KR_SHAPE(N), NULL, kr_tensor_data(p));
    CHECK(kr_tensor_data(x) == kr_tensor_data(p), "it was copied");
    CHECK(kr_item(kr_sum(t, x, KR_ALL_AXES, false)) == 3 * N, "%s", kr_ctx_message(two));
    kr_tape_destroy(t);
    kr_param_destroy(p);
    kr_ctx_destroy(two);
    kr_ctx_destroy(one);
}

TEST(host_memory_and_integers_are_copied)
{
    kr_ctx *ctx = on("mock:1");
    kr_tape *t = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    float values[N];
    for (int i = 0; i < N; i++) values[i] = (float)i;
    kr_tensor *x = kr_view_data(t, KR_DTYPE_F32, KR_SHAPE(N), NULL, values);
    values[1] = 100;
    CHECK(kr_on_device(ctx, kr_tensor_data(x)) && kr_tensor_at(x, (int64_t[]){ 1 }) == 1, "host memory is not copied");
    const int32_t ids[N] = { 5, 6, 7 };
    float bits[N];
    memcpy(bits, ids, sizeof bits);
    float *far = lend(ctx, bits);
    kr_tensor *id = kr_view_data(t, KR_DTYPE_I32, KR_SHAPE(N), NULL, far);
    CHECK(kr_tensor_is_host(id) && kr_tensor_at(id, (int64_t[]){ 2 }) == 7, "integers of the device");
    CHECK_OK(ctx);
    kr_tape_destroy(t);
    mock_memory_free(far);
    kr_ctx_destroy(ctx);
}

TEST(lent_memory_errors)
{
    kr_ctx *ctx = on("mock"), *other = on("mock:3");
    kr_tape *t = kr_tape_create(ctx, KR_TAPE_GRAD);
    kr_tensor *p = kr_param_create(ctx, KR_DTYPE_F32, KR_SHAPE(N)),
              *foreign = kr_param_create(other, KR_DTYPE_F32, KR_SHAPE(N));
    char *near = kr_tensor_data(p);
    CHECK(!kr_view_data(t, KR_DTYPE_F32, KR_SHAPE(4), NULL, near + 2), "an unaligned address");
    CHECK_ERROR(ctx, KR_ERR_ARG, "view_data: the address of data is not a multiple of 4, the size of an element");
    kr_tape_reset(t);
    CHECK(!kr_view_data(t, KR_DTYPE_F32, KR_SHAPE(4), NULL, kr_tensor_data(foreign)), "another device");
    CHECK_ERROR(ctx, KR_ERR_ARG,
                "view_data: data is memory of another device than mock:0 runs at once; copy it there first");
    kr_tape_reset(t);
    kr_view view = { kr_tensor_data(foreign), KR_DTYPE_F32, 1, { N }, { 1 } };
    CHECK(!kr_input_view(t, &view), "another device");
    CHECK_ERROR_HAS(ctx, KR_ERR_ARG, "input_view: data is memory of another device than mock:0");
    kr_tape_reset(t);
    kr_tensor *y = kr_scale(t, p, 2);
    CHECK(kr_backward_into(t, 1, &y, NULL, 1, &p, &view, false) == KR_ERR_ARG, "another device");
    CHECK_ERROR_HAS(ctx, KR_ERR_ARG, "for the gradient of leaf 0 is not memory of the context's device, mock:0");
    kr_tape_destroy(t);
    kr_param_destroy(p);
    kr_param_destroy(foreign);
    kr_ctx_destroy(other);
    kr_ctx_destroy(ctx);
}
