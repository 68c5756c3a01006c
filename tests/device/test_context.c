/* test_context.c - what a context tells its log, and the device and the precision that it is given. */
#define _POSIX_C_SOURCE 200809L
#include "tests/harness.h"

typedef struct heard {
    int lines;
    kr_log_level level;
    char text[200];
} heard;

static void listen(void *user, kr_log_level level, const char *text)
{
    heard *h = user;
    h->lines++;
    h->level = level;
    snprintf(h->text, sizeof h->text, "%s", text);
}

TEST(log_tells_kernels_and_threads)
{
    heard h = { 0 };
    kr_ctx_options options;
    kr_ctx_options_init(&options);
    options.isa = "ref";
    options.threads = 2;
    options.log = listen;
    options.log_user = &h;
    kr_ctx *ctx = kr_ctx_create(&options);
    CHECK_OK(ctx);
    char want[200];
    if (kr_test_on_device(ctx))
        snprintf(want, sizeof want, "krait %s: %s, ref kernels, threads 2", kr_version(), kr_ctx_device(ctx));
    else snprintf(want, sizeof want, "krait %s: ref kernels, threads 2", kr_version());
    CHECK(h.lines == 1 && h.level == KR_LOG_INFO && strcmp(h.text, want) == 0, "%d lines, the last: %s", h.lines,
          h.text);
    kr_ctx_destroy(ctx);
}

static kr_ctx *on(const char *device)
{
    kr_ctx_options options;
    kr_ctx_options_init(&options);
    options.device = device;
    options.threads = 1;
    return kr_ctx_create(&options);
}

static void expect_error(const char *device, kr_status status, const char *text)
{
    kr_ctx *ctx = on(device);
    CHECK(kr_ctx_status(ctx) == status && strstr(kr_ctx_message(ctx), text), "%s: (%s) %s", device,
          kr_status_name(kr_ctx_status(ctx)), kr_ctx_message(ctx));
    kr_ctx_clear(ctx);
    CHECK(kr_ctx_failed(ctx), "a context without its device can be used");
    CHECK(kr_tape_create(ctx, KR_TAPE_GRAD) == NULL, "it has a tape");
    kr_ctx_destroy(ctx);
}

TEST(devices_by_name)
{
    kr_ctx *cpu = on("cpu"), *mock = on("mock:1");
    CHECK(strcmp(kr_ctx_device(cpu), "cpu") == 0 && strcmp(kr_ctx_device(mock), "mock:1 runs late") == 0, "%s, %s",
          kr_ctx_device(cpu), kr_ctx_device(mock));
    CHECK(strcmp(kr_ctx_isa(cpu), kr_ctx_isa(mock)) == 0, "%s, %s", kr_ctx_isa(cpu), kr_ctx_isa(mock));
    CHECK(strcmp(kr_ctx_kernel(mock, "ssd"), "mock") == 0, "%s", kr_ctx_kernel(mock, "ssd"));
    CHECK(kr_ctx_device_memory(cpu).peak_bytes == 0 && kr_ctx_device_memory(mock).live_bytes > 0, "device memory");
    kr_ctx_destroy(cpu);
    kr_ctx_destroy(mock);
    CHECK(strcmp(kr_ctx_device(NULL), "none") == 0 && kr_ctx_device_memory(NULL).live_bytes == 0, "no context");
    static const char *const others[] = { "gpu", "cuda:", "cuda:x", "cuda:1x", "cuda0", "cud", "CPU", "cuda:12345" };
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        expect_error(others[i], KR_ERR_ARG, " is not a device; choose one of: cpu, cuda, cuda:N");
    char text[4096];
    const size_t length = kr_devices_text(text, sizeof text);
    CHECK(length == strlen(text) && strncmp(text, "cpu\n", 4) == 0 && strstr(text, "\ncuda") && strstr(text, "mock:1"),
          "%s", text);
    CHECK(kr_devices_text(NULL, 0) == length && kr_devices_text(text, 3) == length && strcmp(text, "cp") == 0, "%s",
          text);
}

TEST(cuda_says_why_not)
{
    kr_ctx *ctx = on("cuda:99");
    CHECK(kr_ctx_failed(ctx) && strstr(kr_ctx_message(ctx), "cuda:99"), "%s", kr_ctx_message(ctx));
    kr_ctx_destroy(ctx);
}

/* After a fault every call repeats the cause, and nothing is lost. */
TEST(faults_stay)
{
    kr_ctx *ctx = on("mock:2");
    kr_tape *t = kr_tape_create(ctx, KR_TAPE_GRAD);
    kr_tensor *w = kr_param_create(ctx, KR_DTYPE_F32, KR_SHAPE(5)), *y = w;
    float five[5] = { 0 };
    for (int i = 0; i < 20; i++) y = kr_mul(t, y, w);
    CHECK(y == NULL, "it did not break");
    const char *text =
        "mock:2 breaks: queueing a kernel: it broke, as it was asked to; the last queued kernel: mul, by mul, "
        "which last made [5]";
    for (int i = 0; i < 2; i++) {
        CHECK(kr_ctx_status(ctx) == KR_ERR_DEVICE && strcmp(kr_ctx_message(ctx), text) == 0, "%s", kr_ctx_message(ctx));
        kr_ctx_clear(ctx);
        kr_tape_reset(t);
        CHECK(kr_mul(t, w, w) == NULL && kr_param_fill(w, 1) == KR_ERR_DEVICE &&
                  kr_param_write(w, KR_DTYPE_F32, five, 5) == KR_ERR_DEVICE &&
                  kr_tensor_read(w, KR_DTYPE_F32, five, 5) == KR_ERR_DEVICE && isnan(kr_tensor_at(w, (int64_t[]){ 0 })),
              "a broken device can be used");
    }
    kr_param_destroy(w);
    kr_tape_destroy(t);
    kr_ctx_destroy(ctx);
}

/* Each allocation of a device context refused in turn. */
TEST(device_contexts_starved)
{
    for (size_t n = 1;; n++) {
        kr_ctx *ctx = on("mock");
        kr_tape *t = kr_tape_create(ctx, KR_TAPE_GRAD);
        kr_ctx_fail_allocation(ctx, n);
        kr_tensor *w = kr_param_create(ctx, KR_DTYPE_F32, KR_SHAPE(3, 4));
        kr_param_normal(w, 0, 1);
        kr_tensor *x = kr_input(t, kr_randn(t, KR_DTYPE_F32, KR_SHAPE(5, 4)));
        kr_tensor *loss = kr_sum(t, kr_tanh(t, kr_linear(t, x, w, NULL)), KR_ALL_AXES, false);
        kr_backward(t, loss);
        kr_zero_grad(w);
        const bool passed = !kr_ctx_failed(ctx);
        CHECK(passed || kr_ctx_status(ctx) == KR_ERR_NOMEM, "allocation %zu: %s", n, kr_ctx_message(ctx));
        kr_param_destroy(w);
        kr_tape_destroy(t);
        kr_ctx_destroy(ctx);
        if (passed) {
            CHECK(n > 8, "%zu allocations", n);
            break;
        }
    }
}

/* ---- precision ---- */

static const char *isa_for_precision; /* NULL: the best */

static kr_ctx *with_precision(kr_precision precision)
{
    kr_ctx_options options;
    kr_ctx_options_init(&options);
    options.precision = precision;
    options.isa = isa_for_precision;
    options.threads = 1;
    return kr_ctx_create(&options);
}

static void expect_precision(kr_precision asked, kr_precision want)
{
    kr_ctx *ctx = with_precision(asked);
    CHECK_OK(ctx);
    CHECK(kr_ctx_precision(ctx) == want, "asked for %d: %d, not %d", (int)asked, (int)kr_ctx_precision(ctx), (int)want);
    const kr_precision products = kr_ctx_info_of(ctx).products;
    if (strcmp(kr_ctx_device(ctx), "cpu") == 0) {
        const bool is_reference = strcmp(kr_ctx_isa(ctx), "ref") == 0; /* which takes bf16 operands */
        CHECK(products == (is_reference && want == KR_PRECISION_BF16 ? want : KR_PRECISION_EXACT),
              "asked for %d: products in %d", (int)asked, (int)products);
    }
    kr_ctx_destroy(ctx);
}

static void expect_no_precision(kr_precision asked, const char *text)
{
    kr_ctx *ctx = with_precision(asked);
    CHECK(kr_ctx_status(ctx) == KR_ERR_ARG && strcmp(kr_ctx_message(ctx), text) == 0, "(%s) %s",
          kr_status_name(kr_ctx_status(ctx)), kr_ctx_message(ctx));
    kr_ctx_destroy(ctx);
}

TEST(precisions_by_name)
{
    static const char *const names[] = { "exact", "tf32", "bf16" };
    const char *set = getenv("KR_PRECISION");
    char before[64] = "";
    if (set) snprintf(before, sizeof before, "%s", set);
    unsetenv("KR_PRECISION");
    expect_precision(KR_PRECISION_UNSET, KR_PRECISION_EXACT);
    isa_for_precision = "ref";
    for (int i = 0; i < 3; i++) expect_precision((kr_precision)i, (kr_precision)i);
    isa_for_precision = NULL;
    for (int i = 0; i < 3; i++) {
        expect_precision((kr_precision)i, (kr_precision)i);
        setenv("KR_PRECISION", names[i], 1);
        expect_precision(KR_PRECISION_UNSET, (kr_precision)i);
        expect_precision(KR_PRECISION_TF32, KR_PRECISION_TF32);
    }
    setenv("KR_PRECISION", "", 1);
    expect_precision(KR_PRECISION_UNSET, KR_PRECISION_EXACT);
    setenv("KR_PRECISION", "BF16", 1);
    expect_no_precision(KR_PRECISION_UNSET,
                        "ctx: KR_PRECISION=BF16 is not a precision; choose one of: exact, tf32, bf16");
    expect_no_precision((kr_precision)3, "ctx: precision = 3 is not a kr_precision");
    expect_no_precision((kr_precision)-2, "ctx: precision = -2 is not a kr_precision");
    CHECK(kr_ctx_precision(NULL) == KR_PRECISION_EXACT, "no context");
    if (set) setenv("KR_PRECISION", before, 1);
    else unsetenv("KR_PRECISION");
}

/* The processor loses nothing, whatever is asked; nor do the kernels of the mock device. */
TEST(precision_is_the_gpus)
{
    kr_ctx *ctx[2] = { with_precision(KR_PRECISION_EXACT), with_precision(KR_PRECISION_BF16) };
    kr_tape *tape[2];
    kr_tensor *y[2];
    for (int i = 0; i < 2; i++) {
        tape[i] = kr_tape_create(ctx[i], KR_TAPE_GRAD);
        kr_ctx_seed(ctx[i], 3);
        kr_tensor *x = kr_input(tape[i], kr_randn(tape[i], KR_DTYPE_F32, KR_SHAPE(300, 40)));
        kr_tensor *w = kr_input(tape[i], kr_randn(tape[i], KR_DTYPE_F32, KR_SHAPE(50, 40)));
        y[i] = kr_linear(tape[i], x, w, NULL);
        kr_backward(tape[i], kr_sum(tape[i], kr_mul(tape[i], y[i], y[i]), KR_ALL_AXES, false));
        CHECK_OK(ctx[i]);
        y[i] = kr_grad(w);
    }
    if (strncmp(kr_ctx_device(ctx[0]), "cuda", 4) != 0) CHECK_SAME_BITS("products", y[1], y[0]);
    else CHECK_TENSORS("products", y[1], y[0], 1e-2, 0); /* bf16 keeps 8 bits of an operand, 4e-3; sums average it */
    for (int i = 0; i < 2; i++) {
        kr_tape_destroy(tape[i]);
        kr_ctx_destroy(ctx[i]);
    }
}
