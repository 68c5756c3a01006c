/* ctx.h - the context: device, threads, instruction set, memory, random stream, and the first error.
 *
 *   kr_ctx_options options;
 *   kr_ctx_options_init(&options);
 *   options.threads = 2;
 *   kr_ctx *ctx = kr_ctx_create(&options);
 *   if (kr_ctx_failed(ctx)) fprintf(stderr, "%s\n", kr_ctx_message(ctx));
 *   kr_ctx_destroy(ctx);
 *
 * A context has one device, which holds all its tensors and runs all its ops: the CPU, or a GPU (docs/cuda.md). On a
 * GPU ops are queued: a call returns before its kernels have run, and the host waits where it reads a value (kr_item,
 * kr_tensor_read, a checkpoint) or calls kr_ctx_wait. Nothing else in a program changes.
 *
 * Every object belongs to one context, and one thread at a time uses a context. Contexts share nothing that changes, so
 * each thread may have its own, also over the same model (kr_model_share). If a second thread calls while a call of the
 * first one runs, the second call changes nothing, returns NULL, 0 or KR_ERR_STATE, and becomes the context's error.
 * Threads may use a context one after another, and callbacks may call the library. A forked child may destroy the
 * objects of its parent's contexts, but computes only with its own contexts (docs/embedding.md). The library prints
 * nothing and never ends the process. */
#ifndef KRAIT_CTX_H
#define KRAIT_CTX_H

#include <krait/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Memory hooks. alloc returns `bytes` bytes aligned to `align` (a power of two) or NULL; free takes a pointer returned
 * by alloc. Only the thread that uses the context calls them, except for shared weights and tokenizers
 * (kr_network_share): the thread that destroys the last handle frees these, possibly after the context. */
typedef struct kr_allocator {
    void *(*alloc)(void *user, size_t bytes, size_t align);
    void (*free)(void *user, void *p);
    void *user;
} kr_allocator;

/* Hooks for the memory of a GPU, so that one pool serves a context and the rest of a program. alloc returns `bytes` bytes,
 * aligned to 256, or NULL; the context may use them in the order of `stream` only. free takes them back with their size;
 * everything that uses them has been queued on `stream` or runs before it, and may not have run yet. `stream` is the one
 * that the context uses at that moment (kr_ctx_use_stream), a cudaStream_t. The thread that uses the context calls them,
 * except for shared weights: the thread that destroys the last handle frees these, possibly after the context, when they
 * are not in use any more, with KR_STREAM_LEGACY. */
typedef struct kr_device_allocator {
    void *(*alloc)(void *user, size_t bytes, void *stream);
    void (*free)(void *user, void *p, size_t bytes, void *stream);
    void *user;
    void *reserved[3]; /* must be NULL; for later versions */
} kr_device_allocator;

typedef enum kr_log_level { KR_LOG_INFO = 0, KR_LOG_WARNING = 1 } kr_log_level;

/* Precision of matrix products, including the SSD core. EXACT: f32 operands, f32 accumulation. TF32, BF16: a device
 * with tensor cores may cast f32 operands to these types (11 or 8 significant bits); accumulators, states, residual
 * streams, weights and files stay f32, and activations inside a block may be stored in bf16. BF16 has an effect where
 * products have kernels for bf16 operands: on a GPU and, slowly, with isa "ref". Otherwise products are exact, and
 * kr_ctx_info.products is KR_PRECISION_EXACT. */
typedef enum kr_precision {
    KR_PRECISION_UNSET = -1, /* the environment variable KR_PRECISION (exact, tf32, bf16), or exact */
    KR_PRECISION_EXACT = 0,
    KR_PRECISION_TF32 = 1,
    KR_PRECISION_BF16 = 2
} kr_precision;

/* Called with one line of text, without a newline. */
typedef void kr_log_fn(void *user, kr_log_level level, const char *text);

typedef struct kr_ctx_options {
    size_t size;            /* sizeof(kr_ctx_options) of the caller; set by kr_ctx_options_init */
    int threads;            /* 0: KR_THREADS, or one per CPU available to the process */
    const char *isa;        /* NULL: KR_ISA, or the best available; "ref", "avx2", "avx512": at most this one */
    kr_allocator allocator; /* alloc NULL: malloc and free of the C library */
    kr_log_fn *log;         /* NULL: no log */
    void *log_user;
    uint64_t seed;          /* seed of the context's random stream */
    bool check_finite;      /* report a NaN or infinity in the result of an op as an error that names op and index */
    const char *device;     /* NULL: KR_DEVICE, or "cpu"; "cuda" or "cuda:1": an NVIDIA GPU, numbered from 0 */
    kr_precision precision; /* precision of matrix products; KR_PRECISION_UNSET by default */
    bool pin_threads;       /* or KR_PIN_THREADS=1: each worker stays on one CPU; otherwise the system places them */
    /* NULL: KR_BACKEND, or none. Backends (backend.h), separated by commas: names of registered ones, and paths of
     * shared objects, which contain a '/'; later ones replace kernels of earlier ones. "": none. */
    const char *backend;
    void *stream; /* of a GPU: the first stream, as for kr_ctx_use_stream; NULL: the context's own */
    /* Of a GPU: where all of its device memory comes from. NULL: a pool of the driver's. It must be valid until the
     * context and, with shared weights, their last handle have been destroyed. */
    const kr_device_allocator *device_allocator;
} kr_ctx_options;

/* Fills in the defaults for exactly the fields that this caller was compiled with. */
#define kr_ctx_options_init(options) KR_STRUCT_INIT(CTX_OPTIONS, kr_ctx_options, options)

/* Creates a context. NULL options: defaults. Options override the environment. Returns NULL only if the context itself
 * cannot be allocated. If the setup fails (an unknown KR_ISA, for example), the context is returned in the failed
 * state, its message gives the reason, and it must be destroyed as usual.
 *
 * Ownership: the caller owns the result and releases it with kr_ctx_destroy, after all its objects. Texts are copied.
 * The context keeps allocator.user, log and log_user, which must be valid until it is destroyed.
 * Thread safety: may be called from any thread; the new context is then used by one thread at a time. */
KR_API kr_ctx *kr_ctx_create(const kr_ctx_options *options);

/* Destroys a context, after all its objects. NULL is allowed. */
KR_API void kr_ctx_destroy(kr_ctx *ctx);

/* The first error since the context was created or cleared; later errors are not recorded. The message names op,
 * operand, sizes, rule and, if known, the remedy; it is "" without an error. NULL ctx: failed, out of memory. Any
 * thread may call kr_ctx_failed and kr_ctx_status at any time. */
KR_API kr_status kr_ctx_status(const kr_ctx *ctx);
KR_API const char *kr_ctx_message(const kr_ctx *ctx);
KR_API_INLINE bool kr_ctx_failed(const kr_ctx *ctx)
{
    return kr_ctx_status(ctx) != KR_OK;
}

/* Sets an error from outside the library, with which custom sources and ops report failures; the library treats it as
 * its own. An earlier error is kept. `format` is as for printf; the message is truncated to 1,023 bytes. Returns
 * `status`; KR_OK and KR_END are not errors and become KR_ERR_ARG. */
KR_API kr_status kr_ctx_fail(kr_ctx *ctx, kr_status status, const char *format, ...) KR_PRINTF(3, 4);

/* Clears the error. The tape on which it occurred stays unusable until kr_tape_reset; other tapes can be used at once.
 * An error of a call without a tape invalidates no tape. Does nothing for a context that failed in kr_ctx_create. */
KR_API void kr_ctx_clear(kr_ctx *ctx);

typedef struct kr_ctx_info {
    int threads;            /* including the caller's; 0 for NULL */
    const char *isa;        /* instruction set of the CPU kernels: "ref", "avx2" or "avx512" */
    const char *device;     /* "cpu", or "cuda:0" and the name of the GPU */
    kr_precision precision; /* the precision requested; never UNSET */
    kr_precision products; /* the precision of matrix products: `precision`, or EXACT if no kernel in use supports it */
    uint64_t reserved[4];  /* 0; for later versions */
} kr_ctx_info;

/* Properties of a context; the texts are valid as long as the context. For NULL, and for a context that failed in
 * kr_ctx_create, isa and device are "none". The functions below return one field each. */
KR_API kr_ctx_info kr_ctx_info_of(const kr_ctx *ctx);
KR_API_INLINE int kr_ctx_threads(const kr_ctx *ctx)
{
    return kr_ctx_info_of(ctx).threads;
}
KR_API_INLINE const char *kr_ctx_isa(const kr_ctx *ctx)
{
    return kr_ctx_info_of(ctx).isa;
}
KR_API_INLINE const char *kr_ctx_device(const kr_ctx *ctx)
{
    return kr_ctx_info_of(ctx).device;
}
KR_API_INLINE kr_precision kr_ctx_precision(const kr_ctx *ctx)
{
    return kr_ctx_info_of(ctx).precision;
}

/* Waits until all queued ops have run: for timing, or before other code uses the memory of a tensor. Returns the status
 * of the context, KR_ERR_DEVICE if an op failed. A device error is permanent: kr_ctx_clear does not remove it, and
 * every later call returns it. Returns at once on the CPU. */
KR_API kr_status kr_ctx_wait(kr_ctx *ctx);

/* Streams with names of their own: CUDA's legacy default stream, and its default stream of each thread. */
#define KR_STREAM_LEGACY ((void *)1)
#define KR_STREAM_PER_THREAD ((void *)2)

/* Queues the work of the following calls on `stream`: a cudaStream_t of the context's GPU, one of the above, or NULL for
 * the context's own stream, which does not synchronise with the legacy default stream. Work that is queued already runs
 * first: the new stream waits for an event of the old one, and the host does not wait. The device memory of the context
 * stays with it. Does nothing if the context uses that stream already.
 *
 * Ownership: the stream is the caller's, and must exist until the context uses another one or is destroyed. Kernels of
 * one context share counters on the device, so its work never runs on two streams at once: also launch a CUDA graph that
 * was captured from calls of this context only in the order of the stream that it uses.
 *
 * While the caller captures `stream` or the old stream, work of the two cannot be ordered by an event: the host waits for
 * the old stream if only the new one is captured, and work that is being captured is not waited for.
 *
 * Errors: KR_ERR_ARG if the stream is not one of the GPU; the old one is still in use. KR_ERR_UNSUPPORTED on the CPU and
 * on devices without streams, unless the stream is NULL. KR_ERR_STATE from a function that the library calls while it
 * captures a decode step. */
KR_API kr_status kr_ctx_use_stream(kr_ctx *ctx, void *stream);

/* The kernel set that runs a kernel in f32: "avx512", "avx2", "ref" or "cuda", or the name of a backend. NULL for an
 * unknown name and for a kernel that the device lacks. kr_ctx_kernel(ctx, "ssd") names the set of the fused SSD core. */
KR_API const char *kr_ctx_kernel(const kr_ctx *ctx, const char *kernel);

/* Exact statistics of one of the context's memories. */
typedef struct kr_memory_stats {
    size_t live_bytes;    /* currently allocated */
    size_t peak_bytes;    /* maximum allocated at any time */
    size_t live_blocks;   /* current allocations */
    size_t total_blocks;  /* allocations since creation */
    uint64_t reserved[4]; /* 0; for later versions */
} kr_memory_stats;

/* Host memory, from the context's allocator (with a GPU: headers and lists only); device memory (parameters, gradients,
 * tensors on tapes, kernel scratch); pinned host memory (integer tensors and staging). Device and pinned memory are 0
 * on the CPU. Shared weights count in the context that created them, as long as its own handle exists. Mapped files do
 * not count. */
typedef enum kr_memory_kind { KR_MEMORY_HOST = 0, KR_MEMORY_DEVICE = 1, KR_MEMORY_PINNED = 2 } kr_memory_kind;
KR_API kr_memory_stats kr_ctx_memory_stats(const kr_ctx *ctx, kr_memory_kind kind);
KR_API_INLINE kr_memory_stats kr_ctx_memory(const kr_ctx *ctx)
{
    return kr_ctx_memory_stats(ctx, KR_MEMORY_HOST);
}
KR_API_INLINE kr_memory_stats kr_ctx_device_memory(const kr_ctx *ctx)
{
    return kr_ctx_memory_stats(ctx, KR_MEMORY_DEVICE);
}
KR_API_INLINE kr_memory_stats kr_ctx_pinned_memory(const kr_ctx *ctx)
{
    return kr_ctx_memory_stats(ctx, KR_MEMORY_PINNED);
}

/* Restarts the random stream. */
KR_API void kr_ctx_seed(kr_ctx *ctx, uint64_t seed);

/* Texts about the machine and the library. */
typedef enum kr_info {
    KR_INFO_CPU_FEATURES = 0, /* features of this CPU: "avx2 fma f16c avx512f ... amx_bf16" */
    KR_INFO_ISAS = 1,         /* instruction sets that kr_ctx_options.isa accepts, best last: "ref, avx2, avx512" */
    /* One line per device: "cpu", "cuda:0 NVIDIA H200, 139 GiB, sm_90", or the reason why a kind is missing. */
    KR_INFO_DEVICES = 2,
    KR_INFO_KERNELS = 3 /* one line per kernel, see kr_kernels_text */
} kr_info;

/* Writes the text to `text` as snprintf does and returns the length without the final zero; text may be NULL if bytes
 * is 0. An unknown value gives "". Needs no context; any thread may call it. */
KR_API size_t kr_info_text(kr_info info, char *text, size_t bytes);

/* kr_info_text of the features of this CPU and of the instruction sets; return text. */
KR_API_INLINE const char *kr_cpu_features_text(char *text, size_t bytes)
{
    kr_info_text(KR_INFO_CPU_FEATURES, text, bytes);
    return text;
}
KR_API_INLINE const char *kr_isa_choices(char *text, size_t bytes)
{
    kr_info_text(KR_INFO_ISAS, text, bytes);
    return text;
}

/* kr_info_text of the devices. */
KR_API_INLINE size_t kr_devices_text(char *text, size_t bytes)
{
    return kr_info_text(KR_INFO_DEVICES, text, bytes);
}

/* kr_info_text of the kernels. One line per kernel, tab-separated: its name, then the element types in each kernel set:
 * "f32 f64", "f32", "f64", "any" (one kernel for all types) or "-" (none). The first line names the sets: those built
 * for the CPU ("ref", "avx2", "avx512"), then "cuda", which every build lists. A CPU runs the best set that has the
 * kernel. Then one line per operand with a separate type ("matmul.b"): the types that the f32 kernel takes besides
 * f32, such as "bf16 f16", or "-". */
KR_API_INLINE size_t kr_kernels_text(char *text, size_t bytes)
{
    return kr_info_text(KR_INFO_KERNELS, text, bytes);
}

#ifdef __cplusplus
}
#endif
#endif
