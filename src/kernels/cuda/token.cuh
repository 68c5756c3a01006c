/* token.cuh - launches of kernels that follow one another closely.
 *
 * On sm_90 such a kernel begins while the one before it still runs: it may read what that one does not write, its
 * weights or its state, and waits before all else. It lets the next one begin only after that wait, so that two of
 * them overlap and never three.
 */
#ifndef KR_KERNELS_CUDA_TOKEN_CUH
#define KR_KERNELS_CUDA_TOKEN_CUH

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/gates.cuh"

static __device__ __forceinline__ void kr_token_wait_alone(void)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* The next kernel may begin: it takes its place beside this one. */
static __device__ __forceinline__ void kr_token_let_next(void)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

static __device__ __forceinline__ void kr_token_wait(void)
{
    kr_token_wait_alone();
    kr_token_let_next();
}

template <typename... Params, typename... Values>
static inline void kr_token_launch(const kr_exec *exec, void (*kernel)(Params...), dim3 grid, unsigned threads,
                                   size_t shared, Values... values)
{
    const kr_cuda *own = (const kr_cuda *)exec->own;
    cudaLaunchAttribute early;
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = shared;
    config.stream = kr_stream_of(exec);
    config.attrs = &early;
    config.numAttrs = own->arch == 90 ? 1 : 0; /* a newer one may run the code of sm_80, which does not wait */
    if (shared > 32 << 10) {                   /* up to 48 KiB need no asking for, with what the kernel declares */
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
        /* a block takes its place beside another's only where both want the same part of the cache as shared memory */
        cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
    }
    cudaLaunchKernelEx(&config, kernel, values...);
}

#endif
