/* squares_cuda.cu - the sum of squares, in double, in the order that kernels/args/optimizer_args.h prescribes: a warp is
 * the KR_SQUARES_LANES lanes of a block of KR_SQUARES_BLOCK elements. Several tensors take two launches. */
#include "base/half.h"
#include "kernels/cuda/prim/launch.cuh"

namespace
{

enum { WARPS = KR_THREADS / 32 };
static_assert(KR_SQUARES_LANES == 32, "a warp's lanes are the order's");

__device__ inline double element(kr_dtype dtype, const void *x, int64_t i)
{
    switch (dtype) {
    case KR_DTYPE_F32: return (double)((const float *)x)[i];
    case KR_DTYPE_F64: return ((const double *)x)[i];
    case KR_DTYPE_BF16: return (double)kr_float_from_bf16(((const uint16_t *)x)[i]);
    default: return (double)kr_float_from_f16(((const uint16_t *)x)[i]);
    }
}

/* The sum of block b of x, by a warp; in its lane 0. */
__device__ inline double block_sum(kr_dtype dtype, const void *x, int64_t n, int64_t b)
{
    const int lane = threadIdx.x % 32;
    const int64_t first = b * KR_SQUARES_BLOCK, end = first + KR_SQUARES_BLOCK < n ? first + KR_SQUARES_BLOCK : n;
    double sum = 0;
#pragma unroll 8
    for (int64_t i = first + lane; i < end; i += 32) {
        const double v = element(dtype, x, i);
        sum = __dadd_rn(sum, __dmul_rn(v, v));
    }
    for (int half = 16; half > 0; half /= 2) sum = __dadd_rn(sum, __shfl_down_sync(0xffffffffu, sum, half));
    return sum;
}

/* Several tensors, whose blocks are numbered consecutively: those of tensor i begin with number of[i].first. */
enum { MAX_TENSORS = 80 };
typedef struct squares_jobs {
    struct {
        const void *x;
        int64_t n, first;
        double *out;
        kr_dtype dtype;
    } of[MAX_TENSORS];
    int count;
    int64_t nblocks;
} squares_jobs;

__global__ void __launch_bounds__(KR_THREADS) block_sums(const __grid_constant__ squares_jobs k, double *sums)
{
    const int64_t b = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    if (b >= k.nblocks) return;
    int i = 0;
    for (int step = 64; step > 0; step /= 2)
        if (i + step < k.count && k.of[i + step].first <= b) i += step;
    const double sum = block_sum(k.of[i].dtype, k.of[i].x, k.of[i].n, b - k.of[i].first);
    if (threadIdx.x % 32 == 0) sums[b] = sum;
}

/* One CTA per tensor: all threads load, the first adds, in order. */
__global__ void __launch_bounds__(KR_THREADS) add_blocks(const __grid_constant__ squares_jobs k, const double *sums)
{
    __shared__ double part[KR_THREADS];
    const int64_t first = k.of[blockIdx.x].first;
    const int64_t end = (int)blockIdx.x + 1 < k.count ? k.of[blockIdx.x + 1].first : k.nblocks;
    double sum = 0;
    for (int64_t from = first; from < end; from += KR_THREADS) {
        if (from + threadIdx.x < end) part[threadIdx.x] = sums[from + threadIdx.x];
        __syncthreads();
        const int n = end - from < KR_THREADS ? (int)(end - from) : (int)KR_THREADS;
        for (int i = 0; threadIdx.x == 0 && i < n; i++) sum = __dadd_rn(sum, part[i]);
        __syncthreads();
    }
    if (threadIdx.x == 0) *k.of[blockIdx.x].out = sum;
}

int64_t blocks_of(const kr_squares_args *a)
{
    return (a->n + KR_SQUARES_BLOCK - 1) / KR_SQUARES_BLOCK;
}

void run_jobs(const kr_exec *exec, const squares_jobs *k, double *sums)
{
    const unsigned blocks = (unsigned)((k->nblocks + WARPS - 1) / WARPS);
    if (blocks > 0) block_sums<<<blocks, KR_THREADS, 0, kr_cuda_stream(*exec)>>>(*k, sums);
    if (k->count > 0) add_blocks<<<(unsigned)k->count, KR_THREADS, 0, kr_cuda_stream(*exec)>>>(*k, sums);
}

} // namespace

size_t kr_cuda_squares_scratch(const kr_squares_args *a)
{
    return (size_t)blocks_of(a) * sizeof(double);
}

void kr_cuda_squares_each(const kr_exec *exec, int64_t count, const kr_squares_args *each)
{
    double *sums = (double *)exec->scratch;
    for (int64_t from = 0; from < count; from += MAX_TENSORS) {
        squares_jobs k = {};
        for (int64_t i = from; i < count && k.count < MAX_TENSORS; i++, k.count++) {
            k.of[k.count] = { each[i].x, each[i].n, k.nblocks, each[i].sum, each[i].dtype };
            k.nblocks += blocks_of(&each[i]);
        }
        run_jobs(exec, &k, sums);
        sums += k.nblocks;
    }
}

void kr_cuda_squares(const kr_squares_args *a)
{
    kr_cuda_squares_each(&a->exec, 1, a);
}
