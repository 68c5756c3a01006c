/* test_backends.c - backends: kernels that replace those of the library, from the program and from shared objects; what is
 * refused; a device from outside, which lacks most kernels.
 */
#define _DEFAULT_SOURCE
#include "tests/temp_folder.h"

#include "device/device.h"

#include <krait/backend/kernels.h>

#include <pthread.h>
#include <stdatomic.h>

/* ---- a backend of the program: the SSD core by the reference, counted ---- */

static int forward_calls, backward_calls;

static void run_ssd(const kr_ssd_args *args)
{
    forward_calls++;
    kr_backend_services()->reference->ssd[KR_REAL_F32].run(args);
}

static void run_ssd_bwd(const kr_ssd_bwd_args *args)
{
    backward_calls++;
    kr_backend_services()->reference->ssd_bwd[KR_REAL_F32].run(args);
}

static size_t scratch_ssd(const kr_ssd_args *args)
{
    size_t (*const scratch)(const kr_ssd_args *) = kr_backend_services()->reference->ssd[KR_REAL_F32].scratch;
    return scratch ? scratch(args) : 0;
}

static size_t scratch_ssd_bwd(const kr_ssd_bwd_args *args)
{
    size_t (*const scratch)(const kr_ssd_bwd_args *) = kr_backend_services()->reference->ssd_bwd[KR_REAL_F32].scratch;
    return scratch ? scratch(args) : 0;
}

static const kr_kernels counted = { .ssd = { [KR_REAL_F32] = { run_ssd, scratch_ssd } },
                                    .ssd_bwd = { [KR_REAL_F32] = { run_ssd_bwd, scratch_ssd_bwd } } };
static const kr_backend_info counts = { KR_BACKEND_HEAD, .name = "counts", .target = "cpu", .kernels = &counted };
static const kr_backend_info for_avx512 = { KR_BACKEND_HEAD, .name = "only512", .target = "avx512",
                                            .kernels = &counted };

static void add(const kr_backend_info *info)
{
    kr_ctx *ctx = kr_ctx_create(NULL);
    CHECK(kr_backend_register(ctx, info) == KR_OK, "%s: %s", info->name, kr_ctx_message(ctx));
    CHECK(kr_backend_register(ctx, info) == KR_OK, "%s again: %s", info->name, kr_ctx_message(ctx));
    kr_ctx_destroy(ctx);
}

static kr_ctx *with(const char *backend, const char *device, const char *isa)
{
    kr_ctx_options options;
    kr_ctx_options_init(&options);
    options.threads = 2;
    options.seed = kr_test_seed();
    options.backend = backend;
    options.device = device;
    options.isa = isa;
    return kr_ctx_create(&options);
}

/* Gradients of a Mamba-3 of the double pathway after a step of training, as doubles. */
static double *train(kr_ctx *ctx, int64_t *count)
{
    kr_mamba3_config mamba;
    kr_mamba3_config_init(&mamba);
    mamba.d_model = 16;
    mamba.state_rank = 8;
    mamba.per_head_dim = 8;
    mamba.pathway = KR_MAMBA3_PATHWAY_DOUBLE;
    kr_ctx_seed(ctx, 4);
    kr_mamba3 *block = kr_mamba3_create(ctx, &mamba);
    kr_params *params = kr_mamba3_params(block);
    kr_optimizer *optimizer = kr_optimizer_create(ctx, params, NULL);
    kr_tape *tape = kr_tape_create(ctx, KR_TAPE_GRAD);
    for (int step = 0; step < 2; step++) {
        kr_tape_reset(tape);
        if (step) CHECK(kr_optimizer_step(optimizer, 1e-2, 1) == KR_OK, "%s", kr_ctx_message(ctx));
        kr_tensor *x = kr_randn(tape, KR_DTYPE_F32, KR_SHAPE(2, 20, 16));
        const kr_mamba3_out out = kr_mamba3_forward(tape, block, x, NULL, kr_mamba3_path(block));
        kr_backward(tape, kr_mse(tape, out.y, x, NULL));
    }
    *count = kr_params_elements(params);
    double *all = calloc((size_t)*count, sizeof *all);
    for (int64_t i = 0, n = 0; i < kr_params_count(params) && !kr_ctx_failed(ctx); i++) {
        kr_tensor *x = kr_params_at(params, i)->tensor;
        IGNORE(kr_tensor_read(kr_grad(x), KR_DTYPE_F64, all + n, kr_tensor_count(x)));
        n += kr_tensor_count(x);
    }
    CHECK_OK(ctx);
    kr_tape_destroy(tape);
    kr_optimizer_destroy(optimizer);
    kr_mamba3_destroy(block);
    return all;
}

static void check_training(const char *what, kr_ctx *got, kr_ctx *want, bool to_the_bit)
{
    int64_t count, other;
    double *a = train(got, &count), *b = train(want, &other);
    CHECK(count == other, "%s: %lld and %lld gradients", what, (long long)count, (long long)other);
    if (to_the_bit) CHECK(memcmp(a, b, (size_t)count * sizeof *a) == 0, "%s: gradients differ", what);
    else CHECK_CLOSE(what, a, b, count, NULL, 1e-4, 1e-3);
    free(a);
    free(b);
}

TEST(backends_replace_kernels)
{
    add(&counts);
    kr_ctx *plain = with("", "cpu", NULL), *ctx = with("counts", "cpu", NULL);
    CHECK_OK(ctx);
    forward_calls = backward_calls = 0;
    check_training("the reference in training", ctx, plain, false);
    CHECK(forward_calls >= 2 && backward_calls >= 2, "%d calls forward, %d backward", forward_calls, backward_calls);
    CHECK(strcmp(kr_ctx_kernel(ctx, "ssd"), "counts") == 0 && strcmp(kr_ctx_kernel(ctx, "ssd_bwd"), "counts") == 0,
          "ssd runs on %s", kr_ctx_kernel(ctx, "ssd"));
    CHECK(strcmp(kr_ctx_kernel(ctx, "matmul"), kr_ctx_kernel(plain, "matmul")) == 0 &&
              strcmp(kr_ctx_kernel(plain, "ssd"), "counts") != 0,
          "other kernels, other contexts");
    CHECK(!kr_ctx_kernel(ctx, "no_such"), "no kernel");
    CHECK(kr_ctx_backend_stats(ctx).n_backends == 1 && kr_ctx_backend_stats(ctx).fallback_calls == 0 &&
              kr_ctx_backend_stats(plain).n_backends == 0 && kr_ctx_backend_stats(NULL).n_backends == 0,
          "statistics");
    kr_ctx_destroy(ctx);

    /* everything but the core of the reference too: the same bits as without a backend */
    kr_ctx *ref = with("", "cpu", "ref");
    ctx = with("counts", "cpu", "ref");
    check_training("the reference by itself", ctx, ref, true);
    kr_ctx_destroy(ctx);
    kr_ctx_destroy(ref);
    kr_ctx_destroy(plain);
}

/* ---- passing on: the core of the double pathway, on every device ---- */

static atomic_int passed_on, passed_on_backward;

static void pass_on_ssd(const kr_ssd_args *args)
{
    passed_on++;
    args->exec.library->ssd[KR_REAL_F32].run(args);
}

static void pass_on_ssd_bwd(const kr_ssd_bwd_args *args)
{
    passed_on_backward++;
    args->exec.library->ssd_bwd[KR_REAL_F32].run(args);
}

static size_t scratch_of_ssd(const kr_ssd_args *args)
{
    size_t (*const scratch)(const kr_ssd_args *) = args->exec.library->ssd[KR_REAL_F32].scratch;
    return scratch ? scratch(args) : 0;
}

static size_t scratch_of_ssd_bwd(const kr_ssd_bwd_args *args)
{
    size_t (*const scratch)(const kr_ssd_bwd_args *) = args->exec.library->ssd_bwd[KR_REAL_F32].scratch;
    return scratch ? scratch(args) : 0;
}

static const kr_kernels passing = { .ssd = { [KR_REAL_F32] = { pass_on_ssd, scratch_of_ssd } },
                                    .ssd_bwd = { [KR_REAL_F32] = { pass_on_ssd_bwd, scratch_of_ssd_bwd } } };
static const kr_backend_info passes_cpu = { KR_BACKEND_HEAD, .name = "pass_cpu", .target = "cpu", .kernels = &passing };
static const kr_backend_info passes_mock = { KR_BACKEND_HEAD, .name = "pass_mock", .target = "mock",
                                             .kernels = &passing };
static const kr_backend_info passes_inverter = { KR_BACKEND_HEAD, .name = "pass_inverter", .target = "inverter",
                                                 .kernels = &passing };

/* The bits of the kernels that are replaced. `falls_back`: the device has no such kernels, so the CPU runs them. */
static void check_passing(const char *backends, const char *device, bool falls_back)
{
    kr_ctx *plain = with("", device, NULL), *ctx = with(backends, device, NULL);
    CHECK_OK(ctx);
    passed_on = passed_on_backward = 0;
    check_training(backends, ctx, plain, true);
    CHECK(passed_on >= 2 && passed_on_backward >= 4, "%s: %d calls forward, %d backward", backends, passed_on,
          passed_on_backward);
    const kr_backend_stats got = kr_ctx_backend_stats(ctx), want = kr_ctx_backend_stats(plain);
    CHECK((got.fallback_calls > 0) == falls_back && got.fallback_calls == want.fallback_calls &&
              got.fallback_bytes == want.fallback_bytes,
          "%s: %llu calls and %llu bytes fell back, not %llu and %llu", backends,
          (unsigned long long)got.fallback_calls, (unsigned long long)got.fallback_bytes,
          (unsigned long long)want.fallback_calls, (unsigned long long)want.fallback_bytes);
    kr_ctx_destroy(ctx);
    kr_ctx_destroy(plain);
}

TEST(backends_for_one_instruction_set)
{
    add(&for_avx512);
    kr_ctx *ref = with("only512", "cpu", "ref"), *best = with("only512", "cpu", NULL);
    CHECK_OK(ref);
    CHECK_OK(best);
    CHECK(strcmp(kr_ctx_kernel(ref, "ssd"), "ref") == 0 && kr_ctx_backend_stats(ref).n_backends == 0,
          "in a ref context");
    const bool is_512 = strcmp(kr_ctx_isa(best), "avx512") == 0;
    CHECK((strcmp(kr_ctx_kernel(best, "ssd"), "only512") == 0) == is_512, "ssd runs on %s", kr_ctx_kernel(best, "ssd"));
    kr_ctx_destroy(ref);
    kr_ctx_destroy(best);
}

/* ---- shared objects ---- */

#define PLUGIN(name) KR_PLUGINS "/plugin_" name ".so"

static double softplus_of_one(kr_ctx *ctx)
{
    kr_tape *tape = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    const double y = kr_item(kr_reshape(
        tape, kr_slice(tape, kr_softplus(tape, kr_full(tape, KR_DTYPE_F32, KR_SHAPE(3), 1)), 0, 2, 3), KR_SCALAR));
    kr_tape_destroy(tape);
    return y;
}

TEST(backends_in_shared_objects)
{
    add(&counts);
    kr_ctx *plain = with("", "cpu", NULL), *ctx = with(PLUGIN("good"), "cpu", NULL);
    CHECK_OK(ctx);
    CHECK(softplus_of_one(ctx) == -1 && softplus_of_one(plain) > 1.3, "%g, %g", softplus_of_one(ctx),
          softplus_of_one(plain));
    CHECK(strcmp(kr_ctx_kernel(ctx, "softplus"), "plugin") == 0, "softplus runs on %s", kr_ctx_kernel(ctx, "softplus"));
    kr_ctx *both = with("counts," PLUGIN("good"), "cpu", NULL); /* while the other has it, too */
    CHECK_OK(both);
    kr_ctx_destroy(ctx);
    CHECK(softplus_of_one(both) == -1 && strcmp(kr_ctx_kernel(both, "ssd"), "counts") == 0, "two of them");
    CHECK(kr_ctx_backend_stats(both).n_backends == 2, "statistics");
    kr_ctx_destroy(both);

    ctx = with("counts," PLUGIN("counting"), "cpu", NULL);
    CHECK(strcmp(kr_ctx_kernel(ctx, "ssd"), "counting") == 0, "the later one: %s", kr_ctx_kernel(ctx, "ssd"));
    check_training("the example", ctx, plain, false);
    kr_ctx_destroy(ctx);
    kr_ctx_destroy(plain);
}

TEST(backends_by_the_environment)
{
    setenv("KR_BACKEND", PLUGIN("good"), 1);
    kr_ctx *ctx = with(NULL, "cpu", NULL), *none = with("", "cpu", NULL);
    unsetenv("KR_BACKEND");
    CHECK(softplus_of_one(ctx) == -1 && softplus_of_one(none) > 1, "%s", kr_ctx_message(ctx));
    kr_ctx_destroy(ctx);
    kr_ctx_destroy(none);
    setenv("KR_BACKEND", "nobodys", 1);
    ctx = with(NULL, "cpu", NULL);
    unsetenv("KR_BACKEND");
    CHECK_ERROR_HAS(ctx, KR_ERR_ARG, "ctx: KR_BACKEND names the backend nobodys, which is not registered");
    kr_ctx_destroy(ctx);
}

static const struct {
    const char *backend;
    kr_status status;
    const char *text;
} bad[] = {
    { PLUGIN("other_version"), KR_ERR_UNSUPPORTED, "the backend has version 2 and a kr_backend_info of" },
    { PLUGIN("other_contract"), KR_ERR_UNSUPPORTED,
      "plugin_other_contract.so: the backend is for kernels of contract" },
    { PLUGIN("no_kernels"), KR_ERR_ARG, "plugin: kernels and device are both NULL" },
    { PLUGIN("no_entry"), KR_ERR_FORMAT, "it exports no function krait_backend, so it is no backend" },
    { PLUGIN("null_info"), KR_ERR_UNSUPPORTED,
      "it does not work with version 1 of the backend interface and contract" },
    { "./no_such.so", KR_ERR_IO, "backend ./no_such.so: " },
    { KR_SOURCE_DIR "/README.md", KR_ERR_IO, "README.md: " },
    { "missing", KR_ERR_ARG,
      "ctx: backend names the backend missing, which is not registered; a shared object is named" },
    { "counts,", KR_ERR_ARG, "ctx: backend ends with a comma" },
    { ",counts", KR_ERR_ARG, "ctx: backend has an empty name, or one of more than 1023 bytes" },
    { "counts,counts,counts,counts,counts,counts,counts,counts,counts", KR_ERR_ARG,
      "ctx: backend names more than 8 backends" },
};

TEST(backends_that_are_refused)
{
    add(&counts);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        kr_ctx *ctx = with(bad[i].backend, "cpu", NULL);
        CHECK(kr_ctx_failed(ctx), "%s", bad[i].backend);
        CHECK_ERROR_HAS(ctx, bad[i].status, bad[i].text);
        kr_ctx_destroy(ctx);
    }
}

/* ---- registering ---- */

static const char *no_open(void *user, int number, void **handle, const char **name)
{
    (void)user, (void)number, (void)handle, (void)name;
    return "it is asleep";
}

typedef void change_fn(kr_backend_info *info, kr_kernels *kernels, kr_backend_device *device);
#define CHANGE(name, what)                                                                                             \
    static void change_##name(kr_backend_info *info, kr_kernels *kernels, kr_backend_device *device)                   \
    {                                                                                                                  \
        (void)info, (void)kernels, (void)device;                                                                       \
        what;                                                                                                          \
    }
CHANGE(size, info->size = 8)
CHANGE(version, info->version = 9)
CHANGE(contract, info->contract ^= 1)
CHANGE(kernels_bytes, info->kernels_bytes++)
CHANGE(no_name, info->name = NULL)
CHANGE(capital, info->name = "Mine")
CHANGE(cuda, info->name = "cuda")
CHANGE(ref, info->name = "ref")
CHANGE(nothing, info->kernels = NULL)
CHANGE(scratch, kernels->ssd[KR_REAL_F64].scratch = scratch_ssd)
CHANGE(needs, kernels->needs = UINT64_C(1) << 60)
CHANGE(taken, info->name = "counts")
CHANGE(device_size, info->device = device; device->size = 16)
CHANGE(device_functions, info->device = device; device->open = no_open)

static const struct {
    change_fn *change;
    kr_status status;
    const char *text;
} changes[] = {
    { change_size, KR_ERR_UNSUPPORTED, "backend.register: the backend has version 1 and a kr_backend_info of 8 bytes" },
    { change_version, KR_ERR_UNSUPPORTED, "backend.register: the backend has version 9 and a kr_backend_info of" },
    { change_contract, KR_ERR_UNSUPPORTED, "backend.register: the backend is for kernels of contract" },
    { change_kernels_bytes, KR_ERR_UNSUPPORTED, "backend.register: the backend is for kernels of contract" },
    { change_no_name, KR_ERR_ARG, "backend.register: name is NULL, but must be from 1 to 31 of the characters" },
    { change_capital, KR_ERR_ARG, "backend.register: name is Mine, but must be from 1 to 31 of the characters" },
    { change_cuda, KR_ERR_ARG, "backend.register: the name cuda belongs to a part of the library; choose another" },
    { change_ref, KR_ERR_ARG, "backend.register: the name ref belongs to a part of the library; choose another" },
    { change_nothing, KR_ERR_ARG, "backend.register: refused: kernels and device are both NULL" },
    { change_scratch, KR_ERR_ARG, "backend.register: refused: the kernel ssd has a scratch function, but no run" },
    { change_needs, KR_ERR_UNSUPPORTED, "backend.register: refused: kernels.needs names features that this processor" },
    { change_taken, KR_ERR_ARG, "backend.register: the name counts belongs to another backend; choose another" },
    { change_device_size, KR_ERR_UNSUPPORTED, "backend.register: refused: device.size is 16, but the struct has" },
    { change_device_functions, KR_ERR_ARG, "backend.register: refused: device.close is NULL" },
};

TEST(backends_that_are_not_registered)
{
    add(&counts);
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        static kr_kernels kernels;
        static kr_backend_device device;
        kernels = (kr_kernels){ .ssd = { [KR_REAL_F32] = { run_ssd, scratch_ssd } } };
        device = (kr_backend_device){ .size = sizeof device };
        kr_backend_info info = { KR_BACKEND_HEAD, .name = "refused", .kernels = &kernels };
        changes[i].change(&info, &kernels, &device);
        CHECK(kr_backend_register(ctx, &info) == changes[i].status, "change %zu", i);
        CHECK_ERROR_HAS(ctx, changes[i].status, changes[i].text);
    }
    CHECK(kr_backend_register(ctx, NULL) == KR_ERR_ARG, "NULL");
    CHECK_ERROR(ctx, KR_ERR_ARG, "backend.register: info is NULL");
    CHECK(kr_backend_register(NULL, &counts) != KR_OK, "without a context");
    kr_ctx_destroy(ctx);
}

/* ---- a device: its memory holds every byte inverted, so that a host that reads it directly finds other numbers ---- */

static struct {
    atomic_int live, opened, native;
    int64_t until_broken, bytes_left; /* -1: without end */
    int64_t until_failed;             /* calls of functions that return text; 0: never */
    bool is_visible;
} inverter = { .until_broken = -1, .bytes_left = -1 };
static int inverter_handle;

static void invert(void *to, const void *from, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) ((unsigned char *)to)[i] = (unsigned char)~((const unsigned char *)from)[i];
}

static const char *inverter_open(void *user, int number, void **handle, const char **name)
{
    (void)user;
    if (number > 1) return "there are two of them";
    inverter.opened++;
    *handle = &inverter_handle;
    *name = "Inverter";
    return NULL;
}
static void inverter_close(void *handle)
{
    const int left = --inverter.opened;
    CHECK(handle == &inverter_handle && (left || inverter.live == 0), "%d blocks were not freed", inverter.live);
}
static void *inverter_alloc(void *handle, size_t bytes, size_t align)
{
    (void)handle;
    if (inverter.bytes_left >= 0 && (int64_t)bytes > inverter.bytes_left) return NULL;
    if (inverter.bytes_left >= 0) inverter.bytes_left -= (int64_t)bytes;
    inverter.live++;
    void *p = aligned_alloc(align, (bytes + align - 1) / align * align);
    /* Not what an earlier context computed there: blocks that a kernel leaves as they were are not uploaded, nor counted. */
    if (p) memset(p, 0xa5, bytes);
    return p;
}
static void inverter_free(void *handle, void *p)
{
    (void)handle;
    inverter.live--;
    free(p);
}
static void inverter_free_detached(void *user, void *p)
{
    CHECK(user == &inverter, "user");
    inverter.live--;
    free(p);
}
/* Is this the call that fails? */
static const char *failing(void)
{
    return inverter.until_failed > 0 && --inverter.until_failed == 0 ? "it stumbled" : NULL;
}
static const char *inverter_move(void *handle, void *to, const void *from, size_t bytes)
{
    const char *why = failing();
    if (why) return why;
    (void)handle;
    if (inverter.is_visible) memmove(to, from, bytes);
    else invert(to, from, bytes);
    return NULL;
}
static const char *inverter_copy(void *handle, void *to, const void *from, size_t bytes)
{
    (void)handle;
    memmove(to, from, bytes);
    return failing();
}
static const char *inverter_zero(void *handle, void *p, size_t bytes)
{
    (void)handle;
    memset(p, inverter.is_visible ? 0 : 0xff, bytes);
    return failing();
}
static const char *inverter_wait(void *handle)
{
    (void)handle;
    return failing();
}
static const char *inverter_check(void *handle)
{
    (void)handle;
    if (inverter.until_broken > 0) inverter.until_broken--;
    return inverter.until_broken == 0 ? "it broke, as it was asked to" : failing();
}
static bool inverter_memory(void *handle, size_t *left, size_t *all)
{
    (void)handle;
    *left = *all = (size_t)1 << 20;
    return true;
}

/* The one kernel that the device has. */
static void inverter_softmax(const kr_softmax_args *args)
{
    const size_t bytes = (size_t)(args->no * args->nr) * sizeof(float);
    kr_softmax_args own = *args;
    float *x = malloc(bytes), *y = malloc(bytes);
    CHECK(args->exec.own == &inverter_handle, "exec.own");
    inverter.native++;
    IGNORE(inverter_move(NULL, x, args->x, bytes) ? KR_OK : KR_OK);
    own.x = x;
    own.y = y;
    kr_backend_services()->reference->softmax[KR_REAL_F32].run(&own);
    IGNORE(inverter_move(NULL, args->y, y, bytes) ? KR_OK : KR_OK);
    free(x);
    free(y);
}

static kr_backend_device inverter_device = { .size = sizeof inverter_device,
                                             .open = inverter_open,
                                             .close = inverter_close,
                                             .alloc = inverter_alloc,
                                             .free = inverter_free,
                                             .upload = inverter_move,
                                             .download = inverter_move,
                                             .copy = inverter_copy,
                                             .zero = inverter_zero,
                                             .wait = inverter_wait,
                                             .check = inverter_check,
                                             .memory_info = inverter_memory,
                                             .user = &inverter,
                                             .free_detached = inverter_free_detached };
static const kr_kernels inverter_kernels = { .softmax = { [KR_REAL_F32] = { .run = inverter_softmax } } };
static const kr_backend_info inverting = { KR_BACKEND_HEAD, .name = "inverter", .kernels = &inverter_kernels,
                                           .device = &inverter_device };

TEST(backends_bring_a_device)
{
    add(&inverting);
    add(&counts);
    for (int visible = 0; visible < 2; visible++) {
        inverter.is_visible = inverter_device.is_host_visible = visible;
        kr_ctx *plain = with("", "cpu", NULL), *ctx = with("", visible ? "inverter" : "inverter:1", NULL);
        CHECK_OK(ctx);
        CHECK(strcmp(kr_ctx_device(ctx), visible ? "inverter:0 Inverter" : "inverter:1 Inverter") == 0, "%s",
              kr_ctx_device(ctx));
        check_training("on a device", ctx, plain, true);
        const kr_backend_stats stats = kr_ctx_backend_stats(ctx);
        CHECK(stats.fallback_calls > 100 && (stats.fallback_bytes > 0) == !visible, "%llu calls, %llu bytes",
              (unsigned long long)stats.fallback_calls, (unsigned long long)stats.fallback_bytes);
        CHECK(strcmp(kr_ctx_kernel(ctx, "softmax"), "inverter") == 0 &&
                  strcmp(kr_ctx_kernel(ctx, "ssd"), kr_ctx_kernel(plain, "ssd")) == 0,
              "softmax runs on %s, ssd on %s", kr_ctx_kernel(ctx, "softmax"), kr_ctx_kernel(ctx, "ssd"));
        kr_tape *tape = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
        inverter.native = 0;
        const float x[] = { 0, 0, 1, 1 };
        kr_tensor *y = kr_softmax(tape, kr_from_data(tape, KR_DTYPE_F32, KR_SHAPE(2, 2), x), 1);
        CHECK(kr_tensor_at(y, (int64_t[]){ 1, 0 }) == 0.5 && inverter.native == 1, "softmax: %g, %d kernels of its own",
              kr_tensor_at(y, (int64_t[]){ 1, 0 }), inverter.native);
        CHECK(kr_ctx_backend_stats(ctx).fallback_calls == stats.fallback_calls, "softmax fell back");
        kr_tape_destroy(tape);
        CHECK(kr_ctx_memory_stats(ctx, KR_MEMORY_DEVICE).live_bytes > 0, "no device memory");
        kr_ctx_destroy(ctx);
        ctx = with("counts", "inverter", NULL);
        CHECK(strcmp(kr_ctx_kernel(ctx, "ssd"), "counts") == 0, "on the host: %s", kr_ctx_kernel(ctx, "ssd"));
        kr_ctx_destroy(ctx);
        kr_ctx_destroy(plain);
    }
    inverter.is_visible = inverter_device.is_host_visible = false;
    CHECK(inverter.opened == 0, "%d are open", inverter.opened);
    char devices[2000];
    kr_devices_text(devices, sizeof devices);
    CHECK(strstr(devices, "inverter: the device of a backend\n") != NULL, "%s", devices);
}

static void *no_alloc(void *user, size_t bytes, void *stream)
{
    (void)user, (void)bytes, (void)stream;
    return NULL;
}

static void no_free(void *user, void *p, size_t bytes, void *stream)
{
    (void)user, (void)p, (void)bytes, (void)stream;
}

/* Streams and device allocators are for GPUs of the library. */
TEST(a_device_from_outside_has_no_streams_and_its_own_memory)
{
    const kr_device_allocator hooks = { .alloc = no_alloc, .free = no_free };
    add(&inverting);
    kr_ctx_options options;
    kr_ctx_options_init(&options);
    options.threads = 1;
    options.device = "inverter";
    options.device_allocator = &hooks;
    kr_ctx *ctx = kr_ctx_create(&options);
    CHECK(kr_ctx_status(ctx) == KR_ERR_UNSUPPORTED, "%s", kr_ctx_message(ctx));
    CHECK(strcmp(kr_ctx_message(ctx), "ctx: device inverter:0: device_allocator is set, but a backend's device has "
                                      "its own memory") == 0,
          "%s", kr_ctx_message(ctx));
    kr_ctx_destroy(ctx);
    options.device_allocator = NULL;
    ctx = kr_ctx_create(&options);
    CHECK(kr_ctx_use_stream(ctx, NULL) == KR_OK, "%s", kr_ctx_message(ctx));
    CHECK(kr_ctx_use_stream(ctx, KR_STREAM_LEGACY) == KR_ERR_UNSUPPORTED, "a stream");
    CHECK_ERROR(ctx, KR_ERR_UNSUPPORTED,
                "ctx.use_stream: the device inverter:0 Inverter has no streams; leave the stream NULL");
    kr_ctx_destroy(ctx);
}

static const kr_backend_info for_inverter = { KR_BACKEND_HEAD, .name = "softer", .target = "inverter",
                                              .kernels = &inverter_kernels };

TEST(backends_replace_kernels_of_a_device)
{
    add(&inverting);
    add(&for_inverter);
    kr_ctx *ctx = with("softer", "inverter", NULL);
    CHECK_OK(ctx);
    CHECK(kr_ctx_backend_stats(ctx).n_backends == 1, "not used");
    kr_ctx *cpu = with("softer", "cpu", NULL);
    CHECK(kr_ctx_backend_stats(cpu).n_backends == 0, "used");
    kr_ctx_destroy(cpu);
    kr_ctx_destroy(ctx);
}

TEST(backends_pass_on_what_they_replace)
{
    add(&inverting);
    add(&passes_cpu);
    add(&passes_mock);
    add(&passes_inverter);
    check_passing("pass_cpu", "cpu", false);
    check_passing("pass_mock", "mock", false);
    check_passing("pass_inverter", "inverter", true); /* through the device's slot, which falls back */
    check_passing("pass_cpu", "inverter", true);      /* in the CPU's table, which runs for the device */
    check_passing("pass_cpu,pass_inverter", "inverter", true);
    kr_ctx *ctx = with("pass_inverter", "inverter", NULL);
    CHECK(strcmp(kr_ctx_kernel(ctx, "ssd"), "pass_inverter") == 0 &&
              strcmp(kr_ctx_kernel(ctx, "silu"), "inverter") != 0,
          "ssd runs on %s, silu on %s", kr_ctx_kernel(ctx, "ssd"), kr_ctx_kernel(ctx, "silu"));
    kr_ctx_destroy(ctx);
}

/* Lists of arguments would pass by the slots of a device: the mock device runs layers as one. */
static void no_adamw(const kr_adamw_args *args)
{
    (void)args;
}

static const kr_kernels still = { .adamw = { [KR_REAL_F32] = { .run = no_adamw } } };
static const kr_backend_info for_mock = { KR_BACKEND_HEAD, .name = "still", .target = "mock", .kernels = &still };

TEST(backends_replace_kernels_of_lists)
{
    add(&for_mock);
    kr_ctx *ctx = with("still", "mock:1", NULL), *plain = with("", "mock:1", NULL);
    CHECK_OK(ctx);
    CHECK(plain->device->lists && !ctx->device->lists, "lists are run past the slots");
    CHECK(strcmp(kr_ctx_kernel(ctx, "adamw"), "still") == 0 && strcmp(kr_ctx_kernel(ctx, "ssd"), "mock") == 0,
          "adamw runs on %s, ssd on %s", kr_ctx_kernel(ctx, "adamw"), kr_ctx_kernel(ctx, "ssd"));
    kr_tensor *w = kr_param_create(ctx, KR_DTYPE_F32, KR_SHAPE(4));
    kr_params *params = kr_params_create(ctx);
    kr_params_share(params, "w", w, NULL);
    kr_optimizer *optimizer = kr_optimizer_create(ctx, params, NULL);
    kr_tape *tape = kr_tape_create(ctx, KR_TAPE_GRAD);
    kr_backward(tape, kr_sum(tape, w, KR_AXES(0), false));
    CHECK(kr_optimizer_step(optimizer, 1, 1) == KR_OK, "%s", kr_ctx_message(ctx));
    CHECK(kr_tensor_at(w, (int64_t[]){ 0 }) == 0, "w is %g", kr_tensor_at(w, (int64_t[]){ 0 }));
    kr_tape_destroy(tape);
    kr_optimizer_destroy(optimizer);
    kr_params_destroy(params);
    kr_param_destroy(w);
    kr_ctx_destroy(ctx);
    kr_ctx_destroy(plain);
}

TEST(backend_devices_that_fail)
{
    add(&inverting);
    kr_ctx *ctx = with("", "inverter:2", NULL);
    CHECK_ERROR_HAS(ctx, KR_ERR_DEVICE, "ctx: device inverter:2: there are two of them");
    kr_ctx_destroy(ctx);
    ctx = with("", "inverters", NULL);
    CHECK_ERROR_HAS(ctx, KR_ERR_ARG,
                    "ctx: device = inverters is not a device; choose one of: cpu, cuda, cuda:N, or the");
    kr_ctx_destroy(ctx);
    ctx = with("", "inverter:x", NULL);
    CHECK_ERROR_HAS(ctx, KR_ERR_ARG, "ctx: device = inverter:x is not a device");
    kr_ctx_destroy(ctx);

    ctx = with("", "inverter", NULL);
    inverter.until_broken = 3;
    kr_tape *tape = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    for (int i = 0; i < 5; i++) kr_randn(tape, KR_DTYPE_F32, KR_SHAPE(8));
    CHECK(kr_ctx_status(ctx) == KR_ERR_DEVICE, "%s", kr_ctx_message(ctx));
    CHECK(strstr(kr_ctx_message(ctx), "it broke, as it was asked to") != NULL, "%s", kr_ctx_message(ctx));
    inverter.until_broken = -1;
    kr_tape_destroy(tape);
    kr_ctx_destroy(ctx);

    ctx = with("", "inverter", NULL);
    inverter.bytes_left = 1 << 16;
    tape = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    CHECK(!kr_zeros(tape, KR_DTYPE_F32, KR_SHAPE(1 << 20)), "too much");
    CHECK_ERROR_HAS(ctx, KR_ERR_NOMEM, "");
    inverter.bytes_left = -1;
    kr_tape_destroy(tape);
    kr_ctx_destroy(ctx);
    CHECK(inverter.opened == 0, "%d are open", inverter.opened);
}

/* ---- memory ---- */

static int until_refused, live_blocks;

static void *counted_alloc(void *user, size_t bytes, size_t align)
{
    (void)user;
    if (until_refused > 0 && --until_refused == 0) return NULL;
    live_blocks++;
    return aligned_alloc(align, (bytes + align - 1) / align * align);
}
static void counted_free(void *user, void *p)
{
    (void)user;
    live_blocks--;
    free(p);
}

TEST(backend_contexts_without_memory)
{
    add(&inverting);
    kr_ctx_options options;
    kr_ctx_options_init(&options);
    options.threads = 1;
    options.backend = PLUGIN("good");
    options.device = "inverter";
    options.allocator = (kr_allocator){ counted_alloc, counted_free, NULL };
    int n = 1;
    for (bool done = false; !done; n++) {
        until_refused = n;
        kr_ctx *ctx = kr_ctx_create(&options);
        kr_tape *tape = kr_ctx_failed(ctx) ? NULL : kr_tape_create(ctx, KR_TAPE_NO_GRAD);
        done = tape && kr_randn(tape, KR_DTYPE_F32, KR_SHAPE(8)) && kr_ctx_wait(ctx) == KR_OK;
        if (done) CHECK(kr_ctx_failed(ctx) == false, "%s", kr_ctx_message(ctx));
        until_refused = 0;
        kr_tape_destroy(tape);
        kr_ctx_destroy(ctx);
        CHECK(live_blocks == 0 && inverter.live == 0, "allocation %d: %d and %d blocks are left", n, live_blocks,
              inverter.live);
    }
    CHECK(n > 4, "%d allocations", n);
}

/* ---- functions of a device that fail ---- */

/* Everything that a program does, until a call of the device fails. */
static void use_inverter(kr_ctx *ctx)
{
    int64_t count;
    if (kr_ctx_failed(ctx)) return;
    kr_mamba3_config mamba;
    kr_mamba3_config_init(&mamba);
    mamba.d_model = 8;
    mamba.state_rank = mamba.per_head_dim = 4;
    kr_mamba3 *block = kr_mamba3_create(ctx, &mamba);
    kr_params *params = kr_mamba3_params(block);
    kr_optimizer *optimizer = kr_optimizer_create(ctx, params, NULL);
    kr_tape *tape = kr_tape_create(ctx, KR_TAPE_GRAD);
    kr_tensor *x = kr_randn(tape, KR_DTYPE_F32, KR_SHAPE(1, 3, 8));
    const kr_mamba3_out out = kr_mamba3_forward(tape, block, x, NULL, kr_mamba3_path(block));
    kr_backward(tape, kr_mse(tape, out.y, x, NULL));
    IGNORE(kr_optimizer_step(optimizer, 1e-2, 1));
    double values[24];
    IGNORE(kr_tensor_read(out.y, KR_DTYPE_F64, values, 24));
    kr_tensor *w = block ? kr_params_at(params, 0)->tensor : NULL;
    count = kr_tensor_count(w);
    if (count > 0) IGNORE(kr_param_fill(w, 1));
    kr_tape_destroy(tape);
    kr_optimizer_destroy(optimizer);
    kr_mamba3_destroy(block);
    IGNORE(kr_ctx_wait(ctx));
}

TEST(backend_devices_whose_functions_fail)
{
    add(&inverting);
    int64_t n = 1;
    for (bool done = false; !done; n += 1 + kr_test_below(kr_test_quick() ? 300 : 60)) {
        kr_ctx *ctx = with("", "inverter", NULL);
        CHECK_OK(ctx);
        inverter.until_failed = n;
        use_inverter(ctx);
        done = inverter.until_failed > 0;
        CHECK(done == !kr_ctx_failed(ctx), "call %lld: %s", (long long)n, kr_ctx_message(ctx));
        if (!done) {
            CHECK(kr_ctx_status(ctx) == KR_ERR_DEVICE && strstr(kr_ctx_message(ctx), "it stumbled"), "call %lld: %s",
                  (long long)n, kr_ctx_message(ctx));
            kr_ctx_clear(ctx);
            use_inverter(ctx); /* which stays broken, and says so */
            CHECK(kr_ctx_status(ctx) == KR_ERR_DEVICE, "call %lld: %s", (long long)n, kr_ctx_message(ctx));
        }
        inverter.until_failed = 0;
        kr_ctx_destroy(ctx);
        CHECK(inverter.live == 0 && inverter.opened == 0, "call %lld: %d blocks are left", (long long)n, inverter.live);
    }
    CHECK(n > 100, "%lld calls", (long long)n);
}

/* Host memory for operands that fall back: an error like any other, after which the context works. */
TEST(backend_fallbacks_without_memory)
{
    add(&inverting);
    kr_ctx *ctx = with("", "inverter", NULL);
    int failures = 0;
    for (size_t n = 1; failures < 100; n++) {
        kr_tape *tape = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
        kr_tensor *x = kr_full(tape, KR_DTYPE_F32, KR_SHAPE(3, 5), 1);
        CHECK_OK(ctx);
        kr_ctx_fail_allocation(ctx, n);
        kr_tensor *y = kr_exp(tape, x);
        kr_ctx_fail_allocation(ctx, 0);
        const bool done = y != NULL;
        if (!done) CHECK_ERROR_HAS(ctx, KR_ERR_NOMEM, "inverter:0 Inverter: no host memory for ");
        else CHECK(fabs(kr_tensor_at(y, (int64_t[]){ 2, 4 }) - exp(1)) < 1e-6, "exp");
        kr_tape_destroy(tape);
        if (done) break;
        failures++;
    }
    CHECK(failures >= 1 && failures < 100, "%d allocations", failures);
    CHECK_OK(ctx);
    kr_ctx_destroy(ctx);
}

/* ---- one model in several contexts ---- */

enum { SHARERS = 4, NS = 5, VOCAB = 16 };

static kr_network *small_network(kr_ctx *ctx)
{
    kr_mamba2_config block;
    kr_mamba2_config_init(&block);
    block.d_model = 8;
    block.state_rank = block.per_head_dim = 4;
    kr_layers_config layers;
    kr_layers_config_init(&layers);
    layers.block = kr_mamba2_block(&block);
    layers.n_layers = 1;
    kr_network_config config;
    kr_network_config_init(&config);
    config.layers = &layers;
    config.vocab_size = VOCAB;
    kr_ctx_seed(ctx, 3);
    return kr_network_create(ctx, &config);
}

static double *logits_of(kr_ctx *ctx, const kr_network *net)
{
    const int32_t ids[NS] = { 3, 1, 4, 1, 5 };
    kr_tape *tape = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    kr_tensor *x = kr_from_data(tape, KR_DTYPE_I32, KR_SHAPE(1, NS), ids);
    double *y = kr_test_values(kr_network_forward(tape, net, x, NULL).y);
    CHECK_OK(ctx);
    kr_tape_destroy(tape);
    return y;
}

typedef struct sharer {
    pthread_t thread;
    const kr_network *from;
    kr_network *net;
    kr_ctx *ctx;
    const double *want;
    int wrong;
} sharer;

static void *use_shared(void *arg)
{
    sharer *s = arg;
    for (int i = 0; i < 5; i++) {
        double *y = logits_of(s->ctx, s->net);
        s->wrong += memcmp(y, s->want, NS * VOCAB * sizeof *y) != 0;
        free(y);
    }
    kr_network_destroy(s->net);
    kr_ctx_destroy(s->ctx);
    return NULL;
}

TEST(backend_devices_share_models_with_threads)
{
    add(&inverting);
    for (int visible = 0; visible < 2; visible++) {
        inverter.is_visible = inverter_device.is_host_visible = visible;
        sharer all[SHARERS];
        kr_ctx *cpu = with("", "cpu", NULL), *one = with("", "inverter", NULL);
        kr_network *plain = small_network(cpu), *net = small_network(one);
        CHECK(kr_ctx_wait(one) == KR_OK, "%s", kr_ctx_message(one));
        double *want = logits_of(cpu, plain);
        for (int i = 0; i < SHARERS; i++) {
            all[i] = (sharer){ .ctx = with("", "inverter", NULL), .want = want };
            all[i].net = kr_network_share(all[i].ctx, i ? all[i - 1].net : net);
            CHECK_OK(all[i].ctx);
        }
        kr_network_destroy(net); /* the first one leaves: its memory stays */
        kr_ctx_destroy(one);
        for (int i = 0; i < SHARERS; i++)
            if (pthread_create(&all[i].thread, NULL, use_shared, &all[i]) != 0) exit(2);
        for (int i = 0; i < SHARERS; i++) {
            pthread_join(all[i].thread, NULL);
            CHECK(all[i].wrong == 0, "thread %d: %d results are wrong", i, all[i].wrong);
        }
        CHECK(inverter.live == 0 && inverter.opened == 0, "%d blocks are left", inverter.live);
        free(want);
        kr_network_destroy(plain);
        kr_ctx_destroy(cpu);
    }
    inverter.is_visible = inverter_device.is_host_visible = false;
}

TEST(backend_devices_that_do_not_share)
{
    add(&inverting);
    kr_ctx *one = with("", "inverter", NULL), *two = with("", "inverter", NULL), *third = with("", "inverter:1", NULL);
    kr_network *net = small_network(one);
    CHECK(!kr_network_share(third, net), "another device");
    CHECK_ERROR_HAS(third, KR_ERR_STATE, "network.share: the weights are on device inverter:0 Inverter, but the");
    inverter_device.free_detached = NULL;
    CHECK(!kr_network_share(two, net), "without free_detached");
    CHECK_ERROR_HAS(two, KR_ERR_UNSUPPORTED, "network.share: the backend of device inverter:0 Inverter cannot share");
    inverter_device.free_detached = inverter_free_detached;
    int failures = 0;
    for (kr_network *shared = NULL; !shared; failures++) {
        kr_ctx_fail_allocation(two, (size_t)failures + 1);
        shared = kr_network_share(two, net);
        kr_ctx_fail_allocation(two, 0);
        if (!shared) CHECK_ERROR_HAS(two, KR_ERR_NOMEM, "");
        kr_network_destroy(shared);
        if (shared) break;
    }
    CHECK(failures > 5, "%d allocations", failures);
    CHECK(kr_params_reset(kr_network_params(net)) == KR_OK, "a single user: %s", kr_ctx_message(one));
    kr_ctx_destroy(third);
    kr_ctx_destroy(two);
    kr_network_destroy(net);
    kr_ctx_destroy(one);
    CHECK(inverter.live == 0 && inverter.opened == 0, "%d blocks are left", inverter.live);
}
