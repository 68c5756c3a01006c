/* cp_async.cuh - asynchronous copies from global to shared memory (cp.async). sm_80 and later.
 *
 *   kr_copy<16>(kr_shared_address(buffer), x);  kr_copy_commit();  ..  kr_copy_wait<2>();  *buffer ..
 *
 * A thread sees its own copies after kr_copy_wait<LEFT>, which waits for all groups but the last LEFT; other threads see
 * them after a barrier that follows.
 */
#ifndef KR_KERNELS_CUDA_PRIM_CP_ASYNC_CUH
#define KR_KERNELS_CUDA_PRIM_CP_ASYNC_CUH

#include <cuda_runtime.h>
#include <stdint.h>

static __device__ __forceinline__ uint32_t kr_shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* 4, 8 or 16 bytes. */
template <int BYTES> static __device__ __forceinline__ void kr_copy(uint32_t to, const void *from)
{
    if (BYTES == 16) asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
    else asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(to), "l"(from), "n"(BYTES) : "memory");
}

/* 16 bytes, of which the first `bytes` are read; the rest becomes 0. */
static __device__ __forceinline__ void kr_copy_async16(uint32_t to, const void *from, int bytes)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}

static __device__ __forceinline__ void kr_copy_commit(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

template <int LEFT> static __device__ __forceinline__ void kr_copy_wait(void)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}

#endif
