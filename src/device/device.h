/* device.h - a device: its kernels, its memory, and how a kernel is run on it.
 *
 * On the CPU all tensors are in the context's host memory, and a kernel has run when the call returns. On any other device:
 *
 *   floats      in device memory, which only kernels and device operations access
 *   integers    in pinned host memory ("shared"), with the lists that kernels take: the host writes them when they are
 *               created and never again, kernels read them there
 *   the rest    headers, nodes, lists of pointers: in the context's host memory
 *
 * Kernels are queued in order. The host waits (kr_wait) before it reads what a kernel wrote, and before it reuses shared
 * memory; device memory may be reused at once, since kernels keep their order.
 */
#ifndef KR_DEVICE_DEVICE_H
#define KR_DEVICE_DEVICE_H

#include "base/ctx_impl.h"
#include "base/device_memory.h"
#include "kernels/select.h"
#include "tensor/tensor_impl.h"

typedef struct kr_device kr_device;

/* Operations of a device other than running kernels. Those that return text return NULL, or an error message. */
typedef struct kr_device_ops {
    void (*enter)(const kr_device *device);                 /* before this thread queues kernels; NULL: nothing to do */
    bool (*holds)(const kr_device *device, const void *p);  /* is p in its device memory? */
    bool (*shares)(const kr_device *device, const void *p); /* do host and kernels read p? NULL: unknown */
    bool (*owns)(const kr_device *device,
                 const void *p); /* of what some device holds: can its kernels read p? NULL: yes */
    const char *(*upload)(kr_device *device, void *device_memory, const void *host,
                          size_t bytes); /* host may change afterwards */
    const char *(*download)(kr_device *device, void *host, const void *device_memory, size_t bytes);
    const char *(*copy)(kr_device *device, void *to, const void *from, size_t bytes); /* device to device, queued */
    const char *(*wait)(kr_device *device); /* until everything queued has run */
    const char *(*record_event)(kr_device *device,
                                int event); /* after the work queued until now, as one of KR_EVENTS ... */
    const char *(*wait_event)(kr_device *device, int event); /* ... until that has run */
    /* Queues what follows on a stream of the caller's (kr_ctx_use_stream), after what is queued; NULL: the device's own. The
     * device sets its `stream`. After an error nothing has changed. NULL: there are no streams. */
    const char *(*use_stream)(kr_device *device, void *stream);
    const char *(*check)(kr_device *device);                                 /* for errors of the kernel queued last */
    bool (*memory_info)(const kr_device *device, size_t *free, size_t *all); /* bytes of device memory; NULL: unknown */
    void (*close)(kr_device *device);

    /* Gives a branch of device_memory hooks that free on any thread, also after the device has been closed, and that wait
     * for everything queued. It allocates nothing afterwards. */
    void (*detach)(const kr_device *device, kr_memory *branch);

    /* Can memory of `owner`, a device of the same name, be read by kernels of this one, and be detached? NULL: yes. */
    bool (*may_share)(const kr_device *device, const kr_device *owner);

    /* Memory of another context's device that kernels of this one may read from now on (false: no memory to note it), or no
     * longer. NULL: there is nothing to note. */
    bool (*import)(kr_device *device, void *p, size_t bytes);
    void (*forget)(kr_device *device, const void *p);

    /* Captures what is queued instead of running it. capture_end returns a graph to launch and the number of kernels in it,
     * or NULL if capture failed. NULL operations: not supported. */
    const char *(*capture_begin)(kr_device *device);
    void *(*capture_end)(kr_device *device, int64_t *launches);
    const char *(*launch_graph)(kr_device *device, void *captured);
    void (*destroy_graph)(kr_device *device, void *captured);
} kr_device_ops;

/* Kernels that a device runs for several arguments in few launches. squares: exec.scratch is the sum of what they need.
 * decode_layers: what its scratch function returns, 0 if these layers are not supported or not faster together. */
typedef struct kr_device_lists {
    void (*adamw[KR_NREALS])(const kr_exec *exec, int64_t count, const kr_adamw_args *each);
    void (*squares)(const kr_exec *exec, int64_t count, const kr_squares_args *each);
    void (*decode_layers)(const kr_exec *exec, const kr_decode_stack *stack);
    size_t (*decode_layers_scratch)(const kr_exec *exec, const kr_decode_stack *stack);
} kr_device_lists;

/* A number that a kernel returns to the host. */
typedef union kr_result {
    double real;
    int64_t whole;
} kr_result;
enum { KR_RESULTS = 512, KR_EVENTS = 2, KR_ROW_LIST_CHAINS = 64 };

/* Called for every kernel that is queued, with its slot ("matmul[kr_real_of(y->dtype)]"), and for every wait for the device
 * before it: for tests and benchmarks. */
typedef void kr_probe_fn(void *user, const char *slot);
#define KR_PROBE_WAIT "wait"

/* A backend that the context uses. */
struct kr_backend_info;
typedef struct kr_backend_use {
    const struct kr_backend_info *info;
    void *object; /* its shared object; NULL: it is registered */
    bool is_used; /* it replaced a kernel, or is the device */
} kr_backend_use;
enum { KR_BACKENDS_MOST = 8 };

/* Kernels that the CPU runs for the device (device/fallback.c). */
typedef struct kr_fallback {
    uint64_t calls, bytes;
    const char *trouble; /* what went wrong; NULL: nothing */
    size_t refused;      /* bytes of host memory that were not there for the last one; 0: it has run */
    bool is_host_visible;
} kr_fallback;

struct kr_device {
    const kr_device_ops *vtable; /* NULL: the CPU */
    kr_precision precision;      /* of kr_exec: of the call that runs (ops/autocast.h), or the context's; never UNSET */
    const kr_device_lists *lists; /* NULL, or NULL members: one after another */
    kr_probe_fn *probe;           /* NULL: none */
    void *probe_user;
    kr_kernels kernels;     /* what KR_RUN runs */
    kr_kernels library;     /* the same without backends */
    const kr_kernels *host; /* those of the CPU: `kernels` itself, or what runs on staged data */
    char name[128];         /* "cpu", "cuda:0 NVIDIA H200" */
    kr_result results[KR_RESULTS];

    /* of a device */
    kr_memory device_memory, shared;
    kr_arena scratch;                     /* of kernels */
    const kr_device_allocator *allocator; /* of the options; NULL: the device's own */
    void *stream, *own;                   /* for kr_exec */
    void *handle;                         /* of the device operations */
    struct kr_device_access access;       /* the context's device access */
    char *host_stage;                     /* pinned: KR_RESULTS results, then a staging block */
    char *device_stage;
    const char *asked_kernel, *last_kernel; /* to be queued; queued last. For messages */
    const char *op, *last_op;               /* being computed, NULL between ops; the last one. For messages */
    kr_shape made;                          /* shape of the last tensor of a tape */
    bool is_busy;                           /* something was queued since the last wait */
    bool wrote_integers;                    /* including a kernel that writes integers */
    bool is_capturing;                      /* kernels are captured, not run ... */
    bool capture_failed;                    /* ... but the host needed a result, or freed memory */
    kr_kernels processor;                   /* `host` */
    kr_kernels processor_library;           /* the same without backends */
    kr_fallback fallback;

    struct kr_row_list *row_lists[KR_ROW_LIST_CHAINS]; /* device/row_lists.h, by length */

    int nbackends;
    kr_backend_use backends[KR_BACKENDS_MOST];
};

/* Index of the slot that computes in this type: KR_REAL_F32 or KR_REAL_F64. */
int kr_real_of(kr_dtype dtype);

/* ---- memory ---- */

bool kr_ctx_on_device(const kr_ctx *ctx);

/* Do this context's f32 kernels take an operand in that type, besides their own? operand: kernel_operand of
 * kernels/accepts.def, such as matmul_b. */
#define kr_accepts(ctx, operand, dtype) (((ctx)->device->kernels.accepts.operand & KR_DTYPE_BIT(dtype)) != 0)

/* Is p in device memory that kernels of this context may use where it is? On the CPU nothing is. */
bool kr_device_owns(const kr_ctx *ctx, const void *p);

/* Memory of this context's floats, and memory shared by host and kernels; on the CPU both are its host memory. */
kr_memory *kr_float_memory(kr_ctx *ctx);
kr_memory *kr_shared_memory(kr_ctx *ctx);

/* Zeroes floats of this context. */
void kr_zero_floats(kr_ctx *ctx, void *p, size_t bytes);

/* Waits until everything queued has run. False after an error of the device. */
bool kr_wait(kr_ctx *ctx);

/* Records an event, and waits for one: everything queued before it has run, later work may still be running; integers
 * written before it may be read. */
bool kr_event(kr_ctx *ctx, int event);
bool kr_wait_event(kr_ctx *ctx, int event);

/* Before the host reads integers of this context: waits if a kernel may not have written them yet. */
bool kr_integers_ready(kr_ctx *ctx);

/* KR_RESULTS slots for results of kernels (kr_finite_args.first, kr_squares_args.sum): read after kr_wait. */
kr_result *kr_results(kr_ctx *ctx);

/* Fills y, contiguous, from a tensor of its shape that describes the caller's memory; the types may differ. */
bool kr_tensor_take(kr_tensor *y, const kr_tensor *host);

/* Passes the elements of x, in row-major order and as doubles, in batches to `show`, `first` being the index of the first
 * of them. False as soon as `show` returns false, or after an error. */
typedef bool kr_show_fn(void *user, int64_t first, const double *values, int64_t count);
bool kr_each_value(const kr_tensor *x, kr_show_fn *show, void *user);

/* *first = index of the first NaN or infinity among n contiguous elements, in device or host memory; -1: none. */
bool kr_find_not_finite(kr_ctx *ctx, kr_dtype dtype, const void *x, int64_t n, int64_t *first);

/* Copies bytes within the memory of this context's floats, and exchanges them. */
bool kr_copy_floats(kr_ctx *ctx, void *to, const void *from, size_t bytes);
bool kr_swap_floats(kr_ctx *ctx, void *a, void *b, size_t bytes);

/* ---- running ---- */

/* Runs a kernel with the pool and the scratch that it needs. False if the scratch cannot be allocated, if the device has no
 * such kernel, or after a fault.
 *
 *   kr_binary_args args = { ... };
 *   if (!KR_RUN(ctx, mul[kr_real_of(y->dtype)], &args)) return NULL; */
#define KR_RUN(ctx, slot, args)                                                                                        \
    (kr_exec_set((ctx), &(args)->exec, (ctx)->device->kernels.slot.run != NULL, #slot) &&                              \
             kr_exec_begin((ctx), &(args)->exec, KR_SLOT_SCRATCH(ctx, slot, args))                                     \
         ? ((ctx)->device->kernels.slot.run(args), kr_exec_end((ctx), #slot))                                          \
         : false)

/* The same with the caller's scratch, of KR_SCRATCH_OF bytes; on the CPU it cannot fail. */
#define KR_RUN_WITH(ctx, slot, args, memory)                                                                           \
    (kr_exec_set((ctx), &(args)->exec, (ctx)->device->kernels.slot.run != NULL, #slot)                                 \
         ? ((args)->exec.scratch = (memory), (ctx)->device->kernels.slot.run(args), kr_exec_check((ctx), #slot))       \
         : false)
#define KR_SCRATCH_OF(ctx, slot, args)                                                                                 \
    (kr_exec_set((ctx), &(args)->exec, true, #slot) ? KR_SLOT_SCRATCH(ctx, slot, args) : 0)

#define KR_SLOT_SCRATCH(ctx, slot, args)                                                                               \
    ((ctx)->device->kernels.slot.scratch ? (ctx)->device->kernels.slot.scratch(args) : 0)

/* Runs a kernel for each of several independent arguments. squares: `work` has as many bytes as kr_squares_work_of all of
 * them. False after an error. */
bool kr_run_adamw(kr_ctx *ctx, int real, int64_t count, kr_adamw_args *each);
bool kr_run_squares(kr_ctx *ctx, int64_t count, kr_squares_args *each, void *work);
size_t kr_squares_work_of(kr_ctx *ctx, int64_t count, kr_squares_args *each);

bool kr_exec_set(kr_ctx *ctx, kr_exec *exec, bool has_kernel, const char *slot);
bool kr_exec_begin(kr_ctx *ctx, kr_exec *exec, size_t scratch_bytes);
bool kr_exec_end(kr_ctx *ctx, const char *slot);
bool kr_exec_check(kr_ctx *ctx, const char *slot);

/* Records a fault, which the context keeps: a device that failed once is not used again. Always false. */
bool kr_device_fault(kr_ctx *ctx, const char *when, const char *why);

/* ---- graph capture ----
 *
 * A sequence of kernels that repeats, such as a decode step, is captured once and launched as one from then on. Nothing in
 * it may depend on what the host reads meanwhile, and its memory must stay valid: a tape's until its reset, a state's, a
 * network's. Integers are in pinned memory, so that the host may write new ones between launches.
 *
 *   if (kr_graph_capture_begin(ctx)) { ...; graph = kr_graph_capture_end(ctx); }     // NULL: it cannot be launched
 *   if (graph && kr_graph_is_complete(ctx, graph)) kr_graph_launch(ctx, graph); */
typedef struct kr_graph kr_graph;

bool kr_graph_capture_begin(kr_ctx *ctx); /* false: capture is not supported, or an error */
kr_graph *kr_graph_capture_end(kr_ctx *ctx);
bool kr_graph_is_complete(const kr_ctx *ctx, const kr_graph *graph); /* is its scratch still valid? */
bool kr_graph_launch(kr_ctx *ctx, const kr_graph *graph);
int64_t kr_graph_launches(const kr_graph *graph);
void kr_graph_destroy(kr_ctx *ctx, kr_graph *graph);

/* ---- device kinds ---- */

typedef struct kr_device_kind {
    const char *name; /* "cuda"; devices are "cuda" (the first), "cuda:1", ... */
    /* Fills in vtable, kernels, name, hooks of device and shared memory, stream, own, handle; host is set. False with the
     * error recorded, and nothing to close. */
    bool (*open)(kr_ctx *ctx, kr_device *device, int number);
    /* One line per device, or one that says why there is none, like snprintf. */
    size_t (*describe)(char *text, size_t bytes);
} kr_device_kind;

/* The n-th kind of this build and of the plug-ins that it has loaded (device/plugins.h); NULL past the last. */
const kr_device_kind *kr_device_kind_nth(int n);

/* Is a kind of that name part of this build? */
bool kr_device_is_built_in(const char *name);

/* The devices, as kr_info_text has them. */
size_t kr_devices_write(char *text, size_t bytes);

/* One more, which test programs may set before they create a context; NULL. */
extern const kr_device_kind *kr_device_kind_of_tests;

/* Opens the context's device on top of the CPU kernels: device ("cpu", "cuda:0"; NULL: KR_DEVICE, else cpu), backend
 * (NULL: KR_BACKEND) and stream of the options. */
bool kr_device_open(kr_ctx *ctx, const kr_ctx_options *options, const kr_kernels *last, uint64_t features);
void kr_device_close(kr_ctx *ctx);

#endif
