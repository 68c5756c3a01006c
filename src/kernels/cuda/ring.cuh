/* ring.cuh - pieces of memory on their way to shared memory by bulk copies, which open a latch (handover.cuh).
 *
 * Bytes and addresses are multiples of 16. Needs sm_90.
 */
#ifndef KR_KERNELS_CUDA_RING_CUH
#define KR_KERNELS_CUDA_RING_CUH

#include "kernels/cuda/copies.cuh"
#include "kernels/cuda/handover.cuh"

#include <cuda_runtime.h>
#include <stdint.h>

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define KR_HAS_RING 1
#endif

/* Latches that this thread has made are there for copies too. */
static __device__ __forceinline__ void kr_latches_ready(void)
{
#ifdef KR_HAS_RING
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

/* What this thread has read or written in shared memory is done before copies that are asked for behind a barrier. */
static __device__ __forceinline__ void kr_shared_handed_over(void)
{
#ifdef KR_HAS_RING
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

/* One lane calls these. It comes to the latch, which opens when so many bytes have come, too. */
static __device__ __forceinline__ void kr_bulk_expect(uint32_t latch, uint32_t bytes)
{
#ifdef KR_HAS_RING
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(latch), "r"(bytes) : "memory");
#endif
}

static __device__ __forceinline__ void kr_bulk_read(void *shared, const void *from, uint32_t bytes, uint32_t latch)
{
#ifdef KR_HAS_RING
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     kr_shared_address(shared)),
                 "l"(from), "r"(bytes), "r"(latch)
                 : "memory");
#endif
}

/* To the cache alone. */
static __device__ __forceinline__ void kr_bulk_fetch(const void *from, uint32_t bytes)
{
#ifdef KR_HAS_RING
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
#endif
}

/* What is read once leaves the cache to others. */
static __device__ __forceinline__ void kr_bulk_read_once(void *shared, const void *from, uint32_t bytes, uint32_t latch)
{
#ifdef KR_HAS_RING
    uint64_t once;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(once));
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, "
                 "[%3], %4;" ::"r"(kr_shared_address(shared)),
                 "l"(from), "r"(bytes), "r"(latch), "l"(once)
                 : "memory");
#endif
}

#endif
