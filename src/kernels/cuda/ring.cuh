/* ring.cuh - pieces of memory that a warp reads, changes and writes back by bulk copies, several of them on their way.
 *
 * A warp has a ring of STAGES pieces in shared memory. Piece i of its work lies in stage i % STAGES; while it is changed
 * the pieces up to i + STAGES - 2 are on their way in, and the one before it on its way out. Bytes and addresses are
 * multiples of 16. What passes so is read and written once: it leaves the cache to others. Needs sm_90.
 */
#ifndef KR_KERNELS_CUDA_RING_CUH
#define KR_KERNELS_CUDA_RING_CUH

#include <cuda_runtime.h>
#include <stdint.h>

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define KR_HAS_RING 1
#endif

static __device__ __forceinline__ uint32_t kr_ring_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

static __device__ __forceinline__ void kr_barrier_init(uint64_t *barrier)
{
#ifdef KR_HAS_RING
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(kr_ring_address(barrier)) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

static __device__ __forceinline__ void kr_barrier_wait(uint64_t *barrier, uint32_t phase)
{
#ifdef KR_HAS_RING
    uint32_t done;
    do
        asm volatile("{\n.reg .pred p;\n"
                     "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, p;\n}"
                     : "=r"(done)
                     : "r"(kr_ring_address(barrier)), "r"(phase)
                     : "memory");
    while (!done);
#endif
}

/* One lane calls these two. */
static __device__ __forceinline__ void kr_bulk_read(void *shared, const void *from, uint32_t bytes, uint64_t *barrier)
{
#ifdef KR_HAS_RING
    uint64_t once;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(once));
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(kr_ring_address(barrier)), "r"(bytes)
                 : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, "
                 "[%3], %4;" ::"r"(kr_ring_address(shared)),
                 "l"(from), "r"(bytes), "r"(kr_ring_address(barrier)), "l"(once)
                 : "memory");
#endif
}

static __device__ __forceinline__ void kr_bulk_write(void *to, const void *shared, uint32_t bytes)
{
#ifdef KR_HAS_RING
    uint64_t once;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(once));
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group.L2::cache_hint [%0], [%1], %2, %3;" ::"l"(to),
                 "r"(kr_ring_address(shared)), "r"(bytes), "l"(once)
                 : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
#endif
}

/* All but the last LEFT pieces that this lane wrote have left shared memory. */
template <int LEFT> static __device__ __forceinline__ void kr_bulk_written(void)
{
#ifdef KR_HAS_RING
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(LEFT) : "memory");
#endif
}

/* What lanes stored in shared memory is seen by the copies that follow. */
static __device__ __forceinline__ void kr_bulk_fence(void)
{
#ifdef KR_HAS_RING
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

#endif
