/* few.cuh - what products of few rows share: weights that are read once, in chunks, and sums over lanes. */
#ifndef KR_KERNELS_CUDA_FEW_CUH
#define KR_KERNELS_CUDA_FEW_CUH

#include "kernels/cuda/parts.cuh"

enum { KR_CHUNK = 8 }; /* elements of k that a lane reads at a time */

/* ---- reading ---- */

/* 16 bytes that are read once: they leave the cache to A. */
static __device__ __forceinline__ uint4 kr_read_once(const void *p)
{
    uint4 x;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "l"(p));
    return x;
}

/* A chunk of B as it lies in memory, so that several can be on their way. KIND: a kr_half. */
template <typename T, int KIND> struct kr_raw_chunk {
    enum { UNITS = KIND ? 1 : (int)(KR_CHUNK * sizeof(T) / 16) };
    uint4 bits[UNITS];
};

/* What its elements are. */
template <typename T, int KIND> struct kr_raw_element {
    typedef uint16_t type;
};
template <typename T> struct kr_raw_element<T, KR_NO_HALF> {
    typedef T type;
};

template <typename T, int KIND>
static __device__ __forceinline__ kr_raw_chunk<T, KIND> kr_read_chunk(const void *b, int64_t at, bool is_there)
{
    kr_raw_chunk<T, KIND> raw;
    const char *from = (const char *)b + at * (int64_t)(KIND ? 2 : sizeof(T));
#pragma unroll
    for (int i = 0; i < raw.UNITS; i++) raw.bits[i] = is_there ? kr_read_once(from + 16 * i) : make_uint4(0, 0, 0, 0);
    return raw;
}

template <typename T, int KIND>
static __device__ __forceinline__ void kr_widen(const kr_raw_chunk<T, KIND> &raw, T x[KR_CHUNK])
{
    if (KIND == KR_NO_HALF) {
        memcpy(x, raw.bits, KR_CHUNK * sizeof(T));
        return;
    }
    const uint32_t words[4] = { raw.bits[0].x, raw.bits[0].y, raw.bits[0].z, raw.bits[0].w };
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if (KIND == KR_HALF_BF16) {
            x[2 * i] = (T)__uint_as_float(words[i] << 16);
            x[2 * i + 1] = (T)__uint_as_float(words[i] & 0xffff0000u);
        } else {
            x[2 * i] = (T)__half2float(__ushort_as_half((uint16_t)words[i]));
            x[2 * i + 1] = (T)__half2float(__ushort_as_half((uint16_t)(words[i] >> 16)));
        }
    }
}

template <typename T> static __device__ __forceinline__ void kr_read_a(const T *a, T x[KR_CHUNK])
{
#pragma unroll
    for (int i = 0; i < KR_CHUNK; i += kr_pack<T>::N) {
        const kr_pack<T> p = kr_load_pack(a + i, KR_CHUNK, true);
#pragma unroll
        for (int e = 0; e < kr_pack<T>::N; e++) x[i + e] = p.v[e];
    }
}

/* ---- adding ---- */

/* The sums over lanes of N values (a power of two, at most 32), each of which ends in 32 / N lanes: lane l has the one
 * of number l / (32 / N). The additions are those of kr_warp_sum. */
template <int N, int AWAY, typename T> static __device__ __forceinline__ T kr_sum_lanes(T value[N], int lane)
{
    if constexpr (AWAY == 0) {
        return value[0];
    } else if constexpr (N == 1) {
        value[0] += __shfl_xor_sync(0xffffffffu, value[0], AWAY);
        return kr_sum_lanes<1, AWAY / 2>(value, lane);
    } else {
        const bool upper = lane & AWAY;
        T left[N / 2];
#pragma unroll
        for (int i = 0; i < N / 2; i++) {
            const T mine = upper ? value[i + N / 2] : value[i], other = upper ? value[i] : value[i + N / 2];
            left[i] = mine + __shfl_xor_sync(0xffffffffu, other, AWAY);
        }
        return kr_sum_lanes<N / 2, AWAY / 2>(left, lane);
    }
}

#endif
