/* handover.cuh - stages of shared memory that some threads fill and others use, handed over one by one.
 *
 * A latch is a barrier in shared memory (mbarrier, 8 bytes) that opens when all threads that are counted have come, and
 * then is the next round's. A stage has two: filled, and free again. What a thread wrote or read before it came is done
 * for those who waited.
 */
#ifndef KR_KERNELS_CUDA_HANDOVER_CUH
#define KR_KERNELS_CUDA_HANDOVER_CUH

#include <cuda_runtime.h>
#include <stdint.h>

enum { KR_LATCH_BYTES = 8 };

static __device__ __forceinline__ void kr_latch_init(uint32_t latch, int threads)
{
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(latch), "r"(threads) : "memory");
}

static __device__ __forceinline__ void kr_latch_come(uint32_t latch)
{
    asm volatile("{\n.reg .b64 s;\nmbarrier.arrive.shared.b64 s, [%0];\n}" ::"r"(latch) : "memory");
}

/* The same when the thread's copies so far (kr_copy) have come. */
static __device__ __forceinline__ void kr_latch_come_with_copies(uint32_t latch)
{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(latch) : "memory");
}

/* Until the round is over, of whose number the last bit counts. */
static __device__ __forceinline__ void kr_latch_wait(uint32_t latch, uint32_t round)
{
    uint32_t open;
    do
        asm volatile("{\n.reg .pred p;\n"
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
                     "mbarrier.try_wait.parity.shared.b64 p, [%1], %2;\n"
#else
                     "mbarrier.test_wait.parity.shared.b64 p, [%1], %2;\n"
#endif
                     "selp.u32 %0, 1, 0, p;\n}"
                     : "=r"(open)
                     : "r"(latch), "r"(round & 1)
                     : "memory");
    while (!open);
}

/* The stage of a step, and the round in which it is used. */
typedef struct kr_stage {
    int at;
    uint32_t round;
} kr_stage;

template <int STAGES, int STEPS> static __device__ __forceinline__ void kr_stage_next(kr_stage *s)
{
    s->at += STEPS;
    if (s->at >= STAGES) s->at -= STAGES, s->round++;
}

#endif
