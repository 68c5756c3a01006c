/* exec.h - what a kernel runs on: the first member of every argument struct. */
#ifndef KR_KERNELS_EXEC_H
#define KR_KERNELS_EXEC_H

#include "base/pool.h"

#include <krait/tensor.h>

typedef struct kr_exec {
    kr_pool *pool; /* NULL: the calling thread alone */
    void *scratch; /* as many bytes as the kernel's scratch function asked for, 64-byte aligned */
} kr_exec;

#endif
