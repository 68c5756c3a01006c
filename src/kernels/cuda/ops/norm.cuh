/* norm.cuh - shared by the RMS norm and its gradients (formulas: norm_cuda.cu, norm_bwd_cuda.cu).
 *
 * A group of a row is one unit of work: of a warp, or of a CTA that is as wide as the group needs for its vectors to stay
 * in registers between the two passes. Groups that are wider than a CTA can hold are read twice. A unit processes rows of
 * one group, loading the next ones while it works on one.
 */
#ifndef KR_KERNELS_CUDA_OPS_NORM_CUH
#define KR_KERNELS_CUDA_OPS_NORM_CUH

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/prim/silu.cuh"

enum { PLAIN, GATE_FIRST, NORM_FIRST }; /* which of the three norms */

template <typename T> static __device__ __forceinline__ kr_vec16<T> load_gain(const T *gain, int64_t left, bool aligned)
{
    kr_vec16<T> p;
    if (gain) return kr_load_vec16(gain, left, aligned);
#pragma unroll
    for (int i = 0; i < kr_vec16<T>::N; i++) p.v[i] = 1;
    return p;
}

/* Extra offset of row o due to the row stride. */
static __device__ __forceinline__ int64_t padding_offset(int64_t padding, int64_t o)
{
    return padding ? o * padding : 0;
}

template <int THREADS> static __device__ __forceinline__ int64_t unit_of(void)
{
    return THREADS == 32 ? (int64_t)blockIdx.x * 4 + threadIdx.x / 32 : (int64_t)blockIdx.x;
}

/* Threads that hold a group, one vector each: one of these; a warp holds two at most, and so does the largest CTA. */
#define EACH_WIDTH(X) X(128) X(192) X(256) X(384) X(512) X(768) X(1024)
enum { WARP_ONE = 1, WARP_TWO = 32, BLOCK_TWO = 2048, NO_BLOCK = 0 };

template <typename T> static int threads_for(int64_t width)
{
    const int64_t vecs = kr_ceil_div(width, kr_vec16<T>::N);
    if (vecs <= 32) return WARP_ONE;
    if (vecs <= 64) return WARP_TWO;
#define X(threads)                                                                                                     \
    if (vecs <= threads) return threads;
    EACH_WIDTH(X)
#undef X
    return vecs <= BLOCK_TWO ? BLOCK_TWO : NO_BLOCK;
}

/* Threads per CTA. */
static constexpr int block_of(int threads)
{
    return threads == 32 ? 128 : threads;
}

/* CTAs per multiprocessor: registers are limited so that this many f32 vectors are processed at once. */
template <typename T> static constexpr int ctas_per_sm(int threads, int vecs, int vecs_per_sm)
{
    const int blocks = vecs_per_sm / (block_of(threads) * vecs) * 4 / (int)sizeof(T);
    return blocks > 0 ? blocks : 1;
}

/* CASE(threads, vecs) of the CTA for a width; LONG if none. */
#define SWITCH_WIDTH(width, CASE, LONG)                                                                                \
    switch (threads_for<T>(width)) {                                                                                   \
    case WARP_ONE: CASE(32, 1); break;                                                                                 \
    case WARP_TWO: CASE(32, 2); break;                                                                                 \
    case 128: CASE(128, 1); break;                                                                                     \
    case 192: CASE(192, 1); break;                                                                                     \
    case 256: CASE(256, 1); break;                                                                                     \
    case 384: CASE(384, 1); break;                                                                                     \
    case 512: CASE(512, 1); break;                                                                                     \
    case 768: CASE(768, 1); break;                                                                                     \
    case 1024: CASE(1024, 1); break;                                                                                   \
    case BLOCK_TWO: CASE(1024, 2); break;                                                                              \
    default: LONG;                                                                                                     \
    }

#endif
