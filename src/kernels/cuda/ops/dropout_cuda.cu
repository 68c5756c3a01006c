/* dropout_cuda.cu - dropout: a thread computes one Philox block, whose four words belong to elements 16 apart
 * (base/dropout_words.h). A product and nothing to contract: the bits of the CPU kernels. */
#include "base/dropout_words.h"
#include "kernels/cuda/prim/block_reduce.cuh"
#include "kernels/cuda/prim/launch.cuh"

template <typename T> static void dropout_run(const kr_dropout_args *args)
{
    const kr_dropout_args a = *args;
    if (a.n <= 0) return;
    const T *x = (const T *)a.x, scale = (T)a.scale;
    T *y = (T *)a.y;
    const uint64_t start = a.first / KR_DROPOUT_GROUP, end = (a.first + (uint64_t)a.n - 1) / KR_DROPOUT_GROUP + 1;
    kr_cuda_each(a.exec, (int64_t)(end - start) * KR_DROPOUT_LANE, [=] __device__(int64_t i) {
        const uint64_t block = start * KR_DROPOUT_LANE + (uint64_t)i;
        const kr_philox_block words = kr_philox_at(a.seed, a.stream, block);
        const uint64_t word = block / KR_DROPOUT_LANE * KR_DROPOUT_GROUP + block % KR_DROPOUT_LANE;
#pragma unroll
        for (int lane = 0; lane < 4; lane++) {
            const int64_t at = (int64_t)(word + (uint64_t)(lane * KR_DROPOUT_LANE) - a.first);
            if (at >= 0 && at < a.n) y[at] = words.word[lane] >= a.threshold ? x[at] * scale : (T)0;
        }
    });
}

KR_CUDA_ENTRY(dropout, kr_dropout_args)
