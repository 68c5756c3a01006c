/* device_cuda.c - an NVIDIA GPU by the CUDA runtime, which is linked statically: a build with it starts on machines
 * without a driver, and says there why it has no device.
 *
 * One stream, and one pool of memory in its order, for each context. Shared memory is the host's, pinned: kernels read it
 * by the same address.
 */
#include "device/device.h"

#include "base/page.h"
#include "kernels/cuda/cuda.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <string.h>

typedef struct cuda {
    kr_cuda shown; /* to kernels */
    kr_memory *memory;
    cudaStream_t stream;
    cudaEvent_t marks[KR_MARKS];
    cudaMemPool_t pool; /* NULL: the device has none, and memory is the runtime's */
    cudaStream_t aside; /* for memory that is asked for while the stream records; made when it is needed */
    bool is_recording, tore_record;
} cuda;

typedef struct cuda_record {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
} cuda_record;

static const char *reason(cudaError_t error)
{
    return error == cudaSuccess ? NULL : cudaGetErrorString(error);
}

/* The runtime's calls are about the thread's current device. */
static void enter(const kr_device *device)
{
    cudaSetDevice(((const cuda *)device->handle)->shown.number);
}

/* ---- memory ---- */

/* A stream that records takes no memory for itself: another one does, and is waited for. */
static cudaError_t ask_aside(cuda *c, void **p, size_t bytes)
{
    cudaError_t error = c->aside ? cudaSuccess : cudaStreamCreateWithFlags(&c->aside, cudaStreamNonBlocking);
    if (error == cudaSuccess) error = cudaMallocFromPoolAsync(p, bytes, c->pool, c->aside);
    return error == cudaSuccess ? cudaStreamSynchronize(c->aside) : error;
}

static cudaError_t ask(cuda *c, void **p, size_t bytes)
{
    return !c->pool          ? cudaMalloc(p, bytes)
           : c->is_recording ? ask_aside(c, p, bytes)
                             : cudaMallocFromPoolAsync(p, bytes, c->pool, c->stream);
}

static void *far_alloc(void *user, size_t bytes, size_t align)
{
    cuda *c = user;
    void *p = NULL;
    (void)align; /* 256 bytes at least */
    cudaSetDevice(c->shown.number);
    cudaError_t error = ask(c, &p, bytes);
    if (error == cudaErrorMemoryAllocation && c->pool && !c->is_recording) {
        /* what was freed is in pieces, or waits for its stream */
        cudaGetLastError();
        cudaStreamSynchronize(c->stream);
        cudaMemPoolTrimTo(c->pool, 0);
        error = ask(c, &p, bytes);
    }
    if (error == cudaSuccess) return p;
    cudaGetLastError(); /* a refusal is told by NULL, and is not the next kernel's */
    return NULL;
}

static void far_free(void *user, void *p)
{
    cuda *c = user;
    cudaSetDevice(c->shown.number);
    c->tore_record = true; /* what was recorded may use it */
    if (!c->pool) cudaFree(p);
    else cudaFreeAsync(p, c->is_recording && c->aside ? c->aside : c->stream);
}

static void far_zero(void *user, void *p, size_t bytes)
{
    const cuda *c = user;
    cudaSetDevice(c->shown.number);
    cudaMemsetAsync(p, 0, bytes, c->stream);
}

static void *shared_alloc(void *user, size_t bytes, size_t align)
{
    const cuda *c = user;
    void *p = NULL;
    (void)align; /* a page's */
    cudaSetDevice(c->shown.number);
    if (cudaHostAlloc(&p, bytes, cudaHostAllocMapped | cudaHostAllocPortable) == cudaSuccess) return p;
    cudaGetLastError();
    return NULL;
}

static void shared_free(void *user, void *p)
{
    const cuda *c = user;
    cudaSetDevice(c->shown.number);
    cudaFreeHost(p);
}

/* ---- verbs ---- */

static bool holds(const kr_device *device, const void *p)
{
    struct cudaPointerAttributes about;
    enter(device);
    if (cudaPointerGetAttributes(&about, p) == cudaSuccess) return about.type == cudaMemoryTypeDevice;
    cudaGetLastError();
    return false;
}

static const char *transfer(kr_device *device, void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind)
{
    const cuda *c = device->handle;
    enter(device);
    const cudaError_t error = cudaMemcpyAsync(to, from, bytes, kind, c->stream);
    return reason(error == cudaSuccess && kind != cudaMemcpyDeviceToDevice ? cudaStreamSynchronize(c->stream) : error);
}

static const char *upload(kr_device *device, void *far, const void *near, size_t bytes)
{
    return transfer(device, far, near, bytes, cudaMemcpyHostToDevice);
}

static const char *download(kr_device *device, void *near, const void *far, size_t bytes)
{
    return transfer(device, near, far, bytes, cudaMemcpyDeviceToHost);
}

static const char *copy(kr_device *device, void *to, const void *from, size_t bytes)
{
    return transfer(device, to, from, bytes, cudaMemcpyDeviceToDevice);
}

static const char *wait_for(kr_device *device)
{
    const cuda *c = device->handle;
    enter(device);
    return reason(cudaStreamSynchronize(c->stream));
}

static const char *mark(kr_device *device, int which)
{
    const cuda *c = device->handle;
    enter(device);
    return reason(cudaEventRecord(c->marks[which], c->stream));
}

static const char *wait_mark(kr_device *device, int which)
{
    const cuda *c = device->handle;
    enter(device);
    return reason(cudaEventSynchronize(c->marks[which]));
}

static const char *check(kr_device *device)
{
    (void)device;
    return reason(cudaGetLastError());
}

/* What the pool keeps without using it is free, too. */
static bool room(const kr_device *device, size_t *free, size_t *all)
{
    const cuda *c = device->handle;
    uint64_t reserved = 0, used = 0;
    enter(device);
    if (cudaMemGetInfo(free, all) != cudaSuccess) {
        cudaGetLastError();
        return false;
    }
    if (c->pool && cudaMemPoolGetAttribute(c->pool, cudaMemPoolAttrReservedMemCurrent, &reserved) == cudaSuccess &&
        cudaMemPoolGetAttribute(c->pool, cudaMemPoolAttrUsedMemCurrent, &used) == cudaSuccess)
        *free += (size_t)(reserved - used);
    return true;
}

/* What set_up made, all of it or some. */
static void take_down(cuda *c)
{
    cudaFree(c->shown.arrivals);
    for (int i = 0; i < KR_MARKS; i++)
        if (c->marks[i]) cudaEventDestroy(c->marks[i]);
    if (c->pool) cudaMemPoolDestroy(c->pool);
    if (c->aside) cudaStreamDestroy(c->aside);
    if (c->stream) cudaStreamDestroy(c->stream);
}

static void close_device(kr_device *device)
{
    cuda *c = device->handle;
    enter(device);
    cudaStreamSynchronize(c->stream);
    take_down(c);
    kr_memory_free(c->memory, c, sizeof *c);
}

/* ---- recording ---- */

static const char *begin_record(kr_device *device)
{
    cuda *c = device->handle;
    enter(device);
    const cudaError_t error = cudaStreamBeginCapture(c->stream, cudaStreamCaptureModeRelaxed);
    c->is_recording = error == cudaSuccess;
    c->tore_record = false;
    return reason(error);
}

static int64_t count_kernels(cudaGraph_t graph)
{
    cudaGraphNode_t nodes[4096];
    size_t count = sizeof nodes / sizeof *nodes;
    int64_t kernels = 0;
    if (cudaGraphGetNodes(graph, nodes, &count) != cudaSuccess) count = 0;
    for (size_t i = 0; i < count; i++) {
        enum cudaGraphNodeType type;
        kernels += cudaGraphNodeGetType(nodes[i], &type) == cudaSuccess && type != cudaGraphNodeTypeEmpty;
    }
    return kernels;
}

static void *end_record(kr_device *device, int64_t *launches)
{
    cuda *c = device->handle;
    cuda_record *r = kr_memory_alloc_zeroed(c->memory, sizeof *r);
    cudaGraph_t graph = NULL;
    enter(device);
    c->is_recording = false;
    const cudaError_t error = cudaStreamEndCapture(c->stream, &graph);
    if (r && error == cudaSuccess && !c->tore_record && cudaGraphInstantiate(&r->exec, graph, 0) == cudaSuccess) {
        r->graph = graph;
        *launches = count_kernels(graph);
        return r;
    }
    cudaGetLastError();
    if (graph) cudaGraphDestroy(graph);
    kr_memory_free(c->memory, r, sizeof *r);
    return NULL;
}

static const char *replay(kr_device *device, void *record)
{
    const cuda *c = device->handle;
    enter(device);
    return reason(cudaGraphLaunch(((const cuda_record *)record)->exec, c->stream));
}

static void forget(kr_device *device, void *record)
{
    const cuda *c = device->handle;
    cuda_record *r = record;
    enter(device);
    cudaGraphExecDestroy(r->exec);
    cudaGraphDestroy(r->graph);
    kr_memory_free(c->memory, r, sizeof *r);
}

static const kr_device_verbs verbs = { .enter = enter,
                                       .holds = holds,
                                       .upload = upload,
                                       .download = download,
                                       .copy = copy,
                                       .wait = wait_for,
                                       .mark = mark,
                                       .wait_mark = wait_mark,
                                       .check = check,
                                       .room = room,
                                       .close = close_device,
                                       .begin_record = begin_record,
                                       .end_record = end_record,
                                       .replay = replay,
                                       .forget = forget };

static const kr_device_lists lists = { .adamw = { kr_cuda_f32_adamw_each, kr_cuda_f64_adamw_each },
                                       .squares = kr_cuda_squares_each,
                                       .token_layers = kr_cuda_token_layers,
                                       .token_layers_scratch = kr_cuda_token_layers_scratch };

/* ---- opening ---- */

static int attribute(int number, enum cudaDeviceAttr which)
{
    int value = 0;
    cudaDeviceGetAttribute(&value, which, number);
    return value;
}

static int arch_of(int number)
{
    return 10 * attribute(number, cudaDevAttrComputeCapabilityMajor) +
           attribute(number, cudaDevAttrComputeCapabilityMinor);
}

static cudaError_t open_pool(cuda *c)
{
    if (!attribute(c->shown.number, cudaDevAttrMemoryPoolsSupported)) return cudaSuccess;
    const struct cudaMemPoolProps properties = { .allocType = cudaMemAllocationTypePinned,
                                                 .location = { .type = cudaMemLocationTypeDevice,
                                                               .id = c->shown.number } };
    const cudaError_t error = cudaMemPoolCreate(&c->pool, &properties);
    uint64_t all = UINT64_MAX; /* what is freed stays ours until the context ends */
    if (error == cudaSuccess) cudaMemPoolSetAttribute(c->pool, cudaMemPoolAttrReleaseThreshold, &all);
    return error;
}

/* Whose kernels are in this build. */
static int arch_of_kernels(int number)
{
#ifdef KR_CUDA_WITHOUT_90A
    (void)number;
    return 80;
#else
    return arch_of(number);
#endif
}

static cudaError_t set_up(cuda *c, int number)
{
    c->shown = (kr_cuda){ .number = number,
                          .arch = arch_of_kernels(number),
                          .multiprocessors = attribute(number, cudaDevAttrMultiProcessorCount),
                          .shared_bytes = (size_t)attribute(number, cudaDevAttrMaxSharedMemoryPerBlockOptin) };
    cudaError_t error = cudaSetDevice(number);
    if (error == cudaSuccess) error = cudaStreamCreateWithFlags(&c->stream, cudaStreamNonBlocking);
    for (int i = 0; i < KR_MARKS && error == cudaSuccess; i++)
        error = cudaEventCreateWithFlags(&c->marks[i], cudaEventDisableTiming);
    if (error == cudaSuccess) error = open_pool(c);
    const size_t counters = (KR_CUDA_ARRIVALS + KR_CUDA_TURNS) * sizeof *c->shown.arrivals;
    if (error == cudaSuccess) error = cudaMalloc((void **)&c->shown.arrivals, counters);
    if (error == cudaSuccess) error = cudaMemset(c->shown.arrivals, 0, counters);
    return error;
}

static bool check_number(kr_ctx *ctx, int number)
{
    int count = 0, major = 0;
    cudaError_t error = cudaGetDeviceCount(&count);
    if (error == cudaSuccess && number >= count)
        return kr_fail(ctx, KR_ERR_ARG, "ctx: device cuda:%d, but there are %d, numbered from 0", number, count);
    /* the first call that fails in the child of a process that has used a GPU */
    if (error == cudaSuccess) error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, number);
    if (error != cudaSuccess) {
        cudaGetLastError();
        return kr_fail(ctx, KR_ERR_UNSUPPORTED, "ctx: device cuda:%d: no GPU can be used: %s", number, reason(error));
    }
    return kr_require(ctx, arch_of(number) >= 80, KR_ERR_UNSUPPORTED,
                      "ctx: device cuda:%d is sm_%d, but the kernels need sm_80 or newer", number, arch_of(number));
}

static bool open_device(kr_ctx *ctx, kr_device *device, int number)
{
    if (!check_number(ctx, number)) return false;
    cuda *c = kr_memory_alloc_zeroed(&ctx->memory, sizeof *c);
    if (!c) return kr_fail(ctx, KR_ERR_NOMEM, "ctx: no memory for a device");
    c->memory = &ctx->memory;
    const cudaError_t error = set_up(c, number);
    if (error != cudaSuccess) {
        cudaGetLastError();
        take_down(c);
        kr_memory_free(&ctx->memory, c, sizeof *c);
        return kr_fail(ctx, KR_ERR_DEVICE, "ctx: device cuda:%d cannot be opened: %s", number, reason(error));
    }
    device->verbs = &verbs;
    device->kernels = kr_cuda_kernels;
    device->lists = &lists;
    device->takes_halves = true;
    device->handle = c;
    device->stream = c->stream;
    device->own = &c->shown;
    kr_memory_init(&device->far, &(kr_allocator){ far_alloc, far_free, c });
    kr_memory_init(&device->shared, &(kr_allocator){ shared_alloc, shared_free, c });
    device->far.zero = far_zero;
    struct cudaDeviceProp about;
    const bool has_name = cudaGetDeviceProperties(&about, number) == cudaSuccess;
    snprintf(device->name, sizeof device->name, "cuda:%d %.100s", number, has_name ? about.name : "of no name");
    return true;
}

static size_t describe(char *text, size_t bytes)
{
    kr_page page = kr_page_of(text, bytes);
    int count = 0;
    const cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess) {
        cudaGetLastError();
        kr_page_write(&page, "cuda: no GPU can be used: %s\n", reason(error));
    }
    for (int i = 0; i < count; i++) {
        struct cudaDeviceProp about;
        if (cudaGetDeviceProperties(&about, i) != cudaSuccess) continue;
        kr_page_write(&page, "cuda:%d %s, %.1f GiB, sm_%d%s\n", i, about.name, (double)about.totalGlobalMem * 0x1p-30,
                      arch_of(i), arch_of(i) < 80 ? ", too old for the kernels, which need sm_80" : "");
    }
    return page.length;
}

const kr_device_kind kr_cuda_kind = { "cuda", open_device, describe };
