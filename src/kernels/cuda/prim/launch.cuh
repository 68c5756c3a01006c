/* launch.cuh - elementwise launches: grids, and walks over operands of any strides with 64-bit offsets.
 *
 *   kr_cuda_each(a->exec, n, [=] __device__(int64_t i) { y[i] = 2 * x[i]; });
 *   kr_cuda_walk<2>(a->exec, a->walk, [=] __device__(const int64_t *at) { y[at[0]] = x[at[1]] / 2; });
 *
 * The result of an element depends on its index alone, never on the grid: the same bits on every device.
 */
#ifndef KR_KERNELS_CUDA_PRIM_LAUNCH_CUH
#define KR_KERNELS_CUDA_PRIM_LAUNCH_CUH

#include "kernels/cuda/cuda.h"

#include <cuda_runtime.h>
#include <stdint.h>

enum { KR_THREADS = 256 };

static inline cudaStream_t kr_cuda_stream(const kr_exec &exec)
{
    return (cudaStream_t)exec.stream;
}

/* CTAs of KR_THREADS for n elements, limited to a few waves of the device; threads loop over the rest with a grid stride. */
static inline unsigned kr_cuda_blocks(const kr_exec &exec, int64_t n)
{
    const int64_t most = (int64_t)((const kr_cuda *)exec.own)->multiprocessors * 16,
                  want = (n + KR_THREADS - 1) / KR_THREADS;
    return (unsigned)(want < most ? want : most);
}

static __device__ inline int64_t kr_thread(void)
{
    return (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
}

static __device__ inline int64_t kr_threads(void)
{
    return (int64_t)gridDim.x * blockDim.x;
}

template <typename F> __global__ void kr_cuda_each_kernel(int64_t n, F f)
{
    for (int64_t i = kr_thread(); i < n; i += kr_threads()) f(i);
}

/* f(i) for i = 0 .. n-1. */
template <typename F> void kr_cuda_each(const kr_exec &exec, int64_t n, F f)
{
    if (n > 0) kr_cuda_each_kernel<<<kr_cuda_blocks(exec, n), KR_THREADS, 0, kr_cuda_stream(exec)>>>(n, f);
}

/* ---- walks over strided operands ---- */

static inline int64_t kr_walk_elements(const kr_walk &walk)
{
    int64_t n = 1;
    for (int axis = 0; axis < walk.rank; axis++) n *= walk.dims[axis];
    return n;
}

/* Offsets of element i in the first N operands. `index`: the integer type of the decomposition of i; 32-bit divisions are
 * several times as fast as 64-bit ones. */
template <int N, typename index> static __device__ inline void kr_walk_decode(const kr_walk &walk, index i, int64_t *at)
{
#pragma unroll
    for (int o = 0; o < N; o++) at[o] = 0;
    for (int axis = walk.rank - 1; axis > 0; axis--) {
        const index dim = (index)walk.dims[axis], next = i / dim;
        const int64_t position = (int64_t)(i - next * dim);
#pragma unroll
        for (int o = 0; o < N; o++) at[o] += position * walk.strides[o][axis];
        i = next;
    }
    if (walk.rank == 0) return;
#pragma unroll
    for (int o = 0; o < N; o++) at[o] += (int64_t)i * walk.strides[o][0];
}

template <int N, typename index, typename F>
__global__ void kr_cuda_walk_kernel(const __grid_constant__ kr_walk walk, int64_t n, F f)
{
    for (int64_t i = kr_thread(); i < n; i += kr_threads()) {
        int64_t at[N];
        kr_walk_decode<N, index>(walk, (index)i, at);
        f(at);
    }
}

/* Changes the walk to vectors of P adjacent elements if all operands allow 16-byte accesses at these strides: f is then
 * called for the first element of each. False: they do not. */
template <int P> static inline bool kr_walk_in_vec16(kr_walk *walk, int operands, const void *const *data)
{
    const int last = walk->rank - 1;
    if (last < 0 || walk->dims[last] % P != 0) return false;
    for (int o = 0; o < operands; o++) {
        if (walk->strides[o][last] != 1 || ((uintptr_t)data[o] & 15) != 0) return false;
        for (int axis = 0; axis < last; axis++)
            if (walk->strides[o][axis] % P != 0) return false;
    }
    walk->dims[last] /= P;
    for (int o = 0; o < operands; o++) walk->strides[o][last] = P;
    return true;
}

/* f(at) for every element of the walk, at[o] being its offset in operand o, in elements. A walk of one axis, to which
 * contiguous operands are merged, needs no division. */
template <int N, typename F> void kr_cuda_walk(const kr_exec &exec, const kr_walk &walk, F f)
{
    const int64_t n = kr_walk_elements(walk);
    if (n <= 0) return;
    const unsigned blocks = kr_cuda_blocks(exec, n);
    if (n <= INT32_MAX) kr_cuda_walk_kernel<N, uint32_t><<<blocks, KR_THREADS, 0, kr_cuda_stream(exec)>>>(walk, n, f);
    else kr_cuda_walk_kernel<N, uint64_t><<<blocks, KR_THREADS, 0, kr_cuda_stream(exec)>>>(walk, n, f);
}

#endif
