/* ssd_reduce.cuh - final reductions of the SSD gradients: over blocks of heads, slices of p, and chunks. */
#ifndef KR_KERNELS_CUDA_SSD_SSD_REDUCE_CUH
#define KR_KERNELS_CUDA_SSD_SSD_REDUCE_CUH

#include "kernels/cuda/ssd/ssd_plan.cuh"

#include <cuda_bf16.h>

enum { KR_SSD_SUM_THREADS = 256 };

static __device__ __forceinline__ void kr_store_sum(float *to, float x)
{
    *to = x;
}

static __device__ __forceinline__ void kr_store_sum(__nv_bfloat16 *to, float x)
{
    *to = __float2bfloat16_rn(x);
}

/* y = sum of `parts` rows of `count`, in order, for the tokens of sequences. */
template <typename T> struct kr_ssd_parts {
    const float *part; /* NULL: y is not wanted, or already complete */
    T *y;
};

/* One or two reductions: a CTA has some elements of a chunk, `token` per token. */
template <typename T>
static __global__ void kr_add_parts(const kr_ssd_map map, int64_t token, const kr_ssd_parts<T> first,
                                    const kr_ssd_parts<T> second, int64_t parts, int64_t count)
{
    const kr_ssd_parts<T> p = blockIdx.z == 0 ? first : second;
    kr_ssd_chunk c = kr_ssd_chunk_of(map, blockIdx.x);
    for (int64_t i = blockIdx.y * KR_SSD_SUM_THREADS + threadIdx.x; i < c.nt * token;
         i += gridDim.y * KR_SSD_SUM_THREADS) {
        float sum = p.part[c.at * token + i];
        for (int64_t k = 1; k < parts; k++) sum += p.part[k * count + c.at * token + i];
        kr_store_sum(p.y + c.at * token + i, sum);
    }
}

template <typename T>
static void kr_ssd_add_both(const kr_ssd_map *map, int64_t token, const kr_ssd_parts<T> first,
                            const kr_ssd_parts<T> second, int64_t parts, int64_t count, cudaStream_t stream)
{
    const int64_t rounds = (map->nt * token + KR_SSD_SUM_THREADS - 1) / KR_SSD_SUM_THREADS;
    const kr_ssd_parts<T> one = first.part ? first : second;
    const dim3 grid((unsigned)map->chunks, (unsigned)(rounds < 16 ? rounds : 16), first.part && second.part ? 2 : 1);
    if (one.part && map->chunks && rounds)
        kr_add_parts<T><<<grid, KR_SSD_SUM_THREADS, 0, stream>>>(*map, token, one, second, parts, count);
}

template <typename T>
static void kr_ssd_add_parts(const kr_ssd_map *map, int64_t token, const float *part, int64_t parts, int64_t count,
                             T *y, cudaStream_t stream)
{
    kr_ssd_add_both<T>(map, token, { part, y }, { NULL, NULL }, parts, count, stream);
}

/* One CTA per head. */
static __global__ void kr_add_d(const float *part, int64_t chunks, int64_t nh, int64_t slices, float *g_d)
{
    __shared__ double sums[KR_SSD_SUM_THREADS];
    const int64_t h = blockIdx.x;
    double sum = 0;
    for (int64_t i = threadIdx.x; i < chunks * slices; i += KR_SSD_SUM_THREADS)
        sum += (double)part[(i / slices * nh + h) * slices + i % slices];
    sums[threadIdx.x] = sum;
    for (int step = KR_SSD_SUM_THREADS / 2; step; step /= 2) {
        __syncthreads();
        if ((int)threadIdx.x < step) sums[threadIdx.x] += sums[threadIdx.x + step];
    }
    if (threadIdx.x == 0) g_d[h] = (float)sums[0];
}

/* g_d from part_d [chunks][nh slices]. */
static inline void kr_ssd_add_d(const float *part, int64_t chunks, int64_t nh, int64_t slices, float *g_d,
                                cudaStream_t stream)
{
    if (g_d && nh) kr_add_d<<<(unsigned)nh, KR_SSD_SUM_THREADS, 0, stream>>>(part, chunks, nh, slices, g_d);
}

#endif
