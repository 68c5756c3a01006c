/* packs.cuh - packs of 16 bytes, moved to and from memory as numbers or as halves.
 *
 * A pack is 16 bytes of adjacent elements. A thread's part of a row is the same packs however the row lies in memory:
 * where 16-byte steps are not possible a pack is moved element by element, so that sums keep their order and results
 * their bits.
 */
#ifndef KR_KERNELS_CUDA_PACKS_CUH
#define KR_KERNELS_CUDA_PACKS_CUH

#include "kernels/cuda/copies.cuh"
#include "kernels/cuda/halves.cuh"

#include <cuda_runtime.h>

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

/* Bytes of an element of T, or of halves. */
template <typename T> static __host__ __device__ __forceinline__ int64_t kr_bytes_of(kr_half kind)
{
    return kind ? 2 : (int64_t)sizeof(T);
}

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
        const uint32_t low = (uint32_t)h[0] | (uint32_t)h[1] << 16,
                       high = (uint32_t)h[N - 2] | (uint32_t)h[N - 1] << 16;
        asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(y), "r"(low), "r"(high) : "memory");
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

/* A pack on its way, as it lies in memory: it is asked for long before it is used. WHOLE: 16-byte steps are allowed and
 * a pack that begins within a row lies within it; left <= 0: zeros. */
typedef struct kr_raw {
    uint4 bits;
} kr_raw;

template <typename T, bool WHOLE>
static __device__ __forceinline__ kr_raw kr_ask(const void *x, kr_half kind, int64_t left)
{
    kr_raw raw = { make_uint4(0, 0, 0, 0) };
    if (!WHOLE) {
        const kr_pack<T> p = kr_load_pack_as<T>(x, 0, kind, left, false);
        memcpy(&raw.bits, &p, sizeof p);
    } else if (left > 0) {
        if (sizeof(T) == 4 && kind) {
            const uint2 bits = *(const uint2 *)x;
            raw.bits.x = bits.x, raw.bits.y = bits.y;
        } else {
            raw.bits = *(const uint4 *)x;
        }
    }
    return raw;
}

template <typename T, bool WHOLE> static __device__ __forceinline__ kr_pack<T> kr_asked(const kr_raw &raw, kr_half kind)
{
    kr_pack<T> p;
    memcpy(&p, &raw.bits, sizeof p);
    if (WHOLE && sizeof(T) == 4 && kind) {
        const uint32_t words[2] = { raw.bits.x, raw.bits.y };
#pragma unroll
        for (int i = 0; i < kr_pack<T>::N; i++)
            p.v[i] = (T)kr_widened((uint16_t)(words[i / 2 % 2] >> 16 * (i % 2)), kind);
    }
    return p;
}

/* The same through shared memory: WHOLE packs alone. */
template <typename T> static __device__ __forceinline__ void kr_copy_pack(kr_raw *to, const void *from, kr_half kind)
{
    if (sizeof(T) == 4 && kind) kr_copy<8>(kr_shared_address(to), from);
    else kr_copy<16>(kr_shared_address(to), from);
}

/* To global memory; written out, since the compiler may take a 16-byte store apart. */
template <typename T, bool WHOLE>
static __device__ __forceinline__ void kr_give(void *y, const kr_pack<T> &p, kr_half kind, int64_t left)
{
    if (!WHOLE) {
        kr_store_pack_as(y, 0, p, kind, left, false);
    } else if (left > 0 && sizeof(T) == 4 && kind) {
        kr_store_halves((uint16_t *)y, p, kind, kr_pack<T>::N, true);
    } else if (left > 0) {
        uint4 bits;
        memcpy(&bits, &p, sizeof p);
        asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(y), "r"(bits.x), "r"(bits.y), "r"(bits.z),
                     "r"(bits.w)
                     : "memory");
    }
}

#endif
