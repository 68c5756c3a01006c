/* test_device_errors.c - what a device refuses, and how it breaks: the text says what and why, nothing is lost, and the
 * context can be used again. */
#if defined(__linux__)
#define _DEFAULT_SOURCE /* popen */
#endif
#include "device/device.h"
#include "tests/harness.h"

static kr_ctx *on(const char *device)
{
    kr_ctx_options options;
    kr_ctx_options_init(&options);
    options.device = device;
    options.threads = 1;
    return kr_ctx_create(&options);
}

static bool has_gpu(void)
{
    kr_ctx *ctx = on("cuda");
    const bool has = !kr_ctx_failed(ctx);
    kr_ctx_destroy(ctx);
    return has;
}

static void expect(const kr_ctx *ctx, kr_status status, const char *const *parts)
{
    CHECK(kr_ctx_status(ctx) == status, "%s", kr_ctx_message(ctx));
    for (; *parts; parts++) CHECK(strstr(kr_ctx_message(ctx), *parts), "no \"%s\" in: %s", *parts, kr_ctx_message(ctx));
}

/* ---- memory ---- */

/* An op that needs more than there is names itself, what it asked for, and the remedy; then smaller ones go on. */
TEST(device_memory_is_full)
{
    kr_ctx *ctx = on("mock:3");
    kr_tape *t = kr_tape_create(ctx, KR_TAPE_GRAD);
    CHECK_OK(ctx);
    const size_t before = kr_ctx_device_memory(ctx).live_bytes;
    kr_tensor *w = kr_param_create(ctx, KR_DTYPE_F32, KR_SHAPE(1024, 512));
    kr_param_fill(w, 2);
    CHECK_OK(ctx);
    for (int i = 0; i < 3; i++) {
        kr_tensor *y = w;
        for (int k = 0; k < 8 && y; k++) y = kr_mul(t, y, w);
        CHECK(y == NULL, "8 MiB hold more than they can");
        expect(ctx, KR_ERR_NOMEM,
               (const char *[]){ "mul: no memory for f32 [1024, 512], 2097152 bytes; mock:3 is small refused ",
                                 "this context has ", " of 8.0 MiB are free", "use a smaller batch", "recompute_budget",
                                 NULL });
        kr_ctx_clear(ctx);
        kr_tape_reset(t);
        y = kr_mul(t, w, w);
        CHECK(y && kr_tensor_at(y, (int64_t[]){ 0, 0 }) == 4, "it does not go on: %s", kr_ctx_message(ctx));
        kr_tape_reset(t);
    }
    kr_tensor *large = kr_param_create(ctx, KR_DTYPE_F64, KR_SHAPE(1 << 20));
    CHECK(large == NULL, "a parameter larger than the device");
    expect(ctx, KR_ERR_NOMEM, (const char *[]){ "param: no memory for f64 [1048576]; mock:3 is small refused", NULL });
    kr_ctx_clear(ctx);
    kr_param_destroy(w);
    kr_tape_destroy(t);
    CHECK(kr_ctx_device_memory(ctx).live_bytes <= before, "%zu device bytes, %zu before",
          kr_ctx_device_memory(ctx).live_bytes, before);
    kr_ctx_destroy(ctx);
}

/* In a backward pass the op is the one whose gradient it is. */
TEST(device_memory_is_full_backward)
{
    kr_ctx *ctx = on("mock:3");
    kr_tape *t = kr_tape_create(ctx, KR_TAPE_GRAD);
    kr_tensor *w = kr_param_create(ctx, KR_DTYPE_F32, KR_SHAPE(600, 512));
    kr_tensor *loss = kr_sum(t, kr_tanh(t, kr_mul(t, w, w)), KR_ALL_AXES, false);
    CHECK_OK(ctx);
    CHECK(kr_backward(t, loss) == KR_ERR_NOMEM, "%s", kr_ctx_message(ctx));
    expect(
        ctx, KR_ERR_NOMEM,
        (const char *[]){ "backward of ", "no memory for ", "mock:3 is small refused", "use a smaller batch", NULL });
    kr_ctx_clear(ctx);
    kr_tape_reset(t);
    CHECK(kr_item(kr_sum(t, kr_mul(t, w, w), KR_ALL_AXES, false)) == 0, "%s", kr_ctx_message(ctx));
    kr_param_destroy(w);
    kr_tape_destroy(t);
    kr_ctx_destroy(ctx);
}

TEST(gpu_memory_is_full)
{
    if (!has_gpu()) SKIP("there is no GPU");
    kr_ctx *ctx = on("cuda");
    kr_tape *t = kr_tape_create(ctx, KR_TAPE_GRAD);
    kr_tensor *w = kr_param_create(ctx, KR_DTYPE_F32, KR_SHAPE((int64_t)1 << 38));
    CHECK(w == NULL, "a GPU with a TiB");
    expect(ctx, KR_ERR_NOMEM,
           (const char *[]){ "param: no memory for f32 [274877906944]; cuda:0 ", " refused 1099511627776",
                             " MiB are free", NULL });
    kr_ctx_clear(ctx);
    kr_tape_reset(t);
    kr_tensor *small = kr_full(t, KR_DTYPE_F32, KR_SHAPE(1000), 3);
    CHECK(kr_item(kr_sum(t, kr_mul(t, small, small), KR_ALL_AXES, false)) == 9000, "%s", kr_ctx_message(ctx));
    kr_tensor *wide = kr_mul(t, kr_full(t, KR_DTYPE_F32, KR_SHAPE((int64_t)1 << 20, 1), 1),
                             kr_full(t, KR_DTYPE_F32, KR_SHAPE(1 << 18), 1));
    CHECK(wide == NULL, "a product of a TiB");
    expect(ctx, KR_ERR_NOMEM,
           (const char *[]){ "mul: no memory for f32 [1048576, 262144], 1099511627776 bytes", NULL });
    kr_ctx_clear(ctx);
    kr_tape_reset(t);
    CHECK(kr_item(kr_sum(t, kr_full(t, KR_DTYPE_F32, KR_SHAPE(10), 3), KR_ALL_AXES, false)) == 30, "%s",
          kr_ctx_message(ctx));
    kr_tape_destroy(t);
    kr_ctx_destroy(ctx);
}

/* ---- each allocation refused in turn, of host, device and pinned memory ---- */

static void train_a_step(kr_ctx *ctx)
{
    kr_mamba2_config block;
    kr_mamba2_config_init(&block);
    block.d_model = 16;
    block.state_rank = 8;
    block.per_head_dim = 8;
    kr_layers_config layers;
    kr_layers_config_init(&layers);
    layers.block = kr_mamba2_block(&block);
    layers.n_layers = 1;
    kr_network_config config;
    kr_network_config_init(&config);
    config.layers = &layers;
    config.vocab_size = 11;
    kr_network *net = kr_network_create(ctx, &config);
    kr_optimizer *optimizer = net ? kr_optimizer_create(ctx, kr_network_params(net), NULL) : NULL;
    kr_state *state = net ? kr_state_create(ctx, kr_network_layers(net), 2) : NULL;
    kr_tape *t = kr_tape_create(ctx, KR_TAPE_GRAD);
    const int32_t ids[2 * 5] = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 };
    kr_loss_call call;
    kr_loss_call_init(&call);
    call.ids_bs = kr_from_data(t, KR_DTYPE_I32, KR_SHAPE(2, 5), ids);
    const kr_loss_out out = kr_network_loss(t, net, &call);
    kr_backward(t, out.loss);
    if (optimizer && !kr_ctx_failed(ctx)) kr_optimizer_step(optimizer, 1e-3, 1);
    kr_tape_destroy(t);
    kr_state_destroy(state);
    kr_optimizer_destroy(optimizer);
    kr_network_destroy(net);
}

TEST(device_networks_starved)
{
    const size_t stride = kr_test_quick() ? 7 : 1;
    for (size_t n = 1;; n += stride) {
        kr_ctx *ctx = on("mock");
        const size_t shared = kr_ctx_pinned_memory(ctx).live_bytes;
        kr_ctx_fail_allocation(ctx, n);
        train_a_step(ctx);
        const bool passed = !kr_ctx_failed(ctx);
        CHECK(passed || kr_ctx_status(ctx) == KR_ERR_NOMEM, "allocation %zu: %s", n, kr_ctx_message(ctx));
        CHECK(kr_ctx_pinned_memory(ctx).live_bytes == shared, "allocation %zu: shared memory is left", n);
        kr_ctx_destroy(ctx); /* the mock counts its device memory then */
        if (!passed) continue;
        CHECK(n > 60, "%zu allocations", n);
        break;
    }
}

/* ---- whose tensor it is ---- */

TEST(operands_of_another_device)
{
    kr_ctx *cpu = on("cpu"), *mock = on("mock");
    kr_tape *t = kr_tape_create(cpu, KR_TAPE_GRAD);
    kr_tensor *here = kr_param_create(cpu, KR_DTYPE_F32, KR_SHAPE(3)),
              *there = kr_param_create(mock, KR_DTYPE_F32, KR_SHAPE(3));
    CHECK(kr_mul(t, here, there) == NULL, "they were multiplied");
    CHECK_ERROR(
        cpu, KR_ERR_STATE,
        "mul: operand b [3] belongs to another context, on mock:0 runs at once, but this tape's is on cpu; carry it "
        "over by kr_tensor_read and kr_from_data");
    CHECK(kr_tensor_is_host(here) && !kr_tensor_is_host(there) && kr_tensor_is_host(NULL),
          "host and device are mistaken");
    kr_tape_reset(t);
    const int32_t one = 1;
    kr_tape *device_tape = kr_tape_create(mock, KR_TAPE_GRAD);
    CHECK(kr_tensor_is_host(kr_from_data(device_tape, KR_DTYPE_I32, KR_SHAPE(1), &one)), "integers are on the host");
    CHECK(kr_ctx_wait(mock) == KR_OK && kr_ctx_wait(cpu) == KR_OK && kr_ctx_wait(NULL) == KR_ERR_NOMEM, "waiting");
    kr_tape_destroy(t);
    kr_tape_destroy(device_tape);
    kr_param_destroy(here);
    kr_param_destroy(there);
    kr_ctx_destroy(cpu);
    kr_ctx_destroy(mock);
}

/* ---- a fault of the GPU ---- */

/* It ends all of CUDA in its process, so it happens in one of its own: this program again, with KR_TEST_FAULT set. */
static void fault(void)
{
    kr_ctx *ctx = on("cuda");
    kr_tape *t = kr_tape_create(ctx, KR_TAPE_GRAD);
    kr_tensor *x = kr_full(t, KR_DTYPE_F32, KR_SHAPE(1 << 20), 1);
    kr_tensor wild = *x;
    wild.data = (char *)x->data + ((size_t)1 << 45);
    wild.node = NULL;
    kr_tensor *y = kr_mul(t, &wild, x); /* queued, or refused; the address is invalid */
    printf("%d\n", kr_ctx_wait(ctx) == KR_ERR_DEVICE);
    printf("%s\n", kr_ctx_message(ctx));
    kr_ctx_clear(ctx);
    kr_tape_reset(t);
    y = kr_full(t, KR_DTYPE_F32, KR_SHAPE(4), 1);
    printf("%d %d\n", y == NULL, kr_ctx_status(ctx) == KR_ERR_DEVICE);
    printf("%s\n", kr_ctx_message(ctx));
    kr_tape_destroy(t);
    kr_ctx_destroy(ctx);
    exit(0);
}

TEST(gpu_faults_stay)
{
    if (getenv("KR_TEST_FAULT")) fault();
    if (!has_gpu()) SKIP("there is no GPU");
    char program[512], command[640], lines[4][1200] = { "" };
    FILE *self = popen("readlink /proc/$PPID/exe", "r");
    CHECK(self && fgets(program, sizeof program, self), "this program has no path");
    if (self) pclose(self);
    program[strcspn(program, "\n")] = '\0';
    snprintf(command, sizeof command, "KR_TEST_FAULT=1 '%s' gpu_faults_stay 2>&1", program);
    FILE *child = popen(command, "r");
    for (int i = 0; child && i < 4 && fgets(lines[i], sizeof *lines, child);) i++;
    if (child) pclose(child);
    CHECK(strcmp(lines[0], "1\n") == 0, "no fault: %s", lines[0]);
    CHECK(strstr(lines[1], "cuda:0") && strstr(lines[1], "the last queued kernel: mul, by mul"), "%s", lines[1]);
    CHECK(strcmp(lines[2], "1 1\n") == 0 && strcmp(lines[1], lines[3]) == 0, "afterwards: %s%s", lines[2], lines[3]);
}
