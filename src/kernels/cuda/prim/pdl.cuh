/* pdl.cuh - programmatic dependent launch: kernels that start before the preceding kernel ends.
 *
 * On sm_90 such a kernel starts while the preceding one still runs: it may read what that one does not write, its weights
 * or its state, and waits before anything else. It releases the next kernel only after that wait, so that two of them
 * overlap, never three. Before sm_90, and on a stream that others use, these are ordinary launches: a kernel of the caller's
 * may write weights, and may release the next kernel before it has.
 */
#ifndef KR_KERNELS_CUDA_PRIM_PDL_CUH
#define KR_KERNELS_CUDA_PRIM_PDL_CUH

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/prim/silu.cuh"

static __device__ __forceinline__ void kr_pdl_wait_alone(void)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* Lets the next kernel start alongside this one. */
static __device__ __forceinline__ void kr_pdl_launch_dependents(void)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

static __device__ __forceinline__ void kr_pdl_wait(void)
{
    kr_pdl_wait_alone();
    kr_pdl_launch_dependents();
}

template <typename... Params, typename... Values>
static inline void kr_pdl_launch(const kr_exec *exec, void (*kernel)(Params...), dim3 grid, unsigned threads,
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
    /* a newer GPU may run the sm_80 code, which does not wait */
    config.numAttrs = own->arch == 90 && !own->is_shared ? 1 : 0;
    if (shared > 32 << 10) { /* up to 48 KiB, with the static part, need no attribute */
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
        /* a CTA can be co-resident with one of another kernel only if both want the same shared memory carveout */
        cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
    }
    cudaLaunchKernelEx(&config, kernel, values...);
}

#endif
