/* exec.h - execution resources of a kernel: the first member of every argument struct. */
#ifndef KR_KERNELS_EXEC_H
#define KR_KERNELS_EXEC_H

#include "base/pool.h"

#include <krait/ctx.h>

typedef struct kr_exec {
    kr_pool *pool;          /* NULL: the calling thread alone */
    void *scratch;          /* as many bytes as the kernel's scratch function returned, 64-byte aligned */
    void *stream;           /* the cudaStream_t of a CUDA device; not read elsewhere */
    void *own;              /* device data of its kernels: struct kr_cuda of kernels/cuda/cuda.h; not read elsewhere */
    kr_precision precision; /* of products on a CUDA device, never UNSET; not read elsewhere */
    void *fallback;         /* of the library, where the CPU runs a kernel for a device */
} kr_exec;

#endif
