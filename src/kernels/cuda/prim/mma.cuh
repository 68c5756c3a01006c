/* mma.cuh - warp-level mma.sync of bf16 with f32 accumulators, and the swizzled shared memory tiles that feed it. sm_80 and
 * later.
 *
 * A tile is rows of W elements, W 32 or a multiple of 64; its 16-byte units are stored at unit ^ (row & 7) of their row (W
 * 32: unit ^ (row / 2 & 3)), so that eight rows of one column of units are in eight different groups of banks. Tiles begin
 * at multiples of 512 bytes.
 *
 *   product     D[16 8] += A[16 16] B[16 8], mma.sync m16n8k16
 *   of lane l   D: rows l/4 (d0 d1) and l/4 + 8 (d2 d3), columns 2 (l%4) and one more
 *   names       A "mk": stored [m][k], "km": stored [k][m]; B "nk": stored [n][k], "kn": stored [k][n]
 *
 * Accumulators of two adjacent 8-column blocks of D, rounded to bf16, are an A operand: columns become k (kr_mma_d_to_a).
 */
#ifndef KR_KERNELS_CUDA_PRIM_MMA_CUH
#define KR_KERNELS_CUDA_PRIM_MMA_CUH

#include "kernels/cuda/prim/cp_async.cuh"
#include "kernels/cuda/prim/math.cuh"

#include <cuda_bf16.h>
#include <stdint.h>

typedef __nv_bfloat16 kr_bf16;

/* Byte offset of a unit of 8 elements in a tile of rows of W elements. */
template <int W> static __device__ __forceinline__ uint32_t kr_tile_at(int row, int unit)
{
    return (uint32_t)(row * (W * 2) + ((unit ^ (W == 32 ? (row >> 1) & 3 : row & 7)) << 4));
}

static __device__ __forceinline__ void kr_ldmatrix(uint32_t r[4], uint32_t address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address));
}

static __device__ __forceinline__ void kr_ldmatrix_trans(uint32_t r[4], uint32_t address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address));
}

/* A tile is aligned to the bytes of its row, so units of a lane's row differ from the first in bits that are 0 in the row's
 * offset: moving along a row is an exclusive or, moving along a column an addition. */

/* A[m0..+15][k0..+15] of a tile [m][k]. */
template <int W> static __device__ __forceinline__ void kr_load_a_mk(uint32_t r[4], uint32_t tile, int m0, int k0)
{
    const int lane = (int)threadIdx.x & 31;
    const uint32_t mine = tile + kr_tile_at<W>(lane & 15, lane >> 4);
    kr_ldmatrix(r, (mine ^ (uint32_t)(k0 * 2)) + (uint32_t)(m0 * W * 2));
}

/* The same of a tile [k][m]. */
template <int W> static __device__ __forceinline__ void kr_load_a_km(uint32_t r[4], uint32_t tile, int m0, int k0)
{
    const int lane = (int)threadIdx.x & 31;
    const uint32_t mine = tile + kr_tile_at<W>((lane & 7) + ((lane >> 4) & 1) * 8, (lane >> 3) & 1);
    kr_ldmatrix_trans(r, (mine ^ (uint32_t)(m0 * 2)) + (uint32_t)(k0 * W * 2));
}

/* B[k0..+15][n0..+15] of a tile [n][k]: r[0], r[1] for the first 8 columns, r[2], r[3] for the others. */
template <int W> static __device__ __forceinline__ void kr_load_b_nk(uint32_t r[4], uint32_t tile, int n0, int k0)
{
    const int lane = (int)threadIdx.x & 31;
    const uint32_t mine = tile + kr_tile_at<W>((lane & 7) + ((lane >> 4) & 1) * 8, (lane >> 3) & 1);
    kr_ldmatrix(r, (mine ^ (uint32_t)(k0 * 2)) + (uint32_t)(n0 * W * 2));
}

/* The same of a tile [k][n]. */
template <int W> static __device__ __forceinline__ void kr_load_b_kn(uint32_t r[4], uint32_t tile, int n0, int k0)
{
    const int lane = (int)threadIdx.x & 31;
    const uint32_t mine = tile + kr_tile_at<W>(lane & 15, lane >> 4);
    kr_ldmatrix_trans(r, (mine ^ (uint32_t)(n0 * 2)) + (uint32_t)(k0 * W * 2));
}

static __device__ __forceinline__ void kr_mma(float d[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Two products that share A: 16 columns. */
static __device__ __forceinline__ void kr_mma_pair(float d0[4], float d1[4], const uint32_t a[4], const uint32_t b[4])
{
    kr_mma(d0, a, b[0], b[1]);
    kr_mma(d1, a, b[2], b[3]);
}

/* Two bf16 in one register. */
static __device__ __forceinline__ uint32_t kr_pair_of(float low, float high)
{
    uint32_t r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}

static __device__ __forceinline__ float2 kr_unpack(uint32_t r)
{
    return make_float2(__uint_as_float(r << 16), __uint_as_float(r & 0xffff0000u));
}

/* The accumulators d0, d1 of 16 columns as an A operand. */
static __device__ __forceinline__ void kr_mma_d_to_a(uint32_t a[4], const float d0[4], const float d1[4])
{
    a[0] = kr_pair_of(d0[0], d0[1]);
    a[1] = kr_pair_of(d0[2], d0[3]);
    a[2] = kr_pair_of(d1[0], d1[1]);
    a[3] = kr_pair_of(d1[2], d1[3]);
}

static __device__ __forceinline__ float kr_exp2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* The sum over the four lanes (a quad) that share a row of D. */
static __device__ __forceinline__ float kr_quad_sum(float x)
{
    x += __shfl_xor_sync(~0u, x, 1);
    return x + __shfl_xor_sync(~0u, x, 2);
}

#endif
