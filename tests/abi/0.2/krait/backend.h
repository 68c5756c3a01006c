/* backend.h - kernels and devices from outside the library: a backend replaces kernels of the CPU or of a GPU, or brings a
 * device of its own.
 *
 *   const kr_backend_host *host = kr_backend_services();
 *   printf("kernels of contract %u\n", (unsigned)host->contract);
 *   kr_ctx_options options;
 *   kr_ctx_options_init(&options);
 *   options.backend = NULL;                     // or "mine", or "./mine.so"; NULL: KR_BACKEND
 *   kr_ctx *fast = kr_ctx_create(&options);
 *   printf("the SSD core runs on %s\n", kr_ctx_kernel(fast, "ssd"));
 *   printf("%llu calls fell back\n", (unsigned long long)kr_ctx_backend_stats(fast).fallback_calls);
 *   kr_ctx_destroy(fast);
 *
 * A backend is a kr_backend_info: a table of kernels, most of whose slots may be empty, and perhaps the functions of a
 * device. The structs of the kernels' arguments are in <krait/backend/kernels.h>, which also says what each kernel
 * computes. A program registers a backend with kr_backend_register, or the library loads it from a shared object, which
 * exports a function krait_backend (kr_backend_entry_fn). A context uses the backends that its options or KR_BACKEND name.
 * docs/backends.md has the rules and an example. */
#ifndef KRAIT_BACKEND_H
#define KRAIT_BACKEND_H

#include <krait/ctx.h>

#ifdef __cplusplus
extern "C" {
#endif

#define KR_BACKEND_VERSION 1 /* of this header */

/* The function that a shared object exports, by this name. */
#define KR_BACKEND_ENTRY "krait_backend"

struct kr_exec;    /* of <krait/backend/kernels.h>, as is the next */
struct kr_kernels; /* all kernels, each with its function and the scratch memory that it needs */

/* One of n tasks; `worker` numbers the threads from 0. */
typedef void kr_backend_task_fn(void *user, int64_t index, int worker);

/* What the library offers to a backend, in functions because a shared object may not find the library's symbols. */
typedef struct kr_backend_host {
    size_t size;
    int version;                        /* KR_BACKEND_VERSION of the library */
    uint32_t contract;                  /* KR_KERNEL_CONTRACT of the library */
    const struct kr_kernels *reference; /* every kernel in plain C, for f32 and f64 in host memory */
    /* Runs the tasks 0 to n - 1 on the threads of a kernel's context, and how many threads there are. */
    void (*parallel)(const struct kr_exec *exec, int64_t n, kr_backend_task_fn *task, void *user);
    int (*threads)(const struct kr_exec *exec);
    void *reserved;
} kr_backend_host;

/* A device with memory of its own. Functions that return text return NULL, or an error message that stays valid until the
 * next call. What is queued runs in order. NULL is allowed where it is said. */
typedef struct kr_backend_device {
    size_t size; /* sizeof(kr_backend_device) */
    /* Opens device number 0, 1, ...: *handle is for the other functions, and exec.own of the device's kernels. *name is
     * for messages. */
    const char *(*open)(void *user, int number, void **handle, const char **name);
    void (*close)(void *handle);
    /* Memory of the device, `align` a power of two; NULL: refused. The library writes to it by upload, copy and zero
     * only, and never reads it itself. */
    void *(*alloc)(void *handle, size_t bytes, size_t align);
    void (*free)(void *handle, void *p);
    /* Memory that the host and kernels share, for integers and lists. NULL, both: the context's host memory. */
    void *(*alloc_shared)(void *handle, size_t bytes, size_t align);
    void (*free_shared)(void *handle, void *p);
    const char *(*upload)(void *handle, void *to, const void *host, size_t bytes);     /* host may change after it */
    const char *(*download)(void *handle, void *host, const void *from, size_t bytes); /* after all that is queued */
    const char *(*copy)(void *handle, void *to, const void *from, size_t bytes);       /* may be queued, as the next */
    const char *(*zero)(void *handle, void *p, size_t bytes);
    const char *(*wait)(void *handle);                            /* until everything queued has run */
    const char *(*check)(void *handle);                           /* for errors of the last kernel; NULL: none */
    bool (*memory_info)(void *handle, size_t *free, size_t *all); /* of the device; NULL: unknown */
    /* The host can read and write the device's memory: a kernel that the device lacks runs there without transfers. */
    bool is_host_visible;
    void *user; /* for open and free_detached */
    /* Frees memory of a handle that may be closed, on any thread, after what is queued with it has run. A device that has
     * this function lets contexts share models (kr_model_share): memory of one handle is then valid for all handles with
     * the same number, in several threads at once. NULL: sharing is an error. */
    void (*free_detached)(void *user, void *p);
} kr_backend_device;

/* A backend. Its fields up to kernels_bytes are set by KR_BACKEND_HEAD of <krait/backend/kernels.h>. */
typedef struct kr_backend_info {
    size_t size;
    int version;
    uint32_t contract;
    size_t kernels_bytes;
    const char *name; /* from 1 to 31 letters a-z, digits and _, beginning with a letter */
    /* What its kernels are for: "cpu", an instruction set ("ref", "avx2", "avx512": contexts that use this one or a
     * better one), or a kind of device ("cuda"). NULL: "cpu", or the device of this backend. In a context without it
     * the backend does nothing. */
    const char *target;
    /* Slots without `run` are not replaced. NULL: none. */
    const struct kr_kernels *kernels;
    const kr_backend_device *device; /* NULL: kernels only */
} kr_backend_info;

/* krait_backend of a shared object: its backend, or NULL if it does not work with this host. The result and all that it
 * points to stay valid as long as the object is loaded. */
typedef const kr_backend_info *kr_backend_entry_fn(const kr_backend_host *host);

/* What the library offers to backends, for those that a program registers. Thread-safe. */
KR_API const kr_backend_host *kr_backend_services(void);

/* Registers a backend for the process, so that options and KR_BACKEND may name it. `info` and all that it points to must
 * stay valid until the process ends. Registering the same info again changes nothing.
 *
 * Errors: of ctx. KR_ERR_ARG: a field is missing or wrong, or another backend has the name. KR_ERR_UNSUPPORTED: built for
 * another version of the library, or more than 16 backends. Nothing is registered then.
 * Thread safety: threads may register backends at the same time, each with its own context. */
KR_API kr_status kr_backend_register(kr_ctx *ctx, const kr_backend_info *info);

/* Kernels that the device of a context lacks run on the CPU: their operands are downloaded, and the results uploaded. */
typedef struct kr_backend_stats {
    int n_backends;          /* that replaced kernels, or brought the device */
    uint64_t fallback_calls; /* kernels that the CPU ran instead of the device */
    uint64_t fallback_bytes; /* that were transferred for them, in both directions */
    uint64_t reserved[4];    /* 0; for later versions */
} kr_backend_stats;
KR_API kr_backend_stats kr_ctx_backend_stats(const kr_ctx *ctx);

#ifdef __cplusplus
}
#endif
#endif
