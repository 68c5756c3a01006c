/* norm.cuh - what the RMS norm and its gradients share (formulas: norm_cuda.cu, norm_bwd_cuda.cu).
 *
 * A group of a row is one unit of work: of a warp, or of a block that is as wide as the group needs for its packs to
 * stay in registers between the two passes. Groups that are wider than a block can hold are read twice. A unit walks
 * down rows of one group, with the next of them on their way while it works on one.
 */
#ifndef KR_KERNELS_CUDA_NORM_CUH
#define KR_KERNELS_CUDA_NORM_CUH

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/gates.cuh"

enum { PLAIN, GATE_FIRST, NORM_FIRST }; /* which of the three norms */

template <typename T> static __device__ __forceinline__ kr_pack<T> load_gain(const T *gain, int64_t left, bool aligned)
{
    kr_pack<T> p;
    if (gain) return kr_load_pack(gain, left, aligned);
#pragma unroll
    for (int i = 0; i < kr_pack<T>::N; i++) p.v[i] = 1;
    return p;
}

/* Where the elements of row o lie beyond those of rows without gaps. */
static __device__ __forceinline__ int64_t gap_before(int64_t gap, int64_t o)
{
    return gap ? o * gap : 0;
}

template <int THREADS> static __device__ __forceinline__ int64_t unit_of(void)
{
    return THREADS == 32 ? (int64_t)blockIdx.x * 4 + threadIdx.x / 32 : (int64_t)blockIdx.x;
}

/* Threads that hold a group, a pack each: one of these; a warp holds two at most, and so does the largest block. */
#define EACH_WIDTH(X) X(128) X(192) X(256) X(384) X(512) X(768) X(1024)
enum { WARP_ONE = 1, WARP_TWO = 32, BLOCK_TWO = 2048, NO_BLOCK = 0 };

template <typename T> static int threads_for(int64_t width)
{
    const int64_t packs = kr_ceil_div(width, kr_pack<T>::N);
    if (packs <= 32) return WARP_ONE;
    if (packs <= 64) return WARP_TWO;
#define X(threads)                                                                                                     \
    if (packs <= threads) return threads;
    EACH_WIDTH(X)
#undef X
    return packs <= BLOCK_TWO ? BLOCK_TWO : NO_BLOCK;
}

/* Threads of a block. */
static constexpr int block_of(int threads)
{
    return threads == 32 ? 128 : threads;
}

/* Blocks that a multiprocessor holds at once: registers are kept to what lets so many f32 packs be worked on. */
template <typename T> static constexpr int blocks_abreast(int threads, int packs, int packs_abreast)
{
    const int blocks = packs_abreast / (block_of(threads) * packs) * 4 / (int)sizeof(T);
    return blocks > 0 ? blocks : 1;
}

/* CASE(threads, packs) of the block that a width takes; LONG for none. */
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
