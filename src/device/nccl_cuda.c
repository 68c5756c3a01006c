/* nccl_cuda.c - exchanges between GPUs by NVIDIA's NCCL, loaded when a communicator first needs it.
 *
 * Nothing is linked against it: libnccl.so.2 is opened at run time; libkrait_cuda.so also looks in the folder of the Python
 * package nvidia-nccl. The declarations below are the part of its binary interface that is used, which has not changed since
 * version 2.14.
 *
 * Groups are non-blocking: a call of NCCL returns while it connects, so that the communicator's thread can give up when a
 * rank is lost. Then the group is aborted, and its kernels end.
 */
#include "device/device.h"
#include "device/device_comm.h"

#include "base/hash.h"
#include "device/nccl_cuda.h"
#include "kernels/cuda/comm/sum_slots.h"
#include "kernels/cuda/cuda.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

/* ---- the library ---- */

typedef struct nccl_comm nccl_comm;
typedef struct nccl_id {
    char internal[KR_DEVICE_GROUP_ID];
} nccl_id;

/* The beginning of its configuration, as of version 2.14: later fields have their defaults. */
typedef struct nccl_config {
    size_t size;
    unsigned magic, version;
    int blocking;
} nccl_config;

enum {
    NCCL_SUCCESS = 0,
    NCCL_IN_PROGRESS = 7,
    NCCL_INT8 = 0,
    NCCL_FLOAT32 = 7,
    NCCL_FLOAT64 = 8,
    NCCL_SUM = 0,
    NCCL_VERSION_LEAST = 21400
};
#define NCCL_CONFIG_MAGIC 0xcafebeefu

#define ENTRY_POINTS(X)                                                                                                \
    X(int, ncclGetVersion, (int *))                                                                                    \
    X(int, ncclGetUniqueId, (nccl_id *))                                                                               \
    X(int, ncclCommInitRankConfig, (nccl_comm **, int, nccl_id, int, nccl_config *))                                   \
    X(int, ncclCommGetAsyncError, (nccl_comm *, int *))                                                                \
    X(int, ncclCommFinalize, (nccl_comm *))                                                                            \
    X(int, ncclCommDestroy, (nccl_comm *))                                                                             \
    X(int, ncclCommAbort, (nccl_comm *))                                                                               \
    X(const char *, ncclGetErrorString, (int))                                                                         \
    X(const char *, ncclGetLastError, (nccl_comm *))                                                                   \
    X(int, ncclGroupStart, (void))                                                                                     \
    X(int, ncclGroupEnd, (void))                                                                                       \
    X(int, ncclSend, (const void *, size_t, int, int, nccl_comm *, cudaStream_t))                                      \
    X(int, ncclRecv, (void *, size_t, int, int, nccl_comm *, cudaStream_t))                                            \
    X(int, ncclBroadcast, (const void *, void *, size_t, int, int, nccl_comm *, cudaStream_t))                         \
    X(int, ncclAllGather, (const void *, void *, size_t, int, nccl_comm *, cudaStream_t))                              \
    X(int, ncclAllReduce, (const void *, void *, size_t, int, int, nccl_comm *, cudaStream_t))

static pthread_once_t loaded = PTHREAD_ONCE_INIT;
static struct {
    char problem[256], version[64];
#define X(type, name, parameters) type(*name) parameters;
    ENTRY_POINTS(X)
#undef X
} nccl;

static bool find(void *library, const char *name, void *entry, size_t bytes)
{
    void *symbol = dlsym(library, name);
    memcpy(entry, &symbol, bytes);
    if (!symbol && !nccl.problem[0])
        snprintf(nccl.problem, sizeof nccl.problem, "libnccl.so.2 has no %s; NCCL 2.14 or newer is needed", name);
    return symbol != NULL;
}

static void load(void)
{
    int version = 0;
    void *library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        snprintf(nccl.problem, sizeof nccl.problem,
                 "libnccl.so.2 is not found; install NCCL, or set LD_LIBRARY_PATH to the folder of the Python package "
                 "nvidia-nccl");
        return;
    }
    bool ok = true;
#define X(type, name, parameters) ok = find(library, #name, &nccl.name, sizeof nccl.name) && ok;
    ENTRY_POINTS(X)
#undef X
    if (!ok) return;
    if (nccl.ncclGetVersion(&version) != NCCL_SUCCESS || version < NCCL_VERSION_LEAST)
        snprintf(nccl.problem, sizeof nccl.problem, "libnccl.so.2 is version %d.%d, but 2.14 or newer is needed",
                 version / 10000, version / 100 % 100);
    snprintf(nccl.version, sizeof nccl.version, "NCCL %d.%d.%d", version / 10000, version / 100 % 100, version % 100);
}

static const char *problem(void)
{
    pthread_once(&loaded, load);
    return nccl.problem[0] ? nccl.problem : NULL;
}

const char *kr_nccl_problem(void)
{
    return problem();
}

const char *kr_nccl_name(void)
{
    return problem() ? NULL : nccl.version;
}

/* ---- streams and calls ---- */

typedef struct call {
    cudaEvent_t before, after;
    struct call *next; /* of those that are not used */
} call;

typedef struct own_stream {
    int number; /* of the device */
    cudaStream_t stream;
    cudaEvent_t last; /* behind everything noted */
    char *scratch;
    kr_memory *memory;
    call *unused;
    char text[512]; /* of the communicator's thread */
} own_stream;

static int number_of(const kr_device *device)
{
    return ((const kr_cuda *)device->own)->number;
}

static const char *cuda_text(cudaError_t error)
{
    if (error == cudaSuccess) return NULL;
    cudaGetLastError();
    return cudaGetErrorString(error);
}

/* Of its machine: NCCL refuses two ranks on one PCI device. */
static uint64_t device_number(const kr_device *device)
{
    char bus[64] = "";
    if (cudaDeviceGetPCIBusId(bus, sizeof bus, number_of(device)) != cudaSuccess) {
        cudaGetLastError();
        snprintf(bus, sizeof bus, "cuda:%d", number_of(device));
    }
    return kr_hash_text(KR_HASH_BEGIN, bus) | 1;
}

static void free_call(own_stream *s, call *c)
{
    if (c->before) cudaEventDestroy(c->before);
    if (c->after) cudaEventDestroy(c->after);
    kr_memory_free(s->memory, c, sizeof *c);
}

static void close_stream(kr_device *device, void *stream)
{
    own_stream *s = stream;
    cudaSetDevice(number_of(device));
    if (s->stream) cudaStreamSynchronize(s->stream);
    for (call *c = s->unused, *next; c; c = next) {
        next = c->next;
        free_call(s, c);
    }
    if (s->last) cudaEventDestroy(s->last);
    if (s->stream) cudaStreamDestroy(s->stream);
    kr_memory_free(s->memory, s, sizeof *s);
}

static const char *open_stream(kr_device *device, kr_memory *memory, void *scratch, void **stream)
{
    own_stream *s = kr_memory_alloc_zeroed(memory, sizeof *s);
    int least = 0, greatest = 0;
    if (!s) return "out of memory";
    *s = (own_stream){ .number = number_of(device), .scratch = scratch, .memory = memory };
    cudaSetDevice(s->number);
    /* What other ranks wait for comes before what this one computes. */
    cudaError_t error = cudaDeviceGetStreamPriorityRange(&least, &greatest);
    if (error == cudaSuccess) error = cudaStreamCreateWithPriority(&s->stream, cudaStreamNonBlocking, greatest);
    if (error == cudaSuccess) error = cudaEventCreateWithFlags(&s->last, cudaEventDisableTiming);
    if (error == cudaSuccess) {
        *stream = s;
        return NULL;
    }
    close_stream(device, s);
    return cuda_text(error);
}

static const char *begin_call(kr_device *device, void *stream, void **result)
{
    own_stream *s = stream;
    call *c = s->unused;
    cudaError_t error = cudaSuccess;
    cudaSetDevice(s->number);
    if (c) s->unused = c->next;
    else if (!(c = kr_memory_alloc_zeroed(s->memory, sizeof *c))) return "out of memory";
    if (!c->before) error = cudaEventCreateWithFlags(&c->before, cudaEventDisableTiming);
    if (error == cudaSuccess && !c->after) error = cudaEventCreateWithFlags(&c->after, cudaEventDisableTiming);
    if (error == cudaSuccess) error = cudaEventRecord(c->before, (cudaStream_t)device->stream);
    if (error == cudaSuccess) {
        *result = c;
        return NULL;
    }
    free_call(s, c);
    return cuda_text(error);
}

static const char *end_call(kr_device *device, void *stream, void *ended, bool was_made)
{
    own_stream *s = stream;
    call *c = ended;
    cudaSetDevice(s->number);
    const cudaError_t error =
        was_made ? cudaStreamWaitEvent((cudaStream_t)device->stream, c->after, 0) : cudaSuccess;
    c->next = s->unused;
    s->unused = c;
    return cuda_text(error);
}

/* ---- of the communicator's thread ---- */

/* CUDA's state of this thread: the device, and calls that are allowed while the context's thread captures. */
static void enter(const own_stream *s)
{
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    cudaSetDevice(s->number);
    cudaThreadExchangeStreamCaptureMode(&mode);
}

static const char *text_of(own_stream *s, nccl_comm *comm, int result)
{
    if (result == NCCL_SUCCESS || result == NCCL_IN_PROGRESS) return NULL;
    const char *more = nccl.ncclGetLastError(comm);
    cudaGetLastError();
    snprintf(s->text, sizeof s->text, "%s%s%.300s", nccl.ncclGetErrorString(result), more && *more ? ": " : "",
             more ? more : "");
    return s->text;
}

static const char *make_id(void *stream, char *id)
{
    own_stream *s = stream;
    nccl_id made;
    enter(s);
    const char *why = text_of(s, NULL, nccl.ncclGetUniqueId(&made));
    if (!why) memcpy(id, &made, sizeof made);
    return why;
}

static const char *connect_group(void *stream, const char *id, int rank, int ranks, void **group)
{
    own_stream *s = stream;
    nccl_config config = {
        .size = sizeof config, .magic = NCCL_CONFIG_MAGIC, .version = NCCL_VERSION_LEAST, .blocking = 0
    };
    nccl_id given;
    nccl_comm *comm = NULL;
    enter(s);
    memcpy(&given, id, sizeof given);
    const char *why = text_of(s, NULL, nccl.ncclCommInitRankConfig(&comm, ranks, given, rank, &config));
    *group = comm;
    return why;
}

static kr_group_state state_of(void *stream, void *group, const char **text)
{
    int state = NCCL_SUCCESS;
    const int result = nccl.ncclCommGetAsyncError(group, &state);
    if (result == NCCL_SUCCESS && state == NCCL_IN_PROGRESS) return KR_GROUP_BUSY;
    *text = text_of(stream, group, result == NCCL_SUCCESS ? state : result);
    return *text ? KR_GROUP_FAILED : KR_GROUP_READY;
}

static const char *finish_group(void *stream, void *group)
{
    enter(stream);
    return text_of(stream, group, nccl.ncclCommFinalize(group));
}

static void release_group(void *stream, void *group, bool is_broken)
{
    enter(stream);
    if (is_broken) nccl.ncclCommAbort(group);
    else nccl.ncclCommDestroy(group);
}

static char *scratch_of(void *stream)
{
    return ((own_stream *)stream)->scratch;
}

static const char *start_call(void *stream, void *begun)
{
    own_stream *s = stream;
    enter(s);
    return cuda_text(cudaStreamWaitEvent(s->stream, ((call *)begun)->before, 0));
}

/* What is captured has no end that could be awaited. */
static const char *note_call(void *stream, void *begun)
{
    own_stream *s = stream;
    enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    cudaError_t error = cudaEventRecord(((call *)begun)->after, s->stream);
    if (error == cudaSuccess) error = cudaStreamIsCapturing(s->stream, &status);
    if (error == cudaSuccess && status == cudaStreamCaptureStatusNone) error = cudaEventRecord(s->last, s->stream);
    return cuda_text(error);
}

static bool is_idle(void *stream)
{
    const own_stream *s = stream;
    enter(s);
    const cudaError_t error = cudaEventQuery(s->last);
    if (error != cudaSuccess) cudaGetLastError();
    return error != cudaErrorNotReady;
}

static const char *moves_begin(void *stream)
{
    return text_of(stream, NULL, nccl.ncclGroupStart());
}

static const char *moves_end(void *stream)
{
    return text_of(stream, NULL, nccl.ncclGroupEnd());
}

static const char *send_bytes(void *stream, void *group, const void *x, size_t bytes, int rank)
{
    own_stream *s = stream;
    return text_of(s, group, nccl.ncclSend(x, bytes, NCCL_INT8, rank, group, s->stream));
}

static const char *recv_bytes(void *stream, void *group, void *x, size_t bytes, int rank)
{
    own_stream *s = stream;
    return text_of(s, group, nccl.ncclRecv(x, bytes, NCCL_INT8, rank, group, s->stream));
}

static const char *broadcast(void *stream, void *group, void *x, size_t bytes, int root)
{
    own_stream *s = stream;
    return text_of(s, group, nccl.ncclBroadcast(x, x, bytes, NCCL_INT8, root, group, s->stream));
}

static const char *gather(void *stream, void *group, const void *from, void *to, size_t bytes)
{
    own_stream *s = stream;
    return text_of(s, group, nccl.ncclAllGather(from, to, bytes, NCCL_INT8, group, s->stream));
}

static const char *sum(void *stream, void *group, void *x, int64_t n, kr_dtype dtype)
{
    own_stream *s = stream;
    const int type = dtype == KR_DTYPE_F64 ? NCCL_FLOAT64 : NCCL_FLOAT32;
    return text_of(s, group, nccl.ncclAllReduce(x, x, (size_t)n, type, NCCL_SUM, group, s->stream));
}

static const char *add(void *stream, kr_dtype dtype, const void *slots, size_t stride, int nslots, int64_t n, void *y)
{
    const own_stream *s = stream;
    const bool is_double = dtype == KR_DTYPE_F64;
    const size_t element = is_double ? sizeof(double) : sizeof(float);
    return cuda_text((cudaError_t)kr_cuda_sum_slots(is_double, slots, stride / element, nslots, n, y, s->stream));
}

const kr_device_comm_ops kr_nccl_ops = { .name = "nccl",
                                         .problem = problem,
                                         .number = device_number,
                                         .open = open_stream,
                                         .close = close_stream,
                                         .begin = begin_call,
                                         .end = end_call,
                                         .make_id = make_id,
                                         .connect = connect_group,
                                         .state = state_of,
                                         .finish = finish_group,
                                         .release = release_group,
                                         .scratch = scratch_of,
                                         .start = start_call,
                                         .note = note_call,
                                         .is_idle = is_idle,
                                         .moves_begin = moves_begin,
                                         .moves_end = moves_end,
                                         .send = send_bytes,
                                         .recv = recv_bytes,
                                         .broadcast = broadcast,
                                         .gather = gather,
                                         .sum = sum,
                                         .add = add };
