/* tma.cuh - bulk copies (TMA) from global to shared memory that complete on an mbarrier (mbarrier.cuh). sm_90; no-ops
 * before it.
 *
 * Sizes and addresses are multiples of 16 bytes.
 */
#ifndef KR_KERNELS_CUDA_PRIM_TMA_CUH
#define KR_KERNELS_CUDA_PRIM_TMA_CUH

#include "kernels/cuda/prim/cp_async.cuh"
#include "kernels/cuda/prim/mbarrier.cuh"

#include <cuda_runtime.h>
#include <stdint.h>

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define KR_HAS_TMA 1
#endif

/* Makes the mbarriers that this thread has initialised visible to bulk copies. */
static __device__ __forceinline__ void kr_mbarrier_init_fence(void)
{
#ifdef KR_HAS_TMA
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

/* Orders this thread's accesses to shared memory before bulk copies that are issued behind a barrier. */
static __device__ __forceinline__ void kr_async_proxy_fence(void)
{
#ifdef KR_HAS_TMA
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

/* Called by one lane. Arrives at the mbarrier, which also waits for this number of bytes. */
static __device__ __forceinline__ void kr_bulk_expect(uint32_t mbarrier, uint32_t bytes)
{
#ifdef KR_HAS_TMA
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(mbarrier), "r"(bytes) : "memory");
#endif
}

static __device__ __forceinline__ void kr_bulk_copy(void *shared, const void *from, uint32_t bytes, uint32_t mbarrier)
{
#ifdef KR_HAS_TMA
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     kr_shared_address(shared)),
                 "l"(from), "r"(bytes), "r"(mbarrier)
                 : "memory");
#endif
}

/* Prefetch to L2. */
static __device__ __forceinline__ void kr_bulk_prefetch_l2(const void *from, uint32_t bytes)
{
#ifdef KR_HAS_TMA
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
#endif
}

/* For data that is read once: L2 evict-first. */
static __device__ __forceinline__ void kr_bulk_copy_evict_first(void *shared, const void *from, uint32_t bytes,
                                                                uint32_t mbarrier)
{
#ifdef KR_HAS_TMA
    uint64_t once;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(once));
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, "
                 "[%3], %4;" ::"r"(kr_shared_address(shared)),
                 "l"(from), "r"(bytes), "r"(mbarrier), "l"(once)
                 : "memory");
#endif
}

#endif
