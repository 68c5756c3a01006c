/* parts.cuh - what the kernels of rows share: entry points, sizes, packs (packs.cuh), functions of both types, and sums
 * of a warp and of a block: each warp by halves, then the warps in order.
 */
#ifndef KR_KERNELS_CUDA_PARTS_CUH
#define KR_KERNELS_CUDA_PARTS_CUH

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/numbers.cuh"
#include "kernels/cuda/packs.cuh"

#include <cuda_runtime.h>

/* Entry points for both element types: NAME_run<T>(const args *) and, with _SCRATCH, NAME_scratch<T>(const args *). */
#define KR_CUDA_ENTRY(name, args)                                                                                      \
    extern "C" void kr_cuda_f32_##name(const args *a)                                                                  \
    {                                                                                                                  \
        name##_run<float>(a);                                                                                          \
    }                                                                                                                  \
    extern "C" void kr_cuda_f64_##name(const args *a)                                                                  \
    {                                                                                                                  \
        name##_run<double>(a);                                                                                         \
    }
#define KR_CUDA_ENTRY_SCRATCH(name, args)                                                                              \
    KR_CUDA_ENTRY(name, args)                                                                                          \
    extern "C" size_t kr_cuda_f32_##name##_scratch(const args *a)                                                      \
    {                                                                                                                  \
        return name##_scratch<float>(a);                                                                               \
    }                                                                                                                  \
    extern "C" size_t kr_cuda_f64_##name##_scratch(const args *a)                                                      \
    {                                                                                                                  \
        return name##_scratch<double>(a);                                                                              \
    }

static inline cudaStream_t kr_stream_of(const kr_exec *exec)
{
    return (cudaStream_t)exec->stream;
}

static inline int kr_multiprocessors(const kr_exec *exec)
{
    return ((const kr_cuda *)exec->own)->multiprocessors;
}

static inline bool kr_allows16(const void *p)
{
    return kr_is_aligned(p, 16);
}

/* ---- functions ---- */

/* x^-1/2. In f32 an estimate and a step of Newton's where nothing is near the ends of the range, 1.5 ULP. */
static __device__ __forceinline__ float kr_inverse_root(float x)
{
    if (!(x > 1e-36f && x < 1e36f)) return 1 / sqrtf(x);
    float y;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return fmaf(0.5f * y, fmaf(-x * y, y, 1.0f), y);
}
static __device__ __forceinline__ double kr_inverse_root(double x)
{
    return 1 / sqrt(x);
}

/* ---- sums ---- */

/* Over the THREADS threads of a block (or of each warp of it, for 32); all of them get it. room: THREADS / 32. */
template <int THREADS, typename T> static __device__ __forceinline__ T kr_block_sum(T x, T *room)
{
    x = kr_warp_sum(x);
    if (THREADS == 32) return x;
    __syncthreads(); /* the room may still be read from the last time */
    if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = x;
    __syncthreads();
    T sum = room[0];
#pragma unroll
    for (int w = 1; w < THREADS / 32; w++) sum += room[w];
    return sum;
}

/* The same with one wait: room has 2 x 32 numbers, of which calls take turns (turn = 0, 1, 0, ..). */
template <int THREADS, typename T> static __device__ __forceinline__ T kr_block_sum_in_turn(T x, T *room, int turn)
{
    x = kr_warp_sum(x);
    if (THREADS == 32) return x;
    T *of_turn = room + 32 * turn;
    if (threadIdx.x % 32 == 0) of_turn[threadIdx.x / 32] = x;
    __syncthreads();
    T sum = of_turn[0];
#pragma unroll
    for (int w = 1; w < THREADS / 32; w++) sum += of_turn[w];
    return sum;
}

#endif
