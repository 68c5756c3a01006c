/* parts.cuh - what the kernels of rows share: 16-byte packs, sums and scans of a warp and of a block.
 *
 * A pack is 16 bytes of adjacent elements. A thread's part of a row is the same packs however the row lies in memory:
 * where 16-byte steps are not possible a pack is moved element by element, so that sums keep their order and results
 * their bits. Sums of a block: each warp by halves, then the warps in order.
 */
#ifndef KR_KERNELS_CUDA_PARTS_CUH
#define KR_KERNELS_CUDA_PARTS_CUH

#include "kernels/cuda/halves.cuh"
#include "kernels/kernels.h"

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

static __host__ __device__ inline int64_t kr_ceil_div(int64_t n, int64_t by)
{
    return (n + by - 1) / by;
}

static __host__ __device__ inline int64_t kr_least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline size_t kr_padded_bytes(int64_t bytes) /* parts of scratch begin at multiples of 256 */
{
    return (size_t)kr_ceil_div(bytes, 256) * 256;
}

static inline bool kr_allows16(const void *p)
{
    return ((uintptr_t)p & 15) == 0;
}

/* ---- packs ---- */

template <typename T> struct kr_pack {
    enum { N = (int)(16 / sizeof(T)) };
    T v[N];
};

/* The elements x[0 .. left-1] of a pack, and zeros; aligned: x allows a 16-byte step. */
template <typename T> static __device__ __forceinline__ kr_pack<T> kr_load_pack(const T *x, int64_t left, bool aligned)
{
    kr_pack<T> p;
    if (aligned && left >= kr_pack<T>::N) {
        const uint4 bits = *(const uint4 *)(const void *)x;
        memcpy(&p, &bits, sizeof p);
    } else {
#pragma unroll
        for (int i = 0; i < kr_pack<T>::N; i++) p.v[i] = i < left ? x[i] : (T)0;
    }
    return p;
}

template <typename T>
static __device__ __forceinline__ void kr_store_pack(T *y, const kr_pack<T> &p, int64_t left, bool aligned)
{
    if (aligned && left >= kr_pack<T>::N) {
        uint4 bits;
        memcpy(&bits, &p, sizeof p);
        *(uint4 *)(void *)y = bits;
    } else {
#pragma unroll
        for (int i = 0; i < kr_pack<T>::N; i++)
            if (i < left) y[i] = p.v[i];
    }
}

/* ---- halves ---- */

/* A pack of T as halves; aligned: 16-byte steps of T are allowed, and steps of as many halves. */
template <typename T>
static __device__ __forceinline__ void kr_store_halves(uint16_t *y, const kr_pack<T> &p, kr_half kind, int64_t left,
                                                       bool aligned)
{
    enum { N = kr_pack<T>::N };
    uint16_t h[N];
#pragma unroll
    for (int i = 0; i < N; i++) h[i] = kr_narrowed((float)p.v[i], kind);
    if (aligned && left >= N && N == 4) {
        uint2 bits;
        bits.x = (uint32_t)h[0] | (uint32_t)h[1] << 16;
        bits.y = (uint32_t)h[N - 2] | (uint32_t)h[N - 1] << 16;
        *(uint2 *)(void *)y = bits;
    } else {
#pragma unroll
        for (int i = 0; i < N; i++)
            if (i < left) y[i] = h[i];
    }
}

/* A pack that begins at element `at` of x, of T or of halves. */
template <typename T>
static __device__ __forceinline__ kr_pack<T> kr_load_pack_as(const void *x, int64_t at, kr_half kind, int64_t left,
                                                             bool aligned)
{
    enum { N = kr_pack<T>::N };
    if (!kind) return kr_load_pack((const T *)x + at, left, aligned);
    const uint16_t *from = (const uint16_t *)x + at;
    kr_pack<T> p;
    uint16_t h[N];
    if (aligned && left >= N && N == 4) {
        const uint2 bits = *(const uint2 *)(const void *)from;
        h[0] = (uint16_t)bits.x, h[1] = (uint16_t)(bits.x >> 16);
        h[N - 2] = (uint16_t)bits.y, h[N - 1] = (uint16_t)(bits.y >> 16);
    } else {
#pragma unroll
        for (int i = 0; i < N; i++) h[i] = i < left ? from[i] : (uint16_t)0;
    }
#pragma unroll
    for (int i = 0; i < N; i++) p.v[i] = (T)kr_widened(h[i], kind);
    return p;
}

/* A pack that begins at element `at` of y, of T or of halves. */
template <typename T>
static __device__ __forceinline__ void kr_store_pack_as(void *y, int64_t at, const kr_pack<T> &p, kr_half kind,
                                                        int64_t left, bool aligned)
{
    if (kind) kr_store_halves((uint16_t *)y + at, p, kind, left, aligned);
    else kr_store_pack((T *)y + at, p, left, aligned);
}

/* ---- functions ---- */

static __device__ __forceinline__ float kr_exp(float x)
{
    return expf(x);
}
static __device__ __forceinline__ double kr_exp(double x)
{
    return exp(x);
}
static __device__ __forceinline__ float kr_log(float x)
{
    return logf(x);
}
static __device__ __forceinline__ double kr_log(double x)
{
    return log(x);
}
static __device__ __forceinline__ float kr_root(float x)
{
    return sqrtf(x);
}
static __device__ __forceinline__ double kr_root(double x)
{
    return sqrt(x);
}

/* ---- sums ---- */

template <typename T> static __device__ __forceinline__ T kr_warp_sum(T x)
{
#pragma unroll
    for (int away = 16; away > 0; away /= 2) x += __shfl_xor_sync(0xffffffffu, x, away);
    return x;
}

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

/* Where sums of columns go: column (j, v) of [nk + 1, nv] is y[v, j], for j = nk last[v]. y, last may be NULL. */
template <typename T> struct kr_fold_to {
    T *y, *last;
    int64_t nv, nk;
};

/* Sums of the columns of parts [n columns]. A block has 32 columns and 32 lanes of rows; lane l adds rows l, l + 32, .. in
 * order, then the lanes are added in order. */
enum { KR_FOLD = 32 };
template <typename T>
static __global__ void __launch_bounds__(KR_FOLD *KR_FOLD)
    kr_fold(const T *parts, int64_t n, int64_t columns, kr_fold_to<T> to)
{
    __shared__ T room[KR_FOLD][KR_FOLD + 1];
    const int64_t c = (int64_t)blockIdx.x * KR_FOLD + threadIdx.x, j = c / to.nv, v = c % to.nv;
    T sum = 0;
    if (c < columns)
        for (int64_t row = threadIdx.y; row < n; row += KR_FOLD) sum += parts[row * columns + c];
    room[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y > 0 || c >= columns) return;
    for (int lane = 1; lane < KR_FOLD; lane++) sum += room[lane][threadIdx.x];
    if (j < to.nk && to.y) to.y[v * to.nk + j] = sum;
    if (j == to.nk && to.last) to.last[v] = sum;
}

template <typename T>
static inline void kr_fold_run(cudaStream_t stream, const T *parts, int64_t n, int64_t columns, kr_fold_to<T> to)
{
    if (columns > 0)
        kr_fold<T>
            <<<(unsigned)kr_ceil_div(columns, KR_FOLD), dim3(KR_FOLD, KR_FOLD), 0, stream>>>(parts, n, columns, to);
}

#endif
