/* conformance_device.c - runs kernels on a device: operands are copied there, and back after the run.
 *
 * The device is the one of KR_DEVICE, or else the first GPU of a build that has kernels for it. All operands of a run
 * are copied there in one block, through pinned memory, and back in one; memory is kept from run to run. With
 * KR_TEST_SM80 a GPU is treated as one of sm_80 with the least shared memory, so that the kernels for such a device are
 * run.
 */
#include "tests/kernels/conformance.h"

#include "device/device.h"
#ifdef KR_HAVE_CUDA
#include "kernels/cuda/cuda.h"
#endif

enum { STEP = 256, GUARD = 256, GUARD_BYTE = 0xa5 }; /* between operands; after scratch */

/* A growable block. */
typedef struct block {
    kr_memory *memory;
    char *data;
    size_t bytes;
} block;

static kr_ctx *ctx;
static block operands, scratch; /* device memory */
static block stage, list;       /* pinned: staged operands, the sequences of one run */
static char why_not[256] = "this build has kernels for the processor alone";

static void pass_for_sm80(kr_ctx *opened)
{
#ifdef KR_HAVE_CUDA
    kr_cuda *gpu = opened->device->own;
    if (!getenv("KR_TEST_SM80") || !gpu || strncmp(kr_ctx_device(opened), "cuda", 4) != 0) return;
    gpu->arch = 80;
    gpu->shared_bytes = KR_CUDA_LEAST_SHARED;
#else
    (void)opened;
#endif
}

static kr_ctx *open_ctx(void)
{
    const char *device = getenv("KR_DEVICE");
#ifdef KR_HAVE_CUDA
    if (!device || !*device) device = "cuda";
#endif
    if (!device || !*device || strcmp(device, "cpu") == 0) return NULL;
    kr_ctx_options options;
    kr_ctx_options_init(&options);
    options.device = device;
    options.threads = 1;
    kr_ctx *opened = kr_ctx_create(&options);
    if (!kr_ctx_failed(opened)) {
        pass_for_sm80(opened);
        return opened;
    }
    snprintf(why_not, sizeof why_not, "%s", kr_ctx_message(opened));
    kr_ctx_destroy(opened);
    return NULL;
}

const kr_kernels *device_kernels(void)
{
    static bool was_asked;
    if (!was_asked && (ctx = open_ctx())) {
        operands.memory = scratch.memory = kr_float_memory(ctx);
        stage.memory = list.memory = kr_shared_memory(ctx);
    }
    was_asked = true;
    return ctx ? &ctx->device->kernels : NULL;
}

bool device_is_requested(void)
{
    const char *device = getenv("KR_DEVICE");
    return device && *device && device_kernels();
}

const char *device_why_not(void)
{
    return why_not;
}

static void must(bool ok, const char *kernel, const char *text)
{
    CHECK(ok, "%s, %s: %s", kernel, text, kr_ctx_message(ctx));
    if (!ok || kr_ctx_failed(ctx)) exit(2); /* after a device failure no result is meaningful */
}

static char *block_of(block *r, size_t bytes)
{
    if (bytes <= r->bytes) return r->data;
    if (r->data) kr_memory_free(r->memory, r->data, r->bytes);
    r->bytes = 2 * bytes + (1 << 20);
    r->data = kr_memory_alloc(r->memory, r->bytes);
    if (!r->data) exit(2);
    return r->data;
}

/* ---- lists of sequences ---- */

#define LISTS(name, args)                                                                                              \
    {                                                                                                                  \
#name, offsetof(args, sequences), offsetof(args, nq)                                                           \
    }
static const struct {
    const char *kernel;
    size_t sequences, count;
} lists[] = { LISTS(conv, kr_conv_args),
              LISTS(conv_bwd, kr_conv_bwd_args),
              LISTS(angles, kr_angles_args),
              LISTS(angles_bwd, kr_angles_bwd_args),
              LISTS(quaternion_scan, kr_quaternion_scan_args),
              LISTS(quaternion_scan_bwd, kr_quaternion_scan_bwd_args),
              LISTS(ssd, kr_ssd_args),
              LISTS(ssd_bwd, kr_ssd_bwd_args),
              LISTS(scan, kr_scan_args),
              LISTS(scan_bwd, kr_scan_bwd_args) };

/* Copied to memory that the kernel can read. */
static void share_sequences(const char *kernel, char *args)
{
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        if (strcmp(lists[i].kernel, kernel) != 0) continue;
        const void *from;
        int64_t count;
        memcpy(&from, args + lists[i].sequences, sizeof from);
        memcpy(&count, args + lists[i].count, sizeof count);
        if (!from) continue;
        char *shared = block_of(&list, (size_t)count * sizeof(kr_sequence));
        if (count) memcpy(shared, from, (size_t)count * sizeof(kr_sequence));
        memcpy(args + lists[i].sequences, &shared, sizeof shared);
    }
}

/* ---- a run ---- */

static size_t round_up(size_t bytes)
{
    return (bytes + STEP - 1) / STEP * STEP;
}

/* Redirects a pointer into the span to its copy. */
static void move_pointer(char *args, size_t field, const kr_span *span, char *copy)
{
    char *p;
    memcpy(&p, args + field, sizeof p);
    if (p) p = copy + (p - (char *)span->data);
    memcpy(args + field, &p, sizeof p);
}

static void copy_to_device(char *args, const kr_span *spans, int count, const char *name, const char *text)
{
    size_t total = 0;
    for (int i = 0; i < count; i++) total += round_up(spans[i].bytes);
    char *device_copy = block_of(&operands, total + STEP), *staged = block_of(&stage, total + STEP);
    size_t at = 0;
    for (int i = 0; i < count; at += round_up(spans[i++].bytes)) {
        if (spans[i].bytes) memcpy(staged + at, spans[i].data, spans[i].bytes);
        move_pointer(args, spans[i].field, &spans[i], device_copy + at);
        if (spans[i].also) move_pointer(args, spans[i].also, &spans[i], device_copy + at);
    }
    must(kr_store(ctx, device_copy, staged, total), name, text);
}

static void copy_back(const kr_span *spans, int count, const char *name, const char *text)
{
    size_t at = 0, first = SIZE_MAX, end = 0;
    for (int i = 0; i < count; at += round_up(spans[i++].bytes)) {
        if (!spans[i].is_output || spans[i].bytes == 0) continue;
        if (first == SIZE_MAX) first = at;
        end = at + spans[i].bytes;
    }
    if (first == SIZE_MAX) return;
    must(kr_fetch(ctx, stage.data + first, operands.data + first, end - first), name, text);
    at = 0;
    for (int i = 0; i < count; at += round_up(spans[i++].bytes))
        if (spans[i].is_output && spans[i].bytes) memcpy(spans[i].data, stage.data + at, spans[i].bytes);
}

/* Filled with NaN, guard bytes after it. */
static char *make_scratch(size_t bytes, const kr_exec *exec)
{
    char guard[GUARD];
    memset(guard, GUARD_BYTE, sizeof guard);
    char *data = block_of(&scratch, round_up(bytes) + GUARD);
    kr_fill_args nan = { .exec = *exec, .dtype = KR_DTYPE_F32, .y = data, .value = (double)NAN };
    nan.walk.rank = 1;
    nan.walk.dims[0] = (int64_t)(bytes + sizeof(float) - 1) / (int64_t)sizeof(float);
    nan.walk.strides[0][0] = 1;
    ctx->device->kernels.fill.run(&nan);
    must(kr_store(ctx, data + bytes, guard, sizeof guard), "fill", "scratch");
    return data;
}

static bool guard_is_whole(size_t bytes)
{
    char guard[GUARD];
    must(kr_fetch(ctx, guard, scratch.data + bytes, sizeof guard), "fill", "scratch");
    for (int i = 0; i < GUARD; i++)
        if ((unsigned char)guard[i] != GUARD_BYTE) return false;
    return true;
}

static void (*exec_change)(kr_exec *exec);

void device_change_exec(void (*change)(kr_exec *exec))
{
    exec_change = change;
}

bool device_run_count(const kr_kernel *kernel, int real, char *args, const kr_span *spans, int count, const char *text)
{
    kr_exec *exec = (kr_exec *)(void *)args;
    must(kr_wait(ctx), kernel->name, text);
    copy_to_device(args, spans, count, kernel->name, text);
    share_sequences(kernel->name, args);
    *exec = (kr_exec){ 0 };
    kr_exec_set(ctx, exec, true, kernel->name);
    if (exec_change) exec_change(exec);
    const size_t bytes = kernel->scratch(device_kernels(), real, args);
    if (bytes) exec->scratch = make_scratch(bytes, exec);
    kernel->run(device_kernels(), real, args);
    must(kr_exec_check(ctx, kernel->name) && kr_wait(ctx), kernel->name, text);
    copy_back(spans, count, kernel->name, text);
    return bytes == 0 || guard_is_whole(bytes);
}

TEST(a_device_takes_part)
{
    if (!device_kernels()) SKIP(device_why_not());
}
