/* block_reduce.cuh - shared by row-wise kernels: entry points, 16-byte vectors (vec16.cuh), and sums over a CTA: each warp
 * pairwise, then the warps in order. */
#ifndef KR_KERNELS_CUDA_PRIM_BLOCK_REDUCE_CUH
#define KR_KERNELS_CUDA_PRIM_BLOCK_REDUCE_CUH

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/prim/math.cuh"
#include "kernels/cuda/prim/vec16.cuh"

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

static inline bool kr_is_aligned16(const void *p)
{
    return kr_is_aligned(p, 16);
}

/* ---- functions ---- */

/* x^-1/2. In f32 rsqrt.approx and one Newton step away from the ends of the range, 1.5 ULP. */
static __device__ __forceinline__ float kr_rsqrt_newton(float x)
{
    if (!(x > 1e-36f && x < 1e36f)) return 1 / sqrtf(x);
    float y;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return fmaf(0.5f * y, fmaf(-x * y, y, 1.0f), y);
}
static __device__ __forceinline__ double kr_rsqrt_newton(double x)
{
    return 1 / sqrt(x);
}

/* ---- sums ---- */

/* Over the THREADS threads of a CTA (or of each warp, for 32); all of them get it. shared: THREADS / 32 elements. */
template <int THREADS, typename T> static __device__ __forceinline__ T kr_block_sum(T x, T *shared)
{
    x = kr_warp_sum(x);
    if (THREADS == 32) return x;
    __syncthreads(); /* the previous call's result may still be read */
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
    __syncthreads();
    T sum = shared[0];
#pragma unroll
    for (int w = 1; w < THREADS / 32; w++) sum += shared[w];
    return sum;
}

/* The same with one barrier: shared has 2 x 32 elements, of which calls alternate halves (parity = 0, 1, 0, ..). */
template <int THREADS, typename T>
static __device__ __forceinline__ T kr_block_sum_alternating(T x, T *shared, int parity)
{
    x = kr_warp_sum(x);
    if (THREADS == 32) return x;
    T *buffer = shared + 32 * parity;
    if (threadIdx.x % 32 == 0) buffer[threadIdx.x / 32] = x;
    __syncthreads();
    T sum = buffer[0];
#pragma unroll
    for (int w = 1; w < THREADS / 32; w++) sum += buffer[w];
    return sum;
}

#endif
