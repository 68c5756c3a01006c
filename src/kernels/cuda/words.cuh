/* words.cuh - words that blocks of one launch hand one another without a fence: a word that is not there yet has all bits set.
 *
 *   kr_put_word(&to[i], kr_word_of(v));   ..   do w = kr_read_word(&from[i]); while (w == KR_ABSENT);
 *
 * A fence waits for all that a multiprocessor has on its way, which is microseconds where much is. Words come one by one, in
 * any order, so who reads looks at each; who writes takes back (kr_take_back) what the place will have to hold next time, when
 * all have read it.
 */
#ifndef KR_KERNELS_CUDA_WORDS_CUH
#define KR_KERNELS_CUDA_WORDS_CUH

#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <stdint.h>

static const uint32_t KR_ABSENT = 0xffffffffu;

/* A float, or two bf16, as a word that is there: of those with all bits set, which are no numbers, another. */
static __device__ __forceinline__ uint32_t kr_present(uint32_t bits)
{
    return bits == KR_ABSENT ? 0x7fff7fffu : bits;
}
static __device__ __forceinline__ uint32_t kr_word_of(float v)
{
    return kr_present(__float_as_uint(v));
}
static __device__ __forceinline__ uint32_t kr_word_of_two(float low, float high)
{
    const uint32_t first = __bfloat16_as_ushort(__float2bfloat16_rn(low));
    return kr_present(first | (uint32_t)__bfloat16_as_ushort(__float2bfloat16_rn(high)) << 16);
}

static __device__ __forceinline__ void kr_put_word(void *to, uint32_t word)
{
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(to), "r"(word) : "memory");
}
static __device__ __forceinline__ void kr_take_back(void *to)
{
    kr_put_word(to, KR_ABSENT);
}

static __device__ __forceinline__ uint32_t kr_read_word(const void *from)
{
    uint32_t word;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(word) : "l"(from) : "memory");
    return word;
}
static __device__ __forceinline__ uint2 kr_read_two_words(const void *from)
{
    uint2 x;
    asm volatile("ld.relaxed.gpu.global.v2.u32 {%0,%1}, [%2];" : "=r"(x.x), "=r"(x.y) : "l"(from) : "memory");
    return x;
}
static __device__ __forceinline__ uint4 kr_read_four_words(const void *from)
{
    uint4 x;
    asm volatile("ld.relaxed.gpu.global.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "l"(from)
                 : "memory");
    return x;
}

/* KR_ABSENT if one of them is, or `other` is. */
static __device__ __forceinline__ uint32_t kr_absent_of(const uint4 &x, uint32_t other)
{
    return max(max(max(x.x, x.y), max(x.z, x.w)), other);
}

#endif
