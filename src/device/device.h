/* device.h - a device: its kernels and its memory, and how a kernel is run on it.
 *
 * The processor itself is near: all tensors lie in the context's memory, and a kernel has run when the call returns.
 * Any other device is far:
 *
 *   floats      in far memory, which only kernels and verbs touch
 *   integers    in shared memory, with the lists that kernels take: the host writes them when they are made and never
 *               again, kernels read them where they lie
 *   the rest    headers, nodes, lists of pointers: in the context's memory, as ever
 *
 * Kernels are queued, one after another. The host waits (kr_wait) before it reads what a kernel wrote, and before it
 * gives shared memory to another use; far memory may change its use at once, since kernels keep their order.
 */
#ifndef KR_DEVICE_DEVICE_H
#define KR_DEVICE_DEVICE_H

#include "base/ctx.h"
#include "base/far.h"
#include "kernels/kernels.h"
#include "tensor/tensor.h"

typedef struct kr_device kr_device;

/* What a far device does besides running kernels. Those that return text return NULL, or what went wrong. */
typedef struct kr_device_verbs {
    void (*enter)(const kr_device *device);                /* before kernels are queued by this thread; NULL: nothing */
    bool (*holds)(const kr_device *device, const void *p); /* is p an address of its far memory? */
    const char *(*upload)(kr_device *device, void *far, const void *near, size_t bytes); /* near may change then */
    const char *(*download)(kr_device *device, void *near, const void *far, size_t bytes);
    const char *(*copy)(kr_device *device, void *to, const void *from, size_t bytes); /* far to far, queued */
    const char *(*wait)(kr_device *device);                                           /* until all has run */
    const char *(*mark)(kr_device *device, int mark);      /* what was queued so far, as one of KR_MARKS ... */
    const char *(*wait_mark)(kr_device *device, int mark); /* ... until that has run */
    const char *(*check)(kr_device *device);               /* of the kernel that was queued last */
    bool (*room)(const kr_device *device, size_t *free, size_t *all); /* bytes of far memory; NULL: nobody knows */
    void (*close)(kr_device *device);

    /* Recording what is queued, instead of running it. `record` ends with something to replay and the number of kernels
     * in it, or with NULL where the recording cannot be had. NULL verbs: the device cannot. */
    const char *(*begin_record)(kr_device *device);
    void *(*end_record)(kr_device *device, int64_t *launches);
    const char *(*replay)(kr_device *device, void *record);
    void (*forget)(kr_device *device, void *record);
} kr_device_verbs;

/* Kernels that a device runs for several arguments at once, in few launches. squares: exec.scratch has what all of them
 * ask for together. token_layers: what its scratch function says, which is 0 where these layers cannot be run so. */
typedef struct kr_device_lists {
    void (*adamw[KR_NREALS])(const kr_exec *exec, int64_t count, const kr_adamw_args *each);
    void (*squares)(const kr_exec *exec, int64_t count, const kr_squares_args *each);
    void (*token_layers)(const kr_exec *exec, int64_t count, const kr_token_layer *each);
    size_t (*token_layers_scratch)(const kr_exec *exec, int64_t count, const kr_token_layer *each);
} kr_device_lists;

/* A number that a kernel leaves for the host. */
typedef union kr_result {
    double real;
    int64_t whole;
} kr_result;
enum { KR_RESULTS = 512, KR_MARKS = 2 };

/* Told of every kernel that has been queued, by its slot ("matmul[kr_real_of(y->dtype)]"), and of every wait for the
 * device before it: what tests count and benchmarks time. */
typedef void kr_probe_fn(void *user, const char *slot);
#define KR_PROBE_WAIT "wait"

struct kr_device {
    const kr_device_verbs *verbs; /* NULL: the processor */
    kr_precision precision;       /* of kr_exec; never UNSET */
    const kr_device_lists *lists; /* NULL, and NULL in it: one after another */
    bool takes_halves;            /* its f32 kernels take halves where their structs say that only CUDA's do */
    kr_probe_fn *probe;           /* NULL: nobody asks */
    void *probe_user;
    kr_kernels kernels;     /* what KR_RUN runs */
    const kr_kernels *host; /* the processor's: `kernels` itself, or what runs on data that are on their way */
    char name[128];         /* "cpu", "cuda:0 NVIDIA H200" */
    kr_result results[KR_RESULTS];

    /* of a far device */
    kr_memory far, shared;
    kr_arena scratch;     /* of kernels */
    void *stream, *own;   /* for kr_exec */
    void *handle;         /* of the verbs */
    struct kr_far access; /* the context's `far` */
    char *near_stage;     /* shared: KR_RESULTS results, then a piece on its way */
    char *far_stage;
    const char *asked_kernel, *last_kernel; /* whose turn it is; that was queued */
    const char *op, *last_op;               /* that is computed, NULL between ops; that was. For messages */
    kr_shape made;                          /* the last tensor of a tape */
    bool is_busy;                           /* something was queued since the last wait */
    bool wrote_integers;                    /* a kernel among that writes integers */
    bool is_recording;                      /* kernels are noted, not run ... */
    bool tore_record;                       /* ... but the host asked for what only a run gives, or took memory away */
    kr_kernels processor;                   /* `host` */
};

/* Index of the slot that computes in this type: KR_REAL_F32 or KR_REAL_F64. */
int kr_real_of(kr_dtype dtype);

/* ---- memory ---- */

bool kr_ctx_is_far(const kr_ctx *ctx);

/* Do products round their f32 operands to bf16? Then an operand may as well be handed to them in bf16: the result has
 * the same bits, and what is rounded once is read at half the cost from then on. */
bool kr_rounds_operands(const kr_ctx *ctx);

/* Where the floats of this context live, and what host and kernels share; on the processor both are its memory. */
kr_memory *kr_float_memory(kr_ctx *ctx);
kr_memory *kr_shared_memory(kr_ctx *ctx);

/* Zeroes floats of this context. */
void kr_zero_floats(kr_ctx *ctx, void *p, size_t bytes);

/* All that was queued has run. False after an error of the device. */
bool kr_wait(kr_ctx *ctx);

/* What was queued before the mark has run, and what follows it may still be on its way: integers that were written
 * before it may be read, as they lie. */
bool kr_mark(kr_ctx *ctx, int mark);
bool kr_wait_mark(kr_ctx *ctx, int mark);

/* Integers of this context, as the host is about to read them: waits if a kernel may not have written them yet. */
bool kr_integers_ready(kr_ctx *ctx);

/* KR_RESULTS places for what kernels find (kr_finite_args.first, kr_squares_args.sum): to be read after kr_wait. */
kr_result *kr_results(kr_ctx *ctx);

/* Fills y, contiguous, from a tensor of its shape that describes the caller's memory; the types may differ. */
bool kr_tensor_take(kr_tensor *y, const kr_tensor *near);

/* Shows the elements of x, in row-major order and as doubles, some at a time, `first` being the number of the first of
 * them. False as soon as `show` says so, or after an error. */
typedef bool kr_show_fn(void *user, int64_t first, const double *values, int64_t count);
bool kr_each_value(const kr_tensor *x, kr_show_fn *show, void *user);

/* *first = place of the first NaN or infinity among n adjacent elements, far or near; -1: there is none. */
bool kr_find_not_finite(kr_ctx *ctx, kr_dtype dtype, const void *x, int64_t n, int64_t *first);

/* Exchanges floats of this context. */
bool kr_swap_floats(kr_ctx *ctx, void *a, void *b, size_t bytes);

/* ---- running ---- */

/* Runs a kernel: hands it the pool and the scratch that it asks for. False when the scratch cannot be had, when the
 * device has no such kernel, or after a fault.
 *
 *   kr_binary_args args = { ... };
 *   if (!KR_RUN(ctx, mul[kr_real_of(y->dtype)], &args)) return NULL;
 */
#define KR_RUN(ctx, slot, args)                                                                                        \
    (kr_exec_set((ctx), &(args)->exec, (ctx)->device->kernels.slot.run != NULL, #slot) &&                              \
             kr_exec_begin((ctx), &(args)->exec, KR_SLOT_SCRATCH(ctx, slot, args))                                     \
         ? ((ctx)->device->kernels.slot.run(args), kr_exec_end((ctx), #slot))                                          \
         : false)

/* The same with scratch of the caller's, which KR_SCRATCH_OF measured; on the processor it cannot fail. */
#define KR_RUN_WITH(ctx, slot, args, memory)                                                                           \
    (kr_exec_set((ctx), &(args)->exec, (ctx)->device->kernels.slot.run != NULL, #slot)                                 \
         ? ((args)->exec.scratch = (memory), (ctx)->device->kernels.slot.run(args), kr_exec_check((ctx), #slot))       \
         : false)
#define KR_SCRATCH_OF(ctx, slot, args)                                                                                 \
    (kr_exec_set((ctx), &(args)->exec, true, #slot) ? KR_SLOT_SCRATCH(ctx, slot, args) : 0)

#define KR_SLOT_SCRATCH(ctx, slot, args)                                                                               \
    ((ctx)->device->kernels.slot.scratch ? (ctx)->device->kernels.slot.scratch(args) : 0)

/* Runs a kernel for each of several arguments that have nothing to do with one another. squares: `work` has as many
 * bytes as kr_squares_work_of all of them. False after an error. */
bool kr_run_adamw(kr_ctx *ctx, int real, int64_t count, kr_adamw_args *each);
bool kr_run_squares(kr_ctx *ctx, int64_t count, kr_squares_args *each, void *work);
size_t kr_squares_work_of(kr_ctx *ctx, int64_t count, kr_squares_args *each);
/* The same for layers, each of which reads what the one before it made. */
bool kr_run_token_layers(kr_ctx *ctx, int64_t count, kr_token_layer *each);

bool kr_exec_set(kr_ctx *ctx, kr_exec *exec, bool has_kernel, const char *slot);
bool kr_exec_begin(kr_ctx *ctx, kr_exec *exec, size_t scratch_bytes);
bool kr_exec_end(kr_ctx *ctx, const char *slot);
bool kr_exec_check(kr_ctx *ctx, const char *slot);

/* Records a fault, which the context then keeps: a device that failed once is not used again. Always false. */
bool kr_device_fault(kr_ctx *ctx, const char *when, const char *why);

/* ---- running again ----
 *
 * A row of kernels that is the same time after time is recorded once and replayed from then on, as one: a step of
 * generation. Nothing in it may depend on what the host reads meanwhile, and its memory must stay: a tape's until its
 * reset, a state's, a network's. Integers lie in shared memory, so that the host may write new ones between replays.
 *
 *   if (kr_record_begin(ctx)) { ...; record = kr_record_end(ctx); }     // NULL: it cannot be replayed
 *   if (record && kr_record_is_whole(ctx, record)) kr_record_replay(ctx, record);
 */
typedef struct kr_recording kr_recording;

bool kr_record_begin(kr_ctx *ctx); /* false: the device does not record, or an error */
kr_recording *kr_record_end(kr_ctx *ctx);
bool kr_record_is_whole(const kr_ctx *ctx, const kr_recording *recording); /* is its scratch still where it was? */
bool kr_record_replay(kr_ctx *ctx, const kr_recording *recording);
int64_t kr_record_launches(const kr_recording *recording);
void kr_record_destroy(kr_ctx *ctx, kr_recording *recording);

/* ---- devices of a kind ---- */

typedef struct kr_device_kind {
    const char *name; /* "cuda"; devices are "cuda" (the first), "cuda:1", ... */
    /* Fills in verbs, kernels, name, hooks of far and shared, stream, own, handle; host is there. False with the error
     * recorded, and nothing to close. */
    bool (*open)(kr_ctx *ctx, kr_device *device, int number);
    /* A line for each device, or one that says why there is none, as by snprintf. */
    size_t (*describe)(char *text, size_t bytes);
} kr_device_kind;

/* The n-th kind of this build; NULL past the last. */
const kr_device_kind *kr_device_kind_nth(int n);

/* One more, which programs that test may set before they make a context; NULL. */
extern const kr_device_kind *kr_device_kind_of_tests;

/* Makes the context's device: `asked` ("cpu", "cuda:0"; NULL: KR_DEVICE, else cpu) over the processor's kernels. */
bool kr_device_open(kr_ctx *ctx, const char *asked, const kr_kernels *last, uint64_t features);
void kr_device_close(kr_ctx *ctx);

#endif
