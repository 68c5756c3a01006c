/* ctx.h - the root object: device, threads, instruction set, memory, randomness, and the first error.
 *
 *   kr_ctx_options options;
 *   kr_ctx_options_init(&options);
 *   options.threads = 2;
 *   kr_ctx *ctx = kr_ctx_create(&options);
 *   if (kr_ctx_failed(ctx)) fprintf(stderr, "%s\n", kr_ctx_message(ctx));
 *   kr_ctx_destroy(ctx);
 *
 * A context has one device, on which all its tensors live and all its ops run: the processor, or a GPU (docs/cuda.md).
 * There ops are queued: a call returns before its kernels have run, and the host waits where it reads a number (kr_item,
 * kr_tensor_read, a checkpoint) or asks to (kr_ctx_wait). Nothing else of a program changes.
 *
 * Everything belongs to one context and is used by one thread at a time; contexts do not share state, so different
 * threads may each have their own. The library prints nothing and never ends the process.
 */
#ifndef KRAIT_CTX_H
#define KRAIT_CTX_H

#include <krait/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Memory hooks. alloc returns `bytes` bytes aligned to `align` (a power of two) or NULL; free takes what alloc gave.
 * Both may be called by the thread that uses the context only. */
typedef struct kr_allocator {
    void *(*alloc)(void *user, size_t bytes, size_t align);
    void (*free)(void *user, void *p);
    void *user;
} kr_allocator;

typedef enum kr_log_level { KR_LOG_INFO = 0, KR_LOG_WARNING = 1 } kr_log_level;

/* What products of matrices, the state space core's among them, may lose. EXACT: nothing, f32 operands are multiplied and
 * added in f32. TF32, BF16: a device with matrix units may round f32 operands to the 11 or 8 leading bits of these types;
 * sums, states, residuals, weights and all that is stored stay f32, what lies between two products of a block may be kept in
 * bf16. The CPU loses nothing, whatever is asked. */
typedef enum kr_precision {
    KR_PRECISION_UNSET = -1, /* what the environment variable KR_PRECISION says (exact, tf32, bf16), else exact */
    KR_PRECISION_EXACT = 0,
    KR_PRECISION_TF32 = 1,
    KR_PRECISION_BF16 = 2
} kr_precision;

/* Called with one line of text, without a newline. */
typedef void kr_log_fn(void *user, kr_log_level level, const char *text);

typedef struct kr_ctx_options {
    size_t size;            /* sizeof(kr_ctx_options) of the caller; set by kr_ctx_options_init */
    int threads;            /* 0: KR_THREADS, else one for each CPU this process may use */
    const char *isa;        /* NULL: KR_ISA, else the best here; "ref", "avx2", "avx512": at most that one */
    kr_allocator allocator; /* alloc NULL: the C library's */
    kr_log_fn *log;         /* NULL: silence */
    void *log_user;
    uint64_t seed;          /* of the context's random stream */
    bool check_finite;      /* after each op, a NaN or infinity in its result is an error that names op and index */
    const char *device;     /* NULL: KR_DEVICE, else "cpu"; "cuda" or "cuda:1": an NVIDIA GPU, by its number from 0 */
    kr_precision precision; /* of products; KR_PRECISION_UNSET by default */
} kr_ctx_options;

/* Fills in the defaults for exactly the fields that this caller was compiled with. */
KR_API void kr_ctx_options_init_sized(kr_ctx_options *options, size_t size);
#define kr_ctx_options_init(options) kr_ctx_options_init_sized((options), sizeof *(options))

/* NULL options are the defaults; an option that is set wins over the environment. Never NULL but when not even the
 * context itself can be allocated: a context that could not be set up as asked (an unknown KR_ISA, say) is returned in
 * the failed state, its message says why, and it must be destroyed as any other. */
KR_API kr_ctx *kr_ctx_create(const kr_ctx_options *options);
KR_API void kr_ctx_destroy(kr_ctx *ctx);

/* The first error since the context was made or cleared; later ones are its echoes and are not kept. The message names
 * op, operand, sizes, rule and, where there is one, the remedy; it is "" while all is well. NULL ctx: failed, out of
 * memory. */
KR_API bool kr_ctx_failed(const kr_ctx *ctx);
KR_API kr_status kr_ctx_status(const kr_ctx *ctx);
KR_API const char *kr_ctx_message(const kr_ctx *ctx);

/* Forgets the error. Tapes that were in use when it happened stay unusable until kr_tape_reset. Does nothing for a
 * context that failed in kr_ctx_create. */
KR_API void kr_ctx_clear(kr_ctx *ctx);

KR_API int kr_ctx_threads(const kr_ctx *ctx);
KR_API const char *kr_ctx_isa(const kr_ctx *ctx); /* "ref", "avx2" or "avx512" */

/* Where the context's tensors live and its ops run: "cpu", or "cuda:0" and the name of the GPU; "none" for a context that
 * failed in kr_ctx_create, and for NULL. */
KR_API const char *kr_ctx_device(const kr_ctx *ctx);

/* Waits until all ops so far have run: to take the time of them, or before memory of a tensor is handed to code that is not
 * ours. Returns the context's status, which is KR_ERR_DEVICE if one of them failed: such an error stays, kr_ctx_clear does
 * not take it away, and every later call repeats it. On the CPU there is never anything to wait for. */
KR_API kr_status kr_ctx_wait(kr_ctx *ctx);

/* What was asked for: never UNSET. */
KR_API kr_precision kr_ctx_precision(const kr_ctx *ctx);

/* Which set of kernels serves a kernel in f32: "avx512", "avx2", or "ref" where no faster one has it; NULL for a name
 * that is no kernel. kr_ctx_kernel(ctx, "ssd") tells what runs the fused core. "cuda" on such a device; NULL, too, for a
 * kernel that it lacks. */
KR_API const char *kr_ctx_kernel(const kr_ctx *ctx, const char *kernel);

/* Exact figures of the context's allocator, which is the host's memory: on a GPU, of headers and lists alone. */
typedef struct kr_memory_stats {
    size_t live_bytes;   /* allocated now */
    size_t peak_bytes;   /* the most that was allocated at once */
    size_t live_blocks;  /* allocations now */
    size_t total_blocks; /* allocations ever */
} kr_memory_stats;
KR_API kr_memory_stats kr_ctx_memory(const kr_ctx *ctx);

/* The same of a GPU's own memory, which has floats: parameters, gradients, what tapes hold, scratch of kernels; and of
 * shared memory, which is the host's, but read by the GPU where it lies: integers, and data on their way. Both are 0 on the
 * CPU, where floats and integers are in the context's own. */
KR_API kr_memory_stats kr_ctx_device_memory(const kr_ctx *ctx);
KR_API kr_memory_stats kr_ctx_shared_memory(const kr_ctx *ctx);

/* Fault injection: the n-th allocation from now on (1 is the next) of any of the three is refused; 0 takes it back. */
KR_API void kr_ctx_fail_allocation(kr_ctx *ctx, size_t n);

/* Restarts the random stream. */
KR_API void kr_ctx_seed(kr_ctx *ctx, uint64_t seed);

/* What this processor offers: "avx2 fma f16c avx512f ... amx_bf16", and the instruction sets usable for `isa`, best
 * last, as text. Needs no context. */
KR_API const char *kr_cpu_features_text(char *text, size_t bytes);
KR_API const char *kr_isa_choices(char *text, size_t bytes);

/* The devices, a line for each: "cpu", "cuda:0 NVIDIA H200, 139 GiB, sm_90"; or why there are none of a kind. Into text
 * as by snprintf: the length it needs, without the final zero. Needs no context. */
KR_API size_t kr_devices_text(char *text, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
