/* quad.cuh - four neighbouring elements of a row, as the kernels of one token move their states. */
#ifndef KR_KERNELS_CUDA_QUAD_CUH
#define KR_KERNELS_CUDA_QUAD_CUH

#include <cuda_runtime.h>
#include <stdint.h>

enum { KR_QUAD = 4 };

template <typename T> struct kr_quad {
    T v[KR_QUAD];
};

/* Four that are there, on 16 bytes. */
static __device__ __forceinline__ kr_quad<float> kr_quad_at(const float *from)
{
    kr_quad<float> q;
    *(float4 *)q.v = *(const float4 *)(const void *)from;
    return q;
}

/* Elements r .. r + 3 of a row of nr; beyond its end 0. */
template <typename T>
static __device__ __forceinline__ kr_quad<T> kr_load_quad(const T *row, int64_t r, int64_t nr, bool aligned)
{
    kr_quad<T> q;
    if (aligned && sizeof(T) == 4) {
        const float4 bits = r < nr ? *(const float4 *)(const void *)(row + r) : make_float4(0, 0, 0, 0);
        memcpy(&q, &bits, sizeof bits);
    } else {
#pragma unroll
        for (int i = 0; i < KR_QUAD; i++) q.v[i] = r + i < nr ? row[r + i] : (T)0;
    }
    return q;
}

template <typename T>
static __device__ __forceinline__ void kr_store_quad(T *row, int64_t r, int64_t nr, const kr_quad<T> &q, bool aligned)
{
    if (aligned && sizeof(T) == 4) {
        float4 bits;
        memcpy(&bits, &q, sizeof bits);
        if (r < nr) *(float4 *)(void *)(row + r) = bits;
    } else {
#pragma unroll
        for (int i = 0; i < KR_QUAD; i++)
            if (r + i < nr) row[r + i] = q.v[i];
    }
}

#endif
