/* wgmma.cuh - warpgroup products (wgmma: 4 warps, 64 rows) with operands in shared memory. sm_90a only.
 *
 * Tiles are panels [64 rows][64 columns] of bf16, 1024-byte aligned, with units stored as in mma.cuh: the 128-byte swizzle
 * of the descriptors. A panel serves as [m or n][k] ("k last") and as [k][n] ("n last", further columns in panels
 * KR_WG_PANEL bytes on). D of a warpgroup is laid out as in mma.cuh, 16 rows per warp.
 *
 * Products are asynchronous: kr_wg_begin, products, kr_wg_commit, ..., kr_wg_wait<LEFT>, and kr_wg_hold on every
 * accumulator before it is accessed otherwise.
 */
#ifndef KR_KERNELS_CUDA_PRIM_WGMMA_CUH
#define KR_KERNELS_CUDA_PRIM_WGMMA_CUH

#include "kernels/cuda/prim/mma.cuh"

enum { KR_WG_PANEL = 64 * 64 * 2 };

/* Descriptor of a panel's columns k (k last) from k0 on, k0 < 64. */
static __device__ __forceinline__ uint64_t kr_wg_k_last(uint32_t panel, int k0)
{
    const uint64_t at = (uint64_t)(panel >> 4) | (uint64_t)1 << 16 | (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;
    return at + (uint64_t)(k0 * 2 / 16);
}

/* Descriptor of a panel's rows k (n last) from k0 on. */
static __device__ __forceinline__ uint64_t kr_wg_n_last(uint32_t panel, int k0)
{
    const uint64_t at =
        (uint64_t)(panel >> 4) | (uint64_t)(KR_WG_PANEL >> 4) << 16 | (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;
    return at + (uint64_t)(k0 * 128 / 16);
}

static __device__ __forceinline__ void kr_wg_begin(void)
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

static __device__ __forceinline__ void kr_wg_commit(void)
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

template <int LEFT> static __device__ __forceinline__ void kr_wg_wait(void)
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}

template <int N> static __device__ __forceinline__ void kr_wg_hold(float d[N][4])
{
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3])::"memory");
}

/* Makes ordinary stores to shared memory visible to wgmma. */
static __device__ __forceinline__ void kr_wg_proxy_fence(void)
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

#define KR_D4(i) "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3])

/* d[64 N] = A B (add: +=), both in shared memory. A with k last, or [k][m] with A_T; B with k last, or n last with B_T. */
template <int A_T, int B_T>
static __device__ __forceinline__ void kr_wg_ss(float d[8][4], uint64_t a, uint64_t b, int add)
{
    asm volatile("{.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
                 "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,"
                 "%27,%28,%29,%30,%31}, %32, %33, p, 1, 1, %35, %36;\n}"
                 : KR_D4(0), KR_D4(1), KR_D4(2), KR_D4(3), KR_D4(4), KR_D4(5), KR_D4(6), KR_D4(7)
                 : "l"(a), "l"(b), "r"(add), "n"(A_T), "n"(B_T));
}

template <int A_T, int B_T>
static __device__ __forceinline__ void kr_wg_ss_128(float d[16][4], uint64_t a, uint64_t b, int add)
{
    asm volatile("{.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
                 "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,"
                 "%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,"
                 "%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}, %64, %65, p, 1, 1, %67, %68;\n}"
                 : KR_D4(0), KR_D4(1), KR_D4(2), KR_D4(3), KR_D4(4), KR_D4(5), KR_D4(6), KR_D4(7), KR_D4(8), KR_D4(9),
                   KR_D4(10), KR_D4(11), KR_D4(12), KR_D4(13), KR_D4(14), KR_D4(15)
                 : "l"(a), "l"(b), "r"(add), "n"(A_T), "n"(B_T));
}

/* Selected by the number of columns. */
template <int N, int A_T, int B_T> struct kr_wg_product;

template <int A_T, int B_T> struct kr_wg_product<64, A_T, B_T> {
    static __device__ __forceinline__ void run(float d[8][4], uint64_t a, uint64_t b, int add)
    {
        kr_wg_ss<A_T, B_T>(d, a, b, add);
    }
};

template <int A_T, int B_T> struct kr_wg_product<128, A_T, B_T> {
    static __device__ __forceinline__ void run(float d[16][4], uint64_t a, uint64_t b, int add)
    {
        kr_wg_ss_128<A_T, B_T>(d, a, b, add);
    }
};

/* d[64 64] += A B, A in registers, B with n last. */
static __device__ __forceinline__ void kr_wg_64_rs(float d[8][4], const uint32_t a[4], uint64_t b)
{
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
        "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,"
        "%28,%29,%30,%31}, {%32,%33,%34,%35}, %36, 1, 1, 1, 1;"
        : KR_D4(0), KR_D4(1), KR_D4(2), KR_D4(3), KR_D4(4), KR_D4(5), KR_D4(6), KR_D4(7)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

/* d[64 128] += A B, A in registers, B with n last. */
static __device__ __forceinline__ void kr_wg_128_rs(float d[16][4], const uint32_t a[4], uint64_t b)
{
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
        "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,"
        "%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,"
        "%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}, {%64,%65,%66,%67}, %68, 1, 1, 1, 1;"
        : KR_D4(0), KR_D4(1), KR_D4(2), KR_D4(3), KR_D4(4), KR_D4(5), KR_D4(6), KR_D4(7), KR_D4(8), KR_D4(9), KR_D4(10),
          KR_D4(11), KR_D4(12), KR_D4(13), KR_D4(14), KR_D4(15)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

#endif
