/* device_cuda.c - an NVIDIA GPU through the CUDA runtime, which is linked statically: a build with it starts on machines
 * without a driver, and says why there is no device.
 *
 * One stream-ordered memory pool per context, and one stream at a time: its own, or one of the caller's. Shared memory is
 * pinned host memory: kernels read it at the same address.
 *
 * The counters of grid-wide kernels (kr_cuda.arrivals) and the scratch memory exist once per context. That is enough, since
 * everything that uses them is queued on `stream`, and a new stream waits for an event that is recorded behind all of it
 * (use_stream): of two kernels of a context one has always ended before the other begins, or, with PDL, before the other
 * passes its wait.
 */
#include "device/device.h"

#include "base/text_buffer.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/gemm/cublaslt.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <string.h>

enum { COUNTERS_BYTES = (KR_CUDA_ARRIVALS + KR_CUDA_TICKETS) * sizeof(uint64_t) };

typedef struct cuda {
    kr_cuda shown; /* passed to kernels */
    kr_memory *memory;
    const kr_device_allocator *allocator; /* NULL: none */
    cudaStream_t stream;                  /* in use */
    cudaStream_t own;                     /* the context's own */
    cudaStream_t outer;                   /* is_capturing: the one to return to */
    cudaEvent_t order;                    /* of use_stream */
    cudaEvent_t marks[KR_EVENTS];
    cudaMemPool_t pool; /* NULL: not supported by the device, or not needed; memory comes from the runtime */
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

/* ---- streams ---- */

/* Is the caller capturing the stream? */
static bool is_captured(cudaStream_t stream)
{
    enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    if (cudaStreamIsCapturing(stream, &status) == cudaSuccess) return status == cudaStreamCaptureStatusActive;
    cudaGetLastError();
    return false;
}

/* Waits for a stream, also while another one is captured in a mode that forbids this thread to wait. */
static cudaError_t wait_outside(cudaStream_t stream)
{
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    cudaThreadExchangeStreamCaptureMode(&mode);
    const cudaError_t error = cudaStreamSynchronize(stream);
    cudaThreadExchangeStreamCaptureMode(&mode);
    return error;
}

/* `to` runs after all that is queued on `from`. An event cannot lead into a capture or out of it. */
static cudaError_t put_behind(const cuda *c, cudaStream_t to, cudaStream_t from)
{
    const bool to_graph = is_captured(to), from_graph = is_captured(from);
    if (to_graph != from_graph) return to_graph ? wait_outside(from) : cudaSuccess;
    const cudaError_t error = cudaEventRecord(c->order, from);
    return error == cudaSuccess ? cudaStreamWaitEvent(to, c->order, 0) : error;
}

static const char *reason_and_forget(cudaError_t error)
{
    if (error != cudaSuccess) cudaGetLastError();
    return reason(error);
}

static const char *use_stream(kr_device *device, void *stream)
{
    cuda *c = device->handle;
    const cudaStream_t next = stream ? stream : c->own;
    if (next == c->stream) return NULL;
    enter(device);
    /* an event of this GPU is recorded by streams of this GPU only */
    cudaError_t error = is_captured(next) ? cudaSuccess : cudaEventRecord(c->order, next);
    if (error == cudaSuccess) error = put_behind(c, next, c->stream);
    if (error != cudaSuccess) return reason_and_forget(error);
    c->stream = next;
    c->shown.is_shared = next != c->own;
    device->stream = next;
    return NULL;
}

/* ---- memory ---- */

/* A stream that is being captured cannot allocate memory that outlives the graph: another one does, and is waited for. */
static bool allocates_aside(const cuda *c)
{
    return c->is_capturing || (c->stream != c->own && is_captured(c->stream));
}

static cudaError_t make_aside(cuda *c)
{
    return c->aside ? cudaSuccess : cudaStreamCreateWithFlags(&c->aside, cudaStreamNonBlocking);
}

static cudaError_t alloc_aside(cuda *c, void **p, size_t bytes)
{
    cudaError_t error = make_aside(c);
    if (error == cudaSuccess) error = cudaMallocFromPoolAsync(p, bytes, c->pool, c->aside);
    return error == cudaSuccess ? wait_outside(c->aside) : error;
}

static cudaError_t ask(cuda *c, void **p, size_t bytes)
{
    return !c->pool             ? cudaMalloc(p, bytes)
           : allocates_aside(c) ? alloc_aside(c, p, bytes)
                                : cudaMallocFromPoolAsync(p, bytes, c->pool, c->stream);
}

/* The stream for which the caller's allocator allocates: not the one that is captured. */
static void *stream_of_memory(const cuda *c)
{
    return c->is_capturing ? c->outer : c->stream;
}

static void *device_alloc(void *user, size_t bytes, size_t align)
{
    cuda *c = user;
    void *p = NULL;
    (void)align; /* 256 bytes at least */
    cudaSetDevice(c->shown.number);
    if (c->allocator) return c->allocator->alloc(c->allocator->user, bytes, stream_of_memory(c));
    cudaError_t error = ask(c, &p, bytes);
    if (error == cudaErrorMemoryAllocation && c->pool && !allocates_aside(c)) {
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
    else cudaFreeAsync(p, allocates_aside(c) && make_aside(c) == cudaSuccess ? c->aside : c->stream);
}

static void return_to_caller(void *user, void *p, size_t bytes)
{
    cuda *c = user;
    cudaSetDevice(c->shown.number);
    c->capture_failed = true;
    c->allocator->free(c->allocator->user, p, bytes, stream_of_memory(c));
}

/* Pool memory stays valid after its pool and its stream have been destroyed. The user is the number of the GPU. */
static void detached_free(void *user, void *p)
{
    cudaSetDevice((int)(intptr_t)user);
    cudaFree(p);
}

/* Nothing uses the memory once its GPU has run what is queued. The user is the caller's allocator. */
static void detached_return(void *user, void *p, size_t bytes)
{
    const kr_device_allocator *allocator = user;
    struct cudaPointerAttributes about;
    if (cudaPointerGetAttributes(&about, p) == cudaSuccess) cudaSetDevice(about.device);
    cudaDeviceSynchronize();
    allocator->free(allocator->user, p, bytes, KR_STREAM_LEGACY);
}

static void detach(const kr_device *device, kr_memory *branch)
{
    const cuda *c = device->handle;
    if (!c->allocator) {
        branch->hooks = (kr_allocator){ NULL, detached_free, (void *)(intptr_t)c->shown.number };
        return;
    }
    branch->hooks = (kr_allocator){ NULL, NULL, (void *)(uintptr_t)c->allocator };
    branch->release = detached_return;
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

static bool owns(const kr_device *device, const void *p)
{
    struct cudaPointerAttributes about;
    if (cudaPointerGetAttributes(&about, p) == cudaSuccess)
        return about.device == ((const cuda *)device->handle)->shown.number;
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
    if (!c->allocator) cudaFree(c->shown.arrivals);
    else if (c->shown.arrivals) c->allocator->free(c->allocator->user, c->shown.arrivals, COUNTERS_BYTES, c->stream);
    for (int i = 0; i < KR_EVENTS; i++)
        if (c->marks[i]) cudaEventDestroy(c->marks[i]);
    if (c->order) cudaEventDestroy(c->order);
    if (c->pool) cudaMemPoolDestroy(c->pool);
    if (c->aside) cudaStreamDestroy(c->aside);
    if (c->own) cudaStreamDestroy(c->own);
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

/* On the context's own stream: others may queue work on the caller's, and the legacy default stream cannot be captured. */
static const char *capture_begin(kr_device *device)
{
    cuda *c = device->handle;
    enter(device);
    const cudaError_t error = cudaStreamBeginCapture(c->own, cudaStreamCaptureModeRelaxed);
    c->is_capturing = error == cudaSuccess;
    c->capture_failed = false;
    if (error != cudaSuccess) return reason(error);
    c->outer = c->stream;
    device->stream = c->stream = c->own;
    c->shown.is_shared = false; /* the graph begins when all before it has ended */
    return NULL;
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
    const cudaError_t error = cudaStreamEndCapture(c->own, &graph);
    device->stream = c->stream = c->outer;
    c->shown.is_shared = c->stream != c->own;
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
                                      .owns = owns,
                                      .shares = shares,
                                      .upload = upload,
                                      .download = download,
                                      .copy = copy,
                                      .wait = wait_for,
                                      .record_event = record_event,
                                      .wait_event = wait_event,
                                      .use_stream = use_stream,
                                      .check = check,
                                      .memory_info = memory_info,
                                      .close = close_device,
                                      .detach = detach,
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
    if (c->allocator || !attribute(c->shown.number, cudaDevAttrMemoryPoolsSupported)) return cudaSuccess;
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

static cudaError_t make_counters(cuda *c)
{
    cudaError_t error = cudaSuccess;
    if (!c->allocator) error = cudaMalloc((void **)&c->shown.arrivals, COUNTERS_BYTES);
    else if (!(c->shown.arrivals = c->allocator->alloc(c->allocator->user, COUNTERS_BYTES, c->stream)))
        error = cudaErrorMemoryAllocation;
    return error == cudaSuccess ? cudaMemsetAsync(c->shown.arrivals, 0, COUNTERS_BYTES, c->stream) : error;
}

static cudaError_t set_up(cuda *c, int number)
{
    c->shown = (kr_cuda){ .number = number,
                          .arch = arch_of_kernels(number),
                          .multiprocessors = attribute(number, cudaDevAttrMultiProcessorCount),
                          .shared_bytes = (size_t)attribute(number, cudaDevAttrMaxSharedMemoryPerBlockOptin) };
    cudaError_t error = cudaSetDevice(number);
    if (error == cudaSuccess) error = cudaStreamCreateWithFlags(&c->own, cudaStreamNonBlocking);
    c->stream = c->own;
    if (error == cudaSuccess) error = cudaEventCreateWithFlags(&c->order, cudaEventDisableTiming);
    for (int i = 0; i < KR_EVENTS && error == cudaSuccess; i++)
        error = cudaEventCreateWithFlags(&c->marks[i], cudaEventDisableTiming);
    if (error == cudaSuccess) error = open_pool(c);
    if (error == cudaSuccess) error = make_counters(c);
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
    c->allocator = device->allocator;
    const cudaError_t error = set_up(c, number);
    if (error != cudaSuccess) {
        cudaGetLastError();
        tear_down(c);
        kr_memory_free(&ctx->memory, c, sizeof *c);
        return kr_fail(ctx, error == cudaErrorMemoryAllocation ? KR_ERR_NOMEM : KR_ERR_DEVICE,
                       "ctx: device cuda:%d cannot be opened: %s", number, reason(error));
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
    if (c->allocator) device->device_memory.release = return_to_caller;
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
    const char *problem = count > 0 ? kr_cublaslt_problem() : NULL;
    if (count > 0)
        kr_text_buffer_print(&buffer, "cuda: %s%s\n", problem ? "" : "products by ",
                             problem ? problem : kr_cublaslt_file());
    return buffer.length;
}

const kr_device_kind kr_cuda_kind = { "cuda", open_device, describe };
