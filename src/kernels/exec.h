/* exec.h - execution resources of a kernel: the first member of every argument struct. */
#ifndef KR_KERNELS_EXEC_H
#define KR_KERNELS_EXEC_H

#include "base/pool.h"

#include <krait/ctx.h>

struct kr_kernels;

typedef struct kr_exec {
    kr_pool *pool;          /* NULL: the calling thread alone */
    void *scratch;          /* as many bytes as the kernel's scratch function returned, 64-byte aligned */
    void *stream;           /* the cudaStream_t of a CUDA device; not read elsewhere */
    void *own;              /* device data of its kernels: struct kr_cuda of kernels/cuda/cuda.h; not read elsewhere */
    kr_precision precision; /* of products on a CUDA device, never UNSET; not read elsewhere */
    /* The kernels that the same context has without backends: what a backend's kernel passes on that it does not handle.
     * Each takes the arguments as they are; its scratch is exec.scratch. */
    const struct kr_kernels *library;
    void *ctx; /* of the library */
} kr_exec;

#endif
