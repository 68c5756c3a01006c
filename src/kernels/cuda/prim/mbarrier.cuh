/* mbarrier.cuh - mbarriers in shared memory and the stages of a producer/consumer pipeline. sm_80 and later.
 *
 * An mbarrier (8 bytes) completes a phase when all counted threads have arrived, and then starts the next. A pipeline stage
 * has two: full, and free again. Accesses that a thread made before arriving are visible to the threads that waited.
 */
#ifndef KR_KERNELS_CUDA_PRIM_MBARRIER_CUH
#define KR_KERNELS_CUDA_PRIM_MBARRIER_CUH

#include <cuda_runtime.h>
#include <stdint.h>

enum { KR_MBARRIER_BYTES = 8 };

static __device__ __forceinline__ void kr_mbarrier_init(uint32_t mbarrier, int threads)
{
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(mbarrier), "r"(threads) : "memory");
}

static __device__ __forceinline__ void kr_mbarrier_arrive(uint32_t mbarrier)
{
    asm volatile("{\n.reg .b64 s;\nmbarrier.arrive.shared.b64 s, [%0];\n}" ::"r"(mbarrier) : "memory");
}

/* Arrives when the thread's copies so far (kr_copy) have completed. */
static __device__ __forceinline__ void kr_mbarrier_arrive_with_copies(uint32_t mbarrier)
{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(mbarrier) : "memory");
}

/* Waits until phase `round` has completed; only its parity counts. */
static __device__ __forceinline__ void kr_mbarrier_wait(uint32_t mbarrier, uint32_t round)
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
                     : "r"(mbarrier), "r"(round & 1)
                     : "memory");
    while (!open);
}

/* The stage of a step, and the phase in which it is used. */
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
