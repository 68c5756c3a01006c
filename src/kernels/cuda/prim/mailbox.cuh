/* mailbox.cuh - words that CTAs of one launch exchange without a fence: a word that has not arrived is the sentinel, all
 * bits set.
 *
 *   kr_mailbox_put(&to[i], kr_mailbox_word(v));   ..   do w = kr_mailbox_read(&from[i]); while (w == KR_SENTINEL);
 *
 * A fence waits for all outstanding accesses of a multiprocessor, microseconds under load. Words arrive individually and in
 * any order, so the reader checks each one. The writer clears a word (kr_mailbox_clear) for its next use, once all have
 * read it.
 */
#ifndef KR_KERNELS_CUDA_PRIM_MAILBOX_CUH
#define KR_KERNELS_CUDA_PRIM_MAILBOX_CUH

#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <stdint.h>

static const uint32_t KR_SENTINEL = 0xffffffffu;

/* A float, or two bf16, as a mailbox word: bits equal to the sentinel, a NaN, are replaced by another NaN. */
static __device__ __forceinline__ uint32_t kr_mailbox_escape(uint32_t bits)
{
    return bits == KR_SENTINEL ? 0x7fff7fffu : bits;
}
static __device__ __forceinline__ uint32_t kr_mailbox_word(float v)
{
    return kr_mailbox_escape(__float_as_uint(v));
}
static __device__ __forceinline__ uint32_t kr_mailbox_word_bf16x2(float low, float high)
{
    const uint32_t low_bits = __bfloat16_as_ushort(__float2bfloat16_rn(low));
    return kr_mailbox_escape(low_bits | (uint32_t)__bfloat16_as_ushort(__float2bfloat16_rn(high)) << 16);
}

static __device__ __forceinline__ void kr_mailbox_put(void *to, uint32_t word)
{
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(to), "r"(word) : "memory");
}
static __device__ __forceinline__ void kr_mailbox_clear(void *to)
{
    kr_mailbox_put(to, KR_SENTINEL);
}

static __device__ __forceinline__ uint32_t kr_mailbox_read(const void *from)
{
    uint32_t word;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(word) : "l"(from) : "memory");
    return word;
}
static __device__ __forceinline__ uint2 kr_mailbox_read2(const void *from)
{
    uint2 x;
    asm volatile("ld.relaxed.gpu.global.v2.u32 {%0,%1}, [%2];" : "=r"(x.x), "=r"(x.y) : "l"(from) : "memory");
    return x;
}
static __device__ __forceinline__ uint4 kr_mailbox_read4(const void *from)
{
    uint4 x;
    asm volatile("ld.relaxed.gpu.global.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "l"(from)
                 : "memory");
    return x;
}

/* KR_SENTINEL if one of x, or `other`, is. */
static __device__ __forceinline__ uint32_t kr_sentinel_max(const uint4 &x, uint32_t other)
{
    return max(max(max(x.x, x.y), max(x.z, x.w)), other);
}

#endif
