/* vec16.cuh - 16-byte vectors of adjacent elements (kr_vec16), loaded from and stored to operands of T, bf16 or f16.
 *
 * A thread's part of a row is the same vectors whatever the row's alignment: where 16-byte accesses are not allowed, a
 * vector is moved element by element, so that sums keep their order and results their bits.
 */
#ifndef KR_KERNELS_CUDA_PRIM_VEC16_CUH
#define KR_KERNELS_CUDA_PRIM_VEC16_CUH

#include "kernels/cuda/prim/cp_async.cuh"
#include "kernels/cuda/prim/dtype16.cuh"

#include <cuda_runtime.h>

template <typename T> struct kr_vec16 {
    enum { N = (int)(16 / sizeof(T)) };
    T v[N];
};

/* Elements x[0 .. left-1] of a vector, and zeros; aligned: x allows a 16-byte load. */
template <typename T>
static __device__ __forceinline__ kr_vec16<T> kr_load_vec16(const T *x, int64_t left, bool aligned)
{
    kr_vec16<T> p;
    if (aligned && left >= kr_vec16<T>::N) {
        const uint4 bits = *(const uint4 *)(const void *)x;
        memcpy(&p, &bits, sizeof p);
    } else {
#pragma unroll
        for (int i = 0; i < kr_vec16<T>::N; i++) p.v[i] = i < left ? x[i] : (T)0;
    }
    return p;
}

template <typename T>
static __device__ __forceinline__ void kr_store_vec16(T *y, const kr_vec16<T> &p, int64_t left, bool aligned)
{
    if (aligned && left >= kr_vec16<T>::N) {
        uint4 bits;
        memcpy(&bits, &p, sizeof p);
        *(uint4 *)(void *)y = bits;
    } else {
#pragma unroll
        for (int i = 0; i < kr_vec16<T>::N; i++)
            if (i < left) y[i] = p.v[i];
    }
}

/* ---- 16-bit storage ---- */

/* Bytes of an element of T, or of a 16-bit one. */
template <typename T> static __host__ __device__ __forceinline__ int64_t kr_element_bytes(kr_dtype dtype)
{
    return kr_is_16bit(dtype) ? 2 : (int64_t)sizeof(T);
}

/* Stores a vector of T as 16-bit elements; aligned: 16-byte accesses of T and 8-byte ones of y are allowed. */
template <typename T>
static __device__ __forceinline__ void kr_store_16bit(uint16_t *y, const kr_vec16<T> &p, kr_dtype dtype, int64_t left,
                                                      bool aligned)
{
    enum { N = kr_vec16<T>::N };
    uint16_t h[N];
#pragma unroll
    for (int i = 0; i < N; i++) h[i] = kr_to_16bit((float)p.v[i], dtype);
    if (aligned && left >= N && N == 4) {
        const uint32_t low = (uint32_t)h[0] | (uint32_t)h[1] << 16,
                       high = (uint32_t)h[N - 2] | (uint32_t)h[N - 1] << 16;
        asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(y), "r"(low), "r"(high) : "memory");
    } else {
#pragma unroll
        for (int i = 0; i < N; i++)
            if (i < left) y[i] = h[i];
    }
}

/* The vector at element `at` of x, of T or 16-bit. */
template <typename T>
static __device__ __forceinline__ kr_vec16<T> kr_load_vec16_as(const void *x, int64_t at, kr_dtype dtype, int64_t left,
                                                               bool aligned)
{
    enum { N = kr_vec16<T>::N };
    if (!kr_is_16bit(dtype)) return kr_load_vec16((const T *)x + at, left, aligned);
    const uint16_t *from = (const uint16_t *)x + at;
    kr_vec16<T> p;
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
    for (int i = 0; i < N; i++) p.v[i] = (T)kr_from_16bit(h[i], dtype);
    return p;
}

/* The vector at element `at` of y, of T or 16-bit. */
template <typename T>
static __device__ __forceinline__ void kr_store_vec16_as(void *y, int64_t at, const kr_vec16<T> &p, kr_dtype dtype,
                                                         int64_t left, bool aligned)
{
    if (kr_is_16bit(dtype)) kr_store_16bit((uint16_t *)y + at, p, dtype, left, aligned);
    else kr_store_vec16((T *)y + at, p, left, aligned);
}

/* A vector as loaded, not yet converted, so that it can be loaded long before it is used. WHOLE: 16-byte accesses are
 * allowed and a vector that begins within a row ends within it; left <= 0: zeros. */
typedef struct kr_raw16 {
    uint4 bits;
} kr_raw16;

template <typename T, bool WHOLE>
static __device__ __forceinline__ kr_raw16 kr_load_raw16(const void *x, kr_dtype dtype, int64_t left)
{
    kr_raw16 raw = { make_uint4(0, 0, 0, 0) };
    if (!WHOLE) {
        const kr_vec16<T> p = kr_load_vec16_as<T>(x, 0, dtype, left, false);
        memcpy(&raw.bits, &p, sizeof p);
    } else if (left > 0) {
        if (sizeof(T) == 4 && kr_is_16bit(dtype)) {
            const uint2 bits = *(const uint2 *)x;
            raw.bits.x = bits.x, raw.bits.y = bits.y;
        } else {
            raw.bits = *(const uint4 *)x;
        }
    }
    return raw;
}

template <typename T, bool WHOLE>
static __device__ __forceinline__ kr_vec16<T> kr_unpack_raw16(const kr_raw16 &raw, kr_dtype dtype)
{
    kr_vec16<T> p;
    memcpy(&p, &raw.bits, sizeof p);
    if (WHOLE && sizeof(T) == 4 && kr_is_16bit(dtype)) {
        const uint32_t words[2] = { raw.bits.x, raw.bits.y };
#pragma unroll
        for (int i = 0; i < kr_vec16<T>::N; i++)
            p.v[i] = (T)kr_from_16bit((uint16_t)(words[i / 2 % 2] >> 16 * (i % 2)), dtype);
    }
    return p;
}

/* The same by cp.async through shared memory: WHOLE vectors only. */
template <typename T>
static __device__ __forceinline__ void kr_copy_raw16(kr_raw16 *to, const void *from, kr_dtype dtype)
{
    if (sizeof(T) == 4 && kr_is_16bit(dtype)) kr_copy<8>(kr_shared_address(to), from);
    else kr_copy<16>(kr_shared_address(to), from);
}

/* Stores to global memory; in assembly, since the compiler may split a 16-byte store. */
template <typename T, bool WHOLE>
static __device__ __forceinline__ void kr_store_raw16(void *y, const kr_vec16<T> &p, kr_dtype dtype, int64_t left)
{
    if (!WHOLE) {
        kr_store_vec16_as(y, 0, p, dtype, left, false);
    } else if (left > 0 && sizeof(T) == 4 && kr_is_16bit(dtype)) {
        kr_store_16bit((uint16_t *)y, p, dtype, kr_vec16<T>::N, true);
    } else if (left > 0) {
        uint4 bits;
        memcpy(&bits, &p, sizeof p);
        asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(y), "r"(bits.x), "r"(bits.y), "r"(bits.z),
                     "r"(bits.w)
                     : "memory");
    }
}

#endif
