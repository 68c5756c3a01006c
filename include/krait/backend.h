/* backend.h - kernels and devices from outside the library: a backend replaces kernels of the CPU or of a GPU, or adds a
 * device.
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
 * A backend is a kr_backend_info: a table of kernels, most of whose slots may be empty, and optionally the functions of a
 * device. <krait/backend/kernels.h> has the argument structs of the kernels and what each kernel computes. A program
 * registers a backend with kr_backend_register, or the library loads it from a shared object that exports the function
 * krait_backend (kr_backend_entry_fn). A context uses the backends named by its options or by KR_BACKEND.
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

/* Services of the library for a backend, as pointers, because a shared object may not find the library's symbols. */
typedef struct kr_backend_host {
    size_t size;
    int version;                        /* KR_BACKEND_VERSION of the library */
    uint32_t contract;                  /* KR_KERNEL_CONTRACT of the library */
    const struct kr_kernels *reference; /* every kernel in plain C, for f32 and f64 in host memory */
    /* Runs the tasks 0 to n - 1 on the threads of a kernel's context; the number of these threads. */
    void (*parallel)(const struct kr_exec *exec, int64_t n, kr_backend_task_fn *task, void *user);
    int (*threads)(const struct kr_exec *exec);
    void *reserved;
} kr_backend_host;

/* A device with its own memory. A text that is returned is an error message, valid until the next call; NULL: no
 * error. Queued work runs in order. Functions must not be NULL unless NULL is explained. */
typedef struct kr_backend_device {
    size_t size; /* sizeof(kr_backend_device) */
    /* Opens device number 0, 1, ...: *handle is passed to the other functions and, as exec.own, to the device's kernels.
     * *name is for messages. */
    const char *(*open)(void *user, int number, void **handle, const char **name);
    void (*close)(void *handle);
    /* Memory of the device, `align` a power of two; NULL: out of memory. The library accesses it only by the functions
     * below and by kernels. */
    void *(*alloc)(void *handle, size_t bytes, size_t align);
    void (*free)(void *handle, void *p);
    /* Memory that host and kernels share, for integers and lists. Both NULL: the context's host memory. */
    void *(*alloc_shared)(void *handle, size_t bytes, size_t align);
    void (*free_shared)(void *handle, void *p);
    const char *(*upload)(void *handle, void *to, const void *host, size_t bytes);     /* has read host on return */
    const char *(*download)(void *handle, void *host, const void *from, size_t bytes); /* after all queued work */
    const char *(*copy)(void *handle, void *to, const void *from, size_t bytes);       /* may be queued */
    const char *(*zero)(void *handle, void *p, size_t bytes);                          /* may be queued */
    const char *(*wait)(void *handle);                            /* until all queued work is done */
    const char *(*check)(void *handle);                           /* error of the last kernel; NULL function: none */
    bool (*memory_info)(void *handle, size_t *free, size_t *all); /* of the device; NULL: unknown */
    /* true: the host can access the device's memory, and kernels that the device lacks run without transfers. */
    bool is_host_visible;
    void *user; /* passed to open and free_detached */
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
    /* The target of its kernels: "cpu", an instruction set ("ref", "avx2", "avx512": contexts that use this one or a
     * better one), or a kind of device ("cuda"). NULL: "cpu", or the device of this backend. The backend has no effect
     * on contexts of other targets. */
    const char *target;
    /* Slots without `run` are not replaced. NULL: none. */
    const struct kr_kernels *kernels;
    const kr_backend_device *device; /* NULL: kernels only */
} kr_backend_info;

/* Type of krait_backend: returns the backend, or NULL if it does not work with this host. The result and everything it
 * points to must stay valid as long as the object is loaded. */
typedef const kr_backend_info *kr_backend_entry_fn(const kr_backend_host *host);

/* The services of the library, for backends that a program registers. Thread-safe. */
KR_API const kr_backend_host *kr_backend_services(void);

/* Registers a backend for the process, so that options and KR_BACKEND can name it. `info` and everything it points to
 * must stay valid until the process ends. Registering the same info again has no effect.
 *
 * Errors: of ctx. KR_ERR_ARG: a field is missing or wrong, or another backend has the name. KR_ERR_UNSUPPORTED: built for
 * another version of the library, or more than 16 backends. Nothing is registered then.
 * Thread safety: threads may register backends at the same time, each with its own context. */
KR_API kr_status kr_backend_register(kr_ctx *ctx, const kr_backend_info *info);

/* Loads a device that was built apart from the library, as a plug-in: "cuda" of libkrait_cuda.so (KR_CUDA_PLUGIN of the build).
 * From then on kr_ctx_options.device can name it, and kr_info_text lists it, until the process ends. A path without '/' is
 * looked for as the system looks for libraries. Loading the same file again has no effect. Library and plug-in must come from
 * one version of the sources; unlike a backend, a plug-in shares structs with the library that no public header has.
 *
 * A library that was built without CUDA loads libkrait_cuda.so by itself when a context asks for "cuda", or when devices are
 * listed: the file that KR_CUDA_PLUGIN of the environment names, else where the system looks for libraries.
 *
 * Errors: of ctx. KR_ERR_ARG: path is NULL or empty. KR_ERR_IO: the file cannot be loaded. KR_ERR_FORMAT: it is no plug-in.
 * KR_ERR_UNSUPPORTED: it is of another version, or more than 8 plug-ins. KR_ERR_STATE: the library itself or another file
 * has the device.
 * Thread safety: threads may load plug-ins at the same time, each with its own context. */
KR_API kr_status kr_device_load(kr_ctx *ctx, const char *path);

/* Kernels that the device of a context lacks run on the CPU: operands are downloaded, results uploaded. */
typedef struct kr_backend_stats {
    int n_backends;          /* backends that replaced kernels or added the device */
    uint64_t fallback_calls; /* kernel calls that the CPU ran instead of the device */
    uint64_t fallback_bytes; /* bytes transferred for them, in both directions */
    uint64_t reserved[4];    /* 0; for later versions */
} kr_backend_stats;
KR_API kr_backend_stats kr_ctx_backend_stats(const kr_ctx *ctx);

#ifdef __cplusplus
}
#endif
#endif
