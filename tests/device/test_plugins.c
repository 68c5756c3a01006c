/* test_plugins.c - devices in plug-ins: a mock device in a shared object computes as the processor does; what is not a plug-in
 * of this library is refused.
 */
#define _DEFAULT_SOURCE
#include "tests/temp_folder.h"

#include "device/plugins.h"

#include <dlfcn.h>
#include <pthread.h>

#define PLUGIN(name) KR_PLUGINS "/" name ".so"

static kr_ctx *on(const char *device)
{
    kr_ctx_options options;
    kr_ctx_options_init(&options);
    options.threads = 2;
    options.seed = kr_test_seed();
    options.device = device;
    return kr_ctx_create(&options);
}

static void load_plugged(void)
{
    kr_ctx *ctx = on("cpu");
    CHECK(kr_device_load(ctx, PLUGIN("device_plugged")) == KR_OK, "%s", kr_ctx_message(ctx));
    kr_ctx_destroy(ctx);
}

TEST(plugins_refused)
{
    static const struct {
        const char *path;
        kr_status status;
        const char *part;
    } cases[] = { { NULL, KR_ERR_ARG, "device.load: path is NULL" },
                  { "", KR_ERR_ARG, "device.load: path is empty" },
                  { "/no/such/plugin.so", KR_ERR_IO, "device.load: /no/such/plugin.so: " },
                  { PLUGIN("plugin_no_entry"), KR_ERR_FORMAT,
                    "it exports no function krait_device, so it is no plug-in" },
                  { PLUGIN("device_other_version"), KR_ERR_UNSUPPORTED,
                    "it is a plug-in for krait 0.2.9-00000000, but this library is krait " } };
    kr_ctx *ctx = on("cpu");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        CHECK(kr_device_load(ctx, cases[i].path) == cases[i].status, "case %zu", i);
        CHECK(kr_device_load(ctx, PLUGIN("device_plugged")) == cases[i].status, "an error is left in place, case %zu",
              i);
        CHECK_ERROR_HAS(ctx, cases[i].status, cases[i].part);
    }
    kr_ctx_destroy(ctx);
    void *kept = dlopen(PLUGIN("device_other_version"), RTLD_NOW | RTLD_NOLOAD);
    CHECK(kept != NULL, "a refused plug-in was unloaded: one with CUDA crashes when the process ends");
    if (kept) dlclose(kept);
    CHECK(kr_device_load(NULL, PLUGIN("device_plugged")) != KR_OK, "without a context");
    ctx = on("plugged:5");
    CHECK(kr_ctx_failed(ctx), "device 5 of four, or of a plug-in that was refused");
    kr_ctx_destroy(ctx);
}

static bool copy_file(const char *from, const char *to)
{
    char block[1 << 16];
    FILE *in = fopen(from, "rb"), *out = fopen(to, "wb");
    size_t n;
    bool ok = in && out;
    while (ok && (n = fread(block, 1, sizeof block, in)) > 0) ok = fwrite(block, 1, n, out) == n;
    if (in) fclose(in);
    return out && fclose(out) == 0 && ok;
}

TEST(plugins_have_a_device_once)
{
    load_plugged();
    load_plugged();
    begin_folder();
    const char *copy = in_folder("copy.so");
    CHECK(copy_file(PLUGIN("device_plugged"), copy), "%s", copy);
    kr_ctx *ctx = on("cpu");
    CHECK(kr_device_load(ctx, copy) == KR_ERR_STATE, "the same device of another file");
    CHECK_ERROR_HAS(ctx, KR_ERR_STATE, "the device plugged is that of " PLUGIN("device_plugged") " already");
    kr_ctx_destroy(ctx);
    files_in_folder(true);
    rmdir(folder);
    char text[4096];
    kr_devices_text(text, sizeof text);
    CHECK(strstr(text, "\nplugged: loaded from " PLUGIN("device_plugged") "\n"), "%s", text);
    int count = 0;
    for (int n = 0; kr_plugin_nth(n); n++) count += strcmp(kr_plugin_nth(n)->name, "plugged") == 0;
    CHECK(count == 1, "%d kinds", count);
}

/* Gradients of a Mamba-2 as doubles, after an update. */
static double *train(kr_ctx *ctx, int64_t *count)
{
    kr_mamba2_config mamba;
    kr_mamba2_config_init(&mamba);
    mamba.d_model = 16;
    mamba.state_rank = mamba.per_head_dim = 8;
    kr_ctx_seed(ctx, 4);
    kr_mamba2 *block = kr_mamba2_create(ctx, &mamba);
    kr_params *params = kr_mamba2_params(block);
    kr_optimizer *optimizer = kr_optimizer_create(ctx, params, NULL);
    kr_tape *tape = kr_tape_create(ctx, KR_TAPE_GRAD);
    for (int step = 0; step < 2; step++) {
        kr_tape_reset(tape);
        if (step) CHECK(kr_optimizer_step(optimizer, 1e-2, 1) == KR_OK, "%s", kr_ctx_message(ctx));
        kr_tensor *x = kr_randn(tape, KR_DTYPE_F32, KR_SHAPE(2, 20, 16));
        const kr_mamba2_out out = kr_mamba2_forward(tape, block, x, NULL, kr_mamba2_path(block));
        kr_backward(tape, kr_mse(tape, out.y, x, NULL));
    }
    *count = kr_params_elements(params);
    double *all = calloc((size_t)*count, sizeof *all);
    for (int64_t i = 0, n = 0; i < kr_params_count(params) && !kr_ctx_failed(ctx); i++) {
        const kr_tensor *x = kr_params_at(params, i)->tensor;
        IGNORE(kr_tensor_read(kr_grad(x), KR_DTYPE_F64, all + n, kr_tensor_count(x)));
        n += kr_tensor_count(x);
    }
    CHECK_OK(ctx);
    kr_tape_destroy(tape);
    kr_optimizer_destroy(optimizer);
    kr_mamba2_destroy(block);
    return all;
}

TEST(plugins_compute)
{
    load_plugged();
    int64_t count, other;
    kr_ctx *cpu = on("cpu");
    double *want = train(cpu, &count);
    static const char *const devices[] = { "plugged", "plugged:1" };
    for (int i = 0; i < 2; i++) {
        kr_ctx *ctx = on(devices[i]);
        CHECK_OK(ctx);
        CHECK(kr_ctx_device_memory(ctx).live_bytes > 0 && strcmp(kr_ctx_kernel(ctx, "ssd"), "mock") == 0,
              "%s: ssd on %s", kr_ctx_device(ctx), kr_ctx_kernel(ctx, "ssd"));
        double *got = train(ctx, &other);
        CHECK_CLOSE(devices[i], got, want, count, NULL, 0, 0); /* the kernels are the processor's */
        CHECK(count == other, "%lld and %lld gradients", (long long)count, (long long)other);
        free(got);
        kr_ctx_destroy(ctx);
    }
    free(want);
    kr_ctx_destroy(cpu);
    kr_ctx *broken = on("plugged:7"); /* an error of the plug-in in the library's context */
    CHECK(strcmp(kr_ctx_message(broken), "ctx: device mock:7, but there are 4, numbered from 0") == 0, "%s",
          kr_ctx_message(broken));
    kr_ctx_destroy(broken);
}

static void *load_in_thread(void *unused)
{
    for (int i = 0; i < 20; i++) load_plugged();
    return unused;
}

TEST(plugins_load_in_threads)
{
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) CHECK(pthread_create(&threads[i], NULL, load_in_thread, NULL) == 0, "thread %d", i);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    kr_ctx *ctx = on("plugged");
    CHECK_OK(ctx);
    kr_ctx_destroy(ctx);
}
