/* gemv_parts.cuh - shared by gemv-like kernels: weights read once, in chunks, and sums over lanes. */
#ifndef KR_KERNELS_CUDA_PRIM_GEMV_PARTS_CUH
#define KR_KERNELS_CUDA_PRIM_GEMV_PARTS_CUH

#include "kernels/cuda/prim/block_reduce.cuh"

enum { KR_CHUNK = 8 }; /* elements of k that a lane reads at a time */

/* ---- loads ---- */

/* 16 bytes that are read once: not allocated in L1, which is left to A. */
static __device__ __forceinline__ uint4 kr_load_no_allocate(const void *p)
{
    uint4 x;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "l"(p));
    return x;
}

/* A chunk of B, not yet converted, so that several can be in flight. KIND: KR_DTYPE_BF16, KR_DTYPE_F16 or KR_KIND_OWN. */
template <typename T, int KIND> struct kr_raw_chunk {
    enum { UNITS = KIND ? 1 : (int)(KR_CHUNK * sizeof(T) / 16) };
    uint4 bits[UNITS];
};

/* Type of its elements. */
template <typename T, int KIND> struct kr_raw_element {
    typedef uint16_t type;
};
template <typename T> struct kr_raw_element<T, KR_KIND_OWN> {
    typedef T type;
};

template <typename T, int KIND>
static __device__ __forceinline__ kr_raw_chunk<T, KIND> kr_read_chunk(const void *b, int64_t at, bool in_range)
{
    kr_raw_chunk<T, KIND> raw;
    const char *from = (const char *)b + at * (int64_t)(KIND ? 2 : sizeof(T));
#pragma unroll
    for (int i = 0; i < raw.UNITS; i++)
        raw.bits[i] = in_range ? kr_load_no_allocate(from + 16 * i) : make_uint4(0, 0, 0, 0);
    return raw;
}

template <typename T, int KIND>
static __device__ __forceinline__ void kr_widen(const kr_raw_chunk<T, KIND> &raw, T x[KR_CHUNK])
{
    if (KIND == KR_KIND_OWN) {
        memcpy(x, raw.bits, KR_CHUNK * sizeof(T));
        return;
    }
    const uint32_t words[4] = { raw.bits[0].x, raw.bits[0].y, raw.bits[0].z, raw.bits[0].w };
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if (KIND == KR_DTYPE_BF16) {
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
    for (int i = 0; i < KR_CHUNK; i += kr_vec16<T>::N) {
        const kr_vec16<T> p = kr_load_vec16(a + i, KR_CHUNK, true);
#pragma unroll
        for (int e = 0; e < kr_vec16<T>::N; e++) x[i + e] = p.v[e];
    }
}

/* ---- sums ---- */

/* Sums over the lanes of N values (a power of two, at most 32): lane l gets the sum of value l / (32 / N). The order of
 * additions is that of kr_warp_sum. */
template <int N, int OFFSET, typename T> static __device__ __forceinline__ T kr_lanes_sum(T value[N], int lane)
{
    if constexpr (OFFSET == 0) {
        return value[0];
    } else if constexpr (N == 1) {
        value[0] += __shfl_xor_sync(0xffffffffu, value[0], OFFSET);
        return kr_lanes_sum<1, OFFSET / 2>(value, lane);
    } else {
        const bool upper = lane & OFFSET;
        T left[N / 2];
#pragma unroll
        for (int i = 0; i < N / 2; i++) {
            const T mine = upper ? value[i + N / 2] : value[i], other = upper ? value[i] : value[i + N / 2];
            left[i] = mine + __shfl_xor_sync(0xffffffffu, other, OFFSET);
        }
        return kr_lanes_sum<N / 2, OFFSET / 2>(left, lane);
    }
}

#endif
