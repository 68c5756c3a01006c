/* device_cuda.c - an NVIDIA GPU through the CUDA runtime, which is linked statically: a build with it starts on machines
 * without a driver, and says why there is no device.
 *
 * One stream and one stream-ordered memory pool per context. Shared memory is pinned host memory: kernels read it at the
 * same address.
 */
#include "device/device.h"

#include "base/text_buffer.h"
#include "kernels/cuda/cuda.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <string.h>

typedef struct cuda {
    kr_cuda shown; /* passed to kernels */
    kr_memory *memory;
    cudaStream_t stream;
    cudaEvent_t marks[KR_EVENTS];
    cudaMemPool_t pool; /* NULL: not supported by the device, memory comes from the runtime */
    cudaStream_t aside; /* for allocations while the stream is capturing; created when needed */
    bool is_capturing, capture_failed;
} cuda;

typedef struct cuda_graph {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
} cuda_graph;

static const char *reason(cudaError_t error)
{
    return error == cudaSuccess ? NULL : cudaGetErrorString(error);
}

/* CUDA runtime calls apply to the thread's current device. */
static void enter(const kr_device *device)
{
    cudaSetDevice(((const cuda *)device->handle)->shown.number);
}

/* ---- memory ---- */

/* A capturing stream cannot allocate: another stream does, and is waited for. */
static cudaError_t alloc_aside(cuda *c, void **p, size_t bytes)
{
    cudaError_t error = c->aside ? cudaSuccess : cudaStreamCreateWithFlags(&c->aside, cudaStreamNonBlocking);
    if (error == cudaSuccess) error = cudaMallocFromPoolAsync(p, bytes, c->pool, c->aside);
    return error == cudaSuccess ? cudaStreamSynchronize(c->aside) : error;
}

static cudaError_t ask(cuda *c, void **p, size_t bytes)
{
    return !c->pool          ? cudaMalloc(p, bytes)
           : c->is_capturing ? alloc_aside(c, p, bytes)
                             : cudaMallocFromPoolAsync(p, bytes, c->pool, c->stream);
}

static void *device_alloc(void *user, size_t bytes, size_t align)
{
    cuda *c = user;
    void *p = NULL;
    (void)align; /* 256 bytes at least */
    cudaSetDevice(c->shown.number);
    cudaError_t error = ask(c, &p, bytes);
    if (error == cudaErrorMemoryAllocation && c->pool && !c->is_capturing) {
        /* freed memory may be fragmented, or wait for its stream */
        cudaGetLastError();
        cudaStreamSynchronize(c->stream);
        cudaMemPoolTrimTo(c->pool, 0);
        error = ask(c, &p, bytes);
    }
    if (error == cudaSuccess) return p;
    cudaGetLastError(); /* failure is reported by NULL, and must not be taken for the next kernel's */
    return NULL;
}

static void device_free(void *user, void *p)
{
    cuda *c = user;
    cudaSetDevice(c->shown.number);
    c->capture_failed = true; /* the captured graph may use it */
    if (!c->pool) cudaFree(p);
    else cudaFreeAsync(p, c->is_capturing && c->aside ? c->aside : c->stream);
}

/* Pool memory stays valid after its pool and its stream have been destroyed. The user is the number of the GPU. */
static void detached_free(void *user, void *p)
{
    cudaSetDevice((int)(intptr_t)user);
    cudaFree(p);
}

static kr_allocator detached(const kr_device *device)
{
    return (kr_allocator){ NULL, detached_free, (void *)(intptr_t)((const cuda *)device->handle)->shown.number };
}

static void device_zero(void *user, void *p, size_t bytes)
{
    const cuda *c = user;
    cudaSetDevice(c->shown.number);
    cudaMemsetAsync(p, 0, bytes, c->stream);
}

static void *shared_alloc(void *user, size_t bytes, size_t align)
{
    const cuda *c = user;
    void *p = NULL;
    (void)align; /* a buffer's */
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

/* ---- device operations ---- */

static bool holds(const kr_device *device, const void *p)
{
    struct cudaPointerAttributes about;
    enter(device);
    if (cudaPointerGetAttributes(&about, p) == cudaSuccess) return about.type == cudaMemoryTypeDevice;
    cudaGetLastError();
    return false;
}

static bool shares(const kr_device *device, const void *p)
{
    struct cudaPointerAttributes about;
    enter(device);
    if (cudaPointerGetAttributes(&about, p) == cudaSuccess)
        return about.type == cudaMemoryTypeHost || about.type == cudaMemoryTypeManaged;
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

static const char *upload(kr_device *device, void *device_memory, const void *host, size_t bytes)
{
    return transfer(device, device_memory, host, bytes, cudaMemcpyHostToDevice);
}

static const char *download(kr_device *device, void *host, const void *device_memory, size_t bytes)
{
    return transfer(device, host, device_memory, bytes, cudaMemcpyDeviceToHost);
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

static const char *record_event(kr_device *device, int which)
{
    const cuda *c = device->handle;
    enter(device);
    return reason(cudaEventRecord(c->marks[which], c->stream));
}

static const char *wait_event(kr_device *device, int which)
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

/* Unused memory of the pool counts as free, too. */
static bool memory_info(const kr_device *device, size_t *free, size_t *all)
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

/* Releases everything that set_up created, also after a partial failure. */
static void tear_down(cuda *c)
{
    cudaFree(c->shown.arrivals);
    for (int i = 0; i < KR_EVENTS; i++)
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
    tear_down(c);
    kr_memory_free(c->memory, c, sizeof *c);
}

/* ---- graph capture ---- */

static const char *capture_begin(kr_device *device)
{
    cuda *c = device->handle;
    enter(device);
    const cudaError_t error = cudaStreamBeginCapture(c->stream, cudaStreamCaptureModeRelaxed);
    c->is_capturing = error == cudaSuccess;
    c->capture_failed = false;
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

static void *capture_end(kr_device *device, int64_t *launches)
{
    cuda *c = device->handle;
    cuda_graph *r = kr_memory_alloc_zeroed(c->memory, sizeof *r);
    cudaGraph_t graph = NULL;
    enter(device);
    c->is_capturing = false;
    const cudaError_t error = cudaStreamEndCapture(c->stream, &graph);
    if (r && error == cudaSuccess && !c->capture_failed && cudaGraphInstantiate(&r->exec, graph, 0) == cudaSuccess) {
        r->graph = graph;
        *launches = count_kernels(graph);
        return r;
    }
    cudaGetLastError();
    if (graph) cudaGraphDestroy(graph);
    kr_memory_free(c->memory, r, sizeof *r);
    return NULL;
}

static const char *launch_graph(kr_device *device, void *captured)
{
    const cuda *c = device->handle;
    enter(device);
    return reason(cudaGraphLaunch(((const cuda_graph *)captured)->exec, c->stream));
}

static void destroy_graph(kr_device *device, void *captured)
{
    const cuda *c = device->handle;
    cuda_graph *r = captured;
    enter(device);
    cudaGraphExecDestroy(r->exec);
    cudaGraphDestroy(r->graph);
    kr_memory_free(c->memory, r, sizeof *r);
}

static const kr_device_ops vtable = { .enter = enter,
                                      .holds = holds,
                                      .shares = shares,
                                      .upload = upload,
                                      .download = download,
                                      .copy = copy,
                                      .wait = wait_for,
                                      .record_event = record_event,
                                      .wait_event = wait_event,
                                      .check = check,
                                      .memory_info = memory_info,
                                      .close = close_device,
                                      .detached = detached,
                                      .capture_begin = capture_begin,
                                      .capture_end = capture_end,
                                      .launch_graph = launch_graph,
                                      .destroy_graph = destroy_graph };

static const kr_device_lists lists = { .adamw = { kr_cuda_f32_adamw_each, kr_cuda_f64_adamw_each },
                                       .squares = kr_cuda_squares_each,
                                       .decode_layers = kr_cuda_decode_layers,
                                       .decode_layers_scratch = kr_cuda_decode_layers_scratch };

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
    uint64_t all = UINT64_MAX; /* freed memory stays in the pool until the context ends */
    if (error == cudaSuccess) cudaMemPoolSetAttribute(c->pool, cudaMemPoolAttrReleaseThreshold, &all);
    return error;
}

/* Architecture of the kernels in this build. */
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
    for (int i = 0; i < KR_EVENTS && error == cudaSuccess; i++)
        error = cudaEventCreateWithFlags(&c->marks[i], cudaEventDisableTiming);
    if (error == cudaSuccess) error = open_pool(c);
    const size_t counters = (KR_CUDA_ARRIVALS + KR_CUDA_TICKETS) * sizeof *c->shown.arrivals;
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
        tear_down(c);
        kr_memory_free(&ctx->memory, c, sizeof *c);
        return kr_fail(ctx, KR_ERR_DEVICE, "ctx: device cuda:%d cannot be opened: %s", number, reason(error));
    }
    device->vtable = &vtable;
    device->kernels = kr_cuda_kernels;
    device->lists = &lists;
    device->handle = c;
    device->stream = c->stream;
    device->own = &c->shown;
    kr_memory_init(&device->device_memory, &(kr_allocator){ device_alloc, device_free, c });
    kr_memory_init(&device->shared, &(kr_allocator){ shared_alloc, shared_free, c });
    device->device_memory.zero = device_zero;
    struct cudaDeviceProp about;
    const bool has_name = cudaGetDeviceProperties(&about, number) == cudaSuccess;
    snprintf(device->name, sizeof device->name, "cuda:%d %.100s", number, has_name ? about.name : "of no name");
    return true;
}

static size_t describe(char *text, size_t bytes)
{
    kr_text_buffer buffer = kr_text_buffer_of(text, bytes);
    int count = 0;
    const cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess) {
        cudaGetLastError();
        kr_text_buffer_print(&buffer, "cuda: no GPU can be used: %s\n", reason(error));
    }
    for (int i = 0; i < count; i++) {
        struct cudaDeviceProp about;
        if (cudaGetDeviceProperties(&about, i) != cudaSuccess) continue;
        kr_text_buffer_print(&buffer, "cuda:%d %s, %.1f GiB, sm_%d%s\n", i, about.name,
                             (double)about.totalGlobalMem * 0x1p-30, arch_of(i),
                             arch_of(i) < 80 ? ", too old for the kernels, which need sm_80" : "");
    }
    return buffer.length;
}

const kr_device_kind kr_cuda_kind = { "cuda", open_device, describe };
