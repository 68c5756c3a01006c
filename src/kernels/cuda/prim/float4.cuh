/* float4.cuh - four adjacent elements of a row (kr_vec4), the unit in which decode kernels move states; float4 where
 * aligned. */
#ifndef KR_KERNELS_CUDA_PRIM_FLOAT4_CUH
#define KR_KERNELS_CUDA_PRIM_FLOAT4_CUH

#include <cuda_runtime.h>
#include <stdint.h>

enum { KR_VEC4 = 4 };

template <typename T> struct kr_vec4 {
    T v[KR_VEC4];
};

/* 16-byte aligned. */
static __device__ __forceinline__ kr_vec4<float> kr_load_float4(const float *from)
{
    kr_vec4<float> q;
    *(float4 *)q.v = *(const float4 *)(const void *)from;
    return q;
}

/* Elements r .. r + 3 of a row of nr; 0 past its end. */
template <typename T>
static __device__ __forceinline__ kr_vec4<T> kr_load_vec4(const T *row, int64_t r, int64_t nr, bool aligned)
{
    kr_vec4<T> q;
    if (aligned && sizeof(T) == 4) {
        const float4 bits = r < nr ? *(const float4 *)(const void *)(row + r) : make_float4(0, 0, 0, 0);
        memcpy(&q, &bits, sizeof bits);
    } else {
#pragma unroll
        for (int i = 0; i < KR_VEC4; i++) q.v[i] = r + i < nr ? row[r + i] : (T)0;
    }
    return q;
}

template <typename T>
static __device__ __forceinline__ void kr_store_vec4(T *row, int64_t r, int64_t nr, const kr_vec4<T> &q, bool aligned)
{
    if (aligned && sizeof(T) == 4) {
        float4 bits;
        memcpy(&bits, &q, sizeof bits);
        if (r < nr) *(float4 *)(void *)(row + r) = bits;
    } else {
#pragma unroll
        for (int i = 0; i < KR_VEC4; i++)
            if (r + i < nr) row[r + i] = q.v[i];
    }
}

#endif
